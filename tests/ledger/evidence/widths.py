"""Layers of different widths and initial variances (D.46)-(D.55), and the steps of their path integral."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from sympy import Basic, Expr, Function, sqrt, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, P, alpha, ell, mu
from derive.theory import Theory
from tests.derive.once import mlp
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import CLOSE, Experiment, edited, off, right, worst
from tests.ledger.evidence.explicit import number, written_out
from tests.ledger.evidence.lab import EXACT, derivative, slope
from tests.ledger.evidence.quadrature import gaussian_average, grid

Array = NDArray[np.float64]

WEAK = 1e-4
"""Relative corrections of order gamma0^2 at gamma0 = 1/1000."""
RATIOS = {1: 1.5, 2: 0.5, 3: 1.0}
VARIANCES = {0: 1.2, 1: 1.5, 2: 0.8, 3: 1.3}
DATA = {"x": np.array([[1.2, -0.4, 1.3], [0.2, 0.9, -0.8]]), "y": np.array([1.0, -0.6])}
TRAINED = Experiment(
    mlp(3, "tanh", relative_widths=list(RATIOS.values()), init_variance=list(VARIANCES.values())),
    {"eta": 0.3, "gamma0": 2.0, "P": 2},
    DATA,
    width=150,
    networks=120,
)


@lru_cache(maxsize=1)
def networks() -> dict[str, tuple[Array, Array]]:
    """Return kernels and outputs of infinitely wide networks."""
    return TRAINED.measured()


def claim(number: str, *names: str) -> dict[str, Basic]:
    """Return parts of an entry, for these widths and variances."""
    built = claimed("selfconsistent2023", number)
    return {x: sympify(built[x]) for x in names}


def in_printed_units(theory: Theory) -> Theory:
    """Return (D.53), (D.54) with the error supplied, at numbers; r has the variance sigma^2 G there."""
    fields = {k: _with_error(e) for k, e in claim("D.54", "h", "z").items()}
    below = {**claim("D.53", "cov_u", "cov_r", "Phi", "G", "A"), "B": _bare(claim("D.53", "B")["B"])}
    return _numbers(edited(theory, {**fields, **below}, 3))


def _with_error(e: Basic) -> Expr:
    kernels = (Function("Phi"), Function("G"))
    found = sympify(e)
    for f in kernels:
        found = found.replace(f, lambda *x, f=f: f(*x) * Function("Delta")(x[2], x[4]))
    return found


def _bare(e: Expr) -> Expr:
    """Return B as redefined below (D.53): the response alone."""
    (response,) = (x for x in e.atoms(AppliedUndef) if str(x.func) == "response")
    return response


def _numbers(theory: Theory) -> Theory:
    """Return widths and variances at their values; a(0) of the inputs drops out with A(0) = 0."""

    def at(e: Expr) -> Expr:
        found = sympify(e).replace(Function("a"), lambda k: sympify(RATIOS.get(int(k), 1)))
        return found.replace(Function("sigma"), lambda k: sqrt(sympify(VARIANCES.get(int(k), 1))))

    return theory.map(at)


def networks_of_unequal_widths() -> Evidence:
    """Check (D.48), (D.51), (D.53), (D.54) with the error: three layers of 1.5 N, 0.5 N, N units."""
    equal = replace(TRAINED, program=mlp(3, "tanh", init_variance=list(VARIANCES.values())))
    run = TRAINED.solved(in_printed_units(TRAINED.theory()))
    return conclude(
        "widths:networks_of_unequal_widths",
        "Networks of layers 1.5 N, N/2, N with four initial variances agree with the derived theory, and "
        "with (D.53), (D.54) once the error is supplied.",
        right("unequal widths, L = 3", TRAINED, networks()),
        agrees("(D.53), (D.54) with the error: largest z", worst(networks(), run), CLOSE),
        off("all layers of N units", TRAINED, networks(), equal.theory()),
    )


def error_in_the_memory() -> Evidence:
    """Check (D.54), (D.55): without the error in the memory."""
    whole = {**claim("D.53", "cov_u", "cov_r", "A"), "B": _bare(claim("D.53", "B")["B"])}
    printed = _numbers(edited(TRAINED.theory(), {**claim("D.54", "h", "z"), **whole}, 3))
    scaled = {k: _unscaled(e) for k, e in claim("D.55", "h", "z").items()}
    rescaled = _numbers(edited(TRAINED.theory(), {**scaled, **whole}, 3))
    same = {k: _unscaled(_with_error(e)) for k, e in claim("D.55", "h", "z").items()}
    right_one = _numbers(edited(TRAINED.theory(), {**same, **whole}, 3))
    return conclude(
        "widths:error_in_the_memory",
        "Without the error in front of the kernels networks reject both forms; with it (D.55) agrees.",
        right("unequal widths, L = 3", TRAINED, networks()),
        agrees("(D.55) with the error: largest z", worst(networks(), TRAINED.solved(right_one)), CLOSE),
        off("(D.54) as printed", TRAINED, networks(), printed),
        off("(D.55) as printed", TRAINED, networks(), rescaled),
    )


def _unscaled(e: Basic) -> Expr:
    """Return (D.55) in terms of A and B, by the definitions above it."""
    found = sympify(e)
    for name, definition in claimed("selfconsistent2023", "D.54 text").items():
        pattern = sympify(definition)
        own = pattern.atoms(AppliedUndef) - {x for x in pattern.atoms(AppliedUndef) if len(x.args) < 4}
        (symbol,) = own

        def put(*x: Expr, symbol: AppliedUndef = symbol, pattern: Expr = pattern) -> Expr:
            return pattern.subs(dict(zip(symbol.args, x, strict=True)), simultaneous=True)

        found = found.replace(Function(name), put)
    return found


def responses_and_widths() -> Evidence:
    """Check (D.54) text: dependence of A^1 and B^1 on the widths of the first and the second layer."""
    equal = _responses(1.0, 1.0)
    findings = []
    for layer, widths in (("first", (4.0, 1.0)), ("second", (1.0, 4.0))):
        found = _responses(*widths)
        for (name, own), width in zip(found.items(), widths, strict=True):
            change = own / equal[name] - 1
            rescaled = own * width**0.5 / equal[name] - 1
            findings.append(agrees(f"{layer} layer 4 N: change of the rescaled {name}", rescaled, WEAK))
            if width != 1:
                findings.append(contradicts(f"{layer} layer 4 N: change of {name}", change, WEAK))
    return conclude(
        "widths:responses_and_widths",
        "A first layer four times wider halves A^1 and leaves B^1, a second one halves B^1 and leaves A^1; "
        "the rescaled responses stay, at weak feature learning.",
        *findings,
    )


def _responses(first: float, second: float) -> dict[str, float]:
    """Return A^1(t, s) and B^1(t, s) of (D.53) after two steps at gamma0 = 1/1000, for these widths.

    The engine's r is sqrt(a_2/a_1) times that of (D.53), and its A and B are divided by gamma0.
    """
    run = Experiment(
        mlp(3, "linear", relative_widths=[first, second, 1]),
        {"eta": 0.5, "gamma0": 1e-3, "P": 2},
        DATA,
        steps=2,
    ).solved()
    return {
        "A": float(run.value("A", 1)[0, 2, 0]) * float(np.sqrt(second / first)),
        "B": float(run.value("B", 1)[0, 2, 0]),
    }


# -- steps of the path integral, and gradients, on small cases -----------------------------------------------


def matrix_average() -> Evidence:
    """Check (D.50): the average over a 3 x 2 Gaussian matrix of variance sigma^2, for two samples.

    The matrix is between layers of 2 and 3 units.
    """
    rng = np.random.default_rng(17)
    below, above, sigma = 2, 3, 1.3
    chi_hat, g = (rng.normal(size=(2, above)) * 0.5 for _ in range(2))
    phi, xi_hat = (rng.normal(size=(2, below)) * 0.5 for _ in range(2))

    def phase(z: Array) -> NDArray[np.generic]:
        w = sigma * z.reshape(-1, above, below)
        forward = np.einsum("mi,nij,mj->n", chi_hat, w, phi) / np.sqrt(below)
        backward = np.einsum("mi,nij,mj->n", g, w, xi_hat) / np.sqrt(above)
        return np.asarray(np.exp(1j * (forward + backward)))

    true = np.log(gaussian_average(phase, above * below, 8))
    chi = rng.normal(size=(2, above))
    vectors = {"chi_hat": chi_hat, "xi_hat": xi_hat, "g": g, "chi": chi}
    kernels = {"Phi": phi @ phi.T / below, "G": g @ g.T / above, "A": -1j * phi @ xi_hat.T / below}
    sizes: dict[str, dict[int, float]] = {"a": {0: below, 1: above}, "sigma": {0: sigma}}

    def read(x: AppliedUndef) -> complex:
        name = str(x.func)
        if name == "dot":
            one, two = (vectors[str(v.func)][int(v.args[0]) - 1] for v in x.args)
            return complex(one @ two)
        if name in sizes:
            return complex(sizes[name][int(x.args[0])])
        return complex(kernels[name][int(x.args[1]) - 1, int(x.args[2]) - 1])

    printed = claim("D.50", "log")["log"]

    def wrong_by(e: Expr) -> float:
        flat = e.subs({P: 2, ell: 0}).doit()
        dots = {x: read(x) for x in flat.atoms(AppliedUndef) if str(x.func) in ("dot", *sizes, *kernels)}
        return float(abs(true - complex(flat.xreplace(dots).evalf())))

    def hatted(e: Expr) -> Expr:
        return e.replace(Function("chi"), Function("chi_hat"))

    def paired(e: Expr) -> Expr:
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) == "dot" and x.args[0] == x.args[1],
            lambda x: Function("dot")(x.args[0], x.args[0].subs(mu, alpha)),
        )

    return conclude(
        "widths:matrix_average",
        "The average has chi_hat_mu chi_hat_alpha and xi_hat_mu xi_hat_alpha, and chi_hat in the cross term.",
        agrees("repaired (D.50)", wrong_by(paired(hatted(printed))), 1e-6),
        contradicts("chi_hat_mu chi_hat_mu as printed", wrong_by(hatted(printed)), 1e-6),
        contradicts("chi for chi_hat as printed", wrong_by(paired(printed)), 1e-6),
    )


def measure() -> Evidence:
    """Check (D.52): the weight of one sample and time integrates to one with (2 pi)^2."""
    k, dk = grid(9.0, 181)
    pair = np.exp(1j * np.outer(k, k)) * np.exp(-(k[None, :] ** 2) / 2)  # chi by chi_hat, variance 1
    one = complex(pair.sum() * dk * dk)
    whole = (one * one).real
    return conclude(
        "widths:measure",
        f"The integral over chi, chi_hat, xi, xi_hat is (2 pi)^2 = {whole:.4g}; divided by 2 pi it is not 1.",
        agrees("Z with (2 pi)^2 minus 1", whole / (2 * np.pi) ** 2 - 1, 1e-10),
        contradicts("Z with 2 pi minus 1", whole / (2 * np.pi) - 1, 1e-10),
    )


def gradients() -> Evidence:
    """Check (D.46), (D.47), (D.49): one small network with layers of 3 and 5 units, N = 5."""
    draw = np.random.default_rng(6).standard_normal
    n1, n, gamma0 = 3, 5, 1.4
    x, first, inner, readout = draw((2, 2)), draw((n1, 2)), draw((n, n1)), draw(n)
    gamma = gamma0 * np.sqrt(n)
    h1 = x @ first.T / np.sqrt(2)
    h2 = np.tanh(h1) @ inner.T / np.sqrt(n1)

    def f(w0: Array, w1: Array, w: Array, v: Array) -> Array:
        return np.asarray(w @ np.tanh(w1 @ np.tanh(w0 @ v / np.sqrt(2)) / np.sqrt(n1)) / (gamma * np.sqrt(n)))

    def from_h1(h: Array) -> Array:
        return np.asarray(readout @ np.tanh(inner @ np.tanh(h) / np.sqrt(n1)) / np.sqrt(n))

    g2 = readout * slope(h2)
    g1 = np.stack([np.sqrt(n1) * derivative(from_h1, h) for h in h1])
    z1 = g2 @ inner / np.sqrt(n)
    own = slope(h1) * z1 * np.sqrt(n / n1)
    slopes = [
        [
            derivative(partial(f, w1=inner, w=readout, v=v), first),
            derivative(partial(f, first, w=readout, v=v), inner),
            derivative(partial(f, first, inner, v=v), readout),
        ]
        for v in x
    ]
    update = gamma**2 * slopes[0][1]
    printed = gamma / np.sqrt(n1 * n) * np.outer(g2[0], np.tanh(h1[0]))
    kernel = gamma**2 * sum(float(np.sum(a * b)) for a, b in zip(*slopes, strict=True))
    found = {
        ("Phi", 1): np.tanh(h1) @ np.tanh(h1).T / n1,
        ("Phi", 2): np.tanh(h2) @ np.tanh(h2).T / n,
        ("G", 1): g1 @ g1.T / n1,
        ("G", 2): g2 @ g2.T / n,
    }

    def read(a: AppliedUndef) -> complex:
        name = str(a.func)
        return float((x @ x.T / 2)[0, 1]) if name == "K_x" else float(found[name, int(a.args[0])][0, 1])

    said = number(written_out(claim("D.49", "K")["K"], {L: 2, P: 2}), read).real
    return conclude(
        "widths:gradients",
        "Backward fields, the update of an inner matrix and the tangent kernel of layers of 3 and 5 units.",
        agrees("g^1 minus phi' W^T g^2/sqrt(N^2) (D.46)", float(np.max(np.abs(g1 - slope(h1) * z1))), EXACT),
        contradicts("g^1 with the width of its own layer", float(np.max(np.abs(g1 - own))), EXACT),
        agrees("gamma^2 df/dW minus (D.47)", float(np.max(np.abs(update - printed))), EXACT),
        contradicts("with one width", float(np.max(np.abs(update - np.sqrt(n1 / n) * printed))), EXACT),
        agrees("gamma^2 products of gradients minus (D.49)", kernel - said, EXACT),
        contradicts("products of gradients without gamma^2", kernel / gamma**2 - said, EXACT),
    )
