// Reads the numbers of a code one by one: of a program (program.h) or a plan (plan/plan.h).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace reformer {

class CodeReader {
 public:
  // of: the kind of code, for messages.
  CodeReader(const char* of, const int64_t* code, int64_t size) : of_(of), at_(code), end_(code + size) {}

  bool done() const { return at_ == end_; }
  int64_t left() const { return end_ - at_; }
  int64_t next() {
    if (done()) malformed("it ends early");
    return *at_++;
  }
  // what: names the number in the message if it is out of bounds.
  int64_t next(int64_t least, int64_t most, const char* what) {
    const int64_t value = next();
    if (value < least || value > most) malformed(what);
    return value;
  }
  const int64_t* next_numbers(int64_t count) {
    if (count < 0 || count > end_ - at_) malformed("it ends early");
    at_ += count;
    return at_ - count;
  }
  [[noreturn]] void malformed(const char* what) const {
    throw std::invalid_argument(std::string("the ") + of_ + " is malformed: " + what);
  }

 private:
  const char* const of_;
  const int64_t *at_, *const end_;
};

}  // namespace reformer
