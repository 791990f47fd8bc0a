// What csrc/hip/device/platform.h gives to kernels, on the CPU: a GPU for tests. It runs one cluster of blocks at a
// time, each of its threads on a stack of its own, and complains of what real GPUs leave undefined. platform.h includes
// this file in place of its own text when REFORMER_EMULATOR is defined: 32 stands for NVIDIA's warps and mma.sync, 64
// for AMD's and MFMA.
#pragma once

#include <cstddef>
#include <functional>

#if REFORMER_EMULATOR == 32
#define REFORMER_MMA 1
#define REFORMER_TMA 1
#elif REFORMER_EMULATOR == 64
#define REFORMER_MFMA 1
#else
#error "REFORMER_EMULATOR has to be the size of a warp: 32 or 64"
#endif

// The launcher finds kernels by this word; see __init__.py.
#ifndef REFORMER_EMULATOR_LIST
#define KERNEL(threads) extern "C" void
#endif
#define KERNEL_OCCUPANCY(threads, blocks) KERNEL(threads)
#define DEVICE inline
#define SHARED static
#define DYNAMIC_SHARED(name) unsigned char* const name = ::reformer::emulator::dynamic_shared()
#define UNROLL
#define NOT_UNROLLED
#define UNROLL_BY(times)
#define __grid_constant__

namespace reformer {
constexpr int kWarp = REFORMER_EMULATOR;

namespace emulator {
// Where the thread that runs is.
struct Position {
  int thread, x, y, z;
  int rank;  // of the block in its cluster, along z
};
extern Position position;

// A call in a kernel. Functions that wait for other threads are told their caller's file and line, by default arguments
// (GCC and clang know no better way in C++17), so that a complaint can name it.
struct Place {
  const char* what;  // the function
  const char* file;
  int line;
};

// What a warp's threads compute as one: lanes[i] is what lane i gave to `collective`.
using Operation = void (*)(void* const* lanes);

// Waits until all threads of the warp have come to this place, and does the operation once for all of them.
void collective(const Place& place, Operation operation, void* lane);
void block_barrier(const Place& place);
void cluster_barrier(const Place& place);
int cluster_size();
// The shared memory of a block of the cluster, by default of this one.
unsigned char* dynamic_shared(int rank = position.rank);
size_t dynamic_shared_bytes();

// Lets others run until one of them, or an event, calls wake(): all that sleep go on then.
void sleep(const Place& place);
void wake();

// Something that the GPU does beside its threads to a block of the cluster, at some time: at the latest when none of
// them can go on. Meanwhile position.rank is that block's.
void later(int rank, std::function<void()> event);

void async_copy(void* to, const void* from, int bytes, bool valid, const Place& place);
void async_commit();
void async_wait(int groups);

// Ends the launch with an error that says in which block and thread.
[[noreturn]] void fail(const Place& place, const char* sentence);

// The same with a function of what the kWarp lanes gave.
template <class Lane, void (*function)(Lane* const*)>
void collective(const Place& place, Lane& lane) {
  collective(place, [](void* const* lanes) { function(reinterpret_cast<Lane* const*>(lanes)); }, &lane);
}

struct Shuffle {
  unsigned value;
  int from;
  unsigned received;
};
inline void shuffle(Shuffle* const* lanes) {
  for (int lane = 0; lane < kWarp; ++lane) lanes[lane]->received = lanes[lanes[lane]->from]->value;
}
}  // namespace emulator

inline int thread_id() { return emulator::position.thread; }
inline int block_x() { return emulator::position.x; }
inline int block_y() { return emulator::position.y; }
inline int block_z() { return emulator::position.z; }

inline void trap() { __builtin_trap(); }
inline void barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::block_barrier({"barrier", file, line});
}

// That of cluster.h; its other functions are not emulated.
inline void cluster_meet(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::cluster_barrier({"cluster_meet", file, line});
}

inline float bits_to_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline unsigned float_to_bits(float value) { return __builtin_bit_cast(unsigned, value); }
inline unsigned multiply_high(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}
inline unsigned long long multiply_wide(unsigned a, unsigned b) { return static_cast<unsigned long long>(a) * b; }
inline unsigned shift_right(unsigned high, unsigned low, int by) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> by);
}

// Those of warp.h.
inline unsigned shuffle_from(unsigned value, int lane, const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
  const emulator::Place place{"a shuffle", file, line};
  if (lane < 0 || lane >= kWarp) emulator::fail(place, "no lane of the warp has this number");
  emulator::Shuffle call{value, lane, 0};
  emulator::collective<emulator::Shuffle, emulator::shuffle>(place, call);
  return call.received;
}
inline float shuffle_from(float value, int lane, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return bits_to_float(shuffle_from(float_to_bits(value), lane, file, line));
}
template <class T>
T shuffle_xor(T value, int mask, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return shuffle_from(value, thread_id() % kWarp ^ mask, file, line);
}
template <class T>
T shuffle_down(T value, int distance, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const int lane = thread_id() % kWarp;
  return shuffle_from(value, lane + distance < kWarp ? lane + distance : lane, file, line);
}

namespace emulator {
struct Vote {
  bool mine;
  unsigned long long all;
};
inline void vote(Vote* const* lanes) {
  unsigned long long all = 0;
  for (int lane = 0; lane < kWarp; ++lane) all |= static_cast<unsigned long long>(lanes[lane]->mine) << lane;
  for (int lane = 0; lane < kWarp; ++lane) lanes[lane]->all = all;
}
}  // namespace emulator
inline unsigned long long ballot(bool mine, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::Vote call{mine, 0};
  emulator::collective<emulator::Vote, emulator::vote>({"a ballot", file, line}, call);
  return call.all;
}
inline void warp_barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { ballot(true, file, line); }

// That of last_block.h: blocks run one after another.
inline unsigned count_arrival(unsigned* arrivals) { return (*arrivals)++; }

// Those of async_copy.h. Until the wait the destination holds no numbers.
template <int kBytes>
void async_copy(void* shared, const void* global, bool valid, const char* file = __builtin_FILE(),
                int line = __builtin_LINE()) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  emulator::async_copy(shared, global, kBytes, valid, {"async_copy", file, line});
}
inline void async_commit() { emulator::async_commit(); }
template <int kPending>
void async_wait() {
  emulator::async_wait(kPending);
}

}  // namespace reformer
