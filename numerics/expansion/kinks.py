"""Numbers of the first powers of ``|gamma0|``: a piecewise linear phi, steps.

Units at the kink of a sample differ by the signs of the other samples' u, by r, by how their source u moves
and by where they start.  Integrals over starts are exact, and so are shares of signs up to six samples.  With
one hidden layer r is one number and u rests; with more, directions of both are sampled.
"""

from __future__ import annotations

import time as clock
from functools import lru_cache, partial
from typing import Any

import numpy as np
import xarray as xr

from derive.errors import NotApplicable
from derive.expansion.nonlinear.kinks import KinkExpansion
from derive.expansion.nonlinear.kinks import expand_kinks as derived
from derive.program import Program
from derive.theory import mean_field
from numerics.averages.orthants import SIGNS
from numerics.errors import SpecError
from numerics.expansion.coefficients import Evaluator, Progress, Setting, evaluated, symbolic
from numerics.expansion.kink_layers import Directions, Layers, TwoTimes
from numerics.expansion.statics import Array, Moments, Points, Statics
from numerics.expansion.trees import Evaluation, Index, accuracy
from numerics.experiment.problem import Problem
from numerics.results import STDERR
from numerics.solver.grid import Grid

HIGHEST = 2
"""The highest power of ``|gamma0|`` of which anything is known."""

REPLICAS = 8
EXACT = SIGNS + 2
"""Up to so many samples shares of signs are exact: five signs, and every odd number, average to zero."""

POINTS = 32
"""For more samples: points of each replica, with as many opposite ones, at each sample's kink."""

DIRECTIONS = 256
"""With several layers: directions of a unit's sources in each replica, if solver.samples does not say."""

PARALLEL = 1e-9


def series(program: Program, order: int, key: str, value: Any) -> KinkExpansion:
    """The derived series of a program: all that is known, whatever the order.

    Raises :class:`~numerics.errors.SpecError` for a higher order than two, and of this key for other
    functions with kinks.
    """
    if order > HIGHEST:
        accepted = f"0 to {HIGHEST}, or a smooth activation"
        raise SpecError("--order", order, "powers of |gamma0| are known for the lowest orders only", accepted)
    try:
        return _derived(program)
    except NotApplicable as error:
        accepted = (
            'a smooth one, or a piecewise linear one with its kink at 0, such as "relu" or "max(h, h/10)"'
        )
        raise SpecError(key, value, f"has a slope that jumps: {error}", accepted) from error


@lru_cache(maxsize=16)
def _derived(program: Program) -> KinkExpansion:
    return derived(mean_field(program))


def expand_kinks(whole: Problem, order: int, *, progress: Progress | None = None) -> xr.Dataset:
    """Coefficients of ``|gamma0|^n``, n <= ``order``, which is 1 or 2.

    Each variable has the attribute ``known_to_order``: 2 for Phi, 1 for the others, whose coefficient of
    order 2 is not known and is NaN.  The dataset's attribute ``powers_of`` is ``|gamma0|``.

    With one hidden layer and up to six samples all is exact but for rounding.  With several layers directions
    of a unit's sources are sampled, ``solver.samples`` of them at each sign pattern, and with more than six
    samples averages over the others are means over points: in independent replicas, and standard errors stand
    beside the variables.

    Raises SpecError for what :func:`series` refuses, a higher order, flows (a unit that both sides push onto
    the kink has no slope there: take steps), and samples that cross the kink together.
    """
    program = whole.program if whole.depth == 1 else symbolic(whole)
    expansion = series(program, order, *whole.said("network.activation"))
    if whole.flow:
        problem = "units at the kink are followed in steps: in a flow they may slide along it"
        accepted = 'rule = "gd", with a small learning_rate if the flow is meant'
        raise SpecError(*whole.said("training.rule"), problem, accepted)
    started = clock.perf_counter()
    setting = Setting(whole)
    _check_apart(setting.kernel)
    many, deep = len(setting.targets) > EXACT, setting.depth > 1
    seed, samples = whole.solver.seed, whole.solver.samples
    count = 1 << max(2, int(np.ceil(np.log2((samples or 4 * DIRECTIONS) / 4))))

    data = setting.depth, setting.kernel, accuracy(whole), frozenset({"B0"})
    terms = (p for law in expansion.laws.values() for p in law)
    needed, exact = {tuple(orders for _, orders in p.averages) for p in terms}, dict[int, Moments]()

    def evaluate(statics: Statics, k: int, grid: Grid | None) -> AtKinks:
        return AtKinks(setting, statics, expansion, Directions(count, (seed, k)), order)

    shared = None if many else Statics(expansion.bulk, *data, needed=needed)

    def replica(k: int) -> Evaluator:
        own = Points(POINTS, (seed, k))
        return partial(evaluate, shared or Statics(expansion.bulk, *data, own, exact, needed), k)

    notes = {"method": "expansion in |gamma0|, with units at the kink", "powers_of": "|gamma0|"}
    sizes = ({"samples": 2 * POINTS * REPLICAS} if many else {}) | ({"directions": 4 * count} if deep else {})
    attributes = {"nonlinear": True, **notes, **sizes}
    replicas = [partial(replica, k) for k in range(REPLICAS if many or deep else 1)]
    result = evaluated(whole, replicas, order, started, progress=progress, every=True, attributes=attributes)
    known = expansion.known
    for name, variable in result.data_vars.items():
        own = str(name).removesuffix(STDERR)
        variable.attrs["known_to_order"] = min(known[NAMES.get(own, own)], order)
    return result


NAMES = {
    "error": "Delta",
    "train_loss": "Delta",
    "tangent_kernel": "K",
    "test_f": "Delta",
    "test_error": "Delta",
    "test_loss": "Delta",
}
"""What variables are called in the derived expansion."""


def _check_apart(K: Array) -> None:
    size = np.sqrt(np.diag(K))
    if np.any(size == 0):
        raise SpecError("data", "a sample with K_x = 0", "stands at the kink from the start", "inputs not 0")
    overlap = np.abs(K / np.outer(size, size)) - np.eye(len(K))
    if np.any(overlap > 1 - PARALLEL):
        i, j = np.argwhere(overlap > 1 - PARALLEL)[0]
        raise SpecError(
            "data",
            f"samples {i} and {j}",
            "are parallel: their units cross the kink together",
            "samples of which no two are multiples of each other",
        )


class AtKinks(Evaluation):
    """Orders 0 to 2: the bulk's, and what units at the kink add."""

    def __init__(
        self,
        setting: Setting,
        statics: Statics,
        series: KinkExpansion,
        directions: Directions,
        order: int,
    ) -> None:
        self.series, self.known = series, series.known
        self.directions = directions
        self.found: Layers | None = None
        super().__init__(setting, statics, order)

    def error(self, n: int) -> tuple[Array, Array]:
        """``Delta_1`` answers what the units at the kink add to f."""
        if n == 0:
            return super().error(0)
        if n > self.known["Delta"]:
            unknown = np.full_like(self.errors[0], np.nan)
            return unknown, unknown
        times = TwoTimes(self.statics, self.series.laws, self.weight, self.errors)
        self.found = Layers(self.series, times, self.directions)
        return self.answered(self.found.output, self.feedback(0), n)

    def kernel(self, name: str, n: int, layer: int, out: Index) -> Array:
        """The bulk's and the layer's part; NaN for what is not known."""
        total = super().kernel(name, n, layer, out)
        if n == 0 or (name, layer) in self.statics.bases:
            return total
        if n > self.known[name]:
            return np.full_like(total, np.nan)
        assert self.found is not None
        moving = self.found.times.moving.get((name, n, layer))
        return total if moving is None else total + moving[out][:, :, out]
