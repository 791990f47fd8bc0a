// Plans that were made before: to look for the best one takes longer than to launch it.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "../../conv_problem.h"
#include "../../device.h"

namespace reformer {

// A table without sets: of two problems that fall into one place, the later one stays.
template <class Plan>
class Memo {
 public:
  // What make() returns for the problem on a device of this architecture.
  template <class Make>
  Plan get(const ConvProblem& problem, const Device& device, Make make) const {
    const size_t at = hash(problem) % kPlaces;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (places_ && places_[at].arch == device.arch && places_[at].problem == problem) return places_[at].plan;
    }
    Plan plan = make();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!places_) places_.reset(new Place[kPlaces]);
    places_[at] = {problem, device.arch, plan};
    return plan;
  }

 private:
  static constexpr size_t kPlaces = 256;
  struct Place {
    ConvProblem problem;
    std::string arch;
    Plan plan;
  };
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Place[]> places_;  // allocated at the first use
};

}  // namespace reformer
