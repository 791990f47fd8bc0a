#include "segments.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "element.h"
#include "parallel.h"

namespace reformer::cpu {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements that justify a thread

template <class T>
void sum_rows(const SegmentSum& p, int64_t first, int64_t last) {
  using E = Element<T>;
  const auto *const source = static_cast<const T*>(p.source), *const base = static_cast<const T*>(p.base);
  const auto* const factors = static_cast<const T*>(p.factors);
  std::vector<typename E::Sum> sums(size_t(p.columns));
  for (int64_t row = first; row < last; ++row) {
    std::fill(sums.begin(), sums.end(), 0);
    for (int32_t i = p.begins[row]; i < p.begins[row + 1]; ++i) {
      const T* const from = source + p.order[i] * p.columns;
      const typename E::Sum factor = factors ? E::load(factors[i]) : 1;
      for (int64_t c = 0; c < p.columns; ++c) sums[size_t(c)] += E::load(from[c]) * factor;
    }
    T* const to = static_cast<T*>(p.to) + row * p.columns;
    for (int64_t c = 0; c < p.columns; ++c)
      to[c] = E::store(sums[size_t(c)] + (base ? E::load(base[row * p.columns + c]) : 0));
  }
}

}  // namespace

template <class Id>
const Id* row_numbers(const Id* index, int32_t* to, int64_t count, int64_t count_each, int64_t rows, bool from_end) {
  const auto number_of = [=](Id given) { return int64_t(given) + (from_end && given < 0 ? rows : 0); };
  const auto is_wrong = [=](Id given) { return number_of(given) < 0 || number_of(given) >= rows; };
  std::atomic<bool> any_wrong{false};
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (is_wrong(index[i])) any_wrong = true;
      to[i] = int32_t(number_of(index[i]) + i / count_each * rows);
    }
  });
  return any_wrong ? std::find_if(index, index + count, is_wrong) : nullptr;
}
template const int64_t* row_numbers(const int64_t*, int32_t*, int64_t, int64_t, int64_t, bool);
template const int32_t* row_numbers(const int32_t*, int32_t*, int64_t, int64_t, int64_t, bool);

void sort_rows(const int32_t* numbers, int32_t* order, int32_t* begins, int64_t count, int64_t rows) {
  std::vector<int32_t> next(size_t(rows) + 1);
  for (int64_t i = 0; i < count; ++i) ++next[size_t(numbers[i]) + 1];
  for (int64_t r = 0; r < rows; ++r) next[size_t(r) + 1] += next[size_t(r)];
  std::copy(next.begin(), next.end(), begins);
  for (int64_t i = 0; i < count; ++i) order[next[size_t(numbers[i])]++] = int32_t(i);
}

void sum_segments(DType type, const SegmentSum& sum) {
  const int64_t each = std::max<int64_t>(1, sum.columns * (1 + sum.begins[sum.rows] / std::max<int64_t>(1, sum.rows)));
  dispatch(type, [&](auto of_type) {
    using T = decltype(of_type);
    parallel_for(sum.rows, std::max<int64_t>(1, kGrain / each),
                 [&](int64_t first, int64_t last) { sum_rows<T>(sum, first, last); });
  });
}

}  // namespace reformer::cpu
