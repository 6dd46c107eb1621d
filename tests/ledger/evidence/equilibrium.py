"""The equilibrium of Langevin dynamics (K.17-K.23): finite networks' exact posteriors against saddle points.

For a deep linear network on one sample the posterior of the output is a small integral at any width: given
the squared lengths of the hidden layers, products of chi-squared numbers, the output is Gaussian under the
prior. Its mean, extrapolated in the width, judges the saddle point equations, derived and printed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from sympy import Eq, Expr, Matrix, MatrixSymbol, Symbol, lambdify, simplify, sympify

from derive.program import P, gamma0
from derive.reduce.equilibrium import equilibrium
from tests.derive.once import mean_field, mlp
from tests.ledger.claims.selfconsistent2023 import equilibrium as claims
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts

Array = NDArray[np.float64]

LAMBDA, BETA, GAMMA, TARGET, KERNEL = 0.8, 1.5, 1.2, 1.0, 1.0
TOLERANCE = 1e-7
"""Of a mean extrapolated from widths up to 3200 with errors O(1/N^3): 1e-10, with a margin."""


def posterior_mean(depth: int, width: int) -> float:
    """The exact mean output of a network of ``depth`` <= 2 hidden layers of ``width``, by quadrature.

    The log of a layer's squared length per unit, chi-squared with ``width`` degrees of freedom, is put on a
    grid.
    """
    noise = 1.0 / (width * GAMMA**2 * BETA)  # of the likelihood exp(-beta gamma0^2 N (f - y)^2/2)

    def joint(axes: list[Array]) -> tuple[Array, Array]:
        """The log of the posterior density of the lengths, and the output's prior variance given them."""
        lengths = np.meshgrid(*axes, indexing="ij")
        density = sum(0.5 * width * (x - np.exp(x)) for x in lengths)
        variance = KERNEL * np.exp(sum(lengths)) / (width * GAMMA**2 * LAMBDA ** (depth + 1))
        seen = -0.5 * np.log(variance + noise) - 0.5 * TARGET**2 / (variance + noise)
        return np.asarray(density + seen), np.asarray(variance)

    coarse = np.linspace(-3.0, 3.0, 601)
    top = np.unravel_index(np.argmax(joint([coarse] * depth)[0]), (601,) * depth)
    window = np.linspace(-9.0, 9.0, 181) / np.sqrt(width)
    density, variance = joint([coarse[k] + window for k in top])
    share = np.exp(density - density.max())
    return float(np.sum(share * TARGET * variance / (variance + noise)) / np.sum(share))


def limit_mean(depth: int) -> tuple[float, float]:
    """The mean as the width goes to infinity (Richardson), and how far the last step of it went."""
    values = [posterior_mean(depth, n) for n in (400, 800, 1600, 3200)]
    first = [2 * b - a for a, b in pairwise(values)]
    second = [(4 * b - a) / 3 for a, b in pairwise(first)]
    return second[-1], abs(second[-1] - second[-2])


@lru_cache(maxsize=4)
def equations(depth: int) -> tuple[Eq, ...]:
    """The derived saddle point of a linear network on one sample."""
    beta, lam = Symbol("beta", positive=True), Symbol("lam", positive=True)
    network = mlp(depth, "linear", "flow", weight_decay=lam / beta, temperature=1 / beta)
    return equilibrium(mean_field(network)).linear_saddle()


def _value(e: Expr) -> Expr:
    known = {"lam": LAMBDA, "beta": BETA, "K": KERNEL, "y": TARGET}
    return e.subs({x: known[x.name] for x in e.free_symbols if x.name in known}).subs(gamma0, GAMMA)


def saddle_output(depth: int, conjugate_factor: float = 1.0, inner_factor: float = 1.0) -> float:
    """The output at the saddle point, the conjugate kernels of the last and the inner layers times factors.

    The derived conjugates are read off the derived equations: ``1/Phi_l = lam/Phi_{l-1} + Phihat_l``.
    """
    f, *kernels = [e.lhs for e in equations(depth)]
    rights = [_value(e.rhs) for e in equations(depth)]
    factors = [inner_factor] * (depth - 1) + [conjugate_factor]
    residuals = [f - rights[0]]
    for phi, right, low, factor in zip(kernels, rights[1:], [KERNEL, *kernels[:-1]], factors, strict=True):
        residuals.append(1 / phi - LAMBDA / low - factor * (1 / right - LAMBDA / low))
    names = [f, *kernels]
    gaps = lambdify([names], residuals, "numpy")
    slopes = lambdify([names], Matrix(residuals).jacobian(kernels), "numpy")
    return _branch(_Residuals(gaps, slopes), np.array([KERNEL / LAMBDA ** (n + 1) for n in range(depth)]))


@dataclass(frozen=True)
class _Residuals:
    """The equations of the output and of the kernels, and their derivatives in the kernels."""

    gaps: Callable[[list[float]], list[float]]
    slopes: Callable[[list[float]], Array]

    def kernels(self, out: float, guess: Array) -> Array:
        """The kernels that solve the layers' equations at a given output, by Newton's method; NaN if none."""
        x = guess.copy()
        for _ in range(60):
            at = [out, *x.tolist()]
            step = np.linalg.solve(
                np.asarray(self.slopes(at), float)[1:], np.asarray(self.gaps(at)[1:], float)
            )
            x = x - step
            if np.max(np.abs(step)) < 1e-12:
                return x
        return np.full(len(x), np.nan)

    def output(self, out: float, guess: Array) -> float:
        """The equation of the output, kernels solved for."""
        return float(self.gaps([out, *self.kernels(out, guess).tolist()])[0])


def _branch(equations: _Residuals, prior: Array) -> float:
    """The output of the solution that continues the kernels of the prior; NaN if there is none.

    The error shrinks as the output grows, so it is followed from f = y (no conjugates) downwards.
    """
    above, guess = TARGET, prior
    for below in np.linspace(TARGET, 0.0, 400)[1:]:
        if equations.output(above, guess) * equations.output(float(below), guess) <= 0:
            return float(brentq(equations.output, float(below), above, args=(guess,), xtol=1e-13))
        above, guess = float(below), equations.kernels(float(below), guess)
    return float("nan")


def _printed_over_derived(layer: str) -> float:
    """The printed conjugate kernel of the last layer (K.20 text) or an inner one (K.22) over the derived."""
    lam, beta = Symbol("lam", positive=True), Symbol("beta", positive=True)
    rest = equilibrium(mean_field(mlp(2, "linear", "flow", weight_decay=lam / beta, temperature=1 / beta)))
    if layer == "last":
        ratio = sympify(claims.k20_text()["Phihat_last"]) / rest.solved["Phihat_last"].rhs
    else:
        sizes = {"Phi": Matrix([[Symbol("Phi")]]), "C": Matrix([[Symbol("C")]])}
        one, other = (
            Matrix(x.subs(P, 1).replace(MatrixSymbol, lambda n, *_: sizes[str(n)]).doit())[0, 0]
            for x in (sympify(claims.k22()["Phihat"]), rest.conjugate_kernel)
        )
        ratio = one / other
    return float(simplify(ratio).subs(lam, LAMBDA))


def saddle_point() -> Evidence:
    """K.19, K.20 text, K.22, K.23: the exact posterior mean of linear networks, one and two hidden layers."""
    one, moved_one = limit_mean(1)
    two, moved_two = limit_mean(2)
    half = saddle_output(1, conjugate_factor=_printed_over_derived("last"))
    inner = saddle_output(2, inner_factor=_printed_over_derived("inner"))
    return conclude(
        "equilibrium:saddle_point",
        f"Exact posterior means {one:.5f} (one hidden layer) and {two:.5f} (two) are the derived saddle "
        f"points; the conjugate kernel with the factor 1/2 below (K.20) gives {half:.5f}, and without the "
        f"1/lambda that (K.19), (K.22) and (K.23) lack {inner:.5f}.",
        agrees("last step of the extrapolation, L = 1", moved_one, TOLERANCE),
        agrees("last step of the extrapolation, L = 2", moved_two, TOLERANCE),
        agrees("derived minus exact, L = 1", saddle_output(1) - one, TOLERANCE),
        agrees("derived minus exact, L = 2", saddle_output(2) - two, TOLERANCE),
        contradicts("factor 1/2 (K.20 text) minus exact, L = 1", half - one, TOLERANCE),
        contradicts("lambda Phihat, (K.19), (K.22), (K.23), minus exact, L = 2", inner - two, TOLERANCE),
    )
