"""Rewrites of the joint graph of forward and backward, and its partition into the two."""
