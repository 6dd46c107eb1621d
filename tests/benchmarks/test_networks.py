"""Networks trained from their programs beside descent written out for plain networks alone, in one run."""

from __future__ import annotations

import time

import numpy as np
import pytest

from numerics.experiment import Experiment
from numerics.simulation import simulate

TITLE = "Programs taken literally, against descent written out for plain networks"
SEEDS = 3


def written_out(x, y, *, depth, width, rate, steps, rng):
    """Return outputs of one linear network at gamma0 = 1, with fields and products written out by hand."""
    draw = np.random.default_rng(rng).standard_normal
    matrices, w, found = [draw((width, n)) for n in [x.shape[1]] + [width] * (depth - 1)], draw(width), []
    for _ in range(steps + 1):
        h, g = [x], [w]
        for W in matrices:
            h.append(h[-1] @ W.T / np.sqrt(W.shape[1]))
        for W in matrices[:0:-1]:
            g.insert(0, W.T @ g[0] / np.sqrt(width))
        found.append(h[-1] @ w / width)
        pulled = [rate * (y - found[-1]) @ below for below in h]
        for W, above, below in zip(matrices, g, pulled, strict=False):
            W += np.outer(above, below) / np.sqrt(W.shape[1])
        w = w + pulled[-1]
    return np.stack(found)


@pytest.mark.parametrize(
    ("samples", "depth", "width", "steps"), [(3, 2, 64, 60), (20, 3, 256, 60), (100, 3, 512, 20)]
)
def test_networks_against_descent_written_out(note, timed, samples, depth, width, steps):
    """The special one trains only, one network after the other; the general one measures kernels too."""
    if not timed:
        samples, width, steps = 2, 8, 3
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((samples, 2 * samples)), rng.choice([-1.0, 1.0], samples)
    training = {"learning_rate": 0.1, "steps": steps, "loss": "sum"}
    e = Experiment.from_dict(
        {"network": {"depth": depth}, "training": training}, inputs=x / samples, targets=y
    )
    simulate(e, width=8, seeds=2, rng=0, kernels="none")
    found = {}
    for kernels in ("none", "trace"):
        started = time.perf_counter()
        result = simulate(e, width=width, seeds=SEEDS, rng=0, kernels=kernels)
        found[kernels] = time.perf_counter() - started
    started = time.perf_counter()
    numbers = {"depth": depth, "width": width, "rate": 0.1, "steps": steps}
    runs = [written_out(e.inputs, y, **numbers, rng=k) for k in range(SEEDS)]
    special_s = time.perf_counter() - started
    loss = np.stack([((y - r) ** 2).mean(axis=1) for r in runs])
    spread = np.hypot(loss.std(axis=0, ddof=1) / SEEDS**0.5, result.train_loss_stderr)
    assert np.median(np.abs(loss.mean(axis=0) - result.train_loss) / spread) < 10
    note(
        TITLE,
        P=samples,
        L=depth,
        N=width,
        steps=steps,
        programs_s=found["none"],
        with_traces_s=found["trace"],
        written_out_s=special_s,
        ratio=round(found["none"] / special_s, 2),
    )
