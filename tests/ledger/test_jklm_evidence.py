"""The evidence for appendices E.2 and J to M fails if the paper printed what is derived."""

from __future__ import annotations

import pytest
from sympy import Expr, sympify

from derive.program import gamma0
from tests.ledger.claims.selfconsistent2023 import discrete as discrete_claims
from tests.ledger.claims.selfconsistent2023 import drift as drift_claims
from tests.ledger.claims.selfconsistent2023 import equilibrium as equilibrium_claims
from tests.ledger.claims.selfconsistent2023 import langevin as langevin_claims
from tests.ledger.evidence import discrete, drift, equilibrium, langevin

# -- a paper without the slip --------------------------------------------------------------------------------


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
    assert "factor 1/2 minus exact" in found.summary


def test_average_over_the_readout_with_another_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    log: Expr = 2 * sympify(discrete_claims.m3()["log"])
    monkeypatch.setattr(discrete_claims, "m3", lambda: {"log": log})
    found = discrete.readout_average()
    assert not found.passed
    assert "(M.3) minus quadrature" in found.summary
