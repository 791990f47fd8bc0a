// The part of a program's text that is only for rows: see stitch_source.h.
#include "stitch_writer.h"

namespace reformer {

std::vector<int32_t> StitchWriter::nodes_of(size_t pass) const {
  if (pass == contents_.stages.size()) return contents_.results;
  std::vector<int32_t> nodes;
  for (int32_t reduction : contents_.stages[pass]) nodes.push_back(node(reduction).operands[0]);
  for (int32_t scan : contents_.scans[pass]) nodes.push_back(node(scan).operands[0]);
  return nodes;
}

std::vector<int32_t> StitchWriter::of_rows_among(const std::vector<int32_t>& nodes) const {
  std::vector<int32_t> found;
  for (int32_t i : contents_.within_rows(nodes))
    if (contents_.is_of_rows(i)) found.push_back(i);
  return found;
}

// Writes a constexpr function of a number, from an expression what(i) for each one below `count`, and `rest` otherwise.
template <class What>
void StitchWriter::by_number(const char* declaration, size_t count, What what, const char* rest) {
  body_ << "  DEVICE static constexpr " << declaration << "(int i) {\n    return ";
  for (size_t i = 0; i < count; ++i) body_ << "i == " << i << " ? " << what(i) << " : ";
  body_ << rest << ";\n  }\n";
}

// Writes a constexpr function of a stage: the number of its first member among those of all stages.
void StitchWriter::begins(const char* name, const std::vector<std::vector<int32_t>>& stages) {
  std::vector<size_t> begin{0};
  for (const std::vector<int32_t>& stage : stages) begin.push_back(begin.back() + stage.size());
  by_number((std::string("int ") + name).c_str(), stages.size(), [&](size_t i) { return begin[i]; },
            std::to_string(begin.back()).c_str());
}

void StitchWriter::of_rows() {
  if (!contents_.program.needs_rows) return;
  body_ << "  static constexpr int kRowReductions = " << row_reductions_.size() << ", kScans = " << row_scans_.size()
        << ", kStages = " << contents_.stages.size()
        << ";\n  static constexpr bool kStoresRows = " << (contents_.of_rows.empty() ? "false" : "true")
        << ", kHeights = " << (contents_.program.has_heights ? "true" : "false") << ";\n";
  const auto kind = [&](ProgramOp op) {
    const bool multiplies = op == ProgramOp::row_prod || scans_products(op);
    return op == ProgramOp::row_max ? "Kind::max" : multiplies ? "Kind::prod" : "Kind::sum";
  };
  by_number(
      "Kind row_kind", row_reductions_.size(), [&](size_t i) { return kind(node(row_reductions_[i]).op); },
      "Kind::sum");
  if (!row_scans_.empty()) {  // compilers warn of functions without use
    by_number("Kind scan_kind", row_scans_.size(), [&](size_t i) { return kind(node(row_scans_[i]).op); }, "Kind::sum");
    by_number(
        "bool is_reversed", row_scans_.size(), [&](size_t i) { return int(scans_from_end(node(row_scans_[i]).op)); },
        "0");
  }
  begins("stage_begin", contents_.stages);
  begins("scan_begin", contents_.scans);
  body_ << "  template <int stage, bool near>\n"
           "  DEVICE static void of_row(const StitchArgs& p, const float* c, const float* x, const float* w, float* "
           "to) {\n";
  for (size_t i = 0; i < contents_.stages.size(); ++i) {
    const std::vector<int32_t> nodes = nodes_of(i);
    body_ << "    if constexpr (stage == " << i << ") {\n";
    element_statements(nodes, "      ");
    for (size_t j = 0; j < nodes.size(); ++j)
      body_ << "      to[" << j << "] = "
            << (j < contents_.stages[i].size() && is_sum_of_chosen(contents_.stages[i][j]) ? "!near ? -0.0f : " : "")
            << name(nodes[j]) << ";\n";
    body_ << "    }\n";
  }
  body_ << "  }\n";
  name_channels();
}

// True if it sums a value that is 0 except in the channel named by a number of the row. Adding -0 changes no sum, and
// the compiler knows that.
bool StitchWriter::is_sum_of_chosen(int32_t reduction) const {
  const ProgramNode& of = node(node(reduction).operands[0]);
  if (node(reduction).op != ProgramOp::row_sum || of.op != ProgramOp::select) return false;
  const ProgramNode& rest = node(of.operands[node(of.operands[0]).op == ProgramOp::eq ? 2 : 1]);
  return contents_.compares_channels(of.operands[0]) && rest.op == ProgramOp::constant && rest.value == 0;
}

template <class What>
void StitchWriter::by_pass(const char* declaration, What what, const char* rest) {
  by_number(declaration, passes(), what, rest);
}

// The nodes of the rows' numbers that name channels in a pass.
std::vector<int32_t> StitchWriter::named(size_t pass) const {
  std::vector<int32_t> found;
  for (int32_t i : contents_.within_rows(nodes_of(pass)))
    if (contents_.compares_channels(i)) found.push_back(contents_.number_of_row(i));
  return found;
}

void StitchWriter::name_channels() {
  by_pass("int row_values", [&](size_t pass) { return of_rows_among(nodes_of(pass)).size(); }, "0");
  by_pass("int named_channels", [&](size_t pass) { return named(pass).size(); }, "0");
  body_ << "  template <int pass>\n  DEVICE static void name_channels(const float* w, int* to) {\n";
  for (size_t pass = 0; pass < passes(); ++pass) {
    const std::vector<int32_t> of_rows = of_rows_among(nodes_of(pass)), numbers = named(pass);
    for (size_t i = 0; i < numbers.size(); ++i)
      body_ << "    if constexpr (pass == " << pass << ") to[" << i << "] = int(w[" << place_of(of_rows, numbers[i])
            << "]);\n";
  }
  body_ << "  }\n";
}

// Writes the statements that compute these nodes, which are common to the row: loaded values are members of Held, and r
// has the row's reductions.
void StitchWriter::row_statements(const std::vector<int32_t>& nodes, const char* indent) {
  const std::vector<int32_t> found = contents_.needed(nodes, true);
  std::vector<int32_t> common;
  for (int32_t i : found)
    if (!contents_.by_element(i)) common.push_back(i);
  statements(common, indent, [&](int32_t i) { return read_channel_input(i); });
  for (int32_t i : found) {
    if (!contents_.by_element(i)) continue;
    body_ << indent << "const float " << name(i) << " = ";
    if (node(i).op == ProgramOp::row)
      body_ << "x" << contents_.loaded_place(i);
    else if (reduces_row(node(i).op))
      body_ << "r[" << place_of(row_reductions_, i) << "]";
    else
      body_ << expression(node(i));
    body_ << ";\n";
  }
}

void StitchWriter::of_row_once() {
  body_ << "    template <int pass>\n"
           "    DEVICE void row_values(const StitchArgs& p, const float* r, float* w) const {\n";
  for (size_t pass = 0; pass < passes(); ++pass) {
    const std::vector<int32_t> of_rows = of_rows_among(nodes_of(pass));
    if (of_rows.empty()) continue;
    body_ << "      if constexpr (pass == " << pass << ") {\n";
    row_statements(of_rows, "        ");
    for (size_t i = 0; i < of_rows.size(); ++i) body_ << "        w[" << i << "] = " << name(of_rows[i]) << ";\n";
    body_ << "      }\n";
  }
  body_ << "    }\n    DEVICE void store_row(const StitchArgs& p, int row, const float* r) const {\n";
  std::vector<int32_t> nodes;
  for (size_t o : contents_.of_rows) nodes.push_back(output(o).node);
  row_statements(nodes, "      ");
  for (size_t o : contents_.of_rows) write_one(o, "row", name(output(o).node), "      ");
  body_ << "    }\n";
}

// Rows are held in their stored types, so that a thread has more of a row and of the next one.
void StitchWriter::hold() {
  body_ << "  template <int kCount>\n  struct Held {\n";
  const auto each = [&](const auto& write) {
    for (size_t i = 0; i < contents_.loaded.size(); ++i) write(node(contents_.loaded[i]), "x" + std::to_string(i));
  };
  // Larger elements come first, so that there is no padding between.
  for (size_t i = 0; i < contents_.loaded.size(); ++i)
    if (const ProgramOp op = node(contents_.loaded[i]).op; op != ProgramOp::row && op != ProgramOp::random)
      body_ << "    " << held_type(i) << " x" << i << ";\n";
  each([&](const ProgramNode& of, const std::string& x) {
    if (of.op == ProgramOp::random) body_ << "    unsigned long long " << x << ";\n";
  });
  each([&](const ProgramNode& of, const std::string& x) {
    if (of.op == ProgramOp::row) body_ << "    float " << x << ";\n";
    if (of.op == ProgramOp::table) body_ << "    int row_of_" << x << ";\n";
  });
  const auto is_tensor = [](const ProgramNode& of) { return of.op != ProgramOp::row && of.op != ProgramOp::random; };
  body_ << "    DEVICE void read_row(const StitchArgs& p, int line) {\n      [[maybe_unused]] const int column = 0;\n";
  each([&](const ProgramNode& of, const std::string& x) {
    if (of.op == ProgramOp::random)
      body_ << "      " << x << " = read_key(" << source(of) << ");\n";
    else if (of.op == ProgramOp::table)
      body_ << "      row_of_" << x << " = " << look_up_text(of) << ";\n";
    else if (of.op == ProgramOp::row)
      body_ << "      " << x << " = read_one<" << loaded_type(of) << ">(" << source(of) << ", "
            << line_text(placement(of)) << ");\n";
  });
  body_ << "    }\n    template <class There>\n"
           "    DEVICE void read(const StitchArgs& p, int line, long long column, const There& there) {\n"
           "      [[maybe_unused]] const long long at = static_cast<long long>(line) * p.width + column;\n";
  for (size_t i = 0; i < contents_.loaded.size(); ++i) {
    const std::string x = "x" + std::to_string(i);
    if (is_mapped(i))
      body_ << "      " << read_mapped_text(i, x, "there")
            << (has_more(i) ? "      " + read_more_text(i, x, "there") : "");
    else if (is_tensor(node(contents_.loaded[i])))
      body_ << "      " << x << ".read(" << from_text(i) << ", " << at_text(i, "row_of_" + x) << ", there);\n";
  }
  body_ << "    }\n";
  // In shared memory the largest elements come first, so that vectors are aligned.
  const auto each_resident = [&](const auto& write) {
    int64_t before = 0;
    for (int64_t size : {8, 4, 2, 1})
      for (size_t i = 0; i < contents_.loaded.size(); ++i) {
        const ProgramNode& of = node(contents_.loaded[i]);
        if (!is_tensor(of) || is_mapped(i) || element_size(loaded_as(of)) != size) continue;
        write(i, "resident + " + std::to_string(before) + " * p.held_width");
        before += size;
      }
  };
  int64_t bytes = 0;
  for (size_t i = 0; i < contents_.loaded.size(); ++i)
    if (const ProgramNode& of = node(contents_.loaded[i]); is_tensor(of))
      bytes += is_mapped(i) && is_summed(i) ? 4 : element_size(loaded_as(of));
  body_ << "    DEVICE static constexpr int bytes() { return " << bytes << " * kCount; }\n";
  body_ << "    template <class There>\n    DEVICE static void fetch(const StitchArgs& p, unsigned char* resident, int "
           "line, int column, const There& there) {\n"
           "      [[maybe_unused]] const long long at = static_cast<long long>(line) * p.width + column;\n";
  each_resident([&](size_t i, const std::string& resident) {
    const ProgramNode& of = node(contents_.loaded[i]);
    body_ << "      reformer::fetch<" << typed_text(i) << ">(" << resident << ", column, " << from_text(i) << ", "
          << at_text(i, of.op == ProgramOp::table ? look_up_text(of) : "") << ", there);\n";
  });
  body_ << "    }\n    DEVICE void take(const StitchArgs& p, const unsigned char* resident, int column) {\n";
  each_resident([&](size_t i, const std::string& resident) {
    body_ << "      x" << i << ".read(" << resident << ", column);\n";
  });
  body_ << "    }\n";
  body_ << "    template <int kSize>\n"
           "    DEVICE void widen(const StitchArgs& p, int line, int column, float (&to)[kSize][kCount]) const {\n";
  for (size_t i = 0; i < contents_.loaded.size(); ++i) {
    const ProgramNode& of = node(contents_.loaded[i]);
    const std::string x = "x" + std::to_string(i), to = "to[" + std::to_string(i) + "]";
    if (of.op == ProgramOp::random)
      body_ << "      draw<kCount, true>(p, " << x << ", line, column, " << to << ");\n";
    else if (of.op != ProgramOp::row)
      body_ << "      " << x << ".widen(" << to << ");\n";
  }
  body_ << "    }\n    DEVICE void forget() {\n";
  each([&](const ProgramNode& of, const std::string& x) {
    if (is_tensor(of)) body_ << "      " << x << ".forget();\n";
  });
  body_ << "    }\n";
  of_row_once();
  body_ << "  };\n";
}

}  // namespace reformer
