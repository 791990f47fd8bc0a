"""Compiled graphs: their plans, as AOTAutograd calls them."""
