"""A unit at the kink on all its starts, the averages over its r and over the signs of the other samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gamma as gamma_function
from sympy import Add, Expr, Mul, Rational, Symbol

from derive.expansion.nonlinear.kinks import Jump, kappa
from derive.meanfield.jumps import Jumps
from derive.program import s, t
from derive.program.expressions import alpha, mu
from numerics.expand_nonlinear.statics import Array


@dataclass(frozen=True)
class Unit:
    """The unit at the kink of ``sample`` on intervals of starts: middles ``x``, and ``widths``.

    What is integrated is constant or linear on each, so that the middle is exact.
    """

    sample: int
    x: Array
    widths: Array
    slope: Array
    start: Array
    V: Array
    Vbar: Array
    slopes: Array
    features: Array
    r: float

    def add(self, total: Array, jump: Jump, share: float) -> None:
        """Add the jump's integral, for all observed samples, to ``total``."""
        P, single = len(self.slopes), jump.name == "f"
        others = [i for i in range(P) if i != self.sample]
        for own, e in jump.cases.items():
            first = [self.sample] if own[0] else others
            second = [0] if single else [self.sample] if own[-1] else others
            for number, early, late in read(e):
                for i in first:
                    for j in second:
                        row, column = self.factor(early, i, j), self.factor(late, i, j)
                        value = (row * self.widths) @ column.T
                        total[:, i, :, j] += share * number * (value[:, :1] if single else value)

    def factor(self, parts: tuple[Part, ...], i: int, j: int) -> Array:
        """A product of fields on all intervals, at all times; mu is the sample i, alpha the sample j."""
        found = np.ones((len(self.slope), len(self.x)))
        for name, who, timed, power in parts:
            sample = self.sample if who == kappa else i if who == mu else j
            found *= self.field(name, sample, timed) ** power
        return found

    def field(self, name: str, sample: int, timed: bool) -> Array:
        """A field of the unit.  Raises KeyError for an unknown one."""
        if name == "sigma" and sample == self.sample:
            return self.slope if timed else self.start
        if name in ("X", "V"):
            return np.asarray(self.V[:, sample] + (self.x if name == "X" else 0.0))
        if name in ("Xbar", "Vbar"):
            return np.asarray(self.Vbar[:, sample] + (self.x if name == "Xbar" else 0.0))
        static = {"sigma": self.slopes[sample], "phi": self.features[sample], "r": self.r}
        return np.asarray(static[name])


Part = tuple[str, Symbol, bool, int]
"""A field, its sample, whether it depends on time, and its power."""


@lru_cache(maxsize=64)
def read(e: Expr) -> list[tuple[float, tuple[Part, ...], tuple[Part, ...]]]:
    """A jump as a sum of products: a number, what stands at t or is static, what stands at s."""
    found = []
    for term in Add.make_args(e):
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


def step(power: int, sign: int) -> Jumps:
    """``x**power`` where x has this sign."""
    return {(power, 0, -1): Rational(1, 2), (power, 1, -1): Rational(sign, 2)}


@lru_cache(maxsize=1)
def half_normal() -> list[tuple[float, float]]:
    """Gauss' rule with two nodes for positive r with the normal weight, exact for powers up to 3.

    X is homogeneous of degree one in its start and r: integrals over the start are powers of r up to 3.

    >>> print(f"{sum(w * r**3 for r, w in half_normal()) * np.sqrt(2 * np.pi):.9f}")
    2.000000000
    """
    m = [2 ** ((k - 1) / 2) * gamma_function((k + 1) / 2) / np.sqrt(2 * np.pi) for k in range(4)]
    low, high = np.linalg.solve([[m[0], m[1]], [m[1], m[2]]], [-m[2], -m[3]])
    nodes = np.sort(np.roots([1.0, high, low]).real)
    weights = np.linalg.solve(np.stack([np.ones(2), nodes]), np.array(m[:2]))
    return list(zip(nodes.tolist(), weights.tolist(), strict=True))


__all__ = ["Unit", "half_normal", "step"]
