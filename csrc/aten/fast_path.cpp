#include "fast_path.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace reformer {

using c10::DispatchKey;
using c10::DispatchKeySet;

namespace {

// Includes the backends, which the difference operator of DispatchKeySet keeps.
bool has_others(DispatchKeySet keys, DispatchKeySet known) { return keys.raw_repr() & ~known.raw_repr(); }

}  // namespace

bool is_eager() {
  constexpr DispatchKeySet always({DispatchKey::BackendSelect, DispatchKey::ADInplaceOrView});
  return !has_others(c10::impl::tls_local_dispatch_key_set().included_, always);
}

bool records_gradients() {
  return c10::GradMode::is_enabled() &&
         !c10::impl::tls_local_dispatch_key_set().excluded_.has_any(c10::autograd_dispatch_keyset);
}

bool is_plain(const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  constexpr DispatchKeySet known({DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::AutogradCPU,
                                  DispatchKey::AutogradCUDA, DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA,
                                  DispatchKey::ADInplaceOrView});
  return !has_others(tensor.key_set(), known) && !tensor._fw_grad(0).defined();
}

}  // namespace reformer
