"""Learned choice of the fastest kernel: files of timings and problems, and selectors trained on them."""
