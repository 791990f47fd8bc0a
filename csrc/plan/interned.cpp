#include "interned.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

#include "numbered.h"

namespace reformer {
namespace {

class Programs {
 public:
  std::shared_ptr<const InternedProgram> of(std::vector<int64_t> code) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = programs_.find(code);
    if (found != programs_.end()) return found->second;
    auto program = std::make_shared<InternedProgram>();
    program->whole = Program::decode(code.data(), int64_t(code.size()));
    program->whole.number = next_number_++;
    if (program->whole.bias() >= 0) {
      Program& rest = program->after_bias.emplace(program->whole);
      rest.take_bias();
      rest.number = next_number_++;
    }
    if (programs_.size() >= room_) drop_unused();
    return programs_.emplace(std::move(code), std::move(program)).first->second;
  }

  int64_t count() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return int64_t(programs_.size());
  }

 private:
  void drop_unused() {
    for (auto entry = programs_.begin(); entry != programs_.end();)
      entry = entry->second.use_count() == 1 ? programs_.erase(entry) : std::next(entry);
    room_ = std::max(kRoom, 2 * programs_.size());
  }

  static constexpr size_t kRoom = 1024;
  std::mutex mutex_;
  std::map<std::vector<int64_t>, std::shared_ptr<const InternedProgram>> programs_;
  size_t room_ = kRoom;
  int64_t next_number_ = 0;
};

Programs& programs() {
  static auto& all = *new Programs;  // torch's threads may outlive static objects
  return all;
}
Numbered<std::shared_ptr<const Plan>>& plans() {
  static auto& all = *new Numbered<std::shared_ptr<const Plan>>;
  return all;
}

}  // namespace

std::shared_ptr<const InternedProgram> interned_program(const int64_t* code, int64_t size) {
  return programs().of({code, code + size});
}

ConvGeometry unpacked_geometry(int64_t number) {
  if (number < 0) throw std::invalid_argument(std::to_string(number) + " is not a geometry");
  const auto size = [number](int i) { return number >> (8 * i) & 0xff; };
  return {{size(0), size(1)}, {size(2), size(3)}, {size(4), size(5)}, number >> 48};
}

int64_t intern_plan(const int64_t* code, int64_t size) {
  return plans().add(std::make_shared<const Plan>(Plan::decode(code, size)));
}
void release_plan(int64_t number) { plans().take(number); }
std::shared_ptr<const Plan> interned_plan(int64_t number) {
  const auto found = plans().at(number);
  if (!found) throw std::invalid_argument("no plan has the number " + std::to_string(number) + " (any more)");
  return *found;
}

InternedCounts interned_counts() { return {programs().count(), plans().count()}; }

}  // namespace reformer
