"""Nonlinear theories against networks: kernels, responses, distributions; planted errors must be seen."""

from dataclasses import replace

import numpy as np
import pytest
from sympy import Rational
from sympy.core.function import AppliedUndef

from numerics.simulation import Trainer
from tests.derive.once import mean_field, mlp
from tests.numerics.theories.__main__ import main, network_line
from tests.numerics.theories.nonlinear import CASES, KERNEL, STRENGTHS, TARGETS, Nonlinear
from tests.numerics.theories.probes import probed

SMALL = {"steps": 6, "widths": (48, 96), "seeds": (60, 40), "samples": 512, "replicas": 8}


@pytest.mark.slow
def test_a_small_case_agrees():
    found = Nonlinear("tanh", 2, 3.0).compare(**SMALL)
    assert found.agrees, network_line("tanh", found)
    assert found.entries == 170


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_theory_is_that_of_the_networks(case):
    found = case.compare()
    assert found.agrees, network_line(case.name, found)


def without(name):
    """Return a change that removes the terms of one response from a theory."""

    def kept(term):
        return term.kind != "response" or name not in {str(x.func) for x in term.expr.atoms(AppliedUndef)}

    def change(theory):
        return replace(
            theory,
            equations=tuple(replace(e, terms=tuple(filter(kept, e.terms))) for e in theory.equations),
        )

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "name"), [("tanh", "A"), pytest.param("relu", "B", marks=pytest.mark.slow)]
)
def test_a_theory_without_a_response_is_rejected(activation, name):
    found = Nonlinear(activation, 2, 3.0).compare(change=without(name), **SMALL)
    assert found.worst > 1.2 * found.bound
    assert "**disagree**" in network_line("x", found)


@pytest.mark.slow
def test_a_response_of_the_wrong_size_is_rejected():
    """Only the compared part of A is changed: the solved theory is the correct one."""

    def change(theory):
        spoilt = [
            replace(q, definition=2 * q.definition) if q.name == "A" else q for q in theory.order_parameters
        ]
        halved = [
            replace(
                e,
                terms=tuple(x.times(Rational(1, 2)) if not kept(x) else x for x in e.terms),
            )
            for e in theory.equations
        ]
        return replace(theory, order_parameters=tuple(spoilt), equations=tuple(halved))

    def kept(term):
        return term.kind != "response" or "A" not in {str(x.func) for x in term.expr.atoms(AppliedUndef)}

    found = Nonlinear("tanh", 2, 3.0).compare(change=change, **SMALL)
    assert not found.agrees
    assert found.place.startswith("A^1")


def test_a_push_moves_what_it_pushes_at_once():
    """At equal time B is known without training: the slope's slope times z, unit by unit."""
    program = mlp(2, "tanh")
    theory = mean_field(program)
    pushed = probed(program, theory)
    values = {"eta": 0.0, "gamma0": 2.0, "P": 2}
    networks = Trainer.of(
        pushed.program,
        width=1000,
        steps=1,
        values=values,
        data={"K_x": KERNEL, "y": TARGETS, **pushed.data},
        wanted=dict(pushed.wanted),
    )
    found = pushed.measured(networks, np.random.SeedSequence(0), 1e-3, values)
    # z is independent of h at the start, so that <phi''(h) z> is zero on the diagonal, and the rest is noise
    assert np.abs(found["B"]).max() < 0.2
    # without training nothing answers what is pushed backwards
    assert np.abs(found["A"]).max() < 1e-9
    assert not pushed.strength.any()


def test_the_cases_are_those_asked_for():
    assert {(c.activation, c.depth, c.gamma0) for c in CASES} == {
        (a, d, g) for a in ("tanh", "erf", "relu", "softplus") for d in (1, 2, 3) for g in STRENGTHS
    }
    assert max(STRENGTHS) >= 3


def test_an_argument_that_is_not_known_is_refused(capsys):
    assert main(["nonsense"]) == 2
    assert "nonlinear" in capsys.readouterr().err
