// Sums of rows by segments.
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include "tensors.h"

namespace reformer {

// Row numbers, int64 or int32, as int32. of: "index", "index_select" or "index_add", the PyTorch operator that defines
// which numbers are allowed ("index" also allows negative ones, counted from the end) and the error message for others
// on the CPU: std::out_of_range, or std::runtime_error for "index_add". On a GPU the kernel traps. tables: the index is
// made of as many equal parts, each for a table of its own, of `rows` rows; results number the rows of all tables.
Tensor row_numbers(const Tensor& index, int64_t rows, std::string of, int64_t tables);

// Sorts row numbers as row_numbers() returns them into (order, begins), both int32: order[begins[r]] to order[begins[r
// + 1] - 1] are the positions of the numbers equal to r, in increasing order.
std::tuple<Tensor, Tensor> sort_rows(const Tensor& numbers, int64_t rows);

// Sums of rows by segments, [rows, columns]: row r is row r of the base plus the sum, over i from begins[r] to begins[r
// + 1] - 1, of row order[i] of the source, multiplied by factors[i]. order and begins (rows + 1 elements) are int32;
// factors has as many elements as order, of the source's type.
Tensor segment_sum(const Tensor& source, const Tensor& order, const Tensor& begins, const std::optional<Tensor>& base,
                   const std::optional<Tensor>& factors);

}  // namespace reformer
