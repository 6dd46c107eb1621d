"""Exact solution of two layers on whitened data, whose expansion is the series in time."""

from __future__ import annotations

from functools import lru_cache

import mpmath as mp
from sympy import Expr, lambdify

from derive.program import gamma0, t
from derive.reduce.whitened import Whitened, norm, output
from tests.derive.once import mean_field, mlp, two_layer, whitened


@lru_cache(maxsize=1)
def reduced() -> Whitened:
    """Return the theory's reduction to one equation, and its solution."""
    return whitened(two_layer(mean_field(mlp(1, rule="flow"))))


def error() -> Expr:
    """Return Delta(t), in closed form."""
    return reduced().solution.rhs


@lru_cache(maxsize=16)
def singularity(time: float, tries: int = 8) -> mp.mpc:
    """Return the zero of the solution's denominator in ``(gamma0 y)^2`` that is nearest to 0, at a time.

    The denominator is an even function of the root of ``1 + (gamma0 y)^2``, so that in ``(gamma0 y)^2`` poles
    are the only singularities. Its zero at -1 is also one of the numerator. The nearest zero is found by
    Newton's method from a fan of starting points; the argument principle shows that no other is nearer.
    """
    top, bottom = (lambdify((gamma0, t), e.subs(norm, 1), "mpmath") for e in error().as_numer_denom())

    def f(z: mp.mpc) -> mp.mpc:
        g = mp.sqrt(z)
        return bottom(g, time) / top(g, time)

    found: list[mp.mpc] = []
    for size in (s * (1 + mp.mpf(time) ** -2) for s in (0.5, 1, 2, 4, 8, 16)):
        for k in range(tries):
            start = size * mp.expjpi(mp.mpf(2 * k + 1) / (2 * tries))
            try:
                root = mp.findroot(f, start, tol=1e-20)
            except (ValueError, ZeroDivisionError):
                continue
            if abs(f(root)) < 1e-10 and abs(root + 1) > 1e-6:
                found.append(root if root.imag >= 0 else mp.conj(root))
    nearest = min(found, key=abs)
    assert zeros_inside(f, abs(nearest) * mp.mpf("0.999")) == 0
    return nearest


def zeros_inside(f: object, radius: mp.mpf, points: int = 500) -> int:
    """Return the winding number of f around 0 along a circle."""
    values = [f(radius * mp.expjpi(mp.mpf(2 * k + 1) / points)) for k in range(points)]  # type: ignore[operator]
    turns = sum(mp.arg(b / a) for a, b in zip(values, values[1:] + values[:1], strict=True))
    return round(float(turns / (2 * mp.pi)))


__all__ = ["error", "norm", "output", "reduced", "singularity"]
