"""Algebra of sums over indices and integrals over times: expansion, deltas, normal form.

A bound variable (an index of a sum or integral) must not be a symbol that also occurs outside of its sum:
before a substitution, bound variables for which this would happen are renamed (:func:`rename_bound`,
:func:`substitute`).
Sums are expanded by linearity (:func:`addends`, :func:`times`, :func:`drawn_out`), nested sums are split into
body and limits (:func:`opened`, :func:`closed`), and a Kronecker or Dirac delta removes the sum over its
index (:func:`fixed_by_delta`, :func:`evaluate_deltas`). Two expressions that differ only in the order and the
names of their sums have the same :func:`normal_form`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from itertools import count, permutations, product
from typing import Any, TypeVar

from sympy import Add, DiracDelta, Expr, Integral, KroneckerDelta, Mul, Pow, S, Sum, Symbol, srepr
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.piecewise import ExprCondPair

from derive.calculus.symbols import IndexRange, ell, s, spelled, t

Limit = tuple[Any, ...]
"""``(variable, lower, upper)``."""
Binding = dict[Symbol, Expr]
TermKey = TypeVar("TermKey")

# -- bound variables -----------------------------------------------------------------------------------------


def bound(e: Expr) -> set[Symbol]:
    """Return the bound variables of all sums and integrals in an expression.

    >>> from sympy import Function
    >>> bound(Sum(Function("f")(s, t), (s, 0, t)))
    {s}
    """
    return {v for x in e.atoms(Sum, Integral) for v, *_ in x.limits}


def unused(symbol: Symbol, taken: Iterable[Expr]) -> Symbol:
    """Return ``symbol`` if its name is not one in ``taken``, otherwise a symbol with a name that is not.

    The new name is the first unused one of ``s_``, ``s_2``, ``s_3``, ..., where ``s`` is the name of
    ``symbol`` before its first underscore. The new symbol has the assumptions of ``symbol``.
    """
    used = {x.name for x in taken if isinstance(x, Symbol)}
    if symbol.name not in used:
        return symbol
    head = symbol.name.split("_")[0] or symbol.name
    names = (f"{head}_{i if i > 1 else ''}" for i in count(1))
    return Symbol(next(n for n in names if n not in used), **symbol.assumptions0)


def rename_bound(x: Sum | Integral, taken: Iterable[Expr]) -> Sum | Integral:
    """Return the same sum or integral, with new names for those of its bound variables that are in ``taken``.

    >>> from sympy import Function
    >>> rename_bound(Sum(Function("f")(s), (s, 0, t)), [s])
    Sum(f(s_), (s_, 0, t))
    """
    names: Binding = {}
    used = {*taken}
    for v, *_ in x.limits:
        if v in used:
            names[v] = unused(v, used | x.function.free_symbols | {lim[0] for lim in x.limits})
            used.add(names[v])
    if not names:
        return x
    # Sums and integrals inside of the summand get other variables if their variables are among the old or new
    # names, so that a renamed variable is not bound by an inner sum.
    inner = rename_all_bound(x.function, {*names, *names.values()})
    limits = []
    for i, (v, *bounds) in enumerate(x.limits):
        # In the limits of a SymPy sum an outer variable comes after the inner ones. The bounds of v may
        # contain the variables of outer sums, which are renamed there.
        outer = {w: names[w] for w, *_ in x.limits[i + 1 :] if w in names}
        limits.append((names.get(v, v), *[b.xreplace(outer) for b in bounds]))
    return x.func(inner.xreplace(names), *limits)


def rename_all_bound(e: Expr, taken: Iterable[Expr], nested: bool = False) -> Expr:
    """Return an expression in which no bound variable of a sum or integral, at any depth, is in ``taken``.

    With ``nested``, the variables of a sum also differ from the free symbols of this sum and from the
    variables of the sums around it.
    """
    if not e.has(Sum, Integral):
        return e
    used = {*taken}
    if isinstance(e, Sum | Integral):
        e = rename_bound(e, used | e.free_symbols if nested else used)
        if nested:
            used |= {v for v, *_ in e.limits}
    args = [rename_all_bound(x, used, nested) if isinstance(x, Expr | ExprCondPair) else x for x in e.args]
    return e if list(e.args) == args else e.func(*args)


def rename_multiplied(e: Expr, taken: Iterable[Expr] = (), *, powers: bool = False) -> Expr:
    """Return ``e``, in which multiplied and nested sums and integrals have different bound variables.

    The limits of multiplied sums may then be collected. No bound variable is in ``taken``. Only variables
    that collide get new names; addends may have the same ones. With ``powers``, positive integer powers of
    sums are written out as products.

    >>> from sympy import Function
    >>> f, g = Function("f"), Function("g")
    >>> rename_multiplied(Sum(f(s), (s, 0, t)) * Sum(g(s), (s, 0, t)))
    Sum(f(s), (s, 0, t))*Sum(g(s_), (s_, 0, t))
    >>> rename_multiplied(Sum(f(s), (s, 0, t)) ** 2, powers=True)
    Sum(f(s), (s, 0, t))*Sum(f(s_), (s_, 0, t))
    """
    if not e.has(Sum, Integral):
        return e
    used = {*taken}
    if isinstance(e, Sum | Integral):
        e = rename_bound(e, used)
        used |= {v for v, *_ in e.limits}
        return e.func(rename_multiplied(e.function, used, powers=powers), *e.limits)
    parts = factors(e) if powers else Mul.make_args(e)
    if len(parts) == 1:
        args = [
            rename_multiplied(x, used, powers=powers) if isinstance(x, Expr | ExprCondPair) else x
            for x in e.args
        ]
        return e.func(*args)
    used |= e.free_symbols
    renamed: list[Expr] = []
    for part in parts:
        renamed.append(rename_multiplied(part, used, powers=powers))
        used |= bound(renamed[-1])
    return Mul(*renamed)


# -- at other indices ----------------------------------------------------------------------------------------


def substitute(e: Expr, values: Mapping[Any, Expr]) -> Expr:
    """Return ``e`` with all ``values`` substituted at once; colliding bound variables are renamed.

    >>> from sympy import Function
    >>> substitute(Sum(Function("K")(t, s), (s, 0, t)), {t: s})
    Sum(K(s, s_), (s_, 0, s))
    """
    if not e.has(Sum, Integral):
        return e.xreplace(dict(values))
    met = {*values}.union(*[x.free_symbols for x in values], *[x.free_symbols for x in values.values()])
    return rename_all_bound(e, met).xreplace(dict(values))


def rewritten(e: Expr, names: Container[str], change: Callable[[Any], Expr]) -> Expr:
    """Return ``e`` with every function f(..) whose name is in ``names`` replaced by ``change(f(..))``.

    The functions are applied undefined functions; inner ones are replaced before those around them.

    >>> from sympy import Function
    >>> rewritten(Function("h")(s) ** 2, ["h"], lambda x: 2 * x)
    4*h(s)**2
    """
    return e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in names, change)


def binding(pattern: Expr, atom: Expr) -> Binding:
    """Return the values of the indices in ``pattern`` at which ``pattern`` becomes ``atom``.

    Both are the same function, at different indices. An index in ``pattern`` may be shifted by a constant.
    The result maps indices to values. Arguments of ``pattern`` without an index are not compared;
    :func:`match` compares them.

    >>> from sympy import Function
    >>> h = Function("h")
    >>> binding(h(ell + 1, t), h(3, s))
    {ell: 2, t: s}
    """
    values: Binding = {}
    for a, b in zip(pattern.args, atom.args, strict=True):
        free = sorted(a.free_symbols, key=spelled)
        if free:
            values[free[0]] = b - (a - free[0])
    return values


def is_at(x: Expr, like: Expr) -> bool:
    """Return whether ``x`` is the function ``like`` at any values of the indices in ``like``.

    An integer among the arguments of ``like`` must agree with that of ``x``; the other arguments are not
    compared.

    >>> from sympy import Function
    >>> h = Function("h")
    >>> is_at(h(2, s), h(ell, t)), is_at(h(2, s), h(1, t))
    (True, False)
    """
    if x.func != like.func or len(x.args) != len(like.args):
        return False
    return all(not a.is_Integer or a == b for a, b in zip(like.args, x.args, strict=True))


def placed(rhs: Expr, lhs: Expr, atom: Expr) -> Expr:
    """Evaluate the equation ``lhs = rhs`` at the indices of ``atom``, and return its right-hand side there.

    ``atom`` is the function on the left-hand side at other indices.

    >>> from sympy import Function
    >>> h, u, K = (Function(n) for n in ("h", "u", "K"))
    >>> placed(u(ell + 1, t) + Sum(K(s), (s, 0, t)), h(ell + 1, t), h(1, s))
    u(1, s) + Sum(K(s_), (s_, 0, s))
    """
    return substitute(rhs, {x: y for x, y in binding(lhs, atom).items() if x != y})


def defined(e: Expr, equations: Iterable[tuple[Expr, Expr]]) -> Expr:
    """Return ``e`` in which the left-hand side of each equation is replaced by its right-hand side.

    The replacement is made at all values of the indices, and one equation is applied after the other.

    >>> from sympy import Function
    >>> g, h, z = (Function(n) for n in ("g", "h", "z"))
    >>> defined(g(s) ** 2, [(g(t), h(t) * z(t))])
    h(s)**2*z(s)**2
    """
    for lhs, rhs in equations:
        e = e.xreplace({a: placed(rhs, lhs, a) for a in e.atoms(AppliedUndef) if is_at(a, lhs)})
    return e


def match(
    pattern: Expr, atom: Expr, ranges: Iterable[IndexRange], known: Binding | None = None
) -> Binding | None:
    """Return the values of indices and times at which ``pattern`` equals ``atom``.

    Both are applied functions. The indices are ell and those of ``ranges``, and the times are t and s; each
    argument of ``pattern`` contains at most one of them, perhaps shifted. The result contains the values in
    ``known``; it is None if these are inconsistent, if ``pattern`` does not match, or if a value is certainly
    out of its range.

    >>> from sympy import Function
    >>> from derive import L
    >>> from derive.calculus.symbols import mu
    >>> u = Function("u")
    >>> match(u(ell + 1, mu, t), u(3, mu, 0), [IndexRange(ell, 1, L - 1), IndexRange(mu, 1, 9)])
    {ell: 2, mu: mu, t: 0}
    >>> match(u(ell + 1, mu, t), u(1, mu, 0), [IndexRange(ell, 1, L - 1), IndexRange(mu, 1, 9)])
    """
    if pattern.func != atom.func or len(pattern.args) != len(atom.args):
        return None
    by_index = {r.index: r for r in ranges}
    values: Binding = dict(known or {})
    for p, a in zip(pattern.args, atom.args, strict=True):
        free = [x for x in (ell, *by_index, t, s) if p.has(x)]
        if not free:
            if p != a:
                return None
            continue
        value = a - (p - free[0])
        if value.has(free[0]) and p != free[0] and not a.has(free[0]):
            return None  # the argument p is not an index plus a constant, as 2*ell is not
        if values.setdefault(free[0], value) != value:
            return None
        r = by_index.get(free[0])
        if r is not None and ((value - r.lower).is_negative or (r.upper - value).is_negative):
            return None
    return values


def factors(e: Expr) -> list[Expr]:
    """Return the factors of a product; positive integer powers are written out.

    >>> sorted(factors(ell**2 * s), key=str)
    [ell, ell, s]
    """
    result: list[Expr] = []
    for x in Mul.make_args(e):
        power = isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0
        result += [x.base] * int(x.exp) if power else [x]
    return result


def gathered(parts: Iterable[tuple[TermKey, Any]]) -> dict[TermKey, Any]:
    """Add the coefficients of equal keys in pairs (key, coefficient); return a dictionary without zeros.

    Coefficients are not expanded: a sum that vanishes only after expansion is kept.

    >>> gathered([("a", ell), ("b", s), ("a", -ell)])
    {'b': s}
    """
    totals: dict[TermKey, Any] = {}
    for key, c in parts:
        totals[key] = totals[key] + c if key in totals else c
    return {key: c for key, c in totals.items() if c}


# -- linearity -----------------------------------------------------------------------------------------------


def addends(e: Expr) -> tuple[Expr, ...]:
    """Return the addends of ``e``; a sum or integral ``e`` is split into one for each term of its body.

    >>> from sympy import Function
    >>> f, g = Function("f"), Function("g")
    >>> addends(Sum(f(s) + g(s), (s, 0, t)))
    (Sum(f(s), (s, 0, t)), Sum(g(s), (s, 0, t)))
    """
    if isinstance(e, Sum | Integral):
        return tuple(e.func(x, *e.limits) for x in Add.make_args(e.function.expand()))
    return tuple(Add.make_args(e.expand()))


def times(factor: Expr, e: Expr) -> Expr:
    """Return ``factor * e`` with the factor moved inside every sum and integral.

    A product of several sums, a function of a sum, and a sum inside of an unexpanded product are exceptions:
    they are multiplied by the factor.

    >>> from sympy import Function
    >>> f = Function("f")
    >>> times(f(s), Sum(f(s), (s, 0, t)))
    Sum(f(s)*f(s_), (s_, 0, t))
    """
    if factor == 1:
        return e
    if isinstance(e, Add):
        return Add(*[times(factor, x) for x in e.args])
    if isinstance(e, Sum | Integral):
        e = rename_bound(e, factor.free_symbols | bound(factor))
        return e.func(times(factor, e.function), *e.limits)
    inner = [x for x in Mul.make_args(e) if isinstance(x, Sum | Integral)]
    if len(inner) == 1 and e != inner[0]:
        return times(factor * Mul(*[x for x in e.args if x is not inner[0]]), inner[0])
    return factor * e


def drawn_out(e: Expr, moves: Callable[[Expr], bool] = lambda x: True) -> Expr:
    """Move factors that do not depend on the bound variables in front of each sum or integral.

    Only factors for which ``moves`` returns True are moved, by default all.

    >>> from sympy import Function
    >>> f = Function("f")
    >>> drawn_out(Sum(f(t) * f(s), (s, 0, t)))
    f(t)*Sum(f(s), (s, 0, t))
    """

    def draw(x: Sum | Integral) -> Expr:
        """Return one sum or integral with the factors that do not depend on its variables in front."""
        variables = {lim[0] for lim in x.limits}
        front = [y for y in Mul.make_args(x.function) if not variables & y.free_symbols and moves(y)]
        remaining = Mul(*[y for y in Mul.make_args(x.function) if y not in front])
        return Mul(*front) * x.func(remaining, *x.limits)

    return e.replace(lambda x: isinstance(x, Sum | Integral), draw)


def without_empty(e: Expr) -> Expr:
    """Return ``e`` with zero in place of each sum and integral whose summand or integrand is zero."""
    if not e.has(Sum, Integral):
        return e
    args = [without_empty(x) if isinstance(x, Expr) else x for x in e.args]
    if isinstance(e, Sum | Integral) and args[0] == 0:
        return S.Zero
    return e if list(e.args) == args else e.func(*args)


# -- opened and closed ---------------------------------------------------------------------------------------


def opened(e: Expr) -> tuple[Expr, tuple[tuple[Limit, type[Expr]], ...]]:
    """Split nested sums and integrals into (body, limits), the innermost limit last.

    Each limit is a pair of (variable, lower, upper) and the class Sum or Integral. Factors in front of an
    inner sum become factors of the body. A product of several sums is not split and stays in the body.
    :func:`closed` is the inverse.

    >>> from sympy import Function
    >>> f = Function("f")
    >>> body, limits = opened(2 * Integral(f(s) * Sum(f(ell), (ell, 1, 3)), (s, 0, t)))
    >>> body, [lim for lim, _ in limits]
    (2*f(ell)*f(s), [(s, 0, t), (ell, 1, 3)])
    """
    limits: list[tuple[Limit, type[Expr]]] = []
    factor: Expr = S.One
    while True:
        inner = [x for x in Mul.make_args(e) if isinstance(x, Sum | Integral)]
        if len(inner) != 1:
            return factor * e, tuple(limits)
        factor *= Mul(*[x for x in Mul.make_args(e) if x is not inner[0]])
        x = rename_bound(inner[0], factor.free_symbols | {lim[0] for lim, _ in limits})
        limits += [(tuple(lim), x.func) for lim in reversed(x.limits)]
        e = x.function


def closed(body: Expr, limits: Iterable[tuple[Limit, type[Expr]]]) -> Expr:
    """Return nested sums and integrals over ``body``, the inverse of :func:`opened`.

    ``limits`` are pairs of (variable, lower, upper) and the class Sum or Integral, the innermost last.
    """
    groups: list[tuple[type[Expr], list[Limit]]] = []
    for lim, kind in reversed(tuple(limits)):
        if groups and groups[-1][0] is kind:
            groups[-1][1].append(lim)
        else:
            groups.append((kind, [lim]))
    for kind, grouped in groups:
        body = kind(body, *grouped)
    return body


def over(body: Expr, ranges: Iterable[IndexRange | Limit]) -> Expr:
    """Return the sum of ``body`` over indices with these ranges; ``body`` itself if there are none."""
    limits = [r.limits if isinstance(r, IndexRange) else r for r in ranges]
    return Sum(body, *limits) if limits else body


# -- deltas --------------------------------------------------------------------------------------------------


def fixed_by_delta(term: Expr, v: Symbol) -> tuple[Expr, Expr] | None:
    """Return (delta, value) for the first delta among the factors of ``term`` that fixes ``v``, to ``value``.

    The result is None if there is no such delta. Derivatives of a Dirac delta do not fix a variable.

    >>> fixed_by_delta(2 * KroneckerDelta(ell, 3), ell)
    (KroneckerDelta(3, ell), 3)
    """
    for x in Mul.make_args(term):
        if isinstance(x, DiracDelta) and len(x.args) > 1:
            continue  # a derivative of a delta fixes no variable: it differentiates the other factors
        if isinstance(x, KroneckerDelta | DiracDelta) and x.has(v):
            gap = (x.args[0] - x.args[1] if isinstance(x, KroneckerDelta) else x.args[0]).expand()
            slope = gap.coeff(v)
            constant = gap - slope * v
            if slope in (1, -1) and not constant.has(v):
                return x, -constant / slope
    return None


def within(value: Expr, lower: Expr, upper: Expr, v: Symbol) -> Expr | None:
    """Return 1 if ``value`` is from ``lower`` to ``upper``, the bounds of the variable ``v``, and 0 if not.

    None if this cannot be decided. For an integer ``v``, a symbol or number is taken to be in range unless
    the bounds exclude it; for a sum of indices, such as a position and an offset, the result is 0 or None.
    Times are assumed to be from the lower bound to the present: a sum up to ``t`` includes the present, and a
    sum up to ``t - 1`` gives the factor ``1 - delta(t, value)``, which excludes it.
    """
    if (upper - value).is_negative or (value - lower).is_negative:
        return S.Zero
    if v.is_integer and not (value.is_Symbol or value.is_number):
        return None
    if v.is_integer or (upper - value).is_nonnegative or upper.is_Symbol:
        return S.One
    return 1 - KroneckerDelta(upper + 1, value) if (upper + 1).is_Symbol else None


def evaluate_deltas(e: Expr, inside: Callable[[Expr, Expr, Expr, Symbol], Expr | None] = within) -> Expr:
    """Return ``e`` without the sums and integrals whose variable is fixed by a delta in the summand.

    ``inside(value, lower, upper, variable)`` returns the factor for a value: 1 in range, 0 out of range, an
    expression, or None to keep the sum. A sum with a delta in its summand is split into its addends.

    >>> from sympy import Function
    >>> from derive import P
    >>> from derive.calculus.symbols import alpha, mu
    >>> f = Function("f")
    >>> evaluate_deltas(Sum(KroneckerDelta(mu, alpha) * f(alpha) + f(alpha), (alpha, 1, P)))
    f(mu) + Sum(f(alpha), (alpha, 1, P))
    """
    if not e.has(KroneckerDelta, DiracDelta) or not e.has(Sum, Integral):
        return e
    args = [evaluate_deltas(x, inside) if isinstance(x, Expr) else x for x in e.args]
    e = e if list(e.args) == args else e.func(*args)
    if not isinstance(e, Sum | Integral) or not e.function.has(KroneckerDelta, DiracDelta):
        return e
    total = []
    for term in Add.make_args(e.function.expand()):
        factor, limits = S.One, [tuple(lim) for lim in e.limits]
        for v in [lim[0] for lim in limits]:
            place = [lim[0] for lim in limits].index(v)
            pin = fixed_by_delta(term, v)
            _, lower, upper = limits[place]
            weight = None if pin is None else inside(pin[1], lower, upper, v)
            if pin is None or weight is None:
                continue
            delta, value = pin
            term, factor = substitute(term / delta, {v: value}), factor * weight
            others = limits[:place] + limits[place + 1 :]
            limits = [(w, *[b.xreplace({v: value}) for b in bounds]) for w, *bounds in others]
        total.append(factor * (e.func(term, *limits) if limits and factor != 0 else term))
    return Add(*total)


# -- normal form ---------------------------------------------------------------------------------------------


def normal_form(e: Expr, letter: str = "dummy") -> Expr:
    """Return ``e`` expanded, each addend as one flat sum or integral with standard names of bound variables.

    If an addend has sums and integrals, the sums are inside of the integrals. The names are ``letter`` with
    the numbers 0, 1, ...; sums inside of functions, averages and other powers than positive integer ones keep
    their variables.

    >>> from sympy import Function, symbols
    >>> i, j, k = symbols("i j k")
    >>> f = Function("f")
    >>> normal_form(Sum(f(i) * Sum(f(i, j), (j, 0, 3)), (i, 0, 2))) == normal_form(
    ...     Sum(f(k) * f(k, i), (i, 0, 3), (k, 0, 2)))
    True
    >>> normal_form(6 / (3 * i + 3))
    2/(i + 1)
    """
    return Add(*[_standard(*x, letter) for x in _flat(_expanded(e))])


def _expanded(e: Expr) -> Expr:
    """Expand products and powers, also inside of sums and integrals, until nothing changes.

    Common numbers of the terms of a denominator are moved in front: ``6/(3 x + 3)`` becomes ``2/(x + 1)``.
    """
    before = None
    while e != before:
        before, e = e, e.expand()
        sums = {x: x.base.primitive() for x in e.atoms(Pow) if x.base.is_Add and x.exp.is_negative}
        e = e.xreplace({x: n**x.exp * rest**x.exp for x, (n, rest) in sums.items() if n != 1})
    return e


def _flat(e: Expr) -> list[tuple[Expr, list[Limit]]]:
    """Return the addends of an expanded expression as pairs (summand without sums, list of limits).

    A limit is ``(variable, lower, upper, Sum or Integral)``.
    """
    if isinstance(e, Add):
        return [x for a in e.args for x in _flat(a)]
    if isinstance(e, Sum | Integral):
        fresh = {v: v.as_dummy() for v, *_ in e.limits}
        limits = [
            (fresh[v], lo.xreplace(fresh), up.xreplace(fresh), e.func) for v, lo, up in map(tuple, e.limits)
        ]
        return [(body, limits + inner) for body, inner in _flat(e.function.xreplace(fresh))]
    if isinstance(e, Mul) and e.has(Sum, Integral):
        parts = [_flat(x) for x in e.args]
        return [
            (Mul(*[b for b, _ in choice]), [lim for _, limits in choice for lim in limits])
            for choice in product(*parts)
        ]
    if isinstance(e, Pow) and e.exp.is_Integer and e.exp > 1 and e.has(Sum, Integral):
        return _flat(Mul(*[e.base] * int(e.exp), evaluate=False))
    return [(e, [])]


def _standard(body: Expr, limits: list[Limit], letter: str) -> Expr:
    """Return the sum of ``body`` over ``limits`` with standard names and order of its bound variables.

    Variables are ordered by their bounds; of the orders of variables with equal bounds, the one whose
    ``srepr`` comes first is taken.
    """
    if not limits:
        return body
    number, body = body.as_coeff_Mul()
    by_range: dict[tuple[str, ...], list[Limit]] = {}
    hidden = {v: Symbol("dummy") for v, *_ in limits}
    for v, lower, upper, kind in limits:
        bounds = (srepr(x.xreplace(hidden)) for x in (lower, upper))
        by_range.setdefault((kind.__name__, str(sorted(v.assumptions0.items())), *bounds), []).append(
            (v, lower, upper, kind)
        )
    groups = [by_range[key] for key in sorted(by_range)]
    candidates = [
        _named(body, [x for group in choice for x in group], letter)
        for choice in product(*map(permutations, groups))
    ]
    return number * (candidates[0] if len(candidates) == 1 else min(candidates, key=srepr))


def _named(body: Expr, limits: list[Limit], letter: str) -> Expr:
    """Return ``body`` summed and integrated over ``limits``, with the sums inside of the integrals.

    The bound variables get the names ``letter`` with the numbers 0, 1, ... in the order of ``limits``.
    """
    names = {v: Symbol(f"{letter}{k}", **v.assumptions0) for k, (v, *_) in enumerate(limits)}
    body = body.xreplace(names)
    chosen = [((names[v], lo.xreplace(names), up.xreplace(names)), kind) for v, lo, up, kind in limits]
    for kind in (Sum, Integral):
        body = closed(body, [x for x in reversed(chosen) if x[1] == kind])
    return body
