"""linear2025 appendix C: residual networks trained by brute force against the derived equations and the
printed ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from sympy import Eq, Expr, KroneckerDelta, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, ell, eta, gamma0, s, t
from derive.depth import (
    CrossLayer,
    cross_layer,
    ends_apart,
)
from derive.program.networks.random_data import isotropic, nu
from derive.theory import Term, Theory
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from tests.derive.once import mean_field
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.layers import Array, Solution, solve_layers

SOURCE = "linear2025"
DEPTH, STEPS = 3, 3
WIDTHS = ((128, 600), (256, 300))
beta = Symbol("beta", positive=True)
VALUES: dict[Symbol, float] = {beta: 0.7, eta: 0.1, gamma0: 0.8, nu: 2.0}
Z = 4.0
"""Worst of a few dozen standard scores that a right theory may show."""
Values = dict[str, Array]


@lru_cache(maxsize=1)
def theory() -> Theory:
    """The residual network on the population loss, at symbolic depth."""
    return mean_field(isotropic(data="population", branch=beta))


@lru_cache(maxsize=1)
def networks() -> tuple[tuple[Values, Values], ...]:
    """Means and standard errors of C_h0, C_h, C_g at each width."""
    program = isotropic(DEPTH, data="population", branch=beta)
    found = []
    for width, seeds in WIDTHS:
        runs = simulate_program(program, width=width, steps=STEPS - 1, seeds=seeds, values=VALUES, seed=width)
        both = []
        for part in ("mean", "stderr"):
            values = {"C_h0": getattr(runs["C_h0"], part)}
            for name in ("C_h", "C_g"):
                whole = getattr(runs[name], part)
                values[name] = np.stack([whole[:, :, i, i] for i in range(DEPTH)])
            both.append(values)
        found.append((both[0], both[1]))
    return tuple(found)


def measured() -> tuple[Values, Values]:
    """Extrapolated in the inverse width, with standard errors."""
    (few, few_error), (many, many_error) = networks()
    mean = {n: 2 * many[n] - few[n] for n in few}
    error = {n: np.hypot(2 * many_error[n], few_error[n]) for n in few}
    return mean, error


def worst(values: Values) -> float:
    """The largest standard score of the networks against ``values``, at the loss and all layers."""
    mean, error = measured()
    scores = [(mean[n] - values[n]) / np.where(error[n] > 0, error[n], np.inf) for n in mean]
    return float(max(np.max(np.abs(x)) for x in scores))


def theory_values(of: Theory) -> Values:
    """C_h0, and C_h, C_g of layers 1..DEPTH, by the direct evaluation of the single-site equations."""
    found = evaluate(of.at_depth(DEPTH), steps=STEPS, values=VALUES)
    layers = range(1, DEPTH + 1)
    return {"C_h0": found.value("C_h0")} | {
        n: np.stack([found.value(n, x) for x in layers]) for n in ("C_h", "C_g")
    }


def layer_values(found: Solution) -> Values:
    """The same from the recursions."""
    return {"C_h0": found["C_h0"], "C_h": found["C_h"][1:], "C_g": found["C_g"][1:]}


def solved(cross: CrossLayer) -> Values:
    """The recursions at DEPTH and VALUES."""
    return layer_values(solve_layers(cross, DEPTH, STEPS, VALUES))


# -- the printed forms, put in place of the derived ones -----------------------------------------------------


def without_equal_times(e: Expr) -> Expr:
    """Sums over earlier times end one step earlier, as all of them are printed."""

    def cut(x: Sum) -> Expr:
        return x.func(x.function, *[(i, a, b - 1 if b == t else b) for i, a, b in x.limits])

    return e.replace(lambda x: isinstance(x, Sum), cut)


def with_equal_times(cross: CrossLayer) -> CrossLayer:
    """Sums over the answers of g to a push of u begun at its own time, where the derived answer is zero."""

    def widen(x: Sum) -> Expr:
        pushes = {y.args[-1] for y in x.function.atoms(AppliedUndef) if str(y.func) == "R_gu"}
        limits = []
        for i, a, b in x.limits:
            late = s in pushes and a == s + 1  # in a recursion, the sum over the time of the answer
            limits.append((i, s if late else a, b + 1 if i in pushes and b in (t - 1, s - 1) else b))
        return x.func(x.function, *limits)

    def wide(e: Expr) -> Expr:
        return e.replace(lambda x: isinstance(x, Sum), widen)

    rows = tuple(
        replace(e, terms=tuple(x.rewrite(wide) for x in e.terms)) if str(e.lhs.func).startswith("R_hu") else e
        for e in cross.responses
    )
    return replace(
        cross,
        responses=rows,
        correlations=tuple(Eq(e.lhs, wide(e.rhs), evaluate=False) for e in cross.correlations),
    )


def edited(cross: CrossLayer, name: str, extra: Expr) -> CrossLayer:
    """``extra`` added to the recursion of the response ``name``, from layer to layer."""
    rows = tuple(
        replace(e, terms=(*e.terms, Term.local(extra, "source")))
        if str(e.lhs.func) == name and e.lhs.args[0] == ell
        else e
        for e in cross.responses
    )
    return replace(cross, responses=rows)


def equal_time_responses() -> Evidence:
    """72, 74, 73, 17, 89: h answers r within the step; the printed sums over t' < t leave that out."""
    right = worst(theory_values(theory()))
    printed = worst(theory_values(theory().map(without_equal_times)))
    start = theory().map(without_equal_times)
    gap = theory_values(theory())["C_h"][0, 0, 0] - theory_values(start)["C_h"][0, 0, 0]
    kick = theory_values(theory())["C_g"][0, 0, 0] / (VALUES[nu] * VALUES[gamma0]) ** 2
    return conclude(
        "residual:equal_time_responses",
        f"Worst score of {WIDTHS[0][1]} and {WIDTHS[1][1]} networks: {right:.1f} derived, {printed:.0f} "
        "with t' < t as printed.  By hand at t = 0: h^1 = u^1 - g^1/(nu gamma0), so C_h^1 has C_g^1/(nu "
        "gamma0)^2 more.",
        agrees("worst score, derived", right, Z),
        agrees("C_h^1(0,0): derived minus printed minus C_g^1/(nu gamma0)^2", gap - kick, 1e-12),
        contradicts("worst score, t' < t as printed", printed, 1.0),
    )


def response_recursions() -> Evidence:
    """73: the derived recursions solve the theory; the printed dg/du has a delta that belongs to dg/dr."""
    cross = ends_apart(cross_layer(theory()))
    values = solved(cross)
    direct = theory_values(theory())
    same = max(float(np.max(np.abs(values[n] - direct[n]))) for n in direct)
    printed = claimed(SOURCE, "73")["gu"]
    stray = next(x for x in printed.args if x.has(KroneckerDelta) and not x.has(Sum))
    wide = with_equal_times(cross_layer(theory()).closed())
    right, off = worst(values), worst(solved(edited(wide, "R_gu", stray)))
    same = max(same, float(np.max(np.abs(solved(wide)["C_g"] - direct["C_g"]))))
    early = cross_layer(theory()).closed().map(without_equal_times)
    cut = worst(solved(early))
    return conclude(
        "residual:response_recursions",
        f"Recursions and direct evaluation agree to {same:.0e}.  Worst score of the networks: {right:.1f} "
        f"derived, {off:.0f} with the delta printed in dg/du, {cut:.0f} with t'' < t throughout.",
        agrees("recursions minus direct evaluation", same, 1e-11),
        agrees("worst score, derived", right, Z),
        contradicts("worst score, delta in dg/du as printed", off, 1.0),
        contradicts("worst score, t'' < t as printed", cut, 1.0),
    )


def correlation_sums() -> Evidence:
    """76-79: one sum over layers; with k and k' summed as printed, each sum counts every layer L times."""
    cross = cross_layer(theory()).closed()
    right = worst(solved(cross))

    def doubled(e: Eq) -> Eq:
        if str(e.lhs.func) not in ("C_h", "C_g"):
            return e
        return Eq(e.lhs, L * e.rhs, evaluate=False)

    wrong = replace(cross, correlations=tuple(doubled(e) for e in cross.correlations))
    off = _first_step(wrong)
    return conclude(
        "residual:correlation_sums",
        f"Worst score {right:.1f} with one sum over k; {off:.0f} already at t = 0 with k and k' summed.",
        agrees("worst score, one sum over k", right, Z),
        contradicts("worst score at t = 0, k and k' summed as printed", off, 1.0),
    )


def _first_step(cross: CrossLayer) -> float:
    """The worst score at t = s = 0 after one pass through the equations with the derived covariances."""
    found = solve_layers(cross_layer(theory()).closed(), DEPTH, 1, VALUES)
    mean, error = measured()
    scores = []
    for e in cross.correlations:
        name = str(e.lhs.func)
        if name in ("C_h", "C_g"):
            for x in range(1, DEPTH + 1):
                value = float(found.value(e.rhs, {ell: x, t: 0, s: 0}))
                scores.append((mean[name][x - 1, 0, 0] - value) / error[name][x - 1, 0, 0])
    return float(np.max(np.abs(scores)))


def transfer_function() -> Evidence:
    """80-82: minus in front of the bracket; with the printed plus the loss grows."""
    right = worst(theory_values(theory()))
    flipped = tuple(
        replace(e, terms=tuple(x.times(-1) if x.expr.has(Sum) else x for x in e.terms))
        if e.name == "v"
        else e
        for e in theory().equations
    )
    values = theory_values(replace(theory(), equations=flipped))
    off = worst(values)
    mean, error = measured()
    last = STEPS - 1
    return conclude(
        "residual:transfer_function",
        f"Loss after {last} steps: {mean['C_h0'][last, last]:.4f} +- {error['C_h0'][last, last]:.4f} in "
        f"networks, {theory_values(theory())['C_h0'][last, last]:.4f} derived, "
        f"{values['C_h0'][last, last]:.2f} with the printed sign.",
        agrees("worst score, derived", right, Z),
        contradicts("worst score, plus as printed", off, 1.0),
    )
