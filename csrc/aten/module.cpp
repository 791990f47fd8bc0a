// The Python module: functions with the signatures of torch_reformer's, on the eager fast path.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/headeronly/version.h>

#include "core.h"
#include "fused_operator.h"
#include "operator_call.h"
#include "override.h"
#include "trilinear.h"

namespace reformer {
namespace {

namespace py = pybind11;

// The tensor if it is of one of PyTorch's own classes; null for subclasses, which may override behaviour.
const at::Tensor* tensor_of(py::handle object) {
  return THPVariable_CheckExact(object.ptr()) ? &THPVariable_Unpack(object.ptr()) : nullptr;
}

bool read(py::handle object, int64_t& number) {
  if (!PyLong_CheckExact(object.ptr())) return false;
  int overflow;
  number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  return !overflow;
}

// Accepts one number or two.
bool read(py::handle object, std::array<int64_t, 2>& pair) {
  if (read(object, pair[0])) {
    pair[1] = pair[0];
    return true;
  }
  return PyTuple_CheckExact(object.ptr()) && PyTuple_GET_SIZE(object.ptr()) == 2 &&
         read(PyTuple_GET_ITEM(object.ptr(), 0), pair[0]) && read(PyTuple_GET_ITEM(object.ptr(), 1), pair[1]);
}

py::object conv2d_of_objects(py::handle input, py::handle weight, py::handle bias, py::handle stride,
                             py::handle padding, py::handle dilation, py::handle groups) {
  std::array<int64_t, 2> pairs[3];
  int64_t group_count;
  const at::Tensor *x = tensor_of(input), *w = tensor_of(weight), none;
  const at::Tensor* b = bias.is_none() ? &none : tensor_of(bias);
  if (!x || !w || !b || !read(stride, pairs[0]) || !read(padding, pairs[1]) || !read(dilation, pairs[2]) ||
      !read(groups, group_count) || at::impl::torch_function_mode_enabled())
    return py::none();
  const auto geometry = geometry_of(pairs[0], pairs[1], pairs[2], group_count);
  if (!geometry) return py::none();
  const auto result = [&]() -> std::optional<at::Tensor> {
    const py::gil_scoped_release release;
    return conv2d(*x, *w, *b, *geometry);
  }();
  return result ? py::cast(*result) : py::none();
}

// Autograd may drop the last reference to a holder of Python objects in a thread without the GIL.
template <class Holder, class... Arguments>
std::shared_ptr<Holder> held(Arguments&&... arguments) {
  return {new Holder(std::forward<Arguments>(arguments)...), [](Holder* holder) {
            if (!Py_IsInitialized()) return;
            const py::gil_scoped_acquire acquire;
            delete holder;
          }};
}

std::shared_ptr<Differentiated> differentiated(py::object forward, size_t results, std::vector<bool> constant,
                                               std::vector<int32_t> saved, std::vector<int32_t> originals,
                                               const std::vector<int32_t>& forms, py::function write_backward,
                                               py::function derive) {
  std::vector<Form> all;
  for (int32_t form : forms) all.push_back(Form(form));
  return held<Differentiated>(OwnedPlan(std::move(forward)), results, std::move(constant), std::move(saved),
                              std::move(originals), std::move(all), std::move(write_backward), std::move(derive));
}

std::shared_ptr<FusedOperator> fused_operator(py::function write, size_t returned) {
  return held<FusedOperator>(std::move(write), returned);
}

py::object call(FusedOperator& op, const py::list& objects) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(objects.size());
  for (const py::handle object : objects) {
    const at::Tensor* const tensor = tensor_of(object);
    if (!tensor) return py::none();
    tensors.push_back(*tensor);
  }
  if (at::impl::torch_function_mode_enabled()) return py::none();
  const auto results = [&] {
    const py::gil_scoped_release release;
    return op(std::move(tensors));
  }();
  return results ? py::cast(*results) : py::none();
}

void check_plain(const at::Tensor& tensor) {
  using enum c10::DispatchKey;
  if (tensor.key_set().has(Python))  // e.g. fake tensors, which have no memory
    throw std::invalid_argument("a plan takes plain tensors, got one of a subclass of torch.Tensor");
  if (tensor.key_set().has_any(c10::DispatchKeySet({Batched, FuncTorchBatched})))
    throw std::runtime_error(
        "a compiled graph takes no batches of tensors (is_grads_batched=True, vectorize=True, torch.func.vmap); call "
        "it, or its backward, once for each");
}

// Runs a plan on the tensors of a list. The list is cleared, so that the plan can free the tensors at their last use.
// views: pairs of an output that is a view and the index of its base among the inputs followed by the outputs. View and
// base share a version counter, so that autograd notices changes of the memory after it has saved either.
std::vector<at::Tensor> run_plan(int64_t plan, const py::list& objects, size_t outputs,
                                 const std::vector<std::pair<size_t, size_t>>& views) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(objects.size());
  for (const py::handle object : objects) {
    tensors.push_back(object.cast<at::Tensor>());
    check_plain(tensors.back());
  }
  objects.attr("clear")();
  const py::gil_scoped_release release;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  std::vector<c10::VariableVersion> versions;
  versions.reserve(views.size());
  for (const auto& [view, base] : views)
    versions.push_back(base < tensors.size() ? tensors[base].unsafeGetTensorImpl()->version_counter()
                                             : c10::VariableVersion());
  const size_t inputs = tensors.size();
  std::vector<at::Tensor> results = core::run_plan(plan, std::move(tensors), outputs);
  for (size_t i = 0; i < views.size(); ++i) {
    const auto& [view, base] = views[i];
    if (base >= inputs) versions[i] = results[base - inputs].unsafeGetTensorImpl()->version_counter();
    if (versions[i].enabled() && !results[view].is_inference())
      results[view].unsafeGetTensorImpl()->set_version_counter(versions[i]);
  }
  return results;
}

}  // namespace
}  // namespace reformer

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.attr("torch_version") = TORCH_VERSION;
  m.def("connect", reformer::core::connect);
  m.def("set_enabled", reformer::set_enabled);
  m.def("is_enabled", reformer::is_enabled);
  m.def("run_plan", reformer::run_plan);
  m.def("conv2d", reformer::conv2d_of_objects);
  m.def("set_sums_plan", reformer::set_sums_plan);
  pybind11::class_<reformer::OperatorCall, std::shared_ptr<reformer::OperatorCall>>(m, "OperatorCall")
      .def(pybind11::init(&reformer::OperatorCall::make))
      .def_property_readonly("number", &reformer::OperatorCall::number);
  pybind11::class_<reformer::Differentiated, std::shared_ptr<reformer::Differentiated>>(m, "Differentiated")
      .def(pybind11::init(&reformer::differentiated));
  pybind11::class_<reformer::FusedOperator, std::shared_ptr<reformer::FusedOperator>>(m, "FusedOperator")
      .def(pybind11::init(&reformer::fused_operator))
      .def("__call__", reformer::call);
}
