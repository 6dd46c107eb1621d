"""Analyses of solved theories: sweeps, limits in closed form, distributions, local exponents, widths."""
