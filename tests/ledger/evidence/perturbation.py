"""(P.6)-(P.9), (P.18), (P.19), (P.21), (P.24): the fields of nonlinear networks order by order, in fractions.

The fields are those of (P.6) iterated as a power series, with operators C and D at every order; that (P.6) is
the derived equation is shown first.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Rational
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import ell, gamma0
from tests.ledger.claims import claimed
from tests.ledger.claims.selfconsistent2023 import perturbation as claim
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.perturbation_reading import TOP, Case, Layer, Reading, of_layer, off, x
from tests.ledger.evidence.perturbation_reading import off_polynomials as off_fields
from tests.reference.exact_series import Power

Array = NDArray[np.object_]

CUBIC = x + x**2 / 4 + x**3 / 12
QUINTIC = x + x**2 / 4 + x**3 / 12 + x**4 / 30 + x**5 / 50
HALF, QUARTER, EIGHTH = Fraction(1, 2), Fraction(1, 4), Fraction(1, 8)
ONE = Case(CUBIC, 3, ((HALF,),), (Fraction(1),), steps=3, rate=EIGHTH)
"""One sample, three layers, three steps."""
TWO = Case(CUBIC, 2, ((HALF, EIGHTH), (EIGHTH, QUARTER)), (Fraction(1), -HALF), steps=2)
"""Two samples, two layers, two steps."""

EXACT = 0.0
"""Fractions agree or do not."""
SEEN = 1e-3
"""A printed form must be off by ten times this part of the largest entry."""


def printed(number: str) -> dict[str, Expr]:
    """Return the claims of an equation."""
    return {k: e for k, e in claimed("selfconsistent2023", number).items() if isinstance(e, Expr)}


# -- fields for any operators --------------------------------------------------------------------------------


def _lower(rng: np.random.Generator, size: int, strict: bool) -> Array:
    full = rng.integers(-4, 5, (size, size))
    kept = np.tril(np.where(full == 0, 1, full), -1 if strict else 0)
    return np.array([[Fraction(int(v), 4) for v in row] for row in kept], dtype=object)


@cache
def free(odd: bool, activation: Expr = QUINTIC) -> Reading:
    """Return fields of (P.6) for some causal operators on three times; with ``odd`` also C^1 and D^1."""
    rng, size = np.random.default_rng(23), 3
    C, D = ([_lower(rng, size, strict) for _ in range(TOP)] for strict in (True, False))
    if not odd:
        C[1], D[1] = 0 * C[1], 0 * D[1]
    u = _numbers([Fraction(2, 3), Fraction(-1, 2), Fraction(3, 5)])
    r = _numbers([Fraction(-3, 4), Fraction(5, 6), Fraction(1, 3)])
    small = _numbers([Power({1: {0: 1}}, TOP)] * size)
    totals = {"C_total": [_total(C)], "D_total": [_total(D)]}
    found: dict[str, Array] = {"h": u, "z": r}

    def now(name: str, _: int | None) -> Array:
        return {"u": u, "r": r, "gamma0": small, **found}[name]

    six = printed("P.6")
    for _ in range(TOP + 1):
        reading = Reading(activation, now, totals)
        found = {name: reading.vector(six[name]) for name in ("h", "z")}
    found["g"] = Reading(activation, now, totals).vector(claim.slope(1, claim.h) * claim.z)

    def vectors(name: str, n: int | None) -> Array:
        if n is None:
            return now(name, None)
        return _numbers([v.number(n) for v in found[name]])

    return Reading(activation, vectors, {"C": C, "D": D})


def _numbers(values: list[Any]) -> Array:
    return np.array([*values, None], dtype=object)[:-1]


def _total(orders: list[Array]) -> Array:
    size = len(orders[0])
    found = np.empty((size, size), dtype=object)
    for i in range(size):
        for j in range(size):
            found[i, j] = Power({n: {0: m[i, j]} for n, m in enumerate(orders) if m[i, j]}, TOP)
    return found


def missed(e: Expr, name: str, n: int, *, odd: bool = False, third: int = 3) -> float:
    """Return the error of the printed order ``n`` of a field."""
    reading = free(odd)
    right = reading.vectors(name, n)
    as_read = Reading(reading.activation, reading.vectors, reading.operators, None, third)
    return off(as_read.vector(e), right)


def _order(e: Expr, n: int) -> Expr:
    return e.expand().coeff(gamma0, n)


# -- evidence ------------------------------------------------------------------------------------------------


def single_site_equations() -> Evidence:
    """Check (P.6): with the derived operators, order by order, for every layer."""
    six, findings = printed("P.6"), []
    for name, case in (("one sample, L = 3", ONE), ("two samples, L = 2", TWO)):
        gaps, odd, lacking = [], [], []
        for k in range(1, case.depth + 1):
            layer = Layer(case, k)
            reading = of_layer(layer)
            operators = {f"{x}_total": layer.operators[x] for x in "CD"}
            full = {n: [_total(m)] for n, m in operators.items()}
            small = _numbers([Power({1: {0: 1}}, TOP)] * len(layer.places))

            def vectors(letter: str, _: int | None, layer: Layer = layer, small: Array = small) -> Array:
                return small if letter == "gamma0" else layer.vector(letter)

            total = Reading(reading.activation, vectors, full)
            gaps += [off_fields(total.vector(six[v]), layer.vector(v)) for v in ("h", "z")]
            start = Reading(reading.activation, vectors, {n: [_total(m[:1])] for n, m in operators.items()})
            lacking.append(off_fields(start.vector(six["h"]), layer.vector("h")))
            odd += [abs(v) for m in layer.operators.values() for v in m[1].ravel()]
        findings.append(agrees(f"(P.6) minus derived fields, {name}", max(gaps), EXACT))
        findings.append(contradicts(f"with C and D as they start, {name}", max(lacking), EXACT))
        findings.append(agrees(f"largest entry of C^1 and D^1, {name}", float(max(odd)), EXACT))
    return conclude(
        "perturbation:single_site_equations",
        "The derived fields of every layer solve (P.6), through third order; the first orders of C and D "
        "come out as zero.",
        *findings,
    )


def expansion_of_z() -> Evidence:
    """Check (P.8): the third order lacks a factor one half."""
    z = printed("P.8")["z"]
    gaps = [missed(_order(z, n), "z", n, odd=True) for n in (1, 2, 3)]
    ninth = missed(printed("P.9")["z3"], "z", 3, odd=True)
    half = Rational(1, 2) * claim.D(0, claim.slope(2) * claim.h_n(1) ** 2)
    repaired = missed(_order(z, 3) - half, "z", 3, odd=True)
    return conclude(
        "perturbation:expansion_of_z",
        f"At order gamma0^3, (P.8) is off by {gaps[2]:.3g} of the largest entry; with 1/2 in front of "
        "D phi'' h1^2, as in (P.9), it is exact.",
        agrees("(P.8), orders 1 and 2", max(gaps[:2]), EXACT),
        contradicts("(P.8), order 3", gaps[2], SEEN),
        agrees("(P.8), order 3, with the half", repaired, EXACT),
        agrees("z3 of (P.9)", ninth, EXACT),
    )


def expansion_of_fields() -> Evidence:
    """Check (P.9): with general C^1, D^1, and with those that vanish."""
    nine = printed("P.9")
    good = [missed(nine[k], k[0], int(k[1]), odd=True) for k in ("z1", "z2", "z3", "h1", "h3")]
    right = claim.C(1, claim.g_n(0)) + claim.C(0, claim.g_n(1))
    h2, h3 = nine["h2_written"], nine["h3_written"]
    two = [missed(nine["h2"], "h", 2, odd=odd) for odd in (False, True)]
    return conclude(
        "perturbation:expansion_of_fields",
        "z1, z2, z3, h1 and the first form of h3 are right for any operators.  h2 is C1 g0 + C0 g1, not "
        f"C1 g1 + C0 g2 (off by {two[0]:.3g} of the largest entry even for C1 = 0); its second form is right "
        "for C1 = 0 only, and that of h3 forgets C2 g0.",
        agrees("z1, z2, z3, h1, h3", max(good), EXACT),
        agrees("h2 as C1 g0 + C0 g1", missed(right, "h", 2, odd=True), EXACT),
        contradicts("h2, first form, C1 = 0", two[0], SEEN),
        contradicts("h2, first form, C1 not 0", two[1], SEEN),
        agrees("h2, second form, C1 = 0", missed(h2, "h", 2), EXACT),
        contradicts("h2, second form, C1 not 0", missed(h2, "h", 2, odd=True), SEEN),
        contradicts("h3, second form, C1 = 0", missed(h3, "h", 3), SEEN),
        agrees("h3, second form and C2 g0, C1 = 0", missed(h3 + claim.C(2, claim.g_n(0)), "h", 3), EXACT),
    )


def expansion_of_g() -> Evidence:
    """Check (P.18), (P.19), (P.24): g to second and third order."""
    g2, g3, g = printed("P.18")["g2"], printed("P.19")["g3"], printed("P.24")["g"]
    lost = claim.HALF * claim.slope(3) * claim.h_n(1) ** 2
    absent = claim.slope(2) * claim.h_n(1) * claim.z_n(1) + lost * claim.r
    return conclude(
        "perturbation:expansion_of_g",
        f"(P.18) without the factor r in its last term is off by {missed(g2, 'g', 2):.3g} of the largest "
        "entry, with it exact.  (P.19) is exact with third derivatives.  (P.24) lacks phi'' h1 z1 and "
        f"phi''' h1^2 r/2 and is off by {missed(_order(g, 2), 'g', 2):.3g}.",
        contradicts("(P.18)", missed(g2, "g", 2, odd=True), SEEN),
        agrees("(P.18) with r", missed(g2 - lost + lost * claim.r, "g", 2, odd=True), EXACT),
        agrees("(P.19) with third derivatives", missed(g3, "g", 3, odd=True), EXACT),
        contradicts("(P.19) with second ones, as our copy reads", missed(g3, "g", 3, third=2), SEEN),
        agrees("(P.24), orders 0 and 1", max(missed(_order(g, n), "g", n) for n in (0, 1)), EXACT),
        contradicts("(P.24), order 2", missed(_order(g, 2), "g", 2), SEEN),
        agrees("(P.24), order 2, with the two terms", missed(_order(g, 2) + absent, "g", 2), EXACT),
    )


def first_orders() -> Evidence:
    """Check (P.21): phi(h) and g, and the operators C^{ell,0}, D^{ell,0}."""
    claims = printed("P.21")
    findings: list[Finding] = []
    reading = free(False)
    moved = _phi_orders(reading)
    gaps = [off(reading.vector(_order(claims["phi"], n)), moved[n]) for n in (0, 1, 2)]
    gaps += [missed(_order(claims["g"], n), "g", n) for n in (0, 1)]
    findings.append(agrees("phi(h) to order 2, g to order 1", max(gaps), EXACT))
    for name, case in (("one sample, L = 3", ONE), ("two samples, L = 2", TWO)):
        for letter in "CD":
            printed_form, shifted, kernel = _operator_gaps(case, claims[f"{letter}0"], letter)
            if letter == "C":
                findings.append(contradicts(f"C with A^1 of (14), {name}", printed_form, SEEN))
                findings.append(agrees(f"C with the order zero of A, {name}", shifted, EXACT))
            else:
                findings.append(contradicts(f"D as printed, B^1 of (14), {name}", printed_form, SEEN))
                findings.append(contradicts(f"D as printed, order zero of B, {name}", shifted, SEEN))
                findings.append(agrees(f"D with G^(l+1) for Phi^(l-1), {name}", kernel, EXACT))
    return conclude(
        "perturbation:first_orders",
        "The fields are right.  With A and B as (14) defines them, divided by gamma0, it is their order zero "
        "that enters (the first vanishes), and D holds G^{ell+1,0}, where Phi^{ell-1,0} is printed.",
        *findings,
    )


def _phi_orders(reading: Reading) -> list[Array]:
    values = reading.vector(claim.phi(claim.h))
    return [_numbers([v.number(n) for v in values]) for n in range(TOP)]


def _operator_gaps(case: Case, e: Expr, letter: str) -> tuple[float, float, float]:
    """Return errors of a printed operator: as it is, with A, B of one order less, and with G^{ell+1} too."""
    largest = [0.0, 0.0, 0.0]
    for k in range(1, case.depth + 1):
        layer = Layer(case, k)
        right = layer.operators[letter][0]
        for i, (less, swap) in enumerate(((0, False), (1, False), (1, True))):
            table = np.array(
                [[_entry(case, e, k, one, two, less, swap) for two in layer.places] for one in layer.places],
                dtype=object,
            )
            largest[i] = max(largest[i], off(table, right))
    return largest[0], largest[1], largest[2]


def _entry(
    case: Case, e: Expr, layer: int, one: tuple[int, int], two: tuple[int, int], less: int, swap: bool
) -> Fraction:
    (a, later), (b, earlier) = one, two
    i, j = (p * case.steps + q for p, q in ((a - 1, later), (b - 1, earlier)))
    total = Fraction(0)
    for term in e.as_ordered_terms():
        read = {str(f.func): f.args for f in term.atoms(AppliedUndef)}
        response = read.get("A_n") or read.get("B_n")
        if response is not None:
            name, at = ("A" if "A_n" in read else "B"), int(response[0].subs(ell, layer))
            if 1 <= at < case.depth:
                table = case.solution.coefficient(name, int(response[1]) - less, at)
                total += Fraction(table[a - 1, b - 1, later, earlier])
        elif later > earlier:
            at = layer + 1 if swap else int(read["Phi_n"][0].subs(ell, layer))
            kernel = case.kernel_order("G" if swap else "Phi", at, 0)
            error = Fraction(case.solution.coefficient("Delta", 0)[earlier, b - 1])
            total += case.rate * error * kernel[i, j]
    return total
