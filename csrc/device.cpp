#include "device.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <regex>
#include <stdexcept>

namespace reformer {
namespace {
constexpr std::array<const char*, 3> kIsas = {"plain", "avx2", "avx512"};

Isa detected_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx2 && avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::plain;
#else
  return Isa::plain;
#endif
}

// What TORCH_REFORMER_ISA allows; torch_reformer/_config.py complains of values that mean nothing.
Isa allowed_isa() {
  const char* name = std::getenv("TORCH_REFORMER_ISA");
  for (size_t i = 0; name && i < kIsas.size(); ++i)
    if (std::string_view(name) == kIsas[i]) return static_cast<Isa>(i);
  return Isa::avx512;
}
}  // namespace

Isa cpu_isa() {
  static const Isa isa = std::min(detected_isa(), allowed_isa());
  return isa;
}

Device Device::cpu(int32_t threads) { return {DeviceKind::cpu, cpu_isa(), threads, {}}; }

Device Device::parse(std::string_view text) {
  const std::string shown = "\"" + std::string(text) + "\"";
  if (text.rfind("cpu-", 0) != 0) {
    static const std::regex gpu("(gfx[1-9][0-9a-f]{2,3})(:[a-z]+[+-])*|(sm_[1-9][0-9]{1,2}[a-z]?)");
    std::cmatch found;
    if (std::regex_match(text.data(), text.data() + text.size(), found, gpu))
      return {DeviceKind::cuda, Isa::plain, 1, found[1].str() + found[3].str()};
    throw std::invalid_argument(shown + " is no device: give cpu-ISA-THREADSt (cpu-avx512-2t), gfxNNN or sm_NN");
  }
  const size_t dash = text.find('-', 4);
  const auto isa_name = text.substr(4, dash - 4);
  Device device;
  size_t isa = 0;
  while (isa < kIsas.size() && isa_name != kIsas[isa]) ++isa;
  const char* end = text.data() + text.size();
  const auto number = dash == std::string_view::npos ? std::from_chars_result{text.data(), std::errc::invalid_argument}
                                                     : std::from_chars(text.data() + dash + 1, end, device.threads);
  if (isa == kIsas.size() || number.ec != std::errc() || device.threads < 1 || number.ptr + 1 != end ||
      *number.ptr != 't')
    throw std::invalid_argument(shown + " is no CPU: give cpu-ISA-THREADSt with ISA plain, avx2 or avx512");
  device.isa = static_cast<Isa>(isa);
  return device;
}

std::string Device::str() const {
  if (kind == DeviceKind::cuda) return arch;
  return std::string("cpu-") + kIsas[size_t(isa)] + "-" + std::to_string(threads) + "t";
}

}  // namespace reformer
