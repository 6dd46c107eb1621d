"""Variances over networks and slopes in 1/N: derived ones agree with networks, and wrong ones are found."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import xarray as xr

from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.fluctuations import finite_width
from numerics.fluctuations.corrections import WidthCorrections
from numerics.fluctuations.expanded_problem import size_growth
from numerics.solver import solve
from numerics.stats import sample_variance
from numerics.verification import Effort, networks, verify
from numerics.verification.corrections import (
    FLOW,
    SHORT,
    CorrectionsAtTimes,
    DerivedCorrections,
    plan_corrections,
    prepare,
    variance_tolerance,
)
from numerics.verification.plan import NetworkPlan, expected_tolerance, plan_of
from numerics.verification.report import Check
from numerics.verification.smaller_problems import FULL
from tests.numerics.networks.cases import CASES as NETWORKS

SEEDS = 900
"""Networks of a width, of which twice the variance is seen."""

CASES = {
    "linear": ({"depth": 1}, {}, (8, 16)),
    "tanh": ({"depth": 1, "activation": "tanh", "gamma0": 0.7}, {"samples": 2048}, (16, 32)),
}


@dataclass(frozen=True)
class Derived:
    """A theory with its corrections, and the widths of networks to hold against it."""

    problem: Problem
    theory: xr.Dataset
    corrections: DerivedCorrections
    widths: tuple[int, int]

    def networks(self, which: int) -> xr.Dataset:
        """Return networks of one of the widths."""
        plan = NetworkPlan((self.widths[which],), (SEEDS,))
        names = self.corrections.variances
        (found,) = networks.train(self.problem, plan, None, FULL, self.theory, which, names)
        return found


def experiment(network: dict[str, object], solver: dict[str, object], **training: object) -> Experiment:
    rule = {"learning_rate": 0.2, "steps": 1} | training
    tables = {"network": network, "training": rule, "solver": solver}
    return Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])


@pytest.fixture(scope="module", params=CASES)
def derived(request: pytest.FixtureRequest) -> Derived:
    network, solver, widths = CASES[request.param]
    problem = Problem.of(experiment(network, solver))
    theory = solve(problem, kernels="full")
    plan = plan_corrections(problem, networks.compared_times(theory), FULL, pairs=True)
    assert plan.has_slopes
    assert not plan.reason
    return Derived(problem, theory, DerivedCorrections.of(plan), widths)


@pytest.fixture(scope="module")
def narrow(derived: Derived) -> xr.Dataset:
    return derived.networks(0)


@pytest.fixture(scope="module")
def wide(derived: Derived) -> xr.Dataset:
    return derived.networks(1)


def rows(derived: Derived, trained: list[xr.Dataset], corrections: DerivedCorrections) -> list[Check]:
    return networks.against_networks(derived.theory, trained, None, corrections.amended)


def twice(corrections: DerivedCorrections, kind: str) -> DerivedCorrections:
    """Return corrections with variances, or shifts, twice as large."""

    def wrong(x: WidthCorrections) -> WidthCorrections:
        return replace(x, **{kind: {name: 2 * v for name, v in getattr(x, kind).items()}})

    parts = tuple(replace(x, found=wrong(x.found)) for x in corrections.parts)
    return replace(corrections, parts=parts)


def test_networks_have_the_derived_variances_and_slopes(
    derived: Derived, narrow: xr.Dataset, wide: xr.Dataset
):
    checks = rows(derived, [narrow, wide], derived.corrections)
    assert all(x.passed for x in checks), [x.name for x in checks if not x.passed]
    of_variances = [x for x in checks if x.name.startswith(networks.N_VAR)]
    assert {"N Var train loss at t = 1", "N Var Delta at t = 1, of 1"} <= {x.name for x in of_variances}
    (loss,) = (x for x in checks if x.name == "train loss at t = 1")
    assert networks.DERIVED in loss.basis
    (early,) = (
        x for x in checks if "_mumu(t,0), t = 1" in x.name and x.name.startswith(("mean H", "mean P"))
    )
    assert networks.FITTED in early.basis  # only equal times are derived


@pytest.mark.parametrize(("kind", "start"), [("variances", "N Var"), ("shifts", "train loss")])
def test_corrections_twice_as_large_are_found(
    derived: Derived, narrow: xr.Dataset, wide: xr.Dataset, kind: str, start: str
):
    checks = rows(derived, [narrow, wide], twice(derived.corrections, kind))
    failed = [x.name for x in checks if not x.passed]
    assert any(x.startswith(start) for x in failed)
    assert (kind == "variances") == all(x.startswith("N Var") for x in failed)


def test_corrections_are_those_of_solve(derived: Derived):
    found = finite_width(derived.problem, kernels="full")
    row = networks.Comparison(
        networks.ComparedQuantity("loss", "train_loss", {"time": 1}), derived.theory, []
    )
    for end in ("_variance", "_shift"):
        own = derived.corrections.entry(row, end)
        assert own is not None
        np.testing.assert_allclose(own.value, found[f"train_loss{end}"].values[1], rtol=1e-12)


def test_kernels_at_two_times_have_no_derived_slope(derived: Derived):
    row = networks.ComparedQuantity("", "Phi", {"layer": 0, "time": 1, "time_": 0})
    assert derived.corrections.entry(networks.Comparison(row, derived.theory, []), "_shift") is None


# -- synthetic networks with known numbers -------------------------------------------------------------------

LIMIT, SLOPE, SQUARE, SPREAD = 1.0, 8.0, 20.0, 4.0


def made_up(width: int, seeds: int, rng: np.random.Generator) -> xr.Dataset:
    """Return networks whose loss has a mean with two powers of 1/N and a chi-squared scatter."""
    noise = (rng.standard_normal((seeds, 4)) ** 2 - 1).mean(axis=1) * np.sqrt(2 * SPREAD / width)
    x = LIMIT + SLOPE / width + SQUARE / width**2 + noise
    own = sample_variance(x[:, None])
    dims = ("time",)
    arrays = {
        "train_loss": (dims, [x.mean()]),
        "train_loss_stderr": (dims, [x.std(ddof=1) / np.sqrt(seeds)]),
        "train_loss_variance": (dims, width * own.value),
        "train_loss_variance_stderr": (dims, width * own.stderr),
    }
    return xr.Dataset(arrays, coords={"time": [0.0]}, attrs={"width": width, "seeds": seeds})


def made_up_checks(rng: np.random.Generator, variance: float = SPREAD, slope: float = SLOPE) -> list[Check]:
    theory = xr.Dataset({"train_loss": ("time", [LIMIT])}, coords={"time": [0.0]})
    found = WidthCorrections(
        {}, {"train_loss": np.array([variance])}, {"train_loss": np.array([slope])}, {"train_loss": ("time",)}
    )
    own = DerivedCorrections((CorrectionsAtTimes((0,), found, 1.0, "made up"),))
    trained = [made_up(n, 3000, rng) for n in (64, 128)]
    row = networks.ComparedQuantity("loss", "train_loss", {"time": 0})
    return networks.against_networks(theory, trained, [row], own.amended)


def test_made_up_networks_pass_and_are_judged_by_their_errors():
    rng = np.random.default_rng(0)
    z = []
    for _ in range(60):
        checks = made_up_checks(rng)
        assert all(x.passed for x in checks)
        z.append([(x.observed - x.expected) / (x.error or np.inf) for x in checks])
    loss, variance = np.transpose(z)
    for of_row in (loss, variance):
        assert abs(of_row.mean()) < 4 / np.sqrt(len(of_row))
    # the error of a mean scatters as 1/sqrt(2 n); that of a variance is at least its own
    assert abs(loss.std() - 1) < 4 / np.sqrt(2 * len(loss))
    assert variance.std() < 1 + 4 / np.sqrt(2 * len(variance))


@pytest.mark.parametrize(
    ("variance", "slope", "name"), [(2, 1, "N Var loss"), (0.5, 1, "N Var loss"), (1, 2, "loss")]
)
def test_wrong_numbers_of_made_up_networks_are_found(variance: float, slope: float, name: str):
    checks = made_up_checks(np.random.default_rng(1), variance * SPREAD, slope * SLOPE)
    assert [x.name for x in checks if not x.passed] == [name]


# -- planned widths and seeds ------------------------------------------------------------------------------


def test_slopes_that_are_derived_take_two_widths_and_less_work():
    problem = Problem.of(experiment({"depth": 1}, {}))
    one, two = (plan_of(problem, FULL, x) for x in (None, 1.0))
    assert (len(one.widths), len(two.widths)) == (3, 2)
    assert two.total < one.total
    assert np.isfinite(variance_tolerance(two))
    assert expected_tolerance(two, slope=200.0) > expected_tolerance(two, slope=1.0)


@pytest.mark.parametrize(
    ("training", "work", "reason"),
    [
        ({}, 1e9, SHORT),
        ({"rule": "flow", "time": 1.0, "points": 3, "learning_rate": None, "steps": None}, 3e10, FLOW),
    ],
    ids=["few networks", "flow"],
)
def test_corrections_that_cost_too_much_are_left_out(training: dict[str, object], work: float, reason: str):
    problem = Problem.of(experiment({"depth": 1}, {}, **training))
    plan = plan_corrections(problem, [1], Effort(work=work), pairs=True)
    assert (plan.shifted, plan.varied, plan.reason) == (None, None, reason)


def test_a_refusal_has_the_reason_of_the_solver():
    inputs = np.eye(2)
    tables = {"network": {"depth": 1, "activation": "tanh"}}
    tables |= {"training": {"rule": "sign", "learning_rate": 0.1, "steps": 2}}
    problem = Problem.of(Experiment.from_dict(tables, inputs=inputs, targets=[1.0, -1.0]))
    plan = plan_corrections(problem, [1, 2], FULL, pairs=True)
    assert plan.shifted is None
    assert "acts on each entry" in plan.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "heads with random scores"])
def test_attention_is_refused_with_a_reason(name: str):
    case = NETWORKS[name]()
    problem = Problem.of(case.program, **case.given, solver=case.solver)
    with pytest.raises(SpecError, match="fluctuations are not"):
        size_growth(problem)


def test_large_programs_are_refused_before_anything_is_derived():
    case = NETWORKS["blocks of four experts"]()
    problem = Problem.of(case.program, **case.given, solver=case.solver)
    assert plan_corrections(problem, [1], FULL, pairs=False).reason == SHORT


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_report_says_what_is_derived(name: str):
    network, solver, _ = CASES[name]
    report = verify(experiment(network, solver, steps=3), effort=Effort(work=6e9))
    table = report.table()
    assert report.passed, table
    assert max(map(len, table.splitlines())) <= 110
    assert "N Var train loss" in table
    assert "shift: the slope is derived" in table


@pytest.mark.slow
def test_variances_without_shifts_are_compared_where_there_are_enough_networks():
    tables = {"network": {"depth": 1, "width_ratio": 1.0}, "data": {"kind": "isotropic", "sample_ratio": 2.0}}
    problem = Problem.of(Experiment.from_dict(tables | {"training": {"learning_rate": 0.1, "steps": 40}}))
    used = prepare(problem, solve(problem), FULL)
    assert used.plan.shifted is not None
    assert not used.plan.has_slopes
    assert used.plan.reason
