"""Tests of the numbers of a program in the results of solve and simulate, under separate names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Function, S, Symbol, exp, log, tanh

import numerics
from derive.errors import ProgramError
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Network,
    Population,
    Program,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.experiment.schema import Solver
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from tests.derive.once import mean_field, mlp

GRAM = [[1.0, 0.4], [0.4, 0.8]]
NUMBERS = {"eta": 0.1, "gamma0": 1.0}
FEW = Solver(samples=64, seed=3)
PLACES = Symbol("k", integer=True, positive=True)


def with_numbers() -> Program:
    """Return one output, and numbers at integers and at every sample that no equation reads."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h = GivenVector("x", pixels, "gram"), Field("h", units)
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units)
    out, moment, size, y = map(Function, ("out", "moment", "size", "y"))
    lines = {
        h(mu, t): W @ x(mu),
        moment(1, t): Mean(h(1, t) ** 2),
        moment(3, t): Mean(h(2, t) ** 4),
        size(mu, t): Mean(h(mu, t) ** 2),
        out(mu, t): Mean(w.symbol * tanh(h(mu, t))) / gamma0,
    }
    network = Network("net", (h,), lines, weights=(W, w), given=(x,))
    return network.train((y(mu) - out(mu, t)) ** 2 / 2, GradientDescent(eta))


def of_some_layers() -> Program:
    """Return three layers, of which a number exists in all but the last."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, c = (
        GivenVector("x", pixels, "gram"),
        Field("h", units, layered=True),
        Field("c", units, layered=True),
    )
    some = IndexRange(ell, S.One, L - 1)
    U, w = GaussianMatrix("U", units.at(1), pixels), GaussianVector("w", units.at(L))
    D = GaussianMatrix("D", units.at(ell + 1), units.at(ell), index=some)
    out, moment, y = map(Function, ("out", "moment", "y"))
    lines = {
        h(1, mu, t): U @ x(mu),
        moment(ell, mu, t): Mean(h(ell, mu, t) ** 2),
        c(ell + 1, mu, t): D(ell) @ h(ell, mu, t),
        h(ell + 1, mu, t): c(ell + 1, mu, t) * moment(ell, mu, t),
        out(mu, t): Mean(w.symbol * h(L, mu, t)) / gamma0,
    }
    network = Network("some", (h, c), lines, weights=(U, D, w), given=(x,), ranges=(some,))
    return network.train((y(mu) - out(mu, t)) ** 2 / 2, GradientDescent(eta))


GIVEN: dict[str, Any] = {
    "numbers": NUMBERS,
    "arrays": {"gram": GRAM, "y": [1.0, -1.0]},
    "times": range(2),
}


def test_numbers_at_integers_are_one_variable_with_their_places() -> None:
    """A number that is defined at 1 and 3 has an axis with these coordinates, beside what has a role."""
    program = with_numbers()
    solved = numerics.solve(program, solver=FEW, **GIVEN)
    assert "moment" not in solved.attrs["names"]
    assert solved["moment"].dims == ("time", "index")
    assert solved["index"].values.tolist() == [1, 3]
    assert solved["size"].dims == ("time", "sample")
    exact = np.array([GRAM[0][0], 3 * GRAM[1][1] ** 2])
    error = solved["moment_stderr"][0].to_numpy()
    assert np.all(np.abs(solved["moment"][0] - exact) < 6 * error + 0.02)
    np.testing.assert_allclose(solved["moment"].sel(index=1), solved["size"].sel(sample=0))


def test_a_number_on_some_layers_has_its_own_axis() -> None:
    """Kernels have three layers; the number has two. At initialisation it is the kernel of its layer."""
    given = GIVEN | {"numbers": NUMBERS | {"eta": 0.01, "L": 3}}
    solved = numerics.solve(of_some_layers(), **given)
    assert solved["moment"].dims == ("time", "layer_of_moment", "sample")
    assert solved["layer_of_moment"].values.tolist() == [1, 2]
    first = np.array(GRAM).diagonal()
    np.testing.assert_allclose(solved["moment"][0], [first, first**3], rtol=1e-10)
    assert solved["Phi"].sizes["layer"] == 3
    networks = numerics.simulate(of_some_layers(), width=32, seeds=2, **given)
    assert networks["moment"].dims == solved["moment"].dims


def test_numbers_of_networks_are_those_that_networks_have() -> None:
    """Check that simulate returns every number of the program, as the program computes it."""
    program = with_numbers()
    found = numerics.simulate(program, width=12, seeds=2, rng=0, **GIVEN)
    assert found["moment"].dims == ("time", "index")
    np.testing.assert_allclose(found["moment"].sel(index=1), found["size"].sel(sample=0))
    np.testing.assert_allclose(found["f"] + found["error"], [GIVEN["arrays"]["y"]] * 2, atol=1e-12)
    assert found.attrs["names"].split(", ")[0] == "f: out"
    direct = simulate_program(
        program,
        width=12,
        steps=1,
        seeds=2,
        values={**NUMBERS, "P": 2},
        data={"y": [1.0, -1.0], "x": np.eye(2)},
    )
    assert direct["moment"].axes == (("t", (0, 1)), ("index1", (1, 3)))
    assert direct["moment"].mean.shape == found["moment"].shape


@pytest.mark.parametrize("objective", ["square", "logistic"])
def test_outputs_stand_beside_errors(objective: str) -> None:
    """A result holds the outputs, from which the error follows by the slope of the loss."""
    tables = {
        "network": {"depth": 1, "activation": "tanh"},
        "training": {"learning_rate": 0.1, "steps": 2, "objective": objective},
        "solver": {"samples": 64},
    }
    y = np.array([1.0, -1.0])
    experiment = numerics.Experiment.from_dict(tables, kernel=GRAM, targets=y)
    for found in (numerics.solve(experiment), numerics.simulate(experiment, width=8, seeds=2, rng=0)):
        slopes = {"square": y - found["f"], "logistic": y / (1 + np.exp(y * found["f"]))}
        assert found["f"].dims == found["f_stderr"].dims == ("time", "sample")
        near = 1e-12 if objective == "square" else 3 * float(found["f_stderr"].max()) + 1e-3
        np.testing.assert_allclose(found["error"], slopes[objective], atol=near)


def of_places(samples: bool) -> Program:
    """Return outputs of two channels, at positions and samples or of an input without both."""
    units, pixels = Population("units"), Population("pixels", given=True)
    c, y, out = Symbol("c", integer=True, positive=True), Function("y"), Function("out")
    channels, places = IndexRange(c, 1, 2), IndexRange(PLACES, 1, 3)
    own = (mu, PLACES) if samples else ()
    x, h = GivenVector("x", pixels, "gram"), Field("h", units)
    b = GaussianVector("b", units)
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units, indices=(channels,))
    lines = {
        h(*own, t): W @ x(*own) if samples else b.symbol,
        out(*own, c, t): Mean(w(c) * tanh(h(*own, t))) / gamma0,
    }
    ranges = (places, channels) if samples else (channels,)
    given = (x,) if samples else ()
    network = Network("net", (h,), lines, weights=(W if samples else b, w), given=given, ranges=ranges)
    loss = log(1 + exp(-y(*own, c) * out(*own, c, t)))
    return network.train(loss, GradientDescent(eta))


def test_outputs_with_more_indices_stand_under_their_own_name() -> None:
    """An output at every position has no role in results, which have samples and channels."""
    gram, y = np.eye(3).reshape(1, 3, 1, 3), np.ones((1, 3, 2))
    given = {"numbers": NUMBERS, "arrays": {"gram": gram, "y": y}, "times": range(2)}
    for found in (
        numerics.solve(of_places(True), solver=FEW, **given),
        numerics.simulate(of_places(True), width=8, seeds=2, rng=0, **given),
    ):
        assert found["out"].dims == found["Delta"].dims == ("time", "sample", "k", "c")
        assert found["k"].values.tolist() == [1, 2, 3]
        assert found["train_loss"][0] > 0


def test_outputs_without_samples_have_one() -> None:
    """Channels of a network without samples are channels in results, not samples."""
    program, y = of_places(False), np.array([1.0, -1.0])
    given = {"numbers": NUMBERS, "arrays": {"y": y}, "times": range(2)}
    exact = evaluate(
        mean_field(program), steps=2, values=NUMBERS, data={"y": y}, samples=128, replicas=2, seed=0
    )
    for found in (
        numerics.solve(program, solver=FEW, **given),
        numerics.simulate(program, width=200, seeds=4, rng=0, **given),
    ):
        assert found["f"].dims == ("time", "sample", "channel")
        assert found["f"].shape == (2, 1, 2)
        far = np.abs(found["f"][1, 0] - exact.value("out")[1])
        assert np.all(far < 8 * (found["f_stderr"][1, 0] + exact.stderr("out")[1]) + 0.02)


def of_symbols(scale: Symbol, channel: Symbol, *, together: bool = True) -> Program:
    """Return two outputs of a bias, with a number that multiplies them."""
    units, c, y, out = Population("units"), channel, Function("y"), Function("out")
    h, b = Field("h", units), GaussianVector("b", units)
    w = GaussianVector("w", units, indices=(IndexRange(c, 1, 2),))
    lines = {h(t): scale * b.symbol, out(c, t): Mean(w(c) * h(t)) / gamma0}
    network = Network("net", (h,), lines, weights=(b, w), ranges=(IndexRange(c, 1, 2),))
    return network.train((y(c) - out(c, t)) ** 2 / 2, GradientDescent(eta), together=together)


def test_a_number_may_have_the_name_of_the_partner_of_an_index() -> None:
    """Indices of one output and its error get partners in correlations, which take no number away."""
    i, given = Symbol("i", integer=True, positive=True), {"arrays": {"y": [1.0, -1.0]}, "times": range(2)}
    found = [
        numerics.solve(of_symbols(Symbol(name, positive=True), i), numbers={**NUMBERS, name: 0.5}, **given)
        for name in ("i_", "size")
    ]
    np.testing.assert_array_equal(found[0]["f"], found[1]["f"])
    program = of_symbols(Symbol("i_", positive=True), i)
    networks = numerics.simulate(program, width=8, seeds=2, numbers={**NUMBERS, "i_": 0.5}, rng=0, **given)
    assert networks["f"].shape == (2, 1, 2)


@pytest.mark.parametrize("kind", ["positive", "integer"])
def test_a_symbol_that_is_the_partner_of_an_index_is_refused(kind: str) -> None:
    """Updates that sum over the partner of ``i`` cannot hold a number of its name."""
    i = Symbol("i", integer=True)
    with pytest.raises(
        ProgramError,
        match=r"the symbol i_ has the name .*a second value of the index i",
    ):
        of_symbols(Symbol("i_", **{kind: True}), i, together=False)


def test_a_decay_that_is_the_partner_of_an_index_is_refused_by_its_name() -> None:
    program = of_symbols(Symbol("size", positive=True), Symbol("i", integer=True), together=False)
    with pytest.raises(
        ProgramError,
        match=r"the symbol i_ has the name .*a second value of the index i",
    ):
        program.with_rule(GradientDescent(eta, decay=Symbol("i_", positive=True)))


def test_mlp_of_one_layer_has_its_outputs() -> None:
    """Linear networks are marched exactly: f = y - error to rounding."""
    given = {"numbers": NUMBERS, "arrays": {"K_x": [[1.0]], "y": [1.0]}, "times": range(3)}
    found = numerics.solve(mlp(1), **given)
    np.testing.assert_allclose(found["f"], 1 - found["error"], atol=1e-15)


def test_the_reference_solver_leaves_out_responses_that_sources_leave_open() -> None:
    """Two equal inputs have equal sources, and gradients of relu jump: no average separates the responses."""
    tables = {
        "network": {"depth": 2, "activation": "relu"},
        "training": {"learning_rate": 0.1, "steps": 1},
        "solver": {"samples": 32, "method": "direct"},
    }
    experiment = numerics.Experiment.from_dict(tables, kernel=np.ones((2, 2)), targets=[1.0, -1.0])
    found = numerics.solve(experiment)
    assert "B" not in found
    assert np.isfinite(found["Phi"]).all()
