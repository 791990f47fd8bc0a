// Gathers planes into lanes and scatters them back. A block is a range of consecutive planes of a tensor (plane n *
// channels + c), each in one lane of a few vectors. In scratch memory a pixel is one vector of the accumulator's type,
// and the block's vectors are `stride` elements apart. Part of an ISA body.

namespace reformer::REFORMER_ISA {

// The planes of a tensor, indexed by the planes of the problem's result.
template <class T>
struct Planes {
  T* data;
  depthwise::Planar tensor;
  depthwise::PlaneMap map;

  T* at(int64_t plane) const { return data + tensor.plane_offset(map.plane(plane)); }
  // True if consecutive planes are consecutive elements.
  bool adjacent() const { return tensor.pixel_stride() > 1 && map.is_identity(); }
};

// Gathers pixel i of `size` adjacent planes, the first of which starts at `source`, into vectors at[i].
template <class S, class T>
void gather_adjacent(const T* source, int64_t pixel_stride, int size, int pixels, const int32_t* at, S* to,
                     int64_t stride) {
  constexpr int L = kLanes<S>;
  for (int i = 0; i < pixels; ++i, source += pixel_stride) {
    S* pixel = to + int64_t{at[i]} * L;
    int lane = 0;
    for (; lane + L <= size; lane += L, pixel += stride) store<S>(pixel, load<S>(source + lane));
    if (lane < size) store<S>(pixel, load_part<S>(source + lane, size - lane));
  }
}

// Gathers pixel i of the dense planes that start at lane[0], lane[1] ... into the vector at[i].
template <class S, class T>
void gather_dense(const T* const (&lane)[kLanes<S>], int pixels, const int32_t* at, S* to) {
  constexpr int L = kLanes<S>;
  int i = 0;
  for (; i + L <= pixels; i += L) {
    Vec<S> square[L];
#pragma GCC unroll 16
    for (int j = 0; j < L; ++j) square[j] = load<S>(lane[j] + i);
    transpose<S>(square);
#pragma GCC unroll 16
    for (int j = 0; j < L; ++j) store<S>(to + int64_t{at[i + j]} * L, square[j]);
  }
  if (i < pixels) {
    Vec<S> square[L];
#pragma GCC unroll 16
    for (int j = 0; j < L; ++j) square[j] = load_part<S>(lane[j] + i, pixels - i);
    transpose<S>(square);
    for (int j = 0; j < pixels - i; ++j) store<S>(to + int64_t{at[i + j]} * L, square[j]);
  }
}

// Gathers pixels [from, from + pixels) of the `size` planes from `first` on; pixel i goes to the vectors at[i]. Lanes
// beyond the last plane repeat it or are zero.
template <class S, class T>
void gather(const Planes<const T>& planes, int64_t first, int size, int64_t from, int pixels, const int32_t* at, S* to,
            int64_t stride) {
  constexpr int L = kLanes<S>;
  const int64_t pixel_stride = planes.tensor.pixel_stride();
  if (planes.adjacent())
    return gather_adjacent<S>(planes.at(first) + from * pixel_stride, pixel_stride, size, pixels, at, to, stride);
  for (int begin = 0; begin < size; begin += L, to += stride) {
    const T* lane[L];
    for (int j = 0; j < L; ++j)
      lane[j] = planes.at(first + (begin + j < size ? begin + j : size - 1)) + from * pixel_stride;
    if (pixel_stride == 1) {
      gather_dense<S, T>(lane, pixels, at, to);
    } else {
      for (int i = 0; i < pixels; ++i)
        for (int j = 0; j < L; ++j) to[int64_t{at[i]} * L + j] = Element<T>::load(lane[j][i * pixel_stride]);
    }
  }
}

// The reverse of gather_adjacent.
template <class S, class T>
void scatter_adjacent(const S* from, int64_t stride, const int32_t* at, T* target, int64_t pixel_stride, int size,
                      int pixels) {
  constexpr int L = kLanes<S>;
  for (int i = 0; i < pixels; ++i, target += pixel_stride) {
    const S* pixel = from + int64_t{at[i]} * L;
    int lane = 0;
    for (; lane + L <= size; lane += L, pixel += stride) store<S>(target + lane, load<S>(pixel));
    if (lane < size) store_part<S>(target + lane, load<S>(pixel), size - lane);
  }
}

// The reverse of gather_dense, to the first `lanes` planes.
template <class S, class T>
void scatter_dense(const S* from, const int32_t* at, T* const (&lane)[kLanes<S>], int lanes, int pixels) {
  constexpr int L = kLanes<S>;
  for (int i = 0; i < pixels; i += L) {
    const int part = pixels - i < L ? pixels - i : L;
    Vec<S> square[L];
    if (part == L) {
#pragma GCC unroll 16
      for (int j = 0; j < L; ++j) square[j] = load<S>(from + int64_t{at[i + j]} * L);
    } else {
      for (int j = 0; j < L; ++j) square[j] = load<S>(from + int64_t{at[i + (j < part ? j : 0)]} * L);
    }
    transpose<S>(square);
    if (part == L && lanes == L) {
#pragma GCC unroll 16
      for (int j = 0; j < L; ++j) store<S>(lane[j] + i, square[j]);
    } else {
      for (int j = 0; j < lanes; ++j) store_part<S>(lane[j] + i, square[j], part);
    }
  }
}

// The reverse of gather; the planes must be adjacent or dense.
template <class S, class T>
void scatter(const S* from, int64_t stride, const int32_t* at, const Planes<T>& planes, int64_t first, int size,
             int64_t to, int pixels) {
  constexpr int L = kLanes<S>;
  const int64_t pixel_stride = planes.tensor.pixel_stride();
  if (planes.adjacent())
    return scatter_adjacent<S>(from, stride, at, planes.at(first) + to * pixel_stride, pixel_stride, size, pixels);
  for (int begin = 0; begin < size; begin += L, from += stride) {
    const int lanes = size - begin < L ? size - begin : L;
    T* lane[L];
    for (int j = 0; j < L; ++j) lane[j] = planes.at(first + begin + (j < lanes ? j : lanes - 1)) + to;
    scatter_dense<S, T>(from, at, lane, lanes, pixels);
  }
}

}  // namespace reformer::REFORMER_ISA
