// Facts from MIOpen's sources, in src/solver/conv/ unless a comment says otherwise. The ids and algorithms are from its
// registry, src/solver.cpp, the rest from each solver's IsApplicable().
#include "solver_table.h"

#include "rules.h"

namespace reformer::miopen {
namespace {

constexpr auto A = Check::asked, R = Check::ruled, U = Check::unchecked;
constexpr auto gemm = Algorithm::gemm, direct = Algorithm::direct, winograd = Algorithm::winograd,
               igemm = Algorithm::implicit_gemm;
constexpr uint8_t fwd = bit(Direction::forward), bwd = bit(Direction::input_grad), wrw = bit(Direction::weight_grad),
                  data = fwd | bwd, any = data | wrw;
constexpr uint8_t f32 = bit(DType::fp32), f16 = bit(DType::fp16), b16 = bit(DType::bf16), halves = f32 | f16,
                  bits16 = f16 | b16, floats = halves | b16;
constexpr uint8_t nchw = bit(Layout::nchw), both = nchw | bit(Layout::nhwc);
// MIOpen declares many of its solvers deprecated and enables them on older architectures only.
constexpr const char *all = "", *gfx908 = "gfx908", *mi100 = "gfx908 gfx90a", *mi300 = "gfx908 gfx90a gfx942",
                     *mfma = "gfx908 gfx90a gfx94 gfx95", *gfx9_old = "gfx900 gfx906 gfx908 gfx90a",
                     *old = "gfx803 gfx900 gfx906 gfx908 gfx90a gfx103";
constexpr Rule mp3 = multipass<3, 3>, mp3_strided = multipass<3, 3, true>, mp5 = multipass<5, 5>, mp7 = multipass<7, 7>,
               mp7x1 = multipass<7, 1>, mp1x7 = multipass<1, 7>;
// fixed: adds in a fixed order, or MIOpen's attribute makes it do so (GEMMs: rocBLAS then uses no atomics).
// atomic: several blocks add to the same result; with that attribute IsApplicable() returns false.
constexpr bool fixed = true, atomic = false;

}  // namespace

const std::vector<MiopenSolver>& solver_table() {
  // clang-format off
  static const std::vector<MiopenSolver> table = {
      // gemm.cpp, gemm_bwd.cpp, gemm_wrw.cpp. NHWC is new in the latest releases; no weights are trained on it.
      {"GemmFwd1x1_0_1",     88,  gemm, A, fwd, floats, nchw, all, fixed, gemm_1x1_stride_1},
      {"GemmFwd1x1_0_2",     90,  gemm, A, fwd, floats, nchw, all, fixed, gemm_1x1_stride_2},
      {"GemmFwdRest",        91,  gemm, A, fwd, floats, nchw, all, fixed, gemm_im2col},
      {"GemmBwd1x1_stride2", 95,  gemm, A, bwd, floats, nchw, all, fixed, gemm_1x1_stride_2},
      {"GemmBwd1x1_stride1", 96,  gemm, A, bwd, floats, nchw, all, fixed, gemm_1x1_stride_1},
      {"GemmBwdRest",        97,  gemm, A, bwd, floats, nchw, all, fixed, gemm_im2col},
      {"GemmWrw1x1_stride1", 101, gemm, R, wrw, floats, nchw, all, fixed, gemm_weight_grad_1x1},
      {"GemmWrwUniversal",   102, gemm, A, wrw, floats, nchw, all, fixed, gemm_im2col},

      // conv_direct_naive_conv{,_fwd,_bwd,_wrw}.cpp.
      {"ConvDirectNaiveConvFwd", 85, direct, R, fwd, floats, both, mi300, fixed, naive},
      {"ConvDirectNaiveConvBwd", 86, direct, R, bwd, floats, both, mi300, fixed, naive},
      {"ConvDirectNaiveConvWrw", 87, direct, R, wrw, floats, both, mi300, fixed, naive},

      // conv_asm_1x1u.cpp, conv_asm_dir_BwdWrW1x1.cpp.
      {"ConvAsm1x1U",      2,  direct, A, data, halves, nchw, gfx9_old, fixed, asm_1x1u},
      {"ConvAsmBwdWrW1x1", 17, direct, A, wrw,  floats, nchw, gfx9_old, fixed, pointwise},
      // conv_asm_3x3u.cpp, conv_asm_1x1u_stride2.cpp, conv_asm_5x10u2v2{f,b}1.cpp, conv_asm_dir_BwdWrW3x3.cpp,
      // conv_asm_7x7c3h224w224k64u2v2p3q3f1.cpp.
      {"ConvAsm3x3U",       1,  direct, U, data, f32, nchw, gfx9_old, fixed, nullptr},
      {"ConvAsm1x1UV2",     3,  direct, U, data, f32, nchw, gfx9_old, fixed, nullptr},
      {"ConvAsm5x10u2v2f1", 5,  direct, U, fwd,  f32, nchw, gfx9_old, fixed, nullptr},
      {"ConvAsm5x10u2v2b1", 6,  direct, U, bwd,  f32, nchw, gfx9_old, fixed, nullptr},
      {"ConvAsm7x7c3h224w224k64u2v2p3q3f1", 7, direct, U, fwd, f32, nchw, gfx9_old, fixed, nullptr},
      {"ConvAsmBwdWrW3x3",  16, direct, U, wrw,  halves, nchw, gfx9_old, fixed, nullptr},

      // conv_ocl_dir2D_bwdWrW_2.cpp, conv_ocl_dir2D_bwdWrW_53.cpp, conv_ocl_dir2D_bwdWrW_1x1.cpp: partial sums go to
      // the workspace, and another kernel adds them.
      {"ConvOclBwdWrW2<1>",        18, direct, A, wrw, floats, nchw, old, fixed, no_dilation},
      {"ConvOclBwdWrW2<2>",        19, direct, A, wrw, floats, nchw, old, fixed, no_dilation},
      {"ConvOclBwdWrW2<4>",        20, direct, A, wrw, floats, nchw, old, fixed, no_dilation},
      {"ConvOclBwdWrW2<8>",        21, direct, A, wrw, floats, nchw, old, fixed, no_dilation},
      {"ConvOclBwdWrW2<16>",       22, direct, A, wrw, floats, nchw, old, fixed, no_dilation},
      {"ConvOclBwdWrW2NonTunable", 23, direct, A, wrw, floats, nchw, old, fixed, no_dilation},
      {"ConvOclBwdWrW53",          24, direct, A, wrw, floats, nchw, old, fixed, no_dilation_stride_1},
      {"ConvOclBwdWrW1x1",         25, direct, A, wrw, floats, nchw, old, fixed, pointwise_16},
      // conv_ocl_dir2D*.cpp. Later releases have another solver, ConvHipDirectFwd11x11, at 8, and none at 11.
      {"ConvOclDirectFwd11x11", 8,  direct, U, fwd,  floats, nchw, old, fixed, nullptr},
      {"ConvOclDirectFwdGen",   9,  direct, U, fwd,  floats, nchw, old, fixed, nullptr},
      {"ConvOclDirectFwd",      11, direct, R, data, floats, nchw, old, fixed, direct_ocl},
      {"ConvOclDirectFwd1x1",   13, direct, R, data, floats, nchw, old, fixed, pointwise_ocl},

      // fft.cpp.
      {"fft", 34, Algorithm::fft, A, data, f32, nchw, all, fixed, fft_5x5},

      // conv_bin_wino3x3U.cpp, conv_bin_winoRxS.cpp, conv_winoRxS.cpp.
      {"ConvBinWinograd3x3U",      14, winograd, R, data, f32,    nchw, gfx908, fixed, winograd_3x3},
      {"ConvBinWinogradRxS",       15, winograd, R, any,  halves, nchw, gfx908, fixed, winograd_rxs},
      {"ConvBinWinogradRxSf3x2",   37, winograd, R, any,  halves, nchw, mi300,  fixed, winograd_v30},
      {"ConvBinWinogradRxSf2x3",   53, winograd, R, any,  halves, nchw, mi300,  fixed, winograd_v30_groups},
      {"ConvBinWinogradRxSf2x3g1", 84, winograd, R, any,  halves, nchw, mi300,  fixed, winograd_v30_one_group},
      // conv_multipass_wino3x3WrW.cpp: the name has the filter's size and how many outputs a tile has.
      {"ConvWinograd3x3MultipassWrW<3-4>",     35, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp3},
      {"ConvWinograd3x3MultipassWrW<3-5>",     38, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp3},
      {"ConvWinograd3x3MultipassWrW<3-6>",     39, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp3},
      {"ConvWinograd3x3MultipassWrW<3-2>",     40, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp3_strided},
      {"ConvWinograd3x3MultipassWrW<3-3>",     41, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp3_strided},
      {"ConvWinograd3x3MultipassWrW<7-2>",     42, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp7},
      {"ConvWinograd3x3MultipassWrW<7-3>",     43, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp7},
      {"ConvWinograd3x3MultipassWrW<7-2-1-1>", 44, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp7x1},
      {"ConvWinograd3x3MultipassWrW<7-3-1-1>", 45, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp7x1},
      {"ConvWinograd3x3MultipassWrW<1-1-7-2>", 46, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp1x7},
      {"ConvWinograd3x3MultipassWrW<1-1-7-3>", 47, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp1x7},
      {"ConvWinograd3x3MultipassWrW<5-3>",     48, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp5},
      {"ConvWinograd3x3MultipassWrW<5-4>",     49, winograd, A, wrw, floats, nchw, gfx9_old, fixed, mp5},

      // conv_asm_implicit_gemm_gtc_{fwd,bwd,wrw}_nhwc.cpp: NCHW is transposed in the workspace.
      {"ConvAsmImplicitGemmGTCDynamicFwdXdlopsNHWC", 107, igemm, A, fwd, floats, both, mfma, atomic, gtc_nhwc},
      {"ConvAsmImplicitGemmGTCDynamicBwdXdlopsNHWC", 108, igemm, A, bwd, floats, both, mfma, atomic, gtc_nhwc},
      {"ConvAsmImplicitGemmGTCDynamicWrwXdlopsNHWC", 110, igemm, A, wrw, floats, both, mfma, atomic, gtc_nhwc},
      // conv_asm_implicit_gemm_gtc_{fwd,bwd}.cpp, conv_asm_implicit_gemm_wrw_gtc_dynamic_xdlops.cpp.
      {"ConvAsmImplicitGemmGTCDynamicWrwXdlops", 72, igemm, A, wrw, halves, nchw, gfx908, atomic, one_group},
      {"ConvAsmImplicitGemmGTCDynamicFwdXdlops", 74, igemm, R, fwd, halves, nchw, gfx908, atomic, gtc_nchw},
      {"ConvAsmImplicitGemmGTCDynamicBwdXdlops", 82, igemm, R, bwd, halves, nchw, gfx908, atomic, gtc_nchw},

      // conv_hip_implicit_gemm_bwd_v1r1.cpp, conv_hip_implicit_gemm_wrw_v4r4_xdlops{,_padded_gemm}.cpp.
      {"ConvHipImplicitGemmBwdDataV1R1",               55, igemm, A, bwd, f32,    nchw, old,   atomic, bwd_v1r1},
      {"ConvHipImplicitGemmWrwV4R4Xdlops",             73, igemm, A, wrw, floats, nchw, mi100, atomic, alternative},
      {"ConvHipImplicitGemmWrwV4R4Xdlops_Padded_Gemm", 83, igemm, A, wrw, floats, nchw, mi100, atomic, alternative},
      // conv_hip_implicit_gemm_{fwd_v4r1,wrw_v4r4,fwd_v4r4,bwd_v4r1_xdlops,fwd_v4r4_xdlops*,fwd_v4r5_xdlops}.cpp. Which
      // tiles fit decides whether they apply.
      {"ConvHipImplicitGemmV4R1Fwd",                       26, igemm, U, fwd, floats, nchw, old,   atomic, nullptr},
      {"ConvHipImplicitGemmV4R1WrW",                       31, igemm, U, wrw, floats, nchw, old,   atomic, nullptr},
      {"ConvHipImplicitGemmV4R4Fwd",                       54, igemm, U, fwd, f32,    nchw, old,   atomic, nullptr},
      {"ConvHipImplicitGemmBwdDataV4R1Xdlops",             60, igemm, U, bwd, bits16, nchw, mi100, atomic, nullptr},
      {"ConvHipImplicitGemmV4R4WrW",                       61, igemm, U, wrw, f32,    nchw, old,   atomic, nullptr},
      {"ConvHipImplicitGemmForwardV4R4Xdlops",             64, igemm, R, fwd, floats, nchw, mi100, atomic, whole_tiles},
      {"ConvHipImplicitGemmForwardV4R5Xdlops",             80, igemm, U, fwd, floats, nchw, mi100, atomic, nullptr},
      {"ConvHipImplicitGemmForwardV4R4Xdlops_Padded_Gemm", 81, igemm, R, fwd, floats, nchw, mi100, atomic, part_tiles},

      // conv_mlir_igemm_{fwd,bwd,wrw}_xdlops.cpp: builds without MLIR support no problem.
      {"ConvMlirIgemmFwdXdlops", 103, igemm, U, fwd, halves, both, mfma, atomic, nullptr},
      {"ConvMlirIgemmBwdXdlops", 104, igemm, U, bwd, halves, both, mfma, atomic, nullptr},
      {"ConvMlirIgemmWrWXdlops", 105, igemm, A, wrw, halves, both, mfma, atomic, nullptr},

      // conv_hip_implicit_gemm_fwd_xdlops.cpp, conv_hip_implicit_gemm_bwd_data_xdlops.cpp.
      {"ConvHipImplicitGemmFwdXdlops", 128, igemm, U, fwd, halves, both, mfma, atomic, nullptr},
      {"ConvHipImplicitGemmBwdXdlops", 129, igemm, U, bwd, halves, both, mfma, atomic, nullptr},
      // conv_hip_implicit_gemm_grouped_{fwd,bwd,wrw}_xdlops.cpp: NCHW is transposed in the workspace.
      {"ConvHipImplicitGemmGroupFwdXdlops", 137, igemm, A, fwd, floats, both, mfma, atomic, nullptr},
      {"ConvHipImplicitGemmGroupBwdXdlops", 155, igemm, A, bwd, floats, both, mfma, atomic, nullptr},
      {"ConvHipImplicitGemmGroupWrwXdlops", 156, igemm, A, wrw, floats, both, mfma, atomic, nullptr},
  };
  // clang-format on
  return table;
}

}  // namespace reformer::miopen
