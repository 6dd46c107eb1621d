"""Tests of ranges without values: each is refused in one sentence that names it, anywhere in a program."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from sympy import Expr, Function, S, Sum, Symbol, tanh

import numerics
from derive.calculus.symbols import IndexRange, eta, gamma0, mu, t
from derive.errors import ProgramError
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
    Program,
)
from derive.theory import mean_field
from numerics.errors import SpecError
from numerics.experiment.problem import Problem

c, d, n = (Symbol(name, integer=True, positive=True) for name in "cdn")
PLACES = ("field", "matrix", "vector", "sum", "loss")
ENDS = {
    "0": (1, 0),
    "-1": (1, -1),
    "2..1": (2, 1),
    "-n": (1, -n),
    "half": (1, S.Half),
    "n + 2..n": (n + 2, n),
}


def families(**ranges: tuple[Any, Any]) -> Program:
    """Return a program with two families of outputs, of which some ranges are given and the others 1..2."""
    span = {place: tuple(map(S, ranges.get(place, (1, 2)))) for place in PLACES}
    units, inputs = Population("units"), Population("input", given=True)
    x, h = GivenVector("x", inputs, "K_x"), Field("h", units)
    own = IndexRange(c, *span["field"])
    W = GaussianMatrix("W", units, inputs, others=(IndexRange(c, *span["matrix"]),))
    w = GaussianVector("w", units, indices=(IndexRange(c, *span["vector"]),))
    f, y, z = Function("f"), Function("y"), Function("z")
    forward = {
        h(c, mu, t): W(c) @ x(mu),
        z(c, mu, t): Mean(w(c) * tanh(h(c, mu, t))) / gamma0,
        f(mu, t): Sum(z(c, mu, t), (c, *span["sum"])),
    }
    net = Network("families", (h,), forward, (W, w), given=(x,), ranges=(own,))
    loss: Expr = (y(mu) - f(mu, t)) ** 2 / 2 + Sum(z(d, mu, t) ** 2, (d, *span["loss"]))
    return net.train(loss, GradientDescent(eta))


def test_ranges_with_values_are_taken() -> None:
    assert mean_field(families()).scalars


@pytest.mark.parametrize(("place", "ends"), [*product(PLACES, ENDS)])
def test_a_range_without_values_is_named(place: str, ends: str) -> None:
    with pytest.raises(ProgramError) as refused:
        families(**{place: ENDS[ends]})
    lower, upper = ENDS[ends]
    assert f"{lower}..{upper}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("place", "more"), [("sum", (1, 3)), ("sum", (0, 2)), ("loss", (1, 3))])
def test_a_sum_over_members_that_are_not_there_is_named(place: str, more: tuple[int, int]) -> None:
    with pytest.raises(ProgramError, match=rf"= {more[0]}\.\.{more[1]} uses z"):
        families(**{place: more})


@pytest.mark.slow
@pytest.mark.parametrize("places", [PLACES, ("sum", "loss")])
@pytest.mark.parametrize("value", [1, 2, 3, 4])
def test_a_number_that_leaves_a_range_empty_is_refused(places: tuple[str, ...], value: int) -> None:
    program = families(**dict.fromkeys(PLACES, (1, n)) | dict.fromkeys(places, (1, n - 2)))
    given: dict[str, Any] = {"numbers": {"eta": 0.1, "gamma0": 1.0, "n": value}, "times": range(3)}
    arrays = {"K_x": [[1.0]], "y": [1.0]}
    if value > 2:
        Problem.of(program, arrays=arrays, **given)
        assert numerics.simulate(program, arrays=arrays, width=8, seeds=2, **given).sizes["time"] == 3
        return
    for run in (Problem.of, numerics.solve):
        with pytest.raises(
            SpecError, match=rf"numbers.n = {value}.0: .*range [cd] = 1\.\.{value - 2} is empty"
        ):
            run(program, arrays=arrays, **given)


def test_two_ranges_of_one_index_are_refused() -> None:
    units, inputs = Population("units"), Population("input", given=True)
    x, h = GivenVector("x", inputs, "K_x"), Field("h", units)
    one, other = IndexRange(c, S.One, S(2)), IndexRange(c, S.One, S(3))
    W = GaussianMatrix("W", units, inputs, others=(one,))
    with pytest.raises(ProgramError, match=r"c = 1\.\.2 and c = 1\.\.3 are two ranges of one index"):
        Network("two", (h,), {h(c, mu, t): W(c) @ x(mu)}, (W,), given=(x,), ranges=(one, other))
