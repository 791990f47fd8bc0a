#include "segments.h"

#include <torch/csrc/stable/accelerator.h>

#include "checks.h"
#include "hip/movement/segments.h"

namespace reformer {

using torch::headeronly::ScalarType;

Tensor segment_sum(const Tensor& source, const Tensor& order, const Tensor& begins, const std::optional<Tensor>& base) {
  const char* op = "_segment_sum";
  check_same_device(op, "source", source, "order", order);
  check_same_device(op, "source", source, "begins", begins);
  if (source.dim() != 2 || order.dim() != 1 || begins.dim() != 1 || begins.numel() == 0)
    fail(op, "source has size ", shown(source.sizes()), ", order ", shown(order.sizes()), " and begins ",
         shown(begins.sizes()), "; they are matrix, vector and vector");
  if (order.scalar_type() != ScalarType::Long || begins.scalar_type() != ScalarType::Long)
    fail(op, "order and begins are int64");
  const std::array<int64_t, 2> sizes = {begins.numel() - 1, source.size(1)};
  if (base) {
    check_same(op, "source", source, "base", *base);
    if (base->dim() != 2 || base->size(0) != sizes[0] || base->size(1) != sizes[1])
      fail(op, "base has size ", shown(base->sizes()), ", the result ", shown({sizes.data(), 2}));
  }
  const Tensor result = empty(source, {sizes.data(), 2}, Layout::nchw);
  if (result.numel() == 0) return result;
  const Device device = device_of(source);
  const Planned<SegmentSumPlan> planned =
      plan_segment_sum(dtype_of(op, "source", source), order.numel(), sizes[0], sizes[1], device.arch);
  if (!planned.plan) fail(op, planned.reason);
  const Tensor from = aligned(source), numbers = contiguous_of(order), first = contiguous_of(begins);
  const std::optional<Tensor> start = base ? std::optional<Tensor>(aligned(*base)) : std::nullopt;
  SegmentSumArgs args = planned.plan->args;
  args.source = from.const_data_ptr(), args.base = start ? start->const_data_ptr() : nullptr;
  args.order = static_cast<const long long*>(numbers.const_data_ptr());
  args.begins = static_cast<const long long*>(first.const_data_ptr());
  args.to = result.mutable_data_ptr();
  const int32_t index = source.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  gpu::launch(*planned.plan->kernel, planned.plan->launch, {index, current_stream(index)}, args);
  return result;
}

}  // namespace reformer
