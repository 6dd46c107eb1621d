"""Gaussian sources of different weights, or of one matrix at different steps, must not be one source.

Linear networks are written in two ways that are the same network, and solved exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, S, Sum, Symbol

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
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from derive.theory import mean_field
from derive.theory.routes import check_routes

p, k = (Symbol(n, integer=True, positive=True) for n in "pk")
units, pixels, shared = Population("units"), Population("pixels", given=True), Population("s", shared=True)
x = GivenVector("x", pixels, "K_x")
h, q, z, one, two, three, four = (Field(n, units) for n in ("h", "q", "z", "one", "two", "three", "four"))
a = Field("a", units, ordered=True)
U = GaussianMatrix("U", units, pixels)
R, A = (GaussianMatrix(n, units, units) for n in "RA")
w = GaussianVector("w", units)
POSITIONS = IndexRange(p, S.One, S(3))
b = GaussianVector("b", units, indices=(POSITIONS,))
b1, b2 = (GaussianVector(n, units) for n in ("b1", "b2"))
f, y = Function("f"), Function("y")
RNG = np.random.default_rng(2)
INPUTS = RNG.standard_normal((2, 3, 3))
ARRAYS = {"K_x": np.einsum("api,bqi->apbq", INPUTS, INPUTS) / 3, "y": np.array([0.8, -0.6])}
ONE_INPUT = {"K_x": ARRAYS["K_x"][:, 0, :, 0], "y": ARRAYS["y"]}
PIXELS: dict[Expr, Expr] = {h(mu, p, t): U @ x(mu, p)}


def trained(
    lines: Mapping[Expr, Expr],
    output: Expr,
    weights: Sequence[Any],
    ranges: Any = (POSITIONS,),
    **options: Any,
) -> Program:
    used = {str(e.func) for e in lines}
    fields = tuple(v for v in (h, q, z, one, two, three, four, a) if v.name in used)
    net = Network(
        "apart", fields, {**lines, f(mu, t): output}, tuple(weights), given=(x,), ranges=ranges, **options
    )
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta), together=True)


def outputs(program: Program, rate: float, arrays: Mapping[str, Any]) -> np.ndarray:
    solved = numerics.solve(
        program, numbers={"eta": rate, "gamma0": 1.0}, arrays=dict(arrays), times=range(2 if rate else 1)
    )
    return solved["f"].to_numpy()


def power(v: Field) -> Expr:
    return Sum(Mean(v(mu, p, t) ** 2), (p, 1, 3))


def with_members(first: Expr, second: Expr, weights: Sequence[Any]) -> Program:
    return trained({**PIXELS, q(mu, p, t): h(mu, p, t) + first - second}, power(q), (U, *weights))


def with_name(name: str) -> Program:
    """Return two matrices, of which the second has a name that begins like the first and its field."""
    other = GaussianMatrix(name, units, units)
    lines = {q(mu, p, t): A @ h(mu, p, t), z(mu, p, t): (A @ q(mu, p, t)) + (other @ h(mu, p, t))}
    both = Sum(Mean((z(mu, p, t) + q(mu, p, t)) ** 2), (p, 1, 3))
    return trained({**PIXELS, **lines}, both, (U, A, other))


def in_steps() -> Program:
    lines = {a(1, mu, t): U @ x(mu), a(k + 1, mu, t): R @ a(k, mu, t)}
    ranges = (IndexRange(k, S.One, S(3)),)
    output = Mean(w.symbol * (a(4, mu, t) + a(2, mu, t))) / gamma0
    return trained(lines, output, (U, R, w), ranges, depth=S(4))


def in_fields() -> Program:
    v = [u(mu, t) for u in (one, two, three, four)]
    lines = {v[0]: U @ x(mu), v[1]: R @ v[0], v[2]: R @ v[1], v[3]: R @ v[2]}
    return trained(lines, Mean(w.symbol * (v[3] + v[1])) / gamma0, (U, R, w), ())


SAME: dict[str, tuple[Callable[[], Program], Callable[[], Program], float, Mapping[str, Any]]] = {
    "members of a family of vectors": (
        lambda: with_members(b(1), b(2), (b,)),
        lambda: with_members(b1.symbol, b2.symbol, (b1, b2)),
        0.0,
        ARRAYS,
    ),
    "names that join alike": (lambda: with_name("A_h"), lambda: with_name("B"), 0.0, ARRAYS),
    "steps in several definitions": (in_steps, in_fields, 0.05, ONE_INPUT),
}


@pytest.mark.parametrize("name", SAME)
def test_two_ways_of_writing_a_network_have_the_same_outputs(name: str) -> None:
    """Sources of different weights had one name, and products at some steps were left out."""
    one_way, other_way, rate, arrays = SAME[name]
    found, expected = (outputs(program(), rate, arrays) for program in (one_way, other_way))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert check_routes(one_way()) == []


layered = Field("a", shared, layered=True)
L1, L2 = (GaussianMatrix(f"L{i}", shared.at(i + 1), shared.at(i)) for i in (1, 2))
first, last = GaussianMatrix("F", shared.at(1), pixels), GaussianVector("l", shared.at(3))


def layers_of_shared_units() -> Program:
    v = [layered(i, mu, t) for i in (1, 2, 3)]
    lines = {v[0]: first @ x(mu), v[1]: L1 @ v[0], v[2]: (L2 @ v[1]) + (L2 @ v[0]) / 2}
    lines[f(mu, t)] = Mean(last.symbol * v[2])
    net = Network("layers", (layered,), lines, (first, L1, L2, last), given=(x,), depth=S(3))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def numbered(second: Expr, third: Expr) -> Program:
    lines = {a(1, mu, t): U @ x(mu), a(2, mu, t): second, a(3, mu, t): third}
    return trained(lines, Mean(w.symbol * a(3, mu, t)), (U, R, w), (), depth=S(3))


REFUSED: dict[str, tuple[Callable[[], Program], str]] = {
    "a member that does not exist": (
        lambda: with_members(b(p), b(p + 1), (b,)),
        r"reads b\(p \+ 1\) at 4, and the family b\(p\) has the members 1\.\.3",
    ),
    "steps as numbers": (
        lambda: numbered(R @ a(1, mu, t), R @ a(2, mu, t)),
        "at several steps that are written as numbers: write one definition of all steps",
    ),
    "layers of shared units": (layers_of_shared_units, "which are at different layers: define fields"),
    "a sum of steps in a product": (
        lambda: numbered(a(1, mu, t) / 2, R @ (a(2, mu, t) + a(1, mu, t) / 2)),
        "which has fields at several layers or steps, some of them numbers: define a field",
    ),
    "two definitions of a layer": (
        lambda: trained(
            {a(1, mu, t): U @ x(mu), a(k + 1, mu, t): R @ a(k, mu, t), a(3, mu, t): a(1, mu, t)},
            Mean(w.symbol * a(3, mu, t)),
            (U, R, w),
            (IndexRange(k, S.One, S(2)),),
            depth=S(3),
        ),
        "a has two definitions at layer 3: end the range of one of them",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_theory_is_refused(name: str) -> None:
    program, reason = REFUSED[name]
    with pytest.raises(ProgramError, match=reason):
        mean_field(program())
