"""Tests that evidence fails for a paper with the derived equations, and for networks with an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Expr, sympify

from derive.program import gamma0
from tests.ledger.claims import claimed
from tests.ledger.claims.selfconsistent2023 import discrete as discrete_claims
from tests.ledger.claims.selfconsistent2023 import drift as drift_claims
from tests.ledger.claims.selfconsistent2023 import equilibrium as equilibrium_claims
from tests.ledger.claims.selfconsistent2023 import langevin as langevin_claims
from tests.ledger.evidence import algorithm, captions, discrete, drift, early_steps, equilibrium, langevin
from tests.ledger.evidence.base import Evidence

# -- selfconsistent2023, E.2, K and M, without the slip ------------------------------------------------------


@pytest.mark.slow
def test_drift_equation_with_its_gamma0(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = sympify(drift_claims.e2()["dp"])
    bare = claim.expand().coeff(gamma0, 0)
    monkeypatch.setattr(drift, "e2", lambda: {"dp": claim + (gamma0 - 1) * bare})
    found = drift.density_equation()
    assert not found.passed
    assert "rate of the mass, printed" in found.summary


@pytest.mark.evidence
def test_output_rate_with_its_gamma0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langevin_claims, "k3", lambda k3=langevin_claims.k3: {"df": k3()["df"] / gamma0})
    found = langevin.output_by_ito()
    assert not found.passed
    assert "theta.grad f minus printed" in found.summary


@pytest.mark.evidence
def test_conjugate_kernel_without_its_half(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = 2 * sympify(equilibrium_claims.k20_text()["Phihat_last"])
    monkeypatch.setattr(equilibrium_claims, "k20_text", lambda: {"Phihat_last": whole})
    found = equilibrium.saddle_point()
    assert not found.passed
    assert "(K.20 text): output, L = 1, as printed" in found.summary


@pytest.mark.slow
def test_average_over_the_readout_with_another_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    log: Expr = 2 * sympify(discrete_claims.m3()["log"])
    monkeypatch.setattr(discrete_claims, "m3", lambda: {"log": log})
    found = discrete.readout_average()
    assert not found.passed
    assert "(M.3) minus quadrature" in found.summary


# -- linear2025, early steps: other networks -----------------------------------------------------------------


def planted(monkeypatch: pytest.MonkeyPatch, value: float, error: float = 0.01) -> Evidence:
    monkeypatch.setattr(early_steps, "networks", lambda *_: (value, error))
    return early_steps.not_centred()


@pytest.mark.slow
def test_networks_that_do_not_feel_gamma0_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planted(monkeypatch, 0.815)  # the centred form
    assert not found.passed
    assert "networks minus closed form" in found.summary


@pytest.mark.evidence
def test_networks_that_follow_the_recursion_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    e = early_steps._experiment(early_steps.RATE, early_steps.NARROW, early_steps.MOST)
    steps = early_steps.early_steps(e, early_steps.STEPS)
    assert steps.memory_free is not None
    monkeypatch.setattr(early_steps, "networks", lambda *_: (steps.C_v[-1], 0.02))
    assert early_steps.memory().passed
    monkeypatch.setattr(early_steps, "networks", lambda *_: (steps.memory_free[-1], 0.02))
    assert "networks minus recursion" in early_steps.memory().summary


def test_networks_whose_loss_moves_the_wrong_way_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_steps, "networks", lambda *_: (0.78, 0.02))
    assert "growth at 1.4" in early_steps.separation().summary


# -- captions and algorithm 1 --------------------------------------------------------------------------------


def test_the_threshold_of_a_known_maximum() -> None:
    """One sample: |y| sqrt(K).  Orthogonal samples of one sign: the length of y.  Of two: the larger one."""
    one = captions.threshold(np.array([[1.2, -0.5]]), np.array([-0.8]))
    assert one == pytest.approx(captions.DECAY / (0.8 * np.sqrt((1.2**2 + 0.5**2) / 2)))
    axes = np.sqrt(2) * np.eye(2)
    assert captions.threshold(axes, np.array([0.6, 0.8])) == pytest.approx(captions.DECAY)
    assert captions.threshold(axes, np.array([0.6, -0.8])) == pytest.approx(captions.DECAY / 0.8)


@pytest.mark.evidence
def test_weight_decay_that_leaves_a_wrong_threshold_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captions, "threshold", lambda *_: 3.0)
    found = captions.weight_decay_threshold()
    assert not found.passed
    assert "gamma0 = 0.5 gamma_c: last output" in found.summary


@pytest.mark.evidence
def test_the_corrected_algorithm_is_no_evidence_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = claimed("selfconsistent2023", "14")
    monkeypatch.setattr(algorithm, "claimed", lambda *_: right)
    found = algorithm.responses_as_printed()
    assert not found.passed
    numbers: dict[str, Any] = {label: value for label, value, _ in found.numbers}
    assert numbers["A and B as printed: largest z"] < 4.5
