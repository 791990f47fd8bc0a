// One line for each solver: its file defines the function, solver_list.cpp orders them.
#pragma once

#include "solver.h"

namespace reformer {

const Solver& aten();  // aten_solvers.cpp
const Solver& aten_nhwc();
const Solver& aten_nchw();
const Solver& gemm_1x1();          // cpu/solvers/gemm_1x1.cpp
const Solver& direct_depthwise();  // cpu/solvers/direct_depthwise.cpp
const Solver& direct();            // cpu/solvers/direct.cpp
const Solver& implicit_gemm();     // cpu/solvers/implicit_gemm.cpp
const Solver& winograd_2x4();      // cpu/solvers/winograd.cpp
const Solver& winograd_4x4();
const Solver& gpu_depthwise_2x4();  // hip/solvers/depthwise.cpp
const Solver& gpu_depthwise_2x7();
const Solver& gpu_depthwise_4x4();
const Solver& gpu_depthwise_4x7();
const Solver& gpu_depthwise_planes_wide();  // hip/solvers/depthwise_planes.cpp
const Solver& gpu_depthwise_planes_tall();
const Solver& gpu_gemm_128x256();  // hip/solvers/implicit_gemm.cpp
const Solver& gpu_gemm_128x128();
const Solver& gpu_gemm_128x64();
const Solver& gpu_gemm_64x128();
const Solver& gpu_gemm_64x64();
const Solver& gpu_gemm_128x32();
const Solver& gpu_gemm_64x32();
const Solver& gpu_gemm_32x32();
const Solver& gpu_packed_gemm_128x64();  // hip/solvers/packed_gemm.cpp
const Solver& gpu_packed_gemm_64x64();
const Solver& gpu_packed_gemm_128x32();
const Solver& gpu_tma_depthwise();     // hip/solvers/tma_depthwise.cpp
const Solver& gpu_tma_gemm_128x256();  // hip/solvers/tma_gemm.cpp
const Solver& gpu_tma_gemm_128x192();
const Solver& gpu_tma_gemm_128x128();
const Solver& gpu_tma_gemm_128x64();
const Solver& gpu_tma_gemm_64x128();
const Solver& gpu_tma_gemm_64x64();
const Solver& reference();  // cpu/solvers/reference.cpp

}  // namespace reformer
