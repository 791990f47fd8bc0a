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
    if (is_mapped(i)) contents_.is_read_by_lines(node(contents_.loaded[i])) ? mapped_lines(i) : mapped_elements(i);
}

// Text of the memory of an input, of the address of a line in a placement without columns, and of a tap of a map.
std::string StitchWriter::input_text(size_t input) { return "p.in[" + std::to_string(input) + "]"; }

std::string StitchWriter::place_of_line(int32_t place) const {
  return "place<" + std::to_string(contents_.call.placements[size_t(place)].line_digits) + ", 0>(p.placed[" +
         std::to_string(place) + "], line, 0)";
}

std::string StitchWriter::tap_text(const AxisMaps& maps, int m, const std::string& column,
                                   const std::string& number) const {
  const AxisMap& map = maps[m];
  const ProgramOperand& operand = contents_.inputs[map.input];
  const std::string position = map.by_column
                                   ? "static_cast<long long>(" + column + ") * " + std::to_string(operand.width)
                                   : place_of_line(operand.place);
  return "const Tap tap" + std::to_string(m) + " = tap<" + (map.has_weights ? "true" : "false") + ">(" +
         input_text(map.input) + ", " + position + ", " + number + ");\n";
}

// Writes the function that reads elements of adjacent lines of a column at once.
void StitchWriter::mapped_lines(size_t i) {
  const ProgramNode& of = node(contents_.loaded[i]);
  const AxisMaps maps(contents_.call, size_t(of.input));
  std::string at = place_of_line(placement(of)), all_there;
  body_ << "  template <class To>\n  DEVICE static void read_lines" << i
        << "(const StitchArgs& p, int line, int column, To& to) {\n";
  for (int m = 0; m < maps.size(); ++m) {
    body_ << "    " << tap_text(maps, m, "column", "0");
    at += " + tap" + std::to_string(m) + ".place";
    all_there += (m ? " && tap" : "tap") + std::to_string(m) + ".place >= 0";
  }
  body_ << "    const bool is_there = " << all_there << ";\n    to.read(" << input_text(size_t(of.input))
        << ", is_there ? " << at << " : 0);\n    if (!is_there) to.fill(" << number_text(of.value) << ");\n  }\n";
}

// Writes the function that reads adjacent elements of a mapped tensor. Elements and taps that come from nowhere read
// the tensor's first elements instead, which are not used: a condition would make a load wait for the one before it.
void StitchWriter::mapped_elements(size_t i) {
  const ProgramNode& of = node(contents_.loaded[i]);
  const AxisMaps maps(contents_.call, size_t(of.input));
  const std::string from = input_text(size_t(of.input));
  const ProgramInput& input = contents_.program.inputs[size_t(of.input)];
  body_ << "  template <int kCount, class To, class There>\n  DEVICE static void read_mapped" << i
        << "(const StitchArgs& p, int line, [[maybe_unused]] int column, To& to, const There& there) {\n"
           "    const long long at = "
        << place_text(placement(of)) << ";\n";
  const auto tap = [&](int m, const std::string& number) { return tap_text(maps, m, "column + there.at(j)", number); };
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
  if (input.is_within) {
    body_ << "    if constexpr (kCount % " << kMappedGroup << " == 0) {\n";
    std::string line_there = "true", line_at = "at";
    for (int m = 0; m < maps.size(); ++m) {
      if (maps[m].by_column) continue;
      body_ << "      " << tap(m, "0");
      line_at += " + tap" + std::to_string(m) + ".place";
      line_there += " && tap" + std::to_string(m) + ".place >= 0";
    }
    body_ << "      const bool is_there = " << line_there << ";\n      to.template put_within<" << loaded_type(of)
          << ", " << access(of);
    for (int8_t place : input.within) body_ << ", " << int(place);
    // The elements before the view's first one are aligned, not that one.
    body_ << ">(is_there, " << from << ", (is_there ? " << line_at << " + column : 0) - " << int(input.shift)
          << ", there);\n      return;\n    }\n";
  }
  std::string indent = "    ", ends;
  const auto loop = [&](int m) {
    const std::string number = "i" + std::to_string(m);
    const int taps = maps[m].taps;
    body_ << indent << (taps <= kMostUnrolled ? "UNROLL" : "UNROLL_BY(" + std::to_string(kMostUnrolled) + ")") << "\n"
          << indent << "for (int " << number << " = 0; " << number << " < " << taps << "; ++" << number << ") {\n";
    indent += "  ";
    body_ << indent << tap(m, number);
    if (input.mostly_chooses && taps > 1 && !maps[m].by_column)  // few lines go on
      body_ << indent << "if (" << number << " > 0 && tap" << m << ".place < 0) break;\n";
    ends += "}";
  };
  for (int m = 0; m < maps.size(); ++m)
    if (!maps[m].by_column) loop(m);
  const std::string type = loaded_type(of);
  // Further taps, of few elements, are read under a condition.
  std::string unless_first;
  for (int m = 0; m < maps.size(); ++m)
    if (maps[m].taps > 1) unless_first += (unless_first.empty() ? "i" : " + i") + std::to_string(m);
  if (!unless_first.empty() && input.mostly_chooses)
    unless_first = "if (" + unless_first + " == 0 || is_there) ";
  else
    unless_first.clear();
  if (!maps.of_columns()) {
    body_ << indent << is_there << indent << unless_first << "to.template add<" << type << ", " << access(of)
          << ">(is_there, " << weight << ", " << from << ", " << read_at << ", there);\n";
  } else {
    const int at_once = input.is_within ? 1 : access(of);
    // Columns that are chosen together are adjacent in the tensor, or all come from nowhere.
    body_ << indent << "constexpr int kStep = kLess<kCount, " << at_once << ">;\n"
          << indent << "UNROLL\n"
          << indent << "for (int j = 0; j < kCount; j += kStep) {\n";
    indent += "  ";
    if (at_once > 1) body_ << indent << "if (!there.has(j)) break;\n";
    ends += "}";
    for (int m = 0; m < maps.size(); ++m)
      if (maps[m].by_column) loop(m);
    body_ << indent << is_there << indent;
    if (maps.only_choose())
      body_ << "to.template put<" << type << ", kStep>(is_there, j, " << from << ", " << read_at << ");\n";
    else
      body_ << unless_first << "to.template add_one<" << type << ">(is_there, " << weight << ", j, " << from << ", "
            << read_at << ");\n";
  }
  body_ << "    " << ends << "\n  }\n";
}

}  // namespace reformer
