"""The largest learning rate at which an experiment learns, found in its solved theory by bisection."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Diverged, NotConverged, SpecError
from numerics.experiment import Experiment


@dataclass(frozen=True)
class Rate:
    """The largest learning rate lies between ``stable``, which learns, and ``unstable``, which does not."""

    stable: float
    unstable: float
    steps: int

    @property
    def value(self) -> float:
        """The geometric mean of the two."""
        return float(np.sqrt(self.stable * self.unstable))


def largest_rate(
    experiment: Experiment, *, rtol: float = 0.01, rise: bool = True, settle: bool = False
) -> Rate:
    """The learning rate above which ``experiment`` does not learn, to a relative ``rtol``.

    At a stable rate the loss (of random data the test loss) is smaller after all ``training.steps`` than at
    the start; with ``rise=False`` it must not have been larger in between either, as it is in a catapult: the
    error grows until the kernel has shrunk.  With ``settle`` it must die out: above the rate that the minimum
    bears, the error of rich networks may swing around it for ever, below its start.  The largest loss in the
    last quarter of the steps is then at most half of that in the quarter before, or rounding; there must be
    steps enough for that, and ``training.learning_rate`` must not be far too small.

    Rates are halved or doubled from ``training.learning_rate`` until one is stable and its double is not,
    then bisected.  A rate that is only just unstable needs many steps to show: the answer falls to its limit
    as the number of steps grows.  Raises :class:`~numerics.errors.SpecError` for a flow, and
    :class:`~numerics.errors.NotConverged` when no rate between 2^-60 and 2^60 times the given one will do
    (with ``settle``: none down to 2^-10).

    >>> from numerics.experiment import Experiment
    >>> lazy = Experiment.from_dict({"network": {"depth": 1, "gamma0": 1e-3}, "data": {"kind": "isotropic"},
    ...                              "training": {"learning_rate": 0.1, "steps": 40}})
    >>> [round(largest_rate(lazy, rise=x).value, 1) for x in (False, True)]  # 2/K and 4/K, K = 2 (catapult)
    [1.0, 2.0]
    """
    training = experiment.training
    if training.rule == "flow" or training.steps is None:
        raise SpecError("training.rule", training.rule, "has no learning rate to be found", '"gd" or "sgd"')
    rate = training.learning_rate or 0.1
    learns = partial(_learns, experiment, rise=rise, settle=settle)
    low, high = (rate, 2 * rate) if learns(rate) else (rate / 2, rate)
    for _ in range(10 if settle else 60):
        if learns(high):
            low, high = high, 2 * high
        elif not learns(low):
            low, high = low / 2, low
        else:
            break
    else:
        raise NotConverged(f"no rate between {low:.3g} and {high:.3g} separates learning from divergence")
    while high / low > 1 + rtol:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if learns(middle) else (low, middle)
    return Rate(low, high, training.steps)


def _learns(experiment: Experiment, rate: float, *, rise: bool, settle: bool) -> bool:
    from numerics.solver import solve

    try:
        result = solve(experiment.replace({"training.learning_rate": rate}), kernels="none")
    except (Diverged, NotConverged):
        return False
    fixed = experiment.spec.kind == "fixed"  # where test points may be learnt less while training succeeds
    loss = result["train_loss" if fixed or "test_loss" not in result else "test_loss"].values
    learnt = bool(loss[-1] < loss[0]) and (rise or bool(loss.max() <= loss[0]))
    return learnt and (not settle or _settles(loss))


ROUNDING = 1e-12
"""A loss that is no larger than this part of its start has died out."""


def _settles(loss: NDArray[np.float64]) -> bool:
    quarter = max(1, (len(loss) - 1) // 4)
    late, before = loss[-quarter:].max(), loss[-2 * quarter : -quarter].max()
    return bool(late <= max(before / 2, ROUNDING * loss[0]))
