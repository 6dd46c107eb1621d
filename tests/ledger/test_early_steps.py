"""What the evidence on early steps says depends on the networks: planted ones are seen."""

import pytest

from tests.ledger.evidence import early_steps
from tests.ledger.evidence.base import Evidence


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
