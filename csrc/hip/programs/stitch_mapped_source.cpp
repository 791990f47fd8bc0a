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

std::string StitchWriter::held_type(size_t i) const {
  if (is_mapped(i) && is_summed(i)) return "Summed<kCount>";
  return "reformer::Held<" + typed_text(i) + ">";
}

void StitchWriter::read_mapped() {
  for (size_t i = 0; i < contents_.loaded.size(); ++i)
    if (is_mapped(i)) mapped_elements(i);
}

// Writes the function that reads adjacent elements of a mapped tensor. Elements that come from nowhere read the first
// ones of the tensor instead, if they are not summed: a condition would make a load wait for the one before it.
void StitchWriter::mapped_elements(size_t i) {
  const ProgramNode& of = node(contents_.loaded[i]);
  const AxisMaps maps(contents_.call, size_t(of.input));
  const auto in = [](size_t input) { return "p.in[" + std::to_string(input) + "]"; };
  const std::string from = in(size_t(of.input));
  body_ << "  template <int kCount, class To, class There>\n  DEVICE static void read_mapped" << i
        << "(const StitchArgs& p, int line, [[maybe_unused]] int column, To& to, const There& there) {\n"
           "    const long long at = "
        << place_text(placement(of)) << ";\n";
  const auto place_of_line = [&](int32_t place) {
    return "place<" + std::to_string(contents_.call.placements[size_t(place)].line_digits) + ", 0>(p.placed[" +
           std::to_string(place) + "], line, 0)";
  };
  const auto tap = [&](int m, const std::string& number) {
    const AxisMap& map = maps[m];
    const ProgramOperand& operand = contents_.inputs[map.input];
    const std::string position = map.by_column
                                     ? "static_cast<long long>(column + there.at(j)) * " + std::to_string(operand.width)
                                     : place_of_line(operand.place);
    return "const Tap tap" + std::to_string(m) + " = tap<" + (map.has_weights ? "true" : "false") + ">(" +
           in(map.input) + ", " + position + ", " + number + ");\n";
  };
  std::string at = "at", weight = "1.0f", is_there = "true";
  for (int m = 0; m < maps.size(); ++m) {
    const std::string name = "tap" + std::to_string(m);
    at += " + " + name + ".place";
    is_there += " && " + name + ".place >= 0";
    if (maps[m].has_weights) weight += " * " + name + ".weight";
  }
  const std::string nowhere = number_text(of.value);
  if (!is_summed(i)) {
    for (int m = 0; m < maps.size(); ++m) body_ << "    " << tap(m, "0");
    body_ << "    const bool is_there = " << is_there << ";\n    to.read(" << from << ", is_there ? " << at
          << " : 0, there);\n    if (!is_there) to.fill(" << nowhere << ");\n  }\n";
    return;
  }
  body_ << "    to.fill(" << nowhere << ");\n";
  std::string indent = "    ", ends;
  const auto loop = [&](int m) {
    const std::string number = "i" + std::to_string(m), taps = std::to_string(maps[m].taps);
    if (maps[m].taps <= kMostUnrolled) body_ << indent << "UNROLL\n";
    body_ << indent << "for (int " << number << " = 0; " << number << " < " << taps << "; ++" << number << ") {\n";
    indent += "  ";
    body_ << indent << tap(m, number) << indent << "if (tap" << m << ".place < 0) continue;\n";
    ends += "}";
  };
  for (int m = 0; m < maps.size(); ++m)
    if (!maps[m].by_column) loop(m);
  const std::string type = loaded_type(of);
  if (!maps.of_columns()) {
    body_ << indent << "to.template add<" << type << ", " << access(of) << ">(" << weight << ", " << from << ", " << at
          << ", there);\n";
  } else {
    body_ << indent << "UNROLL\n" << indent << "for (int j = 0; j < kCount; ++j) {\n";
    indent += "  ";
    ends += "}";
    for (int m = 0; m < maps.size(); ++m)
      if (maps[m].by_column) loop(m);
    body_ << indent << "to.values[j] " << (maps.only_choose() ? "= " : "+= " + weight + " * ") << "read_one<" << type
          << ">(" << from << ", " << at << ");\n";
  }
  body_ << "    " << ends << "\n  }\n";
}

}  // namespace reformer
