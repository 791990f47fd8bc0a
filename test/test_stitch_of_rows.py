"""Programs that use the results of row reductions, on the CPU and through autograd."""

import pytest
import torch
from test_stitch import CHANNEL, FORMATS, FULL, SIZES, acc_for, check, tensors_for

import torch_reformer
from torch_reformer import program
from torch_reformer.program import Program


def softmax(value):
    exponential = program.exp(value)
    return exponential / program.row_sum(exponential)


def normalised(value, eps=1e-5):
    mean = program.row_sum(value) / program.columns()
    centred = value - mean
    scale = program.rsqrt(program.row_sum(centred * centred) / program.columns() + eps)
    return mean, scale, centred * scale


def layer_norm(value):
    mean, scale, centred = normalised(value)
    return mean, scale, centred * CHANNEL + program.channel("shift")


def layer_norm_backward():
    """Derivative of layer norm; acc: the gradient of the result, full: the normalised input."""
    _, scale, centred = normalised(FULL)
    grad = program.acc() * CHANNEL
    parts = program.row_sum(grad), program.row_sum(grad * centred)
    of_x = scale * (grad - (parts[0] + centred * parts[1]) / program.columns())
    return [
        program.store(of_x),
        program.store(scale, torch.float32, per="row"),
        program.sum(program.acc() * centred, per="channel"),
        program.sum(program.acc(), per="channel"),
    ]


LARGEST = program.row_max(program.acc())
MEAN, SCALE, NORMALISED = normalised(program.acc())
# Some rows have the last channel, others none.
CLASS = program.select(program.row("row") < 0, program.columns() - 1, program.row("row"))
IS_CLASS = program.equal(program.channel_index(), CLASS)
NEAR_ONE = 1 + program.tanh(program.acc()) / (program.rows() * program.columns())
OF_ROWS = {
    "softmax": [program.store(softmax(program.acc() - LARGEST)), program.store(LARGEST, per="row")],
    "normalised": [
        program.store(NORMALISED * CHANNEL + FULL),
        program.store(MEAN, per="row"),
        program.store(SCALE, torch.float32, per="row"),
        program.store(MEAN, torch.bfloat16, per="row"),
        program.store(MEAN > 0, torch.bool, per="row"),
    ],
    "layer norm backward": layer_norm_backward(),
    "only stored of rows": [program.store(program.row_sum(program.acc()) * program.row("row"), per="row")],
    "what has no element": [
        program.store(program.row_sum(program.row("row") * program.row("row")) + program.row_max(CHANNEL)),
        program.store(program.row_sum(0.5), per="row"),
        program.store(program.scalar("scalar") + 1, per="row"),
        program.max(program.row("row"), "channel"),
    ],
    "elements that are one another's": [
        program.store(program.relu(FULL) + program.row_max(program.relu(FULL) * program.acc())),
        program.store(program.row("row")),
        program.moments(program.row_max(FULL), "all"),
    ],
    "running": [
        program.store(program.row_cumsum(program.acc()) / (program.channel_index() + 1)),
        program.store(program.row_cumsum(CHANNEL, reversed=True) / program.columns() * program.row("row")),
        program.store(program.row_cumsum(program.row("row")) / program.columns() + program.row_max(FULL)),
        program.store(program.row_cumsum(program.row_cumsum(0.5)) / program.columns() / program.columns()),
    ],
    "products": [
        program.store(program.row_cumprod(NEAR_ONE) + program.row_cumprod(NEAR_ONE, reversed=True)),
        program.store(program.row_prod(NEAR_ONE), per="row"),
        program.store(program.row_prod(1 + 1e-4 * program.row("row"))),
        program.prod(NEAR_ONE, "row"),
        program.prod(NEAR_ONE, "channel"),
        program.prod(NEAR_ONE, "all"),
    ],
    "of a class": [
        program.store(program.row_sum(program.exp(program.acc() - LARGEST)), per="row"),
        program.store(program.row_sum(program.select(IS_CLASS, program.acc(), 0)), per="row"),
        program.store(program.row_sum(program.select(IS_CLASS, 1, 0)) * FULL),
    ],
}
WIDTHS = [1, 3, 17, 512, 513, 5000]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("name", OF_ROWS)
def test_rows(name, rows, width, dtype):
    if rows * width > 1e6 and dtype != torch.float32:
        rows = 40
    # A row of one element, normalised, is only rounding error.
    if width == 1 and "norm" in name and dtype != torch.float64:
        rows, width = width, rows
    tight = {torch.float32: 4e-6, torch.float64: 1e-12, torch.bfloat16: 1e-2}[dtype]
    check(Program(*OF_ROWS[name]), (1, width, rows, 1), dtype, "nhwc", tight, tight * max(rows, width))


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", OF_ROWS)
def test_rows_of_images(name, size, layout):
    check(Program(*OF_ROWS[name]), size, torch.float32, layout, 4e-6, 4e-6 * max(size[1], size[0] * size[2] * size[3]))


@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("size", [(1, 5000, 300, 1), (1, 96, 3000, 1), (1, 3, 30000, 1)], ids=str)
def test_rows_are_the_same_for_any_number_of_threads(name, size):
    acc, tested = acc_for(size, torch.float32, "nhwc"), Program(*OF_ROWS[name])
    tensors = {key: tensor for key, tensor in tensors_for(size, layout="nhwc").items() if key in tested.inputs}
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(torch.ops.reformer.stitch(acc, [tensors[key] for key in tested.inputs], tested.code))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_largest_of_a_row_that_is_not_finite(width):
    nan, inf = float("nan"), float("inf")
    x = torch.randn(6, width)
    for row, place in enumerate((0, width // 2, width - 1)):
        x[row, place] = nan
    x[1, 0] = x[3, width // 3] = inf
    x[1, width // 2] = nan
    x[4] = -inf
    x[2, : width - 1] = -inf
    (largest,) = torch.ops.reformer.stitch(
        x.t().reshape(1, width, 6, 1).contiguous(memory_format=torch.channels_last),
        [],
        Program(program.store(LARGEST, per="row")).code,
    )
    torch.testing.assert_close(largest.flatten(), x.amax(1), rtol=0, atol=0, equal_nan=True)


def test_rows_of_very_many_elements():
    size = (1, 100_003, 3, 1)
    for name in ("softmax", "layer norm backward"):
        check(Program(*OF_ROWS[name]), size, torch.float32, "nhwc", 1e-5, 1e-5)


def test_a_result_does_not_overwrite_what_is_read_later():
    """The first output of a convolution's program takes the memory of the convolution's result."""
    x, weight = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last), torch.randn(24, 8, 1, 1)
    full = torch.randn(2, 24, 6, 6).contiguous(memory_format=torch.channels_last)
    acc = torch.nn.functional.conv2d(x, weight)
    tested = Program(program.store(program.relu(FULL)), program.store(program.acc() + 1))
    first, second = torch_reformer.conv2d_epilogue(x, weight, tested, {"full": full})
    assert torch.equal(first, full.relu())
    torch.testing.assert_close(second, acc + 1)
    tested = Program(program.store(softmax(program.acc())), program.store(program.acc() - LARGEST))
    first, second = torch_reformer.conv2d_epilogue(x, weight, tested)
    torch.testing.assert_close(first, acc.softmax(1))
    torch.testing.assert_close(second, acc - acc.amax(1, keepdim=True))


ROW = program.row("row")
DIFFERENTIABLE = {
    "softmax": [program.store(softmax(program.acc() * CHANNEL + ROW))],
    "layer norm": [program.store(layer_norm(program.acc() * ROW)[-1])],
    "layer norm and its statistics": [
        program.store(layer_norm(program.acc() + ROW * ROW)[-1]),
        program.store(MEAN * ROW, per="row"),
        program.sum(program.acc() * SCALE, per="row"),
    ],
    "of rows alone": [program.store(program.row_sum(ROW * CHANNEL) * program.scalar("scalar") + program.row_sum(ROW))],
    "stored of rows": [
        program.store(program.acc() * ROW),
        program.store(program.tanh(ROW) * program.scalar("scalar"), per="row"),
        program.store(program.scalar("scalar"), per="row"),
    ],
    "rows, used by elements and by rows": [
        program.store(program.acc() * ROW + program.exp(ROW), per="element"),
        program.store(program.tanh(ROW) * program.row_sum(program.acc()), per="row"),
        program.moments(program.row_sum(program.acc()) * CHANNEL, "channel"),
    ],
}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_through_rows(name, layout):
    size, tested = (2, 5, 3, 2), Program(*DIFFERENTIABLE[name])
    given = tensors_for(size, torch.float64, layout)
    given["shift"] = given["channel"].flip(0)
    tensors = [given[key].requires_grad_() for key in tested.inputs]
    acc = acc_for(size, torch.float64, layout).requires_grad_()

    def run(acc, *tensors):
        return torch_reformer.stitch(acc, tested, dict(zip(tested.inputs, tensors, strict=True)))

    assert torch.autograd.gradcheck(run, (acc, *tensors))
    assert torch.autograd.gradgradcheck(run, (acc, *tensors))


def test_gradients_of_a_convolution_whose_rows_are_reduced():
    """The backward lacks the convolution's result; row values are saved, a number per row."""
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(5, 3, 1, 1, dtype=torch.float64, requires_grad=True)
    row = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True)
    whole = program.tanh(program.row_sum(program.acc()) * ROW)
    for outputs in (
        [program.store(whole)],
        [program.store(whole * ROW), program.store(whole, per="row")],
        [program.store(softmax(program.acc() * ROW))],
        [program.store(program.select(whole > 0, ROW * 2, ROW) + program.row_sum(program.exp(program.acc())))],
    ):
        tested = Program(*outputs)
        assert torch.autograd.gradcheck(
            lambda *given, tested=tested: torch_reformer.conv2d_epilogue(*given[:2], tested, {"row": given[2]}),
            (x, weight, row),
        )


def test_gradients_through_the_largest_of_rows():
    x = torch.randn(2, 5, 3, 2, dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
    tested = Program(program.store(softmax(program.acc() - LARGEST)))
    assert torch.autograd.gradcheck(lambda x: torch_reformer.stitch(x, tested), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_layer_norm(dtype):
    x, weight, shift = torch.randn(40, 96).to(dtype), torch.randn(96), torch.randn(96)
    grad = torch.randn(40, 96).to(dtype)
    tested = Program(program.store(layer_norm(program.acc())[-1]))
    exact = [tensor.double().requires_grad_() for tensor in (x, weight, shift)]
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, shift)]
    rows = leaves[0].view(1, 40, 1, 96).permute(0, 3, 1, 2)
    y = torch_reformer.stitch(rows, tested, {"channel": leaves[1], "shift": leaves[2]})
    y.backward(grad.view(1, 40, 1, 96).permute(0, 3, 1, 2))
    torch.nn.functional.layer_norm(exact[0], (96,), *exact[1:], 1e-5).backward(grad.double())
    tight = 1e-5 if dtype == torch.float32 else 2e-2
    for got, expected in zip(leaves, exact, strict=True):
        torch.testing.assert_close(got.grad.double(), expected.grad, rtol=tight, atol=tight * 10)


def test_reductions_per_height():
    """Over a tensor and after a convolution; their gradients are those of PyTorch's operations."""
    x, weight = torch.randn(2, 5, 4, 3, dtype=torch.float64), torch.randn(6, 5, 1, 1, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    tested = Program(program.sum(program.acc(), "height"), program.moments(program.acc() * 2, "height"))
    for result, run in (
        (x, lambda: torch_reformer.stitch(x, tested)),
        (torch.conv2d(x, weight), lambda: torch_reformer.conv2d_epilogue(x, weight, tested)),
    ):
        sums, moments = run()
        with torch.no_grad():
            alike = run()
        expected = result.transpose(1, 2).sum((0, 3))
        spread = ((2 * (result.transpose(1, 2) - expected[:, :, None] / 6)) ** 2).sum((0, 3))
        for found in ((sums, moments), alike):
            torch.testing.assert_close([*found], [expected, torch.stack([expected / 3, spread])])
        grads = [torch.autograd.grad(each.square().sum(), x, retain_graph=True)[0] for each in (sums, expected)]
        torch.testing.assert_close(*grads)
