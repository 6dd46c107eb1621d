"""Expansions that are theories again: in one over a size, and in the learning rate.

**Orders.** Every field is ``a = a_0 + x a_1 + x^2 a_2 + ...``, and so are order parameters and covariances.
The equations of a linear theory, order by order, are the single-site equations of the ``a_n``. A source whose
covariance is a series is a sum of sources: with ``<u_0 u_n> = <u_n u_0> = S_n/2`` and no other covariances
except ``<u_0 u_0> = S_0``, the sum ``u_0 + x u_1 + ...`` has the covariance ``S_0 + x S_1 + ...``. Such
sources cannot be sampled (``u_n`` has variance zero), but a linear theory needs only covariances, so that
solvers and printers take expanded theories like any other.

**Small steps.** Descent sums over past steps where the flow integrates, and by Euler and Maclaurin

    eta sum_{s<t} F(s) = int_0^t F ds + sum_n b_n eta^n [F^(n-1)(t) - F^(n-1)(0)],

with b_n the Taylor coefficients of z/(e^z - 1): the shift by one step is exp(eta d/dt), and the sum over
steps is its geometric series. The theory of descent is therefore that of the flow, with weights of past
updates that are a power series in the rate.

**The modified equation.** A map ``x -> x + eta m_1(x) + eta^2 m_2(x) + ...`` (for a step of descent, ``m_1``
is the flow and the others vanish) is the time-eta map of ``dx/dt = F_0 + eta F_1 + eta^2 F_2 + ...``. With L
the derivative along the right-hand side it is exp(eta L); comparing powers of eta gives one F after the other
(backward error analysis). For a map that is not linear the series is asymptotic, and in general does not
converge for any eta.
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
from derive.calculus.symbols import converted, eta, s, t
from derive.errors import NotApplicable, require_integer
from derive.expansion.expansion import Expansion
from derive.reduce.data import absorb_factors, instant_responses, scaled_sources, source_factor
from derive.show.notation import Name, notation
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from derive.theory.document import Show, render

SourceAtIndices = tuple[str, tuple[Expr, ...]]
"""Name of a source, and its indices without the time."""


def named(name: object, *orders: int) -> str:
    """Return the name of one order of a quantity; order zero keeps the name itself.

    A correlation has two orders, those of the two fields that it averages; other quantities have one.

    >>> named("v", 0), named("v", 2), named("C_v", 1, 0)
    ('v', 'v__2', 'C_v__1_0')
    """
    return f"{name}__{'_'.join(map(str, orders))}" if any(orders) else str(name)


def orders_in(name: str) -> tuple[str, tuple[int, ...]]:
    """Return the name and the orders from which :func:`named` made a name; no orders for other names.

    >>> orders_in("C_h__1_2"), orders_in("a___1"), orders_in("a__b")
    (('C_h', (1, 2)), ('a_', (1,)), ('a__b', ()))
    """
    match = re.fullmatch(r"(.+)__(\d+(?:_\d+)*)", name)
    return (match[1], tuple(map(int, match[2].split("_")))) if match else (name, ())


def at_order(a: AppliedUndef, *orders: int) -> AppliedUndef:
    """Return one coefficient of a field, source or order parameter: ``h__2(t)`` for order 2 of ``h(t)``.

    ``orders`` are two numbers for a correlation and one for any other quantity.
    """
    return Function(named(a.func, *orders))(*a.args)


@dataclass(frozen=True, repr=False)
class TheorySeries(Expansion):
    """Linear theory in powers of a small parameter.

    Parameters
    ----------
    theory : Theory
        Original theory.
    scaled : Theory
        Theory in which the small parameter is the symbol ``small``.
    variable : Expr
        Small parameter, such as ``1/nu``.
    small : Symbol
        Symbol that represents the small parameter in ``scaled``.
    order : int
        Highest order.
    tables : frozenset of str
        Names of given functions of two times, such as the weights ``w(t, s)`` of past steps, that are power
        series in the small parameter as well.
    scales : tuple of (str, Expr)
        Pairs (name of a response, factor). The source of this response in ``scaled`` is the factor times that
        in ``theory``. The response of ``theory`` is then the factor times the response of ``scaled``.

    Notes
    -----
    :attr:`expanded` is the theory of all orders: for each field ``a`` it has fields ``a, a__1, a__2, ...``
    whose sum, with powers of the variable, is the field. A correlation has at order n the parts
    ``C__k_l = <a_k b_l>`` with ``k + l = n``.
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
        """Theory whose fields, sources and order parameters are the coefficients of all orders.

        It can be solved like any other theory.
        """
        expanded = self.expander().expanded()
        what = f"expanded in {self.variable} to order {self.order}"
        return replace(expanded, reduction=f"{self.theory.reduction}, {what}".strip(", "))

    def expander(self) -> Expander:
        """Return the object that derives the theory of all orders.

        Returns
        -------
        Expander
            Expander of the scaled theory.
        """
        return Expander(self.scaled, self.small, self.order, self.tables)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of fields, order parameters and scalars."""
        return tuple(self._symbols)

    def equations(self, n: int) -> tuple[Eq, ...]:
        """Return the equations of the coefficients of one order in the small parameter.

        Parameters
        ----------
        n : int
            Order.

        Returns
        -------
        tuple[Eq, ...]
            Equations of fields, then of scalars.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order.
        """
        self.check_order(n)
        names = {named(e.name, n) for e in (*self.theory.equations, *self.theory.scalars)}
        return tuple(e.eq for e in (*self.expanded.equations, *self.expanded.scalars) if e.name in names)

    def coefficient(self, name: str, n: int) -> Expr:
        """Return the coefficient of one power of the small parameter in a field, order parameter or scalar.

        Parameters
        ----------
        name : str
            Name of the quantity.
        n : int
            Order.

        Returns
        -------
        Expr
            Expression in the quantities of the theory :attr:`expanded`.

        Raises
        ------
        KeyError
            If the theory has no quantity of that name.
        IndexError
            If ``n`` is negative or beyond the order.

        Examples
        --------
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
        """Fields, order parameters and scalars of the theory by name, as functions such as ``h(ell, t)``."""
        singles = (*self.theory.scalars, *self.theory.equations)
        symbols = {q.name: q.symbol for q in self.theory.order_parameters}
        return symbols | {e.name: e.lhs for e in singles if isinstance(e.lhs, AppliedUndef)}

    def conditions(self) -> tuple[str, ...]:
        """Return the assumption that every quantity is a power series in the small parameter.

        Returns
        -------
        tuple[str, ...]
            One sentence.
        """
        return (f"every quantity is a power series in {self.variable}",)

    def parts(self, name: str) -> tuple[tuple[tuple[Expr, tuple[int, ...]], ...], ...]:
        """Return the terms of a quantity at each order of the small parameter.

        Parameters
        ----------
        name : str
            Name of a field, order parameter or scalar.

        Returns
        -------
        tuple[tuple[tuple[Expr, tuple[int, ...]], ...], ...]
            For each order n a tuple of terms, pairs (factor, orders). A correlation ``<a b>`` has the terms
            ``<a_k b_l>`` with orders (k, l) and factor 1. Other quantities have terms with orders (k,); the
            factor is the coefficient of order n - k in the factor of ``scales``, 1 for k = n without one.

        Raises
        ------
        KeyError
            If the theory has no quantity of that name.

        Examples
        --------
        >>> from derive import isotropic, mean_field
        >>> from derive.program.networks.random_data import nu
        >>> wide = expand_sizes(mean_field(isotropic()), nu, 1)
        >>> wide.parts("C_v"), wide.parts("R_h0r0")
        ((((1, (0, 0)),), ((1, (1, 0)), (1, (0, 1)))), ((), ((1/gamma0, (0,)),)))
        """
        if name not in self._symbols:
            raise self.unknown(name)
        if any(q.name == name and q.kind == "correlation" for q in self.theory.order_parameters):
            one = sympify(1)
            return tuple(tuple((one, (n - k, k)) for k in range(n + 1)) for n in range(self.order + 1))
        scale = self.expander().coefficients(dict(self.scales).get(name, sympify(1)))
        return tuple(
            tuple((scale[n - k], (k,)) for k in range(n + 1) if scale[n - k] != 0)
            for n in range(self.order + 1)
        )

    def render(self, format: str = "text", show: Show = "single-site") -> str:
        """Return the theory of all orders as text, LaTeX, SymPy source or JSON.

        Its fields are the coefficients of all orders. In text and LaTeX an order is written in parentheses as
        a lower index.

        Parameters
        ----------
        format : {"text", "latex", "srepr", "json"}
            Format.
        show : Show, optional
            Part of the theory, as in :meth:`.Theory.render`.

        Returns
        -------
        str
            The document.

        Raises
        ------
        ValueError
            If the format or the part is another one.
        """
        return render(self.expanded, show, format, self.marks)

    @property
    def marks(self) -> dict[str, str]:
        """LaTeX name of each coefficient of order 1 and higher, by its name in the theory of all orders.

        The order is in parentheses as a lower index: that of ``v__2`` is ``v_{(2)}``.
        """
        plain = notation(self.theory)
        single = [e.name for e in (*self.theory.equations, *self.theory.scalars)]
        single += [str(x.func) for u in self.theory.sources for x in (u.symbol, u.partner)]
        single += [q.name for q in self.theory.responses()] + sorted(self.tables)
        parts: dict[str, tuple[str, tuple[int, ...]]] = {}
        for n in range(1, self.order + 1):
            parts |= {named(x, n): (x, (n,)) for x in single}
            for q in self.theory.correlations():
                parts |= {named(q.name, n - k, k): (q.name, (n - k, k)) for k in range(n + 1)}
        return {x: _marked(plain.name(base), orders) for x, (base, orders) in parts.items()}

    def __str__(self) -> str:
        return self.render()


def _marked(name: Name, orders: tuple[int, ...]) -> str:
    """Return the LaTeX name of a coefficient: a quantity's name with its orders as lower index."""
    lower = f"{name.lower}({','.join(map(str, orders))})"
    base = f"{{{name.base}}}" if "_" in name.base else name.base
    return base + (f"^{{{name.upper}}}" if name.upper else "") + f"_{{{lower}}}"


# -- sizes -------------------------------------------------------------------------------------------------


def expand_sizes(
    theory: Theory, size: Symbol, order: int, together: Mapping[Symbol, Expr] | None = None
) -> TheorySeries:
    """Expand a linear theory on random data in powers of one over a size.

    Parameters
    ----------
    theory : Theory
        Linear theory on random data.
    size : Symbol
        Size, such as ``nu`` or ``alpha``.
    order : int
        Highest order.
    together : Mapping[Symbol, Expr] | None, optional
        Other sizes that grow in proportion to ``size``, as multiples of it: ``{alpha: 2 * nu}``. Keys are
        symbols of the theory other than ``size``.

    Returns
    -------
    TheorySeries
        Expansion in ``1/size``. Its equations are derived when they are first read.

    Raises
    ------
    NotApplicable
        If the theory does not depend on the size. The result raises it if the theory is not linear, or not a
        power series in ``1/size``.
    ValueError
        If the order is negative or not an integer, or if a key of ``together`` is not a symbol of the theory
        or is ``size``.

    Notes
    -----
    Sources with a factor of the size are scaled (:func:`.absorb_factors`), and responses that exist only at
    equal times are substituted. The order zero is :func:`.theory_limit`, with the same restrictions: widths
    in NTK parametrisation are refused because features do not move in the limit but the initial function
    remains.

    Examples
    --------
    >>> from derive import isotropic, mean_field
    >>> from derive.program.networks.random_data import nu
    >>> wide = expand_sizes(mean_field(isotropic(data="population", depth=1)), nu, 2)
    >>> for e in wide.equations(1)[2:]: print(e.lhs, "=", e.rhs)
    h0__1(t) = v__1(t)
    h__1(1, t) = u__1(1, t) + Sum(R_h0r0(t, s)*g(1, s)/gamma0, (s, 0, t)) + ...
    """
    order = require_integer("order", order, 0)
    _require_other_sizes(theory, size, together or {})
    theory = instant_responses(theory)
    small = Symbol(f"1/{size}", positive=True)
    values = {size: 1 / small} | {k: converted(v).subs(size, 1 / small) for k, v in (together or {}).items()}
    right = [e.rhs for e in (*theory.equations, *theory.scalars)]
    if not any(x.has(size) for x in (*right, *(u.covariance for u in theory.sources))):
        raise NotApplicable(
            f"the theory does not depend on the symbol {size} with the assumptions that it has here; "
            "theory.symbols contains the symbols of the theory with their assumptions: "
            f"{', '.join(theory.symbols)}"
        )
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


def _require_other_sizes(theory: Theory, size: Symbol, together: Mapping[Symbol, Expr]) -> None:
    """Raise ValueError unless the keys of ``together`` are symbols of the theory other than ``size``."""
    known = theory.symbols
    for key, value in together.items():
        if key == size:
            raise ValueError(
                f"together = {{{key!r}: {value}}}: {key} is the size in which the theory is expanded; "
                "give other sizes as multiples of it"
            )
        if key not in known.values():
            others = ", ".join(x for x in known if x != str(size))
            problem = (
                f"{key!r} differs in type or assumptions from the symbol of the theory, which is "
                f"theory.symbols[{str(key)!r}]"
                if str(key) in known
                else f"the theory has no symbol {key}; give one of {others}"
            )
            raise ValueError(f"together = {{{key!r}: {value}}}: {problem}")


# -- the equations of all orders ----------------------------------------------------------------------------


class Expander(Expressions):
    """Derivation of the theory of all orders in a small parameter, for a theory that is linear in its fields.

    Each field, source and order parameter is replaced by its coefficients in powers of ``variable``.
    ``tables`` are names of given functions of two times, the weights of a rule, that are series in the
    parameter themselves; their coefficients of order one and higher also exist at ``s = t``.
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
                raise NotApplicable(
                    f"the name {name} is that of the part of {stem} of order {', '.join(map(str, orders))}: "
                    f"give the quantity {name} of the theory another name"
                )
        random = [x for x, kind in self.kinds.items() if kind in ("field", "source")]
        self.random = {named(x, n): x for x in random for n in range(order + 1)}
        # By the formula of Euler and Maclaurin a sum over s < t is an integral plus, from order one on, terms
        # at both ends, s = 0 and s = t. The weights of past updates (`tables`), and the responses that
        # contain them (`strict`), therefore exist at s = t at higher orders, although not at order zero.
        strict = [q.name for q in theory.responses() if q.causal == "strict"] if tables else []
        self.instant = {named(x, n) for x in (*tables, *strict) for n in range(1, order + 1)}

    # -- the theory ------------------------------------------------------------------------------------

    def expanded(self) -> Theory:
        """Return the theory whose fields, sources and order parameters are the coefficients of all orders.

        Raises NotApplicable for a term that is not a power series.
        """
        sources = tuple(x for u in self.theory.sources for x in self.source(u))
        perturbed = {_place(x.source) for q in self.theory.responses() for x in q.definition.atoms(Response)}
        live = perturbed | {_place(x) for u in sources for x in (u.symbol, u.partner)}

        def orders(x: Any) -> Iterable[Any]:
            if isinstance(x, Source):
                return [x]
            return self.equation(x, live) if isinstance(x, Equation) else self.parameter(x)

        return replace(self.theory, sources=sources, observables=()).each(orders)

    def equation(self, e: Equation, live: set[SourceAtIndices]) -> Iterator[Equation]:
        """Yield the equation of each coefficient of a field or scalar, from order 0 on.

        ``live`` are the sources (name, indices) that have a covariance or to which something responds; others
        are set to zero. Raises NotApplicable for an equation of a rate of change.
        """
        if not isinstance(e.lhs, AppliedUndef):
            raise NotApplicable(
                f"the equation of {e.lhs} gives a rate of change; the field must be given as a sum over its "
                "past"
            )
        terms = [(x, self.series(x.coefficient * x.kernel * x.field, x)) for x in e.terms]
        for n in range(self.order + 1):
            kept = ((x, y) for x, c in terms for y in Add.make_args(self.alive(c[n], live).expand()))
            yield Equation(at_order(e.lhs, n), tuple(self.term(x, y) for x, y in kept if y != 0), e.ranges)

    def series(self, e: Expr, term: Term | None = None) -> PowerCoefficients:
        """Return the coefficients of small^0, small^1, ... of the expression ``e``, for the small parameter.

        The expression is a covariance, or the product of coefficient, kernel and field of the term ``term``,
        which is not used here.
        """
        return self.coefficients(e)

    def term(self, x: Term, body: Expr) -> Term:
        """Return the term ``x`` of an equation with ``body`` as its summand.

        A sum over earlier times s < t becomes one over s <= t if a factor of ``body`` exists at s = t.
        """
        reach = "past" if x.reach == "strict" and self.instant & _names(body) else x.reach
        fields = [
            a for a in Mul.make_args(body) if isinstance(a, AppliedUndef) and str(a.func) in self.random
        ]
        rest = body / fields[0] if fields else S.One
        parts = {"kernel": rest, "coefficient": S.One} if reach else {"coefficient": rest, "kernel": S.One}
        return replace(x, field=fields[0] if fields else body, reach=reach, **parts)

    def alive(self, e: Expr, live: set[SourceAtIndices]) -> Expr:
        """Return ``e`` with zero in place of all sources that are not in ``live``.

        Those sources have no covariance, and nothing responds to them.
        """
        sources = [
            a for a in e.atoms(AppliedUndef) if self.kinds.get(self.random.get(str(a.func), "")) == "source"
        ]
        return sympify(e.xreplace({a: S.Zero for a in sources if _place(a) not in live}))

    def source(self, u: Source) -> Iterator[Source]:
        """Yield the sources of all orders, whose sum has the covariance of the source ``u``.

        They are ``<u_0 u_0>``, and half of each further order as ``<u_0 u_n>`` and as ``<u_n u_0>``.
        """
        for n, c in enumerate(self.series(u.covariance)):
            for a, b in [] if c == 0 else [(0, 0)] if n == 0 else [(0, n), (n, 0)]:
                ends = {"symbol": at_order(u.symbol, a), "partner": at_order(u.partner, b)}
                yield replace(u, **ends, covariance=(c if n == 0 else c / 2).expand())

    def parameter(self, q: OrderParameter) -> Iterator[OrderParameter]:
        """Yield the coefficients of an order parameter in the theory of all orders.

        For a correlation ``<a b>`` they are ``<a_k b_l>`` with k + l up to the highest order, for a response
        to the source u they are ``<d a_n / d u_0>``. Raises NotApplicable if the definition contains the
        parameter of the expansion, and for an average that is neither.
        """
        average = next(iter(q.definition.atoms(Average)))
        body = average.body
        if q.definition.has(self.variable):
            raise NotApplicable(
                f"the definition of {q.symbol}, {q.definition}, must not contain {self.variable}, the "
                "parameter of the expansion"
            )
        if q.kind == "response":
            for n in range(self.order + 1):
                symbol = at_order(q.symbol, n)
                answer = q.definition.xreplace({average: Average(self.response_definition(body, n))})
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

    def response_definition(self, body: Expr, n: int) -> Expr:
        """Return the coefficient of order n in a response: d (field of order n) / d (source of order 0).

        ``body`` is the averaged response to expand. Raises NotApplicable if it is not the response of exactly
        one field.
        """
        node = next(iter(body.atoms(Response)))
        fields = [a for a in node.body.atoms(AppliedUndef) if self.kind(a) == "field"]
        if len(fields) != 1:
            raise NotApplicable(f"the response {node} is not the response of exactly one field")
        moved = node.body.xreplace({fields[0]: at_order(fields[0], n)})
        return body.xreplace({node: Response(moved, node.source)})

    def pair(self, body: Expr) -> tuple[AppliedUndef, AppliedUndef]:
        """Return the two fields whose product is averaged, the one at time t first.

        Given data may be a further factor. Raises NotApplicable for any other average.
        """
        atoms = [a for a in factors(body) if not self.is_given(a)]
        if len(atoms) != 2 or any(self.kind(a) != "field" for a in atoms):
            raise NotApplicable(
                f"<{body}> is not the average of a product of two fields: the theory must be linear"
            )
        first, second = sorted(atoms, key=lambda a: (a.args[-1] != t, str(a)))
        return first, second

    # -- expressions -----------------------------------------------------------------------------------

    def is_given(self, e: Expr) -> bool:
        """Return whether all functions in an expression are given data, such as an eigenvalue or its root.

        The result is false for an expression without functions, or with the small parameter or an average.
        """
        functions = e.atoms(AppliedUndef)
        return (
            bool(functions) and not any(self.kind(a) for a in functions) and not e.has(self.variable, Average)
        )

    def kind(self, a: AppliedUndef) -> str:
        """Return the kind of a function: "field", "source", "scalar", "correlation", "response" or "table".

        The result is an empty string for data.
        """
        return self.kinds.get(str(a.func), "")

    def coefficients(self, e: Expr) -> PowerCoefficients:
        """Return the coefficients of variable^0, variable^1, ... of an expression of the theory.

        Sums, products and powers are expanded. Raises :class:`NotApplicable` if the expression is not a power
        series.
        """
        try:
            coefficients: PowerCoefficients = self.evaluate(sympify(e), self.known)
        except NotApplicable:
            raise
        except ValueError as error:
            raise NotApplicable(
                f"the expression {e} has no power series in {self.variable}: {error}"
            ) from error
        return coefficients

    def known(self, x: Expr) -> PowerCoefficients | None:
        """Return the series of an expression that the rules of sums, products and powers do not expand.

        Such expressions are the variable, sums over indices and integrals, fields and averages of the theory,
        and other expressions of given data, such as roots. The result is None for all others, which the
        caller expands: a sum of terms, a product, a power, a number, a given function or another symbol.
        Raises NotApplicable for a function of fields or of the variable that is not a power series.
        """
        if x == self.variable:
            return [Integer(n == 1) for n in range(self.order + 1)]
        if isinstance(x, Sum | Integral):
            return [x.func(c, *x.limits) if c != 0 else S.Zero for c in self.coefficients(x.function)]
        if isinstance(x, Average | AppliedUndef):
            return self.quantity(x)
        if isinstance(x, Add | Mul) or (isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0):
            return None
        if self.is_given(x):
            return [x if n == 0 else S.Zero for n in range(self.order + 1)]
        if x.has(AppliedUndef, Average):
            raise NotApplicable(
                f"the factor {x} is not a field or order parameter: the equations of the theory must be "
                "polynomials in these, as for a linear network with the square loss"
            )
        if x.has(self.variable) and not (isinstance(x, Pow) and x.exp.is_Integer):
            raise NotApplicable(
                f"the factor {x} is not expanded in {self.variable}: it must be a rational function of "
                f"{self.variable}"
            )
        return None

    def quantity(self, x: Average | AppliedUndef) -> PowerCoefficients | None:
        """Return the series of an average, or of a function of the theory such as a field or order parameter.

        The result is None for any other function.
        """
        orders = range(self.order + 1)
        if isinstance(x, Average):
            a, b = self.pair(x.body)
            products = ([at_order(a, n - k) * at_order(b, k) for k in range(n + 1)] for n in orders)
            return [Add(*map(Average, each)) for each in products]
        if self.kind(x) == "correlation":
            return [Add(*[at_order(x, n - k, k) for k in range(n + 1)]) for n in orders]
        return [at_order(x, n) for n in orders] if self.kind(x) else None


def _place(a: AppliedUndef) -> SourceAtIndices:
    """Return the pair (name of a source, its indices without the time)."""
    return str(a.func), tuple(a.args[:-1])


def _names(e: Expr) -> set[str]:
    """Return the names of the functions in an expression."""
    return {str(a.func) for a in e.atoms(AppliedUndef)}


WEIGHT = "w"
"""Name of the weights of past updates."""


def boundary_coefficients(order: int) -> tuple[Expr, ...]:
    """Return b_1 ... b_order, the Taylor coefficients of ``z/(e^z - 1)``.

    In the formula of Euler and Maclaurin they multiply derivatives at both ends of a sum over steps.

    >>> boundary_coefficients(4)
    (-1/2, 1/12, 0, -1/720)
    """
    z = Dummy("z")
    # The coefficients in the formula of Euler and Maclaurin are those of z/(e^z - 1), and `steps` is the
    # series of the reciprocal (e^z - 1)/z.
    steps = PowerSeries(tuple(Rational(1, factorial(n + 1)) for n in range(order + 1)), z)
    return (steps**-1).coefficients[1:]


def weights(order: int) -> tuple[Eq, ...]:
    """Return equations that define the coefficients ``w, w__1, w__2, ...`` of the weights of past steps.

    There is one equation for each order from 0 to ``order``. It states the sum over s of a smooth function
    F(s) with weights of this order: the integral of F at order 0, and differences of derivatives of F at both
    ends at higher orders.

    >>> for e in weights(2): print(e.rhs)
    Integral(F(s), (s, 0, t))
    F(0)/2 - F(t)/2
    Derivative(F(t), t)/12 - Subs(Derivative(F(s), s), s, 0)/12
    """
    F = Function("F")
    equations = [Eq(_weighed(0, F), Integral(F(s), (s, 0, t)), evaluate=False)]
    for n, b in enumerate(boundary_coefficients(order), 1):
        slope = Derivative(F(s), s, n - 1) if n > 1 else F(s)
        equations.append(Eq(_weighed(n, F), b * (slope.subs(s, t) - slope.subs(s, 0)), evaluate=False))
    return tuple(equations)


def _weighed(n: int, F: Function) -> Expr:
    """Return the unevaluated ``sum over s from 0 to t of w_n(t, s) F(s)``, w_n the weights of order n."""
    return Sum(Function(named(WEIGHT, n))(t, s) * F(s), (s, 0, t))


def expand_step_size(theory: Theory, order: int) -> TheorySeries:
    """Expand the theory of gradient descent in powers of the learning rate.

    Parameters
    ----------
    theory : Theory
        Linear theory without noise that is drawn at each step.
    order : int
        Highest order.

    Returns
    -------
    TheorySeries
        Expansion in ``eta`` at fixed time t, the rate times the number of steps. Sums over past steps are
        written with weights ``w(t, s)``, as in the rule ``Multistep``; at order zero they stand for the
        integral of the flow (see ``weights``). Its equations are derived when they are first read.

    Raises
    ------
    NotApplicable
        If the theory is that of a flow, or has another learning rate than ``eta``; if updates decay or gain
        momentum within few steps, so that the rate is not only the weight of past updates; if noise is drawn
        at each step; or if the covariance of a source contains ``eta`` or the number of steps. The result
        raises it if the theory is not linear in its fields, order parameters and scalars.
    ValueError
        If the order is negative or not an integer.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> gd = expand_step_size(mean_field(mlp(1)), 1)
    >>> print(gd.equations(1)[1].rhs)
    Sum(gamma0*Delta(alpha, s)*h(1, alpha, s)*w__1(t, s), (alpha, 1, P), (s, 0, t)) + ...
    """
    order = require_integer("order", order, 0)
    if not theory.program.rule.discrete:
        raise NotApplicable(
            f"the rule of {theory.program.name} is a flow, which has no learning rate to expand in: give a "
            "theory of gradient descent, such as one that is derived with rule='gd'"
        )
    if not any(e.rhs.has(eta, Function(WEIGHT)) for e in (*theory.equations, *theory.scalars)):
        raise NotApplicable(
            f"the theory of {theory.program.name} does not depend on {eta}: give its rule the symbol {eta} "
            "as learning rate instead of a number or another symbol"
        )
    for u in theory.sources:
        if any({t, s} <= set(d.args) for d in u.covariance.atoms(KroneckerDelta)):
            raise NotApplicable(
                f"the random source {u.symbol} is drawn anew at each step, so that the flow is not the "
                "limit of small steps"
            )
        if u.covariance.has(eta) or _counts_steps(u.covariance):
            raise NotApplicable(
                f"the covariance of {u.symbol} must not depend on {eta} or on the number of steps; it is "
                f"{u.covariance}"
            )

    def equation(e: Equation) -> Equation:
        return replace(e, terms=tuple(map(_weighted, e.terms)))

    equations, scalars = (tuple(map(equation, x)) for x in (theory.equations, theory.scalars))
    scaled = replace(theory, equations=equations, scalars=scalars, observables=())
    return TheorySeries(theory, scaled, eta, Dummy("eta", positive=True), order, frozenset({WEIGHT}))


def _counts_steps(e: Expr) -> bool:
    """Return whether an expression contains t or s other than as arguments of undefined functions.

    Such a factor counts steps, and has no limit of small steps.
    """
    return bool(e.replace(lambda a: isinstance(a, AppliedUndef), lambda _: S.One).has(t, s))


def _weighted(x: Term) -> Term:
    """Return a term with the weights ``w(t, s)`` in place of the learning rate in its sum over past steps.

    A term without the rate is returned unchanged. Raises NotApplicable if the rate is not a factor of a sum
    over the steps before t.
    """
    body = x.coefficient * x.kernel
    kept = body / eta
    if not body.has(eta) and not x.field.has(eta):
        return x
    if x.reach != "strict" or x.field.has(eta) or kept.has(eta) or _counts_steps(kept):
        raise NotApplicable(
            f"the term {x.expr} must be a sum over past updates with the weight {eta}, as in gradient "
            "descent without decay and momentum"
        )
    return replace(x, coefficient=S.One, kernel=kept * Function(WEIGHT)(t, s))


# -- the modified equation -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class ModifiedEquation(Expansion):
    """Differential equation through the points of a map, as a series in its step.

    Its solution passes through x, the map of x, the map of that value, and so on, one step of time apart.

    Parameters
    ----------
    map : Mapping
        Map, as ``{x: x after one step}``.
    rates : Mapping
        Right-hand sides of ``dx/dt = rates[x]``, as power series.
    variable : Symbol
        Step.
    order : int
        Highest order.
    """

    map: Mapping[Expr, Expr]
    rates: Mapping[Expr, PowerSeries]
    variable: Symbol
    order: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variables of the map, whose rates of change have coefficients."""
        return tuple(self._named)

    def coefficient(self, name: str, n: int) -> Expr:
        """Return one order of the rate of change of a variable of the map.

        Parameters
        ----------
        name : str
            Name of the variable.
        n : int
            Order; 0 is the flow.

        Returns
        -------
        Expr
            Coefficient.

        Raises
        ------
        KeyError
            If there is no variable of that name.
        IndexError
            If ``n`` is negative or beyond the order.
        """
        if name not in self._named:
            raise self.unknown(name)
        return self._named[name].coefficient(n)

    @property
    def _named(self) -> dict[str, PowerSeries]:
        """Power series in the step of each variable's rate of change, by the name of the variable."""
        return {str(x.func if isinstance(x, AppliedUndef) else x): rate for x, rate in self.rates.items()}

    def conditions(self) -> tuple[str, ...]:
        """Return the condition of the expansion: the map is a polynomial in its step.

        Returns
        -------
        tuple[str, ...]
            One sentence, which adds that the series is asymptotic unless the map is linear.
        """
        return ("the map is a polynomial in the step; its series is asymptotic, unless the map is linear",)

    def truncate(self, n: int) -> ModifiedEquation:
        """Return the modified equation up to a lower order.

        Parameters
        ----------
        n : int
            New order.

        Returns
        -------
        ModifiedEquation
            Truncated equation.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order.
        """
        cut = {x: rate.truncate(n) for x, rate in self.rates.items()}
        return replace(self, rates=cut, order=n)

    def drift(self, quantity: Expr) -> PowerSeries:
        """Return the rate of change of a function of the variables, by the chain rule.

        Parameters
        ----------
        quantity : Expr
            Function of the variables of the map. Other symbols in it are constants.

        Returns
        -------
        PowerSeries
            Rate of change as a series in the step; its coefficient of order 0 is zero if the flow conserves
            the quantity.

        Raises
        ------
        ValueError
            If the rate of change contains the step as a symbol, because ``quantity`` does.

        Examples
        --------
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
        """Return the differential equations of all variables, one a line.

        Parameters
        ----------
        format : {"text", "latex"}
            Format.

        Returns
        -------
        str
            The equations.

        Raises
        ------
        ValueError
            If ``format`` is neither ``"text"`` nor ``"latex"``.
        """
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
    """Return the differential equation whose solution passes through the points of the map ``x -> step[x]``.

    It is a series up to ``order`` in ``variable``, the size of a step. Raises ValueError for an order that is
    negative or not an integer, for a map that is not the identity at step zero, and for a map that is not a
    polynomial in the step.

    >>> from sympy import Function, Symbol
    >>> x, f = Symbol("x"), Function("f")
    >>> modified_equation({x: x + eta * f(x)}, 1).coefficient("x", 1)
    -f(x)*Derivative(f(x), x)/2
    >>> modified_equation({x: x - eta * x}, 3).rates[x].coefficients  # log(1 - eta)/eta
    (-x, -x/2, -x/3, -x/4)
    """
    order = require_integer("order", order, 0)
    names = list(step)
    moved = {x: _map_powers(converted(step[x]) - x, variable, order + 1) for x in names}
    for x, c in moved.items():
        if simplify(c[0]) != 0:
            raise ValueError(
                f"the map {x} -> {step[x]} must not move {x} when {variable} = 0; it moves {x} by {c[0]}"
            )
    fields: list[dict[Expr, Expr]] = []
    known: dict[tuple[int, int], dict[Expr, Expr]] = {}

    def repeated(j: int, m: int) -> dict[Expr, Expr]:
        """Return order m in the step of ``(F . d/dx)^j x``, for each variable x of the map.

        The derivative along ``F = F_0 + step F_1 + ...``, the right-hand side of the differential equation,
        is applied j times. Only F_0 to F_m are needed.
        """
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
    """Return the derivative of ``e`` along the vector field ``field``, a map from variable to rate."""
    return Add(*[e.diff(x) * v for x, v in field.items()])


def _map_powers(e: Expr, variable: Symbol, order: int) -> tuple[Expr, ...]:
    """Return the coefficients of variable^0 to variable^order of an expression polynomial in it.

    Raises ValueError if the expression is not a polynomial in the variable.
    """
    e = e.expand()
    if not e.is_polynomial(variable):
        raise ValueError(f"the change {e} of the map is not a polynomial in the step {variable}")
    return tuple(e.coeff(variable, n) for n in range(order + 1))
