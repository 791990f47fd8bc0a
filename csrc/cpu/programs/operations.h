// Operations on a block's values. For an ISA body, after functions.h; no include guard. Buffers have room for whole
// vectors.

namespace reformer::REFORMER_ISA {

using programs::Several;

template <class S, class Function>
REFORMER_INLINE void each(S* to, int64_t count, Function function) {
#pragma GCC unroll 4
  for (int64_t i = 0; i < count; i += kLanes<S>) store<S>(to + i, function(i));
}

// An operand, read vector by vector.
template <class S>
struct Operand {
  const S* at;
  int64_t step;  // 0: the same vector for all elements
  REFORMER_INLINE Vec<S> next() {
    const Vec<S> v = load<S>(at);
    at += step;
    return v;
  }
};

template <class S, class T>
REFORMER_INLINE Vec<S> rounded(Vec<S> v) {
  T narrow[kLanes<S>];
  store<S>(narrow, v);
  return load<S>(static_cast<const T*>(narrow));
}

// d = function(a), function(a, b) or function(a, b, c).
template <class S, class Function>
REFORMER_INLINE void each_of_1(S* d, Operand<S> a, Operand<S>, Operand<S>, int64_t count, Function function) {
  each(d, count, [&](int64_t) { return function(a.next()); });
}
template <class S, class Function>
REFORMER_INLINE void each_of_2(S* d, Operand<S> a, Operand<S> b, Operand<S>, int64_t count, Function function) {
  each(d, count, [&](int64_t) { return function(a.next(), b.next()); });
}
template <class S, class Function>
REFORMER_INLINE void each_of_3(S* d, Operand<S> a, Operand<S> b, Operand<S> c, int64_t count, Function function) {
  each(d, count, [&](int64_t) { return function(a.next(), b.next(), c.next()); });
}

// d = op(a, b, c), whole vectors.
template <class S>
void operate(ProgramOp op, S* d, Operand<S> a, Operand<S> b, Operand<S> c, int64_t count) {
  [[maybe_unused]] const Vec<S> zero = {}, one = broadcast(S(1));
  switch (op) {
#define REFORMER_VECTORS_1 Vec<S> x
#define REFORMER_VECTORS_2 Vec<S> x, Vec<S> y
#define REFORMER_VECTORS_3 Vec<S> x, Vec<S> y, Vec<S> z
#define REFORMER_LEAF(name) \
  case ProgramOp::name: return;
#define REFORMER_ROW_REDUCTION(name) \
  case ProgramOp::name: return;
#define REFORMER_ROW_SCAN(name) \
  case ProgramOp::name: return;
#define REFORMER_OP(name, operands, gpu, ...) \
  case ProgramOp::name:                       \
    return each_of_##operands(d, a, b, c, count, [&](REFORMER_VECTORS_##operands) { return __VA_ARGS__; });
#include "program/ops.def"
#undef REFORMER_VECTORS_1
#undef REFORMER_VECTORS_2
#undef REFORMER_VECTORS_3
  }
}

// Several operations in one pass.
template <class S>
void operate(Several several, S* d, Operand<S> a, Operand<S> b, Operand<S> c, int64_t count) {
  const Vec<S> zero = {};
  const auto x = [&] { return a.next(); };
  const auto y = [&] { return b.next(); };
  const auto z = [&] { return c.next(); };
  const auto positive_part = [&](Vec<S> v) { return v <= zero ? zero : v; };
  const auto slope = [&](Vec<S> v) {
    const Normal<S> of = normal(v);
    return fma<S>(v, of.pdf, of.cdf);
  };
  switch (several) {
    case Several::mul_add: return each(d, count, [&](int64_t) { return fma<S>(x(), y(), z()); });
    case Several::sub_mul: return each(d, count, [&](int64_t) { return (x() - y()) * z(); });
    case Several::add_relu: return each(d, count, [&](int64_t) { return positive_part(x() + y()); });
    case Several::mul_add_relu: return each(d, count, [&](int64_t) { return positive_part(fma<S>(x(), y(), z())); });
    case Several::positive: return each(d, count, [&](int64_t) { return x() <= zero ? zero : y(); });
    case Several::mul_sub: return each(d, count, [&](int64_t) { return fma<S>(-x(), y(), z()); });
    case Several::equal_or_0:
      return each(d, count, [&](int64_t) {
        const auto same = x() == y();
        const Vec<S> value = z();
        return same ? value : zero;
      });
    case Several::exp_sub: return each(d, count, [&](int64_t) { return whole_exp(x() - y()); });
    case Several::mul_cdf: return each(d, count, [&](int64_t) { return x() * normal(y()).cdf; });
    case Several::cdf_slope: return each(d, count, [&](int64_t) { return slope(x()); });
    case Several::mul_cdf_slope: return each(d, count, [&](int64_t) { return x() * slope(y()); });
    default: return;
  }
}

template <class S, class T>
void widen(S* to, const T* from, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes<S> <= count; i += kLanes<S>) store<S>(to + i, load<S>(from + i));
  for (; i < count; ++i) to[i] = S(Element<T>::load(from[i]));
}
template <class S, class T>
void narrow(T* to, const S* from, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes<S> <= count; i += kLanes<S>) store<S>(to + i, load<S>(from + i));
  for (; i < count; ++i) to[i] = Element<T>::store(typename Element<T>::Sum(from[i]));
}

// Whole numbers to floating-point ones, and back towards zero.
template <class To, class From>
void converted(To* to, const From* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = To(from[i]);
}

// Whole numbers, or one of their digits.
template <class T, class S>
void read_whole(S* to, const ProgramOperand& from, int64_t at, int64_t count) {
  const T* const numbers = static_cast<const T*>(from.data) + at;
  if (!from.digit) return converted(to, numbers, count);
  const Digit digit(from.digit);
  for (int64_t i = 0; i < count; ++i) to[i] = S(int32_t(int64_t(numbers[i]) >> digit.shift) & digit.mask);
}

template <class S>
void read(S* to, const ProgramOperand& from, int64_t at, int64_t count) {
  switch (from.type) {
    case Stored::fp32: return widen(to, static_cast<const float*>(from.data) + at, count);
    case Stored::fp64: return widen(to, static_cast<const double*>(from.data) + at, count);
    case Stored::fp16: return widen(to, static_cast<const Half*>(from.data) + at, count);
    case Stored::bf16: return widen(to, static_cast<const BFloat16*>(from.data) + at, count);
    case Stored::int64: return read_whole<int64_t>(to, from, at, count);
    case Stored::int32: return read_whole<int32_t>(to, from, at, count);
    case Stored::mask:
    case Stored::result:
      for (int64_t i = 0; i < count; ++i) to[i] = S(static_cast<const uint8_t*>(from.data)[at + i] != 0);
  }
}

template <class S>
void write(void* to, Stored type, int64_t at, const S* from, int64_t count) {
  switch (type) {
    case Stored::fp32: return narrow(static_cast<float*>(to) + at, from, count);
    case Stored::fp64: return narrow(static_cast<double*>(to) + at, from, count);
    case Stored::fp16: return narrow(static_cast<Half*>(to) + at, from, count);
    case Stored::bf16: return narrow(static_cast<BFloat16*>(to) + at, from, count);
    case Stored::int64: return converted(static_cast<int64_t*>(to) + at, from, count);
    case Stored::int32: return converted(static_cast<int32_t*>(to) + at, from, count);
    case Stored::mask:
    case Stored::result:
      for (int64_t i = 0; i < count; ++i) static_cast<uint8_t*>(to)[at + i] = from[i] != 0;
  }
}

}  // namespace reformer::REFORMER_ISA
