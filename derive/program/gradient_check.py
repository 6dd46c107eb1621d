"""Gradient check: the updates of a program against the derivative of its loss, with two units a population.

Every weight, input and constant is a random number, and forward pass, backward pass and updates are evaluated
entry by entry from the definitions, with 50 digits. The loss is differentiated forwards, by its
own definitions, along a random direction in all trained weights; SymPy differentiates functions. The check
does not use the transposition of the forward pass in :mod:`derive.program.gradients`.

Let M be a matrix that is applied to n units, ``M = theta/sqrt(n)``, with raw weights that follow ``theta <-
theta - rate scale^2 N d loss/d theta``. Its update must be ``U = -speed d loss/dM`` with ``speed = rate
scale^2 N/n``, and that of a vector ``U = -speed d loss/dv`` with ``speed = rate scale^2 N``. For a direction
``V = speed X`` with random entries X, the derivative of the loss along V is then minus the sum of ``U X``
over all entries, and any wrong entry of U breaks this.

A population of size ``ratio N`` has two units here, each of which stands for ``ratio N/2`` equal ones. Sums
over units count them accordingly, so that the check holds at any ratio, integer or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations_with_replacement
from random import Random
from typing import Any

import mpmath
from sympy import Add, Dummy, Expr, Integer, Mul, Piecewise, Rational, S, Sum, Symbol, lambdify
from sympy.core.function import AppliedUndef, Derivative, Subs

from derive.calculus.symbols import IndexRange, IndexValues, L, expression, mu, t
from derive.errors import NotApplicable
from derive.program.language import GaussianMatrix, GaussianVector, Mean, Population, Product
from derive.program.parts import Definition, gaussian, parameter, ranges_of_loss
from derive.program.program import Program
from derive.program.training import Along, Outer, Parametrization, TrainedMatrix, TrainedVector

UNITS = 2
"""Units of every population, and the size N that the widths are relative to."""
DEPTH = 3
"""Hidden layers of a program at symbolic depth: two ends of a family and one layer between them."""
EXTENT = 3
"""Value of a size, such as the number of positions at which a range of indices ends."""
SAMPLES = 2
"""Value of a number of samples: of a size at which the range of the index of samples ends."""
DIGITS = 50
"""Decimal digits of the arithmetic."""
TOLERANCE = mpmath.mpf(10) ** -30
"""Relative rounding error that is allowed: far above 50 digits, far below any wrong term."""
LARGEST = 20_000
"""Expressions that are evaluated at most, about a second; a larger network is not compared."""

MemberIndices = tuple[int, ...]
Dual = tuple[Any, Any]
"""A value and its derivative along the direction; None for a derivative of zero."""
DualVector = list[Dual]
"""One entry for each unit; a single one for a number."""


class Undefined(ValueError):
    """Error: a definition or an update uses a field or scalar at indices at which it has no definition."""


@dataclass(frozen=True)
class WrongUpdate:
    """Weight whose update is not minus the gradient of the loss, with the two numbers that differ.

    ``weight`` is its name with the indices of the member of a family, such as ``W(1)``. ``by_update`` and
    ``by_loss`` are the derivative of the loss along a random direction of this weight: computed from the
    update of the program, and by differentiation of the loss. ``by_update`` is None if the update contains a
    field or scalar at indices at which it has no definition.
    """

    weight: str
    by_update: Expr | None
    by_loss: Expr


def check_gradients(program: Program) -> list[WrongUpdate]:
    """Return the weights whose updates are not minus the gradient of the program's loss.

    Parameters
    ----------
    program : Program
        A program with a ``loss`` and a ``descent``, such as :meth:`.Network.train` returns. A symbolic depth
        is compared at three layers, a symbolic number of samples at two.

    Returns
    -------
    list of WrongUpdate
        Empty if every update is minus the gradient.

    Raises
    ------
    NotApplicable
        If the updates cannot be compared: the program has no loss, its ``descent`` is None, a field evolves
        in continuous time, a definition uses a quantity at indices without a definition, an index or limit is
        not an integer, the network is too large to evaluate, or mpmath does not compute a function.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from derive.program import mlp
    >>> check_gradients(mlp(2, "tanh"))
    []
    >>> W0, W = mlp(2, "tanh").matrices
    >>> twice = replace(W, update=replace(W.update, coefficient=2 * W.update.coefficient))
    >>> [x.weight for x in check_gradients(replace(mlp(2, "tanh"), matrices=(W0, twice)))]
    ['W(1)']
    """
    if program.loss is None:
        raise NotApplicable("the program states no loss, so there is no gradient to compare its updates with")
    if program.descent is None:
        raise NotApplicable(
            "the updates are not the gradient of the loss, as the program states by descent = None"
        )
    if any(d.evolves for d in program.definitions):
        raise NotApplicable(
            "the program has fields that evolve in continuous time, and their gradients cannot be "
            "evaluated at one time"
        )
    if program.depth.has(L):
        program = program.at_depth(DEPTH)
    with mpmath.workdps(DIGITS):
        return _compare(program, program.descent or Parametrization())


def _compare(program: Program, descent: Parametrization) -> list[WrongUpdate]:
    """Return the weights with wrong updates of a program at integer depth.

    All weights are first compared together along one direction; single weights only if this fails.
    ``descent`` holds the scale of outputs and the factors of learning rates. Raises NotApplicable if a
    definition uses a field or scalar at indices at which it has no definition, or if the derivative of the
    loss or an update is not a number.
    """
    numbers = _Numbers(program)
    weights = list(_weights(program, descent, numbers))
    directions = {(w.name, w.key): w.direction(numbers) for w in weights}
    try:
        whole_slope, computed = _slope_of_loss(program, numbers, directions)
    except Undefined as missing:
        raise NotApplicable(f"the forward pass cannot be evaluated: {missing}") from None
    stated: list[tuple[Any, Any] | None] = []
    network = _TinyNetwork(program, numbers, {}, computed)
    for w in weights:
        try:
            stated.append(w.along(network, numbers))
        except Undefined:
            stated.append(None)
    total = sum(x[0] for x in stated if x is not None)
    if mpmath.isnan(whole_slope + total):
        raise NotApplicable(
            "gradients cannot be compared: the slope of the loss, or an update, is not a number, because "
            "a function of the program has no value at the numbers of the check, or none that mpmath can "
            "compute"
        )
    size = abs(whole_slope) + sum(x[1] for x in stated if x is not None)
    if None not in stated and abs(whole_slope - total) <= TOLERANCE * size:
        return []
    wrong = []
    for w, update in zip(weights, stated, strict=True):  # the total is wrong: compare each weight
        by_loss, _ = _slope_of_loss(program, numbers, {(w.name, w.key): directions[w.name, w.key]})
        if update is None or abs(by_loss - update[0]) > TOLERANCE * (abs(by_loss) + update[1]):
            by_update = None if update is None else _shown(update[0])
            wrong.append(WrongUpdate(w.label, by_update, _shown(by_loss)))
    return wrong


def _shown(x: Any) -> Expr:
    """Return a number of mpmath as a SymPy number of 8 digits, for a message."""
    return S(mpmath.nstr(x, 8))


def _slope_of_loss(
    program: Program, numbers: _Numbers, directions: Mapping[tuple[str, MemberIndices], Any]
) -> tuple[Any, dict[tuple[str, MemberIndices], DualVector]]:
    """Return the derivative of the loss along ``directions`` of the weights, and the values of all fields.

    The second value contains all fields and scalars that the loss depends on, without derivatives. Keys are
    the name and the indices of a weight, field or scalar. The loss is summed over its free indices.
    """
    assert program.loss is not None
    network = _TinyNetwork(program, numbers, directions, differentiates=True)
    total = mpmath.mpf(0)
    for env in numbers.assignments(ranges_of_loss(program.definitions, program.loss)):
        (value,) = network.value(program.loss, env)
        total += 0 if value[1] is None else value[1]
    return total, {key: [(x, None) for x, _ in entries] for key, entries in network.computed.items()}


# -- numbers for symbols, sizes and indices ------------------------------------------------------------------


class _Numbers:
    """Numbers that stand for the symbols of a program, and the integer values of its indices."""

    def __init__(self, program: Program) -> None:
        """Find the symbols of sizes, and the indices at which each field and scalar is defined.

        Sizes are the symbols in the ends of ranges; those of samples are known apart from the others.
        """
        self.program = program
        samples = {mu, program.roles.sample}
        self.sizes: set[Symbol] = set()
        self.sample_counts: set[Symbol] = set()
        for r in _all_ranges(program):
            self.sizes |= _ends(r)
            if r.index in samples:
                self.sample_counts |= _ends(r)
        self.table: dict[Symbol, Any] = {}
        self.entries: dict[tuple[str, int], tuple[int, int]] = {}
        """The first and last entry of an axis of a constant that the forward pass and the loss read."""
        self.lines: dict[str, dict[MemberIndices, tuple[Definition, IndexValues]]] = {}
        """For each field or scalar, by its indices: its definition, and the values of the indices in that."""
        self.rings: dict[tuple[str, int], tuple[int, int]] = {}
        """The first and last value of an argument, by the name of the function and the argument's number."""
        for d in program.definitions:
            keys = self.lines.setdefault(d.name, {})
            for env in self.assignments(d.ranges):
                keys[tuple(self.integer(a, env) for a in d.lhs.args[:-1])] = d, env
        for name, keys in self.lines.items():
            for i, column in enumerate(zip(*keys, strict=True)):
                self.rings[name, i] = min(column), max(column)
        self.matrices = {m.name: m for m in map(gaussian, program.matrices)}
        self.vectors = {v.name: v for v in map(parameter, program.vectors)}
        self.layered = {x.name for x in program.fields if x.layered or x.ordered}

    def entry_of(self, name: str, i: int, at: int, forward: bool) -> int:
        """Return the number of the entry that stands for entry ``at`` on axis ``i`` of a constant array.

        With ``forward``, in the forward pass and the loss, the result is ``at``, and the entry is recorded as
        one that exists. A gradient may need an entry beyond those, such as ``y(p - 1)`` at p = 1, because an
        output is periodic in p. The recorded entries are then repeated periodically: the entry before the
        first one is the last one, and the entry after the last one is the first one. ``name`` is the array.
        """
        low, high = self.entries.get((name, i), (at, at))
        if forward:
            self.entries[name, i] = min(low, at), max(high, at)
            return at
        return low + (at - low) % (high - low + 1)

    def symbol(self, x: Symbol) -> Any:
        """Return the number that stands for a symbol in the check; always the same for one symbol.

        It is 2 for the time t, the constant SAMPLES for a number of samples, EXTENT for any other size or
        integer, and a random number between 0.35 and 0.85 for a real parameter.
        """
        if x not in self.table:
            if x == t:
                self.table[x] = mpmath.mpf(2)
            elif x in self.sizes or x.is_integer:
                self.table[x] = mpmath.mpf(SAMPLES if x in self.sample_counts else EXTENT)
            else:
                # `entry` is between -0.5 and 0.5, so that the number for a real parameter is between 0.35 and
                # 0.85: positive, and neither small nor near one.
                self.table[x] = entry("symbol", x.name) / 2 + mpmath.mpf(3) / 5
        return self.table[x]

    def integer(self, e: Any, env: IndexValues) -> int:
        """Return the integer value of an index, or of an expression of indices such as the end of a range.

        ``env`` gives the values of indices; other symbols have their numbers (:meth:`symbol`). Raises
        NotApplicable if the value is not an integer.
        """
        if e in env:
            return env[e]
        e = e if isinstance(e, Expr) else expression(e)
        if isinstance(e, Integer):
            return int(e)
        table = {x: Integer(env[x] if x in env else int(self.symbol(x))) for x in e.free_symbols}
        value = e.xreplace(table)
        if not value.is_integer:
            raise NotApplicable(
                f"the index or limit {e} is not an integer in the small network of the gradient check"
            )
        return int(value)

    def assignments(
        self, ranges: tuple[IndexRange, ...], env: IndexValues | None = None
    ) -> Iterator[IndexValues]:
        """Yield every assignment of integers to the indices of ``ranges``, added to those in ``env``.

        A range may end at an index of another one.
        """
        known = dict(env or {})
        if not ranges:
            yield known
            return
        left = {r.index for r in ranges}
        ready = (i for i, r in enumerate(ranges) if not left & _ends(r))
        i = next(ready, 0)
        r, others = ranges[i], (*ranges[:i], *ranges[i + 1 :])
        for at in range(self.integer(r.lower, known), self.integer(r.upper, known) + 1):
            yield from self.assignments(others, {**known, r.index: at})


def _ends(r: IndexRange) -> set[Any]:
    """Return the symbols in the lower and in the upper limit of the range of an index."""
    return {x for b in (r.lower, r.upper) for x in expression(b).free_symbols}


def _all_ranges(program: Program) -> Iterator[IndexRange]:
    """Yield the ranges of all indices of a program: of definitions, families of weights, updates and sums."""
    bodies = [d.rhs for d in program.definitions]
    for d in program.definitions:
        yield from d.ranges
    for m in map(gaussian, program.matrices):
        yield from _indices(m)
    for v in map(parameter, program.vectors):
        yield from v.indices
    for w in program.trained():
        for u in _terms(w):
            yield from u.over
            bodies += [u.coefficient, *_sides(u)]
    for e in (*bodies, expression(program.loss or 0)):
        for x in expression(e).atoms(Sum):
            yield from (IndexRange(*limits) for limits in x.limits)


def _indices(w: GaussianMatrix | GaussianVector) -> tuple[IndexRange, ...]:
    """Return the ranges of the indices of a family of weights; an empty tuple for a single weight."""
    if isinstance(w, GaussianVector):
        return w.indices
    return ((w.index,) if w.index else ()) + w.others


def _terms(w: TrainedMatrix | TrainedVector) -> tuple[Outer | Along, ...]:
    """Return the terms of the update of a weight."""
    return w.update.terms if isinstance(w.update, Outer) else (w.update,)


def _sides(u: Outer | Along) -> tuple[Expr, ...]:
    """Return the vectors in a term of the update of a weight.

    They are left and right vector of an outer product (``Outer``), or the one vector of an ``Along``.
    """
    return (u.left, u.right) if isinstance(u, Outer) else (u.vector,)


@lru_cache(maxsize=10_000)
def entry(*name: Any) -> Any:
    """Return a random number between -0.5 and 0.5, not zero, the same for the same arguments."""
    draw = Random(repr(name)).randrange(1, 10**6)
    return mpmath.mpf(draw if draw % 2 else -draw) / (2 * 10**6)


# -- the network ---------------------------------------------------------------------------------------------


@dataclass
class _TinyNetwork:
    """Values of all quantities of a program at one time, and derivatives along ``directions`` of weights."""

    program: Program
    numbers: _Numbers
    directions: Mapping[tuple[str, MemberIndices], Any]
    computed: dict[tuple[str, MemberIndices], DualVector] = field(default_factory=dict)
    evaluations: int = 0
    differentiates: bool = False
    """Whether the loss is differentiated, by the forward pass alone; else updates are evaluated."""

    # -- expressions -----------------------------------------------------------------------------------------

    def value(self, e: Expr, env: IndexValues) -> DualVector:  # noqa: PLR0911 (one for each kind of node)
        """Return the value of an expression and its derivative along ``directions``, as pairs of both.

        There is one pair for each unit of a vector, and a single pair for a number; a derivative of None
        stands for zero. ``env`` gives the integers of the indices in the expression. Raises NotApplicable
        after more than LARGEST evaluations.
        """
        self.evaluations += 1
        if self.evaluations > LARGEST:
            raise NotApplicable(
                "the network is too large to evaluate, even with two units in each population"
            )
        if e.is_Rational:
            return [(mpmath.mpf(int(e.p)) / int(e.q), None)]
        if isinstance(e, Symbol):
            return self._symbol(e, env)
        if isinstance(e, Add):
            return _added([self.value(x, env) for x in e.args])
        if isinstance(e, Mul):
            first = [self.value(x, env) for x in e.args if isinstance(x, Piecewise)]
            if any(x == [(0, None)] for x in first):  # where a factor is 0, others may be undefined
                return [(mpmath.mpf(0), None)]
            return _multiplied(first + [self.value(x, env) for x in e.args if not isinstance(x, Piecewise)])
        if isinstance(e, Sum):
            ranges = tuple(IndexRange(*limits) for limits in reversed(e.limits))
            return _added([self.value(e.function, x) for x in self.numbers.assignments(ranges, env)])
        if isinstance(e, Mean):
            entries = self.value(e.args[0], env)
            return _multiplied([_added([[x] for x in entries]), [(mpmath.mpf(1) / len(entries), None)]])
        if isinstance(e, Product):
            return self._product(e, env)
        if isinstance(e, AppliedUndef):
            return self._applied(e, env)
        return self._function(e, env)

    def _symbol(self, x: Symbol, env: IndexValues) -> DualVector:
        """Return the value of a symbol, with its derivative, as a list of pairs.

        A vector of weights has one pair for each unit. An index, whose value is in ``env``, and a parameter
        have a single pair.
        """
        if x in env:
            return [(mpmath.mpf(env[x]), None)]
        if x.name in self.numbers.vectors:
            return self.weight(x.name, ())
        return [(self.numbers.symbol(x), None)]

    def weight(self, name: str, key: MemberIndices) -> DualVector:
        """Return the random entries of a vector of weights, with their derivatives, as a list of pairs.

        The derivative of an entry is the entry of the direction along which the loss is differentiated. The
        derivative is None if the weight has no direction, because the loss is not differentiated by it.
        """
        along = self.directions.get((name, key))
        return [(2 * entry(name, key, i), None if along is None else along[i]) for i in range(UNITS)]

    def _product(self, e: Product, env: IndexValues) -> DualVector:
        """Return a random matrix (or its transpose) applied to a vector, as pairs (value, derivative).

        The two units of the vector represent a larger population: each term of the sum is multiplied by the
        number of units that one of them stands for. Raises NotApplicable for a matrix that the program does
        not have.
        """
        name = str(e.matrix.func) if e.matrix.args else str(e.matrix)
        if name not in self.numbers.matrices:
            raise NotApplicable(f"{e} applies a matrix that the program does not have")
        key = tuple(self.numbers.integer(x, env) for x in e.matrix.args)
        rows, cols = sizes(self.numbers.matrices[name], key, self)
        entries = self.value(e.vector, env)
        entries = entries if len(entries) == UNITS else entries * UNITS
        along, count = self.directions.get((name, key)), rows if e.transposed else cols
        result = []
        for i in range(UNITS):
            terms = []
            for j in range(UNITS):
                at = (j, i) if e.transposed else (i, j)
                slope = None if along is None else along[at[0]][at[1]]
                terms.append(_multiplied([[(2 * entry(name, key, *at), slope)], [entries[j]]]))
            result += _multiplied([_added(terms), [(count, None)]])
        return result

    def _applied(self, e: AppliedUndef, env: IndexValues) -> DualVector:
        """Return the value of an applied function, with its derivative, as a list of pairs.

        There is one pair for each unit of a vector, and a single pair for a number. The function is a field,
        scalar, weight, input, constant or activation. ``env`` gives the integers of the indices.
        """
        name, args = str(e.func), e.args
        if name in self.numbers.lines:
            return self._line(e, env)
        if name in self.numbers.vectors:
            return self.weight(name, tuple(self.numbers.integer(x, env) for x in args))
        if self.program.attribute_of(name) is not None:
            return [(mpmath.mpf(1) / 2 + entry(name, i) / 2, None) for i in range(UNITS)]
        if any(a.has(AppliedUndef) for a in args):
            return self._function(e, env)
        key = tuple(self._place(name, i, a, env) for i, a in enumerate(args))
        key = tuple(self.numbers.entry_of(name, i, at, self.differentiates) for i, at in enumerate(key))
        if self.program.given_of(name) is not None:
            return [(2 * entry(name, key, i), None) for i in range(UNITS)]
        return [(mpmath.mpf(1) / 2 + entry(name, key) / 2, None)]

    def _line(self, e: AppliedUndef, env: IndexValues) -> DualVector:
        """Return value and derivative of a field or scalar ``e``, such as ``h(ell, mu, t)``, as pairs.

        There is one pair for each unit of a field, and a single pair for a scalar. At the time t they follow
        from the definition. At another time, such as 0 in ``f(mu, 0)``, the values are random numbers that do
        not depend on the weights. ``env`` gives the integers of the indices. Raises Undefined if no
        definition gives the quantity at these indices.
        """
        name = str(e.func)
        key = tuple(self._place(name, i, a, env) for i, a in enumerate(e.args[:-1]))
        if key not in self.numbers.lines[name]:
            raise Undefined(f"{e} is used at the indices {key}, for which the program has no definition")
        if not e.args or e.args[-1] != t:
            many = self.program.field_of(name) is not None
            return [(entry(name, key, str(e.args[-1:]), i), None) for i in range(UNITS if many else 1)]
        if (name, key) not in self.computed:
            line, at = self.numbers.lines[name][key]
            self.computed[name, key] = self.value(line.rhs, at)
        return self.computed[name, key]

    def _place(self, name: str, i: int, a: Expr, env: IndexValues) -> int:
        """Return the integer value of ``a``, argument number ``i`` of the field, scalar or constant ``name``.

        ``env`` gives the integers of the indices. A shifted index of a field or scalar, such as ``p + 1``,
        that is beyond its range continues at the other end, except for the first index of a layered or
        ordered field. A shifted index of a constant does not continue.
        """
        if a == t:
            return int(self.numbers.symbol(t))
        at = self.numbers.integer(a, env)
        layer = i == 0 and name in self.numbers.layered
        if isinstance(a, Add) and not layer and (name, i) in self.numbers.rings:
            low, high = self.numbers.rings[name, i]
            return low + (at - low) % (high - low + 1)
        return at

    def _function(self, e: Expr, env: IndexValues) -> DualVector:
        """Return a function of quantities, such as ``tanh(h(mu, t))``, as pairs (value, derivative).

        There is one pair for each unit of a vector, and a single pair for a number. ``env`` gives the
        integers of the indices.
        """
        at_indices = {x: Integer(env[x]) for x in _leaves(e) if x in env}
        if at_indices and (here := _at(e, at_indices)) != e:
            return self.value(here, env)  # a power such as h**p may have become the field h
        leaves = _leaves(e)
        names = {x: _argument(i) for i, x in enumerate(leaves)}
        shape = _shape(e, tuple(names.items()))
        inner = [self.value(x, env) for x in leaves]
        units = max((len(x) for x in inner), default=1)
        result = []
        for i in range(units):
            entries = [x[i] if len(x) > 1 else x[0] for x in inner]
            values = [x for x, _ in entries]
            slope = None
            for argument, (_, moved) in zip(names.values(), entries, strict=True):
                if moved is not None:
                    slope = (slope or 0) + _compiled(_slope(shape, argument), len(entries))(*values) * moved
            result.append((_compiled(shape, len(entries))(*values), slope))
        return result


def sizes(m: GaussianMatrix, key: MemberIndices, network: _TinyNetwork) -> tuple[Any, Any]:
    """Return the sizes of the row and column populations of a matrix, each divided by N.

    ``key`` are the integers of the indices of the member, for a family of matrices. A population of size
    ``ratio N`` is represented by two units, so that ratio is also the number of units for which each of them
    stands, in units of N/2. The size of a given population is returned as 1.
    """
    env = dict(zip((r.index for r in _indices(m)), key, strict=True))
    return tuple(_ratio(p, env, network) for p in (m.rows, m.cols))


def _ratio(p: Population, env: IndexValues, network: _TinyNetwork) -> Any:
    """Return the number of units of a population divided by N; 1 for a given population."""
    if p.given:
        return mpmath.mpf(1)
    ((ratio, _),) = network.value(expression(p.ratio), env)
    return ratio


# -- arithmetic of duals -------------------------------------------------------------------------------------


def _added(parts: list[DualVector]) -> DualVector:
    """Return the sum of vectors whose entries are pairs of a value and a derivative.

    A vector of one entry is the same number for all units.
    """
    entries_of_sum = []
    for i in range(max((len(x) for x in parts), default=1)):
        entries = [x[i] if len(x) > 1 else x[0] for x in parts]
        slopes = [x for _, x in entries if x is not None]
        entries_of_sum.append((sum((x for x, _ in entries), mpmath.mpf(0)), sum(slopes) if slopes else None))
    return entries_of_sum


def _multiplied(parts: list[DualVector]) -> DualVector:
    """Return the entrywise product of vectors whose entries are pairs of a value and a derivative.

    A vector of one entry is the same number for all units.
    """
    product = []
    for i in range(max(len(x) for x in parts)):
        value, slope = mpmath.mpf(1), None
        for x in parts:
            factor, moved = x[i] if len(x) > 1 else x[0]
            if slope is not None:
                slope = slope * factor
            if moved is not None:
                slope = value * moved if slope is None else slope + value * moved
            value *= factor
        product.append((value, slope))
    return product


@lru_cache(maxsize=1000)
def _leaves(e: Expr) -> tuple[Expr, ...]:
    """Return the quantities of which an entrywise expression is a function.

    They are symbols, applied undefined functions (fields, scalars, ``phi(h(mu, t))``), their derivatives,
    sums, means and matrix products: for ``tanh(h(mu, t)) + b`` they are ``h(mu, t)`` and ``b``. If the
    expression itself is a derivative, they are the arguments of the function that is differentiated.
    """
    if isinstance(e, Derivative):
        return tuple(e.expr.args)
    if isinstance(e, Subs):
        return _leaves(e.point)
    leaves: dict[Expr, None] = {}
    for x in e.args:
        leaf = isinstance(x, Sum | Mean | Product | Symbol | AppliedUndef | Derivative)
        leaves |= dict.fromkeys((x,) if leaf else _leaves(x))
    return tuple(leaves)


def _at(e: Expr, values: Mapping[Any, Expr]) -> Expr:
    """Return a function with ``values`` in place of its symbols (indices, for example).

    Fields, sums, means and matrix products in it are left as they are, unless they are themselves keys of
    ``values``.
    """
    if isinstance(e, Sum | Mean | Product | AppliedUndef | Derivative) or not e.args:
        return values.get(e, e)
    if isinstance(e, Subs):
        return Subs(e.expr, e.variables, _at(e.point, values))
    return e.func(*[_at(x, values) for x in e.args])


@lru_cache(maxsize=100)
def _argument(i: int) -> Dummy:
    """Return the dummy symbol of argument number ``i`` of a function; always the same one."""
    return Dummy(f"x{i}", real=True)


@lru_cache(maxsize=1000)
def _shape(e: Expr, names: tuple[tuple[Expr, Dummy], ...]) -> Expr:
    """Return a function ``e`` of fields as a function of dummy symbols, for numerical evaluation.

    ``names`` are pairs of a part of e, such as ``h(mu, t)``, and the dummy that replaces it. Undefined
    functions are replaced by cubic polynomials, and derivatives are carried out.
    """
    if isinstance(e, Derivative):
        shape = _shape(e.expr, names)
        for x in e.variables:
            shape = _slope(shape, dict(names)[x])
        return shape
    known = _known(e.xreplace(dict(names)))
    return known.doit() if known.has(Subs) else known


def _known(e: Expr) -> Expr:
    """Return an expression in which each undefined function is replaced by a fixed polynomial."""

    def polynomial(x: Expr) -> Expr:
        """Return the fixed polynomial that replaces the application ``x`` of an undefined function."""
        arguments = {_argument(i): a for i, a in enumerate(x.args)}
        return _polynomial(str(x.func), len(x.args)).xreplace(arguments)

    return e.replace(lambda x: isinstance(x, AppliedUndef), polynomial)


@lru_cache(maxsize=100)
def _polynomial(name: str, count: int) -> Expr:
    """Return the random cubic polynomial that stands for the undefined function ``name``.

    It is a polynomial in the dummy symbols of ``count`` arguments (:func:`_argument`).
    """
    arguments = (S.One, *(_argument(i) for i in range(count)))
    return Add(
        *(
            Rational(Random(f"{name} {i}").randrange(1, 100), 60) * Mul(*x)
            for i, x in enumerate(combinations_with_replacement(arguments, 3))
        )
    )


@lru_cache(maxsize=1000)
def _slope(shape: Expr, argument: Dummy) -> Expr:
    """Return the derivative of ``shape``, a function of dummy symbols, by the dummy ``argument``.

    Derivatives of undefined functions are replaced by those of the polynomials that stand for them.
    """
    return _known(shape.diff(argument))


ON_KINKS = {"Heaviside": lambda x, *_: mpmath.mpf(x > 0), "DiracDelta": lambda *_: mpmath.mpf(0)}
"""Step function and delta for random arguments, which are never exactly at zero."""


@lru_cache(maxsize=1000)
def _compiled(shape: Expr, count: int) -> Callable[..., Any]:
    """Return an expression in ``count`` dummy symbols as a Python function of ``count`` mpmath numbers.

    The value of the function is nan if mpmath cannot compute it or if it divides by zero.
    """
    function = lambdify([_argument(i) for i in range(count)], shape, [ON_KINKS, "mpmath"])

    def value(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (NameError, ZeroDivisionError):
            # The value is not defined. Either mpmath does not have a function in the expression `shape`, as
            # in a loss of which only the derivative is needed, or `shape` divides by zero, as the slope of
            # sqrt(Max(0, x)) does at x <= 0.
            return mpmath.nan

    return value


# -- weights -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Weight:
    """Trained weight, or one member of a family of them, at the integer indices ``key``.

    ``speed`` is the number c for which the update must be ``-c d loss/dM`` for the weight M as it is applied:
    learning rate times ``scale^2 N``, and for a matrix this product divided by its fan-in (the number of
    columns, unless the parametrization states another number).
    """

    weight: TrainedMatrix | TrainedVector
    key: MemberIndices
    speed: Any
    count: Any
    """Number of entries that each entry stands for, in units of (N/2)^2 for a matrix, N/2 for a vector."""
    scale: Any
    """The number N by which the update of a matrix is divided; 1 for a vector."""

    @property
    def name(self) -> str:
        """The name of the weight."""
        return self.weight.name

    @property
    def label(self) -> str:
        """The name of the weight with the indices of the member, such as ``W(1)``."""
        return f"{self.name}({', '.join(map(str, self.key))})" if self.key else self.name

    def direction(self, numbers: _Numbers) -> Any:
        """Return a random direction in the space of the weight's entries, (units,) or (units, units).

        Its entries are random numbers times the factor ``speed`` with which the update is minus the gradient.
        """
        if isinstance(self.weight, TrainedVector):
            return [self.speed * self.random(i) for i in range(UNITS)]
        return [[self.speed * self.random(i, j) for j in range(UNITS)] for i in range(UNITS)]

    def random(self, *at: int) -> Any:
        """Return the random number of the direction at the entry ``at``, always the same for one entry.

        ``at`` is one index for a vector, two for a matrix.
        """
        return entry("direction", self.name, self.key, *at)

    def along(self, network: _TinyNetwork, numbers: _Numbers) -> tuple[Any, Any]:
        """Return the derivative of the loss along :meth:`direction`, computed from the update of the weight.

        It is minus the sum of update times random number over all entries, because the update is minus
        ``speed`` times the gradient. The second value is the sum of the absolute values of the terms, the
        scale for rounding errors.
        """
        total, size = mpmath.mpf(0), mpmath.mpf(0)
        ranges = _indices(self.weight.initial)
        family = dict(zip((r.index for r in ranges), self.key, strict=True))
        for u in _terms(self.weight):
            for env in numbers.assignments(u.over, family):
                ((coefficient, _),) = network.value(expression(u.coefficient), env)
                if coefficient == 0:  # an update of other members, whose vectors this one may not have
                    continue
                sides = [[x for x, _ in network.value(expression(e), env)] for e in _sides(u)]
                sides = [x if len(x) == UNITS else x * UNITS for x in sides]
                if isinstance(u, Outer):
                    entries = [
                        sides[0][i] * sides[1][j] * self.random(i, j)
                        for i in range(UNITS)
                        for j in range(UNITS)
                    ]
                else:
                    entries = [sides[0][i] * self.random(i) for i in range(UNITS)]
                factor = self.count * coefficient / self.scale
                total -= factor * sum(entries)
                size += abs(factor) * sum(map(abs, entries))
        return total, size


def _weights(program: Program, descent: Parametrization, numbers: _Numbers) -> Iterator[_Weight]:
    """Yield every trained weight and every member of a family, with the factor of its update.

    The factor, ``speed``, is minus the ratio of the update to the gradient of the loss, as the learning rates
    and scales in ``descent`` require it.
    """
    network = _TinyNetwork(program, numbers, {})
    for w in program.trained():
        m = w.initial
        for env in numbers.assignments(_indices(m)):
            key = tuple(env[r.index] for r in _indices(m))
            rate = expression(descent.scale) ** 2 * descent.rate_of(m.name)
            if isinstance(w, TrainedMatrix):
                rows, cols = sizes(w.initial, key, network)
                fan_in = descent.fan_in_of(w.initial)
                ((speed, _),) = network.value(expression(rate / fan_in), env)
                yield _Weight(w, key, speed, rows * cols, mpmath.mpf(UNITS))
            else:
                ((speed, _),) = network.value(expression(UNITS * rate), env)
                count = _ratio(w.initial.population, env, network)
                yield _Weight(w, key, speed, count, mpmath.mpf(1))
