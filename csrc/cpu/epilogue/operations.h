// Operations on a block's values, for an ISA body, after functions.h; no include guard, as there. Buffers have room for
// whole vectors.

namespace reformer::REFORMER_ISA {

using epilogue::Several;

template <class S, class Function>
REFORMER_INLINE void each(S* to, int64_t count, Function function) {
#pragma GCC unroll 4
  for (int64_t i = 0; i < count; i += kLanes<S>) store<S>(to + i, function(i));
}

template <class S, class T>
REFORMER_INLINE Vec<S> rounded(Vec<S> v) {
  T narrow[kLanes<S>];
  store<S>(narrow, v);
  return load<S>(static_cast<const T*>(narrow));
}

// d = op(a, b, c), whole vectors.
template <class S>
void operate(EpilogueOp op, S* d, const S* a, const S* b, const S* c, int64_t count) {
  const Vec<S> zero = {}, one = broadcast(S(1));
  const auto x = [&](int64_t i) { return load<S>(a + i); };
  const auto y = [&](int64_t i) { return load<S>(b + i); };
  const auto z = [&](int64_t i) { return load<S>(c + i); };
  switch (op) {
    case EpilogueOp::neg: return each(d, count, [&](int64_t i) { return -x(i); });
    case EpilogueOp::abs: return each(d, count, [&](int64_t i) { return magnitude(x(i)); });
    case EpilogueOp::exp: return each(d, count, [&](int64_t i) { return whole_exp(x(i)); });
    case EpilogueOp::log: return each(d, count, [&](int64_t i) { return natural_log(x(i)); });
    case EpilogueOp::sqrt: return each(d, count, [&](int64_t i) { return square_root<S>(x(i)); });
    case EpilogueOp::rsqrt: return each(d, count, [&](int64_t i) { return one / square_root<S>(x(i)); });
    case EpilogueOp::tanh: return each(d, count, [&](int64_t i) { return hyperbolic_tangent(x(i)); });
    case EpilogueOp::sigmoid: return each(d, count, [&](int64_t i) { return one / (one + whole_exp(-x(i))); });
    case EpilogueOp::erf: return each(d, count, [&](int64_t i) { return error_function(x(i)); });
    case EpilogueOp::relu: return each(d, count, [&](int64_t i) { return x(i) <= zero ? zero : x(i); });
    case EpilogueOp::round_bf16: return each(d, count, [&](int64_t i) { return rounded<S, BFloat16>(x(i)); });
    case EpilogueOp::round_fp16: return each(d, count, [&](int64_t i) { return rounded<S, Half>(x(i)); });
    case EpilogueOp::add: return each(d, count, [&](int64_t i) { return x(i) + y(i); });
    case EpilogueOp::sub: return each(d, count, [&](int64_t i) { return x(i) - y(i); });
    case EpilogueOp::mul: return each(d, count, [&](int64_t i) { return x(i) * y(i); });
    case EpilogueOp::div: return each(d, count, [&](int64_t i) { return x(i) / y(i); });
    case EpilogueOp::maximum:
      return each(d, count, [&](int64_t i) { return ((x(i) > y(i)) | (x(i) != x(i))) ? x(i) : y(i); });
    case EpilogueOp::minimum:
      return each(d, count, [&](int64_t i) { return ((x(i) < y(i)) | (x(i) != x(i))) ? x(i) : y(i); });
    case EpilogueOp::lt: return each(d, count, [&](int64_t i) { return x(i) < y(i) ? one : zero; });
    case EpilogueOp::le: return each(d, count, [&](int64_t i) { return x(i) <= y(i) ? one : zero; });
    case EpilogueOp::eq: return each(d, count, [&](int64_t i) { return x(i) == y(i) ? one : zero; });
    case EpilogueOp::ne: return each(d, count, [&](int64_t i) { return x(i) != y(i) ? one : zero; });
    case EpilogueOp::select: return each(d, count, [&](int64_t i) { return x(i) != zero ? y(i) : z(i); });
    case EpilogueOp::clip:
      return each(d, count, [&](int64_t i) { return x(i) <= y(i) ? y(i) : x(i) >= z(i) ? z(i) : x(i); });
    default: return;  // leaves
  }
}

// The same for several operations.
template <class S>
void operate(Several several, S* d, const S* a, const S* b, const S* c, int64_t count) {
  const Vec<S> zero = {};
  const auto x = [&](int64_t i) { return load<S>(a + i); };
  const auto y = [&](int64_t i) { return load<S>(b + i); };
  const auto z = [&](int64_t i) { return load<S>(c + i); };
  const auto positive_part = [&](Vec<S> v) { return v <= zero ? zero : v; };
  switch (several) {
    case Several::mul_add: return each(d, count, [&](int64_t i) { return fma<S>(x(i), y(i), z(i)); });
    case Several::sub_mul: return each(d, count, [&](int64_t i) { return (x(i) - y(i)) * z(i); });
    case Several::add_relu: return each(d, count, [&](int64_t i) { return positive_part(x(i) + y(i)); });
    case Several::mul_add_relu:
      return each(d, count, [&](int64_t i) { return positive_part(fma<S>(x(i), y(i), z(i))); });
    case Several::positive: return each(d, count, [&](int64_t i) { return x(i) <= zero ? zero : y(i); });
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

template <class S>
void read(S* to, const EpilogueOperand& from, int64_t at, int64_t count) {
  switch (from.type) {
    case Stored::fp32: return widen(to, static_cast<const float*>(from.data) + at, count);
    case Stored::fp64: return widen(to, static_cast<const double*>(from.data) + at, count);
    case Stored::fp16: return widen(to, static_cast<const Half*>(from.data) + at, count);
    case Stored::bf16: return widen(to, static_cast<const BFloat16*>(from.data) + at, count);
    default:
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
    default:
      for (int64_t i = 0; i < count; ++i) static_cast<uint8_t*>(to)[at + i] = from[i] != 0;
  }
}

}  // namespace reformer::REFORMER_ISA
