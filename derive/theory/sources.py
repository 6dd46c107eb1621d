"""The Gaussian sources of a theory at any indices: their covariances, and Stein's lemma over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sympy import Add, Expr, Integral, Max, Mul, S, Sum, Symbol, oo
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response, is_field, is_random
from derive.calculus.gaussian import GaussianAverage
from derive.calculus.sums import factors as factors_of
from derive.calculus.sums import match, put, unused
from derive.program.words import IndexRange, s, t
from derive.theory.data import Source


@dataclass(frozen=True)
class Partner:
    """A source, at summed indices, with its covariance with a given one."""

    symbol: AppliedUndef
    covariance: Expr
    over: tuple[IndexRange, ...]
    time: Symbol


def covariance(a: Expr, b: Expr, sources: Iterable[Source]) -> Expr:
    """``<a b>`` of two sources at any indices; zero when no covariance couples them.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp, mu
    >>> from sympy import Function
    >>> u, r, found = Function("u"), Function("r"), mean_field(mlp()).sources
    >>> covariance(u(2, 1, 0), u(2, 3, t), found), covariance(u(2, 1, 0), r(2, 0), found)
    (H(1, 1, 3, 0, t), 0)
    """
    for u in sources:
        for x, y in ((a, b), (b, a)):
            first = match(u.symbol, x, u.ranges)
            both = None if first is None else match(u.partner, y, u.ranges, first)
            if both is not None:
                return put(u.covariance, both)
    return S.Zero


def partners(a: Expr, sources: Iterable[Source], taken: Iterable[Expr] = ()) -> Iterator[Partner]:
    """Every source correlated with ``a``, at indices and a time kept apart from those ``taken``."""
    for u in sources:
        pairs = [(u.symbol, u.partner)]
        if u.symbol.func != u.partner.func:
            pairs.append((u.partner, u.symbol))
        for mine, other in pairs:
            found = match(mine, a, u.ranges)
            if found is None:
                continue
            used = {*taken, *a.free_symbols}
            over = []
            for r in u.ranges:
                if r.index not in found and other.has(r.index):
                    new = unused(r.index, used)
                    used.add(new)
                    found[r.index] = new
                    over.append(IndexRange(new, r.lower, r.upper))
            # the partner's time is the other one of t and s; either way it is called s
            clock = t if other.has(t) else s
            now = unused(s, used)
            found[clock] = now
            yield Partner(put(other, found), put(u.covariance, found), tuple(over), now)


def stein(what: Average, sources: Iterable[Source], **hints: Any) -> Expr:
    """Stein's lemma: ``<u(t) F> = sum over sources v and times s of <u(t) v(s)> <delta F / delta v(s)>``.

    The first factor of the average ``what`` that is one of ``sources`` is traded in; sums end at the last
    time in ``F``, since nothing responds to what comes later.  Averages of terms without a source stay as
    they are.  ``fields`` and ``discrete`` as in :meth:`.Response.doit`.  Read backwards this is how a
    response can be measured: the moment ``<u F>`` times the inverse of the covariance, without any
    derivative.

    >>> from derive.theory import mean_field
    >>> from derive.program import ell, mlp, mu, t
    >>> from sympy import Function
    >>> g, r = Function("g"), Function("r")
    >>> stein(Average(r(ell, t) * g(ell, 3)), mean_field(mlp()).sources)
    Sum(G(ell + 1, t, s)*<d g(ell, 3) / d r(ell, s)>, (s, 0, 3))
    """
    known = tuple(sources)
    return Add(*[_stein(x, known, **hints) for x in Add.make_args(what.linear())])


def _stein(term: Expr, sources: tuple[Source, ...], **hints: Any) -> Expr:
    """Stein's lemma in one average, with its coefficient and whatever sums stand around it."""
    if isinstance(term, Sum | Integral):
        return term.func(_stein(term.function, sources, **hints), *term.limits)
    factors = list(Mul.make_args(term))
    average = next((x for x in factors if isinstance(x, Average)), None)
    if average is None:
        inner = next((x for x in factors if isinstance(x, Sum | Integral) and x.has(Average)), None)
        return term if inner is None else term.xreplace({inner: _stein(inner, sources, **hints)})
    factors.remove(average)
    inside = factors_of(average.body)
    for x in inside:
        found = list(partners(x, sources, average.free_symbols | term.free_symbols)) if is_field(x) else []
        if found:
            inside.remove(x)
            rest = Mul(*inside)
            return Mul(*factors) * sum((_traded(rest, v, **hints) for v in found), S.Zero)
    return term


def _traded(rest: Expr, v: Partner, **hints: Any) -> Expr:
    if not is_random(rest):
        return S.Zero
    inner = v.covariance * Average(Response(rest, v.symbol))
    limits = [r.limits for r in v.over]
    last = (v.time, 0, last_time(rest, hints.get("fields")))
    if hints.get("discrete", True):
        return Sum(inner, *limits, last)
    return Integral(Sum(inner, *limits) if limits else inner, last)


def last_time(e: Expr, fields: Iterable[str] | None = None) -> Expr:
    """The latest of the times, last among a field's arguments, that occur in ``e``."""
    names = None if fields is None else set(map(str, fields))
    bounds = {lim[0]: lim[2] for x in e.atoms(Sum, Integral) for lim in x.limits if len(lim) == 3}
    atoms = [a for a in e.atoms(AppliedUndef) if is_field(a) and (names is None or str(a.func) in names)]
    times = [bounds.get(a.args[-1], a.args[-1]) for a in atoms]
    times = [x for x in times if x.is_extended_real and not x.is_negative]
    return Max(*times) if times else oo


def gaussian(what: Average, sources: Iterable[Source]) -> GaussianAverage:
    """The Gaussian integral that ``what`` is, when only ``sources`` (at any indices) are averaged over.

    Raises ValueError if the body contains any other field.

    >>> from derive.theory import mean_field
    >>> from derive.program import alpha, ell, mlp, mu, s, t
    >>> from sympy import Function, erf
    >>> u = Function("u")
    >>> gaussian(Average(erf(u(1, mu, t)) * u(1, alpha, s)), mean_field(mlp()).sources).doit()
    2*K_x(alpha, mu)/(sqrt(pi)*sqrt(2*K_x(mu, mu) + 1))
    """
    body, sources = what.body, tuple(sources)
    atoms = sorted((a for a in body.atoms(AppliedUndef) if is_field(a)), key=str)
    names = {str(x.func) for u in sources for x in (u.symbol, u.partner)}
    strange = [a for a in atoms if str(a.func) not in names]
    if strange:
        raise ValueError(f"{strange[0]} is not a Gaussian source; the sources are {', '.join(sorted(names))}")
    pairs = {(a, b): covariance(a, b, sources) for i, a in enumerate(atoms) for b in atoms[i:]}
    return GaussianAverage(body, pairs)
