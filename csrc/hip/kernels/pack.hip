// Packs a convolution's operands for an implicit GEMM, and unpacks its result. pack.h says what lies where.
//
// All of them are bound by memory. A thread writes a chunk of 16 bytes of a packed operand, or a pixel of dx, and reads
// next to its neighbours: a pixel of 3 channels of 2 bytes by two loads, whatever its alignment.
#include "../device/types.h"
#include "../device/warp.h"
#include "pack.h"

namespace reformer {
namespace {

// A pixel of 3 elements of 2 bytes: where there are two that begin at a multiple of 4 bytes, and where the third one
// is.
struct Thirds {
  int pair, single;
  DEVICE explicit Thirds(int pixel) : pair(pixel & 1), single(pixel & 1 ? 0 : 2) {}
};

// The pixel's channels, and zeros for those that there is room for.
template <class T, int C>
DEVICE Pack<T, kPackRoom> load_pixel(const T* x, int pixel) {
  const T* from = x + static_cast<long long>(pixel) * C;
  Pack<T, kPackRoom> all = zero_pack<T, kPackRoom>();
  if constexpr (sizeof(T) == 4) {
    UNROLL
    for (int c = 0; c < C; ++c) set_word(all, c, word(load<T, 1>(from + c), 0));
  } else if constexpr (C == 3) {
    const Thirds at(pixel);
    const unsigned pair = word(load<T, 2>(from + at.pair), 0), single = word(load<T, 1>(from + at.single), 0);
    set_word(all, 0, at.pair ? single | pair << 16 : pair);
    set_word(all, 1, at.pair ? pair >> 16 : single);
  } else if constexpr (C == 4) {
    all = load<T, 4>(from);
  } else {
    set_word(all, 0, word(load<T, C>(from), 0));
  }
  return all;
}

template <class T, int C>
DEVICE void store_pixel(T* x, int pixel, const Pack<T, kPackRoom>& all) {
  T* to = x + static_cast<long long>(pixel) * C;
  if constexpr (sizeof(T) == 4) {
    UNROLL
    for (int c = 0; c < C; ++c) {
      Pack<T, 1> one;
      set_word(one, 0, word(all, c));
      store<T, 1>(to + c, one);
    }
  } else if constexpr (C == 3) {
    const Thirds at(pixel);
    Pack<T, 2> pair;
    Pack<T, 1> single;
    set_word(pair, 0, at.pair ? word(all, 0) >> 16 | word(all, 1) << 16 : word(all, 0));
    set_word(single, 0, at.pair ? word(all, 0) : word(all, 1));
    store<T, 2>(to + at.pair, pair);
    store<T, 1>(to + at.single, single);
  } else if constexpr (C == 4) {
    store<T, 4>(to, all);
  } else {
    Pack<T, C> few;
    set_word(few, 0, word(all, 0));
    store<T, C>(to, few);
  }
}

template <class T, int C>
DEVICE void pack_pixels(const PackArgs& p, int chunk) {
  constexpr int kRoom = 16 / int(sizeof(T)) / kPackRoom, kWords = kPackRoom * int(sizeof(T)) / 4;
  const PackedPictures& pictures = p.pictures;
  int pixel = chunk;
  const int line = divide_with_rest(pixel, pictures.by_packed_width);
  pixel = pixel * pictures.pixels - pictures.left;
  Words<16> all{};
  UNROLL
  for (int i = 0; i < kRoom; ++i) {
    if (i >= pictures.pixels || unsigned(pixel + i) >= unsigned(pictures.width)) continue;
    const Pack<T, kPackRoom> one = load_pixel<T, C>(static_cast<const T*>(p.x), line * pictures.width + pixel + i);
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
  const int line = divide_with_rest(tap, shape.by_packed_s);  // of all filters' lines
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
  const PackedPictures& pictures = p.pictures;
  const int pixel = block_x() * kPackThreads + thread_id();
  if (pixel >= p.all_pixels) return;
  int place = pixel;
  const int line = divide_with_rest(place, pictures.by_width);
  place += pictures.left;
  const bool two = pictures.pixels == 2;
  const int column = two ? place >> 1 : place, second = two ? place & 1 : 0;
  // No window reaches the last pixels, of which a stride leaves some over.
  Pack<T, kPackRoom> all = zero_pack<T, kPackRoom>();
  if (column < pictures.packed_width)
    all = load<T, kPackRoom>(static_cast<const T*>(p.packed) +
                             (static_cast<long long>(line) * pictures.packed_width + column) * kChunk +
                             second * kPackRoom);
  store_pixel<T, C>(static_cast<T*>(p.x), pixel, all);
}

// Parts are added up as by implicit_gemm.hip's finish: a warp every eighth of them, then the warps' sums.
template <class T, int>
DEVICE void unpack_weight_grad(const UnpackWeightGradArgs& p) {
  SHARED float shared[kUnpackWeightGradWarps][kWarp];
  const PackedFilter& shape = p.shape;
  const int lane = lane_id(), warp = warp_id(), element = block_x() * kWarp + lane;
  float sum = 0;
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
      if (warp == 0) sum = to_float(static_cast<const T*>(p.packed)[from]);
    } else {
      for (int part = warp; part < p.parts; part += kUnpackWeightGradWarps)
        sum += static_cast<const float*>(p.packed)[part * p.packed_numel + from];
    }
  }
  shared[warp][lane] = sum;
  barrier();
  if (warp || element >= p.numel) return;
  for (int other = 1; other < kUnpackWeightGradWarps; ++other) sum += shared[other][lane];
  T value;
  from_float(sum, value);
  static_cast<T*>(p.filter)[element] = value;
}

}  // namespace
}  // namespace reformer

#define X(what, T, C)                                    \
  KERNEL(reformer::pack_threads_##what(reformer::kWarp)) \
  pack_##what##_##T##_##C(reformer::PackArgsOf_##what args) { reformer::what<reformer::T, C>(args); }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "pack.inc"
#endif
