"""Losses of random data: the Gaussian part of an error is that of a sample that no update has met."""

from __future__ import annotations

import pytest
from sympy import Function, Symbol

from derive.errors import NotApplicable
from derive.program import isotropic, mlp, t
from tests.derive.once import mean_field

C_v, C_Delta, sigma = Function("C_v"), Function("C_Delta"), Symbol("sigma", positive=True)


def test_training_samples_have_met_updates_and_fresh_ones_have_not() -> None:
    found = mean_field(isotropic(noise=True)).losses()
    assert dict(found) == {"train_loss": C_Delta(t, t), "test_loss": sigma**2 + C_v(t, t)}


def test_of_fresh_batches_both_are_the_same() -> None:
    fresh = sigma**2 + C_v(t, t)
    assert dict(mean_field(isotropic(noise=True, data="online")).losses()) == {
        "train_loss": fresh,
        "test_loss": fresh,
    }


def test_each_output_has_its_own() -> None:
    c = Symbol("c", integer=True, positive=True)
    found = mean_field(isotropic(noise=True, outputs=2)).losses()["test_loss"]
    assert found == sigma**2 + C_v(c, c, t, t)


def test_given_samples_are_refused() -> None:
    with pytest.raises(NotApplicable, match="its samples are given"):
        mean_field(mlp(2)).losses()
