"""Limits of experiments from derived equations: first steps, largest learning rate, infinite depth.

The largest rate is also measured in the solved theory, by bisection.  In first steps, numbers of the
experiment are inserted as exact fractions, so that rounding comes last.  Where a limit has no closed form,
SpecError names the key of the file, or ``refused`` gives the reason beside the solved numbers.  `dmft limits`
prints the results.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
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
from numerics.errors import Diverged, NotConverged, SpecError, require_finite, require_whole
from numerics.experiment import Experiment
from numerics.experiment.checks import finite_number
from numerics.experiment.numbers import layered_numbers, numbers_of
from numerics.experiment.problem import Problem
from numerics.experiment.theory import beta, derive_or_raise, derived, program_of, reductions_of
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
    """Base class of results that can be written as JSON; making one with a number that is not finite raises.

    The error is :class:`~numerics.errors.Diverged`, with the name of the number.
    """

    def __post_init__(self) -> None:
        require_finite(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, formulas and conditions that ``--json`` prints."""
        return {**self.numbers(), "conditions": list(self.conditions())}

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """Return the numbers and formulas of the result, by the names that ``--json`` prints."""


# -- the largest rate, measured ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rate:
    """Largest learning rate: training succeeds at the rate ``stable`` and fails at ``unstable``.

    ``steps`` is the number of steps after which success is decided.
    """

    stable: float
    unstable: float
    steps: int

    @property
    def value(self) -> float:
        """Largest learning rate: geometric mean of a rate that succeeds and a larger one that fails."""
        return float(np.sqrt(self.stable * self.unstable))


def largest_rate(
    experiment: Experiment | str | Path, *, rtol: float = 0.01, rise: bool = True, settle: bool = False
) -> Rate:
    """Return the learning rate above which training fails, to a relative tolerance ``rtol``.

    At a stable rate the loss (of random data the test loss) is smaller after all ``training.steps`` than at
    the start; a rate at which the solver diverges or does not converge counts as failed.  ``rise=False`` also
    requires that the loss never exceeds its start; ``rise=True`` allows a catapult, in which the error grows
    until the kernel has shrunk.  ``settle=True`` also requires that the loss converges: above the largest
    rate that is stable at the minimum, rich networks may oscillate around the minimum, at a loss below that
    of the start. The largest loss in the last quarter of the steps must then be at most half of that in the
    quarter before, or a rounding error; this needs many steps and a ``training.learning_rate`` that is not
    far too small.

    Rates are halved or doubled from ``training.learning_rate`` (0.1 if it is missing) until one is stable and
    its double is not, then bisected.  A rate slightly above the limit needs many steps to show: the answer
    decreases towards its limit as the number of steps grows.  Raises :class:`~numerics.errors.SpecError` for
    a flow, without ``training.steps``, for a learning rate that changes in time and for an ``rtol`` that is
    negative or not finite, and :class:`~numerics.errors.NotConverged` if no such pair of rates is found
    within a factor 2^60 of the given rate (2^10 with ``settle``).

    >>> from numerics.experiment import Experiment
    >>> lazy = Experiment.from_dict({"network": {"depth": 1, "gamma0": 1e-3}, "data": {"kind": "isotropic"},
    ...                              "training": {"learning_rate": 0.1, "steps": 40}})
    >>> [round(largest_rate(lazy, rise=x).value, 1) for x in (False, True)]  # 2/K and 4/K, K = 2 (catapult)
    [1.0, 2.0]
    """
    experiment = Experiment.of(experiment)
    training = experiment.training
    if training.rule == "flow" or training.steps is None:
        is_flow = training.rule == "flow"
        reason = "has no learning rate" if is_flow else "needs training.steps, the steps that must succeed"
        accepted = 'a rule in steps, such as "gd"' if is_flow else f'"{training.rule}" with training.steps'
        raise SpecError("training.rule", training.rule, reason, accepted)
    experiment.require_constant("a largest learning rate", "learning_rate")
    if finite_number("rtol", rtol) < 0:
        raise SpecError("rtol", rtol, "must not be negative", "a relative tolerance, such as 0.01")
    rate = float(training.learning_rate or 0.1)
    succeeds = partial(_succeeds, experiment.at_all_times(), rise=rise, settle=settle)
    low, high = (rate, 2 * rate) if succeeds(rate) else (rate / 2, rate)
    for _ in range(10 if settle else 60):
        if succeeds(high):
            low, high = high, 2 * high
        elif not succeeds(low):
            low, high = low / 2, low
        else:
            break
    else:
        outcome = f"succeeds up to {low:.3g}" if low >= rate else f"fails down to {high:.3g}"
        raise NotConverged(
            f"no largest rate at which training succeeds is found: training {outcome}, the last rate tried"
        )
    while high / low > 1 + rtol:
        middle = float(np.sqrt(low * high))
        if not low < middle < high:  # `low` and `high` are adjacent floating-point numbers
            break
        low, high = (middle, high) if succeeds(middle) else (low, middle)
    return Rate(low, high, training.steps)


def _succeeds(experiment: Experiment, rate: float, *, rise: bool, settle: bool) -> bool:
    """Return whether training at the learning rate ``rate`` lowers the loss from the first to the last step.

    Without ``rise`` the loss must also never exceed its initial value, and with ``settle`` it must converge
    (:func:`_converges`). The result is False if the solver diverges or does not converge. The loss is the
    training loss for fixed samples or without a test loss, else the test loss.
    """
    try:
        result = solve(experiment.replace({"training.learning_rate": rate}), kernels="none")
    except (Diverged, NotConverged):
        return False
    # If the training set is fixed, the training loss decides, because the test loss may rise although
    # training succeeds. With other data the test loss decides if there is one.
    fixed = experiment.spec.kind == "fixed"
    loss = result["train_loss" if fixed or "test_loss" not in result else "test_loss"].values
    learnt = bool(loss[-1] < loss[0]) and (rise or bool(loss.max() <= loss[0]))
    return learnt and (not settle or _converges(loss))


ROUNDING = 1e-12
"""Ratio of a loss to its initial value below which it counts as zero."""


def _converges(loss: NDArray[np.float64]) -> bool:
    """Return whether the largest loss in the last quarter of the steps is at most half of that before.

    The comparison is with the largest loss in the third quarter. The result is also True if the largest loss
    in the last quarter is at most ROUNDING times the initial loss.
    """
    quarter = max(1, (len(loss) - 1) // 4)
    late, before = loss[-quarter:].max(), loss[-2 * quarter : -quarter].max()
    return bool(late <= max(before / 2, ROUNDING * loss[0]))


# -- the first step ------------------------------------------------------------------------------------------

FIRST_STEP = {"data.kind": "isotropic", "training.rule": ("gd", "sgd"), "network.outputs": 1}
"""Values of keys for which the first step has a closed form."""


@dataclass(frozen=True)
class EarlyTime(Finite):
    """First training step: the factor by which it changes the test loss, and the rate for a factor of one.

    The factor is ``C_v(1)/C_v(0)``, where C_v(t) is the test loss without label noise after t steps.

    Attributes
    ----------
    formula : Expr
        The factor in symbols.
    critical_formula : Expr or None
        The critical rate in symbols, if it is a rational function.
    growth_factor : float or None
        The factor; None if the depth is a symbol, and for a program without numbers.
    critical_learning_rate : float or None
        The smallest rate at which the first step leaves the loss unchanged; None if no rate does, or if the
        factor is None.
    basis : tuple of str
        Conditions of the first step.
    root : Expr or None
        The expression that is abbreviated by the symbol q in a formula for every depth.
    """

    formula: Expr
    critical_formula: Expr | None
    growth_factor: float | None
    critical_learning_rate: float | None
    basis: tuple[str, ...]
    root: Expr | None = None

    def conditions(self) -> tuple[str, ...]:
        """Return the conditions under which the first step is derived."""
        return self.basis

    def numbers(self) -> dict[str, Any]:
        """Return by name the growth factor and the critical learning rate, as numbers and as formulas.

        The growth factor is that of the test loss in the first step; it is one at the critical rate.
        """
        return {
            "growth_factor": self.growth_factor,
            "critical_learning_rate": self.critical_learning_rate,
            "formula": str(self.formula),
            "critical_formula": _text(self.critical_formula),
            **({} if self.root is None else {str(q): str(self.root)}),
        }


def early_time(
    source: Experiment | Program | str | Path, numbers: Mapping[str, float] | None = None
) -> EarlyTime:
    """Return the first step of an experiment on isotropic data, or in symbols that of a program on such data.

    For a program ``numbers`` may give values by name, one for each symbol of the formula; the growth factor
    and the critical rate are then numbers as well. An experiment has its own numbers.

    One formula holds for every depth ``L`` if the layers are alike (one width, no branch, plain gradient
    descent) and the formula contains no root ``q`` (see :class:`EarlyTime`). Otherwise, if the depth of the
    file is a number, the formula is that of this depth.  Raises :class:`~numerics.errors.SpecError` naming
    the key where the first step has no closed form, where a number, such as the learning rate, is missing,
    and for ``numbers`` beside an experiment.

    >>> found = early_time(Experiment.from_dict({
    ...     "network": {"depth": 2, "width_ratio": 2.0}, "data": {"kind": "isotropic", "batch_ratio": 1.0},
    ...     "training": {"rule": "sgd", "learning_rate": 0.1, "center": True}}))
    >>> print(found.growth_factor, found.critical_learning_rate, found.critical_formula)
    0.63 0.2608695652173913 12*alpha_B*nu/((alpha_B + 1)*(2*L**2 + 6*L*nu + L + 6*nu))
    """
    if isinstance(source, Program):
        step = _of_program(source, _of_theory, "the first step in closed form")
        return _at(_formulas(step), numbers, step.theory) if numbers else _formulas(step)
    if numbers:
        reason = "is given beside an experiment, which has its own numbers"
        raise SpecError("numbers", None, reason, "leaving it out, or experiment.replace({...})")
    experiment = Experiment.of(source)
    experiment.require_linear_rule("the first step in closed form")
    experiment.require_constant("the first step in closed form")
    step = derive_or_raise(experiment, _first_step, "the first step in closed form", FIRST_STEP)
    if experiment.symbolic:
        return _formulas(step)
    if (
        _alike(experiment)
        and (all_depths := _first_step(experiment.replace({"network.depth": "L"}))).root is None
    ):
        step = all_depths
    known = _numbers(experiment)
    if eta not in known:
        raise SpecError(
            "training.learning_rate",
            None,
            "is missing; the growth of the loss in the first step depends on it",
            "a positive number",
        )
    rate = known.pop(eta)
    growth = first_step(_put(_theory(experiment), known)).growth_factor
    factor, critical = float(growth.subs(eta, rate)), smallest_rate(growth, eta)
    return replace(_formulas(step), growth_factor=factor, critical_learning_rate=critical)


def _at(formulas: EarlyTime, numbers: Mapping[str, float], theory: Theory) -> EarlyTime:
    """Return the first step of a program with its growth factor and critical rate at ``numbers``, by name.

    Raises SpecError for a symbol of the formula without a number, for a number that is not a symbol of the
    theory, and for a formula with a root.
    """
    symbols = {x.name: x for x in formulas.formula.free_symbols}
    if formulas.root is not None:
        name, value = next(iter(numbers.items()))
        raise SpecError(
            name,
            value,
            f"cannot be put into the formula, which contains the root {q} of an equation",
            "no numbers, or a program with an integer depth or with center=True",
        )
    for name in numbers:
        if name not in theory.symbols:
            accepted = ", ".join(theory.symbols)
            raise SpecError(name, numbers[name], "is not a symbol of the theory", accepted)
    for name in symbols:
        if name not in numbers:
            raise SpecError(name, None, "is missing", "a number for this symbol of the formula")
    known = {
        symbols[name]: Rational(str(x)) for name, x in numbers.items() if name in symbols and name != eta.name
    }
    growth = formulas.formula.subs(known)
    value = float(growth.subs(eta, numbers[eta.name]))
    return replace(formulas, growth_factor=value, critical_learning_rate=smallest_rate(growth, eta))


def _formulas(step: FirstStep) -> EarlyTime:
    """Return the growth factor and the critical rate of a first step in symbols, without numbers.

    The critical rate is None if it is not a rational function of the symbols.
    """
    critical = step.critical_learning_rate if step.degree == 2 else None
    return EarlyTime(step.growth_factor, critical, None, None, step.conditions(), step.root)


def _of_program(program: Program, find: Callable[[Theory], LimitValue], what: str) -> LimitValue:
    """Return ``find(theory)`` for the theory of a program; ``what`` names the result in messages.

    Raises SpecError if the theory has no order parameter named C_v, as theories of isotropic data have it, or
    if ``find`` raises NotApplicable.
    """
    theory = mean_field(program)
    accepted = "a program on isotropic data, such as derive.program.isotropic makes"
    if C_LEARNT not in {x.name for x in theory.order_parameters}:
        reason = f"{what} is derived from C_v, the correlation of the population error of isotropic data"
        raise SpecError("program", program.name, reason, accepted)
    try:
        return find(theory)
    except NotApplicable as reason:
        raise SpecError("program", program.name, f"{what} is not available: {reason}", accepted) from None


def _alike(experiment: Experiment) -> bool:
    """Return whether one formula of the first step holds for all depths of an experiment.

    This is so if the layers have one width and no branch, and training is plain gradient descent.
    """
    network, training = experiment.network, experiment.training
    if network.branch or isinstance(network.width_ratio, list):
        return False
    return not (training.weight_decay or training.momentum or training.temperature)


def _first_step(experiment: Experiment) -> FirstStep:
    """Return the first step of an experiment; raise NotApplicable if data are not isotropic."""
    if experiment.spec.kind != "isotropic":
        raise NotApplicable("the first step is derived for isotropic data")
    return _of_theory(_theory(experiment))


@lru_cache(maxsize=16)
def _of_theory(theory: Theory) -> FirstStep:
    """Return the first step of a theory, in symbols; a repeated call returns the cached result."""
    return first_step(theory)


def _theory(experiment: Experiment) -> Theory:
    """Return the derived theory of an experiment, with symbols for its numbers."""
    spec = experiment.spec
    return derived(program_of(experiment), reductions_of(spec), tuple(layered_numbers(spec)))


def _numbers(experiment: Experiment) -> dict[Symbol, Expr]:
    """Return the numbers of an experiment as fractions by symbol; raise if the depth is a symbol."""
    if experiment.symbolic:
        raise SpecError(
            "network.depth",
            "L",
            "is a symbol, but numbers of the first steps need a number of layers",
            "a number of hidden layers",
        )
    return {x: Rational(str(value)) for x, value in numbers_of(experiment).items()}


def _put(theory: Theory, numbers: Mapping[Symbol, Expr]) -> Theory:
    """Return the theory with numbers in place of symbols; irrational roots become fractions.

    These have thirty digits.
    """

    def exact(expression: Expr) -> Expr:
        """Return an expression with the given ``numbers`` and all irrational roots as fractions."""
        expression = nsimplify(sympify(expression).subs(numbers), rational=True)
        roots = [p for p in expression.atoms(Pow) if p.is_number and not p.is_Rational]
        return expression.xreplace({p: Rational(str(p.evalf(30))) for p in roots})

    return theory.map(exact)


def _text(e: Expr | None) -> str | None:
    """Return the expression as text, or None."""
    return None if e is None else str(e)


# -- a few steps, and whether a loss that rises comes down again ---------------------------------------------

NODES = 4
"""Number of eigenvalues that represent the spectrum of the lazy kernel."""


@dataclass(frozen=True)
class EarlySteps(Finite):
    """Losses of the first steps on random data, as solved, and those of a recursion that neglects memory.

    Attributes
    ----------
    C_v, C_Delta : tuple of float
        Correlation of the population error (test loss without label noise), and training loss, on fresh or
        repeated samples, at the steps 0, 1, ...; C_Delta is None without samples.
    noise : float
        Standard deviation of the label noise.
    memory_free : tuple of float or None
        ``C_v`` of the recursion without memory at the same steps; None where there is no such recursion.
    dropped : mapping of str to float, or None
        Terms that the recursion neglects in the second step, by name; None where there is no recursion.
    refused : str or None
        Reason why there is no recursion.
    basis : tuple of str
        Conditions of the recursion.
    """

    C_v: tuple[float, ...]
    C_Delta: tuple[float, ...] | None
    noise: float
    memory_free: tuple[float, ...] | None
    dropped: Mapping[str, float] | None
    refused: str | None
    basis: tuple[str, ...] = ()

    def conditions(self) -> tuple[str, ...]:
        """Return the conditions under which the solved losses and the recursion without memory hold."""
        return ("derived: C_v after each step, by solving the theory with its memory", *self.basis)

    @property
    def test_growth_factor(self) -> float:
        """Test loss after the first step divided by the initial one, label noise included."""
        return (self.C_v[1] + self.noise**2) / (self.C_v[0] + self.noise**2)

    @property
    def train_growth_factor(self) -> float | None:
        """Training loss after the first step divided by that before; None if there are no samples.

        Online, the training loss is that on the batch of the step.
        """
        return None if self.C_Delta is None else self.C_Delta[1] / self.C_Delta[0]

    def numbers(self) -> dict[str, Any]:
        """Return, by name, C_v at each step, growth factors, and terms that the recursion neglects."""
        return {
            C_LEARNT: list(self.C_v),
            "test_growth_factor": self.test_growth_factor,
            "train_growth_factor": self.train_growth_factor,
            "memory_free": None if self.memory_free is None else list(self.memory_free),
            "dropped": None if self.dropped is None else dict(self.dropped),
        }


def early_steps(experiment: Experiment | str | Path, steps: int) -> EarlySteps:
    """Return the losses before and after the first ``steps`` steps of an experiment on random data.

    The theory is solved with its memory, for ``steps`` in place of ``training.steps``. The recursion without
    memory is added where it is derived, for example for a centred network of one output on fresh samples of
    isotropic data; otherwise ``refused`` says why not.

    Raises :class:`~numerics.errors.SpecError` if the data are given samples, if the depth is a symbol, if the
    network has several outputs, for a flow, an entrywise rule or a schedule, and if ``steps`` is not an
    integer of at least one. Raises the errors of the solver too.

    >>> found = early_steps(Experiment.from_dict({
    ...     "network": {"depth": 1, "width_ratio": 1.0}, "data": {"kind": "isotropic"},
    ...     "training": {"learning_rate": 0.25, "steps": 1, "center": True}}), 2)
    >>> found.memory_free
    (1.0, 0.3125, 0.09765625)
    >>> round(sum(found.dropped.values()) + found.memory_free[2] - found.C_v[2], 12)
    0.0
    """
    require_whole("steps", steps, 1, "is not a number of steps")
    experiment = Experiment.of(experiment)
    if experiment.spec.kind == "fixed":
        reason = "are given samples, and these losses are those of random data"
        raise SpecError("data.kind", "fixed", reason, '"isotropic"')
    if experiment.network.outputs > 1:
        reason = "gives a C_v for each pair of outputs, and the first steps are derived for one output"
        raise SpecError("network.outputs", experiment.network.outputs, reason, "1")
    experiment.require_linear_rule("the first steps without memory")
    experiment.require_constant("the first steps without memory")
    numbers = _numbers(experiment)
    solved = solve(experiment.replace({"training.steps": steps, "training.times": None}))
    curves = {
        name: tuple(float(solved[name].values[t, t]) for t in range(steps + 1))
        for name in (C_LEARNT, "C_Delta")
        if name in solved
    }
    noise_number = {sigma: numbers.pop(sigma, Rational(0))}
    losses = (curves[C_LEARNT], curves.get("C_Delta"), float(noise_number[sigma]))
    try:
        recursion = memory_free(_put(_theory(experiment), numbers))
    except NotApplicable as reason:
        return EarlySteps(*losses, None, None, str(reason))
    repeated = tuple(float(recursion.loss(t).subs(noise_number)) for t in range(steps + 1))
    dropped = {k: float(x.subs(noise_number)) for k, x in recursion.dropped.items()}
    return EarlySteps(*losses, repeated, dropped, None, recursion.conditions())


@dataclass(frozen=True)
class Recovery(Finite):
    """Largest learning rates: of the first step, of all steps, and of the lazy limit.

    Attributes
    ----------
    critical : float or None
        Rate above which the first step raises the test loss; None if no rate leaves the loss unchanged.
    largest : Rate
        Rate below which training succeeds, measured in the solved theory.
    lazy, ceiling : float or None
        Upper bounds of the largest rate in the lazy limit, by eigenvalues that represent the spectrum of the
        kernel, and in closed form from its mean; None if the lazy limit is not derived.
    refused : str or None
        Reason why the lazy limit is not derived.
    basis : tuple of str
        Conditions of the lazy limit.
    """

    critical: float | None
    largest: Rate
    lazy: float | None
    ceiling: float | None
    refused: str | None
    basis: tuple[str, ...] = ()

    def conditions(self) -> tuple[str, ...]:
        """Return the conditions under which the largest rates hold."""
        measured = f"by bisection of the solved theory, over {self.largest.steps} steps"
        return (f"measured: the largest learning rate, {measured}; it falls with their number", *self.basis)

    @property
    def recovers(self) -> bool:
        """Whether some learning rate raises the loss in the first step and lowers it over all steps."""
        return self.critical is not None and self.largest.stable > self.critical

    def numbers(self) -> dict[str, Any]:
        """Return, by name, the largest learning rates of the experiment and of its lazy limit.

        ``recovers`` says whether a rate raises the loss in the first step and lowers it over all steps.
        """
        return {
            "largest_learning_rate": self.largest.value,
            "recovers": self.recovers,
            "lazy_largest_learning_rate": self.lazy,
            "lazy_ceiling": self.ceiling,
        }


def recovery(experiment: Experiment | str | Path, *, rtol: float = 0.01, nodes: int = NODES) -> Recovery:
    """Return the largest rate of an experiment within its steps, with the critical and the lazy rate.

    For the lazy rate ``nodes`` eigenvalues stand for the spectrum of the lazy kernel; they have its first
    ``2 nodes`` moments, which are derived from as many lazy steps as there are nodes. The lazy rate decreases
    with their number, see :meth:`.LazySteps.largest_rate`.  Raises the errors of :func:`largest_rate` and of
    :func:`early_time`, and :class:`~numerics.errors.SpecError` if ``nodes`` is not a positive integer.

    >>> found = recovery(Experiment.from_dict({
    ...     "network": {"depth": 1, "width_ratio": 0.5, "gamma0": 0.5},
    ...     "data": {"kind": "isotropic", "batch_ratio": 0.25},
    ...     "training": {"rule": "sgd", "learning_rate": 0.1, "steps": 40, "center": True}}), rtol=0.02)
    >>> round(found.critical, 4), round(found.lazy, 3), found.ceiling, found.recovers
    (0.1333, 0.175, 0.2, True)
    """
    require_whole("nodes", nodes, 1, "must be positive")
    experiment = Experiment.of(experiment)
    experiment.require_linear_rule("a largest learning rate in closed form")
    experiment.require_constant("a largest learning rate")
    numbers = {x: value for x, value in _numbers(experiment).items() if x not in (eta, gamma0)}
    lazy: tuple[float | None, float | None, str | None, tuple[str, ...]]
    try:
        lazy_theory = lazy_steps(_put(_theory(experiment), numbers), nodes)
        spectrum = f"assumed: {nodes} eigenvalues, which have these moments, stand for the spectrum"
        lazy = (
            float(lazy_theory.largest_rate()),
            float(lazy_theory.ceiling),
            None,
            (*lazy_theory.conditions(), spectrum),
        )
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
"""Values of keys for which the largest rate has a closed form."""


@dataclass(frozen=True)
class RateLimit(Finite):
    """Largest learning rate in closed form and its numbers.

    The numbers are None if the depth is a symbol, and for a program; ``crossover`` is also None if there is
    no crossover. Here nu is the ratio N/D of width to
    input dimension.

    Attributes
    ----------
    form : LargestRate
        The closed form.
    exponent, rate, crossover, neglected : float or None
        Power of nu; largest rate; nu at which the leading powers of rich and lazy rates are equal; relative
        size of the terms that the closed form neglects.  The rate of rich training is the leading power of
        nu.  The rate of lazy training is not the closed form: it is 2 divided by the largest eigenvalue of
        the kernel, whose distribution is derived at the file's width, while the closed form assumes a
        semicircle, as for wide layers.
    kernel : tuple of str
        Conditions of that eigenvalue; empty for rich training.
    """

    form: LargestRate
    exponent: float | None
    rate: float | None
    crossover: float | None
    neglected: float | None
    kernel: tuple[str, ...] = ()

    def conditions(self) -> tuple[str, ...]:
        """Return the conditions under which the formula of the largest rate and its number hold."""
        return (*self.form.conditions(), *self.kernel)

    @property
    def warning(self) -> str | None:
        """Warning if the terms that the closed form of the largest rate neglects are as large as those kept.

        None if they are smaller.
        """
        if self.neglected is None or self.neglected < 1:
            return None
        size = f"neglected terms are {self.neglected:.3g} times those that are kept"
        return f"the {self.form.regime} formula does not hold for these numbers: {size}"

    def numbers(self) -> dict[str, Any]:
        """Return, by name, the largest learning rate, its power of nu, nu at the crossover, and notes.

        Here nu is the ratio N/D of width to input dimension. At the crossover the leading powers of nu in the
        largest rates of rich and lazy training are equal. Each of the three has a number, or None, and a
        formula. For lazy training the number of the rate is not the value of its formula (see
        :class:`RateLimit`). Also in the result are the regime, the relative size of neglected terms, and the
        warning.
        """
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


def rate_limit(source: Experiment | Program | str | Path, regime: str | None = None) -> RateLimit:
    """Return the largest rate on the population of isotropic data, from the derived closed forms.

    For a program the result is in symbols, at any depth, and ``regime`` must be given.  :func:`largest_rate`
    measures the same rate in the solved theory.

    ``regime`` is "rich" or "lazy".  Without it the regime is that of the file, whose depth must be a number:
    training is rich where the rich rate is smaller than the lazy rate, both to leading order in nu. Raises
    :class:`~numerics.errors.SpecError` for another regime, for a network whose layers do not have one finite
    width, and naming the key where there is no closed form.

    >>> network = {"depth": 2, "gamma0": 300.0, "width_ratio": 4.0, "parametrization": "ntk"}
    >>> tables = {"network": network, "data": {"kind": "isotropic"}, "training": {"center": True}}
    >>> found = rate_limit(Experiment.from_dict(tables))
    >>> print(found.form.regime, found.form.exponent, round(found.exponent, 3), f"{found.rate:.6f}")
    rich L/(L + 1) 0.667 0.000836
    """
    if regime not in (None, "rich", "lazy"):
        raise SpecError("--regime", regime, "is not a regime", '"rich" or "lazy"')
    if isinstance(source, Program):
        if regime is None:
            raise SpecError(
                "--regime",
                None,
                "is missing: the numbers of a program are symbols, which do not determine the regime",
                '"rich" or "lazy"',
            )
        find = partial(largest_rate_form, regime=regime)
        form = _of_program(source, find, "the largest rate in closed form")
        return RateLimit(form, None, None, None, None)
    experiment = Experiment.of(source)
    experiment.require_linear_rule("a largest learning rate in closed form")
    experiment.require_constant("a largest learning rate")
    width = experiment.network.width_ratio
    if isinstance(width, list):
        raise SpecError("network.width_ratio", width, "is not one number for all layers", "a positive number")
    forms = derive_or_raise(experiment, _deep_forms, "the largest rate in closed form", LARGEST_RATE)
    if width is None:
        raise SpecError(
            "network.width_ratio", None, "is missing: layers are infinitely wide", "a positive number"
        )
    if experiment.symbolic:
        if regime is None:
            raise SpecError(
                "network.depth", "L", "does not determine the regime", "a number, or --regime rich|lazy"
            )
        return RateLimit(forms[regime], None, None, None, None)
    numbers = {L: experiment.depth, gamma0: sympify(experiment.network.gamma0), nu: sympify(width)}

    def number(e: Expr | None) -> float | None:
        """Return the value of an expression at the experiment's depth, gamma0 and width; None for None."""
        return None if e is None else float(sympify(e).subs(numbers))

    leading = {k: number(x.prefactor * nu**x.exponent) for k, x in forms.items()}
    regime = regime or min(leading, key=lambda k: leading[k] or 0.0)
    form, rate = forms[regime], leading[regime]
    basis: tuple[str, ...] = ()
    if regime == "lazy":
        kernel = lazy_kernel(_deep(experiment), experiment.depth)
        rate, basis = 2 / kernel.edge({nu: width}), kernel.conditions()
    return RateLimit(form, number(form.exponent), rate, number(form.crossover), number(form.neglected), basis)


def _deep(experiment: Experiment) -> Theory:
    """Return the derived theory of an experiment in which the number of layers is the symbol L."""
    return derived(program_of(experiment, L), reductions_of(experiment.spec))


def _deep_forms(experiment: Experiment) -> dict[str, LargestRate]:
    """Return largest rates in closed form by regime; raise NotApplicable if data are not isotropic."""
    if experiment.spec.kind != "isotropic":
        raise NotApplicable("the closed form of the largest learning rate is derived for isotropic data")
    return _forms(_deep(experiment))


@lru_cache(maxsize=8)
def _forms(theory: Theory) -> dict[str, LargestRate]:
    """Return the largest learning rates of a theory in closed form, by regime ("rich", "lazy").

    A repeated call returns the cached result.
    """
    return {regime: largest_rate_form(theory, regime) for regime in ("rich", "lazy")}


# -- infinite depth ------------------------------------------------------------------------------------------

REGIME = "branch beta0/sqrt(L): the noise of every layer stays, features of layers differ"
"""Description of the limit of a file, in which beta0, the branch times the root of the depth, is kept."""


@dataclass(frozen=True)
class DepthLimits(Finite):
    """Loss of a residual network over time: in the limit of infinite depth, its first correction, and solved.

    Attributes
    ----------
    name : str
        The loss: ``train_loss`` or ``test_loss``.
    time : array, shape (T,)
        Output times.
    beta0 : float
        Factor of the branches, times the square root of the depth.
    depth : int or None
        Depth of the network; None if it is a symbol.
    finite : array, shape (T,), or None
        Loss of the network at its depth; None if the depth is a symbol.
    limit, first : array, shape (T,)
        Loss at infinite depth, and the coefficient of ``L**order`` in its first correction.
    limit_error, first_error : float
        Estimated discretisation errors of the grid of layers.
    order : float
        Power of the depth in the first correction.
    field : str
        Name of the correlation of the residual stream from which ``diversity`` is read.
    diversity : Diversity
        Mean squared difference between features of close layers, as a power of their distance.
    basis : tuple of str
        Conditions of the limit and of its correction.
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
        """Return the conditions of the limit of infinite depth, of its first correction and of diversity.

        Diversity is the mean squared difference between features of close layers.
        """
        return (*self.basis, *self.diversity.conditions())

    @property
    def near(self) -> str:
        """Formula of the mean squared distance between features of two close layers, as text.

        It states the power of the distance between the layers, and its coefficient.
        """
        diversity = self.diversity
        power = "" if diversity.power == 1 else f"**{diversity.power}"
        return f"<(x(tau) - x(tau_2))**2> / |tau - tau_2|{power} -> {diversity.coefficient}"

    @property
    def to_first_order(self) -> Array | None:
        """Loss of the network to first order: the limit plus its first correction, shape (T,).

        None if the depth is a symbol, so that the correction has no value.
        """
        return None if self.depth is None else self.limit + self.depth**self.order * self.first

    @property
    def warning(self) -> str | None:
        """Warning if the first correction makes the difference from the loss of the network larger.

        The largest differences over time are compared. None if the correction does not make it larger by more
        than the discretisation errors, or if the depth is a symbol.
        """
        first_order = self.to_first_order
        if self.depth is None or self.finite is None or first_order is None:
            return None
        grid = self.limit_error + self.depth**self.order * self.first_error
        far, near = (float(np.max(np.abs(self.finite - x))) for x in (first_order, self.limit))
        if far <= near + grid:
            return None
        return (
            f"the series in 1/L does not hold at L = {self.depth}: the first order is up to {far:.3g} away "
            f"from the network, the limit {near:.3g}"
        )

    def numbers(self) -> dict[str, Any]:
        """Return, by name, losses over time, their errors, and how features differ between close layers."""
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
    source: Problem | Experiment | str | Path, *, layers: int = LAYERS, progress: Progress | None = None
) -> DepthLimits:
    """Return the limit of infinite depth of a residual network and its first correction.

    The limit keeps ``beta0``: the branch times the square root of the depth, or, if the depth is a symbol,
    the branch itself (``network.branch``, or the number for ``beta`` of a program). ``layers`` is the number
    of cells of the finest grid of layers, a multiple of 4. All time steps are output times.

    Raises :class:`~numerics.errors.SpecError` for a network without a branch, for a program whose depth is a
    number, and where :func:`~numerics.solver.depth.solve_depth_correction` does.

    >>> e = Experiment.from_dict({
    ...     "network": {"depth": 16, "branch": 0.25, "width_ratio": 2.0}, "data": {"kind": "isotropic"},
    ...     "training": {"learning_rate": 0.1, "steps": 1}})
    >>> found = depth_limits(e, layers=8)
    >>> found.beta0, bool(abs(found.finite[0] - found.to_first_order[0]) < 0.01), found.diversity.exponent
    (1.0, True, 1/2)
    """
    source = source if isinstance(source, Problem) else Experiment.of(source)
    source = source.at_all_times()
    experiment = source if isinstance(source, Experiment) else source.experiment
    depth, beta0 = None, 0.0
    if experiment is not None:
        experiment.require_linear_rule("the limit of infinite depth")
        experiment.require_moving_features("the limit of infinite depth")
        network = experiment.network
        if network.branch is None:
            raise SpecError(
                "network.branch",
                None,
                "is missing: the limit of infinite depth is derived for residual networks only",
                "a positive number, such as 1/sqrt(depth)",
            )
        require_file(experiment)
        if not experiment.symbolic:
            depth, beta0 = experiment.depth, float(network.branch) * float(np.sqrt(experiment.depth))
            source = experiment.replace({"network.depth": "L", "network.branch": beta0})
    problem = Problem.of(source)
    solution = solve_depth_correction(problem, layers=layers, progress=progress)
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
        solution.limit[name],
        solution.limit.errors[name],
        solution.first[name],
        solution.first.errors[name],
        solution.order,
        field,
        diversity(limit, field),
        tuple(dict.fromkeys((*limit.conditions(), *correction.conditions()))),
    )
