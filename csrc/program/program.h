// Programs: elementwise operations and reductions applied to a result before it is stored, or to stored tensors.
// Written in Python (torch_reformer/program), which also defines the meaning of each operation; passed to the operators
// as numbers. Free of torch and HIP.
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
#define REFORMER_ROW_SCAN(name) name,
#define REFORMER_OP(name, ...) name,
#include "ops.def"
};

struct ProgramOpEntry {
  const char* name;
  int operands;
  const char* gpu;  // its text in a kernel, where $0, $1 and $2 stand for the operands; empty for leaves and what needs
                    // whole rows
};
constexpr ProgramOpEntry kProgramOps[] = {
#define REFORMER_LEAF(name) {#name, 0, ""},
#define REFORMER_ROW_REDUCTION(name) {#name, 1, ""},
#define REFORMER_ROW_SCAN(name) {#name, 1, ""},
#define REFORMER_OP(name, operands, gpu, ...) {#name, operands, gpu},
#include "ops.def"
};
constexpr int kProgramOpCount = int(sizeof(kProgramOps) / sizeof(kProgramOps[0]));
constexpr int operands(ProgramOp op) { return kProgramOps[int(op)].operands; }
// Tables of int32 numbers: of a mapped tensor's axes, or of the places to which rows are stored.
constexpr bool is_map(ProgramOp op) { return op >= ProgramOp::places && op <= ProgramOp::targets; }
constexpr bool reduces_row(ProgramOp op) {
  return op == ProgramOp::row_sum || op == ProgramOp::row_max || op == ProgramOp::row_prod;
}
constexpr bool scans_row(ProgramOp op) { return op >= ProgramOp::row_cumsum && op <= ProgramOp::row_cumprod_reversed; }
constexpr bool scans_products(ProgramOp op) {
  return op == ProgramOp::row_cumprod || op == ProgramOp::row_cumprod_reversed;
}
constexpr bool scans_from_end(ProgramOp op) {
  return op == ProgramOp::row_cumsum_reversed || op == ProgramOp::row_cumprod_reversed;
}
// True if each element's value depends on the operand's other values in the row.
constexpr bool takes_row(ProgramOp op) { return reduces_row(op) || scans_row(op); }

enum class Reduction : uint8_t { none, sum, max, moments, prod };
// height: of all batch elements and horizontal positions; only reductions.
enum class Per : uint8_t { element, channel, row, plane, all, height };

// Types of a program's tensors: those of DType with the same numbers, and types that only programs have.
enum class Stored : int8_t {
  result = -1,
  fp32,
  fp64,
  fp16,
  bf16,
  mask = 5,  // bytes 0 and 1
  int64,     // also for keys of random numbers, and indices
  int32      // also for indices
};
int64_t element_size(Stored type);
constexpr bool is_whole(Stored type) { return type == Stored::int64 || type == Stored::int32; }

constexpr int kMostMapsOfTensor = 4, kMappedGroup = 4;

struct ProgramNode {
  ProgramOp op;
  int32_t operands[3];  // earlier nodes
  int32_t input;        // leaves: index among the inputs
  double value;         // of constants; of mapped tensors: the elements that come from nowhere
  int8_t digit = 0;     // of leaves: which digit of a whole number is read (digits.h); 0: the number
};

// Each table is followed by its index, which has, for each row of the result, the number of one of the table's rows. A
// mapped tensor is followed by the maps of its axes (axis_maps.h). Targets belong to outputs (targets.h).
struct ProgramInput {
  ProgramOp kind;      // full to targets
  int32_t table = -1;  // of a table and its index: number of the table among all tables
  int32_t maps = 0;    // of a mapped tensor: how many maps follow it
  // A power of two that divides all places of a mapped tensor's maps and, if a map is of columns, their number: so many
  // columns, beginning at any multiple, are adjacent in the tensor, or come from nowhere.
  int32_t alignment = 16;
  // If four columns, beginning at any multiple, come from the same four columns of a mapped tensor, `shift` elements
  // before its first one: which of these each is; 4 for nowhere.
  bool is_within = false;
  bool mostly_chooses = false;  // most elements of a mapped tensor have one combination of taps, or none
  int8_t within[kMappedGroup] = {}, shift = 0;
};

struct ProgramOutput {
  Reduction kind;
  Per per;  // what is stored: an element, or a channel, row or plane for a node that depends on nothing else
  int32_t node;
  Stored type;     // of the tensor; `result`: as ProgramCall::stored_type() says
  int32_t factor;  // of a sum per channel: the node that multiplies it, which depends on the channel only; or -1
  // Outputs by element: the input that has the rows' places (targets.h), or -1; and a power of two that divides all
  // places.
  int32_t targets, alignment;

  bool is_by_element() const { return kind == Reduction::none && per == Per::element; }
  bool is_by_channel() const { return kind == Reduction::none && per == Per::channel; }
  bool is_by_row() const { return kind == Reduction::none && per == Per::row; }
  bool is_by_plane() const { return kind == Reduction::none && per == Per::plane; }
  // True if all rows, or all rows of an image, share the value.
  bool is_common() const { return is_by_channel() || is_by_plane(); }
  bool reduces_like(const ProgramOutput& other) const {
    return kind == other.kind && per == other.per && node == other.node;
  }
};

// The directions in which a value varies: nowhere, if it is one number for the whole result; from channel to channel;
// from row (pixel) to row; or, for values equal in all pixels of an image, from image to image. The result of an
// operation varies where any operand does.
enum class Varies : uint8_t { nowhere = 0, channels = 1, rows = 2, images = 4, planes = channels | images };
constexpr Varies operator|(Varies a, Varies b) { return Varies(uint8_t(a) | uint8_t(b)); }
// True if it varies at most in the directions of `by`.
constexpr bool only(Varies varies, Varies by) { return (varies | by) == by; }
constexpr bool by_row(Varies varies) { return !only(varies, Varies::planes); }

struct Program {
  std::vector<ProgramInput> inputs;
  std::vector<ProgramNode> nodes;
  std::vector<ProgramOutput> outputs;
  std::vector<size_t> reductions;  // indices of the outputs that are reductions; only the first of equal ones
  std::vector<int64_t> code;       // as given to decode()
  int64_t number = -1;             // number of an interned program (plan/interned.h); else -1
  // True if values of a row depend on other values of it, or one value per row is stored: kernels then compute whole
  // rows at once.
  bool needs_rows = false;
  // True if some value belongs to a channel of an image (a plane): kernels then compute each image separately.
  bool has_planes = false;
  // True if some reduction is per height and channel; kernels then compute whole rows, too.
  bool has_heights = false;
  bool has_digits = false;
  int32_t tables = 0, maps = 0;

  // From Program.code in Python. Throws std::invalid_argument if it is malformed.
  static Program decode(const int64_t* code, int64_t size);
  bool has_acc() const;
  // The input of channels that is added to acc before anything else happens to it: its number, or -1.
  int32_t bias() const;
  // Replaces that sum by acc: a convolution with the input as its bias yields it, rounded once.
  void take_bias();
  std::vector<Varies> varies() const;  // for each node

 private:
  int32_t bias_sum() const;  // the node that adds the bias, or -1
};

// Shape of a program's result: [images][channels][pixels] or, in NHWC, [images][pixels][channels].
struct ProgramShape {
  Layout layout = Layout::nchw;
  int64_t images = 0, channels = 0, pixels = 0;
  int64_t height = 1;  // of the pixels, for programs with reductions per height
  int64_t rows() const { return images * pixels; }
  // True if the elements of a row are adjacent in memory.
  bool rows_are_lines() const { return layout == Layout::nhwc || pixels == 1; }
  int64_t numel() const { return rows() * channels; }
  // Number of elements of a tensor with one element per element, channel, row or plane.
  int64_t count(Per per) const;
  bool operator==(const ProgramShape& other) const;
  uint64_t hash() const;
};

struct ProgramOperand {
  const void* data;
  Stored type;
  int32_t place = -1;  // number of the placement of a full, row, index, mapped or map input, or -1 if it has none
  int32_t width = 0;   // of a map: numbers for each position
  int8_t digit = 0;    // as ProgramNode::digit
};

// A matrix whose rows are looked up: the number of rows, and elements from one row to the next.
struct Table {
  int64_t rows, pitch;
};

// A program's call. Tensors are dense, full ones in the result's layout. If rows are lines and no convolution precedes,
// they may have placements instead. An output tensor may be `acc`, if it has its type, or a full input; an output of
// channels may be an input of channels that no other node reads.
struct ProgramCall {
  const Program& program;
  ProgramShape shape;
  Stored type;      // of the result: fp32, fp64, fp16 or bf16
  const void* acc;  // of that type, or null
  std::vector<ProgramOperand> inputs;
  std::vector<void*> outputs;                   // for moments: means, then squares
  std::vector<Placement> placements = {};       // of inputs, then of outputs
  std::vector<int32_t> places_of_outputs = {};  // as ProgramOperand::place; if empty, no output has a placement
  std::vector<Table> tables = {};

  // The number of a placement for an input. Inputs of one kind whose elements lie alike, such as slices of a tensor,
  // share it, and kernels compute their places once; inputs that are read through maps share none.
  int32_t place_of_input(size_t input, const Placement& placement);
  int32_t add(const Placement& placement);
  // Data type of an output's tensor. By default, reductions are stored in the type in which they are computed.
  Stored stored_type(const ProgramOutput& output) const {
    if (output.type != Stored::result) return output.type;
    return output.kind == Reduction::none || type == Stored::fp64 ? type : Stored::fp32;
  }
  // The row number that an index holds for a line of the result.
  int64_t number(const ProgramOperand& index, int64_t line) const {
    const int64_t at = index.place < 0 ? line : placements[size_t(index.place)].line(line);
    return index.type == Stored::int64 ? static_cast<const int64_t*>(index.data)[at]
                                       : static_cast<const int32_t*>(index.data)[at];
  }
  // The tensor that a leaf reads, and the digit of its numbers.
  ProgramOperand operand(const ProgramNode& leaf) const {
    ProgramOperand of = inputs[size_t(leaf.input)];
    of.digit = leaf.digit;
    return of;
  }
  int32_t place_of_output(size_t i) const { return places_of_outputs.empty() ? -1 : places_of_outputs[i]; }
};

}  // namespace reformer
