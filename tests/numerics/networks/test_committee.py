"""Committee machines on random inputs: nonlinear fields of samples and of weights in one theory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import numerics
from derive.errors import ProgramError
from derive.program.networks import committee
from derive.theory.routes import check_routes
from numerics.experiment.schema import Solver
from tests.numerics.networks.cases import CASES

COMMITTEES = [name for name in CASES if name.startswith("committee")]


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"batches": 2, "noise": 0.1, "student": 3}, marks=pytest.mark.slow),
        pytest.param({"online": True, "activation": "relu"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_both_routes_and_the_gradient_agree(options: dict[str, object]) -> None:
    assert check_routes(committee(ratio=2, **options)).gradients == "compared"


def test_a_linear_unit_with_one_teacher_is_a_linear_model() -> None:
    """One step from w has weights w + eta X^T X (w_star - w)/alpha: its risk is that of Wishart moments."""
    eta, ratio = 0.3, 2.0
    case = replace(CASES["committee, new samples"](), program=committee(1, 1, "linear", ratio=2), steps=1)
    found = replace(case, numbers={"eta": eta}).theory()
    exact = [2.0, 2 * (1 - 2 * eta + eta**2 * (1 + 1 / ratio))]
    np.testing.assert_allclose(found.risk, exact, atol=4 * float(found.risk_stderr.max()) + 1e-9)


@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow) for x in COMMITTEES])
def test_theory_and_networks_agree(name: str) -> None:
    case = replace(CASES[name](), solver=Solver(samples=2**13))
    theory = case.theory()
    assert float(theory.risk[-1]) < 0.3 * float(theory.risk[0]), "the students have learnt"
    report = case.compared()
    assert report.passed, report


@pytest.mark.slow
def test_networks_that_see_new_samples_are_told_from_those_that_do_not() -> None:
    """Samples that come again are fitted: theirs is not the theory of new ones."""
    case = CASES["committee, the same samples"]()
    assert not case.compared(CASES["committee, new samples"]().program).passed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"student": 0}, "student"),
        ({"noise": -1}, "noise"),
        ({"rule": "flow", "batches": 2}, "batches = 2: several batches need discrete steps"),
        ({"rule": "flow", "online": True}, "drawn anew at every step"),
        ({"activation": "tnah"}, "activation"),
    ],
)
def test_refuses(options: dict[str, object], said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        committee(**options)


@pytest.mark.slow
def test_networks_leave_the_plateau_in_log_d_steps() -> None:
    """Steps to half of the plateau's risk grow with log D as in the linearised theory, D = 32 and 256."""
    program, numbers = committee(ratio=1, online=True), {"eta": 0.4}
    given: dict[str, Any] = {"numbers": numbers, "arrays": {}, "kernels": "none"}
    found = numerics.solve(program, **given, times=range(101), solver=Solver(samples=2**10))
    plateau, slope = float(found.risk[-1]), 1 / (2 * np.log(found.attrs["saddle_growth"]))
    sizes, count = (32, 256), 18

    def steps(size: int, seed: int) -> int:
        risk = numerics.simulate(
            program, **given, times=range(161), width=size, seeds=2, rng=seed
        ).risk.values
        below = risk < plateau / 2
        assert below.any()
        return int(below.argmax())

    gaps = [steps(sizes[1], seed) - steps(sizes[0], seed) for seed in range(count)]
    fits = np.array(gaps) / np.log(sizes[1] / sizes[0])
    error = fits.std(ddof=1) / np.sqrt(count)
    assert error < 0.3 * slope
    assert abs(fits.mean() - slope) < 4 * error
