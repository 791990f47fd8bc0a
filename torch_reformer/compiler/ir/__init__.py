"""The compiler's graph, and what its stages share."""
