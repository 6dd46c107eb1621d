"""Theories at ``gamma0 = 0``, for any activation: the recursions of infinitely wide networks."""

from numerics.solve.lazy.solve import LazySolved, solve_lazy

__all__ = ["LazySolved", "solve_lazy"]
