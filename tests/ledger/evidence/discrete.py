"""Exact discrete time (appendix M): the readout's average, responses against networks, small steps."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Basic, Expr, Function, Heaviside, I, Integer, S, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.program import L, P, alpha, gamma0, mu, s, t
from derive.theory import Theory
from tests.derive.once import mlp
from tests.ledger.claims.selfconsistent2023 import discrete as claims
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.edited import Experiment, off, right

Array = NDArray[np.float64]
KERNEL, TARGETS = np.array([[1.0, 0.3], [0.3, 0.8]]), np.array([1.0, -0.7])
UNITS, SAMPLES, TIMES, GAMMA = 5, 2, 2, 1.4
EXACT = 1e-11
"""Rounding of sums of some hundred products."""


# -- the average over the readout, and the action ------------------------------------------------------------


def _hermite(size: int) -> tuple[Array, Array]:
    """Nodes and weights of averages over a standard normal number."""
    x, w = np.polynomial.hermite_e.hermegauss(size)
    return x, w / np.sum(w)


def _numbers(e: Expr, fields: dict[str, Array], others: dict[Expr, float]) -> complex:
    """A printed sum over samples and times, of numbers and of vectors ``(sample, time, unit)``."""

    def vector(x: Expr) -> Array:
        (field,) = [a for a in x.atoms(AppliedUndef) if str(a.func) in fields]
        *_, sample, time = field.args
        return np.asarray(fields[str(field.func)][int(sample) - 1, int(time)])

    def scalar(x: AppliedUndef) -> Expr:
        name, index = str(x.func), [int(k) for k in x.args[-4:]] if len(x.args) > 2 else x.args
        if name == "dot":
            return sympify(float(vector(x.args[0]) @ vector(x.args[1])))
        if name == "fhat":
            return sympify(float(fields["fhat"][int(index[0]) - 1, int(index[1])]))
        if name in ("Phi", "A"):
            a, b, now, then = index
            return sympify(complex(fields[name][a - 1, b - 1, now, then]))
        return x

    sized = e.subs({P: SAMPLES, claims.T: TIMES - 1, claims.N: UNITS}).doit().subs(others)
    dots = {x: scalar(x) for x in sized.atoms(AppliedUndef) if str(x.func) == "dot"}
    return complex(sized.xreplace(dots).replace(lambda x: isinstance(x, AppliedUndef), scalar))


def readout_average() -> Evidence:
    """M.3-M.7: the average by quadrature over each weight of the readout; the action by differentiation."""
    rng = np.random.default_rng(17)
    shape = (SAMPLES, TIMES)
    h, xihat = 0.4 * rng.standard_normal((2, *shape, UNITS))
    fhat = 0.4 * rng.standard_normal(shape)
    phi = np.tanh(h)
    pushed = np.einsum("atu->u", xihat + fhat[..., None] * phi / GAMMA)
    x, w = _hermite(60)
    averaged = float(np.sum(np.log((np.exp(1j * np.outer(pushed, x)) @ w).real)))
    kernel = np.einsum("atu,bsu->abts", phi, phi) / UNITS
    response = -1j * np.einsum("atu,bsu->abts", phi, xihat) / (UNITS * GAMMA)  # i A = phi . xi_hat/(N gamma0)
    fields = {"h": phi, "xihat": xihat, "fhat": fhat, "Phi": kernel, "A": response}
    log = claims.m3()["log"]
    printed = _numbers(log, fields, {gamma0: GAMMA})
    action = Add(*[x for x in Add.make_args(claims.m4()["S"]) if x.has(claims.fhat)])
    terms = [x for x in Add.make_args(action) if not x.has(Function("Delta")) and not x.has(claims.f)]
    outputs = _numbers(Add(*terms), fields, {gamma0: GAMMA})
    hats = -np.sum(np.einsum("atu->u", xihat) ** 2) / (
        2 * UNITS
    )  # the term of (M.3) that stays with the fields
    sign, opposite = _response_of_the_features()
    return conclude(
        "discrete:readout_average",
        "(M.3) is the average over the readout, and (M.4) holds it per N; (M.5) and (M.6) are its "
        "derivatives. By i A^L = phi.xi_hat/(N gamma0) the response is minus i times the average of (M.7), "
        "and so it is the average of d phi/d r; the printed sign gives the opposite.",
        agrees("(M.3) minus quadrature", abs(printed - averaged), EXACT),
        agrees("outputs in (M.4) minus (M.3) per N", abs(outputs + hats - printed / UNITS), EXACT),
        agrees("derivatives of (M.4) that differ from (M.5), (M.6)", float(len(_unlike_derivatives())), 0.5),
        agrees("-i <phi xi_hat> minus <d phi/d r>", sign, 1e-9),
        contradicts("+i <phi xi_hat>, as (M.7), minus <d phi/d r>", opposite, 1e-9),
    )


def _unlike_derivatives() -> list[str]:
    """Which of the printed derivatives (M.5), (M.6) are not those of (M.4); one sample, two times."""
    size: dict[Expr, int] = {P: 1, claims.T: 1, L: 1, t: 1, s: 0, mu: 1, alpha: 1}

    def opened(e: Basic) -> Expr:
        """Sums carried out; Theta(0) = 0; kernels are symmetric."""
        e = sympify(e).subs(size).doit().replace(Heaviside, lambda x: S.One if x > 0 else S.Zero)
        return e.replace(
            Function("Phi"), lambda n, a, b, *times: Function("Phi")(n, a, b, *sorted(times, key=int))
        )

    action = opened(claims.m4()["S"])
    f, fhat = claims.f(1, 1), claims.fhat(1, 1)
    place = (1, 1, 1, 1, 0)
    both = {**claims.m5(), **claims.m6()}
    slopes = {
        "f": action.diff(f),
        "i_fhat": action.diff(fhat) / I,
        "A": action.diff(Function("A")(*place)),
    }
    unlike = []
    for name, slope in slopes.items():
        if (slope - opened(both[name])).expand() != 0:
            unlike.append(name)
    return unlike


def _response_of_the_features() -> tuple[float, float]:
    """``-+i <phi(xi) xi_hat>`` minus ``<phi'(xi)>``, one number xi of variance 1.3 with its conjugate.

    ``<F> = int dxi dxi_hat/(2 pi) exp(i xi_hat xi - G xi_hat^2/2) F``, both integrals on a fine grid.
    """
    variance = 1.3
    xi = np.linspace(-14.0, 14.0, 1401)
    hat = np.linspace(-9.0, 9.0, 1401)
    weight = np.exp(1j * np.outer(xi, hat) - variance * hat**2 / 2) / (2 * np.pi)
    cell = (xi[1] - xi[0]) * (hat[1] - hat[0])
    features = complex(np.tanh(xi) @ weight @ hat * cell)
    slope = complex((1 - np.tanh(xi) ** 2) @ weight @ np.ones_like(hat) * cell)
    return abs(-1j * features - slope), abs(1j * features - slope)


# -- responses -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def experiment() -> Experiment:
    """Two hidden linear layers, two samples, large steps."""
    return Experiment(
        program=mlp(2, "linear", "gd"),
        values={"eta": 0.4, "gamma0": GAMMA, "P": 2},
        data={"K_x": KERNEL, "y": TARGETS},
        width=100,
        networks=240,
    )


def _pushed(name: str, source: str) -> Theory:
    """M.8: one of the responses by another source.

    In a linear network r has no sample, and a response to u with the same g is summed over samples.
    """
    theory = experiment().theory()

    def push(x: Average) -> Expr:
        site, *_, past = x.body.source.args
        if source == "r":
            return Average(Response(x.body.body, Function("r")(site, past)))
        return Sum(Average(Response(x.body.body, Function("u")(site, alpha, past))), (alpha, 1, P))

    def turned(e: Expr) -> Expr:
        return e.replace(lambda x: isinstance(x, Average) and isinstance(x.body, Response), push)

    return replace(
        theory,
        order_parameters=tuple(
            replace(q, definition=turned(q.definition), causal="past") if q.name == name else q
            for q in theory.order_parameters
        ),
    )


def _sign_of_the_readout_response() -> Theory:
    """M.7: ``A^L = + i <phi xi_hat>/gamma0``, the opposite of the response; f of (M.8) has it for <phi r>.

    ``f = <phi z>/gamma0`` with ``z = r + memory``; by Stein's lemma the part with r is the sum of A^L, so its
    sign turns with that of A^L.
    """
    theory = experiment().theory()

    def turned(e: Expr) -> Expr:
        h = next(a for a in e.atoms(AppliedUndef) if str(a.func) == "h")
        r = Function("r")(Integer(2), h.args[-1])
        return e - 2 * Average(r * h) / gamma0

    return replace(
        theory,
        scalars=tuple(
            replace(x, terms=(x.terms[0].rewrite(turned),)) if x.name == "f" else x for x in theory.scalars
        ),
    )


def response_definitions() -> Evidence:
    """M.7, M.8: networks against the derived theory, and against it with the printed responses."""
    run = experiment()
    measured = run.measured()
    return conclude(
        "discrete:response_definitions",
        "Networks trained by exact steps follow the derived theory; they reject A as a response to u, B as a "
        "response to r, and A^L with the sign of (M.7).",
        right("two hidden layers, linear", run, measured),
        off("d phi/du in A (M.8)", run, measured, _pushed("A", "u")),
        off("dg/dr in B (M.8)", run, measured, _pushed("B", "r")),
        off("sign of A^L (M.7)", run, measured, _sign_of_the_readout_response()),
    )


# -- small steps ---------------------------------------------------------------------------------------------


def tangent_kernel_at_small_steps() -> Evidence:
    """M.8 text: ``f(t+1) - f(t)`` over ``eta sum K Delta`` as steps get small, at the same time."""
    findings: list[Finding] = []
    gaps = []
    for steps in (3, 6, 12):
        rate = 0.3 / steps
        run = replace(experiment(), steps=steps, values={"eta": rate, "gamma0": GAMMA, "P": 2}).solved()
        f, kernel, error = run.value("f"), run.value("K"), run.value("Delta")
        k = steps // 3
        gained = (f[k + 1] - f[k]) / rate
        flow = kernel[:, :, k, k] @ error[k]
        gaps.append(float(np.max(np.abs(gained - flow))))
    orders = [float(np.log2(a / b)) for a, b in pairwise(gaps)]
    findings.append(agrees("order of the gap in eta minus 1, halved once", orders[0] - 1.0, 0.3))
    findings.append(agrees("order of the gap in eta minus 1, halved twice", orders[1] - 1.0, 0.15))
    scaled = float(np.max(np.abs(gained - GAMMA**2 * flow)))
    findings.append(contradicts("with gamma0^2 K, at the smallest rate, over the gap", scaled, gaps[-1]))
    return conclude(
        "discrete:tangent_kernel_at_small_steps",
        f"The output's change per step and rate differs from sum K Delta by {gaps[0]:.3f}, {gaps[1]:.3f}, "
        f"{gaps[2]:.3f} at three rates, each half of the last: the limit is the tangent kernel's flow.",
        *findings,
    )
