"""The saddle point of appendix D, on the engine's action of two hidden layers as a small exact Gaussian.

Off the saddle point, with nonzero ("tilted") conjugate kernels, signs and labels matter that cancel at it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy.core.function import AppliedUndef

from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.engine import Array
from tests.ledger.evidence.gaussian_action import GaussianAction, Values

Complex = NDArray[np.complex128]

KERNEL, TARGETS = np.array([[1.0, 0.4], [0.4, 0.7]]), np.array([0.8, -0.5])
RATE, GAMMA = 0.3, 1.1

SLOPE = 1e-6
"""Of a central difference with step 1e-4 in a function with third derivatives of order 10: 2e-8, with a
margin."""

EXACT = 1e-10
"""Of moments from the inverse of a small well-conditioned matrix."""


@lru_cache(maxsize=4)
def action_of(samples: int, steps: int) -> GaussianAction:
    """Return the action for the first samples of this module's task."""
    return GaussianAction(KERNEL[:samples, :samples], TARGETS[:samples], RATE, steps, GAMMA)


def tilted(a: GaussianAction) -> Values:
    """Return conjugate kernels off zero, and kernels and responses off their saddle-point values."""
    rng, values = np.random.default_rng(12), a.saddle()
    for p in a.parameters:
        name = str(p.func)
        if name in ("A", "B"):
            values[p] += 0.1 * rng.normal()
        if name in ("Hhat", "Ghat"):
            values[p] = 0.03 * rng.normal()
        if name in ("H", "G") and p.args[-1] == p.args[-2] and _same_sample(p):
            values[p] += 0.5  # well away from singular
    return _symmetric(a, values)


def _same_sample(p: AppliedUndef) -> bool:
    return str(p.func) == "G" or bool(p.args[1] == p.args[2])


def _mirror(p: AppliedUndef) -> AppliedUndef:
    """Return the same entry of a symmetric kernel, with both ends exchanged."""
    if str(p.func) in ("H", "Hhat"):
        layer, m, b, t, s = p.args
        return p.func(layer, b, m, s, t)
    layer, t, s = p.args
    return p.func(layer, s, t)


def _symmetric(a: GaussianAction, values: Values) -> Values:
    kernels = ("H", "G", "Hhat", "Ghat")
    return {p: (v + values[_mirror(p)]) / 2 if str(p.func) in kernels else v for p, v in values.items()}


def action_is_stationary() -> Evidence:
    """Check (8), (9), (12), D.16, D.17, D.19, D.29-D.32, D.40: derivatives of S vanish.

    They vanish at the engine's solution.
    """
    findings: list[Finding] = []
    for samples, steps in ((1, 3), (2, 2)):
        a = action_of(samples, steps)
        at = a.saddle()
        slopes = [abs(a.slope("action", p, at)) for p in a.parameters]
        label = f"P = {samples}, T = {steps}"
        findings.append(agrees(f"{label}: largest of {len(slopes)} derivatives of S", max(slopes), SLOPE))
        for name, partner in (("A", "B"), ("H", "Hhat"), ("G", "Ghat")):
            p = max((q for q in a.parameters if str(q.func) == name), key=lambda q: abs(at[q]))
            moved = {**at, p: at[p] * 1.1, **({_mirror(p): at[p] * 1.1} if name != "A" else {})}
            off = max(abs(a.slope("action", q, moved)) for q in a.parameters if str(q.func) == partner)
            findings.append(contradicts(f"{label}: slope in {partner} with {p} 10% off", off, SLOPE))
    return conclude(
        "saddle_point:action_is_stationary",
        "S at L = 2, written out with its single-site integrals, has no slope in any order parameter, "
        "response or conjugate "
        "at the engine's solution, and has where one of them is wrong.",
        *findings,
    )


def conjugate_saddle_points() -> Evidence:
    """Check (D.33), (D.41): derivatives of ln Z in the kernels, with tilted conjugates."""
    a = action_of(2, 2)
    at = tilted(a)
    moments = a.moments(at)
    hat_chi, hat_xi, hat_top, top = (
        a.pick(*x) for x in (("chihat", 2), ("xihat", 1), ("xihat", 2), ("g", 2))
    )
    slope_h = _matrix(a, "H", 1, at)
    slope_g = _matrix(a, "G", 2, at)
    slope_gg = _matrix(a, "Ghat", 2, at)

    def block(rows: list[int]) -> Complex:
        return np.asarray(moments[np.ix_(rows, rows)])

    return conclude(
        "saddle_point:conjugate_saddle_points",
        "d ln Z/dPhi = -<chihat chihat>/2, so that Phihat = +<chihat chihat>/2 (D.33), not minus (D.41); d "
        "ln Z/dG^l is minus "
        "half the average of xihat^(l-1), and <g g> comes from varying Ghat.",
        agrees("d ln Z/dPhi^1 + <chihat^2 chihat^2>/2", _size(slope_h + block(hat_chi) / 2), SLOPE),
        contradicts(
            "d ln Z/dPhi^1 - <chihat^2 chihat^2>/2 (D.41)", _size(slope_h - block(hat_chi) / 2), SLOPE
        ),
        agrees("d ln Z/dG^2 + <xihat^1 xihat^1>/2", _size(slope_g + block(hat_xi) / 2), SLOPE),
        contradicts(
            "d ln Z/dG^2 + <xihat^2 xihat^2>/2 (D.33, line 4)", _size(slope_g + block(hat_top) / 2), SLOPE
        ),
        agrees("d ln Z/dGhat^2 + <g^2 g^2>", _size(slope_gg + block(top)), SLOPE),
        contradicts("d ln Z/dG^2 + <g^2 g^2> (D.33, line 3)", _size(slope_g + block(top)), SLOPE),
    )


def _size(x: NDArray[Any]) -> float:
    return float(np.max(np.abs(x)))


def _matrix(a: GaussianAction, name: str, layer: int, at: Values) -> Complex:
    """Return d ln Z in every entry of a kernel of a layer, as a matrix (samples outermost)."""
    found = [p for p in a.parameters if str(p.func) == name and int(p.args[0]) == layer]

    def place(p: AppliedUndef) -> list[int]:
        index = [int(x) for x in p.args[1:]]
        return [index[0], index[2], index[1], index[3]] if len(index) == 4 else index

    values = [a.slope("log_z", p, at) for p in sorted(found, key=place)]
    return np.array(values).reshape(round(len(values) ** 0.5), -1)


def _kernel(a: GaussianAction, name: str, layer: int, at: Values) -> Array:
    """Return a kernel's values as a matrix (samples outermost).

    Responses have the scale gamma0, as in appendix D.
    """
    found = [p for p in a.parameters if str(p.func) == name and int(p.args[0]) == layer]
    n, T = a.n, a.T
    if name in ("H", "G"):
        m = n if name == "H" else 1
        value = np.zeros((m, T, m, T))
        for p in found:
            x = [int(v) for v in p.args[1:]]
            i, j, t, s = (x[0] - 1, x[1] - 1, x[2], x[3]) if name == "H" else (0, 0, *x)
            value[i, t, j, s] = at[p]
        return value.reshape(m * T, m * T)
    value = np.zeros((n, T, T))
    for p in found:
        m, t, s = (int(v) for v in p.args[1:])
        value[m - 1, t, s] = a.gamma * at[p]
    # A maps times to samples and times; B^T samples and times to times, with B(s, t) = <dg(s)/du(t)>
    return value.reshape(n * T, T) if name == "A" else value.transpose(1, 0, 2).reshape(T, n * T)


def conjugate_correlators() -> Evidence:
    """Check (D.35)-(D.37): correlators of the hatted fields from the inverse quadratic form.

    The conjugates are tilted.
    """
    findings: list[Finding] = []
    a = action_of(2, 2)
    at = tilted(a)
    hat_hat, back_back, hat_g, h_hat = _correlators(a, at)
    findings += [
        agrees("(D.35)", _size(hat_hat[0] - hat_hat[1]), EXACT),
        agrees("(D.36) with B^T phi(h)", _size(back_back[0] - back_back[1]), EXACT),
        agrees("(D.36) from d ln Z/dG", _size(-2 * _matrix(a, "G", 2, at) - back_back[1]), SLOPE),
        agrees("(D.37), first line", _size(hat_g[0] - hat_g[1]), EXACT),
        agrees("(D.37), second line with phi(h)", _size(h_hat[0] - h_hat[1]), EXACT),
    ]
    # One sample and one time: matrices are numbers, and the printed Phi in place of phi(h) can be evaluated.
    one = action_of(1, 1)
    at = {**tilted(one), **{p: 0.4 for p in one.parameters if str(p.func) in "AB"}}
    _, back_back, _, h_hat = _correlators(one, at)
    phi, G, B = (float(_kernel(one, name, k, at)[0, 0]) for name, k in (("H", 1), ("G", 2), ("B", 1)))
    xi_xi = one.moments(at)[one.pick("xi", 1)[0], one.pick("xi", 1)[0]]
    printed = 1 / G - (xi_xi + (B * phi) ** 2) / G**2
    findings += [
        agrees("one number: (D.36) with B phi(h)", _size(back_back[0] - back_back[1]), EXACT),
        contradicts("one number: (D.36) with B Phi as printed", abs(back_back[0][0, 0] - printed), EXACT),
        contradicts("one number: (D.37) with Phi as printed", abs(h_hat[0][0, 0] + phi * B * phi / G), EXACT),
    ]
    return conclude(
        "saddle_point:conjugate_correlators",
        "With conjugates off zero <xihat xihat> and <phi(h) xihat> from the inverse quadratic form are those "
        "of (D.36) and "
        "(D.37) with the vector phi(h), and not with the matrix Phi; (D.35) is right as printed.",
        *findings,
    )


Pair = tuple[NDArray[Any], NDArray[Any]]


def _correlators(a: GaussianAction, at: Values) -> tuple[Pair, Pair, Pair, Pair]:
    """Return (directly, by the formula) for <chihat chihat>, <xihat xihat>, -i<chihat g>, -i<h xihat>."""
    moments = a.moments(at)
    chi, g, xi, h = (a.pick(*x) for x in (("chi", 2), ("g", 2), ("xi", 1), ("h", 1)))
    hat_chi, hat_xi = a.pick("chihat", 2), a.pick("xihat", 1)

    def mean(x: list[int], y: list[int]) -> Complex:
        return np.asarray(moments[np.ix_(x, y)])

    def square(x: list[int], y: list[int], k: Array) -> Complex:
        return mean(x, x) - mean(x, y) @ k.T - k @ mean(y, x) + k @ mean(y, y) @ k.T

    A, B = _kernel(a, "A", 1, at), _kernel(a, "B", 1, at)
    phi, G = (np.linalg.inv(_kernel(a, name, k, at)) for name, k in (("H", 1), ("G", 2)))
    return (
        (mean(hat_chi, hat_chi), phi - phi @ square(chi, g, A) @ phi),
        (mean(hat_xi, hat_xi), G - G @ square(xi, h, B) @ G),
        (-1j * mean(hat_chi, g), phi @ (mean(chi, g) - A @ mean(g, g))),
        (-1j * mean(h, hat_xi), (mean(h, xi) - mean(h, h) @ B.T) @ G),
    )


def stein_identity() -> Evidence:
    """Check (14), (D.43): responses as derivatives and by integration by parts.

    The derivatives come from the engine's march, the averages from the action.
    """
    a = action_of(1, 3)
    at = a.saddle()
    _, _, hat_g, h_hat = _correlators(a, at)
    A, B = _kernel(a, "A", 1, at), _kernel(a, "B", 1, at)
    size = min(_size(A), _size(B))
    return conclude(
        "saddle_point:stein_identity",
        "<phi(h) r> G^{-1} and <g u> Phi^{-1}, from the moments of the action, are the mean derivatives of "
        "the fields in their "
        "sources that the engine marches.",
        agrees("<h r> G^-1 - A", _size(h_hat[1] - A), 1e-8),
        agrees("<g u> Phi^-1 - B", _size(hat_g[1].T - B), 1e-8),
        contradicts("size of the smaller response", size, 1e-8),
    )
