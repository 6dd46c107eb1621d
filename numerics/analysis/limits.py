"""What derived closed forms say of an experiment: its first steps, its largest rate, its infinite depth.

The largest rate is also measured, in the solved theory, by bisection.

Numbers of the file are put in exactly, so that rounding comes last.  Where a limit has no closed form the
refusal names the key of the file, or ``refused`` says why beside what was solved.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Pow, Rational, Symbol, nsimplify, sympify

from derive.calculus.recurrences import q
from derive.depth.infinite import Diversity, diversity
from derive.errors import NotApplicable
from derive.program import L, Program, eta, gamma0
from derive.program.networks.random_data import nu, sigma
from derive.scale import FirstStep, first_step, lazy_steps, memory_free, smallest_rate
from derive.scale.largest_rate import LargestRate
from derive.scale.largest_rate import largest_rate as largest_rate_form
from derive.scale.lazy import lazy_kernel
from derive.show.conditions import ConditionalResult
from derive.theory import Theory, mean_field
from numerics.errors import Diverged, NotConverged, SpecError, require_finite
from numerics.experiment import Experiment
from numerics.experiment.numbers import layered_numbers, numbers_of
from numerics.experiment.problem import Problem
from numerics.experiment.theory import beta, derived, program_of, reductions_of, served
from numerics.names import C_FIELD, C_LEARNT, LINEAR_KERNEL
from numerics.progress import Progress
from numerics.solver import solve
from numerics.solver.depth.solve import (
    LAYERS,
    correction_of,
    limit_of,
    require_file,
    solve_depth_correction,
)

Array = NDArray[np.float64]
LimitValue = TypeVar("LimitValue")


class Finite(ConditionalResult):
    """Base class of results that can be written as JSON. Raises if a number is not finite."""

    def __post_init__(self) -> None:
        require_finite(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, formulas and conditions that ``--json`` prints."""
        return {**self.numbers(), "conditions": list(self.conditions())}

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """Return numbers and formulas by name."""


# -- the largest rate, measured ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """The largest learning rate lies between ``stable``, which learns, and ``unstable``, which does not."""

    stable: float
    unstable: float
    steps: int

    @property
    def value(self) -> float:
        """The geometric mean of the two."""
        return float(np.sqrt(self.stable * self.unstable))


def largest_rate(
    experiment: Experiment, *, rtol: float = 0.01, rise: bool = True, settle: bool = False
) -> Rate:
    """The learning rate above which ``experiment`` does not learn, to a relative ``rtol``.

    At a stable rate the loss (of random data the test loss) is smaller after all ``training.steps`` than at
    the start; with ``rise=False`` it must not have been larger in between either, as it is in a catapult: the
    error grows until the kernel has shrunk.  With ``settle`` it must die out: above the rate that the minimum
    bears, the error of rich networks may swing around it for ever, below its start.  The largest loss in the
    last quarter of the steps is then at most half of that in the quarter before, or rounding; there must be
    steps enough for that, and ``training.learning_rate`` must not be far too small.

    Rates are halved or doubled from ``training.learning_rate`` until one is stable and its double is not,
    then bisected.  A rate that is only just unstable needs many steps to show: the answer falls to its limit
    as the number of steps grows.  Raises :class:`~numerics.errors.SpecError` for a flow, and
    :class:`~numerics.errors.NotConverged` when no rate between 2^-60 and 2^60 times the given one will do
    (with ``settle``: none down to 2^-10).

    >>> from numerics.experiment import Experiment
    >>> lazy = Experiment.from_dict({"network": {"depth": 1, "gamma0": 1e-3}, "data": {"kind": "isotropic"},
    ...                              "training": {"learning_rate": 0.1, "steps": 40}})
    >>> [round(largest_rate(lazy, rise=x).value, 1) for x in (False, True)]  # 2/K and 4/K, K = 2 (catapult)
    [1.0, 2.0]
    """
    training = experiment.training
    if training.rule == "flow" or training.steps is None:
        raise SpecError("training.rule", training.rule, "has no learning rate to be found", '"gd" or "sgd"')
    experiment.require_constant("a largest learning rate", "learning_rate")
    rate = float(training.learning_rate or 0.1)
    learns = partial(_learns, experiment.at_all_times(), rise=rise, settle=settle)
    low, high = (rate, 2 * rate) if learns(rate) else (rate / 2, rate)
    for _ in range(10 if settle else 60):
        if learns(high):
            low, high = high, 2 * high
        elif not learns(low):
            low, high = low / 2, low
        else:
            break
    else:
        raise NotConverged(f"no rate between {low:.3g} and {high:.3g} separates learning from divergence")
    while high / low > 1 + rtol:
        middle = float(np.sqrt(low * high))
        if not low < middle < high:  # neighbouring numbers: no rate is between them
            break
        low, high = (middle, high) if learns(middle) else (low, middle)
    return Rate(low, high, training.steps)


def _learns(experiment: Experiment, rate: float, *, rise: bool, settle: bool) -> bool:
    try:
        result = solve(experiment.replace({"training.learning_rate": rate}), kernels="none")
    except (Diverged, NotConverged):
        return False
    fixed = experiment.spec.kind == "fixed"  # where test points may be learnt less while training succeeds
    loss = result["train_loss" if fixed or "test_loss" not in result else "test_loss"].values
    learnt = bool(loss[-1] < loss[0]) and (rise or bool(loss.max() <= loss[0]))
    return learnt and (not settle or _settles(loss))


ROUNDING = 1e-12
"""A loss that is no larger than this part of its start has died out."""


def _settles(loss: NDArray[np.float64]) -> bool:
    quarter = max(1, (len(loss) - 1) // 4)
    late, before = loss[-quarter:].max(), loss[-2 * quarter : -quarter].max()
    return bool(late <= max(before / 2, ROUNDING * loss[0]))


# -- the first step ------------------------------------------------------------------------------------------

FIRST_STEP = {"data.kind": "isotropic", "training.rule": ("gd", "sgd"), "network.outputs": 1}
"""What has a first step in closed form, as far as keys go."""


@dataclass(frozen=True)
class EarlyTime(Finite):
    """``growth_factor`` is ``C_v(1)/C_v(0)``, a number; ``formula`` the same in symbols.

    ``root`` is what q stands for in a formula of every depth.  ``critical_learning_rate`` is the smallest
    rate at which the first step leaves the loss where it is; ``critical_formula`` the same in symbols, if it
    is a rational function.  Numbers are None if the depth is a symbol, or if there is no such rate.
    ``basis`` are the conditions of the first step.
    """

    formula: Expr
    critical_formula: Expr | None
    growth_factor: float | None
    critical_learning_rate: float | None
    basis: tuple[str, ...]
    root: Expr | None = None

    def conditions(self) -> tuple[str, ...]:
        """Return what the first step rests on."""
        return self.basis

    def numbers(self) -> dict[str, Any]:
        """Return the growth factor and the critical rate, as numbers and as formulas."""
        return {
            "growth_factor": self.growth_factor,
            "critical_learning_rate": self.critical_learning_rate,
            "formula": str(self.formula),
            "critical_formula": _text(self.critical_formula),
            **({} if self.root is None else {str(q): str(self.root)}),
        }


def early_time(source: Experiment | Program, numbers: Mapping[str, float] | None = None) -> EarlyTime:
    """The first step of an experiment on isotropic data, or in symbols that of a program on such data.

    ``numbers`` are those for the symbols of a program, if the values of its formulas are wanted.

    The formula is one for every depth ``L`` where the layers are alike (one width, no branch, plain descent)
    and it is a polynomial; otherwise it is that of the file's depth.  Raises
    :class:`~numerics.errors.SpecError` naming the key where the first step has no closed form.

    >>> found = early_time(Experiment.from_dict({
    ...     "network": {"depth": 2, "width_ratio": 2.0}, "data": {"kind": "isotropic", "batch_ratio": 1.0},
    ...     "training": {"rule": "sgd", "learning_rate": 0.1, "center": True}}))
    >>> print(found.growth_factor, found.critical_learning_rate, found.critical_formula)
    0.63 0.2608695652173913 12*alpha_B*nu/((alpha_B + 1)*(2*L**2 + 6*L*nu + L + 6*nu))
    """
    if isinstance(source, Program):
        step = _of_program(source, _of_theory, "the first step in closed form")
        return _at(_formulas(step), numbers, step.theory) if numbers else _formulas(step)
    experiment = source
    experiment.require_linear_rule("the first step in closed form")
    experiment.require_constant("the first step in closed form")
    step = served(experiment, _first_step, "the first step in closed form", FIRST_STEP)
    if experiment.symbolic:
        return _formulas(step)
    if _alike(experiment) and (every := _first_step(experiment.replace({"network.depth": "L"}))).root is None:
        step = every
    numbers = _numbers(experiment)
    if eta not in numbers:
        raise SpecError("training.learning_rate", None, "is missing; growth needs it", "a positive number")
    rate = numbers.pop(eta)
    growth = first_step(_put(_theory(experiment), numbers)).growth_factor
    factor, critical = float(growth.subs(eta, rate)), smallest_rate(growth, eta)
    return replace(_formulas(step), growth_factor=factor, critical_learning_rate=critical)


def _at(found: EarlyTime, numbers: Mapping[str, float], theory: Theory) -> EarlyTime:
    """The formulas of a program with a number for each of their symbols, the rate among them."""
    symbols = {x.name: x for x in found.formula.free_symbols}
    for name in numbers:
        if name not in theory.symbols:
            accepted = ", ".join(theory.symbols)
            raise SpecError(name, numbers[name], "is no symbol of the theory", accepted)
    for name in symbols:
        if name not in numbers:
            raise SpecError(name, None, "is missing", "a number for this symbol of the formula")
    if found.root is not None:
        raise SpecError("--set", None, "the formula has a root in it that has no number", "no --set")
    known = {
        symbols[name]: Rational(str(x)) for name, x in numbers.items() if name in symbols and name != eta.name
    }
    growth = found.formula.subs(known)
    value = float(growth.subs(eta, numbers[eta.name]))
    return replace(found, growth_factor=value, critical_learning_rate=smallest_rate(growth, eta))


def _formulas(step: FirstStep) -> EarlyTime:
    """Growth and critical rate in symbols; the latter None if it is no rational function."""
    critical = step.critical_learning_rate if step.degree == 2 else None
    return EarlyTime(step.growth_factor, critical, None, None, step.conditions(), step.root)


def _of_program(program: Program, find: Callable[[Theory], LimitValue], what: str) -> LimitValue:
    """What is found in the theory of a program; a refusal says what that theory lacks."""
    theory = mean_field(program)
    accepted = "a program on isotropic data, such as derive.program.isotropic makes"
    if C_LEARNT not in {x.name for x in theory.order_parameters}:
        reason = f"{what}: is derived from C_v, the correlation of the population error of isotropic data"
        raise SpecError("program", program.name, reason, accepted)
    try:
        return find(theory)
    except NotApplicable as reason:
        raise SpecError("program", program.name, f"{what}: {reason}", accepted) from None


def _alike(experiment: Experiment) -> bool:
    """Are its layers alike, so that all depths have one formula?"""
    network, training = experiment.network, experiment.training
    if network.branch or isinstance(network.width_ratio, list):
        return False
    return not (training.weight_decay or training.momentum or training.temperature)


def _first_step(experiment: Experiment) -> FirstStep:
    if experiment.spec.kind != "isotropic":
        raise NotApplicable("the first step is that of isotropic data")
    return _of_theory(_theory(experiment))


@lru_cache(maxsize=16)
def _of_theory(theory: Theory) -> FirstStep:
    return first_step(theory)


def _theory(experiment: Experiment) -> Theory:
    spec = experiment.spec
    return derived(program_of(experiment), reductions_of(spec), tuple(layered_numbers(spec)))


def _numbers(experiment: Experiment) -> dict[Symbol, Expr]:
    if experiment.symbolic:
        raise SpecError("network.depth", "L", "is a symbol; steps need a number", "a number of hidden layers")
    return {x: Rational(str(value)) for x, value in numbers_of(experiment).items()}


def _put(theory: Theory, numbers: Mapping[Symbol, Expr]) -> Theory:
    """With the numbers in place of symbols, in fractions: roots of numbers to thirty digits."""

    def exact(e: Expr) -> Expr:
        e = nsimplify(sympify(e).subs(numbers), rational=True)
        roots = [p for p in e.atoms(Pow) if p.is_number and not p.is_Rational]
        return e.xreplace({p: Rational(str(p.evalf(30))) for p in roots})

    return theory.map(exact)


def _text(e: Expr | None) -> str | None:
    return None if e is None else str(e)


# -- a few steps, and whether a loss that rises comes down again ---------------------------------------------

NODES = 4
"""Eigenvalues that stand for the spectrum of the lazy kernel."""


@dataclass(frozen=True)
class EarlySteps(Finite):
    """``C_v`` and the loss on fresh or repeated samples (``C_Delta``) after each step, as solved.

    ``memory_free`` is the recursion beside ``C_v``, and ``dropped`` its neglected terms in the second step by
    name; both are None, and ``refused`` says why, where the experiment has no such recursion.  ``basis`` are
    the conditions of the recursion.
    """

    C_v: tuple[float, ...]
    C_Delta: tuple[float, ...] | None
    noise: float
    memory_free: tuple[float, ...] | None
    dropped: Mapping[str, float] | None
    refused: str | None
    basis: tuple[str, ...] = ()

    def conditions(self) -> tuple[str, ...]:
        """Return what the losses after each step rest on."""
        return ("derived: C_v after each step, by solving the theory with its memory", *self.basis)

    @property
    def test_growth_factor(self) -> float:
        """The test loss, label noise included, after the first step over that before."""
        return (self.C_v[1] + self.noise**2) / (self.C_v[0] + self.noise**2)

    @property
    def train_growth_factor(self) -> float | None:
        """The same of the training loss (online: on the batch of the step); None if there are no samples."""
        return None if self.C_Delta is None else self.C_Delta[1] / self.C_Delta[0]

    def numbers(self) -> dict[str, Any]:
        """Return the losses after each step, and what the recursion drops."""
        return {
            C_LEARNT: list(self.C_v),
            "test_growth_factor": self.test_growth_factor,
            "train_growth_factor": self.train_growth_factor,
            "memory_free": None if self.memory_free is None else list(self.memory_free),
            "dropped": None if self.dropped is None else dict(self.dropped),
        }


def early_steps(experiment: Experiment, steps: int) -> EarlySteps:
    """``steps`` steps of ``experiment``, on isotropic data.

    Raises :class:`~numerics.errors.SpecError` for a depth that is a symbol and for no steps at all, and what
    the solver raises.

    >>> found = early_steps(Experiment.from_dict({
    ...     "network": {"depth": 1, "width_ratio": 1.0}, "data": {"kind": "isotropic"},
    ...     "training": {"learning_rate": 0.25, "steps": 1, "center": True}}), 2)
    >>> found.memory_free
    (1.0, 0.3125, 0.09765625)
    >>> round(sum(found.dropped.values()) + found.memory_free[2] - found.C_v[2], 12)
    0.0
    """
    if steps < 1:
        raise SpecError("steps", steps, "is no number of steps", "1 or more")
    experiment.require_linear_rule("the first steps without memory")
    experiment.require_constant("the first steps without memory")
    numbers = _numbers(experiment)
    solved = solve(experiment.replace({"training.steps": steps, "training.times": None}))
    curves = {
        name: tuple(float(solved[name].values[t, t]) for t in range(steps + 1))
        for name in (C_LEARNT, "C_Delta")
        if name in solved
    }
    rest = {sigma: numbers.pop(sigma, Rational(0))}
    found = (curves[C_LEARNT], curves.get("C_Delta"), float(rest[sigma]))
    try:
        recursion = memory_free(_put(_theory(experiment), numbers))
    except NotApplicable as reason:
        return EarlySteps(*found, None, None, str(reason))
    repeated = tuple(float(recursion.loss(t).subs(rest)) for t in range(steps + 1))
    dropped = {k: float(x.subs(rest)) for k, x in recursion.dropped.items()}
    return EarlySteps(*found, repeated, dropped, None, recursion.conditions())


@dataclass(frozen=True)
class Recovery(Finite):
    """Rates: ``critical`` first raises the loss, below ``largest`` training still succeeds, as solved.

    ``lazy`` is the largest rate of the lazy limit and ``ceiling`` a bound on it in closed form; both are
    None, and ``refused`` says why, where that limit has no closed form.  ``basis`` are the conditions of the
    lazy limit.
    """

    critical: float | None
    largest: Rate
    lazy: float | None
    ceiling: float | None
    refused: str | None
    basis: tuple[str, ...] = ()

    def conditions(self) -> tuple[str, ...]:
        """Return what the largest rates rest on."""
        measured = f"by bisection of the solved theory, over {self.largest.steps} steps"
        return (f"measured: the largest learning rate, {measured}; it falls with their number", *self.basis)

    @property
    def recovers(self) -> bool:
        """Is there a rate at which the loss first rises and then falls below its start?"""
        return self.critical is not None and self.largest.stable > self.critical

    def numbers(self) -> dict[str, Any]:
        """Return the largest rates of the experiment and of its lazy limit."""
        return {
            "largest_learning_rate": self.largest.value,
            "recovers": self.recovers,
            "lazy_largest_learning_rate": self.lazy,
            "lazy_ceiling": self.ceiling,
        }


def recovery(experiment: Experiment, *, rtol: float = 0.01, nodes: int = NODES) -> Recovery:
    """The largest rate of ``experiment`` within its steps, beside the critical and the lazy ones.

    ``nodes`` eigenvalues stand for the lazy spectrum; the rate falls with their number, see
    :meth:`.LazySteps.largest_rate`.  Raises what :func:`largest_rate` raises.

    >>> found = recovery(Experiment.from_dict({
    ...     "network": {"depth": 1, "width_ratio": 0.5, "gamma0": 0.5},
    ...     "data": {"kind": "isotropic", "batch_ratio": 0.25},
    ...     "training": {"rule": "sgd", "learning_rate": 0.1, "steps": 40, "center": True}}), rtol=0.02)
    >>> round(found.critical, 4), round(found.lazy, 3), found.ceiling, found.recovers
    (0.1333, 0.175, 0.2, True)
    """
    experiment.require_linear_rule("a largest learning rate in closed form")
    experiment.require_constant("a largest learning rate")
    numbers = {x: value for x, value in _numbers(experiment).items() if x not in (eta, gamma0)}
    lazy: tuple[float | None, float | None, str | None, tuple[str, ...]]
    try:
        found = lazy_steps(_put(_theory(experiment), numbers), nodes)
        spectrum = f"assumed: {nodes} eigenvalues, which have these moments, stand for the spectrum"
        lazy = float(found.largest_rate()), float(found.ceiling), None, (*found.conditions(), spectrum)
    except NotApplicable as reason:
        lazy = None, None, str(reason), ()
    critical = early_time(experiment).critical_learning_rate
    return Recovery(critical, largest_rate(experiment, rtol=rtol), *lazy)


# -- the largest rate ----------------------------------------------------------------------------------------

LARGEST_RATE = {
    "data.kind": "isotropic",
    "data.sample_ratio": None,
    "data.batch_ratio": None,
    "data.noise": 0.0,
    "network.outputs": 1,
    "network.branch": None,
    "training.rule": "gd",
    "training.center": True,
    "training.weight_decay": 0.0,
    "training.momentum": 0.0,
    "training.temperature": 0.0,
}
"""What has a largest rate in closed form, as far as keys go."""


@dataclass(frozen=True)
class RateLimit(Finite):
    """``form`` is the closed form, the rest its numbers, None if the depth is a symbol.

    ``rate`` of lazy networks is 2 over the largest eigenvalue of the kernel at the file's width, which the
    closed form has to first order only; ``neglected`` is what the form leaves out, beside one.  ``kernel``
    are the conditions of that eigenvalue.
    """

    form: LargestRate
    exponent: float | None
    rate: float | None
    crossover: float | None
    neglected: float | None
    kernel: tuple[str, ...] = ()

    def conditions(self) -> tuple[str, ...]:
        """Return what the formula and the rate rest on."""
        return (*self.form.conditions(), *self.kernel)

    @property
    def warning(self) -> str | None:
        """A sentence if the formula leaves out as much as it keeps, so that its number says nothing."""
        if self.neglected is None or self.neglected < 1:
            return None
        size = f"what it neglects is {self.neglected:.3g} times what it keeps"
        return f"the {self.form.regime} formula does not hold for these numbers: {size}"

    def numbers(self) -> dict[str, Any]:
        """Return the rate, its power of nu and the crossover, as numbers and as formulas."""
        return {
            "regime": self.form.regime,
            "exponent": self.exponent,
            "exponent_formula": str(self.form.exponent),
            "formula": str(self.form.rate),
            "rate": self.rate,
            "crossover": self.crossover,
            "crossover_formula": _text(self.form.crossover),
            "neglected": self.neglected,
            "warning": self.warning,
        }


def rate_limit(source: Experiment | Program, regime: str | None = None) -> RateLimit:
    """The largest rate of an experiment on the population of isotropic data, from the derived closed forms
    (of a program on such data, at any depth, in symbols);
    :func:`largest_rate` measures the same in the solved theory.

    ``regime`` is "rich" or "lazy"; that of the file if it is not given, which needs a depth that is a number:
    training is rich where the rich rate is the smaller one.
    Raises :class:`~numerics.errors.SpecError` for another, for a network without one finite width, and naming
    the key where there is no closed form.

    >>> network = {"depth": 2, "gamma0": 300.0, "width_ratio": 4.0, "parametrization": "ntk"}
    >>> tables = {"network": network, "data": {"kind": "isotropic"}, "training": {"center": True}}
    >>> found = rate_limit(Experiment.from_dict(tables))
    >>> print(found.form.regime, found.form.exponent, round(found.exponent, 3), f"{found.rate:.6f}")
    rich L/(L + 1) 0.667 0.000836
    """
    if regime not in (None, "rich", "lazy"):
        raise SpecError("--regime", regime, "is no regime", '"rich" or "lazy"')
    if isinstance(source, Program):
        if regime is None:
            reason = "is missing: the numbers of a program are symbols, which leave the regime open"
            raise SpecError("--regime", None, reason, '"rich" or "lazy"')
        what, own = "the largest rate in closed form", regime
        form = _of_program(source, lambda theory: largest_rate_form(theory, own), what)
        return RateLimit(form, None, None, None, None)
    experiment = source
    experiment.require_linear_rule("a largest learning rate in closed form")
    experiment.require_constant("a largest learning rate")
    width = experiment.network.width_ratio
    if isinstance(width, list):
        raise SpecError("network.width_ratio", width, "is not one width over features", "a positive number")
    every = served(experiment, _deep_forms, "the largest rate in closed form", LARGEST_RATE)
    if width is None:
        raise SpecError(
            "network.width_ratio", None, "is missing: layers are infinitely wide", "a positive number"
        )
    if experiment.symbolic:
        if regime is None:
            raise SpecError("network.depth", "L", "leaves the regime open", "a number, or --regime rich|lazy")
        return RateLimit(every[regime], None, None, None, None)
    numbers = {L: experiment.depth, gamma0: sympify(experiment.network.gamma0), nu: sympify(width)}

    def number(e: Expr | None) -> float | None:
        return None if e is None else float(sympify(e).subs(numbers))

    leading = {k: number(x.prefactor * nu**x.exponent) for k, x in every.items()}
    own = regime or min(leading, key=lambda k: leading[k] or 0.0)
    form, rate = every[own], leading[own]
    basis: tuple[str, ...] = ()
    if own == "lazy":
        kernel = lazy_kernel(_deep(experiment), experiment.depth)
        rate, basis = 2 / kernel.edge({nu: width}), kernel.conditions()
    return RateLimit(form, number(form.exponent), rate, number(form.crossover), number(form.neglected), basis)


def _deep(experiment: Experiment) -> Theory:
    """With the depth as a symbol."""
    return derived(program_of(experiment, L), reductions_of(experiment.spec))


def _deep_forms(experiment: Experiment) -> dict[str, LargestRate]:
    if experiment.spec.kind != "isotropic":
        raise NotApplicable("the closed form is that of isotropic data")
    return _forms(_deep(experiment))


@lru_cache(maxsize=8)
def _forms(theory: Theory) -> dict[str, LargestRate]:
    return {regime: largest_rate_form(theory, regime) for regime in ("rich", "lazy")}


# -- infinite depth ------------------------------------------------------------------------------------------

REGIME = "branch beta0/sqrt(L): the noise of every layer stays, features of layers differ"
"""The limit that a file asks for; a branch of its own at each depth is the one that keeps beta0."""


@dataclass(frozen=True)
class DepthLimits(Finite):
    """The loss ``name`` over ``time``: in the limit, its first correction (the coefficient of ``L**order``)
    and, at a depth that is a number, that of the network itself (else None).

    ``limit_error`` and ``first_error`` estimate what the layer grid leaves.  ``diversity`` is that of the
    stream, ``field`` its correlation.  ``basis`` are the conditions of the limit and of its correction.
    """

    name: str
    time: Array
    beta0: float
    depth: int | None
    finite: Array | None
    limit: Array
    limit_error: float
    first: Array
    first_error: float
    order: float
    field: str
    diversity: Diversity
    basis: tuple[str, ...]

    def conditions(self) -> tuple[str, ...]:
        """Return what the limit, its correction and the diversity rest on."""
        return (*self.basis, *self.diversity.conditions())

    @property
    def near(self) -> str:
        """The distance of close layers, in symbols."""
        found = self.diversity
        power = "" if found.power == 1 else f"**{found.power}"
        return f"<(x(tau) - x(tau_2))**2> / |tau - tau_2|{power} -> {found.coefficient}"

    @property
    def to_first_order(self) -> Array | None:
        """The network's loss as the limit and its first correction have it."""
        return None if self.depth is None else self.limit + self.depth**self.order * self.first

    @property
    def warning(self) -> str | None:
        """A sentence if the first correction leads away from the network, where the series has no use."""
        rough = self.to_first_order
        if self.depth is None or self.finite is None or rough is None:
            return None
        grid = self.limit_error + self.depth**self.order * self.first_error
        far, near = (float(np.max(np.abs(self.finite - x))) for x in (rough, self.limit))
        if far <= near + grid:
            return None
        return (
            f"the series in 1/L does not hold at L = {self.depth}: the first order is up to {far:.3g} away "
            f"from the network, the limit {near:.3g}"
        )

    def numbers(self) -> dict[str, Any]:
        """Return the losses over time, their errors and the diversity."""
        first = self.to_first_order
        return {
            "time": self.time.tolist(),
            "loss": self.name,
            "depth": self.depth,
            "branch_times_sqrt_depth": self.beta0,
            self.name: None if self.finite is None else self.finite.tolist(),
            "limit": self.limit.tolist(),
            "limit_error": self.limit_error,
            "coefficient": self.first.tolist(),
            "coefficient_error": self.first_error,
            "exponent": self.order,
            "to_first_order": None if first is None else first.tolist(),
            "warning": self.warning,
            "diversity_exponent": float(self.diversity.exponent),
            "formula": self.near,
            "regime": REGIME,
            "status": "ok",
        }


def depth_limits(
    source: Problem | Experiment, *, layers: int = LAYERS, progress: Progress | None = None
) -> DepthLimits:
    """The limit of infinite depth at ``beta0``: the branch times the root of the depth, or the branch itself
    (``network.branch``, the number for ``beta``) if the depth is a symbol.

    Raises :class:`~numerics.errors.SpecError` for a network without a branch, for a program at a number of
    layers, and for what :func:`~numerics.solver.depth.solve_depth_correction` refuses.

    >>> e = Experiment.from_dict({
    ...     "network": {"depth": 16, "branch": 0.25, "width_ratio": 2.0}, "data": {"kind": "isotropic"},
    ...     "training": {"learning_rate": 0.1, "steps": 1}})
    >>> found = depth_limits(e, layers=8)
    >>> found.beta0, bool(abs(found.finite[0] - found.to_first_order[0]) < 0.01), found.diversity.exponent
    (1.0, True, 1/2)
    """
    source = source.at_all_times()
    experiment = source if isinstance(source, Experiment) else source.experiment
    depth, beta0 = None, 0.0
    if experiment is not None:
        experiment.require_linear_rule("the limit of infinite depth")
        experiment.require_moving_features("the limit of infinite depth")
        network = experiment.network
        if network.branch is None:
            reason = "is missing: only residual networks have a limit of infinite depth here"
            raise SpecError("network.branch", None, reason, "a positive number, such as 1/sqrt(depth)")
        require_file(experiment)
        if not experiment.symbolic:
            depth, beta0 = experiment.depth, float(network.branch) * float(np.sqrt(experiment.depth))
            source = experiment.replace({"network.depth": "L", "network.branch": beta0})
    problem = Problem.of(source)
    found = solve_depth_correction(problem, layers=layers, progress=progress)
    name = "train_loss" if problem.seen else "test_loss"
    correction = correction_of(*limit_of(problem))
    limit = correction.limit
    field = next(str(e.lhs.func) for e in limit.correlations if str(e.lhs.func) in (C_FIELD, LINEAR_KERNEL))
    finite = None
    if depth is not None and experiment is not None:
        finite = np.asarray(solve(experiment)[name].values, dtype=float)
    return DepthLimits(
        name,
        problem.times,
        beta0 or float(problem.numbers[beta]),
        depth,
        finite,
        found.limit[name],
        found.limit.errors[name],
        found.first[name],
        found.first.errors[name],
        found.order,
        field,
        diversity(limit, field),
        tuple(dict.fromkeys((*limit.conditions(), *correction.conditions()))),
    )
