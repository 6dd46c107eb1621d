"""The expansion in gamma0 against the full solution: what the truncated series misses falls as gamma0^4.

The experiment is solved again at a few small gamma0 in geometric progression, and the exponent is fitted for
every quantity and layer. It tells a wrong coefficient at once (the exponent becomes 2, or 0) and needs no
tolerance on the coefficient itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from numerics.expand import expand
from numerics.experiment import Experiment
from numerics.solve import solve
from numerics.verify.report import Check

Array = NDArray[np.float64]

ORDER = 2
MISSED = ORDER + 2
"""The series is even in gamma0, so the first power that is missing."""

ALLOWED = 0.2
RATIO = 2.0**0.5
POINTS = 4
CORRECTION = 0.01
"""Size of the second-order term, relative to the leading one, at the largest gamma0 of the fit."""

RESOLUTION = 0.25
"""Step of the flow's check in units of its fastest lazy relaxation time: well inside stability."""

MOST_TIMES = 61
LOOSEST = 0.9
ROUNDING = 1e-13

SHOWN = {
    "train_loss": "loss",
    "error": "Delta",
    "Phi": "H^l",
    "G": "G^l",
    "tangent_kernel": "K",
    "A": "A^l",
    "B": "B^l",
}


def partial_sum(series: xr.Dataset, gamma0: float, order: int = ORDER) -> xr.Dataset:
    """The series up to `order` at one gamma0: a dataset without the dimension `order`."""
    kept = series.sel(order=[n for n in series.order.values if n <= order])
    powers = xr.DataArray(gamma0 ** kept.order.values.astype(float), dims="order")
    return (kept * powers).sum("order", skipna=False)


def comparable(experiment: Experiment) -> Experiment:
    """The experiment as the series is checked on it: a flow at its opening, in steps of a fixed length.

    A discretised flow has its own exact theory and series. With the loosest tolerance both are evaluated on
    the same nodes, so what is left between them is the truncation alone, however coarse the nodes are.
    """
    if experiment.training.rule == "gd":
        return experiment
    fastest = experiment.effective_rate * float(np.linalg.eigvalsh(experiment.kernel)[-1])
    step = RESOLUTION / (fastest * (experiment.depth + 1)) if fastest > 0 else np.inf
    end = min(float(experiment.times[-1]), step * (MOST_TIMES - 1))
    points = max(2, int(np.ceil(end / step)) + 1)
    return experiment.replace(
        {
            "training.time": end,
            "training.points": points,
            "training.grid": "uniform",
            "solver.rtol": LOOSEST,
        }
    )


def expansion_checks(experiment: Experiment) -> tuple[list[Check], str]:
    """Fitted exponents of what the series of the experiment misses, and at which gamma0 they were fitted."""
    experiment = comparable(experiment)
    series = expand(experiment, ORDER)
    strengths = _strengths(series)
    missed: dict[tuple[str, int], list[float]] = {}
    for gamma0 in strengths:
        full = solve(experiment.replace({"network.gamma0": float(gamma0)}))
        rest = full - partial_sum(series, float(gamma0))
        for name in SHOWN:
            if name in full and name in series:
                for layer, difference in _layers(rest[name]):
                    missed.setdefault((name, layer), []).append(difference)
    # B^L, for one, is zero in both: what is left there is rounding and has no exponent
    rounding = ROUNDING * max(float(np.abs(series[name]).max()) for name in SHOWN if name in series)
    checks = []
    for name, shown in SHOWN.items():
        own = {layer: values for (kind, layer), values in missed.items() if kind == name}
        fits = {k: _exponent(strengths, np.array(v)) for k, v in own.items() if max(v) > rounding}
        if not fits:
            continue
        layer, worst = max(fits.items(), key=lambda item: abs(item[1] - MISSED))
        basis = f"fit; worst is l = {layer}" if layer and len(fits) > 1 else "fit"
        label = f"{shown}: power of gamma0 that is missed"
        checks.append(Check("expansion", label, worst, MISSED, ALLOWED, basis))
    note = (
        f"expansion: to gamma0^{ORDER}; the exponent is fitted at {POINTS} gamma0 from "
        f"{strengths[-1]:.2g} to {strengths[0]:.2g}"
    )
    return checks, note


def _strengths(series: xr.Dataset) -> Array:
    """At the largest gamma0 the second-order term of the most sensitive quantity is still small."""
    sizes = []
    for name in SHOWN:
        if name in series:
            zeroth, second = (float(np.abs(series[name].sel(order=n)).max()) for n in (0, ORDER))
            if zeroth > 0:
                sizes.append(second / zeroth)
    return np.asarray(np.sqrt(CORRECTION / max(sizes)) * RATIO ** -np.arange(POINTS))


def _layers(rest: xr.DataArray) -> Iterator[tuple[int, float]]:
    """The largest difference of each layer; layer 0 for what has none."""
    if "layer" not in rest.dims:
        yield 0, float(np.abs(rest).max())
        return
    for layer in rest.layer.values:
        yield int(layer), float(np.abs(rest.sel(layer=layer)).max())


def _exponent(strengths: Array, missed: Array) -> float:
    return float(np.polyfit(np.log(strengths), np.log(missed), 1)[0])
