"""Coverage of the 95 % interval of an average over sampled paths.

    python -m tests.numerics.solver.coverage            the table of docs/theory/nonlinear.md
    python -m tests.numerics.solver.coverage 20 abs     20 seeds a row, of one network

The true value is that of TRUTHS times 8 replicas of MANY paths, whose variance is less than a hundredth of
that of 4096 paths. Intervals are those of :func:`numerics.results.interval`. The coverage is the share of
entries (times, samples, layers; kernels at equal times) in their intervals, over all seeds. The table also
counts the results that call the errors of kernels unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from numerics.experiment import Experiment
from numerics.results import interval
from numerics.solver import solve

STEPS = {"learning_rate": 0.2, "steps": 5}
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tanh": ({"activation": "tanh"}, STEPS),
    "relu": ({"activation": "relu"}, STEPS),
    "abs": ({"activation": "abs"}, STEPS),
    "momentum": ({"activation": "tanh"}, STEPS | {"momentum": 0.5}),
    "rich": ({"activation": "tanh", "gamma0": 20.0}, {"learning_rate": 0.5, "steps": 25}),
    "flow": ({"activation": "tanh"}, {"rule": "flow", "time": 1.0, "points": 6}),
}
"""All have two layers and two samples; rich is asked at the times from FROM on."""
SAMPLES = (None, 64, 256, 1024, 4096)
"""Paths of a replica; None: as many as the default accuracy takes."""
SEEDS = 400

NAMES = ("train_loss", "error", "Phi", "G")
KERNELS = NAMES[2:]
MANY, TRUTHS = 16384, 32
FROM = 5


def solution(name: str, samples: int | None, seed: int) -> Any:
    """Return one result."""
    network, training = NETWORKS[name]
    solver = {"seed": seed, "method": "paths"} | ({} if samples is None else {"samples": samples})
    tables = {"network": {"depth": 2, **network}, "training": training, "solver": solver}
    return solve(
        Experiment.from_dict(tables, kernel=[[1.0, 0.3], [0.3, 1.0]], targets=[1.0, -1.0]), kernels="full"
    )


def truth(name: str, results: int = TRUTHS) -> Mapping[str, np.ndarray]:
    """Return the mean of results with many paths, from seeds that are not used otherwise."""
    runs = [solution(name, MANY, 10**6 + k) for k in range(results)]
    return {x: np.mean([r[x].values for r in runs], axis=0) for x in NAMES}


@dataclass(frozen=True)
class Coverage:
    """Coverage of the confidence intervals of each quantity.

    The fields are the share of entries in their intervals, its standard error over seeds, the share of
    results that call the errors of kernels unknown, and that of results that are not ok.
    """

    shares: Mapping[str, float]
    errors: Mapping[str, float]
    unknown: float
    poor: float


def coverage(name: str, samples: int | None, seeds: int, true: Mapping[str, np.ndarray]) -> Coverage:
    """Return the coverage over ``seeds`` results."""
    held: dict[str, list[float]] = {x: [] for x in NAMES}
    said = []
    for seed in range(seeds):
        found = solution(name, samples, seed)
        said.append(("unknown_errors" in found.attrs, found.attrs["status"] != "ok"))
        for x in NAMES:
            gap, error = np.abs(found[x].values - true[x]), interval(found, x)
            noisy = found[f"{x}_stderr"].values > 1e-12
            if x in KERNELS:
                at = np.arange(gap.shape[1])
                gap, error, noisy = (np.moveaxis(y[:, at, at], 1, 0) for y in (gap, error, noisy))
            if name == "rich":
                gap, error, noisy = (y[FROM:] for y in (gap, error, noisy))
            held[x].append(float(np.mean(gap[noisy] <= error[noisy])))
    unknown, poor = np.mean(said, axis=0)
    spread = {x: float(np.std(h, ddof=1) / np.sqrt(seeds)) for x, h in held.items()}
    return Coverage({x: float(np.mean(h)) for x, h in held.items()}, spread, float(unknown), float(poor))


def main() -> None:
    """Print the table."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    print("| network | paths | seeds | loss | error | $\\Phi$ | $G$ | not ok | kernels unknown |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in sys.argv[2:] or NETWORKS:
        true = truth(name)
        for samples in SAMPLES:
            found = coverage(name, samples, seeds, true)
            cells = " | ".join(f"{100 * found.shares[x]:.1f}({100 * found.errors[x]:.1f})" for x in NAMES)
            said = f"{100 * found.poor:.0f} | {100 * found.unknown:.0f}"
            print(f"| {name} | {samples or 'default'} | {seeds} | {cells} | {said} |", flush=True)


if __name__ == "__main__":
    main()
