"""The deep linear theory solved forward in time, every field written out on its Gaussian sources.

No matrix is inverted and nothing is iterated. At each time step, for each layer and sample, the field is a
row of coefficients on the sources u^l_alpha(s), r^l(s) (scaled so that gamma_0 -> 0 is regular):

    h^l_mu(t) = hu . u + gamma_0 hr . r,      g^l(t) = gr . r + gamma_0 gu . u

(selfconsistent2023 eq. 13 for linear networks; appendix M for discrete steps). Kernels are quadratic
forms of these rows, responses are entries of them: A^l_mu(t,s) = hr[s], B^{l-1}_alpha(t,s) =
gu[s,alpha]. Everything is a polynomial in gamma_0^2, so the same loops run on mpmath numbers
(dtype=object).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .solution import Solution

AnyArray = NDArray[Any]


def dense_causal(  # noqa: C901, PLR0912 (one recursion in the order of its equations)
    kernel: AnyArray,
    targets: AnyArray,
    weights: AnyArray,
    *,
    depth: int,
    gamma0: Any = None,
    gamma0_squared: Any = None,
    dtype: Any = np.float64,
) -> Solution:
    """Return the order parameters of one forward pass over the grid of ``weights`` (T,T).

    Small P and T only, because the memory is L (PT)^2. ``kernel`` (P,P), ``targets`` (P,); give ``gamma0`` or
    ``gamma0_squared``. ``dtype=object`` keeps mpmath numbers, fractions or truncated power series throughout:
    only sums and products are taken.

    >>> rate = np.array([[0.0, 0.0], [1.0, 0.0]])
    >>> s = dense_causal(np.eye(1), np.array([0.5]), rate, depth=2, gamma0=0.0)
    >>> float(s.f[1, 0])
    1.5
    """
    P, T, L = len(kernel), len(weights), depth
    if (gamma0 is None) == (gamma0_squared is None):
        raise ValueError("give one of gamma0 and gamma0_squared")
    g2 = gamma0 * gamma0 if gamma0_squared is None else gamma0_squared
    hu = np.zeros((L + 1, T, P, T, P), dtype=dtype)
    hr = np.zeros((L + 1, T, P, T), dtype=dtype)
    gr = np.zeros((L + 2, T, T), dtype=dtype)
    gu = np.zeros((L + 2, T, T, P), dtype=dtype)
    H = np.zeros((L + 1, T, P, T, P), dtype=dtype)
    G = np.zeros((L + 2, T, T), dtype=dtype)
    f = np.zeros((T, P), dtype=dtype)
    error = np.zeros((T, P), dtype=dtype)
    for t in range(T):
        for s in range(T):
            H[0, t, :, s, :] = kernel
            G[L + 1, t, s] = 1

    for t in range(T):
        for k in range(1, L + 1):
            for m in range(P):
                hu[k, t, m, t, m] = hu[k, t, m, t, m] + 1
                for s in range(t):
                    c = hr[k - 1, t, m, s]
                    for a in range(P):
                        c = c + weights[t, s] * error[s, a] * H[k - 1, t, m, s, a]
                    hu[k, t, m] = hu[k, t, m] + g2 * c * gu[k, s]
                    hr[k, t, m] = hr[k, t, m] + c * gr[k, s]
            for m in range(P):
                left_u = _row_times(hu[k, t, m], H[k - 1])
                left_r = np.dot(hr[k, t, m], G[k + 1])
                for s in range(t + 1):
                    for a in range(P):
                        value = np.dot(left_u.ravel(), hu[k, s, a].ravel()) + g2 * np.dot(left_r, hr[k, s, a])
                        H[k, t, m, s, a] = H[k, s, a, t, m] = value
        for k in range(L, 0, -1):
            gr[k, t, t] = gr[k, t, t] + 1
            for s in range(t):
                for a in range(P):
                    d = gu[k + 1, t, s, a] + weights[t, s] * error[s, a] * G[k + 1, t, s]
                    gr[k, t] = gr[k, t] + g2 * d * hr[k, s, a]
                    gu[k, t] = gu[k, t] + d * hu[k, s, a]
            left_r = np.dot(gr[k, t], G[k + 1])
            left_u = _row_times(gu[k, t], H[k - 1])
            for s in range(t + 1):
                value = np.dot(left_r, gr[k, s]) + g2 * np.dot(left_u.ravel(), gu[k, s].ravel())
                G[k, t, s] = G[k, s, t] = value
        for m in range(P):
            through_u = np.dot(_row_times(hu[L, t, m], H[L - 1]).ravel(), gu[L, t].ravel())
            f[t, m] = through_u + np.dot(np.dot(hr[L, t, m], G[L + 1]), gr[L, t])
            error[t, m] = targets[m] - f[t, m]
    return _collect(H, G, hr, gu, f, error)


def _row_times(row: AnyArray, kernel: AnyArray) -> AnyArray:
    """Return sum_{s,alpha} row[s,alpha] kernel[s,alpha,s',alpha'], shape (T,P)."""
    times, samples = row.shape
    size = times * samples
    product: AnyArray = np.dot(row.reshape(size), kernel.reshape(size, size))
    return product.reshape(times, samples)


def _collect(H: AnyArray, G: AnyArray, hr: AnyArray, gu: AnyArray, f: AnyArray, error: AnyArray) -> Solution:
    L = len(H) - 1
    phi = H.transpose(0, 1, 3, 2, 4)
    tangent = sum(G[k + 1][:, :, None, None] * phi[k] for k in range(L + 1))
    return Solution(
        Phi=phi[1:],
        G=G[1 : L + 1],
        A=hr[1:].transpose(0, 1, 3, 2),
        B=gu[2:],  # B^l = d g^{l+1} / d u^{l+1}; the last is zero
        f=f,
        error=error,
        tangent_kernel=tangent,
    )
