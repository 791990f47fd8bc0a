// The body of transforms.cpp, compiled once for each instruction set.
#include "cpu/simd/transpose.h"
#include "toom_cook.h"

// These use the two headers above.
#include "filter_transform.h"
#include "input_transform.h"
#include "output_transform.h"

namespace reformer::REFORMER_ISA {

template <int MH, int MW>
WinogradTransforms winograd_transforms_of() {
  return {transform_filter<MH, MW>, transform_input<MH, MW>, transform_output<MH, MW>};
}

inline WinogradTransforms winograd_transforms(WinogradTile tile) {
  return tile.h == 2 ? winograd_transforms_of<2, 4>() : winograd_transforms_of<4, 4>();
}

}  // namespace reformer::REFORMER_ISA
