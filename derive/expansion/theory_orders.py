"""Expansion of a linear theory in powers of gamma0 as a theory again, order by order.

The equations of a linear theory contain gamma0 in updates, and 1/gamma0 in the output and in responses as the
papers define them. A quantity with a factor 1/gamma0 is expanded without it, as ``q = (q_0 + gamma0 q_1 +
...)/gamma0``, so that ``q_0`` must vanish and one more order is needed. The parts that vanish are found from
the sources on which each field depends, order by order:

    sources(a_n) = sources in its terms + sources(fields in its terms whose kernels do not vanish),
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
from derive.errors import NotApplicable, require_integer
from derive.expansion.orders import Expander, TheorySeries, named, orders_in
from derive.linear.form import linear_form
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from derive.theory.names import QuantityAtLayer

GIVEN: tuple[str, Expr | None] = ("", None)
"""Source that represents given data, such as a target."""

UNKNOWN = Dummy("beyond")
"""Factor that marks an order which is not known."""


@dataclass(frozen=True, repr=False)
class StrengthSeries(TheorySeries):
    """Expansion of a linear theory in powers of gamma0, as a theory whose fields are the coefficients.

    ``poles`` are pairs (name, p) of the quantities that contain the factor 1/gamma0^p. In ``scaled``, the
    theory that is expanded, these quantities are multiplied by gamma0^p.
    """

    poles: tuple[tuple[str, int], ...] = ()

    def expander(self) -> Expander:
        """Return the object that derives the theory of all orders, without coefficients that vanish."""
        return _Strength(self)

    def parts(self, name: str) -> tuple[tuple[tuple[Expr, tuple[int, ...]], ...], ...]:
        """Return the nonzero parts of a quantity, order by order; empty for an order that vanishes.

        Each part is a pair (factor, orders), and the factor is 1. A correlation has two orders, those of the
        two fields that it averages; a response, field or scalar has one. A quantity with the factor
        1/gamma0^p is expanded without this factor, so that its part of order n has the order n + p. Raises
        KeyError for an unknown name.

        >>> from derive import mean_field, mlp
        >>> lazy = expand_strength(mean_field(mlp(1, bias=True)), 2)
        >>> [lazy.parts(x)[2] for x in ("H", "f", "Delta")]
        [((1, (2, 0)), (1, (1, 1)), (1, (0, 2))), ((1, (3,)),), ((1, (2,)),)]
        """
        if name not in self.names:
            raise self.unknown(name)
        shift, nonzero = dict(self.poles).get(name, 0), self._nonzero
        pairs = any(q.name == name and q.kind == "correlation" for q in self.theory.order_parameters)
        parts = []
        for n in range(shift, self.order + shift + 1):
            orders = [(n - k, k) for k in range(n + 1)] if pairs else [(n,)]
            parts.append(tuple((S.One, k) for k in orders if named(name, *k) in nonzero))
        return tuple(parts)

    @cached_property
    def _nonzero(self) -> frozenset[str]:
        """Names of the nonzero coefficients of fields, order parameters and scalars, such as ``h__1``."""
        x = self.expanded
        items: tuple[Any, ...] = (*x.order_parameters, *x.equations, *x.scalars)
        return frozenset(str(i.name) for i in items)

    def observable(self, e: Equation) -> PowerCoefficients:
        """Return the coefficients of gamma0^0 to gamma0^order of an observable, such as the tangent kernel.

        ``e`` is its equation. The coefficients are expressions in those of order parameters and scalars, of
        which vanishing ones are set to zero.
        """
        nonzero = self._nonzero
        series = _Strength(self)
        _, coefficients = series.laurent(series.scaled(e.rhs))
        zero = {
            a: S.Zero
            for c in coefficients
            for a in c.atoms(AppliedUndef)
            if series.own(a) and named(a.func) not in nonzero
        }
        return [c.xreplace(zero) for c in coefficients[: self.order + 1]]


def expand_strength(theory: Theory, order: int) -> StrengthSeries:
    """Expand a linear theory in powers of gamma0, for any network, data and rule, as a theory again.

    Raises :class:`~derive.errors.NotApplicable` for a theory that is not linear in the fields or not
    polynomial in order parameters and scalars, for one in which 1/gamma0 does not cancel (initial values of
    layers of finite width), and if powers of 1/gamma0 multiply in an error that is not linear in the output.
    Raises ValueError for an order that is negative or not an integer.

    >>> from derive import mean_field, mlp
    >>> lazy = expand_strength(mean_field(mlp(1, bias=True)), 1)
    >>> for e in lazy.equations(1): print(e.lhs, "=", e.rhs)
    h__1(1, mu, t) = Sum(eta*Delta(alpha, s)*g(1, s), ...
    """
    order = require_integer("order", order, 0)
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
    expansion = StrengthSeries(theory, scaled, gamma0, gamma0, order, poles=tuple(shifted.items()))
    _ = expansion.expanded
    return expansion


def _power(e: Expr) -> int:
    """Return the power of gamma0 in the prefactor of an expression, negative for 1/gamma0."""
    _, power = e.as_coeff_exponent(gamma0)
    return int(power)


def _without(e: Expr, shifted: dict[str, int]) -> Expr:
    """Replace each function q named in ``shifted`` by ``q / gamma0^p``, where ``shifted`` maps names to p.

    The symbol q then stands for the quantity multiplied by gamma0^p.
    """
    singular = [a for a in sympify(e).atoms(AppliedUndef) if str(a.func) in shifted]
    return sympify(e).xreplace({a: a / gamma0 ** shifted[str(a.func)] for a in singular})


def _term(x: Term, put: Any, front: Expr) -> Term:
    """Return a term with ``put`` applied to its coefficient, kernel and field, multiplied by ``front``."""
    return replace(x, coefficient=put(x.coefficient) * front, kernel=put(x.kernel), field=put(x.field))


class _Strength(Expander):
    """Derivation of the theory of all orders in gamma0 of a linear theory, see :class:`StrengthSeries`.

    All quantities are expanded beyond the order that is asked for: by the highest power p of 1/gamma0 that a
    quantity contains, and at least by one order. ``known_to`` is the order up to which each quantity is
    known; ``poles`` collects the terms with negative powers of gamma0, which must vanish.
    """

    def __init__(self, series: StrengthSeries) -> None:
        self.shifted, self.wanted = dict(series.poles), series.order
        super().__init__(series.scaled, series.small, series.order + max([1, *self.shifted.values()]))
        self.known_to: dict[str, int] = dict.fromkeys(self.kinds, self.order)
        self.poles: list[Expr] = []
        self.dependence: SourceDependence | None = None

    def own(self, a: AppliedUndef) -> bool:
        """Return whether a function is a quantity of the theory or its coefficient, not given data."""
        return orders_in(str(a.func))[0] in self.kinds

    def scaled(self, e: Expr) -> Expr:
        """Return ``e`` with ``q / gamma0^p`` for each quantity q that contains ``1/gamma0^p``.

        In the result the symbol q stands for the quantity multiplied by gamma0^p.
        """
        return _without(e, self.shifted)

    def expanded(self) -> Theory:
        """Return the theory whose fields are the coefficients in powers of gamma0, without those that vanish.

        The orders up to which quantities are known are found by iteration. Raises :class:`NotApplicable` if
        an order that is asked for is not known, or if 1/gamma0 remains.
        """
        theory = super().expanded()
        self.dependence = SourceDependence(theory, frozenset(self.random))
        while True:
            self.poles = []
            known = dict(self.known_to)
            theory = super().expanded()
            if known == self.known_to:
                break
        for name, last in self.known_to.items():
            if last < self.wanted:
                raise NotApplicable(
                    f"order {last + 1} of {name} cannot be computed from lower orders, because powers of "
                    "1/gamma0 above the first enter: the error must be linear in the output, as for the "
                    "square loss, and the output must not contain a higher power than 1/gamma0"
                )
        theory = _known(theory)
        dependence = SourceDependence(theory, frozenset(self.random))
        for pole in self.poles:
            if (left := dependence.nonzero_part(pole)) != 0:
                raise NotApplicable(
                    f"1/gamma0 remains in front of {left}, because the initial output of layers of finite "
                    "width does not vanish with gamma0; infinitely wide layers have a series"
                )
        return dependence.theory()

    def series(self, e: Expr, term: Term | None = None) -> PowerCoefficients:
        """Return the coefficients of gamma0^0, gamma0^1, ... of an expression.

        The coefficients of negative powers are not returned; they are added to ``poles``, summed over indices
        and times as the term ``term`` of an equation is, if the expression belongs to one.
        """
        pole, coefficients = self.laurent(e.expand())
        summed = term is not None and (term.reach or term.over)
        self.poles += [term.expr.func(y, *term.expr.limits) if term and summed else y for y in pole]
        return coefficients

    def equation(self, e: Equation, live: Any) -> Iterator[Equation]:
        """Yield the equation of each coefficient of a field or scalar; record up to which order it is known.

        ``live`` are the sources that remain in the theory of all orders; others are set to zero.
        """
        for x in super().equation(e, live):
            self.record(e.name, order_of(x.symbol), [y.expr for y in x.terms])
            yield x

    def source(self, u: Source) -> Iterator[Source]:
        """Yield the sources of all orders for one source; record up to which order they are known."""
        for x in super().source(u):
            self.record(u.name, order_of(x.symbol) + order_of(x.partner), [x.covariance])
            yield x

    def parameter(self, q: OrderParameter) -> Iterator[OrderParameter]:
        """Yield the coefficients of an order parameter, and record up to which order it is known.

        For a correlation they are ``<a_k b_l>``, averages of coefficients of the orders k and l of its two
        fields; for a response ``<d a_n / d u_0>``, with the source at order 0.
        """
        for x in super().parameter(q):
            fields = [a for a in x.definition.atoms(AppliedUndef) if self.kind_of(a) == "field"]
            orders = sum(order_of(a) for a in fields)
            known = min(self.known_to[orders_in(str(a.func))[0]] for a in fields)
            if orders > known:
                self.known_to[q.name] = min(self.known_to[q.name], orders - 1)
            yield x

    def kind_of(self, a: AppliedUndef) -> str:
        """Return the kind (field, source, scalar, ...) of the quantity whose coefficient a function is."""
        return self.kinds.get(orders_in(str(a.func))[0], "")

    def record(self, name: str, n: int, parts: Iterable[Expr]) -> None:
        """Lower the highest known order of ``name`` to n - 1 if the coefficient of order n is not known.

        ``parts`` are the terms of that coefficient; unknown coefficients in them are marked by a symbol.
        Raises NotApplicable if no order remains.
        """
        if self.dependence is not None and any(y.has(UNKNOWN) for y in parts):
            self.known_to[name] = min(self.known_to[name], n - 1)
            if self.known_to[name] < 0:
                raise NotApplicable(
                    f"no order of {name} can be computed from lower orders: {name} grows like 1/gamma0, or "
                    "powers of 1/gamma0 multiply in it"
                )

    def laurent(self, e: Expr) -> tuple[list[Expr], PowerCoefficients]:
        """Return the Laurent series in gamma0 of an expression as two lists of coefficients.

        The first list has the nonzero coefficients of negative powers, in no particular order; the second has
        those of gamma0^0, gamma0^1, ....
        """
        poles: list[Expr] = []
        total: PowerCoefficients = [S.Zero] * (self.order + 1)
        for part in Add.make_args(sympify(e)):
            body, power = part.as_coeff_exponent(self.variable)
            shift = min(int(power), 0) if power.is_Integer else 0
            coefficients = self.coefficients(part if shift == 0 else body)
            poles += [c for c in coefficients[:-shift] if c != 0] if shift else []
            coefficients = [*coefficients[-shift:], *[UNKNOWN * Dummy() for _ in range(-shift)]][
                : self.order + 1
            ]
            total = [Add(a, b) for a, b in zip(total, coefficients, strict=True)]
        return poles, total

    def known(self, x: Expr) -> PowerCoefficients | None:
        """Return the series in gamma0 of an expression that is not a sum, product or power, as a list.

        Coefficients of a field, source or order parameter that vanish are zero, and those that are not yet
        known are replaced by a marker symbol. The result is None for an expression that the caller expands: a
        sum, product or power, a number or another symbol.
        """
        series = super().known(x)
        if not isinstance(x, AppliedUndef) or not self.kind(x) or series is None:
            return series
        dependence = self.dependence
        if dependence is not None:
            zero = {
                a: S.Zero
                for c in series
                for a in c.atoms(AppliedUndef)
                if self.own(a) and dependence.place(a) not in dependence.nonzero
            }
            series = [c.xreplace(zero) for c in series]
        last = self.known_to[str(x.func)]
        return [c if n <= last or c == 0 else UNKNOWN * Dummy() for n, c in enumerate(series)]


def order_of(a: AppliedUndef) -> int:
    """Return the order in gamma0 of a coefficient from its name: 2 for ``h__2``, 3 for ``H__1_2``."""
    return sum(orders_in(str(a.func))[1])


def _known(theory: Theory) -> Theory:
    """Remove from a theory all equations and sources that depend on coefficients whose order is not known."""

    def known(x: Any) -> bool:
        value = x.covariance if isinstance(x, Source) else x.rhs if isinstance(x, Equation) else S.Zero
        return not sympify(value).has(UNKNOWN)

    return theory.each(lambda x: [x] if known(x) else [])


def place(a: AppliedUndef) -> QuantityAtLayer:
    """Return (name, layer) of a field, source or order parameter.

    The layer is None unless the first of several arguments is an integer.
    """
    first = a.args[0] if len(a.args) > 1 else None
    return str(a.func), first if first is not None and first.is_Integer else None


class SourceDependence:
    """Search for the quantities of a linear theory that do not vanish, by the sources on which each depends.

    ``fields`` maps each field (name and layer) to the set of its sources, where given data count as one
    source; ``pairs`` are the pairs of correlated sources, ``nonzero`` the quantities that do not vanish.
    ``random`` are the names of fields and sources. The sets grow until nothing changes.
    """

    def __init__(self, theory: Theory, random: frozenset[str]) -> None:
        self.whole, self.random = theory, random
        self.families = any(x.layers for x in theory.stated())
        self.fields: dict[QuantityAtLayer, set[QuantityAtLayer]] = {
            self.place(e.symbol): set() for e in theory.equations
        }
        self.names = {*random, *(e.name for e in theory.scalars), *(q.name for q in theory.order_parameters)}
        self.pairs: set[tuple[QuantityAtLayer, QuantityAtLayer]] = {(GIVEN, GIVEN)}
        self.nonzero: set[QuantityAtLayer] = set()
        size = -1
        while size != (size := self.size):
            self.sweep()

    def place(self, a: AppliedUndef) -> QuantityAtLayer:
        """Return (name, layer) of a field, source or order parameter.

        In a theory with families of layers, of symbolic index, the layer is always None. In another one it is
        the first of several arguments if this is an integer, else None.
        """
        return (str(a.func), None) if self.families else place(a)

    @property
    def size(self) -> int:
        """Total size of the sets found so far: sources of all fields, correlated pairs, nonzero quantities.

        The search ends when this number stops growing.
        """
        return len(self.nonzero) + len(self.pairs) + sum(map(len, self.fields.values()))

    def sweep(self) -> None:
        """Extend the sets of sources, correlated pairs and nonzero quantities once by all equations."""
        for u in self.whole.sources:
            if self.nonzero_part(u.covariance) != 0:
                a, b = self.place(u.symbol), self.place(u.partner)
                self.pairs |= {(a, b), (b, a)}
                self.nonzero |= {a, b}
        for e in self.whole.equations:
            field = self.place(e.symbol)
            for x in e.terms:
                if x.expr.has(UNKNOWN):
                    self.fields[field] |= {GIVEN} | {a for pair in self.pairs for a in pair}
                elif self.holds(x.coefficient * x.kernel * x.field):
                    moving = self.moving(x.field)
                    self.fields[field] |= (
                        {GIVEN} if not moving else set().union(*map(self.sources_of, moving))
                    )
            self.nonzero |= {field} if self.fields[field] else set()
        for q in self.whole.order_parameters:
            if all(self.average(a) for a in q.definition.atoms(Average)):
                self.nonzero.add(self.place(q.symbol))
        for e in self.whole.scalars:
            if self.nonzero_part(e.rhs) != 0:
                self.nonzero.add(self.place(e.symbol))

    def moving(self, e: Expr) -> list[QuantityAtLayer]:
        """Return (name, layer) of each field and source in an expression."""
        return [self.place(a) for a in e.atoms(AppliedUndef) if str(a.func) in self.random]

    def sources_of(self, x: QuantityAtLayer) -> set[QuantityAtLayer]:
        """Return the sources (name, layer) on which the field x depends; a source depends on itself only."""
        return self.fields.get(x, {x})

    def average(self, a: Average) -> bool:
        """Return whether an average of two fields, or of a response, may differ from zero.

        The fields must depend on correlated sources, the field of a response on the perturbed source.
        """
        if isinstance(a.body, Response):
            perturbed = self.place(a.body.source)
            return any(perturbed in self.sources_of(x) for x in self.moving(a.body.body))
        fields = self.moving(a.body)
        return any(
            (u, v) in self.pairs for u in self.sources_of(fields[0]) for v in self.sources_of(fields[-1])
        )

    def holds(self, e: Expr) -> bool:
        """Return whether a product may differ from zero, because none of its factors vanishes."""
        if any(not self.average(a) for a in e.atoms(Average)):
            return False
        inner = {x for a in e.atoms(Average) for x in a.atoms(AppliedUndef)}
        return all(
            self.place(a) in self.nonzero for a in e.atoms(AppliedUndef) - inner if str(a.func) in self.names
        )

    def nonzero_part(self, e: Expr) -> Expr:
        """Return the sum of those products in ``e`` that may differ from zero."""
        return Add(*[x for x in Add.make_args(sympify(e).expand()) if self.holds(x)])

    def theory(self) -> Theory:
        """Return the theory without the quantities, terms and sources that vanish."""

        def left(x: Any) -> Iterator[Any]:
            if isinstance(x, Source):
                if (c := self.nonzero_part(x.covariance)) != 0:
                    yield replace(x, covariance=c)
            elif self.place(x.symbol) in self.nonzero:
                kept_terms = (y for z in getattr(x, "terms", ()) if (y := self.term(z)) is not None)
                yield replace(x, terms=tuple(kept_terms)) if isinstance(x, Equation) else x

        return self.whole.each(left)

    def term(self, x: Term) -> Term | None:
        """Return a term of an equation without summands that vanish; None if all vanish."""
        # The field of a term in the equation of a scalar may be a sum of products with averages. Then each
        # summand is tested separately for whether it vanishes.
        if x.field.has(Average):
            left = self.nonzero_part(x.field)
            return None if left == 0 or not self.holds(x.coefficient * x.kernel) else replace(x, field=left)
        return x if self.holds(x.coefficient * x.kernel * x.field) else None
