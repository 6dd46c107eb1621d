"""Solvers of mean-field theories: one front end, and one package for each method."""

from numerics.solver.registry import choose, explain, solve

__all__ = ["choose", "explain", "solve"]
