"""Refinement of the time grid of a flow until its solution converges.

The input is a sequence of ever finer grids and a function that solves the flow on one grid. If the errors of
an integrator are a series in powers of ``step**p``, grids are extrapolated. This holds for the trapezoidal
rule with any kinks at nodes (p = 2), and for flows whose error jumps (p = 1). With ``T_j0`` the solution on
grid j, whose steps are shorter than those of the first grid by the factor n_j,

    T_jk = T_j,k-1 + (T_j,k-1 - T_j-1,k-1) / ((n_j / n_j-k)**p - 1)

has no errors of the first k powers. Otherwise the solution is that of the last grid. The march and sampled
paths use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Diverged, NotConverged
from numerics.names import RESPONSES
from numerics.results import dimensions
from numerics.solver.grid import ORDER, TimeGrid, flow_grid, trapezoid
from numerics.solver.linear.rows import RESOLVED

Array = NDArray[np.float64]
GridAnswer = TypeVar("GridAnswer")

PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of steps of the longest output interval, on successive grids."""

MAX_NODES = 2000
"""Largest number of time nodes of a flow; the cost of a march grows with their cube."""


SHRUNK = 0.9
"""Largest ratio of the longest step of an output interval to that on the grid before."""

NEAR = 16.0
"""Steps shorter than the longest one by more than this factor need not shrink: their errors are much
smaller."""

ATTEMPTS = 12
"""Number of times that too long steps are shortened before a grid is left out."""

DEGREE = 7
"""Degree of the polynomials that interpolate between nodes."""

UNEVEN = 8.0
"""Ratio of output intervals above which steps grow with time."""

MOST = 1600
"""Largest number of steps of a grid of the trapezoidal rule."""

OTHERS = (("sample", "sample_"), ("channel", "channel_"))
"""Names of the dimensions of a kernel that belong to its first and to its second time."""


class Attempt(NamedTuple, Generic[GridAnswer]):
    """Solution of a flow on one time grid.

    ``watched`` are the values whose convergence is tested, with output times along the first axis;
    ``found`` is the solution; ``residual`` is the largest residual of the equations of its steps, by
    default 0 for equations that are solved exactly.
    """

    watched: Array
    found: GridAnswer
    residual: float = 0.0


class GridSequence(Protocol):
    """Sequence of ever finer time grids of an integrator.

    ``power`` is p if errors are a series in powers of ``step**p``, so that grids are extrapolated, and 0 if
    they are not. ``stable`` states whether the integrator is stable at any length of its steps. ``rtol`` is
    the tolerance, ``most`` the largest number of nodes, and ``integrator`` the name for the notes of a
    result.
    """

    integrator: str
    stable: bool
    power: int
    most: int
    rtol: float

    def grids(self) -> Iterator[tuple[float, TimeGrid]]:
        """Yield pairs of a number and a grid, from coarse to fine.

        The number is inversely proportional to the length of the steps; only ratios of these numbers are
        used.
        """
        ...


class AdamsBashforth:
    """Grids of explicit Adams-Bashforth integration, with the output times among the nodes.

    Steps grow from a short first step by doubling, and become equal in each output interval. With ``jumps``,
    a jump of the error as a function of the output is replaced by a ramp whose width is proportional to the
    step. The integration then has order two, because of the kinks of the ramp, and results on several grids
    are extrapolated to step zero; their errors fall in proportion to the step. The second argument is
    ``rtol``, the accuracy that is asked for, which sets the order of the method without ``jumps``.
    :meth:`grids` yields each grid with a number that grows as its steps shrink.

    >>> [len(g.nodes) for (_, g), _ in zip(AdamsBashforth(np.array([0.0, 1.0]), 1e-3).grids(), range(3))]
    [10, 12, 13]
    """

    stable = False

    def __init__(self, times: Array, rtol: float, *, jumps: bool = False) -> None:
        self.times, self.rtol, self.most, self.power = times, rtol, MAX_NODES, int(jumps)
        self.order = 2 if jumps else ORDER if rtol >= 1e-7 else ORDER + 2
        widened = ", jumps widened by a step, extrapolated" if jumps else ""
        self.integrator = f"Adams-Bashforth, order {self.order}{widened}"

    def grids(self) -> Iterator[tuple[float, TimeGrid]]:
        """Yield pairs of a number and a grid, as :func:`shrinking_grids` yields the grids.

        With extrapolation the number is the inverse of the longest step, otherwise the product of the factors
        by which steps have shrunk (:func:`shrinkage`).
        """
        pieces, before = 1.0, None
        for grid in shrinking_grids(self.times, self.order):
            pieces *= 1.0 if before is None else shrinkage(before, grid)
            before = grid
            yield (1 / grid.step if self.power else pieces), grid


def shrinking_grids(times: Array, order: int) -> Iterator[TimeGrid]:
    """Yield ever finer time grids. From one grid to the next the steps of every output interval get shorter.

    ``times`` are increasing output times, the ends of the intervals; ``order`` is the order of the
    integrator. There is at most one grid for each number in PIECES, the number of steps in the longest
    interval. The error of an interval is estimated by the change from one grid to the next, and an interval
    that kept its nodes would have no estimate. An exception are intervals whose steps are shorter than the
    longest step of the grid by more than the factor NEAR: their steps may stay as they are.

    >>> grids = shrinking_grids(np.array([0.0, 1.0, 2.0]), 2)
    >>> [longest_steps(next(grids)).round(2).tolist() for _ in range(2)]
    [[0.5, 1.0], [0.25, 0.5]]
    """
    gaps = np.diff(times)
    before: Array | None = None
    for pieces in PIECES:
        most = np.full(len(gaps), gaps.max() / pieces)
        for _ in range(ATTEMPTS):
            grid = flow_grid(times, step=most, order=order)
            steps = longest_steps(grid)
            allowed = np.full(len(gaps), np.inf)
            if before is not None:
                allowed = before * min(SHRUNK, steps.max() / before.max() * (1 + 1e-9))
            too_long = (steps > allowed) & (steps >= steps.max() / NEAR)
            if not too_long.any():
                before = steps
                yield grid
                break
            most = np.where(too_long, np.minimum(allowed, SHRUNK * np.minimum(most, steps)), most)


def shrinkage(coarse: TimeGrid, fine: TimeGrid) -> float:
    """Return the factor by which steps are shorter on the finer of two grids, the smallest of all intervals.

    Compared are the longest steps of each output interval. Intervals whose steps are shorter than the longest
    step by more than the factor NEAR do not count. If the grids have different numbers of output times, or
    no output times among their nodes, the result is the ratio of the longest steps of both grids.
    """
    if len(coarse.outputs) != len(fine.outputs) or not len(fine.outputs):
        return coarse.step / fine.step
    coarse_steps, fine_steps = longest_steps(coarse), longest_steps(fine)
    return float(np.min((coarse_steps / fine_steps)[fine_steps >= fine_steps.max() / NEAR]))


def longest_steps(grid: TimeGrid) -> Array:
    """Return the length of the longest step in each output interval, shape (output times - 1,).

    >>> longest_steps(flow_grid([0.0, 1.0, 2.0], step=0.5))
    array([0.5, 0.5])
    """
    longest: Array = np.maximum.reduceat(np.diff(grid.nodes), grid.outputs[:-1])
    return longest


class Trapezoidal:
    """Grids of the trapezoidal rule for stiff flows, with equal steps in x.

    They serve flows with noise and times much longer than the inverse of the fastest rate, because the rule
    is stable at any step. Either ``t = x`` or ``t = tau (exp(x) - 1)``, so that steps grow at times beyond
    ``tau``. Without a given ``tau`` the second form is taken, with the first output time after 0 as ``tau``,
    if output intervals differ by more than the factor UNEVEN. Errors are even powers of the step in x, also
    for two-time functions with a kink at equal times, which noise causes, because the diagonal runs through
    nodes. Output times need not be nodes; two-time functions are smooth on either side of the diagonal, and
    are interpolated by polynomials on triangles of nodes at t >= s.

    Grids have ``first`` times 1, 3/2, 2, 3, 4, 6, ... steps.

    >>> sequence = Trapezoidal(np.array([0.0, 0.5, 2.0]), 1e-3, first=2)
    >>> [grid.nodes.round(3).tolist() for (_, grid), _ in zip(sequence.grids(), range(2))]
    [[0.0, 1.0, 2.0], [0.0, 0.667, 1.333, 2.0]]
    """

    integrator, power, most, stable = "trapezoidal, extrapolated", 2, MOST + 1, True

    def __init__(self, times: Array, rtol: float, *, first: int, tau: float | None = None) -> None:
        gaps = np.diff(times)
        if tau is None and gaps.max() > UNEVEN * gaps.min():
            tau = float(times[1])
        self.first, self.tau, self.rtol = first, tau, rtol
        self.at = times if tau is None else np.log1p(times / tau)

    def grids(self) -> Iterator[tuple[float, TimeGrid]]:
        """Yield pairs of a number of steps and a grid with these steps, ever finer and without end.

        Output times are not nodes in general.
        """
        steps, more = self.first, self.first * 3 // 2
        while True:
            x = np.linspace(0.0, self.at[-1], steps + 1)
            nodes = x if self.tau is None else self.tau * np.expm1(x)
            yield float(steps), TimeGrid(nodes, trapezoid(nodes), np.arange(0), 2)
            steps, more = more, 2 * steps

    def once(self, a: Array) -> Array:
        """Return a function at the output times, interpolated from its values at the nodes (first axis)."""
        from scipy.interpolate import make_interp_spline  # imported here because it is slow and seldom used

        x = np.linspace(0.0, self.at[-1], len(a))
        degree = min(DEGREE, (len(a) - 1) // 2 * 2 - 1)
        return np.asarray(make_interp_spline(x, a, k=degree)(self.at))

    def log(self, a: Array) -> Array:
        """Return the logarithm of a positive function at the output times, from its values at the nodes.

        Values below RESOLVED**2 times the value at time 0 are replaced by that bound.
        """
        return self.once(np.log(np.maximum(a, RESOLVED**2 * a[0])))

    def twice(self, a: Array) -> Array:
        """Return a function of t >= s at pairs of output times, from its values at nodes (first two axes).

        The result is zero at s > t. Times t and s are measured in steps. For each pair a polynomial of degree
        n is taken through a triangle of nodes ``(i + n - p, j + r)``, ``p + q + r = n``, whose corner (i, j)
        is chosen so that (t, s) is near its middle. With ``l_1 = i + n - t``, ``l_2 = (t - i) - (s - j)`` and
        ``l_3 = s - j``, Lagrange's polynomials are products of binomials ``C(l_1, p) C(l_2, q) C(l_3, r)``.
        """
        last = len(a) - 1
        n = min(DEGREE, last)
        u = self.at * (last / self.at[-1])
        later, earlier = np.tril_indices(len(u))
        t, s = u[later], u[earlier]
        i = np.clip(np.rint(t - 2 * n / 3), 0, last - n).astype(int)
        j = np.clip(np.rint(s - n / 3), 0, i).astype(int)
        one, two, three = (_binomials(x, n) for x in (i + n - t, (t - i) - (s - j), s - j))
        tail = (1,) * (a.ndim - 2)
        value = np.zeros((len(t), *a.shape[2:]))
        for p in range(n + 1):
            for r in range(n + 1 - p):
                weight = one[p] * two[n - p - r] * three[r]
                value += weight.reshape(-1, *tail) * a[i + n - p, j + r]
        triangle = np.zeros((len(u), len(u), *a.shape[2:]))
        triangle[later, earlier] = value
        return triangle

    def read(self, name: str, a: Array) -> Array:
        """Return the variable ``name`` of a result at the output times, from its values ``a`` at nodes.

        The axes of ``a`` are those of the variable in a result, with nodes in place of times. With two
        times, values at t >= s are interpolated. At s > t responses are zero, and other variables follow
        from the symmetry under exchange of both times with their samples and outputs.
        """
        dims = dimensions(name, a.ndim)
        times = [k for k, x in enumerate(dims) if x in ("time", "time_")]
        front = np.moveaxis(a, times, range(len(times)))
        if len(times) == 1:
            return np.moveaxis(self.once(front), 0, times[0])
        value = self.twice(front)
        if name not in RESPONSES:  # at s > t responses vanish, and other variables follow by symmetry
            axes = [x for x in dims if x not in ("time", "time_")]
            partner = dict(OTHERS) | {second: first for first, second in OTHERS}
            swapped = [axes.index(partner[x]) if partner.get(x) in axes else k for k, x in enumerate(axes)]
            mirror = value.transpose(1, 0, *(2 + k for k in swapped))
            below = np.tri(len(value), dtype=bool).reshape(*value.shape[:2], *(1,) * len(axes))
            value = np.where(below, value, mirror)
        return np.moveaxis(value, range(2), times)


@dataclass(frozen=True)
class Refined(Generic[GridAnswer]):
    """Converged solution of a flow: the finest grid, the solutions used in the extrapolation, and notes.

    ``answers`` are pairs of a number, inversely proportional to the step length, and the solution on that
    grid, the finest one last. Without extrapolation there is only the finest one. ``power`` is the p of the
    extrapolation.
    """

    grid: TimeGrid
    answers: list[tuple[float, GridAnswer]]
    notes: dict[str, Any]
    power: int

    @property
    def found(self) -> GridAnswer:
        """Solution on the finest grid."""
        return self.answers[-1][1]

    @property
    def parts(self) -> tuple[TimeGrid, GridAnswer, dict[str, Any]]:
        """The finest time grid, the solution on it, and the notes on the refinement, as a tuple."""
        return self.grid, self.found, self.notes

    def extrapolated(self, read: Callable[[GridAnswer], Mapping[str, Array]]) -> dict[str, Array]:
        """Return arrays by name, extrapolated over the grids; ``read`` returns them for one solution."""
        pieces = [p for p, _ in self.answers]
        columns = [dict(read(x)) for _, x in self.answers]
        for k in range(1, len(pieces)):
            columns = [
                {
                    n: _extrapolated_once(a, coarse[n], (pieces[j + k] / pieces[j]) ** self.power)
                    for n, a in fine.items()
                }
                for j, (coarse, fine) in enumerate(pairwise(columns))
            ]
        return columns[0]


def size_of_largest(value: Array) -> float:
    """Return the largest absolute value of the entries."""
    return float(np.max(np.abs(value)))


def refine(
    sequence: GridSequence,
    run: Callable[[TimeGrid], Attempt[GridAnswer]],
    *,
    size: Callable[[Array], float] = size_of_largest,
    change: Callable[[Array, Array], float] | None = None,
) -> Refined[GridAnswer]:
    """Call ``run`` on ever finer grids until the estimated error is at most the tolerance ``rtol``.

    ``sequence`` is the sequence of grids with the tolerance. The change of the watched values from one grid
    to the next is relative to ``size`` of the values at the output times, or computed by ``change(old,
    new)``. Without extrapolation the error estimate is the change divided by ``ratio**2 - 1``, with the ratio
    of step lengths. This is the error of a method of second order, and an upper bound for higher orders. With
    extrapolation the solution is that of the column of the table which changes least from one grid to the
    next, because the coarsest grid may be useless; in its first column the change itself is the estimate, in
    others it is divided, too. The largest residual of the equations of a step is added.

    If ``run`` raises Diverged on a grid, or NotConverged with extrapolation, this grid and those before are
    discarded; without extrapolation NotConverged is passed on. Raises
    :class:`~numerics.errors.NotConverged` if more than ``sequence.most`` nodes are needed.
    If no grid has a solution, the failure on the finest one is raised. The divergence of an integrator that
    is not stable at any step is raised as NotConverged too, because steps that are too long also cause it.
    """
    moved = change or (lambda old, new: size_of_largest(new - old) / (size(new) or 1.0))
    table: list[tuple[float, list[Array], GridAnswer]] = []
    estimate = np.inf
    failure: Diverged | NotConverged | None = None
    for pieces, grid in sequence.grids():
        if len(grid.nodes) > sequence.most:
            break
        try:
            new = run(grid)
        except Diverged as reason:
            # an explicit integrator may diverge if its step is too long: begin again with the next grid
            table, failure = [], reason
            continue
        except NotConverged as reason:
            if not sequence.power:
                raise
            table, failure = [], reason  # the iteration of a step converges only on finer grids
            continue
        row = [new.watched]
        if sequence.power:
            for k, (coarse, *_) in enumerate(reversed(table)):
                row.append(_extrapolated_once(row[k], table[-1][1][k], (pieces / coarse) ** sequence.power))
        if table:
            last, old, _ = table[-1]
            changes = [moved(a, b) for a, b in zip(old, row, strict=False)]
            best = int(np.argmin(changes))
            has_order = best > 0 or not sequence.power
            estimate = changes[best] / ((pieces / last) ** 2 - 1 if has_order else 1.0) + new.residual
            if estimate <= sequence.rtol:
                notes = {
                    "error_estimate": estimate,
                    "time_nodes": len(grid.nodes),
                    "integrator": sequence.integrator,
                }
                answers = [(p, x) for p, _, x in table[len(table) - best :]] + [(pieces, new.found)]
                return Refined(grid, answers, notes, sequence.power)
        table.append((pieces, row, new.found))
    if not table and failure is not None and not np.isfinite(estimate):
        if sequence.stable or isinstance(failure, NotConverged):
            raise failure
        raise NotConverged(
            f"the integrator diverges on every time grid of up to {sequence.most} nodes, because the flow "
            "is much faster than its longest steps, or because the flow itself diverges; use a shorter "
            "training.time"
        ) from failure
    error = f"is {estimate:.1e}" if np.isfinite(estimate) else "is not known yet"
    raise NotConverged(
        f"the flow needs more than {sequence.most} time nodes: the error estimate {error}, and solver.rtol "
        f"= {sequence.rtol:.1e}; use a larger rtol or a shorter training.time"
    )


def _extrapolated_once(fine: Array, coarse: Array, ratio: float) -> Array:
    """Return ``fine + (fine - coarse) / (ratio - 1)``, the extrapolation of the solutions on two grids.

    ``ratio`` is the error of the solution on the coarse grid divided by that on the fine grid.
    """
    value: Array = fine + (fine - coarse) / (ratio - 1)
    return value


def _binomials(x: Array, n: int) -> list[Array]:
    """Return the binomial coefficients ``C(x, 0), ..., C(x, n)`` for each entry of ``x``."""
    binomials = [np.ones_like(x)]
    for k in range(n):
        binomials.append(binomials[-1] * (x - k) / (k + 1))
    return binomials
