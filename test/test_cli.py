"""Text of the command line. Run with EXPECTTEST_ACCEPT=1 to update it when solvers or cost models change."""

import math
import platform

import pytest
import torch
from expecttest import assert_expected_inline
from selectors_for_tests import constant, install

import torch_reformer
from torch_reformer import config
from torch_reformer.__main__ import _parser, main
from torch_reformer.runtime import native

DEVICE = "cpu-avx512-2t"  # the text must not depend on the machine
KEY = "64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP16-F"


@pytest.fixture
def output(capsys):
    def run(*arguments: str) -> str:
        assert main(arguments) == 0
        return capsys.readouterr().out

    return run


def test_explain_forward(output, static_rule):
    assert_expected_inline(
        output("explain", KEY, "--device", DEVICE),
        """\
problem  64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP16-F
         forward of a 3x3 convolution, float16 in NCHW
         input 32x64x56x56, filter 64x64x3x3, output 32x64x56x56
         stride 1x1, padding 1x1; 7,398.8 MFLOP
device   cpu-avx512-2t

   aten               1137528.7 us         0 B workspace
   aten_nhwc           537615.2 us    24.6 MiB workspace
   aten_nchw         no: the tensors have this layout already
   gemm_1x1          no: the filter is not 1x1 without padding
   direct_depthwise  no: a group has more than one input channel
   direct               90478.4 us   144.0 KiB workspace
-> implicit_gemm        80112.2 us         0 B workspace
   winograd_2x4, 4x4  no: the data type is not fp32
   reference         no: it is the tests' oracle: it runs only when forced

choice   implicit_gemm: it has the least estimate of the 4 that apply
""",
    )


def test_explain_command_line(output, static_rule):
    line = "./bin/MIOpenDriver conv -n 4 -c 32 -H 28 -W 28 -k 32 -y 5 -x 3 -p 2 -q 1 -u 2 -v 2 -j 2 -g 32 -F 2 -I NHWC"
    assert_expected_inline(
        output("explain", line, "--device", "cpu-plain-1t"),
        """\
problem  32-14-13-5x3-32-28-28-4-2x1-2x2-1x2-0-NHWC-NHWC-NHWC-FP32-B_g32
         gradient of the input of a depthwise convolution, float32 in NHWC
         input 4x32x28x28, filter 32x1x5x3, output 4x32x14x13
         stride 2x2, padding 2x1, dilation 1x2, 32 groups; 0.7 MFLOP
device   cpu-plain-1t

   aten                   257.3 us         0 B workspace
   aten_nhwc         no: the tensors have this layout already
   aten_nchw              408.9 us   484.9 KiB workspace
   gemm_1x1          no: the filter is not 1x1 without padding
-> direct_depthwise        81.9 us         0 B workspace
   direct                 243.0 us     1.9 KiB workspace
   implicit_gemm        17367.2 us     1.9 KiB workspace
   winograd_2x4, 4x4  no: without fused multiply-add its rounding error is too large
   reference         no: it is the tests' oracle: it runs only when forced

choice   direct_depthwise: it has the least estimate of the 5 that apply
""",
    )


def test_explain_selector(output, static_rule):
    names = ["direct", "implicit_gemm", "winograd_2x4", "of another version", "aten"]
    install(constant([math.log(share) for share in (0.5, 0.25, 0.125, 0.0625, 0.0625)]), names)
    assert_expected_inline(
        output("explain", KEY, "--device", DEVICE),
        """\
problem  64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP16-F
         forward of a 3x3 convolution, float16 in NCHW
         input 32x64x56x56, filter 64x64x3x3, output 32x64x56x56
         stride 1x1, padding 1x1; 7,398.8 MFLOP
device   cpu-avx512-2t

   aten                 7.7%   1137528.7 us         0 B workspace
   aten_nhwc         unknown    537615.2 us    24.6 MiB workspace
   aten_nchw         no: the tensors have this layout already
   gemm_1x1          no: the filter is not 1x1 without padding
   direct_depthwise  no: a group has more than one input channel
-> direct              61.5%     90478.4 us   144.0 KiB workspace
   implicit_gemm       30.8%     80112.2 us         0 B workspace
   winograd_2x4, 4x4  no: the data type is not fp32
   reference         no: it is the tests' oracle: it runs only when forced

choice   direct: the selector's most probable of the 4 that apply
""",
    )
    with config(forbid=["aten_nhwc", "direct", "implicit_gemm"]):
        assert output("explain", KEY, "--device", DEVICE).endswith("choice   aten: nothing else applies\n")


def test_explain_for_a_gpu_that_is_not_there(output):
    """The answer does not depend on the features in the device's name."""
    text = output("explain", KEY, "--device", "gfx908:sramecc+:xnack-")
    assert "device   gfx908\n" in text and text.count("->") == 1 and text.count("\nchoice ") == 1
    choice = next(line for line in text.splitlines() if line.startswith("-> "))
    assert f"\nchoice   {choice.split()[1]}: the selector's most probable of the " in text and "%" in choice
    assert " held-out problems with such a choice " in text
    assert "  if MIOpen agrees, which is asked where it runs\n" in text
    assert "  no: MIOpen does not tell whether this solver applies\n" in text


def test_explain_every_direction(output):
    text = output("explain", "MIOpenDriver conv -n 1 -F 0", "--device", "cpu-avx2-4t")
    assert text.count("\nchoice   ") == 3


def test_explain_forced(output, static_rule):
    with config(force="aten_nhwc"):
        assert output("explain", KEY, "--device", DEVICE).endswith("choice   aten_nhwc: the configuration forces it\n")


def test_explain_forced_in_vain(output, static_rule):
    others = [name for name in config.solvers() if name not in ("aten", "aten_nchw")]
    with config(force="aten_nchw", forbid=others):
        assert output("explain", KEY, "--device", DEVICE).endswith(
            "choice   aten: nothing else applies; aten_nchw, which the configuration forces, does not apply\n"
        )


def test_explain_takes_this_machine(output):
    assert f"device   {native.device(None)}\n" in output("explain", KEY)


def test_info(output, monkeypatch):
    monkeypatch.setenv("TORCH_REFORMER_FORBID", "aten_nhwc")  # it is read only at import; here it is only shown
    lines = dict(line.split(maxsplit=1) for line in output("info").splitlines() if len(line.split()) > 1)
    assert lines["torch_reformer"] == torch_reformer.__version__
    assert lines["torch"] == torch.__version__
    assert lines["Python"] == platform.python_version()
    assert lines["CPU"] == native.device(None)
    assert lines["solvers"].startswith("aten, aten_nhwc, ")
    assert lines["weights"].startswith("cpu: ")
    assert lines["forbid"] == "none         TORCH_REFORMER_FORBID aten_nhwc"
    assert lines["workspace_limit"] == "268435456    TORCH_REFORMER_WORKSPACE_LIMIT is not set"
    assert "hits" in lines["decision"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["explain", "nonsense"], 'torch_reformer explain: "nonsense" is not a convolution problem: '),
        (
            ["explain", "foo"],
            "(a key is such as 64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP32-F, or of a matrix",
        ),
        (["explain", "MIOpenDriver pool"], "torch_reformer explain: MIOpenDriver is called for 'pool'"),
        (["explain", KEY, "--device", "gfx../../x"], 'torch_reformer explain: "gfx../../x" is no device: '),
        (["explain", KEY, "--device", "tpu"], 'torch_reformer explain: "tpu" is no device: '),
        (["collect", "--out", "db"], "torch_reformer collect: --problems is missing"),
        (
            ["collect", "--problems", "nowhere.jsonl", "--out", "db"],
            "torch_reformer collect: nowhere.jsonl: No such file or directory",
        ),
    ],
)
def test_bad_input_is_one_sentence(capsys, arguments, sentence):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err and captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--batch", "0"], "argument --batch: '0' is not a whole number from 1 up"),
        (["--directions", "F,X"], "argument --directions: 'X' is not one of F, B, W"),
        (["--layouts", "CHWN"], "argument --layouts: 'CHWN' is not one of NCHW, NHWC"),
        (["--dtype", "int8"], "argument --dtype: invalid choice: 'INT8'"),
    ],
)
def test_bad_option(capsys, options, sentence):
    with pytest.raises(SystemExit) as exit:
        main(["collect", "--problems", "file", "--out", "db", *options])
    assert exit.value.code == 2
    assert sentence in capsys.readouterr().err


def test_every_argument_has_a_help():
    commands = next(action for action in _parser()._actions if isinstance(action.choices, dict)).choices
    assert {"info", "explain", "collect", "train", "replay", "cache"} <= commands.keys()
    for name, command in commands.items():
        assert command.description, name
        for action in command._actions:
            assert action.help, f"{name} {action.dest}"


@pytest.mark.parametrize("arguments", [[], ["guess"]])
def test_bad_command(capsys, arguments):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2


@pytest.mark.parametrize(
    "device, sentence",
    [
        pytest.param(
            "cuda",
            "torch sees 0 GPUs here: there is no cuda:0",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
        ),
        ("tpu", "'tpu' is not a device: give cpu or cuda"),
        ("meta", "convolutions run on cpu and cuda, not on meta"),
    ],
)
def test_collect_on_a_device_that_is_not_there(capsys, tmp_path, device, sentence):
    assert main(["collect", "--problems", "file", "--out", str(tmp_path / "db"), "--device", device]) == 2
    assert sentence in capsys.readouterr().err
