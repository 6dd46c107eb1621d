"""Linear flows whose kernels depend on differences of times, by Laplace transforms."""
