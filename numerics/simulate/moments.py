"""Running means and standard errors of arrays, one pass, without keeping the samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Moments:
    """Welford's update for a dictionary of arrays.

    >>> m = Moments()
    >>> for x in (1.0, 3.0): m.push({"x": np.array([x])})
    >>> m.mean()["x"], m.stderr()["x"]
    (array([2.]), array([1.]))
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: dict[str, Array] = {}
        self._squares: dict[str, Array] = {}

    def push(self, sample: Mapping[str, Array]) -> None:
        """Take one more sample; names and shapes must stay the same."""
        self.count += 1
        for name, value in sample.items():
            if self.count == 1:
                self._mean[name] = np.array(value, dtype=float)
                self._squares[name] = np.zeros_like(self._mean[name])
                continue
            change = value - self._mean[name]
            self._mean[name] += change / self.count
            change *= value - self._mean[name]
            self._squares[name] += change

    def mean(self) -> dict[str, Array]:
        return dict(self._mean)

    def stderr(self) -> dict[str, Array]:
        """Standard error of each mean from the spread of the samples; needs at least two."""
        if self.count < 2:
            raise ValueError(f"{self.count} sample(s): a standard error needs at least 2")
        scale = self.count * (self.count - 1)
        return {name: np.sqrt(squares / scale) for name, squares in self._squares.items()}
