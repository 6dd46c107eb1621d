"""Weights whose rule acts on each entry, such as Adam, as tables: gradients of entries and sums over steps.

In an equation the memory of such a weight is ``Sum(k(t, s) E~[Q_s copy(v(t))], (s, 0, t - 1))``, or
``Sum(k(t, s) Q_s)`` for a vector of weights. Here Q_s is the step of an entry ``W_ij`` at time s, ``E~`` the
average over the units j, and ``copy`` marks the quantities of unit j. This module reads the memory as the
weight at time t, an array over pairs of units that the rule updates, times the vector v. Sampled paths march
these tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from sympy import Add, Dummy, Expr, Mul, Sum, Symbol, cancel, lambdify
from sympy.core.function import AppliedUndef

from derive.calculus.pairs import EntryStep, PairMean, copied
from derive.calculus.symbols import s, t
from derive.program.entrywise import A, Entrywise
from derive.program.program import Program
from numerics.errors import Unserved
from numerics.names import MemberKey


@dataclass(frozen=True)
class EntryVector:
    """Vector over the units of one population, in the gradient of a weight whose rule acts on each entry.

    Attributes
    ----------
    node
        Name, with integer indices, of the field, function of fields, or given data that the vector is.
    symbols
        Its indices that are symbols.
    given
        Whether it is given data, such as an input vector.
    time_axis
        Axis of given data that counts steps; None for data that do not change.
    fixed
        Pairs (axis, integer) for axes of given data that are read at one integer.
    kernel
        Name of the kernel (matrix of inner products) of given data; empty otherwise.
    """

    node: MemberKey
    symbols: tuple[Symbol, ...]
    given: bool = False
    time_axis: int | None = None
    fixed: tuple[tuple[int, int], ...] = ()
    kernel: str = ""


@dataclass(frozen=True)
class GradientTerm:
    """Term ``sum_over kernel(s) own_i(s) other_j(s)`` of the gradient of entry ``W_ij`` of a weight matrix.

    ``own`` is the vector over the rows i of the matrix, ``other`` that over its columns j. ``other`` is None
    if the weight is a vector, whose entries belong to single units. ``over`` are the summed indices.
    """

    kernel: Expr
    own: EntryVector
    other: EntryVector | None
    over: tuple[Symbol, ...]

    @cached_property
    def mirrored(self) -> GradientTerm:
        """The same term for the transposed weight matrix: the vectors over rows and columns are exchanged.

        The weight must be a matrix, so that ``other`` is not None.
        """
        assert self.other is not None
        return replace(self, own=self.other, other=self.own)

    @cached_property
    def canonical(self) -> tuple[Any, ...]:
        """A key that is equal for terms of a gradient that differ by names of summed indices only."""
        places = [x for v in (self.own, self.other) if v is not None for x in v.symbols]
        order = [x for x in dict.fromkeys((*places, *sorted(self.over, key=str))) if x in self.over]
        slots = {x: Symbol(f"_{k}") for k, x in enumerate(order)}
        ends = [
            None if v is None else (v.node, tuple(slots.get(x, x) for x in v.symbols))
            for v in (self.own, self.other)
        ]
        return (self.kernel.xreplace(slots), *ends)


@dataclass(frozen=True)
class EntryArray:
    """Weight matrix ``W_ij`` or vector ``W_i`` whose training rule acts on each entry.

    Attributes
    ----------
    weight
        Name of the weight.
    rule
        Its training rule, such as Adam.
    terms
        Terms of the gradient of an entry. Each is a product of a vector over the rows i and, for a matrix, a
        vector over the columns j.
    indices
        Indices of the family of weights.
    inside
        Function of the time of a step that multiplies the step, in addition to the rate of the rule.
    """

    weight: str
    rule: Entrywise
    terms: tuple[GradientTerm, ...]
    indices: tuple[Symbol, ...]
    inside: Expr

    @property
    def given(self) -> str:
        """Name of the given data that are the vectors over the columns of the weight, such as inputs.

        Empty if the columns of the weight belong to units, and if the weight is a vector.
        """
        other = self.terms[0].other
        return other.node[0] if other is not None and other.given else ""

    @property
    def single(self) -> bool:
        """Whether the weight is a vector, so that each entry belongs to one unit."""
        return self.terms[0].other is None

    @cached_property
    def mirrored(self) -> EntryArray:
        """The transposed weight matrix, with rows and columns exchanged; the weight must not be a vector."""
        return replace(self, terms=tuple(x.mirrored for x in self.terms))

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for two descriptions of the same weight.

        It holds the name of the weight, its indices, the factor ``inside`` of its steps, and the terms of its
        gradient in any order. In the key of the transposed matrix, rows and columns are exchanged.
        """
        return (self.weight, self.indices, self.inside, frozenset(x.canonical for x in self.terms))

    @property
    def nodes(self) -> tuple[tuple[MemberKey, ...], tuple[MemberKey, ...]]:
        """Names of random quantities in the gradient of ``W_ij``: (those of row i, those of column j)."""
        row_nodes = [x.own.node for x in self.terms if not x.own.given]
        column_nodes = [x.other.node for x in self.terms if x.other is not None and not x.other.given]
        return tuple(dict.fromkeys(row_nodes)), tuple(dict.fromkeys(column_nodes))


@dataclass(frozen=True)
class EntrySum:
    """Term of a field equation in which the trained part V of a weight is applied to a vector v.

    The weight has an entrywise rule, and V is the weight without its initial value: its past steps, each
    decayed by the weight decay. For a weight matrix with n columns the term is ``sum_over factor * own_i *
    (1/n) sum_j V_ij(t) v_j(t)``, for a vector of weights ``sum_over factor * own_i * V_i(t)``.

    Attributes
    ----------
    array
        Position of the weight in the list :attr:`QuantityTables.weights`.
    transposed
        Whether the transpose of the stored matrix is applied.
    factor
        Deterministic factor.
    vector
        The vector v over the columns of V; None for a vector of weights, of which each unit holds one entry.
    own
        Random factor at the row i of V, such as a gate; None if the factor is one.
    over
        Summed indices.
    """

    array: int
    transposed: bool
    factor: Expr
    vector: EntryVector | None
    own: EntryVector | None = None
    over: tuple[Symbol, ...] = ()


@dataclass(frozen=True)
class EntryRule:
    """Entrywise training rule, such as Adam, as a compiled function of arrays.

    The function maps the gradient of entries and the states of the rule (such as averages of past gradients)
    to the new states and the step by which the entries change.

    Attributes
    ----------
    function
        The compiled function.
    numbers
        Parameters of the rule; values of these are its last arguments, after gradient and states.
    states
        Number of states.
    """

    function: Callable[..., tuple[Any, ...]]
    numbers: tuple[Expr, ...]
    states: int

    @classmethod
    def of(cls, rule: Entrywise) -> EntryRule:
        """Return an entrywise training rule as a compiled function; equal rules are compiled once."""
        return _compiled(rule)


@lru_cache(maxsize=64)
def _compiled(rule: Entrywise) -> EntryRule:
    """Return an entrywise training rule as one compiled function, cached.

    The function returns the new states of the rule and the step by which an entry changes.
    """
    after = dict(rule.states)
    step = rule.Q if rule.before else rule.Q.xreplace(after)
    bodies = [*after.values(), step]
    moving = [A, *after]
    numbers = tuple(sorted({x for e in bodies for x in _numbers(e)} - {*moving}, key=str))
    slots = {x: Dummy(f"x{k}", real=True) for k, x in enumerate((*moving, *numbers))}
    function = lambdify([*slots.values()], [e.xreplace(slots) for e in bodies], "numpy", cse=True)
    return EntryRule(function, numbers, len(rule.states))


def _numbers(e: Expr) -> set[Expr]:
    """Return the symbols and undefined functions in an expression, without arguments of the latter."""
    if isinstance(e, AppliedUndef | Symbol):
        return {e}
    return {x for arg in e.args for x in _numbers(arg)}


@dataclass(frozen=True)
class StepSum:
    """Term of a field equation that sums the past steps of a weight with an entrywise rule.

    A step is the change of one entry ``W_ij`` of the weight at time s.

    Attributes
    ----------
    kernel
        Function of t and s that multiplies the step.
    step
        Step of an entry at the time s.
    vector
        Vector that the weight is applied to; None for a vector of weights.
    limits
        Limits of the summed indices other than the time s.
    """

    kernel: Expr
    step: EntryStep
    vector: Expr | None
    limits: tuple[Any, ...] = ()


def step_sum(leaf: Sum) -> StepSum:
    """Split a sum over past steps of a weight into its kernel k, the step Q and the vector v.

    The sum ``Sum(k(t, s) E~[Q_s copy(v(t))], (s, 0, t - 1))`` averages over the n units j that ``copy``
    marks: the term is ``sum_s k(t, s) (1/n) sum_j Q_ij(s) v_j(t)``. It may also run over other indices.
    Raises Unserved for a sum over a part of the past, and for a summand of another form.
    """
    times = [tuple(x) for x in leaf.limits if x[0] in (s, t)]
    limits = tuple(x for x in leaf.limits if x[0] not in (s, t))
    if times != [(s, 0, t - 1)]:
        raise Unserved(f"{leaf}: a sum over steps of an entrywise rule must run over s = 0..t - 1")
    kernel, body = leaf.function.as_independent(PairMean, EntryStep, as_Add=False)
    if isinstance(body, EntryStep):
        return StepSum(kernel, body, None, limits)
    inside = body.body if isinstance(body, PairMean) else body
    steps = [x for x in Mul.make_args(inside) if isinstance(x, EntryStep)]
    if not isinstance(body, PairMean) or len(steps) != 1:
        raise Unserved(
            f"the sum {leaf} over steps of an entrywise rule contains {body}, which is not the mean of the "
            "step of one entry of a weight times an entry of a vector"
        )
    _, copy = copied(inside / steps[0])
    return StepSum(kernel, steps[0], copy, limits)


def entrywise_rule(program: Program, weight: str) -> Entrywise:
    """Return the training rule of the weight with this name, which must be an entrywise rule."""
    return next(w.rule for w in program.trained() if w.name == weight and isinstance(w.rule, Entrywise))


def beside_memory(kernel: Expr, rule: Entrywise) -> tuple[Expr, Expr]:
    """Split the kernel of a sum over past steps into its factors beside the memory of the training rule.

    The kernel is ``k(t, s) inside(s) factor(t)`` with the memory k of ``rule``, and the result is (inside,
    factor). Factors without a time belong to ``factor``. Raises Unserved if the remaining factors couple
    both times.
    """
    remainder = kernel / rule.memory(t, s)[1]
    remainder = remainder if t not in remainder.free_symbols else cancel(remainder)
    factor, inside = remainder.as_independent(s, as_Add=False)
    if t in inside.free_symbols:
        raise Unserved(
            f"the kernel {kernel} of a sum over steps is not the memory of {rule.name}, "
            f"{rule.memory(t, s)[1]}, times a function of t and a function of s"
        )
    return inside, factor


def gradient_parts(gradient: Expr) -> list[tuple[Expr, Expr, tuple[Any, ...]]]:
    """Split the gradient of an entry ``W_ij`` of a weight into terms that are products of two factors.

    Each term is (factor of the unit i, factor of the unit j, limits of its sums). The first factor contains
    all numbers. The second factor is 1 if the weight is a vector.
    """
    parts = []
    for term in Add.make_args(gradient):
        limits: tuple[Any, ...] = ()
        body = term
        while isinstance(body, Sum) or any(isinstance(y, Sum) for y in Mul.make_args(body)):
            inner = next(y for y in Mul.make_args(body) if isinstance(y, Sum))
            limits += tuple(inner.limits)
            body = body / inner * inner.function
        for y in Add.make_args(body.expand() if body.is_Add or body.has(Add) else body):
            row_factor, column_factor = copied(y)
            parts.append((row_factor, column_factor, limits))
    return parts
