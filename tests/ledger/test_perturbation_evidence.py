"""The evidence for (P.6)-(P.26) sees planted errors, and does not support wrong verdicts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from derive.calculus.symbols import gamma0
from tests.ledger.claims.selfconsistent2023 import perturbation as claim
from tests.ledger.evidence import figure_4, perturbation, perturbation_kernels, perturbation_kinks
from tests.ledger.evidence.perturbation_reading import Case, Layer, x

SMALL = Case(x + x**2 / 4 + x**3 / 12, 2, ((Fraction(1, 2),),), (Fraction(1),), steps=2)


@pytest.fixture
def small(monkeypatch):
    """Replace the cases of the evidence by a network that is solved at once."""
    monkeypatch.setattr(perturbation_kernels, "CASES", {"small": SMALL})
    monkeypatch.setattr(perturbation_kernels, "ONE", SMALL)
    monkeypatch.setattr(perturbation, "ONE", SMALL)
    monkeypatch.setattr(perturbation, "TWO", SMALL)
    perturbation_kernels._gap.cache_clear()
    perturbation_kernels._layer.cache_clear()
    yield
    perturbation_kernels._gap.cache_clear()
    perturbation_kernels._layer.cache_clear()


def claims(monkeypatch, number, form):
    """Replace the printed form of ``number``."""
    right = perturbation.printed

    def tampered(n):
        return {**right(n), **form(right(n))} if n == number else right(n)

    for module in (perturbation, perturbation_kernels):
        monkeypatch.setattr(module, "printed", tampered)


def test_half_a_term_of_phi_is_seen(monkeypatch, small):
    move = claim.C(0, claim.g_n(0))
    half = gamma0**2 * claim.mean(claim.slope() * move, claim.slope() * move) / 2
    assert not any("(P.22)" in name and v for name, v, _ in _forward().numbers)
    claims(monkeypatch, "P.22", lambda c: {"Phi": c["Phi"] - half})
    found = _forward()
    assert not found.passed
    assert "(P.22)" in found.summary


def _forward():
    """Return the evidence on forward kernels without layer 3, which the small network lacks."""
    kernels = perturbation_kernels
    findings = []
    for number in ("P.15", "P.22"):
        e = kernels.printed(number)["Phi"]
        gap = max(kernels._gaps(SMALL, e, "Phi"))
        findings.append(kernels.agrees(f"({number})", gap, kernels.EXACT))
    return kernels.conclude("small", "ok", *findings)


def test_a_corrected_formula_is_no_evidence_against_the_paper(monkeypatch, small):
    assert perturbation_kernels.tangent_kernel().passed
    half = claim.D(0, claim.slope(2) * claim.h_n(1) ** 2) / 2
    assert perturbation.expansion_of_z().passed
    claims(monkeypatch, "P.8", lambda c: {"z": c["z"] - gamma0**3 * half})
    assert not perturbation.expansion_of_z().passed


def test_a_forgotten_response_is_seen(monkeypatch, small):
    """Operators without the order zero of A and B."""
    assert perturbation.first_orders().passed
    right = Layer._operator

    def wrong(self, field, driven):
        found = right(self, field, driven)
        return [m / 2 for m in found]

    monkeypatch.setattr(Layer, "_operator", wrong)
    assert not perturbation.single_site_equations().passed


def test_the_hessian_of_the_layer_below_is_seen(monkeypatch, small):
    right = Layer.hessian
    monkeypatch.setattr(Layer, "hessian", lambda self, *a: right(self, *a) / 2)
    assert not _forward().passed


def test_a_smooth_activation_has_no_linear_term(monkeypatch):
    """Without the jump of relu no term is linear in gamma0, and the evidence reports this."""
    monkeypatch.setattr(perturbation_kinks, "UNITS", 20_000)

    def linear(gamma):
        u, r = perturbation_kinks.directions()
        h, z = u + 0.6 * gamma * r, r + 0.6 * gamma * u
        size = {"Phi": float(np.mean(h**2)) / 2, "G": float(np.mean(z**2)) / 2}
        return {**size, "K": size["Phi"] + size["G"], "loss": perturbation_kinks._lazy_loss()}

    monkeypatch.setattr(perturbation_kinks, "trained", linear)
    found = perturbation_kinks.linear_term_of_relu()
    assert not found.passed
    assert "stated to vanish" in found.summary


@pytest.mark.evidence
def test_figure_4_with_the_printed_expansion_in_place_of_ours(monkeypatch):
    monkeypatch.setattr(figure_4, "COUNTS", (4, 4))
    monkeypatch.setattr(figure_4, "truncated", lambda task, _, g, __: figure_4.printed(task, g))
    found = figure_4.approximations()
    assert not found.passed
    assert "order 2: exponent" in found.summary


def test_printed_kernels_are_right_for_one_hidden_layer():
    """L = 1: nothing is neglected, and the printed kernels miss gamma0^4 only."""
    kernel = np.array([[1.0, 0.3], [0.3, 0.8]])
    task = figure_4.Task(kernel, np.array([1.0, -0.5]), 1, 0.1, 8)
    gaps = [np.abs(figure_4.printed(task, g).H - figure_4.full(task, g).H).max() for g in (0.1, 0.2)]
    assert np.log2(gaps[1] / gaps[0]) == pytest.approx(4.0, abs=0.3)
    ansatz = figure_4.ansatz(task, 0.7).H
    cut = np.abs(ansatz - figure_4.full(task, 0.7).H).max()
    assert cut < 0.05  # A = B = 0 is not an approximation here; (4) in steps is
