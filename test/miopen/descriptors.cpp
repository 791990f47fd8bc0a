// The interface's functions of handles and descriptors, and those that need neither.
#include <algorithm>

#include "api.h"
#include "calls.h"
#include "hip.h"
#include "objects.h"
#include "solvers.h"

using namespace stub;

namespace {

template <class T>
T& written(T* result) {
  if (!result) misuse("null where the result belongs");
  return *result;
}

template <class T>
int create(void** result) {
  written(result);
  if (const int status = injected()) return status;
  *result = publish(new T);
  return kSuccess;
}

void check_type(int type) {
  const int types[] = {kHalf, kFloat, kInt32, kInt8, kBFloat16, kDouble};
  if (std::find(std::begin(types), std::end(types), type) == std::end(types))
    misuse("there is no data type " + std::to_string(type));
}

std::array<int64_t, 4> four(const int* sizes, int count, const char* what) {
  if (count != 4) misuse(std::string(what) + " of " + std::to_string(count) + " dimensions, not 4");
  if (!sizes) misuse(std::string(what) + " at null");
  std::array<int64_t, 4> values;
  std::copy(sizes, sizes + 4, values.begin());
  if (*std::min_element(values.begin(), values.end()) <= 0) misuse(std::string(what) + " that are not positive");
  return values;
}

std::array<int, 2> two(const int* sizes, int least, const char* what) {
  if (!sizes) misuse(std::string(what) + " at null");
  if (sizes[0] < least || sizes[1] < least) misuse(std::string(what) + " below " + std::to_string(least));
  return {sizes[0], sizes[1]};
}

}  // namespace

STUB_API int miopenGetVersion(size_t* major, size_t* minor, size_t* patch) {
  enter("miopenGetVersion");
  if (const int status = injected()) return status;
  written(major) = 3;
  written(minor) = is_newest_registry() ? 5 : 1;
  written(patch) = is_newest_registry() ? 2 : 0;
  return kSuccess;
}

STUB_API const char* miopenGetErrorString(int status) {
  enter("miopenGetErrorString");
  constexpr const char* kNames[] = {"miopenStatusSuccess",        "miopenStatusNotInitialized",
                                    "miopenStatusInvalidValue",   "miopenStatusBadParm",
                                    "miopenStatusAllocFailed",    "miopenStatusInternalError",
                                    "miopenStatusNotImplemented", "miopenStatusUnknownError",
                                    "miopenStatusUnsupportedOp",  "miopenStatusGpuOperationsSkipped",
                                    "miopenStatusVersionMismatch"};
  constexpr int kCount = sizeof kNames / sizeof kNames[0];
  return status >= 0 && status < kCount ? kNames[status] : "Unknown error status";
}

STUB_API int miopenGetSolverIdConvAlgorithm(uint64_t id, int* algorithm) {
  enter("miopenGetSolverIdConvAlgorithm");
  written(algorithm);
  if (const int status = injected()) return status;
  const Solver* const solver = registered(id);
  if (!solver) return fail(kInvalidValue, "no solver has the id " + std::to_string(id));
  *algorithm = algorithm_of(*solver);
  return kSuccess;
}

STUB_API int miopenCreateWithStream(void** result, void* stream) {
  enter("miopenCreateWithStream");
  written(result);
  if (const int status = injected()) return status;
  if (hip::is_capturing(stream)) return fail(kUnknownError, "no handle can be made in a capture");
  auto* const handle = new Handle;
  handle->stream = stream;
  handle->device = hip::current_device();
  handle->architecture = hip::architecture(handle->device);
  handle->thread = this_thread();
  hip::set_current_device(handle->device);
  *result = publish(handle);
  return kSuccess;
}

STUB_API int miopenSetStream(void* handle, void* stream) {
  enter("miopenSetStream");
  Handle& usable = usable_handle(handle);
  if (const int status = injected()) return status;
  usable.stream = stream;
  return kSuccess;
}

// From any thread and on any device: a thread may end before its handle does.
STUB_API int miopenDestroy(void* handle) {
  enter("miopenDestroy");
  destroy(handle, Kind::handle);
  return injected();
}

STUB_API int miopenCreateTensorDescriptor(void** result) {
  enter("miopenCreateTensorDescriptor");
  return create<Tensor>(result);
}

STUB_API int miopenDestroyTensorDescriptor(void* tensor) {
  enter("miopenDestroyTensorDescriptor");
  destroy(tensor, Kind::tensor);
  return injected();
}

STUB_API int miopenSetNdTensorDescriptorWithLayout(void* tensor, int type, int layout, const int* lens, int count) {
  enter("miopenSetNdTensorDescriptorWithLayout");
  Tensor& set = find<Tensor>(tensor);
  check_type(type);
  if (layout != kNchw && layout != kNhwc) misuse("there is no layout " + std::to_string(layout) + " of images");
  const auto sizes = four(lens, count, "lengths");
  if (const int status = injected()) return status;
  set.is_set = true;
  set.type = type;
  set.named_layout = static_cast<Layout>(layout);
  set.lens = sizes;
  set.strides = packed_strides(sizes, *set.named_layout);
  return kSuccess;
}

STUB_API int miopenSetTensorDescriptor(void* tensor, int type, int count, const int* dims, const int* strides) {
  enter("miopenSetTensorDescriptor");
  Tensor& set = find<Tensor>(tensor);
  check_type(type);
  const auto sizes = four(dims, count, "lengths"), steps = four(strides, count, "strides");
  if (const int status = injected()) return status;
  set.is_set = true;
  set.type = type;
  set.named_layout.reset();
  set.lens = sizes;
  set.strides = steps;
  return kSuccess;
}

STUB_API int miopenCreateConvolutionDescriptor(void** result) {
  enter("miopenCreateConvolutionDescriptor");
  return create<Convolution>(result);
}

STUB_API int miopenDestroyConvolutionDescriptor(void* convolution) {
  enter("miopenDestroyConvolutionDescriptor");
  destroy(convolution, Kind::convolution);
  return injected();
}

// Forgets the group count and the attributes.
STUB_API int miopenInitConvolutionNdDescriptor(void* convolution, int spatial, const int* pad, const int* stride,
                                               const int* dilation, int mode) {
  enter("miopenInitConvolutionNdDescriptor");
  Convolution& set = find<Convolution>(convolution);
  if (spatial != 2) misuse("a convolution of " + std::to_string(spatial) + " dimensions, not 2");
  if (mode != 0) misuse("mode " + std::to_string(mode) + ": use 0 and the group count");
  const auto pads = two(pad, 0, "padding"), strides = two(stride, 1, "strides"),
             dilations = two(dilation, 1, "dilations");
  if (const int status = injected()) return status;
  set.is_set = true;
  set.pad = pads;
  set.stride = strides;
  set.dilation = dilations;
  set.groups = 1;
  set.attributes.clear();
  return kSuccess;
}

STUB_API int miopenSetConvolutionGroupCount(void* convolution, int groups) {
  enter("miopenSetConvolutionGroupCount");
  Convolution& set = find<Convolution>(convolution);
  if (!set.is_set) misuse("the group count before miopenInitConvolutionNdDescriptor, which forgets it");
  if (groups < 1) misuse(std::to_string(groups) + " groups");
  if (const int status = injected()) return status;
  set.groups = groups;
  return kSuccess;
}

STUB_API int miopenSetConvolutionAttribute(void* convolution, int attribute, int value) {
  enter("miopenSetConvolutionAttribute");
  Convolution& set = find<Convolution>(convolution);
  if (!set.is_set) misuse("an attribute before miopenInitConvolutionNdDescriptor, which forgets it");
  if (const int status = injected()) return status;
  const bool is_known =
      attribute == kFp16Alternative || attribute == kDeterministic || (attribute == kMathType && is_newest_registry());
  if (!is_known) return fail(kBadParameter, "there is no attribute " + std::to_string(attribute));
  set.attributes[attribute] = value;
  return kSuccess;
}
