"""Finite networks under entrywise rules, written out in NumPy: gradients by hand, many seeds at once.

Nothing here comes from the engine.  A network has L hidden layers,

    h^1 = W^0 x + b^1,  h^(l+1) = W^l phi(n^l) + b^(l+1),  f_c = w_c . phi(n^L) / (gamma0 N),

with ``n = h``, or ``n = h / sqrt(mean_i h_i^2)`` where layers are normalised.  The gradient of an entry is
``A = -gamma0 N dloss/dW``.  Arrays have the seeds first: weights (seeds, N, N), fields (seeds, N, P).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = dict[str, Any]

X = np.array([[1.2, -0.4, 0.9], [0.3, 1.1, -0.6], [-0.7, 0.5, 1.3]])
"""Three samples of three coordinates."""

Y = np.array([1.0, -0.7, 0.5])
CLASSES = np.eye(3)

MEAN, SQUARE, KEPT, SMALL = 0.8, 0.95, 0.9, 0.02
"""The numbers of Adam (mean, square, epsilon), and the share that RMSprop and Lion keep."""

BATCH = 24
"""Seeds that are trained at once: their matrices stay in the cache."""


def sign_step(a: Array, state: State, time: int) -> Array:
    """Return the sign of each entry."""
    return np.sign(a)


def adam_step(a: Array, state: State, time: int) -> Array:
    """Return Adam's step, with bias corrections of ``time + 1`` steps."""
    m = state["m"] = MEAN * state.get("m", 0.0) + (1 - MEAN) * a
    v = state["v"] = SQUARE * state.get("v", 0.0) + (1 - SQUARE) * a * a
    mean, square = m / (1 - MEAN ** (time + 1)), v / (1 - SQUARE ** (time + 1))
    found: Array = mean / (np.sqrt(square) + SMALL)
    return found


def rmsprop_step(a: Array, state: State, time: int) -> Array:
    """Return RMSprop's step, without bias correction."""
    v = state["v"] = KEPT * state.get("v", 0.0) + (1 - KEPT) * a * a
    found: Array = a / (np.sqrt(v) + SMALL)
    return found


def lion_step(a: Array, state: State, time: int) -> Array:
    """Return Lion's step, which reads the momentum before it moves."""
    m = state.get("m", 0.0)
    state["m"] = KEPT * m + (1 - KEPT) * a
    found: Array = np.sign(MEAN * m + (1 - MEAN) * a)
    return found


STEPS_OF: dict[str, Callable[[Array, State, int], Array]] = {
    "sign": sign_step,
    "adam": adam_step,
    "adamw": adam_step,
    "rmsprop": rmsprop_step,
    "lion": lion_step,
    "muon": adam_step,
}
"""The steps of entries; hidden matrices under Muon move by :func:`orthogonal`."""


def orthogonal(left: Array, right: Array) -> Array:
    """Return the orthogonal factor of ``left right^T`` (seeds, N, N), of factors (seeds, N, P)."""
    rows, inner = np.linalg.qr(left)
    columns, other = np.linalg.qr(right)
    first, values, last = np.linalg.svd(inner @ other.swapaxes(1, 2))
    kept = (values > 1e-9 * values[:, :1])[:, None, :]
    found: Array = rows @ (first * kept) @ last @ columns.swapaxes(1, 2)
    return found


@dataclass(frozen=True)
class Setting:
    """One network and its training; a step loses ``decay`` times its rate of each weight."""

    rule: str
    depth: int
    activation: str
    rates: tuple[float, ...]
    gamma0: float = 1.0
    decay: float = 0.0
    bias: bool = False
    normalised: bool = False
    classes: bool = False

    @property
    def targets(self) -> Array:
        """Targets along samples and outputs."""
        return CLASSES if self.classes else Y[:, None]

    def phi(self, h: Array) -> Array:
        """Return the activation."""
        return np.tanh(h) if self.activation == "tanh" else np.maximum(h, 0.0)

    def slope(self, h: Array) -> Array:
        """Return the derivative of the activation."""
        return 1 - np.tanh(h) ** 2 if self.activation == "tanh" else (h > 0).astype(float)

    def error(self, f: Array) -> Array:
        """Return minus the slope of the loss in the outputs, of the same shape ``(..., P, C)``."""
        return self.targets - (probabilities(f) if self.classes else f)

    def loss(self, f: Array) -> Array:
        """Return the mean loss over the samples, of outputs ``(..., P, C)``."""
        if self.classes:
            found: Array = -(self.targets * np.log(probabilities(f))).sum(axis=-1).mean(axis=-1)
        else:
            found = ((self.targets - f) ** 2).sum(axis=-1).mean(axis=-1)
        return found


def probabilities(f: Array) -> Array:
    """Return the softmax over the last axis."""
    e = np.exp(f - f.max(axis=-1, keepdims=True))
    found: Array = e / e.sum(axis=-1, keepdims=True)
    return found


@dataclass
class Layers:
    """Fields of a forward pass: preactivations, arguments of the activation, and its values."""

    h: list[Array]
    n: list[Array]
    phi: list[Array]


class Networks:
    """Some networks of one width that are trained side by side; ``frozen`` ones keep their features."""

    def __init__(self, setting: Setting, width: int, seeds: range) -> None:
        self.setting, self.width = setting, width
        draws = [np.random.default_rng([setting.depth, width, k]) for k in seeds]
        scales = [X.shape[1], *[width] * (setting.depth - 1)]
        self.W = [np.array([r.normal(size=(width, n)) for r in draws]) / np.sqrt(n) for n in scales]
        outputs = setting.targets.shape[1]
        self.w = np.array([r.normal(size=(outputs, width)) for r in draws])
        biases = setting.depth if setting.bias else 0
        self.b = [np.array([r.normal(size=width) for r in draws]) for _ in range(biases)]
        self.states: list[State] = [{} for _ in (*self.W, self.w, *self.b)]

    def forward(self) -> Layers:
        """Return all fields."""
        setting, found = self.setting, Layers([], [], [])
        below = np.broadcast_to(X.T, (len(self.w), *X.T.shape))
        for layer, W in enumerate(self.W):
            h = W @ below
            if setting.bias:
                h = h + self.b[layer][:, :, None]
            n = h / root_mean_square(h) if setting.normalised else h
            below = setting.phi(n)
            found.h.append(h)
            found.n.append(n)
            found.phi.append(below)
        return found

    def outputs(self, fields: Layers) -> Array:
        """Return outputs ``(seeds, P, C)``."""
        return (self.w @ fields.phi[-1]).swapaxes(1, 2) / (self.setting.gamma0 * self.width)

    def backward(self, fields: Layers, top: Array) -> list[Array]:
        """Return ``gamma0 N`` times the slope by each preactivation; ``top`` is the slope by ``phi(n^L)``."""
        found = []
        for layer in reversed(range(self.setting.depth)):
            g = self.setting.slope(fields.n[layer]) * top
            if self.setting.normalised:
                n = fields.n[layer]
                g = (g - n * (g * n).mean(axis=1, keepdims=True)) / root_mean_square(fields.h[layer])
            found.append(g)
            top = self.W[layer].swapaxes(1, 2) @ g if layer else g
        return found[::-1]

    def step(self, time: int) -> Array:
        """Apply one step of all weights; return the outputs before it."""
        setting, fields = self.setting, self.forward()
        f = self.outputs(fields)
        error = setting.error(f)
        gradients = self.backward(fields, self.w.swapaxes(1, 2) @ error.swapaxes(1, 2))
        below = [np.broadcast_to(X.T, (len(f), *X.T.shape)), *fields.phi[:-1]]
        entries = [g @ v.swapaxes(1, 2) for g, v in zip(gradients, below, strict=True)]
        entries.append((fields.phi[-1] @ error).swapaxes(1, 2))
        entries += [g.sum(axis=2) for g in gradients] if setting.bias else []
        weights = [*self.W, self.w, *self.b]
        scales = [1 / v.shape[1] for v in below] + [1.0] * (1 + len(self.b))
        move, rate = STEPS_OF[setting.rule], setting.rates[time]
        for k, (W, a, state, scale) in enumerate(zip(weights, entries, self.states, scales, strict=True)):
            W *= 1 - rate * setting.decay
            if setting.rule == "muon" and 0 < k < setting.depth:
                W += rate * setting.gamma0 * orthogonal(gradients[k], below[k])
            else:
                W += rate * setting.gamma0 * scale * move(a, state, time)
        return f

    def kernels(self, fields: Layers) -> dict[str, Array]:
        """Return kernels of preactivations, features and gradients.

        Their shapes are ``(seeds, P, P)`` or ``(seeds, P C, P C)``.
        """
        found, tops = {}, [np.repeat(w[:, :, None], len(X), 2) for w in self.w.swapaxes(0, 1)]
        slopes = [self.backward(fields, top) for top in tops]
        for layer, (h, phi) in enumerate(zip(fields.h, fields.phi, strict=True), 1):
            g = np.stack([x[layer - 1] for x in slopes], axis=3).reshape(*phi.shape[:2], -1)
            found[f"H{layer}"] = h.swapaxes(1, 2) @ h / self.width
            found[f"Phi{layer}"] = phi.swapaxes(1, 2) @ phi / self.width
            found[f"G{layer}"] = g.swapaxes(1, 2) @ g / self.width
        return found

    def train(self) -> dict[str, Array]:
        """Return outputs and losses at all times, ``(seeds, times, ...)``, and the kernels at the end."""
        outputs = [self.step(time) for time in range(len(self.setting.rates))]
        fields = self.forward()
        f = np.stack([*outputs, self.outputs(fields)], axis=1)
        return {"f": f, "loss": self.setting.loss(f), **self.kernels(fields)}


def root_mean_square(h: Array) -> Array:
    """Return the root mean square of each sample over the units."""
    found: Array = np.sqrt((h**2).mean(axis=1, keepdims=True))
    return found


def trained(setting: Setting, width: int, seeds: int) -> dict[str, Array]:
    """Return the results of some networks, seeds first."""
    batches = [
        Networks(setting, width, range(k, min(k + BATCH, seeds))).train() for k in range(0, seeds, BATCH)
    ]
    return {n: np.concatenate([x[n] for x in batches]) for n in batches[0]}


def extrapolated(setting: Setting, widths: tuple[int, int], seeds: int) -> dict[str, tuple[Array, Array]]:
    """Return means over networks at infinite width and their standard errors, linear in 1/N.

    Outputs at the start have mean zero at every width, because readouts have either sign, and serve as
    control variates.
    """
    narrow, wide = (trained(setting, n, seeds) for n in widths)
    near, far = widths[1] / (widths[1] - widths[0]), widths[0] / (widths[1] - widths[0])
    found = {}
    for name in wide:
        (one, error), (other, more) = (controlled(x[name], x["f"][:, 0]) for x in (wide, narrow))
        found[name] = (near * one - far * other, np.hypot(near * error, far * more))
    return found


def controlled(values: Array, control: Array) -> tuple[Array, Array]:
    """Return the mean over the first axis and its standard error, with control variates of mean zero."""
    flat, beside = (x.reshape(len(x), -1) for x in (values, control))
    centred, mean = beside - beside.mean(axis=0), flat.mean(axis=0)
    slopes = np.linalg.lstsq(centred, flat - mean, rcond=None)[0]
    left = flat - mean - centred @ slopes
    dof = len(flat) - 1 - beside.shape[1]
    error = np.sqrt((left**2).sum(axis=0) / dof / len(flat))
    shape = values.shape[1:]
    return (mean - beside.mean(axis=0) @ slopes).reshape(shape), error.reshape(shape)
