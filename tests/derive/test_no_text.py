"""Functions take numbers and expressions; text is a number at most, and is never evaluated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sympy import SympifyError, exp, symbols

from derive import latex, mean_field
from derive.calculus.gaussian import GaussianAverage
from derive.calculus.series import pade
from derive.calculus.symbols import gamma0
from derive.linear.operators import matrix, operator
from derive.reduce.data import theory_limit
from derive.scale.fluctuations.ensembles import best_ensemble
from derive.scale.mellin import Power, mode_sum
from derive.scale.power_laws import lazy_law
from derive.scale.random_features import optimum
from derive.scale.rich import profile, rich_scaling
from derive.scale.width import named, width_class, with_exponents
from tests.derive.once import mlp
from tests.derive.scale.derived import depth, modes, reduced

x, y = symbols("x y", positive=True)


def width(text: str) -> object:
    program = mlp(2, "tanh")
    return width_class(program, {**named(program)["muP"], "d": text})


@pytest.mark.parametrize(
    "call",
    [
        lambda text: rich_scaling(reduced(), 1, text, 2),
        lambda text: lazy_law(modes(), 1, text, 2),
        lambda text: mode_sum(exp(-y), y, text, 2, x),
        lambda text: mode_sum(text, y, 2, 2, x),
        profile,
        width,
        lambda text: with_exponents(mlp(2, "tanh"), {"d": text}),
        lambda text: depth().classify(text, 1),
        lambda text: best_ensemble(text),
        lambda text: optimum([(text, 1)]),
        lambda text: Power(x, y).subs({x: text}),
        lambda text: theory_limit(mean_field(mlp(2, "tanh")), {gamma0: text}),
        lambda text: mean_field(mlp(2, "tanh")).explain_term((text,)),
        lambda text: GaussianAverage(x, {(x, text): 1}),
        lambda text: GaussianAverage(x, {(x, x): 1}).stein(text),
        lambda text: GaussianAverage(x, {(x, x): 1}).hermite(1, text),
        lambda text: pade([text, 1], 1, 0),
        lambda text: operator("C", text),
        lambda text: matrix((text,), lambda _: (1, 1)),
        lambda text: latex(frozenset({text})),
    ],
)
def test_text_is_refused_and_not_run(call: Callable[[str], object], tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    with pytest.raises((ValueError, SympifyError)):
        call(f"open({str(seen)!r}, 'w')")
    assert not seen.exists()


def test_fractions_as_text_are_numbers() -> None:
    assert str(lazy_law(modes(), 1, "1/2", 2).exponent) == "1/2"
