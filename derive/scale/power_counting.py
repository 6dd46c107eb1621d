"""Powers of the width, counted on a program: of its fields at the start, and of what training adds to them.

Nothing but the program is read: which vector each matrix meets, the sizes of the populations, the updates.
For a matrix of entries ``N^p/N`` in mean square that acts on ``n`` units,

- the Gaussian part of ``M v`` is a sum of n independent terms, of order ``sqrt(n N^(p-1))`` times v,
- its response is ``n N^(p-1)`` times the derivative of v by the opposite use ``M^T b``, times b,
- an update ``c left right^T`` gives ``c left (right . v)``, where the inner product is n times a mean.

A mean is of order one unless a source of the conditioning rule that it is odd in makes it vanish; then it is
of order ``n^(-1/2)``.  The width is counted in the symbol ``N``, beside the factors that the language of
programs implies (entries of variance 1/N, means, ``right . v / N``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from sympy import (
    Add,
    Expr,
    Integer,
    Mul,
    Pow,
    S,
    Sum,
    Symbol,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program.program import Definition, Program, gaussian, parameter
from derive.program.training import TrainedMatrix, TrainedVector, TrainingRule
from derive.program.words import IndexRange, Mean, Population, Product, s, t
from derive.scale.power_counting_functions import applied, shape_of
from derive.scale.power_counting_result import Counted, Node
from derive.scale.power_counting_values import Generator, Grows, Part, Parts, combined, powers, product, top
from derive.theory.applications import nonempty

Env = Mapping[Symbol, Expr]


def count_powers(
    program: Program,
    steps: int = 1,
    *,
    assumed: bool = False,
    first: bool = False,
    until: Sequence[tuple[str, Expr | None]] = (),
) -> Counted:
    """Count powers of N at the start and after 1, ..., ``steps`` updates.

    The depth must be a number.  With ``assumed`` every field is taken to be of order one once its own power
    at the start has been read (the step of an induction over layers), and errors are as well.  With ``first``
    only the first order in the updates is kept.  With ``until`` the count ends with the first step at which
    one of these fields or numbers grows.

    Raises :class:`NotApplicable` for a symbolic depth, continuous fields, noise, and functions of N that are
    no powers.

    >>> from derive.program import mlp
    >>> counted = count_powers(mlp(2, "tanh"))
    >>> counted.power("h", 2), counted.change("h", 2), counted.power("f"), counted.change("f")
    (0, 0, -1/2, 0)
    """
    uneven: frozenset[Generator] = frozenset()
    while True:
        found = Counting(program, assumed, first, uneven).counted(steps, until)
        seen = uneven | {g[:3] for parts in found.found.values() for p in parts for g in p.mixed}
        if seen == uneven:
            return found
        uneven = seen


class Counting:
    """One count over a program; :func:`count_powers` runs it.

    ``uneven`` are sources under which something is neither even nor odd; they tell no vectors apart.
    """

    def __init__(
        self,
        program: Program,
        assumed: bool = False,
        first: bool = False,
        uneven: frozenset[Generator] = frozenset(),
    ) -> None:
        if not sympify(program.depth).is_Integer:
            raise NotApplicable(f"depth = {program.depth}: powers are counted for a number of layers")
        if any(d.evolves for d in program.definitions):
            raise NotApplicable("fields that evolve in continuous time: powers are counted step by step")
        self.program, self.assumed, self.first = program, assumed, first
        self.uneven = uneven
        self.stopped: str | None = None
        self.rates: dict[TrainingRule, Parts] = {}
        self.found: dict[Node, Parts] = {}
        self.start: dict[tuple[str, Expr | None], Parts] = {}
        self.rules: dict[tuple[str, Expr | None], tuple[Definition, Env]] = {}
        self.met: dict[Generator, list[Parts]] = {}
        self.weights = {gaussian(m).name: m for m in program.matrices}
        self.vectors = {parameter(v).name: v for v in program.vectors}
        for d in nonempty(program.causal_order()):
            for env in self.members(d.ranges):
                self.rules[d.name, self.site(d.lhs, env)] = (d, env)

    def counted(self, steps: int, until: Sequence[tuple[str, Expr | None]] = ()) -> Counted:
        """Count the start and ``steps`` updates; what cannot be counted any more says why."""
        step = 0
        try:
            for step in range(steps + 1):
                for name, site in self.rules:
                    self.value((name, site, step))
                sizes = [top(self.found[name, site, step]) for name, site in until]
                if any(p is not None and p.is_positive for p in sizes):
                    break
        except Grows as reason:
            self.stopped = str(reason)
        found, start = dict(self.found), dict(self.start)
        return Counted(self.program, found, step, start, self.stopped, tuple(self.rules))

    # -- where things are --------------------------------------------------------------------------------

    def members(self, ranges: tuple[IndexRange, ...]) -> list[Env]:
        """Values of the indices that tell fields apart: those with numbers as ends that place a field."""
        found: list[Env] = [{}]
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
        """The indices of layers and of order."""
        atoms = set()
        for d in self.program.definitions:
            atoms |= {d.lhs} | d.rhs.atoms(AppliedUndef)
        for w in self.program.trained():
            u = w.update
            for e in (u.vector,) if isinstance(w, TrainedVector) else (u.left, u.right):  # type: ignore[union-attr]
                atoms |= e.atoms(AppliedUndef)
        named = [a.args[0] for a in atoms if self.placed(str(a.func))]
        return {x for e in named for x in e.free_symbols}

    def placed(self, name: str) -> bool:
        x = self.program.field_of(name)
        return x is not None and (x.layered or x.ordered)

    def site(self, atom: AppliedUndef, env: Env) -> Expr | None:
        """The layer of a field, where it has one."""
        return atom.args[0].subs(env) if self.placed(str(atom.func)) else None

    # -- values ------------------------------------------------------------------------------------------

    def value(self, node: Node) -> Parts:
        """The parts of a field or number at a step."""
        if node not in self.found:
            name, site, step = node
            d, env = self.rules[name, site]
            parts = self.expression(d.rhs, env, step)
            if step == 0 and self.assumed:
                self.start[name, site] = parts
                parts = tuple(dict.fromkeys(p.at(S.Zero) for p in parts))
            self.found[node] = parts
        return self.found[node]

    def kept(self, parts: Parts) -> Parts:
        """Without what is of second order, if only the first counts."""
        return tuple(p for p in parts if p.order <= 1) if self.first else parts

    def expression(self, e: Expr, env: Env, step: int) -> Parts:
        """The parts of an expression in fields, entry by entry."""
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
            return tuple(Part(x) for x in powers(e.subs(env).subs(t, step)))
        if isinstance(e, Mul):
            factors = [self.expression(x, env, step) for x in e.args]
            return self.kept(product(*factors))
        if isinstance(e, Pow) and e.exp.is_Integer and e.exp.is_positive:
            return self.kept(product(*[self.expression(e.base, env, step)] * int(e.exp)))
        for v in self.program.vectors:
            if e in parameter(v).uses(e):
                return self.vector(v, e, env, step)
        if isinstance(e, AppliedUndef) and (str(e.func), self.site(e, env)) in self.rules:
            now = 0 if e.args[-1] == 0 else step
            return self.value((str(e.func), self.site(e, env), now))
        return self.kept(self.function(e, env, step))

    def is_number(self, e: Expr) -> bool:
        """Does the expression hold neither entries nor numbers that are computed?"""
        names = {name for name, _ in self.rules} | {x.name for x in self.program.given}
        names |= {x.name for x in self.program.attributes} | set(self.vectors)
        if e.has(Product, Mean) or any(str(a.func) in names for a in e.atoms(AppliedUndef)):
            return False
        return not any(str(x) in self.vectors for x in e.free_symbols)

    def size(self, p: Population, env: Env) -> Expr:
        """The power of the number of units; given inputs have a fixed number."""
        if p.given:
            return S.Zero
        (ratio,) = powers(sympify(p.ratio).subs(env))
        return 1 + ratio

    # -- weights -----------------------------------------------------------------------------------------

    def matrix(self, e: Product, env: Env, step: int) -> Parts:
        """``M(t) v``: the Gaussian part, responses, memory."""
        m = self.program.matrix_of(e)
        initial, back = gaussian(m), e.transposed
        member = e.matrix.args[0].subs(env) if initial.index is not None else S.Zero
        at = {initial.index.index: member} if initial.index is not None else {}
        (cols, rows) = (initial.rows, initial.cols) if back else (initial.cols, initial.rows)
        v = self.given_or(e.vector, env, step)
        (variance,) = powers(sympify(initial.variance).subs(at))
        base = S.Zero if initial.cols.given else S.One  # the size that the variance is divided by
        gain = (variance - base + self.size(cols, at)) / 2
        gained = (variance - base + self.size(rows, at)) / 2
        parts = [self.source((initial.name, member, back), p, gain) for p in v]
        pushed = variance - base + self.size(cols, at) - gained
        opposite: Generator = (initial.name, member, not back)
        for b in self.met.get(opposite, ()):
            largest = top(b)
            for q in b:
                less = (largest - q.power).expand() if largest is not None else S.Zero
                less = less if less.is_number else S.Zero
                drive = self.source(opposite, q, S.Zero)
                found = [p for p in v if not (p * drive).vanishes]
                parts += [
                    Part((p.power + pushed - less).expand(), owed=p.owed, order=p.order) * q.at(S.Zero)
                    for p in found
                ]
        own: Generator = (initial.name, member, back)
        if v not in self.met.setdefault(own, []):
            self.met[own].append(v)
        if isinstance(m, TrainedMatrix):
            for past in range(step):
                parts += self.update(m, member, e, v, past)
        return combined(parts)

    def source(self, use: Generator, p: Part, gain: Expr) -> Part:
        """The Gaussian part of a product.  Vectors that do not overlap have independent sources.

        An unknown part counts as overlapping with everything.
        """
        power = (p.power + gain).expand()
        if p.unknown:
            return Part(power, owed=p.owed, order=p.order, unknown=True)
        kind = frozenset(g for g in p.odd if g[:3] not in self.uneven)
        return Part(power, frozenset({(*use, kind)}), owed=p.owed, order=p.order)

    def given_or(self, vector: Expr, env: Env, step: int) -> Parts:
        """The vector that a matrix meets; fixed inputs have entries of order one."""
        if any(self.program.given_of(str(a.func)) for a in vector.atoms(AppliedUndef)):
            return (Part(),)
        return self.expression(vector, env, step)

    def update(self, m: TrainedMatrix, member: Expr, e: Product, v: Parts, past: int) -> list[Part]:
        """What the update made at ``past`` makes of the vector: ``c left (right . v)/N``."""
        u, index = m.update, m.initial.index
        at: dict[Symbol, Expr] = {index.index: member} if index is not None else {}
        stays, meets = (u.right, u.left) if e.transposed else (u.left, u.right)
        acts = m.initial.rows if e.transposed else m.initial.cols
        rate = self.memory(m, past)
        found: list[Part] = []
        for inner in self.members(u.over):
            env = {**at, **inner}
            whole = product(rate, self.number(self.expression(u.coefficient, env, past)))
            left, right = self.given_or(stays, env, past), self.given_or(meets, env, past)
            size = self.size(acts, at)
            units = S.Zero if m.initial.cols.given and not e.transposed else size - 1
            overlap = combined((p * q).mean(size).times(units) for p in right for q in v)
            name = self.called(m, member) if self.first else None
            found += [x.due_to(name) for x in product(whole, left, self.number(overlap))]
        return list(self.kept(tuple(found)))

    def number(self, parts: Parts) -> Parts:
        """A number that multiplies an update: where all orders count, only its size matters."""
        return parts if self.first else combined(Part(p.power) for p in parts)

    def memory(self, w: TrainedMatrix | TrainedVector, past: int) -> Parts:
        """The power of the rate with which updates enter the weight."""
        if sympify(getattr(w.rule, "diffusion", 0)) != 0:
            raise NotApplicable(f"{w.name} is trained with noise, whose power of N is not counted")
        if w.rule not in self.rates:
            _, weight = w.rule.memory(t, s)
            self.rates[w.rule] = tuple(Part(x) for x in powers(sympify(weight)))
        return self.rates[w.rule]

    def vector(self, v: Any, e: Expr, env: Env, step: int) -> Parts:
        """A vector parameter: its start, and its updates."""
        initial = parameter(v)
        at = {r.index: x.subs(env) for r, x in zip(initial.indices, e.args, strict=False)}
        member = tuple(x for i, x in at.items() if i in self.places)
        (variance,) = powers(sympify(initial.variance).subs(at))
        parts = [Part(variance / 2, frozenset({(initial.name, member)}))]
        if sympify(initial.variance) == 0:
            parts = []
        if isinstance(v, TrainedVector):
            u = v.update
            for past in range(step):
                for inner in self.members(u.over):
                    here = {**at, **inner}
                    moved = product(
                        self.memory(v, past),
                        self.number(self.expression(u.coefficient, here, past)),
                        self.expression(u.vector, here, past),
                    )
                    parts += [x.due_to(self.called(v, *member) if self.first else None) for x in moved]
        return self.kept(combined(parts))

    def called(self, w: TrainedMatrix | TrainedVector, *member: Expr) -> str:
        """The weight, with its member if it is one of a family."""
        shown = [x for x in member if not (isinstance(w, TrainedMatrix) and w.initial.index is None)]
        return f"{w.name}({', '.join(map(str, shown))})" if shown else w.name

    # -- functions ---------------------------------------------------------------------------------------

    def function(self, e: Expr, env: Env, step: int) -> Parts:
        """A function of fields that is no polynomial."""
        atoms = [a for a in e.atoms(AppliedUndef) if (str(a.func), self.site(a, env)) in self.rules]
        atoms.sort(key=str)
        if not atoms:
            raise NotApplicable(f"{e}: powers of N are not known of it")
        values = tuple(self.expression(a, env, step) for a in atoms)
        return applied(shape_of(e, atoms), values, self.first)
