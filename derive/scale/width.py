"""Width parametrizations of a program (selfconsistent2023 N.1, N.2): conditions, families and equivalences.

    width_constraints(mlp(3, "tanh")).family()

Every weight W is applied as ``N^-a W`` and has the initial variance ``N^-b``; the raw learning rate is ``eta
gamma^2 N^-c`` with ``gamma = gamma0 N^d``. The programs of this package have ``a = 1/2`` for matrices that
act on a layer and for the readout, ``a = 0`` for those that act on the inputs and for vectors that are added
to a field, ``b = c = 0`` and ``d = 1/2``; :func:`parametrized` changes these values.

Each requirement of selfconsistent2023 appendix N becomes linear equations: powers of N from
:mod:`derive.scale.power_counting` must be zero (at most zero if only stability is required). With numbers for
all exponents :func:`width_class` counts over several updates which quantities are stable, change, or diverge.

A weight W with an entrywise rule has its own rate ``N^-c_W``, which multiplies Q of the raw gradient
``dloss/dW``. Parameters of its rule in units of the gradient, such as epsilon, are ``N^-e_W``, and the
fraction of the weight that it loses in a step is ``N^-s_W``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sympy import (
    Add,
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
    nsimplify,
    solve,
    sqrt,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, exact
from derive.errors import NotApplicable, require_type
from derive.program.entrywise import Entrywise
from derive.program.language import GaussianMatrix, GaussianVector, GaussianWeight, Mean, Product, terms
from derive.program.networks.options import Listed
from derive.program.nonlinear import require_linear_rules
from derive.program.parts import Definition, gaussian, parameter
from derive.program.program import Program, used_once
from derive.program.training import TrainedMatrix, TrainedVector
from derive.scale.power_counting import (
    HALF,
    Counted,
    Counting,
    IndexExpressions,
    N,
    count_powers,
    gradient_powers,
    member_name,
    powers,
    shape_of,
)
from derive.scale.rule_degrees import rule_degrees
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory.names import QuantityAtLayer

c, d = Symbol("c", real=True), Symbol("d", real=True)
_INSIDE = Symbol("c_rate", real=True)
"""The exponent c inside of programs whose output channels are called c."""


def weights(program: Program) -> dict[str, GaussianWeight]:
    """Return every weight at its initial value, without data that are drawn (fresh matrices)."""
    starts: list[GaussianWeight] = [*map(gaussian, program.matrices), *map(parameter, program.vectors)]
    return {x.name: x for x in starts if not x.fresh}


def as_written(program: Program) -> dict[str, Expr]:
    """Return the exponents with which the program is written.

    >>> from derive.program import mlp
    >>> as_written(mlp(1))
    {'a_W0': 0, 'b_W0': 0, 'a_W': 1/2, 'b_W': 0, 'a_w': 1/2, 'b_w': 0, 'c': 0, 'd': 1/2}
    """
    found: dict[str, Expr] = {}
    for name, w in weights(program).items():
        if isinstance(w, GaussianMatrix):
            scaled = not w.cols.given
        else:
            scaled = any(_alone(x.rhs, used) for x in program.definitions for used in w.uses(x.rhs))
            scaled = scaled and not is_gain(program, w)
        found |= {f"a_{name}": HALF if scaled else S.Zero, f"b_{name}": S.Zero}
    return found | ({"c": S.Zero} if linear_weights(program) else {}) | {"d": HALF}


def is_gain(program: Program, w: GaussianVector) -> bool:
    """Return whether a vector of weights multiplies a field of the forward pass, entry by entry."""
    alone = {x.name for x in program.definitions if any(_alone(x.rhs, used) for used in w.uses(x.rhs))}
    for x in forward_pass(program):
        if x.name in program.scalars or x.name in alone:
            continue
        used = [*w.uses(x.rhs), *(a for a in x.rhs.atoms(AppliedUndef) if str(a.func) in alone)]
        factors = (x.rhs.expand().coeff(u) for u in used)
        atoms = {str(a.func) for e in factors for a in e.atoms(AppliedUndef)}
        if atoms - set(program.constants):
            return True
    return False


def entrywise_rules(program: Program) -> dict[str, Entrywise]:
    """Return the rules of weights that move by entrywise rules, by the names of the weights."""
    return {w.name: w.rule for w in program.trained() if isinstance(w.rule, Entrywise)}


def linear_weights(program: Program) -> bool:
    """Return whether a weight is trained by a linear rule."""
    return len(entrywise_rules(program)) < len([*program.trained()])


def symbols_of(program: Program) -> dict[str, Expr]:
    """Return a symbol for each exponent by name; exponents of a family are functions of the layer.

    >>> from derive.program import mlp
    >>> symbols_of(mlp(2))
    {'a_W0': a_W0, 'b_W0': b_W0, 'a_W': a_W(ell), 'b_W': b_W(ell), 'a_w': a_w, 'b_w': b_w, 'c': c, 'd': d}
    """
    found: dict[str, Expr] = {}
    rules = entrywise_rules(program)
    for name, w in weights(program).items():
        index = layer_index(w)
        for letter in "ab" + _letters(rules.get(name)):
            key = f"{letter}_{name}"
            found[key] = Symbol(key, real=True) if index is None else Function(key, real=True)(index)
    return found | ({"c": c} if linear_weights(program) else {}) | {"d": d}


def _letters(rule: Entrywise | None) -> str:
    """Return the letters of the exponents of a rule: of its rate, its parameters and its decay."""
    if rule is None:
        return ""
    units, decays = bool(rule_degrees(rule).parameters), bool(rule.decay != 0)
    return "c" + "e" * units + "s" * decays


def parametrized(program: Program, exponents: Mapping[Any, Any] | None = None) -> Program:
    """Return the program with exponents of a parametrization.

    Parameters
    ----------
    program : Program
        Program.
    exponents : Mapping[Any, Any] | None, optional
        Values by name or symbol, as in :func:`put_in`; other exponents are symbols.

    Returns
    -------
    Program
        The program. Multipliers stand where a weight is applied, forwards and backwards, and in the gradient
        with respect to the raw weight; ``gamma0`` (the program's ``scale``) becomes ``gamma0 N^(d - 1/2)``.

    Raises
    ------
    NotApplicable
        For a program without ``scale`` and for noise.

    Examples
    --------
    >>> from derive.program import mlp
    >>> program = parametrized(mlp(2))
    >>> program.definitions[1].rhs
    N**(1/2 - a_W(ell))*W(ell) @ h(ell, mu, t)
    >>> program.matrices[1].update.coefficient
    N**(1/2 - a_W(ell))*N**(d - 1/2)*gamma0*Delta(alpha, t)/N**c
    """
    used_once(program, "exponents of the width")
    others = [w for w in program.trained() if not isinstance(w.rule, Entrywise)]
    require_linear_rules(others, "counting powers of the width")
    if not isinstance(program.scale, Symbol):
        raise NotApplicable(
            f"{program.name} has no scale of its outputs: divide them by gamma0, and name it as the scale"
        )
    rescaling = _Rescaling.of(program)
    families = {str(x.func) for x in rescaling.exponents.values() if isinstance(x, AppliedUndef)}
    whole = replace(
        program,
        definitions=tuple(replace(x, rhs=rescaling.applied(x.rhs)) for x in program.definitions),
        matrices=tuple(map(rescaling.trained, program.matrices)),
        vectors=tuple(map(rescaling.trained, program.vectors)),
        constants=(*program.constants, *sorted(families - set(program.constants))),
    )
    return whole if exponents is None else put_in(whole, exponents)


@dataclass(frozen=True)
class _Rescaling:
    """Change of a program from the exponents with which it is written to symbolic exponents.

    ``scales`` are the factors of the multipliers of weights, ``larger`` that of the program's scale, and
    ``rate`` is the exponent of the raw learning rate.
    """

    program: Program
    exponents: Mapping[str, Expr]
    scales: Mapping[str, Expr]
    larger: Mapping[Expr, Expr]
    rate: Expr

    @classmethod
    def of(cls, program: Program) -> _Rescaling:
        """Return the change for a program."""
        old, new = as_written(program), symbols_of(program)
        scales = {name: N ** (old[f"a_{name}"] - new[f"a_{name}"]) for name in weights(program)}
        larger = {program.scale: program.scale * N ** (d - old["d"])}
        return cls(program, new, scales, larger, _INSIDE if _channels_called_c(program) else c)

    def multiplied(self, w: GaussianWeight, used: Expr, symbol: Expr) -> Expr:
        """Return a use of a weight times the change of its multiplier at the used member."""
        return self.scales[w.name].xreplace(dict(zip(w.symbol.args, symbol.args, strict=True))) * used

    def applied(self, e: Expr) -> Expr:
        """Return a right-hand side with changed multipliers of all weights in it."""
        e = e.xreplace(self.larger)
        products = ((gaussian(self.program.matrix_of(x)), x) for x in e.atoms(Product))
        changed = {x: self.multiplied(w, x, x.matrix) for w, x in products if w.name in self.scales}
        for w in weights(self.program).values():
            if isinstance(w, GaussianVector):
                changed |= {x: self.multiplied(w, x, x) for x in w.uses(e)}
        return e.xreplace(changed)

    def initial(self, w: Any) -> Any:
        """Return initial weights with the changed variance."""
        if w.name not in self.scales:
            return w
        return replace(w, variance=sympify(w.variance) * N ** -self.exponents[f"b_{w.name}"])

    def trained(self, w: Any) -> Any:
        """Return a weight with changed initial variance, update and rule."""
        if isinstance(w, GaussianMatrix | GaussianVector):
            return self.initial(w)
        if sympify(getattr(w.rule, "diffusion", 0)) != 0:
            raise NotApplicable(f"{w.name} is trained with noise, which has a power of N of its own")
        if isinstance(w.rule, Entrywise):
            return self.entrywise(w, w.rule)
        scale, u = self.scales[w.name], w.update
        moved = replace(u, coefficient=u.coefficient.xreplace(self.larger) * scale * N**-self.rate)
        if isinstance(w, TrainedMatrix) and u.gradient is not None:
            moved = replace(moved, gradient=u.gradient.xreplace(self.larger) * scale)
        return replace(w, initial=self.initial(w.initial), update=moved)

    def entrywise(self, w: Any, rule: Entrywise) -> Any:
        """Return the weight with a rule of its raw gradient, ``raw W += rate Q(-dloss/draw W)``."""
        u = w.update
        # the program's updates are U/N of matrices W/sqrt(N), and rate * scale^2 N times the raw gradient
        root = sqrt(N) if isinstance(w, TrainedMatrix) and not w.initial.cols.given else S.One
        inside = (u.coefficient / u.outside).xreplace(self.larger)
        outside = u.outside * root
        gradient = inside * self.scales[w.name] / (self.larger[self.program.scale] * N * root)
        moved = replace(u, coefficient=outside * gradient, outside=outside)
        rule = _rescaled(rule, w.name, self.exponents)
        return replace(w, initial=self.initial(w.initial), update=moved, rule=rule)


def _channels_called_c(program: Program) -> bool:
    """Return whether an index of the program has the name of the exponent c."""
    return any(r.index.name == c.name for x in program.definitions for r in x.ranges)


def _rescaled(rule: Entrywise, name: str, exponents: Mapping[str, Expr]) -> Entrywise:
    """Return the rule with its rate, parameters in units of the gradient and decay times powers of N."""
    units = {x: x * N ** (-p * exponents[f"e_{name}"]) for x, p in rule_degrees(rule).parameters.items()}
    share = exponents.get(f"s_{name}", S.Zero)
    moved = _rewritten(rule, lambda e: e.xreplace(units))
    return replace(moved, rate=rule.rate * N ** -exponents[f"c_{name}"], decay=rule.decay * N**-share)


def _rewritten(rule: Entrywise, put: Callable[[Expr], Expr]) -> Entrywise:
    """Return the rule with a function applied to its expressions."""
    states = tuple((x, put(e)) for x, e in rule.states)
    return replace(rule, rate=put(rule.rate), Q=put(rule.Q), decay=put(rule.decay), states=states)


def _alone(e: Expr, used: Expr) -> bool:
    """Return whether an expression is the vector itself, up to a number."""
    return len(terms(e)) == 1 and not (e / used).has(used)


def families(w: GaussianWeight) -> tuple[IndexRange, ...]:
    """Return the ranges of the indices of a family of weights."""
    if isinstance(w, GaussianVector):
        return w.indices
    return () if w.index is None else (w.index,)


def layer_index(w: GaussianWeight) -> Symbol | None:
    """Return the layer index of a family of weights; other members share one exponent."""
    if isinstance(w, GaussianVector):
        site = w.population.site
        return next((r.index for r in w.indices if site is not None and sympify(site).has(r.index)), None)
    return None if w.index is None else w.index.index


# -- what is asked -------------------------------------------------------------------------------------------


FREE = Symbol("a", real=True)
FIELDS = "fields of order one at the start"
OUTPUTS = "outputs that move in time of order one"
FEATURES = "fields that move by order one"
RAW_RATE = "raw learning rate of order one"
REQUIREMENTS = (FIELDS, OUTPUTS, FEATURES, RAW_RATE)
UNITS = "parameters in units of the gradient as large as the gradient"
SHARE = "share of a weight that is lost in a step of order one"
ENTRYWISE = (UNITS, SHARE)
"""Requirements on the rules of weights that move by entrywise rules."""
COUNTED = (
    "assumed: the width N goes to infinity at a fixed number of updates, samples and layers",
    "assumed: averages over units are of order one, unless the sign of a Gaussian source makes them vanish",
)
"""Conditions of every count of powers of the width."""


@dataclass(frozen=True)
class Condition:
    """Condition that ``what`` is of order ``N^power``; ``weight`` is the one whose updates change it."""

    requirement: str
    what: str
    power: Expr
    weight: str | None = None

    @property
    def equation(self) -> Eq:
        """Equation by which the quantity neither diverges nor vanishes."""
        return Eq(self.power, 0, evaluate=False)


@dataclass(frozen=True)
class Constraints(ConditionalResult):
    """Conditions on the exponents of a program.  See :func:`width_constraints`."""

    program: Program
    powers: tuple[Condition, ...]

    def conditions(self) -> tuple[str, ...]:
        """Return the assumptions of the power counting."""
        return (*COUNTED, "derived: the powers of N of fields at the start, and of their first update")

    @cached_property
    def unknowns(self) -> tuple[Expr, ...]:
        """Exponents by weight, then c and d."""
        return unknowns(self.program)

    def of(self, requirement: str) -> tuple[Condition, ...]:
        """Return the conditions of one requirement; raise ``KeyError`` for an unknown requirement."""
        known = (*REQUIREMENTS, *ENTRYWISE)
        if requirement not in known:
            raise KeyError(f"{requirement!r}: must be one of {', '.join(map(repr, known))}")
        return tuple(x for x in self.powers if x.requirement == requirement)

    @property
    def equations(self) -> tuple[Eq, ...]:
        """Different equations of the first three requirements."""
        return tuple(dict.fromkeys(x.equation for x in self.powers if x.requirement != RAW_RATE))

    @property
    def inequalities(self) -> tuple[Le, ...]:
        """Conditions as bounds, for parametrizations in which quantities may vanish but not diverge.

        Those of the first update are counted with fields of order one; :func:`width_class` counts further
        updates.
        """
        return tuple(Le(*x.args, evaluate=False) for x in self.equations)

    def solution(self, *requirements: str) -> dict[Expr, Expr]:
        """Return the general solution of some requirements, without exponents that stay free.

        Raises :class:`NotApplicable` if no exponents satisfy them.
        """
        return solve_linear([x.power for r in requirements for x in self.of(r)], self.unknowns)

    def family(self) -> dict[Expr, Expr]:
        """Return all exponents that satisfy the first three requirements, by one parameter ``a``.

        ``a`` is the scale of the first trained matrix between layers (or of the readout).
        Exponents of weights without conditions are left out; further free exponents are their own symbols.
        """
        solved = self.solution(FIELDS, OUTPUTS, FEATURES, *ENTRYWISE)
        whole = {x: solved.get(x, x) for x in self.unknowns if any(y.power.has(x) for y in self.powers)}
        lead = whole[self._lead]
        inside = [x for x in self.unknowns if lead.has(x)]
        back = solve_linear([lead - FREE], (inside[0],)) if inside else {}
        return {x: v.xreplace(back) for x, v in whole.items()}

    def maximal_update(self) -> dict[Expr, Expr]:
        """Return the member of the family with a raw learning rate of order one (muP).

        Raises :class:`NotApplicable` if weights have their own rates, as with entrywise rules.
        """
        family = self.family()
        if not self.of(RAW_RATE):
            raise NotApplicable("every weight has a rate of its own: no rate singles out one of the scales a")
        (rate,) = (x.power.xreplace(family) for x in self.of(RAW_RATE))
        found = solve_linear([rate], (FREE,))
        return {x: v.xreplace(found) for x, v in family.items()}

    @cached_property
    def symmetries(self) -> tuple[dict[Expr, Expr], ...]:
        """Return the directions along which training is the same at every width; see :func:`symmetries`."""
        return symmetries(self.program)

    @property
    def _lead(self) -> Expr:
        """Scale that parametrizes a family."""
        written, table = as_written(self.program), weights(self.program)
        trained = {w.name for w in self.program.trained()}
        names = sorted(
            table,
            key=lambda k: (k not in trained, written[f"a_{k}"] == 0, isinstance(table[k], GaussianVector)),
        )
        return next(x for k in names for x in self.unknowns if family_name(x) == f"a_{k}")

    def _repr_latex_(self) -> str:
        return aligned_latex(self.equations)


def width_constraints(program: Program, spectral: Collection[str] = ()) -> Constraints:
    """Return the conditions on the exponents of a program from powers of N.

    Parameters
    ----------
    program : Program
        Program whose depth is a number.
    spectral : Collection[str], optional
        Names of matrices whose rules act on singular values, as in :func:`.count_powers`.

    Returns
    -------
    Constraints
        Conditions in the order of the paper: fields first, layer by layer, each given those before it; then
        the changes by one update, to first order, with fields of order one. For outputs only changes that do
        not vanish on average are included (feedback alignment has others, which matter once weights have
        aligned).

    Raises
    ------
    NotApplicable
        If powers cannot be counted, see :func:`.count_powers`.

    Examples
    --------
    >>> from derive.program import mlp
    >>> found = width_constraints(mlp(2, "tanh"))
    >>> for x in found.powers[:3]: print(x.what, x.equation)
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
        if not p.chance or all(q.chance for q in parts)
    ]
    names = unknowns(program)
    known = solve_linear([x.power for x in found], names)
    found += _units(program, known)
    known = solve_linear([x.power for x in found], names)
    moved = count_powers(put_in(parametrized(program), known), 1, assumed=True, first=True, spectral=spectral)
    for requirement, nodes in ((OUTPUTS, outputs(program)), (FEATURES, fields(moved))):
        for node in nodes:
            systematic = moved.owed(*node, systematic=True)
            # changes by chance count for fields that a weight does not change otherwise
            owed = systematic if requirement == OUTPUTS else moved.owed(*node) | systematic
            found += [
                Condition(requirement, _called(node), x, weight)
                for weight, forms in owed.items()
                for x in forms
            ]
    if linear_weights(program):
        found.append(Condition(RAW_RATE, "eta", 2 * d - c))
    found = [replace(x, power=x.power.xreplace({_INSIDE: c})) for x in found]
    return Constraints(program, tuple(dict.fromkeys(x for x in found if x.power != 0)))


def _units(program: Program, known: Mapping[Any, Expr]) -> list[Condition]:
    """Return conditions on epsilon and decay of entrywise rules, each as a power of N that must be zero."""
    rules, own = entrywise_rules(program), symbols_of(program)
    if not rules:
        return []
    read, found = Counting(program), []
    sizes = gradient_powers(put_in(parametrized(program), known))
    for w in program.trained():
        for env in read.members(read.ranges_of(w)):
            name = member_name(w.name, tuple(env.values()))
            e, share = (own[key].subs(env) if (key := f"{x}_{w.name}") in own else None for x in "es")
            if e is not None and name in sizes:
                found.append(
                    Condition(
                        UNITS, f"epsilon of {name} over its gradient", (-e - sizes[name]).expand(), name
                    )
                )
            if share is not None:
                found.append(Condition(SHARE, f"decay of {name}", -share, name))
    return found


def put_in(program: Program, values: Mapping[Any, Expr]) -> Program:
    """Return the program with values for its exponents, by name or symbol.

    A function of the layer has one value (``a_W``), or one for each member (``a_W(1)``); members without a
    value stay unchanged.
    """
    given = {str(k): exact(str(k), v) for k, v in values.items()}
    members: dict[str, dict[int, Expr]] = {}
    for key, v in given.items():
        head, _, rest = key.partition("(")
        if rest:
            members.setdefault(head, {})[int(rest.rstrip(")"))] = v

    def put(e: Expr) -> Expr:
        e = sympify(e)
        named = {x: c.name if x == _INSIDE else str(x) for x in e.free_symbols if not x.is_integer}
        found = {x: given[name] for x, name in named.items() if name in given}
        for x in e.atoms(AppliedUndef):
            name = str(x.func)
            if name in members:
                known = members[name]
                whole = range(min(known), max(known) + 1)
                found[x] = Listed(x.args[0], Integer(whole[0]), *[known.get(i, x.func(i)) for i in whole])
            elif name in given:
                found[x] = given[name]
        return e.xreplace(found)

    whole = program.map(put)

    def ruled(w: Any) -> Any:
        """Return the weight with values in its rule."""
        rule = getattr(w, "rule", None)
        return replace(w, rule=_rewritten(rule, put)) if isinstance(rule, Entrywise) else w

    return replace(
        whole, matrices=tuple(map(ruled, whole.matrices)), vectors=tuple(map(ruled, whole.vectors))
    )


def unknowns(program: Program) -> tuple[Expr, ...]:
    """Return the exponents of a program of known depth: those of each weight, member by member; c; d."""
    own, read = symbols_of(program), Counting(program)
    found: list[Expr] = []
    for name, w in weights(program).items():
        mine = [own[key] for x in "abces" if (key := f"{x}_{name}") in own]
        found += [x.subs(env) for env in read.members(families(w)) for x in mine]
    return (*dict.fromkeys(found), *([c] if linear_weights(program) else []), d)


def outputs(program: Program) -> list[tuple[str, None]]:
    """Return the means over units of which the loss is a function, if it is known."""
    means = [x.name for x in program.definitions if x.name in program.scalars and x.rhs.has(Mean)]
    read = set() if program.loss is None else {str(a.func) for a in program.loss.atoms(AppliedUndef)}
    return [(name, None) for name in means if name in read or not read & {*means}]


def fields(counted: Counted) -> list[tuple[str, Expr | None]]:
    """Return all quantities with entries."""
    return [(n, site) for n, site in counted.nodes if n not in counted.program.scalars]


def features(program: Program, counted: Counted) -> list[tuple[str, Expr | None]]:
    """Return the fields from which outputs are computed, without those that are a weight themselves."""
    own = [parameter(v) for v in program.vectors]
    seen = forward_pass(program)
    names = {x.name for x in seen if not any(_alone(x.rhs, used) for v in own for used in v.uses(x.rhs))}
    return [node for node in fields(counted) if node[0] in names]


def forward_pass(program: Program) -> list[Definition]:
    """Return the definitions of the outputs and of everything from which they are computed."""
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
    return seen


def solve_linear(powers: list[Expr], names: tuple[Expr, ...]) -> dict[Expr, Expr]:
    """Return exponents for which linear forms vanish, later names in terms of earlier ones.

    Raises :class:`NotApplicable` if there are none.
    """
    asked = [p.expand() for p in powers if p.expand() != 0]
    found = solve(asked, list(reversed(names)), dict=True) if asked else [{}]
    if not found:
        raise NotApplicable("no exponents fulfil all of these conditions")
    return {x: found[0][x] for x in names if x in found[0]}


# -- what becomes of numbers ---------------------------------------------------------------------------------


WidthPowers = Mapping[QuantityAtLayer, Expr | None]


@dataclass(frozen=True)
class WidthClass(ConditionalResult):
    """Powers of N of all quantities of a program with given exponents.

    A power is None if the quantity does not change at all.

    Parameters
    ----------
    exponents : Mapping[str, Expr]
        Values of all exponents.
    start : WidthPowers
        Powers of fields and outputs before training.
    rates : WidthPowers
        Powers of their first change, to first order in the update.
    changes : WidthPowers
        Powers of their change after ``steps`` updates, if nothing diverged before.
    hidden : tuple[QuantityAtLayer, ...]
        Fields from which outputs are computed.
    read : tuple[QuantityAtLayer, ...]
        Outputs.
    stable_at_start : bool
        Whether nothing diverges or vanishes before training.
    stable : bool
        Whether nothing diverges in training.
    broken : tuple[str, ...]
        Descriptions of quantities that diverge or vanish.
    steps : int
        Number of updates that were counted.
    """

    exponents: Mapping[str, Expr]
    start: WidthPowers
    rates: WidthPowers
    changes: WidthPowers
    hidden: tuple[QuantityAtLayer, ...]
    read: tuple[QuantityAtLayer, ...]
    stable_at_start: bool
    stable: bool
    broken: tuple[str, ...]
    steps: int

    def conditions(self) -> tuple[str, ...]:
        """Return the assumptions of the power counting.

        Returns
        -------
        tuple[str, ...]
            Assumptions as sentences.
        """
        settled = f"assumed: powers do not change after {self.steps} updates"
        return (*COUNTED, "derived: the powers of N of fields and outputs", settled)

    @property
    def nontrivial(self) -> bool:
        """Whether outputs change by order one."""
        return self.stable and any(self.changes[x] == 0 for x in self.read)

    @property
    def feature_learning(self) -> bool:
        """Whether fields from which outputs are computed change by order one."""
        return self.stable and any(self.changes[x] == 0 for x in self.hidden)

    @property
    def regime(self) -> str:
        """Name of the regime."""
        if not self.stable_at_start:
            return "unstable at the start"
        if not self.stable:
            return "unstable"
        return "feature learning" if self.feature_learning else "lazy" if self.nontrivial else "trivial"

    def _repr_latex_(self) -> str:
        moved = ((Symbol(_called(x)), p) for x, p in self.changes.items() if p is not None)
        return aligned_latex(Eq(x, N**p, evaluate=False) for x, p in moved)


def width_class(program: Program, exponents: Mapping[Any, Any], steps: int = 3) -> WidthClass:
    """Return the class of a program with given exponents.

    Parameters
    ----------
    program : Program
        Program.
    exponents : Mapping[Any, Any]
        Values of ``a_<weight>``, ``b_<weight>``, ``c`` and ``d`` (as names or symbols); ``a_W`` is for a
        family, ``a_W(1)`` for one member.
    steps : int, optional
        Number of updates. Three are enough: after the first every weight has changed, and after the second
        every backward field.

    Returns
    -------
    WidthClass
        Powers of all quantities.

    Raises
    ------
    NotApplicable
        If exponents are missing, unknown or not numbers.

    Examples
    --------
    >>> from derive.program import mlp
    >>> ntk = {"a_W0": 0, "a_W": "1/2", "a_w": "1/2", "b_W0": 0, "b_W": 0, "b_w": 0, "c": 0, "d": 0}
    >>> found = width_class(mlp(2, "tanh"), ntk)
    >>> found.regime, found.changes["h", 2], found.broken
    ('lazy', -1/2, ('features move only as N^(-1/2)',))
    """
    require_type(program, Program, "width_class", "a program")
    values = _read(program, exponents)
    whole = parametrized(program, values)
    linear = count_powers(whole, 1, first=True)
    hidden, read = tuple(features(program, linear)), tuple(outputs(program))
    start = {x: linear.power(*x) for x in linear.nodes}
    rates = {x: linear.change(*x) for x in linear.nodes}
    changes: WidthPowers = rates
    grows = [x for x in (*hidden, *read) if (p := start[x]) is not None and p > 0]
    broken = [f"{_called(x)} is of order N^({start[x]}) at the start" for x in grows]
    stopped = linear.stopped is not None and not any(k == 1 for *_, k in linear.found)
    stable = begun = not grows and not stopped
    if begun:
        counted = count_powers(whole, steps, until=(*hidden, *read))
        when = f"update {counted.steps}"
        changes = {x: counted.change(*x, step=counted.steps) for x in linear.nodes}
        sizes = {x: counted.power(*x, step=counted.steps) for x in (*hidden, *read)}
        blown = [
            f"{_called(x)} grows as N^({p}) with {when}" for x, p in sizes.items() if p is not None and p > 0
        ]
        if counted.stopped is not None:
            blown = blown or [f"counting ends with {when}: {counted.stopped}"]
        small = [f"{_called(x)} vanishes as N^({start[x]}) at the start" for x in hidden if start[x] != 0]
        broken += [*blown, *small]
        stable = not blown
    for group, what in ((read, "outputs"), (hidden, "features")) if stable else ():
        best = [p for n in group if (p := changes[n]) is not None]
        if not best or max(best) < 0:
            broken.append(f"{what} move only as N^({max(best)})" if best else f"{what} do not move")
    return WidthClass(
        values, start, rates, changes, hidden, read, begun, stable, tuple(broken), steps if begun else 1
    )


def _read(program: Program, exponents: Mapping[Any, Any]) -> dict[str, Expr]:
    """Return numbers for all exponents by name."""
    given = {str(k): _number(str(k), v) for k, v in exponents.items()}
    wanted = {family_name(x) for x in unknowns(program)}
    heads = {k.partition("(")[0] for k in given}
    if unknown := heads - set(symbols_of(program)):
        unknown_names, known = (", ".join(sorted(x)) for x in (unknown, wanted))
        raise NotApplicable(f"exponents: {unknown_names} unknown; the program has {known}")
    if missing := wanted - heads:
        raise NotApplicable(f"exponents: {', '.join(sorted(missing))} missing")
    return given


def _number(key: str, value: Any) -> Expr:
    """Return the value of an exponent as a number."""
    try:
        found = nsimplify(exact(key, value), rational=True)
        if found.is_number and found.is_real:
            return found
    except (ValueError, TypeError):
        pass
    raise NotApplicable(f"{key} = {value!r}: must be a number, such as 1/2")


def named(program: Program, constraints: Constraints | None = None) -> dict[str, dict[str, Expr]]:
    """Return common parametrizations of a program, by the number of terms in the sum that a weight enters.

    ``constraints`` are those of the program, if they are known already.

    - ``NTK``: the scale is the root of the number of terms, ``N^-1/2``; entries and outputs are of order one;
    - ``mean-field``: the same with outputs divided by ``N^1/2``, as programs here are written;
    - ``standard``: no scales; the variance is one over the number of terms; the raw rate is fixed;
    - ``standard, rate 1/N``: the same with a raw rate of order 1/N;
    - ``muP``: the solution of all four requirements of :func:`.width_constraints`; free exponents are as in
    ``NTK``.

    >>> from derive.program import mlp
    >>> {k: v["b_W"] for k, v in named(mlp(2, "tanh")).items()}
    {'NTK': 0, 'mean-field': 0, 'standard': 1, 'standard, rate 1/N': 1, 'muP': 1}
    """
    own, names = as_written(program), weights(program)
    flat = dict.fromkeys(own, S.Zero)
    ntk = flat | {f"a_{k}": own[f"a_{k}"] for k in names}
    plain = flat | {f"b_{k}": 2 * own[f"a_{k}"] for k in names}
    found = {"NTK": ntk, "mean-field": own, "standard": plain, "standard, rate 1/N": plain | {"c": S.One}}
    maximal = (constraints or width_constraints(program)).maximal_update()
    free = {x: ntk[family_name(x)] for v in maximal.values() for x in v.atoms(AppliedUndef, Symbol)}
    found["muP"] = {family_name(x): v.xreplace(free) for x, v in maximal.items()}
    return found


def family_name(x: Expr) -> str:
    """Return the name of an exponent, for a member that of its family."""
    return str(x.func) if isinstance(x, AppliedUndef) else str(x)


def _called(node: QuantityAtLayer) -> str:
    """Return a field or number at its layer as text."""
    name, site = node
    return name if site is None else f"{name}({site})"


# -- which exponents are one network -------------------------------------------------------------------------


def symmetries(program: Program) -> tuple[dict[Expr, Expr], ...]:
    """Return the directions in which exponents may change without any change of training.

    Fields X are rescaled by ``N^x`` and raw weights by ``N^w``. Every term of every definition and update
    must have the power of the quantity that it defines; functions that are not homogeneous fix their fields.
    This is a linear system for the shifts, at any N and for any number of steps. The result are its solutions
    by exponent, as far as exponents change. The depth must be a number.

    >>> from derive.program import mlp
    >>> for shift in symmetries(mlp(2, "tanh")): print(shift)
    {d: 1, a_w: -1, c: 2}
    {a_W(1): 1, a_W0: 1, a_w: 1, b_W(1): -2, b_W0: -2, b_w: -2, c: -2}
    """
    return _Symmetry(program).directions()


class _Symmetry:
    """Linear system for shifts of exponents, of fields and of raw weights."""

    def __init__(self, program: Program) -> None:
        self.program, self.weights = parametrized(program), weights(program)
        self.read = Counting(self.program)
        self.exponents = unknowns(program)
        self.rows: list[Expr] = []

    def directions(self) -> tuple[dict[Expr, Expr], ...]:
        """Return the null space of the system, as far as exponents are concerned."""
        for x, env in self.read.rules.values():  # every term must have the power of the defined field
            whole = self.shift(x.lhs, env)
            self.rows += [y - whole for y in self.shifts(x.rhs, env)]
        for w in self.program.trained():  # an update must have the power of the raw weight
            u = w.update
            bodies = (u.vector,) if isinstance(w, TrainedVector) else (u.left, u.right)  # type: ignore[union-attr]
            for env in self.read.members(families(w.initial)):
                for inner in self.read.members(u.over):
                    found = self.shifts(Mul(u.coefficient, *bodies), {**env, **inner})
                    self.rows += [y - self.raw(w.name, env) for y in found]
        for name, start in weights(self.program).items():  # and so must its initial standard deviation
            for env in self.read.members(families(start)):
                (power,) = self.powers(sympify(start.variance), env)
                self.rows.append(power / 2 - self.raw(name, env))
        asked = [x for x in self.exponents if any(row.has(x) for row in self.rows)]
        # d first and c last, so that the reduced basis has simple directions
        own = [x for x in (d, *sorted(set(asked) - {c, d}, key=str), c) if x in asked]
        hidden = sorted({x for row in self.rows for x in row.free_symbols} - set(self.exponents), key=str)
        M = Matrix([[row.expand().coeff(x) for x in (*hidden, *own)] for row in self.rows])
        found = [list(vector[len(hidden) :]) for vector in M.nullspace()]
        basis = Matrix(found).rref()[0].tolist() if found else []
        return tuple({x: v for x, v in zip(own, row, strict=True) if v != 0} for row in basis if any(row))

    def shifts(self, e: Expr, env: IndexExpressions) -> list[Expr]:
        """Return the power of each term of an expression."""
        if isinstance(e, Add):
            return [x for y in e.args for x in self.shifts(y, env)]
        if isinstance(e, Mean | Sum):
            return self.shifts(e.args[0], env)
        if isinstance(e, Product):
            raw = self.weight(gaussian(self.program.matrix_of(e)), e.matrix, env)
            return [raw + x for x in self.shifts(e.vector, env)]
        if self.read.is_number(e):
            return self.powers(e, env)
        if isinstance(e, Mul):
            total: list[Expr] = [S.Zero]
            for factor in e.args:
                found = self.shifts(factor, env)
                total = [x + y for x in total for y in found]
            return total
        return self.factor_shifts(e, env)

    def factor_shifts(self, e: Expr, env: IndexExpressions) -> list[Expr]:
        """Return the power of a factor: a power, a weight, given data, a field or a function of fields."""
        if isinstance(e, Pow) and e.exp.is_Integer and e.exp.is_positive:
            return [e.exp * x for x in self.shifts(e.base, env)]
        for v in self.weights.values():
            if isinstance(v, GaussianVector) and e in v.uses(e):
                return [self.weight(v, e, env)]
        if isinstance(e, AppliedUndef) and self.program.given_of(str(e.func)):
            return [S.Zero]
        inside = sorted((x for x in e.atoms(AppliedUndef) if self.read.is_field(x, env)), key=str)
        moved = [self.shift(x, env) for x in inside]
        if e in inside:
            return moved
        degree = shape_of(e, inside).degree
        if degree is not None and len(inside) == 1:  # such as relu, which is homogeneous
            return [degree * moved[0]]
        self.rows += moved
        return [S.Zero]

    def shift(self, field: AppliedUndef, env: IndexExpressions) -> Expr:
        """Return the rescaling of a field; outputs and errors are not rescaled."""
        name = str(field.func)
        return S.Zero if name in self.program.scalars else Symbol(f"x_{name}_{self.read.site(field, env)}")

    def weight(self, w: GaussianWeight, used: Expr, env: IndexExpressions) -> Expr:
        """Return the rescaling of the used member of a family of weights; data are not rescaled."""
        at = dict(zip(w.symbol.args, (x.subs(env) for x in used.args), strict=True))
        return self.raw(w.name, at) if w.name in self.weights else S.Zero

    def raw(self, name: str, env: IndexExpressions) -> Expr:
        """Return the rescaling of a raw weight."""
        layer = layer_index(self.weights[name])
        return Symbol(f"w_{name}_{'' if layer is None else env[layer]}")

    def powers(self, e: Expr, env: IndexExpressions) -> list[Expr]:
        """Return the changes of the powers of N of a number: their parts linear in the exponents."""
        found = [x.xreplace({_INSIDE: c}) for x in powers(e.subs(env))]
        return [x - x.xreplace(dict.fromkeys(self.exponents, S.Zero)) for x in found]
