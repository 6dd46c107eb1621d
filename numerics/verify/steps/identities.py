"""What must hold of the solution of any linear network, without any network to compare it with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import S

from numerics.compile import lower
from numerics.compile.table import Node, Request
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, layered_numbers, numbers_of, spectrum_of, theory_at_depth
from numerics.solve import solve
from numerics.solve.direct import evaluate
from numerics.solve.grid import adams_weights
from numerics.solve.march import march
from numerics.solve.memory import memory_tables
from numerics.verify.identities import covariance, relative
from numerics.verify.report import Check
from numerics.verify.short import EPS
from numerics.verify.theories.solved import solved

Array = NDArray[np.float64]

READ_SAMPLES, READ_STEPS, READ_MODES = 2, 2, 4
"""The opening on which every expression of the theory is evaluated as it is written, which is slow."""

SAMPLES, STEPS = 5, 10
"""The opening on which fields are compared that a solution does not keep."""

CORRELATIONS = ("Phi", "G", "C_v", "C_Delta", "C_h0", "C_h", "C_g")
RESPONSES = ("A", "B", "R_hr", "R_gu", "R_Delta", "R_vu", "R_h0r0")
LETTERS = {"Phi": "H^l", "G": "G^l", "C_h": "C_h^l", "C_g": "C_g^l"}


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
