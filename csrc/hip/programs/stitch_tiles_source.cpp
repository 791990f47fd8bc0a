// The part of a program's text that is only for transposed tensors: see stitch_source.h.
#include "stitch_writer.h"

namespace reformer {

// Tensors whose lines are adjacent are held column by column, others line by line.
void StitchWriter::tile() {
  body_ << "  template <int kLines, int kCount>\n  struct Tile {\n";
  const auto each = [&](const auto& write) {
    for (size_t i = 0; i < contents_.loaded.size(); ++i) write(node(contents_.loaded[i]), i);
  };
  const auto held = [](size_t i) { return "x" + std::to_string(i); };
  const auto is_by_lines = [&](const ProgramNode& of) { return contents_.is_read_by_lines(of); };
  const auto packed = [&](const ProgramNode& of) { return contents_.call.placements[size_t(placement(of))].packed(); };
  each([&](const ProgramNode& of, size_t i) {
    if (of.op == ProgramOp::random)
      body_ << "    unsigned long long " << held(i) << ";\n";
    else if (of.op == ProgramOp::row)
      body_ << "    float " << held(i) << "[kLines];\n";
    else if (is_by_lines(of))
      body_ << "    HeldLines<" << loaded_type(of) << ", kLines, kCount, " << packed(of) << ", " << access(of) << "> "
            << held(i) << ";\n";
    else
      body_ << "    " << held_type(i) << " " << held(i) << "[kLines];\n";
  });
  body_ << "    DEVICE void read(const StitchArgs& p, const int line, const int first_column) {\n";
  each([&](const ProgramNode& of, size_t i) {
    if (of.op == ProgramOp::random) body_ << "      " << held(i) << " = read_key(" << source(of) << ");\n";
  });
  body_ << "      UNROLL\n      for (int j = 0; j < kCount; ++j) {\n"
           "        [[maybe_unused]] const int column = first_column + j;\n";
  each([&](const ProgramNode& of, size_t i) {
    if (!is_by_lines(of)) return;
    body_ << "        ";
    if (packed(of) > 1) body_ << "if (j % " << packed(of) << " == 0) ";
    const std::string group = held(i) + ".groups[j / " + std::to_string(packed(of)) + "]";
    if (is_mapped(i))
      body_ << read_lines_text(i, group);
    else
      body_ << group << ".read(" << source(of) << ", " << place_text(placement(of)) << ");\n";
  });
  body_ << "      }\n      UNROLL\n"
           "      for (int i = 0; i < kLines; ++i) read_line(p, i, line + i, first_column);\n    }\n"
           "    DEVICE void read_line(const StitchArgs& p, int i, int line, [[maybe_unused]] int column) {\n"
           "      [[maybe_unused]] const long long at = static_cast<long long>(line) * p.width + column;\n";
  each([&](const ProgramNode& of, size_t i) {
    if (of.op == ProgramOp::random || is_by_lines(of)) return;
    if (is_mapped(i)) {
      body_ << "      " << read_mapped_text(i, held(i) + "[i]", "AllOfGroup{}");
      return;
    }
    body_ << "      " << held(i) << "[i]";
    if (of.op == ProgramOp::row)
      body_ << " = read_one<" << loaded_type(of) << ">(" << source(of) << ", " << line_text(placement(of)) << ");\n";
    else
      body_ << ".read(" << from_text(i) << ", " << at_text(i, of.op == ProgramOp::table ? look_up_text(of) : "")
            << ");\n";
  });
  body_ << "    }\n    template <int kSize>\n"
           "    DEVICE void widen(const StitchArgs& p, int i, int line, int column, float (&to)[kSize][kCount]) const "
           "{\n";
  each([&](const ProgramNode& of, size_t i) {
    const std::string to = "to[" + std::to_string(i) + "]";
    if (of.op == ProgramOp::random)
      body_ << "      draw<kCount, true>(p, " << held(i) << ", line, column, " << to << ");\n";
    else if (of.op == ProgramOp::row)
      body_ << "      fill(" << held(i) << "[i], " << to << ");\n";
    else if (is_by_lines(of))
      body_ << "      " << held(i) << ".widen(i, " << to << ");\n";
    else if (has_more(i))
      body_ << "      {\n        auto sum = " << held(i) << "[i];\n        " << read_more_text(i, "sum", "AllOfGroup{}")
            << "        sum.widen(" << to << ");\n      }\n";
    else
      body_ << "      " << held(i) << "[i].widen(" << to << ");\n";
  });
  body_ << "    }\n  };\n";
  transposed_results();
}

void StitchWriter::transposed_results() {
  body_ << "  template <int kLines, int kCount>\n  struct Transposed {\n";
  const auto each = [&](const auto& write) {
    for (size_t i = 0; i < contents_.stored.size(); ++i)
      if (contents_.is_transposed(contents_.call.place_of_output(contents_.stored[i])))
        write(contents_.stored[i], "y" + std::to_string(i), i);
  };
  const auto packed = [&](size_t o) {
    return contents_.call.placements[size_t(contents_.call.place_of_output(o))].packed();
  };
  each([&](size_t o, const std::string& y, size_t) {
    body_ << "    NarrowedLines<" << type_name(contents_.call.stored_type(output(o))) << ", kLines, kCount, "
          << packed(o) << "> " << y << ";\n";
  });
  body_ << "    template <int kSome, int kSize>\n"
           "    DEVICE void put(int line, const float (&from)[kSome][kSize][kCount]) {\n";
  each([&](size_t, const std::string& y, size_t i) { body_ << "      " << y << ".put(" << i << ", line, from);\n"; });
  body_ << "    }\n    DEVICE void write(const StitchArgs& p, int line, int first_column) const {\n"
           "      UNROLL\n      for (int j = 0; j < kCount; ++j) {\n"
           "        [[maybe_unused]] const int column = first_column + j;\n";
  each([&](size_t o, const std::string& y, size_t) {
    body_ << "        ";
    if (packed(o) > 1) body_ << "if (j % " << packed(o) << " == 0) ";
    body_ << y << ".groups[j / " << packed(o) << "].write(p.out[" << o << "], "
          << place_text(contents_.call.place_of_output(o)) << ");\n";
  });
  body_ << "      }\n    }\n  };\n";
}

}  // namespace reformer
