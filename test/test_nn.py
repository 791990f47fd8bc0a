"""nn.Conv2d and convert change only the kernels."""

import copy
import pickle

import expecttest
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import torch_reformer
from torch_reformer import convert


def twins(*arguments, **keywords):
    """PyTorch's module and this package's, with equal parameters."""
    theirs = nn.Conv2d(*arguments, **keywords)
    ours = torch_reformer.nn.Conv2d(*arguments, **keywords)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [0, 1, (2, 1), "same", "valid"])
def test_drop_in(padding, mode, unbatched):
    theirs, ours = twins(
        4, 6, (3, 2), padding=padding, padding_mode=mode, dilation=(1, 2), groups=2, dtype=torch.float64
    )
    x = torch.randn(*([] if unbatched else [2]), 4, 7, 8, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert repr(ours) == f"torch_reformer.{theirs}"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies(copied):
    _, ours = twins(3, 4, 3, bias=False)
    again = copied(ours)
    x = torch.randn(1, 3, 5, 5)
    assert type(again) is torch_reformer.nn.Conv2d
    assert torch.equal(again(x), ours(x))


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=8, bias=False),
        nn.Conv2d(16, 8, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_converted_network_trains_the_same(channels_last):
    images, labels = torch.randn(16, 1, 10, 9), torch.arange(16) % 4
    losses = []
    for converted in (False, True):
        model = small_network()
        if converted:
            assert convert(model, channels_last=channels_last).converted == ["0", "3", "4"]
            assert not channels_last or model[0].weight.is_contiguous(memory_format=torch.channels_last)
        optimizer, history = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), []
        for _ in range(8):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            history.append(loss.item())
        losses.append(history)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_conversion_is_in_place():
    model = small_network()
    model.train(False)
    parameters, state = list(map(id, model.parameters())), model.state_dict()
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append("hook"))
    model[0].note = "stays"
    convert(model)
    assert list(map(id, model.parameters())) == parameters
    assert model.state_dict().keys() == state.keys()
    assert model[0].note == "stays" and not model[0].training
    model(torch.randn(2, 1, 8, 8))
    assert seen == ["hook"]
    assert convert(model).converted == []  # nothing is left to convert


def test_a_convolution_by_itself():
    conv = nn.Conv2d(3, 4, 3)
    assert str(convert(conv)) == "converted 1 Conv2d, left 0"
    assert type(conv) is torch_reformer.nn.Conv2d


def test_shared_modules_stay_shared():
    shared = nn.Conv2d(4, 4, 3, padding=1)
    model = nn.ModuleDict({"first": shared, "second": shared})
    assert convert(model).converted == ["first"]
    assert type(model["second"]) is torch_reformer.nn.Conv2d and model["first"] is model["second"]


class Doubled(nn.Conv2d):
    def forward(self, input):
        return 2 * super().forward(input)


def test_report_of_what_was_left():
    model = nn.ModuleDict(
        {
            "plain": nn.Conv2d(3, 4, 3),
            "own": Doubled(3, 4, 3),
            "lazy": nn.LazyConv2d(4, 3),
            "complex": nn.Conv2d(3, 4, 3, dtype=torch.complex64),
            "transposed": nn.ConvTranspose2d(3, 4, 3),
            "weight_norm": parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
        }
    )
    report = convert(model)
    expecttest.assert_expected_inline(
        str(report),
        """\
converted 1 Conv2d, left 4
  left own: it is a Doubled, whose own behaviour would be lost
  left lazy: it is a LazyConv2d, whose own behaviour would be lost
  left complex: its data type torch.complex64 is not supported
  left weight_norm: it is a ParametrizedConv2d, whose own behaviour would be lost""",
    )
    assert type(model["own"]) is Doubled


def test_lazy_modules_are_converted_once_they_know_their_size():
    lazy = nn.LazyConv2d(4, 3)
    assert convert(lazy).converted == []
    x = torch.randn(1, 3, 5, 5)
    expected = lazy(x)
    assert convert(lazy).converted
    torch.testing.assert_close(lazy(x), expected)


@pytest.mark.parametrize(
    "parametrize", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]
)
def test_parametrizations_of_a_converted_module(parametrize):
    theirs, ours = twins(3, 4, 3)
    torch.manual_seed(0)
    parametrize(theirs)
    torch.manual_seed(0)
    parametrize(ours)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("old_style", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_hooks_that_compute_the_weight(old_style):
    """The older utilities recompute `weight` in a hook before each call; they also work on converted modules."""
    theirs = old_style(nn.Conv2d(3, 4, 3)).eval()
    x = torch.randn(2, 3, 6, 6)
    expected = theirs(x)
    convert(theirs)
    assert type(theirs) is torch_reformer.nn.Conv2d
    torch.testing.assert_close(theirs(x), expected)


def test_pruned_modules():
    conv = nn.Conv2d(3, 4, 3)
    prune.l1_unstructured(conv, "weight", amount=0.5)
    x = torch.randn(2, 3, 6, 6)
    expected = conv(x)
    convert(conv)
    torch.testing.assert_close(conv(x), expected)
    conv(x).sum().backward()
    assert (conv.weight_orig.grad[conv.weight_mask == 0] == 0).all()


def test_frozen_weights_get_no_gradient():
    conv = torch_reformer.nn.Conv2d(3, 4, 3)
    conv.weight.requires_grad_(False)
    x = torch.randn(1, 3, 5, 5, requires_grad=True)
    conv(x).sum().backward()
    assert conv.weight.grad is None and conv.bias.grad is not None and x.grad is not None
