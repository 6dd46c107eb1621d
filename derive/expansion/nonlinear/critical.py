"""How coefficients depend on the layer and the depth where the variance decays: powers of both.

For an odd phi with slope 1 that bends down at zero (tanh, sin), the variance of one sample falls as
``q(ell) = 1/(mu ell)``, from ``<phi^2> = q - mu q^2 + ..``, whatever it is at first.  Averages become powers
of ell, multipliers ``1 - r/ell``, and the recursions over layers differential equations; for large ell and L
every tensor is a sum of ``c ell^a L^b`` of one degree ``a + b``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import factorial
from typing import Any

from sympy import Add, Expr, Lambda, Rational, S, sympify

from derive.errors import NotApplicable
from derive.expansion.nonlinear.depth import Orders, Product, in_order, tangent_products, wanted
from derive.expansion.nonlinear.expansion import NonlinearExpansion
from derive.expansion.nonlinear.fields import PAIR, Forest
from derive.expansion.nonlinear.trees import Tensor, oriented
from derive.program.words import L, ell

TERMS = 8
"""Powers of the variance to which averages are expanded."""

Power = tuple[Rational, Rational]
Powers = dict[Power, Any]
"""The coefficient of each ``ell^a L^b``."""


@dataclass(frozen=True)
class Leading:
    """Terms of the highest degree, and the degree (up to logarithms) from which on nothing is known."""

    terms: Powers
    beyond: Rational

    @property
    def degree(self) -> Rational:
        """The highest degree that there may be."""
        return max((i + j for i, j in self.terms), default=self.beyond)

    def times(self, other: Leading) -> Leading:
        """A product."""
        terms = _plus(
            *[
                {(i + k, j + m): c * d}
                for (i, j), c in self.terms.items()
                for (k, m), d in other.terms.items()
            ]
        )
        return Leading(terms, max(self.degree + other.beyond, self.beyond + other.degree))

    def plus(self, other: Leading) -> Leading:
        """A sum; where the leading terms cancel, what is left of it is not known."""
        beyond = max(self.beyond, other.beyond)
        terms = {k: c for k, c in _plus(self.terms, other.terms).items() if k[0] + k[1] > beyond}
        top = max((i + j for i, j in terms), default=beyond)
        return Leading(
            {k: c for k, c in terms.items() if k[0] + k[1] == top}, max(beyond, top - 1) if terms else beyond
        )


class AtCriticality:
    """Leading powers of ell and L of all tensors of one sample, for phi given.

    Raises :class:`NotApplicable` for a phi whose variance does not fall as 1/ell, and where a leading power
    depends on the first layers.

    >>> from sympy import tanh
    >>> from derive.expansion.nonlinear import expand_nonlinear
    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> law = AtCriticality(expand_nonlinear(mean_field(mlp(L, tanh)), 0))
    >>> [law.expression(Tensor(name, 0, PAIR)) for name in ("Phi", "G")]
    [1/(2*ell), ell/L]
    """

    def __init__(self, expansion: NonlinearExpansion, names: tuple[str, ...] = ("Phi", "G")) -> None:
        self.expansion, self.phi = expansion, expansion.activation
        x = self.phi.variables[0]
        if self.phi.expr.subs(x, -x) != -self.phi.expr or self.phi.expr.diff(x).subs(x, 0) != 1:
            raise NotApplicable(f"phi = {self.phi.expr}: must be odd with slope 1 at zero")
        variance = self.moment((0, 0))
        self.mu = -variance.get(2, S.Zero)
        if variance.get(1) != 1 or not self.mu.is_positive:
            raise NotApplicable(
                f"the variance of {self.phi.expr} does not fall as 1/ell: <phi^2> = {variance}"
            )
        self.laws = wanted(expansion, names)
        self.found: dict[Tensor, Leading] = {}
        for t in in_order(self.laws):
            self.found[t] = self.solved(t, self.laws[t])

    @cache  # noqa: B019
    def moment(self, orders: Orders) -> dict[int, Any]:
        """The average of a product of derivatives of phi, as a series in the variance."""
        return _gaussian_series(self.phi, orders)

    def average(self, orders: Orders) -> Leading:
        """Its leading term, with the variance 1/(mu ell)."""
        k = min(self.moment(orders))
        return Leading({(Rational(-k), S.Zero): self.moment(orders)[k] / self.mu**k}, Rational(-k - 1))

    def solved(self, tensor: Tensor, law: list[Product]) -> Leading:
        """The leading part of the solution of a recursion over layers."""
        if (tensor.name, tensor.order) == ("Phi", 0):
            return Leading({(Rational(-1), S.Zero): 1 / self.mu}, Rational(-2))
        step, multiplier, rate = 0, S.Zero, S.Zero
        parts: list[Leading] = []
        for y in law:
            own = [k for t, k in y.tensors if t == tensor]
            if own:
                step = own[0]
                (orders, _), *_ = y.averages
                series = self.moment(orders)
                multiplier += y.coefficient * series.get(0, S.Zero)
                rate -= y.coefficient * series.get(1, S.Zero) / self.mu
                continue
            parts.append(self.product(y))
        known = _sum(parts) if parts else Leading({}, Rational(-(10**6)))
        if step == 0:
            return known
        if multiplier != 1:
            raise NotApplicable(f"the recursion of {tensor.name} does not tend to a sum")
        return self.forward(known, rate) if step == -1 else self.backward(tensor, known, rate)

    def product(self, y: Product) -> Leading:
        """A term of a law."""
        value = Leading({(S.Zero, S.Zero): y.coefficient}, Rational(-(10**6)))
        for orders, _ in y.averages:
            value = value.times(self.average(orders))
        for t, _ in y.tensors:
            value = value.times(self.found[t])
        return value

    def forward(self, known: Leading, rate: Any) -> Leading:
        """``X' = -rate X/ell + known``; what the first layers leave falls as ``ell^-rate``."""
        out: Powers = {}
        for (a, b), c in known.terms.items():
            if (a + 1 + rate).is_nonpositive:
                raise NotApplicable(f"a sum of ell^{a} with the rate {rate} depends on the first layers")
            out = _plus(out, {(a + 1, b): c / (a + 1 + rate)})
        return Leading(out, known.beyond + 1)

    def backward(self, tensor: Tensor, known: Leading, rate: Any) -> Leading:
        """``X' = rate X/ell - known`` with X given beyond the last layer."""
        parts = []
        base = self.expansion.site.bases.get((tensor.name, L + 1))
        if base is not None and tensor.order == 0 and tensor.shape == PAIR:
            parts.append(Leading({(rate, -rate): sympify(base)}, Rational(-1)))
        out: Powers = {}
        for (a, b), c in known.terms.items():
            if a + 1 == rate:
                raise NotApplicable(f"a sum of ell^{a} from the last layer has a logarithm")
            w = c / (a + 1 - rate)
            out = _plus(out, {(rate, b + a + 1 - rate): w}, {(a + 1, b): -w})
        if out or not parts:
            parts.append(Leading(out, known.beyond + 1))
        return _sum(parts)

    def tangent(self, n: int, shape: Forest = PAIR) -> Expr:
        """The leading part of what multiplies the forest ``shape`` in the tangent kernel at order n."""
        return _expression(_sum([_summed(x) for x in self.tangent_terms(n, shape)]))

    def tangent_terms(self, n: int, shape: Forest) -> list[Leading]:
        """The sum over layers; the terms at the ends are of lower degree."""
        found = []
        for factors in tangent_products(self.expansion):
            for k in range(len(factors) if n else 1):
                value = Leading({(S.Zero, S.Zero): S.One}, Rational(-(10**6)))
                for i, name in enumerate(factors):
                    order = n if i == k else 0
                    value = value.times(
                        self.found[oriented(Tensor(name, order, shape if order else PAIR))[0]]
                    )
                found.append(value)
        return found

    def expression(self, tensor: Tensor) -> Expr:
        """A tensor's leading power law in ell and L.

        Raises :class:`NotApplicable` where the leading powers cancel.
        """
        return _expression(self.found[tensor])


def _expression(x: Leading) -> Expr:
    if not x.terms:
        raise NotApplicable(f"the leading powers cancel: it is of a degree below {x.beyond + 1} in ell and L")
    return Add(*[c * ell**a * L**b for (a, b), c in x.terms.items()])


def _sum(parts: list[Leading]) -> Leading:
    total = parts[0]
    for x in parts[1:]:
        total = total.plus(x)
    return total


def _summed(x: Leading) -> Leading:
    """The sum over all layers."""
    if any((a + 1).is_nonpositive for a, _ in x.terms):
        raise NotApplicable("a sum over layers depends on the first ones")
    return Leading(
        _plus(*[{(S.Zero, a + b + 1): c / (a + 1)} for (a, b), c in x.terms.items()]), x.beyond + 1
    )


def _plus(*parts: Powers) -> Powers:
    out: Powers = {}
    for part in parts:
        for k, c in part.items():
            out[k] = out.get(k, S.Zero) + c
    return {k: c for k, c in out.items() if c != 0}


@lru_cache(maxsize=1024)
def _gaussian_series(phi: Lambda, orders: Orders) -> dict[int, Any]:
    """``<prod phi^(a)(u)>`` in powers of the variance of u.

    >>> from sympy import tanh
    >>> from sympy.abc import x
    >>> dict(list(_gaussian_series(Lambda(x, tanh(x)), (1, 1)).items())[:2])
    {0: 1, 1: -2}
    """
    taylor = _taylor(phi)
    product: dict[int, Any] = {0: S.One}
    for a in orders:
        factor = {k - a: c * factorial(k) / factorial(k - a) for k, c in taylor.items() if k >= a}
        new: dict[int, Any] = {}
        for i, c in product.items():
            for j, d in factor.items():
                if i + j <= 2 * TERMS:
                    new[i + j] = new.get(i + j, S.Zero) + c * d
        product = new
    moments = {
        k // 2: c * factorial(k) / (2 ** (k // 2) * factorial(k // 2))
        for k, c in product.items()
        if k % 2 == 0
    }
    # derivatives of the highest order have fewer known terms
    return {k: c for k, c in sorted(moments.items()) if c != 0 and k <= TERMS - 4}


@lru_cache(maxsize=64)
def _taylor(phi: Lambda) -> dict[int, Any]:
    x = phi.variables[0]
    series = phi.expr.series(x, 0, 2 * TERMS + 2).removeO()
    return {k: series.coeff(x, k) for k in range(2 * TERMS + 2) if series.coeff(x, k) != 0}


__all__ = ["AtCriticality"]
