"""The clock of flows that no explicit rule takes: with noise, and to times far longer than the fastest rate.

The trapezoidal rule on steps that are even in x, ``t = x`` or ``t = tau (exp(x) - 1)``, is stable at any
step.  Its errors are even powers of the step in x, also where two-time functions have a kink at equal times,
as noise leaves them: the diagonal runs through nodes.  Output times need not be nodes; two-time functions are
smooth on either side of the diagonal, and read by polynomials on triangles of nodes at t >= s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import make_interp_spline

from numerics.results import dimensions
from numerics.solver.grid import Grid, trapezoid
from numerics.solver.implicit import RESOLVED

Array = NDArray[np.float64]

DEGREE = 7
"""Degree of the polynomials that read functions between nodes."""

UNEVEN = 8.0
"""Steps grow where output intervals differ by more than this factor."""

MOST = 1600
"""The most steps that a grid may have."""

CAUSAL = ("A", "B")
"""Functions of two times that vanish at s > t; others are symmetric."""

OTHERS = (("sample", "sample_"), ("channel", "channel_"))


class Trapezoidal:
    """Grids of ``first``, 3/2, 2, 3, 4, 6, ... times as many steps; they grow from times about ``tau`` on.

    >>> clock = Trapezoidal(np.array([0.0, 0.5, 2.0]), 1e-3, first=2)
    >>> [grid.nodes.round(3).tolist() for (_, grid), _ in zip(clock.grids(), range(2))]
    [[0.0, 1.0, 2.0], [0.0, 0.667, 1.333, 2.0]]
    """

    integrator, even, most = "trapezoidal, extrapolated", True, MOST + 1

    def __init__(self, times: Array, rtol: float, *, first: int, tau: float | None = None) -> None:
        gaps = np.diff(times)
        if tau is None and gaps.max() > UNEVEN * gaps.min():
            tau = float(times[1])
        self.first, self.tau, self.rtol = first, tau, rtol
        self.at = times if tau is None else np.log1p(times / tau)

    def grids(self) -> Iterator[tuple[float, Grid]]:
        """Pieces and grids; no output time is meant to be a node."""
        steps, more = self.first, self.first * 3 // 2
        while True:
            x = np.linspace(0.0, self.at[-1], steps + 1)
            nodes = x if self.tau is None else self.tau * np.expm1(x)
            yield float(steps), Grid(nodes, trapezoid(nodes), np.arange(0), 2)
            steps, more = more, 2 * steps

    def once(self, a: Array) -> Array:
        """A function of the time at nodes (first axis), read at the output times."""
        x = np.linspace(0.0, self.at[-1], len(a))
        degree = min(DEGREE, (len(a) - 1) // 2 * 2 - 1)
        return np.asarray(make_interp_spline(x, a, k=degree)(self.at))

    def log(self, a: Array) -> Array:
        """The logarithm of a positive function; what is left of nothing is not resolved, and some number."""
        return self.once(np.log(np.maximum(a, RESOLVED**2 * a[0])))

    def twice(self, a: Array) -> Array:
        """A function of t >= s at nodes (first two axes), read at the output times; zero at s > t.

        On the lattice ``(i + n - p, j + r)``, ``p + q + r = n``, in coordinates ``l_1 = i + n - t``,
        ``l_2 = (t - i) - (s - j)``, ``l_3 = s - j`` (in steps) Lagrange's polynomials are products of
        binomials ``C(l_1, p) C(l_2, q) C(l_3, r)``.
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
        found = np.zeros((len(u), len(u), *a.shape[2:]))
        found[later, earlier] = value
        return found

    def read(self, name: str, a: Array) -> Array:
        """A variable of the contract at nodes, read at the output times."""
        dims = dimensions(name, a.ndim)
        times = [k for k, x in enumerate(dims) if x in ("time", "time_")]
        front = np.moveaxis(a, times, range(len(times)))
        if len(times) == 1:
            return np.moveaxis(self.once(front), 0, times[0])
        value = self.twice(front)
        if name not in CAUSAL:
            rest = [x for x in dims if x not in ("time", "time_")]
            order = {one: other for pair in OTHERS for one, other in (pair, pair[::-1])}
            swapped = [rest.index(order[x]) if order.get(x) in rest else k for k, x in enumerate(rest)]
            mirror = value.transpose(1, 0, *(2 + k for k in swapped))
            below = np.tri(len(value), dtype=bool).reshape(*value.shape[:2], *(1,) * len(rest))
            value = np.where(below, value, mirror)
        return np.moveaxis(value, range(2), times)


def _binomials(x: Array, n: int) -> list[Array]:
    """``C(x, 0), ..., C(x, n)``."""
    found = [np.ones_like(x)]
    for k in range(n):
        found.append(found[-1] * (x - k) / (k + 1))
    return found
