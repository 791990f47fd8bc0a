// Max pooling. The forward stores one byte per result, the position of the maximum in its window. In the backward each
// element adds up the gradients of the windows whose maximum it is: no atomics, and a fixed order.
#include "../device/grid_dependency.h"
#include "../device/types.h"
#include "max_pool_args.h"

namespace reformer {
namespace {

// A word holds one element, or two of 16 bits; positions are arranged in words likewise.
template <class T>
constexpr int kOfWord = 4 / int(sizeof(T));

template <class T>
DEVICE unsigned lowest() {
  return sizeof(T) == 4 ? 0xff800000u : is_bf16<T> ? 0xff80ff80u : 0xfc00fc00u;
}

// A mask of the elements that replace the maximum so far: larger ones, and NaN.
template <class T>
DEVICE unsigned wins(unsigned value, unsigned best) {
#if defined(REFORMER_NVIDIA) && defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2 && !(is_bf16<T> && __CUDA_ARCH__ < 900)) {
    unsigned larger, nan;
    if constexpr (is_bf16<T>) {
      asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(value), "r"(best));
      asm("set.nan.u32.bf16x2 %0, %1, %1;" : "=r"(nan) : "r"(value));
    } else {
      asm("set.gt.u32.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(value), "r"(best));
      asm("set.nan.u32.f16x2 %0, %1, %1;" : "=r"(nan) : "r"(value));
    }
    return larger | nan;
  }
#endif
  unsigned mask = 0;
  UNROLL
  for (int i = 0; i < kOfWord<T>; ++i) {
    const float x = element<T>(value, i);
    if (x > element<T>(best, i) || x != x) mask |= (kOfWord<T> == 1 ? ~0u : 0xffffu << i * 16);
  }
  return mask;
}

// Makes the compiler assume that the number has changed, so that it keeps it in a register.
DEVICE void forget_float([[maybe_unused]] float& x) {
#if defined(REFORMER_NVIDIA)
  asm volatile("" : "+f"(x));
#endif
}

// Adjacent channels of a pixel of an image.
struct Item {
  int channel, column, row, image;
  bool exists;
};

template <int kCount>
DEVICE Item own_item(const MaxPoolArgs& p) {
  Item item;
  int rest = block_x() * kMaxPoolThreads + thread_id();
  item.image = divide_with_rest(rest, p.by_channels);
  item.channel = rest * kCount;
  rest = item.image;
  item.image = divide_with_rest(rest, p.by_columns);
  item.column = rest;
  rest = item.image;
  item.image = divide_with_rest(rest, p.by_rows);
  item.row = rest;
  item.exists = item.image < p.images_each;
  item.image += block_y() * p.images_each;
  item.exists = item.exists && item.image < p.images;
  return item;
}

// The image's first element at these channels, if an image has so many elements.
DEVICE long long begin_of(const Item& item, int elements) {
  return static_cast<long long>(item.image) * elements + item.channel;
}

struct Range {
  int first, end;
};

// The positions of a window that are inside the image.
DEVICE Range places_inside(int output, const PoolAxis& a) {
  const int start = output * a.stride - a.padding;
  const int first = start < 0 ? divide(a.dilation - 1 - start, a.by_dilation) : 0;
  const int end = divide(a.size - start + a.dilation - 1, a.by_dilation);
  return {first, end < a.window ? end : a.window};
}

// The windows that contain an element of the tile.
DEVICE Range windows_of(int tile, const PoolAxis& a) {
  const int from = tile * kMaxPoolTile + a.padding, before = from - (a.window - 1) * a.dilation;
  const int first = before > 0 ? divide(before + a.stride - 1, a.by_stride) : 0;
  const int end = divide(from + kMaxPoolTile - 1, a.by_stride) + 1;
  return {first, end < a.outputs ? end : a.outputs};
}

// The position of an element in a window, or a negative number.
DEVICE int place_in(int output, int at, const PoolAxis& a) {
  const int distance = at + a.padding - output * a.stride;
  int place = distance;
  if (a.dilation != 1 && distance > 0) {
    place = divide(distance, a.by_dilation);
    if (place * a.dilation != distance) return -1;
  }
  return static_cast<unsigned>(place) < static_cast<unsigned>(a.window) ? place : -1;
}

template <class T, int kCount>
struct MaxPool {
  static constexpr int kWords = (kCount + kOfWord<T> - 1) / kOfWord<T>;
  static constexpr int kAtOnce = 3;  // positions whose loads are in flight at once

  const MaxPoolArgs& p;

  DEVICE void forward() const {
    const Item item = own_item<kCount>(p);
    if (!item.exists) return;
    const Range rows = places_inside(item.row, p.rows), columns = places_inside(item.column, p.columns);
    const T* const image = static_cast<const T*>(p.from) + begin_of(item, p.of_image);
    const int top = item.row * p.rows.stride - p.rows.padding;
    const int left = item.column * p.columns.stride - p.columns.padding;
    unsigned best[kWords], places[kWords];
    UNROLL
    for (int i = 0; i < kWords; ++i) {
      best[i] = lowest<T>();
      places[i] = repeated(rows.first * p.columns.window + columns.first);
    }
    NOT_UNROLLED
    for (int row = rows.first; row < rows.end; ++row) {
      const int line = (top + row * p.rows.dilation) * p.columns.size + left;
      NOT_UNROLLED
      for (int column = columns.first; column < columns.end; column += kAtOnce) {
        Pack<T, kCount> some[kAtOnce];
        UNROLL
        for (int i = 0; i < kAtOnce; ++i)
          if (column + i < columns.end)
            some[i] = load<T, kCount>(image + (line + (column + i) * p.columns.dilation) * p.channels);
        UNROLL
        for (int i = 0; i < kAtOnce; ++i)
          if (column + i < columns.end) add(some[i], row * p.columns.window + column + i, best, places);
      }
    }
    const long long at = begin_of(item, p.of_result) + (item.row * p.columns.outputs + item.column) * p.channels;
    Pack<T, kCount> maximum = zero_pack<T, kCount>();
    UNROLL
    for (int i = 0; i < kWords; ++i) set_word(maximum, i, best[i]);
    store_global<T, kCount>(static_cast<T*>(p.to) + at, maximum);
    store_places(places, at);
  }

  static DEVICE unsigned repeated(int place) { return unsigned(place) * (kOfWord<T> == 1 ? 1u : 0x10001u); }

  static DEVICE void add(const Pack<T, kCount>& values, int place, unsigned (&best)[kWords],
                         unsigned (&places)[kWords]) {
    UNROLL
    for (int i = 0; i < kWords; ++i) {
      const unsigned value = word(values, i), mask = wins<T>(value, best[i]);
      best[i] = (value & mask) | (best[i] & ~mask);
      places[i] = (repeated(place) & mask) | (places[i] & ~mask);
    }
  }

  DEVICE void store_places(const unsigned (&places)[kWords], long long at) const {
    unsigned char* const to = static_cast<unsigned char*>(p.places) + at;
    if constexpr (kCount == 1) {
      *to = static_cast<unsigned char>(places[0]);
    } else {
      Words<kCount> bytes{};
      UNROLL
      for (int i = 0; i < kCount / 4; ++i) {
        unsigned four = 0;
        UNROLL
        for (int j = 0; j < 4; j += kOfWord<T>) {
          const unsigned some = places[(i * 4 + j) / kOfWord<T>];
          four |= (kOfWord<T> == 1 ? some : (some | some >> 8) & 0xffffu) << j * 8;
        }
        set_word(bytes, i, four);
      }
      *reinterpret_cast<Words<kCount>*>(to) = bytes;
    }
  }

  using Places = unsigned[(kCount + 3) / 4];

  DEVICE void load_places(long long at, Places& places) const {
    const unsigned char* const from = static_cast<const unsigned char*>(p.places) + at;
    if constexpr (kCount == 1) {
      places[0] = *from;
    } else {
      const Words<kCount> bytes = *reinterpret_cast<const Words<kCount>*>(from);
      UNROLL
      for (int i = 0; i < kCount / 4; ++i) places[i] = word(bytes, i);
    }
  }

  DEVICE void backward() const {
    constexpr int kTile = kMaxPoolTile;
    const Item item = own_item<kCount>(p);
    if (!item.exists) return;
    const Range rows = windows_of(item.row, p.rows), columns = windows_of(item.column, p.columns);
    const int top = item.row * kTile, left = item.column * kTile;
    const long long image = begin_of(item, p.of_result);
    float sums[kTile][kTile][kCount] = {};
    NOT_UNROLLED
    for (int row = rows.first; row < rows.end; ++row) {
      int of_row[kTile];
      unsigned row_in_bytes[kTile];
      UNROLL
      for (int i = 0; i < kTile; ++i) {
        of_row[i] = place_in(row, top + i, p.rows);
        row_in_bytes[i] = of_bytes(of_row[i] * p.columns.window);
      }
      NOT_UNROLLED
      for (int column = columns.first; column < columns.end; ++column) {
        const long long at = image + (row * p.columns.outputs + column) * p.channels;
        const Pack<T, kCount> pack = load<T, kCount>(static_cast<const T*>(p.from) + at);
        Places places;
        load_places(at, places);
        float grads[kCount];
        widen<T, kCount>(pack, grads);
        UNROLL
        for (int i = 0; i < kCount; ++i) forget_float(grads[i]);  // else it would be widened again for each element
        UNROLL
        for (int j = 0; j < kTile; ++j) {
          const int of_column = place_in(column, left + j, p.columns);
          const unsigned in_bytes = of_bytes(of_column);
          UNROLL
          for (int i = 0; i < kTile; ++i)
            if (of_row[i] >= 0 && of_column >= 0) add_named(grads, places, row_in_bytes[i] + in_bytes, sums[i][j]);
        }
      }
    }
    T* const to = static_cast<T*>(p.to) + begin_of(item, p.of_image);
    UNROLL
    for (int i = 0; i < kTile; ++i) {
      UNROLL
      for (int j = 0; j < kTile; ++j)
        if (top + i < p.rows.size && left + j < p.columns.size)
          store_global<T, kCount>(to + ((top + i) * p.columns.size + left + j) * p.channels,
                                  narrow<T, kCount>(sums[i][j]));
    }
  }

  static DEVICE unsigned of_bytes(int place) { return unsigned(place) * 0x01010101u; }

  // Adds the gradients of the windows whose maximum is at this position, which each byte contains.
  static DEVICE void add_named(const float (&grads)[kCount], const Places& places, unsigned place,
                               float (&sum)[kCount]) {
    UNROLL
    for (int i = 0; i < kCount; ++i) {
      const unsigned others = places[i / 4] ^ place;
      if (!(others >> i % 4 * 8 & 0xffu)) sum[i] += grads[i];
    }
  }
};

}  // namespace
}  // namespace reformer

#define X(direction, T, kCount)                                       \
  KERNEL_OCCUPANCY(reformer::kMaxPoolThreads, 7)                      \
  max_pool_##direction##_##T##_##kCount(reformer::MaxPoolArgs args) { \
    reformer::grid_dependency_launch();                               \
    reformer::grid_dependency_wait();                                 \
    reformer::MaxPool<reformer::T, kCount>{args}.direction();         \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "max_pool.inc"
#endif
