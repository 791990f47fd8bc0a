"""Differences between the backend and eager over PyTorch's samples (pytorch_suites.py), with their reasons."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Known:
    """A difference, as a regular expression, that each operator or module in `names` has."""

    reason: str
    difference: str
    names: frozenset[str]
    dtypes: tuple[str, ...] = ("fp32", "bf16", "dynamic")
    by_chance: bool = False  # depends on the processor's rounding


def _known(reason: str, difference: str, names: str, *dtypes: str, by_chance: bool = False) -> Known:
    return Known(reason, difference, frozenset(names.split()), dtypes or Known.dtypes, by_chance)


KNOWN = [
    _known(
        "filled in place, as samples are to have known values: PyTorch's functionalization gives dense strides, by "
        "aot_eager, too",
        "strides .* not ",
        "empty_strided new_empty_strided",
        "fp32",
        "bf16",
    ),
    _known(
        "PyTorch reads values (or warns) while it traces: Dynamo breaks the graph there, and nothing is left to plan",
        "nothing is planned",
        "allclose argwhere combinations corrcoef cov equal index_fill index_put item linalg.lstsq "
        "linalg.lstsq.grad_oriented masked_select narrow nn.functional.ctc_loss nn.functional.gaussian_nll_loss "
        "nonzero put repeat_interleave take tensor_split unique unique_consecutive nn.GaussianNLLLoss "
        "nn.LinearCrossEntropyLoss nn.Transformer nn.TransformerEncoder",
    ),
    _known("the same; eager has no bf16 of it", "nothing is planned", "nn.CTCLoss", "fp32"),
    _known("Dynamo leaves recurrent networks to PyTorch", "nothing is planned", "nn.GRU nn.LSTM nn.RNN"),
    _known(
        "dropout computes its random numbers from a key instead of drawing each",
        "differs by",
        "nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout.with_train "
        "nn.functional.multi_head_attention_forward",
    ),
    _known(
        "eager's dropout that drops nothing gives its argument, AOTAutograd's a copy",
        "arguments in results|strides",
        "nn.functional.dropout",
    ),
    _known(
        "PyTorch's decompositions forget strides",
        "strides",
        "nn.functional.max_unpool2d nn.functional.max_unpool2d.grad select_scatter",
    ),
    _known(
        "AOTAutograd has no functional counterpart of polygamma_",
        "alias annotations: aten::polygamma_",
        " ".join(f"polygamma.polygamma_n_{n}" for n in range(5)),
    ),
    _known(
        "few elements in bf16: where terms are rounded decides how well they cancel",
        "differs by",
        "masked.normalize masked.std nn.functional.normalize",
        "bf16",
        by_chance=True,
    ),
    _known(
        "norms of four elements are so badly conditioned that errors vary tenfold; over other inputs they are eager's",
        "differs by",
        "nn.Transformer nn.TransformerEncoder",
        "bf16",
        by_chance=True,
    ),
    _known(
        "as_strided counts from the beginning of memory, where an argument need not begin",
        "reaches beyond the tensor's memory",
        "as_strided_scatter",
    ),
    _known(
        "eager raises: sparse results, CUDA's operators, fp64 results in place, unsigned integers, eigenvectors of "
        "complex numbers, tensors that are not contiguous, memory beyond a tensor",
        "eager raises",
        "as_strided.partial_views float_power hash_tensor jiterator_2inputs_2outputs "
        "jiterator_4inputs_with_extra_args jiterator_binary jiterator_binary_return_by_ref jiterator_unary linalg.eig "
        "native_group_norm to_sparse view_as_complex",
    ),
    _known(
        "eager has no bf16 of it on CPUs",
        "not implemented for 'BFloat16'",
        "nn.AvgPool3d nn.CTCLoss nn.LPPool3d nn.LocalResponseNorm nn.MultiLabelMarginLoss nn.MultiMarginLoss",
        "bf16",
    ),
]
