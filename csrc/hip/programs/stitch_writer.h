// Writes a program's text (stitch_source.h); each kind of kernel has parts of its own.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "program/axis_maps.h"
#include "stitch_contents.h"

namespace reformer {

class StitchWriter {
 public:
  explicit StitchWriter(const StitchContents& contents) : contents_(contents) {
    for (const std::vector<int32_t>& stage : contents.stages)
      row_reductions_.insert(row_reductions_.end(), stage.begin(), stage.end());
    for (const std::vector<int32_t>& stage : contents.scans)
      row_scans_.insert(row_scans_.end(), stage.begin(), stage.end());
  }

  std::string write();

 private:
  const ProgramNode& node(int32_t i) const { return contents_.node(i); }
  const ProgramOutput& output(size_t o) const { return contents_.output(o); }
  const std::vector<size_t>& reductions() const { return contents_.program.reductions; }
  Stored loaded_as(const ProgramNode& of) const {
    return of.op == ProgramOp::acc ? contents_.result : contents_.inputs[size_t(of.input)].type;
  }
  // Text of the type of what is read: of a tensor's elements, or of their digits.
  std::string loaded_type(const ProgramNode& of) const {
    return of.digit ? digit_text(type_name(loaded_as(of)), of.digit) : type_name(loaded_as(of));
  }
  static std::string digit_text(const std::string& type, int number);
  static const char* type_name(Stored type);

  // Text of a node's name, and of its value given its operands' names; empty for leaves that are read from memory.
  static std::string name(int32_t node) { return "v" + std::to_string(node); }
  static std::string expression(const ProgramNode& node);
  static std::string number_text(double value);
  // Text of the memory that a node is read from, and the number of its placement, or -1.
  static std::string source(const ProgramNode& of) {
    return of.op == ProgramOp::acc ? std::string("p.acc") : "p.in[" + std::to_string(of.input) + "]";
  }
  int32_t placement(const ProgramNode& of) const {
    return of.op == ProgramOp::acc ? -1 : contents_.inputs[size_t(of.input)].place;
  }
  // Text of the address of an element by a placement, and of a row's number by a placement or without one.
  std::string place_text(int32_t number) const;
  std::string line_text(int32_t place) const { return place < 0 ? "line" : place_text(place); }
  // Text of a table, and of the number of its row according to its index at this line.
  std::string table_text(const ProgramNode& of) const;
  std::string look_up_text(const ProgramNode& of) const;
  // Text of the memory that element i of `loaded` is read from, and of the address there. row: text of its table's row,
  // if it has one.
  std::string from_text(size_t i) const {
    return chosen(i, [&](const ProgramNode& of) { return source(of); });
  }
  std::string at_text(size_t i, const std::string& row) const;
  // Text for the part that has the column.
  template <class Text>
  std::string chosen(size_t i, const Text& text) const {
    const std::vector<StitchContents::Part>& parts = contents_.parts[i];
    std::string found = text(node(parts.back().node));
    for (size_t j = parts.size() - 1; j-- > 0;)
      found = "(column < " + std::to_string(parts[j].end) + " ? " + text(node(parts[j].node)) + " : " + found + ")";
    return found;
  }
  // Text of the element type and of the numbers of elements per group and per access; for parts that are read in place
  // of each other, the narrowest access.
  std::string typed_text(size_t i) const {
    int most = contents_.accesses.elements;
    for (const StitchContents::Part& part : contents_.parts[i]) most = std::min(most, access(node(part.node)));
    return typed_text(loaded_type(node(contents_.loaded[i])), most);
  }
  std::string typed_text(const std::string& type, int access) const {
    const std::string of_group = type + ", kCount";
    return access < contents_.accesses.elements ? of_group + ", " + std::to_string(access) : of_group;
  }
  int access(const ProgramNode& of) const {
    return of.op == ProgramOp::acc ? contents_.accesses.acc : contents_.accesses.inputs[size_t(of.input)];
  }

  // An output that equals acc may be in acc's own memory.
  static std::string unless_there(size_t output) { return "if (p.out[" + std::to_string(output) + "] != p.acc) "; }

  static size_t place_of(const std::vector<int32_t>& among, int32_t node) {
    return size_t(std::find(among.begin(), among.end(), node) - among.begin());
  }

  void constants();
  void element_statements(const std::vector<int32_t>& nodes, const char* indent);
  void of_element();
  void of_channel();
  void load();
  void load_more();
  void store();
  void store_channel();
  void store_reduction();
  // Writes the statement that stores one number, given as text, of an output.
  void write_one(size_t o, const std::string& at, const std::string& number, const char* indent = "    ");

  static constexpr const char* kPlane = "static_cast<long long>(image) * p.channels + channel";
  std::string read_channel_input(int32_t i) const;
  // Text of the index of the first element of an input that depends at most on the channel.
  static const char* channel_place(const ProgramNode& of) {
    return of.op == ProgramOp::channel ? "channel" : of.op == ProgramOp::plane ? kPlane : "0";
  }
  // Writes the statements that compute these nodes, which depend at most on the channel. read(i): text of an input.
  template <class Read>
  void statements(const std::vector<int32_t>& nodes, const char* indent, const Read& read) {
    for (int32_t i : contents_.needed(nodes, false))
      body_ << indent << "const float " << name(i) << " = "
            << (contents_.is_channel_input(i) ? read(i) : expression(node(i))) << ";\n";
  }

  // For rows only (stitch_rows_source.cpp).
  // The passes over rows, one after another: the reductions and scans of each stage, and then the results.
  size_t passes() const { return contents_.stages.size() + 1; }
  std::vector<int32_t> nodes_of(size_t pass) const;
  // The subset of the nodes that is common to the row and computed once per row.
  std::vector<int32_t> of_rows_among(const std::vector<int32_t>& nodes) const;
  bool is_sum_of_chosen(int32_t reduction) const;
  std::vector<int32_t> named(size_t pass) const;
  template <class What>
  void by_pass(const char* declaration, What what, const char* rest);
  template <class What>
  void by_number(const char* declaration, size_t count, What what, const char* rest);
  void begins(const char* name, const std::vector<std::vector<int32_t>>& stages);
  void of_rows();
  void name_channels();
  void row_statements(const std::vector<int32_t>& nodes, const char* indent);
  void of_row_once();
  void hold();

  // For mapped tensors (stitch_mapped_source.cpp).
  bool is_mapped(size_t i) const { return node(contents_.loaded[i]).op == ProgramOp::mapped; }
  // Text of the type that holds element i of `loaded`, and of the call that reads a mapped one into `to`.
  std::string held_type(size_t i) const;
  bool is_summed(size_t i) const;
  static std::string read_mapped_text(size_t i, const std::string& to, const char* there) {
    return "read_mapped" + std::to_string(i) + "<kCount>(p, line, column, " + to + ", " + there + ");\n";
  }
  // True if few elements have more than one combination of taps, which another call adds.
  bool has_more(size_t i) const;
  static std::string read_more_text(size_t i, const std::string& to, const char* there) {
    return "read_more" + std::to_string(i) + "<kCount>(p, line, column, " + to + ", " + there + ");\n";
  }
  static std::string read_lines_text(size_t i, const std::string& to) {
    return "read_lines" + std::to_string(i) + "(p, line, column, " + to + ");\n";
  }
  static std::string input_text(size_t input);
  std::string place_of_line(int32_t place) const;
  std::string taps_text(const AxisMap& map, int taps, const std::string& column, const std::string& first) const;
  std::string tap_text(const AxisMaps& maps, int m, const std::string& column, const std::string& number) const;
  static std::string loop_text(const AxisMap& map, int m, const char* unroll, const std::string& indent);
  void read_mapped();
  void mapped_head(const char* name, size_t i);
  void mapped_elements(size_t i);
  void mapped_lines(size_t i);
  void within_groups(size_t i);
  void more_elements(size_t i);

  // For tiles only (stitch_tiles_source.cpp).
  void tile();
  void transposed_results();

  const StitchContents& contents_;
  std::vector<int32_t> row_reductions_, row_scans_;  // of all stages
  std::ostringstream body_;
};

}  // namespace reformer
