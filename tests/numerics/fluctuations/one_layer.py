r"""Exact statistics of linear networks with one hidden layer at every width, by two methods.

Input are inputs, targets, learning rate and width; output are moments of output, loss and kernels at every
time. For V = (w; h_1 ... h_P) the matrix ``M = V V^T / N`` obeys, under gradient descent and with Delta = y
- M_0. / gamma0,

    M(t+1) = U M(t) U^T,    U = 1 + eta gamma0 B,    B = ((0, Delta^T), (K_x Delta, 0)),

and the width enters only through ``M(0)``, a Wishart matrix over N with the covariance ``diag(1, K_x)``.
The tests of the derived corrections of finite width use (a) Gauss and Laguerre's quadrature over ``M(0)``
for one sample, (b) the leading order in 1/N by second derivatives of the map, and (c) samples of ``M(0)``,
for any number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from scipy.linalg import eigh_tridiagonal

from .estimates import Samples

Array = NDArray[Any]


@dataclass(frozen=True)
class OneLayer:
    """A linear network with one hidden layer on fixed data.

    Attributes
    ----------
    kernel : ndarray, shape (P, P)
        Kernel of the inputs.
    targets : ndarray, shape (P,)
        Targets.
    eta : float
        Learning rate, or the time between two outputs of a flow.
    steps : int
        Number of steps; results hold the times 0, ..., steps.
    gamma0 : float
        Strength of feature learning.
    centred : bool
        Subtract the initial function from the output.
    flow : bool
        Gradient flow instead of steps.
    """

    kernel: Array
    targets: Array
    eta: float
    steps: int
    gamma0: float = 1.0
    centred: bool = False
    flow: bool = False

    @property
    def covariance(self) -> Array:
        """Covariance diag(1, K_x) of a unit's initial (w, h_1, ..., h_P)."""
        return np.block(
            [
                [np.ones((1, 1)), np.zeros((1, len(self.targets)))],
                [np.zeros((len(self.targets), 1)), self.kernel],
            ]
        )


# -- one sample: quadrature --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """Means and variances of an observable, arrays over time, and its limit of infinite width."""

    mean: Array
    variance: Array
    limit: Array


def chi_squared_nodes(width: int, count: int) -> tuple[Array, Array]:
    """Return nodes and weights of the mean over ``chi^2_N / N`` by the method of Golub and Welsch.

    >>> nodes, weights = chi_squared_nodes(10, 8)
    >>> [round(float(weights @ nodes**k), 12) for k in (0, 1, 2)]
    [1.0, 1.0, 1.2]
    """
    order = np.arange(count)
    power = width / 2 - 1
    side = np.sqrt(order[1:] * (order[1:] + power))
    nodes, vectors = eigh_tridiagonal(2 * order + power + 1, side)
    return np.asarray(2 * nodes / width), np.asarray(vectors[0] ** 2)


def trajectories(network: OneLayer, A: Array, B: Array) -> dict[str, Array]:
    """Return f, loss, tangent kernel and A B of networks with one sample, (steps + 1, *shape of A and B).

    ``A = |h + w|^2 / 2N`` and ``B = |h - w|^2 / 2N``, with h in units of the root of ``K_x``, are
    multiplied by ``(1 +- eta gamma0 sqrt(K_x) Delta)^2`` in a step, and by exp(+-2 theta) in a flow.
    """
    root, y, gamma0 = float(network.kernel[0, 0]) ** 0.5, float(network.targets[0]), network.gamma0
    start = root * (A - B) / (2 * gamma0) if network.centred else np.zeros_like(A)
    f, K, product = [], [], []
    a, b = A, B
    for t in range(network.steps + 1):
        f.append(root * (a - b) / (2 * gamma0) - start)
        K.append(root**2 * (a + b))
        product.append(a * b)
        growth = network.eta * gamma0 * root * (y - f[-1])
        if network.flow:
            z = _riccati(A, B, gamma0 * (y + start) / root, root**2 * network.eta * (t + 1))
            a, b = A * z, B / z
        else:
            a, b = a * (1 + growth) ** 2, b * (1 - growth) ** 2
    error = y - np.stack(f)
    return {
        "f": np.stack(f),
        "loss": error**2 / 2,
        "tangent_kernel": np.stack(K),
        "product": np.stack(product),
    }


def _riccati(A: Array, B: Array, c: Array | float, time: float) -> Array:
    """Solve ``z' = -(A z^2 - 2 c z - B)``, z(0) = 1, which is the flow of ``z = exp(2 theta)``."""
    root = np.sqrt(c**2 + A * B)
    upper, lower = (c + root) / A, (c - root) / A
    ratio = (1 - upper) / (1 - lower) * np.exp(-2 * root * time)
    return np.asarray((upper - lower * ratio) / (1 - ratio))


def exact_moments(network: OneLayer, width: int, nodes: int = 32) -> dict[str, Moments]:
    """Compute means and variances of the observables of a network with one sample at one width.

    Parameters
    ----------
    network : OneLayer
        Network with P = 1.
    width : int
        Number of units N.
    nodes : int
        Nodes of each of the two dimensions of the quadrature.  More than 32 let long trainings overflow.

    Returns
    -------
    dict of str to Moments
        ``f``, ``loss``, ``tangent_kernel``, ``Phi`` and ``G``, arrays over time.
    """
    x, weights = chi_squared_nodes(width, nodes)
    A, B = np.meshgrid(x, x, indexing="ij")
    weight = np.multiply.outer(weights, weights)
    one = np.ones((1, 1))
    values, limits = trajectories(network, A, B), trajectories(network, one, one)
    moments = {}
    for name, value in values.items():
        mean = (value * weight).sum(axis=(1, 2))
        variance = ((value - mean[:, None, None]) ** 2 * weight).sum(axis=(1, 2))
        moments[name] = Moments(mean, variance, limits[name][:, 0, 0])
    # H and K_x G are (1/2) K_x (A + B +- 2 sqrt(A B) cos(angle)), and the mean of cos^2 is 1/N
    K, K_x = moments["tangent_kernel"], float(network.kernel[0, 0])
    product = K_x**2 * (values["product"] * weight).sum(axis=(1, 2))
    for name, scale in (("Phi", 1.0), ("G", K_x)):
        variance = K.variance / 4 + product / width
        moments[name] = Moments(K.mean / (2 * scale), variance / scale**2, K.limit / (2 * scale))
    del moments["product"]
    return moments


# -- any number of samples: the leading order ----------------------------------------------------------------


@dataclass(frozen=True)
class Jet:
    """A value (...), its first (n, ...) and second derivatives (n, n, ...) by the entries of ``M(0)``."""

    value: Array
    first: Array
    second: Array

    def __add__(self, other: Jet) -> Jet:
        return Jet(self.value + other.value, self.first + other.first, self.second + other.second)

    def __mul__(self, number: Any) -> Jet:
        """Multiply by a constant number or array of the shape of the value."""
        return Jet(self.value * number, self.first * number, self.second * number)

    def __getitem__(self, item: Any) -> Jet:
        every = item if isinstance(item, tuple) else (item,)
        return Jet(
            self.value[item],
            self.first[(slice(None), *every)],
            self.second[(slice(None), slice(None), *every)],
        )

    def product(self, other: Jet, subscripts: str) -> Jet:
        """Return the product of two jets, summed as by :func:`numpy.einsum`."""
        pair, result = subscripts.split("->")
        left, right = pair.split(",")

        def sums(before_left: str, before_right: str, a: Array, b: Array) -> Array:
            letters = f"{before_left}{left},{before_right}{right}->{before_left}{before_right}{result}"
            return np.asarray(np.einsum(letters, a, b, optimize=len(self.first) > 9))

        cross = sums("X", "Y", self.first, other.first)
        return Jet(
            sums("", "", self.value, other.value),
            sums("X", "", self.first, other.value) + sums("", "X", self.value, other.first),
            sums("XY", "", self.second, other.value)
            + sums("", "XY", self.value, other.second)
            + cross
            + cross.swapaxes(0, 1),
        )

    @cached_property
    def parts(self) -> tuple[tuple[int, ...], int]:
        """Shape of the value and number of variables."""
        return self.value.shape, len(self.first)

    def flat(self) -> Array:
        """Return all numbers as one vector."""
        return np.concatenate([self.value.ravel(), self.first.ravel(), self.second.ravel()])

    def like(self, vector: Array) -> Jet:
        """Return a jet of the same shape from a vector of :meth:`flat`."""
        shape, n = self.parts
        size = self.value.size
        return Jet(
            vector[:size].reshape(shape),
            vector[size : size * (1 + n)].reshape(n, *shape),
            vector[size * (1 + n) :].reshape(n, n, *shape),
        )


@dataclass(frozen=True)
class Leading:
    """Observables of a network to leading order in 1/N.

    Attributes
    ----------
    jets : dict of str to Jet
        ``f`` (T, P), ``loss`` and ``train_loss`` (T,), ``Phi`` and ``tangent_kernel`` (T, P, P), ``G``
        (T,), with their derivatives by the n = (P + 1)^2 entries of ``M(0)``.
    cumulants : ndarray, shape (n, n)
        N times the covariance of the entries of ``M(0)``.
    """

    jets: dict[str, Jet]
    cumulants: Array

    def limit(self, name: str) -> Array:
        """Return the limit of infinite width."""
        return self.jets[name].value

    def scaled_variance(self, name: str) -> Array:
        """Return the limit of ``N Var``."""
        first = self.jets[name].first
        return np.asarray(np.einsum("i...,ij,j...->...", first, self.cumulants, first))

    def scaled_shift(self, name: str) -> Array:
        """Return the limit of ``N (mean - limit)``."""
        return np.asarray(np.einsum("ij...,ij->...", self.jets[name].second, self.cumulants) / 2)

    def scaled_covariance(self, first: Jet, second: Jet) -> Array:
        """Return the limit of ``N Cov`` of all pairs of entries of two jets, of both shapes in turn."""
        return np.tensordot(first.first, np.tensordot(self.cumulants, second.first, 1), (0, 0))


def leading_order(network: OneLayer) -> Leading:
    """Compute the leading order in 1/N for one hidden linear layer and any number of samples.

    With ``M(0) = S + X``, ``N <X_ab X_cd> = S_ac S_bd + S_ad S_bc``, an observable O has ``N Var = O_i
    O_j`` and ``N shift = (1/2) O_ij`` contracted with these cumulants.  Derivatives are exact; the flow is
    integrated to 1e-12.

    Parameters
    ----------
    network : OneLayer
        The network.

    Returns
    -------
    Leading
        Limits, variances, shifts and covariances.
    """
    S = network.covariance
    size = len(S)
    n = size**2
    start = Jet(S, np.eye(n).reshape(n, size, size), np.zeros((n, n, size, size)))
    cumulants = np.einsum("ac,bd->abcd", S, S) + np.einsum("ad,bc->abcd", S, S)
    outputs: list[Jet] = []
    first = start[0, 1:] * (1 / network.gamma0 if network.centred else 0.0)
    now = start
    for t in range(network.steps + 1):
        outputs.append(now)
        if t < network.steps:
            now = _flow(network, now, first) if network.flow else _step(network, now, first)
    return Leading(_observables(network, outputs, first), cumulants.reshape(n, n))


def _error(network: OneLayer, M: Jet, first: Jet) -> Jet:
    """Return the jet of ``Delta = y - f + f(0)``, f(0) only if centred."""
    minus = M[0, 1:] * (-1 / network.gamma0) + first
    return Jet(minus.value + network.targets, minus.first, minus.second)


def _rate(network: OneLayer, error: Jet) -> Jet:
    """Return the jet of ``gamma0 B(Delta)``."""

    def matrix(Delta: Array) -> Array:
        B = np.zeros((*Delta.shape[:-1], Delta.shape[-1] + 1, Delta.shape[-1] + 1))
        B[..., 0, 1:] = Delta
        B[..., 1:, 0] = Delta @ network.kernel
        return network.gamma0 * B

    return Jet(matrix(error.value), matrix(error.first), matrix(error.second))


def _step(network: OneLayer, M: Jet, first: Jet) -> Jet:
    """Return ``U M U^T``."""
    U = _rate(network, _error(network, M, first)) * network.eta
    U = Jet(U.value + np.eye(len(M.value)), U.first, U.second)
    return U.product(M, "ab,bc->ac").product(U, "ac,dc->ad")


def _flow(network: OneLayer, M: Jet, first: Jet) -> Jet:
    """Integrate ``dM/dt = gamma0 (B M + M B^T)`` over the time eta."""

    def slope(_: float, vector: Array) -> Array:
        now = M.like(vector)
        B = _rate(network, _error(network, now, first))
        return (B.product(now, "ab,bc->ac") + now.product(B, "ab,cb->ac")).flat()

    solution = solve_ivp(slope, (0, network.eta), M.flat(), "DOP853", [network.eta], rtol=1e-12, atol=1e-13)
    return M.like(solution.y[:, -1])


def _observables(network: OneLayer, outputs: list[Jet], first: Jet) -> dict[str, Jet]:
    """Return the jets of the observables from those of M at all times."""
    P = len(network.targets)
    found: dict[str, list[Jet]] = {}
    for M in outputs:
        error = _error(network, M, first)
        square = error.product(error, "a,a->")
        G, Phi = M[0, 0], M[1:, 1:]
        shifted = error * -1.0
        kernel = np.asarray(network.kernel, dtype=float)
        learnt = Jet(
            np.multiply.outer(G.value, kernel),
            np.multiply.outer(G.first, kernel),
            np.multiply.outer(G.second, kernel),
        )
        now = {
            "f": Jet(shifted.value + network.targets, shifted.first, shifted.second),
            "loss": square * 0.5,
            "train_loss": square * (1 / P),
            "Phi": Phi,
            "G": G,
            "tangent_kernel": Phi + learnt,
        }
        for name, jet in now.items():
            found.setdefault(name, []).append(jet)
    return {
        name: Jet(
            np.stack([x.value for x in jets]),
            np.stack([x.first for x in jets], axis=1),
            np.stack([x.second for x in jets], axis=2),
        )
        for name, jets in found.items()
    }


# -- any number of samples: draws --------------------------------------------------------------------------


def draw_gram(network: OneLayer, width: int, count: int, rng: np.random.Generator) -> Array:
    """Draw ``M(0)`` of networks of one width, (count, P + 1, P + 1), by Bartlett's decomposition (N > P)."""
    values, vectors = np.linalg.eigh(network.covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))
    size = len(values)
    triangle = np.tril(rng.standard_normal((count, size, size)), -1)
    degrees = width - np.arange(size)
    triangle[:, np.arange(size), np.arange(size)] = np.sqrt(rng.chisquare(degrees, (count, size)))
    factor = root @ triangle
    return np.asarray(factor @ factor.swapaxes(1, 2) / width)


def recursion(network: OneLayer, M: Array) -> dict[str, Array]:
    """Return the observables of networks under gradient descent from their ``M(0)``, (count, P + 1, P + 1).

    Names and shapes are those of ``networks.train``: each (count, T, ...).
    """
    kernel, gamma0 = np.asarray(network.kernel, dtype=float), network.gamma0
    first = M[:, 0, 1:] / gamma0 if network.centred else 0.0
    U = np.zeros_like(M)
    series: list[dict[str, Array]] = []
    for _ in range(network.steps + 1):
        f = M[:, 0, 1:] / gamma0 - first
        error = network.targets - f
        G, Phi = M[:, :1, :1], M[:, 1:, 1:]
        loss = (error**2).sum(axis=1)
        series.append(
            {
                "f": f,
                "loss": loss / 2,
                "train_loss": loss / error.shape[1],
                "Phi": Phi[:, None],
                "G": G[:, None],
                "tangent_kernel": Phi + kernel * G,
            }
        )
        U[:] = np.eye(M.shape[1])
        U[:, 0, 1:] += network.eta * gamma0 * error
        U[:, 1:, 0] += network.eta * gamma0 * error @ kernel
        M = U @ M @ U.swapaxes(1, 2)
    return {name: np.stack([x[name] for x in series], axis=1) for name in series[0]}


def draw(network: OneLayer, width: int, count: int, seed: int) -> Samples:
    """Draw networks of one width by their matrices M, with entries of ``M(0)`` and products as controls."""
    rng = np.random.default_rng(seed)
    M = draw_gram(network, width, count, rng)
    S = network.covariance
    rows, columns = np.triu_indices(len(S))
    linear = (M - S)[:, rows, columns]
    cumulants = np.einsum("ac,bd->abcd", S, S) + np.einsum("ad,bc->abcd", S, S)
    cumulants = cumulants[rows, columns][:, rows, columns] / width
    square = np.einsum("xi,xj->xij", linear, linear) - cumulants
    pairs = np.triu_indices(len(rows))
    return Samples(
        width, recursion(network, M), np.concatenate([linear, square[:, pairs[0], pairs[1]]], axis=1)
    )
