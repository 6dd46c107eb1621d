"""Theory against networks of three widths, extrapolated to 1/N = 0, for any network.

On power-law data the theory may have a width and a batch of its own, for which it is an approximation: then
networks and theory are taken at once, twice and four times both, and it is their difference that must vanish.

What is compared is fixed beforehand, as for plain networks (:mod:`numerics.verify.networks`), and judged by
the same bound.  Of several numbers of one kind, such as the errors of all samples, the worst is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.stats import t as student

from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear
from numerics.simulate import simulate_steps
from numerics.simulate.steps import reference_size
from numerics.verify.networks import (
    FLOOR,
    LEVEL,
    Plan,
    compared_places,
    curvature_of,
    line_of,
    scores,
    slopes_of,
    trained,
)
from numerics.verify.report import Check
from numerics.verify.steps.own_width import at_its_width, scaled

Array = NDArray[np.float64]

BUDGET = 3e10
"""Work spent on networks, in units that take about a nanosecond on one core of a laptop."""

SMALLEST = (128, 64, 32, 16)
"""Neurons, features or samples, whichever are fewest, of the smaller networks, as far as can be afforded."""

FEWEST, MOST = 12, 400
"""Networks of one width."""

LARGEST_KERNEL = 1.2e8
"""Bytes of the kernels of one network, beyond which only those without samples are measured."""

PLAY = 0.25
"""By how much a size may be larger than asked for, so that all ratios come out as whole numbers."""

STRAIGHT = "straight in 1/N, worst of all"

SUBSTEPS = 24
"""Evaluations of a flow's velocity between two output times, a guess good enough for planning."""

MODES = 1000
"""Modes beyond which no networks are trained."""

EXACT = 1e-9
"""How well a number is to be met that is the same in every network."""


# -- how large, how many -------------------------------------------------------------------------------


def plan_of(experiment: Experiment) -> Plan:
    """Three widths, each twice the one before, with equal work at each."""
    own = experiment.network.width
    for smallest in SMALLEST if own is None else (own,):
        widths = widths_near(experiment, smallest)
        share = BUDGET / len(widths)
        if FEWEST * work(experiment, widths[-1]) <= share:
            break
    seeds = [int(np.clip(share / work(experiment, n), FEWEST, MOST)) for n in widths]
    return Plan(widths, tuple(seeds))


def widths_near(experiment: Experiment, smallest: int) -> tuple[int, ...]:
    """Widths of the widest layer, for about ``smallest`` units in the narrowest population of the smallest.

    Ratios are rounded to whole units, which moves the networks off the line in 1/N: the size is chosen, among
    those up to a quarter larger, at which they are rounded least.

    >>> from numerics.experiment import Experiment
    >>> spec = {"network": {"depth": 2, "width_ratio": [0.7, 1.3]}, "data": {"kind": "isotropic"}}
    >>> widths_near(Experiment.from_dict(spec), 64)
    (130, 260, 520)
    """
    if experiment.spec.kind == "power-law":
        return (smallest, 2 * smallest, 4 * smallest)
    ratios = ratios_of(experiment)
    low = int(np.ceil(smallest / min(1.0, *ratios)))
    widest = max(_layers(experiment))
    best: tuple[int, ...] = ()
    least = np.inf
    for n in range(low, int(low * (1 + PLAY)) + 1):
        widths = tuple(round(widest * n * k) for k in (1, 2, 4))
        sizes = [reference_size(experiment, w) for w in widths]
        missed = sum(abs(round(r * k) - r * k) / (r * k) for r in ratios for k in sizes)
        if missed < least - 1e-12:
            best, least = widths, missed
    return best


def ratios_of(experiment: Experiment) -> list[float]:
    """The sizes of layers, and of samples or batches of random data, over the size that all refer to."""
    data = experiment.data
    batch = [] if data is None else [x for x in (data.sample_ratio, data.batch_ratio) if x is not None]
    return _layers(experiment) + (batch if experiment.spec.kind == "isotropic" else [])


def _layers(experiment: Experiment) -> list[float]:
    network = experiment.network
    ratio = network.width_ratio if experiment.spec.kind == "isotropic" else network.relative_widths
    if isinstance(ratio, list):
        return ratio
    return [1.0 if ratio is None else ratio] * experiment.depth


def work(experiment: Experiment, width: int) -> float:
    """Of one network: its steps, and the correlations of its fields at all pairs of times."""
    size, depth, times = reference_size(experiment, width), experiment.depth, len(experiment.times)
    power_law = experiment.spec.kind == "power-law"
    layers = [r * (width if power_law else size) for r in _layers(experiment)]
    fixed = experiment.spec.kind == "fixed"
    samples = experiment.sample_count * experiment.network.outputs if fixed else experiment.network.outputs
    features = min(experiment.sample_count, size) if fixed else size
    entries = sum(a * b for a, b in zip([features, *layers], layers, strict=False))
    fresh = 12 * entries if experiment.training.temperature else 0.0
    if not fixed and experiment.data is not None:
        batch = size * size * sum(ratios_of(experiment)[depth:])
        if power_law:
            batch = size * float(experiment.data.batch or 0) * width / (experiment.network.width or width)
        entries += batch
        fresh += 11 * batch if experiment.data.batch_ratio or experiment.data.batch else 0.0
    each = 1.6e5 * depth + (5e4 * depth * samples if fixed else 0.0) + fresh
    entries_kept = _kernel_entries(experiment) if _whole(experiment) else 0.0
    pairs = 0.1 * sum(layers) * times**2 * (samples**2 if entries_kept or not fixed else 1)
    evaluations = times * (SUBSTEPS if experiment.training.rule == "flow" else 1)
    return 2e7 + evaluations * (each + entries * (3 + 0.3 * samples)) + pairs + 40 * entries_kept


def _whole(experiment: Experiment) -> bool:
    """Are kernels of all pairs of samples measured?"""
    return experiment.spec.kind == "fixed" and 8.0 * _kernel_entries(experiment) <= LARGEST_KERNEL


def _kernel_entries(experiment: Experiment) -> float:
    """Numbers in H (or Phi and G) of one network; where layers share their units, of all pairs of layers."""
    layers = experiment.depth ** (1 if experiment.network.branch is None else 2)
    kernels = 1 if is_linear(experiment.network.activation) else 1 + experiment.network.outputs**2
    return float(kernels * layers * (len(experiment.times) * experiment.sample_count) ** 2)


def train(
    experiment: Experiment, plan: Plan, progress: Callable[[int, int], None] | None = None
) -> list[xr.Dataset]:
    """The networks of a plan, a dataset a width.  Randomness: solver.seed.

    Networks on fixed samples are trained as they start: centring changes nothing at 1/N = 0.
    """
    if experiment.spec.kind == "fixed" and experiment.training.center:
        experiment = experiment.replace({"training.center": None})

    def one(width: int, seeds: int, rng: int, step: Callable[[int, int], None]) -> xr.Dataset:
        kernels: Literal["full", "none"] = "full" if _whole(experiment) else "none"
        return simulate_steps(
            scaled(experiment, width), width=width, seeds=seeds, rng=rng, kernels=kernels, progress=step
        )

    return trained(plan, experiment.solver.seed, one, progress)


# -- what is compared ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantity:
    """One variable ``at`` a place: a row of the table."""

    label: str
    name: str
    at: Mapping[str, int]
    scale: float = 1.0
    """What the value is divided by to be what the label says."""


def quantities(experiment: Experiment, theory: xr.Dataset, networks: Sequence[xr.Dataset]) -> list[Quantity]:
    """Losses on the way; correlations of every layer at the end, with themselves and with the start."""
    places, last = compared_places(theory), theory.sizes["time"] - 1
    losses = {"train_loss": "train loss", "test_loss": "test loss"}
    if experiment.data is not None and experiment.spec.kind != "fixed" and not experiment.data.sample_ratio:
        del losses["train_loss"]  # the same number as the test loss
    found = []
    for name, label in losses.items():
        if name in theory:
            found += [Quantity(f"{label} at t = {_time(theory, p)}", name, {"time": p}) for p in places]
    for p in places[-2:]:
        found.append(Quantity(f"Delta at t = {_time(theory, p)}", "error", {"time": p}))
        found.append(Quantity(f"f of test points at t = {_time(theory, p)}", "test_f", {"time": p}))
    end = last if experiment.spec.kind == "fixed" else places[-1]
    when = {"t,t": {"time": end, "time_": end}, "t,0": {"time": end, "time_": 0}}
    samples = len(experiment.targets) if experiment.spec.kind == "fixed" else 1
    linear = is_linear(experiment.network.activation)
    phi, late = ("H", ("C_h0", "Phi")) if linear else ("Phi", ("Phi", "G"))
    for name, shown, scale in (
        ("C_v", "C_v", 1.0),
        ("C_h0", "C_h0", 1.0),
        ("Phi_trace", f"mean {phi}^{{}}_mumu", float(samples)),
        ("Phi", f"{phi}^{{}}", 1.0),
        ("G_trace", "mean G^{}_mumu", float(samples)),
        ("G", "G^{}", 1.0),
        ("C_h", "C_h^{}", 1.0),
        ("C_g", "C_g^{}", 1.0),
    ):
        layers = theory.sizes["layer"] if "{}" in shown else 0
        for which in [{"layer": k} for k in range(layers)] or [{}]:
            letter = shown.format(*(k + 1 for k in which.values()))
            at = f"t = {_time(theory, end)}"
            pairs = {"t,t": when["t,t"]} if name in late else when
            found += [Quantity(f"{letter}({x}), {at}", name, {**which, **p}, scale) for x, p in pairs.items()]
    return [q for q in found if q.name in theory and q.name in networks[0]]


def against_networks(
    experiment: Experiment, theory: xr.Dataset, networks: Sequence[xr.Dataset]
) -> list[Check]:
    """One check per quantity, one for the straight line; all numbers are judged together by Sidak's bound."""
    theory = traced(theory)
    compared = quantities(experiment, theory, networks)
    count = sum(int(theory[q.name].isel(q.at).size) for q in compared)
    each = float(-np.expm1(np.log1p(-LEVEL) / count))
    checks = [_check(q, each, theory, networks) for q in compared]
    return [*checks, _straight(compared, each, theory, networks)]


def _check(q: Quantity, each: float, theory: xr.Dataset, networks: Sequence[xr.Dataset]) -> Check:
    z, stderr, dof = scores(theory, networks, q.name, q.at)
    expected, own = theory[q.name].isel(q.at).to_numpy(), q.scale
    slope = slopes_of(networks, q.name, q.at).to_numpy()
    remainder = curvature_of(networks) * slope**2 / size_of(theory, q)
    if np.ndim(expected) == 0 and stderr > 0:
        limit = float(student.isf(each / 2, dof) * stderr + remainder)
        return Check(
            "networks",
            q.label,
            float(expected + z * stderr) / own,
            float(expected) / own,
            limit / own,
            f"z {float(z):+.1f}, {float(slope) / own:+.2g}/N",
            error=float(stderr) / own,
        )
    moving = stderr > 0
    value = sum(w * d[q.name].isel(q.at).to_numpy() for w, d in _weighted(networks))
    missed = np.abs(value - expected)[~moving] > EXACT * (1 + np.abs(expected[~moving]))
    with np.errstate(divide="ignore", invalid="ignore"):
        limits = np.where(moving, student.isf(each / 2, dof) + remainder / stderr, np.inf)
        worst = int(np.argmax(np.where(moving, np.abs(z) / limits, 0.0)))
    observed = np.inf if missed.any() else float(np.where(moving, np.abs(z), 0.0).flat[worst])
    label = f"{q.label}, of {z.size}"
    limit = float(np.where(moving, limits, 0.0).flat[worst])
    return Check("networks", label, observed, 0, limit, "worst |z|", upper=True)


def _straight(
    compared: Sequence[Quantity], each: float, theory: xr.Dataset, networks: Sequence[xr.Dataset]
) -> Check:
    """Are three widths on a straight line in 1/N?  What they deviate from it, in its standard errors."""
    inverse = np.array([1.0 / float(d.attrs["width"]) for d in networks])
    left = np.linalg.svd(np.stack([np.ones(len(inverse)), inverse]))[2][2]  # what no line has
    worst, limit, place = 0.0, np.inf, ""
    for q in compared:
        value = sum(c * d[q.name].isel(q.at).to_numpy() for c, d in zip(left, networks, strict=True))
        parts = [
            c**2 * d[f"{q.name}_stderr"].isel(q.at).to_numpy() ** 2
            for c, d in zip(left, networks, strict=True)
        ]
        variance = np.sum(parts, axis=0)
        counts = [int(d.attrs["seeds"]) - 1 for d in networks]
        spread = np.sum([x**2 / n for x, n in zip(parts, counts, strict=True)], axis=0)
        slope = slopes_of(networks, q.name, q.at).to_numpy()
        remainder = abs(float(left @ inverse**2)) * slope**2 / size_of(theory, q)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.abs(value) / np.sqrt(variance)
            bound = student.isf(each / 2, variance**2 / spread) + remainder / np.sqrt(variance)
        share = np.where(variance > 0, z / bound, 0.0)
        at = int(np.argmax(share))
        if share.flat[at] > worst / limit:
            worst, limit, place = float(np.asarray(z).flat[at]), float(np.asarray(bound).flat[at]), q.label
    return Check("networks", STRAIGHT, worst, 0, limit, f"|z| of {place}", upper=True)


def size_of(theory: xr.Dataset, q: Quantity) -> float:
    """How large a quantity is: that of two times as large as those at each of them."""
    if "time_" not in q.at:
        return _rms(theory[q.name].isel(q.at))
    times = q.at["time"], q.at["time_"]
    own = [_rms(theory[q.name].isel({**q.at, "time": x, "time_": x})) for x in times]
    return float(np.sqrt(own[0] * own[1]))


def _rms(x: xr.DataArray) -> float:
    return float(np.sqrt(np.mean(x.to_numpy() ** 2))) or 1.0


def _weighted(networks: Sequence[xr.Dataset]) -> list[tuple[float, xr.Dataset]]:
    return [(float(w), d) for w, d in zip(line_of(networks).intercept, networks, strict=True)]


def traced(theory: xr.Dataset) -> xr.Dataset:
    """The theory with the traces of its kernels over samples and outputs.

    Their standard errors are at most the sums of those of the entries, and that is what they are taken to be:
    which fluctuate together is not known.
    """
    found = {}
    for name in ("Phi", "G"):
        for end in ("", "_stderr"):
            if name + end in theory and "sample" in theory[name].dims:
                found[f"{name}_trace{end}"] = _trace(theory[name + end])
    return theory.assign(found)


def _trace(kernel: xr.DataArray) -> xr.DataArray:
    own = [d for d in ("sample", "channel") if d in kernel.dims]
    ordered = kernel.transpose("layer", "time", "time_", *own, *(f"{d}_" for d in own)).to_numpy()
    n = int(np.prod([kernel.sizes[d] for d in own]))
    trace = np.einsum("ltsmm->lts", ordered.reshape(*ordered.shape[:3], n, n))
    return xr.DataArray(trace, dims=("layer", "time", "time_"))


def _time(theory: xr.Dataset, place: int) -> str:
    return f"{float(theory.time[place]):.4g}"


def describe(
    experiment: Experiment,
    plan: Plan,
    checks: Sequence[Check],
    theory: xr.Dataset,
    networks: Sequence[xr.Dataset] = (),
) -> str:
    """What the bounds mean, and what was not compared."""
    end = compared_places(theory)[-1]
    words = [
        f"networks: {plan} (the widest layer).",
        "observed: value and standard error at 1/N = 0 of value(N) = value + slope/N; then z and slope/N.",
        "allowed: a |z| that the worst of all numbers compared exceeds once in "
        f"{1 / LEVEL:.0f} times (Sidak, Student's t),",
        "plus the next term of the series in 1/N were it geometric.",
    ]
    reach = [c.allowed / abs(c.expected) for c in checks if c.error is not None and c.expected != 0]
    if reach:
        words[-1] += f" Errors seen: {min(reach):.1%} (best) to {max(reach):.1%} (worst)."
    if not all(c.passed for c in checks):
        words.append(
            "if the theory is right, the networks are too small. Near the edge of stability, where a few\n"
            "eigenvalues decide, they come to it more slowly than 1/N: try a smaller learning_rate."
        )
    rounded = 0.0 if experiment.spec.kind == "power-law" else _rounding(experiment, plan)
    if rounded > 1e-12:
        words.append(f"ratios of sizes are met to {rounded:.0e}.")
    if experiment.network.width is not None:
        words += at_its_width(theory, networks[0])
    if end < theory.sizes["time"] - 1:
        words.append(
            f"not compared: what is learned after t = {_time(theory, end)}, "
            f"where the theory's loss is below {FLOOR:g} of its start."
        )
    if experiment.spec.kind == "fixed":
        if not _whole(experiment):
            what = "H^l, which is" if is_linear(experiment.network.activation) else "Phi^l and G^l, which are"
            words.append(f"not compared: {what} too large for all pairs of samples and times.")
        if experiment.training.center:
            words.append("the networks are not centred, which changes nothing at 1/N = 0.")
    return "\n".join(words)


def _rounding(experiment: Experiment, plan: Plan) -> float:
    sizes = [reference_size(experiment, n) for n in plan.widths]
    return max(abs(round(r * k) / (r * k) - 1) for r in ratios_of(experiment) for k in sizes)
