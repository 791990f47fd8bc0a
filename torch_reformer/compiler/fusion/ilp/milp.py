"""Programs over variables of 0 and 1, solved by HiGHS: highspy's, which begins at a solution that is known, or SciPy's.
Nodes and a gap limit a search, time does not, so every process finds the same."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import NamedTuple

NODES, GAP = 50, 1e-4
_EXACT = 1e-6  # as near as that a variable is 0 or 1


class Solution(NamedTuple):
    """values: of the variables, None where the search found none. bound: what no others cost less than."""

    values: list[float] | None
    bound: float

    @property
    def is_of_integers(self) -> bool:
        return self.values is not None and all(min(abs(each), abs(each - 1)) < _EXACT for each in self.values)


class Model:
    """Minimises costs times variables from 0 to 1. A row: low <= the sum of coefficients times variables <= high."""

    def __init__(self):
        self.costs: list[float] = []
        self.starts: list[int] = [0]  # of each row's entries, and the end of the last's
        self.variables: list[int] = []  # of the entries
        self.coefficients: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def variable(self, cost: float) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def row(self, terms: dict[int, float], low: float = -math.inf, high: float = math.inf) -> None:
        self.variables += terms.keys()
        self.coefficients += terms.values()
        self.starts.append(len(self.variables))
        self.low.append(low)
        self.high.append(high)

    def allows(self, values: list[float]) -> bool:
        """Whether they are a solution."""
        for row, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            entries = range(self.starts[row], self.starts[row + 1])
            if not low <= sum(self.coefficients[i] * values[self.variables[i]] for i in entries) <= high:
                return False
        return True

    def solved(self, start: list[float] | None = None) -> Solution:
        """start: a solution of 0 and 1, for another one; None for one of numbers between them."""
        unit = max(*self.costs, 1.0)  # solvers' tolerances are of costs of about 1
        found = _solver()(self, [each / unit for each in self.costs], start)
        return found._replace(bound=found.bound * unit)


_Solve = Callable[[Model, list[float], list[float] | None], Solution]


def name() -> str | None:
    """The package that has HiGHS, None where none is installed."""
    return next((each for each in _SOLVERS if importlib.util.find_spec(each)), None)


@functools.cache
def _solver() -> _Solve:
    return _SOLVERS[name()]()


def _highspy() -> _Solve:
    import highspy

    class Quiet(highspy.Highs):
        def enableCallbacks(self):  # none is needed; with them the first solver of a process prints a banner
            self.setOptionValue("output_flag", False)

    def solve(program: Model, costs: list[float], start: list[float] | None) -> Solution:
        solver = Quiet()
        options = {"output_flag": False, "threads": 1, "mip_max_nodes": NODES, "mip_rel_gap": GAP}
        for option, value in options.items():
            solver.setOptionValue(option, value)
        count = len(costs)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = count, len(program.low)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = costs, [0.0] * count, [1.0] * count
        lp.row_lower_, lp.row_upper_ = program.low, program.high
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = program.starts, program.variables
        lp.a_matrix_.value_ = program.coefficients
        if start is not None:
            lp.integrality_ = [highspy.HighsVarType.kInteger] * count
            solver.setOptionValue("presolve", "off")  # HiGHS 1.16 takes the start for the best with it
        solver.passModel(lp)
        if start is not None:
            known = highspy.HighsSolution()
            known.col_value = start
            solver.setSolution(known)
        solver.run()
        info, found = solver.getInfo(), solver.getSolution()
        bound = info.objective_function_value if start is None else info.mip_dual_bound
        return Solution(list(found.col_value) if found.value_valid else None, bound)

    return solve


def _scipy() -> _Solve:
    import numpy
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    def solve(program: Model, costs: list[float], start: list[float] | None) -> Solution:
        entries = program.coefficients, program.variables, program.starts
        matrix = csr_matrix(entries, shape=(len(program.low), len(costs)))
        found = milp(
            numpy.array(costs),
            constraints=LinearConstraint(matrix, program.low, program.high),
            integrality=numpy.full(len(costs), int(start is not None)),
            bounds=Bounds(0, 1),
            options={"node_limit": NODES, "mip_rel_gap": GAP},
        )
        bound = found.fun if start is None else found.mip_dual_bound
        return Solution(None if found.x is None else list(found.x), -math.inf if bound is None else bound)

    return solve


_SOLVERS = {"highspy": _highspy, "scipy": _scipy}  # the first that is installed
