"""The expansion in gamma0 against full solutions.

Of exact solutions the experiment is solved again at a few small gamma0 in geometric progression, and the
exponent is fitted of what the truncated series misses, for every quantity and layer: gamma0^4.  It tells a
wrong coefficient at once (the exponent becomes 2, or 0) and needs no tolerance on the coefficient itself.

Of sampled solutions noise hides a fitted exponent.  So the coefficient of gamma0^2 itself is read off
solutions at a few small gamma0 and at almost none, all from the same random numbers: what does not depend on
gamma0 drops out of the differences, a polynomial in gamma0^2 goes through them, and the replicas show what is
left of the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from derive.calculus.jumps import Ambiguous
from derive.errors import NotApplicable
from derive.linear.form import LinearForm
from derive.program import gamma0
from numerics.errors import NotConverged, SpecError
from numerics.expansion import expand
from numerics.expansion.orders import partial_sum
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import slope_jumps
from numerics.names import BACKWARD_RESPONSE, ERROR, FEATURE_KERNEL, FORWARD_RESPONSE, GRADIENT_KERNEL
from numerics.results import STDERR, dimensions
from numerics.solver import solve
from numerics.solver.by_role import labelled
from numerics.solver.grid import is_noisy
from numerics.stats import bound
from numerics.verification.openings import (
    FULL,
    GENTLE,
    SMALL_SAMPLES,
    Effort,
    at,
    by,
    comparable,
    few,
    in_steps,
    particles,
)
from numerics.verification.report import LEVEL, Check

Array = NDArray[np.float64]

ORDER = 2
MISSED = ORDER + 2
"""The series is even in gamma0, so the first power that is missing."""

ALLOWED = 0.2
RATIO = 2.0**0.5
POINTS = 4
CORRECTION = 0.01
"""Size of the second-order term, relative to the leading one, at the largest gamma0 of the fit."""

ROUNDING = 1e-13

NOISY_STEPS = 10
"""Steps of descent in place of a flow with noise."""

SAMPLES, STEPS = 3, 4
"""The opening on which sampled coefficients are compared."""

SEED = 2

ZERO = 1e-5
"""gamma0 of the solution that is taken for the lazy one."""

LARGEST = 0.05
"""Size of the second-order term, relative to the leading one, at the largest gamma0."""

SHARES = (0.5, 0.75, 1.0)
"""The strengths as shares of the largest."""

AVERAGES = 1e-8
"""How far the averages in the coefficients may be off, relative to the largest entry."""

SHOWN = (
    "train_loss",
    "error",
    FEATURE_KERNEL,
    GRADIENT_KERNEL,
    "tangent_kernel",
    FORWARD_RESPONSE,
    BACKWARD_RESPONSE,
)
MISSING = "_missed"

KINKS = "where a slope jumps, units that cross the kink add odd powers of the size of gamma0"


def expansion(source: Problem | Experiment, effort: Effort = FULL) -> tuple[list[Check], str]:
    """A row for each quantity, and a note that says on what; or why there is no series to check."""
    problem = Problem.of(source)
    if slope_jumps(problem.program):
        return [], f"expansion: not checked; {KINKS}"
    if gamma0 not in problem.numbers:
        return [], "expansion: not checked; the theory has no gamma0"
    try:
        if not problem.seen:
            if not problem.has_roles:
                return [], "expansion: not checked; the program has no single output with its error"
            raise SpecError(*problem.said("data.kind"), "has random samples, not given ones", '"fixed"')
        if isinstance(problem.linear, LinearForm):
            return fitted(problem, effort)
        small = in_steps(problem, SAMPLES, STEPS)
        if small is None:
            return [], "expansion: not checked; of a program it is checked in steps"
        checks, note = sampled(small, effort)
        return checks, note.replace(" steps,", " steps of descent,", 1) if problem.flow else note
    except (SpecError, NotConverged, NotApplicable, Ambiguous) as reason:
        return [], fill(f"expansion: not checked; {reason}", 105)


# -- exact solutions: the exponent of what is missed -----------------------------------------------------


def fitted(whole: Problem, effort: Effort = FULL) -> tuple[list[Check], str]:
    """Fitted exponents of what the series of a problem misses, and at which gamma0 they were fitted."""
    steps: Problem | None = None
    if whole.flow and is_noisy(whole.program.rule):
        # the solution of a noisy flow is extrapolated in its steps, so its grids are not those of the series
        steps = in_steps(whole, SMALL_SAMPLES, NOISY_STEPS)
        if steps is None:
            return [], "expansion: not checked; of a program it is checked in steps"
    for gentle in GENTLE:
        problem = by(steps if steps else comparable(few(whole, effort), gentle), "march")
        series = expand(problem, ORDER)
        if ORDER not in series.order:
            return [], "expansion: not checked; nothing here depends on gamma0"
        strengths = strength_of(series, CORRECTION) * RATIO ** -np.arange(POINTS)
        solutions = [solve(at(problem, float(strength))) for strength in strengths]
        if len({x.attrs.get("time_nodes") for x in (series, *solutions)}) == 1:
            break
    else:
        return [], "expansion: not checked; no grid is that of the solutions and of the series"
    missed: dict[str, list[Array]] = {}
    for strength, full in zip(strengths, solutions, strict=True):
        rest = full - partial_sum(series, float(strength))
        for name in SHOWN:
            if name in full and name in series:
                apart = abs(rest[name]).max({*rest[name].dims} - {"layer"})
                missed.setdefault(name, []).append(np.atleast_1d(apart.values))
    # B^L, for one, is zero in both: what is left there is rounding and has no exponent
    rounding = ROUNDING * max(float(np.abs(series[name]).max()) for name in SHOWN if name in series)
    checks = []
    for name, rows in missed.items():
        of_layers = enumerate(np.transpose(rows), int("layer" in series[name].dims))
        kept = {k: np.log(v) for k, v in of_layers if v.max() > rounding}
        fits = {k: float(np.polyfit(np.log(strengths), v, 1)[0]) for k, v in kept.items()}
        if not fits:
            continue
        layer, worst = max(fits.items(), key=lambda item: abs(item[1] - MISSED))
        basis = f"fit; worst is l = {layer}" if layer and len(fits) > 1 else "fit"
        label = f"{shown(name, True)}: power of gamma0 that is missed"
        checks.append(Check("expansion", label, worst, MISSED, ALLOWED, basis))
    note = (
        f"expansion: to gamma0^{ORDER}; the exponent is fitted at {POINTS} gamma0 from "
        f"{strengths[-1]:.2g} to {strengths[0]:.2g}"
    )
    if steps is not None:
        note += f"\n(in {len(steps.times) - 1} steps of descent)"
    elif problem.seen < whole.seen:
        note += f"\n(on {problem.seen} of the samples and {len(problem.times)} of the times)"
    return checks, note


def strength_of(series: xr.Dataset, share: float) -> float:
    """The gamma0 at which the second-order term of the most sensitive quantity is this share of the first."""
    sizes = []
    for name in SHOWN:
        if name in series:
            zeroth, second = (float(np.abs(series[name].sel(order=n)).max()) for n in (0, ORDER))
            if zeroth > 0:
                sizes.append(second / zeroth)
    return float(np.sqrt(share / max(sizes)))


def shown(name: str, linear: bool) -> str:
    """A variable as the table calls it."""
    phi = "H^l" if linear else "Phi^l"
    letters = {"train_loss": "loss", "error": ERROR, "tangent_kernel": "K", FEATURE_KERNEL: phi}
    return letters.get(name, f"{name}^l")


# -- sampled solutions: the coefficient of gamma0^2 ------------------------------------------------------


def sampled(small: Problem, effort: Effort = FULL) -> tuple[list[Check], str]:
    """The coefficient of gamma0^2 on an opening of a problem, and a note."""
    series = expand(small, ORDER)
    strengths = [share * strength_of(series, LARGEST) for share in SHARES]
    paths, replicas = 2 * effort.paths, effort.replicas
    found = differences(small, strengths, paths=paths, replicas=replicas)
    rows = compared(series, found)
    checks = []
    for name, (z, limit, count, _) in rows.items():
        label = f"{shown(name, False)}: gamma0^2, worst of {count}"
        checks.append(Check("expansion", label, z, 0, limit, "|z|, same paths", upper=True))
    reach = [x for *_, x in rows.values()]
    steps = f"{len(small.times) - 1} steps"
    note = (
        f"expansion: gamma0^2 on {small.seen} samples and {steps},\n"
        f"from {replicas} times {paths} paths at gamma0 = {', '.join(f'{g:.2g}' for g in strengths)}. "
        f"Errors seen: {min(reach):.1%} (best) to {max(reach):.1%} (worst)."
    )
    return checks, note


def differences(
    source: Problem | Experiment,
    strengths: Sequence[float],
    *,
    paths: int = 2 * FULL.paths,
    replicas: int = FULL.replicas,
    seed: int = SEED,
) -> xr.Dataset:
    """The coefficient of gamma0^2 of every result variable, from solutions at these ``strengths``.

    Beside each, ``_stderr`` over the replicas and ``_missed``, how far the polynomial in gamma0^2 moves
    without the largest strength: an upper bound of what it misses.  A flow takes the steps of its output
    times.  Raises ValueError for fewer than two strengths, or strengths that do not rise from above ZERO.

    >>> spec = {"network": {"depth": 1, "activation": "tanh"}, "training": {"learning_rate": 0.3, "steps": 2}}
    >>> experiment = Experiment.from_dict(spec, kernel=np.eye(1), targets=np.ones(1))
    >>> found = differences(experiment, (0.1, 0.2), paths=256, replicas=4)
    >>> found["Phi"].dims, float(found["Phi_missed"].max() < 0.05 * abs(found["Phi"]).max())
    (('layer', 'time', 'time_', 'sample', 'sample_'), 1.0)
    """
    problem, rising = Problem.of(source), [ZERO, *strengths]
    if len(strengths) < 2 or any(a >= b for a, b in zip(rising, strengths, strict=False)):
        raise ValueError(f"strengths = {tuple(strengths)}: at least two, rising, above {ZERO:g}")
    lazy, *found = [_runs(problem, g, paths, replicas, seed) for g in rising]
    variables: dict[str, Any] = {}
    for name, base in lazy.items():
        if not all(name in x for x in found):  # a response that is mostly noise is left out
            continue
        moved = [x[name] - base for x in found]
        value = _slope(strengths, moved)
        mean = value.mean(axis=0)
        missed = np.abs(mean - _slope(strengths[:-1], moved[:-1]).mean(axis=0))
        dims = dimensions(name, mean.ndim, problem.by_sample)
        variables[name] = dims, mean
        variables[name + STDERR] = dims, value.std(axis=0, ddof=1) / np.sqrt(replicas)
        variables[name + MISSING] = dims, missed
    return xr.Dataset(variables, attrs={"replicas": replicas, "strengths": list(strengths)})


def compared(
    series: xr.Dataset, found: xr.Dataset, names: Sequence[str] = SHOWN
) -> dict[str, tuple[float, float, int, float]]:
    """Of every variable the worst entry's |z|, its limit, how many were compared, how well they are known.

    Compared are losses and errors halfway and at the end, kernels at the end with the start, halfway and the
    end, for all layers and samples.  The limit is Sidak's with Student's t, and what the polynomial misses.
    The last number is the median allowed difference, relative to the largest entry of the coefficient.
    """
    rows = {}
    dof = int(found.attrs["replicas"]) - 1
    last = found.sizes["time"] - 1
    for name in names:
        if name not in found or name not in series:
            continue
        at: dict[str, Any] = {"time": [last]}
        at |= {"time_": sorted({0, last // 2, last})} if "time_" in found[name].dims else {}
        at |= {} if "time_" in at else {"time": sorted({(last + 1) // 2, last})}
        expected = series[name].sel(order=ORDER).transpose(*found[name].dims).isel(at).to_numpy()
        value, stderr, missed = (found[name + x].isel(at).to_numpy() for x in ("", STDERR, MISSING))
        known = np.isfinite(expected) & np.isfinite(value)
        if not known.any():
            continue
        gap = np.abs(value - expected)[known]
        size = max(float(np.abs(expected[known]).max()), float(np.abs(value[known]).max()))
        if size == 0:
            continue
        # entries that causality or symmetry make zero have no error and decide nothing
        error = np.maximum(stderr[known], AVERAGES * size)
        count = int((stderr[known] > AVERAGES * size).sum())
        limits = bound(count, LEVEL, dof) + missed[known] / error
        worst = int(np.argmax(gap / error / limits))
        reach = float(np.median((limits * error)[stderr[known] > AVERAGES * size])) / size if count else 0.0
        rows[name] = float(gap[worst] / error[worst]), float(limits[worst]), count, reach
    return rows


# -- solutions ------------------------------------------------------------------------------------------


def _runs(problem: Problem, gamma0: float, paths: int, replicas: int, seed: int) -> dict[str, Array]:
    """Every variable of every replica."""
    solved = particles(at(problem, gamma0), paths, replicas, seed)
    every = [labelled(problem, {n: x[k] for n, x in solved.runs.items()}, "full") for k in range(replicas)]
    return {name: np.stack([x[name] for x in every]) for name in every[0] if name in SHOWN}


def _slope(strengths: Sequence[float], moved: Sequence[Array]) -> Array:
    """The first coefficient of the polynomial in gamma0^2, zero at zero, through all points."""
    squares = np.asarray(strengths) ** 2
    weights = np.linalg.inv(np.stack([squares ** (k + 1) for k in range(len(squares))], axis=1))[0]
    return np.asarray(np.tensordot(weights, np.stack(moved), 1))
