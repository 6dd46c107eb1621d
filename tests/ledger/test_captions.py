"""What the evidence on captions and on algorithm 1 would say to something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ledger.claims import claimed
from tests.ledger.evidence import algorithm, captions


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
