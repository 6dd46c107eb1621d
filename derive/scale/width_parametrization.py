"""Which width parametrisations train well: conditions on (a, b, c, d), counted on a program and solved.

    width_constraints(mlp(3, "tanh")).family()

Each requirement of selfconsistent2023 appendix N becomes linear equations: powers of N that
:mod:`derive.scale.power_counting` finds must be zero (at most zero, where only stability is asked).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sympy import Eq, Expr, Integer, Le, Matrix, S, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import exact
from derive.errors import NotApplicable
from derive.program.networks.sizes import Listed
from derive.program.program import Definition, Program, gaussian, parameter
from derive.program.words import Mean
from derive.scale.parametrization import (
    alone,
    as_written,
    families,
    parametrized,
    symbols_of,
    weights,
)
from derive.scale.parametrization_symmetry import symmetries
from derive.scale.power_counting import count_powers
from derive.scale.power_counting_result import Counted

FREE = Symbol("a", real=True)
FIELDS = "fields of order one at the start"
OUTPUTS = "outputs that move in time of order one"
FEATURES = "fields that move by order one"
RAW_RATE = "raw learning rate of order one"
REQUIREMENTS = (FIELDS, OUTPUTS, FEATURES, RAW_RATE)


@dataclass(frozen=True)
class Condition:
    """``what`` is of order ``N^power``; ``weight`` is the one whose updates bring it, if it is a change."""

    requirement: str
    what: str
    power: Expr
    weight: str | None = None

    @property
    def equation(self) -> Eq:
        """It neither blows up nor vanishes."""
        return Eq(self.power, 0, evaluate=False)

    @property
    def bound(self) -> Le:
        """It does not blow up."""
        return Le(self.power, 0, evaluate=False)


@dataclass(frozen=True)
class Constraints:
    """What a program asks of its exponents.  See :func:`width_constraints`."""

    program: Program
    conditions: tuple[Condition, ...]

    @property
    def unknowns(self) -> tuple[Expr, ...]:
        """The exponents, by weight, then c and d."""
        return unknowns(self.program)

    def of(self, requirement: str) -> tuple[Condition, ...]:
        """The conditions of one requirement.  Raises ``KeyError`` for a name that is none."""
        if requirement not in REQUIREMENTS:
            raise KeyError(f"{requirement!r}: must be one of {', '.join(map(repr, REQUIREMENTS))}")
        return tuple(x for x in self.conditions if x.requirement == requirement)

    @property
    def equations(self) -> tuple[Eq, ...]:
        """Every different equation of the first three requirements."""
        return tuple(dict.fromkeys(x.equation for x in self.conditions if x.requirement != RAW_RATE))

    @property
    def inequalities(self) -> tuple[Le, ...]:
        """The same as bounds, for parametrisations in which something may vanish but nothing blows up.

        Those of the first update are counted with fields of order one; :meth:`classify` follows the others.
        """
        return tuple(dict.fromkeys(x.bound for x in self.conditions if x.requirement != RAW_RATE))

    def solution(self, *requirements: str) -> dict[Expr, Expr]:
        """The general solution of some requirements; exponents that stay free are not in it.

        Raises :class:`NotApplicable` where no exponents fulfil them.
        """
        found = [x.power for r in requirements for x in self.of(r)]
        return solve_linear(found, self.unknowns)

    def family(self) -> dict[Expr, Expr]:
        """All exponents that fulfil the first three requirements, by one parameter ``a`` if one is left.

        ``a`` is the scale of the first trained matrix between layers (of the readout, if there is none).
        Exponents of weights that no condition speaks of are left out; further free ones stand for themselves.
        """
        solved = self.solution(FIELDS, OUTPUTS, FEATURES)
        lead = self._lead
        asked = {y for x in self.conditions for y in _exponents_in(x.power, self.unknowns)}
        whole = {x: solved.get(x, x) for x in self.unknowns if x in asked}
        inside = _exponents_in(whole[lead], self.unknowns)
        if not inside:
            return whole
        back = solve_linear([whole[lead] - FREE], (inside[0],))
        return {x: v.xreplace(back) for x, v in whole.items()}

    def maximal_update(self) -> dict[Expr, Expr]:
        """The member of the family whose raw learning rate is of order one (muP)."""
        family = self.family()
        (rate,) = (x.power.xreplace(family) for x in self.of(RAW_RATE))
        found = solve_linear([rate], (FREE,))
        return {x: v.xreplace(found) for x, v in family.items()}

    @cached_property
    def symmetries(self) -> tuple[dict[Expr, Expr], ...]:
        """Directions along which training is the same at every width; see :func:`symmetries`."""
        return symmetries(self.program)

    @property
    def _lead(self) -> Expr:
        written, own = as_written(self.program).a, symbols_of(self.program).a
        matrices = [gaussian(m).name for m in self.program.matrices]
        trained = [w.name for w in self.program.trained()]
        order = sorted(written, key=lambda k: (k not in trained, written[k] == 0, k not in matrices))
        heads = [own[k] for k in order]
        return next(x for a in heads for x in self.unknowns if x == a or (x.args and x.func == a.func))

    def classify(self, exponents: Mapping[Any, Any], steps: int = 3) -> Any:
        """What becomes of the program with these numbers; see :func:`classify`."""
        from derive.scale.width_classification import classify

        return classify(self.program, exponents, steps)


def width_constraints(program: Program) -> Constraints:
    """Count powers of N on a program with symbolic exponents; its depth must be a number.

    The order is that of the paper: fields first, layer by layer, each given those before it; then what one
    update adds, to first order, with fields of order one.  Of outputs only those changes are asked for that
    do not vanish on average (feedback alignment has others, which count once weights have aligned).

    Raises :class:`NotApplicable` where powers cannot be counted, see :func:`.count_powers`.

    >>> from derive.program import mlp
    >>> found = width_constraints(mlp(2, "tanh"))
    >>> for x in found.conditions[:3]: print(x.what, x.equation)
    h(1) Eq(-a_W0 - b_W0/2, 0)
    h(2) Eq(-a_W(1) - b_W(1)/2 + 1/2, 0)
    z(2) Eq(-a_w - b_w/2 + 1/2, 0)
    >>> found.family()
    {a_W0: a - 1/2, b_W0: 1 - 2*a, a_W(1): a, b_W(1): 1 - 2*a, a_w: a, b_w: 1 - 2*a, c: 1 - 2*a, d: 1/2}
    """
    own = symbols_of(program)
    started = count_powers(parametrized(program), 0, assumed=True)
    found = [
        Condition(FIELDS, _called(*node), p.power)
        for node, parts in started.read.items()
        if node[0] not in program.scalars
        for p in parts
    ]
    names = unknowns(program)
    known = solve_linear([x.power for x in found], names)
    moved = count_powers(put_in(parametrized(program), known), 1, assumed=True, first=True)
    for requirement, nodes in ((OUTPUTS, outputs(program)), (FEATURES, fields(moved))):
        for node in nodes:
            found += [
                Condition(requirement, _called(*node), x, weight)
                for weight, forms in moved.owed(*node, systematic=requirement == OUTPUTS).items()
                for x in forms
            ]
    found.append(Condition(RAW_RATE, "eta", 2 * own.d - own.c))
    return Constraints(program, tuple(dict.fromkeys(x for x in found if x.power != 0)))


def put_in(program: Program, values: Mapping[Any, Expr]) -> Program:
    """The program with values for its exponents, by name or symbol.

    A function of the layer gets one value (``a_W``), or one for each member (``a_W(1)``); members without a
    value stay what they are.
    """
    given = {str(k): exact(str(k), v) for k, v in values.items()}
    members: dict[str, dict[int, Expr]] = {}
    for key, v in given.items():
        head, _, rest = key.partition("(")
        if rest:
            members.setdefault(head, {})[int(rest.rstrip(")"))] = v

    def put(e: Expr) -> Expr:
        e = sympify(e)
        found = {x: given[str(x)] for x in e.free_symbols if str(x) in given}
        for x in e.atoms(AppliedUndef):
            name = str(x.func)
            if name in members:
                known = members[name]
                whole = range(min(known), max(known) + 1)
                found[x] = Listed(x.args[0], Integer(whole[0]), *[known.get(i, x.func(i)) for i in whole])
            elif name in given:
                found[x] = given[name]
        return e.xreplace(found)

    return program.map(put)


def unknowns(program: Program) -> tuple[Expr, ...]:
    """The exponents of a program of known depth: a and b of each weight, member by member; c; d."""
    from derive.scale.power_counting import Counting

    own, read = symbols_of(program), Counting(program, False, False)
    found: list[Expr] = []
    for name, w in weights(program).items():
        a, b = own.a[name], own.b[name]
        if not a.args:
            found += [a, b]
            continue
        for env in read.members(families(w)):
            found += [a.subs(env), b.subs(env)]
    return (*dict.fromkeys(found), own.c, own.d)


def _exponents_in(e: Expr, names: tuple[Expr, ...]) -> list[Expr]:
    return [x for x in names if e.has(x)]


def outputs(program: Program) -> list[tuple[str, None]]:
    """The numbers that are means over units."""
    return [(x.name, None) for x in program.definitions if x.name in program.scalars and x.rhs.has(Mean)]


def fields(counted: Counted) -> list[tuple[str, Expr | None]]:
    """Everything that has entries."""
    return [(n, site) for n, site in counted.names() if n not in counted.program.scalars]


def features(program: Program, counted: Counted) -> list[tuple[str, Expr | None]]:
    """Fields that the outputs are computed from, but for those that are a weight themselves."""
    named: dict[str, list[Definition]] = {x.name: [] for x in program.definitions}
    for x in program.definitions:
        named[x.name].append(x)
    todo: list[Definition] = [x for n, _ in outputs(program) for x in named[n]]
    seen: list[Definition] = []
    while todo:
        x = todo.pop()
        if x not in seen:
            seen.append(x)
            for atom in x.rhs.atoms(AppliedUndef):
                same = named.get(str(atom.func), [])
                exact = [y for y in same if y.lhs.args[:1] == atom.args[:1]]
                todo += exact or same
    names = {x.name for x in seen if not _is_weight(program, x)}
    return [node for node in fields(counted) if node[0] in names]


def _is_weight(program: Program, x: Definition) -> bool:
    """Is what is defined a vector parameter, up to a number?"""
    return any(alone(x.rhs, used) for v in program.vectors for used in parameter(v).uses(x.rhs))


def solve_linear(powers: list[Expr], names: tuple[Expr, ...]) -> dict[Expr, Expr]:
    """Exponents with which linear forms vanish.  Raises :class:`NotApplicable` if there are none.

    Later names are expressed by earlier ones.
    """
    order = list(reversed(names))
    rows = [[p.expand().coeff(x) for x in order] for p in powers]
    rest = [-p.expand().xreplace(dict.fromkeys(order, S.Zero)) for p in powers]
    M, pivots = Matrix([[*row, r] for row, r in zip(rows, rest, strict=True)]).rref()
    if len(order) in pivots:
        raise NotApplicable("no exponents fulfil all of these conditions")
    found = {}
    for i, p in enumerate(pivots):
        found[order[p]] = M[i, len(order)] - sum(
            (M[i, j] * order[j] for j in range(p + 1, len(order))), start=S.Zero
        )
    return {x: found[x] for x in names if x in found}


def _called(name: str, site: Expr | None) -> str:
    return name if site is None else f"{name}({site})"
