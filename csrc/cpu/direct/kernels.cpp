#include "kernels.h"

#include <algorithm>
#include <utility>

#define REFORMER_ISA_BODY "cpu/direct/kernels_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer {

template <class S>
const DirectKernels<S>& direct_kernels(Isa isa) {
  return REFORMER_BY_ISA(isa, direct_kernels<S>)();
}
template const DirectKernels<float>& direct_kernels<float>(Isa);
template const DirectKernels<double>& direct_kernels<double>(Isa);

template <class T>
DirectCopies<T> direct_copies(Isa isa) {
  return REFORMER_BY_ISA(isa, direct_copies<T>)();
}
template DirectCopies<float> direct_copies<float>(Isa);
template DirectCopies<double> direct_copies<double>(Isa);
template DirectCopies<Half> direct_copies<Half>(Isa);
template DirectCopies<BFloat16> direct_copies<BFloat16>(Isa);

}  // namespace reformer
