"""Fluctuations of lazy networks on given data.

The module turns expressions of :mod:`derive.scale.fluctuations.lazy`, the kernel of the inputs, and targets
into N times the covariance of errors at pairs of times. Kernels and their covariances at the start are
evaluated for all samples, and errors are summed over eigenvectors of the tangent kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol, lambdify

from derive.calculus.symbols import t
from derive.program.program import Program
from derive.scale.fluctuations.initial import InitialCovariance, InitialMean, initial_covariance, initial_mean
from derive.scale.fluctuations.lazy import LazyFluctuations, lamda_k, lamda_l
from numerics.errors import Unserved
from numerics.experiment.checks import given_arrays, given_times
from numerics.fluctuations.initial import initial_value
from numerics.names import INPUT_KERNEL, OUTPUT, TARGETS

Array = NDArray[np.float64]

SLOTS = [Symbol(f"mu_{i}", integer=True, positive=True) for i in range(4)]
"""Symbols of the samples in a covariance at the start."""


class InitialArrays:
    """Tangent kernel, and covariances times N, of a network at initialisation, as arrays over all samples.

    A derived expression for different samples may be singular if two of them are equal. An expression is
    therefore derived for each pattern of equal samples, such as (a, a, b, a), and evaluated where it holds.

    Parameters
    ----------
    program : Program
        The network.
    kernel : ndarray, shape (P, P)
        Kernel of the inputs.
    values : mapping
        Numbers of all symbols, by symbol.
    """

    def __init__(self, program: Program, kernel: Array, values: Mapping[Symbol, float]) -> None:
        self.program, self.kernel, self.values = program, kernel, values
        self._known: dict[tuple[str, tuple[int, ...]], InitialCovariance | InitialMean] = {}

    def _array(self, name: str, size: int, make: Any) -> Array:
        """Return a quantity at initialisation, such as a kernel, for all tuples of ``size`` samples.

        The array has ``size`` axes of length P, the number of samples. ``make`` derives the expression that
        is evaluated, from a list of ``size`` symbols of samples; equal samples have equal symbols. ``name``
        is the key of the expression in the cache of derived expressions.
        """
        samples = len(self.kernel)
        tensor = np.zeros((samples,) * size)
        for at in product(range(samples), repeat=size):
            distinct = list(dict.fromkeys(at))
            pattern = tuple(distinct.index(i) for i in at)
            if (name, pattern) not in self._known:
                self._known[name, pattern] = make([SLOTS[i] for i in pattern])
            rows = {SLOTS[i]: x for i, x in enumerate(distinct)}
            arrays = {INPUT_KERNEL: self.kernel}
            tensor[at] = initial_value(self._known[name, pattern], rows, arrays, self.values)
        return tensor

    def tangent_kernel(self) -> Array:
        """Return the tangent kernel at infinite width, ``(P, P)``."""
        return self._array("K", 2, lambda x: initial_mean(self.program, ("K", *x)))

    def kernel_covariance(self) -> Array:
        """Return N times the covariance over networks of pairs of entries of the initial tangent kernel.

        The shape is ``(P, P, P, P)`` for P samples: two samples for each entry.
        """
        return self._array("KK", 4, lambda x: initial_covariance(self.program, ("K", *x[:2]), ("K", *x[2:])))

    def output_covariance(self) -> Array:
        """Return N times the covariance over networks of the initial outputs of two samples, ``(P, P)``."""
        return self._array(
            OUTPUT, 2, lambda x: initial_covariance(self.program, (OUTPUT, x[0]), (OUTPUT, x[1]))
        )


def lazy_covariance(
    derived: LazyFluctuations,
    arrays: Mapping[str, Array],
    values: Mapping[Symbol, float],
    times: Sequence[float],
) -> Array:
    """Return N times the covariance of the errors of lazy networks.

    Parameters
    ----------
    derived : LazyFluctuations
        The derived expressions, from :func:`derive.scale.fluctuations.lazy_fluctuations`.
    arrays : mapping
        The kernel of the inputs ``K_x`` ``(P, P)`` and targets ``y`` ``(P,)``.
    values : mapping
        The numbers of all symbols, learning rates and sizes too.
    times : sequence
        Steps, or times of a flow, finite and increasing from 0 or later.

    Returns
    -------
    ndarray, shape (T, P, T, P)
        N times the covariance over networks of the errors of two samples at two times.

    Raises
    ------
    KeyError
        If ``arrays`` lacks ``K_x`` or ``y``.
    Unserved
        If a symbol has no number.
    SpecError
        For entries and times that are not finite real numbers, for negative times and times that do not
        increase, for steps that are not integers, and for a kernel that is not symmetric positive
        semidefinite.

    Examples
    --------
    >>> from derive.calculus.symbols import gamma0
    >>> from derive.program import mlp
    >>> from derive.scale.fluctuations import lazy_fluctuations
    >>> flow = lazy_fluctuations(mlp(1, rule="flow"))
    >>> data = {"K_x": np.ones((1, 1)), "y": np.ones(1)}
    >>> lazy_covariance(flow, data, {gamma0: 1.0}, [0.0, 0.5])[:, 0, :, 0].round(4)
    array([[1.    , 0.3679],
           [0.3679, 0.2707]])
    """
    times = given_times(times, steps=bool(derived.program.rule.discrete)).tolist()
    arrays = given_arrays(derived.program, arrays, "arrays")
    start = InitialArrays(derived.program, arrays[INPUT_KERNEL], values)
    rates, vectors = np.linalg.eigh(start.tangent_kernel())
    y = vectors.T @ arrays[TARGETS]
    kappa = start.kernel_covariance()
    for axis in range(4):
        kappa = np.moveaxis(np.tensordot(vectors, kappa, (0, axis)), 0, axis)
    outputs = vectors.T @ start.output_covariance() @ vectors
    E = np.array([_responses(derived, rates, time, values) for time in times])
    first = np.array([_on(derived.initial, rates, rates, time, values) for time in times])
    E = E * y
    modes = np.einsum("tkl,klmn,smn->tksm", E, kappa, E, optimize=True)
    modes += np.einsum("tk,km,sm->tksm", first, outputs, first)
    return np.asarray(np.einsum("ak,tksm,bm->tasb", vectors, modes, vectors, optimize=True))


def _responses(derived: LazyFluctuations, rates: Array, time: float, values: Mapping[Symbol, float]) -> Array:
    """Return at a time how errors in eigenmodes of the tangent kernel change with the kernel's entries.

    ``rates`` (modes,) are the eigenvalues. The result ``E_kl`` (modes, modes), times the component ``y_l`` of
    the targets, is the derivative of the error in mode k with respect to entry kl of the tangent kernel.
    Eigenvalues that differ by rounding only are treated as equal.
    """
    left, right = (x.ravel() for x in np.meshgrid(rates, rates, indexing="ij"))
    # The formula for two different eigenvalues is undefined for equal ones. Eigenvalues that differ by
    # rounding only are replaced by their mean; the error is of second order in their difference.
    equal = np.abs(left - right) <= 1e-8 * np.abs(left).max()
    E = np.zeros(len(left))
    mean = (left + right)[equal] / 2
    E[equal] = _on(derived.same_mode, mean, mean, time, values)
    E[~equal] = _on(derived.different_modes, left[~equal], right[~equal], time, values)
    return E.reshape(len(rates), len(rates))


def _on(e: Expr, left: Array, right: Array, time: float, values: Mapping[Symbol, float]) -> Array:
    """Return an expression of two eigenvalues and the time as numbers, for pairs of eigenvalues at one time.

    ``left`` and ``right`` (n,) are the eigenvalues, values of the symbols ``lamda_k`` and ``lamda_l`` of
    ``e``; ``values`` are the numbers of its other symbols. Raise Unserved if one of these has no number.
    """
    with_numbers = e.subs({x: float(v) for x, v in values.items()} | {t: time})
    if missing := with_numbers.free_symbols - {lamda_k, lamda_l}:
        names = ", ".join(sorted(map(str, missing)))
        raise Unserved(f"no number is given for {names}, which the covariance of lazy errors contains")
    function = lambdify((lamda_k, lamda_l), with_numbers)
    return np.array([float(function(a, b)) for a, b in zip(left, right, strict=True)])
