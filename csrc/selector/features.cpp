#include "features.h"

#include <algorithm>
#include <cmath>

#include "hip/devices.h"

namespace reformer {
namespace {

// Scales: their knots, and thus how many rows of the embedding matrix a number takes.
constexpr int kSmall = 8;         // knots 0, 1, ... 8 of a scale of sizes
constexpr int kSizeOctaves = 11;  // from 8 to 16384, beyond which all sizes are alike
constexpr int kSizeKnots = kSmall + 1 + 4 * kSizeOctaves;
constexpr int kProductKnots = 44;           // 1, 2, 4, ... 2^43
constexpr int kSmallKnots = 12;             // 0, 1, ... 11
constexpr int kAlignments = 7;              // divisible by 1, 2, 4, ... 64
constexpr int kTile = 256, kTileStep = 16;  // the largest tile of a matrix product, and the resolution of its edge
constexpr int kTileKnots = 4 * 14;          // quarters of an octave: up to 2^14 tiles
constexpr int kContexts = 3 * 5 * 2, kKinds = 6;
constexpr int kWaveKnots = 65, kWaveSteps = 8;  // eighths of waves of tiles, up to 8 waves
constexpr int kSlowerKnots = 33,
              kSlowerStep = 2;  // logits differ mostly by 32 times the logarithm of the ratio of times
constexpr int kNames = 251;     // solvers are hashed to so many numbers; a prime
// Tokens that also get a program's terms.
constexpr int kOfFilter = 5, kOfGroups = 7, kOfInput = 12, kOfWeight = 13, kOfOutput = 14;

// Adds terms to tokens in the order of the calls. Every problem adds the same terms in the same order, so that each
// term's rows begin where those of the previous term end.
class Writer {
 public:
  void token() { token(token_ + 1); }
  void token(int number) {
    token_ = number;
    term_ = used_[size_t(number)];
  }
  void one_of(int64_t value, int32_t count) {
    put(first_ + int32_t(value), 1);
    first_ += count;
  }
  // Interpolates between the knots 0, 1, ... `knots` - 1.
  void between(double position, int32_t knots) {
    position = std::clamp(position, 0.0, knots - 1.0);
    const int32_t low = std::min(int32_t(position), knots - 2);
    put(first_ + low, float(1 - (position - low)));
    put(first_ + low + 1, float(position - low));
    first_ += knots;
  }
  void size(int64_t x) { between(size_position(x), kSizeKnots); }
  void product(double x) { between(std::log2(std::max(x, 1.0)), kProductKnots); }
  void small(int64_t x) { one_of(std::min<int64_t>(x, kSmallKnots - 1), kSmallKnots); }
  void alignment(int64_t x) {
    int32_t power = 0;
    while (power < kAlignments - 1 && x > 0 && x % (int64_t{2} << power) == 0) ++power;
    one_of(power, kAlignments);
  }
  // How full the last tile of a matrix product is, for all sizes of tiles.
  void edge(int64_t x) { one_of((x % kTile + kTileStep - 1) / kTileStep, kTile / kTileStep + 1); }
  // How often tiles fill the GPU: the last time may be in part.
  void waves(double x) { between(kWaveSteps * x, kWaveKnots); }
  // A number of tiles: how evenly they are distributed over the processors.
  void tiles(double x) { between(4 * std::log2(std::max(x, 1.0)), kTileKnots); }

  Features result{};
  int32_t rows() const { return first_; }

 private:
  // Piecewise linear between the knots of an octave: 8, 10, 12, 14, 16, 20, ...
  static double size_position(int64_t x) {
    if (x <= kSmall) return double(x);
    int octave = 0;
    while (x >> octave >= 2 * kSmall) ++octave;
    return kSmall + 4 * octave + 4 * (double(x) / double(int64_t{kSmall} << octave) - 1);
  }
  void put(int32_t row, float weight) {
    result.tokens[size_t(token_)].at(size_t(term_++)) = {row, weight};
    used_[size_t(token_)] = term_;
  }

  int token_ = -1, term_ = 0;
  std::array<int, kTokens> used_{};  // number of terms of each token
  int32_t first_ = 0;
};

Writer write(const ConvProblem& p, const Device& device) {
  const int64_t pixels = int64_t{p.n} * p.out_h() * p.out_w(), taps = int64_t{p.group_c()} * p.r * p.s;
  // The problem as a matrix product: rows and columns of one group's result, and the length of its sums.
  int64_t rows = p.group_k(), cols = pixels, depth = taps;
  if (p.direction == Direction::input_grad) {
    rows = p.group_c();
    cols = int64_t{p.n} * p.h * p.w;
    depth = int64_t{p.group_k()} * p.r * p.s;
  } else if (p.direction == Direction::weight_grad) {
    cols = taps;
    depth = pixels;
  }
  const double bytes = double(p.input_numel() + p.weight_numel() + p.output_numel()) * double(element_size(p.dtype));

  Writer w;
  w.token();  // the context; its position is also that of the output
  w.one_of((int64_t(p.direction) * 5 + int64_t(p.dtype)) * 2 + int64_t(p.layout), kContexts);
  w.one_of(int64_t(p.kind()), kKinds);
  w.product(device.threads);
  w.one_of(0, 2);  // for a bias, always 0: no database has timings with one, so its row would never be trained
  w.token();       // batch
  w.size(p.n);
  w.alignment(p.n);
  w.token();  // input channels per group
  w.size(p.group_c());
  w.alignment(p.group_c());
  w.token();  // height and width of the input
  w.size(p.h);
  w.size(p.w);
  w.alignment(p.h);
  w.alignment(p.w);
  w.token();  // output channels per group
  w.size(p.group_k());
  w.alignment(p.group_k());
  w.token();  // filter (kOfFilter)
  w.small(p.r);
  w.small(p.s);
  w.token();  // padding, stride and dilation
  w.small(p.pad_h);
  w.small(p.pad_w);
  w.small(p.stride_h);
  w.small(p.stride_w);
  w.small(p.dilation_h);
  w.small(p.dilation_w);
  w.token();  // groups (kOfGroups)
  w.size(p.groups);
  w.token();  // height and width of the output
  w.size(p.out_h());
  w.size(p.out_w());
  w.alignment(p.out_h());
  w.alignment(p.out_w());
  w.token();
  w.product(double(rows));
  w.alignment(rows);
  w.edge(rows);
  w.token();
  w.product(double(cols));
  w.alignment(cols);
  w.edge(cols);
  w.token();
  w.product(double(depth));
  w.alignment(depth);
  w.edge(depth);
  w.token();  // (kOfInput)
  w.product(double(p.input_numel()));
  w.token();  // (kOfWeight)
  w.product(double(p.weight_numel()));
  w.token();  // (kOfOutput)
  w.product(double(p.output_numel()));
  w.token();  // work, and work per byte
  w.product(p.flops());
  w.product(16 * p.flops() / bytes);
  const auto tiles = [](int64_t x) { return double((x + kTile / 2 - 1) / (kTile / 2)); };
  w.tiles(double(p.groups) * tiles(rows) * tiles(cols));
  return w;
}

// A solver's number (FNV-1a), which does not depend on which other solvers exist.
int32_t number_of(const char* name) {
  uint32_t hash = 2166136261u;
  for (; *name; ++name) hash = (hash ^ uint8_t(*name)) * 16777619u;
  return int32_t(hash % kNames);
}

Writer write(const ConvProblem& p, const Device& device, const ProgramTraits& program, const FusionKernels& kernels) {
  const double elements = double(p.output_numel());
  const double moved = double(program.read + program.written) + elements * double(element_size(p.dtype));
  Writer w = write(p, device);
  w.token(kOfFilter);
  w.one_of(number_of(kernels.fused), kNames);
  w.one_of(number_of(kernels.separate), kNames);
  w.token(kOfGroups);
  w.small(program.fulls);
  w.small(program.channels);
  w.small(program.outputs);
  w.small(program.reductions);
  w.token(kOfInput);
  w.product(double(program.read));
  w.product(double(program.written));
  w.token(kOfWeight);
  w.size(program.operations);
  w.between(kernels.slower / kSlowerStep, kSlowerKnots);
  w.token(kOfOutput);
  w.small(program.functions);
  w.one_of(program.is_random, 2);
  w.product(16 * p.flops() / moved);  // the convolution's work per byte that a separate kernel for the program moves
  return w;
}

// A matrix product and the program in its kernel or after it.
Writer write(const ConvProblem& p, const Device& device, const ProgramTraits& program) {
  const int64_t rows = p.direction == Direction::weight_grad ? p.k : p.h;
  const int64_t columns = p.direction == Direction::forward ? p.k : p.c;
  const int64_t depth = p.direction == Direction::forward ? p.c : p.direction == Direction::input_grad ? p.k : p.h;
  const double size = double(element_size(p.dtype)), result = double(rows) * double(columns) * size;
  const double gb_per_s = device.gpu && device.gpu->gb_per_s > 0 ? device.gpu->gb_per_s : 1000;
  const double tflops = device.gpu && device.gpu->tflops > 0 ? device.gpu->tflops : 100;
  const double units = device.gpu && device.gpu->units ? device.gpu->units : 100;
  const auto us_of = [&](double bytes) { return bytes / (gb_per_s * 1e3); };
  const double operands = us_of(double(rows + columns) * double(depth) * size);
  const double moved = operands + us_of(double(program.read + program.written));
  const double arithmetic = p.flops() / (tflops * 1e6);
  const double slots = program.operations + 12 * program.functions + 2 * (program.fulls + program.outputs) + 1;
  constexpr double kPerUs = 16;  // so that quarters of octaves begin at a sixteenth of a microsecond

  Writer w;
  w.token();  // the context; its position is also that of the output
  w.one_of(int64_t(p.direction) * 5 + int64_t(p.dtype), kContexts / 2);
  w.one_of(program.is_random, 2);
  w.token();
  w.product(double(rows));
  w.alignment(rows);
  w.edge(rows);
  w.token();
  w.size(columns);
  w.product(double(columns));
  w.alignment(columns);
  w.edge(columns);
  w.token();
  w.size(depth);
  w.product(double(depth));
  w.alignment(depth);
  w.edge(depth);
  for (const int width : {64, 128, 192, 256}) {  // how tiles of 128 rows and so many columns fill the GPU
    const double tiles = double((rows + 127) / 128) * double((columns + width - 1) / width);
    w.token();
    w.waves(tiles / units);
    w.tiles(tiles);
  }
  w.token();
  w.tiles(kPerUs * operands);
  w.tiles(kPerUs * us_of(result));
  w.token();
  w.tiles(kPerUs * arithmetic);
  w.token();
  w.tiles(kPerUs * us_of(double(program.read)));
  w.tiles(kPerUs * us_of(double(program.written)));
  w.token();
  w.tiles(kPerUs * arithmetic / (moved + us_of(result)));
  w.tiles(kPerUs * arithmetic / (operands + us_of(result)));
  w.token();
  w.small(program.fulls);
  w.small(program.channels);
  w.small(program.outputs);
  w.small(program.reductions);
  w.token();
  w.size(program.operations);
  w.small(program.functions);
  w.token();
  w.tiles(16 * double(depth) / slots);  // is the program hidden behind the next tile's product?
  w.tiles(kPerUs * double(rows) * double(columns) * slots / (units * 2e5));
  w.token();
  w.product(gb_per_s);
  w.product(tflops);
  return w;
}

}  // namespace

Features features(const ConvProblem& problem, const Device& device) { return write(problem, device).result; }

int32_t feature_rows() {
  static const int32_t rows = write(ConvProblem{}, Device{}).rows();
  return rows;
}

Features epilogue_features(const ConvProblem& problem, const Device& device, const ProgramTraits& program,
                           const FusionKernels& kernels) {
  return write(problem, device, program, kernels).result;
}

int32_t epilogue_feature_rows() {
  static const int32_t rows = write(ConvProblem{}, Device{}, ProgramTraits{}, FusionKernels{}).rows();
  return rows;
}

Features product_features(const ConvProblem& problem, const Device& device, const ProgramTraits& program) {
  return write(problem, device, program).result;
}

int32_t product_feature_rows() {
  static const int32_t rows = write(ConvProblem{}, Device{}, ProgramTraits{}).rows();
  return rows;
}

}  // namespace reformer
