// A program (docs/epilogue.md) on the sums of implicit_gemm.hip, in place of the bias.
#pragma once

#include "program.h"

namespace reformer {
namespace {

constexpr int kProgramRegisters = 32;  // that a thread has for it, so that none has to wait in memory

// As AddBias of implicit_gemm_store.h, which says what its parts are.
template <class Program>
struct RunsProgram {
  static_assert(!Program::kReductions && !Program::kStoresChannels);
  const StitchArgs& p;

  template <class T, int kElements>
  class Columns {
    using Elements = Neighbours<Program, kElements, true>;
    const StitchArgs& p_;
    const int column_;
    Elements elements_;

   public:
    // One row's loads after the other would wait; those of many would want more registers than there are.
    static constexpr int kTensors = Program::kLoaded - (Program::kAcc >= 0);
    static constexpr int kTogether = kTensors == 0 ? 1 : kTensors == 1 ? 4 : 2;
    using Loaded = typename Elements::Loaded;

    DEVICE Columns(const RunsProgram& of, int channel) : p_(of.p), column_(channel) { elements_.begin(p_, channel); }
    DEVICE Loaded load(int pixel) const {
      Loaded loaded;
      elements_.load(p_, pixel, column_, loaded);
      return loaded;
    }
    // What is stored as the result takes the values' place; what else is stored, is written here.
    DEVICE void run(int pixel, const Loaded& loaded, float (&values)[kElements]) const {
      Loaded all = loaded;
      typename Elements::Stored stored;
      UNROLL
      for (int j = 0; j < kElements; ++j) {
        if constexpr (Program::kAcc >= 0) all.values[Program::kAcc][j] = values[j];
        elements_.compute(p_, all, j, stored, nullptr);
        values[j] = stored[Program::kResult][j];
      }
      if constexpr (Program::kStored > 1)
        Program::template store<false, kElements>(p_, static_cast<long long>(pixel) * p_.width + column_, stored);
    }
  };
};

}  // namespace
}  // namespace reformer
