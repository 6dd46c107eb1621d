"""Solutions of any theory: one front end, one module a method."""

from numerics.rooms import callable_as_its_function
from numerics.solve.registry import choose, explain, solve

__all__ = ["choose", "explain", "solve"]

callable_as_its_function(__name__)
