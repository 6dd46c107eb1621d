"""Compilation of SymPy expressions to numerical formulas with numbers for their indices.

An expression is compiled once (SymPy's ``lambdify`` on placeholders, so that no name in it is executed) and
then bound for each assignment of its indices.  The first and last index values of constants follow from the
ranges of the indices in the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from sympy import (
    Add,
    DiracDelta,
    Dummy,
    Eq,
    Expr,
    Integer,
    KroneckerDelta,
    Piecewise,
    S,
    Sum,
    Symbol,
    lambdify,
    sympify,
)
from sympy import Function as SympyFunction
from sympy.core.function import AppliedUndef, Derivative, Subs

from derive.calculus.symbols import IndexRanges, IndexValues, primed
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    IndexRange,
    Mean,
    Outer,
    Product,
    Program,
    t,
)
from derive.program.nonlinear import NonlinearRule
from derive.program.parts import gaussian, parameter
from derive.program.shifted_constants import shifted_reads

from .rows import (
    Applied,
    Averaged,
    Bound,
    Called,
    CurrentParameter,
    FieldOrNumber,
    Fixed,
    FormulaReaders,
    Leaf,
    NetworkState,
    PopulationAtLayer,
    RowLayout,
    Timed,
    Total,
    common_place,
    itself,
)
from .symbol_values import Missing, PopulationSizes, Tables, Values, periodic

Slots = tuple[Expr, ...]
Functions = tuple[tuple[str, Callable[..., Expr]], ...]


@dataclass
class Binder:
    """Converts the expressions of one program to numerical formulas, given numbers, indices and arrays.

    Attributes
    ----------
    program
        The program.
    values, tables, attributes, sizes
        Numbers and functions for symbols, the user's constants, attributes (a fixed number for each unit),
        and sizes of populations.
    domains
        For each field and number the index values at which it is defined.
    vectors
        Vectors of weights by name.
    compiled, bound, free, known, spans, homes, families
        Cached results of the methods.
    """

    program: Program
    values: Values
    tables: Tables
    attributes: dict[str, Any] = field(default_factory=dict)
    domains: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)
    sizes: PopulationSizes = field(init=False)
    compiled: dict[Expr, tuple[Slots, Callable[..., Any]]] = field(default_factory=dict)
    bound: dict[tuple[Expr, tuple[tuple[str, int], ...]], Bound] = field(default_factory=dict)
    free: dict[Expr, tuple[Symbol, ...]] = field(default_factory=dict)
    known: dict[Bound, float] = field(default_factory=dict)
    spans: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    homes: dict[tuple[str, int | None], tuple[PopulationAtLayer, int]] = field(default_factory=dict)

    families: dict[str, dict[tuple[int, ...], IndexValues]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = PopulationSizes(0, self.number, self.values)
        self.vectors: dict[str, GaussianVector] = {
            parameter(v).name: parameter(v) for v in self.program.vectors
        }

    @property
    def functions(self) -> Functions:
        """SymPy functions that the activations of the program stand for, by name, sorted."""
        return tuple(sorted(self.values.functions.items(), key=lambda x: x[0]))

    # -- whole formulas --------------------------------------------------------------------------------------

    def number(self, e: Any, env: IndexValues) -> float:
        """Return the value of an expression of constants and indices, such as a ratio or a variance.

        ``env`` maps indices to their values. Raise ValueError if the expression depends on a field or on the
        time.
        """
        bound = self.bind(sympify(e), env)
        if bound not in self.known:
            if not all(isinstance(x, Fixed | Total) for x in bound.all_leaves()):
                raise ValueError(f"{e} must be a number that does not depend on fields or on the time")
            self.known[bound] = float(FormulaReaders(RowLayout({})).read([bound])(NetworkState({})).squeeze())
        return self.known[bound]

    def bind(self, e: Expr, env: IndexValues) -> Bound:
        """Return the expression ``e`` as a numerical formula at the index values ``env``.

        Raises :class:`Missing` for a field, weight or constant that has no value there, ``ValueError`` for
        anything unknown.
        """
        if e not in self.free:
            self.free[e] = tuple(sorted(e.free_symbols, key=str))
        key = (e, tuple((x.name, env[x]) for x in self.free[e] if x in env))
        if key not in self.bound:
            body = self.decided(e, env) if e.has(Piecewise) else e
            if body not in self.compiled:
                known = frozenset().union(self.domains, self.vectors, self.attributes, self.tables.data)
                self.compiled[body] = compiled(body, known, self.functions)
            slots, function = self.compiled[body]
            self.bound[key] = Bound(function, tuple(self.leaf(x, env) for x in slots), e)
        return self.bound[key]

    def decided(self, e: Expr, env: IndexValues) -> Expr:
        """Return ``e`` with each Piecewise replaced by the case that the indices ``env`` select.

        A Piecewise whose conditions depend on more than indices and integer numbers stays. The fields in
        other cases need not be defined at these indices.
        """
        known = {x: Integer(i) for x, i in env.items()}
        for x in e.free_symbols - env.keys():
            number = self.values.numbers.get(x.name)
            if number is not None and float(number).is_integer():
                known[x] = Integer(int(number))
        cases = [x for x in e.atoms(Piecewise) if all(c.free_symbols <= known.keys() for _, c in x.args)]
        chosen = {x: next(v for v, c in x.args if c.xreplace(known) == True) for x in cases}  # noqa: E712
        return e.xreplace(chosen)

    # -- leaves ----------------------------------------------------------------------------------------------

    def leaf(self, e: Expr, env: IndexValues) -> Leaf:  # noqa: PLR0911 - one for each kind of leaf
        """Return the leaf for the subexpression ``e`` at the index values ``env``.

        A leaf describes a value that a formula reads from the state of the networks, such as a field or a
        product.
        """
        if isinstance(e, Product):
            return self.product(e, env)
        if isinstance(e, Mean):
            return Averaged(parts=(self.bind(e.args[0], env),))
        if isinstance(e, Sum):
            return self.total(e, env)
        if isinstance(e, Symbol):
            return self.symbol(e, env)
        if not isinstance(e, AppliedUndef):
            return self.evaluated(e, env)
        name = e.func.__name__
        if name in self.domains:
            return self.entry(e, env)
        if name in self.vectors:
            return self.weight(name, tuple(self.values.integer(x, env) for x in e.args))
        if name in self.attributes:
            owner = self.program.attribute_of(name)
            assert owner is not None
            return Fixed(self.attributes[name], place=self.sizes.place(owner.population, env))
        return self.constant(name, e.args, env)

    def evaluated(self, e: Expr, env: IndexValues) -> Leaf:
        """Return the leaf of a function of indices that SymPy evaluates, such as a list of widths.

        A leaf is a value that a formula reads, such as a field or a constant. Raise ValueError if SymPy does
        not evaluate the function at the index values ``env``.
        """
        known = e.xreplace({x: Integer(env[x]) for x in e.free_symbols if x in env})
        if known.func == e.func:
            raise ValueError(f"SymPy does not evaluate {known} to an expression that can be computed")
        return Total(parts=(self.bind(known, env),))

    def symbol(self, e: Symbol, env: IndexValues) -> Leaf:
        """Return the leaf of a symbol: an index, a weight, the time or a number.

        A leaf is a value that a formula reads, such as a field or a constant. Raise ValueError for a symbol
        without a value.
        """
        if e in env:
            return Fixed(env[e])
        if e.name in self.vectors:
            return self.weight(e.name, ())
        if e == t:
            return Timed(lambda state: state.time)
        if e.name not in self.values.numbers:
            raise ValueError(f"no value for {e}: give values[{e.name!r}]")
        return Fixed(self.values.numbers[e.name])

    def weight(self, name: str, key: tuple[int, ...]) -> Leaf:
        """Return the leaf of the vector of weights ``name`` with the index values ``key``.

        A leaf is a value that a formula reads, such as a field or a constant.
        """
        v = self.vectors[name]
        return CurrentParameter((name, key), place=self.sizes.place(v.population, self.member(v, key)))

    def member(self, x: GaussianMatrix | GaussianVector, key: tuple[int, ...]) -> IndexValues:
        """Return the index values ``key`` of a family of weights as a mapping from index symbols to values.

        ``x`` is the family, such as the matrices of all layers. Raise Missing if it has no weight with these
        values.
        """
        if x.name not in self.families:
            self.families[x.name] = {tuple(m.values()): m for m in members(x, self.values)}
        known = self.families[x.name]
        if key not in known:
            raise Missing(f"{x.name}{key} is used, but the family {x.symbol} has no such member")
        return known[key]

    def product(self, e: Product, env: IndexValues) -> Leaf:
        """Return the leaf of a product of a matrix with a vector, at the index values ``env``.

        A leaf is a value that a formula reads, such as a field or a constant.
        """
        m = gaussian(self.program.matrix_of(e))
        key = tuple(self.values.integer(x, env) for x in e.matrix.args)
        inner = self.member(m, key)
        takes, gives = (m.rows, m.cols) if e.transposed else (m.cols, m.rows)
        vector = self.bind(e.vector, env)
        common_place([vector.place(), self.sizes.place(takes, inner)], e)
        size, place = self.sizes.size(takes, inner), self.sizes.place(gives, inner)
        return Applied((m.name, key), e.transposed, size, parts=(vector,), place=place)

    def total(self, e: Sum, env: IndexValues) -> Leaf:
        """Return the leaf of a sum over indices, at the values ``env`` of the other indices.

        A leaf is a value that a formula reads, such as a field or a constant. Raise ValueError for a sum over
        past times.
        """
        ranges = tuple(IndexRange(*limits) for limits in reversed(e.limits))
        if t in {x for r in ranges for b in (r.lower, r.upper) for x in sympify(b).free_symbols}:
            raise ValueError(f"{e} sums over past times: in a program, only the training rule may do so")
        addends = tuple(self.bind(e.function, inner) for inner in self.values.members(ranges, env))
        return Total(parts=addends, place=common_place([x.place() for x in addends], e))

    def entry(self, e: AppliedUndef, env: IndexValues) -> Leaf:
        """Return the leaf of the field or number ``e`` at the index values ``env``.

        A shifted index such as a + k is periodic, unless it is the first index of a field and counts layers,
        or values at which the field is computed in order, such as positions in a sequence. A leaf describes a
        value that a formula reads from the state of the networks. Raise Missing if no definition gives the
        field at these indices, and ValueError if its last argument is neither the time t nor 0.
        """
        name, args = e.func.__name__, e.args
        first = bool(args) and args[-1] == 0
        if not args or args[-1] not in (t, S.Zero):
            raise ValueError(f"{e}: a formula reads fields at the time t or at the time 0 only")
        x = self.program.field_of(name)
        key = []
        for j, a in enumerate(args[:-1]):
            i = self.values.integer(a, env)
            is_periodic = isinstance(a, Add) and not (j == 0 and x is not None and (x.layered or x.ordered))
            span = self.span(name)
            key.append(periodic(i, *span[j]) if is_periodic and j < len(span) else i)
        if tuple(key) not in self.domains[name]:
            raise Missing(f"{e} is used at the indices {tuple(key)}, for which the program has no definition")
        place = None if x is None else self.home(x, tuple(key))[0]
        return FieldOrNumber((name, tuple(key)), first, place=place)

    def span(self, name: str) -> list[tuple[int, int]]:
        """Return the first and last value of each index at which the field or number ``name`` is defined."""
        if name not in self.spans:
            columns = zip(*sorted(self.domains[name]), strict=True)
            self.spans[name] = [(min(c), max(c)) for c in columns]
        return self.spans[name]

    def ordered(self, e: Expr) -> bool:
        """Return whether an expression contains an index along which a field is computed value by value.

        Examples are layers with the same weights, and positions in a sequence. Such an index is not periodic.
        """
        return any(str(x) in self.order for x in e.free_symbols)

    @cached_property
    def order(self) -> frozenset[str]:
        """Names of the indices along which a field is computed value by value.

        Examples are layers with the same weights, and positions in a sequence.
        """
        definitions = [(d, self.program.field_of(d.name)) for d in self.program.definitions]
        return frozenset(
            str(index)
            for d, x in definitions
            if x is not None and x.ordered
            for i in d.lhs.args[0].free_symbols
            for index in (i, primed(i))
        )

    def home(self, x: Field, key: tuple[int, ...]) -> tuple[PopulationAtLayer, int]:
        """Return where the units of a field are, (population, layer), and how many units there are.

        ``key`` are the values of the indices of the field ``x``.
        """
        layer = key[0] if x.layered else None
        if (x.name, layer) not in self.homes:
            p = x.population if layer is None else x.population.at(Integer(layer))
            self.homes[x.name, layer] = self.sizes.place(p, {}), self.sizes.size(p, {})
        return self.homes[x.name, layer]

    def constant(self, name: str, args: tuple[Expr, ...], env: IndexValues) -> Leaf:
        """Return the leaf of the constant ``name`` with the arguments ``args`` at the index values ``env``.

        The constant is data of the user: an array, or a function of indices, of time or of numbers. A leaf is
        a value that a formula reads from the state of the networks. Raise ValueError for an array that is
        applied to numbers of the program, and for a function of continuous time.
        """
        vector = self.program.given_of(name)
        wraps = tuple(
            vector is not None and isinstance(a, Add) and not a.has(t) and not self.ordered(a) for a in args
        )
        place = None if vector is None else self.sizes.place(vector.population, env)
        if any(a.atoms(AppliedUndef) for a in args):
            function = self.tables.data[name]
            if not callable(function):
                raise ValueError(
                    f"data[{name!r}] must be a function: {name} is applied to {args}, and these arguments "
                    "contain other functions"
                )
            return Called(function, parts=tuple(self.bind(a, env) for a in args))
        if any(a.has(t) for a in args):
            if not self.program.rule.discrete:
                raise ValueError(
                    f"{name} depends on the time, which is supported for training rules in steps only"
                )

            def lookup(state: NetworkState) -> Any:
                """Return the value of the constant at the current step of the networks' state."""
                now = {**env, t: state.step}
                return self.tables.at(name, tuple(self.values.integer(a, now) for a in args), wraps)

            return Timed(lookup, place=place)
        indices = tuple(self.values.integer(a, env) for a in args)
        value = self.tables.at(name, indices, wraps)
        return Fixed(value if vector is not None else float(np.asarray(value)), place=place)


def indices(x: GaussianMatrix | GaussianVector) -> tuple[IndexRange, ...]:
    """Return the ranges of the indices of a family of weights, the layer first; empty for a single weight."""
    if isinstance(x, GaussianVector):
        return x.indices
    return ((x.index,) if x.index else ()) + x.others


def members(x: GaussianMatrix | GaussianVector, values: Values) -> list[dict[Symbol, int]]:
    """Return all members of a family of weights, each as a mapping from index symbols to values.

    A single weight gives one empty mapping.
    """
    return list(values.members(indices(x)))


def _carried_out(x: Expr) -> Expr:
    """Return the expression ``x`` with its derivatives evaluated.

    Fields are taken as real, so that the derivative of ``Abs`` is a sign.
    """
    fields = {field: Dummy(str(field), real=True) for field in x.atoms(AppliedUndef)}
    evaluated: Expr = x.xreplace(fields).doit()
    return evaluated.xreplace({dummy: field for field, dummy in fields.items()})


@lru_cache(maxsize=1000)
def named(e: Expr, functions: Functions) -> Expr:
    """Return the expression with activations replaced by their functions and derivatives evaluated.

    Point masses in derivatives are dropped, because no unit of a finite network is exactly at a kink.
    """
    for name, function in functions:
        e = e.replace(
            lambda x, name=name: isinstance(x, AppliedUndef) and str(x.func) == name,
            lambda x, function=function: function(*x.args),
        )
    e = e.replace(lambda x: isinstance(x, Derivative | Subs), _carried_out)
    return e.replace(DiracDelta, lambda *_: S.Zero)


@lru_cache(maxsize=1000)
def compiled(e: Expr, known: frozenset[str], functions: Functions) -> tuple[Slots, Callable[..., Any]]:
    """Return the leaves of ``e``, and the compiled function that computes ``e`` from their values.

    ``known`` are the names of fields, numbers, weights, attributes and constants; ``functions`` are those
    that activations stand for. Raise ValueError for an unknown function. A leaf is a subexpression whose
    value is read from the state of the networks.
    """
    e = named(e, functions)
    slots = tuple(sorted(_leaves(e, known), key=str))
    if slots == (e,):
        return slots, itself
    places = tuple(_argument(i) for i in range(len(slots)))
    body = e.xreplace(dict(zip(slots, places, strict=True)))
    left = body.atoms(AppliedUndef, Derivative, Subs)
    if left:
        raise ValueError(
            f"SymPy has no expression for {min(map(str, left))} in {e}: use functions such as tanh, whose "
            "values and derivatives SymPy knows"
        )
    # A Piecewise can be computed for arrays of indices, a KroneckerDelta cannot.
    body = body.replace(KroneckerDelta, lambda a, b: Piecewise((1, Eq(a, b)), (0, True)))
    return slots, _function(places, body)


def _leaves(e: Expr, known: frozenset[str]) -> set[Expr]:
    """Return the largest subexpressions of ``e`` whose values are read from the state of the networks.

    They are fields, numbers, weights, constants, products, means, sums and symbols. ``known`` are the names
    of functions with a value; raise ValueError for any other.
    """
    if isinstance(e, Product | Mean | Sum | Symbol):
        return {e}
    if isinstance(e, AppliedUndef):
        name = e.func.__name__
        if name not in known:
            raise ValueError(
                f"{name} in {e} has no value: give values[{name!r}], a SymPy function, if it is "
                f"an activation, or data[{name!r}], an array, a mapping or a function of the indices"
            )
        return {e}
    if isinstance(e, SympyFunction) and not e.func.__module__.startswith("sympy."):
        return {e}  # a function of indices that the program defines itself, such as widths by layer
    return set().union(*(_leaves(x, known) for x in e.args)) if e.args else set()


@lru_cache(maxsize=100)
def _argument(i: int) -> Dummy:
    """Return the symbol that stands for the i-th argument of a compiled formula."""
    return Dummy(f"x{i}", real=True)


@lru_cache(maxsize=500)
def _function(places: tuple[Dummy, ...], body: Expr) -> Callable[..., Any]:
    """Return the expression ``body`` compiled to a NumPy function with the arguments ``places``."""
    function: Callable[..., Any] = lambdify(places, body, modules=["scipy", "numpy"], cse=True)
    return function


def note_extents(binder: Binder, steps: int) -> None:
    """Record in ``binder.tables`` which index values the program uses of each constant.

    Then the shapes of the user's arrays are checked against them. In a sum ``a + k`` of two indices, which is
    periodic, only the range of the first is recorded. An index that is the time runs from 0 to ``steps``.
    """
    tables, positions = binder.tables, {}
    for e, ranges in _contexts(binder):
        atoms = [a for a in e.atoms(AppliedUndef) if str(a.func) in tables.data]
        if not atoms:
            continue
        inner = tuple(IndexRange(*x) for total in e.atoms(Sum) for x in reversed(total.limits))
        columns = _columns(binder, ranges, inner)
        for atom in atoms:
            name = str(atom.func)
            positions[name] = len(atom.args)
            for j, arg in enumerate(atom.args):
                _note(binder, name, j, arg, columns, steps)
    numbers = {str(x): v for x, v in binder.values.numbers.items() if float(v).is_integer()}
    tables.reads = shifted_reads(binder.program, {x: int(v) for x, v in numbers.items()})
    for name, count in positions.items():
        if name not in binder.domains:
            tables.check(name, count)


def _note(
    binder: Binder, name: str, j: int, arg: Expr, columns: dict[Symbol, tuple[int, int]], steps: int
) -> None:
    """Record the values that one argument of a constant takes in the program.

    ``arg`` is the argument at position ``j`` of the constant ``name``; ``columns`` holds the first and last
    value of each index, and ``steps`` the last time.
    """
    if arg.atoms(AppliedUndef):
        return  # the argument contains a function, so that ranges of indices do not give its values
    if arg.has(t):
        binder.tables.note(name, j, (0, steps), exact=False)
        return
    if isinstance(arg, Integer):
        binder.tables.note_literal(name, j, int(arg))
        return
    arg_indices = [x for x in columns if arg.has(x)]
    is_periodic = binder.program.given_of(name) is not None and not arg.is_Symbol and not binder.ordered(arg)
    if len(arg_indices) > 1 or (arg_indices and is_periodic):
        binder.tables.note(name, j, columns[arg_indices[0]], exact=False)
        return
    if arg_indices and not arg.is_Symbol and not binder.ordered(arg):
        binder.tables.note_shift(name, j, columns[arg_indices[0]])
        return
    ends = [
        binder.values.integer(arg, {x: i for x in arg_indices})
        for i in (columns[arg_indices[0]] if arg_indices else (0,))
    ]
    first = columns[arg_indices[0]][0] if arg_indices and binder.ordered(arg) else min(ends)
    binder.tables.note(name, j, (first, max(ends)), exact=True)


def _columns(binder: Binder, ranges: IndexRanges, inner: IndexRanges) -> dict[Symbol, tuple[int, int]]:
    """Return the first and last value of each index of some ranges.

    ``inner`` are the ranges of summation indices, which may depend on the indices in ``ranges``.
    """
    bounds: dict[Symbol, tuple[int, int]] = {}
    for env in binder.values.members((*ranges, *inner)):
        for x, i in env.items():
            low, high = bounds.get(x, (i, i))
            bounds[x] = (min(low, i), max(high, i))
    return bounds


def _contexts(binder: Binder) -> Iterator[tuple[Expr, IndexRanges]]:
    """Yield the expressions of a program, each with the ranges of its indices.

    Expressions are those of definitions, which come first, of training rules and updates, and of variances
    and sizes. Those of rules that are defined by their memory are left out.
    """
    program = binder.program
    for d in program.definitions:
        yield d.rhs, d.ranges
    for w in program.trained():
        family = indices(w.initial)
        stated = w.rule if isinstance(w.rule, NonlinearRule) else getattr(w.rule, "system", None)
        for e in stated.coefficients if stated is not None else ():
            yield e, family
        for u in w.update.terms if isinstance(w.update, Outer) else (w.update,):
            vectors = (u.left, u.right) if isinstance(u, Outer) else (u.vector,)
            # The first index in a periodic argument p + q gives its period. Indices of sums (`u.over`) come
            # first, unless a bound of one of them depends on an index of the family of weights (`family`).
            dependent = any(_depends(r, family) for r in u.over)
            for e in (u.coefficient, *vectors):
                yield sympify(e), (*family, *u.over) if dependent else (*u.over, *family)
    for m in map(gaussian, program.matrices):
        for e in (m.variance, m.rows.ratio, m.cols.ratio):
            yield sympify(e), indices(m)
    for v in map(parameter, program.vectors):
        for e in (v.variance, v.population.ratio):
            yield sympify(e), v.indices
    for x in program.fields:
        for key in binder.domains[x.name]:
            p = x.population.at(Integer(key[0])) if x.layered else x.population
            yield sympify(p.ratio), ()


def _depends(r: IndexRange, family: IndexRanges) -> bool:
    """Return whether a bound of the range ``r`` depends on an index of a family of weights.

    ``family`` are the ranges of the family's indices.
    """
    names = {x.index for x in family}
    return bool((sympify(r.lower).free_symbols | sympify(r.upper).free_symbols) & names)
