#pragma once

#include "../device/divide.h"

namespace reformer {

struct ScaleArgs {
  const void* x;
  void* y;
  int count;
  Divider columns;  // made by the host: a header of both
};

}  // namespace reformer
