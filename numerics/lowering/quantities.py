"""Quantities of a theory at given sizes as data: fields, sources, averages and scalars.

:func:`read_quantities` reads a theory, linear or not, into :class:`QuantityTables`: single-site equations as
functions of fields and of sums over the past, covariances of sources, and order parameters and scalars as
expressions of averages. Sampled paths march these tables.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sympy import (
    Abs,
    Add,
    Derivative,
    DiracDelta,
    Dummy,
    Expr,
    Heaviside,
    Max,
    Min,
    Mul,
    Piecewise,
    Sum,
    Symbol,
    sign,
    sympify,
)
from sympy import Function as Named
from sympy.core.function import AppliedUndef, UndefinedFunction

from derive.calculus.averages import Average, Response, is_random
from derive.calculus.pairs import has_pairs
from derive.calculus.symbols import IndexRange, s, t
from derive.program.shifted_constants import Slot
from derive.theory import Equation, OrderParameter, Term, Theory
from derive.theory.exchange import IndexClass, exchangeable
from numerics.errors import Unserved
from numerics.experiment.integer_indices import Literals
from numerics.lowering.averages import MeanResponse, read_average
from numerics.lowering.entries import (
    EntryArray,
    EntrySum,
    EntryVector,
    GradientTerm,
    beside_memory,
    entrywise_rule,
    gradient_parts,
    step_sum,
)
from numerics.lowering.expressions import CompiledFunction, function, leaves_of
from numerics.lowering.indices import (
    TIMES,
    connected_groups,
    indices_of,
    limits,
    moving_nodes,
    node_at_zero,
    node_of,
    open_args,
    require_open_numbers,
)
from numerics.lowering.plain_indices import WrittenOut, ring_of, with_plain_indices
from numerics.lowering.sizes import Extents, SizedTheory
from numerics.lowering.table import Reach
from numerics.names import MemberKey


@dataclass(frozen=True)
class PastSum:
    """Term ``Sum(kernel * quantity, over, times)``: a known kernel times a quantity, at past times or now.

    Attributes
    ----------
    kernel
        The deterministic factor.
    quantity
        The quantity, by name.
    symbols
        Indices of the quantity, as the kernel writes them.
    over
        Summed indices, without the time.
    reach
        Range of the times s: before t ("past"), up to t ("through"), or t only ("now").
    """

    kernel: Expr
    quantity: MemberKey
    symbols: tuple[Symbol, ...]
    over: tuple[Symbol, ...]
    reach: Reach

    @property
    def through(self) -> bool:
        """Whether the sum includes the present time."""
        return self.reach != "past"

    @property
    def steady(self) -> bool:
        """Whether the sum over past times can be kept as a running sum: its kernel does not depend on t.

        The value is false if only the present time is read.
        """
        return self.reach != "now" and t not in self.kernel.free_symbols


@dataclass(frozen=True)
class Quantity:
    """Random quantity at time t, which differs between paths: a field or a function of fields.

    Attributes
    ----------
    node
        Its name, and the integers among its indices.
    indices, sizes
        Its indices that are symbols, without the time, and the number of values of each.
    expr
        Its expression.
    memories
        For each sum of random quantities in the expression its terms, a kernel times a quantity each.
    entries
        For each sum in the expression that stands for a weight with an entrywise rule, this weight and the
        vector that it is applied to.
    """

    node: MemberKey
    indices: tuple[Symbol, ...]
    sizes: tuple[int, ...]
    expr: Expr
    memories: Mapping[Expr, list[PastSum]]
    entries: Mapping[Expr, EntrySum] = field(default_factory=dict)

    @cached_property
    def function(self) -> CompiledFunction:
        """The expression as a compiled function of its leaves: fields, sums and symbols."""
        return function(self.expr)


@dataclass(frozen=True)
class PathCorrelation:
    """Average ``<X(t) Y(s)>`` over paths, or ``<X(t)>`` if ``second`` is None.

    ``first`` and ``second`` are the names of X and Y, ``first_symbols`` and ``second_symbols`` their
    indices. With ``one_time`` it is ``<X(t) Y(t)>``.
    """

    first: MemberKey
    first_symbols: tuple[Symbol, ...]
    second: MemberKey | None = None
    second_symbols: tuple[Symbol, ...] = ()
    one_time: bool = False

    @property
    def two_times(self) -> bool:
        """Whether the average is ``<X(t) Y(s)>``, of X and Y at two different times t and s."""
        return self.second is not None and not self.one_time

    @property
    def factors(self) -> tuple[MemberKey, ...]:
        """The names of X and Y, or of X alone."""
        return (self.first,) if self.second is None else (self.first, self.second)


@dataclass(frozen=True)
class PathResponse:
    """Average response ``<d X(t) / d source(s)>`` over paths.

    ``quantity`` and ``symbols`` are the name and the indices of X, ``source`` and ``source_symbols`` those
    of the source.
    """

    quantity: MemberKey
    symbols: tuple[Symbol, ...]
    source: MemberKey
    source_symbols: tuple[Symbol, ...]


@dataclass(frozen=True)
class PathEntry:
    """Order parameter or scalar as an expression of averages.

    Attributes
    ----------
    node, args
        Its name with integer indices, and its other indices and times.
    expr
        Its expression.
    averages
        The averages in the expression, each with the quantities that it averages.
    causal
        Times of a response: ``"strict"`` for s < t, ``"past"`` for s <= t; empty otherwise.
    sums
        Sums over indices in the expression that contain averages, each as an entry with these indices.
    """

    node: MemberKey
    args: tuple[Symbol, ...]
    expr: Expr
    averages: Mapping[Expr, PathCorrelation | PathResponse]
    causal: str = ""
    sums: Mapping[Expr, PathEntry] = field(default_factory=dict)

    @cached_property
    def indices(self) -> tuple[Symbol, ...]:
        """Indices of the order parameter or scalar, without times and integers."""
        return tuple(x for x in self.args if x not in TIMES)

    @cached_property
    def two_times(self) -> bool:
        """Whether the order parameter depends on two times, t and s."""
        return s in self.args

    @cached_property
    def is_response(self) -> bool:
        """Whether one of the averages in the order parameter is a response."""
        return any(isinstance(x, PathResponse) for x in self.averages.values())


@dataclass(frozen=True)
class Covariance:
    """Covariance ``<a(t) b(s)>`` of two sources a and b.

    ``expr`` is its expression, ``first`` are the indices of a and ``second`` those of b.
    """

    expr: Expr
    first: tuple[Symbol, ...]
    second: tuple[Symbol, ...]


@dataclass(frozen=True)
class SampledPopulation:
    """Quantities of one unit that depend on each other and are therefore sampled jointly.

    Attributes
    ----------
    groups
        Positions of their groups of correlated sources in :attr:`QuantityTables.groups`.
    members
        Names of the sources, quantities and attributes.
    """

    groups: tuple[int, ...]
    members: tuple[MemberKey, ...]


@dataclass(frozen=True, eq=False)
class QuantityTables:
    """Tables of a theory at given sizes; symbols that are not sizes, such as the learning rate, stay symbols.

    Keys are nodes: the name of a quantity with the integers among its indices.

    Attributes
    ----------
    sized : SizedTheory
        The theory as it was given, before some of its indices were replaced by integers.
    written_out : tuple of WrittenOut
        Scalars, order parameters and observables of which some indices were replaced by integers.
    literals : dict
        Axes of data and other functions, by (name, axis), with the integers at which they are read and the
        index value of the first entry.
    moving : frozenset
        Fields and scalars that depend on time.
    attributes : dict
        Names of attributes of units, which are constant in time, by their nodes.
    field_names : frozenset
        Nodes of fields.
    observables : tuple of Equation
        Quantities that no equation reads.
    extents : Extents
        First value and number of values of each index.
    random : set of str
        Names of quantities that differ between paths.
    sources : dict
        Indices and sizes of each source.
    covariances : dict
        Covariances of pairs of sources.
    quantities : dict
        Fields, and functions of fields that equations and averages read.
    entries : dict
        Order parameters.
    weights : list of EntryArray
        Weights with an entrywise training rule, such as Adam.
    scalars : dict
        Scalars, such as the error of each sample.
    classes : tuple of IndexClass
        Indices whose values may be exchangeable.
    exchanged : dict
        For each order parameter and scalar: by index, the position in ``classes`` of the class of the index.
        Indices without a class are left out.
    """

    sized: SizedTheory
    written_out: tuple[WrittenOut, ...]
    literals: Mapping[Slot, Literals]
    moving: frozenset[MemberKey]
    attributes: Mapping[MemberKey, str]
    field_names: frozenset[MemberKey]
    observables: tuple[Equation, ...]
    extents: Extents
    random: set[str]
    sources: dict[MemberKey, tuple[tuple[Symbol, ...], tuple[int, ...]]] = field(default_factory=dict)
    covariances: dict[tuple[MemberKey, MemberKey], Covariance] = field(default_factory=dict)
    quantities: dict[MemberKey, Quantity] = field(default_factory=dict)
    entries: dict[MemberKey, PathEntry] = field(default_factory=dict)
    weights: list[EntryArray] = field(default_factory=list)
    scalars: dict[MemberKey, PathEntry] = field(default_factory=dict)
    classes: tuple[IndexClass, ...] = ()
    exchanged: dict[MemberKey, dict[Symbol, int]] = field(default_factory=dict)

    @property
    def sizes(self) -> Mapping[Symbol, int]:
        """Number of values of each index of the theory, by its symbol."""
        return self.extents.sizes

    def size(self, symbols: Iterable[Symbol]) -> tuple[int, ...]:
        """Return the number of values of each of the indices ``symbols``, which is a shape of an array."""
        return self.extents.shape(symbols)

    def node(self, x: AppliedUndef) -> MemberKey:
        """Return the key of a field or scalar: its name, and the integers among its arguments.

        Symbols are left out: ``h(2, mu, t)`` has the key ``("h", (2,))``. A time that is zero is left out,
        too: ``f(mu, 0)`` has the key ``("f", ())``.
        """
        return node_at_zero(x) or node_of(x) if self.is_at_zero(x) else node_of(x)

    def is_at_zero(self, x: AppliedUndef) -> bool:
        """Return whether x is a field or scalar at time zero, such as ``f(mu, 0)``."""
        return node_at_zero(x) in self.moving

    def is_random(self, e: Expr) -> bool:
        """Return whether an expression differs between paths."""
        return is_random(e, frozenset(self.random))

    def feeds(self, q: Quantity) -> list[MemberKey]:
        """Return the names of the random quantities that the equation of ``q`` contains, at any time.

        A weight with an entrywise rule contributes the quantities of its gradient on the units of ``q``;
        the vector that it is applied to, on other units, is left out.
        """
        nodes = [self.node(x) for x in q.function.leaves if isinstance(x, AppliedUndef) and self.is_random(x)]
        nodes += [n for x in q.entries.values() for n in self.own_nodes(x)]
        nodes += [x.own.node for x in q.entries.values() if x.own is not None]
        return nodes + [m.quantity for ms in q.memories.values() for m in ms]

    def own_nodes(self, x: EntrySum) -> tuple[MemberKey, ...]:
        """Return the names of random quantities of one unit in the gradient of the weight in ``x``.

        ``x`` is a term in which a weight with an entrywise rule is applied to a vector, in the equation of a
        unit. The unit is the row of the weight, or its column if ``x`` applies the transpose; quantities of
        the units on the other side are left out.
        """
        return self.weights[x.array].nodes[int(x.transposed)]

    @cached_property
    def groups(self) -> list[tuple[MemberKey, ...]]:
        """Groups of sources that correlate, directly or through other sources of the group."""
        return connected_groups(self.sources, self.covariances)

    @cached_property
    def components(self) -> list[tuple[MemberKey, ...]]:
        """Groups of sources, quantities and attributes that are linked by covariances or by equations.

        Only the members of one group have to be averaged jointly. Raises Unserved for a field that is read at
        an integer index while its equation holds for all indices, and in the reverse case.
        """
        links = [*self.groups, *((q.node, *self.feeds(q)) for q in self.quantities.values())]
        there = {*self.sources, *self.quantities, *self.attributes}
        for name, literals in sorted({n for link in links for n in link} - there):
            where = f"at the integer indices {literals}" if literals else "without integer indices"
            raise Unserved(
                f"{name} is used {where}, but no equation has {name} {where} on its left-hand side: write "
                f"an equation of {name} {where}"
            )
        return connected_groups([*self.sources, *self.quantities, *self.attributes], links)

    @cached_property
    def populations(self) -> list[SampledPopulation]:
        """Populations of units to sample: the :attr:`components` that contain sources, each sampled jointly.

        A population has one or several groups of correlated sources, and the quantities and attributes that
        depend on them.
        """
        number = {n: i for i, group in enumerate(self.groups) for n in group}
        candidates = [(x, tuple(dict.fromkeys(number[n] for n in x if n in number))) for x in self.components]
        return [SampledPopulation(groups, members) for members, groups in candidates if groups]

    @cached_property
    def attributes_of(self) -> dict[MemberKey, tuple[str, ...]]:
        """Names of the attributes of the units on which each source or quantity is defined, by its name.

        Attributes are given constants of each unit. The names are empty for units without attributes.
        """
        names = self.attributes
        return {n: tuple(names[a] for a in x if a in names) for x in self.components for n in x}


def read_quantities(sized: SizedTheory) -> QuantityTables:
    """Read the tables of a theory.

    Raises Unserved for forms that the tables do not represent, such as a field with one equation for each of
    several cases, or a sum over a part of the past.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> tables = read_quantities(SizedTheory.of(mean_field(mlp(2, "tanh")), {"P": 3}))
    >>> (sums,) = tables.quantities["h", (1,)].memories.values()
    >>> [(x.kernel, x.quantity, x.reach) for x in sums]
    [(eta*gamma0*Delta(alpha, s)*K_x(mu, alpha), ('g', (1,)), 'past')]
    """
    reader = _QuantityReader(sized)
    reader.read()
    return reader.tables


class _QuantityReader:
    """Reader that fills the tables of a theory.

    Smooth functions of fields, and the random factors in averages and in sums over the past, become
    quantities of their own.
    """

    def __init__(self, sized: SizedTheory) -> None:
        plain = with_plain_indices(sized)
        self.theory = theory = with_named_averages(with_attributes_as_fields(plain.theory))
        self.extents, self.bounds = Extents(sized.integer, sized.values), plain.bounds
        self.pieces: dict[Expr, MemberKey] = {}
        self.known: set[MemberKey] = set()
        """Fields, sources and attributes, which are quantities already."""
        self.products = {
            node_of(e.lhs): e
            for e in theory.equations
            if isinstance(e.rhs, Mul)
            and not e.rhs.has(Sum, Derivative)
            and all(isinstance(x, Symbol) for x in e.lhs.args)
        }
        """Equations of fields that are products of other fields at the same time."""
        self.tables = QuantityTables(
            sized,
            plain.written_out,
            plain.literals,
            moving_nodes(theory),
            {(name, ()): name for name in sorted(sized.attributes)},
            frozenset(node_of(e.lhs) for e in theory.equations if not e.lhs.is_Derivative),
            theory.observables,
            self.extents,
            {*sized.random, *sized.attributes},
            classes=exchangeable(theory),
        )

    def read(self) -> None:
        """Fill the tables with sources, fields, order parameters, scalars and ranges of observables."""
        theory, tables = self.theory, self.tables
        for u in theory.sources:
            self._source(u.symbol, u.partner, sympify(u.covariance), u.ranges)
        self.known = {*tables.field_names, *tables.sources, *tables.attributes}
        for e in theory.equations:
            self._field(e.lhs, e.rhs, e.ranges)
        for q in theory.order_parameters:
            self._entry(q.symbol, q.definition, q.ranges, q)
        for x in theory.scalars:
            tables.scalars[node_of(x.lhs)] = self._read(x.lhs, x.rhs, x.ranges)
            self._exchange(x.symbol)
        for x in theory.observables:
            self.extents.add(r.limits for r in x.ranges)
        require_open_numbers(theory)
        _ = tables.components

    # -- sources and fields ----------------------------------------------------------------------------

    def _source(self, symbol: AppliedUndef, partner: AppliedUndef, covariance: Expr, ranges: Any) -> None:
        """Store two sources, with their indices, and their covariance in the tables.

        ``symbol`` and ``partner`` are the sources, ``ranges`` the ranges of their indices. Raises Unserved
        for a source without exactly one time among its arguments.
        """
        self.extents.add(r.limits for r in ranges)
        for x in (symbol, partner):
            if len(open_args(x)) - len(indices_of(x)) != 1:
                raise Unserved(f"the source {x} does not have exactly one time among its arguments")
            self.tables.sources.setdefault(node_of(x), (indices_of(x), self.extents.shape(indices_of(x))))
        self.tables.covariances[node_of(symbol), node_of(partner)] = Covariance(
            covariance, indices_of(symbol), indices_of(partner)
        )

    def _field(self, lhs: Expr, rhs: Expr, ranges: Any) -> None:
        """Store the equation ``lhs = rhs`` of a field, whose indices have these ranges, in the tables.

        Raises Unserved for a flow, for a field with several equations, and if the last argument of the field
        is not its only time t.
        """
        if lhs.is_Derivative:
            raise Unserved(
                f"{lhs} is the rate of change of a field, and sampled paths take fields that are given by "
                "their values: write an equation for the value of the field, or train finite networks with "
                "simulate"
            )
        if open_args(lhs) != (*indices_of(lhs), t):
            raise Unserved(
                f"the left-hand side {lhs} of an equation must have the time t as its last argument, and no "
                "other time"
            )
        self.extents.add(r.limits for r in ranges)
        node = node_of(lhs)
        if node in self.tables.quantities:
            raise Unserved(f"{lhs} has several equations: write one equation")
        self.tables.quantities[node] = self._quantity(node, indices_of(lhs), rhs)

    def _quantity(self, node: MemberKey, indices: tuple[Symbol, ...], expr: Expr) -> Quantity:
        """Return the expression ``expr`` as a random quantity with the name ``node`` and these indices.

        Sums over the past that are added to each other are stored together, so that their kernels are added
        before the past is read. A smooth function of fields, such as tanh(h), becomes a quantity of its own,
        which other quantities can use. Raises Unserved for a random factor outside of sums at another time
        than t or 0, or with an index that is not one of ``indices``.
        """
        is_random = self.tables.is_random
        expr = expr.replace(lambda x: isinstance(x, Sum), self._gates_outside)
        outside = expr.xreplace({x: Dummy() for x in expr.atoms(Sum)})
        for x in sorted(outside.atoms(Named), key=str):
            if x != expr and expr.has(x) and is_random(x) and _is_smooth(x):
                piece, symbols = self._piece(x, t)
                self.tables.random.add(piece[0])
                expr = expr.xreplace({x: UndefinedFunction(piece[0])(*symbols, t)})
        entries = {
            x: self._entry_sum(x, indices)
            for x in sorted(expr.atoms(Sum), key=str)
            if has_pairs(x) and _outer(x, expr)
        }
        added = [x for x in Add.make_args(expr) if isinstance(x, Sum) and is_random(x) and x not in entries]
        expr = Add(expr, *(-x for x in added[1:]))
        memories: dict[Expr, list[PastSum]] = {}
        for x in function(expr).leaves:
            if x in entries:
                continue
            if isinstance(x, Sum) and is_random(x):
                sums = added if x in added else [x]
                memories[x] = _joined(self._memory(y, term, indices) for y in sums for term in _terms(y))
            elif isinstance(x, AppliedUndef) and is_random(x):
                if x.args[-1] != t and not self.tables.is_at_zero(x):
                    raise Unserved(
                        f"{x} is used in an equation at time t, but it is at another time than t or 0"
                    )
                if set(indices_of(x)) - set(indices):
                    raise Unserved(
                        f"{x} has an index that {node[0]} does not have: sum over this index, or give it to "
                        f"{node[0]}"
                    )
        return Quantity(node, indices, self.extents.shape(indices), expr, memories, entries)

    def _gates_outside(self, x: Sum) -> Expr:
        """Return a sum over the past with random factors at the present time t moved in front of it.

        The gates of recurrent networks are such factors. Another expression is returned unchanged.
        """
        bound = {limit[0] for limit in x.limits}
        if s not in bound:
            return x
        parts: dict[Expr, Expr] = {}
        for term in _terms(x):
            factors = Mul.make_args(term)
            gate = Mul(
                *[y for y in factors if y.has(t) and self.tables.is_random(y) and not y.free_symbols & bound]
            )
            parts[gate] = parts.get(gate, sympify(0)) + term / gate
        if {*parts} == {sympify(1)}:
            return x
        return Add(*[gate * Sum(rest, *x.limits) for gate, rest in parts.items()])

    # -- weights whose rule acts on each entry ---------------------------------------------------------

    def _entry_sum(self, leaf: Sum, equation_indices: tuple[Symbol, ...]) -> EntrySum:
        """Return a sum over past steps of a weight with an entrywise rule as this weight applied to a vector.

        A vector of weights stands alone. ``leaf`` is the sum, ``equation_indices`` are the indices of the
        equation in which it stands. Raises Unserved for a gradient that is zero, and for an index that is
        neither summed nor one of the equation.
        """
        steps = step_sum(leaf)
        rule = entrywise_rule(self.theory.program, steps.step.weight)
        self.extents.add(steps.limits)
        factors = Mul.make_args(steps.kernel)
        beside = Mul(*[x for x in factors if self.tables.is_random(x)])
        inside, factor = beside_memory(Mul(*[x for x in factors if not self.tables.is_random(x)]), rule)
        terms = tuple(self._gradient_term(*x) for x in gradient_parts(steps.step.gradient))
        if not terms:
            raise Unserved(
                f"the sum {leaf} over updates of {steps.step.weight} has a gradient that is zero: list this "
                "weight among the frozen weights of the network"
            )
        summed = {x for g in terms for x in g.over}
        free = {*steps.step.gradient.free_symbols, *inside.free_symbols} & {*self.extents.sizes}
        indices = tuple(sorted(free - summed, key=str))
        array = EntryArray(steps.step.weight, rule, terms, indices, inside)
        number, transposed = self._number_of(array)
        vector = None if steps.vector is None else self._entry_vector(steps.vector, t)
        moving = None if beside == 1 else self._entry_vector(beside, t)
        over = tuple(x[0] for x in steps.limits)
        carried = {*indices, *(x for v in (vector, moving) if v is not None for x in v.symbols)}
        if carried - {*equation_indices, *over}:
            raise Unserved(f"{leaf} has an index that its equation does not have")
        return EntrySum(number, transposed, factor, vector, moving, over)

    def _number_of(self, array: EntryArray) -> tuple[int, bool]:
        """Return the position of a weight in the list of weights, and whether it is stored as its transpose.

        A new weight is added to the list.
        """
        keys = [x.key for x in self.tables.weights]
        if array.key in keys:
            return keys.index(array.key), False
        units = not array.single and not array.given
        if units and array.mirrored.key in keys:
            return keys.index(array.mirrored.key), True
        self.tables.weights.append(array)
        return len(keys), False

    def _gradient_term(self, own_factor: Expr, partner_factor: Expr, limits: tuple[Any, ...]) -> GradientTerm:
        """Return a term of the gradient of an entry ``W_ij`` of a weight, see :class:`GradientTerm`.

        ``own_factor`` is the factor that depends on row i, with all numerical coefficients,
        ``partner_factor`` the one that depends on column j (1 for a vector of weights), and ``limits`` are
        those of its sums.
        """
        self.extents.add(limits)
        factors = Mul.make_args(own_factor)
        moving = Mul(*[x for x in factors if self.tables.is_random(x)])
        kernel = Mul(*[x for x in factors if not self.tables.is_random(x)])
        partner = None if partner_factor == 1 else self._entry_vector(partner_factor, s)
        return GradientTerm(kernel, self._entry_vector(moving, s), partner, tuple(x[0] for x in limits))

    def _entry_vector(self, e: Expr, time: Symbol) -> EntryVector:
        """Return the vector over units that the expression e is at ``time``.

        It is a factor of the gradient of a weight with an entrywise rule, or a vector to which this weight is
        applied. Given data are kept by name; other expressions become random quantities. Raises Unserved for
        given data at shifted indices.
        """
        if isinstance(e, AppliedUndef) and self.theory.program.given_of(str(e.func)) is not None:
            if not all(isinstance(x, Symbol) or x.is_Integer for x in e.args):
                raise Unserved(
                    f"the given data {e} are used at shifted indices; only plain indices such as mu, and "
                    "integers, are supported"
                )
            axis = next((k for k, x in enumerate(e.args) if x == time), None)
            fixed = tuple((k, int(x)) for k, x in enumerate(e.args) if x.is_Integer)
            symbols = tuple(x for x in e.args if x != time and not x.is_Integer)
            given = self.theory.program.given_of(str(e.func))
            kernel = "" if given is None else given.kernel
            return EntryVector((str(e.func), ()), symbols, True, axis, fixed, kernel)
        return EntryVector(*self._piece(e, time))

    def _memory(self, leaf: Sum, body: Expr, equation_indices: tuple[Symbol, ...]) -> PastSum:
        """Return the term ``body`` of the sum ``leaf`` over the past as a kernel times a random quantity.

        ``equation_indices`` are the indices of the equation in which the sum stands. Raises Unserved if the
        product of the random factors has an index that is neither summed nor one of the equation, or depends
        on another time than s (than t in a sum without times).
        """
        over = tuple(x[0] for x in leaf.limits if x[0] not in TIMES)
        self.extents.add(x for x in leaf.limits if x[0] not in TIMES)
        reach = _reach(leaf)
        time = t if reach == "now" else s
        factors = Mul.make_args(body)
        moving = [x for x in factors if self.tables.is_random(x)]
        around = self._unshifted(Mul(*moving), over)
        factors = tuple(x.subs(around) for x in factors)
        factor = Mul(*[x.subs(around) for x in moving])
        if factor.free_symbols & (set(TIMES) - {time}):
            raise Unserved(f"in {leaf} the factor {factor} may depend on the time {time} only")
        numbers = [x for x in factors if not self.tables.is_random(x)]
        if reach != "now":
            numbers, factor, over = self._folded(numbers, factor, over, leaf.limits)
        node, symbols = self._piece(factor, time)
        if set(symbols) - set(over) - set(equation_indices):
            raise Unserved(
                f"in {leaf} the factor {factor} has an index that is neither summed nor one of the equation"
            )
        return PastSum(Mul(*numbers), node, symbols, over, reach)

    def _folded(
        self, numbers: list[Expr], factor: Expr, over: tuple[Symbol, ...], limits: Sequence[Any]
    ) -> tuple[list[Expr], Expr, tuple[Symbol, ...]]:
        """Return a term of a sum over the past in which sums over some indices are taken at each step.

        ``numbers`` are the factors that are equal on all paths, ``factor`` is the product of the random
        factors, ``over`` are the summed indices, and ``limits`` the limits of the sum. In
        ``Sum(K(mu, a)*D(a, c, s)*g(a, c, s), a, c, s)`` the sum over ``c`` becomes a random quantity
        ``Sum(D(a, c, s)*g(a, c, s), c)`` with the index ``a``, of which fewer entries are stored and
        multiplied by K. If g is defined as a product, its factors without the index ``c`` are taken out of
        the sum. The term is unchanged if no sum, or every sum, could be taken so.
        """
        free = {*over, *(x for x in factor.free_symbols if x not in self.extents.sizes), s}
        inner = {x for x in over if x in factor.free_symbols}
        for x in numbers:
            if x.free_symbols & {*self.extents.sizes, t} - free:
                inner -= x.free_symbols
        if not inner or inner == {*over}:
            return numbers, factor, over
        weights = [x for x in numbers if x.free_symbols & inner]
        parts = Mul.make_args(self._product(factor))
        moved = Mul(*[x for x in parts if x.free_symbols & inner])
        outside = Mul(*[x for x in parts if not x.free_symbols & inner])
        sums = tuple(x for x in limits if x[0] in inner)
        rest = [x for x in numbers if not x.free_symbols & inner]
        folded = outside * Sum(Mul(*weights) * moved, *sums)
        return rest, folded, tuple(x for x in over if x not in inner)

    def _product(self, e: Expr) -> Expr:
        """Return the product of fields at the same time by which the field ``e`` is defined.

        An expression ``e`` that is not such a field is returned unchanged.
        """
        equation = self.products.get(node_of(e)) if isinstance(e, AppliedUndef) else None
        if equation is None:
            return e
        return equation.rhs.xreplace(dict(zip(equation.lhs.args, e.args, strict=True)))

    def _unshifted(self, factor: Expr, over: tuple[Symbol, ...]) -> list[tuple[Symbol, Expr]]:
        """Return substitutions that remove the shift of a periodic index in ``factor``, as in ``p + k``.

        They are allowed because a sum over a whole period may start anywhere. ``over`` are the summed
        indices.
        """
        substitutions: dict[Symbol, Expr] = {}
        first, sizes = self.extents.first, self.extents.sizes
        summed = {x: (first[x], first[x] + sizes[x] - 1) for x in over}
        for x in sorted(factor.atoms(AppliedUndef), key=str):
            for k, a in enumerate(x.args):
                whole = self.bounds.get((str(x.func), k))
                ring = ring_of(a, summed, whole) if whole else None
                if ring is not None and ring != a and not self.tables.sized.is_ordered(a):
                    substitutions.setdefault(ring, 2 * ring - a)
        return list(substitutions.items())

    def _piece(self, e: Expr, time: Symbol) -> tuple[MemberKey, tuple[Symbol, ...]]:
        """Return the name of the random quantity that equals ``e`` at ``time``, and its indices.

        If the tables do not have the quantity, it is added with a new name. Raises Unserved for an index
        whose range is not known.
        """
        if isinstance(e, AppliedUndef) and node_of(e) in self.known:
            return node_of(e), indices_of(e)
        free = e.free_symbols  # indices that sums inside of e run over are not among them
        applied = (i for x in sorted(e.atoms(AppliedUndef), key=str) for i in indices_of(x))
        # An index may also occur outside of arguments, as a number: p does in 1/(p + p*exp(h(mu, r, t))).
        numbers = (x for x in sorted(free, key=str) if x in self.extents.sizes)
        symbols = tuple(i for i in dict.fromkeys((*applied, *numbers)) if i in free)
        for x in symbols:
            if x not in self.extents.sizes:
                raise Unserved(f"the range of the index {x} in {e} is not known")
        slots = tuple(self._slot(n, x) for n, x in enumerate(symbols))
        bare = e.xreplace(dict(zip(symbols, slots, strict=True)) | {time: t})
        if bare not in self.pieces:
            node = (f"piece{len(self.pieces)}", ())
            self.pieces[bare] = node
            self.tables.quantities[node] = self._quantity(node, slots, bare)
        return self.pieces[bare], symbols

    def _slot(self, n: int, x: Symbol) -> Symbol:
        """Return the symbol for index ``n`` of a new quantity, with the range of the index ``x``.

        ``n`` is its position among the indices of the quantity. Indices of equal position and range get equal
        symbols, so that equal quantities are recognised.
        """
        first, size = self.extents.first[x], self.extents.sizes[x]
        slot = Symbol(f"_{n}[{first}:{size}]", integer=True)
        self.extents.first[slot], self.extents.sizes[slot] = first, size
        return slot

    # -- averages --------------------------------------------------------------------------------------

    def _entry(self, symbol: AppliedUndef, body: Expr, ranges: Any, item: OrderParameter) -> None:
        """Store the order parameter ``symbol``, defined by ``body``, as an expression of averages.

        ``ranges`` are those of its indices. ``item`` is the order parameter of the theory, which says
        whether it is causal. Raises Unserved if the times of the symbol are not t and s in this order, or t.
        """
        if tuple(x for x in open_args(symbol) if x in TIMES) not in ((t, s), (t,)):
            raise Unserved(f"the times among the arguments of {symbol} must be t and s in this order, or t")
        self.tables.entries[node_of(symbol)] = self._read(symbol, body, ranges, item.causal)
        self._exchange(symbol)

    def _exchange(self, symbol: AppliedUndef) -> None:
        """Store which indices of an order parameter or scalar have values that can be exchanged.

        Such an index gets the number of its class in the list ``classes`` of the tables.
        """
        name, places = str(symbol.func), {x: k for k, x in enumerate(symbol.args)}
        self.tables.exchanged[node_of(symbol)] = {
            x: number
            for number, index_class in enumerate(self.tables.classes)
            for x in indices_of(symbol)
            if name not in index_class.fixed and (name, places[x]) in index_class.places
        }

    def _read(self, symbol: AppliedUndef, body: Expr, ranges: Any, causal: str = "") -> PathEntry:
        """Return the order parameter or scalar ``symbol``, defined by ``body``, as an expression of averages.

        ``ranges`` are those of its indices. ``causal`` says for which times it is not zero, as in
        :class:`PathEntry`. Each sum over averages in ``body`` is read as an order parameter with further
        indices.
        """
        self.extents.add(r.limits for r in ranges)
        args = open_args(symbol)
        sums: dict[Expr, PathEntry] = {}
        for x in leaves_of(body):
            if isinstance(x, Sum) and x.has(Average):
                over = tuple(lim[0] for lim in x.limits)
                self.extents.add(x.limits)
                wider = symbol.func(*over, *symbol.args)
                sums[x] = self._read(wider, x.function, ())
        averages = {a: self._average(a) for a in leaves_of(body) if isinstance(a, Average)}
        return PathEntry(node_of(symbol), args, body, averages, causal, sums)

    def _average(self, a: Average) -> PathCorrelation | PathResponse:
        """Return an average as a mean of one random quantity, a correlation of two, or a response.

        A response is that of one random quantity to a source.
        """
        mean = read_average(a.body)
        if isinstance(mean, MeanResponse):
            node, symbols = self._piece(mean.body, t)
            return PathResponse(node, symbols, node_of(mean.source), indices_of(mean.source))
        if mean.early != 1:
            return PathCorrelation(*self._piece(mean.late, t), *self._piece(mean.early, s))
        if (factors := self._factors(mean.late)) is None:
            return PathCorrelation(*self._piece(mean.late, t))
        first, second = factors
        return PathCorrelation(*self._piece(first, t), *self._piece(second, t), one_time=True)

    def _factors(self, e: Expr) -> tuple[Expr, Expr] | None:
        """Return two factors of a product of random quantities that have no index in common; else None.

        The average of such a product is a product of two matrices, with the paths as their inner index, so
        that the product itself is not a quantity. One of the factors may have no index.
        """
        groups = _without_common_indices(Mul.make_args(e), self.extents.sizes)
        if len(groups) < 2 or any(e.has(x) for x in (Sum, Derivative)):
            return None
        return groups[0], Mul(*groups[1:])


def with_named_averages(theory: Theory) -> Theory:
    """Return the theory with a scalar for each average at one time inside of an expression.

    In ``a/sqrt(<a(t)**2>)`` the average becomes ``average0(t)``, with the scalar ``average0(t) = <a(t)**2>``.
    The averages that define order parameters and scalars, and averages of responses, stay as they are.
    """
    ends = {index: (lower, upper) for index, lower, upper in reversed(list(limits(theory)))}
    scalars: dict[Expr, Equation] = {}

    def named(a: Expr) -> Expr:
        times = a.free_symbols & set(TIMES)
        if a.args[0].has(Response) or len(times) != 1:
            return a
        (time,) = times
        now = a.xreplace({time: t})
        if now not in scalars:
            indices = sorted((x for x in a.free_symbols if x in ends), key=str)
            lhs = UndefinedFunction(f"average{len(scalars)}")(*indices, t)
            ranges = tuple(IndexRange(x, *ends[x]) for x in indices)
            scalars[now] = Equation(lhs, (Term.local(now, "definition"),), ranges)
        return scalars[now].lhs.xreplace({t: time})

    def inside(e: Expr) -> Expr:
        return sympify(e).replace(lambda x: isinstance(x, Average), named)

    def within(e: Expr) -> Expr:
        return sympify(e).xreplace(
            {a: Average(inside(a.body)) for a in leaves_of(sympify(e)) if isinstance(a, Average)}
        )

    rewritten = replace(
        theory,
        equations=tuple(e.map(inside) for e in theory.equations),
        sources=tuple(u.map(inside) for u in theory.sources),
        observables=tuple(e.map(inside) for e in theory.observables),
        order_parameters=tuple(q.map(within) for q in theory.order_parameters),
        scalars=tuple(e.map(within) for e in theory.scalars),
    )
    return replace(rewritten, scalars=(*scalars.values(), *rewritten.scalars)) if scalars else theory


def with_attributes_as_fields(theory: Theory) -> Theory:
    """Return the theory with each attribute of units, such as ``gain(k)``, written as a field ``gain(t)``.

    An attribute is a constant of each unit k. As a field it is a random quantity without an index that is
    constant in time, at the time of the factors that it multiplies: ``<tanh(h(t)*gain(k))*r(s)>`` becomes
    ``<tanh(h(t)*gain(t))*r(s)>``.
    """
    names = {x.name for x in theory.program.attributes}
    return theory.map(lambda e: _attributes_at(sympify(e), names, t)) if names else theory


def _attributes_at(e: Expr, names: set[str], time: Symbol) -> Expr:
    """Return an expression in which each attribute of units, such as ``gain(k)``, is a field ``gain(time)``.

    ``names`` are the names of attributes. Inside of a sum over s the time is s. In an average of a product
    the time is that of the factor that contains the attribute, see :func:`with_attributes_as_fields`.
    """
    if isinstance(e, AppliedUndef) and str(e.func) in names:
        return e.func(time)
    if isinstance(e, Average):
        factors = Mul.make_args(e.body)
        late = s if e.body.has(s) and not e.body.has(t) else t
        return Average(
            Mul(*[_attributes_at(x, names, late if x.has(t) or not x.has(s) else s) for x in factors])
        )
    if isinstance(e, Sum):
        inner_time = s if any(limit[0] == s for limit in e.limits) else time
        return Sum(_attributes_at(e.function, names, inner_time), *e.limits)
    if not any(str(x.func) in names for x in e.atoms(AppliedUndef)):
        return e
    return e.func(*[_attributes_at(x, names, time) for x in e.args])


def _without_common_indices(factors: Iterable[Expr], indices: Container[Symbol]) -> list[Expr]:
    """Return products of factors, in which no two products have an index in common.

    Factors without indices are in one product, which is the first one.
    """
    groups: dict[frozenset[Symbol], list[Expr]] = {}
    for x in factors:
        own = frozenset(y for y in x.free_symbols if y in indices)
        together = [k for k in groups if k == own or k & own]
        joined = [y for k in together for y in groups.pop(k)]
        groups[own.union(*together)] = [*joined, x]
    return [Mul(*groups[k]) for k in sorted(groups, key=lambda k: (len(k), sorted(map(str, k))))]


def _outer(x: Expr, e: Expr) -> bool:
    """Return whether the sum ``x`` in ``e`` is not inside of another sum."""
    return not any(y != x and y.has(x) for y in e.atoms(Sum))


def _is_smooth(x: Expr) -> bool:
    """Return whether an expression is a smooth function of fields at t, and not a field itself."""
    fields = x.atoms(AppliedUndef)
    plain = all(a.is_Integer or isinstance(a, Symbol) for y in fields for a in y.args)
    rough = x.has(Piecewise, Heaviside, Abs, sign, Max, Min, DiracDelta)
    return plain and not rough and not isinstance(x, AppliedUndef) and all(t in y.args for y in fields)


def _reach(leaf: Sum) -> Reach:
    """Return the times at which a sum reads a quantity: "past" (s < t), "through" (s <= t) or "now".

    "now" stands for a sum without times. Raises Unserved for a sum over other times, such as a part of the
    past.
    """
    times = [x for x in leaf.limits if x[0] in TIMES]
    if not times:
        return "now"
    if len(times) > 1 or times[0][0] != s or times[0][1] != 0:
        raise Unserved(f"{leaf}: a sum over past times must run over the one time s, from 0")
    if times[0][2] not in (t, t - 1):
        raise Unserved(f"{leaf}: a sum over past times must end at t or t - 1")
    return "through" if times[0][2] == t else "past"


def _joined(memories: Iterable[PastSum]) -> list[PastSum]:
    """Return sums over the past, in which kernels of the same quantity, indices and times are added.

    Only kernels that depend on t are added. A kernel that does not depend on t stays a sum of its own; equal
    ones become one sum.
    """
    joined: dict[Any, PastSum] = {}
    for m in memories:
        key = replace(m, kernel=sympify(1) if t in m.kernel.free_symbols else m.kernel)
        joined[key] = replace(m, kernel=joined[key].kernel + m.kernel) if key in joined else m
    return list(joined.values())


def _terms(x: Sum) -> tuple[Expr, ...]:
    """Return the terms of the summand of a sum.

    A summand that is a sum is expanded; a product, such as ``(a + b) c``, stays one term.
    """
    body = x.function.expand() if isinstance(x.function, Add) else x.function
    return tuple(Add.make_args(body))
