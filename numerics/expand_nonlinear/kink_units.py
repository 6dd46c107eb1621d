"""A unit at the kink on all its starts, the averages over its r and over the signs of the other samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gamma as gamma_function
from sympy import Add, Expr, Mul, Pow, Rational

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
        P = len(self.slopes)
        single = jump.name == "f"
        for own, e in jump.cases.items():
            first = [self.sample] if own[0] else [i for i in range(P) if i != self.sample]
            second = [self.sample] if own[-1] else [i for i in range(P) if i != self.sample]
            for i in first:
                for j in [0] if single else second:
                    for term in Add.make_args(e):
                        row, column = self.term(term, i, j)
                        value = (row * self.widths) @ column.T
                        total[:, i, :, j] += share * (value[:, :1] if single else value)

    def term(self, term: Expr, i: int, j: int) -> tuple[Array, Array]:
        """What depends on t, with all that is static, and what depends on s: (T or 1, intervals)."""
        T = len(self.slope)
        row, column = np.ones((T, len(self.x))), np.ones((T, len(self.x)))
        for factor in Mul.make_args(term):
            base, power = factor.as_base_exp() if isinstance(factor, Pow) else (factor, 1)
            if base.is_number:
                row = row * float(factor)
            elif base.has(s):
                column = column * self.value(base, i, j) ** int(power)
            else:
                row = row * self.value(base, i, j) ** int(power)
        return row, column

    def value(self, e: Expr, i: int, j: int) -> Array:
        """One field of the unit; mu is the sample i, alpha the sample j."""
        name, timed = str(e.func), e.has(t, s)
        sample = {mu: i, alpha: j, kappa: self.sample}.get(e.args[0])
        if name == "X":
            return self.x + self.V[:, self.sample]
        if name == "Xbar":
            return self.x + self.Vbar[:, self.sample]
        if name == "r":
            return np.array(self.r)
        if name == "phi":
            (inner,) = e.args
            return np.array(self.features[{mu: i, alpha: j}[inner.args[0]]])
        assert sample is not None, f"{e} is no field of a unit at the kink"
        if name in ("V", "Vbar"):
            return np.asarray((self.V if name == "V" else self.Vbar)[:, sample])
        assert name == "sigma", f"{e} is no field of a unit at the kink"
        if timed:
            return self.slope
        return self.start if sample == self.sample else np.array(self.slopes[sample])


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
