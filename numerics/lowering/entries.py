"""Weights whose rule acts on each entry, as tables: gradients of entries, and sums over their steps.

The memory of such a weight in an equation is ``Sum(k(t, s) E~[Q_s copy(v(t))], (s, 0, t - 1))``, an average
over independent units, or ``Sum(k(t, s) Q_s)`` for a vector of weights.  It is read here as the weight
itself, an array over pairs of units that moves by its rule, times the vector.  Sampled paths march these
tables.
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
    """A vector at the units of one population: its node (a quantity, or given data), and its indices.

    ``time_axis`` is the axis of given data that counts steps; None for data that do not change.  ``fixed``
    are axes of given data that are read at integers, which their ``kernel`` counts as its own.
    """

    node: MemberKey
    symbols: tuple[Symbol, ...]
    given: bool = False
    time_axis: int | None = None
    fixed: tuple[tuple[int, int], ...] = ()
    kernel: str = ""


@dataclass(frozen=True)
class GradientTerm:
    """``sum_over kernel(s) own(s) other(s)``: a term of the gradient of an entry, from its two units.

    ``other`` is None for a vector of weights, whose entries belong to single units.
    """

    kernel: Expr
    own: EntryVector
    other: EntryVector | None
    over: tuple[Symbol, ...]

    @cached_property
    def mirrored(self) -> GradientTerm:
        """The same term as the other unit sees it."""
        assert self.other is not None
        return replace(self, own=self.other, other=self.own)

    @cached_property
    def canonical(self) -> tuple[Any, ...]:
        """A form that does not depend on the letters of the indices that are summed over."""
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
    """One weight whose rule acts on each entry: the gradient of an entry, its rule, and its indices.

    Entries belong to a unit of the population of ``own`` vectors and one of that of ``other`` vectors of the
    terms; ``indices`` tell apart the members of a family.  Each step is multiplied by ``inside``, a function
    of the time of the step, beside the rate of the rule.
    """

    weight: str
    rule: Entrywise
    terms: tuple[GradientTerm, ...]
    indices: tuple[Symbol, ...]
    inside: Expr

    @property
    def given(self) -> str:
        """The name of the data whose coordinates are the partners; empty if these are units."""
        other = self.terms[0].other
        return other.node[0] if other is not None and other.given else ""

    @property
    def single(self) -> bool:
        """Whether entries belong to one unit each: a vector of weights."""
        return self.terms[0].other is None

    @cached_property
    def mirrored(self) -> EntryArray:
        """The transposed matrix."""
        return replace(self, terms=tuple(x.mirrored for x in self.terms))

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for arrays that hold the same weight."""
        return (self.weight, self.indices, self.inside, frozenset(x.canonical for x in self.terms))

    @property
    def nodes(self) -> tuple[tuple[MemberKey, ...], tuple[MemberKey, ...]]:
        """The quantities in the gradient, at the unit and at its partner."""
        own = [x.own.node for x in self.terms if not x.own.given]
        other = [x.other.node for x in self.terms if x.other is not None and not x.other.given]
        return tuple(dict.fromkeys(own)), tuple(dict.fromkeys(other))


@dataclass(frozen=True)
class EntrySum:
    """``sum_over factor * own * E~[V(t) copy(v(t))]``: a weight, by its number, applied to a vector.

    ``vector`` lives on the partners; it is None for a vector of weights, of which the unit itself holds an
    entry.  ``own`` is an entrywise factor at the unit itself, if there is one.
    """

    array: int
    transposed: bool
    factor: Expr
    vector: EntryVector | None
    own: EntryVector | None = None
    over: tuple[Symbol, ...] = ()


@dataclass(frozen=True)
class EntryRule:
    """A rule on arrays: ``function`` takes the gradient, states and numbers; it returns states and Q."""

    function: Callable[..., tuple[Any, ...]]
    numbers: tuple[Expr, ...]
    states: int

    @classmethod
    def of(cls, rule: Entrywise) -> EntryRule:
        """Compile the law of one entry; laws that were compiled before are kept."""
        return _compiled(rule)


@lru_cache(maxsize=64)
def _compiled(rule: Entrywise) -> EntryRule:
    after = dict(rule.states)
    step = rule.Q if rule.before else rule.Q.xreplace(after)
    bodies = [*after.values(), step]
    own = [A, *after]
    numbers = tuple(sorted({x for e in bodies for x in _numbers(e)} - {*own}, key=str))
    slots = {x: Dummy(f"x{k}", real=True) for k, x in enumerate((*own, *numbers))}
    function = lambdify([*slots.values()], [e.xreplace(slots) for e in bodies], "numpy", cse=True)
    return EntryRule(function, numbers, len(rule.states))


def _numbers(e: Expr) -> set[Expr]:
    """The symbols and functions of an expression, the largest ones."""
    if isinstance(e, AppliedUndef | Symbol):
        return {e}
    return {x for arg in e.args for x in _numbers(arg)}


@dataclass(frozen=True)
class StepSum:
    """A term of an equation that holds steps of entries, taken apart: kernel, step and vector."""

    kernel: Expr
    step: EntryStep
    vector: Expr | None
    limits: tuple[Any, ...] = ()


def step_sum(leaf: Sum) -> StepSum:
    """Take ``Sum(k(t, s) E~[Q_s copy(v(t))], (e, 1, n), (s, 0, t - 1))`` apart.

    Raises Unserved for sums over parts of the past.
    """
    times = [tuple(x) for x in leaf.limits if x[0] in (s, t)]
    limits = tuple(x for x in leaf.limits if x[0] not in (s, t))
    if times != [(s, 0, t - 1)]:
        raise Unserved(f"{leaf}: steps of an entrywise rule are summed over s = 0..t - 1")
    kernel, body = leaf.function.as_independent(PairMean, EntryStep, as_Add=False)
    if isinstance(body, EntryStep):
        return StepSum(kernel, body, None, limits)
    if not isinstance(body, PairMean):
        raise Unserved(f"{leaf}: {body} is not the mean of one step and one vector")
    steps = [x for x in Mul.make_args(body.body) if isinstance(x, EntryStep)]
    if len(steps) != 1:
        raise Unserved(f"{leaf}: {body} is not the mean of one step and one vector")
    _, copy = copied(body.body / steps[0])
    return StepSum(kernel, steps[0], copy, limits)


def entrywise_rule(program: Program, weight: str) -> Entrywise:
    """Return the rule of a weight of a program."""
    return next(w.rule for w in program.trained() if w.name == weight and isinstance(w.rule, Entrywise))


def beside_memory(kernel: Expr, rule: Entrywise) -> tuple[Expr, Expr]:
    """Split ``k(t, s) inside(s) factor(t)`` into ``inside``, a function of s, and ``factor``.

    Raises Unserved where the rest of a kernel couples both times, as with a rule that has an index.
    """
    rest = kernel / rule.memory(t, s)[1]
    rest = rest if t not in rest.free_symbols else cancel(rest)
    factor, inside = rest.as_independent(s, as_Add=False)
    if t in inside.free_symbols:
        raise Unserved(
            f"{kernel} is not the memory of {rule.name}, {rule.memory(t, s)[1]}, times a function of s"
        )
    return inside, factor


def gradient_parts(gradient: Expr) -> list[tuple[Expr, Expr, tuple[Any, ...]]]:
    """The terms of the gradient of an entry: what belongs to its unit with all numbers, its partner, limits.

    The partner is one for a vector of weights.
    """
    found = []
    for x in Add.make_args(gradient):
        limits: tuple[Any, ...] = ()
        body = x
        while isinstance(body, Sum) or any(isinstance(y, Sum) for y in Mul.make_args(body)):
            inner = next(y for y in Mul.make_args(body) if isinstance(y, Sum))
            limits += tuple(inner.limits)
            body = body / inner * inner.function
        for y in Add.make_args(body.expand() if body.is_Add or body.has(Add) else body):
            own, other = copied(y)
            found.append((own, other, limits))
    return found
