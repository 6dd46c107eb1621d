"""The equilibrium of Langevin dynamics (K.17-K.23): finite networks' exact posteriors against saddle points.

For a deep linear network on one sample the posterior of the output is a small integral at any width: given
the squared lengths of the hidden layers, products of chi-squared numbers, the output is Gaussian under the
prior. Its mean, extrapolated in the width, judges the saddle point equations, derived and printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from sympy import (
    Basic,
    Eq,
    Expr,
    Function,
    I,
    Matrix,
    MatrixSymbol,
    S,
    Symbol,
    exp,
    integrate,
    lambdify,
    oo,
    simplify,
    solve,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.program import P, alpha, ell, gamma0, mu
from derive.reduce.equilibrium import Equilibrium, equilibrium
from tests.derive.once import mean_field, mlp
from tests.ledger.claims import claimed, corrected
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude
from tests.ledger.evidence.evaluated import told_apart

Array = NDArray[np.float64]
Claim = Mapping[str, Basic]

LAMBDA, BETA, GAMMA, TARGET, KERNEL = 0.8, 1.5, 1.2, 1.0, 1.0
TOLERANCE = 1e-7
"""Of a mean extrapolated from widths up to 3200 with errors O(1/N^3): 1e-10, with a margin."""


def posterior_mean(depth: int, width: int) -> float:
    """Return the exact mean output of a network of ``depth`` <= 2 hidden layers of ``width``, by quadrature.

    The log of a layer's squared length per unit, chi-squared with ``width`` degrees of freedom, is put on a
    grid.
    """
    noise = 1.0 / (width * GAMMA**2 * BETA)  # of the likelihood exp(-beta gamma0^2 N (f - y)^2/2)

    def joint(axes: list[Array]) -> tuple[Array, Array]:
        """Return the log posterior density of the lengths, and the prior variance of the output."""
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


@lru_cache(maxsize=2)
def limit_mean(depth: int) -> tuple[float, float]:
    """Return the mean as the width goes to infinity (Richardson), and the last change of this limit."""
    values = [posterior_mean(depth, n) for n in (400, 800, 1600, 3200)]
    first = [2 * b - a for a, b in pairwise(values)]
    second = [(4 * b - a) / 3 for a, b in pairwise(first)]
    return second[-1], abs(second[-1] - second[-2])


@lru_cache(maxsize=4)
def equations(depth: int) -> tuple[Eq, ...]:
    """Return the derived saddle point of a linear network on one sample."""
    beta, lam = Symbol("beta", positive=True), Symbol("lam", positive=True)
    network = mlp(depth, "linear", "flow", weight_decay=lam / beta, temperature=1 / beta)
    return equilibrium(mean_field(network)).linear_saddle()


def _value(e: Expr) -> Expr:
    known = {"lam": LAMBDA, "beta": BETA, "K": KERNEL, "y": TARGET}
    return e.subs({x: known[x.name] for x in e.free_symbols if x.name in known}).subs(gamma0, GAMMA)


def saddle_output(depth: int, conjugate_factor: float = 1.0, inner_factor: float = 1.0) -> float:
    """Return the output at the saddle point, with the conjugate kernels of layers times factors.

    One factor is for the last and one for the inner layers. The derived conjugates are read from the derived
    equations: ``1/Phi_l = lam/Phi_{l-1} + Phihat_l``.
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
        """Return the kernels that solve the layers' equations at a given output (Newton's method), or NaN."""
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
        """Return the residual of the equation of the output, with solved kernels."""
        return float(self.gaps([out, *self.kernels(out, guess).tolist()])[0])


def _branch(equations: _Residuals, prior: Array) -> float:
    """Return the output of the solution that continues the kernels of the prior; NaN if there is none.

    The error shrinks as the output grows, so that the solution is followed from f = y (no conjugates)
    downwards.
    """
    above, guess = TARGET, prior
    for below in np.linspace(TARGET, 0.0, 400)[1:]:
        if equations.output(above, guess) * equations.output(float(below), guess) <= 0:
            return float(brentq(equations.output, float(below), above, args=(guess,), xtol=1e-13))
        above, guess = float(below), equations.kernels(float(below), guess)
    return float("nan")


LAM, BETA_SYMBOL = Symbol("lam", positive=True), Symbol("beta", positive=True)


@lru_cache(maxsize=1)
def _rest() -> Equilibrium:
    """Return the equilibrium of linear networks with two hidden layers."""
    network = mlp(2, "linear", "flow", weight_decay=LAM / BETA_SYMBOL, temperature=1 / BETA_SYMBOL)
    return equilibrium(mean_field(network))


def _last_over_derived(claim: Claim) -> float:
    """Return the conjugate kernel of the last layer, (K.20 text), over the derived one."""
    ratio = sympify(claim["Phihat_last"]) / _rest().solved["Phihat_last"].rhs
    return float(simplify(ratio).subs(LAM, LAMBDA))


def _one_sample(e: Basic) -> Expr:
    """Return a matrix expression of the kernel ``Phi`` and of ``C = <h h^T>`` for one sample."""
    sizes = {"Phi": Matrix([[Symbol("Phi")]]), "C": Matrix([[Symbol("C")]])}
    return Matrix(e.subs(P, 1).replace(MatrixSymbol, lambda n, *_: sizes[str(n)]).doit())[0, 0]


def _inner_over_derived(claim: Claim) -> float:
    """Return the conjugate kernel of an inner layer by (K.22) and (K.23), over the derived one."""
    ratio = _one_sample(sympify(claim["Phihat"])) / _one_sample(_rest().conjugate_kernel)
    return float(simplify(ratio).subs(LAM, LAMBDA))


def _slope_over_derived(claim: Claim) -> float:
    """Return the conjugate kernel for which the derivative in (K.19) is zero, over the derived one.

    ``<hhat hhat>`` under the weight exp(-hhat Phi hhat/(2 lambda) + i hhat h) of (K.17) is a Gaussian
    integral, lambda/Phi - (lambda h/Phi)^2, and <h^2> is C.
    """
    slope = sympify(claim["Phi"])
    conjugate = Function("Phihat")(ell, mu, alpha)
    pair = Function("average")(Function("hhat")(ell + 1, mu) * Function("hhat")(ell + 1, alpha))
    if slope.atoms(AppliedUndef) != conjugate.atoms(AppliedUndef) | pair.atoms(AppliedUndef):
        raise ValueError(f"{slope} does not join a conjugate with fields of the layer above")
    (root,) = solve(slope, conjugate)
    hat, h = Symbol("hat", real=True), Symbol("h", real=True)
    kernel, moment = Symbol("Phi", positive=True), Symbol("C")
    weight = exp(-kernel * hat**2 / (2 * LAM) + I * hat * h)
    total, square = (integrate(x * weight, (hat, -oo, oo)) for x in (S.One, hat**2))
    fields = simplify(square / total).expand().subs(h**2, moment)
    derived = _one_sample(_rest().conjugate_kernel).subs(Symbol("Phi"), kernel)
    return float(simplify(root.subs(pair, fields) / derived).subs(LAM, LAMBDA))


FACTORS: dict[str, Callable[[Claim], float]] = {
    "K.19": _slope_over_derived,
    "K.20 text": _last_over_derived,
    "K.22": _inner_over_derived,
    "K.23": _inner_over_derived,
}
"""Entries about conjugate kernels, and by which factor they differ from the derived ones."""


def saddle_point() -> Evidence:
    """Check K.19, K.20 text, K.22, K.23: the exact posterior mean of linear networks.

    They have one and two hidden layers.
    """
    means = {1: limit_mean(1), 2: limit_mean(2)}
    outputs: dict[str, list[float]] = {}
    findings: list[Finding] = []
    for number, factor in FACTORS.items():
        depth = 1 if number == "K.20 text" else 2
        which = "conjugate_factor" if depth == 1 else "inner_factor"
        factors = [factor(built("selfconsistent2023", number)) for built in (claimed, corrected)]
        outputs[number] = [saddle_output(depth, **{which: x}) for x in factors]
        what = f"({number}): output, L = {depth},"
        findings += told_apart(what, outputs[number], means[depth][0], TOLERANCE)
    return conclude(
        "equilibrium:saddle_point",
        f"Exact posterior means {means[1][0]:.5f} (one hidden layer) and {means[2][0]:.5f} (two) are the "
        f"derived saddle points; the conjugate kernel with the factor 1/2 below (K.20) gives "
        f"{outputs['K.20 text'][0]:.5f}, and without the 1/lambda that (K.19), (K.22) and (K.23) lack "
        f"{outputs['K.22'][0]:.5f}.",
        *[agrees(f"last step of the extrapolation, L = {n}", x, TOLERANCE) for n, (_, x) in means.items()],
        *[
            agrees(f"derived minus exact, L = {n}", saddle_output(n) - x, TOLERANCE)
            for n, (x, _) in means.items()
        ],
        *findings,
    )
