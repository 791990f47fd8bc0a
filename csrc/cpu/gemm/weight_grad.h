// Weight gradients, part of gemm.h: dw(m, n) = sum over the output pixels d of A(m, d) B(d, n) for each group, where m
// is an output channel and n a position in the filter.
namespace reformer::REFORMER_ISA {

// left_of(group) and right_of(group) return the operands. If `partial` is given, the sum is split into sum_parts parts,
// each with the size of w.
template <class T, class S, class LeftOf, class RightOf>
void weight_grad(const ConvProblem& p, const Device& device, T* w, S* partial, int64_t sum_parts, const LeftOf& left_of,
                 const RightOf& right_of) {
  const int64_t rows = p.group_k(), cols = int64_t{p.group_c()} * p.r * p.s;
  const int64_t depth = int64_t{p.n} * p.out_h() * p.out_w();
  if (!partial) {
    for_each_part<S>(p.groups, rows, cols, device.threads, [&](int64_t g, const PartIndex& index) {
      multiply<S>(device.isa, left_of(g), right_of(g), OutRows<S, T, Affine>{w + g * rows * cols, {cols}},
                  index.of<S>(rows, cols, depth));
    });
    return;
  }
  parallel_for(p.groups * sum_parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t g = i / sum_parts, part = i % sum_parts;
      S* to = partial + part * p.weight_numel() + g * rows * cols;
      multiply<S>(device.isa, left_of(g), right_of(g), OutRows<S, S, Affine>{to, {cols}},
                  {0, rows, 0, cols, depth * part / sum_parts, depth * (part + 1) / sum_parts});
    }
  });
  add_parts(w, partial, p.weight_numel(), sum_parts);
}

}  // namespace reformer::REFORMER_ISA
