"""Sampled paths on a graphics card, beside the same paths on the processor of the same machine.

    python -m pytest tests/benchmarks/test_devices.py --benchmark-enable

Both compute the same numbers up to rounding; the largest difference shows whether the card is correct.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from numerics.arrays import CPU, Device, torch_device
from numerics.solver.paths import Solved
from tests.benchmarks.nonlinear import NAMES, particles

SIZES = [  # P, T, L, paths, replicas
    (5, 30, 3, 500, 8),
    (5, 30, 3, 500, 128),
    (5, 30, 3, 8000, 8),
    (10, 100, 3, 1000, 8),
    (10, 100, 3, 8000, 8),
    (20, 100, 3, 2000, 8),
    (20, 200, 3, 2000, 4),
]
"""The problem of the comparison with algorithm 1, more replicas and more paths of it, and larger ones."""


@pytest.fixture
def graphics_card() -> tuple[Device, str]:
    """Return a graphics card and its name."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no graphics card")
    return torch_device("cuda"), torch.cuda.get_device_name()


def _timed(size: tuple[int, ...], **options: Any) -> tuple[float, Solved]:
    p, t, depth, samples, replicas = size
    started = time.perf_counter()
    found = particles((p, t, depth), samples=samples, replicas=replicas, **options)  # ends in NumPy's memory
    return time.perf_counter() - started, found


def test_sampled_paths(timed, note, graphics_card):
    """Numbers of the graphics card equal those of the processor up to rounding; times of both."""
    device, name = graphics_card
    for size in SIZES if timed else SIZES[:1]:
        if size[3] < 1000:
            _timed(size, device=device)  # what is compiled and reserved for the first time
        (card, one), (processor, other) = (_timed(size, device=d) for d in (device, CPU))
        note(
            f"Sampled paths, {name}",
            **dict(zip(("P", "T", "L", "paths", "replicas"), size, strict=True)),
            seconds_on_the_card=card,
            seconds_on_the_processor=processor,
            ratio=processor / card,
            largest_difference=max(_apart(one, other, n) for n in NAMES),
        )
        assert all(_apart(one, other, n) < 1e-4 for n in NAMES)


def _apart(one: Solved, other: Solved, name: str) -> float:
    """Return the largest difference of an order parameter, relative to its largest entry.

    Sources are drawn given their past, which divides by variances down to 1e-7 of their own. Rounding grows
    by the same factor, most of all in responses.
    """
    pairs = [(one.values[n], other.values[n]) for n in one.values if n[0] == name]
    return max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in pairs)
