"""Arrays at shifted indices, such as the next token ``y(mu, p + 1)``, and losses at given indices."""

from __future__ import annotations

from collections.abc import Callable
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
from derive.program.shifted_constants import shifted_reads
from numerics.errors import SpecError
from numerics.experiment.schema import Solver
from numerics.lowering.linear import NotLinear, lower
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from tests.derive.once import mean_field

units, words = Population("units"), Population("words", given=True)
p = Symbol("p", integer=True)
x, h = GivenVector("x", words, "K_x"), Field("h", units)
U, v = GaussianMatrix("U", units, words), GaussianVector("v", units)
f, y = Function("f"), Function("y")
NEXT = (y(mu, p + 1) - f(mu, p, t)) ** 2 / 2
SAME = (y(mu, p) - f(mu, p, t)) ** 2 / 2
VECTORS = np.random.default_rng(0).standard_normal((6, 4))
KERNEL = (VECTORS @ VECTORS.T / 4).reshape(2, 3, 2, 3)
SHORT, LONG = (np.arange(2.0 * n).reshape(2, n) / 5 for n in (3, 4))
NUMBERS = {"eta": 0.1, "gamma0": 1.0}


def reader(loss: Expr) -> Program:
    """Return a linear network with an output at each of three positions."""
    forward = {h(mu, p, t): U @ x(mu, p), f(mu, p, t): Mean(v.symbol * h(mu, p, t)) / gamma0}
    net = Network("reader", (h,), forward, (U, v), given=(x,), ranges=(IndexRange(p, S.One, S(3)),))
    return net.train(loss, GradientDescent(eta))


def given(targets: Any) -> dict[str, Any]:
    return {"numbers": NUMBERS, "arrays": {"K_x": KERNEL, "y": targets}, "times": range(2)}


@pytest.mark.parametrize("run", [numerics.solve, numerics.simulate])
def test_an_array_that_ends_before_a_shifted_index_is_refused(run: Any) -> None:
    options: dict[str, int] = {} if run is numerics.solve else {"width": 8, "seeds": 2}
    for loss in (NEXT, NEXT + SAME):
        with pytest.raises(SpecError, match="at least 4 entries along axis 2"):
            run(reader(loss), **given(SHORT), **options)
    with pytest.raises(SpecError, match="indices of arrays do not wrap around"):
        run(reader((y(mu, p - 1) - f(mu, p, t)) ** 2 / 2), **given(LONG), **options)


def test_solvers_of_single_theories_refuse_it_too() -> None:
    program, values = reader(NEXT), NUMBERS | {"P": 2}
    with pytest.raises(ValueError, match="at least 4"):
        evaluate(mean_field(program), steps=1, values=values, data={"K_x": KERNEL, "y": SHORT})
    with pytest.raises(ValueError, match="at least 4"):
        simulate_program(program, width=8, steps=1, seeds=1, values=values, data={"K_x": KERNEL, "y": SHORT})


Error = Callable[[Any], Any]
LOSSES: dict[str, tuple[Expr, Any, Error]] = {
    "next": (NEXT, LONG, lambda out: ((LONG[:, 1:] - out) ** 2).sum(2).mean(1)),
    "next and same": (
        NEXT + SAME,
        LONG,
        lambda out: (((LONG[:, 1:] - out) ** 2 + (LONG[:, :3] - out) ** 2) / 2).sum(2).mean(1),
    ),
    "next of two": (
        Sum(NEXT, (p, 1, 2)),
        SHORT,
        lambda out: ((SHORT[:, 1:] - out[:, :, :2]) ** 2 / 2).sum(2).mean(1),
    ),
    "one sample": (SAME.subs(mu, 1), SHORT, lambda out: ((SHORT[0] - out[:, 0]) ** 2 / 2).sum(1)),
}


@pytest.mark.parametrize("case", LOSSES)
def test_results_hold_losses_at_shifted_and_given_indices(case: str) -> None:
    """The square loss alone stands twice, as the mean of squares."""
    loss, targets, of_outputs = LOSSES[case]
    program = reader(loss)
    solved = numerics.solve(program, **given(targets))
    networks = numerics.simulate(program, **given(targets), width=8, seeds=2)
    np.testing.assert_allclose(solved.train_loss, of_outputs(solved.f.values), rtol=1e-10)
    # two outputs are their mean plus and minus the standard error, in a loss that is quadratic in each entry
    both = [of_outputs((networks.f + sign * networks.f_stderr).values) for sign in (1, -1)]
    np.testing.assert_allclose(networks.train_loss, np.mean(both, axis=0), rtol=1e-10)
    assert solved.train_loss[1] < solved.train_loss[0]


def test_targets_of_networks_and_theory_are_those_at_the_shifted_index() -> None:
    program = reader(NEXT)
    for run in (
        numerics.solve(program, **given(LONG)),
        numerics.simulate(program, **given(LONG), width=8, seeds=2),
    ):
        np.testing.assert_allclose((run.Delta + run.f)[0], LONG[:, 1:], atol=1e-12)


def test_a_shifted_output_goes_round_a_ring_and_its_targets_follow() -> None:
    """The error at ``p`` reads the target at ``p - 1``, whose loss reads the output at ``p``."""
    program = reader((f(mu, p + 1, t) - f(mu, p, t) / 2 - y(mu, p)) ** 2 / 2)
    solved = numerics.solve(program, **given(SHORT))
    np.testing.assert_allclose(solved.Delta[0], np.roll(SHORT, 1, axis=1) - SHORT / 2, atol=1e-12)
    gap = np.roll(solved.f, -1, axis=2) - solved.f.values / 2 - SHORT
    np.testing.assert_allclose(solved.train_loss, (gap**2 / 2).sum(2).mean(1), rtol=1e-10)
    networks = numerics.simulate(program, **given(SHORT), width=8, seeds=2)
    first = networks.f.values[0]
    slope = SHORT - np.roll(first, -1, axis=1) + first / 2
    np.testing.assert_allclose(networks.Delta[0], np.roll(slope, 1, axis=1) - slope / 2, atol=1e-12)


def test_the_linear_march_refuses_an_output_at_a_shifted_index() -> None:
    program = reader((f(mu, p + 1, t) - f(mu, p, t) / 2 - y(mu, p)) ** 2 / 2)
    with pytest.raises(NotLinear, match=r"has the argument p \+ 1, and the linear march takes only integers"):
        lower(mean_field(program))


def test_an_array_and_an_output_are_not_shifted_along_one_index() -> None:
    with pytest.raises(ProgramError, match="shift only one of the two"):
        reader((f(mu, p + 1, t) - f(mu, p, t) - y(mu, p + 1)) ** 2 / 2)


def test_a_loss_at_one_sample_is_solved_and_simulated() -> None:
    forward = {h(mu, t): U @ x(mu), f(mu, t): Mean(v.symbol * h(mu, t)) / gamma0}
    program = Network("one", (h,), forward, (U, v), given=(x,)).train(
        (y(1) - f(1, t)) ** 2 / 2, GradientDescent(eta)
    )
    arrays = {"K_x": np.eye(2), "y": [1.0, 2.0]}
    known: dict[str, Any] = {"numbers": NUMBERS, "arrays": arrays, "times": range(2)}
    np.testing.assert_allclose(numerics.solve(program, **known).train_loss, [0.5, 0.32], rtol=1e-10)
    run = numerics.simulate(program, **known, width=8, seeds=2)
    assert {*run.train_loss.dims} == {"time"}


def test_values_of_shifted_indices_leave_out_what_a_zero_multiplies() -> None:
    assert shifted_reads(reader(Sum(NEXT, (p, 1, 2))), {}) == {("y", 1): (2, 3)}


@pytest.mark.parametrize("index", [pytest.param("p", marks=pytest.mark.slow), "k"])
def test_an_array_is_as_long_as_the_range_where_it_is_read(index: str) -> None:
    """A gradient runs over fewer positions than the field that reads the inputs, by the same index."""
    at, k = Symbol(index, integer=True), Symbol("k" if index == "p" else "p", integer=True)
    tokens = GivenVector("x", words, "K_x")
    seen, states = (Field(name, units, ordered=True) for name in ("h", "st"))
    E, R, o = (
        GaussianMatrix("E", units, words),
        GaussianMatrix("R", units, units),
        GaussianVector("o", units),
    )
    forward = {
        seen(at, mu, t): E @ tokens(mu, at),
        states(1, mu, t): seen(1, mu, t),
        states(k + 1, mu, t): seen(k + 1, mu, t) + R @ states(k, mu, t),
        f(mu, t): Mean(o.symbol * states(3, mu, t)) / gamma0,
    }
    ranges = (IndexRange(at, S.One, S(3)), IndexRange(k, S.One, S(2)))
    network = Network("words", (seen, states), forward, (E, R, o), given=(tokens,), ranges=ranges)
    program = network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    known: dict[str, Any] = {"numbers": NUMBERS, "times": range(3)}
    known["arrays"] = {"K_x": KERNEL, "y": [1.0, -1.0]}
    direct = numerics.solve(program, **known, solver=Solver(method="direct"))
    np.testing.assert_allclose(numerics.solve(program, **known).f, direct.f, rtol=1e-10, atol=1e-15)
    with pytest.raises(SpecError, match=r"accepted: shape \(2, 3, 2, 3\)"):
        numerics.solve(program, **{**known, "arrays": {"K_x": KERNEL[:, :2, :, :2], "y": [1.0, -1.0]}})
