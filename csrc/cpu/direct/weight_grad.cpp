// weight_grad: dot products along the positions of a strip. If there are too few groups for the threads, the images are
// split into parts whose sums are added up in order.
#include <algorithm>

#include "cpu/gemm/scratch.h"
#include "cpu/parallel.h"
#include "direct.h"
#include "strip.h"

namespace reformer {
namespace {

// The number of parts into which the images of each block of groups are split.
int32_t parts_of(const DirectSizes& sizes, int32_t threads, int64_t strips) {
  if (sizes.blocks % threads == 0 || sizes.blocks >= 4 * threads) return 1;
  return static_cast<int32_t>(std::min<int64_t>(threads, strips));
}

template <class T>
class WeightGrad {
  using S = typename Element<T>::Sum;

 public:
  WeightGrad(const ConvProblem& p, const Device& device, const DirectConfig& config, const ConvBuffers& b)
      : p_(p),
        config_(config),
        kernels_(direct_kernels<S>(device.isa)),
        copies_(direct_copies<T>(device.isa)),
        b_(b),
        offsets_(config.offsets(0)),
        strips_(int64_t{p.n} * config.strips),
        parts_(parts_of(config, device.threads, strips_)),
        batch_(config.strips > 1 ? 1 : std::clamp<int64_t>(kBatchNumel / config.strip_numel(), 1, p.n)) {}

  void run() {
    parallel_for(int64_t{config_.blocks} * parts_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) run_part(int32_t(i / parts_), int32_t(i % parts_));
    });
    parallel_for(p_.k, std::max<int64_t>(1, kGrain / int64_t(offsets_.size())), [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) finish(k);
    });
  }

 private:
  static constexpr int64_t kGrain = 1 << 14;  // elements of the result that justify another thread
  static constexpr int64_t kBatchNumel = int64_t{64} << 10;
  static constexpr int64_t kRunVectors = 256;  // longer sums in a lane would round much

  S* sums(int32_t part, int64_t k) const {  // layout: [part][k][tap]
    return static_cast<S*>(b_.workspace) + part * p_.weight_numel() + k * int64_t(offsets_.size());
  }

  void run_part(int32_t block, int32_t part) const {
    const int32_t first_group = block * config_.groups_per_block;
    const int32_t groups = std::min(config_.groups_per_block, p_.groups - first_group);
    const int32_t kg = config_.target_channels, cg = config_.source_channels;
    S* const planes = static_cast<S*>(thread_scratch(batch_ * config_.strip_numel() * int64_t{sizeof(S)}));
    S* const packed = planes + batch_ * config_.planes_numel();
    S* const first = sums(part, int64_t{first_group} * kg);
    std::fill(first, first + groups * kg * int64_t(offsets_.size()), S(0));

    const int64_t group_planes = config_.planes_of_channel() * config_.plane_step * cg;
    const int64_t end = strips_ * (part + 1) / parts_;
    for (int64_t i = strips_ * part / parts_, count; i < end; i += count) {
      count = std::min<int64_t>(batch_, end - i);
      const auto strip = static_cast<int32_t>(i % config_.strips);
      const int32_t begin = strip * config_.rows, rows = config_.rows_of(strip);
      for (int64_t j = 0; j < count; ++j) {
        const auto image = static_cast<int32_t>((i + j) / config_.strips);
        pack_source(config_, copies_, static_cast<T*>(b_.x),
                    {image, begin, rows, int64_t{first_group} * cg, groups * cg}, planes + j * config_.planes_numel());
        pack_target(config_, copies_, static_cast<T*>(b_.y),
                    {image, begin, rows, int64_t{first_group} * kg, groups * kg}, packed + j * config_.target_numel());
      }
      for (int32_t g = 0; g < groups; ++g)
        run_group(planes + g * group_planes, packed + g * kg * config_.target_step, rows, int32_t(count),
                  sums(part, int64_t{first_group + g} * kg));
    }
  }

  // Sums over `count` strips, in pieces; after each piece the lanes are added up.
  void run_group(const S* planes, const S* packed, int32_t rows, int32_t count, S* to) const {
    const int64_t vectors = (rows * config_.pitch + kernels_.lanes - 1) / kernels_.lanes;
    const int64_t pieces = (vectors + kRunVectors - 1) / kRunVectors;
    const int64_t batch = std::max<int64_t>(1, kRunVectors / vectors);
    for (int64_t first = 0; first < count; first += batch) {
      const auto strips = static_cast<int32_t>(std::min(batch, count - first));
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const int64_t begin = vectors * piece / pieces, end = vectors * (piece + 1) / pieces;
        run_piece(planes + first * config_.planes_numel() + begin * kernels_.lanes,
                  packed + first * config_.target_numel() + begin * kernels_.lanes, strips, end - begin, to);
      }
    }
  }

  void run_piece(const S* planes, const S* packed, int32_t strips, int64_t vectors, S* to) const {
    const int64_t taps = int64_t(offsets_.size());
    const int64_t col_blocks = (taps + kernels_.dot_cols - 1) / kernels_.dot_cols;
    for (int32_t m = 0; m < config_.target_channels; m += kernels_.dot_rows) {
      const int32_t dot_rows = std::min(kernels_.dot_rows, config_.target_channels - m);
      for (int64_t block = 0; block < col_blocks; ++block) {
        const int64_t d = taps * block / col_blocks, cols = taps * (block + 1) / col_blocks - d;
        kernels_.dots[dot_rows - 1][cols - 1]({strips, vectors, packed + m * config_.target_step, config_.target_step,
                                               config_.target_numel(), planes, config_.planes_numel(),
                                               offsets_.data() + d, to + m * taps + d, taps});
      }
    }
  }

  void finish(int64_t k) const {
    const DirectFilterView view(p_);
    T* const w = static_cast<T*>(b_.w) + k * view.k;
    int64_t tap = 0;
    for (int32_t c = 0; c < config_.source_channels; ++c)
      for (int32_t r = 0; r < p_.r; ++r)
        for (int32_t s = 0; s < p_.s; ++s, ++tap) {
          S sum = sums(0, k)[tap];
          for (int32_t part = 1; part < parts_; ++part) sum += sums(part, k)[tap];
          w[c * view.c + r * view.r + s * view.s] = Element<T>::store(sum);
        }
  }

  const ConvProblem& p_;
  const DirectConfig& config_;
  const DirectKernels<S>& kernels_;
  const DirectCopies<T> copies_;
  const ConvBuffers b_;
  const std::vector<int32_t> offsets_;
  const int64_t strips_;
  const int32_t parts_;
  const int64_t batch_;  // small images per call: their sums stay in registers
};

}  // namespace

int64_t direct_weight_grad_workspace(const ConvProblem& p, const Device& device) {
  const DirectSizes sizes(p, device.threads);
  const int64_t parts = parts_of(sizes, device.threads, int64_t{p.n} * sizes.strips);
  return parts * p.weight_numel() * std::max<int64_t>(4, element_size(p.dtype));
}

void direct_weight_grad(const ConvProblem& p, const Device& device, const DirectConfig& config,
                        const ConvBuffers& buffers) {
  dispatch(p.dtype, [&](auto element) { WeightGrad<decltype(element)>(p, device, config, buffers).run(); });
}

}  // namespace reformer
