// Handles and descriptors, which callers see as opaque pointers. None is ever freed, so that one which was destroyed is
// known for one, and no other takes its address.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "codes.h"

namespace stub {

enum class Kind { handle, tensor, convolution };

struct Object {
  explicit Object(Kind kind) : kind(kind) {}
  virtual ~Object() = default;

  const Kind kind;
  bool is_live = true;
};

struct Handle final : Object {
  static constexpr Kind kKind = Kind::handle;
  Handle() : Object(kKind) {}

  void* stream = nullptr;
  int device = 0;
  std::string architecture;
  uint64_t thread = 0;
  std::set<std::string> prepared;  // problems and solvers that have run
};

struct Tensor final : Object {
  static constexpr Kind kKind = Kind::tensor;
  Tensor() : Object(kKind) {}

  bool is_set = false;
  int type = 0;
  std::optional<Layout> named_layout;
  std::array<int64_t, 4> lens{}, strides{};  // in N, C, H, W order

  // The one layout that a tensor has, named or by its strides.
  Layout layout() const;
};

struct Convolution final : Object {
  static constexpr Kind kKind = Kind::convolution;
  Convolution() : Object(kKind) {}

  bool is_set = false;
  std::array<int, 2> pad{}, stride{}, dilation{};
  int groups = 1;
  std::map<int, int> attributes;
};

// Takes the object into the list of those that are live; what the caller gets.
void* publish(Object* object);
Object& find(const void* object, Kind kind);
void destroy(const void* object, Kind kind);
int64_t live(Kind kind);

template <class T>
T& find(const void* object) {
  return static_cast<T&>(find(object, T::kKind));
}

// A handle that this thread may use now: its own, or from now on its own, as the thread that had it has ended.
Handle& usable_handle(const void* handle);

// Strides of a packed tensor, in N, C, H, W order.
std::array<int64_t, 4> packed_strides(const std::array<int64_t, 4>& lens, Layout layout);

}  // namespace stub
