"""Integer linear programs over binary variables, solved by HiGHS: by highspy, which takes a start solution, or SciPy.

The search is limited by nodes and a gap and not by time, so that every process finds the same solution."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import NamedTuple

NODES, GAP = 50, 1e-4
_TOLERANCE = 1e-6  # of a binary variable


class Result(NamedTuple):
    """Result of a search.

    values: of the variables; None if the search found no solution. bound: lower bound of all solutions' costs.
    """

    values: list[float] | None
    bound: float

    @property
    def is_integral(self) -> bool:
        return self.values is not None and all(min(abs(x), abs(x - 1)) < _TOLERANCE for x in self.values)


class Model:
    """Model that minimises costs times variables between 0 and 1.

    A row is a constraint: low <= sum of coefficients times variables <= high. Rows are stored in CSR format.
    """

    def __init__(self):
        self.costs: list[float] = []
        self.starts: list[int] = [0]  # of each row's entries, and the end of the last row's
        self.variables: list[int] = []  # of each entry
        self.coefficients: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def variable(self, cost: float) -> int:
        """Add a variable and return its number."""
        self.costs.append(cost)
        return len(self.costs) - 1

    def row(self, terms: dict[int, float], low: float = -math.inf, high: float = math.inf) -> None:
        """Add a constraint. terms: variable -> coefficient."""
        self.variables += terms.keys()
        self.coefficients += terms.values()
        self.starts.append(len(self.variables))
        self.low.append(low)
        self.high.append(high)

    def allows(self, values: list[float]) -> bool:
        """True if these values satisfy all constraints."""
        for row, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            entries = range(self.starts[row], self.starts[row + 1])
            if not low <= sum(self.coefficients[i] * values[self.variables[i]] for i in entries) <= high:
                return False
        return True

    def solved(self, start: list[float] | None = None) -> Result:
        """Solve the integer program, or its linear relaxation.

        Args:
            start: a solution from which the integer search begins; None to solve the relaxation.
        """
        unit = max(*self.costs, 1.0)  # the solvers' tolerances suit costs of about 1
        solution = _solver()(self, [cost / unit for cost in self.costs], start)
        return solution._replace(bound=solution.bound * unit)


_Solve = Callable[[Model, list[float], list[float] | None], Result]


def name() -> str | None:
    """Name of the installed package that has HiGHS, or None."""
    return next((package for package in _SOLVERS if importlib.util.find_spec(package)), None)


@functools.cache
def _solver() -> _Solve:
    return _SOLVERS[name()]()


def _highspy() -> _Solve:
    import highspy

    class Quiet(highspy.Highs):
        def enableCallbacks(self):  # unused; they would make the first solver of a process print a banner
            self.setOptionValue("output_flag", False)

    def solve(model: Model, costs: list[float], start: list[float] | None) -> Result:
        solver = Quiet()
        options = {"output_flag": False, "threads": 1, "mip_max_nodes": NODES, "mip_rel_gap": GAP}
        for option, value in options.items():
            solver.setOptionValue(option, value)
        count = len(costs)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = count, len(model.low)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = costs, [0.0] * count, [1.0] * count
        lp.row_lower_, lp.row_upper_ = model.low, model.high
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = model.starts, model.variables
        lp.a_matrix_.value_ = model.coefficients
        if start is not None:
            lp.integrality_ = [highspy.HighsVarType.kInteger] * count
            solver.setOptionValue("presolve", "off")  # with it, HiGHS 1.16 takes the start for the optimum
        solver.passModel(lp)
        if start is not None:
            known = highspy.HighsSolution()
            known.col_value = start
            solver.setSolution(known)
        solver.run()
        info, solution = solver.getInfo(), solver.getSolution()
        bound = info.objective_function_value if start is None else info.mip_dual_bound
        return Result(list(solution.col_value) if solution.value_valid else None, bound)

    return solve


def _scipy() -> _Solve:
    import numpy
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    def solve(model: Model, costs: list[float], start: list[float] | None) -> Result:
        entries = model.coefficients, model.variables, model.starts
        matrix = csr_matrix(entries, shape=(len(model.low), len(costs)))
        result = milp(
            numpy.array(costs),
            constraints=LinearConstraint(matrix, model.low, model.high),
            integrality=numpy.full(len(costs), int(start is not None)),
            bounds=Bounds(0, 1),
            options={"node_limit": NODES, "mip_rel_gap": GAP},
        )
        bound = result.fun if start is None else result.mip_dual_bound
        return Result(None if result.x is None else list(result.x), -math.inf if bound is None else bound)

    return solve


_SOLVERS = {"highspy": _highspy, "scipy": _scipy}  # in order of preference
