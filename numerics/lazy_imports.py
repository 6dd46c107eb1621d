"""Lazy import of the names of a package: a module is loaded when one of its names is first used.

Some solvers take longer to import than to solve. The package ``numerics`` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package; ``homes`` maps each name to the module that defines it.

    >>> load = loader("numerics", {"solve": "solver"})
    >>> load("solve").__name__
    'solve'
    >>> load("slove")
    Traceback (most recent call last):
    AttributeError: module 'numerics' has no attribute 'slove'
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return load
