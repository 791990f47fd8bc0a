"""A training step of one plan fuses what its forward and its backward fuse in two, on GPUs. None runs here."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from marks import needs_aten, needs_cpu_build

from torch_reformer.compiler.analysis import fake_gpu

pytestmark = [needs_aten, needs_cpu_build, pytest.mark.slow]
SCRIPT = Path(__file__).parent / "gpu_steps.py"


@functools.cache
def printed() -> dict:
    done = subprocess.run([sys.executable, SCRIPT], env=fake_gpu.environment(), check=True, capture_output=True)
    return json.loads(done.stdout)


def lines() -> dict:
    """Titles of the lines of two plans and of one, by network."""
    return printed()["plans"]


def count(titles, text):
    return sum(text in title for title in titles)


@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_products_have_the_same_epilogues(name):
    """Forward and backward do not share what a product's kernel can compute in each."""
    two, one = lines()[name]
    assert count(one, "product: ") == count(two, "product: ") == 6
    assert count(one, "stitch: ") <= count(two, "stitch: ")


def test_tables_that_the_update_changes():
    """They are read by kernels before that."""
    two, one = lines()["embedded"]
    assert count(two, "aten::embedding") == count(one, "aten::embedding") == 0


def test_attention():
    """Its kernels refuse a mask whose keys lie at one place, which is rewritten before PyTorch chooses one."""
    two, one = lines()["embedded"]
    for titles in (two, one):
        assert count(titles, "dot_product") == 2, titles


def test_tensors_of_the_cpu():
    """They are constants, and keep no step out of CUDA graphs."""
    assert printed()["graphs"] == [None]


def test_casts_of_gradients():
    """They are one operator, whether the caller or the update gets the gradients."""
    for two, one in lines().values():
        assert count(one, "casts") == count(two, "casts")
