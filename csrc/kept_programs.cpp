#include "kept_programs.h"

#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

namespace reformer {
namespace {

std::mutex mutex;

// Never freed: kernels on their way refer to them.
std::vector<std::unique_ptr<const KeptProgram>>& all() {
  static auto& kept = *new std::vector<std::unique_ptr<const KeptProgram>>;
  return kept;
}

size_t place_of(const int64_t* code, int64_t size) {
  static auto& places = *new std::map<std::vector<int64_t>, size_t>;
  const auto [found, is_new] = places.try_emplace({code, code + size}, all().size());
  if (!is_new) return found->second;
  try {
    auto program = std::make_unique<KeptProgram>();
    program->whole = Epilogue::decode(code, size);
    program->whole.number = 2 * int64_t(all().size());
    if (program->whole.bias() >= 0) {
      Epilogue& rest = program->after_bias.emplace(program->whole);
      rest.take_bias();
      ++rest.number;
    }
    all().push_back(std::move(program));
  } catch (...) {
    places.erase(found);
    throw;
  }
  return found->second;
}

}  // namespace

int64_t keep_program(const int64_t* code, int64_t size) {
  const std::lock_guard<std::mutex> lock(mutex);
  return int64_t(place_of(code, size));
}

const KeptProgram& kept_program(const int64_t* code, int64_t size) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (size != 1) return *all()[place_of(code, size)];
  if (*code < 0 || *code >= int64_t(all().size()))
    throw std::invalid_argument("the epilogue program is malformed: no program has its number");
  return *all()[size_t(*code)];
}

}  // namespace reformer
