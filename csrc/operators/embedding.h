// Operators of embeddings.
#pragma once

#include <optional>

#include "tensors.h"

namespace reformer {

// Gradient of an embedding table of `rows` rows. ids: row numbers, of any shape; grad: of the shape of ids, followed by
// the table's columns. Ids equal to `padding` get no gradient (-1: all ids do). by_frequency: divide each row's
// gradient by how often it was looked up. base: [rows, columns], added to the result. PyTorch's own operators are used
// where no kernel supports it. tables: the rows are those of so many tables of equal sizes; the ids are, too, as
// row_numbers() numbers them (segments.h).
Tensor embedding_grad(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding, bool by_frequency,
                      const std::optional<Tensor>& base, int64_t tables);

// Adds that gradient to `sum` in place, [rows, columns] and contiguous, and returns it.
Tensor add_embedding_grad(Tensor sum, const Tensor& grad, const Tensor& ids, int64_t padding, int64_t tables);

}  // namespace reformer
