"""Laws of modes are refused for theories of another kind of data or training than they describe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sympy import S, Symbol, exp

from derive.errors import NotApplicable
from derive.scale.bottlenecks import resources
from derive.scale.finite_batch import batch_noise
from derive.scale.lazy_responses import label_variance, source_of
from derive.scale.mellin import mode_sum
from derive.scale.modes import lazy_modes
from derive.scale.power_laws import data_law, fixed_data
from derive.scale.rich import rank_one
from derive.scale.schedules import best_schedule
from tests.derive.once import mean_field, structured
from tests.derive.scale.derived import batches, data, modes, population, reduced

y, x = Symbol("y", positive=True), Symbol("x", positive=True)


@pytest.mark.parametrize("law", [lazy_modes, rank_one])
@pytest.mark.parametrize(("data", "rule"), [("full-batch", "flow"), ("online", "gd")])
def test_laws_of_the_population_loss_refuse_samples(law: Callable[..., Any], data: str, rule: str) -> None:
    """The error of a mode is that without the noise of samples."""
    with pytest.raises(NotApplicable, match="trained on samples: derive it with data='population'"):
        law(mean_field(structured(data=data, rule=rule)))


def test_fixed_samples_need_a_flow() -> None:
    with pytest.raises(NotApplicable, match="training by a flow"):
        fixed_data(mean_field(structured(data="full-batch", noise=True)))


@pytest.mark.parametrize(
    ("law", "options"),
    [
        (lazy_modes, {"data": "population", "rule": "flow"}),
        (rank_one, {"data": "population", "rule": "flow"}),
        (fixed_data, {"data": "full-batch", "noise": True, "rule": "flow"}),
        (batch_noise, {"noise": True}),
    ],
)
def test_laws_need_a_symbolic_depth(law: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(NotApplicable, match="depth = 2: must be the symbol L"):
        law(mean_field(structured(2, **options)))


def test_theories_without_label_noise() -> None:
    quiet = mean_field(structured(data="full-batch", rule="flow"))
    assert label_variance(quiet) == 0
    with pytest.raises(NotApplicable, match=r"needs eps, which is the noise of labels.*noise=True"):
        source_of(quiet, "eps")
    with pytest.raises(NotApplicable, match=r"no label noise.*noise=True"):
        best_schedule(replace(batches(), label=S.Zero))


def test_the_variance_of_labels_is_the_square_of_sigma() -> None:
    noisy = mean_field(structured(data="full-batch", rule="flow", noise=True))
    assert label_variance(noisy) == Symbol("sigma", positive=True) ** 2


@pytest.mark.slow
def test_fixed_samples_without_label_noise() -> None:
    """Nothing but the terms of label noise is left out."""
    found = fixed_data(mean_field(structured(data="full-batch", rule="flow")))
    assert (found.label, found.label_floor, found.label_before_floor.coefficient) == (0, 0, 0)
    assert (found.signal, found.gain, found.floor) == (data().signal, data().gain, data().floor)
    basis, with_labels = (data_law(x, modes(), 1, 3, 2).conditions() for x in (found, data()))
    assert "no label noise" in basis
    assert any(x.startswith("no label noise; with label noise sigma**2") for x in with_labels)


def test_the_noise_of_batches_needs_samples() -> None:
    with pytest.raises(NotApplicable, match=r"the theory has no samples.*data='online'"):
        batch_noise(mean_field(structured(data="population")))


@pytest.mark.slow
def test_finite_sizes_need_label_noise() -> None:
    with pytest.raises(NotApplicable, match="needs eps, which is the noise of labels"):
        resources(reduced(), population(), mean_field(structured()), population("gd"))


def test_a_term_with_an_exponential_and_a_pole_is_refused() -> None:
    """It has no Mellin transform of the two forms; at x = 50 the sum was 0.052 in place of 0.012."""
    for term in (exp(-y) / (1 + y), 1 / (1 + y) * exp(-2 * y)):
        with pytest.raises(NotApplicable, match="must be a constant times"):
            mode_sum(term, y, 2, 1, x)
