"""Run compiled graphs: plans, as AOTAutograd calls them."""
