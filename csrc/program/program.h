// Program programs: what happens to each element of a result before, or instead of, its being stored. Written in
// Python (torch_reformer/program), which also says what each operation means; passed to the operators as numbers. No
// torch, no HIP.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement.h"
#include "types.h"

namespace reformer {

enum class ProgramOp : uint8_t {
#define REFORMER_LEAF(name) name,
#define REFORMER_ROW_REDUCTION(name) name,
#define REFORMER_OP(name, ...) name,
#include "ops.def"
};

struct ProgramOpEntry {
  const char* name;
  int operands;
  const char* gpu;  // its text in a kernel, with $0, $1 and $2 for the operands; of leaves and row reductions empty
};
constexpr ProgramOpEntry kProgramOps[] = {
#define REFORMER_LEAF(name) {#name, 0, ""},
#define REFORMER_ROW_REDUCTION(name) {#name, 1, ""},
#define REFORMER_OP(name, operands, gpu, ...) {#name, operands, gpu},
#include "ops.def"
};
constexpr int kProgramOpCount = int(sizeof(kProgramOps) / sizeof(kProgramOps[0]));
constexpr int operands(ProgramOp op) { return kProgramOps[int(op)].operands; }
constexpr bool reduces_row(ProgramOp op) { return op == ProgramOp::row_sum || op == ProgramOp::row_max; }

enum class Reduction : uint8_t { none, sum, max, moments };
enum class Per : uint8_t { element, channel, row, plane, all };

// The types of a program's tensors: those of DType by the same numbers, and what only programs have.
enum class Stored : int8_t {
  result = -1,
  fp32,
  fp64,
  fp16,
  bf16,
  mask = 5,    // bytes 0 and 1
  key = 6,     // int64, of indices, too
  index32 = 7  // int32
};
int64_t element_size(Stored type);

struct ProgramNode {
  ProgramOp op;
  int32_t operands[3];  // nodes before this one
  int32_t input;        // its number among the inputs
  double value;         // of a constant
};

// Behind each table follows its index, which has the number of one of the table's rows for each row of the result.
struct ProgramInput {
  ProgramOp kind;      // full to index
  int32_t table = -1;  // of a table and its index: its number among the tables
};

struct ProgramOutput {
  Reduction kind;
  Per per;  // of what is stored: element, or channel, row or plane for a node that depends on nothing else
  int32_t node;
  Stored type;     // of the tensor; result: what ProgramCall::stored_type() says
  int32_t factor;  // of a channel's sum: the node by which it is multiplied, which depends on the channel only; or -1

  bool is_by_element() const { return kind == Reduction::none && per == Per::element; }
  bool is_by_channel() const { return kind == Reduction::none && per == Per::channel; }
  bool is_by_row() const { return kind == Reduction::none && per == Per::row; }
  bool is_by_plane() const { return kind == Reduction::none && per == Per::plane; }
  // True if all rows, or all of an image, have it in common.
  bool is_common() const { return is_by_channel() || is_by_plane(); }
  bool reduces_like(const ProgramOutput& other) const {
    return kind == other.kind && per == other.per && node == other.node;
  }
};

// Where a value changes: it is one number for all of the result, or differs from channel to channel, from row (pixel)
// to row, or, of what is the same for all pixels of an image, from image to image. What is made of two values changes
// where either does.
enum class Varies : uint8_t { nowhere = 0, channels = 1, rows = 2, images = 4, planes = channels | images };
constexpr Varies operator|(Varies a, Varies b) { return Varies(uint8_t(a) | uint8_t(b)); }
// True if it differs at most from one of these to the other.
constexpr bool only(Varies varies, Varies by) { return (varies | by) == by; }
constexpr bool by_row(Varies varies) { return !only(varies, Varies::planes); }

struct Program {
  std::vector<ProgramInput> inputs;
  std::vector<ProgramNode> nodes;
  std::vector<ProgramOutput> outputs;
  std::vector<size_t> reductions;  // outputs that are reductions; of equal ones the first
  std::vector<int64_t> code;       // from which decode() makes it
  int64_t number = -1;             // its own, of an interned one (plan/interned.h)
  // True if a row's values have to be known before others of it are, or are stored: whole rows are computed at once.
  bool needs_rows = false;
  // True if something is known of each channel of each image: what belongs to an image is computed apart from others.
  bool has_planes = false;
  int32_t tables = 0;

  // From Program.code. Throws std::invalid_argument if it is malformed.
  static Program decode(const int64_t* code, int64_t size);
  bool has_acc() const;
  // If the first thing that happens to acc is that a channel's input is added: that input's number, else -1.
  int32_t bias() const;
  // acc is that sum from now on: a convolution gives it with the input for its bias, rounded once.
  void take_bias();
  std::vector<Varies> varies() const;  // of each node

 private:
  int32_t bias_sum() const;  // the node that adds it, or -1
};

// A result that a program works on, as [images][channels][pixels] or, in NHWC, [images][pixels][channels].
struct ProgramShape {
  Layout layout = Layout::nchw;
  int64_t images = 0, channels = 0, pixels = 0;
  int64_t rows() const { return images * pixels; }
  // True if the elements of a row are adjacent in memory.
  bool rows_are_lines() const { return layout == Layout::nhwc || pixels == 1; }
  int64_t numel() const { return rows() * channels; }
  // Elements of what has one for each of these.
  int64_t count(Per per) const;
  bool operator==(const ProgramShape& other) const;
  uint64_t hash() const;
};

struct ProgramOperand {
  const void* data;
  Stored type;
  int32_t place = -1;  // its number among the placements, of a full, row or index input that has one
};

// A matrix of which rows are looked up: how many there are, and elements of memory from one to the next.
struct Table {
  int64_t rows, pitch;
};

// A program's call. Tensors are dense, full ones in the result's layout; where rows are lines, and not behind a
// convolution, they may have placements instead. A tensor that is stored may be `acc`, if it has its type, or a full
// input; one of channels may be an input of channels that nothing else is computed from.
struct ProgramCall {
  const Program& program;
  ProgramShape shape;
  Stored type;      // of the result: fp32, fp64, fp16 or bf16
  const void* acc;  // of that type, or null
  std::vector<ProgramOperand> inputs;
  std::vector<void*> outputs;                   // of moments: means, then squares
  std::vector<Placement> placements = {};       // of inputs, in order, then of outputs
  std::vector<int32_t> places_of_outputs = {};  // as ProgramOperand::place; none has one if empty
  std::vector<Table> tables = {};

  // The data type of an output's tensor. Reductions are stored as they are computed if nothing else is said.
  Stored stored_type(const ProgramOutput& output) const {
    if (output.type != Stored::result) return output.type;
    return output.kind == Reduction::none || type == Stored::fp64 ? type : Stored::fp32;
  }
  // The row number that an index has for a line of the result.
  int64_t number(const ProgramOperand& index, int64_t line) const {
    const int64_t at = index.place < 0 ? line : placements[size_t(index.place)].line(line);
    return index.type == Stored::key ? static_cast<const int64_t*>(index.data)[at]
                                     : static_cast<const int32_t*>(index.data)[at];
  }
  int32_t place_of_output(size_t i) const { return places_of_outputs.empty() ? -1 : places_of_outputs[i]; }
};

}  // namespace reformer
