// Codes of MIOpen's public interface.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stub {

enum Status : int {
  kSuccess = 0,
  kInvalidValue = 2,
  kBadParameter = 3,
  kUnknownError = 7,  // any error of HIP, too
};

enum DataType : int { kHalf = 0, kFloat = 1, kInt32 = 2, kInt8 = 3, kBFloat16 = 5, kDouble = 6 };
enum Layout : int { kNchw = 0, kNhwc = 1 };
enum Algorithm : int { kGemm = 0, kDirect = 1, kFft = 2, kWinograd = 3, kImplicitGemm = 5 };
enum Attribute : int { kFp16Alternative = 0, kDeterministic = 1, kMathType = 3 };

struct Solution {  // miopenConvSolution_t
  float time;
  size_t workspace;
  uint64_t id;
  int algorithm;
};
static_assert(sizeof(Solution) == 32 && offsetof(Solution, workspace) == 8 && offsetof(Solution, id) == 16 &&
              offsetof(Solution, algorithm) == 24);

}  // namespace stub
