"""Powers of the width in a program: of its fields at the start, and of their change in training.

Input is the program alone: the vector that multiplies each matrix, the sizes of populations, the updates. For
a matrix of entries with mean square ``N^p/N`` that acts on ``n`` units,

- the Gaussian part of ``M v`` is a sum of n independent terms, of order ``sqrt(n N^(p-1))`` times v,
- its response is ``n N^(p-1)`` times the derivative of v with respect to the opposite product ``M^T b``,
  times b,
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
from derive.errors import NotApplicable, require_integer
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
    """Result of a power count: the sizes of every field and number at the steps 0, 1, ....

    A size is a list of parts; a part has a power of N and parities under sign changes of Gaussian sources.

    Attributes
    ----------
    program
        Program that was counted.
    found
        Parts by (name, layer, step).
    steps
        Last step that was counted; if ``stopped`` has a reason, this step is counted in part only.
    initial
        Parts before training by (name, layer), as counted. It is filled only with the option ``assumed`` of
        :func:`count_powers`, with which ``found`` has the power zero for all of them.
    stopped
        Reason why the count ended early: a field grows, and a function of it has no power. None otherwise.
    nodes
        Names and layers of all fields and numbers, counted or not.
    requested
        Number of updates that were to be counted; ``steps`` is smaller if the count ended at an earlier step.
    """

    program: Program
    found: Mapping[QuantityAtStep, EntrySizes]
    steps: int
    initial: Mapping[tuple[str, Expr | None], EntrySizes]
    stopped: str | None = None
    nodes: tuple[tuple[str, Expr | None], ...] = ()
    requested: int = 0

    def parts(self, name: str, site: Any = None, step: int = 0) -> EntrySizes:
        """Return the parts of a field or number at a step, each with a power of N and parities.

        ``name`` is the name of the field, and ``site`` its layer, None without layers. The result is empty if
        the field is zero, or if the count ended before the field was reached. Raises KeyError for a field or
        layer that does not exist, and ValueError for a step beyond those that were requested.
        """
        layer = None if site is None else sympify(site)
        if (name, layer) not in self.nodes:
            known = ", ".join(n if x is None else f"{n}({x})" for n, x in self.nodes)
            asked = name if site is None else f"{name}({site})"
            raise KeyError(f"{asked} is not a field or number of the program: must be one of {known}")
        return self.found.get((name, layer, require_integer("step", step, 0, self.requested)), ())

    def power(self, name: str, site: Any = None, step: int = 0) -> Expr | None:
        """Return the exponent p of a field or number that is of order ``N^p`` after ``step`` updates.

        ``name`` is its name, and ``site`` its layer, None without layers. The result is None if it is zero,
        or if the count ended before the field was reached. Raises as :meth:`parts` does.
        """
        return top(self.parts(name, site, step))

    def change(self, name: str, site: Any = None, step: int = 1) -> Expr | None:
        """Return the exponent p of ``N^p``, the size of the change of a field or number by ``step`` updates.

        ``name`` is its name, and ``site`` its layer, None without layers. The result is None if it does not
        change, or if the count ended before the field was reached. Raises as :meth:`parts` does.
        """
        return top(p for p in self.parts(name, site, step) if p.order)

    def change_by_weight(
        self, name: str, site: Any = None, step: int = 1, *, systematic: bool = False
    ) -> dict[str, tuple[Expr, ...]]:
        """Return the exponents of N in the change of a field by each weight's updates, by name of the weight.

        ``name`` is the field, ``site`` its layer and ``step`` the number of updates. A weight has several
        powers if symbols do not determine the largest. The count must have been made with the option
        ``first`` of :func:`count_powers`. If ``systematic`` is true, changes are left out that are random
        because their mean vanishes. Raises as :meth:`parts` does.
        """
        by_weight: dict[str, list[EntrySize]] = {}
        for p in self.parts(name, site, step):
            if p.order == 1 and not (systematic and p.chance):
                (weight,) = p.updated_by
                by_weight.setdefault(weight, []).append(EntrySize(p.power))
        return {w: tuple(x.power for x in combined(parts)) for w, parts in by_weight.items()}


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
        Number of updates, at least 0.
    assumed : bool, optional
        Whether every field and number before training, such as an error, is replaced by one of order one
        after its own power has been recorded. Each layer is then counted as if all layers below were of order
        one (the step of an induction over layers).
    first : bool, optional
        Whether only the first order in the updates is kept.
    until : Sequence[tuple[str, Expr | None]], optional
        Fields or numbers; the count ends with the first step at which one of them grows with N.
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
        For a symbolic depth, fields that evolve in continuous time, updates of weights that are trained with
        noise or by a nonlinear rule that is not entrywise, a trained matrix that is used in several products,
        functions of N that are not powers, functions of more than four fields, and names in ``until`` and
        ``spectral`` that the program does not have.
    ValueError
        If ``steps`` is not an integer of at least 0.

    Examples
    --------
    >>> from derive.program import mlp
    >>> counted = count_powers(mlp(2, "tanh"))
    >>> counted.power("h", 2), counted.change("h", 2), counted.power("f"), counted.change("f")
    (0, 0, -1/2, 0)
    """
    steps = require_integer("steps", steps, 0)
    used_once(program, "powers of the width")
    uneven, previous = frozenset[Generator](), None
    while uneven != previous:
        counted = Counting(program, assumed, first, uneven, spectral).counted(steps, until)
        previous = uneven
        uneven |= {g[:3] for parts in counted.found.values() for p in parts for g in p.mixed}
    return counted


def gradient_powers(program: Program) -> dict[str, Expr]:
    """Return the exponent of N in the gradient of an entry of each weight, as its training rule receives it.

    It is the gradient before training. Fields and errors are assumed to be of order one. Weights whose
    gradient is zero are left out.

    >>> from derive.program import mlp, sign_descent
    >>> gradient_powers(mlp(2, rule=sign_descent(Symbol("eta"))))
    {'W0': 0, 'W(1)': 0, 'w': 0}
    """
    count = Counting(program, assumed=True)
    count.counted(0)
    by_name = {}
    for w in program.trained():
        for env in count.members(count.ranges_of(w)):
            power = top(count.gradient(w, env, 0))
            if power is not None:
                by_name[member_name(w.name, tuple(env.values()))] = power
    return by_name


def _known_matrices(program: Program, names: Collection[str]) -> frozenset[str]:
    """Return names of trained matrices as a set; raise NotApplicable for others."""
    known = [w.name for w in program.trained() if isinstance(w, TrainedMatrix)]
    chosen = frozenset([names] if isinstance(names, str) else names)
    if unknown := sorted(chosen - {*known}):
        raise NotApplicable(
            f"spectral: {unknown[0]!r} is not a trained matrix of the program: must be one of "
            f"{', '.join(known)}"
        )
    return chosen


def member_name(name: str, member: tuple[Expr, ...]) -> str:
    """Return the name of a weight with the indices of a member of a family, such as ``W(1)``."""
    return f"{name}({', '.join(map(str, member))})" if member else name


# -- parts -------------------------------------------------------------------------------------------------


class Grows(NotApplicable):
    """Exception for a function without a power of N, because its argument grows with N."""


Generator = tuple[object, ...]
"""A Gaussian source: a vector of weights, or a matrix with member, direction of use, and the sources under
which the multiplied vector is odd (sources of vectors that do not overlap are independent)."""


@dataclass(frozen=True)
class EntrySize:
    """Part of a vector: entries of order ``N^power``, with parities under Gaussian sources.

    Attributes
    ----------
    power
        Power of N of the entries.
    odd, mixed
        Sources under whose sign change the part is odd, and those under which it is neither even nor odd.
    updated_by
        Names of the weights of its updates, if these are recorded.
    order
        Number of updates in the part, 0 without training; 2 stands for more as well.
    chance
        True if a mean in it vanishes, so that it is a random fluctuation.
    unknown
        True if no mean of the part is assumed to vanish.

    Examples
    --------
    >>> u, r = ("W", 1, False), ("W", 1, True)
    >>> h = EntrySize(S.Zero, frozenset({u}))
    >>> (h * h).vanishes, (h * EntrySize(S.Zero, frozenset({r}))).vanishes
    (False, True)
    """

    power: Expr = S.Zero
    odd: frozenset[Generator] = frozenset()
    mixed: frozenset[Generator] = frozenset()
    updated_by: frozenset[str] = frozenset()
    order: int = 0
    chance: bool = False
    unknown: bool = False

    @property
    def vanishes(self) -> bool:
        """Whether the mean of the part over units is zero, because it is odd under a Gaussian source."""
        return bool(self.odd) and not self.unknown

    def __mul__(self, other: EntrySize) -> EntrySize:
        """Return the product of two parts, entry by entry: powers add up, and parities are multiplied.

        From second order in the updates on it is an upper bound without parities.
        """
        mixed = self.mixed | other.mixed
        return EntrySize(
            (self.power + other.power).expand(),
            (self.odd ^ other.odd) - mixed,
            mixed,
            self.updated_by | other.updated_by,
            self.order + other.order,
            self.chance or other.chance,
            self.unknown or other.unknown,
        ).as_bound()

    def as_bound(self) -> EntrySize:
        """Return the part itself if it is of order 0 or 1 in the updates, else an upper bound of it.

        The bound has the same power of N and no parity, and no mean of it is assumed to vanish.
        """
        return self if self.order < 2 else replace(self.even(self.power), order=2, unknown=True)

    def even(self, power: Expr) -> EntrySize:
        """Return the part with the given power of N, and even under the sign change of all sources."""
        return replace(self, power=power, odd=frozenset(), mixed=frozenset())

    def at(self, power: Expr) -> EntrySize:
        """Return the part with the given power of N in place of its own; parities stay."""
        return replace(self, power=power)

    def due_to(self, weight: str | None) -> EntrySize:
        """Return the part with an order in the updates that is higher by one.

        ``weight`` is the name of the updated weight, None if it is not recorded. From order 2 on the result
        is an upper bound.
        """
        updated_by = self.updated_by if weight is None else self.updated_by | {weight}
        return replace(self, updated_by=updated_by, order=self.order + 1).as_bound()

    def mean(self, size: Expr) -> EntrySize:
        """Return the size of the mean of the part over ``N^size`` units.

        It has the same power of N, or ``size/2`` less if the mean vanishes, and is even.
        """
        power = self.power - size / 2 if self.vanishes else self.power
        return replace(self.even(power), chance=self.chance or self.vanishes, unknown=False)


EntrySizes = tuple[EntrySize, ...]


def combined(parts: Iterable[EntrySize]) -> EntrySizes:
    """Return the parts of a sum, from the parts of its terms.

    A part has a power of N and parities. Among parts that differ only in the power the largest is kept;
    powers with symbols that cannot be compared are all kept.
    """
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
    """Return the parts of a product of vectors, entry by entry, from the parts of its factors.

    A part has a power of N and parities; powers add up and parities are multiplied.
    """
    result: EntrySizes = (EntrySize(),)
    for parts in factors:
        result = combined(p * x for p in result for x in parts)
    return result


def top(parts: Iterable[EntrySize]) -> Expr | None:
    """Return the largest of the exponents of N of some parts; None if there is no part.

    It is a ``Max`` if exponents are symbols that cannot be compared.
    """
    forms = [p.power for p in combined(EntrySize(p.power) for p in parts)]
    return None if not forms else forms[0] if len(forms) == 1 else Max(*forms)


def powers(number: Expr) -> tuple[Expr, ...]:
    """Return the exponents of the width N in a sum of products, one for each term.

    An exponent that several terms of a sum share is listed once; for a product of sums it may occur more
    often. Raises NotApplicable if N occurs in a function that is not a power, or in a power of a
    sum.

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
        sums = (S.Zero,)
        for factor in number.args:
            sums = tuple((x + y).expand() for x in sums for y in powers(factor))
        return sums
    base, exponent = number.as_base_exp()
    base_powers = (
        (S.One,)
        if base == N and not exponent.has(N)
        else powers(base)
        if exponent != 1 and exponent.is_number
        else ()
    )
    if len(base_powers) != 1:
        raise NotApplicable(
            f"the factor {number} is not counted: powers of the width N may be multiplied and added, but not "
            "stand in other functions or in a power of a sum"
        )
    return ((base_powers[0] * exponent).expand(),)


# -- a count -----------------------------------------------------------------------------------------------


class Counting:
    """One count of powers of N in a program, as :func:`count_powers` runs it.

    ``assumed`` states that fields are of order one, ``first`` that only first order in the updates is kept,
    and ``spectral`` names matrices whose rules act on singular values, as in :func:`count_powers`. ``uneven``
    are Gaussian sources under which some function is neither even nor odd; vectors that differ only by them
    are treated as overlapping.
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
            raise NotApplicable(
                "the program has fields that evolve in continuous time, and powers are counted step by step"
            )
        self.program, self.assumed, self.first, self.uneven = program, assumed, first, uneven
        self.spectral = _known_matrices(program, spectral)
        self.rates: dict[TrainingRule, EntrySizes] = {}
        self.found: dict[QuantityAtStep, EntrySizes] = {}
        self.start: dict[tuple[str, Expr | None], EntrySizes] = {}
        self.rules: dict[tuple[str, Expr | None], tuple[Definition, IndexExpressions]] = {}
        self.multiplied: dict[Generator, list[EntrySizes]] = {}
        self.vectors = {parameter(v).name: v for v in program.vectors}
        for d in nonempty(program.causal_order()):
            for env in self.members(d.ranges):
                self.rules[d.name, self.site(d.lhs, env)] = (d, env)

    def counted(self, steps: int, until: Sequence[tuple[str, Expr | None]] = ()) -> Counted:
        """Return the powers of N of all fields and numbers after 0, 1, ..., ``steps`` updates.

        The count ends at the first step at which a quantity (name, layer) in ``until`` grows with N, or with
        a reason in ``stopped`` if a function has no power. Raises NotApplicable if the program does not have
        a quantity in ``until``.
        """
        for node in until:
            if node not in self.rules:
                place = "" if node[1] is None else f" at layer {node[1]}"
                raise NotApplicable(f"until: the program has no field or number {node[0]!r}{place}")
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
        return Counted(self.program, self.found, step, self.start, stopped, tuple(self.rules), steps)

    # -- layers and indices ------------------------------------------------------------------------------

    def members(self, ranges: tuple[IndexRange, ...]) -> list[IndexExpressions]:
        """Return all values of the indices of layers and ordered positions in ``ranges``.

        Each item is a mapping from index to number. Indices of samples do not distinguish sizes and are left
        out. Without other indices the list has one empty mapping.
        """
        members: list[IndexExpressions] = [{}]
        for r in ranges:
            if r.index in self.layer_indices:
                members = [
                    {**env, r.index: Integer(i)}
                    for env in members
                    for i in range(int(r.lower.subs(env)), int(r.upper.subs(env)) + 1)
                ]
        return members

    @cached_property
    def layer_indices(self) -> set[Symbol]:
        """Symbols of all indices of layers and of ordered positions in the program."""
        atoms = set()
        for d in self.program.definitions:
            atoms |= {d.lhs} | d.rhs.atoms(AppliedUndef)
        for w in self.program.trained():
            u = w.update
            for e in (u.vector,) if isinstance(w, TrainedVector) else (u.left, u.right):  # type: ignore[union-attr]
                atoms |= e.atoms(AppliedUndef)
        named = [a.args[0] for a in atoms if self.has_layer(str(a.func))]
        return {x for e in named for x in e.free_symbols}

    def ranges_of(self, w: TrainedMatrix | TrainedVector) -> tuple[IndexRange, ...]:
        """Return the ranges of the indices of a family of weights; empty for a single weight.

        For a family of matrices only the range of the layer is returned.
        """
        if isinstance(w, TrainedVector):
            return w.initial.indices
        return () if w.initial.index is None else (w.initial.index,)

    def has_layer(self, name: str) -> bool:
        """Return whether the first argument of the field ``name`` is a layer or an ordered position."""
        x = self.program.field_of(name)
        return x is not None and (x.layered or x.ordered)

    def site(self, atom: AppliedUndef, env: IndexExpressions) -> Expr | None:
        """Return the layer, or the ordered position, of a field as a number; None if it has no layer.

        ``env`` has the values of indices.
        """
        return atom.args[0].subs(env) if self.has_layer(str(atom.func)) else None

    def is_field(self, e: Expr, env: IndexExpressions) -> bool:
        """Return whether an expression is a field or number that the program defines at its layer.

        ``env`` has the values of the indices.
        """
        return isinstance(e, AppliedUndef) and (str(e.func), self.site(e, env)) in self.rules

    # -- values ------------------------------------------------------------------------------------------

    def value(self, node: QuantityAtStep) -> EntrySizes:
        """Return the size of a field or number at a step, as parts: powers of N with parities.

        ``node`` is (name, layer, step). Results are kept in memory. With ``assumed`` every part before
        training has the power 0.
        """
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
        """Return the parts that the count includes: all, or those of at most first order in the updates."""
        return tuple(p for p in parts if p.order <= 1) if self.first else parts

    def expression(self, e: Expr, env: IndexExpressions, step: int) -> EntrySizes:
        """Return the size of an expression in fields after ``step`` updates, entry by entry.

        The size is a list of parts: powers of N with parities. ``env`` has the values of the indices.
        """
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
        """Return the size of an expression that is not a sum, a matrix product, a mean or a plain number.

        The expression is a product, a power, a vector of weights, a field or a function of fields. The size
        is a list of parts: powers of N with parities. ``env`` has the values of the indices.
        """
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
        """Return whether an expression contains neither entries of vectors nor numbers computed from them."""
        names = {name for name, _ in self.rules} | {x.name for x in self.program.given}
        names |= {x.name for x in self.program.attributes} | set(self.vectors)
        if e.has(Product, Mean) or any(str(a.func) in names for a in e.atoms(AppliedUndef)):
            return False
        return not any(str(x) in self.vectors for x in e.free_symbols)

    def size(self, p: Population, env: IndexExpressions) -> Expr:
        """Return the exponent of N in the number of units of a population, 0 for inputs, which are given."""
        if p.given:
            return S.Zero
        return 1 + one_power(sympify(p.ratio).subs(env))

    # -- weights -----------------------------------------------------------------------------------------

    def matrix(self, e: Product, env: IndexExpressions, step: int) -> EntrySizes:
        """Return the size of a matrix product ``M(t) v`` after ``step`` updates, as a list of parts.

        A part is a power of N with parities. The size has the Gaussian part of the initial matrix, the
        responses to the opposite product, and ``c left (right . v)/N`` for every update ``c left right^T``.
        ``env`` has the values of the indices.
        """
        m = self.program.matrix_of(e)
        start, back = gaussian(m), e.transposed
        member = e.matrix.args[0].subs(env) if start.index is not None else S.Zero
        at = {start.index.index: member} if start.index is not None else {}
        summed_units, free_units = (start.rows, start.cols) if back else (start.cols, start.rows)
        v, size = self.vector_or_input(e.vector, env, step), self.size(summed_units, at)
        initial = sympify(start.variance).subs(at)
        random = initial != 0  # a matrix that starts at zero has updates only
        variance = one_power(initial)
        # The mean square of an entry is the variance divided by N. If the columns are those of given data, it
        # is the variance divided by a number that does not depend on N.
        power = variance - (S.Zero if start.cols.given else S.One)
        use, opposite = (start.name, member, back), (start.name, member, not back)
        parts = [self.source(use, p, (power + size) / 2) for p in v if random]
        response_power = size + (power - self.size(free_units, at)) / 2
        for b in self.multiplied.get(opposite, ()) if random else ():
            for q in b:
                deficit = (top(b) - q.power).expand()
                deficit = deficit if deficit.is_number else S.Zero
                driving = self.source(opposite, q, S.Zero)
                parts += [
                    replace(p.even((p.power + response_power - deficit).expand()), unknown=False)
                    * q.at(S.Zero)
                    for p in v
                    if not (p * driving).vanishes
                ]
        multiplied = self.multiplied.setdefault(use, [])
        if v not in multiplied:
            multiplied.append(v)
        if isinstance(m, TrainedMatrix):
            free_side, summed_side = (
                (m.update.right, m.update.left) if back else (m.update.left, m.update.right)
            )
            units = EntrySize(S.Zero if start.cols.given and not back else size - 1)

            def moved(env: IndexExpressions, past: int, factor_: EntrySize) -> EntrySizes:
                """Return the size of the product of one update of the matrix with the vector.

                ``past`` is the time of the gradient in the update, ``env`` has the values of the indices, and
                ``factor_`` is the factor of step over gradient, without its power of N.
                """
                left, right = (self.vector_or_input(x, env, past) for x in (free_side, summed_side))
                means = combined((p * q * units * factor_).mean(size) for p in right for q in v)
                return product(left, self.number(means))

            parts += self.learnt(m, at, tuple(at.values()), step, moved)
        return combined(parts)

    def learnt(
        self,
        w: TrainedMatrix | TrainedVector,
        at: IndexExpressions,
        member: tuple[Expr, ...],
        step: int,
        change_by: Callable[[IndexExpressions, int, EntrySize], EntrySizes],
    ) -> EntrySizes:
        """Return the size of the sum of the changes that all updates before a step make, as parts.

        ``w`` is the weight whose updates count; ``at`` and ``member`` are its indices in its family.
        ``change_by`` returns the parts of the change by one update, from the values of the indices, the time
        of the gradient, and the factor (step over gradient) without its power. The rate and the coefficient
        of the update are multiplied here.
        """
        name = member_name(w.name, member)
        changes: list[EntrySize] = []
        for past in range(step):
            slopes = self.step_factors(w, at, past)
            for inner in self.members(w.update.over):
                env = {**at, **inner}
                for when, slope in slopes:
                    coefficient = self.number(self.expression(w.update.coefficient, env, when))
                    prefactor = product(self.memory(w, env), coefficient, (slope,))
                    parts = product(prefactor, change_by(env, when, slope.at(S.Zero)))
                    changes += [x.due_to(name if self.first else None) for x in parts]
        return self.kept(tuple(changes))

    def step_factors(
        self, w: TrainedMatrix | TrainedVector, env: IndexExpressions, past: int
    ) -> list[tuple[int, EntrySize]]:
        """Return the gradients that enter one step of a weight: (their time, factor of step over gradient).

        ``past`` is the time of the step. The factor is a part: a power of N with parities. It is 1 for linear
        rules, whose memory is counted by :meth:`memory`. An entrywise rule with states contains earlier
        gradients.
        """
        rule = w.rule
        if not isinstance(rule, Entrywise):
            require_linear_rules([w], "counting powers of the width")
            return [(past, EntrySize())]
        times = range(past + 1)
        gradients = [self.gradient(w, env, k) for k in times]
        started = [combined(p for p in x if not (self.first and p.order)) for x in gradients]
        own_rule = replace(
            rule, Q=sympify(rule.Q).subs(env), states=tuple((x, e.subs(env)) for x, e in rule.states)
        )
        values = self.singular(w, env)
        sizes = [None if (p := top(x)) is None else p + values for x in started]
        size = step_powers(own_rule, sizes, one_power)[past]
        all_parts = combined(p for x in (started if rule.states else started[past:]) for p in x)
        largest = top(all_parts)
        if size is None or largest is None:
            return []
        parities = [p.odd for p in all_parts if (p.power - largest).expand() == 0]
        uneven = frozenset[Generator]()
        if not is_linear(rule):  # a nonlinear Q of a sum of an even and an odd part has no parity
            uneven = uneven.union(*(x ^ parities[0] for x in parities))
        largest += values
        slope = EntrySize((size - largest).expand(), mixed=uneven)
        return [(k, slope) for k in (times if rule.states else [past])]

    def singular(self, w: TrainedMatrix | TrainedVector, env: IndexExpressions) -> Expr:
        """Return the exponent of N in the ratio of singular values to entries of a gradient of fixed rank.

        It is half the power of ``rows columns`` for matrices whose rule acts on singular values, and 0 for
        others.
        """
        if w.name not in self.spectral or not isinstance(w, TrainedMatrix):
            return S.Zero
        return (self.size(w.initial.rows, env) + self.size(w.initial.cols, env)) / 2

    def gradient(self, w: TrainedMatrix | TrainedVector, env: IndexExpressions, step: int) -> EntrySizes:
        """Return the size of the gradient of an entry of a weight after ``step`` updates, as parts.

        Parts are powers of N with parities. The gradient is in the units of the rule of the weight.
        """
        u = w.update
        vectors = (u.left, u.right) if isinstance(u, Outer) else (u.vector,)
        summed: list[EntrySize] = []
        # The gradient is summed over the indices in `u.over`, before the rule of the weight is applied to it.
        for inner in self.members(u.over):
            at = {**env, **inner}
            front = self.number(self.expression(u.coefficient / u.outside, at, step))
            summed += product(front, *(self.vector_or_input(x, at, step) for x in vectors))
        return combined(summed)

    def source(self, use: Generator, p: EntrySize, gain: Expr) -> EntrySize:
        """Return the size of the Gaussian part of a matrix product, from one part of the vector.

        ``use`` is (name of the matrix, layer, whether transposed), ``p`` the part of the vector, and ``gain``
        the power of N that the matrix adds to that of ``p``. The result is odd under the sign change of a new
        source, which belongs to ``use`` and to the sources under which ``p`` is odd.
        Vectors without overlap have independent sources; a part of unknown parity is treated as overlapping
        with all vectors.
        """
        power = (p.power + gain).expand()
        if p.unknown:
            return p.even(power)
        kind = frozenset(g for g in p.odd if g[:3] not in self.uneven)
        return replace(p.even(power), odd=frozenset({(*use, kind)}))

    def vector_or_input(self, vector: Expr, env: IndexExpressions, step: int) -> EntrySizes:
        """Return the size of the vector that a matrix multiplies, as parts: powers of N with parities.

        Fixed inputs have entries of order one.
        """
        if any(self.program.given_of(str(a.func)) for a in vector.atoms(AppliedUndef)):
            return (EntrySize(),)
        return self.expression(vector, env, step)

    def number(self, parts: EntrySizes) -> EntrySizes:
        """Return the size of a number that multiplies an update, from its parts.

        If all orders in the updates count, only the powers of N are kept, without parities.
        """
        return parts if self.first else combined(EntrySize(p.power) for p in parts)

    def memory(self, w: TrainedMatrix | TrainedVector, env: IndexExpressions) -> EntrySizes:
        """Return the size in N of the factor of an update in a weight, such as the learning rate.

        The result has one part for each term of this factor, a number that contains no Gaussian source.
        Raises NotApplicable for a rule with noise.
        """
        if isinstance(w.rule, Entrywise):
            return tuple(EntrySize(x) for x in powers(w.rule.rate.subs(env)))
        if sympify(getattr(w.rule, "diffusion", 0)) != 0:
            raise NotApplicable(f"{w.name} is trained with noise, whose power of the width N is not counted")
        if w.rule not in self.rates:
            _, weight = w.rule.memory(t, s)
            self.rates[w.rule] = tuple(EntrySize(x) for x in powers(sympify(weight)))
        return self.rates[w.rule]

    def vector(self, v: Any, e: Expr, env: IndexExpressions, step: int) -> EntrySizes:
        """Return the size of a vector of weights after ``step`` updates: initial value and changes, as parts.

        ``v`` is the vector or its family, ``e`` the member that is used, and ``env`` has the values of the
        indices. A part is a power of N with parities.
        """
        initial = parameter(v)
        at = {r.index: x.subs(env) for r, x in zip(initial.indices, e.args, strict=False)}
        member = tuple(x for i, x in at.items() if i in self.layer_indices)
        variance = sympify(initial.variance).subs(at)
        kind = frozenset({(initial.name, member)})
        parts = [EntrySize(x / 2, kind) for x in powers(variance)] if variance != 0 else []
        if isinstance(v, TrainedVector):
            direction = v.update.vector
            parts += self.learnt(
                v, at, member, step, lambda env, past, _: self.expression(direction, env, past)
            )
        return self.kept(combined(parts))

    # -- functions ---------------------------------------------------------------------------------------

    def function(self, e: Expr, env: IndexExpressions, step: int) -> EntrySizes:
        """Return the size of a function of fields, not a polynomial, as parts: powers of N with parities.

        ``env`` has the values of the indices, and ``step`` is the number of updates. Raises NotApplicable for
        an expression without fields.
        """
        atoms = sorted((a for a in e.atoms(AppliedUndef) if self.is_field(a, env)), key=str)
        if not atoms:
            raise NotApplicable(
                f"the expression {e} contains no field, so that its power of the width N is not counted"
            )
        values = tuple(self.expression(a, env, step) for a in atoms)
        return applied(shape_of(e, atoms), values, self.first)


def one_power(number: Expr) -> Expr:
    """Return the exponent p of a number that is proportional to ``N^p``.

    Raises NotApplicable for a sum of several powers of N.
    """
    exponents = powers(number)
    if len(exponents) != 1:
        raise NotApplicable(
            f"the factor {number} is not counted: it must be proportional to a single power of the width N, "
            "and not be a sum of several"
        )
    return exponents[0]


# -- functions of fields -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Properties of a function of fields: parities, homogeneity, lowest power at zero.

    Attributes
    ----------
    name
        Name of the function.
    plain
        The function of placeholder symbols; None if it is undefined.
    degree
        Degree of a homogeneous function (relu 1, Heaviside 0); None for others.
    lowest
        Lowest power in its expansion at zero, 0 if it is not determined.
    """

    name: str
    plain: Expr | None = None
    degree: Expr | None = None
    lowest: int = 0

    def parity(self, which: frozenset[int]) -> int:
        """Return the parity under the sign change of the arguments ``which``: 1 even, -1 odd, 0 neither."""
        return 0 if self.plain is None else _parity(self.plain, which)


def applied(shape: Shape, arguments: tuple[EntrySizes, ...], first: bool = False) -> EntrySizes:
    """Return the size of a function of fields: its value without training, and its change to second order.

    Sizes are lists of parts: powers of N with parities. ``shape`` has the properties of the function, and
    ``arguments`` are the parts of each field. If ``first`` is true, updates are infinitesimal. Otherwise the
    function is not expanded in updates of a field that grows with N, and its degree gives the power of the
    change. Raises :class:`Grows` if a field grows with N and the function is not homogeneous.
    """
    start = [tuple(p for p in parts if p.order == 0) for parts in arguments]
    base = top(p for parts in start for p in parts)
    size = base if first else top(p for parts in arguments for p in parts)
    grows = size is not None and size.is_positive
    if grows and shape.degree is None:
        raise Grows(
            f"{shape.name} is not known to be a homogeneous function, so that the power of the width N of "
            f"its value is not known for a field that grows as N^({size})"
        )
    result = [_signature(shape, start, 0).at(_size_of(shape, base))]
    changes = [(i, p) for i, parts in enumerate(arguments) for p in parts if p.order]
    # The change of a field that grows with N may exceed its initial value. Unless updates are infinitesimal
    # (`first`), the function of this field is then not expanded in the change, and the parity of the result
    # is unknown.
    if grows and not first:
        changed = [
            EntrySize(shape.degree * p.power, updated_by=p.updated_by, order=p.order, unknown=True)
            for _, p in changes
        ]
        return combined([*result, *changed])
    first_derivative = _signature(shape, start, 1).at(_size_of(shape, base, 1))
    second_derivative = _signature(shape, start, 2).at(_size_of(shape, base, 2))
    result += [first_derivative * p for _, p in changes]
    result += [second_derivative * p * q for (_, p), (_, q) in combinations_with_replacement(changes, 2)]
    return combined(result)


def _size_of(shape: Shape, base: Expr | None, derivative: int = 0) -> Expr:
    """Return the exponent of N in a function, or its derivative, where its argument is of order ``N^base``.

    ``derivative`` is the order of the derivative. ``base`` is None if the argument is zero. The result is 0
    for None and for a base with symbols.
    """
    if base is None or base == 0 or base.free_symbols:
        return S.Zero
    if shape.degree is not None:
        return (shape.degree - derivative) * base if shape.degree != 0 or derivative == 0 else S.Zero
    return max(shape.lowest - derivative, 0) * base


def _signature(shape: Shape, start: list[EntrySizes], derivative: int) -> EntrySize:
    """Return the parities of a function, or of its derivative, under sign changes of Gaussian sources.

    They are returned as a part with the power 0. ``start`` are the parts of the arguments without training,
    whose sources are considered. The parity of a derivative of order ``derivative`` is known only for a
    function of one argument, where each derivative reverses it.
    """
    sources = {g for parts in start for p in parts for g in p.odd | p.mixed}
    odd, mixed = set(), set()
    for g in sources:
        flipped = frozenset(i for i, parts in enumerate(start) if parts and all(g in p.odd for p in parts))
        touched = {i for i, parts in enumerate(start) if any(g in p.odd | p.mixed for p in parts)}
        has_parity = touched == flipped and (derivative == 0 or len(start) == 1)
        parity = shape.parity(flipped) * (-1) ** derivative if has_parity else 0
        if parity == -1:
            odd.add(g)
        elif parity == 0:
            mixed.add(g)
    return EntrySize(odd=frozenset(odd), mixed=frozenset(mixed))


def shape_of(e: Expr, atoms: list[Any]) -> Shape:
    """Return parities, homogeneity and lowest power at zero of a function ``e`` of the fields ``atoms``.

    An undefined function has no parity and a value at zero. Homogeneity and lowest power are determined for
    functions of one field only. Raises NotApplicable for more than four fields.

    >>> from sympy import Function, tanh
    >>> h = Function("h")(Symbol("t"))
    >>> tanh_, relu = shape_of(tanh(h), [h]), shape_of(Max(0, h), [h])
    >>> tanh_.parity(frozenset({0})), tanh_.degree, relu.degree, relu.parity(frozenset({0}))
    (-1, None, 1, 0)
    """
    if len(atoms) > len(_SLOTS):
        raise NotApplicable(
            f"the power of the width N of {e} is not counted: a function may depend on at most {len(_SLOTS)} "
            "fields"
        )
    plain = None if isinstance(e, Derivative) else e.xreplace(dict(zip(atoms, _SLOTS, strict=False)))
    if plain is None or plain.atoms(AppliedUndef) or plain.has(Derivative):
        return Shape(str(e.func))
    return Shape(str(e.func), plain, *(_growth(plain) if len(atoms) == 1 else ()))


_SLOTS = tuple(Dummy(f"x{i}", real=True) for i in range(4))


@lru_cache(maxsize=256)
def _parity(plain: Expr, which: frozenset[int]) -> int:
    """Return the parity of a function under the sign change of some of its arguments.

    It is 1 for even, -1 for odd, and 0 if neither is found. ``plain`` is the function of placeholder symbols,
    and ``which`` has the numbers of the arguments.
    """
    other = plain.xreplace({_SLOTS[i]: -_SLOTS[i] for i in which})
    return next((k for k in (1, -1) if expand(other - k * plain) == 0), 0)


@lru_cache(maxsize=256)
def _growth(plain: Expr) -> tuple[Expr | None, int]:
    """Return (degree, lowest): how a function of one argument behaves at large and at small argument.

    The degree is that of a homogeneous function, None for other functions. The second number is the lowest
    power in the expansion at zero, up to 3. It is 0 for higher ones, for homogeneous functions and for
    functions that contain Max, Abs, Heaviside or sign.
    """
    argument = _SLOTS[0]
    with suppress(NotHomogeneous):
        return exponent(plain, {argument: S.One}), 0
    if plain.has(Max, Abs, Heaviside, sign):
        return None, 0
    return None, next((k for k in range(4) if plain.diff(argument, k).subs(argument, 0) != 0), 0)
