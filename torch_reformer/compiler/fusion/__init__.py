"""Fusion groups: the operations that one kernel computes."""
