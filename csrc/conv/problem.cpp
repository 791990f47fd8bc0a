#include "problem.h"

#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

namespace reformer {
namespace {

constexpr std::array<const char*, 5> kDTypes = {"FP32", "FP64", "FP16", "BF16", "INT8"};
constexpr std::string_view kDirections = "FBW";
constexpr std::array<const char*, 3> kTransposes = {"tn", "nn", "nt"};  // by Direction

[[noreturn]] void fail(std::string_view key, const std::string& why) {
  throw std::invalid_argument("\"" + std::string(key) + "\" is not a convolution problem: " + why);
}

[[noreturn]] void malformed(std::string_view key, const std::string& why) {
  fail(key, why + " (a key is such as 64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP32-F, or of a matrix product " +
                "gemm-8192-3072-768-tn-BF16)");
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

// Reads the tokens of a key one by one; errors name the wrong token.
class Reader {
 public:
  Reader(std::string_view key, std::string_view body) : key_(key), tokens_(split(body, '-')) {}

  std::string_view next(const char* what) {
    if (at_ == tokens_.size()) malformed(key_, std::string("it ends before ") + what);
    return tokens_[at_++];
  }
  std::string_view peek() const { return at_ < tokens_.size() ? tokens_[at_] : std::string_view{}; }
  bool done() const { return at_ == tokens_.size(); }

  int32_t number(const char* what) { return number(next(what), what); }

  // Two numbers joined by x, height first.
  void pair(const char* what, int32_t& first, int32_t& second) {
    const auto parts = split(next(what), 'x');
    if (parts.size() != 2) malformed(key_, std::string(what) + " must be HxW (2-D problems only)");
    first = number(parts[0], what);
    second = number(parts[1], what);
  }

 private:
  int32_t number(std::string_view token, const char* what) {
    int32_t value = 0;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
    const bool canonical = token.size() == 1 || (!token.empty() && token[0] != '0');
    if (error != std::errc() || end != token.data() + token.size() || value < 0 || !canonical)
      malformed(key_, std::string(what) + " must be a number, got \"" + std::string(token) + "\"");
    return value;
  }

  std::string_view key_;
  std::vector<std::string_view> tokens_;
  size_t at_ = 0;
};

Layout parse_layout(std::string_view key, std::string_view token) {
  if (token == "NCHW") return Layout::nchw;
  if (token == "NHWC") return Layout::nhwc;
  malformed(key, "the layout is \"" + std::string(token) + "\", not NCHW or NHWC");
}

template <class Names>
size_t index_of(const Names& names, std::string_view token) {
  size_t i = 0;
  while (i < names.size() && token != names[i]) ++i;
  return i;
}

// Why these members don't describe a convolution; empty if they do.
std::string inconsistency(const ConvProblem& p) {
  if (p.direction > Direction::weight_grad || p.dtype > DType::int8 || p.layout > Layout::nhwc || p.bias > 1)
    return "its direction, data type, layout or bias flag is unknown";
  for (int32_t positive :
       {p.n, p.c, p.h, p.w, p.k, p.r, p.s, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w, p.groups})
    if (positive < 1) return "every size, stride, dilation and group count must be at least 1";
  if (p.pad_h < 0 || p.pad_w < 0) return "the padding must not be negative";
  if (p.c % p.groups || p.k % p.groups)
    return "the channels (" + std::to_string(p.c) + " in, " + std::to_string(p.k) + " out) are not divisible by the " +
           std::to_string(p.groups) + " groups";
  const auto fits = [](int64_t size, int64_t filter, int64_t pad, int64_t dilation) {
    return size + 2 * pad >= dilation * (filter - 1) + 1;
  };
  if (!fits(p.h, p.r, p.pad_h, p.dilation_h) || !fits(p.w, p.s, p.pad_w, p.dilation_w))
    return "the filter is larger than the padded input";
  if (p.bias && p.direction != Direction::forward) return "only the forward direction has a bias";
  return {};
}

DType parse_dtype(std::string_view key, std::string_view token) {
  const size_t index = index_of(kDTypes, token);
  if (index == kDTypes.size()) malformed(key, "the data type \"" + std::string(token) + "\" is unknown");
  return static_cast<DType>(index);
}

// The rows and the columns of what a matrix product computes, and the length of its sums, as members of the problem.
std::array<int32_t ConvProblem::*, 3> product_sizes(Direction direction) {
  switch (direction) {
    case Direction::forward: return {&ConvProblem::h, &ConvProblem::k, &ConvProblem::c};
    case Direction::input_grad: return {&ConvProblem::h, &ConvProblem::c, &ConvProblem::k};
    case Direction::weight_grad: break;
  }
  return {&ConvProblem::k, &ConvProblem::c, &ConvProblem::h};
}

ConvProblem parse_product(std::string_view key) {
  Reader in(key, key.substr(5));
  std::array<int32_t, 3> sizes{};
  for (size_t i = 0; i < 3; ++i) sizes[i] = in.number(std::array{"the rows", "the columns", "the depth"}[i]);
  const auto transposes = in.next("tn, nn or nt");
  ConvProblem p;
  const size_t direction = index_of(kTransposes, transposes);
  if (direction == kTransposes.size())
    malformed(key, "the factors lie as \"" + std::string(transposes) + "\", not tn, nn or nt");
  p.direction = static_cast<Direction>(direction);
  for (size_t i = 0; i < 3; ++i) p.*product_sizes(p.direction)[i] = sizes[i];
  p.layout = Layout::nhwc;
  p.dtype = parse_dtype(key, in.next("the data type"));
  if (!in.done()) malformed(key, "there is text after the data type");
  if (const std::string why = inconsistency(p); !why.empty()) fail(key, why);
  return p;
}

}  // namespace

ConvProblem ConvProblem::parse(std::string_view key) {
  if (key.substr(0, 5) == "gemm-") return parse_product(key);
  ConvProblem p;
  std::string_view body = key;
  const size_t suffix = key.find("_g");
  if (suffix != std::string_view::npos) {
    body = key.substr(0, suffix);
    Reader groups(key, key.substr(suffix + 2));
    p.groups = groups.number("the group count");
    if (!groups.done() || p.groups < 2) malformed(key, "the suffix must be _g and the group count, at least 2");
  }
  Reader in(key, body);
  int32_t out_h, out_w;
  p.c = in.number("the channels");
  p.h = in.number("the height");
  p.w = in.number("the width");
  in.pair("the filter", p.r, p.s);
  p.k = in.number("the output channels");
  out_h = in.number("the output height");
  out_w = in.number("the output width");
  p.n = in.number("the batch");
  in.pair("the padding", p.pad_h, p.pad_w);
  in.pair("the stride", p.stride_h, p.stride_w);
  in.pair("the dilation", p.dilation_h, p.dilation_w);
  const int32_t bias = in.number("the bias flag");
  if (bias > 1) malformed(key, "the bias flag must be 0 or 1");
  p.bias = static_cast<uint8_t>(bias);
  p.layout = parse_layout(key, in.next("the layout"));
  if (in.peek() == "NCHW" || in.peek() == "NHWC") {  // one layout each for input, filter and output
    for (const char* which : {"the filter layout", "the output layout"})
      if (parse_layout(key, in.next(which)) != p.layout) malformed(key, "mixed layouts are not supported");
  }
  p.dtype = parse_dtype(key, in.next("the data type"));
  const auto direction = in.next("the direction");
  if (direction.size() != 1 || kDirections.find(direction[0]) == std::string_view::npos)
    malformed(key, "the direction is \"" + std::string(direction) + "\", not F, B or W");
  p.direction = static_cast<Direction>(kDirections.find(direction[0]));
  if (!in.done()) malformed(key, "there is text after the direction");

  if (p.direction != Direction::forward) {  // gradients name the output's side first
    std::swap(p.c, p.k);
    std::swap(p.h, out_h);
    std::swap(p.w, out_w);
  }
  if (const std::string why = inconsistency(p); !why.empty()) fail(key, why);
  if (out_h != p.out_h() || out_w != p.out_w())
    fail(key, "the output is " + std::to_string(out_h) + "x" + std::to_string(out_w) + ", but the geometry gives " +
                  std::to_string(p.out_h()) + "x" + std::to_string(p.out_w()));
  return p;
}

void ConvProblem::check() const {
  if (const std::string why = inconsistency(*this); !why.empty())
    throw std::invalid_argument("this is not a convolution problem: " + why);
}

bool ConvProblem::fits_32_bits() const {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  constexpr int64_t beyond = 512;  // positions that windows may reach past the last one, to fill a tile
  const auto reach = [](int64_t padded, int64_t filter, int64_t stride, int64_t dilation) {
    return padded + filter * dilation + beyond * stride;
  };
  const int64_t rows = h + int64_t{2} * pad_h, columns = w + int64_t{2} * pad_w;
  return reach(rows, r, stride_h, dilation_h) <= most && reach(columns, s, stride_w, dilation_w) <= most &&
         rows * columns <= most;
}

std::string ConvProblem::str() const {
  const auto join = [](char separator, std::initializer_list<int64_t> numbers) {
    std::string text;
    for (int64_t number : numbers) {
      if (!text.empty()) text += separator;
      text += std::to_string(number);
    }
    return text;
  };
  if (is_product()) {
    const auto [rows, columns, depth] = product_sizes(direction);
    return "gemm-" + join('-', {this->*rows, this->*columns, this->*depth}) + "-" + kTransposes[size_t(direction)] +
           "-" + kDTypes[size_t(dtype)];
  }
  const std::string in_side = join('-', {c, h, w}), out_side = join('-', {k, out_h(), out_w()});
  const bool forward = direction == Direction::forward;
  std::string text = (forward ? in_side : out_side) + "-" + join('x', {r, s}) + "-" + (forward ? out_side : in_side) +
                     "-" + std::to_string(n) + "-" + join('x', {pad_h, pad_w}) + "-" + join('x', {stride_h, stride_w}) +
                     "-" + join('x', {dilation_h, dilation_w}) + "-" + std::to_string(bias) + "-" +
                     (layout == Layout::nchw ? "NCHW" : "NHWC-NHWC-NHWC") + "-" + kDTypes[size_t(dtype)] + "-" +
                     kDirections[size_t(direction)];
  if (groups > 1) text += "_g" + std::to_string(groups);
  return text;
}

Kind ConvProblem::kind() const {
  if (groups > 1) return is_depthwise() ? Kind::depthwise : Kind::grouped;
  if (c <= 4) return Kind::stem;
  if (r == 1 && s == 1) return Kind::pointwise;
  return r == 3 && s == 3 ? Kind::filter_3x3 : Kind::other;
}

bool operator==(const ConvProblem& a, const ConvProblem& b) { return std::memcmp(&a, &b, sizeof(ConvProblem)) == 0; }

// A multiply-and-fold over 12-byte steps. A hit in the decision cache takes tens of nanoseconds; this is at most a
// fifth of that.
uint64_t hash(const ConvProblem& problem) {
  const char* bytes = reinterpret_cast<const char*>(&problem);
  uint64_t state = 0x9e3779b97f4a7c15u;
  for (size_t at = 0; at < sizeof(ConvProblem); at += 12) {
    uint64_t word;
    uint32_t rest;
    std::memcpy(&word, bytes + at, sizeof word);
    std::memcpy(&rest, bytes + at + sizeof word, sizeof rest);
    state = (state ^ word) * 0xff51afd7ed558ccdu;
    state = (state ^ (state >> 32) ^ rest) * 0xc4ceb9fe1a85ec53u;
  }
  return state ^ (state >> 29);
}

const char* name(Kind kind) {
  constexpr std::array<const char*, 6> names = {"1x1", "depthwise", "grouped", "stem", "3x3", "other"};
  return names[size_t(kind)];
}

const char* name(Direction direction) {
  constexpr std::array<const char*, 3> names = {"forward", "input_grad", "weight_grad"};
  return names[size_t(direction)];
}

}  // namespace reformer
