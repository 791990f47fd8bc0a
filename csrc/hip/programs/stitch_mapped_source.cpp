// The part of a program's text that reads tensors through maps of their axes: see stitch_source.h.
#include "program/axis_maps.h"

#include <algorithm>

#include "stitch_writer.h"

namespace reformer {
namespace {

constexpr int kMostUnrolled = 8;  // taps of a map
constexpr int kMostAtOnce = 4;    // taps of a longer map whose loads are in flight at once
constexpr const char* kNotUnrolled = "NOT_UNROLLED";

std::string number_of(int m) { return "i" + std::to_string(m); }
std::string tap_name(int m) { return "tap" + std::to_string(m); }

// Text of the address of an element by a placement and by its taps, of their weight, and of whether they are there.
struct Element {
  std::string at, weight = "1.0f", is_there;

  Element(const AxisMaps& maps, const std::string& place) : at(place + " + (") {
    for (int m = 0; m < maps.size(); ++m) {
      at += (m ? " + " : "") + tap_name(m) + ".place_or_first()";
      is_there += (m ? " && " : "") + tap_name(m) + ".place >= 0";
      if (maps[m].has_weights) weight += " * " + tap_name(m) + ".weight";
    }
    at += ")";
  }
  std::string declaration() const { return "const bool is_there = " + is_there + ";\n"; }
};

}  // namespace

bool StitchWriter::is_summed(size_t i) const {
  const AxisMaps maps(contents_.call, size_t(node(contents_.loaded[i]).input));
  return !maps.only_choose() || maps.of_columns();
}

bool StitchWriter::has_more(size_t i) const {
  if (!is_mapped(i)) return false;
  const size_t input = size_t(node(contents_.loaded[i]).input);
  const AxisMaps maps(contents_.call, input);
  return contents_.program.inputs[input].mostly_chooses &&
         std::any_of(maps.begin(), maps.end(), [](const AxisMap& map) { return map.taps > 1; });
}

std::string StitchWriter::held_type(size_t i) const {
  if (is_mapped(i) && is_summed(i)) return "Summed<kCount>";
  return "reformer::Held<" + typed_text(i) + ">";
}

void StitchWriter::read_mapped() {
  for (size_t i = 0; i < contents_.loaded.size(); ++i)
    if (is_mapped(i)) {
      contents_.is_read_by_lines(node(contents_.loaded[i])) ? mapped_lines(i) : mapped_elements(i);
      if (has_more(i)) more_elements(i);
    }
}

// Text of the memory of an input, of the address of a line in a placement without columns, and of adjacent taps of a
// map.
std::string StitchWriter::input_text(size_t input) { return "p.in[" + std::to_string(input) + "]"; }

std::string StitchWriter::place_of_line(int32_t place) const {
  return "place<" + std::to_string(contents_.call.placements[size_t(place)].line_digits) + ", 0>(p.placed[" +
         std::to_string(place) + "], line, 0)";
}

std::string StitchWriter::taps_text(const AxisMap& map, int taps, const std::string& column,
                                    const std::string& first) const {
  const ProgramOperand& operand = contents_.inputs[map.input];
  const std::string position = map.by_column
                                   ? "static_cast<long long>(" + column + ") * " + std::to_string(operand.width)
                                   : place_of_line(operand.place);
  return "Taps<" + std::to_string(taps) + (map.has_weights ? ", true>(" : ", false>(") + input_text(map.input) + ", " +
         position + (first.empty() ? "" : " + " + first + (map.has_weights ? " * 2" : "")) + ")";
}

std::string StitchWriter::tap_text(const AxisMaps& maps, int m, const std::string& column,
                                   const std::string& number) const {
  return "const Tap " + tap_name(m) + " = " + taps_text(maps[m], 1, column, number) + ".at(0);\n";
}

// Writes the head of a loop over the taps of a map.
std::string StitchWriter::loop_text(const AxisMap& map, int m, const char* unroll, const std::string& indent) {
  const std::string i = number_of(m);
  return indent + unroll + "\n" + indent + "for (int " + i + " = 0; " + i + " < " + std::to_string(map.taps) + "; ++" +
         i + ") {\n";
}

// Writes the function that reads elements of adjacent lines of a column at once.
void StitchWriter::mapped_lines(size_t i) {
  const ProgramNode& of = node(contents_.loaded[i]);
  const AxisMaps maps(contents_.call, size_t(of.input));
  const Element element(maps, place_of_line(placement(of)));
  body_ << "  template <class To>\n  DEVICE static void read_lines" << i
        << "(const StitchArgs& p, int line, int column, To& to) {\n";
  for (int m = 0; m < maps.size(); ++m) body_ << "    " << tap_text(maps, m, "column", "");
  body_ << "    " << element.declaration() << "    to.read(" << input_text(size_t(of.input)) << ", " << element.at
        << ");\n    if (!is_there) to.fill(" << number_text(of.value) << ");\n  }\n";
}

// Writes the function that reads adjacent elements of a mapped tensor; of one that mostly chooses, the first
// combination of taps. Elements and taps that come from nowhere read the tensor's first elements instead, which are not
// used: a condition would make a load wait for the one before it.
void StitchWriter::mapped_elements(size_t i) {
  const ProgramNode& of = node(contents_.loaded[i]);
  const AxisMaps maps(contents_.call, size_t(of.input));
  const std::string from = input_text(size_t(of.input)), type = loaded_type(of), nowhere = number_text(of.value);
  const ProgramInput& input = contents_.program.inputs[size_t(of.input)];
  const Element element(maps, "at");
  mapped_head("read_mapped", i);
  const std::string column = "column + there.at(j)";
  if (!is_summed(i)) {
    for (int m = 0; m < maps.size(); ++m) body_ << "    " << tap_text(maps, m, column, "");
    body_ << "    " << element.declaration() << "    to.read(" << from << ", " << element.at
          << ", there);\n    if (!is_there) to.fill(" << nowhere << ");\n  }\n";
    return;
  }
  body_ << "    to.fill(" << nowhere << ");\n";
  if (input.is_within) within_groups(i);
  std::string indent = "    ", ends;
  const auto tap = [&](int m) {
    if (has_more(i) || maps[m].taps == 1) {
      body_ << indent << tap_text(maps, m, column, "");
      return;
    }
    const AxisMap& map = maps[m];
    const bool is_short = map.taps <= kMostUnrolled;
    const std::string taps = "taps" + std::to_string(m), unroll = "UNROLL_BY(" + std::to_string(kMostAtOnce) + ")";
    if (is_short) body_ << indent << "const auto " << taps << " = " << taps_text(map, map.taps, column, "") << ";\n";
    body_ << loop_text(map, m, is_short ? "UNROLL" : unroll.c_str(), indent);
    indent += "  ";
    ends += "}";
    if (is_short)
      body_ << indent << "const Tap " << tap_name(m) << " = " << taps << ".at(" << number_of(m) << ");\n";
    else
      body_ << indent << tap_text(maps, m, column, number_of(m));
  };
  for (int m = 0; m < maps.size(); ++m)
    if (!maps[m].by_column) tap(m);
  if (!maps.of_columns()) {
    body_ << indent << element.declaration() << indent << "to.template add<" << type << ", " << access(of)
          << ">(is_there, " << element.weight << ", " << from << ", " << element.at << ", there);\n";
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
      if (maps[m].by_column) tap(m);
    body_ << indent << element.declaration() << indent;
    if (maps.only_choose())
      body_ << "to.template put<" << type << ", kStep>(is_there, j, " << from << ", " << element.at << ");\n";
    else
      body_ << "to.template add_one<" << type << ">(is_there, " << element.weight << ", j, " << from << ", "
            << element.at << ");\n";
  }
  body_ << "    " << ends << "\n  }\n";
}

void StitchWriter::mapped_head(const char* name, size_t i) {
  body_ << "  template <int kCount, class To, class There>\n  DEVICE static void " << name << i
        << "(const StitchArgs& p, int line, [[maybe_unused]] int column, To& to, const There& there) {\n"
           "    const long long at = "
        << place_text(placement(node(contents_.loaded[i]))) << ";\n";
}

// Writes the statements that read whole groups of columns that are chosen within groups.
void StitchWriter::within_groups(size_t i) {
  const ProgramNode& of = node(contents_.loaded[i]);
  const AxisMaps maps(contents_.call, size_t(of.input));
  const ProgramInput& input = contents_.program.inputs[size_t(of.input)];
  body_ << "    if constexpr (kCount % " << kMappedGroup << " == 0) {\n";
  std::string line_there = "true", line_at = "at";
  for (int m = 0; m < maps.size(); ++m) {
    if (maps[m].by_column) continue;
    body_ << "      " << tap_text(maps, m, "", "");
    line_at += " + " + tap_name(m) + ".place_or_first()";
    line_there += " && " + tap_name(m) + ".place >= 0";
  }
  body_ << "      const bool is_there = " << line_there << ";\n      to.template put_within<" << loaded_type(of) << ", "
        << access(of);
  for (int8_t place : input.within) body_ << ", " << int(place);
  // The elements before the view's first one are aligned, not that one.
  body_ << ">(is_there, " << input_text(size_t(of.input)) << ", " << line_at << " + column - " << int(input.shift)
        << ", there);\n      return;\n    }\n";
}

// Writes the function that adds the other combinations of taps of a tensor that mostly chooses. Few elements have any:
// they are read under a condition, after the first combinations of all lines whose loads are in flight at once.
void StitchWriter::more_elements(size_t i) {
  const ProgramNode& of = node(contents_.loaded[i]);
  const AxisMaps maps(contents_.call, size_t(of.input));
  const std::string from = input_text(size_t(of.input)), type = loaded_type(of);
  const Element element(maps, "at");
  mapped_head("read_more", i);
  std::string indent = "    ", ends, sum;
  for (int m = 0; m < maps.size(); ++m) sum += (m ? " + " : "") + number_of(m);
  for (int m = 0; m < maps.size(); ++m) {
    if (maps[m].by_column) continue;
    body_ << loop_text(maps[m], m, kNotUnrolled, indent);
    indent += "  ";
    ends += "}";
    body_ << indent << tap_text(maps, m, "", number_of(m));
    body_ << indent << "if (" << number_of(m) << " > 0 && " << tap_name(m) << ".place < 0) break;\n";
  }
  const std::string skips = "if (" + sum + " == 0) continue;\n";
  if (!maps.of_columns()) {
    body_ << indent << skips << indent << element.declaration() << indent << "if (is_there) to.template add<" << type
          << ", " << access(of) << ">(true, " << element.weight << ", " << from << ", " << element.at << ", there);\n";
  } else {
    const int m = int(maps.of_columns() - maps.begin());
    const std::string number = number_of(m), tap = tap_name(m);
    body_ << loop_text(maps[m], m, kNotUnrolled, indent);
    indent += "  ";
    ends += "}";
    body_ << indent << skips << indent << "Tap some[kCount];\n"
          << indent << "bool is_any = false;\n"
          << indent << "UNROLL\n"
          << indent << "for (int j = 0; j < kCount; ++j) {\n"
          << indent << "  some[j] = " << taps_text(maps[m], 1, "column + there.at(j)", number) << ".at(0);\n"
          << indent << "  is_any |= some[j].place >= 0;\n"
          << indent << "}\n"
          << indent << "if (!is_any) break;\n"
          << indent << "UNROLL\n"
          << indent << "for (int j = 0; j < kCount; ++j) {\n"
          << indent << "  const Tap " << tap << " = some[j];\n"
          << indent << "  " << element.declaration() << indent << "  to.template add_one<" << type << ">(is_there, "
          << element.weight << ", j, " << from << ", " << element.at << ");\n"
          << indent << "}\n";
  }
  body_ << "    " << ends << "\n  }\n";
}

}  // namespace reformer
