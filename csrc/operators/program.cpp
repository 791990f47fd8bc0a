#include "program.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <functional>
#include <numeric>

#include "checks.h"
#include "cpu/programs/run.h"
#include "hip/pointwise/stitch.h"
#include "hip/programs/stitch_args.h"
#include "program/axis_maps.h"

namespace reformer {
namespace {

using torch::headeronly::ScalarType;

const char* name(ProgramOp kind) {
  switch (kind) {
    case ProgramOp::full: return "full";
    case ProgramOp::channel: return "channel";
    case ProgramOp::row: return "row";
    case ProgramOp::plane: return "plane";
    case ProgramOp::scalar: return "scalar";
    case ProgramOp::random: return "random";
    case ProgramOp::table: return "table";
    case ProgramOp::mapped: return "mapped";
    case ProgramOp::places: return "places";
    case ProgramOp::weighted: return "weighted";
    case ProgramOp::targets: return "targets";
    default: return "index";
  }
}

ScalarType torch_type(Stored type) {
  switch (type) {
    case Stored::fp32: return ScalarType::Float;
    case Stored::fp64: return ScalarType::Double;
    case Stored::fp16: return ScalarType::Half;
    case Stored::bf16: return ScalarType::BFloat16;
    case Stored::int64: return ScalarType::Long;
    case Stored::int32: return ScalarType::Int;
    case Stored::mask: return ScalarType::Bool;
    case Stored::result: break;
  }
  throw std::logic_error("what a result is stored as is known by its call");
}

// argument: returns the tensor's name.
template <class Name>
Stored stored_type(const char* op, const Name& argument, const Tensor& tensor) {
  const ScalarType found = tensor.scalar_type();
  for (Stored type :
       {Stored::fp32, Stored::bf16, Stored::fp16, Stored::fp64, Stored::mask, Stored::int64, Stored::int32})
    if (found == torch_type(type)) return type;
  fail(op, argument(), " has data type ", toString(found),
       "; float32, float64, float16, bfloat16, bool, int64 and int32 are supported");
}

bool has_sizes(const Tensor& tensor, Sizes wanted) {
  const auto sizes = tensor.sizes();
  return std::equal(sizes.begin(), sizes.end(), wanted.begin(), wanted.end());
}

int64_t numel(Sizes sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<int64_t>());
}

// Shape of an operand of this kind for a result of shape [N, C, H, W].
Ints sizes_of(ProgramOp kind, Sizes result) {
  switch (kind) {
    case ProgramOp::full: return {result[0], result[1], result[2], result[3]};
    case ProgramOp::channel: return {result[1]};
    case ProgramOp::row:
    case ProgramOp::index: return {result[0], result[2], result[3]};
    case ProgramOp::plane: return {result[0], result[1]};
    default: return {};
  }
}
Ints sizes_of(const ProgramOutput& output, Sizes result) {
  constexpr ProgramOp kinds[] = {ProgramOp::full, ProgramOp::channel, ProgramOp::row, ProgramOp::plane,
                                 ProgramOp::scalar};
  Ints sizes = output.per == Per::height ? Ints{result[2], result[1]} : sizes_of(kinds[size_t(output.per)], result);
  if (output.kind == Reduction::moments) sizes.insert(sizes.begin(), 2);
  return sizes;
}

std::optional<Placement> placement_of(const Tensor& tensor, int64_t width) {
  Placement found;
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  if (!find_placement(sizes.data(), strides.data(), sizes.size(), width, found)) return std::nullopt;
  return found;
}

// The tensor as a program reads it: checked, and dense or with a placement. Full, row and index tensors of more than 4
// dimensions have the result's elements in memory order. like: a tensor on the result's device. width: columns of a
// line if placements are supported, else 0.
Tensor operand(const char* op, size_t place, ProgramOp kind, const Tensor& tensor, const Tensor& like, Sizes result,
               Layout layout, int64_t width, std::optional<Placement>& placement) {
  const auto argument = [&] { return "tensors[" + std::to_string(place) + "] (" + name(kind) + ")"; };
  if (tensor.device() != like.device()) check_same_device(op, "acc", like, argument().c_str(), tensor);
  if (is_freed(tensor)) check_not_freed(op, argument().c_str(), tensor);
  const Stored type = stored_type(op, argument, tensor);
  const bool fits = kind == ProgramOp::random  ? type == Stored::int64
                    : kind == ProgramOp::index ? is_whole(type)
                                               : !is_map(kind) || type == Stored::int32;
  if (!fits) fail(op, argument(), " has data type ", toString(tensor.scalar_type()));
  if (kind == ProgramOp::scalar || kind == ProgramOp::random) {
    if (tensor.numel() != 1) fail(op, argument(), " must have one element, got size ", shown(tensor.sizes()));
    return tensor;
  }
  if (kind == ProgramOp::table) {
    if (tensor.dim() != 2 || tensor.size(1) != result[1])
      fail(op, argument(), " has size ", shown(tensor.sizes()), ", but rows have ", result[1], " elements");
    return tensor.stride(1) == 1 || result[1] == 1 ? tensor : contiguous_of(tensor);
  }
  if (kind == ProgramOp::mapped) {
    const bool has_columns = tensor.numel() == numel(result);
    const bool fits = tensor.dim() > 4 && (has_columns || tensor.numel() * result[1] == numel(result));
    if (width && fits) placement = placement_of(tensor, has_columns ? width : 1);
    if (!placement || placement->is_transposed())
      fail(op, argument(), " of size ", shown(tensor.sizes()), " can't be read by lines of the result");
    return tensor;
  }
  if (is_map(kind)) {
    const bool by_line = tensor.dim() > 4;
    const int64_t numbers = tensor.numel(), positions = by_line ? numel(result) / result[1] : result[1];
    const int64_t each = positions ? numbers / positions : 0;
    const bool fits = each && each * positions == numbers && each <= kMostMapWidth &&
                      (kind != ProgramOp::weighted || each % 2 == 0) && (kind != ProgramOp::targets || by_line) &&
                      tensor.size(tensor.dim() - 1) == each;
    if (width && fits && by_line) placement = placement_of(tensor, each);
    if (!fits || (by_line ? !placement || placement->is_transposed() : !tensor.is_contiguous()))
      fail(op, argument(), " has size ", shown(tensor.sizes()), ", which is no map of the lines or columns of ",
           shown(result));
    return tensor;
  }
  const Ints expected = sizes_of(kind, result);
  const Sizes wanted{expected.data(), expected.size()};
  const bool is_placed =
      (kind == ProgramOp::full || kind == ProgramOp::row || kind == ProgramOp::index) && tensor.dim() > 4;
  if (is_placed ? tensor.numel() != numel(wanted) : !has_sizes(tensor, wanted))
    fail(op, argument(), " has size ", shown(tensor.sizes()), ", but the result of size ", shown(result), " needs ",
         shown(wanted));
  if (is_placed) {
    if (width) placement = placement_of(tensor, kind == ProgramOp::full ? width : 1);
    return placement ? tensor : aligned(tensor);
  }
  return kind == ProgramOp::full ? dense(tensor, layout) : contiguous_of(tensor);
}

// A view of a dense tensor's elements in memory order, with these sizes.
Tensor in_order_of_memory(const Tensor& tensor, Sizes sizes) {
  Ints strides(sizes.size(), 1);
  for (size_t d = sizes.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * sizes[d + 1];
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(tensor.get(), int64_t(sizes.size()), sizes.data(), strides.data(), 0, &handle));
  return Tensor(handle);
}

// Runs the program by PyTorch's own operations, for programs that no kernel supports.
std::vector<Tensor> run_unfused(const Program& program, const Tensor& acc, const std::vector<Tensor>& tensors,
                                const std::vector<Tensor>& into) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(acc), from(tensors), from(program.code)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("reformer::_stitch_unfused", "", stack.data(), TORCH_ABI_VERSION));
  auto outputs = torch::stable::detail::to<std::vector<Tensor>>(stack[0]);
  for (size_t i = 0; i < into.size(); ++i) {
    Tensor to = into[i];
    const Tensor& from = outputs[outputs.size() - into.size() + i];
    torch::stable::copy_(to, to.dim() > 4 ? in_order_of_memory(from, to.sizes()) : from);
  }
  return outputs;
}

void run_on_gpu(const StitchedPlan& plan, const ProgramCall& call, const Tensor& acc, Semaphores* semaphores) {
  const int32_t index = acc.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  const gpu::Queue queue{index, current_stream(index)};
  const int64_t floats = plan.workspace_bytes / 4;
  if (!floats) return plan.run(call, queue, nullptr, nullptr);
  const Tensor workspace = empty(acc, {&floats, 1}, Layout::nchw, ScalarType::Float);
  plan.run(call, queue, workspace.mutable_data_ptr(),
           plan.semaphores && semaphores ? semaphores->counters(acc) : nullptr);
}

// A program's call with its tensors, for a result of these sizes in this layout, with the data type and device of
// `like`.
struct Prepared {
  Ints sizes;
  std::vector<Tensor> inputs, outputs;
  ProgramCall call;

  // width: columns of a line if placements are supported, else 0.
  Prepared(const char* op, const Program& program, const Tensor& like, Sizes of, Layout layout,
           const std::vector<Tensor>& tensors, int64_t width = 0)
      : sizes(of.begin(), of.end()),
        call{program, {layout, of[0], of[1], of[2] * of[3]}, Stored(int8_t(dtype_of(op, "acc", like))), nullptr, {},
             {}} {
    if (program.has_heights) call.shape.height = of[2];
    if (tensors.size() != program.inputs.size())
      fail(op, "the program has ", program.inputs.size(), " inputs, got ", tensors.size(), " tensors");
    for (size_t i = 0; i < tensors.size(); ++i) {
      const ProgramOp kind = program.inputs[i].kind;
      std::optional<Placement> placement;
      inputs.push_back(operand(op, i, kind, tensors[i], like, of, layout, width, placement));
      call.inputs.push_back({inputs[i].const_data_ptr(), stored_type(op, [] { return "tensors"; }, inputs[i])});
      if (placement) call.inputs[i].place = call.place_of_input(i, *placement);
      if (is_map(kind)) {
        const int64_t positions = placement ? call.shape.rows() : call.shape.channels;
        call.inputs[i].width = int32_t(inputs[i].numel() / positions);
      }
      if (kind == ProgramOp::table) call.tables.push_back({inputs[i].size(0), inputs[i].stride(0)});
    }
    if (program.maps) check_maps(op);
    if (program.has_digits) check_digits(op);
  }

  void check_digits(const char* op) const {
    for (const ProgramNode& node : call.program.nodes)
      if (node.digit && !is_whole(call.inputs[size_t(node.input)].type))
        fail(op, "tensors[", node.input, "] (", name(node.op), "), of which digits are read, has data type ",
             toString(inputs[size_t(node.input)].scalar_type()), "; int64 and int32 are supported");
  }

  // Maps of lines belong to tensors by element, and have no more taps than kernels can combine.
  void check_maps(const char* op) const {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      if (call.program.inputs[i].kind != ProgramOp::mapped) continue;
      int taps = 1, of_columns = 0;
      const AxisMaps maps(call, i);
      for (const AxisMap& map : maps) {
        taps *= map.taps;
        of_columns += map.by_column;
        if (!maps.only_choose() && nowhere_of(i) != 0)
          fail(op, "tensors[", i, "] (mapped) sums elements, so those that come from nowhere are 0");
        if (taps > kMostTaps) fail(op, "tensors[", i, "] (mapped) has more than ", kMostTaps, " taps");
      }
      const bool has_columns = inputs[i].numel() == call.shape.numel() && call.shape.channels > 1;
      if (of_columns > 1 || (of_columns && has_columns) || (!of_columns && !has_columns && call.shape.channels > 1))
        fail(op, "tensors[", i, "] (mapped) of size ", shown(inputs[i].sizes()), " does not fit its maps");
    }
  }

  double nowhere_of(size_t input) const {
    for (const ProgramNode& node : call.program.nodes)
      if (node.op == ProgramOp::mapped && size_t(node.input) == input) return node.value;
    return 0;
  }

  // Makes the last outputs write to existing tensors: vectors of channels, tensors of more than 4 dimensions through
  // their placements, and tensors of the result's sizes. If such a tensor is not dense, the output gets memory of its
  // own.
  void write_to(const char* op, const Tensor& like, const std::vector<Tensor>& into, int64_t width) {
    const size_t allocated = call.program.outputs.size() - into.size();
    call.outputs.resize(allocated);
    for (size_t i = 0; i < into.size(); ++i) {
      const ProgramOutput& output = call.program.outputs[allocated + i];
      check_same_device(op, "acc", like, "what is written to", into[i]);
      check_not_freed(op, "what is written to", into[i]);
      const bool is_vector =
          output.is_by_channel() && into[i].dim() == 1 && into[i].size(0) == like.size(1) && into[i].is_contiguous();
      const bool is_result = output.is_by_element() && into[i].dim() == 4 && has_sizes(into[i], like.sizes());
      std::optional<Placement> placement;
      if (output.is_by_element() && into[i].dim() > 4 && into[i].numel() == like.numel() && width)
        placement = placement_of(into[i], width);
      // Digits of lines that have targets have no strides of their own.
      if (placement && placement->repeats() && output.targets < 0) placement.reset();
      if (output.targets >= 0 && !placement) fail(op, "output ", allocated + i, " has targets, but no placement");
      const Stored type = call.stored_type(output);
      if ((!is_vector && !is_result && !placement) || into[i].scalar_type() != torch_type(type))
        fail(op, "output ", allocated + i, " can't be written to a tensor of size ", shown(into[i].sizes()),
             " and data type ", toString(into[i].scalar_type()));
      const bool is_usable = !is_result || is_dense(into[i], call.shape.layout);
      call.outputs.push_back(is_usable ? into[i].mutable_data_ptr() : nullptr);
      if (!placement) continue;
      call.places_of_outputs.resize(call.program.outputs.size(), -1);
      call.places_of_outputs[allocated + i] = call.add(*placement);
    }
  }

  // spare: a tensor whose memory the first output of the result's type may reuse, or null. into: the last outputs.
  void allocate_outputs(const Tensor& like, const Tensor* spare, const std::vector<Tensor>& into = {}) {
    const size_t allocated = call.program.outputs.size() - into.size();
    call.outputs.resize(call.program.outputs.size());
    for (size_t i = 0; i < call.program.outputs.size(); ++i) {
      const ProgramOutput& output = call.program.outputs[i];
      const Ints wanted = sizes_of(output, {sizes.data(), sizes.size()});
      const Stored type = call.stored_type(output);
      const Layout layout = output.is_by_element() ? call.shape.layout : Layout::nchw;
      if (output.targets >= 0 && i < allocated) fail("stitch", "output ", i, " has targets, but nothing to write to");
      if (i >= allocated && call.outputs[i]) {
        outputs.push_back(into[i - allocated]);
      } else if (spare && output.is_by_element() && type == call.type) {
        outputs.push_back(*spare);
        spare = nullptr;
      } else {
        outputs.push_back(empty(like, {wanted.data(), wanted.size()}, layout, torch_type(type)));
      }
      call.outputs[i] = outputs.back().mutable_data_ptr();
    }
  }
};

// Only for the CPU: GPU kernels check indices themselves.
void check_indices(const ProgramCall& call) {
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    if (call.program.inputs[i].kind != ProgramOp::index) continue;
    const int64_t rows = call.tables[size_t(call.program.inputs[i].table)].rows;
    for (int64_t line = 0; line < call.shape.rows(); ++line)
      if (const int64_t row = call.number(call.inputs[i], line); row < 0 || row >= rows)
        throw std::out_of_range("index out of range in self");  // PyTorch's message
  }
}

// Runs the program on `acc`, which is dense in the layout. reusable: acc's memory may be overwritten. semaphores: may
// be null.
std::vector<Tensor> run(const char* op, Prepared& prepared, const Tensor& acc, const std::vector<Tensor>& tensors,
                        bool reusable, const std::vector<Tensor>& into = {}, Semaphores* semaphores = nullptr) {
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
  const bool of_rows = call.program.needs_rows || call.program.tables;
  const bool has_kernel =
      acc.is_cpu() ? !call.program.has_heights && (!of_rows || call.shape.rows_are_lines()) : plan != nullptr;
  for (const ProgramOutput& output : call.program.outputs)
    if (output.targets >= 0 && (is_empty || !has_kernel)) fail(op, "no kernel stores rows to targets here");
  if (is_empty || !has_kernel) return run_unfused(call.program, acc, tensors, into);
  prepared.allocate_outputs(acc, reusable ? &acc : nullptr, into);
  if (plan) {
    run_on_gpu(*plan, call, acc, semaphores);
  } else {
    check_indices(call);
    run_program(call, device);
  }
  return prepared.outputs;
}

std::shared_ptr<const InternedProgram> program_of(const char* op, const Ints& code) {
  try {
    return interned_program(code.data(), int64_t(code.size()));
  } catch (const std::invalid_argument& error) {
    fail(op, error.what());
  }
}

std::vector<Tensor> stitch_with(const InternedProgram& program, const Tensor& acc, const std::vector<Tensor>& tensors,
                                const std::vector<Tensor>& into, Semaphores* semaphores) {
  const char* op = "stitch";
  if (acc.dim() != 4) fail(op, "acc must have 4 dimensions, got ", acc.dim(), " (", shown(acc.sizes()), ")");
  check_not_freed(op, "acc", acc);
  const Layout layout = result_layout(acc, acc);
  const bool rows_are_lines = layout == Layout::nhwc || acc.size(2) * acc.size(3) == 1;
  const int64_t width = rows_are_lines ? acc.size(1) : 0;
  Prepared prepared(op, program.whole, acc, acc.sizes(), layout, tensors, width);
  prepared.write_to(op, acc, into, width);
  return run(op, prepared, dense(acc, layout), tensors, false, into, semaphores);
}

// A program after a convolution.
class ProgramEpilogue final : public ConvEpilogue {
 public:
  ProgramEpilogue(const char* op, const Program& program, const Tensor& like, const std::vector<Tensor>& tensors)
      : op_(op), program_(program), like_(like), tensors_(tensors) {}

  void prepare(Sizes sizes, Layout layout) { prepared.emplace(op_, program_, like_, sizes, layout, tensors_); }
  const ProgramCall& call(const ConvProblem& problem) override {
    const auto sizes = problem.result_sizes();
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
  if (program->has_heights) {  // no convolution's kernel runs it
    const Tensor result = conv2d(input, weight, std::nullopt, stride, padding, dilation, groups);
    Prepared prepared(op, *program, result, result.sizes(), result_layout(result, result), tensors);
    return run(op, prepared, result, tensors, true);
  }
  std::optional<Tensor> bias;
  // Only on the CPU: on a GPU PyTorch's convolution would add the bias in a separate kernel, whereas a program adds it
  // for free.
  if (of.after_bias && input.is_cpu() && size_t(of.whole.bias()) < tensors.size()) {
    const Tensor& given = tensors[size_t(of.whole.bias())];
    if (given.dim() == 1 && weight.dim() == 4 && given.size(0) == weight.size(0)) {  // else run() reports the error
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
  if (!epilogue.prepared) epilogue.prepare(result.sizes(), result_layout(input, weight));  // the convolution was empty
  return run(op, *epilogue.prepared, result, tensors, true);
}

}  // namespace

unsigned* Semaphores::counters(const Tensor& like) {
  if (!counters_) {
    const int64_t most = kStitchMostSemaphores;
    counters_ = empty(like, {&most, 1}, Layout::nchw, ScalarType::Int);
    torch::stable::zero_(*counters_);
  }
  return static_cast<unsigned*>(counters_->mutable_data_ptr());
}

std::vector<Tensor> stitch(const Tensor& acc, const std::vector<Tensor>& tensors, const Ints& program) {
  return stitch_with(*program_of("stitch", program), acc, tensors, {}, nullptr);
}

std::vector<Tensor> stitch_interned(const Tensor& acc, const std::vector<Tensor>& tensors,
                                    const InternedProgram& program, const std::vector<Tensor>& into,
                                    Semaphores* semaphores) {
  return stitch_with(program, acc, tensors, into, semaphores);
}

std::vector<Tensor> conv2d_epilogue(const Tensor& input, const Tensor& weight, const std::vector<Tensor>& tensors,
                                    const Ints& program, const Ints& stride, const Ints& padding, const Ints& dilation,
                                    int64_t groups) {
  return conv2d_and(*program_of("conv2d_epilogue", program), input, weight, tensors, stride, padding, dilation, groups);
}

std::vector<Tensor> conv2d_epilogue_interned(const Tensor& input, const Tensor& weight,
                                             const std::vector<Tensor>& tensors, const InternedProgram& program,
                                             int64_t geometry) {
  const ConvGeometry g = unpacked_geometry(geometry);
  const auto pair = [](const std::array<int64_t, 2>& sizes) { return Ints(sizes.begin(), sizes.end()); };
  return conv2d_and(program, input, weight, tensors, pair(g.stride), pair(g.padding), pair(g.dilation), g.groups);
}

}  // namespace reformer
