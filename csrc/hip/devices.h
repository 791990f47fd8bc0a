// GPUs by the name of their architecture (devices.def). Launches and cost models depend on nothing else of a device, so
// that every GPU of an architecture yields the same bits; only the choice for matrix products knows GPUs by their
// names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace reformer {

struct GpuSpec {
  const char *architecture, *name, *code;
  int32_t units, shared_kib;
  bool has_tma;
  double gb_per_s, tflops, tf32_tflops, fp32_tflops, fp64_tflops;
};

inline constexpr GpuSpec kGpuSpecs[] = {
#define REFORMER_GPU(...) {__VA_ARGS__},
#include "devices.def"
#undef REFORMER_GPU
};

// The architecture's usual GPU; null if it is unknown.
inline const GpuSpec* usual_gpu(const std::string& arch) {
  for (const GpuSpec& spec : kGpuSpecs)
    if (arch == spec.architecture) return &spec;
  return nullptr;
}

// The GPU of this architecture that has one of these words as its name; if there is none, the architecture's usual one.
inline const GpuSpec* find_gpu(const std::string& arch, std::string_view words) {
  for (const GpuSpec& spec : kGpuSpecs)
    for (std::string_view rest = words; arch == spec.architecture && !rest.empty();) {
      const std::string_view word = rest.substr(0, rest.find(' '));
      if (word == spec.name) return &spec;
      rest.remove_prefix(word.size() < rest.size() ? word.size() + 1 : rest.size());
    }
  return usual_gpu(arch);
}

// Multiprocessors or compute units of the architecture's usual GPU.
inline int32_t usual_units(const std::string& arch) {
  const GpuSpec* const spec = usual_gpu(arch);
  return spec && spec->units ? spec->units : 100;
}

// Threads per warp.
inline int32_t warp_size(const std::string& arch) { return arch.compare(0, 4, "gfx9") == 0 ? 64 : 32; }

// Greatest number of bytes of shared memory per block.
inline int32_t most_shared_bytes(const std::string& arch) {
  if (const GpuSpec* const spec = usual_gpu(arch)) return spec->shared_kib << 10;
  return arch.compare(0, 3, "sm_") == 0 ? 99 << 10 : 64 << 10;
}

// True if kernels with bulk copies (TMA) and wgmma run.
inline bool has_tma(const std::string& arch) {
  const GpuSpec* const spec = usual_gpu(arch);
  return spec && spec->has_tma;
}

}  // namespace reformer
