"""One average over any number of Gaussian numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sympy import Add, Expr, Mul, Symbol, sympify

from derive.meanfield.gaussian import GaussianAverage
from numerics.averages.functions import X, compiled
from numerics.averages.lattice import Joint, averages
from numerics.averages.value import Array, Value
from numerics.errors import SpecError


def average(body: Any, variables: Sequence[Any] = (), covariance: Any = None, rtol: float = 1e-10) -> Value:
    """``<body>`` over centred Gaussian ``variables`` of the given ``covariance``.

    ``body`` may be a :class:`~derive.meanfield.gaussian.GaussianAverage` whose covariance is numbers.

    >>> from sympy import tanh
    >>> from sympy.abc import x, y
    >>> found = average(tanh(x) * tanh(y), (x, y), [[1, 1], [1, 1]])
    >>> print(f"{found.value:.9f}")
    0.394294490
    """
    if isinstance(body, GaussianAverage):
        variables, covariance, body = body.variables, body.matrix.tolist(), body.body
    body, names = sympify(body), tuple(map(sympify, variables))
    K = np.array(covariance, dtype=float).reshape(len(names), len(names))
    free = {x: Symbol(f"x{i}", real=True) for i, x in enumerate(names)}
    body = body.xreplace(free)
    unknown = body.free_symbols - set(free.values())
    if unknown:
        raise SpecError("body", str(body), f"contains {unknown}", "a function of the variables and numbers")
    total = error = 0.0
    for term in Add.make_args(body.expand()):
        found, errors = _term(term, list(free.values()), K, rtol)
        total, error = total + found, error + errors
    return Value(total, error, "lattice")


def _term(term: Expr, names: list[Symbol], K: Array, rtol: float) -> tuple[float, float]:
    parts: list[list[Any]] = [[] for _ in names]
    number = 1.0
    for factor in Mul.make_args(term):
        mine = [i for i, x in enumerate(names) if factor.has(x)]
        if not mine:
            number *= float(factor)
        elif len(mine) == 1:
            parts[mine[0]].append(compiled(factor.xreplace({names[mine[0]]: X})))
        else:
            raise SpecError(
                "body", str(factor), "couples two variables", "products of functions of one variable"
            )
    used = [i for i, p in enumerate(parts) if p]
    if not used:
        return number, 0.0
    found, errors = averages([tuple(Joint(tuple(parts[i])) for i in used)], K[np.ix_(used, used)], rtol)
    return number * float(found[0]), abs(number) * float(errors[0])
