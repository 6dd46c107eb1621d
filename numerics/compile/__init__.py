"""From a Theory to something that runs."""

from numerics.compile.lower import NotLinear, lower
from numerics.compile.table import Table

__all__ = ["NotLinear", "Table", "lower"]
