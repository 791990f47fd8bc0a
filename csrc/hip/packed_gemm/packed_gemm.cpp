// Host side of pack.hip: implicit GEMM with packed operands, for grouped convolutions and first layers.
#include <optional>

#include "hip/gemm/gemm_tiles.h"
#include "hip/gpu_cost.h"
#include "hip/gpu_solver.h"
#include "hip/programs/conv_program.h"
#include "jit/gpu.h"
#include "pack_launch.h"

namespace reformer {
namespace {

// A kernel of pack.hip, with its arguments except for the pointers.
template <class Args>
struct Pass {
  gpu::Kernel kernel;
  gpu::Launch shape;
  Args args;

  void run(const gpu::Queue& queue, const Args& bound) const { gpu::launch(kernel, shape, queue, bound); }
};

gpu::Launch blocks_of(int64_t work, int each, int threads) {
  gpu::Launch launch;
  launch.blocks_x = uint32_t((work + each - 1) / each);
  launch.threads = uint32_t(threads);
  launch.pdl = true;
  return launch;
}

// Contents of the workspace, one after another: packed operands; the inner problem's result if that is unpacked; and
// its partial sums.
struct Workspace {
  int64_t x = 0, filter = 0, partials = 0, bytes = 0;

  Workspace(const PackConfig& pack, const ImplicitGemmConfig& gemm) {
    const ConvProblem& inner = pack.inner;
    const int64_t size = element_size(inner.dtype);
    if (pack.packs_x) x = take(inner.input_numel() * size);
    // The filter's gradient is unpacked directly from partial sums, if there are any.
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

// The packing of the operands; nullopt if there is nothing to pack.
std::optional<Pass<PackArgs>> packing(const ConvProblem& p, const PackConfig& pack) {
  const ConvProblem& inner = pack.inner;
  const bool packs_x = pack.packs_x && p.direction != Direction::input_grad;
  const bool packs_filter = p.direction != Direction::weight_grad;
  if (!packs_x && !packs_filter) return std::nullopt;
  const int elements = int(16 / element_size(p.dtype));
  PackArgs a{};
  a.images = pack.images, a.shape = pack.filter;
  a.filter_chunks = packs_filter ? int(inner.weight_numel() / elements) : 0;
  a.x_chunks = packs_x ? int(inner.input_numel() / elements) : 0;
  gpu::Launch launch = blocks_of(a.filter_chunks, kPackThreads, kPackThreads);
  a.filter_blocks = int(launch.blocks_x);
  launch.blocks_x += blocks_of(a.x_chunks, kPackThreads, kPackThreads).blocks_x;
  return Pass<PackArgs>{gpu::Kernel(*pack_kernel(PackPart::pack, p.dtype, packs_x ? p.c : 0)), launch, a};
}

std::optional<Pass<UnpackInputGradArgs>> unpacking_input_grad(const ConvProblem& p, const PackConfig& pack) {
  if (p.direction != Direction::input_grad || !pack.packs_x) return std::nullopt;
  UnpackInputGradArgs a{};
  a.all_pixels = p.n * p.h * p.w;
  a.images = pack.images;
  return Pass<UnpackInputGradArgs>{gpu::Kernel(*pack_kernel(PackPart::unpack_input_grad, p.dtype, p.c)),
                                   blocks_of(a.all_pixels, kPackThreads, kPackThreads), a};
}

std::optional<Pass<UnpackWeightGradArgs>> unpacking_weight_grad(const ConvProblem& p, const PackConfig& pack,
                                                                const ImplicitGemmConfig& gemm, const Device& device) {
  if (p.direction != Direction::weight_grad) return std::nullopt;
  UnpackWeightGradArgs a{};
  a.parts = gemm.partials, a.packed_numel = gemm.args.result_numel;
  a.numel = int(p.weight_numel());
  a.shape = pack.filter;
  const int warp = warp_size(device.arch);
  return Pass<UnpackWeightGradArgs>{gpu::Kernel(*pack_kernel(PackPart::unpack_weight_grad, p.dtype, 0)),
                                    blocks_of(a.numel, warp, kUnpackWeightGradWarps * warp), a};
}

// All kernels for a problem.
class PackedGemm {
 public:
  PackedGemm(const ConvProblem& p, const PackConfig& pack, std::shared_ptr<const GemmLaunch> gemm, const Device& device)
      : direction_(p.direction),
        packs_x_(pack.packs_x),
        workspace_(pack, gemm->config),
        pack_(packing(p, pack)),
        gemm_(std::move(gemm)),
        unpack_input_grad_(unpacking_input_grad(p, pack)),
        unpack_weight_grad_(unpacking_weight_grad(p, pack, gemm_->config, device)) {}

  int64_t workspace_bytes() const { return workspace_.bytes; }

  void run(const ConvBuffers& b) const {
    const Packed packed = this->packed(b);
    void* const results[] = {b.y, packed.x, packed.filter};
    ImplicitGemmConfig bound = gemm_->config;
    bind(bound, direction_, packed.x, b.y, packed.filter, b.bias, results[size_t(direction_)],
         in_workspace(b, workspace_.partials));
    gemm_->multiply(bound, b.queue);
    if (unpack_weight_grad_) {
      UnpackWeightGradArgs a = unpack_weight_grad_->args;
      a.packed = bound.args.result, a.filter = b.w;
      return unpack_weight_grad_->run(b.queue, a);
    }
    gemm_->finish(bound, b.queue);
    if (unpack_input_grad_) {
      UnpackInputGradArgs a = unpack_input_grad_->args;
      a.packed = packed.x, a.x = b.x;
      unpack_input_grad_->run(b.queue, a);
    }
  }

  void run_with(const KernelWithProgram& kernel, const ConvBuffers& b, const ProgramCall& call) const {
    const Packed packed = this->packed(b);
    ImplicitGemmConfig bound = gemm_->config;
    bind(bound, direction_, packed.x, nullptr, packed.filter, nullptr, kernel.result_of(call), nullptr);
    kernel.launch(bound.launch, b.queue, bound.args, call);
  }

 private:
  // The operands of the inner problem, or the destinations of its results.
  struct Packed {
    void *x, *filter;
  };
  Packed packed(const ConvBuffers& b) const {
    const Packed to{packs_x_ ? in_workspace(b, workspace_.x) : b.x, in_workspace(b, workspace_.filter)};
    if (pack_) {
      PackArgs a = pack_->args;
      a.x = b.x, a.packed_x = to.x, a.filter = b.w, a.packed_filter = to.filter;
      pack_->run(b.queue, a);
    }
    return to;
  }

  static void* in_workspace(const ConvBuffers& b, int64_t offset) { return static_cast<char*>(b.workspace) + offset; }

  const Direction direction_;
  const bool packs_x_;
  const Workspace workspace_;
  const std::optional<Pass<PackArgs>> pack_;
  const std::shared_ptr<const GemmLaunch> gemm_;
  const std::optional<Pass<UnpackInputGradArgs>> unpack_input_grad_;
  const std::optional<Pass<UnpackWeightGradArgs>> unpack_weight_grad_;
};

class GpuPackedGemm final : public GpuSolver {
 public:
  GpuPackedGemm(const char* name, int rows, int columns) : name_(name), columns_(columns), tiles_(rows, columns) {}
  const char* name() const override { return name_; }

  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    PackConfig pack;
    if (const char* why = configure_packing(p, columns_, pack)) return why;
    const Planned<GemmLaunch> gemm = tiles_.plan(pack.inner, device);
    if (!gemm.plan) return gemm.reason;
    const PackedGemm packed(p, pack, gemm.plan, device);
    ConvPlan plan;
    // More than the estimate for cuDNN (aten_solvers.cpp), which is thus chosen unless weights know better.
    plan.us = gpu_estimate_us(p, p.kind() == Kind::depthwise ? 0.12 : 0.25);
    plan.workspace_bytes = packed.workspace_bytes();
    plan.inaccuracy = GemmTiles::inaccuracy(p, device);
    plan.run = [packed](const ConvBuffers& b) { packed.run(b); };
    return plan;
  }

  // The program can run on the inner problem's result, which is that of the problem.
  Planned<ConvPlan> plan_with(const ProgramCall& program, const ConvProblem& p, const Device& device) const override {
    if (p.direction != Direction::forward || !supports_program(program, {int(16 / element_size(p.dtype))}))
      return "it does not run such a program";
    PackConfig pack;
    if (const char* why = configure_packing(p, columns_, pack)) return why;
    const Planned<GemmLaunch> gemm = tiles_.plan(pack.inner, device);
    if (!gemm.plan) return gemm.reason;
    if (gemm.plan->config.partials > 1) return "another kernel adds up its partial sums";
    const PackedGemm packed(p, pack, gemm.plan, device);
    ConvPlan plan;
    plan.workspace_bytes = packed.workspace_bytes();
    plan.run_with = [packed, kernel = KernelWithProgram(gemm.plan->of->entry, program)](
                        const ConvBuffers& b, const ProgramCall& call) { packed.run_with(kernel, b, call); };
    return plan;
  }

 private:
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
