"""The expansion in gamma0, checked against full solutions.

If solutions are exact, the problem is solved at a few small gamma0 in geometric progression, and the exponent
of the truncation error is fitted for every quantity and layer: it must be 4.  A wrong coefficient changes the
exponent to 2 or 0, so that no tolerance on the coefficients is needed.

In sampled solutions noise hides such an exponent.  There, the coefficient of gamma0^2 itself is computed from
solutions at a few small gamma0 and at almost zero, all from the same random numbers: noise that does not
depend on gamma0 cancels in their differences, through which a polynomial in gamma0^2 is fitted, and the
replicas give the standard error.
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
from numerics.verification.report import LEVEL, Check
from numerics.verification.smaller_problems import (
    FULL,
    GENTLE,
    SMALL_SAMPLES,
    Effort,
    at_gamma0,
    in_fixed_steps,
    in_steps,
    solve_by_paths,
    with_small_kernels,
    with_solver,
)

Array = NDArray[np.float64]

ORDER = 2
MISSED = ORDER + 2
"""First power of the truncation error; the series is even in gamma0."""

ALLOWED = 0.2
RATIO = 2.0**0.5
POINTS = 4
CORRECTION = 0.01
"""Size of the second-order term, relative to the leading one, at the largest gamma0 of the fit."""

ROUNDING = 1e-13

NOISY_STEPS = 10
"""Steps of descent in place of a flow with noise."""

SAMPLES, STEPS = 3, 4
"""Samples and steps of the smaller problem on which sampled coefficients are compared."""

SEED = 2

ZERO = 1e-5
"""gamma0 of the solution that is used for the lazy limit."""

LARGEST = 0.05
"""Size of the second-order term, relative to the leading one, at the largest gamma0."""

SHARES = (0.5, 0.75, 1.0)
"""Values of gamma0 of the sampled solutions, as shares of the largest one."""

AVERAGES = 1e-8
"""Largest error of the averages in the coefficients, relative to the largest entry."""

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
IN_STEPS = "the series of a flow is checked for experiment files only; a rule in steps would do"


def expansion(source: Problem | Experiment, effort: Effort = FULL) -> tuple[list[Check], str]:
    """Return checks of the series in gamma0, and a note for the report.

    There is at most one check for each of loss, errors, kernels and responses that the results hold.
    Theories that are linear in their fields are checked by :func:`fitted`, others by :func:`sampled`. If the
    series cannot be checked, the list is empty and the note states the reason.
    """
    problem = Problem.of(source)
    reason = _refusal(problem)
    if reason:
        return [], f"expansion: not checked; {reason}"
    try:
        if not problem.seen:
            raise SpecError(
                *problem.key_and_value("data.kind"), "has random samples, not given ones", '"fixed"'
            )
        if isinstance(problem.linear, LinearForm):
            return fitted(problem, effort)
        small = in_steps(problem, SAMPLES, STEPS)
        if small is None:
            return [], f"expansion: not checked; {IN_STEPS}"
        checks, note = sampled(small, effort)
        return checks, note.replace(" steps,", " steps of descent,", 1) if problem.flow else note
    except (SpecError, NotConverged, NotApplicable, Ambiguous) as error:
        return [], fill(f"expansion: not checked; {error}", 105)


def _refusal(problem: Problem) -> str:
    """Return the reason why a problem has no series in gamma0^2 that can be checked, or ""."""
    if slope_jumps(problem.program):
        return KINKS
    if gamma0 not in problem.numbers:
        return "the theory has no gamma0"
    if not problem.seen and not problem.has_roles:
        return "the program has no single output with its error"
    return ""


# -- exact solutions: the exponent of the truncation error -----------------------------------------------


def fitted(whole: Problem, effort: Effort = FULL) -> tuple[list[Check], str]:
    """Return checks of the exponents of gamma0 in the truncation error of a series, and a note on them.

    The theory is linear in its fields, so that it is solved without sampling, at several small gamma0. The
    note states the range of these values and, if samples are left out, the numbers of samples and times. The
    list is empty, with the reason as the note, if no result depends on gamma0, if the solutions need
    different time grids, and for a flow with noise that is not from an experiment file.
    """
    descent: Problem | None = None
    if whole.flow and is_noisy(whole.program.rule):
        # The march extrapolates a noisy flow to steps of length zero, so that its time grid is not that of
        # the series. Series and march are therefore compared for a problem with discrete steps in place of
        # the flow.
        descent = in_steps(whole, SMALL_SAMPLES, NOISY_STEPS)
        if descent is None:
            return [], f"expansion: not checked; {IN_STEPS}"
    for gentle in GENTLE:
        problem = with_solver(
            descent if descent else in_fixed_steps(with_small_kernels(whole, effort), gentle), "march"
        )
        series = expand(problem, ORDER)
        if ORDER not in series.order:
            return [], "expansion: not checked; no result depends on gamma0"
        strengths = strength_of(series, CORRECTION) * RATIO ** -np.arange(POINTS)
        solutions = [solve(at_gamma0(problem, float(strength))) for strength in strengths]
        if len({x.attrs.get("time_nodes") for x in (series, *solutions)}) == 1:
            break
    else:
        return [], "expansion: not checked; the solutions and the series need different time grids"
    note = (
        f"expansion: the exponent of gamma0 in the error of the series to gamma0^{ORDER} is fitted at "
        f"{POINTS} values of gamma0\nfrom {strengths[-1]:.2g} to {strengths[0]:.2g}"
    )
    if descent is not None:
        note += f"\n(in {len(descent.times) - 1} steps of descent)"
    elif problem.seen < whole.seen:
        note += f"\n(on {problem.seen} of the samples and {len(problem.times)} of the times)"
    return _exponents(series, np.asarray(strengths, dtype=np.float64), solutions), note


def _exponents(series: xr.Dataset, strengths: Array, solutions: Sequence[xr.Dataset]) -> list[Check]:
    """Return checks of the power of gamma0 with which the error of the series to gamma0^2 grows.

    It must be 4. There is at most one check for each variable, which shows the layer whose power differs most
    from 4. Layers in which the error is only rounding are left out. ``strengths`` are values of gamma0, and
    ``solutions`` the full solutions there.
    """
    remainders = _remainders(series, strengths, solutions)
    # A quantity such as B^L is zero in the series and in the solution. Its remainder is rounding error and
    # has no exponent.
    rounding = ROUNDING * max(float(np.abs(series[name]).max()) for name in SHOWN if name in series)
    checks = []
    for name, rows in remainders.items():
        of_layers = enumerate(np.transpose(rows), int("layer" in series[name].dims))
        kept = {k: np.log(v) for k, v in of_layers if v.max() > rounding}
        fits = {k: float(np.polyfit(np.log(strengths), v, 1)[0]) for k, v in kept.items()}
        if not fits:
            continue
        layer, worst = max(fits.items(), key=lambda item: abs(item[1] - MISSED))
        basis = f"fit; worst is l = {layer}" if layer and len(fits) > 1 else "fit"
        label = f"{shown(name, True)}: exponent of the truncation error"
        checks.append(Check("expansion", label, worst, MISSED, ALLOWED, basis))
    return checks


def _remainders(
    series: xr.Dataset, strengths: Array, solutions: Sequence[xr.Dataset]
) -> dict[str, list[Array]]:
    """Return, by variable, the largest differences between full solutions and the partial sum of the series.

    Each list has an array for each value of gamma0 in ``strengths``, at which ``solutions`` are the full
    solutions. Its shape is (layers,), or (1,) for a variable without layers.
    """
    remainders: dict[str, list[Array]] = {}
    for strength, full in zip(strengths, solutions, strict=True):
        difference = full - partial_sum(series, float(strength))
        for name in SHOWN:
            if name in full and name in series:
                largest = abs(difference[name]).max({*difference[name].dims} - {"layer"})
                remainders.setdefault(name, []).append(np.atleast_1d(largest.values))
    return remainders


def strength_of(series: xr.Dataset, share: float) -> float:
    """Return the gamma0 at which the term of order gamma0^2 of a series is ``share`` of the leading term.

    Both are taken as largest entries. The variable with the largest ratio decides, so that the ratio is
    not larger for any other.
    """
    sizes = []
    for name in SHOWN:
        if name in series:
            zeroth, second = (float(np.abs(series[name].sel(order=n)).max()) for n in (0, ORDER))
            if zeroth > 0:
                sizes.append(second / zeroth)
    return float(np.sqrt(share / max(sizes)))


def shown(name: str, linear: bool) -> str:
    """Return the symbol by which the table of checks calls a variable, such as ``loss`` or ``Phi^l``.

    Feature kernels are called H^l if ``linear`` is true.
    """
    phi = "H^l" if linear else "Phi^l"
    letters = {"train_loss": "loss", "error": ERROR, "tangent_kernel": "K", FEATURE_KERNEL: phi}
    return letters.get(name, f"{name}^l")


# -- sampled solutions: the coefficient of gamma0^2 ------------------------------------------------------


def sampled(small: Problem, effort: Effort = FULL) -> tuple[list[Check], str]:
    """Return checks of the coefficient of gamma0^2 in the series of a nonlinear network, and a note.

    The coefficient is compared with that measured in sampled solutions at several gamma0. ``small`` is the
    problem on which both are computed, trained in steps; it is not made smaller here.
    """
    series = expand(small, ORDER)
    strengths = [share * strength_of(series, LARGEST) for share in SHARES]
    paths, replicas = 2 * effort.paths, effort.replicas
    measured = differences(small, strengths, paths=paths, replicas=replicas)
    rows = compared(series, measured)
    checks = []
    for name, (z, limit, count, _) in rows.items():
        label = f"{shown(name, False)}: gamma0^2 coefficient, of {count}"
        checks.append(Check("expansion", label, z, 0, limit, "worst |z|, same paths", upper=True))
    reach = [x for *_, x in rows.values()]
    steps = f"{len(small.times) - 1} steps"
    note = (
        f"expansion: the coefficient of gamma0^2 on {small.seen} samples and {steps},\n"
        f"from {replicas} replicas of {paths} paths at gamma0 = {', '.join(f'{g:.2g}' for g in strengths)}.\n"
        f"A relative error of the coefficient of {min(reach):.1%} (most precise row) to {max(reach):.1%} "
        "(least precise) would fail."
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
    """Return the coefficient of gamma0^2 of result variables, from solutions at these ``strengths``.

    The variables are those of SHOWN that every solution holds. ``strengths`` are values of gamma0; their
    solutions by sampled paths, and one at ZERO, have the same random numbers. ``paths`` is the number of
    paths of each replica. For each variable ``_stderr`` is the standard error over replicas of its
    coefficient, and ``_missed`` a bound of the truncation error: the change of the polynomial in gamma0^2
    without the largest strength. A flow is integrated with its output times as time nodes.  Raises
    ValueError for fewer than two strengths, or strengths that are not increasing and above ZERO.

    >>> spec = {"network": {"depth": 1, "activation": "tanh"}, "training": {"learning_rate": 0.3, "steps": 2}}
    >>> experiment = Experiment.from_dict(spec, kernel=np.eye(1), targets=np.ones(1))
    >>> found = differences(experiment, (0.1, 0.2), paths=256, replicas=4)
    >>> found["Phi"].dims, float(found["Phi_missed"].max() < 0.05 * abs(found["Phi"]).max())
    (('layer', 'time', 'time_', 'sample', 'sample_'), 1.0)
    """
    problem, rising = Problem.of(source), [ZERO, *strengths]
    if len(strengths) < 2 or any(a >= b for a, b in zip(rising, strengths, strict=False)):
        raise ValueError(
            f"strengths = {tuple(strengths)}: must be at least two rising numbers above {ZERO:g}"
        )
    lazy, *solutions = [_runs(problem, g, paths, replicas, seed) for g in rising]
    variables: dict[str, Any] = {}
    for name, base in lazy.items():
        if not all(name in x for x in solutions):  # solutions leave out a response that is mostly noise
            continue
        moved = [x[name] - base for x in solutions]
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
    """Return how well measured coefficients of gamma0^2 agree with those of the series, by variable.

    ``series`` is the expansion, ``found`` the result of :func:`differences`. The values are the ``|z|``
    of the entry with the largest ratio of ``|z|`` to its limit, this limit, the number of entries with noise,
    and the tolerance. Compared are losses and errors halfway and at the end. Kernels and responses are
    compared between the end and each of three times: the start, the middle and the end, for all layers and
    samples. The limit is Sidak's with Student's t, plus the truncation error of the polynomial. The tolerance
    is the median allowed difference, relative to the largest entry of the coefficient, or 0 if no entry has
    noise.
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
        # Entries that are zero by causality or symmetry have the standard error zero. It is replaced here by
        # a small one, and these entries are left out of `count`.
        error = np.maximum(stderr[known], AVERAGES * size)
        count = int((stderr[known] > AVERAGES * size).sum())
        limits = bound(count, LEVEL, dof) + missed[known] / error
        worst = int(np.argmax(gap / error / limits))
        reach = float(np.median((limits * error)[stderr[known] > AVERAGES * size])) / size if count else 0.0
        rows[name] = float(gap[worst] / error[worst]), float(limits[worst]), count, reach
    return rows


# -- solutions ------------------------------------------------------------------------------------------


def _runs(problem: Problem, gamma0: float, paths: int, replicas: int, seed: int) -> dict[str, Array]:
    """Return the variables of SHOWN of a sampled solution at the given gamma0, replicas on the first axis.

    ``paths`` is the number of paths of each replica.
    """
    solved = solve_by_paths(at_gamma0(problem, gamma0), paths, replicas, seed)
    by_replica = [
        labelled(problem, {n: x[k] for n, x in solved.runs.items()}, "full") for k in range(replicas)
    ]
    return {name: np.stack([x[name] for x in by_replica]) for name in by_replica[0] if name in SHOWN}


def _slope(strengths: Sequence[float], moved: Sequence[Array]) -> Array:
    """Return the coefficient of gamma0^2 of the polynomial in gamma0^2 through given differences.

    ``moved`` are arrays value(gamma0) - value(0), one for each gamma0 in ``strengths``; the polynomial is
    zero at gamma0 = 0.
    """
    squares = np.asarray(strengths) ** 2
    weights = np.linalg.inv(np.stack([squares ** (k + 1) for k in range(len(squares))], axis=1))[0]
    return np.asarray(np.tensordot(weights, np.stack(moved), 1))
