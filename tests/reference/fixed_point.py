"""The published scheme for deep linear networks: iterate matrix equations over all times at once.

selfconsistent2023 F.1-F.4, with the operators as the conditioning rule gives them (the response A enters
C without the error and the sample sum, B enters D without the error; F.2 prints both inside):

    C^l_mu(t,s)    = A^{l-1}_mu(t,s) + w(t,s) sum_alpha Delta_alpha(s) H^{l-1}_{mu alpha}(t,s)
    D^l_alpha(t,s) = B^l_alpha(t,s) + w(t,s) Delta_alpha(s) G^{l+1}(t,s)
    H^l = M [H^{l-1} + g^2 C G^{l+1} C^T] M^T,    M = (I - g^2 C D)^{-1}     (PT x PT),   A^l = M C
    G^l = N [G^{l+1} + g^2 D H^{l-1} D^T] N^T,    N = (I - g^2 D C)^{-1}     (T x T),     B^{l-1} = N D
    f_mu(t) = <g^L(t) h^L_mu(t)>/g = [M (H^{L-1} D^T + C G^{L+1}) N^T]_{mu t, t}

with g = gamma_0 and w(t,s) the weight with which the update at s has entered the weights at t.

Between the sweeps Delta is recomputed. predictions = "tangent" is the paper's way: step df/dt = K(t,t)
Delta with the current kernels (Euler, flow only). predictions = "output" inserts the output <g h>/g of
the sweep, which is exact for discrete steps and any weights; over a long run this overshoots like
exp(lambda t) before it converges, so the time axis is taken in windows: each is iterated to convergence
from the solution on the earlier times held constant. The map is strictly causal, so the windows change
nothing but the way there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .solution import Solution

Array = NDArray[np.float64]


class NotSettled(RuntimeError):
    """Raised if the iteration did not reach its tolerance; the message gives the last change."""


@dataclass
class _Layers:
    """Current iterate: H[l] (PT,PT), A[l] (PT,T), B[l] (T,PT), l = 0..L; G[l] (T,T), l = 1..L+1; f (P,T)."""

    H: list[Array]
    G: list[Array]
    A: list[Array]
    B: list[Array]
    f: Array

    def change(self, other: _Layers) -> float:
        """Return the largest change of any entry, relative to the largest entry of its kind (at least 1)."""
        pairs = [(self.f, other.f)]
        for name in ("H", "G", "A", "B"):
            pairs += zip(getattr(self, name), getattr(other, name), strict=True)
        changes = [np.abs(new - old).max() / np.maximum(1.0, np.abs(new).max()) for old, new in pairs]
        return float(np.max(changes))  # nan if any is


def _lazy(kernel: Array, depth: int, times: int) -> _Layers:
    samples = len(kernel)
    ones = np.ones((times, times))
    big: Array = np.kron(kernel, ones).astype(np.float64)
    tall = np.zeros((samples * times, times))
    return _Layers(
        H=[big.copy() for _ in range(depth + 1)],
        G=[ones.copy() for _ in range(depth + 2)],  # G[0] is unused
        A=[tall.copy() for _ in range(depth + 1)],
        B=[tall.T.copy() for _ in range(depth + 1)],
        f=np.zeros((samples, times)),
    )


def _inverse(identity: int, product_left: Array, product_right: Array, g2: float, low_rank: bool) -> Array:
    if not low_rank:
        return np.asarray(np.linalg.inv(np.eye(identity) - g2 * product_left @ product_right))
    small = np.eye(product_left.shape[1]) - g2 * product_right @ product_left
    return np.asarray(np.eye(identity) + g2 * product_left @ np.linalg.solve(small, product_right))


def _sweep(now: _Layers, error: Array, weights: Array, gamma0: float, low_rank: bool) -> _Layers:
    """Return the result of one application of F.4 to every layer, all from the old iterate."""
    samples, times = error.shape
    depth = len(now.H) - 1
    size, g2 = samples * times, gamma0**2
    new = _Layers(list(now.H), list(now.G), list(now.A), list(now.B), now.f)
    for layer in range(1, depth + 1):
        below = now.H[layer - 1].reshape(samples, times, samples, times)
        pushed = np.einsum("mtas,as->mts", below, error, optimize=True) * weights
        c = now.A[layer - 1] + pushed.reshape(size, times)
        above = (now.G[layer + 1] * weights)[:, None, :] * error[None]
        d = now.B[layer] + above.reshape(times, size)
        m = _inverse(size, c, d, g2, low_rank)
        n = np.linalg.inv(np.eye(times) - g2 * d @ c)
        h_prev, g_next = now.H[layer - 1], now.G[layer + 1]
        if low_rank:  # never form a product of two PT x PT matrices
            tall = m @ c
            mh = h_prev + g2 * (tall @ (d @ h_prev))
            new.H[layer] = mh + g2 * ((mh @ d.T) @ tall.T) + g2 * tall @ g_next @ tall.T
        else:
            new.H[layer] = m @ (h_prev + g2 * c @ g_next @ c.T) @ m.T
        new.G[layer] = n @ (g_next + g2 * d @ h_prev @ d.T) @ n.T
        new.A[layer] = m @ c
        new.B[layer - 1] = n @ d
        if layer == depth:
            cross = (m @ (h_prev @ d.T + c @ g_next) @ n.T).reshape(samples, times, times)
            new.f = np.einsum("mtt->mt", cross).copy()
    return new


def _mix(old: _Layers, new: _Layers, damping: float) -> _Layers:
    if damping == 0.0:
        return new

    def blend(a: list[Array], b: list[Array]) -> list[Array]:
        return [damping * x + (1 - damping) * y for x, y in zip(a, b, strict=True)]

    f = damping * old.f + (1 - damping) * new.f
    return _Layers(blend(old.H, new.H), blend(old.G, new.G), blend(old.A, new.A), blend(old.B, new.B), f)


def _tangent(state: _Layers, samples: int, times: int) -> Array:
    """Return sum_{l=0}^{L} G^{l+1}(t,s) H^l_{mu alpha}(t,s), shape (P,T,P,T)."""
    total = np.zeros((samples, times, samples, times))
    for layer in range(len(state.H)):
        h = state.H[layer].reshape(samples, times, samples, times)
        total += state.G[layer + 1][None, :, None, :] * h
    return total


def _tangent_predictions(state: _Layers, targets: Array, weights: Array) -> Array:
    """Return f from df/dt = K(t,t) Delta, stepped with ``weights`` (the paper: Euler's), shape (P,T)."""
    samples, times = state.f.shape
    diagonal = np.einsum("mtat->tma", _tangent(state, samples, times))
    f, slopes = np.zeros((samples, times)), np.zeros((samples, times))
    for t in range(times):
        f[:, t] = slopes[:, :t] @ weights[t, :t]
        slopes[:, t] = diagonal[t] @ (targets - f[:, t])
    return f


def _held(state: _Layers, count: int) -> _Layers:
    """Return the iterate on a grid of ``count`` times: the last known time repeated, responses causal."""
    samples, known = state.f.shape
    index = np.minimum(np.arange(count), known - 1)
    causal = np.tri(count, k=-1)

    def wide(h: Array) -> Array:
        grid: Array = h.reshape(samples, known, samples, known)[:, index][:, :, :, index]
        return grid.reshape(samples * count, samples * count)

    def tall(a: Array) -> Array:
        grid: Array = a.reshape(samples, known, known)[:, index][:, :, index] * causal
        return grid.reshape(samples * count, count)

    def flat(b: Array) -> Array:
        grid: Array = b.reshape(known, samples, known)[index][:, :, index] * causal[:, None, :]
        return grid.reshape(count, samples * count)

    return _Layers(
        H=[wide(h) for h in state.H],
        G=[g[index][:, index] for g in state.G],
        A=[tall(a) for a in state.A],
        B=[flat(b) for b in state.B],
        f=state.f[:, index],
    )


def fixed_point(  # noqa: PLR0913 (the inputs and options of the published scheme)
    kernel: Array,
    targets: Array,
    weights: Array,
    *,
    depth: int,
    gamma0: float,
    tolerance: float = 1e-13,
    max_iterations: int = 2000,
    damping: float = 0.0,
    predictions: str = "output",
    low_rank: bool = False,
    window: int | None = None,
) -> Solution:
    """Iterate F.1-F.4 from the lazy kernels until nothing changes by more than ``tolerance``.

    ``kernel`` (P,P), ``targets`` (P,), ``weights`` (T,T) strictly lower triangular (gradient descent:
    the rate below the diagonal; flow: Adams-Bashforth weights times the rate; ``adams_weights.py``).
    ``predictions``: "output" or "tangent", see above; only "output" is exact. ``damping``: fraction of
    the old iterate that is kept. ``window``: number of times that are converged together (default: all
    of them). ``low_rank`` replaces the published PT x PT inverse and products by the equal T x T ones
    (Woodbury): the same numbers, several times faster; leave it off when timing the published scheme.
    Changes are relative to the largest entry of each kernel, and at least absolute.
    ``Solution.iterations`` counts sweeps over all layers. Raises ``ValueError`` on an impossible
    option, ``NotSettled`` if the tolerance is not met in ``max_iterations`` sweeps or the iterate
    overflows.

    One step at unit rate in the lazy limit, L + 1 layers that learn, K = 1:

    >>> one_step = np.array([[0.0, 0.0], [1.0, 0.0]])
    >>> s = fixed_point(np.eye(1), np.array([0.5]), one_step, depth=1, gamma0=0.0)
    >>> float(s.f[1, 0])
    1.0
    """
    if predictions not in ("output", "tangent"):
        raise ValueError(f"predictions = {predictions!r}: must be 'output' or 'tangent'")
    if np.any(np.triu(weights) != 0.0):
        raise ValueError("weights must be strictly lower triangular")
    if not 0.0 <= damping < 1.0 or (window is not None and window < 1):
        raise ValueError(f"damping = {damping}, window = {window}: must be in [0, 1) and >= 1")
    samples, times = len(kernel), len(weights)
    ends = [times]
    if window is not None:
        ends = [*range(window, times, window), times]
    state = _lazy(kernel, depth, ends[0])
    residuals: list[float] = []
    for end in ends:
        state = _held(state, end)
        w = weights[:end, :end]
        if predictions == "tangent":
            state.f = _tangent_predictions(state, targets, w)
        change = np.inf
        while not change <= tolerance:
            with np.errstate(over="ignore", invalid="ignore"):  # an overflow ends as NotSettled
                proposal = _sweep(state, targets[:, None] - state.f, w, gamma0, low_rank)
                new = _mix(state, proposal, damping)
                if predictions == "tangent":
                    new.f = _tangent_predictions(new, targets, w)
                change = state.change(new) / (1.0 - damping)
            residuals.append(change)
            state = new
            if len(residuals) >= max_iterations or not np.isfinite(change):
                raise NotSettled(f"change {change:.1e} after {len(residuals)} sweeps, wanted {tolerance:.1e}")
    return _solution(state, targets, samples, times, residuals)


def _solution(state: _Layers, targets: Array, samples: int, times: int, residuals: list[float]) -> Solution:
    depth = len(state.H) - 1
    shape = (samples, times, samples, times)
    return Solution(
        Phi=np.stack([state.H[k].reshape(shape).transpose(1, 3, 0, 2) for k in range(1, depth + 1)]),
        G=np.stack(state.G[1 : depth + 1]),
        A=np.stack(
            [state.A[k].reshape(samples, times, times).transpose(1, 2, 0) for k in range(1, depth + 1)]
        ),
        B=np.stack(
            [state.B[k].reshape(times, samples, times).transpose(0, 2, 1) for k in range(1, depth + 1)]
        ),
        f=state.f.T.copy(),
        error=(targets[:, None] - state.f).T.copy(),
        tangent_kernel=_tangent(state, samples, times).transpose(1, 3, 0, 2).copy(),
        iterations=len(residuals),
        residuals=tuple(residuals),
    )
