"""Code generation: fusion groups as kernels' programs, and the steps of a plan."""
