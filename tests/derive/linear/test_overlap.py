"""Outputs read in the first layer: of which networks they are, and which are refused.

That it changes no number is in tests/numerics/solver/test_one_path.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from sympy import Function, Sum, Symbol

from derive.calculus.averages import Average
from derive.errors import NotApplicable
from derive.linear.overlap import read_first
from derive.program import ell, gamma0, mu, t
from tests.derive.once import isotropic, mean_field, mlp, perceptron

g, h = Function("g"), Function("h")
C = Symbol("C", integer=True, positive=True)
SAME: dict[str, dict[str, Any]] = {
    "depth": {"depth": 3},
    "flow as steps": {"rule": "multistep", "loss": "mean"},
    "momentum": {"momentum": Symbol("m", positive=True)},
    "noise": {"temperature": Symbol("T", positive=True), "weight_decay": Symbol("lambda", positive=True)},
    "residual": {"branch": Symbol("beta", positive=True)},
    "samples with weights": {"sample_weights": True},
}


@pytest.mark.parametrize("option", SAME)
def test_every_layer_has_the_same_overlap(option: str) -> None:
    theory = mean_field(mlp(**SAME[option]))
    found = read_first(theory)
    assert found.equation("f").rhs == Average(g(1, t) * h(1, mu, t)) / gamma0
    assert found.equations == theory.equations
    assert found.equation("Delta") == theory.equation("Delta")


def test_outputs_and_widths_that_differ_are_put_in() -> None:
    theory = mean_field(mlp(outputs=C, relative_widths="a", init_variance="sigma"))
    last = theory.program.depth
    before, after = theory.equation("f").rhs, read_first(theory).equation("f").rhs
    assert before.has(Function("a")(last))
    assert after == before.subs(last, 1)


def test_one_layer_is_the_first() -> None:
    assert read_first(mean_field(mlp(1))).scalars == mean_field(mlp(1)).scalars


@pytest.mark.parametrize("depth", [2, None])
def test_what_a_layer_adds_is_a_field_of_terms_of_its_own(depth: int | None) -> None:
    theory = mean_field(mlp(bias=True) if depth is None else mlp(depth, bias=True))
    found, own = read_first(theory), Function("h_own")
    last = theory.program.depth
    more = Sum(Average(g(ell + 1, t) * own(ell + 1, mu, t)) / gamma0, (ell, 1, last - 1)).doit()
    assert found.equation("f").rhs == Average(g(1, t) * h(1, mu, t)) / gamma0 + more
    assert {x.matrix for x in found.equation("h_own").terms} == {"b"}
    assert found.equations[:-1] == theory.equations


@pytest.mark.parametrize("option", [{"tied": False}, {"activation": "tanh"}])
def test_an_overlap_that_changes_by_more_than_terms_of_fields_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(
        NotApplicable, match=r"is not found as a sum of terms|must contain exactly one average"
    ):
        read_first(mean_field(mlp(**option)))


@pytest.mark.parametrize("program", [isotropic, perceptron])
def test_other_programs_are_refused(program: Any) -> None:
    with pytest.raises(
        NotApplicable, match="must contain exactly one average, and this average must be of a product of two"
    ):
        read_first(mean_field(program()))
