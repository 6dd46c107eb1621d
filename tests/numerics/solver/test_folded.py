"""Steps with the distant past folded are those of the plain march, of single fields and of samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sympy import Integer, S
from threadpoolctl import threadpool_limits

from derive.calculus.symbols import mu
from derive.program import P
from numerics.errors import Diverged
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, numbers_of
from numerics.experiment.problem import Problem
from numerics.lowering import lower
from numerics.lowering.table import Request
from numerics.solver import solve
from numerics.solver.linear import folded, march
from numerics.solver.linear.folded import NEAR, NEGLECT, ROOM, Folded, foldable
from numerics.solver.linear.march import March
from numerics.solver.linear.plan import Plan
from numerics.solver.linear.rows import Rows
from tests.numerics.solver.helpers import gd, solvable

DATA = {"full": {"sample_ratio": 1.5}, "online": {"batch_ratio": 1.2}, "population": {}}


def problem(kind: str, depth: int, steps: int, rate: float, **more: Any) -> dict[str, Any]:
    """Return arguments of a march on random data, or on some samples."""
    if kind == "fixed":
        e = gd(depth, more["samples"], rate=rate, steps=steps - 1, loss="mean")
        wanted = tuple(("G", k) for k in range(1, depth + 1))
        data = {"K_x": e.kernel, "y": e.targets}
        table = lower(solvable(depth, "gd", "mean"))
        return {"table": table, "steps": steps, "constants": numbers_of(e), "data": data, "wanted": wanted}
    network = {"depth": depth, "gamma0": 0.8, "width_ratio": 0.8}
    training = {"rule": "sgd" if kind == "online" else "gd", "learning_rate": rate, "steps": steps - 1}
    e = Experiment.from_dict(
        {
            "network": network | {k: v for k, v in more.items() if k == "branch"},
            "data": {"kind": "isotropic"} | DATA[kind],
            "training": training | {k: v for k, v in more.items() if k == "center"},
        }
    )
    table = lower(Problem.of(e).discrete)
    return {
        "table": table,
        "steps": steps,
        "constants": numbers_of(e),
        "data": arrays_of(e),
        "wanted": tuple(table.tensors),
    }


@pytest.fixture
def marches(monkeypatch: pytest.MonkeyPatch) -> list[Folded]:
    """Return the list of folded marches that the test starts."""
    seen: list[Folded] = []

    class Seen(Folded):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            seen.append(self)

    monkeypatch.setattr(march, "Folded", Seen)
    monkeypatch.setattr(march, "FOLDED", 0)  # however few the steps
    return seen


def plainly(arguments: dict[str, Any]) -> March:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(march, "foldable", lambda *_: False)
        return march.march(**arguments)


def gap(one: March, other: March) -> float:
    """Return the largest difference, relative to the largest entry of each array."""
    worst = 0.0
    for name in ("correlations", "responses", "scalars", "hoisted"):
        a, b = getattr(one, name), getattr(other, name)
        assert list(a) == list(b)
        for pair, x in a.items():
            worst = max(worst, float(np.abs(x - b[pair]).max() / (np.abs(b[pair]).max() or 1.0)))
    return worst


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("full", {"branch": 0.5}),
        ("online", {"center": True}),
        ("population", {}),
        ("fixed", {"samples": 3}),
    ],
)
def test_steps_are_those_of_the_plain_march(kind: str, more: dict[str, Any], marches: list[Folded]) -> None:
    arguments = problem(kind, 2, 30, 0.03, **more)
    assert gap(march.march(**arguments), plainly(arguments)) < 2e-14
    assert marches[0].start == 30
    assert marches[0].folds == 0


@pytest.mark.parametrize(
    ("kind", "depth", "steps", "rate", "more"),
    [
        ("online", 1, 330, 0.01, {"center": True}),
        ("fixed", 2, 200, 0.02, {"samples": 3}),
        pytest.param("fixed", 3, 220, 0.2, {"samples": 5}, marks=pytest.mark.slow),
        pytest.param("fixed", 2, 500, 0.3, {"samples": 5}, marks=pytest.mark.slow),
        pytest.param("full", 2, 300, 0.003, {"center": True}, marks=pytest.mark.slow),
        pytest.param("full", 2, 400, 0.05, {}, marks=pytest.mark.slow),
        pytest.param("population", 3, 400, 0.01, {}, marks=pytest.mark.slow),
        pytest.param("full", 3, 400, 0.006, {"branch": 0.5}, marks=pytest.mark.slow),
        pytest.param("full", 4, 600, 0.012, {}, marks=pytest.mark.slow),
        pytest.param("online", 3, 1000, 0.01, {}, marks=pytest.mark.slow),
        pytest.param("full", 4, 1000, 0.0018, {}, marks=pytest.mark.slow),
    ],
)
def test_folding_loses_nothing(
    kind: str, depth: int, steps: int, rate: float, more: dict[str, Any], marches: list[Folded]
) -> None:
    """4e-14 was seen, and 2e-13 where rates are large."""
    arguments = problem(kind, depth, steps, rate, **more)
    found, plain = march.march(**arguments), plainly(arguments)
    (used,) = marches
    assert used.start == steps
    assert used.folds >= 2
    assert 3 < len(used.basis) < ROOM - NEAR
    assert 0 < used.neglected < NEGLECT
    assert gap(found, plain) < 3e-13


def test_more_samples_than_random_numbers(marches: list[Folded]) -> None:
    """Errors of 520 samples are more rows than were drawn: the march ended with ValueError."""
    arguments, targets = problem("fixed", 1, 120, 0.1, samples=3), np.cos(np.arange(520.0))
    arguments["constants"] = arguments["constants"] | {P: 520.0}
    arguments["data"] = {"K_x": 1.0 + np.outer(targets, targets), "y": targets}
    assert np.isfinite(march.march(**arguments).scalars["Delta"]).all()
    assert marches[0].folds == 1


def test_rows_of_samples_that_feed_back_are_marched_plainly() -> None:
    asked = (Request("response", ("h", 1), ("r", 1), S.One),)
    arguments = problem("fixed", 2, 4, 0.2, samples=3)
    rows = Rows(arguments["table"], 4, arguments["constants"], {})
    assert foldable(Plan(arguments["table"], arguments["wanted"]), rows)
    assert not foldable(Plan(arguments["table"], asked), rows)


@pytest.mark.slow
def test_what_the_basis_lacks_is_found_after_the_block(
    marches: list[Folded], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = problem("full", 2, 330, 0.05)
    monkeypatch.setattr(folded, "GROWTH", 0.0)  # nothing is guessed
    monkeypatch.setattr(folded, "NEGLECT", 1e-14)
    found = march.march(**arguments)
    assert marches[0].repeated > 0
    assert marches[0].added > 0
    assert gap(found, plainly(arguments)) < 3e-13


def test_what_is_neglected_is_measured(marches: list[Folded], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a basis that is too small there is a difference, and `neglected` reports it."""
    arguments = problem("full", 2, 330, 0.05)
    for name, value in {"ROUNDING": 1e-7, "GUESSED": 1.0, "NEGLECT": 1.0}.items():
        monkeypatch.setattr(folded, name, value)
    found = march.march(**arguments)
    assert marches[0].neglected > 1e-10
    assert 1e-12 < gap(found, plainly(arguments)) < 1e3 * marches[0].neglected


@pytest.mark.parametrize(
    ("room", "first", "arguments"),
    [(100, 100, ("full", 2, 220, 0.12)), (72, 64, ("fixed", 3, 120, 0.2, 5))],
    ids=["random data", "samples"],
)
def test_without_room_the_march_goes_on_plainly(
    room: int,
    first: int,
    arguments: tuple[Any, ...],
    marches: list[Folded],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, depth, steps, rate, *samples = arguments
    given = problem(kind, depth, steps, rate, **({"samples": samples[0]} if samples else {}))
    monkeypatch.setattr(folded, "ROOM", room)
    told: list[tuple[int, int]] = []
    found = march.march(**given, progress=lambda *x: told.append(x))
    assert first <= marches[0].start < steps
    assert gap(found, plainly(given)) < 3e-13
    assert told == [(k + 1, steps) for k in range(steps)]


def test_there_is_no_more_room_than_there_are_steps(marches: list[Folded]) -> None:
    """A lazy network at its largest rate: the basis outgrew the arrays of a march of 81 times."""
    e = Experiment.from_dict(
        {
            "network": {"depth": 2, "gamma0": 1e-3, "width_ratio": 50.8},
            "data": {"kind": "isotropic"},
            "training": {"learning_rate": 0.563, "steps": 80, "center": True},
        }
    )
    assert np.isfinite(solve(e).train_loss.values).all()
    assert marches


def test_threads_change_nothing() -> None:
    arguments = problem("full", 1, 250, 0.05)
    with threadpool_limits(1):
        one = march.march(**arguments)
    with threadpool_limits(2):
        two = march.march(**arguments)
    assert gap(one, two) == 0.0


def test_divergence_is_named_with_the_same_step() -> None:
    arguments = problem("full", 2, 300, 1.5) | {"watched": (("C_v", None),)}
    with pytest.raises(Diverged) as fast:
        march.march(**arguments)
    with pytest.raises(Diverged) as plain:
        plainly(arguments)
    assert str(fast.value) == str(plain.value)


def test_unwatched_runaway_ends_plainly() -> None:
    arguments = problem("full", 1, 200, 1.5)
    found = march.march(**arguments)
    assert not np.isfinite(found.correlation(("v", None), ("v", None))[-1, 0, -1, 0])


def test_what_is_linear_in_the_past_is_for_it() -> None:
    for rule, projected, fits in (("gd", True, True), ("gd", False, False), ("flow", True, False)):
        table = lower(solvable(2, rule, "mean", projected))  # w(t, s) q(t, s) is not a row of few coordinates
        assert foldable(Plan(table), Rows(table, 4, {P: 3.0}, {})) == fits
    arguments = problem("full", 2, 4, 0.1)
    table, data = arguments["table"], (4, arguments["constants"], {})
    wanted = arguments["wanted"]
    assert foldable(Plan(table, wanted), Rows(table, *data))
    first, *others = table.fields
    wide = replace(table, fields=(replace(first, indices=(mu,)), *others), extents={mu: Integer(2)})
    assert not foldable(Plan(wide, wanted), Rows(wide, *data))
