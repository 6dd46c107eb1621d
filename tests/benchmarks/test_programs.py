"""Time of whole solutions of programs beside networks that are trained to the same error, in one run.

The programs are twelve of the public language, and every case of the pages of networks that people train.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import numerics
from numerics.experiment.schema import Solver
from tests.benchmarks.programs import CASES, Case
from tests.numerics.networks.cases import CASES as TRAINED

Array = NDArray[np.float64]

TITLE = "Programs solved to {}, and networks to the same error"
ASKED = 5e-3
"""The default accuracy of ``numerics.solve``, which an exact solution is held against."""
TIGHT, KINKED = 1e-3, 2e-3
"""A higher accuracy, and that of NOISY programs: within the bounds of a search."""
NOISY = (
    "relu",
    "two heads",
    "heads with random scores",
    "attention, all options",
    "committee, batches in turn",
)
"""Programs whose paths are noisier: searches to 1e-3 end at 1.1e-3 to 1.4e-3, because they take no more than
three times their estimate; Adam takes the square of the number of paths, minutes for 1e-3.
"""
SEEDS = 16
"""Networks of each width, whose spread and time are measured."""
WATCHED = ("train_loss", "error")
"""What networks are compared in; where a program has neither, in its own numbers."""
PAGES = {f"{name}, as on its page" if name in CASES else name: make for name, make in TRAINED.items()}
"""Makers of the cases of pages, of which some have the names of other programs."""
EVERY = [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in PAGES)]


@dataclass(frozen=True)
class Measured:
    """Standard deviation of one network relative to the largest mean value, and its processor time."""

    spread: Array
    seconds: float


def seconds_of_networks(narrow: Measured, wide: Measured, error: float) -> float:
    """Return processor time of networks of widths N and 2N whose extrapolated mean has this standard error.

    The value ``2 x(2N) - x(N)`` from n networks of width N and m of width 2N has the variance ``4 s(2N)^2/m +
    s(N)^2/n``. The numbers n and m are those that take the least time for the number with the largest error.
    """
    each = 2 * wide.spread * np.sqrt(wide.seconds) + narrow.spread * np.sqrt(narrow.seconds)
    return float(np.max(each**2)) / error**2


def networks(case: Case, width: int, seeds: int) -> Measured:
    """Train networks and measure them."""
    started = time.process_time()
    found = numerics.simulate(case.program, width=width, seeds=seeds, rng=width, kernels="none", **case.given)
    seconds = (time.process_time() - started) / seeds
    own = [name for name in found.data_vars if f"{name}_stderr" in found]
    names = [name for name in WATCHED if name in found] or own
    spreads = [found[f"{n}_stderr"].values.ravel() / np.abs(found[n].values).max() for n in names]
    return Measured(np.concatenate(spreads) * np.sqrt(seeds), seconds)


def solution(case: Case, accuracy: float, **options: Any) -> tuple[str, float, float]:
    """Solve a program; return the method, the error that it reports and the processor time.

    The error is ``accuracy`` where the method is exact. The time includes the derivation of the theory,
    because no program of this name was derived before.
    """
    program = replace(case.program, name=f"{case.program.name}, to {accuracy}, {len(options)}")
    started = time.process_time()
    found = numerics.solve(program, **options, **case.given)
    seconds = time.process_time() - started
    assert found.attrs["status"] == "ok"
    return found.attrs["method"], float(found.attrs.get("accuracy", accuracy)), seconds


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Import the modules that solutions by paths need, which is not timed."""
    case = CASES["RMS-normalised"](False)
    numerics.solve(case.program, **case.given)


def case_of(name: str, timed: bool) -> Case:
    """Return the program of this name; smaller if it is not timed, unless it is that of a page."""
    return CASES[name](timed) if name in CASES else PAGES[name]()


def test_every_program_is_measured_once():
    """Programs of pages with the names of others were never measured, and the others twice."""
    assert len({*CASES, *PAGES}) == len(CASES) + len(TRAINED) == len(EVERY)
    made = case_of("attention, as on its page", False).program
    assert str(made.definitions) == str(TRAINED["attention"]().program.definitions)
    assert str(made.definitions) != str(case_of("attention", False).program.definitions)


@pytest.mark.parametrize("name", EVERY)
def test_a_program_beside_networks_to_the_same_error(name, note, timed):
    """Networks of two widths are extrapolated in 1/N; their time is scaled by the square of the error.

    They measure losses and errors, and so does the solution that they are held against.
    """
    case = case_of(name, timed)
    if name in PAGES and not timed:
        case = replace(case, steps=1)
    width, seeds = case.width(128 if timed else 4), SEEDS if timed else 2
    whole = solution(case, ASKED)
    assert whole[1] <= ASKED
    networks(case, case.width(4), 2)  # the first networks compile the program
    narrow, wide = (networks(case, n, seeds) for n in (width, 2 * width))
    tight = KINKED if any(x in name for x in NOISY) else TIGHT
    for accuracy, title in ((ASKED, "the default accuracy"), (tight, "a higher accuracy")):
        solver = Solver(accuracy=accuracy if timed else ASKED)
        method, error, seconds = solution(case, accuracy, kernels="none", solver=solver)
        networks_s = seconds_of_networks(narrow, wide, error)
        assert networks_s > 0
        row = {"program": name, "method": method, "error": error}
        row |= {"all_kernels_s": whole[2]} if accuracy == ASKED else {}
        row |= {"losses_s": seconds, "networks_s": networks_s, "times_less": round(networks_s / seconds)}
        note(TITLE.format(title), **row)
