"""PyTorch's own samples of convolutions (OpInfo) under enable(): values, gradients, errors. test_enable.py runs it."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import torch_reformer
from torch_reformer.runtime import native

SAMPLED = {"nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv3d"}
SAMPLED |= {f"nn.functional.conv_transpose{d}d" for d in (1, 2, 3)}
OPS = {op.name.removeprefix("nn.functional."): op for op in op_db if op.name in SAMPLED}
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-7, torch.bfloat16: 0.02, torch.complex64: 1e-4}


def chosen() -> int:
    """Number of decisions that this thread has asked for."""
    return sum(native.cache_counts())


def result_and_gradients(op, sample):
    def leaf(value):
        return value.detach().clone().requires_grad_() if isinstance(value, torch.Tensor) else value

    tensors = [leaf(sample.input), *map(leaf, sample.args)]
    inputs = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    result = op(*tensors, **sample.kwargs)
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(result.shape, dtype=torch.float64, generator=generator).to(result.dtype)
    grads = torch.autograd.grad(result, inputs, grad)
    return [result, *grads]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_samples_of_pytorch(name, dtype):
    op, asked = OPS[name], chosen()
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("PyTorch's samples have no such data type")
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=True))
    assert samples
    for sample in samples:
        want = result_and_gradients(op, sample)
        with torch_reformer.enable():
            got = result_and_gradients(op, sample)
        for ours, theirs in zip(got, want, strict=True):
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
            scale = theirs.abs().max().item() if theirs.numel() else 0
            torch.testing.assert_close(ours, theirs, atol=TOLERANCE[dtype] * max(scale, 1), rtol=0)
    assert (chosen() > asked) == (name == "conv2d")  # PyTorch makes a complex convolution of real ones


@pytest.mark.parametrize("name", OPS)
def test_errors_are_pytorchs(name):
    op = OPS[name]
    for error in op.error_inputs("cpu") if op.error_inputs_func else []:
        sample, sentences = error.sample_input, []
        for enabled in (False, True):
            with torch_reformer.enable() if enabled else pytest.MonkeyPatch.context():
                with pytest.raises(error.error_type) as raised:
                    op(sample.input, *sample.args, **sample.kwargs)
                sentences.append(str(raised.value))
        assert sentences[0] == sentences[1]
