#include "stitch_source.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "stitch_contents.h"

namespace reformer {
namespace {

const char* type_name(Stored type) {
  switch (type) {
    case Stored::fp32: return "fp32";
    case Stored::fp16: return "fp16";
    case Stored::bf16: return "bf16";
    default: return "mask8";
  }
}

std::string number(double value) {
  if (std::isnan(value)) return "bits_to_float(0x7fc00000u)";
  if (std::isinf(value)) return value > 0 ? "bits_to_float(0x7f800000u)" : "bits_to_float(0xff800000u)";
  std::ostringstream text;
  text.precision(std::numeric_limits<float>::max_digits10);
  text << std::scientific << float(value) << "f";
  return text.str();
}

std::string name(int32_t node) { return "v" + std::to_string(node); }

// A value from its operands' names; empty for leaves that are read from memory.
std::string expression(const ProgramNode& node) {
  if (node.op == ProgramOp::constant) return number(node.value);
  if (node.op == ProgramOp::rows) return "float(p.rows)";
  if (node.op == ProgramOp::columns) return "float(p.channels)";
  std::string text;
  for (const char* at = kProgramOps[int(node.op)].gpu; *at; ++at)
    if (*at == '$')
      text += name(node.operands[*++at - '0']);
    else
      text += *at;
  return text;
}

class Writer {
 public:
  explicit Writer(const StitchContents& contents) : contents_(contents) {
    for (const std::vector<int32_t>& stage : contents.stages)
      row_reductions_.insert(row_reductions_.end(), stage.begin(), stage.end());
  }

  std::string write() {
    body_ << "namespace reformer {\nnamespace {\nstruct Program {\n";
    constants();
    of_channel();
    contents_.program.needs_rows ? hold() : load();
    of_element();
    of_rows();
    store();
    store_channel();
    store_reduction();
    body_ << "};\n}  // namespace\n}  // namespace reformer\n";
    return body_.str();
  }

 private:
  const ProgramNode& node(int32_t i) const { return contents_.node(i); }
  const ProgramOutput& output(size_t o) const { return contents_.output(o); }
  const std::vector<size_t>& reductions() const { return contents_.program.reductions; }
  const char* type_of_input(size_t input) const { return type_name(contents_.inputs[input].type); }

  static size_t place_of(const std::vector<int32_t>& among, int32_t node) {
    return size_t(std::find(among.begin(), among.end(), node) - among.begin());
  }

  // What rows are gone through for, one after the other: each stage's reductions, and then the results.
  size_t passes() const { return contents_.stages.size() + 1; }
  std::vector<int32_t> nodes_of(size_t pass) const {
    if (pass == contents_.stages.size()) return contents_.results;
    std::vector<int32_t> nodes;
    for (int32_t reduction : contents_.stages[pass]) nodes.push_back(node(reduction).operands[0]);
    return nodes;
  }
  // Those that are the same for all of a row, and computed once a row.
  std::vector<int32_t> of_rows_among(const std::vector<int32_t>& nodes) const {
    std::vector<int32_t> found;
    for (int32_t i : contents_.within_rows(nodes))
      if (contents_.is_of_rows(i)) found.push_back(i);
    return found;
  }

  // Writes the statements that compute these nodes of an element: c are the channel's numbers, x what was loaded, w the
  // row's.
  void element_statements(const std::vector<int32_t>& nodes, const char* indent) {
    const std::vector<int32_t> of_rows = of_rows_among(nodes);
    for (int32_t i : contents_.within_rows(nodes)) {
      const size_t of_channel = place_of(contents_.channel_values, i), loaded = contents_.loaded_place(i);
      body_ << indent << "const float " << name(i) << " = ";
      if (contents_.compares_channels(i))
        body_ << (node(i).op == ProgramOp::eq ? "!near ? 0.0f : " : "!near ? 1.0f : ");
      if (contents_.is_of_rows(i))
        body_ << "w[" << place_of(of_rows, i) << "]";
      else if (of_channel < contents_.channel_values.size())
        body_ << "c[" << of_channel << "]";
      else if (loaded < contents_.loaded.size())
        body_ << "x[" << loaded << "]";
      else
        body_ << expression(node(i));
      body_ << ";\n";
    }
  }

  void of_element() {
    body_
        << "  template <bool near = true>\n  DEVICE static void of_element(const StitchArgs& p, const float* c, const "
           "float* x, const float* w, float* stored, float* reduced) {\n";
    element_statements(contents_.results, "    ");
    for (size_t i = 0; i < contents_.results.size(); ++i) {
      const size_t count = contents_.stored.size();
      body_ << "    " << (i < count ? "stored[" : "reduced[") << (i < count ? i : i - count)
            << "] = " << name(contents_.results[i]) << ";\n";
    }
    body_ << "  }\n";
  }

  void of_rows() {
    if (!contents_.program.needs_rows) return;
    body_ << "  static constexpr int kRowReductions = " << row_reductions_.size()
          << ", kStages = " << contents_.stages.size()
          << ";\n  static constexpr bool kStoresRows = " << (contents_.of_rows.empty() ? "false" : "true")
          << ";\n  DEVICE static constexpr bool is_row_max(int i) {\n    return ";
    for (size_t i = 0; i < row_reductions_.size(); ++i)
      if (node(row_reductions_[i]).op == ProgramOp::row_max) body_ << "i == " << i << " || ";
    body_ << "false;\n  }\n  DEVICE static constexpr int stage_begin(int stage) {\n    return ";
    size_t begin = 0;
    for (size_t i = 0; i < contents_.stages.size(); begin += contents_.stages[i++].size())
      body_ << "stage == " << i << " ? " << begin << " : ";
    body_ << begin
          << ";\n  }\n  template <int stage, bool near>\n"
             "  DEVICE static void of_row(const StitchArgs& p, const float* c, const float* x, const float* w, float* "
             "to) {\n";
    for (size_t i = 0; i < contents_.stages.size(); ++i) {
      const std::vector<int32_t> nodes = nodes_of(i);
      body_ << "    if constexpr (stage == " << i << ") {\n";
      element_statements(nodes, "      ");
      for (size_t j = 0; j < nodes.size(); ++j)
        body_ << "      to[" << j << "] = " << (is_sum_of_chosen(contents_.stages[i][j]) ? "!near ? -0.0f : " : "")
              << name(nodes[j]) << ";\n";
      body_ << "    }\n";
    }
    body_ << "  }\n";
    name_channels();
  }

  // Whether it adds up what is 0 but for the channel that a number of the row names. Adding -0 changes no sum, which
  // the compiler knows.
  bool is_sum_of_chosen(int32_t reduction) const {
    const ProgramNode& of = node(node(reduction).operands[0]);
    if (node(reduction).op != ProgramOp::row_sum || of.op != ProgramOp::select) return false;
    const ProgramNode& rest = node(of.operands[node(of.operands[0]).op == ProgramOp::eq ? 2 : 1]);
    return contents_.compares_channels(of.operands[0]) && rest.op == ProgramOp::constant && rest.value == 0;
  }

  // Writes a function of the pass: what() is written for those where it is not empty.
  template <class What>
  void by_pass(const char* declaration, What what, const char* rest) {
    body_ << "  DEVICE static constexpr " << declaration << "(int pass) {\n    return ";
    for (size_t pass = 0; pass < passes(); ++pass) body_ << "pass == " << pass << " ? " << what(pass) << " : ";
    body_ << rest << ";\n  }\n";
  }

  // Channels that numbers of rows name, in a pass.
  std::vector<int32_t> named(size_t pass) const {
    std::vector<int32_t> found;
    for (int32_t i : contents_.within_rows(nodes_of(pass)))
      if (contents_.compares_channels(i)) found.push_back(contents_.number_of_row(i));
    return found;
  }

  void name_channels() {
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

  // Writes the statements that compute these nodes, which are the same for all of a row: members of Held are what was
  // loaded, r the row's reductions.
  void row_statements(const std::vector<int32_t>& nodes, const char* indent) {
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

  void of_row_once() {
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

  // Writes the statement that writes one number of an output, of this text.
  void write_one(size_t o, const std::string& at, const std::string& number, const char* indent = "    ") {
    const Stored type = contents_.call.stored_type(output(o));
    const std::string write = type == Stored::mask ? "write_mask<1>" : std::string("write<") + type_name(type) + ", 1>";
    body_ << indent << write << "(p.out[" << o << "], " << at << ", {" << number << "});\n";
  }

  // The text of where an element lies by a placement.
  std::string place_text(int32_t number) const {
    const Placement& placement = contents_.call.placements[size_t(number)];
    return "place<" + std::to_string(placement.line_digits) + ", " + std::to_string(placement.column_digits) +
           ">(p.placed[" + std::to_string(number) + "], line, column)";
  }

  std::string line_text(const ProgramOperand& of) const { return of.place < 0 ? "line" : place_text(of.place); }

  // The text of a table's row, whose number its index has at this line; and of where an element of a row lies.
  std::string look_up_text(const ProgramNode& of) const {
    const ProgramOperand& index = contents_.inputs[size_t(of.input) + 1];
    return std::string("look_up<") + (index.type == Stored::key ? "long long" : "int") + ">(" + table_text(of) +
           ", p.in[" + std::to_string(of.input + 1) + "], " + line_text(index) + ")";
  }
  std::string in_table_text(const ProgramNode& of, const std::string& row) const {
    return "static_cast<long long>(" + row + ") * " + table_text(of) + ".pitch + column";
  }
  std::string table_text(const ProgramNode& of) const {
    return "p.tables[" + std::to_string(contents_.program.inputs[size_t(of.input)].table) + "]";
  }

  // The texts of the memory that number i of what is loaded is read from, and of the place there. row: of its table's
  // row, if it has one.
  std::string from_text(size_t i) const {
    return chosen(i, [&](const ProgramNode& of) {
      return of.op == ProgramOp::acc ? std::string("p.acc") : "p.in[" + std::to_string(of.input) + "]";
    });
  }
  std::string at_text(size_t i, const std::string& row) const {
    return chosen(i, [&](const ProgramNode& of) {
      const int32_t place = of.op == ProgramOp::acc ? -1 : contents_.inputs[size_t(of.input)].place;
      return of.op == ProgramOp::table ? in_table_text(of, row) : place < 0 ? std::string("at") : place_text(place);
    });
  }
  // The text of that of its parts which has the column.
  template <class Text>
  std::string chosen(size_t i, const Text& text) const {
    const std::vector<StitchContents::Part>& parts = contents_.parts[i];
    std::string found = text(node(parts.back().node));
    for (size_t j = parts.size() - 1; j-- > 0;)
      found = "(column < " + std::to_string(parts[j].end) + " ? " + text(node(parts[j].node)) + " : " + found + ")";
    return found;
  }

  // An output that is acc itself may be in acc's own memory.
  static std::string unless_there(size_t output) { return "if (p.out[" + std::to_string(output) + "] != p.acc) "; }

  void constants() {
    body_ << "  using Result = " << type_name(contents_.result) << ";\n"
          << "  static constexpr int kChannelValues = " << contents_.channel_values.size()
          << ", kLoaded = " << contents_.loaded.size() << ", kStored = " << contents_.stored.size()
          << ", kReductions = " << reductions().size()
          << ";\n  static constexpr bool kStoresChannels = " << (contents_.of_channels.empty() ? "false" : "true")
          << ";\n";
    if (contents_.first_result >= 0) body_ << "  static constexpr int kResult = " << contents_.first_result << ";\n";
    if (!contents_.program.needs_rows) body_ << "  static constexpr int kAcc = " << contents_.acc << ";\n";
    if (reductions().empty()) return;
    const auto table = [&](const char* type, const char* name, auto value) {
      body_ << "  DEVICE static constexpr " << type << " " << name << "(int i) {\n    return ";
      for (size_t i = 0; i < reductions().size(); ++i) body_ << "i == " << i << " ? " << value(i) << " : ";
      body_ << value(reductions().size()) << ";\n  }\n";
    };
    const auto kind = [&](size_t i) { return i < reductions().size() ? output(reductions()[i]).kind : Reduction::sum; };
    table("Kind", "kind", [&](size_t i) {
      return kind(i) == Reduction::max ? "Kind::max" : kind(i) == Reduction::moments ? "Kind::moments" : "Kind::sum";
    });
    table("Over", "over", [&](size_t i) {
      const Per per = i < reductions().size() ? output(reductions()[i]).per : Per::channel;
      return per == Per::all ? "Over::all" : per == Per::plane ? "Over::image" : "Over::images";
    });
    table("int", "first_number", [&](size_t i) {
      int before = 0;
      for (size_t j = 0; j < i; ++j) before += kind(j) == Reduction::moments ? 3 : 1;
      return before;
    });
  }

  std::string read_channel_input(int32_t i) const {
    if (node(i).op == ProgramOp::channel_index) return "float(channel)";
    const size_t input = size_t(node(i).input);
    return std::string("read_one<") + type_of_input(input) + ">(p.in[" + std::to_string(input) + "], " +
           channel_place(node(i)) + ")";
  }
  // The text of where an input that depends on the channel at most has its first element.
  static const char* channel_place(const ProgramNode& of) {
    return of.op == ProgramOp::channel ? "channel" : of.op == ProgramOp::plane ? kPlane : "0";
  }
  static constexpr const char* kPlane = "static_cast<long long>(image) * p.channels + channel";

  // Writes the statements that compute these nodes, which depend on the channel at most. read(i): the text of an input.
  template <class Read>
  void statements(const std::vector<int32_t>& nodes, const char* indent, const Read& read) {
    for (int32_t i : contents_.needed(nodes, false))
      body_ << indent << "const float " << name(i) << " = "
            << (contents_.is_channel_input(i) ? read(i) : expression(node(i))) << ";\n";
  }

  // Reads are separate from arithmetic, so that a thread's loads for all of its channels are in flight at once.
  void of_channel() {
    const std::vector<int32_t>& inputs = contents_.channel_inputs;
    body_ << "  static constexpr int kChannelInputs = " << inputs.size()
          << ";\n  template <int kCount, int kSize>\n"
             "  DEVICE static void channel_inputs(const StitchArgs& p, int channel, int image, float "
             "(&to)[kSize][kCount]) "
             "{\n";
    for (size_t i = 0; i < inputs.size(); ++i) {
      const size_t input = size_t(node(inputs[i]).input);
      const std::string from = "p.in[" + std::to_string(input) + "]", to = "to[" + std::to_string(i) + "]";
      if (node(inputs[i]).op == ProgramOp::channel_index)
        body_ << "    count_from(channel, " << to << ");\n";
      else if (node(inputs[i]).op == ProgramOp::scalar)
        body_ << "    fill(read_one<" << type_of_input(input) << ">(" << from << ", 0), " << to << ");\n";
      else
        body_ << "    read<" << type_of_input(input) << ", kCount>(" << from << ", " << channel_place(node(inputs[i]))
              << ", " << to << ");\n";
    }
    body_ << "  }\n  template <int kCount, int kSize>\n"
             "  DEVICE static void of_channel(const StitchArgs& p, const float (&in)[kSize][kCount], int j, float* to) "
             "{\n";
    statements(contents_.channel_values, "    ",
               [&](int32_t i) { return "in[" + std::to_string(place_of(inputs, i)) + "][j]"; });
    for (size_t i = 0; i < contents_.channel_values.size(); ++i)
      body_ << "    to[" << i << "] = " << name(contents_.channel_values[i]) << ";\n";
    body_ << "  }\n";
  }

  // What is read of rows is held as it lies in memory, so that a thread has more of a row, and of the next one.
  void hold() {
    body_ << "  template <int kCount>\n  struct Held {\n";
    const auto each = [&](const auto& write) {
      for (size_t i = 0; i < contents_.loaded.size(); ++i) write(node(contents_.loaded[i]), "x" + std::to_string(i));
    };
    // Those of most bytes come first, so that nothing lies between.
    each([&](const ProgramNode& of, const std::string& x) {
      if (of.op != ProgramOp::row && of.op != ProgramOp::random)
        body_ << "    reformer::Held<" << loaded_type(of) << ", kCount> " << x << ";\n";
    });
    each([&](const ProgramNode& of, const std::string& x) {
      if (of.op == ProgramOp::random) body_ << "    unsigned long long " << x << ";\n";
    });
    each([&](const ProgramNode& of, const std::string& x) {
      if (of.op == ProgramOp::row) body_ << "    float " << x << ";\n";
      if (of.op == ProgramOp::table) body_ << "    int row_of_" << x << ";\n";
    });
    const auto is_tensor = [](const ProgramNode& of) { return of.op != ProgramOp::row && of.op != ProgramOp::random; };
    body_
        << "    DEVICE void read_row(const StitchArgs& p, int line) {\n      [[maybe_unused]] const int column = 0;\n";
    each([&](const ProgramNode& of, const std::string& x) {
      const std::string from = "p.in[" + std::to_string(of.input) + "]";
      if (of.op == ProgramOp::random)
        body_ << "      " << x << " = read_key(" << from << ");\n";
      else if (of.op == ProgramOp::table)
        body_ << "      row_of_" << x << " = " << look_up_text(of) << ";\n";
      else if (of.op == ProgramOp::row)
        body_ << "      " << x << " = read_one<" << loaded_type(of) << ">(" << from << ", "
              << line_text(contents_.inputs[size_t(of.input)]) << ");\n";
    });
    body_ << "    }\n    DEVICE void read(const StitchArgs& p, int line, int column) {\n"
             "      [[maybe_unused]] const long long at = static_cast<long long>(line) * p.width + column;\n";
    for (size_t i = 0; i < contents_.loaded.size(); ++i) {
      const std::string x = "x" + std::to_string(i);
      if (is_tensor(node(contents_.loaded[i])))
        body_ << "      " << x << ".read(" << from_text(i) << ", " << at_text(i, "row_of_" + x) << ");\n";
    }
    body_ << "    }\n";
    // In shared memory those of the largest elements come first, so that each begins where vectors may.
    const auto each_resident = [&](const auto& write) {
      int64_t before = 0;
      for (int64_t size : {4, 2, 1})
        for (size_t i = 0; i < contents_.loaded.size(); ++i) {
          const ProgramNode& of = node(contents_.loaded[i]);
          if (!is_tensor(of) || element_size(loaded_as(of)) != size) continue;
          write(i, "resident + " + std::to_string(before) + " * p.width");
          before += size;
        }
    };
    int64_t bytes = 0;
    each([&](const ProgramNode& of, const std::string&) { bytes += is_tensor(of) ? element_size(loaded_as(of)) : 0; });
    body_ << "    DEVICE static constexpr int bytes() { return " << bytes << " * kCount; }\n";
    body_ << "    DEVICE static void fetch(const StitchArgs& p, unsigned char* resident, int line, int column) {\n"
             "      [[maybe_unused]] const long long at = static_cast<long long>(line) * p.width + column;\n";
    each_resident([&](size_t i, const std::string& resident) {
      const ProgramNode& of = node(contents_.loaded[i]);
      body_ << "      reformer::fetch<" << loaded_type(of) << ", kCount>(" << resident << ", column, " << from_text(i)
            << ", " << at_text(i, of.op == ProgramOp::table ? look_up_text(of) : "") << ");\n";
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

  Stored loaded_as(const ProgramNode& of) const {
    return of.op == ProgramOp::acc ? contents_.result : contents_.inputs[size_t(of.input)].type;
  }
  const char* loaded_type(const ProgramNode& of) const { return type_name(loaded_as(of)); }

  void load() {
    body_ << "  template <int kCount, bool kChannelsAlong, int kSize>\n"
             "  DEVICE static void load(const StitchArgs& p, int line, int column, float (&to)[kSize][kCount]) {\n";
    const auto is_dense = [&](int32_t i) {
      return node(i).op == ProgramOp::full && contents_.inputs[size_t(node(i).input)].place < 0;
    };
    if (std::any_of(contents_.loaded.begin(), contents_.loaded.end(), is_dense))
      body_ << "    const long long at = static_cast<long long>(line) * p.width + column;\n";
    for (size_t i = 0; i < contents_.loaded.size(); ++i) {
      const ProgramNode& of = node(contents_.loaded[i]);
      if (of.op == ProgramOp::acc) continue;
      const std::string to = "to[" + std::to_string(i) + "]", input = from_text(i);
      const Stored type = contents_.inputs[size_t(of.input)].type;
      const int32_t place = contents_.inputs[size_t(of.input)].place;
      const std::string at = at_text(i, of.op == ProgramOp::table ? look_up_text(of) : "");
      if (of.op == ProgramOp::random)
        body_ << "    draw<kCount, kChannelsAlong>(p, read_key(" << input << "), line, column, " << to << ");\n";
      else if (of.op == ProgramOp::row && place >= 0)
        body_ << "    fill(read_one<" << type_name(type) << ">(" << input << ", " << at << "), " << to << ");\n";
      else if (of.op == ProgramOp::row)
        body_ << "    read_row<" << type_name(type) << ", kCount, kChannelsAlong>(p, " << input << ", line, column, "
              << to << ");\n";
      else
        body_ << "    read<" << type_name(type) << ", kCount>(" << input << ", " << at << ", " << to << ");\n";
    }
    body_ << "  }\n";
  }

  void store() {
    body_ << "  template <bool kAll, int kCount, int kSize>\n"
             "  DEVICE static void store(const StitchArgs& p, long long at, const float (&from)[kSize][kCount], int "
             "line = "
             "0, int column = 0) {\n";
    for (size_t i = 0; i < contents_.stored.size(); ++i) {
      const ProgramOutput& output = contents_.output(contents_.stored[i]);
      const Stored type = contents_.call.stored_type(output);
      const int32_t place = contents_.call.place_of_output(contents_.stored[i]);
      const std::string at = place < 0 ? "at" : place_text(place);
      body_ << "    ";
      if (contents_.first_result >= 0) body_ << "if constexpr (kAll || kResult != " << i << ") ";
      if (type == Stored::mask)
        body_ << "write_mask<kCount>(p.out[" << contents_.stored[i] << "], " << at << ", from[" << i << "]);\n";
      else
        body_ << (node(output.node).op == ProgramOp::acc && type == contents_.result ? unless_there(contents_.stored[i])
                                                                                     : "")
              << "write<" << type_name(type) << ", kCount>(p.out[" << contents_.stored[i] << "], " << at << ", from["
              << i << "]);\n";
    }
    body_ << "  }\n";
  }

  // Its inputs are read here, by the one thread that may write there.
  void store_channel() {
    if (contents_.of_channels.empty()) return;
    body_ << "  DEVICE static void store_channel(const StitchArgs& p, int channel, int image) {\n";
    std::vector<int32_t> nodes;
    for (size_t o : contents_.of_channels) nodes.push_back(output(o).node);
    statements(nodes, "    ", [&](int32_t i) { return read_channel_input(i); });
    for (size_t o : contents_.of_channels) {
      body_ << (output(o).is_by_channel() ? "    if (image == 0) {\n" : "    {\n");
      write_one(o, output(o).is_by_channel() ? "channel" : kPlane, name(output(o).node));
      body_ << "    }\n";
    }
    body_ << "  }\n";
  }

  void store_reduction() {
    body_
        << "  template <int i, class Known>\n"
           "  DEVICE static void store_reduction(const StitchArgs& p, int channel, int count, const Known& known) {\n";
    for (size_t r = 0; r < reductions().size(); ++r) {
      const ProgramOutput& reduction = contents_.output(reductions()[r]);
      body_ << "    if constexpr (i == " << r << ") {\n";
      for (size_t o = 0; o < contents_.program.outputs.size(); ++o) {
        const ProgramOutput& output = contents_.output(o);
        if (!output.reduces_like(reduction)) continue;
        body_ << "      {\n";
        if (output.factor >= 0)
          statements({output.factor}, "        ", [&](int32_t i) { return read_channel_input(i); });
        write_one(o, "channel", output.factor < 0 ? "known.value" : "known.value * " + name(output.factor), "        ");
        if (output.kind == Reduction::moments) write_one(o, "count + channel", "known.squares", "        ");
        body_ << "      }\n";
      }
      body_ << "    }\n";
    }
    body_ << "  }\n";
  }

  const StitchContents& contents_;
  std::vector<int32_t> row_reductions_;  // of all stages
  std::ostringstream body_;
};

}  // namespace

std::string stitch_source(const ProgramCall& call) { return Writer(StitchContents(call)).write(); }

int stitch_numbers(const Program& program) {
  int numbers = 0;
  for (size_t o : program.reductions) numbers += program.outputs[o].kind == Reduction::moments ? 3 : 1;
  return numbers;
}

StitchNeeds stitch_needs(const ProgramCall& call) {
  const Program& program = call.program;
  const StitchContents contents(call);
  int64_t bytes = 0, period = 0;
  int loaded = 0;
  for (int32_t i : contents.loaded) {
    const ProgramNode& node = contents.node(i);
    if (node.op == ProgramOp::row) continue;
    ++loaded;
    if (node.op != ProgramOp::random)
      bytes += element_size(node.op == ProgramOp::acc ? call.type : call.inputs[size_t(node.input)].type);
  }
  for (const Placement& each : call.placements) period = std::max(period, each.period());
  const auto reductions = [&](Per per) {
    return size_t(std::count_if(program.reductions.begin(), program.reductions.end(),
                                [&](size_t o) { return program.outputs[o].per == per; }));
  };
  return {program.reductions.size(),
          stitch_numbers(program),
          loaded,
          int(bytes),
          int(contents.stored.size()),
          program.needs_rows,
          program.has_planes,
          int(period),
          reductions(Per::plane),
          reductions(Per::all)};
}

}  // namespace reformer
