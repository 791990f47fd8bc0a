// GroupTile: kBlocks times 64 x kColumns sums of a warpgroup, by wgmma of sm_90a, which reads both operands from shared
// memory. Included by mma.h. Sources: PTX ISA, "Asynchronous warpgroup level matrix instructions"; for operands whose
// lines run along the outer index, CUTLASS, cute/arch/mma_sm90_desc.hpp.
//
// The four warps, of which the first one's number is a multiple of 4, hold 16 rows each, in the same registers as
// mma.sync.
#pragma once

#if defined(REFORMER_EMULATOR)
#include "emulated_wgmma.h"
#endif

namespace reformer {
#if !defined(REFORMER_EMULATOR)
namespace wgmma {

// Descriptor of an operand: lines of 128 bytes, with their chunks in OperandTile's order. If lines run along the depth,
// groups of 8 lines follow each other. Otherwise each line has 64 of the outer indices at one index of the depth, and
// panels follow each other.
DEVICE unsigned long long descriptor(const void* shared, int panel_bytes) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  constexpr unsigned long long kOrder128Bytes = 1ull << 62, kEightLines = 1024 >> 4;
  return kOrder128Bytes | kEightLines << 32 | static_cast<unsigned long long>(panel_bytes >> 4) << 16 |
         (at & 0x3ffff) >> 4;
}

// Makes this thread's writes to shared memory, including copies that it has waited for, visible to wgmma after a
// barrier.
DEVICE void publish() {
#if !defined(REFORMER_NO_PROXY_FENCE)  // to measure its cost
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// The number of this thread's warpgroup. The shuffle tells the compiler that it is uniform.
DEVICE int group_id() { return __shfl_sync(0xffffffffu, thread_id() / 128, 0); }
// Sets the number of registers per thread of this warpgroup from now on.
template <int kRegisters>
DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// To be called before the first of several instructions.
DEVICE void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending groups of instructions, ended by commit(), are in flight.
template <int kPending>
DEVICE void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// c += a b, with a depth of 16. kOuterA, kOuterB: the operand's lines run along its outer index.
template <class T, int kColumns, bool kOuterA, bool kOuterB>
DEVICE void multiply_add(float (&c)[kColumns / 8][4], unsigned long long a, unsigned long long b);

#define REFORMER_FOUR(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define REFORMER_SIXTEEN(i) \
  REFORMER_FOUR(4 * (i)), REFORMER_FOUR(4 * (i) + 1), REFORMER_FOUR(4 * (i) + 2), REFORMER_FOUR(4 * (i) + 3)
#define REFORMER_WGMMA_64(type, outer_a, outer_b)                                               \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                      \
               " {"                                                                             \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "         \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
               "}, %32, %33, 1, 1, 1, %34, %35;"                                                \
               : REFORMER_SIXTEEN(0), REFORMER_SIXTEEN(1)                                       \
               : "l"(a), "l"(b), "n"(outer_a), "n"(outer_b))
#define REFORMER_WGMMA_128(type, outer_a, outer_b)                                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                         \
               " {"                                                                                 \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "             \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "   \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "   \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"     \
               "}, %64, %65, 1, 1, 1, %66, %67;"                                                    \
               : REFORMER_SIXTEEN(0), REFORMER_SIXTEEN(1), REFORMER_SIXTEEN(2), REFORMER_SIXTEEN(3) \
               : "l"(a), "l"(b), "n"(outer_a), "n"(outer_b))
#define REFORMER_WGMMA_192(type, outer_a, outer_b)                                                   \
  asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type                          \
               " {"                                                                                  \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "              \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "    \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "    \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "    \
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "    \
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"      \
               "}, %96, %97, 1, 1, 1, %98, %99;"                                                     \
               : REFORMER_SIXTEEN(0), REFORMER_SIXTEEN(1), REFORMER_SIXTEEN(2), REFORMER_SIXTEEN(3), \
                 REFORMER_SIXTEEN(4), REFORMER_SIXTEEN(5)                                            \
               : "l"(a), "l"(b), "n"(outer_a), "n"(outer_b))
#define REFORMER_WGMMA_256(type, outer_a, outer_b)                                                              \
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                                     \
               " {"                                                                                             \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                         \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "               \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "               \
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "               \
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "               \
               "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "   \
               "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
               "}, %128, %129, 1, 1, 1, %130, %131;"                                                            \
               : REFORMER_SIXTEEN(0), REFORMER_SIXTEEN(1), REFORMER_SIXTEEN(2), REFORMER_SIXTEEN(3),            \
                 REFORMER_SIXTEEN(4), REFORMER_SIXTEEN(5), REFORMER_SIXTEEN(6), REFORMER_SIXTEEN(7)             \
               : "l"(a), "l"(b), "n"(outer_a), "n"(outer_b))
#define REFORMER_WGMMA(T, kColumns, type, kOuterA, kOuterB)                                                  \
  template <>                                                                                                \
  DEVICE void multiply_add<T, kColumns, kOuterA, kOuterB>(float (&c)[kColumns / 8][4], unsigned long long a, \
                                                          unsigned long long b) {                            \
    REFORMER_WGMMA_##kColumns(type, int(kOuterA), int(kOuterB));                                             \
  }
#define REFORMER_WGMMA_OF_COLUMNS(T, kColumns, type) \
  REFORMER_WGMMA(T, kColumns, type, false, false)    \
  REFORMER_WGMMA(T, kColumns, type, false, true)     \
  REFORMER_WGMMA(T, kColumns, type, true, false)     \
  REFORMER_WGMMA(T, kColumns, type, true, true)
#define REFORMER_WGMMA_OF_TYPE(T, type)   \
  REFORMER_WGMMA_OF_COLUMNS(T, 64, type)  \
  REFORMER_WGMMA_OF_COLUMNS(T, 128, type) \
  REFORMER_WGMMA_OF_COLUMNS(T, 192, type) \
  REFORMER_WGMMA_OF_COLUMNS(T, 256, type)
REFORMER_WGMMA_OF_TYPE(bf16, "bf16")
REFORMER_WGMMA_OF_TYPE(fp16, "f16")
#undef REFORMER_WGMMA_OF_TYPE
#undef REFORMER_WGMMA_OF_COLUMNS
#undef REFORMER_WGMMA
#undef REFORMER_WGMMA_256
#undef REFORMER_WGMMA_192
#undef REFORMER_WGMMA_128
#undef REFORMER_WGMMA_64
#undef REFORMER_SIXTEEN
#undef REFORMER_FOUR

}  // namespace wgmma
#endif

template <class T, int kColumns, int kBlocks = 1>
class GroupTile {
  float sums_[kBlocks][kColumns / 8][4];

 public:
  static constexpr int kDepth = 16;

  DEVICE void clear() {
    for_each_sum([](float& sum) { sum = 0; });
  }

  // Adds the product of the group's rows of A, from `row` on, and all of B. Asynchronous: neither the sums nor the
  // operands may be accessed before wgmma::wait<0>().
  template <class TileA, class TileB>
  DEVICE void start(const TileA& a, int row, const TileB& b) {
    static_assert(TileA::kLineBytes == 128 && TileB::kLineBytes == 128);
#if defined(REFORMER_EMULATOR)
    emulator::start_product<T, kColumns>(a, row, b, sums_, emulator::Place{"GroupTile::start", __FILE__, __LINE__});
#else
    constexpr int kStepA = TileA::kAlongDepth ? 32 : 16 * 128, kStepB = TileB::kAlongDepth ? 32 : 16 * 128;
    constexpr int kSteps = (TileA::kAlongDepth ? TileA::kLineBytes / int(sizeof(T)) : TileA::kLineCount) / kDepth;
    constexpr int kBlockA = TileA::kAlongDepth ? 64 * TileA::kLineBytes : TileA::kPanelBytes;
    const unsigned char* const first =
        a.memory + (TileA::kAlongDepth ? row * TileA::kLineBytes : row / 64 * TileA::kPanelBytes);
    const unsigned long long from_a = wgmma::descriptor(first, TileA::kPanelBytes);
    const unsigned long long from_b = wgmma::descriptor(b.memory, TileB::kPanelBytes);
    wgmma::begin();
    UNROLL
    for (int i = 0; i < kSteps; ++i) {
      UNROLL
      for (int block = 0; block < kBlocks; ++block)
        wgmma::multiply_add<T, kColumns, !TileA::kAlongDepth, !TileB::kAlongDepth>(
            sums_[block], from_a + (i * kStepA + block * kBlockA >> 4), from_b + (i * kStepB >> 4));
    }
    wgmma::commit();
#endif
  }

  // Waits for the products. Also tells the compiler that the sums have changed, so that it does not read them earlier.
  DEVICE void finish() {
    wgmma::wait<0>();
#if !defined(REFORMER_EMULATOR)
    for_each_sum([](float& sum) { asm volatile("" : "+f"(sum)::"memory"); });
#endif
  }

  // The sums of a warp's 16 rows of a block, in pairs of adjacent columns as in mma.sync.
  DEVICE float (&sums(int block = 0)) [kColumns / 8][4] { return sums_[block]; }

  // Visits or stores this warp's 16 rows; see WarpTile.
  template <int kElements, class OfColumns>
  DEVICE void for_each_piece(int columns, OfColumns of_columns) const {
    mma_sync::for_each_piece<kElements, 16, kColumns>(sums_, columns, of_columns);
  }
  DEVICE void store(float* to, int pitch) const {
    to += lane_id() / 4 * pitch + lane_id() % 4 * 2;
    UNROLL
    for (int j = 0; j < kColumns / 8; ++j) {
      UNROLL
      for (int e = 0; e < 4; e += 2) {
        const float pair[2] = {sums_[0][j][e], sums_[0][j][e + 1]};
        reformer::store<fp32, 2>(to + e * 4 * pitch + j * 8, narrow<fp32, 2>(pair));
      }
    }
  }

 private:
  template <class Function>
  DEVICE void for_each_sum(Function function) {
    UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      UNROLL
      for (int j = 0; j < kColumns / 8; ++j) {
        UNROLL
        for (int e = 0; e < 4; ++e) function(sums_[block][j][e]);
      }
    }
  }
};

}  // namespace reformer
