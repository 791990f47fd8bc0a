"""The compiler's graph, its layouts and iteration spaces, and helpers that several stages share."""
