"""Averages over a single-site process and responses to its sources, as unevaluated SymPy expressions."""

from __future__ import annotations

from typing import Any

from sympy import Add, Expr, Integral, Mul, Sum, sympify
from sympy.core.function import AppliedUndef


class Average(Expr):
    """``<x>``: the mean of ``x`` over the single-site process of the population that its fields live on.

    ``.doit()`` takes out sums, integrals and whatever is not random: ``random`` names the fields.

    >>> from sympy.abc import t, s
    >>> from sympy import Function
    >>> h = Function("h")
    >>> Average(h(t) * h(s))
    <h(s)*h(t)>
    """

    is_commutative = True

    def __new__(cls, body: Any) -> Average:
        node: Average = Expr.__new__(cls, sympify(body))
        return node

    @property
    def body(self) -> Expr:
        """What is averaged."""
        return self.args[0]

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\left\langle {printer._print(self.body)} \right\rangle"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"<{printer._print(self.body)}>"

    def linear(self, random: frozenset[str]) -> Expr:
        """Expand by linearity; functions not named in ``random`` are deterministic and come out.

        >>> from sympy import Symbol
        >>> from sympy.abc import t
        >>> from sympy import Function
        >>> Average(2 * Function("y")(t) * Function("h")(t)).linear(frozenset({"h"}))
        2*y(t)*<h(t)>
        """
        return _linear(self.body.expand(), random)


def _linear(body: Expr, random: frozenset[str]) -> Expr:
    if isinstance(body, Add):
        return Add(*[_linear(x, random) for x in body.args])
    if isinstance(body, Sum | Integral):
        return body.func(_linear(body.function.expand(), random), *body.limits)
    fixed: list[Expr] = []
    moving: list[Expr] = []
    for x in Mul.make_args(body):
        (moving if is_random(x, random) else fixed).append(x)
    if not moving:
        return body
    sums = [x for x in moving if isinstance(x, Sum | Integral)]
    if sums:
        rest = Mul(*[x for x in moving if x is not sums[0]])
        inner = _linear((rest * sums[0].function).expand(), random)
        return Mul(*fixed) * sums[0].func(inner, *sums[0].limits)
    return Mul(*fixed) * Average(Mul(*moving))


def is_random(x: Expr, random: frozenset[str]) -> bool:
    """Does ``x`` contain one of the random fields?"""
    return any(str(a.func) in random for a in x.atoms(AppliedUndef))


class Response(Expr):
    """``delta x / delta r``: how ``x`` moves when the source ``r`` is pushed; zero unless r comes first."""

    is_commutative = True

    def __new__(cls, body: Any, source: Any) -> Response:
        node: Response = Expr.__new__(cls, sympify(body), sympify(source))
        return node

    @property
    def body(self) -> Expr:
        """What responds."""
        return self.args[0]

    @property
    def source(self) -> Expr:
        """What is pushed."""
        return self.args[1]

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\frac{{\delta {printer._print(self.body)}}}{{\delta {printer._print(self.source)}}}"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"d {printer._print(self.body)} / d {printer._print(self.source)}"
