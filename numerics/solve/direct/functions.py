"""Functions of random and known numbers, compiled: ``tanh(h + b)`` and its derivatives in NumPy.

The leaves of an expression are the largest pieces that the interpreter knows how to evaluate by itself
(fields, order parameters, sums, averages, symbols); the rest is one function of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Derivative, DiracDelta, Dummy, Expr, Piecewise, Subs, Sum, Symbol, lambdify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from numerics.solve.direct.layout import Unserved

Array = NDArray[np.float64]


class Jump(Unserved):
    """A derivative that sample paths do not see, because the function jumps."""


class Compiled:
    """``expr`` as a function of its ``leaves``, with partial derivatives."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        self.leaves = tuple(sorted(_leaves(expr), key=str))
        self.slots = tuple(Dummy(f"x{i}", real=True) for i in range(len(self.leaves)))
        self.body = expr.xreplace(dict(zip(self.leaves, self.slots, strict=True)))
        if self.body.has(Subs, Derivative) or self.body.atoms(AppliedUndef):
            raise Unserved(f"{expr} contains a function that is not given; use a named one such as tanh")
        self._functions: dict[int, Callable[..., Any]] = {}

    def __call__(self, *values: Any) -> Any:
        """The function."""
        return self._function(-1)(*values)

    def partial(self, i: int, *values: Any) -> Any:
        """Its derivative with respect to leaf ``i``."""
        return self._function(i)(*values)

    def number(self, values: tuple[float, ...]) -> float:
        """Its value for numbers, by SymPy (KroneckerDelta, Min and Piecewise need no NumPy form)."""
        return _number(self.body, self.slots, values)

    def _function(self, i: int) -> Callable[..., Any]:
        if i not in self._functions:
            if i >= 0 and any(x.has(self.slots[i]) for x in self.body.atoms(Piecewise)):
                raise Jump(f"{self.expr} is given by cases and may jump")
            e = self.body if i < 0 else self.body.diff(self.slots[i])
            if e.has(DiracDelta):
                raise Jump(f"{self.expr} jumps: its derivative has a delta function that no path sees")
            if e.has(Subs, Derivative):
                raise Unserved(f"{self.expr} has no closed derivative with respect to {self.leaves[i]}")
            self._functions[i] = lambdify(self.slots, e, ["numpy", "scipy"])
        return self._functions[i]


@cache
def compiled(expr: Expr) -> Compiled:
    """``expr`` compiled once."""
    return Compiled(expr)


@lru_cache(maxsize=100_000)
def _number(body: Expr, slots: tuple[Dummy, ...], values: tuple[float, ...]) -> float:
    return float(body.subs(dict(zip(slots, values, strict=True))))


def _leaves(e: Expr) -> set[Expr]:
    if isinstance(e, AppliedUndef | Sum | Average | Response | Symbol):
        return {e}
    return {x for arg in e.args for x in _leaves(arg)}
