"""Plans as bytes: their constants are pickled and loaded while PyTorch traces fake tensors."""

import copy
import pickle

import host_gpu
import pytest
import torch
from marks import needs_aten, needs_cpu_build
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.runtime import executable, partial_plan
from torch_reformer.compiler.runtime.pickled_tensors import pickle_buffers


def scaled(x):
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + x[:, [1, 0, 2, 3]]


def turned(x):
    """Has a constant in an operator that no plan computes, and one that is a result."""
    pairs = torch.view_as_complex((x * 2).unflatten(1, (2, 2)))
    return torch.view_as_real(pairs * torch.tensor([1j, 2 + 3j])).exp(), torch.tensor([5.0, 6.0])


@needs_aten
@pytest.mark.filterwarnings("ignore:.*operators of a graph run without a plan")
@pytest.mark.parametrize(
    ("function", "kind"), [(scaled, executable.Executable), (turned, partial_plan.PartialPlan)], ids=["plan", "parts"]
)
def test_constants(function, kind, monkeypatch):
    made, init = [], kind.__init__

    def noted(self, *args):
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(kind, "__init__", noted)
    torch._dynamo.reset()
    x = torch.randn(3, 4)
    expected = torch.compile(function, backend=reformer)(x)
    with FakeTensorMode():
        loaded = pickle.loads(pickle.dumps(made[-1]))
    loaded.start()
    expected = expected if isinstance(expected, tuple) else (expected,)
    torch.testing.assert_close(tuple(loaded([x])), expected, rtol=0, atol=0)


@needs_cpu_build
def test_constants_and_buffers_of_gpus():
    """Their elements are copied to the host. This build for CPUs does not load them."""
    host_gpu.run("""
        import pickle
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch_reformer.compiler.runtime.pickled_tensors import Constants, pickle_buffers

        constants, module = Constants([torch.arange(4.0).cuda()]), torch.nn.Module()
        module.register_buffer("folded", constants[0])
        pickle_buffers(module)
        for values in (constants, module._buffers):
            expected = pickle.dumps(values)
            with FakeTensorMode():
                assert pickle.dumps(values) == expected
            assert constants[0].cpu().numpy().tobytes() in expected
    """)


def test_buffers_load():
    module = torch.nn.Module()
    module.register_buffer("folded", torch.arange(4.0))
    pickle_buffers(module)
    with FakeTensorMode():
        loaded = pickle.loads(pickle.dumps(module._buffers))
    for other in (loaded, copy.deepcopy(module)._buffers):
        assert [*other] == ["folded"] and torch.equal(other["folded"], torch.arange(4.0))
        assert type(other) is type(module._buffers)
