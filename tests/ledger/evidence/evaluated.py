"""Printed right-hand sides and corrections evaluated on the arrays of one network, function by function.

An expression of a claim, with numbers for its indices and sizes, is evaluated term by term: sums run, an
integral over the past becomes steps, and each applied function is a call of the function of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Basic, Expr, I, Integer, Integral, KroneckerDelta, Mul, Number, Pow, Sum, sympify
from sympy.core.function import AppliedUndef

from tests.ledger.evidence.base import Finding, agrees, contradicts

Array = NDArray[np.float64]
Functions = Mapping[str, Callable[..., Any]]


def valued(e: Basic, numbers: Mapping[str, float], functions: Functions, step: float = 1.0) -> Any:
    """Return the value of an expression: a number, or an array if its functions return arrays.

    ``numbers`` are those of symbols, by name. Indices reach a function as integers. An integral from 0 to t
    is a sum over the times before t, in steps of length ``step``.

    Raises KeyError for a function without a value, and TypeError for an expression of another kind.
    """
    known = {x: numbers[x.name] for x in e.free_symbols if x.name in numbers}
    return _value(sympify(e).subs(known), functions, step)


def _value(e: Basic, functions: Functions, step: float) -> Any:  # noqa: PLR0911 (one return for each kind of expression)
    def of(x: Basic) -> Any:
        return _value(x, functions, step)

    if isinstance(e, Integer):
        return int(e)
    if isinstance(e, Number):
        return float(e)
    if e == I:
        return 1j
    if isinstance(e, Add):
        return sum(of(x) for x in e.args)
    if isinstance(e, Mul):
        return prod(of(x) for x in e.args)
    if isinstance(e, Pow):
        return float(of(e.base)) ** of(e.exp)
    if isinstance(e, KroneckerDelta):
        return int(of(e.args[0]) == of(e.args[1]))
    if isinstance(e, (Sum, Integral)):
        return _summed(e, functions, step)
    if isinstance(e, AppliedUndef):
        return functions[str(e.func)](*[of(x) for x in e.args])
    raise TypeError(f"{e} has no value")


def _summed(e: Sum | Integral, functions: Functions, step: float) -> Any:
    """Return the value of the outermost sum with numerical bounds; an integral leaves its upper end out."""
    *inner, (index, low, high) = map(tuple, e.limits)
    past = isinstance(e, Integral)
    total: Any = 0
    for k in range(int(low), int(high) + (0 if past else 1)):
        body: Expr = e.func(e.function, *inner) if inner else e.function
        total = total + _value(body.subs(index, k), functions, step)
    return step * total if past else total


def largest(gap: Any) -> float:
    """Return the largest entry of a difference."""
    return float(np.max(np.abs(gap)))


def told_apart(what: str, both: Iterable[Any], true: Any, tolerance: float) -> tuple[Finding, ...]:
    """Return the findings that the corrected one of two values is true and that the printed one differs."""
    printed, corrected = both
    return (
        contradicts(f"{what} as printed minus true", largest(printed - true), tolerance),
        agrees(f"{what} as corrected minus true", largest(corrected - true), tolerance),
    )


__all__ = ["Functions", "largest", "told_apart", "valued"]
