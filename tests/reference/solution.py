"""Result that every reference implementation of the theory returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class Solution:
    """Order parameters of a deep linear network on a time grid.

    Shapes (layer axis = layers 1..L, axis order as in the result files):
    ``Phi`` (L,T,T,P,P); ``G`` (L,T,T); ``A`` (L,T,T,P) with A^L last; ``B`` (L,T,T,P) with B^L = 0 last;
    ``f`` and ``error`` (T,P); ``tangent_kernel`` (T,T,P,P). Entries are floats, or mpf in object arrays.
    ``iterations`` and ``residuals`` (change per iteration) are those of an iterative scheme, else 0 and ().
    """

    Phi: NDArray[Any]
    G: NDArray[Any]
    A: NDArray[Any]
    B: NDArray[Any]
    f: NDArray[Any]
    error: NDArray[Any]
    tangent_kernel: NDArray[Any]
    iterations: int = 0
    residuals: tuple[float, ...] = ()

    @property
    def train_loss(self) -> NDArray[Any]:
        """Mean over samples of the squared error, shape (T,)."""
        total: NDArray[Any] = (self.error**2).sum(axis=1)
        loss: NDArray[Any] = total / self.error.shape[1]
        return loss

    def distance(self, other: Solution) -> float:
        """Return the largest absolute difference between any two entries of the order parameters."""
        names = ("Phi", "G", "A", "B", "f", "tangent_kernel")
        return max(float(abs(getattr(self, n) - getattr(other, n)).max()) for n in names)
