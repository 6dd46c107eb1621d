"""Online descent on structured data (linear2025 section 4, appendix E): modes, transfer functions, exponents.

The modes are many and each matters little, so that networks of a few hundred units follow the mean field:
eigenvalues between 0.4 and 1.6, a smooth target, M : N : B = 4 : 3 : 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Basic, Expr, Function, S, Sum, Symbol, lambdify, sqrt, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import eta, gamma0, s, t
from derive.program import Program
from derive.reduce.data import absorb_factors
from derive.theory import Theory
from numerics.simulation import Measured, simulate_program
from numerics.solver.direct import Evaluated, evaluate
from tests.derive.once import mean_field, structured
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.isotropic_theory import CLOSE, DEPTH, printed

Array = NDArray[np.float64]

STEPS, MODES, NETWORKS = 3, 600, 32
VALUES = {"eta": 0.25, "gamma0": 1.0, "N": 3 * MODES // 4, "B": 3 * MODES // 2, "sigma": 0.3, "M": MODES}
EXACT = 1e-10

_M = Symbol("M", integer=True, positive=True)
_UNIT = sqrt(Function("lamda")(Symbol("k", integer=True, positive=True))) / Symbol("B", positive=True)
_OF_MODES = {"v", "h0", "r0", "u0"}
_SUMS = {"C_v", "C_h0", "R_h0r0"}


def attributes() -> dict[str, Array]:
    """Return eigenvalues and target coefficients."""
    x = (np.arange(MODES) + 0.5) / MODES
    return {"lamda": 0.4 + 1.2 * x, "w_star": np.sqrt(2 / MODES) * np.cos(2 * np.pi * x)}


@lru_cache(maxsize=1)
def program() -> Program:
    """Return the program with two hidden layers, centred, with label noise."""
    return structured(DEPTH, noise=True)


@lru_cache(maxsize=1)
def derived() -> Theory:
    """Return the derived theory, with factor one in front of r0.

    Averages over modes are 1/M times the sums of (108), (109).
    """
    return absorb_factors(mean_field(program()), "r0")


def solved(theory: Theory) -> Evaluated:
    """Return all order parameters at times 0..STEPS."""
    return evaluate(theory, steps=STEPS + 1, values=VALUES, data=attributes())


@lru_cache(maxsize=1)
def networks() -> dict[str, Measured]:
    """Return measurements of finite networks, with averages over modes as in the theory."""
    return simulate_program(
        program(), width=MODES, steps=STEPS, seeds=NETWORKS, values=VALUES, data=attributes(), seed=106
    )


def claim(number: str, *names: str) -> dict[str, Basic]:
    """Return printed equations in the engine's units.

    Sums over modes are M times averages, modes lose their index, and the paper's u_k^0 is sqrt(lamda(k))/B
    times the engine's u0, which has the same law for all modes.
    """
    built = claimed("linear2025", number)
    found = {x: _averages(sympify(built[x])) for x in (names or built)}
    u0 = Function("u0")(t)
    return {x: e / _UNIT**2 if x == "cov_u0" else e.xreplace({u0: _UNIT * u0}) for x, e in found.items()}


def _averages(e: Expr) -> Expr:
    def one(x: AppliedUndef) -> Expr:
        if str(x.func) in _OF_MODES and len(x.args) == 2:
            return x.func(x.args[1])
        return _M * _name(x) if str(x.func) in _SUMS else x

    return e.replace(lambda x: isinstance(x, AppliedUndef), one)


def _name(x: AppliedUndef) -> AppliedUndef:
    """Return the engine's name of a correlation that it replaces by its definition."""
    if str(x.func) != "C_v":
        return x
    source = next(u for u in derived().sources if str(u.symbol.func) == "u_Delta")
    there = {str(a.func) for a in source.covariance.atoms(AppliedUndef)}
    return Function(there.pop())(*x.args)


def _z(run: Evaluated, name: str, layer: int | None = None) -> Array:
    x = networks()[name]
    one = x[layer] if layer else x
    gap = one.mean - run.value(name, layer)
    return np.asarray(gap / np.where(one.stderr > 0, one.stderr, np.inf))


def right() -> list[Finding]:
    """Return findings that the derived theory agrees with the networks."""
    run = solved(derived())
    places: list[tuple[str, int | None]] = [(n, None) for n in ("C_v", "C_h0", "C_Delta")]
    places += [(n, k) for n in ("C_h", "C_g") for k in range(1, DEPTH + 1)]
    return [
        agrees(
            f"largest z of the derived {n}{f'^{k}' if k else ''}", float(np.max(np.abs(_z(run, n, k)))), CLOSE
        )
        for n, k in places
    ]


def modes() -> Evidence:
    """Check (107), (111 text): networks against the derived theory and the printed equations."""
    batch = solved(printed(derived(), claim("107", "cov_u_Delta")))
    first = solved(printed(derived(), claim("111 text", "h1")))
    inner = solved(printed(derived(), claim("111 text", "h")))
    rest = claim("107", "v", "h0", "Delta", "cov_u0", "cov_r0")
    run, same = solved(derived()), solved(printed(derived(), rest))
    gap = float(np.max(np.abs(run.value("C_v") - same.value("C_v"))))
    return conclude(
        "structured:modes",
        "Networks agree with the derived equations of modes and layers; errors of different batches do not "
        "correlate, and the layers' sums need t' = t.",
        *right(),
        agrees("(107) but for u_Delta: C_v minus derived", gap, EXACT),
        contradicts("z of C_Delta(0,1), (107) as printed", float(_z(batch, "C_Delta")[0, 1]), 1.0),
        contradicts("z of C_g^1(2,2), h^1 after (111) as printed", float(_z(first, "C_g", 1)[2, 2]), 1.0),
        contradicts("z of C_g^2(2,2), h^l after (111) as printed", float(_z(inner, "C_g", 2)[2, 2]), 1.0),
    )


# -- transfer functions --------------------------------------------------------------------------------------

_k = Symbol("k", integer=True, positive=True)
_H, _lamda, _target = Function("H"), Function("lamda"), Function("w_star")
_r0, _u0 = Function("r0"), Function("u0")


def _numbers(e: Expr, run: Evaluated) -> Expr:
    """Return the expression with numbers for order parameters of the layers and parameters."""
    atoms = [a for a in e.atoms(AppliedUndef) if str(a.func) in ("C_g", "R_gu")]
    found: dict[Any, float] = {a: run.value(str(a.func), 1)[int(a.args[1]), int(a.args[2])] for a in atoms}
    return e.xreplace({**found, eta: VALUES["eta"], gamma0: VALUES["gamma0"]})


@lru_cache(maxsize=1)
def transfer() -> dict[AppliedUndef, Array]:
    """Return each H(k, t, s) at all modes from the recursion (111)."""
    formula, run = sympify(claimed("linear2025", "111")["H"]), solved(derived())
    found: dict[AppliedUndef, Array] = {}
    for now in range(STEPS + 1):
        for past in range(STEPS + 1):
            e = _unfolded(formula.subs({t: now, s: past}, simultaneous=True))
            found[_H(_k, now, past)] = _at_modes(_numbers(e, run), found)
    return found


def _unfolded(e: Expr) -> Expr:
    """Return sums over times as their terms, from the outside in."""
    if isinstance(e, Sum):
        index, first, last = e.limits[0]
        return Add(*[_unfolded(e.function.subs(index, n)) for n in range(int(first), int(last) + 1)])
    return e.func(*[_unfolded(x) for x in e.args]) if e.has(Sum) else e


def _at_modes(e: Expr, answers: Mapping[AppliedUndef, Array]) -> Array:
    """Return an expression in the eigenvalue and in transfer functions, at all modes."""
    eigen = attributes()["lamda"]
    values = {**answers, _lamda(_k): eigen}
    atoms = sorted(e.atoms(AppliedUndef), key=str)
    value = lambdify(atoms, e, "numpy")(*[values[a] for a in atoms])
    return np.broadcast_to(np.asarray(value, dtype=float), eigen.shape)


def loss(error: Expr) -> list[float]:
    """Return sum_k lamda_k <v_k(t)^2> at each time, for v(t) linear in target, r0 and u0."""
    run, data = solved(derived()), attributes()
    eigen, width, batch = data["lamda"], VALUES["N"], VALUES["B"]
    C_r = run.value("C_g", 1) / (width * VALUES["gamma0"] ** 2)
    C_u = np.diag(np.diag(run.value("C_Delta"))) / batch
    times, found = range(STEPS + 1), []
    for now in times:
        e = _numbers(_unfolded(error.subs(t, now)), run).expand()
        a = _at_modes(e.coeff(_target(_k)), transfer()) * data["w_star"]
        b, c = (np.array([_at_modes(e.coeff(f(_k, j)), transfer()) for j in times]) for f in (_r0, _u0))
        noise = np.einsum("im,ij,jm->m", b, C_r, b) + eigen * np.einsum("im,ij,jm->m", c, C_u, c)
        found.append(float(np.sum(eigen * (a**2 + noise))))
    return found


def mode_responses() -> tuple[Array, Array]:
    """Return sum_k <dh0_k(t)/dr0_k(t')> and sum_k lamda_k <dv_k(t)/du0_k(t')> from corrected (110)."""
    run, eigen, times = solved(derived()), attributes()["lamda"], range(STEPS + 1)
    error = _complete()
    forward, back = (np.zeros((STEPS + 1, STEPS + 1)) for _ in range(2))
    for now in times:
        e = _numbers(_unfolded(error.subs(t, now)), run).expand()
        for past in times:
            for found, source in ((forward, _r0), (back, _u0)):
                found[now, past] = np.sum(eigen * _at_modes(e.coeff(source(_k, past)), transfer()))
    return forward, back


def _complete() -> Expr:
    """Return (110) with t' = t, eta and r^0(0)."""
    return _until_now(_with_rate(_with_start(sympify(claimed("linear2025", "110")["v"]))))


def transfer_functions() -> Evidence:
    """Check (19), (110), (111): terms that the error's formula lacks."""
    formula = sympify(claimed("linear2025", "110")["v"])
    without_noise = sympify(claimed("linear2025", "19")["v"]).replace(Function("ut0"), lambda *_: S.Zero)
    rate, start = _with_rate(formula), _with_start(formula)
    complete = _complete()
    partial = {
        "r^0(0)": _until_now(rate),
        "eta": _until_now(start),
        "t' = t": _with_rate(start),
    }
    run = solved(derived())
    true = np.diag(run.value("C_v")) * MODES
    spread = np.diag(networks()["C_v"].stderr)[1:] * MODES
    seen = np.diag(networks()["C_v"].mean)[1:] * MODES
    last = (seen - np.array(loss(formula))[1:]) / spread
    return conclude(
        "structured:transfer_functions",
        "With t' <= t, eta C_g^1 and r^0(0) formula (110) gives the derived loss; as printed (110) and (19) "
        f"give {loss(formula)[0]:.3g} and {loss(without_noise)[0]:.3g} at t = 0, where it is {true[0]:.4g}.",
        *right(),
        agrees("(110) with t' = t, eta and r^0(0): loss minus derived", _largest(complete, true), EXACT),
        *[contradicts(f"the same without {x}", _largest(e, true), EXACT) for x, e in partial.items()],
        contradicts("largest z of the loss, (110) as printed", float(np.max(np.abs(last))), 1.0),
        contradicts("(19) at t = 0 as printed minus loss", loss(without_noise)[0] - true[0], EXACT),
    )


def _largest(error: Expr, true: Array) -> float:
    return float(np.max(np.abs(np.array(loss(error)) - true)))


def _with_rate(e: Expr) -> Expr:
    """Return the expression with eta in front of C_g^1."""
    return e.replace(Function("C_g"), lambda *x: eta * Function("C_g")(*x))


def _with_start(e: Expr) -> Expr:
    """Return the expression with r^0(0), which centring adds."""
    return e.replace(_r0, lambda *x: _r0(*x) - _r0(_k, 0))


def _until_now(e: Expr) -> Expr:
    """Return the outer sum over s < t turned into one over s <= t."""
    return Sum(e.function, (s, 0, t)) if isinstance(e, Sum) else e


__all__ = ["loss", "mode_responses", "modes", "transfer", "transfer_functions"]
