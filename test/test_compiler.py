"""``torch.compile(model, backend="reformer")`` against PyTorch: values, gradients, buffers, errors."""

import copy
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
import training_models
import two_processes
from marks import needs_aten
from torch import nn
from training_models import relative_error, step

import torch_reformer  # noqa: F401  registers the operators
from torch_reformer.compiler.backend import reformer
from torch_reformer.runtime import aten

pytestmark = needs_aten


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(model, **options):
    return torch.compile(model, backend=reformer, **options)


def same(function, *args, exact=True, **options):
    """The function's results and gradients, compiled and not; no graph runs without a plan."""
    found = []
    for run in (compiled(function, **options), function):
        given = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="a graph runs without a plan")
            results = run(*given)
        results = results if isinstance(results, tuple) else (results,)
        if any(each.requires_grad for each in results):
            sum(each.float().square().sum() for each in results if each.requires_grad).backward()
        found.append(([each.detach() for each in results], [each.grad for each in given], given))
    for one, other in zip(*found, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a is None) == (b is None)
            if b is not None:
                assert a.stride() == b.stride() and a.dtype == b.dtype
                if exact:
                    torch.testing.assert_close(a, b)
    return [[each for each in (*results, *grads) if each is not None] for results, grads, _ in found]


@pytest.mark.parametrize("name", training_models.MODELS)
def test_a_training_step(name):
    """In fp64 it is PyTorch's; in fp32 it is as near to that as PyTorch's is."""
    model, inputs = training_models.make(name)
    wide = copy.deepcopy(model).double()
    wide_inputs = [each.double() if each.is_floating_point() else each for each in inputs]
    reference = copy.deepcopy(wide)
    expected = step(reference, reference, wide_inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="a graph runs without a plan")
        found = step(compiled(wide), wide, wide_inputs)
    assert relative_error(found, expected) < 1e-9
    for one, other in zip(wide.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    eager, torch_model = copy.deepcopy(model), copy.deepcopy(model)
    own = relative_error(step(compiled(eager), eager, inputs), expected)
    assert own < 2 * relative_error(step(torch_model, torch_model, inputs), expected) + 1e-6


@pytest.mark.parametrize("channels_last", [False, True])
def test_batch_norm_of_a_convolution(channels_last):
    """Its moments are computed behind the convolution, its backward computes the activation's gradient twice."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

        def forward(self, x, y):
            return F.relu(self.norm(self.conv(x)) + y)

    model = Block()
    x, y = torch.randn(4, 4, 12, 12), torch.randn(4, 8, 12, 12)
    if channels_last:
        model, x, y = (each.to(memory_format=torch.channels_last) for each in (model, x, y))
    other = copy.deepcopy(model)
    run = compiled(model)
    for _ in range(3):
        grads = []
        for net, call in ((model, run), (other, other)):
            given = x.clone().requires_grad_(), y.clone().requires_grad_()
            net.zero_grad()
            call(*given).square().sum().backward()
            grads.append([each.grad for each in (*given, *net.parameters())])
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b)


X = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0))
FUNCTIONS = {
    "views": lambda x: x.transpose(0, 1).reshape(5, 21).t() * 2,
    "slices": lambda x: x[:, 1:3] * x[:, 3:5] + x[:1, :2],
    "several results": lambda x: (x + 1, x.sum(0), (x * 2).t() if x.dim() == 2 else x.mean()),
    "the input itself": lambda x: (x, x.detach() * 2),
    "a view of the input": lambda x: (x[0], x * 3),
    "one result twice": lambda x: (lambda y: (y, y))(x.exp()),
    "whole numbers": lambda x: x * torch.arange(7) + torch.arange(5)[:, None].float(),
    "comparisons": lambda x: torch.where((x > 0) & ~(x > 1) | (x < -1), x, -x.detach()),
    "constants": lambda x: x + torch.full((5, 1), 2.0) * torch.ones(7),
    "softmax": lambda x: x.softmax(-1) * x.log_softmax(1),
    "reductions": lambda x: (x.sum((0, 2)), x.amax(2), x.var((0, 1)), x.mean()),
    "a matrix product": lambda x: x.reshape(15, 7) @ x.reshape(15, 7).t(),
    "concatenation": lambda x: torch.cat([x, x * 2], 1).relu(),
    "sorting": lambda x: x.sort(-1).values * 2,
    "powers": lambda x: x.square() + x.abs().pow(1.5) + x.pow(3) + x.abs().pow(2.5),
    "an empty part": lambda x: x[:, 5:] * 2,
    "one element": lambda x: x[0, 0, 0] * 2 + 1,
    "truths as numbers": lambda x: (x.bool() + x, ((x > 0) + (x > 1)) * x, torch.full((7,), 2, dtype=torch.bool) * x),
    "truths compared": lambda x: ((x > 0) == (x.abs() > 0.5).bool()) * x + x.bool() * x,
    "divided without a rest": lambda x: torch.div(x.detach() * 10, 0.5, rounding_mode="trunc") * x,
    "dimensions of one element": lambda x: x[:, :1].sum(1) + x[:, 1:2].mean(1) + x[:, 2:3].amax(1),
    "a vector, then sums": lambda x: (lambda y: (y, (x[0, 0] * 2).sort().values, y.sum(1)))(x[0] * x[0, 0]),
    "a bias with gaps": lambda x: F.conv2d(x[None], torch.ones(4, 3, 1, 1, dtype=x.dtype), x[0, 0].repeat(2)[:8:2]),
    "nothing from somewhere": lambda x: (x[:0, 2:].reshape(-1), x[:0].transpose(1, 2)[:, 2:] * 2),
    "a part's rows": lambda x: F.layer_norm(torch.cat([x[0], x[1].exp()])[5:], (7,)),
    "scatter": lambda x: torch.zeros(5, 7, dtype=x.dtype).index_add(0, torch.tensor([1, 3, 1]), x[:, 0]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_functions(name, dtype):
    """As near to what they are in fp64 as PyTorch's are."""
    x = X.to(dtype)
    found, eager = same(FUNCTIONS[name], x.clone().requires_grad_(), exact=dtype == torch.float64)
    _, exact = same(FUNCTIONS[name], x.double().requires_grad_())
    assert relative_error(found, exact) <= 1.5 * relative_error(eager, exact) + 1e-7


@pytest.mark.parametrize("extreme", [torch.amax, torch.amin], ids=["amax", "amin"])
def test_gradients_of_extremes_of_products(extreme):
    """They are found by comparing: what is compared must be what the forward computed."""

    def function(x, y):
        product = x * y
        return product.sigmoid(), extreme(product + x, 1)

    torch.manual_seed(1)
    inputs = [torch.randn(33, 100, dtype=torch.float64).requires_grad_() for _ in range(2)]

    def gradients(of):
        return torch.autograd.grad(sum(each.square().sum() for each in of(*inputs)), inputs)

    for one, other in zip(gradients(torch.compile(function, backend="reformer")), gradients(function), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("exponent", [0.5, -0.5, 1, 1.5, 2, 3, 4, -1, -2])
def test_powers_of_special_values(exponent):
    x = torch.tensor([0.0, -0.0, 1.0, -2.0, torch.inf, -torch.inf, torch.nan, 3e38, -3e38, 1e-30])
    found = torch.compile(lambda x: x**exponent, backend="reformer")(x)
    torch.testing.assert_close(found, x**exponent, equal_nan=True)


def test_zeros_have_signs():
    """Numbers that are equal, but not the same, are two constants."""

    def function(x):
        chosen = torch.where(x > 0, 0.0, -0.0), torch.where(x > 0, -0.0, 0.0), torch.where(x <= 0, -0.0, x)
        return *chosen, x * 0.0, x * -0.0, x + torch.full((3,), -0.0), x + torch.full((3,), 0.0)

    x = torch.tensor([1.0, -0.0, -2.0])
    found = torch.compile(function, backend="reformer")(x)
    for one, other in zip(found, function(x), strict=True):
        torch.testing.assert_close(1 / one, 1 / other, rtol=0, atol=0)


def test_without_gradients():
    with torch.no_grad():
        same(lambda x: (x.relu() + x.mean(0)).sigmoid(), X)


def test_writes_to_an_input():
    def function(x, y):
        y.mul_(2)
        y[0] += x.detach()[0, 0]
        return x * y

    same(function, X.clone().requires_grad_(), torch.randn(3, 5, 7))


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_change(dynamic):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    other, run = copy.deepcopy(model), compiled(model, dynamic=dynamic)
    for n, size in ((2, 12), (3, 12), (5, 9), (2, 12)):
        x = torch.randn(n, 3, size, size)
        for call in (run, other):
            call(x).square().sum().backward()
    found = [(*net.buffers(), *(each.grad for each in net.parameters())) for net in (model, other)]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_autocast():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    x, other = torch.randn(6, 16), copy.deepcopy(model)
    for call in (compiled(model), other):
        with torch.autocast("cpu", torch.bfloat16):
            y = call(x)
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0.05, atol=0.05)


def test_random_numbers_in_order():
    """A seed gives each call what it gives without the compiler."""

    def function(x, y):
        first = torch.randn_like(x) * x
        return first, x * 3 + torch.rand_like(y)

    x, y = torch.randn(100, 100), torch.randn(100, 100)
    found = []
    for run in (compiled(function), function):
        torch.manual_seed(3)
        found.append(run(x, y))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_are_rounded_to_what_they_are_compared_with(dtype):
    same(lambda x: (x >= 0.1, x == 0.1, x < 0.1), torch.full((10,), 0.1, dtype=dtype))


def test_permuted_dimensions_of_one_size():
    """Orders of memory that only strides tell apart."""
    x = torch.randn(2, 2, 4, 4).transpose(0, 1).requires_grad_()
    same(lambda x: (x.mean((2, 3), keepdim=True), x.sum((2, 3)), x.amax((0, 1))), x)
    weight = torch.randn(4, 4, 1, 1).transpose(0, 1).requires_grad_()
    same(lambda x, weight: F.conv2d(x, weight), torch.randn(2, 4, 5, 5, requires_grad=True), weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_greatest_of_rounded_numbers(dtype):
    """Its gradient goes to those that are equal to it as they were rounded."""
    x = torch.randn(6, 5, 4, dtype=dtype, requires_grad=True)
    same(lambda x: x.exp().amax((0, 2)), x)


def test_counters():
    def function(n, m):
        n.add_(3, alpha=2)
        m.add_(1)

    found = []
    for run in (compiled(function), function):
        numbers = torch.zeros((), dtype=torch.long), torch.ones(3, dtype=torch.long)
        run(*numbers)
        found.append(numbers)
    torch.testing.assert_close(*found)


def test_threads_with_new_sizes():
    run, wrong = compiled(lambda x: (x * 2 + x.mean(0)).relu(), dynamic=True), []
    run(torch.ones(3, 4))

    def work(i):
        for n in range(2, 12):
            x = torch.randn(n + 10 * i, 5)
            if not torch.allclose(run(x), (x * 2 + x.mean(0)).relu(), atol=1e-6):
                wrong.append((i, n))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert not wrong


def test_graph_breaks_and_checkpoints():
    linear = nn.Linear(8, 8)

    def function(x):
        y = torch.utils.checkpoint.checkpoint(lambda z: linear(z).relu(), x, use_reentrant=False)
        if y.sum() > 0:
            y = y * 2
        torch._dynamo.graph_break()
        return y.tanh()

    same(function, torch.randn(4, 8, requires_grad=True))


def test_an_operator_that_raises():
    """The error is the operator's own."""

    @torch.library.custom_op("reformer_test::picky", mutates_args=())
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            raise KeyError("too large")
        return x + 1

    picky.register_fake(torch.empty_like)
    run = compiled(lambda x: picky(x * 2) * 3)
    torch.testing.assert_close(run(-torch.ones(3)), -torch.ones(3) * 3)
    with pytest.raises(KeyError, match="too large"):
        run(torch.ones(3))


def test_empty_slices():
    """Which begin behind the end of a memory that has no elements."""
    same(lambda x: (x[:, 1:] + 1, x[:, ::2]), torch.zeros(0, 4)[:, 2:])
    same(lambda x: x[:, ::2], torch.zeros(0, 4, 4, 5)[:, 2:3])


def test_assertions():
    """They give nothing, and are not left out."""

    def function(x):
        torch._assert_async((x > 0).all(), "too small")
        return x * 2

    torch.testing.assert_close(compiled(function)(torch.ones(3)), torch.ones(3) * 2)
    with pytest.raises(RuntimeError, match="too small"):
        compiled(function)(-torch.ones(3))


def test_what_no_plan_computes(monkeypatch):
    """Runs as PyTorch has it, and says so."""
    monkeypatch.setattr(aten, "library", None)
    monkeypatch.setattr(aten, "missing", "there is no library")
    x = torch.randn(3, requires_grad=True)
    with pytest.warns(UserWarning, match="a graph runs without a plan, by PyTorch's operators: there is no library"):
        compiled(lambda x: x.exp())(x).sum().backward()
    torch.testing.assert_close(x.grad, x.exp().detach())


def test_large_identities():
    same(lambda x: x + torch.eye(300), torch.randn(300, 300))


def test_types_of_no_kernel():
    same(lambda x: x.cumsum(0) // 2 + 1, torch.arange(5))
    z = torch.randn(3, dtype=torch.complex64)
    torch.testing.assert_close(compiled(lambda x: x * x + 1)(z), z * z + 1)
    for dynamic in (False, True):
        torch._dynamo.reset()
        with pytest.warns(UserWarning, match="without a plan.* aten::_conj gives .* a lazy conjugate"):
            torch.testing.assert_close(compiled(lambda x: x * x.conj(), dynamic=dynamic)(z), z * z.conj())
    same(lambda x: x.view(torch.int32) + 1, torch.zeros(4))


def test_options():
    with pytest.raises(Exception, match="mode must be one of"):
        compiled(lambda x: x + 1, mode="fastest")(torch.ones(2))
    with pytest.raises(Exception, match="has no option 'speed'; it has report"):
        compiled(lambda x: x + 1, options={"speed": 1})(torch.ones(2))
    with pytest.raises(Exception, match="report must be a function, such as print, got 3"):
        compiled(lambda x: x + 1, options={"report": 3})(torch.ones(2))
    with pytest.raises(Exception, match="has no option 'max_autotune', which is Inductor's; it has report"):
        compiled(lambda x: x + 1, options={"max_autotune": True})(torch.ones(2))


@pytest.mark.parametrize(
    "mode, instead", [("max-autotune", "reduce-overhead"), ("max-autotune-no-cudagraphs", "default")]
)
def test_modes_of_inductor(mode, instead):
    """They are taken for modes of this backend, as one warning for all graphs says."""
    function = compiled(lambda x: x * 2 + 1, mode=mode, dynamic=False)
    with pytest.warns(UserWarning, match=f"without timing: mode '{mode}' is '{instead}' here") as warned:
        for size in (3, 4):
            torch.testing.assert_close(function(torch.ones(size)), torch.full((size,), 3.0))
    assert sum("without timing" in str(each.message) for each in warned) == 1


def test_is_registered():
    assert "reformer" in torch._dynamo.list_backends()
    run = torch.compile(lambda x: x * 2 + 1, backend="reformer")
    torch.testing.assert_close(run(torch.ones(3)), torch.full((3,), 3.0))


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes(tmp_path, sharded):
    """DistributedDataParallel, whose buckets are graphs of their own, and FSDP2's fully_shard."""
    torch.multiprocessing.spawn(two_processes.train_compiled, (str(tmp_path), sharded), nprocs=2)
    for rank in range(2):
        for one, other in zip(*torch.load(tmp_path / f"{rank}.pt"), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.slow
def test_tensor_parallel_layers(tmp_path):
    """Their graphs take process groups besides tensors."""
    torch.multiprocessing.spawn(two_processes.train_tensor_parallel, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        (expected, found), planned = torch.load(tmp_path / f"{rank}.pt")
        assert planned == 2
        torch.testing.assert_close(found, expected)


def test_plans_by_sizes_hold_no_tensors():
    run, seen = compiled(lambda x: (x * 2).relu(), dynamic=True), []
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        seen.append(weakref.ref(x))
        run(x)
        del x
    assert not any(each() is not None for each in seen)


def test_cuda_graphs_without_a_gpu():
    """There are none; the plans run."""
    same(lambda x: (x * 2 + 1).relu(), torch.randn(5, requires_grad=True), mode="reduce-overhead")
