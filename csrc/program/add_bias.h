// The program that adds a bias of the channels to a result, for convolutions that add none.
#pragma once

#include <array>
#include <cstdint>

#include "program.h"

namespace reformer {

// In the format of Program::decode(). The only input is the bias.
inline std::array<int64_t, 25> add_bias_code() {
  const auto op = [](ProgramOp of) { return int64_t(of); };
  return {1,
          3,
          1,                       // inputs, nodes, outputs
          op(ProgramOp::channel),  // the input's kind
          op(ProgramOp::acc),
          -1,
          -1,
          -1,
          0,  // nodes: operation, operands, attribute
          op(ProgramOp::channel),
          -1,
          -1,
          -1,
          0,  //
          op(ProgramOp::add),
          0,
          1,
          -1,
          0,  //
          int64_t(Reduction::none),
          int64_t(Per::element),
          2,
          int64_t(Stored::result),
          -1,
          -1};
}

}  // namespace reformer
