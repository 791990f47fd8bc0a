"""Split a graph where an operator has no plan (lowering/unplanned.py): into subgraphs that are planned, and subgraphs
between them that PyTorch runs.

Subgraphs are *levels*: planned ones have even numbers, the others odd ones, and values go from lower levels to higher
ones only. There are as few levels as the longest chain of dependent operators needs. Within that, a node's level is the
one that runs at its place in the graph, so that what a checkpoint computes again is not computed too early.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from torch.fx import Graph, GraphModule, Node

from ..ir.custom_ops import DONATED
from ..ir.effects import is_ordered
from ..ir.fx_utils import is_higher_order, is_operator, values_of
from .unplanned import dequantises, is_complex, is_getitem, is_view, quantises, why_unknown, why_unplanned


@dataclass
class Subgraph:
    """A part of a graph.

    Attributes:
        module: takes the inputs as its arguments, and gives a list of the outputs.
        is_planned: a plan computes it; otherwise PyTorch runs it.
        operators: its nodes that compute something.
        inputs, outputs: nodes of the whole graph.
    """

    module: GraphModule
    is_planned: bool
    operators: list[Node]
    inputs: list[Node]
    outputs: list[Node]


def split(module: GraphModule) -> list[Subgraph]:
    """Subgraphs in the order in which they run; only the module itself if a plan can compute the whole graph."""
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    inputs = module.graph.find_nodes(op="placeholder")
    unplanned, unknown = _unplanned(module)
    if not unplanned and unknown.isdisjoint(inputs):
        return [Subgraph(module, True, nodes, inputs, [])]
    # Plans only have calls of complex operators: PyTorch runs these beside others, rather than a plan in between.
    unplanned |= {node for node in nodes if not is_getitem(node) and is_complex(node)}
    return _Split(module, nodes, unplanned).run()


def is_whole(module: GraphModule, subgraphs: list[Subgraph]) -> bool:
    """True if one plan can compute the whole graph."""
    return [subgraph.module for subgraph in subgraphs] == [module]


def _unplanned(module: GraphModule) -> tuple[set[Node], set[Node]]:
    """Calls that no plan computes, and nodes whose results no plan has."""
    calls: set[Node] = set()
    unknown: set[Node] = set()
    quantised: set[Node] = set()
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "call_function"):
            continue
        takes_unknown = not unknown.isdisjoint(node.all_input_nodes)
        if node.op == "call_function" and not is_getitem(node) and (takes_unknown or why_unplanned(node)):
            calls.add(node)
        if quantises(node) or not (quantised.isdisjoint(node.all_input_nodes) or dequantises(node)):
            quantised.add(node)
        may_be_unknown = node.op == "placeholder" or node in calls or takes_unknown
        if node in quantised or (may_be_unknown and ("val" not in node.meta or why_unknown(values_of(node)))):
            unknown.add(node)
    return calls, unknown


def _is_constant(node: Node) -> bool:
    """True for a number that is known before the graph runs."""
    return isinstance(node.meta.get("val"), (int, float, bool))


def _is_ordered(node: Node) -> bool:
    """True for an operator that has effects, or may have."""
    return is_higher_order(node) or is_ordered(node.target)


def _written(node: Node) -> list[Node]:
    """Arguments that the operator changes in place."""
    if not is_operator(node) or not node.target._schema.is_mutable:
        return []
    arguments = node.target._schema.arguments
    named = [*zip(arguments, node.args, strict=False)]
    named += [(argument, node.kwargs.get(argument.name)) for argument in arguments]
    infos = [(argument.alias_info, value) for argument, value in named]
    return [value for info, value in infos if info is not None and info.is_write and isinstance(value, Node)]


def _aliased(node: Node) -> list[Node]:
    """Operands of which the result may be a view."""
    if is_getitem(node) or is_view(node):
        return [node.args[0]]
    if is_operator(node) and any(each.alias_info for each in node.target._schema.returns):
        return list(node.all_input_nodes)
    return []


class _Split:
    """The split of one graph.

    A view, or an element of a list, belongs to the subgraph of what it is taken from. Views, and constants such as
    ``full``, are computed again in each subgraph that reads them.
    """

    def __init__(self, module: GraphModule, nodes: list[Node], unplanned: set[Node]):
        self.module, self.unplanned = module, unplanned
        self.views = {node for node in nodes if node not in unplanned and is_view(node)}
        self.glued = self.views | set(filter(is_getitem, nodes))
        self.nodes = [node for node in nodes if node not in self.glued and not _is_constant(node)]
        (self.output,) = module.graph.find_nodes(op="output")
        self.after = self._order()
        self.levels = self._levels()

    def run(self) -> list[Subgraph]:
        results = {node for node in self.output.all_input_nodes if node.op == "call_function"}
        levels = sorted(set(self.levels.values())) or [0]
        subgraphs = [_Builder(self, level, levels[0]) for level in levels]
        for subgraph in subgraphs:
            subgraph.build()
        needed = results.union(*(subgraph.inputs for subgraph in subgraphs))
        outputs: dict[int, list[Node]] = {level: [] for level in levels}
        for node in self.module.graph.nodes:
            if node in needed and node.op == "call_function":
                outputs[self.level(node, levels[0])].append(node)
        for subgraph in subgraphs:
            subgraph.give(outputs[subgraph.level])
        return [subgraph.finished() for subgraph in subgraphs if subgraph.outputs or subgraph.effects]

    def source(self, node: Node) -> Node:
        """The node of which this one is a view or an element."""
        while node in self.glued:
            node = node.args[0]
        return node

    def level(self, node: Node, first: int) -> int:
        """Level of a call. A view of an input of the graph belongs to the first one."""
        return self.levels.get(self.source(node), first)

    def is_copied(self, node: Node) -> bool:
        """True for a value that each subgraph takes for itself instead of from another."""
        if is_getitem(node):
            return self.is_copied(node.args[0])
        if node in self.views or node.op == "get_attr":
            return True
        is_creation = node.op == "call_function" and node not in self.unplanned and not node.all_input_nodes
        return is_creation and not _is_ordered(node) and not _written(node)

    def _order(self) -> dict[Node, list[Node]]:
        """For each node, those that run before it."""
        after: dict[Node, list[Node]] = {}
        memory: dict[Node, set[Node]] = {}  # nodes whose memory a node's result may be
        users: dict[Node, list[Node]] = {}  # of each memory, in order
        writers: list[tuple[Node, Node]] = []
        for node in self.module.graph.nodes:
            aliased = _aliased(node) if node.op == "call_function" else []
            memory[node] = set().union(*(memory[each] for each in aliased)) or {node}
            if node in self.glued or node.op != "call_function" or _is_constant(node):
                continue
            sources = map(self.source, node.all_input_nodes)
            after[node] = [each for each in sources if each in after]
            for root in {root for operand in node.all_input_nodes for root in memory[operand]}:
                users.setdefault(root, []).append(node)
            writers += [(node, root) for written in _written(node) for root in memory[written]]
        for writer, root in writers:
            place = users[root].index(writer)
            after[writer] += users[root][:place]
            for later in users[root][place + 1 :]:
                after[later].append(writer)
            if any(root in memory[node] for node in self.unplanned):
                self.unplanned.add(writer)  # a plan would not know that its other inputs change, too
        for one, other in itertools.pairwise(filter(_is_ordered, after)):
            after[other].append(one)
        return after

    def _distance(self, one: Node, other: Node) -> int:
        return int((one in self.unplanned) != (other in self.unplanned))

    def _levels(self) -> dict[Node, int]:
        earliest: dict[Node, int] = {}
        for node in self.nodes:
            lower = [earliest[each] + self._distance(each, node) for each in self.after[node]]
            earliest[node] = max(lower, default=int(node in self.unplanned))
        last = max(earliest.values(), default=0)
        latest = {node: last - (last - earliest[node]) % 2 for node in self.nodes}
        for node in reversed(self.nodes):
            for each in self.after[node]:
                latest[each] = min(latest[each], latest[node] - self._distance(each, node))
        levels: dict[Node, int] = {}
        now = 0
        for node in self.nodes:
            lower = [levels[each] + self._distance(each, node) for each in self.after[node]]
            levels[node] = min(latest[node], max(*lower, now + (latest[node] - now) % 2, earliest[node]))
            now = max(now, levels[node])
        return levels


class _Builder:
    """The subgraph of one level. first: the first level."""

    def __init__(self, whole: _Split, level: int, first: int):
        self.whole, self.level, self.first = whole, level, first
        self.is_planned = level % 2 == 0
        self.graph = Graph()
        self.new: dict[Node, Node] = {}
        self.inputs: list[Node] = []
        self.operators = [node for node in whole.nodes if whole.levels[node] == level]
        self.effects = any(_is_ordered(node) or not node.users or _written(node) for node in self.operators)
        self.outputs: list[Node] = []

    def build(self) -> None:
        for node in self.operators:
            if not self.whole.is_copied(node):
                self._value(node)

    def give(self, outputs: Iterable[Node]) -> None:
        self.outputs = list(outputs)
        self.graph.output(tuple([self._value(node) for node in self.outputs]))

    def finished(self) -> Subgraph:
        if not self.is_planned:
            _take_a_list(self.graph)
        module = GraphModule(self.whole.module, self.graph)
        return Subgraph(module, self.is_planned, self.operators, self.inputs[::-1], self.outputs)

    def _value(self, node: Node):
        """The node's counterpart in this subgraph, or the number that it stands for."""
        if _is_constant(node):
            return node.meta["val"]
        if node not in self.new:
            self.new[node] = self._new(node)
        return self.new[node]

    def _new(self, node: Node) -> Node:
        is_own = node.op == "call_function" and self.whole.level(node, self.first) == self.level
        if is_own or self.whole.is_copied(node):
            return self.graph.node_copy(node, self._value)
        with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
            new = self.graph.placeholder(node.name)
        new.meta = {name: value for name, value in node.meta.items() if name != DONATED or len(node.users) == 1}
        self.inputs.append(node)  # each is inserted before those that are there
        return new


def _take_a_list(graph: Graph) -> None:
    """Take the inputs from a list, which is emptied, so that nobody refers to them any longer than they are used."""
    inputs = graph.find_nodes(op="placeholder")
    with graph.inserting_before(next(iter(graph.nodes))):
        given = graph.placeholder("given")
        for node in reversed(inputs):
            node.replace_all_uses_with(graph.call_method("pop", (given,)))
            graph.erase_node(node)
