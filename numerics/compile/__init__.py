"""From a Theory to something that runs."""

from numerics.compile.lower import NotLinear, Table, lower

__all__ = ["NotLinear", "Table", "lower"]
