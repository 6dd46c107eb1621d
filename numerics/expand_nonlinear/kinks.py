"""Numbers of the first powers of ``|gamma0|``: one hidden layer, a piecewise linear phi, steps.

Units at the kink of a sample differ by the signs of the other samples' u, by r and by where they start.  A
unit's place is its start plus what its own past slopes add, so that the line of starts falls into intervals
on which all slopes agree: integrals over it are exact sums.
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from sympy import lambdify
from sympy.core.function import AppliedUndef

from derive.expansion.nonlinear.fields import PAIR
from derive.expansion.nonlinear.kinks import KinkExpansion
from derive.expansion.nonlinear.kinks import expand_kinks as derived
from derive.expansion.nonlinear.trees import Tensor
from derive.meanfield import mean_field
from derive.meanfield.reductions.projection import NotApplicable
from derive.program import mlp
from numerics.activation import parse_activation
from numerics.averages.orthants import SIGNS, of_products, rows_of
from numerics.errors import SpecError
from numerics.expand_nonlinear.evaluation import Evaluation
from numerics.expand_nonlinear.forests import Index
from numerics.expand_nonlinear.kink_units import Unit, half_normal
from numerics.expand_nonlinear.kink_units import step as sided
from numerics.expand_nonlinear.moments import Points
from numerics.expand_nonlinear.statics import Array, Statics
from numerics.experiment import Experiment
from numerics.results import STDERR, dataset
from numerics.threads import one_thread

HIGHEST = 2
"""The highest power of ``|gamma0|`` of which anything is known."""

REPLICAS = 8
EXACT = SIGNS + 2
"""Up to so many samples shares of signs are exact: five signs, and every odd number, average to zero."""

POINTS = 32
"""For more samples: points of each replica, with as many opposite ones, at each sample's kink."""

PARALLEL = 1e-9


def series(experiment: Experiment, order: int = HIGHEST) -> KinkExpansion:
    """The derived series, in the experiment's rule, loss and phi: all that is known, whatever the order.

    Raises :class:`~numerics.errors.SpecError` for a higher order than two, more than one hidden layer and
    other functions with kinks.
    """
    if order > HIGHEST:
        accepted = f"0 to {HIGHEST}, or a smooth activation"
        raise SpecError("--order", order, "powers of |gamma0| are known for the lowest orders only", accepted)
    if experiment.network.depth != 1:
        raise SpecError(
            "network.depth",
            experiment.network.depth,
            "with a slope that jumps, as relu's, powers of |gamma0| are derived for one hidden layer",
            "1, a smooth activation, or --order 0; `dmft solve` serves this one",
        )
    activation = experiment.network.activation
    try:
        return _derived(activation, experiment.training.rule, experiment.training.loss)
    except NotApplicable as error:
        raise SpecError(
            "network.activation",
            activation,
            f"has a slope that jumps: {error}",
            'a piecewise linear one with its kink at 0, such as "relu" or "max(h, h/10)", or a smooth one',
        ) from error


@lru_cache(maxsize=16)
def _derived(activation: str, rule: str, loss: str) -> KinkExpansion:
    return derived(mean_field(mlp(1, parse_activation(activation), rule, loss)))


@one_thread
def expand_kinks(experiment: Experiment, order: int) -> xr.Dataset:
    """Coefficients of ``|gamma0|^n``, n <= ``order``, which is 1 or 2.

    Each variable has the attribute ``known_to_order``: 2 for Phi, 1 for the others, whose coefficient of
    order 2 is not known and is NaN.  The dataset's attribute ``powers_of`` is ``|gamma0|``.

    With up to six samples all is exact but for rounding; with more, averages over the others are means over
    points in independent replicas, and standard errors stand beside the variables.

    Raises SpecError for what :func:`series` refuses, a higher order, flows (a unit that both sides push onto
    the kink has no slope there: take steps), and samples that cross the kink together.
    """
    expansion = series(experiment, order)
    if experiment.training.rule != "gd":
        raise SpecError(
            "training.rule",
            experiment.training.rule,
            "units at the kink are followed in steps: in a flow they may slide along it",
            'rule = "gd", with a small learning_rate if the flow is meant',
        )
    started = clock.perf_counter()
    _check_apart(experiment)
    sampled = len(experiment.targets) > EXACT
    T = len(experiment.times)
    table, accuracy = np.tril(np.ones((T, T)), -1), min(1e-2 * experiment.solver.rtol, 1e-9)
    runs = []
    for k in range(REPLICAS if sampled else 1):
        points = Points(POINTS, (experiment.solver.seed, k)) if sampled else None
        bulk = Statics(expansion.bulk, 1, experiment.kernel, accuracy, frozenset(), points)
        found = AtKinks(experiment, bulk, table, expansion)
        runs.append(found.values(np.arange(T), responses=False))
    values = {k: np.mean([run[k] for run in runs], axis=0) for k in runs[0]}
    notes: dict[str, Any] = {}
    if sampled:
        spread = {k: np.std([run[k] for run in runs], axis=0, ddof=1) for k in runs[0]}
        values |= {k + STDERR: v / np.sqrt(len(runs)) for k, v in spread.items()}
        notes = {"replicas": REPLICAS, "samples": 2 * POINTS * REPLICAS}
    orders = list(range(order + 1))
    result = dataset(
        {k: v[orders] for k, v in values.items()},
        times=experiment.times,
        spec=experiment.text,
        orders=orders,
        nonlinear=True,
        method="expansion in |gamma0|, with units at the kink",
        powers_of="|gamma0|",
        truncation_order=order,
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )
    known = expansion.known
    for name, variable in result.data_vars.items():
        own = str(name).removesuffix(STDERR)
        variable.attrs["known_to_order"] = min(known[NAMES.get(own, own)], order)
    return result


NAMES = {"error": "Delta", "train_loss": "loss", "tangent_kernel": "K"}


def _check_apart(experiment: Experiment) -> None:
    K = experiment.kernel
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

    def __init__(self, experiment: Experiment, statics: Statics, table: Array, series: KinkExpansion) -> None:
        self.series, self.jumps, self.known = series, series.jumps, series.known
        self.added: dict[str, Array] = {}
        super().__init__(experiment, statics, table)

    def error(self, n: int) -> Array:
        """``Delta_1`` answers what the units at the kink add to f."""
        if n == 0:
            return super().error(0)
        if n > self.known["Delta"]:
            return np.full_like(self.errors[0], np.nan)
        self.added = self.layer()
        return self.answer(-self.added["f"][:, :, 0, 0], self.feedback(0), n)

    def kernel(self, name: str, n: int, layer: int, out: Index) -> Array:
        """The bulk's and the layer's part; NaN for what is not known."""
        total = super().kernel(name, n, layer, out)
        if layer != 1 or name not in self.jumps:
            return total
        if n > self.known[name]:
            return np.full_like(total, np.nan)
        if n == self.jumps[name].order:
            total += self.added[name][out][:, :, out]
        return total

    # -- units at the kink -----------------------------------------------------------------------------

    def layer(self) -> dict[str, Array]:
        """What all units at the kink add to Phi, G and f, (T, P, T, P); f has no second time and sample."""
        T, P = self.errors[0].shape
        total = {n: np.zeros((T, P, T, P) if n != "f" else (T, P, 1, 1)) for n in self.jumps}
        C = self.statics.value(Tensor("C", 0, self.expansion.forests("C", 0)[0]), 1)
        (variance,) = self.series.density.atoms(AppliedUndef)
        density = lambdify(variance, self.series.density)
        K = self.statics.value(Tensor(self.expansion.site.u.name, 0, PAIR), 1 + self.expansion.site.u.shift)
        for k in range(P):
            for share, signs, means in self.sides(K, k):
                slopes = np.where(signs > 0, float(self.series.above), float(self.series.below))
                features = float(self.series.value) + slopes * means
                for r, weight in half_normal():
                    for way in (1.0, -1.0):
                        unit = self.unit(k, C, slopes, features, way * r)
                        for name, jump in self.jumps.items():
                            unit.add(total[name], jump, density(K[k, k]) * share * weight)
        return total

    def sides(self, K: Array, k: int) -> Iterator[tuple[float, Array, Array]]:
        """Given ``u_k = 0``: signs of the others, how often they occur, and the means of u with them."""
        P = len(K)
        others = [i for i in range(P) if i != k]
        left = (K - np.outer(K[k], K[k]) / K[k, k])[np.ix_(others, others)]
        signs, means = np.zeros(P), np.zeros(P)
        if not others:
            yield 1.0, signs, means
        elif self.statics.points is None:
            rows = rows_of(left)[None]
            for own in product((1, -1), repeat=len(others)):
                step = [sided(0, sign) for sign in own]
                share = float(of_products(step, rows)[0][0])
                if share <= 0:
                    continue
                first = [
                    float(of_products([*step[:i], sided(1, sign), *step[i + 1 :]], rows)[0][0])
                    for i, sign in enumerate(own)
                ]
                signs, means = np.zeros(P), np.zeros(P)
                signs[others], means[others] = own, np.array(first) / share
                yield share, signs, means
        else:
            u = self.statics.points.of(left, k)
            found, which = np.unique(u > 0, axis=0, return_inverse=True)
            for j, on in enumerate(found):
                here = u[which.ravel() == j]
                signs, means = np.zeros(P), np.zeros(P)
                signs[others], means[others] = np.where(on, 1, -1), here.mean(axis=0)
                yield len(here) / len(u), signs, means

    def unit(self, k: int, C: Array, slopes: Array, features: Array, r: float) -> Unit:
        """Follow the unit for all starts at once: intervals of starts, split where a place is zero."""
        above, below = float(self.series.above), float(self.series.below)
        error = self.errors[0]
        T = len(error)
        steepest = max(abs(above), abs(below))
        most = (np.abs(self.weight) @ (np.abs(error) @ np.abs(C[k]))).max() * steepest * abs(r)
        edges = np.array([-1.0, 0.0, 1.0]) * (1.001 * most + 1e-300)
        low, high = edges[:-1], edges[1:]
        static = (error * slopes) @ C.T * r  # the other samples' slopes stay
        static -= np.outer(error[:, k] * slopes[k], C[:, k]) * r
        own = error[:, k] * r * C[k, k]
        on = np.zeros((0, 2))
        for now in range(T):
            moved = self.weight[now, :now] @ (static[:now, k, None] + own[:now, None] * on)
            cut = (low < -moved) & (-moved < high)
            at = -moved[cut]
            low, high = np.concatenate([low, at]), np.concatenate([np.where(cut, -moved, high), high[cut]])
            on, moved = (np.concatenate([a, a[..., cut]], axis=-1) for a in (on, moved))
            place = (low + high) / 2 + moved
            on = np.concatenate([on, np.where(place > 0, above, below)[None]])
        x = (low + high) / 2
        start = np.where(x > 0, above, below)
        kept = np.broadcast_to(start, on.shape)

        def fields(path: Array) -> Array:
            """First order of all samples, (T, P, intervals)."""
            force = static[:, :, None] + (error[:, k] * r)[:, None, None] * C[:, k, None] * path[:, None]
            return np.asarray(np.einsum("ts,spj->tpj", self.weight, force))

        V, Vbar = fields(on), fields(kept)
        return Unit(k, x, high - low, on, start, V, Vbar, slopes, features, r)


__all__ = ["AtKinks", "expand_kinks", "series"]
