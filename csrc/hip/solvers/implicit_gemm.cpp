// Host side of hip/kernels/implicit_gemm.hip: one solver for each size of tiles.
#include "conv/solver.h"
#include "gemm_launch.h"
#include "hip/programs/conv_program.h"

namespace reformer {
namespace {

class GpuGemm final : public Solver {
 public:
  GpuGemm(const char* name, int rows, int columns) : name_(name), tiles_(rows, columns) {}
  const char* name() const override { return name_; }
  bool runs_on(DeviceKind kind) const override { return kind == DeviceKind::cuda; }

  const char* refusal(const ConvProblem& p, const Device& device) const override { return tiles_.refusal(p, device); }

  bool full_accuracy(const ConvProblem& p, const Device& device) const override {
    return GemmTiles::full_accuracy(p, device);
  }
  const char* inaccuracy() const override { return GemmTiles::kInaccuracy; }

  // About what cuDNN takes (aten_solvers.cpp), and then some: cuDNN is chosen unless weights know better.
  double estimate_us(const ConvProblem& p, const Device&) const override { return gpu_estimate_us(p, 0.25); }

  int64_t workspace_bytes(const ConvProblem& p, const Device& device) const override {
    return tiles_.launch(p, device).plan.workspace_bytes;
  }

  void run(const ConvProblem& p, const Device& device, ConvCall& call) const override {
    GemmLaunch gemm = tiles_.launch(p, device);
    const ConvBuffers b = call.buffers(gemm.plan.workspace_bytes);
    void* const results[] = {b.y, b.x, b.w};
    bind(gemm.plan, p.direction, b.x, b.y, b.w, b.bias, results[size_t(p.direction)], b.workspace);
    gemm.multiply(b.queue);
    gemm.finish(b.queue);
  }

  // Partial sums are added up by another kernel.
  bool takes(const ConvProblem& p, const Device& device, const ProgramCall& program) const override {
    return p.direction == Direction::forward && takes_program(program, int(16 / element_size(p.dtype))) &&
           tiles_.launch(p, device).plan.partials == 1;
  }

  void run_with(const ProgramCall& program, const ConvProblem& p, const Device& device,
                const ConvBuffers& b) const override {
    GemmLaunch gemm = tiles_.launch(p, device);
    bind(gemm.plan, p.direction, b.x, nullptr, b.w, nullptr, result_of(program), nullptr);
    launch_with_program(gemm.kernel->entry, gemm.plan.launch, b.queue, gemm.plan.args, program);
  }

 private:
  const char* name_;
  const GemmTiles tiles_;
};

}  // namespace

// clang-format off: one line a solver
const Solver& gpu_gemm_128x256() { static const GpuGemm solver("gpu_gemm_128x256", 128, 256); return solver; }
const Solver& gpu_gemm_128x128() { static const GpuGemm solver("gpu_gemm_128x128", 128, 128); return solver; }
const Solver& gpu_gemm_128x64() { static const GpuGemm solver("gpu_gemm_128x64", 128, 64); return solver; }
const Solver& gpu_gemm_64x128() { static const GpuGemm solver("gpu_gemm_64x128", 64, 128); return solver; }
const Solver& gpu_gemm_64x64() { static const GpuGemm solver("gpu_gemm_64x64", 64, 64); return solver; }
const Solver& gpu_gemm_128x32() { static const GpuGemm solver("gpu_gemm_128x32", 128, 32); return solver; }
const Solver& gpu_gemm_64x32() { static const GpuGemm solver("gpu_gemm_64x32", 64, 32); return solver; }
const Solver& gpu_gemm_32x32() { static const GpuGemm solver("gpu_gemm_32x32", 32, 32); return solver; }
// clang-format on

}  // namespace reformer
