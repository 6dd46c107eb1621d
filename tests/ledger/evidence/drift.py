"""Conservation of mass of the density of preactivations and pre-gradients in a two-layer network (E.2).

Units of the mean-field process are paths from Gaussian starts. Gauss-Hermite nodes replace all of them, so
that averages have no noise. The printed and the derived equation determine the velocity of averages of
functions.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from sympy import Add, Derivative, Expr, Function, S, Symbol, lambdify, sympify, tanh
from sympy.core.function import AppliedUndef

from derive.program import gamma0
from derive.reduce.single_site import single_site
from tests.derive.once import mean_field, mlp
from tests.ledger.claims.selfconsistent2023.drift import e2, with_samples
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts

Array = NDArray[np.float64]

GAMMA, TIME, NODES = 1.7, 0.4, 20
KERNEL, TARGETS = np.array([[1.2, 0.5], [0.5, 0.9]]), np.array([1.5, -0.8])
SLOPE, ROUNDING = 1e-6, 1e-9
"""Of a central difference with step 1e-3 along paths integrated to 1e-11; of sums over 8000 paths."""


@lru_cache(maxsize=1)
def paths() -> tuple[Array, Array, Array]:
    """Return ``h1``, ``h2``, ``z`` of each path (times, 3, paths), the errors, and weights of the paths."""
    x, w = np.polynomial.hermite_e.hermegauss(NODES)
    grids = [a.ravel() for a in np.meshgrid(x, x, x, indexing="ij")]
    start = np.concatenate([(np.linalg.cholesky(KERNEL) @ np.array(grids[:2])).ravel(), grids[2]])
    weight = np.multiply.outer(np.outer(w, w), w).ravel() / np.sum(w) ** 3

    def errors(state: Array) -> Array:
        h, z = state[:2], state[2]
        return np.asarray(TARGETS - (z * np.tanh(h)) @ weight / GAMMA)

    def rate(_: float, flat: Array) -> Array:
        state = flat.reshape(3, -1)
        h, z, error = state[:2], state[2], errors(state)
        pushed = KERNEL @ (error[:, None] * (1 - np.tanh(h) ** 2)) * z
        return np.asarray(GAMMA * np.vstack([pushed, error @ np.tanh(h)])).ravel()

    times = TIME + 1e-3 * np.array([-1.0, 0.0, 1.0])
    found = solve_ivp(rate, (0.0, times[-1]), start, method="DOP853", t_eval=times, rtol=1e-11, atol=1e-12)
    states = np.asarray(found.y.T).reshape(3, 3, -1)
    return states, np.array([errors(x) for x in states]), weight


def rate_of_average(velocity: Expr, observable: Expr) -> float:
    """Return ``int F dp/dt`` for the right side of a density equation, integrated by parts onto F."""
    points = [Symbol(x, real=True) for x in ("h1", "h2", "z")]
    density = next(a for a in velocity.atoms(AppliedUndef) if str(a.func) == "p")
    total: Expr = S.Zero
    for term in Add.make_args(velocity.expand()):
        slopes = [x for x in term.atoms(Derivative) if x.expr == density]
        if slopes:
            (variable,) = slopes[0].variables
            total -= (term / slopes[0] * observable).diff(variable)
        else:
            total += term / density * observable
    states, errors, weight = paths()
    numbers = total.replace(Function("phi"), tanh).doit().subs(gamma0, GAMMA)
    numbers = numbers.replace(Function("Delta"), lambda k, _: sympify(float(errors[1][int(k) - 1])))
    numbers = numbers.replace(Function("K_x"), lambda j, k: sympify(float(KERNEL[int(j) - 1, int(k) - 1])))
    return float(np.sum(weight * lambdify(points, numbers, "numpy")(*states[1])))


def density_equation() -> Evidence:
    """Check E.2: mass and averages by the printed and the derived equation, against paths; two samples."""
    derived = single_site(mean_field(mlp(1, Function("phi"), "flow"))).drift_pde(2).rhs
    printed = with_samples(e2()["dp"], 2)
    bare = printed.coeff(gamma0, 0)
    scaled = printed + (gamma0 - 1) * bare  # the printed equation, with the missing gamma0
    h, z = Symbol("h1", real=True), Symbol("z", real=True)
    mass = [rate_of_average(x, S.One) for x in (derived, printed)]
    moment = [rate_of_average(x, h * z) for x in (derived, printed, scaled)]
    states, _, weight = paths()
    products = (states[:, 0] * states[:, 2]) @ weight
    measured = float(products[2] - products[0]) / 2e-3
    return conclude(
        "drift:density_equation",
        f"At t = {TIME} the printed equation makes the total probability change at the rate {mass[1]:.4f}, "
        f"and <h z> at {moment[1]:.4f}, or {moment[2]:.4f} with the missing gamma0 but two sums; along the "
        f"paths they change at 0 and {measured:.4f}, as the continuity equation says.",
        agrees("rate of the mass, derived", mass[0], ROUNDING),
        agrees("rate of <h z>, derived minus paths", moment[0] - measured, SLOPE),
        contradicts("rate of the mass, printed", mass[1], ROUNDING),
        contradicts("rate of <h z>, printed minus paths", moment[1] - measured, SLOPE),
        contradicts("the same with gamma0, sum over mu kept", moment[2] - measured, SLOPE),
    )
