"""Averages over the Gaussian matrices of linear2025 (appendix A.1.2), for given small vectors.

The average of exp(-i Tr X^T A) over standard normal X is exp(-|A|^2/2), which gives exact exponents to
compare the printed ones with.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sympy import Function, sympify

from tests.ledger.claims import claimed, corrected
from tests.ledger.claims.linear2025.action import T
from tests.ledger.claims.linear2025.averages import dot
from tests.ledger.claims.linear2025.notation import D as FEATURES
from tests.ledger.claims.linear2025.notation import N as WIDTH
from tests.ledger.claims.linear2025.notation import P as SAMPLES
from tests.ledger.claims.linear2025.notation import gamma0
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.evaluated import Functions, told_apart, valued
from tests.ledger.evidence.isotropic_theory import derived, solved
from tests.ledger.evidence.quadrature import gaussian_average, grid

Array = NDArray[np.float64]

TIMES, D, N, P = 3, 4, 5, 6
GAMMA, NU = 1.3, 0.8
SOURCE = "linear2025"
EXACT = 1e-12


def _vectors(seed: int, *sizes: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [0.4 * rng.normal(size=(TIMES, n)) for n in sizes]


def _exact(*pairs: tuple[float, Array, Array]) -> float:
    """Return -|sum_t factor left(t) right(t)^T|^2/2."""
    total = sum(c * np.einsum("ti,tj->ij", a, b) for c, a, b in pairs)
    return -float(np.sum(np.asarray(total) ** 2)) / 2


def _cross(a: Array, b: Array, c: Array, d: Array) -> float:
    """Return sum_tt' a(t).b(t') c(t).d(t')."""
    return float(np.sum((a @ b.T) * (c @ d.T)))


def _printed(number: str, **vectors: Array) -> float:
    """Return the exponent that the paper prints, for vectors (time, unit) by name."""
    exponent = sympify(claimed("linear2025", number)["exponent"]).subs(T, TIMES).doit()
    known = {FEATURES: D, WIDTH: N, SAMPLES: P, gamma0: GAMMA}

    def product(a: Function, b: Function) -> float:
        return float(vectors[str(a.func)][int(a.args[-1])] @ vectors[str(b.func)][int(b.args[-1])])

    return float(exponent.replace(dot, product).subs(known))


def data_average() -> Evidence:
    """Check (33)-(35): in the cross term Dhat(t) is multiplied with Delta(t'), not Delta(t)."""
    Dhat, Delta, v, hhat = _vectors(1, P, P, D, D)
    exact = _exact((1 / np.sqrt(D), Dhat, v), (np.sqrt(D) / P, Delta, hhat))
    squares = _printed("34", Dhat=Dhat, v=v, h0hat=hhat, Delta=Delta)
    cross = -_cross(Dhat, Delta, v, hhat) / P
    printed = _printed("35", Dhat=Dhat, v=v, h0hat=hhat, Delta=Delta)
    return conclude(
        "isotropic_average:data_average",
        f"Exponent {exact:.8f}; with Dhat(t).Delta(t') {squares + cross:.8f}, as printed "
        f"{squares + printed:.8f}.",
        agrees("(34), (35) with Delta(t')", squares + cross - exact, EXACT),
        contradicts("(35) as printed", squares + printed - exact, EXACT),
        contradicts("(35) with 1/D", squares + cross * P / D - exact, EXACT),
    )


def first_matrix_average() -> Evidence:
    """Check (41)-(43): exponents are right; the bracket of g^1 is C_g^1, not C_h^0."""
    chihat, g, h0, xihat = _vectors(2, N, N, D, D)
    exact = _exact((1 / np.sqrt(D), chihat, h0), (np.sqrt(D) / (N * GAMMA), g, xihat))
    squares = _printed("42", chihat=chihat, h0=h0, xi0hat=xihat, g=g)
    cross = _printed("43", chihat=chihat, h0=h0, xi0hat=xihat, g=g)
    relabelled = D / (2 * N * GAMMA**2) * float(np.sum((xihat @ xihat.T) * (g @ g.T / N - h0 @ h0.T / D)))
    run = solved(derived())
    gap = float(np.max(np.abs(run.value("C_g", 1) - run.value("C_h0"))))
    return conclude(
        "isotropic_average:first_matrix_average",
        f"Exponent {exact:.8f}; with C_g^1 {squares + cross:.8f}, with the label C_h^0 "
        f"{squares + cross + relabelled:.8f}.",
        agrees("(42), (43) with g^1.g^1/N, C_g^1", squares + cross - exact, EXACT),
        contradicts("(42) with its label, C_h^0", squares + cross + relabelled - exact, EXACT),
        contradicts("C_g^1 minus C_h^0 in the theory", gap, 1e-6),
    )


def hidden_average() -> Evidence:
    """Check (47): the average over an inner matrix, either sign of i."""
    chihat, g, h, xihat = _vectors(3, N, N, N, N)
    exact = _exact((1 / np.sqrt(N), chihat, h), (1 / np.sqrt(N), g, xihat))
    printed = _printed("47", chihat=chihat, g=g, h=h, xihat=xihat)
    cross = -_cross(chihat, g, h, xihat) / N
    return conclude(
        "isotropic_average:hidden_average",
        "The printed exponents are those of the average.",
        agrees("(47)", printed - exact, EXACT),
        contradicts("cross term with 1/2", printed - cross / 2 - exact, EXACT),
    )


def auxiliary_fields() -> Evidence:
    """Check (61): prefactor and covariance of r^0, name and covariance of r^l."""
    rng = np.random.default_rng(4)
    C_g1, C_below, C_above, C_0 = (a @ a.T + 0.3 * np.eye(2) for a in rng.normal(size=(4, 2, 2)))
    hat = np.array([0.6, -0.4])

    def characteristic(covariance: Array) -> float:
        root = np.linalg.cholesky(covariance)
        return float(gaussian_average(lambda z: np.exp(-1j * z @ (root.T @ hat)), 2, 30).real)

    kernels: Functions = {
        "C_h": lambda *place: {(1, 0, 0): C_below}[place],
        "C_g": lambda *place: {(1, 0, 0): C_g1, (3, 0, 0): C_above}[place],
        "C_0": lambda *place: {(3, 0, 0): C_0}[place],
    }
    numbers = {"ell": 2, "t": 0, "s": 0, "gamma0": GAMMA, "nu": NU}

    def covariances(name: str) -> list[Array]:
        """Return a covariance as printed and as corrected."""
        return [valued(built(SOURCE, "61")[name], numbers, kernels) for built in (claimed, corrected)]

    def left(covariance: Array) -> float:
        return float(np.exp(-hat @ covariance @ hat / 2))

    first, inner = C_g1 / (GAMMA**2 * NU), C_above
    return conclude(
        "isotropic_average:auxiliary_fields",
        "The fourth line needs C_g^1/(gamma0^2 nu) on both sides, and the last line r^l with covariance "
        "C_g^{l+1}.",
        *told_apart("(61): r^0", map(characteristic, covariances("cov_r0")), left(first), 1e-10),
        *told_apart(
            "(61): left of the fourth line", map(left, covariances("left")), characteristic(first), 1e-10
        ),
        *told_apart("(61): last line", map(characteristic, covariances("cov_r")), left(inner), 1e-10),
    )


def generating_function() -> Evidence:
    """Check (30)-(32): moments as derivatives by real sources; a field imposed by a Fourier integral."""
    mix, step = np.array([[0.7, -0.3], [0.2, 0.9]]), 1e-3

    def Z(j: Array, unit: complex = 1.0) -> complex:
        return complex(gaussian_average(lambda z: np.exp(unit * (z @ mix.T) @ j), 2, 30))

    def second(unit: complex = 1.0) -> float:
        corners = [a * b * Z(step * np.array([a, b]), unit) for a in (1, -1) for b in (1, -1)]
        return float(sum(corners).real / (4 * step**2))

    moment = float((mix @ mix.T)[0, 1])
    value, width, cut = 0.4, 0.5, 0.02
    imposed = [_imposed(value, width, cut, measure) for measure in (1 / (2 * np.pi), 1.0)]
    expected = float(np.exp(-(value**2) / (2 * (width**2 + cut))) / np.sqrt(2 * np.pi * (width**2 + cut)))
    return conclude(
        "isotropic_average:generating_function",
        "Second derivatives by the sources of (30) are moments, with imaginary sources minus that; dDelta "
        "dDhat over 2 pi an entry puts Delta where (32) says.",
        agrees("(31): derivative minus moment", second() - moment, 1e-5),
        contradicts("(31) with imaginary sources", second(1j) - moment, 1e-5),
        agrees("(32): integral minus value", imposed[0] - expected, 1e-9),
        contradicts("(32) without 2 pi", imposed[1] - expected, 1e-9),
    )


def _imposed(value: float, width: float, cut: float, measure: float) -> float:
    """Return measure int dD dy exp(i y (D - value) - cut y^2/2) N(D; 0, width^2) on grids."""
    y, dy = grid(9.0 / np.sqrt(cut), 1201)
    D, dD = grid(9.0 * width, 801)
    phase = np.exp(1j * np.outer(D - value, y)) @ np.exp(-cut * y**2 / 2)
    density = np.exp(-(D**2) / (2 * width**2)) / np.sqrt(2 * np.pi * width**2)
    return float(measure * np.sum(phase.real * density) * dy * dD)


def order_parameters() -> Evidence:
    """Check (37)-(39): the integrals that enforce definitions are one, with imaginary conjugates.

    A broad Gaussian cuts the conjugate off, which turns the delta function into a normalised bump.
    """
    squared = [_enforced(n / (4 * np.pi), n / 2, 0.5) for n in (2, 5)]
    paired = [_enforced(n / (2 * np.pi), float(n), 1.0) for n in (2, 5)]
    wrong = [_enforced(n / (2 * np.pi), n / 2, 0.5) for n in (2, 5)]
    return conclude(
        "isotropic_average:order_parameters",
        "The measures D/(4 pi) of (37), (38) and D/(2 pi) of (39) fit their exponents: integrals are one.",
        *[agrees(f"(37), (38) minus 1, case {k}", x - 1, 1e-8) for k, x in enumerate(squared)],
        *[agrees(f"(39) minus 1, case {k}", x - 1, 1e-8) for k, x in enumerate(paired)],
        *[contradicts(f"(37) with 2 pi minus 1, case {k}", x - 1, 1e-8) for k, x in enumerate(wrong)],
    )


def _enforced(measure: float, size: float, share: float) -> float:
    """Return measure int dC dy exp(i y (size C - share q) - cut y^2/2) on grids.

    q is the overlap of two vectors.
    """
    cut, overlap = 0.05, 0.8
    y, dy = grid(8.0 / np.sqrt(cut), 801)
    reach = 9.0 * np.sqrt(cut) / size
    C = share * overlap / size + reach * np.linspace(-1.0, 1.0, 401)
    phase = np.exp(1j * np.outer(size * C - share * overlap, y)) @ np.exp(-cut * y**2 / 2)
    return float(measure * np.sum(phase.real) * dy * (C[1] - C[0]))


__all__ = [
    "auxiliary_fields",
    "data_average",
    "first_matrix_average",
    "generating_function",
    "hidden_average",
    "order_parameters",
]
