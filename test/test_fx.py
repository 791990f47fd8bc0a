"""torch.fx.symbolic_trace of this package's modules and functions: each call is a node."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_reformer
from torch_reformer import functional
from torch_reformer.nn import Conv2dAct, Conv2dBatchNormAct, LinearAct, conv_norm_act


class Of(nn.Module):
    """A function of the input, a weight and a bias."""

    def __init__(self, function, *size):
        super().__init__()
        self.function, self.weight, self.bias = function, nn.Parameter(torch.randn(size)), nn.Parameter(torch.randn(8))

    def forward(self, input):
        return self.function(input, self.weight, self.bias)


def batch_norm(x, w, b):
    return torch_reformer.conv2d_batch_norm_act(x, w, None, None, None, b, training=True, padding=1)


CASES = {
    "conv2d": (functional.conv2d, lambda: Of(functional.conv2d, 8, 8, 3, 3)),
    "conv2d_act": (functional.conv2d_act, lambda: Of(lambda x, w, b: functional.conv2d_act(x, w, b), 8, 8, 3, 3)),
    "linear_act": (functional.linear_act, lambda: Of(functional.linear_act, 8, 8)),
    "conv2d_batch_norm_act": (functional.conv2d_batch_norm_act, lambda: Of(batch_norm, 8, 8, 3, 3)),
    "Conv2d": (functional.conv2d, lambda: torch_reformer.nn.Conv2d(8, 8, 3)),
    "Conv2dAct": (functional.conv2d_act, lambda: Conv2dAct(8, 8, 3)),
    "Conv2dBatchNormAct": (conv_norm_act, lambda: Conv2dBatchNormAct(8, 8, 3)),
    "LinearAct": (functional.linear_act, lambda: LinearAct(8, 8)),
}


@pytest.mark.parametrize("target, make", CASES.values(), ids=CASES)
def test_call_is_a_node(target, make):
    model, x = make(), torch.randn(2, 8, 8, 8)
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [target]
    assert torch.equal(traced(x), model(x))


def test_converted_model():
    layers = nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding="same")
    model = nn.Sequential(*layers, nn.Conv2d(8, 4, 3, padding=1, padding_mode="circular")).eval()
    torch_reformer.convert(model)
    x, traced = torch.randn(2, 4, 9, 9), torch.fx.symbolic_trace(model)
    for each in (traced, copy.deepcopy(traced), pickle.loads(pickle.dumps(traced))):
        assert torch.equal(each(x), model(x))


def test_trace_neither_counts_nor_fixes_the_mode():
    """A call updates the running statistics when the graph runs, not when it is traced."""
    model, x = Conv2dBatchNormAct(4, 6, 3), torch.randn(2, 4, 9, 9)
    traced = torch.fx.symbolic_trace(model)
    assert model.norm.num_batches_tracked == 0
    traced(x)
    assert traced.norm.num_batches_tracked == 1
    traced.norm.eval(), model.norm.load_state_dict(traced.norm.state_dict())
    assert torch.equal(traced(x), model.eval()(x))


def test_dropout_is_drawn_at_each_call():
    traced = torch.fx.symbolic_trace(LinearAct(8, 64, dropout=0.5))
    x = torch.randn(4, 8)
    assert not torch.equal(traced(x), traced(x))


def test_functions_refuse_what_stands_for_no_tensor():
    with pytest.raises(TypeError, match="conv2d: input must be a tensor, got"):
        torch_reformer.conv2d("x", F.relu, None)
