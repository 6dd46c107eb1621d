"""The few preselected curves by which theory and networks are compared, one value per network and time.

Two-time kernels have thousands of entries that move together; a handful of summaries, kept network by
network, has honest error bars and covariances. The curves, all at equal times unless stated:

    train_loss            mean_mu Delta_mu(t)^2
    Phi[l], Phi0[l]       mean_mu H^l_{mu mu}(t,t) and mean_mu H^l_{mu mu}(t,0), each hidden layer
    G[l], G0[l]           G^l(t,t) and G^l(t,0), each hidden layer
    tangent_kernel        mean_mu K_{mu mu}(t,t)
"""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from .record import History

Array = NDArray[np.float64]


def series_names(depth: int) -> list[str]:
    """Names of the curves, in the order of the ``observable`` axis.

    >>> series_names(1)
    ['train_loss', 'Phi[1]', 'Phi0[1]', 'G[1]', 'G0[1]', 'tangent_kernel']
    """
    layers = range(1, depth + 1)
    kinds = ("Phi", "Phi0", "G", "G0")
    return ["train_loss", *(f"{kind}[{layer}]" for kind in kinds for layer in layers), "tangent_kernel"]


def network_series(history: History) -> Array:
    """The curves of one network, shape (observable, time)."""
    h, g = history.h, history.g
    P, N = h.shape[2], h.shape[3]
    phi = np.einsum("ltmi,ltmi->lt", h, h) / (P * N)
    phi0 = np.einsum("ltmi,lmi->lt", h, h[:, 0]) / (P * N)
    gg = np.einsum("lti,lti->lt", g, g) / N
    gg0 = np.einsum("lti,li->lt", g, g[:, 0]) / N
    # sum_l G^{l+1} H^l with H^0 = K^x and G^{L+1} = 1
    below = np.concatenate([np.full((1, len(history.times)), float((history.inputs**2).mean())), phi])
    above = np.concatenate([gg, np.ones((1, len(history.times)))])
    tangent = (below * above).sum(axis=0)
    return np.concatenate([history.train_loss[None], phi, phi0, gg, gg0, tangent[None]])


def theory_series(theory: xr.Dataset) -> xr.DataArray:
    """The same curves (observable, time) from a dataset with train_loss, G, Phi and tangent_kernel.

    In place of the last two, Phi_trace and tangent_trace (summed over equal samples) will do.
    """
    diagonal = np.arange(theory.sizes["sample"])
    t = np.arange(theory.sizes["time"])
    g = theory["G"].to_numpy()
    if "Phi" in theory:
        phi = theory["Phi"].to_numpy()[:, :, :, diagonal, diagonal].mean(axis=-1)
    else:
        phi = theory["Phi_trace"].to_numpy() / len(diagonal)
    if "tangent_kernel" in theory:
        kernel = theory["tangent_kernel"].to_numpy()
        tangent = kernel[t[:, None], t[:, None], diagonal, diagonal].mean(axis=-1)
    else:
        tangent = theory["tangent_trace"].to_numpy()[t, t] / len(diagonal)
    loss = theory["train_loss"].to_numpy()
    return xr.DataArray(
        np.concatenate([loss[None], phi[:, t, t], phi[:, :, 0], g[:, t, t], g[:, :, 0], tangent[None]]),
        dims=("observable", "time"),
        coords={"observable": series_names(theory.sizes["layer"]), "time": theory["time"].to_numpy()},
    )
