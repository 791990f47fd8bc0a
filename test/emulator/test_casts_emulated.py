"""Casts of many tensors at once, emulated."""

import ctypes

import pytest
import torch
from marks import slow

import emulator
from emulator import plans

pytestmark = emulator.needed
THREADS, BLOCK, MOST = 256, 4096, 170
TYPES = {torch.float32: ("fp32", 0), torch.float16: ("fp16", 2), torch.bfloat16: ("bf16", 3)}
PAIRS = [(torch.float32, torch.bfloat16), (torch.float32, torch.float16)]
PAIRS += [each[::-1] for each in PAIRS]


def planned(pointers, counts, types, room=8):
    """The number of launches, the kernel's name, and each launch's arguments and blocks."""
    library, count = plans.library("casts_launch"), len(counts)
    library.bytes.restype = library.plan.restype = ctypes.c_int64
    arguments = (ctypes.c_char * library.bytes() * room)()
    blocks, name = (ctypes.c_uint32 * room)(), ctypes.create_string_buffer(32)
    arrays = [(ctypes.c_void_p * count)(*pointer) for pointer in pointers]
    numbers = (ctypes.c_int64 * count)(*counts), ctypes.c_int64(count), *types
    launches = library.plan(*arrays, *numbers, arguments, blocks, ctypes.c_int64(room), name)
    return launches, name.value.decode(), [*zip(map(bytes, arguments), blocks, strict=True)][: max(launches, 0)]


def cast(sources, results, *, warp=32, seed=0):
    """Cast flat tensors, each to the beginning of a result whose remaining elements become 0. Returns the number of
    launches."""
    casts = []
    for source, result in zip(sources, results, strict=True):
        casts.append((source.data_ptr(), result.data_ptr(), len(source)))
        casts.append((None, result.data_ptr() + len(source) * result.itemsize, len(result) - len(source)))
    *pointers, counts = zip(*casts, strict=True)
    types = [TYPES[each[0].dtype][1] for each in (sources, results)]
    launches, name, each = planned(pointers, counts, types)
    for arguments, blocks in each:
        emulator.launch(
            "csrc/hip/copy/casts.hip",
            name,
            grid=(blocks, 1, 1),
            threads=THREADS,
            arguments=arguments,
            seed=seed,
            warp=warp,
        )
    return launches


def special(dtype):
    """All 16-bit numbers, or the fp32 numbers near halves of what 16 bits distinguish."""
    if dtype != torch.float32:
        return torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(dtype)
    high = torch.arange(0, 1 << 16, 37) << 16
    low = torch.tensor([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    return (high[:, None] + low).flatten().to(torch.int32).view(dtype)


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize(("of", "to"), PAIRS, ids=str)
def test_rounds_as_pytorch(of, to, warp):
    source = special(of)
    expected, bits = source.to(to), torch.int32 if to == torch.float32 else torch.int16
    for offset in (0, 1):  # by vectors, and one by one
        memory = torch.zeros(len(source) + offset, dtype=to)
        result = memory[offset:]
        assert cast([source], [result], warp=warp) == 1
        assert torch.equal(result.isnan(), expected.isnan())
        assert torch.equal(result.view(bits)[~result.isnan()], expected.view(bits)[~expected.isnan()])


LENGTHS = [0, 1, 3, 4, 5, 255, 288, 1023, 1024, 1025, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 2]


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize(("of", "to"), PAIRS, ids=str)
@pytest.mark.parametrize("unaligned", [False, True])
def test_lengths(of, to, unaligned, warp):
    """Each result is written to its end, with zeros in its remaining elements, and nothing beside it is."""
    torch.manual_seed(0)
    sources = [torch.randn(length + unaligned).to(of)[unaligned:] for length in LENGTHS]
    memories = [torch.full((length + 64,), torch.nan, dtype=to) for length in LENGTHS]
    more = [i % 3 * 7 for i in range(len(LENGTHS))]
    spans = [(8, 8 + length + rows) for length, rows in zip(LENGTHS, more, strict=True)]
    results = [memory[begin:end] for memory, (begin, end) in zip(memories, spans, strict=True)]
    assert cast(sources, results, warp=warp, seed=1) == 1
    for source, result, memory, (begin, end) in zip(sources, results, memories, spans, strict=True):
        assert torch.equal(result[: len(source)], source.to(to)) and not result[len(source) :].any()
        assert memory[:begin].isnan().all() and memory[end:].isnan().all()


@pytest.mark.parametrize("count", [1, MOST, MOST + 1, 2 * MOST, 450])
def test_as_many_as_there_are(count):
    """Each tensor is filled with a number of its own, which its result must have."""
    sources = [torch.full((1 + i % 5 * 2000,), float(i % 256)) for i in range(count)]
    results = [torch.full(each.shape, torch.nan, dtype=torch.bfloat16) for each in sources]
    assert cast(sources, results) == -(-count // MOST)
    for source, result in zip(sources, results, strict=True):
        assert torch.equal(result.float(), source)


def test_large_tensors_have_several_places():
    count = (1 << 31) + 5
    launches, _, ((arguments, blocks), *_) = planned([[1 << 40], [1 << 50]], [count], [0, 3])
    part = 1 << 30
    assert launches == 1 and blocks == 2 * part // BLOCK + 1
    numbers = [*memoryview(arguments).cast("Q")][: 2 * MOST]
    assert numbers[:3] == [(1 << 40) + i * part * 4 for i in range(3)]
    assert numbers[MOST : MOST + 3] == [(1 << 50) + i * part * 2 for i in range(3)]
    counts = [*memoryview(arguments).cast("I")][4 * MOST :]
    assert counts[:3] == [part, part, 5] and counts[MOST : MOST + 3] == [0, part // BLOCK, 2 * part // BLOCK]


def test_nothing_is_launched_for_nothing():
    assert planned([[], []], [], [0, 3])[0] == 0
    assert planned([[1 << 40], [1 << 50]], [0], [0, 3])[0] == 0


@pytest.mark.parametrize("types", [(1, 0), (0, 1), (0, 0), (2, 3), (3, 2)])
def test_other_types_have_no_kernel(types):
    assert planned([[], []], [], types)[0] == -1
