// Runs a program (docs/programs.md) on the sums of implicit_gemm.hip, in place of adding a bias.
#pragma once

#include "../programs/program.h"

namespace reformer {
namespace {

constexpr int kProgramRegisters = 32;  // registers per thread for the program, so that nothing spills

// Has the members of AddBias (implicit_gemm_store.h), where they are documented.
template <class Program>
struct RunsProgram {
  static_assert(!Program::kReductions && !Program::kStoresChannels);
  const StitchArgs& p;

  template <class T, int kElements>
  class Columns {
    using Elements = VectorizedElements<Program, kElements, true>;
    const StitchArgs& p_;
    const int column_;
    Elements elements_;

   public:
    // Without unrolling each row's loads would wait for the previous ones; too many rows would need more registers than
    // there are.
    static constexpr int kTensors = Program::kLoaded - (Program::kAcc >= 0);
    static constexpr int kUnroll = kTensors == 0 ? 1 : kTensors == 1 ? 4 : 2;
    using Loaded = typename Elements::Loaded;

    DEVICE Columns(const RunsProgram& of, int channel) : p_(of.p), column_(channel) { elements_.begin(p_, channel); }
    DEVICE Loaded load(int pixel) const {
      Loaded loaded;
      elements_.load(p_, pixel, column_, loaded);
      return loaded;
    }
    // The result replaces the values; the program's other outputs are written here.
    DEVICE void run(int pixel, const Loaded& loaded, float (&values)[kElements]) const {
      Loaded all = loaded;
      typename Elements::Stored stored;
      UNROLL
      for (int j = 0; j < kElements; ++j) {
        if constexpr (Program::kAcc >= 0) all.values[Program::kAcc][j] = values[j];
        elements_.compute(p_, all, j, nullptr, stored, nullptr);
        values[j] = stored[Program::kResult][j];
      }
      if constexpr (Program::kStored > 1)
        Program::template store<1u << Program::kResult, kElements>(
            p_, static_cast<long long>(pixel) * p_.width + column_, stored);
    }
  };
};

}  // namespace
}  // namespace reformer
