"""Training of finite matrices by rules that act on the singular values of the gradient, such as Muon.

The gradient of a matrix is a product of few vectors; its singular vectors follow from QR factors of both
sides, so that no matrix of the size of the weight is decomposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Dummy, Expr, lambdify

from derive.program import Spectral
from derive.program.spectral import sigma

from .entrywise import leaves, of_network
from .formulas import Binder
from .rows import FormulaReaders, NetworkReader, NetworkState

Array = NDArray[np.float64]

RANK = 1e-10
"""Share of the largest singular value up to which others count as zero."""


@dataclass(frozen=True, eq=False)
class SpectralLaw:
    """Training step of one matrix by a rule that acts on the singular values of its gradient.

    The gradient is the update of the program times ``units`` divided by ``outside``, the factor between
    gradient and update. ``function`` takes its singular values, divided by sqrt(rows * columns), and the
    values of ``numbers``. In each step the weight is multiplied by ``1 - decay``, and the result along the
    singular vectors, times ``rate * outside / units * sqrt(rows * columns)``, is added.
    """

    function: Callable[..., Any]
    numbers: tuple[NetworkReader, ...]
    rate: NetworkReader
    decay: NetworkReader
    outside: NetworkReader
    units: float

    @classmethod
    def of(
        cls,
        rule: Spectral,
        outside: Expr,
        units: float,
        binder: Binder,
        reading: FormulaReaders,
        env: Mapping[Any, int],
    ) -> SpectralLaw:
        """Return the training step of a spectral rule for one matrix.

        ``outside`` is the factor between gradient and update, ``units`` the number by which the update is
        divided (the N of the matrix), and ``env`` holds the indices of the weight. Parameters of the rule may
        depend on the time.
        """

        def reader(e: Expr) -> NetworkReader:
            """Return the function that evaluates the expression ``e`` on the state of the networks."""
            return reading.read([binder.bind(e, env)])

        parameters = sorted(leaves(rule.F) - {sigma}, key=str)
        slots = {x: Dummy(f"x{k}", positive=True) for k, x in enumerate((sigma, *parameters))}
        function = lambdify([*slots.values()], rule.F.xreplace(slots), "numpy")
        numbers = tuple(map(reader, parameters))
        return cls(function, numbers, reader(rule.rate), reader(rule.decay), reader(outside), units)

    def move(self, w: Array, left: Array, right: Array, state: NetworkState) -> None:
        """Move the weights ``w`` (networks, rows, columns) by one step in place.

        The update is ``left @ right``. ``state`` is that of the networks, which gives the values of
        parameters.
        """
        for k in range(len(w)):
            values = [of_network(x, state, k) for x in self.numbers]
            rate, decay, outside = (of_network(x, state, k) for x in (self.rate, self.decay, self.outside))
            one, other = left[min(k, len(left) - 1)], right[min(k, len(right) - 1)]
            root = np.sqrt(w[k].size)
            rows, inner = np.linalg.qr(one)
            columns, second = np.linalg.qr(other.T)
            first, seen, last = np.linalg.svd(inner @ second.T * (self.units / outside / root))
            positive = seen > RANK * seen.max(initial=0.0)
            applied = np.where(positive, self.function(np.where(positive, seen, 1.0), *values), 0.0)
            n = len(seen)
            step = (rows @ first[:, :n] * applied) @ (last[:n] @ columns.T)
            w[k] *= 1 - decay
            w[k] += rate * outside * root / self.units * step
