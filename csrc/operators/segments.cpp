#include "segments.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <limits>

#include "checks.h"
#include "cpu/segments.h"
#include "hip/segment_reduce/segments.h"
#include "hip/segment_reduce/sorted_rows.h"

namespace reformer {
namespace {

using torch::headeronly::ScalarType;

const int32_t* ints(const Tensor& tensor) { return static_cast<const int32_t*>(tensor.const_data_ptr()); }
int32_t* new_ints(Tensor& tensor) { return static_cast<int32_t*>(tensor.mutable_data_ptr()); }

const void* data(const std::optional<Tensor>& tensor) { return tensor ? tensor->const_data_ptr() : nullptr; }

template <class Plan, class Args>
void launch(const char* op, const Planned<Plan>& planned, const Args& args, const Tensor& on) {
  if (!planned.plan) fail(op, planned.reason);
  const int32_t index = on.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  gpu::launch(*planned.plan->kernel, planned.plan->launch, {index, current_stream(index)}, args);
}

// The sorted numbers (int32) and their original positions (int64).
std::pair<Tensor, Tensor> sorted(const Tensor& numbers) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  std::array<StableIValue, 4> stack{from(numbers), from(std::optional<bool>(true)), from(int64_t{0}), from(false)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::sort", "stable", stack.data(), TORCH_ABI_VERSION));
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1])};
}

void check_ints(const char* op, const char* name, const Tensor& tensor) {
  if (tensor.dim() != 1 || tensor.scalar_type() != ScalarType::Int)
    fail(op, name, " has size ", shown(tensor.sizes()), "; it is a vector of int32");
}

void check_count(const char* op, int64_t count) {
  if (count > std::numeric_limits<int32_t>::max() / 2) fail(op, "there are too many rows: ", count);
}

// CPU only; with PyTorch's messages and types of errors.
template <class Id>
void number_rows(const Id* index, Tensor& to, int64_t count_each, int64_t rows, const std::string& of) {
  const Id* const wrong = cpu::row_numbers(index, new_ints(to), to.numel(), count_each, rows, of == "index");
  if (!wrong) return;
  if (of == "index_select") throw std::out_of_range("index out of range in self");
  const char* const dimension = count_each == to.numel() ? "0" : "1";
  const std::string message = "index " + std::to_string(*wrong) + " is out of bounds for dimension " + dimension +
                              " with size " + std::to_string(rows);
  if (of == "index") throw std::out_of_range(message);
  throw std::runtime_error(message);
}

}  // namespace

Tensor row_numbers(const Tensor& index, int64_t rows, std::string of, int64_t tables) {
  const char* op = "_row_numbers";
  if (of != "index" && of != "index_select" && of != "index_add") fail(op, "of is ", of);
  const bool wide = index.scalar_type() == ScalarType::Long;
  if (!wide && index.scalar_type() != ScalarType::Int) fail(op, "index is int64 or int32");
  const Tensor from = contiguous_of(index);
  const int64_t count = from.numel();
  if (tables < 1 || count % tables) fail(op, count, " numbers are not those of ", tables, " tables");
  check_count(op, std::max(count, rows * tables));
  Tensor result = empty(index, from.sizes(), Layout::nchw, ScalarType::Int);
  if (count == 0) return result;
  const void* const numbers = from.const_data_ptr();
  if (index.is_cpu()) {
    if (wide)
      number_rows(static_cast<const int64_t*>(numbers), result, count / tables, rows, of);
    else
      number_rows(static_cast<const int32_t*>(numbers), result, count / tables, rows, of);
    return result;
  }
  const RowNumbersArgs args{numbers, new_ints(result), int(count), int(rows), int(count / tables), of == "index"};
  launch(op, configure_row_numbers(wide, count, device_of(index).arch), args, index);
  return result;
}

std::tuple<Tensor, Tensor> sort_rows(const Tensor& numbers, int64_t rows) {
  const char* op = "_sort_rows";
  check_ints(op, "numbers", numbers);
  const int64_t count = numbers.numel(), bounds = rows + 1;
  check_count(op, std::max(count, rows));
  Tensor order = empty(numbers, {&count, 1}, Layout::nchw), begins = empty(numbers, {&bounds, 1}, Layout::nchw);
  if (numbers.is_cpu()) {
    cpu::sort_rows(ints(contiguous_of(numbers)), new_ints(order), new_ints(begins), count, rows);
    return {order, begins};
  }
  const auto [ordered, places] = sorted(numbers);
  const SegmentBeginsArgs args{ints(ordered),   static_cast<const long long*>(places.const_data_ptr()),
                               new_ints(order), new_ints(begins),
                               int(count),      int(rows)};
  launch(op, configure_segment_begins(count, rows, device_of(numbers).arch), args, numbers);
  return {order, begins};
}

Tensor segment_sum(const Tensor& source, const Tensor& order, const Tensor& begins, const std::optional<Tensor>& base,
                   const std::optional<Tensor>& factors) {
  const char* op = "_segment_sum";
  check_same_device(op, "source", source, "order", order);
  check_same_device(op, "source", source, "begins", begins);
  check_ints(op, "order", order);
  check_ints(op, "begins", begins);
  if (source.dim() != 2 || begins.numel() == 0)
    fail(op, "source has size ", shown(source.sizes()), " and begins ", shown(begins.sizes()),
         "; they are a matrix and one element more than there are rows");
  const std::array<int64_t, 2> sizes = {begins.numel() - 1, source.size(1)};
  if (base) {
    check_same(op, "source", source, "base", *base);
    if (base->dim() != 2 || base->size(0) != sizes[0] || base->size(1) != sizes[1])
      fail(op, "base has size ", shown(base->sizes()), ", the result ", shown({sizes.data(), 2}));
  }
  if (factors) {
    check_same(op, "source", source, "factors", *factors);
    if (factors->dim() != 1 || factors->numel() != order.numel())
      fail(op, "factors has size ", shown(factors->sizes()), ", order ", shown(order.sizes()));
  }
  Tensor result = empty(source, {sizes.data(), 2}, Layout::nchw);
  if (result.numel() == 0) return result;
  const auto whole = [](const std::optional<Tensor>& tensor) {
    return tensor ? std::optional<Tensor>(aligned(*tensor)) : std::nullopt;
  };
  const DType type = dtype_of(op, "source", source);
  const Tensor from = aligned(source), numbers = contiguous_of(order), first = contiguous_of(begins);
  const std::optional<Tensor> start = whole(base), by = whole(factors);
  if (source.is_cpu()) {
    cpu::sum_segments(type, {from.const_data_ptr(), data(start), ints(numbers), ints(first), data(by),
                             result.mutable_data_ptr(), sizes[0], sizes[1]});
    return result;
  }
  const Planned<SegmentSumConfig> planned =
      configure_segment_sum(type, order.numel(), sizes[0], sizes[1], device_of(source).arch);
  if (!planned.plan) fail(op, planned.reason);
  SegmentSumArgs args = planned.plan->args;
  args.source = from.const_data_ptr(), args.base = data(start), args.factors = data(by);
  args.order = ints(numbers), args.begins = ints(first), args.to = result.mutable_data_ptr();
  launch(op, planned, args, source);
  return result;
}

}  // namespace reformer
