"""Theories as data: what a theory says, read once into tables and functions of arrays."""

from numerics.lowering.linear import NotLinear, lower
from numerics.lowering.table import Table

__all__ = ["NotLinear", "Table", "lower"]
