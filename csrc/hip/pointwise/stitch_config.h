// A launch of a stitch kernel: its arguments, and the text that defines the kernel.
#pragma once

#include <string>

#include "hip/programs/stitch_args.h"
#include "jit/gpu.h"
#include "program/program.h"

namespace reformer {

inline StitchPlacement stitch_placement(const Placement& of) {
  StitchPlacement placed{};
  for (int i = 0; i < of.line_digits; ++i) {
    if (i + 1 < of.line_digits) placed.of_line[i] = make_divider(int(of.of_line[size_t(i)].count));
    placed.line[i] = int(of.of_line[size_t(i)].stride);
  }
  if (of.column_digits) placed.of_column = make_divider(int(of.of_column[0].count));
  placed.column = int(of.of_column[of.is_transposed() && of.packed() == 1 ? 0 : 1].stride);
  return placed;
}

inline StitchTable stitch_table(const Table& of) { return {int(of.rows), int(of.pitch)}; }

struct StitchConfig {
  StitchArgs args{};
  int count = 1;       // adjacent elements that a thread computes at once
  bool tails = false;  // rows end within these elements
  bool channels_along = false;
  bool images = false;  // the lines of a block belong to one image
  int tile_lines = 0;   // lines that a thread computes at once if tensors are transposed
  // If rows are reduced: threads per row, and groups of `count` elements per thread in registers; 0 if rows are too
  // long for that.
  int lanes = 0, vectors = 0;
  // Blocks for which a multiprocessor must have room, or 0. If rows are too long for registers: groups of a thread that
  // are read at once.
  int blocks = 0, ahead = 0;
  // True if the threads of a row have exactly the row's groups.
  bool whole_rows() const { return vectors * lanes * count == args.width; }
  gpu::Launch launch, finish;
  int64_t workspace_bytes = 0;  // for partial results of reductions; 0: nothing remains to be added up
  // Semaphores with which the kernel's last blocks add up the partial results, so that no second kernel is needed; 0 if
  // that is impossible or slower.
  int semaphores = 0;

  // The kernel's file, and the text that follows the program's there and defines a kernel of this name.
  const char* file() const {
    return lanes ? "pointwise/stitch_rows" : tile_lines ? "pointwise/stitch_tiles" : "pointwise/stitch";
  }
  std::string text(const std::string& name) const {
    const std::string each = std::to_string(count), of_row = std::to_string(lanes);
    if (tile_lines)
      return "REFORMER_STITCH_TILES(" + name + ", Program, " + std::to_string(tile_lines) + ", " + each + ")\n";
    const auto next = [](bool value) { return std::string(value ? ", true" : ", false"); };
    if (!lanes)
      return "REFORMER_STITCH(" + name + ", Program, " + std::to_string(blocks) + ", " +
             (channels_along ? "nhwc, " + each + next(images) + next(tails) : "nchw, " + each) + ")\n";
    const std::string row =
        vectors
            ? "RowInRegisters<Program, " + each + ", " + std::to_string(vectors) + ", " + of_row + next(whole_rows())
            : "LongRow<Program, " + each + ", " + of_row + next(launch.shared_bytes) + ", " + std::to_string(ahead);
    return "REFORMER_STITCH_ROWS(" + name + ", Program, " + of_row + ", " + std::to_string(launch.threads) + ", " +
           std::to_string(blocks) + ", " + row + next(tails) + ">)\n";
  }
};

// Properties of a GPU that the launch depends on.
struct StitchGpu {
  int multiprocessors;  // exact or approximate number
  int shared_bytes;     // per block
};

namespace stitch_launch {

constexpr int kMostBlocksY = 65535;  // of a grid, by CUDA and HIP

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace stitch_launch
}  // namespace reformer
