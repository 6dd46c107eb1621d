"""Evaluate the expansion in gamma0 of a nonlinear experiment: tensors by layers, forests by times."""

from __future__ import annotations

import time as clock
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr

from derive.errors import NotApplicable
from derive.expansion.nonlinear import NonlinearExpansion
from derive.expansion.nonlinear import expand_nonlinear as derived
from derive.expansion.nonlinear.expansion import KINKS
from derive.expansion.nonlinear.trees import OUTPUT, Tensor
from derive.program import L, Program, ell
from derive.theory import mean_field
from numerics.errors import SpecError
from numerics.expansion.nonlinear.forests import Forests, Index
from numerics.expansion.nonlinear.moments import Moments, Points
from numerics.expansion.nonlinear.statics import Array, Statics
from numerics.expansion.operators import time_table
from numerics.expansion.setting import Setting, parted, symbolic
from numerics.experiment.activation import slope_jumps
from numerics.experiment.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import integrated, program_of
from numerics.results import STDERR, dataset
from numerics.solver.grid import Grid
from numerics.solver.paths.accuracy import Spread
from numerics.solver.refine import Attempt, Multistep, refine
from numerics.threads import one_thread

RESPONSES = ("A", "B")
QUADRATURE = 6
"""With more samples than this, averages over three or four of them are sampled, and responses left out."""

SAMPLES = 4096
"""Points of all replicas, unless solver.samples says how many."""

REPLICAS = 8


def series(experiment: Experiment, order: int) -> NonlinearExpansion:
    """The expansion with layer and depth symbolic, in the experiment's own rule, loss and phi.

    Raises :class:`~numerics.errors.SpecError` for a negative order, and where the theory has no such series.
    """
    _check(order)
    _check_kinks(experiment, order)
    try:
        return _expansion(program_of(experiment, L), order)
    except NotApplicable as reason:
        raise _no_trees("network.activation", experiment.network.activation, reason) from None


@one_thread
def expand_nonlinear(source: Problem | Experiment, order: int) -> xr.Dataset:
    """Coefficients of gamma0^n, n <= ``order``, of every result variable; only orders that do not vanish.

    Raises :class:`~numerics.errors.SpecError` for a negative order, for kinks beyond order 0 and for networks
    whose theory is not expanded, :class:`~numerics.errors.Diverged` for a learning rate too large for the
    lazy network, :class:`~numerics.errors.NotConverged` when a flow does not settle to ``solver.rtol``, or an
    average does not converge.

    Averages are found by quadrature.  With more than six samples those over three or four different ones are
    means over points, as many as ``solver.samples``, in eight independent replicas: every variable then has
    its standard error beside it.  A and B are there for rules in steps and up to six samples.
     Activations with a kink have order 0, without A and B.
    """
    _check(order)
    problem = Problem.of(source)
    if problem.experiment is not None:
        _check_kinks(problem.experiment, order)
    started = clock.perf_counter()
    flow, solver = problem.flow, problem.solver
    few = problem.sample_count <= QUADRATURE
    sampled = order > 0 and not few
    expansion = _derived(problem, order)
    bends = expansion.activation.expr.has(*KINKS)
    if order and bends:
        raise _kinked(*problem.said("network.activation"))
    responses = few and not flow and not bends
    # B of order 0 stands in the other laws beyond order 0
    skipped = frozenset() if responses else frozenset(f"B{n}" for n in range(min(order, 1), order + 1))
    accuracy = min(1e-2 * solver.rtol, 1e-9)
    exact: dict[int, Moments] = {}

    def statics(points: Points | None) -> Statics:
        whole = Setting(problem)
        return Statics(expansion, whole.depth, whole.kernel, accuracy, skipped, points, exact)

    count = 1 << max(4, int(np.ceil(np.log2((solver.samples or SAMPLES) / (2 * REPLICAS)))))
    points: list[Points | None] = [None]
    if sampled:
        points = [Points(count, (solver.seed, k)) for k in range(REPLICAS)]
    setting = Setting(problem)
    notes: dict[str, Any] = {}
    runs = Spread()
    for part in map(statics, points):
        if flow and setting.grid is None:
            grid, found, notes = _settled(problem, part)
            setting = Setting(problem, grid)
        else:
            found = Evaluation(setting, part)
        runs.add(found.values(setting.out, responses))
        notes["average_error"] = max(m.error for m in part.moments.values())
    values = dict(runs.mean)
    if runs.count > 1:
        values |= {k + STDERR: v for k, v in runs.stderr().items()}
        notes |= {"samples": 2 * count * REPLICAS, "replicas": REPLICAS}
    orders = [
        n for n in range(order + 1) if n == 0 or any(np.any(np.nan_to_num(v[n])) for v in values.values())
    ]
    return dataset(
        {k: v[orders] for k, v in values.items()},
        times=problem.times,
        spec=problem.text,
        orders=orders,
        nonlinear=True,
        method="expansion in gamma0",
        truncation_order=order,
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )


def _settled(problem: Problem, statics: Statics) -> tuple[Grid, Evaluation, dict[str, Any]]:
    """A time grid fine enough for every order of the error."""

    def attempt(grid: Grid) -> Attempt[Evaluation]:
        found = Evaluation(Setting(problem, grid), statics)
        return Attempt(np.stack([e[grid.outputs] for e in found.errors.values()]), found)

    return refine(Multistep(problem.times, problem.solver.rtol), attempt).parts


def _check(order: int) -> None:
    if order < 0:
        raise SpecError("--order", order, "must not be negative", "an integer >= 0, such as 2")


def _check_kinks(experiment: Experiment, order: int) -> None:
    activation = experiment.network.activation
    if order > 0 and slope_jumps(activation):
        raise _kinked("network.activation", activation)


def _kinked(key: str, value: Any) -> SpecError:
    problem = "has a slope that jumps: units that cross the kink add odd powers of |gamma0|"
    return SpecError(key, value, problem, "a smooth activation, or --order 0; `dmft solve` serves this one")


def _derived(problem: Problem, order: int) -> NonlinearExpansion:
    """Of the program as an integrator trains it.  Raises SpecError with the reason where there is none."""
    if not problem.seen:
        reason = "nonlinear networks on random data have no expansion: their theory is not expanded in gamma0"
        raise SpecError(*problem.said("data.kind"), reason, '"fixed"')
    try:
        return _expansion(integrated(symbolic(problem)), order)
    except NotApplicable as reason:
        raise _no_trees(*problem.said("network.activation"), reason) from None


def _no_trees(key: str, value: Any, reason: NotApplicable) -> SpecError:
    problem = f"the theory of this network has no expansion in trees: {reason}"
    return SpecError(key, value, problem, '"linear", which has a series; `dmft solve` solves both')


@lru_cache(maxsize=16)
def _expansion(program: Program, order: int) -> NonlinearExpansion:
    return derived(mean_field(program), order)


class Evaluation:
    """Errors at every order and order parameters, on one time grid.

    ``order`` is that of the statics' expansion, unless something else adds to it.
    """

    def __init__(self, setting: Setting, statics: Statics, order: int | None = None) -> None:
        self.setting, self.statics, self.expansion = setting, statics, statics.expansion
        self.depth = setting.depth
        self.order = self.expansion.order if order is None else order
        self.weight = time_table(self.expansion.site.weight, setting.numbers, setting.times, setting.tables)
        self.errors: dict[int, Array] = {}
        self.outputs: dict[int, Array] = {}
        self.forests = Forests(self.weight, self.errors)
        for n in range(self.order + 1):
            self.errors[n], self.outputs[n] = self.error(n)

    def error(self, n: int) -> tuple[Array, Array]:
        """Delta_n and f_n: f_n is linear in Delta_n (a Volterra equation), the rest is known."""
        rest = np.zeros((len(self.weight), len(self.setting.targets)))
        feedback: Array | None = None
        for forest in self.expansion.forests(OUTPUT, n):
            tensor = self.statics.value(Tensor(OUTPUT, n, forest), self.depth)
            if any(x.error == n for x in forest):
                assert len(forest) == 2, "the error's own order stands alone"
                feedback = tensor
            else:
                rest += self.forests.single(forest, tensor)
        return self.answered(rest, feedback, n)

    def answered(self, rest: Array, feedback: Array | None, n: int) -> tuple[Array, Array]:
        """``Delta_n = target - rest - feedback int Delta_n`` and f_n.  Raises Diverged."""
        drive = self.setting.target(n) - rest
        if not np.any(drive):
            return drive, rest
        assert feedback is not None
        found = self.setting.answer(self.weight, feedback, drive, n)
        return found, rest + self.weight @ found @ feedback.T

    def feedback(self, n: int) -> Array:
        """What f_n has beside the integral of Delta_n: the tangent kernel at order 0."""
        forest = next(x for x in self.expansion.forests(OUTPUT, n) if any(node.error == n for node in x))
        return self.statics.value(Tensor(OUTPUT, n, forest), self.depth)

    def kernel(self, name: str, n: int, layer: int, out: Index) -> Array:
        """Order n of an order parameter at one layer and at output times, (out, P, out, P)."""
        size = (len(out), len(self.setting.targets))
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
        size = (len(out), len(self.setting.targets))
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
        error, f = (np.stack([x[n][out] for n in orders]) for x in (self.errors, self.outputs))
        found = {"error": error}
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
        found["tangent_kernel"] = K.transpose(0, 1, 3, 2, 4)
        return parted(self.setting.problem, found, f, nonlinear=True)


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
