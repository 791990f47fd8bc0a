// What the text of a program's kernel has to say, as data: which values are computed once a channel, which are read for
// each element, and where each output goes. stitch_source.cpp renders it.
#pragma once

#include "program/program.h"

namespace reformer {

struct StitchContents {
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

  // All that these nodes are made of, in order, but for what rows' reductions are made of. Operands are followed from
  // nodes that depend on the element (`elements`), or from those that do not.
  std::vector<int32_t> needed(const std::vector<int32_t>& nodes, bool elements) const;

  const ProgramCall& call;
  const Program& program;
  const std::vector<ProgramOperand>& inputs;
  const Stored result;
  const std::vector<Varies> varies;
  std::vector<size_t> stored;                // outputs by element
  std::vector<size_t> of_channels;           // outputs by channel or plane that are no reductions
  std::vector<size_t> of_rows;               // the same by row
  std::vector<std::vector<int32_t>> stages;  // reductions of rows: each needs those of earlier stages at most
  std::vector<int32_t> results;              // what of_element() gives: what is stored, and then what is reduced
  std::vector<int32_t> channel_values;       // what elements' values are made of and is computed once a channel
  std::vector<int32_t> channel_inputs;       // what these are computed from
  std::vector<int32_t> loaded;               // what is read for each element, and acc
  int acc = -1;                              // its place in `loaded`
  int first_result = -1;                     // the place in `stored` of the first output of the result's type

 private:
  void find_stages();
};

}  // namespace reformer
