"""Models that change after fuse(), and forwards that may do other things at each call: nothing of it is ignored."""

import copy
import random
import time
import types
import warnings

import expecttest
import pytest
import torch
from test_fuse import Permute, filled, images, outcome
from test_fuse_limits import Net
from test_fuse_training import through_a_file
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from torch_reformer import fuse

HELD, OTHER = "settings than when fuse", nn.Conv2d(3, 3, 1).double()


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """Reads settings of all kinds."""

    def __init__(self):
        super().__init__()
        self.conv, self.act, self.dims, self.scale = nn.Conv2d(3, 3, 1), nn.LeakyReLU(), [0, 2, 3, 1], 2.0
        self.last, self.layers, self.function = None, nn.ModuleList([nn.Identity()]), F.relu
        self.type = "plain"  # as a method of all modules
        self.register_parameter("gain", None)

    @property
    def half(self):
        return self.scale / 2

    def helper(self, x):
        return x * self.half

    def forward(self, x):
        x = self.helper(self.act(self.conv(x))).permute(self.dims)
        x = self.function(x) if self.gain is None else x * self.gain
        for layer in self.layers:
            x = layer(x)
        x = x if self.type == "plain" else x.sin()
        return x.permute(0, 3, 1, 2) if self.last is None else self.last(x)


def model():
    torch.manual_seed(3)
    return filled(
        nn.Sequential(
            nn.Conv2d(3, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sigmoid()),
            Block(),
            nn.Linear(12, 12),
            nn.GELU(),
            nn.Dropout(0.0),
        )
    )


def doubled(module, arguments, result):
    return 2 * result


def own_forward(name, what="forward"):
    def change(model):
        module = model.get_submodule(name)
        setattr(module, what, lambda x, *_: x.sin())

    return change


def setting(name, attribute, value):
    return lambda model: setattr(model.get_submodule(name), attribute, value)


CHANGES = {
    "another module": lambda model: model.__setitem__(2, nn.Sigmoid()),
    "another module inside": lambda model: model[3].__setitem__(1, nn.Tanh()),
    "another convolution": lambda model: model.__setitem__(0, copy.deepcopy(OTHER)),
    "no module": lambda model: model.__delitem__(2),
    "one more": lambda model: model.append(nn.AvgPool2d(2)),
    "one more inside": lambda model: model[3].append(nn.Tanh()),
    "one more of a list": lambda model: model[4].layers.append(nn.Tanh()),
    "a module for None": setting("4", "last", Permute([0, 3, 2, 1])),
    "a parameter for None": setting("4", "gain", nn.Parameter(torch.ones((), dtype=torch.float64))),
    "weight norm": lambda model: parametrizations.weight_norm(model[0]),
    **{f"a hook of {i}": lambda model, i=i: model[i].register_forward_hook(doubled) for i in (0, 1, 2, 3, 4, 5, 6, 7)},
    "a hook before": lambda model: model[2].register_forward_pre_hook(lambda module, x: (x[0] + 1,)),
    "a hook of gradients": lambda model: model[2].register_full_backward_hook(lambda module, x, y: (2 * x[0],)),
    **{f"forward of {i}": own_forward(str(i)) for i in (0, 1, 2, 3, 4, 5, 6, 7)},
    "_conv_forward": own_forward("0", "_conv_forward"),
    "a method": own_forward("4", "helper"),
    "padding mode": setting("0", "padding_mode", "reflect"),
    "padding": setting("0", "padding", "same"),
    "slope": setting("4.act", "negative_slope", 0.5),
    "approximation": setting("6", "approximate", "tanh"),
    "a word": setting("4", "type", "other"),
    "a number": setting("4", "scale", 3.0),
    "a tensor": setting("4", "scale", torch.full((12,), 3.0, dtype=torch.float64)),
    "a function": setting("4", "function", torch.sigmoid),
    "a list": lambda model: model[4].dims.__setitem__(slice(1, 3), [3, 2]),
}


def same(found, expected):
    x = images()
    torch.testing.assert_close(outcome(found, x)[:2], outcome(expected, x)[:2])


@pytest.mark.parametrize("name", CHANGES)
def test_changes(name):
    """They are noticed, by copies too, and fuse() fuses the model as it is then."""
    fused, expected = model(), model()
    fuse(fused)
    same(fused, expected)
    copied, loaded = copy.deepcopy(fused), through_a_file(fused) if "own" not in name else copy.deepcopy(fused)
    CHANGES[name](expected)
    for each in (fused, copied):
        CHANGES[name](each)
        with pytest.warns(UserWarning, match=HELD):
            same(each, expected)
    CHANGES[name](loaded)  # it is traced at its first call
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(loaded, expected)
        assert fuse(fused).fused
        same(fused, expected)


@pytest.mark.parametrize("name", CHANGES)
def test_changes_before(name):
    fused, expected = model(), model()
    CHANGES[name](fused), CHANGES[name](expected)
    assert fuse(fused).fused
    same(fused, expected)


def test_a_forward_that_calls_and_reads_nothing_else():
    """A layer norm that is a function, before a convolution that is called."""

    def forward(self, x):
        return self.conv(F.layer_norm(x.permute(0, 2, 3, 1), (3,)).permute(0, 3, 1, 2))

    fused, expected, x = Net(forward), Net(forward), torch.randn(2, 3, 6, 6)
    fused.load_state_dict(expected.state_dict())
    assert fuse(fused).fused == {"conv": "layer norm before it"}
    torch.testing.assert_close(fused(x), expected(x))


def test_a_change_that_is_taken_back():
    """While there is a hook, the model's own forward is called; then the fused one again."""
    fused, names = model(), []
    fuse(fused)
    handle = fused[2].register_forward_hook(lambda *_: names.append("hook"))
    for expected in (["hook"], []):
        names.clear()
        with torch.profiler.profile() as profile:
            fused(images())
        assert names == expected
        names = [event.key for event in profile.key_averages()]
        assert ("aten::batch_norm" in names) == bool(expected)
        names.clear()
        handle.remove()


def test_changes_that_a_fused_forward_sees_itself():
    """Parameters, settings that are read at each call, modes, data types, and what no forward reads."""
    fused, expected = model(), model()
    fuse(fused)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in (fused, expected):
            each.step, each[4].note, each[1].momentum, each[7].p = 3, {}, 0.5, 0.0
            each[0].weight = nn.Parameter(torch.ones_like(each[0].weight))
            each[0].stride = (1, 1)
        same(fused, expected)
        same(fused.eval(), expected.eval())
        assert fused.float()(images().float()).dtype == torch.float32


@pytest.mark.parametrize("name", ["another module", "another module inside", "no module", "one more", "a number"])
def test_changes_of_a_compiled_model(name):
    fused, expected = model(), model()
    fuse(fused)
    compiled = torch.compile(fused, backend="eager", fullgraph=True)
    x = images()
    compiled(x), expected(x)
    CHANGES[name](fused), CHANGES[name](expected)
    torch.testing.assert_close(compiled(x), expected(x))


SLOPE, CONFIG, clock, draw = 0.5, types.SimpleNamespace(slope=0.5), time.time, random.Random(0).uniform


def of_a_global(self, x):
    return torch.relu(self.conv(x)) * SLOPE


def of_a_globals_attribute(self, x):
    return torch.relu(self.conv(x)) * CONFIG.slope


def of_a_clock(self, x):
    return torch.relu(self.conv(x)) * clock()


def of_a_clock_by_its_module(self, x):
    return torch.relu(self.conv(x)) * time.time()


def of_numbers_drawn(self, x):
    return torch.relu(self.conv(x)) * draw(0, 1)


def of_another_function(self, x):
    return _scaled(torch.relu(self.conv(x)))


def _scaled(x):
    return x * SLOPE


def of_an_object(self, x):
    return torch.relu(self.conv(x)) * self.config.slope


def of_its_class(self, x):
    return torch.relu(self.conv(x)) * self.class_slope


def of_an_import(self, x):
    from test_fuse_guard import SLOPE

    return torch.relu(self.conv(x)) * SLOPE


def of_a_property(self, x):
    return torch.relu(self.conv(x)) * self.level


def of_a_function_of_its_own(self, x):
    return self.function(torch.relu(self.conv(x)))


def of_where_it_is_written():
    slope = 0.5

    def forward(self, x):
        return torch.relu(self.conv(x)) * slope

    return forward


FORWARDS = [of_a_global, of_a_globals_attribute, of_a_clock, of_a_clock_by_its_module, of_numbers_drawn]
FORWARDS += [of_another_function, of_an_object, of_its_class, of_an_import, of_a_property, of_a_function_of_its_own]


def test_forwards_that_read_what_may_change():
    lines = []
    for forward in [*FORWARDS, of_where_it_is_written()]:
        net = Net(forward)
        net.config, net.function, type(net).class_slope = CONFIG, _scaled, 0.5
        type(net).level = property(lambda self: SLOPE)
        report = fuse(net)
        assert not report.fused
        lines.append(f"{forward.__name__}: {report.left['(the model itself)'].split(';')[0]}")
    expecttest.assert_expected_inline(
        "\n".join(lines),
        """\
of_a_global: its forward reads SLOPE, a global float
of_a_globals_attribute: its forward reads CONFIG, a global SimpleNamespace
of_a_clock: its forward reads clock, a global builtin_function_or_method
of_a_clock_by_its_module: its forward reads time, a global module
of_numbers_drawn: its forward draws random numbers
of_another_function: its forward reads SLOPE, a global float
of_an_object: its forward reads config, a SimpleNamespace, which may change
of_its_class: its forward reads class_slope, which its class has
of_an_import: its forward imports
of_a_property: its forward reads SLOPE, a global float
of_a_function_of_its_own: its forward reads SLOPE, a global float
forward: its forward reads slope, a global float""",
    )


@pytest.mark.parametrize("where", ["conv", "bn", "relu", "lin", "drop"])
def test_instances_with_a_forward_of_their_own_are_left(where):
    def forward(self, x):
        return self.drop(self.lin(self.relu(self.bn(self.conv(x)))))

    fused, expected = Net(forward).double(), Net(forward).double()
    fused.load_state_dict(expected.state_dict())
    for each in (fused, expected):
        each.get_submodule(where).forward = torch.cos
    report, x = fuse(fused), torch.randn(2, 3, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(fused(x), expected(x))
    if where == "conv":
        assert report.left["conv"] == "its forward is not its class's"
