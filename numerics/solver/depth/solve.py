"""Linear residual networks of infinite depth in layer time: limit, first correction, diversity of layers.

In an experiment of symbolic depth, ``depth = "L"``, and in a program whose depth is a symbol, the branch is
``branch/sqrt(L)`` and L goes to infinity: ``network.branch``, or the number for ``beta``, is beta0 of
linear2025 (eq. 85). Every result is extrapolated from solutions on three grids of layer time (:data:`GRIDS`).
The method ``layers`` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import gcd
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol, sqrt

from derive.calculus.symbols import s, t
from derive.depth import CrossLayer, LayerTime, Scaling, cross_layer, layer_time, rescale
from derive.depth.infinite import Diversity, InfiniteDepth, diversity, infinite_depth
from derive.depth.layers import coefficient_name, tau, tau_, tau_2
from derive.errors import NotApplicable
from derive.program import L, Program
from numerics.errors import SpecError, require_memory, require_whole
from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear
from numerics.experiment.problem import Problem
from numerics.experiment.theory import Reduction, beta, derived, integrated, wide_layers
from numerics.lowering.layer_time import (
    LayerProduct,
    LayerTable,
    NotLowered,
    Read,
    lower_layer_time,
    products_of,
)
from numerics.names import C_FIELD, C_GRADIENT, ERROR, FEATURE_KERNEL, GRADIENT_KERNEL, LINEAR_KERNEL, OUTPUT
from numerics.progress import Progress
from numerics.results import STDERR
from numerics.results.predictions import random_losses, split
from numerics.solver.depth.layer_grid import Known, LayerGrid, needed_bytes, solve_layer_grid

Array = NDArray[np.float64]

DerivedLimit = TypeVar("DerivedLimit")

beta0 = Symbol("beta0", positive=True)
"""``beta sqrt(L)``, which is constant as the depth grows."""

SCALING = Scaling({beta: beta0 / sqrt(L)})
"""Scaling of the branch with depth."""

LAYERS = 16
"""Number of cells of the finest grid of layer time, if the caller gives none."""

LAYERED = (FEATURE_KERNEL, GRADIENT_KERNEL, C_FIELD, C_GRADIENT)
"""Variables whose first axis is that of layers."""

GRIDS = (Fraction(1, 2), Fraction(3, 4), Fraction(1))
"""Cells of the grids that are extrapolated, as shares of those of the finest one."""

NOT_CLOSED = "has no closed equations at infinite depth; the method layers samples paths instead"
"""Reason with which solvers of closed equations refuse a nonlinear activation."""

FIRST = coefficient_name("", 1)
"""Prefix of the names of the tensors of the first correction."""

# -- solutions on grids, extrapolated ------------------------------------------------------------------------


@dataclass(frozen=True)
class DepthLimit:
    """Limit of infinite depth.

    Attributes
    ----------
    layers : int
        Number of cells of the finest grid.
    nodes : numpy.ndarray
        Layer times that all grids have, shape ``(nodes,)``: from 0 to 1, and without 0 for sampled paths.
    values : dict
        Variables of a result, with an axis of nodes in place of layers.
    errors : dict
        Estimated error of each variable: the largest change by the last extrapolation in the grid; for
        sampled paths, the largest standard error plus the error of the grids.
    """

    layers: int
    nodes: Array
    values: dict[str, Array]
    errors: dict[str, float]

    def __getitem__(self, name: str) -> Array:
        """Return the values of a variable; raise KeyError for an unknown name."""
        return self.values[name]


@dataclass(frozen=True)
class DepthCorrection:
    """First correction to infinite depth: a network of L layers is ``limit + L**order * first``.

    Layers are at ``tau = ell/L``.

    Attributes
    ----------
    order : float
        Power of L of the correction.
    limit : DepthLimit
        Limit of infinite depth.
    first : DepthLimit
        Coefficient of the correction, with the variables of ``limit`` and its own errors.
    """

    order: float
    limit: DepthLimit
    first: DepthLimit

    def at_depth(self, depth: int, name: str) -> Array:
        """Return a variable at a finite depth, to first order.

        Parameters
        ----------
        depth : int
            Number of layers.
        name : str
            Variable, but not a standard error: those of both orders are not independent.
            :meth:`.SampledDepth.at_depth` combines them.

        Returns
        -------
        numpy.ndarray
            Values, with the shape of the limit.

        Raises
        ------
        SpecError
            For a standard error, and for a depth that is not a positive integer.
        """
        if name.endswith(STDERR):
            reason = "is a standard error, and errors of both orders are not independent"
            raise SpecError("name", name, reason, "a variable; SampledDepth.at_depth combines their errors")
        require_whole("depth", depth, 1, "must be positive")
        value: Array = self.limit[name] + depth**self.order * self.first[name]
        return value


def on_grids(
    table: LayerTable,
    layers: int,
    steps: int,
    *,
    constants: Mapping[Symbol, float] | None = None,
    extents: Mapping[str, int] | None = None,
    known: Known | None = None,
    progress: Progress | None = None,
) -> list[LayerGrid]:
    """Return solutions of equations in layer time on three grids, of which the finest has ``layers`` cells.

    They are in the order of :data:`GRIDS`, from coarse to fine. ``constants``, ``extents`` and ``known`` are
    those of :func:`.solve_layer_grid`, whose errors are raised too. ``progress`` is called with the completed
    steps and the total of all grids. Raises :class:`~numerics.errors.SpecError` if ``layers`` is not a
    positive multiple of 4, and if memory does not suffice.
    """
    if layers < 4 or layers % 4:
        reason = (
            "is the number of cells of the finest of three grids; the others have 1/2 and 3/4 of this number"
        )
        raise SpecError("layers", layers, reason, "a multiple of 4")
    size, key_and_value = needed_bytes(table, layers, steps, extents or {}), ("training.steps", steps - 1)
    accepted = "fewer steps, samples, or cells of layer time"
    require_memory(size, key_and_value, "for responses between layers", accepted)
    return [
        solve_layer_grid(
            table,
            layers=int(layers * part),
            steps=steps,
            constants=constants or {},
            extents=extents,
            known=known,
            progress=None
            if progress is None
            else lambda k, n, done=done: progress(done * n + k, len(GRIDS) * n),  # type: ignore[misc]
        )
        for done, part in enumerate(GRIDS)
    ]


def extrapolated(layers: int, runs: list[dict[str, Array]], layered: Collection[str]) -> DepthLimit:
    """Extrapolate solutions on :data:`GRIDS` in the second and fourth power of the spacing (Richardson).

    ``runs`` holds the variables by name of each grid, from coarse to fine, and ``layers`` is the number of
    cells of the finest. The first axis of variables whose names are in ``layered`` is that of the nodes;
    nodes that all grids have are kept.
    """
    squares = [float((layers * part) ** 2) for part in GRIDS]
    common = gcd(*(int(layers * part) for part in GRIDS))
    values, errors = {}, {}
    for name in runs[0]:
        rows = [run[name] for run in runs]
        if name in layered:
            rows = [a[:: (len(a) - 1) // common] for a in rows]
        once = _eliminated(rows, squares)
        (values[name],) = _eliminated(once, squares, 2)
        errors[name] = float(np.max(np.abs(values[name] - once[1])))
    return DepthLimit(layers, np.linspace(0.0, 1.0, common + 1), values, errors)


def _eliminated(rows: list[Array], squares: list[float], distance: int = 1) -> list[Array]:
    """Return one step of Richardson extrapolation: solutions without the leading power of the spacing.

    ``rows`` are solutions from coarse to fine grids, and ``squares`` the squared numbers of cells of all
    grids. In step n of the extrapolation (Neville's scheme), each result combines grids that are n places
    apart in ``squares``; ``distance`` is n.
    """
    pairs = zip(rows, rows[1:], squares, squares[distance:], strict=False)
    return [(n * fine - m * wide) / (n - m) for wide, fine, m, n in pairs]


# -- experiments ---------------------------------------------------------------------------------------------


def solve_depth_limit(
    source: Problem | Experiment, *, layers: int = LAYERS, progress: Progress | None = None
) -> DepthLimit:
    """Solve a problem of symbolic depth in the limit of infinite depth.

    Parameters
    ----------
    source : Problem or Experiment
        Problem whose depth is a symbol.
    layers : int
        Number of cells of the finest grid, a multiple of 4; the other grids have 3/4 and 1/2 of this number.
    progress : Progress, optional
        Callback that reports progress.

    Returns
    -------
    DepthLimit
        Variables with estimated errors.

    Raises
    ------
    SpecError
        If the depth is a number, if there is no supported limit of infinite depth (as without a branch, in a
        flow, or with biases), if the limit has no closed equations (a nonlinear activation, an error that is
        not linear in the output), if ``layers`` is not a positive multiple of 4, and if memory does not
        suffice.
    NotLowered
        For a program whose error is a nonlinear function of the output that is written out, such as that of
        the logistic loss.
    Diverged
        If the solution diverges; the message states the step.

    Notes
    -----
    The derived equations in layer time are solved on three grids and extrapolated, because the error of a
    grid is a series in the squared spacing.

    Examples
    --------
    >>> e = Experiment.from_dict({
    ...     "network": {"depth": "L", "branch": 1.0, "width_ratio": 2.0}, "data": {"kind": "isotropic"},
    ...     "training": {"learning_rate": 0.1, "steps": 1}})
    >>> limit = solve_depth_limit(e, layers=8)
    >>> exact = 1 + np.exp(1.0) / 2.0  # the initial loss
    >>> bool(abs(limit["test_loss"][0] - exact) < limit.errors["test_loss"] < 1e-3)
    True
    """
    problem = Problem.of(source)
    require_limit(problem)
    table = _limit_table(*limit_of(problem))
    runs = _solved(problem, table, layers, progress)
    return extrapolated(layers, [values_of(problem, run, table) for run in runs], LAYERED)


def solve_depth_correction(
    source: Problem | Experiment, *, layers: int = LAYERS, progress: Progress | None = None
) -> DepthCorrection:
    """Solve a problem of symbolic depth at infinite depth and to order 1/L.

    Parameters
    ----------
    source : Problem or Experiment
        Problem whose depth is a symbol.
    layers : int
        Number of cells of the finest grid, a multiple of 4.
    progress : Progress, optional
        Callback that reports progress.

    Returns
    -------
    DepthCorrection
        Limit and coefficient of the first correction.

    Raises
    ------
    SpecError
        As for :func:`solve_depth_limit`.
    NotLowered
        As for :func:`solve_depth_limit`.
    Diverged
        If the solution diverges; the message states the step.

    Examples
    --------
    >>> e = Experiment.from_dict({
    ...     "network": {"depth": "L", "branch": 1.0, "width_ratio": 2.0}, "data": {"kind": "isotropic"},
    ...     "training": {"learning_rate": 0.1, "steps": 1}})
    >>> solution = solve_depth_correction(e, layers=8)
    >>> exact = [(1 + 1 / n) ** (n - 1) / 2 + 1 for n in (50, 100)]  # the initial loss
    >>> [bool(abs(solution.at_depth(n, "test_loss")[0] - x) < 4 / n**2) for n, x in zip((50, 100), exact)]
    [True, True]
    """
    problem = Problem.of(source)
    require_limit(problem)
    deep = limit_of(problem)
    table = lower_layer_time(correction_of(*deep).limit)
    runs = _solved(problem, _corrected_table(*deep), layers, progress)

    def values(run: LayerGrid, share: float) -> dict[str, Array]:
        names = [row.name for group in table.groups for row in group]
        moved = {n: run[n] + share * run.values.get(FIRST + n, 0.0) for n in names}
        return values_of(problem, replace(run, values=moved), table)

    def first(run: LayerGrid) -> dict[str, Array]:
        # Variables are at most quadratic in the values that the correction changes, so that half of up - down
        # is exactly their first order.
        up, down = values(run, 1.0), values(run, -1.0)
        return {n: 0.5 * (up[n] - down[n]) for n in up}

    return DepthCorrection(
        float(correction_of(*deep).power),
        extrapolated(layers, [values(run, 0.0) for run in runs], LAYERED),
        extrapolated(layers, [first(run) for run in runs], LAYERED),
    )


def _solved(problem: Problem, table: LayerTable, layers: int, progress: Progress | None) -> list[LayerGrid]:
    """Return the solutions of the equations ``table`` on all grids, with the numbers of a problem."""
    extents = {"c": problem.outputs}
    if problem.seen:
        extents |= {"mu": problem.sample_count, "alpha": problem.sample_count}
    return on_grids(
        table,
        layers,
        len(problem.times),
        constants={beta0 if k == beta else k: v for k, v in problem.numbers.items()},
        extents=extents,
        known=problem.data,
        progress=progress,
    )


def require_limit(problem: Problem) -> None:
    """Raise SpecError if there is no limit of infinite depth, or none in closed equations.

    For a file, the message names a key. For a program, reasons other than its depth, its branch and a flow
    come from the derivation of the limit, and NotLowered is raised for a nonlinear error that is written out.
    """
    require_branch(problem)
    if problem.experiment is not None:
        require_file(problem.experiment)
        return
    if problem.flow:
        raise SpecError(
            *problem.key_and_value("training.rule"), "is not supported at infinite depth", '"gd" or "sgd"'
        )
    _limit_table(*limit_of(problem))


def require_branch(problem: Problem) -> None:
    """Raise SpecError if the depth of a problem is a number, or if its branches have no factor beta."""
    if problem.depth is not None:
        accepted = "a program whose depth is a symbol" if problem.experiment is None else '"L"'
        reason = "the limit of infinite depth needs a symbolic depth"
        raise SpecError(*problem.key_and_value("network.depth"), reason, accepted)
    if beta not in problem.numbers:
        reason = f"gives no factor {beta} of branches, and the limit needs residual layers"
        accepted = "a program whose branches have the factor beta"
        if problem.experiment is not None:
            accepted = "a positive number, such as 1/sqrt(depth)"
        raise SpecError(*problem.key_and_value("network.branch"), reason, accepted)


def require_file(experiment: Experiment) -> None:
    """Raise SpecError if keys of a file have values without a supported limit of infinite depth.

    The message gives the reason for the first of these keys, and accepted values for all. The depth of the
    file may be a number.
    """
    network, training = experiment.network, experiment.training
    unfit: list[tuple[str, object, str, str]] = []
    if not is_linear(network.activation):
        unfit.append(("network.activation", network.activation, NOT_CLOSED, '"linear"'))
    if network.bias:
        reason = "has no limit of infinite depth: the updates of all biases add up"
        unfit.append(("network.bias", True, reason, "false"))
    for key in ("init_variance", "width_ratio", "relative_widths"):
        if isinstance(value := getattr(network, key), list):
            unfit.append((f"network.{key}", value, "has an entry for each layer", "one number"))
    if training.rule == "flow":
        reason, steps = "is not supported at infinite depth", '"gd" or "sgd", with learning_rate and steps'
        unfit.append(("training.rule", training.rule, reason, steps))
    if training.objective != "square":
        reason = "is not supported at infinite depth, where the error must be linear in the output"
        unfit.append(("training.objective", training.objective, reason, '"square"'))
    if unfit:
        (key, value, reason, accepted), *others = unfit
        also = ", ".join(f"{other} = {good}" for other, _, _, good in others)
        raise SpecError(key, value, reason, f"{accepted}; also set {also}" if also else accepted)


def limit_of(problem: Problem) -> tuple[Program, tuple[Reduction, ...]]:
    """Return the program of a problem and the reductions that apply before the limit of infinite depth.

    The program reads the memory of its training rule from tables, if it has no closed form in steps. The only
    reduction that is kept is the limit of wide layers.
    """
    return integrated(problem.program), tuple(x for x in problem.reductions if x is wide_layers)


def require_derived(derive: Callable[[], DerivedLimit]) -> DerivedLimit:
    """Return the result of the derivation ``derive``.

    Raises SpecError for the key ``network.depth`` if the derivation does not apply to the theory.
    """
    try:
        return derive()
    except NotApplicable as reason:
        raise SpecError(
            "network.depth", "L", f"no limit of infinite depth: {reason}", "an integer >= 1"
        ) from None


@lru_cache(maxsize=32)
def closed_equations(program: Program, reductions: tuple[Reduction, ...]) -> CrossLayer:
    """Derive the equations of correlations and responses at all pairs of layers of a residual program.

    They are closed: they contain no fields. ``reductions`` are applied to the theory first. Responses to
    families of sources, which have one member in each layer, are divided by beta, the factor of the branch.
    Raises SpecError if such equations do not exist.
    """
    return require_derived(lambda: rescale(cross_layer(derived(program, reductions)), beta))


@lru_cache(maxsize=8)
def correction_of(program: Program, reductions: tuple[Reduction, ...]) -> InfiniteDepth:
    """Derive the equations in layer time of a program at infinite depth, and of its first correction.

    The correction is the leading one in the depth L. ``reductions`` are applied to the theory first. Results
    are cached. Raises SpecError if there is no such limit.
    """
    return require_derived(lambda: infinite_depth(closed_equations(program, reductions), SCALING))


@lru_cache(maxsize=32)
def _limit_table(program: Program, reductions: tuple[Reduction, ...]) -> LayerTable:
    """Return the equations of a residual program at infinite depth.

    They are in the form that :func:`.solve_layer_grid` solves. ``reductions`` are applied to the theory
    first. Results are cached. Raises SpecError if there is no such limit, and NotLowered for a term that this
    form does not support.
    """
    return lower_layer_time(
        require_derived(lambda: layer_time(closed_equations(program, reductions), SCALING))
    )


@lru_cache(maxsize=8)
def _corrected_table(program: Program, reductions: tuple[Reduction, ...]) -> LayerTable:
    """Return the equations of a residual program at large depth, to first order in the correction.

    They are in the form that :func:`.solve_layer_grid` solves. ``reductions`` are applied to the theory
    first. Results are cached.
    """
    return lower_layer_time(correction_of(program, reductions).system)


def values_of(problem: Problem, run: LayerGrid, table: LayerTable) -> dict[str, Array]:
    """Return the variables of a result from a solution in layer time, by name.

    Axes are layer times (if the variable has them), times, and other indices. For given samples the variables
    are losses, errors, outputs, and the feature and gradient kernels. For random data they are the
    correlations at two times, and the losses.
    """
    if problem.seen:
        values = {
            name: np.moveaxis(run[theirs], -1, 0) for name, theirs in (("error", ERROR), (OUTPUT, OUTPUT))
        }
        values |= {
            FEATURE_KERNEL: run[LINEAR_KERNEL].transpose(0, 3, 4, 1, 2),
            GRADIENT_KERNEL: np.moveaxis(run[GRADIENT_KERNEL], (-2, -1), (1, 2)),
        }
        return split(problem, values)
    rows = [r for g in table.groups for r in g if r.symmetric]
    values = {r.name: np.moveaxis(run[r.name], (-2, -1), (r.layers, r.layers + 1)) for r in rows}
    return values | random_losses(problem.theory, values, problem.numbers, problem.outputs)


# -- distances between layers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerDistances:
    """Squared distances between layers.

    Attributes
    ----------
    nodes : numpy.ndarray
        Layer times, shape ``(nodes,)``.
    squares : numpy.ndarray
        ``<(x(tau_i) - x(tau_j))**2>`` at each time, shape ``(steps, nodes, nodes)``.
    error : float
        Estimated error of the grid.
    derived : Diversity
        Derived expression of the distances.
    """

    nodes: Array
    squares: Array
    error: float
    derived: Diversity

    def slopes(self, node: int) -> tuple[Array, Array]:
        """Return distances ahead of a node, and the power with which the root of ``squares`` grows.

        The feature-diversity exponent kappa is one minus that power, in the limit of zero distance.

        Parameters
        ----------
        node : int
            Node from which distances count.

        Returns
        -------
        distances : numpy.ndarray
            Distances in layer time, each twice the one before, shape ``(doublings + 1,)``.
        powers : numpy.ndarray
            Power for each doubling, shape ``(steps, doublings)``; NaN if layers do not differ.

        Raises
        ------
        ValueError
            For a node that does not exist, or ahead of which no other node lies.
        """
        last = len(self.nodes) - 1
        if not 0 <= node < last:
            raise ValueError(
                f"node = {node}: must be a node from 0 to {last - 1}, because distances are those to later "
                "nodes"
            )
        steps = [2**k for k in range(int(np.log2(len(self.nodes) - 1 - node)) + 1)]
        squares = np.stack([self.squares[:, node, node + k] for k in steps], axis=1)
        with np.errstate(all="ignore"):
            slopes = 0.5 * np.log2(squares[:, 1:] / squares[:, :-1])
        return np.array(steps) / (len(self.nodes) - 1), slopes


def layer_distances(
    limit: LayerTime,
    name: str,
    *,
    layers: int,
    steps: int,
    constants: dict[Symbol, float],
    known: Known | None = None,
    extents: dict[str, int] | None = None,
) -> LayerDistances:
    """Return the squared distances between layers of a field that has no data indices.

    The squared distance between the stream at two layer times is derived (:func:`derive.depth.diversity`).
    The equations ``limit`` are solved on three grids; integrals over the layer times of sources, which the
    distance contains, are sums over cells, and the distance is extrapolated.

    Parameters
    ----------
    limit : LayerTime
        Derived equations in layer time.
    name : str
        Correlation of the field.
    layers : int
        Number of cells of the finest grid, a multiple of 4.
    steps : int
        Number of times.
    constants : dict
        Numbers for symbols.
    known : dict, optional
        Given arrays and functions, as :func:`.solve_layer_grid` takes them.
    extents : dict, optional
        Number of values of each data index.

    Returns
    -------
    LayerDistances
        Squared distances between the ``layers/4 + 1`` nodes that all grids have, with an estimated error.

    Raises
    ------
    SpecError
        For a correlation with data indices, such as samples, if ``layers`` is not a positive multiple of 4,
        and if memory does not suffice.
    KeyError
        If there is no correlation ``name``, or if ``known`` lacks an array or a function.
    NotApplicable
        If the distance cannot be derived (:func:`derive.depth.diversity`).
    Diverged
        If the solution diverges; the message states the step.
    NotLowered
        If the distance contains other factors than responses and correlations, as with several outputs.

    Examples
    --------
    >>> from derive.program.networks.residual import depth_program
    >>> from derive.theory import mean_field
    >>> from derive.depth import gamma_c_recursion, layer_time
    >>> d = layer_distances(layer_time(gamma_c_recursion(mean_field(depth_program()))), "C_0",
    ...     layers=16, steps=1, constants={}, known={"xi": lambda t: 1.0, "dloss": lambda t, f: f})
    >>> bool(abs(d.squares[0, 0, -1] - (np.e - 1)) < 1e-6)  # a Brownian motion of rate C(tau) = exp(tau)
    True
    """
    derived = diversity(limit, name)
    lhs = derived.two_point.lhs
    if indices := lhs.args[2:-2]:
        reason = (
            f"has the indices {', '.join(map(str, indices))} of data, of which distances are not computed"
        )
        raise SpecError("name", name, reason, "a correlation of layer time and two times only")
    table = lower_layer_time(limit)
    runs = []
    for run in on_grids(table, layers, steps, constants=constants, extents=extents, known=known):
        two = _TwoPoint(run, derived, table, constants).matrix()
        node = np.arange(0, run.layers + 1, 4 * run.layers // layers)  # layers that are nodes of all grids
        variances = two[:, node, node]
        squares = variances[:, :, None] + variances[:, None, :] - 2 * two[:, node[:, None], node]
        runs.append({"squares": squares})
    distances = extrapolated(layers, runs, ())
    return LayerDistances(
        np.linspace(0.0, 1.0, layers // 4 + 1),
        distances["squares"],
        distances.errors["squares"],
        derived,
    )


class _TwoPoint:
    """Two-point function ``<x(tau, t) x(tau_2, t)>`` of a field x on the nodes of layer time."""

    def __init__(
        self, run: LayerGrid, derived: Diversity, table: LayerTable, constants: dict[Symbol, float]
    ) -> None:
        self.run, self.constants = run, constants
        names = {row.name: row.layers for group in table.groups for row in group}
        self.products = list(products_of(derived.two_point.rhs, names))

    def matrix(self) -> Array:
        """Return the two-point function at all times and pairs of nodes, shape ``(steps, nodes, nodes)``."""
        n = self.run.layers + 1
        values = np.zeros((self.run.steps, n, n))
        for now in range(self.run.steps):
            for p in self.products:
                if all(x.upper not in (t - 1, s - 1) or now for x in p.spans):
                    values[now] += float(p.number.subs(self.constants)) * self.product(p, now)
        return values

    def product(self, p: LayerProduct, now: int) -> Array:
        """Return a term ``p`` of the two-point function at step ``now``, without its numerical factor.

        The shape is (nodes, nodes), and the axes are the layer times of the two factors. If the term contains
        a source, it is integrated over the layer time of the source by the trapezoidal rule. Raises
        NotLowered for a term with other factors than numbers, responses and correlations, as with several
        outputs.
        """
        if p.calls or p.equal or p.step or p.present:
            raise NotLowered(
                f"the distance between layers contains the term {p}, which must be a product of numbers, "
                "responses and correlations only, as for a network with one output and the square loss"
            )
        ends = {x.index: now + int(x.present) if x.upper.has(t, s) else None for x in p.spans}
        labels: dict[Expr, int] = {tau: 0, tau_2: 1}
        if p.layer is None:
            return self.summed(p, now, ends, labels, 0)
        left, right = (self.summed(p, now, ends, labels, side) for side in (1, -1))
        cells = 0.5 * (left[:, :, :-1] + right[:, :, 1:])
        value: Array = cells.sum(axis=2) / self.run.layers
        return value

    def summed(
        self, p: LayerProduct, now: int, ends: dict[Symbol, int | None], labels: dict[Expr, int], side: int
    ) -> Array:
        """Return the product of tensors ``p`` at step ``now``, summed over times and data indices.

        The axes of the result are the two layer times, and then the layer time of the source if the product
        has one. A response jumps where its layer time equals that of the source: there ``side`` = 1 selects
        the value for a source just above this layer time, and any other ``side`` that for a source just
        below. ``ends`` are the numbers of times over which summed indices run; ``labels`` maps the names of
        axes to integers for ``numpy.einsum``.
        """
        given: list[Any] = []
        for r in p.reads:
            array, names = self.tensor(r, now, ends, side)
            given += [array, [labels.setdefault(x, len(labels)) for x in names]]
        out = [0, 1] + ([labels.setdefault(p.layer, len(labels))] if p.layer is not None else [])
        for axis in (0, 1):
            given += [np.ones(self.run.layers + 1), [axis]]
        value: Array = np.einsum(*given, out, optimize="greedy")
        return value

    def tensor(
        self, r: Read, now: int, ends: dict[Symbol, int | None], side: int
    ) -> tuple[Array, list[Expr]]:
        """Return the values of the tensor ``r`` in a product at step ``now``, with the names of their axes.

        ``ends`` is the number of times over which each summed time index runs. A response jumps where its
        layer time equals that of the source: there ``side`` = 1 selects the value for a source just above
        this layer time, and any other ``side`` that for a source just below.
        """
        whole = self.run[r.name]
        if r.name in self.run.under and side == 1 and tau_ in r.args:
            whole = whole.copy()
            node = np.arange(self.run.layers + 1)
            whole[node, node] = self.run.under[r.name]
        at = tuple(
            now if x in (t, s) else round(float(x) * self.run.layers) if x.is_number else slice(ends.get(x))
            for x in r.args
        )
        return whole[at], [x for x in r.args if isinstance(x, Symbol) and x not in (t, s)]
