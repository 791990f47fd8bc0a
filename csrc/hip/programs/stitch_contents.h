// The contents of a program's kernel, as data: which values are computed once a channel, which are read for
// each element, and where each output goes. StitchWriter renders it.
#pragma once

#include "program/accesses.h"
#include "program/program.h"

namespace reformer {

struct StitchContents {
  // A leaf that nothing needs of columns beyond.
  struct Part {
    int32_t node;
    int64_t end;
  };

  // The call is not copied.
  explicit StitchContents(const ProgramCall& call);

  const ProgramNode& node(int32_t i) const { return program.nodes[size_t(i)]; }
  const ProgramOutput& output(size_t o) const { return program.outputs[o]; }
  bool by_element(int32_t i) const { return by_row(varies[size_t(i)]); }
  bool is_channel_input(int32_t i) const {
    const ProgramOp op = node(i).op;
    return op == ProgramOp::channel || op == ProgramOp::plane || op == ProgramOp::channel_index ||
           op == ProgramOp::scalar;
  }

  // True if it compares a channel's number with one of the row that is read: it is true of one channel at most, or is
  // so of all others.
  bool compares_channels(int32_t i) const { return number_of_row(i) >= 0; }
  // The latter's node, or -1.
  int32_t number_of_row(int32_t i) const;

  // All that these nodes are made of, in order, but for what rows' reductions are made of. Operands are followed from
  // nodes that depend on the element (`elements`), or from those that do not.
  std::vector<int32_t> needed(const std::vector<int32_t>& nodes, bool elements) const;

  // Those of these nodes that an element's text computes, in order: what is the same for all of a row is there without
  // what it is made of.
  std::vector<int32_t> within_rows(const std::vector<int32_t>& nodes) const;
  // True if a tensor is read or written whose lines are adjacent, not its columns.
  bool is_transposed() const;
  bool is_transposed(int32_t place) const { return place >= 0 && call.placements[size_t(place)].is_transposed(); }
  // The place in `loaded` of what is read for this node; beyond its end for others.
  size_t loaded_place(int32_t i) const;
  bool is_of_rows(int32_t i) const { return program.needs_rows && varies[size_t(i)] == Varies::rows; }

  const ProgramCall& call;
  const Program& program;
  const std::vector<ProgramOperand>& inputs;
  const Stored result;
  Stored precision;  // that of what is stored by element, if it has 16 bits; else the result's
  const std::vector<Varies> varies;
  const Accesses accesses;
  std::vector<size_t> stored;                // outputs by element
  std::vector<size_t> of_channels;           // outputs by channel or plane that are no reductions
  std::vector<size_t> of_rows;               // the same by row
  std::vector<std::vector<int32_t>> stages;  // reductions of rows: each needs those of earlier stages at most
  std::vector<int32_t> results;              // what of_element() gives: what is stored, and then what is reduced
  std::vector<int32_t> channel_values;       // what elements' values are made of and is computed once a channel
  std::vector<int32_t> channel_inputs;       // what these are computed from
  std::vector<int32_t> loaded;               // what is read for each element, and acc
  std::vector<std::vector<Part>> parts;      // of each of these: it and what is read in its place for other columns
  int acc = -1;                              // its place in `loaded`
  int first_result = -1;                     // the place in `stored` of the first output of the result's type

 private:
  // These nodes and, in order, all that is found by going from a node that is followed to its operands.
  template <class Follows>
  std::vector<int32_t> followed(const std::vector<int32_t>& nodes, Follows follows) const;
  void find_stages();
  void join_parts();
};

}  // namespace reformer
