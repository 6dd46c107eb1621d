"""Networks with two outputs: fields (I.4), responses (I.5), and the tangent kernel (I.1)-(I.3)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sympy import Basic, Expr, Function, sympify

from derive.calculus.symbols import alpha, ell, mu, s, t
from numerics.solver.direct.interpret import CyclicDemand
from tests.derive.once import mlp
from tests.ledger.claims import claimed, corrected
from tests.ledger.claims.selfconsistent2023.channels import C
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.edited import Experiment, edited, off, placed, right
from tests.ledger.evidence.evaluated import Functions, largest, told_apart, valued
from tests.ledger.evidence.lab import EXACT, derivative, slope

Array = NDArray[np.float64]

DATA = {
    "x": np.array([[1.2, -0.4, 1.3], [0.2, 0.9, -0.8]]),
    "y": np.array([[1.0, -0.5], [-0.6, 0.8]]),
}
VALUES = {"eta": 0.3, "gamma0": 2.0, "P": 2}
CURVED = Experiment(mlp(2, "tanh", outputs=2), {**VALUES, "eta": 0.5}, DATA, width=150, networks=120)
LINEAR = Experiment(mlp(3, "linear", outputs=2), {**VALUES, "eta": 0.08}, DATA, width=100, networks=120)
N, GAMMA, OUTPUTS = 4, 1.5, 2


@lru_cache(maxsize=1)
def networks() -> dict[str, tuple[Array, Array]]:
    """Return kernels and outputs of infinitely wide tanh networks."""
    return CURVED.measured()


def _with_gaussians(e: Basic) -> Expr:
    """Return the expression with u and r in place of chi and xi."""
    return (
        sympify(e)
        .subs(C, OUTPUTS)
        .replace(Function("chi"), Function("u"))
        .replace(Function("xi"), Function("r"))
    )


def _with_products(e: Expr, response: Expr) -> Expr:
    """Return the expression with chi and xi as products, which adds their response terms once more."""
    return e + response


def sources_not_products() -> Evidence:
    """Check (I.4): chi and xi for u and r count the responses twice; phi(h_mu(t)) for phi(h_alpha(s))."""
    theory = CURVED.theory()
    built = claimed("selfconsistent2023", "I.4")
    late = {"z": _with_gaussians(built["z"])}
    there = late["z"].replace(
        lambda x: x == Function("h")(ell, mu, t), lambda _: Function("h")(ell, alpha, s)
    )
    h = {"h": _with_products(_with_gaussians(built["h"]), _responses(_with_gaussians(built["h"])))}
    z = {"z": _with_products(there, _responses(there))}
    return conclude(
        "channels:sources_not_products",
        "Networks with two outputs agree with u and r and phi(h_alpha(s)); with chi, with xi, or with "
        "phi(h_mu(t)) they do not.",
        right("two outputs, L = 2", CURVED, networks()),
        off("chi in h", CURVED, networks(), edited(theory, h, 2)),
        off("xi in z", CURVED, networks(), edited(theory, z, 2)),
        off("phi(h_mu(t)) in z", CURVED, networks(), edited(theory, late, 2)),
    )


def _responses(e: Expr) -> Expr:
    """Return the terms of A and B in a printed field, which remain when sources and errors vanish."""
    gone = {Function(x): lambda *_: 0 for x in ("u", "r", "Delta")}
    for function, zero in gone.items():
        e = e.replace(function, zero)
    return e


def response_layer() -> Evidence:
    """Check (I.5): B^l as the response of g^l to u^l, in exact linear theory."""
    theory = LINEAR.theory()
    printed = sympify(claimed("selfconsistent2023", "I.5")["B"])
    printed = printed.replace(Function("g"), lambda k, sample, *rest: Function("g")(k, *rest))
    try:
        LINEAR.solved(edited(theory, {"B": printed}, 3))
        circular = 0.0
    except CyclicDemand:
        circular = 1.0
    own = tuple(
        replace(q, symbol=Function("Q")(*q.symbol.args), definition=placed(printed, int(q.symbol.args[0]), 3))
        for q in theory.order_parameters
        if q.name == "B"
    )
    run = LINEAR.solved(replace(theory, order_parameters=(*theory.order_parameters, *own)))
    gap = [float(np.max(np.abs(run.value("Q", k) - run.value("B", k)))) for k in (1, 2)]
    return conclude(
        "channels:response_layer",
        "Networks agree with the response of g^{l+1} to u^{l+1}. That of g^l to u^l is B^l plus what updates "
        f"add (up to {max(gap):.3g} here), so that B^l cannot be equal to it.",
        right("two outputs, linear, L = 3", LINEAR, LINEAR.measured()),
        contradicts("response of g^1 to u^1 minus B^1", gap[0], 1e-9),
        contradicts("response of g^2 to u^2 minus B^2", gap[1], 1e-9),
        agrees("theory with (I.5) put in is circular: 1 minus this", 1 - circular, 0.0),
    )


def tangent_normalisation() -> Evidence:
    """Check (I.1)-(I.3): products of gradients of the outputs and kernels, on one small network."""
    draw = np.random.default_rng(8).standard_normal
    x, first, inner, readout = draw((2, 3)), draw((N, 3)), draw((N, N)), draw((OUTPUTS, N))

    def output(w0: Array, w1: Array, w: Array, v: Array) -> Array:
        return np.asarray(w @ np.tanh(w1 @ np.tanh(w0 @ v / np.sqrt(3)) / np.sqrt(N)) / (GAMMA * N))

    def gradients(v: Array) -> list[Array]:
        return [
            derivative(lambda w: output(w, inner, readout, v), first),
            derivative(lambda w: output(first, w, readout, v), inner),
            derivative(lambda w: output(first, inner, w, v), readout),
        ]

    one, two = gradients(x[0]), gradients(x[1])
    h1 = x @ first.T / np.sqrt(3)
    h2 = np.tanh(h1) @ inner.T / np.sqrt(N)
    g2 = readout[None] * slope(h2)[:, None]
    g1 = slope(h1)[:, None] * (g2 @ inner / np.sqrt(N))
    features, fields = {1: np.tanh(h1), 2: np.tanh(h2)}, {1: g1, 2: g2}
    products = [a.reshape(OUTPUTS, -1) @ b.reshape(OUTPUTS, -1).T for a, b in zip(one, two, strict=True)]
    sample, other = {1: 0, 2: 1}, {1: one, 2: two}
    functions: Functions = {
        "grad_grad": lambda layer, mu, c, alpha, c_: np.vdot(
            other[mu][layer].reshape(OUTPUTS, -1)[c - 1], other[alpha][layer].reshape(OUTPUTS, -1)[c_ - 1]
        ),
        "Phi": lambda layer, mu, alpha, t, s: (
            features[layer][sample[mu]] @ features[layer][sample[alpha]] / N
        ),
        "G": lambda layer, mu, c, alpha, c_, t, s: (
            fields[layer][sample[mu], c - 1] @ fields[layer][sample[alpha], c_ - 1] / N
        ),
        "K_x": lambda mu, alpha: x[sample[mu]] @ x[sample[alpha]] / 3,
    }

    def kernel(e: Basic) -> Array:
        numbers = {"mu": 1, "alpha": 2, "t": 1, "s": 1, "L": 2, "N": N, "gamma0": GAMMA}
        pairs = [(c, c_) for c in (1, 2) for c_ in (1, 2)]
        return np.array([valued(e, {**numbers, "c": c, "c_": c_}, functions) for c, c_ in pairs])

    claim, true = (built("selfconsistent2023", "I.3") for built in (claimed, corrected))
    squared = GAMMA**2 * N
    moved = squared * np.sum(products, axis=0).ravel()  # what a step along the gradients does to the outputs
    through = (
        GAMMA
        * N
        * derivative(lambda h: readout @ np.tanh(inner @ np.tanh(h) / np.sqrt(N)) / (GAMMA * N), h1[0])
    )
    findings: list[Finding] = [
        agrees(
            "kernels of (I.3) minus gamma^2 products of gradients", largest(kernel(claim["K"]) - moved), EXACT
        ),
        *told_apart(
            "(I.3), products of gradients",
            [kernel(x["K_gradients"]) for x in (claim, true)],
            moved,
            EXACT,
        ),
        agrees("g^1 minus its recursion (I.2)", float(np.max(np.abs(through - g1[0]))), EXACT),
    ]
    return conclude(
        "channels:tangent_normalisation",
        f"The kernels give gamma^2 = {squared:g} times the products of gradients.",
        *findings,
    )
