#include "stitch_source.h"

#include <cmath>
#include <limits>

#include "program/accesses.h"
#include "program/digits.h"
#include "stitch_writer.h"

namespace reformer {
std::string StitchWriter::number_text(double value) {
  if (std::isnan(value)) return "bits_to_float(0x7fc00000u)";
  if (std::isinf(value)) return value > 0 ? "bits_to_float(0x7f800000u)" : "bits_to_float(0xff800000u)";
  std::ostringstream text;
  text.precision(std::numeric_limits<float>::max_digits10);
  text << std::scientific << float(value) << "f";
  return text.str();
}

const char* StitchWriter::type_name(Stored type) {
  switch (type) {
    case Stored::fp32: return "fp32";
    case Stored::fp16: return "fp16";
    case Stored::bf16: return "bf16";
    case Stored::mask: return "mask8";
    case Stored::int64: return "whole64";
    case Stored::int32: return "whole32";
    case Stored::fp64:
    case Stored::result: break;
  }
  throw std::logic_error("kernels have no tensors of this type");
}

std::string StitchWriter::digit_text(const std::string& type, int number) {
  const Digit digit(number);
  return "digit_of<" + type + ", " + std::to_string(digit.shift) + ", " + std::to_string(digit.mask) + ">";
}

std::string StitchWriter::expression(const ProgramNode& node) {
  if (node.op == ProgramOp::constant) return number_text(node.value);
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

std::string StitchWriter::write() {
  body_ << "namespace reformer {\nnamespace {\nstruct Program {\n";
  constants();
  of_channel();
  read_mapped();
  if (contents_.program.needs_rows)
    hold();
  else if (contents_.is_transposed())
    tile();
  else {
    load();
    load_more();
  }
  of_element();
  of_rows();
  store();
  store_channel();
  store_reduction();
  body_ << "};\n}  // namespace\n}  // namespace reformer\n";
  return body_.str();
}

// Writes the statements that compute these nodes for an element: c has the channel's numbers, x the loaded values, w
// the row's numbers.
void StitchWriter::element_statements(const std::vector<int32_t>& nodes, const char* indent) {
  const std::vector<int32_t> of_rows = of_rows_among(nodes);
  for (int32_t i : contents_.within_rows(nodes)) {
    const size_t of_channel = place_of(contents_.channel_values, i), loaded = contents_.loaded_place(i);
    body_ << indent << "const float " << name(i) << " = ";
    if (contents_.compares_channels(i)) body_ << (node(i).op == ProgramOp::eq ? "!near ? 0.0f : " : "!near ? 1.0f : ");
    if (contents_.is_of_rows(i))
      body_ << "w[" << place_of(of_rows, i) << "]";
    else if (of_channel < contents_.channel_values.size())
      body_ << "c[" << of_channel << "]";
    else if (loaded < contents_.loaded.size())
      body_ << "x[" << loaded << "]";
    else if (scans_row(node(i).op))
      body_ << "x[" << loaded + place_of(row_scans_, i) << "]";
    else
      body_ << expression(node(i));
    body_ << ";\n";
  }
}

void StitchWriter::of_element() {
  body_ << "  template <bool near = true>\n  DEVICE static void of_element(const StitchArgs& p, const float* c, const "
           "float* x, const float* w, float* stored, float* reduced) {\n";
  element_statements(contents_.results, "    ");
  for (size_t i = 0; i < contents_.results.size(); ++i) {
    const size_t count = contents_.stored.size();
    body_ << "    " << (i < count ? "stored[" : "reduced[") << (i < count ? i : i - count)
          << "] = " << name(contents_.results[i]) << ";\n";
  }
  body_ << "  }\n";
}

void StitchWriter::write_one(size_t o, const std::string& at, const std::string& number, const char* indent) {
  const Stored type = contents_.call.stored_type(output(o));
  const std::string write = type == Stored::mask ? "write_mask<1>" : std::string("write<") + type_name(type) + ", 1>";
  body_ << indent << write << "(p.out[" << o << "], " << at << ", {" << number << "});\n";
}

std::string StitchWriter::place_text(int32_t number) const {
  const Placement& placement = contents_.call.placements[size_t(number)];
  const std::string of_line = std::to_string(placement.line_digits);
  return (placement.is_transposed() ? "transposed_place<" + of_line + ", " +
                                          std::to_string(placement.repeats_columns() ? 0 : placement.packed())
                                    : "place<" + of_line + ", " + std::to_string(placement.column_digits)) +
         ">(p.placed[" + std::to_string(number) + "], line, column)";
}

std::string StitchWriter::table_text(const ProgramNode& of) const {
  return "p.tables[" + std::to_string(contents_.program.inputs[size_t(of.input)].table) + "]";
}

std::string StitchWriter::look_up_text(const ProgramNode& of) const {
  const ProgramOperand& index = contents_.inputs[size_t(of.input) + 1];
  return std::string("look_up<") + type_name(index.type) + ">(" + table_text(of) + ", p.in[" +
         std::to_string(of.input + 1) + "], " + line_text(index.place) + ")";
}

std::string StitchWriter::at_text(size_t i, const std::string& row) const {
  return chosen(i, [&](const ProgramNode& of) {
    if (of.op == ProgramOp::table) return "static_cast<long long>(" + row + ") * " + table_text(of) + ".pitch + column";
    return placement(of) < 0 ? std::string("at") : place_text(placement(of));
  });
}

namespace {

// A bit for each of `count` that has the property.
template <class Has>
uint64_t mask_of(size_t count, Has has) {
  uint64_t mask = 0;
  for (size_t i = 0; i < count; ++i) mask |= uint64_t(has(i)) << i;
  return mask;
}

}  // namespace

void StitchWriter::constants() {
  const bool has_result =
      contents_.first_result >= 0 && !contents_.is_transposed();  // kernels with tiles store all outputs
  body_ << "  using Result = " << type_name(contents_.result)
        << "; using Precision = " << type_name(contents_.precision) << ";\n"
        << "  static constexpr int kChannelValues = " << contents_.channel_values.size()
        << ", kLoaded = " << contents_.loaded.size() + row_scans_.size() << ", kStored = " << contents_.stored.size()
        << ", kReductions = " << reductions().size()
        << ";\n  static constexpr bool kStoresChannels = " << (contents_.of_channels.empty() ? "false" : "true")
        << ";\n";
  if (has_result) body_ << "  enum { kResult = " << contents_.first_result << " };\n";
  if (!contents_.program.needs_rows && !contents_.is_transposed())
    body_ << "  static constexpr int kAcc = " << contents_.acc << ";\n"
          << "  enum : unsigned long long { kDenseLoaded = "
          << mask_of(contents_.loaded.size(), [&](size_t i) { return contents_.loads_dense(i); }) << ", kDenseStored = "
          << mask_of(contents_.stored.size(), [&](size_t i) { return contents_.stores_dense(i); }) << " };\n"
          << "  enum { kLinesAtOnce = " << contents_.lines_at_once() << " };  // of stitched kernels only\n"
          << "  enum { kAccAccess = " << std::max(1, contents_.accesses.acc) << " };  // of stitched kernels only\n";
  if (reductions().empty()) return;
  const auto table = [&](const char* type, const char* name, auto value) {
    body_ << "  DEVICE static constexpr " << type << " " << name << "(int i) {\n    return ";
    for (size_t i = 0; i < reductions().size(); ++i) body_ << "i == " << i << " ? " << value(i) << " : ";
    body_ << value(reductions().size()) << ";\n  }\n";
  };
  const auto kind = [&](size_t i) { return i < reductions().size() ? output(reductions()[i]).kind : Reduction::sum; };
  table("Kind", "kind", [&](size_t i) {
    switch (kind(i)) {
      case Reduction::max: return "Kind::max";
      case Reduction::moments: return "Kind::moments";
      case Reduction::prod: return "Kind::prod";
      default: return "Kind::sum";
    }
  });
  table("Over", "over", [&](size_t i) {
    const Per per = i < reductions().size() ? output(reductions()[i]).per : Per::channel;
    return per == Per::all ? "Over::all" : per == Per::plane || per == Per::height ? "Over::image" : "Over::images";
  });
  table("int", "first_number", [&](size_t i) {
    int before = 0;
    for (size_t j = 0; j < i; ++j) before += kind(j) == Reduction::moments ? 3 : 1;
    return before;
  });
}

std::string StitchWriter::read_channel_input(int32_t i) const {
  if (node(i).op == ProgramOp::channel_index) return "float(channel)";
  const size_t input = size_t(node(i).input);
  return std::string("read_one<") + loaded_type(node(i)) + ">(p.in[" + std::to_string(input) + "], " +
         channel_place(node(i)) + ")";
}
// Reads are separate from arithmetic, so that a thread's loads for all its channels are in flight at once.
void StitchWriter::of_channel() {
  const std::vector<int32_t>& inputs = contents_.channel_inputs;
  body_ << "  static constexpr int kChannelInputs = " << inputs.size()
        << ";\n  template <int kCount, int kSize, class There = AllOfGroup>\n"
           "  DEVICE static void channel_inputs(const StitchArgs& p, int channel, int image, float "
           "(&to)[kSize][kCount], const There& there = {}) {\n";
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t input = size_t(node(inputs[i]).input);
    const std::string from = "p.in[" + std::to_string(input) + "]", to = "to[" + std::to_string(i) + "]";
    if (node(inputs[i]).op == ProgramOp::channel_index)
      body_ << "    count_from(channel, " << to << ");\n";
    else if (node(inputs[i]).op == ProgramOp::scalar)
      body_ << "    fill(read_one<" << loaded_type(node(inputs[i])) << ">(" << from << ", 0), " << to << ");\n";
    else
      body_ << "    read<" << typed_text(loaded_type(node(inputs[i])), access(node(inputs[i]))) << ">(" << from << ", "
            << channel_place(node(inputs[i])) << ", " << to << ", there);\n";
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

void StitchWriter::load() {
  // kSkipped: a bit for each value that is not loaded.
  body_ << "  template <int kCount, bool kChannelsAlong, unsigned long long kSkipped = 0, int kSize>\n"
           "  DEVICE static void load(const StitchArgs& p, int line, int column, float (&to)[kSize][kCount]) {\n";
  const auto is_dense = [&](int32_t i) {
    return node(i).op == ProgramOp::full && contents_.inputs[size_t(node(i).input)].place < 0;
  };
  if (std::any_of(contents_.loaded.begin(), contents_.loaded.end(), is_dense))
    body_ << "    const long long at = static_cast<long long>(line) * p.width + column;\n";
  for (size_t i = 0; i < contents_.loaded.size(); ++i) {
    const ProgramNode& of = node(contents_.loaded[i]);
    if (of.op == ProgramOp::acc) continue;
    if (is_mapped(i)) {
      body_ << "    " << held_type(i) << " x" << i << ";\n    "
            << read_mapped_text(i, "x" + std::to_string(i), "AllOfGroup{}") << "    x" << i << ".widen(to[" << i
            << "]);\n";
      continue;
    }
    const std::string to = "to[" + std::to_string(i) + "]", input = from_text(i);
    const int32_t place = contents_.inputs[size_t(of.input)].place;
    const std::string at = at_text(i, of.op == ProgramOp::table ? look_up_text(of) : "");
    if (of.op == ProgramOp::random)
      body_ << "    draw<kCount, kChannelsAlong>(p, read_key(" << input << "), line, column, " << to << ");\n";
    else if (of.op == ProgramOp::row && place >= 0)
      body_ << "    fill(read_one<" << loaded_type(of) << ">(" << input << ", " << at << "), " << to << ");\n";
    else if (of.op == ProgramOp::row)
      body_ << "    read_row<" << loaded_type(of) << ", kCount, kChannelsAlong>(p, " << input << ", line, column, "
            << to << ");\n";
    else
      body_ << "    if constexpr (!(kSkipped >> " << i << " & 1)) read<" << typed_text(i) << ">(" << input << ", " << at
            << ", " << to << ");\n";
  }
  body_ << "  }\n";
}

// Other combinations of taps, of few elements.
void StitchWriter::load_more() {
  body_ << "  template <int kCount, int kSize>\n  DEVICE static void load_more([[maybe_unused]] const StitchArgs& p, "
           "[[maybe_unused]] int line, [[maybe_unused]] int column, [[maybe_unused]] float (&to)[kSize][kCount]) {\n";
  for (size_t i = 0; i < contents_.loaded.size(); ++i) {
    const std::string x = "x" + std::to_string(i), to = "(to[" + std::to_string(i) + "]);\n";
    if (has_more(i))
      body_ << "    " << held_type(i) << " " << x << ";\n    " << x << ".take" << to << "    "
            << read_more_text(i, x, "AllOfGroup{}") << "    " << x << ".widen" << to;
  }
  body_ << "  }\n";
}

void StitchWriter::store() {
  // kSkipped: a bit for each output that is not stored.
  body_ << "  template <unsigned long long kSkipped, int kCount, int kSize, class There = AllOfGroup>\n"
           "  DEVICE static void store(const StitchArgs& p, long long at, const float (&from)[kSize][kCount], int "
           "line = 0, int column = 0, const There& there = {}) {\n";
  for (size_t i = 0; i < contents_.stored.size(); ++i) {
    const ProgramOutput& output = contents_.output(contents_.stored[i]);
    const Stored type = contents_.call.stored_type(output);
    const int32_t place = contents_.call.place_of_output(contents_.stored[i]);
    if (contents_.is_transposed(place)) continue;  // Transposed writes it
    const bool has_targets = output.targets >= 0;
    const std::string at = place < 0 ? "at" : place_text(place) + (has_targets ? " + target" : "");
    const std::string from = has_targets ? "row" : "from[" + std::to_string(i) + "]";
    body_ << "    ";
    body_ << "if constexpr (!(kSkipped >> " << i << " & 1)) ";
    if (has_targets) {
      const ProgramOperand& targets = contents_.inputs[size_t(output.targets)];
      body_ << "each_target<" << targets.width << ">(p.in[" << output.targets << "], " << place_of_line(targets.place)
            << ", [&](int target, bool is_row) {\n    float row[kCount];\n    UNROLL\n"
               "    for (int j = 0; j < kCount; ++j) row[j] = is_row ? from["
            << i << "][j] : 0.0f;\n    ";
    }
    if (type == Stored::mask)
      body_ << "write_mask<kCount>(p.out[" << contents_.stored[i] << "], " << at << ", " << from << ", there);\n";
    else
      body_ << (node(output.node).op == ProgramOp::acc && type == contents_.result ? unless_there(contents_.stored[i])
                                                                                   : "")
            << "write<" << type_name(type) << ", kCount>(p.out[" << contents_.stored[i] << "], " << at << ", " << from
            << ", there);\n";
    if (has_targets) body_ << "    });\n";
  }
  body_ << "  }\n";
}

// The inputs are read here, by the only thread that may write there.
void StitchWriter::store_channel() {
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

void StitchWriter::store_reduction() {
  body_ << "  template <int i, class Known>\n"
           "  DEVICE static void store_reduction(const StitchArgs& p, int channel, int count, const Known& known) {\n";
  for (size_t r = 0; r < reductions().size(); ++r) {
    const ProgramOutput& reduction = contents_.output(reductions()[r]);
    body_ << "    if constexpr (i == " << r << ") {\n";
    for (size_t o = 0; o < contents_.program.outputs.size(); ++o) {
      const ProgramOutput& output = contents_.output(o);
      if (!output.reduces_like(reduction)) continue;
      body_ << "      {\n";
      if (output.factor >= 0) statements({output.factor}, "        ", [&](int32_t i) { return read_channel_input(i); });
      write_one(o, "channel", output.factor < 0 ? "known.value" : "known.value * " + name(output.factor), "        ");
      if (output.kind == Reduction::moments) write_one(o, "count + channel", "known.squares", "        ");
      body_ << "      }\n";
    }
    body_ << "    }\n";
  }
  body_ << "  }\n";
}

std::string stitch_source(const ProgramCall& call) { return StitchWriter(StitchContents(call)).write(); }

int stitch_numbers(const Program& program) {
  int numbers = 0;
  for (size_t o : program.reductions) numbers += program.outputs[o].kind == Reduction::moments ? 3 : 1;
  return numbers;
}

}  // namespace reformer
