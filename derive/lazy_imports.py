"""Lazy import of the names of a package: a module is loaded when one of its names is first used.

Some builders and solvers take longer to import than to run. A module must not have the name of an object that
its package exports: Python sets each imported module as an attribute of its package, which would hide the
object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package, which imports the module of a name when the name is read.

    ``homes`` maps each name to the module that defines it, relative to ``package``. The function raises
    AttributeError for other names.

    >>> load = loader("derive", {"mean_field": "theory"})
    >>> load("mean_field").__name__
    'mean_field'
    >>> load("mean_feild")
    Traceback (most recent call last):
    AttributeError: module 'derive' has no attribute 'mean_feild'
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return load
