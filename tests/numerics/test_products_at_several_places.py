"""One matrix applied to vectors at several places: ``R @ h(p) + R @ h(p + 1)`` is ``R @ (h(p) + h(p + 1))``.

The second form has one product, whose vector is a field at plain indices. Both are the same network, so that
their theories must give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sympy import Expr, Function, Max, S, Sum, Symbol, tanh
from sympy.core.function import AppliedUndef

import numerics
from derive.errors import ProgramError
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    Population,
    Product,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from derive.theory import mean_field
from derive.theory.routes import check_routes
from numerics.stats import bound

POSITIONS, SAMPLES, STEPS = 3, 2, 3
p, r = (Symbol(n, integer=True, positive=True) for n in "pr")
units, pixels = Population("units"), Population("pixels", given=True)
x = GivenVector("x", pixels, "K_x")
h, q, z, k = (Field(n, units) for n in "hqzk")
U = GaussianMatrix("U", units, pixels)
R = GaussianMatrix("R", units, units)
w = GaussianVector("w", units)
f, y, c = (Function(n) for n in "fyc")
RNG = np.random.default_rng(5)
INPUTS = RNG.standard_normal((SAMPLES, POSITIONS, 3))
DATA = {"y": np.array([0.8, -0.6]), "c": np.array([0.5, 1.2, 0.9])}
KERNEL = {"K_x": np.einsum("api,bqi->apbq", INPUTS, INPUTS) / 3}


def trained(lines: dict[Expr, Expr]) -> Program:
    """Return the network of lines for q, and perhaps z and k, above the field h."""
    top = z if z(mu, p, t) in lines else q
    output = Mean(w.symbol * Sum(c(p) * top(mu, p, t), (p, 1, POSITIONS))) / gamma0
    lines = {h(mu, p, t): U @ x(mu, p), **lines, f(mu, t): output}
    fields = tuple(a for a in (h, q, z, k) if a(mu, p, t) in lines)
    ranges = (IndexRange(p, S.One, S(POSITIONS)),)
    uses_R = any(a.args[0] == R.symbol for e in lines.values() for a in e.atoms(Product))
    weights = (U, R, w) if uses_R else (U, w)
    net = Network("several places", fields, lines, weights, given=(x,), ranges=ranges)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def solved(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs with their standard errors, which are rounding errors if paths are exact."""
    used = {str(a.func) for d in program.definitions for a in d.rhs.atoms(AppliedUndef)} | {"y"}
    arrays = {**KERNEL, **{n: x for n, x in DATA.items() if n in used}}
    numbers = {"eta": 0.02, "gamma0": 1.0}
    result = numerics.solve(program, numbers=numbers, arrays=arrays, times=range(STEPS + 1))
    return result["f"].to_numpy(), result["f_stderr"].to_numpy()


def v(place: Expr) -> Expr:
    return h(mu, place, t)


NONLINEAR = {v(i): tanh(v(i)) for i in (p, r, p + 1, p + r, p + 1 - r, 4 - r)}

SHIFTS = {
    "two shifts": ((R @ v(p)) + (R @ v(p + 1)), v(p) + v(p + 1)),
    "a sum of shifts": (Sum(R @ v(p + r), (r, 1, 2)), v(p + 1) + v(p + 2)),
    "a causal sum": (Sum(R @ v(r), (r, 1, p)), Sum(v(r), (r, 1, p))),
    "a causal sum of shifts": (Sum(R @ v(p + 1 - r), (r, 1, p)), Sum(v(r), (r, 1, p))),
    "a sum of later ones": (Sum(c(r) * (R @ v(r)), (r, p, 3)), Sum(c(r) * v(r), (r, p, 3))),
    "a window": (Sum(R @ v(r), (r, Max(1, p - 1), p)), Sum(v(r), (r, Max(1, p - 1), p))),
    "a part of the positions": (Sum(R @ v(r), (r, 1, 2)), Sum(v(r), (r, 1, 2))),
    "a part and all": (Sum(R @ v(r), (r, 1, 2)) + (R @ v(p)), Sum(v(r), (r, 1, 2)) + v(p)),
    "backwards": (Sum(R @ v(4 - r), (r, 1, p)), Sum(v(4 - r), (r, 1, p))),
    "data": ((U @ x(mu, p)) + (U @ x(mu, p + 1)) / 2, v(p) + v(p + 1) / 2),
}


SAMPLED = {"a causal sum", "a sum of later ones", "a window", "backwards"}
"""Sums whose ends are indices, which the reference solver computes."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SAMPLED)) for n in SHIFTS])
def test_products_at_several_places_are_one_product_of_a_sum(name: str) -> None:
    """The theory had one Gaussian source for the products at all shifts, or sums over some positions only."""
    several, total = SHIFTS[name]
    product = k(mu, p, t) if name == "data" else R @ k(mu, p, t)
    one = trained({k(mu, p, t): total, q(mu, p, t): product})
    (found, error), (expected, rounding) = solved(trained({q(mu, p, t): several})), solved(one)
    allowed = bound(found.size, 1e-4, 7) * np.hypot(error, rounding) + 1e-10
    assert name in SAMPLED or error.max() < 1e-12
    assert (abs(found - expected) < allowed).all()
    assert abs(expected).max() > 10 * allowed.max()


@pytest.mark.parametrize("name", SHIFTS)
def test_both_derivations_agree_on_products_at_several_places(name: str) -> None:
    program = trained({q(mu, p, t): SHIFTS[name][0].xreplace(NONLINEAR)})
    assert check_routes(program) == []


offset, step = (Symbol(n, integer=True) for n in ("offset", "step"))
F = GaussianMatrix("F", units, units, others=(IndexRange(offset, S.NegativeOne, S.One),))
a = Field("a", units, ordered=True)


def both_ways() -> Program:
    right, left = (Sum(F(offset) @ v(p + sign * offset), (offset, -1, 1)) for sign in (1, -1))
    lines = {h(mu, p, t): U @ x(mu, p), q(mu, p, t): right + left / 2}
    lines[f(mu, t)] = Mean(w.symbol * Sum(q(mu, p, t), (p, 1, POSITIONS)))
    ranges = (IndexRange(p, S.One, S(POSITIONS)),)
    net = Network("both ways", (h, q), lines, (U, F, w), given=(x,), ranges=ranges)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def two_inputs_at_each_step() -> Program:
    line = (R @ tanh(a(step, mu, t))) + (U @ x(mu, step + 1)) + (U @ x(mu, step)) / 2
    lines = {a(1, mu, t): U @ x(mu, 1), a(step + 1, mu, t): line}
    lines[f(mu, t)] = Mean(w.symbol * a(POSITIONS, mu, t))
    ranges = (IndexRange(step, S.One, S(POSITIONS - 1)),)
    net = Network("two inputs", (a,), lines, (U, R, w), given=(x,), ranges=ranges, depth=S(POSITIONS))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


@pytest.mark.parametrize("program", [both_ways, two_inputs_at_each_step])
def test_one_vector_at_different_places_that_no_field_can_stand_for_is_refused(
    program: Callable[[], Program],
) -> None:
    with pytest.raises(ProgramError, match="which are one vector at different indices: define a field"):
        mean_field(program())


@pytest.mark.parametrize("name", SHIFTS)
def test_sources_and_order_parameters_have_ranges_without_indices(name: str) -> None:
    """Sources of a sum up to p had the range 1..p, over which responses were summed."""
    theory = mean_field(trained({q(mu, p, t): SHIFTS[name][0].xreplace(NONLINEAR)}))
    ranges = [x for part in (*theory.sources, *theory.order_parameters) for x in part.ranges]
    ends = {y for x in ranges for end in (x.lower, x.upper) for y in S(end).free_symbols}
    assert {y.name for y in ends} <= {"P"}
