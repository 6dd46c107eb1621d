"""Corrections of finite width of linear networks: processor time over times, samples and layers."""

from __future__ import annotations

import resource
import time

import numpy as np

from numerics.experiment import Experiment
from numerics.fluctuations import finite_width

TITLE = "Variances at order 1/N of the loss and all outputs at the last time, linear networks"
DENSE = "Variances and shifts at order 1/N of all kernels at all times, linear networks"


def experiment(depth: int, samples: int, steps: int, end: bool) -> Experiment:
    """Return an experiment on random inputs whose learning rate suits all sizes."""
    rng = np.random.default_rng(samples)
    x = rng.standard_normal((samples, samples + 2))
    training = {"learning_rate": 0.02, "steps": steps, "loss": "sum", **({"times": [steps]} if end else {})}
    tables = {"network": {"depth": depth}, "training": training}
    return Experiment.from_dict(tables, kernel=x @ x.T / (samples + 2), targets=rng.standard_normal(samples))


def test_variances_at_one_time(timed, note):
    """Below 2 s for T = 60, P = 1, and below three minutes and 4 GiB for T = 100, P = 5."""
    sizes = [
        (60, 1, 2),
        (120, 1, 2),
        (25, 5, 2),
        (50, 5, 2),
        (100, 5, 2),
        (50, 5, 1),
        (50, 5, 3),
        (50, 10, 2),
    ]
    seconds = {}
    for T, P, L in sizes if timed else [(4, 1, 2), (4, 2, 2)]:
        start = time.process_time()
        finite_width(experiment(L, P, T, end=True), kernels="none")
        seconds[T, P, L] = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        note(TITLE, P=P, T=T, L=L, seconds=seconds[T, P, L], GiB_peak_so_far=peak)
    if timed:
        assert seconds[60, 1, 2] < 2
        assert seconds[100, 5, 2] < 180
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 * 2**20


def test_everything_by_matrices(timed, note):
    """Up to some 5000 order parameters."""
    for T, P in [(12, 1), (25, 1), (35, 1), (18, 2), (8, 5)] if timed else [(3, 1)]:
        start = time.process_time()
        found = finite_width(experiment(2, P, T, end=False), kernels="full")
        note(DENSE, P=P, T=T, L=2, method=found.width_method, seconds=time.process_time() - start)
