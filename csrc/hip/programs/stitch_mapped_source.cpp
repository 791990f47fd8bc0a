// The part of a program's text that reads tensors through maps of their axes: see stitch_source.h.
#include "program/axis_maps.h"
#include "stitch_writer.h"

namespace reformer {
namespace {

constexpr int kMostUnrolled = 4;  // taps whose loads are in flight at once

}  // namespace

bool StitchWriter::is_summed(size_t i) const {
  const AxisMaps maps(contents_.call, size_t(node(contents_.loaded[i]).input));
  return !maps.only_choose() || maps.of_columns();
}

bool StitchWriter::chooses() const {
  bool found = false;
  for (size_t i = 0; i < contents_.loaded.size(); ++i)
    if (is_mapped(i)) {
      if (is_summed(i)) return false;
      found = true;
    }
  return found;
}

std::string StitchWriter::held_type(size_t i) const {
  if (is_mapped(i) && is_summed(i)) return "Summed<kCount>";
  return "reformer::Held<" + typed_text(i) + ">";
}

void StitchWriter::read_mapped() {
  for (size_t i = 0; i < contents_.loaded.size(); ++i)
    if (is_mapped(i)) mapped_elements(i);
}

// Writes the function that reads adjacent elements of a mapped tensor. Elements and taps that come from nowhere read
// the tensor's first elements instead, which are not used: a condition would make a load wait for the one before it.
void StitchWriter::mapped_elements(size_t i) {
  const ProgramNode& of = node(contents_.loaded[i]);
  const AxisMaps maps(contents_.call, size_t(of.input));
  const auto in = [](size_t input) { return "p.in[" + std::to_string(input) + "]"; };
  const std::string from = in(size_t(of.input));
  body_ << "  template <int kCount, class To, class There>\n  DEVICE static void read_mapped" << i
        << "(const StitchArgs& p, int line, [[maybe_unused]] int column, To& to, const There& there) {\n"
           "    const long long at = "
        << place_text(placement(of)) << ";\n";
  const auto tap = [&](int m, const std::string& number) {
    const AxisMap& map = maps[m];
    const ProgramOperand& operand = contents_.inputs[map.input];
    const std::string position = map.by_column
                                     ? "static_cast<long long>(column + there.at(j)) * " + std::to_string(operand.width)
                                     : map_place_text(operand.place);
    return "const Tap tap" + std::to_string(m) + " = tap<" + (map.has_weights ? "true" : "false") + ">(" +
           in(map.input) + ", " + position + ", " + number + ");\n";
  };
  std::string at = "at", weight = "1.0f", all_there;
  for (int m = 0; m < maps.size(); ++m) {
    const std::string name = "tap" + std::to_string(m);
    at += " + " + name + ".place";
    all_there += (m ? " && " : "") + name + ".place >= 0";
    if (maps[m].has_weights) weight += " * " + name + ".weight";
  }
  const std::string is_there = "const bool is_there = " + all_there + ";\n", read_at = "is_there ? " + at + " : 0";
  const std::string nowhere = number_text(of.value);
  if (!is_summed(i)) {
    for (int m = 0; m < maps.size(); ++m) body_ << "    " << tap(m, "0");
    body_ << "    " << is_there << "    to.read(" << from << ", " << read_at << ", there);\n    if (!is_there) to.fill("
          << nowhere << ");\n  }\n";
    return;
  }
  body_ << "    to.fill(" << nowhere << ");\n";
  std::string indent = "    ", ends;
  const auto loop = [&](int m) {
    const std::string number = "i" + std::to_string(m);
    const int taps = maps[m].taps;
    body_ << indent << (taps <= kMostUnrolled ? "UNROLL" : "UNROLL_BY(" + std::to_string(kMostUnrolled) + ")") << "\n"
          << indent << "for (int " << number << " = 0; " << number << " < " << taps << "; ++" << number << ") {\n";
    indent += "  ";
    body_ << indent << tap(m, number);
    ends += "}";
  };
  for (int m = 0; m < maps.size(); ++m)
    if (!maps[m].by_column) loop(m);
  const std::string type = loaded_type(of);
  if (!maps.of_columns()) {
    body_ << indent << is_there << indent << "to.template add<" << type << ", " << access(of) << ">(is_there, "
          << weight << ", " << from << ", " << read_at << ", there);\n";
  } else {
    // Columns that are chosen together are adjacent in the tensor, or all come from nowhere.
    body_ << indent << "constexpr int kStep = kLess<kCount, " << access(of) << ">;\n"
          << indent << "UNROLL\n"
          << indent << "for (int j = 0; j < kCount; j += kStep) {\n";
    indent += "  ";
    if (access(of) > 1) body_ << indent << "if (!there.has(j)) break;\n";
    ends += "}";
    for (int m = 0; m < maps.size(); ++m)
      if (maps[m].by_column) loop(m);
    body_ << indent << is_there << indent;
    if (maps.only_choose())
      body_ << "to.template put<" << type << ", kStep>(is_there, j, " << from << ", " << read_at << ");\n";
    else
      body_ << "to.template add_one<" << type << ">(is_there, " << weight << ", j, " << from << ", " << read_at
            << ");\n";
  }
  body_ << "    " << ends << "\n  }\n";
}

}  // namespace reformer
