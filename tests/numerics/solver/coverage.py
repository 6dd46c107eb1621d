"""How often the 95 % interval of an average over sampled paths holds the true value.

    python -m tests.numerics.solver.coverage            the table of docs/theory/nonlinear.md, 100 seeds a row
    python -m tests.numerics.solver.coverage 20 abs     20 seeds a row, of one network

The true value is that of 2 times 8 replicas of many paths.  Intervals are Student's t times the standard
error, without the bias that the command line adds to those of losses: the share of entries (times, samples,
layers) that they hold, over all seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import t as student

from numerics.experiment import Experiment
from numerics.solver import solve

STEPS = {"learning_rate": 0.2, "steps": 5}
NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tanh": ({"activation": "tanh"}, STEPS),
    "relu": ({"activation": "relu"}, STEPS),
    "abs": ({"activation": "abs"}, STEPS),
    "momentum": ({"activation": "tanh"}, STEPS | {"momentum": 0.5}),
    "flow": ({"activation": "tanh"}, {"rule": "flow", "time": 1.0, "points": 6}),
}
SAMPLES = (64, 256, 1024, None)
"""Paths of a replica; None: as many as the default accuracy takes."""

NAMES = ("train_loss", "error", "Phi", "G")
MANY, FEW = 16384, 4096


def solution(name: str, samples: int | None, seed: int) -> Any:
    """One result."""
    network, training = NETWORKS[name]
    solver = {"seed": seed, "method": "paths"} | ({} if samples is None else {"samples": samples})
    tables = {"network": {"depth": 2, **network}, "training": training, "solver": solver}
    return solve(
        Experiment.from_dict(tables, kernel=[[1.0, 0.3], [0.3, 1.0]], targets=[1.0, -1.0]), kernels="full"
    )


def truth(name: str) -> Mapping[str, np.ndarray]:
    """The mean of two results with many paths, from seeds that are not used otherwise."""
    runs = [solution(name, FEW if name == "flow" else MANY, 10**6 + k) for k in range(2)]
    return {x: np.mean([r[x].values for r in runs], axis=0) for x in NAMES}


def coverage(name: str, samples: int | None, seeds: int, true: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The share of each quantity's entries in their intervals, over ``seeds``; kernels at equal times."""
    held: dict[str, list[float]] = {x: [] for x in NAMES}
    for seed in range(seeds):
        found = solution(name, samples, seed)
        wide = student.ppf(0.975, found.attrs["replicas"] - 1)
        for x in NAMES:
            gap, error = found[x].values - true[x], found[f"{x}_stderr"].values
            if x in ("Phi", "G"):
                at = np.arange(gap.shape[1])
                gap, error = gap[:, at, at], error[:, at, at]
            known = error > 1e-12
            held[x].append(float(np.mean(np.abs(gap[known]) <= wide * error[known])))
    return {x: float(np.mean(h)) for x, h in held.items()}


def main() -> None:
    """Prints the table."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print("| network | paths | loss | error | $\\Phi$ | $G$ |\n| --- | --- | --- | --- | --- | --- |")
    for name in sys.argv[2:] or NETWORKS:
        true = truth(name)
        for samples in SAMPLES:
            shares = coverage(name, samples, seeds, true)
            cells = " | ".join(f"{100 * shares[x]:.1f}" for x in NAMES)
            print(f"| {name} | {samples or 'default'} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
