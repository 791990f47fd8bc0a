"""Bad input raises an error with the argument and its value before any work, in fake kernels, too."""

import math

import expecttest
import pytest
import torch
from cases import ops
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_reformer
from torch_reformer import conv2d, program
from torch_reformer.program import Program


def huge(*size):
    """A tensor of this size without memory of its own."""
    return torch.zeros(()).expand(size)


def images():
    return torch.zeros(2, 4, 5, 6)


def filters():
    return torch.zeros(6, 4, 3, 3)


def output():
    return torch.zeros(2, 6, 3, 4)


# Calls, and their message after "reformer::".
BAD = {
    "input of 2 dimensions": (
        lambda: conv2d(torch.zeros(2, 5), filters()),
        "conv2d: input must have 4 dimensions, got 2 ([2, 5])",
    ),
    "input of 5 dimensions": (
        lambda: conv2d(torch.zeros(2, 4, 5, 5, 5), filters()),
        "conv2d: input must have 4 dimensions, got 5 ([2, 4, 5, 5, 5])",
    ),
    "weight of 3 dimensions": (
        lambda: conv2d(images(), torch.zeros(6, 4, 3)),
        "conv2d: weight must have 4 dimensions, got 3 ([6, 4, 3])",
    ),
    "channels of input": (
        lambda: conv2d(images(), torch.zeros(6, 3, 3, 3)),
        "conv2d: weight of size [6, 3, 3, 3] with groups = 1 takes 3 channels, but input of size [2, 4, 5, 6] has 4",
    ),
    "input not divisible": (
        lambda: conv2d(images(), filters(), groups=3),
        "conv2d: input has 4 channels, not divisible by groups = 3",
    ),
    "weight not divisible": (
        lambda: conv2d(images(), torch.zeros(5, 2, 3, 3), groups=2),
        "conv2d: weight has 5 output channels, not divisible by groups = 2",
    ),
    "no groups": (
        lambda: conv2d(images(), filters(), groups=0),
        "conv2d: groups must be at least 1 and below 2^31, got 0",
    ),
    "huge groups": (
        lambda: conv2d(torch.zeros(1, 0, 3, 3), torch.zeros(0, 0, 2, 2), groups=2**32),
        "conv2d: groups must be at least 1 and below 2^31, got 4294967296",
    ),
    "negative padding": (
        lambda: conv2d(images(), filters(), padding=(1, -1)),
        "conv2d: padding must be at least 0 and below 2^31, got [1, -1]",
    ),
    "huge padding": (
        lambda: conv2d(images(), filters(), padding=2**31),
        "conv2d: padding must be at least 0 and below 2^31, got [2147483648, 2147483648]",
    ),
    "zero stride": (
        lambda: conv2d(images(), filters(), stride=0),
        "conv2d: stride must be at least 1 and below 2^31, got [0, 0]",
    ),
    "zero dilation": (
        lambda: conv2d(images(), filters(), dilation=(1, 0)),
        "conv2d: dilation must be at least 1 and below 2^31, got [1, 0]",
    ),
    "stride of three": (
        lambda: ops.conv2d(images(), filters(), None, [1, 1, 1]),
        "conv2d: stride must have 2 values (height, width), got [1, 1, 1]",
    ),
    "padding of one": (
        lambda: ops.conv2d(images(), filters(), None, [1, 1], [1]),
        "conv2d: padding must have 2 values (height, width), got [1]",
    ),
    "filter higher than the input": (
        lambda: conv2d(images(), torch.zeros(6, 4, 4, 1), dilation=2),
        "conv2d: weight of size [6, 4, 4, 1] with dilation 2 covers 7 rows, but the padded input has only 5",
    ),
    "filter wider than the input": (
        lambda: conv2d(images(), torch.zeros(6, 4, 1, 9), padding=1),
        "conv2d: weight of size [6, 4, 1, 9] with dilation 1 covers 9 columns, but the padded input has only 8",
    ),
    "input without rows": (
        lambda: conv2d(torch.zeros(2, 4, 0, 5), filters()),
        "conv2d: weight of size [6, 4, 3, 3] with dilation 1 covers 3 rows, but the padded input has only 0",
    ),
    "empty filter": (
        lambda: conv2d(images(), torch.zeros(6, 4, 0, 3)),
        "conv2d: weight of size [6, 4, 0, 3] has an empty filter",
    ),
    "size of bias": (
        lambda: conv2d(images(), filters(), torch.zeros(5)),
        "conv2d: bias has size [5], but weight has 6 output channels",
    ),
    "dimensions of bias": (
        lambda: conv2d(images(), filters(), torch.zeros(6, 1)),
        "conv2d: bias has size [6, 1], but weight has 6 output channels",
    ),
    "huge input": (
        lambda: conv2d(huge(2**16, 4, 2**8, 2**8), filters()),
        "conv2d: input of size [65536, 4, 256, 256] has 2^31 elements or more, which is not supported",
    ),
    "huge and empty input": (
        lambda: conv2d(huge(0, 4, 2**32, 5), filters()),
        "conv2d: input of size [0, 4, 4294967296, 5] has 2^31 elements or more, which is not supported",
    ),
    "huge weight": (
        lambda: conv2d(huge(1, 2**16, 1, 1), huge(2**16, 2**16, 1, 1)),
        "conv2d: weight of size [65536, 65536, 1, 1] has 2^31 elements or more, which is not supported",
    ),
    "huge output": (
        lambda: conv2d(huge(2**10, 1, 2**8, 2**8), huge(64, 1, 1, 1)),
        "conv2d: the output of size [1024, 64, 256, 256] has 2^31 elements or more, which is not supported",
    ),
    "size of grad_output (input_grad)": (
        lambda: ops.conv2d_input_grad([2, 4, 5, 6], filters(), torch.zeros(2, 6, 4, 3)),
        "conv2d_input_grad: grad_output has size [2, 6, 4, 3], but the geometry gives [2, 6, 3, 4]",
    ),
    "size of grad_output (weight_grad)": (
        lambda: ops.conv2d_weight_grad([6, 4, 3, 3], images(), torch.zeros(2, 6, 12)),
        "conv2d_weight_grad: grad_output has size [2, 6, 12], but the geometry gives [2, 6, 3, 4]",
    ),
    "weight_size of three": (
        lambda: ops.conv2d_weight_grad([6, 4, 3], images(), output()),
        "conv2d_weight_grad: weight must have 4 dimensions, got 3 ([6, 4, 3])",
    ),
    "negative input_size": (
        lambda: ops.conv2d_input_grad([-2, 4, 5, 6], filters(), output()),
        "conv2d_input_grad: input has a negative size: [-2, 4, 5, 6]",
    ),
    "grad_output of bias_grad": (
        lambda: ops.conv2d_bias_grad(torch.zeros(3, 4)),
        "conv2d_bias_grad: grad_output must have 4 dimensions, got 2 ([3, 4])",
    ),
    # Each side has its own names of data types.
    "data type of weight": (
        lambda: conv2d(images(), filters().double()),
        "conv2d: weight has data type Double, but input has Float",
    ),
    "data type of bias": (
        lambda: conv2d(images(), filters(), torch.zeros(6).bfloat16()),
        "conv2d: bias has data type BFloat16, but input has Float",
    ),
    "data type of grad_output": (
        lambda: ops.conv2d_input_grad([2, 4, 5, 6], filters(), output().half()),
        "conv2d_input_grad: grad_output has data type Half, but weight has Float",
    ),
    "integers": (
        lambda: conv2d(images().int(), filters().int()),
        "conv2d: input has data type Int; float32, float64, float16 and bfloat16 are supported",
    ),
    "complex numbers": (
        lambda: conv2d(images() + 0j, filters() + 0j),
        "conv2d: input has data type ComplexFloat; float32, float64, float16 and bfloat16 are supported",
    ),
}


def sentence_of(call) -> str:
    with pytest.raises(RuntimeError) as error:
        call()
    return str(error.value)


def in_python(sentence: str) -> str:
    for native, python in dict(
        ComplexFloat="complex64", BFloat16="bfloat16", Double="float64", Half="float16", Float="float32", Int="int32"
    ).items():
        sentence = sentence.replace(f"data type {native}", f"data type torch.{python}")
        sentence = sentence.replace(f"has {native}", f"has torch.{python}")
    return sentence


@pytest.mark.parametrize("call, sentence", BAD.values(), ids=BAD)
def test_sentence(call, sentence):
    assert sentence_of(call) == "reformer::" + sentence


@pytest.mark.parametrize("call, sentence", BAD.values(), ids=BAD)
def test_fake_kernels_say_the_same(call, sentence):
    with FakeTensorMode():
        assert sentence_of(call) == "reformer::" + in_python(sentence)


def test_with_gradients():
    w = torch.zeros(6, 3, 3, 3, requires_grad=True)
    expecttest.assert_expected_inline(
        sentence_of(lambda: conv2d(images(), w, groups=2)),
        """\
reformer::conv2d: weight of size [6, 3, 3, 3] with groups = 2 takes 6 channels, but input of size [2, 4, 5, 6] has 4""",
    )


@pytest.mark.parametrize("elsewhere", [0, 1, 2], ids=["input", "weight", "bias"])
def test_mixed_devices(elsewhere):
    tensors = [images(), filters(), torch.zeros(6)]
    tensors[elsewhere] = tensors[elsewhere].to("meta")
    sentence = sentence_of(lambda: ops.conv2d(*tensors))
    assert sentence.startswith("reformer::conv2d: ") and sentence.endswith(
        "is on another device than input; move both to one device"
    )


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (dict(stride=(1, 1, 1)), "conv2d: stride must be one number or two (height, width), got (1, 1, 1)"),
        (dict(dilation=()), "conv2d: dilation must be one number or two (height, width), got ()"),
        (dict(padding="full"), "conv2d: padding must be a number, (height, width), 'same' or 'valid', got 'full'"),
        (dict(padding="same", stride=2), "conv2d: padding='same' needs stride 1, got (2, 2)"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_read(arguments, sentence):
    with pytest.raises(ValueError) as error:
        conv2d(images(), filters(), **arguments)
    assert str(error.value) == sentence


def test_fractions_are_refused():
    with pytest.raises((RuntimeError, TypeError), match="stride"):
        conv2d(images(), filters(), stride=1.5)


def test_compiled_code_refuses_too():
    compiled = torch.compile(conv2d, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=r"takes 3 channels, but input of size \[2, 4, 5, 6\] has 4"):
        compiled(images(), torch.zeros(6, 3, 3, 3))


def test_nothing_is_left_after_an_error():
    with pytest.raises(RuntimeError):
        conv2d(images(), filters(), groups=3)
    assert torch.equal(conv2d(images(), filters()), output())


def freed(tensor):
    """Free the tensor's memory, as FSDP does for a parameter between its uses."""
    tensor.untyped_storage().resize_(0)
    return tensor


def conv2d_of(x, w, b):
    return conv2d(x, w, b)


def fused(x, w, b):
    return torch_reformer.conv2d_act(x, w, b, residual=None)


def fused_batch_norm(x, w, b):
    return torch_reformer.conv2d_batch_norm_act(x, w, b, None, None, training=True)


def stitched(x, w, b):
    value = program.acc() * program.channel("b") + program.full("other")
    tensors = {"b": b, "other": w.mean().expand(x.shape)}
    return torch_reformer.stitch(x, Program(program.store(value)), tensors)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("function", "which"),
    [(conv2d_of, "xwb"), (fused, "xwb"), (fused_batch_norm, "xw"), (stitched, "xb")],
)
def test_freed_storage(function, which, requires_grad, offset):
    sizes = {"x": (2, 4, 5, 4), "w": (4, 4, 3, 3), "b": (4,)}
    for place in which:
        tensors = {name: torch.randn(offset + math.prod(size))[offset:].view(size) for name, size in sizes.items()}
        leaves = {name: tensor.requires_grad_(requires_grad) for name, tensor in tensors.items()}
        freed(leaves[place])
        with pytest.raises(RuntimeError, match=r"^reformer::\w+: .* has no memory: its storage was freed"):
            function(**leaves)


@pytest.mark.parametrize("which", ["input", "weight", "gradient"])
@pytest.mark.parametrize("function", [conv2d_of, fused, fused_batch_norm])
def test_freed_storage_in_the_backward(function, which):
    x, w, b = images().requires_grad_(), torch.ones(4, 4, 3, 3, requires_grad=True), torch.ones(4, requires_grad=True)
    y = function(x, w, b)
    grad = torch.ones_like(y)
    freed({"input": x, "weight": w, "gradient": grad}[which])
    with pytest.raises(RuntimeError, match="has no memory: its storage was freed"):
        y.backward(grad)


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (dict(force="cudnn"), "there is no solver 'cudnn'; there are "),
        (dict(forbid=["aten"]), "the solver 'aten' can't be forbidden"),
        (dict(forbid="direct"), "forbid must be a list of solver names, got the string 'direct'"),
        (dict(workspace_limit=-1), "the workspace limit must not be negative"),
    ],
    ids=str,
)
def test_settings(settings, sentence):
    with pytest.raises(ValueError) as error:
        torch_reformer.config(**settings)
    assert str(error.value).startswith(sentence)
