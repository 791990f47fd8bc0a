#pragma once

namespace reformer {

struct ScaleArgs {
  const void* x;
  void* y;
  int count;
};

}  // namespace reformer
