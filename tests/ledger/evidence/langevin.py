"""Langevin training (appendix K): printed equations against finite networks with noise on their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import autograd.numpy as anp
import numpy as np
from numpy.typing import NDArray
from sympy import (
    Basic,
    Expr,
    Function,
    I,
    Integral,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    lambdify,
    solve,
    sympify,
    tanh,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.symbols import alpha, mu
from derive.program import L, ell, gamma0, s, t
from derive.reduce.ridge import output_rate
from derive.reduce.stationary import two_sources
from derive.theory import Theory
from numerics.solver.direct import Evaluated
from tests.derive.once import mean_field, mlp
from tests.ledger.claims import claimed, corrected
from tests.ledger.claims.selfconsistent2023 import langevin as claims
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.edited import Experiment, edited, right, worst
from tests.ledger.evidence.evaluated import Functions, largest, told_apart, valued
from tests.ledger.evidence.lab import Weights, gradients, moved, slope
from tests.ledger.evidence.linear_form import linear_form

Array = NDArray[np.float64]
Claim = Mapping[str, Basic]
SOURCE = "selfconsistent2023"

GAMMA, EXACT, SLOPE, CURVATURE = 1.3, 1e-10, 1e-6, 1e-4
"""Feature learning; rounding of direct sums; errors of first and second differences with step 1e-3 or so."""


# -- the change of the output --------------------------------------------------------------------------------


def _weights(rng: np.random.Generator, n: int = 24) -> Weights:
    """Return a network with two hidden layers whose output is far from zero, as after training.

    The only input is 1. Entries of the inner matrix are 1 or -1, so that sums of their squares are as in the
    limit of large width.
    """
    w0, w1 = rng.standard_normal(n), rng.choice([-1.0, 1.0], (n, n))
    h2 = w1 @ np.tanh(w0) / np.sqrt(n)
    return w0, w1, rng.standard_normal(n) + 1.5 * np.tanh(h2) + 0.7 * h2**2


def _output(w: Weights) -> float:
    return float(_forward(w)[1] / (len(w[0]) * GAMMA))


def _forward(w: Any, added: Any = None) -> tuple[list[Any], Any]:
    """Return the fields h^1.. and N gamma0 f for the input 1, with ``added`` to the features."""
    h, last = [w[0]], len(w) - 2
    for k in range(last + 1):
        features = anp.tanh(h[k]) + (0.0 if added is None else added[k])
        if k < last:
            h.append(w[k + 1] @ features / np.sqrt(len(w[0])))
    return h, w[-1] @ features


def _fields(w: Weights) -> tuple[list[Array], Weights]:
    """Return h^l, and z^l, the gradient of N gamma0 f in the features of layer l."""
    h = _forward(w)[0]
    return h, gradients(lambda x: _forward(w, x)[1], tuple(np.zeros_like(a) for a in h))


def output_by_ito() -> Evidence:
    """Check K.3: both contractions over the weights, by differences, and by averages over the units."""
    w = _weights(np.random.default_rng(31))
    step = 1e-3
    scaled = [_output(moved(w, w, k * step)) for k in (1, -1)]
    contracted, trace = (scaled[0] - scaled[1]) / (2 * step), _hessian_trace(w, 3e-3)
    lam, heat, beta = (Symbol(x, positive=True) for x in ("lam", "heat", "beta"))
    rate = output_rate(mean_field(mlp(2, "tanh", "flow", weight_decay=lam, temperature=heat)))
    derived = rate.eq.rhs.subs(t, 0).expand()  # at the start, when the variance of an entry is one
    slopes = {int(n): rate.slopes[0].subs(ell, n).subs(t, 0).rhs for n in (1, 2)}
    claim = sympify(claims.k3()["df"]).subs(L, 2).doit().subs(t, 0).expand()
    right_ones = [-_averaged(derived.coeff(lam), w, slopes), _averaged(derived.coeff(heat), w, slopes)]
    printed = [-_averaged((beta * claim.coeff(lam)).expand(), w, slopes)]
    printed.append(_averaged((beta * claim.coeff(lam, 0)).expand().coeff(beta, 0), w, slopes))
    return conclude(
        "langevin:output_by_ito",
        f"theta.grad f and the trace of the Hessian, {contracted:.4f} and {trace:.4f}, are the derived sums "
        f"over layers; the printed ones, {printed[0]:.4f} and {printed[1]:.4f}, lack 1/gamma0 = 1/{GAMMA}.",
        agrees("theta.grad f minus derived", contracted - right_ones[0], SLOPE),
        agrees("trace minus derived", trace - right_ones[1], CURVATURE),
        contradicts("theta.grad f minus printed", contracted - printed[0], SLOPE),
        contradicts("trace minus printed", trace - printed[1], CURVATURE),
        agrees("theta.grad f minus printed over gamma0", contracted - printed[0] / GAMMA, SLOPE),
        agrees("trace minus printed over gamma0", trace - printed[1] / GAMMA, CURVATURE),
    )


def _hessian_trace(w: Weights, step: float) -> float:
    """Return the sum of second differences of the output, weight by weight."""
    base, total = _output(w), 0.0
    for k, x in enumerate(w):
        for index in np.ndindex(x.shape):
            for sign in (1, -1):
                near = [y.copy() for y in w]
                near[k][index] += sign * step
                total += (_output(tuple(near)) - base) / step**2
    return total


def _averaged(e: Expr, w: Weights, slopes: Mapping[int, Expr]) -> float:
    """Return the value of single-site averages as averages over the units of one network.

    ``slopes`` are the responses dg/dh of the layers. In print, ``<z phi>`` and ``<phi^2>`` of layer 0 are
    those of the input: ``<g h>`` of layer 1, and 1.
    """
    h, z = _fields(w)
    units = {"h": h, "z": z, "g": [slope(a) * b for a, b in zip(h, z, strict=True)]}

    def mean(body: Expr) -> float:
        body = body.replace(Function("phi"), tanh)
        names = {a: Symbol(f"x{k}") for k, a in enumerate(sorted(body.atoms(AppliedUndef), key=str))}
        arrays = [units[str(a.func)][int(a.args[0]) - 1] for a in names]
        return float(np.mean(lambdify(list(names.values()), body.xreplace(names), "numpy")(*arrays)))

    def printed(body: Expr) -> Expr:
        site = next(int(a.args[0]) for a in body.atoms(AppliedUndef) if str(a.func) in ("h", "dg_dh"))
        if str(body.func) == "dg_dh":
            return sympify(value(slopes[site])) if site in slopes else S.Zero
        if site == 0:
            return sympify(float(np.mean(units["g"][0] * h[0]))) if body.has(Function("z")) else S.One
        return sympify(mean(body))

    def atom(a: AppliedUndef) -> Expr:
        name = str(a.func)
        if name == "average":
            return printed(a.args[0])
        if name == "slope":
            site = int(a.args[0])
            return sympify(value(slopes[site])) if site in slopes else S.Zero
        if name == "Phi":
            return sympify(float(np.mean(np.tanh(h[int(a.args[0]) - 1]) ** 2)))
        return {"K_x": S.One}.get(name, a)

    def value(e: Expr) -> float:
        e = e.doit().replace(lambda x: isinstance(x, Average), lambda x: sympify(mean(x.body)))
        known = ("average", "slope", "Phi", "K_x")
        e = e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in known, atom)
        return float(e.subs(gamma0, GAMMA))

    return value(e)


# -- labels of layers ---------------------------------------------------------------------------------------


def layer_labels() -> Evidence:
    """Check K.4, K.5: layers of the results of both terms of W(t) applied to one network's features."""
    rng, n, rate, decay, heat, steps = np.random.default_rng(7), 40, 0.05, 0.4, 0.3, 6
    start: Weights = tuple(rng.standard_normal(shape) for shape in ((n,), (n, n), (n, n), (n,)))
    w, noise, learned = start, *(tuple(np.zeros_like(x) for x in start) for _ in range(2))
    for _ in range(steps):
        push, updates = rate * GAMMA * (1 - _output(w)), gradients(lambda x: _forward(x)[1], w)
        kicks = tuple(np.sqrt(2 * heat * rate) * rng.standard_normal(x.shape) for x in w)
        w = moved(moved(kicks, updates, push), w, 1 - rate * decay)
        learned = moved(tuple(push * x for x in updates), learned, 1 - rate * decay)
        noise = moved(kicks, noise, 1 - rate * decay)
    h, z = _fields(w)
    g = [slope(a) * b for a, b in zip(h, z, strict=True)]
    kept = (1 - rate * decay) ** steps
    whole = (kept * start[1] + learned[1] + noise[1]) / np.sqrt(n)  # layer l = 1
    since = (learned[1] + noise[1]).T @ g[1] / np.sqrt(n)
    brownian = noise[1] @ np.tanh(h[0]) / np.sqrt(n)
    rest = (kept * start[1] + learned[1]) / np.sqrt(n) @ np.tanh(h[0])
    functions: Functions = {
        "z": lambda layer, mu, t: {(1, 1): z[layer - 1]}[mu, t],
        "xi": lambda layer, mu, t: {(1, 1): start[layer].T @ g[layer] / np.sqrt(n)}[mu, t],
        "chi_eps": lambda layer, mu, t: {(1, 1): {1: noise[0], 2: h[1] - rest}[layer]}[mu, t],
    }

    def field(number: str, name: str = "field") -> list[Array]:
        """Return the field as printed and as corrected."""
        claims_of = (built(SOURCE, number)[name] for built in (claimed, corrected))
        return [valued(e, {"ell": 1, "mu": 1, "t": 1}, functions) for e in claims_of]

    left, first = field("K.4"), field("K.4", "start")
    gaps = [a - kept * b - since for a, b in zip(left, first, strict=True)]
    return conclude(
        "langevin:layer_labels",
        "The right-hand side of the second line of (K.4) is z^l, not z^{l+1}, and the Brownian field that "
        "(K.5) builds with phi(h^l) belongs to h^{l+1}.",
        agrees("(K.4) minus h^{l+1}", largest(whole @ np.tanh(h[0]) - h[1]), EXACT),
        contradicts("(K.4): second line with z^{l+1}, as printed", largest(gaps[0]), EXACT),
        agrees("(K.4): second line with z^l, as corrected", largest(gaps[1]), EXACT),
        *told_apart("(K.5): name of the noise on phi(h^l)", field("K.5"), brownian, EXACT),
    )


# -- responses to the noise ---------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def experiment() -> Experiment:
    """Return a deep linear network on one sample with noisy weights that keep two fifths in a step."""
    return Experiment(
        program=mlp(2, "linear", "gd", weight_decay=2, temperature=Rational(3, 2)),
        values={"eta": 0.3, "gamma0": 2.0, "P": 1},
        data={"K_x": np.array([[1.0]]), "y": np.array([1.5])},
        width=80,
        networks=2200,
        steps=3,
    )


def _apart() -> Theory:
    """Return the derived theory with initial weights and noise as two sources, the form of (K.14)."""
    return two_sources(experiment().theory()).theory


def _valued_noise(e: Expr) -> Expr:
    """Return the expression with the rule's covariance of the noise for C(t, s)."""
    return e.replace(Function("C"), experiment().program.rule.noise)


def _by_saddle_point(claim: Claim) -> Claim:
    """Return A_eps and B_eps for which the derivatives in (K.9) are zero.

    The cross term of (K.7) brings C to A_eps. A conjugate field in an average is i times the derivative in
    its source. The B_eps that multiplies phi(h) in z has its indices exchanged, as in (K.12).
    """
    found = {}
    for other, name in (("B_eps", "A_eps"), ("A_eps", "B_eps")):
        slope = sympify(claim[other]).replace(Function("average"), _pushed)
        response = Function(name)(ell, mu, alpha, t, s)
        (found[name],) = solve(slope, response)
    exchanged = {t: s, s: t, mu: alpha, alpha: mu}
    met = {
        "A_eps": Function("C")(t, s) * found["A_eps"],
        "B_eps": found["B_eps"].subs(exchanged, simultaneous=True),
    }
    return _by_definition(met)


def _pushed(product: Expr) -> Expr:
    """Return i times the response to the source of a conjugate field."""
    sources = {"chihat_eps": "u_eps", "xihat_eps": "r_eps"}
    (hat,) = [x for x in product.args if str(x.func) in sources]
    return I * Function("response")(product / hat, Function(sources[str(hat.func)])(*hat.args))


def _by_definition(claim: Claim) -> Claim:
    """Return A_eps and B_eps of (K.13), before 1/gamma0, for a linear network."""
    return {k: _valued_noise(linear_form(sympify(x))) / gamma0 for k, x in claim.items()}


def _by_field(claim: Claim) -> Claim:
    """Return z of (K.14) for a linear network.

    Exponentials are the factors by which the rule multiplies initial weights and updates.
    """
    start, update = experiment().program.rule.memory(t, s)
    kept = sympify(claim["z"]).replace(exp, lambda x: update if x.has(s) else start)
    steps = kept.replace(lambda x: isinstance(x, Integral), lambda x: Sum(x.function, (s, 0, t - 1)))
    return {"g": linear_form(steps)}


READINGS: dict[str, Callable[[Claim], Claim]] = {
    "K.9": _by_saddle_point,
    "K.13": _by_definition,
    "K.14": _by_field,
}
"""Entries that print responses to the noise, and what they put into the derived theory."""


@lru_cache(maxsize=1)
def networks() -> dict[str, tuple[Array, Array]]:
    """Return kernels and outputs of networks with noise."""
    return experiment().measured()


def responses_to_noise() -> Evidence:
    """Check K.9, K.13, K.14: trained networks against the theory with each printed response in turn."""
    run, measured = experiment(), networks()
    whole, split = run.solved(), run.solved(_apart())
    findings: list[Finding] = []
    for number, read in READINGS.items():
        claim = claimed(SOURCE, number)
        printed, true = (
            run.solved(edited(_apart(), read(x), run.depth))
            for x in (claim, {**claim, **corrected(SOURCE, number)})
        )
        findings += [
            contradicts(f"({number}) as printed: largest z", worst(measured, printed), 1.0),
            agrees(f"({number}) as corrected: numbers minus derived", _apart_by(true, whole), EXACT),
        ]
    return conclude(
        "langevin:responses_to_noise",
        "Networks follow the derived theory; start and noise as two sources give the same numbers. They "
        "reject C counted twice with A^eps, B^eps as a response to u, and B multiplying g.",
        right("two hidden layers, linear", run, measured),
        agrees("two sources minus one", _apart_by(split, whole), EXACT),
        *findings,
    )


def _apart_by(run: Evaluated, other: Evaluated) -> float:
    """Return the largest difference of outputs and kernels."""
    return max(largest(other.values[k] - run.values[k]) for k in other.values if k[0] in "fHG")
