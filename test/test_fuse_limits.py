"""What fuse(model) must not change: each of these forwards does something that a hasty fusion would lose."""

import copy
import random

import expecttest
import pytest
import torch
from test_fuse import BasicBlock, CNBlock, ResNet, StochasticDepth, filled, outcome, same_as_before
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

import torch_reformer
from torch_reformer import fuse


def double(size=(2, 3, 6, 6)):
    return torch.randn(size, dtype=torch.float64)


class Net(nn.Module):
    """Two convolutions of 3 channels with a norm, whose forward a test gives as a function."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.bn, self.relu = nn.BatchNorm2d(3), nn.ReLU()
        self.lin, self.drop = nn.Linear(6, 6), nn.Dropout(0.0)
        for name, module in modules.items():
            setattr(self, name, module)
        self.__class__ = type("Net", (Net,), {"forward": forward})  # a class of its own, as a model has


def plus_itself(self, x):
    y = self.conv(x)
    return torch.relu(y + y)


def plus_number(self, x):
    return torch.relu(self.conv(x) + 2)


def plus_size(self, x):
    return torch.relu(self.conv(x) + x.size(1))


def plus_scaled(self, x):
    return torch.relu(torch.add(self.conv(x), x, alpha=2))


def plus_broadcast(self, x):
    return torch.relu(self.conv(x) + x.mean((2, 3), keepdim=True))


def plus_larger(self, x):
    return F.silu(self.bn(self.conv(x.mean((2, 3), keepdim=True))) + x)


def plus_in_place(self, x):
    y = self.bn(self.conv(x))
    y += x
    return F.relu_(y)


def plus_in_place_broadcast(self, x):
    return self.conv(x).add_(x.mean((2, 3), keepdim=True)).relu_()


def plus_to_an_alias(self, x):
    y = self.other(x)
    z = y.view(y.shape)
    z += self.conv(x)
    return y + z


def plus_to_the_input(self, x):
    y = x * 1
    z = y.flatten(1).view(x.shape)
    z.add_(self.conv(x))
    return y


def input_changed_in_place(self, x):
    x = x * 1
    y = self.conv(x)
    x.mul_(2)
    return torch.relu(self.bn(y) + x)


def changed_through_an_alias(self, x):
    x = self.other(x)
    view = x.view(x.shape)
    y = self.conv(x)
    view.zero_()
    return torch.sigmoid(y) + x


def two_readers(self, x):
    y = self.conv(x)
    return torch.relu(y) + torch.sigmoid(y)


def read_and_returned(self, x):
    y = self.conv(x)
    return torch.cat([y, torch.relu(y)])


def one_norm_twice(self, x):
    """The second update comes before the sum, which the first chain would have waited for."""
    y = self.bn(self.conv(x))
    return torch.relu(y + self.bn(self.other(x)))


def one_convolution_twice(self, x):
    return torch.relu(self.conv(torch.relu(self.conv(x))))


def slope(self, x):
    return F.leaky_relu(self.conv(F.leaky_relu(self.other(x), 0.3)), negative_slope=0.2) + F.leaky_relu(self.conv(x))


def approximated(self, x):
    return F.gelu(self.conv(F.gelu(self.other(x))), approximate="tanh")


def keywords(self, x):
    return self.drop(input=self.relu(self.lin(input=self.relu(input=self.bn(input=self.conv(input=x))))))


def named_add(self, x):
    return self.add(self.conv(x), x)


def unbatched(self, x):
    return torch.relu(self.conv(x[0]) + x[0]).unsqueeze(0)


def several_outputs(self, x):
    y = torch.relu(self.conv(x))
    return torch.stack([y, torch.tanh(self.bn(self.other(y)))])


def permuted_only(self, x):
    return self.lin(x).permute(0, 3, 1, 2)


def permuted_otherwise(self, x):
    return self.lin(x).permute(0, 3, 2, 1) + x.permute(0, 3, 2, 1) + self.lin(x[0, 0, 0]).permute(0)[0]


def scaled_before_it_is_permuted(self, x):
    return torch.add((self.lin(x) * self.gamma).permute((0, 3, 1, 2)), x.permute(0, 3, 1, 2))


def scaled_by_rows(self, x):
    """The parameter has as many elements as there are columns, but is not for them."""
    return self.rows * self.lin(x) + x


def scaled_by_what_is_computed(self, x):
    return self.lin(x) * x.mean((0, 1, 2)) + x


def scaled_by_itself(self, x):
    y = self.lin(x)
    return y * y + x


def scale_of_three_dimensions(self, x):
    return self.gamma.view(1, -1, 1, 1).mul(self.lin(x).permute(0, 3, 1, 2)) + 1


def linear_plus_broadcast(self, x):
    return self.lin(x) * self.gamma + x.mean((1, 2), keepdim=True)


def linear_plus_larger(self, x):
    return self.lin(x[:, :1]) * self.gamma + x


def linear_plus_in_place(self, x):
    y = self.lin(x) * self.gamma
    y += x
    return self.lin(x).add_(y)


def linear_of_a_vector(self, x):
    return self.gamma * self.lin(x[0, 0, 0]) + x[0, 0, 0]


def linear_plus_a_parameter(self, x):
    return self.lin(x) + self.gamma


class Add(nn.Module):
    def forward(self, x, y):
        return x - y


@pytest.mark.parametrize(
    "forward",
    [
        *[plus_itself, plus_number, plus_size, plus_scaled, plus_broadcast, plus_larger, plus_in_place],
        *[plus_in_place_broadcast, plus_to_an_alias, plus_to_the_input, two_readers, read_and_returned, one_norm_twice],
        *[one_convolution_twice, slope, approximated, keywords, named_add, unbatched, several_outputs],
    ],
    ids=lambda forward: forward.__name__,
)
def test_result(forward):
    same_as_before(filled(Net(forward, add=Add())), double())


@pytest.mark.parametrize(
    "forward",
    [
        *[permuted_only, permuted_otherwise, scaled_before_it_is_permuted, scaled_by_rows, scaled_by_what_is_computed],
        *[scaled_by_itself, scale_of_three_dimensions, linear_plus_broadcast, linear_plus_larger, linear_plus_in_place],
        *[linear_of_a_vector, linear_plus_a_parameter],
    ],
    ids=lambda forward: forward.__name__,
)
def test_result_of_linear(forward):
    model = Net(forward)
    model.gamma, model.rows = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6, 1))
    for parameter in model.parameters():  # those that are not used have none
        parameter.grad = None
    same_as_before(filled(model), double((2, 3, 6, 6)))


def test_what_is_fused_into_linear():
    lines = []
    for forward in (permuted_only, permuted_otherwise, scaled_before_it_is_permuted, scaled_by_rows, scaled_by_itself):
        model = Net(forward)
        model.gamma, model.rows = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6, 1))
        lines.append(f"{forward.__name__}: {fuse(model).fused.get('lin')}")
    expecttest.assert_expected_inline(
        "\n".join(lines),
        """\
permuted_only: None
permuted_otherwise: None
scaled_before_it_is_permuted: layer scale
scaled_by_rows: None
scaled_by_itself: None""",
    )


@pytest.mark.parametrize("where", ["block.5", "stochastic_depth"])
def test_blocks_whose_modules_change_later(where):
    """Hooks are called, and modules that are exchanged too."""
    block, x = CNBlock(6, 0.5).double(), double((4, 6, 6, 6))
    fused = copy.deepcopy(block)
    assert "layer scale" in fuse(fused).fused["block.5"]
    for model in (block, fused):
        model.get_submodule(where).register_forward_hook(lambda module, arguments, result: 2 * result)
    torch.testing.assert_close(outcome(fused, x), outcome(block, x))
    for model in (block, fused):
        model.stochastic_depth = nn.AvgPool2d(3, 1, 1)
        model.layer_scale = nn.Parameter(torch.ones(1, 6, 6).double())
    torch.testing.assert_close(outcome(fused, x), outcome(block, x))


@pytest.mark.parametrize("size", [(0, 5, 7, 6), (3, 0, 7, 6)], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_tails_of_nothing(size, autocast):
    """There are no images, or images without pixels."""

    def tail(self, x, y):
        return self.drop(self.scale * self.lin(x).permute(0, 3, 1, 2)) + y

    model = Net(tail, drop=StochasticDepth(0.5, "row"))
    model.scale = nn.Parameter(torch.ones(6, 1, 1))
    fused = copy.deepcopy(model)
    assert fuse(fused).fused == {"lin": "layer scale, stochastic depth, addition"}
    x = torch.randn(size)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y, expected = (each(x, x.permute(0, 3, 1, 2)) for each in (fused, model))
    assert y.shape == expected.shape and y.dtype == expected.dtype


def test_stochastic_depth_of_batches_is_left():
    block = CNBlock(6, 0.5, "batch")
    _, report = same_as_before(block.double(), double((4, 6, 6, 6)))
    assert report.fused["block.5"] == "layer scale"


def test_stochastic_depth_with_hooks_is_left():
    block = CNBlock(6, 0.5)
    block.stochastic_depth.register_forward_hook(lambda *_: None)
    assert fuse(block).fused["block.5"] == "layer scale"


@pytest.mark.parametrize("scale", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("in_place", [False, True], ids=["", "in place"])
def test_data_types_of_a_tail(in_place, residual, scale):
    """Those of PyTorch's type promotion; of small integers every sum is exact."""

    def tail(self, x, y):
        z = self.drop(self.scale * self.lin(x).permute(0, 3, 1, 2))
        if in_place:
            z += y
            return z
        return y + z

    model = Net(tail, drop=StochasticDepth(0.5, "row"))
    for parameter in model.parameters():
        parameter.detach().copy_(torch.randint(-2, 3, parameter.shape))
    model = model.bfloat16()
    model.scale = nn.Parameter(torch.randint(-2, 3, (6, 1, 1)).to(scale))
    x, y = torch.randint(-3, 4, (4, 5, 5, 6)).bfloat16(), torch.randint(-3, 4, (4, 6, 5, 5)).to(residual)
    x.requires_grad_(), y.requires_grad_()
    fused = copy.deepcopy(model)
    fuse(fused)
    found = []
    for each in (model, fused):
        torch.manual_seed(1)
        result = each(x, y)
        gradient = torch.ones_like(result)
        found.append([result, *torch.autograd.grad(result, (x, y, each.scale, each.lin.weight), gradient)])
    for theirs, ours in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


@pytest.mark.parametrize("forward", [input_changed_in_place, changed_through_an_alias], ids=lambda f: f.__name__)
def test_tensors_changed_in_place(forward):
    """Without gradients, for which PyTorch would refuse it."""
    model, x = filled(Net(forward)).eval(), double()
    fused = copy.deepcopy(model)
    fuse(fused)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x))


def asks(self, x):
    return F.dropout(torch.relu(self.conv(x)), 0.5, self.training)


def asks_elsewhere(self, x):
    return self.helper(x)


def _helper(self, x):
    return torch.relu(self.conv(x)) if self.training else self.conv(x)


def optional(self, x, scale=None):
    return torch.relu(self.conv(x)) if scale is None else scale * self.conv(x)


def untraceable(self, x):
    return torch.relu(self.conv(x)) if x.sum() > 0 else self.conv(x)


def remembers(self, x):
    self.last = torch.relu(self.conv(x))
    return self.last


def frozen(self, x):
    with torch.no_grad():
        x = torch.relu(self.conv(x))
    return torch.relu(self.other(x))


@torch.no_grad()
def decorated(self, x):
    return torch.relu(self.conv(x))


def precise(self, x):
    with torch.autocast("cpu", enabled=False):
        return torch.relu(self.conv(x))


def noisy(self, x):
    return torch.relu(self.conv(x)) + torch.randn(1)


def skips(self, x):
    return torch.relu(self.conv(x)) if random.random() < 0.5 else x


def types(self, x):
    return torch.relu(self.conv(x if isinstance(x, torch.Tensor) else x[0]))


def checkpointed(self, x):
    return torch.utils.checkpoint.checkpoint(self.bn, torch.relu(self.conv(x)), use_reentrant=False)


LEFT = [asks, asks_elsewhere, optional, untraceable, remembers, frozen, decorated, precise, noisy, skips, types]


def test_forwards_that_a_trace_would_change():
    _helper.__module__ = __name__
    lines = []
    for forward in [*LEFT, checkpointed]:
        model = Net(forward)
        type(model).helper = _helper
        before = set(vars(model))
        report = fuse(model)
        assert not report.fused and set(vars(model)) == before, forward.__name__
        reason, looked = report.left["(the model itself)"].split("; ")
        assert looked == "what is inside it was looked at"
        lines.append(f"{forward.__name__}: {reason}")
    expecttest.assert_expected_inline(
        "\n".join(lines),
        """\
asks: its forward asks whether it is in training
asks_elsewhere: its forward asks whether it is in training
optional: its forward has an argument that may be left out (scale)
untraceable: its forward could not be traced: symbolically traced variables cannot be used as inputs to control flow
remembers: its forward sets attributes
frozen: its forward could not be traced: it switches gradients or autocast on or off
decorated: its forward is decorated
precise: its forward switches autocast on or off
noisy: its forward could not be traced: it makes tensors of its own (aten.randn.default)
skips: its forward draws random numbers
types: its forward asks for types
checkpointed: its forward uses checkpointing""",
    )


def test_inside_of_such_a_forward():
    """The model asks whether it is in training; its blocks do not."""

    def forward(self, x):
        return self.block(x) if self.training else self.block(x) * 2

    model = filled(Net(forward, block=BasicBlock(3, 3, 1)))
    _, report = same_as_before(model, double())
    assert report.fused == {"block.conv1": "batch norm, relu", "block.conv2": "batch norm, addition, relu"}


class Counts(nn.Module):
    """Changes a buffer, and has a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.scale = torch.tensor(2.0, dtype=torch.float64)

    def forward(self, x):
        y = torch.relu(self.conv(x)) * self.scale
        self.mean.mul_(0.9).add_(y.detach().mean())
        return y + self.mean


def test_buffers_are_changed_by_calls_only():
    _, report = same_as_before(Counts().double(), double())
    assert report.fused == {"conv": "relu"}


class Doubled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


def test_convolutions_that_are_left():
    modules = dict(
        own=Doubled(3, 3, 1),
        weight_norm=parametrizations.weight_norm(nn.Conv2d(3, 3, 1)),
        lazy=nn.LazyConv2d(3, 1),
        circular=nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular"),
        same=nn.Conv2d(3, 3, 3, padding="same"),
        hooked=nn.Conv2d(3, 3, 1),
        transposed=nn.ConvTranspose2d(3, 3, 1),
        followed=nn.Conv2d(3, 3, 1),
    )
    modules["hooked"].register_forward_hook(lambda *_: None)
    model = nn.Sequential()
    for name, module in modules.items():
        model.add_module(name, module)
        model.add_module(f"{name}_relu", nn.ReLU())
    model.followed_relu.register_forward_hook(lambda *_: None)
    report = fuse(model)
    expecttest.assert_expected_inline(
        str(report),
        """\
fused 0, left 7
  left own: it is a Doubled, whose own behaviour would be lost
  left weight_norm: it is a ParametrizedConv2d, whose own behaviour would be lost
  left lazy: it is a LazyConv2d, whose own behaviour would be lost
  left circular: its padding mode is 'circular'
  left same: its padding is 'same'
  left hooked: it has hooks, which would not be called
  left followed: nothing follows it that could be fused""",
    )
    x = torch.randn(2, 3, 6, 6)
    assert model(x).shape == x.shape and type(model.own) is Doubled


@pytest.mark.parametrize("where", ["conv1", "bn1", "relu", "layers", "layers.0", "layers.0.relu"])
def test_hooks_are_called(where):
    """As often as before, wherever they are."""
    model = filled(ResNet())
    counts = []
    for fused in (False, True):
        calls = []
        handle = model.get_submodule(where).register_forward_hook(lambda *_, calls=calls: calls.append(0))
        if fused:
            assert fuse(model).fused
        model(double((2, 3, 12, 12)))
        counts.append(len(calls))
        handle.remove()
    assert counts[0] == counts[1] > 0


def test_hooks_of_later():
    """Those of the convolution, the norm or the linear layer are called, and what they return counts."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4), nn.Tanh())
    fuse(model.eval())
    x = torch.randn(2, 3, 6, 6)
    before = model(x)
    for i in (0, 1, 4):
        handle = model[i].register_forward_hook(lambda module, arguments, result: 2 * result)
        after = model(x)
        assert not torch.allclose(after, before, rtol=1e-3)
        handle.remove()
        torch.testing.assert_close(model(x), before)


def test_modules_exchanged_later():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    fuse(model)
    x = torch.randn(2, 3, 6, 6)
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    model.eval()
    expected = torch.relu(model[1](F.conv2d(x, model[0].weight_orig * model[0].weight_mask, model[0].bias)))
    torch.testing.assert_close(model(x), expected)
    model[1] = nn.Identity()
    torch.testing.assert_close(model(x), torch.relu(model[0](x)))
    model[0] = parametrizations.weight_norm(nn.Conv2d(3, 4, 1))
    torch.testing.assert_close(model(x), torch.relu(model[0](x)))


def test_batch_norm_of_all_processes_is_left(monkeypatch):
    model = nn.SyncBatchNorm.convert_sync_batchnorm(ResNet())
    report = fuse(model)
    assert "conv1" not in report.fused and report.left["bn1"] == "its statistics are of all processes"
    model = ResNet()
    fuse(model)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # noticed later too
    calls = []
    monkeypatch.setattr(nn.SyncBatchNorm, "forward", lambda self, x: calls.append(self) or x)
    model(torch.randn(2, 3, 12, 12))
    assert len(calls) == 6


def test_frozen_batch_norm():
    """In evaluation while the model trains."""
    model = filled(ResNet())
    model.bn1.eval()
    fused = copy.deepcopy(model)
    fuse(fused)
    x = double((2, 3, 12, 12))
    torch.testing.assert_close(outcome(fused, x), outcome(model, x))
    assert fused.bn1.num_batches_tracked == 0 and fused.layers[0].bn1.num_batches_tracked == 1


def test_cumulative_batch_norm_in_a_model():
    model = filled(ResNet())
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    same_as_before(model, double((4, 3, 12, 12)), modes=(False, True, True, False))


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)], ids=str)
@pytest.mark.parametrize("in_place", [False, True], ids=["", "in place"])
def test_sum_of_two_data_types(in_place, dtypes):
    def added(self, x, y):
        return torch.relu(self.conv(x) + y)

    def added_in_place(self, x, y):
        z = self.conv(x)
        z += y
        return torch.relu(z)

    model = Net(added_in_place if in_place else added).to(dtypes[0])
    for parameter in model.parameters():  # of integers every sum is exact
        parameter.detach().copy_(torch.randint(-2, 3, parameter.shape))
    x, y = (torch.randint(-3, 4, (2, 3, 6, 6)).to(dtype) for dtype in dtypes)
    expected = model(x, y)
    assert fuse(model).fused["conv"] == "addition, relu"
    result = model(x, y)
    assert result.dtype == expected.dtype and torch.equal(result, expected)


def test_an_only_convolution_and_an_empty_model():
    conv, linear = nn.Conv2d(3, 4, 1), nn.Linear(3, 4)
    assert str(fuse(conv)) == "fused 0, left 1\n  left (the model itself): nothing is known of what follows it"
    assert type(conv) is torch_reformer.nn.Conv2d
    assert fuse(linear).left and str(fuse(nn.Sequential())) == "fused 0, left 0"


@pytest.mark.parametrize("other", [nn.Identity(), nn.Sequential(nn.Linear(8, 8))], ids=["Identity", "Sequential"])
def test_a_linear_layer_that_is_exchanged_later(other):
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4), nn.ReLU())
    fuse(model)
    model[0] = other
    x = torch.randn(2, 8)
    expected = F.relu(model[2](F.gelu(other(x))))
    torch.testing.assert_close(model(x), expected)


def test_batch_norm_of_two_convolutions_keeps_its_order():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.norm = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x):
            a = self.first(x)
            b = self.norm(self.second(x))
            return torch.relu(self.norm(a)) + b

    model = Shared().double()
    fused = copy.deepcopy(model)
    fuse(fused)
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(fused(x), model(x))
    torch.testing.assert_close(fused.norm.running_mean, model.norm.running_mean)
    torch.testing.assert_close(fused.norm.running_var, model.norm.running_var)
