#include "checks.h"

#include "cpu/parallel.h"
#include "jit/gpu.h"
#include "torch_types.h"

namespace reformer {

using torch::headeronly::ScalarType;

std::string shown(Sizes sizes) {
  std::ostringstream text;
  text << "[";
  for (size_t i = 0; i < sizes.size(); ++i) text << (i ? ", " : "") << sizes[i];
  text << "]";
  return text.str();
}

DType dtype_of(const char* op, const char* argument, ScalarType type) {
  if (const auto dtype = dtype_of(type)) return *dtype;
  fail(op, argument, " has data type ", toString(type), "; float32, float64, float16 and bfloat16 are supported");
}

void check_same_device(const char* op, const char* a_name, const Tensor& a, const char* b_name, const Tensor& b) {
  if (a.device() != b.device()) fail(op, b_name, " is on another device than ", a_name, "; move both to one device");
}

void check_same(const char* op, const char* a_name, const Tensor& a, const char* b_name, const Tensor& b) {
  if (a.scalar_type() != b.scalar_type())
    fail(op, b_name, " has data type ", toString(b.scalar_type()), ", but ", a_name, " has ",
         toString(a.scalar_type()));
  check_same_device(op, a_name, a, b_name, b);
}

bool is_freed(const Tensor& tensor) {
  int64_t bytes;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor.get(), &bytes));
  return bytes == 0 && tensor.numel() > 0;
}

void check_not_freed(const char* op, const char* argument, const Tensor& tensor) {
  if (is_freed(tensor))
    fail(op, argument, " of size ", shown(tensor.sizes()),
         " has no memory: its storage was freed (untyped_storage().resize_(0), as FSDP does); allocate it again before "
         "the call");
}

Device device_of(const Tensor& tensor) {
  if (tensor.is_cpu()) return Device::cpu(max_threads());
  return gpu::device(tensor.get_device_index());
}

}  // namespace reformer
