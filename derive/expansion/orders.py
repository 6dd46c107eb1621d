"""Expansions that are theories again: in one over a size, and in the learning rate.

**Orders.** Every field is ``a = a_0 + x a_1 + x^2 a_2 + ...``, every order parameter and the covariance of
every source likewise; the equations of a linear theory, order by order, are the single-site equations of
the ``a_n``.  A source whose covariance is a series is a sum of sources: with ``<u_0 u_n> = <u_n u_0> =
S_n/2`` and no other covariances but ``<u_0 u_0> = S_0``, the sum ``u_0 + x u_1 + ...`` has the covariance
``S_0 + x S_1 + ...``.  Such sources cannot be drawn (``u_n`` has variance zero), but in a linear theory
nothing but covariances is ever asked for: whatever reads theories prints, lowers and solves expanded ones.

**Small steps.** Descent sums over past steps where the flow integrates, and by Euler and Maclaurin

    eta sum_{s<t} F(s) = int_0^t F ds + sum_n b_n eta^n [F^(n-1)(t) - F^(n-1)(0)],

with b_n the Taylor coefficients of z/(e^z - 1): shifting by a step is exp(eta d/dt), and the sum over steps
its geometric series.  So the theory of descent is that of the flow, in which a past update counts with
weights that are a power series in the rate.

**The modified equation.** A map ``x -> x + eta m_1(x) + eta^2 m_2(x) + ...`` (a step of descent: ``m_1``
the flow, and nothing else) is the time-eta map of ``dx/dt = F_0 + eta F_1 + eta^2 F_2 + ...``.  With L the
derivative along the right-hand side it is exp(eta L); comparing powers of eta gives one F after the other
(backward error analysis).  The series is asymptotic: unless the map is linear it converges for no eta.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sympy import (
    Add,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Integer,
    Integral,
    KroneckerDelta,
    Mul,
    Pow,
    Rational,
    S,
    Sum,
    Symbol,
    factorial,
    latex,
    simplify,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.series import Expressions, PowerCoefficients, PowerSeries
from derive.calculus.sums import factors
from derive.calculus.symbols import eta, s, t
from derive.errors import NotApplicable
from derive.expansion.expansion import Expansion
from derive.reduce.data import absorb_factors, instant_responses, scaled_sources, source_factor
from derive.show.notation import Name, notation
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from derive.theory.document import Show, render

SourceAtIndices = tuple[str, tuple[Expr, ...]]
"""The name of a source and its indices but the time."""


def named(name: object, *orders: int) -> str:
    """What the part of some order is called; that of order zero keeps its name.

    >>> named("v", 0), named("v", 2), named("C_v", 1, 0)
    ('v', 'v__2', 'C_v__1_0')
    """
    return f"{name}__{'_'.join(map(str, orders))}" if any(orders) else str(name)


def orders_in(name: str) -> tuple[str, tuple[int, ...]]:
    """The name that :func:`named` was given, and the orders; none of a name that holds no order.

    >>> orders_in("C_h__1_2"), orders_in("a___1"), orders_in("a__b")
    (('C_h', (1, 2)), ('a_', (1,)), ('a__b', ()))
    """
    found = re.fullmatch(r"(.+)__(\d+(?:_\d+)*)", name)
    return (found[1], tuple(map(int, found[2].split("_")))) if found else (name, ())


def at_order(a: AppliedUndef, *orders: int) -> AppliedUndef:
    """The part of a field, source or order parameter, at the same indices and times."""
    return Function(named(a.func, *orders))(*a.args)


@dataclass(frozen=True)
class TheorySeries(Expansion):
    """A linear ``theory`` in powers of ``variable``, up to ``order``.

    ``scaled`` is the theory in which the small parameter is the symbol ``small``, and ``tables`` names
    functions of two times that are series too; ``scales`` are the factors by which responses of ``theory``
    are those of ``scaled``, whose sources may be others.  ``expanded`` is the theory of all orders: for
    each field ``a`` fields ``a, a__1, a__2, ...`` whose sum, with powers of the variable, it is.  A
    correlation function has at order n the parts ``C__k_l = <a_k b_l>`` with ``k + l = n``.
    """

    theory: Theory
    scaled: Theory
    variable: Expr
    small: Symbol
    order: int
    tables: frozenset[str] = frozenset()
    scales: tuple[tuple[str, Expr], ...] = ()

    @cached_property
    def expanded(self) -> Theory:
        """The theory of all orders, that can be solved like any other."""
        found = self.expander().expanded()
        what = f"expanded in {self.variable} to order {self.order}"
        return replace(found, reduction=f"{self.theory.reduction}, {what}".strip(", "))

    def expander(self) -> Expander:
        """What finds the orders."""
        return Expander(self.scaled, self.small, self.order, self.tables)

    @property
    def names(self) -> tuple[str, ...]:
        """Fields, order parameters and scalars."""
        return tuple(self._symbols)

    def equations(self, n: int) -> tuple[Eq, ...]:
        """The equations of order n: of fields, then of scalars.  Raises IndexError beyond the order."""
        self.check_order(n)
        names = {named(e.name, n) for e in (*self.theory.equations, *self.theory.scalars)}
        return tuple(e.eq for e in (*self.expanded.equations, *self.expanded.scalars) if e.name in names)

    def coefficient(self, name: str, n: int) -> Expr:
        """Order n of a field, order parameter or scalar, in terms of the parts that :attr:`expanded` has.

        They are functions that its solution gives.  Raises KeyError for a name that the theory does not have,
        IndexError beyond the order.

        >>> from derive import isotropic, mean_field
        >>> from derive.program.networks.random_data import nu
        >>> expand_sizes(mean_field(isotropic()), nu, 1).coefficient("C_v", 1)
        C_v__0_1(t, s) + C_v__1_0(t, s)
        """
        self.check_order(n)
        if name not in self._symbols:
            raise self.unknown(name)
        return Add(*[c * at_order(self._symbols[name], *k) for c, k in self.parts(name)[n]])

    @cached_property
    def _symbols(self) -> dict[str, AppliedUndef]:
        singles = (*self.theory.scalars, *self.theory.equations)
        found = {q.name: q.symbol for q in self.theory.order_parameters}
        return found | {e.name: e.lhs for e in singles if isinstance(e.lhs, AppliedUndef)}

    def conditions(self) -> tuple[str, ...]:
        """What was assumed."""
        return (f"every quantity is a power series in {self.variable}",)

    def parts(self, name: str) -> tuple[tuple[tuple[Expr, tuple[int, ...]], ...], ...]:
        """What an order parameter or scalar is made of, order by order: numbers, and orders of parts.

        >>> from derive import isotropic, mean_field
        >>> from derive.program.networks.random_data import nu
        >>> wide = expand_sizes(mean_field(isotropic()), nu, 1)
        >>> wide.parts("C_v"), wide.parts("R_h0r0")
        ((((1, (0, 0)),), ((1, (1, 0)), (1, (0, 1)))), ((), ((1/gamma0, (0,)),)))
        """
        if any(q.name == name and q.kind == "correlation" for q in self.theory.order_parameters):
            one = sympify(1)
            return tuple(tuple((one, (n - k, k)) for k in range(n + 1)) for n in range(self.order + 1))
        scale = self.expander().coefficients(dict(self.scales).get(name, sympify(1)))
        return tuple(
            tuple((scale[n - k], (k,)) for k in range(n + 1) if scale[n - k] != 0)
            for n in range(self.order + 1)
        )

    def render(self, format: str = "text", show: Show = "single-site") -> str:
        """The theory of all orders as text, LaTeX, srepr or JSON; orders are written as lower marks."""
        return render(self.expanded, show, format, self.marks)

    @property
    def marks(self) -> dict[str, str]:
        """The LaTeX of the names of all parts but those of order zero."""
        plain = notation(self.theory)
        single = [e.name for e in (*self.theory.equations, *self.theory.scalars)]
        single += [str(x.func) for u in self.theory.sources for x in (u.symbol, u.partner)]
        single += [q.name for q in self.theory.responses()] + sorted(self.tables)
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        for n in range(1, self.order + 1):
            found |= {named(x, n): (x, (n,)) for x in single}
            for q in self.theory.correlations():
                found |= {named(q.name, n - k, k): (q.name, (n - k, k)) for k in range(n + 1)}
        return {x: _marked(plain.name(base), orders) for x, (base, orders) in found.items()}

    def __str__(self) -> str:
        return self.render()


def _marked(name: Name, orders: tuple[int, ...]) -> str:
    lower = f"{name.lower}({','.join(map(str, orders))})"
    base = f"{{{name.base}}}" if "_" in name.base else name.base
    return base + (f"^{{{name.upper}}}" if name.upper else "") + f"_{{{lower}}}"


# -- sizes -------------------------------------------------------------------------------------------------


def expand_sizes(
    theory: Theory, size: Symbol, order: int, together: Mapping[Symbol, Expr] | None = None
) -> TheorySeries:
    """A linear theory on random data in powers of ``1/size``, up to ``order``.

    Sizes in ``together`` grow with it, as the given multiples of it (``{alpha: 2 * nu}``).  Sources in
    front of which a size stands are scaled (:func:`.absorb_factors`), and responses that are there at equal
    time only are put in.  The order zero is :func:`.theory_limit`, and what that refuses is refused here:
    widths in NTK parametrisation, where features do not move in the limit but the initial function stays.

    Raises :class:`NotApplicable` for a theory that is no power series in ``1/size``, that is not linear, or
    that does not depend on the size, and ValueError for a negative order.

    >>> from derive import isotropic, mean_field
    >>> from derive.program.networks.random_data import nu
    >>> wide = expand_sizes(mean_field(isotropic(data="population", depth=1)), nu, 2)
    >>> for e in wide.equations(1)[2:]: print(e.lhs, "=", e.rhs)
    h0__1(t) = v__1(t)
    h__1(1, t) = u__1(1, t) + Sum(R_h0r0(t, s)*g(1, s)/gamma0, (s, 0, t)) + ...
    """
    if order < 0:
        raise ValueError(f"order = {order}: must not be negative; 0 is the limit itself")
    theory = instant_responses(theory)
    small = Symbol(f"1/{size}", positive=True)
    values = {size: 1 / small} | {
        k: sympify(v, strict=True).subs(size, 1 / small) for k, v in (together or {}).items()
    }
    right = [e.rhs for e in (*theory.equations, *theory.scalars)]
    if not any(x.has(size) for x in (*right, *(u.covariance for u in theory.sources))):
        raise NotApplicable(f"the theory does not depend on {size}")
    scales: list[tuple[str, Expr]] = []
    absorbed = theory
    for name in dict.fromkeys(name for x in values for name in scaled_sources(theory, x)):
        factor = source_factor(absorbed, name).subs(values)
        for q in theory.responses():
            if any(str(x.source.func) == name for x in q.definition.atoms(Response)):
                scales.append((q.name, factor))
        absorbed = absorb_factors(absorbed, name)
    scaled = absorbed.map(lambda e: sympify(e).subs(values))
    return TheorySeries(theory, scaled, 1 / size, small, order, scales=tuple(scales))


# -- the equations of all orders ----------------------------------------------------------------------------


class Expander(Expressions):
    """Expands a theory, linear in its fields, to ``order`` in ``variable``.

    ``tables`` are given functions of two times (the weights of a rule) that are series themselves: the
    parts of order one and higher of such a function are there at ``s = t`` too.
    """

    def __init__(
        self, theory: Theory, variable: Symbol, order: int, tables: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(order)
        self.theory, self.variable = theory, variable
        self.kinds = {e.name: "field" for e in theory.equations} | {e.name: "scalar" for e in theory.scalars}
        self.kinds |= {str(x.func): "source" for u in theory.sources for x in (u.symbol, u.partner)}
        self.kinds |= {q.name: q.kind for q in theory.order_parameters} | dict.fromkeys(tables, "table")
        for name in self.kinds:
            stem, orders = orders_in(name)
            if orders:
                told = f"{name} is called like the part of {stem} of order {', '.join(map(str, orders))}"
                raise NotApplicable(f"{told}: give it another name")
        own = [x for x, kind in self.kinds.items() if kind in ("field", "source")]
        self.random = {named(x, n): x for x in own for n in range(order + 1)}
        # what is there at s = t though its part of order zero is not: with tables, responses too
        strict = [q.name for q in theory.responses() if q.causal == "strict"] if tables else []
        self.instant = {named(x, n) for x in (*tables, *strict) for n in range(1, order + 1)}

    # -- the theory ------------------------------------------------------------------------------------

    def expanded(self) -> Theory:
        """The theory of all orders.  Raises :class:`NotApplicable` for a term that is no power series."""
        sources = tuple(x for u in self.theory.sources for x in self.source(u))
        pushed = {_place(x.source) for q in self.theory.responses() for x in q.definition.atoms(Response)}
        live = pushed | {_place(x) for u in sources for x in (u.symbol, u.partner)}

        def orders(x: Any) -> Iterable[Any]:
            if isinstance(x, Source):
                return [x]
            return self.equation(x, live) if isinstance(x, Equation) else self.parameter(x)

        return replace(self.theory, sources=sources, observables=()).each(orders)

    def equation(self, e: Equation, live: set[SourceAtIndices]) -> Iterator[Equation]:
        """Its orders; ``live`` are the sources that are left."""
        if not isinstance(e.lhs, AppliedUndef):
            raise NotApplicable(f"{e.lhs} is given by its rate of change, not by its past")
        terms = [(x, self.series(x.coefficient * x.kernel * x.field, x)) for x in e.terms]
        for n in range(self.order + 1):
            kept = ((x, y) for x, c in terms for y in Add.make_args(self.alive(c[n], live).expand()))
            yield Equation(at_order(e.lhs, n), tuple(self.term(x, y) for x, y in kept if y != 0), e.ranges)

    def series(self, e: Expr, term: Term | None = None) -> PowerCoefficients:
        """The orders of a covariance, or of what stands in a term."""
        return self.coefficients(e)

    def term(self, x: Term, body: Expr) -> Term:
        """One product at some order in the place of ``x``; a sum reaches the present where a factor does."""
        reach = "past" if x.reach == "strict" and self.instant & _names(body) else x.reach
        own = [a for a in Mul.make_args(body) if isinstance(a, AppliedUndef) and str(a.func) in self.random]
        rest = body / own[0] if own else S.One
        parts = {"kernel": rest, "coefficient": S.One} if reach else {"coefficient": rest, "kernel": S.One}
        return replace(x, field=own[0] if own else body, reach=reach, **parts)

    def alive(self, e: Expr, live: set[SourceAtIndices]) -> Expr:
        """Without sources that have no covariance with any other, and that nothing responds to."""
        own = [
            a for a in e.atoms(AppliedUndef) if self.kinds.get(self.random.get(str(a.func), "")) == "source"
        ]
        return sympify(e.xreplace({a: S.Zero for a in own if _place(a) not in live}))

    def source(self, u: Source) -> Iterator[Source]:
        """``<u_0 u_0>``, and half of each further order as ``<u_0 u_n>`` and as ``<u_n u_0>``."""
        for n, c in enumerate(self.series(u.covariance)):
            for a, b in [] if c == 0 else [(0, 0)] if n == 0 else [(0, n), (n, 0)]:
                ends = {"symbol": at_order(u.symbol, a), "partner": at_order(u.partner, b)}
                yield replace(u, **ends, covariance=(c if n == 0 else c / 2).expand())

    def parameter(self, q: OrderParameter) -> Iterator[OrderParameter]:
        """``<a_k b_l>`` with k + l up to the order; ``<d a_n / d u_0>``."""
        average = next(iter(q.definition.atoms(Average)))
        body = average.body
        if q.definition.has(self.variable):
            raise NotApplicable(f"the definition of {q.symbol} contains {self.variable}: {q.definition}")
        if q.kind == "response":
            for n in range(self.order + 1):
                symbol = at_order(q.symbol, n)
                answer = q.definition.xreplace({average: Average(self.answered(body, n))})
                causal = "past" if str(symbol.func) in self.instant else q.causal
                yield replace(q, symbol=symbol, definition=answer, causal=causal)
            return
        first, second = self.pair(body)
        given = body / (first * second)
        for k, m in ((n - k, k) for n in range(self.order + 1) for k in range(n + 1)):
            value = Average(given * at_order(first, k) * at_order(second, m))
            yield replace(
                q, symbol=at_order(q.symbol, k, m), definition=q.definition.xreplace({average: value})
            )

    def answered(self, body: Expr, n: int) -> Expr:
        """The response of order n: that of the field's part to the source's part of order zero."""
        node = next(iter(body.atoms(Response)))
        fields = [a for a in node.body.atoms(AppliedUndef) if self.kind(a) == "field"]
        if len(fields) != 1:
            raise NotApplicable(f"{node} is not the response of one field")
        moved = node.body.xreplace({fields[0]: at_order(fields[0], n)})
        return body.xreplace({node: Response(moved, node.source)})

    def pair(self, body: Expr) -> tuple[AppliedUndef, AppliedUndef]:
        """The two fields in an average: that at time t first."""
        atoms = [a for a in factors(body) if not self.is_given(a)]
        if len(atoms) != 2 or any(self.kind(a) != "field" for a in atoms):
            raise NotApplicable(f"<{body}> is not an average of two fields: the theory must be linear")
        first, second = sorted(atoms, key=lambda a: (a.args[-1] != t, str(a)))
        return first, second

    # -- expressions -----------------------------------------------------------------------------------

    def is_given(self, e: Expr) -> bool:
        """Is it made of the data, such as an eigenvalue or its root?"""
        own = e.atoms(AppliedUndef)
        return bool(own) and not any(self.kind(a) for a in own) and not e.has(self.variable, Average)

    def kind(self, a: AppliedUndef) -> str:
        return self.kinds.get(str(a.func), "")

    def coefficients(self, e: Expr) -> PowerCoefficients:
        """The powers of the variable in an expression of the theory, for which sums, products and powers are
        formed.  Raises :class:`NotApplicable` where it is no power series."""
        try:
            found: PowerCoefficients = self.evaluate(sympify(e), self.known)
        except NotApplicable:
            raise
        except ValueError as error:
            raise NotApplicable(f"{e} is no power series in {self.variable}: {error}") from error
        return found

    def known(self, x: Expr) -> PowerCoefficients | None:
        """The series of what is no sum, product or power of others; sums over indices and times stay."""
        orders = range(self.order + 1)
        if x == self.variable:
            return [Integer(n == 1) for n in orders]
        if isinstance(x, Sum | Integral):
            return [x.func(c, *x.limits) if c != 0 else S.Zero for c in self.coefficients(x.function)]
        if isinstance(x, Average):
            a, b = self.pair(x.body)
            return [
                Add(*[Average(at_order(a, n - k) * at_order(b, k)) for k in range(n + 1)]) for n in orders
            ]
        if isinstance(x, AppliedUndef) and self.kind(x) == "correlation":
            return [Add(*[at_order(x, n - k, k) for k in range(n + 1)]) for n in orders]
        if isinstance(x, AppliedUndef):
            return [at_order(x, n) for n in orders] if self.kind(x) else None
        if isinstance(x, Add | Mul) or (isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0):
            return None
        if self.is_given(x):
            return [x if n == 0 else S.Zero for n in orders]
        if x.has(AppliedUndef, Average):
            raise NotApplicable(
                f"{x} is no product of fields and order parameters: the theory must be linear"
            )
        if x.has(self.variable) and not (isinstance(x, Pow) and x.exp.is_Integer):
            raise NotApplicable(f"{x} is no power series in {self.variable}")
        return None


def _place(a: AppliedUndef) -> SourceAtIndices:
    return str(a.func), tuple(a.args[:-1])


def _names(e: Expr) -> set[str]:
    return {str(a.func) for a in e.atoms(AppliedUndef)}


WEIGHT = "w"
"""The weights with which past updates count."""


def boundary_coefficients(order: int) -> tuple[Expr, ...]:
    """b_1 ... b_order: what the derivatives at both ends of a sum over steps count.

    >>> boundary_coefficients(4)
    (-1/2, 1/12, 0, -1/720)
    """
    z = Dummy("z")
    steps = PowerSeries(tuple(Rational(1, factorial(n + 1)) for n in range(order + 1)), z)  # of (e^z - 1)/z
    return (steps**-1).coefficients[1:]


def weights(order: int) -> tuple[Eq, ...]:
    """What a sum with the weights of each order means, for a smooth function F.

    >>> for e in weights(2): print(e.rhs)
    Integral(F(s), (s, 0, t))
    F(0)/2 - F(t)/2
    Derivative(F(t), t)/12 - Subs(Derivative(F(s), s), s, 0)/12
    """
    F = Function("F")
    found = [Eq(_weighed(0, F), Integral(F(s), (s, 0, t)), evaluate=False)]
    for n, b in enumerate(boundary_coefficients(order), 1):
        slope = Derivative(F(s), s, n - 1) if n > 1 else F(s)
        found.append(Eq(_weighed(n, F), b * (slope.subs(s, t) - slope.subs(s, 0)), evaluate=False))
    return tuple(found)


def _weighed(n: int, F: Function) -> Expr:
    return Sum(Function(named(WEIGHT, n))(t, s) * F(s), (s, 0, t))


def expand_step_size(theory: Theory, order: int) -> TheorySeries:
    """The theory of descent, linear and without fresh noise, in powers of the rate, up to ``order``.

    The order zero is the theory of the flow (its rule ``multistep``: weights ``w`` stand for the integral);
    t is rate times steps.  Raises :class:`NotApplicable` where updates decay or gain momentum within few
    steps, so that the rate enters in another way than as the weight of past updates, and where noise is
    drawn at each step; and ValueError for a negative order.

    >>> from derive import mean_field, mlp
    >>> gd = expand_step_size(mean_field(mlp(1)), 1)
    >>> print(gd.equations(1)[1].rhs)
    Sum(gamma0*Delta(alpha, s)*h(1, alpha, s)*w__1(t, s), (alpha, 1, P), (s, 0, t)) + ...
    """
    if order < 0:
        raise ValueError(f"order = {order}: must not be negative; 0 is the flow")
    for u in theory.sources:
        if any({t, s} <= set(d.args) for d in u.covariance.atoms(KroneckerDelta)):
            raise NotApplicable(f"{u.symbol} is drawn anew at each step: such noise has no flow without it")
        if u.covariance.has(eta) or _counts_steps(u.covariance):
            raise NotApplicable(f"the covariance of {u.symbol} depends on {eta}: {u.covariance}")

    def equation(e: Equation) -> Equation:
        return replace(e, terms=tuple(map(_weighted, e.terms)))

    equations, scalars = (tuple(map(equation, x)) for x in (theory.equations, theory.scalars))
    scaled = replace(theory, equations=equations, scalars=scalars, observables=())
    return TheorySeries(theory, scaled, eta, Dummy("eta", positive=True), order, frozenset({WEIGHT}))


def _counts_steps(e: Expr) -> bool:
    """Does it depend on the number of steps, other than by functions of the times?"""
    return bool(e.replace(lambda a: isinstance(a, AppliedUndef), lambda _: S.One).has(t, s))


def _weighted(x: Term) -> Term:
    """A sum over past steps with the rate as weight: with the weights of the flow in its place."""
    body = x.coefficient * x.kernel
    kept = body / eta
    if not body.has(eta) and not x.field.has(eta):
        return x
    if x.reach != "strict" or x.field.has(eta) or kept.has(eta) or _counts_steps(kept):
        raise NotApplicable(f"{x.expr} is no sum over past updates that count with the weight {eta}")
    return replace(x, coefficient=S.One, kernel=kept * Function(WEIGHT)(t, s))


# -- the modified equation -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModifiedEquation(Expansion):
    """``dx/dt = rates[x]`` as power series in the step ``variable``; the step itself is ``map``."""

    map: Mapping[Expr, Expr]
    rates: Mapping[Expr, PowerSeries]
    variable: Symbol
    order: int

    @property
    def names(self) -> tuple[str, ...]:
        """The unknowns."""
        return tuple(self._named)

    def coefficient(self, name: str, n: int) -> Expr:
        """How fast an unknown changes at order n: 0 is the flow.

        Raises KeyError for what is none of the unknowns, IndexError beyond the order.
        """
        if name not in self._named:
            raise self.unknown(name)
        return self._named[name].coefficient(n)

    @property
    def _named(self) -> dict[str, PowerSeries]:
        return {str(x.func if isinstance(x, AppliedUndef) else x): rate for x, rate in self.rates.items()}

    def conditions(self) -> tuple[str, ...]:
        """What was assumed."""
        return ("the map is a polynomial in the step; its series is asymptotic, unless the map is linear",)

    def truncate(self, n: int) -> ModifiedEquation:
        cut = {x: rate.truncate(n) for x, rate in self.rates.items()}
        return replace(self, rates=cut, order=n)

    def drift(self, quantity: Expr) -> PowerSeries:
        """How fast a function of the unknowns changes.  What the flow conserves starts at order 1 or later.

        >>> from sympy import symbols
        >>> q, p = symbols("q p")
        >>> circle = modified_equation({q: q + eta * p, p: p - eta * q}, 3)
        >>> circle.drift(q**2 + p**2).coefficients
        (0, p**2 + q**2, 0, -p**2/2 - q**2/2)
        """
        slopes = {x: quantity.diff(x) for x in self.rates}
        orders = range(self.order + 1)
        total = [Add(*[slopes[x] * r.coefficient(n) for x, r in self.rates.items()]) for n in orders]
        return PowerSeries(tuple(x.expand() for x in total), self.variable)

    def render(self, format: str = "text") -> str:
        """One equation a line, as ``text`` or ``latex``.  Raises ValueError for another format."""
        if format not in ("text", "latex"):
            raise ValueError(f"format = {format!r}: must be one of text, latex")
        if format == "text":
            return "\n".join(f"d{x}/dt = {r}" for x, r in self.rates.items())
        right = {x: r._repr_latex_().removeprefix("$\\displaystyle ")[:-1] for x, r in self.rates.items()}
        rows = [rf"\frac{{d}}{{dt}} {latex(x)} &= {y}" for x, y in right.items()]
        return "\\begin{align*}\n  " + " \\\\\n  ".join(rows) + "\n\\end{align*}"

    def __str__(self) -> str:
        return self.render()


def modified_equation(step: Mapping[Expr, Expr], order: int, variable: Symbol = eta) -> ModifiedEquation:
    """The modified equation of the map ``x -> step[x]``, up to ``order`` in ``variable``.

    Raises ValueError for a negative order, a map that moves at step zero, and one that is no polynomial in
    the step.

    >>> from sympy import Function, Symbol
    >>> x, f = Symbol("x"), Function("f")
    >>> modified_equation({x: x + eta * f(x)}, 1).coefficient("x", 1)
    -f(x)*Derivative(f(x), x)/2
    >>> modified_equation({x: x - eta * x}, 3).rates[x].coefficients  # log(1 - eta)/eta
    (-x, -x/2, -x/3, -x/4)
    """
    if order < 0:
        raise ValueError(f"order = {order}: must not be negative; 0 is the flow")
    names = list(step)
    moved = {x: _map_powers(sympify(step[x], strict=True) - x, variable, order + 1) for x in names}
    for x, c in moved.items():
        if simplify(c[0]) != 0:
            raise ValueError(f"{x} -> {step[x]}: must not move when {variable} = 0; it moves by {c[0]}")
    fields: list[dict[Expr, Expr]] = []
    known: dict[tuple[int, int], dict[Expr, Expr]] = {}

    def repeated(j: int, m: int) -> dict[Expr, Expr]:
        """The part of order m of ``(F . d/dx)^j x``; it contains fields up to order m."""
        if j == 1:
            return fields[m]
        if (j, m) not in known:
            known[j, m] = {
                x: Add(*[_along(fields[k], repeated(j - 1, m - k)[x]) for k in range(m + 1)]).expand()
                for x in names
            }
        return known[j, m]

    for n in range(order + 1):
        carried = [(Rational(1, factorial(j)), repeated(j, n + 1 - j)) for j in range(2, n + 2)]
        fields.append({x: (moved[x][n + 1] - Add(*[c * d[x] for c, d in carried])).expand() for x in names})
    return ModifiedEquation(
        dict(step), {x: PowerSeries(tuple(f[x] for f in fields), variable) for x in names}, variable, order
    )


def _along(field: Mapping[Expr, Expr], e: Expr) -> Expr:
    """The derivative of ``e`` along a vector field."""
    return Add(*[e.diff(x) * v for x, v in field.items()])


def _map_powers(e: Expr, variable: Symbol, order: int) -> tuple[Expr, ...]:
    """The coefficients of a polynomial in the step, powers from 0 to ``order``."""
    e = e.expand()
    if not e.is_polynomial(variable):
        raise ValueError(f"{e} is no polynomial in the step {variable}")
    return tuple(e.coeff(variable, n) for n in range(order + 1))
