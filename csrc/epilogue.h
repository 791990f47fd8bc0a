// Epilogue programs: what happens to each element of a result before, or instead of, its being stored. Written in
// Python (torch_reformer/epilogue), which also says what each operation means; taken by the operators as numbers. No
// torch, no HIP.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conv_problem.h"

namespace reformer {

// In the order of torch_reformer/epilogue/operations.py.
// clang-format off: a line for those of a kind
enum class EpilogueOp : uint8_t {
  // leaves
  acc, full, channel, row, scalar, random, constant, rows, columns,
  // of one
  neg, abs, exp, log, sqrt, rsqrt, tanh, sigmoid, erf, relu, round_bf16, round_fp16,
  // of two
  add, sub, mul, div, maximum, minimum, lt, le, eq, ne,
  // of three
  select, clip,
};
// clang-format on
constexpr int kEpilogueOps = int(EpilogueOp::clip) + 1;
int operands(EpilogueOp op);  // how many it takes

enum class Reduction : uint8_t { none, sum, max, moments };
enum class Per : uint8_t { element, channel, row, all };

// The types of a program's tensors: those of DType by the same numbers, and what only programs have.
enum class Stored : int8_t { result = -1, fp32, fp64, fp16, bf16, mask = 5, key = 6 };  // bytes 0 and 1; int64
int64_t element_size(Stored type);

struct EpilogueNode {
  EpilogueOp op;
  int32_t operands[3];  // nodes before this one
  int32_t input;        // its number among the inputs
  double value;         // of a constant
};

struct EpilogueInput {
  EpilogueOp kind;  // full to random
};

struct EpilogueOutput {
  Reduction kind;
  Per per;  // of what is stored: element, or channel for a node that depends on the channel only
  int32_t node;
  Stored type;     // of a tensor that is stored
  int32_t factor;  // of a channel's sum: the node by which it is multiplied, which depends on the channel only; or -1

  bool is_by_element() const { return kind == Reduction::none && per == Per::element; }
  bool is_by_channel() const { return kind == Reduction::none && per == Per::channel; }
  bool reduces_like(const EpilogueOutput& other) const {
    return kind == other.kind && per == other.per && node == other.node;
  }
};

// Where a value changes: it is one number for all of the result, one for each channel, or one for each element.
enum class Varies : uint8_t { nowhere, channels, elements };

struct Epilogue {
  std::vector<EpilogueInput> inputs;
  std::vector<EpilogueNode> nodes;
  std::vector<EpilogueOutput> outputs;
  std::vector<size_t> reductions;  // outputs that are reductions; of equal ones the first
  std::vector<int64_t> code;       // from which decode() makes it
  int64_t number = -1;             // of a kept one (kept.h), its own

  // From Program.code. Throws std::invalid_argument with a sentence if it is malformed.
  static Epilogue decode(const int64_t* code, int64_t size);
  bool has_acc() const;
  // If the first thing that happens to acc is that a channel's input is added: that input's number, else -1.
  int32_t bias() const;
  // acc is that sum from now on: a convolution gives it with the input for its bias, rounded once.
  void take_bias();
  std::vector<Varies> varies() const;  // of each node

 private:
  int32_t bias_sum() const;  // the node that adds it, or -1
};

// A result that a program works on, as [pictures][channels][pixels] or, in NHWC, [pictures][pixels][channels].
struct EpilogueShape {
  Layout layout = Layout::nchw;
  int64_t pictures = 0, channels = 0, pixels = 0;
  int64_t rows() const { return pictures * pixels; }
  int64_t numel() const { return rows() * channels; }
  // Elements of what has one for each of these.
  int64_t count(Per per) const;
};

struct EpilogueOperand {
  const void* data;
  Stored type;
};

// A program's call. Tensors are dense; full ones lie in the result's layout. A tensor that is stored may be `acc`, if
// it has its type, or a full input; one of channels may be an input of channels that nothing else is computed from.
struct EpilogueCall {
  const Epilogue& program;
  EpilogueShape shape;
  Stored type;      // of the result: fp32, fp64, fp16 or bf16
  const void* acc;  // of that type, or null
  std::vector<EpilogueOperand> inputs;
  std::vector<void*> outputs;  // reductions: fp32, or fp64 where the result is; moments: means, then squares
};

}  // namespace reformer
