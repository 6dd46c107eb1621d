"""What an average over Gaussian numbers comes with: an error, and how it was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Value:
    """One average.

    ``error`` bounds the distance to the exact value, as far as the method can tell; ``method`` says which:
    ``closed form``, ``lattice``, ``orthants`` or ``panels``.
    """

    value: float
    error: float
    method: str

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Tensor:
    """Averages over tuples of samples: arrays with one axis for each function."""

    value: Array
    error: Array
    method: str

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.value, dtype=dtype)
