"""Random graphs, planned by the rules of GPUs, whose programs the GPU's kernels compute, emulated, against eager."""

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from marks import needs_aten
from random_differences import differences
from test_random_graphs import graphs

import emulator
from emulator.graphs import emulated

pytestmark = [needs_aten, emulator.needed]
# Few examples, and no smaller ones of a failure, as each kernel is compiled.
OPTIONS = {"suppress_health_check": list(HealthCheck), "phases": [Phase.generate]}


def check(graph, multiprocessors, seed):
    with emulated(multiprocessors, seed):
        found = differences(graph)
    assume(found is not None)
    assert not found, "\n".join([str(graph), *found])


@settings(max_examples=5, **OPTIONS)
@given(graph=graphs())
def test_as_eager(graph):
    check(graph, multiprocessors=2, seed=0)


@pytest.mark.slow
@settings(max_examples=60, **OPTIONS)
@given(graph=graphs(), multiprocessors=st.sampled_from([2, 1, 7]), seed=st.integers(0, 9))
def test_many_as_eager(graph, multiprocessors, seed):
    check(graph, multiprocessors, seed)
