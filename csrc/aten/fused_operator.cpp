#include "fused_operator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>

#include "compiled_autograd.h"
#include "core.h"
#include "fast_path.h"
#include "node.h"

namespace reformer {
namespace {

namespace py = pybind11;
using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

std::vector<Tensor> run(const OwnedPlan& plan, std::vector<Tensor> tensors) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return core::run_plan(plan.number, std::move(tensors), plan.outputs);
}

struct FusedBackward final : torch::autograd::Node {
  std::shared_ptr<Differentiated> rule;
  std::vector<SavedVariable> saved;
  std::optional<Rows> rows;
  variable_list originals;  // may change in place; copies of them were saved

  std::string name() const override { return "FusedBackward"; }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& variable : saved) variable.reset_data();
    originals.clear();
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    args.collect(rule->number);
    const Derivation sizes = derivation();
    for (const auto* shapes : {&sizes.sizes, &sizes.result_sizes}) args.collect(*shapes);
    args.collect(saved, true);  // some are results
    args.collect(originals);
  }
  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& swapped) override {
    swapped.before(saved);
    swapped.before(originals);
    variable_list tensors = unpacked();
    const auto count = std::ptrdiff_t(tensors.size());
    tensors.insert(tensors.end(), originals.begin(), originals.end());
    const auto compute = [derivation = derivation(), count](const variable_list& given, const variable_list& there) {
      const auto middle = there.begin() + count;
      return derivation(given, {there.begin(), middle}, {middle, there.end()});
    };
    variable_list found = traced(*this, swapped.get_py_compiler(), grads, std::move(tensors), compute);
    swapped.after(originals);
    swapped.after(saved);
    return found;
  }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    uint64_t given = 0;
    const uint64_t wanted = wanted_outputs(*this);
    bool plain = is_eager() && !torch::autograd::GradMode::is_enabled();
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined()) given |= uint64_t{1} << i;
      plain = plain && is_plain(grads[i]);
    }
    variable_list found(num_outputs());
    if (!given || !wanted) return found;
    const BackwardPlan* const backward = plain ? rule->backward(given, wanted) : nullptr;
    if (!backward) return derivation()(grads, unpacked(), originals);
    variable_list there = std::move(grads);
    for (Tensor& tensor : unpacked()) there.push_back(std::move(tensor));
    if (rows) {
      const at::AutoDispatchBelowADInplaceOrView guard;
      for (size_t i = 0; i < there.size(); ++i) {
        const size_t place = i < num_inputs() ? num_outputs() + i : size_t(rule->saved[i - num_inputs()]);
        there[i] = rows->of_conv(there[i], rule->forms[place]);
      }
    }
    variable_list tensors;
    tensors.reserve(backward->inputs.size());
    for (int32_t i : backward->inputs) tensors.push_back(there[size_t(i)]);
    there.clear();
    variable_list made = run(backward->plan, std::move(tensors));
    for (size_t i = 0; i < made.size(); ++i) {
      const auto place = size_t(backward->places[i]);
      found[place] = rows ? rows->of_product(made[i], rule->forms[place]) : std::move(made[i]);
    }
    return found;
  }

 private:
  variable_list unpacked() {
    variable_list tensors;
    for (const SavedVariable& variable : saved) tensors.push_back(variable.unpack(getptr()));
    return tensors;
  }

  // How Python computes the gradients, if they are differentiated again or if operators are intercepted. The sizes are
  // those of the tensors that need gradients and of the results that are not constant.
  struct Derivation {
    std::shared_ptr<Differentiated> rule;
    std::vector<bool> wanted;
    std::vector<std::optional<std::vector<int64_t>>> sizes, result_sizes;

    variable_list operator()(const variable_list& grads, const variable_list& tensors,
                             const variable_list& originals) const {
      const py::gil_scoped_acquire acquire;
      const py::list results = rule->derive(optional(grads), optional(tensors), optional(originals), py::cast(wanted),
                                            tuples(sizes), tuples(result_sizes));
      variable_list found;
      for (const py::handle result : results) found.push_back(result.is_none() ? Tensor() : result.cast<Tensor>());
      return found;
    }

   private:
    static py::list optional(const variable_list& some) {
      py::list list;
      for (const Tensor& tensor : some) list.append(tensor.defined() ? py::cast(tensor) : py::none());
      return list;
    }
    static py::list tuples(const std::vector<std::optional<std::vector<int64_t>>>& shapes) {
      py::list list;
      for (const auto& shape : shapes) list.append(shape ? py::object(py::tuple(py::cast(*shape))) : py::none());
      return list;
    }
  };

  Derivation derivation() const {
    const auto sizes_of = [](const torch::autograd::InputMetadata& metadata) {
      return C10_AS_INTARRAYREF_SLOW(metadata.shape_as_dim_vector()).vec();
    };
    Derivation found{rule, {}, {}, {}};
    for (size_t i = 0; i < rule->results; ++i) {
      found.result_sizes.emplace_back();
      if (!rule->constant[i]) found.result_sizes.back() = sizes_of(input_metadata(i));
    }
    for (size_t i = 0; i < num_outputs(); ++i) {
      found.wanted.push_back(task_should_compute_output(i));
      found.sizes.emplace_back();
      const auto& edge = next_edge(i);
      if (edge.is_valid()) found.sizes.back() = sizes_of(edge.function->input_metadata(edge.input_nr));
    }
    return found;
  }
};

}  // namespace

OwnedPlan::OwnedPlan(py::object plan)
    : owner(plan), number(plan.attr("number").cast<int64_t>()), outputs(py::len(plan.attr("outputs"))) {}

int64_t Differentiated::next_number() {
  static std::atomic<int64_t> next{0};
  return next++;
}

const BackwardPlan* Differentiated::backward(uint64_t given, uint64_t wanted) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = backwards_.find({given, wanted});
    if (found != backwards_.end()) return found->second.get();
  }
  // If another thread was faster, try_emplace leaves `written` to its destructor, which has to run before the GIL is
  // released. No deadlock: no thread waits for the GIL while it holds the mutex.
  const py::gil_scoped_acquire acquire;
  std::unique_ptr<BackwardPlan> written;
  const py::object parts = write_backward_(given, wanted);
  if (!parts.is_none()) {
    auto [plan, inputs, places] = parts.cast<std::tuple<py::object, std::vector<int32_t>, std::vector<int32_t>>>();
    written = std::make_unique<BackwardPlan>(BackwardPlan{OwnedPlan(plan), std::move(inputs), std::move(places)});
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return backwards_.try_emplace({given, wanted}, std::move(written)).first->second.get();
}

std::shared_ptr<Differentiated> FusedOperator::of(uint64_t wanted) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = differentiated_.find(wanted);
    if (found != differentiated_.end()) return found->second;
  }
  const py::gil_scoped_acquire acquire;
  auto written = write_(wanted).cast<std::shared_ptr<Differentiated>>();
  const std::lock_guard<std::mutex> lock(mutex_);
  return differentiated_.try_emplace(wanted, std::move(written)).first->second;
}

std::vector<Tensor> FusedOperator::returned(std::vector<Tensor> results) const {
  results.resize(std::min(results.size(), returned_));
  return results;
}

std::optional<std::vector<Tensor>> FusedOperator::operator()(std::vector<Tensor> tensors) {
  if (!is_eager()) return std::nullopt;
  RECORD_FUNCTION("reformer::fused_operator", c10::ArrayRef<const c10::IValue>{});
  uint64_t wanted = 0;
  const bool grad = records_gradients();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_plain(tensors[i]) || !(tensors[i].is_cpu() || tensors[i].is_cuda())) return std::nullopt;
    if (grad && tensors[i].requires_grad()) wanted |= uint64_t{1} << i;
  }
  const std::shared_ptr<Differentiated> rule = of(wanted);
  if (!rule) return std::nullopt;
  std::optional<Rows> rows;
  if (!rule->forms.empty() && tensors[0].dim() == 0) return std::nullopt;
  if (!rule->forms.empty()) rows.emplace(tensors[0].sizes().slice(0, size_t(tensors[0].dim()) - 1));
  std::vector<Tensor> made;
  if (rows) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    std::vector<Tensor> views;
    for (size_t i = 0; i < tensors.size(); ++i) views.push_back(rows->of_conv(tensors[i], rule->forms[i]));
    made = run(rule->forward, std::move(views));
    for (size_t i = 0; i < made.size(); ++i) made[i] = rows->of_product(made[i], rule->forms[tensors.size() + i]);
  } else {
    made = run(rule->forward, tensors);
  }
  std::vector<Tensor> results(made.begin(), made.begin() + long(rule->results));
  if (!wanted) return returned(std::move(results));

  auto node = make_node<FusedBackward>();
  torch::autograd::edge_list edges;
  for (const Tensor& tensor : tensors)
    edges.push_back(tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor) : torch::autograd::Edge());
  node->set_next_edges(std::move(edges));
  node->rule = rule, node->rows = std::move(rows);
  for (size_t i = 0; i < results.size(); ++i) {
    if (i < rule->results && rule->constant[i])
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    else
      torch::autograd::set_history(results[i], node);
  }
  for (int32_t i : rule->saved) {
    const size_t place = size_t(i), output = place - tensors.size();
    if (place < tensors.size())
      node->saved.emplace_back(tensors[place], false);
    else if (output < rule->results)
      node->saved.emplace_back(results[output], !rule->constant[output]);
    else
      node->saved.emplace_back(made[output], false);
  }
  for (int32_t i : rule->originals) node->originals.push_back(tensors[size_t(i)]);
  return returned(std::move(results));
}

}  // namespace reformer
