"""Products of matrices in Dynamo's graph, in one form: matmul, bmm, baddbmm and einsum, of transposed operands too."""

from __future__ import annotations

from typing import NamedTuple

from torch.fx import Node

from .attention_calls import is_static
from .writes import is_known, may_write

_SWAPS = {"transpose", "swapaxes", "swapdims"}


class View(NamedTuple):
    """A tensor whose dimensions are permuted."""

    node: Node
    order: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = self.node.meta["example_value"].shape
        return tuple(sizes[d] for d in self.order)

    @property
    def is_whole(self) -> bool:
        """True if the dimensions have their order."""
        return self.order == tuple(range(len(self.order)))

    def permuted(self, order: tuple[int, ...]) -> View:
        return View(self.node, tuple(self.order[d] for d in order))

    def untransposed(self) -> View:
        """The view of what the node, if it is a transposition, transposes."""
        order = transposition(self.node)
        if order is None:
            return self
        return View(self.node.args[0], order).permuted(self.order).untransposed()


class Product(NamedTuple):
    """scale * left [..., rows, terms] @ right [..., columns, terms].mT, permuted, and addend times its factor."""

    left: View
    right: View
    order: tuple[int, ...]
    scale: float = 1.0
    addend: Node | None = None
    factor: float = 1.0


def operation(node: Node) -> str:
    """Name of a function of PyTorch, an operator of Python, or a method; for one in place, that of the other one. Empty
    for other nodes."""
    if not is_known(node):
        return ""
    name = node.target if node.op == "call_method" else node.target.__name__
    if node.op == "call_function" and node.target.__module__ == "_operator" and name in ("iadd", "isub", "imul"):
        return name[1:]
    names = {"truediv": "div", "itruediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul"}
    name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    return names.get(name, name)


def is_tensor(value: object) -> bool:
    """True for a node of a tensor with known sizes."""
    return isinstance(value, Node) and is_static(value)


def swapped(rank: int) -> tuple[int, ...]:
    """Order of the dimensions of matrices that are transposed."""
    return (*range(rank - 2), rank - 1, rank - 2)


def transposition(node: Node) -> tuple[int, ...] | None:
    """The order of its source's dimensions that a transposition has; None for other nodes."""
    if not is_tensor(node) or not node.args or not is_tensor(node.args[0]) or node.kwargs or may_write(node):
        return None  # also one in place, after which the source's node has the new sizes
    rank, name, arguments = node.meta["example_value"].dim(), operation(node), node.args[1:]
    if name == "getattr" and arguments == ("mT",):
        return swapped(rank)
    if name == "t":
        return swapped(rank) if rank == 2 else None
    if name == "permute" and arguments:
        (dims,) = arguments if isinstance(arguments[0], (tuple, list)) else (arguments,)
        return tuple(d % rank for d in dims)
    if name in _SWAPS and len(arguments) == 2:
        order, (one, other) = [*range(rank)], arguments
        order[one], order[other] = order[other], order[one]
        return tuple(order)
    return None


def product_of(node: Node) -> Product | None:
    """The product that a node computes, of operands with equal leading dimensions; None for other nodes."""
    name, arguments = operation(node), node.args
    found = None
    if name in ("matmul", "bmm") and not node.kwargs and len(arguments) == 2:
        found = _of_matrices(*arguments)
    elif name == "baddbmm" and len(arguments) == 3 and not {"out", "out_dtype"} & {*node.kwargs}:
        addend, *factors = arguments
        found, beta = _of_matrices(*factors), node.kwargs.get("beta", 1)
        if found is not None:
            found = found._replace(scale=node.kwargs.get("alpha", 1), addend=addend if beta else None, factor=beta)
    elif name == "einsum" and not node.kwargs and len(arguments) == 3 and isinstance(arguments[0], str):
        found = _of_equation(*arguments)
    if found is None or not is_tensor(node) or may_write(node):
        return None
    shapes = found.left.shape, found.right.shape
    return found if shapes[0][:-2] == shapes[1][:-2] and shapes[0][-1] == shapes[1][-1] else None


def _of_matrices(left: Node, right: Node) -> Product | None:
    if not is_tensor(left) or not is_tensor(right):
        return None
    rank = left.meta["example_value"].dim()
    if rank < 2 or right.meta["example_value"].dim() != rank:
        return None
    order = tuple(range(rank))
    return Product(View(left, order), View(right, swapped(rank)), order)


def _of_equation(equation: str, left: Node, right: Node) -> Product | None:
    """The product of an equation such as "bihd, bjhd -> bhij"."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    one, comma, other = inputs.partition(",")
    if not (arrow and comma) or "." in equation or not is_tensor(left) or not is_tensor(right):
        return None
    if any(len({*letters}) != len(letters) for letters in (one, other, result)):
        return None
    leading = [letter for letter in one if letter in other and letter in result]
    rows = [letter for letter in one if letter not in other and letter in result]
    columns = [letter for letter in other if letter not in one and letter in result]
    terms = [letter for letter in one if letter in other and letter not in result]
    of_left, of_right, of_result = ([*leading, *each] for each in (rows + terms, columns + terms, rows + columns))
    if not len(rows) == len(columns) == len(terms) == 1:
        return None
    if any({*a} != {*b} for a, b in ((of_left, one), (of_right, other), (of_result, result))):
        return None
    return Product(
        View(left, tuple(map(one.index, of_left))),
        View(right, tuple(map(other.index, of_right))),
        tuple(map(of_result.index, result)),
    )
