#include "run_plan.h"

#include <torch/csrc/stable/accelerator.h>

#include "checks.h"
#include "numbered.h"
#include "plan/interned.h"
#include "plan/profiler.h"
#include "program.h"

namespace reformer {
namespace {

using torch::stable::accelerator::DeviceGuard;

Tensor view_of(const Tensor& tensor, const ViewStep& view) {
  int64_t elements;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_numel(tensor.get(), &elements));
  const int64_t first = tensor.storage_offset();
  const bool is_nothing =
      view.offset == 0 && view.end == 0;  // an empty view at the tensor's start, which may lie outside the storage
  if (!is_nothing && (first + view.offset < 0 || first + view.end > elements))
    throw std::runtime_error("the view reaches beyond the tensor's memory");
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(tensor.get(), int64_t(view.sizes.size()), view.sizes.data(),
                                                        view.strides.data(), view.offset, &handle));
  return Tensor(handle);
}

// One run of a plan: its tensors, indexed by their numbers.
class Run {
 public:
  Run(const Plan& plan, std::vector<Tensor> given) : plan_(plan), there_(std::move(given)) {
    there_.reserve(size_t(plan.tensors));
  }

  std::vector<Tensor> operator()() {
    const bool profiled = is_profiled();
    std::optional<ProfilerRange> whole;
    if (profiled) whole.emplace("reformer::plan");
    for (const PlanStep& step : plan_.steps) {
      if (profiled) {
        run_in_range(step);
      } else {
        run(step);
      }
      for (int32_t i : step.frees) Tensor(std::move(there_[size_t(i)]));
    }
    return tensors(plan_.outputs, 0);
  }

 private:
  void run_in_range(const PlanStep& step) {
    std::optional<ProfilerRange> range;
    if (const std::string label = step.label(); !label.empty()) range.emplace(label);
    run(step);
  }

  void run(const PlanStep& step) {
    try {
      std::visit([&](const auto& what) { run(what, step); }, step.what);
    } catch (const std::out_of_range&) {  // keeps its type, as PyTorch has its own message for it
      throw;
    } catch (const std::exception& error) {
      if (plan_.steps.size() == 1 && !std::holds_alternative<OperatorStep>(step.what))
        throw;  // the message already names the operator
      throw std::runtime_error(std::string(error.what()) + " [step " + std::to_string(&step - plan_.steps.data()) +
                               " of the plan: " + step.name() + "]");
    }
  }

  void run(const Conv2dStep& conv, const PlanStep& step) {
    append(conv2d_epilogue_interned(input(step, 0), input(step, 1), tensors(step.inputs, 2), *conv.program,
                                    conv.geometry));
  }
  // Semaphores cost one kernel, which zeroes them, and save one for each program that reduces.
  void run(const StitchStep& stitch, const PlanStep& step) {
    append(stitch_interned(input(step, 0), tensors(step.inputs, 1), *stitch.program, tensors(step.into, 0),
                           plan_.reducing > 1 ? &semaphores_ : nullptr));
  }
  void run(const Conv2dGradsStep& grads, const PlanStep& step) {
    append(conv2d_grads(input(step, 0), input(step, 1), input(step, 2), grads.geometry, grads.wanted));
  }
  void run(const PartsStep&, const PlanStep& step) {
    const Tensor& whole = input(step, 0);
    if (whole.dim() < 1 || whole.size(0) < step.results) fail("_run", "there are not so many parts");
    for (int64_t i = 0; i < step.results; ++i) there_.push_back(part(whole, i));
  }
  void run(const ViewStep& view, const PlanStep& step) { there_.push_back(view_of(input(step, 0), view)); }
  void run(const OperatorStep& call, const PlanStep& step) {
    handles_.clear();
    for (int32_t i : step.inputs) handles_.push_back(there_[size_t(i)].get());
    handles_.resize(step.inputs.size() + size_t(step.results));
    void** const results = handles_.data() + step.inputs.size();
    call.run(handles_.data(), results);
    for (int32_t i = 0; i < step.results; ++i) there_.emplace_back(static_cast<AtenTensorHandle>(results[i]));
  }

  const Tensor& input(const PlanStep& step, size_t i) const { return there_[size_t(step.inputs[i])]; }
  std::vector<Tensor> tensors(const std::vector<int32_t>& numbers, size_t first) const {
    std::vector<Tensor> some;
    some.reserve(numbers.size() - first);
    for (size_t i = first; i < numbers.size(); ++i) some.push_back(there_[size_t(numbers[i])]);
    return some;
  }
  void append(std::vector<Tensor> made) {
    for (Tensor& tensor : made) there_.push_back(std::move(tensor));
  }

  const Plan& plan_;
  std::vector<Tensor> there_;
  std::vector<void*> handles_;  // of one call's inputs and results
  Semaphores semaphores_;
};

std::shared_ptr<const Plan> plan_of(int64_t number) {
  try {
    return interned_plan(number);
  } catch (const std::invalid_argument& error) {
    fail("_run", error.what());
  }
}

// The GPU of all tensors except those without dimensions, which may be on the CPU; -1 for the CPU.
int32_t gpu_of(const std::vector<Tensor>& tensors) {
  const Tensor* first = nullptr;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    if (tensor.is_cpu() && tensor.dim() == 0) continue;
    if (!first) first = &tensor;
    if (tensor.is_cpu() != first->is_cpu() || tensor.get_device_index() != first->get_device_index())
      fail("_run", "tensor ", i, " of the plan is on another device than those before it; move all to one device");
  }
  return first && !first->is_cpu() ? first->get_device_index() : -1;
}

Numbered<std::vector<Tensor>>& held_tensors() {
  static auto& all = *new Numbered<std::vector<Tensor>>;  // torch's threads may outlive static objects
  return all;
}

}  // namespace

std::vector<Tensor> run_plan(std::vector<Tensor>& tensors, int64_t number) {
  const std::shared_ptr<const Plan> plan = plan_of(number);  // shared ownership: the plan may be released meanwhile
  if (tensors.size() != size_t(plan->inputs))
    fail("_run", "the plan takes ", plan->inputs, " tensors, got ", tensors.size());
  const int32_t gpu = gpu_of(tensors);
  std::optional<DeviceGuard> guard;
  if (gpu >= 0) guard.emplace(gpu);
  return Run(*plan, std::move(tensors))();
}

int64_t hold_tensors(std::vector<Tensor>& tensors) { return held_tensors().add(std::move(tensors)); }

std::vector<Tensor> run_plan_of_held(int64_t held, int64_t plan) {
  auto taken = held_tensors().take(held);
  if (!taken) fail("_run_held", "no tensors are held by the number ", held, " (any more)");
  return run_plan(*taken, plan);
}

}  // namespace reformer
