// Compiles the file named by REFORMER_ISA_BODY once for each instruction set, in namespaces reformer::plain, ::avx2 and
// ::avx512, with the vectors of vec.h of that width in scope. The body holds everything that must be compiled for the
// set. Standard headers must be included before, as their inline functions must not be. Select at run time with
// REFORMER_BY_ISA.
#include "cpu/element.h"
#include "device.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>
#include <type_traits>

// REFORMER_ISA is the namespace, REFORMER_VECTOR_BYTES the width of a vector register.
#define REFORMER_ISA plain
#define REFORMER_ISA_PLAIN
#define REFORMER_VECTOR_BYTES 16
#include "vec.h"
#include REFORMER_ISA_BODY
#undef REFORMER_ISA
#undef REFORMER_ISA_PLAIN
#undef REFORMER_VECTOR_BYTES

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define REFORMER_ISA avx2
#define REFORMER_ISA_AVX2
#define REFORMER_VECTOR_BYTES 32
#include "vec.h"
#include REFORMER_ISA_BODY
#undef REFORMER_ISA
#undef REFORMER_ISA_AVX2
#undef REFORMER_VECTOR_BYTES
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define REFORMER_ISA avx512
#define REFORMER_ISA_AVX512
#define REFORMER_VECTOR_BYTES 64
#include "vec.h"
#include REFORMER_ISA_BODY
#undef REFORMER_ISA
#undef REFORMER_ISA_AVX512
#undef REFORMER_VECTOR_BYTES
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

// REFORMER_BY_ISA(isa, f)(arguments) calls the f compiled for that instruction set.
#if defined(__x86_64__)
#define REFORMER_BY_ISA(isa, function)                             \
  ((isa) == ::reformer::Isa::avx512 ? ::reformer::avx512::function \
   : (isa) == ::reformer::Isa::avx2 ? ::reformer::avx2::function   \
                                    : ::reformer::plain::function)
#else
#define REFORMER_BY_ISA(isa, function) ((void)(isa), ::reformer::plain::function)
#endif
