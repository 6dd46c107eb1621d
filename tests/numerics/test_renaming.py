"""Tests that names have no effect: a program with all names drawn anew is solved to the same numbers.

Programs of builders and of users, drawn by the generator of random programs, are renamed (:mod:`.renaming`);
variables with a role keep it, the others follow the author's name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Symbol

import numerics
from derive.program import Program, convolution, ell, feedback_alignment, mlp
from numerics.errors import NumericsError, SpecError
from numerics.experiment.schema import Solver
from tests.chance import excess
from tests.numerics.random_programs.checks import FAST, Case, given
from tests.numerics.random_programs.language import NAMES, RESERVED, draw
from tests.numerics.renaming import renamed, with_index
from tests.numerics.test_served_programs import CASES

K = np.array([[1.0, 0.3], [0.3, 0.8]])
Y = np.array([1.0, -0.7])
FIXED = {"eta": 0.3, "gamma0": 0.9}
PLACED = np.einsum("ij,pq->ipjq", K, np.eye(3))
POOL = (*(x for x in NAMES if x not in RESERVED), *(f"index_{x}" for x in "abcdefghijkl"))
REPLICAS = 4
WITH_INDICES = ("recurrent", "filters", "mixture", "causal means", "readouts")
"""Served programs with places of an ordered family, positions, members and outputs."""

Posed = tuple[Program, Mapping[str, float], Mapping[str, Any]]
BUILT: dict[str, tuple[Callable[[], Program], Mapping[str, float], Mapping[str, Any]]] = {
    "linear": (partial(mlp, 2), FIXED, {"K_x": K, "y": Y}),
    "tanh": (partial(mlp, 2, "tanh"), FIXED, {"K_x": K, "y": Y}),
    "decay": (
        partial(mlp, 1, loss="mean", weight_decay=Symbol("lam", positive=True)),
        {**FIXED, "lam": 0.2},
        {"K_x": K, "y": Y},
    ),
    "biases": (partial(mlp, 2, bias=True), FIXED, {"K_x": K, "y": Y}),
    "outputs": (partial(mlp, 1, outputs=2), FIXED, {"K_x": K, "y": np.stack([Y, Y**2], axis=1)}),
    "logistic": (partial(mlp, 1, objective="logistic"), FIXED, {"K_x": K, "y": np.sign(Y)}),
    "cross-entropy": (
        partial(mlp, 1, objective="cross-entropy", outputs=2),
        FIXED,
        {"K_x": K, "y": np.eye(2)},
    ),
    "convolution": (partial(convolution, 1, positions=3, receptive=1), FIXED, {"K_x": PLACED, "y": Y}),
    "residual": (partial(mlp, 2, branch=1), FIXED, {"K_x": K, "y": Y}),
    "feedback": (partial(feedback_alignment, 2), FIXED, {"K_x": K, "y": Y}),
    "weights": (partial(mlp, 1, sample_weights=True), FIXED, {"K_x": K, "y": Y, "rho": [1.0, 0.0]}),
    "flow": (partial(mlp, 1, rule="flow"), {"gamma0": 0.9}, {"K_x": K, "y": Y}),
}
ALIKE = ("linear", "outputs", "logistic", "residual")
"""Programs whose names are those of others that are solved in the default suite."""
OWN = (4, 8, 19, 116, 155, 172, 379, 739, 866, 972)
"""Programs of the generator that are quickly solved."""


@cache
def posed(name: str) -> Posed:
    """Return a builder's program with its numbers and arrays."""
    make, numbers, arrays = BUILT[name]
    return make(), numbers, arrays


def solved(problem: Posed, what: str, times: Any) -> xr.Dataset | str:
    """Return a result, or the kind of its refusal."""
    program, numbers, arrays = problem
    told: dict[str, Any] = {"numbers": numbers, "arrays": arrays, "times": times}
    try:
        if what == "expand":
            return numerics.expand(program, 2, **told)
        if what == "simulate":
            return numerics.simulate(program, width=6, seeds=3, rng=1, **told)
        return numerics.solve(program, solver=Solver(samples=64, accuracy=0.1), **told)
    except (SpecError, NumericsError) as refusal:
        return type(refusal).__name__


@cache
def built(name: str, what: str) -> xr.Dataset | str:
    return solved(posed(name), what, range(3))


def check_built(name: str, what: str, seed: int) -> None:
    """Compare a builder's program with the same under other names, to rounding."""
    program, numbers, arrays = posed(name)
    other, names = renamed(program, POOL, seed)
    one, two = built(name, what), solved((other, names.numbers(numbers), names.named(arrays)), what, range(3))
    if isinstance(one, str) or isinstance(two, str):
        assert one == two, names
        return
    assert {*one.data_vars} == {*two.data_vars}, names
    assert one.attrs.get("method") == two.attrs.get("method"), names
    for variable in one.data_vars:
        assert one[variable].dims == two[variable].dims, (variable, names)
        # a flow is integrated to its tolerance, in nodes that rounding may move
        allowed = 1e-7 if name == "flow" else 1e-10
        np.testing.assert_allclose(
            two[variable], one[variable], rtol=allowed, atol=allowed, err_msg=str(names)
        )


def check_own(seed: int, what: str, other_names: int) -> None:
    """Compare a user's program with the same under other names, up to the error bars of both.

    Sampled paths are drawn in the order of sources, which names decide.
    """
    case = Case(draw(seed), FAST)
    told = given(case)
    program, numbers, arrays = case.realised, told["numbers"], told["arrays"]
    other, names = renamed(program, POOL, other_names)
    one = solved((program, numbers, arrays), what, told["times"])
    two = solved((other, names.numbers(numbers), names.named(arrays)), what, told["times"])
    if isinstance(one, str) or isinstance(two, str):
        assert one == two, names
        return
    assert one.attrs.get("method") == two.attrs.get("method"), names
    compared = 0
    for name in [*program.scalars, "train_loss"]:
        first, second = variable_of(one, name), variable_of(two, names.names.get(name, name))
        assert (first is None) == (second is None), (name, names)
        if first is None or second is None:
            continue
        pairs = ((one, first), (two, second))
        stderr = [x[f"{v}_stderr"].values if f"{v}_stderr" in x else 0 for x, v in pairs]
        far = np.abs(one[first].values - two[second].values)
        allowed = np.hypot(*stderr) if what == "solve" else 0.0
        small = 1e-9 * (1 + np.abs(one[first].values))
        assert excess(np.maximum(far - small, 0) / np.maximum(allowed, small), REPLICAS - 1) <= 1, (
            name,
            names,
        )
        compared += 1
    assert compared


def variable_of(found: xr.Dataset, name: str) -> str | None:
    """Return the variable of a result that holds the number ``name`` of the program."""
    roles = dict(x.split(": ") for x in found.attrs.get("names", "").split(", ") if x)
    for role, variable in {"f": "f", "Delta": "error"}.items():
        if roles.get(role, role) == name and variable in found:
            return variable
    return next((x for x in (name, f"{name}_own") if x in found), None)


def drawn(seed: int) -> tuple[str, str | int, str, int]:
    """Return one of all cases: kind of program, its name or number, command, and seed of names."""
    choose = random.Random(seed)
    if choose.random() < 0.6:
        return "built", choose.choice([*BUILT]), choose.choice(["solve", "expand", "simulate"]), seed
    return "own", choose.choice(OWN), choose.choice(["solve", "simulate"]), seed


def check(seed: int) -> None:
    kind, which, what, names = drawn(seed)
    if kind == "built":
        check_built(str(which), what, names)
    else:
        check_own(int(which), what, names)


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in ALIKE else x for x in BUILT]
)
def test_a_built_program_is_solved_under_any_names(name: str) -> None:
    check_built(name, "solve", seed=len(name))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("filters", "solve"),
        *((x, "simulate") for x in ("recurrent", "mixture")),
        *(pytest.param(x, "solve", marks=pytest.mark.slow) for x in WITH_INDICES if x != "filters"),
        *(
            pytest.param(x, "simulate", marks=pytest.mark.slow)
            for x in WITH_INDICES
            if x not in ("recurrent", "mixture")
        ),
    ],
)
def test_any_index_may_be_called_like_that_of_layers(name: str, what: str) -> None:
    """An index of layers is recognised by its position."""
    case = CASES[name]
    program = case.make()
    asked = dict(case.numbers), dict(case.arrays)
    usual, choose = solved((program, *asked), what, range(2)), random.Random(name)
    assert isinstance(usual, xr.Dataset)
    indices = {r.index for d in program.definitions for r in d.ranges}
    for index in sorted(indices, key=str):
        other = with_index(program, index, choose.choice([ell, Symbol("ell", **index.assumptions0)]))
        found = solved((other, *asked), what, range(2))
        assert isinstance(found, xr.Dataset), (index, found)
        np.testing.assert_allclose(found.f, usual.f, rtol=1e-10, atol=1e-12)


def test_sources_may_go_by_names_that_stand_for_two_directions() -> None:
    """The source of one weight forwards is called like that of another one backwards, which nothing reads."""
    program, numbers, arrays = posed("linear")
    names = {"W0": ("a", "b"), "W": ("b", "c")}
    matrices = tuple(
        replace(w, initial=replace(w.initial, sources=names[w.initial.name])) for w in program.matrices
    )
    found = solved((replace(program, matrices=matrices), numbers, arrays), "solve", range(3))
    usual = built("linear", "solve")
    assert isinstance(found, xr.Dataset)
    assert isinstance(usual, xr.Dataset)
    for variable in usual.data_vars:
        np.testing.assert_allclose(found[variable], usual[variable], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(x, marks=pytest.mark.slow) for x in (1, 5, 6, 7)), 2, 3, 4, 8]
)
def test_any_program_gives_the_same_under_any_names(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(20))
def test_two_hundred_programs_give_the_same_under_any_names(group: int) -> None:
    for seed in range(8 + 10 * group, 18 + 10 * group):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(36))
def test_two_thousand_programs_give_the_same_under_any_names(group: int) -> None:
    for seed in range(208 + 50 * group, 258 + 50 * group):
        check(seed)
