"""One deep linear network as explicit weight matrices: forward pass, backward pass, update.

Conventions (contract.md): h^1 = W^0 x/sqrt(D), h^{l+1} = W^l h^l/sqrt(N), f = w . h^L/(gamma_0 N), every
entry N(0,1) at the start; g^L = w, g^l = W^{l T} g^{l+1}/sqrt(N). A step of size ``rate`` adds, to all
matrices at once,

    W^0 : rate gamma_0/sqrt(D) sum_mu Delta_mu g^1 x_mu^T
    W^l : rate gamma_0/sqrt(N) sum_mu Delta_mu g^{l+1} h^l_mu^T
    w   : rate gamma_0         sum_mu Delta_mu h^L_mu

which is -rate gamma_0^2 N times the gradient of (1/2) sum_mu Delta_mu^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dgemm, dger

Array = NDArray[np.float64]


@dataclass
class Parameters:
    """Weights of one network: ``matrices`` = [W^0 (N,D), W^1 (N,N), ..., W^{L-1}], ``readout`` = w (N,).

    Matrices are column-major so that BLAS updates them in place.
    """

    matrices: list[Array]
    readout: Array
    gamma0: float

    @property
    def width(self) -> int:
        return len(self.readout)

    def copy(self, readout_sign: float = 1.0) -> Parameters:
        """An independent copy, with the sign of the readout flipped if asked."""
        matrices = [m.copy(order="F") for m in self.matrices]
        return Parameters(matrices, readout_sign * self.readout, self.gamma0)


@dataclass(frozen=True)
class Velocity:
    """What the update adds to each matrix: ``lefts[l]`` (N,) outer ``rights[l]``; to the readout: a vector.

    In a linear network sum_mu Delta_mu g h_mu^T is the single outer product g (sum_mu Delta_mu h_mu)^T.
    """

    lefts: Sequence[Array]
    rights: Sequence[Array]
    readout: Array


def draw_parameters(
    inputs: int, depth: int, width: int, gamma0: float, rng: np.random.Generator
) -> Parameters:
    """Weights at the start, all entries N(0,1).

    >>> p = draw_parameters(2, depth=3, width=4, gamma0=1.0, rng=np.random.default_rng(0))
    >>> [m.shape for m in p.matrices], p.readout.shape
    ([(4, 2), (4, 4), (4, 4)], (4,))
    """
    sizes = [inputs] + [width] * (depth - 1)
    # drawn transposed: the transpose of a C-ordered draw is column-major without a copy
    matrices = [rng.standard_normal((size, width)).T for size in sizes]
    return Parameters(matrices, rng.standard_normal(width), gamma0)


def forward(parameters: Parameters, inputs: Array, kicks: Mapping[int, Array] | None = None) -> list[Array]:
    """[x, h^1, ..., h^L], shapes (P,D), (P,N), ...; ``kicks[l]`` (P,N) is added to h^l as it is computed."""
    fields = [inputs]
    for layer, matrix in enumerate(parameters.matrices, start=1):
        field = fields[-1] @ matrix.T / np.sqrt(matrix.shape[1])
        if kicks and layer in kicks:
            field = field + kicks[layer]
        fields.append(field)
    return fields


def backward(parameters: Parameters, kicks: Mapping[int, Array] | None = None) -> list[Array]:
    """[g^1, ..., g^L], each (N,); ``kicks[l]`` (N,) is added to g^l as it is computed."""
    fields = [parameters.readout]
    depth = len(parameters.matrices)
    if kicks and depth in kicks:
        fields[0] = fields[0] + kicks[depth]
    for layer in range(depth - 1, 0, -1):
        field = parameters.matrices[layer].T @ fields[-1] / np.sqrt(parameters.width)
        if kicks and layer in kicks:
            field = field + kicks[layer]
        fields.append(field)
    return fields[::-1]


def output(parameters: Parameters, fields: Sequence[Array]) -> Array:
    """f = w . h^L/(gamma_0 N), shape (P,)."""
    return np.asarray(fields[-1] @ parameters.readout / (parameters.gamma0 * parameters.width))


def velocity(fields: Sequence[Array], gradients: Sequence[Array], error: Array, gamma0: float) -> Velocity:
    """The update per unit rate, from ``forward``, ``backward`` and the errors Delta (P,), all of one time."""
    pulled = [error @ field for field in fields]
    return Velocity(
        lefts=gradients,
        rights=[gamma0 / np.sqrt(len(p)) * p for p in pulled[:-1]],
        readout=gamma0 * pulled[-1],
    )


def add(parameters: Parameters, terms: Sequence[tuple[float, Velocity]]) -> None:
    """Add sum_k coefficient_k velocity_k to the weights, in place."""
    for layer, matrix in enumerate(parameters.matrices):
        if len(terms) == 1:
            coefficient, v = terms[0]
            updated = dger(coefficient, v.lefts[layer], v.rights[layer], a=matrix, overwrite_a=1)
        else:
            left = np.stack([c * v.lefts[layer] for c, v in terms], axis=1)
            right = np.stack([v.rights[layer] for _, v in terms])
            updated = dgemm(1.0, left, right, beta=1.0, c=matrix, overwrite_c=1)
        parameters.matrices[layer] = updated
    parameters.readout = parameters.readout + sum(c * v.readout for c, v in terms)
