// The result of planning: a plan, made once and run many times, or the reason why there is none.
#pragma once

#include <memory>
#include <utility>

namespace reformer {

template <class Plan>
struct Planned {
  std::shared_ptr<const Plan> plan;
  const char* reason = nullptr;  // null if there is a plan

  Planned() = default;
  Planned(const char* why) : reason(why) {}
  Planned(Plan made) : plan(std::make_shared<const Plan>(std::move(made))) {}
};

}  // namespace reformer
