"""Tests of early training and largest rates by plain ``lambdify`` against the solver."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from sympy import Expr, lambdify, log

from derive.program import L, ell, eta, gamma0
from derive.program.networks.random_data import nu
from derive.scale import aligned, width_class
from derive.scale.width import FREE, named
from derive.theory import Theory
from numerics.experiment import Experiment
from numerics.solver import solve
from tests.derive.once import (
    dominant_balance,
    few_steps,
    first_step,
    isotropic,
    largest_rate,
    lazy_kernel,
    lazy_steps,
    mean_field,
    memory_free,
    mlp,
    width_constraints,
)

NUMBERS = {L: 2, nu: 0.7, eta: 0.06, gamma0: 1.3}
MODULES = ["numpy", "mpmath"]


@lru_cache
def theory(depth: Any = L, center: bool = True) -> Theory:
    return mean_field(isotropic(depth, data="population", center=center))


@lru_cache
def curve(center: bool = True, richness: float = 1.3) -> np.ndarray:
    network = {"depth": 2, "gamma0": richness, "width_ratio": 0.7}
    training = {"learning_rate": 0.06, "steps": 3, "center": center}
    e = Experiment.from_dict({"network": network, "data": {"kind": "isotropic"}, "training": training})
    return np.diag(solve(e).C_v.values)


@pytest.fixture(scope="module", autouse=True)
def derived_once() -> None:
    curve()
    few_steps(theory(2), 2).growth_factor(2)
    few_steps(theory(), 2, order=(eta, 2))


def value(e: Expr, module: str, numbers: Mapping[Any, float] = NUMBERS) -> float:
    found = complex(lambdify(list(numbers), e, module)(*numbers.values()))
    assert abs(found.imag) < 1e-9
    return found.real


@pytest.mark.parametrize("module", MODULES)
def test_steps_compile(module: str) -> None:
    solved = curve()
    few = few_steps(theory(2), 2)
    assert [value(x, module) for x in few.values] == pytest.approx(solved[:3])
    assert value(few.growth_factor(2), module) == pytest.approx(solved[2] / solved[0])
    every = few_steps(theory(), 2, order=(eta, 2)).values[2]
    assert value(every, module) == pytest.approx(
        value(few_steps(theory(2), 2, order=(eta, 2)).values[2], module)
    )
    step = first_step(theory())
    assert value(step.growth_factor.subs(eta, step.critical_learning_rate), module) == pytest.approx(1)
    for x in step.values.values():
        value(x, module, {**NUMBERS, ell: 1})  # every one compiles


@pytest.mark.slow
def test_a_step_with_complex_eigenvalues_compiles() -> None:
    step, solved = first_step(theory(center=False)), curve(False)
    for module in MODULES:
        found = value(step.explicit(step.growth_factor), module)
        assert found == pytest.approx(solved[1] / solved[0])


@pytest.mark.parametrize("module", MODULES)
def test_recursions_and_lazy_limits_compile(module: str) -> None:
    solved = curve()
    free = memory_free(theory(2))
    dropped = sum(value(x, module) for x in free.dropped.values())
    assert value(free.loss(2), module) + dropped == pytest.approx(solved[2])
    assert value(free.error, module) == pytest.approx(dropped)
    lazy = lazy_steps(theory(), 1)
    kernel = lazy_kernel(theory(), 2)
    assert [value(x, module) for x in lazy.moments] == pytest.approx(
        [value(x, module) for x in kernel.moments(2)[1:]]
    )
    assert value(lazy.loss(1), module) == pytest.approx(curve(richness=1e-3)[1], rel=1e-5)
    assert value(lazy.spread, module) == pytest.approx(
        value(lazy.moments[1], module) - value(lazy.moments[0], module) ** 2
    )
    assert value(kernel.growth(1), module) == pytest.approx(value(lazy.loss(1), module))


@pytest.mark.parametrize("module", MODULES)
def test_rates_and_powers_compile(module: str) -> None:
    rich = largest_rate(theory())
    assert value(rich.rate, module) == pytest.approx(2 / (3 * 1.3 ** (4 / 3)))
    assert value(largest_rate(theory(), "lazy").prefactor, module) == pytest.approx(2 / 3)
    balance = dominant_balance(theory())

    assert value(log(balance.rate) / log(gamma0), module) == pytest.approx(-4 / 3)
    found = width_constraints(mlp(2, "tanh"))
    family = found.family()
    for x in found.powers[:3]:
        names = list(family)
        powers = [value(family[k], module, {FREE: 0.25}) for k in names]
        assert lambdify(names, x.power, module)(*powers) == pytest.approx(0)


def test_what_is_assumed_is_said() -> None:
    results = (
        largest_rate(theory()),
        largest_rate(theory(), "lazy"),
        dominant_balance(theory()),
        lazy_kernel(theory(), 1),
        lazy_steps(theory(1), 1),
        memory_free(theory(1)),
    )
    for found in results:
        assert any("assumed: " in x for x in found.conditions())
        assert any("derived: " in x for x in found.conditions())


def test_a_notebook_shows_every_result() -> None:
    program = mlp(2, "tanh")
    results = (
        first_step(theory(1)),
        few_steps(theory(1), 1),
        largest_rate(theory()),
        aligned(theory().program),
        dominant_balance(theory()),
        lazy_kernel(theory(), 1),
        lazy_steps(theory(1), 1),
        memory_free(theory(1)),
        width_constraints(program),
        width_class(program, named(program)["muP"]),
    )
    for found in results:
        shown = found._repr_latex_()
        assert shown.startswith("$$")
        assert "&=" in shown
