// Adds up partial gradients of a table: those of many blocks, in their order.
#include "../device/add_up.h"
#include "../device/grid_dependency.h"
#include "add_tables_args.h"

namespace reformer {
namespace {

// Each slice of a block adds up every kAddTablesSlices-th part, so that many loads are in flight.
template <class T>
DEVICE void add_tables(const AddTablesArgs& p) {
  SHARED float sums[kAddTablesSlices][kAddTablesCells];
  const int cell = thread_id() % kAddTablesCells, slice = thread_id() / kAddTablesCells;
  const int at = block_x() * kAddTablesCells + cell;
  float sum[1] = {};
  if (at < p.elements) add_up<1>(p.parts + at, p.elements, slice, kAddTablesSlices, p.count, sum);
  sums[slice][cell] = sum[0];
  barrier();
  if (slice || at >= p.elements) return;
  for (int other = 1; other < kAddTablesSlices; ++other) sum[0] += sums[other][cell];
  T& to = static_cast<T*>(p.to)[at];
  from_float(p.adds ? sum[0] + to_float(to) : sum[0], to);
}

}  // namespace
}  // namespace reformer

#define X(T)                                                    \
  KERNEL(reformer::kAddTablesCells* reformer::kAddTablesSlices) \
  add_tables_##T(reformer::AddTablesArgs args) {                \
    reformer::grid_dependency_launch();                         \
    reformer::grid_dependency_wait();                           \
    reformer::add_tables<reformer::T>(args);                    \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "add_tables.inc"
#endif
