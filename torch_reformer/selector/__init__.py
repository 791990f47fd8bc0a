"""Learning which kernel is fastest: timings and problems as files, and what is trained on them."""
