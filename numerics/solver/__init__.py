"""Solutions of any theory: one front end, one module a method."""

from numerics.solver.registry import choose, explain, solve

__all__ = ["choose", "explain", "solve"]
