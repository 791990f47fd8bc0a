#include "aten_call.h"

#include <algorithm>

namespace reformer {
namespace {

constexpr int64_t kMost = 1 << 12;  // of any list, far more than any operator has

std::string read_name(CodeReader& reader) {
  std::string name;
  for (int64_t left = reader.next(0, kMost, "an operator's name"); left > 0; --left)
    name += char(reader.next(1, 127, "an operator's name"));
  return name;
}

AtenArgument read_argument(CodeReader& reader) {
  using Kind = AtenArgument::Kind;
  AtenArgument argument{};
  argument.kind = Kind(reader.next(0, int64_t(Kind::optional_tensors), "an unknown kind of argument"));
  argument.is_optional = reader.next(0, 1, "an unknown kind of argument") == 1;
  switch (argument.kind) {
    case Kind::word: argument.word = reader.next(); break;
    case Kind::tensor: break;
    case Kind::tensors: argument.word = reader.next(0, kMost, "a count"); break;
    default: {
      const int64_t count = reader.next(0, kMost, "a count");
      const int64_t* numbers = reader.next_numbers(count);
      argument.words.assign(numbers, numbers + count);
    }
  }
  return argument;
}

}  // namespace

int64_t AtenArgument::inputs() const {
  switch (kind) {
    case Kind::tensor: return 1;
    case Kind::tensors: return word;
    case Kind::optional_tensors: return int64_t(words.size()) - std::count(words.begin(), words.end(), 0);
    default: return 0;
  }
}

int64_t AtenCall::inputs() const {
  int64_t count = 0;
  for (const AtenArgument& argument : arguments) count += argument.inputs();
  return count;
}
int64_t AtenCall::tensors() const {
  int64_t count = 0;
  for (int32_t length : results) count += length == kTensor ? 1 : length;
  return count;
}
size_t AtenCall::words() const { return std::max(arguments.size(), results.size()); }

AtenCall AtenCall::decode(CodeReader& reader) {
  AtenCall call;
  call.name = read_name(reader);
  call.overload = read_name(reader);
  for (int64_t left = reader.next(0, kMost, "a count"); left > 0; --left)
    call.arguments.push_back(read_argument(reader));
  for (int64_t left = reader.next(0, kMost, "a count"); left > 0; --left)
    call.results.push_back(int32_t(reader.next(kTensor, kMost, "a count")));
  return call;
}

}  // namespace reformer
