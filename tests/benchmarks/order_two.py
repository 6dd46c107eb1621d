"""Linear theory to order gamma0^2 written by hand with running sums in NumPy.

The coefficients are those that the engine derives (`dmft expand --show text`), typed here as an expectation.
"""

from __future__ import annotations

import numpy as np


def before(a):
    """Return sums over earlier steps."""
    out = np.zeros_like(a)
    np.cumsum(a[:-1], axis=0, out=out[1:])
    return out


def stepped(K, drive, eta, L):
    """Return ``Delta(t) = drive(t) - (L + 1) K sum_{s<t} eta Delta(s)``."""
    out, v = np.empty_like(drive), np.zeros(drive.shape[1])
    for t in range(len(drive)):
        out[t] = drive[t] - (L + 1) * (K @ v)
        v = v + eta * out[t]
    return out


def order_two(K, y, eta, T, L):
    """Return orders 0 and 2 of every result of `dmft expand` for exact steps on the summed loss."""
    zero = stepped(K, np.broadcast_to(y, (T, len(y))), eta, L)
    d = eta * zero
    a = d @ K
    v, c = before(d), before(a)
    W = before(a[:, :, None] * c[:, None, :])
    u = before((d * c).sum(1))
    x = before(np.einsum("ta,tam->tm", d, W))
    r = before(a * u[:, None])
    k = L**4 / 12 + L**3 / 3 + 5 * L**2 / 12 + L / 6
    two = stepped(K, -k * (x + np.einsum("tma,ta->tm", W, v) + c * u[:, None] + r), eta, L)
    e = eta * two
    past = np.tril(np.ones((T, T)), -1)
    cc = c[:, None, :, None] * c[None, :, None, :]
    ww = W[:, None] + W.transpose(0, 2, 1)[None]
    uu, vkv = u[:, None] + u, v @ K @ v.T
    ones = np.ones((T, T))
    Phi, G = np.empty((2, L, T, T, *K.shape)), np.empty((2, L, T, T))
    A, B = np.empty((2, L, T, T, len(y))), np.empty((2, L, T, T, len(y)))
    later = np.minimum(np.arange(T) + 1, T - 1)  # s + 1
    dc = (v @ a.T - (v[later] * a).sum(1)) * past
    cdc = before(dc[:, :, None] * a[:, None, :])
    dcd = (u[:, None] - u[later] - (v @ c[later].T - (v[later] * c[later]).sum(1))) * past
    Wd = np.einsum("tma,sa->tsm", W, d) + np.einsum("sam,sa->sm", W, d)
    cd = c[:, None, :] * (c * d).sum(1)[None, :, None]
    for i, n in enumerate(range(1, L + 1)):
        Phi[0, i], G[0, i] = K, ones
        Phi[1, i] = (n**3 / 3 + n**2 / 2 + n / 6) * cc + (L * n**2 / 2 + L * n / 2 - n**3 / 3 + n / 3) * ww
        G[1, i] = (
            L**3 / 6 + L**2 / 2 - L * n**2 / 2 + L * n / 2 + L / 3 + n**3 / 3 - n**2 + 2 * n / 3
        ) * uu + (
            L**3 / 3
            - L**2 * n
            + 3 * L**2 / 2
            + L * n**2
            - 3 * L * n
            + 13 * L / 6
            - n**3 / 3
            + 3 * n**2 / 2
            - 13 * n / 6
            + 1
        ) * vkv
        A[0, i] = n * past[:, :, None] * a
        A[1, i] = (
            past[:, :, None]
            * (
                n * (e @ K)
                + (n**4 / 12 - n**2 / 12) * cd
                + (L * n**3 / 6 - L * n / 6 - n**4 / 12 + n**3 / 6 + n**2 / 12 - n / 6) * Wd
            )
            + (L * n**3 / 3 + L * n**2 / 2 + L * n / 6 - n**4 / 4 - n**3 / 6 + n**2 / 4 + n / 6) * cdc
        )
        B[0, i] = (L - n) * past[:, :, None] * d
        B[1, i] = (L - n) * past[:, :, None] * e + d * (
            past
            * (
                (
                    L**4 / 12
                    - L**3 * n / 3
                    + L**2 * n**2 / 2
                    - L**2 / 12
                    - L * n**3 / 3
                    + L * n / 6
                    + n**4 / 12
                    - n**2 / 12
                )
                * vkv
                + (
                    L**4 / 12
                    - L**3 * n / 6
                    + L**3 / 6
                    - L**2 * n / 2
                    - L**2 / 12
                    + L * n**3 / 6
                    + L * n**2 / 2
                    - L / 6
                    - n**4 / 12
                    - n**3 / 6
                    + n**2 / 12
                    + n / 6
                )
                * uu
            )
            + (
                L**4 / 12
                + L**3 / 3
                - L**2 * n**2 / 2
                - L**2 * n / 2
                + 5 * L**2 / 12
                + 2 * L * n**3 / 3
                - 2 * L * n / 3
                + L / 6
                - n**4 / 4
                + n**3 / 6
                + n**2 / 4
                - n / 6
            )
            * dcd
        )[:, :, None]
    error = np.stack([zero, two])
    return {
        "error": error,
        "train_loss": np.stack([(zero**2).mean(1), 2 * (zero * two).mean(1)]),
        "Phi": Phi,
        "G": G,
        "A": A,
        "B": B,
        "tangent_kernel": np.stack(
            [
                np.broadcast_to((L + 1) * K, (T, T, *K.shape)),
                k * ((uu + vkv)[:, :, None, None] * K + cc + ww),
            ]
        ),
    }
