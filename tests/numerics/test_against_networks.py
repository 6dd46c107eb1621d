"""Random experiments against networks trained in NumPy, with a gradient written out in this module.

The forward pass, its gradient and the rule follow the conventions in ``docs/reference/experiment.md`` and use
no code of the project. Measurements at several widths are extrapolated in 1/N by a parabola and compared with
``solve``; the largest of all deviations has to lie within the bound for their number.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from numpy.typing import NDArray
from scipy.special import expit, softmax

from numerics.errors import NotConverged
from numerics.experiment import Experiment
from numerics.simulation import simulate
from numerics.solver import solve
from tests.chance import excess

Array = NDArray[np.float64]

ACTIVATIONS = {
    "linear": (lambda h: h, np.ones_like),
    "tanh": (np.tanh, lambda h: 1 / np.cosh(h) ** 2),
    "relu": (lambda h: np.maximum(h, 0), lambda h: (h > 0) * 1.0),
    "softplus": (lambda h: np.logaddexp(0, h), expit),
}
"""phi and its slope."""

"""Chance that the largest deviation of a sound theory is refused."""
GROUP = 40
"""Networks at a time: all of them at once would take gigabytes."""


def _network_on_samples(draw: random.Random) -> dict[str, Any]:
    """Return the keys of [network] of an experiment on given samples."""
    depth = draw.choice([1, 2, 2, 3])
    network: dict[str, Any] = {"depth": depth, "activation": draw.choice(list(ACTIVATIONS))}
    network["gamma0"] = draw.choice([0.5, 1.0, 1.5])
    if draw.random() < 0.3:
        network["bias"] = True
    if draw.random() < 0.3:
        network["branch"] = 0.7
    elif draw.random() < 0.4:
        network["relative_widths"] = [draw.choice([0.5, 1.0, 2.0]) for _ in range(depth)]
    if draw.random() < 0.3:
        network["init_variance"] = [draw.choice([0.5, 1.0, 1.5]) for _ in range(depth + 1)]
    if draw.random() < 0.25:
        network["outputs"] = 2
    return network


def _training_on_samples(draw: random.Random, several: bool) -> dict[str, Any]:
    """Return the keys of [training]; cross-entropy is possible with several outputs only."""
    flow = draw.random() < 0.25
    training: dict[str, Any] = {"rule": "flow" if flow else "gd", "loss": draw.choice(["mean", "sum"])}
    training |= {"time": 0.8, "points": 3} if flow else {"learning_rate": 0.2, "steps": draw.choice([2, 4])}
    if draw.random() < 0.3:
        training["objective"] = draw.choice(["logistic"] + ["cross-entropy"] * several)
    if draw.random() < 0.3:
        training["center"] = True
    if draw.random() < 0.4:
        training["weight_decay"] = 0.4
    if not flow and draw.random() < 0.3:
        training["momentum"] = 0.6
    elif not flow and draw.random() < 0.4:
        training["temperature"] = 0.3
    return training


def on_samples(seed: int) -> dict[str, Any]:
    """Return tables of an experiment on given samples, with its arrays under ``arrays``."""
    draw = random.Random(seed)
    network = _network_on_samples(draw)
    training = _training_on_samples(draw, "outputs" in network)
    rng, P, C = np.random.default_rng(seed), draw.choice([1, 2, 3]), network.get("outputs", 1)
    x, tested = rng.standard_normal((P, 5)), rng.standard_normal((2, 5))
    y = rng.standard_normal((P, C))
    if training.get("objective") == "logistic":
        y = np.sign(y)
    elif "objective" in training:
        y = np.eye(C)[rng.integers(C, size=P)]
    data = {"inputs": "x.npy", "targets": "y.npy"}
    if draw.random() < 0.3:
        data["test_inputs"] = "t.npy"
    return {
        "network": network,
        "data": data,
        "training": training,
        "solver": {"accuracy": 4e-3, "rtol": 1e-5},
        "arrays": {"x": x, "y": y if C > 1 else y[:, 0], "t": tested},
    }


def on_random_data(seed: int) -> dict[str, Any]:
    """Return tables of a linear network on isotropic or power-law data, without arrays."""
    draw = random.Random(seed)
    depth, power_law = draw.choice([1, 2, 3]), draw.random() < 0.4
    network: dict[str, Any] = {"depth": depth, "gamma0": draw.choice([0.5, 1.0, 1.5])}
    rule = draw.choice(["gd", "sgd", "flow"])
    data: dict[str, Any] = {"kind": "power-law" if power_law else "isotropic"}
    if power_law:
        data |= {"capacity": 1.5, "source": 0.8, "modes": 12}
    else:
        network["width_ratio"] = draw.choice([0.5, 1.0, 2.0])
        if draw.random() < 0.3:
            network["width_ratio"] = [draw.choice([0.5, 1.0, 2.0]) for _ in range(depth)]
        elif draw.random() < 0.4:
            network["branch"] = 0.6
        if rule == "sgd":
            data["batch_ratio"] = draw.choice([0.5, 2.0])
        elif draw.random() < 0.7:
            data["sample_ratio"] = draw.choice([0.5, 2.0])
        if draw.random() < 0.2:
            network["parametrization"] = "ntk"
    if "sample_ratio" in data or rule == "sgd":
        data["noise"] = draw.choice([0.0, 0.4])
    training: dict[str, Any] = {"rule": rule, "center": draw.random() < 0.5 or power_law}
    training |= {"time": 0.4, "points": 3} if rule == "flow" else {"learning_rate": 0.1, "steps": 4}
    if draw.random() < 0.4:
        training["weight_decay"] = 0.4
    if rule != "flow" and draw.random() < 0.3:
        training["momentum"] = 0.6
    elif rule != "flow" and draw.random() < 0.4:
        training["temperature"] = 0.3
    return {"network": network, "data": data, "training": training, "solver": {"rtol": 1e-5}}


class Networks:
    """``seeds`` networks of width ``N``; weights are (seeds, units, units below), fields end in samples."""

    def __init__(self, tables: dict[str, Any], N: int, seeds: int, seed: tuple[int, ...]) -> None:
        self.network, self.training = tables["network"], tables["training"]
        self.rng = np.random.default_rng(seed)
        arrays = tables["arrays"]
        self.y = arrays["y"] if arrays["y"].ndim == 2 else arrays["y"][:, None]
        self.P, self.C = self.y.shape
        self.x = np.vstack([arrays["x"], arrays["t"]]) if "test_inputs" in tables["data"] else arrays["x"]
        self.phi, self.slope = ACTIVATIONS[self.network["activation"]]
        L, self.N, self.gamma0 = self.network["depth"], N, self.network["gamma0"]
        widths = [int(a * N) for a in self.network.get("relative_widths", [1] * L)]
        sizes = [self.x.shape[1], *widths, self.C]
        deviations = np.sqrt(self.network.get("init_variance", [1.0] * (L + 1)))
        self.weights = [
            s * self.rng.standard_normal((seeds, above, below))
            for s, (below, above) in zip(deviations, pairwise(sizes), strict=True)
        ]
        if "bias" in self.network:
            self.weights += [self.rng.standard_normal((seeds, n, 1)) for n in widths]
        self.L, self.beta = L, self.network.get("branch")
        self.start = self.outputs(self.weights) if self.training.get("center") else 0.0

    def fields(self, weights: list[Array]) -> list[Array]:
        """Return h^1 .. h^L."""
        L, fields = self.L, [weights[0] @ self.x.T / np.sqrt(self.x.shape[1])]
        fields[0] = fields[0] + (weights[L + 1] if len(weights) > L + 1 else 0)
        for k in range(1, L):
            moved = weights[k] @ self.phi(fields[-1]) / np.sqrt(weights[k].shape[2])
            if self.beta is not None:
                moved = fields[-1] + self.beta * moved
            fields.append(moved + (weights[L + 1 + k] if len(weights) > L + 1 else 0))
        return fields

    def outputs(self, weights: list[Array]) -> Array:
        """Return f, shape (seeds, outputs, samples): w . phi(h^L)/(gamma0 N)."""
        return np.asarray(weights[self.L] @ self.phi(self.fields(weights)[-1]) / (self.gamma0 * self.N))

    def error(self, f: Array) -> Array:
        """Return minus the slope of the loss of each sample, times one half for squares."""
        y, f = self.y.T, (f - self.start)[:, :, : self.P]
        match self.training.get("objective", "square"):
            case "square":
                return np.asarray(y - f)
            case "logistic":
                return np.asarray(y * expit(-y * f))
            case _:
                return np.asarray(y - softmax(f, axis=1))

    def push(self, weights: list[Array]) -> list[Array]:
        """Return -gamma0^2 N times the gradient of the loss, without weight decay."""
        L, fields = self.L, self.fields(weights)
        top = self.phi(fields[-1])
        Delta = np.zeros((len(top), self.C, len(self.x)))
        Delta[:, :, : self.P] = self.error(weights[L] @ top / (self.gamma0 * self.N))
        Delta *= self.gamma0 / (self.P if self.training["loss"] == "mean" else 1)
        down = weights[L].swapaxes(1, 2) @ Delta
        pushed: list[Array] = [np.empty(0)] * len(weights)
        pushed[L] = Delta @ top.swapaxes(1, 2)
        passed = down * self.slope(fields[-1])
        for k in reversed(range(L)):
            if len(weights) > L + 1:
                pushed[L + 1 + k] = passed.sum(2, keepdims=True)
            below = self.phi(fields[k - 1]) if k else self.x.T[None]
            share = (self.beta if k and self.beta is not None else 1) / np.sqrt(below.shape[1])
            pushed[k] = share * passed @ below.swapaxes(1, 2)
            if k:
                down = share * (weights[k].swapaxes(1, 2) @ passed) * self.slope(fields[k - 1])
                passed = down + (passed if self.beta is not None else 0)
        return pushed

    def fresh(self) -> None:
        """Keep the samples, which are the same at all steps."""

    def measured(self) -> dict[str, Array]:
        """Return the compared quantities, a row a network."""
        states = list(trained(self))
        outputs = np.stack([self.outputs(w) - self.start for w in states], 1)
        found = {"error": np.stack([self.error(self.outputs(w)) for w in states], 1).swapaxes(2, 3)}
        last = self.fields(states[-1])
        found["Phi"] = np.stack([(self.phi(h)[:, :, : self.P] ** 2).mean(1) for h in last], 1)
        if self.x.shape[0] > self.P:
            found["test_f"] = outputs[:, :, :, self.P :].swapaxes(2, 3)
        return {name: x.reshape(len(x), -1) for name, x in found.items()}


class LinearNetworks:
    """``seeds`` linear networks with their data: isotropic of dimension N/nu_L, or the modes of power laws.

    v is the error in function space and h^0 the average of x Delta over samples, in the units of the
    conventions; then W^l += eta gamma0/sqrt(N_l) g^{l+1} h^l, and W^0 += eta gamma0 g^1 h^0, over sqrt(D) for
    isotropic data.
    """

    def __init__(self, tables: dict[str, Any], N: int, seeds: int, seed: tuple[int, ...]) -> None:
        self.network, self.data, self.training = tables["network"], tables["data"], tables["training"]
        self.rng, self.seeds, L = np.random.default_rng(seed), seeds, self.network["depth"]
        self.isotropic = self.data["kind"] == "isotropic"
        ratios = self.network.get("width_ratio", 1.0)
        ratios = ratios if isinstance(ratios, list) else [ratios] * L
        D = int(N / ratios[-1]) if self.isotropic else self.data["modes"]
        self.widths = [round(r * D) for r in ratios] if self.isotropic else [N] * L
        self.D, self.N, self.L, self.beta = D, self.widths[-1], L, self.network.get("branch")
        self.gamma0 = self.network["gamma0"]
        if self.network.get("parametrization") == "ntk":
            self.gamma0 /= np.sqrt(self.N / D if self.isotropic else N)
        self.unit = np.sqrt(D) if self.isotropic else 1.0
        if self.isotropic:
            self.spectrum = np.ones(D)
            self.target = self.rng.standard_normal((seeds, D))
            self.count = round(D * self.data.get("sample_ratio", self.data.get("batch_ratio", 0)))
        else:
            k, a, b = np.arange(1, D + 1), self.data["capacity"], self.data["source"]
            self.spectrum = k**-a
            self.target = np.broadcast_to(np.sqrt(k ** (-a * b - 1) / self.spectrum), (seeds, D))
            self.count = self.data.get("batch", 0)
        self.sigma = self.data.get("noise", 0.0)
        sizes = [D, *self.widths, 1]
        self.weights = [self.rng.standard_normal((seeds, above, below)) for below, above in pairwise(sizes)]
        self.drawn = self.samples()
        self.start = self.function(self.weights) if self.training["center"] else 0.0

    def samples(self) -> tuple[Array, Array]:
        """Return inputs and noise of the labels."""
        x = self.rng.standard_normal((self.seeds, self.count, self.D)) * np.sqrt(self.spectrum)
        return x, self.rng.standard_normal((self.seeds, self.count)) * self.sigma

    def backward(self, weights: list[Array]) -> list[Array]:
        """Return g^1 .. g^L."""
        found = [weights[self.L][:, 0]]
        for k in reversed(range(1, self.L)):
            moved = np.einsum("sij,si->sj", weights[k], found[0]) / np.sqrt(weights[k].shape[2])
            found.insert(0, moved if self.beta is None else found[0] + self.beta * moved)
        return found

    def function(self, weights: list[Array]) -> Array:
        """Return sqrt(D)/(N gamma0) W^0 g^1, so that f = function . x/sqrt(D).

        For power laws it is W^0 g^1/(N gamma0).
        """
        g = self.backward(weights)[0]
        return np.asarray(np.einsum("sij,si->sj", weights[0], g) * self.unit / (self.N * self.gamma0))

    def error(self, weights: list[Array]) -> tuple[Array, Array]:
        """Return v, and Delta on the samples of this step."""
        v = self.target - self.function(weights) + self.start
        x, noise = self.drawn
        return v, np.einsum("spd,sd->sp", x, v) / self.unit + noise

    def push(self, weights: list[Array]) -> list[Array]:
        """Return the change by a step of rate one, without weight decay."""
        v, Delta = self.error(weights)
        if self.count:
            h = [self.unit * np.einsum("spd,sp->sd", self.drawn[0], Delta) / self.count]
        else:
            h = [self.spectrum * v]
        h.append(np.einsum("sij,sj->si", weights[0], h[0]) / self.unit)
        for k in range(1, self.L):
            moved = np.einsum("sij,sj->si", weights[k], h[-1]) / np.sqrt(weights[k].shape[2])
            h.append(moved if self.beta is None else h[-1] + self.beta * moved)
        g = [*self.backward(weights), np.ones((self.seeds, 1))]
        share = 1.0 if self.beta is None else self.beta
        scale = [1 / self.unit, *(share / np.sqrt(n) for n in self.widths[:-1]), 1.0]
        return [self.gamma0 * c * b[:, :, None] * a[:, None, :] for c, a, b in zip(scale, h, g, strict=True)]

    def fresh(self) -> None:
        """Draw new samples, if each step has separate ones."""
        if self.training["rule"] == "sgd":
            self.drawn = self.samples()

    def measured(self) -> dict[str, Array]:
        """Return the compared quantities, a row a network."""
        found: dict[str, list[Array]] = {"test_loss": []}
        for weights in trained(self):
            v, Delta = self.error(weights)
            found["test_loss"].append((self.spectrum * v**2).sum(1) / self.unit**2 + self.sigma**2)
            trains = (Delta**2).mean(1) if self.count else found["test_loss"][-1]
            found.setdefault("train_loss", []).append(trains)
        return {name: np.stack(x, 1) for name, x in found.items()}


def trained(networks: Networks | LinearNetworks) -> Iterator[list[Array]]:
    """Yield the weights at each time of the result."""
    training, weights = networks.training, networks.weights
    decay = training.get("weight_decay", 0.0)

    def drift(w: list[Array]) -> list[Array]:
        return [u - decay * v for u, v in zip(networks.push(w), w, strict=True)]

    def on(w: list[Array], by: list[Array], share: float) -> list[Array]:
        return [a + share * b for a, b in zip(w, by, strict=True)]

    yield weights
    if training["rule"] == "flow":
        steps = 8
        dt = training["time"] / (training["points"] - 1) / steps
        for _ in range(training["points"] - 1):
            for _ in range(steps):
                one = drift(weights)
                two = drift(on(weights, one, dt / 2))
                three = drift(on(weights, two, dt / 2))
                four = drift(on(weights, three, dt))
                mean = [(a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(one, two, three, four, strict=True)]
                weights = on(weights, mean, dt)
            yield weights
        return
    eta, kept, T = (training.get(x, 0.0) for x in ("learning_rate", "momentum", "temperature"))
    velocity = [np.zeros_like(w) for w in weights]
    for _ in range(training["steps"]):
        velocity = on(networks.push(weights), velocity, kept)
        weights = [(1 - eta * decay) * w + eta * v for w, v in zip(weights, velocity, strict=True)]
        if T:
            weights = [w + np.sqrt(2 * eta * T) * networks.rng.standard_normal(w.shape) for w in weights]
        networks.fresh()
        yield weights


def solved(tables: dict[str, Any], folder: Path) -> dict[str, tuple[Array, Array]]:
    """Return the quantities that networks measure, from the theory, with standard errors."""
    for name, x in tables.get("arrays", {}).items():
        np.save(folder / f"{name}.npy", x)
    file = folder / "e.toml"
    file.write_text(tomli_w.dumps({k: v for k, v in tables.items() if k != "arrays"}))
    result = solve(Experiment.load(file))
    names = ("error", "Phi", "test_f") if "arrays" in tables else ("train_loss", "test_loss")
    found = {}
    for name in (x for x in names if x in result):
        values = [result[name], result.get(f"{name}_stderr", 0 * result[name])]
        if name == "Phi":
            kept = [x.isel(time=-1, time_=-1).values for x in values]
            values = [np.einsum("lmm->lm", x) for x in kept]
        mean, error = (np.ravel(x) for x in values)
        found[name] = (mean, error)
    return found


def at_width(tables: dict[str, Any], N: int) -> dict[str, Any]:
    """Return the tables at a width if the theory has one: power-law data, with batches in proportion."""
    if tables["data"].get("kind") != "power-law":
        return tables
    network, data = tables["network"] | {"width": N}, dict(tables["data"])
    if tables["training"]["rule"] == "sgd":
        data["batch"] = N
    return tables | {"network": network, "data": data}


def deviations(tables: dict[str, Any], folder: Path, widths: list[int], seeds: int) -> dict[str, Array]:
    """Return (networks - theory) in standard errors, of each number.

    The limit is that of a parabola in 1/N through the differences.
    """
    powers = np.vander(1 / np.array(widths, float), 3, increasing=True)
    rows: dict[str, list[tuple[Array, Array]]] = {}
    theory: dict[str, tuple[Array, Array]] = {}
    for N in widths:
        here = at_width(tables, N)
        theory = theory if theory and here is tables else solved(here, folder)
        total = seeds * widths[-1] // N
        kind = Networks if "arrays" in tables else LinearNetworks
        runs = [kind(here, N, min(GROUP, total - n), (N, n)).measured() for n in range(0, total, GROUP)]
        found = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
        for name, (value, _) in theory.items():
            x = found[name] - value
            rows.setdefault(name, []).append((x.mean(0), x.std(0, ddof=1) / np.sqrt(total)))
    result = {}
    for name, some in rows.items():
        means, errors = (np.stack(x) + k * 1e-13 for k, x in enumerate(zip(*some, strict=True)))
        inverse = [np.linalg.pinv(powers / e[:, None])[0] for e in errors.T]
        at = [row @ (m / e) for row, m, e in zip(inverse, means.T, errors.T, strict=True)]
        spread = np.array([np.linalg.norm(row) for row in inverse])
        result[name] = np.array(at) / np.sqrt(theory[name][1] ** 2 + spread**2)
    return result


def largest(cases: list[tuple[str, int]], folder: Path, widths: list[int], seeds: int) -> None:
    """Require that no deviation of these experiments exceeds the bound for the largest of all."""
    found: dict[tuple[str, int, str], Array] = {}
    for kind, seed in cases:
        tables = (on_samples if kind == "given" else on_random_data)(seed)
        try:
            seen = deviations(tables, folder, widths, seeds)
        except NotConverged:  # raised without a number
            continue
        found |= {(kind, seed, name): np.abs(z) for name, z in seen.items()}
    assert len({key[:2] for key in found}) >= 0.8 * len(cases)
    assert excess(np.concatenate([np.ravel(z) for z in found.values()]), seeds - 1) < 1, {
        key: z.max() for key, z in found.items()
    }


@pytest.mark.parametrize("case", [("given", 8), ("random", 4)])
def test_an_experiment_is_that_of_networks(case: tuple[str, int], tmp_path: Path) -> None:
    largest([case], tmp_path, [16, 32, 64, 128], 20)


@pytest.mark.parametrize("kernels", ["full", "trace"])
def test_backward_kernels_of_another_loss_are_those_of_outputs(kernels: Any) -> None:
    """A linear network's G has channels and no samples, whichever method solves it, as many as there are."""
    spec = {
        "network": {"depth": 2, "outputs": 2},
        "training": {"learning_rate": 0.5, "steps": 2, "objective": "cross-entropy"},
        "solver": {"samples": 128},
    }
    experiment = Experiment.from_dict(spec, inputs=np.eye(2), targets=np.eye(2), test_inputs=np.ones((1, 2)))
    theory = solve(experiment, kernels=kernels).G
    networks = simulate(experiment, width=100, seeds=10, kernels=kernels)
    assert theory.dims == networks.G.dims == ("layer", "time", "time_", "channel", "channel_")
    assert (np.abs(theory - networks.G) <= 5 * networks.G_stderr + 0.1).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["given", "random"])
def test_random_experiments_are_those_of_networks(kind: str, tmp_path: Path) -> None:
    largest([(kind, seed) for seed in range(12)], tmp_path, [32, 64, 128, 256], 60)


@pytest.mark.parametrize("kind", ["given", "random"])
def test_the_gradient_written_here_is_the_slope_of_the_loss(kind: str) -> None:
    """Central differences of the loss: a step adds -gamma0^2 N d loss/d weight."""
    tables = (on_samples if kind == "given" else on_random_data)(5 if kind == "given" else 9)
    networks: Any = (Networks if kind == "given" else LinearNetworks)(tables, 6, 1, (0,))
    weights, rng = networks.weights, np.random.default_rng(1)
    along = [rng.standard_normal(w.shape) for w in weights]

    def loss(step: float) -> float:
        moved = [w + step * a for w, a in zip(weights, along, strict=True)]
        Delta = networks.error(networks.outputs(moved)) if kind == "given" else networks.error(moved)[1]
        return float((Delta**2).sum() / 2 / (networks.P if tables["training"].get("loss") == "mean" else 1))

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5 * networks.gamma0**2 * networks.N
    share = 1 if kind == "given" else networks.count
    pushed = sum(float((a * u).sum()) for a, u in zip(along, networks.push(weights), strict=True))
    assert pushed * share == pytest.approx(-slope, rel=1e-6)
