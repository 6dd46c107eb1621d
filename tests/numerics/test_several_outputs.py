"""Programs of several outputs, and theories that only the reference solver takes: solve, simulate, verify."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Function, S, Symbol, erf, tanh

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    GradientFlow,
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
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.results import load, save
from numerics.simulation import simulate_program
from numerics.solver import explain
from numerics.solver.direct import evaluate
from numerics.stats import bound
from numerics.verification import Effort, verify
from tests.derive.once import mean_field

GRAM = [[1.0, 0.4], [0.4, 0.8]]
TARGETS = {"s1": [1.0, -1.0], "s2": [0.5, 1.0]}
NUMBERS = {"eta": 0.1, "gamma0": 1.0}
LEVEL = 1e-6


def autoencoder(rule: Any = None) -> Program:
    """Return two outputs of one hidden layer."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, code = GivenVector("x", pixels, "gram"), Field("code", units)
    E = GaussianMatrix("E", units, pixels)
    d1, d2 = GaussianVector("d1", units), GaussianVector("d2", units)
    r1, r2, s1, s2 = map(Function, ("r1", "r2", "s1", "s2"))
    lines = {
        code(mu, t): E @ x(mu),
        r1(mu, t): Mean(d1.symbol * erf(code(mu, t))) / gamma0,
        r2(mu, t): Mean(d2.symbol * erf(code(mu, t))) / gamma0,
    }
    network = Network("autoencoder", (code,), lines, weights=(E, d1, d2), given=(x,))
    loss = (s1(mu) - r1(mu, t)) ** 2 / 2 + (s2(mu) - r2(mu, t)) ** 2
    return network.train(loss, GradientDescent(eta) if rule is None else rule)


def recurrent() -> Program:
    """Return weights tied over a depth of three, with an input at each step."""
    k = Symbol("k", integer=True)
    cells, letters = Population("cells"), Population("letters", given=True)
    x, state = GivenVector("x", letters, "K_x"), Field("state", cells, ordered=True)
    R, V = GaussianMatrix("R", cells, cells), GaussianMatrix("V", cells, letters)
    o = GaussianVector("o", cells)
    out, y = Function("out"), Function("y")
    lines = {
        state(1, mu, t): V @ x(mu, 1),
        state(k + 1, mu, t): R @ tanh(state(k, mu, t)) + V @ x(mu, k + 1),
        out(mu, t): Mean(o.symbol * state(3, mu, t)) / gamma0,
    }
    network = Network(
        "recurrent", (state,), lines, weights=(R, V, o), given=(x,), ranges=(IndexRange(k, S.One, S(2)),)
    )
    return network.train((y(mu) - out(mu, t)) ** 2 / 2, GradientDescent(eta))


def given(steps: int, **solver: Any) -> dict[str, Any]:
    return {
        "numbers": NUMBERS,
        "arrays": {"gram": GRAM, **TARGETS},
        "times": range(steps + 1),
        "solver": Solver(**solver),
    }


def own_loss(found: xr.Dataset) -> np.ndarray[Any, Any]:
    """Return the loss of the autoencoder, by hand."""
    one, two = (np.array(TARGETS[f"s{k}"]) - found[f"r{k}"].to_numpy() for k in (1, 2))
    return np.asarray((one**2 / 2 + two**2).mean(axis=1))


def test_solve_holds_every_output_under_its_own_name() -> None:
    """Against the reference solver from other random numbers, with its error bars."""
    program, solver = autoencoder(), {"samples": 128}
    found = numerics.solve(program, **given(2, **solver))
    assert found.attrs["method"] == "paths"
    assert found.attrs["loss"] == str(program.loss)
    assert not {"f", "error"} & {*found.data_vars}
    values = {**NUMBERS, "P": 2}
    data = {"gram": GRAM, **TARGETS}
    other = evaluate(mean_field(program), steps=3, values=values, data=data, samples=128, seed=7)
    for name in ("r1", "r2", "Delta_r1", "Delta_r2"):
        assert found[name].dims == ("time", "sample")
        error = np.hypot(found[f"{name}_stderr"], other.stderr(name))
        allowed = bound(48, LEVEL, 14) * error + 2 * found.attrs["bias"] * np.abs(found[name]).max()
        assert (np.abs(found[name] - other.value(name)) <= allowed).all(), name
    np.testing.assert_allclose(
        found.train_loss, own_loss(found), atol=float(10 * found.train_loss_stderr.max() ** 2)
    )


def test_simulate_holds_the_same_variables() -> None:
    """And their numbers are those of simulate_program."""
    program = autoencoder()
    solved = numerics.solve(program, **given(2, samples=64))
    found = numerics.simulate(program, width=20, seeds=60, rng=3, **given(2))
    assert {*found.data_vars} == {x for x in solved.data_vars if not x.endswith("_systematic")}
    assert all(found[x].dims == solved[x].dims for x in found.data_vars)
    data = {"gram": np.array(GRAM), **TARGETS}
    other = simulate_program(
        program, width=20, steps=2, seeds=60, values={**NUMBERS, "P": 2}, data=data, seed=5
    )
    for name in ("r1", "r2", "Delta_r1"):
        error = np.hypot(found[f"{name}_stderr"], other[name].stderr)
        assert (np.abs(found[name] - other[name].mean) <= bound(18, LEVEL, 118) * error).all()
    assert (found.train_loss > own_loss(found)).all()  # a mean of squares exceeds the square of the mean


def test_explain_agrees_and_says_the_estimate() -> None:
    choice = explain(Problem.of(autoencoder(), **given(2)))
    assert choice.method is not None
    assert choice.method.name == "paths"
    assert "runs: paths" in str(choice)
    assert "(by name only); every expression" in str(choice)


def test_what_takes_too_long_is_refused_beforehand() -> None:
    with pytest.raises(SpecError, match=r"solver\.hours"):
        numerics.solve(autoencoder(), **given(2000, method="direct"))


@pytest.mark.slow
def test_a_flow_of_two_outputs_is_the_limit_of_short_steps() -> None:
    """From the same paths, extrapolated in the length of the steps."""
    flow = numerics.solve(autoencoder(GradientFlow(rate=eta)), **given(2, samples=64))
    short = [
        numerics.solve(
            autoencoder(),
            **{
                **given(2 * count, samples=64),
                "numbers": {**NUMBERS, "eta": NUMBERS["eta"] / count},
                "times": [0, count, 2 * count],
            },
        )
        for count in (4, 8)
    ]
    for name in ("r1", "r2"):
        limit = 2 * short[1][name].values - short[0][name].values
        error = np.hypot(
            flow[f"{name}_stderr"], np.hypot(2 * short[1][f"{name}_stderr"], short[0][f"{name}_stderr"])
        )
        assert (np.abs(flow[name] - limit) <= bound(12, LEVEL, 7) * error).all()


def test_an_accuracy_that_is_not_reached_is_said() -> None:
    found = numerics.solve(autoencoder(), **given(1, samples=64, accuracy=1e-5, method="direct"))
    assert found.attrs["status"] == "not converged"
    assert found.attrs["accuracy"] > 1e-5


def test_an_accuracy_is_about_outputs_and_not_about_numbers_on_the_way() -> None:
    """A number that is zero but for noise has no relative error."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, code = GivenVector("x", pixels, "gram"), Field("code", units)
    E, d1, d2 = GaussianMatrix("E", units, pixels), GaussianVector("d1", units), GaussianVector("d2", units)
    r1, r2, s1, s2, small = map(Function, ("r1", "r2", "s1", "s2", "small"))
    lines = {
        code(mu, t): E @ x(mu),
        small(mu, t): Mean(tanh(code(mu, t)) ** 3),
        r1(mu, t): Mean(d1.symbol * erf(code(mu, t))) / gamma0 + small(mu, t) ** 2,
        r2(mu, t): Mean(d2.symbol * erf(code(mu, t))) / gamma0,
    }
    network = Network("two", (code,), lines, weights=(E, d1, d2), given=(x,))
    loss = (s1(mu) - r1(mu, t)) ** 2 / 2 + (s2(mu) - r2(mu, t)) ** 2
    found = numerics.solve(
        network.train(loss, GradientDescent(eta)), **given(1, samples=256, seed=1, method="paths")
    )

    def relative(name: str) -> float:
        return float(found[f"{name}_stderr"].max() / np.abs(found[name]).max())

    assert relative("small") > 2 * max(map(relative, ("r1", "r2")))
    assert found.attrs["accuracy"] <= max(map(relative, ("r1", "r2"))) * (1 + 1e-9)


def test_a_result_is_written_and_read(tmp_path: Any) -> None:
    found = numerics.solve(autoencoder(), **{**given(3, samples=64), "times": [0, 3]})
    save(found, tmp_path / "two.nc")
    assert load(tmp_path / "two.nc").r1.equals(found.r1)
    assert found.r1.shape == (2, 2)


@pytest.mark.slow
def test_verify_two_outputs(tmp_path: Any) -> None:
    report = verify(autoencoder(), tmp_path / "out", effort=Effort(work=3e8), **given(3))
    assert report.passed, report.table()
    compared = " ".join(check.name for check in report.checks)
    assert all(name in compared for name in ("r1 at", "r2 at", "train loss"))
    assert (tmp_path / "out" / "figure.png").exists()


@pytest.mark.slow
def test_verify_sees_a_wrong_theory_of_two_outputs() -> None:
    """The second output is trained at half its weight in the networks."""
    from numerics.verification import compare

    arrays = {"gram": GRAM, "s1": [1.0, -1.0], "s2": [0.4, 0.8]}
    theory = numerics.solve(autoencoder(), **given(3))
    networks = [
        numerics.simulate(autoencoder(), width=w, seeds=200, rng=1, **{**given(3), "arrays": arrays})
        for w in (40, 80)
    ]
    assert not compare(theory, networks).passed


@pytest.mark.slow
def test_weights_tied_over_depth() -> None:
    """An ordered field: solved by sampled paths, and equal to networks."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(2, 3, 5))
    kernel = np.einsum("mad,nbd->manb", inputs, inputs) / 5
    arrays = {"K_x": kernel, "y": [1.0, -1.0]}
    posed: dict[str, Any] = {"numbers": NUMBERS, "arrays": arrays, "times": range(4)}
    found = numerics.solve(recurrent(), **posed)
    assert found.attrs["method"] == "paths"
    assert found.attrs["status"] == "ok"
    assert (found.error_stderr[1:] > 0).all()
    report = verify(recurrent(), effort=Effort(work=3e8), **posed)
    assert report.passed, report.table()


def one_output_for_all_samples(activation: Any) -> Program:
    """Return units that no input reaches.

    The output therefore lacks the index that its error has.
    """
    units, f, y = Population("units"), Function("f"), Function("y")
    h, k = Field("h", units), Field("k", units)
    b, w, W = GaussianVector("b", units), GaussianVector("w", units), GaussianMatrix("W", units, units)
    lines = {
        h(t): b.symbol,
        k(t): W @ activation(h(t)),
        f(mu, t): Mean(w.symbol * activation(k(t))) / gamma0,
    }
    network = Network("bias", (h, k), lines, weights=(W, w), frozen=(b,))
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


@pytest.mark.parametrize("activation", [lambda x: x, tanh], ids=["linear", "tanh"])
def test_an_output_may_lack_an_index_of_its_error(activation: Callable[[Any], Any]) -> None:
    program, arrays = one_output_for_all_samples(activation), {"y": np.array([1.0, -0.5])}
    chosen = {"numbers": NUMBERS, "arrays": arrays, "times": range(3)}
    solved = numerics.solve(program, solver=Solver(samples=256), **chosen)
    networks = numerics.simulate(program, width=24, seeds=8, rng=1, **chosen)
    for found in (solved, networks):
        assert found.f.dims == ("time",)
        assert found.Delta.dims == ("time", "sample")
    error = arrays["y"] - solved.f.to_numpy()[:, None]
    np.testing.assert_allclose(solved.Delta, error, rtol=1e-12)
    spread = solved.f_stderr.to_numpy() if "f_stderr" in solved else 0.0
    np.testing.assert_allclose(solved.train_loss, ((error**2).mean(axis=1) - spread**2) / 2, rtol=1e-12)


def channels() -> Program:
    """Return the network of `autoencoder` with its outputs as one array, and a weighted loss."""
    units, pixels, c = Population("units"), Population("pixels", given=True), Symbol("c", integer=True)
    x, code = GivenVector("x", pixels, "gram"), Field("code", units)
    two = IndexRange(c, S.One, S(2))
    E, d = GaussianMatrix("E", units, pixels), GaussianVector("d", units, indices=(two,))
    r, goal, share = map(Function, ("r", "goal", "share"))
    lines = {code(mu, t): E @ x(mu), r(mu, c, t): Mean(d(c) * erf(code(mu, t))) / gamma0}
    network = Network("channels", (code,), lines, weights=(E, d), given=(x,), ranges=(two,))
    return network.train(share(c) * (goal(mu, c) - r(mu, c, t)) ** 2 / 2, GradientDescent(eta))


def of_channels(**solver: Any) -> dict[str, Any]:
    """Return numbers and data with which ``channels`` is the network of ``autoencoder``."""
    arrays = {"gram": GRAM, "goal": np.transpose([*TARGETS.values()]), "share": [1.0, 2.0]}
    return {**given(3, **solver), "numbers": {"eta": 0.6, "gamma0": 1.0}, "arrays": arrays}


def test_outputs_of_an_array_are_those_of_separate_outputs() -> None:
    """The sum over outputs in an update is one number for each sample of a path."""
    found = numerics.solve(channels(), kernels="none", **of_channels(samples=512, seed=1))
    posed = {**of_channels(samples=512, seed=2, method="direct"), "arrays": {"gram": GRAM, **TARGETS}}
    apart = numerics.solve(autoencoder(), **posed)
    assert found.attrs["method"] == "paths"
    for k, name in enumerate(("r1", "r2")):
        error = np.hypot(found.f_stderr[1:, :, k], apart[f"{name}_stderr"][1:].values)
        gap = np.abs(found.f[1:, :, k] - apart[name][1:].values)
        assert (gap <= bound(12, LEVEL, 14) * error).all(), name


def test_outputs_do_not_depend_on_the_kernels_that_are_computed() -> None:
    """Without kernels, gradients of single outputs are not computed."""
    every = numerics.solve(channels(), **of_channels(samples=64))
    alone = numerics.solve(channels(), kernels="none", **of_channels(samples=64))
    np.testing.assert_allclose(alone.f, every.f, rtol=1e-9, atol=1e-12)
    assert "tangent_kernel" in every
    assert "tangent_kernel" not in alone


def test_averages_of_three_factors() -> None:
    """The first step is eta times the inner products of gradients, which are three times those of inputs."""
    units, pixels, c = Population("units"), Population("pixels", given=True), Symbol("c", integer=True)
    x, code, two = GivenVector("x", pixels, "gram"), Field("code", units), IndexRange(c, S.One, S(2))
    E, v = GaussianMatrix("E", units, pixels), GaussianVector("v", units)
    d, r, goal = GaussianVector("d", units, indices=(two,)), Function("r"), Function("goal")
    lines = {code(mu, t): E @ x(mu), r(mu, c, t): Mean(v.symbol * d(c) * code(mu, t)) / gamma0}
    network = Network("product", (code,), lines, weights=(E, d, v), given=(x,), ranges=(two,))
    program = network.train((goal(mu, c) - r(mu, c, t)) ** 2 / 2, GradientDescent(eta))
    goals = np.transpose([*TARGETS.values()])
    posed = {**given(1, samples=256, method="paths"), "arrays": {"gram": GRAM, "goal": goals}}
    found = numerics.solve(program, kernels="none", **posed)
    expected = 3 * NUMBERS["eta"] * np.array(GRAM) @ goals
    assert (np.abs(found.f[1] - expected) <= bound(4, LEVEL, 7) * found.f_stderr[1]).all()
