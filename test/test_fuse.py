"""fuse(model): what is found in models, and that nothing but the kernels changes."""

import copy

import expecttest
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import torch_reformer
from torch_reformer import fuse


class BasicBlock(nn.Module):
    """ResNet's."""

    def __init__(self, c, k, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k)
        self.conv2, self.bn2 = nn.Conv2d(k, k, 3, 1, 1, bias=False), nn.BatchNorm2d(k)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or c != k:
            self.downsample = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 12, 2))
        self.fc = nn.Linear(12, 5)

    def forward(self, x):
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(self.layers(x).mean((2, 3)))


class SqueezeExcite(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.pool, self.fc1, self.fc2 = nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, 4, 1), nn.Conv2d(4, c, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.fc2(F.silu(self.fc1(self.pool(x)))))


class MobileNet(nn.Module):
    """An inverted residual block of MobileNetV3 and one of EfficientNet."""

    def __init__(self):
        super().__init__()

        def normalised(c, k, size, activation, groups=1):
            conv = nn.Conv2d(c, k, size, padding=size // 2, groups=groups, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(k), *activation)

        self.stem = normalised(3, 6, 3, [nn.Hardswish()])
        self.block = nn.Sequential(
            normalised(6, 12, 1, [nn.Hardswish()]),
            normalised(12, 12, 5, [nn.Hardswish()], 12),
            SqueezeExcite(12),
            normalised(12, 6, 1, []),
        )
        self.second = nn.Sequential(normalised(6, 6, 3, [nn.SiLU()], 6), SqueezeExcite(6), normalised(6, 6, 1, []))

    def forward(self, x):
        x = self.stem(x)
        x = x + self.block(x)
        return self.second(x) + x


class ConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, 2)
        self.depthwise, self.norm = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8)
        self.up, self.act, self.down = nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.register_buffer("offset", torch.ones(8))

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(self.act(self.up(y))) + self.offset
        return x + y.permute(0, 3, 1, 2)


class StochasticDepth(nn.Module):
    """torchvision's, which need not be there."""

    def __init__(self, p, mode):
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x):
        if self.p == 0 or not self.training:
            return x
        size = [x.shape[0]] + [1] * (x.dim() - 1) if self.mode == "row" else [1] * x.dim()
        noise = torch.empty(size, dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
        return x * noise.div_(1 - self.p)


StochasticDepth.__module__ = "torchvision.ops.stochastic_depth"


class Permute(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return torch.permute(x, self.dims)


class CNBlock(nn.Module):
    """torchvision's, of ConvNeXt."""

    def __init__(self, c, p, mode="row"):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(c, c, 7, padding=3, groups=c),
            Permute([0, 2, 3, 1]),
            nn.LayerNorm(c, eps=1e-6),
            nn.Linear(c, 4 * c),
            nn.GELU(),
            nn.Linear(4 * c, c),
            Permute([0, 3, 1, 2]),
        )
        self.layer_scale = nn.Parameter(torch.full((c, 1, 1), 0.5))
        self.stochastic_depth = StochasticDepth(p, mode)

    def forward(self, input):
        result = self.layer_scale * self.block(input)
        result = self.stochastic_depth(result)
        result += input
        return result


def cn_blocks(p=0.5):
    return nn.Sequential(nn.Conv2d(3, 8, 2, 2), CNBlock(8, 0.0), CNBlock(8, p))


class Mixer(nn.Module):
    """A residual block of rows: [N, L, C]."""

    def __init__(self, c=12, p=0.5):
        super().__init__()
        self.up, self.act, self.down, self.dropout = nn.Linear(c, 16), nn.GELU(), nn.Linear(16, c), nn.Dropout(0.0)
        self.gamma, self.drop = nn.Parameter(torch.full((c,), 0.5)), StochasticDepth(p, "row")
        self.last = nn.Linear(c, c)

    def forward(self, x):
        x = x.flatten(1, 2)
        x = x + self.drop(self.dropout(self.down(self.act(self.up(x)))) * self.gamma)
        return self.last(x).add(x)


def vgg(p=0.0):
    return nn.Sequential(
        *[nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(True), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2)],
        *[
            nn.Flatten(),
            nn.Linear(8 * 36, 16),
            nn.ReLU(True),
            nn.Dropout(p),
            nn.Linear(16, 8),
            nn.Tanh(),
            nn.Dropout(p),
        ],
        nn.Linear(8, 4),
    )


MODELS = {
    "ResNet": ResNet,
    "MobileNet": MobileNet,
    "ConvNeXt": ConvNeXt,
    "VGG": vgg,
    "CNBlocks": cn_blocks,
    "Mixer": Mixer,
}


def filled(model):
    """With parameters and statistics that are not those of a new model, in fp64."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and ("bn" in name or "running" in name or tensor.dim() == 1):
            tensor.detach().uniform_(0.5, 1.5, generator=generator)
    return model.double()


def outcome(model, x, *more):
    """The result, all gradients and all buffers; what is random is drawn from one seed."""
    torch.manual_seed(2)
    x = x.detach().requires_grad_()
    model.zero_grad()
    y = model(x, *more)
    y.square().sum().backward()
    return [y.detach(), x.grad], {n: p.grad for n, p in model.named_parameters()}, dict(model.named_buffers())


def images(n=2, size=12):
    return torch.randn(n, 3, size, size, dtype=torch.float64)


def check_errors(exact, theirs, ours):
    """Tensors by name: the same types and sizes as PyTorch's, and errors at most twice its own."""
    for name, right in exact.items():
        assert (ours[name].dtype, ours[name].shape) == (theirs[name].dtype, theirs[name].shape)
        error, allowed = ((each[name] - right).square().mean().sqrt() for each in (ours, theirs))
        assert error <= 2 * allowed, f"{name}: {error:.3g}, PyTorch's {allowed:.3g}"


def same_as_before(model, *inputs, modes=(True, False)):
    """Fuses a copy, and compares it with the model in training and in evaluation; returns it and the report."""
    fused = copy.deepcopy(model)
    report = fuse(fused)
    assert fused.state_dict().keys() == model.state_dict().keys()
    assert [n for n, _ in fused.named_parameters()] == [n for n, _ in model.named_parameters()]
    for training in modes:
        model.train(training), fused.train(training)
        torch.testing.assert_close(outcome(fused, *inputs), outcome(model, *inputs))
    return fused, report


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, channels_last):
    model, x = filled(MODELS[name]()), images()
    if channels_last:
        model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))
    same_as_before(model, x)


def test_reports():
    expecttest.assert_expected_inline(
        "\n".join(str(fuse(MODELS[name]())) for name in MODELS),
        """\
fused 6, left 1
  conv1: batch norm, relu
  layers.0.conv1: batch norm, relu
  layers.0.conv2: batch norm, addition, relu
  layers.1.conv1: batch norm, relu
  layers.1.conv2: batch norm, addition, relu
  layers.1.downsample.0: batch norm
  left fc: nothing follows it that could be fused
fused 10, left 0
  stem.0: batch norm, hardswish
  block.0.0: batch norm, hardswish
  block.1.0: batch norm, hardswish
  block.2.fc1: silu
  block.2.fc2: hardsigmoid
  block.3.0: batch norm, addition
  second.0.0: batch norm, silu
  second.1.fc1: silu
  second.1.fc2: hardsigmoid
  second.2.0: batch norm, addition
fused 2, left 2
  up: layer norm before it, gelu
  down: layer scale
  left stem: nothing follows it that could be fused
  left depthwise: nothing follows it that could be fused
fused 4, left 1
  0: relu
  2: relu
  6: relu, dropout
  9: tanh, dropout
  left 12: nothing follows it that could be fused
fused 4, left 3
  1.block.3: layer norm before it, gelu
  1.block.5: layer scale, stochastic depth, addition
  2.block.3: layer norm before it, gelu
  2.block.5: layer scale, stochastic depth, addition
  left 0: nothing follows it that could be fused
  left 1.block.0: nothing follows it that could be fused
  left 2.block.0: nothing follows it that could be fused
fused 3, left 0
  up: gelu
  down: dropout, layer scale, stochastic depth, addition
  last: addition""",
    )


def test_fused_twice_is_fused_once():
    """And the report says the same again."""
    model = filled(ResNet())
    x = images()
    first = fuse(model)
    expected = outcome(model, x)
    assert fuse(model) == first and len(first.fused) == 6
    torch.testing.assert_close(outcome(model, x)[:2], expected[:2])


def test_a_part_and_then_the_whole():
    """What was fused before is neither run nor frozen by the trace."""
    model = filled(ResNet())
    expected = copy.deepcopy(model)
    fuse(model.layers[1])
    buffers = copy.deepcopy(dict(model.named_buffers()))
    assert "conv1" in fuse(model).fused
    torch.testing.assert_close(dict(model.named_buffers()), buffers, rtol=0, atol=0)
    for training in (True, False):
        torch.testing.assert_close(
            *(outcome(m.train(training), x) for m in (model, expected) for x in [torch.ones(2, 3, 12, 12).double()])
        )


def test_modules_of_this_package_inside():
    """They are fused already: a trace must neither count a batch in them nor fix that they were in training."""
    model = nn.Sequential(
        torch_reformer.nn.Conv2dBatchNormAct(3, 4, 3),
        nn.Conv2d(4, 4, 1),
        nn.ReLU(),
        torch_reformer.nn.Conv2dAct(4, 4, 1),
        nn.Flatten(),
        torch_reformer.nn.LinearAct(400, 3, dropout=0.0),
    ).double()
    fused, report = same_as_before(model, images())
    assert report.fused == {"1": "relu"}


@pytest.mark.parametrize("p", [0.5, 1.0])
def test_dropout(p):
    """Drops in training only, at its rate."""
    model = vgg(p).double()
    evaluated = copy.deepcopy(model).eval()(images(size=12))
    torch.manual_seed(0)
    fuse(model)
    x = images(300)
    inner = nn.Sequential(*model[:9])
    fuse(inner)
    y = inner(x)
    without = nn.Sequential(*model[:8])(x)
    dropped = (y == 0) & (without != 0)
    assert abs(dropped.sum() / (without != 0).sum() - p) < 6 * (p * (1 - p) / (without != 0).sum()) ** 0.5 + 1e-9
    assert not torch.equal(inner(x), y) or p == 1
    assert torch.isfinite(evaluated).all()
    torch.testing.assert_close(inner.eval()(x), without)


def test_gradients_of_a_block_are_added_up_where_they_are_read():
    """The next residual block uses this one's result twice, but no sum of gradients is computed by itself."""

    class Additions(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            self.count += op is torch.ops.aten.add.Tensor and args[0].dim() == 4
            return op(*args, **(kwargs or {}))

    counts = []
    for model in (ResNet(), ResNet()):
        if counts:
            fuse(model)
        result = model(images().float()).sum()
        with Additions() as additions:
            result.backward()
        counts.append(additions.count)
    assert counts == [2, 1]  # the pooled result of the first convolution is not ours


def test_the_same_images_are_dropped():
    """They keep the input, as those of the same seed did before."""
    block, x = CNBlock(8, 0.5).double(), torch.randn(16, 8, 6, 6, dtype=torch.float64)
    fused, report = same_as_before(block, x)
    assert report.fused["block.5"] == "layer scale, stochastic depth, addition"
    dropped = []
    for model in (block.train(), fused.train()):
        torch.manual_seed(4)
        dropped.append((model(x) == x).flatten(1).all(1))
    assert torch.equal(*dropped) and 0 < dropped[0].sum() < 16
    for rate in (0.0, 1.0):  # read at each call
        block.stochastic_depth.p = fused.stochastic_depth.p = rate
        if rate < 1:  # PyTorch's own is 0 / 0
            torch.testing.assert_close(outcome(fused, x), outcome(block, x))


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
def test_a_block_is_as_accurate_as_before(autocast):
    """In bf16: of the result's error and those of the gradients none is more than twice PyTorch's. Two blocks, since
    the next one reads the result in two ways."""
    torch.manual_seed(5)
    exact, x = nn.Sequential(CNBlock(16, 0.5), CNBlock(16, 0.5)).double(), torch.randn(8, 16, 10, 10)
    block = copy.deepcopy(exact).to(torch.float32 if autocast else torch.bfloat16)
    fused = copy.deepcopy(block)
    fuse(fused)
    found = []
    for model, dtype in (
        (exact, torch.float64),
        *[(m, x.dtype if autocast else torch.bfloat16) for m in (block, fused)],
    ):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast and model is not exact):
            (y, of_x), of_parameters, _ = outcome(model, x.to(dtype))
        found.append({"y": y, "x": of_x, **of_parameters})
    check_errors(*found)


class Operators(TorchDispatchMode):
    """Names of the operators that write a tensor of this size."""

    def __init__(self, size):
        super().__init__()
        self.names, self.size = [], size

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        read = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        for each in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(each, torch.Tensor) and sorted(each.shape) == sorted(self.size):
                if each.untyped_storage().data_ptr() not in read:
                    self.names.append(str(op))
        return result


def test_nothing_of_a_block_is_copied_or_added_by_itself():
    """One operator has it all: the permutation, the scale, the depth, the residual."""
    block, x = CNBlock(8, 0.5), torch.randn(4, 8, 6, 7).to(memory_format=torch.channels_last)
    fuse(block.to(memory_format=torch.channels_last))
    with Operators(x.shape) as operators:
        block(x)
    others = [name for name in operators.names if "reformer" not in name]
    assert others == ["aten.native_layer_norm.default"]


def test_nothing_between_blocks_is_copied_or_added_by_itself():
    """Under autocast a block's result, in fp32, is also there in the data type that the next one's convolution reads;
    both gradients are added up where they are read."""
    x, counts = torch.randn(4, 8, 6, 7).to(memory_format=torch.channels_last), []
    for is_fused in (False, True):
        model = nn.Sequential(*[CNBlock(8, 0.0) for _ in range(4)]).to(memory_format=torch.channels_last)
        if is_fused:
            fuse(model)
        with Operators(x.shape) as operators:
            with torch.autocast("cpu", torch.bfloat16):
                y = model(x)
            y.sum().backward()
        counts.append([operators.names.count(f"aten.{name}") for name in ("_to_copy.default", "add.Tensor")])
    assert counts == [[11, 3], [1, 0]]  # the model's own input is cast
