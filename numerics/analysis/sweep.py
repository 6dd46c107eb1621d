"""One experiment at many values of its keys, and the largest learning rate at which it learns.

sweep(experiment, {"training.learning_rate": rates, "network.width_ratio": ratios})
largest_rate(experiment)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from numerics.errors import Diverged, Interrupted, NotConverged, SpecError, value_to_toml
from numerics.experiment import Experiment
from numerics.experiment.experiment import fingerprint
from numerics.results import provenance

CURVES = ("train_loss", "test_loss")
Progress = Callable[[int, int], None]


def sweep(
    experiment: Experiment | str | Path,
    over: Mapping[str, Sequence[object]],
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The losses of ``experiment`` at all combinations of values of some keys.

    ``over`` maps keys of the file (dotted paths) to values; each becomes a dimension, called by the last part
    of its path, in front of ``time``.  Where the dynamics diverged or a solver did not converge the losses
    are nan, and the variable ``status`` says why; elsewhere it is "ok".  ``jobs`` is the number of processes.
    Raises :class:`~numerics.errors.SpecError` for a combination that is no experiment, before anything runs.
    Ctrl-C with some combinations done raises :class:`~numerics.errors.Interrupted`, whose ``result`` holds
    these; the others are nan, with the status "interrupted".

    >>> from numerics.experiment import Experiment
    >>> e = Experiment.from_dict({"network": {"depth": 1}, "data": {"kind": "isotropic"},
    ...                           "training": {"learning_rate": 0.1, "steps": 20}})
    >>> found = sweep(e, {"training.learning_rate": [0.1, 40.0]})
    >>> found.sizes["learning_rate"], found.status.values[1], bool(found.test_loss[1].isnull().all())
    (2, 'C_v diverged at step 2', True)
    """
    experiment = Experiment.of(experiment)
    if not over or not all(len(values) for values in over.values()):
        raise SpecError("sweep", list(over), "has nothing to run over", "keys of the file, each with values")
    names = [path.rpartition(".")[2] for path in over]
    if len(set(names)) < len(names):
        raise SpecError("sweep", list(over), "names two keys alike", "keys that end differently")
    shape = tuple(len(values) for values in over.values())
    cases = [experiment.replace(dict(zip(over, chosen, strict=True))) for chosen in product(*over.values())]
    times = cases[0].times
    if any(len(case.times) != len(times) for case in cases):
        raise SpecError("sweep", list(over), "changes the number of times", "keys that leave the times alone")
    runs: list[tuple[dict[str, Any], str]] = []

    def losses() -> xr.Dataset:
        every = runs + [({}, "interrupted")] * (len(cases) - len(runs))
        ends = np.array([status for _, status in every], dtype=object).reshape(shape)
        found: dict[str, tuple[tuple[str, ...], Any]] = {"status": (tuple(names), ends)}
        for curve in CURVES:
            values = [r[0].get(curve, np.full(len(times), np.nan)) for r in every]
            if any(curve in r[0] for r in every):
                found[curve] = ((*names, "time"), np.reshape(values, (*shape, -1)))
        coordinates = {name: _labels(values) for name, values in zip(names, over.values(), strict=True)}
        kept = {"spec": experiment.text, "data_sha256": fingerprint(experiment.arrays), **provenance()}
        attributes = {k: x for k, x in (kept | {"status": "ok"}).items() if x is not None}
        return xr.Dataset(found, {**coordinates, "time": times}, attributes)

    try:
        for run in _mapped(_losses, cases, jobs):
            runs.append(run)
            if progress is not None:
                progress(len(runs), len(cases))
    except KeyboardInterrupt:
        if not runs:
            raise
        raise Interrupted(losses().assign_attrs(status="partial")) from None
    return losses()


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
    curves, status = _losses(experiment.replace({"training.learning_rate": rate}))
    if status != "ok":
        return False
    fixed = experiment.spec.kind == "fixed"  # where test points may be learnt less while training succeeds
    loss = curves["train_loss"] if fixed else curves.get("test_loss", curves["train_loss"])
    learnt = bool(loss[-1] < loss[0]) and (rise or bool(loss.max() <= loss[0]))
    return learnt and (not settle or _settles(loss))


ROUNDING = 1e-12
"""A loss that is no larger than this part of its start has died out."""


def _settles(loss: NDArray[np.float64]) -> bool:
    quarter = max(1, (len(loss) - 1) // 4)
    late, before = loss[-quarter:].max(), loss[-2 * quarter : -quarter].max()
    return bool(late <= max(before / 2, ROUNDING * loss[0]))


def _labels(values: Sequence[object]) -> list[object]:
    """The values as a coordinate: numbers or words as they are, else all as a file spells them."""
    alike = any(all(isinstance(x, kind) for x in values) for kind in (str, Real))
    return [x if alike or isinstance(x, str) else value_to_toml(x) for x in values]


def _losses(experiment: Experiment) -> tuple[dict[str, Any], str]:
    """The losses at all times, and what became of the run."""
    from numerics.solver import solve

    try:
        result = solve(experiment, kernels="none")
    except (Diverged, NotConverged) as error:
        return {}, str(error)
    return {name: result[name].values for name in CURVES if name in result}, "ok"


def _mapped(function: Callable[[Experiment], Any], cases: list[Experiment], jobs: int) -> Iterable[Any]:
    if jobs == 1 or len(cases) == 1:
        yield from map(function, cases)
        return
    with ProcessPoolExecutor(min(jobs, len(cases)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(function, cases)
