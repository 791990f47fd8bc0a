// Part of an ISA body: see correlate.h.
#include "cpu/simd/transpose.h"
#include "lanes.h"
#include "row_kernel.h"
#include "row_parts.h"

namespace reformer::REFORMER_ISA {

// One thread's work on a correlation; owns the scratch memory.
template <class T>
class Correlator {
  using S = typename Element<T>::Sum;
  static constexpr int L = kLanes<S>;
  static constexpr int64_t kMaxTapRows = 11;  // per call of a kernel, of 9 taps each: longer sums would round much

 public:
  Correlator(const depthwise::CorrelateConfig& config, const T* source, const T* filter, const T* bias, T* result)
      : config_(config), source_(source), filter_(filter), bias_(bias), result_(result) {
    const int64_t vectors = config.blocks.vectors;
    source_elements_ = config.source_vectors() * L;
    result_elements_ = config.result_vectors() * L;
    filter_elements_ = int64_t(config.filter_at.size()) * L;
    const int64_t elements = vectors * (source_elements_ + result_elements_ + filter_elements_ + L);
    source_band_ = static_cast<S*>(thread_scratch(elements * int64_t(sizeof(S))));
    result_band_ = source_band_ + vectors * source_elements_;
    taps_ = result_band_ + vectors * result_elements_;
    init_ = taps_ + vectors * filter_elements_;
    std::memset(source_band_, 0, vectors * source_elements_ * sizeof(S));
  }

  void run(int64_t block, int64_t band) {
    const int64_t first = config_.blocks.first(block);
    const int size = config_.blocks.size(block);
    const depthwise::Range out{band * config_.band_rows,
                               std::min((band + 1) * config_.band_rows, config_.result.height)};
    const depthwise::Range in = config_.rows.source(out);
    for (int64_t pass = 0; pass < config_.passes; ++pass) {
      load_filter(first, size, pass);
      gather(Planes<const T>{source_, config_.source, config_.source_map(pass)}, first, size,
             in.begin * config_.source.width, int(in.size() * config_.source.width), config_.source_at.data(),
             source_band_, source_elements_);
      for (int64_t vector = 0; vector * L < size; ++vector) sum_rows(vector, out, in, pass > 0);
    }
    scatter(result_band_, result_elements_, config_.result_at.data(), Planes<T>{result_, config_.result, {}}, first,
            size, out.begin * config_.result.width, int(out.size() * config_.result.width));
  }

 private:
  void load_filter(int64_t first, int size, int64_t pass) {
    if (first == loaded_first_ && pass == loaded_pass_) return;
    loaded_first_ = first;
    loaded_pass_ = pass;
    const depthwise::PlaneMap map = config_.filter_map(pass);
    gather(Planes<const T>{filter_, config_.filter, map}, first, size, 0, int(config_.filter_at.size()),
           config_.filter_at.data(), taps_, filter_elements_);
    if (bias_)
      gather(Planes<const T>{bias_, {1, 1, 1, Layout::nchw}, map}, first, size, 0, 1, config_.filter_at.data(), init_,
             L);
    else
      std::memset(init_, 0, config_.blocks.vectors * L * sizeof(S));
    const int64_t vectors = (size + L - 1) / L;
    Vec<S> zero{};  // or NaN, if a tap is not finite
    for (int64_t i = 0; i < vectors * filter_elements_; i += L) zero += load<S>(taps_ + i) * S(0);
    finite_ = true;
    for (int i = 0; i < L; ++i) finite_ = finite_ && zero[i] == 0;
  }

  void sum_rows(int64_t vector, depthwise::Range out, depthwise::Range in, bool add) {
    const S* source = source_band_ + vector * source_elements_;
    const S* filter = taps_ + vector * filter_elements_;
    S* result = result_band_ + vector * result_elements_;
    for (int64_t y = out.begin; y < out.end; ++y) {
      const depthwise::RowTaps& taps = config_.row_taps[y];
      Row<S> row;
      row.x = source + (taps.first_source - in.begin) * config_.source_pitch * L;
      row.x_row = taps.in_dilation * config_.source_pitch * L;
      row.w = filter + taps.first_tap * config_.filter.width * L;
      row.w_row = taps.tap_step * config_.filter.width * L;
      row.tap_rows = taps.taps;
      row.out = result + (y - out.begin) * config_.result_pitch * L;
      row.init = add ? nullptr : init_ + vector * L;
      for (const depthwise::Phase& columns : config_.columns.phases)
        finite_ ? sum_row(row, columns) : sum_careful(row, columns);
    }
  }

  // row: pointers at source column 0, tap 0 and result 0.
  void sum_row(Row<S> row, const depthwise::Phase& columns) {
    const int block = depthwise::column_block(columns.out_count);
    row.x += (config_.lead + columns.in_first) * L;
    row.x_step = columns.in_step * L;
    row.x_tap = columns.in_dilation * L;
    row.w += columns.tap_first * L;
    row.w_tap = columns.tap_step * L;
    row.out += columns.out_first * L;
    row.out_step = columns.out_step * L;
    row.blocks = (columns.out_count + block - 1) / block;
    int64_t left_rows = columns.tap_count == 0 ? 0 : row.tap_rows;
    do {
      row.tap_rows = std::min(left_rows, kMaxTapRows);
      Row<S> part = row;
      int64_t left = columns.tap_count;
      do {
        const int taps = with_part(left, columns.in_step, columns.in_dilation,
                                   [&](auto width, auto step) { row_kernel<width, step>(part, block); });
        part.init = nullptr;
        part.x += taps * part.x_tap;
        part.w += taps * part.w_tap;
        left -= taps;
      } while (left > 0);
      row.init = nullptr;
      row.x += row.tap_rows * row.x_row;
      row.w += row.tap_rows * row.w_row;
      left_rows -= row.tap_rows;
    } while (left_rows > 0);
  }

  // Skips the zero columns of the padding, since infinity or NaN times zero is not zero.
  void sum_careful(const Row<S>& row, const depthwise::Phase& columns) {
    S* out = row.out + columns.out_first * L;
    const int64_t out_step = columns.out_step * L;
    if (row.init)
      for (int64_t t = 0; t < columns.out_count; ++t) store<S>(out + t * out_step, load<S>(row.init));
    for (int64_t r = 0; r < row.tap_rows; ++r)
      for (int64_t tap = 0; tap < columns.tap_count; ++tap) {
        const Vec<S> factor = load<S>(row.w + r * row.w_row + (columns.tap_first + tap * columns.tap_step) * L);
        const auto valid =
            depthwise::inside(columns.in(0, tap), columns.in_step, columns.out_count, config_.source.width);
        for (int64_t t = valid.begin; t < valid.end; ++t) {
          const S* x = row.x + r * row.x_row + (config_.lead + columns.in(t, tap)) * L;
          store<S>(out + t * out_step, fma<S>(load<S>(x), factor, load<S>(out + t * out_step)));
        }
      }
  }

  const depthwise::CorrelateConfig& config_;
  const T *source_, *filter_, *bias_;
  T* result_;
  int64_t source_elements_, result_elements_, filter_elements_;  // per vector of a block
  S *source_band_, *result_band_, *taps_, *init_;
  int64_t loaded_first_ = -1, loaded_pass_ = -1;
  bool finite_ = true;
};

inline void correlate(const ConvProblem& p, int threads, const ConvBuffers& b) {
  dispatch(p.dtype, [&](auto element) {
    using T = decltype(element);
    const auto config = depthwise::configure_correlate(p, threads, kLanes<typename Element<T>::Sum>);
    const bool forward = p.direction == Direction::forward;
    const T *source = static_cast<const T*>(forward ? b.x : b.y), *filter = static_cast<const T*>(b.w);
    T* result = static_cast<T*>(forward ? b.y : b.x);
    parallel_for(config.block_count * config.bands, 1, [&](int64_t begin, int64_t end) {
      Correlator<T> correlator(config, source, filter, static_cast<const T*>(b.bias), result);
      for (int64_t item = begin; item < end; ++item) correlator.run(item / config.bands, item % config.bands);
    });
  });
}

}  // namespace reformer::REFORMER_ISA
