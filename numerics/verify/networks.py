"""Theory against finite networks, extrapolated to infinite width.

Which numbers are compared is fixed beforehand: the loss at three times, the kernels of every layer at the end
(`numerics.simulate.series`), and every sample's error half-way and at the end. They are judged together: the
largest |z| among n of them may reach Sidak's bound, with Student's t for the number of networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    streams = np.random.SeedSequence(experiment.solver.seed).spawn(len(plan.widths))
    found, before = [], 0
    for width, seeds, stream in zip(plan.widths, plan.seeds, streams, strict=True):

        def step(done: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, plan.total)

        found.append(
            simulate(
                experiment,
                width=width,
                seeds=seeds,
                rng=int(stream.generate_state(1)[0]),
                kernels="trace",
                progress=step,
            )
        )
        before += seeds
    return found


def against_networks(theory: xr.Dataset, networks: Sequence[xr.Dataset]) -> list[Check]:
    """One check per preselected number, one for all samples' errors, one for the straight line in 1/N."""
    rows = compare(_traced(theory), networks).rows
    half, last = theory.sizes["time"] // 2, theory.sizes["time"] - 1
    samples = [_errors(theory, networks, place) for place in sorted({half, last})]
    tests = len(rows) + sum(len(z) for z, _ in samples)
    each = -np.expm1(np.log1p(-LEVEL) / tests)
    slopes = _slopes(networks)
    checks = []
    for row in rows:
        limit = float(student.isf(each / 2, row.dof))
        slope = slopes.sel(observable=row.name).to_numpy()[_place(theory, row.time)]
        checks.append(
            Check(
                "networks",
                f"{_readable(row.name)} at t = {row.time:.4g}",
                row.network,
                row.theory,
                limit * row.stderr,
                f"z {row.z:+.1f}, {slope:+.2g}/N",
                error=row.stderr,
            )
        )
    for place, (z, dof) in zip(sorted({half, last}), samples, strict=True):
        worst = int(np.argmax(np.abs(z)))
        checks.append(
            Check(
                "networks",
                f"Delta at t = {float(theory.time[place]):.4g}, worst of {len(z)} samples",
                float(abs(z[worst])),
                0,
                float(student.isf(each / 2, dof[worst])),
                f"|z|, sample {worst}",
                upper=True,
            )
        )
    return [*checks, *_straightness(networks)]


def describe(plan: Plan, checks: Sequence[Check]) -> str:
    """What the bounds on z mean, in two lines."""
    reach = [c.allowed / abs(c.expected) for c in checks if c.error is not None and c.expected != 0]
    return (
        f"networks: {plan}.\n"
        "observed: value and standard error at 1/N = 0 of value(N) = value + slope/N; then z and slope/N.\n"
        "allowed: a |z| that the worst of all numbers compared exceeds once in "
        f"{1 / LEVEL:.0f} times (Sidak, Student's t);\n"
        f"a number off by {min(reach, default=0.0):.1%} (the best known) to {max(reach, default=0.0):.1%} "
        "(the worst) would be seen."
    )


def _traced(theory: xr.Dataset) -> xr.Dataset:
    """The theory under the names that the networks use."""
    return theory.rename({k: v for k, v in {"tangent_kernel_trace": "tangent_trace"}.items() if k in theory})


def _errors(theory: xr.Dataset, networks: Sequence[xr.Dataset], place: int) -> tuple[Array, Array]:
    """z-score and degrees of freedom of every sample's error at one output time."""
    counts = np.array([int(d.attrs["seeds"]) for d in networks])
    weights = Line.through([int(d.attrs["width"]) for d in networks], counts.tolist()).intercept
    values = np.stack([d["error"].to_numpy()[place] for d in networks])
    parts = weights[:, None] ** 2 * np.stack([d["error_stderr"].to_numpy()[place] for d in networks]) ** 2
    variance = parts.sum(axis=0)
    dof = variance**2 / (parts**2 / (counts - 1)[:, None]).sum(axis=0)
    z = (weights @ values - theory["error"].to_numpy()[place]) / np.sqrt(variance)
    return z, dof


def _slopes(networks: Sequence[xr.Dataset]) -> xr.DataArray:
    """c in value(N) = value + c/N, for every summary curve: (observable, time)."""
    widths = [int(d.attrs["width"]) for d in networks]
    line = Line.through(widths, [int(d.attrs["seeds"]) for d in networks])
    means = xr.concat([d["series"].mean("network") for d in networks], dim="width")
    rise = (line.hat[0] - line.hat[-1]) / (1 / widths[0] - 1 / widths[-1])
    return (means * xr.DataArray(rise, dims="width")).sum("width")


def _straightness(networks: Sequence[xr.Dataset]) -> list[Check]:
    """With three widths or more: does a straight line in 1/N go through them, for every curve's end?"""
    if len(networks) < 3:
        return []
    line = Line.through([int(d.attrs["width"]) for d in networks], [int(d.attrs["seeds"]) for d in networks])
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
