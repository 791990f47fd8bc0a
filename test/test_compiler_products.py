"""Matrix products on Hopper with programs in their kernels. Plans are made as for an H200 and run on the CPU, where the
same steps compute the same values."""

import math

import pytest
import torch
import torch.nn.functional as F
from against_eager import without_dynamo
from gpu_rules import as_on_hopper
from marks import needs_aten
from selectors_for_tests import description, no_selector, reformer

import torch_reformer
from torch_reformer import program
from torch_reformer.compiler.codegen import emit_plan
from torch_reformer.compiler.fusion import anchor_products
from torch_reformer.compiler.ir import device_model, epilogue_cost
from torch_reformer.compiler.ir.product import Product
from torch_reformer.runtime import native

pytestmark = needs_aten
M, K, N = 256, 32, 48


@pytest.fixture(autouse=True)
def by_the_table():
    """The shipped weights leave products as small as these to cuBLAS."""
    with no_selector("sm_90", "products"):
        yield


def tensors(dtype=torch.bfloat16, rows=M, depth=K, columns=N, seed=0) -> list[torch.Tensor]:
    """Input, weight, bias and a residual."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (rows, depth), (columns, depth), (columns,), (rows, columns)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_() for size in sizes]


def kinds_and_results(function, given, least=0):
    """Kinds of the lines of both passes, and results and gradients."""
    reports = []
    with as_on_hopper(least):
        results = without_dynamo(function, reports.append)(*given)
        results = results if isinstance(results, (list, tuple)) else (results,)
        total = sum(result.float().square().sum() for result in results)
        grads = torch.autograd.grad(total, given, allow_unused=True)
    lines = [[line for line in report.lines if line.kind != "stitch"] for report in reports]
    return [[(line.kind, line.operations[1:]) for line in each] for each in lines], [*results, *grads]


def eager(function, given):
    results = function(*given)
    results = results if isinstance(results, (list, tuple)) else (results,)
    total = sum(result.float().square().sum() for result in results)
    return [*results, *torch.autograd.grad(total, given, allow_unused=True)]


def check(found, function, given, factor=1.5):
    """Results and gradients are like eager's, and at most `factor` times as far from those in fp64."""
    exact = eager(function, [tensor.detach().double().requires_grad_() for tensor in given])
    for one, other, true in zip(found, eager(function, given), exact, strict=True):
        if other is None:
            assert one is None
            continue
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        error, bound = (one - true).abs().max(), (other - true).abs().max()
        assert error <= bound * factor + torch.finfo(given[0].dtype).eps


FORWARD = {
    "gelu": (lambda x, w, b, r: F.gelu(F.linear(x, w, b)), ("add", "gelu")),
    "tanh gelu": (lambda x, w, b, r: F.gelu(F.linear(x, w, b), approximate="tanh"), ("add", "gelu")),
    "relu without a bias": (lambda x, w, b, r: F.relu(F.linear(x, w)), ("relu",)),
    "residual": (lambda x, w, b, r: F.linear(x, w, b) + r, ("add", "add")),
    "scaled": (lambda x, w, b, r: F.linear(x, w) * b + r, ("mul", "add")),
    "second reader": (lambda x, w, b, r: (lambda y: (F.silu(y), y))(F.linear(x, w, b)), ("add", "silu")),
    "three dimensions": (lambda x, w, b, r: F.gelu(F.linear(x.view(4, 64, K), w, b)), ("add", "gelu")),
    "a view of it": (lambda x, w, b, r: F.gelu(F.linear(x, w, b)).view(64, 4, N)[1:], ("add", "gelu")),
    "its transpose": (lambda x, w, b, r: F.gelu(F.linear(x, w, b)).t(), ("add", "gelu")),
    "in place": (lambda x, w, b, r: F.linear(x, w, b).mul_(2).relu_(), ("add", "mul[2]", "relu")),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FORWARD)
def test_values(name, dtype):
    """The forward's product has the program, and results are no farther from fp64 than eager's."""
    function, operations = FORWARD[name]
    given = tensors(dtype)
    (forward, *_), found = kinds_and_results(function, given)
    assert forward == [("product", operations)]
    check(found, function, given)


@pytest.mark.parametrize("name", FORWARD)
def test_kernels_run_the_programs(name, monkeypatch):
    """The library has a kernel for what the planner expects one for."""
    answers, asked = [], emit_plan._is_computed_by_kernel
    monkeypatch.setattr(emit_plan, "_is_computed_by_kernel", lambda *call: answers.append(asked(*call)) or answers[-1])
    kinds_and_results(FORWARD[name][0], tensors())
    assert answers and all(answers)


SLOPE = program.acc() * program.sigmoid(program.full("before"))


@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("outputs", [[program.store(SLOPE)], [program.store(SLOPE), program.sum(SLOPE)]], ids=len)
@pytest.mark.parametrize(
    ("depth", "columns", "tile"),
    [(768, 3072, "pingpong_128x192"), (1024, 1024, "pingpong_128x128"), (96, 384, "128x128")],
)
def test_choice_of_kernels(depth, columns, tile, outputs, direction):
    """Where no weights know the kernels, the depth and the columns choose."""
    code = program.Program(*outputs).code
    inner, outer, letter = (depth, columns, "F") if direction == "forward" else (columns, depth, "B")
    key = f"{inner}-8192-1-1x1-{outer}-8192-1-1-0x0-1x1-1x1-0-NHWC-BF16-{letter}"
    decision, _ = native.epilogue(native.problem_parse(key), "sm_90", code)
    assert decision.is_fused and native.solver_names()[decision.fused] == f"gpu_tma_gemm_{tile}"


CALLS = {
    "only a bias": lambda x, w, b, r: F.linear(x, w, b),
    "both transposed": lambda x, w, b, r: F.gelu(x[:N].t() @ w),
    "unaligned depth": lambda x, w, b, r: F.gelu(F.linear(x[:, :20].contiguous(), w[:, :20].contiguous(), b)),
    "unaligned columns": lambda x, w, b, r: F.gelu(F.linear(x, w[:20], b[:20])),
    "unaligned offset": lambda x, w, b, r: F.gelu(F.linear(x.view(-1)[4 : 4 + 32 * K].view(32, K), w, b)),
    "rows with gaps": lambda x, w, b, r: F.gelu(F.linear(x[:, :16], w[:, :16].contiguous(), b)),
    "softmax": lambda x, w, b, r: F.linear(x, w, b).softmax(-1),
    "fp32 result": lambda x, w, b, r: F.linear(x, w, b).float().tanh(),
    "one row": lambda x, w, b, r: F.gelu(F.linear(x[:1], w, b)),
    "fp32": lambda x, w, b, r: F.gelu(F.linear(x.float(), w.float(), b.float())),
}


@pytest.mark.parametrize("name", CALLS)
def test_stays_a_call(name):
    (forward, *_), found = kinds_and_results(CALLS[name], tensors())
    assert not any(kind == "product" for kind, _ in forward)
    check(found, CALLS[name], tensors())


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows):
    function, _ = FORWARD["gelu"]
    given = tensors(rows=rows)
    found = kinds_and_results(function, given)[1]
    for one, other in zip(found, eager(function, given), strict=True):
        torch.testing.assert_close(one, other)


def test_small_products_are_calls():
    """Their tiles would not fill the GPU."""
    function, _ = FORWARD["gelu"]
    (forward, *_), _ = kinds_and_results(function, tensors(), least=M * N + 1)
    assert [kind for kind, _ in forward] in (["aten::mm"], ["aten::addmm"])


def test_not_a_number():
    """NaN and infinity of the input, the bias and the residual stay in their rows and columns."""
    given = tensors()
    with torch.no_grad():
        given[0][3, 5], given[2][7], given[3][9, 11], given[3][9, 12] = torch.nan, torch.inf, torch.nan, -torch.inf
    for name in ("gelu", "residual", "scaled"):
        function, operations = FORWARD[name]
        (forward, *_), (found, *_) = kinds_and_results(function, given)
        assert forward == [("product", operations)]
        exact = function(*(tensor.detach().double() for tensor in given)).bfloat16()
        torch.testing.assert_close(found, exact, rtol=2e-2, atol=2e-2, equal_nan=True)


def test_mlp_of_a_transformer():
    """Under autocast the first product has the activation, and stores what that is of; the second one, whose result a
    norm reads, is a call."""
    first, second, norm = torch.nn.Linear(K, N), torch.nn.Linear(N, K), torch.nn.LayerNorm(K)

    def block(x, *_):
        with torch.autocast("cpu", torch.bfloat16):
            return norm(x + second(F.gelu(first(x))))

    x = torch.randn(M, K).requires_grad_()
    given = [x, *first.parameters(), *second.parameters(), *norm.parameters()]

    def functional(x, w1, b1, w2, b2, w3, b3):
        with torch.autocast("cpu", torch.bfloat16):
            return F.layer_norm(x + F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2), (K,), w3, b3)

    (forward, _), found = kinds_and_results(functional, given)
    assert [each for each in forward if each[0] == "product"] == [("product", ("add", "gelu"))]
    for one, other in zip(found, eager(block, given), strict=True):
        torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-2)


def test_gates():
    """The product of the gated half has the gate; in the backward nothing depends on the order of the two."""
    generator = torch.Generator().manual_seed(0)
    x, up, gate = (torch.randn(size, generator=generator).bfloat16() for size in ((M, K), (N, K), (N, K)))
    given = [each.requires_grad_() for each in (x, up, gate)]

    def function(x, up, gate):
        return F.silu(F.linear(x, gate)) * F.linear(x, up)

    (forward, _), found = kinds_and_results(function, given)
    assert any(kind == "product" and operations[-1] == "mul" for kind, operations in forward)
    check(found, function, given)


def test_input_gradients():
    """The gradient of a gated layer's operand has the gradients of both halves in its kernel, which reads the weight as
    it lies in memory."""
    generator = torch.Generator().manual_seed(0)
    sizes = (8192, 32), (512, 32), (512, 32), (64, 512)
    given = [torch.randn(size, generator=generator).div(4).bfloat16().requires_grad_() for size in sizes]

    def function(x, up, gate, down):
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    (_, backward), found = kinds_and_results(function, given)
    assert any(kind == "product" and "sigmoid" in operations for kind, operations in backward)
    assert not any("_contiguous" in kind for kind, _ in backward)
    check(found, function, given)


def mlp(x, first, bias, second):
    return F.linear(F.gelu(F.linear(x, first, bias)), second)


def of_mlp(rows=M, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (rows, K), (N, K), (N,), (K, N)
    return [torch.randn(size, generator=generator).div(2).bfloat16().requires_grad_() for size in sizes]


# 203 rows: of the second tile of rows, some do not exist.
@pytest.mark.parametrize("rows", [M, 203])
def test_gradient_of_a_bias(rows, monkeypatch):
    """It is summed in the kernel of the product and of GELU's gradient."""
    answers, asked = [], emit_plan._is_computed_by_kernel
    monkeypatch.setattr(emit_plan, "_is_computed_by_kernel", lambda *call: answers.append(asked(*call)) or answers[-1])
    given = of_mlp(rows)
    (_, backward), found = kinds_and_results(mlp, given)
    assert ("product", ("gelu_backward", "sum")) in backward
    assert answers == [True, True]
    check(found, mlp, given, factor=2)


def test_gradient_of_a_bias_that_is_not_finite():
    given = of_mlp()
    with torch.no_grad():
        given[0][3, 5], given[3][4, 7] = torch.nan, torch.inf
    (_, backward), found = kinds_and_results(mlp, given)
    assert ("product", ("gelu_backward", "sum")) in backward
    for one, other in zip(found, eager(mlp, given), strict=True):
        assert torch.equal(one.isnan(), other.isnan())


REDUCED = {
    "of what is not stored": lambda x, w, b, r: (F.linear(x, w).relu().sum(0),),
    "along rows": lambda x, w, b, r: (lambda y: (y, y.float().sum(1)))(F.linear(x, w).relu()),
    "of everything": lambda x, w, b, r: (lambda y: (y, y.float().sum()))(F.linear(x, w).relu()),
    "of the second result": lambda x, w, b, r: (lambda y: (y, y.relu(), y.relu().float().sum(0)))(F.linear(x, w)),
    "two": lambda x, w, b, r: (lambda y: (y, y.float().sum(0), y.float().amax(0)))(F.linear(x, w).relu()),
}


@pytest.mark.parametrize("name", REDUCED)
def test_reductions_of_other_kernels(name):
    given = tensors()
    reports = []
    with as_on_hopper():
        found = without_dynamo(REDUCED[name], reports.append)(*given)
    assert not any(line.kind == "product" and {"sum", "max"} & set(line.operations) for line in reports[0].lines)
    for one, exact in zip(found, REDUCED[name](*(tensor.detach().double() for tensor in given)), strict=True):
        torch.testing.assert_close(one.double(), exact.double(), rtol=2e-2, atol=2e-1)


def test_dropout():
    """The backward draws the same numbers."""
    given = tensors()

    def function(x, w, b, r):
        return F.dropout(F.linear(x, w, b), 0.5) + r

    with torch.no_grad():
        given[3].zero_()
    (forward, *_), (result, *grads) = kinds_and_results(function, given)
    kept = result != 0
    assert 0.4 < kept.float().mean() < 0.6
    expected = (2 * result.float() * 2 * kept).sum(0)
    torch.testing.assert_close(grads[2].float(), expected, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("setting", [{"force": "aten"}, {"epilogues": "separate"}])
def test_settings_keep_calls(setting):
    function, _ = FORWARD["gelu"]
    with torch_reformer.config(**setting):
        (forward, *_), _ = kinds_and_results(function, tensors())
    assert not any(kind == "product" for kind, _ in forward)


def test_other_devices_keep_calls():
    reports = []
    function, _ = FORWARD["gelu"]
    without_dynamo(function, reports.append)(*tensors())
    assert not any(line.kind == "product" for line in reports[0].lines)


def test_without_a_kernel(monkeypatch):
    """A program that no kernel runs follows PyTorch's product in a kernel of its own."""
    monkeypatch.setattr(emit_plan, "_is_computed_by_kernel", lambda product, kernel: False)
    for name in ("gelu", "second reader", "scaled"):
        function, _ = FORWARD[name]
        given = tensors()
        _, found = kinds_and_results(function, given)
        check(found, function, given, factor=2)  # the product is rounded before the bias is added, too


@pytest.mark.parametrize(
    ("sizes", "slots", "bytes", "measured"),
    [  # additional microseconds on an H200: rows, depth, columns; tensors beyond one
        ((12608, 768, 3072), 25, 1, 31.6),
        ((8192, 1024, 4096), 17.5, 1, 15.2),
        ((401408, 96, 384), 25, 1, 104),
        ((100352, 192, 768), 30, 1, 79),
        ((401408, 96, 384), 12, 1, 73.5),
        ((12608, 768, 3072), 12, 1, 11.3),
    ],
)
def test_expected_time(sizes, slots, bytes, measured):
    rows, depth, columns = sizes
    result, factors = 2 * rows * columns, 2 * depth * (rows + columns)
    moved = factors + result, factors + result * (1 + bytes)
    expected = epilogue_cost.epilogue_us("sm_90", rows * columns, 2 * rows * depth * columns, moved, slots)
    assert 0.7 * measured < expected < 1.5 * measured


def test_no_program_that_takes_longer(monkeypatch):
    monkeypatch.setattr(anchor_products, "epilogue_us", lambda *_: 1e6)
    function, _ = FORWARD["gelu"]
    (forward, *_), _ = kinds_and_results(function, tensors())
    assert not any(kind == "product" for kind, _ in forward)


@pytest.fixture
def a_selector():
    """Function that sets a selector of products with equal logits for every product; removed after the test."""

    def install(**logits: float) -> None:
        model = reformer(len(logits), decides="products")
        with torch.no_grad():
            model.head.weight.zero_()
            model.head.bias.copy_(torch.tensor(list(logits.values())))
        native.set_selector("sm_90", **description(model, list(logits), "products"))

    with no_selector("sm_90", "products"):
        yield install


@pytest.mark.parametrize("name", ["gelu", "scaled", "second reader", "residual"])
def test_the_selector_decides(name, a_selector, monkeypatch):
    """By the selector's weights a program runs in the product's kernel or, however little that costs, does not."""
    monkeypatch.setattr(anchor_products, "epilogue_us", lambda *_: pytest.fail("the cost model was asked"))
    function, operations = FORWARD[name]
    given = tensors()
    a_selector(aten=0.0, gpu_tma_gemm_128x128=60.0)  # 0.15 of the time
    (forward, *_), found = kinds_and_results(function, given)
    assert forward[0] == ("product", operations)
    check(found, function, given)
    a_selector(aten=1.0, gpu_tma_gemm_128x128=0.0)
    (forward, *_), found = kinds_and_results(function, given)
    assert not any(kind == "product" for kind, _ in forward)
    check(found, function, given, factor=2)


def test_the_selector_knows_the_gpu(monkeypatch):
    """The choice is asked for with the GPU's name and the program's operands."""
    asked = []

    def choice(product, program):
        asked.append((product.device, product.key, program.kinds, len(program.outputs)))
        return native.Epilogue(fused=-1, probability=math.nan)

    monkeypatch.setattr(Product, "choice", choice)
    kinds_and_results(FORWARD["gelu"][0], tensors())
    assert asked[0][:3] == ("sm_90", f"gemm-{M}-{N}-{K}-tn-BF16", ("channel",))
    assert device_model.device_of("H100") == "sm_90:H100" and device_model.device_of("sm_90") == "sm_90"
