"""Powers of the depth of all quantities of a network whose blocks have inner fields, by power counting.

A block reads the residual stream, computes inner fields (keys, hidden units, their gradients) and averages of
them, and adds a branch to the stream. Every field, average and response X of the theory gets an order e with
``X = O(L^e)``: products add orders, sums take the largest. The source of a block that enters the stream
linearly is written as white noise in layer time, ``u = L^-1/2 (white noise)``. The order of a response is the
largest order of a product of derivatives, of a term by a field or source in it, on a way from the source to
the field, within the block or along the stream. :mod:`.process` writes the equations in layer time with these
orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from sympy import (
    Add,
    Derivative,
    Dummy,
    Expr,
    Function,
    Integral,
    KroneckerDelta,
    Mul,
    Piecewise,
    Pow,
    Rational,
    S,
    Sum,
    Tuple,
    preorder_traversal,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import factors, placed, rewritten
from derive.calculus.symbols import L, ell
from derive.depth.infinite import Scaling
from derive.errors import NotApplicable
from derive.theory import Equation, OrderParameter, Source, Theory

ABSENT = S.NegativeInfinity
"""The order of zero."""
WHITE = Rational(-1, 2)
"""Power of L of a source with covariance of order one: ``L^-1/2`` times white noise in layer time."""
Marks = frozenset[tuple[str, int]]
"""Terms of equations, as pairs of the name of a field and the number of a term in its equation."""


@dataclass(frozen=True)
class DepthOrder:
    """Power of L of a quantity, and the terms of equations that it comes from.

    ``power`` is minus infinity for a quantity that is zero. ``marks`` are pairs of the name of a field and
    the number of a term in its equation. The sum of two orders is the order of a product.
    """

    power: Expr
    marks: Marks = frozenset()

    def __add__(self, other: DepthOrder) -> DepthOrder:
        return DepthOrder(self.power + other.power, self.marks | other.marks)


NONE, ONE = DepthOrder(ABSENT), DepthOrder(S.Zero)


def largest(orders: Iterable[DepthOrder]) -> DepthOrder:
    """Return the largest of some orders in L, with the marks of all orders that attain it.

    Without any orders, the result is that of a quantity that is zero: the power minus infinity.
    """
    known = list(orders)
    power = max((x.power for x in known), default=ABSENT)
    if power == ABSENT:
        return NONE
    return DepthOrder(power, frozenset().union(*[x.marks for x in known if x.power == power]))


# -- the residual stream ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResidualStream:
    """Field of the residual stream, with what one block adds to it.

    Parameters
    ----------
    equation : Equation
        The equation of the field that stands for the stream.
    near : AppliedUndef
        The same field at the neighbouring layer, before the block adds its terms. The neighbour is the next
        layer for a field that runs towards lower layers.
    added : tuple of Expr
        The terms that a block adds.
    members : tuple of str
        Names of this field and of the fields inside the block that differ from it only by terms in ``added``.
    """

    equation: Equation
    near: AppliedUndef
    added: tuple[Expr, ...]
    members: tuple[str, ...]


def streams_of(theory: Theory) -> list[ResidualStream]:
    """Return the residual streams of a theory: fields that are equal to their neighbour plus branches.

    The neighbour is the same field at the next or previous layer. It must enter with coefficient one,
    directly or through other fields of the block that enter with coefficient one.

    >>> from derive import mean_field
    >>> from derive.program.networks import attention
    >>> [x.members for x in streams_of(mean_field(attention()))]
    [('h', 'a'), ('g', 'g_a')]
    """
    families = {e.name: e for e in theory.equations if e.layers is not None}
    ends = {e.name for e in theory.equations if e.layers is None}
    streams: list[ResidualStream] = []
    for e in sorted(families.values(), key=lambda e: e.name not in ends):
        if not any(e.name in x.members for x in streams):
            stream = _stream(e, families)
            streams += [stream] if stream is not None else []
    order = list(families)
    return sorted(streams, key=lambda x: order.index(x.equation.name))


def _stream(e: Equation, families: Mapping[str, Equation]) -> ResidualStream | None:
    """Return the residual stream that contains the field of an equation.

    The result is None if no chain of terms with coefficient one leads from the field to itself at a
    neighbouring layer. ``families`` maps names to the equations of all fields with a layer index.
    """

    def bare(x: Expr, lhs: Expr) -> bool:
        """Return whether a term is a field with a layer index, with no factor in front.

        Its samples and time must be those of ``lhs``; the layer may differ.
        """
        return isinstance(x, AppliedUndef) and str(x.func) in families and x.args[1:] == lhs.args[1:]

    ways: list[tuple[Expr, tuple[Expr, ...], tuple[str, ...]]] = [(e.lhs, (), ())]
    while ways:
        at, added, members = ways.pop()
        equation = families[str(at.func)]
        terms = [placed(x.expr, equation.lhs, at) for x in equation.terms]
        for i, x in enumerate(terms):
            if not bare(x, at):
                continue
            now, others = (*members, equation.name), (*added, *terms[:i], *terms[i + 1 :])
            if x.func == e.lhs.func:
                if e.lhs.args[0] - x.args[0] in (1, -1):
                    assert isinstance(x, AppliedUndef)
                    return ResidualStream(e, x, others, now)
            elif str(x.func) not in now:
                ways.append((x, others, now))
    return None


def states_depth(theory: Theory) -> bool:
    """Return whether equations or covariances of a theory contain its depth L, such as a factor ``1/L``.

    Equations are those of fields and scalars, and covariances those of sources. The definitions of order
    parameters are not searched.
    Arguments of undefined functions, ranges of sums and Kronecker deltas that contain L do not count.

    >>> from derive import mean_field, mlp
    >>> from sympy import Symbol
    >>> [states_depth(mean_field(mlp(branch=x))) for x in (Symbol("beta"), 1 / L)]
    [False, True]
    """

    def numbers(e: Expr) -> Expr:
        """Return the numbers and symbols of an expression as nested tuples, to be searched for L.

        Undefined functions and Kronecker deltas are replaced by 1, a sum or integral by its body, without
        limits.
        """
        if isinstance(e, AppliedUndef | KroneckerDelta):
            return S.One
        if isinstance(e, Sum | Integral):
            return numbers(e.function)
        args = [numbers(x) if isinstance(x, Expr) else x for x in e.args]
        return Tuple(*args) if args else e

    equations = [x.expr for e in theory.equations for x in e.terms] + [e.rhs for e in theory.scalars]
    return any(numbers(S(e)).has(L) for e in (*equations, *(u.covariance for u in theory.sources)))


# -- orders ----------------------------------------------------------------------------------------------


class BlockSizes:
    """Orders in L of the quantities of a theory of symbolic depth, by repeated substitution.

    ``orders`` maps names of fields, sources, averages and scalars to orders, and ``reach`` the name of a
    source to the orders of the responses of fields to it. Raises :class:`NotApplicable` if there is no
    residual stream, if orders grow without end, if a quantity that grows with L is in a known
    function such as tanh, or if sources of a block enter the stream through a nonlinear function.
    """

    def __init__(self, theory: Theory, scaling: Scaling) -> None:
        """Find the streams, the sources that are white noise, and all orders.

        ``scaling`` is the dependence of symbols on L.
        """
        self.theory, self.scaling = theory, scaling
        self.streams = streams_of(theory)
        if not self.streams:
            raise NotApplicable(
                "the theory has no residual stream: no field of a layer equals the same field of a "
                "neighbouring layer plus a branch"
            )
        self.members = {m: x.equation.name for x in self.streams for m in x.members}
        families = [e for e in theory.equations if e.layers is not None]
        self.inner = {e.name: e for e in families if e.name not in self.members}
        self.ends = {e.name for e in theory.equations} - {*self.inner, *self.members}
        self.layered: dict[str, Source] = {
            str(u.symbol.func): u for u in theory.sources if u.symbol.args[0].has(ell)
        }
        self.single = {str(u.symbol.func) for u in theory.sources} - {*self.layered}
        self.added = {x.equation.name: self.unfolded(Add(*x.added)) for x in self.streams}
        self.white = {n for e in self.added.values() for n in self.sources_in(e)}
        self.parameters: dict[str, OrderParameter] = {str(q.symbol.func): q for q in theory.order_parameters}
        self.numbers = {e.name: e for e in theory.scalars}
        self.expanded: dict[Expr, tuple[Expr, ...]] = {}
        self.derivatives: dict[Expr, list[tuple[AppliedUndef, Expr]]] = {}
        self.scaled = {n: tuple(scaling(x.expr) for x in e.terms) for n, e in self.inner.items()}
        self.orders: dict[str, DepthOrder] = dict.fromkeys((*self.members, *self.ends), ONE)
        unknown = (*self.inner, *self.layered, *self.parameters, *self.numbers)
        self.orders |= dict.fromkeys((x for x in unknown if x not in self.orders), NONE)
        self.reach: dict[str, dict[str, DepthOrder]] = {u: {} for u in self.layered}
        self._settle()

    # -- sources that enter the stream -------------------------------------------------------------------

    @cached_property
    def carriers(self) -> set[str]:
        """Names of inner fields that contain sources of their block, directly or through other inner fields.

        Sources inside of averages do not count.
        """
        names: set[str] = set()
        known = {*self.layered}
        while more := {
            n for n, e in self.inner.items() if n not in names and known & set(_names(_masked(e.rhs)[0]))
        }:
            names |= more
            known |= more
        return names

    def unfolded(self, e: Expr) -> Expr:
        """Return an increment of a stream in terms of sources and of fields without sources.

        The equations of inner fields that contain sources are substituted. Raises :class:`NotApplicable` if
        such a field is in a nonlinear function, or in its own equation directly or through others.
        """

        def put(x: AppliedUndef) -> Expr:
            equation = self.inner[str(x.func)]
            return placed(equation.rhs, equation.lhs, x)

        e, averages = _masked(e)
        met: set[str] = set()
        while names := {n for n in _names(e) if n in self.carriers}:
            inside = {n for f in e.atoms(Function, Derivative) if _is_given(f) for n in _names(f)}
            if met & names or inside & names:
                raise NotApplicable(
                    "the average over the sources of one block is not known: a nonlinear function of these "
                    "sources is added to the stream without a matrix in between, or a field that contains "
                    "these sources is in its own equation"
                )
            met |= names
            e = _masked(rewritten(e, names, put), averages)[0]
        return e.xreplace(averages)

    def sources_in(self, e: Expr) -> set[str]:
        """Return the names of the sources of a block in an expression, outside of averages."""
        return {n for n in _names(_masked(e)[0]) if n in self.layered}

    def degree(self, e: Expr) -> int:
        """Return the degree of a term in the sources of its block; 2 for a nonlinear function of them.

        Sources inside of averages do not count.
        """
        if isinstance(e, AppliedUndef) and str(e.func) in self.layered:
            return 1
        if isinstance(e, Average) or not self.sources_in(e):
            return 0
        if isinstance(e, Sum | Integral):
            return self.degree(e.function)
        if isinstance(e, Add):
            return max(map(self.degree, e.args))
        return sum(map(self.degree, e.args)) if isinstance(e, Mul) else 2

    # -- one expression ----------------------------------------------------------------------------------

    def order(self, e: Expr) -> DepthOrder:
        """Return the order in L of an expression, from the current orders of the functions in it.

        Functions without an order, and fields and sources of a block at an end of the network, are of order
        0. Raises NotApplicable if an argument of a known function, such as tanh, grows with L.
        """
        if e in (S.Zero, L):
            return NONE if e == 0 else DepthOrder(S.One)
        if isinstance(e, AppliedUndef):
            return ONE if self.at_end(e) else DepthOrder(self.orders.get(str(e.func), ONE).power)
        return self.average(e.body) if isinstance(e, Average) else self._composed(e)

    def _composed(self, e: Expr) -> DepthOrder:
        """Return the order of a sum, product, power or function; a sum over layers ell adds one power.

        All other expressions, and functions of quantities that do not grow with L, are of order 0. Raises
        NotApplicable if an argument of a function grows with L.
        """
        if isinstance(e, Add | Piecewise):
            return largest(map(self.order, _summands(e)))
        if isinstance(e, Mul):
            return sum((self.order(x) for x in e.args), ONE)
        if isinstance(e, Pow):
            return self._power(e)
        if isinstance(e, Sum | Integral):
            return self.order(e.function) + DepthOrder(S(sum(1 for x in e.limits if x[0] == ell)))
        if isinstance(e, Function):
            self._require_bounded(e)
        return ONE

    def at_end(self, e: AppliedUndef, layer: Expr = ell) -> bool:
        """Return whether an expression is an inner field or source of a block at an end of the network.

        Its layer is then a number or L, and does not contain ``layer``.
        """
        return str(e.func) in {*self.inner, *self.layered} and not e.args[0].has(layer)

    def _power(self, e: Pow) -> DepthOrder:
        """Return the order of a power: the exponent times the order of the base, which is an upper bound.

        For a negative exponent the base is assumed to attain this bound. The order is 0 if the exponent is
        not a rational number, or if the base is zero under an exponent that is not a positive integer.
        """
        if not e.exp.is_Rational:
            return ONE
        base = self.order(e.base)
        if base.power == ABSENT and not (e.exp.is_Integer and e.exp > 0):
            return ONE
        return DepthOrder(e.exp * base.power, base.marks)

    def _require_bounded(self, e: Expr) -> None:
        """Raise NotApplicable if an argument of a function grows with the depth."""
        for x in e.args:
            if isinstance(x, Expr) and self.order(x).power > 0:
                raise NotApplicable(
                    f"the argument {x} of {e} may grow with the depth, like L**({self.order(x).power}); "
                    "arguments of functions must stay finite"
                )

    def slopes(self, e: Expr) -> dict[str, DepthOrder]:
        """Return the orders of the derivatives of an expression by its fields and sources, by their names.

        Fields and sources inside of averages do not count.
        """
        if isinstance(e, AppliedUndef):
            name = str(e.func)
            if any(name in x for x in (self.inner, self.members, self.ends, self.layered)):
                return {name: ONE}
        if isinstance(e, Mul):
            return _merged(map(partial(self._factor_slopes, e.args), range(len(e.args))))
        if isinstance(e, Pow) and e.exp.is_Rational:
            others = self._power(Pow(e.base, e.exp - 1, evaluate=False)) if e.exp != 1 else ONE
            return {n: o + others for n, o in self.slopes(e.base).items()}
        if isinstance(e, Sum | Integral | Derivative):
            return self.slopes(e.args[0])
        is_sum = isinstance(e, Add | Function)
        return _merged([self.slopes(x) for x in _summands(e) if isinstance(x, Expr)]) if is_sum else {}

    def _factor_slopes(self, factors: tuple[Expr, ...], i: int) -> dict[str, DepthOrder]:
        """Return the orders of the derivatives of factor i of a product, times the other factors.

        Keys are the names of the fields and sources by which factor i is differentiated.
        """
        others = sum((self.order(y) for y in (*factors[:i], *factors[i + 1 :])), ONE)
        return {n: o + others for n, o in self.slopes(factors[i]).items()}

    def answer(self, e: Expr, source: str) -> DepthOrder:
        """Return an upper bound of the order in L of the response of an expression to a source.

        For a source that exists at a single layer, such as the first, the bound is always order 0 (size one).
        """
        if source in self.single:
            return ONE
        reach = self.reach[source]
        return largest(o + reach.get(n, NONE) for n, o in self.slopes(e).items())

    def response(self, body: Expr, source: str) -> DepthOrder:
        """Return the order of the averaged response ``<d body / d source>``.

        The equations of inner fields in ``body`` are substituted once. See :meth:`_way` for the order of one
        path from the source to the body.
        """
        orders = []
        for x, slope in self.derivatives_of(body):
            name = str(x.func)
            if name not in self.inner or self.at_end(x):
                orders.append(self._way(slope, x, source))
                continue
            for i, term in enumerate(self.scaled[name]):
                key = DepthOrder(S.Zero, frozenset({(name, i)}))
                orders += [
                    key + self._way(slope * inner, y, source) for y, inner in self.derivatives_of(term)
                ]
        return largest(orders)

    def derivatives_of(self, e: Expr) -> list[tuple[AppliedUndef, Expr]]:
        """Return pairs of a field in an expression, outside of averages, and the derivative by this field."""
        if e not in self.derivatives:
            self.derivatives[e] = list(_derivatives(e))
        return self.derivatives[e]

    def _way(self, slope: Expr, x: AppliedUndef, source: str) -> DepthOrder:
        """Return the order of ``<slope d x / d source>``, the part of a response through the field x.

        A term of x that is a constant times the source contributes the average of slope times constant, whose
        order may be below that of the slope. For other terms the order is the bound: that of the slope plus
        that of the response of the term.
        """
        name = str(x.func)
        if name == source:
            return self.average(slope)
        reach = self.reach.get(source, {}).get(name, ONE if source in self.single else NONE)
        if name not in self.inner or self.at_end(x):
            return self.order(slope) + reach if reach.power != ABSENT else NONE
        ways, reached = [], self.reach.get(source, {})
        for i, term in enumerate(self.scaled[name]):
            key = DepthOrder(S.Zero, frozenset({(name, i)}))
            if self._bare(term) == source:
                ways.append(self.average(slope * term / _atom(term, source)) + key)
            else:
                rest = largest(o + reached.get(n, NONE) for n, o in self.slopes(term).items())
                ways.append(self.order(slope) + rest + key if rest.power != ABSENT else NONE)
        return largest(ways)

    def _bare(self, term: Expr) -> str:
        """Return the name of the source of which a term is a constant multiple, or an empty string."""
        return next((n for n in self.sources_in(term) if not (term / _atom(term, n)).has(AppliedUndef)), "")

    # -- averages ----------------------------------------------------------------------------------------

    def average(self, body: Expr) -> DepthOrder:
        """Return the order of the average of an expression, the largest over its terms.

        Inner fields are replaced by their terms. A product with a term that is a multiple of a source of the
        block, of mean zero, has the order that Stein's lemma gives, unless this source is white noise.
        """
        if body not in self.expanded:
            self.expanded[body] = Add.make_args(body.expand())
        return largest(map(self._product, self.expanded[body]))

    def _product(self, body: Expr) -> DepthOrder:
        """Return the order of the average of a product, with each inner field in it replaced by its terms."""
        if isinstance(body, Sum | Integral):
            return self.average(body.function)
        parts: list[list[tuple[Expr, DepthOrder, str]]] = []
        for x in factors(body):
            if isinstance(x, Response):
                parts.append([(x, self.response(x.body, str(x.source.func)), "")])
            elif isinstance(x, AppliedUndef) and str(x.func) in self.inner and not self.at_end(x):
                parts.append(self._parts(str(x.func)))
            elif isinstance(x, Sum | Integral):
                parts.append([(x, self.order(x.function), "")])
            else:
                parts.append([(x, self.order(x), "")])
        chosen: list[tuple[tuple[Expr, DepthOrder, str], ...]] = [()]
        for part in parts:
            chosen = [(*x, y) for x in chosen for y in part]
        return largest(map(self._moment, chosen))

    def _parts(self, name: str) -> list[tuple[Expr, DepthOrder, str]]:
        """Return triples (term, order, source) of the terms in the equation of an inner field.

        ``source`` is the name of the source of which the term is a constant multiple, if this source does not
        enter the stream as white noise; else it is an empty string. If a term is smaller than the field, its
        order has the mark (``name``, number of the term).
        """
        parts = []
        whole = self.orders[name]
        for i, x in enumerate(self.scaled[name]):
            order = self.order(x)
            internal = "" if (bare := self._bare(x)) in self.white else bare
            marks = frozenset({(name, i)}) if order.power < whole.power else frozenset()
            parts.append((x, DepthOrder(order.power, marks), internal))
        return parts

    def _moment(self, parts: tuple[tuple[Expr, DepthOrder, str], ...]) -> DepthOrder:
        """Return the order of the average of a product of factors, triples (factor, order, source).

        If a factor is a multiple of a source, Stein's lemma replaces it by the response of each other factor
        to this source; otherwise the orders are added.
        """
        for i, (_, order, source) in enumerate(parts):
            if not source:
                continue
            others = parts[:i] + parts[i + 1 :]
            paired = NONE
            for k, (x, partner, _) in enumerate(others):
                rest = sum((o for _, o, _ in others[:k] + others[k + 1 :]), ONE)
                met = self.answer(x, source)
                paired = largest([paired, met + DepthOrder(S.Zero, partner.marks) + rest])
            return paired + order + DepthOrder(self.orders[source].power) if paired.power != ABSENT else NONE
        return sum((o for _, o, _ in parts), ONE)

    # -- all orders --------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Substitute orders into all equations until nothing changes.

        Raises NotApplicable if orders grow without end.
        """
        for _ in range(4 * len(self.orders)):
            before = (dict(self.orders), {u: dict(x) for u, x in self.reach.items()})
            for name, value in self._equations():
                self.orders[name] = value
            self._spread()
            if (self.orders, self.reach) == before:
                return
        grown = sorted(n for n, x in self.orders.items() if x.power != before[0][n].power)
        raise NotApplicable(
            f"the sizes of {', '.join(grown)} in powers of L are not found: these quantities depend on "
            "themselves or on each other, and their powers of L grow without end when the equations are "
            "iterated"
        )

    def _equations(self) -> Iterator[tuple[str, DepthOrder]]:
        """Yield (name, order in L) of each source of a block, inner field, average and scalar.

        The order follows from the equation, in which the orders of quantities are the current ones. The order
        of a source is half that of its covariance, minus 1/2 if it enters the stream as white noise.
        """
        for name, u in self.layered.items():
            cov = self.order(self.scaling(S(u.covariance)))
            white = WHITE if name in self.white else S.Zero
            yield name, DepthOrder(cov.power / 2 + white)
        for name, terms in self.scaled.items():
            yield name, DepthOrder(largest(map(self.order, terms)).power)
        for name, q in self.parameters.items():
            yield name, self.order(self.scaling(q.definition))
        for name, e in self.numbers.items():
            yield name, self.order(self.scaling(e.rhs))

    def _spread(self) -> None:
        """Find the orders in L of the responses of fields to each source of a block.

        They are stored in ``reach``, a dictionary from the name of the source to orders by name of the field.
        """
        edges = {(n, i): self.slopes(x) for n, terms in self.scaled.items() for i, x in enumerate(terms)}
        enters = [self.slopes(self.scaling(x)) for s in self.streams for x in s.added]
        for u in self.layered:
            inside = self._walk({u: ONE}, edges)
            entered = largest(o + inside[n] for part in enters for n, o in part.items() if n in inside)
            along = dict.fromkeys((*self.members, *self.ends), entered)
            self.reach[u] = self._walk({u: ONE, **along}, edges)

    def _walk(
        self, start: Mapping[str, DepthOrder], edges: Mapping[tuple[str, int], Mapping[str, DepthOrder]]
    ) -> dict[str, DepthOrder]:
        """Return the orders of the responses of inner fields to a source, together with those in ``start``.

        ``start`` has the orders of the source and of responses that are known. ``edges`` maps a term, given
        by field and number, to the orders of its derivatives. The order of a response is the largest order of
        a product of derivatives on a way from the start to the field. Raises NotApplicable if orders grow
        without end.
        """
        orders = dict(start)
        for _ in range(len(self.inner) + 2):
            before = dict(orders)
            for name in self.inner:
                ways = [
                    o + orders[n] + DepthOrder(S.Zero, frozenset({key}))
                    for key, slopes in edges.items()
                    if key[0] == name
                    for n, o in slopes.items()
                    if n in orders
                ]
                orders[name] = largest(ways)
            if orders == before:
                return orders
        raise NotApplicable(
            "the sizes of the responses within a block in powers of L are not found: fields of the block "
            "depend on themselves or on each other, and these powers grow without end when the equations "
            "are iterated"
        )


def _summands(e: Expr) -> tuple[Expr, ...]:
    """Return the arguments of a sum or function, or the branches of a Piecewise."""
    return tuple(x for x, _ in e.args) if isinstance(e, Piecewise) else e.args


def _names(e: Expr) -> Iterator[str]:
    """Yield the names of the functions in an expression."""
    return (str(x.func) for x in e.atoms(AppliedUndef))


def _atom(e: Expr, name: str) -> Expr:
    """Return a function of this name that occurs in an expression."""
    return next(x for x in e.atoms(AppliedUndef) if str(x.func) == name)


def _derivatives(e: Expr) -> Iterator[tuple[AppliedUndef, Expr]]:
    """Yield pairs of a field in an expression, outside of averages, and the derivative by this field."""
    bare, averages = _masked(e)
    for x in sorted(bare.atoms(AppliedUndef), key=str):
        mark = Dummy()
        slope = bare.xreplace({x: mark}).diff(mark).xreplace({mark: x}).xreplace(averages)
        if slope != 0:
            yield x, slope


def _is_given(e: Expr) -> bool:
    """Return whether a function is a known one, such as tanh, or an undefined function of fields.

    The result is False for a field at plain indices.
    """
    return not isinstance(e, AppliedUndef) or any(x.has(AppliedUndef) for x in e.args)


def _masked(e: Expr, known: dict[Expr, Expr] | None = None) -> tuple[Expr, dict[Expr, Expr]]:
    """Return (e with a dummy symbol for each average, dictionary from dummy symbols to averages).

    The dictionary ``known`` is extended if it is given.
    """
    known = {} if known is None else known
    averages = [x for x in preorder_traversal(e) if getattr(x, "is_averaged", False)]
    for x in sorted(averages, key=str):
        mark = Dummy()
        known[mark] = x
        e = e.xreplace({x: mark})
    return e, known


def _merged(parts: Iterable[Mapping[str, DepthOrder]]) -> dict[str, DepthOrder]:
    """Return one dictionary from several, with the largest order of each name."""
    orders: dict[str, list[DepthOrder]] = {}
    for part in parts:
        for n, o in part.items():
            orders.setdefault(n, []).append(o)
    return {n: largest(x) for n, x in orders.items()}
