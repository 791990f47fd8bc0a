"""torch.ops.reformer.stitch on the CPU against the plain interpreter: every operation, and random programs."""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_reformer
from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.interpreter import interpret
from torch_reformer.program.operations import COMPUTED, NUMBER, OF_ROWS, OPERANDS, PER
from torch_reformer.program.program import decode
from torch_reformer.program.values import varies

FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
# Lines shorter and longer than a block, several lines per block, and widths that are no multiple of a vector.
SIZES = [(2, 5, 7, 9), (3, 70, 6, 6), (1, 1100, 3, 1), (2, 3, 24, 50), (2, 64, 1, 1), (9, 16, 40, 40)]


def tensors_for(size, dtype=torch.float32, layout="nchw"):
    """A tensor of each kind by name; its numbers have no ties and are far enough from 0 to be divisors."""
    n, k, h, w = size
    generator = torch.Generator().manual_seed(sum(size))

    def numbers(*sizes):
        values = torch.rand(sizes, generator=generator, dtype=torch.float64) + 0.25
        return values * (torch.randint(0, 2, sizes, generator=generator) * 2 - 1)

    return {
        "full": numbers(*size).to(dtype).contiguous(memory_format=FORMATS[layout]),
        "half": numbers(*size).to(torch.bfloat16),
        "mask": numbers(*size) > 0,
        "channel": numbers(k).to(dtype),
        "row": numbers(n, h, w).to(dtype),
        "plane": numbers(n, k).to(dtype),
        "scalar": numbers(1).to(dtype),
        "key": torch.tensor(-123456789123456789),
    }


def acc_for(size, dtype, layout):
    return tensors_for((*size[:3], size[3] + 1), dtype)["full"][..., :-1].contiguous(memory_format=FORMATS[layout])


def check(tested, size, dtype=torch.float32, layout="nchw", rtol=2e-6, atol=2e-6):
    acc, tensors = acc_for(size, dtype, layout), tensors_for(size, dtype, layout)
    tensors = {name: tensors[name] for name in tested.inputs}
    results = torch.ops.reformer.stitch(acc, list(tensors.values()), tested.code)
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    expected = interpret(tested, size, torch.float64, wide, acc.double())
    for output, result, exact in zip(tested.outputs, results, expected, strict=True):
        stored = output.dtype or (dtype if output.kind == "store" else torch.promote_types(dtype, torch.float32))
        assert result.dtype == stored and result.shape == exact.shape
        if output.is_by_element:
            assert result.is_contiguous(memory_format=FORMATS[layout])
        torch.testing.assert_close(result.double(), exact.to(stored).double(), rtol=rtol, atol=atol)


FULL, CHANNEL = program.full("full"), program.channel("channel")
OPERATIONS = {
    **{op: program.Value(op, *(program.acc(), FULL, CHANNEL)[: OPERANDS[op]]) for op in COMPUTED},
    **{op: program.Value(op, abs(program.acc())) for op in ("log", "log2", "log10")},
    "pow": program.pow(abs(program.acc()), FULL),
    "log1p": program.log1p(abs(program.acc())),
    "sqrt": program.sqrt(abs(program.acc())),
    "rsqrt": program.rsqrt(abs(program.acc())),
    "clip": program.clip(program.acc(), -0.5, 0.5 + 0 * CHANNEL),
    "equal": program.equal(program.acc(), program.acc()),
    "row": program.acc() * program.row("row"),
    "plane": program.acc() * program.plane("plane") + CHANNEL,
    "plane alone": program.plane("plane") * CHANNEL,
    "scalar": program.acc() - program.scalar("scalar"),
    "mask": program.select(program.full("mask"), program.acc(), 1),
    "half": program.full("half") + 1,
    "random": program.random("key"),
    "rows": program.acc() + program.rows(),
    "columns": program.acc() / program.columns(),
    "channel index": program.acc() * (program.channel_index() < 2) + program.channel_index(),
    "channel alone": CHANNEL * 2,
    "constant alone": program.Value("constant", attribute=0.5),
    # Computed in one pass over a block.
    "mul_add": program.acc() * FULL + CHANNEL,
    "sub_mul": (program.acc() - CHANNEL) * FULL,
    "add_relu": program.relu(program.acc() + FULL),
    "mul_add_relu": program.relu(FULL + program.acc() * CHANNEL),
    "positive": program.select(program.acc() <= 0, 0, FULL),
    "mul_sub": FULL - program.acc() * CHANNEL,
    "equal_or_0": program.select(program.equal(program.relu(program.acc()), program.relu(FULL)), CHANNEL, 0),
    "exp_sub": program.exp(program.acc() - FULL),
    "mul_cdf": FULL * program.normal_cdf(program.acc()),
    "cdf_slope": program.normal_cdf(FULL) + program.normal_pdf(FULL) * FULL,
    "mul_cdf_slope": (program.normal_cdf(FULL) + FULL * program.normal_pdf(FULL)) * program.acc(),
    **{name: activation(program.acc() * 4) for name, activation in program.ACTIVATIONS.items()},
}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name, dtype, layout):
    tight = 1e-12 if dtype == torch.float64 else 5e-7
    check(Program(program.store(OPERATIONS[name])), SIZES[0], dtype, layout, rtol=tight, atol=tight)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_reductions(size, layout):
    value = program.acc() * CHANNEL + FULL
    kinds = [kind(value, per) for kind in (program.sum, program.max, program.moments) for per in PER[1:]]
    check(Program(*kinds), size, layout=layout, rtol=2e-6, atol=1e-6 * max(size[1], size[0] * size[2] * size[3]))


def in_types(value, types, per=("channel", "plane", "all")):
    """Sums and maxima in the type in which they are computed, then rounded to these types. Sums per channel have
    factors."""
    return Program(
        *(
            kind(value * CHANNEL if each == "channel" else value, each, dtype)
            for dtype in (None, *types)
            for kind in (program.sum, program.max)
            for each in per
        )
    )


def check_types(tested, results):
    """Check that each reduction is the computed one, rounded once."""
    computed = len([each for each in tested.outputs if each.dtype is None])
    for i, (output, result) in enumerate(zip(tested.outputs, results, strict=True)):
        assert torch.equal(result, results[i % computed].to(output.dtype or result.dtype))
        assert output.dtype in (None, result.dtype)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_reductions_in_types_of_their_own(dtype, layout):
    types = torch.bfloat16, torch.float16, torch.float32, torch.float64
    tested = in_types(program.acc() + FULL, types, ("channel", "row", "plane", "all"))
    acc, everything = acc_for(SIZES[0], dtype, layout), tensors_for(SIZES[0], dtype, layout)
    tensors = [everything[name] for name in tested.inputs]
    results = torch.ops.reformer.stitch(acc, tensors, tested.code)
    if dtype == torch.float64:
        check_types(tested, results)
    else:  # sums are in fp64 before rounding
        check(tested, SIZES[0], dtype, layout, rtol=2.0**-7, atol=1e-4)
    faked = torch.ops.reformer.stitch(acc.to("meta"), [tensor.to("meta") for tensor in tensors], tested.code)
    assert [each.dtype for each in faked] == [result.dtype for result in results]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_integers_are_exact(size, layout):
    acc = torch.randint(-8, 9, size).float().contiguous(memory_format=FORMATS[layout])
    other = torch.randint(-8, 9, size).to(torch.bfloat16)
    weight = torch.randint(-4, 5, size[1:2]).float()
    value = program.acc() * CHANNEL - FULL
    outputs = [
        program.store(value),
        program.store(program.relu(value), torch.float16),
        program.store(value > 0, torch.bool),
    ]
    outputs += [kind(value, per) for kind in (program.sum, program.max) for per in PER[1:]]
    tested = Program(*outputs)
    tensors = {"channel": weight, "full": other}
    results = torch.ops.reformer.stitch(acc, [tensors[name] for name in tested.inputs], tested.code)
    expected = interpret(tested, size, torch.float64, {n: t.double() for n, t in tensors.items()}, acc.double())
    for result, exact in zip(results, expected, strict=True):
        assert torch.equal(result.double(), exact.double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    tested = Program(program.store(program.gelu(program.acc() + FULL)), program.sum(FULL))
    check(
        tested, SIZES[1], dtype, "nhwc", rtol=torch.finfo(dtype).eps, atol=1e-5
    )  # rounded once, to an adjacent number at most


def test_moments_of_a_large_mean():
    for layout in FORMATS.values():
        x = (torch.randn(8, 24, 20, 20, dtype=torch.float64) + 1e4).float().contiguous(memory_format=layout)
        mean, squares = torch_reformer.stitch(x, Program(program.moments(program.acc()))).unbind()
        exact = torch.var_mean(x.double(), (0, 2, 3), correction=0)
        torch.testing.assert_close(mean.double(), exact[1], rtol=1e-7, atol=0)
        torch.testing.assert_close(squares.double() / 3200, exact[0], rtol=2e-6, atol=0)


def test_what_is_not_finite():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e38, -1e38, 1e-40]).view(1, 1, 1, 7)
    for name, function in {op: COMPUTED[op] for op in COMPUTED if OPERANDS[op] == 1}.items():
        result = torch_reformer.stitch(x, Program(program.store(program.Value(name, program.acc()))))
        assert torch.equal(result.isnan(), function(x).isnan()), name
        assert torch.equal(result.isinf(), function(x).isinf()), name
    tested = Program(
        program.max(program.acc(), "all"), program.sum(program.acc(), "all"), program.moments(program.acc(), "all")
    )
    assert all(result.isnan().any() for result in torch_reformer.stitch(x, tested))


WIDE = ("expm1", "log2", "log10", "sin", "cos")  # computed in fp64


@pytest.mark.parametrize("op", ["exp", "tanh", "sigmoid", "erf", "log", "log1p", "rsqrt", *WIDE])
def test_functions_of_fp32_are_accurate(op):
    x = torch.cat([torch.linspace(-90, 90, 40001), torch.linspace(-4, 4, 40001)]).view(1, 1, 1, -1)
    if op == "log1p":  # its whole domain, also near 0
        x = torch.cat([-x.abs() / 91, x.pow(5) * 1e-12, x.abs().exp(), torch.tensor([1e38]).view(1, 1, 1, 1)], -1)
    if op in WIDE:  # large angles, too
        every = torch.arange(0, 2**31 - 1, 9973, dtype=torch.int32).view(torch.float32)
        x = torch.cat([x, every.view(1, 1, 1, -1), -every.view(1, 1, 1, -1)], -1)
    at = x.abs() if op in ("log", "rsqrt", "log2", "log10") else x
    exact = COMPUTED[op](at.double())
    normal = exact.isfinite() & (exact.abs() > 2.0**-126) & (exact.abs() < 3e38)

    def units(result):  # in units in the last place
        unit = 2.0 ** (torch.log2(exact.abs()).floor() - 23)
        return ((result.double() - exact).abs() / unit)[normal].max().item()

    assert units(torch_reformer.stitch(at, Program(program.store(program.Value(op, program.acc()))))) <= 2 * units(
        COMPUTED[op](at)
    )


@pytest.mark.parametrize("layout", FORMATS)
def test_the_same_for_any_number_of_threads(layout):
    acc, full = torch.randn(2, *SIZES[-1]).unbind()
    acc, full = (tensor.contiguous(memory_format=FORMATS[layout]) for tensor in (acc, full))
    value = program.acc() * FULL
    tested = Program(
        program.store(value),
        *(program.sum(value, per) for per in ("channel", "row", "plane", "all")),
        program.moments(value),
    )
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(torch_reformer.stitch(acc, tested, {"full": full}))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_random_numbers():
    draw = Program(program.store(program.random("key")))
    key = torch.tensor(7)
    x = torch.empty(8, 16, 32, 32)
    numbers = torch_reformer.stitch(x, draw, {"key": key})
    # Equal in the other layout, different with another key, and uniform.
    other = torch_reformer.stitch(x.contiguous(memory_format=torch.channels_last), draw, {"key": key})
    assert torch.equal(numbers, other)
    assert not torch.equal(numbers, torch_reformer.stitch(x, draw, {"key": key + 1}))
    assert 0 <= numbers.min() and numbers.max() < 1
    counts = torch.histc(numbers, 64, 0, 1)
    expected = numbers.numel() / 64
    assert ((counts - expected) ** 2 / expected).sum() < 120  # chi-squared of 63 degrees: 1 in 20,000
    flat = numbers.flatten() - 0.5
    for distance in (1, 2, 4, 32, 1024):
        assert (flat[distance:] * flat[:-distance]).mean().abs() * 12 < 5 / flat.numel() ** 0.5


def test_philox_is_the_published_one():
    """Random123's known answer of seven rounds for counter and key 0."""
    numbers = torch_reformer.stitch(
        torch.empty(1, 4, 1, 1), Program(program.store(program.random("k"))), {"k": torch.tensor(0)}
    )
    words = [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]
    assert numbers.flatten().tolist() == [(word >> 9) * 2.0**-23 for word in words]


# --- random programs --------------------------------------------------------------------------------------------------

LEAVES = [
    program.acc(),
    FULL,
    program.full("half"),
    program.full("mask"),
    CHANNEL,
    program.row("row"),
    program.plane("plane"),
    program.scalar("scalar"),
    program.Value("constant", attribute=0.5),
]
WITHOUT_PLANES = [leaf for leaf in LEAVES if leaf.op != "plane"]
# No operation that jumps or whose error grows without bound: separate tests cover those.
SMOOTH = ["neg", "abs", "tanh", "sigmoid", "erf", "relu", "add", "sub", "mul", "maximum", "minimum"]


def near_one(value):
    """A factor of products that stay between 0 and 2, so that errors don't grow."""
    return 1 + program.tanh(value) / (program.rows() * program.columns())


@st.composite
def programs(
    draw,
    per=("channel", "row", "plane", "all"),
    types=(None, torch.float32, torch.float64),
    kinds=("store", "store of channels", "store of planes", "sum", "max", "prod", "moments"),
    reduces_rows=False,
    leaves=LEAVES,
):
    values = list(leaves)
    for _ in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from([*SMOOTH, *OF_ROWS] if reduces_rows else SMOOTH))
        # Back to -1 to 1, so that errors don't grow.
        operands = [draw(st.sampled_from(values)) for _ in range(OPERANDS[op])]
        operands = [near_one(each) for each in operands] if "prod" in op else operands
        value = program.Value(op, *operands)
        values.append(value / program.columns() if "sum" in op else value * 0.5)
    outputs = [program.store(values[-1])]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=3)):
        value = draw(st.sampled_from(values))
        if kind == "store":
            outputs.append(program.store(value, draw(st.sampled_from(types))))
        elif kind == "store of channels":
            of_channels = [value for value in values if varies(value)[id(value)] <= {"channels"}]
            outputs.append(program.store(draw(st.sampled_from(of_channels)), draw(st.sampled_from(types)), "channel"))
        elif kind == "store of planes":
            of_planes = [value for value in values if varies(value)[id(value)] <= {"channels", "images"}]
            outputs.append(program.store(draw(st.sampled_from(of_planes)), draw(st.sampled_from(types)), "plane"))
        elif kind == "store of rows":
            of_rows = [value for value in values if varies(value)[id(value)] <= {"rows"}]
            outputs.append(program.store(draw(st.sampled_from(of_rows)), draw(st.sampled_from(types)), "row"))
        else:
            options = {} if kind == "moments" else {"dtype": draw(st.sampled_from(types))}
            value = near_one(value) if kind == "prod" else value
            outputs.append(getattr(program, kind)(value, draw(st.sampled_from(per)), **options))
    return Program(*outputs)


@settings(max_examples=examples(150))
@given(programs(), st.sampled_from(SIZES[:5]), st.sampled_from([*FORMATS]), st.sampled_from(["fp32", "fp64"]))
def test_random_programs(tested, size, layout, dtype):
    dtype, tight = {"fp32": (torch.float32, 4e-6), "fp64": (torch.float64, 1e-13)}[dtype]
    check(tested, size, dtype, layout, rtol=tight, atol=tight * size[0] * size[1] * size[2] * size[3])


@settings(max_examples=examples(150))
@given(
    programs(kinds=("store", "store of rows", "sum", "max", "prod", "moments"), reduces_rows=True),
    st.sampled_from(SIZES[:5]),
    st.sampled_from([*FORMATS]),
    st.sampled_from(["fp32", "fp64"]),
)
def test_random_programs_that_reduce_rows(tested, size, layout, dtype):
    dtype, tight = {"fp32": (torch.float32, 4e-6), "fp64": (torch.float64, 1e-13)}[dtype]
    check(tested, size, dtype, layout, rtol=tight, atol=tight * size[0] * size[1] * size[2] * size[3])


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_channels_are_stored(dtype, layout):
    value = CHANNEL * 2 + program.scalar("scalar") / program.rows()
    outputs = [program.store(value, to, "channel") for to in (None, torch.float32)]
    outputs.append(program.store(CHANNEL > 0, torch.bool, "channel"))
    for size in SIZES:
        check(Program(*outputs, program.store(program.acc() * CHANNEL)), size, dtype, layout)
    check(Program(*outputs), (2, 24, 6, 6), dtype, layout)


def test_what_is_stored_of_channels_has_no_derivative():
    x, scale = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((2, 3, 4, 4), (3,)))
    tested = Program(program.store(CHANNEL + 1, per="channel"), program.store(program.acc() * CHANNEL))
    of_channels, result = torch_reformer.stitch(x, tested, {"channel": scale})
    assert not of_channels.requires_grad and torch.equal(of_channels, scale.detach() + 1)
    assert torch.allclose(torch.autograd.grad(result.sum(), scale)[0], x.sum((0, 2, 3)))


# --- errors
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acc", "tensors", "sentence"),
    [
        (torch.ones(2, 3), {}, "acc must have 4 dimensions, got 2"),
        (torch.ones(1, 2, 3, 4).int(), {}, "acc has data type Int"),
        (
            torch.ones(1, 2, 3, 4),
            {"channel": torch.ones(3)},
            "has size [3], but the result of size [1, 2, 3, 4] needs [2]",
        ),
        (torch.ones(1, 2, 3, 4), {"channel": torch.ones(2).short()}, "tensors[0] (channel) has data type Short"),
        (torch.ones(1, 2, 3, 4), {"full": torch.ones(1, 2, 1, 4)}, "needs [1, 2, 3, 4]"),
        (torch.ones(1, 2, 3, 4), {"row": torch.ones(1, 3, 3)}, "needs [1, 3, 4]"),
        (torch.ones(1, 2, 3, 4), {"plane": torch.ones(2)}, "needs [1, 2]"),
        (torch.ones(1, 2, 3, 4), {"scalar": torch.ones(2)}, "must have one element, got size [2]"),
        (torch.ones(1, 2, 3, 4), {"key": torch.ones(1)}, "tensors[0] (random) has data type Float"),
    ],
)
def test_sentences(acc, tensors, sentence):
    value = program.acc()
    for name in tensors:
        value = value + (program.random("key") if name == "key" else getattr(program, name)(name))
    with pytest.raises(RuntimeError) as error:
        torch_reformer.stitch(acc, Program(program.store(value)), tensors)
    assert "reformer::stitch: " in str(error.value) and sentence in str(error.value)


@pytest.mark.parametrize(
    "code",
    [
        (),
        (0, 1, 1),
        (0, 0, 1),
        (0, 1, 1, 99, -1, -1, -1, 0, 0, 0, 0, -1, -1),  # an unknown operation
        (0, 1, 1, NUMBER["neg"], 0, -1, -1, 0, 0, 0, 0, -1, -1),  # an operation on its own result
        (0, 1, 1, 0, -1, -1, -1, 0, 0, 0, 1, -1, -1),  # an output without a value
        (0, 1, 1, 0, -1, -1, -1, 0, 0, 1, 0, -1, -1),  # acc, stored per channel
        (0, 1, 1, 0, -1, -1, -1, 0, 0, 2, 0, -1, -1),  # acc, stored per row
        (0, 1, 1, 0, -1, -1, -1, 0, 0, 3, 0, -1, -1),  # acc, stored per plane
        (0, 1, 1, NUMBER["constant"], -1, -1, -1, 0, 0, 4, 0, -1, -1),  # a number, stored for all
        (0, 1, 1, 1, -1, -1, -1, 0, 0, 0, 0, -1, -1),  # an input that does not exist
        (1, 1, 1, 1, 1, -1, -1, -1, 4 << 16, 0, 0, 0, -1, -1, -1),  # a fourth digit
        (0, 1, 1, 0, -1, -1, -1, 0, 1, 1, 0, -1, 0),  # a factor that differs between elements
        (0, 1, 1, 0, -1, -1, -1, 0, 1, 1, 0, 5, -1),  # a sum stored as a mask
        (0, 1, 1, 0, -1, -1, -1, 0, 3, 1, 0, 2, -1),  # moments in fp16
        (0, 1, 1, 0, -1, -1, -1, 0, 0, 0, 0, -1, -1, 7),
    ],
)
def test_malformed_code(code):
    with pytest.raises(RuntimeError, match="reformer::stitch: the program is malformed"):
        torch.ops.reformer.stitch(torch.ones(1, 2, 3, 4), [], code)


def test_empty_results():
    x, c = torch.empty(0, 3, 4, 4), torch.arange(3.0)
    tested = Program(
        program.store(program.acc() + 1),
        program.sum(program.acc()),
        program.store(CHANNEL + program.rows(), per="channel"),
    )
    stored, summed, of_channels = torch_reformer.stitch(x, tested, {"channel": c})
    assert stored.shape == x.shape and torch.equal(summed, torch.zeros(3)) and torch.equal(of_channels, c)
    with pytest.raises(RuntimeError, match="has no maximum"):
        torch_reformer.stitch(x, Program(program.max(program.acc())))


@pytest.mark.parametrize("per", PER[1:])
def test_equal_largest_values_share_the_gradient(per):
    x = torch.randint(0, 3, (2, 3, 4, 4), dtype=torch.float64).requires_grad_()
    tested = Program(program.max(program.acc() * 2, per), program.store(program.acc()))
    largest, _ = torch_reformer.stitch(x, tested)
    (expected,) = interpret(Program(program.max(program.acc() * 2, per)), x.shape, x.dtype, {}, x)
    weights = torch.randn_like(expected)
    grads = [torch.autograd.grad(result, x, weights)[0] for result in (largest, expected)]
    torch.testing.assert_close(*grads)


def test_code_without_a_bias_that_the_convolution_adds_is_a_program():
    """C++ writes such code and passes it to Python if no GPU kernel runs the program."""
    tested = Program(program.store(program.relu(program.acc() + CHANNEL) * FULL))
    code, node = list(tested.code), [n.op for n in tested.nodes].index("add")
    at = 3 + len(tested.inputs) + 5 * node
    code[at : at + 5] = [0, -1, -1, -1, 0]
    changed = decode(tuple(code))
    assert [*changed.inputs.values()] == ["channel", "full"]
    assert [n.op for n in changed.nodes] == ["acc", "relu", "full", "mul"]


def test_numbers_are_for_private_operators():
    """Where others may see a program it is passed as its code."""
    x = torch.ones(1, 2, 3, 3)
    torch_reformer.stitch(x, Program(program.store(program.acc() * 2)))
    with pytest.raises(RuntimeError, match="the program is malformed: it ends early"):
        torch.ops.reformer.stitch(x, [], [0])
    with pytest.raises(RuntimeError, match="_run: no plan has the number -1"):
        torch.ops.reformer._run([x], -1)
    with pytest.raises(RuntimeError, match="conv2d: -1 is not a geometry"):
        torch.ops.reformer._conv2d(x, torch.ones(2, 2, 1, 1), None, -1)
