"""Names of a program change no number and no label of a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Expr, Function, S, Sum, Symbol, tanh

import numerics
from derive.errors import NotApplicable, ProgramError
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
    Parametrization,
    Population,
    Program,
    TrainingRule,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.errors import SpecError
from numerics.experiment.schema import Solver
from numerics.results import AUTHORED, VARIABLES, base_name

PLAIN = (
    *("units", "pixels", "inner", "i", "q", "o", "N_s", "N_o", "N_q", "kernel", "image", "a", "b"),
    *("J", "V", "F", "read", "out", "label", "importance", "pace", "extra", "rate", "scale"),
)
"""Names of the programs below: populations, indices, sizes, a kernel, inputs, fields, weights, scalars, data
and numbers."""

INDICES, SYMBOLS = ("i", "q", "o"), ("N_s", "N_o", "N_q", "rate", "scale")

POOL = (
    *("h", "g", "z", "f", "Delta", "y", "rho", "K_x", "Phi", "G", "H", "K", "A", "B", "C_v", "C_h", "C_g"),
    *("c", "p", "k", "a", "x", "w", "m", "n", "C", "M", "P_train", "eta", "gamma0", "mu", "alpha", "nu"),
    *("v", "u", "r", "chi", "tangent_kernel", "train_loss", "test_loss", "error", "sigma", "omega", "W"),
)
"""Names that builders, solvers and results give to something."""

K = np.array([[1.0, 0.3, 0.1], [0.3, 0.8, -0.2], [0.1, -0.2, 1.1]])
Y = np.array([1.0, -0.6, 0.4])
REFUSALS = (SpecError, NotApplicable, ProgramError)


class Called:
    """The objects of a program by their plain names, under the names that it is given."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = {x: x for x in PLAIN} | dict(names)

    def __getitem__(self, plain: str) -> str:
        return self.names[plain]

    def symbol(self, plain: str) -> Symbol:
        """Return an index, the size of a range, or a number."""
        counts = {"positive": True} if plain in ("rate", "scale") else {"integer": True, "positive": True}
        return Symbol(self[plain], **counts)

    def function(self, plain: str) -> Any:
        """Return a scalar or a constant."""
        return Function(self[plain])

    @property
    def descent(self) -> TrainingRule:
        """Return steps at a rate that is a number."""
        return GradientDescent(self.symbol("rate"))

    @property
    def parametrization(self) -> Parametrization:
        """Return the parametrization by the number that outputs are divided by."""
        return Parametrization(scale=self.symbol("scale"))

    def run(self, to: str, end: str) -> IndexRange:
        """Return the range of an index."""
        return IndexRange(self.symbol(to), S.One, self.symbol(end))


def perceptron(
    called: Called,
    phi: Callable[[Expr], Expr] = tanh,
    loss: Callable[[Called, Expr], Expr] = lambda called, square: square,
    rule: TrainingRule | None = None,
    recorded: bool = False,
) -> Program:
    """Return two layers, optionally with a number that is recorded beside the output."""
    units, pixels = Population(called["units"]), Population(called["pixels"], given=True)
    i, scale = called.symbol("i"), called.symbol("scale")
    image, a = GivenVector(called["image"], pixels, called["kernel"]), Field(called["a"], units, layered=True)
    out, label, extra = (called.function(x) for x in ("out", "label", "extra"))
    first = GaussianMatrix(called["J"], units.at(1), pixels)
    hidden = GaussianMatrix(
        called["V"], units.at(ell + 1), units.at(ell), index=IndexRange(ell, S.One, S.One)
    )
    read = GaussianVector(called["read"], units.at(2))
    forward = {
        a(1, i, t): first @ image(i),
        a(ell + 1, i, t): hidden(ell) @ phi(a(ell, i, t)),
        out(i, t): Mean(read.symbol * phi(a(2, i, t))) / scale,
    }
    if recorded:
        forward[extra(i, t)] = Mean(a(2, i, t) ** 2)
    net = Network(
        "two layers",
        (a,),
        forward,
        (first, hidden, read),
        given=(image,),
        ranges=(called.run("i", "N_s"),),
        depth=S(2),
    )
    square = (label(i) - out(i, t)) ** 2 / 2
    return net.train(loss(called, square), rule or called.descent, called.parametrization)


def linear(called: Called) -> Program:
    """Return two linear layers trained by a flow with decay."""
    return perceptron(called, lambda x: x, rule=GradientFlow(decay=called.symbol("rate")))


def linear_steps(called: Called) -> Program:
    """Return two linear layers trained in steps, whose loss has a factor that depends on time."""
    return perceptron(called, lambda x: x, lambda n, square: n.function("pace")(t) * square)


def weighted(called: Called) -> Program:
    """Return a program with weights of samples, the last of which is zero."""
    return perceptron(called, loss=lambda n, square: n.function("importance")(n.symbol("i")) * square)


def recorded(called: Called) -> Program:
    """Return a program with a number that no other equation reads."""
    return perceptron(called, recorded=True)


def two_outputs(called: Called) -> Program:
    """Return one layer without a number of layers, and two outputs."""
    units, pixels = Population(called["units"]), Population(called["pixels"], given=True)
    i, o, scale = called.symbol("i"), called.symbol("o"), called.symbol("scale")
    image, a = GivenVector(called["image"], pixels, called["kernel"]), Field(called["a"], units)
    out, label = called.function("out"), called.function("label")
    J = GaussianMatrix(called["J"], units, pixels)
    read = GaussianVector(called["read"], units, indices=(IndexRange(o, S.One, S(2)),))
    forward = {a(i, t): J @ image(i), out(i, o, t): Mean(read.symbol * tanh(a(i, t))) / scale}
    net = Network(
        "two outputs",
        (a,),
        forward,
        (J, read),
        given=(image,),
        ranges=(called.run("i", "N_s"), IndexRange(o, S.One, S(2))),
    )
    return net.train((label(i, o) - out(i, o, t)) ** 2 / 2, called.descent, called.parametrization)


def each_position(called: Called) -> Program:
    """Return one layer of units at two positions, with two outputs at each."""
    units, pixels = Population(called["units"]), Population(called["pixels"], given=True)
    i, q, o, scale = (called.symbol(x) for x in ("i", "q", "o", "scale"))
    image, a = GivenVector(called["image"], pixels, called["kernel"]), Field(called["a"], units)
    out, label = called.function("out"), called.function("label")
    J = GaussianMatrix(called["J"], units, pixels)
    read = GaussianVector(called["read"], units, indices=(IndexRange(o, S.One, S(2)),))
    forward = {a(i, q, t): J @ image(i, q), out(i, q, o, t): Mean(read(o) * tanh(a(i, q, t))) / scale}
    ranges = (called.run("i", "N_s"), IndexRange(q, S.One, S(2)), IndexRange(o, S.One, S(2)))
    net = Network("each position", (a,), forward, (J, read), given=(image,), ranges=ranges)
    return net.train((label(i, q, o) - out(i, q, o, t)) ** 2 / 2, called.descent, called.parametrization)


def positions(called: Called) -> Program:
    """Return two layers of units at two positions, with the sum over positions as output."""
    units, pixels = Population(called["units"]), Population(called["pixels"], given=True)
    i, q, scale = called.symbol("i"), called.symbol("q"), called.symbol("scale")
    image, a = GivenVector(called["image"], pixels, called["kernel"]), Field(called["a"], units, layered=True)
    out, label = called.function("out"), called.function("label")
    first = GaussianMatrix(called["J"], units.at(1), pixels)
    hidden = GaussianMatrix(
        called["V"], units.at(ell + 1), units.at(ell), index=IndexRange(ell, S.One, S.One)
    )
    read = GaussianVector(called["read"], units.at(2))
    forward = {
        a(1, i, q, t): first @ image(i, q),
        a(ell + 1, i, q, t): hidden(ell) @ tanh(a(ell, i, q, t)),
        out(i, t): Sum(Mean(read.symbol * tanh(a(2, i, q, t))), (q, 1, 2)) / scale,
    }
    net = Network(
        "positions",
        (a,),
        forward,
        (first, hidden, read),
        given=(image,),
        ranges=(called.run("i", "N_s"), IndexRange(q, S.One, S(2))),
        depth=S(2),
    )
    return net.train((label(i) - out(i, t)) ** 2 / 2, called.descent, called.parametrization)


@dataclass(frozen=True)
class Case:
    """Program as a function of its names, with its arguments and its plain names."""

    make: Callable[[Called], Program]
    arrays: Mapping[str, Any]
    names: str
    flow: bool = False
    linear: bool = False


DATA = {"kernel": K, "label": Y}
AT_POSITIONS = np.einsum("ij,pq->ipjq", K, np.array([[1.0, 0.2], [0.2, 0.8]]))
LAYERS = "units pixels i N_s kernel image a J V read out label rate scale"
CASES = {
    "linear flow": Case(linear, DATA, LAYERS, flow=True, linear=True),
    "linear steps": Case(
        linear_steps, DATA | {"pace": np.array([1.0, 0.7, 1.2])}, LAYERS + " pace", linear=True
    ),
    "weighted": Case(weighted, DATA | {"importance": np.array([1.0, 0.5, 0.0])}, LAYERS + " importance"),
    "recorded": Case(recorded, DATA, LAYERS + " extra"),
    "two outputs": Case(
        two_outputs,
        {"kernel": K, "label": np.stack([Y, Y[::-1]], axis=1)},
        "units pixels i o N_s kernel image a J read out label rate scale",
    ),
    "each position": Case(
        each_position,
        {"kernel": AT_POSITIONS, "label": np.stack([np.stack([Y, -Y]), np.stack([Y[::-1], Y])]).T},
        "units pixels i q o N_s kernel image a J read out label rate scale",
    ),
    "positions": Case(
        positions,
        {"kernel": AT_POSITIONS, "label": Y},
        "units pixels i q N_s kernel image a J V read out label rate scale",
    ),
}


def random_names(case: Case, random: Random) -> dict[str, str]:
    """Return names for some of a case's, from the pool and from its own."""
    own = case.names.split()
    renamed = random.sample(own, random.randint(1, len(own)))
    kept = {x for x in own if x not in renamed}
    pool = sorted({*POOL, *renamed} - kept)
    return dict(zip(renamed, random.sample(pool, len(renamed)), strict=True))


def answers(case: Case, names: Mapping[str, str], command: str) -> Any:
    called = Called(names)
    given: dict[str, Any] = {
        "numbers": {called["rate"]: 0.2, called["scale"]: 0.9},
        "arrays": {called[x]: a for x, a in case.arrays.items()},
        "times": [0.0, 0.4, 0.8] if case.flow else range(3),
    }
    program = case.make(called)
    if command == "solve":
        return numerics.solve(program, solver=None if case.linear else Solver(samples=32), **given)
    if command == "simulate":
        return numerics.simulate(program, width=8, seeds=2, rng=1, **given)
    return numerics.expand(program, order=2, **given)


COMMANDS = ("solve", "simulate", "expand")


def said(case: Case, names: Mapping[str, str], command: str) -> Any:
    """Return the result, or the message of a refusal."""
    try:
        return answers(case, names, command)
    except REFUSALS as refusal:
        return str(refusal)


def compare(name: str, names: Mapping[str, str], command: str) -> None:
    """Raise AssertionError unless a renaming gives the same result, or is refused in one sentence."""
    case = CASES[name]
    expected, found = said(case, {}, command), said(case, names, command)
    if isinstance(found, str):
        assert "\n" not in found
        try:
            case.make(Called(names))
        except ProgramError:
            return  # the names collide with each other
        assert isinstance(expected, str), (names, found)
        return
    assert not isinstance(expected, str), names
    assert found.attrs.get("method") == expected.attrs.get("method"), names
    called = {label: _called(str(label), expected, names) for label in expected.data_vars}
    assert set(found.data_vars) == set(called.values()), names
    for label, new in called.items():
        assert len(found[new].dims) == len(expected[label].dims), (label, names)
        if new == label:
            indices = {x: names.get(x, x) for x in INDICES}
            dims = tuple(indices.get(str(x), x) for x in expected[label].dims)
            assert found[label].dims == dims, (label, names)
        np.testing.assert_allclose(
            found[new], expected[label], rtol=1e-8, atol=1e-10, err_msg=f"{label} {names}"
        )


def _called(label: str, result: xr.Dataset, names: Mapping[str, str]) -> str:
    """Return the name of a variable after a renaming.

    A role stays, and a name of the program changes.
    """
    if AUTHORED not in result[label].attrs:
        return label
    own = base_name(label)
    new = names.get(own, own)
    return (f"{new}_own" if new in VARIABLES else new) + label.removeprefix(own)


@pytest.mark.parametrize(
    ("name", "seed"), [pytest.param("recorded", 2, marks=pytest.mark.slow), ("two outputs", 1)]
)
def test_renaming_changes_no_number_and_no_label_of_networks(name: str, seed: int) -> None:
    compare(name, random_names(CASES[name], Random(seed)), "simulate")


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("weighted", {"J": "G", "read": "Phi"}),
        pytest.param("linear steps", {"V": "G", "image": "H"}, marks=pytest.mark.slow),
        ("recorded", {"rate": "G", "extra": "G"}),
        pytest.param("each position", {"q": "c"}, marks=pytest.mark.slow),
        pytest.param("each position", {"q": "mu"}, marks=pytest.mark.slow),
        ("each position", {"q": "o", "o": "q"}),
    ],
)
def test_names_of_roles_step_aside_for_names_of_a_program(name: str, names: dict[str, str]) -> None:
    """Weights called like the correlations of a chain, positions like the channel or the sample.

    A number of the rule may be called like a number of the program that steps aside.
    """
    compare(name, names, "simulate")


def test_positions_are_labelled_whatever_their_index_is_called() -> None:
    found = answers(CASES["positions"], {"q": "c"}, "simulate")
    assert found["G"].dims == ("layer", "time", "time_", "sample", "position", "sample_", "position_")


def test_outputs_at_positions_have_one_name_in_every_result() -> None:
    """Networks held them as ``f`` and ``error`` too, with positions for channels."""
    units, pixels, p = Population("units"), Population("pixels", given=True), Symbol("p", integer=True)
    x, h, token = GivenVector("x", pixels, "K_x"), Field("h", units), Function("token")
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units)
    lines = {h(mu, p, t): W @ x(mu, p), token(mu, p, t): Mean(w.symbol * h(mu, p, t)) / gamma0}
    net = Network("tokens", (h,), lines, weights=(W, w), given=(x,), ranges=(IndexRange(p, S.One, S(2)),))
    program = net.train((Function("label")(mu, p) - token(mu, p, t)) ** 2 / 2, GradientDescent(eta))
    given = {
        "numbers": {"eta": 0.1, "gamma0": 1.0},
        "arrays": {"K_x": np.eye(2).reshape(1, 2, 1, 2), "label": [[1.0, -1.0]]},
        "times": range(2),
    }
    theory = numerics.solve(program, **given, solver=Solver(method="direct"))
    networks = numerics.simulate(program, **given, width=4, seeds=2)
    exact = {name for name in networks.data_vars if not str(name).endswith("_stderr")}
    assert exact == {*theory.data_vars}
    assert networks["token"].dims == ("time", "sample", "p")
    assert "token" not in networks.attrs.get("names", "")
    assert theory.attrs["kernels"] == "none"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", [x for x in CASES if x != "linear steps"])
def test_renaming_changes_no_number_and_no_label(name: str, command: str) -> None:
    for seed in range(6):
        compare(name, random_names(CASES[name], Random(seed)), command)
