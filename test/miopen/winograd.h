// To which problems MIOpen's binary Winograd kernels of any filter size are applicable, as its sources say
// (conv_bin_winoRxS.cpp, conv_winoRxS.cpp). Data type, layout, dilation and direction are the table's to check.
#pragma once

#include <string>

#include "problem.h"

namespace stub {

bool winograd_rxs(const Problem& problem, const std::string& architecture);       // 15
bool winograd_rxs_f3x2(const Problem& problem, const std::string& architecture);  // 37
bool winograd_rxs_f2x3(const Problem& problem, const std::string& architecture);  // 53 with groups, 84 without

}  // namespace stub
