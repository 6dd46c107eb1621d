"""Solvers, one module per method."""

from numerics.solve.experiments import solve

__all__ = ["solve"]
