"""Powers of the width for each optimizer and each kind of weight: learning rate, epsilon, weight decay.

A weight is applied as ``N^-a W``. In a step its rule changes W by the rate times Q, a function of the raw
gradients ``dloss/dW`` so far. The conditions of :mod:`derive.scale.width` are solved for exponents of the
rate, epsilon and decay of each weight, so that the table of an optimizer follows from Q. The same count with
numbers for the exponents gives the weights that freeze or diverge if one exponent is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sympy import Eq, Expr, Rational, S, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import converted, exact
from derive.errors import NotApplicable, require_type
from derive.program.entrywise import A, Entrywise, adam, adamw, lion, rmsprop, sign_descent
from derive.program.language import GaussianMatrix, GaussianWeight, Product
from derive.program.program import Program
from derive.scale.power_counting import Counting, N, count_powers, gradient_powers, member_name, one_power
from derive.scale.rule_degrees import RuleDegrees, rule_degrees, step_powers
from derive.scale.width import (
    COUNTED,
    ENTRYWISE,
    FEATURES,
    FIELDS,
    FREE,
    OUTPUTS,
    d,
    entrywise_rules,
    families,
    family_name,
    forward_pass,
    is_gain,
    outputs,
    parametrized,
    solve_linear,
    unknowns,
    weights,
    width_constraints,
    with_exponents,
)
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex

eta, epsilon, wd = (Symbol(n, positive=True) for n in ("eta", "epsilon", "lambda"))
_b, _m = Symbol("beta", positive=True), Symbol("m", real=True)

OPTIMIZERS: Mapping[str, Entrywise] = {
    "sgd": Entrywise(eta, A, decay=wd, name="SGD"),
    "momentum": Entrywise(eta, _m, ((_m, _b * _m + A),), decay=wd, name="momentum"),
    "sign": sign_descent(eta, decay=wd),
    "adam": adam(eta, epsilon=epsilon),
    "adamw": adamw(eta, wd, epsilon=epsilon),
    "rmsprop": rmsprop(eta, epsilon=epsilon),
    "lion": lion(eta, decay=wd),
    "muon": sign_descent(eta, decay=wd),
}
"""Rules by the names of optimisers; that of ``muon`` acts on the singular values of hidden matrices."""
SPECTRAL = frozenset({"muon"})
"""Optimisers whose rule acts on the singular values of the gradients of matrices between layers."""

LEARNING, TANGENT = "feature learning", "neural tangent"
CORNERS = (LEARNING, TANGENT)
"""Regimes: fields change by order one; or outputs are of order one initially and change by order one."""
INPUT, HIDDEN, READOUT, BIAS, GAIN = KINDS = ("input", "hidden", "readout", "bias", "gain")
"""Kinds of weights."""


@dataclass(frozen=True)
class WeightPowers:
    """Powers of N of one weight, in terms of the exponent ``a`` of its multiplier ``N^-a``.

    Each quantity is proportional to N to the given power. The multiplier of a readout includes the division
    of the output by ``N^d``.

    Parameters
    ----------
    weight : str
        Name of the weight.
    kind : str
        Kind: input, hidden, readout, bias or gain.
    variance : Expr | None
        Initial variance of the raw weight; None if no condition fixes it (weights that start at zero).
    gradient : Expr
        Gradient ``dloss/dW`` of the loss with respect to the raw weight, without its multiplier.
    rate : Expr
        Learning rate.
    epsilon : Expr | None
        Parameter in units of the gradient; None for rules without one.
    decay : Expr | None
        Decoupled weight decay, as in ``W <- (1 - rate decay) W``; None for rules without decay.
    """

    weight: str
    kind: str
    variance: Expr | None
    gradient: Expr
    rate: Expr
    epsilon: Expr | None
    decay: Expr | None

    def at(self, scale: Any) -> WeightPowers:
        """Return the powers for a value of a, the exponent of the multiplier ``N^-a``.

        Parameters
        ----------
        scale : Any
            Value of a, a number or an expression.

        Returns
        -------
        WeightPowers
            The same weight with this multiplier.
        """
        values = {FREE: converted(scale)}
        new: dict[str, Any] = {n: None if e is None else e.xreplace(values) for n, e in self.powers.items()}
        return replace(self, **new)

    @property
    def powers(self) -> dict[str, Expr | None]:
        """Exponents of the width N by name of the quantity: variance, gradient, rate, epsilon and decay.

        None stands for a quantity that the weight does not have, or that no condition fixes.
        """
        return {n: getattr(self, n) for n in ("variance", "gradient", "rate", "epsilon", "decay")}


@dataclass(frozen=True, repr=False)
class OptimizerPowers(ConditionalResult):
    """Powers of the width of every weight of a program; see :func:`optimizer_powers`.

    Parameters
    ----------
    program : Program
        Program.
    corner : str
        ``feature learning`` or ``neural tangent``.
    output : Expr
        Power d: outputs are divided by ``N^d``.
    rows : tuple[WeightPowers, ...]
        Powers of each weight.
    solved : Mapping[Expr, Expr]
        Exponents of the program that the conditions determine, in terms of the free ones.
    spectral : frozenset[str]
        Names of matrices whose rule acts on the singular values of the gradient.
    """

    program: Program
    corner: str
    output: Expr
    rows: tuple[WeightPowers, ...]
    solved: Mapping[Expr, Expr]
    spectral: frozenset[str] = frozenset()

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the powers of the width.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        goals = {
            LEARNING: "derived: each weight changes the outputs and the fields by order one in a step",
            TANGENT: "derived: initial outputs are of order one, and each weight changes them by order one "
            "in a step",
        }
        matrices = ", ".join(sorted(self.spectral))
        ranks = f"assumed: the rule of {matrices} acts on the singular values of gradients of fixed rank"
        return (
            *COUNTED,
            "assumed: a step Q is odd in the gradient, so that steps add up over units as gradients do",
            "derived: the degree of Q in the gradient, and the units of its parameters",
            goals[self.corner],
            *([ranks] if self.spectral else []),
        )

    @property
    def degrees(self) -> dict[str, RuleDegrees]:
        """Degrees of the training rules in the gradient, by names of weights.

        The degree of a rule is the power of c in its step if all gradients are multiplied by c.
        """
        return {name: rule_degrees(rule) for name, rule in entrywise_rules(self.program).items()}

    def row(self, kind: str) -> WeightPowers:
        """Return the powers of the width N of the first weight of a kind.

        Parameters
        ----------
        kind : str
            Kind: input, hidden, readout, bias or gain.

        Returns
        -------
        WeightPowers
            Powers of N in variance, gradient, rate, epsilon and decay of this weight.

        Raises
        ------
        KeyError
            If the program has no weight of this kind.
        """
        rows = [x for x in self.rows if x.kind == kind]
        if not rows:
            raise KeyError(f"the program has no weight of kind {kind!r}")
        return rows[0]

    def exponents(self, scales: Mapping[str, Any]) -> dict[str, Expr]:
        """Return the values x of all exponents, by which quantities are proportional to ``N^-x``.

        The quantities are multipliers, variances, rates, epsilons and rates times decays. Exponents that
        neither ``scales`` nor a condition determines are zero.

        Parameters
        ----------
        scales : Mapping[str, Any]
            Power a of the multiplier ``N^-a`` for each kind of weight in the program; that of a readout
            includes the division of the output by ``N^d``. Kinds that the program does not have may be given
            too.

        Returns
        -------
        dict[str, Expr]
            Exponents by name, as :func:`~derive.scale.width.width_class` takes them.

        Raises
        ------
        NotApplicable
            If ``scales`` lacks a kind of weight of the program, or has a key that is not a kind.
        """
        kinds, multipliers = kinds_of(self.program), {}
        powers_ = _powers_by_kind(scales, kinds.values())
        for name, kind in kinds.items():
            multipliers[name] = powers_[kind] - (self.output if kind == READOUT else 0)
        free = {x: multipliers[family_name(x)[2:]] for x in self._free if family_name(x).startswith("a_")}
        values = {x: sympify(self.solved.get(x, x)).xreplace(free) for x in unknowns(self.program)}
        # An exponent whose value is its own symbol x is determined by no condition, and is set to zero.
        unconstrained = dict.fromkeys((x for x in values if values[x] == x), S.Zero)
        return {str(x): v.xreplace(unconstrained) for x, v in values.items()}

    @cached_property
    def _free(self) -> set[Expr]:
        """Symbols of the exponents of N that no condition determines."""
        exponents = unknowns(self.program)
        return {x for x in exponents if x not in self.solved}

    def _repr_latex_(self) -> str:
        return aligned_latex(
            Eq(Symbol(rf"\eta_{{{x.weight}}}"), N**x.rate, evaluate=False) for x in self.rows
        )


def optimizer_powers(
    program: Program, corner: str = LEARNING, *, spectral: Collection[str] = ()
) -> OptimizerPowers:
    """Return the powers of the width in rates, epsilon and decay that a program needs.

    Parameters
    ----------
    program : Program
        Program of known depth whose weights have entrywise rules; gradient descent is the rule ``Q = A``.
    corner : {"feature learning", "neural tangent"}
        Regime. With feature learning each weight changes outputs and fields by order one in a step. In the
        neural tangent regime initial outputs are of order one, and each weight changes them by order one.
    spectral : Collection[str], optional
        Names of matrices whose rule acts on the singular values of the gradient (Muon).

    Returns
    -------
    OptimizerPowers
        Powers of each weight.

    Raises
    ------
    NotApplicable
        If a weight has a linear rule, powers cannot be counted, or conditions do not determine a rate. Also
        for another ``corner``, and for a name in ``spectral`` that is not that of a trained matrix.

    Examples
    --------
    >>> from derive.program import mlp
    >>> found = optimizer_powers(mlp(2, "tanh", rule=OPTIMIZERS["adam"]))
    >>> for x in found.rows: print(x.kind, x.gradient, x.rate, x.epsilon)
    input -a - 1 a -a - 1
    hidden -a - 1 a - 1 -a - 1
    readout -a a - 1 -a
    """
    if corner not in CORNERS:
        raise NotApplicable(f"corner = {corner!r}: must be one of {', '.join(CORNERS)}")
    linear = [w.name for w in program.trained() if not isinstance(w.rule, Entrywise)]
    if linear:
        raise NotApplicable(
            f"the training rule of {linear[0]} must be entrywise: write gradient descent as Entrywise(rate, "
            "A), where A is the symbol of the gradient; for a rule that acts on singular values, give its "
            "matrices an entrywise rule, and their names in the argument spectral"
        )
    spectral = {spectral} if isinstance(spectral, str) else frozenset(spectral)
    constraints, names = width_constraints(program, spectral), unknowns(program)
    conditions = [x.power for r in (FIELDS, OUTPUTS, *ENTRYWISE) for x in constraints.of(r)]
    if corner == LEARNING:
        conditions += [x.power for x in constraints.of(FEATURES)]
    else:
        initial = solve_linear([x.power for x in constraints.of(FIELDS)], names)
        start = count_powers(with_exponents(parametrized(program), initial), 0, assumed=True)
        conditions += [p.power for node in outputs(program) for p in start.initial[node]]
    solved = solve_linear(conditions, names)
    gradients = gradient_powers(with_exponents(parametrized(program), solved))
    rows = tuple(_row(name, x, solved, gradients) for name, x in _members(program))
    return OptimizerPowers(program, corner, solved[d], rows, solved, frozenset(spectral))


WeightFamily = tuple[str, str, Mapping[Symbol, Expr]]
"""The name of a family of weights, its kind, and the indices of a member."""


def _row(
    name: str,
    family: WeightFamily,
    solved: Mapping[Expr, Expr],
    sizes: Mapping[str, Expr],
) -> WeightPowers:
    """Return the powers of N of one weight in terms of the exponent a of its own multiplier ``N^-a``.

    ``name`` is the full name of the weight, such as ``W(1)``; ``family`` is (name, kind, indices) of its
    family; ``solved`` has the solution for all exponents by symbol, and ``sizes`` the power of each weight's
    gradient. Raises NotApplicable if the conditions do not determine the power of the learning rate.
    """
    head, kind, _ = family
    by_name = {str(x): v for x, v in solved.items()}
    tail = name[len(head) :]
    # the division of the output by N^d is part of the multiplier of the readout
    multiplier = FREE - solved[d] if kind == READOUT else FREE
    scale = next(
        x for e in (*solved.values(), *sizes.values()) for x in _exponents(e) if str(x) == f"a_{head}{tail}"
    )

    def power(letter: str) -> Expr | None:
        """Return the exponent of N in one quantity of the weight; None if the weight does not have it.

        ``letter`` is c for the learning rate, e for epsilon, s for the rate times the decay, b for the
        initial variance.
        """
        e = by_name.get(f"{letter}_{head}{tail}")
        return None if e is None else -e.xreplace({scale: multiplier}).expand()

    rate, decay_power = power("c"), power("s")
    if rate is None:
        raise NotApplicable(
            "the conditions on sizes of fields and updates do not determine the power of the width N in the "
            f"learning rate of {name}"
        )
    size = sizes[name].xreplace({scale: multiplier}).expand()
    decay = None if decay_power is None else (decay_power - rate).expand()
    return WeightPowers(name, kind, power("b"), size, rate, power("e"), decay)


def _exponents(e: Expr) -> set[Expr]:
    """Return the symbols, and the functions of the layer, in an expression in exponents of N."""
    return {*e.free_symbols, *e.atoms(AppliedUndef)}


def _members(program: Program) -> list[tuple[str, WeightFamily]]:
    """Return (full name, family) for every trained weight, such as ``W(1)`` of the family of layers.

    The family is given as (name of the family, kind of weight, numbers of its indices).
    """
    counting, kinds, members = Counting(program), kinds_of(program), []
    trained = {w.name for w in program.trained()}
    for name, w in weights(program).items():
        if name in trained:
            for env in counting.members(families(w)):
                members.append((member_name(name, tuple(env.values())), (name, kinds[name], env)))
    return members


def kinds_of(program: Program) -> dict[str, str]:
    """Return the kind of every weight: input, hidden, readout, bias or gain.

    >>> from derive.program import mlp
    >>> kinds_of(mlp(2, bias=True))
    {'W0': 'input', 'W': 'hidden', 'w': 'readout', 'b': 'bias'}
    """
    return {name: _kind(program, w) for name, w in weights(program).items()}


def _powers_by_kind(scales: Mapping[str, Any], needed: Collection[str]) -> dict[str, Expr]:
    """Return the powers a of multipliers ``N^-a`` by kind of weight as expressions.

    Raises NotApplicable for keys that are not kinds, and if a kind that is ``needed`` is missing.
    """
    require_type(scales, Mapping, "scales", "a mapping from kinds of weights to powers, such as {'input': 0}")
    if unknown := [x for x in scales if x not in KINDS]:
        raise NotApplicable(
            f"scales: {unknown[0]!r} is not a kind of weight: must be one of {', '.join(KINDS)}"
        )
    if missing := [x for x in KINDS if x in needed and x not in scales]:
        raise NotApplicable(
            f"scales: {', '.join(missing)} missing: give for each of these kinds the power a of the "
            "multiplier N^-a of its weights"
        )
    return {kind: exact(kind, scales[kind]) for kind in scales}


def _kind(program: Program, w: GaussianWeight) -> str:
    """Return the kind of a weight: input, hidden, readout, bias or gain."""
    if isinstance(w, GaussianMatrix):
        return INPUT if w.cols.given else HIDDEN
    if is_gain(program, w):
        return GAIN
    field_definitions = [x for x in forward_pass(program) if x.name not in program.scalars]
    return BIAS if any(len(x.rhs.args) > 1 and w.uses(x.rhs) for x in field_definitions) else READOUT


# -- wrong scalings ------------------------------------------------------------------------------------------


CONSTANT_EPSILON = "epsilon the same at all widths"
SMALL_EPSILON = "epsilon smaller than the gradient by 1/N"
CONSTANT_RATE = "learning rate the same at all widths"
CONSTANT_DECAY = "weight decay the same at all widths"
CHANGES: Mapping[str, tuple[str, Callable[[Mapping[str, Expr]], Expr]]] = {
    CONSTANT_EPSILON: ("e", lambda x: S.Zero),
    SMALL_EPSILON: ("e", lambda x: x["e"] + 1),
    CONSTANT_RATE: ("c", lambda x: S.Zero),
    CONSTANT_DECAY: ("s", lambda x: x["c"]),
}
"""Wrong scalings: the letter of the exponent that changes, and its value from those of the same weight."""


@dataclass(frozen=True)
class ScalingFault:
    """Effect of a wrong scaling on one weight.

    Attributes
    ----------
    change
        Description of the wrong scaling.
    weight, kind
        Name and kind of the weight.
    field
        Field or output that the weight changes in the first step.
    power
        Power of N in the ratio of this change to that of the right scaling. For a wrong decay it is the power
        of the fraction of the weight that decay removes in a step.
    degree
        Degree of the first step in the gradient with the wrong epsilon: the power of c in the step if the
        gradient is multiplied by c. None if epsilon of this weight is not changed.
    words
        Sentence that describes the effect.
    """

    change: str
    weight: str
    kind: str
    field: str
    power: Expr
    degree: Expr | None
    words: str


def scaling_faults(
    found: OptimizerPowers, scales: Mapping[str, Any], changes: Collection[str] = tuple(CHANGES)
) -> tuple[ScalingFault, ...]:
    """Return the effect of wrong scalings on every weight, one scaling at a time for all weights.

    Parameters
    ----------
    found : OptimizerPowers
        Powers of the right scaling.
    scales : Mapping[str, Any]
        Power a of the multiplier ``N^-a`` by kind of weight, as in :meth:`OptimizerPowers.exponents`.
    changes : Collection[str], optional
        Names of wrong scalings, keys of :data:`CHANGES`; those that do not apply to the rules are left out.

    Returns
    -------
    tuple[ScalingFault, ...]
        One effect for each wrong scaling and each weight that has the exponent of this scaling, also if the
        exponent of the weight stays the same. A scaling that changes no exponent of any weight is left out.

    Raises
    ------
    NotApplicable
        If ``scales`` lacks a kind of weight of the program, or has a key that is not a kind, and if a weight
        changes no field in the first step.
    ValueError
        For a name in ``changes`` that is not a key of :data:`CHANGES`.

    Examples
    --------
    >>> from derive.program import mlp
    >>> found = optimizer_powers(mlp(2, "tanh", rule=OPTIMIZERS["adam"]))
    >>> scales = {"input": 0, "hidden": 0, "readout": 0}
    >>> for x in scaling_faults(found, scales, [CONSTANT_EPSILON]): print(x.weight, x.power, x.words)
    W0 -1 freezes: it moves h(1) by N^(-1), with steps of degree 1 in the gradient
    W(1) -1 freezes: it moves h(2) by N^(-1), with steps of degree 1 in the gradient
    w 0 as before: it moves f by N^(0)
    """
    if unknown := [x for x in changes if x not in CHANGES]:
        accepted = ", ".join(map(repr, CHANGES))
        raise ValueError(
            f"changes: {unknown[0]!r} is not the name of a wrong scaling: must be one of {accepted}"
        )
    right = found.exponents(scales)
    before = _FirstChanges(found, right)
    result = []
    for change in changes:
        letter, value = CHANGES[change]
        by_weight = {key[1:]: {x: right.get(x + key[1:], S.Zero) for x in "ces"} for key in right}
        wrong = {k: value(by_weight[k[1:]]) if k.startswith(f"{letter}_") else x for k, x in right.items()}
        if wrong == right:
            continue
        after = _FirstChanges(found, wrong)
        for name, (head, kind, env) in _members(found.program):
            key = next((k for k in (f"{letter}_{name}", f"{letter}_{head}") if k in right), None)
            if key is None:
                continue
            field, start = before.of(name, (head, kind, env))
            power = -wrong[key] if letter == "s" else after.of(name, (head, kind, env))[1]
            gap = power if letter == "s" else (power - start).expand()
            degree = after.degree(name, head, env) if letter == "e" and wrong[key] != right[key] else None
            words = _decayed(gap) if letter == "s" else _moved(gap, field, power, degree)
            result.append(ScalingFault(change, name, kind, field, gap, degree, words))
    return tuple(result)


def _decayed(gap: Expr) -> str:
    """Return a sentence about weight decay that removes the fraction ``N^gap`` of a weight in a step.

    It states that decay vanishes (``gap`` below 0), that the weight diverges (above 0), or that nothing is
    wrong (0).
    """
    if gap == 0:
        return "as before: decay removes a fraction of order one in a step"
    if gap < 0:
        return f"decay vanishes: it removes the fraction N^({gap}) in a step"
    return f"blows up: decay subtracts N^({gap}) times the weight in a step"


def _moved(gap: Expr, field: str, power: Expr, degree: Expr | None) -> str:
    """Return a sentence about the first change, ``N^power``, of the field that a weight moves.

    ``field`` is its name. ``gap`` is the power relative to the right scaling: negative if the weight freezes,
    positive if it diverges. ``degree`` is the degree of a step in the gradient, None if it is not stated.
    """
    how = "as before" if gap == 0 else "freezes" if gap < 0 else "blows up"
    steps = "" if degree is None else f", with steps of degree {degree} in the gradient"
    return f"{how}: it moves {field} by N^({power}){steps}"


class _FirstChanges:
    """Powers of N of the changes of fields in the first step, for each weight of a program.

    All exponents of the parametrization have numbers.
    """

    def __init__(self, scaling: OptimizerPowers, exponents: Mapping[str, Expr]) -> None:
        self.program = parametrized(scaling.program, exponents)
        self.spectral = scaling.spectral
        self.counted = count_powers(self.program, 1, first=True, spectral=scaling.spectral)
        self.gradients = gradient_powers(self.program)

    def of(self, name: str, family: WeightFamily) -> tuple[str, Expr]:
        """Return (field, power): the first field that a weight changes, and the exponent of N in the change.

        ``name`` is the full name of the weight, and ``family`` is (name, kind, indices) of its family. For a
        readout it is the output. Raises NotApplicable if the weight changes no field.
        """
        head, kind, env = family
        for node in outputs(self.program) if kind == READOUT else self.fields_with(head, env):
            forms = self.counted.change_by_weight(*node).get(name, ())
            if forms:
                return member_name(node[0], () if node[1] is None else (node[1],)), max(forms)
        raise NotApplicable(f"the weight {name} changes no field or output in the first step")

    def fields_with(self, head: str, env: Mapping[Symbol, Expr]) -> list[tuple[str, Expr | None]]:
        """Return (name, layer) of the fields of the forward pass whose definitions contain a given weight.

        ``head`` is the name of the weight's family, and ``env`` has the numbers of its indices. The layer is
        None for a field without layers.
        """
        w, counting = weights(self.program)[head], Counting(self.program)
        member = w.symbol.xreplace(dict(env))
        forward = {x.name for x in forward_pass(self.program)} - {*self.program.scalars}
        fields: list[tuple[str, Expr | None]] = []
        for (field, site), (x, at) in counting.rules.items():
            rhs = x.rhs.subs(at)
            used = {p.matrix for p in rhs.atoms(Product)} | {*rhs.atoms(AppliedUndef), *rhs.free_symbols}
            if field in forward and member in used:
                fields.append((field, site))
        return fields

    def degree(self, name: str, head: str, env: Mapping[Symbol, Expr]) -> Expr:
        """Return the degree of a weight's step in its gradient, near the size of the gradient.

        It is d(power of N of the step)/d(power of N of the gradient). ``name`` is the full name of the
        weight, ``head`` that of its family, and ``env`` has the numbers of its indices.
        """
        rule = next(w.rule for w in self.program.trained() if w.name == head)
        assert isinstance(rule, Entrywise)
        member_rule = replace(
            rule, Q=rule.Q.subs(env), states=tuple((x, e.subs(env)) for x, e in rule.states)
        )
        size = self.gradients[name]
        near, at_size = (step_powers(member_rule, [p], one_power)[0] for p in (size + NEAR, size))
        assert near is not None
        assert at_size is not None
        return (near - at_size) / NEAR


NEAR = Rational(1, 100)
"""Difference of powers for a numerical derivative, smaller than those of gradients and parameters."""
