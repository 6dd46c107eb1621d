"""Width parametrizations of a program (selfconsistent2023 N.1, N.2): conditions, families and equivalences.

    width_constraints(mlp(3, "tanh")).family()

Every weight W is applied as ``N^-a W`` and has the initial variance ``N^-b``; the raw learning rate is ``eta
gamma^2 N^-c`` with ``gamma = gamma0 N^d``. The programs of this package have ``a = 1/2`` for matrices that
act on a layer and for the readout, ``a = 0`` for those that act on the inputs and for vectors that are added
to a field or multiply it, ``b = c = 0`` and ``d = 1/2``; :func:`parametrized` changes these values.

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
from derive.errors import NotApplicable, require_integer, require_type
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
"""Name of the exponent c in programs whose output channels have the index c."""


def weights(program: Program) -> dict[str, GaussianWeight]:
    """Return every weight of a program at its initial value, by name.

    Matrices and vectors that are drawn anew at each step, such as fresh batches, are left out. A random
    matrix of fixed samples counts as a weight.
    """
    starts: list[GaussianWeight] = [*map(gaussian, program.matrices), *map(parameter, program.vectors)]
    return {x.name: x for x in starts if not x.fresh}


def as_written(program: Program) -> dict[str, Expr]:
    """Return the exponents of the width with which a program is written, by name.

    A weight W is applied as ``N^-a_W W``, its initial variance is of order ``N^-b_W``, the learning rate is
    of order ``N^-c``, and outputs are divided by ``N^d``. ``c`` is left out if all trained weights have
    entrywise rules.

    >>> from derive.program import mlp
    >>> as_written(mlp(1))
    {'a_W0': 0, 'b_W0': 0, 'a_W': 1/2, 'b_W': 0, 'a_w': 1/2, 'b_w': 0, 'c': 0, 'd': 1/2}
    """
    exponents: dict[str, Expr] = {}
    for name, w in weights(program).items():
        if isinstance(w, GaussianMatrix):
            scaled = not w.cols.given
        else:
            scaled = any(_alone(x.rhs, used) for x in program.definitions for used in w.uses(x.rhs))
            scaled = scaled and not is_gain(program, w)
        exponents |= {f"a_{name}": HALF if scaled else S.Zero, f"b_{name}": S.Zero}
    return exponents | ({"c": S.Zero} if linear_weights(program) else {}) | {"d": HALF}


def is_gain(program: Program, w: GaussianVector) -> bool:
    """Return whether a vector of weights multiplies, in the forward pass, a function that is not a constant.

    Such a vector is a gain; the function is a field in most programs.
    """
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
    """Return the entrywise training rules, by the names of their weights; other weights are left out."""
    return {w.name: w.rule for w in program.trained() if isinstance(w.rule, Entrywise)}


def linear_weights(program: Program) -> bool:
    """Return whether at least one weight is trained by a rule that is not entrywise."""
    return len(entrywise_rules(program)) < len([*program.trained()])


def symbols_of(program: Program) -> dict[str, Expr]:
    """Return the symbol of each exponent of a parametrization by name.

    The exponents are a (multiplier) and b (variance) of each weight, c (learning rate) and d (output). Those
    of a family of weights are functions of the layer. A weight W with an entrywise rule has its own c_W, and
    e_W (epsilon) and s_W (decay) if its rule has these; c is left out if all trained weights have such rules.

    >>> from derive.program import mlp
    >>> symbols_of(mlp(2))
    {'a_W0': a_W0, 'b_W0': b_W0, 'a_W': a_W(ell), 'b_W': b_W(ell), 'a_w': a_w, 'b_w': b_w, 'c': c, 'd': d}
    """
    symbols_: dict[str, Expr] = {}
    rules = entrywise_rules(program)
    for name, w in weights(program).items():
        index = layer_index(w)
        for letter in "ab" + _letters(rules.get(name)):
            key = f"{letter}_{name}"
            symbols_[key] = Symbol(key, real=True) if index is None else Function(key, real=True)(index)
    return symbols_ | ({"c": c} if linear_weights(program) else {}) | {"d": d}


def _letters(rule: Entrywise | None) -> str:
    """Return the letters of the exponents of N that an entrywise rule has, in one string such as ``ces``.

    c is the exponent of its learning rate, e that of its parameters in units of the gradient, such as
    epsilon, and s that of its decay. e and s are missing if the rule has no such parameter or no decay. The
    string is empty for None, which stands for a weight without an entrywise rule.
    """
    if rule is None:
        return ""
    units, decays = bool(rule_degrees(rule).parameters), bool(rule.decay != 0)
    return "c" + "e" * units + "s" * decays


def parametrized(program: Program, exponents: Mapping[Any, Any] | None = None) -> Program:
    """Return the program with powers of N in its multipliers, variances, learning rates and output.

    Parameters
    ----------
    program : Program
        Program.
    exponents : Mapping[Any, Any] | None, optional
        Exponents of these powers by name or symbol, as in :func:`with_exponents`; others stay symbols.

    Returns
    -------
    Program
        The program. Multipliers stand where a weight is applied, forwards and backwards, and in the gradient
        with respect to the raw weight; ``gamma0`` (the program's ``scale``) becomes ``gamma0 N^(d - 1/2)``.

    Raises
    ------
    NotApplicable
        If the program's ``scale`` is not a symbol, if a weight is trained with noise or by a nonlinear rule
        that does not act on each entry, if a trained matrix is used in several places of the forward pass,
        and as :func:`with_exponents` does.

    Examples
    --------
    >>> from derive.program import mlp
    >>> program = parametrized(mlp(2))
    >>> program.definitions[1].rhs
    N**(1/2 - a_W(ell))*(W(ell) @ h(ell, mu, t))
    >>> program.matrices[1].update.coefficient
    N**(1/2 - a_W(ell))*N**(d - 1/2)*gamma0*Delta(alpha, t)/N**c
    """
    used_once(program, "exponents of the width")
    linear = [w for w in program.trained() if not isinstance(w.rule, Entrywise)]
    require_linear_rules(linear, "counting powers of the width")
    if not isinstance(program.scale, Symbol):
        raise NotApplicable(
            f"the outputs of {program.name} have the scale {program.scale}, which must be a symbol: divide "
            "the outputs by gamma0, and write the program with scale=gamma0"
        )
    rescaling = _Rescaling.of(program)
    families = {str(x.func) for x in rescaling.exponents.values() if isinstance(x, AppliedUndef)}
    rescaled = replace(
        program,
        definitions=tuple(replace(x, rhs=rescaling.applied(x.rhs)) for x in program.definitions),
        matrices=tuple(map(rescaling.trained, program.matrices)),
        vectors=tuple(map(rescaling.trained, program.vectors)),
        constants=(*program.constants, *sorted(families - set(program.constants))),
    )
    return rescaled if exponents is None else with_exponents(rescaled, exponents)


@dataclass(frozen=True)
class _Rescaling:
    """Change of a program from its written exponents of the width N to symbolic ones.

    Attributes
    ----------
    program
        Program as it is written.
    exponents
        Symbolic exponents by name.
    scales
        New multiplier of each weight over its written multiplier, a power of N, by weight.
    larger
        Replacement of the program's scale gamma0 by gamma0 times a power of N.
    rate
        Exponent c of the raw learning rate ``N^-c``.
    """

    program: Program
    exponents: Mapping[str, Expr]
    scales: Mapping[str, Expr]
    larger: Mapping[Expr, Expr]
    rate: Expr

    @classmethod
    def of(cls, program: Program) -> _Rescaling:
        """Return the change of a program from its written exponents of N to symbolic ones."""
        old, new = as_written(program), symbols_of(program)
        scales = {name: N ** (old[f"a_{name}"] - new[f"a_{name}"]) for name in weights(program)}
        larger = {program.scale: program.scale * N ** (d - old["d"])}
        return cls(program, new, scales, larger, _INSIDE if _channels_called_c(program) else c)

    def multiplied(self, w: GaussianWeight, used: Expr, symbol: Expr) -> Expr:
        """Return the use of a weight in an expression, times the ratio of its new to its written multiplier.

        ``used`` is the use, such as a matrix product, and ``symbol`` the weight in it with its layer.
        """
        return self.scales[w.name].xreplace(dict(zip(w.symbol.args, symbol.args, strict=True))) * used

    def applied(self, e: Expr) -> Expr:
        """Return a right-hand side in which all weights have the symbolic multipliers ``N^-a``."""
        e = e.xreplace(self.larger)
        products = ((gaussian(self.program.matrix_of(x)), x) for x in e.atoms(Product))
        changed = {x: self.multiplied(w, x, x.matrix) for w, x in products if w.name in self.scales}
        for w in weights(self.program).values():
            if isinstance(w, GaussianVector):
                changed |= {x: self.multiplied(w, x, x) for x in w.uses(e)}
        return e.xreplace(changed)

    def initial(self, w: Any) -> Any:
        """Return the initial value of a weight with its variance multiplied by ``N^-b``, b being symbolic.

        A matrix or vector that is drawn anew at each step has no exponents, and is returned unchanged.
        """
        if w.name not in self.scales:
            return w
        return replace(w, variance=sympify(w.variance) * N ** -self.exponents[f"b_{w.name}"])

    def trained(self, w: Any) -> Any:
        """Return a weight whose initial variance, update and rule contain the symbolic exponents of N.

        Raises NotApplicable for a rule with noise.
        """
        if isinstance(w, GaussianMatrix | GaussianVector):
            return self.initial(w)
        if sympify(getattr(w.rule, "diffusion", 0)) != 0:
            raise NotApplicable(f"{w.name} is trained with noise, whose power of the width N is not counted")
        if isinstance(w.rule, Entrywise):
            return self.entrywise(w, w.rule)
        scale, u = self.scales[w.name], w.update
        rescaled = replace(u, coefficient=u.coefficient.xreplace(self.larger) * scale * N**-self.rate)
        if isinstance(w, TrainedMatrix) and u.gradient is not None:
            rescaled = replace(rescaled, gradient=u.gradient.xreplace(self.larger) * scale)
        return replace(w, initial=self.initial(w.initial), update=rescaled)

    def entrywise(self, w: Any, rule: Entrywise) -> Any:
        """Return a weight whose entrywise rule acts on the gradient with respect to the raw weight.

        The raw weight R is the weight without its multiplier. It moves by ``R += rate Q(-d loss/d R)``.
        """
        u = w.update
        # An update of the program adds U/N to a matrix W/sqrt(N), and therefore U/sqrt(N) to W. The factor
        # `root` cancels this 1/sqrt(N), so that the rate is that of W. Matrices that act on given vectors,
        # and vectors of weights, need no factor.
        root = sqrt(N) if isinstance(w, TrainedMatrix) and not w.initial.cols.given else S.One
        inner_factor = (u.coefficient / u.outside).xreplace(self.larger)
        outside = u.outside * root
        gradient = inner_factor * self.scales[w.name] / (self.larger[self.program.scale] * N * root)
        rescaled = replace(u, coefficient=outside * gradient, outside=outside)
        rule = _rescaled(rule, w.name, self.exponents)
        return replace(w, initial=self.initial(w.initial), update=rescaled, rule=rule)


def _channels_called_c(program: Program) -> bool:
    """Return whether an index of the program has the name c, as the exponent of the learning rate does."""
    return any(r.index.name == c.name for x in program.definitions for r in x.ranges)


def _rescaled(rule: Entrywise, name: str, exponents: Mapping[str, Expr]) -> Entrywise:
    """Return an entrywise rule with symbolic powers of N in its rate, parameters and decay.

    ``name`` is that of the weight, and ``exponents`` has the exponents by name, such as ``c_W``.
    """
    units = {x: x * N ** (-p * exponents[f"e_{name}"]) for x, p in rule_degrees(rule).parameters.items()}
    decay_exponent = exponents.get(f"s_{name}", S.Zero)
    changed = _rewritten(rule, lambda e: e.xreplace(units))
    return replace(
        changed, rate=rule.rate * N ** -exponents[f"c_{name}"], decay=rule.decay * N**-decay_exponent
    )


def _rewritten(rule: Entrywise, function: Callable[[Expr], Expr]) -> Entrywise:
    """Return an entrywise rule with ``function`` applied to its rate, function Q, decay and states."""
    states = tuple((x, function(e)) for x, e in rule.states)
    return replace(
        rule, rate=function(rule.rate), Q=function(rule.Q), decay=function(rule.decay), states=states
    )


def _alone(e: Expr, used: Expr) -> bool:
    """Return whether ``e`` is a vector of weights, ``used``, times a factor that does not contain it."""
    return len(terms(e)) == 1 and not (e / used).has(used)


def families(w: GaussianWeight) -> tuple[IndexRange, ...]:
    """Return the ranges of the indices of a family of weights; empty for a single weight.

    For a family of matrices only the range of the layer is returned.
    """
    if isinstance(w, GaussianVector):
        return w.indices
    return () if w.index is None else (w.index,)


def layer_index(w: GaussianWeight) -> Symbol | None:
    """Return the symbol of the layer in a family of weights; None for weights without layers.

    Weights of one layer share an exponent.
    """
    if isinstance(w, GaussianVector):
        site = w.population.site
        return next((r.index for r in w.indices if site is not None and sympify(site).has(r.index)), None)
    return None if w.index is None else w.index.index


# -- requirements --------------------------------------------------------------------------------------------


FREE = Symbol("a", real=True)
FIELDS = "fields of order one at the start"
OUTPUTS = "outputs that move in time of order one"
FEATURES = "fields that move by order one"
RAW_RATE = "raw learning rate of order one"
REQUIREMENTS = (FIELDS, OUTPUTS, FEATURES, RAW_RATE)
UNITS = "parameters in units of the gradient as large as the gradient"
SHARE = "fraction of a weight that decay removes in a step of order one"
ENTRYWISE = (UNITS, SHARE)
"""Requirements on the rules of weights that move by entrywise rules."""
COUNTED = (
    "assumed: the width N goes to infinity at a fixed number of updates, samples and layers",
    "assumed: averages over units are of order one, unless the sign of a Gaussian source makes them vanish",
)
"""Conditions of every count of powers of the width."""


@dataclass(frozen=True)
class Condition:
    """Condition on exponents: ``N^power`` must be of order one.

    It is the order of the quantity ``what`` before training, or of its change by an update of ``weight``.
    ``requirement`` is the name of the requirement, and ``weight`` the weight whose updates change the
    quantity or whose rule it belongs to. ``weight`` is None for quantities before training and for the raw
    learning rate.
    """

    requirement: str
    what: str
    power: Expr
    weight: str | None = None

    @property
    def equation(self) -> Eq:
        """Equation ``power = 0`` for the power of N of the quantity, which then stays of order one."""
        return Eq(self.power, 0, evaluate=False)


@dataclass(frozen=True, repr=False)
class Constraints(ConditionalResult):
    """Conditions on the exponents of the width N in a program: powers of N that must be zero.

    The exponents belong to multipliers and variances of weights, learning rates and the output. See
    :func:`width_constraints`.
    """

    program: Program
    powers: tuple[Condition, ...]

    def conditions(self) -> tuple[str, ...]:
        """Return the conditions of the power counting in the width, as sentences.

        Each sentence begins with "assumed:", or with "derived:" if it states a derived result.
        """
        return (*COUNTED, "derived: the powers of N of fields at the start, and of their first update")

    @cached_property
    def unknowns(self) -> tuple[Expr, ...]:
        """Symbols of the exponents that the conditions may determine: those of each weight, then c and d.

        c belongs to the learning rate ``N^-c``, and d to the output, which is divided by ``N^d``. c is left
        out if all trained weights have entrywise rules, which have rates of their own.
        """
        return unknowns(self.program)

    def of(self, requirement: str) -> tuple[Condition, ...]:
        """Return the conditions on exponents that belong to one requirement, given by its name.

        A name is an entry of REQUIREMENTS or ENTRYWISE. Raises ``KeyError`` for any other name.
        """
        known = (*REQUIREMENTS, *ENTRYWISE)
        if requirement not in known:
            raise KeyError(f"requirement = {requirement!r}: must be one of {', '.join(map(repr, known))}")
        return tuple(x for x in self.powers if x.requirement == requirement)

    @property
    def equations(self) -> tuple[Eq, ...]:
        """Linear equations for the exponents from all requirements except that on the raw learning rate.

        Equal equations are listed once.
        """
        return tuple(dict.fromkeys(x.equation for x in self.powers if x.requirement != RAW_RATE))

    @property
    def inequalities(self) -> tuple[Le, ...]:
        """Conditions as upper bounds of powers of N: quantities may vanish with the width but not diverge.

        Those of the first update are counted with fields of order one; :func:`width_class` counts further
        updates.
        """
        return tuple(Le(*x.args, evaluate=False) for x in self.equations)

    def solution(self, *requirements: str) -> dict[Expr, Expr]:
        """Return values of exponents that satisfy the named ``requirements``, in terms of free exponents.

        Keys are the exponents that the requirements determine; exponents that stay free are left out. Names
        are those of :meth:`of`. Raises :class:`NotApplicable` if no exponents satisfy the requirements.
        """
        return solve_linear([x.power for r in requirements for x in self.of(r)], self.unknowns)

    def family(self) -> dict[Expr, Expr]:
        """Return all exponents that satisfy the requirements, in terms of one parameter ``a``.

        The requirement on the raw learning rate is not used. ``a`` is the exponent of the multiplier of the
        first trained matrix between layers; without such a matrix it is that of the trained readout.
        Exponents of weights without conditions are left out; further free exponents are their own symbols.
        """
        solved = self.solution(FIELDS, OUTPUTS, FEATURES, *ENTRYWISE)
        exponents = {x: solved.get(x, x) for x in self.unknowns if any(y.power.has(x) for y in self.powers)}
        leading = exponents[self._lead]
        free = [x for x in self.unknowns if leading.has(x)]
        substitution = solve_linear([leading - FREE], (free[0],)) if free else {}
        return {x: v.xreplace(substitution) for x, v in exponents.items()}

    def maximal_update(self) -> dict[Expr, Expr]:
        """Return the exponents that satisfy all requirements, with a raw learning rate of order one (muP).

        Raises :class:`NotApplicable` if no exponents satisfy them, and if no weight has a linear rule: with
        entrywise rules, weights have rates of their own.
        """
        family = self.family()
        if not self.of(RAW_RATE):
            raise NotApplicable(
                "every weight has a learning rate of its own, so that no common learning rate determines a, "
                "the exponent of the multiplier of the first matrix between layers (of the readout, if there "
                "is no such matrix)"
            )
        (rate,) = (x.power.xreplace(family) for x in self.of(RAW_RATE))
        solution = solve_linear([rate], (FREE,))
        return {x: v.xreplace(solution) for x, v in family.items()}

    @cached_property
    def symmetries(self) -> tuple[dict[Expr, Expr], ...]:
        """Independent changes of exponents that leave training the same at every width.

        Each is a dictionary from exponents to their changes, as :func:`symmetries` returns it.
        """
        return symmetries(self.program)

    @property
    def _lead(self) -> Expr:
        """Symbol of the exponent in terms of which the family of solutions is written.

        It belongs to the multiplier of the first trained matrix between layers, or of the trained readout if
        there is no such matrix.
        """
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
        Conditions in this order: fields before training, each counted with the earlier fields of order one;
        epsilon and decay of entrywise rules; changes by one update, to first order, with fields of order one;
        the raw learning rate, if a weight has a linear rule. Conditions that hold for all exponents are left
        out. For outputs only changes that do not vanish on average are included (feedback
        alignment has others, which matter once weights have aligned).

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
    conditions = [
        Condition(FIELDS, _called(node), p.power)
        for node, parts in started.initial.items()
        if node[0] not in program.scalars
        for p in parts
        if not p.chance or all(q.chance for q in parts)
    ]
    names = unknowns(program)
    solved = solve_linear([x.power for x in conditions], names)
    conditions += _units(program, solved)
    solved = solve_linear([x.power for x in conditions], names)
    updated = count_powers(
        with_exponents(parametrized(program), solved), 1, assumed=True, first=True, spectral=spectral
    )
    for requirement, nodes in ((OUTPUTS, outputs(program)), (FEATURES, fields(updated))):
        for node in nodes:
            systematic = updated.change_by_weight(*node, systematic=True)
            # `systematic` has the changes that do not average to zero, by weight. For outputs only these
            # count. For fields, a weight without such a change counts with its change of zero mean.
            changes = systematic if requirement == OUTPUTS else updated.change_by_weight(*node) | systematic
            conditions += [
                Condition(requirement, _called(node), x, weight)
                for weight, forms in changes.items()
                for x in forms
            ]
    if linear_weights(program):
        conditions.append(Condition(RAW_RATE, "eta", 2 * d - c))
    conditions = [replace(x, power=x.power.xreplace({_INSIDE: c})) for x in conditions]
    return Constraints(program, tuple(dict.fromkeys(x for x in conditions if x.power != 0)))


def _units(program: Program, solved: Mapping[Any, Expr]) -> list[Condition]:
    """Return the conditions on epsilon and weight decay of all entrywise rules.

    epsilon must scale with N as the gradient of its weight, and decay must remove a fraction of order one.
    ``solved`` are exponents that other conditions determine.
    """
    rules, symbols_ = entrywise_rules(program), symbols_of(program)
    if not rules:
        return []
    counting, conditions = Counting(program), []
    sizes = gradient_powers(with_exponents(parametrized(program), solved))
    for w in program.trained():
        for env in counting.members(counting.ranges_of(w)):
            name = member_name(w.name, tuple(env.values()))
            e, decay = (
                symbols_[key].subs(env) if (key := f"{x}_{w.name}") in symbols_ else None for x in "es"
            )
            if e is not None and name in sizes:
                conditions.append(
                    Condition(
                        UNITS, f"epsilon of {name} over its gradient", (-e - sizes[name]).expand(), name
                    )
                )
            if decay is not None:
                conditions.append(Condition(SHARE, f"decay of {name}", -decay, name))
    return conditions


def with_exponents(program: Program, values: Mapping[Any, Expr]) -> Program:
    """Return the program with values in place of symbolic exponents of N, which are given by name or symbol.

    An exponent of a family of weights has one value for all layers (``a_W``), or one for each layer
    (``a_W(1)``), which is used if both are given; the depth must then be a number. Exponents without a value
    stay symbolic. Raises NotApplicable for names of no exponent, for layers that do not exist, and for a
    program without symbolic exponents, and as :func:`.exact` does for values that are not numbers.
    """
    require_type(program, Program, "with_exponents", "a program")
    by_name = {key: exact(key, v) for key, v in _by_name(program, values).items()}
    layers = _layers_of_exponents(program)

    def put(e: Expr) -> Expr:
        e = sympify(e)
        named = {x: c.name if x == _INSIDE else str(x) for x in e.free_symbols if not x.is_integer}
        substitutions = {x: by_name[name] for x, name in named.items() if name in by_name}
        for x in e.atoms(AppliedUndef):
            name = str(x.func)
            if any(k.startswith(f"{name}(") for k in by_name):
                members = [x.func(i) for i in layers[name]]
                found = [by_name.get(str(y), by_name.get(name, y)) for y in members]
                substitutions[x] = Listed(x.args[0], Integer(layers[name][0]), *found)
            elif name in by_name:
                substitutions[x] = by_name[name]
        return e.xreplace(substitutions)

    changed = program.map(put)

    def ruled(w: Any) -> Any:
        """Return the weight with values in place of the exponents in its entrywise rule, if it has one.

        The enclosing function gives the values; a weight without such a rule is returned unchanged.
        """
        rule = getattr(w, "rule", None)
        return replace(w, rule=_rewritten(rule, put)) if isinstance(rule, Entrywise) else w

    changed = replace(
        changed, matrices=tuple(map(ruled, changed.matrices)), vectors=tuple(map(ruled, changed.vectors))
    )
    if by_name and changed == program:
        raise NotApplicable(
            f"the exponents {', '.join(by_name)} have no effect, because the program has no symbols for "
            "them: use parametrized(program, exponents), which writes these powers of N into the program"
        )
    return changed


def _layers_of_exponents(program: Program) -> dict[str, range]:
    """Return the layers of each exponent of a family, by its name such as ``a_W``.

    Families of symbolic depth are left out.
    """
    layers = {}
    for name, w in weights(program).items():
        for r in families(w):
            if r.index == layer_index(w) and r.lower.is_Integer and r.upper.is_Integer:
                layers[name] = range(int(r.lower), int(r.upper) + 1)
    return {key: layers[key[2:]] for key in symbols_of(program) if key[2:] in layers}


def _by_name(program: Program, exponents: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of exponents of N, which are given by name or symbol, by name.

    ``a_W`` is the exponent of a family of weights, and ``a_W(1)`` that of its member of layer 1. Raises
    NotApplicable for names that are not exponents of the program, and for layers that do not exist.
    """
    require_type(exponents, Mapping, "exponents", "a mapping from names to numbers, such as {'a_w': 0}")
    known, layers = symbols_of(program), _layers_of_exponents(program)
    families_ = {str(x): name for name, x in known.items()}
    names = {families_.get(str(x), str(x)): v for x, v in exponents.items()}
    unknown = [x for x in names if x.partition("(")[0] not in known]
    if unknown:
        raise NotApplicable(
            f"exponents: {', '.join(sorted(unknown))} unknown; the exponents of the program are "
            f"{', '.join(sorted(known))}"
        )
    for name in names:
        head, of_layer, _ = name.partition("(")
        if not of_layer:
            continue
        members = [f"{head}({i})" for i in layers.get(head, ())]
        if name not in members:
            reason = (
                "the depth is a symbol, so that layers have no exponents of their own"
                if head not in layers and isinstance(known[head], AppliedUndef)
                else f"the layers of the program have {', '.join(members) or 'no exponents of this kind'}"
            )
            raise NotApplicable(f"exponents: {name} unknown, because {reason}; give {head}")
    return names


def unknowns(program: Program) -> tuple[Expr, ...]:
    """Return the symbols of the exponents of a program of known depth: those of each weight, then c and d.

    c belongs to the learning rate ``N^-c``, and d to the output, which is divided by ``N^d``. Each layer of a
    family has its own exponents. c is left out if all trained weights have entrywise rules.
    """
    symbols_, counting = symbols_of(program), Counting(program)
    exponents: list[Expr] = []
    for name, w in weights(program).items():
        exponents_of_weight = [symbols_[key] for x in "abces" if (key := f"{x}_{name}") in symbols_]
        exponents += [x.subs(env) for env in counting.members(families(w)) for x in exponents_of_weight]
    return (*dict.fromkeys(exponents), *([c] if linear_weights(program) else []), d)


def outputs(program: Program) -> list[tuple[str, None]]:
    """Return the outputs of a program as pairs (name, None); None stands for no layer.

    They are the means over units of which the loss is a function. All means over units count if the loss is
    not known or contains no mean.
    """
    means = [x.name for x in program.definitions if x.name in program.scalars and x.rhs.has(Mean)]
    in_loss = set() if program.loss is None else {str(a.func) for a in program.loss.atoms(AppliedUndef)}
    return [(name, None) for name in means if name in in_loss or not in_loss & {*means}]


def fields(counted: Counted) -> list[tuple[str, Expr | None]]:
    """Return (name, layer) of all fields, which have one entry for each unit; numbers are left out."""
    return [(n, site) for n, site in counted.nodes if n not in counted.program.scalars]


def features(program: Program, counted: Counted) -> list[tuple[str, Expr | None]]:
    """Return the fields (name, layer) from which outputs are computed.

    Fields that are only a vector of weights times a factor are left out. ``counted`` lists all fields.
    """
    vectors = [parameter(v) for v in program.vectors]
    forward = forward_pass(program)
    names = {
        x.name for x in forward if not any(_alone(x.rhs, used) for v in vectors for used in v.uses(x.rhs))
    }
    return [node for node in fields(counted) if node[0] in names]


def forward_pass(program: Program) -> list[Definition]:
    """Return the definitions of the outputs and of all quantities from which they are computed."""
    named: dict[str, list[Definition]] = {x.name: [] for x in program.definitions}
    for x in program.definitions:
        named[x.name].append(x)
    pending: list[Definition] = [x for n, _ in outputs(program) for x in named[n]]
    result: list[Definition] = []
    while pending:
        x = pending.pop()
        if x not in result:
            result.append(x)
            for atom in x.rhs.atoms(AppliedUndef):
                same = named.get(str(atom.func), [])
                exact = [y for y in same if y.lhs.args[:1] == atom.args[:1]]
                pending += exact or same
    return result


def solve_linear(powers: list[Expr], names: tuple[Expr, ...]) -> dict[Expr, Expr]:
    """Return values of ``names`` for which all ``powers``, linear forms in them, vanish.

    Later names are expressed by earlier ones; names that stay free are left out. Raises
    :class:`NotApplicable` if there is no solution.
    """
    equations = [p.expand() for p in powers if p.expand() != 0]
    solutions = solve(equations, list(reversed(names)), dict=True) if equations else [{}]
    if not solutions:
        raise NotApplicable(
            "no exponents fulfil all of the conditions on powers of N: at no values of "
            f"{', '.join(map(str, names))} do all of these powers vanish: {', '.join(map(str, equations))}"
        )
    return {x: solutions[0][x] for x in names if x in solutions[0]}


# -- classes of given exponents ------------------------------------------------------------------------------


WidthPowers = Mapping[QuantityAtLayer, Expr | None]


@dataclass(frozen=True, repr=False)
class WidthClass(ConditionalResult):
    """Exponents of N in the sizes of all quantities of a program, and in their changes by training.

    These exponents are called powers below. A power is None if the quantity is zero, or does not change at
    all.

    Parameters
    ----------
    exponents : Mapping[str, Expr]
        Values of all exponents.
    start : WidthPowers
        Powers of all fields and numbers before training.
    rates : WidthPowers
        Powers of their change by the first update, to first order in the update.
    changes : WidthPowers
        Powers of their change after ``steps`` updates. Equal to ``rates`` if ``stable_at_start`` is false.
    hidden : tuple[QuantityAtLayer, ...]
        Fields from which outputs are computed.
    read : tuple[QuantityAtLayer, ...]
        Outputs.
    stable_at_start : bool
        Whether no quantity in ``hidden`` or ``read`` diverges before training. They may vanish.
    stable : bool
        Whether no quantity in ``hidden`` or ``read`` diverges, before training or in it.
    broken : tuple[str, ...]
        Sentences on those that diverge, on fields that are not of order one before training, and on outputs
        and fields that all change by less than order one.
    steps : int
        Number of updates that were counted: at most the number that was asked for, because the count ends
        with the first update after which a quantity diverges; 0 if that is so before training.
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
        """Return the conditions of the power counting in the width.

        Returns
        -------
        tuple[str, ...]
            Sentences; each begins with "assumed:", or with "derived:" if it states a derived result.
        """
        if self.stable:
            last = f"assumed: powers of N do not change after update {self.steps}"
        else:
            last = (
                "derived: the count of powers of N ends with the update after which a quantity diverges, and "
                "later updates are not counted"
            )
        return (*COUNTED, "derived: the powers of N of fields and outputs", last)

    @property
    def nontrivial(self) -> bool:
        """Whether training changes at least one output by order one, and is stable.

        It is stable if no output diverges, and no field from which outputs are computed.
        """
        return self.stable and any(self.changes[x] == 0 for x in self.read)

    @property
    def feature_learning(self) -> bool:
        """Whether training changes a field from which outputs are computed by order one, and is stable.

        It is stable if no such field and no output diverges.
        """
        return self.stable and any(self.changes[x] == 0 for x in self.hidden)

    @property
    def regime(self) -> str:
        """Name of the regime: feature learning, lazy, trivial, unstable or unstable at the start.

        In the lazy regime outputs change by order one and fields do not; in the trivial one neither does.
        """
        if not self.stable_at_start:
            return "unstable at the start"
        if not self.stable:
            return "unstable"
        return "feature learning" if self.feature_learning else "lazy" if self.nontrivial else "trivial"

    def _repr_latex_(self) -> str:
        changes = ((Symbol(_called(x)), p) for x, p in self.changes.items() if p is not None)
        return aligned_latex(Eq(x, N**p, evaluate=False) for x, p in changes)


def width_class(program: Program, exponents: Mapping[Any, Any], steps: int = 3) -> WidthClass:
    """Return the class of a program with given exponents.

    Parameters
    ----------
    program : Program
        Program.
    exponents : Mapping[Any, Any]
        Values of ``a_<weight>``, ``b_<weight>``, ``c`` and ``d`` (as names or symbols); ``a_W`` is for a
        family, and ``a_W(1)`` for one member; without ``a_W`` all members must be given. Weights with
        entrywise rules have further exponents, see :func:`symbols_of`.
    steps : int, optional
        Number of updates, at least 1. Without initial values of zero three are enough: after the first every
        trained weight has changed, and after the second every backward field.

    Returns
    -------
    WidthClass
        Powers of all quantities.

    Raises
    ------
    NotApplicable
        If exponents are missing, unknown or not numbers, if the depth is a symbol, and as
        :func:`parametrized` and :func:`.count_powers` raise it.
    ValueError
        If ``steps`` is not an integer of at least 1.

    Examples
    --------
    >>> from derive.program import mlp
    >>> ntk = {"a_W0": 0, "a_W": "1/2", "a_w": "1/2", "b_W0": 0, "b_W": 0, "b_w": 0, "c": 0, "d": 0}
    >>> found = width_class(mlp(2, "tanh"), ntk)
    >>> found.regime, found.changes["h", 2], found.broken
    ('lazy', -1/2, ('features move only as N^(-1/2)',))
    """
    require_type(program, Program, "width_class", "a program")
    steps = require_integer("steps", steps, 1)
    values = _read(program, exponents)
    rescaled = parametrized(program, values)
    linear = count_powers(rescaled, 1, first=True)
    hidden, outputs_ = tuple(features(program, linear)), tuple(outputs(program))
    start = {x: linear.power(*x) for x in linear.nodes}
    rates = {x: linear.change(*x) for x in linear.nodes}
    changes: WidthPowers = rates
    grows = [x for x in (*hidden, *outputs_) if (p := start[x]) is not None and p > 0]
    broken = [f"{_called(x)} is of order N^({start[x]}) at the start" for x in grows]
    stopped = linear.stopped is not None and not any(k == 1 for *_, k in linear.found)
    stable = begun = not grows and not stopped
    last = 0
    if begun:
        counted = count_powers(rescaled, steps, until=(*hidden, *outputs_))
        last = counted.steps
        when = f"update {last}"
        changes = {x: counted.change(*x, step=last) for x in linear.nodes}
        sizes = {x: counted.power(*x, step=last) for x in (*hidden, *outputs_)}
        diverging = [
            f"{_called(x)} grows as N^({p}) with {when}" for x, p in sizes.items() if p is not None and p > 0
        ]
        if counted.stopped is not None:
            diverging = diverging or [f"the count of powers ends with {when}: {counted.stopped}"]
        vanishing = [
            f"{_called(x)} is zero at the start"
            if start[x] is None
            else f"{_called(x)} vanishes as N^({start[x]}) at the start"
            for x in hidden
            if start[x] != 0
        ]
        broken += [*diverging, *vanishing]
        stable = not diverging
    for group, what in ((outputs_, "outputs"), (hidden, "features")) if stable else ():
        powers_ = [p for n in group if (p := changes[n]) is not None]
        if not powers_ or max(powers_) < 0:
            broken.append(f"{what} move only as N^({max(powers_)})" if powers_ else f"{what} do not move")
    return WidthClass(values, start, rates, changes, hidden, outputs_, begun, stable, tuple(broken), last)


def _read(program: Program, exponents: Mapping[Any, Any]) -> dict[str, Expr]:
    """Return the given exponents of N as rational numbers, by the names that were given.

    Raises NotApplicable for unknown or missing names, and for values that are not numbers.
    """
    by_name = {key: _number(key, v) for key, v in _by_name(program, exponents).items()}
    missing = set()
    for x in unknowns(program):
        family = family_name(x)
        if not {str(x), family} & {*by_name}:
            missing.add(str(x) if any(key.startswith(f"{family}(") for key in by_name) else family)
    if missing:
        raise NotApplicable(f"exponents: {', '.join(sorted(missing))} missing; give a number for each")
    return by_name


def _number(key: str, value: Any) -> Expr:
    """Return the value of the exponent ``key`` as a rational number.

    Raises NotApplicable for a value that is not a real number.
    """
    try:
        number = nsimplify(exact(key, value), rational=True)
        if number.is_number and number.is_real:
            return number
    except (ValueError, TypeError):
        pass
    raise NotApplicable(f"{key} = {value!r}: must be a real number, such as 1/2")


def named(program: Program, constraints: Constraints | None = None) -> dict[str, dict[str, Expr]]:
    """Return common parametrizations of a program by name, each as values of its exponents of N.

    ``constraints`` are those of the program, if they are known already. Below, the number of terms is that of
    the sum over units that a weight enters. Raises NotApplicable if all trained weights have entrywise rules.

    - ``NTK``: the multiplier is one over the root of the number of terms; entries are of order one, and
      outputs are not divided;
    - ``mean-field``: the same with outputs divided by ``N^1/2``, as programs here are written;
    - ``standard``: no multipliers; the variance is one over the number of terms; the raw rate is fixed;
    - ``standard, rate 1/N``: the same with a raw rate of order 1/N;
    - ``muP``: the solution of all four requirements of :func:`.width_constraints`; free exponents are as in
      ``NTK``.

    >>> from derive.program import mlp
    >>> {k: v["b_W"] for k, v in named(mlp(2, "tanh")).items()}
    {'NTK': 0, 'mean-field': 0, 'standard': 1, 'standard, rate 1/N': 1, 'muP': 1}
    """
    written, names = as_written(program), weights(program)
    flat = dict.fromkeys(written, S.Zero)
    ntk = flat | {f"a_{k}": written[f"a_{k}"] for k in names}
    standard = flat | {f"b_{k}": 2 * written[f"a_{k}"] for k in names}
    parametrizations = {
        "NTK": ntk,
        "mean-field": written,
        "standard": standard,
        "standard, rate 1/N": standard | {"c": S.One},
    }
    maximal = (constraints or width_constraints(program)).maximal_update()
    free = {x: ntk[family_name(x)] for v in maximal.values() for x in v.atoms(AppliedUndef, Symbol)}
    parametrizations["muP"] = {family_name(x): v.xreplace(free) for x, v in maximal.items()}
    return parametrizations


def family_name(x: Expr) -> str:
    """Return the name of an exponent without the index of the member, such as ``a_W`` for ``a_W(1)``."""
    return str(x.func) if isinstance(x, AppliedUndef) else str(x)


def _called(node: QuantityAtLayer) -> str:
    """Return the name of a field or number with its layer as text, such as ``h(2)``.

    ``node`` is the pair (name, layer); the layer None is left out.
    """
    name, site = node
    return name if site is None else f"{name}({site})"


# -- equivalent exponents ------------------------------------------------------------------------------------


def symmetries(program: Program) -> tuple[dict[Expr, Expr], ...]:
    """Return the directions in which exponents may change without any change of training.

    Fields X are rescaled by ``N^x`` and raw weights by ``N^w``. Every term of every definition and update
    must have the power of the quantity that it defines; a function that is not homogeneous forbids a
    rescaling of its arguments. A step of an entrywise rule has the degree of the rule in the gradient. This
    is a linear system for the shifts of exponents, at any N and for any number of steps. The result is a
    basis of its solutions, as changes of exponents. The depth must be a number.

    >>> from derive.program import mlp
    >>> for shift in symmetries(mlp(2, "tanh")): print(shift)
    {d: 1, a_w: -1, c: 2}
    {a_W(1): 1, a_W0: 1, a_w: 1, b_W(1): -2, b_W0: -2, b_w: -2, c: -2}
    """
    return _Symmetry(program).directions()


class _Symmetry:
    """Linear system for changes of exponents of the width that leave training the same.

    Its other unknowns are the powers of N by which fields and raw weights are then rescaled. ``rows`` are
    expressions that must vanish.
    """

    def __init__(self, program: Program) -> None:
        self.program, self.weights = parametrized(program), weights(program)
        self.entrywise, self.symbols = entrywise_rules(program), symbols_of(program)
        self.counting = Counting(self.program)
        self.exponents = unknowns(program)
        self.rows: list[Expr] = []

    def directions(self) -> tuple[dict[Expr, Expr], ...]:
        """Return the independent changes of exponents that leave training the same at every width.

        They are a basis of the solutions of the linear system, each as a dictionary of changes by exponent.
        """
        # So that training stays the same, a rescaling must multiply each term of a definition x by the same
        # power of N as the field on its left-hand side. Scalars such as outputs are not rescaled.
        for x, env in self.counting.rules.values():
            expected = self.shift(x.lhs, env)
            self.rows += [y - expected for y in self.shifts(x.rhs, env)]
        # A rescaling must multiply the update of a trained weight w by the same power of N as the raw weight
        # that is updated.
        for w in self.program.trained():
            for env in self.counting.members(families(w.initial)):
                self.rows += (
                    self.entrywise_update(w, env) if w.name in self.entrywise else self.update(w, env)
                )
        # A rescaling must multiply the initial values `start` of a weight by the same power of N as the raw
        # weight. The power of their standard deviation is half that of the variance.
        for name, start in weights(self.program).items():
            for env in self.counting.members(families(start)):
                (power,) = self.powers(sympify(start.variance), env)
                self.rows.append(power / 2 - self.raw(name, env))
        involved = [x for x in self.exponents if any(row.has(x) for row in self.rows)]
        # `rref` below (the reduced row echelon form) makes pivots of the leftmost exponents, and a pivot
        # changes in only one of the directions that are returned. The exponent d of the output therefore
        # comes first. The exponent c of the rate comes last, so that its change follows from the others where
        # this is possible.
        ordered = [x for x in (d, *sorted(set(involved) - {c, d}, key=str), c) if x in involved]
        hidden = sorted({x for row in self.rows for x in row.free_symbols} - set(self.exponents), key=str)
        M = Matrix([[row.expand().coeff(x) for x in (*hidden, *ordered)] for row in self.rows])
        null_space = [list(vector[len(hidden) :]) for vector in M.nullspace()]
        basis = Matrix(null_space).rref()[0].tolist() if null_space else []
        return tuple({x: v for x, v in zip(ordered, row, strict=True) if v != 0} for row in basis if any(row))

    def update(self, w: Any, env: IndexExpressions) -> list[Expr]:
        """Return conditions under which an update is rescaled by the same power of N as its raw weight.

        They are expressions that must vanish, one for each term of the update: its power of N minus that of
        the raw weight. ``w`` is the weight, whose rule is linear, and ``env`` has the values of its indices.
        """
        return [y - self.raw(w.name, env) for y in self.gradients(w, w.update.coefficient, env)]

    def entrywise_update(self, w: Any, env: IndexExpressions) -> list[Expr]:
        """Return conditions under which an entrywise step is rescaled by the power of N of its raw weight.

        They are expressions that must vanish. The terms of the gradient are rescaled by one power of N. The
        function Q of the rule is then rescaled by its degree times this power if parameters in units of the
        gradient, such as epsilon, are rescaled as the gradient. The fraction of the weight that decay removes
        cannot change. ``w`` is the weight, and ``env`` has the values of its indices.
        """
        u, rule = w.update, w.rule
        conditions = self.powers(rule.decay, env) if rule.decay != 0 else []
        gradients = self.gradients(w, u.coefficient / u.outside, env)
        if not gradients:
            return conditions
        gradient, *others = gradients
        conditions += [y - gradient for y in others]
        step = rule_degrees(self.entrywise[w.name]).degree * gradient - self.raw(w.name, env)
        conditions += [rate + step for rate in self.powers(rule.rate * u.outside, env)]
        if (units := self.symbols.get(f"e_{w.name}")) is not None:
            conditions.append(gradient + units.subs(env))
        return conditions

    def gradients(self, w: Any, coefficient: Expr, env: IndexExpressions) -> list[Expr]:
        """Return the change of the exponent of N in each term of a gradient, if quantities are rescaled.

        Fields and raw weights are rescaled by powers of N. The gradient is ``coefficient`` times the vectors
        of the update of the weight ``w``. ``env`` has the values of its indices.
        """
        u = w.update
        bodies = (u.vector,) if isinstance(w, TrainedVector) else (u.left, u.right)
        return [
            y
            for inner in self.counting.members(u.over)
            for y in self.shifts(Mul(coefficient, *bodies), {**env, **inner})
        ]

    def shifts(self, e: Expr, env: IndexExpressions) -> list[Expr]:
        """Return the change of the exponent of N in each term of ``e``, if quantities are rescaled.

        Fields and raw weights are rescaled by powers of N. The changes are linear in these powers and in the
        changes of the parametrization. ``env`` has the values of the indices.
        """
        if isinstance(e, Add):
            return [x for y in e.args for x in self.shifts(y, env)]
        if isinstance(e, Mean | Sum):
            return self.shifts(e.args[0], env)
        if isinstance(e, Product):
            raw = self.weight(gaussian(self.program.matrix_of(e)), e.matrix, env)
            return [raw + x for x in self.shifts(e.vector, env)]
        if self.counting.is_number(e):
            return self.powers(e, env)
        if isinstance(e, Mul):
            total: list[Expr] = [S.Zero]
            for factor in e.args:
                factor_shifts = self.shifts(factor, env)
                total = [x + y for x in total for y in factor_shifts]
            return total
        return self.factor_shifts(e, env)

    def factor_shifts(self, e: Expr, env: IndexExpressions) -> list[Expr]:
        """Return the change of the exponent of N in a factor ``e``, if quantities are rescaled.

        Fields and raw weights are rescaled by powers of N. The list has one change for each term of the
        factor, and one for a factor without a sum. The factor is a power, a weight, given data, a field or a
        function of fields. A function that is not homogeneous adds the conditions that its arguments are not
        rescaled. ``env`` has the values of the indices.
        """
        if isinstance(e, Pow) and e.exp.is_Integer and e.exp.is_positive:
            return [e.exp * x for x in self.shifts(e.base, env)]
        for v in self.weights.values():
            if isinstance(v, GaussianVector) and e in v.uses(e):
                return [self.weight(v, e, env)]
        if isinstance(e, AppliedUndef) and self.program.given_of(str(e.func)):
            return [S.Zero]
        arguments = sorted((x for x in e.atoms(AppliedUndef) if self.counting.is_field(x, env)), key=str)
        shifts = [self.shift(x, env) for x in arguments]
        if e in arguments:
            return shifts
        degree = shape_of(e, arguments).degree
        # A homogeneous function such as relu has a degree: if its argument is multiplied by N^x, its value is
        # multiplied by N^(degree x). The degree is used for functions of one field.
        if degree is not None and len(arguments) == 1:
            return [degree * shifts[0]]
        self.rows += shifts
        return [S.Zero]

    def shift(self, field: AppliedUndef, env: IndexExpressions) -> Expr:
        """Return the unknown x with which a field is rescaled by ``N^x``; zero for numbers such as outputs.

        ``env`` has the values of the indices.
        """
        name = str(field.func)
        return (
            S.Zero if name in self.program.scalars else Symbol(f"x_{name}_{self.counting.site(field, env)}")
        )

    def weight(self, w: GaussianWeight, used: Expr, env: IndexExpressions) -> Expr:
        """Return the unknown x of ``N^x``, which rescales a weight without its multiplier.

        It is zero for a matrix that is drawn anew at each step.
        ``w`` is the weight or its family, ``used`` the member that an expression contains, and ``env`` has
        the values of the indices.
        """
        at = dict(zip(w.symbol.args, (x.subs(env) for x in used.args), strict=True))
        return self.raw(w.name, at) if w.name in self.weights else S.Zero

    def raw(self, name: str, env: IndexExpressions) -> Expr:
        """Return the symbol x of ``N^x``, by which a weight without its multiplier is rescaled.

        ``name`` is that of the weight, and ``env`` has the value of its layer.
        """
        layer = layer_index(self.weights[name])
        return Symbol(f"w_{name}_{'' if layer is None else env[layer]}")

    def powers(self, e: Expr, env: IndexExpressions) -> list[Expr]:
        """Return the change of the exponent of N in each term of ``e``, an expression without fields.

        It is the part of the exponent that is linear in the exponents of the parametrization, whose symbols
        then stand for their changes. ``env`` has the values of the indices.
        """
        exponents = [x.xreplace({_INSIDE: c}) for x in powers(e.subs(env))]
        return [x - x.xreplace(dict.fromkeys(self.exponents, S.Zero)) for x in exponents]
