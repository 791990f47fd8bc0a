// GPUs as the solvers see them: their architecture, and kernels to launch. Everything behind it finds the driver (HIP's
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

// A kernel of csrc/hip. By the same three names it is found in the packaged code object of its file, or
// compiled alone at run time.
struct Entry {
  const char* file;       // its folder and stem: "gemm/implicit_gemm"
  const char* name;       // the extern "C" function's
  const char* arguments;  // what the file's macro X makes this one function of: "forward, bf16, 3, 1, 4, 4"
  const char* text = "";  // source that follows the file, for kernels that are generated; it is part of their name
};

// An Entry that owns its names.
struct OwnedEntry {
  std::string file, name, arguments, text;

  Entry entry() const { return {file.c_str(), name.c_str(), arguments.c_str(), text.c_str()}; }
  bool operator<(const OwnedEntry& other) const {
    return std::tie(file, name, arguments) < std::tie(other.file, other.name, other.arguments);
  }
};

// A kernel that is launched again and again: it remembers what the driver calls it on each device where it was
// launched, so that it is looked up by its names once. A copy is the same kernel.
class Kernel {
 public:
  // Names that stay where they are: constants.
  explicit Kernel(const Entry& entry) : known_(std::make_shared<Known>()) { known_->entry = entry; }
  // A name and a text that are generated.
  Kernel(const char* file, std::string name, const char* arguments, std::string text)
      : known_(std::make_shared<Known>()) {
    known_->name = std::move(name), known_->text = std::move(text);
    known_->entry = {file, known_->name.c_str(), arguments, known_->text.c_str()};
  }

  const Entry& entry() const { return known_->entry; }
  // The driver's function on torch's GPU of this index, which is the current one. Throws as launch() does.
  void* function(int32_t device) const;

 private:
  struct Known {
    std::string name, text;
    Entry entry;
    std::array<std::atomic<void*>, 16> functions{};  // of the first devices; others are looked up each time
  };
  std::shared_ptr<Known> known_;
};

struct Launch {
  uint32_t blocks_x = 1, blocks_y = 1, blocks_z = 1;
  uint32_t threads = 1;       // threads of a block
  uint32_t shared_bytes = 0;  // dynamic shared memory of a block
  uint32_t cluster_z = 1;     // blocks of a cluster, along z; more than 1 only on sm_90 and later
  // Programmatic dependent launch: the kernel may begin before the kernels before it have ended, and waits for them
  // itself (device/grid_dependency.h). Before sm_90 and on AMD's GPUs it has no effect.
  bool pdl = false;
};

// "sm_90" or "gfx942" of torch's GPU of this index; throws std::runtime_error if there is none.
const std::string& architecture(int32_t device);
// As the choice sees it.
inline Device device(int32_t index) { return {DeviceKind::cuda, Isa::plain, 1, architecture(index), index}; }

// With the features of an AMD GPU: "gfx90a:sramecc+:xnack-".
const std::string& target(int32_t device);

// Null if kernels for this architecture are packaged or can be compiled here; or the reason why not.
const char* unavailable(const std::string& architecture);

// Starts the kernel with one argument, a structure of that many bytes, passed by value. Returns before it has run.
// Throws std::runtime_error with the driver's message, or with the compiler's log.
void launch(const Kernel& kernel, const Launch& shape, const Queue& queue, const void* arguments, size_t bytes);

template <class Arguments>
void launch(const Kernel& kernel, const Launch& shape, const Queue& queue, const Arguments& arguments) {
  launch(kernel, shape, queue, &arguments, sizeof(Arguments));
}

// From now on this thread's launches are noted and not done, until end_noting(), which gives their kernels.
void begin_noting();
std::set<OwnedEntry> end_noting();

// How the bulk copy engine of sm_90 and later finds a dense tensor of elements of 2 bytes at a multiple of 16 bytes
// (device/tma.h), of which boxes are copied: sizes of both, innermost first. The innermost is a multiple of 8 elements,
// and 64 of a box.
TensorMap tensor_map(const void* tensor, std::initializer_list<int64_t> sizes, std::initializer_list<int32_t> box);

// Windows that pass over images in NHWC, line by line, one image after another. One tap of a filter meets one pixel
// in each. Along w, h and images (n): sizes in pixels, pitches in elements, a multiple of 8 as the channels are.
struct Windows {
  struct Axis {
    int32_t size;   // the image's
    int64_t pitch;  // from pixel to pixel
    int32_t first;  // where the first window begins
    int32_t count;  // windows
    int32_t step;   // from one to the next

    // The driver's form of these: windows begin from `first` on and before size + end().
    int32_t end() const { return first + (count - 1) * step + 1 - size; }
  };
  int32_t channels;
  Axis w, h;
  int32_t images;
  int64_t image_pitch;

  int32_t count() const { return images * h.count * w.count; }
};

// As tensor_map, of boxes that have 64 channels and as many windows' pixels as `pixels` says, at most 1024.
TensorMap windows_map(const void* images, const Windows& windows, int32_t pixels);

}  // namespace reformer::gpu
