"""Random programs over the whole language: gradients, both routes, networks, solutions and simulations.

A program is named by its seed, as in ``pytest "...::test_a_program[7-gradient]"``; its text is printed by
``python -m tests.numerics.random_programs --show 7``.  Three programs are run here, with few samples;
`.ci/run` runs ``python -m tests.numerics.random_programs`` on forty, and a thousand take two hours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.program import GradientDescent, Outer, Program, TrainedMatrix
from tests.numerics.random_programs import checks
from tests.numerics.random_programs.__main__ import run
from tests.numerics.random_programs.checks import (
    CHECKS,
    FAST,
    Case,
    Numbers,
    Wrong,
    checked,
    gradient,
    judge,
    networks,
    simulate,
    through_three,
    too_narrow,
)
from tests.numerics.random_programs.language import STEPS, draw

SEEDS = (4, 8, 148)
"""Programs that are quickly checked."""


@cache
def case(seed: int) -> Case:
    """Return a program whose theory its checks share."""
    return Case(draw(seed), FAST)


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(x, marks=pytest.mark.slow) for x in (1, 3, 5, 6, 164))]
)
def test_a_program(seed: int, name: str) -> None:
    said = checked(case(seed), name)
    assert not said.startswith("failed"), f"{draw(seed)}\n{name}: {said}"


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**31))
def test_any_program_goes_down_its_gradient(seed: int) -> None:
    verdict = judge(draw(seed), ("gradient",))
    assert verdict.outcome != "failed", f"{draw(seed)}\n{verdict.checks}"


def test_time_of_the_processor_that_is_used_up_is_the_only_outcome() -> None:
    """No check reports the end of the time as its error, and the wall clock does not count."""
    verdict = run(4, ("networks",), seconds=0.05)
    assert verdict["checks"] == {"time": "failed: more than 0.05 s"}


def faster(program: Program) -> Program:
    """Return the program with the update of its first trained matrix a tenth too large."""
    first = next(w for w in program.matrices if isinstance(w, TrainedMatrix))

    def larger(u: Outer) -> Outer:
        return replace(u, coefficient=u.coefficient * 11 / 10, more=tuple(map(larger, u.more)))

    moved = replace(first, update=larger(first.update))
    return replace(program, matrices=tuple(moved if w is first else w for w in program.matrices))


def test_an_update_that_is_a_tenth_too_large_is_seen() -> None:
    wrong = Case(draw(SEEDS[1]), FAST)
    wrong.__dict__["stepped"] = faster(wrong.stepped)
    with pytest.raises(Wrong, match="descent of the loss gives"):
        gradient(wrong)


def test_a_theory_of_another_learning_rate_is_seen() -> None:
    wrong = Case(draw(SEEDS[1]), FAST)
    wrong.__dict__["realised"] = wrong.realised.with_rule(GradientDescent(1))
    with pytest.raises(Wrong, match="evaluate and networks"):
        networks(wrong)


@pytest.mark.slow
def test_a_theory_with_numbers_that_are_not_finite_has_diverged() -> None:
    """Responses to them are not an error of linear algebra."""
    assert not checked(Case(draw(74), FAST), "networks").startswith("failed")


def saturated(z: Any) -> Any:
    return np.tanh(40 * z) / 40


def running_away(z: Any) -> Any:
    return np.sinh(10 * z) / 10


@pytest.mark.parametrize(("grown", "steps"), [(lambda z: z, STEPS + 1), (saturated, 1), (running_away, 1)])
def test_networks_whose_fluctuations_are_no_averages_are_too_narrow_to_extrapolate(
    grown: Callable[[Any], Any], steps: int
) -> None:
    """From step 1 on a function of averages follows, whose variance does not fall as 1/N."""
    normal = np.random.default_rng(1).standard_normal((2, 4000, STEPS + 1))
    found = []
    for z in normal / np.sqrt([[[40]], [[80]]]):
        x = np.where(np.arange(STEPS + 1) < 1, z, grown(z))
        found.append(Numbers({"f": x.mean(axis=0)}, {"f": x.std(axis=0) / np.sqrt(len(x))}, len(x) - 1))
    first, told = too_narrow(found[0], found[1], ["f"])
    assert first == steps
    assert told.startswith("the variance of f[1] falls as") == (steps == 1)


def test_a_parabola_in_one_over_the_width_is_extrapolated_exactly() -> None:
    small, middle, large = (
        Numbers({"f": np.array([3 + 5 / n - 7 / n**2])}, {"f": np.array([0.1])}, 9) for n in (40, 80, 160)
    )
    found = through_three(small, middle, large)
    np.testing.assert_allclose(found.mean["f"], 3, rtol=1e-13)
    assert found.error["f"] == pytest.approx(0.1 * np.sqrt(1 + 36 + 64) / 3)


def test_results_without_a_number_in_common_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "of_results", lambda *_: Numbers({}, {}, 1))
    with pytest.raises(Wrong, match="no number in common"):
        simulate(case(SEEDS[1]))


def test_the_place_of_an_end_is_no_index_of_the_program() -> None:
    """Channels of an ordered family go by an index k, as the engine called the place of an end."""
    verdict = judge(draw(1695), ("routes",))
    assert verdict.checks == {"routes": "ok"}
