#include "transforms.h"

#include <utility>

#define REFORMER_ISA_BODY "../winograd/transforms_body.h"
#include "../simd/foreach_isa.h"

namespace reformer {

WinogradTransforms winograd_transforms(WinogradTile tile, Isa isa) {
  return REFORMER_BY_ISA(isa, winograd_transforms)(tile);
}

}  // namespace reformer
