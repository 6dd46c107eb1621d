"""The scaling laws of linear2025: the chain of printed steps (112) to (116), and the theory's laws.

The evidence must fail if the paper had printed the theory's laws.
"""

import numpy as np
import pytest
import sympy
from sympy import Expr, Function, Integral, sympify

from derive.program import gamma0, s, t
from derive.reduce.data import absorb_factors, mode_sums
from tests.derive.once import mean_field, structured
from tests.ledger.claims import claimed
from tests.ledger.claims.linear2025.notation import C_g, k, lamda
from tests.ledger.claims.linear2025.scaling import beta, chi
from tests.ledger.evidence import scaling_exponents, scaling_networks
from tests.ledger.test_linear2025_evidence import repaired

h0 = Function("h0")


def test_a_drift_that_halves_from_step_to_step_is_followed_to_its_end() -> None:
    slopes = 2 - 0.5 ** np.arange(3)
    found = scaling_exponents.Slope.of(np.arange(4.0), np.concatenate([[0], np.cumsum(slopes)]))
    assert (found.last, found.limit, found.error) == pytest.approx((1.75, 2.0, 0.125))


@pytest.mark.slow
def test_the_exponents_of_one_hidden_layer_and_not_of_two_are_printed() -> None:
    found = scaling_exponents.exponents()
    assert found.passed, found.summary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "name", "right"),
    [
        ("116", "hard", 3 * beta / (1 + 2 * beta)),
        ("115", "chi", 3 / (1 + 2 * beta)),
        ("114 text", "power", 2 - 2 * beta * chi),
    ],
)
def test_what_two_hidden_layers_have_is_not_contradicted(
    monkeypatch: pytest.MonkeyPatch, number: str, name: str, right: object
) -> None:
    repaired(monkeypatch, scaling_exponents, number, **{name: right})
    found = scaling_exponents.exponents()
    assert not found.passed
    assert "L = 2" in found.summary.split("): ")[0]
    assert "L = 1" in found.summary.split("): ")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "label"),
    [
        (1 + gamma0 ** (2 / (1 + beta)) * t ** (chi - 1), "gamma0 = 1: power of gamma0"),
        (1 + gamma0**2 * t ** (1 - beta), "gamma0 << 1: power of t"),
    ],
)
def test_with_the_powers_of_113_that_go_together(
    monkeypatch: pytest.MonkeyPatch, right: object, label: str
) -> None:
    assert scaling_exponents.kernels().passed
    repaired(monkeypatch, scaling_exponents, "113", K=right)
    assert label in scaling_exponents.kernels().summary


@pytest.mark.slow
def test_another_kernel_does_not_have_the_loss_of_112(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scaling_exponents.single_modes().passed
    repaired(monkeypatch, scaling_exponents, "112", K=C_g(1, t, t) ** 2)
    assert not scaling_exponents.single_modes().passed


@pytest.mark.slow
def test_networks_reject_the_theory_of_the_other_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = scaling_networks.solved
    monkeypatch.setattr(scaling_networks, "solved", lambda depth, *x: solved(3 - depth, *x))
    monkeypatch.setattr(scaling_networks, "NETWORKS", 4)
    found = scaling_networks.two_layers()
    assert "z of the loss, theory" in found.summary


# -- (112) to (116) as printed -------------------------------------------------------------------------------


def claim(number: str, name: str) -> Expr:
    return sympify(claimed("linear2025", number)[name])


def test_112_has_the_derived_memory_of_the_error_at_equal_times() -> None:
    theory = mode_sums(absorb_factors(mean_field(structured(data="population", rule="flow")), "r0"))
    memory = [x.function.coeff(h0(k, s)) for x in theory.equation("xi").rhs.atoms(Integral)]
    assert sympy.expand(sum(memory).subs(s, t) - claim("112", "K")) == 0


def test_114_solves_112_with_113_but_for_a_constant() -> None:
    rate = sympy.diff(sympy.log(claim("114", "v")), t) / -lamda(k)
    growth, ansatz = sympy.simplify(rate - 1), claim("113", "K") - 1
    assert sympy.simplify(growth / ansatz - chi) == 0


def test_115_and_116_follow_from_the_growth_after_114() -> None:
    (found,) = sympy.solve(claim("114 text", "power") - (chi - 1), chi)
    assert sympy.simplify(found - claim("115", "chi")) == 0
    assert sympy.simplify(claim("116", "hard") - beta * claim("115", "chi")) == 0
    assert claim("116", "hard") == claim("21", "hard")
    assert claim("116", "easy") == claim("21", "easy") == beta
