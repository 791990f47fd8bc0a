#include "winograd.h"

#include "cpu/gemm/kernel.h"
#include "cpu/parallel.h"
#include "transforms.h"

namespace reformer {
namespace {

constexpr int64_t kMaxBlock = 56;  // tiles that a thread carries through the transforms and products at once
constexpr int64_t kMaxSharedTiles = 128;
constexpr int64_t kLine = 16;  // floats per cache line: keeps planes from mapping to the same cache sets

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// With few tiles and many filters it is cheaper to share the transformed input among all threads, each of which
// transforms its own panels of filters and uses them while they are in its cache, than to write all transformed filters
// to memory first.
bool shares_input(const WinogradConfig& p) { return p.tiles() <= kMaxSharedTiles; }

// Rows of the products held at once.
int64_t block_rows(const WinogradConfig& p, const Device& device) {
  return shares_input(p) ? p.tiles() : std::min(kMaxBlock, ceil_div(p.tiles(), device.threads));
}

struct Workspace {
  int64_t input, product, filter;  // floats of each piece
  int64_t inputs, products, filters;

  Workspace(const WinogradConfig& p, const Device& device) {
    const int64_t rows = block_rows(p, device), points = p.tile.points();
    input = p.chunks * points * (rows * p.chunk + kLine);
    product = points * (rows * p.panel_cols + kLine);
    filter = p.filter_block();
    inputs = shares_input(p) ? 1 : device.threads;
    products = device.threads;
    filters = shares_input(p) ? device.threads : int64_t{p.panels} * p.chunks;
  }
  int64_t floats() const { return input * inputs + product * products + filter * filters; }
};

class Winograd {
 public:
  Winograd(const WinogradConfig& config, const Device& device, float* workspace)
      : p_(config),
        threads_(device.threads),
        rows_(block_rows(config, device)),
        size_(config, device),
        transforms_(winograd_transforms(config.tile, device.isa)),
        kernels_(gemm_kernels<float>(device.isa, GemmSum::cascade)),
        inputs_(workspace),
        products_(inputs_ + size_.input * size_.inputs),
        filters_(products_ + size_.product * size_.products) {}

  void run() const {
    if (shares_input(p_))
      share_input();
    else
      share_filters();
  }

 private:
  // Calls body(thread, begin, end) for equal parts of [0, count), one per thread.
  template <class Body>
  void split(int64_t count, const Body& body) const {
    parallel_for(threads_, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) body(i, count * i / threads_, count * (i + 1) / threads_);
    });
  }

  void share_filters() const {
    parallel_for(int64_t{p_.panels} * p_.chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        transforms_.filter(p_, int(i / p_.chunks), int(i % p_.chunks), filters_ + i * size_.filter);
    });
    split(p_.tiles(), [&](int64_t thread, int64_t begin, int64_t end) {
      float *input = inputs_ + thread * size_.input, *product = products_ + thread * size_.product;
      const int64_t blocks = ceil_div(end - begin, rows_);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t first = begin + (end - begin) * block / blocks;
        const int64_t last = begin + (end - begin) * (block + 1) / blocks;
        for (int chunk = 0; chunk < p_.chunks; ++chunk)
          transforms_.input(p_, chunk, first, last, input_planes(input, chunk));
        for (int panel = 0; panel < p_.panels; ++panel) {
          const float* filter = filters_ + panel * p_.chunks * size_.filter;
          for (int point = 0; point < p_.tile.points(); ++point)
            for (int chunk = 0; chunk < p_.chunks; ++chunk)
              multiply(point, panel, chunk, last - first, input, filter + chunk * size_.filter, product);
          transforms_.output(p_, panel, first, last, product_planes(product));
        }
      }
    });
  }

  void share_input() const {
    split(p_.tiles() * p_.chunks, [&](int64_t, int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t chunk = begin / rows_, first = begin % rows_, last = std::min(rows_, first + end - begin);
        WinogradPlanes<float> to = input_planes(inputs_, int(chunk));
        to.data += first * to.row;
        transforms_.input(p_, int(chunk), first, last, to);
        begin += last - first;
      }
    });
    split(p_.panels, [&](int64_t thread, int64_t begin, int64_t end) {
      float *filter = filters_ + thread * size_.filter, *product = products_ + thread * size_.product;
      for (int panel = int(begin); panel < end; ++panel) {
        for (int chunk = 0; chunk < p_.chunks; ++chunk) {
          transforms_.filter(p_, panel, chunk, filter);
          for (int point = 0; point < p_.tile.points(); ++point)
            multiply(point, panel, chunk, rows_, inputs_, filter, product);
        }
        transforms_.output(p_, panel, 0, rows_, product_planes(product));
      }
    });
  }

  int64_t input_plane() const { return rows_ * p_.chunk + kLine; }
  int64_t product_plane() const { return rows_ * p_.panel_cols + kLine; }
  WinogradPlanes<float> input_planes(float* input, int chunk) const {
    return {input + chunk * p_.tile.points() * input_plane(), input_plane(), p_.chunk};
  }
  WinogradPlanes<const float> product_planes(const float* product) const {
    return {product, product_plane(), p_.panel_cols};
  }

  // Adds one chunk's part of the product of a point.
  void multiply(int point, int panel, int chunk, int64_t rows, const float* input, const float* filter,
                float* product) const {
    GemmTile<float> tile{};
    tile.depth = p_.chunk_depth(chunk);
    tile.a_row = p_.chunk;
    tile.a_step = 1;
    tile.b = filter + int64_t{point} * p_.chunk * p_.panel_cols;
    tile.b_step = p_.panel_cols;
    tile.c_row = p_.panel_cols;
    tile.cols = int32_t(round_up(p_.panel_width(panel), kernels_.lanes));
    tile.accumulate = chunk > 0;
    input += (chunk * p_.tile.points() + point) * input_plane();
    product += point * product_plane();
    const int64_t tiles = ceil_div(rows, kernels_.rows);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t first = rows * i / tiles, last = rows * (i + 1) / tiles;
      tile.a = input + first * tile.a_row;
      tile.c = product + first * tile.c_row;
      kernels_.run(int32_t(last - first), tile);
    }
  }

  const WinogradConfig& p_;
  const int64_t threads_, rows_;
  const Workspace size_;
  const WinogradTransforms transforms_;
  const GemmKernels<float>& kernels_;
  float *const inputs_, *const products_, *const filters_;
};

// Splits channels into chunks, and filters into panels, of whole vectors and as equal as possible; no panel is wider
// than the register tile.
void cut_channels(WinogradConfig& config, const Device& device) {
  const GemmColumns widest = gemm_columns(device.isa);
  config.chunks = int32_t(ceil_div(config.c, kMaxWinogradChunk));
  config.chunk = int32_t(round_up(ceil_div(config.c, config.chunks), widest.lanes));
  config.chunks = int32_t(ceil_div(config.c, config.chunk));

  const int64_t vectors = ceil_div(config.k, widest.lanes);
  int64_t panels = ceil_div(vectors, widest.vectors);
  if (shares_input(config)) panels = std::min(vectors, round_up(panels, device.threads));
  const int64_t width = ceil_div(vectors, panels);
  config.panel_cols = int32_t(width * widest.lanes);
  config.panels = int32_t(ceil_div(vectors, width));
}

}  // namespace

WinogradConfig winograd_config(const ConvProblem& p, const Device& device, WinogradTile tile) {
  const bool forward = p.direction == Direction::forward, nchw = p.layout == Layout::nchw;
  WinogradConfig config{};
  config.layout = p.layout;
  config.n = p.n;
  config.filter_tap = nchw ? 1 : p.c;
  const int64_t filter_k = int64_t{9} * p.c, filter_c = nchw ? 9 : 1;
  if (forward) {
    config.c = p.c, config.h = p.h, config.w = p.w;
    config.k = p.k, config.out_h = p.out_h(), config.out_w = p.out_w();
    config.pad_h = p.pad_h, config.pad_w = p.pad_w;
    config.filter_k = filter_k, config.filter_c = filter_c;
  } else {
    config.c = p.k, config.h = p.out_h(), config.w = p.out_w();
    config.k = p.c, config.out_h = p.h, config.out_w = p.w;
    config.pad_h = 2 - p.pad_h, config.pad_w = 2 - p.pad_w;
    config.filter_k = filter_c, config.filter_c = filter_k;
    config.rotated = true;
  }
  config.tile = tile;
  config.tiles_down = ceil_div(config.out_h, tile.h);
  config.tiles_across = ceil_div(config.out_w, tile.w);
  cut_channels(config, device);
  return config;
}

WinogradConfig bound(WinogradConfig config, const ConvBuffers& b) {
  const bool forward = !config.rotated;
  config.in = static_cast<const float*>(forward ? b.x : b.y);
  config.out = static_cast<float*>(forward ? b.y : b.x);
  config.filter = static_cast<const float*>(b.w);
  config.bias = static_cast<const float*>(b.bias);
  return config;
}

int64_t winograd_workspace_bytes(const WinogradConfig& config, const Device& device) {
  return Workspace(config, device).floats() * int64_t{sizeof(float)};
}

void run_winograd(const WinogradConfig& config, const Device& device, void* workspace) {
  Winograd(config, device, static_cast<float*>(workspace)).run();
}

}  // namespace reformer
