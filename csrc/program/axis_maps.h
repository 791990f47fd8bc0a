// Maps of a tensor's axes: a mapped tensor is read through one sparse matrix of few entries a row for each of some
// axes.
//
// A mapped tensor's placement gives the part of an element's address that follows from line and column directly. To it,
// each map adds the place of one of its taps. A map has `width` numbers for each position: the places of its taps (-1:
// no tap, behind all others), in elements, or pairs of a place and the bits of an fp32 weight; it begins at a multiple
// of 16 bytes. The position is a placement of the map's own for each line or, if it has none, the column; then the
// tensor's placement is of lines, too. No axis is empty: kernels read place 0 where there is no tap.
//
// An element is the sum over all combinations of one tap of each map, of the product of their weights and the tensor's
// element there. An element without any combination is a number of the program. Weights multiply only elements that are
// read, so NaN of other elements does not matter.
#pragma once

#include "program.h"

namespace reformer {

constexpr int kMostMaps = 8;    // of a program
constexpr int kMostTaps = 256;  // of an element
constexpr int kMostMapWidth = 255;

struct AxisMap {
  size_t input;  // among the program's
  int taps;
  bool has_weights, by_column;
};

// The maps of one of a call's inputs, a mapped tensor.
class AxisMaps {
 public:
  AxisMaps(const ProgramCall& call, size_t mapped) : count_(call.program.inputs[mapped].maps) {
    for (int i = 0; i < count_; ++i) {
      const size_t input = mapped + 1 + size_t(i);
      const bool has_weights = call.program.inputs[input].kind == ProgramOp::weighted;
      const ProgramOperand& operand = call.inputs[input];
      maps_[i] = {input, operand.width / (has_weights ? 2 : 1), has_weights, operand.place < 0};
    }
  }
  int size() const { return count_; }
  const AxisMap& operator[](int i) const { return maps_[i]; }
  const AxisMap* begin() const { return maps_; }
  const AxisMap* end() const { return maps_ + count_; }
  // The map of columns, or null.
  const AxisMap* of_columns() const {
    for (const AxisMap& map : *this)
      if (map.by_column) return &map;
    return nullptr;
  }
  // True if each element is one of the tensor's, or comes from nowhere.
  bool only_choose() const {
    for (const AxisMap& map : *this)
      if (map.taps > 1 || map.has_weights) return false;
    return true;
  }

 private:
  AxisMap maps_[kMostMapsOfTensor];
  int count_;
};

}  // namespace reformer
