"""Names of a package that are loaded when they are first used.

Solvers take longer to import than some of them take to solve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names stand in the modules that ``homes`` says.

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
