"""Put a theory's single-site equations into responses and averages, one level at a time.

This shows the recursion that a response obeys: the chain rule down to the response of a field, then that of
each term of the field's equation.  Sources respond to themselves only, deterministic functions to nothing,
and nothing to what comes later, so sums over the past begin where the source is pushed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sympy import (
    Add,
    Derivative,
    DiracDelta,
    Expr,
    Integral,
    KroneckerDelta,
    Mul,
    Pow,
    S,
    Sum,
    Symbol,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response, is_field
from derive.calculus.gaussian import GaussianAverage
from derive.calculus.sums import all_apart, bound, match, pinned, unused, within
from derive.program.words import ell, t
from derive.theory.causality import computed_now, reaches
from derive.theory.data import Equation, Source, TheoryData
from derive.theory.families import families
from derive.theory.sources import gaussian


def unfold(theory: TheoryData, what: Any, levels: int = 1) -> Expr:
    """``what``, an expression or the name of an order parameter or scalar, with equations put in.

    Responses: chain rule, then the field's equation, whose terms hold responses again.  Averages: fields
    that occur as factors (not inside functions) are replaced, sources alone are averaged out.  A field of a
    symbolic layer obeys its family's equation, ends joined to it where they fit.  Everything is read with
    sources pushed no later than the present; for a strictly causal order parameter strictly before.
    Raises KeyError for a name that the theory does not have.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> print(unfold(mean_field(mlp()), "A"))
    eta*Sum(Delta(alpha, s_)*H(ell - 1, mu, alpha, t, s_)*<d g(ell, s_) / d r(ell, s)>, (alpha, 1, P),
        (s_, s, t - 1)) + Sum(A(ell - 1, mu, t, s_)*<d g(ell, s_) / d r(ell, s)>, (s_, s, t - 1))
    """
    unfolder = _Unfolder(theory)
    e, strict = unfolder.read(what)
    for _ in range(levels):
        e = all_apart(unfolder.once(e).expand(), (), nested=True)
    return _off_diagonal(e) if strict else e


@dataclass
class _Unfolder:
    """A theory's equations and sources, ends joined to their families, and who reaches whom at once."""

    theory: TheoryData
    sources: tuple[Source, ...] = ()
    equations: tuple[Equation, ...] = ()
    moving: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    now: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        joined = families(self.theory)
        # ends first: at its own layer an end is found before the family that it was joined to
        self.sources = (*_ends(self.theory.sources), *joined.sources)
        self.equations = (*_ends(self.theory.equations), *joined.equations)
        self.names = frozenset(str(x.func) for u in self.sources for x in (u.symbol, u.partner))
        self.moving = self.names | {_subject(e).func.__name__ for e in self.equations}
        self.discrete = self.theory.program.rule.discrete
        self.now = computed_now(self.equations, self.moving)

    def read(self, what: Any) -> tuple[Expr, bool]:
        """The expression meant, and whether it is only used at earlier times."""
        if not isinstance(what, str):
            return sympify(what), False
        for q in self.theory.order_parameters:
            if q.name == what:
                return q.definition, q.causal == "strict"
        for e in self.theory.scalars:
            if e.name == what:
                return e.rhs, False
        known = [q.name for q in self.theory.order_parameters] + [e.name for e in self.theory.scalars]
        raise KeyError(f"no order parameter or scalar {what}; there are {', '.join(dict.fromkeys(known))}")

    # -- one level ---------------------------------------------------------------------------------------

    def once(self, e: Expr) -> Expr:
        """Everything in ``e`` one level further."""
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
        body = a.body
        responses = sorted(body.atoms(Response), key=str)
        outermost = [x for x in responses if not any(y != x and y.has(x) for y in responses)]
        found = {x: self.response(x) for x in outermost}
        unfolded = body.xreplace(found) if found else self.factors(body)
        return self.moments(Average(unfolded).linear(self.random))

    @property
    def random(self) -> frozenset[str]:
        return self.moving | {x.name for x in self.theory.program.attributes}

    def factors(self, body: Expr) -> Expr:
        """Fields that are factors, replaced by the right-hand sides of their equations."""
        terms = []
        for term in Add.make_args(body.expand()):
            found = S.One
            for x in Mul.make_args(term):
                base, n = (x.base, int(x.exp)) if isinstance(x, Pow) and x.exp.is_Integer else (x, 1)
                value = self.value(base, body.free_symbols) if is_field(base) and n > 0 else None
                found *= x if value is None else value**n
            terms.append(found)
        return Add(*terms)

    def moments(self, e: Expr) -> Expr:
        """Averages of products of sources alone are Gaussian integrals; nested sums over time are left."""

        def close(a: Average) -> Expr:
            atoms = [x for x in a.body.atoms(AppliedUndef) if is_field(x)]
            if a.body.has(Response, Sum, Integral) or not {str(x.func) for x in atoms} <= self.names:
                return a
            found = gaussian(a, self.sources).doit()
            return a if found.has(GaussianAverage) else found

        return self.tidied(e.xreplace({a: close(a) for a in e.atoms(Average)}))

    # -- responses ---------------------------------------------------------------------------------------

    def response(self, r: Response) -> Expr:
        """Chain rule to the responses of fields, and of each field by its equation."""
        split = self.chain(r.body, r.source)
        table = {}
        for x in split.atoms(Response):
            if isinstance(x.body, Response):
                table[x] = Response(self.response(x.body), x.source)
                continue
            value = (
                self.rate(x.body) if isinstance(x.body, Derivative) else self.value(x.body, x.free_symbols)
            )
            if value is None and not isinstance(x.body, Derivative):
                value = self.integrated(x)
            table[x] = x if value is None else self.chain(value, x.source)
        return self.tidied(split.xreplace(table))

    def chain(self, body: Expr, source: Expr) -> Expr:
        found = Response(body, source).doit(fields=self.moving, sources=self.names, discrete=self.discrete)
        return self.tidied(found)

    def value(self, atom: Expr, taken: set[Symbol], evolving: bool = False) -> Expr | None:
        """The right-hand side of ``atom``'s equation, its dummies kept apart from those ``taken``."""
        for e in self.equations:
            lhs = _subject(e)
            if isinstance(e.lhs, Derivative) != evolving:
                continue
            found = match(lhs, atom, e.ranges)
            if found is not None:
                rhs = all_apart(e.rhs, taken | atom.free_symbols)
                return rhs.subs(found, simultaneous=True) if bound(rhs) & set(found) else rhs.xreplace(found)
        return None

    def rate(self, x: Derivative) -> Expr | None:
        """The right-hand side of an evolving field's equation."""
        return self.value(x.expr, x.free_symbols, evolving=True) if len(x.variables) == 1 else None

    def integrated(self, x: Response) -> Expr | None:
        """An evolving field of a flow is the integral of its rate; its start moves with no source."""
        if self.discrete or not x.body.args:
            return None
        now = x.body.args[-1]
        moment = unused(Symbol("s", nonnegative=True), x.free_symbols)
        earlier = x.body.func(*x.body.args[:-1], moment)
        rate = self.value(earlier, x.free_symbols, evolving=True)
        return None if rate is None else Integral(rate, (moment, x.source.args[-1], now))

    # -- causality ---------------------------------------------------------------------------------------

    def reaches(self, body: Expr, source: Expr) -> bool:
        """Does a field respond to a source at its own time?"""
        return reaches(self.now, str(body.func), str(source.func))

    def tidied(self, e: Expr) -> Expr:
        """Every sum over time begun where its summand can respond, and deltas summed out."""
        if not e.args or isinstance(e, AppliedUndef | Response):
            return S.Zero if isinstance(e, Response) and self.vanishes(e) else e
        args = [self.tidied(x) if isinstance(x, Expr) else x for x in e.args]
        if args != list(e.args):
            e = e.func(*args)
        return self.tidy(e) if isinstance(e, Sum | Integral) else e

    def vanishes(self, r: Response) -> bool:
        """Is the source certainly pushed later, or at the same time without an instant effect?"""
        if not (is_field(r.body) and is_field(r.source)):
            return False
        gap = r.body.args[-1] - r.source.args[-1]
        return bool(gap.is_negative or (gap == 0 and not self.reaches(r.body, r.source)))

    def tidy(self, x: Sum | Integral) -> Expr:
        return Add(*[self.narrowed(x, term) for term in Add.make_args(x.function.expand())])

    def narrowed(self, x: Sum | Integral, term: Expr) -> Expr:
        """One addend, its constants in front: the sum over where it does not vanish."""
        limits = [tuple(lim) for lim in x.limits]
        factor, term = term.as_independent(AppliedUndef, KroneckerDelta, DiracDelta, *[v for v, *_ in limits])
        for v in [lim[0] for lim in limits]:
            place = [lim[0] for lim in limits].index(v)
            lower, upper = limits[place][1:]
            found = pinned(term, v)
            weight = within(found[1], lower, upper, v) if found is not None else None
            if found is not None and weight is not None:
                delta, value = found
                others = limits[:place] + limits[place + 1 :]
                term, factor = (term / delta).xreplace({v: value}), factor * weight
                limits = [(w, *[b.xreplace({v: value}) for b in bounds]) for w, *bounds in others]
                continue
            begin = self.begins(term, v, isinstance(x, Integral))
            if begin is not None and lower == 0:
                limits[place] = (v, begin, upper)
            if (upper - limits[place][1]).is_negative:
                return S.Zero
        return factor * (x.func(term, *limits) if limits else term)

    def begins(self, term: Expr, v: Symbol, flows: bool) -> Expr | None:
        """The first value of ``v`` at which a response in ``term`` is not zero."""
        for r in Mul.make_args(term):
            r = r.body if isinstance(r, Average) else r
            for y in Mul.make_args(r):
                if not (isinstance(y, Response) and is_field(y.body) and y.body.args[-1] == v):
                    continue
                pushed = y.source.args[-1]
                if pushed.has(v):
                    continue
                return pushed if flows or self.reaches(y.body, y.source) else pushed + 1
        return None


def _ends(items: tuple[Any, ...]) -> list[Any]:
    return [x for x in items if not any(r.index == ell for r in x.ranges)]


def _subject(e: Equation) -> Any:
    """The field that an equation is for."""
    return e.lhs.expr if isinstance(e.lhs, Derivative) else e.lhs


def _off_diagonal(e: Expr) -> Expr:
    """``e`` at a source time strictly before the present."""
    return e.replace(lambda x: isinstance(x, KroneckerDelta | DiracDelta) and _times(x), lambda x: S.Zero)


def _times(x: Expr) -> bool:
    return {str(a) for a in x.free_symbols} == {"s", str(t)}


__all__ = ["unfold"]
