"""Reductions of what is stored, rounded, as kernels of convolutions compute them."""

import torch


def reduced_rounded(tested, expected, dtype):
    """What is expected (in fp64) where not the program's values are reduced, but its first output of the result's type
    as it is stored."""
    first = next(o for o, output in enumerate(tested.outputs) if output.is_by_element and output.dtype is None)
    exact = expected[first].double()
    exact, rounded = (each.transpose(0, 1).flatten(1) for each in (exact, exact.to(dtype).double()))
    mean = rounded.mean(1)

    def of(output, values):
        if output.kind == "moments":
            return torch.stack([mean, (rounded - mean[:, None]).square().sum(1)])
        if output.kind == "max":
            return rounded.amax(1)
        # It may be multiplied by a channel's factor.
        return values * rounded.sum(1) / exact.sum(1) if output.kind == "sum" else values

    return list(map(of, tested.outputs, expected))
