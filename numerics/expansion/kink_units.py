"""Units at the kink on all their starts, for many of their sources at once.

A unit's place is its start plus what its source and its own past slopes add, so that the line of starts falls
into intervals on which all slopes agree: integrals over it are exact sums.  What is integrated is homogeneous
in the start and the sources: of these only directions are needed, the radius is integrated in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import gammaln
from sympy import Add, Expr, Mul, Symbol, lambdify

from derive.calculus.symbols import alpha, mu
from derive.expansion.nonlinear.kinks import Cases, Jump, KinkExpansion, kappa, x, xi
from derive.expansion.nonlinear.trees import ROW
from derive.program import s, t
from numerics.expansion.statics import Array, Statics, contracted
from numerics.expansion.trees import NOW, PAST, Index


class Motion:
    """What derive found of a unit in one layer, as arrays and functions.

    ``push`` (P, P, T, T) is what slopes at earlier times do,
    ``[h_i - u_i]_1(t) = sum_b sum_s push(i, b, t, s) slope_b(s) r_b``; ``place(x, xi)`` is where the unit is
    besides, ``side`` its slope at a place, and ``phi`` the activation.
    """

    def __init__(
        self, series: KinkExpansion, statics: Statics, layer: int, weight: Array, error: Array
    ) -> None:
        T, P = error.shape
        self.push = np.zeros((P, P, T, T))
        for p, c in series.motion.items():
            root, node = p.nodes
            assert (root.phi, root.r, node.phi, node.r) == ((), 0, (1,), 1), "linear in one slope and its r"
            known = [(statics.value(y.tensor, layer + y.shift), list(y.samples)) for y in p.statics]
            parts = [*known, (weight, [NOW, PAST]), (error, [PAST, node.sample])]
            self.push += float(c) * contracted([ROW, node.sample, NOW, PAST], *parts)
        z = Symbol("z", real=True)
        self.place = lambdify((x, xi(t)), series.place)
        self.side = lambdify(z, series.side(z))
        self.phi = lambdify(z, series.bulk.activation(z))


@dataclass(frozen=True)
class Sources:
    """What the units of one sign pattern have: one column for each direction.

    ``slopes``, ``features`` and ``upsilon`` (P,) belong to the samples; ``r`` and ``rho`` are (P, N), ``xi``
    is (T, N); ``dimension`` is that of the Gaussian vector, here of length one, of which they are functions.
    """

    slopes: Array
    features: Array
    upsilon: Array
    r: Array
    rho: Array
    xi: Array
    dimension: int


@dataclass(frozen=True)
class Units:
    """Units at the kink of ``sample`` on intervals of starts: middles ``x``, ``widths``, their ``column``.

    What is integrated is constant or linear on each, so that the middle is exact.  ``slope`` is
    (T, intervals), ``start`` that of the start, ``low`` and ``high`` the times whose crossings bound them
    (-1: none).
    """

    sample: int
    sources: Sources
    x: Array
    widths: Array
    column: Index
    slope: Array
    start: Array
    low: Index
    high: Index
    motion: Motion

    def add(self, total: Array, jump: Jump, share: float) -> None:
        """Add the jump's integral, for all observed samples, to ``total``, (T, P, T or 1, P or 1)."""
        self._add(total, jump.cases, share, self.widths)
        if jump.after:
            self._add(total, jump.after, share, None)

    def _add(self, total: Array, cases: Cases, share: float, widths: Array | None) -> None:
        others = [i for i in range(len(self.sources.slopes)) if i != self.sample]
        T = len(self.slope)
        dx = np.ones(self.sources.r.shape[1]) if widths is None else widths
        for own, e in cases.items():
            first = [self.sample] if own[0] else others
            second = [0] if len(own) == 1 else [self.sample] if own[-1] else others
            for number, early, late in read(e):
                degree = sum(power for name, _, _, power in early + late if name in LINEAR)
                scale = radius(self.sources.dimension, degree + (widths is not None))
                scale *= share * number / self.sources.r.shape[1]
                for i in first:
                    for j in second:
                        left = self.factor(early, i, j, widths is None)
                        right = self.factor(late, i, j, widths is None)
                        if total.shape[2] == 1:
                            value = (left * right) @ dx
                            total[:, i, 0, j] += scale * np.broadcast_to(value, (T,))
                        else:
                            total[:, i, :, j] += scale * np.broadcast_to((left * dx) @ right.T, (T, T))

    def turning(self, jump: Jump) -> Array:
        """The integral of a jump linear in ``turned``, (T, T): an edge moves against a push at its time."""
        times = np.arange(len(self.slope))[:, None]
        edges = (times == self.low).astype(float) - (times == self.high)
        total = np.zeros((len(self.slope), len(self.slope)))
        for number, early, late in (y for e in jump.cases.values() for y in read(e)):
            parts = tuple(y for y in early + late if y[0] != "turned")
            degree = sum(power for name, _, _, power in parts if name in LINEAR)
            share = number * radius(self.sources.dimension, degree) / self.sources.r.shape[1]
            total += (self.slope * self.factor(parts, self.sample, self.sample, False)) @ edges.T * share
        return total

    # -- fields ----------------------------------------------------------------------------------------

    def factor(self, parts: tuple[Part, ...], i: int, j: int, columns: bool) -> Array:
        """A product of fields at all times, (T or 1, intervals or columns); mu is i and alpha is j."""
        found = np.ones((1, 1))
        for name, who, timed, power in parts:
            sample = self.sample if who == kappa else i if who == mu else j
            field = self.source(name, sample) if columns else self.field(name, sample, timed)
            found = found * field**power
        size = self.sources.r.shape[1] if columns else len(self.x)
        return np.broadcast_to(found, (len(found), size))

    def source(self, name: str, sample: int) -> Array:
        """A field that does not depend on the start, (T or 1, columns or 1).  Raises KeyError for another."""
        own = self.sources
        if name in ("r", "rho"):
            return np.asarray(getattr(own, name)[None, sample])
        if name == "xi":
            return own.xi
        static = {"sigma": own.slopes, "phi": own.features, "upsilon": own.upsilon}
        return np.full((1, 1), static[name][sample])

    def field(self, name: str, sample: int, timed: bool) -> Array:
        """A field of the unit, (T or 1, intervals or 1).  Raises KeyError for an unknown one."""
        if name == "sigma" and sample == self.sample:
            return self.slope if timed else self.start[None]
        if name in ("X", "Xbar"):
            own = self.motion.place(self.x, self.sources.xi[:, self.column])
            return np.asarray(self.moved(self.sample, name == "X") + own)
        if name in ("V", "Vbar"):
            return self.moved(sample, name == "V")
        found = self.source(name, sample)
        return found if found.shape[1] == 1 else found[:, self.column]

    def moved(self, sample: int, followed: bool) -> Array:
        """``[h - u]_1`` of a sample: what the others' slopes add, and what its own do."""
        if (sample, followed) not in self.found:
            push, r = self.motion.push[sample, self.sample], self.sources.r[self.sample, self.column]
            own = push @ self.slope if followed else push.sum(axis=1)[:, None] * self.start
            self.found[sample, followed] = self.pushes[sample][:, self.column] + own * r
        return np.asarray(self.found[sample, followed])

    @cached_property
    def found(self) -> dict[tuple[int, bool], Array]:
        """What was asked for once."""
        return {}

    @cached_property
    def pushes(self) -> Array:
        """What the slopes at the other samples add, (P, T, columns)."""
        return pushes(self.sample, self.sources, self.motion)


def pushes(k: int, sources: Sources, motion: Motion) -> Array:
    """``[h_i - u_i]_1`` that comes from the slopes at the samples but k, which rest: (P, T, columns)."""
    others = np.array([i != k for i in range(len(sources.slopes))])
    return np.asarray(np.einsum("ibt,b,bn->itn", motion.push.sum(axis=3), sources.slopes * others, sources.r))


def follow(k: int, sources: Sources, motion: Motion) -> Units:
    """Follow units of all starts: intervals of starts, split where a place is zero."""
    own, N = motion.push[k, k], sources.r.shape[1]
    T = len(own)
    given = pushes(k, sources, motion)[k] + motion.place(0.0, sources.xi)
    steepest = np.abs(motion.side(np.array([-1.0, 1.0]))).max()
    reach = np.abs(given).max(axis=0) + np.abs(own).sum(axis=1).max() * steepest * np.abs(sources.r[k])
    reach = 1.001 * reach + 1e-300
    zero = np.zeros(N)
    low, high = np.concatenate([-reach, zero]), np.concatenate([zero, reach])
    column = np.tile(np.arange(N), 2)
    none, first = np.full(N, -1), np.zeros(N, dtype=int)
    early, late = np.concatenate([none, first]), np.concatenate([first, none])
    on = np.zeros((0, 2 * N))
    for now in range(T):
        moved = given[now, column] + own[now, :now] @ on * sources.r[k, column]
        cut = (low < -moved) & (-moved < high)
        at = -moved[cut]
        low, high = np.concatenate([low, at]), np.concatenate([np.where(cut, -moved, high), high[cut]])
        early, late = (
            np.concatenate([early, np.full(len(at), now)]),
            np.concatenate([np.where(cut, now, late), late[cut]]),
        )
        on, moved, column = (np.concatenate([a, a[..., cut]], axis=-1) for a in (on, moved, column))
        on = np.concatenate([on, motion.side((low + high) / 2 + moved)[None]])
    middle = (low + high) / 2
    start = motion.side(middle)
    return Units(k, sources, middle, high - low, column, on, start, early, late, motion)


Part = tuple[str, Symbol, bool, int]
"""A field, its sample, whether it depends on time, and its power."""

LINEAR = ("X", "Xbar", "V", "Vbar", "xi", "r", "rho")
"""Fields that are homogeneous of degree one in the start and the sources."""


@lru_cache(maxsize=64)
def read(e: Expr) -> list[tuple[float, tuple[Part, ...], tuple[Part, ...]]]:
    """A jump as a sum of products: a number, what stands at t or is static, what stands at s."""
    found = []
    for term in Add.make_args(e.expand()):
        number, rest = term.as_coeff_Mul()
        early: list[Part] = []
        late: list[Part] = []
        for factor in Mul.make_args(rest):
            base, power = factor.as_base_exp()
            who = next((x for x in (mu, alpha, kappa) if base.has(x)), kappa)
            part = (str(base.func), who, base.has(t, s), int(power))
            (late if base.has(s) else early).append(part)
        found.append((float(number), tuple(early), tuple(late)))
    return found


def radius(dimension: int, power: int) -> float:
    """The mean of a power of the length of a standard normal vector.

    >>> print(f"{radius(3, 2):.12f}")
    3.000000000000
    """
    return float(2 ** (power / 2) * np.exp(gammaln((dimension + power) / 2) - gammaln(dimension / 2)))


__all__ = ["Motion", "Sources", "Units", "follow", "pushes", "radius"]
