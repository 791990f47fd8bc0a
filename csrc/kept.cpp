#include "kept.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

namespace reformer {
namespace {

// Values by number, in the order in which their codes came. Never freed: kernels on their way refer to them.
template <class Value>
class Table {
 public:
  // make(number): the value of a code that is new.
  template <class Make>
  int64_t keep(std::vector<int64_t> code, const Make& make) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = numbers_.find(code);
    if (found != numbers_.end()) return found->second;
    const int64_t number = int64_t(values_.size());
    values_.push_back(std::make_unique<const Value>(make(number)));
    numbers_.emplace(std::move(code), number);
    return number;
  }

  const Value* at(int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return number >= 0 && number < int64_t(values_.size()) ? values_[size_t(number)].get() : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<std::vector<int64_t>, int64_t> numbers_;
  std::vector<std::unique_ptr<const Value>> values_;
};

Table<KeptProgram>& programs() {
  static auto& table = *new Table<KeptProgram>;
  return table;
}
Table<KeptGeometry>& geometries() {
  static auto& table = *new Table<KeptGeometry>;
  return table;
}

Table<Sequence>& sequences() {
  static auto& table = *new Table<Sequence>;
  return table;
}

template <class Value>
const Value& at(Table<Value>& table, const char* what, int64_t number) {
  const Value* const found = table.at(number);
  if (!found) throw std::invalid_argument(std::string("no ") + what + " has the number " + std::to_string(number));
  return *found;
}

}  // namespace

int64_t keep_program(const int64_t* code, int64_t size) {
  return programs().keep({code, code + size}, [&](int64_t number) {
    KeptProgram program{Epilogue::decode(code, size), std::nullopt};
    program.whole.number = 2 * number;
    if (program.whole.bias() >= 0) {
      Epilogue& rest = program.after_bias.emplace(program.whole);
      rest.take_bias();
      ++rest.number;
    }
    return program;
  });
}

const KeptProgram& kept_program(int64_t number) { return at(programs(), "program", number); }

int64_t keep_geometry(const int64_t* numbers) {
  KeptGeometry geometry;
  std::copy_n(numbers, geometry.size(), geometry.begin());
  return geometries().keep({geometry.begin(), geometry.end()}, [&](int64_t) { return geometry; });
}
const KeptGeometry& kept_geometry(int64_t number) { return at(geometries(), "geometry", number); }

int64_t keep_sequence(const int64_t* code, int64_t size) {
  return sequences().keep({code, code + size}, [&](int64_t) { return Sequence::decode(code, size); });
}
const Sequence& kept_sequence(int64_t number) { return at(sequences(), "sequence", number); }

}  // namespace reformer
