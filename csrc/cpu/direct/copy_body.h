// Copies between tensors and planes: converts types, splits strided rows into phases, and transposes NHWC. No include
// guard: part of an ISA body.
namespace reformer::REFORMER_ISA {

template <class T>
using SumOf = typename Element<T>::Sum;

template <class T>
void load_transposed(const DirectCopy<T>& copy) {
  using S = SumOf<T>;
  constexpr int L = kLanes<S>;
  for (int32_t q = 0; q < copy.cols; q += L)
    for (int32_t c = 0; c < copy.channels; c += L) {
      const int cols = std::min(L, copy.cols - q), channels = std::min(L, copy.channels - c);
      const T* from = copy.tensor + q * copy.tensor_col + c;
      S* to = copy.plane + c * copy.plane_channel + q;
      Vec<S> v[L];
      for (int i = 0; i < L; ++i)
        v[i] = i >= cols       ? Vec<S>{}
               : channels == L ? load<S>(from + i * copy.tensor_col)
                               : load_part<S>(from + i * copy.tensor_col, channels);
      transpose<S>(v);
      for (int i = 0; i < L; ++i) {
        if (i >= channels) continue;
        if (cols == L)
          store<S>(to + i * copy.plane_channel, v[i]);
        else
          store_part<S>(to + i * copy.plane_channel, v[i], cols);
      }
    }
}

template <class T>
void store_transposed(const DirectCopy<T>& copy) {
  using S = SumOf<T>;
  constexpr int L = kLanes<S>;
  for (int32_t q = 0; q < copy.cols; q += L)
    for (int32_t c = 0; c < copy.channels; c += L) {
      const int cols = std::min(L, copy.cols - q), channels = std::min(L, copy.channels - c);
      const S* from = copy.plane + c * copy.plane_channel + q;
      T* to = copy.tensor + q * copy.tensor_col + c;
      Vec<S> v[L];
      for (int i = 0; i < L; ++i)
        v[i] = i >= channels ? Vec<S>{}
               : cols == L   ? load<S>(from + i * copy.plane_channel)
                             : load_part<S>(from + i * copy.plane_channel, cols);
      transpose<S>(v);
      for (int i = 0; i < L; ++i) {
        if (i >= cols) continue;
        if (channels == L)
          store<S>(to + i * copy.tensor_col, v[i]);
        else
          store_part<S>(to + i * copy.tensor_col, v[i], channels);
      }
    }
}

template <class S, int... I>
REFORMER_INLINE Vec<S> even_lanes(Vec<S> a, Vec<S> b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I)...);
}

template <class S, class T>
REFORMER_INLINE void load_row(S* to, const T* from, int64_t step, int32_t count) {
  constexpr int L = kLanes<S>;
  int32_t i = 0;
  if (step == 1) {
    for (; i + L <= count; i += L) store<S>(to + i, load<S>(from + i));
    if (i < count) store_part<S>(to + i, load_part<S>(from + i, count - i), count - i);
  } else if (step == 2) {
    constexpr auto lanes = std::make_integer_sequence<int, L>();
    for (; i < count; i += L) {
      // Element 2 * (count - 1) is the last one that may be read.
      const int left = 2 * (count - i) - 1;
      const T* at = from + 2 * i;
      if (left >= 2 * L) {
        store<S>(to + i, even_lanes<S>(load<S>(at), load<S>(at + L), lanes));
      } else {
        const Vec<S> high = left > L ? load_part<S>(at + L, left - L) : Vec<S>{};
        store_part<S>(to + i, even_lanes<S>(load_part<S>(at, std::min(left, L)), high, lanes), std::min(count - i, L));
      }
    }
  } else if (step == 4) {
    for (; i < count; ++i) to[i] = Element<T>::load(from[i * 4]);  // the compiler has shuffles for a constant stride
  } else {
    for (; i < count; ++i) to[i] = Element<T>::load(from[i * step]);
  }
}

template <class S, class T>
REFORMER_INLINE void store_row(T* to, const S* from, int64_t step, int32_t count) {
  constexpr int L = kLanes<S>;
  if (step == 1) {
    int32_t i = 0;
    for (; i + L <= count; i += L) store<S>(to + i, load<S>(from + i));
    if (i < count) store_part<S>(to + i, load_part<S>(from + i, count - i), count - i);
  } else {
    for (int32_t i = 0; i < count; ++i) to[i * step] = Element<T>::store(from[i]);
  }
}

template <class T>
void load_planes(const DirectCopy<T>& copy) {
  if (copy.tensor_channel == 1 && copy.channels >= 4) return load_transposed(copy);
  for (int32_t c = 0; c < copy.channels; ++c)
    load_row(copy.plane + c * copy.plane_channel, copy.tensor + c * copy.tensor_channel, copy.tensor_col, copy.cols);
}

template <class T>
void store_planes(const DirectCopy<T>& copy) {
  if (copy.tensor_channel == 1 && copy.channels >= 4) return store_transposed(copy);
  for (int32_t c = 0; c < copy.channels; ++c)
    store_row(copy.tensor + c * copy.tensor_channel, copy.plane + c * copy.plane_channel, copy.tensor_col, copy.cols);
}

}  // namespace reformer::REFORMER_ISA
