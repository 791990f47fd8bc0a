#include "program.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "checks.h"
#include "cpu/programs/run.h"
#include "hip/programs/stitch.h"

namespace reformer {
namespace {

using torch::headeronly::ScalarType;

const char* name(ProgramOp kind) {
  switch (kind) {
    case ProgramOp::full: return "full";
    case ProgramOp::channel: return "channel";
    case ProgramOp::row: return "row";
    case ProgramOp::scalar: return "scalar";
    default: return "random";
  }
}

ScalarType torch_type(Stored type) {
  switch (type) {
    case Stored::fp32: return ScalarType::Float;
    case Stored::fp64: return ScalarType::Double;
    case Stored::fp16: return ScalarType::Half;
    case Stored::bf16: return ScalarType::BFloat16;
    case Stored::key: return ScalarType::Long;
    default: return ScalarType::Bool;
  }
}

// argument(): the tensor's name.
template <class Name>
Stored stored_type(const char* op, const Name& argument, const Tensor& tensor) {
  const ScalarType found = tensor.scalar_type();
  for (Stored type : {Stored::fp32, Stored::bf16, Stored::fp16, Stored::fp64, Stored::mask, Stored::key})
    if (found == torch_type(type)) return type;
  fail(op, argument(), " has data type ", toString(found),
       "; float32, float64, float16, bfloat16 and bool are supported, and int64 for a key of random numbers");
}

// Sizes of what has an element for each of these of a result.
Ints sizes_of(ProgramOp kind, Sizes result) {
  switch (kind) {
    case ProgramOp::full: return {result[0], result[1], result[2], result[3]};
    case ProgramOp::channel: return {result[1]};
    case ProgramOp::row: return {result[0], result[2], result[3]};
    default: return {};
  }
}
Ints sizes_of(const ProgramOutput& output, Sizes result) {
  constexpr ProgramOp kinds[] = {ProgramOp::full, ProgramOp::channel, ProgramOp::row, ProgramOp::scalar};
  Ints sizes = sizes_of(kinds[size_t(output.per)], result);
  if (output.kind == Reduction::moments) sizes.insert(sizes.begin(), 2);
  return sizes;
}

// Elements from one row to the next of a tensor whose rows of adjacent channels are equally far apart, or 0.
int64_t row_pitch(const Tensor& tensor) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  if (sizes[1] < 2 || strides[1] != 1) return 0;
  int64_t pitch = 0, expected = 0;
  for (size_t d : {3, 2, 0}) {
    if (sizes[d] == 1) continue;
    if (!pitch) pitch = expected = strides[d];
    if (strides[d] != expected) return 0;
    expected *= sizes[d];
  }
  return pitch > sizes[1] && pitch <= INT32_MAX ? pitch : 0;
}

// The tensor as a program reads it: checked, and dense, or with rows that are apart. like: a tensor where the result of
// these sizes will be.
Tensor operand(const char* op, size_t place, ProgramOp kind, const Tensor& tensor, const Tensor& like, Sizes result,
               Layout layout, bool rows_apart) {
  const auto argument = [&] { return "tensors[" + std::to_string(place) + "] (" + name(kind) + ")"; };
  if (tensor.device() != like.device()) check_same_device(op, "acc", like, argument().c_str(), tensor);
  if (is_freed(tensor)) check_not_freed(op, argument().c_str(), tensor);
  const bool is_key = stored_type(op, argument, tensor) == Stored::key;
  if (is_key != (kind == ProgramOp::random)) fail(op, argument(), " has data type ", toString(tensor.scalar_type()));
  if (kind == ProgramOp::scalar || kind == ProgramOp::random) {
    if (tensor.numel() != 1) fail(op, argument(), " must have one element, got size ", shown(tensor.sizes()));
    return tensor;
  }
  const Ints expected = sizes_of(kind, result);
  const Sizes wanted{expected.data(), expected.size()}, got = tensor.sizes();
  if (!std::equal(got.begin(), got.end(), wanted.begin(), wanted.end()))
    fail(op, argument(), " has size ", shown(got), ", but the result of size ", shown(result), " needs ",
         shown(wanted));
  if (kind != ProgramOp::full) return contiguous_of(tensor);
  return rows_apart && row_pitch(tensor) ? tensor : dense(tensor, layout);
}

// By PyTorch's own operations, for what no kernel runs.
std::vector<Tensor> run_unfused(const Program& program, const Tensor& acc, const std::vector<Tensor>& tensors,
                                const std::vector<Tensor>& into) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(acc), from(tensors), from(program.code)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("reformer::_stitch_unfused", "", stack.data(), TORCH_ABI_VERSION));
  auto outputs = torch::stable::detail::to<std::vector<Tensor>>(stack[0]);
  for (size_t i = 0; i < into.size(); ++i) {
    Tensor to = into[i];
    torch::stable::copy_(to, outputs[outputs.size() - into.size() + i]);
  }
  return outputs;
}

void run_on_gpu(const StitchedPlan& plan, const ProgramCall& call, const Tensor& acc) {
  const int32_t index = acc.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  const gpu::Queue queue{index, current_stream(index)};
  const int64_t floats = plan.workspace_bytes / 4;
  if (!floats) return plan.run(call, queue, nullptr);
  const Tensor workspace = empty(acc, {&floats, 1}, Layout::nchw, ScalarType::Float);
  plan.run(call, queue, workspace.mutable_data_ptr());
}

// A program's call, with its tensors: for a result of these sizes in this layout, of the data type of `like`, which is
// where the result will be.
struct Prepared {
  Ints sizes;
  std::vector<Tensor> inputs, outputs;
  ProgramCall call;

  // rows_apart: whether rows of full inputs may be.
  Prepared(const char* op, const Program& program, const Tensor& like, Sizes of, Layout layout,
           const std::vector<Tensor>& tensors, bool rows_apart = false)
      : sizes(of.begin(), of.end()),
        call{program, {layout, of[0], of[1], of[2] * of[3]}, Stored(int8_t(dtype_of(op, "acc", like))), nullptr, {},
             {}} {
    if (tensors.size() != program.inputs.size())
      fail(op, "the program has ", program.inputs.size(), " inputs, got ", tensors.size(), " tensors");
    for (size_t i = 0; i < tensors.size(); ++i) {
      const ProgramOp kind = program.inputs[i].kind;
      inputs.push_back(operand(op, i, kind, tensors[i], like, of, layout, rows_apart));
      call.inputs.push_back({inputs[i].const_data_ptr(),
                             stored_type(
                                 op, [] { return "tensors"; }, inputs[i]),
                             rows_apart && kind == ProgramOp::full ? row_pitch(inputs[i]) : 0});
    }
  }

  // spare: a tensor that may be the first output of the result's type, if any. into: the last outputs.
  void allocate_outputs(const Tensor& like, const Tensor* spare, const std::vector<Tensor>& into = {}) {
    const size_t allocated = call.program.outputs.size() - into.size();
    for (size_t i = 0; i < call.program.outputs.size(); ++i) {
      const ProgramOutput& output = call.program.outputs[i];
      const Ints wanted = sizes_of(output, {sizes.data(), sizes.size()});
      const Stored type = output.kind != Reduction::none  ? call.type == Stored::fp64 ? Stored::fp64 : Stored::fp32
                          : output.type == Stored::result ? call.type
                                                          : output.type;
      const Layout layout = output.is_by_element() ? call.shape.layout : Layout::nchw;
      if (i >= allocated) {
        outputs.push_back(into[i - allocated]);
      } else if (spare && output.is_by_element() && type == call.type) {
        outputs.push_back(*spare);
        spare = nullptr;
      } else {
        outputs.push_back(empty(like, {wanted.data(), wanted.size()}, layout, torch_type(type)));
      }
      call.outputs.push_back(outputs.back().mutable_data_ptr());
    }
  }
};

// Runs the program over `acc`, which is dense in the layout. reusable: nobody else needs acc's memory.
std::vector<Tensor> run(const char* op, Prepared& prepared, const Tensor& acc, const std::vector<Tensor>& tensors,
                        bool reusable, const std::vector<Tensor>& into = {}) {
  ProgramCall& call = prepared.call;
  call.acc = acc.const_data_ptr();
  const bool is_empty = call.shape.numel() == 0;
  for (const ProgramOutput& output : call.program.outputs)
    if (is_empty && (output.kind == Reduction::max || output.kind == Reduction::moments))
      fail(op, "a result of size ", shown(acc.sizes()), " has no ",
           output.kind == Reduction::max ? "maximum" : "moments");
  const Device device = device_of(acc);
  std::shared_ptr<const StitchedPlan> plan;  // on a GPU
  if (!is_empty && !acc.is_cpu()) plan = planned_stitch(call, device).plan;
  const bool has_kernel = acc.is_cpu() ? !call.program.needs_rows || call.shape.rows_are_lines() : plan != nullptr;
  if (is_empty || !has_kernel) return run_unfused(call.program, acc, tensors, into);
  prepared.allocate_outputs(acc, reusable ? &acc : nullptr, into);
  if (plan)
    run_on_gpu(*plan, call, acc);
  else
    run_program(call, device);
  return prepared.outputs;
}

std::shared_ptr<const InternedProgram> program_of(const char* op, const Ints& code) {
  try {
    return interned_program(code.data(), int64_t(code.size()));
  } catch (const std::invalid_argument& error) {
    fail(op, error.what());
  }
}

void check_into(const char* op, const Program& program, const std::vector<Tensor>& into, const Tensor& like) {
  for (size_t i = 0; i < into.size(); ++i) {
    const ProgramOutput& output = program.outputs[program.outputs.size() - into.size() + i];
    check_same_device(op, "acc", like, "what is written to", into[i]);
    check_not_freed(op, "what is written to", into[i]);
    if (!output.is_by_channel() || into[i].scalar_type() != torch_type(output.type) || into[i].dim() != 1 ||
        into[i].size(0) != like.size(1) || !into[i].is_contiguous())
      fail(op, "output ", program.outputs.size() - into.size() + i, " can't be written to a tensor of size ",
           shown(into[i].sizes()), " and data type ", toString(into[i].scalar_type()));
  }
}

std::vector<Tensor> stitch_with(const InternedProgram& program, const Tensor& acc, const std::vector<Tensor>& tensors,
                                const std::vector<Tensor>& into) {
  const char* op = "stitch";
  if (acc.dim() != 4) fail(op, "acc must have 4 dimensions, got ", acc.dim(), " (", shown(acc.sizes()), ")");
  check_not_freed(op, "acc", acc);
  const Layout layout = result_layout(acc, acc);
  const bool rows_apart = !acc.is_cpu() && (layout == Layout::nhwc || acc.size(2) * acc.size(3) == 1);
  Prepared prepared(op, program.whole, acc, acc.sizes(), layout, tensors, rows_apart);
  check_into(op, program.whole, into, acc);
  return run(op, prepared, dense(acc, layout), tensors, false, into);
}

// That follows a convolution.
class ProgramEpilogue final : public ConvEpilogue {
 public:
  ProgramEpilogue(const char* op, const Program& program, const Tensor& like, const std::vector<Tensor>& tensors)
      : op_(op), program_(program), like_(like), tensors_(tensors) {}

  void prepare(Sizes sizes, Layout layout) { prepared.emplace(op_, program_, like_, sizes, layout, tensors_); }
  const ProgramCall& call(const ConvProblem& problem) override {
    const auto sizes = result_sizes(problem);
    prepare({sizes.data(), sizes.size()}, problem.layout);
    return prepared->call;
  }
  void run(const ConvPlan& plan, const ConvBuffers& operands) override {
    prepared->allocate_outputs(like_, nullptr);
    ConvBuffers buffers = operands;
    std::optional<Tensor> workspace;
    if (const int64_t floats = plan.workspace_bytes / 4) {
      workspace = empty(like_, {&floats, 1}, Layout::nchw, ScalarType::Float);
      buffers.workspace = workspace->mutable_data_ptr();
    }
    plan.run_with(buffers, prepared->call);
    done = true;
  }

  std::optional<Prepared> prepared;
  bool done = false;

 private:
  const char* const op_;
  const Program& program_;
  const Tensor& like_;
  const std::vector<Tensor>& tensors_;
};

std::vector<Tensor> conv2d_and(const InternedProgram& of, const Tensor& input, const Tensor& weight,
                               const std::vector<Tensor>& tensors, const Ints& stride, const Ints& padding,
                               const Ints& dilation, int64_t groups) {
  const char* op = "conv2d_epilogue";
  const Program* program = &of.whole;
  std::optional<Tensor> bias;
  // On a GPU PyTorch's convolution would add it by a kernel of its own, and a program adds it for nothing.
  if (of.after_bias && input.is_cpu() && size_t(of.whole.bias()) < tensors.size()) {
    const Tensor& given = tensors[size_t(of.whole.bias())];
    if (given.dim() == 1 && weight.dim() == 4 && given.size(0) == weight.size(0)) {  // else run() says what is wrong
      stored_type(op, [] { return "the bias"; }, given);
      check_same_device(op, "input", input, "the bias", given);
      check_not_freed(op, "the bias", given);
      bias = given;
      if (given.scalar_type() != input.scalar_type()) {
        bias = empty(input, given.sizes(), Layout::nchw);
        torch::stable::copy_(*bias, given);
      }
      program = &*of.after_bias;
    }
  }
  ProgramEpilogue epilogue(op, *program, input, tensors);
  const Tensor result = conv2d_with(epilogue, input, weight, bias, stride, padding, dilation, groups);
  if (epilogue.done) return epilogue.prepared->outputs;
  if (!epilogue.prepared)
    epilogue.prepare(result.sizes(), result_layout(input, weight));  // there was nothing to compute
  return run(op, *epilogue.prepared, result, tensors, true);
}

}  // namespace

std::vector<Tensor> stitch(const Tensor& acc, const std::vector<Tensor>& tensors, const Ints& program) {
  return stitch_with(*program_of("stitch", program), acc, tensors, {});
}

std::vector<Tensor> stitch_interned(const Tensor& acc, const std::vector<Tensor>& tensors,
                                    const InternedProgram& program, const std::vector<Tensor>& into) {
  return stitch_with(program, acc, tensors, into);
}

std::vector<Tensor> conv2d_epilogue(const Tensor& input, const Tensor& weight, const std::vector<Tensor>& tensors,
                                    const Ints& program, const Ints& stride, const Ints& padding, const Ints& dilation,
                                    int64_t groups) {
  return conv2d_and(*program_of("conv2d_epilogue", program), input, weight, tensors, stride, padding, dilation, groups);
}

std::vector<Tensor> conv2d_epilogue_interned(const Tensor& input, const Tensor& weight,
                                             const std::vector<Tensor>& tensors, const InternedProgram& program,
                                             int64_t geometry) {
  const GeometryNumbers g = unpacked_geometry(geometry);
  return conv2d_and(program, input, weight, tensors, {g[0], g[1]}, {g[2], g[3]}, {g[4], g[5]}, g[6]);
}

}  // namespace reformer
