// Host side of hip/kernels/pack.hip: implicit GEMM for grouped convolutions and first layers, with packed operands.
#include "conv/solver.h"
#include "gemm_launch.h"
#include "hip/kernels/pack_plan.h"
#include "hip/programs/conv_program.h"
#include "jit/gpu.h"

namespace reformer {
namespace {

gpu::Launch blocks_of(int64_t work, int each, int threads) {
  gpu::Launch launch;
  launch.blocks_x = uint32_t((work + each - 1) / each);
  launch.threads = uint32_t(threads);
  launch.pdl = true;
  return launch;
}

// What the workspace holds, one after another: packed operands, the inner problem's result if that is unpacked, and its
// partial sums.
struct Workspace {
  int64_t x = 0, filter = 0, partials = 0, bytes = 0;

  Workspace(const PackPlan& pack, const ImplicitGemmPlan& gemm) {
    const ConvProblem& inner = pack.inner;
    const int64_t size = element_size(inner.dtype);
    if (pack.packs_x) x = take(inner.input_numel() * size);
    // The filter's gradient is unpacked from partial sums as well as from a result.
    if (inner.direction != Direction::weight_grad || gemm.partials == 1) filter = take(inner.weight_numel() * size);
    partials = take(gemm.workspace_bytes);
  }

 private:
  int64_t take(int64_t more) {
    constexpr int64_t kAligned = 256;
    const int64_t at = bytes;
    bytes += (more + kAligned - 1) / kAligned * kAligned;
    return at;
  }
};

class GpuPackedGemm final : public Solver {
 public:
  GpuPackedGemm(const char* name, int rows, int columns) : name_(name), columns_(columns), tiles_(rows, columns) {}
  const char* name() const override { return name_; }
  bool runs_on(DeviceKind kind) const override { return kind == DeviceKind::cuda; }

  const char* refusal(const ConvProblem& p, const Device& device) const override {
    PackPlan pack;
    if (const char* why = plan_packing(p, columns_, pack)) return why;
    return tiles_.refusal(pack.inner, device);
  }

  bool full_accuracy(const ConvProblem& p, const Device& device) const override {
    return GemmTiles::full_accuracy(p, device);
  }
  const char* inaccuracy() const override { return GemmTiles::kInaccuracy; }

  // More than what is expected of cuDNN (aten_solvers.cpp), which is chosen unless weights know better.
  double estimate_us(const ConvProblem& p, const Device&) const override {
    return gpu_estimate_us(p, p.kind() == Kind::depthwise ? 0.12 : 0.25);
  }

  int64_t workspace_bytes(const ConvProblem& p, const Device& device) const override {
    const PackPlan pack = plan(p);
    return Workspace(pack, tiles_.launch(pack.inner, device).plan).bytes;
  }

  void run(const ConvProblem& p, const Device& device, ConvCall& call) const override {
    const PackPlan pack = plan(p);
    GemmLaunch gemm = tiles_.launch(pack.inner, device);
    const Workspace workspace(pack, gemm.plan);
    const ConvBuffers b = call.buffers(workspace.bytes);
    const auto in_workspace = [&](int64_t offset) { return static_cast<char*>(b.workspace) + offset; };
    void* const x = pack.packs_x ? in_workspace(workspace.x) : b.x;
    void* const filter = in_workspace(workspace.filter);
    void* const results[] = {b.y, x, filter};

    pack_operands(p, pack, b, x, filter);
    bind(gemm.plan, p.direction, x, b.y, filter, b.bias, results[size_t(p.direction)],
         in_workspace(workspace.partials));
    gemm.multiply(b.queue);
    if (p.direction == Direction::weight_grad)
      return unpack_weight_grad(p, pack, device, gemm.plan, b, gemm.plan.args.result);
    gemm.finish(b.queue);
    if (p.direction == Direction::input_grad && pack.packs_x) unpack_input_grad(p, pack, b, x);
  }

  // The inner problem's result is the problem's own. Partial sums are added up by another kernel.
  bool takes(const ConvProblem& p, const Device& device, const ProgramCall& program) const override {
    return p.direction == Direction::forward && takes_program(program, int(16 / element_size(p.dtype))) &&
           tiles_.launch(plan(p).inner, device).plan.partials == 1;
  }

  int64_t workspace_bytes_with(const ProgramCall&, const ConvProblem& p, const Device& device) const override {
    return workspace_bytes(p, device);
  }

  void run_with(const ProgramCall& program, const ConvProblem& p, const Device& device,
                const ConvBuffers& b) const override {
    const PackPlan pack = plan(p);
    GemmLaunch gemm = tiles_.launch(pack.inner, device);
    const Workspace workspace(pack, gemm.plan);
    void* const x = pack.packs_x ? static_cast<char*>(b.workspace) + workspace.x : b.x;
    void* const filter = static_cast<char*>(b.workspace) + workspace.filter;
    pack_operands(p, pack, b, x, filter);
    bind(gemm.plan, p.direction, x, nullptr, filter, nullptr, result_of(program), nullptr);
    launch_with_program(gemm.kernel->entry, gemm.plan.launch, b.queue, gemm.plan.args, program);
  }

 private:
  PackPlan plan(const ConvProblem& p) const {
    PackPlan pack;
    plan_packing(p, columns_, pack);
    return pack;
  }

  static void pack_operands(const ConvProblem& p, const PackPlan& pack, const ConvBuffers& b, void* x, void* filter) {
    const ConvProblem& inner = pack.inner;
    const bool packs_x = pack.packs_x && p.direction != Direction::input_grad;
    const bool packs_filter = p.direction != Direction::weight_grad;
    if (!packs_x && !packs_filter) return;
    const int elements = int(16 / element_size(p.dtype));
    PackArgs a{};
    a.x = b.x, a.packed_x = x, a.filter = b.w, a.packed_filter = filter;
    a.images = pack.images, a.shape = pack.filter;
    a.filter_chunks = packs_filter ? int(inner.weight_numel() / elements) : 0;
    a.x_chunks = packs_x ? int(inner.input_numel() / elements) : 0;
    gpu::Launch launch = blocks_of(a.filter_chunks, kPackThreads, kPackThreads);
    a.filter_blocks = int(launch.blocks_x);
    launch.blocks_x += blocks_of(a.x_chunks, kPackThreads, kPackThreads).blocks_x;
    gpu::launch(*pack_kernel(PackPart::pack, p.dtype, packs_x ? p.c : 0), launch, b.queue, a);
  }

  static void unpack_input_grad(const ConvProblem& p, const PackPlan& pack, const ConvBuffers& b, const void* packed) {
    UnpackInputGradArgs a{};
    a.packed = packed, a.x = b.x;
    a.all_pixels = p.n * p.h * p.w;
    a.images = pack.images;
    gpu::launch(*pack_kernel(PackPart::unpack_input_grad, p.dtype, p.c),
                blocks_of(a.all_pixels, kPackThreads, kPackThreads), b.queue, a);
  }

  static void unpack_weight_grad(const ConvProblem& p, const PackPlan& pack, const Device& device,
                                 const ImplicitGemmPlan& gemm, const ConvBuffers& b, const void* packed) {
    UnpackWeightGradArgs a{};
    a.packed = packed, a.filter = b.w;
    a.parts = gemm.partials, a.packed_numel = gemm.args.result_numel;
    a.numel = int(p.weight_numel());
    a.shape = pack.filter;
    const int warp = warp_size(device.arch);
    gpu::launch(*pack_kernel(PackPart::unpack_weight_grad, p.dtype, 0),
                blocks_of(a.numel, warp, kUnpackWeightGradWarps * warp), b.queue, a);
  }

  const char* name_;
  const int columns_;
  const GemmTiles tiles_;
};

}  // namespace

// clang-format off: one line a solver
const Solver& gpu_packed_gemm_128x64() { static const GpuPackedGemm solver("gpu_packed_gemm_128x64", 128, 64); return solver; }
const Solver& gpu_packed_gemm_64x64() { static const GpuPackedGemm solver("gpu_packed_gemm_64x64", 64, 64); return solver; }
const Solver& gpu_packed_gemm_128x32() { static const GpuPackedGemm solver("gpu_packed_gemm_128x32", 128, 32); return solver; }
// clang-format on

}  // namespace reformer
