"""A linear theory expanded in a small parameter is again a linear theory, with a field for each order.

Every field is ``a = a_0 + x a_1 + x^2 a_2 + ...``, every order parameter and the covariance of every source
likewise.  The equations of the theory, order by order, are the single-site equations of the ``a_n``.  A
source whose covariance is a series is a sum of sources too: with ``<u_0 u_n> = <u_n u_0> = S_n/2`` and no
other covariances but ``<u_0 u_0> = S_0``, the sum ``u_0 + x u_1 + ...`` has the covariance
``S_0 + x S_1 + ...``. Such sources are no Gaussian variables that could be drawn (``u_n`` has variance
zero), but in a linear theory nothing but covariances is ever asked for.

So whatever reads theories reads expanded ones: they are printed, lowered and solved like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from sympy import Add, Eq, Expr, Function, Integer, Integral, Mul, Pow, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.series import Expressions
from derive.calculus.symbols import t
from derive.errors import NotApplicable
from derive.expansion.expansion import Expansion
from derive.reduce.data import absorb_factors, instant_responses, scaled_sources, source_factor
from derive.show.notation import Name, notation
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from derive.theory.document import Show, render

Coefficients = list[Expr]
"""Those of powers 0, 1, ... of the variable."""

Place = tuple[str, tuple[Expr, ...]]
"""The name of a source and its indices but the time."""


def named(name: object, *orders: int) -> str:
    """What the part of some order is called; that of order zero keeps its name.

    >>> named("v", 0), named("v", 2), named("C_v", 1, 0)
    ('v', 'v__2', 'C_v__1_0')
    """
    return f"{name}__{'_'.join(map(str, orders))}" if any(orders) else str(name)


def at_order(a: AppliedUndef, *orders: int) -> AppliedUndef:
    """The part of a field, source or order parameter, at the same indices and times."""
    return Function(named(a.func, *orders))(*a.args)


@dataclass(frozen=True)
class TheorySeries(Expansion):
    """A linear ``theory`` in powers of ``parameter``, up to ``order``.

    ``scaled`` is the theory in which the small parameter is the symbol ``small``, and ``tables`` names
    functions of two times that are series too; ``scales`` are the factors by which responses of ``theory``
    are those of ``scaled``, whose sources may be others.  ``expanded`` is the theory of all orders: for
    each field ``a`` fields ``a, a__1, a__2, ...`` whose sum, with powers of the variable, it is.  A
    correlation function has at order n the parts ``C__k_l = <a_k b_l>`` with ``k + l = n``.
    """

    theory: Theory
    scaled: Theory
    parameter: Expr
    small: Symbol
    order: int
    tables: frozenset[str] = frozenset()
    scales: tuple[tuple[str, Expr], ...] = ()

    @cached_property
    def expanded(self) -> Theory:
        """The theory of all orders, that can be solved like any other."""
        found = Expander(self.scaled, self.small, self.order, self.tables).expanded()
        what = f"expanded in {self.variable} to order {self.order}"
        return replace(found, reduction=f"{self.theory.reduction}, {what}".strip(", "))

    @property
    def variable(self) -> Expr:
        """The small parameter."""
        return self.parameter

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

        >>> from derive.theory import mean_field
        >>> from derive.program import isotropic
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

    def truncate(self, n: int) -> TheorySeries:
        """The series up to order n only.  Raises IndexError beyond the order."""
        self.check_order(n)
        return replace(self, order=n)

    def conditions(self) -> tuple[str, ...]:
        """What was assumed."""
        return (f"every quantity is a power series in {self.variable}",)

    def parts(self, name: str) -> tuple[tuple[tuple[Expr, tuple[int, ...]], ...], ...]:
        """What an order parameter or scalar is made of, order by order: numbers, and orders of parts.

        >>> from derive.theory import mean_field
        >>> from derive.program import isotropic
        >>> from derive.program.networks.random_data import nu
        >>> wide = expand_sizes(mean_field(isotropic()), nu, 1)
        >>> wide.parts("C_v"), wide.parts("R_h0r0")
        ((((1, (0, 0)),), ((1, (1, 0)), (1, (0, 1)))), ((), ((1/gamma0, (0,)),)))
        """
        if any(q.name == name and q.kind == "correlation" for q in self.theory.order_parameters):
            one = sympify(1)
            return tuple(tuple((one, (n - k, k)) for k in range(n + 1)) for n in range(self.order + 1))
        scale = Expander(self.scaled, self.small, self.order).coefficients(
            dict(self.scales).get(name, sympify(1))
        )
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

    >>> from derive.theory import mean_field
    >>> from derive.program import isotropic
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
    if not any(x.has(size) for x in _expressions(theory)):
        raise NotApplicable(f"the theory does not depend on {size}")
    scales: list[tuple[str, Expr]] = []
    absorbed = theory
    for name in dict.fromkeys(name for x in values for name in scaled_sources(theory, x)):
        factor = source_factor(absorbed, name).subs(values)
        scales += [(q.name, factor) for q in theory.responses() if _pushes(q.definition, name)]
        absorbed = absorb_factors(absorbed, name)
    scaled = absorbed.map(lambda e: sympify(e).subs(values))
    return TheorySeries(theory, scaled, 1 / size, small, order, scales=tuple(scales))


def _pushes(definition: Expr, source: str) -> bool:
    return any(str(x.source.func) == source for x in definition.atoms(Response))


def _expressions(theory: Theory) -> list[Expr]:
    found = [e.rhs for e in (*theory.equations, *theory.scalars)]
    return [*found, *(u.covariance for u in theory.sources)]


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
        equations = tuple(x for e in self.theory.equations for x in self.equation(e, live))
        return replace(
            self.theory,
            sources=sources,
            equations=equations,
            order_parameters=tuple(x for q in self.theory.order_parameters for x in self.parameter(q)),
            scalars=tuple(x for e in self.theory.scalars for x in self.equation(e, live)),
            observables=(),
        )

    def equation(self, e: Equation, live: set[Place]) -> Iterator[Equation]:
        """Its orders; ``live`` are the sources that are left."""
        if not isinstance(e.lhs, AppliedUndef):
            raise NotApplicable(f"{e.lhs} is given by its rate of change, not by its past")
        terms = [(x, self.coefficients(x.coefficient * x.kernel * x.field)) for x in e.terms]
        for n in range(self.order + 1):
            kept = ((x, y) for x, c in terms for y in Add.make_args(self.alive(c[n], live).expand()))
            yield Equation(at_order(e.lhs, n), tuple(self.term(x, y) for x, y in kept if y != 0), e.ranges)

    def term(self, x: Term, body: Expr) -> Term:
        """One product at some order in the place of ``x``; a sum reaches the present where a factor does."""
        reach = "past" if x.reach == "strict" and self.instant & _names(body) else x.reach
        own = [a for a in Mul.make_args(body) if isinstance(a, AppliedUndef) and str(a.func) in self.random]
        rest = body / own[0] if own else S.One
        parts = {"kernel": rest, "coefficient": S.One} if reach else {"coefficient": rest, "kernel": S.One}
        return replace(x, field=own[0] if own else body, reach=reach, **parts)

    def alive(self, e: Expr, live: set[Place]) -> Expr:
        """Without sources that have no covariance with any other, and that nothing responds to."""
        own = [
            a for a in e.atoms(AppliedUndef) if self.kinds.get(self.random.get(str(a.func), "")) == "source"
        ]
        return sympify(e.xreplace({a: S.Zero for a in own if _place(a) not in live}))

    def source(self, u: Source) -> Iterator[Source]:
        """``<u_0 u_0>``, and half of each further order as ``<u_0 u_n>`` and as ``<u_n u_0>``."""
        for n, c in enumerate(self.coefficients(u.covariance)):
            for a, b in [] if c == 0 else [(0, 0)] if n == 0 else [(0, n), (n, 0)]:
                ends = {"symbol": at_order(u.symbol, a), "partner": at_order(u.partner, b)}
                yield replace(u, **ends, covariance=(c if n == 0 else c / 2).expand())

    def parameter(self, q: OrderParameter) -> Iterator[OrderParameter]:
        """``<a_k b_l>`` with k + l up to the order; ``<d a_n / d u_0>``."""
        average = next(iter(q.definition.atoms(Average)))
        front = q.definition / average
        if front.has(self.variable):
            raise NotApplicable(f"the definition of {q.symbol} contains {self.variable}: {q.definition}")
        body = average.body
        if q.kind == "response":
            for n in range(self.order + 1):
                symbol = at_order(q.symbol, n)
                answer = front * Average(self.answered(body, n))
                causal = "past" if str(symbol.func) in self.instant else q.causal
                yield replace(q, symbol=symbol, definition=answer, causal=causal)
            return
        first, second = self.pair(body)
        for k, m in ((n - k, k) for n in range(self.order + 1) for k in range(n + 1)):
            value = Average(at_order(first, k) * at_order(second, m))
            yield replace(q, symbol=at_order(q.symbol, k, m), definition=front * value)

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
        atoms = [a for x in Mul.make_args(body) for a in _powers(x)]
        if len(atoms) != 2 or any(self.kind(a) != "field" for a in atoms):
            raise NotApplicable(f"<{body}> is not an average of two fields: the theory must be linear")
        first, second = sorted(atoms, key=lambda a: (a.args[-1] != t, str(a)))
        return first, second

    # -- expressions -----------------------------------------------------------------------------------

    def kind(self, a: AppliedUndef) -> str:
        return self.kinds.get(str(a.func), "")

    def coefficients(self, e: Expr) -> Coefficients:
        """The powers of the variable in an expression of the theory, for which sums, products and powers are
        formed.  Raises :class:`NotApplicable` where it is no power series."""
        try:
            found: Coefficients = self.evaluate(sympify(e), self.known)
        except NotApplicable:
            raise
        except ValueError as error:
            raise NotApplicable(f"{e} is no power series in {self.variable}: {error}") from error
        return found

    def known(self, x: Expr) -> Coefficients | None:
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
        if x.has(AppliedUndef, Average):
            raise NotApplicable(
                f"{x} is no product of fields and order parameters: the theory must be linear"
            )
        if x.has(self.variable) and not (isinstance(x, Pow) and x.exp.is_Integer):
            raise NotApplicable(f"{x} is no power series in {self.variable}")
        return None


def _place(a: AppliedUndef) -> Place:
    return str(a.func), tuple(a.args[:-1])


def _powers(x: Expr) -> list[Expr]:
    return [x.base] * int(x.exp) if isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0 else [x]


def _names(e: Expr) -> set[str]:
    return {str(a.func) for a in e.atoms(AppliedUndef)}


__all__ = ["Expander", "TheorySeries", "at_order", "expand_sizes", "named"]
