"""Evaluate the expansion in gamma0 of a nonlinear experiment: tensors by layers, forests by times."""

from __future__ import annotations

import time as clock
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr
from sympy import Integer, Symbol
from sympy.core.function import AppliedUndef

from derive.expansion.nonlinear import NonlinearExpansion
from derive.expansion.nonlinear import expand_nonlinear as derived
from derive.expansion.nonlinear.trees import OUTPUT, Tensor
from derive.program import L, P, ell, eta, mlp, s, t
from derive.theory import mean_field
from numerics.errors import Diverged, SpecError
from numerics.expand_nonlinear.forests import Forests, Index
from numerics.expand_nonlinear.moments import Points
from numerics.expand_nonlinear.statics import Array, Statics
from numerics.experiment import Experiment
from numerics.experiment.activation import parse_activation, slope_jumps
from numerics.results import STDERR, dataset
from numerics.solve.grid import Grid
from numerics.solve.march import RUNAWAY
from numerics.solve.settle import settle
from numerics.threads import one_thread

RESPONSES = ("A", "B")
QUADRATURE = 6
"""With more samples than this, averages over three or four of them are sampled, and responses left out."""

SAMPLES = 4096
"""Points of all replicas, unless solver.samples says how many."""

REPLICAS = 8


def series(experiment: Experiment, order: int) -> NonlinearExpansion:
    """The expansion with layer and depth symbolic, in the experiment's own rule, loss and phi.

    Raises :class:`~numerics.errors.SpecError` for a negative order.
    """
    _check(order)
    _check_kinks(experiment, order)
    training = experiment.training
    return _expansion(experiment.network.activation, training.rule, training.loss, order)


@one_thread
def expand_nonlinear(experiment: Experiment, order: int) -> xr.Dataset:
    """Coefficients of gamma0^n, n <= ``order``, of every result variable; only orders that do not vanish.

    Raises :class:`~numerics.errors.SpecError` for a negative order and for kinks beyond order 0,
    :class:`~numerics.errors.Diverged` for a learning rate too large for the lazy network,
    :class:`~numerics.errors.NotConverged` when a flow does not settle to ``solver.rtol``, or an
    average does not converge.

    Averages are found by quadrature.  With more than six samples those over three or four different ones are
    means over points, as many as ``solver.samples``, in eight independent replicas: every variable then has
    its standard error beside it.  A and B are there for rules in steps and up to six samples.
     Activations with a kink have order 0, without A and B.
    """
    _check(order)
    _check_kinks(experiment, order)
    started = clock.perf_counter()
    training = experiment.training
    flow = training.rule == "flow"
    few = len(experiment.targets) <= QUADRATURE
    sampled = order > 0 and not few
    expansion = _expansion(experiment.network.activation, "multistep" if flow else "gd", training.loss, order)
    responses = few and not flow and not slope_jumps(experiment.network.activation)
    # B of order 0 stands in the other laws beyond order 0
    skipped = frozenset() if responses else frozenset(f"B{n}" for n in range(min(order, 1), order + 1))
    accuracy = min(1e-2 * experiment.solver.rtol, 1e-9)

    def statics(points: Points | None) -> Statics:
        return Statics(expansion, experiment.depth, experiment.kernel, accuracy, skipped, points)

    solver = experiment.solver
    count = 1 << max(4, int(np.ceil(np.log2((solver.samples or SAMPLES) / (2 * REPLICAS)))))
    points: list[Points | None] = [None]
    if sampled:
        points = [Points(count, (solver.seed, k)) for k in range(REPLICAS)]
    grid: Grid | None = None
    notes: dict[str, Any] = {}
    runs = []
    for part in map(statics, points):
        if not flow:
            T = len(experiment.times)
            found = Evaluation(experiment, part, np.tril(np.ones((T, T)), -1))
        elif grid is None:
            grid, found, notes = _settled(experiment, part)
        else:
            found = Evaluation(experiment, part, grid.weights)
        out = np.arange(len(experiment.times)) if grid is None else grid.outputs
        runs.append(found.values(out, responses))
        notes["average_error"] = max(m.error for m in part.moments.values())
    values = {k: np.mean([run[k] for run in runs], axis=0) for k in runs[0]}
    if len(runs) > 1:
        spread = {k: np.std([run[k] for run in runs], axis=0, ddof=1) for k in runs[0]}
        values |= {k + STDERR: v / np.sqrt(len(runs)) for k, v in spread.items()}
        notes |= {"samples": 2 * count * REPLICAS, "replicas": REPLICAS}
    orders = [
        n for n in range(order + 1) if n == 0 or any(np.any(np.nan_to_num(v[n])) for v in values.values())
    ]
    return dataset(
        {k: v[orders] for k, v in values.items()},
        times=experiment.times,
        spec=experiment.text,
        orders=orders,
        nonlinear=True,
        method="expansion in gamma0",
        truncation_order=order,
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )


def _settled(experiment: Experiment, statics: Statics) -> tuple[Grid, Evaluation, dict[str, Any]]:
    """A time grid fine enough for every order of the error."""

    def attempt(grid: Grid) -> tuple[Array, Evaluation]:
        found = Evaluation(experiment, statics, grid.weights)
        return np.stack([e[grid.outputs] for e in found.errors.values()]), found

    return settle(experiment.times, experiment.solver.rtol, attempt)


def _check(order: int) -> None:
    if order < 0:
        raise SpecError("--order", order, "must not be negative", "an integer >= 0, such as 2")


def _check_kinks(experiment: Experiment, order: int) -> None:
    activation = experiment.network.activation
    if order > 0 and slope_jumps(activation):
        raise SpecError(
            "network.activation",
            activation,
            "has a slope that jumps: units that cross the kink add odd powers of |gamma0|",
            "a smooth activation, or --order 0; `dmft solve` serves this one",
        )


@lru_cache(maxsize=16)
def _expansion(activation: str, rule: str, loss: str, order: int) -> NonlinearExpansion:
    return derived(mean_field(mlp(L, parse_activation(activation), rule, loss)), order)


class Evaluation:
    """Errors at every order and order parameters, on one time grid.

    ``table`` is (T, T), strictly lower: ones for steps, the weights of the integrator for the flow.
    ``order`` is that of the statics' expansion, unless something else adds to it.
    """

    def __init__(
        self, experiment: Experiment, statics: Statics, table: Array, order: int | None = None
    ) -> None:
        self.experiment, self.statics, self.expansion = experiment, statics, statics.expansion
        self.depth = experiment.depth
        self.order = self.expansion.order if order is None else order
        self.weight = self.rate() * table
        self.errors: dict[int, Array] = {}
        self.forests = Forests(self.weight, self.errors)
        for n in range(self.order + 1):
            self.errors[n] = self.error(n)

    def rate(self) -> float:
        """The number in front of the table in k(t, s)."""
        weight = self.expansion.site.weight
        known: dict[Symbol, Any] = {P: len(self.experiment.targets)}
        if self.experiment.training.rule == "gd":
            known[eta] = self.experiment.training.learning_rate
        tables = {a for a in weight.atoms(AppliedUndef) if a.args == (t, s)}
        return float(weight.xreplace(dict.fromkeys(tables, Integer(1))).subs(known))

    def error(self, n: int) -> Array:
        """``Delta_n = [y] - f_n``: f_n is linear in Delta_n (a Volterra equation), the rest is known."""
        drive = np.zeros((len(self.weight), len(self.experiment.targets)))
        if n == 0:
            drive += self.experiment.targets
        feedback: Array | None = None
        for forest in self.expansion.forests(OUTPUT, n):
            tensor = self.statics.value(Tensor(OUTPUT, n, forest), self.depth)
            if any(x.error == n for x in forest):
                assert len(forest) == 2, "the error's own order stands alone"
                feedback = tensor
            else:
                drive -= self.forests.single(forest, tensor)
        if not np.any(drive):
            return drive
        assert feedback is not None
        return self.answer(drive, feedback, n)

    def feedback(self, n: int) -> Array:
        """What f_n has beside the integral of Delta_n: the tangent kernel at order 0."""
        forest = next(x for x in self.expansion.forests(OUTPUT, n) if any(node.error == n for node in x))
        return self.statics.value(Tensor(OUTPUT, n, forest), self.depth)

    def answer(self, drive: Array, feedback: Array, n: int) -> Array:
        """``Delta_n = drive - feedback int Delta_n``, time by time.  Raises Diverged."""
        out = np.zeros_like(drive)
        bound = RUNAWAY * max(float(np.max(np.abs(drive))), 1e-300)
        for step in range(len(out)):
            out[step] = drive[step] - feedback @ (self.weight[step, :step] @ out[:step])
            if not np.all(np.abs(out[step]) < bound):
                raise Diverged(f"Delta at order {n} diverged at step {step}")
        return out

    def kernel(self, name: str, n: int, layer: int, out: Index) -> Array:
        """Order n of an order parameter at one layer and at output times, (out, P, out, P)."""
        size = (len(out), len(self.experiment.targets))
        total = np.zeros((*size, *size))
        base = self.statics.bases.get((name, layer))
        if base is not None:
            return total + base[None, :, None, :] if n == 0 else total
        for forest in self.expansion.forests(name, n):
            tensor = self.statics.value(Tensor(name, n, forest), layer)
            if name in RESPONSES:
                total += self.forests.response(forest, tensor, out)
            else:
                total += self.forests.correlation(forest, tensor, out)
        return total

    def tangent(self, n: int, out: Index) -> Array:
        """Order n of the tangent kernel, read off its definition, (out, P, out, P)."""
        size = (len(out), len(self.experiment.targets))
        total = np.zeros((*size, *size))
        for factors in products(self.expansion, self.depth):
            for k in range(n + 1):
                orders = (k, n - k)
                if len(factors) == 1:
                    if k == n:
                        total += self.kernel(factors[0][0], n, factors[0][1], out)
                    continue
                a, b = (
                    self.kernel(name, m, layer, out) for (name, layer), m in zip(factors, orders, strict=True)
                )
                total += a * b
        return total

    def values(self, out: Index, responses: bool = True) -> dict[str, Array]:
        """Every variable, with the order first."""
        orders, layers = range(self.order + 1), range(1, self.depth + 1)
        error = np.stack([self.errors[n][out] for n in orders])
        loss = [np.mean(sum(error[k] * error[n - k] for k in range(n + 1)), axis=1) for n in orders]
        found = {"error": error, "train_loss": np.stack(loss)}
        for name in ("Phi", "G"):
            found[name] = np.stack([[self.kernel(name, n, k, out) for k in layers] for n in orders])
        for name in RESPONSES if responses else ():
            # at the last layer B is zero, and A, which no layer reads, is not known
            missing = np.full(found["Phi"].shape[2:], np.nan if name == "A" else 0.0)
            found[name] = np.stack(
                [
                    [self.kernel(name, n, k, out) if k < self.depth else missing for k in layers]
                    for n in orders
                ]
            )
        for name in ("Phi", "G", "A", "B"):
            if name in found:
                found[name] = found[name].transpose(0, 1, 2, 4, 3, 5)
        K = np.stack([self.tangent(n, out) for n in orders])
        return found | {"tangent_kernel": K.transpose(0, 1, 3, 2, 4)}


def products(expansion: NonlinearExpansion, depth: int) -> list[list[tuple[str, int]]]:
    """The tangent kernel as a sum of products of order parameters (name, layer), given data among them."""
    found = []
    for y in expansion.site.tangent:
        layers: Iterable[int] = (0,)
        if y.layers:
            layers = range(int(y.layers.lower), int(y.layers.upper.subs(L, depth)) + 1)
        for k in layers:
            # the data's kernel is what Phi is before the first layer
            factors = [("Phi", 0)] if y.given != 1 else []
            found.append(factors + [(name, int(at.subs({ell: k, L: depth}))) for name, at in y.factors])
    return found


__all__ = ["Evaluation", "expand_nonlinear", "series"]
