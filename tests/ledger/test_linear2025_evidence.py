"""Tests of the evidence against linear2025: it must fail if the paper had printed the derived equations."""

import pytest
from sympy import Function, Rational, Sum, sympify

from derive.program import ell, gamma0, s, t
from tests.ledger.claims import claimed
from tests.ledger.evidence import (
    first_step,
    isotropic,
    isotropic_action,
    isotropic_average,
    isotropic_families,
    isotropic_network,
    isotropic_rates,
    isotropic_responses,
    isotropic_theory,
    structured,
)


def repaired(monkeypatch: pytest.MonkeyPatch, module: object, number: str, **changes: object) -> None:
    """Let ``module`` read other claims in the place of the printed ones."""
    monkeypatch.setattr(
        module, "claimed", lambda *name: claimed(*name) | (changes if name[1] == number else {})
    )


@pytest.mark.slow
def test_with_the_sign_of_69_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = sympify(claimed("linear2025", "69")["v"])
    right = printed.xreplace({x: -x for x in printed.atoms(Sum)})
    repaired(monkeypatch, isotropic, "69", v=right)
    found = isotropic.centred()
    assert not found.passed
    assert "(69) as printed" in found.summary


@pytest.mark.slow
def test_with_gamma0_of_65_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = sympify(claimed("linear2025", "65")["v"])
    C_g = Function("C_g")
    repaired(monkeypatch, isotropic, "65", v=printed.replace(C_g, lambda *x: C_g(*x) / gamma0))
    assert not isotropic.rate_of_the_error_vector().passed


@pytest.mark.slow
def test_with_the_sum_of_14_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    response = Function("R_h0r0")(t, t) * Function("g")(1, t)
    printed = sympify(claimed("linear2025", "14")["h1"])
    factor = printed.atoms(Sum).pop().function.expand().coeff(Function("R_h0r0")(t, s) * Function("g")(1, s))
    repaired(monkeypatch, isotropic, "14", h1=printed + factor * response)
    assert not isotropic.equal_time_responses().passed


@pytest.mark.slow
def test_with_the_covariance_of_98_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    delta = next(
        u.covariance for u in isotropic_theory.derived("online").sources if "u_Delta" in str(u.symbol)
    )
    repaired(monkeypatch, isotropic, "98", cov_u_Delta=delta)
    assert not isotropic.fresh_batches().passed


@pytest.mark.slow
def test_with_the_last_line_of_58_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = sympify(claimed("linear2025", "58")["Chat_g"])
    right = printed.replace(Function("C_h"), Function("C_g"))
    repaired(monkeypatch, isotropic_action, "58", Chat_g=right)
    found = isotropic_action.conjugate_slopes()
    assert not found.passed
    assert "last line of (58) as printed" in found.summary


def test_with_the_sign_of_121_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    repaired(monkeypatch, isotropic_network, "121", W=-sympify(claimed("linear2025", "121")["W"]))
    assert not isotropic_network.several_outputs().passed


def test_with_the_times_of_35_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = sympify(claimed("linear2025", "35")["exponent"])
    Dhat, Delta, dot = Function("Dhat"), Function("Delta"), Function("dot")
    right = printed.replace(lambda x: x == dot(Dhat(t), Delta(t)), lambda x: dot(Dhat(t), Delta(s)))
    repaired(monkeypatch, isotropic_average, "35", exponent=right)
    found = isotropic_average.data_average()
    assert not found.passed
    assert "(35) as printed" in found.summary


@pytest.mark.parametrize(
    ("number", "evidence"),
    [("42", "first_matrix_average"), ("43", "first_matrix_average"), ("47", "hidden_average")],
)
def test_averages_twice_as_large_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, number: str, evidence: str
) -> None:
    twice = 2 * sympify(claimed("linear2025", number)["exponent"])
    repaired(monkeypatch, isotropic_average, number, exponent=twice)
    assert not getattr(isotropic_average, evidence)().passed


def test_another_factor_in_the_response_of_the_errors_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = 2 * sympify(claimed("linear2025", "15")["R_Delta"])
    repaired(monkeypatch, isotropic_responses, "15", R_Delta=twice)
    monkeypatch.setattr(isotropic_responses, "NETWORKS", 4)
    isotropic_responses.measured.cache_clear()
    assert "(15) minus the derived" in isotropic_responses.full_batch().summary
    isotropic_responses.measured.cache_clear()


@pytest.mark.evidence
def test_responses_that_are_not_derived_are_rejected_by_networks() -> None:
    kind, run = "full-batch", isotropic_theory.solved(isotropic_theory.derived())
    wrong = {"R_hr1": -isotropic_responses.theory_of(run, "R_hr1")}
    assert not any(x.holds for x in isotropic_responses.compared(kind, wrong))


@pytest.mark.slow
def test_another_power_of_the_width_in_ntk_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    built = claimed("linear2025", "14 text")
    repaired(monkeypatch, isotropic_families, "14 text", ntk=built["mean field"])
    monkeypatch.setattr(isotropic_families, "NETWORKS", 8)
    assert "mean field at the printed" in isotropic_families.parametrisations().summary.split("): ")[0]


@pytest.mark.slow
def test_rates_that_grow_with_the_width_are_not_shown_in_the_lazy_regime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repaired(monkeypatch, isotropic_rates, "70 text", ntk=Rational(1, 2))
    assert not isotropic_rates.lazy_rates().passed


def test_a_theory_refuses_claims_that_it_has_no_equation_for() -> None:
    with pytest.raises(KeyError, match="nothing"):
        isotropic_theory.printed(isotropic_theory.derived(), {"nothing": ell})


@pytest.mark.slow
def test_with_the_layers_after_111_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    built = claimed("linear2025", "111 text")
    R_hr, g = Function("R_hr"), Function("g")
    right = sympify(built["h"]) + R_hr(ell - 1, t, t) * g(ell, t)
    repaired(monkeypatch, structured, "111 text", h=right)
    found = structured.modes()
    assert not found.passed
    assert "h^l after (111)" in found.summary


@pytest.mark.slow
def test_with_the_growth_of_104_and_the_rate_of_105_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_step, "SIZES", {50: 100, 100: 50})
    derived = first_step.closed_form()
    repaired(monkeypatch, first_step, "104", growth=derived.growth_factor)
    assert "networks minus (104)" in first_step.growth().summary.split("): ")[0]
    repaired(monkeypatch, first_step, "105", rate=derived.critical_learning_rate)
    assert not first_step.critical_rate().passed
    first_step.networks.cache_clear()


def test_with_the_gain_of_103_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = sympify(claimed("linear2025", "103")["gain of one layer"])
    repaired(monkeypatch, first_step, "103", **{"gain of one layer": printed / 4})
    assert "gain of one layer" in first_step.gradients().summary
    assert not first_step.gradients().passed


@pytest.mark.evidence
def test_networks_take_the_first_step_of_the_closed_form() -> None:
    found = first_step.growth()
    assert found.passed, found.summary
    assert first_step.gradients().passed
