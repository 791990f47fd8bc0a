// torch 2.11 holds autograd's nodes by std::shared_ptr, 2.13 by c10::intrusive_ptr.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>

namespace reformer {

template <class Node>
auto make_node() {
#if __has_include(<torch/csrc/autograd/node.h>)
  return c10::make_intrusive<Node>();
#else
  return std::shared_ptr<Node>(new Node, torch::autograd::deleteNode);
#endif
}

}  // namespace reformer
