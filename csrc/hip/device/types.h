// Element types, and groups of elements that one load or store moves.
#pragma once

#include "platform.h"

namespace reformer {

using fp32 = float;
struct fp16 {
  unsigned short bits;
};
struct bf16 {
  unsigned short bits;
};
// Whole numbers, in registers fp32, which has those of 24 bits: larger ones are rounded. Stored ones are rounded
// towards zero.
using whole64 = long long;
using whole32 = int;
template <class T>
constexpr bool is_whole = false;
template <>
constexpr bool is_whole<whole64> = true;
template <>
constexpr bool is_whole<whole32> = true;
template <class T>
constexpr bool is_bf16 = false;
template <>
constexpr bool is_bf16<bf16> = true;

#if defined(REFORMER_NVIDIA)
DEVICE float to_float(fp16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
DEVICE void from_float(float x, fp16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
DEVICE void from_float(float x, bf16& y) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
#else
DEVICE float to_float(fp16 x) { return float(__builtin_bit_cast(_Float16, x)); }
DEVICE void from_float(float x, fp16& y) { y = __builtin_bit_cast(fp16, static_cast<_Float16>(x)); }
// Rounds to nearest, ties to even; NaN stays NaN.
DEVICE void from_float(float x, bf16& y) {
  const unsigned bits = float_to_bits(x);
  y.bits = x != x ? 0x7fc0 : static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#endif
DEVICE float to_float(bf16 x) { return bits_to_float(static_cast<unsigned>(x.bits) << 16); }
DEVICE float to_float(fp32 x) { return x; }
DEVICE void from_float(float x, fp32& y) { y = x; }
DEVICE float to_float(whole64 x) { return float(x); }
DEVICE float to_float(whole32 x) { return float(x); }
DEVICE void from_float(float x, whole64& y) { y = whole64(x); }
DEVICE void from_float(float x, whole32& y) { y = whole32(x); }

// An element's bits.
DEVICE unsigned bits_of(fp32 x) { return float_to_bits(x); }
DEVICE unsigned bits_of(fp16 x) { return x.bits; }
DEVICE unsigned bits_of(bf16 x) { return x.bits; }

// 2, 4, 8 or 16 bytes in registers, moved at once. These are the compilers' own vector types: structures of arrays
// would be placed in memory on AMD GPUs, and be moved element by element on NVIDIA GPUs.
template <int kBytes>
struct Words;
template <>
struct Words<2> {
  unsigned short value;
};
template <>
struct Words<4> {
  unsigned value;
};
#if defined(REFORMER_NVIDIA)
template <>
struct Words<8> {
  uint2 value;
};
template <>
struct Words<16> {
  uint4 value;
};
DEVICE unsigned word(const Words<8>& x, int i) { return i ? x.value.y : x.value.x; }
DEVICE unsigned word(const Words<16>& x, int i) {
  return i == 0 ? x.value.x : i == 1 ? x.value.y : i == 2 ? x.value.z : x.value.w;
}
DEVICE void set_word(Words<8>& x, int i, unsigned word) { (i ? x.value.y : x.value.x) = word; }
DEVICE void set_word(Words<16>& x, int i, unsigned word) {
  (i == 0 ? x.value.x : i == 1 ? x.value.y : i == 2 ? x.value.z : x.value.w) = word;
}
#else
template <>
struct Words<8> {
  unsigned value __attribute__((vector_size(8)));
};
template <>
struct Words<16> {
  unsigned value __attribute__((vector_size(16)));
};
DEVICE unsigned word(const Words<8>& x, int i) { return x.value[i]; }
DEVICE unsigned word(const Words<16>& x, int i) { return x.value[i]; }
DEVICE void set_word(Words<8>& x, int i, unsigned word) { x.value[i] = word; }
DEVICE void set_word(Words<16>& x, int i, unsigned word) { x.value[i] = word; }
#endif
DEVICE unsigned word(const Words<2>& x, int) { return x.value; }
DEVICE unsigned word(const Words<4>& x, int) { return x.value; }
DEVICE void set_word(Words<2>& x, int, unsigned word) { x.value = static_cast<unsigned short>(word); }
DEVICE void set_word(Words<4>& x, int, unsigned word) { x.value = word; }

// Makes the compiler assume that the words have changed, so that it recomputes values derived from them instead of
// keeping these in registers.
template <int kBytes>
DEVICE void forget_words([[maybe_unused]] Words<kBytes>& x) {
#if defined(REFORMER_NVIDIA)
  UNROLL
  for (int i = 0; i < (kBytes + 3) / 4; ++i) {
    unsigned same = word(x, i);
    asm volatile("" : "+r"(same));
    set_word(x, i, same);
  }
#endif
}

// N adjacent elements of type T, as in memory.
template <class T, int N>
using Pack = Words<int(sizeof(T)) * N>;

// Load and store a whole pack; the address is a multiple of the pack's size.
template <class T, int N>
DEVICE Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <class T, int N>
DEVICE void store(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}
// Stores 16 bytes to global memory by this kind of PTX's st.
#define STORE_16(kind, to, pack)                                                                               \
  asm volatile(kind ".v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(word(pack, 0)), \
               "r"(word(pack, 1)), "r"(word(pack, 2)), "r"(word(pack, 3))                                      \
               : "memory")
// Like store, for global memory that nothing reads soon: it is the first to leave the second-level cache.
template <class T, int N>
DEVICE void store_streaming(T* to, const Pack<T, N>& pack) {
#if defined(REFORMER_NVIDIA)
  if constexpr (sizeof(pack) == 16)
    STORE_16("st.global.cs", to, pack);
  else
#endif
    store<T, N>(to, pack);
}
// Like store, for global memory. In PTX, as nvcc would split some packs of 8 and 16 bytes.
template <class T, int N>
DEVICE void store_global(T* to, const Pack<T, N>& pack) {
#if defined(REFORMER_NVIDIA)
  if constexpr (sizeof(pack) == 16)
    STORE_16("st.global", to, pack);
  else if constexpr (sizeof(pack) == 8)
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(word(pack, 0)),
                 "r"(word(pack, 1))
                 : "memory");
  else
#endif
    store<T, N>(to, pack);
}
#undef STORE_16
template <class T, int N>
DEVICE Pack<T, N> zero_pack() {
  Pack<T, N> pack{};
  return pack;
}

// Element i of the pack; i is known at compile time after unrolling.
template <class T>
DEVICE float element(unsigned word, int i);
template <>
DEVICE float element<fp32>(unsigned word, int) {
  return bits_to_float(word);
}
template <>
DEVICE float element<bf16>(unsigned word, int i) {
  return bits_to_float(i & 1 ? word & 0xffff0000u : word << 16);
}
template <>
DEVICE float element<fp16>(unsigned word, int i) {
  return to_float(fp16{static_cast<unsigned short>(i & 1 ? word >> 16 : word)});
}

template <class T, int N>
DEVICE void widen(const Pack<T, N>& pack, float (&to)[N]) {
  constexpr int kPerWord = sizeof(T) == 4 ? 1 : 2;
  UNROLL
  for (int i = 0; i < N; ++i) to[i] = element<T>(word(pack, i / kPerWord), i);
}

// Two adjacent elements in a word, the first one in the low half.
template <class T>
DEVICE unsigned narrow_pair(float first, float second) {
#if defined(REFORMER_NVIDIA)
  unsigned pair;
  if constexpr (is_bf16<T>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  T low, high;
  from_float(first, low);
  from_float(second, high);
  return static_cast<unsigned>(high.bits) << 16 | low.bits;
#endif
}

// Element i of a pack of whole numbers.
template <class T, class Pack>
DEVICE T whole_of(const Pack& pack, int i) {
  if constexpr (sizeof(T) == 8)
    return static_cast<T>(static_cast<unsigned long long>(word(pack, 2 * i + 1)) << 32 | word(pack, 2 * i));
  else
    return static_cast<T>(word(pack, i));
}

template <class T, int N>
DEVICE Pack<T, N> narrow(const float (&from)[N]) {
  Pack<T, N> pack{};
  if constexpr (is_whole<T>) {
    UNROLL
    for (int i = 0; i < N; ++i) {
      constexpr int kWords = sizeof(T) / 4;
      T whole;
      from_float(from[i], whole);
      set_word(pack, i * kWords, static_cast<unsigned>(whole));
      if constexpr (kWords == 2) set_word(pack, i * kWords + 1, static_cast<unsigned>(whole >> 32));
    }
  } else if constexpr (sizeof(T) == 4) {
    UNROLL
    for (int i = 0; i < N; ++i) set_word(pack, i, float_to_bits(from[i]));
  } else {
    UNROLL
    for (int i = 0; i < N; i += 2) {
      set_word(pack, i / 2, narrow_pair<T>(from[i], i + 1 < N ? from[i + 1] : 0.0f));
    }
  }
  return pack;
}

}  // namespace reformer
