"""Transfer functions: how the fields of one population answer a push of one of their equations.

In a linear theory a source enters an equation, and everything that follows is linear with kernels that are
order parameters.  Pushing the equation of x by one unit at time s and following the push through all
equations of the population gives ``H_y_x(t, s)`` for each field y: the derivative of the equations, nothing
else.  For online descent this is eq. 81 and 111 of linear2025; the propagators R_vr and R_vu of eq. 13 are
``-H_v_v`` and ``H_v_h0``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sympy import (
    DiracDelta,
    Eq,
    Expr,
    Function,
    Integral,
    KroneckerDelta,
    Mul,
    S,
    Sum,
    Symbol,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.sums import addends
from derive.calculus.symbols import IndexRange, s, t
from derive.errors import NotApplicable
from derive.linear.operators import Kernel, operator, solve_for
from derive.theory import Equation, Theory
from derive.theory.names import primed

between = Symbol("s_1", **s.assumptions0)
"""A time between the push and the answer."""
START = operator("O")
"""The operator that puts the value at time 0 at all times."""


@dataclass(frozen=True)
class Transfer:
    """Answers to a unit push of the equation of ``into`` at time s.

    ``equations`` determine ``H_y_into(.., t, s)`` for every field y of the population, ``reduced`` are the
    same with as many of them put into the others as need no further sum.  ``operators`` are the answers in
    closed form, words in ``kernels`` whose inverses exist because memory is causal.
    """

    theory: Theory
    into: str
    equations: tuple[Eq, ...]
    operators: dict[str, Expr]
    kernels: tuple[Kernel, ...]

    def answer(self, name: str) -> Expr:
        """The function that says how the field called ``name`` answers.  Raises KeyError if there is none."""
        return self.equation(name).lhs

    def equation(self, name: str) -> Eq:
        """The equation of the answer of ``name``.  Raises KeyError if there is none."""
        for e in self.equations:
            if str(e.lhs.func) == f"H_{name}_{self.into}":
                return e
        raise KeyError(f"no answer of {name}; there are {', '.join(str(e.lhs) for e in self.equations)}")

    @property
    def reduced(self) -> tuple[Eq, ...]:
        """Without the answers that others need at equal time only, or that have no memory."""
        todo = {e.lhs: e.rhs for e in self.equations}
        for instant in (True, False):
            for lhs in list(todo):
                if lhs != self.answer(self.into) and self._dispensable(lhs, todo, instant):
                    rhs = todo.pop(lhs)
                    todo = {x: _substituted(e, lhs, rhs) for x, e in todo.items()}
        return tuple(Eq(x, e, evaluate=False) for x, e in todo.items())

    @staticmethod
    def _dispensable(lhs: AppliedUndef, todo: dict[AppliedUndef, Expr], instant: bool) -> bool:
        """Has it no memory (``instant``), or do the others need it at equal time only?"""
        rhs, others = todo[lhs], [e for x, e in todo.items() if x != lhs]
        met = [a for e in others for a in e.atoms(AppliedUndef) if a.func == lhs.func]
        simple = not rhs.has(Sum, Integral, KroneckerDelta, DiracDelta)
        fits = simple if instant else all(a.args[-2] in (t, S.Zero) for a in met)
        return bool(met) and not rhs.has(lhs.func) and fits


def transfer(theory: Theory, into: str) -> Transfer:
    """How the fields that live with ``into`` answer a unit push of its equation at time s.

    Raises :class:`NotApplicable` when the fields are of layers, or an equation is not linear in them.

    >>> from derive.theory import mean_field
    >>> from derive.reduce.data import instant_responses
    >>> from derive.program.networks.isotropic import isotropic
    >>> answers = transfer(instant_responses(mean_field(isotropic(data="online"))), "v")
    >>> print(answers.reduced[0].rhs.args[0])
    KroneckerDelta(s, t)
    >>> print(transfer(mean_field(isotropic()), "v").operators["v"])
    (1 - K_v_h0*R_Delta)**(-1)
    """
    rows = tuple(population(theory, into))
    found = tuple(Eq(_answer(theory, e, into), _pushed(theory, rows, e, into), evaluate=False) for e in rows)
    system, kernels = _operators(theory, rows, into)
    solved = {e.name: solve_for(system, operator(e.name)) for e in rows}
    answers = {x: _started(_coefficient(word), kernels) for x, word in solved.items()}
    return Transfer(theory, into, found, answers, tuple(kernels.values()))


def population(theory: Theory, name: str) -> Iterator[Equation]:
    """The equations of the fields on the same units as ``name``."""
    field = theory.program.field_of(name)
    if field is None or field.layered or field.ordered:
        raise NotApplicable(f"{name} is not a field of one place: its transfer function would join layers")
    for e in theory.equations:
        other = theory.program.field_of(e.name)
        if other is not None and other.population == field.population:
            if not isinstance(e.lhs, AppliedUndef):
                raise NotApplicable(f"{e.lhs} is given by its rate of change")
            yield e


def units(theory: Theory) -> set[Symbol]:
    """Indices of the unit itself, at which attributes are taken."""
    names = {x.name for x in theory.program.attributes}
    atoms = [a for d in theory.program.definitions for a in d.rhs.atoms(AppliedUndef)]
    return {a.args[0] for a in atoms if str(a.func) in names}


def pushed_indices(theory: Theory, e: Equation) -> tuple[Symbol, ...]:
    """The indices of the push, other than the unit's own: those of the equation, primed."""
    return tuple(primed(r.index) for r in e.ranges if r.index not in units(theory))


def _pushed(theory: Theory, rows: tuple[Equation, ...], e: Equation, into: str) -> Expr:
    """The derivative of one equation."""
    total = S.Zero
    if e.name == into:
        own = [r.index for r in e.ranges if r.index not in units(theory)]
        total += Mul(*[KroneckerDelta(i, primed(i)) for i in own]) * _delta(theory)
    names = {x.name for x in rows}
    end = pushed_indices(theory, e)
    for x in e.terms:
        for part in addends(x.expr):
            moving = [a for a in part.atoms(AppliedUndef) if str(a.func) in names]
            if len(moving) > 1:
                raise NotApplicable(f"{part} is not linear in the fields of {e.name}")
            if moving:
                a = moving[0]
                doubles = {j: primed(j) for j in end if part.has(j)}
                there = part.xreplace(doubles).xreplace({s: between})
                b = a.xreplace(doubles).xreplace({s: between})
                total += there.xreplace({b: _answer_at(b, end, into)})
    return total


def _answer(theory: Theory, e: Equation, into: str) -> AppliedUndef:
    return _answer_at(e.lhs, pushed_indices(theory, e), into)


def _answer_at(a: AppliedUndef, end: tuple[Symbol, ...], into: str) -> AppliedUndef:
    return Function(f"H_{a.func}_{into}")(*a.args[:-1], *end, a.args[-1], s)


def _delta(theory: Theory) -> Expr:
    return KroneckerDelta(t, s) if theory.program.rule.discrete else DiracDelta(t - s)


def _substituted(e: Expr, lhs: AppliedUndef, rhs: Expr) -> Expr:
    def put(x: AppliedUndef) -> Expr:
        return _at_start(rhs.xreplace(dict(zip(lhs.args, x.args, strict=True))))

    return e.replace(lambda x: isinstance(x, AppliedUndef) and x.func == lhs.func, put)


def _at_start(e: Expr) -> Expr:
    """Memory is empty at time 0."""
    return e.replace(
        lambda x: isinstance(x, Sum | Integral) and (x.limits[-1][2] - x.limits[-1][1]) in (-1, 0),
        lambda x: S.Zero if isinstance(x, Integral) or x.limits[-1][2] < x.limits[-1][1] else x,
    )


# -- in closed form ------------------------------------------------------------------------------------------


def _operators(
    theory: Theory, rows: tuple[Equation, ...], into: str
) -> tuple[dict[Expr, Expr], dict[Expr, Kernel]]:
    """The equations between operators, with the unit push as the last letter of every word."""
    kernels: dict[Expr, Kernel] = {}
    system = {}
    for e in rows:
        value = PUSH if e.name == into else S.Zero
        for a, kernel in _kernels(rows, e):
            value += _word(theory, e, a, kernel, kernels) * operator(str(a.func))
        system[operator(e.name)] = value
    return system, kernels


PUSH = operator("push")


def _kernels(rows: tuple[Equation, ...], e: Equation) -> list[tuple[AppliedUndef, Expr]]:
    """For each field and time span that an equation contains: the field, and the kernel in front of it."""
    names = {x.name for x in rows}
    found: dict[tuple[AppliedUndef, tuple[Any, ...]], Expr] = {}
    for x in e.terms:
        for part in addends(x.expr):
            for a in part.atoms(AppliedUndef):
                if str(a.func) in names:
                    body, limits = _inside(part)
                    key = a, tuple(limits)
                    found[key] = found.get(key, S.Zero) + body / a
    return [(a, Sum(kernel, *limits) if limits else kernel) for (a, limits), kernel in found.items()]


def _inside(e: Expr) -> tuple[Expr, list[Any]]:
    limits: list[Any] = []
    while isinstance(e, Sum | Integral):
        limits += list(e.limits)
        e = e.function
    return e, limits


def _word(
    theory: Theory,
    e: Equation,
    a: AppliedUndef,
    kernel: Expr,
    kernels: dict[Expr, Kernel],
) -> Expr:
    body, limits = _inside(kernel)
    time = a.args[-1]
    if time != s and not kernel.has(t, Sum):
        return kernel if time == t else kernel * START
    if time == 0:
        raise NotApplicable(f"{e.lhs} uses {a} with a factor that changes in time")
    plain = isinstance(body, AppliedUndef) and time == s
    letter = operator(str(body.func) if plain else f"K_{e.name}_{a.func}")
    strict = any(lim[0] == s and lim[2] == t - 1 for lim in limits)
    entry = body if plain else Function(f"K_{e.name}_{a.func}")(*e.lhs.args[:-1], *a.args[:-1], t, s)
    row = tuple(r for r in e.ranges if e.lhs.has(r.index))
    col = tuple(IndexRange(*lim) for lim in limits if lim[0] != s)
    value = body if time == s else body * _delta(theory)
    kernels[letter] = Kernel(letter, entry, value, row, col, "strict" if strict else "past")
    return letter


def _coefficient(word: Expr) -> Expr:
    """What stands in front of the push."""
    return sympify(word).xreplace({PUSH: S.One})


def _started(word: Expr, kernels: dict[Expr, Kernel]) -> Expr:
    """A kernel of strictly earlier times is empty at time 0, so that START in front of it gives 0."""
    strict = {x for x, k in kernels.items() if k.causal == "strict"}

    def empty(e: Expr) -> bool:
        letters = e.args_cnc()[1] if e.is_Mul else []
        return any(a == START and b in strict for a, b in pairwise(letters))

    return sympify(word).replace(empty, lambda _: S.Zero)
