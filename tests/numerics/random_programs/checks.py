"""Conditions on every random program, unless it is refused in one sentence.

1. ``gradient``: outputs of one tiny network after training steps, against :mod:`.plain`, which differentiates
   the loss by complex steps.
2. ``routes``: the conditioning rule and the path integral give one theory.
3. ``networks``: ``evaluate`` against networks of two widths, extrapolated in 1/N; ``narrow`` where networks
   of these widths cannot be extrapolated.
4. ``solve``: ``numerics.solve`` against ``evaluate``, and ``numerics.simulate`` against ``simulate_program``.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sympy import Derivative, Mul, S, Subs, Sum
from sympy.core.function import AppliedUndef

import numerics
from derive.calculus.averages import Average
from derive.errors import NotApplicable, ProgramError
from derive.program import GradientDescent, Program, s, t
from derive.theory import Theory, mean_field
from derive.theory.routes import check_routes
from numerics.errors import NumericsError, SpecError, Unserved
from numerics.experiment.schema import Solver
from numerics.simulation import simulate_program
from numerics.simulation.correlations import Measured
from numerics.solver.direct import Evaluated, evaluate
from numerics.stats import bound
from tests.numerics.random_programs.language import INPUTS, STEPS, UNITS, Drawn, numbers_of
from tests.numerics.random_programs.plain import Plain, Shape

REFUSALS = (ProgramError, NotApplicable, SpecError, Unserved)
LEVEL = 1e-3
"""The chance that chance makes a comparison of one program fail, each of two times: 1e-6 for both."""

WIDTHS = (40, 80)
"""Units of a population with ratio 1 in the networks of the smaller and the larger width."""

POWERS = (0.75, 1.25)
"""The powers of 1/N between which variances over networks must fall.

The power is 1 for wide networks; measured with a thousand networks at each of two widths it has an error
of 0.06.
"""


@dataclass(frozen=True)
class Effort:
    """Paths and replicas of ``evaluate``, and networks of the smaller width, twice those of the larger."""

    samples: int = 2**9
    replicas: int = 6
    networks: int = 960


FULL = Effort()
"""For many programs."""

HALF = Effort(2**8, 6, 480)
"""For forty programs in a minute: error bars of networks and paths are larger by the square root of two."""

FAST = Effort(2**7, 4, 240)
"""For tests that may take a second."""


class Wrong(AssertionError):
    """Raised if two numbers that must agree differ."""


class Narrow(Exception):
    """Raised if networks are too narrow to be extrapolated to infinite width."""


@dataclass(frozen=True)
class Numbers:
    """Estimates by name, with standard errors and their degrees of freedom."""

    mean: Mapping[str, Any]
    error: Mapping[str, Any]
    dof: float


@dataclass
class Case:
    """Drawn program and the results that its checks share."""

    drawn: Drawn
    effort: Effort = field(default_factory=Effort)

    @cached_property
    def written(self) -> Program:
        """Program as it was written; a refusal that suggests ``together=True`` is followed."""
        try:
            return self.drawn.program()
        except ProgramError as refusal:
            if "together=True" not in str(refusal) or self.drawn.options.get("together"):
                raise
            return replace(self.drawn, options={**self.drawn.options, "together": True}).program()

    @cached_property
    def stepped(self) -> Program:
        """The program at an integer depth, in steps: a flow is replaced by descent with its rate."""
        rule = self.drawn.rule
        program = self.written
        if not rule.discrete:
            decay = getattr(rule, "decay", S.Zero)
            program = program.with_rule(GradientDescent(S(rule.rate) / 5, decay=S(decay) / 5))
        return program if self.drawn.depth is None else program.at_depth(self.drawn.depth)

    @cached_property
    def theory(self) -> Theory:
        """The mean-field theory of the stepped program."""
        return mean_field(self.stepped)

    @property
    def values(self) -> dict[str, Any]:
        """Numbers and functions, as ``evaluate`` and ``simulate_program`` take them."""
        depth = {} if self.drawn.depth is None else {"L": self.drawn.depth}
        return {**self.drawn.numbers, **self.drawn.functions, **depth}

    @cached_property
    def realised(self) -> Program:
        """The stepped program with functions in the places of undefined activations."""
        known = self.drawn.functions

        def put(e: Any) -> Any:
            e = e.replace(
                lambda x: isinstance(x, AppliedUndef) and str(x.func) in known,
                lambda x: known[str(x.func)](*x.args),
            )
            return e.replace(lambda x: isinstance(x, Derivative | Subs), lambda x: x.doit())

        return self.stepped.map(put) if known else self.stepped

    def evaluated(self, seed: int, samples: int) -> Evaluated:
        """Return the theory evaluated at every step."""
        values = {k: v for k, v in self.values.items() if k not in self.drawn.functions}
        return evaluate(
            mean_field(self.realised),
            steps=STEPS + 1,
            values=values,
            data=dict(self.drawn.arrays),
            samples=samples,
            replicas=self.effort.replicas,
            seed=seed,
        )


# -- 1 -------------------------------------------------------------------------------------------------------


def in_networks(drawn: Drawn) -> dict[str, Any]:
    """Return constants as networks need them: attributes are repeated over their units."""
    own = {x.name for x in drawn.network.attributes}

    def repeated(values: Any) -> Callable[[int], Any]:
        return lambda units: np.tile(values, units // len(values))

    return {k: repeated(x) if k in own else x for k, x in drawn.arrays.items()}


def idle_axes(case: Case, name: str) -> tuple[int, ...]:
    """Return the axes of a number, as it was written, that its definition in the program lacks.

    The number does not depend on the indices of these.
    """
    written, own = (
        next(d.lhs.args[:-1] for d in definitions if d.name == name)
        for definitions in (case.drawn.network.definitions(), case.stepped.definitions)
    )
    return tuple(k for k, x in enumerate(written) if x not in own) if len(own) < len(written) else ()


def gradient(case: Case) -> None:
    """Compare outputs of a tiny network at every step with plain descent of the loss.

    They differ by rounding, which training may enlarge.
    """
    d, rule = case.drawn, case.drawn.rule
    depth = {} if d.depth is None else {"L": d.depth}
    plain = Plain(
        d.network,
        d.loss,
        Shape(UNITS, INPUTS),
        {**d.numbers, **depth},
        d.functions,
        {**d.arrays, **d.vectors},
    )
    program = case.stepped
    if getattr(rule, "diffusion", 0) != 0:
        rule = replace(rule, diffusion=S.Zero)
        program = program.with_rule(rule)
    if not rule.discrete:
        rule = program.rule
    start = plain.start(np.random.default_rng(d.seed), STEPS)
    expected = plain.trained(start, rule, d.parametrization, STEPS)
    initial: dict[str, Any] = {}
    start |= {
        (v.name, k[1]): x
        for n, v in d.options.get("feedback", {}).items()
        for k, x in start.items()
        if k[0] == n
    }
    for (name, member), value in start.items():
        if member:
            initial.setdefault(name, {})[member if len(member) > 1 else member[0]] = value
        else:
            initial[name] = value
    data = {k: v for k, v in in_networks(d).items() if k not in d.kernels.values()} | dict(d.vectors)
    run = simulate_program(
        program, width=UNITS, steps=STEPS, seeds=1, values=case.values, data=data, initial=initial, wanted={}
    )
    steps = STEPS + 1
    if d.options.get("feedback"):  # while weights and those that stand for them are equal
        steps = STEPS + 1 if d.options["learning_feedback"] else 2
    nearly: list[Any] = []
    for name in expected[0]:
        found, idle = run[name].mean, idle_axes(case, name)
        for step in range(steps):
            x, y = expected[step][name], np.expand_dims(found[step], idle)
            y = np.broadcast_to(y, [n if k in idle else y.shape[k] for k, n in enumerate(x.shape)])
            if x.shape == y.shape and _apart(x, y) < 1e-9:
                continue
            if x.shape == y.shape:
                nearly = nearly or plain.trained(_rounded(start), rule, d.parametrization, STEPS)
                if _apart(x, y) < _apart(x, nearly[step][name]):
                    continue
            raise Wrong(
                f"{name} at step {step}: descent of the loss gives {x.tolist()}, the program {y.tolist()}"
            )


def _rounded(weights: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return weights that differ from the given ones in their last digits.

    The resulting changes show the effect of rounding after training.
    """
    return {k: x * (1 + 1e-15 * np.cos(np.arange(x.size)).reshape(x.shape)) for k, x in weights.items()}


def _apart(x: Any, y: Any) -> float:
    """Return the largest distance of two arrays, relative to the size of their entries beyond one."""
    return float(np.nanmax(np.abs(x - y) / (1 + np.abs(x)), initial=0.0))


# -- 2 -------------------------------------------------------------------------------------------------------


def routes(case: Case) -> None:
    """Derive the theory by both routes, and check the indices of its equations."""
    differences = check_routes(case.written)
    if differences:
        raise Wrong(f"check_routes found {differences}")
    letters = {r.index for d in case.written.definitions for r in d.ranges}
    theory = mean_field(case.written)
    for q in (*theory.equations, *theory.scalars):
        if loose := letters & q.rhs.free_symbols - q.lhs.free_symbols:
            raise Wrong(f"the equation of {q.lhs} holds {loose}")
        for e in q.rhs.atoms(Sum):
            if len({*e.variables}) < len(e.variables):
                raise Wrong(f"the equation of {q.lhs} sums twice over one index: {e}")
    for q in theory.order_parameters:
        indices = {r.index for r in q.ranges}
        if any(indices & (S(r.lower).free_symbols | S(r.upper).free_symbols) for r in q.ranges):
            raise Wrong(f"the ranges of {q.symbol} depend on its indices: {q.ranges}")
        fields = {x.name for x in theory.program.fields}
        for a in q.definition.atoms(AppliedUndef):
            own = [x for x in a.args if x.is_Symbol]
            if str(a.func) in fields and len({*own}) < len(own):
                raise Wrong(f"{q.name} is defined as {q.definition}, with one index in two places")


# -- 3 -------------------------------------------------------------------------------------------------------


def watched(theory: Theory) -> dict[str, Any]:
    """Return correlations ``<a(t) b(s)>`` of the theory by name, as the pair of vectors to measure."""
    found: dict[str, Any] = {}
    for q in theory.order_parameters:
        number, average = q.definition.as_independent(Average, as_Add=False)
        if q.kind != "correlation" or not isinstance(average, Average) or average.body.has(Sum):
            continue
        early, late = average.body.as_independent(t, as_Add=False)
        if any(not x.has(s) for x in Mul.make_args(early)):  # a constant at an index that no field has
            continue
        if not number.is_number or not early.has(s) or early.has(t) or late.has(s):
            continue
        found[q.name] = (number * late, early)
    return found


def letters_of(theory: Theory) -> dict[str, tuple[str, ...]]:
    """Return the indices of each correlation of the theory, in order, without its layer and times."""
    return {
        q.name: tuple(str(x) for x in q.symbol.args if x not in (t, s) and str(x) != "ell")
        for q in theory.order_parameters
    }


def in_order(x: Measured, letters: Sequence[str]) -> Measured:
    """Return measurements with indices in the order of ``letters``, if they have the same ones.

    Networks take the indices of a product from its factors, the theory from its own order.
    """
    own = [a for a, _ in x.axes]
    found = [own.index(a) for a in letters if a in own]
    places = sorted(found)
    if len(found) != len(letters) or found == places:
        return x
    order = list(range(len(own)))
    for place, source in zip(places, found, strict=True):
        order[place] = source
    mean, stderr = (np.transpose(y, order) for y in (x.mean, x.stderr))
    return replace(x, mean=mean, stderr=stderr, axes=tuple(x.axes[k] for k in order))


def of_networks(case: Case, width: int, seeds: int, seed: int, wanted: dict[str, Any]) -> Numbers:
    """Return means over networks of one width."""
    run = simulate_program(
        case.stepped, width=width, steps=STEPS, seeds=seeds, values=case.values, data=in_networks(case.drawn),
        seed=seed, wanted=wanted,
    )  # fmt: skip
    letters = letters_of(case.theory) if wanted else {}
    mean, error = {}, {}
    for name, x in run.items():
        x = in_order(x, letters.get(name, ()))
        m, e = x.mean, x.stderr
        if len(x.axes) > 1 and [a for a, _ in x.axes[:2]] == ["t", "s"]:
            m, e = (np.moveaxis(y, (0, 1), (-2, -1)) for y in (m, e))
        if x.axes and x.axes[0][0].startswith("ell") and x.axes[1][0] == "t":
            for layer in map(int, x.axes[0][1]):
                m, e = (np.moveaxis(y, (0, 1), (-2, -1)) for y in (x[layer].mean, x[layer].stderr))
                mean[f"{name} {layer}"], error[f"{name} {layer}"] = m, e
            continue
        mean[name], error[name] = m, e
    return Numbers(mean, error, seeds - 1)


def in_the_limit(small: Numbers, large: Numbers) -> Numbers:
    """Return networks of widths N and 2 N extrapolated linearly in 1/N."""
    mean = {k: 2 * large.mean[k] - small.mean[k] for k in small.mean}
    error = {k: np.hypot(2 * large.error[k], small.error[k]) for k in small.mean}
    return Numbers(mean, error, min(small.dof, large.dof))


def through_three(smallest: Numbers, small: Numbers, large: Numbers) -> Numbers:
    """Return networks of widths N/2, N and 2 N extrapolated by a parabola in 1/N."""
    weights = [(1 / 3, smallest), (-2.0, small), (8 / 3, large)]
    mean = {k: sum(a * x.mean[k] for a, x in weights) for k in small.mean}
    error = {k: np.sqrt(sum((a * x.error[k]) ** 2 for a, x in weights)) for k in small.mean}
    return Numbers(mean, error, min(x.dof for _, x in weights))


def of_theory(case: Case, found: Evaluated) -> Numbers:
    """Return the numbers of ``evaluate``, layer by layer."""
    mean = {" ".join(map(str, (name, *layers))): x for (name, layers), x in found.values.items()}
    error = {" ".join(map(str, (name, *layers))): x for (name, layers), x in found.errors.items()}
    return Numbers(mean, error, np.inf if found.method == "linear" else case.effort.replicas - 1)


def reliable(case: Case, found: Numbers, networks: Numbers) -> int:
    """Return the number of steps before a margin comes near the kink of a hinge in some networks."""
    first = STEPS + 1
    for name, target in case.drawn.margins:
        idle = tuple(k + 1 for k in idle_axes(case, name))
        f, y = np.expand_dims(found.mean[name], idle), np.asarray(case.drawn.arrays[target])
        y = np.moveaxis(y, -1, 0) if y.ndim == f.ndim else y[None]
        # a target at the next position: what stands first is not a target
        y = y[
            tuple(slice(max(m - n, 0) if n > 1 else 0, None) for m, n in zip(y.shape, f.shape, strict=True))
        ]
        scatter = np.expand_dims(networks.error[name], idle) * np.sqrt(networks.dof + 1)
        near = np.abs(1 - y * f) < 6 * np.abs(y) * scatter
        steps = np.flatnonzero(near.reshape(len(f), -1).any(axis=1))
        first = min([first, *steps.tolist()])
    return first


def too_narrow(small: Numbers, large: Numbers, scalars: Sequence[str]) -> tuple[int, str]:
    """Return the number of steps before fluctuations stop falling as 1/N, and the first such number.

    Extrapolation in 1/N expands in the fluctuations of numbers, whose variance over networks is then V/N. In
    networks so narrow that fluctuations saturate a function, N times the variance grows with N; where few
    networks diverge, it shrinks. Only the networks are read, so that the result does not depend on the theory
    under test.
    """
    first, told = STEPS + 1, ""
    for name in scalars:
        seeds = [x.dof + 1 for x in (small, large)]
        variances = [np.square(x.error[name]) * n for x, n in zip((small, large), seeds, strict=True)]
        size = np.abs(small.mean[name]).max(initial=0.0) + np.abs(large.mean[name]).max(initial=0.0)
        falls = np.log2(np.maximum(variances[0], 1e-300) / np.maximum(variances[1], 1e-300))
        far = ((falls < POWERS[0]) | (falls > POWERS[1])) & (np.sqrt(variances).max(axis=0) > 1e-6 * size)
        steps = np.flatnonzero(far.reshape(len(far), -1).any(axis=1))
        if steps.size and steps[0] < first:
            first = int(steps[0])
            at = np.unravel_index(
                int(np.argmax(np.where(far[first], np.abs(falls[first] - 1), 0.0))), far[first].shape
            )
            where = [first, *(int(i) for i in at)]
            told = f"the variance of {name}{where} falls as the power {falls[first][at]:.2f} of 1/N"
    return first, told


def until(found: Numbers, steps: int, scalars: set[str]) -> Numbers:
    """Return the first steps: of scalars on the first axis, of correlations on the last two."""

    def cut(name: str, x: Any) -> Any:
        return x[:steps] if name in scalars else x[..., :steps, :steps]

    return Numbers(
        {k: cut(k, x) for k, x in found.mean.items()},
        {k: cut(k, x) for k, x in found.error.items()},
        found.dof,
    )


def _cut(x: Any, shape: tuple[int, ...]) -> Any:
    """Return the first entries along axes on which an array is longer than ``shape``."""
    if np.ndim(x) != len(shape):
        return x
    return x[tuple(slice(n) for n in shape)]


def distance(one: Numbers, two: Numbers, bias: float) -> tuple[int, float, str]:
    """Return the number of common numbers, and the largest distance over its bound, with its name.

    The bound adds the standard errors of both sides and ``bias``, relative to the size of the number, which
    neither standard error contains. Numbers that both know to rounding must be equal.
    """
    two = Numbers(
        *({k: _cut(x[k], np.shape(one.mean.get(k))) for k in x} for x in (two.mean, two.error)), two.dof
    )
    compared = [k for k in one.mean if k in two.mean]
    for k in compared:
        if np.shape(one.mean[k]) != np.shape(two.mean[k]):
            raise Wrong(f"{k} has the shapes {np.shape(one.mean[k])} and {np.shape(two.mean[k])}")
    count = sum(int(np.isfinite(one.mean[k]).sum()) for k in compared)
    worst, place = 0.0, ""
    for name in compared:
        a, b = np.asarray(one.mean[name]), np.asarray(two.mean[name])
        squares = [np.nan_to_num(x.error[name]) ** 2 for x in (one, two)]
        error = np.sqrt(sum(squares))
        # degrees of freedom of a sum of two variances (Welch and Satterthwaite)
        share = sum(
            (x / np.maximum(error**2, 1e-300)) ** 2 / y.dof for x, y in zip(squares, (one, two), strict=True)
        )
        dof = 1 / np.maximum(share, 1e-9)
        size = 1e-9 + np.maximum(np.abs(a), np.abs(b)).max(initial=0.0)
        allowed = bound(count, LEVEL, dof) * error + bias * size + 1e-8 * size
        far = np.abs(a - b) / allowed
        if np.isnan(far[np.isfinite(a)]).any():
            return count, np.inf, f"{name}: not a number"
        if far.size and np.nanmax(far) > worst:
            at = np.unravel_index(int(np.nanargmax(far)), far.shape)
            worst = float(far[at])
            z = float(np.abs(a - b)[at] / max(error[at], 1e-300))
            place = f"{name}{[int(i) for i in at]}: {a[at]:.5g} and {b[at]:.5g}, {z:.3g} standard errors"
    return count, worst, place


def twice(compare: Callable[[int], tuple[int, float, str]], what: str, *, may_be_empty: bool = False) -> int:
    """Compare once, and again with other and more samples if the first comparison failed by chance.

    It ``may_be_empty`` if numbers are compared up to a kink, which may be at the first step.
    """
    count, worst, place = compare(0)
    if count == 0 and not may_be_empty:
        raise Wrong(f"{what}: no number in common")
    if worst > 1:
        count, worst, again = compare(1)
        if worst > 1:
            raise Wrong(f"{what}: {place}; with more samples {again}")
    return count


def networks(case: Case) -> int:
    """Compare the theory with networks of two widths; returns how many numbers were compared.

    Where they disagree twice, networks of half the width join, and the curvature in 1/N is no longer left
    out; where they still do, only the steps count up to which the networks are wide enough.
    """
    wanted = watched(case.theory)

    def compare(attempt: int) -> tuple[int, float, str]:
        more, seed = 1 + 3 * attempt, 1000 * attempt + case.drawn.seed
        wide = 1 + attempt
        samples = case.effort.samples * more
        found = of_theory(case, case.evaluated(seed + 1, samples))
        small, large = (
            of_networks(case, wide * w, more * case.effort.networks * WIDTHS[0] // w, seed + w, wanted)
            for w in WIDTHS
        )
        scalars = case.stepped.scalars
        found = until(found, reliable(case, found, small), set(scalars))
        # of extrapolation and of the paths, whose own errors are of order 1/N^2 and 1/samples
        limit, bias = in_the_limit(small, large), 30 / WIDTHS[0] ** 2 / wide**2 + 4 / samples
        count, worst, place = distance(found, limit, bias)
        if attempt and worst > 1:
            half = wide * WIDTHS[0] // 2
            smallest = of_networks(case, half, more * case.effort.networks, seed + half, wanted)
            curved = through_three(smallest, small, large)
            count, worst, place = distance(found, curved, bias)
            if worst > 1:
                steps, told = too_narrow(small, large, scalars)
                if steps == 0:
                    raise Narrow(f"{told}; {place}")
                found = until(found, steps, set(scalars))
                count, worst, place = min(
                    (distance(found, x, bias) for x in (limit, curved)), key=lambda x: x[1]
                )
        return count, worst, place

    return twice(compare, "evaluate and networks", may_be_empty=bool(case.drawn.margins))


# -- 4 -------------------------------------------------------------------------------------------------------


def given(case: Case) -> dict[str, Any]:
    """Return the arguments of ``solve`` and ``simulate``."""
    used: set[str] = set()
    case.stepped.map(lambda e: (used.update(x.name for x in S(e).free_symbols), e)[1])
    for rule in {w.rule for w in case.stepped.trained()}:
        used |= {x.name for e in numbers_of(rule) for x in e.free_symbols}
    numbers = {k: v for k, v in case.drawn.numbers.items() if k in used and k != "P"}
    return {"numbers": numbers, "arrays": dict(case.drawn.arrays), "times": range(STEPS + 1)}


def of_results(case: Case, found: Any, dof: float) -> Numbers:
    """Return variables of a result by the names of the program, from the attribute ``names``."""
    mean: dict[str, Any] = {}
    error: dict[str, Any] = {}
    roles = dict(x.split(": ") for x in found.attrs.get("names", "").split(", ") if x)
    roles = {own: role for role, own in roles.items() if own not in case.drawn.numbers}
    missing = []
    for name in case.stepped.scalars:
        role = roles.get(name, name)
        options = ("error",) if role == "Delta" and "error" in found else (role, name, f"{name}_own")
        variable = next((x for x in options if x in found.data_vars), None)
        if variable is None:
            missing.append(name)
            continue
        spread = f"{variable}_stderr"
        one = found[variable].to_numpy()
        two = found[spread].to_numpy() if spread in found else np.zeros_like(one)
        axes = next(len(d.lhs.args) for d in case.stepped.definitions if d.name == name)
        if one.ndim == axes + 1 and one.shape[1] == 1:  # outputs by role always have an axis of samples
            one, two = one[:, 0], two[:, 0]
        mean[name], error[name] = one, two
    if missing:
        raise Wrong(f"the result has {[*found.data_vars]}, and not the numbers {', '.join(missing)}")
    return Numbers(mean, error, dof)


def solve(case: Case) -> int:
    """Compare ``numerics.solve`` with ``evaluate``."""

    def compare(attempt: int) -> tuple[int, float, str]:
        more, seed = 1 + 3 * attempt, 1000 * attempt + case.drawn.seed
        solver = Solver(samples=2 * case.effort.samples * more, seed=seed, accuracy=0.03 / more)
        solved = numerics.solve(case.realised, solver=solver, **given(case))
        samples = case.effort.samples * more
        found = of_theory(case, case.evaluated(seed + 1, samples))
        return distance(of_results(case, solved, case.effort.replicas - 1), found, 8 / samples)

    return twice(compare, "solve and evaluate")


def simulate(case: Case) -> int:
    """Compare ``numerics.simulate`` with ``simulate_program`` at one width."""

    def compare(attempt: int) -> tuple[int, float, str]:
        more, seed = 1 + 3 * attempt, 1000 * attempt + case.drawn.seed
        count = 60 * more
        found = numerics.simulate(case.realised, width=24, seeds=count, rng=seed, **given(case))
        direct = of_networks(case, 24, count, seed + 7, {})
        return distance(of_results(case, found, count - 1), direct, 0.0)

    return twice(compare, "simulate and simulate_program")


def made(case: Case) -> None:
    """Make the program."""
    case.stepped  # noqa: B018


CHECKS: dict[str, Callable[[Case], Any]] = {
    "gradient": gradient,
    "routes": routes,
    "networks": networks,
    "solve": solve,
    "simulate": simulate,
}

# -- verdicts ------------------------------------------------------------------------------------------------


OPEN: tuple[tuple[str, str], ...] = ()
"""Defects that are known and not yet mended: words of the program, the check and what it says, as a regular
expression, and the kind of program."""


@dataclass
class Verdict:
    """Results of the checks of one program."""

    seed: int
    words: tuple[str, ...]
    checks: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """``failed``, ``open``, ``refused``, ``diverged``, ``narrow`` or ``ok``."""
        kinds = [x.split(":")[0] for x in self.checks.values()]
        return next((k for k in ("failed", "open", "refused", "diverged", "narrow") if k in kinds), "ok")

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as one line of a file."""
        return {
            "seed": self.seed,
            "outcome": self.outcome,
            "time": round(sum(self.seconds.values()), 2),
            "checks": self.checks,
            "seconds": {k: round(v, 2) for k, v in self.seconds.items()},
            "words": self.words,
        }


def one_sentence(message: str) -> str:
    """Return the defect of a message of refusal, or an empty text."""
    if "\n" in message:
        return "has several lines"
    if len(message) > 300:
        return f"has {len(message)} characters"
    if re.search(r"\([^()]*\([^()]*: [^()]*\)", message) and message.count("(accepted") > 1:
        return "nests lists"
    return ""


def checked(case: Case, name: str) -> str:
    """Return ``ok``, or ``refused``, ``diverged``, ``narrow``, ``open`` or ``failed`` with the reason."""
    said = _checked(case, name)
    if not said.startswith("failed"):
        return said
    whole = f"{', '.join(case.drawn.words)}; {name}: {said}"
    known = next((why for pattern, why in OPEN if re.search(pattern, whole, re.DOTALL)), None)
    return said if known is None else f"open: {known}: {said}"


def _checked(case: Case, name: str) -> str:
    try:
        found = made(case) if name == "program" else CHECKS[name](case)
        return f"ok: {found}" if isinstance(found, int) else "ok"
    except REFUSALS as refusal:
        message = f"{type(refusal).__name__}: {refusal}"
        wrong = one_sentence(str(refusal))
        return f"failed: a refusal that {wrong}: {message}" if wrong else f"refused: {message}"
    except NumericsError as stopped:
        return f"diverged: {type(stopped).__name__}: {stopped}"
    except Narrow as narrow:
        return f"narrow: {narrow}"
    except Wrong as wrong:
        return f"failed: {wrong}"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{'/'.join(Path(last.filename).parts[-3:])}:{last.lineno}"
        return f"failed: {type(error).__name__}: {str(error)[:400]} [{place}]"


def judge(drawn: Drawn, names: Sequence[str] = tuple(CHECKS), effort: Effort = FULL) -> Verdict:
    """Run the checks of one program; of one that is refused when it is made that is the only outcome."""
    verdict, case = Verdict(drawn.seed, drawn.words), Case(drawn, effort)
    for name in ("program", *names):
        began = time.process_time()
        said = checked(case, name)
        verdict.seconds[name] = time.process_time() - began
        if name != "program" or said != "ok":
            verdict.checks[name] = said
        if name == "program" and said != "ok":
            break
    return verdict
