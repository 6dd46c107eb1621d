"""Orders, steps, layers and modes that do not exist are refused, also negative and fractional ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from sympy import Function, S, Symbol, exp, symbols

from derive.calculus.symbols import L, eta, gamma0, mu
from derive.expansion import expand, expand_kinks, expand_nonlinear, expand_sizes, expand_step_size
from derive.expansion.theory_orders import expand_strength
from derive.linear.propagators import cross_layer
from derive.program.networks.random_data import nu
from derive.program.networks.residual import depth_program
from derive.scale.depth_steps import at_steps
from derive.scale.early import memory_free
from derive.scale.first_steps import few_steps
from derive.scale.fluctuations import best_ensemble, initial_covariance, initial_mean, wishart_recursion
from derive.scale.fluctuations.ascent import ascent_coefficients
from derive.scale.fluctuations.one_layer import one_sample
from derive.scale.lazy import lazy_kernel, lazy_steps
from derive.scale.mellin import convolution, euler, full_convolution, mode_sum, moment
from derive.scale.optimizer_depth import BranchPowers
from derive.scale.optimizer_powers import OPTIMIZERS
from derive.scale.power_counting import count_powers
from derive.scale.width import width_class
from tests.derive.once import expand_linear, isotropic, mean_field, mlp
from tests.derive.scale.derived import modes

REFUSED = (ValueError, IndexError)
x, z = symbols("x z", positive=True)


@lru_cache
def linear() -> Any:
    return expand_linear(mean_field(mlp(rule="flow", loss="sum")), 2)


@lru_cache
def nonlinear() -> Any:
    return expand_nonlinear(mean_field(mlp(L, Function("phi"))), 0)


@lru_cache
def timed() -> Any:
    return linear().in_time(depth=2)


@lru_cache
def random_data() -> Any:
    return mean_field(isotropic(1, data="population", center=True))


@lru_cache
def cross() -> Any:
    return cross_layer(mean_field(depth_program()))


@lru_cache
def lazy() -> Any:
    return lazy_kernel(random_data(), 1)


@lru_cache
def kinks() -> Any:
    return expand_kinks(mean_field(mlp(1, "relu")))


NEVER = (-1, 1.5)
"""Values that no integer of this library has."""
INTEGERS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "expand": (lambda n: expand(mean_field(mlp()), gamma0, n), NEVER),
    "expand map": (lambda n: expand({Symbol("x"): Symbol("x") * (1 - eta)}, eta, n), NEVER),
    "expand_linear": (lambda n: expand_linear(mean_field(mlp()), n), NEVER),
    "expand_nonlinear": (lambda n: expand_nonlinear(mean_field(mlp(L, Function("phi"))), n), NEVER),
    "expand_sizes": (lambda n: expand_sizes(random_data(), nu, n), NEVER),
    "expand_step_size": (lambda n: expand_step_size(mean_field(mlp(1)), n), NEVER),
    "expand_strength": (lambda n: expand_strength(mean_field(mlp(1)), n), NEVER),
    "linear truncate": (lambda n: linear().truncate(n), (*NEVER, 3)),
    "linear coefficient": (lambda n: linear().coefficient("H", n), (*NEVER, 3)),
    "linear expr": (lambda n: linear().expr("H", n), (*NEVER, 3)),
    "linear triples": (lambda n: linear().triples(n), (*NEVER, 3)),
    "linear matrix": (lambda n: linear().matrix("H", n), (*NEVER, 3)),
    "linear entry": (lambda n: linear().entry("H", n), (*NEVER, 3)),
    "linear error_equation": (lambda n: linear().error_equation(n), (*NEVER, 3)),
    "linear layer": (lambda x: linear().coefficient("H", 2, x), (*NEVER, L + 1)),
    "linear letters": (lambda x: linear().letters("H", x), (*NEVER, L + 1)),
    "given layer": (lambda x: linear().given("H", x, depth=2), (*NEVER, 7, Symbol("k"))),
    "given kernel": (lambda x: linear().given("C", x, depth=2), (*NEVER, 0, 3)),
    "lambdify layer": (lambda x: linear().lambdify("H", layer=x, depth=2), (*NEVER, 7)),
    "lambdify depth": (lambda n: linear().lambdify("H", layer=1, depth=n), (*NEVER, 0)),
    "in_time depth": (lambda n: linear().in_time(depth=n), (*NEVER, 0)),
    "in_time order": (lambda n: linear().in_time(order=n), (*NEVER, 3)),
    "in_time Delta": (lambda n: timed().Delta(n), (*NEVER, 3)),
    "in_time loss": (lambda n: timed().loss(n), (*NEVER, 3)),
    "in_time mode": (lambda k: timed().Delta(0, k), (*NEVER, 2)),
    "in_time drive": (lambda k: timed().drive(0, k), (*NEVER, 2)),
    "in_time layer": (lambda x: timed().coefficient("H", 2, layer=x), (*NEVER, 3)),
    "nonlinear coefficient": (lambda n: nonlinear().coefficient("Phi", n), (*NEVER, 1)),
    "nonlinear layer": (lambda x: nonlinear().coefficient("Phi", 0, x), (*NEVER, 0, L + 1)),
    "nonlinear B": (lambda x: nonlinear().coefficient("B", 0, x), (*NEVER, L)),
    "nonlinear C": (lambda x: nonlinear().coefficient("C", 0, x), (*NEVER, 0, L + 1)),
    "nonlinear field": (lambda n: nonlinear().field("h", n), NEVER),
    "nonlinear field layer": (lambda x: nonlinear().field("h", 0, x), (*NEVER, 0)),
    "nonlinear tensors": (lambda n: nonlinear().tensors(n), (*NEVER, 1)),
    "nonlinear factors": (lambda n: nonlinear().factors("Phi", n), (*NEVER, 1)),
    "nonlinear fields": (lambda n: nonlinear().fields(n), NEVER),
    "tangent": (lambda n: nonlinear().depth_dependence().tangent(n), (*NEVER, 1)),
    "kinks": (lambda n: kinks().coefficient("Phi", n), (*NEVER, 3)),
    "best_ensemble": (lambda n: best_ensemble(2, n), (*NEVER, 0, 3)),
    "growth_factor": (lambda n: few_steps(random_data(), 1).growth_factor(n), (*NEVER, 2)),
    "few_steps": (lambda n: few_steps(random_data(), n), NEVER),
    "few_steps order": (lambda n: few_steps(random_data(), 1, order=(eta, n)), (1.5,)),
    "memory_free": (lambda n: memory_free(random_data(), n), (*NEVER, 0)),
    "memory_free order": (lambda n: memory_free(random_data(), order=n), NEVER),
    "lazy_steps": (lambda n: lazy_steps(random_data(), n), (*NEVER, 0)),
    "moments": (lambda n: lazy().moments(n), NEVER),
    "growth": (lambda n: lazy().growth(n), NEVER),
    "ascent": (lambda n: ascent_coefficients(mlp(1), n), NEVER),
    "matrices": (lambda n: wishart_recursion(mlp(1)).matrices(n), (*NEVER, 0)),
    "after": (lambda n: one_sample(wishart_recursion(mlp(1))).after(n), NEVER),
    "count_powers": (lambda n: count_powers(mlp(1), n), NEVER),
    "power": (lambda n: count_powers(mlp(1), 1).power("f", None, n), (*NEVER, 2)),
    "mode_sum": (lambda n: mode_sum(1 / (1 + z), z, 2, 2, x, terms=n), (*NEVER, 0)),
    "moment": (lambda n: moment(exp(-z), z, 3, 1, n), NEVER),
    "convolution weight": (
        lambda n: convolution((exp(-z), 2), (exp(-z), 3), z, 1, x, less=1, weight=n),
        NEVER,
    ),
    "convolution early": (lambda n: convolution((exp(-z), 2), (exp(-z), 3), z, 1, x, less=1, early=n), NEVER),
    "convolution less": (lambda n: convolution((exp(-z), 2), (exp(-z), 3), z, 1, x, less=n), (2, 2.5)),
    "euler": (lambda n: euler(S.One, S.One, n), (2, 2.5)),
    "full_convolution": (lambda n: full_convolution((exp(-z), 2), (exp(-z), 3), z, 1, x, weight=n), NEVER),
    "modes": (lambda n: modes("gd").loss(n), (*NEVER, 0)),
    "depth powers": (
        lambda n: BranchPowers(OPTIMIZERS["sign"], *[S.One] * 7).at(n),
        (-1, 0, Symbol("q")),
    ),
    "at_steps": (lambda n: at_steps(cross(), n), NEVER),
    "initial_covariance": (lambda x: initial_covariance(mlp(), ("G", x)), (1.5, L + 1)),
    "initial_covariance of a depth": (lambda x: initial_covariance(mlp(2), ("G", x)), (0, 3)),
    "initial_mean": (lambda x: initial_mean(mlp(2), ("H", x, mu, mu)), (1.5, L + 1)),
}
"""By name: a public function of one integer or layer, and values that it refuses."""


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_outside_their_range_are_refused(name: str) -> None:
    call, values = INTEGERS[name]
    for value in values:
        with pytest.raises(REFUSED, match=r"= ?\S+.*(must be|known)|mode \S+ does not exist|is known"):
            call(value)


def test_series_without_operator_words_are_named() -> None:
    for name in ("K", "q"):
        with pytest.raises(KeyError, match=rf"'{name}' has no sum of operator words: must be one of H, G"):
            linear().expr(name, 2)


def test_steps_of_a_class_are_refused() -> None:
    ntk = {"a_W0": 0, "a_w": "1/2", "b_W0": 0, "b_w": 0, "c": 0, "d": 0}
    for steps in (-1, 0, 1.5):
        with pytest.raises(ValueError, match="steps = "):
            width_class(mlp(1), ntk, steps)  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", ["linear", "relu"])
def test_the_order_of_an_expansion_is_an_integer(activation: str) -> None:
    """With a kink the order 1.5 was taken for 0 first, and then not read."""
    with pytest.raises(ValueError, match=r"order = 1\.5"):
        expand(mean_field(mlp(1, activation)), gamma0, 1.5)
