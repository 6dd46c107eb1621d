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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from sympy import Add, Expr, Function, Integral, Mul, Pow, Rational, S, Sum, Symbol, series, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import addends
from derive.errors import NotApplicable
from derive.program.words import s, t
from derive.theory import Equation, OrderParameter, Source, Term, Theory

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
class Expander:
    """Expands a theory, linear in its fields, to ``order`` in ``variable``.

    ``tables`` are given functions of two times (the weights of a rule) that are series themselves: the
    parts of order one and higher of such a function are there at ``s = t`` too.
    """

    theory: Theory
    variable: Symbol
    order: int
    tables: frozenset[str] = frozenset()
    found: dict[str, str] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        kinds = {e.name: "field" for e in self.theory.equations}
        kinds |= {e.name: "scalar" for e in self.theory.scalars}
        kinds |= {str(x.func): "source" for u in self.theory.sources for x in (u.symbol, u.partner)}
        kinds |= {q.name: q.kind for q in self.theory.order_parameters}
        kinds |= {name: "table" for name in self.tables}
        if self.variable.free_symbols & {t, s}:
            raise NotApplicable(f"{self.variable} is a time, not a small parameter")
        self.found.update(kinds)

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
            kept = [y for x, c in terms for y in self.terms(x, self.alive(c[n], live))]
            yield Equation(at_order(e.lhs, n), tuple(kept), e.ranges)

    def terms(self, x: Term, c: Expr) -> Iterator[Term]:
        """One order of a term, a kernel on a field for each addend."""
        for part in Add.make_args(c.expand() if x.remembers or x.over else c):
            if part == 0:
                continue
            if not (x.remembers or x.over):
                yield x.put(part)
                continue
            moving = [f for f in Mul.make_args(part) if self.moves(f)]
            instant = any(str(a.func) in self.instant for a in part.atoms(AppliedUndef))
            reach = "past" if x.reach == "strict" and instant else x.reach
            kernel = Mul(*[f for f in Mul.make_args(part) if f not in moving])
            yield replace(x, field=Mul(*moving), coefficient=S.One, kernel=kernel, reach=reach)

    def moves(self, e: Expr) -> bool:
        """Does it hold a field or a source, of any order?"""
        return any(str(a.func) in self.moving for a in e.atoms(AppliedUndef))

    @cached_property
    def moving(self) -> frozenset[str]:
        """What fields and sources of all orders are called."""
        names = [x for x, kind in self.found.items() if kind in ("field", "source")]
        return frozenset(named(x, n) for x in names for n in range(self.order + 1))

    def alive(self, e: Expr, live: set[Place]) -> Expr:
        """Without sources that have no covariance with any other, and that nothing responds to."""
        sources = [x for x, kind in self.found.items() if kind == "source"]
        names = {named(x, n) for x in sources for n in range(self.order + 1)}
        dead = [a for a in e.atoms(AppliedUndef) if str(a.func) in names and _place(a) not in live]
        return sympify(e.xreplace({a: S.Zero for a in dead}))

    def source(self, u: Source) -> Iterator[Source]:
        """``<u_0 u_0>``, and half of each further order as ``<u_0 u_n>`` and as ``<u_n u_0>``."""
        for n, c in enumerate(self.coefficients(u.covariance)):
            if c == 0:
                continue
            for a, b in [(0, 0)] if n == 0 else [(0, n), (n, 0)]:
                value = c if n == 0 else Rational(1, 2) * c
                yield replace(
                    u, symbol=at_order(u.symbol, a), partner=at_order(u.partner, b), covariance=value
                )

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
        for k, m in self.pairs():
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

    def pairs(self) -> list[tuple[int, int]]:
        """Orders of two factors that a product of the known order has."""
        return [(n - k, k) for n in range(self.order + 1) for k in range(n + 1)]

    def pair(self, body: Expr) -> tuple[AppliedUndef, AppliedUndef]:
        """The two fields in an average: that at time t first."""
        atoms = [a for x in Mul.make_args(body) for a in _powers(x)]
        if len(atoms) != 2 or any(self.kind(a) != "field" for a in atoms):
            raise NotApplicable(f"<{body}> is not an average of two fields: the theory must be linear")
        first, second = sorted(atoms, key=lambda a: (a.args[-1] != t, str(a)))
        return first, second

    # -- expressions -----------------------------------------------------------------------------------

    def kind(self, a: AppliedUndef) -> str:
        return self.found.get(str(a.func), "")

    def coefficients(self, e: Expr) -> Coefficients:
        """The powers of the variable in an expression of the theory."""
        total: Coefficients = [S.Zero] * (self.order + 1)
        for part in addends(sympify(e)):
            total = [a + b for a, b in zip(total, self.product(part), strict=True)]
        return total

    def product(self, e: Expr) -> Coefficients:
        """Of one product; sums over indices and times stay in front."""
        if isinstance(e, Sum | Integral):
            inside = self.coefficients(e.function)
            return [self.summed(e, c) for c in inside]
        number, moving = e.as_independent(self.variable, AppliedUndef, Average, Sum, Integral, as_Add=False)
        plain, factors = S.One, []
        for x in Mul.make_args(moving):
            if x.has(AppliedUndef, Average, Sum, Integral):
                factors += self.factor(x)
            else:
                plain *= x
        found = [number * c for c in self.taylor(plain)]
        for f in factors:
            found = _convolved(found, f)
        return found

    def summed(self, e: Expr, c: Expr) -> Expr:
        """A sum over the past of one coefficient, with the present where a factor reaches it."""
        total = S.Zero
        for x in Add.make_args(c.expand()):
            instant = any(str(a.func) in self.instant for a in x.atoms(AppliedUndef))
            limits = [(i, a, b + 1 if instant and i == s and b == t - 1 else b) for i, a, b in e.limits]
            total += S.Zero if x == 0 else e.func(x, *limits)
        return total

    @cached_property
    def instant(self) -> frozenset[str]:
        """What is there at ``s = t`` though its part of order zero is not: with tables, responses too."""
        strict = [q.name for q in self.theory.responses() if q.causal == "strict"] if self.tables else []
        return frozenset(named(x, n) for x in (*self.tables, *strict) for n in range(1, self.order + 1))

    def factor(self, x: Expr) -> list[Coefficients]:
        """The series of each factor in x, a power counting as many."""
        if isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0:
            return [self.known(x.base)] * int(x.exp)
        return [self.known(x)]

    def known(self, x: Expr) -> Coefficients:
        """The series of a field, source, scalar, table, order parameter, average, or sum."""
        if isinstance(x, Sum | Integral | Add):
            return self.coefficients(x)
        if isinstance(x, Average):
            first, second = self.pair(x.body)
            return [
                Add(*[Average(at_order(first, n - k) * at_order(second, k)) for k in range(n + 1)])
                for n in range(self.order + 1)
            ]
        if not isinstance(x, AppliedUndef):
            raise NotApplicable(
                f"{x} is no product of fields and order parameters: the theory must be linear"
            )
        match self.kind(x):
            case "":
                return [x, *[S.Zero] * self.order]
            case "correlation":
                return [Add(*[at_order(x, n - k, k) for k in range(n + 1)]) for n in range(self.order + 1)]
            case _:
                return [at_order(x, n) for n in range(self.order + 1)]

    def taylor(self, e: Expr) -> Coefficients:
        """The Taylor coefficients of a number.  Raises :class:`NotApplicable` where it has none at zero."""
        if not e.has(self.variable):
            return [e, *[S.Zero] * self.order]
        if e.has(t, s):
            raise NotApplicable(f"{e} depends on time and on {self.variable}")
        number, power = e.as_coeff_exponent(self.variable)
        if power.is_Integer and power >= 0 and not number.has(self.variable):
            return [number if n == power else S.Zero for n in range(self.order + 1)]
        found = series(e, self.variable, 0, self.order + 1).removeO()
        powers = [found.coeff(self.variable, n) for n in range(self.order + 1)]
        rest = (found - Add(*[c * self.variable**n for n, c in enumerate(powers)])).expand()
        if rest != 0 or any(c.has(self.variable) for c in powers):
            raise NotApplicable(f"{e} is no power series in {self.variable}")
        return powers


def _place(a: AppliedUndef) -> Place:
    return str(a.func), tuple(a.args[:-1])


def _powers(x: Expr) -> Sequence[AppliedUndef]:
    return [x.base] * int(x.exp) if isinstance(x, Pow) and x.exp.is_Integer else [x]


def _convolved(a: Coefficients, b: Coefficients) -> Coefficients:
    return [Add(*[(a[k] * b[n - k]).expand() for k in range(n + 1)]) for n in range(len(a))]
