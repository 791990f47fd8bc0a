// Splits a row of the filter into pieces whose widths are template parameters of the kernels. Part of an ISA body.

namespace reformer::REFORMER_ISA {

template <int kValue>
using Int = std::integral_constant<int, kValue>;

template <int kTaps, int... kFewer, class Body>
int with_part_of(int64_t taps, int64_t step, const Body& body) {
  if constexpr (sizeof...(kFewer) > 0)
    if (taps < kTaps) return with_part_of<kFewer...>(taps, step, body);
  if (step == 1)
    body(Int<kTaps>(), Int<1>());
  else if (step == 2)
    body(Int<kTaps>(), Int<2>());
  else
    body(Int<kTaps>(), Int<0>());
  return kTaps;
}

// Calls body(Int<width>, Int<step>) for the widest piece that fits into `taps` taps, and returns its width. A step of 1
// or 2 is the distance of adjacent results in the source if taps are adjacent; 0 stands for all other cases.
template <class Body>
int with_part(int64_t taps, int64_t result_step, int64_t tap_step, const Body& body) {
  return with_part_of<9, 7, 5, 4, 3, 2, 1>(taps, tap_step == 1 ? result_step : 0, body);
}

}  // namespace reformer::REFORMER_ISA
