// Conditions of the solvers in solver_table.cpp beyond directions, data types, layouts and architectures. For solvers
// that MIOpen is asked about they are necessary; for the others they are exact for releases 5.7 to 7.2, or stricter.
#pragma once

#include <string>

#include "conv/problem.h"

namespace reformer::miopen {

// For solvers that MIOpen is asked about.
const char* one_group(const ConvProblem&, const std::string& arch);
const char* no_dilation(const ConvProblem&, const std::string& arch);
const char* no_dilation_stride_1(const ConvProblem&, const std::string& arch);
const char* alternative(const ConvProblem&, const std::string& arch);   // not if fp16 is rounded to bf16
const char* pointwise(const ConvProblem&, const std::string& arch);     // one group, stride 1 or 2
const char* pointwise_16(const ConvProblem&, const std::string& arch);  // one group, channels in multiples of 16
const char* asm_1x1u(const ConvProblem&, const std::string& arch);
const char* bwd_v1r1(const ConvProblem&, const std::string& arch);
const char* gemm_1x1_stride_1(const ConvProblem&, const std::string& arch);
const char* gemm_1x1_stride_2(const ConvProblem&, const std::string& arch);
const char* gemm_im2col(const ConvProblem&, const std::string& arch);  // problems that the other GEMMs don't support
const char* gtc_nhwc(const ConvProblem&, const std::string& arch);
const char* fft_5x5(const ConvProblem&, const std::string& arch);
template <int R, int S, bool Strided = false>
const char* multipass(const ConvProblem&, const std::string& arch);

// For solvers that nothing else checks.
const char* gemm_weight_grad_1x1(const ConvProblem&, const std::string& arch);
const char* winograd_3x3(const ConvProblem&, const std::string& arch);
const char* winograd_rxs(const ConvProblem&, const std::string& arch);
const char* winograd_v30(const ConvProblem&, const std::string& arch);
const char* winograd_v30_one_group(const ConvProblem&, const std::string& arch);
const char* winograd_v30_groups(const ConvProblem&, const std::string& arch);
const char* whole_tiles(const ConvProblem&, const std::string& arch);  // of the forward implicit GEMM V4R4
const char* part_tiles(const ConvProblem&, const std::string& arch);
const char* gtc_nchw(const ConvProblem&, const std::string& arch);  // not with xnack: see conditions.cpp
const char* direct_ocl(const ConvProblem&, const std::string& arch);
const char* pointwise_ocl(const ConvProblem&, const std::string& arch);
const char* naive(const ConvProblem&, const std::string& arch);

}  // namespace reformer::miopen
