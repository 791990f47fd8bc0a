// What csrc/hip/device/tma.h gives to kernels, in the emulator. tma.h includes this file in place of its own text.
//
// Copies into shared memory come late, those out of it read it twice: emulated_tma.cpp says how.
#pragma once

#include "emulator.h"
#include "tensor_map.h"

namespace reformer {
namespace emulator {

// For the emulator itself: of barriers, copies and products nothing is left when a block begins, and of its own a
// thread has waited for all when it ends.
void begin_block_of_tma();
void end_thread_of_tma();

unsigned shared_address(const void* shared, const Place& place);
void init_barrier(unsigned barrier, int arrivals, const Place& place);
void arrive(unsigned barrier, int bytes, const Place& place);
void arrive_there(unsigned barrier, int rank, int bytes, const Place& place);
void wait(unsigned barrier, int parity, const Place& place);
enum class Blocks { own, both };  // of a cluster
void load_box(const TensorMap& map, unsigned to, unsigned barrier, const int (&first)[4], Blocks blocks,
              const Place& place);
void store_box(const TensorMap& map, unsigned from, const int (&first)[4], const Place& place);
// first: a channel, and where the first window begins, w, h and n; offset: w and h.
void load_windows(const TensorMap& map, unsigned to, unsigned barrier, const int (&first)[4], const int (&offset)[2],
                  Blocks blocks, const Place& place);
void store_windows(const TensorMap& map, unsigned from, const int (&first)[4], const Place& place);
void wait_for_reads(int pending, const Place& place);
void group_barrier(int id, int threads, const Place& place);

template <int kCount>
struct StoreMatrices {
  unsigned to;
  unsigned words[kCount];
  Place place;
};
// Lane 8 i + l gives the address of line l of matrix i, transposed of column l, and every lane its own word of each
// matrix.
template <int kCount, bool kTransposed>
void store_matrices(StoreMatrices<kCount>* const* lanes);
extern template void store_matrices<2, false>(StoreMatrices<2>* const* lanes);
extern template void store_matrices<4, false>(StoreMatrices<4>* const* lanes);
extern template void store_matrices<4, true>(StoreMatrices<4>* const* lanes);

}  // namespace emulator

namespace tma {

constexpr int kBoxElements = 64;

#define REFORMER_CALLER const char *file = __builtin_FILE(), int line_of_file = __builtin_LINE()
#define REFORMER_PLACE(what) \
  emulator::Place { what, file, line_of_file }

inline unsigned shared_address(const void* shared, REFORMER_CALLER) {
  return emulator::shared_address(shared, REFORMER_PLACE("tma::shared_address"));
}
inline void init_barrier(unsigned barrier, int arrivals, REFORMER_CALLER) {
  emulator::init_barrier(barrier, arrivals, REFORMER_PLACE("tma::init_barrier"));
}
inline void publish_barriers() {}
inline void arrive_expecting(unsigned barrier, int bytes, REFORMER_CALLER) {
  emulator::arrive(barrier, bytes, REFORMER_PLACE("tma::arrive_expecting"));
}
inline void arrive(unsigned barrier, REFORMER_CALLER) { emulator::arrive(barrier, 0, REFORMER_PLACE("tma::arrive")); }
inline void arrive_there(unsigned barrier, int rank, REFORMER_CALLER) {
  emulator::arrive_there(barrier, rank, 0, REFORMER_PLACE("tma::arrive_there"));
}
inline void wait(unsigned barrier, int parity, REFORMER_CALLER) {
  emulator::wait(barrier, parity, REFORMER_PLACE("tma::wait"));
}

inline void prefetch(const TensorMap&) {}
inline void load(const TensorMap& map, unsigned to, unsigned barrier, int element, int line, REFORMER_CALLER) {
  emulator::load_box(map, to, barrier, {element, line, 0, 0}, emulator::Blocks::own, REFORMER_PLACE("tma::load"));
}
inline void load(const TensorMap& map, unsigned to, unsigned barrier, int a, int b, int c, int d, REFORMER_CALLER) {
  emulator::load_box(map, to, barrier, {a, b, c, d}, emulator::Blocks::own, REFORMER_PLACE("tma::load"));
}
inline void load_windows(const TensorMap& map, unsigned to, unsigned barrier, int channel, int w, int h, int n,
                         int offset_w, int offset_h, REFORMER_CALLER) {
  emulator::load_windows(map, to, barrier, {channel, w, h, n}, {offset_w, offset_h}, emulator::Blocks::own,
                         REFORMER_PLACE("tma::load_windows"));
}
inline void load_for_both(const TensorMap& map, unsigned to, unsigned barrier, int element, int line, REFORMER_CALLER) {
  emulator::load_box(map, to, barrier, {element, line, 0, 0}, emulator::Blocks::both,
                     REFORMER_PLACE("tma::load_for_both"));
}
inline void load_for_both(const TensorMap& map, unsigned to, unsigned barrier, int a, int b, int c, int d,
                          REFORMER_CALLER) {
  emulator::load_box(map, to, barrier, {a, b, c, d}, emulator::Blocks::both, REFORMER_PLACE("tma::load_for_both"));
}
inline void load_windows_for_both(const TensorMap& map, unsigned to, unsigned barrier, int channel, int w, int h, int n,
                                  int offset_w, int offset_h, REFORMER_CALLER) {
  emulator::load_windows(map, to, barrier, {channel, w, h, n}, {offset_w, offset_h}, emulator::Blocks::both,
                         REFORMER_PLACE("tma::load_windows_for_both"));
}
inline void store(const TensorMap& map, unsigned from, int element, int line, REFORMER_CALLER) {
  emulator::store_box(map, from, {element, line, 0, 0}, REFORMER_PLACE("tma::store"));
}
inline void store(const TensorMap& map, unsigned from, int a, int b, int c, int d, REFORMER_CALLER) {
  emulator::store_box(map, from, {a, b, c, d}, REFORMER_PLACE("tma::store"));
}
inline void store_windows(const TensorMap& map, unsigned from, int channel, int w, int h, int n, REFORMER_CALLER) {
  emulator::store_windows(map, from, {channel, w, h, n}, REFORMER_PLACE("tma::store_windows"));
}
template <int kPending>
void wait_for_reads(REFORMER_CALLER) {
  emulator::wait_for_reads(kPending, REFORMER_PLACE("tma::wait_for_reads"));
}

template <bool kTransposed>
void store_matrices(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d, REFORMER_CALLER) {
  emulator::StoreMatrices<4> call{to, {a, b, c, d}, REFORMER_PLACE("tma::store_matrices")};
  emulator::collective<emulator::StoreMatrices<4>, emulator::store_matrices<4, kTransposed>>(call.place, call);
}
inline void store_matrices(unsigned to, unsigned a, unsigned b, REFORMER_CALLER) {
  emulator::StoreMatrices<2> call{to, {a, b}, REFORMER_PLACE("tma::store_matrices")};
  emulator::collective<emulator::StoreMatrices<2>, emulator::store_matrices<2, false>>(call.place, call);
}

inline void group_barrier(int id, int threads, REFORMER_CALLER) {
  emulator::group_barrier(id, threads, REFORMER_PLACE("tma::group_barrier"));
}

#undef REFORMER_CALLER
#undef REFORMER_PLACE

}  // namespace tma
}  // namespace reformer
