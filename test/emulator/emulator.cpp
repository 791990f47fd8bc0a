// The emulated GPU: clusters of blocks one after another, and in each of them the warps' threads in turns.
//
// The order of turns comes from a seed: 0 runs warps and lanes in the order of their numbers, every other seed shuffles
// blocks, warps and lanes. In half of the blocks each turn is any warp's, in the others some warps go before others
// throughout, so that these fall far behind. A thread runs until it waits for others or ends. So results that hang on
// the order, as where a barrier is missing, differ between seeds, and a seed repeats exactly.
//
// Stricter than real GPUs: all threads of a block have to come to the same barrier, all of a warp to the same
// operation, from the same line, and none may have ended before.
#include "emulator.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulated_tma.h"
#include "fiber.h"
#include "kernel_list.h"

namespace reformer::emulator {

Position position;

namespace {

enum class State { kReady, kAtBarrier, kAtCluster, kInWarp, kAsleep, kEnded };

struct Copy {
  void* to;
  unsigned char data[16];
  int bytes;
};
using CopyGroup = std::vector<Copy>;

struct Thread {
  Fiber fiber;
  State state = State::kReady;
  Place place{"", "", 0};  // where it waits
  Operation operation{};   // that it waits for
  void* lane{};
  std::vector<CopyGroup> copies;  // committed
  CopyGroup open_copies;
};

// Kernels place what has to lie at multiples of 1024 bytes by its distance from the beginning.
constexpr std::align_val_t kDynamicAlignment{1024};
struct FreeDynamic {
  void operator()(unsigned char* memory) const { ::operator delete[](memory, kDynamicAlignment); }
};

struct Range {
  unsigned char* begin;
  size_t bytes;
};

// splitmix64, Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  unsigned below(size_t bound) { return unsigned(next() % bound); }
  template <class Container>
  void shuffle(Container& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  uint64_t state_;
};

std::deque<Thread> threads;  // of a cluster, block after block; grows, since making a stack takes time
int threads_of_block = 0, cluster = 1, first_z = 0;
Thread* running = nullptr;
std::string error;     // of the thread that ran last
std::string sentence;  // that the launch came to
const Kernel* kernel = nullptr;
const void* kernel_arguments = nullptr;
std::vector<Range> static_memory;
std::vector<std::unique_ptr<unsigned char[], FreeDynamic>> dynamic_memory;  // of the cluster's blocks
size_t dynamic_bytes = 0;
struct Event {
  int rank;
  std::function<void()> happen;
};
std::deque<Event> events;

std::string text(const Position& block) {
  return "block (" + std::to_string(block.x) + ", " + std::to_string(block.y) + ", " + std::to_string(block.z) + ")";
}

std::string text(const Place& place) {
  const char* slash = strrchr(place.file, '/');
  return std::string(place.what) + " (" + (slash ? slash + 1 : place.file) + ":" + std::to_string(place.line) + ")";
}

bool same(const Place& a, const Place& b) {
  return a.line == b.line && !strcmp(a.what, b.what) && !strcmp(a.file, b.file);
}

// "40 threads at barrier (k.hip:12), 24 have ended"
std::string whereabouts(int first, int last) {
  std::vector<std::pair<std::string, int>> counts;
  for (int i = first; i < last; ++i) {
    const Thread& thread = threads[size_t(i)];
    const std::string where = thread.state == State::kEnded ? "have ended" : "at " + text(thread.place);
    size_t entry = 0;
    while (entry < counts.size() && counts[entry].first != where) ++entry;
    if (entry == counts.size()) counts.emplace_back(where, 0);
    ++counts[entry].second;
  }
  std::string sentence;
  for (const auto& [where, count] : counts)
    sentence += (sentence.empty() ? "" : ", ") + std::to_string(count) + " threads " + where;
  return sentence;
}

void run_kernel() {
  kernel->call(kernel_arguments);
  end_thread_of_tma();
  running->state = State::kEnded;
  running->fiber.leave(true);
}

void wait(State state, const Place& place) {
  Thread* self = running;
  self->state = state;
  self->place = place;
  self->fiber.leave();
}

void enter_block(int rank) {
  position.rank = rank;
  position.z = first_z + rank;
}

void resume(int index) {
  running = &threads[size_t(index)];
  enter_block(index / threads_of_block);
  position.thread = index % threads_of_block;
  running->fiber.resume();
  running = nullptr;
  if (!error.empty()) throw std::runtime_error(error);
}

// One cluster of the grid.
class Cluster {
 public:
  Cluster(bool shuffled, uint64_t seed) : count_(cluster * threads_of_block), shuffled_(shuffled), random_(seed) {
    for (int i = 0; i < count_; ++i) {
      Thread& thread = threads[size_t(i)];
      thread.state = State::kReady;
      thread.copies.clear();
      thread.open_copies.clear();
      thread.fiber.start(&run_kernel);
    }
    events.clear();
    begin_block_of_tma();
    if (shuffled_ && random_.below(2)) {
      ranks_.resize(size_t(count_ / kWarp) + 1);
      std::iota(ranks_.begin(), ranks_.end(), 0);
      random_.shuffle(ranks_);
    }
  }

  void run() {
    std::vector<int> warps;
    for (;;) {
      warps.clear();
      for (int warp = 0; warp < count_ / kWarp; ++warp)
        if (any_ready(warp)) warps.push_back(warp);
      const size_t chosen = choose(warps);
      if (chosen < warps.size()) {
        step(warps[chosen]);
      } else if (!events.empty()) {
        happen(chosen - warps.size());
      } else if (!release_barrier()) {
        return;
      }
    }
  }

 private:
  bool any_ready(int warp) const {
    for (int i = warp * kWarp; i < (warp + 1) * kWarp; ++i)
      if (threads[size_t(i)].state == State::kReady) return true;
    return false;
  }

  // Whose turn it is: one of these warps, by its index, or after the last of them, one of the events.
  size_t choose(const std::vector<int>& warps) {
    const size_t all = warps.size() + events.size();
    if (!shuffled_ || !all) return 0;
    if (ranks_.empty()) return random_.below(all);
    const auto rank = [&](size_t i) { return ranks_[i < warps.size() ? size_t(warps[i]) : ranks_.size() - 1]; };
    size_t best = 0;
    for (size_t i = 1; i < all; ++i)
      if (rank(i) < rank(best)) best = i;
    return best;
  }

  void happen(size_t index) {
    const Event event = std::move(events[index]);
    events.erase(events.begin() + ptrdiff_t(index));
    enter_block(event.rank);
    if (all_of_block(event.rank, [](const Thread& thread) { return thread.state == State::kEnded; }))
      throw std::runtime_error(text(position) + ": all threads have ended while a copy was under way");
    event.happen();
  }

  // Lets a warp's threads run until each waits or ends, and computes the collective that they wait for.
  void step(int warp) {
    const int first = warp * kWarp, last = first + kWarp;
    std::vector<int> order(kWarp);
    std::iota(order.begin(), order.end(), first);
    if (shuffled_) random_.shuffle(order);
    for (int i : order)
      if (threads[size_t(i)].state == State::kReady) resume(i);

    void* lanes[kWarp];
    const Thread* waiting = nullptr;
    for (int i = first; i < last; ++i) {
      const State state = threads[size_t(i)].state;
      if (state == State::kAsleep || state == State::kReady) return;  // it may still come
      if (state == State::kInWarp) waiting = &threads[size_t(i)];
    }
    if (!waiting) return;
    for (int i = first; i < last; ++i) {
      const Thread& thread = threads[size_t(i)];
      if (thread.state != State::kInWarp || thread.operation != waiting->operation ||
          !same(thread.place, waiting->place))
        throw std::runtime_error(text(position) + ", warp " + std::to_string(warp) + ": " + whereabouts(first, last) +
                                 "; all threads of a warp have to come to the same operation");
      lanes[i - first] = thread.lane;
    }
    waiting->operation(lanes);
    for (int i = first; i < last; ++i) threads[size_t(i)].state = State::kReady;
  }

  template <class Predicate>
  bool all_of_block(int rank, Predicate predicate) const {
    const auto first = threads.begin() + rank * threads_of_block;
    return std::all_of(first, first + threads_of_block, predicate);
  }

  bool all_wait_there(int rank, State state, const Place& place) const {
    return all_of_block(rank, [&](const Thread& thread) { return thread.state == state && same(thread.place, place); });
  }
  void release(int rank) {
    for (int i = 0; i < threads_of_block; ++i) threads[size_t(rank * threads_of_block + i)].state = State::kReady;
  }

  // No thread can go on: returns false if all have ended, and lets all of a block or of the cluster go on if they are
  // at the same barrier.
  bool release_barrier() {
    int released = 0, at_cluster = 0;
    for (int rank = 0; rank < cluster; ++rank) {
      if (all_wait_there(rank, State::kAtBarrier, threads[size_t(rank * threads_of_block)].place)) {
        release(rank);
        ++released;
      }
      at_cluster += all_wait_there(rank, State::kAtCluster, threads[0].place);
    }
    if (at_cluster == cluster)
      for (int rank = 0; rank < cluster; ++rank, ++released) release(rank);
    if (released) return true;

    bool ended = true, asleep = false;
    for (int i = 0; i < count_; ++i) {
      ended = ended && threads[size_t(i)].state == State::kEnded;
      asleep = asleep || threads[size_t(i)].state == State::kAsleep;
    }
    if (ended) return false;
    throw std::runtime_error(
        text(position) + ": " + whereabouts(0, count_) +
        (asleep ? "; none of them can go on" : "; all threads of a block have to come to the same barrier"));
  }

  int count_;
  bool shuffled_;
  Random random_;
  std::vector<int> ranks_;  // of warps, lower ones go first, and of the events
};

// Shared memory starts without numbers: 0xff... is NaN in every type. (Memory of AddressSanitizer's between variables
// is written to as well, so it must not look.)
__attribute__((no_sanitize_address)) void poison(unsigned char* begin, size_t bytes) {
  volatile unsigned char* to = begin;
  for (size_t i = 0; i < bytes; ++i) to[i] = 0xff;
}

void launch(const uint32_t (&grid)[3], size_t shared_bytes, uint64_t seed) {
  while (threads.size() < size_t(cluster * threads_of_block)) threads.emplace_back();
  std::vector<size_t> clusters(size_t(grid[0]) * grid[1] * grid[2] / size_t(cluster));
  std::iota(clusters.begin(), clusters.end(), size_t(0));
  Random random(seed);
  if (seed) random.shuffle(clusters);
  for (const size_t number : clusters) {
    first_z = int(number / grid[0] / grid[1]) * cluster;
    position = {0, int(number % grid[0]), int(number / grid[0] % grid[1]), first_z, 0};
    for (const Range& range : static_memory) poison(range.begin, range.bytes);
    dynamic_bytes = shared_bytes;
    dynamic_memory.resize(size_t(cluster));
    for (auto& memory : dynamic_memory) {  // anew, so that AddressSanitizer knows where it ends
      memory.reset(static_cast<unsigned char*>(::operator new[](shared_bytes, kDynamicAlignment)));
      poison(memory.get(), shared_bytes);
    }
    Cluster(seed != 0, seed * 0x9e3779b97f4a7c15 + number).run();
  }
  threads
      .clear();  // every stack takes two of the 65,530 mappings that Linux gives a process, whose kernels may be many
}

}  // namespace

void fail(const Place& place, const char* sentence) {
  error = text(position) + ", thread " + std::to_string(position.thread) + ", " + text(place) + ": " + sentence;
  if (!running) throw std::runtime_error(error);  // a warp's operation, or an event
  running->fiber.leave(true);
  abort();
}

void block_barrier(const Place& place) { wait(State::kAtBarrier, place); }
void cluster_barrier(const Place& place) { wait(State::kAtCluster, place); }
int cluster_size() { return cluster; }

void collective(const Place& place, Operation operation, void* lane) {
  running->operation = operation;
  running->lane = lane;
  wait(State::kInWarp, place);
}

unsigned char* dynamic_shared(int rank) { return dynamic_memory[size_t(rank)].get(); }
size_t dynamic_shared_bytes() { return dynamic_bytes; }

void sleep(const Place& place) { wait(State::kAsleep, place); }

void wake() {
  for (Thread& thread : threads)
    if (thread.state == State::kAsleep) thread.state = State::kReady;
}

void later(int rank, std::function<void()> event) { events.push_back({rank, std::move(event)}); }

void async_copy(void* to, const void* from, int bytes, bool valid, const Place& place) {
  if (reinterpret_cast<uintptr_t>(to) % unsigned(bytes) ||
      (valid && reinterpret_cast<uintptr_t>(from) % unsigned(bytes)))
    fail(place, "an address is not a multiple of the number of bytes");
  Copy copy{to, {}, bytes};
  if (valid) memcpy(copy.data, from, size_t(bytes));
  memset(to, 0xff, size_t(bytes));
  running->open_copies.push_back(copy);
}

void async_commit() {
  running->copies.push_back(std::move(running->open_copies));
  running->open_copies.clear();
}

void async_wait(int groups) {
  std::vector<CopyGroup>& copies = running->copies;
  while (copies.size() > size_t(groups)) {
    for (const Copy& copy : copies.front()) memcpy(copy.to, copy.data, size_t(copy.bytes));
    copies.erase(copies.begin());
  }
}

}  // namespace reformer::emulator

// What Python calls. Those that can fail return null or a sentence, which holds until the next call.
using namespace reformer::emulator;

extern "C" __attribute__((visibility("default"))) void emulator_static_memory(uint64_t offset, uint64_t bytes) {
  Dl_info library;
  dladdr(reinterpret_cast<void*>(&emulator_static_memory), &library);
  static_memory.push_back({static_cast<unsigned char*>(library.dli_fbase) + offset, bytes});
}

extern "C" __attribute__((visibility("default"))) const char* emulator_launch(
    const char* name, const uint32_t* grid, uint32_t blocks_of_cluster, uint32_t thread_count, uint64_t shared_bytes,
    const void* arguments, uint64_t argument_bytes, uint64_t seed) {
  kernel = nullptr;
  for (const Kernel& candidate : kernels())
    if (!strcmp(candidate.name, name)) kernel = &candidate;
  if (!kernel) {
    sentence = std::string("there is no kernel ") + name + " in this file";
  } else if (kernel->argument_bytes != argument_bytes) {
    sentence = std::string(name) + " takes a structure of " + std::to_string(kernel->argument_bytes) + " bytes, not " +
               std::to_string(argument_bytes);
  } else if (thread_count > kernel->threads) {
    sentence = std::string(name) + " runs in blocks of at most " + std::to_string(kernel->threads) + " threads, not " +
               std::to_string(thread_count);
  } else if (thread_count % reformer::kWarp) {
    sentence = "blocks of " + std::to_string(thread_count) + " threads are no multiple of the warp's " +
               std::to_string(reformer::kWarp);
  } else if (blocks_of_cluster < 1 || grid[2] % blocks_of_cluster) {
    sentence = std::to_string(grid[2]) + " blocks along z are no clusters of " + std::to_string(blocks_of_cluster);
  } else if (blocks_of_cluster > 1 && !static_memory.empty()) {
    sentence = std::string("the emulator has static shared memory for one block, and clusters of one");
  } else {
    threads_of_block = int(thread_count), cluster = int(blocks_of_cluster);
    std::vector<unsigned char> copy(argument_bytes + 64);
    unsigned char* aligned = copy.data() + (64 - reinterpret_cast<uintptr_t>(copy.data()) % 64);
    memcpy(aligned, arguments, argument_bytes);
    kernel_arguments = aligned;
    error.clear();
    try {
      launch({grid[0], grid[1], grid[2]}, shared_bytes, seed);
      return nullptr;
    } catch (const std::exception& exception) {
      sentence = std::string(name) + ", " + exception.what();
      error.clear();
    }
  }
  return sentence.c_str();
}
