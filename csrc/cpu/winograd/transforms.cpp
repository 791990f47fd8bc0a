#include "transforms.h"

#include <utility>

#define REFORMER_ISA_BODY "cpu/winograd/transforms_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer {

WinogradTransforms winograd_transforms(WinogradTile tile, Isa isa) {
  return REFORMER_BY_ISA(isa, winograd_transforms)(tile);
}

}  // namespace reformer
