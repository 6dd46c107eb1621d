"""Finite networks trained by optimisers that are written out here, with powers of width and depth to measure.

Raw weights are applied as ``N^-a W``; rules act on the raw gradient of half the sum of squared errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
X: Array = np.random.default_rng(3).standard_normal((3, 4))
Y: Array = np.array([1.0, -0.7, 0.4])
GAMMA0 = 1.0


# -- rules -------------------------------------------------------------------------------------------------


def sgd(g: Array, state: dict[str, Array], time: int, epsilon: float) -> Array:
    """Return the step of gradient descent."""
    return g


def momentum(g: Array, state: dict[str, Array], time: int, epsilon: float) -> Array:
    """Return the step of heavy-ball momentum."""
    state["q"] = 0.8 * state.get("q", 0.0) + g
    return state["q"]


def sign(g: Array, state: dict[str, Array], time: int, epsilon: float) -> Array:
    """Return the step of sign descent."""
    return np.sign(g)


def adam(g: Array, state: dict[str, Array], time: int, epsilon: float) -> Array:
    """Return the step of Adam."""
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
    state["v"] = 0.99 * state.get("v", 0.0) + 0.01 * g * g
    m, v = state["m"] / (1 - 0.9 ** (time + 1)), state["v"] / (1 - 0.99 ** (time + 1))
    return m / (np.sqrt(v) + epsilon)


def rmsprop(g: Array, state: dict[str, Array], time: int, epsilon: float) -> Array:
    """Return the step of RMSprop."""
    state["v"] = 0.9 * state.get("v", 0.0) + 0.1 * g * g
    return g / (np.sqrt(state["v"]) + epsilon)


def lion(g: Array, state: dict[str, Array], time: int, epsilon: float) -> Array:
    """Return the step of Lion."""
    m = state.get("m", np.zeros_like(g))
    state["m"] = 0.99 * m + 0.01 * g
    return np.sign(0.9 * m + 0.1 * g)


def polar(g: Array) -> Array:
    """Return the gradient with all its nonzero singular values one."""
    u, values, v = np.linalg.svd(g, full_matrices=False)
    return np.einsum("sik,sk,skj->sij", u, (values > 1e-9 * values[:, :1]).astype(float), v)


RULES: dict[str, Callable[..., Array]] = {
    "sgd": sgd,
    "momentum": momentum,
    "sign": sign,
    "adam": adam,
    "adamw": adam,
    "rmsprop": rmsprop,
    "lion": lion,
    "muon": sign,
}
DECAYS = ("sgd", "momentum", "sign", "adamw", "lion", "muon")
STEPS = {"sgd": 0.3, "momentum": 0.15, "rmsprop": 0.03}
"""Learning rates at width one; 0.05 of others, whose steps are of order one."""


def rms(x: Array) -> Array:
    """Return root mean squares, one for each network."""
    return np.sqrt(np.mean(x.reshape(len(x), -1) ** 2, axis=1))


# -- two hidden layers with all kinds of weights -----------------------------------------------------------


@dataclass
class Perceptrons:
    """Networks of one width, with gains, biases and perhaps normalised layers.

    ``exponents`` are those of :mod:`derive.scale.width`: a, b, c, e, s of each weight, and d.
    """

    width: int
    seeds: int
    exponents: Mapping[str, float]
    rule: str
    normalised: bool = False
    epsilon: float = 0.1
    decay: float = 0.02
    weights: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng([7, self.width])
        n, s = self.width, self.seeds
        shapes = {"W0": (n, 4), "W1": (n, n), "w": (n,)} | {f"{x}{i}": (n,) for i in (1, 2) for x in "bq"}
        for name, shape in shapes.items():
            size = 0.0 if name[0] == "q" else n ** (-self.exponents[f"b_{name}"] / 2)
            self.weights[name] = size * rng.standard_normal((s, *shape))
        self.states: dict[str, dict[str, Array]] = {name: {} for name in shapes}

    def power(self, letter: str, name: str) -> float:
        """Return ``N^-exponent``, or one without that exponent."""
        return float(self.width ** -self.exponents.get(f"{letter}_{name}", 0.0))

    def forward(self, weights: Mapping[str, Array]) -> dict[str, Array]:
        """Return fields (network, sample, unit) and outputs (network, sample)."""
        at = {name: self.power("a", name) * w for name, w in weights.items()}
        found: dict[str, Array] = {}
        products = at["W0"] @ X.T / np.sqrt(X.shape[1])
        for i in (1, 2):
            k = np.swapaxes(products, 1, 2)
            n = np.mean(k**2, axis=2, keepdims=True) if self.normalised else np.ones((1, 1, 1))
            h = (1 + at[f"q{i}"][:, None]) * k / np.sqrt(n) + at[f"b{i}"][:, None]
            found |= {f"k{i}": k, f"n{i}": n, f"h{i}": h}
            products = at["W1"] @ np.swapaxes(np.tanh(h), 1, 2)
        divided = GAMMA0 * self.width ** self.exponents["d"]
        return found | {"f": np.einsum("si,sui->su", at["w"], np.tanh(found["h2"])) / divided}

    def gradients(self) -> dict[str, Array]:
        """Return minus the gradient of the loss by raw weights, by the chain rule."""
        w, x = self.weights, self.forward(self.weights)
        at = {name: self.power("a", name) * v for name, v in w.items()}
        error = (Y - x["f"]) / (GAMMA0 * self.width ** self.exponents["d"])
        found = {"w": np.einsum("su,sui->si", error, np.tanh(x["h2"]))}
        z = error[:, :, None] * at["w"][:, None]
        for i in (2, 1):
            k, n = x[f"k{i}"], x[f"n{i}"]
            g = z * (1 - np.tanh(x[f"h{i}"]) ** 2)
            found |= {f"b{i}": g.sum(axis=1), f"q{i}": (g * k / np.sqrt(n)).sum(axis=1)}
            g = g * (1 + at[f"q{i}"][:, None]) / np.sqrt(n)
            if self.normalised:
                g = g - k * np.mean(g * k, axis=2, keepdims=True) / n
            below = (
                np.tanh(x["h1"])
                if i == 2
                else np.broadcast_to(X / np.sqrt(X.shape[1]), (self.seeds, *X.shape))
            )
            found["W1" if i == 2 else "W0"] = np.swapaxes(g, 1, 2) @ below
            z = g @ at["W1"] if i == 2 else z
        return {name: self.power("a", name) * v for name, v in found.items()}

    def step(self, time: int) -> dict[str, Array]:
        """Return the changes of the raw weights in a step."""
        found = {}
        for name, g in self.gradients().items():
            epsilon = self.epsilon * self.power("e", name)
            if self.rule == "muon" and name == "W1":
                moved = polar(g)
            else:
                moved = RULES[self.rule](g, self.states[name], time, epsilon)
            found[name] = STEPS.get(self.rule, 0.05) * self.power("c", name) * moved
            if self.rule in DECAYS:
                found[name] = found[name] - self.decay * self.power("s", name) * self.weights[name]
        return found

    def sizes(self, steps: int) -> dict[str, Array]:
        """Return root mean squares of gradients and changes.

        The changes are those by each weight alone in the last step, and all changes since 0.
        """
        start = self.forward(self.weights)
        found = {f"gradient {name}": rms(g) for name, g in self.gradients().items()}
        for time in range(steps):
            moves = self.step(time)
            if time == steps - 1:
                before = self.forward(self.weights)
                for name, move in moves.items():
                    after = self.forward(self.weights | {name: self.weights[name] + move})
                    fed = {"W0": "k1", "W1": "k2", "w": "f"}.get(name, f"h{name[-1]}")
                    found[f"move by {name}"] = rms(after[fed] - before[fed])
            self.weights = {name: w + moves[name] for name, w in self.weights.items()}
        end = self.forward(self.weights)
        return found | {f"change of {x}": rms(end[x] - start[x]) for x in ("h1", "h2", "f")}


# -- residual networks -------------------------------------------------------------------------------------


@dataclass
class Residual:
    """Networks of one depth: ``x + L^-alpha W phi(x)``, trained branches, frozen ends, mean-field outputs.

    ``powers`` are those of L in the rate, epsilon and the share that a step loses.
    """

    depth: int
    width: int
    seeds: int
    alpha: float
    powers: Mapping[str, float]
    rule: str
    normalised: bool = False
    epsilon: float = 0.1

    def __post_init__(self) -> None:
        n, s = self.width, self.seeds
        rng = np.random.default_rng(9)  # the ends are the same at all depths
        self.ends = rng.standard_normal((s, n, 4)) / 2.0, rng.standard_normal((s, n))
        rng = np.random.default_rng([9, self.depth])
        self.matrices = rng.standard_normal((self.depth, s, n, n)) / np.sqrt(n)  # as applied
        self.states: list[dict[str, Array]] = [{} for _ in range(self.depth)]

    @property
    def share(self) -> float:
        """Factor L^-alpha of a branch."""
        return float(self.depth**-self.alpha)

    def read(self, x: Array) -> tuple[Array, Array]:
        """Return the input of a branch, and the root mean squares by which it was divided."""
        size = np.sqrt(np.mean(x**2, axis=2, keepdims=True)) if self.normalised else np.ones((1, 1, 1))
        return np.tanh(x / size), size

    def forward(self) -> tuple[list[Array], Array]:
        """Return the stream (network, sample, unit) behind every branch, and outputs."""
        stream = [np.swapaxes(self.ends[0] @ X.T, 1, 2)]
        for W in self.matrices:
            stream.append(stream[-1] + self.share * self.read(stream[-1])[0] @ np.swapaxes(W, 1, 2))
        last, size = stream[-1], self.read(stream[-1])[1]
        return stream, np.einsum("si,sui->su", self.ends[1], last / size) / (GAMMA0 * self.width)

    def gradients(self) -> list[Array]:
        """Return minus the gradient of the loss by each matrix."""
        stream, f = self.forward()
        error = (Y - f) / (GAMMA0 * self.width)
        x, size = stream[-1], self.read(stream[-1])[1]
        g = error[:, :, None] * self.ends[1][:, None] / size
        if self.normalised:
            g = g - x * np.mean(g * x, axis=2, keepdims=True) / size**2
        found = []
        for x, W in zip(stream[-2::-1], self.matrices[::-1], strict=True):
            phi, size = self.read(x)
            found.append(self.share * np.swapaxes(g, 1, 2) @ phi)
            back = self.share * (g @ W) * (1 - phi**2) / size
            if self.normalised:
                back = back - x * np.mean(back * x, axis=2, keepdims=True) / size**2
            g = g + back
        return found[::-1]

    def sizes(self, steps: int) -> dict[str, Array]:
        """Return root mean squares of the first gradient and of changes after some steps."""
        start, f = self.forward()
        found = {"gradient": rms(np.swapaxes(np.stack(self.gradients()), 0, 1))}
        epsilon = self.epsilon * self.depth ** self.powers.get("epsilon", 0.0) / self.width
        # gradients of matrices as applied are 1/N, and so are their steps
        units = 1.0 if self.rule in ("sgd", "momentum") else 1 / self.width
        rate = STEPS.get(self.rule, 0.05) * units * self.depth ** self.powers["rate"]
        kept = 1 - 0.02 * (self.rule in DECAYS) * self.depth ** self.powers.get("share", 0.0)
        learnt = np.zeros_like(self.matrices[0])
        for time in range(steps):
            for i, g in enumerate(self.gradients()):
                step = rate * RULES[self.rule](g, self.states[i], time, epsilon)
                self.matrices[i] = kept * self.matrices[i] + step
                learnt += step * (i == 0)
        end, after = self.forward()
        inside = self.read(start[0])[0] @ np.swapaxes(learnt, 1, 2)
        changes = {"change of x": end[-1] - start[-1], "change of f": after - f, "inside": inside}
        return found | {name: rms(x) for name, x in changes.items()}


# -- fits --------------------------------------------------------------------------------------------------


def slope(sizes: Sequence[int], values: Sequence[Array]) -> tuple[float, float]:
    """Return the power of N of root mean squares by width, and its standard error.

    It is a line through means of logarithms. The change by leaving out the narrowest width is added to the
    error.
    """
    logs = [np.log(x) for x in values]
    y = np.array([np.mean(x) for x in logs])
    error = np.array([np.std(x, ddof=1) / np.sqrt(x.size) for x in logs])
    columns = np.stack([np.log(np.array(sizes, dtype=float)), np.ones(len(sizes))], axis=1)
    fits = []
    for k in (0, 1):
        A = columns[k:] / error[k:, None]
        covariance = np.linalg.inv(A.T @ A)
        fits.append((float((covariance @ A.T @ (y[k:] / error[k:]))[0]), float(np.sqrt(covariance[0, 0]))))
    (whole, _), (wide, own) = fits
    return wide, float(np.hypot(own, wide - whole))


def paired_slope(sizes: Sequence[int], values: Sequence[Array], correction: float) -> tuple[float, float]:
    """Return the power of L of root mean squares of networks that share their layers at all depths.

    Deeper networks have further layers. Each network has a fit ``log x = p log L + q + r L^correction``; the
    error is that of their mean.
    """
    n = np.array(sizes, dtype=float)
    columns = np.stack([np.log(n), np.ones_like(n), n**correction], axis=1)
    fits = np.linalg.lstsq(columns, np.log(np.array(values)), rcond=None)[0][0]
    return float(np.mean(fits)), float(np.std(fits, ddof=1) / np.sqrt(fits.size))


def measured(make: Callable[[int], Any], sizes: Sequence[int], steps: int) -> dict[str, list[Array]]:
    """Return root mean squares by quantity, as lists over widths or depths."""
    found: dict[str, list[Array]] = {}
    for n in sizes:
        for name, x in make(n).sizes(steps).items():
            found.setdefault(name, []).append(x)
    return found
