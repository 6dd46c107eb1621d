"""The forward recursion at high precision, and its derivatives in gamma_0 by mpmath's own differentiation.

For tiny cases only (P = 2, T = 4, L = 2 takes a tenth of a second at 50 digits).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray

from .dense_causal import dense_causal
from .solution import Solution

Pick = Callable[[Solution], Any]


def as_mp(values: ArrayLike) -> NDArray[Any]:
    """Return an object array of mpf, exact for floats."""
    array = np.asarray(values)
    return np.array([mpmath.mpf(v) for v in array.ravel()], dtype=object).reshape(array.shape)


def mp_solution(
    kernel: ArrayLike, targets: ArrayLike, weights: ArrayLike, *, depth: int, gamma0: Any, digits: int = 50
) -> Solution:
    """Return ``dense_causal`` on mpmath numbers with ``digits`` decimals; entries are mpf.

    >>> two_steps = [[0, 0, 0], [0.25, 0, 0], [0.25, 0.25, 0]]
    >>> mp_solution([[1.0]], [1.0], two_steps, depth=1, gamma0=2).f[2, 0]  # 3/4 + gamma_0^2 3/128
    mpf('0.84375')
    """
    with mpmath.workdps(digits):
        return dense_causal(
            as_mp(kernel),
            as_mp(targets),
            as_mp(weights),
            depth=depth,
            gamma0=mpmath.mpmathify(gamma0),
            dtype=object,
        )


def gamma0_taylor(
    pick: Pick,
    kernel: ArrayLike,
    targets: ArrayLike,
    weights: ArrayLike,
    *,
    depth: int,
    order: int,
    digits: int = 50,
) -> list[Any]:
    """Return Taylor coefficients in gamma_0 at 0 of the number that ``pick`` reads from a solution."""
    with mpmath.workdps(digits):

        def value(gamma0: Any) -> Any:
            # the working precision is raised inside mpmath.taylor: pass it on
            return pick(
                mp_solution(kernel, targets, weights, depth=depth, gamma0=gamma0, digits=mpmath.mp.dps)
            )

        return list(mpmath.taylor(value, 0, order))
