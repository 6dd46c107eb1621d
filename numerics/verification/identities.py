"""What must hold of the theory and of its solution, without any network to compare it with.

First what holds exactly of any theory; then what holds of linear ones, whose solution has no noise; then of a
flow, whose error estimate keeps to rtol, and which small steps of descent come to.  Descent in exact steps is
another program with another theory, which knows nothing of integrators.  Its loss is that of the flow plus a
series in the length of the steps, of which halving removes one power at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import S, Symbol

from derive.errors import NotApplicable
from derive.program import gamma0, s, t
from derive.program.gradient_check import check_gradients
from derive.program.program import Program
from derive.theory import Theory, mean_field
from derive.theory.compare import compare
from derive.theory.path_integral import path_integral
from numerics.errors import Diverged
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.rates import first_shares
from numerics.experiment.theory import error_jumps, slope_jumps
from numerics.lowering.expressions import observable
from numerics.lowering.indices import axes_of
from numerics.lowering.linear import NotLinear, lower
from numerics.lowering.table import FieldAtLayer, Request, Table
from numerics.names import (
    BACKWARD_RESPONSE,
    C_FIELD,
    C_GRADIENT,
    C_LEARNT,
    ERROR,
    FEATURE_KERNEL,
    FIELD,
    FORWARD_RESPONSE,
    GRADIENT,
    GRADIENT_KERNEL,
    INPUT_KERNEL,
    LINEAR_KERNEL,
    OUTPUT,
    MemberKey,
)
from numerics.results import AUTHORED, systematic
from numerics.results.predictions import split
from numerics.simulation import simulate_program
from numerics.solver import solve
from numerics.solver.direct.evaluation import evaluate
from numerics.solver.linear.march import March, march
from numerics.solver.linear.method import MarchMethod
from numerics.solver.linear.plan import NotCausal
from numerics.solver.method import Yes, answer
from numerics.stats import bound
from numerics.verification.openings import (
    WRITTEN,
    arrays,
    at,
    by,
    descent,
    in_steps,
    modes,
    opening,
)
from numerics.verification.report import EPS, LEVEL, Check

Array = NDArray[np.float64]

ONE_STEP, ONE_WIDTH = (2, 1), 4
"""Samples, steps and width of the network whose step is found by differences of the loss."""

SAMPLES, STEPS = 5, 10
"""The opening on which fields are compared that a solution does not keep."""

LEAST = 1.0
"""gamma0 at which identities are checked that hold at any."""

LARGEST_MATRIX = 1300
"""Eigenvalues are taken of kernel matrices up to this size; of longer ones, at fewer times."""

CORRELATIONS = (FEATURE_KERNEL, GRADIENT_KERNEL, C_LEARNT, "C_Delta", "C_h0", C_FIELD, C_GRADIENT)
RESPONSES = (FORWARD_RESPONSE, BACKWARD_RESPONSE, "R_hr", "R_gu", "R_Delta", "R_vu", "R_h0r0")
LETTERS = {FEATURE_KERNEL: "H^l", GRADIENT_KERNEL: "G^l", C_FIELD: "C_h^l", C_GRADIENT: "C_g^l"}

FEWEST, MOST = 32, 512
"""Steps of descent up to the time at which a flow is compared."""

NEAR = 1e-7
"""By what share data and numbers are changed, to see what becomes of rounding."""

SHARE = 0.5
"""The loss of that time, as a share of its start: halfway down, where most happens."""

SETTLED = 1e-3
"""How well the series in the length of the steps is to be known, relative to the loss."""

SAMPLED_STEPS = (16, 32)
"""The same where the loss is an average over paths, whose noise hides more."""


# -- the theory ------------------------------------------------------------------------------------------


def derivation(problem: Problem, symbolic: Program | None) -> list[Check]:
    """The conditioning rule and the path integral give the same theory, term by term, of updates that are the
    gradient of the program's loss.

    ``symbolic`` is the same program at any depth, if there is one.  A program that states no loss, or whose
    updates are no gradient on purpose, has no row for them.
    """
    layered = any(x.layered for x in problem.program.fields)
    label = f", L = {problem.depth}" if layered else ""
    programs = {label: problem.program} if problem.program.depth.is_Integer else {}
    if symbolic is not None:
        programs[", symbolic L"] = symbolic
    checks = []
    for label, program in (programs or {"": problem.program}).items():
        one, two = mean_field(program), path_integral(program).theory()
        name, basis = f"two routes{label}: differences", f"{_terms(one)} terms compared"
        checks.append(Check("derivation", name, len(compare(one, two)), 0, 0, basis))
        with suppress(NotApplicable):
            wrong = len(check_gradients(program))
            name = f"updates off the gradient{label}"
            checks.append(Check("derivation", name, wrong, 0, 0, "two units, 50 digits"))
    return checks


def descended(problem: Problem) -> list[Check]:
    """One network takes one step by the program's updates, and one down differences of the loss.

    Half of the digits are compared: central differences keep more.  A program that states no loss, or whose
    updates are no gradient on purpose, has no row, nor has one whose slopes jump.
    """
    program = problem.program
    if program.loss is None or program.descent is None or program.depth.free_symbols:
        return []
    if problem.has_roles and not problem.seen:  # random data
        return []
    if slope_jumps(program) or error_jumps(program):
        return []
    small = opening(problem, *ONE_STEP)
    taken: dict[str, Any] = {"width": ONE_WIDTH, "steps": 1, "seeds": 1, "seed": problem.solver.seed}
    taken |= {"values": small.values, "data": dict(small.arrays)}
    if small.flow:
        taken["dt"] = float(small.times[1])
    numerically = {"loss": program.loss, "parametrization": program.descent}
    try:
        derived, found = (simulate_program(small.program, **taken, **x) for x in ({}, numerically))
    except (ValueError, NotApplicable, Diverged):  # no network of this width, or no step that stays finite
        return []
    pairs = [(derived[name].mean, found[name].mean) for name in program.scalars]
    off = max(float(np.max(np.abs(a - b))) / max(1.0, float(np.max(np.abs(a)))) for a, b in pairs)
    name = "one step = by differences of the loss"
    return [Check("derivation", name, off, 0, EPS**0.5, "half of the digits", upper=True)]


def _terms(theory: Theory) -> int:
    equations = (*theory.equations, *theory.scalars, *theory.observables)
    return sum(len(e.terms) for e in equations) + len(theory.sources) + len(theory.order_parameters)


# -- the solution, on an opening of the problem ------------------------------------------------------------


def marched(small: Problem, table: Table, wanted: Sequence[FieldAtLayer]) -> March:
    """The march of an opening."""
    units, data = modes(small), arrays(small)
    steps, wanted = len(small.times), tuple(wanted)
    return march(table, steps=steps, constants=small.numbers, data=data, wanted=wanted, units=units)


def laid_out(theory: Theory, result: March) -> dict[MemberKey, Array]:
    """Order parameters and scalars of a march, in the layout of :func:`~numerics.solver.direct.evaluate`: an
    axis for each index of the symbol, and then its times.
    """
    found: dict[MemberKey, Array] = {(e.name, ()): result.scalars[e.name] for e in theory.scalars}
    for q in theory.order_parameters:
        layer = next((int(x) for x in q.symbol.args[:1] if x.is_Integer), None)
        sizes = [result.extents[x] for x in q.symbol.args if isinstance(x, Symbol) and x not in (t, s)]
        a = result.tensor((q.name, layer))  # (T, n, T, m)
        first = next(i for i in range(len(sizes) + 1) if prod(sizes[:i]) == a.shape[1])
        shaped = a.reshape(a.shape[0], *sizes[:first], a.shape[2], *sizes[first:])
        found[q.name, () if layer is None else (layer,)] = np.moveaxis(shaped, (0, first + 1), (-2, -1))
    return found


def derived_numbers(small: Problem) -> dict[MemberKey, Array] | None:
    """The same of an opening and its theory as it was derived; None of one that the march does not take."""
    try:
        table = lower(small.discrete)
        return laid_out(small.discrete, marched(small, table, [*table.tensors]))
    except (NotLinear, NotCausal):
        return None


def reading(problem: Problem) -> list[Check]:
    """The march gives the numbers of the theory's expressions, each evaluated as it is written."""
    small = _not_lazy(opening(problem, *WRITTEN))
    found, steps = derived_numbers(small), len(small.times)
    if found is None:
        return []
    read = evaluate(small.discrete, steps=steps, values=small.values, data=arrays(small), method="linear")
    worst = max(relative(found[x] - read.values[x], read.values[x]) for x in found)
    terms = WRITTEN[0] * steps * ((problem.depth or 1) + 1)
    name = f"march = theory as written, {steps} times"
    basis = f"rounding; {len(found)} kinds{_said(problem, small)}"
    return [Check("solution", name, worst, 0, EPS * terms * steps * amplified(small, found), basis)]


def amplified(small: Problem, found: Mapping[MemberKey, Array]) -> float:
    """How many times larger, at least one, a relative error in all data and numbers can be in what was found:
    steps that are long make much of what an earlier one rounded.
    """
    near = [replace(small, arrays={**small.arrays, k: (1 + NEAR) * x}) for k, x in small.arrays.items()]
    near += [replace(small, numbers={**small.numbers, k: (1 + NEAR) * x}) for k, x in small.numbers.items()]
    moved: dict[MemberKey, Array] = {k: np.zeros_like(x) for k, x in found.items()}
    for other in near:
        for k, x in (derived_numbers(other) or {}).items():
            moved[k] += np.abs(x - found[k]) / NEAR
    return max(1.0, *(relative(x, found[k]) for k, x in moved.items()))


def _not_lazy(small: Problem) -> Problem:
    """The same where gamma0 costs no digits: of finite width f(0) is of order 1/gamma0, and parts cancel.

    What is checked on it holds at any gamma0.
    """
    return at(small, max(LEAST, small.numbers[gamma0])) if gamma0 in small.numbers else small


def _said(problem: Problem, small: Problem) -> str:
    """At which gamma0 a check was made, if it is another than the problem's."""
    own, used = (x.numbers.get(gamma0) for x in (problem, small))
    return "" if own == used else f"; gamma0={used:g}"


def _both(problem: Problem) -> tuple[Problem, xr.Dataset, dict[MemberKey, Array]] | None:
    """Fixed samples in exact steps (of a flow: descent in steps that resolve it), what `solve` gives with
    whatever reductions it runs, and what the march of the theory as it was derived gives.
    """
    small = in_steps(problem, SAMPLES, STEPS)
    full = None if small is None else derived_numbers(small)
    return None if small is None or full is None else (small, solve(small, kernels="full"), full)


def reduced(problem: Problem) -> list[Check]:
    """`solve` gives the numbers of the theory as it was derived."""
    if (both := _both(problem)) is None:
        return []
    small, result, full = both
    count = small.seen
    error = full[ERROR, ()][:, :count]
    gaps = [relative(result["error"].to_numpy() - error, error)]
    for name, own in ((FEATURE_KERNEL, LINEAR_KERNEL), (GRADIENT_KERNEL, GRADIENT_KERNEL)):
        for k in range(1, (small.depth or 1) + 1):
            expected = np.moveaxis(full[own, (k,)], (-2, -1), (0, 1))
            if name == FEATURE_KERNEL:
                expected = expected[:, :, :count, :count]
            gaps.append(relative(result[name].to_numpy()[k - 1] - expected, expected))
    name = f"solve = theory as derived, {len(small.times)} times"
    return [Check("solution", name, max(gaps), 0, rounding(small), "rounding")]


def moved(problem: Problem) -> list[Check]:
    """f(t+1) - f(t) is exactly the tangent kernel, with G read at t+1 and H at t, times the errors at t.

    A product of matrices moves by the sum over its factors, later factors new and earlier factors old, at any
    step size.  The kernel is that of the theory.
    """
    both = _both(problem)
    if both is None or not both[0].discrete.observables:
        return []
    small, result, full = both
    seen, (equation,) = small.seen, small.discrete.observables
    data = {k: x[:seen, :seen] if k == INPUT_KERNEL else x for k, x in small.data.items()}
    error, f = result["error"].to_numpy(), full[OUTPUT, ()][:, :seen]
    times = np.arange(len(error) - 1)
    features, gradients = result[FEATURE_KERNEL][:, :-1, :-1], result[GRADIENT_KERNEL][:, 1:, :-1]
    read = {LINEAR_KERNEL: features, GRADIENT_KERNEL: gradients}
    tensors: dict[MemberKey, Array] = {
        (name, (k,)): np.moveaxis(layer, (0, 1), (-2, -1))[..., None]
        for name, x in read.items()
        for k, layer in enumerate(x.to_numpy(), 1)
    }
    numbers = {str(x): v for x, v in small.numbers.items()}
    kernel = observable(equation, tensors, numbers, data, (t, s, *axes_of(equation.lhs)))[..., 0]
    kernel = kernel[times, times].reshape(len(times), error[0].size, error[0].size)
    error, f = error.reshape(len(error), -1), f.reshape(len(f), -1)
    predicted = first_shares(small)[:, None] * np.einsum("tij,tj->ti", kernel, error[:-1])
    gap = relative(np.diff(f, axis=0) - predicted, error)
    return [Check("solution", "f(t+1) - f(t) = K Delta, exact steps", gap, 0, rounding(small), "rounding")]


def rounding(small: Problem) -> float:
    """Allowed in any number of the solution, relative to the largest of its kind.

    A number is a sum of T P terms per layer; each of T steps adds one such sum's rounding.
    """
    return EPS * len(small.times) ** 2 * small.sample_count * small.outputs * ((small.depth or 1) + 1)


def middle(problem: Problem) -> list[Check]:
    """The inner product of g^l and h^l is the same number at every layer.

    It is the function W^L ... W^0 x (with residual branches too), read from the middle, whatever the weights
    have become.  Biases, which enter in every layer, are not part of such a product.  <g^l h^l> is a mean
    over the layer, so the layer's size comes in: N_l on random data; on fixed samples its root, as g^l is
    the root of N N_l times the gradient.
    """
    small = _not_lazy(opening(problem, SAMPLES, STEPS))
    layers, steps = range(1, (small.depth or 1) + 1), len(small.times)
    if len(layers) == 1:
        return []
    table = lower(small.discrete)
    pairs: dict[FieldAtLayer, Request] = {
        ("gh", k): Request("correlation", (GRADIENT, k), (FIELD, k), S.One) for k in layers
    }
    result = marched(small, replace(table, tensors={**table.tensors, **pairs}), [*pairs])
    sizes = dict(small.layered.get("nu", {}))
    sizes |= {k: x**0.5 for k, x in small.layered.get("a", {}).items()}
    times = np.arange(steps)
    read = [sizes.get(k, 1.0) * result.tensor(("gh", k))[times, :, times] for k in layers]
    worst = max(relative(x - read[-1], read[-1]) for x in read)
    units = modes(small)
    summed = (SAMPLES if small.seen else 1) * (len(units.counts) if units else 1)
    terms = steps * (len(layers) + 1) * summed
    name = "<g^l h^l>, the same at every layer"
    basis = f"rounding, {steps} times{_said(problem, small)}"
    return [Check("solution", name, worst, 0, EPS * terms * steps, basis)]


# -- the solution itself, sampled or not -------------------------------------------------------------------


def correlations(
    theory: xr.Dataset,
    off: float = 0.0,
    letters: Mapping[str, str] = LETTERS,
    authored: Sequence[str] = (),
) -> list[Check]:
    """Every correlation of the solution is a covariance: symmetric and positive semidefinite.

    A flow may be ``off``, on power-law data by its accuracy, as it is interpolated between nodes.
    ``authored`` are the correlations of a vector with itself under names of the program.
    """
    checks = []
    for name in CORRELATIONS:
        if name in theory and AUTHORED not in theory[name].attrs:
            checks += covariance(letters.get(name, name), blocks(theory[name]), off)
    for name in authored:
        if name in theory and _is_paired(theory[name]):
            checks += covariance(name, blocks(theory[name]), off)
    return checks


def _is_paired(x: xr.DataArray) -> bool:
    """Has each dimension of a correlation but that of layers a partner?"""
    own = [d for d in x.dims if f"{d}_" in x.dims]
    return {*x.dims} - {"layer"} == {*own, *(f"{d}_" for d in own)}


def blocks(x: xr.DataArray) -> Array:
    """A correlation as (layer, T, n, T, n); one without layers is that of one layer."""
    x = x if "layer" in x.dims else x.expand_dims("layer")
    own = [d for d in x.dims if f"{d}_" in x.dims and d != "time"]
    ordered = x.transpose("layer", "time", *own, "time_", *(f"{d}_" for d in own))
    times, n = x.sizes["time"], int(np.prod([x.sizes[d] for d in own]))
    return ordered.to_numpy().reshape(x.sizes["layer"], times, n, times, n)


def covariance(name: str, values: Array, off: float = 0.0) -> list[Check]:
    """Each `values[layer]`, of shape (T, n, T, n), is symmetric and positive semidefinite to rounding.

    A flow may be ``off`` by that, relative to the largest.
    """
    times, block = values.shape[1:3]
    keep = np.unique(np.linspace(0, times - 1, min(times, LARGEST_MATRIX // block or 1)).astype(int))
    asymmetry, lowest, size = 0.0, np.inf, times * block
    for matrix in values:
        flat = matrix.reshape(size, size)
        asymmetry = max(asymmetry, relative(flat - flat.T, flat))
        chosen = matrix[keep][:, :, keep].reshape(len(keep) * block, -1)
        spectrum = np.linalg.eigvalsh((chosen + chosen.T) / 2)
        lowest = min(lowest, float(spectrum[0] / (spectrum[-1] or 1.0)))
    size = len(keep) * block
    allowed, source = EPS * size * times + off, "solver.rtol" if off else "rounding"
    basis = f"{source}, {size} x {size}"
    return [
        Check("solution", f"{name} is symmetric", asymmetry, 0, allowed, source),
        Check("solution", f"{name}: -lowest/highest eigenvalue", -lowest, 0, allowed, basis, upper=True),
    ]


def causality(problem: Problem, theory: xr.Dataset) -> list[Check]:
    """Nothing answers what comes later, and a run of half the steps is the beginning of this one.

    Results of flows have no responses, and half a flow has another grid.  Of sampled solutions, whose halves
    differ in their noise, the first alone; the last layer has no response of its own there.
    """
    strict = {q.name: q.causal == "strict" for q in problem.discrete.order_parameters}
    sampled = "replicas" in theory.attrs
    found = [x for x in RESPONSES if x in theory and (x in strict or not sampled)]
    if problem.flow or (sampled and not found):
        return []
    worst = 0.0
    for name in found:
        own = theory[name].isel(layer=slice(0, -1)) if sampled else theory[name]
        values = own.transpose(..., "time", "time_").to_numpy()
        worst = max(worst, float(np.abs(np.triu(values, 0 if strict.get(name) else 1)).max()))
    basis = f"exact zeros, {len(found)} kinds"
    checks = [Check("solution", "responses to what is to come", worst, 0, 0, basis)]
    steps = (len(theory.time) - 1) // 2
    if steps == 0 or sampled:
        return checks
    half = solve(replace(problem, times=problem.times[: steps + 1], output_times=None), kernels="none")
    first = theory.isel(time=slice(steps + 1), time_=slice(steps + 1), missing_dims="ignore")
    gaps = [relative((half[x] - first[x]).to_numpy(), half[x].to_numpy()) for x in half.data_vars]
    allowed = EPS * theory.sizes["time"] ** 2 * ((problem.depth or 1) + 1)
    name = f"{steps} steps = the first {steps} of them"
    return [*checks, Check("solution", name, max(gaps), 0, allowed, "rounding")]


def start(problem: Problem, theory: xr.Dataset) -> list[Check]:
    """The loss before anything is learned.

    Of fixed samples that of f = 0, within the standard error if there is one.  On random data of finite width
    f(0) adds its own variance, which falls as one over gamma0 squared, so two values of gamma0 tell what is
    left without it: that of the target.
    """
    first = float(theory.train_loss[0])
    if problem.seen:
        y, stderr = problem.targets, None
        resting = np.zeros((1, problem.sample_count, *y.shape[1:]))  # outputs of zero, on test points too
        expected = float(split(problem, {OUTPUT: resting, "error": y[None]})["train_loss"][0])
        allowed, basis = EPS * y.size * expected, "rounding"
        if "train_loss_stderr" in theory:
            stderr, basis = float(theory.train_loss_stderr[0]), "standard error"
            allowed += bound(1, LEVEL, theory.attrs["replicas"] - 1) * stderr
        return [
            Check("solution", "loss at the start = that of f = 0", first, expected, allowed, basis, stderr)
        ]
    experiment, spectrum = problem.experiment, modes(problem)
    assert experiment is not None
    noise = 0.0 if experiment.data is None else experiment.data.noise or 0.0
    target, basis = experiment.network.outputs * (1 + noise**2), "1 + noise^2"
    if spectrum is not None:
        of_modes = spectrum.attributes["lamda"] * spectrum.attributes["w_star"] ** 2
        target, basis = float(np.sum(of_modes)) + noise**2, "sum over modes + noise^2"
    scale = 10 * ((problem.depth or 1) + 1) * EPS * max(first, target)
    shortest = 1e-3 * float(problem.times[1])
    times = np.array([0.0, shortest]) if problem.flow else problem.times[:2]
    solver = problem.solver.model_copy(update={"rtol": 1e-2})
    richer = replace(at(problem, 2 * float(problem.numbers[gamma0])), times=times, solver=solver)
    second = float(solve(richer).test_loss[0])
    test = float(theory.test_loss[0])
    without = (4 * second - test) / 3
    return [
        Check("solution", "train loss = test loss at the start", first, test, scale, "rounding"),
        Check("solution", "loss at the start, without that of f(0)", without, target, 2 * scale, basis),
    ]


def relative(difference: Array, of: Array) -> float:
    """The largest difference over the largest entry; what is zero throughout is its own scale."""
    scale = float(np.max(np.abs(of)))
    return float(np.max(np.abs(difference))) / (scale or 1.0)


# -- a flow ------------------------------------------------------------------------------------------------


def settled(problem: Problem, theory: xr.Dataset) -> list[Check]:
    """The solver's own estimate of what its grid misses.

    Of sampled paths it holds the noise of two replicas, which says nothing of the grid: there descent in
    small steps is compared alone.
    """
    estimate, basis = float(theory.attrs["error_estimate"]), f"rtol, {theory.attrs['time_nodes']} nodes"
    return [Check("solution", "flow: error by refinement", estimate, 0, _stated(problem), basis, upper=True)]


def _stated(problem: Problem) -> float:
    """What the march of a flow says that it reaches: ``solver.rtol``, or less well where the error jumps."""
    said = answer(MarchMethod(), problem, "none")
    return said.error if isinstance(said, Yes) else problem.solver.rtol


def small_steps(problem: Problem, theory: xr.Dataset) -> list[Check]:
    """The training loss halfway down, from descent in 32, 64, ... steps, extrapolated to none.

    Allowed is what the last halving changed, and what the flow may be off.  Of sampled paths there are two
    lengths of steps, and what all standard errors together let expect is allowed too.
    """
    experiment = problem.experiment
    if experiment is None:
        return []
    end = halfway(theory)
    changes = {"training.time": end, "training.points": 3, "training.grid": "uniform", "training.times": None}
    flow = solve(experiment.replace(changes), kernels="none")
    expected, first = float(flow.train_loss[-1]), float(flow.train_loss[0])
    name = f"train loss at t = {end:.4g}, from descent"
    if "train_loss_stderr" not in flow:
        value, missed, steps = extrapolated(experiment, end)
        allowed = missed + 2 * _stated(problem) * first + float(systematic(flow, "train_loss")[-1])
        return [Check("solution", name, value, expected, allowed, f"up to {steps} steps, -> 0")]
    few, many = (solve(by(descent(experiment, end, n), "paths"), kernels="none") for n in SAMPLED_STEPS)
    value = 2 * float(many.train_loss[-1]) - float(few.train_loss[-1])
    errors = [float(x.train_loss_stderr[-1]) for x in (few, many, flow)]
    stderr = float(np.sqrt(errors[0] ** 2 + 4 * errors[1] ** 2 + errors[2] ** 2))
    dof = min(int(x.attrs["replicas"]) for x in (few, many, flow)) - 1
    allowed = abs(value - float(many.train_loss[-1])) + bound(1, LEVEL, dof) * stderr
    allowed += sum(n * float(systematic(x, "train_loss")[-1]) for n, x in ((1, few), (2, many), (1, flow)))
    basis = f"{SAMPLED_STEPS[0]}, {SAMPLED_STEPS[1]} steps, -> 0"
    return [Check("solution", name, value, expected, allowed, basis, error=stderr)]


def halfway(theory: xr.Dataset) -> float:
    """The time at which the training loss has fallen to SHARE, or its last."""
    loss, times = theory.train_loss.to_numpy(), theory.time.to_numpy()
    below = np.flatnonzero(loss <= SHARE * loss[0])
    if not len(below):
        return float(times[-1])
    k = max(1, int(below[0]))
    return float(np.interp(-SHARE * loss[0], -loss[k - 1 : k + 1], times[k - 1 : k + 1]))


def extrapolated(experiment: Experiment, end: float) -> tuple[float, float, int]:
    """The training loss at ``end`` without the length of steps, what is not known of it, the most steps."""
    row: list[float] = []
    count, missed, value = FEWEST, np.inf, np.nan
    while count <= MOST:
        try:
            found = [float(solve(descent(experiment, end, count), kernels="none").train_loss[-1])]
        except Diverged:
            found, row = [], []
        if found:
            for k, old in enumerate(row, 1):
                found.append(found[-1] + (found[-1] - old) / (2**k - 1))
            if row:
                missed = abs(found[-1] - row[-1])
            value, row = found[-1], found
            if missed <= SETTLED * abs(value):
                break
        count *= 2
    return value, missed, min(count, MOST)
