"""Exact discrete time (appendix M): the readout's average, responses against networks, small steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Basic, Expr, Function, Heaviside, I, Integer, S, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.program import L, P, alpha, gamma0, mu, s, t
from derive.theory import Theory
from numerics.solver.direct import Evaluated
from tests.derive.once import mlp
from tests.ledger.claims import claimed, corrected
from tests.ledger.claims.selfconsistent2023 import discrete as claims
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.edited import Experiment, edited, off, right
from tests.ledger.evidence.evaluated import Functions, largest, told_apart, valued
from tests.ledger.evidence.linear_form import linear_form

Array = NDArray[np.float64]
Claim = Mapping[str, Basic]
SOURCE = "selfconsistent2023"
KERNEL, TARGETS = np.array([[1.0, 0.3], [0.3, 0.8]]), np.array([1.0, -0.7])
UNITS, SAMPLES, TIMES, GAMMA = 5, 2, 2, 1.4
EXACT = 1e-11
"""Rounding of sums of some hundred products."""


# -- the average over the readout, and the action ------------------------------------------------------------


def _hermite(size: int) -> tuple[Array, Array]:
    """Return nodes and weights of averages over a standard normal number."""
    x, w = np.polynomial.hermite_e.hermegauss(size)
    return x, w / np.sum(w)


def _numbers(e: Expr, fields: dict[str, Array], others: dict[Expr, float]) -> complex:
    """Return a printed sum over samples and times, of numbers and of vectors ``(sample, time, unit)``."""

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
    """Check M.3-M.7: the average by quadrature over each weight of the readout; derivatives of the action."""
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
    true, said = _slope_of_the_features() / GAMMA, _readout_responses()
    return conclude(
        "discrete:readout_average",
        "(M.3) is the average over the readout, and (M.4) holds it per N; (M.5) and (M.6) are its "
        "derivatives. By i A^L = phi.xi_hat/(N gamma0) the response is minus i times the average of (M.7), "
        "and so it is the average of d phi/d r; the printed sign gives the opposite.",
        agrees("(M.3) minus quadrature", abs(printed - averaged), EXACT),
        agrees("outputs in (M.4) minus (M.3) per N", abs(outputs + hats - printed / UNITS), EXACT),
        agrees("derivatives of (M.4) that differ from (M.5), (M.6)", float(len(_unlike_derivatives())), 0.5),
        *told_apart("(M.7): A^L", said, true, 1e-9),
    )


def _unlike_derivatives() -> list[str]:
    """Return the printed derivatives (M.5), (M.6) that are not those of (M.4); one sample, two times."""
    size: dict[Expr, int] = {P: 1, claims.T: 1, L: 1, t: 1, s: 0, mu: 1, alpha: 1}

    def opened(e: Basic) -> Expr:
        """Return an expression with sums carried out, Theta(0) = 0 and symmetric kernels."""
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


VARIANCE = 1.3
"""Of the source xi in the averages of (M.7)."""


def _conjugate_average(integrand: Callable[[Array, Array], Array]) -> complex:
    """Return ``<F> = int dxi dxi_hat/(2 pi) exp(i xi_hat xi - G xi_hat^2/2) F`` on a fine grid."""
    xi, hat = np.linspace(-14.0, 14.0, 561)[:, None], np.linspace(-9.0, 9.0, 561)[None]
    weight = np.exp(1j * xi * hat - VARIANCE * hat**2 / 2) / (2 * np.pi)
    cell = (xi[1, 0] - xi[0, 0]) * (hat[0, 1] - hat[0, 0])
    return complex(np.sum(integrand(xi, hat) * weight) * cell)


def _slope_of_the_features() -> complex:
    """Return the average of phi'."""
    return _conjugate_average(lambda xi, hat: 1 - np.tanh(xi) ** 2 + 0 * hat)


def _readout_responses() -> list[complex]:
    """Return A^L for which the derivative in (M.7) is zero, as printed and as corrected."""
    found = []
    for built in (claimed, corrected):
        slope = built(SOURCE, "M.7")["B"]
        numbers = {"L": 2, "mu": 1, "alpha": 1, "t": 1, "s": 1, "gamma0": GAMMA}

        def at(response: float, slope: Basic = slope, numbers: dict[str, float] = numbers) -> complex:
            def integrand(xi: Array, hat: Array) -> Array:
                functions: Functions = {
                    "A": lambda *index: {(2, 1, 1, 1, 1): response}[index],
                    "h": lambda *index: {(2, 1, 1): xi}[index],
                    "xihat": lambda *index: {(1, 1): hat}[index],
                    "phi": np.tanh,
                    "average": lambda product: product,
                }
                return np.asarray(valued(slope, numbers, functions) + 0 * xi * hat)

            return _conjugate_average(integrand)

        found.append(-at(0.0) / (at(1.0) - at(0.0)))
    return found


# -- responses -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def experiment() -> Experiment:
    """Return the experiment of two hidden linear layers, two samples and large steps."""
    return Experiment(
        program=mlp(2, "linear", "gd"),
        values={"eta": 0.4, "gamma0": GAMMA, "P": 2},
        data={"K_x": KERNEL, "y": TARGETS},
        width=100,
        networks=240,
    )


def _responses(claim: Claim) -> Claim:
    """Return A and B of (M.8) for a linear network."""
    return {name: linear_form(sympify(claim[name])) for name in "AB"}


def _put_in(name: str, response: Basic) -> Theory:
    """Return the theory with another definition of a response, which need not vanish at equal times."""
    theory = experiment().theory()
    changed = edited(theory, {name: response}, experiment().depth)
    pairs = zip(changed.order_parameters, theory.order_parameters, strict=True)
    return replace(
        changed,
        order_parameters=tuple(
            q if q.definition == derived.definition else replace(q, causal="past") for q, derived in pairs
        ),
    )


def _readout_response_times(share: float) -> Theory:
    """Return the theory with A^L of (M.7) times a number, which also enters f of (M.8) as <phi r>.

    ``f = <phi z>/gamma0`` with ``z = r + memory``; by Stein's lemma the part with r is the sum of A^L.
    """
    theory = experiment().theory()

    def turned(e: Expr) -> Expr:
        h = next(a for a in e.atoms(AppliedUndef) if str(a.func) == "h")
        r = Function("r")(Integer(2), h.args[-1])
        return e + (share - 1) * Average(r * h) / gamma0

    return replace(
        theory,
        scalars=tuple(
            replace(x, terms=(x.terms[0].rewrite(turned),)) if x.name == "f" else x for x in theory.scalars
        ),
    )


@lru_cache(maxsize=1)
def networks() -> dict[str, tuple[Array, Array]]:
    """Return kernels and outputs of networks trained by exact steps."""
    return experiment().measured()


def response_definitions() -> Evidence:
    """Check M.7, M.8: networks against the derived theory, and against it with the printed responses."""
    run, measured = experiment(), networks()
    whole, true_response = run.solved(), _slope_of_the_features() / GAMMA
    claim, true = (_responses(built(SOURCE, "M.8")) for built in (claimed, corrected))
    parts = {
        "(M.8): A": [_put_in("A", x["A"]) for x in (claim, true)],
        "(M.8): B": [_put_in("B", x["B"]) for x in (claim, true)],
        "(M.7): A^L": [
            _readout_response_times(round((x / true_response).real, 9)) for x in _readout_responses()
        ],
    }
    findings: list[Finding] = []
    for name, (printed, right_one) in parts.items():
        findings += [
            off(f"{name} as printed", run, measured, printed),
            agrees(f"{name} as corrected: numbers minus derived", _gap(run.solved(right_one), whole), EXACT),
        ]
    return conclude(
        "discrete:response_definitions",
        "Networks trained by exact steps follow the derived theory; they reject A as a response to u, B as a "
        "response to r, and A^L with the sign of (M.7).",
        right("two hidden layers, linear", run, measured),
        *findings,
    )


def _gap(run: Evaluated, other: Evaluated) -> float:
    """Return the largest difference of outputs and kernels."""
    return max(largest(other.values[k] - run.values[k]) for k in other.values if k[0] in "fHG")


# -- small steps ---------------------------------------------------------------------------------------------


def tangent_kernel_at_small_steps() -> Evidence:
    """Check M.8 text: ``f(t+1) - f(t)`` over ``eta sum K Delta`` as steps get small, at the same time."""
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
