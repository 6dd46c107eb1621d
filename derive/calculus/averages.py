"""Averages over a single-site process as unevaluated SymPy expressions.

They print folded; ``.doit()`` unfolds them by linearity.  What needs a theory is said there: its equations
put in (:func:`derive.theory.unfold.unfold`), Stein's lemma over its sources and Gaussian integrals of them
(:mod:`derive.theory.sources`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sympy import Add, Expr, Integral, Mul, Pow, S, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.responses import Response, carried_out
from derive.calculus.sums import apart, bound

Names = Iterable[str] | None


class Average(Expr):
    """``<x>``: the mean of ``x`` over the single-site process of the population that its fields live on.

    Substitution acts inside, and so does differentiation: with respect to a plain symbol it is the
    derivative of what is written, not of how the fields inside depend on it.

    >>> from sympy.abc import a, t, s
    >>> from sympy import Function
    >>> h, phi, r = (Function(n) for n in ("h", "phi", "r"))
    >>> Average(h(t) * h(s))
    <h(s)*h(t)>
    >>> Average(phi(a * h(t))).diff(a)
    <h(t)*Subs(Derivative(phi(_xi_1), _xi_1), _xi_1, a*h(t))>
    >>> Average(2 * a * Response(phi(h(t)), r(s)) + 1).doit()
    2*a*<Derivative(phi(h(t)), h(t))*d h(t) / d r(s)> + 1
    """

    is_commutative = True
    is_averaged = True

    def __new__(cls, body: Any) -> Average:
        node: Average = Expr.__new__(cls, sympify(body))
        return node

    @property
    def body(self) -> Expr:
        """What is averaged."""
        return self.args[0]

    def doit(self, **hints: Any) -> Expr:
        """Carry out derivatives, and the chain rule of responses inside; then linearity: see :meth:`linear`.

        ``random`` names the fields; without it every applied undefined function is random, so that only
        numbers, plain symbols, sums, integrals and averages come out.  Other hints go to
        :meth:`Response.doit`.
        """
        return Average(carried_out(self.body, **hints)).linear(hints.get("random"))

    def linear(self, random: Names = None) -> Expr:
        """Expand by linearity; functions not named in ``random`` are deterministic and come out.

        >>> from sympy.abc import t
        >>> from sympy import Function
        >>> Average(2 * Function("y")(t) * Function("h")(t)).linear(frozenset({"h"}))
        2*y(t)*<h(t)>
        """
        return _linear(self.body.expand(), None if random is None else frozenset(map(str, random)))

    def _eval_derivative(self, x: Expr) -> Expr:
        body = self.body.diff(x)
        return S.Zero if body == 0 else Average(body)

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\left\langle {printer._print(self.body)} \right\rangle"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"<{printer._print(self.body)}>"


def _linear(body: Expr, random: frozenset[str] | None) -> Expr:
    if isinstance(body, Add):
        return Add(*[_linear(x, random) for x in body.args])
    if isinstance(body, Sum | Integral):
        return body.func(_linear(body.function.expand(), random), *body.limits)
    fixed: list[Expr] = []
    moving: list[Expr] = []
    for x in _factors(body):
        (moving if is_random(x, random) else fixed).append(x)
    if not moving:
        return body
    sums = [x for x in moving if isinstance(x, Sum | Integral)]
    if sums:
        others = list(moving)
        others.remove(sums[0])
        rest = Mul(*others)
        first = apart(sums[0], rest.free_symbols | bound(rest))
        inner = _linear((rest * first.function).expand(), random)
        return Mul(*fixed) * first.func(inner, *first.limits)
    return Mul(*fixed) * Average(Mul(*moving))


def _factors(body: Expr) -> list[Expr]:
    """Factors of a product; powers of sums are written out, for each has its own variables."""
    found: list[Expr] = []
    for x in Mul.make_args(body):
        power = isinstance(x, Pow) and isinstance(x.base, Sum | Integral) and x.exp.is_Integer and x.exp > 0
        found += [x.base] * int(x.exp) if power else [x]
    return found


def is_random(x: Expr, random: frozenset[str] | None = None) -> bool:
    """Does ``x`` contain one of the random fields (any, without a list), outside averages already taken?"""
    if getattr(x, "is_averaged", False):
        return False
    if isinstance(x, AppliedUndef) and (random is None or str(x.func) in random):
        return True
    return any(is_random(y, random) for y in x.args)


__all__ = ["Average", "Response", "is_random"]
