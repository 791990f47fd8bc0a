"""Reductions of stored, rounded values, as convolution kernels compute them."""

import torch


def reduced_rounded(tested, expected, dtype):
    """Expected outputs (fp64) if reductions are of the program's first output of the result's type, as stored.

    Elsewhere a program's values are reduced before they are rounded.
    """
    first = next(o for o, output in enumerate(tested.outputs) if output.is_by_element and output.dtype is None)
    exact = expected[first].double()
    exact, rounded = (each.transpose(0, 1).flatten(1) for each in (exact, exact.to(dtype).double()))
    mean = rounded.mean(1)

    def of(output, values):
        if output.kind == "moments":
            return torch.stack([mean, (rounded - mean[:, None]).square().sum(1)])
        if output.kind == "max":
            return rounded.amax(1)
        if output.kind == "sum":  # it may have a factor per channel
            return torch.where(exact.sum(1) == 0, values, values * rounded.sum(1) / exact.sum(1))
        return values

    return list(map(of, tested.outputs, expected))
