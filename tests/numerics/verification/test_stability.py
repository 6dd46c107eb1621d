"""Tests of the edge of stability: the step from which deviations grow, and comparisons before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.solver import solve
from numerics.verification import networks
from numerics.verification.plan import NetworkPlan, measured_kernels, wider_plan
from numerics.verification.run import _networks
from numerics.verification.stability import edge_of_stability

KERNEL, TARGETS = np.array([[1.0, 0.3], [0.3, 0.8]]), np.array([1.0, -0.7])
PLAN = NetworkPlan((32, 64, 128), (60, 40, 30))


def posed(rate: float, seed: int = 0, **training: Any) -> tuple[Problem, xr.Dataset]:
    rule = training if "rule" in training else {"learning_rate": rate, "steps": 8, **training}
    tables = {"network": {"depth": 3}, "training": rule, "solver": {"seed": seed, "rtol": 1e-3}}
    e = Experiment.from_dict(tables, kernel=KERNEL, targets=TARGETS)
    return Problem.of(e), solve(e, kernels="full")


@pytest.mark.parametrize("rate", [0.3, 0.45, 0.5, 0.6])
def test_the_edge_is_where_the_rate_passes_two_over_the_sharpness(rate: float) -> None:
    problem, theory = posed(rate)
    kernel = theory["tangent_kernel"].to_numpy()
    sharpness = np.array([np.linalg.eigvalsh(kernel[k, k])[-1] for k in range(len(kernel) - 1)])
    beyond = np.flatnonzero(rate / len(TARGETS) * sharpness > 2)
    assert edge_of_stability(problem, theory) == (max(1, int(beyond[0])) if len(beyond) else None)
    assert bool(len(beyond)) == (rate > 0.4)


def test_no_edge_where_it_is_not_known() -> None:
    for problem, theory in (
        posed(0.5, momentum=0.1),
        posed(0.5, rule="flow", time=1.0, points=4),
    ):
        assert edge_of_stability(problem, theory) is None
    problem, theory = posed(0.5)
    assert edge_of_stability(problem, theory.drop_vars("tangent_kernel")) is None


def test_a_deviation_grows_beyond_the_edge_alone() -> None:
    """Descent of the theory's own outputs from a start that is a little off."""
    for rate, is_stable in ((0.35, True), (0.5, False)):
        problem, theory = posed(rate)
        kernel, share = theory["tangent_kernel"].to_numpy(), rate / len(TARGETS)
        factors = [np.eye(len(TARGETS)) - share * kernel[k, k] for k in range(8)]
        edge = edge_of_stability(problem, theory)
        for k, factor in enumerate(factors):
            grows = float(np.linalg.norm(factor, 2)) > 1
            if edge is None or k < edge:
                assert not grows
            elif k == edge:
                assert grows
        assert (edge is None) == is_stable


@pytest.mark.slow
def test_networks_are_compared_up_to_the_edge() -> None:
    """A right theory passes beyond it too, where its networks are far from straight lines in 1/N."""
    for seed in range(10):
        problem, theory = posed(0.6, seed)
        edge = edge_of_stability(problem, theory)
        trained = networks.train(problem, PLAN, theory=theory)
        rows = networks.quantities(networks.traced(theory), trained, edge=edge)
        assert {q.at["time"] for q in rows} == {edge}
        assert all(x.passed for x in networks.against_networks(theory, trained, rows))
    assert "edge of stability" in networks.describe(problem, PLAN, [], theory, trained)


def test_kernels_are_measured_at_the_edge() -> None:
    problem, _ = posed(0.6, steps=200)
    found = measured_kernels(problem, networks.FULL, 3)
    assert 3 in found.traces
    assert set(found.pairs) >= {0, 3}


def test_a_term_of_second_order_that_widths_show_is_allowed() -> None:
    """Values 1 + 40/N^2 of widths 32 to 128 without noise to speak of: the line is off, and no theory."""
    found = xr.Dataset({"x": ("time", [1.0])})
    trained = [
        xr.Dataset(
            {"x": ("time", [1 + 40 / n**2]), "x_stderr": ("time", [1e-6])}, attrs={"width": n, "seeds": 50}
        )
        for n in (32, 64, 128)
    ]
    row = networks.ComparedQuantity("x", "x", {"time": 0})
    assert networks.against_networks(found, trained, [row])[0].passed
    off = found.assign(x=found.x + 0.05)
    assert not networks.against_networks(off, trained, [row])[0].passed


def test_plans_of_twice_the_width_have_as_many_networks() -> None:
    problem, _ = posed(0.3)
    wider = wider_plan(PLAN, problem)
    assert wider is not None
    assert wider.widths == tuple(2 * n for n in PLAN.widths)
    assert wider.seeds == PLAN.seeds


@pytest.mark.slow
def test_a_wrong_rate_in_the_theory_fails_again_at_twice_the_width() -> None:
    """A theory whose rate is 5 % too large, and the right one."""
    problem, right = posed(0.3)
    _, wrong = posed(0.315)
    effort = networks.Effort(work=1e9)
    narrow, rows, said = _networks(problem, right, None, effort)
    assert all(x.passed for x in rows)
    assert "first run:" not in said
    wide, rows, said = _networks(problem, wrong, None, effort)
    assert not all(x.passed for x in rows)
    assert "first run:" in said
    assert max(map(len, said.splitlines())) <= 110
    assert [d.attrs["width"] for d in wide] == [2 * d.attrs["width"] for d in narrow]
