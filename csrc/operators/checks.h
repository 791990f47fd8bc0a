// Checks of operator arguments. Messages begin with the operator's name.
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

// The data type if it is fp32, fp64, fp16 or bf16; else an error.
DType dtype_of(const char* op, const char* argument, torch::headeronly::ScalarType type);
inline DType dtype_of(const char* op, const char* argument, const Tensor& tensor) {
  return dtype_of(op, argument, tensor.scalar_type());
}

void check_same_device(const char* op, const char* a_name, const Tensor& a, const char* b_name, const Tensor& b);

// Checks that data types and devices are equal.
void check_same(const char* op, const char* a_name, const Tensor& a, const char* b_name, const Tensor& b);

// True if a tensor has elements but no memory, as FSDP leaves parameters between uses. PyTorch's own copies then end in
// a segmentation fault, so operators check this first.
bool is_freed(const Tensor& tensor);
void check_not_freed(const char* op, const char* argument, const Tensor& tensor);

// The device of a tensor, with the number of threads.
Device device_of(const Tensor& tensor);

}  // namespace reformer
