"""Solved experiments against simulated ones, which must reject a solution with a planted error."""

import pytest

from tests.numerics.theories.__main__ import network_line
from tests.numerics.theories.experiments import EXPERIMENTS, compare_experiment

QUICK = ("isotropic, online, unequal widths, centred",)


@pytest.mark.parametrize(
    ("name", "smallest"),
    [*((x, 32) for x in QUICK), *(pytest.param(x, 64, marks=pytest.mark.slow) for x in EXPERIMENTS)],
)
def test_a_solution_is_that_of_the_networks(name, smallest):
    found = compare_experiment(name, smallest=smallest)
    assert found.agrees, network_line(name, found)


@pytest.mark.parametrize(
    ("name", "variable", "factor"),
    [
        pytest.param("biases", "G", 1.2, marks=pytest.mark.slow),
        ("isotropic, population", "C_g", 1.4),
        pytest.param("power law, population", "C_g", 1.4, marks=pytest.mark.slow),
    ],
)
def test_a_wrong_solution_is_rejected(name, variable, factor):
    found = compare_experiment(
        name, smallest=32, change=lambda theory: theory.assign({variable: factor * theory[variable]})
    )
    assert not found.agrees
    assert "**disagree**" in network_line(name, found)


def test_every_kind_of_data_and_rule_is_among_them():
    made = [make() for _, make in EXPERIMENTS.values()]
    kinds = {(e.spec.kind, e.training.rule) for e in made}
    assert kinds >= {(k, r) for k in ("fixed", "isotropic", "power-law") for r in ("gd", "flow")}
    assert {("isotropic", "sgd"), ("power-law", "sgd")} <= kinds
    assert {e.spec.centered for e in made if e.spec.kind == "isotropic"} == {True, False}
    assert {e.network.outputs for e in made} == {1, 2}
