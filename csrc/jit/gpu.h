// GPUs as the solvers see them: their architecture, and kernels to launch. The implementation finds the driver (HIP's
// or CUDA's, whichever torch uses) at run time; no other part knows which it is.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "device.h"
#include "hip/device/tensor_map.h"

namespace reformer::gpu {

// A kernel of csrc/hip. The same three names identify it in the packaged code object of its file and when it is
// compiled on its own at run time.
struct Entry {
  const char* file;       // folder and stem of the file: "gemm/implicit_gemm"
  const char* name;       // name of the extern "C" function
  const char* arguments;  // arguments of the file's macro X for this function: "forward, bf16, 3, 1, 4, 4"
  const char* text = "";  // source appended to the file, for generated kernels; part of the kernel's identity
};

// An Entry that owns its strings.
struct OwnedEntry {
  std::string file, name, arguments, text;

  Entry entry() const { return {file.c_str(), name.c_str(), arguments.c_str(), text.c_str()}; }
  bool operator<(const OwnedEntry& other) const {
    return std::tie(file, name, arguments) < std::tie(other.file, other.name, other.arguments);
  }
};

// A kernel that is launched repeatedly: it caches the driver's function on each device where it was launched, so that
// the lookup by names happens once. Copies share the cache.
class Kernel {
 public:
  // For strings that are never freed: constants.
  explicit Kernel(const Entry& entry) : known_(std::make_shared<Known>()) { known_->entry = entry; }
  // For a generated name and text.
  Kernel(const char* file, std::string name, const char* arguments, std::string text)
      : known_(std::make_shared<Known>()) {
    known_->name = std::move(name), known_->text = std::move(text);
    known_->entry = {file, known_->name.c_str(), arguments, known_->text.c_str()};
  }

  const Entry& entry() const { return known_->entry; }
  // The driver's function on torch's GPU of this index, which must be the current device. Throws as launch() does.
  void* function(int32_t device) const;

 private:
  struct Known {
    std::string name, text;
    Entry entry;
    std::array<std::atomic<void*>, 16> functions{};  // for the first devices; on others it is looked up each time
  };
  std::shared_ptr<Known> known_;
};

struct Launch {
  uint32_t blocks_x = 1, blocks_y = 1, blocks_z = 1;
  uint32_t threads = 1;       // threads per block
  uint32_t shared_bytes = 0;  // dynamic shared memory per block
  uint32_t cluster_z = 1;     // blocks per cluster, along z; more than 1 only on sm_90 and later
  // Programmatic dependent launch: the kernel may start before earlier kernels have ended, and waits for them itself
  // (device/grid_dependency.h). No effect before sm_90 and on AMD GPUs.
  bool pdl = false;
};

// "sm_90" or "gfx942" of torch's GPU of this index; throws std::runtime_error if there is none.
const std::string& architecture(int32_t device);
// The device as the choice sees it.
Device device(int32_t index);

// Including the features of an AMD GPU: "gfx90a:sramecc+:xnack-".
const std::string& target(int32_t device);

// Null if kernels for this architecture are packaged or can be compiled here; else the reason why not.
const char* unavailable(const std::string& architecture);

// Launches the kernel with one argument, a structure of `bytes` bytes, passed by value. Asynchronous. Throws
// std::runtime_error with the driver's message or the compiler's log.
void launch(const Kernel& kernel, const Launch& shape, const Queue& queue, const void* arguments, size_t bytes);

template <class Arguments>
void launch(const Kernel& kernel, const Launch& shape, const Queue& queue, const Arguments& arguments) {
  launch(kernel, shape, queue, &arguments, sizeof(Arguments));
}

// From now on this thread's launches are recorded instead of executed, until end_noting(), which returns their kernels.
void begin_noting();
std::set<OwnedEntry> end_noting();

// Descriptor by which the bulk copy engine of sm_90 and later (device/tma.h) copies boxes of a dense tensor with 2-byte
// elements, aligned to 16 bytes. Sizes of tensor and box are innermost first. The innermost size is a multiple of 8
// elements in the tensor and 64 in the box.
TensorMap tensor_map(const void* tensor, std::initializer_list<int64_t> sizes, std::initializer_list<int32_t> box);

// Windows that slide over NHWC images line by line, one image after another. One tap of a filter meets one pixel of
// each window. For each of w, h and images (n): sizes in pixels, pitches in elements, multiples of 8 like the channels.
struct Windows {
  struct Axis {
    int32_t size;   // size of the image
    int64_t pitch;  // from one pixel to the next
    int32_t first;  // where the first window begins
    int32_t count;  // number of windows
    int32_t step;   // from one window to the next

    // The driver's encoding: windows begin from `first` on and before size + end().
    int32_t end() const { return first + (count - 1) * step + 1 - size; }
  };
  int32_t channels;
  Axis w, h;
  int32_t images;
  int64_t image_pitch;

  int32_t count() const { return images * h.count * w.count; }
};

// As tensor_map(), with boxes of 64 channels of `pixels` windows' pixels, at most 1024.
TensorMap windows_map(const void* images, const Windows& windows, int32_t pixels);

}  // namespace reformer::gpu
