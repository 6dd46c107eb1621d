"""The reduced theory of the rich regime (kernels of rank one in time), as ordinary differential equations.

The right-hand side is compiled from :func:`derive.scale.rich.rank_one`.  A mode that has been learnt
is fast, so that the solver is an implicit one.
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
from numerics.errors import NotConverged
from numerics.experiment.numbers import Spectrum

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RankOneRun:
    """The loss, the squared singular value and the kernel ``C_g(1,t,t)`` at the output times."""

    time: Array
    loss: Array
    squared: Array
    kernel: Array


@lru_cache(maxsize=1)
def _compiled() -> tuple[Any, Any, Any, Any]:
    """The rate of phi and the error of a mode; sigma from the sum of squares; the kernel."""
    one = rank_one(mean_field(structured(data="population", rule="flow")))
    index = one.mode
    own, big, squares = Symbol("phi_k"), Symbol("sigma"), Symbol("squares")
    lamda, w = Function("lamda")(index), Function("w_star")(index)
    names = {phi(index, t): own, sigma(t): big}
    args = (own, big, lamda, w, L)
    (total,) = one.norm.rhs.atoms(Sum)
    return (
        lambdify(args, one.modes.rhs.xreplace(names)),
        lambdify(args, one.learnt.rhs.xreplace(names)),
        lambdify((squares, gamma0, kappa), sqrt(one.norm.rhs.xreplace({total: squares}))),
        lambdify((big, L), one.kernel.rhs.xreplace(names)),
    )


def solve_rank_one(
    depth: int, gamma: float, spectrum: Spectrum, times: Array, start: float = 0.0, *, rtol: float = 1e-6
) -> RankOneRun:
    """The reduced theory from ``phi = 0`` at time 0; ``start`` is kappa, the squared singular value then.

    One hidden layer obeys it exactly, at any time and any gamma0, with ``start = 2`` and all kernels of the
    start counted in sigma: ``C_g(1,t,t)`` is then ``squared - 1``.  Deeper networks obey it late, in powers
    of time, whatever the start.  With ``start = 0`` nothing would grow.
    Raises ValueError for a start that is not positive and for times that do not grow from a positive one, and
    :class:`~numerics.errors.NotConverged` where the integrator gives up.

    >>> from numerics.experiment.numbers import power_law
    >>> found = solve_rank_one(1, 1.0, power_law(2.0, 0.5, 1000), np.array([1.0, 10.0]), 2.0)
    >>> found.loss.round(4).tolist()
    [0.4004, 0.1071]
    """
    at = np.asarray(times, float)
    if not start > 0:
        raise ValueError(f"start = {start}: must be positive, or nothing grows")
    if at.ndim != 1 or not at.size or at[0] <= 0 or np.any(np.diff(at) <= 0):
        raise ValueError(f"times = {times}: must be positive and grow")
    lamda, w = spectrum.attributes["lamda"], spectrum.attributes["w_star"]
    rate, error, root, kernel = _compiled()

    from scipy.integrate import solve_ivp  # slow to import, and seldom needed

    def value(y: Array) -> Any:
        return root(np.sum(spectrum.counts * y**2), gamma, start)

    def motion(_: float, y: Array) -> Array:
        return np.asarray(rate(y, value(y), lamda, w, depth))

    found = solve_ivp(
        motion, (0.0, at[-1]), np.zeros_like(w), "LSODA", at, rtol=rtol, atol=rtol * np.abs(w) * 1e-3
    )
    if not found.success:
        raise NotConverged(f"the reduced theory: {found.message}")
    big = np.array([value(y) for y in found.y.T])
    left = np.array([error(y, x, lamda, w, depth) for y, x in zip(found.y.T, big, strict=True)])
    loss = np.sum(spectrum.counts * lamda * left**2, axis=1)
    return RankOneRun(at, loss, big**2, np.asarray(kernel(big, depth)))
