#include "stitch_source.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

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
  Writer(const Program& program, const std::vector<Stored>& types, Stored result)
      : program_(program), types_(types), result_(result), varies_(program.varies()), reductions_(program.reductions) {
    for (size_t o = 0; o < program.outputs.size(); ++o) {
      if (program.outputs[o].is_by_element()) stored_.push_back(o);
      if (program.outputs[o].is_by_channel()) of_channels_.push_back(o);
    }
  }

  std::string write() {
    body_ << "namespace reformer {\nnamespace {\nstruct Program {\n";
    // The elements' values come first: they decide which of the channels' values are needed.
    const std::string element = of_element();
    constants();
    of_channel();
    load();
    body_ << element;
    store();
    store_channel();
    store_reduction();
    body_ << "};\n}  // namespace\n}  // namespace reformer\n";
    return body_.str();
  }

 private:
  bool by_element(int32_t node) const { return varies_[size_t(node)] == Varies::elements; }
  const ProgramNode& node(int32_t i) const { return program_.nodes[size_t(i)]; }

  // All that these nodes are made of, in order.
  std::vector<int32_t> needed(std::vector<int32_t> nodes, bool elements) const {
    std::vector<char> wanted(program_.nodes.size(), false);
    for (int32_t i : nodes) wanted[size_t(i)] = true;
    for (int32_t i = int32_t(program_.nodes.size()) - 1; i >= 0; --i)
      if (wanted[size_t(i)] && by_element(i) == elements)
        for (int j = 0; j < operands(node(i).op); ++j) wanted[size_t(node(i).operands[j])] = true;
    std::vector<int32_t> found;
    for (int32_t i = 0; i < int32_t(program_.nodes.size()); ++i)
      if (wanted[size_t(i)]) found.push_back(i);
    return found;
  }

  std::string of_element() {
    std::vector<int32_t> results;
    for (size_t o : stored_) results.push_back(program_.outputs[o].node);
    for (size_t o : reductions_) results.push_back(program_.outputs[o].node);
    std::ostringstream text;
    text << "  DEVICE static void of_element(const StitchArgs& p, const float* c, const float* x, float* stored, "
            "float* reduced) {\n";
    for (int32_t i : needed(results, true)) {
      text << "    const float " << name(i) << " = ";
      if (!by_element(i)) {
        text << (varies_[size_t(i)] == Varies::nowhere && expression(node(i)) != "" && !operands(node(i).op)
                     ? expression(node(i))
                     : "c[" + std::to_string(place_of(channel_values_, i)) + "]");
      } else if (!operands(node(i).op)) {
        text << "x[" << place_of(loaded_, i) << "]";
      } else {
        text << expression(node(i));
      }
      text << ";\n";
    }
    for (size_t i = 0; i < stored_.size(); ++i)
      text << "    stored[" << i << "] = " << name(program_.outputs[stored_[i]].node) << ";\n";
    for (size_t i = 0; i < reductions_.size(); ++i)
      text << "    reduced[" << i << "] = " << name(program_.outputs[reductions_[i]].node) << ";\n";
    text << "  }\n";
    return text.str();
  }

  // An output that is acc itself may be in acc's own memory.
  static std::string unless_there(size_t output) { return "if (p.out[" + std::to_string(output) + "] != p.acc) "; }

  static size_t place_of(std::vector<int32_t>& among, int32_t node) {
    const auto found = std::find(among.begin(), among.end(), node);
    if (found != among.end()) return size_t(found - among.begin());
    among.push_back(node);
    return among.size() - 1;
  }

  void constants() {
    body_ << "  using Result = " << type_name(result_) << ";\n"
          << "  static constexpr int kChannelValues = " << channel_values_.size() << ", kLoaded = " << loaded_.size()
          << ", kAcc = " << acc() << ", kStored = " << stored_.size() << ", kReductions = " << reductions_.size()
          << ";\n  static constexpr bool kStoresChannels = " << (of_channels_.empty() ? "false" : "true") << ";\n";
    if (first_result() >= 0) body_ << "  static constexpr int kResult = " << first_result() << ";\n";
    if (reductions_.empty()) return;
    const auto table = [&](const char* type, const char* name, auto value) {
      body_ << "  DEVICE static constexpr " << type << " " << name << "(int i) {\n    return ";
      for (size_t i = 0; i < reductions_.size(); ++i) body_ << "i == " << i << " ? " << value(i) << " : ";
      body_ << value(reductions_.size()) << ";\n  }\n";
    };
    const auto kind = [&](size_t i) {
      return i < reductions_.size() ? program_.outputs[reductions_[i]].kind : Reduction::sum;
    };
    table("Kind", "kind", [&](size_t i) {
      return kind(i) == Reduction::max ? "Kind::max" : kind(i) == Reduction::moments ? "Kind::moments" : "Kind::sum";
    });
    table("bool", "of_all", [&](size_t i) {
      return i < reductions_.size() && program_.outputs[reductions_[i]].per == Per::all ? "true" : "false";
    });
    table("int", "first_number", [&](size_t i) {
      int before = 0;
      for (size_t j = 0; j < i; ++j) before += kind(j) == Reduction::moments ? 3 : 1;
      return before;
    });
  }

  // Its place among what is loaded, or -1.
  int acc() const {
    for (size_t i = 0; i < loaded_.size(); ++i)
      if (node(loaded_[i]).op == ProgramOp::acc) return int(i);
    return -1;
  }

  Stored type_of(const ProgramOutput& output) const { return output.type == Stored::result ? result_ : output.type; }

  // The first stored output that has the result's type, or -1.
  int first_result() const {
    for (size_t i = 0; i < stored_.size(); ++i)
      if (type_of(program_.outputs[stored_[i]]) == result_) return int(i);
    return -1;
  }

  bool is_channel_input(int32_t i) const { return node(i).op == ProgramOp::channel || node(i).op == ProgramOp::scalar; }
  std::string read_channel_input(int32_t i) const {
    const size_t input = size_t(node(i).input);
    return std::string("read_one<") + type_name(types_[input]) + ">(p.in[" + std::to_string(input) + "], " +
           (node(i).op == ProgramOp::channel ? "channel)" : "0)");
  }

  // Writes the statements that compute these nodes, which depend on the channel at most. read(i): the text of an input.
  template <class Read>
  void statements(const std::vector<int32_t>& nodes, const char* indent, const Read& read) {
    for (int32_t i : needed(nodes, false))
      body_ << indent << "const float " << name(i) << " = " << (is_channel_input(i) ? read(i) : expression(node(i)))
            << ";\n";
  }

  // Reads are separate from arithmetic, so that a thread's loads for all of its channels are in flight at once.
  void of_channel() {
    std::vector<int32_t> inputs;
    for (int32_t i : needed(channel_values_, false))
      if (is_channel_input(i)) inputs.push_back(i);
    body_ << "  static constexpr int kChannelInputs = " << inputs.size()
          << ";\n  template <int kCount, int kSize>\n"
             "  DEVICE static void channel_inputs(const StitchArgs& p, int channel, float (&to)[kSize][kCount]) {\n";
    for (size_t i = 0; i < inputs.size(); ++i) {
      const size_t input = size_t(node(inputs[i]).input);
      const std::string from = "p.in[" + std::to_string(input) + "]", to = "to[" + std::to_string(i) + "]";
      if (node(inputs[i]).op == ProgramOp::scalar)
        body_ << "    fill(read_one<" << type_name(types_[input]) << ">(" << from << ", 0), " << to << ");\n";
      else if (types_[input] == Stored::mask)
        body_ << "    read_mask<kCount>(" << from << ", channel, " << to << ");\n";
      else
        body_ << "    read<" << type_name(types_[input]) << ", kCount>(" << from << ", channel, " << to << ");\n";
    }
    body_ << "  }\n  template <int kCount, int kSize>\n"
             "  DEVICE static void of_channel(const StitchArgs& p, const float (&in)[kSize][kCount], int j, float* to) "
             "{\n";
    statements(channel_values_, "    ", [&](int32_t i) {
      return "in[" + std::to_string(std::find(inputs.begin(), inputs.end(), i) - inputs.begin()) + "][j]";
    });
    for (size_t i = 0; i < channel_values_.size(); ++i)
      body_ << "    to[" << i << "] = " << name(channel_values_[i]) << ";\n";
    body_ << "  }\n";
  }

  void load() {
    body_ << "  template <int kCount, bool kChannelsAlong, int kSize>\n"
             "  DEVICE static void load(const StitchArgs& p, int line, int column, float (&to)[kSize][kCount]) {\n";
    const auto is_full = [&](int32_t i) { return node(i).op == ProgramOp::full; };
    if (std::any_of(loaded_.begin(), loaded_.end(), is_full))
      body_ << "    const long long at = static_cast<long long>(line) * p.width + column;\n";
    for (size_t i = 0; i < loaded_.size(); ++i) {
      const ProgramNode& of = node(loaded_[i]);
      if (of.op == ProgramOp::acc) continue;
      const std::string to = "to[" + std::to_string(i) + "]", input = "p.in[" + std::to_string(of.input) + "]";
      const Stored type = types_[size_t(of.input)];
      if (of.op == ProgramOp::random)
        body_ << "    draw<kCount, kChannelsAlong>(p, " << input << ", line, column, " << to << ");\n";
      else if (of.op == ProgramOp::row)
        body_ << "    read_row<" << type_name(type) << ", kCount, kChannelsAlong>(p, " << input << ", line, column, "
              << to << ");\n";
      else if (type == Stored::mask)
        body_ << "    read_mask<kCount>(" << input << ", at, " << to << ");\n";
      else
        body_ << "    read<" << type_name(type) << ", kCount>(" << input << ", at, " << to << ");\n";
    }
    body_ << "  }\n";
  }

  void store() {
    body_ << "  template <bool kAll, int kCount, int kSize>\n"
             "  DEVICE static void store(const StitchArgs& p, long long at, const float (&from)[kSize][kCount]) {\n";
    for (size_t i = 0; i < stored_.size(); ++i) {
      const ProgramOutput& output = program_.outputs[stored_[i]];
      const Stored type = type_of(output);
      body_ << "    ";
      if (first_result() >= 0) body_ << "if constexpr (kAll || kResult != " << i << ") ";
      if (type == Stored::mask)
        body_ << "write_mask<kCount>(p.out[" << stored_[i] << "], at, from[" << i << "]);\n";
      else
        body_ << (node(output.node).op == ProgramOp::acc && type == result_ ? unless_there(stored_[i]) : "") << "write<"
              << type_name(type) << ", kCount>(p.out[" << stored_[i] << "], at, from[" << i << "]);\n";
    }
    body_ << "  }\n";
  }

  // Its inputs are read here, by the one thread that may write there.
  void store_channel() {
    if (of_channels_.empty()) return;
    body_ << "  DEVICE static void store_channel(const StitchArgs& p, int channel) {\n";
    std::vector<int32_t> nodes;
    for (size_t o : of_channels_) nodes.push_back(program_.outputs[o].node);
    statements(nodes, "    ", [&](int32_t i) { return read_channel_input(i); });
    for (size_t o : of_channels_) {
      const ProgramOutput& output = program_.outputs[o];
      const Stored type = type_of(output);
      const std::string write =
          type == Stored::mask ? "write_mask<1>" : std::string("write<") + type_name(type) + ", 1>";
      body_ << "    const float to_" << o << "[1] = {" << name(output.node) << "};\n    " << write << "(p.out[" << o
            << "], channel, to_" << o << ");\n";
    }
    body_ << "  }\n";
  }

  void store_reduction() {
    body_
        << "  template <int i, class Known>\n"
           "  DEVICE static void store_reduction(const StitchArgs& p, int channel, int count, const Known& known) {\n";
    for (size_t r = 0; r < reductions_.size(); ++r) {
      const ProgramOutput& reduction = program_.outputs[reductions_[r]];
      body_ << "    if constexpr (i == " << r << ") {\n";
      for (size_t o = 0; o < program_.outputs.size(); ++o) {
        const ProgramOutput& output = program_.outputs[o];
        if (!output.reduces_like(reduction)) continue;
        const std::string to = "static_cast<float*>(p.out[" + std::to_string(o) + "])";
        body_ << "      {\n";
        if (output.factor >= 0)
          statements({output.factor}, "        ", [&](int32_t i) { return read_channel_input(i); });
        body_ << "        " << to << "[channel] = known.value"
              << (output.factor >= 0 ? " * " + name(output.factor) : std::string()) << ";\n";
        if (output.kind == Reduction::moments) body_ << "        " << to << "[count + channel] = known.squares;\n";
        body_ << "      }\n";
      }
      body_ << "    }\n";
    }
    body_ << "  }\n";
  }

  const Program& program_;
  const std::vector<Stored> types_;
  const Stored result_;
  const std::vector<Varies> varies_;
  const std::vector<size_t>& reductions_;  // outputs, as those that are stored
  std::vector<size_t> stored_, of_channels_;
  std::vector<int32_t> channel_values_, loaded_;
  std::ostringstream body_;
};

}  // namespace

std::string stitch_source(const Program& program, const std::vector<Stored>& types, Stored result) {
  return Writer(program, types, result).write();
}

std::string stitch_source(const ProgramCall& call) {
  std::vector<Stored> types;
  for (const ProgramOperand& input : call.inputs) types.push_back(input.type);
  return stitch_source(call.program, types, call.type);
}

std::vector<int64_t> stitch_key(const ProgramCall& call) {
  std::vector<int64_t> key{call.program.number, int64_t(call.type)};
  for (const ProgramOperand& input : call.inputs) key.push_back(int64_t(input.type));
  return key;
}

int stitch_numbers(const Program& program) {
  int numbers = 0;
  for (size_t o : program.reductions) numbers += program.outputs[o].kind == Reduction::moments ? 3 : 1;
  return numbers;
}

}  // namespace reformer
