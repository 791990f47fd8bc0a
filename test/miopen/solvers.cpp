#include "solvers.h"

#include <cstdlib>

#include "calls.h"

namespace stub {
namespace {

constexpr Solver kSolvers[] = {
    {1, "ConvAsm3x3U", kDirect, Query::zero, "FB", "f", Layouts::nchw, 3, 3, 1, kOneGroup | kNoDilation, "gfx9",
     Workspace::none, Registries::all},
    {2, "ConvAsm1x1U", kDirect, Query::checks, "FB", "fhb", Layouts::nchw, 1, 1, 0, kNoPad | kOneGroup, "gfx9",
     Workspace::transposed, Registries::all},
    {3, "ConvAsm1x1UV2", kDirect, Query::zero, "FB", "fh", Layouts::nchw, 1, 1, 0, kNoPad | kOneGroup, "gfx9",
     Workspace::none, Registries::all},
    {5, "ConvAsm5x10u2v2f1", kDirect, Query::zero, "F", "f", Layouts::nchw, 5, 10, 2, kOneGroup | kNoDilation, "gfx9",
     Workspace::none, Registries::all},
    {6, "ConvAsm5x10u2v2b1", kDirect, Query::zero, "B", "f", Layouts::nchw, 5, 10, 2, kOneGroup | kNoDilation, "gfx9",
     Workspace::none, Registries::all},
    {7, "ConvAsm7x7c3h224w224k64u2v2p3q3f1", kDirect, Query::zero, "F", "f", Layouts::nchw, 7, 7, 2,
     kOneGroup | kNoDilation, "gfx9", Workspace::none, Registries::all},
    {8, "ConvOclDirectFwd11x11", kDirect, Query::zero, "F", "f", Layouts::nchw, 11, 11, 0, kOneGroup | kNoDilation,
     "gfx", Workspace::none, Registries::old},
    {8, "ConvHipDirectFwd11x11", kDirect, Query::zero, "F", "f", Layouts::nchw, 11, 11, 0, kOneGroup | kNoDilation,
     "gfx", Workspace::none, Registries::newest},
    {9, "ConvOclDirectFwdGen", kDirect, Query::zero, "F", "fh", Layouts::nchw, 0, 0, 0, kOneGroup | kNoDilation, "gfx",
     Workspace::none, Registries::old},
    {11, "ConvOclDirectFwd", kDirect, Query::zero, "FB", "fhb", Layouts::nchw, 0, 0, 0, kNoDilation, "gfx",
     Workspace::none, Registries::old},
    {13, "ConvOclDirectFwd1x1", kDirect, Query::zero, "FB", "fhb", Layouts::nchw, 1, 1, 0, kNoPad | kOneGroup, "gfx",
     Workspace::none, Registries::old},
    {14, "ConvBinWinograd3x3U", kWinograd, Query::zero, "FB", "f", Layouts::nchw, 3, 3, 1, kOneGroup | kNoDilation,
     "gfx90", Workspace::none, Registries::all},
    {15, "ConvBinWinogradRxS", kWinograd, Query::zero, "FBW", "fh", Layouts::nchw, 0, 0, 0, kOneGroup | kNoDilation,
     "gfx90", Workspace::none, Registries::all},
    {16, "ConvAsmBwdWrW3x3", kDirect, Query::zero, "W", "fhb", Layouts::nchw, 3, 3, 0, kNoDilation, "gfx9",
     Workspace::none, Registries::all},
    {17, "ConvAsmBwdWrW1x1", kDirect, Query::checks, "W", "fhb", Layouts::nchw, 1, 1, 0, kNoPad | kOneGroup, "gfx9",
     Workspace::transposed, Registries::all},
    {18, "ConvOclBwdWrW2<1>", kDirect, Query::checks, "W", "fh", Layouts::nchw, 0, 0, 0, kOneGroup | kNoDilation, "gfx",
     Workspace::wide_weights, Registries::old},
    {19, "ConvOclBwdWrW2<2>", kDirect, Query::checks, "W", "fh", Layouts::nchw, 0, 0, 0, kOneGroup | kNoDilation, "gfx",
     Workspace::wide_weights, Registries::old},
    {20, "ConvOclBwdWrW2<4>", kDirect, Query::checks, "W", "fh", Layouts::nchw, 0, 0, 0, kOneGroup | kNoDilation, "gfx",
     Workspace::wide_weights, Registries::old},
    {21, "ConvOclBwdWrW2<8>", kDirect, Query::checks, "W", "fh", Layouts::nchw, 0, 0, 0, kOneGroup | kNoDilation, "gfx",
     Workspace::wide_weights, Registries::old},
    {22, "ConvOclBwdWrW2<16>", kDirect, Query::checks, "W", "fh", Layouts::nchw, 0, 0, 0, kOneGroup | kNoDilation,
     "gfx", Workspace::wide_weights, Registries::old},
    {23, "ConvOclBwdWrW2NonTunable", kDirect, Query::checks, "W", "fhb", Layouts::nchw, 0, 0, 0,
     kOneGroup | kNoDilation, "gfx", Workspace::wide_weights, Registries::old},
    {24, "ConvOclBwdWrW53", kDirect, Query::checks, "W", "fhb", Layouts::nchw, 0, 0, 1, kNoDilation, "gfx",
     Workspace::wide_weights, Registries::all},
    {25, "ConvOclBwdWrW1x1", kDirect, Query::checks, "W", "fhb", Layouts::nchw, 1, 1, 0, kNoPad | kOneGroup, "gfx",
     Workspace::transposed, Registries::old},
    {26, "ConvHipImplicitGemmV4R1Fwd", kImplicitGemm, Query::zero, "F", "f", Layouts::nchw, 0, 0, 0, kNothing, "gfx",
     Workspace::none, Registries::all},
    {31, "ConvHipImplicitGemmV4R1WrW", kImplicitGemm, Query::zero, "W", "f", Layouts::nchw, 0, 0, 0, kNothing, "gfx",
     Workspace::none, Registries::all},
    {34, "fft", kFft, Query::checks, "FB", "f", Layouts::nchw, 5, 5, 1, kOneGroup | kNoDilation, "gfx",
     Workspace::spectra, Registries::all},
    {35, "ConvWinograd3x3MultipassWrW<3-4>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 3, 3, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {37, "ConvBinWinogradRxSf3x2", kWinograd, Query::zero, "FBW", "fh", Layouts::nchw, 0, 0, 0, kNoDilation, "gfx9",
     Workspace::none, Registries::all},
    {38, "ConvWinograd3x3MultipassWrW<3-5>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 3, 3, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {39, "ConvWinograd3x3MultipassWrW<3-6>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 3, 3, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {40, "ConvWinograd3x3MultipassWrW<3-2>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 3, 3, 2,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {41, "ConvWinograd3x3MultipassWrW<3-3>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 3, 3, 2,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {42, "ConvWinograd3x3MultipassWrW<7-2>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 7, 7, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {43, "ConvWinograd3x3MultipassWrW<7-3>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 7, 7, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {44, "ConvWinograd3x3MultipassWrW<7-2-1-1>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 7, 1, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {45, "ConvWinograd3x3MultipassWrW<7-3-1-1>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 7, 1, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {46, "ConvWinograd3x3MultipassWrW<1-1-7-2>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 1, 7, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {47, "ConvWinograd3x3MultipassWrW<1-1-7-3>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 1, 7, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {48, "ConvWinograd3x3MultipassWrW<5-3>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 5, 5, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {49, "ConvWinograd3x3MultipassWrW<5-4>", kWinograd, Query::checks, "W", "fhb", Layouts::nchw, 5, 5, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::spectra, Registries::all},
    {53, "ConvBinWinogradRxSf2x3", kWinograd, Query::zero, "FBW", "fh", Layouts::nchw, 0, 0, 0, kNoDilation, "gfx9",
     Workspace::none, Registries::all},
    {54, "ConvHipImplicitGemmV4R4Fwd", kImplicitGemm, Query::zero, "F", "f", Layouts::nchw, 0, 0, 0, kNothing, "gfx",
     Workspace::none, Registries::all},
    {55, "ConvHipImplicitGemmBwdDataV1R1", kImplicitGemm, Query::checks, "B", "fhb", Layouts::nchw, 0, 0, 0, kNothing,
     "gfx", Workspace::wide_weights, Registries::all},
    {60, "ConvHipImplicitGemmBwdDataV4R1Xdlops", kImplicitGemm, Query::zero, "B", "fhb", Layouts::nchw, 0, 0, 0,
     kNothing, "gfx9", Workspace::none, Registries::all},
    {61, "ConvHipImplicitGemmV4R4WrW", kImplicitGemm, Query::zero, "W", "f", Layouts::nchw, 0, 0, 0, kNothing, "gfx",
     Workspace::none, Registries::all},
    {64, "ConvHipImplicitGemmForwardV4R4Xdlops", kImplicitGemm, Query::zero, "F", "fhb", Layouts::nchw, 0, 0, 0,
     kNothing, "gfx9", Workspace::none, Registries::all},
    {72, "ConvAsmImplicitGemmGTCDynamicWrwXdlops", kImplicitGemm, Query::checks, "W", "fh", Layouts::nchw, 0, 0, 0,
     kNothing, "gfx908", Workspace::wide_weights, Registries::all},
    {73, "ConvHipImplicitGemmWrwV4R4Xdlops", kImplicitGemm, Query::checks, "W", "fhb", Layouts::nchw, 0, 0, 0, kNothing,
     "gfx9", Workspace::wide_weights, Registries::all},
    {74, "ConvAsmImplicitGemmGTCDynamicFwdXdlops", kImplicitGemm, Query::zero, "F", "fh", Layouts::nchw, 0, 0, 0,
     kNothing, "gfx908", Workspace::none, Registries::all},
    {80, "ConvHipImplicitGemmForwardV4R5Xdlops", kImplicitGemm, Query::zero, "F", "fhb", Layouts::nchw, 0, 0, 0,
     kNothing, "gfx9", Workspace::none, Registries::all},
    {81, "ConvHipImplicitGemmForwardV4R4Xdlops_Padded_Gemm", kImplicitGemm, Query::zero, "F", "fhb", Layouts::nchw, 0,
     0, 0, kNothing, "gfx9", Workspace::none, Registries::all},
    {82, "ConvAsmImplicitGemmGTCDynamicBwdXdlops", kImplicitGemm, Query::zero, "B", "fh", Layouts::nchw, 0, 0, 0,
     kNothing, "gfx908", Workspace::none, Registries::all},
    {83, "ConvHipImplicitGemmWrwV4R4Xdlops_Padded_Gemm", kImplicitGemm, Query::checks, "W", "fhb", Layouts::nchw, 0, 0,
     0, kNothing, "gfx9", Workspace::wide_weights, Registries::all},
    {84, "ConvBinWinogradRxSf2x3g1", kWinograd, Query::zero, "FBW", "fh", Layouts::nchw, 0, 0, 0,
     kOneGroup | kNoDilation, "gfx9", Workspace::none, Registries::all},
    {85, "ConvDirectNaiveConvFwd", kDirect, Query::zero, "F", "fhb", Layouts::both, 0, 0, 0, kNothing, "gfx",
     Workspace::none, Registries::all},
    {86, "ConvDirectNaiveConvBwd", kDirect, Query::zero, "B", "fhb", Layouts::both, 0, 0, 0, kNothing, "gfx",
     Workspace::none, Registries::all},
    {87, "ConvDirectNaiveConvWrw", kDirect, Query::zero, "W", "fhb", Layouts::both, 0, 0, 0, kNothing, "gfx",
     Workspace::none, Registries::all},
    {88, "GemmFwd1x1_0_1", kGemm, Query::checks, "F", "fhb", Layouts::nchw, 1, 1, 1, kNoPad, "gfx", Workspace::none,
     Registries::all},
    {90, "GemmFwd1x1_0_2", kGemm, Query::checks, "F", "fhb", Layouts::nchw, 1, 1, 2, kNoPad, "gfx",
     Workspace::transposed, Registries::all},
    {91, "GemmFwdRest", kGemm, Query::checks, "F", "fhb", Layouts::nchw, 0, 0, 0, kNotPlain, "gfx", Workspace::columns,
     Registries::all},
    {95, "GemmBwd1x1_stride2", kGemm, Query::checks, "B", "fhb", Layouts::nchw, 1, 1, 2, kNoPad, "gfx",
     Workspace::transposed, Registries::all},
    {96, "GemmBwd1x1_stride1", kGemm, Query::checks, "B", "fhb", Layouts::nchw, 1, 1, 1, kNoPad, "gfx", Workspace::none,
     Registries::all},
    {97, "GemmBwdRest", kGemm, Query::checks, "B", "fhb", Layouts::nchw, 0, 0, 0, kNotPlain, "gfx", Workspace::columns,
     Registries::all},
    {101, "GemmWrw1x1_stride1", kGemm, Query::zero, "W", "fhb", Layouts::nchw, 1, 1, 1, kNoPad, "gfx", Workspace::none,
     Registries::all},
    {102, "GemmWrwUniversal", kGemm, Query::checks, "W", "fhb", Layouts::nchw, 0, 0, 0, kNotPlain, "gfx",
     Workspace::columns, Registries::all},
    {103, "ConvMlirIgemmFwdXdlops", kImplicitGemm, Query::zero, "F", "fh", Layouts::both, 0, 0, 0, kMlir, "gfx9",
     Workspace::none, Registries::all},
    {104, "ConvMlirIgemmBwdXdlops", kImplicitGemm, Query::zero, "B", "fh", Layouts::both, 0, 0, 0, kMlir, "gfx9",
     Workspace::none, Registries::all},
    {105, "ConvMlirIgemmWrWXdlops", kImplicitGemm, Query::checks, "W", "fh", Layouts::both, 0, 0, 0, kMlir, "gfx9",
     Workspace::wide_weights, Registries::all},
    {107, "ConvAsmImplicitGemmGTCDynamicFwdXdlopsNHWC", kImplicitGemm, Query::checks, "F", "fhb", Layouts::nhwc, 0, 0,
     0, kNothing, "gfx9", Workspace::wide_weights, Registries::all},
    {108, "ConvAsmImplicitGemmGTCDynamicBwdXdlopsNHWC", kImplicitGemm, Query::checks, "B", "fhb", Layouts::nhwc, 0, 0,
     0, kNothing, "gfx9", Workspace::transposed, Registries::all},
    {110, "ConvAsmImplicitGemmGTCDynamicWrwXdlopsNHWC", kImplicitGemm, Query::checks, "W", "fhb", Layouts::nhwc, 0, 0,
     0, kNothing, "gfx9", Workspace::wide_weights, Registries::all},
    {128, "ConvHipImplicitGemmFwdXdlops", kImplicitGemm, Query::zero, "F", "h", Layouts::nhwc, 0, 0, 0, kOneGroup,
     "gfx9", Workspace::none, Registries::old},
    {129, "ConvHipImplicitGemmBwdXdlops", kImplicitGemm, Query::zero, "B", "h", Layouts::nhwc, 0, 0, 0, kOneGroup,
     "gfx9", Workspace::none, Registries::old},
    {137, "ConvHipImplicitGemmGroupFwdXdlops", kImplicitGemm, Query::checks, "F", "fhb", Layouts::both, 0, 0, 0,
     kNothing, "gfx9", Workspace::transposed, Registries::all},
    {155, "ConvHipImplicitGemmGroupBwdXdlops", kImplicitGemm, Query::checks, "B", "fhb", Layouts::both, 0, 0, 0,
     kNothing, "gfx9", Workspace::transposed, Registries::all},
    {156, "ConvHipImplicitGemmGroupWrwXdlops", kImplicitGemm, Query::checks, "W", "fhb", Layouts::both, 0, 0, 0,
     kNothing, "gfx9", Workspace::transposed, Registries::all},
    {217, "ConvHipDirectFwd", kDirect, Query::zero, "FB", "fhb", Layouts::nchw, 3, 3, 0, kNoDilation, "gfx",
     Workspace::none, Registries::newest},
};

Registries in_use = Registries::newest;
uint64_t changed = 0;

}  // namespace

const Solver* registered(uint64_t id) {
  for (const Solver& solver : kSolvers)
    if (solver.id == id && (solver.registries == Registries::all || solver.registries == in_use)) return &solver;
  return nullptr;
}

const Solver* registered(const std::string& name) {
  for (const Solver& solver : kSolvers)
    if (solver.name == name) return registered(solver.id) == &solver ? &solver : nullptr;
  return nullptr;
}

Algorithm algorithm_of(const Solver& solver) {
  if (solver.id != changed) return solver.algorithm;
  return solver.algorithm == kDirect ? kGemm : kDirect;
}

void use_registry(const std::string& name) {
  const std::string change = "changed:";
  in_use = name == "old" ? Registries::old : Registries::newest;
  changed = name.rfind(change, 0) == 0 ? std::strtoull(name.c_str() + change.size(), nullptr, 10) : 0;
  if (name != "old" && name != "newest" && !registered(changed)) misuse("there is no registry \"" + name + "\"");
}

bool is_newest_registry() { return in_use == Registries::newest; }

}  // namespace stub
