"""Concatenations that continue each other share memory."""

import pytest
import torch
from marks import needs_aten
from torch import nn

pytestmark = needs_aten


class Block(nn.Module):
    """A dense block, after which all features are scaled. nested: each layer concatenates the last concatenation and
    its own features; else all features. reads: how a layer reads the concatenation."""

    def __init__(self, layers=4, nested=False, channels=8, growth=4, reads="norm"):
        super().__init__()
        self.nested, self.reads, widths = nested, reads, [channels + i * growth for i in range(layers)]
        self.norms = nn.ModuleList(map(nn.BatchNorm2d, widths))
        self.convs = nn.ModuleList(nn.Conv2d(width, growth, 3, padding=1) for width in widths)
        self.scale = nn.Parameter(torch.ones(channels + layers * growth, 1, 1))

    def forward(self, x):
        features, whole = [x], x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            read = whole if self.nested else torch.cat(features, 1)
            new = conv(norm(read).relu() if self.reads == "norm" else read)
            features.append(new)
            whole = torch.cat([whole, new], 1) if self.nested else whole
        whole = whole if self.nested else torch.cat(features, 1)
        return (whole * self.scale).tanh()


def lines_of(report) -> list[str]:
    return [name for line in report.lines for name in (line.kind, *line.operations)]


def step(function, model, x, backward=True):
    x = x.detach().requires_grad_(backward)
    out = function(x)
    if not backward:
        return [out]
    return [out, *torch.autograd.grad(out.square().sum(), [x, *model.parameters()]), *model.buffers()]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_dense_blocks(nested, memory_format, backward):
    """Planes of channels are concatenated by copies. There are enough norms for their statistics to be packed, too."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    models = [Block(nested=nested, layers=9).double() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(2, 8, 6, 5, dtype=torch.float64).to(memory_format=memory_format)
    x[0, 0, 0, 0] = -0.0
    reports = []
    compiled = torch.compile(models[1], backend="reformer", options={"report": reports.append})
    with torch.set_grad_enabled(backward):
        expected, found = step(models[0], models[0], x, backward), step(compiled, models[1], x, backward)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    assert found[0].stride() == expected[0].stride()
    forward = lines_of(reports[0])
    appends = (9 if nested else 10) if memory_format is torch.channels_last else 0
    assert forward.count("reformer::_append") == appends


def test_one_tensor_is_saved():
    """And the backward reads its slices."""
    torch._dynamo.reset()
    model = Block(layers=6)
    saved = []

    def noted(tensor):
        saved.append(tuple(tensor.shape))
        return tensor

    x = torch.randn(2, 8, 6, 5).to(memory_format=torch.channels_last).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor):
        torch.compile(model, backend="reformer")(x)
    widths = [8 + 4 * i for i in range(7)]
    assert [shape for shape in saved if len(shape) == 4 and shape[1] in widths].count((2, 32, 6, 5)) == 1


def test_twice():
    """A backward may run again."""
    torch._dynamo.reset()
    model = Block()
    x = torch.randn(2, 8, 6, 5).to(memory_format=torch.channels_last)
    out = torch.compile(model, backend="reformer")(x).sum()
    first, second = (torch.autograd.grad(out, model.parameters(), retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def of_convolutions(x, y, z, weight):
    """A convolution's kernel would have to read slices with gaps."""
    first = torch.cat([x, y], 1)
    return torch.cat([x, y, z], 1).sin(), nn.functional.conv2d(first, weight)


def given_to_the_caller(x, y, z, weight):
    first = torch.cat([x, y], 1)
    return first, torch.cat([first, z], 1).exp()


def of_another_dimension(x, y, z, weight):
    return torch.cat([x, y], 2).sin(), torch.cat([x, y, z], 1).cos()


def of_other_types(x, y, z, weight):
    return torch.cat([x, y], 1).sin(), torch.cat([x, y, z.double()], 1).cos()


@pytest.mark.parametrize("function", [of_convolutions, given_to_the_caller, of_another_dimension, of_other_types])
def test_concatenations_apart(function):
    check(function, appends=0)


def branches(x, y, z, weight):
    """Two continue the same one; one of them shares its memory."""
    first = torch.cat([x, y], 1)
    return first.sin(), torch.cat([first, z], 1).exp(), torch.cat([first, x], 1).cos()


def changed_between(x, y, z, weight):
    first = torch.cat([x, y], 1)
    kept = first.exp()
    first.mul_(2)
    return kept, torch.cat([first, z], 1).sin()


def parts_twice(x, y, z, weight):
    return torch.cat([x, x], 1).sin(), torch.cat([x, x, z, z], 1).cos()


def in_rows(x, y, z, weight):
    return torch.cat([x, y]).sin().sum(0), torch.cat([x, y, z]).amax(0)


def of_last_dimensions(x, y, z, weight):
    x, y, z = (each.flatten(2) for each in (x, y, z))
    first = torch.cat([x, y], -1)
    return torch.cat([first, z], -1) * 2, (first - first.mean(-1, keepdim=True)).square().sum(-1)


def of_no_elements(x, y, z, weight):
    nothing = y[:0]
    return torch.cat([x, nothing]).sin(), torch.cat([x, nothing, z]).exp()


def computed_at_once(x, y, z, weight):
    """One kernel could compute all parts."""
    a, b, c = x * 2, x.sin(), x + z
    return torch.cat([a, b], 1).sum((0, 2, 3)), torch.cat([a, b, c], 1) * weight.sum(), b * 3


@pytest.mark.parametrize(
    ("function", "appends"),
    [(branches, 2), (changed_between, 0), (parts_twice, 2), (in_rows, 2), (of_last_dimensions, 2), (of_no_elements, 2)]
    + [(computed_at_once, 2)],
)
def test_slices_of_concatenations(function, appends):
    check(function, appends)


def check(function, appends):
    torch._dynamo.reset()
    torch.manual_seed(0)
    tensors = [torch.randn(2, 4, 6, 5).to(memory_format=torch.channels_last) for _ in range(3)]
    tensors.append(torch.randn(3, 8, 1, 1))
    tensors[0][0, 0, 0, :2] = torch.tensor([torch.inf, torch.nan])
    reports = []
    found = torch.compile(function, backend="reformer", options={"report": reports.append})(*tensors)
    for one, other in zip(found, function(*tensors), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
        assert one.stride() == other.stride()
    names = [name for report in reports for line in report.unfused for name in (line.kind, *line.operations)]
    assert names.count("reformer::_append") == appends


class Flattened(nn.Module):
    """The backward reads a concatenation by other dimensions, as rows of a matrix."""

    def forward(self, x, y, z):
        first = torch.cat([x, y], 1)
        return (first.exp() * 2).sum() + torch.cat([x, y, z], 1).flatten(1).square().sum() + first.sin().sum()


def test_other_dimensions_in_the_backward():
    torch._dynamo.reset()
    tensors = [torch.randn(3, 4, 5, requires_grad=True) for _ in range(3)]
    found, expected = (
        torch.autograd.grad(function(*tensors), tensors)
        for function in (torch.compile(Flattened(), backend="reformer"), Flattened())
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("budget", [0.3, 0.6])
def test_memory_budgets(budget):
    torch._dynamo.reset()
    x = torch.randn(2, 8, 6, 5, dtype=torch.float64).to(memory_format=torch.channels_last)
    model = Block(layers=5).double()
    compiled = torch.compile(model, backend="reformer", options={"memory_budget": budget})
    model.norms.eval()  # so that no statistics change between
    expected, found = step(model, model, x), step(compiled, model, x)
    torch.testing.assert_close(found, expected)


def crossed(x, y, z, weight):
    """Concatenations that are later parts of others, and of themselves."""
    one = torch.cat([x, y], 1)
    two = torch.cat([one, x], 1)
    other = torch.cat([y, one], 1)
    last = torch.cat([y, one, two, one], 1)
    rows = torch.cat([two, two * 2])
    return one.sin(), two.cos(), other.exp(), last.tanh(), torch.cat([rows, two]).sin(), torch.cat([one, one], 1) * 3


def test_parts_that_are_slices_themselves():
    check(crossed, appends=6)
    torch._dynamo.reset()
    tensors = [torch.randn(2, 4, 6, 5).to(memory_format=torch.channels_last).requires_grad_() for _ in range(3)]
    found, expected = (
        torch.autograd.grad(sum(map(torch.sum, function(*tensors, None))), tensors[:2])
        for function in (torch.compile(crossed, backend="reformer"), crossed)
    )
    torch.testing.assert_close(found, expected)


def test_only_a_short_one_is_saved():
    """The backward does not get the memory of all, which is larger."""
    torch._dynamo.reset()
    saved = []

    def noted(tensor):
        saved.append(tensor.shape)
        return tensor

    def function(x, y):
        first = torch.cat([x, y])
        return (first * first).sum() + torch.cat([x, y, *[y.detach() * i for i in range(8)]]).sum()

    x, y = (torch.randn(16, 8, requires_grad=True) for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(noted, lambda each: each):
        torch.compile(function, backend="reformer")(x, y)
    assert all(len(shape) < 2 or shape[0] <= 32 for shape in saved)
