"""Power series of operators whose coefficients are computed when asked for, as arrays.

The coefficient of order n of a product needs those of its factors up to n.  An inverse ``(1 - M)^-1`` applied
to something needs itself at lower orders only, since M starts at order one or later.  Each coefficient is
computed once.  None stands for zero.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Expr, Indexed, Mul, Pow
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.calculus.symbols import gamma0
from numerics.expansion.operators import Dense, Separable, Value, product

Array = NDArray[np.float64]
Multiply = Callable[[Value, Value], Value]

KEPT = 1e-16
"""Singular values of a sum of separable operators below this share of the largest are rounding."""
RANK = 32
"""Sums of smaller rank are left as they are."""


class Stream:
    """A power series by the rule of its coefficients."""

    def __init__(self, rule: Callable[[int], Value | None]) -> None:
        self.rule = rule
        self.known: dict[int, Value | None] = {}

    def at(self, n: int) -> Value | None:
        """The coefficient of order n."""
        if n < 0:
            return None
        if n not in self.known:
            self.known[n] = self.rule(n)
        return self.known[n]


class Algebra:
    """Turns operator expressions into series; ``known`` gives that of an indexed operator.

    ``number`` evaluates constants, ``is_correlation`` tells operators of low rank from causal ones, and
    ``multiply`` is the product of two operators.
    """

    def __init__(
        self,
        known: Callable[[Indexed], Stream],
        number: Callable[[Expr], float],
        is_correlation: Callable[[Expr], bool],
        multiply: Multiply = product,
    ) -> None:
        self.known, self.number, self.multiply = known, number, multiply
        self.is_correlation = is_correlation
        self.streams: list[Stream] = []

    def new(self, rule: Callable[[int], Value | None]) -> Stream:
        """A series that is forgotten by :meth:`forget`."""
        found = Stream(rule)
        self.streams.append(found)
        return found

    def forget(self, n: int) -> None:
        """Drop what was computed from order n on, because something it was made of has changed."""
        for x in self.streams:
            x.known = {k: v for k, v in x.known.items() if k < n}

    def series(self, e: Expr) -> Stream:
        """The series of an expression that contains an operator in each addend."""
        if isinstance(e, Indexed):
            return self.known(e)
        if isinstance(e, Transpose):
            return self.transposed(self.series(e.args[0]))
        if isinstance(e, Add):
            return self.sum([self.series(x) for x in e.args])
        if e.is_Symbol and not e.is_commutative:
            return self.known(e)
        numbers, factors = e.args_cnc()
        # start with what is in the middle: it is of low rank, and everything else acts on it
        start = next((k for k, x in enumerate(factors) if self.is_separable(x)), len(factors) - 1)
        found = self.series(factors[start])
        for x in reversed(factors[:start]):
            found = self.applied(x, found)
        if factors[start + 1 :]:
            found = self.transposed(found)
            for x in factors[start + 1 :]:
                found = self.applied(flipped(x), found)
            found = self.transposed(found)
        return self.scaled(Mul(*numbers), found)

    def transposed(self, x: Stream) -> Stream:
        """The series of the transposes."""

        def rule(n: int) -> Value | None:
            value = x.at(n)
            return None if value is None else value.transpose()

        return self.new(rule)

    def is_separable(self, e: Expr) -> bool:
        """Is ``e`` a correlation, or a sum of words around one?"""
        if isinstance(e, Add):
            return all(any(self.is_separable(x) for x in part.args_cnc()[1]) for part in e.args)
        return not isinstance(e, Pow | Transpose) and self.is_correlation(e)

    def applied(self, e: Expr, x: Stream) -> Stream:
        """The series of ``e`` times ``x``."""
        if isinstance(e, Add):
            return self.sum([self.applied(part, x) for part in e.args])
        if e.is_commutative:
            return self.scaled(e, x)
        if isinstance(e, Mul):
            numbers, factors = e.args_cnc()
            for f in reversed(factors):
                x = self.applied(f, x)
            return self.scaled(Mul(*numbers), x)
        if isinstance(e, Pow):
            if e.exp != -1:
                raise NotImplementedError(f"{e}: only inverses of series that start with 1")
            return self.resolved((1 - e.base).expand(), x)
        operator = self.series(e)
        return self.new(lambda n: self.convolution(operator, x, n))

    def resolved(self, loop: Expr, x: Stream) -> Stream:
        """``(1 - loop)^-1 x``, that is y with ``y = x + loop y``."""
        found = self.new(lambda n: add(x.at(n), again.at(n)))
        again = self.applied(loop, found)
        return found

    def scaled(self, factor: Expr, x: Stream) -> Stream:
        """A number times a power of gamma0, times a series."""
        number, power = factor.as_coeff_exponent(gamma0)
        value = self.number(number)
        if (power, value) == (0, 1.0):
            return x

        def rule(n: int) -> Value | None:
            found = x.at(n - int(power))
            return None if found is None else times(value, found)

        return self.new(rule)

    def sum(self, xs: list[Stream]) -> Stream:
        """The sum of series."""
        return self.new(lambda n: add(*[x.at(n) for x in xs]))

    def convolution(self, a: Stream, b: Stream, n: int) -> Value | None:
        """Order n of a product."""
        found = []
        for k in range(n + 1):
            right = b.at(n - k)
            if right is not None and (left := a.at(k)) is not None:
                found.append(self.multiply(left, right))
        return add(*found)


def flipped(e: Expr) -> Expr:
    """The transpose of a product, sum or inverse of operators."""
    if isinstance(e, Transpose):
        return e.args[0]
    if isinstance(e, Add):
        return Add(*[flipped(x) for x in e.args])
    if isinstance(e, Mul):
        numbers, factors = e.args_cnc()
        return Mul(*numbers, *[flipped(x) for x in reversed(factors)])
    if isinstance(e, Pow) and not e.is_commutative:
        return Pow(flipped(e.base), e.exp)
    return e if e.is_commutative else Transpose(e)


def times(number: float, a: Value) -> Value:
    """A multiple of an operator."""
    return Dense(number * a.block) if isinstance(a, Dense) else Separable(a.left, number * a.core, a.right)


def add(*xs: Value | None) -> Value | None:
    """The sum of operators of one kind; None counts as zero."""
    found = [x for x in xs if x is not None]
    if len(found) < 2:
        return found[0] if found else None
    if all(isinstance(x, Dense) for x in found):
        total = found[0].block.copy()  # type: ignore[union-attr]
        for x in found[1:]:
            total += x.block  # type: ignore[union-attr]
        return Dense(total)
    if not all(isinstance(x, Separable) for x in found):
        raise TypeError("a causal operator and a correlation do not add up")
    parts = [x for x in found if isinstance(x, Separable)]
    core = np.zeros((sum(x.core.shape[0] for x in parts), sum(x.core.shape[1] for x in parts)))
    i = j = 0
    for x in parts:
        core[i : i + x.core.shape[0], j : j + x.core.shape[1]] = x.core
        i, j = i + x.core.shape[0], j + x.core.shape[1]
    left = np.concatenate([x.left for x in parts], axis=2)
    right = np.concatenate([x.right for x in parts], axis=2)
    return compressed(Separable(left, core, right))


def compressed(a: Separable) -> Separable:
    """The same operator with as few columns as it takes, rounding errors of its largest entries apart."""
    if max(a.core.shape) <= RANK:
        return a
    (T, n, k), (S, m, j) = a.left.shape, a.right.shape
    q, r = np.linalg.qr(a.left.reshape(-1, k))
    p, s = np.linalg.qr(a.right.reshape(-1, j))
    u, sigma, v = np.linalg.svd(r @ a.core @ s.T, full_matrices=False)
    rank = max(1, int(np.sum(sigma > KEPT * sigma[0])))
    left = (q @ u[:, :rank]).reshape(T, n, rank)
    right = (p @ v[:rank].T).reshape(S, m, rank)
    return Separable(left, np.diag(sigma[:rank]), right)


__all__ = ["Algebra", "Stream", "add", "compressed", "flipped", "times"]
