"""The steps of appendix D before the saddle point, each carried out exactly on a small case.

Averages over weights are Gauss-Hermite products over every single entry; Fourier integrals are sums on grids.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sympy import Add, Basic, Expr
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import P
from derive.theory.path_integral import path_integral
from derive.theory.path_integral.action import Inner
from tests.derive.once import mlp
from tests.ledger.claims import claimed, corrected
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.engine import Array, solved, steps_of
from tests.ledger.evidence.evaluated import told_apart, valued
from tests.ledger.evidence.explicit import written_out
from tests.ledger.evidence.quadrature import gaussian_average, grid, pair_covariance

KERNEL = np.array([[1.0, 0.4], [0.4, 0.7]])
EXACT = 1e-10
"""Gauss-Hermite and trapezoid sums of smooth functions of order one, converged to rounding."""


def gaussian_fourier_identity() -> Evidence:
    """Check (7), (D.14), (D.38): a Gaussian and a delta function as Fourier integrals."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(3, 3)) / 2
    x = np.array([0.6, -0.9, 0.4])
    left = np.exp(-x @ root @ root.T @ x / 2)
    right = gaussian_average(lambda z: np.exp(-1j * z @ root.T @ x), 3, 24)
    k, dk = grid(12.0, 241)
    u, du = grid(12.0, 241)
    density = np.exp(-(k**2) / 2)  # a test function, and its value at 0.7 through the delta function
    wave = np.exp(1j * np.outer(u, k))
    transform = wave @ density * dk
    at = float((np.exp(-1j * u * 0.7) @ transform * du / (2 * np.pi)).real)
    inputs, hat = np.array([[1.0, 0.3], [-0.4, 0.8]]), np.array([[0.5, -0.2], [0.3, 0.7]])

    def phase(z: Array) -> Array:
        w = z.reshape(-1, 2, 2)
        return np.asarray(np.exp(-1j * np.einsum("mi,nij,mj->n", hat, w, inputs) / np.sqrt(2)))

    averaged = gaussian_average(phase, 4, 14)
    formula = np.exp(-np.einsum("mi,ai,ma->", hat, hat, inputs @ inputs.T / 2) / 2)
    return conclude(
        "path_integral:gaussian_fourier_identity",
        "exp(-x A x/2) = <exp(-i u x)> for covariance A (D.38); the delta function with 2 pi a dimension "
        "returns a test "
        "function's value (7); averaging exp(-i chihat W x/sqrt(D)) over W leaves K^x (D.14).",
        agrees("Gaussian (D.38)", abs(right - left), EXACT),
        contradicts("Gaussian without 1/2", abs(right - left**2), EXACT),
        agrees("delta function (7)", at - np.exp(-0.245), EXACT),
        contradicts("delta function without 1/(2 pi)", 2 * np.pi * at - np.exp(-0.245), EXACT),
        agrees("average over W (D.14)", abs(averaged - formula), EXACT),
        contradicts("average over W with D K^x", abs(averaged - formula**2), EXACT),  # D = 2
    )


def input_scale() -> Evidence:
    """Check (D.13): covariance of chi with 1/sqrt(D) and with the printed 1/sqrt(N), at D = 2N."""
    n = 2
    inputs = np.array([[1.0, 0.3, -0.5, 0.8], [-0.4, 0.8, 0.6, 0.1]])
    d = inputs.shape[1]
    kernel = inputs @ inputs.T / d

    def covariance(scale: float) -> Array:
        chi = scale * inputs
        found = [
            gaussian_average(partial(_product, chi[a], chi[b]), d, 3).real for a in (0, 1) for b in (0, 1)
        ]
        return np.array(found).reshape(2, 2)

    right, printed = covariance(1 / np.sqrt(d)), covariance(1 / np.sqrt(n))
    return conclude(
        "path_integral:input_scale",
        f"With D = 2N the printed delta function gives chi the covariance {np.mean(printed / kernel):.6g} "
        "K^x; 1/sqrt(D) gives "
        "K^x.",
        agrees("1/sqrt(D): covariance minus K", np.max(np.abs(right - kernel)), EXACT),
        contradicts("1/sqrt(N): covariance minus K", np.min(np.abs(printed - kernel)), EXACT),
        agrees("1/sqrt(N): covariance minus (D/N) K", np.max(np.abs(printed - d / n * kernel)), EXACT),
    )


def _product(one: Array, two: Array, z: Array) -> Array:
    """Return the product of one row of W = z with each of two vectors."""
    return np.asarray((z @ one) * (z @ two))


def order_parameter_constraint() -> Evidence:
    """Check (D.15), (D.28): the value of the integral that should be one, for N = 1, 2, 5.

    The conjugate runs along the imaginary axis and is cut off by a broad Gaussian, which turns the delta
    function into a normalised bump without changing its integral.
    """
    overlap = 0.8
    findings = []
    for n in (1, 2, 5):
        printed, right = _constraint(n, overlap, n), _constraint(n, overlap, 1)
        findings += [
            agrees(f"exponent of (D.28) minus 1, N = {n}", right - 1.0, EXACT),
            agrees(f"exponent of (D.15) minus 1/N, N = {n}", printed - 1.0 / n, EXACT),
        ]
        if n > 1:
            findings.append(contradicts(f"exponent of (D.15) minus 1, N = {n}", printed - 1.0, EXACT))
    return conclude(
        "path_integral:order_parameter_constraint",
        "N int dPhi dPhihat/(2 pi i) exp(Phihat (N Phi - q)) = 1, as in (D.28); the extra N in the exponent "
        "of (D.15) gives "
        "1/N.",
        *findings,
    )


def _constraint(n: int, overlap: float, factor: int) -> float:
    cutoff = 0.05
    k, dk = grid(8.0 / np.sqrt(cutoff) / factor, 801)
    width = np.sqrt(cutoff)
    phi = overlap / n + width * 9.0 / n * np.linspace(-1.0, 1.0, 401)
    phase = np.exp(1j * factor * np.outer(phi * n - overlap, k)) @ np.exp(-cutoff * (factor * k) ** 2 / 2)
    return float(n * np.sum(phase.real) * dk * (phi[1] - phi[0]) / (2 * np.pi))


def single_site_weight() -> Evidence:
    """Check (D.18): under the printed double sum the source term counts P = 2 times."""
    right = pair_covariance(KERNEL, 1.0, 9.0)
    printed = pair_covariance(KERNEL, 2.0, 4.5)
    return conclude(
        "path_integral:single_site_weight",
        "i chihat chi with a sum of its own gives chi the covariance K^x; under the printed double sum, P = "
        "2, it gives "
        "K^x/P^2.",
        agrees("own sum: covariance minus K", np.max(np.abs(right - KERNEL)), 1e-8),
        contradicts("printed: covariance minus K", np.min(np.abs(printed - KERNEL)), 1e-8),
        agrees("printed: covariance minus K/P^2", np.max(np.abs(printed - KERNEL / 4)), 1e-8),
    )


def first_layer_average() -> Evidence:
    """Check (D.25): without the factor of W^0 the first layer has covariance 0.

    A Gaussian cutoff is taken to zero.
    """
    cutoffs = np.array([0.04, 0.02])
    eye = np.eye(2)
    without = [pair_covariance(c * eye, 1.0, 9.0 * np.sqrt(c)) for c in cutoffs]
    with_it = [pair_covariance(KERNEL + c * eye, 1.0, 9.0) for c in cutoffs]
    limits = [2 * pair[1] - pair[0] for pair in (without, with_it)]
    return conclude(
        "path_integral:first_layer_average",
        "As printed chihat^1 meets only chi^1 and chi^1 has covariance 0; the averaged factor with W^0, "
        "present in (D.26), "
        "restores K^x.",
        agrees("with the factor: covariance minus K", np.max(np.abs(limits[1] - KERNEL)), 1e-8),
        agrees("as printed: covariance", np.max(np.abs(limits[0])), 1e-8),
        contradicts("as printed: covariance minus K", np.min(np.abs(limits[0] - KERNEL)), 1e-8),
    )


# -- averages over whole matrices ----------------------------------------------------------------------------


class _Vectors:
    """Given small vectors: chihat[mu,t], h[mu,t], g[t], xihat[t], each with N = 2 entries; P = T = 2."""

    N, P, T = 2, 2, 2

    def __init__(self) -> None:
        rng = np.random.default_rng(8)
        self.chihat, self.h = (0.45 * rng.normal(size=(2, 2, 2)) for _ in range(2))
        self.g, self.xihat, self.xi = (0.45 * rng.normal(size=(2, 2)) for _ in range(3))

    def of(self, atom: AppliedUndef) -> Array:
        """Return the vector of an applied function of the engine."""
        name, time = str(atom.func), int(atom.args[-1])
        if name in ("g", "xihat"):
            return np.asarray(getattr(self, name)[time])
        return np.asarray(getattr(self, name)[int(atom.args[1]) - 1, time])

    def engine(self, tied: bool) -> float:
        """Return the engine's average over the inner matrices of two layers, as a number."""
        average = path_integral(mlp(2, tied=tied)).average_exponent
        inner = [x for x in average.args if not _ends(x)]
        opened = Add(*[written_out(x, {P: self.P}, self.T) for x in inner])
        values = {x: float(self.of(x.vectors[0]) @ self.of(x.vectors[1])) for x in opened.atoms(Inner)}
        n = next(x for x in opened.free_symbols if str(x) == "N")
        return float(np.exp(float(opened.xreplace({**values, n: self.N}))))


def _ends(x: Expr) -> bool:
    """Return whether this is the average over the first matrix or the readout."""
    names = {str(a.func) for pair in x.atoms(Inner) for v in pair.vectors for a in v.atoms(AppliedUndef)}
    return "x" in names or names == {"xihat"}


def _brute(exponent: Callable[[Array], Array], entries: int, nodes: int) -> complex:
    return gaussian_average(lambda z: np.exp(1j * exponent(z)), entries, nodes)


def matrix_average() -> Evidence:
    """Check (D.26), third average: over every entry of a Gaussian matrix, for given small vectors."""
    v = _Vectors()
    left = np.einsum("mti,mtj->ij", v.chihat, v.h) + np.einsum("ti,tj->ij", v.g, v.xihat)
    exact = _brute(lambda z: -z @ left.ravel() / np.sqrt(v.N), 4, 16).real
    cross = np.einsum("mti,si,mtj,sj->", v.chihat, v.g, v.h, v.xihat) / v.N
    back = np.einsum("ti,si,tj,sj->", v.xihat, v.xihat, v.g, v.g) / (2 * v.N)
    pairs = np.einsum("mti,asi,mtj,asj->", v.chihat, v.chihat, v.h, v.h) / (2 * v.N)
    same = np.einsum("mti,mti,mtj,asj->", v.chihat, v.chihat, v.h, v.h) / (2 * v.N)
    return conclude(
        "path_integral:matrix_average",
        f"Averaged entry by entry: {exact:.10f}; with chihat_mu(t).chihat_alpha(s): "
        f"{np.exp(-pairs - back - cross):.10f}; as "
        f"printed: {np.exp(-same - back - cross):.10f}.",
        agrees("engine's average minus exact", v.engine(tied=True) - exact, EXACT),
        agrees("corrected first line minus exact", np.exp(-pairs - back - cross) - exact, EXACT),
        contradicts("printed minus exact", np.exp(-same - back - cross) - exact, EXACT),
        contradicts("cross term with 1/2 minus exact", np.exp(-pairs - back - cross / 2) - exact, EXACT),
        contradicts(
            "cross term with the other sign minus exact", np.exp(-pairs - back + cross) - exact, EXACT
        ),
    )


def _applied(x: Array, z: Array) -> Array:
    return np.asarray(z @ x)


def independent_backward_average() -> Evidence:
    """Check (O.1): average over two independent matrices; xi on the left must be xihat."""
    v, time = _Vectors(), 0

    def functions(forward: Array, backward: Array) -> dict[str, Any]:
        """Return vectors at one time, different for each sample, and matrices at all quadrature nodes."""
        return {
            "chi_hat": lambda mu: v.chihat[(mu - 1) % v.P, time],
            "h": lambda layer, mu: {1: v.h}[layer][(mu - 1) % v.P, time],
            "phi": lambda h: h,
            "g": lambda layer, mu: {2: (mu % v.P + 1) * v.g[time] / 2}[layer],
            "xi": lambda layer, mu: {1: v.xi[time] / mu}[layer],
            "xi_hat": lambda mu: (mu % v.P + 1) * v.xihat[time] / 2,
            "W": lambda layer: {1: forward}[layer],
            "W_tilde": lambda layer: {1: backward}[layer],
            "form": lambda a, matrix, b: np.einsum("i,nij,j->n", a, matrix, b),
            "dot": lambda a, b: float(a @ b),
        }

    def left(e: Basic) -> float:
        """Return the average of the exponential over one matrix and then the other."""
        none = np.zeros((1, 2, 2))

        def over(which: int) -> complex:
            def integrand(z: Array) -> Array:
                matrices = [none, none]
                matrices[which] = z.reshape(-1, 2, 2)
                return np.asarray(np.exp(valued(e, numbers, functions(*matrices))))

            return gaussian_average(integrand, 4, 16)

        return (over(0) * over(1)).real

    numbers = {"ell": 1, "P": v.P, "N": v.N}
    claim, true = (built("selfconsistent2023", "O.1") for built in (claimed, corrected))
    fields = functions(np.zeros(0), np.zeros(0))
    kernels = {
        "Phi": lambda layer, mu, alpha: fields["h"](layer, mu) @ fields["h"](layer, alpha) / v.N,
        "G": lambda layer, mu, alpha: fields["g"](layer, mu) @ fields["g"](layer, alpha) / v.N,
    }
    right = float(np.exp(valued(claim["log"], numbers, {**fields, **kernels})))
    pairs = np.einsum("mti,asi,mtj,asj->", v.chihat, v.chihat, v.h, v.h) / (2 * v.N)
    back = np.einsum("ti,si,tj,sj->", v.xihat, v.xihat, v.g, v.g) / (2 * v.N)
    return conclude(
        "path_integral:independent_backward_average",
        "Two independent matrices leave no cross term: the right-hand side is right, and fits xihat on the "
        "left; xi as printed does not fit.",
        agrees(
            "engine's average minus both double integrals",
            v.engine(tied=False) - np.exp(-pairs - back),
            EXACT,
        ),
        *told_apart("left-hand side", [left(x["left"]) for x in (claim, true)], right, EXACT),
    )


def hubbard_labels() -> Evidence:
    """Check (D.39): both sides for given conjugate fields of two layers, with printed and correct labels."""
    run = solved(KERNEL, np.array([0.8, -0.5]), steps_of(0.3, 2), depth=2, gamma=1.0)
    rng = np.random.default_rng(4)
    hats = {k: 0.5 * rng.normal(size=4) for k in (1, 2)}
    back = {k: 0.5 * rng.normal(size=2) for k in (1, 2)}
    first = np.kron(np.ones((2, 2)), KERNEL)
    inner = run.H[1].reshape(4, 4)
    lines = {
        "first line: chihat^1": (first, hats[1], first, hats[1], first, hats[2]),
        "second line: u^(l+1)": (inner, hats[2], inner, hats[2], first, hats[2]),
        "last line: xihat^L, r^L": (np.ones((2, 2)), back[2], np.ones((2, 2)), back[2], run.G[2], back[1]),
    }
    findings = []
    for label, (covariance, hat, right_cov, right_hat, wrong_cov, wrong_hat) in lines.items():
        left = np.exp(-hat @ covariance @ hat / 2)
        findings.append(agrees(f"{label}: difference", _characteristic(right_cov, right_hat) - left, EXACT))
        findings.append(
            contradicts(f"{label}: printed labels", _characteristic(wrong_cov, wrong_hat) - left, EXACT)
        )
    third = float(_characteristic(run.G[2], back[1]) - np.exp(-back[1] @ run.G[2] @ back[1] / 2))
    return conclude(
        "path_integral:hubbard_labels",
        "Both sides of each line agree for chihat^1, u^(l+1) and xihat^L, r^L, and not for the printed "
        "labels.",
        *findings,
        agrees("third line, right as printed", third, EXACT),
    )


def _characteristic(covariance: Array, hat: Array) -> float:
    """Return ``<exp(-i u.hat)>`` over u with this covariance, by quadrature over its eigenvectors."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-12 * values[-1]
    root = vectors[:, kept] * np.sqrt(values[kept])
    return gaussian_average(lambda z: np.exp(-1j * z @ (root.T @ hat)), int(kept.sum()), 20).real


def source_convention() -> Evidence:
    """Check (D.23), (D.42): second derivative in j at zero, for the sources of (D.22) and the printed i."""
    run = solved(KERNEL, np.array([0.8, -0.5]), steps_of(0.3, 2), depth=2, gamma=1.0)
    covariance = run.H[1][-1, :, -1, :]
    root = np.linalg.cholesky(covariance)
    h = 1e-3

    def second(factor: complex) -> complex:
        def z_of(j: float) -> complex:
            return gaussian_average(lambda z: np.exp(factor * j * (z @ root[0])), 2, 20)

        return (-z_of(2 * h) + 16 * z_of(h) - 30 * z_of(0.0) + 16 * z_of(-h) - z_of(-2 * h)) / (12 * h**2)

    real, imaginary = second(1.0).real, second(1j).real
    return conclude(
        "path_integral:source_convention",
        f"Z''(0) = {real:.6f} with exp(j chi) is the covariance {covariance[0, 0]:.6f} that (D.23) promises; "
        "with the printed "
        f"exp(i j chi) it is {imaginary:.6f}.",
        agrees("exp(j chi): Z'' minus covariance", real - covariance[0, 0], 1e-7),
        contradicts("exp(i j chi): Z'' minus covariance", imaginary - covariance[0, 0], 1e-7),
        agrees("exp(i j chi): Z'' plus covariance", imaginary + covariance[0, 0], 1e-7),
    )
