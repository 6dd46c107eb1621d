"""One average over any number of Gaussian numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sympy import Add, DiracDelta, Dummy, Expr, I, Matrix, Mul, Poly, Pow, Rational, Symbol, sympify

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.jumps import OtherKind, jumps, multiplied
from numerics.averages.lattice import Array, Value, averages, check_covariance
from numerics.averages.orthants import of_products, rows_of
from numerics.averages.panels import PAIR, Moment, X, bent_product, compiled, is_smooth
from numerics.errors import SpecError, Unserved

DIGITS = 25
"""Digits with which closed forms are evaluated: enough for what cancels in them."""


def average(body: Any, variables: Sequence[Any] = (), covariance: Any = None, rtol: float = 1e-10) -> Value:
    """``<body>`` over centred Gaussian ``variables`` of the given ``covariance``.

    ``body`` is an expression, or a :class:`~derive.calculus.gaussian.GaussianAverage` whose covariance is
    numbers.  Closed forms come first.  Then sums of products are taken apart, each factor a function of one
    linear combination of variables: analytic ones are summed over a lattice, those that bend at zero are
    reduced to orthants, and those that bend elsewhere are integrated between the bends.

    Raises SpecError for a body with unknown symbols, or a covariance of another shape;
    :class:`~numerics.errors.Unserved` for other bodies; :class:`~numerics.errors.NotConverged` where
    ``rtol``, relative to the average of the size of each term, is not reached;
    :class:`~derive.calculus.jumps.Ambiguous` for a jump times a point mass of the same number.

    >>> from sympy import erf, tanh
    >>> from sympy.abc import x, y
    >>> found = average(tanh(x) * tanh(y), (x, y), [[1, 1], [1, 1]])
    >>> print(f"{found.value:.9f}", found.method)
    0.394294490 lattice
    >>> average(erf(x) * erf(y), (x, y), [[1, 0.5], [0.5, 1]]).method
    'closed form'
    """
    if isinstance(body, GaussianAverage):
        variables, covariance, body = body.variables, body.matrix.tolist(), body.body
    names = [Symbol(f"x{i}", real=True) for i in range(len(variables))]
    body = sympify(body).xreplace(dict(zip(map(sympify, variables), names, strict=True)))
    if body.free_symbols - set(names):
        unknown = ", ".join(sorted(map(str, body.free_symbols - set(names))))
        raise SpecError("body", str(body), f"contains {unknown}", "a function of the variables and numbers")
    if np.shape(covariance) != (len(names), len(names)):
        raise SpecError("covariance", str(covariance), "has another shape", f"{len(names)} rows and columns")
    exact = Matrix(len(names), len(names), [_exact(x) for row in covariance for x in row])
    K = np.array(exact.tolist(), dtype=float).reshape(exact.shape)
    check_covariance(K)
    exact = exact.applyfunc(lambda x: x / 2)
    exact, K = exact + exact.T, (K + K.T) / 2
    rows_of(K)  # refuses negative eigenvalues
    closed = GaussianAverage(body, names, exact).doit()
    if not closed.has(GaussianAverage) and (value := closed.evalf(DIGITS)).is_number and not value.has(I):
        return Value(float(value), 1e-15 * abs(float(value)), "closed form")
    if body.has(DiracDelta) and closed.has(GaussianAverage) and not closed.has(DiracDelta, I):
        return _folded(closed, rtol)
    found = [_term(term, names, K, rtol) for term in Add.make_args(body.expand())]
    return Value(sum(v.value for v in found), sum(v.error for v in found), _methods(found))


def _folded(closed: Expr, rtol: float) -> Value:
    """Evaluate an average from which point masses have been integrated out: numbers and simpler averages."""
    slots = {a: Dummy() for a in closed.atoms(GaussianAverage)}
    found = {d: average(a, rtol=rtol) for a, d in slots.items()}
    numbers = {d: v.value for d, v in found.items()}
    plain = closed.xreplace(slots)
    error = sum(abs(float(plain.diff(d).subs(numbers))) * v.error for d, v in found.items())
    return Value(float(plain.subs(numbers)), error, _methods(list(found.values())))


def _methods(found: list[Value]) -> str:
    names = [name for v in found for name in v.method.split(", ")]
    return ", ".join(dict.fromkeys(name for name in names if name != "closed form")) or "closed form"


def _exact(x: Any) -> Any:
    e = sympify(x)
    return Rational(float(e)) if e.is_Float else e


def _term(term: Expr, names: list[Symbol], K: Array, rtol: float) -> Value:
    """One product."""
    number = 1.0
    coupled: list[Expr] = []
    groups: dict[tuple[Any, ...], list[Expr]] = {}
    for e in [x for f in Mul.make_args(term) for x in ([f.base] * int(f.exp) if _is_power(f) else [f])]:
        if not e.has(*names):
            number *= float(e)
        elif (factor := _factor(e, names)) is not None:
            form, function = factor
            groups.setdefault(form, []).append(function)
        else:
            coupled.append(e)
    if not groups and not coupled:
        return Value(number, 0.0, "closed form")
    if coupled:
        value, error, method = _pair(Mul(*[f for f in Mul.make_args(term) if f.has(*names)]), names, K, rtol)
        return Value(number * value, abs(number) * error, method)
    forms: Array = np.array(list(groups), dtype=np.float64)
    C, functions = forms @ K @ forms.T, list(groups.values())
    if all(is_smooth(f) for fs in functions for f in fs):
        values, errors = averages([tuple(tuple(map(compiled, fs)) for fs in functions)], C, rtol)
        return Value(number * float(values[0]), abs(number) * float(errors[0]), "lattice")
    try:
        blocks = [multiplied(jumps(f, X) for f in fs) for fs in functions]
    except OtherKind:
        parts = [Mul(*fs) for fs in functions]
        value, error = bent_product(parts, C, rtol)
        return Value(number * value, abs(number) * error, "panels")
    total, miss = of_products(blocks, rows_of(C)[None])
    return Value(number * float(total[0]), abs(number) * float(miss[0]), "orthants")


def _pair(e: Expr, names: list[Symbol], K: Array, rtol: float) -> tuple[float, float, str]:
    """A function of one or two numbers."""
    used = [i for i, x in enumerate(names) if e.has(x)]
    if len(used) > PAIR:
        raise Unserved(f"<{e}> couples {len(used)} numbers other than through sums of them")
    i, j = used[0], used[-1]
    moment = Moment(e, tuple(names[k] for k in used))
    value, error = moment(K[i, i], K[j, j], K[i, j], rtol)
    return value, error, "panels" if any(moment.kinks) else "lattice"


def _is_power(e: Expr) -> bool:
    return bool(isinstance(e, Pow) and e.exp.is_Integer and e.exp > 0)


def _factor(e: Expr, names: list[Symbol]) -> tuple[tuple[Any, ...], Expr] | None:
    """A combination of the variables and the function, in `X`, of it that ``e`` is; None if it needs more."""
    found: set[tuple[Any, ...]] = set()

    def walk(part: Expr) -> None:
        if not part.has(*names):
            return
        if part.is_polynomial(*names) and (line := Poly(part, *names)).total_degree() == 1:
            slopes = [line.coeff_monomial(x) for x in names]
            lead = next(c for c in slopes if c != 0)
            found.add(tuple(c / lead for c in slopes))
            return
        for a in part.args:
            walk(a)

    walk(e)
    if len(found) != 1:
        return None
    form = found.pop()
    lead = next(i for i, c in enumerate(form) if c != 0)
    rest = sum(c * x for c, x in zip(form, names, strict=True)) - names[lead]
    function = e.subs(names[lead], X - rest).replace(lambda a: isinstance(a, Add), lambda a: a.expand())
    return (form, function) if not function.has(*names) else None
