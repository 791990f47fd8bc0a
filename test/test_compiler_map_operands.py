"""Element-wise operations that change places with the maps their results are read through."""

import pytest
import torch
import torch.nn.functional as F
from against_eager import without_dynamo
from marks import needs_aten
from test_compiler_index_maps import check, on_cpus  # noqa: F401  used by all tests

pytestmark = needs_aten
FUNCTIONS = {
    "cast": lambda x: torch.roll(x.to(torch.bfloat16), 1, -1).float(),
    "wide cast": lambda x: torch.roll(x.double(), (1, 2), (2, 3)).float(),
    "cast and pad": lambda x: F.pad(x.to(torch.bfloat16), (1, 1), value=0.3).float(),
    "relu": lambda x: F.pad(torch.relu(x), (1, 2, 2, 0), mode="reflect"),
    "exp and pad": lambda x: F.pad(torch.exp(x), (1, 2, 2, 0)),
    "exp and upsampling": lambda x: F.interpolate(torch.exp(x), scale_factor=2),
    "exp and average": lambda x: F.avg_pool2d(torch.exp(x), 2),
    "mask": lambda x: torch.roll(x > 0, 1, -1) * x,
    "slice": lambda x: torch.roll(torch.exp(x[:, :, 1:5]), 1, -1),
    "another reader": lambda x: torch.roll(torch.exp(x), 1, -1) * torch.exp(x),
    "twice": lambda x: torch.exp(torch.roll(torch.exp(x).flip(2), 1, -1)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name):
    x = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(0))
    if "cast" in name:
        x = x.to(torch.bfloat16).float()  # otherwise fp64's values would be rounded elsewhere
        expected, found = FUNCTIONS[name](x), without_dynamo(FUNCTIONS[name], lambda report: None)(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    else:
        check(FUNCTIONS[name], x)


@pytest.mark.parametrize(("name", "kernels"), [("relu", 1), ("exp and pad", 2), ("another reader", 2), ("cast", 1)])
def test_kernels(name, kernels):
    reports: list = []
    without_dynamo(FUNCTIONS[name], reports.append)(torch.randn(4, 8, 64, 64))
    assert len(reports[0].lines) == kernels, reports[0]
