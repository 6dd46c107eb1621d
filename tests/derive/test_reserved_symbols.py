"""Theories with a symbol of a limit, which would be read as that of the limit, are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sympy import S, Symbol

from derive import GradientDescent, GradientFlow
from derive.depth import Scaling, cross_layer, infinite_depth, layer_process, layer_time, rescale
from derive.errors import NotApplicable
from derive.program import L
from derive.scale.modes import lazy_modes
from derive.theory import Theory
from tests.derive.once import isotropic, mean_field, mlp, structured


def deep(rate: Symbol) -> Theory:
    return mean_field(isotropic(data="population", branch=L**-S.Half, rule=GradientDescent(rate)))


LIMITS: dict[str, tuple[str, Callable[[Symbol], Any]]] = {
    "layer_time": ("tau", lambda x: layer_time(rescale(cross_layer(deep(x)), L**-S.Half))),
    "infinite_depth": ("tau_1", lambda x: infinite_depth(rescale(cross_layer(deep(x)), L**-S.Half))),
    "layer_process": (
        "tau_",
        lambda x: layer_process(mean_field(mlp(activation="tanh", branch=x)), Scaling({})),
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_layer_times_are_no_symbols_of_a_theory(name: str) -> None:
    symbol, limit = LIMITS[name]
    with pytest.raises(NotApplicable, match=f"the symbol {symbol}, which is a layer time.*another name"):
        limit(Symbol(symbol, nonnegative=True))


@pytest.mark.parametrize("name", ["a", "beta", "K", "omega", "tau"])
def test_symbols_of_power_laws_are_no_symbols_of_a_theory(name: str) -> None:
    """A rate called ``a`` was replaced by the capacity of the data."""
    rule = GradientFlow(Symbol(name, positive=True))
    with pytest.raises(NotApplicable, match=f"the symbol {name}, which is .* in laws of modes"):
        lazy_modes(mean_field(structured(data="population", rule=rule)))
