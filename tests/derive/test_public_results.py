"""Results of public functions are values, and arguments of another type are refused in one sentence."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from sympy import Eq, Function, S, Symbol

import derive
from derive import L, NotApplicable, ProgramError, eta, gamma0, isotropic, mean_field, mlp
from derive.depth import cross_layer, infinite_depth, layer_time, rescale
from derive.ledger import find
from derive.program import GivenVector, Momentum, Multistep, Population
from derive.program.networks.residual import depth_program
from derive.program.symbolic_depth import at_symbolic_depth
from tests.derive import once


def deep() -> Any:
    return rescale(cross_layer(mean_field(depth_program())), L**-S.Half)


def shallow() -> Any:
    return mean_field(mlp(1, rule="flow"))


POWERS = {"a_W0": 0, "a_W": "1/2", "a_w": "1/2", "b_W0": 0, "b_W": 0, "b_w": 0, "c": 0, "d": 0}
x = Symbol("x")
RESULTS: dict[str, Callable[[], Any]] = {
    "program": mlp,
    "rule": lambda: Momentum(eta, S.Half),
    "integrator": Multistep,
    "vector": lambda: GivenVector("x", Population("input", given=True), "K_x"),
    "theory": lambda: mean_field(mlp()),
    "theory at a depth": lambda: mean_field(mlp(2, "tanh")),
    "closure": lambda: derive.linear_closure(mean_field(mlp())),
    "projection": lambda: derive.error_projected(mean_field(mlp())),
    "lazy": lambda: derive.lazy(mean_field(mlp(rule="flow"))),
    "linear expansion": lambda: derive.expand(mean_field(mlp())),
    "nonlinear expansion": lambda: derive.expand(mean_field(mlp(L, Function("phi"))), gamma0, 1),
    "expansion with a kink": lambda: derive.expand(mean_field(mlp(L, "relu")), gamma0, 1),
    "expansion in a rate": lambda: derive.expand(mean_field(mlp(2)), eta, 1),
    "modified equation": lambda: derive.expand({x: x - eta * x}, eta, 2),
    "first step": lambda: derive.first_step(mean_field(isotropic(data="online", center=True))),
    "moments": lambda: derive.two_layer(shallow()),
    "whitened": lambda: derive.whitened(derive.two_layer(shallow())),
    "path integral": lambda: derive.path_integral(mlp(2)),
    "cross-layer system": deep,
    "layer time": lambda: layer_time(deep()),
    "infinite depth": lambda: infinite_depth(deep()),
    "width class": lambda: derive.width_class(mlp(2, "tanh"), POWERS),
    "largest rate": lambda: derive.largest_rate(
        isotropic(data="population", center=True, parametrization="ntk")
    ),
    "claim": lambda: find("linear2025", "104"),
}
QUICK = ("program", "rule", "integrator", "vector", "theory", "closure", "moments", "claim")
"""Results whose test is part of the default suite."""


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in RESULTS]
)
def test_results_can_be_pickled_and_copied(name: str) -> None:
    result = RESULTS[name]()
    for copied in (pickle.loads(pickle.dumps(result)), copy.copy(result), copy.deepcopy(result)):
        assert type(copied) is type(result)
        assert str(copied) == str(result)


def test_a_linear_expansion_can_be_pickled_after_use() -> None:
    expansion = derive.expand(mean_field(mlp()), gamma0, 2)
    expansion.coefficient("H", 2)
    copied = pickle.loads(pickle.dumps(expansion))
    assert copied.coefficient("H", 2) == expansion.coefficient("H", 2)


def test_a_path_integral_can_be_pickled_after_use() -> None:
    """The results that it had in memory contained a function that cannot be pickled."""
    steps = derive.path_integral(mlp(1))
    theory = steps.theory()
    assert pickle.loads(pickle.dumps(steps)).theory() == theory


TAKERS = {
    name: getattr(derive, name)
    for name in derive.__all__
    if name[0].islower() and name not in ("eta", "gamma0", "isotropic", "mlp", "structured", "width_class")
}
TAKERS |= {"width_class": lambda a: derive.width_class(a, POWERS)}
TAKERS |= {f.__name__: f for f in (infinite_depth, layer_time)}


@pytest.mark.parametrize("name", TAKERS)
def test_arguments_of_another_type_are_refused_in_a_sentence(name: str) -> None:
    arguments = [None, 3, "text", object(), Symbol("x"), Eq(Symbol("x"), 1), once.mlp(1)]
    arguments.append(once.mean_field(once.mlp(1)))
    for argument in arguments:
        refusal = ""
        try:
            TAKERS[name](argument)
        except (NotApplicable, ProgramError) as reason:
            refusal = str(reason)
        assert "\n" not in refusal


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": True}, {"relative_widths": "a", "init_variance": "sigma"}, {"outputs": 2}],
    ids=str,
)
def test_a_program_at_a_depth_has_one_at_symbolic_depth(depth: int, options: dict[str, Any]) -> None:
    assert at_symbolic_depth(mlp(depth, "tanh", **options)) == mlp(L, "tanh", **options)


@pytest.mark.slow
def test_theories_at_a_depth_are_expanded() -> None:
    general, at_two = (derive.expand(mean_field(mlp(n, "erf")), gamma0, 1) for n in (L, 2))
    assert str(at_two) == str(general)
