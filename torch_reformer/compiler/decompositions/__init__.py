"""Operators that AOTAutograd takes apart before the compiler sees them."""
