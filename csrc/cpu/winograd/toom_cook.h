// The transforms of F(M, 3) in one dimension: M outputs of a correlation with 3 taps by M + 2 multiplications, as
// output(filter(g) * input(x)). In two dimensions each transform is applied to the columns and to the rows. Part of an
// ISA body.
//
// They evaluate polynomials at the points 0, +-a (, +-b) and infinity (Toom-Cook, transposed). For M = 4, a = 5/8 and b
// = 3/2 amplify rounding errors less than half as much as the usual 1 and 2, and are nearly optimal; all constants of
// the input and output transforms are exact. Pairs of points +-a share their even and odd parts.

namespace reformer::REFORMER_ISA {

template <int M>
struct ToomCook;

template <>
struct ToomCook<2> {
  template <class V>
  static REFORMER_INLINE void input(const V (&x)[4], V (&to)[4]) {
    to[0] = x[0] - x[2];
    to[1] = x[2] + x[1];
    to[2] = x[2] - x[1];
    to[3] = x[3] - x[1];
  }
  template <class V>
  static REFORMER_INLINE void filter(const V (&g)[3], V (&to)[4]) {
    const V even = (g[0] + g[2]) * 0.5, odd = g[1] * 0.5;
    to[0] = g[0];
    to[1] = even + odd;
    to[2] = even - odd;
    to[3] = g[2];
  }
  template <class V>
  static REFORMER_INLINE void output(const V (&m)[4], V (&y)[2]) {
    y[0] = m[0] + (m[1] + m[2]);
    y[1] = (m[1] - m[2]) + m[3];
  }
};

template <>
struct ToomCook<4> {
  static constexpr float a = 0.625f, b = 1.5f, a2 = a * a, b2 = b * b;

  template <class V>
  static REFORMER_INLINE void input(const V (&x)[6], V (&to)[6]) {
    const V even_a = x[4] - b2 * x[2], odd_a = a * (x[3] - b2 * x[1]);
    const V even_b = x[4] - a2 * x[2], odd_b = b * (x[3] - a2 * x[1]);
    to[0] = (x[4] - (a2 + b2) * x[2]) + (a2 * b2) * x[0];
    to[1] = even_a + odd_a;
    to[2] = even_a - odd_a;
    to[3] = even_b + odd_b;
    to[4] = even_b - odd_b;
    to[5] = (x[5] - (a2 + b2) * x[3]) + (a2 * b2) * x[1];
  }
  template <class V>
  static REFORMER_INLINE void filter(const V (&g)[3], V (&to)[6]) {
    constexpr double A = a, B = b, A2 = A * A, B2 = B * B;
    constexpr double scale_0 = 1 / (A2 * B2), scale_a = 1 / (2 * A2 * (A2 - B2)), scale_b = 1 / (2 * B2 * (B2 - A2));
    const V even_a = scale_a * g[0] + (scale_a * A2) * g[2], odd_a = (scale_a * A) * g[1];
    const V even_b = scale_b * g[0] + (scale_b * B2) * g[2], odd_b = (scale_b * B) * g[1];
    to[0] = scale_0 * g[0];
    to[1] = even_a + odd_a;
    to[2] = even_a - odd_a;
    to[3] = even_b + odd_b;
    to[4] = even_b - odd_b;
    to[5] = g[2];
  }
  template <class V>
  static REFORMER_INLINE void output(const V (&m)[6], V (&y)[4]) {
    const V sum_a = m[1] + m[2], sum_b = m[3] + m[4], diff_a = m[1] - m[2], diff_b = m[3] - m[4];
    y[0] = m[0] + (sum_a + sum_b);
    y[1] = a * diff_a + b * diff_b;
    y[2] = a2 * sum_a + b2 * sum_b;
    y[3] = (a2 * a * diff_a + b2 * b * diff_b) + m[5];
  }
};

}  // namespace reformer::REFORMER_ISA
