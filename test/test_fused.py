"""conv2d_act, linear_act and stitch against PyTorch's unfused operations."""

import pytest
import torch
import unfused
from cases import Case, ops, strided
from unfused import ACTIVATIONS, compare

import torch_reformer
from torch_reformer import conv2d_act, linear_act, linear_epilogue, program
from torch_reformer.program import Program

CASES = {
    "3x3": Case(padding=(1, 1)),
    "1x1": Case(c=8, r=1, s=1),
    "strided": Case(padding=(1, 1), stride=(2, 2)),
    "depthwise": Case(c=6, k=6, padding=(1, 1), groups=6),
    "asymmetric": Case(2, 4, 9, 8, 6, 3, 2, (1, 2), (2, 1), (1, 2), 2),
    "one pixel": Case(n=1, c=1, h=1, w=1, k=1, r=1, s=1),
    "empty batch": Case(n=0),
}
LAYOUTS = ["contiguous", "channels_last"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def small_integers(size, dtype):
    """Integers small enough for every sum to be exact even in bfloat16."""
    return torch.randint(-1, 2, size).to(dtype)


@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_exact(case, layout, dtype, residual):
    """For integers the result and every gradient equal PyTorch's bit by bit, also where relu's argument is 0."""
    sizes = dict(x=case.input_size, w=case.weight_size, bias=(case.k,))
    sizes |= {"residual": case.output_size} if residual else {}
    tensors = {name: small_integers(size, dtype).requires_grad_() for name, size in sizes.items()}
    expected = unfused.conv2d_act(
        tensors["x"], tensors["w"], tensors["bias"], *case.geometry, residual=tensors.get("residual")
    )
    gradient = small_integers(case.output_size, dtype)
    wanted = [expected, *torch.autograd.grad(expected, tensors.values(), gradient)]

    tensors = {n: (strided(t, layout) if t.dim() == 4 else t).detach().requires_grad_() for n, t in tensors.items()}
    operands = [tensors[name] for name in ("x", "w", "bias")]
    got = conv2d_act(*operands, *case.geometry, residual=tensors.get("residual"))
    got = [got, *torch.autograd.grad(got, tensors.values(), gradient)]
    for mine, right in zip(got, wanted, strict=True):
        assert mine.dtype == dtype and torch.equal(mine, right)
    if layout == "channels_last" and got[0].numel():
        assert got[0].is_contiguous(memory_format=torch.channels_last)


def conv_tensors(dtype, n=4, c=8, size=10, k=16, **more):
    """Tensors of a 3x3 convolution with a result of size - 2, scaled so that activations are limited at both ends."""
    sizes = dict(x=(n, c, size, size), w=(k, c, 3, 3), bias=(k,), residual=(n, k, size - 2, size - 2)) | more
    scales = dict(w=0.3)
    return {name: (torch.randn(size) * scales.get(name, 1)).to(dtype) for name, size in sizes.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_conv2d_act(activation, dtype):
    def of(module):
        return lambda x, w, bias, residual: module.conv2d_act(x, w, bias, activation=activation, residual=residual)

    compare(of(torch_reformer), of(unfused), conv_tensors(dtype))


@pytest.mark.parametrize("size", [(40,), (6, 40), (3, 5, 40)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_act(activation, dtype, size):
    tensors = dict(
        x=torch.randn(size), w=torch.randn(32, 40) / 3, bias=torch.randn(32), residual=torch.randn(*size[:-1], 32)
    )

    def of(module):
        return lambda x, w, bias, residual: module.linear_act(x, w, bias, activation=activation, residual=residual)

    compare(of(torch_reformer), of(unfused), {name: t.to(dtype) for name, t in tensors.items()})


def test_the_gradient_of_a_residual_is_not_rounded():
    """The gradient of a residual is that of the sum, in the sum's data type, even if the result's differs."""
    x, w = (small_integers(size, torch.bfloat16).requires_grad_() for size in ((2, 8, 5, 5), (8, 8, 1, 1)))
    residual = torch.randn(2, 8, 5, 5, requires_grad=True)
    tested = Program(program.store(program.acc() * 2 + program.full("residual"), torch.float32))
    y = torch_reformer.conv2d_epilogue(x, w, tested, {"residual": residual})
    gradient = torch.randn(y.shape, requires_grad=True)
    of_residual, of_x = torch.autograd.grad(y, (residual, x), gradient, create_graph=True)
    assert y.dtype == torch.float32 and of_residual.data_ptr() == gradient.data_ptr()
    assert of_x.dtype == torch.bfloat16
    torch.testing.assert_close(torch.autograd.grad((of_residual * residual).sum(), gradient)[0], residual)


INFINITY = float("inf")
EDGES = [-INFINITY, -1e30, -100.0, -6.0, -3.0, -1e-3, -0.0, 0.0, 1e-3, 3.0, 6.0, 100.0, 1e30, INFINITY, float("nan")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_edges_of_activations(activation, dtype):
    """Values and derivatives, with infinities and NaN."""
    edges = list(EDGES)
    if activation == "gelu" and dtype != torch.float64:
        edges.remove(INFINITY)  # PyTorch's result is NaN for it in these data types
    results = []
    for module in (torch_reformer, unfused):
        x = torch.tensor(edges, dtype=dtype).view(1, 1, 1, -1).requires_grad_()
        y = module.conv2d_act(x, torch.ones(1, 1, 1, 1, dtype=dtype), activation=activation)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        if activation in ("relu6", "hardswish"):
            gradient = gradient[..., :-1]  # in PyTorch the gradient of NaN depends on the element's position
        results.append([y, gradient])
    torch.testing.assert_close(*results, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_not_a_number_goes_where_it_goes_in_pytorch(activation, dtype):
    tensors = conv_tensors(dtype)
    tensors["x"][1, 2, 3, 4] = float("nan")
    tensors["residual"][0, 5, 6, 7] = float("inf")
    results = []
    for module in (torch_reformer, unfused):
        x, w, bias, residual = (t.detach().requires_grad_() for t in tensors.values())
        y = module.conv2d_act(x, w, bias, activation=activation, residual=residual)
        results.append([t.isfinite() for t in (y, *torch.autograd.grad(y.sum(), (x, w, bias, residual)))])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("how", ["sliced", "transposed", "expanded", "unaligned"])
def test_strides(how):
    x, w, bias, residual = conv_tensors(torch.float64).values()
    x, w, residual = (strided(t, how) for t in (x, w, residual))
    bias = bias[:1].expand(16) if how == "expanded" else bias.repeat_interleave(2)[::2]
    tensors = dict(x=x, w=w, bias=bias, residual=residual)
    compare(
        lambda x, w, bias, residual: conv2d_act(x, w, bias, activation="silu", residual=residual),
        lambda x, w, bias, residual: unfused.conv2d_act(x, w, bias, activation="silu", residual=residual),
        tensors,
    )


def test_strided_rows_of_linear():
    x, w = (
        torch.randn(5, 3, 2 * 8, dtype=torch.float64)[..., ::2].transpose(0, 1),
        torch.randn(8, 6, dtype=torch.float64).T,
    )
    residual = torch.randn(6, 5, 3, dtype=torch.float64).permute(2, 1, 0)
    got = linear_act(x, w, activation="tanh", residual=residual)
    torch.testing.assert_close(got, unfused.linear_act(x, w, activation="tanh", residual=residual))


@pytest.mark.parametrize("rows", [(), (4,), (2, 3), (2, 2, 2), (2, 1, 2, 2)], ids=str)
def test_gradients_of_a_matrix_products_programs(rows):
    """Inputs and outputs of all kinds, used any number of times."""
    value = (
        program.acc() * program.row("row")
        + program.full("full") * program.channel("channel")
        - program.scalar("scalar")
    )
    tested = Program(
        *(program.store(program.tanh(value)), program.sum(value * value, "row"), program.moments(value, "row")),
        *(program.sum(value * value), program.moments(value), program.sum(value, "all")),
    )
    sizes = dict(row=rows, full=(*rows, 5), channel=(5,), scalar=())
    x, w, *others = (
        torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((*rows, 3), (5, 3), *sizes.values())
    )

    def function(x, w, *others):
        return linear_epilogue(x, w, tested, dict(zip(sizes, others, strict=True)))

    assert [tuple(y.shape) for y in function(x, w, *others)] == [(*rows, 5), rows, (2, *rows), (5,), (2, 5), ()]
    assert torch.autograd.gradcheck(function, (x, w, *others))
    assert torch.autograd.gradgradcheck(function, (x, w, *others))


# Columns and depth of one, too, where the orders are the same.
@pytest.mark.parametrize("columns", [1, 5])
@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_that_lie_by_columns(dtype, bias, depth, columns):
    """A weight in the other order of memory gives the same results and gradients, also where it begins in a row."""
    x, residual = torch.randn(3, 6, depth, dtype=dtype), torch.randn(3, 6, columns, dtype=dtype)
    by_columns = torch.randn(depth + 1, columns, dtype=dtype)[1:].t()
    value = program.acc() * program.full("residual") + (program.channel("bias") if bias else 0)
    tested = Program(program.store(program.relu(value)), program.sum(program.relu(value)))
    tensors = {"residual": residual} | ({"bias": torch.randn(columns, dtype=dtype)} if bias else {})
    found = []
    for weight in (by_columns, by_columns.contiguous()):
        weight = weight.detach().requires_grad_()
        results = linear_epilogue(x.requires_grad_(), weight, tested, tensors)
        found.append([*results, *torch.autograd.grad(results[0].float().square().sum(), (x, weight))])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_results_of_linear_may_be_changed_in_place(activation):
    x, w = torch.randn(2, 3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    results = []
    for module in (torch_reformer, unfused):
        y = module.linear_act(x, w, activation=activation)
        y.add_(1).mul_(2)
        results.append(torch.autograd.grad(y.square().sum(), (x, w)))
    torch.testing.assert_close(*results)


def test_gradients_in_fp64_beside_outputs_in_fp32():
    x, r = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    tested = Program(program.store(program.acc() * program.full("r")), program.store(program.full("r"), torch.float32))
    a, b = torch_reformer.stitch(x, tested, {"r": r.requires_grad_()})
    (grad,) = torch.autograd.grad(a.sum() + 0 * b.sum(), r)
    torch.testing.assert_close(grad, x, rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [((0, 4), (6, 4)), ((2, 0, 4), (6, 4)), ((3, 0), (6, 0)), ((3, 4), (0, 4))], ids=str)
def test_linear_of_nothing(sizes):
    x, w = (torch.randn(size, requires_grad=True) for size in sizes)
    bias, residual = torch.randn(w.shape[0], requires_grad=True), torch.randn(*x.shape[:-1], w.shape[0])
    results = []
    for module in (torch_reformer, unfused):
        y = module.linear_act(x, w, bias, residual=residual)
        results.append([y, *torch.autograd.grad(y.sum(), (x, w, bias))])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_repeatable(layout, threads):
    """Results are equal bit by bit for any number of threads: sums are split by the problem
    (csrc/cpu/programs/plan.cpp)."""

    def run():
        torch.manual_seed(1)
        tensors = conv_tensors(torch.float32, n=5, size=30)
        x, w, bias, residual = (strided(t, layout) if t.dim() == 4 else t for t in tensors.values())
        mean, var = torch.zeros(16), torch.ones(16)
        for t in (x, w, bias, residual):
            t.requires_grad_()
        y = torch_reformer.conv2d_batch_norm_act(
            x, w, bias, mean, var, training=True, activation="silu", residual=residual
        )
        torch.manual_seed(2)
        z = linear_act(y.mean((2, 3)), torch.ones(4, 16), dropout=0.5)
        return [y, z, mean, var, *torch.autograd.grad(z.sum(), (bias, residual))]

    torch.set_num_threads(1)
    first = run()
    torch.set_num_threads(threads)
    assert all(map(torch.equal, run(), first))


# --- errors
# -------------------------------------------------------------------------------------------------------------


def x():
    return torch.zeros(2, 4, 6, 5)


def w():
    return torch.zeros(6, 4, 3, 3)


BAD = {
    "activation": (
        lambda: conv2d_act(x(), w(), activation="swish"),
        "activation must be one of none, relu, relu6, leaky_relu, silu, gelu, gelu_tanh, hardswish, hardsigmoid, "
        "sigmoid, tanh, got 'swish'",
    ),
    "dropout": (
        lambda: linear_act(torch.zeros(2, 4), torch.zeros(3, 4), dropout=1.5),
        "linear_act: dropout must be a probability, got 1.5",
    ),
    "size of bias": (
        lambda: conv2d_act(x(), w(), torch.zeros(())),
        "reformer::conv2d_epilogue: tensors[0] (channel) has size [], but the result of size [2, 6, 4, 3] needs [6]",
    ),
    "size of residual": (
        lambda: conv2d_act(x(), w(), residual=torch.zeros(1, 6, 1, 1)),
        "reformer::conv2d_epilogue: tensors[0] (full) has size [1, 6, 1, 1], but the result of size [2, 6, 4, 3] needs "
        "[2, 6, 4, 3]",
    ),
    "data type of weight": (
        lambda: conv2d_act(x(), w().double()),
        "reformer::conv2d: weight has data type Double, but input has Float",
    ),
    "without a batch": (
        lambda: conv2d_act(x()[0], w()),
        "reformer::conv2d: input must have 4 dimensions, got 3 ([4, 6, 5])",
    ),
    "number for a row": (
        lambda: linear_act(torch.zeros(()), torch.zeros(3, 4)),
        "linear_epilogue: input must be [..., C] and weight [K, C], got sizes [] and [3, 4]",
    ),
    "channels of linear": (
        lambda: linear_act(torch.zeros(2, 5), torch.zeros(3, 4)),
        "linear_epilogue: input must be [..., C] and weight [K, C], got sizes [2, 5] and [3, 4]",
    ),
    "residual of linear": (
        lambda: linear_act(torch.zeros(2, 4), torch.zeros(3, 4), residual=torch.zeros(3, 2)),
        "linear_epilogue: residual has size [3, 2], but the result needs [2, 3]",
    ),
    "statistics": (
        lambda: torch_reformer.conv2d_batch_norm_act(x(), w(), None, None, None, training=False),
        "conv2d_batch_norm_act: evaluation needs running_mean and running_var",
    ),
    "eps in training": (
        lambda: torch_reformer.conv2d_batch_norm_act(x(), w(), None, None, None, training=True, eps=0),
        "conv2d_batch_norm_act: eps must be positive in training, got 0",
    ),
    "eps in evaluation": (
        lambda: torch_reformer.conv2d_batch_norm_act(x(), w(), None, x()[0], x()[0], training=False, eps=-0.5),
        "conv2d_batch_norm_act: eps must be at least 0, got -0.5",
    ),
    "one value a channel": (
        lambda: torch_reformer.conv2d_batch_norm_act(x()[:1, :, :3, :3], w(), None, None, None, training=True),
        "conv2d_batch_norm_act: training needs more than one value a channel, got a result of [1, 6, 1, 1]",
    ),
    "dimensions of stitch": (
        lambda: torch_reformer.stitch(x()[0], Program(program.store(program.acc()))),
        "reformer::stitch: acc must have 4 dimensions, got 3 ([4, 6, 5])",
    ),
    "missing name": (
        lambda: torch_reformer.stitch(x(), Program(program.store(program.acc() + program.full("z")))),
        "stitch: no tensor z",
    ),
    "unknown name": (
        lambda: torch_reformer.conv2d_epilogue(x(), w(), Program(program.store(program.acc())), {"z": w()}),
        "conv2d_epilogue: z not among the program's inputs",
    ),
    "number of tensors": (
        lambda: ops.stitch(x(), [x()], Program(program.store(program.acc())).code),
        "reformer::stitch: the program has 0 inputs, got 1 tensors",
    ),
    "no program": (
        lambda: ops.stitch(x().requires_grad_(), [], [0, 1, 1, 5]),
        "reformer::stitch: program: these numbers are no program's code: [0, 1, 1, 5]",
    ),
}


@pytest.mark.parametrize("call, sentence", BAD.values(), ids=BAD)
def test_sentence(call, sentence):
    with pytest.raises((RuntimeError, ValueError)) as error:
        call()
    assert str(error.value) == sentence


@pytest.mark.parametrize("padding", ["same", (1, 2)], ids=str)
def test_modules_that_could_not_be_fused(padding):
    mode = "zeros" if padding == "same" else "circular"
    for kind, name in (torch_reformer.nn.Conv2dAct, "Conv2dAct"), (torch_reformer.nn.Conv2d, "Conv2d"):
        with pytest.raises(ValueError) as error:
            torch_reformer.nn._check_padding(kind(3, 4, 3, padding=padding, padding_mode=mode))
        assert str(error.value) == f"{name}: padding must be numbers of zeros, got {padding!r} of {mode!r}"


def test_representations():
    assert repr(torch_reformer.nn.LinearAct(3, 4, activation="gelu", dropout=0.1)) == (
        "LinearAct(in_features=3, out_features=4, bias=True, activation=gelu, dropout=0.1)"
    )
    assert repr(torch_reformer.nn.Conv2dAct(3, 4, 1, activation="silu")) == (
        "Conv2dAct(3, 4, kernel_size=(1, 1), stride=(1, 1), activation=silu)"
    )
