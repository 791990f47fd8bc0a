// The kernels of a file, found by __init__.py, which writes a list of them after including the file.
#pragma once

#include <cstddef>
#include <vector>

namespace reformer::emulator {

struct Kernel {
  const char* name;
  unsigned threads;  // of a block, at most
  size_t argument_bytes;
  void (*call)(const void* arguments);
};

const std::vector<Kernel>& kernels();

template <class Function>
struct ArgumentOf;
template <class Arguments>
struct ArgumentOf<void (*)(Arguments)> {
  using type = Arguments;
};

template <auto kFunction>
Kernel make_kernel(const char* name, unsigned threads) {
  using Arguments = typename ArgumentOf<decltype(kFunction)>::type;
  return {name, threads, sizeof(Arguments),
          [](const void* arguments) { kFunction(*static_cast<const Arguments*>(arguments)); }};
}

}  // namespace reformer::emulator
