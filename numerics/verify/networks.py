"""Theory against finite networks, extrapolated to infinite width.

Which numbers are compared is fixed beforehand: the kernels of every layer at the end
(`numerics.simulate.series`), and the loss and every sample's error while the theory's loss is above FLOOR of
its start. What is left later is a product of many factors that differ from network to network; it can spread
over decades, and then a mean with a standard error says little. The report says what was left out.

They are judged together: the largest |z| among n of them may reach Sidak's bound, with Student's t for the
number of networks. To this is added what the straight line in 1/N leaves out, as large as if the series were
geometric: value + c/N + c^2/(value N^2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.stats import chi2 as chi_squared
from scipy.stats import t as student

from numerics.experiment import Experiment
from numerics.simulate import compare, simulate
from numerics.simulate.extrapolate import Line
from numerics.verify.report import Check

Array = NDArray[np.float64]

LEVEL = 1e-3
"""How often a right theory would fail the comparison with networks."""

FLOOR = 1e-3
"""Down to which fraction of its start the loss is compared."""

BUDGET = 1.9e12
"""Floating-point operations spent on networks: well under a minute on one core of a laptop."""

SUBSTEPS = 24
"""Evaluations of a flow's velocity between two output times, a guess good enough for planning."""

WIDTHS = (256, 512, 1024)
FEWEST, MOST = 12, 128


@dataclass(frozen=True)
class Plan:
    """Widths and, for each, how many networks."""

    widths: tuple[int, ...]
    seeds: tuple[int, ...]

    @staticmethod
    def of(experiment: Experiment) -> Plan:
        """Equal work at each of three widths, the widest halved until FEWEST of it can be afforded."""
        widths: tuple[int, ...] = WIDTHS
        while _cost(experiment, widths[-1]) * FEWEST > BUDGET / len(widths) and widths[0] > 32:
            widths = tuple(n // 2 for n in widths)
        share = BUDGET / len(widths)
        seeds = [int(np.clip(share / _cost(experiment, n), FEWEST, MOST)) for n in widths]
        return Plan(widths, tuple(seeds))

    @property
    def total(self) -> int:
        """The number of networks."""
        return sum(self.seeds)

    def __str__(self) -> str:
        return ", ".join(f"{k} of width {n}" for n, k in zip(self.widths, self.seeds, strict=True))


def _cost(experiment: Experiment, width: int) -> float:
    """Floating-point operations of one network: forward, backward, update, and its kernels' sample traces."""
    times, samples, layers = len(experiment.times), len(experiment.targets), experiment.depth
    evaluations = times * (SUBSTEPS if experiment.training.rule == "flow" else 1)
    training = evaluations * layers * width**2 * (4.0 * samples + 10.0)
    return training + 2.0 * layers * times**2 * samples * width


def train(
    experiment: Experiment, plan: Plan, progress: Callable[[int, int], None] | None = None
) -> list[xr.Dataset]:
    """The networks of a plan, a dataset a width; kernels as traces over samples. Randomness: solver.seed."""

    def one(width: int, seeds: int, rng: int, step: Callable[[int, int], None]) -> xr.Dataset:
        return simulate(experiment, width=width, seeds=seeds, rng=rng, kernels="trace", progress=step)

    return trained(plan, experiment.solver.seed, one, progress)


def trained(
    plan: Plan,
    seed: int,
    one: Callable[[int, int, int, Callable[[int, int], None]], xr.Dataset],
    progress: Callable[[int, int], None] | None,
) -> list[xr.Dataset]:
    """``one(width, seeds, rng, progress)`` at each width of a plan, their randomness independent."""
    streams = np.random.SeedSequence(seed).spawn(len(plan.widths))
    found, before = [], 0
    for width, seeds, stream in zip(plan.widths, plan.seeds, streams, strict=True):

        def step(done: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, plan.total)

        found.append(one(width, seeds, int(stream.generate_state(1)[0]), step))
        before += seeds
    return found


def against_networks(theory: xr.Dataset, networks: Sequence[xr.Dataset]) -> list[Check]:
    """One check per preselected number, one for all samples' errors, one for the straight line in 1/N."""
    places = compared_places(theory)
    last = theory.sizes["time"] - 1
    rows = compare(_traced(theory), networks, at=[place / last for place in places]).rows
    samples = [scores(theory, networks, "error", {"time": place}) for place in places[-2:]]
    tests = len(rows) + sum(len(z) for z, *_ in samples)
    each = -np.expm1(np.log1p(-LEVEL) / tests)
    slopes = slopes_of(networks, "series")
    curvature = curvature_of(networks)
    checks = []
    for row in rows:
        slope = float(slopes.sel(observable=row.name)[_place(theory, row.time)])
        remainder = curvature * slope**2 / abs(row.theory) if row.theory else 0.0
        limit = float(student.isf(each / 2, row.dof)) * row.stderr + remainder
        checks.append(
            Check(
                "networks",
                f"{_readable(row.name)} at t = {row.time:.4g}",
                row.network,
                row.theory,
                limit,
                f"z {row.z:+.1f}, {slope:+.2g}/N",
                error=row.stderr,
            )
        )
    for place, (z, stderr, dof) in zip(places[-2:], samples, strict=True):
        scale = float(np.sqrt(np.mean(theory["error"].to_numpy()[place] ** 2)))
        slope_squared = slopes_of(networks, "error").to_numpy()[place] ** 2
        limits = student.isf(each / 2, dof) + curvature * slope_squared / (scale * stderr)
        worst = int(np.argmax(np.abs(z) / limits))
        checks.append(
            Check(
                "networks",
                f"Delta at t = {float(theory.time[place]):.4g}, worst of {len(z)} samples",
                float(abs(z[worst])),
                0,
                float(limits[worst]),
                f"|z|, sample {worst}",
                upper=True,
            )
        )
    return [*checks, *_straightness(networks)]


def describe(plan: Plan, checks: Sequence[Check], theory: xr.Dataset) -> str:
    """What the bounds mean, and what was not compared."""
    end, last = compared_places(theory)[-1], theory.sizes["time"] - 1
    cut = (
        ""
        if end == last
        else (
            f"\nnot compared: loss and Delta after t = {float(theory.time[end]):.4g}, "
            f"where the theory's loss is below {FLOOR:g} of its start."
        )
    )
    reach = [c.allowed / abs(c.expected) for c in checks if c.error is not None and c.expected != 0]
    best, worst = min(reach, default=0.0), max(reach, default=0.0)
    seen = f"{best:.1%} (best) to {worst:.1%} (worst)" if worst < 1 else f"{best:.1%} at best"
    return (
        f"networks: {plan}.\n"
        "observed: value and standard error at 1/N = 0 of value(N) = value + slope/N; then z and slope/N.\n"
        "allowed: a |z| that the worst of all numbers compared exceeds once in "
        f"{1 / LEVEL:.0f} times (Sidak, Student's t),\n"
        f"plus the next term of the series in 1/N were it geometric. Errors seen: {seen}."
        f"{cut}"
    )


def compared_places(theory: xr.Dataset) -> list[int]:
    """A quarter, half and all of the way to where the theory's loss is last above FLOOR of its start."""
    loss = theory["train_loss"].to_numpy()
    low = np.flatnonzero(loss < FLOOR * loss[0])
    end = max(1, int(low[0]) - 1 if len(low) else len(loss) - 1)
    return sorted({max(1, round(share * end)) for share in (0.25, 0.5, 1.0)})


def _traced(theory: xr.Dataset) -> xr.Dataset:
    """The theory under the names that the networks use."""
    return theory.rename({k: v for k, v in {"tangent_kernel_trace": "tangent_trace"}.items() if k in theory})


def scores(
    theory: xr.Dataset, networks: Sequence[xr.Dataset], name: str, at: Mapping[str, Any]
) -> tuple[Array, Array, Array]:
    """z-score, standard error and degrees of freedom (Welch) of all entries of a variable `at` a place.

    A theory that has a standard error itself, from as many `replicas` as its attribute says, adds to that of
    the networks.
    """
    counts = [int(d.attrs["seeds"]) for d in networks]
    value, variance, spread = (np.zeros(()) for _ in range(3))
    for weight, count, d in zip(line_of(networks).intercept, counts, networks, strict=True):
        part = weight**2 * d[f"{name}_stderr"].isel(at).to_numpy() ** 2
        value = value + weight * d[name].isel(at).to_numpy()
        variance = variance + part
        spread = spread + part**2 / (count - 1)
    if f"{name}_stderr" in theory:
        part = theory[f"{name}_stderr"].isel(at).to_numpy() ** 2
        variance, spread = variance + part, spread + part**2 / (int(theory.attrs["replicas"]) - 1)
    stderr = np.sqrt(variance)
    difference = value - theory[name].isel(at).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        return difference / stderr, stderr, np.asarray(variance**2 / spread)


def curvature_of(networks: Sequence[xr.Dataset]) -> float:
    """What a term 1/N^2 adds to the value extrapolated to 1/N = 0, but for its sign."""
    return abs(float(line_of(networks).intercept @ np.array([1.0 / n**2 for n in widths_of(networks)])))


def slopes_of(networks: Sequence[xr.Dataset], name: str, at: Mapping[str, Any] | None = None) -> xr.DataArray:
    """c in value(N) = value + c/N, entry by entry, for the mean over networks of a variable `at` a place."""
    widths, line = widths_of(networks), line_of(networks)
    found = [d[name].isel(at or {}) for d in networks]
    means = [x.mean("network") if "network" in x.dims else x for x in found]
    rise = (line.hat[0] - line.hat[-1]) / (1 / widths[0] - 1 / widths[-1])
    return (xr.concat(means, dim="width") * xr.DataArray(rise, dims="width")).sum("width")


def widths_of(networks: Sequence[xr.Dataset]) -> list[int]:
    """Of each dataset, the width of its networks."""
    return [int(d.attrs["width"]) for d in networks]


def line_of(networks: Sequence[xr.Dataset]) -> Line:
    """The straight line in 1/N through all widths."""
    return Line.through(widths_of(networks), [int(d.attrs["seeds"]) for d in networks])


def _straightness(networks: Sequence[xr.Dataset]) -> list[Check]:
    """With three widths or more: does a straight line in 1/N go through them, for every curve's end?"""
    if len(networks) < 3:
        return []
    line = line_of(networks)
    draws = [d["series"].isel(time=-1).to_numpy() for d in networks]  # (network, observable)
    mean = np.stack([x.mean(axis=0) for x in draws])
    covariance = [np.atleast_1d(x.var(axis=0, ddof=1)) / len(x) for x in draws]
    residual = np.eye(len(draws)) - line.hat
    # the weights are not those of the measured spread, so the residuals' own variance is propagated
    left = np.linalg.svd(residual)[0][:, : len(draws) - 2]
    contrast = left.T @ residual
    chi2 = np.array(
        [
            _quadratic(contrast @ mean[:, k], contrast @ np.diag([v[k] for v in covariance]) @ contrast.T)
            for k in range(mean.shape[1])
        ]
    )
    dof, tests = len(draws) - 2, mean.shape[1]
    limit = float(chi_squared.isf(-np.expm1(np.log1p(-LEVEL) / tests), dof))
    name = f"straight in 1/N, worst of {tests} curves"
    basis = f"chi^2, {dof} dof"
    return [Check("networks", name, float(chi2.max()), 0, limit, basis, upper=True)]


def _quadratic(x: Array, covariance: Array) -> float:
    return float(x @ np.linalg.pinv(covariance) @ x)


def _place(theory: xr.Dataset, time: float) -> int:
    return int(np.argmin(np.abs(theory["time"].to_numpy() - time)))


READABLE = {"train_loss": "loss", "tangent_kernel": "mean K_mumu(t,t)"}


def _readable(name: str) -> str:
    """`Phi0[2]` as the papers write it."""
    kind, _, layer = name.rstrip("]").partition("[")
    shown = {
        "Phi": f"mean H^{layer}_mumu(t,t)",
        "Phi0": f"mean H^{layer}_mumu(t,0)",
        "G": f"G^{layer}(t,t)",
        "G0": f"G^{layer}(t,0)",
    }
    return READABLE.get(name) or shown.get(kind, name)
