#include "sorted_rows.h"

#include <algorithm>
#include <string>

#include "hip/typed_kernel.h"

namespace reformer {
namespace {

const gpu::Kernel* kernel_of(const char* what, const char* numbers) {
  static const TypedKernel kernels[] = {
#define X(what, Id) {#what, #Id, 1, gpu::Kernel({"segment_reduce/sorted_rows", #what "_" #Id, #what ", " #Id})},
#include "sorted_rows.inc"
#undef X
  };
  return find_kernel(kernels, what, numbers, 1);
}

// The operators make sure that there are not too many numbers.
Planned<RowNumbersConfig> plan_of(const gpu::Kernel* kernel, int64_t count, int64_t each, const std::string& arch) {
  if (const char* why = gpu::unavailable(arch)) return why;
  const int64_t of_block = kRowNumberThreads * each;
  RowNumbersConfig config;
  config.kernel = kernel;
  config.launch.blocks_x = uint32_t((count + of_block - 1) / of_block);
  config.launch.threads = kRowNumberThreads;
  config.launch.pdl = true;
  return config;
}

}  // namespace

Planned<RowNumbersConfig> configure_row_numbers(bool wide, int64_t count, const std::string& arch) {
  return plan_of(kernel_of("row_numbers", wide ? "int64" : "int32"), count, kRowNumbersEach, arch);
}

Planned<RowNumbersConfig> configure_segment_begins(int64_t entries, int64_t rows, const std::string& arch) {
  return plan_of(kernel_of("segment_begins", "int32"), std::max(entries, rows + 1), 1, arch);
}

}  // namespace reformer
