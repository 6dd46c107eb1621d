"""Expansion of a linear theory in powers of gamma0 as a theory again, order by order.

The equations of a linear theory contain gamma0 in updates, and 1/gamma0 in the output and in responses as the
papers define them. A quantity with a factor 1/gamma0 is expanded without it, as ``q = (q_0 + gamma0 q_1 +
...)/gamma0``, so that ``q_0`` must vanish and one more order is needed. The parts that vanish are found from
the sources on which each field depends, order by order:

    made(a_n) = sources in its terms + made(fields in its terms whose kernels do not vanish),
    <a_k b_l> vanishes if no source of a_k is correlated with one of b_l,
    <d a_k / d u> vanishes if a_k does not depend on u.

The smallest solution of these conditions gives the parts that exist. It also excludes orders that parity in
gamma0 forbids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sympy import Add, Dummy, Expr, S, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.series import PowerCoefficients
from derive.calculus.symbols import gamma0
from derive.errors import NotApplicable
from derive.expansion.orders import Expander, TheorySeries, named, orders_in
from derive.linear.form import linear_form
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from derive.theory.names import QuantityAtLayer

GIVEN: tuple[str, Expr | None] = ("", None)
"""Source that represents given data, such as a target."""

UNKNOWN = Dummy("beyond")
"""Mark of an order that is not known."""


@dataclass(frozen=True)
class StrengthSeries(TheorySeries):
    """Linear theory in powers of gamma0.

    ``poles`` are order parameters and scalars with a factor 1/gamma0, with its power. ``scaled`` has them
    without it.
    """

    poles: tuple[tuple[str, int], ...] = ()

    def expander(self) -> Expander:
        """Return the expander, which keeps only parts that do not vanish."""
        return _Strength(self)

    def parts(self, name: str) -> tuple[tuple[tuple[Expr, tuple[int, ...]], ...], ...]:
        """Return the parts of an order parameter, field or scalar, order by order; none if they vanish.

        >>> from derive import mean_field, mlp
        >>> lazy = expand_strength(mean_field(mlp(1, bias=True)), 2)
        >>> [lazy.parts(x)[2] for x in ("H", "f", "Delta")]
        [((1, (2, 0)), (1, (1, 1)), (1, (0, 2))), ((1, (3,)),), ((1, (2,)),)]
        """
        shift, there = dict(self.poles).get(name, 0), self._there
        pairs = any(q.name == name and q.kind == "correlation" for q in self.theory.order_parameters)
        found = []
        for n in range(shift, self.order + shift + 1):
            own = [(n - k, k) for k in range(n + 1)] if pairs else [(n,)]
            found.append(tuple((S.One, k) for k in own if named(name, *k) in there))
        return tuple(found)

    @cached_property
    def _there(self) -> frozenset[str]:
        """Names of the parts that do not vanish."""
        x = self.expanded
        items: tuple[Any, ...] = (*x.order_parameters, *x.equations, *x.scalars)
        return frozenset(str(i.name) for i in items)

    def observable(self, e: Equation) -> PowerCoefficients:
        """Return the orders of an observable in terms of the parts."""
        there = self._there
        series = _Strength(self)
        _, found = series.laurent(series.scaled(e.rhs))
        gone = {
            a: S.Zero
            for c in found
            for a in c.atoms(AppliedUndef)
            if series.own(a) and named(a.func) not in there
        }
        return [c.xreplace(gone) for c in found[: self.order + 1]]


def expand_strength(theory: Theory, order: int) -> StrengthSeries:
    """Expand a linear theory in powers of gamma0, for any network, data and rule, as a theory again.

    Raises :class:`~derive.errors.NotApplicable` for a theory that is not linear, and for one in which
    1/gamma0 does not cancel (initial values of layers of finite width); ValueError for a negative order.

    >>> from derive import mean_field, mlp
    >>> lazy = expand_strength(mean_field(mlp(1, bias=True)), 1)
    >>> for e in lazy.equations(1): print(e.lhs, "=", e.rhs)
    h__1(1, mu, t) = Sum(eta*Delta(alpha, s)*g(1, s), ...
    """
    if order < 0:
        raise ValueError(f"order = {order}: must not be negative; 0 is the lazy limit")
    linear_form(theory)
    poles: dict[str, int] = {}
    for q in theory.order_parameters:
        poles[q.name] = max(poles.get(q.name, 0), -_power(q.definition))
    for e in theory.scalars:
        poles[e.name] = max(
            poles.get(e.name, 0), *(-_power(x.expr) for x in e.terms if x.expr.has(Average)), 0
        )
    shifted = {k: p for k, p in poles.items() if p > 0}

    def put(e: Expr) -> Expr:
        return _without(e, shifted)

    def equation(e: Equation) -> Equation:
        front = gamma0 ** shifted.get(e.name, 0)
        return replace(e, terms=tuple(_term(x, put, front) for x in e.terms))

    scaled = replace(
        theory,
        sources=tuple(replace(u, covariance=put(u.covariance)) for u in theory.sources),
        equations=tuple(map(equation, theory.equations)),
        order_parameters=tuple(
            replace(q, definition=q.definition * gamma0 ** shifted.get(q.name, 0))
            for q in theory.order_parameters
        ),
        scalars=tuple(map(equation, theory.scalars)),
        observables=(),
    )
    found = StrengthSeries(theory, scaled, gamma0, gamma0, order, poles=tuple(shifted.items()))
    _ = found.expanded
    return found


def _power(e: Expr) -> int:
    """Return the power of gamma0 in front of an expression."""
    _, power = e.as_coeff_exponent(gamma0)
    return int(power)


def _without(e: Expr, shifted: dict[str, int]) -> Expr:
    """Return ``e`` with ``q / gamma0^p`` for each quantity q with a pole of power p."""
    own = [a for a in sympify(e).atoms(AppliedUndef) if str(a.func) in shifted]
    return sympify(e).xreplace({a: a / gamma0 ** shifted[str(a.func)] for a in own})


def _term(x: Term, put: Any, front: Expr) -> Term:
    """Return a term with replaced expressions and a further factor."""
    return replace(x, coefficient=put(x.coefficient) * front, kernel=put(x.kernel), field=put(x.field))


class _Strength(Expander):
    """Expansion with one more order of quantities that have a factor 1/gamma0."""

    def __init__(self, series: StrengthSeries) -> None:
        self.shifted, self.wanted = dict(series.poles), series.order
        super().__init__(series.scaled, series.small, series.order + max([1, *self.shifted.values()]))
        self.known_to: dict[str, int] = dict.fromkeys(self.kinds, self.order)
        self.poles: list[Expr] = []
        self.made: Made | None = None

    def own(self, a: AppliedUndef) -> bool:
        """Return whether a function belongs to the theory and not to the data."""
        return orders_in(str(a.func))[0] in self.kinds

    def scaled(self, e: Expr) -> Expr:
        """Return an expression with the fields of the theory in terms of fields that are scaled by gamma0."""
        return _without(e, self.shifted)

    def expanded(self) -> Theory:
        """Return the theory of the known orders, without parts that vanish."""
        found = super().expanded()
        self.made = Made(found, frozenset(self.random))
        while True:
            self.poles = []
            known = dict(self.known_to)
            found = super().expanded()
            if known == self.known_to:
                break
        for name, last in self.known_to.items():
            if last < self.wanted:
                raise NotApplicable(
                    f"order {last + 1} of {name} is not found order by order, because powers of 1/gamma0 "
                    "multiply in the error"
                )
        found = _known(found)
        there = Made(found, frozenset(self.random))
        for pole in self.poles:
            if (left := there.kept(pole)) != 0:
                raise NotApplicable(
                    f"1/gamma0 stays in front of {left}: what networks of finite width are at the start "
                    "does not vanish with gamma0; infinitely wide layers have a series"
                )
        return there.theory()

    def series(self, e: Expr, term: Term | None = None) -> PowerCoefficients:
        """Return the series of an expression, and record its terms with 1/gamma0."""
        pole, found = self.laurent(e.expand())
        summed = term is not None and (term.reach or term.over)
        self.poles += [term.expr.func(y, *term.expr.limits) if term and summed else y for y in pole]
        return found

    def equation(self, e: Equation, live: Any) -> Iterator[Equation]:
        """Yield the orders of an equation and record which are known."""
        for x in super().equation(e, live):
            self.note(e.name, order_of(x.symbol), [y.expr for y in x.terms])
            yield x

    def source(self, u: Source) -> Iterator[Source]:
        """Yield the parts of a source and record which are known."""
        for x in super().source(u):
            self.note(u.name, order_of(x.symbol) + order_of(x.partner), [x.covariance])
            yield x

    def parameter(self, q: OrderParameter) -> Iterator[OrderParameter]:
        """Yield ``<a_k b_l>`` and ``<d a_n / d u_0>`` and record which are known."""
        for x in super().parameter(q):
            fields = [a for a in x.definition.atoms(AppliedUndef) if self.kind_of(a) == "field"]
            orders = sum(order_of(a) for a in fields)
            known = min(self.known_to[orders_in(str(a.func))[0]] for a in fields)
            if orders > known:
                self.known_to[q.name] = min(self.known_to[q.name], orders - 1)
            yield x

    def kind_of(self, a: AppliedUndef) -> str:
        """Return the kind of the quantity of which a function is a part."""
        return self.kinds.get(orders_in(str(a.func))[0], "")

    def note(self, name: str, n: int, parts: Iterable[Expr]) -> None:
        """Record that an order is unknown if it depends on an unknown part."""
        if self.made is not None and any(y.has(UNKNOWN) for y in parts):
            self.known_to[name] = min(self.known_to[name], n - 1)
            if self.known_to[name] < 0:
                raise NotApplicable(
                    f"no order of {name} is found order by order: it grows like 1/gamma0, or powers of "
                    "1/gamma0 multiply in it"
                )

    def laurent(self, e: Expr) -> tuple[list[Expr], PowerCoefficients]:
        """Return the coefficients of 1/gamma0^k, k = 1, 2, ..., and the series up to ``order``."""
        poles: list[Expr] = []
        total: PowerCoefficients = [S.Zero] * (self.order + 1)
        for part in Add.make_args(sympify(e)):
            body, power = part.as_coeff_exponent(self.variable)
            shift = min(int(power), 0) if power.is_Integer else 0
            found = self.coefficients(part if shift == 0 else body)
            poles += [c for c in found[:-shift] if c != 0] if shift else []
            found = [*found[-shift:], *[UNKNOWN * Dummy() for _ in range(-shift)]][: self.order + 1]
            total = [Add(a, b) for a, b in zip(total, found, strict=True)]
        return poles, total

    def known(self, x: Expr) -> PowerCoefficients | None:
        """Return the series of a quantity, with unknown orders marked."""
        found = super().known(x)
        if not isinstance(x, AppliedUndef) or not self.kind(x) or found is None:
            return found
        made = self.made
        if made is not None:
            gone = {
                a: S.Zero
                for c in found
                for a in c.atoms(AppliedUndef)
                if self.own(a) and made.place(a) not in made.there
            }
            found = [c.xreplace(gone) for c in found]
        last = self.known_to[str(x.func)]
        return [c if n <= last or c == 0 else UNKNOWN * Dummy() for n, c in enumerate(found)]


def order_of(a: AppliedUndef) -> int:
    """Return the order of a part, the sum of all its orders."""
    return sum(orders_in(str(a.func))[1])


def _known(theory: Theory) -> Theory:
    """Return the theory without equations and parts that depend on unknown orders."""

    def known(x: Any) -> bool:
        made = x.covariance if isinstance(x, Source) else x.rhs if isinstance(x, Equation) else S.Zero
        return not sympify(made).has(UNKNOWN)

    return theory.each(lambda x: [x] if known(x) else [])


def place(a: AppliedUndef) -> QuantityAtLayer:
    """Return name and layer of a quantity; None as layer for a family."""
    first = a.args[0] if len(a.args) > 1 else None
    return str(a.func), first if first is not None and first.is_Integer else None


class Made:
    """Sources on which the quantities of a linear theory depend; a quantity without sources vanishes."""

    def __init__(self, theory: Theory, random: frozenset[str]) -> None:
        self.whole, self.random = theory, random
        self.families = any(x.layers for x in theory.stated())
        self.fields: dict[QuantityAtLayer, set[QuantityAtLayer]] = {
            self.place(e.symbol): set() for e in theory.equations
        }
        self.names = {*random, *(e.name for e in theory.scalars), *(q.name for q in theory.order_parameters)}
        self.pairs: set[tuple[QuantityAtLayer, QuantityAtLayer]] = {(GIVEN, GIVEN)}
        self.there: set[QuantityAtLayer] = set()
        size = -1
        while size != (size := self.size):
            self.sweep()

    def place(self, a: AppliedUndef) -> QuantityAtLayer:
        """Return name and layer of a quantity; families of layers have no layer."""
        return (str(a.func), None) if self.families else place(a)

    @property
    def size(self) -> int:
        """Size of the sets, which stops growing at the solution."""
        return len(self.there) + len(self.pairs) + sum(map(len, self.fields.values()))

    def sweep(self) -> None:
        """Update all sets once from every equation."""
        for u in self.whole.sources:
            if self.kept(u.covariance) != 0:
                a, b = self.place(u.symbol), self.place(u.partner)
                self.pairs |= {(a, b), (b, a)}
                self.there |= {a, b}
        for e in self.whole.equations:
            own = self.place(e.symbol)
            for x in e.terms:
                if x.expr.has(UNKNOWN):
                    self.fields[own] |= {GIVEN} | {a for pair in self.pairs for a in pair}
                elif self.holds(x.coefficient * x.kernel * x.field):
                    moving = self.moving(x.field)
                    self.fields[own] |= {GIVEN} if not moving else set().union(*map(self.made, moving))
            self.there |= {own} if self.fields[own] else set()
        for q in self.whole.order_parameters:
            if all(self.average(a) for a in q.definition.atoms(Average)):
                self.there.add(self.place(q.symbol))
        for e in self.whole.scalars:
            if self.kept(e.rhs) != 0:
                self.there.add(self.place(e.symbol))

    def moving(self, e: Expr) -> list[QuantityAtLayer]:
        """Return the fields and sources in a product."""
        return [self.place(a) for a in e.atoms(AppliedUndef) if str(a.func) in self.random]

    def made(self, x: QuantityAtLayer) -> set[QuantityAtLayer]:
        """Return the sources on which a quantity depends; given data count as a source."""
        return self.fields.get(x, {x})

    def average(self, a: Average) -> bool:
        """Return whether an average may differ from zero."""
        if isinstance(a.body, Response):
            pushed = self.place(a.body.source)
            return any(pushed in self.made(x) for x in self.moving(a.body.body))
        own = self.moving(a.body)
        return any((u, v) in self.pairs for u in self.made(own[0]) for v in self.made(own[-1]))

    def holds(self, e: Expr) -> bool:
        """Return whether a product may differ from zero."""
        if any(not self.average(a) for a in e.atoms(Average)):
            return False
        inner = {x for a in e.atoms(Average) for x in a.atoms(AppliedUndef)}
        return all(
            self.place(a) in self.there for a in e.atoms(AppliedUndef) - inner if str(a.func) in self.names
        )

    def kept(self, e: Expr) -> Expr:
        """Return the products in ``e`` that may differ from zero."""
        return Add(*[x for x in Add.make_args(sympify(e).expand()) if self.holds(x)])

    def theory(self) -> Theory:
        """Return the theory without parts that vanish."""

        def left(x: Any) -> Iterator[Any]:
            if isinstance(x, Source):
                if (c := self.kept(x.covariance)) != 0:
                    yield replace(x, covariance=c)
            elif self.place(x.symbol) in self.there:
                kept = (y for z in getattr(x, "terms", ()) if (y := self.term(z)) is not None)
                yield replace(x, terms=tuple(kept)) if isinstance(x, Equation) else x

        return self.whole.each(left)

    def term(self, x: Term) -> Term | None:
        """Return a term without parts that vanish, or None."""
        if x.field.has(Average):  # for a scalar, whose averages are in one term
            left = self.kept(x.field)
            return None if left == 0 or not self.holds(x.coefficient * x.kernel) else replace(x, field=left)
        return x if self.holds(x.coefficient * x.kernel * x.field) else None
