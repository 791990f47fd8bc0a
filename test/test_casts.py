"""Casts of many tensors at once."""

import functools
import re

import pytest
import torch

cast_all = torch.ops.reformer._cast_all
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
PAIRS = [(torch.float32, torch.bfloat16), (torch.float32, torch.float16), (torch.float64, torch.float32)]
PAIRS += [each[::-1] for each in PAIRS]
pairs = pytest.mark.parametrize(("of", "to"), PAIRS, ids=str)
last = {"memory_format": torch.channels_last}

# Maker of a source from torch.randn, a type and a device; and the result's strides if they differ from the source's.
KINDS = {
    "vector": (lambda randn: randn(1000), None),
    "number": (lambda randn: randn(()), None),
    "nothing": (lambda randn: randn(3, 0, 5), None),
    "not aligned": (lambda randn: randn(1001)[1:], None),
    "channels_last": (lambda randn: randn(40, 24, 3, 3).to(**last), None),
    "one channel": (lambda randn: randn(40, 1, 3, 3).to(**last), (9, 9, 3, 1)),
    "turned": (lambda randn: randn(30, 50).t(), None),
    "in another order": (lambda randn: randn(30, 50), (1, 64)),
    "a part": (lambda randn: randn(30, 50)[:, 3:40], None),
    "of a part": (lambda randn: randn(30, 50)[:, 3:40], (37, 1)),
    "repeated": (lambda randn: randn(1, 50).expand(30, 50), (50, 1)),
    "large": (lambda randn: randn(300, 1111), None),
}


def sources_of(dtype, device):
    torch.manual_seed(0)
    return [make(functools.partial(torch.randn, dtype=dtype, device=device)) for make, _ in KINDS.values()]


def check(sources, to, strides=(), more=0):
    """Compare with PyTorch. Results are filled with NaN before, and may have `more` extra rows, which become zeros."""
    results, expected = [], []
    for source, own in zip(sources, strides or [None] * len(sources), strict=True):
        sizes = (source.shape[0] + more, *source.shape[1:]) if source.dim() else ()
        result = torch.empty_strided(sizes, own or source.stride(), dtype=to, device=source.device)
        results.append(result.fill_(torch.nan))
        expected.append(torch.zeros_like(result))
        (expected[-1][: len(source)] if source.dim() else expected[-1]).copy_(source)
    cast_all(sources, results)
    for actual, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0, equal_nan=True)


@pairs
@devices
def test_orders_of_memory(device, of, to):
    check(sources_of(of, device), to, [strides for _, strides in KINDS.values()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32, torch.bool], ids=str)
@devices
def test_copies(device, dtype):
    """Of one type, as small tensors are saved."""
    sources = [(source * 9).to(dtype) for source in sources_of(torch.float32, device)]
    results = [torch.empty_like(source) for source in sources]
    cast_all(sources, results)
    for result, source in zip(results, sources, strict=True):
        assert torch.equal(result, source)


@pairs
@devices
def test_rows_of_zeros(device, of, to):
    sources = [each.clone() for each in sources_of(of, device) if each.numel()]
    check(
        [source if source.is_contiguous() or source.dim() == 4 else source.contiguous() for source in sources],
        to,
        more=5,
    )
    turned = torch.randn(30, 50, dtype=of, device=device).t()
    check([turned], to, [(1, 64)], more=5)  # rows that do not follow one another


@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@devices
def test_rounding(device, of):
    """Halves, numbers that are too large or too small, infinity and NaN."""
    if of == torch.float32:
        high = torch.arange(0, 1 << 16) << 16
        bits = high[:, None] + torch.tensor([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
        source = bits.flatten().to(torch.int32).view(of)
    else:
        source = torch.arange(1 << 16).to(torch.int16).view(of)
    for to in (torch.bfloat16, torch.float16) if of == torch.float32 else (torch.float32,):
        check([source.to(device), source.to(device)[1:]], to)


@devices
def test_many(device):
    for count in (0, 1, 170, 171, 450):
        sources = [torch.full((1 + i % 7 * 1500,), i % 256, dtype=torch.float32, device=device) for i in range(count)]
        check(sources, torch.bfloat16)


@pytest.mark.gpu
def test_how_many_kernels_there_are():
    sources = [torch.randn(1 + i % 7 * 1500, device="cuda") for i in range(400)]
    results = [torch.empty_like(source, dtype=torch.bfloat16) for source in sources]
    cast_all(sources, results)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        cast_all(sources, results)
        torch.cuda.synchronize()
    names = [each.name for each in profile.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    assert names == ["casts_fp32_bf16"] * 3


def test_says_what_is_wrong():
    x = torch.zeros(4, 3)
    for results, sentence in (
        ([], "got 1 tensors, and 0 to write them to"),
        ([x[:3]], "tensor 0 has size [4, 3], and what it is written to [3, 3]"),
        ([x[:, :2]], "tensor 0 has size [4, 3], and what it is written to [4, 2]"),
        ([x[0]], "tensor 0 has size [4, 3], and what it is written to [3]"),
    ):
        with pytest.raises(RuntimeError, match=re.escape(f"_cast_all: {sentence}")):
            cast_all([x], results)
    freed = torch.zeros(3)
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="_cast_all: a tensor of size .3. has no memory"):
        cast_all([freed], [torch.zeros(3)])
