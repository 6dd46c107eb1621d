"""Finite networks trained by brute force, many of one width at once, for the theory of finite width.

Input are depth, activation, inputs, targets and the training rule; output are outputs, losses, kernels and
tangent kernels of every network at every time step, with control variates.  The module uses NumPy only and
nothing of `derive` and `numerics`, because the tests hold these packages against it.

Conventions (N units in each of L hidden layers, all initial weights N(0, 1), theta any weight):

    h^1 = W^0 x / sqrt(D),    h^{l+1} = W^l phi(h^l) / sqrt(N),    f = w . phi(h^L) / (gamma0 N),
    Delta = y - f,            theta <- theta - eta gamma0^2 N d/dtheta (1/2) sum_mu Delta_mu^2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .estimates import Samples

Array = NDArray[Any]

ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]] = {
    "tanh": (np.tanh, lambda h, phi: 1 - phi**2),
    "relu": (lambda h: np.maximum(h, 0), lambda h, phi: (h > 0).astype(h.dtype)),
    "linear": (lambda h: h, lambda h, phi: np.ones_like(h)),
}
"""Activations phi(h), and their slopes as functions of h and phi(h)."""

CHUNK_BYTES = 2**21
"""Memory of one matrix of all networks that are trained together: they stay in the cache of a processor."""


@dataclass(frozen=True)
class Training:
    """Architecture, data and rule of networks on fixed data.

    Attributes
    ----------
    depth : int
        Number of hidden layers L.
    kernel : ndarray, shape (P, P)
        Kernel of the inputs, ``K_x = x . x' / D``.
    targets : ndarray, shape (P,)
        Targets y.
    eta : float
        Learning rate, or the time between two outputs of a flow.
    steps : int
        Number of steps; results hold the times 0, ..., steps.
    activation : {"linear", "tanh", "relu"}
        Activation phi.
    gamma0 : float
        Strength of feature learning.
    centred : bool
        Subtract the initial function from the output.
    substeps : int
        0 for gradient descent.  Otherwise gradient flow, with so many steps of Runge and Kutta's fourth order
        between two outputs.
    bias : bool
        Add a trained vector to each hidden layer, N(0, 1) at the start.
    momentum, weight_decay : float
        ``q <- momentum q - gamma0^2 N gradient``, ``theta <- (1 - eta weight_decay) theta + eta q``.
    """

    depth: int
    kernel: Array
    targets: Array
    eta: float
    steps: int
    activation: str = "linear"
    gamma0: float = 1.0
    centred: bool = False
    substeps: int = 0
    bias: bool = False
    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def is_linear(self) -> bool:
        """Whether gradients of all samples are equal."""
        return self.activation == "linear"

    @property
    def inputs(self) -> Array:
        """Inputs over the root of their dimension, shape (P, rank), with the given kernel."""
        values, vectors = np.linalg.eigh(np.asarray(self.kernel, dtype=float))
        kept = values > 1e-12 * values[-1]
        return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


@dataclass
class Fields:
    """Fields of a chunk of networks.

    ``pre[l]`` and ``features[l]`` (count, N, P) are h and phi(h) of layer l + 1, ``gradients[l]`` is g of
    layer l + 1, (count, N, P) or (count, N, 1) for linear networks, ``output`` (count, P) is f.
    """

    pre: list[Array]
    features: list[Array]
    gradients: list[Array]
    output: Array


@dataclass
class Networks:
    """A chunk of networks in training.

    ``matrices`` are W^0 (count, N, rank), W^1, ..., W^{L-1} (count, N, N) and w (count, N, 1); ``biases`` are
    (count, N, 1) for each hidden layer, or none.
    """

    training: Training
    matrices: list[Array]
    biases: list[Array]
    initial_output: Array | float = 0.0
    velocity: list[Array] = field(default_factory=list)

    @classmethod
    def draw(
        cls, training: Training, width: int, count: int, rng: np.random.Generator, dtype: Any
    ) -> Networks:
        """Draw the initial weights of a chunk of networks."""
        fan_in = [training.inputs.shape[1], *[width] * (training.depth - 1), 1]
        matrices = [rng.standard_normal((count, width, size), dtype=dtype) for size in fan_in]
        layers = training.depth if training.bias else 0
        networks = cls(training, matrices, list(rng.standard_normal((layers, count, width, 1), dtype=dtype)))
        if training.centred:
            networks.initial_output = networks.fields().output
        return networks

    @property
    def width(self) -> int:
        """Number of units N of a hidden layer."""
        return int(self.matrices[0].shape[1])

    def fields(self) -> Fields:
        """Return fields of all samples and their gradients."""
        training, width = self.training, self.width
        phi, slope = ACTIVATIONS[training.activation]
        inputs = training.inputs.astype(self.matrices[0].dtype)
        pre: list[Array] = []
        features: list[Array] = []
        gradients: list[Array] = []
        for layer, matrix in enumerate(self.matrices[:-1]):
            h = matrix @ features[-1] / width**0.5 if layer else matrix @ inputs.T
            if training.bias:
                h = h + self.biases[layer]
            pre.append(h)
            features.append(phi(h))
        z = self.matrices[-1]
        output = (z.swapaxes(1, 2) @ features[-1])[:, 0] / (training.gamma0 * width)
        for layer in range(training.depth - 1, -1, -1):
            if not training.is_linear:
                z = z * slope(pre[layer], features[layer])
            gradients.insert(0, z)
            if layer:
                z = self.matrices[layer].swapaxes(1, 2) @ z / width**0.5
        return Fields(pre, features, gradients, output - self.initial_output)

    def updates(self, rate: float, fields: Fields) -> list[Array]:
        """Return ``-rate gamma0^2 N d/dtheta (1/2) sum_mu Delta_mu^2`` of matrices, then biases."""
        training, width = self.training, self.width
        error = (rate * training.gamma0 * (training.targets - fields.output))[:, None, :].astype(
            fields.output.dtype
        )
        inputs = training.inputs.astype(fields.output.dtype)[None]
        below = [inputs, *(x.swapaxes(1, 2) / width**0.5 for x in fields.features)]
        steps = []
        for g, x in zip(fields.gradients, below[:-1], strict=True):
            steps.append(_outer(g, error, x))
        steps.append(fields.features[-1] @ error.swapaxes(1, 2))
        if training.bias:
            steps += [(error * g).sum(axis=2, keepdims=True) for g in fields.gradients]
        return steps

    @property
    def weights(self) -> list[Array]:
        """All trained arrays."""
        return [*self.matrices, *self.biases]

    def shifted(self, steps: Sequence[Array], factor: float) -> Networks:
        """Return networks with ``weights + factor steps``."""
        moved = [w + factor * step for w, step in zip(self.weights, steps, strict=True)]
        layers = len(self.matrices)
        return Networks(self.training, moved[:layers], moved[layers:], self.initial_output)

    def step(self, now: Fields) -> None:
        """Train to the next time of output, from weights with these fields."""
        if not self.training.substeps:
            self._descend(now)
        for k in range(self.training.substeps):
            self._flow(self.training.eta / self.training.substeps, self.fields() if k else now)

    def _descend(self, now: Fields) -> None:
        """Take one step of gradient descent with momentum and weight decay."""
        training, steps = self.training, self.updates(self.training.eta, now)
        if training.momentum and self.velocity:
            for step, velocity in zip(steps, self.velocity, strict=True):
                step += training.momentum * velocity
        if training.momentum:
            self.velocity = steps
        for w, step in zip(self.weights, steps, strict=True):
            if training.weight_decay:
                w *= 1 - training.eta * training.weight_decay
            w += step

    def _flow(self, time: float, now: Fields) -> None:
        """Integrate the gradient flow over a time by one step of Runge and Kutta's fourth order."""

        def slope(steps: list[Array], factor: float) -> list[Array]:
            moved = self.shifted(steps, factor)
            return moved.updates(time, moved.fields())

        one = self.updates(time, now)
        two = slope(one, 0.5)
        three = slope(two, 0.5)
        four = slope(three, 1.0)
        for w, a, b, c, d in zip(self.weights, one, two, three, four, strict=True):
            w += (a + 2 * b + 2 * c + d) / 6


def _outer(left: Array, error: Array, right: Array) -> Array:
    """Return ``sum_mu left_mu error_mu right_mu^T``, (count, N, M), of (count, N, P or 1) and (.., P, M)."""
    if left.shape[2] == 1:
        return np.asarray(left * (error @ right))
    return np.asarray((left * error) @ right)


# -- observables -------------------------------------------------------------------------------------------


def kernel(left: Array, right: Array) -> Array:
    """Return ``(1/N) left . right`` of fields (count, N, P): shape (count, P, P)."""
    return np.asarray(left.swapaxes(1, 2) @ right / left.shape[1])


def measure(training: Training, fields: Fields) -> dict[str, Array]:
    """Compute the observables of a chunk of networks at one time, each of shape (count, ...)."""
    error = training.targets - fields.output
    Phi = [kernel(x, x) for x in fields.features]
    G = [kernel(x, x) for x in fields.gradients]
    below = [np.asarray(training.kernel), *Phi]
    above = [*G, np.ones((1, 1, 1))]
    tangent = sum(a * b for a, b in zip(above, below, strict=True))
    if training.bias:
        tangent = tangent + sum(G)
    return {
        "f": fields.output,
        "loss": (error**2).sum(axis=1) / 2,
        "train_loss": (error**2).mean(axis=1),
        "Phi": np.stack(Phi, axis=1),
        "G": np.stack(G, axis=1),
        "tangent_kernel": np.asarray(tangent),
    }


def measure_pairs(first: Fields, second: Fields) -> dict[str, Array]:
    """Compute ``Phi_mu,nu(t, s)`` and ``G_mu,nu(t, s)`` of a chunk at two times: (count, L, P, P)."""
    names = {"Phi": (first.features, second.features), "G": (first.gradients, second.gradients)}
    return {
        name: np.stack([kernel(a, b) for a, b in zip(*sides, strict=True)], axis=1)
        for name, sides in names.items()
    }


# -- control variates --------------------------------------------------------------------------------------


def gaussian_mean(function: Callable[[Array], Array], variance: Array) -> Array:
    """Return the mean of a function of a Gaussian number with each of these variances.

    The trapezoidal rule converges faster than Gauss and Hermite's for tanh, which has poles at ``i pi / 2``.
    """
    nodes = np.arange(-8.9, 9, 0.2)  # symmetric and without 0, so that steps and kinks there are exact
    weights = np.exp(-(nodes**2) / 2)
    weights /= weights.sum()
    return np.asarray(function(np.sqrt(variance)[..., None] * nodes) @ weights)


def _triangle(matrices: Array) -> Array:
    """Return the entries on and above the diagonal of (count, P, P): shape (count, P (P + 1) / 2)."""
    rows, columns = np.triu_indices(matrices.shape[-1])
    return np.asarray(matrices[..., rows, columns])


def initial_controls(training: Training, fields: Fields, readout: Array) -> Array:
    """Return statistics of the initial weights that have mean zero at every width, (count, k).

    Given the kernel ``Phi^l`` of a layer, ``h^{l+1}`` has independent Gaussian units of this covariance, and
    given ``Phi^L`` so has ``f``, with the covariance ``Phi^L / (gamma0^2 N)``.
    """
    count, width = len(readout), readout.shape[1]
    extra = 1.0 if training.bias else 0.0
    Phi = [kernel(x, x).astype(float) for x in fields.features]
    output = (readout.swapaxes(1, 2) @ fields.features[-1])[:, 0].astype(float) / (training.gamma0 * width)
    squares = output[:, :, None] * output[:, None, :] - Phi[-1] / (training.gamma0**2 * width)
    parts = [output, _triangle(squares), kernel(readout, readout)[:, 0].astype(float) - 1]
    covariance = [np.asarray(training.kernel) + extra, *(x + extra for x in Phi)]
    parts += [
        _triangle(kernel(h, h).astype(float) - given)
        for h, given in zip(fields.pre, covariance[:-1], strict=True)
    ]
    if training.is_linear:
        if not training.bias:
            parts += _linear_controls(training, fields, width)
    else:
        phi, slope = ACTIVATIONS[training.activation]
        for h, features, given in zip(fields.pre, fields.features, covariance[:-1], strict=True):
            variance = np.diagonal(given, axis1=-2, axis2=-1)
            gain = slope(h, features)
            parts.append((features**2).mean(axis=1) - gaussian_mean(lambda x: phi(x) ** 2, variance))
            parts.append((gain**2).mean(axis=1) - gaussian_mean(lambda x: slope(x, phi(x)) ** 2, variance))
        gain = slope(fields.pre[-1], fields.features[-1]) ** 2
        parts.append(((readout**2 - 1) * gain).mean(axis=1))
    return np.concatenate([np.reshape(x, (count, -1)).astype(float) for x in parts], axis=1)


def _linear_controls(training: Training, fields: Fields, width: int) -> list[Array]:
    """Return centred kernels of linear networks and, up to two samples, products of two of them.

    ``E H^l_ab H^m_cd`` for l <= m is ``S^l``, with ``S^{l+1}_abcd = S^l_abcd + (S^l_acbd + S^l_adbc) / N``;
    the same holds for G from the readout on; H^l and G^m are independent for l <= m, and share one matrix
    for l = m + 1, which adds ``2 / N^2`` times the product of their means.
    """
    K = np.asarray(training.kernel, dtype=float)
    rows, columns = np.triu_indices(len(K))
    H = [_triangle(kernel(x, x).astype(float)) - _triangle(K) for x in fields.features]
    G = [kernel(x, x)[:, 0].astype(float) - 1 for x in fields.gradients]
    parts = [*G, *H]
    if len(rows) > 3:
        return parts
    depth, moment, moments = training.depth, np.multiply.outer(K, K), []
    for _ in range(depth):
        moment = moment + (moment.transpose(0, 2, 1, 3) + moment.transpose(0, 2, 3, 1)) / width
        centred = moment - np.multiply.outer(K, K)
        moments.append(centred[rows, columns][:, rows, columns])
    for low in range(depth):
        for high in range(low, depth):
            parts.append(H[low][:, :, None] * H[high][:, None, :] - moments[low])
            parts.append(G[low] * G[high] - ((1 + 2 / width) ** (depth - high) - 1))
            parts.append(H[low] * G[high])
            if high == low + 1:
                parts.append(H[high] * G[low] - 2 / width**2 * _triangle(K))
    return parts


# -- ensembles ---------------------------------------------------------------------------------------------


def chunks(count: int, chunk: int) -> Iterator[int]:
    """Yield sizes of chunks that add up to a count."""
    for start in range(0, count, chunk):
        yield min(chunk, count - start)


def train(
    training: Training,
    width: int,
    count: int,
    seed: int,
    *,
    pairs: Sequence[tuple[int, int]] = (),
    dtype: Any = np.float32,
) -> Samples:
    """Train independent networks of one width on fixed data.

    Parameters
    ----------
    training : Training
        Architecture, data and rule.
    width : int
        Number of units N of each hidden layer.
    count : int
        Number of networks.
    seed : int
        Seed of the initial weights.
    pairs : sequence of (int, int)
        Pairs (t, s) of steps at which ``Phi_pairs`` and ``G_pairs`` are measured.
    dtype : dtype
        Type of the weights.  Single precision changes observables by some 1e-6.

    Returns
    -------
    Samples
        ``f`` (count, T, P), ``loss = (1/2) sum Delta^2`` and ``train_loss = (1/P) sum Delta^2`` (count, T),
        ``Phi`` (count, T, L, P, P), ``G`` likewise, or (count, T, L, 1, 1) for linear networks,
        ``tangent_kernel`` (count, T, P, P), with T = steps + 1; ``Phi_pairs`` and ``G_pairs`` have the
        pairs in place of T.
    """
    rng = np.random.Generator(np.random.SFC64(seed))
    size = (
        np.dtype(dtype).itemsize * width * max(width if training.depth > 1 else 1, 4 * len(training.targets))
    )
    series: list[dict[str, Array]] = []
    controls: list[Array] = []
    for part in chunks(count, max(1, CHUNK_BYTES // size)):
        networks = Networks.draw(training, width, part, rng, dtype)
        now = networks.fields()
        controls.append(initial_controls(training, now, networks.matrices[-1].copy()))
        series.append(_run(networks, pairs))
    values = {name: np.concatenate([x[name] for x in series]) for name in series[0]}
    return Samples(width, values, np.concatenate(controls), float(np.finfo(dtype).eps))


def _run(networks: Networks, pairs: Sequence[tuple[int, int]]) -> dict[str, Array]:
    """Train a chunk of networks and return its observables, (count, T, ...)."""
    training = networks.training
    wanted = {t for pair in pairs for t in pair}
    seen: list[dict[str, Array]] = []
    stored: dict[int, Fields] = {}
    fields = networks.fields()
    for t in range(training.steps + 1):
        if t:
            networks.step(fields)
            fields = networks.fields()
        seen.append(measure(training, fields))
        if t in wanted:
            readout = fields.gradients[-1].copy()  # of linear networks it is the weights, which move
            stored[t] = replace(fields, gradients=[*fields.gradients[:-1], readout])
    values = {name: np.stack([x[name] for x in seen], axis=1) for name in seen[0]}
    two = [measure_pairs(stored[t], stored[s]) for t, s in pairs]
    if two:
        values |= {f"{name}_pairs": np.stack([x[name] for x in two], axis=1) for name in two[0]}
    return values
