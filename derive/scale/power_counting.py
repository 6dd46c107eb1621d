"""Powers of the width in a program: of its fields at the start, and of their change in training.

Input is the program alone: the vector that each matrix meets, the sizes of populations, the updates. For a
matrix of entries with mean square ``N^p/N`` that acts on ``n`` units,

- the Gaussian part of ``M v`` is a sum of n independent terms, of order ``sqrt(n N^(p-1))`` times v,
- its response is ``n N^(p-1)`` times the derivative of v by the opposite use ``M^T b``, times b,
- an update ``c left right^T`` gives ``c left (right . v)``, where the inner product is n times a mean.

A vector is a sum of parts. A part has entries of order ``N^power`` and is odd, even or neither under the sign
change of each Gaussian source of the conditioning rule. Sources are independent and symmetric, so the mean
over the n units of a part that is odd under one of them vanishes up to order ``n^(-1/2)`` (central limit
theorem). Other means are assumed to be of order one (law of large numbers). A number is a sum of parts that
are not odd under any source.

A step of an entrywise rule is counted as the gradient of an entry times ``Q/A``
(:mod:`derive.scale.rule_degrees`). This factor is even in the gradient, so that a step is odd under the same
sources as the gradient.

The width is the symbol ``N``, in addition to the factors that the language of programs implies (entries of
variance 1/N, means, ``right . v / N``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement
from typing import Any

from sympy import (
    Abs,
    Add,
    Derivative,
    Dummy,
    Expr,
    Heaviside,
    Integer,
    Max,
    Mul,
    Pow,
    Rational,
    S,
    Sum,
    Symbol,
    expand,
    expand_power_base,
    sign,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, s, t
from derive.errors import NotApplicable
from derive.program.entrywise import Entrywise
from derive.program.language import Mean, Population, Product
from derive.program.nonlinear import require_linear_rules
from derive.program.parts import Definition, gaussian, parameter
from derive.program.program import Program, used_once
from derive.program.rules import TrainingRule
from derive.program.training import Outer, TrainedMatrix, TrainedVector
from derive.reduce.homogeneous import NotHomogeneous, exponent
from derive.scale.rule_degrees import is_linear, step_powers
from derive.theory.applications import nonempty

N = Symbol("N", positive=True)
"""Width, in expressions with powers of it."""
HALF = Rational(1, 2)
IndexExpressions = Mapping[Symbol, Expr]
QuantityAtStep = tuple[str, Expr | None, int]
"""A field or number: its name, its layer, the step."""


@dataclass(frozen=True)
class Counted:
    """Parts of every field and number of a program at the steps 0, 1, ..., by name, layer and step.

    ``read`` are the parts at the start before they were assumed to be of order one, if they were. ``stopped``
    is the reason why a count ended early: a field grows, and a function of it has no power. ``nodes`` are all
    fields and numbers with their layers, counted or not.
    """

    program: Program
    found: Mapping[QuantityAtStep, EntrySizes]
    steps: int
    read: Mapping[tuple[str, Expr | None], EntrySizes]
    stopped: str | None = None
    nodes: tuple[tuple[str, Expr | None], ...] = ()

    def parts(self, name: str, site: Any = None, step: int = 0) -> EntrySizes:
        """Return the parts of a field or number; empty if it is zero or was not counted."""
        return self.found.get((name, None if site is None else sympify(site), step), ())

    def power(self, name: str, site: Any = None, step: int = 0) -> Expr | None:
        """Return the power of N of a field or number; None if it is zero or was not counted."""
        return top(self.parts(name, site, step))

    def change(self, name: str, site: Any = None, step: int = 1) -> Expr | None:
        """Return the power of the change by training; None without a change, or if it was not counted."""
        return top(p for p in self.parts(name, site, step) if p.order)

    def owed(
        self, name: str, site: Any = None, step: int = 1, *, systematic: bool = False
    ) -> dict[str, tuple[Expr, ...]]:
        """Return the powers of the change by each weight, if only the first order in the updates was counted.

        ``systematic`` excludes parts that are there by chance, because a mean vanishes.
        """
        table: dict[str, list[EntrySize]] = {}
        for p in self.parts(name, site, step):
            if p.order == 1 and not (systematic and p.chance):
                (weight,) = p.owed
                table.setdefault(weight, []).append(EntrySize(p.power))
        return {w: tuple(x.power for x in combined(parts)) for w, parts in table.items()}


def count_powers(
    program: Program,
    steps: int = 1,
    *,
    assumed: bool = False,
    first: bool = False,
    until: Sequence[tuple[str, Expr | None]] = (),
    spectral: Collection[str] = (),
) -> Counted:
    """Return powers of N at the start and after updates.

    Parameters
    ----------
    program : Program
        Program whose depth is a number.
    steps : int, optional
        Number of updates.
    assumed : bool, optional
        Whether every field is assumed to be of order one once its own power at the start is known (the step
        of an induction over layers), and errors as well.
    first : bool, optional
        Whether only the first order in the updates is kept.
    until : Sequence[tuple[str, Expr | None]], optional
        Fields or numbers; the count ends with the first step at which one of them grows.
    spectral : Collection[str], optional
        Names of matrices whose entrywise rules act on the singular values of the gradient; a gradient of
        fixed rank has singular values that are ``sqrt(rows columns)`` times its entries.

    Returns
    -------
    Counted
        Powers of all fields and numbers.

    Raises
    ------
    NotApplicable
        For a symbolic depth, continuous fields, noise, and functions of N that are not powers.

    Examples
    --------
    >>> from derive.program import mlp
    >>> counted = count_powers(mlp(2, "tanh"))
    >>> counted.power("h", 2), counted.change("h", 2), counted.power("f"), counted.change("f")
    (0, 0, -1/2, 0)
    """
    used_once(program, "powers of the width")
    uneven, before = frozenset[Generator](), None
    while uneven != before:
        counted = Counting(program, assumed, first, uneven, spectral).counted(steps, until)
        before = uneven
        uneven |= {g[:3] for parts in counted.found.values() for p in parts for g in p.mixed}
    return counted


def gradient_powers(program: Program) -> dict[str, Expr]:
    """Return the power of N of the gradient of an entry of each weight, in the units of its rule.

    Fields and errors are assumed to be of order one. Weights whose gradient is zero are left out.

    >>> from derive.program import mlp, sign_descent
    >>> gradient_powers(mlp(2, rule=sign_descent(Symbol("eta"))))
    {'W0': 0, 'W(1)': 0, 'w': 0}
    """
    count = Counting(program, assumed=True)
    count.counted(0)
    found = {}
    for w in program.trained():
        for env in count.members(count.ranges_of(w)):
            size = top(count.gradient(w, env, 0))
            if size is not None:
                found[member_name(w.name, tuple(env.values()))] = size
    return found


def member_name(name: str, member: tuple[Expr, ...]) -> str:
    """Return the name of a weight, with the indices of a member of a family."""
    return f"{name}({', '.join(map(str, member))})" if member else name


# -- parts -------------------------------------------------------------------------------------------------


class Grows(NotApplicable):
    """Exception for a field that grows with the width inside a function without a power."""


Generator = tuple[object, ...]
"""A Gaussian source: a vector parameter; or a matrix, the direction in which it is used, and what the vector
that it met is odd under (sources of vectors that do not overlap are independent)."""


@dataclass(frozen=True)
class EntrySize:
    """Entries of order ``N^power``, odd under the sources ``odd``, neither even nor odd under ``mixed``.

    ``order`` is the number of updates in the part, 0 without training (2 stands for more as well), and
    ``owed`` are the names of their weights if these are recorded. ``chance`` is true if a mean in it
    vanishes; no mean of an ``unknown`` part is assumed to vanish.

    >>> u, r = ("W", 1, False), ("W", 1, True)
    >>> h = EntrySize(S.Zero, frozenset({u}))
    >>> (h * h).vanishes, (h * EntrySize(S.Zero, frozenset({r}))).vanishes
    (False, True)
    """

    power: Expr = S.Zero
    odd: frozenset[Generator] = frozenset()
    mixed: frozenset[Generator] = frozenset()
    owed: frozenset[str] = frozenset()
    order: int = 0
    chance: bool = False
    unknown: bool = False

    @property
    def vanishes(self) -> bool:
        """Whether its mean is zero."""
        return bool(self.odd) and not self.unknown

    def __mul__(self, other: EntrySize) -> EntrySize:
        """Return the product of two parts, entry by entry."""
        mixed = self.mixed | other.mixed
        return EntrySize(
            (self.power + other.power).expand(),
            (self.odd ^ other.odd) - mixed,
            mixed,
            self.owed | other.owed,
            self.order + other.order,
            self.chance or other.chance,
            self.unknown or other.unknown,
        ).settled()

    def settled(self) -> EntrySize:
        """Return the part without parity beyond the first order in the updates, an upper bound."""
        return self if self.order < 2 else replace(self.bare(self.power), order=2, unknown=True)

    def bare(self, power: Expr) -> EntrySize:
        """Return a part of another power without odd or mixed sources."""
        return replace(self, power=power, odd=frozenset(), mixed=frozenset())

    def at(self, power: Expr) -> EntrySize:
        """Return the part with another power."""
        return replace(self, power=power)

    def due_to(self, weight: str | None) -> EntrySize:
        """Return the part after one more update, by this weight if weights are recorded."""
        owed = self.owed if weight is None else self.owed | {weight}
        return replace(self, owed=owed, order=self.order + 1).settled()

    def mean(self, size: Expr) -> EntrySize:
        """Return the mean over ``N^size`` units."""
        power = self.power - size / 2 if self.vanishes else self.power
        return replace(self.bare(power), chance=self.chance or self.vanishes, unknown=False)


EntrySizes = tuple[EntrySize, ...]


def combined(parts: Iterable[EntrySize]) -> EntrySizes:
    """Return the sum; among parts that differ only in the power the largest is kept."""
    kept: dict[EntrySize, list[Expr]] = {}
    for p in parts:
        forms = kept.setdefault(p.at(S.Zero), [])
        gaps = [(p.power - x).expand() for x in forms]
        if any(g.is_number and g <= 0 for g in gaps):
            continue
        forms[:] = [x for x, g in zip(forms, gaps, strict=True) if not (g.is_number and g > 0)]
        forms.append(p.power)
    return tuple(p.at(x) for p, forms in kept.items() for x in forms)


def product(*factors: EntrySizes) -> EntrySizes:
    """Return the product, entry by entry."""
    found: EntrySizes = (EntrySize(),)
    for parts in factors:
        found = combined(p * x for p in found for x in parts)
    return found


def top(parts: Iterable[EntrySize]) -> Expr | None:
    """Return the largest power, a ``Max`` if exponents are symbols; None if there is no part."""
    forms = [p.power for p in combined(EntrySize(p.power) for p in parts)]
    return None if not forms else forms[0] if len(forms) == 1 else Max(*forms)


def powers(number: Expr) -> tuple[Expr, ...]:
    """Return the powers of N in a number, one for each term.

    >>> a = Symbol("a")
    >>> powers(3 * N ** (1 - a) * Symbol("eta")), powers(1 + 2 * N)
    ((1 - a,), (0, 1))
    """
    if not number.has(N):
        return (S.Zero,)
    number = expand_power_base(number, force=True)
    if isinstance(number, Add):
        return tuple(dict.fromkeys(x for term in number.args for x in powers(term)))
    if isinstance(number, Mul):
        found = (S.Zero,)
        for factor in number.args:
            found = tuple((x + y).expand() for x in found for y in powers(factor))
        return found
    base, exponent = number.as_base_exp()
    own = (S.One,) if base == N else powers(base) if exponent != 1 and exponent.is_number else ()
    if len(own) != 1:
        raise NotApplicable(f"{number}: the width N may enter by its powers only")
    return ((own[0] * exponent).expand(),)


# -- a count -----------------------------------------------------------------------------------------------


class Counting:
    """One count of a program, as :func:`count_powers` runs it.

    ``uneven`` are sources under which some function is neither even nor odd; they do not distinguish vectors.
    """

    def __init__(
        self,
        program: Program,
        assumed: bool = False,
        first: bool = False,
        uneven: frozenset[Generator] = frozenset(),
        spectral: Collection[str] = (),
    ) -> None:
        if not sympify(program.depth).is_Integer:
            raise NotApplicable(
                f"depth = {program.depth}: must be an integer, because powers are counted layer by layer"
            )
        if any(d.evolves for d in program.definitions):
            raise NotApplicable("fields that evolve in continuous time: powers are counted step by step")
        self.program, self.assumed, self.first, self.uneven = program, assumed, first, uneven
        self.spectral = spectral
        self.rates: dict[TrainingRule, EntrySizes] = {}
        self.found: dict[QuantityAtStep, EntrySizes] = {}
        self.start: dict[tuple[str, Expr | None], EntrySizes] = {}
        self.rules: dict[tuple[str, Expr | None], tuple[Definition, IndexExpressions]] = {}
        self.met: dict[Generator, list[EntrySizes]] = {}
        self.vectors = {parameter(v).name: v for v in program.vectors}
        for d in nonempty(program.causal_order()):
            for env in self.members(d.ranges):
                self.rules[d.name, self.site(d.lhs, env)] = (d, env)

    def counted(self, steps: int, until: Sequence[tuple[str, Expr | None]] = ()) -> Counted:
        """Return the powers at the start and after updates, with the reason if the count ends early."""
        step, stopped = 0, None
        try:
            for step in range(steps + 1):
                for name, site in self.rules:
                    self.value((name, site, step))
                sizes = [top(self.found[name, site, step]) for name, site in until]
                if any(p is not None and p.is_positive for p in sizes):
                    break
        except Grows as reason:
            stopped = str(reason)
        return Counted(self.program, self.found, step, self.start, stopped, tuple(self.rules))

    # -- where things are --------------------------------------------------------------------------------

    def members(self, ranges: tuple[IndexRange, ...]) -> list[IndexExpressions]:
        """Return the values of the indices that distinguish fields."""
        found: list[IndexExpressions] = [{}]
        for r in ranges:
            if r.index in self.places:
                found = [
                    {**env, r.index: Integer(i)}
                    for env in found
                    for i in range(int(r.lower.subs(env)), int(r.upper.subs(env)) + 1)
                ]
        return found

    @cached_property
    def places(self) -> set[Symbol]:
        """Return the indices of layers and of ordered families."""
        atoms = set()
        for d in self.program.definitions:
            atoms |= {d.lhs} | d.rhs.atoms(AppliedUndef)
        for w in self.program.trained():
            u = w.update
            for e in (u.vector,) if isinstance(w, TrainedVector) else (u.left, u.right):  # type: ignore[union-attr]
                atoms |= e.atoms(AppliedUndef)
        named = [a.args[0] for a in atoms if self.placed(str(a.func))]
        return {x for e in named for x in e.free_symbols}

    def ranges_of(self, w: TrainedMatrix | TrainedVector) -> tuple[IndexRange, ...]:
        """Return the ranges of the indices of a family of weights."""
        if isinstance(w, TrainedVector):
            return w.initial.indices
        return () if w.initial.index is None else (w.initial.index,)

    def placed(self, name: str) -> bool:
        """Return whether the first argument of a field is a layer or a position."""
        x = self.program.field_of(name)
        return x is not None and (x.layered or x.ordered)

    def site(self, atom: AppliedUndef, env: IndexExpressions) -> Expr | None:
        """Return the layer of a field, or None."""
        return atom.args[0].subs(env) if self.placed(str(atom.func)) else None

    def is_field(self, e: Expr, env: IndexExpressions) -> bool:
        """Return whether an expression is a field or number with a definition, at its layer."""
        return isinstance(e, AppliedUndef) and (str(e.func), self.site(e, env)) in self.rules

    # -- values ------------------------------------------------------------------------------------------

    def value(self, node: QuantityAtStep) -> EntrySizes:
        """Return the parts of a field or number at a step."""
        if node not in self.found:
            name, site, step = node
            d, env = self.rules[name, site]
            parts = self.expression(d.rhs, env, step)
            if step == 0 and self.assumed:
                self.start[name, site] = parts
                parts = tuple(dict.fromkeys(p.at(S.Zero) for p in parts))
            self.found[node] = parts
        return self.found[node]

    def kept(self, parts: EntrySizes) -> EntrySizes:
        """Return the parts without those of second order, if only the first is counted."""
        return tuple(p for p in parts if p.order <= 1) if self.first else parts

    def expression(self, e: Expr, env: IndexExpressions, step: int) -> EntrySizes:
        """Return the parts of an expression in fields, entry by entry."""
        if isinstance(e, Add):
            return combined(p for x in e.args for p in self.expression(x, env, step))
        if isinstance(e, Sum):
            return self.expression(e.function, env, step)
        if isinstance(e, Product):
            return self.kept(self.matrix(e, env, step))
        if isinstance(e, Mean):
            size = self.size(self.program.site_of(e.args[0]), env)
            return combined(p.mean(size) for p in self.expression(e.args[0], env, step))
        if self.is_number(e):
            return tuple(EntrySize(x) for x in powers(e.subs(env).subs(t, step)))
        return self.factors(e, env, step)

    def factors(self, e: Expr, env: IndexExpressions, step: int) -> EntrySizes:
        """Return the parts of a product, a power, a weight, a field or a function of fields."""
        if isinstance(e, Mul):
            factors = [self.expression(x, env, step) for x in e.args]
            return self.kept(product(*factors))
        if isinstance(e, Pow) and e.exp.is_Integer and e.exp.is_positive:
            return self.kept(product(*[self.expression(e.base, env, step)] * int(e.exp)))
        for v in self.program.vectors:
            if e in parameter(v).uses(e):
                return self.vector(v, e, env, step)
        if self.is_field(e, env):
            now = 0 if e.args[-1] == 0 else step
            return self.value((str(e.func), self.site(e, env), now))
        return self.kept(self.function(e, env, step))

    def is_number(self, e: Expr) -> bool:
        """Return whether an expression contains neither entries nor computed numbers."""
        names = {name for name, _ in self.rules} | {x.name for x in self.program.given}
        names |= {x.name for x in self.program.attributes} | set(self.vectors)
        if e.has(Product, Mean) or any(str(a.func) in names for a in e.atoms(AppliedUndef)):
            return False
        return not any(str(x) in self.vectors for x in e.free_symbols)

    def size(self, p: Population, env: IndexExpressions) -> Expr:
        """Return the power of the number of units; given inputs have a fixed number."""
        if p.given:
            return S.Zero
        (ratio,) = powers(sympify(p.ratio).subs(env))
        return 1 + ratio

    # -- weights -----------------------------------------------------------------------------------------

    def matrix(self, e: Product, env: IndexExpressions, step: int) -> EntrySizes:
        """Return ``M(t) v``: the Gaussian part, responses, and for every update ``c left (right . v)/N``."""
        m = self.program.matrix_of(e)
        start, back = gaussian(m), e.transposed
        member = e.matrix.args[0].subs(env) if start.index is not None else S.Zero
        at = {start.index.index: member} if start.index is not None else {}
        acts, gives = (start.rows, start.cols) if back else (start.cols, start.rows)
        v, size = self.given_or(e.vector, env, step), self.size(acts, at)
        (variance,) = powers(sympify(start.variance).subs(at))
        power = variance - (S.Zero if start.cols.given else S.One)  # of the mean square of an entry
        use, opposite = (start.name, member, back), (start.name, member, not back)
        parts = [self.source(use, p, (power + size) / 2) for p in v]
        pushed = size + (power - self.size(gives, at)) / 2
        for b in self.met.get(opposite, ()):
            for q in b:
                less = (top(b) - q.power).expand()
                less = less if less.is_number else S.Zero
                drive = self.source(opposite, q, S.Zero)
                parts += [
                    replace(p.bare((p.power + pushed - less).expand()), unknown=False) * q.at(S.Zero)
                    for p in v
                    if not (p * drive).vanishes
                ]
        met = self.met.setdefault(use, [])
        if v not in met:
            met.append(v)
        if isinstance(m, TrainedMatrix):
            stays, meets = (m.update.right, m.update.left) if back else (m.update.left, m.update.right)
            units = EntrySize(S.Zero if start.cols.given and not back else size - 1)

            def moved(env: IndexExpressions, past: int, slope: EntrySize) -> EntrySizes:
                """Return the product of one update with the vector."""
                left, right = (self.given_or(x, env, past) for x in (stays, meets))
                means = combined((p * q * units * slope).mean(size) for p in right for q in v)
                return product(left, self.number(means))

            parts += self.learnt(m, at, tuple(at.values()), step, moved)
        return combined(parts)

    def learnt(
        self,
        w: TrainedMatrix | TrainedVector,
        at: IndexExpressions,
        member: tuple[Expr, ...],
        step: int,
        moved: Callable[[IndexExpressions, int, EntrySize], EntrySizes],
    ) -> EntrySizes:
        """Return the sum of all updates before a step: rate, coefficient, and the change by each."""
        name = member_name(w.name, member)
        found: list[EntrySize] = []
        for past in range(step):
            slopes = self.slopes(w, at, past)
            for inner in self.members(w.update.over):
                env = {**at, **inner}
                for when, slope in slopes:
                    coefficient = self.number(self.expression(w.update.coefficient, env, when))
                    front = product(self.memory(w, env), coefficient, (slope,))
                    parts = product(front, moved(env, when, slope.at(S.Zero)))
                    found += [x.due_to(name if self.first else None) for x in parts]
        return self.kept(tuple(found))

    def slopes(
        self, w: TrainedMatrix | TrainedVector, env: IndexExpressions, past: int
    ) -> list[tuple[int, EntrySize]]:
        """Return the gradients in the step at ``past`` by their times, each with its factor ``Q/A``.

        Linear rules have the factor 1, and their memory is counted by :meth:`memory`.
        """
        rule = w.rule
        if not isinstance(rule, Entrywise):
            require_linear_rules([w], "counting powers of the width")
            return [(past, EntrySize())]
        times = range(past + 1)
        gradients = [self.gradient(w, env, k) for k in times]
        started = [combined(p for p in x if not (self.first and p.order)) for x in gradients]
        own = replace(
            rule, Q=sympify(rule.Q).subs(env), states=tuple((x, e.subs(env)) for x, e in rule.states)
        )
        values = self.singular(w, env)
        sizes = [None if (p := top(x)) is None else p + values for x in started]
        size = step_powers(own, sizes, one_power)[past]
        whole = combined(p for x in (started if rule.states else started[past:]) for p in x)
        largest = top(whole)
        if size is None or largest is None:
            return []
        kinds = [p.odd for p in whole if (p.power - largest).expand() == 0]
        uneven = frozenset[Generator]()
        if not is_linear(rule):  # Q of a sum of an even and an odd gradient has no parity
            uneven = uneven.union(*(x ^ kinds[0] for x in kinds))
        largest += values
        slope = EntrySize((size - largest).expand(), mixed=uneven)
        return [(k, slope) for k in (times if rule.states else [past])]

    def singular(self, w: TrainedMatrix | TrainedVector, env: IndexExpressions) -> Expr:
        """Return the power of the rule's argument over an entry of the gradient."""
        if w.name not in self.spectral or not isinstance(w, TrainedMatrix):
            return S.Zero
        return (self.size(w.initial.rows, env) + self.size(w.initial.cols, env)) / 2

    def gradient(self, w: TrainedMatrix | TrainedVector, env: IndexExpressions, step: int) -> EntrySizes:
        """Return the parts of the gradient of an entry of a weight, in the units of its rule."""
        u = w.update
        sides = (u.left, u.right) if isinstance(u, Outer) else (u.vector,)
        found: list[EntrySize] = []
        for inner in self.members(u.over):  # the sum stands inside of Q
            at = {**env, **inner}
            front = self.number(self.expression(u.coefficient / u.outside, at, step))
            found += product(front, *(self.given_or(x, at, step) for x in sides))
        return combined(found)

    def source(self, use: Generator, p: EntrySize, gain: Expr) -> EntrySize:
        """Return the Gaussian part of a product; vectors without overlap have independent sources.

        An unknown part is treated as overlapping with all vectors.
        """
        power = (p.power + gain).expand()
        if p.unknown:
            return p.bare(power)
        kind = frozenset(g for g in p.odd if g[:3] not in self.uneven)
        return replace(p.bare(power), odd=frozenset({(*use, kind)}))

    def given_or(self, vector: Expr, env: IndexExpressions, step: int) -> EntrySizes:
        """Return the vector that a matrix meets; fixed inputs have entries of order one."""
        if any(self.program.given_of(str(a.func)) for a in vector.atoms(AppliedUndef)):
            return (EntrySize(),)
        return self.expression(vector, env, step)

    def number(self, parts: EntrySizes) -> EntrySizes:
        """Return a number that multiplies an update; if all orders count, only its size is kept."""
        return parts if self.first else combined(EntrySize(p.power) for p in parts)

    def memory(self, w: TrainedMatrix | TrainedVector, env: IndexExpressions) -> EntrySizes:
        """Return the power of the rate with which updates enter the weight."""
        if isinstance(w.rule, Entrywise):
            return tuple(EntrySize(x) for x in powers(w.rule.rate.subs(env)))
        if sympify(getattr(w.rule, "diffusion", 0)) != 0:
            raise NotApplicable(f"{w.name} is trained with noise, whose power of N is not counted")
        if w.rule not in self.rates:
            _, weight = w.rule.memory(t, s)
            self.rates[w.rule] = tuple(EntrySize(x) for x in powers(sympify(weight)))
        return self.rates[w.rule]

    def vector(self, v: Any, e: Expr, env: IndexExpressions, step: int) -> EntrySizes:
        """Return a vector parameter: its initial value and its updates."""
        initial = parameter(v)
        at = {r.index: x.subs(env) for r, x in zip(initial.indices, e.args, strict=False)}
        member = tuple(x for i, x in at.items() if i in self.places)
        variance = sympify(initial.variance).subs(at)
        kind = frozenset({(initial.name, member)})
        parts = [EntrySize(x / 2, kind) for x in powers(variance)] if variance != 0 else []
        if isinstance(v, TrainedVector):
            along = v.update.vector
            parts += self.learnt(v, at, member, step, lambda env, past, _: self.expression(along, env, past))
        return self.kept(combined(parts))

    # -- functions ---------------------------------------------------------------------------------------

    def function(self, e: Expr, env: IndexExpressions, step: int) -> EntrySizes:
        """Return a function of fields that is not a polynomial."""
        atoms = sorted((a for a in e.atoms(AppliedUndef) if self.is_field(a, env)), key=str)
        if not atoms:
            raise NotApplicable(f"{e}: powers of N are not known of it")
        values = tuple(self.expression(a, env, step) for a in atoms)
        return applied(shape_of(e, atoms), values, self.first)


def one_power(number: Expr) -> Expr:
    """Return the power of N in a number that is one power."""
    found = powers(number)
    if len(found) != 1:
        raise NotApplicable(f"{number}: is a sum of several powers of the width")
    return found[0]


# -- functions of fields -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Properties of a function of fields: parities, growth, value at zero.

    ``plain`` is the function, None if it is undefined. ``degree`` is that of a homogeneous function (relu 1,
    Heaviside 0); ``lowest`` is its lowest power at zero.
    """

    name: str
    plain: Expr | None = None
    degree: Expr | None = None
    lowest: int = 0

    def parity(self, which: frozenset[int]) -> int:
        """Return the parity under the sign change of these arguments: 1 even, -1 odd, 0 neither."""
        return 0 if self.plain is None else _parity(self.plain, which)


def applied(shape: Shape, arguments: tuple[EntrySizes, ...], first: bool = False) -> EntrySizes:
    """Return a function of fields: its value without training, and its change by updates, to second order.

    With ``first``, updates are infinitesimal. Raises :class:`Grows` if a field grows and the function is not
    homogeneous.
    """
    start = [tuple(p for p in parts if p.order == 0) for parts in arguments]
    base = top(p for parts in start for p in parts)
    size = base if first else top(p for parts in arguments for p in parts)
    grows = size is not None and size.is_positive
    if grows and shape.degree is None:
        raise Grows(f"{shape.name} of a field that grows as N^({size}) is no power of N")
    found = [_signature(shape, start, 0).at(_size_of(shape, base))]
    moved = [(i, p) for i, parts in enumerate(arguments) for p in parts if p.order]
    if grows and not first:  # a change may exceed the initial value: no expansion, no parity
        large = [
            EntrySize(shape.degree * p.power, owed=p.owed, order=p.order, unknown=True) for _, p in moved
        ]
        return combined([*found, *large])
    slope = _signature(shape, start, 1).at(_size_of(shape, base, 1))
    bend = _signature(shape, start, 2).at(_size_of(shape, base, 2))
    found += [slope * p for _, p in moved]
    found += [bend * p * q for (_, p), (_, q) in combinations_with_replacement(moved, 2)]
    return combined(found)


def _size_of(shape: Shape, base: Expr | None, derivative: int = 0) -> Expr:
    """Return the power of the function, or of its derivative, at a field of order ``N^base``."""
    if base is None or base == 0 or base.free_symbols:
        return S.Zero
    if shape.degree is not None:
        return (shape.degree - derivative) * base if shape.degree != 0 or derivative == 0 else S.Zero
    return max(shape.lowest - derivative, 0) * base


def _signature(shape: Shape, start: list[EntrySizes], derivative: int) -> EntrySize:
    """Return the parities of a function under each source in its arguments.

    A derivative is known only for a function of one argument, where it changes the parity.
    """
    sources = {g for parts in start for p in parts for g in p.odd | p.mixed}
    odd, mixed = set(), set()
    for g in sources:
        flipped = frozenset(i for i, parts in enumerate(start) if parts and all(g in p.odd for p in parts))
        touched = {i for i, parts in enumerate(start) if any(g in p.odd | p.mixed for p in parts)}
        known = touched == flipped and (derivative == 0 or len(start) == 1)
        parity = shape.parity(flipped) * (-1) ** derivative if known else 0
        if parity == -1:
            odd.add(g)
        elif parity == 0:
            mixed.add(g)
    return EntrySize(odd=frozenset(odd), mixed=frozenset(mixed))


def shape_of(e: Expr, atoms: list[Any]) -> Shape:
    """Return parities, homogeneity and lowest power at zero of a function of fields.

    An undefined function has no parity and a value at zero.

    >>> from sympy import Function, tanh
    >>> h = Function("h")(Symbol("t"))
    >>> tanh_, relu = shape_of(tanh(h), [h]), shape_of(Max(0, h), [h])
    >>> tanh_.parity(frozenset({0})), tanh_.degree, relu.degree, relu.parity(frozenset({0}))
    (-1, None, 1, 0)
    """
    if len(atoms) > len(_SLOTS):
        raise NotApplicable(f"{e}: a function of more than {len(_SLOTS)} fields")
    plain = None if isinstance(e, Derivative) else e.xreplace(dict(zip(atoms, _SLOTS, strict=False)))
    if plain is None or plain.atoms(AppliedUndef) or plain.has(Derivative):
        return Shape(str(e.func))
    return Shape(str(e.func), plain, *(_growth(plain) if len(atoms) == 1 else ()))


_SLOTS = tuple(Dummy(f"x{i}", real=True) for i in range(4))


@lru_cache(maxsize=256)
def _parity(plain: Expr, which: frozenset[int]) -> int:
    """Return the parity of a function under the sign change of these arguments."""
    other = plain.xreplace({_SLOTS[i]: -_SLOTS[i] for i in which})
    return next((k for k in (1, -1) if expand(other - k * plain) == 0), 0)


@lru_cache(maxsize=256)
def _growth(plain: Expr) -> tuple[Expr | None, int]:
    """Return the degree of a homogeneous function of one argument, and the lowest power of others at zero."""
    x = _SLOTS[0]
    with suppress(NotHomogeneous):
        return exponent(plain, {x: S.One}), 0
    if plain.has(Max, Abs, Heaviside, sign):
        return None, 0
    return None, next((k for k in range(4) if plain.diff(x, k).subs(x, 0) != 0), 0)
