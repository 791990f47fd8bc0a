// The machine, as far as the choice may depend on it. Its text form is cpu-ISA-THREADSt (cpu-avx512-2t), or an
// architecture's name (gfx942, sm_90), followed by the GPU's if that is not its usual one (sm_90:H100).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace reformer {

struct GpuSpec;  // hip/devices.h

enum class DeviceKind : uint8_t { cpu, cuda };  // cuda: NVIDIA or AMD, as in torch
enum class Isa : uint8_t { plain, avx2, avx512 };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  Isa isa = Isa::plain;  // cpu only
  int32_t threads = 1;   // cpu only
  std::string arch;      // cuda only
  int32_t index = -1;    // cuda only: torch's device index if known. Not in the text form.
  // NVIDIA only: PyTorch's own fp32 convolutions may round to tf32 (pytorch_settings.h). Not in the text form.
  bool tf32 = false;
  // AMD only: PyTorch's settings or the configuration ask for bitwise repeatable results. Not in the text form.
  bool deterministic = false;
  const GpuSpec* gpu = nullptr;  // cuda only: its line of hip/devices.def, or the usual GPU's; null if unknown

  bool is_nvidia() const { return arch.compare(0, 3, "sm_") == 0; }
  bool is_amd() const { return arch.compare(0, 3, "gfx") == 0; }
  static Device cpu(int32_t threads);  // this machine's CPU
  // Throws std::invalid_argument for malformed text. Features of an AMD GPU, as in gfx90a:sramecc+:xnack-, are dropped.
  // A GPU without a line of its own is its architecture's usual one.
  static Device parse(std::string_view text);
  std::string str() const;
};

// The best instruction set that this CPU and this build support, or a lesser one set by the environment variable
// TORCH_REFORMER_ISA (avx2 or plain), which is read once.
Isa cpu_isa();

// The instruction set of this index in Isa; cpu_isa() for -1. Throws std::invalid_argument for one that is better than
// cpu_isa().
Isa isa_of(int32_t index);

namespace gpu {

struct Entry;  // jit/gpu.h
struct Launch;

// Replaces launch() in tests, which run kernels on the CPU.
using Launcher = void (*)(const Entry& entry, const Launch& shape, const void* arguments, size_t bytes);

// A device of torch and the stream on which work for it is enqueued.
struct Queue {
  int32_t device = 0;
  void* stream = nullptr;  // cudaStream_t or hipStream_t
  Launcher launcher = nullptr;
};

}  // namespace gpu
}  // namespace reformer
