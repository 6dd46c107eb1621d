"""Each kind of term of the expansion in 1/N: left out or doubled, it changes what networks are held against.

Standard errors are those of the networks of the table, extrapolated to infinite width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.fluctuations.dense import DenseFluctuations
from numerics.fluctuations.expanded_problem import lowered
from numerics.fluctuations.sampled import SampledFluctuations
from tests.chance import excess
from tests.numerics.fluctuations.altered import (
    AlteredFluctuations,
    Change,
    Effect,
    Terms,
    altered_samples,
    largest_effect,
)
from tests.numerics.fluctuations.estimates import Estimate
from tests.numerics.fluctuations.networks import Training
from tests.numerics.fluctuations.reference import EXPERIMENTS, load
from tests.numerics.fluctuations.test_acceptance import theory_of
from tests.numerics.fluctuations.theories import Observable, arrays_of, numbers_of, observables

SEEN = 5.0
"""Standard errors of networks by which each term must change a prediction."""

DEEP = "linear-3-1-gamma"
"""Three linear layers, in which every block of kappa counts."""

STREAM = "isotropic-2"
"""New data at each step: features and samples are populations, and a matrix is drawn anew at each step."""

CHANGES = [
    *(
        Change("kappa", (x, y))
        for x, y in ("HH", "HG", "HA", "HB", "Hf", "GG", "GA", "GB", "Gf", "AA", "AB", "BB", "Bf", "ff")
    ),
    *(Change("influence", (x,), hats=1) for x in ("Delta", "A", "H", "B", "G")),
    *(Change("influence", (x,), hats=2) for x in "HG"),
    Change("second influence", ("Delta", "H")),
    Change("second influence", ("Delta", "G")),
    Change("slope", ("f",)),
    Change("influence", ("B",), now=True),
    Change("curvature"),
    Change("self-action"),
]
"""All kinds of terms of deep linear networks on fixed data."""

RESPONSES = [
    *(Change("influence", (x,), hats=1) for x in ("R_gu", "R_hr", "R_h0r0", "R_Delta")),
    *(Change("influence", (x,), now=True) for x in ("R_hr", "R_h0r0", "R_Delta")),
    Change("self-action"),
]
"""Responses to weights and to data of networks that are trained online."""

WITHOUT = (Change("influence", ("A",), hats=1), Change("influence", ("B",), hats=1))


def effect(name: str, change: Change) -> Effect:
    """Return the prediction of a theory that a change alters most, after the start."""
    moments, seen = theory_of(name)
    return largest_effect(load(name), moments, AlteredFluctuations(moments.lowered, change), seen)


def test_no_kind_of_term_is_forgotten() -> None:
    found = Terms.of(theory_of(DEEP)[0]).found
    assert {*CHANGES} == {x for x in found if x.kind != "D"}
    told = {x for x in Terms.of(theory_of(STREAM)[0]).found if x.kind in ("influence", "self-action")}
    assert {*RESPONSES} == {x for x in told if not x.names or x.names[0].startswith("R")}


@pytest.mark.parametrize("factor", [0.0, 2.0])
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_terms_of_deep_networks_are_seen(change: Change, factor: float) -> None:
    assert effect(DEEP, replace(change, factor=factor)).errors > SEEN


@pytest.mark.parametrize("factor", [0.0, 2.0])
@pytest.mark.parametrize("change", RESPONSES, ids=str)
def test_responses_of_networks_trained_online_are_seen(change: Change, factor: float) -> None:
    assert effect(STREAM, replace(change, factor=factor)).errors > SEEN


NONLINEAR = [
    *(
        Change("kappa", pair)
        for pair in (
            ("Phi", "Phi"),
            ("Phi", "G"),
            ("Phi", "B"),
            ("Phi", "f"),
            ("G", "G"),
            ("G", "A"),
            ("G", "B"),
        )
    ),
    Change("kappa", ("f", "f")),
    *(Change("influence", (x,)) for x in ("Phi", "G", "A", "B", "Delta", "f")),
    Change("influence", ("B",), now=True),
]


@pytest.fixture(scope="module")
def nonlinear() -> tuple[SampledFluctuations, dict[str, Observable]]:
    training, times = EXPERIMENTS["tanh-2-1"].training, EXPERIMENTS["tanh-2-1"].times
    arrays = arrays_of(training)
    return SampledFluctuations(arrays, 512, 0, shifts=False), observables(training, arrays, times)


@pytest.mark.parametrize("change", NONLINEAR, ids=str)
def test_terms_of_nonlinear_networks_are_seen(
    nonlinear: tuple[SampledFluctuations, dict[str, Observable]], change: Change
) -> None:
    """Variances of two layers of tanh."""
    moments, seen = nonlinear
    other = altered_samples(moments, change)
    assert largest_effect(load("tanh-2-1"), moments, other, seen, shifts=False).errors > SEEN


def test_responses_that_vanish_on_average_count() -> None:
    """N Var f(5) of two linear layers is 0.4056, 0.441 without B(t, t) and 0.633 without A and B.

    As another program has found before; networks give the first number.
    """
    training = Training(2, np.eye(1), np.ones(1), 0.08, 5)
    arrays = arrays_of(training)
    f = numbers_of(arrays, "f", 1, 5)
    found = load("linear-2-1").scaled_variance("f")
    networks = Estimate(found.value[3, 0], found.error[3, 0])
    for changes, expected in (
        ((), 0.4056),
        ((Change("influence", ("B",), now=True),), 0.441),
        (WITHOUT, 0.633),
    ):
        other = arrays
        for change in changes:
            other = AlteredFluctuations(other, change).lowered
        moments = DenseFluctuations(other)
        assert moments.covariance[f, f] == pytest.approx(expected, abs=5e-4)
        distance = abs(networks.distance(moments.covariance[f, f]))
        assert distance > SEEN if changes else excess(distance) <= 1


def test_curvature_of_the_error_of_another_loss_is_seen() -> None:
    """Logistic errors are curved in the output: one layer, 400,000 networks of width 64 by their exact map.

    ``A = |h + w|^2 / 2N`` and ``B = |h - w|^2 / 2N`` are multiplied by ``(1 +- eta Delta)^2`` in a step.
    """
    eta, steps, width, count = 0.3, 6, 64, 400_000
    tables: dict[str, Any] = {"network": {"depth": 1}}
    tables["training"] = {"learning_rate": eta, "steps": steps, "loss": "sum", "objective": "logistic"}
    experiment = Experiment.from_dict(tables, kernel=np.eye(1), targets=np.ones(1))
    arrays = lowered(Problem.of(experiment))
    moments, f = DenseFluctuations(arrays), numbers_of(arrays, "f", 1, np.arange(steps + 1))
    A, B = np.random.default_rng(0).chisquare(width, (2, count)) / width
    outputs = []
    for _ in range(steps + 1):
        outputs.append((A - B) / 2)
        growth = eta / (1 + np.exp(outputs[-1]))
        A, B = A * (1 + growth) ** 2, B * (1 - growth) ** 2
    values = np.stack(outputs, axis=1)
    error = width * values.std(axis=0) / count**0.5
    shift = Estimate(width * (values.mean(axis=0) - moments.values[f]), error)
    assert excess(shift.distance(moments.shift[f])) <= 1
    for factor in (0.0, 2.0):
        change = Change("second slope", ("f", "f"), factor)
        moved = AlteredFluctuations(arrays, change).shift[f] - moments.shift[f]
        assert (np.abs(moved) / error).max() > SEEN
