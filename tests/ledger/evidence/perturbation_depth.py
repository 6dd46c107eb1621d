"""(P.7), (P.22), (P.23), (P.26), section 5.1: dependence of second orders on times, depth, A and B."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
from sympy import Expr, Matrix, Rational, sympify

from tests.ledger.claims import claimed, corrected
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.evaluated import told_apart, valued
from tests.ledger.evidence.expansion import TOLERANCE, fit, second_orders, tangent_basis
from tests.ledger.evidence.perturbation import EIGHTH, EXACT, QUARTER
from tests.ledger.evidence.perturbation_reading import Case, Layer, off, x

KINDS: dict[str, Expr] = {
    "almost linear, x + x^2/100": x + x**2 / 100,
    "growing, x + x^2/4": x + x**2 / 4,
    "saturating, x - x^3/6": x - x**3 / 6,
}
SHALLOW, DEEP = 3, 6
NAMES = ("Phi", "G")


@cache
def one_step(kind: str, depth: int) -> Case:
    """Return the case of one step of descent on one sample, with the same v at every depth."""
    return Case(KINDS[kind], depth, ((QUARTER,),), (Fraction(1),), steps=2, rate=EIGHTH, order=2)


def _second(case: Case, name: str, layer: int) -> float:
    return float(case.kernel_order(name, layer, 2)[1, 1])


STATED = {"Phi": ("P.22 text", "Phi2"), "G": ("P.23 text", "G2"), "K": ("P.26 text", "relative_change")}
"""Entries and names of the stated growth of kernels."""


def stated(kernel: str, layer: int, depth: int) -> float:
    """Return the growth that is printed for a kernel, at gamma0 = 1."""
    number, name = STATED[kernel]
    e = sympify(claimed("selfconsistent2023", number)[name])
    return float(valued(e, {"ell": layer, "L": depth, "gamma0": 1.0}, {}))


def growth_with_layers() -> Evidence:
    """Check (P.22) text, (P.23) text: Phi^{ell,2} and G^{L+1-ell,2} after one step, six layers."""
    findings: list[Finding] = []
    shown = []
    said_up = stated("Phi", DEEP, DEEP) / stated("Phi", SHALLOW, DEEP)
    said_down = stated("G", 1, DEEP) / stated("G", DEEP + 1 - SHALLOW, DEEP)
    for kind in KINDS:
        case = one_step(kind, DEEP)
        up = _second(case, "Phi", DEEP) / _second(case, "Phi", SHALLOW)
        down = _second(case, "G", 1) / _second(case, "G", DEEP + 1 - SHALLOW)
        shown.append(f"{up:.3g} and {down:.3g}")
        findings.append(contradicts(f"(P.22 text): Phi, layer 6 over 3, minus 2: {kind}", up - said_up, 0.05))
        findings.append(
            contradicts(f"(P.23 text): G, layer 1 over 4, minus 2: {kind}", down - said_down, 0.05)
        )
    return conclude(
        "perturbation_depth:growth_with_layers",
        "From three layers to six, Phi^{ell,2} and G^{L+1-ell,2} should double. After one step they grow by "
        f"{', '.join(shown)} ({'; '.join(KINDS)}).",
        *findings,
    )


def growth_after_training() -> Evidence:
    """Check (P.22) text, (P.23) text: almost linear networks trained to the same targets, v as 1/K^0.

    Second orders are divided by the printed growth, ell or L + 1 - ell. The ratios are bounded in layers and
    depth after training, as stated, and grow with both for given v.
    """
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    largest: dict[tuple[str, int], float] = {}
    for depth in (SHALLOW, DEEP):
        case = one_step(next(iter(KINDS)), depth)
        size = float(case.tangent_order(0)[1, 1])
        for name in NAMES:
            layers = {n: n if name == "Phi" else depth + 1 - n for n in range(1, depth + 1)}
            orders = {n: _second(case, name, k) / stated(name, k, depth) for n, k in layers.items()}
            largest[name, depth] = max(orders.values()) / size**2
            first[name], last[name] = orders[1], orders[depth]
    findings: list[Finding] = []
    for name in NAMES:
        growth = largest[name, DEEP] / largest[name, SHALLOW] - 1
        findings.append(agrees(f"{name}: largest after training, L = 6 over L = 3, minus 1", growth, 0.2))
        given = last[name] / first[name] - 1
        findings.append(contradicts(f"{name}: last layer over first for given v, minus 1", given, 0.2))
    return conclude(
        "perturbation_depth:growth_after_training",
        "Second orders of kernels of almost linear networks over the number of layers: after training to the "
        f"same targets the largest at L = 6 is {largest['Phi', DEEP] / largest['Phi', SHALLOW]:.3f} of that "
        f"at L = 3. For given v the last of six layers has {last['Phi'] / first['Phi']:.3g} times as much as "
        "the first.",
        *findings,
    )


def relative_change() -> Evidence:
    """Check (P.26) text: the tangent kernel's relative change at four and at six layers."""
    findings: list[Finding] = []
    shown = []
    said = stated("K", DEEP, DEEP) / stated("K", SHALLOW, SHALLOW)
    for kind in KINDS:
        ratio, size = [], []
        for depth in (SHALLOW, DEEP):
            case = one_step(kind, depth)
            start = float(case.tangent_order(0)[1, 1])
            ratio.append(float(case.tangent_order(2)[1, 1]) / start)
            size.append(start)
        given = ratio[1] / ratio[0]
        trained = given * (size[0] / size[1]) ** 2
        shown.append(f"{given:.3g} ({trained:.3g})")
        findings.append(
            contradicts(f"(P.26 text): change at L = 6 over 3, minus 2: {kind}", given - said, 0.1)
        )
    sizes = [float(one_step("saturating, x - x^3/6", d).tangent_order(0)[1, 1]) for d in (SHALLOW, DEEP)]
    findings.append(
        contradicts("K^0 at L = 6 over L = 3, minus 7/4: saturating", sizes[1] / sizes[0] - 1.75, 0.05)
    )
    return conclude(
        "perturbation_depth:relative_change",
        "From three layers to six, K^2/K^0 should double. For the same v it grows by "
        f"{', '.join(shown)} ({'; '.join(KINDS)}); in brackets for v that has shrunk as 1/K^0.",
        *findings,
    )


def time_dependence() -> Evidence:
    """Check (P.7) text, section 5.2: second orders as combinations of v(t) v(s), v_{11}(t), v_{11}(s).

    In steps, v(t)^2 = 2 v_{11}(t) + sum of (eta Delta)^2, so that this last sum is a separate function.
    """
    case = Case(x + x**2 / 4, 2, ((QUARTER,),), (Fraction(1),), steps=5, rate=EIGHTH, order=2)
    pushes = [case.rate * Fraction(e) for e in case.solution.coefficient("Delta", 0)[:, 0]]
    v = [sum(pushes[:k], start=Fraction(0)) for k in range(case.steps)]
    nested = [sum((pushes[j] * v[j] for j in range(k)), start=Fraction(0)) for k in range(case.steps)]
    single = [sum((p * p for p in pushes[:k]), start=Fraction(0)) for k in range(case.steps)]
    times = [(t, s) for t in range(case.steps) for s in range(case.steps)]
    functions = {
        "v(t) v(s)": [v[t] * v[s] for t, s in times],
        "v_11(t)": [nested[t] for t, _ in times],
        "v_11(s)": [nested[s] for _, s in times],
        "sum(t)": [single[t] for t, _ in times],
        "sum(s)": [single[s] for _, s in times],
    }
    findings = []
    for name, value in (
        *((f"Phi^{k}", case.kernel_order("Phi", k, 2)) for k in (1, 2)),
        *((f"G^{k}", case.kernel_order("G", k, 2)) for k in (1, 2)),
        ("K", case.tangent_order(2)),
    ):
        right = [Fraction(value[t, s]) for t, s in times]
        findings.append(agrees(f"{name}: what no combination gives", _residual(functions, right), EXACT))
        fewer = {k: f for k, f in functions.items() if not k.startswith("v_")}
        findings.append(contradicts(f"{name}: the same without v_11", _residual(fewer, right), 1e-5))
    orders = [np.asarray(Layer(case, 2).operators["D"][n]) for n in (0, 1)]
    findings.append(agrees("D^{2,1}, which is zero", float(max(abs(a) for a in orders[1].ravel())), EXACT))
    said = [int(built("selfconsistent2023", "P.7 text")["order_of_D"]) for built in (claimed, corrected)]
    whole = [orders[n].astype(float) for n in said]
    findings += told_apart(
        "(P.7 text): D^{2,n}, the n of D that depends on time,", whole, orders[0].astype(float), 1e-5
    )
    return conclude(
        "perturbation_depth:time_dependence",
        "Every kernel of a network of two layers at order gamma0^2 is a combination of v(t)v(s), v_11(t) "
        "and v_11(s), at all 25 pairs of times (and, in steps, of the sum of squared pushes).",
        *findings,
    )


def _residual(functions: dict[str, list[Fraction]], right: list[Fraction]) -> float:
    """Return the exact residual of the least-squares combination, relative to the largest entry."""
    A = Matrix(
        [[Rational(f[i].numerator, f[i].denominator) for f in functions.values()] for i in range(len(right))]
    )
    b = Matrix([Rational(y.numerator, y.denominator) for y in right])
    best = A * (A.T * A).LUsolve(A.T * b)
    exact = [Fraction(int(y.p), int(y.q)) for y in best]
    return off(np.array(exact, dtype=object), np.array(right, dtype=object))


def gradient_independence_near_zero() -> Evidence:
    """Check Figure 4 text: A = B = 0 near gamma0 = 0, by fitted second orders of the tangent kernel."""
    depths = (1, 2, 3, 4, 5)
    full, ansatz = (
        [fit(second_orders(d, tied).tangent, tangent_basis(d, tied))[0].mean() for d in depths]
        for tied in (True, False)
    )
    ratios = [float(a / b) for a, b in zip(full, ansatz, strict=True)]
    return conclude(
        "perturbation_depth:gradient_independence_near_zero",
        "With A = B = 0 the tangent kernel of a linear network changes at order gamma0^2 too little by the "
        "factors "
        f"{', '.join(f'{q:.3g}' for q in ratios)} at L = 1..5, however small gamma0: A and B make "
        f"{1 - 1 / ratios[-1]:.0%} of the change at L = 5.",
        agrees("L = 1, where there is nothing to neglect", ratios[0] - 1.0, TOLERANCE),
        *(
            contradicts(f"ratio minus 1, L = {d}", q - 1.0, TOLERANCE)
            for d, q in zip(depths[1:], ratios[1:], strict=True)
        ),
    )
