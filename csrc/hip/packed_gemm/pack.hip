// Packs a convolution's operands for an implicit GEMM, and unpacks its result. pack.h describes the layouts.
//
// These kernels are memory-bound. A thread writes a chunk of 16 bytes of a packed operand, or a pixel of dx, and
// adjacent threads read adjacent memory. A pixel of 3 channels of 2 bytes takes two loads, whatever its alignment.
#include "../device/add_up.h"
#include "../device/grid_dependency.h"
#include "../device/types.h"
#include "../device/warp.h"
#include "pack.h"

namespace reformer {
namespace {

// How a pixel is moved. Of a pixel of 3 elements of 2 bytes, two are aligned to 4 bytes (the last two if the pixel's
// number is odd): one access moves these two, another one the third.
template <class T, int C>
struct Pixel {
  static constexpr bool kThirds = sizeof(T) == 2 && C == 3;
  using Room = Pack<T, kPackRoom>;

  // If the pixel has 3 elements of 2 bytes, the first word gets the two aligned ones, the second word the third.
  DEVICE static Room load(const T* from, bool odd) {
    Room raw = zero_pack<T, kPackRoom>();
    if constexpr (kThirds) {
      set_word(raw, 0, word(reformer::load<T, 2>(from + (odd ? 1 : 0)), 0));
      set_word(raw, 1, word(reformer::load<T, 1>(from + (odd ? 0 : 2)), 0));
    } else if constexpr (C == kPackRoom) {
      raw = reformer::load<T, C>(from);
    } else if constexpr (sizeof(T) == 4) {
      UNROLL
      for (int c = 0; c < C; ++c) set_word(raw, c, word(reformer::load<T, 1>(from + c), 0));
    } else {
      set_word(raw, 0, word(reformer::load<T, C>(from), 0));
    }
    return raw;
  }
  // Brings what load() has read into order.
  DEVICE static Room arrange(const Room& raw, bool odd) {
    if constexpr (!kThirds) return raw;
    Room all;
    set_word(all, 0, odd ? word(raw, 1) | word(raw, 0) << 16 : word(raw, 0));
    set_word(all, 1, odd ? word(raw, 0) >> 16 : word(raw, 1));
    return all;
  }
  DEVICE static void store(T* to, bool odd, const Room& all) {
    if constexpr (kThirds) {
      Pack<T, 2> two;
      Pack<T, 1> third;
      set_word(two, 0, odd ? word(all, 0) >> 16 | word(all, 1) << 16 : word(all, 0));
      set_word(third, 0, odd ? word(all, 0) : word(all, 1));
      reformer::store<T, 2>(to + (odd ? 1 : 0), two);
      reformer::store<T, 1>(to + (odd ? 0 : 2), third);
    } else if constexpr (C == kPackRoom) {
      reformer::store<T, C>(to, all);
    } else if constexpr (sizeof(T) == 4) {
      UNROLL
      for (int c = 0; c < C; ++c) {
        Pack<T, 1> one;
        set_word(one, 0, word(all, c));
        reformer::store<T, 1>(to + c, one);
      }
    } else {
      Pack<T, C> few;
      set_word(few, 0, word(all, 0));
      reformer::store<T, C>(to, few);
    }
  }
};

template <class T, int C>
DEVICE void pack_pixels(const PackArgs& p, int chunk) {
  constexpr int kRoom = 16 / int(sizeof(T)) / kPackRoom, kWords = kPackRoom * int(sizeof(T)) / 4;
  const PackedImages& images = p.images;
  int column = chunk;
  const int line = divide_with_rest(column, images.by_packed_width);
  column = column * images.pixels - images.left;
  const int pixel = line * images.width + column;
  const T* from = static_cast<const T*>(p.x) + static_cast<long long>(pixel) * C;
  typename Pixel<T, C>::Room raw[kRoom];  // all loads are in flight before the first is needed
  UNROLL
  for (int i = 0; i < kRoom; ++i) {
    raw[i] = zero_pack<T, kPackRoom>();
    if (i < images.pixels && unsigned(column + i) < unsigned(images.width))
      raw[i] = Pixel<T, C>::load(from + i * C, (pixel + i) & 1);
  }
  Words<16> all;
  UNROLL
  for (int i = 0; i < kRoom; ++i) {
    const typename Pixel<T, C>::Room one = Pixel<T, C>::arrange(raw[i], (pixel + i) & 1);
    UNROLL
    for (int w = 0; w < kWords; ++w) set_word(all, i * kWords + w, word(one, w));
  }
  static_cast<Words<16>*>(p.packed_x)[chunk] = all;
}

template <class T>
DEVICE void pack_filter(const PackArgs& p, int chunk) {
  constexpr int kElements = 16 / int(sizeof(T)), kPerWord = 4 / int(sizeof(T));
  const PackedFilter& shape = p.shape;
  int channel = chunk;
  int tap = divide_with_rest(channel, shape.by_chunks);
  const int line = divide_with_rest(tap, shape.by_packed_s);  // index of the line among the lines of all filters
  int own_group = divide(divide(line, shape.by_r), shape.by_group_k);
  divide_with_rest(own_group, shape.by_groups);
  const T* from = static_cast<const T*>(p.filter) + line * shape.s * shape.channels;
  Words<16> all{};
  UNROLL
  for (int w = 0; w < kElements / kPerWord; ++w) {
    unsigned bits = 0;
    UNROLL
    for (int i = 0; i < kPerWord; ++i) {
      int c = channel * kElements + w * kPerWord + i;
      int s = divide_with_rest(c, shape.by_slot);
      const int group = divide_with_rest(s, shape.by_taps);
      s += tap * int(shape.by_taps.divisor);
      if (group != own_group || s >= shape.s || c >= shape.channels) continue;
      bits |= unsigned(word(load<T, 1>(from + s * shape.channels + c), 0)) << (i * 16);
    }
    set_word(all, w, bits);
  }
  static_cast<Words<16>*>(p.packed_filter)[chunk] = all;
}

template <class T, int C>
DEVICE void pack(const PackArgs& p) {
  const int block = block_x();
  if (block < p.filter_blocks) {
    const int chunk = block * kPackThreads + thread_id();
    if (chunk < p.filter_chunks) pack_filter<T>(p, chunk);
  } else if constexpr (C > 0) {
    const int chunk = (block - p.filter_blocks) * kPackThreads + thread_id();
    if (chunk < p.x_chunks) pack_pixels<T, C>(p, chunk);
  }
}

template <class T, int C>
DEVICE void unpack_input_grad(const UnpackInputGradArgs& p) {
  constexpr int kChunk = 16 / int(sizeof(T));
  const PackedImages& images = p.images;
  const int pixel = block_x() * kPackThreads + thread_id();
  if (pixel >= p.all_pixels) return;
  int place = pixel;
  const int line = divide_with_rest(place, images.by_width);
  place += images.left;
  const bool two = images.pixels == 2;
  const int column = two ? place >> 1 : place, second = two ? place & 1 : 0;
  // With a stride, no window may reach the last pixels.
  Pack<T, kPackRoom> all = zero_pack<T, kPackRoom>();
  if (column < images.packed_width)
    all =
        load<T, kPackRoom>(static_cast<const T*>(p.packed) +
                           (static_cast<long long>(line) * images.packed_width + column) * kChunk + second * kPackRoom);
  Pixel<T, C>::store(static_cast<T*>(p.x) + static_cast<long long>(pixel) * C, pixel & 1, all);
}

// Adds up the parts as the finish kernel of implicit_gemm.hip does: each of the eight warps adds every eighth part,
// then the warps' sums are added.
template <class T, int>
DEVICE void unpack_weight_grad(const UnpackWeightGradArgs& p) {
  SHARED float shared[kUnpackWeightGradWarps][kWarp];
  const PackedFilter& shape = p.shape;
  const int lane = lane_id(), warp = warp_id(), element = block_x() * kWarp + lane;
  float sum[1] = {};
  if (element < p.numel) {
    int c = element;
    int s = divide_with_rest(c, shape.by_channels);
    const int line = divide_with_rest(s, shape.by_s);
    int slot = divide(divide(line, shape.by_r), shape.by_group_k);
    divide_with_rest(slot, shape.by_groups);
    const int tap = divide_with_rest(s, shape.by_taps);
    slot = slot * int(shape.by_taps.divisor) + s;
    const int from = (line * shape.packed_s + tap) * shape.packed_channels + slot * shape.slot + c;
    if (p.parts == 1) {
      if (warp == 0) sum[0] = to_float(static_cast<const T*>(p.packed)[from]);
    } else {
      add_up(static_cast<const float*>(p.packed) + from, p.packed_numel, warp, kUnpackWeightGradWarps, p.parts, sum);
    }
  }
  shared[warp][lane] = sum[0];
  barrier();
  if (warp || element >= p.numel) return;
  for (int other = 1; other < kUnpackWeightGradWarps; ++other) sum[0] += shared[other][lane];
  T value;
  from_float(sum[0], value);
  static_cast<T*>(p.filter)[element] = value;
}

}  // namespace
}  // namespace reformer

#define X(what, T, C)                                         \
  KERNEL(reformer::pack_threads_##what(reformer::kWarp))      \
  pack_##what##_##T##_##C(reformer::PackArgsOf_##what args) { \
    reformer::grid_dependency_launch();                       \
    reformer::grid_dependency_wait();                         \
    reformer::what<reformer::T, C>(args);                     \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "pack.inc"
#endif
