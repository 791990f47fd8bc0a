// Hopper's bulk copies and the barriers that count them. Stricter than a GPU, or as strict as the worst of them:
//
//   A load makes its destination no numbers at once, and brings the box late: with seed 0 not before all threads wait,
//   with others at any time. Only then the barrier counts its bytes.
//   A store writes when it is waited for, and complains if what it read was not yet there when it was started, or was
//   overwritten since: by comparing the two. Nor may it begin before the tensor does, where an H200 finds an illegal
//   instruction.
//   A barrier is 8 bytes of shared memory, as on a GPU, and spoilt by who writes there.
#include "emulated_tma.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "emulated_tensor_map.h"
#include "emulated_wgmma.h"

namespace reformer::emulator {
namespace {

constexpr int kLineBytes = 128;
constexpr unsigned kFirstAddress = 1024;  // of dynamic shared memory; CUDA keeps 1 KB of a block's to itself

// Memory by its address in the shared memory of a block of the cluster.
unsigned char* shared_at(unsigned address, size_t bytes, size_t aligned, const Place& place, int rank = position.rank) {
  if (address % aligned) fail(place, "the address in shared memory is not aligned");
  if (address < kFirstAddress || address - kFirstAddress + bytes > dynamic_shared_bytes())
    fail(place, "the address is past the end of shared memory");
  return dynamic_shared(rank) + (address - kFirstAddress);
}

struct Barrier {
  uint16_t arrivals;   // of a phase
  uint16_t missing;    // arrivals of this phase
  int32_t bytes : 31;  // that are expected
  uint32_t parity : 1;
};
static_assert(sizeof(Barrier) == 8);
constexpr int kMostArrivals = 1024;

class BarrierAt {
 public:
  BarrierAt(unsigned address, const Place& place, int rank = position.rank)
      : memory_(shared_at(address, 8, 8, place, rank)), place_(place) {
    memcpy(&barrier, memory_, 8);
    if (barrier.arrivals == 0 || barrier.arrivals > kMostArrivals || barrier.missing > barrier.arrivals)
      fail(place, "the barrier was not initialised, or was overwritten");
  }
  // Ends the phase if nothing is missing any more.
  void store() {
    const bool ended = barrier.missing == 0 && barrier.bytes == 0;
    if (ended) barrier.missing = barrier.arrivals, barrier.parity ^= 1;
    memcpy(memory_, &barrier, 8);
    if (ended) wake();
  }
  Barrier barrier;

 private:
  unsigned char* memory_;
  Place place_;
};

// Where 16 bytes are that would lie at this address without the order of 128-byte lines' chunks.
unsigned chunk_address(unsigned address) { return address ^ ((address >> 7 & 7) << 4); }

int box_lines(const Tensor& tensor) {
  return tensor.has_windows ? tensor.windows.pixels : tensor.box[1] * tensor.box[2] * tensor.box[3];
}

struct Line {
  unsigned char bytes[kLineBytes];
};

// Where a copy begins: innermost first. For windows also by how many pixels it is shifted, w and h.
struct Begin {
  int first[4], offset[2];
};

// Calls function(line's number in the box, the tensor's elements there, first, last): of the box's line, those from
// first to last lie in the tensor, and none if they are equal.
template <class Function>
void for_each_pixel(const Tensor& tensor, const Begin& begin, Function function) {
  const Windows& windows = tensor.windows;
  const auto [channel, first_w, first_h, first_n] = begin.first;
  const int from = int(std::min<int64_t>(64, std::max(0, -channel)));
  const int to = int(std::max<int64_t>(from, std::min<int64_t>(64, tensor.sizes[0] - channel)));
  int64_t w = first_w, h = first_h, n = first_n;
  for (int number = 0; number < windows.pixels; ++number) {
    const int64_t x = w + begin.offset[0], y = h + begin.offset[1];
    const bool inside =
        x >= 0 && x < tensor.sizes[1] && y >= 0 && y < tensor.sizes[2] && n < tensor.sizes[3] && from < to;
    unsigned char* const pixel =
        tensor.memory + x * windows.pitches[0] + y * windows.pitches[1] + n * windows.pitches[2];
    function(number, inside ? pixel + (channel + from) * 2 : nullptr, inside ? from : 0, inside ? to : 0);
    w += windows.steps[0];
    if (w < tensor.sizes[1] + windows.end[0]) continue;
    w = windows.first[0];
    h += windows.steps[1];
    if (h < tensor.sizes[2] + windows.end[1]) continue;
    h = windows.first[1];
    ++n;
  }
}
template <class Function>
void for_each_line(const Tensor& tensor, const Begin& begin, Function function) {
  if (tensor.has_windows) return for_each_pixel(tensor, begin, function);
  const auto& first = begin.first;
  const int64_t elements = tensor.sizes[0];
  const int from = int(std::min<int64_t>(64, std::max(0, -first[0])));
  const int to = int(std::max<int64_t>(from, std::min<int64_t>(64, elements - first[0])));
  int number = 0;
  for (int64_t d = first[3]; d < first[3] + tensor.box[3]; ++d)
    for (int64_t c = first[2]; c < first[2] + tensor.box[2]; ++c)
      for (int64_t b = first[1]; b < first[1] + tensor.box[1]; ++b) {
        const bool inside = b >= 0 && b < tensor.sizes[1] && c >= 0 && c < tensor.sizes[2] && d >= 0 &&
                            d < tensor.sizes[3] && from < to;
        const int64_t line = (d * tensor.sizes[2] + c) * tensor.sizes[1] + b;
        function(number++, inside ? tensor.memory + (line * elements + first[0] + from) * 2 : nullptr,
                 inside ? from : 0, inside ? to : 0);
      }
}

struct Store {
  Tensor tensor;
  unsigned from;
  Begin begin;
  Place place;
  std::vector<Line> lines;  // when it was started
};
std::map<std::pair<int, int>, std::deque<Store>> stores;  // by the block's rank and thread

std::vector<Line> read_lines(unsigned from, int count, const Place& place) {
  shared_at(from, size_t(count) * kLineBytes, kLineBytes, place);
  std::vector<Line> lines(static_cast<size_t>(count));
  for (int line = 0; line < count; ++line)
    for (int chunk = 0; chunk < kLineBytes; chunk += 16)
      memcpy(lines[size_t(line)].bytes + chunk,
             shared_at(chunk_address(from + unsigned(line * kLineBytes + chunk)), 16, 16, place), 16);
  return lines;
}

void finish_store(const Store& store) {
  const std::vector<Line> lines = read_lines(store.from, int(store.lines.size()), store.place);
  if (memcmp(lines.data(), store.lines.data(), lines.size() * kLineBytes))
    fail(store.place, "what it reads was written to after it was started, and before it was waited for");
  for_each_line(store.tensor, store.begin, [&](int line, unsigned char* to, int first, int last) {
    if (to) memcpy(to, lines[size_t(line)].bytes + first * 2, size_t(last - first) * 2);
  });
}

// Those of the block's threads that bar.sync gathers under an id.
struct Group {
  int threads, arrived, phase;
};
constexpr int kGroups = 16;
std::map<std::pair<int, int>, Group> groups;  // by the block's rank and id

std::map<std::pair<int, int>, std::deque<Product>> products;  // by the block's rank and warp

}  // namespace

void begin_block_of_tma() {
  stores.clear();
  products.clear();
  groups.clear();
}

void end_thread_of_tma() {
  const auto found = stores.find({position.rank, position.thread});
  if (found != stores.end() && !found->second.empty())
    fail(found->second.front().place, "the thread has ended without waiting until it was read");
}

unsigned shared_address(const void* shared, const Place& place) {
  const ptrdiff_t offset = static_cast<const unsigned char*>(shared) - dynamic_shared();
  if (offset < 0 || size_t(offset) >= dynamic_shared_bytes()) fail(place, "this is not in dynamic shared memory");
  return kFirstAddress + unsigned(offset);
}

void init_barrier(unsigned address, int arrivals, const Place& place) {
  if (arrivals < 1 || arrivals > kMostArrivals) fail(place, "a barrier counts 1 to 1024 arrivals");
  const Barrier barrier{uint16_t(arrivals), uint16_t(arrivals), 0, 0};
  memcpy(shared_at(address, 8, 8, place), &barrier, 8);
}

void arrive(unsigned address, int bytes, const Place& place) { arrive_there(address, position.rank, bytes, place); }

void arrive_there(unsigned address, int rank, int bytes, const Place& place) {
  if (rank < 0 || rank >= cluster_size()) fail(place, "no block of the cluster has this rank");
  BarrierAt at(address, place, rank);
  if (at.barrier.missing == 0) fail(place, "more arrive in a phase than the barrier counts");
  --at.barrier.missing;
  at.barrier.bytes += bytes;
  at.store();
}

void wait(unsigned address, int parity, const Place& place) {
  while (int(BarrierAt(address, place).barrier.parity) == parity) sleep(place);
}

namespace {

// Into one block, or all of the cluster.
void load_into(int rank, const Tensor& tensor, unsigned to, unsigned barrier, const Begin& begin, const Place& place) {
  const int lines = box_lines(tensor);
  memset(shared_at(to, size_t(lines) * kLineBytes, kLineBytes, place, rank), 0xff, size_t(lines) * kLineBytes);
  BarrierAt(barrier, place, rank);
  later(rank, [=] {
    for_each_line(tensor, begin, [&](int line, const unsigned char* from, int first, int last) {
      Line whole{};
      if (from) memcpy(whole.bytes + first * 2, from, size_t(last - first) * 2);
      for (int chunk = 0; chunk < kLineBytes; chunk += 16)
        memcpy(shared_at(chunk_address(to + unsigned(line * kLineBytes + chunk)), 16, 16, place), whole.bytes + chunk,
               16);
    });
    BarrierAt at(barrier, place);
    at.barrier.bytes -= lines * kLineBytes;
    at.store();
  });
}
void load(const Tensor& tensor, unsigned to, unsigned barrier, const Begin& begin, Blocks blocks, const Place& place) {
  if (blocks == Blocks::own) return load_into(position.rank, tensor, to, barrier, begin, place);
  if (cluster_size() != 2) fail(place, "there are no two blocks in the cluster");
  for (int rank = 0; rank < 2; ++rank) load_into(rank, tensor, to, barrier, begin, place);
}

void store(const Tensor& tensor, unsigned from, const Begin& begin, const Place& place) {
  for (const int coordinate : begin.first)
    if (coordinate < 0) fail(place, "a store can't begin before the tensor does");
  stores[{position.rank, position.thread}].push_back(
      {tensor, from, begin, place, read_lines(from, box_lines(tensor), place)});
}

Tensor decode_as(const TensorMap& map, bool has_windows, const Place& place) {
  const Tensor tensor = decode(map);
  if (tensor.has_windows != has_windows) fail(place, "the tensor map is made for the other kind of copies");
  return tensor;
}

Tensor decode_windows(const TensorMap& map, const Begin& begin, const Place& place) {
  const Tensor tensor = decode_as(map, true, place);
  const Windows& windows = tensor.windows;
  for (int i = 0; i < 2; ++i) {
    const int at = begin.first[1 + i], offset = begin.offset[i];
    if (at < windows.first[i] || at >= tensor.sizes[1 + i] + windows.end[i] ||
        (at - windows.first[i]) % windows.steps[i])
      fail(place, "no window begins there");
    if (offset < 0 || offset > 255) fail(place, "a window has at most 256 pixels along an axis");
  }
  if (begin.first[3] < 0) fail(place, "no window begins there");
  return tensor;
}

Begin begin_at(const int (&first)[4], int offset_w = 0, int offset_h = 0) {
  return {{first[0], first[1], first[2], first[3]}, {offset_w, offset_h}};
}

}  // namespace

void load_box(const TensorMap& map, unsigned to, unsigned barrier, const int (&first)[4], Blocks blocks,
              const Place& place) {
  load(decode_as(map, false, place), to, barrier, begin_at(first), blocks, place);
}
void store_box(const TensorMap& map, unsigned from, const int (&first)[4], const Place& place) {
  store(decode_as(map, false, place), from, begin_at(first), place);
}
void load_windows(const TensorMap& map, unsigned to, unsigned barrier, const int (&first)[4], const int (&offset)[2],
                  Blocks blocks, const Place& place) {
  const Begin begin = begin_at(first, offset[0], offset[1]);
  load(decode_windows(map, begin, place), to, barrier, begin, blocks, place);
}
void store_windows(const TensorMap& map, unsigned from, const int (&first)[4], const Place& place) {
  const Begin begin = begin_at(first);
  const Tensor tensor = decode_windows(map, begin, place);
  // An H200 ends the kernel with an illegal instruction. Images past the last one it leaves out.
  for (int i = 0; i < 2; ++i)
    if (tensor.windows.first[i] < 0 || tensor.windows.end[i] > 0)
      fail(place, "there are windows to store outside of the image");
  store(tensor, from, begin, place);
}

void wait_for_reads(int pending, const Place&) {
  std::deque<Store>& own = stores[{position.rank, position.thread}];
  for (; own.size() > size_t(pending); own.pop_front()) finish_store(own.front());
}

void group_barrier(int id, int threads, const Place& place) {
  if (id < 1 || id >= kGroups || threads < 1 || threads % kWarp)
    fail(place, "a group's barrier has an id from 1 to 15, and whole warps");
  Group& group = groups[{position.rank, id}];
  if (group.arrived && group.threads != threads) fail(place, "others wait there for another number of threads");
  group.threads = threads;
  if (++group.arrived == threads) {
    group.arrived = 0;
    ++group.phase;
    return wake();
  }
  for (const int phase = group.phase; group.phase == phase;) sleep(place);
}

template <int kCount, bool kTransposed>
void store_matrices(StoreMatrices<kCount>* const* lanes) {
  for (int matrix = 0; matrix < kCount; ++matrix)
    for (int line = 0; line < 8; ++line) {
      const auto& call = *lanes[matrix * 8 + line];
      unsigned char* const to = shared_at(call.to, 16, 16, call.place);
      for (int element = 0; element < 8; ++element) {
        const int row = kTransposed ? element : line, column = kTransposed ? line : element;
        const unsigned word = lanes[row * 4 + column / 2]->words[matrix];
        const auto value = static_cast<uint16_t>(column % 2 ? word >> 16 : word);
        memcpy(to + element * 2, &value, 2);
      }
    }
}
template void store_matrices<2, false>(StoreMatrices<2>* const* lanes);
template void store_matrices<4, false>(StoreMatrices<4>* const* lanes);
template void store_matrices<4, true>(StoreMatrices<4>* const* lanes);

std::deque<Product>& products_of(int warp) { return products[{position.rank, warp}]; }

}  // namespace reformer::emulator
