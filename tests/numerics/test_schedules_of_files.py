"""Rates, momentum, decay and temperature of experiment files that are expressions in the step, or time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import numerics
from numerics.analysis.limits import early_time, largest_rate, rate_limit
from numerics.cli import run
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.memory import StepwiseSystem
from numerics.experiment.problem import Problem
from numerics.experiment.theory import theory_of
from numerics.solver.lazy.method import LazyMethod
from numerics.solver.method import Refusal, estimate_or_refusal
from numerics.verification import identities
from tests.chance import excess, in_errors

Array = NDArray[np.float64]
X = np.array([[1.0, 0.5, -0.3], [-0.2, 0.9, 0.8]])
TARGETS = np.array([1.0, -0.7])
STEPS = 6
RATE = "0.6*min(1, (t + 1)/3)*(1 + cos(pi*t/6))/2"
MOVING: dict[str, dict[str, str]] = {
    "rate": {"learning_rate": RATE},
    "rate and decay": {"learning_rate": RATE, "weight_decay": "0.4*0.8**t"},
    "momentum": {"learning_rate": RATE, "momentum": "0.9*min(1, (t + 1)/4)"},
    "all": {"learning_rate": "0.3*0.5**floor(t/2)", "momentum": "0.5 + t/20", "weight_decay": "0.2/(1 + t)"},
}


def experiment(network: dict[str, Any] | None = None, **training: Any) -> Experiment:
    given = {"steps": STEPS, **training} if training.get("rule") != "flow" else training
    tables = {"network": {"depth": 1, **(network or {})}, "training": given}
    return Experiment.from_dict(tables, inputs=X, targets=TARGETS)


def values(name: str) -> tuple[Array, Array, Array]:
    """Return rate, momentum and decay at each step, written out."""
    t = np.arange(STEPS)
    rate = 0.6 * np.minimum(1, (t + 1) / 3) * (1 + np.cos(np.pi * t / 6)) / 2
    none = np.zeros(STEPS)
    return {
        "rate": (rate, none, none),
        "rate and decay": (rate, none, 0.4 * 0.8**t),
        "momentum": (rate, 0.9 * np.minimum(1, (t + 1) / 4), none),
        "all": (0.3 * 0.5 ** (t // 2), 0.5 + t / 20, 0.2 / (1 + t)),
    }[name]


def trained(name: str, width: int, networks: int, phi: Any, slope: Any) -> tuple[Array, Array]:
    """Return mean errors (T, P) of networks with one hidden layer, and their standard errors.

    Steps are those of PyTorch: the velocity accumulates gradients, and the rate multiplies it.
    """
    rates, kept, decay = values(name)
    rng = np.random.default_rng(width)
    W, w = rng.standard_normal((networks, width, 3)), rng.standard_normal((networks, width))
    V, v = np.zeros_like(W), np.zeros_like(w)
    found = np.empty((STEPS + 1, networks, len(TARGETS)))
    for t in range(STEPS + 1):
        h = W @ X.T / np.sqrt(3)
        found[t] = TARGETS - np.einsum("kn,knp->kp", w, phi(h)) / width
        if t == STEPS:
            break
        push = found[t][:, None] / len(TARGETS)
        V = kept[t] * V + (w[..., None] * slope(h) * push) @ X / np.sqrt(3)
        v = kept[t] * v + (phi(h) * push).sum(axis=2)
        W = (1 - rates[t] * decay[t]) * W + rates[t] * V
        w = (1 - rates[t] * decay[t]) * w + rates[t] * v
    return found.mean(axis=1), found.std(axis=1, ddof=1) / np.sqrt(networks)


def limit(name: str, networks: int, phi: Any, slope: Any) -> tuple[Array, Array]:
    """Return networks of two widths, extrapolated in 1/N."""
    (small, a), (large, b) = (trained(name, n, networks, phi, slope) for n in (40, 80))
    return 2 * large - small, np.hypot(2 * b, a)


@pytest.mark.parametrize("name", MOVING)
def test_linear_theories_are_the_limit_of_networks(name: str) -> None:
    expected, stderr = limit(name, 400, lambda h: h, np.ones_like)
    solved = numerics.solve(experiment(**MOVING[name]))
    assert excess(in_errors(solved.error.values - expected, stderr), 399) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", MOVING)
def test_nonlinear_theories_are_the_limit_of_networks(name: str) -> None:
    expected, stderr = limit(name, 4000, np.tanh, lambda h: 1 / np.cosh(h) ** 2)
    solved = numerics.solve(experiment({"activation": "tanh"}, **MOVING[name]))
    of_paths = solved.error_stderr.values if "error_stderr" in solved else 0.0  # nodes have none
    both = np.hypot(stderr, of_paths)
    assert excess(in_errors(solved.error.values - expected, both), 11) <= 1


@pytest.mark.parametrize("name", MOVING)
def test_networks_of_simulate_take_the_same_steps(name: str) -> None:
    run = numerics.simulate(experiment(**MOVING[name]), width=60, seeds=60, rng=3)
    expected, stderr = trained(name, 60, 400, lambda h: h, np.ones_like)
    both = np.hypot(stderr, run.error_stderr.values)
    assert excess(in_errors(run.error.values - expected, both), 59) <= 1


CONSTANT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "steps": (
        {"learning_rate": "0.3 + 0*t + t/1e30", "momentum": "0.5 + t/1e30", "weight_decay": "0.2 + t/1e30"},
        {"learning_rate": 0.3, "momentum": 0.5, "weight_decay": 0.2},
    ),
    "a flow": (
        {"rule": "flow", "time": 0.5, "points": 2, "weight_decay": "0.3 + t/1e30"},
        {"rule": "flow", "time": 0.5, "points": 2, "weight_decay": 0.3},
    ),
    "powers of numbers": (
        {"learning_rate": "0.3*(3/4)**t*pi**(0*t)"},
        {"learning_rate": "0.3*0.75**t"},
    ),
    "a velocity that flows": (
        {"rule": "flow", "time": 0.5, "points": 2, "momentum": "0.5 + t/1e30"},
        {"rule": "flow", "time": 0.5, "points": 2, "momentum": 0.5},
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow) if x == "a velocity that flows" else x for x in CONSTANT],
)
def test_a_schedule_that_stands_still_is_the_number(name: str) -> None:
    moving, number = (numerics.solve(experiment(**x)) for x in CONSTANT[name])
    assert moving.error.values == pytest.approx(number.error.values, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize(
    "tables",
    [
        {"data": {"kind": "isotropic", "sample_ratio": 2.0}},
        {"data": {"kind": "isotropic", "batch_ratio": 2.0}, "training": {"rule": "sgd"}},
        {"data": {"kind": "power-law", "capacity": 1.5, "source": 0.5, "modes": 20}},
        {
            "network": {"width": 9},
            "data": {"kind": "power-law", "capacity": 1.5, "source": 0.5, "modes": 5, "batch": 3},
            "training": {"rule": "sgd"},
        },
    ],
    ids=["samples", "batches", "modes", "batches of modes"],
)
def test_random_data_take_schedules(tables: dict[str, Any]) -> None:
    """With a rate that is halved at once, two steps are those of the first rate and of half of it."""

    def solved(rate: object, steps: int) -> Any:
        training = {"learning_rate": rate, "steps": steps, **tables.get("training", {})}
        network = {"depth": 2, **tables.get("network", {})}
        return numerics.solve(
            Experiment.from_dict({**tables, "network": network, "training": training})
        ).test_loss.values

    moving = solved("0.2*0.5**t", 3)
    assert moving[:2] == pytest.approx(solved(0.2, 1), rel=1e-10)
    assert abs(moving[2] - solved(0.2, 2)[2]) > 1e-3
    assert moving == pytest.approx(solved("0.2*min(1, exp(-0.693147180559945309*t))", 3), rel=1e-10)


def test_without_feature_learning_errors_step_by_the_tangent_kernel_and_the_rate() -> None:
    solved = numerics.solve(experiment({"activation": "tanh", "gamma0": 1e-5}, learning_rate=RATE))
    assert solved.attrs["method"] == "lazy"
    errors, kernel = solved.error.values, solved.tangent_kernel.values[0, 0]
    for t, rate in enumerate(values("rate")[0]):
        assert errors[t + 1] == pytest.approx(errors[t] - rate * kernel @ errors[t] / len(TARGETS), abs=1e-9)


def test_the_lazy_limit_does_not_offer_flows_with_momentum() -> None:
    """It follows flows of constant rate, and `auto` must choose another method at any gamma0."""
    flow = {"rule": "flow", "time": 0.2, "points": 2, "momentum": 0.5}
    e = experiment({"activation": "tanh", "gamma0": 1e-5}, **flow)
    assert isinstance(estimate_or_refusal(LazyMethod(), Problem.of(e), "none"), Refusal)


@pytest.mark.parametrize(
    ("decay", "kept"), [("1e6*t", 0.0), ("1/(0.001 + t)", 1 / 1001), ("sqrt(t)", np.exp(-2 / 3))]
)
def test_stiff_and_kinked_decay_of_a_flow_is_followed(decay: str, kept: float) -> None:
    """The factor of the initial weights is the exponential of minus the integral of the decay."""
    flow = {"rule": "flow", "time": 1.0, "points": 2, "weight_decay": decay}
    problem = Problem.of(experiment(**flow))
    rule, at = problem.program.rule, np.linspace(0, 1, 65)
    system: Any = rule.system  # type: ignore[attr-defined]
    initial, _, _ = StepwiseSystem.of(system, False, problem.numbers, at, {}).tables(noisy=False)
    assert initial[-1] == pytest.approx(kept, rel=1e-6, abs=1e-12)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "negative": ({"learning_rate": "0.1*(1 - t/3)"}, "is -0.0333333 at t = 4"),
    "infinite": (
        {"learning_rate": "1/(t - 2)**2"},
        "is not a finite real number at t = 2, because it divides by (t - 2) ** 2, which is 0 there",
    ),
    "over zero": (
        {"learning_rate": "0.1*min(1, t/0)"},
        "is not a finite real number at t = 0, because it divides by 0 (",
    ),
    "logarithm": (
        {"learning_rate": "0.1*min(1, log(t))"},
        "is not a finite real number at t = 0, because log(t) is not (",
    ),
    "another variable": ({"learning_rate": "0.1*h"}, "contains the name h"),
    "no variable": ({"learning_rate": "0.1*pi"}, "does not depend on t"),
    "quotes": ({"learning_rate": "0.1"}, "is a number in quotes"),
    "code": ({"learning_rate": "__import__('os')"}, "contains the character"),
    "velocity": ({"learning_rate": 0.1, "momentum": "0.5 + t/4"}, "is 1 at t = 2"),
    "jumps of a flow": (
        {"rule": "flow", "time": 1.0, "weight_decay": "floor(t)"},
        "contains the function floor",
    ),
    "pole of a flow": (
        {"rule": "flow", "time": 3.0, "weight_decay": "1/abs(t - 1.0001)"},
        "vanishes at t = 1.0001",
    ),
    "dip of a flow": (
        {"rule": "flow", "time": 100.0, "weight_decay": "0.3 - exp(-((t - 0.6)*20)**2)"},
        "is -0.7 at t = 0.6 (",
    ),
    "still velocity": ({"rule": "flow", "time": 1.0, "momentum": "t"}, "is 0 at t = 0"),
    "noise": ({"learning_rate": 0.1, "momentum": "t/9", "temperature": "t"}, "noise through a velocity"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schedule_that_will_not_do_is_refused_by_its_key(name: str) -> None:
    training, reason = REFUSED[name]
    with pytest.raises(SpecError, match=r"training\.\w+ = ") as told:
        experiment(**training)
    assert reason in str(told.value)


def test_what_needs_a_constant_rate_says_so() -> None:
    isotropic = {"kind": "isotropic", "batch_ratio": 2.0}
    training = {"rule": "sgd", "learning_rate": RATE, "steps": 3}
    e = Experiment.from_dict({"network": {"depth": 1}, "data": isotropic, "training": training})
    for command in (early_time, largest_rate, rate_limit):
        with pytest.raises(SpecError, match=r"learning_rate = .*depends on the time.*needs a constant"):
            command(e)


@pytest.mark.slow
def test_verify_takes_a_schedule() -> None:
    report = numerics.verify(experiment(**MOVING["all"]))
    assert report.checks
    assert all(x.passed for x in report.checks)


def test_steps_of_a_flow_read_its_coefficients_at_their_times() -> None:
    flow = {"rule": "flow", "time": 0.5, "points": 3, "weight_decay": "4*t"}
    tables = {"network": {"depth": 1}, "training": flow, "solver": {"rtol": 1e-4}}
    problem = Problem.of(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]))
    (check,) = identities.small_steps(problem, numerics.solve(problem, kernels="none"))
    assert check.passed, check


def test_the_theory_names_its_schedules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = theory_of(experiment(**MOVING["rate and decay"])).render()
    assert "Π_{t_1=s+1..t-1} (1 - η(t_1) λ(t_1))" in shown
    file = tmp_path / "e.toml"
    file.write_text(f'[network]\ndepth = 1\n[training]\nlearning_rate = "{RATE}"\n')
    assert run(["derive", str(file)]) == 0
    assert f"η(t)  training.learning_rate: learning rate, {RATE}" in capsys.readouterr().out


def test_tables_of_a_problem_hold_the_values_of_each_step() -> None:
    problem = Problem.of(experiment(**MOVING["all"]))
    rates, kept, decay = values("all")
    for name, expected in {"eta": rates, "m": kept, "lambda": decay}.items():
        assert problem.arrays[name][:STEPS] == pytest.approx(expected, abs=1e-15)
