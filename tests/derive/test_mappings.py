"""Functions of ``derive`` that take a mapping of names or symbols refuse keys that they do not know."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from sympy import Function, S, Symbol, oo

from derive import GradientDescent, expand, isotropic
from derive.program import t
from derive.program.networks.random_data import nu
from derive.reduce.data import theory_limit
from derive.reduce.independence import independent_backward
from derive.scale import lazy_kernel
from derive.scale.optimizer_powers import OptimizerPowers, scaling_faults
from derive.scale.power_counting import count_powers
from derive.scale.width import parametrized, width_class, with_exponents
from derive.theory.tensor_programs import tensor_program
from tests.derive.once import mean_field, mlp

unknown = Symbol("misspelt", positive=True)
REFUSED = (ValueError, KeyError, TypeError)
TWO = mlp(2, "tanh")
SCALES = {"input": 0, "hidden": 0, "readout": 0}


@lru_cache
def lazy() -> Any:
    return lazy_kernel(mean_field(isotropic(data="population", center=True)), 1)


@lru_cache
def linear() -> Any:
    return expand(mean_field(mlp(rule="flow")), order=0)


@lru_cache
def found() -> OptimizerPowers:
    return OptimizerPowers(TWO, "feature learning", S.Half, (), {}, frozenset())


MAPPINGS: dict[str, Callable[[], Any]] = {
    "with_exponents": lambda: with_exponents(parametrized(TWO), {"misspelt": 1}),
    "a layer": lambda: with_exponents(parametrized(TWO), {"a_W(7)": 1}),
    "a layer of one weight": lambda: with_exponents(parametrized(TWO), {"a_w(1)": 1}),
    "a layer that is not a number": lambda: with_exponents(parametrized(TWO), {"a_W(x)": 1}),
    "a layer of symbolic depth": lambda: with_exponents(parametrized(mlp()), {"a_W(1)": 1}),
    "exponents in use": lambda: with_exponents(TWO, {"d": 1}),
    "parametrized": lambda: parametrized(TWO, {"misspelt": 1}),
    "width_class": lambda: width_class(TWO, {**mean_field_exponents(), "misspelt": 1}),
    "layers of width_class": lambda: width_class(TWO, {**mean_field_exponents(), "a_W(2)": 1}),
    "at": lambda: lazy().at({unknown: 1}),
    "at by name": lambda: lazy().at({"nu": 1}),
    "moments": lambda: lazy().moments(1, {unknown: 1}),
    "growth": lambda: lazy().growth(1, {unknown: 1}),
    "rate": lambda: lazy().rate(1, {nu: 1, unknown: 1}),
    "edge": lambda: lazy().edge({nu: 1, unknown: 1}),
    "OptimizerPowers.exponents": lambda: found().exponents({**SCALES, "misspelt": 0}),
    "scaling_faults": lambda: scaling_faults(found(), {**SCALES, "misspelt": 0}),
    "changes": lambda: scaling_faults(found(), SCALES, ["misspelt"]),
    "spectral": lambda: count_powers(TWO, spectral={"misspelt"}),
    "until": lambda: count_powers(TWO, until=(("misspelt", None),)),
    "power": lambda: count_powers(TWO, 0).power("misspelt"),
    "theory_limit": lambda: theory_limit(mean_field(mlp(1)), {unknown: oo}),
    "together": lambda: expand(mean_field(isotropic()), 1 / nu, 1, together={unknown: nu}),
    "constants": lambda: linear().in_time(constants={unknown: 1}),
    "options of expand": lambda: expand(mean_field(mlp(1)), misspelt=1),
    "options of coefficient": lambda: linear().coefficient("H", 0, misspelt=1),
    "options of a builder": lambda: mlp(1, misspelt=1),
    "rules": lambda: mlp(1, rules={"misspelt": GradientDescent(1)}),
    "independent_backward": lambda: independent_backward(TWO, {"misspelt": "V"}),
    "tensor_program": lambda: tensor_program(mean_field(mlp(1)), {Function("q")(t): Function("x")(t)}),
}


@lru_cache
def mean_field_exponents() -> dict[str, Any]:
    return {"a_W0": 0, "b_W0": 0, "a_W": "1/2", "b_W": 0, "a_w": "1/2", "b_w": 0, "c": 0, "d": "1/2"}


@pytest.mark.parametrize("name", MAPPINGS)
def test_unknown_keys_are_refused(name: str) -> None:
    with pytest.raises(REFUSED, match=r"misspelt|a_W\(|a_w\(|exponents d have|'nu'|q\(t\)"):
        MAPPINGS[name]()


def test_values_of_layers_and_of_the_family() -> None:
    """A layer without a value of its own has that of the family, and its value is needed without one."""
    three, single = mlp(3, "tanh"), {"a_W(1)": "1/2", "b_W(1)": 0}
    exponents = mean_field_exponents()
    assert width_class(three, {**exponents, **single}, 1).start == width_class(three, exponents, 1).start
    alone = {x: v for x, v in exponents.items() if x not in ("a_W", "b_W")}
    with pytest.raises(ValueError, match=r"exponents: a_W\(2\), b_W\(2\) missing"):
        width_class(three, {**alone, **single})
