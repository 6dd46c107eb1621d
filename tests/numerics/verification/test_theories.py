"""The derived theories against finite networks, which must reject a theory with a planted error."""

from dataclasses import replace

import numpy as np
import pytest
from sympy import Symbol

from numerics.solver.direct import evaluate
from numerics.stats import bound
from numerics.verification.report import LEVEL
from tests.chance import excess
from tests.derive.once import mean_field, mlp
from tests.numerics.theories.__main__ import line
from tests.numerics.theories.cases import CASES
from tests.numerics.theories.programs import compare_with_networks, solved

QUICK = ("linear", "two layers", "isotropic, residual")
BY_NAME = {c.name: c for c in CASES}


SMALL = {"widths": (60, 120), "seeds": (160, 80), "samples": 2**11}


@pytest.mark.parametrize("name", QUICK)
def test_the_theory_is_that_of_small_networks(name):
    found = BY_NAME[name].run(**SMALL)
    assert found.agrees, line(BY_NAME[name], found)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_theory_is_that_of_the_networks(case):
    found = case.run()
    assert found.agrees, line(case, found)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("linear", "march"),
        ("isotropic, online", "march"),
        ("linear residual, one sample a step", "direct"),
        ("perceptron", "direct"),
        ("two layers", "particles"),
    ],
)
def test_what_is_linear_is_marched(name, method):
    case = BY_NAME[name]
    solution = solved(
        mean_field(case.program()), steps=2, values=case.values, data=case.data, samples=2**6, seed=0
    )
    assert solution.method == method


@pytest.mark.slow
def test_the_march_and_the_expressions_give_the_same_numbers_in_the_same_places():
    """Sums of a few dozen products of numbers of order one; unequal indices show a transposed axis."""
    lam, beta = (Symbol(x, positive=True) for x in ("lam", "beta"))
    program = mlp(2, outputs=2, bias=True, branch=beta, weight_decay=lam)
    case = BY_NAME["linear"]
    values = {**case.values, "lam": 0.3, "beta": 0.6}
    data = {"K_x": case.data["K_x"], "y": np.array([[1.0, 0.5], [-0.6, 0.3]])}
    theory = mean_field(program)
    marched = solved(theory, steps=4, values=values, data=data, samples=2**6, seed=0)
    read = evaluate(theory, steps=4, values=values, data=data)
    assert marched.method == "march"
    assert read.method == "linear"
    assert set(marched.values) <= set(read.values)
    for place, value in marched.values.items():
        assert value.shape == read.values[place].shape
        assert np.abs(value - read.values[place]).max() < 1e-13, place


def without(kind: str):
    """Return a change that removes the terms of one kind from a theory."""

    def change(theory):
        def drop(e):
            return replace(e, terms=tuple(x for x in e.terms if x.kind != kind))

        return replace(theory, equations=tuple(map(drop, theory.equations)))

    return change


@pytest.mark.parametrize(("name", "kind"), [("linear", "memory"), ("isotropic, residual", "response")])
def test_a_theory_that_lacks_a_term_is_rejected(name, kind):
    found = BY_NAME[name].run(change=without(kind), **SMALL)
    assert not found.agrees
    assert found.worst > 2 * found.bound


@pytest.mark.parametrize("name", ["linear", pytest.param("isotropic, online", marks=pytest.mark.slow)])
def test_a_wrong_factor_is_rejected(name):
    """A fifth more on one covariance is seen."""

    def change(theory):
        first, *rest = theory.sources
        return replace(theory, sources=(replace(first, covariance=first.covariance * 1.2), *rest))

    assert not BY_NAME[name].run(change=change, **{**SMALL, "seeds": (640, 320)}).agrees


@pytest.mark.slow
def test_the_bound_is_what_chance_allows():
    """Worst of n numbers in units of standard errors from as many networks: beyond it once in a thousand."""
    found = BY_NAME["two layers"].run(widths=(40, 80), seeds=(40, 20), samples=2**10)
    rng = np.random.default_rng(0)
    draws = rng.standard_t(19, (4000, found.entries))  # no fewer degrees of freedom than the smaller group
    beyond = np.mean(np.abs(draws).max(axis=1) > bound(found.entries, LEVEL, 19))
    assert excess((beyond - 1e-3) / np.sqrt(1e-3 / 4000)) < 1
    assert bound(found.entries, LEVEL) <= found.bound <= bound(found.entries, LEVEL, 19)


def test_a_missing_number_is_named():
    case = BY_NAME["linear"]
    with pytest.raises(ValueError, match="gamma0"):
        compare_with_networks(case.program(), {"eta": 0.1, "P": 2}, case.data)
