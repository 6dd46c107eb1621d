"""Width parametrisations of a program (selfconsistent2023 N.1, N.2): which train well, which are one network.

    width_constraints(mlp(3, "tanh")).family()

Every weight W is applied as ``N^-a W`` and starts with variance ``N^-b``; the raw learning rate is
``eta gamma^2 N^-c`` with ``gamma = gamma0 N^d``.  The programs of this package are written with ``a = 1/2``
for matrices that act on a layer and for the readout, ``a = 0`` for those that act on the inputs and for
vectors that are added to a field, ``b = c = 0`` and ``d = 1/2``; :func:`parametrized` moves them elsewhere.

Each requirement of selfconsistent2023 appendix N becomes linear equations: powers of N that
:mod:`derive.scale.power_counting` finds must be zero (at most zero, where only stability is asked).  With
numbers for all exponents :func:`width_class` counts over several updates what is stable, moves, and breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sympy import (
    Eq,
    Expr,
    Function,
    Integer,
    Le,
    Matrix,
    Mul,
    Pow,
    S,
    Sum,
    Symbol,
    expand_power_base,
    nsimplify,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, exact
from derive.errors import NotApplicable
from derive.program.networks.options import Listed
from derive.program.program import Definition, Program, gaussian, parameter, used_once
from derive.program.training import TrainedMatrix, TrainedVector
from derive.program.words import GaussianMatrix, GaussianVector, Mean, Product, terms
from derive.scale.power_counting import HALF, Counted, Counting, N, Place, count_powers, powers, shape_of
from derive.show.latex import aligned_latex

c, d = Symbol("c", real=True), Symbol("d", real=True)
Weight = GaussianMatrix | GaussianVector | TrainedMatrix | TrainedVector


def weights(program: Program) -> dict[str, Weight]:
    """Every weight, trained or not, by its name; data that are drawn (a fresh matrix) are none."""
    found: dict[str, Weight] = {gaussian(m).name: m for m in program.matrices if not gaussian(m).fresh}
    return found | {parameter(v).name: v for v in program.vectors if not parameter(v).fresh}


def as_written(program: Program) -> dict[str, Expr]:
    """The exponents that the program is written with.

    >>> from derive.program import mlp
    >>> as_written(mlp(1))
    {'a_W0': 0, 'b_W0': 0, 'a_W': 1/2, 'b_W': 0, 'a_w': 1/2, 'b_w': 0, 'c': 0, 'd': 1/2}
    """
    found: dict[str, Expr] = {}
    for name, w in weights(program).items():
        found |= {f"a_{name}": _scale_written(program, w), f"b_{name}": S.Zero}
    return found | {"c": S.Zero, "d": HALF}


def symbols_of(program: Program) -> dict[str, Expr]:
    """A symbol for each exponent, by its name; functions of the layer for a family.

    >>> from derive.program import mlp
    >>> symbols_of(mlp(2))
    {'a_W0': a_W0, 'b_W0': b_W0, 'a_W': a_W(ell), 'b_W': b_W(ell), 'a_w': a_w, 'b_w': b_w, 'c': c, 'd': d}
    """
    found: dict[str, Expr] = {}
    for name, w in weights(program).items():
        index = layer_index(program, w)
        for key in (f"a_{name}", f"b_{name}"):
            found[key] = Symbol(key, real=True) if index is None else Function(key, real=True)(index)
    return found | {"c": c, "d": d}


def parametrized(program: Program, exponents: Mapping[Any, Any] | None = None) -> Program:
    """The program with these exponents in place of those that it is written with; the others are symbols.

    Scales stand where a weight is applied, forwards and backwards, and in the gradient with respect to the
    raw weight; ``gamma0`` (the program's ``scale``) becomes ``gamma0 N^(d - 1/2)``.  Keys are as in
    :func:`put_in`.

    Raises :class:`NotApplicable` for a program without ``scale`` and for noise.

    >>> from derive.program import mlp
    >>> program = parametrized(mlp(2))
    >>> program.definitions[1].rhs
    N**(1/2 - a_W(ell))*W(ell) @ h(ell, mu, t)
    >>> program.matrices[1].update.coefficient
    N**(1/2 - a_W(ell))*N**(d - 1/2)*gamma0*Delta(alpha, t)/N**c
    """
    used_once(program, "exponents of the width")
    if not isinstance(program.scale, Symbol):
        raise NotApplicable(
            f"{program.name} has no scale of its outputs: divide them by gamma0, and name it as the scale"
        )
    own, new, table = as_written(program), symbols_of(program), weights(program)
    scales = {name: N ** (own[f"a_{name}"] - new[f"a_{name}"]) for name in table}
    larger = {program.scale: program.scale * N ** (d - own["d"])}

    def rescaled(e: Expr) -> Expr:
        found = {}
        for x in e.atoms(Product):
            name = gaussian(program.matrix_of(x)).name
            if name in scales:
                found[x] = _of_member(scales[name], table[name], x.matrix) * x
        for name, w in table.items():
            if not isinstance(w, GaussianMatrix | TrainedMatrix):
                for x in parameter(w).uses(e):
                    found[x] = _of_member(scales[name], w, x) * x
        return e.xreplace(found)

    def start(name: str, w: Any) -> Any:
        return replace(w, variance=sympify(w.variance) * N ** -new[f"b_{name}"])

    def trained(w: Any) -> Any:
        if isinstance(w, GaussianMatrix | GaussianVector):
            return start(w.name, w) if w.name in scales else w
        if sympify(getattr(w.rule, "diffusion", 0)) != 0:
            raise NotApplicable(f"{w.name} is trained with noise, which has a power of N of its own")
        u = w.update
        moved = replace(u, coefficient=u.coefficient.xreplace(larger) * scales[w.name] * N**-c)
        if isinstance(w, TrainedMatrix) and u.gradient is not None:
            moved = replace(moved, gradient=u.gradient.xreplace(larger) * scales[w.name])
        return replace(w, initial=start(w.name, w.initial), update=moved)

    families = {str(x.func) for x in new.values() if isinstance(x, AppliedUndef)}
    definitions = tuple(replace(x, rhs=rescaled(x.rhs.xreplace(larger))) for x in program.definitions)
    whole = replace(
        program,
        definitions=definitions,
        matrices=tuple(trained(m) for m in program.matrices),
        vectors=tuple(trained(v) for v in program.vectors),
        constants=(*program.constants, *sorted(families - set(program.constants))),
    )
    return whole if exponents is None else put_in(whole, exponents)


def _of_member(scale: Expr, w: Any, used: Expr) -> Expr:
    """The scale of the member of a family that is used."""
    initial = w.initial if isinstance(w, TrainedMatrix | TrainedVector) else w
    return scale.xreplace(dict(zip(initial.symbol.args, used.args, strict=True)))


def _scale_written(program: Program, w: Weight) -> Expr:
    if isinstance(w, GaussianMatrix | TrainedMatrix):
        return S.Zero if gaussian(w).cols.given else HALF
    own = parameter(w)
    whole = [x for x in program.definitions for used in own.uses(x.rhs) if alone(x.rhs, used)]
    return HALF if whole else S.Zero


def alone(e: Expr, used: Expr) -> bool:
    """Is the expression the vector itself, up to a number?"""
    return len(terms(e)) == 1 and not (e / used).has(used)


def families(w: Weight) -> tuple[IndexRange, ...]:
    """The ranges of the indices of a family of weights."""
    if isinstance(w, GaussianMatrix | TrainedMatrix):
        index = gaussian(w).index
        return () if index is None else (index,)
    return parameter(w).indices


def layer_index(program: Program, w: Weight) -> Symbol | None:
    """The index over layers of a family of weights; members for positions and channels have one exponent."""
    if isinstance(w, GaussianMatrix | TrainedMatrix):
        index = gaussian(w).index
        return None if index is None else index.index
    own = parameter(w)
    site = own.population.site
    layers = [r.index for r in own.indices if site is not None and sympify(site).has(r.index)]
    return layers[0] if layers else None


# -- what is asked -------------------------------------------------------------------------------------------


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
        written, own = as_written(self.program), symbols_of(self.program)
        matrices = [gaussian(m).name for m in self.program.matrices]
        trained = [w.name for w in self.program.trained()]
        order = sorted(
            weights(self.program),
            key=lambda k: (k not in trained, written[f"a_{k}"] == 0, k not in matrices),
        )
        heads = [own[f"a_{k}"] for k in order]
        return next(x for a in heads for x in self.unknowns if x == a or (x.args and x.func == a.func))

    def classify(self, exponents: Mapping[Any, Any], steps: int = 3) -> WidthClass:
        """What becomes of the program with these numbers; see :func:`width_class`."""
        return width_class(self.program, exponents, steps)

    def _repr_latex_(self) -> str:
        return aligned_latex(self.equations)


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
    started = count_powers(parametrized(program), 0, assumed=True)
    found = [
        Condition(FIELDS, _called(node), p.power)
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
                Condition(requirement, _called(node), x, weight)
                for weight, forms in moved.owed(*node, systematic=requirement == OUTPUTS).items()
                for x in forms
            ]
    found.append(Condition(RAW_RATE, "eta", 2 * d - c))
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
    own, read = symbols_of(program), Counting(program)
    found: list[Expr] = []
    for name, w in weights(program).items():
        both = own[f"a_{name}"], own[f"b_{name}"]
        found += [x.subs(env) for env in read.members(families(w)) for x in both]
    return (*dict.fromkeys(found), c, d)


def _exponents_in(e: Expr, names: tuple[Expr, ...]) -> list[Expr]:
    return [x for x in names if e.has(x)]


def outputs(program: Program) -> list[tuple[str, None]]:
    """The numbers that are means over units."""
    return [(x.name, None) for x in program.definitions if x.name in program.scalars and x.rhs.has(Mean)]


def fields(counted: Counted) -> list[tuple[str, Expr | None]]:
    """Everything that has entries."""
    return [(n, site) for n, site in counted.nodes if n not in counted.program.scalars]


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


# -- what becomes of numbers ---------------------------------------------------------------------------------


Powers = Mapping[Place, Expr | None]


@dataclass(frozen=True)
class WidthClass:
    """Powers of N of everything, and what they mean; None stands for what does not change at all.

    - ``start``: of fields and outputs before training;
    - ``rates``: of their first change, to first order in the update;
    - ``changes``: of their change after ``steps`` updates, if nothing blew up before;
    - ``broken``: what blows up or vanishes, in words.
    """

    exponents: Mapping[str, Expr]
    start: Powers
    rates: Powers
    changes: Powers
    hidden: tuple[Place, ...]
    read: tuple[Place, ...]
    stable_at_start: bool
    stable: bool
    broken: tuple[str, ...]

    @property
    def nontrivial(self) -> bool:
        """Do outputs move by order one?"""
        return self.stable and any(self.changes[x] == 0 for x in self.read)

    @property
    def feature_learning(self) -> bool:
        """Do fields that the outputs are computed from move by order one?"""
        return self.stable and any(self.changes[x] == 0 for x in self.hidden)

    @property
    def lazy(self) -> bool:
        """Do outputs move while features stay: a fixed kernel."""
        return self.nontrivial and not self.feature_learning

    @property
    def feature_power(self) -> Expr | None:
        """The largest power of N with which a feature moves (-r in Tensor Programs); None if none does."""
        found = [x for n in self.hidden if (x := self.changes[n]) is not None]
        return max(found) if found else None

    @property
    def regime(self) -> str:
        """One word for it."""
        if not self.stable_at_start:
            return "unstable at the start"
        if not self.stable:
            return "unstable"
        return "feature learning" if self.feature_learning else "lazy" if self.lazy else "trivial"

    def _repr_latex_(self) -> str:
        moved = ((Symbol(_called(x)), p) for x, p in self.changes.items() if p is not None)
        return aligned_latex(Eq(x, N**p, evaluate=False) for x, p in moved)


def width_class(program: Program, exponents: Mapping[Any, Any], steps: int = 3) -> WidthClass:
    """Classify a program whose exponents have these values.

    Keys are ``a_<weight>``, ``b_<weight>``, ``c`` and ``d`` (as names or symbols); ``a_W`` gives a family one
    value, ``a_W(1)`` one member its own.  Three updates are enough for powers to settle: after the first
    every weight has moved, and after the second every backward field.

    Raises :class:`NotApplicable` for exponents that are missing, unknown or no numbers.

    >>> from derive.program import mlp
    >>> ntk = {"a_W0": 0, "a_W": "1/2", "a_w": "1/2", "b_W0": 0, "b_W": 0, "b_w": 0, "c": 0, "d": 0}
    >>> found = width_class(mlp(2, "tanh"), ntk)
    >>> found.regime, found.changes["h", 2], found.broken
    ('lazy', -1/2, ('features move only as N^(-1/2)',))
    """
    values = _read(program, exponents)
    whole = parametrized(program, values)
    linear = count_powers(whole, 1, first=True)
    hidden = tuple(features(program, linear))
    read: tuple[Place, ...] = tuple(outputs(program))
    nodes = linear.nodes
    start = {x: linear.power(*x) for x in nodes}
    rates = {x: linear.change(*x) for x in nodes}
    watched = (*hidden, *read)
    grows = [x for x in watched if _above(start[x])]
    stopped = linear.stopped is not None and not any(k == 1 for *_, k in linear.found)
    stable_at_start = not grows and not stopped
    broken = [f"{_called(x)} is of order N^({start[x]}) at the start" for x in grows]
    changes: dict[Place, Expr | None] = dict(rates)
    stable = stable_at_start
    if stable_at_start:
        counted = count_powers(whole, steps, until=watched)
        blown = [x for x in watched if _above(counted.power(*x, step=counted.steps))]
        stable = counted.stopped is None and not blown
        if not stable:
            broken += _blown(counted, watched)
        changes = {x: counted.change(*x, step=counted.steps) for x in nodes}
    small = [x for x in hidden if stable_at_start and start[x] != 0]
    broken += [f"{_called(x)} vanishes as N^({start[x]}) at the start" for x in small]
    for group, what in ((read, "outputs"), (hidden, "features")) if stable else ():
        best = [p for n in group if (p := changes[n]) is not None]
        if not best or max(best) < 0:
            broken.append(f"{what} move only as N^({max(best)})" if best else f"{what} do not move")
    return WidthClass(values, start, rates, changes, hidden, read, stable_at_start, stable, tuple(broken))


def _above(power: Expr | None) -> bool:
    return power is not None and bool(power > 0)


def _blown(counted: Counted, watched: tuple[Place, ...]) -> list[str]:
    when = f"update {counted.steps}"
    sizes = {x: counted.power(*x, step=counted.steps) for x in watched}
    found = [f"{_called(x)} grows as N^({p}) with {when}" for x, p in sizes.items() if _above(p)]
    return found or [f"counting ends with {when}: {counted.stopped}"]


def _read(program: Program, exponents: Mapping[Any, Any]) -> dict[str, Expr]:
    """Numbers for all exponents, by name."""
    given = {str(k): _number(str(k), v) for k, v in exponents.items()}
    wanted = {_head(x) for x in unknowns(program)}
    heads = {k.partition("(")[0] for k in given}
    if strange := heads - set(symbols_of(program)):
        said, known = (", ".join(sorted(x)) for x in (strange, wanted))
        raise NotApplicable(f"exponents: {said} unknown; the program has {known}")
    if missing := wanted - heads:
        raise NotApplicable(f"exponents: {', '.join(sorted(missing))} missing")
    return given


def _number(key: str, value: Any) -> Expr:
    try:
        found = nsimplify(exact(key, value), rational=True)
    except (ValueError, TypeError):
        raise NotApplicable(f"{key} = {value!r}: must be a number, such as 1/2") from None
    if not (found.is_number and found.is_real):
        raise NotApplicable(f"{key} = {value}: must be a number")
    return found


def named(program: Program) -> dict[str, dict[str, Expr]]:
    """Common parametrisations of a program, by the number of terms in the sum that a weight enters.

    - ``NTK``: the scale is the root of the number of terms, ``N^-1/2``; entries and outputs are of order one;
    - ``mean-field``: the same with outputs divided by ``N^1/2``, as programs here are written;
    - ``standard``: no scales; the variance is one over the number of terms; the raw rate is fixed;
    - ``standard, rate 1/N``: the same with a raw rate of order 1/N;
    - ``muP``: the solution of all four requirements of :func:`.width_constraints`; what they leave free is as
      in ``NTK``.

    >>> from derive.program import mlp
    >>> {k: v["b_W"] for k, v in named(mlp(2, "tanh")).items()}
    {'NTK': 0, 'mean-field': 0, 'standard': 1, 'standard, rate 1/N': 1, 'muP': 1}
    """
    own, names = as_written(program), weights(program)
    flat = dict.fromkeys(own, S.Zero)
    ntk = flat | {f"a_{k}": own[f"a_{k}"] for k in names}
    plain = flat | {f"b_{k}": 2 * own[f"a_{k}"] for k in names}
    found = {"NTK": ntk, "mean-field": own, "standard": plain, "standard, rate 1/N": plain | {"c": S.One}}
    maximal = width_constraints(program).maximal_update()
    free = {x: ntk[_head(x)] for v in maximal.values() for x in v.atoms(AppliedUndef, Symbol)}
    found["muP"] = {_head(x): v.xreplace(free) for x, v in maximal.items()}
    return found


def _head(x: Expr) -> str:
    """The name of an exponent, that of its family if it is a member."""
    return str(x.func) if isinstance(x, AppliedUndef) else str(x)


def _called(node: Place) -> str:
    name, site = node
    return name if site is None else f"{name}({site})"


# -- which exponents are one network -------------------------------------------------------------------------


def symmetries(program: Program) -> tuple[dict[Expr, Expr], ...]:
    """The directions in which exponents may change while every step of training stays what it was.

    Fields X are rescaled by ``N^x`` and raw weights by ``N^w``.  Every term of every definition and update
    must carry the power of what it defines; functions that take no factors out leave their fields no choice.
    This is a linear system for the shifts, at any N and for any number of steps.  Its solutions, as far as
    exponents change, are returned by exponent.  The depth must be a number.

    >>> from derive.program import mlp
    >>> for shift in symmetries(mlp(2, "tanh")): print(shift)
    {d: 1, a_w: -1, c: 2}
    {a_W(1): 1, a_W0: 1, a_w: 1, b_W(1): -2, b_W0: -2, b_w: -2, c: -2}
    """
    return _Symmetry(program).directions()


class _Symmetry:
    """The linear system for shifts of exponents, of fields and of raw weights."""

    def __init__(self, program: Program) -> None:
        self.program = parametrized(program)
        self.read = Counting(self.program)
        self.rows: list[Expr] = []
        self.exponents: set[Expr] = {c, d}

    def directions(self) -> tuple[dict[Expr, Expr], ...]:
        for definition, env in self.read.rules.values():
            self.define(definition, env)
        for w in self.program.trained():
            self.train(w)
        for own in weights(self.program).values():
            for env in self.family(own):
                self.draw(own, env)
        unknown = sorted(
            {x for row in self.rows for x in row.free_symbols | row.atoms(AppliedUndef)}, key=str
        )
        unknown = [x for x in unknown if isinstance(x, AppliedUndef) or not self._argument(x, unknown)]
        order = [x for x in unknown if x not in self.exponents] + self.ordered(unknown)
        M = Matrix([[coefficient(row, x) for x in order] for row in self.rows])
        hidden = len(order) - len(self.ordered(unknown))
        found = [list(vector[hidden:]) for vector in M.nullspace()]
        basis = Matrix(found).rref()[0] if found else Matrix([])
        kept = [list(basis.row(i)) for i in range(basis.rows) if any(basis.row(i))]
        names = self.ordered(unknown)
        return tuple({x: v for x, v in zip(names, row, strict=True) if v != 0} for row in kept)

    @staticmethod
    def _argument(x: Expr, unknown: list[Expr]) -> bool:
        return any(isinstance(f, AppliedUndef) and x in f.args for f in unknown)

    def ordered(self, unknown: list[Expr]) -> list[Expr]:
        """d first, c last, so that directions come out one by one."""
        last = [x for x in unknown if x in self.exponents and x not in (c, d)]
        return [x for x in (d, *last, c) if x in unknown]

    # -- rows --------------------------------------------------------------------------------------------

    def define(self, definition: Definition, env: Mapping[Any, Any]) -> None:
        """Every term has the power of the field that is defined."""
        name = definition.name
        whole = self.shift(name, self.read.site(definition.lhs, env))
        for e in terms(definition.rhs):
            for row in self.term(e, env):
                self.rows.append(row - whole)

    def train(self, w: Any) -> None:
        """The update has the power of the raw weight."""
        for env in self.family(w):
            u = w.update
            for inner in self.read.members(u.over):
                at = {**env, **inner}
                bodies = (u.vector,) if isinstance(w, TrainedVector) else (u.left, u.right)
                for row in self.term(Mul(u.coefficient, *bodies), at):
                    self.rows.append(row - self.raw(w, env))

    def draw(self, w: Any, env: Mapping[Any, Any]) -> None:
        """The standard deviation at the start has the power of the raw weight."""
        initial = w.initial if isinstance(w, TrainedMatrix | TrainedVector) else w
        self.rows.append(self.power(sympify(initial.variance), env) / 2 - self.raw(w, env))

    def family(self, w: Any) -> list[Mapping[Any, Any]]:
        return [*self.read.members(families(w))]

    def term(self, e: Expr, env: Mapping[Any, Any]) -> list[Expr]:
        """The shifts that the factors of a term bring; one for each addend inside."""
        e = expand_power_base(e)
        total: list[Expr] = [S.Zero]
        for factor in Mul.make_args(e):
            found = self.factor(factor, env)
            total = [x + y for x in total for y in found]
        return total

    def factor(self, e: Expr, env: Mapping[Any, Any]) -> list[Expr]:
        if isinstance(e, Mean | Sum):
            return self.many(e.args[0], env)
        if isinstance(e, Product):
            m = self.program.matrix_of(e)
            at = dict(zip(gaussian(m).symbol.args, e.matrix.args, strict=True))
            own = {k: x.subs(env) for k, x in at.items()}
            fixed = gaussian(m).name not in weights(self.program)
            raw = S.Zero if fixed else self.raw(m, own)
            return [raw + x for x in self.many(e.vector, env)]
        if self.read.is_number(e):
            return [self.power(e, env)]
        if e.is_Add or (isinstance(e, Pow) and e.exp.is_Integer and e.exp.is_positive):
            times = int(e.exp) if isinstance(e, Pow) else 1
            return [times * x for x in self.many(e.base if isinstance(e, Pow) else e, env)]
        for v in self.program.vectors:
            for used in parameter(v).uses(e):
                if used == e:
                    at = dict(zip(parameter(v).symbol.args, e.args, strict=True))
                    return [self.raw(v, {k: x.subs(env) for k, x in at.items()})]
        if isinstance(e, AppliedUndef) and (str(e.func), self.read.site(e, env)) in self.read.rules:
            return [self.shift(str(e.func), self.read.site(e, env))]
        if isinstance(e, AppliedUndef) and self.program.given_of(str(e.func)):
            return [S.Zero]
        inside = [
            x for x in e.atoms(AppliedUndef) if (str(x.func), self.read.site(x, env)) in self.read.rules
        ]
        shifts = [self.shift(str(x.func), self.read.site(x, env)) for x in inside]
        degree = shape_of(e, inside).degree
        if degree is not None and len(inside) == 1:  # relu takes positive factors out
            return [degree * shifts[0]]
        self.rows += shifts
        return [S.Zero]

    def many(self, e: Expr, env: Mapping[Any, Any]) -> list[Expr]:
        return [x for part in terms(e) for x in self.term(part, env)]

    # -- unknowns ----------------------------------------------------------------------------------------

    def shift(self, name: str, site: Expr | None) -> Expr:
        """How a field is rescaled; outputs and errors are not."""
        return S.Zero if name in self.program.scalars else Symbol(f"x_{name}_{site}")

    def raw(self, w: Any, env: Mapping[Any, Any]) -> Expr:
        """How a raw weight is rescaled."""
        layer = layer_index(self.program, w)
        return Symbol(f"w_{w.name}_{'' if layer is None else env[layer]}")

    def power(self, e: Expr, env: Mapping[Any, Any]) -> Expr:
        """The change of a power of N: its part linear in the exponents."""
        (whole,) = powers(sympify(e).subs(env))
        linear = S.Zero
        for x in whole.atoms(Symbol, AppliedUndef):
            if not isinstance(x, AppliedUndef) and any(x in f.args for f in whole.atoms(AppliedUndef)):
                continue
            self.exponents.add(x)
            linear += coefficient(whole, x) * x
        return linear


def coefficient(row: Expr, x: Expr) -> Expr:
    return sympify(row).expand().coeff(x)
