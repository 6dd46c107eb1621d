"""Functions of one Gaussian number: expressions made into something that arrays go through."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from sympy import Derivative, DiracDelta, Dummy, Expr, Lambda, lambdify, sympify

from numerics.averages.panels import kinks_of
from numerics.averages.value import Array
from numerics.errors import SpecError, Unserved

X = Dummy("x", real=True)
"""The variable of every function here."""


def expression(f: Any) -> Expr:
    """``f`` as an expression in `X`: an expression in one symbol, a number, or a ``Lambda`` of one variable.

    Raises SpecError for anything else.

    >>> from sympy import tanh
    >>> from sympy.abc import h
    >>> expression(tanh(h)) == expression(Lambda(h, tanh(h))) == tanh(X)
    True
    """
    if isinstance(f, Lambda) and len(f.variables) == 1:
        return f.expr.xreplace({f.variables[0]: X})
    e = sympify(f)
    if not isinstance(e, Expr) or len(e.free_symbols) > 1:
        raise SpecError("functions", str(f), "is no function of one variable", "an expression in one symbol")
    return e.xreplace({x: X for x in e.free_symbols})


@lru_cache(maxsize=512)
def is_smooth(e: Expr) -> bool:
    """Is it analytic, as far as its form tells: no bends, jumps or point masses?"""
    return not e.has(Derivative, DiracDelta) and not kinks_of(e, X)


@lru_cache(maxsize=512)
def compiled(e: Expr) -> Callable[[Array], Array]:
    """An expression in `X` for arrays.  Raises Unserved for what is no function, such as a point mass."""
    if e.has(Derivative, DiracDelta):
        raise Unserved(f"{e} has no values")
    function = lambdify(X, e, ["numpy", "scipy"], cse=True)
    return lambda x: np.asarray(function(x), dtype=float)
