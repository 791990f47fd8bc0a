"""Fusion by integer linear programming (ILP): a choice of groups that is often cheaper than greedy fusion."""
