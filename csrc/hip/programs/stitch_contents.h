// The contents of a program's kernel as data: which values are computed once per channel, which are read for each
// element, and where each output goes. StitchWriter renders them.
#pragma once

#include "program/accesses.h"
#include "program/program.h"

namespace reformer {

struct StitchContents {
  // A leaf that is not needed in columns from `end` on.
  struct Part {
    int32_t node;
    int64_t end;
  };

  // Keeps a reference to the call.
  explicit StitchContents(const ProgramCall& call);

  const ProgramNode& node(int32_t i) const { return program.nodes[size_t(i)]; }
  const ProgramOutput& output(size_t o) const { return program.outputs[o]; }
  bool by_element(int32_t i) const { return by_row(varies[size_t(i)]); }
  bool is_channel_input(int32_t i) const {
    const ProgramOp op = node(i).op;
    return op == ProgramOp::channel || op == ProgramOp::plane || op == ProgramOp::channel_index ||
           op == ProgramOp::scalar;
  }

  // True if the node compares a channel's number with a number of the row: it is true in at most one channel, or false
  // in at most one.
  bool compares_channels(int32_t i) const { return number_of_row(i) >= 0; }
  // The node of the row's number, or -1.
  int32_t number_of_row(int32_t i) const;

  // The nodes that these depend on, in order, without those that only reductions and scans of rows depend on. Follows
  // the operands of nodes that depend on the element (`elements`), or of those that do not.
  std::vector<int32_t> needed(const std::vector<int32_t>& nodes, bool elements) const;

  // The subset of these nodes that an element's text computes, in order: values common to the row are given there, so
  // the nodes that they depend on are left out.
  std::vector<int32_t> within_rows(const std::vector<int32_t>& nodes) const;
  // True if elements of several lines of a tensor are read or written at once.
  bool is_transposed() const;
  bool is_transposed(int32_t place) const { return place >= 0 && call.placements[size_t(place)].is_transposed(); }
  // True if the leaf is such a tensor.
  bool is_read_by_lines(const ProgramNode& leaf) const {
    return leaf.op != ProgramOp::acc && reformer::is_read_by_lines(call, size_t(leaf.input));
  }
  // True if the leaf is a sum of elements that are read through a map of columns, one by one.
  bool sums_one_by_one(const ProgramNode& leaf) const;
  // Index in `loaded` of the memory read for this node; the size of `loaded` if there is none.
  size_t loaded_place(int32_t i) const;
  // True if element i of `loaded` or `stored` is a dense tensor of the result's type, with rows aligned to 16 bytes.
  bool loads_dense(size_t i) const;
  bool stores_dense(size_t i) const;
  // Lines of a thread of element-wise kernels whose loads are in flight at once.
  int lines_at_once() const;
  // Blocks of these kernels that a multiprocessor has to run at once; 0: as many as the compiler makes.
  int blocks_at_once() const;
  bool is_of_rows(int32_t i) const { return program.needs_rows && varies[size_t(i)] == Varies::rows; }

  const ProgramCall& call;
  const Program& program;
  const std::vector<ProgramOperand>& inputs;
  const Stored result;
  // Functions are computed to the precision of this type: bf16 if all outputs by element are, fp16 if one is, or beside
  // a bf16 result one of fp32; else the result's type.
  Stored precision;
  const std::vector<Varies> varies;
  const Accesses accesses;
  std::vector<size_t> stored;       // indices of outputs by element
  std::vector<size_t> of_channels;  // outputs by channel or plane that are not reductions
  std::vector<size_t> of_rows;      // outputs by row that are not reductions
  // Reductions and scans of rows, for each stage; they depend only on those of earlier stages.
  std::vector<std::vector<int32_t>> stages, scans;
  std::vector<int32_t> results;         // nodes that of_element() returns: stored ones, then reduced ones
  std::vector<int32_t> channel_values;  // nodes computed once per channel that elements depend on
  std::vector<int32_t> channel_inputs;  // leaves that these depend on
  std::vector<int32_t> loaded;          // leaves read for each element, including acc
  std::vector<std::vector<Part>>
      parts;              // for each element of `loaded`: the leaf, and those read in its place in other columns
  int acc = -1;           // its index in `loaded`
  int first_result = -1;  // index in `stored` of the first output of the result's type

 private:
  int64_t bytes_of_line() const;
  // These nodes and, in order, all nodes reached from them by going from followed nodes to their operands.
  template <class Follows>
  std::vector<int32_t> followed(const std::vector<int32_t>& nodes, Follows follows) const;
  void find_stages();
  void join_parts();
};

}  // namespace reformer
