"""Data read at integers, such as x(mu, 2), give the numbers of the program with arrays cut by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest
from sympy import Function, S, Symbol, tanh

import numerics
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
from numerics.errors import SpecError
from numerics.experiment.schema import Solver
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from tests.derive.once import mean_field

cells, letters = Population("cells"), Population("letters", given=True)
x, h = GivenVector("x", letters, "K_x"), Field("h", cells)
J, o = GaussianMatrix("J", cells, letters), GaussianVector("o", cells)
f, y, rho, c = Function("f"), Function("y"), Function("rho"), Symbol("c")
NUMBERS = {"eta": 0.1, "gamma0": 1.0}


@lru_cache
def program(at: tuple[int, ...], column: tuple[int, ...] = (), weight: int | None = None) -> Program:
    """Return one hidden layer on the position ``at``.

    Targets are in a column and the loss has a weight.
    """
    forward = {h(mu, t): J @ x(mu, *at), f(mu, t): Mean(o.symbol * h(mu, t)) / gamma0}
    net = Network("one position", (h,), forward, weights=(J, o), given=(x,))
    factor = c if weight is None else rho(weight)
    return net.train(factor * (y(mu, *column) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def inputs() -> np.ndarray:
    """Return two samples of three positions with four entries."""
    return np.random.default_rng(0).standard_normal((2, 3, 4))


def kernel(vectors: np.ndarray) -> np.ndarray:
    flat = vectors.reshape(-1, vectors.shape[-1])
    shape = vectors.shape[:-1] * 2
    return (flat @ flat.T / flat.shape[1]).reshape(shape)


TARGETS, WEIGHTS = np.array([[1.0, -0.4], [-0.6, 0.9]]), np.array([0.3, 0.7, 2.0])


def pair(at: tuple[int, ...], column: tuple[int, ...], weight: int | None) -> list[tuple]:
    """Return the program with integers and its data, and the program and the data without them."""
    whole = {"y": TARGETS if column else TARGETS[:, 0]} | ({"rho": WEIGHTS} if weight else {})
    cut = {"y": TARGETS[:, column[0] - 1] if column else TARGETS[:, 0]}
    vectors = inputs()
    part = vectors[:, at[0] - 1] if at else vectors[:, 0]
    number = {"c": 1.0 if weight is None else WEIGHTS[weight - 1]}
    return [
        (program(at, column, weight), vectors if at else part, whole, {} if weight else number),
        (program(()), part, cut, number),
    ]


CASES = [((1,), (), None), ((3,), (1,), None), ((), (2,), 3)]


@pytest.mark.parametrize("case", CASES)
def test_evaluate_reads_the_entries_that_integers_name(case: tuple) -> None:
    found = []
    for p, vectors, data, number in pair(*case):
        values = NUMBERS | number | {"P": 2}
        given = {"values": values, "data": data | {"K_x": kernel(vectors)}, "samples": 64, "replicas": 2}
        found.append(evaluate(mean_field(p), steps=3, **given).value("f"))
    np.testing.assert_allclose(*found, rtol=1e-10)


@pytest.mark.parametrize("method", ["paths", pytest.param("auto", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_solve_reads_the_entries_that_integers_name(case: tuple, method: str) -> None:
    found = []
    for p, vectors, data, number in pair(*case):
        given = {"numbers": NUMBERS | number, "arrays": data | {"K_x": kernel(vectors)}, "times": range(3)}
        solved = numerics.solve(p, **given, solver=Solver(method=method, samples=64))
        found.append(solved.train_loss.values)
    np.testing.assert_allclose(*found, rtol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_networks_read_the_entries_that_integers_name(case: tuple) -> None:
    found = []
    for p, vectors, data, number in pair(*case):
        values = NUMBERS | number | {"P": 2}
        run = simulate_program(p, width=5, steps=2, seeds=2, values=values, data=data | {"x": vectors})
        found.append(run["f"].mean)
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_networks_read_shifted_positions_of_ordered_layers_without_a_ring() -> None:
    """A network in time reads x(mu, 1), x(mu, 2), x(mu, 3), written out or by an index that runs to 2."""
    k, R = Symbol("k", integer=True), GaussianMatrix("R", cells, cells)
    state, single = Field("state", cells, ordered=True), [Field(f"s{i}", cells) for i in range(3)]
    first = {state(1, mu, t): J @ x(mu, 1)}
    first |= {state(k + 1, mu, t): R @ tanh(state(k, mu, t)) + J @ x(mu, k + 1)}
    second = {single[0](mu, t): J @ x(mu, 1)}
    second |= {
        b(mu, t): R @ tanh(a(mu, t)) + J @ x(mu, i)
        for a, b, i in zip(single[:2], single[1:], (2, 3), strict=True)
    }
    ends = (state(3, mu, t), single[2](mu, t))
    both = (((state,), tuple(single)), (first, second), ends, ((IndexRange(k, S.One, S(2)),), ()))
    found = []
    for fields, forward, end, over in zip(*both, strict=True):
        forward |= {f(mu, t): Mean(o.symbol * end) / gamma0}
        net = Network("in time", fields, forward, weights=(R, J, o), given=(x,), ranges=over)
        p = net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
        data = {"x": inputs(), "y": TARGETS[:, 0]}
        run = simulate_program(p, width=5, steps=2, seeds=2, values=NUMBERS | {"P": 2}, data=data)
        found.append(run["f"].mean)
    np.testing.assert_allclose(*found, rtol=1e-12)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (((4,), (), None), "arrays.K_x: has shape (2, 3, 2, 3), but index 2 of K_x is read at 4"),
        (((1,), (3,), None), "arrays.y: has shape (2, 2), but index 2 of y is read at 3"),
        (((), (), 4), "arrays.rho: has shape (3,), but index 1 of rho is read at 4"),
    ],
)
def test_integers_without_an_entry_are_refused(case: tuple, message: str) -> None:
    at, column, weight = case
    data = {"y": TARGETS if column else TARGETS[:, 0]} | ({"rho": WEIGHTS} if weight else {})
    data["K_x"] = kernel(inputs() if at else inputs()[:, 0])
    numbers = NUMBERS | ({} if weight else {"c": 1.0})
    given = {"numbers": numbers, "arrays": data, "times": range(3)}
    for run in (numerics.solve, partial(numerics.simulate, width=4, seeds=2)):
        with pytest.raises(SpecError) as refusal:
            run(program(at, column, weight), **given)
        assert str(refusal.value).startswith(message)


def test_an_axis_of_integers_begins_at_the_lowest_if_that_is_zero() -> None:
    """Targets at y(mu, 0) and y(mu, 1) are the first and the second column."""
    net = program(())
    found = []
    for first in (0, 1):
        target = (y(mu, first) + y(mu, first + 1)) / 2
        changed = replace(
            net,
            definitions=tuple(replace(d, rhs=d.rhs.subs(y(mu), target)) for d in net.definitions),
            loss=net.loss.subs(y(mu), target),
        )
        data = {"y": TARGETS * [1, 3], "K_x": kernel(inputs()[:, 0])}
        given = {"numbers": NUMBERS | {"c": 1.0}, "times": range(3), "arrays": data}
        found.append(
            numerics.solve(changed, **given, solver=Solver(method="paths", samples=64)).train_loss.values
        )
    np.testing.assert_allclose(*found, rtol=1e-10)
