"""Networks through continuous time: steps of the classical fourth-order Runge-Kutta method.

With noise a step has half of the exact decay and noise before and after it (Strang's splitting), which makes
averages right to second order in its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from derive.program import MomentumFlow

from .network import Network
from .rows import Array, State, spread
from .weights import Factors, Training, accumulate, by_network, relax

NODES = ((0.0, 1 / 6), (0.5, 1 / 3), (0.5, 1 / 3), (1.0, 1 / 6))
"""Where the stages of the method are taken, and the share of each."""


def advance(
    network: Network,
    moving: Sequence[Training],
    state: State,
    length: float,
    rngs: Sequence[np.random.Generator],
    kicks: int = 1,
) -> None:
    """The state after ``length``; its fields are those of the last stage and have to be computed anew.

    Noise before and after the step is that of ``kicks`` parts: with two, that of steps of half the length.
    """
    noisy = [x for x in moving if x.noisy(state)]
    for _ in range(kicks):
        relax(noisy, state, length / 2 / kicks, rngs)
    paths = [
        _Carried(x, state) if isinstance(x.rule, MomentumFlow) else _Path(x, state, noisy) for x in moving
    ]
    fields, began = network.evolving(state), state.time
    slopes: list[list[Array]] = []
    for k, (node, _) in enumerate(NODES):
        if k:
            for x in paths:
                x.put({k - 1: node * length})
            network.put(state, [f + node * length * s for f, s in zip(fields, slopes[-1], strict=True)])
        state.time = began + node * length
        network.compute(state)
        for x in paths:
            x.look(state)
        slopes.append(network.slopes_at(state))
    shares = {k: share * length for k, (_, share) in enumerate(NODES)}
    for x in paths:
        x.put(shares)
    network.put(
        state, [f + sum(shares[k] * s[i] for k, s in enumerate(slopes)) for i, f in enumerate(fields)]
    )
    state.time = began + length
    for _ in range(kicks):
        relax(noisy, state, length / 2 / kicks, rngs)


class _Path:
    """One weight through the stages of a step, without copies of it.

    It is ``W = a W_0 + sum_k b_k U_k``, with the updates U_k of the stages, and so is its slope,
    ``rate U - decay W``.  From one stage to the next only a and b change: W is scaled, and a few outer
    products are added in place.
    """

    def __init__(self, training: Training, state: State, noisy: Sequence[Training]) -> None:
        self.training, self.decays = training, training not in noisy
        self.w = state.weights[training.law.key]
        self.a: Array = np.ones(1)
        self.b: list[Array] = []
        self.slopes: list[tuple[Array, list[Array]]] = []
        self.updates: list[Factors] = []

    def look(self, state: State) -> None:
        """The slope at this stage."""
        n, u = self.training.now(state), self.training.update.factors(state)
        self.updates.append(Factors(u.left.copy(), u.right.copy()))
        decay = n["decay"] if self.decays else np.zeros(1)
        self.slopes.append((-decay * self.a, [*(-decay * x for x in self.b), n["rate"]]))
        self.b = [*self.b, np.zeros(1)]

    def put(self, lengths: Mapping[int, float]) -> None:
        """``W_0 + sum over stages of length times slope``."""
        a: Array = 1 + sum((x * self.slopes[k][0] for k, x in lengths.items()), np.zeros(1))
        b: list[Array] = [np.zeros(1) for _ in self.updates]
        for k, x in lengths.items():
            for j, y in enumerate(self.slopes[k][1]):
                b[j] = b[j] + x * y
        ratio = a / self.a
        change = [new - ratio * old for new, old in zip(b, self.b, strict=True)]
        terms = [(c, u) for c, u in zip(change, self.updates, strict=True) if np.any(c != 0)]
        if terms or np.any(ratio != 1):
            accumulate(self.w, ratio, 1.0, _together(terms) if terms else _nothing(self.w))
        self.a, self.b = a, b


class _Carried:
    """One weight with a velocity q: ``dW/dt = q``, ``dq/dt = (rate U - q)/momentum``."""

    def __init__(self, training: Training, state: State) -> None:
        self.training = training
        self.w = state.weights[training.law.key]
        self.q = state.velocities.setdefault(training.law.key, np.zeros_like(self.w))
        self.start = self.w.copy(order="K"), self.q.copy(order="K")
        self.slopes: list[tuple[Array, Array]] = []

    def look(self, state: State) -> None:
        """The slope at this stage."""
        n, u = self.training.now(state), self.training.update.factors(state)
        pulled = (u.left @ u.right).reshape(-1, *self.w.shape[1:])
        dq = (by_network(n["rate"], self.w) * pulled - self.q) / by_network(n["momentum"], self.w)
        self.slopes.append((self.q.copy(), dq))

    def put(self, lengths: Mapping[int, float]) -> None:
        """The start and lengths times slopes."""
        for now, then, i in ((self.w, self.start[0], 0), (self.q, self.start[1], 1)):
            now[...] = then
            for k, x in lengths.items():
                now += x * self.slopes[k][i]


def _together(terms: Sequence[tuple[Array, Factors]]) -> Factors:
    """``sum of c U`` as one product."""
    n = max(max(len(c), len(u.left), len(u.right)) for c, u in terms)
    left = [spread(c[:, None, None] * u.left, 0, n) for c, u in terms]
    return Factors(np.concatenate(left, axis=2), np.concatenate([spread(u.right, 0, n) for _, u in terms], 1))


def _nothing(w: Array) -> Factors:
    return Factors(np.zeros((1, w.shape[1], 1)), np.zeros((1, 1, w.shape[2] if w.ndim == 3 else 1)))
