"""What must hold of the theory and of its solution, without any network to compare it with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Integer, S

from derive.program import L
from derive.program.program import Program
from derive.theory import Theory, mean_field
from derive.theory.compare import compare
from derive.theory.path_integral import path_integral
from numerics.compile import lower
from numerics.compile.table import Node, Request
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, layered_numbers, numbers_of, spectrum_of, theory_at_depth
from numerics.experiment.problem import Problem
from numerics.experiment.theory import program_of
from numerics.simulation.experiment import TangentKernel
from numerics.solver import solve
from numerics.solver.direct import evaluate
from numerics.solver.grid import adams_weights
from numerics.solver.march import march
from numerics.solver.memory import memory_tables
from numerics.verification.report import EPS, Check
from numerics.verification.theories.solved import solved

Array = NDArray[np.float64]

READ_SAMPLES, READ_STEPS, READ_MODES = 2, 2, 4
"""The opening on which every expression of the theory is evaluated as it is written, which is slow."""

SAMPLES, STEPS = 5, 10
"""The opening on which fields are compared that a solution does not keep."""

RESOLUTION = 0.5
"""Steps of descent in place of a flow, in units of its fastest lazy relaxation time."""

LARGEST_MATRIX = 1300
"""Eigenvalues are taken of kernel matrices up to this size; of longer ones, at fewer times."""

CORRELATIONS = ("Phi", "G", "C_v", "C_Delta", "C_h0", "C_h", "C_g")
RESPONSES = ("A", "B", "R_hr", "R_gu", "R_Delta", "R_vu", "R_h0r0")
LETTERS = {"Phi": "H^l", "G": "G^l", "C_h": "C_h^l", "C_g": "C_g^l"}


# -- the theory ------------------------------------------------------------------------------------------


def derivation(experiment: Experiment) -> list[Check]:
    """The conditioning rule and the path integral give the same theory, term by term."""
    checks = []
    for depth, label in ((Integer(experiment.depth), f"L = {experiment.depth}"), (L, "symbolic L")):
        terms, differences = _routes(program_of(experiment, depth))
        name = f"two routes, {label}: differences"
        checks.append(Check("derivation", name, differences, 0, 0, f"{terms} terms compared"))
    return checks


def _routes(program: Program) -> tuple[int, int]:
    one, two = mean_field(program), path_integral(program).theory()
    return _terms(one), len(compare(one, two))


def _terms(theory: Theory) -> int:
    equations = (*theory.equations, *theory.scalars, *theory.observables)
    return sum(len(e.terms) for e in equations) + len(theory.sources) + len(theory.order_parameters)


# -- the solution, on an opening of the experiment -------------------------------------------------------


def opening(experiment: Experiment, samples: int, steps: int) -> Experiment:
    """The first steps of the experiment, on a few of its samples or modes; each loss stays a mean, or a sum.

    Of a flow it is the beginning, cut into as many intervals.
    """
    steps = min(steps, len(experiment.times) - 1)
    cut: dict[str, object] = {"training.steps": steps}
    if experiment.training.rule == "flow":
        end = float(experiment.times[steps])
        cut = {"training.time": end, "training.points": steps + 1, "training.grid": "uniform"}
    if experiment.spec.kind == "power-law":
        modes = experiment.data.modes if experiment.data else None
        cut |= {"data.modes": min(modes or 1, READ_MODES)}
    if experiment.spec.kind != "fixed":
        return experiment.replace(cut)
    count = len(experiment.targets)
    pick = np.unique(np.linspace(0, count - 1, min(count, samples)).round().astype(int))
    tables = experiment.spec.model_dump(exclude_unset=True, exclude={"data"})
    tables["training"] |= {path.partition(".")[2]: value for path, value in cut.items()}
    kernel, held = experiment.kernel[np.ix_(pick, pick)], None
    if experiment.held_out is not None:  # one of them
        held = experiment.held_out.kernel[count : count + 1][:, [*pick, count]]
    return Experiment.from_dict(tables, kernel=kernel, targets=experiment.targets[pick], test_kernel=held)


def arrays(small: Experiment) -> dict[str, Array]:
    """What the theory of an opening holds of arrays: those of its samples, modes, and integrator."""
    spectrum = spectrum_of(small, every=True)
    found = arrays_of(small) | ({} if spectrum is None else dict(spectrum.attributes))
    if small.training.rule == "flow":
        found |= memory_tables(small, small.times, adams_weights(small.times))
    return found


def reading(experiment: Experiment) -> list[Check]:
    """The march gives the numbers of the theory's expressions, each evaluated as it is written."""
    small = opening(experiment, READ_SAMPLES, READ_STEPS)
    theory, data, steps = theory_at_depth(small), arrays(small), len(small.times)
    values = {k: int(v) if k.is_integer else v for k, v in numbers_of(small).items()}
    marched = solved(
        theory, steps=steps, values=values, data=data, samples=2, seed=0, units=spectrum_of(small, every=True)
    )
    read = evaluate(theory, steps=steps, values=values, data=data, method="linear")
    worst = max(relative(marched.values[x] - read.values[x], read.values[x]) for x in marched.values)
    terms = READ_SAMPLES * steps * (experiment.depth + 1)
    name = f"march = theory as written, {steps} times"
    basis = f"rounding; {len(marched.values)} kinds"
    return [Check("solution", name, worst, 0, EPS * terms * steps, basis)]


def reduced(experiment: Experiment) -> list[Check]:
    """`solve`, with whatever reductions it runs, gives the numbers of the theory as it was derived.

    On fixed samples, in exact steps (of a flow: descent in steps that resolve it).
    """
    small = in_steps(experiment, SAMPLES, STEPS)
    result = solve(small, kernels="full")
    values = {k: int(v) if k.is_integer else v for k, v in numbers_of(small).items()}
    steps = len(small.times)
    full = solved(theory_at_depth(small), steps=steps, values=values, data=arrays(small), samples=2, seed=0)
    count = small.sample_count if small.held_out is None else len(small.targets)
    error = np.moveaxis(full.values["Delta", ()], 0, 0)[:, :count]
    gaps = [relative(result["error"].to_numpy() - error, error)]
    for name, own in (("Phi", "H"), ("G", "G")):
        for k in range(1, small.depth + 1):
            expected = np.moveaxis(full.values[own, (k,)], (-2, -1), (0, 1))
            if name == "Phi":
                expected = expected[:, :, :count, :count]
            gaps.append(relative(result[name].to_numpy()[k - 1] - expected, expected))
    name = f"solve = theory as derived, {steps} times"
    return [Check("solution", name, max(gaps), 0, rounding(small), "rounding")]


def moved(experiment: Experiment) -> list[Check]:
    """f(t+1) - f(t) is exactly the tangent kernel, with G read at t+1 and H at t, times the errors at t.

    A product of matrices moves by the sum over its factors, later factors new and earlier factors old, at any
    step size.  The kernel's formula is read off the program's updates.
    """
    small = in_steps(experiment, SAMPLES, STEPS)
    tangent = TangentKernel.of(Problem.of(small))
    if tangent is None:
        return []
    result = solve(small, kernels="full")
    error = result["error"].to_numpy()
    t = np.arange(len(error) - 1)
    kernel = tangent({"Phi": result["Phi"].to_numpy()[:, :-1], "G": result["G"].to_numpy()[:, 1:]})
    kernel = kernel[t, t].reshape(len(t), error[0].size, error[0].size)
    flat = error.reshape(len(error), -1)
    predicted = small.effective_rate * np.einsum("tij,tj->ti", kernel, flat[:-1])
    gap = relative(-np.diff(flat, axis=0) - predicted, flat)
    return [Check("solution", "f(t+1) - f(t) = K Delta, exact steps", gap, 0, rounding(small), "rounding")]


def in_steps(experiment: Experiment, samples: int, steps: int) -> Experiment:
    """An opening in exact steps; of a flow, descent in steps that resolve its fastest relaxation.

    A discretised flow is a program like descent, with another memory of the same updates.
    """
    if experiment.training.rule != "flow":
        return opening(experiment, samples, steps)
    small = opening(experiment, samples, 1)
    fastest = small.effective_rate * float(np.linalg.eigvalsh(small.kernel)[-1]) * (small.depth + 1)
    end = min(float(experiment.times[-1]), steps * RESOLUTION / fastest if fastest > 0 else np.inf)
    return descent(small, end, steps)


def descent(experiment: Experiment, end: float, count: int) -> Experiment:
    """Steps of length ``end/count``.

    With momentum ``tau dQ/dt = -Q + U`` and ``dW/dt = Q`` are steps of ``Q tau/dt`` that keep 1 - dt/tau.
    """
    dt, tau = end / count, experiment.training.momentum
    rate, kept = (dt * dt / tau, 1 - dt / tau) if tau else (dt, 0.0)
    changes: dict[str, object] = {"rule": "gd", "learning_rate": rate, "steps": count, "momentum": kept}
    changes |= {"time": None, "points": None, "grid": None}
    return experiment.replace({f"training.{key}": value for key, value in changes.items()})


def rounding(small: Experiment) -> float:
    """Allowed in any number of the solution, relative to the largest of its kind.

    A number is a sum of T P terms per layer; each of T steps adds one such sum's rounding.
    """
    steps = len(small.times)
    return EPS * steps**2 * small.sample_count * small.network.outputs * (small.depth + 1)


def middle(experiment: Experiment) -> list[Check]:
    """The inner product of g^l and h^l is the same number at every layer.

    It is the function W^L ... W^0 x (with residual branches too), read from the middle, whatever the weights
    have become.  Biases, which enter in every layer, are not part of such a product.  <g^l h^l> is a mean
    over the layer, so the layer's size comes in: N_l on random data; on fixed samples its root, as g^l is
    the root of N N_l times the gradient.
    """
    if experiment.network.bias or experiment.depth == 1:
        return []
    small = opening(experiment, SAMPLES, STEPS)
    layers, steps = range(1, small.depth + 1), len(small.times)
    table = lower(theory_at_depth(small))
    pairs: dict[Node, Request] = {
        ("gh", k): Request("correlation", ("g", k), ("h", k), S.One) for k in layers
    }
    result = march(
        replace(table, tensors={**table.tensors, **pairs}),
        steps=steps,
        constants=numbers_of(small),
        data=arrays(small),
        wanted=tuple(pairs),
        units=spectrum_of(small, every=True),
    )
    given = {k: dict(x) for k, x in layered_numbers(small.spec)}
    sizes = {k: float(x) for k, x in given.get("nu", {}).items()}
    sizes |= {k: float(x) ** 0.5 for k, x in given.get("a", {}).items()}
    t = np.arange(steps)
    read = [sizes.get(k, 1.0) * result.tensor(("gh", k))[t, :, t] for k in layers]
    worst = max(relative(x - read[-1], read[-1]) for x in read)
    terms = steps * (experiment.depth + 1) * (SAMPLES if small.spec.kind == "fixed" else 1)
    name = "<g^l h^l>, the same at every layer"
    return [Check("solution", name, worst, 0, EPS * terms * steps, f"rounding, {steps} times")]


# -- the solution itself ---------------------------------------------------------------------------------


def correlations(theory: xr.Dataset, off: float = 0.0) -> list[Check]:
    """Every correlation of the solution is a covariance: symmetric and positive semidefinite.

    The flow on power-law data is interpolated between nodes, and may be ``off`` by its accuracy.
    """
    checks = []
    for name in CORRELATIONS:
        if name in theory:
            checks += covariance(LETTERS.get(name, name), blocks(theory[name]), off)
    return checks


def blocks(x: xr.DataArray) -> Array:
    """A correlation as (layer, T, n, T, n); one without layers is that of one layer."""
    x = x if "layer" in x.dims else x.expand_dims("layer")
    own = [d for d in ("sample", "channel") if d in x.dims]
    ordered = x.transpose("layer", "time", *own, "time_", *(f"{d}_" for d in own))
    times, n = x.sizes["time"], int(np.prod([x.sizes[d] for d in own]))
    return ordered.to_numpy().reshape(x.sizes["layer"], times, n, times, n)


def covariance(name: str, values: Array, off: float = 0.0) -> list[Check]:
    """Each `values[layer]`, of shape (T, n, T, n), is symmetric and positive semidefinite to rounding.

    What is interpolated may be ``off`` by that, relative to the largest.
    """
    times, block = values.shape[1:3]
    keep = np.unique(np.linspace(0, times - 1, min(times, LARGEST_MATRIX // block or 1)).astype(int))
    asymmetry, lowest, size = 0.0, np.inf, times * block
    for matrix in values:
        flat = matrix.reshape(size, size)
        asymmetry = max(asymmetry, relative(flat - flat.T, flat))
        chosen = matrix[keep][:, :, keep].reshape(len(keep) * block, -1)
        spectrum = np.linalg.eigvalsh((chosen + chosen.T) / 2)
        lowest = min(lowest, float(spectrum[0] / spectrum[-1]))
    size = len(keep) * block
    allowed, source = EPS * size * times + off, "rtol" if off else "rounding"
    basis = f"{source}, {size} x {size}"
    return [
        Check("solution", f"{name} is symmetric", asymmetry, 0, allowed, source),
        Check("solution", f"{name}: -lowest/highest eigenvalue", -lowest, 0, allowed, basis, upper=True),
    ]


def causality(experiment: Experiment, theory: xr.Dataset) -> list[Check]:
    """Nothing answers what comes later, and a run of half the steps is the beginning of this one.

    Results of flows have no responses, and half a flow has another grid: see :mod:`.flows`.
    """
    if experiment.training.rule == "flow":
        return []
    strict = {q.name for q in theory_at_depth(experiment).order_parameters if q.causal == "strict"}
    found, worst = [name for name in RESPONSES if name in theory], 0.0
    for name in found:
        values = theory[name].transpose(..., "time", "time_").to_numpy()
        worst = max(worst, float(np.abs(np.triu(values, 0 if name in strict else 1)).max()))
    basis = f"exact zeros, {len(found)} kinds"
    checks = [Check("solution", "responses to what is to come", worst, 0, 0, basis)]
    steps = (len(theory.time) - 1) // 2
    if steps == 0:
        return checks
    half = solve(experiment.replace({"training.steps": steps}), kernels="none")
    gaps = [
        relative(half[name].to_numpy() - _first(theory[name], steps + 1), half[name].to_numpy())
        for name in half.data_vars
    ]
    allowed = EPS * theory.sizes["time"] ** 2 * (experiment.depth + 1)
    name = f"{steps} steps = the first {steps} of them"
    return [*checks, Check("solution", name, max(gaps), 0, allowed, "rounding")]


def _first(x: xr.DataArray, times: int) -> Array:
    return x.isel({d: slice(times) for d in ("time", "time_") if d in x.dims}).to_numpy()


def start(experiment: Experiment, theory: xr.Dataset) -> list[Check]:
    """The loss before anything is learned.

    Of fixed samples that of f = 0.  On random data of finite width f(0) adds its own variance, which falls as
    one over gamma0 squared, so two values of gamma0 tell what is left without it: that of the target.
    """
    first = float(theory.train_loss[0])
    if experiment.spec.kind == "fixed":
        squares = experiment.targets.reshape(len(experiment.targets), -1) ** 2
        expected = float(squares.sum(axis=1).mean())
        allowed = EPS * squares.size * expected
        return [Check("solution", "loss at the start = mean of y^2", first, expected, allowed, "rounding")]
    noise = 0.0 if experiment.data is None else experiment.data.noise or 0.0
    target, basis = experiment.network.outputs * (1 + noise**2), "1 + noise^2"
    spectrum = spectrum_of(experiment, every=True)
    if spectrum is not None:
        of_modes = spectrum.attributes["lamda"] * spectrum.attributes["w_star"] ** 2
        target, basis = float(np.sum(of_modes)) + noise**2, "sum over modes + noise^2"
    scale = 10 * (experiment.depth + 1) * EPS * max(first, target)
    flow = experiment.training.rule == "flow"
    short = {"training.time": _shortest(experiment), "training.points": 2} if flow else {"training.steps": 1}
    richer = {"network.gamma0": 2 * experiment.network.gamma0, "solver.rtol": 1e-2, **short}
    second = float(solve(experiment.replace(richer)).test_loss[0])
    test = float(theory.test_loss[0])
    without = (4 * second - test) / 3
    return [
        Check("solution", "train loss = test loss at the start", first, test, scale, "rounding"),
        Check("solution", "loss at the start, without that of f(0)", without, target, 2 * scale, basis),
    ]


def _shortest(experiment: Experiment) -> float:
    return 1e-3 * float(experiment.times[1])


def relative(difference: Array, of: Array) -> float:
    """The largest difference over the largest entry; what is zero throughout is its own scale."""
    scale = float(np.max(np.abs(of)))
    return float(np.max(np.abs(difference))) / (scale or 1.0)
