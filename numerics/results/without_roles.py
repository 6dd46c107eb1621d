"""Means and standard errors over replicas for programs whose quantities have no roles.

The input is the order parameters and numbers of each replica, by their names in the theory with the integers
among their indices; the output is variables of a result under the author's names.  The reference solver and
sampled paths use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerics.experiment.problem import Problem
from numerics.names import MemberKey
from numerics.results import STDERR
from numerics.results.losses import loss_of_scalars
from numerics.results.program_names import authored_variables, numbers_of_author
from numerics.stats import Spread, jackknife

Array = NDArray[np.float64]


def averaged_by_author(problem: Problem, runs: Mapping[MemberKey, Array]) -> dict[str, Array]:
    """Return means over replicas, with standard errors, of the variables that have the author's names.

    ``runs`` holds order parameters and numbers by (name in the theory, integers among the indices), with
    replicas along the first axis. A variable is left out if a value is missing at some of its indices. The
    loss is added if it is an expression of such numbers.
    """
    replicas, spread = len(next(iter(runs.values()))), Spread()
    numbers = numbers_of_author(problem, runs, 1)
    spread.add_all(numbers)
    for label, variable in authored_variables(problem).items():
        if variable.pair is None:
            continue
        places = sorted(place for place in runs if place[0] == variable.name)
        if not places:
            continue
        if not variable.layered and [place[1] for place in places] != [()]:
            continue
        arrays = [np.moveaxis(runs[place], (-2, -1), (1, 2)) for place in places]
        whole = np.stack(arrays, axis=1) if variable.layered else arrays[0]
        lead = int(variable.layered)
        shape = (*whole.shape[1 : 1 + lead], *whole.shape[3 + lead :])
        if shape == variable.shape and not np.isnan(whole).any():
            spread.add_all({label: whole})
    values = spread.mean() | {name + STDERR: x for name, x in spread.stderr().items()}
    return values | _loss(problem, numbers, replicas)


def _loss(problem: Problem, scalars: Mapping[str, Array], replicas: int) -> dict[str, Array]:
    """Return the training loss of a program, computed from means of its numbers over replicas.

    The jackknife removes its bias of order 1/replicas and gives the standard error. ``scalars`` holds the
    numbers by name, replicas along the first axis. Empty if the program states no loss, or if the loss
    depends on quantities other than these numbers and arrays.
    """
    ends = [0, *np.cumsum([x[0].size for x in scalars.values()])]
    spans = {name: slice(a, b) for name, (a, b) in zip(scalars, pairwise(ends), strict=True)}

    def loss(rows: Array) -> Any:
        mean = rows[0] + (rows - rows[0]).mean(axis=0)
        named = {name: mean[span].reshape(scalars[name].shape[1:]) for name, span in spans.items()}
        return loss_of_scalars(problem, named)

    if not scalars:
        return {}
    rows = np.concatenate([x.reshape(replicas, -1) for x in scalars.values()], axis=1)
    if loss(rows) is None:
        return {}
    value, error, _ = jackknife(loss, rows)
    return {"train_loss": value, "train_loss" + STDERR: error}
