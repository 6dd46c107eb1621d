"""Text that reaches a builder is refused with its key, and never evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sympy import Function, S

from derive import latex, text
from derive.calculus.gaussian import GaussianAverage
from derive.calculus.symbols import IndexRange, eta, exact, expression, gamma0, mu, s, t
from derive.errors import NotApplicable, ProgramError
from derive.linear.form import linear_form
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
)
from tests.derive.once import convolution, depth_program, isotropic, mean_field, mlp, recurrent, structured

BUILDERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "mlp": (
        lambda **o: mlp(2, **o),
        (
            *("outputs", "bias", "branch", "relative_widths", "init_variance"),
            *("weight_decay", "momentum", "temperature", "loss", "rule", "activation"),
        ),
    ),
    "convolution": (
        lambda **o: convolution(2, **({"positions": 3, "receptive": 1} | o)),
        ("positions", "receptive"),
    ),
    "isotropic": (
        lambda **o: isotropic(2, **o),
        ("noise", "branch", "widths", "outputs", "data", "parametrization", "rule"),
    ),
    "structured": (lambda **o: structured(2, **o), ("noise", "data", "rule")),
    "depth": (lambda **o: depth_program(3, **o), ("alpha", "gamma")),
    "recurrent": (lambda **o: recurrent(3, **o), ("init_variance", "bias", "branch")),
    "descent": (lambda **o: GradientDescent(**({"rate": 1} | o)).memory(t, s), ("rate", "decay")),
    "layers": (lambda depth: mlp(depth), ("depth",)),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_no_word_of_a_builder_is_evaluated(name: str, tmp_path: Path) -> None:
    build, keys = BUILDERS[name]
    for key in keys:
        with pytest.raises(ProgramError, match=key):
            build(**{key: f"__import__('pathlib').Path({str(tmp_path / key)!r}).touch()"})
        assert not (tmp_path / key).exists()


@pytest.mark.parametrize("wrap", [lambda x: (x,), lambda x: (1, (x,)), lambda x: {x}, lambda x: {1: x}])
def test_text_inside_of_containers_is_not_evaluated(wrap: Any, tmp_path: Path) -> None:
    """SymPy evaluates text inside of a tuple also where it is strict."""
    place = tmp_path / "touched"
    given = wrap(f"__import__('pathlib').Path({str(place)!r}).touch()")
    for refuses in (
        lambda: expression(given),
        lambda: exact("source", given),
        lambda: linear_form(mean_field(mlp(2))).row("h", given),
        lambda: mean_field(mlp(2)).equation("h", given),
        lambda: mlp(2, weight_decay=given),
        lambda: IndexRange(mu, S.One, given),
        lambda: latex(given),
        lambda: text(given),
        lambda: GaussianAverage(given, (t,), [[1]]),
    ):
        with pytest.raises((ProgramError, NotApplicable, ValueError, AttributeError)):
            refuses()
        assert not place.exists()


@pytest.mark.parametrize("depth", [2.5, 0, "2", (2,), None], ids=str)
def test_the_depth_of_a_network_is_a_number_of_layers(depth: Any) -> None:
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, w, U = GivenVector("x", pixels, "K_x"), Field("h", units), *_weights(units, pixels)
    out, target = Function("out"), Function("target")
    forward = {h(mu, t): U @ x(mu), out(mu, t): Mean(w.symbol * h(mu, t)) / gamma0}
    network = Network("one layer", (h,), forward, (U, w), given=(x,), depth=depth)
    with pytest.raises(ProgramError, match=r"depth = .*must be (an integer|a number)"):
        network.train((target(mu) - out(mu, t)) ** 2 / 2, GradientDescent(eta))


def _weights(units: Population, pixels: Population) -> tuple[GaussianVector, GaussianMatrix]:
    return GaussianVector("w", units), GaussianMatrix("U", units, pixels)


@pytest.mark.parametrize("key", ["fields", "weights", "frozen", "given", "attributes", "ranges", "forward"])
def test_an_argument_of_a_network_has_its_type(key: str) -> None:
    """Other objects ended in an AttributeError or TypeError."""
    units = Population("units")
    given: dict[str, Any] = {"fields": (Field("h", units),), "forward": {}}
    for wrong, said in (
        (("h",), "contains 'h': give a tuple of"),
        (units, "has the type Population: give a"),
    ):
        with pytest.raises(ProgramError, match=f"^{key} of a network {said}"):
            Network("wrong", **given | {key: wrong})
