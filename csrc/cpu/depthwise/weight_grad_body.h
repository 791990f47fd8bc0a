// Part of an ISA body: see weight_grad.h.
#include "cpu/simd/transpose.h"
#include "lanes.h"
#include "row_parts.h"
#include "tap_kernel.h"

namespace reformer::REFORMER_ISA {

// One thread's work on a weight gradient; owns the scratch memory.
template <class T>
class TapSummer {
  using S = typename Element<T>::Sum;
  static constexpr int L = kLanes<S>;

 public:
  TapSummer(const depthwise::WeightGradConfig& config, const T* x, const T* dy)
      : config_(config), x_(x), dy_(dy), vectors_(config.blocks.vectors) {
    x_elements_ = config.x_rows * config.x_pitch * L;
    dy_elements_ = int64_t(config.y_at.size()) * L;
    sums_elements_ = config.taps() * L;
    const int64_t elements = vectors_ * (x_elements_ + dy_elements_ + sums_elements_) + sums_elements_;
    x_band_ = static_cast<S*>(thread_scratch(elements * int64_t(sizeof(S))));
    dy_band_ = x_band_ + vectors_ * x_elements_;
    total_ = dy_band_ + vectors_ * dy_elements_;
    sums_ = total_ + vectors_ * sums_elements_;
    std::memset(x_band_, 0, vectors_ * x_elements_ * sizeof(S));
  }

  // Adds up a part of the steps into `total`, for each vector of the block and each tap.
  void run(int64_t block, int64_t part, S* total) {
    std::memset(total, 0, vectors_ * sums_elements_ * sizeof(S));
    const int64_t end = std::min((part + 1) * config_.part_steps(), config_.steps);
    const int size = config_.blocks.size(block);
    for (int64_t step = part * config_.part_steps(); step < end; ++step) {
      const int64_t image = step / config_.bands, band = step % config_.bands;
      const depthwise::Range out{band * config_.band_rows, std::min((band + 1) * config_.band_rows, config_.y.height)};
      const depthwise::Range in = config_.source(out);
      const int64_t first = image * config_.y.channels + config_.blocks.first(block);
      gather(Planes<const T>{x_, config_.x, {1, config_.multiplier, 0}}, first, size, in.begin * config_.x.width,
             int(in.size() * config_.x.width), config_.x_at.data(), x_band_, x_elements_);
      gather(Planes<const T>{dy_, config_.y, {}}, first, size, out.begin * config_.y.width,
             int(out.size() * config_.y.width), config_.y_at.data(), dy_band_, dy_elements_);
      for (int64_t vector = 0; vector * L < size; ++vector) add_band(vector, out, in, total + vector * sums_elements_);
    }
  }

  // Scratch memory for a block's totals, for callers of run.
  S* own_total() { return total_; }

 private:
  void add_band(int64_t vector, depthwise::Range out, depthwise::Range in, S* total) {
    const Band band{x_band_ + vector * x_elements_, in.begin, dy_band_ + vector * dy_elements_, out.begin};
    std::memset(sums_, 0, sums_elements_ * sizeof(S));
    for (int64_t begin = out.begin; begin < out.end; begin += config_.group_rows)
      sum_group(band, {begin, std::min(begin + config_.group_rows, out.end)}, false);
    // An infinite dy times a zero column of the padding is NaN, which is wrong: in that case these columns are skipped.
    if (has_nan()) {
      std::memset(sums_, 0, sums_elements_ * sizeof(S));
      sum_group(band, out, true);
    }
    for (int64_t i = 0; i < sums_elements_; i += L) store<S>(total + i, load<S>(total + i) + load<S>(sums_ + i));
  }

  bool has_nan() const {
    Vec<S> zero{};  // or NaN
    for (int64_t i = 0; i < sums_elements_; i += L) zero += load<S>(sums_ + i) * S(0);
    for (int i = 0; i < L; ++i)
      if (zero[i] != 0) return true;
    return false;
  }

  // One vector's rows in scratch memory, and their range in the tensors.
  struct Band {
    const S* x;
    int64_t x_begin;
    const S* dy;
    int64_t dy_begin;
  };

  void sum_group(const Band& band, depthwise::Range out, bool careful) {
    TapRow<S> row;
    row.x_row = config_.rows.in_step * config_.x_pitch * L;
    row.x_step = config_.columns.in_step * L;
    row.x_tap = config_.columns.in_dilation * L;
    row.dy_row = config_.y.width * L;
    for (int64_t r = 0; r < config_.filter.height; ++r) {
      const auto valid =
          depthwise::inside(config_.rows.in(out.begin, r), config_.rows.in_step, out.size(), config_.x.height);
      if (valid.size() == 0) continue;
      const int64_t first = out.begin + valid.begin;
      row.rows = valid.size();
      row.x =
          band.x +
          ((config_.rows.in(first, r) - band.x_begin) * config_.x_pitch + config_.lead + config_.columns.in_first) * L;
      row.dy = band.dy + (first - band.dy_begin) * row.dy_row;
      row.sums = sums_ + r * config_.filter.width * L;
      careful ? sum_careful(row) : sum_row(row);
    }
  }

  void sum_row(TapRow<S> row) {
    row.columns = config_.y.width;
    for (int64_t left = config_.filter.width; left > 0;) {
      const int taps = with_part(left, config_.columns.in_step, config_.columns.in_dilation,
                                 [&](auto width, auto step) { tap_kernel<S, width, step>(row); });
      row.x += taps * row.x_tap;
      row.sums += taps * L;
      left -= taps;
    }
  }

  void sum_careful(TapRow<S> row) {
    const TapRow<S> all = row;
    for (int64_t tap = 0; tap < config_.filter.width; ++tap) {
      const auto valid =
          depthwise::inside(config_.columns.in(0, tap), config_.columns.in_step, config_.y.width, config_.x.width);
      row.columns = valid.size();
      row.x = all.x + valid.begin * row.x_step + tap * row.x_tap;
      row.dy = all.dy + valid.begin * L;
      row.sums = all.sums + tap * L;
      tap_kernel<S, 1, 0>(row);
    }
  }

  const depthwise::WeightGradConfig& config_;
  const T *x_, *dy_;
  int64_t vectors_;
  int64_t x_elements_, dy_elements_, sums_elements_;  // per vector of a block
  S *x_band_, *dy_band_, *total_, *sums_;
};

template <class T>
void weight_grad_as(const depthwise::WeightGradConfig& config, const T* x, const T* dy, T* dw,
                    typename Element<T>::Sum* partial) {
  using S = typename Element<T>::Sum;
  const int64_t vector_elements = config.taps() * kLanes<S>, block_elements = config.blocks.vectors * vector_elements;
  const auto finish = [&](int64_t block, const S* total) {
    scatter(total, vector_elements, config.filter_at.data(), Planes<T>{dw, config.filter, {}},
            config.blocks.first(block), config.blocks.size(block), 0, int(config.taps()));
  };
  parallel_for(config.blocks.per_segment * config.parts, 1, [&](int64_t begin, int64_t end) {
    TapSummer<T> summer(config, x, dy);
    for (int64_t item = begin; item < end; ++item) {
      S* total = config.parts > 1 ? partial + item * block_elements : summer.own_total();
      summer.run(item / config.parts, item % config.parts, total);
      if (config.parts == 1) finish(item, total);
    }
  });
  if (config.parts == 1) return;
  for (int64_t block = 0; block < config.blocks.per_segment; ++block) {
    S* total = partial + block * config.parts * block_elements;
    for (int64_t part = 1; part < config.parts; ++part)
      for (int64_t i = 0; i < block_elements; ++i) total[i] += total[part * block_elements + i];
    finish(block, total);
  }
}

inline void weight_grad(const ConvProblem& p, int threads, const ConvBuffers& b) {
  dispatch(p.dtype, [&](auto element) {
    using T = decltype(element);
    using S = typename Element<T>::Sum;
    auto config = depthwise::configure_weight_grad(p, threads, kLanes<S>);
    config.place_pixels();
    weight_grad_as(config, static_cast<const T*>(b.x), static_cast<const T*>(b.y), static_cast<T*>(b.w),
                   static_cast<S*>(b.workspace));
  });
}

}  // namespace reformer::REFORMER_ISA
