"""Cross-layer responses: how every layer of a linear network answers a push at every other layer.

On a residual stream all layers are the same units, so the single-site process joins them, and a theory's own
responses ``<d h(ell, t) / d r(ell, s)>`` do not close.  Differentiating each single-site equation with
respect to each Gaussian source gives recursions for all of ``d h(ell, t) / d u(k, s)``; fields are these
responses times the sources, correlations follow from the covariances of the sources (linear2025 (73)-(82)).
"""

from __future__ import annotations

from sympy import Add, Eq, Expr, Function, Integral, Mul, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response, chain_rule
from derive.calculus.symbols import IndexRange, ell, s, t
from derive.errors import NotApplicable
from derive.linear.graph import Instant
from derive.linear.system import CrossLayer, Push, k, without_trivial
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from derive.theory.names import primed

t_1, s_1 = (Symbol(n, **t.assumptions0) for n in ("t_1", "s_1"))
"""Earlier times at which the sources of a correlation act."""


def cross_layer(theory: Theory) -> CrossLayer:
    """Differentiate the single-site equations of a linear theory with respect to all of its sources.

    Sums over time begin where causality lets them: at the time of the push, or one step later if the field
    cannot answer within the step.  Raises :class:`NotApplicable` if an equation is not linear in the fields.

    >>> from sympy import Symbol
    >>> from derive.theory import mean_field
    >>> from derive.program.networks.isotropic import isotropic
    >>> found = cross_layer(mean_field(isotropic(data="population", branch=Symbol("beta"))))
    >>> for x in found.response("R_hu", ell + 1).terms: print(x.expr)
    beta*KroneckerDelta(k, ell + 1)*KroneckerDelta(s, t)
    Sum(beta*R_gu(ell + 1, k, s_, s)*R_hr(ell, t, s_), (s_, s + 1, t))
    Sum(beta**2*eta*gamma0*C_h(ell, t, s_)*R_gu(ell + 1, k, s_, s), (s_, s + 1, t - 1))
    R_hu(ell, k, t, s)
    """
    return _CrossLayer(theory).result()


class _CrossLayer:
    def __init__(self, theory: Theory) -> None:
        self.theory = theory
        self.discrete = theory.program.rule.discrete
        self.names = {e.name for e in theory.equations}
        self.sources = {str(x.func) for u in theory.sources for x in (u.symbol, u.partner)}
        self.enters = self.destinations()
        self.instant = Instant(theory.equations, self.names, self.sources)
        self.pushes = {n: self.push(n) for n in sorted(self.sources, key=self.order)}

    def result(self) -> CrossLayer:
        theory = self.theory
        responses = tuple(
            self.respond(e, p)
            for p in self.pushes.values()
            for e in theory.equations
            if self.joined(e.name, p.name)
        )
        averages = [q for q in theory.order_parameters if q.kind == "correlation"]
        found = CrossLayer(
            theory,
            tuple(self.pushes.values()),
            responses,
            tuple(self.diagonal(q) for q in theory.responses()),
            tuple(self.decomposition(x) for x in self.field_symbols()),
            tuple(Eq(q.symbol, self.average(q.definition), evaluate=False) for q in averages),
            tuple(Eq(e.lhs, self.average(e.rhs), evaluate=False) for e in theory.scalars),
        )
        return without_trivial(found)

    # -- sources ---------------------------------------------------------------------------------------------

    def destinations(self) -> dict[str, str]:
        """The field that each source enters."""
        found: dict[str, str] = {}
        for e in self.theory.equations:
            for a in e.rhs.atoms(AppliedUndef):
                if str(a.func) in self.sources:
                    found.setdefault(str(a.func), e.name)
        return found

    def order(self, name: str) -> int:
        names = [str(x.func) for u in self.theory.sources for x in (u.symbol, u.partner)]
        return names.index(name)

    def population(self, name: str) -> str:
        field = self.theory.program.field_of(name)
        assert field is not None
        return field.population.name

    def joined(self, field: str, source: str) -> bool:
        """Do a field and a source live on the same units?"""
        return source in self.enters and self.population(field) == self.population(self.enters[source])

    def layered(self, name: str) -> bool:
        field = self.theory.program.field_of(name)
        return field is not None and field.layered

    def members(self, name: str) -> list[Source]:
        return [u for u in self.theory.sources if str(u.symbol.func) == name and str(u.partner.func) == name]

    def push(self, name: str) -> Push:
        members = self.members(name)
        layered = self.layered(self.enters.get(name, ""))
        families = [u for u in members if layered and u.symbol.args[0].has(ell)]
        like = families[0] if families else members[0]
        constant = all(not sympify(u.covariance).has(t, s) for u in members)
        own = tuple(
            IndexRange(primed(r.index), r.lower, r.upper)
            for r in like.ranges
            if r.index != ell and like.symbol.has(r.index)
        )
        place: tuple[Expr, ...] = ()
        layers = None
        if layered:
            place = (k,) if families else (like.symbol.args[0],)
            layers = _hull(members) if families else None
        rest = [primed(x) for x in like.symbol.args[layered:-1]]
        time = S.Zero if constant else s
        return Push(name, like.symbol.func(*place, *rest, time), layers, own, constant, layered)

    # -- responses -------------------------------------------------------------------------------------------

    def named(self, field: AppliedUndef, source: AppliedUndef) -> AppliedUndef:
        """``d field / d source`` as a function: layers, other indices, times."""
        p = self.pushes[str(source.func)]
        f, g = int(self.layered(str(field.func))), int(p.layered)
        places = (*field.args[:f], *(source.args[:g] if p.layers is not None else ()))
        rest = (*field.args[f:-1], *source.args[g:-1])
        times = (field.args[-1],) if p.constant else (field.args[-1], source.args[-1])
        return Function(f"R_{field.func}{source.func}")(*places, *rest, *times)

    def respond(self, e: Equation, p: Push) -> Equation:
        """One equation differentiated."""
        if not isinstance(e.lhs, AppliedUndef):
            raise NotApplicable(f"{e.lhs} is given by its rate of change: cross-layer responses need steps")
        terms = []
        for x in e.terms:
            body = _timeless(x.expr, p.name) if p.constant else x.expr
            moved = chain_rule(
                body,
                p.symbol,
                frozenset(n for n in self.names if self.joined(n, p.name)) | {p.name},
                frozenset(self.sources - {p.name}),
                self.discrete,
            )
            for part in Add.make_args(moved):
                if part != 0:
                    terms.append(x.put(self.written(part, e)))
        lhs = self.named(e.lhs, p.symbol)
        layers = () if p.layers is None else (p.layers,)
        ranges = (*e.ranges, *(IndexRange(k, r.lower, r.upper) for r in layers), *p.ranges)
        return Equation(
            lhs, tuple(x for x in terms if x.expr != 0) or (Term.local(S.Zero, "definition"),), ranges
        )

    def written(self, x: Expr, e: Equation) -> Expr:
        """Responses by their names, sums begun where causality lets them."""
        if x.has(Response):
            x = x.replace(
                lambda y: isinstance(y, Response),
                lambda y: self.named(y.body, y.source),
            )
        if any(str(a.func) in self.names | self.sources for a in _outside_averages(x)):
            raise NotApplicable(f"the equation of {e.lhs} is not linear in the fields: {x} is left")
        return x.replace(lambda y: isinstance(y, Sum | Integral), self.begun)

    def begun(self, total: Sum | Integral) -> Expr:
        limits = []
        for index, lower, upper in total.limits:
            for a in total.function.atoms(AppliedUndef):
                if str(a.func) in self.response_names and a.args[-2:] == (index, s):
                    lower = s + (0 if self.at_once(str(a.func)) else int(self.discrete))
            limits.append((index, lower, upper))
        return total.func(total.function, *limits)

    @property
    def response_names(self) -> dict[str, tuple[str, str]]:
        return {f"R_{f}{p}": (f, p) for f in self.names for p in self.sources}

    def at_once(self, name: str) -> bool:
        """Is there a part of the response at equal time?"""
        return self.instant.reaches(*self.response_names[name])

    def diagonal(self, q: OrderParameter) -> Eq:
        """The theory's own response as a member of the cross-layer ones."""
        e = q.definition.replace(
            lambda x: isinstance(x, Average) and isinstance(x.body, Response),
            lambda x: self.named(x.body.body, self.as_pushed(x.body.source)),
        )
        return Eq(q.symbol, e, evaluate=False)

    def as_pushed(self, source: AppliedUndef) -> AppliedUndef:
        p = self.pushes[str(source.func)]
        return source.func(*source.args[:-1], S.Zero) if p.constant else source

    # -- fields and averages ---------------------------------------------------------------------------------

    def field_symbols(self) -> list[AppliedUndef]:
        """Each field once, at the layer ell."""
        found: dict[str, AppliedUndef] = {}
        for e in self.theory.equations:
            f = int(self.layered(e.name))
            found.setdefault(e.name, e.lhs.func(*((ell,) * f), *e.lhs.args[f:]))
        return list(found.values())

    def decomposition(self, field: AppliedUndef) -> Eq:
        """The field as the sum over sources of what they cause."""
        total = S.Zero
        for p in self.pushes.values():
            if not self.joined(str(field.func), p.name):
                continue
            indices = (*p.symbol.args[:-1], *(() if p.constant else (s,)))
            if p.constant and p.layers is None:
                indices = indices[p.layered :]
            source = p.symbol.func(*indices) if indices else Symbol(p.name)
            body = self.named(field, p.symbol) * source
            total += self.summed(body, field, p, s, t, _limits(p))
        return Eq(field, total, evaluate=False)

    def summed(
        self, body: Expr, field: AppliedUndef, p: Push, past: Symbol, now: Expr, over: tuple[Expr, ...]
    ) -> Expr:
        limits = list(over)
        if not p.constant:
            limits.append((past, S.Zero, now - self.gap(str(field.func), p.name)))
        kind = Sum if self.discrete else Integral
        return kind(body, *limits) if limits else body

    def gap(self, field: str, source: str) -> int:
        return 0 if self.instant.reaches(field, source) or not self.discrete else 1

    def average(self, e: Expr) -> Expr:
        """Averages of products of two fields as sums over the sources."""
        return e.replace(lambda x: isinstance(x, Average), lambda x: self.pair(x))

    def pair(self, x: Average) -> Expr:
        factors = Mul.make_args(x.body)
        moving = [a for a in factors if isinstance(a, AppliedUndef) and str(a.func) in self.names]
        squares = [a for a in factors if a.is_Pow and a.exp == 2]
        moving += [a.base for a in squares for _ in range(2)]
        if len(moving) != 2:
            raise NotApplicable(f"{x} is not the average of a product of two fields")
        a, b = sorted(moving, key=lambda y: y.args[-1] == s)
        total = S.Zero
        for u in self.theory.sources:
            total += self.caused(a, b, u)
            if u.symbol.func != u.partner.func:
                total += self.caused(b, a, u)
        return Mul(*[y for y in factors if y not in moving and y not in squares]) * total

    def caused(self, a: AppliedUndef, b: AppliedUndef, u: Source) -> Expr:
        """``<a b>`` as far as one covariance causes it."""
        first, second = str(u.symbol.func), str(u.partner.func)
        if not (self.joined(str(a.func), first) and self.joined(str(b.func), second)):
            return S.Zero
        p, q = self.pushes[first], self.pushes[second]
        place: dict[Expr, Expr] = {}
        layers: tuple[Expr, ...] = ()
        site: tuple[Expr, ...] = ()
        if p.layered:
            place, layers, site = _family(u)
        names = {
            r.index: Symbol(f"{r.index.name}_1", **r.index.assumptions0) for r in u.ranges if r.index != ell
        }
        place |= names

        def moved(x: AppliedUndef, w: Push, time: Symbol) -> AppliedUndef:
            rest = [y.xreplace(place) for y in x.args[len(site) : -1]]
            return x.func(*site, *rest, S.Zero if w.constant else time)

        left = self.named(a, moved(u.symbol, p, t_1))
        right = self.named(b, moved(u.partner, q, s_1))
        covariance = sympify(u.covariance).xreplace(place | {t: t_1, s: s_1})
        limits = [*layers]
        limits += [(names[r.index], r.lower, r.upper) for r in u.ranges if r.index in names]
        for field, w, past in ((a, p, t_1), (b, q, s_1)):
            if not w.constant:
                limits.append((past, S.Zero, field.args[-1] - self.gap(str(field.func), w.name)))
        kind = Sum if self.discrete else Integral
        body = left * right * covariance
        return kind(body, *limits) if limits else body


def _limits(p: Push) -> tuple[Expr, ...]:
    layers = () if p.layers is None else ((k, p.layers.lower, p.layers.upper),)
    return (*layers, *((r.index, r.lower, r.upper) for r in p.ranges))


def _family(u: Source) -> tuple[dict[Expr, Expr], tuple[Expr, ...], tuple[Expr, ...]]:
    """For a source of layer ``ell + shift``: the layer k it is, its range and place; a single one's place."""
    at = u.symbol.args[0]
    r = next((r for r in u.ranges if r.index == ell), None)
    if r is None:
        return {}, (), (at,)
    shift = at - ell
    return {ell: k - shift}, ((k, r.lower + shift, r.upper + shift),), (k,)


def _hull(members: list[Source]) -> IndexRange:
    """All layers at which a source lives: the family's, and single members next to it."""
    lows, highs = [], []
    for u in members:
        r = next((r for r in u.ranges if r.index == ell), None)
        at = u.symbol.args[0]
        lows.append(at if r is None else at.xreplace({ell: r.lower}))
        highs.append(at if r is None else at.xreplace({ell: r.upper}))
    low = next(x for x in lows if all((y - x).is_nonnegative for y in lows))
    high = next(x for x in highs if all((x - y).is_nonnegative for y in highs))
    return IndexRange(k, low, high)


def _timeless(e: Expr, name: str) -> Expr:
    """The source ``name`` written at time 0 wherever it stands."""
    return e.replace(
        lambda x: isinstance(x, AppliedUndef) and str(x.func) == name,
        lambda x: x.func(*x.args[:-1], S.Zero),
    )


def _outside_averages(e: Expr) -> set[AppliedUndef]:
    if getattr(e, "is_averaged", False):
        return set()
    own = {e} if isinstance(e, AppliedUndef) else set()
    return own.union(*[_outside_averages(x) for x in e.args if isinstance(x, Expr)])
