"""Tests of the choice of a method: from the front end, by cost and error, refusals with reasons."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Function

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.errors import Diverged, NotConverged, SpecError, Unserved
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.solver import choose, explain, solve
from numerics.solver.method import MethodEstimate, Refusal
from numerics.solver.quadrature import solve as nodes
from numerics.solver.quadrature.method import QuadratureMethod
from numerics.solver.registry import METHODS
from numerics.verification import Effort, sampled
from tests.chance import excess, in_errors
from tests.derive.once import mlp

STEPS = {"learning_rate": 0.2, "steps": 6}
X = np.array([[1.0, 0.2, -0.5], [0.3, -1.0, 0.8]])
Y = np.array([1.0, -0.6])


def experiment(
    network: dict[str, Any], training: dict[str, Any] | None = None, samples: int = 1, **solver: Any
) -> Experiment:
    tables = {"network": network, "training": training or STEPS, "solver": solver}
    return Experiment.from_dict(tables, inputs=X[:samples], targets=Y[:samples])


TANH = {"depth": 1, "activation": "tanh"}


@pytest.mark.parametrize(
    ("network", "training", "samples", "method"),
    [
        ({"depth": 2}, STEPS, 2, "march"),
        ({"depth": 1, "bias": True}, STEPS, 2, "march"),
        (TANH, STEPS, 1, "nodes"),
        (TANH, STEPS, 2, "nodes"),
        (TANH, {"rule": "flow", "time": 0.5, "points": 2}, 1, "nodes"),
        ({"depth": 2, "activation": "tanh"}, STEPS, 2, "paths"),
        ({"depth": 2, "activation": "tanh", "gamma0": 1e-6}, STEPS, 2, "lazy"),
        ({"depth": 3, "activation": "relu", "gamma0": 1e-5}, STEPS, 1, "lazy"),
    ],
)
def test_the_best_that_fits(
    network: dict[str, Any], training: dict[str, Any], samples: int, method: str
) -> None:
    choice = explain(experiment(network, training, samples))
    assert choice.method is not None
    assert choice.method.name == method
    assert f"runs: {method}" in str(choice)


def test_nodes_reach_their_accuracy_where_paths_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with one hidden layer, by nodes and by the reference solver's series of sampled paths.

    Trials with few nodes take a millisecond each, on any machine.
    """
    ticks = count()
    monkeypatch.setattr(nodes, "clock", SimpleNamespace(process_time=lambda: next(ticks) / 1000))
    e = experiment(TANH)
    exact = solve(experiment(TANH, accuracy=1e-10))
    found = solve(e)
    assert found.attrs["method"] == "nodes"
    assert found.attrs["error_estimate"] < 1e-6
    np.testing.assert_allclose(found.train_loss, exact.train_loss, rtol=0, atol=1e-6)
    sampled = solve(experiment(TANH, method="paths", accuracy=1e-2))
    gap = np.maximum(
        np.abs(sampled.train_loss - exact.train_loss).values - 1e-3, 0
    )  # a bias of one over samples
    assert excess(in_errors(gap, sampled.train_loss_stderr), 7) < 1


def test_the_judge_says_what_it_cannot_and_what_diverges() -> None:
    """Numbers that overflow between its demands, and responses of what jumps to sources that are equal."""
    diverging = {"training": {"learning_rate": 0.5, "steps": 9}, "solver": {"method": "direct"}}
    given = {"kernel": [[3.0]], "targets": [2.0]}
    with pytest.raises(Diverged, match="at step"):
        solve(Experiment.from_dict({"network": {"depth": 1}, **diverging}, **given))
    tables = {"network": {"depth": 2, "activation": "abs"}, **diverging}
    twice = Experiment.from_dict(tables, kernel=np.ones((2, 2)), targets=[1.0, 1.0])
    assert all(x.passed for x in sampled.direct_evaluation(Problem.of(twice), Effort(paths=64)))


def test_paths_do_not_step_over_an_error_that_jumps() -> None:
    """Check that no step goes beyond the margin, where the error is zero.

    Kernels were those of the end of such a step, 1e7 for h + h^2/10, because grids were judged by errors and
    losses that were zero on all of them.
    """
    tables = {
        "network": {"depth": 2, "activation": "h + 0.1*h**2"},
        "training": {"objective": "hinge", "rule": "flow", "time": 4.0, "points": 7, "grid": "log"},
        "solver": {"samples": 64},
    }
    given = {"kernel": [[1.0]], "targets": [1.0]}
    with pytest.raises(SpecError, match="the error is a discontinuous function") as refused:
        solve(Experiment.from_dict(tables, **given))
    assert refused.value.key == "training.objective"
    steps = {"objective": "hinge", "learning_rate": 0.2, "steps": 5}
    found = solve(Experiment.from_dict(tables | {"training": steps}, **given))
    assert float(found.G.max()) < 10


@pytest.mark.slow
def test_the_steps_of_moving_nodes_are_within_their_error() -> None:
    """For a linear network points are exact, and the only error is that of steps in time."""
    tables = {
        "network": {"depth": 1, "activation": "1.5*h"},
        "training": {"rule": "flow", "time": 5.0, "points": 3},
        "solver": {"method": "nodes"},
    }
    e = Experiment.from_dict(tables, kernel=[[1.0, 0.3], [0.3, 0.8]], targets=[1.0, -0.6])
    rough, fine = (solve(e.replace({"solver.accuracy": x}), kernels="none") for x in (1e-2, 1e-3))
    gap = np.abs(rough.error - fine.error).max() / np.abs(fine.error).max()
    assert gap < rough.attrs["error_estimate"]


@pytest.mark.slow
def test_a_method_that_does_not_converge_gives_way_to_the_next() -> None:
    """Steps of the march that were stable would be too many; those of sampled paths need not be."""
    spec: dict[str, Any] = {
        "network": {"depth": 2, "gamma0": 0.1},
        "training": {"rule": "flow", "time": 10.0, "points": 3, "loss": "sum"},
        "solver": {"rtol": 1e-3},
    }
    e = Experiment.from_dict(spec, kernel=[[1e6]], targets=[1.0])
    said: list[str] = []
    found = solve(e, kernels="none", say=said.append)
    assert found.attrs["method"] == "paths"
    assert found.attrs["not_converged"].startswith("march: the integrator diverges on every time grid")
    assert said[-1].startswith("march did not converge; paths:")
    assert found.train_loss.values[-1] < 1e-9
    with pytest.raises(NotConverged, match="diverges on every time grid"):
        solve(e.replace({"solver.method": "march"}))


def test_fields_that_move_far_for_their_kernels_are_not_lazy() -> None:
    """The slopes of h^2 add up with the layers: the forecast from data and rate is too small."""
    tables = {
        "network": {"depth": 2, "activation": "h**2", "gamma0": 0.3},
        "training": {"learning_rate": 0.1, "steps": 1},
        "solver": {"method": "lazy"},
    }
    e = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
    assert solve(e).attrs["status"] == "not converged"
    lazy = solve(e.replace({"network.gamma0": 0.01}))
    exact = solve(e.replace({"network.gamma0": 0.01, "solver.method": "direct", "solver.samples": 2**13}))
    gap = np.abs(lazy.Phi - exact.Phi)[:, -1, -1].max() / lazy.Phi.max()
    assert lazy.attrs["status"] == "ok"
    assert gap < lazy.attrs["error_estimate"] + 4 * exact.Phi_stderr.max() / lazy.Phi.max()


def test_heavy_tails_make_kernels_move_further_than_fields() -> None:
    """For h^3 in two layers errors are wrong by half, although fields move by less than a tenth."""
    tables = {
        "network": {"depth": 2, "activation": "h**3/3", "gamma0": 0.03},
        "training": {"learning_rate": 0.1, "steps": 4},
        "solver": {"method": "lazy"},
    }
    e = Experiment.from_dict(tables, kernel=[[1.0, 0.3], [0.3, 0.8]], targets=[1.0, -0.5])
    found = solve(e, kernels="none")
    assert found.attrs["status"] == "not converged"
    assert found.attrs["error_estimate"] > 0.5
    bounded = solve(e.replace({"network.activation": "tanh"}), kernels="none")
    assert bounded.attrs["status"] == "ok"
    assert bounded.attrs["error_estimate"] < 1e-3


def test_with_a_kink_the_lazy_limit_is_off_in_first_order() -> None:
    """Units that change sides are as many as fields move far."""
    tables = {
        "network": {"depth": 1, "activation": "abs", "gamma0": 0.1},
        "training": {"learning_rate": 0.3, "steps": 4},
    }
    e = Experiment.from_dict(tables, kernel=[[1.0, 0.3], [0.3, 0.8]], targets=[1.0, -0.5])
    lazy, paths = (solve(e.replace({"solver.method": x, "solver.samples": 4096})) for x in ("lazy", "paths"))
    gap = np.abs(lazy.G - paths.G).values[0, -1, -1, 0, 1]
    noise = 4 * paths.G_stderr.values[0, -1, -1, 0, 1]
    assert lazy.attrs["error_estimate"] ** 2 + noise < gap < lazy.attrs["error_estimate"] + noise


def test_the_lazy_limit_is_within_its_error_of_the_march() -> None:
    network = {"depth": 2, "gamma0": 1e-3}
    march = solve(experiment(network, samples=2))
    lazy = solve(experiment(network, samples=2, method="lazy"))
    gap = np.abs(march.train_loss - lazy.train_loss).max()
    assert 0 < gap < lazy.attrs["error_estimate"]
    np.testing.assert_allclose(lazy.Phi[:, 0, 0], march.Phi[:, 0, 0], atol=1e-9)


def test_the_judge_agrees_with_the_march() -> None:
    training = STEPS | {"steps": 2}
    march, judge = (solve(experiment({"depth": 2}, training, 2, method=m)) for m in ("march", "direct"))
    np.testing.assert_allclose(judge.train_loss, march.train_loss, rtol=1e-10)
    np.testing.assert_allclose(judge.Phi, march.Phi, rtol=1e-10, atol=1e-12)


def test_ridge_regression_at_rest() -> None:
    training = {"learning_rate": 0.2, "steps": 40, "weight_decay": 1.0}
    found = solve(experiment({"depth": 1}, training, method="rest"))
    assert found.attrs["distance_from_ridge"] < 1e-2
    assert "rest" in found.attrs


def test_whoever_asks_for_samples_gets_paths() -> None:
    choice = explain(experiment(TANH, samples=1))
    assert choice.method is not None
    asked = explain(
        Experiment.from_dict(
            {"network": TANH, "training": STEPS, "solver": {"samples": 64}}, inputs=X[:1], targets=Y[:1]
        )
    )
    assert asked.method is not None
    assert (choice.method.name, asked.method.name) == ("nodes", "paths")


def test_explain_takes_a_program_with_numbers_as_solve_does() -> None:
    given: dict[str, Any] = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "times": range(3)}
    given["arrays"] = {"K_x": [[1.0]], "y": [1.0]}
    choice = explain(mlp(2), **given)
    assert choice.method is not None
    assert choice.method.name == "march"
    by_name = explain(mlp(2), **given, solver=Solver(method="paths", samples=64))
    assert by_name.method is not None
    assert by_name.method.name == "paths"
    with pytest.raises(SpecError) as caught:
        explain(mlp(2), numbers={"eta": 0.1}, arrays=given["arrays"], times=range(3))
    assert "gamma0" in str(caught.value)


def test_a_method_by_name_that_does_not_fit_says_why() -> None:
    with pytest.raises(SpecError) as caught:
        solve(experiment({"depth": 2, "activation": "tanh"}, method="march"))
    assert (caught.value.key, caught.value.value) == ("solver.method", "march")
    assert "not linear in fields and Gaussian sources" in str(caught.value)
    assert "network.activation" in str(caught.value)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "symbolic depth": ({"network": {"depth": "L", "activation": "tanh"}}, {"inputs": X, "targets": Y}),
    "an error that jumps": (
        {
            "network": {"depth": 2, "activation": "tanh"},
            "training": {"objective": "hinge", "rule": "flow", "time": 1.0},
        },
        {"inputs": X, "targets": Y},
    ),
    "a method by name": (
        {"network": {"depth": 2, "activation": "tanh"}, "solver": {"method": "lazy"}},
        {"inputs": X, "targets": Y},
    ),
}
KEYS = {
    "symbolic depth": "network.depth",
    "an error that jumps": "training.objective",
    "a method by name": "solver.method",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_one_sentence_and_the_others_are_explained(case: str) -> None:
    """A refusal nested the messages of all methods in one line of a thousand characters."""
    tables, arrays = REFUSED[case]
    e = Experiment.from_dict({"training": STEPS, **tables}, **arrays)
    with pytest.raises(SpecError) as caught:
        solve(e)
    said = str(caught.value)
    assert caught.value.key == KEYS[case]
    assert said.count("(accepted: ") == 1
    assert len(said) < 300
    assert not [m.name for m in METHODS if f"{m.name}: " in said]
    told = str(explain(e)).splitlines()
    assert [line.split()[0] for line in told[1:-1]] == [m.name for m in METHODS]
    assert max(line.count("(accepted: ") for line in told) == 1


def test_every_method_answers_with_cost_and_error_or_a_reason() -> None:
    for network in ({"depth": 2}, TANH, {"depth": 2, "activation": "relu", "bias": True}):
        for method, said in choose(Problem.of(experiment(network))).answers:
            if isinstance(said, MethodEstimate):
                assert said.cost > 0, method.name
                assert said.memory > 0
                assert 0 < said.error < 1
            else:
                assert isinstance(said, Refusal)
                assert said.key
                assert said.reason


@pytest.mark.parametrize(
    ("objective", "network"),
    [
        ("logistic", {"depth": 2}),
        ("hinge", {"depth": 1}),
        ("cross-entropy", {"depth": 1, "activation": "tanh", "outputs": 2}),
    ],
)
def test_losses_of_an_output(objective: str, network: dict[str, Any]) -> None:
    """The error is minus the slope of the loss, and training lowers the loss."""
    targets = np.eye(2) if objective == "cross-entropy" else np.sign(Y)
    e = Experiment.from_dict(
        {"network": network, "training": STEPS | {"objective": objective}}, inputs=X, targets=targets
    )
    found = solve(e, kernels="none")
    start = {"logistic": np.log(2), "hinge": 1.0, "cross-entropy": np.log(2)}[objective]
    assert found.train_loss[0].item() == pytest.approx(start, abs=0.02)
    assert found.train_loss[-1] < found.train_loss[0]
    slope = {"logistic": targets / 2, "hinge": targets, "cross-entropy": targets - 0.5}[objective]
    np.testing.assert_allclose(found.error[0], slope, atol=0.02)
    if objective == "cross-entropy":  # probabilities of the classes sum to one
        np.testing.assert_allclose(found.error.sum("channel"), 0, atol=1e-9)


@pytest.mark.parametrize(
    "targets",
    [pytest.param(np.eye(2), marks=pytest.mark.slow), np.array([[-2.3, -0.2], [0.4, 0.1]])],
)
def test_losses_over_all_outputs_are_marched(targets: NDArray[np.float64]) -> None:
    """The error of each output is a sum over all of them: with linear layers no paths are needed for it.

    Where targets are not probabilities losses may be negative, of paths too.
    """
    tables = {
        "network": {"depth": 2, "outputs": 2, "gamma0": 2.0},
        "training": {"learning_rate": 0.05, "steps": 3, "objective": "cross-entropy", "loss": "sum"},
    }
    e = Experiment.from_dict(tables, inputs=X, targets=targets)
    found, judge = solve(e), solve(e.replace({"solver.method": "direct"}))
    assert found.attrs["method"] == "linear causal march"
    for name in ("error", "train_loss", "Phi", "G", "tangent_kernel"):
        np.testing.assert_allclose(found[name], judge[name], atol=1e-13)
    paths = solve(e.replace({"solver.method": "paths", "solver.samples": 64}))
    np.testing.assert_allclose(paths.train_loss, found.train_loss, atol=0.02)
    assert bool((found.train_loss < 0).any()) == bool((targets < 0).any())


def test_errors_over_all_outputs_do_not_overflow() -> None:
    """After a step of a huge rate the error is that of classes which are certain."""
    tables = {
        "network": {"depth": 1, "outputs": 2, "gamma0": 0.1},
        "training": {"learning_rate": 3e3, "steps": 1, "objective": "cross-entropy"},
    }
    found = solve(Experiment.from_dict(tables, inputs=X, targets=np.eye(2)))
    assert found.attrs["method"] == "linear causal march"
    assert np.abs(found.f[1]).min() > 710  # its exponential is infinite
    certain = np.eye(2)[np.argmax(found.f[1].values, axis=1)]
    np.testing.assert_allclose(found.error[1], np.eye(2) - certain, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"network": {"depth": 1}, "training": {"objective": "cross-entropy"}}, "training.objective"),
        (
            {"network": {"depth": 1}, "data": {"kind": "isotropic"}, "training": {"objective": "hinge"}},
            "training.objective",
        ),
    ],
)
def test_losses_that_do_not_go_with_the_rest(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError) as caught:
        Experiment.without_arrays(changes)
    assert caught.value.key == key


def test_a_program_with_its_numbers_and_arrays() -> None:
    numbers = {"eta": 0.2, "gamma0": 1.0}
    arrays = {"K_x": X[:1] @ X[:1].T / 3, "y": Y[:1]}
    found = solve(mlp(1, "tanh", "gd", "mean"), numbers=numbers, arrays=arrays, times=range(7))
    same = solve(experiment(TANH))
    np.testing.assert_allclose(found.train_loss, same.train_loss, rtol=1e-9)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"numbers": {"eta": 0.2}}, "numbers.gamma0"),
        ({"numbers": {"eta": 0.2, "gamma0": 1.0, "zeta": 1.0}}, "numbers.zeta"),
        ({"arrays": {"K_x": [[1.0]]}}, "arrays.y"),
        ({"arrays": {"K_x": [[1.0]], "y": [1.0], "z": [1.0]}}, "arrays.z"),
        ({"times": None}, "times"),
        ({"times": [0.0, 2.0, 1.0]}, "times"),
    ],
)
def test_what_a_program_lacks_is_named(given: dict[str, Any], key: str) -> None:
    complete: dict[str, Any] = {
        "numbers": {"eta": 0.2, "gamma0": 1.0},
        "arrays": {"K_x": [[1.0]], "y": [1.0]},
        "times": range(3),
    }
    with pytest.raises(SpecError) as caught:
        Problem.of(mlp(1, "tanh"), **(complete | given))
    assert caught.value.key == key


@pytest.mark.slow
def test_noise_of_a_flow_is_that_of_short_steps_at_any_variance() -> None:
    """Noise is the same for all weights, whatever their initial variance."""
    kernels = []
    for training in (
        {"rule": "flow", "time": 0.25, "points": 3},
        {"learning_rate": 5e-3, "steps": 50},
    ):
        tables = {
            "network": {"depth": 1, "init_variance": [2.0, 0.5]},
            "training": training | {"temperature": 0.5, "loss": "sum"},
            "solver": {"rtol": 1e-4},
        }
        found = solve(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]))
        kernels.append(float(found.Phi[0, -1, -1, 0, 0]))
    assert kernels[0] == pytest.approx(kernels[1], rel=2e-3)


def test_a_linear_problem_of_many_samples_is_not_asked_of_paths() -> None:
    """Their forecast lists every entry of every kernel, for nothing: the march is exact."""
    e = Experiment.from_dict(
        {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 2}},
        kernel=np.eye(200),
        targets=np.ones(200),
    )
    found = choose(Problem.of(e), every=False)
    assert found.method is not None
    assert found.method.name == "march"
    assert "paths" not in {m.name for m, _ in found.answers}


def test_the_judge_says_how_far_its_samples_may_be_off() -> None:
    exact = solve(experiment(TANH, samples=1))
    judge = solve(experiment(TANH, samples=1, method="direct"))
    assert judge.attrs["replicas"] == 8
    for name in ("train_loss", "error", "Phi"):
        gap = np.abs(judge[name] - exact[name]).values
        assert excess(in_errors(gap, judge[f"{name}_stderr"]), 7) < 1


def test_paths_of_a_linear_program_are_exact_and_said_to_be() -> None:
    """A matrix used twice, which no march takes: two seeds agree to rounding."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, a, b, c = GivenVector("x", pixels, "K_x"), Field("a", units), Field("b", units), Field("c", units)
    U, w = GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    T, f = GaussianMatrix("T", units, units), Function("f")
    forward = {
        a(mu, t): U @ x(mu),
        b(mu, t): T @ a(mu, t),
        c(mu, t): T @ b(mu, t),
        f(mu, t): Mean(w.symbol * c(mu, t)) / gamma0,
    }
    network = Network("twice", (a, b, c), forward, weights=(U, T, w), given=(x,))
    program = network.train((Function("y")(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    numbers, arrays = {"eta": 0.02, "gamma0": 0.5}, {"K_x": [[1.0]], "y": [1.0]}
    problem = Problem.of(program, numbers=numbers, arrays=arrays, times=range(4))
    choice = choose(problem)
    assert choice.method is not None
    assert choice.method.name == "paths"
    said = next(x for method, x in choice.answers if method is choice.method)
    assert isinstance(said, MethodEstimate)
    assert said.error <= problem.solver.rtol
    solvers = (problem.solver.model_copy(update={"seed": seed}) for seed in (0, 1))
    one, other = (solve(replace(problem, solver=solver)) for solver in solvers)
    assert np.abs(one.error - other.error).max() < 1e-10


def test_a_method_that_cannot_compute_an_average_is_not_said_to_diverge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was listed among the methods that did not converge."""

    def unserved(*_: Any) -> None:
        raise Unserved("this average is not supported")

    monkeypatch.setattr(QuadratureMethod, "run", unserved)
    tables = {"network": {"depth": 1, "activation": "tanh"}, "training": {"learning_rate": 0.1, "steps": 1}}
    said: list[str] = []
    found = solve(
        Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]), kernels="none", say=said.append
    )
    assert found.attrs["method"] != "nodes"
    assert found.attrs["refused"] == "nodes: this average is not supported"
    assert "not_converged" not in found.attrs
    assert said[-1].startswith("nodes does not apply; ")
