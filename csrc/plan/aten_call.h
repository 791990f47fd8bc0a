// A call of any operator by PyTorch's dispatcher, as data. The arguments are written as torch's stable ABI takes them,
// in words of 64 bits, so a plan is decoded without torch. What an operator's schema says can't be asked in the stable
// ABI: torch_reformer/runtime/aten_call.py goes by it and is trusted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/code_reader.h"

namespace reformer {

struct AtenArgument {
  enum class Kind : uint8_t {
    word,              // an int, bool, float, data type, layout, memory format or device; or 0 for none
    words,             // a list of such
    tensor,            // the step's next input
    tensors,           // a list of as many next inputs as `word` says
    optional_tensors,  // a list of, for each of `words`, the next input, or none where it is 0
  };
  Kind kind;
  bool is_optional;  // so the word lies behind a pointer
  int64_t word;
  std::vector<int64_t> words;

  int64_t inputs() const;  // how many of the step's it takes
};

struct AtenCall {
  static constexpr int32_t kTensor = -1;

  std::string name, overload;
  std::vector<AtenArgument> arguments;
  std::vector<int32_t> results;  // of each: kTensor, or the length of a list of tensors

  int64_t inputs() const, tensors() const;  // how many it takes and makes
  size_t words() const;                     // of the stack that its arguments, then its results, lie on

  // code: the length of the name, and its characters; the overload's; how many arguments, and of each its kind, whether
  // it is an optional one that is there, and a word or the length of a list and that; how many results, and each.
  // Throws std::invalid_argument with a sentence.
  static AtenCall decode(CodeReader& reader);
};

}  // namespace reformer
