"""Programs and theories of experiments: from a validated file to the derived equations.

:func:`program_of` builds the program of an experiment with symbols for its numbers; :func:`derived` caches
its theory after reductions, such as the limit of wide layers.  Problems, commands and analyses use both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any, TypedDict, TypeVar

from sympy import Abs, Expr, Function, Heaviside, Integer, S, Symbol, oo, sign, sqrt
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program import (
    L,
    P,
    Program,
    TrainingRule,
    eta,
    isotropic,
    mlp,
    s,
    structured,
    t,
    training_rule,
)
from derive.program.language import P_train
from derive.program.networks.options import entrywise_rule
from derive.program.networks.random_data import N, nu
from derive.program.nonlinear import NonlinearRule
from derive.reduce.data import instant_responses, mode_sums, theory_limit
from derive.theory import Term, Theory, mean_field
from numerics.errors import SpecError, value_to_toml
from numerics.experiment.activation import parse_activation
from numerics.experiment.experiment import Experiment
from numerics.experiment.memory import share_of_noise, tables_of_program, without_noise
from numerics.experiment.schedule import parse_schedule
from numerics.experiment.schema import Spec
from numerics.names import OUTPUT

sigma = Symbol("sigma", positive=True)
"""Standard deviation of the initial weights; a list of variances is ``sigma(ell)**2``."""
beta = Symbol("beta", positive=True)
"""Multiplier of a residual branch."""
C = Symbol("C", integer=True, positive=True)
"""Number of outputs."""
decay = Symbol("lambda", positive=True)
temperature = Symbol("T", positive=True)
kept, tau = Symbol("m", positive=True), Symbol("tau", positive=True)
"""Momentum: factor of the velocity in a step, or time constant of a flow."""

CONSTANTS = {
    "beta1": Symbol("beta1", nonnegative=True),
    "beta2": Symbol("beta2", nonnegative=True),
    "epsilon": Symbol("epsilon", positive=True),
}
"""Constants of entrywise rules, by their keys of [training]."""

WIDE = "infinitely wide layers"

Variant = Callable[[Program], Program]
"""Function that changes the program of an experiment, for example to an independent backward pass."""


_mlp = lru_cache(maxsize=64)(mlp)
_random = lru_cache(maxsize=64)(isotropic)
_modes = lru_cache(maxsize=64)(structured)


class _Rule(TypedDict):
    """Weight decay, momentum and temperature, the arguments of a training rule.

    Each is a symbol, or 0 if the rule has no such term.
    """

    weight_decay: Symbol | int
    momentum: Symbol | int
    temperature: Symbol | int


Reduction = Callable[[Theory], Theory]
"""Function that changes a derived theory.  It is defined at module level, because caches compare it."""

LayerFunctionNames = tuple[str, ...]
"""Names of functions of the layer that have numbers as values."""


def of_layer(name: str, layer: object) -> Symbol:
    """Return the symbol that stands for the value of a function, such as sigma(ell), at one layer.

    >>> of_layer("sigma", 2)
    sigma(2)
    """
    return Symbol(f"{name}({layer})", positive=True)


@lru_cache(maxsize=128)
def general(program: Program, reductions: tuple[Reduction, ...] = ()) -> Theory:
    """Return the theory of a program after ``reductions``, with the layer as an index.

    One equation holds for all layers that are alike, whether the depth is a number or a symbol. The first
    reduction is applied first.
    """
    if not reductions:
        return mean_field(program)
    return reductions[-1](general(program, reductions[:-1]))


@lru_cache(maxsize=128)
def _at_depth(theory: Theory) -> Theory:
    """Return the theory with an equation of its own for each layer.

    A theory whose depth is a symbol is returned unchanged.
    """
    depth = theory.program.depth
    return theory.at_depth(int(depth)) if depth.is_Integer else theory


@lru_cache(maxsize=128)
def derived(
    program: Program, reductions: tuple[Reduction, ...] = (), layered: LayerFunctionNames = ()
) -> Theory:
    """Return the theory of a program after ``reductions``, at its depth if that is an integer.

    Each value of the ``layered`` functions becomes a symbol (:func:`of_layer`).

    >>> print(derived(mlp(2)).equation("h", 2).terms[0].expr)
    u(2, mu, t)
    """
    theory = _at_depth(general(program, reductions))
    if not layered:
        return theory

    def numbered(e: Expr) -> Expr:
        """Return an expression with symbols for values of functions of the layer, such as ``sigma(2)``."""
        atoms = [x for x in e.atoms(AppliedUndef) if str(x.func) in layered and x.args[0].is_Integer]
        return e.xreplace({x: of_layer(str(x.func), x.args[0]) for x in atoms})

    sums = tuple(replace(e, terms=(Term.local(e.rhs.doit(), "definition"),)) for e in theory.observables)
    return replace(theory, observables=sums).map(numbered)


@lru_cache(maxsize=128)
def integrated(program: Program) -> Program:
    """Return the program whose training rules read their memory from tables where they need tables.

    In a flow, an update made at s enters with the integrator's weight ``w(t, s)``; with decay, ``m(t)`` is
    the factor of the initial weight; with temperature, ``n(t, s)`` is the covariance of noise.  Rules in
    steps have the same tables if their memory has no closed form, or one that loses digits
    (:func:`numerics.experiment.memory.tables_of_program`).  Raises NotApplicable as that function does, and
    for a flow without an integrator, such as one with different rules for its weights.

    >>> integrated(mlp(2, rule="flow", weight_decay=1)).rule
    Multistep(rate=1, weight='w', left='m', heat=None, discrete=True)
    """
    if not program.rule.discrete:
        _require_one_flow(program)
    tables = dict(tables_of_program(program))
    if not tables:
        return program

    def tabulated(rule: TrainingRule) -> TrainingRule:
        """Return the rule that reads its memory from tables; the rule itself if it has no tables."""
        if rule not in tables:
            return rule
        rule_tables = tables[rule]
        if isinstance(rule, NonlinearRule):
            return rule_tables.nonlinear(rule)
        share = share_of_noise(rule, rule_tables)
        assert share is not None  # rules whose noise is not a multiple have tables of their own
        return rule_tables.rule(share)

    return program.with_rules(tabulated)


def _require_one_flow(program: Program) -> None:
    """Raise NotApplicable unless all weights follow one flow with an equation of motion, up to their noise.

    ``program`` has a flow as its rule. It is also raised for fields with an equation of motion, and for noise
    of single weights only.
    """
    evolving = [d.lhs for d in program.definitions if d.evolves]
    if evolving:
        message = f"{evolving[0]} has an equation of motion, and integrators of flows move weights only"
        raise NotApplicable(
            f"{message}: use simulate, which trains finite networks; or replace the field by a TrainedVector "
            "whose update is the rate of change, and train the program by a rule in steps"
        )
    rules: list[Any] = [program.rule, *(w.rule for w in program.trained())]
    for rule in rules:
        if not hasattr(rule, "system"):
            raise NotApplicable(
                f"no integrator is known for the flow {rule!r}: use GradientFlow, MomentumFlow or "
                "LinearRule, or a rule in steps, such as GradientDescent"
            )
    if program.noisy and program.rule.noise(t, s) == 0:
        raise NotApplicable(
            "the rule of a weight has noise, and the rule of the program does not: give noise to the rule of "
            "the program"
        )
    by_weight = {w.name: without_noise(w.rule) for w in program.trained()}
    shared = without_noise(program.rule)
    other = next((name for name, rule in by_weight.items() if rule != shared), None)
    if other is not None:
        raise NotApplicable(
            f"rules = {{{other!r}: {by_weight[other]!r}}}: the integrator of a flow moves all weights by one "
            f"flow, which is {shared!r} in this program; give rates of single weights by "
            "Parametrization(rates=...), decay of one weight by a term such as Mean(w.symbol**2) in the "
            "loss, or use rules in steps, such as GradientDescent, which may differ between weights; "
            "simulate, which trains finite networks, accepts different flows"
        )


def wide_layers(theory: Theory) -> Theory:
    """Return the limit of infinitely wide layers (nu to infinity) on isotropic data."""
    return replace(theory_limit(theory, {nu: oo}), reduction=WIDE)


def wide_modes(theory: Theory) -> Theory:
    """Return the limit of infinitely wide layers (N to infinity) on data with a spectrum."""
    return replace(theory_limit(theory, {N: oo}), reduction=WIDE)


def reductions_of(spec: Spec) -> tuple[Reduction, ...]:
    """Return the reductions of the theory of an experiment.

    Isotropic data without a width ratio, and power-law data without a width unless batches are drawn, have
    the limit of wide layers.  Averages over modes of power-law data are written as sums.  For the rule "sgd",
    which uses each batch once, responses of fields without memory are replaced by their values at equal
    times.
    """
    reductions: list[Reduction] = []
    if spec.training.rule == "sgd":
        reductions.append(instant_responses)
    if spec.kind == "power-law":
        reductions.append(mode_sums)
    if _wide(spec):
        reductions.append(wide_modes if spec.kind == "power-law" else wide_layers)
    return tuple(reductions)


def theory_of(experiment: Experiment, variant: Variant | None = None) -> Theory:
    """Return the theory of an experiment, as `dmft derive` prints it.

    ``variant``, if given, changes the program first. The depth may be a symbol.

    >>> from numerics.experiment.experiment import Experiment
    >>> online = {"network": {"depth": "L"}, "data": {"kind": "isotropic", "batch_ratio": 2.0}}
    >>> print(theory_of(Experiment.from_dict(online | {"training": {"rule": "sgd"}})).equation("h0").rhs)
    v(t) + u0(t)/alpha_B
    """
    program = program_of(experiment)
    return general(program if variant is None else variant(program), reductions_of(experiment.spec))


def path_integral_of(experiment: Experiment) -> Theory:
    """Return the theory before reductions, whose action and saddle point `dmft derive` prints.

    The reductions of the experiment are not applied. For two of them the name of the program states this:
    "averages over M modes" (no sums over modes) and "layers of any width" (no limit of wide layers).
    """
    spec, program = experiment.spec, program_of(experiment)
    parts = ["averages over M modes"] if spec.kind == "power-law" else []
    parts += ["layers of any width"] if _wide(spec) else []
    return mean_field(replace(program, name=", ".join([program.name, *parts])))


def program_of(experiment: Experiment, depth: Integer | Symbol | None = None) -> Program:
    """Return the program that the experiment trains, at its depth or at another ``depth``.

    Numbers of the file are symbols in it (eta, gamma0, lambda, beta, ...), lists are functions of the layer
    (sigma(ell), a(ell), nu(ell)), and expressions in t functions of time (eta(t)). A branch, label noise,
    weight decay, momentum or temperature is left out if its number is missing or zero, and so are a single
    output and an initial variance of one.

    >>> from numerics.experiment.experiment import Experiment
    >>> spec = {"network": {"depth": 2, "bias": True}, "training": {"weight_decay": 0.1}}
    >>> program = program_of(Experiment.from_dict(spec))
    >>> program.name, program.rule.rate, program.rule.decay
    ('deep linear network with biases', eta/P, eta*lambda)
    """
    spec = experiment.spec
    build = {"fixed": _fixed, "isotropic": _isotropic, "power-law": _structured}[spec.kind]
    stated_depth = L if experiment.symbolic else Integer(experiment.depth)
    program = build(spec, stated_depth if depth is None else depth, spec.training.rule)
    moving = tuple(sorted(moving_symbols(spec), key=str))
    return _moving(program, moving) if moving else program


def moving_symbols(spec: Spec) -> dict[Symbol, str]:
    """Return the symbols of training rules, such as eta, that the file gives as expressions in t.

    Values are the keys of [training] that give them, such as "learning_rate".
    """
    symbols = {
        "learning_rate": eta,
        "weight_decay": decay,
        "momentum": tau if spec.training.rule == "flow" else kept,
        "temperature": temperature,
    }
    return {symbols[key]: key for key in spec.training.schedules}


@lru_cache(maxsize=64)
def _moving(program: Program, symbols: tuple[Symbol, ...]) -> Program:
    """Return the program with functions of the time, such as ``eta(t)``, in its training rules.

    They replace the ``symbols``, such as eta.
    """
    functions = {x: Function(x.name)(t) for x in symbols}
    return program.with_rules(lambda rule: _with_coefficients(rule, lambda e: e.xreplace(functions)))


def scheduled(program: Program, spec: Spec) -> Program:
    """Return the program whose training rules hold the file's expressions in t in place of ``eta(t)``."""
    schedules = schedules_of(spec)
    if not schedules:
        return program

    def with_schedules(e: Expr) -> Expr:
        """Return the expression with the expressions of the file in place of functions such as ``eta(t)``."""
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in schedules,
            lambda x: schedules[str(x.func)].xreplace({t: x.args[0]}),
        )

    return program.with_rules(lambda rule: _with_coefficients(rule, with_schedules))


def schedules_of(spec: Spec) -> dict[str, Expr]:
    """Return the expressions in t of a file, by the names of their functions in the theory.

    >>> from numerics.experiment.schema import parse
    >>> training = {"learning_rate": "0.1/(1 + t)", "weight_decay": "0.5**t", "steps": 9}
    >>> schedules_of(parse({"network": {"depth": 1}, "training": training}))
    {'eta': 1/(10*(t + 1)), 'lambda': (1/2)**t}
    """
    training, steps = spec.training, spec.training.rule != "flow"
    return {
        x.name: parse_schedule(f"training.{key}", getattr(training, key), training.end, steps)
        for x, key in moving_symbols(spec).items()
    }


def _with_coefficients(rule: TrainingRule, change: Callable[[Expr], Expr]) -> TrainingRule:
    """Return the rule with ``change`` applied to each of its parameters that is an expression."""
    changed = {x.name: change(e) for x in fields(rule) if isinstance(e := getattr(rule, x.name), Expr)}  # type: ignore[arg-type]
    return replace(rule, **changed)  # type: ignore[type-var]


def centred(program: Program) -> Program:
    """Return the program with the initial outputs subtracted: ``f(t) - f(0)`` in place of f.

    >>> from derive.program import mlp
    >>> next(d.rhs for d in centred(mlp(1)).definitions if d.name == "f")
    -f_raw(mu, 0) + f_raw(mu, t)
    """
    raw, definitions = Function(f"{OUTPUT}_raw"), []
    for d in program.definitions:
        if d.name == OUTPUT:
            raw_output = raw(*d.lhs.args)
            definitions.append(replace(d, lhs=raw_output))
            d = replace(d, rhs=raw_output - raw_output.xreplace({t: S.Zero}))
        definitions.append(d)
    return replace(program, definitions=tuple(definitions), scalars=(*program.scalars, str(raw)))


def slope_jumps(program: Program) -> bool:
    """Return whether the equation of a field contains a step function or a sign.

    The equations of gradients do for an activation with a kink, such as relu.

    >>> from derive.program import mlp
    >>> [slope_jumps(mlp(1, activation)) for activation in ("tanh", "relu", "gelu")]
    [False, True, False]
    """
    fields = (d.rhs for d in program.definitions if d.name not in program.scalars)
    return any(e.has(Heaviside, sign) for e in fields)


def error_jumps(program: Program) -> bool:
    """Return whether the definition of a scalar contains a step function or a sign.

    The error of the hinge loss does, because it jumps at the margin.

    >>> from derive.program import mlp
    >>> [error_jumps(mlp(1, "relu", objective=x)) for x in ("square", "logistic", "hinge")]
    [False, False, True]
    """
    return any(d.rhs.has(Heaviside, sign) for d in program.definitions if d.name in program.scalars)


RISE = Symbol("epsilon_jump", positive=True)
"""Scale of the width of a widened jump, in units of the output."""


def widened(program: Program) -> Program:
    """Return the program with ramps in place of the error's jumps.

    The width of a ramp is RISE times the factor of :func:`_ramp`, such as sqrt(2) for the hinge loss.

    >>> from derive.program import mlp
    >>> error = next(d.rhs for d in widened(mlp(1, objective="hinge")).definitions if d.name == "Delta")
    >>> target, output = Function("y"), Function("f")
    >>> error = error.replace(target, lambda *_: 1).subs(RISE, 0.1 / sqrt(2))
    >>> [round(float(error.replace(output, lambda *_: x)), 9) for x in (0.9, 1, 1.02, 1.1)]
    [1.0, 0.5, 0.3, 0.0]
    """
    definitions = []
    for d in program.definitions:
        if d.name in program.scalars:
            rhs = d.rhs.replace(sign, lambda x: 2 * Heaviside(x) - 1)
            d = replace(d, rhs=rhs.replace(Heaviside, partial(_ramp, program)))
        definitions.append(d)
    return replace(program, definitions=tuple(definitions), descent=None)


def _ramp(program: Program, x: Expr, *_: Expr) -> Expr:
    """Return a ramp from 0 to 1 in place of the step function of x, with a width of about RISE.

    It is ``(|z + 1/2| - |z - 1/2| + 1)/2`` for ``z = x/(RISE sqrt(1 + sum_a (dx/da)^2))``, where a are the
    scalars of the ``program`` in x, such as outputs. Further arguments, such as the value of the step
    function at zero, are ignored.
    """
    outputs = [a for a in x.atoms(AppliedUndef) if str(a.func) in program.scalars]
    z = x / (RISE * sqrt(1 + sum(x.diff(a) ** 2 for a in outputs)))
    return (Abs(z + S.Half) - Abs(z - S.Half) + 1) / 2


def _fixed(spec: Spec, depth: Integer | Symbol, rule: str) -> Program:
    """Return the program on fixed samples, with ``depth`` layers and the training rule called ``rule``.

    The key that subtracts initial outputs has no effect, because these are zero at infinite width.
    """
    network, training = spec.network, spec.training
    variance = network.init_variance
    return _mlp(
        depth,
        parse_activation(network.activation),
        # The rule of _entrywise contains the factor of the loss already, 1/P for a mean over P samples, so
        # that the loss is passed as a sum.
        *((_entrywise(spec), "sum") if training.entrywise else (rule, training.loss)),
        outputs=1 if network.outputs == 1 else C,
        bias=network.bias,
        branch=None if network.branch is None else beta,
        relative_widths=None if network.relative_widths is None else "a",
        init_variance="sigma" if isinstance(variance, list) else None if variance == 1 else sigma**2,
        sample_weights=spec.has_test_points,
        objective=training.objective,
        **_numbers(spec),
    )


def _entrywise(spec: Spec) -> TrainingRule:
    """Return the entrywise training rule of a file, such as Adam, with symbols for its constants.

    A constant that is zero in the file is zero in the rule.
    """
    constants = {key: CONSTANTS[key] if x else 0 for key, x in spec.training.constants.items()}
    return entrywise_rule(
        spec.training.rule,
        spec.training.loss,
        weight_decay=decay if spec.training.weight_decay else 0,
        samples=P_train if spec.has_test_points else P,
        **constants,
    )


def _isotropic(spec: Spec, depth: Integer | Symbol, rule: str) -> Program:
    """Return the program on isotropic data, with ``depth`` layers and the training rule called ``rule``."""
    network, data = spec.network, spec.data
    assert data is not None
    seen = "full-batch" if data.sample_ratio else "online" if data.batch_ratio else "population"
    return _random(
        depth,
        data=seen,
        noise=bool(data.noise) and seen != "population",
        center=spec.centered,
        branch=None if network.branch is None else beta,
        widths=_unequal if isinstance(network.width_ratio, list) else nu,
        outputs=None if network.outputs == 1 else C,
        parametrization=network.parametrization,
        rule=_rule(spec, rule),
    )


def _unequal(layer: Expr) -> Expr:
    """Return the ratio of the width of a layer to the input dimension, as the function ``nu(layer)``."""
    return Function("nu")(layer)


def _structured(spec: Spec, depth: Integer | Symbol, rule: str) -> Program:
    """Return the program on power-law data, with ``depth`` layers and the training rule called ``rule``."""
    assert spec.data is not None
    online = spec.training.rule == "sgd"
    return _modes(
        depth,
        data="online" if online else "population",
        noise=bool(spec.data.noise) and online,
        center=spec.centered,
        parametrization=spec.network.parametrization,
        rule=_rule(spec, rule),
    )


def _wide(spec: Spec) -> bool:
    """Return whether the layers of an experiment on random data are infinitely wide."""
    if spec.kind == "power-law":
        return spec.training.rule != "sgd" and spec.network.width is None
    return spec.kind == "isotropic" and spec.network.width_ratio is None


def _rule(spec: Spec, rule: str) -> TrainingRule:
    """Return the training rule of a program on random data, whose name in the file is ``rule``.

    The loss is a sum, because fields of these programs contain the mean over samples; "sgd" is gradient
    descent on fresh batches.
    """
    return training_rule("gd" if rule == "sgd" else rule, "sum", **_numbers(spec))


def _numbers(spec: Spec) -> _Rule:
    """Return symbols of weight decay, momentum and temperature, 0 for a number that is missing or zero.

    For an entrywise rule all are 0, because the rule holds its own constants.
    """
    training = spec.training
    if training.entrywise:
        return {"weight_decay": 0, "momentum": 0, "temperature": 0}
    return {
        "weight_decay": decay if training.weight_decay else 0,
        "momentum": (tau if training.rule == "flow" else kept) if training.momentum else 0,
        "temperature": temperature if training.temperature else 0,
    }


DerivedResult = TypeVar("DerivedResult")


def derive_or_raise(
    experiment: Experiment,
    derive: Callable[[Experiment], DerivedResult],
    what: str,
    wants: Mapping[str, object],
) -> DerivedResult:
    """Return ``derive(experiment)``; if it raises NotApplicable, raise SpecError for a key of the file.

    ``what`` names the requested quantity in words. ``wants`` maps dotted keys to the value, or the tuple of
    values, for which the quantity exists; a missing key counts as false or zero if that is the first of them.
    The error names the first key with another value in the file; if all agree, it names network.depth.

    >>> def plain(e):
    ...     if e.network.bias: raise NotApplicable("biases add to every layer")
    >>> e = Experiment.without_arrays({"network": {"depth": 1, "bias": True}})
    >>> derive_or_raise(e, plain, "the example", {"network.bias": False})
    Traceback (most recent call last):
    numerics.errors.SpecError: network.bias = true: the example is not available: biases add to every ...
    """
    try:
        return derive(experiment)
    except NotApplicable as reason:
        for key, wanted in wants.items():
            value, good = experiment.value(key), wanted if isinstance(wanted, tuple) else (wanted,)
            if value not in good and not (value is None and good[0] in (False, 0.0)):
                accepted = " or ".join("leaving it out" if x is None else value_to_toml(x) for x in good)
                raise SpecError(key, value, f"{what} is not available: {reason}", accepted) from None
        depth, instead = experiment.network.depth, "a number" if experiment.symbolic else "another network"
        raise SpecError("network.depth", depth, f"{what} is not available: {reason}", instead) from None
