"""Problems and devices as text; refused problems and their error messages."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_reformer import ConvProblem
from torch_reformer.problem import DIRECTIONS, DTYPES, LAYOUTS
from torch_reformer.runtime import native

KEY = "64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP16-F"


@st.composite
def problems(draw) -> ConvProblem:
    size, small = st.integers(1, 300), st.integers(1, 5)
    groups = draw(st.integers(1, 16))
    direction = draw(st.sampled_from(DIRECTIONS))
    p = ConvProblem(
        n=draw(size),
        c=draw(size) * groups,
        h=draw(size),
        w=draw(size),
        k=draw(size) * groups,
        r=draw(small),
        s=draw(small),
        pad_h=draw(small) - 1,
        pad_w=draw(small) - 1,
        stride_h=draw(small),
        stride_w=draw(small),
        dilation_h=draw(small),
        dilation_w=draw(small),
        groups=groups,
        direction=direction,
        dtype=draw(st.sampled_from(DTYPES)),
        layout=draw(st.sampled_from(LAYOUTS)),
        bias=direction == "F" and draw(st.booleans()),
    )
    # A padded input at least as large as the filter.
    return p.replace(h=p.h + p.dilation_h * (p.r - 1), w=p.w + p.dilation_w * (p.s - 1))


@given(problem=problems())
def test_parser_and_printer_are_inverses(problem):
    assert ConvProblem.parse(str(problem)) == problem


def test_forward_key_names_the_input_first():
    p = ConvProblem(2, 3, 9, 8, 6, 5, 4, 1, 2, 2, 1, 1, 1, groups=3)
    assert str(p) == "3-9-8-5x4-6-4-9-2-1x2-2x1-1x1-0-NCHW-FP32-F_g3"


@pytest.mark.parametrize("direction", ["B", "W"])
def test_gradients_keys_name_the_output_first(direction):
    p = ConvProblem(2, 3, 9, 8, 6, 5, 4, 1, 2, 2, 1, direction=direction, layout="NHWC", dtype="BF16")
    assert str(p) == f"6-4-9-5x4-3-9-8-2-1x2-2x1-1x1-0-NHWC-NHWC-NHWC-BF16-{direction}"


@pytest.mark.parametrize("layout", ["NHWC", "NHWC-NHWC-NHWC"])
def test_layout_is_one_token_or_three(layout):
    assert ConvProblem.parse(KEY.replace("NCHW", layout)).layout == "NHWC"


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("", 'the channels must be a number, got ""'),
        ("64", "it ends before the height"),
        ("64-56", "it ends before the width"),
        ("64-56-56", "it ends before the filter"),
        (KEY.replace("64-56", "x-56", 1), 'the channels must be a number, got "x"'),
        (KEY.replace("64-56", "064-56", 1), 'the channels must be a number, got "064"'),
        (KEY.replace("64-56", "4294967296-56", 1), 'the channels must be a number, got "4294967296"'),
        (KEY.replace("3x3", "3"), "the filter must be HxW"),
        ("64-56-56-56-3x3x3-64-56-56-56-32-1x1x1-1x1x1-1x1x1-0-NCDHW-FP16-F", "the filter must be HxW"),
        (KEY.replace("1x1", "1x", 1), 'the padding must be a number, got ""'),
        (KEY.replace("-0-", "-2-"), "the bias flag must be 0 or 1"),
        (KEY.replace("NCHW", "CHWN"), 'the layout is "CHWN", not NCHW or NHWC'),
        (KEY.replace("NCHW", "NCHW-NHWC-NCHW"), "mixed layouts are not supported"),
        (KEY.replace("FP16", "FP8"), 'the data type "FP8" is unknown'),
        (KEY[:-1] + "X", 'the direction is "X", not F, B or W'),
        (KEY[:-2], "it ends before the direction"),
        (KEY + "-F", "there is text after the direction"),
        (KEY + "_g1", "the suffix must be _g and the group count, at least 2"),
        (KEY + "_g2-3", "the suffix must be _g and the group count, at least 2"),
        (KEY + "_gx", 'the group count must be a number, got "x"'),
        (KEY + "_g3", "the channels (64 in, 64 out) are not divisible by the 3 groups"),
        (KEY.replace("-32-", "-0-"), "every size, stride, dilation and group count must be at least 1"),
        (KEY.replace("-1x1-0-", "-0x1-0-"), "every size, stride, dilation and group count must be at least 1"),
        ("64-2-2-5x5-64-1-1-32-1x1-1x1-1x1-0-NCHW-FP16-F", "the filter is larger than the padded input"),
        (KEY.replace("56-56-32", "56-55-32"), "the output is 56x55, but the geometry gives 56x56"),
        (KEY.replace("-0-", "-1-")[:-1] + "B", "only the forward direction has a bias"),
    ],
)
def test_malformed_key(key, sentence):
    with pytest.raises(ValueError) as error:
        ConvProblem.parse(key)
    assert str(error.value).startswith(f'"{key}" is not a convolution problem: {sentence}')


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"stride_h": 0}, "every size, stride, dilation and group count must be at least 1"),
        ({"groups": 0}, "every size, stride, dilation and group count must be at least 1"),
        ({"groups": 3}, r"the channels \(4 in, 4 out\) are not divisible by the 3 groups"),
        ({"r": 9}, "the filter is larger than the padded input"),
        ({"bias": True, "direction": "W"}, "only the forward direction has a bias"),
        ({"pad_h": -1}, r"pad_h of a problem must be at least 0 and less than 2\^31, got -1"),
        ({"h": 2**31}, r"h of a problem must be at least 0 and less than 2\^31, got 2147483648"),
        ({"dtype": "FP8"}, "the dtype of a problem is one of FP32, FP64, FP16, BF16, INT8, got 'FP8'"),
        ({"layout": "CHWN"}, "the layout of a problem is one of NCHW, NHWC, got 'CHWN'"),
        ({"direction": "X"}, "the direction of a problem is one of F, B, W, got 'X'"),
    ],
)
def test_impossible_problem(changes, sentence):
    problem = dataclasses.replace(ConvProblem(1, 4, 4, 4, 4, 1, 1), **changes)
    with pytest.raises(ValueError, match=sentence):
        str(problem)
    with pytest.raises(ValueError, match=sentence):
        native.candidates(problem.native(), None)


@pytest.mark.parametrize("text", ["cpu-plain-1t", "cpu-avx2-64t", "cpu-avx512-2t", "gfx942", "gfx1100", "sm_90"])
def test_device_text(text):
    assert native.device(text) == text


def test_this_device():
    here = native.device(None)
    assert here.startswith("cpu-") and native.device(here) == here


def test_features_of_a_gpu_are_taken_off():
    assert native.device("gfx90a:sramecc+:xnack-") == "gfx90a"


@pytest.mark.parametrize("text", ["cpu", "tpu", "cuda:0", "gfx", "gfx1", "gfx../../x", "gfx90a/..", "sm_", "sm_90/x"])
def test_no_device(text):
    with pytest.raises(ValueError, match=f'"{text}" is no device: give cpu-ISA-THREADSt .* gfxNNN or sm_NN'):
        native.device(text)


@pytest.mark.parametrize(
    "name, architecture", [("H100", "sm_90"), ("a100", "sm_80"), ("RTX 4090", "sm_89"), ("MI300X", "gfx942")]
)
def test_name_of_a_gpu_is_no_device(name, architecture):
    with pytest.raises(ValueError, match=f'"{name}" is no device: .* gfxNNN or sm_NN; {name} is {architecture}$'):
        native.device(name)


@pytest.mark.parametrize(
    "text", ["cpu-avx1024-2t", "cpu-avx2", "cpu-avx2-t", "cpu-avx2-0t", "cpu-avx2-2", "cpu-avx2-2tt"]
)
def test_no_cpu(text):
    with pytest.raises(ValueError, match=f'"{text}" is no CPU: give cpu-ISA-THREADSt with ISA plain, avx2 or avx512'):
        native.device(text)


READERS = {
    "problem_str": native.problem_str,
    "problem_kind": native.problem_kind,
    "decide": native.decide,
    "decide_all": lambda problem: native.decide_all([problem]),
    "candidates": lambda problem: native.candidates(problem, None),
    "cost_class": native.cost_class,
    "cost_terms": lambda problem: native.cost_terms(problem, None),
    "features": lambda problem: native.features([problem], None),
    "logits": lambda problem: native.logits([problem]),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_is_no_problem_is_refused(read):
    """Impossible problems raise an error instead of a division by 0 or a read beyond a table's end."""
    with pytest.raises(ValueError, match="every size, stride, dilation and group count must be at least 1"):
        read(native.Problem())
    for member in ("direction", "dtype", "layout", "bias"):
        problem = ConvProblem(2, 8, 6, 6, 8, 3, 3).native()
        setattr(problem, member, 200)
        with pytest.raises(ValueError, match="its direction, data type, layout or bias flag is unknown"):
            read(problem)
