#include "objects.h"

#include <memory>
#include <unordered_map>

#include "calls.h"
#include "hip.h"

namespace stub {
namespace {

constexpr const char* kNames[] = {"handle", "tensor descriptor", "convolution descriptor"};
constexpr const char* name(Kind kind) { return kNames[static_cast<int>(kind)]; }

auto& objects = *new std::unordered_map<const void*, std::unique_ptr<Object>>;

// Strides of dimensions of one element say nothing.
bool has_strides(const Tensor& tensor, Layout layout) {
  const auto packed = packed_strides(tensor.lens, layout);
  for (size_t i = 0; i < packed.size(); ++i)
    if (tensor.lens[i] > 1 && tensor.strides[i] != packed[i]) return false;
  return true;
}

}  // namespace

void* publish(Object* object) {
  const std::lock_guard lock(state);
  objects.emplace(object, object);
  return object;
}

Object& find(const void* object, Kind kind) {
  const std::lock_guard lock(state);
  const std::string wanted = name(kind);
  if (!object) misuse("null where a " + wanted + " belongs");
  const auto found = objects.find(object);
  if (found == objects.end()) misuse("something unknown where a " + wanted + " belongs");
  if (found->second->kind != kind)
    misuse(std::string("a ") + name(found->second->kind) + " where a " + wanted + " belongs");
  if (!found->second->is_live) misuse("a " + wanted + " that was destroyed");
  return *found->second;
}

void destroy(const void* object, Kind kind) {
  Object& found = find(object, kind);
  const std::lock_guard lock(state);
  found.is_live = false;
}

int64_t live(Kind kind) {
  const std::lock_guard lock(state);
  int64_t count = 0;
  for (const auto& [address, object] : objects) count += object->kind == kind && object->is_live;
  return count;
}

Handle& usable_handle(const void* object) {
  Handle& handle = find<Handle>(object);
  if (handle.thread != this_thread()) {
    if (!has_ended(handle.thread)) misuse("the handle of another thread");
    handle.thread = this_thread();
  }
  const int current = hip::current_device();
  if (current != handle.device)
    misuse("the handle's device is " + std::to_string(handle.device) + ", but the current one is " +
           std::to_string(current));
  return handle;
}

std::array<int64_t, 4> packed_strides(const std::array<int64_t, 4>& lens, Layout layout) {
  const auto [n, c, h, w] = lens;
  if (layout == kNchw) return {c * h * w, h * w, w, 1};
  return {h * w * c, 1, w * c, c};
}

Layout Tensor::layout() const {
  if (!is_set) misuse("a tensor descriptor that was never set");
  if (named_layout) return *named_layout;
  const bool is_nchw = has_strides(*this, kNchw), is_nhwc = has_strides(*this, kNhwc);
  if (is_nchw && is_nhwc) misuse("strides that are those of NCHW and of NHWC: name the layout");
  if (!is_nchw && !is_nhwc) misuse("strides of neither NCHW nor NHWC");
  return is_nchw ? kNchw : kNhwc;
}

}  // namespace stub
