"""Fusion groups by integer linear programming."""
