"""Arguments of wrong types raise an error that names them, before any work."""

import numpy
import pytest
import torch

import torch_reformer
from torch_reformer import ConvProblem, config, explain, program
from torch_reformer.selector.candidates import candidates

IMAGES, FILTERS, VECTOR = torch.zeros(2, 4, 5, 6), torch.zeros(6, 4, 3, 3), torch.zeros(6)
RESULT, ROWS, MATRIX = torch.zeros(2, 6, 5, 6), torch.zeros(3, 4), torch.zeros(6, 4)
PROGRAM = program.Program(program.store(program.acc() + program.channel("bias")))
KEY = "64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP16-F"
GEOMETRY = dict(stride=1, padding=1, dilation=1, groups=1)
CONV = dict(input=IMAGES, weight=FILTERS, bias=VECTOR, **GEOMETRY)
FUSED = dict(**CONV, activation="relu", residual=RESULT)
NORM = dict(norm_weight=VECTOR, norm_bias=VECTOR, eps=1e-5, momentum=0.1)
RUNNING = dict(running_mean=VECTOR, running_var=VECTOR + 1)


def batch_norm(**arguments):
    return torch_reformer.conv2d_batch_norm_act(**arguments, training=True)


def evaluated(**arguments):
    return torch_reformer.conv2d_batch_norm_act(**arguments, momentum=0.1, training=False)


def of_problem(**members):
    return str(ConvProblem(**members))


FUNCTIONS = {
    "conv2d": (torch_reformer.conv2d, CONV),
    "conv2d_act": (torch_reformer.conv2d_act, FUSED),
    "batch norm": (batch_norm, FUSED | NORM | RUNNING),
    "batch norm, evaluated": (evaluated, {k: v for k, v in (FUSED | NORM | RUNNING).items() if k != "momentum"}),
    "linear_act": (
        torch_reformer.linear_act,
        dict(input=ROWS, weight=MATRIX, bias=VECTOR, activation="relu", dropout=0.1, residual=torch.zeros(3, 6)),
    ),
    "conv2d_epilogue": (
        torch_reformer.conv2d_epilogue,
        dict(input=IMAGES, weight=FILTERS, program=PROGRAM, tensors={"bias": VECTOR}, **GEOMETRY),
    ),
    "linear_epilogue": (
        torch_reformer.linear_epilogue,
        dict(input=ROWS, weight=MATRIX, program=PROGRAM, tensors={"bias": VECTOR}),
    ),
    "stitch": (torch_reformer.stitch, dict(acc=RESULT, program=PROGRAM, tensors={"bias": VECTOR})),
    "a program's tensor": (lambda bias: torch_reformer.stitch(RESULT, PROGRAM, {"bias": bias}), dict(bias=VECTOR)),
    "convert": (torch_reformer.convert, dict(model=torch.nn.Conv2d(1, 1, 1))),
    "fuse": (torch_reformer.fuse, dict(model=torch.nn.Conv2d(1, 1, 1))),
    "problem": (of_problem, dict(n=1, c=4, h=5, w=6, k=6, r=3, s=3, groups=1, direction="F", layout="NCHW")),
    "key": (ConvProblem.parse, dict(key=KEY)),
    "explain": (explain, dict(problem=ConvProblem.parse(KEY), device="cpu-avx2-2t")),
    "candidates": (candidates, dict(problem=ConvProblem.parse(KEY), device="cpu-avx2-2t")),
}
CASES = [(name, argument) for name, (_, arguments) in FUNCTIONS.items() for argument in arguments]
WRONG = ["x", b"x", object(), {"x": 1}, numpy.zeros((2, 3)), float("nan"), [None, 1]]
OPTIONAL = {"bias", "residual", "norm_weight", "norm_bias", "running_mean", "running_var", "device"}
RIGHT_TYPES = {"eps": float, "dropout": float, "momentum": float, "tensors": dict, "device": str, "key": str}


@pytest.mark.parametrize("name, argument", CASES)
def test_wrong_types(name, argument):
    function, arguments = FUNCTIONS[name]
    function(**arguments)
    for wrong in [*WRONG, *([] if argument in OPTIONAL and name != "a program's tensor" else [None])]:
        if type(wrong) is RIGHT_TYPES.get(argument):  # values that are wrong in another way have messages of their own
            continue
        for grad in (False, True):
            with torch.set_grad_enabled(grad), pytest.raises((TypeError, ValueError, RuntimeError)) as error:
                function(**arguments | {argument: wrong})
            assert argument in str(error.value), (wrong, error.value)


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: torch_reformer.conv2d([1, 2], FILTERS), "conv2d: input must be a tensor, got [1, 2] (list)"),
        (lambda: torch_reformer.convert(None), "convert: model must be a torch.nn.Module, got None"),
        (lambda: torch_reformer.fuse("x"), "fuse: model must be a torch.nn.Module, got 'x' (str)"),
        (lambda: torch_reformer.nn.Conv2d(4, 6, 3)(None), "conv2d: input must be a tensor, got None"),
        (
            lambda: torch_reformer.conv2d(IMAGES, FILTERS, stride=1.5),
            "conv2d: stride must be a whole number or two (height, width), got 1.5 (float)",
        ),
        (
            lambda: explain(KEY),
            f"the problem must be a ConvProblem, got '{KEY}' (str); ConvProblem.parse reads a key",
        ),
    ],
)
def test_sentences(call, sentence):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == sentence


@torch.no_grad()
def test_numbers_that_no_machine_takes():
    with pytest.raises(TypeError, match=r"groups must be whole numbers below 2\^63, got .* and 1000"):
        torch_reformer.conv2d(IMAGES, FILTERS, groups=10**30)


@pytest.mark.parametrize("weight", [torch.zeros(6, 4, 3), torch.zeros(6), torch.zeros(())])
def test_same_padding_of_a_weight_of_other_dimensions(weight):
    with pytest.raises(RuntimeError, match=f"weight must have 4 dimensions, got {weight.dim()} "):
        torch_reformer.conv2d(IMAGES, weight, padding="same")


def test_batch_norm_of_one_number():
    with pytest.raises(RuntimeError, match="input must have 4 dimensions, got 0 "):
        batch_norm(**FUSED | NORM | RUNNING | {"input": torch.zeros(())})


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (
            dict(workspace_limit="1GB"),
            "workspace_limit must be a whole number of bytes, such as 64 << 20, got '1GB' (str)",
        ),
        (
            dict(workspace_limit=1e9),
            "workspace_limit must be a whole number of bytes, such as 64 << 20, got 1000000000.0",
        ),
        (dict(force=1), "force must be the name of a solver, or None, got 1 (int)"),
        (dict(forbid=None), "forbid must be a list of solver names, got None"),
        (dict(forbid=[1]), "forbid must be a list of solver names, got [1] (list)"),
        (dict(deterministic=2**40), "deterministic must be True or False, got 1099511627776 (int)"),
        (dict(reduced_accuracy="no"), "reduced_accuracy must be True or False, got 'no' (str)"),
    ],
    ids=str,
)
def test_settings(settings, sentence):
    before = config.settings()
    with pytest.raises(TypeError) as error:
        config(**settings)
    assert str(error.value).startswith(sentence) and config.settings() == before


def test_workspace_limit_that_does_not_fit():
    with pytest.raises(ValueError, match=r"the workspace limit must be below 2\^63 bytes"):
        config(workspace_limit=2**64)
