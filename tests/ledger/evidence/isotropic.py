"""Full-batch descent on isotropic data: finite networks against the derived theory and the printed equations.

The networks have two hidden layers, 800 features and three steps. A printed equation is tested by the derived
theory with that equation in place of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sympy import Add, Basic, Expr, Function, Sum, sympify

from derive.calculus.symbols import s, t
from derive.theory import Average, OrderParameter, Response
from numerics.solver.direct import evaluate
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.isotropic_theory import (
    CLOSE,
    STEPS,
    VALUES,
    derived,
    measured,
    off,
    printed,
    right,
    solved,
    value,
)

EXACT = 1e-10
"""Of identities between numbers of order ten."""


def claim(number: str, *names: str) -> dict[str, Basic]:
    """Return the printed right-hand sides of an entry: all, or the named ones."""
    built = claimed("linear2025", number)
    return {x: built[x] for x in names} if names else built


def equal_time_responses() -> Evidence:
    """Check (11), (12), (14), (65): sums over t' < t drop responses at equal time, which do not vanish."""
    run = solved(derived())
    equal = [float(run.value(n, k)[0, 0]) for n, k in (("R_h0r0", None), ("R_hr", 1), ("R_Delta", None))]
    first, inner = claim("14"), claim("11", "h")
    features = claim("65", "h0")
    return conclude(
        "isotropic:equal_time_responses",
        "At t = t' = 0 the responses R^0_hr, R^1_hr, R_Delta are "
        + ", ".join(f"{x:.4g}" for x in equal)
        + ", not zero. Networks agree with sums over t' <= t and reject t' < t.",
        *right(),
        *[contradicts(f"response {k + 1} at equal time", x, 1e-3) for k, x in enumerate(equal)],
        *off(inner, "(11) as printed", ("C_g", 2, 1, 1), ("C_g", 1, 1, 1), ("C_v", 0, 2, 2)),
        *off(first, "(14) as printed", ("C_h", 2, 0, 0), ("C_g", 1, 1, 1), ("C_v", 0, 1, 1)),
        *off(features, "h^0 of (65) as printed", ("C_h0", 0, 0, 0), ("C_v", 0, 1, 1)),
    )


def rate_of_the_error_vector() -> Evidence:
    """Check (65): eta gamma0 C_g^1 in the equation of v against eta C_g^1 of (69) and A.1.1.

    The networks have gamma0 = 2.
    """
    return conclude(
        "isotropic:rate_of_the_error_vector",
        f"Networks at gamma0 = {VALUES['gamma0']:g} agree with eta C_g^1 and reject eta gamma0 C_g^1.",
        *right(),
        *off(claim("65", "v"), "v of (65) as printed", ("C_v", 0, 0, 3), ("C_h0", 0, 0, 3)),
    )


def sample_equation() -> Evidence:
    """Check (50), (51), (62), (63): 1/alpha in front of R_vu, and the label noise, are missing."""
    noise = sympify(claim("65")["Delta"]).coeff(Function("eps")(t)) * Function("eps")(t)
    without_alpha = {"Delta": sympify(claim("62")["Delta"]) + noise}
    without_noise = {"Delta": sympify(claim("65")["Delta"]) - noise}
    return conclude(
        "isotropic:sample_equation",
        "Networks agree with Delta = u_Delta + R_vu Delta/alpha + sigma eps, the form of (65); without "
        "1/alpha or without the label noise they do not.",
        *right(),
        *off(without_alpha, "no 1/alpha", ("C_Delta", 0, 0, 1), ("C_h0", 0, 1, 0)),
        *off(without_noise, "no label noise", ("C_Delta", 0, 0, 0)),
        *off(claim("62", "Delta"), "(62) as printed", ("C_Delta", 0, 0, 0)),
    )


def loss_parts() -> Evidence:
    """Check (13): sums over s < t omit the sources at time t itself, and the label noise sigma^2."""
    theory = derived()
    v, r0, R_vr = (Function(x) for x in ("v", "r0", "R_vr"))
    back = OrderParameter(R_vr(t, s), Average(Response(v(t), r0(s))), "response", (), "past")
    run = evaluate(
        replace(theory, order_parameters=(*theory.order_parameters, back)), steps=STEPS + 1, values=VALUES
    )
    formula = sympify(claim("13", "loss")["loss"])
    loss, sigma2 = sympify(claim("10", "test")["test"]), VALUES["sigma"] ** 2
    mean, error = measured()["C_v", 0]
    findings = []
    for now in range(STEPS + 1):
        true = value(loss, run, t=now)
        complete = value(_until_now(formula), run, t=now) + sigma2
        z = (mean[now, now] + sigma2 - value(formula, run, t=now)) / error[now, now]
        findings += [
            agrees(f"sums over s <= t plus sigma^2, t = {now}: minus loss", complete - true, EXACT),
            contradicts(f"z of (13) as printed, t = {now}", z, 1.0),
        ]
    return conclude(
        "isotropic:loss_parts",
        f"With s <= t and with sigma^2 the three parts add up to the loss; as printed (13) gives "
        f"{value(formula, run, t=0):.3g} at t = 0, where the loss is {value(loss, run, t=0):.4g}.",
        *right(),
        *findings,
    )


def _until_now(e: Expr) -> Expr:
    """Return sums over s < t turned into sums over s <= t."""
    return e.replace(
        lambda x: isinstance(x, Sum),
        lambda x: Sum(x.function, *[(i, a, t if b == t - 1 else b) for i, a, b in x.limits]),
    )


def centred() -> Evidence:
    """Check (69): the sign of the updates' part of the centred error vector."""
    theory = derived(center=True)
    own = theory.equation("xi").terms
    product = Add(*[x.expr for x in own if x.kind != "memory"])
    start = Add(*[x.expr.subs(t, 0).doit() for x in own if x.kind != "memory"])
    claimed = {"v": _product_for(claim("69")["v"], product, start)}
    after = claim("69 text")
    run, same = solved(theory), solved(printed(theory, after))
    gap = max(float(np.max(np.abs(run.value(n) - same.value(n)))) for n in ("C_v", "C_h0"))
    return conclude(
        "isotropic:centred",
        "Centred networks agree with -eta C_g^1 h^0, the display after (69), and reject the + of (69).",
        *right(center=True),
        agrees("display after (69): C_v, C_h^0 minus derived", gap, EXACT),
        *off(claimed, "(69) as printed", ("C_v", 0, 0, 1), ("C_h0", 0, 0, 1), center=True),
    )


def _product_for(e: Basic, product: Expr, start: Expr) -> Expr:
    xi0 = Function("xi0")
    return sympify(e).xreplace({xi0(0): start, xi0(t): product})


def population_limit() -> Evidence:
    """Check text after (7): both settings tend to descent on the population's loss.

    The limit is that of large alpha and alpha_B.
    """
    limit = solved(derived("population", noise=False))
    findings = []
    for data, ratio in (("full-batch", "alpha"), ("online", "alpha_B")):
        gaps = []
        for size in (1e4, 1e8):
            run = solved(derived(data), **{ratio: size})
            gaps.append(float(np.max(np.abs(run.value("C_v") - limit.value("C_v")))))
        findings += [
            agrees(f"C_v minus the population's, {data}, {ratio} = 1e8", gaps[1], 1e-5),
            contradicts(f"C_v minus the population's, {data}, {ratio} = 1e4", gaps[0], 1e-5),
        ]
    return conclude(
        "isotropic:population_limit",
        "C_v of both settings tends to that of the population's loss, with corrections of order 1/alpha.",
        *findings,
    )


def fresh_batches() -> Evidence:
    """Check (97), (98), (100): u_Delta of different batches is uncorrelated; equal times as in (65).

    The factor eta is that of (65) as well.
    """
    mean, error = measured("online")["C_Delta", 0]
    apart = ~np.eye(STEPS + 1, dtype=bool)
    run = solved(derived("online"))
    moment = [value(claim("98 text")["C_h0"], run, t=k) - run.value("C_h0")[k, k] for k in range(STEPS + 1)]
    return conclude(
        "isotropic:fresh_batches",
        "C_Delta(t,t') vanishes between batches: the covariance of u_Delta is C_v delta(t - t'), not C_v. "
        "(100) shares with (65) the rate eta gamma0 and sums over t' < t, which networks reject.",
        *right("online"),
        agrees("largest z of C_Delta between batches", float(np.max(np.abs(mean / error)[apart])), CLOSE),
        agrees("<h0^2> in the text minus derived", float(np.max(np.abs(moment))), EXACT),
        *off(claim("98", "cov_u_Delta"), "(98) as printed", ("C_Delta", 0, 0, 1), data="online"),
        *off(claim("100", "v"), "v of (100) as printed", ("C_v", 0, 2, 3), data="online", by=5),
        *off(
            claim("100", "h1"), "h^1 of (100) as printed", ("C_g", 1, 1, 1), ("C_v", 0, 1, 1), data="online"
        ),
        *off(claim("100", "h"), "h^l of (100) as printed", ("C_g", 2, 1, 1), ("C_v", 0, 2, 2), data="online"),
    )


__all__ = [
    "centred",
    "equal_time_responses",
    "fresh_batches",
    "loss_parts",
    "population_limit",
    "rate_of_the_error_vector",
    "sample_equation",
]
