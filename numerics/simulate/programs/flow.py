"""A network through continuous time: steps of the classical fourth-order Runge-Kutta method.

With noise a step has half of the exact decay and noise before and after it (Strang's splitting), which makes
averages right to second order in its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .leaves import Key, State
from .network import Network
from .weights import Training, relax

Array = NDArray[np.float64]
Motion = dict[tuple[str, Key], Any]

NODES = ((0.0, 1 / 6), (0.5, 1 / 3), (0.5, 1 / 3), (1.0, 1 / 6))
"""Where the stages of the method are taken, and the share of each."""


def advance(
    network: Network,
    moving: Sequence[Training],
    state: State,
    length: float,
    rng: np.random.Generator,
    kicks: int = 1,
) -> None:
    """The state after ``length``; its fields are those of the last stage and have to be computed anew.

    Noise before and after the step is that of ``kicks`` parts: with two, that of steps of half the length.
    """
    noisy = [x for x in moving if x.noisy(state)]
    for _ in range(kicks):
        relax(noisy, state, length / 2 / kicks, rng)
    start = _copy(state)
    total: Motion = {}
    slope: Motion = {}
    for node, share in NODES:
        _put(state, start, slope, node * length)
        network.compute(state)
        slope = _slope(network, moving, noisy, state)
        for key, x in slope.items():
            total[key] = total.get(key, 0.0) + share * x
    _put(state, start, total, length)
    for _ in range(kicks):
        relax(noisy, state, length / 2 / kicks, rng)


def _slope(network: Network, moving: Sequence[Training], noisy: Sequence[Training], state: State) -> Motion:
    found: Motion = {("field", k): x for k, x in network.slopes_at(state).items()}
    for x in moving:
        w, q = x.slope(state, decay=x not in noisy)
        found["weight", x.law.key] = w
        if q is not None:
            found["velocity", x.law.key] = q
    return found


def _parts(state: State) -> dict[str, dict[Key, Any]]:
    return {"weight": state.weights, "velocity": state.velocities, "field": state.fields}


def _copy(state: State) -> dict[str, dict[Key, Any]]:
    return {name: dict(part) for name, part in _parts(state).items()}


def _put(state: State, start: dict[str, dict[Key, Any]], slope: Motion, length: float) -> None:
    """The state ``length`` along a slope from where it started."""
    for (part, key), x in slope.items():
        _parts(state)[part][key] = start[part].get(key, 0.0) + length * x
