"""Fused operators under PyTorch's transforms, and the tensors that they save for the backward.

Derivatives of derivatives, torch.func, autocast, checkpointing, torch.compile.
"""

import itertools
import warnings

import pytest
import torch
import unfused
from cases import ops
from test_autograd import check_per_sample_gradients
from test_compile import BACKENDS, trained
from test_fused import conv_tensors
from torch.autograd import gradcheck, gradgradcheck
from torch.func import hessian, jacfwd, jvp
from torch.utils.checkpoint import checkpoint
from unfused import ACTIVATIONS

import torch_reformer
from torch_reformer import conv2d_act, conv2d_batch_norm_act, linear_act, program
from torch_reformer.nn import Conv2dAct, Conv2dBatchNormAct, LinearAct
from torch_reformer.program import Program


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def small(requires_grad=True):
    """Operands of a small convolution with a residual: x, w, bias, residual, norm_weight, norm_bias."""
    sizes = (2, 2, 4, 4), (3, 2, 3, 3), (3,), (2, 3, 2, 2), (3,), (3,)
    return [torch.randn(size, dtype=torch.float64, requires_grad=requires_grad) for size in sizes]


def act(activation, module=torch_reformer):
    return lambda x, w, bias, residual, *_: module.conv2d_act(x, w, bias, activation=activation, residual=residual)


def norm(activation, training=True, module=torch_reformer):
    def function(x, w, bias, residual, *parameters):
        statistics = torch.full((3,), 0.1, dtype=x.dtype), torch.full((3,), 2.0, dtype=x.dtype)
        options = dict(training=training, activation=activation, residual=residual)
        return module.conv2d_batch_norm_act(x, w, bias, *statistics, *parameters, **options)

    return function


# --- autograd ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "gelu", "hardswish", "tanh"])
@pytest.mark.parametrize("kind", ["act", "training", "evaluation"])
def test_second_derivatives(kind, activation):
    function = act(activation) if kind == "act" else norm(activation, kind == "training")
    assert gradgradcheck(function, small())


def test_forward_over_reverse():
    assert gradgradcheck(act("silu"), small(), check_fwd_over_rev=True)
    assert gradcheck(norm("silu"), small(), check_forward_ad=True)


def test_linear_with_dropout_twice_differentiated():
    x, w = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((5, 3), (4, 3)))

    def function(x, w):
        torch.manual_seed(1)
        return linear_act(x, w, activation="gelu", dropout=0.4)

    assert gradcheck(function, (x, w)) and gradgradcheck(function, (x, w))


@pytest.mark.parametrize("needed", [n for n in itertools.product([False, True], repeat=4) if any(n)], ids=str)
def test_only_some_need_gradients(needed):
    results = []
    tensors = [t.detach() for t in small()[:4]]
    for module in (torch_reformer, unfused):
        chosen = [t.clone().requires_grad_(n) for t, n in zip(tensors, needed, strict=True)]
        act("silu", module)(*chosen).square().sum().backward()
        assert [t.grad is not None for t in chosen] == list(needed)
        results.append([t.grad for t in chosen if t.grad is not None])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "function", [act("silu"), norm("silu"), norm("silu", False)], ids=["act", "training", "evaluation"]
)
def test_without_gradients(function, off):
    tensors = small()
    expected = function(*tensors)
    with off():
        result = function(*tensors)
    assert expected.requires_grad and not result.requires_grad
    torch.testing.assert_close(result, expected.detach())


def test_retain_graph():
    x, w, bias, residual, *_ = small()
    loss = act("silu")(x, w, bias, residual).square().sum()
    first = torch.autograd.grad(loss, (x, w, bias, residual), retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, (x, w, bias, residual))))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_operands_changed_in_place_are_noticed():
    x, w, bias, *_ = small()
    residual = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    y = conv2d_act(x, w, bias, residual=residual)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpoint(use_reentrant, dropout):
    """The recomputed forward draws the same dropout mask."""
    tensors = small()
    head = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)

    def function(*tensors):
        *tensors, head = tensors
        return linear_act(norm("silu")(*tensors), head, activation="gelu", dropout=dropout)

    results = []
    for run in (function, lambda *t: checkpoint(function, *t, use_reentrant=use_reentrant)):
        torch.manual_seed(2)
        y = run(*tensors, head)
        y.square().sum().backward()
        results.append([y, *(t.grad for t in (*tensors, head))])
        for t in (*tensors, head):
            t.grad = None
    torch.testing.assert_close(*results)


# --- torch.func -------------------------------------------------------------------------------------------------------
# torch.func sees PyTorch's own operations there.


def test_forward_mode():
    tensors = tuple(t.detach() for t in small())
    tangents = tuple(map(torch.randn_like, tensors))
    for function in (act, norm):
        torch.testing.assert_close(
            *(jvp(function("silu", module=module), tensors, tangents) for module in (torch_reformer, unfused))
        )


def test_jacobians():
    tensors = [t.detach() for t in small()]
    for transform in (jacfwd, hessian):
        results = []
        for module in (torch_reformer, unfused):

            def function(w, module=module):
                return act("gelu", module)(tensors[0], w, *tensors[2:]).square().sum((1, 2, 3))

            results.append(transform(function)(tensors[1]))
        torch.testing.assert_close(*results)


def test_per_sample_gradients():
    model = torch.nn.Sequential(Conv2dAct(2, 3, 3, activation="silu"), torch.nn.Flatten(), LinearAct(12, 2)).double()
    check_per_sample_gradients(model, torch.randn(4, 2, 4, 4, dtype=torch.float64))


# --- saved for the backward -------------------------------------------------------------------------------------------


def saved_bytes(function, *arguments, **keywords) -> int:
    """Bytes of the storages that the backward saves."""
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function(*arguments, **keywords)  # noqa: F841  what is saved lives as long as it
        return sum(storages.values())


@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_saves_no_more_than_pytorch(activation, residual):
    x, w, bias, other = (t.requires_grad_() for t in conv_tensors(torch.float32).values())
    scale, shift, mean, var = (torch.ones(16, requires_grad=i < 2) for i in range(4))
    options = dict(activation=activation, residual=other if residual else None)

    def saved(module):
        norm = module.conv2d_batch_norm_act, x, w, None, mean, var, scale, shift
        after_norm = [saved_bytes(*norm, training=training, **options) for training in (True, False)]
        return [saved_bytes(module.conv2d_act, x, w, bias, **options), *after_norm]

    ours, theirs = saved(torch_reformer), saved(unfused)
    assert all(mine <= others for mine, others in zip(ours, theirs, strict=True)), (ours, theirs)
    # The input, the weight, and for an activation at most one tensor as large as the result.
    tensor, result = 4 * x.numel() + 4 * w.numel(), 4 * other.numel()
    assert ours[0] <= tensor + result
    if not residual and activation in ("silu", "gelu", "gelu_tanh", "hardswish", "hardsigmoid", "leaky_relu"):
        assert theirs[1] > tensor + 2 * result > ours[1]  # recomputed from the convolution's result


def test_linear_saves_no_mask():
    x, w = torch.randn(64, 32, requires_grad=True), torch.randn(128, 32, requires_grad=True)
    ours = saved_bytes(linear_act, x, w, activation="gelu", dropout=0.1)
    theirs = saved_bytes(lambda: torch.dropout(unfused.linear_act(x, w, activation="gelu"), 0.1, True))
    assert ours == 4 * (64 * 32 + 128 * 32 + 64 * 128) + 8
    assert theirs >= ours + 64 * 128 - 8


# --- autocast ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["act", "training", "evaluation", "linear"])
def test_autocast(kind, dtype):
    """Data types are PyTorch's, and the error against fp64 is at most twice PyTorch's; vectors stay in fp32."""
    if kind == "linear":
        tensors = dict(x=torch.randn(40, 24), w=torch.randn(32, 24), bias=torch.randn(32))
    else:
        tensors = {name: t for name, t in conv_tensors(torch.float32).items() if name != "residual"}
        tensors |= {} if kind == "act" else dict(norm_weight=torch.randn(16), norm_bias=torch.randn(16))

    def of(module):
        def function(x, w, bias, **others):
            cast = x.dtype != torch.float64
            with torch.autocast("cpu", dtype, enabled=cast):
                if kind == "linear":
                    return module.linear_act(x, w, bias, activation="silu")
                if kind == "act":
                    return module.conv2d_act(x, w, bias, activation="silu")
                mean, var = torch.zeros(16, dtype=x.dtype), torch.ones(16, dtype=x.dtype)
                others |= dict(training=kind == "training", activation="silu")
                return module.conv2d_batch_norm_act(x, w, bias, mean, var, **others)

        return function

    unfused.compare(of(torch_reformer), of(unfused), tensors, tensors.keys() - {"bias"} if kind == "training" else None)


# --- torch.compile ----------------------------------------------------------------------------------------------------


def network(dropout=0.0):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        Conv2dBatchNormAct(3, 8, 3, padding=1, activation="silu"),
        Conv2dAct(8, 4, 3, stride=2, activation="gelu"),
        torch.nn.Flatten(1),
        LinearAct(4 * 3 * 4, 6, activation="hardswish", dropout=dropout),
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_training(backend):
    images = torch.randn(4, 3, 8, 10)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        results = [trained(network(), images, used) for used in (None, backend)]
    assert not [w for w in seen if "lru_cache" in str(w.message)]
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_dropout(backend):
    model = LinearAct(1, 64, bias=False, activation="none", dropout=0.25)
    model = torch.compile(model, backend=backend, fullgraph=True)
    x = torch.ones(500, 1, requires_grad=True)
    first, second = model(x), model(x)
    assert not torch.equal(first, second)
    assert abs((first == 0).double().mean() - 0.25) < 6 * (0.25 * 0.75 / first.numel()) ** 0.5
    (gradient,) = torch.autograd.grad(second.sum(), x)
    torch.testing.assert_close(gradient[:, 0], second.sum(1))


@pytest.mark.parametrize("training", [False, True])
def test_batches_do_not_compile_again(training):
    """At most two compilations with dynamic=True, as for PyTorch's modules; none for sizes that were seen before."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    model = network().train(training)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for batch in (2, 5, 7, 9, 2, 5):
        result = compiled(torch.randn(batch, 3, 8, 10))
        if training:
            result.sum().backward()
    assert counter.frame_count <= 2


def normalised(x, w, share):
    mean, var = torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype)
    y = conv2d_batch_norm_act(x, w, None, mean, var, training=True, eps=share / 8, momentum=share)
    return y, mean, conv2d_batch_norm_act(x, w, None, mean, var, training=False, eps=share)


def programmed(x, w, share):
    tested = Program(program.store(program.maximum(program.acc() * share, share - 2)))
    return torch_reformer.conv2d_epilogue(x, w, tested)


def dropped(x, w, share):
    return linear_act(x.flatten(1), w.flatten(1).repeat(1, 4), dropout=share)


@pytest.mark.slow
@pytest.mark.parametrize("function", [normalised, programmed, dropped])
def test_numbers_that_dynamo_makes_symbols(function):
    """Numbers are part of a program, so a graph is valid only for the recorded ones. Numbers that were seen before are
    not compiled again."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    x, w = torch.randn(2, 3, 6, 4, dtype=torch.float64), torch.randn(4, 3, 3, 2, dtype=torch.float64)
    frames = []
    for share in (0.1, 0.25, 0.1, 0.25):
        results = []
        for each in (function, compiled):
            torch.manual_seed(1)
            results.append(each(x, w, share))
        torch.testing.assert_close(*results)
        frames.append(counter.frame_count)
    assert frames[1:] == frames[1:2] * 3


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_dynamic_module(training):
    """No more graphs than for PyTorch's modules."""
    counts = []
    for make in (unfused.ConvNormAct, Conv2dBatchNormAct):
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        model = make(3, 4, 3).train(training)
        compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
        for batch, width in ((2, 8), (3, 11), (5, 9)):
            x = torch.randn(batch, 3, 8, width)
            torch.testing.assert_close(compiled(x), model(x))
        counts.append(counter.frame_count)
    assert counts[1] <= counts[0]


def test_export():
    model = network().eval()
    exported = torch.export.export(model, (torch.randn(3, 3, 8, 10),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert sum(node.target is ops.conv2d_epilogue.default for node in exported.graph.nodes) == 3
    images = torch.randn(5, 3, 8, 10)
    torch.testing.assert_close(exported.module()(images), model(images))


# --- PyTorch's own checks ---------------------------------------------------------------------------------------------

ACC, BIAS, FULL = program.acc(), program.channel("bias"), program.full("residual")
PROGRAMS = {
    "relu": Program(program.store(program.relu(ACC + BIAS + FULL))),
    "silu": Program(program.store(program.silu(ACC + BIAS))),
    "moments": Program(program.store(ACC + BIAS), program.moments(ACC + BIAS)),
    "several": Program(
        program.store(ACC, torch.float32),
        program.store(ACC > 0, torch.bool),
        program.sum(ACC * FULL, "row"),
        program.max(ACC),
    ),
    "dropout": Program(program.store(ACC * program.select(program.random("key") < 0.5, 0, 2))),
    "no acc": Program(program.store(program.row("pixels") * BIAS)),
}


@pytest.mark.parametrize("requires_grad", [False, True], ids=["constant", "grad"])
@pytest.mark.parametrize(
    "layout, dtype", [("contiguous", torch.float32), ("channels_last", torch.bfloat16)], ids=["NCHW fp32", "NHWC bf16"]
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_opcheck(name, layout, dtype, requires_grad):
    tested = PROGRAMS[name]
    x, w, *_ = (t.to(dtype) for t in conv_tensors(dtype, n=2, c=3, size=6, k=4).values())
    sizes = dict(bias=(4,), residual=(2, 4, 4, 4), pixels=(2, 4, 4))
    tensors = [torch.tensor([7]) if n == "key" else torch.randn(sizes[n]).to(dtype) for n in tested.inputs]
    acc = torch.randn(2, 4, 4, 4).to(dtype)
    if layout == "channels_last":
        x, acc = (t.contiguous(memory_format=torch.channels_last) for t in (x, acc))
    for t in (x, w, acc, *tensors):
        t.requires_grad_(requires_grad and t.is_floating_point())
    torch.library.opcheck(ops.stitch.default, (acc, tensors, tested.code))
    torch.library.opcheck(ops.conv2d_epilogue.default, (x, w, tensors, tested.code))


def test_opcheck_of_batch_norm_as_it_is_called():
    """The operators with the programs that conv2d_batch_norm_act writes, recorded from a call."""
    calls = []

    class Record(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op in (ops.stitch.default, ops.conv2d_epilogue.default):
                calls.append((op, args))
            return op(*args, **(kwargs or {}))

    x, w, bias, residual = conv_tensors(torch.float32, n=2, size=6, k=4).values()
    with Record():
        conv2d_batch_norm_act(x, w, bias, torch.zeros(4), torch.ones(4), training=True, residual=residual)
    assert [op._opname for op, _ in calls] == ["conv2d_epilogue", "stitch"]
    for op, arguments in calls:
        torch.library.opcheck(op, arguments)
