"""Numerical results from derived theories: solve, simulate, expand, verify and sweep an experiment.

>>> import numerics
>>> e = numerics.Experiment.from_dict({"network": {"depth": 1},
...     "training": {"learning_rate": 0.1, "steps": 3}}, kernel=[[1.0]], targets=[1.0])
>>> numerics.solve(e).train_loss.values.round(4).tolist()
[1.0, 0.64, 0.4059, 0.2521]

Each function takes an experiment or the path of its file.  Modules are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.lazy_imports import loader

if TYPE_CHECKING:
    from numerics.analysis.sweep import sweep
    from numerics.expansion import expand
    from numerics.experiment import Experiment
    from numerics.simulation import simulate
    from numerics.solution import solve
    from numerics.verification import verify

__all__ = ["Experiment", "expand", "simulate", "solve", "sweep", "verify"]

_HOMES = {
    "Experiment": "experiment",
    "expand": "expansion",
    "simulate": "simulation",
    "solve": "solution",
    "sweep": "analysis.sweep",
    "verify": "verification",
}


__getattr__ = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
