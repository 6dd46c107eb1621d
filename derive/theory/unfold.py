"""Averages and responses of a theory with its sources and equations substituted.

The module gives covariances of Gaussian sources at any indices, Stein's lemma, Gaussian integrals, and
`unfold`. `unfold` substitutes the equations one level at a time: the chain rule reduces a response to
responses of fields, and each field is replaced by its equation. Sources respond only to themselves,
deterministic functions respond to nothing, and responses are causal, so sums over the past begin at the time
of the perturbation. `Theory.unfold` uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sympy import Add, DiracDelta, Expr, Integral, KroneckerDelta, Max, Mul, Pow, S, Sum, Symbol, oo
from sympy.core.function import AppliedUndef, Derivative

from derive.calculus.averages import Average, Response, is_field, is_random
from derive.calculus.gaussian import GaussianAverage
from derive.calculus.sums import (
    addends,
    bound,
    evaluate_deltas,
    factors,
    match,
    over,
    rename_all_bound,
    substitute,
    unused,
)
from derive.calculus.symbols import IndexRange, converted, s, spelled, t
from derive.theory.applications import computed_now, reaches
from derive.theory.data import Equation, Source, TheoryData
from derive.theory.families import families


@dataclass(frozen=True)
class Partner:
    """Source that is correlated with a given source, with new names for its summed indices and time.

    ``symbol`` is the source and ``covariance`` its covariance with the given one. ``over`` are the ranges of
    those indices of ``symbol`` that must be summed, and ``time`` is the time of ``symbol``, which must be
    summed or integrated as well.
    """

    symbol: AppliedUndef
    covariance: Expr
    over: tuple[IndexRange, ...]
    time: Symbol


def covariance(a: Expr, b: Expr, sources: Iterable[Source]) -> Expr:
    """Return the covariance ``<a b>`` of two sources at any indices, or zero if they are independent.

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
                return substitute(u.covariance, both)
    return S.Zero


def partners(a: Expr, sources: Iterable[Source], taken: Iterable[Expr] = ()) -> Iterator[Partner]:
    """Yield every source that is correlated with the source ``a``, with indices and time not in ``taken``.

    A source is usually correlated with itself at other times, so that it is one of its own partners.
    """
    for u in sources:
        for matched, other in dict.fromkeys([(u.symbol, u.partner), (u.partner, u.symbol)]):
            values = match(matched, a, u.ranges)
            counted = matched is u.partner and match(u.symbol, a, u.ranges) is not None
            # `values` is None if `a` does not have the form of `matched`. `a` often matches both sources of
            # the covariance, because these are one source with other indices or times. The match with
            # `u.symbol` is then used, and that with `u.partner` is skipped (`counted`).
            if values is None or counted:
                continue
            used, summed = {*taken, *a.free_symbols}, []
            for r in u.ranges:
                if r.index not in values and other.has(r.index):
                    new = unused(r.index, used)
                    used.add(new)
                    values[r.index] = new
                    summed.append(r.renamed(new))
            # The declared covariance is between one source at time t and one at time s. `a` is one of them,
            # and the time of the other one gets a name that is not in use: s if possible.
            now = values[t if other.has(t) else s] = unused(s, used)
            yield Partner(substitute(other, values), substitute(u.covariance, values), tuple(summed), now)


def stein(what: Average, sources: Iterable[Source], **hints: Any) -> Expr:
    """Apply Stein's lemma to an average with Gaussian sources.

    Parameters
    ----------
    what : Average
        Average.
    sources : Iterable[Source]
        Gaussian sources of the theory.
    **hints : Any
        ``fields`` and ``discrete``, as in :meth:`.Response.doit`. ``discrete=False`` integrates over times,
        for a flow; by default they are summed.

    Returns
    -------
    Expr
        Sum of covariances times averaged responses.

    Notes
    -----
    The lemma is ``<u(t) F> = sum over sources v and times s of <u(t) v(s)> <delta F / delta v(s)>``. It is
    applied to one factor of the average that is a source, the first in SymPy's order; terms without a source
    stay as they are. Sums end at the last time in ``F`` because responses are causal. Solved for the
    response, the lemma measures it without a derivative: the moment ``<u F>`` times the inverse of the
    covariance.

    Examples
    --------
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
    """Apply Stein's lemma to one term: an average with a coefficient, possibly inside of sums.

    ``hints`` are ``fields`` and ``discrete``, as in :func:`stein`.
    """
    if isinstance(term, Sum | Integral):
        return term.func(_stein(term.function, sources, **hints), *term.limits)
    outside = list(Mul.make_args(term))
    average = next((x for x in outside if isinstance(x, Average)), None)
    if average is None:
        inner = next((x for x in outside if isinstance(x, Sum | Integral) and x.has(Average)), None)
        return term if inner is None else term.xreplace({inner: _stein(inner, sources, **hints)})
    outside.remove(average)
    inside = factors(average.body)
    for x in inside:
        correlated = (
            list(partners(x, sources, average.free_symbols | term.free_symbols)) if is_field(x) else []
        )
        if correlated:
            inside.remove(x)
            other_factors = Mul(*inside)
            return Mul(*outside) * sum((_stein_term(other_factors, v, **hints) for v in correlated), S.Zero)
    return term


def _stein_term(rest: Expr, v: Partner, **hints: Any) -> Expr:
    """Return the term of Stein's lemma for one Gaussian source: a sum of covariance times response.

    ``v`` is the source with its covariance with the source to which the lemma is applied, and ``rest`` the
    averaged product without the latter. ``hints`` are ``fields`` and ``discrete``, as in :func:`stein`.
    """
    if not is_random(rest):
        return S.Zero
    inner = v.covariance * Average(Response(rest, v.symbol))
    last = (v.time, 0, last_time(rest, hints.get("fields")))
    if hints.get("discrete", True):
        return over(inner, (*v.over, last))
    return Integral(over(inner, v.over), last)


def last_time(e: Expr, fields: Iterable[str] | None = None) -> Expr:
    """Return the latest time in ``e``: the maximum of the last arguments of its fields.

    A time that a sum or integral runs over counts with its upper limit; negative times do not count.
    ``fields`` are the names that count as fields (by default all). The result is infinity if none has a time.
    """
    names = None if fields is None else set(map(str, fields))
    bounds = {lim[0]: lim[2] for x in e.atoms(Sum, Integral) for lim in x.limits if len(lim) == 3}
    atoms = [a for a in e.atoms(AppliedUndef) if is_field(a) and (names is None or str(a.func) in names)]
    times = [bounds.get(a.args[-1], a.args[-1]) for a in atoms]
    times = [x for x in times if x.is_extended_real and not x.is_negative]
    return Max(*times) if times else oo


def gaussian(what: Average, sources: Iterable[Source]) -> GaussianAverage:
    """Return an average over Gaussian sources alone as a Gaussian integral.

    Parameters
    ----------
    what : Average
        Average whose body contains no field except sources, at any indices.
    sources : Iterable[Source]
        Gaussian sources of the theory.

    Returns
    -------
    GaussianAverage
        Integral; ``doit`` evaluates it.

    Raises
    ------
    ValueError
        If the body contains another field.

    Examples
    --------
    >>> from derive.theory import mean_field
    >>> from derive.program import alpha, ell, mlp, mu, s, t
    >>> from sympy import Function, erf
    >>> u = Function("u")
    >>> gaussian(Average(erf(u(1, mu, t)) * u(1, alpha, s)), mean_field(mlp()).sources).doit()
    2*K_x(alpha, mu)/(sqrt(pi)*sqrt(2*K_x(mu, mu) + 1))
    """
    body, sources = what.body, tuple(sources)
    atoms = sorted((a for a in body.atoms(AppliedUndef) if is_field(a)), key=spelled)
    names = {str(x.func) for u in sources for x in (u.symbol, u.partner)}
    other_fields = [a for a in atoms if str(a.func) not in names]
    if other_fields:
        raise ValueError(
            f"{other_fields[0]} in the average is not a Gaussian source; the sources are "
            f"{', '.join(sorted(names))}"
        )
    pairs = {(a, b): covariance(a, b, sources) for i, a in enumerate(atoms) for b in atoms[i:]}
    return GaussianAverage(body, pairs)


def unfold(theory: TheoryData, what: Any, levels: int = 1) -> Expr:
    """Return an expression with the equations of a theory substituted.

    In responses, the chain rule is followed by the field's equation, whose terms contain responses again. In
    averages, fields that occur as factors (not inside functions) are replaced, and averages of sources alone
    are evaluated where a formula is known. A field at a symbolic layer ``ell`` is replaced by the equation of
    its layer family, which includes the first and the last layer if their equations have the same form. The
    result holds for sources at times up to that of the field, ``s <= t``; for an order parameter that
    vanishes at ``s = t`` it holds only for ``s < t``.

    Parameters
    ----------
    theory : TheoryData
        Theory.
    what : Any
        Expression, or the name of an order parameter or scalar.
    levels : int, optional
        Number of times that the equations are substituted.

    Returns
    -------
    Expr
        The expression.

    Raises
    ------
    KeyError
        If the theory has no order parameter or scalar of that name.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> from sympy import tanh
    >>> mean_field(mlp(1, tanh)).unfold("f")
    eta*Sum(Delta(alpha, s)*<tanh(h(1, alpha, s))*tanh(h(1, mu, t))>, (alpha, 1, P), (s, 0, t - 1))
        + <r(1, mu, t)*tanh(h(1, mu, t))>/gamma0
    >>> print(unfold(mean_field(mlp()), "A"))
    eta*Sum(Delta(alpha, s_)*H(ell - 1, mu, alpha, t, s_)*<d g(ell, s_) / d r(ell, s)>, (alpha, 1, P),
        (s_, s, t - 1)) + Sum(A(ell - 1, mu, t, s_)*<d g(ell, s_) / d r(ell, s)>, (s_, s, t - 1))
    """
    unfolder = _Unfolder(theory)
    e, strict = unfolder.read(what)
    for _ in range(levels):
        e = rename_all_bound(unfolder.once(e).expand(), (), nested=True)
    if not strict:
        return e
    # The response is zero unless s < t (`strict`). At s < t a delta of t - s is zero.
    deltas = (x for x in e.atoms(KroneckerDelta, DiracDelta))
    return e.xreplace({x: S.Zero for x in deltas if {str(a) for a in x.free_symbols} == {"s", "t"}})


class _Unfolder:
    """Equations and sources of a theory, in the form in which they are substituted into expressions.

    Equations of single layers stand before those of layer families.
    """

    def __init__(self, theory: TheoryData) -> None:
        self.theory, joined = theory, families(theory)
        # Sources and equations of single layers stand first, so that they are found before those of a family.
        self.sources = (*ends(self.theory.sources), *joined.sources)
        self.equations = (*ends(self.theory.equations), *joined.equations)
        self.names = frozenset(str(x.func) for u in self.sources for x in (u.symbol, u.partner))
        self.moving = self.names | {e.name for e in self.equations}
        self.random = self.moving | {x.name for x in self.theory.program.attributes}
        self.discrete = self.theory.program.rule.discrete
        self.now = computed_now(self.equations, self.moving)

    def read(self, what: Any) -> tuple[Expr, bool]:
        """Return the definition of ``what``, and whether it is a response that vanishes for all ``s >= t``.

        ``what`` is the name of an order parameter or scalar; an expression is returned as it is, with False.
        If several layers have definitions of one name, the first one is returned. Raises KeyError for an
        unknown name.
        """
        if not isinstance(what, str):
            return converted(what), False
        known: dict[str, tuple[Expr, bool]] = {}
        # Order parameters of several layers may share a name. The first one in the list of the theory is
        # used.
        for q in self.theory.order_parameters:
            known.setdefault(q.name, (q.definition, q.causal == "strict"))
        for e in self.theory.scalars:
            known.setdefault(e.name, (e.rhs, False))
        if what not in known:
            raise KeyError(f"no order parameter or scalar {what}; there are {', '.join(known)}")
        return known[what]

    # -- one level ---------------------------------------------------------------------------------------

    def once(self, e: Expr) -> Expr:
        """Return ``e`` with the equations of the theory substituted once in its averages and responses."""
        if isinstance(e, Average):
            return self.average(e)
        if isinstance(e, Response):
            return self.response(e)
        if isinstance(e, Derivative) and isinstance(e.expr, Response):
            return self.once(e.expr.diff(*e.variable_count))
        if not e.args or isinstance(e, AppliedUndef | GaussianAverage):
            return e
        args = [self.once(x) if isinstance(x, Expr) else x for x in e.args]
        e = e.func(*args)
        return self.tidy(e) if isinstance(e, Sum | Integral) else e

    def average(self, a: Average) -> Expr:
        """Return an average with the equations substituted once: in its responses, or else in its factors."""
        body = a.body
        responses = sorted(body.atoms(Response), key=str)
        outermost = [x for x in responses if not any(y != x and y.has(x) for y in responses)]
        unfolded_responses = {x: self.response(x) for x in outermost}
        unfolded = body.xreplace(unfolded_responses) if unfolded_responses else self.factors(body)
        return self.moments(Average(unfolded).linear(self.random))

    def factors(self, body: Expr) -> Expr:
        """Return ``body`` with the right-hand sides of equations in place of fields that are factors."""
        terms = []
        for term in Add.make_args(body.expand()):
            product = S.One
            for x in Mul.make_args(term):
                base, n = (x.base, int(x.exp)) if isinstance(x, Pow) and x.exp.is_Integer else (x, 1)
                value = self.value(base, body.free_symbols) if is_field(base) and n > 0 else None
                product *= x if value is None else value**n
            terms.append(product)
        return Add(*terms)

    def moments(self, e: Expr) -> Expr:
        """Return ``e`` with averages of sources alone evaluated as Gaussian integrals, if that is possible.

        Averages that contain responses, sums or integrals stay.
        """

        def close(a: Average) -> Expr:
            atoms = [x for x in a.body.atoms(AppliedUndef) if is_field(x)]
            if a.body.has(Response, Sum, Integral) or not {str(x.func) for x in atoms} <= self.names:
                return a
            value = gaussian(a, self.sources).doit()
            return a if value.has(GaussianAverage) else value

        return self.tidied(e.xreplace({a: close(a) for a in e.atoms(Average)}))

    # -- responses ---------------------------------------------------------------------------------------

    def response(self, r: Response) -> Expr:
        """Return a response by the chain rule, with the equation of each field substituted once."""
        split = self.chain(r.body, r.source)
        table = {}
        for x in split.atoms(Response):
            if isinstance(x.body, Response):
                table[x] = Response(self.response(x.body), x.source)
                continue
            if isinstance(x.body, Derivative):
                one = len(x.body.variables) == 1
                value = self.value(x.body.expr, x.body.free_symbols, evolving=True) if one else None
            else:
                value = self.value(x.body, x.free_symbols)
                value = self.integrated(x) if value is None else value
            table[x] = x if value is None else self.chain(value, x.source)
        return self.tidied(split.xreplace(table))

    def chain(self, body: Expr, source: Expr) -> Expr:
        """Return the response of an expression to a source as responses of fields, by the chain rule."""
        responses = Response(body, source).doit(
            fields=self.moving, sources=self.names, discrete=self.discrete
        )
        return self.tidied(responses)

    def value(self, atom: Expr, taken: set[Symbol], evolving: bool = False) -> Expr | None:
        """Return the right-hand side of the equation of the field ``atom``, or None if it has none.

        Summation indices in it differ from ``taken``. If ``evolving``, the equation is that of the field's
        rate of change.
        """
        for e in self.equations:
            indices = match(_subject(e), atom, e.ranges)
            if indices is not None and isinstance(e.lhs, Derivative) == evolving:
                rhs = rename_all_bound(e.rhs, taken | atom.free_symbols)
                return (
                    rhs.subs(indices, simultaneous=True)
                    if bound(rhs) & set(indices)
                    else rhs.xreplace(indices)
                )
        return None

    def integrated(self, x: Response) -> Expr | None:
        """Return the field ``x.body`` of a response x as the integral of its rate of change.

        The integral begins at the time of the source, because earlier values do not respond. The result is
        None in discrete time, or if the field has no equation for its rate.
        """
        if self.discrete or not x.body.args:
            return None
        now = x.body.args[-1]
        moment = unused(Symbol("s", nonnegative=True), x.free_symbols)
        earlier = x.body.func(*x.body.args[:-1], moment)
        rate = self.value(earlier, x.free_symbols, evolving=True)
        return None if rate is None else Integral(rate, (moment, x.source.args[-1], now))

    # -- causality ---------------------------------------------------------------------------------------

    def reaches(self, r: Response) -> bool:
        """Return whether the field of a response may depend on its source at the same time.

        Names alone are compared: layers and other indices are not distinguished.
        """
        return reaches(self.now, str(r.body.func), str(r.source.func))

    def tidied(self, e: Expr) -> Expr:
        """Return ``e`` with Kronecker deltas summed and responses that vanish by causality left out."""
        if not e.args or isinstance(e, AppliedUndef | Response):
            return S.Zero if isinstance(e, Response) and self.vanishes(e) else e
        args = [self.tidied(x) if isinstance(x, Expr) else x for x in e.args]
        if args != list(e.args):
            e = e.func(*args)
        return self.tidy(e) if isinstance(e, Sum | Integral) else e

    def vanishes(self, r: Response) -> bool:
        """Return whether a response is known to be zero by causality.

        It is zero if the perturbation is later than the field, or at the same time without an equal-time
        response.
        """
        if not (is_field(r.body) and is_field(r.source)):
            return False
        gap = r.body.args[-1] - r.source.args[-1]
        return bool(gap.is_negative or (gap == 0 and not self.reaches(r)))

    def tidy(self, x: Sum | Integral) -> Expr:
        """Return a sum with Kronecker deltas summed, and times that begin at the first non-zero term."""
        parts = Add.make_args(evaluate_deltas(x))
        return Add(*[self.narrowed(z) for y in parts for z in (addends(y) if y.func is x.func else [y])])

    def narrowed(self, x: Expr) -> Expr:
        """Return one addend of a sum over time, with lower limits of zero raised to the first non-zero term.

        Other lower limits stay. The result is zero if the range is then empty.
        """
        if not isinstance(x, Sum | Integral):
            return x
        limits = [tuple(lim) for lim in x.limits]
        factor, term = x.function.as_independent(AppliedUndef, *[v for v, *_ in limits])
        for place, (v, lower, upper) in enumerate(limits):
            begin = self.begins(term, v, isinstance(x, Integral)) if lower == 0 else None
            if begin is not None:
                limits[place] = (v, begin, upper)
            if (upper - limits[place][1]).is_negative:
                return S.Zero
        return factor * x.func(term, *limits)

    def begins(self, term: Expr, v: Symbol, flows: bool) -> Expr | None:
        """Return the first value of the time ``v`` at which a response in ``term`` is not zero.

        The result is None if ``term`` contains no response of a field at time v to a perturbation at a time
        without v. ``flows`` is true for an integral over v; it begins at the time of the perturbation. A sum
        over steps begins there only if the response at equal time is not zero, else one step later.
        """
        factors = [r.body if isinstance(r, Average) else r for r in Mul.make_args(term)]
        for y in (y for r in factors for y in Mul.make_args(r)):
            if isinstance(y, Response) and is_field(y.body) and y.body.args[-1] == v:
                perturbed_at = y.source.args[-1]
                if not perturbed_at.has(v):
                    return perturbed_at if flows or self.reaches(y) else perturbed_at + 1
        return None


def ends(items: Iterable[Any]) -> list[Any]:
    """Return the equations, sources or order parameters ``items`` without those for a range of layers."""
    return [x for x in items if x.layers is None]


def _subject(e: Equation) -> Any:
    """Return the field that an equation determines, also if its left-hand side is the rate of change."""
    return e.lhs.expr if isinstance(e.lhs, Derivative) else e.lhs
