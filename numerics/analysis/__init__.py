"""What is asked of solutions: scans, limits in closed form, distributions, exponents."""
