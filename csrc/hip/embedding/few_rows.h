// The gradient of an embedding table with few rows on a GPU: launch configuration of the kernels, independent of a GPU.
#pragma once

#include "add_tables_args.h"
#include "few_rows_args.h"
#include "jit/gpu.h"
#include "planned.h"
#include "types.h"

namespace reformer {

// parts_floats: size of FewRowsArgs::parts, 0 if one block along x suffices; then there is no second kernel.
struct FewRowsConfig {
  FewRowsArgs args{};   // except for the pointers, `padding` and `adds`
  AddTablesArgs add{};  // likewise
  gpu::Launch launch, add_launch;
  const gpu::Kernel *kernel = nullptr, *add_kernel = nullptr;
  int64_t parts_floats = 0;
};

// Configuration for a table of [rows][columns] of this type and `count` ids of 64 or 32 bits, whose gradients have
// these strides; or the reason why no kernel supports it.
Planned<FewRowsConfig> configure_few_rows(DType type, bool wide_ids, int64_t count, int64_t rows, int64_t columns,
                                          int64_t entry_stride, int64_t column_stride, const std::string& arch);

}  // namespace reformer
