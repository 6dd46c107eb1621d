"""Numbers from derived theories: solve, simulate, expand, verify and sweep an experiment.

>>> import numerics
>>> e = numerics.Experiment.from_dict({"network": {"depth": 1},
...     "training": {"learning_rate": 0.1, "steps": 3}}, kernel=[[1.0]], targets=[1.0])
>>> numerics.solve(e).train_loss.values.round(4).tolist()
[1.0, 0.64, 0.4059, 0.2521]

Each is the room of the same name, which can be called: ``numerics.solve`` holds the methods, and
``numerics.solve(experiment)`` is the solution by the best that fits.  Nothing is loaded before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numerics.expand import expand
    from numerics.experiment import Experiment
    from numerics.simulate import simulate
    from numerics.solve.registry import solve
    from numerics.sweep import sweep
    from numerics.verify import verify

__all__ = ["Experiment", "expand", "simulate", "solve", "sweep", "verify"]


def __getattr__(name: str) -> Any:
    """A room that can be called, or the class of experiments, on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'numerics' has no attribute {name!r}")
    if name == "Experiment":
        return import_module("numerics.experiment").Experiment
    return import_module(f"numerics.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
