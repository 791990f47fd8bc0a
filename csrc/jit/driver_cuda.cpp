#include <algorithm>
#include <array>
#include <atomic>
#include <stdexcept>

#include "driver.h"
#include "loaded_library.h"
#include "relaxed_capture.h"

namespace reformer::gpu {
namespace {

// From cuda.h, so that building doesn't need it.
constexpr int kInvalidContext = 201, kNotFound = 500;
constexpr int kMajor = 75, kMinor = 76, kMaxSharedBytesOptIn = 97;  // device attributes
constexpr int kStaticSharedBytes = 1, kMaxDynamicSharedBytes = 8;   // function attributes
constexpr int kUint16 = 1, kNotInterleaved = 0, kSwizzle128Bytes = 3, kPromote256Bytes = 3, kZerosOutside = 0;

// CUDA 12.0 and newer; torch >= 2.11 always has it.
struct Api {
  int (*init)(unsigned);
  int (*error_string)(int, const char**);
  int (*device_attribute)(int*, int, int);
  int (*device_name)(char*, int, int);
  int (*retain_primary_context)(void**, int);
  int (*current_context)(void**);
  int (*set_current_context)(void*);
  int (*exchange_capture_mode)(int*);
  int (*load_library)(void**, const void*, void*, void*, unsigned, void*, void*, unsigned);
  int (*library_kernel)(void**, void*, const char*);
  int (*kernel_function)(void**, void*);
  int (*kernel_attribute)(int*, int, void*, int);
  int (*set_kernel_attribute)(int, int, void*, int);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  int (*launch_extended)(const void*, void*, void**, void**);
  int (*encode_tensor_map)(TensorMap*, int, uint32_t, const void*, const uint64_t*, const uint64_t*, const uint32_t*,
                           const uint32_t*, int, int, int, int);
  int (*encode_windows_map)(TensorMap*, int, uint32_t, const void*, const uint64_t*, const uint64_t*, const int*,
                            const int*, uint32_t, uint32_t, const uint32_t*, int, int, int, int);
};

// Mirror CUlaunchAttribute and CUlaunchConfig.
struct Attribute {
  int id, padding;
  unsigned value[16];
};
static_assert(sizeof(Attribute) == 72);
constexpr int kClusterDimension = 4, kProgrammaticStreamSerialization = 6;
struct Configuration {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  Attribute* attributes;
  unsigned count;
};

class CudaDriver final : public Driver {
 public:
  explicit CudaDriver(void* library) {
    find_symbol(library, "cuInit", api_.init);
    find_symbol(library, "cuGetErrorString", api_.error_string);
    find_symbol(library, "cuDeviceGetAttribute", api_.device_attribute);
    find_symbol(library, "cuDeviceGetName", api_.device_name);
    find_symbol(library, "cuDevicePrimaryCtxRetain", api_.retain_primary_context);
    find_symbol(library, "cuCtxGetCurrent", api_.current_context);
    find_symbol(library, "cuCtxSetCurrent", api_.set_current_context);
    find_symbol(library, "cuThreadExchangeStreamCaptureMode", api_.exchange_capture_mode);
    find_symbol(library, "cuLibraryLoadData", api_.load_library);
    find_symbol(library, "cuLibraryGetKernel", api_.library_kernel);
    find_symbol(library, "cuKernelGetFunction", api_.kernel_function);
    find_symbol(library, "cuKernelGetAttribute", api_.kernel_attribute);
    find_symbol(library, "cuKernelSetAttribute", api_.set_kernel_attribute);
    find_symbol(library, "cuLaunchKernel", api_.launch);
    find_symbol(library, "cuLaunchKernelEx", api_.launch_extended);
    find_symbol(library, "cuTensorMapEncodeTiled", api_.encode_tensor_map);
    find_symbol(library, "cuTensorMapEncodeIm2col", api_.encode_windows_map);
    check(api_.init(0), "cuInit");
  }

  std::string target(int32_t device) const override {
    return "sm_" + std::to_string(attribute(kMajor, device)) + std::to_string(attribute(kMinor, device));
  }

  // Libraries belong to no context, so their kernels run in the primary context, in green contexts, and on any device.
  Module load(const std::string& code) const override {
    const RelaxedCapture relaxed(api_.exchange_capture_mode);
    void* library = nullptr;
    check(api_.load_library(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuLibraryLoadData");
    return library;
  }

  Function function(Module module, const char* name, int32_t device) const override {
    const RelaxedCapture relaxed(api_.exchange_capture_mode);
    void *kernel = nullptr, *function = nullptr;
    const int error = api_.library_kernel(&kernel, module, name);
    if (error == kNotFound) return nullptr;
    check(error, "cuLibraryGetKernel");
    bind_context(device);
    // Copies the kernel to the device now. Otherwise the first launch would, possibly during the capture of a graph.
    check(api_.kernel_function(&function, kernel), "cuKernelGetFunction");
    int fixed = 0;
    check(api_.kernel_attribute(&fixed, kStaticSharedBytes, kernel, device), "cuKernelGetAttribute");
    const int most = attribute(kMaxSharedBytesOptIn, device) - fixed;
    check(api_.set_kernel_attribute(kMaxDynamicSharedBytes, most, kernel, device), "cuKernelSetAttribute");
    return kernel;
  }

  TensorMap tensor_map(const void* tensor, std::initializer_list<int64_t> sizes,
                       std::initializer_list<int32_t> box) const override {
    constexpr size_t kMostDimensions = 5;
    uint64_t all[kMostDimensions] = {}, pitches[kMostDimensions] = {};
    uint32_t of_box[kMostDimensions] = {}, steps[kMostDimensions] = {1, 1, 1, 1, 1};
    std::copy(sizes.begin(), sizes.end(), all);
    std::copy(box.begin(), box.end(), of_box);
    for (size_t i = 0; i + 1 < sizes.size(); ++i) pitches[i] = all[i] * (i ? pitches[i - 1] : 2);
    TensorMap map;
    check(api_.encode_tensor_map(&map, kUint16, uint32_t(sizes.size()), tensor, all, pitches, of_box, steps,
                                 kNotInterleaved, kSwizzle128Bytes, kPromote256Bytes, kZerosOutside),
          "cuTensorMapEncodeTiled");
    return map;
  }

  TensorMap windows_map(const void* images, const Windows& windows, int32_t pixels) const override {
    const Windows::Axis &w = windows.w, &h = windows.h;
    const uint64_t sizes[] = {uint64_t(windows.channels), uint64_t(w.size), uint64_t(h.size), uint64_t(windows.images)};
    const uint64_t pitches[] = {uint64_t(w.pitch) * 2, uint64_t(h.pitch) * 2, uint64_t(windows.image_pitch) * 2};
    const int first[] = {w.first, h.first}, end[] = {w.end(), h.end()};
    const uint32_t steps[] = {1, uint32_t(w.step), uint32_t(h.step), 1};
    TensorMap map;
    check(api_.encode_windows_map(&map, kUint16, 4, images, sizes, pitches, first, end, 64, uint32_t(pixels), steps,
                                  kNotInterleaved, kSwizzle128Bytes, kPromote256Bytes, kZerosOutside),
          "cuTensorMapEncodeIm2col");
    return map;
  }

  void launch(Function function, const Launch& shape, const Queue& queue, const void* arguments) const override {
    int error = try_launch(function, shape, queue, arguments);
    if (error == kInvalidContext && bind_context(queue.device)) error = try_launch(function, shape, queue, arguments);
    check(error, "cuLaunchKernel");
  }

 private:
  void check(int error, const char* call) const {
    if (!error) return;
    const char* words = nullptr;
    api_.error_string(error, &words);
    throw std::runtime_error(std::string("CUDA: ") + call + ": " + (words ? words : "unknown error") + " (" +
                             std::to_string(error) + ")");
  }

  // True if the device supports programmatic dependent launch: sm_90 and later.
  bool supports_pdl(int device) const {
    static std::array<std::atomic<int>, 64> majors{};
    const size_t slot = size_t(device) % majors.size();
    int major = majors[slot].load(std::memory_order_relaxed);
    if (!major || size_t(device) != slot) majors[slot] = major = attribute(kMajor, device);
    return major >= 9;
  }

  int attribute(int which, int device) const {
    int value = 0;
    check(api_.device_attribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  }

  std::string name(int device) const override {
    std::array<char, 256> text{};
    check(api_.device_name(text.data(), int(text.size()), device), "cuDeviceGetName");
    return text.data();
  }

  // A thread in which torch has not yet run anything has no context, even if its current device is right: CUDA's
  // runtime creates one only when it is called. Returns true if there was none.
  bool bind_context(int device) const {
    void* context = nullptr;
    if (!api_.current_context(&context) && context) return false;
    check(api_.retain_primary_context(&context, device), "cuDevicePrimaryCtxRetain");
    check(api_.set_current_context(context), "cuCtxSetCurrent");
    return true;
  }

  int try_launch(Function function, const Launch& shape, const Queue& queue, const void* arguments) const {
    void* parameters[] = {const_cast<void*>(arguments)};
    Attribute attributes[2];
    unsigned count = 0;
    if (shape.cluster_z > 1) attributes[count++] = {kClusterDimension, 0, {1, 1, shape.cluster_z}};
    if (shape.pdl && supports_pdl(queue.device)) attributes[count++] = {kProgrammaticStreamSerialization, 0, {1}};
    if (!count)
      return api_.launch(function, shape.blocks_x, shape.blocks_y, shape.blocks_z, shape.threads, 1, 1,
                         shape.shared_bytes, queue.stream, parameters, nullptr);
    const Configuration configuration{{shape.blocks_x, shape.blocks_y, shape.blocks_z},
                                      {shape.threads, 1, 1},
                                      shape.shared_bytes,
                                      queue.stream,
                                      attributes,
                                      count};
    return api_.launch_extended(&configuration, function, parameters, nullptr);
  }

  Api api_;
};

}  // namespace

std::unique_ptr<Driver> cuda_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return library ? std::make_unique<CudaDriver>(library) : nullptr;
}

}  // namespace reformer::gpu
