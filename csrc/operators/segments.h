// Sums of rows by segments.
#pragma once

#include <optional>

#include "tensors.h"

namespace reformer {

// [rows, columns]: row r is the sum of the rows order[begins[r]] to order[begins[r + 1] - 1] of the source, and of row
// r of the base. order and begins, of rows + 1 elements, are int64 on the source's GPU.
Tensor segment_sum(const Tensor& source, const Tensor& order, const Tensor& begins, const std::optional<Tensor>& base);

}  // namespace reformer
