"""Equation of motion of one weight of a finite network, read from its training rule.

A weight and its hidden states z obey ``z(t + 1) = A z(t) + b U(t) + noise``, or in continuous time ``dz = (A
z + b U) dt + noise``.  This module evaluates ``A``, ``b`` and the covariance of the noise at a time from the
rule's system, without the memory that is derived from it.  :mod:`.weights` carries out the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from derive.program import TrainingRule
from derive.program.rules import LinearSystem

from .formulas import Binder
from .rows import Array, FormulaReaders, NetworkReader, NetworkState

MatrixReaders = Mapping[tuple[int, int], NetworkReader]


@dataclass(frozen=True, eq=False)
class WeightMotion:
    """Coefficients of the equation of motion of one weight and its hidden states; zeros are left out.

    Attributes
    ----------
    states
        Number of components: the weight, which is component 0, and hidden states.
    A, noise
        Functions that read the entries of A, and of the covariance of the noise, from the state of the
        networks, by pair of components.
    b
        Functions that read the entries of b, by component.
    start
        Factor by which the initial weight is multiplied.
    """

    states: int
    A: MatrixReaders
    b: Mapping[int, NetworkReader]
    noise: MatrixReaders
    start: float

    @classmethod
    def of(
        cls, rule: TrainingRule, binder: Binder, reading: FormulaReaders, env: Mapping[Any, int]
    ) -> WeightMotion | None:
        """Return the equation of motion of a training rule for the weight with the index values ``env``.

        None for a rule without a linear equation of motion, such as one that is defined by its memory only.
        """
        system: LinearSystem | None = getattr(rule, "system", None)
        if system is None:
            return None

        def reader(e: Any) -> NetworkReader:
            """Return the function that evaluates the expression ``e`` on the state of the networks."""
            return reading.read([binder.bind(e, env)])

        n = system.states
        pairs = [(i, j) for i in range(n) for j in range(n)]
        A = {x: reader(system.matrix[x]) for x in pairs if system.matrix[x] != 0}
        b = {i: reader(x) for i, x in enumerate(system.input) if x != 0}
        noise = {x: reader(system.noise_matrix[x]) for x in pairs if system.noise_matrix[x] != 0}
        return cls(n, A, b, noise, binder.number(system.start, env))

    @cached_property
    def in_place(self) -> bool:
        """Whether a step ``z <- A z`` can overwrite the components of z one after another.

        This is so if A is upper triangular. Components are the weight and its hidden states.
        """
        return all(i <= j for i, j in self.A)

    def rates(self, state: NetworkState) -> Array:
        """Return the matrix A of the equation of motion at the time of the state, (n, n, networks or 1).

        The equation is ``z(t + 1) = A z(t) + b U``, or ``dz = (A z + b U) dt`` in continuous time, where z
        are the weight and its hidden states, and U is the update.
        """
        return self._filled(self.A, state)

    def inputs(self, state: NetworkState) -> Array:
        """Return the vector b of the equation of motion at the time of the state, (n, networks or 1).

        The equation is ``z(t + 1) = A z(t) + b U``, or ``dz = (A z + b U) dt`` in continuous time, where z
        are the weight and its hidden states, and U is the update.
        """
        return self._filled({(i, 0): x for i, x in self.b.items()}, state)[:, 0]

    def disturbance(self, state: NetworkState) -> Array:
        """Return the covariance of the noise of the weight and its hidden states, at the time of the state.

        It is the covariance for one step, or per time in continuous time. The shape is (n, n, networks or 1).
        """
        return self._filled(self.noise, state)

    def _filled(self, entries: MatrixReaders, state: NetworkState) -> Array:
        """Return a matrix over the weight and its hidden states, with entries read from the state.

        ``entries`` maps (row, column) to a reader, a function from the state of the networks to an array;
        other entries are zero. The shape is (n, n, networks or 1).
        """
        values = {x: read(state)[:, 0, 0] for x, read in entries.items()}
        width = max((len(x) for x in values.values()), default=1)
        matrix = np.zeros((self.states, self.states, width))
        for (i, j), x in values.items():
            matrix[i, j] = x
        return matrix


def relaxed(rates: Array, noise: Array, time: float) -> tuple[Array, Array]:
    """Return ``e^{A time}``, and the covariance of the noise that adds up in the interval ``time``.

    They solve the equation ``dz = A z dt + noise``. ``rates`` is A and ``noise`` is the covariance D of the
    noise per time; these and the results are (n, n, networks). The covariance ``int_0^time e^{A u} D e^{A^T
    u} du`` follows from the exponential of one matrix of twice the size (Van Loan, 1978); for one component
    it has a closed form.
    """
    if len(rates) == 1:
        rate = rates[0]
        with np.errstate(invalid="ignore", divide="ignore"):
            grown = np.where(rate == 0, time, np.expm1(2 * rate * time) / (2 * rate))
        return np.exp(rates * time), noise * grown
    pairs = [_relaxed(a, d, time) for a, d in _by_network(rates, noise)]
    return np.stack([x for x, _ in pairs], axis=-1), np.stack([x for _, x in pairs], axis=-1)


def _relaxed(rates: Array, noise: Array, time: float) -> tuple[Array, Array]:
    """Return ``e^{A time}`` and the covariance of the noise of this interval for one network.

    ``rates`` is A and ``noise`` the covariance per time; these and the results are (n, n).
    """
    from scipy.linalg import expm  # slow to import, and seldom needed

    n = len(rates)
    both = np.block([[-rates, noise], [np.zeros((n, n)), rates.T]])
    power = expm(both * time)
    moved = power[n:, n:].T
    covariance = moved @ power[:n, n:]
    return moved, (covariance + covariance.T) / 2


def _by_network(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Yield for each network a tuple of slices, one of each array, along the last axis.

    The last axis counts networks; an axis of length one is shared by all networks.
    """
    count = max(x.shape[-1] for x in arrays)
    for k in range(count):
        yield tuple(x[..., min(k, x.shape[-1] - 1)] for x in arrays)


def root(covariance: Array) -> Array:
    """Return for each network a matrix R with ``R R^T`` equal to the covariance, (n, n, networks).

    The covariance is in units of the variance of the initial weight. Raises ValueError if an eigenvalue is
    negative beyond rounding.
    """
    roots = np.empty_like(covariance)
    for k, (x,) in enumerate(_by_network(covariance)):
        values, vectors = np.linalg.eigh(x)
        if values.min() < -1e-12 * max(abs(values).max(), 1.0):
            reason = f"the noise of a training rule has the covariance {x.tolist()}"
            raise ValueError(f"{reason}, and an eigenvalue of a covariance must not be negative")
        roots[..., k] = vectors * np.sqrt(np.maximum(values, 0.0))
    return roots
