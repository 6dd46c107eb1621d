"""Nonlinear networks: trained tanh networks against the derived theory and the printed equations."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sympy import Basic, Expr, Function, Sum, sympify, tanh

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import P, alpha, ell, eta, gamma0, mu, s, t
from derive.theory import Equation, OrderParameter, Term, Theory
from numerics.simulation import Measured, simulate_program
from numerics.solver.direct import Evaluated
from tests.derive.once import mlp
from tests.ledger.claims import claimed, corrected
from tests.ledger.claims.selfconsistent2023.nonlinear import K_x, past, z
from tests.ledger.claims.selfconsistent2023.notation import Delta, u
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import CLOSE, Experiment, edited, off, placed, right, value, worst
from tests.ledger.evidence.evaluated import largest, told_apart, valued

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
    """Return kernels and outputs of infinitely wide networks."""
    return {"deep": DEEP, "shallow": SHALLOW, "start": START}[experiment].measured()


def closure_against_networks() -> Evidence:
    """Check (12)-(14), (D.44): three hidden layers, three steps."""
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
    """Check (14) and the text below (D.24): g(t) responds to u(t) in the step, by <phi''(h) z>."""
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
    """Check (D.43): averages of fields times sources are responses times kernels, B up to s = t included."""
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
    """Check (D.21), (E.1): one hidden layer, three steps."""
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


NODES = {"dh": Function("g"), "dx": Function("z")}
"""Gradients at h and at x = phi(h) in Tensor Programs, and what they are in a network and in the theory."""


@lru_cache(maxsize=1)
def _moments_of_networks() -> dict[tuple[str, int], tuple[Array, Array]]:
    """Return second moments of both gradients by layer with standard errors, extrapolated in the width."""
    narrow, wide = (
        simulate_program(
            DEEP.program,
            width=width,
            steps=DEEP.steps,
            seeds=seeds,
            values=VALUES,
            data=DATA,
            wanted={name: f(ell, mu, t) for name, f in NODES.items()},
            seed=3,
        )
        for width, seeds in ((150, 120), (300, 60))
    )
    return {(name, k): _extrapolated(wide[name][k], narrow[name][k]) for name in NODES for k in (1, 2)}


def _extrapolated(wide: Measured, narrow: Measured) -> tuple[Array, Array]:
    """Return the limit of large width from widths 2N and N, times as the last axes."""
    error = np.sqrt(4 * wide.stderr**2 + narrow.stderr**2)
    mean, spread = (np.moveaxis(x, (0, 1), (-2, -1)) for x in (2 * wide.mean - narrow.mean, error))
    return mean, spread


@lru_cache(maxsize=1)
def _moments_of_theory() -> Evaluated:
    """Return the derived theory with the second moment of z, and with theta, the response times gamma0."""
    theory = DEEP.theory()
    extra = []
    for q in theory.order_parameters:
        k = q.symbol.args[0]
        if q.name == "G":
            moment = Average(NODES["dx"](k, mu, t) * NODES["dx"](k, alpha, s))
            extra.append(replace(q, symbol=Function("Z")(*q.symbol.args), definition=moment))
        elif q.name == "A":
            answer = Average(Response(tanh(Function("h")(k, mu, t)), Function("r")(k, alpha, s)))
            extra.append(replace(q, symbol=Function("theta")(*q.symbol.args), definition=answer))
    return DEEP.solved(replace(theory, order_parameters=(*theory.order_parameters, *extra)))


def _called(field: Basic) -> tuple[float, str]:
    """Return the name ``c Z^v`` of a field in the table as its factor and v, both at the time t."""
    factor, node = sympify(field).as_coeff_Mul()
    (vector,) = node.args
    if node.func != Function("Z") or vector.args != (t,):
        raise ValueError(f"{field} is the name of no field at t")
    return float(factor), str(vector.func)


def _of_networks(field: Basic, kernel: str, layer: int) -> float:
    """Return the largest z between the second moment of a named field in networks and a kernel."""
    factor, vector = _called(field)
    mean, error = (factor**2 * x for x in _moments_of_networks()[vector, layer])
    expected, spread = value(_moments_of_theory(), f"{kernel}{layer}")
    return _largest(mean - expected, np.hypot(error, spread))


def dictionary() -> Evidence:
    """Check Table N1: Z^dx is the pre-gradient z, not g; G is E[Z^dh Z^dh], as the same table says."""
    claim, true = (built("selfconsistent2023", "Table N1") for built in (claimed, corrected))
    run = _moments_of_theory()
    theta = {"theta": lambda now, past: run.value("theta", 2)[..., now, past]}
    numbers = {"t": DEEP.steps, "s": DEEP.steps - 1, "gamma0": VALUES["gamma0"]}
    responses = [valued(x["A"], numbers, theta) for x in (claim, true)]
    derived = run.value("A", 2)[..., DEEP.steps, DEEP.steps - 1]
    return conclude(
        "nonlinear:dictionary",
        "dx is the gradient with respect to phi(h), of second moment <z z>; <g g> = G belongs to dh; theta "
        "is gamma0 A.",
        *[
            contradicts(
                f"what g is called, layer {k}: largest z with G", _of_networks(claim["g"], "G", k), 1.0
            )
            for k in (1, 2)
        ],
        *[
            agrees(f"{name} as corrected, layer {k}: largest z", _of_networks(true[name], kernel, k), CLOSE)
            for name, kernel in (("g", "G"), ("z", "Z"))
            for k in (1, 2)
        ],
        *told_apart("(Table N1): A^2", responses, derived, 1e-12),
    )


def _largest(gap: Array, error: Array) -> float:
    return float(np.max(np.abs(gap) / error))


def _with_dotted_part(dot: Expr) -> Theory:
    """Return the theory with a dotted part of one sample a step, (N.10) text, as response in h."""
    A, Delta, g = (Function(x) for x in ("A", "Delta", "g"))
    several = dot.replace(A, lambda now, past: A(ell - 1, mu, alpha, now, past))
    several = several.replace(Delta, lambda time: Delta(alpha, time)).replace(
        g, lambda time: g(ell, alpha, time)
    )
    several = several.replace(
        lambda x: isinstance(x, Sum), lambda x: Sum(x.function, (alpha, 1, P), *x.limits)
    )

    def put(e: Equation) -> Equation:
        if e.name != "h":
            return e
        rest = tuple(x for x in e.terms if x.kind != "response")
        return replace(
            e, terms=(*rest, Term.local(placed(several, int(e.lhs.args[0]), DEEP.depth), "definition"))
        )

    theory = DEEP.theory()
    return replace(theory, equations=tuple(map(put, theory.equations)))


def dotted_part() -> Evidence:
    """Check (N.10) text: the dotted part is gamma0 sum_s A(t,s) g(s), without a further error."""
    claim, true = (sympify(built("selfconsistent2023", "N.10 text")["dot"]) for built in (claimed, corrected))
    A, g = Function("A"), Function("g")
    supplied = gamma0 * claim.replace(A, lambda *times: A(*times) * g(times[1]))
    whole, run = DEEP.solved(), DEEP.solved(_with_dotted_part(true))
    gap = max(largest(run.values[k] - whole.values[k]) for k in whole.values if k[0] in ("f", "Phi", "G"))
    return conclude(
        "nonlinear:dotted_part",
        "Networks agree with sum_s A(t,s) g(s), and reject sum_s Delta(s) A(t,s), with g(s) or without.",
        right("tanh, L = 3", DEEP, networks("deep")),
        agrees("dotted part as corrected: numbers minus derived", gap, 1e-10),
        off("dotted part as printed", DEEP, networks("deep"), _with_dotted_part(claim)),
        off("error in the dotted part", DEEP, networks("deep"), _with_dotted_part(supplied)),
    )


def independent_backward() -> Evidence:
    """Check (O.1), text: A = B = 0 is the network with independent backward matrices.

    Its output, however, is not (4).
    """
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
    """Return (13) with A = B = 0."""
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
    return Equation(e.lhs, (e.terms[0].with_expression(step),), e.ranges)


def _tied_output(tied: Experiment, printed: Theory) -> float:
    return worst({"f": tied.measured()["f"]}, tied.solved(printed), "f")
