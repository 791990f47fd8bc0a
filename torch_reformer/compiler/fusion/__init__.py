"""Fusion: which operations one kernel computes together."""
