"""Nonlinear networks: trained tanh networks against the derived theory and what is printed about it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Function, Sum, tanh

from derive.calculus.averages import Average
from derive.calculus.symbols import P, alpha, ell, eta, mu, s, t
from derive.theory import Equation, OrderParameter, Theory
from numerics.simulation import simulate_program
from tests.derive.once import mlp
from tests.ledger.claims import claimed
from tests.ledger.claims.selfconsistent2023.nonlinear import K_x, past, z
from tests.ledger.claims.selfconsistent2023.notation import Delta, u
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import CLOSE, Experiment, edited, off, right, value, worst

Array = NDArray[np.float64]

INPUTS = np.array([[1.2, -0.4, 1.3], [0.2, 0.9, -0.8]])
TARGETS = np.array([1.0, -0.6])
VALUES = {"eta": 0.5, "gamma0": 2.0, "P": 2}
DATA = {"x": INPUTS, "y": TARGETS}
DEEP = Experiment(mlp(3, "tanh"), VALUES, DATA, width=150, networks=120)
SHALLOW = Experiment(mlp(1, "tanh"), VALUES, DATA, width=300, networks=200)
START = Experiment(
    mlp(3, "tanh", tied=False), {"eta": 0.5, "gamma0": 0.2, "P": 2}, DATA, width=200, networks=240, steps=1
)
"""One step that moves features little: the output's velocity."""


@lru_cache(maxsize=4)
def networks(experiment: str) -> dict[str, tuple[Array, Array]]:
    """Kernels and outputs of infinitely wide networks."""
    return {"deep": DEEP, "shallow": SHALLOW, "start": START}[experiment].measured()


def closure_against_networks() -> Evidence:
    """(12)-(14), (D.44): three hidden layers, three steps."""
    claim = {k: v for k, v in claimed("selfconsistent2023", "D.44").items() if "_" not in k or "cov" in k}
    theory = edited(DEEP.theory(), claim, DEEP.depth)
    same = worst(networks("deep"), DEEP.solved(theory))
    return conclude(
        "nonlinear:closure_against_networks",
        "Kernels and outputs of tanh networks of three hidden layers agree with the derived theory, and with "
        "(D.44) in Euler steps, in which B acts up to s = t.",
        right("tanh, L = 3", DEEP, networks("deep")),
        agrees("(D.44) put in: largest z", same, CLOSE),
    )


def equal_time_response() -> Evidence:
    """(14) and the text below (D.24): g(t) responds to u(t) within the step, by <phi''(h) z>."""
    run = DEEP.solved()
    response = run.value("B", 1)[0, 0]
    size = float(np.max(np.abs(np.diagonal(response))))
    spread = float(np.max(run.stderr("B", 1)))
    printed = float(claimed("selfconsistent2023", "D.24 text")["B_equal_time"])
    return conclude(
        "nonlinear:equal_time_response",
        f"B^1(t,t) reaches {size:.3g} after three steps, and networks reject a theory with s < t only.",
        right("tanh, L = 3", DEEP, networks("deep")),
        contradicts("B^1(t,t) minus printed, with s < t only", size - printed, spread),
        off("B for s < t only", DEEP, networks("deep"), _without_equal_times(DEEP.theory())),
    )


def _without_equal_times(theory: Theory) -> Theory:
    def earlier(e: Expr) -> Expr:
        def cut(x: Sum) -> Sum:
            return Sum(x.function, *[(i, a, t - 1 if b == t else b) for i, a, b in x.limits])

        return e.replace(lambda x: isinstance(x, Sum), cut)

    return replace(
        theory,
        equations=tuple(
            replace(e, terms=tuple(x.rewrite(earlier) for x in e.terms)) for e in theory.equations
        ),
    )


def responses_by_parts() -> Evidence:
    """(D.43): averages of fields times sources are responses times kernels, B up to s = t included."""
    theory = DEEP.theory()
    h, g, u, r = (Function(n) for n in "hgur")
    products = {
        **{f"A{k}": tanh(h(k, mu, t)) * r(k, alpha, s) for k in (1, 2)},
        **{f"B{k}": g(k + 1, mu, t) * u(k + 1, alpha, s) for k in (1, 2)},
    }
    kernels = {"A1": "G2", "A2": "G3", "B1": "Phi1", "B2": "Phi2"}
    ranges = theory.order_parameter("Phi").ranges
    extra = tuple(
        OrderParameter(Function("Q")(i, mu, alpha, t, s), Average(x), "correlation", ranges)
        for i, x in enumerate(products.values(), start=1)
    )
    run = DEEP.solved(replace(theory, order_parameters=(*theory.order_parameters, *extra)))

    def off_by(i: int, name: str, response: Array) -> float:
        product = VALUES["gamma0"] * np.einsum("mbtx,baxs->mats", response, value(run, kernels[name])[0])
        return _largest(run.value("Q", i) - product, run.stderr("Q", i))

    findings = []
    for i, name in enumerate(products, start=1):
        response = value(run, name)[0]
        what = f"field times source minus gamma0 {name[0]}^{name[1]} {kernels[name]}: largest z"
        findings.append(agrees(what, off_by(i, name, response), CLOSE))
        if name[0] == "B":
            past = response * np.tri(DEEP.steps + 1, k=-1)
            findings.append(contradicts(f"{what}, s < t only", off_by(i, name, past), 1.0))
    return conclude(
        "nonlinear:responses_by_parts",
        "<phi(h) r> is A G and <g u> is B Phi in the nonlinear theory, if B includes its part at s = t.",
        *findings,
    )


def two_layers() -> Evidence:
    """(D.21), (E.1): one hidden layer, three steps."""
    claim = claimed("selfconsistent2023", "D.21")
    fields = {k: claim[k] for k in ("cov_u", "cov_r", "h", "z", "Phi", "G")}
    theory = edited(SHALLOW.theory(), fields, 1)
    same = worst(networks("shallow"), SHALLOW.solved(theory))
    memory = z(1, alpha, s) * K_x(mu, alpha) * Delta(alpha, s)
    bare = {**fields, "h": u(1, mu, t) + past(memory)}
    return conclude(
        "nonlinear:two_layers",
        "Kernels and outputs of tanh networks of one hidden layer agree with the theory and with (D.21).",
        right("tanh, L = 1", SHALLOW, networks("shallow")),
        agrees("(D.21) put in: largest z", same, CLOSE),
        off("h with z for g in its memory", SHALLOW, networks("shallow"), edited(SHALLOW.theory(), bare, 1)),
    )


def dictionary() -> Evidence:
    """Table N1: Z^dx is the pre-gradient z, not g; G is E[Z^dh Z^dh], as the same table says."""
    z = Function("z")
    runs = simulate_program(
        DEEP.program,
        width=300,
        steps=DEEP.steps,
        seeds=60,
        values=VALUES,
        data=DATA,
        wanted={"Z": z(ell, mu, t)},
        seed=3,
    )
    theory = DEEP.theory()
    extra = tuple(
        OrderParameter(
            Function("Z")(k, mu, alpha, t, s), Average(z(k, mu, t) * z(k, alpha, s)), "correlation", q.ranges
        )
        for k, q in ((int(q.symbol.args[0]), q) for q in theory.order_parameters if q.name == "G")
    )
    run = DEEP.solved(replace(theory, order_parameters=(*theory.order_parameters, *extra)))
    own, other = [], []
    for layer in (1, 2):
        mean, error = (
            np.moveaxis(x, (0, 1), (-2, -1)) for x in (runs["Z"][layer].mean, runs["Z"][layer].stderr)
        )
        expected, spread = value(run, f"Z{layer}")
        own.append(_largest(mean - expected, np.hypot(error, spread)))
        gradient, spread = value(run, f"G{layer}")
        other.append(_largest(mean - gradient, np.hypot(error, spread)))
    return conclude(
        "nonlinear:dictionary",
        "dx is the gradient with respect to phi(h), of second moment <z z>; <g g> = G belongs to dh.",
        agrees("networks' dx: largest z with <z z>", max(own), CLOSE),
        contradicts("networks' dx, first layer: largest z with G", other[0], 1.0),
        contradicts("networks' dx, second layer: largest z with G", other[1], 1.0),
    )


def _largest(gap: Array, error: Array) -> float:
    return float(np.max(np.abs(gap) / error))


def dotted_part() -> Evidence:
    """(N.10) text: the dotted part is gamma0 sum_s A(t,s) g(s); an error in it is one too many."""
    theory = DEEP.theory()

    def weighted(e: Expr) -> Expr:
        A, Delta = Function("A"), Function("Delta")
        return e.replace(A, lambda *x: A(*x) * Delta(x[2], x[4]))

    wrong = replace(
        theory,
        equations=tuple(
            replace(e, terms=tuple(x.rewrite(weighted) for x in e.terms)) for e in theory.equations
        ),
    )
    return conclude(
        "nonlinear:dotted_part",
        "Networks agree with sum_s A(t,s) g(s), and reject sum_s Delta(s) A(t,s) g(s).",
        right("tanh, L = 3", DEEP, networks("deep")),
        off("error in the dotted part", DEEP, networks("deep"), wrong),
    )


def independent_backward() -> Evidence:
    """(O.1), text: A = B = 0 is the network with independent backward matrices, but its output is not (4)."""
    tied, untied = replace(START, program=mlp(3, "tanh")), START
    ansatz = edited(tied.theory(), _fields_without_responses(), 3)
    velocity = claimed("selfconsistent2023", "O.1 text")["df"]
    kernel = velocity.function.xreplace({t: s}).coeff(Function("Delta")(alpha, s))
    step = Sum(eta * kernel.subs("L", 3).doit() * Function("Delta")(alpha, s), (alpha, 1, P), (s, 0, t - 1))
    printed = replace(ansatz, scalars=tuple(_with(e, step) for e in ansatz.scalars))
    measured = networks("start")
    return conclude(
        "nonlinear:independent_backward",
        "Networks with independent backward matrices follow the theory with A = B = 0, f = <z phi>/gamma0; "
        "with (4) for the output, as the ansatz is used, they do not. Transposed ones obey (4).",
        right("tanh, L = 3, independent", untied, measured),
        agrees("A = B = 0 put in: largest z", worst(measured, untied.solved(ansatz)), CLOSE),
        off("A = B = 0 and (4)", untied, {"f": measured["f"]}, printed),
        agrees("transposed and (4): largest z of f", _tied_output(tied, printed), CLOSE),
    )


def _fields_without_responses() -> dict[str, Expr]:
    """(13) with A = B = 0."""
    fields = claimed("selfconsistent2023", "13")
    gone = {Function("A"): lambda *x: 0, Function("B"): lambda *x: 0}
    found = {}
    for name in ("h", "z"):
        e = fields[name]
        for function, zero in gone.items():
            e = e.replace(function, zero)
        found[name] = e
    return found


def _with(e: Equation, step: Expr) -> Equation:
    if e.name != "f":
        return e
    return Equation(e.lhs, (e.terms[0].put(step),), e.ranges)


def _tied_output(tied: Experiment, printed: Theory) -> float:
    return worst({"f": tied.measured()["f"]}, tied.solved(printed), "f")
