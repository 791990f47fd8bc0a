"""record_problems sees every call of the operators as the problem that the native library decides on."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_reformer
from torch_reformer import ConvProblem, explain, record_problems
from torch_reformer.tuning import recording


def test_training_step_meets_all_directions():
    conv = torch_reformer.nn.Conv2d(4, 6, 3, stride=2, padding=1)
    x = torch.randn(2, 4, 9, 9, requires_grad=True)
    with record_problems() as problems:
        conv(x).sum().backward()
        with torch.no_grad():
            conv(x)
    assert {str(problem): calls for (problem, _), calls in problems.items()} == {
        "4-9-9-3x3-6-5-5-2-1x1-2x2-1x1-1-NCHW-FP32-F": 2,
        "6-5-5-3x3-4-9-9-2-1x1-2x2-1x1-0-NCHW-FP32-B": 1,
        "6-5-5-3x3-4-9-9-2-1x1-2x2-1x1-0-NCHW-FP32-W": 1,
    }


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch_reformer.conv2d_act(x, w),
        lambda x, w: torch_reformer.conv2d_batch_norm_act(x, w, None, None, None, training=True),
    ],
    ids=["conv2d_act", "conv2d_batch_norm_act"],
)
def test_convolutions_with_an_epilogue(function):
    x, w = torch.randn(2, 4, 9, 9, requires_grad=True), torch.randn(6, 4, 3, 3, requires_grad=True)
    with record_problems() as problems:
        function(x, w).sum().backward()
    assert {(problem.k, problem.direction): calls for (problem, _), calls in problems.items()} == {
        (6, "F"): 1,
        (6, "B"): 1,
        (6, "W"): 1,
    }


@pytest.mark.parametrize("dtype,name", [(torch.float64, "FP64"), (torch.float16, "FP16"), (torch.bfloat16, "BF16")])
def test_arguments_left_at_their_defaults(dtype, name):
    with record_problems() as problems:
        torch.ops.reformer.conv2d(torch.randn(1, 3, 5, 6).to(dtype), torch.randn(2, 3, 1, 1).to(dtype))
    assert [problem for problem, _ in problems] == [ConvProblem(1, 3, 5, 6, 2, 1, 1, dtype=name)]


def test_layout_groups_and_pairs():
    x = torch.randn(2, 4, 8, 9).to(memory_format=torch.channels_last)
    with record_problems() as problems:
        torch_reformer.conv2d(x, torch.randn(8, 2, 3, 2), None, (2, 1), (0, 1), (1, 2), 2)
    expected = ConvProblem(2, 4, 8, 9, 8, 3, 2, 0, 1, 2, 1, 1, 2, groups=2, layout="NHWC")
    assert [problem for problem, _ in problems] == [expected]


def test_empty_calls_and_other_operators_are_not_counted():
    with record_problems() as problems:
        torch_reformer.conv2d(torch.randn(0, 3, 5, 5), torch.randn(2, 3, 3, 3))
        torch.conv2d(torch.randn(1, 3, 5, 5), torch.randn(2, 3, 3, 3))
    assert not problems


def test_device_is_that_of_the_call(monkeypatch):
    """The device as `explain` takes it: GPUs by architecture, CPUs with the number of threads."""
    monkeypatch.setattr(recording, "device_name", lambda device: "sm_90" if device.type == "cuda" else device.type)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with FakeTensorMode(), record_problems() as problems:
        for device in ("cpu", "cuda:0", "cuda:1", "meta"):
            torch_reformer.conv2d(torch.randn(1, 3, 5, 5, device=device), torch.randn(2, 3, 3, 3, device=device))
    assert [device for _, device in problems] == ["cpu", "sm_90", "cuda:1", "meta"]
    assert len({problem for problem, _ in problems}) == 1


def test_what_is_recorded_is_what_explain_takes():
    torch.set_num_threads(1)
    with record_problems() as problems:
        torch_reformer.conv2d(torch.randn(1, 3, 5, 5), torch.randn(2, 3, 3, 3))
    [((problem, device), calls)] = problems.items()
    assert f"device   {device}\n" in explain(problem, device) and device.endswith("-1t") and calls == 1
