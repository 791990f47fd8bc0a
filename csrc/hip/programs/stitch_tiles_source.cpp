// The part of a program's text that is only for transposed tensors: see stitch_source.h.
#include "stitch_writer.h"

namespace reformer {

// Transposed tensors are held column by column, others line by line.
void StitchWriter::tile() {
  body_ << "  template <int kLines, int kCount>\n  struct Tile {\n";
  const auto each = [&](const auto& write) {
    for (size_t i = 0; i < contents_.loaded.size(); ++i) write(node(contents_.loaded[i]), i);
  };
  const auto held = [](size_t i) { return "x" + std::to_string(i); };
  const auto is_transposed = [&](const ProgramNode& of) {
    return of.op != ProgramOp::random && contents_.is_transposed(placement(of));
  };
  each([&](const ProgramNode& of, size_t i) {
    if (of.op == ProgramOp::random)
      body_ << "    unsigned long long " << held(i) << ";\n";
    else if (of.op == ProgramOp::row)
      body_ << "    float " << held(i) << "[kLines];\n";
    else if (is_transposed(of))
      body_ << "    Held<" << loaded_type(of) << ", kLines> " << held(i) << "[kCount];\n";
    else
      body_ << "    Held<" << typed_text(i) << "> " << held(i) << "[kLines];\n";
  });
  body_ << "    DEVICE void read(const StitchArgs& p, const int line, const int first_column) {\n";
  each([&](const ProgramNode& of, size_t i) {
    if (of.op == ProgramOp::random) body_ << "      " << held(i) << " = read_key(" << source(of) << ");\n";
  });
  body_ << "      UNROLL\n      for (int j = 0; j < kCount; ++j) {\n"
           "        [[maybe_unused]] const int column = first_column + j;\n";
  each([&](const ProgramNode& of, size_t i) {
    if (is_transposed(of))
      body_ << "        " << held(i) << "[j].read(" << source(of) << ", " << place_text(placement(of)) << ");\n";
  });
  body_ << "      }\n      UNROLL\n"
           "      for (int i = 0; i < kLines; ++i) read_line(p, i, line + i, first_column);\n    }\n"
           "    DEVICE void read_line(const StitchArgs& p, int i, int line, [[maybe_unused]] int column) {\n"
           "      [[maybe_unused]] const long long at = static_cast<long long>(line) * p.width + column;\n";
  each([&](const ProgramNode& of, size_t i) {
    if (of.op == ProgramOp::random || is_transposed(of)) return;
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
    else if (is_transposed(of))
      body_ << "      UNROLL\n      for (int j = 0; j < kCount; ++j) " << to << "[j] = " << held(i)
            << "[j].element(i);\n";
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
  each([&](size_t o, const std::string& y, size_t) {
    body_ << "    Narrowed<" << type_name(contents_.call.stored_type(output(o))) << ", kLines> " << y << "[kCount];\n";
  });
  body_ << "    template <int kSome, int kSize>\n"
           "    DEVICE void put(int line, const float (&from)[kSome][kSize][kCount]) {\n"
           "      UNROLL\n      for (int j = 0; j < kCount; ++j) {\n";
  each([&](size_t, const std::string& y, size_t i) {
    body_ << "        {\n          float some[kSome];\n          UNROLL\n"
             "          for (int k = 0; k < kSome; ++k) some[k] = from[k]["
          << i << "][j];\n          " << y << "[j].put(line, some);\n        }\n";
  });
  body_ << "      }\n    }\n    DEVICE void write(const StitchArgs& p, int line, int first_column) const {\n"
           "      UNROLL\n      for (int j = 0; j < kCount; ++j) {\n"
           "        [[maybe_unused]] const int column = first_column + j;\n";
  each([&](size_t o, const std::string& y, size_t) {
    body_ << "        " << y << "[j].write(p.out[" << o << "], " << place_text(contents_.call.place_of_output(o))
          << ");\n";
  });
  body_ << "      }\n    }\n  };\n";
}

}  // namespace reformer
