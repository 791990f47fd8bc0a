// Sums of rows by segments.
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include "tensors.h"

namespace reformer {

// Numbers of rows, int64 or int32, in int32. of: "index", "index_select" or "index_add", the operator of PyTorch that
// says which are allowed ("index": negative ones, too, which count from the end), and with which message others are an
// error on the CPU: std::out_of_range, or std::runtime_error of "index_add". On a GPU the kernel ends with a trap.
Tensor row_numbers(const Tensor& index, int64_t rows, std::string of);

// For numbers of rows, as row_numbers() gives them: (order, begins), both int32. order[begins[r]] to
// order[begins[r + 1] - 1] are the places of those that are r, in their order.
std::tuple<Tensor, Tensor> sort_rows(const Tensor& numbers, int64_t rows);

// [rows, columns]: row r is the sum of the base's row r and of rows order[i] of the source, multiplied by factors[i],
// over i from begins[r] to begins[r + 1] - 1. order, and begins of rows + 1 elements, are int32; factors, as many as
// order has elements, are of the source's type.
Tensor segment_sum(const Tensor& source, const Tensor& order, const Tensor& begins, const std::optional<Tensor>& base,
                   const std::optional<Tensor>& factors);

}  // namespace reformer
