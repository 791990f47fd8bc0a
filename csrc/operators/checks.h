// Checks of operators' arguments. Messages begin with the operator's name.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "tensors.h"

namespace reformer {

std::string shown(Sizes sizes);

template <class... Parts>
[[noreturn]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream text;
  text << "reformer::" << op << ": ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

// fp32, fp64, fp16 or bf16.
DType dtype_of(const char* op, const char* argument, torch::headeronly::ScalarType type);
inline DType dtype_of(const char* op, const char* argument, const Tensor& tensor) {
  return dtype_of(op, argument, tensor.scalar_type());
}

void check_same_device(const char* op, const char* a_name, const Tensor& a, const char* b_name, const Tensor& b);

// Data types and devices.
void check_same(const char* op, const char* a_name, const Tensor& a, const char* b_name, const Tensor& b);

// True if a tensor's elements have no memory (any more), as FSDP leaves parameters between their uses. PyTorch's own
// copies end in a segmentation fault then, so operators ask before they do anything.
bool is_freed(const Tensor& tensor);
void check_not_freed(const char* op, const char* argument, const Tensor& tensor);

// Where a tensor is, and with how many threads.
Device device_of(const Tensor& tensor);

}  // namespace reformer
