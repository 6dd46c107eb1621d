"""One average of an expression over any number of correlated Gaussian variables.

:func:`average` takes an expression and a covariance and returns the average with an error bound. It chooses
among closed forms, lattices, orthant probabilities and panels of quadrature. Fluctuations at order 1/N use
it, and users can call it for single numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from sympy import (
    Add,
    DiracDelta,
    Dummy,
    Expr,
    I,
    Lambda,
    Matrix,
    MatrixBase,
    Mul,
    Poly,
    Pow,
    Rational,
    Symbol,
    SympifyError,
    nan,
    oo,
    zoo,
)
from sympy.core.relational import Relational

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.jumps import OtherKind, jumps, multiplied
from derive.calculus.symbols import converted
from numerics.averages.existence import Singularity, singular_powers
from numerics.averages.kink_quadrature import (
    PAIR,
    REAL,
    Moment,
    X,
    compiled,
    is_smooth,
    kinked_product,
    real_expression,
)
from numerics.averages.lattice import Array, Value, averages, covariance_from
from numerics.averages.orthants import of_products, rows_of
from numerics.errors import NotConverged, SpecError, Unserved

DIGITS = 25
"""Decimal digits with which closed forms are evaluated, enough for the cancellation in them."""


def average(body: Any, variables: Sequence[Any] = (), covariance: Any = None, rtol: float = 1e-10) -> Value:
    """Return the average of an expression over centred Gaussian variables.

    Parameters
    ----------
    body : sympy.Expr or GaussianAverage
        Function of the variables, or a :class:`~derive.calculus.gaussian.GaussianAverage` whose covariance
        holds numbers.
    variables : sequence of sympy.Symbol
        Gaussian variables; needed for an expression, ignored for a GaussianAverage.
    covariance : array_like
        Covariance of the variables, shape ``(n, n)``; needed for an expression, ignored for a
        GaussianAverage.
    rtol : float
        Tolerance for each term of the expanded body, relative to the average of its absolute value.

    Returns
    -------
    Value
        The average, its error bound and the method.

    Raises
    ------
    SpecError
        If the body is not an expression, has unknown symbols, is infinite or undefined, or contains the
        imaginary unit and has no real average in closed form; if the variables are not a list or tuple of
        different symbols; or if the covariance is missing, has another shape, is not symmetric or finite, or
        has a negative eigenvalue; or if ``rtol`` is not between 0 and 1.
    Unserved
        If no method takes the body.
    NotConverged
        If ``rtol`` is not reached, if the body is not real and finite at test points within 30 standard
        deviations of the mean, or if it has a pole that is not integrable.
    Ambiguous
        If a jump or another point mass multiplies a point mass of the same variable or of a multiple of it,
        and for a point mass of a variable without variance.

    Notes
    -----
    Closed forms are tried first. Then sums of products are split so that each factor is a function of one
    linear combination of variables. Analytic factors are summed over a lattice, piecewise polynomials with
    kinks at zero are reduced to orthant probabilities, and other factors are integrated in panels between
    their kinks.

    Examples
    --------
    >>> from sympy import erf, tanh
    >>> from sympy.abc import x, y
    >>> mean = average(tanh(x) * tanh(y), (x, y), [[1, 1], [1, 1]])
    >>> print(f"{mean.value:.9f}", mean.method)
    0.394294490 lattice
    >>> average(erf(x) * erf(y), (x, y), [[1, 0.5], [0.5, 1]]).method
    'closed form'
    """
    if isinstance(body, GaussianAverage):
        variables, covariance, body = body.variables, body.matrix.tolist(), body.body
    variables = _checked(variables)
    names = [Symbol(f"x{i}", real=True) for i in range(len(variables))]
    given = str(body)
    body = _body(body).xreplace(dict(zip(variables, names, strict=True)))
    if body.free_symbols - set(names):
        unknown = ", ".join(sorted(map(str, body.free_symbols - set(names))))
        raise SpecError(
            "body",
            given,
            f"contains the unknown symbols {unknown}",
            "a function of the variables and numbers",
        )
    _require_tolerance(rtol)
    covariance = covariance.tolist() if isinstance(covariance, MatrixBase) else covariance
    shape = np.shape(np.array(covariance, dtype=object))
    if shape != (len(names), len(names)):
        raise SpecError(
            "covariance", str(covariance), f"has the shape {shape}", f"{len(names)} rows and columns"
        )
    K = covariance_from([[_exact(x) for x in row] for row in covariance] or np.zeros((0, 0)))
    exact = Matrix(len(names), len(names), [_exact(x) for row in covariance for x in row])
    exact = exact.applyfunc(lambda x: x / 2)
    exact, K = exact + exact.T, (K + K.T) / 2
    rows_of(K)  # only for its check: raises SpecError for negative eigenvalues
    _require_mean(body, names, K, given)
    closed = GaussianAverage(body, names, exact).doit()
    if not closed.has(GaussianAverage) and (value := closed.evalf(DIGITS)).is_number and not value.has(I):
        return Value(float(value), 1e-15 * abs(float(value)), "closed form")
    if body.has(DiracDelta) and closed.has(GaussianAverage) and not closed.has(DiracDelta, I):
        return _folded(closed, rtol)
    body = real_expression("body", body)
    terms = [_term(term, names, K, rtol) for term in Add.make_args(body.expand())]
    return Value(sum(v.value for v in terms), sum(v.error for v in terms), _methods(terms))


def _require_mean(body: Expr, names: list[Symbol], K: Array, given: str) -> None:
    """Raise NotConverged if the body has a pole that is not integrable, so that no average exists.

    ``names`` are the variables, ``K``, shape (n, n), is their covariance, and ``given`` is the body in the
    message. Poles up to 12 standard deviations are found. Variables with a singular covariance are not
    checked, because a pole of one variable at a value of another one may be outside the values that they have
    together.
    """
    used = [i for i, x in enumerate(names) if body.has(x)]
    if not used or np.linalg.matrix_rank(K[np.ix_(used, used)]) < len(used):
        return
    for i in used:
        x = names[i]
        for at, power in singular_powers(body.subs(x, float(np.sqrt(K[i, i])) * x), x):
            if not Singularity("", "", at, power).has_mean:
                raise NotConverged(
                    f"the Gaussian average of {given} does not exist, because this function has a pole that "
                    "is not integrable: use a function without this pole"
                )


def _require_tolerance(rtol: Any) -> None:
    """Raise SpecError unless ``rtol`` is a number between 0 and 1."""
    if not isinstance(rtol, Real) or not 0 < float(rtol) < 1:
        raise SpecError("rtol", str(rtol), "is not a relative tolerance", "a number between 0 and 1")


def _checked(variables: Sequence[Any]) -> list[Any]:
    """Return the variables as SymPy objects; raise SpecError if they are no sequence or two are equal."""
    try:
        converted_variables = [converted(x) for x in variables] if isinstance(variables, Sequence) else None
    except SympifyError:
        converted_variables = None
    if converted_variables is None or len(set(converted_variables)) < len(converted_variables):
        raise SpecError("variables", str(variables), "are not different symbols", "a list of symbols")
    return converted_variables


def _body(given: Any) -> Expr:
    """Return the function to be averaged as an expression; raise SpecError if it is not one.

    SpecError is also raised for a function with an infinite or undefined number.
    """
    try:
        body = converted(given)
    except (SympifyError, TypeError):
        body = None
    if not isinstance(body, Expr) or isinstance(body, Lambda):
        raise SpecError("body", str(given), "is not an expression", "a function of the variables and numbers")
    if body.has(nan, zoo) or body in (oo, -oo):
        raise SpecError("body", str(given), "contains an infinite or undefined number", REAL)
    return body


def _folded(closed: Expr, rtol: float) -> Value:
    """Return the value of an expression that contains Gaussian averages over fewer variables.

    Such an expression is left after point masses have been integrated. ``rtol`` is the tolerance of each
    average.
    """
    slots = {a: Dummy() for a in closed.atoms(GaussianAverage)}
    averages_by_slot = {d: average(a, rtol=rtol) for a, d in slots.items()}
    numbers = {d: v.value for d, v in averages_by_slot.items()}
    plain = closed.xreplace(slots)
    error = sum(abs(float(plain.diff(d).subs(numbers))) * v.error for d, v in averages_by_slot.items())
    return Value(float(plain.subs(numbers)), error, _methods(list(averages_by_slot.values())))


def _methods(values: list[Value]) -> str:
    """Return the names of the methods of several averages, each once, separated by commas.

    "closed form" is named only if there is no other method.
    """
    names = [name for value in values for name in value.method.split(", ")]
    return ", ".join(dict.fromkeys(name for name in names if name != "closed form")) or "closed form"


def _exact(x: Any) -> Any:
    """Return a number as a SymPy number; a float becomes the rational number that it is."""
    try:
        e = converted(x)
    except (SympifyError, TypeError):
        return nan  # refused with the covariance
    return Rational(float(e)) if e.is_Float else e


def _term(term: Expr, names: list[Symbol], K: Array, rtol: float) -> Value:
    """Return the average of a product of functions of Gaussian variables.

    ``names`` are the variables and ``K`` is their covariance. ``rtol`` is the tolerance relative to the
    average of the absolute value. A product with a factor that depends on several linear combinations is
    averaged as a whole, which is possible for at most two variables.
    """
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
        value, error = kinked_product(parts, C, rtol)
        return Value(number * value, abs(number) * error, "panels")
    total, error_bound = of_products(blocks, rows_of(C)[None])
    return Value(number * float(total[0]), abs(number) * float(error_bound[0]), "orthants")


def _pair(e: Expr, names: list[Symbol], K: Array, rtol: float) -> tuple[float, float, str]:
    """Return the average of a function ``e`` that is not a product of functions of linear combinations.

    The result is a triple: average, error bound, and name of the method. ``names`` are all variables, ``K``
    is their covariance, and ``rtol`` the relative tolerance. Raises Unserved if ``e`` depends on more than
    two variables.
    """
    used = [i for i, x in enumerate(names) if e.has(x)]
    if len(used) > PAIR:
        raise Unserved(
            f"the average of {e} is over {len(used)} variables, and at most {PAIR} are possible, unless the "
            "averaged function is a product of functions of linear combinations of the variables"
        )
    i, j = used[0], used[-1]
    moment = Moment(e, tuple(names[k] for k in used))
    value, error = moment(K[i, i], K[j, j], K[i, j], rtol)
    return value, error, "panels" if any(moment.kinks) else "lattice"


def _is_power(e: Expr) -> bool:
    """Return whether an expression is a positive integer power."""
    return bool(isinstance(e, Pow) and e.exp.is_Integer and e.exp > 0)


def _factor(e: Expr, names: list[Symbol]) -> tuple[tuple[Any, ...], Expr] | None:
    """Write an expression as a function of one linear combination of the variables ``names``.

    Returns the coefficients, the first nonzero one being 1, and the function as an expression in the symbol
    `X`, which stands for the combination; None if the expression depends on several combinations or on none.
    """
    forms = _linear_forms(e, names)
    if len(forms) != 1:
        return None
    form = forms.pop()
    lead = next(i for i, c in enumerate(form) if c != 0)
    others = sum(c * x for c, x in zip(form, names, strict=True)) - names[lead]
    function = e.subs(names[lead], X - others).replace(lambda a: isinstance(a, Add), lambda a: a.expand())
    return (form, function) if not function.has(*names) else None


def _linear_forms(e: Expr, names: list[Symbol]) -> set[tuple[Any, ...]]:
    """Return the set of linear combinations of variables that occur in an expression.

    Each is a tuple with one coefficient for each of the variables ``names``, divided by the first nonzero
    one.
    """
    if not e.has(*names):
        return set()
    if isinstance(e, Relational):
        return _linear_forms(e.lhs - e.rhs, names)
    if isinstance(e, Expr) and e.is_polynomial(*names) and (line := Poly(e, *names)).total_degree() == 1:
        slopes = [line.coeff_monomial(x) for x in names]
        lead = next(c for c in slopes if c != 0)
        return {tuple(c / lead for c in slopes)}
    return set().union(*[_linear_forms(a, names) for a in e.args])
