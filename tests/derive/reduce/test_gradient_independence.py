"""Appendix O: independent backward matrices leave no response function, by the rule and not by assumption."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sympy import Function, tanh

from derive.program.parts import gaussian
from derive.reduce.independence import both_ways, gradient_independence, independent_backward
from tests.derive.once import mean_field, mlp


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("activation", ["linear", tanh])
def test_reproduces_the_untied_network(depth, activation):
    tied, untied = mlp(depth, activation), mlp(depth, activation, tied=False)
    names = {"W": "V"} if both_ways(tied) else {}
    made = independent_backward(tied, names)
    if names:
        assert made == untied
    first, second = mean_field(made), mean_field(untied)
    assert first.equations == second.equations
    assert first.sources == second.sources
    assert first.order_parameters == second.order_parameters
    assert first.observables == second.observables


@pytest.mark.parametrize("program", [mlp(), mlp(3, Function("phi"), rule="flow"), mlp(2, rule="multistep")])
def test_responses_vanish_and_sources_stay(program):
    """(O.1): chi = u and xi = r up to their memories; the covariances are Phi^ell and G^{ell+1} as before."""
    found = gradient_independence(mean_field(program))
    assert {q.name for q in found.vanished} == {"A", "B"}
    assert {x.kind for _, x in found.lost} == {"response"}
    assert found.gained == ()
    assert found.gaussian
    assert found.same_sources
    assert "A(" in str(found)


def test_one_hidden_layer_has_nothing_to_lose():
    found = gradient_independence(mean_field(mlp(1)))
    assert both_ways(mlp(1)) == ()
    assert found.lost == found.vanished == ()
    assert independent_backward(mlp(1)) == mlp(1)


def test_untrained_matrices_are_copied_too():
    program = mlp(3)
    frozen = replace(program, matrices=tuple(gaussian(m) if m.name == "W" else m for m in program.matrices))
    made = independent_backward(frozen)
    assert [gaussian(m).name for m in made.matrices] == ["W0", "W", "W_back"]
    assert not mean_field(made).responses()
    assert mean_field(frozen).responses()


def test_unknown_matrices_are_named():
    with pytest.raises(KeyError, match="no matrix W0 that is used both"):
        independent_backward(mlp(3), {"W0": "V"})
