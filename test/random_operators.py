"""Operators of random graphs (random_graphs.py): each draws the text of one on a tensor, or None where it has none.

A text that begins with "!" is a statement, which changes a tensor in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from random_pointwise import activation, binary, cast, large, masked_fill, unary, where, with_number
from torch import Tensor

if TYPE_CHECKING:
    from random_graphs import Drawing

REDUCTIONS = ("sum", "mean", "amax", "amin", "any", "all", "var", "std", "logsumexp", "prod", "argmax", "norm", "count")


def is_float(tensor) -> bool:
    return tensor.dtype.is_floating_point


def overlaps(tensor) -> bool:
    """True if two elements may share memory: AOTAutograd refuses to write such tensors, and has gradients of such
    results wrong."""
    return bool(torch._debug_has_internal_overlap(tensor)) or any(
        stride and size > 1 and stride < 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def reduction(d: Drawing, x: str) -> str:
    name, keepdim = d.choose(REDUCTIONS), d.is_true()
    dims, dim = d.dims(x), d.dim(x)
    options = f"keepdim={keepdim}"
    if name == "prod" and not d.tensors[x].isfinite().all():  # whether its gradient divides by NaN depends on the path
        return None
    if name == "prod" or name == "argmax":
        return f"{x}.{name}({dim}, {options})"
    if name == "count":
        return f"({x} > 0).sum({dims}, {options})"
    if name == "norm":
        return f"torch.linalg.vector_norm({x}, {d.choose((2, 1, 'math.inf', 0))}, {dims}, {options})"
    if name in ("var", "std"):
        return f"{x}.{name}({dims}, correction={d.choose((1, 0))}, {options})"
    if name in ("sum", "mean", "amax", "any", "all") and d.is_true() and d.is_true():
        return f"{x}.{'max' if name == 'amax' else name}()"
    return f"torch.{name}({x}, {dims}, {options})"


def of_rows(d: Drawing, x: str) -> str | None:
    dim = d.dim(x)
    if not is_float(d.tensors[x]):
        return None
    names = ("softmax", "log_softmax", "normalize", "scan", "layer_norm", "max", "centred", "sort", "glu")
    if (name := d.choose(names)) == "scan":
        return scan(d, x, dim)
    if name == "normalize":
        return f"F.normalize({x}, dim={dim})"
    if name == "layer_norm":
        first = d.integer(1, 2)
        weight = _weights(d, x, d.tensors[x].shape[-first:]) if d.is_true() else "None"
        return f"F.layer_norm({x}, tuple({x}.shape[-{first}:]), {weight})"
    if name == "max":
        return f"{x}.{d.choose(('max', 'min'))}({dim})[{d.choose((0, 1))}]"
    if name == "centred":
        return f"{x} - {x}.mean({d.dims(x)}, keepdim=True)"
    if name == "sort":
        return f"{x}.sort({dim})[0]"
    return f"F.{name}({x}, {dim})"


def scan(d: Drawing, x: str, dim: int) -> str:
    name = d.choose(("sums", "sums", "from the end", "count", "products"))
    if name == "products":  # of factors near 1, as eager's gradient divides by them
        return f"(1 + {x}.tanh() / 8).cumprod({dim})"
    if name == "count":
        return f"({x} > 0).cumsum({dim})"
    return f"{x}.cumsum({dim})" if name == "sums" else f"{x}.flip({dim}).cumsum({dim}).flip({dim})"


def _weights(d: Drawing, x: str, sizes) -> str:
    """Name of a new argument of x' type."""
    return d.given(sizes, str(d.tensors[x].dtype).removeprefix("torch."))


def of_channels(d: Drawing, x: str) -> str | None:
    tensor = d.tensors[x]
    if tensor.dim() < 2 or not is_float(tensor):
        return None
    if tensor.dim() > 4:  # eager's gradients of norms of volumes are wrong in some memory formats, and crash in others
        return None
    channels = tensor.shape[1]
    name = d.choose(("batch_norm", "group_norm", "instance_norm", "frozen", "scaled"))
    if name == "scaled":
        return f"{x} * {_weights(d, x, (channels, *[1] * (tensor.dim() - 2)))}"
    weight = _weights(d, x, (channels,)) if d.is_true() else "None"
    if name == "group_norm":
        groups = d.choose([g for g in range(1, channels + 1) if channels % g == 0] or [1])
        return f"F.group_norm({x}, {groups}, {weight})"
    if name == "frozen":
        kind = str(tensor.dtype).removeprefix("torch.")
        mean = d.given((channels,), kind, has_gradient=False)
        variance = d.given((channels,), kind, "whole", has_gradient=False)
        return f"F.batch_norm({x}, {mean}, {variance}.abs(), {weight})"
    if name == "instance_norm":
        return f"F.instance_norm({x}, weight={weight})"
    return f"F.batch_norm({x}, None, None, {weight}, training=True)"


def pad(d: Drawing, x: str) -> str:
    mode = d.choose(("constant", "constant", "reflect", "replicate", "circular"))
    rank = d.tensors[x].dim()
    most = rank if mode == "constant" else max(1, rank - 1)
    least = 0 if mode != "constant" else -1
    pads = tuple(d.integer(least, 3) for _ in range(2 * d.integer(1, min(3, max(1, most)))))
    numbers = ("0.0", "1.1", "-math.inf") if is_float(d.tensors[x]) else ("0", "1")
    value = f", value={d.choose(numbers)}" if mode == "constant" else ""
    return f"F.pad({x}, {pads}, mode={mode!r}{value})"


def roll(d: Drawing, x: str) -> str:
    dims = d.dims(x)
    return f"torch.roll({x}, {tuple(d.integer(-3, 3) for _ in dims)}, {dims})"


def flip(d: Drawing, x: str) -> str:
    return f"{x}.flip({d.dims(x)})"


def _slice(d: Drawing, size: int) -> str:
    start, step = d.integer(-1, max(0, size // 2)), d.choose((1, 1, 1, 2, 3))
    end = d.choose(("", size - 1, size - 2, -1))
    return f"{start if start else ''}:{end}" + (f":{step}" if step > 1 else "")


def _slices(d: Drawing, x: str) -> str:
    sizes = d.tensors[x].shape
    texts = [d.choose((":", _slice(d, size), _slice(d, size), str(d.integer(-1, max(0, size - 1))))) for size in sizes]
    return ", ".join(texts) or "..."


def slices(d: Drawing, x: str) -> str:
    return f"{x}[{_slices(d, x)}]"


def cat(d: Drawing, x: str) -> str:
    dim, tensor = d.dim(x), d.tensors[x]

    def fits(other) -> bool:
        sizes = [(a, b) for i, (a, b) in enumerate(zip(other.shape, tensor.shape, strict=False)) if i != dim]
        return other.dim() == tensor.dim() and all(a == b for a, b in sizes)

    names = [d.tensor(fits) for _ in range(d.integer(1, 3))]
    return f"torch.cat([{', '.join([x, *names])}], {dim})"


def stack(d: Drawing, x: str) -> str:
    shape = d.tensors[x].shape
    names = [d.tensor(lambda other: other.shape == shape) for _ in range(d.integer(1, 2))]
    return f"torch.stack([{', '.join([x, *names])}], {d.integer(0, len(shape))})"


def chunk(d: Drawing, x: str) -> str:
    return f"{x}.chunk({d.integer(2, 3)}, {d.dim(x)})[{d.integer(0, 1)}]"


def permute(d: Drawing, x: str) -> str:
    left = [*range(d.tensors[x].dim())]
    order = []
    while left:
        order.append(d.choose(left))
        left.remove(order[-1])
    return f"{x}.permute({tuple(order)})" + d.choose(("", "", ".contiguous()"))


def reshape(d: Drawing, x: str) -> str:
    """Split a dimension, or join two."""
    sizes = [*d.tensors[x].shape]
    place = d.dim(x) if sizes else 0
    if sizes and d.is_true():
        size = sizes[place]
        factors = [f for f in range(1, size + 1) if size % f == 0] or [1]
        factor = d.choose(factors)
        sizes[place : place + 1] = [factor, size // factor]
    elif len(sizes) > 1:
        place = min(place, len(sizes) - 2)
        sizes[place : place + 2] = [sizes[place] * sizes[place + 1]]
    return f"{x}.reshape({tuple(sizes)})"


def expand(d: Drawing, x: str) -> str:
    sizes = d.tensors[x].shape
    if d.is_true():
        return f"{x}.repeat({tuple(d.choose((1, 2, 3)) for _ in range(len(sizes) + d.integer(0, 1)))})"
    if d.is_true():
        return f"{x}.repeat_interleave({d.integer(1, 3)}, {d.dim(x)})"
    return f"{x}.expand({tuple(d.choose((2, 3)) if size == 1 else size for size in (1, *sizes))})"


def unsqueeze(d: Drawing, x: str) -> str:
    return d.choose((f"{x}.unsqueeze({d.integer(0, d.tensors[x].dim())})", f"{x}.squeeze()", f"{x}.flatten()"))


def diagonal(d: Drawing, x: str) -> str:
    name = d.choose(("tril", "triu", "diagonal"))
    return f"torch.{name}({x}, {d.integer(-1, 2)})"


def shuffle(d: Drawing, x: str) -> str | None:
    shape = d.tensors[x].shape
    if not d.tensors[x].numel() or len(shape) < 3 or shape[1] == 2:  # eager leaves sizes, or traced code aliases
        return None
    return f"F.{d.choose(('pixel_shuffle', 'pixel_unshuffle', 'channel_shuffle'))}({x}, 2)"


def unfold(d: Drawing, x: str) -> str | None:
    tensor = d.tensors[x]
    kernel, stride, padding, dilation = d.integer(1, 3), d.integer(1, 2), d.integer(0, 1), d.integer(1, 2)
    options = f"{kernel}, dilation={dilation}, padding={padding}, stride={stride}"
    if d.is_true():
        return f"F.unfold({x}, {options})"
    if d.is_true() or tensor.dim() != 3:
        return f"{x}.unfold({d.dim(x)}, {kernel}, {stride})"
    for height in range(2, 9):
        for width in range(2, 9):
            spans = [(size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for size in (height, width)]
            if spans[0] * spans[1] == tensor.shape[2] and min(spans) > 0 and tensor.shape[1] % kernel**2 == 0:
                return f"F.fold({x}, ({height}, {width}), {options})"
    return None


def _image(d: Drawing, x: str) -> int | None:
    """Number of spatial dimensions, or None."""
    rank = d.tensors[x].dim()
    return rank - 2 if 3 <= rank <= 5 and is_float(d.tensors[x]) else None


def upsample(d: Drawing, x: str) -> str | None:
    n = _image(d, x)
    if n is None:
        return None
    modes = ["nearest", "nearest-exact", ("linear", "bilinear", "trilinear")[n - 1], "area", *["bicubic"] * (n == 2)]
    mode = d.choose(modes)
    options = f"mode={mode!r}"
    if "linear" in mode or "cubic" in mode:
        if not d.tensors[x].isfinite().all():  # eager multiplies infinity by weights of 0, too
            return None
        options += f", align_corners={d.choose((False, True))}"
        if n == 2 and d.is_true() and "True" not in options:
            options += ", antialias=True"
    if d.is_true():
        return f"F.interpolate({x}, scale_factor={d.choose((2, 1.5, 0.5, 3))}, {options})"
    return f"F.interpolate({x}, size={tuple(d.integer(1, 9) for _ in range(n))}, {options})"


def pool(d: Drawing, x: str) -> str | None:
    n = _image(d, x)
    if n is None:
        return None
    kernel, stride, padding = d.integer(1, 3), d.integer(1, 3), d.integer(0, 1)
    ceil = f"ceil_mode={d.is_true()}"
    if d.is_true():
        size = tuple(d.integer(1, 5) for _ in range(n))
        return f"F.adaptive_{d.choose(('avg', 'avg', 'max'))}_pool{n}d({x}, {size})"
    if d.is_true():
        return f"F.max_pool{n}d({x}, {kernel}, {stride}, {padding}, {ceil})"
    options = f", count_include_pad={d.is_true()}"
    if n > 1 and d.is_true():
        options += f", divisor_override={d.integer(1, 3)}"
    return f"F.avg_pool{n}d({x}, {kernel}, {stride}, {padding}, {ceil}{options})"


def _constant_index(d: Drawing, size: int) -> str:
    numbers = [d.integer(0, max(0, size - 1)) for _ in range(d.integer(1, 5))]
    return f"torch.tensor({numbers})"


def _index(d: Drawing, size: int) -> str:
    """A one-dimensional index below a size: known at capture, or an argument."""
    kind = d.choose(("constant", "arange", "argument", "argument"))
    if kind == "constant":
        return _constant_index(d, size)
    if kind == "arange":
        return f"torch.arange({size - 1}, -1, -1)"
    name = d.given((d.choose((3, 1, 5, 8, 0)),), "int64")
    return f"({name} % {max(1, size)})"


def indexed(d: Drawing, x: str) -> str | None:
    shape = d.tensors[x].shape
    if not shape:
        return None
    dim = d.dim(x)
    index = _index(d, shape[dim])
    kind = d.choose(("index_select", "index", "embedding", "gather", "two", "take"))
    if kind == "index":
        return f"{x}[{':, ' * dim}{index}]"
    if kind == "embedding":
        return f"F.embedding({index}, {x})" if len(shape) == 2 and dim == 0 else None
    if kind == "gather":
        ones = ", ".join(":" if i == dim else "None" for i in range(len(shape)))
        sizes = tuple(-1 if i == dim else size for i, size in enumerate(shape))
        return f"{x}.gather({dim}, {index}[{ones}].expand({sizes}))"
    if kind == "two":
        rows = _constant_index(d, shape[0])
        return (
            f"{x}[{rows}, {_constant_index(d, shape[1])[:-2]}][:1]).expand({rows}.shape)]" if len(shape) > 1 else None
        )
    if kind == "take":
        return f"torch.take_along_dim({x}, {x}.argsort({dim}), {dim})"
    return f"{x}.index_select({dim}, {index})"


def scattered(d: Drawing, x: str) -> str | None:
    shape = d.tensors[x].shape
    if not shape:
        return None
    kind, size = d.choose(("index_add", "scatter_add", "index_put", "index_copy")), d.integer(1, 5)
    index = f"(torch.arange({shape[0]}) % {size})"
    if kind == "scatter_add":
        ones = ", ".join([":", *["None"] * (len(shape) - 1)])
        return f"torch.zeros_like({x}).scatter_add(0, {index}[{ones}].expand({tuple(shape)}), {x})"
    if kind == "index_put":
        return f"torch.zeros_like({x}).index_put(({index},), {x}, accumulate=True)"
    if kind == "index_copy":
        return f"torch.zeros_like({x}).index_copy(0, torch.arange({shape[0]}).flip(0), {x})"
    return f"{x}.new_zeros(({size}, *{x}.shape[1:])).index_add(0, {index}, {x})"


def one_hot(d: Drawing, x: str) -> str:
    name = d.tensor(lambda tensor: tensor.dtype == torch.int64 and tensor.dim() < 3)
    name = name or d.given((d.choose((3, 1, 5)),), "int64")
    return f"F.one_hot({name} % 4, 4)" + d.choose(("", ".float()", ".bool()"))


def made(d: Drawing, x: str) -> str:
    return d.choose((f"torch.zeros_like({x})", f"torch.full_like({x}, 1.5)", f"{x}.clone()", f"{x}.contiguous()"))


def copied(d: Drawing, x: str) -> str | None:
    formats = {4: "torch.channels_last", 5: "torch.channels_last_3d"}
    rank = d.tensors[x].dim()
    return f"{x}.contiguous(memory_format={formats[rank]})" if rank in formats else None


def standardised(d: Drawing, x: str) -> str | None:
    """Rows of filters without their means, as filters again."""
    tensor = d.tensors[x]
    if tensor.dim() < 3 or not is_float(tensor) or not tensor.numel():
        return None
    rows = f"{x}.flatten(1)"
    return f"({rows} - {rows}.mean(1, keepdim=True)).view({tuple(tensor.shape)})"


def product(d: Drawing, x: str) -> str | None:
    tensor = d.tensors[x]
    if not is_float(tensor) or tensor.dim() < 2:
        return None
    weight = _weights(d, x, (d.choose((3, 8, 1)), tensor.shape[-1]))
    return f"F.linear({x}, {weight})"


def convolution(d: Drawing, x: str) -> str | None:
    tensor = d.tensors[x]
    if not is_float(tensor) or tensor.dim() not in (3, 4) or 0 in tensor.shape:
        return None
    if not tensor.isfinite().all():  # whether a pad's zeros multiply NaN depends on the kernel
        return None
    n, channels = tensor.dim() - 2, tensor.shape[1]
    weight = _weights(d, x, (d.choose((3, 8, 1)), channels, *[d.choose((1, 3))] * n))
    return f"F.conv{n}d({x}, {weight}, padding={d.integer(0, 1)})"


def assigned(d: Drawing, x: str) -> str | None:
    """A write to a slice of a tensor."""
    if overlaps(d.tensors[x]) or not d.tensors[x].dim():  # PyTorch's tracing has no numbers written into numbers
        return None
    index = _slices(d, x)
    value = d.choose(("0.5", f"{x}.mean()", f"{d.other(x)}[{index}]", f"{d.other(x)}"))
    return f"!{x}[{index}] = {value}"


def in_place(d: Drawing, x: str) -> str | None:
    if overlaps(d.tensors[x]):
        return None
    text = d.choose((".mul_(2)", ".add_(1)", ".relu_()", ".zero_()", ".sub_({})", ".copy_({})", ".tanh_()"))
    index = f"[{_slices(d, x)}]" if d.is_true() else ""
    return f"!{x}{index}" + text.format(d.other(x))


def view_of_change(d: Drawing, x: str) -> str:
    return f"{x}.clone()" + d.choose((".transpose(0, -1)", "[:1]", ".flatten()", ".t()"))


def negated(x: Tensor) -> Tensor:
    """The negative numbers, by their bits."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return (x.view(integer) ^ torch.iinfo(integer).min).view(x.dtype)


def conjugate(x: Tensor) -> Tensor:
    """Imaginary parts of conjugate numbers."""
    return torch.view_as_real(torch.complex(x, x).conj().resolve_conj())[..., 1]


def without_a_plan(d: Drawing, x: str) -> str | None:
    """Operators that PyTorch runs between plans."""
    return f"{d.choose(('negated', 'conjugate'))}({x})" if is_float(d.tensors[x]) else None


MOVES = (pad, pad, pad, roll, flip, slices, slices, cat, cat, stack, chunk, permute, permute, reshape, reshape)
MOVES += (expand, expand, unsqueeze, diagonal, shuffle, unfold, indexed, indexed, indexed, made, copied)
COMPUTING = (unary, unary, activation, binary, binary, binary, with_number, where, masked_fill, cast, cast, large)
COMPUTING += (upsample, upsample, pool, pool, reduction, reduction, reduction, of_rows, of_rows, of_channels)
COMPUTING += (scattered, one_hot, product, convolution, standardised)
CHANGES = (assigned, assigned, in_place, in_place, view_of_change)
SMOOTH = (unary, activation, binary, with_number, where, cast)
# Operators of a graph: of any kind, or mostly of a few kinds that are fused with each other.
OPERATORS: tuple[tuple[Callable[[Drawing, str], str | None], ...], ...] = (
    (*MOVES, *COMPUTING, *CHANGES),
    (pad, roll, flip, slices, cat, permute, reshape, expand, indexed, upsample, pool, pool, copied, *SMOOTH),
    (without_a_plan, without_a_plan, in_place, assigned, permute, reshape, slices, reduction, *SMOOTH),
    (reduction, reduction, of_rows, of_rows, of_channels, permute, reshape, slices, cat, expand, pad, *SMOOTH),
)
