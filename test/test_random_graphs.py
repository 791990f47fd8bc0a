"""Random graphs, compiled, against eager: results, gradients, writes to arguments, strides, types and aliases.

A failure prints the graph as Python. REFORMER_EXAMPLES=2 tries 2,000 graphs.
test/emulator/test_random_graphs_emulated.py runs the GPU's kernels of such graphs."""

import contextlib

import pytest
from cases import examples
from gpu_rules import as_on_gpus
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from marks import needs_aten
from random_differences import differences
from random_graphs import Graph, draw_graph

pytestmark = [needs_aten, pytest.mark.filterwarnings("ignore:.*degrees of freedom")]
RULES = {"CPUs": contextlib.nullcontext, "GPUs": as_on_gpus}


@st.composite
def graphs(draw) -> Graph:
    return draw_graph(lambda options: draw(st.sampled_from(options)))


def check(graph: Graph, rules: str) -> None:
    with RULES[rules]():
        found = differences(graph)
    assume(found is not None)
    note(str(graph))
    assert not found, "\n".join([str(graph), *found])


@pytest.mark.parametrize("rules", RULES)
@settings(max_examples=examples(500), suppress_health_check=list(HealthCheck))
@given(graph=graphs())
def test_as_eager(rules, graph):
    check(graph, rules)
