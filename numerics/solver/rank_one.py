"""Reduced theory of the rich regime, with kernels of rank one in time, as ordinary differential equations.

The right-hand side is compiled from :func:`derive.scale.rich.rank_one`. The equations are stiff, because
modes that are learnt relax fast, so that the integrator is an implicit one. Tests compare the solution with
the march and with power laws.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Function, Sum, Symbol, lambdify, sqrt

from derive.calculus.symbols import L, gamma0, t
from derive.program.networks import structured
from derive.scale.rich import kappa, phi, rank_one, sigma
from derive.theory import mean_field
from numerics.errors import NotConverged, require_whole
from numerics.experiment.checks import given_times
from numerics.experiment.numbers import Spectrum

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RankOneRun:
    """Solution of the reduced theory at the output times ``time``; all arrays have shape ``(times,)``.

    ``loss`` is the population loss and ``squared`` the squared singular value of the weight matrices.
    ``kernel`` is ``squared**depth``, by which the reduced theory approximates the correlation
    ``C_g(1,t,t)`` of gradients in the first layer at equal time.
    """

    time: Array
    loss: Array
    squared: Array
    kernel: Array


@lru_cache(maxsize=1)
def _compiled() -> tuple[Any, Any, Any, Any]:
    """Compile four functions of the reduced theory, evaluated with NumPy.

    phi_k is the learnt part of a mode k of the data, and sigma the singular value of the weight matrices. The
    first two functions are the rate of change of phi_k and the error of mode k; their arguments are phi_k,
    sigma, the eigenvalue and target coefficient of the mode, and the depth. The third gives sigma from the
    sum of phi_k^2 over the modes, gamma0 and kappa. The fourth is the kernel ``C_g(1,t,t)`` of gradients from
    sigma and the depth.
    """
    one = rank_one(mean_field(structured(data="population", rule="flow")))
    index = one.mode
    phi_k, sigma_t, squares = Symbol("phi_k"), Symbol("sigma"), Symbol("squares")
    lamda, w = Function("lamda")(index), Function("w_star")(index)
    names = {phi(index, t): phi_k, sigma(t): sigma_t}
    args = (phi_k, sigma_t, lamda, w, L)
    (total,) = one.norm.rhs.atoms(Sum)
    return (
        lambdify(args, one.modes.rhs.xreplace(names)),
        lambdify(args, one.learnt.rhs.xreplace(names)),
        lambdify((squares, gamma0, kappa), sqrt(one.norm.rhs.xreplace({total: squares}))),
        lambdify((sigma_t, L), one.kernel.rhs.xreplace(names)),
    )


def solve_rank_one(
    depth: int, gamma: float, spectrum: Spectrum, times: Array, start: float, *, rtol: float = 1e-6
) -> RankOneRun:
    """Solve the reduced theory of a deep linear network in the rich regime, from zero output at time 0.

    The theory assumes that all kernels are of rank one in time. ``depth`` is the number of hidden layers,
    ``gamma`` the feature-learning strength gamma0, and ``times`` are the output times. ``spectrum`` holds
    the eigenvalues ``lamda`` and target coefficients ``w_star`` of the modes of the data. ``start`` is the
    initial squared singular value of the weight matrices (kappa); it must be positive, because nothing
    grows from 0. ``rtol`` is the relative tolerance of the integrator. A network with one hidden layer has
    exactly the loss of the reduced theory with ``start = 2``, at any time and any gamma0; its
    ``C_g(1,t,t)`` is then ``squared - 1``, not the approximation ``kernel`` of the result. Deeper networks
    obey the theory at late times, in powers of time, for any start. Raises ValueError for a depth that is not
    a positive integer, for a gamma that is not finite, for a start that is not positive and for times that
    are not finite, positive and increasing, and :class:`~numerics.errors.NotConverged` if the integrator
    fails.

    >>> from numerics.experiment.numbers import power_law
    >>> run = solve_rank_one(1, 1.0, power_law(2.0, 0.5, 1000), np.array([1.0, 10.0]), 2.0)
    >>> run.loss.round(4).tolist()
    [0.4004, 0.1071]
    """
    require_whole("depth", depth, 1, "must have a hidden layer")
    output_times = given_times(times, steps=False)
    if not np.isfinite(gamma):
        raise ValueError(f"gamma = {gamma}: must be a finite number")
    if not start > 0:
        raise ValueError(f"start = {start}: must be positive, because nothing grows from zero")
    if output_times[0] == 0:
        raise ValueError(f"times = {times}: must be positive and increase")
    lamda, w = spectrum.attributes["lamda"], spectrum.attributes["w_star"]
    rate, error, root, kernel = _compiled()

    from scipy.integrate import solve_ivp  # imported here because it is slow and seldom used

    def value(y: Array) -> Any:
        return root(np.sum(spectrum.counts * y**2), gamma, start)

    def motion(_: float, y: Array) -> Array:
        return np.asarray(rate(y, value(y), lamda, w, depth))

    flow = solve_ivp(
        motion,
        (0.0, output_times[-1]),
        np.zeros_like(w),
        "LSODA",
        output_times,
        rtol=rtol,
        atol=rtol * np.abs(w) * 1e-3,
    )
    if not flow.success:
        raise NotConverged(f"the integration of the reduced theory failed: {flow.message}")
    sigmas = np.array([value(y) for y in flow.y.T])
    errors = np.array([error(y, x, lamda, w, depth) for y, x in zip(flow.y.T, sigmas, strict=True)])
    loss = np.sum(spectrum.counts * lamda * errors**2, axis=1)
    return RankOneRun(output_times, loss, sigmas**2, np.asarray(kernel(sigmas, depth)))
