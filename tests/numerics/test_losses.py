"""``train_loss`` and ``test_loss`` are the program's own loss: for files, programs and networks alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Expr, Function, Integer, Rational, S, Sum, Symbol, cosh, exp, log, sqrt, sympify, tanh

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
from numerics.cli.common import summary
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.fluctuations.finite_width import finite_width
from numerics.quotients import logarithms_without_overflow
from numerics.results import load, save
from numerics.results.losses import loss_in_words, loss_of
from numerics.solver.direct import evaluate
from tests.derive.once import mean_field, mlp

K = np.array([[1.0, 0.2, -0.1], [0.2, 0.9, 0.3], [-0.1, 0.3, 1.1]])
Y = np.array([1.0, -1.0, 1.0])
NUMBERS = {"eta": 0.1, "gamma0": 0.8}
STEPS = 3
f, y, rho = Function("f"), Function("y"), Function("rho")
Array = np.ndarray[Any, Any]


def network(loss: Expr) -> Program:
    """Return one hidden linear layer, trained on a loss."""
    units, inputs = Population("units"), Population("input", given=True)
    x, h = GivenVector("x", inputs, "K_x"), Field("h", units, layered=True)
    W, w = GaussianMatrix("W", units.at(1), inputs), GaussianVector("w", units.at(1))
    forward = {h(1, mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * h(1, mu, t)) / gamma0}
    net = Network("one layer", (h,), forward, weights=(W, w), given=(x,), depth=1)
    return net.train(loss, GradientDescent(eta))


MISSED = y(mu) - f(mu, t)
LOSSES: dict[str, tuple[Expr, Callable[[Array, Array, Array], Array], bool]] = {
    "square": (MISSED**2 / 2, lambda y, f, r: (y - f) ** 2, True),
    "weighted square": (rho(mu) * MISSED**2 / 2, lambda y, f, r: r * (y - f) ** 2, True),
    "square without its half": (MISSED**2, lambda y, f, r: (y - f) ** 2, False),
    "three halves of the square": (3 * MISSED**2 / 2, lambda y, f, r: 1.5 * (y - f) ** 2, False),
    "square beside a constant": (
        MISSED**2 / 2 + y(mu) ** 2,
        lambda y, f, r: (y - f) ** 2 / 2 + y**2,
        False,
    ),
    "logistic": (log(1 + exp(-y(mu) * f(mu, t))), lambda y, f, r: np.log1p(np.exp(-y * f)), False),
    "quartic": (MISSED**4 / 4, lambda y, f, r: (y - f) ** 4 / 4, False),
    "pseudo-Huber": (sqrt(1 + MISSED**2), lambda y, f, r: np.sqrt(1 + (y - f) ** 2), False),
    "fading": (
        exp(-t) * MISSED**4,
        lambda y, f, r: np.exp(-np.arange(4))[:, None] * (y - f) ** 4,
        False,
    ),
    "linear": (Rational(1, 3) - y(mu) * f(mu, t), lambda y, f, r: 1 / 3 - y * f, False),
}


ALIKE = ("square without its half", "three halves of the square", "quartic", "pseudo-Huber")
"""Losses of which another one of the same kind is part of the default suite."""


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=pytest.mark.slow) if x in ALIKE else x for x in LOSSES]
)
def test_the_loss_of_a_result_is_the_mean_of_what_the_program_was_given(case: str) -> None:
    loss, by_hand, square = LOSSES[case]
    program, weights = network(loss), np.array([1.0, 0.5, 0.3])
    arrays = {"K_x": K, "y": Y} | ({"rho": weights} if loss.has(rho) else {})
    found = numerics.solve(program, numbers=NUMBERS, arrays=arrays, times=range(STEPS + 1))
    values = {**NUMBERS, "P": 3}
    outputs = evaluate(mean_field(program), steps=STEPS + 1, values=values, data=arrays).value("f")
    np.testing.assert_allclose(found.train_loss, by_hand(Y, outputs, weights).mean(axis=1), rtol=1e-9)
    stated = loss_of(program)
    assert stated is not None
    assert stated.is_square == square
    assert found.attrs["loss"] == found.train_loss.attrs["loss"] == str(stated.expression)
    if "square" in case and not square:
        np.testing.assert_allclose(found.mean_square_error, ((Y - outputs) ** 2).mean(axis=1), rtol=1e-9)
    else:
        assert "mean_square_error" not in found


def test_a_number_of_the_loss_alone_is_asked_for() -> None:
    """It enters no equation, as the gradient does not have it, but the loss of the result."""
    program = network(MISSED**4 / 4 + Symbol("offset") * y(mu) ** 2)
    given: dict[str, Any] = {"arrays": {"K_x": K, "y": Y}, "times": range(2)}
    found = numerics.simulate(program, numbers={**NUMBERS, "offset": 3.0}, width=8, seeds=2, rng=1, **given)
    other = numerics.simulate(network(MISSED**4 / 4), numbers=NUMBERS, width=8, seeds=2, rng=1, **given)
    np.testing.assert_allclose(found.train_loss - other.train_loss, 3.0 * np.mean(Y**2), rtol=1e-10)
    with pytest.raises(SpecError, match=r"numbers\.offset: is missing"):
        numerics.simulate(program, numbers=NUMBERS, width=8, seeds=2, rng=1, **given)


def file_of(objective: str, **arrays: Any) -> Experiment:
    """Return the file of the same network as ``mlp(1)``."""
    outputs = {"outputs": 2} if objective == "cross-entropy" else {}
    tables = {
        "network": {"depth": 1, "gamma0": 0.8, **outputs},
        "training": {"learning_rate": 0.1, "steps": STEPS, "objective": objective, "loss": "sum"},
    }
    return Experiment.from_dict(tables, **arrays)


def targets(objective: str) -> Array:
    """Return signs, or two classes."""
    return np.stack([Y == 1, Y == -1], axis=1).astype(float) if objective == "cross-entropy" else Y


OBJECTIVES = ("square", pytest.param("logistic", marks=pytest.mark.slow), "hinge", "cross-entropy")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_file_and_a_program_mean_the_same_by_their_losses(objective: str) -> None:
    at_zero = {"square": 1.0, "logistic": np.log(2), "hinge": 1.0, "cross-entropy": np.log(2)}[objective]
    signs = targets(objective)
    file = numerics.solve(file_of(objective, kernel=K, targets=signs))
    outputs = 2 if objective == "cross-entropy" else 1
    program = mlp(1, "linear", objective=objective, outputs=outputs)
    given: dict[str, Any] = {"numbers": NUMBERS, "arrays": {"K_x": K, "y": signs}, "times": range(STEPS + 1)}
    found = numerics.solve(program, **given)
    np.testing.assert_allclose(file.train_loss[0], at_zero, rtol=1e-12)
    np.testing.assert_allclose(found.train_loss, file.train_loss, rtol=1e-12)
    assert found.attrs["loss"] == file.attrs["loss"] == file.train_loss.attrs["loss"]
    networks = numerics.simulate(program, width=2000, seeds=3, rng=1, **given)
    np.testing.assert_allclose(networks.train_loss, file.train_loss, atol=0.2)  # the other meaning is 0.5 off


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_test_loss_is_the_same_loss(objective: str) -> None:
    """Test points that are the training samples again have their loss, in files and in programs."""
    signs = targets(objective)
    twice = {"kernel": K, "targets": signs, "test_kernel": np.hstack([K, K]), "test_targets": signs}
    file = numerics.solve(file_of(objective, **twice))
    np.testing.assert_allclose(file.test_loss, file.train_loss, rtol=1e-9)
    assert file.test_loss.attrs["loss"] == file.train_loss.attrs["loss"]
    assert file.test_loss.attrs["long_name"].startswith("test loss: mean over test points of ")
    outputs = 2 if objective == "cross-entropy" else 1
    program = mlp(1, "linear", objective=objective, outputs=outputs, sample_weights=True)
    arrays = {
        "K_x": np.tile(K, (2, 2)),
        "y": np.concatenate([signs, signs]),
        "rho": np.repeat([1.0, 0.0], 3),
    }
    found = numerics.solve(program, numbers=NUMBERS, arrays=arrays, times=range(STEPS + 1))
    np.testing.assert_allclose(found.train_loss, file.train_loss, rtol=1e-9)
    np.testing.assert_allclose(found.test_loss, file.train_loss, rtol=1e-9)
    assert ("test_error" in found) == (objective == "square")


def test_orders_of_a_loss_are_those_of_the_same_loss() -> None:
    series = numerics.expand(file_of("logistic", kernel=K, targets=Y).replace({"network.gamma0": 1e-3}), 2)
    solved = numerics.solve(file_of("logistic", kernel=K, targets=Y).replace({"network.gamma0": 1e-3}))
    np.testing.assert_allclose(series.train_loss[0], solved.train_loss, rtol=1e-5)
    assert series.attrs["loss"] == solved.attrs["loss"]


def test_a_program_without_a_loss_has_one_only_where_its_error_is_a_difference() -> None:
    given: dict[str, Any] = {"numbers": NUMBERS, "arrays": {"K_x": K, "y": Y}, "times": range(STEPS + 1)}
    square, logistic = network(LOSSES["square"][0]), network(LOSSES["logistic"][0])
    bare = numerics.solve(replace(square, loss=None, descent=None), **given)
    np.testing.assert_allclose(bare.train_loss, numerics.solve(square, **given).train_loss, rtol=1e-12)
    none = numerics.solve(replace(logistic, loss=None, descent=None), **given)
    assert "train_loss" not in none
    assert none.attrs["loss"] == "train_loss is not held, because the program states no loss"
    xr.testing.assert_equal(none.error, numerics.solve(logistic, **given).error)
    assert "status: ok" in summary(none)
    networks = numerics.simulate(replace(logistic, loss=None, descent=None), width=9, seeds=2, **given)
    assert "train_loss" not in networks


row, M = Symbol("i", integer=True), Symbol("M", integer=True, positive=True)
CELLS, PIXELS = Population("cells"), Population("pixels", given=True)
Z, HIDDEN, SCALED = GivenVector("z", PIXELS, "overlap"), Field("a", CELLS), Field("c", CELLS)
INNER, READOUT = GaussianMatrix("A", CELLS, PIXELS), GaussianVector("b", CELLS)
OUT, LABEL = Function("out"), Function("label")


def own_network(forward: dict[Expr, Any], loss: Expr, *, readout: bool) -> Program:
    """Return ``a = A z`` under names of a user, with further lines; ``b`` may be a readout."""
    fields = tuple(x for x in (HIDDEN, SCALED) if x(row, t) in forward)
    weights, frozen = ((INNER, READOUT), ()) if readout else ((INNER,), (READOUT,))
    net = Network("net", fields, forward, weights, frozen, given=(Z,), ranges=(IndexRange(row, S.One, M),))
    return net.train(loss, GradientDescent(eta))


def own_output(loss: Expr) -> Program:
    """Return a linear network whose output has the name ``out`` and whose targets ``label``."""
    forward = {HIDDEN(row, t): INNER @ Z(row), OUT(row, t): Mean(READOUT.symbol * HIDDEN(row, t)) / gamma0}
    return own_network(forward, loss, readout=True)


def test_losses_are_told_in_the_names_of_the_author() -> None:
    """The loss of ``out`` and ``label`` was described as one of ``f`` and ``y``."""
    program = own_output(log(1 + exp(-LABEL(row) * OUT(row, t))))
    given: dict[str, Any] = {"numbers": NUMBERS, "arrays": {"overlap": K, "label": Y}, "times": range(2)}
    for found in (numerics.solve(program, **given), numerics.simulate(program, width=9, seeds=2, **given)):
        assert found.attrs["loss"] == found.train_loss.attrs["loss"] == str(program.loss)


def test_indices_of_sums_in_a_loss_are_told_as_the_author_calls_them() -> None:
    """Once outputs of three classes were summed over ``c``, which the author calls ``k``."""
    k = Symbol("k", integer=True, positive=True)
    classes, readouts = IndexRange(k, S.One, S(3)), GaussianVector("r", CELLS, indices=(IndexRange(k, 1, 3),))
    forward = {HIDDEN(row, t): INNER @ Z(row), OUT(row, k, t): Mean(readouts(k) * HIDDEN(row, t)) / gamma0}
    ranges = (IndexRange(row, S.One, M), classes)
    net = Network("net", (HIDDEN,), forward, (INNER, readouts), given=(Z,), ranges=ranges)
    loss = log(Sum(exp(OUT(row, k, t)), (k, 1, 3))) - Sum(LABEL(row, k) * OUT(row, k, t), (k, 1, 3))
    problem = Problem.of(
        net.train(loss, GradientDescent(eta)),
        numbers=NUMBERS,
        arrays={"overlap": K, "label": np.eye(3)},
        times=range(2),
    )
    assert loss_in_words(problem, {"train_loss"}) == str(loss)


FAR = 800.0
"""Beyond 710 an exponential is infinite."""


@pytest.mark.parametrize("method", ["auto", "paths", "nodes"])
@pytest.mark.parametrize(
    ("loss", "at_start"),
    [
        (log(cosh(rho(mu) - f(mu, t))), FAR - np.log(2)),
        (log(1 + exp(rho(mu) - f(mu, t))), FAR),
        (log(exp(rho(mu)) + 2 * exp(f(mu, t)) + exp(-rho(mu) * f(mu, t))), FAR),
    ],
)
def test_losses_far_from_their_minimum_are_finite(loss: Expr, at_start: float, method: str) -> None:
    """Once ``solve`` called them divergent at step 0, and the gradient of the first 0/0."""
    program = network(loss)
    given: dict[str, Any] = {"numbers": NUMBERS, "arrays": {"K_x": K, "rho": np.full(3, FAR)}}
    found = numerics.solve(program, times=range(2), solver=Solver(method=method), **given)
    np.testing.assert_allclose(found.train_loss[0], at_start, rtol=1e-12)
    assert np.isfinite(found.train_loss).all()
    trained = numerics.simulate(program, width=8, seeds=2, rng=0, times=range(2), **given)
    assert np.isfinite(trained.train_loss).all()


def test_logarithms_are_the_same_where_nothing_overflows() -> None:
    a, b = Symbol("a", real=True), Symbol("b", real=True)
    for e in (log(cosh(a)), log(1 + exp(-a * b)), log(exp(a) + 3 * exp(2 * b) * exp(-a)), log(b**2 + exp(a))):
        for at in ({a: 0.3, b: -1.2}, {a: -2.5, b: 0.4}):
            found = logarithms_without_overflow(e).subs(at)
            np.testing.assert_allclose(float(found), float(e.subs(at)), rtol=1e-13)


def test_a_loss_reads_the_output_at_time_zero_there() -> None:
    away = (OUT(row, t) - 1 - OUT(row, 0)) ** 4
    program = own_output((LABEL(row) - OUT(row, t)) ** 2 / 2 + away)
    given: dict[str, Any] = {"numbers": NUMBERS, "arrays": {"overlap": K, "label": Y}, "times": range(3)}
    found = numerics.solve(program, **given)
    outputs = found.f.to_numpy()
    expected = (Y - outputs) ** 2 / 2 + (outputs - 1 - outputs[0]) ** 4
    np.testing.assert_allclose(found.train_loss, expected.mean(axis=1), rtol=1e-9)


@pytest.mark.parametrize("run", [numerics.solve, partial(numerics.simulate, width=9, seeds=2)])
def test_results_say_why_they_hold_no_loss(run: Callable[..., xr.Dataset]) -> None:
    """An average over units of fields is trained, and results do not hold it."""
    given: dict[str, Any] = {"numbers": NUMBERS, "arrays": {"overlap": K}, "times": range(2)}
    forward = {
        HIDDEN(row, t): INNER @ Z(row),
        OUT(row, t): Mean(HIDDEN(row, t) ** 2),
        SCALED(row, t): HIDDEN(row, t) / (1 + OUT(row, t)),
    }
    loss = Mean((READOUT.symbol - SCALED(row, t)) ** 2) / 2
    found = run(own_network(forward, loss, readout=False), **given)
    assert "train_loss" not in found
    assert found.attrs["loss"].startswith(
        "train_loss is not held, because the loss Mean((b - c(i, t))**2)/2 is an average over units"
    )


@pytest.mark.parametrize("run", [numerics.solve, partial(numerics.simulate, width=9, seeds=2)])
def test_a_program_without_numbers_is_refused(run: Callable[..., xr.Dataset]) -> None:
    """Its results would be empty; ``solve`` ended in IndexError."""
    given: dict[str, Any] = {"numbers": NUMBERS, "arrays": {"overlap": K}, "times": range(2)}
    loss = Mean((READOUT.symbol - HIDDEN(row, t)) ** 2) / 2
    program = own_network({HIDDEN(row, t): INNER @ Z(row)}, loss, readout=False)
    with pytest.raises(SpecError, match="has no numbers and no correlations"):
        run(program, **given)


def test_files_of_results_say_which_loss_they_hold(tmp_path: Path) -> None:
    for objective, said in (("square", "(-f(mu, t) + y(mu))**2"), ("hinge", "Max(0, -f(mu, t)*y(mu) + 1)")):
        save(numerics.solve(file_of(objective, kernel=K, targets=Y)), tmp_path / "out.nc")
        found = load(tmp_path / "out.nc")
        assert found.attrs["loss"] == said
        assert found.train_loss.attrs["long_name"] == f"training loss: mean over samples of {said}"


def test_the_loss_of_equal_outputs_is_the_sum_of_theirs() -> None:
    """Three equal channels train as one does whose loss counts three times, and have three times its loss."""
    units, inputs, c = Population("units"), Population("input", given=True), Symbol("c", integer=True)
    x, h = GivenVector("x", inputs, "K_x"), Field("h", units)
    W, w = GaussianMatrix("W", units, inputs), GaussianVector("w", units)
    options: dict[str, Any] = {"weights": (W, w), "given": (x,), "ranges": (IndexRange(c, S.One, S(3)),)}

    def trained(output: Expr, weight: int) -> Program:
        forward = {h(mu, t): W @ x(mu), output: Mean(w.symbol * tanh(h(mu, t))) / gamma0}
        net = Network("equal outputs", (h,), forward, **options)
        return net.train(weight * (y(mu) - output) ** 2 / 2, GradientDescent(eta))

    given: dict[str, Any] = {"numbers": NUMBERS, "arrays": {"K_x": K, "y": Y}, "times": range(2)}
    three, one = trained(f(mu, c, t), 1), trained(f(mu, t), 3)
    found, single = numerics.solve(three, **given), numerics.solve(one, **given)
    assert found["f"].shape == (2, 3, 3)
    # three halves of a square are written as they stand; half of a square is twice that, by convention
    np.testing.assert_allclose(found["train_loss"], 2 * single["train_loss"], rtol=1e-9)


def test_a_result_says_which_indices_its_loss_is_summed_over() -> None:
    """A loss of pairs with a penalty has no single output by role, and no index of samples."""
    u, v = (Symbol(n, integer=True, positive=True) for n in "uv")
    wide, users, items = Population("wide"), *(Population(n, given=True) for n in ("users", "items"))
    a, b, c = Field("a", wide), Field("b", wide), GaussianVector("c", wide)
    x, z = GivenVector("x", users, "K_user"), GivenVector("z", items, "K_item")
    A, B = GaussianMatrix("A", wide, users), GaussianMatrix("B", wide, items)
    rating, stars = Function("rating"), Function("stars")
    forward: dict[Any, Any] = {a(u, t): A @ x(u), b(v, t): B @ z(v)}
    forward[rating(u, v, t)] = Mean(c.symbol * a(u, t) * b(v, t)) / gamma0
    ranges = tuple(
        IndexRange(i, S.One, Symbol(n, integer=True, positive=True)) for i, n in ((u, "U"), (v, "V"))
    )
    net = Network("pairs", (a, b), forward, (A, B, c), given=(x, z), ranges=ranges)
    loss = (stars(u, v) - rating(u, v, t)) ** 2 / 2 + Mean(c.symbol**2) / 2
    targets = np.array([[0.5, -0.3], [0.2, 0.6]])
    found = numerics.simulate(
        net.train(loss, GradientDescent(eta)),
        width=8, seeds=2, rng=0, numbers={"eta": 0.1, "gamma0": 1.0}, times=range(2),
        arrays={"K_user": np.eye(2), "K_item": np.eye(2), "stars": targets},
    )  # fmt: skip
    assert found.train_loss.attrs["loss"].endswith("summed over u, v")
    # of two networks, the mean square is the square of the mean and that of the standard error
    whole = ((targets - found.rating.values) ** 2 + found.rating_stderr.values**2).sum((1, 2)) / 2
    penalty = targets.size * found.average_1.values / 2
    np.testing.assert_allclose(found.train_loss, whole + penalty, rtol=1e-12)


DIFFERENCE = y(mu) - f(mu, t)
HELD: dict[str, tuple[Expr, int]] = {
    "square": (DIFFERENCE**2 / 2, 2),
    "weighted": (rho(mu) * DIFFERENCE**2 / 2, 2),
    "another factor": (3 * DIFFERENCE**2 / 2, 1),
    "of pairs": ((DIFFERENCE + f(1, t)) ** 2 / 2, 1),
    "centred": ((DIFFERENCE + f(mu, 0)) ** 2 / 2, 1),
}


@pytest.mark.parametrize("name", HELD)
def test_only_the_square_of_an_error_is_doubled(name: str) -> None:
    """As the page of conventions says; the attribute ``loss`` holds what results hold."""
    loss, factor = HELD[name]
    arrays = {"K_x": K[:2, :2], "y": Y[:2]} | ({"rho": [1.0, 2.0]} if loss.has(rho) else {})
    result = numerics.simulate(
        network(loss), numbers=NUMBERS, arrays=arrays, times=range(2), width=4, seeds=2, rng=0
    )
    held = sympify(result.attrs["loss"], {str(z): Function(str(z)) for z in (f, y, rho)} | {"mu": mu, "t": t})
    assert (held - factor * loss).expand() == 0


def of_classes(first: int, loss: Callable[[Expr], Expr], classes: int = 2) -> Program:
    """Return a linear network with an output for each of the classes that count from ``first``."""
    k = Symbol("k", integer=True)
    ends = IndexRange(k, Integer(first), Integer(first + classes - 1))
    units, inputs = Population("units"), Population("input", given=True)
    x, h = GivenVector("x", inputs, "K_x"), Field("h", units, layered=True)
    W, w = GaussianMatrix("W", units.at(1), inputs), GaussianVector("w", units.at(1), indices=(ends,))
    forward = {h(1, mu, t): W @ x(mu), f(mu, k, t): Mean(w(k) * h(1, mu, t)) / gamma0}
    net = Network("classes", (h,), forward, weights=(W, w), given=(x,), depth=1, ranges=(ends,))
    return net.train(loss(k), GradientDescent(eta))


ONE: dict[str, Any] = {"numbers": NUMBERS, "arrays": {"K_x": K[:1, :1], "y": Y[None, :2]}}
"""One sample with two targets."""


def weighted(first: int) -> Program:
    """Return a network of two classes from ``first``, of which the second counts twice."""
    return of_classes(first, lambda k: (k + 1 - first) * (y(mu, k) - f(mu, k, t)) ** 2 / 2)


@pytest.mark.parametrize("first", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_classes_may_be_counted_from_any_number(first: int) -> None:
    """Once a march of classes from 0 ended in a ValueError of NumPy."""
    found = numerics.solve(weighted(first), **ONE, times=range(2))
    shares, step = np.array([1, 2]), 2 * NUMBERS["eta"]  # both layers learn
    np.testing.assert_allclose(found.f[1, 0], step * shares * Y[:2], rtol=1e-9)
    missed = shares * (Y[:2] - found.f.values[:, 0]) ** 2 / 2
    np.testing.assert_allclose(found.train_loss, missed.sum(axis=1), rtol=1e-9)


@pytest.mark.slow
def test_corrections_read_the_targets_of_classes_from_zero() -> None:
    """Once corrections at order 1/N read the target of class 1 for class 0."""
    found, expected = (finite_width(weighted(first), **ONE, times=range(3)) for first in (0, 1))
    for name in ("f", "train_loss", "f_variance", "f_shift"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, err_msg=name)


def test_a_sum_over_some_classes_is_not_one_over_all() -> None:
    """Once the march of a linear network took the entropy of two of three classes over all three."""
    program = of_classes(
        1, lambda k: log(Sum(exp(f(mu, k, t)), (k, 2, 3))) - Sum(y(mu, k) * f(mu, k, t), (k, 2, 3)), 3
    )
    given = {**ONE, "arrays": {"K_x": K[:1, :1], "y": np.eye(3)[1:2]}, "times": range(2)}
    found = numerics.solve(program, **given)
    np.testing.assert_allclose(found.f[1, 0], [0, 0.1, -0.1], rtol=1e-9, atol=1e-12)
    with pytest.raises(SpecError, match="runs from 2, and the linear march counts values of an index from 1"):
        numerics.solve(program, solver=Solver(method="march"), **given)


def test_an_index_in_a_loss_has_the_values_of_its_range() -> None:
    """Once an index from 0 counted as 1, 2, ... in the loss of two outputs."""

    def trained(first: int) -> Program:
        p = Symbol("p", integer=True)
        ends = IndexRange(p, Integer(first), Integer(first + 1))
        b, c = (GaussianVector(n, CELLS, indices=(ends,)) for n in "bc")
        forward = {HIDDEN(row, t): INNER @ Z(row)}
        forward |= {g(row, p, t): Mean(v(p) * HIDDEN(row, t)) / gamma0 for g, v in ((OUT, b), (f, c))}
        net = Network(
            "two", (HIDDEN,), forward, (INNER, b, c), given=(Z,), ranges=(IndexRange(row, S.One, M), ends)
        )
        loss = (p + 1 - first) * (LABEL(row) - OUT(row, p, t)) ** 2 / 2 + f(row, p, t) ** 2 / 2
        return net.train(loss, GradientDescent(eta))

    given = {"numbers": NUMBERS, "arrays": {"overlap": K[:2, :2], "label": Y[:2]}, "times": range(1)}
    runs = [numerics.simulate(trained(first), width=9, seeds=2, rng=0, **given) for first in (0, 1)]
    np.testing.assert_allclose(runs[0].train_loss, runs[1].train_loss, rtol=1e-9)
