"""The expansion of a nonlinear theory against the full one, of which paths give an average with an error.

Noise hides a fitted exponent.  So the coefficient of gamma0^2 itself is read off solutions at a few small
gamma0 and at almost none, all from the same random numbers: what does not depend on gamma0 drops out of the
differences, a polynomial in gamma0^2 goes through them, and the replicas show what is left of the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.stats import t as student

from derive.calculus.jumps import Ambiguous
from derive.errors import NotApplicable
from numerics.errors import NotConverged, SpecError
from numerics.expand import expand
from numerics.experiment import Experiment
from numerics.experiment.activation import slope_jumps
from numerics.experiment.numbers import numbers_of, theory_at_depth
from numerics.results import STDERR
from numerics.solve.paths import solve_particles
from numerics.verify.networks import LEVEL
from numerics.verify.report import Check
from numerics.verify.steps.flows import descent
from numerics.verify.steps.identities import arrays, opening

Array = NDArray[np.float64]

ORDER = 2
SAMPLES, STEPS = 3, 4
"""The opening on which the coefficients are compared."""

PATHS, REPLICAS, SEED = 2048, 16, 2

ZERO = 1e-5
"""gamma0 of the solution that is taken for the lazy one."""

LARGEST = 0.05
"""Size of the second-order term, relative to the leading one, at the largest gamma0."""

SHARES = (0.5, 0.75, 1.0)
"""The strengths as shares of the largest."""

AVERAGES = 1e-8
"""How far the averages in the coefficients may be off, relative to the largest entry."""

RESOLUTION = 0.5
"""Steps of descent in place of a flow, in units of its fastest lazy relaxation time."""

SHOWN = {
    "train_loss": "loss",
    "error": "Delta",
    "Phi": "Phi^l",
    "G": "G^l",
    "tangent_kernel": "K",
    "A": "A^l",
    "B": "B^l",
}
MISSED = "_missed"

KINKS = "where a slope jumps, units that cross the kink add odd powers of the size of gamma0"


def differences(
    experiment: Experiment,
    strengths: Sequence[float],
    *,
    paths: int = PATHS,
    replicas: int = REPLICAS,
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
    rising = [ZERO, *strengths]
    if len(strengths) < 2 or any(a >= b for a, b in zip(rising, strengths, strict=False)):
        raise ValueError(f"strengths = {tuple(strengths)}: at least two, rising, above {ZERO:g}")
    lazy, *found = [_runs(experiment, g, paths, replicas, seed) for g in rising]
    variables: dict[str, Any] = {}
    for name, base in lazy.items():
        moved = [x[name] - base for x in found]
        value = _slope(strengths, moved)
        mean = value.mean(axis=0)
        missed = np.abs(mean - _slope(strengths[:-1], moved[:-1]).mean(axis=0))
        dims = _dimensions(name, mean.ndim)
        variables[name] = dims, mean
        variables[name + STDERR] = dims, value.std(axis=0, ddof=1) / np.sqrt(replicas)
        variables[name + MISSED] = dims, missed
    return xr.Dataset(variables, attrs={"replicas": replicas, "strengths": list(strengths)})


def compared(
    series: xr.Dataset, found: xr.Dataset, names: Sequence[str] = tuple(SHOWN)
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
        value, stderr, missed = (found[name + x].isel(at).to_numpy() for x in ("", STDERR, MISSED))
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
        limits = student.isf(-np.expm1(np.log1p(-LEVEL) / max(count, 1)) / 2, dof) + missed[known] / error
        worst = int(np.argmax(gap / error / limits))
        reach = float(np.median((limits * error)[stderr[known] > AVERAGES * size])) / size if count else 0.0
        rows[name] = float(gap[worst] / error[worst]), float(limits[worst]), count, reach
    return rows


def nonlinear_expansion_checks(experiment: Experiment) -> tuple[list[Check], str]:
    """A row for each quantity: the coefficient of gamma0^2 on an opening of the experiment, and a note.

    Where there is no series the note says why: kinks, whose expansion has odd powers of the size of gamma0,
    and what `dmft expand` does not serve.
    """
    small = _opening(experiment)
    if slope_jumps(experiment.network.activation):
        return [], f"expansion: not checked; {KINKS}"
    try:
        series = expand(small, ORDER)
    except (SpecError, NotConverged, NotApplicable, Ambiguous) as reason:
        return [], f"expansion: not checked; {reason}"
    strengths = strengths_of(series)
    found = differences(small, strengths, paths=PATHS, replicas=REPLICAS)
    rows = compared(series, found)
    checks = []
    for name, (z, limit, count, _) in rows.items():
        label = f"{SHOWN[name]}: gamma0^2, worst of {count}"
        checks.append(Check("expansion", label, z, 0, limit, "|z|, same paths", upper=True))
    reach = [x for *_, x in rows.values()]
    steps = f"{len(small.times) - 1} steps" + (" of descent" if experiment.training.rule == "flow" else "")
    note = (
        f"expansion: gamma0^2 on {len(small.targets)} samples and {steps},\n"
        f"from {REPLICAS} times {PATHS} paths at gamma0 = {', '.join(f'{g:.2g}' for g in strengths)}. "
        f"Errors seen: {min(reach):.1%} (best) to {max(reach):.1%} (worst)."
    )
    return checks, note


def _opening(experiment: Experiment) -> Experiment:
    """A few samples and steps; of a flow, descent in steps that resolve its fastest relaxation.

    A discretised flow is a program like descent, with another memory of the same updates.
    """
    if experiment.training.rule != "flow":
        return opening(experiment, SAMPLES, STEPS)
    small = opening(experiment, SAMPLES, 1)
    fastest = small.effective_rate * float(np.linalg.eigvalsh(small.kernel)[-1]) * (small.depth + 1)
    end = min(float(experiment.times[-1]), STEPS * RESOLUTION / fastest if fastest > 0 else np.inf)
    return descent(small, end, STEPS)


def strengths_of(series: xr.Dataset) -> tuple[float, ...]:
    """Strengths at the largest of which the second-order term is small for all that does not vanish."""
    sizes = []
    for name in SHOWN:
        if name in series:
            zeroth, second = (float(np.abs(series[name].sel(order=n)).max()) for n in (0, ORDER))
            if zeroth > 0:
                sizes.append(second / zeroth)
    largest = float(np.sqrt(LARGEST / max(sizes)))
    return tuple(share * largest for share in SHARES)


# -- solutions ------------------------------------------------------------------------------------------


def _runs(experiment: Experiment, gamma0: float, paths: int, replicas: int, seed: int) -> dict[str, Array]:
    """Every variable of every replica."""
    here = experiment.replace({"network.gamma0": float(gamma0)})
    theory = theory_at_depth(here)
    solved = solve_particles(
        theory,
        steps=len(here.times),
        values={str(k): int(v) if float(v).is_integer() else v for k, v in numbers_of(here).items()},
        data=arrays(here),
        samples=paths,
        replicas=replicas,
        seed=seed,
    )
    error = solved.runs["Delta", ()]
    found = {"error": error, "train_loss": (error**2).mean(axis=2)}
    for q in theory.observables:
        found["tangent_kernel"] = np.moveaxis(solved.runs[q.name, ()], (-2, -1), (1, 2))
    for name in ("Phi", "G", "A", "B"):
        layers = {k[0]: np.moveaxis(x, (-2, -1), (1, 2)) for (n, k), x in solved.runs.items() if n == name}
        if layers:
            nothing = np.full_like(next(iter(layers.values())), np.nan)
            found[name] = np.stack([layers.get(k, nothing) for k in range(1, experiment.depth + 1)], axis=1)
    return found


def _slope(strengths: Sequence[float], moved: Sequence[Array]) -> Array:
    """The first coefficient of the polynomial in gamma0^2, zero at zero, through all points."""
    squares = np.asarray(strengths) ** 2
    weights = np.linalg.inv(np.stack([squares ** (k + 1) for k in range(len(squares))], axis=1))[0]
    return np.asarray(np.tensordot(weights, np.stack(moved), 1))


def _dimensions(name: str, count: int) -> tuple[str, ...]:
    if name in ("error", "train_loss"):
        return ("time", "sample")[:count]
    return ("layer", "time", "time_", "sample", "sample_")[-count:]


__all__ = ["compared", "differences", "nonlinear_expansion_checks"]
