#include "problem.h"

#include <sstream>

#include "calls.h"

namespace stub {
namespace {

const char* type_name(int type) {
  switch (type) {
    case kHalf: return "FP16";
    case kFloat: return "FP32";
    case kBFloat16: return "BF16";
    case kDouble: return "FP64";
    default: misuse("a convolution of integers");
  }
}

void expect(int64_t is, int64_t wanted, const char* what) {
  if (is == wanted) return;
  misuse(std::string("descriptors that make no convolution, or in another order than the direction's: ") + what +
         " is " + std::to_string(is) + ", not " + std::to_string(wanted));
}

int64_t windows(int64_t size, int64_t filter, int pad, int stride, int dilation) {
  return (size + 2 * pad - dilation * (filter - 1) - 1) / stride + 1;
}

}  // namespace

int64_t bytes_of(int type) {
  switch (type) {
    case kHalf:
    case kBFloat16: return 2;
    case kFloat: return 4;
    case kDouble: return 8;
    default: misuse("a convolution of integers");
  }
}

Problem problem_of(Direction direction, const Tensor& x, const Tensor& w, const Convolution& convolution,
                   const Tensor& y) {
  if (!convolution.is_set) misuse("a convolution descriptor that was never initialised");
  const Layout layout = x.layout();
  if (w.layout() != layout || y.layout() != layout) misuse("more than one layout");
  if (w.type != x.type || y.type != x.type) misuse("more than one data type");
  type_name(x.type);
  const auto [n, c, h, width] = x.lens;
  const auto [k, c_of_group, r, s] = w.lens;
  expect(c, c_of_group * convolution.groups, "the channels of x");
  expect(k % convolution.groups, 0, "the rest of the output channels by groups");
  expect(y.lens[0], n, "the batch of y");
  expect(y.lens[1], k, "the channels of y");
  expect(y.lens[2], windows(h, r, convolution.pad[0], convolution.stride[0], convolution.dilation[0]),
         "the height of y");
  expect(y.lens[3], windows(width, s, convolution.pad[1], convolution.stride[1], convolution.dilation[1]),
         "the width of y");
  const auto attribute = [&](int which, int otherwise) {
    const auto found = convolution.attributes.find(which);
    return found == convolution.attributes.end() ? otherwise : found->second;
  };
  return {direction,
          x.type,
          layout,
          n,
          c,
          h,
          width,
          k,
          r,
          s,
          y.lens[2],
          y.lens[3],
          convolution.groups,
          convolution.pad,
          convolution.stride,
          convolution.dilation,
          attribute(kDeterministic, 0) != 0,
          attribute(kFp16Alternative, -1)};
}

std::string Problem::key() const {
  const auto pair = [](const std::array<int, 2>& sizes) {
    return std::to_string(sizes[0]) + "x" + std::to_string(sizes[1]);
  };
  std::ostringstream text;
  text << in_channels() << '-' << in_height() << '-' << in_width() << '-' << r << 'x' << s << '-' << out_channels()
       << '-' << out_height() << '-' << out_width() << '-' << n << '-' << pair(pad) << '-' << pair(stride) << '-'
       << pair(dilation) << "-0-" << (layout == kNchw ? "NCHW" : "NHWC-NHWC-NHWC") << '-' << type_name(type) << '-'
       << "FBW"[static_cast<int>(direction)];
  if (groups > 1) text << "_g" << groups;
  return text.str();
}

}  // namespace stub
