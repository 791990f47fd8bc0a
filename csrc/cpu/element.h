// The element types of kernels: how each is widened for computing and narrowed for storing.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "conv/problem.h"

namespace reformer {

using Half = torch::headeronly::Half;
using BFloat16 = torch::headeronly::BFloat16;

// Sum is the accumulator's type: fp32, or fp64 for fp64.
template <class T>
struct Element {
  using Sum = float;
  static Sum load(T value) { return static_cast<float>(value); }
  static T store(Sum value) { return static_cast<T>(value); }
};
template <>
struct Element<double> {
  using Sum = double;
  static Sum load(double value) { return value; }
  static double store(Sum value) { return value; }
};

// Calls body with a value of the C++ type of a floating-point data type.
template <class Body>
void dispatch(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::fp32: return body(float{});
    case DType::fp64: return body(double{});
    case DType::fp16: return body(Half{});
    case DType::bf16: return body(BFloat16{});
    case DType::int8: return;  // no CPU solver supports it
  }
}

}  // namespace reformer
