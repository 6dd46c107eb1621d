"""Rooms that can be called: ``numerics.solve(experiment)`` where ``numerics.solve`` is a package."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from numerics.experiment import Experiment


class Room(ModuleType):
    """A module that stands for the function of its own name when it is called."""

    def __call__(self, source: Any, *args: Any, **options: Any) -> Any:
        """What the function of the module's name gives; the path of an experiment file stands for it."""
        if isinstance(source, str | Path):
            source = Experiment.load(source)
        return getattr(self, self.__name__.rpartition(".")[2])(source, *args, **options)


def callable_as_its_function(name: str) -> None:
    """Let the module ``name`` be called in place of its function.

    >>> import numerics.sweep
    >>> callable(numerics.sweep), numerics.sweep.__name__
    (True, 'numerics.sweep')
    """
    sys.modules[name].__class__ = Room
