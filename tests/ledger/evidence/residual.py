"""Trained residual networks (linear2025 appendix C) against the derived and the printed equations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
from sympy import Add, Eq, Expr, KroneckerDelta, Mul, S, Sum, Symbol, expand, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, ell, eta, gamma0, s, t
from derive.depth import (
    CrossLayer,
    cross_layer,
    ends_apart,
)
from derive.program.networks.random_data import isotropic, nu
from derive.reduce.data import absorb_factors
from derive.theory import Term, Theory
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from tests.derive.once import mean_field
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.explicit import number, written_out
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
    """Return the theory of the residual network on the population loss, at symbolic depth."""
    return mean_field(isotropic(data="population", branch=beta))


@lru_cache(maxsize=1)
def networks() -> tuple[tuple[Values, Values], ...]:
    """Return means and standard errors of C_h0, C_h, C_g at each width."""
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
    """Return the means extrapolated in the inverse width, with standard errors."""
    (few, few_error), (many, many_error) = networks()
    mean = {n: 2 * many[n] - few[n] for n in few}
    error = {n: np.hypot(2 * many_error[n], few_error[n]) for n in few}
    return mean, error


def worst(values: Values) -> float:
    """Return the largest standard score of the networks against ``values``, at the loss and all layers."""
    mean, error = measured()
    scores = [(mean[n] - values[n]) / np.where(error[n] > 0, error[n], np.inf) for n in mean]
    return float(max(np.max(np.abs(x)) for x in scores))


def theory_values(of: Theory) -> Values:
    """Return C_h0, and C_h, C_g of layers 1..DEPTH, from the single-site equations."""
    found = evaluate(of.at_depth(DEPTH), steps=STEPS, values=VALUES)
    layers = range(1, DEPTH + 1)
    return {"C_h0": found.value("C_h0")} | {
        n: np.stack([found.value(n, x) for x in layers]) for n in ("C_h", "C_g")
    }


def layer_values(found: Solution) -> Values:
    """Return the same order parameters from the recursions."""
    return {"C_h0": found["C_h0"], "C_h": found["C_h"][1:], "C_g": found["C_g"][1:]}


def solved(cross: CrossLayer) -> Values:
    """Return the solution of the recursions at DEPTH and VALUES."""
    return layer_values(solve_layers(cross, DEPTH, STEPS, VALUES))


# -- the printed forms, put in place of the derived ones -----------------------------------------------------


def without_equal_times(e: Expr) -> Expr:
    """Return sums over earlier times that end one step earlier, as all of them are printed."""

    def cut(x: Sum) -> Expr:
        return x.func(x.function, *[(i, a, b - 1 if b == t else b) for i, a, b in x.limits])

    return e.replace(lambda x: isinstance(x, Sum), cut)


def with_equal_times(cross: CrossLayer) -> CrossLayer:
    """Return sums over responses of g to u with equal times, where the derived response is zero."""

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
    """Return the recursions with ``extra`` added to that of the response ``name`` between layers."""
    rows = tuple(
        replace(e, terms=(*e.terms, Term.local(extra, "source")))
        if str(e.lhs.func) == name and e.lhs.args[0] == ell
        else e
        for e in cross.responses
    )
    return replace(cross, responses=rows)


def flat(e: Expr) -> Expr:
    """Return sums over time taken apart and started at 0.

    Forms that differ by causality then compare equal.
    """
    total: Expr = S.Zero
    for part in Add.make_args(expand(e)):
        sums = [x for x in Mul.make_args(part) if isinstance(x, Sum)]
        if not sums:
            total += part
            continue
        ((index, _, upper),) = sums[0].limits
        body = expand(part / sums[0] * sums[0].function)
        total += Add(*[Sum(y, (index, 0, upper)) for y in Add.make_args(body)])
    return total


def as_printed() -> dict[str, tuple[Expr, Expr]]:
    """Return right-hand sides of (72) and (74), and those of the theory that ends its sums at t - 1.

    In the paper's units r0 enters with factor one; h0 is v on the population loss.
    """
    run = absorb_factors(theory().map(without_equal_times), "r0")
    printed = {k: sympify(e) for k, e in claimed(SOURCE, "74").items()}
    fields = {"h0": ("v", None), "h_1": ("h", 1), "h": ("h", ell + 1), "g_L": ("g", L), "g": ("g", ell)}
    found = {
        f"(74), {key}": (printed[key], run.equation(name, *([] if site is None else [site])).rhs)
        for key, (name, site) in fields.items()
    }
    products = {k: sympify(e) for k, e in claimed(SOURCE, "72").items()}
    for key, name, site in (("chi", "h", ell + 1), ("xi", "g", ell)):
        kinds = ("source", "response")
        terms = [x.expr for x in run.equation(name, site).terms if x.kind in kinds]
        found[f"(72), {key}"] = (beta * products[key].subs(ell, site), Add(*terms))
    return found


def equal_time_responses() -> Evidence:
    """Check 72, 74, 73, 17, 89: h responds to r within the step; printed sums over t' < t omit it."""
    shared = as_printed()
    apart = [name for name, (one, other) in shared.items() if expand(flat(one) - flat(other)) != 0]
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
        agrees(
            ", ".join([f"right-hand sides of {len(shared)} in (72), (74) that are not those run", *apart]),
            len(apart),
            0.5,
        ),
        agrees("C_h^1(0,0): derived minus printed minus C_g^1/(nu gamma0)^2", gap - kick, 1e-12),
        contradicts("worst score, t' < t as printed", printed, 1.0),
    )


def response_recursions() -> Evidence:
    """Check 73, 75: derived recursions solve the theory.

    The printed dg/du has a delta that belongs to dg/dr.
    """
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


@lru_cache(maxsize=1)
def solution() -> Solution:
    """Return the solution of the derived recursions."""
    return solve_layers(cross_layer(theory()).closed(), DEPTH, STEPS, VALUES)


def printed_value(e: Expr, at: Mapping[Symbol, int], others: Mapping[str, Array] | None = None) -> float:
    """Return a printed formula at integer layers and times, with the derived kernels and responses.

    ``others`` are arrays of further functions. h^0 and g^{L+1} have C_h0 and 1; a response with one layer is
    that of a layer to its own source.
    """
    known = others or {}

    def value(a: AppliedUndef) -> float:
        name, index = str(a.func), tuple(int(x) for x in a.args)
        if min(index) < 0 or max(index[-2:]) >= STEPS:
            raise KeyError(f"{a} is not solved for")
        if name in known:
            return float(known[name][index])
        if (name, index[0]) == ("C_h", 0):
            return float(solution()["C_h0"][index[1:]])
        if (name, index[0]) == ("C_g", DEPTH + 1):
            return 1.0
        layers = (index[0],) * 2 if name.startswith("R_") and len(index) == 3 else index[:-2]
        return float(solution()[name][(*layers, *index[-2:])])

    return number(written_out(e, {L: DEPTH, **at}, steps=STEPS).subs(VALUES), value).real


def correlation_sums() -> Evidence:
    """Check 78, 79: one sum over layers.

    With k and k' summed as printed, each sum counts every layer L times.
    """
    right = worst(solved(cross_layer(theory()).closed()))
    mean, error = measured()
    scores, gaps = [], []
    for entry, name in (("78", "C_h"), ("79", "C_g")):
        printed = sympify(claimed(SOURCE, entry)[name])
        one_sum = printed.replace(
            lambda x: isinstance(x, Sum),
            lambda x: Sum(x.function, *[y for y in x.limits if str(y[0]) != "k_"]),
        )
        for layer in range(1, DEPTH + 1):
            start = printed_value(printed, {ell: layer, t: 0, s: 0})
            scores.append((mean[name][layer - 1, 0, 0] - start) / error[name][layer - 1, 0, 0])
        for layer, now, past in ((1, 0, 0), (2, 1, 0), (DEPTH, 2, 1)):
            derived = float(solution()[name][layer, now, past])
            gaps.append(printed_value(one_sum, {ell: layer, t: now, s: past}) - derived)
    off = float(np.max(np.abs(scores)))
    return conclude(
        "residual:correlation_sums",
        f"Worst score {right:.1f} with one sum over k; {off:.0f} already at t = 0 with k and k' summed, "
        "as (78) and (79) are printed.",
        agrees("worst score, one sum over k", right, Z),
        agrees("(78), (79) without k' minus derived", float(np.max(np.abs(gaps))), 1e-11),
        contradicts("worst score at t = 0, k and k' summed as printed", off, 1.0),
    )


def _transfer(formula: Expr) -> Array:
    """Return H(t, s) from a recursion such as (81)."""
    found = np.zeros((STEPS, STEPS))
    for now in range(STEPS):
        for past in range(now + 1):
            found[now, past] = printed_value(formula, {t: now, s: past}, {"H": found})
    return found


def _mean_square(transfer: Array) -> Array:
    """Return C_h0(t, s) by (80) with a transfer function."""
    formula, times = claimed(SOURCE, "80")["C_h0"], range(STEPS)
    return np.array([[printed_value(formula, {t: i, s: j}, {"H": transfer}) for j in times] for i in times])


def transfer_function() -> Evidence:
    """Check 80-82: minus in front of the bracket; with the printed plus the loss grows."""
    right = worst(theory_values(theory()))
    printed = sympify(claimed(SOURCE, "81")["H"])
    plus = _transfer(printed)
    minus = _transfer(printed.replace(lambda x: isinstance(x, Sum), lambda x: -x))
    derived = -VALUES[nu] * VALUES[gamma0] * solution()["R_h0r0"]
    mean, error = measured()
    value = _mean_square(plus)
    scores = (mean["C_h0"] - value) / np.where(error["C_h0"] > 0, error["C_h0"], np.inf)
    off = float(np.max(np.abs(scores)))
    last = STEPS - 1
    return conclude(
        "residual:transfer_function",
        f"Loss after {last} steps: {mean['C_h0'][last, last]:.4f} +- {error['C_h0'][last, last]:.4f} in "
        f"networks, {solution()['C_h0'][last, last]:.4f} derived, {value[last, last]:.2f} by (80) with the "
        "printed sign of (81).",
        agrees("worst score, derived", right, Z),
        agrees("(81) with minus, minus derived", float(np.max(np.abs(minus - derived))), 1e-11),
        agrees(
            "(80) with it, minus derived",
            float(np.max(np.abs(_mean_square(minus) - solution()["C_h0"]))),
            1e-11,
        ),
        contradicts("worst score of (80), plus in (81) as printed", off, 1.0),
    )
