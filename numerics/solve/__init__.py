"""Solvers, one module per method."""

from numerics.solve.linear import solve

__all__ = ["solve"]
