#include "rows.h"

#include <numeric>

namespace reformer {
namespace {

using Shape = std::vector<int64_t>;

Shape with(Shape sizes, int64_t last) {
  sizes.push_back(last);
  return sizes;
}

Shape moments(Shape sizes) {
  sizes.insert(sizes.begin(), 2);
  return sizes;
}

}  // namespace

// As [N, H, W] with few, large images: for as many images of one pixel each, cuDNN's weight gradients are up to seven
// times as slow.
Rows::Rows(at::IntArrayRef size) : size_(size.vec()) {
  const int64_t count = std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<>());
  pixels_ = count == 0 ? Shape{0, 1, 1} : size.size() == 3 ? size_ : Shape{1, count, 1};
}

at::Tensor Rows::of_conv(const at::Tensor& tensor, Form form) const {
  if (!tensor.defined()) return tensor;
  switch (form) {
    case Form::full: return tensor.reshape(with(pixels_, tensor.size(-1))).permute({0, 3, 1, 2});
    case Form::row: return tensor.reshape(pixels_);
    case Form::row_moments: return tensor.reshape(moments(pixels_));
    case Form::filter: return tensor.reshape({tensor.size(0), tensor.size(1), 1, 1});
    case Form::same: break;
  }
  return tensor;
}

at::Tensor Rows::of_product(const at::Tensor& tensor, Form form) const {
  if (!tensor.defined()) return tensor;
  switch (form) {
    case Form::full: return tensor.permute({0, 2, 3, 1}).reshape(with(size_, tensor.size(1)));
    case Form::row: return tensor.reshape(size_);
    case Form::row_moments: return tensor.reshape(moments(size_));
    case Form::filter: return tensor.reshape({tensor.size(0), tensor.size(1)});
    case Form::same: break;
  }
  return tensor;
}

}  // namespace reformer
