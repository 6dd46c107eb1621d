"""Order gamma0^2 of the deep linear network: coefficients fitted to the engine's full solution by layer.

Second derivatives in gamma0 of marched kernels are decomposed into the operator words of (P.2). The words
come from the ledger's claims, whose lazy operators c and d are right; the coefficients in front are fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from sympy import Expr, Integer, Rational, Sum, exp, integrate, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, P, alpha, ell, gamma0, mu, s, t
from numerics.solver.grid import flow_grid
from tests.ledger.claims import claimed
from tests.ledger.claims.selfconsistent2023 import expansion as claim
from tests.ledger.claims.selfconsistent2023.notation import Kx, nu
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.engine import Array, Orders, orders, solved, steps_of
from tests.ledger.evidence.explicit import lattice, number, words, written_out
from tests.ledger.evidence.factors import layer_factors, tangent_factors

KERNEL = np.array([[1.0, 0.4], [0.4, 0.7]])
TARGETS = np.array([0.8, -0.5])
WEIGHTS = steps_of(0.1, 6)
DEPTHS = (1, 2, 3, 4, 5)

TOLERANCE = 1e-7
"""Of a fitted coefficient: the second derivatives are good to 1e-11 (see ``Orders.uncertainty``), the words
differ by about 1e-2 of their size."""


@lru_cache(maxsize=16)
def second_orders(depth: int, tied: bool = True) -> Orders:
    """Return order gamma0^2 for the small task of this module."""
    return orders(KERNEL, TARGETS, WEIGHTS, depth=depth, tied=tied)


@dataclass(frozen=True)
class Words:
    """The lazy operators as matrices: times (T), or samples and times (PT, time-major)."""

    letters: dict[Expr, Array]

    @staticmethod
    def at(kernel: Array, error: Array, weights: Array) -> Words:
        """Return the words for the error at order zero, shape (T,P); c and d are (F.2) with A = B = 0."""
        T, n = error.shape
        lazy = {
            "A": (np.zeros(()), []),
            "B": (np.zeros(()), []),
            "Delta": (error, [s, None]),
            "G": (np.ones((T, T)), [t, s]),
            "w": (weights, [t, s]),
        }
        printed = claimed("selfconsistent2023", "F.2")

        def read(atom: AppliedUndef) -> tuple[Array, list[Expr]]:
            name = str(atom.func)
            if name == "H":
                return kernel, [atom.args[1], atom.args[2]]
            array, axes = lazy[name]
            return array, [atom.args[0] if x is None else x for x in axes]

        c = lattice(printed["C"], (t, mu, s), (T, n, T), read).reshape(T * n, T)
        d = lattice(printed["D"], (t, s, mu), (T, T, n), read).reshape(T, T * n)
        flat = np.einsum("ts,mn->tmsn", np.ones((T, T)), kernel).reshape(T * n, T * n)
        letters = {claim.c: c, claim.d: d, claim.H0: flat, claim.ones: np.ones((T, T))}
        return Words({**letters, claim.c_T: c.T, claim.d_T: d.T})

    def matrix(self, word: Sequence[Expr]) -> Array:
        """Return the product of the letters."""
        value = self.letters[word[0]]
        for x in word[1:]:
            value = value @ self.letters[x]
        return value

    def families(self, formula: Expr) -> tuple[Array, Array]:
        """Return the second order of a printed kernel without its factor, in two parts.

        The parts are the words with both c and d, and the other words.
        """
        both: list[Array] = []
        alone: list[Array] = []
        for _, word in words(formula.coeff(gamma0, 2)):
            kinds = {str(x)[0] for x in word if str(x)[0] in "cd"}
            (both if len(kinds) == 2 else alone).append(self.matrix(word))
        return np.asarray(sum(both)), np.asarray(sum(alone))


def lazy_words(depth: int, tied: bool = True) -> Words:
    """Return the words of this module's task."""
    return Words.at(KERNEL, second_orders(depth, tied).error, WEIGHTS)


def fit(value: Array, basis: Sequence[Array]) -> tuple[Array, float]:
    """Return coefficients of ``value`` on ``basis`` and the largest residual."""
    columns = np.stack([b.ravel() for b in basis], axis=1)
    found, *_ = np.linalg.lstsq(columns, value.ravel(), rcond=None)
    return np.asarray(found, dtype=float), float(np.max(np.abs(columns @ found - value.ravel())))


def printed_factor(formula: Expr, layer: int, depth: int) -> float:
    """Return the number in front of the printed second order."""
    coefficient, _ = words(formula.coeff(gamma0, 2))[0]
    return float(coefficient.subs({ell: layer, L: depth}))


def _layers(name: str, tied: bool) -> tuple[Array, Array, float]:
    """Return rows (depth, layer, fitted nested and product, printed), and the largest residual of a fit."""
    formula = claimed("selfconsistent2023", "P.2")[name]
    fitted, printed, residual = [], [], 0.0
    for depth in DEPTHS:
        basis = lazy_words(depth, tied).families(formula)
        second = second_orders(depth, tied)
        for layer in range(1, depth + 1):
            value = second.H[layer] if name == "H" else second.G[layer]
            found, rest = fit(value, basis)
            residual = max(residual, rest)
            fitted.append([depth, layer, *found])
            printed.append(printed_factor(formula, layer, depth))
    return np.array(fitted), np.array(printed), residual


def _depth_coefficients(name: str, which: str, place: str) -> Evidence:
    fitted, printed, residual = _layers(name, tied=True)
    depth, layer = fitted[:, 0], fitted[:, 1]
    right = np.array([layer_factors(name, int(k), int(d)) for d, k in zip(depth, layer, strict=True)])
    deep = depth > 1
    one = claimed("selfconsistent2023", "P.4")[name].coeff(gamma0, 2)
    two = claimed("selfconsistent2023", "P.2")[name]
    same = max(
        abs(_factor_of_sums(one, {ell: k, L: d}) - printed_factor(two, k, d))
        for d in DEPTHS
        for k in range(1, d + 1)
    )
    at_two = fitted[depth == 2][:, 2:]
    return conclude(
        f"expansion:{place}",
        f"The second derivative of {which} in gamma0, L = 1..5, splits into (nested, product) with the "
        "factors "
        f"{_rows(at_two)} at L = 2 where the paper prints "
        f"{_rows(np.stack([printed[depth == 2]] * 2, axis=1))}.",
        agrees("residual of the decomposition", residual, 1e-9),
        agrees("fitted minus derived factors", np.max(np.abs(fitted[:, 2:] - right)), TOLERANCE),
        agrees(
            "fitted minus printed factors, L = 1",
            np.max(np.abs(fitted[~deep, 2:].T - printed[~deep])),
            TOLERANCE,
        ),
        contradicts(
            "nested minus printed, smallest for L >= 2",
            np.min(np.abs(fitted[deep, 2] - printed[deep])),
            TOLERANCE,
        ),
        contradicts(
            "product minus printed, largest for L >= 2",
            np.max(np.abs(fitted[deep, 3] - printed[deep])),
            TOLERANCE,
        ),
        agrees("printed (P.2) minus printed (P.4) factors", same, 0.0),
    )


def _rows(values: Array) -> str:
    return ", ".join(f"({a:.6g}, {b:.6g})" for a, b in values)


def _factor_of_sums(second: Expr, at: dict[Expr, int]) -> float:
    """Return the common number in front of the sums over samples."""
    placed = second.subs(at).expand()
    factors = {float(x.as_independent(Sum)[0].subs(Kx(mu, nu), 1)) for x in placed.as_ordered_terms()}
    if len(factors) != 1:
        raise ValueError(f"{second} must have one factor in front of its sums; it has {factors}")
    return factors.pop()


def feature_kernel_depth_coefficients() -> Evidence:
    """Check (P.2)-(P.4): the factor ell of H against fitted second derivatives, every layer, L = 1..5."""
    return _depth_coefficients("H", "H", "feature_kernel_depth_coefficients")


def gradient_kernel_depth_coefficients() -> Evidence:
    """Check (P.2)-(P.4): the factor L+1-ell of G against fitted second derivatives, every layer."""
    return _depth_coefficients("G", "G", "gradient_kernel_depth_coefficients")


def tangent_basis(depth: int, tied: bool) -> list[Array]:
    """Return the words of the tangent kernel at order gamma0^2, from those of H and G."""
    lazy, second = lazy_words(depth, tied), claimed("selfconsistent2023", "P.2")
    T, n = len(WEIGHTS), len(TARGETS)
    up = [x.reshape(T, n, T, n) for x in lazy.families(second["H"])]
    down = [x[:, None, :, None] * KERNEL[None, :, None, :] for x in lazy.families(second["G"])]
    return [*up, *down]


def _printed_tangent(depth: int) -> float:
    formula = claimed("selfconsistent2023", "16")["K"]
    return _factor_of_sums(formula.expand().coeff(gamma0, 2), {L: depth})


def tangent_kernel_depth_coefficient() -> Evidence:
    """Check (16), (P.2): L(L+1)/2 against the fitted second derivative of the tangent kernel."""
    found, rest = zip(*(fit(second_orders(d).tangent, tangent_basis(d, True)) for d in DEPTHS), strict=True)
    fitted, printed = np.array(found), np.array([_printed_tangent(d) for d in DEPTHS])
    right = np.array([np.mean(tangent_factors(d)) for d in DEPTHS])
    spread = max(np.ptp(tangent_factors(d)) for d in DEPTHS)
    second = claimed("selfconsistent2023", "P.2")["K_forward"]
    start = np.array([float(second.subs(gamma0, 0).coeff(claim.H0).subs(L, d)) for d in DEPTHS])
    zeroth = np.array([_order_zero(d) for d in DEPTHS])
    return conclude(
        "expansion:tangent_kernel_depth_coefficient",
        f"All four terms take the factor {', '.join(f'{x:.6g}' for x in fitted.mean(axis=1))} for L = 1..5; "
        f"(16) prints {', '.join(f'{x:g}' for x in printed)}.",
        agrees("residual of the decomposition", max(rest), 1e-9),
        agrees("fitted minus derived factors", np.max(np.abs(fitted - right[:, None])), TOLERANCE),
        agrees("fitted minus printed factor, L = 1", np.max(np.abs(fitted[0] - printed[0])), TOLERANCE),
        contradicts(
            "fitted minus printed factor, smallest for L >= 2",
            np.min(np.abs(fitted[1:] - printed[1:, None])),
            TOLERANCE,
        ),
        agrees("spread of the derived factors over the terms", spread, 0.0),
        agrees(
            "order zero in units of K^x minus (L+1)", np.max(np.abs(zeroth - np.array(DEPTHS) - 1)), TOLERANCE
        ),
        contradicts("order zero minus that of (P.2), L H^0", np.min(np.abs(zeroth - start)), TOLERANCE),
    )


def _order_zero(depth: int) -> float:
    run = solved(KERNEL, TARGETS, WEIGHTS, depth=depth, gamma=1e-5)
    return float(np.mean(run.tangent / KERNEL[None, :, None, :]))


def gradient_independence_coefficients() -> Evidence:
    """Check (16), (P.2)-(P.4): as printed they expand independent backward matrices (A = B = 0)."""
    findings = []
    for name in ("H", "G"):
        fitted, printed, residual = _layers(name, tied=False)
        findings.append(agrees(f"residual, {name}", residual, 1e-9))
        findings.append(
            agrees(
                f"untied {name} minus printed factors", np.max(np.abs(fitted[:, 2:].T - printed)), TOLERANCE
            )
        )
    found = [
        fit(second_orders(d, False).tangent, tangent_basis(d, False))[0] - _printed_tangent(d) for d in DEPTHS
    ]
    tied = [
        fit(second_orders(d).tangent, tangent_basis(d, True))[0] - _printed_tangent(d) for d in DEPTHS[1:]
    ]
    return conclude(
        "expansion:gradient_independence_coefficients",
        "With backward matrices independent of the forward ones every printed factor is right, at each "
        "layer, L = 1..5; "
        "with the transposed ones it is not.",
        *findings,
        agrees("untied tangent kernel minus printed factors", np.max(np.abs(found)), TOLERANCE),
        contradicts("tied tangent kernel minus printed, smallest", np.min(np.abs(tied)), TOLERANCE),
    )


def tangent_kernel_sum() -> Evidence:
    """Check (P.5): second orders of H and G, summed over layers as printed, give that of K."""
    formula = claimed("selfconsistent2023", "P.5")["K_expanded"].coeff(gamma0, 2)
    T, n = len(WEIGHTS), len(TARGETS)
    gaps = []
    for depth in (1, 3, 5):
        second = second_orders(depth)

        def read(atom: AppliedUndef, second: Orders = second, down: int = 0) -> tuple[Array, list[Expr]]:
            if str(atom.func) == "Kx":
                return KERNEL, [mu, alpha]
            layer = int(atom.args[0])
            if str(atom.func) == "H2":
                return second.H[layer], [t, mu, s, alpha]
            return second.G[max(layer - down, 1)], [t, s]

        total, shifted = (
            lattice(written_out(formula, {L: depth}), (t, mu, s, alpha), (T, n, T, n), partial(read, down=k))
            for k in (0, 1)
        )
        gaps.append(np.max(np.abs(total - second.tangent)))
        off = np.max(np.abs(shifted - second.tangent))
    return conclude(
        "expansion:tangent_kernel_sum",
        "The tangent kernel at order gamma0^2 is the printed sum over layers of those of H and G, L = 1, 3, "
        "5.",
        agrees("sum over layers minus tangent kernel", max(gaps), 1e-9),
        contradicts("with G^l for G^{l+1}, L = 5", off, 1e-9),
    )


def relative_change_with_depth() -> Evidence:
    """Check text after (16): relative kernel change for given v, and after training, as depth grows."""
    depths = np.arange(1, 7)
    fixed_v: list[float] = []
    trained: list[float] = []
    for depth in (int(d) for d in depths):
        weights = steps_of(0.5 / (depth + 1), 18)  # the lazy error halves in each step at every depth
        for target, found in ((1.0, trained), (float(depth + 1), fixed_v)):
            reach = 0.02 / target**2
            o = orders(np.eye(1), np.array([target]), weights, depth=depth, reach=reach)
            found.append(o.tangent[-1, 0, -1, 0] / (depth + 1))
    cubic = np.array(fixed_v) / (depths * (depths + 1) * (depths + 2))
    linear = np.array(trained) / (depths * (depths + 2) / (depths + 1))
    said = sympify(claimed("selfconsistent2023", "16 text")["relative_change"]).coeff(gamma0, 2)
    per_layer = np.array(trained) / np.array([float(said.subs(L, int(d) + 1)) for d in depths])
    printed = np.array([_printed_tangent(int(d)) / (d + 1) ** 3 for d in depths])
    falling = printed / printed[0] - np.array(trained) / trained[0]
    return conclude(
        "expansion:relative_change_with_depth",
        "For given v the relative change is L(L+1)(L+2) times a constant, cubic in L; after training to the "
        "same targets it "
        "is L(L+2)/(L+1) = L + 1 - 1/(L+1) times a constant: linear in L, as stated.",
        agrees("spread of change/(L(L+1)(L+2)) at given v", np.ptp(cubic) / np.mean(cubic), TOLERANCE),
        agrees("spread of change (L+1)/(L(L+2)) after training", np.ptp(linear) / np.mean(linear), TOLERANCE),
        agrees(
            "change over the printed order at L+1 after training, L = 6 against 3",
            per_layer[5] / per_layer[2] - 1.0,
            1 / 16,
        ),
        contradicts("printed (16) after training, ratio to L = 1", np.max(np.abs(falling[1:])), TOLERANCE),
    )


def gradient_kernel_free_index() -> Evidence:
    """Check (P.3): the last line of G leaves mu free.

    The repaired indices are those of (P.4), right at L = 1.
    """
    times = np.linspace(0.0, 0.6, 13)
    kernel, depth = np.array([[1.0, 0.0], [0.0, 0.5]]), 1
    rates = (depth + 1) * np.diag(kernel)
    lazy = {k + 1: Rational(str(TARGETS[k])) * _exponential(float(rates[k])) for k in range(2)}
    formula = claimed("selfconsistent2023", "P.3")["G"]
    values = []
    for sample in (1, 2):
        opened = written_out(formula.coeff(gamma0, 2), {ell: 1, L: depth, P: 2, mu: sample})
        filled = opened.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) == "Delta",
            lambda x: lazy[int(x.args[0])].subs(t, x.args[1]),
        )
        filled = filled.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) == "Kx",
            lambda x: Rational(str(kernel[int(x.args[0]) - 1, int(x.args[1]) - 1])),
        )
        done = filled.doit()
        values.append(float(done.subs({t: times[-1], s: times[-1]})))
    measured, error = _gradient_kernel_flow(kernel, float(times[-1]), depth)
    repaired = _p4_value(kernel, lazy, float(times[-1]))
    return conclude(
        "expansion:gradient_kernel_free_index",
        f"G(t,t) has no sample index, but as printed its second order is {values[0]:.6f} for mu = 1 and "
        f"{values[1]:.6f} for "
        f"mu = 2; the engine gives {measured:.6f} at L = 1, as does (P.4).",
        agrees("repaired minus measured", repaired - measured, error),
        contradicts("printed, mu = 1 minus mu = 2", values[0] - values[1], error),
        contradicts("printed, mu = 1 minus measured", values[0] - measured, error),
        contradicts("printed, mu = 2 minus measured", values[1] - measured, error),
    )


def _exponential(rate: float) -> Expr:
    return exp(-Integer(round(rate)) * t)


def _gradient_kernel_flow(kernel: Array, end: float, depth: int) -> tuple[float, float]:
    """Return the second order of G^1(t,t) under flow, and its error by halved steps.

    The steps are fourth-order Adams-Bashforth.
    """
    found = []
    for pieces in (8, 16):
        grid = flow_grid(np.array([0.0, end]), step=end / pieces)
        found.append(float(orders(kernel, TARGETS, grid.weights, depth=depth).G[1][-1, -1]))
    return found[1], abs(found[1] - found[0])


def _p4_value(kernel: Array, lazy: dict[int, Expr], end: float) -> float:
    """Return (P.4) for G at L = 1 with v and v_{alpha beta} integrated for the lazy error."""
    formula = claimed("selfconsistent2023", "P.4")["G"].coeff(gamma0, 2)
    opened = written_out(formula, {ell: 1, L: 1, P: 2})
    single = {k: integrate(e, (t, 0, s)) for k, e in lazy.items()}

    def value(atom: AppliedUndef) -> complex:
        name, args = str(atom.func), atom.args
        if name == "Kx":
            return float(kernel[int(args[0]) - 1, int(args[1]) - 1])
        if name == "v":
            return float(single[int(args[0])].subs(s, end))
        inner = single[int(args[1])].subs(s, t)
        return float(integrate((lazy[int(args[0])] * inner).expand(), (t, 0, end)))

    return number(opened, value).real
