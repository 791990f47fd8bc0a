#include "descriptors.h"

#include <array>
#include <stdexcept>

namespace reformer::miopen {
namespace {

// Values of enumerators in AMD's public header.
constexpr int kLayoutNchw = 0, kLayoutNhwc = 1, kConvolution = 0, kDeterministic = 1;

int type_of(DType type) {
  switch (type) {
    case DType::fp16: return 0;
    case DType::fp32: return 1;
    case DType::bf16: return 5;
    case DType::fp64: return 6;
    case DType::int8: break;
  }
  throw std::logic_error("no solver of MIOpen's supports this data type");
}

// The layout is given explicitly: strides are ambiguous if there is one channel or one pixel.
void set_tensor(const Api& api, const ConvProblem& p, const Owned<TensorDescriptor>& tensor,
                const std::array<int, 4>& sizes) {
  check(api.set_tensor(tensor.get(), type_of(p.dtype), p.layout == Layout::nhwc ? kLayoutNhwc : kLayoutNchw,
                       sizes.data(), 4),
        "miopenSetNdTensorDescriptorWithLayout");
}

}  // namespace

void check(Status status, const char* call) {
  if (status != kSuccess) throw Failure{call, status};
}

Descriptors::Descriptors(const Api& api, const ConvProblem& p, bool deterministic)
    : x_(api.create_tensor, api.destroy_tensor, "miopenCreateTensorDescriptor"),
      w_(api.create_tensor, api.destroy_tensor, "miopenCreateTensorDescriptor"),
      y_(api.create_tensor, api.destroy_tensor, "miopenCreateTensorDescriptor"),
      conv_(api.create_conv, api.destroy_conv, "miopenCreateConvolutionDescriptor"),
      tensors_(in_order(p.direction, x_.get(), w_.get(), y_.get())) {
  set_tensor(api, p, x_, {p.n, p.c, p.h, p.w});
  set_tensor(api, p, w_, {p.k, p.group_c(), p.r, p.s});
  set_tensor(api, p, y_, {p.n, p.k, p.out_h(), p.out_w()});
  const int padding[] = {p.pad_h, p.pad_w}, stride[] = {p.stride_h, p.stride_w},
            dilation[] = {p.dilation_h, p.dilation_w};
  check(api.init_conv(conv_.get(), 2, padding, stride, dilation, kConvolution), "miopenInitConvolutionNdDescriptor");
  check(api.set_groups(conv_.get(), p.groups), "miopenSetConvolutionGroupCount");
  if (deterministic) check(api.set_attribute(conv_.get(), kDeterministic, 1), "miopenSetConvolutionAttribute");
}

}  // namespace reformer::miopen
