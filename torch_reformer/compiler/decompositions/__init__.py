"""Decompositions that AOTAutograd applies before the compiler sees a graph."""
