"""Theories read once into tables and functions of arrays, which solvers run."""

from numerics.lowering.linear import NotLinear, lower
from numerics.lowering.table import Table

__all__ = ["NotLinear", "Table", "lower"]
