"""Fusion groups as programs of kernels and steps of a plan."""
