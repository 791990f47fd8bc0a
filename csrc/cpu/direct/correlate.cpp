// Forward and input_grad: for each strip, planes are packed once, and every tile of the target is summed in registers.
#include <algorithm>

#include "cpu/gemm/scratch.h"
#include "cpu/parallel.h"
#include "direct.h"
#include "strip.h"

namespace reformer {
namespace {

template <class T>
class Correlation {
  using S = typename Element<T>::Sum;

 public:
  Correlation(const ConvProblem& p, const Device& device, const DirectConfig& config, const ConvBuffers& b)
      : p_(p), config_(config), kernels_(direct_kernels<S>(device.isa)), copies_(direct_copies<T>(device.isa)), b_(b) {
    const bool forward = p.direction == Direction::forward;
    source_ = static_cast<T*>(forward ? b.x : b.y);
    target_ = static_cast<T*>(forward ? b.y : b.x);
    for (int32_t pass = 0; pass < config.passes(); ++pass) offsets_.push_back(config.offsets(pass));
    // Storing directly from the tile saves a copy, but then each row of the target begins a new vector.
    in_place_ = std::is_same_v<T, S> && p.layout == Layout::nchw && config.passes() == 1 &&
                (config.w.positions == config.pitch || config.w.positions >= kWide);
  }

  void run() {
    const int64_t group_weights = p_.weight_numel() / p_.groups;
    parallel_for(p_.groups, std::max<int64_t>(1, kGrain / group_weights), [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) pack_weights(g);
    });
    const int64_t tasks = int64_t{p_.n} * config_.blocks * config_.strips;
    const int64_t task_work = config_.rows * config_.pitch * group_weights * config_.groups_per_block;
    parallel_for(tasks, std::max<int64_t>(1, kGrain / task_work), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) run_task(task);
    });
  }

 private:
  static constexpr int32_t kWide = 48;
  static constexpr int64_t kGrain = 1 << 15;  // multiply-adds that justify another thread

  S* packed_weights(int64_t group) const {
    return static_cast<S*>(b_.workspace) + group * (p_.weight_numel() / p_.groups);
  }

  // Layout: [pass][tile of target channels][tap of the pass][channel of the tile].
  void pack_weights(int64_t group) const {
    const DirectFilterView view(p_);
    const bool forward = p_.direction == Direction::forward;
    const int64_t source_step = forward ? view.c : view.k, target_step = forward ? view.k : view.c;
    T* const weights = static_cast<T*>(b_.w) + group * p_.group_k() * view.k;
    const bool taps_adjacent = p_.layout == Layout::nchw && config_.passes() == 1;  // a square to be transposed
    S* to = packed_weights(group);
    for (const auto& taps_h : config_.h.passes)
      for (const auto& taps_w : config_.w.passes)
        for (int32_t m = 0, rows; m < config_.target_channels; m += rows) {
          rows = kernels_.tile_rows(config_.target_channels - m);
          for (int32_t c = 0; c < config_.source_channels; ++c) {
            T* const from = weights + c * source_step + m * target_step;
            if (taps_adjacent) {
              copies_.load({from, 1, target_step, to, rows, p_.r * p_.s, rows});
              to += int64_t{p_.r} * p_.s * rows;
              continue;
            }
            for (const auto& r : taps_h)
              for (const auto& s : taps_w)
                for (int32_t i = 0; i < rows; ++i)
                  *to++ = Element<T>::load(from[i * target_step + r.tap * view.r + s.tap * view.s]);
          }
        }
  }

  void run_task(int64_t task) const {
    const auto strip = static_cast<int32_t>(task % config_.strips);
    const auto block = static_cast<int32_t>(task / config_.strips % config_.blocks);
    const auto image = static_cast<int32_t>(task / config_.strips / config_.blocks);
    const int32_t first_group = block * config_.groups_per_block;
    const int32_t groups = std::min(config_.groups_per_block, p_.groups - first_group);
    const int32_t begin = strip * config_.rows, rows = config_.rows_of(strip);
    S* const planes = static_cast<S*>(thread_scratch(config_.strip_numel() * int64_t{sizeof(S)}));
    S* const results = planes + config_.planes_numel();

    const DirectStrip source{image, begin, rows, int64_t{first_group} * config_.source_channels,
                             groups * config_.source_channels};
    const DirectStrip target{image, begin, rows, int64_t{first_group} * config_.target_channels,
                             groups * config_.target_channels};
    pack_source(config_, copies_, source_, source, planes);
    const int64_t group_planes = config_.planes_of_channel() * config_.plane_step * config_.source_channels;
    for (int32_t g = 0; g < groups; ++g) {
      const S* const group_source = planes + g * group_planes;
      const S* weights = packed_weights(first_group + g);
      if (in_place_) {
        run_in_place(target, first_group + g, group_source, weights);
        continue;
      }
      for (int32_t pass = 0; pass < config_.passes(); ++pass) {
        S* const out = results + (int64_t{pass} * target.channels + g * config_.target_channels) * config_.target_step;
        const int64_t cols = (rows - 1) * config_.pitch + config_.w.positions;
        run_row(pass, first_group + g, group_source, weights, out, config_.target_step, cols);
        weights += int64_t(offsets_[size_t(pass)].size()) * config_.target_channels;
      }
    }
    if (!in_place_) unpack_target(config_, copies_, static_cast<const S*>(results), target, target_);
  }

  void run_in_place(const DirectStrip& strip, int32_t group, const S* planes, const S* weights) const {
    if constexpr (std::is_same_v<T, S>) {
      const DirectView& view = config_.target;
      S* const out = target_ + strip.image * view.image + strip.channel * view.channel + strip.begin * view.row;
      if (view.width == config_.pitch)
        return run_row(0, group, planes, weights, out, view.channel, strip.rows * config_.pitch);
      for (int32_t i = 0; i < strip.rows; ++i)
        run_row(0, group, planes + i * config_.pitch, weights, out + i * view.row, view.channel, view.width);
    }
  }

  // Computes all channels of a group's target, for `cols` consecutive positions.
  void run_row(int32_t pass, int32_t group, const S* planes, const S* weights, S* out, int64_t out_row,
               int64_t cols) const {
    const std::vector<int32_t>& offsets = offsets_[size_t(pass)];
    const auto depth = static_cast<int64_t>(offsets.size());
    const int64_t lanes = kernels_.lanes, vectors = (cols + lanes - 1) / lanes;
    const int64_t widest = kernels_.vectors[kernels_.tile_rows(config_.target_channels) - 1];
    const int64_t tiles = (vectors + widest - 1) / widest;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t v = vectors * tile / tiles, count = vectors * (tile + 1) / tiles - v, q = v * lanes;
      const auto tile_cols = static_cast<int32_t>(std::min(cols - q, count * lanes));
      for (int32_t m = 0, rows; m < config_.target_channels; m += rows) {
        rows = kernels_.tile_rows(config_.target_channels - m);
        S bias[kDirectRows];
        if (b_.bias)
          for (int32_t i = 0; i < rows; ++i)
            bias[i] = Element<T>::load(static_cast<const T*>(b_.bias)[group * config_.target_channels + m + i]);
        kernels_.tile[rows - 1][count - 1]({depth, weights + m * depth, planes + q, offsets.data(),
                                            out + m * out_row + q, out_row, tile_cols, b_.bias ? bias : nullptr});
      }
    }
  }

  const ConvProblem& p_;
  const DirectConfig& config_;
  const DirectKernels<S>& kernels_;
  const DirectCopies<T> copies_;
  const ConvBuffers b_;
  T *source_, *target_;
  std::vector<std::vector<int32_t>> offsets_;  // for each pass
  bool in_place_;
};

}  // namespace

int64_t direct_correlate_workspace(const ConvProblem& p) {
  return p.weight_numel() * std::max<int64_t>(4, element_size(p.dtype));
}

void direct_correlate(const ConvProblem& p, const Device& device, const DirectConfig& config,
                      const ConvBuffers& buffers) {
  dispatch(p.dtype, [&](auto element) { Correlation<decltype(element)>(p, device, config, buffers).run(); });
}

}  // namespace reformer
