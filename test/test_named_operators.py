"""torch.ops.reformer.conv2d_act, linear_act and conv2d_batch_norm_act: the functions of these names as operators."""

import inspect

import pytest
import torch
from cases import ops
from test_compile import BACKENDS
from torch.func import functional_call, grad, vmap

import torch_reformer

GEOMETRY = [2, 1], [1, 0], [1, 2], 2


def arguments(kind: str, dtype=torch.float64, requires_grad=True):
    """An operator's name, its tensors, and its other arguments by position and by name."""
    sizes = dict(input=(3, 4, 7, 8), weight=(6, 2, 3, 2), bias=(6,), residual=(3, 6, 4, 6))
    if kind == "linear":
        sizes = dict(input=(3, 5, 8), weight=(6, 8), bias=(6,), residual=(3, 5, 6))
    if kind in ("training", "evaluation"):
        sizes |= dict(norm_weight=(6,), norm_bias=(6,))
    tensors = {name: torch.randn(size, dtype=dtype, requires_grad=requires_grad) for name, size in sizes.items()}
    options = dict(activation="silu")
    if kind != "linear":
        options |= zip(("stride", "padding", "dilation", "groups"), GEOMETRY, strict=True)
    if kind in ("training", "evaluation"):
        options |= dict(training=kind == "training", momentum=0.3, eps=0.01)
        options |= dict(running_mean=torch.full((6,), 0.1, dtype=dtype), running_var=torch.ones(6, dtype=dtype))
    return NAMES[kind], tensors, options


NAMES = dict(
    act="conv2d_act", linear="linear_act", training="conv2d_batch_norm_act", evaluation="conv2d_batch_norm_act"
)
each_kind = pytest.mark.parametrize("kind", NAMES)


def results(function, tensors, options):
    """The result, the gradients, and the running statistics after the call."""
    options = {name: o.clone() if isinstance(o, torch.Tensor) else o for name, o in options.items()}
    result = function(**tensors, **options)
    grads = ()
    if result.requires_grad:
        grads = torch.autograd.grad(result, tensors.values(), torch.cos(torch.arange(result.numel())).view_as(result))
    return [result, *grads, *(o for o in options.values() if isinstance(o, torch.Tensor))]


def both(name):
    return getattr(torch_reformer, name), getattr(ops, name)


@each_kind
@pytest.mark.parametrize("requires_grad", [False, True], ids=["constant", "grad"])
def test_is_the_function_of_its_name(kind, requires_grad):
    name, tensors, options = arguments(kind, torch.float32, requires_grad)
    expected, got = (results(function, tensors, options) for function in both(name))
    assert len(got) == 1 + len(tensors) * requires_grad + 2 * (NAMES[kind] == "conv2d_batch_norm_act")
    assert all(map(torch.equal, got, expected))
    if kind == "training":
        assert not torch.equal(got[-1], options["running_var"])


@pytest.mark.parametrize("name", sorted(set(NAMES.values())))
def test_arguments_are_the_functions(name):
    """Arguments have the functions' names, order, defaults and keyword-only markers."""
    function, operator = both(name)
    expected = [
        (parameter.name, parameter.kind is parameter.KEYWORD_ONLY, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]
    in_pairs = {"stride": 1, "padding": 0, "dilation": 1}
    signatures = []
    for argument in operator.default._schema.arguments:
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        if argument.name in in_pairs:
            assert default == [in_pairs[argument.name]] * 2
            default = in_pairs[argument.name]
        signatures.append((argument.name, argument.kwarg_only, default))
    assert signatures == expected
    written = [argument.name for argument in operator.default._schema.arguments if argument.is_write]
    assert written == (["running_mean", "running_var"] if name == "conv2d_batch_norm_act" else [])


@pytest.mark.parametrize("requires_grad", [False, True], ids=["constant", "grad"])
@pytest.mark.parametrize("kind", [*NAMES, "dropout"])
def test_opcheck(kind, requires_grad):
    name, tensors, options = arguments("linear" if kind == "dropout" else kind, torch.float32, requires_grad)
    options |= tensors | ({"dropout": 0.5} if kind == "dropout" else {})
    torch.library.opcheck(getattr(ops, name).default, (options.pop("input"), options.pop("weight")), options)


class Network(torch.nn.Module):
    """A small network of the three operators; its running statistics are buffers."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        torch.manual_seed(0)
        for name, size in dict(conv=(8, 3, 3, 3), norm=(4, 8, 3, 3), linear=(6, 4 * 3 * 4)).items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(size, dtype=torch.float64) / 4))
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("var", torch.ones(4, dtype=torch.float64))

    def forward(self, x):
        x = self.module.conv2d_act(x, self.conv, None, [1, 1], [1, 1], activation="gelu")
        statistics = dict(running_mean=self.mean, running_var=self.var, training=self.training)
        x = self.module.conv2d_batch_norm_act(x, self.norm, None, **statistics, stride=[2, 2])
        return self.module.linear_act(x.flatten(1), self.linear, activation="tanh")


def step(network, forward):
    loss = forward(torch.linspace(-2, 2, 4 * 3 * 8 * 10, dtype=torch.float64).view(4, 3, 8, 10)).square().mean()
    return [loss, *torch.autograd.grad(loss, network.parameters()), *network.buffers()]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled(backend, training):
    torch._dynamo.reset()
    expected, network = Network(torch_reformer).train(training), Network(ops).train(training)
    compiled = torch.compile(network, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(step(network, compiled), step(expected, expected))


def test_exported_program_names_them():
    network = Network(ops).eval()
    program = torch.export.export(network, (torch.randn(4, 3, 8, 10, dtype=torch.float64),))
    names = {node.target._opname for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    assert {"conv2d_act", "linear_act"} <= names
    x = torch.randn(4, 3, 8, 10, dtype=torch.float64)
    for each in (program, program.run_decompositions()):
        torch.testing.assert_close(each.module()(x), network(x))


@each_kind
def test_autocast(kind):
    name, tensors, options = arguments(kind, torch.float32)
    found = []
    for function in both(name):
        with torch.autocast("cpu", torch.bfloat16):
            found.append(results(function, tensors, options))
    assert found[1][0].dtype == torch.bfloat16
    assert all(map(torch.equal, *found))


@each_kind
def test_fake_tensors(kind):
    name, tensors, options = arguments(kind, requires_grad=False)
    real = getattr(ops, name)(**tensors, **options)
    with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
        fakes = {n: mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for n, t in (tensors | options).items()}
        fake = getattr(ops, name)(**fakes)
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def test_vmap():
    """Also for batch norm, whose schema says that it writes: without a rule vmap would loop over the operator, or
    refuse."""
    network, images = Network(ops).eval(), torch.randn(5, 4, 3, 8, 10, dtype=torch.float64)
    torch.testing.assert_close(vmap(network)(images), torch.stack([network(image) for image in images]))


def test_gradients_of_each_image():
    network = Network(ops).eval()
    state = {name: tensor.detach() for name, tensor in network.state_dict().items()}
    images = torch.randn(4, 3, 8, 10, dtype=torch.float64)

    def loss(parameters, image):
        return functional_call(network, parameters, (image[None],)).square().sum()

    gradients = vmap(grad(loss), (None, 0))(state, images)
    for i, image in enumerate(images):
        torch.testing.assert_close({name: grads[i] for name, grads in gradients.items()}, grad(loss)(state, image))


def test_errors_are_the_functions():
    x, w = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    with pytest.raises(ValueError, match="^activation must be one of none, relu, .*, got 'swish'$"):
        ops.conv2d_act(x, w, activation="swish")
    with pytest.raises(ValueError, match="^linear_act: dropout must be a probability, got 1.5$"):
        ops.linear_act(x, torch.randn(4, 5), dropout=1.5)
    with pytest.raises(ValueError, match="evaluation needs running_mean and running_var$"):
        ops.conv2d_batch_norm_act(x, w, None, None, None, training=False)
