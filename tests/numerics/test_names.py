"""Names of a program may be anything: those that the engine makes up step aside, or a sentence refuses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Expr, Function, S, Symbol

import numerics
from derive.errors import ProgramError
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
    P,
    Population,
    Program,
    TrainingRule,
    gamma0,
    t,
)
from derive.theory.routes import check_routes
from numerics.experiment.schema import Solver
from numerics.solver.direct import evaluate
from tests.derive.once import mean_field

PLAIN = {x: x for x in ("i", "K", "x", "a", "f", "y", "c", "U", "V", "w", "b", "eta")}
"""The names of :func:`renamed`: an index, a kernel, inputs, a field, an output, targets, a function of the
time, two matrices, two vectors and a number."""

ENGINE = """
omega omega_b Delta g g_2 g_a g_f z z_a h f u r u_V u_U r_w r_b A B R_ga R_gu R_au C_a C_g C_ag C_omega Phi G
H K K_x chi xi loss alpha mu k k_ i1 i_ s t ell L P M N w m n past_a a_raw phi eta gamma0 lambda
""".split()  # noqa: SIM905
"""Names that the engine gives to what it adds, with those of its indices and numbers."""

BAD = ["", "2a", "a b", "a(t)", "class-name"]

KERNEL, TARGETS = np.array([[1.0, 0.3], [0.3, 0.8]]), np.array([1.0, -0.5])
PACE = np.array([1.0, 0.7, 1.2])


def renamed(names: Mapping[str, str], rule: TrainingRule | None = None) -> Program:
    """Return two linear layers with a bias and an output with a different weight at each step."""
    called = {**PLAIN, **names}
    units, pixels = Population("units"), Population("pixels", given=True)
    i = Symbol(called["i"], integer=True, positive=True)
    x, a = GivenVector(called["x"], pixels, called["K"]), Field(called["a"], units, layered=True)
    f, y, c = (Function(called[n]) for n in "fyc")
    U = GaussianMatrix(called["U"], units.at(1), pixels)
    V = GaussianMatrix(called["V"], units.at(2), units.at(1))
    w = GaussianVector(called["w"], units.at(2))
    b = GaussianVector(called["b"], units.at(2), variance=S.Half)
    pace: Expr = c(t) if rule is None else S.One
    forward = {
        a(1, i, t): U @ x(i),
        a(2, i, t): V @ a(1, i, t) + b.symbol,
        f(i, t): pace * Mean(w.symbol * a(2, i, t)) / gamma0,
    }
    ranges = (IndexRange(i, S.One, P),)
    net = Network("renamed", (a,), forward, (U, V, b, w), given=(x,), ranges=ranges, depth=S(2))
    rate = Symbol(called["eta"], positive=True)
    return net.train((y(i) - f(i, t)) ** 2 / 2, GradientDescent(rate) if rule is None else rule)


def outputs(names: Mapping[str, str]) -> np.ndarray:
    called = {**PLAIN, **names}
    found = evaluate(
        mean_field(renamed(names)),
        steps=3,
        values={called["eta"]: 0.3, "gamma0": 1, "P": 2},
        data={called["K"]: KERNEL, called["y"]: TARGETS, called["c"]: PACE},
    )
    return found.value(called["f"])


@cache
def expected() -> np.ndarray:
    return outputs({})


def same_or_refused(names: Mapping[str, str]) -> str:
    """Return the message of a refusal, or an empty text if the numbers are those of the plain names."""
    try:
        found = outputs(names)
    except ProgramError as refusal:
        return str(refusal)
    assert found == pytest.approx(expected(), abs=1e-12)
    return ""


@settings(max_examples=4, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(PLAIN)), st.sampled_from(ENGINE), max_size=4))
def test_a_renamed_program_has_the_same_numbers_or_is_refused_in_one_sentence(names: dict[str, str]) -> None:
    if names.get("eta") != "gamma0":  # then both are one number
        assert "\n" not in same_or_refused(names)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(PLAIN)), st.sampled_from([*ENGINE, *BAD]), max_size=8))
def test_any_renaming_has_the_same_numbers_or_is_refused(names: dict[str, str]) -> None:
    if names.get("eta") != "gamma0":
        assert "\n" not in same_or_refused(names)


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(PLAIN))
def test_routes_agree_on_names_of_the_engine(key: str) -> None:
    for name in ENGINE:
        try:
            program = renamed({key: name})
        except ProgramError:
            continue
        assert check_routes(program) == []


@pytest.mark.parametrize(
    "names",
    [
        {"a": "omega"},
        {"a": "g", "f": "Delta", "y": "u", "c": "r"},
        {"a": "z", "c": "C_z", "y": "H", "f": "loss"},
    ],
)
def test_names_of_the_engine_step_aside(names: dict[str, str]) -> None:
    assert same_or_refused(names) == ""


def test_an_output_may_be_called_like_a_source() -> None:
    """One matrix has the sources u and r as long as nothing else is called so."""

    def backward(name: str) -> np.ndarray:
        units, pixels = Population("units"), Population("pixels", given=True)
        i = Symbol("i", integer=True, positive=True)
        x, a, b = GivenVector("x", pixels, "K"), Field("a", units), Field("b", units)
        U, V = GaussianMatrix("U", units, pixels), GaussianMatrix("V", units, units)
        f, y = Function(name), Function("y")
        w = GaussianVector("w", units)
        forward = {a(i, t): U @ x(i), b(i, t): V @ a(i, t), f(i, t): Mean(w.symbol * b(i, t))}
        net = Network("names", (a, b), forward, (U, w), (V,), given=(x,), ranges=(IndexRange(i, S.One, P),))
        theory = mean_field(net.train((y(i) - f(i, t)) ** 2 / 2, GradientDescent(S.One / 5)))
        data = {"K": KERNEL, "y": TARGETS}
        return evaluate(theory, steps=3, values={"P": 2, "gamma0": 1}, data=data).value("C_g_a")

    plain = backward("f")
    assert plain.max() > 0.5
    for name in ("r", "u"):
        assert backward(name) == pytest.approx(plain, abs=1e-12)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({"U": "V"}, "V is the name of two matrices"),
        ({"w": "V"}, "V is the name of a matrix and a vector"),
        ({"w": "b"}, "b is the name of two vectors"),
        ({"a": "w"}, "w is the name of a field and a vector"),
        ({"x": "a"}, "a is the name of a field and a given vector"),
        ({"c": "a"}, "a is the name of two things"),
        ({"c": "y"}, "y is the name of two things, y(t) and y(i)"),
        ({"f": "y"}, "y is the name of two things, y(i, t) and y(i)"),
        ({"K": "f"}, "f is the name of a number and a kernel"),
        ({"i": "y"}, "y is the name of an index and a constant"),
        ({"i": "eta"}, "eta"),
        ({"i": "P"}, "the index P is called like an end of its range"),
        ({"i": "s"}, "the index s is called like a time"),
        ({"eta": "w"}, "two symbols are called w"),
        ({"eta": "P"}, "P is the number of samples, and another symbol is called P"),
        ({"c": "w"}, "w(t) has 1 arguments, but the weight w has 0"),
        *(({"a": x}, "is not a name of a field") for x in BAD),
        *(({"U": x}, "is not a name of a matrix") for x in BAD),
        *(({"K": x}, "is not a name of a kernel") for x in BAD),
        ({"i": ""}, "is not a name of an index"),
    ],
)
def test_names_of_a_user_that_collide_are_refused_by_name(names: dict[str, str], told: str) -> None:
    with pytest.raises(ProgramError) as refusal:
        renamed(names)
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_two_populations_of_one_name_are_refused() -> None:
    small, large = Population("units"), Population("units", ratio=S(2))
    x = GivenVector("x", Population("pixels", given=True), "K_x")
    U, V = GaussianMatrix("U", small, x.population), GaussianMatrix("V", large, small)
    h, q = Field("h", small), Field("q", large)
    i = Symbol("i", integer=True, positive=True)
    f, y = Function("f"), Function("y")
    forward = {h(i, t): U @ x(i), q(i, t): V @ h(i, t), f(i, t): Mean(q(i, t)) / gamma0}
    ranges = (IndexRange(i, S.One, P),)
    with pytest.raises(ProgramError, match="units is the name of two different populations"):
        Network("two", (h, q), forward, (U, V), given=(x,), ranges=ranges, depth=S.One).train(
            (y(i) - f(i, t)) ** 2 / 2, GradientDescent(Symbol("eta"))
        )


def test_correlations_of_joined_names_are_not_merged() -> None:
    """``C_ab`` may be that of ``ab``, or of ``a`` with ``b``."""
    units, pixels = Population("units"), Population("pixels", given=True)
    i = Symbol("i", integer=True, positive=True)
    x = GivenVector("x", pixels, "K_x")
    y, f = Function("y"), Function("f")

    def theory(one: str, two: str, three: str) -> np.ndarray:
        fields = [Field(n, units) for n in (one, two, three)]
        p, q, r = fields
        A, B, C, D = (
            GaussianMatrix(n, units, pixels if n == "A_0" else units) for n in ("A_0", "B_0", "C_0", "D_0")
        )
        w = GaussianVector("w", units)
        forward = {
            p(i, t): A @ x(i),
            q(i, t): B @ p(i, t),
            r(i, t): C @ q(i, t) + D @ p(i, t),
            f(i, t): Mean(w.symbol * r(i, t)) / gamma0,
        }
        net = Network(
            "joined",
            (p, q, r),
            forward,
            (A, B, C, D, w),
            given=(x,),
            ranges=(IndexRange(i, S.One, P),),
            depth=S.One,
        )
        program = net.train((y(i) - f(i, t)) ** 2 / 2, GradientDescent(Symbol("eta")))
        return evaluate(
            mean_field(program),
            steps=3,
            values={"eta": 0.3, "gamma0": 1, "P": 2},
            data={"K_x": KERNEL, "y": TARGETS},
        ).value("f")

    assert theory("a", "b", "ab") == pytest.approx(theory("p", "q", "v"), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("names", [{"a": "w"}, {"y": "w", "f": "m"}])
def test_tables_of_a_flow_step_aside(names: dict[str, str]) -> None:
    """The integrator of a flow has tables w and m; a field, target or output may be called so."""
    found = []
    for own in ({}, names):
        program = renamed({"w": "v", **own}, GradientFlow(decay=Symbol("lam", positive=True)))
        arrays = {"K": KERNEL, {**PLAIN, **own}["y"]: TARGETS}
        numbers = {"lam": 0.1, "gamma0": 1.0}
        given = {"numbers": numbers, "arrays": arrays, "times": [0, 0.5, 1.0]}
        found.append(numerics.solve(program, solver=Solver(samples=16), **given))
    plain, other = found
    assert other.attrs["method"] == plain.attrs["method"]
    # names order the sources, and conditioning on nearly determined sources amplifies rounding
    assert abs(other.error - plain.error).max() < 1e-5 * plain.error_stderr.max()
