#include "device.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <stdexcept>

#include "hip/devices.h"

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

// The best instruction set that TORCH_REFORMER_ISA allows. torch_reformer/runtime/config.py reports invalid values.
Isa allowed_isa() {
  const char* name = std::getenv("TORCH_REFORMER_ISA");
  for (size_t i = 0; name && i < kIsas.size(); ++i)
    if (std::string_view(name) == kIsas[i]) return static_cast<Isa>(i);
  return Isa::avx512;
}

bool has_only(std::string_view text, const char* allowed) {
  return text.find_first_not_of(allowed) == std::string_view::npos;
}

// True if the text lists features of an AMD GPU, as in :sramecc+:xnack-; may be empty.
bool are_features(std::string_view text) {
  while (!text.empty()) {
    const size_t sign = text.find_first_of("+-");
    if (text[0] != ':' || sign == std::string_view::npos || sign < 2) return false;
    if (!has_only(text.substr(1, sign - 1), "abcdefghijklmnopqrstuvwxyz")) return false;
    text.remove_prefix(sign + 1);
  }
  return true;
}

// True for the end of a text that names a GPU, as in :H100; may be empty.
bool is_name(std::string_view text) {
  return text.empty() || (text.size() > 1 &&
                          text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", 1) == std::string_view::npos);
}

// gfxNNN without features, or sm_NN without a GPU's name; empty if the text is neither.
std::string gpu_architecture(std::string_view text) {
  const auto is_number = [](std::string_view number, size_t least, size_t most) {
    return number.size() >= least && number.size() <= most && number[0] >= '1' && number[0] <= '9';
  };
  const std::string_view name = text.substr(0, text.find(':'));
  std::string_view number = name.substr(std::min<size_t>(name.size(), 3));
  if (name.substr(0, 3) == "gfx" && is_number(number, 3, 4) && has_only(number, "0123456789abcdef") &&
      are_features(text.substr(name.size())))
    return std::string(name);
  if (!number.empty() && number.back() >= 'a' && number.back() <= 'z') number.remove_suffix(1);  // as in sm_90a
  if (text.substr(0, 3) == "sm_" && is_number(number, 2, 3) && has_only(number, "0123456789") &&
      is_name(text.substr(name.size())))
    return std::string(name);
  return {};
}

// Marketing names of GPUs and their architectures.
constexpr std::array<std::array<const char*, 2>, 18> kNamedGpus = {{
    {"a100", "sm_80"},
    {"a30", "sm_80"},
    {"a10", "sm_86"},
    {"a40", "sm_86"},
    {"rtx3090", "sm_86"},
    {"l4", "sm_89"},
    {"l40", "sm_89"},
    {"l40s", "sm_89"},
    {"rtx4090", "sm_89"},
    {"h100", "sm_90"},
    {"h200", "sm_90"},
    {"gh200", "sm_90"},
    {"b200", "sm_100"},
    {"mi100", "gfx908"},
    {"mi250", "gfx90a"},
    {"mi250x", "gfx90a"},
    {"mi300x", "gfx942"},
    {"mi325x", "gfx942"},
}};

// For error messages: a hint at the architecture if the text names a GPU; else empty.
std::string architecture_of_name(std::string_view text) {
  std::string name;
  for (const char c : text)
    if (c != ' ' && c != '-' && c != '_') name += char(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  for (const auto& [known, architecture] : kNamedGpus)
    if (name == known) return "; " + std::string(text) + " is " + architecture;
  return "";
}
}  // namespace

Isa cpu_isa() {
  static const Isa isa = std::min(detected_isa(), allowed_isa());
  return isa;
}

Isa isa_of(int32_t index) {
  if (index > int32_t(cpu_isa())) throw std::invalid_argument("this machine does not have that instruction set");
  return index < 0 ? cpu_isa() : Isa(index);
}

Device Device::cpu(int32_t threads) { return {DeviceKind::cpu, cpu_isa(), threads, {}}; }

Device Device::parse(std::string_view text) {
  const std::string shown = "\"" + std::string(text) + "\"";
  if (text.rfind("cpu-", 0) != 0) {
    if (const std::string name = gpu_architecture(text); !name.empty()) {
      Device device{DeviceKind::cuda, Isa::plain, 1, name};
      device.gpu = find_gpu(name, text.substr(std::min(text.size(), name.size() + 1)));
      return device;
    }
    throw std::invalid_argument(shown + " is no device: give cpu-ISA-THREADSt (cpu-avx512-2t), gfxNNN or sm_NN" +
                                architecture_of_name(text));
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
  if (kind == DeviceKind::cuda) return !gpu || gpu == usual_gpu(arch) ? arch : arch + ":" + gpu->name;
  return std::string("cpu-") + kIsas[size_t(isa)] + "-" + std::to_string(threads) + "t";
}

}  // namespace reformer
