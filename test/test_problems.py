"""Lists of problems: JSON lines, find-db keys and MIOpenDriver command lines."""

from pathlib import Path

import pytest

from torch_reformer import ConvProblem
from torch_reformer.selector.problems import parse_problems, read_problems

DATA = Path(__file__).parent / "data"
REAL = DATA.parent.parent.parent / "shared/data/conv"


def keys(problems) -> list[str]:
    return [str(problem) for problem in problems]


def test_json_lines():
    assert keys(read_problems(DATA / "problems.jsonl"))[3:] == [
        "8-6-5-3x3-8-3-5-1-1x1-2x1-1x1-0-NCHW-FP32-F_g8",
        "8-3-5-3x3-8-6-5-1-1x1-2x1-1x1-0-NCHW-FP32-B_g8",
        "8-3-5-3x3-8-6-5-1-1x1-2x1-1x1-0-NCHW-FP32-W_g8",
        "3-9-9-3x3-4-9-9-2-1x1-1x1-1x1-0-NCHW-FP32-F",
        "4-9-9-3x3-3-9-9-2-1x1-1x1-1x1-0-NCHW-FP32-B",
        "4-9-9-3x3-3-9-9-2-1x1-1x1-1x1-0-NCHW-FP32-W",
    ]


def test_keys_and_command_lines():
    assert keys(read_problems(DATA / "problems.txt")) == [
        "64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP16-F",
        "32-14-14-5x5-32-28-28-8-2x2-2x2-1x1-0-NCHW-FP32-W_g32",
        "16-8-8-3x3-32-8-8-4-1x1-1x1-1x1-0-NCHW-FP32-F",
        "32-8-8-3x3-16-8-8-4-1x1-1x1-1x1-0-NCHW-FP32-B",
        "32-8-8-3x3-16-8-8-4-1x1-1x1-1x1-0-NCHW-FP32-W",
        "16-8-8-1x1-32-4-4-4-0x0-2x2-1x1-1-NHWC-NHWC-NHWC-BF16-F_g2",
        "32-4-4-1x1-16-8-8-4-0x0-2x2-1x1-0-NHWC-NHWC-NHWC-BF16-W_g2",
    ]


def test_options_replace_and_expand_without_repetition():
    actual = read_problems(
        DATA / "problems.txt", batch=2, dtype="FP64", directions=["W", "F"], layouts=["NHWC", "NCHW"]
    )
    without_bias = [problem for problem in actual if not problem.bias]
    assert len(without_bias) == 4 * 4  # each geometry once in each direction and layout
    assert [p.direction for p in actual if p.bias] == ["F", "F"]
    assert {(p.n, p.dtype) for p in actual} == {(2, "FP64")}
    first = ConvProblem.parse("64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP16-F").replace(n=2, dtype="FP64")
    expected = [first.replace(direction=d, layout=layout) for d in "WF" for layout in ("NHWC", "NCHW")]
    assert actual[:4] == expected


@pytest.mark.parametrize(("bits", "directions"), list(enumerate(["FBW", "F", "B", "FB", "W", "FW", "BW", "FBW"])))
def test_direction_bits(bits, directions):
    problems = parse_problems(f"MIOpenDriver conv -F {bits}")
    assert "".join(problem.direction for problem in problems) == directions


def test_defaults_are_miopens():
    assert parse_problems("MIOpenDriver conv -F 1") == [ConvProblem(100, 3, 32, 32, 32, 3, 3)]


def test_every_flag():
    short = "-n 2 -c 4 -H 9 -W 8 -k 6 -y 5 -x 3 -p 2 -q 1 -u 2 -v 3 -l 1 -j 2 -g 2 -F 1"
    long = (
        "--batchsize 2 --in_channels 4 --in_h 9 --in_w 8 --out_channels 6 --fil_h 5 --fil_w 3 --pad_h 2 --pad_w 1 "
        "--conv_stride_h 2 --conv_stride_w 3 --dilation_h 1 --dilation_w 2 --group_count 2 --forw 1"
    )
    expected = [ConvProblem(2, 4, 9, 8, 6, 5, 3, 2, 1, 2, 3, 1, 2, groups=2, dtype="FP16")]
    for flags in (short, long):
        assert parse_problems(f"MIOpenDriver convfp16 {flags}") == expected


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "this is not a JSON object: "),
        ('{"c": 3}', "h is missing"),
        ('{"c": "3"}', "c must be a whole number, got '3'"),
        ('{"c": true}', "c must be a whole number, got True"),
        ('{"c":3,"h":4,"w":4,"k":1,"r":9,"s":1}', "this is not a convolution problem: the filter is larger than"),
        ('{"c":3,"h":4,"w":4,"k":1,"r":1,"s":1,"stride_h":0}', "this is not a convolution problem: every size"),
        ("nonsense", '"nonsense" is not a convolution problem: the channels must be a number'),
        ("MIOpenDriver", "MIOpenDriver is called for '', not for one of conv, convfp16, convbfp16, convint8"),
        ("MIOpenDriver pool -n 3", "MIOpenDriver is called for 'pool'"),
        ("MIOpenDriver conv -n x", "argument -n/--batchsize: invalid int value: 'x'"),
        ("MIOpenDriver conv -F 8", "argument -F/--forw: invalid choice: 8"),
        ("MIOpenDriver conv --fast 1", "unrecognized arguments: --fast 1"),
        ("MIOpenDriver conv -p -1", "pad_h of a problem must be at least 0 and less than 2^31, got -1"),
        ("MIOpenDriver conv -g 2", "this is not a convolution problem: the channels (3 in, 32 out) are not divisible"),
        ("MIOpenDriver conv -m trans", "the mode (--mode) is trans; only conv is supported"),
        ("MIOpenDriver conv -z same", "the padding mode (--pad_mode) is same; only default is supported"),
        ("MIOpenDriver conv --spatial_dim 3", "the number of dimensions (--spatial_dim) is 3; only 2 is supported"),
        ("MIOpenDriver conv -I NHWC -f NCHW", "input, filter and output must have one layout, got NCHW and NHWC"),
        ("MIOpenDriver conv -I NCHWc4", "the layout of a problem is one of NCHW, NHWC, got 'NCHWc4'"),
    ],
)
def test_no_problem(tmp_path, line, sentence):
    path = tmp_path / "problems"
    path.write_text(f"# two lines before it\n\n{line}\n")
    with pytest.raises(ValueError) as error:
        read_problems(path)
    assert str(error.value).startswith(f"{path}, line 3: {sentence}")


def test_real_lists():
    if not REAL.exists():
        pytest.skip("the real problems are not beside the repository (../shared/data/conv)")
    problems = read_problems(REAL / "timm.jsonl", batch=4, directions=["F"])
    assert len(problems) == 868 and {p.n for p in problems} == {4}
    assert len(read_problems(REAL / "deepbench.jsonl", layouts=["NCHW", "NHWC"])) % 6 == 0
