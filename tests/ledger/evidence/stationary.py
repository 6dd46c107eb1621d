"""Langevin dynamics at weak feature learning, long after its start (K.15, K.16): kernels of wide networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf
from sympy import Eq, Expr, Function, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.program import ell
from derive.reduce.stationary import stationary
from tests.derive.once import mean_field, mlp
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import CLOSE

Array = NDArray[np.float64]
Kernel = tuple[str, int, float, int, int]
"""Name, layer, lag, and the two samples."""

LAMBDA, BETA, LAG = 0.7, 1.3, 0.6
INPUTS = np.array([[1.0, 0.4, -0.8], [0.3, -1.1, 0.5]])
NAMES: tuple[Kernel, ...] = tuple(product(("Phi", "G"), (1, 2), (0.0, LAG), (1, 2), (1, 2)))


def stationary_kernels() -> Evidence:
    """Check K.15, K.16: kernels of wide networks at late times, at equal times and at a lag.

    At gamma0 = 0 the weights are Ornstein-Uhlenbeck processes, which are stepped without error.
    """
    measured = _extrapolated()
    lam, beta = Symbol("lam", positive=True), Symbol("beta", positive=True)
    network = mlp(2, "erf", "flow", weight_decay=lam / beta, temperature=1 / beta)
    equations = stationary(mean_field(network))
    rows = (*equations.fields, *equations.closed())
    right_ones, from_start = (_kernels(rows, {lam: LAMBDA, beta: BETA}, at) for at in (1.0, LAMBDA))
    return conclude(
        "stationary:stationary_kernels",
        f"Kernels of networks with two hidden layers, long after their start and {LAG} apart, follow the "
        "derived recursion, with weights of variance 1/lambda; they reject the variance 1 of the start.",
        agrees(f"largest z of {len(right_ones)} kernels", _largest(measured, right_ones), CLOSE),
        contradicts("variance of the start: largest z", _largest(measured, from_start), 1.0),
    )


def _largest(measured: Mapping[Kernel, tuple[float, float]], theory: Mapping[Kernel, float]) -> float:
    return max(abs(mean - theory[k]) / error for k, (mean, error) in measured.items())


def _kernels(rows: Iterable[Eq], values: Mapping[Expr, float], start: float) -> dict[Kernel, float]:
    """Return all kernels by the recursion; ``start`` scales the variance of an entry."""
    gram = INPUTS @ INPUTS.T / INPUTS.shape[1]
    known: dict[Expr, float] = {}

    def value(x: AppliedUndef) -> Expr:
        name = str(x.func)
        if name == "K_x":
            return sympify(float(gram[int(x.args[0]) - 1, int(x.args[1]) - 1]))
        if x not in known:
            e, at = next(found for row in rows if (found := _matched(row, x)) is not None)
            number = e.subs(at).subs(values).replace(lambda y: isinstance(y, AppliedUndef), value)
            known[x] = float(number) * (start if name in "HZ" else 1.0)
        return sympify(known[x])

    return {(n, k, lag, a, b): float(value(Function(n)(k, a, b, lag))) for n, k, lag, a, b in NAMES}


def _matched(row: Eq, x: AppliedUndef) -> tuple[Expr, dict[Expr, Expr]] | None:
    """Return the right-hand side that gives ``x``, and its indices.

    The end layers come first in a theory.
    """
    lhs = row.lhs
    if lhs.func != x.func or (lhs.args[0].is_Integer and lhs.args[0] != x.args[0]):
        return None
    at = dict(zip(lhs.args[1:], x.args[1:], strict=True))
    return row.rhs, {ell: x.args[0] - (lhs.args[0] - ell), **at}


def _extrapolated() -> dict[Kernel, tuple[float, float]]:
    """Return measured kernels with standard errors, without the correction of order 1/N."""
    rng = np.random.default_rng(23)
    runs = [np.array([_sample(rng, n) for _ in range(m)]) for n, m in ((150, 160), (300, 80))]
    (narrow, e1), (wide, e2) = ((x.mean(axis=0), x.std(axis=0, ddof=1) / np.sqrt(len(x))) for x in runs)
    mean, error = 2 * wide - narrow, np.sqrt(4 * e2**2 + e1**2)
    return dict(zip(NAMES, zip(mean.ravel().tolist(), error.ravel().tolist(), strict=True), strict=True))


def _sample(rng: np.random.Generator, n: int) -> Array:
    """Return kernels of one network: (Phi or G, layer, lag, sample, sample)."""
    w = [rng.standard_normal(size) for size in ((n, INPUTS.shape[1]), (n, n), (n,))]
    late = [_later(rng, x, 9 * BETA / LAMBDA) for x in w]
    after = [_later(rng, x, LAG) for x in late]
    then, now = _features(late), _features(after)
    return np.array(
        [[[other[j][k] @ then[j][k].T / n for other in (then, now)] for k in (0, 1)] for j in (0, 1)]
    )


def _later(rng: np.random.Generator, w: Array, time: float) -> Array:
    """Return weights after exact steps of ``dw = -lambda/beta w dt + sqrt(2/beta) noise``."""
    kept = np.exp(-LAMBDA * time / BETA)
    return np.asarray(kept * w + np.sqrt((1 - kept**2) / LAMBDA) * rng.standard_normal(w.shape))


def _features(w: list[Array]) -> tuple[list[Array], list[Array]]:
    """Return ``phi(h)`` and g of both layers, (samples, units)."""
    n = len(w[0])
    h1 = INPUTS @ w[0].T / np.sqrt(INPUTS.shape[1])
    h2 = erf(h1) @ w[1].T / np.sqrt(n)
    g2 = _bell(h2) * w[2]
    g1 = _bell(h1) * (g2 @ w[1] / np.sqrt(n))
    return [erf(h1), erf(h2)], [g1, g2]


def _bell(h: Array) -> Array:
    """Return erf'(h)."""
    return np.asarray(2 / np.sqrt(np.pi) * np.exp(-(h**2)))
