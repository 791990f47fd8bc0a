"""PyTorch's samples of its operators (OpInfo), each of several sizes, by one compiled function: plans over
symbols are made for some sizes and serve others. No result or gradient differs from eager's, unless it does so by
PyTorch's backend aot_eager_decomp_partition, too."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import pytest
import torch
from against_eager import between, differences
from marks import needs_aten
from pytorch_suites import few, of_known_version, operators
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.runtime.template import Template

OF_TEMPLATES = ("amax", "cat", "gather", "mean", "nn.functional.gelu", "softmax", "where", "addmm")
SAMPLES = {True: 3, False: 6}  # of each of these, and of others
OFFSET, EVERY = 5, 24  # of the others one in so many is tested
# Memory that nobody wrote; random projections, which differ from run to run, and the errors with them.
LEFT_OUT = ("empty", "lowrank")
pytestmark = [needs_aten, of_known_version, pytest.mark.slow, pytest.mark.nightly]


def full_name(op) -> str:
    return ".".join(filter(None, (op.name, op.variant_test_name)))


def pytest_generate_tests(metafunc):
    others = [op for op in operators(metafunc.config) if full_name(op) not in OF_TEMPLATES]
    chosen = [full_name(op) for op in others[OFFSET::EVERY] if not any(part in op.name for part in LEFT_OUT)]
    metafunc.parametrize("name", [*OF_TEMPLATES, *chosen])


@pytest.fixture(scope="module")
def database(request):
    return {full_name(op): op for op in operators(request.config)}


def of_several_sizes(call: Callable, sample) -> list[tuple]:
    """The sample's arguments, and these with the first dimension of all tensors, or of the first one, a few times as
    large, where eager takes them."""
    args = sample.input, sample.args, sample.kwargs
    found = [args]
    for times in (2, 3, 5):
        grow = functools.partial(repeated, times=times)
        for larger in (tree_map_only(Tensor, grow, args), (tree_map_only(Tensor, grow, args[0]), *args[1:])):
            with contextlib.suppress(RuntimeError, IndexError, ValueError):
                call(*larger)
                found.append(larger)
                break
    return found


def is_strided(sample) -> bool:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return all(leaf.layout is torch.strided for leaf in leaves if isinstance(leaf, Tensor))


def repeated(tensor: Tensor, times: int) -> Tensor:
    if not tensor.dim():
        return tensor
    return tensor.detach().repeat(times, *[1] * (tensor.dim() - 1)).requires_grad_(tensor.requires_grad)


def compiled(function, backend):
    run = torch.compile(function, backend=backend, dynamic=True)

    def compile(_, report):
        report("a plan of any sample")
        return run

    return compile


def test_operator_of_many_sizes(name, database, monkeypatch):
    others, instance = [], Template.at  # sizes that a template serves beside its first ones

    def noted(template, values):
        others.extend([values] if values != template.values else [])
        return instance(template, values)

    monkeypatch.setattr(Template, "at", noted)
    op = database[name]
    gradients = op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")

    def operator(input, args, kwargs):
        return op(input, *args, **kwargs)

    function = between(operator)
    torch._dynamo.reset()
    ours, theirs = (compiled(function, backend) for backend in (reformer, "aot_eager_decomp_partition"))
    found = []
    samples = [each for each in op.sample_inputs("cpu", torch.float32, requires_grad=gradients) if is_strided(each)]
    with torch._dynamo.config.patch(recompile_limit=8 * SAMPLES[False]):
        for sample in few(samples, SAMPLES[name in OF_TEMPLATES]):
            for args in of_several_sizes(function, sample):
                different = differences(function, args, ours)
                if different and not differences(function, args, theirs):
                    found += different
    assert not found
    assert others or name not in OF_TEMPLATES
