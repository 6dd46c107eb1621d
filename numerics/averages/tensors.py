"""Averages of products of functions, for all tuples of samples at once.

One average over any number of Gaussian numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from sympy import Add, Basic, DiracDelta, Dummy, Expr, I, Matrix, Mul, Poly, Pow, Rational, Symbol, sympify

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.jumps import Jumps, OtherKind, jumps, multiplied
from numerics.averages.lattice import Array, Tensor, Value, averages, check_covariance
from numerics.averages.orthants import of_products, rows_of
from numerics.averages.panels import PAIR, Moment, X, bent_product, compiled, expression, is_smooth
from numerics.errors import SpecError, Unserved

Key = tuple[tuple[int, ...], ...]
"""Which functions each distinct sample takes."""


def tensor(functions: Sequence[Any], covariance: Any, rtol: float = 1e-10) -> Tensor:
    """``<f_1(u_m) f_2(u_n) ..>`` for all samples ``m, n, ..``: an array with one axis for each function.

    ``functions`` are SymPy expressions in one symbol, or functions of an array that are analytic.  Samples
    may coincide, and the covariance may be singular.  ``rtol`` is relative to the average of the size of the
    product.  Piecewise polynomials that bend at zero, and their derivatives, need no quadrature: relu, abs
    and what is made of them, with point masses.  A jump times a point mass at one sample has no meaning, and
    is refused.

    Raises :class:`~numerics.errors.NotConverged` where ``rtol`` is not reached;
    :class:`~derive.calculus.jumps.Ambiguous` for entries without meaning;
    :class:`~numerics.errors.Unserved` for six signs, and for point masses, or three dependent samples, where
    functions bend elsewhere than at zero; SpecError for a covariance that is none.

    >>> from sympy import Heaviside, sin
    >>> from sympy.abc import u
    >>> K = np.array([[1.0, 0.5], [0.5, 2.0]])
    >>> found = tensor([sin(u), u], K)
    >>> exact = K * np.exp(-np.diag(K) / 2)[:, None]  # Stein: <sin(u) v> = <u v> <cos(u)>
    >>> bool(np.abs(found.value - exact).max() < 1e-10)
    True
    >>> print(tensor([Heaviside(u)] * 2, np.array([[1.0, 0.5], [0.5, 1.0]])).value.round(12))
    [[0.5        0.33333333]
     [0.33333333 0.5       ]]
    """
    return tensors([functions], covariance, rtol)[0]


def tensors(lists: Sequence[Sequence[Any]], covariance: Any, rtol: float = 1e-10) -> list[Tensor]:
    """`tensor` of several lists of functions: cheaper than one by one, since they share their points.

    >>> from sympy.abc import u
    >>> square, mixed = tensors([[u, u], [u**2, u**2]], [[1.0, 0.5], [0.5, 1.0]])
    >>> print(square.value.round(9).tolist(), mixed.value.round(9).tolist())
    [[1.0, 0.5], [0.5, 1.0]] [[3.0, 1.5], [1.5, 3.0]]
    """
    K = np.asarray(covariance, dtype=float)
    check_covariance(K)
    K = (K + K.T) / 2
    labels: dict[Any, int] = {}
    numbers = [tuple(labels.setdefault(_named(f), len(labels)) for f in fs) for fs in lists]
    smooth = [not isinstance(f, Expr) or is_smooth(f) for f in labels]
    plain = [n for n in dict.fromkeys(numbers) if all(smooth[i] for i in n)]
    found = _smooth(
        plain, [compiled(f) if isinstance(f, Expr) and is_smooth(f) else f for f in labels], K, rtol
    )
    for n in numbers:
        if n not in found:
            fs = [list(labels)[i] for i in n]
            try:
                found[n] = _bent([jumps(_expression(f), X) for f in fs], K)
            except OtherKind:
                found[n] = _between_bends(fs, K, rtol)
    return [found[n] for n in numbers]


def _named(f: Any) -> Any:
    return f if callable(f) and not isinstance(f, Basic) else expression(f)


def _expression(f: Any) -> Expr:
    if not isinstance(f, Expr):
        raise Unserved(f"{f} beside a function with a bend: give it as an expression")
    return f


# -- analytic functions --------------------------------------------------------------------------------------


def _smooth(
    lists: Sequence[tuple[int, ...]], table: Sequence[Any], K: Array, rtol: float
) -> dict[tuple[int, ...], Tensor]:
    """Every set of samples has one lattice, which all products share."""
    found = {}
    for numbers in lists:
        value = np.ones((len(K),) * len(numbers))
        found[numbers] = Tensor(value, np.zeros_like(value), "lattice")
    for count in range(1, min(max(map(len, lists), default=0), len(K)) + 1):
        for samples in combinations(range(len(K)), count):
            places: dict[Key, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
            for numbers in lists:
                for index in product(range(count), repeat=len(numbers)):
                    if len(set(index)) == count:
                        at = tuple(samples[i] for i in index)
                        places.setdefault(_taken(numbers, index, count), []).append((numbers, at))
            if not places:
                continue
            products = [tuple(tuple(table[n] for n in ns) for ns in key) for key in places]
            values, errors = averages(products, K[np.ix_(samples, samples)], rtol)
            for entries, v, e in zip(places.values(), values, errors, strict=True):
                for numbers, at in entries:
                    found[numbers].value[at], found[numbers].error[at] = v, e
    return found


def _taken(numbers: tuple[int, ...], index: tuple[int, ...], count: int) -> Key:
    """Which functions each of the distinct samples takes."""
    pairs = list(zip(numbers, index, strict=True))
    return tuple(tuple(sorted(n for n, i in pairs if i == k)) for k in range(count))


# -- functions that bend at zero -----------------------------------------------------------------------------


def _bent(functions: Sequence[Jumps], K: Array) -> Tensor:
    """Every pattern of coinciding samples is one sum of monomials."""
    value = np.ones((len(K),) * len(functions))
    error = np.zeros_like(value)
    rows = rows_of(K)
    for index in reversed([*_patterns(len(functions))]):  # the hardest first
        count = max(index, default=-1) + 1
        samples = np.array(list(permutations(range(len(K)), count)), dtype=int).reshape(-1, count)
        if count and len(samples):
            at = tuple(samples[:, i] for i in index)
            taken = [[f for f, i in zip(functions, index, strict=True) if i == k] for k in range(count)]
            value[at], error[at] = of_products([multiplied(fs) for fs in taken], rows[samples])
    return Tensor(value, error, "orthants")


# -- functions that bend elsewhere ---------------------------------------------------------------------------


def _between_bends(functions: Sequence[Expr], K: Array, rtol: float) -> Tensor:
    """One tuple after the other; those that differ by order only are one."""
    value = np.ones((len(K),) * len(functions))
    error = np.zeros_like(value)
    known: dict[frozenset[tuple[int, Expr]], tuple[float, float]] = {}
    for at in np.ndindex(value.shape):
        samples = sorted(set(at))
        parts = [Mul(*[f for f, i in zip(functions, at, strict=True) if i == k]) for k in samples]
        key = frozenset(zip(samples, parts, strict=True))
        if key not in known:
            known[key] = bent_product(parts, K[np.ix_(samples, samples)], rtol)
        value[at], error[at] = known[key]
    return Tensor(value, error, "panels")


def _patterns(count: int) -> Iterator[tuple[int, ...]]:
    """All ways in which indices can coincide: the number of the distinct sample at each place."""
    if count == 0:
        yield ()
        return
    for head in _patterns(count - 1):
        for last in range(max(head, default=-1) + 2):
            yield (*head, last)


DIGITS = 25
"""Digits with which closed forms are evaluated: enough for what cancels in them."""


def average(body: Any, variables: Sequence[Any] = (), covariance: Any = None, rtol: float = 1e-10) -> Value:
    """``<body>`` over centred Gaussian ``variables`` of the given ``covariance``.

    ``body`` is an expression, or a :class:`~derive.calculus.gaussian.GaussianAverage` whose covariance is
    numbers.  Closed forms come first.  Then sums of products are taken apart, each factor a function of one
    linear combination of variables: analytic ones are summed over a lattice, those that bend at zero are
    reduced to orthants, and those that bend elsewhere are integrated between the bends.

    Raises SpecError for a body with unknown symbols, or a covariance of another shape;
    :class:`~numerics.errors.Unserved` for what is none of these; :class:`~numerics.errors.NotConverged` where
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
    """What is left when point masses have been integrated out: numbers and simpler averages."""
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
