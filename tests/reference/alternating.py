"""The published scheme for nonlinear networks: sample all paths with the kernels so far, average, repeat.

Algorithm 1 of selfconsistent2023 (appendix B), in NumPy and for exact steps of gradient descent.  With all
times t and samples mu in one index (time first), of which there are n = T P,

    h^l = u^l + gamma_0 C^l g^l,       C^l = A^{l-1} + eta Delta(s) Phi^{l-1}(t, s)  for s < t       (13)
    z^l = r^l + gamma_0 D^l phi(h^l),  D^l = B^l + eta Delta(s) G^{l+1}(t, s)  for s < t,  B^l for s = t
    g^l = phi'(h^l) z^l,   <u u> = Phi^{l-1},  <r r> = G^{l+1},   Phi^0 = K_x,  G^{L+1} = 1

One iteration draws whole trajectories of u and r (line 6), solves (13) for them (7), averages Phi and G (9),
solves for the Jacobians of each path (10) and averages A and B (12); then every kernel moves by ``beta``
towards its average (15-22).  Implicit differentiation of (13) gives the Jacobians:

    M = I - gamma_0 C [phi''(h) z] - gamma_0^2 C [phi'(h)] D [phi'(h)]          [x]: the diagonal matrix of x
    M dh/du = I,   dh/dr = gamma_0 (dh/du) C [phi'(h)]
    A^l = <[phi'] dh/dr> / gamma_0,   B^{l-1} = <([phi'' z] + gamma_0 [phi'] D [phi']) dh/du> / gamma_0

The last line has 1/gamma_0, as (14) has and lines 11 and 12 of the print have not.
``predictions="tangent"`` is line 3, df/dt = K(t,t) Delta by Euler steps of eta, and right for small eta;
``"output"`` is the output of the network after exact steps, M.1: f(t) = A^L(t) 1 + eta sum_s Phi^L(t,s)
Delta(s), with A^L averaged like the other responses.

``jacobians="solve"`` solves the n x n systems of all paths by LU (batched LAPACK), as the paper says.
``"causal"`` uses that M is triangular in time, which the paper does not mention: forward substitution for all
paths at once, each step one matrix product.  Both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Scalar = Callable[[Array], Array]


@dataclass(frozen=True)
class Activation:
    """A function and its first two derivatives."""

    value: Scalar
    slope: Scalar
    bend: Scalar


TANH = Activation(np.tanh, lambda h: 1 - np.tanh(h) ** 2, lambda h: -2 * np.tanh(h) * (1 - np.tanh(h) ** 2))
LINEAR = Activation(lambda h: h, np.ones_like, np.zeros_like)


@dataclass
class Kernels:
    """Order parameters, each (n, n): Phi^0..Phi^L, G^0..G^{L+1} (G^0 unused), A^0..A^L, B^0..B^L."""

    Phi: list[Array]
    G: list[Array]
    A: list[Array]
    B: list[Array]


@dataclass(frozen=True)
class Alternated:
    """Kernels after the last iteration with axes (t, s, mu, alpha), and f (T, P) and the errors Delta."""

    Phi: Array
    G: Array
    A: Array
    B: Array
    f: Array
    error: Array
    changes: tuple[float, ...]
    """The largest change of any Phi, G, A or B in each iteration."""


def alternating(  # noqa: PLR0913 (the inputs and options of the published algorithm 1)
    kernel: Array,
    targets: Array,
    activation: Activation,
    *,
    depth: int,
    gamma0: float,
    rate: float,
    times: int,
    samples: int,
    iterations: int = 20,
    beta: float = 0.6,
    seed: int = 0,
    predictions: str = "output",
    jacobians: str = "solve",
) -> Alternated:
    """Return kernels at ``times`` times from ``samples`` paths in each of ``iterations`` iterations."""
    rng = np.random.default_rng(seed)
    count = len(targets)
    now = _lazy(kernel, activation, depth, times, samples, rng)
    changes = []
    for _ in range(iterations):
        error = targets - _predictions(now, kernel, targets, rate, times, predictions)
        new = Kernels(list(now.Phi), list(now.G), list(now.A), list(now.B))
        for layer in range(1, depth + 1):
            _layer(now, new, layer, error, activation, gamma0, rate, samples, rng, jacobians, predictions)
        gap = 0.0
        for old, fresh in ((now.Phi, new.Phi), (now.G, new.G), (now.A, new.A), (now.B, new.B)):
            for k, x in enumerate(fresh):
                if x is not old[k]:
                    gap = max(gap, float(np.abs(x - old[k]).max()))
                    old[k] = (1 - beta) * old[k] + beta * x
        changes.append(gap)
    f = _predictions(now, kernel, targets, rate, times, predictions)

    def shaped(kernels: list[Array]) -> Array:
        stacked = np.stack(kernels).reshape(-1, times, count, times, count)
        return stacked.transpose(0, 1, 3, 2, 4)

    return Alternated(
        *(shaped(x[1 : depth + 1]) for x in (now.Phi, now.G, now.A, now.B)), f, targets - f, tuple(changes)
    )


def _lazy(kernel: Array, phi: Activation, depth: int, times: int, samples: int, rng) -> Kernels:
    """Return the initial guess: kernels of the network before training at all times, no responses."""
    count = len(kernel)
    ones = np.ones((times, times))
    small, slopes = [kernel], []
    for _ in range(depth):
        h = _gaussian(small[-1], samples, rng)
        small.append(phi.value(h) @ phi.value(h).T / samples)
        slopes.append(phi.slope(h) @ phi.slope(h).T / samples)
    back = [np.ones((count, count))]
    for slope in reversed(slopes):
        back.insert(0, slope * back[0])
    zero = np.zeros((count * times,) * 2)
    return Kernels(
        [np.kron(ones, x) for x in small],
        [zero] + [np.kron(ones, x) for x in back],
        [zero] * (depth + 1),
        [zero] * (depth + 1),
    )


def _gaussian(covariance: Array, samples: int, rng) -> Array:
    """Return independent Gaussian draws, one a column; the covariance may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    used = np.where(values > 1e-13 * values[-1], values, 0.0)
    root = (vectors * np.sqrt(used)) @ vectors.T
    return root @ rng.standard_normal((len(root), samples))


def _predictions(now: Kernels, kernel: Array, targets: Array, rate: float, times: int, way: str) -> Array:
    """Return f(t) by line 3 or by M.1, shape (T, P)."""
    count = len(targets)
    grid = (times, count, times, count)
    if way == "tangent":
        products = [p * g for p, g in zip(now.Phi, now.G[1:], strict=True)]
        tangent = np.einsum("tatb->tab", np.sum(products, axis=0).reshape(grid))
        f = np.zeros((times, count))
        for t in range(1, times):
            f[t] = f[t - 1] + rate * tangent[t - 1] @ (targets - f[t - 1])
        return f
    last = now.Phi[-1].reshape(grid)
    pushed = now.A[-1].reshape(grid)[..., 0].sum(axis=2)
    error = np.zeros((times, count))
    for t in range(times):
        error[t] = targets - pushed[t] - rate * np.einsum("asb,sb->a", last[t, :, :t], error[:t])
    return targets - error


def _layer(  # noqa: PLR0913 (the variables of lines 6 to 12 of the published algorithm 1)
    now: Kernels,
    new: Kernels,
    layer: int,
    error: Array,
    phi: Activation,
    gamma0: float,
    rate: float,
    samples: int,
    rng,
    jacobians: str,
    predictions: str,
) -> None:
    """Sample the paths of one layer and average them into its new kernels and responses (lines 6 to 12)."""
    times, count = error.shape
    depth = len(now.Phi) - 1
    u = _gaussian(now.Phi[layer - 1], samples, rng)
    r = _gaussian(now.G[layer + 1], samples, rng)
    past = np.kron(np.tri(times, k=-1), np.ones((count, count)))
    c = now.A[layer - 1] * past + rate * past * now.Phi[layer - 1] * error.ravel()
    d = now.B[layer] * np.kron(np.tri(times), np.ones((count, count)))
    d = d + rate * past * now.G[layer + 1] * error.ravel()
    h, z, value, g = u, r, np.zeros_like(u), np.zeros_like(u)
    for t in range(times):
        here, before, through = (
            slice(t * count, (t + 1) * count),
            slice(0, t * count),
            slice(0, (t + 1) * count),
        )
        h[here] += gamma0 * c[here, before] @ g[before]
        value[here] = phi.value(h[here])
        z[here] += gamma0 * d[here, through] @ value[through]
        g[here] = phi.slope(h[here]) * z[here]
    new.Phi[layer] = value @ value.T / samples
    new.G[layer] = g @ g.T / samples
    want_a = layer < depth or predictions == "output"
    want_b = layer > 1
    if not want_a and not want_b:
        return
    slope, bend = phi.slope(h), phi.bend(h) * z
    way = _by_solving if jacobians == "solve" else _by_substitution
    a, b = way(c, d, slope, bend, gamma0, count, want_a, want_b)
    if want_a:
        # r^L(s) is the same at all s and samples: the derivative by it is the sum over the columns
        new.A[layer] = a if layer < depth else _first_column(a)
    if want_b:
        new.B[layer - 1] = b


def _first_column(a: Array) -> Array:
    found = np.zeros_like(a)
    found[:, 0] = a.sum(axis=1)
    return found


def _by_solving(  # noqa: PLR0913 (the symbols of the published equation)
    c: Array, d: Array, slope: Array, bend: Array, gamma0: float, count: int, want_a: bool, want_b: bool
) -> tuple[Array, Array]:
    """Return the Jacobians by an LU of each path, in chunks that stay in the cache."""
    n, samples = slope.shape
    a, b = np.zeros((n, n)), np.zeros((n, n))
    one = np.eye(n)
    chunk = max(1, 2**21 // n**2)
    for start in range(0, samples, chunk):
        p, q = slope[:, start : start + chunk].T, bend[:, start : start + chunk].T
        answer = gamma0 * (p[:, :, None] * d) * p[:, None, :]  # dg/dh behind the explicit bend
        answer[:, range(n), range(n)] += q
        found = np.linalg.solve(one - gamma0 * (c @ answer), np.broadcast_to(one, answer.shape))  # dh/du
        if want_a:
            a += np.einsum("xi,xij,xj->ij", p, found @ c, p, optimize=True)
        if want_b:
            b += (answer @ found).sum(axis=0)
    return a / samples, b / (samples * gamma0)


def _by_substitution(  # noqa: PLR0913 (the symbols of the published equation)
    c: Array, d: Array, slope: Array, bend: Array, gamma0: float, count: int, want_a: bool, want_b: bool
) -> tuple[Array, Array]:
    """Return the Jacobians by forward substitution, for all paths and the sources of one time together."""
    n, samples = slope.shape
    a, b = np.zeros((n, n)), np.zeros((n, n))
    for first in range(0, n, count):
        later = slice(first, n)
        for by_r in (True, False):
            if not (want_a if by_r else want_b):
                continue
            # derivatives of phi(h) and g at times from ``first`` on, (times x samples, sources, paths)
            value, g = np.zeros((2, n - first, count, samples))
            for at in range(0, n - first, count):
                here, through = slice(at, at + count), slice(0, at + count)
                rows = slice(first + at, first + at + count)
                columns = slice(first, first + at + count)
                flat = gamma0 * c[rows, first : first + at] @ g[:at].reshape(at, count * samples)
                dh = flat.reshape(count, count, samples)
                if at == 0 and not by_r:
                    dh += np.eye(count)[:, :, None]
                value[here] = slope[rows, None] * dh
                flat = gamma0 * d[rows, columns] @ value[through].reshape(at + count, -1)
                dz = flat.reshape(count, count, samples)
                if at == 0 and by_r:
                    dz += np.eye(count)[:, :, None]
                g[here] = slope[rows, None] * dz + bend[rows, None] * dh
            block = slice(first, first + count)
            if by_r:
                a[later, block] = value.mean(axis=2) / gamma0
            else:
                b[later, block] = g.mean(axis=2) / gamma0
    return a, b
