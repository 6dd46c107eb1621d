"""Sums over indices and integrals over times: taken apart, put together, and put at other indices.

A bound variable belongs to its sum alone.  Whatever is put into an expression here leaves it so: variables
of sums that it meets are renamed apart (:func:`apart`, :func:`put`).  Sums are linear (:func:`addends`,
:func:`times`, :func:`drawn_out`), nested ones open and close (:func:`opened`,
:func:`closed`), and a delta that meets the sum over its index removes it (:func:`pinned`, :func:`settled`).
Two expressions that differ only in such things have one :func:`normal_form`.
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
    """The variables of all sums and integrals in ``e``.

    >>> from sympy import Function
    >>> bound(Sum(Function("f")(s, t), (s, 0, t)))
    {s}
    """
    return {v for x in e.atoms(Sum, Integral) for v, *_ in x.limits}


def unused(symbol: Symbol, taken: Iterable[Expr]) -> Symbol:
    """``symbol``, or the first of ``s_``, ``s_2``, ``s_3``, .. apart from those ``taken``."""
    used = {x.name for x in taken if isinstance(x, Symbol)}
    if symbol.name not in used:
        return symbol
    head = symbol.name.split("_")[0] or symbol.name
    names = (f"{head}_{i if i > 1 else ''}" for i in count(1))
    return Symbol(next(n for n in names if n not in used), **symbol.assumptions0)


def apart(x: Sum | Integral, taken: Iterable[Expr]) -> Sum | Integral:
    """The same sum or integral, its own variables renamed where they are ``taken``.

    >>> from sympy import Function
    >>> apart(Sum(Function("f")(s), (s, 0, t)), [s])
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
    # a variable is bound in the summand and in the bounds of the sums inside its own, never in its own bounds
    inner = all_apart(x.function, {*names, *names.values()})
    limits = []
    for i, (v, *bounds) in enumerate(x.limits):
        outer = {w: names[w] for w, *_ in x.limits[i + 1 :] if w in names}
        limits.append((names.get(v, v), *[b.xreplace(outer) for b in bounds]))
    return x.func(inner.xreplace(names), *limits)


def all_apart(e: Expr, taken: Iterable[Expr], nested: bool = False) -> Expr:
    """``e`` with every sum and integral in it kept apart from ``taken``.

    With ``nested`` no sum's variable is named like that of a sum around it, or like one in its own bounds.
    """
    if not e.has(Sum, Integral):
        return e
    used = {*taken}
    if isinstance(e, Sum | Integral):
        e = apart(e, used | e.free_symbols if nested else used)
        if nested:
            used |= {v for v, *_ in e.limits}
    args = [all_apart(x, used, nested) if isinstance(x, Expr | ExprCondPair) else x for x in e.args]
    return e if list(e.args) == args else e.func(*args)


# -- at other indices ----------------------------------------------------------------------------------------


def put(e: Expr, values: Mapping[Any, Expr]) -> Expr:
    """``e`` with ``values`` for symbols or functions, all at once; bound variables step aside.

    >>> from sympy import Function
    >>> put(Sum(Function("K")(t, s), (s, 0, t)), {t: s})
    Sum(K(s, s_), (s_, 0, s))
    """
    if not e.has(Sum, Integral):
        return e.xreplace(dict(values))
    met = {*values}.union(*[x.free_symbols for x in values], *[x.free_symbols for x in values.values()])
    return all_apart(e, met).xreplace(dict(values))


def rewritten(e: Expr, names: Container[str], change: Callable[[Any], Expr]) -> Expr:
    """``e`` with ``change`` of every function of these names in its place, inside out.

    >>> from sympy import Function
    >>> rewritten(Function("h")(s) ** 2, ["h"], lambda x: 2 * x)
    4*h(s)**2
    """
    return e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in names, change)


def binding(pattern: Expr, atom: Expr) -> Binding:
    """What the symbols in the arguments of ``pattern`` are in those of ``atom``; places may be shifted.

    >>> from sympy import Function
    >>> h = Function("h")
    >>> binding(h(ell + 1, t), h(3, s))
    {ell: 2, t: s}
    """
    found: Binding = {}
    for a, b in zip(pattern.args, atom.args, strict=True):
        free = sorted(a.free_symbols, key=spelled)
        if free:
            found[free[0]] = b - (a - free[0])
    return found


def is_at(x: Expr, like: Expr) -> bool:
    """Is ``x`` the function ``like`` at some indices (where that has a number, at that number)?

    >>> from sympy import Function
    >>> h = Function("h")
    >>> is_at(h(2, s), h(ell, t)), is_at(h(2, s), h(1, t))
    (True, False)
    """
    if x.func != like.func or len(x.args) != len(like.args):
        return False
    return all(not a.is_Integer or a == b for a, b in zip(like.args, x.args, strict=True))


def placed(rhs: Expr, lhs: Expr, atom: Expr) -> Expr:
    """The right-hand side of ``lhs = rhs`` at the indices of ``atom``, the same function elsewhere.

    >>> from sympy import Function
    >>> h, u, K = (Function(n) for n in ("h", "u", "K"))
    >>> placed(u(ell + 1, t) + Sum(K(s), (s, 0, t)), h(ell + 1, t), h(1, s))
    u(1, s) + Sum(K(s_), (s_, 0, s))
    """
    return put(rhs, {x: y for x, y in binding(lhs, atom).items() if x != y})


def defined(e: Expr, equations: Iterable[tuple[Expr, Expr]]) -> Expr:
    """``e`` with the left side of each equation, wherever it stands, written by its right side.

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
    """The values of the indices in ``ranges``, and of ``t`` and ``s``, at which ``pattern`` is ``atom``.

    Consistent with what is ``known``.  None when there are none, or when a value is certainly out of range.

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
    found: Binding = dict(known or {})
    for p, a in zip(pattern.args, atom.args, strict=True):
        free = [x for x in (ell, *by_index, t, s) if p.has(x)]
        if not free:
            if p != a:
                return None
            continue
        value = a - (p - free[0])
        if value.has(free[0]) and p != free[0] and not a.has(free[0]):
            return None  # more than one index in one place: not a pattern
        if found.setdefault(free[0], value) != value:
            return None
        r = by_index.get(free[0])
        if r is not None and ((value - r.lower).is_negative or (r.upper - value).is_negative):
            return None
    return found


def factors(e: Expr) -> list[Expr]:
    """The factors of a product, whole powers written out.

    >>> sorted(factors(ell**2 * s), key=str)
    [ell, ell, s]
    """
    found: list[Expr] = []
    for x in Mul.make_args(e):
        power = isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0
        found += [x.base] * int(x.exp) if power else [x]
    return found


def gathered(parts: Iterable[tuple[TermKey, Any]]) -> dict[TermKey, Any]:
    """The coefficients of equal keys added up; what cancels is gone.

    >>> gathered([("a", ell), ("b", s), ("a", -ell)])
    {'b': s}
    """
    found: dict[TermKey, Any] = {}
    for key, c in parts:
        found[key] = found[key] + c if key in found else c
    return {key: c for key, c in found.items() if c}


# -- linearity -----------------------------------------------------------------------------------------------


def addends(e: Expr) -> tuple[Expr, ...]:
    """The addends of ``e``; a sum (or integral) of several as one sum for each.

    >>> from sympy import Function
    >>> f, g = Function("f"), Function("g")
    >>> addends(Sum(f(s) + g(s), (s, 0, t)))
    (Sum(f(s), (s, 0, t)), Sum(g(s), (s, 0, t)))
    """
    if isinstance(e, Sum | Integral):
        return tuple(e.func(x, *e.limits) for x in Add.make_args(e.function.expand()))
    return tuple(Add.make_args(e.expand()))


def times(factor: Expr, e: Expr) -> Expr:
    """``factor * e`` with the factor taken inside every sum and integral, however deep.

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
        e = apart(e, factor.free_symbols | bound(factor))
        return e.func(times(factor, e.function), *e.limits)
    inner = [x for x in Mul.make_args(e) if isinstance(x, Sum | Integral)]
    if len(inner) == 1 and e != inner[0]:
        return times(factor * Mul(*[x for x in e.args if x is not inner[0]]), inner[0])
    return factor * e


def drawn_out(e: Expr, moves: Callable[[Expr], bool] = lambda x: True) -> Expr:
    """Factors (those that ``moves`` allows) that no variable of a sum or integral is in, before it.

    >>> from sympy import Function
    >>> f = Function("f")
    >>> drawn_out(Sum(f(t) * f(s), (s, 0, t)))
    f(t)*Sum(f(s), (s, 0, t))
    """

    def draw(x: Sum | Integral) -> Expr:
        own = {lim[0] for lim in x.limits}
        front = [y for y in Mul.make_args(x.function) if not own & y.free_symbols and moves(y)]
        rest = Mul(*[y for y in Mul.make_args(x.function) if y not in front])
        return Mul(*front) * x.func(rest, *x.limits)

    return e.replace(lambda x: isinstance(x, Sum | Integral), draw)


def without_empty(e: Expr) -> Expr:
    """``e`` with sums and integrals of zero removed, inside out."""
    if not e.has(Sum, Integral):
        return e
    args = [without_empty(x) if isinstance(x, Expr) else x for x in e.args]
    if isinstance(e, Sum | Integral) and args[0] == 0:
        return S.Zero
    return e if list(e.args) == args else e.func(*args)


# -- opened and closed ---------------------------------------------------------------------------------------


def opened(e: Expr) -> tuple[Expr, tuple[tuple[Limit, type[Expr]], ...]]:
    """The body of nested sums and integrals, factors before them taken in, and their limits, innermost last.

    >>> from sympy import Function
    >>> f = Function("f")
    >>> body, limits = opened(2 * Integral(f(s) * Sum(f(ell), (ell, 1, 3)), (s, 0, t)))
    >>> body, [lim for lim, _ in limits]
    (2*f(ell)*f(s), [(s, 0, t), (ell, 1, 3)])
    """
    found: list[tuple[Limit, type[Expr]]] = []
    factor: Expr = S.One
    while True:
        inner = [x for x in Mul.make_args(e) if isinstance(x, Sum | Integral)]
        if len(inner) != 1:
            return factor * e, tuple(found)
        factor *= Mul(*[x for x in Mul.make_args(e) if x is not inner[0]])
        x = apart(inner[0], factor.free_symbols | {lim[0] for lim, _ in found})
        found += [(tuple(lim), x.func) for lim in reversed(x.limits)]
        e = x.function


def closed(body: Expr, limits: Iterable[tuple[Limit, type[Expr]]]) -> Expr:
    """The sums and integrals with these limits, innermost last, over ``body``."""
    groups: list[tuple[type[Expr], list[Limit]]] = []
    for lim, kind in reversed(tuple(limits)):
        if groups and groups[-1][0] is kind:
            groups[-1][1].append(lim)
        else:
            groups.append((kind, [lim]))
    for kind, own in groups:
        body = kind(body, *own)
    return body


def over(body: Expr, ranges: Iterable[IndexRange | Limit]) -> Expr:
    """The sum of ``body`` over ``ranges``, which may be none."""
    limits = [r.limits if isinstance(r, IndexRange) else r for r in ranges]
    return Sum(body, *limits) if limits else body


# -- deltas --------------------------------------------------------------------------------------------------


def pinned(term: Expr, v: Symbol) -> tuple[Expr, Expr] | None:
    """A delta among the factors of ``term`` that fixes ``v``, and the value.

    >>> pinned(2 * KroneckerDelta(ell, 3), ell)
    (KroneckerDelta(3, ell), 3)
    """
    for x in Mul.make_args(term):
        if isinstance(x, KroneckerDelta | DiracDelta) and x.has(v):
            gap = (x.args[0] - x.args[1] if isinstance(x, KroneckerDelta) else x.args[0]).expand()
            slope = gap.coeff(v)
            rest = gap - slope * v
            if slope in (1, -1) and not rest.has(v):
                return x, -rest / slope
    return None


def within(value: Expr, lower: Expr, upper: Expr, v: Symbol) -> Expr | None:
    """1 when ``value`` is in the range of ``v``, 0 when not; None when that cannot be told.

    Indices of samples are in range; a sum of indices, such as a position and an offset, need not be.  Times
    are at least the lower bound and not after the present, which a sum up to ``t`` includes and one up to
    ``t - 1`` leaves out.
    """
    if (upper - value).is_negative or (value - lower).is_negative:
        return S.Zero
    if v.is_integer and not (value.is_Symbol or value.is_number):
        return None
    if v.is_integer or (upper - value).is_nonnegative or upper.is_Symbol:
        return S.One
    return 1 - KroneckerDelta(upper + 1, value) if (upper + 1).is_Symbol else None


def settled(e: Expr, inside: Callable[[Expr, Expr, Expr, Symbol], Expr | None] = within) -> Expr:
    """``e`` with every sum (or integral) done that a delta fixes; addends of such sums come apart.

    ``inside(value, lower, upper, variable)`` is what the value's being in range counts: 1, 0, an expression,
    or None to leave the sum as it is.

    >>> from sympy import Function
    >>> from derive import P
    >>> from derive.calculus.symbols import alpha, mu
    >>> f = Function("f")
    >>> settled(Sum(KroneckerDelta(mu, alpha) * f(alpha) + f(alpha), (alpha, 1, P)))
    f(mu) + Sum(f(alpha), (alpha, 1, P))
    """
    if not e.has(KroneckerDelta, DiracDelta) or not e.has(Sum, Integral):
        return e
    args = [settled(x, inside) if isinstance(x, Expr) else x for x in e.args]
    e = e if list(e.args) == args else e.func(*args)
    if not isinstance(e, Sum | Integral) or not e.function.has(KroneckerDelta, DiracDelta):
        return e
    total = []
    for term in Add.make_args(e.function.expand()):
        factor, limits = S.One, [tuple(lim) for lim in e.limits]
        for v in [lim[0] for lim in limits]:
            place = [lim[0] for lim in limits].index(v)
            found = pinned(term, v)
            _, lower, upper = limits[place]
            weight = None if found is None else inside(found[1], lower, upper, v)
            if found is None or weight is None:
                continue
            delta, value = found
            term, factor = put(term / delta, {v: value}), factor * weight
            others = limits[:place] + limits[place + 1 :]
            limits = [(w, *[b.xreplace({v: value}) for b in bounds]) for w, *bounds in others]
        total.append(factor * (e.func(term, *limits) if limits and factor != 0 else term))
    return Add(*total)


# -- normal form ---------------------------------------------------------------------------------------------


def normal_form(e: Expr) -> Expr:
    """``e`` expanded, each addend one flat sum (or integral) with standard names for its dummies.

    >>> from sympy import Function, symbols
    >>> i, j, k = symbols("i j k")
    >>> f = Function("f")
    >>> normal_form(Sum(f(i) * Sum(f(i, j), (j, 0, 3)), (i, 0, 2))) == normal_form(
    ...     Sum(f(k) * f(k, i), (i, 0, 3), (k, 0, 2)))
    True
    >>> normal_form(6 / (3 * i + 3))
    2/(i + 1)
    """
    return Add(*[_standard(*x) for x in _flat(_expanded(e))])


def _expanded(e: Expr) -> Expr:
    """Expand, inside of sums and integrals too, until nothing changes.

    Numbers that all terms of a denominator share stand in front: ``6/(3 x + 3)`` is ``2/(x + 1)``.
    """
    before = None
    while e != before:
        before, e = e, e.expand()
        sums = {x: x.base.primitive() for x in e.atoms(Pow) if x.base.is_Add and x.exp.is_negative}
        e = e.xreplace({x: n**x.exp * rest**x.exp for x, (n, rest) in sums.items() if n != 1})
    return e


def _flat(e: Expr) -> list[tuple[Expr, list[Limit]]]:
    """Addends of an expanded expression, each as integrand and limits.

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


def _standard(body: Expr, limits: list[Limit]) -> Expr:
    """The dummies named in the order of what they run over; of those alike, the first in SymPy's writing."""
    if not limits:
        return body
    number, body = body.as_coeff_Mul()
    alike: dict[tuple[str, ...], list[Limit]] = {}
    hidden = {v: Symbol("dummy") for v, *_ in limits}
    for v, lower, upper, kind in limits:
        bounds = (srepr(x.xreplace(hidden)) for x in (lower, upper))
        alike.setdefault((kind.__name__, str(sorted(v.assumptions0.items())), *bounds), []).append(
            (v, lower, upper, kind)
        )
    groups = [alike[key] for key in sorted(alike)]
    written = [
        _named(body, [x for group in choice for x in group]) for choice in product(*map(permutations, groups))
    ]
    return number * (written[0] if len(written) == 1 else min(written, key=srepr))


def _named(body: Expr, limits: list[Limit]) -> Expr:
    """The sums and integrals over ``body``, their dummies called ``dummy0``, ``dummy1``, .. in this order."""
    names = {v: Symbol(f"dummy{k}", **v.assumptions0) for k, (v, *_) in enumerate(limits)}
    body = body.xreplace(names)
    chosen = [((names[v], lo.xreplace(names), up.xreplace(names)), kind) for v, lo, up, kind in limits]
    for kind in (Sum, Integral):
        body = closed(body, [x for x in reversed(chosen) if x[1] == kind])
    return body
