"""The library for this torch and the package's Python code compute equal bits, for derivatives of all orders and every
way to call."""

import contextlib
import gc
import os
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import needs_aten
from torch._C import _AutoDispatchBelowAutograd
from torch.utils.checkpoint import checkpoint

import torch_reformer
from torch_reformer import program
from torch_reformer.runtime import aten

pytestmark = needs_aten


class by_python:
    """A context without the library."""

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(aten, "conv2d", lambda *arguments: None)
        self.patch.setattr(aten, "library", None)

    def __exit__(self, *exception):
        self.patch.undo()


def leaves(*sizes, dtype=torch.float32, memory_format=torch.contiguous_format, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    return [
        (tensor.to(memory_format=memory_format) if tensor.dim() == 4 else tensor).requires_grad_() for tensor in tensors
    ]


def derivatives(call, tensors):
    """The result, its gradients, and the gradients of a number computed from these."""
    result = call(*tensors)
    firsts = torch.autograd.grad(result.square().sum(), tensors, create_graph=True)
    seconds = torch.autograd.grad(sum(first.square().sum() for first in firsts), tensors)
    return [result, *firsts, *seconds]


def assert_same(got, want):
    for ours, theirs in zip(got, want, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


GEOMETRIES = {
    "plain": ((2, 3, 7, 7), (4, 3, 3, 3), 1, 0, 1, 1),
    "strided": ((2, 4, 9, 8), (6, 4, 3, 2), (2, 1), (1, 0), 1, 1),
    "dilated, grouped": ((1, 4, 9, 9), (4, 2, 3, 3), 1, 2, 2, 2),
    "depthwise": ((2, 6, 8, 8), (6, 1, 3, 3), 1, 1, 1, 6),
    "1x1": ((3, 8, 5, 5), (4, 8, 1, 1), 1, 0, 1, 1),
}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_conv2d(name, dtype, memory_format):
    x, w, *geometry = GEOMETRIES[name]

    def call(x, w, b):
        return torch_reformer.conv2d(x, w, b, *geometry)

    tensors = leaves(x, w, (w[0],), dtype=dtype, memory_format=memory_format)
    assert call(*tensors).grad_fn.name() == "Conv2dBackward"  # the library's node
    got = derivatives(call, tensors)
    with by_python():
        assert call(*tensors).grad_fn.name() != "Conv2dBackward"
        want = derivatives(call, tensors)
    assert_same(got, want)


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_random_geometries(data):
    draw = lambda least, most: data.draw(st.integers(least, most))  # noqa: E731
    groups, c, k = draw(1, 3), draw(1, 4), draw(1, 4)
    x, w = (draw(1, 3), c * groups, draw(5, 9), draw(5, 9)), (k * groups, c, draw(1, 3), draw(1, 3))
    geometry = (draw(1, 2), draw(1, 2)), (draw(0, 2), draw(0, 2)), (draw(1, 2), draw(1, 2)), groups
    needs = [data.draw(st.booleans()) for _ in range(3)]
    tensors = [leaf.detach().requires_grad_(need) for leaf, need in zip(leaves(x, w, (w[0],)), needs, strict=True)]

    def step():
        result = torch_reformer.conv2d(*tensors, *geometry)
        expected = [tensor for tensor in tensors if tensor.requires_grad]
        return [result, *(torch.autograd.grad(result.sum(), expected) if expected else [])]

    got = step()
    with by_python():
        assert_same(got, step())


def test_autocast():
    tensors = leaves((2, 3, 8, 8), (4, 3, 3, 3), (4,))
    with torch.autocast("cpu", torch.bfloat16):
        got = derivatives(torch_reformer.conv2d, tensors)
        with by_python():
            want = derivatives(torch_reformer.conv2d, tensors)
    assert got[0].dtype == torch.bfloat16
    assert_same(got[:4], want[:4])
    for ours, theirs in zip(got[4:], want[4:], strict=True):  # sums of several gradients are rounded in another order
        torch.testing.assert_close(ours, theirs, atol=2**-6 * theirs.abs().max().item(), rtol=0)


def act(x, w, b, r):
    return torch_reformer.conv2d_act(x, w, b, padding=1, activation="silu", residual=r)


def norm_act(x, w, b, r, scale, shift):
    running = torch.zeros(4, dtype=w.dtype), torch.ones(4, dtype=w.dtype)
    options = dict(training=True, padding=1, activation="gelu", residual=r)
    return torch_reformer.conv2d_batch_norm_act(x, w, b, *running, scale, shift, **options)


def folded(x, w, b, r, scale, shift):
    mean, var = torch.full((4,), 0.5, dtype=w.dtype), torch.full((4,), 2.0, dtype=w.dtype)
    options = dict(training=False, padding=1, residual=r)
    return torch_reformer.conv2d_batch_norm_act(x, w, b, mean, var, scale, shift, **options)


def linear(x, w, b, r):
    return torch_reformer.linear_act(x, w[:, :, 0, 0], b, activation="tanh", residual=r)


SCALED = program.Program(
    program.store(program.acc() * program.scalar("s") + program.full("r") * program.row("k")),
    program.sum(program.acc() * program.full("r"), per="channel"),
    program.store(program.acc() > 0),
)


def scaled(x, r, s, k):
    return torch_reformer.stitch(x, SCALED, {"r": r, "s": s, "k": k})[0]


IMAGES = (2, 3, 6, 6), (4, 3, 3, 3), (4,), (2, 4, 6, 6)
FUSED = {
    "act": (act, IMAGES),
    "batch norm": (norm_act, (*IMAGES, (4,), (4,))),
    "folded": (folded, (*IMAGES, (4,), (4,))),
    "linear": (linear, ((2, 5, 3), (4, 3, 1, 1), (4,), (2, 5, 4))),
    "linear, one row": (linear, ((3,), (4, 3, 1, 1), (4,), (4,))),
    "linear, images": (linear, ((2, 5, 2, 3), (4, 3, 1, 1), (4,), (2, 5, 2, 4))),
    "stitch": (scaled, ((2, 3, 4, 4), (2, 3, 4, 4), (1,), (2, 4, 4))),
}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUSED)
def test_fused_operators(name, dtype, memory_format):
    call, sizes = FUSED[name]
    tensors = leaves(*sizes, dtype=dtype, memory_format=memory_format)
    assert call(*tensors).grad_fn.name() == "FusedBackward"
    got = derivatives(call, tensors)
    with by_python():
        assert call(*tensors).grad_fn.name() != "FusedBackward"
        want = derivatives(call, tensors)
    assert_same(got, want)


@pytest.mark.parametrize("wanted", range(1, 16))
@pytest.mark.parametrize("name", ["act", "linear"])
def test_gradients_of_some(name, wanted):
    """Frozen parameters, and gradients that nobody asks for."""
    call, sizes = FUSED[name]
    tensors = leaves(*sizes)
    some = [tensor for i, tensor in enumerate(tensors) if wanted >> i & 1]
    got = [*torch.autograd.grad(call(*tensors).sum(), some)]
    for tensor in tensors:
        tensor.requires_grad_(any(tensor is each for each in some))
    result = call(*tensors)
    got += torch.autograd.grad(result.sum(), some, create_graph=True)
    directions = torch.stack([torch.ones_like(result)] * 2)
    batched = torch.autograd.grad(result, some, directions, is_grads_batched=True)
    with by_python():
        want = torch.autograd.grad(call(*tensors).sum(), some)
        assert_same(got, 2 * want)
        torch.testing.assert_close([each[0] for each in batched], [*want], atol=1e-4, rtol=1e-4)


def test_first_backwards_in_threads():
    """Each thread writes the plan of the one operator's backward; all but one plan are freed."""
    x = torch.randn(2, 3, 8, 8)
    for i in range(20):
        weights = [torch.randn(4, 3, 3, 3, requires_grad=True) for _ in range(4)]
        slope = program.Program(program.store(program.acc() * (1 + i / 64)))
        results = [torch_reformer.conv2d_epilogue(x, weight, slope) for weight in weights]
        barrier = threading.Barrier(4)

        def work(result, barrier=barrier):
            barrier.wait()
            result.sum().backward()

        threads = [threading.Thread(target=work, args=(result,)) for result in results]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(weight.grad is not None for weight in weights)


@pytest.mark.parametrize("name", FUSED)
def test_where_autograd_records_nothing(name):
    call, sizes = FUSED[name]
    tensors = leaves(*sizes)
    with torch.inference_mode(), torch.enable_grad():
        assert not call(*tensors).requires_grad
        assert not torch_reformer.conv2d(*leaves((1, 2, 5, 5), (3, 2, 3, 3))).requires_grad
    with _AutoDispatchBelowAutograd():
        assert not call(*tensors).requires_grad


@pytest.mark.parametrize("name", ["act", "batch norm", "linear"])
def test_fused_operators_under_autocast(name):
    call, sizes = FUSED[name]
    tensors, results = leaves(*sizes), []
    for context in (contextlib.nullcontext(), by_python()):
        with context, torch.autocast("cpu", torch.bfloat16):
            result = call(*tensors)
            results.append([result, *torch.autograd.grad(result.float().square().sum(), tensors)])
    assert results[0][0].dtype == torch.bfloat16
    assert_same(*results)


@pytest.mark.parametrize("name", FUSED)
def test_fused_operators_in_autograds_hands(name):
    """Hooks, retained graphs, saved tensors that are packed or changed, checkpoints, batched gradients."""
    call, sizes = FUSED[name]
    tensors = leaves(*sizes, dtype=torch.float64)
    result = call(*tensors)
    want = torch.autograd.grad(result.sum(), tensors, retain_graph=True)
    assert_same(torch.autograd.grad(result.sum(), tensors), want)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(result.sum(), tensors)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: packed.append(1) or each * 1, lambda each: each):
        result = call(*tensors)
    assert packed
    torch.testing.assert_close(torch.autograd.grad(result.sum(), tensors), want)
    result = checkpoint(call, *tensors, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), tensors), want)
    result = call(*tensors)
    seen = []
    result.register_hook(lambda grad: seen.append(grad))
    directions = torch.stack([torch.ones_like(result), torch.full_like(result, 2)])
    batched = torch.autograd.grad(result, tensors, directions, is_grads_batched=True, retain_graph=True)
    torch.testing.assert_close([each[0] for each in batched], [*want])
    assert seen
    with torch.no_grad():
        for tensor in tensors:
            tensor.add_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(result.sum(), tensors)


def test_hooks_retained_graphs_and_anomaly_mode():
    x, w = leaves((1, 2, 5, 5), (3, 2, 3, 3))
    seen = []
    w.register_hook(lambda grad: seen.append(grad.clone()))
    with torch.autograd.detect_anomaly(check_nan=True):
        y = torch_reformer.conv2d(x, w)
        y.grad_fn.register_prehook(lambda grads: seen.append(grads[0].clone()))
        y.sum().backward(retain_graph=True)
        y.sum().backward()
    assert len(seen) == 4 and torch.equal(w.grad, 2 * seen[1])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="returned nan values"), torch.autograd.detect_anomaly():
        (torch_reformer.conv2d(x * float("inf"), w) * 0).sum().backward()


def test_saved_tensors():
    x, w = leaves((1, 2, 5, 5), (3, 2, 3, 3))
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor * 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = torch_reformer.conv2d(x, w)
    assert {each.data_ptr() for each in packed} == {x.data_ptr(), w.data_ptr()}
    want = torch.autograd.grad(F.conv2d(x, w).sum(), (x, w))
    torch.testing.assert_close(torch.autograd.grad(y.sum(), (x, w)), want)
    packed.clear()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch_reformer.conv2d(x.detach(), w)
    assert len(packed) == 1  # the weight's gradient needs only the input


def test_changes_in_place_are_pytorchs_error():
    x, w = leaves((1, 2, 5, 5), (3, 2, 3, 3))
    messages = []
    for conv2d in (torch_reformer.conv2d, F.conv2d):
        y = conv2d(x, w).sum()
        with torch.no_grad():
            w.add_(0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            y.backward()
        messages.append(str(error.value).split(": [")[0])
    assert messages[0] == messages[1]


def test_results_may_change_in_place():
    x, w = leaves((1, 2, 5, 5), (3, 2, 3, 3))
    y = torch_reformer.conv2d(x, w)
    y.mul_(2).relu_()
    want = torch.autograd.grad(F.conv2d(x, w).mul(2).relu().sum(), (x, w))
    torch.testing.assert_close(torch.autograd.grad(y.sum(), (x, w)), want)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant):
    x, w = leaves((1, 2, 5, 5), (3, 2, 3, 3))
    y = checkpoint(torch_reformer.conv2d, x, w, use_reentrant=reentrant)
    want = torch.autograd.grad(F.conv2d(x, w).sum(), (x, w))
    y.sum().backward()
    torch.testing.assert_close((x.grad, w.grad), want)


def test_batched_gradients_take_the_dispatchers_way():
    x, w = leaves((1, 2, 5, 5), (3, 2, 3, 3))
    y = torch_reformer.conv2d(x, w)
    directions = torch.eye(y.numel()).view(-1, *y.shape)
    got = torch.autograd.grad(y, (x, w), directions, is_grads_batched=True)
    want = torch.autograd.grad(F.conv2d(x, w), (x, w), directions, is_grads_batched=True)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_threads():
    x, w = leaves((2, 3, 8, 8), (4, 3, 3, 3))
    want = derivatives(torch_reformer.conv2d, [x, w])
    results = {}

    def work(i):
        results[i] = [derivatives(torch_reformer.conv2d, [x, w]) for _ in range(20)][-1]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got in results.values():
        torch.testing.assert_close(got, want)


class Noted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.called = getattr(cls, "called", 0) + 1
        return super().__torch_function__(function, types, args, kwargs or {})


def test_what_the_library_leaves_to_python():
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    assert aten.conv2d(x, w, None, 1, 0, 1, 1) is not None
    for arguments in (
        (x.as_subclass(Noted), w, None, 1, 0, 1, 1),
        (x[0], w, None, 1, 0, 1, 1),
        (x.to("meta"), w.to("meta"), None, 1, 0, 1, 1),
        (x, w.double(), None, 1, 0, 1, 1),
        (x, w, torch.randn(4), 1, 0, 1, 1),
        (x, w, None, (1, 2, 3), 0, 1, 1),
        (x, w, None, 1, "same", 1, 1),
        (x, w, None, 1, 0, 1, 0),
        (x, w, None, 1, 0, 1, 2**64),
        (x, w, None, 1, -1, 1, 1),
        (x, w, None, 1, 0, 4, 1),
        (x.to(torch.complex64), w.to(torch.complex64), None, 1, 0, 1, 1),
        (torch._neg_view(x), w, None, 1, 0, 1, 1),
        ([1], w, None, 1, 0, 1, 1),
        (x, None, None, 1, 0, 1, 1),
    ):
        assert aten.conv2d(*arguments) is None
    with torch.autograd.forward_ad.dual_level():
        assert aten.conv2d(torch.autograd.forward_ad.make_dual(x, x), w, None, 1, 0, 1, 1) is None
    Noted.called = 0
    torch_reformer.conv2d(x.as_subclass(Noted), w)
    assert Noted.called


def test_ever_new_shapes_do_not_grow():
    """The number of programs, plans and decisions stays bounded over 20,000 calls."""

    def resident():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def calls(first, count):
        for i in range(first, first + count):
            x = torch.ones(1, 1, 1 + i % 150, 1 + i // 150, requires_grad=True)
            torch_reformer.conv2d(x, torch.ones(1, 1, 1, 1)).sum().backward()

    calls(0, 4000)
    before = resident()
    calls(4000, 20_000)
    assert resident() - before < 20 << 20
