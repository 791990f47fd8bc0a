#include "casts.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>

#include "checks.h"
#include "hip/copy/casts.h"
#include "torch_types.h"

namespace reformer {
namespace {

constexpr const char* kOp = "_cast_all";

// Sizes have to be equal, except that the result may be longer along its first dimension.
void check_sizes(size_t i, const Tensor& from, const Tensor& to) {
  const auto own = from.sizes(), wanted = to.sizes();
  bool fit = own.size() == wanted.size();
  for (size_t d = 0; fit && d < own.size(); ++d) fit = own[d] == wanted[d] || (d == 0 && own[d] < wanted[d]);
  if (!fit) fail(kOp, "tensor ", i, " has size ", shown(own), ", and what it is written to ", shown(wanted));
}

bool has_more(const Tensor& from, const Tensor& to) { return to.dim() > 0 && from.size(0) < to.size(0); }

// True if the elements fill memory without a gap, in any order of the dimensions.
bool is_dense(const Tensor& tensor) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const int64_t count = tensor.numel();
  int64_t filled = 1;
  for (size_t d = 0; d < sizes.size() && filled < count;) {
    const bool next = sizes[d] > 1 && strides[d] == filled;
    if (next) filled *= sizes[d];
    d = next ? 0 : d + 1;
  }
  return filled >= count;
}

// True if both have the same strides, and the result's extra elements follow the others in memory.
bool are_alike(const Tensor& from, const Tensor& to) {
  const auto sizes = from.sizes(), strides = from.strides(), wanted = to.strides();
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1 && strides[d] != wanted[d]) return false;
  return is_dense(to) && (!has_more(from, to) || wanted[0] * to.size(0) == to.numel());
}

// The kernel for the types of two tensors; null if there is none, as for whole numbers.
const gpu::Kernel* kernel_for(const Tensor& from, const Tensor& to) {
  if (!from.is_cuda() || gpu::unavailable(device_of(from).arch)) return nullptr;
  const auto own = dtype_of(from.scalar_type()), wanted = dtype_of(to.scalar_type());
  return own && wanted ? casts_kernel(*own, *wanted) : nullptr;
}

// Zeroes the extra elements and returns a view of the others.
Tensor with_zeros_behind(const Tensor& from, const Tensor& to) {
  if (!has_more(from, to)) return to;
  Tensor whole = to;
  Tensor more = torch::stable::narrow(whole, 0, from.size(0), to.size(0) - from.size(0));
  torch::stable::zero_(more);
  return torch::stable::narrow(whole, 0, 0, from.size(0));
}

void copy_by_aten(const std::vector<Tensor>& tensors, const std::vector<Tensor>& to) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(to), from(tensors), from(false)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::_foreach_copy_", "", stack.data(), TORCH_ABI_VERSION));
}

}  // namespace

void cast_all(std::vector<Tensor>& from, std::vector<Tensor>& to) {
  if (from.size() != to.size()) fail(kOp, "got ", from.size(), " tensors, and ", to.size(), " to write them to");
  if (from.empty()) return;
  const Tensor& first = from[0];
  const gpu::Kernel* const kernel = kernel_for(first, to[0]);
  const auto is_as_first = [&](const Tensor& own, const Tensor& result) {
    return own.scalar_type() == first.scalar_type() && result.scalar_type() == to[0].scalar_type() &&
           own.device() == first.device() && result.device() == first.device();
  };
  std::vector<Cast> casts;
  std::vector<Tensor> others, to_others;
  for (size_t i = 0; i < from.size(); ++i) {
    check_sizes(i, from[i], to[i]);
    check_not_freed(kOp, "a tensor", from[i]);
    if (kernel && is_as_first(from[i], to[i]) && are_alike(from[i], to[i])) {
      const int64_t count = from[i].numel();
      auto* const result = static_cast<char*>(to[i].mutable_data_ptr());
      casts.push_back({from[i].const_data_ptr(), result, count});
      if (has_more(from[i], to[i]))
        casts.push_back({nullptr, result + count * to[i].element_size(), to[i].numel() - count});
    } else {
      others.push_back(from[i]);
      to_others.push_back(with_zeros_behind(from[i], to[i]));
    }
  }
  if (!others.empty()) copy_by_aten(others, to_others);
  if (casts.empty()) return;
  const int32_t index = first.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  for (const CastsLaunch& each : plan_casts(casts, dtype_of(kOp, "a tensor", first), dtype_of(kOp, "a result", to[0])))
    gpu::launch(*kernel, each.launch, {index, current_stream(index)}, each.args);
}

}  // namespace reformer
