"""Weight decay at late times: outputs are ridge regression with the final kernel and the derived kappa.

The statement is selfconsistent2023 J.1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Max, Rational, Symbol

from derive.program import P, P_train, eta, gamma0
from derive.reduce.homogeneous import NotHomogeneous
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.simulation import simulate_program
from numerics.solver import solve
from numerics.solver.long_times.solve import AtRest, at_rest, compare, regression
from numerics.solver.paths import solve_particles
from tests.chance import excess
from tests.derive.once import mean_field, mlp

Array = NDArray[np.float64]

lam = Symbol("lam", positive=True)
K = np.array([[1.0, 0.3, 0.5], [0.3, 0.8, 0.4], [0.5, 0.4, 0.9]])
"""Of two samples and a test point."""
ALIKE, OPPOSITE = np.array([1.2, 0.9, 0.0]), np.array([1.2, -0.9, 0.0])
RHO = np.array([1.0, 1.0, 0.0])
x = Symbol("x", real=True)
LEAKY = Max(0, x) + x / 10


def run(
    depth: int, activation: Any, targets: Array = ALIKE, steps: int = 60, decay: float = 0.5, **options: Any
) -> AtRest:
    network = {
        k: options.pop(k) for k in list(options) if k in ("loss", "momentum", "relative_widths", "bias")
    }
    numbers = {"rate": 0.2, "gamma": 1.5} | {
        k: options.pop(k) for k in list(options) if k in ("rate", "gamma")
    }
    program = mlp(depth, activation, weight_decay=lam, sample_weights=True, **network)
    return at_rest(
        program,
        steps=steps,
        values={eta: numbers["rate"], gamma0: numbers["gamma"], P: 3, lam: decay, P_train: 2},
        data={"K_x": K, "y": targets, "rho": RHO},
        **{"samples": 256, "replicas": 2} | options,
    )


def test_integers_of_numpy_are_integers() -> None:
    """Only the type int counted as an integer, and numbers of samples ended in an AttributeError."""
    found = run(1, "relu", steps=np.int64(8), samples=np.int64(16))
    assert np.array_equal(found.outputs, run(1, "relu", steps=8, samples=16).outputs)
    with pytest.raises(SpecError, match=r"steps = 8\.5: must be a whole number"):
        run(1, "relu", steps=8.5)  # type: ignore[arg-type]


def without_kappa(rest: AtRest, targets: Array) -> Array:
    """Return outputs minus regression with the ridge lambda."""
    return compare(rest.solved, 1.0, rest.ridge / rest.kappa, targets, RHO).difference


# -- functions of degree one ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "targets", "depth"),
    [
        ("linear", OPPOSITE, 1),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in (
                ("linear", OPPOSITE, 2),
                ("relu", ALIKE, 2),
                ("relu", ALIKE, 1),
                (LEAKY, ALIKE, 1),
                (LEAKY, ALIKE, 2),
            )
        ),
    ],
)
def test_outputs_at_rest_are_ridge_regression(activation: Any, targets: Array, depth: int) -> None:
    """Two samples and a test point, up to the remaining distance from the fixed point, which decay sets."""
    rest = run(depth, activation, targets, decay=0.6, samples=64 if activation == "linear" else 128)
    assert rest.kappa == depth + 1
    assert rest.ridge == pytest.approx(0.6 * (depth + 1))
    assert rest.converged
    assert rest.remaining < 3e-4
    assert np.abs(rest.outputs[:2] / targets[:2]).min() > 0.4  # nothing has collapsed
    assert np.abs(rest.difference).max() < 2 * rest.remaining
    assert np.abs(rest.limit).max() < 0.2 * rest.remaining + 1e-9
    assert np.abs(without_kappa(rest, targets)).max() > 0.05


def test_the_approach_is_exponential() -> None:
    """Directions without overlap with the task decay like (1 - eta lambda) and dominate at late times."""
    rest = run(1, "relu", decay=0.5, steps=80, samples=512)
    assert rest.rate == pytest.approx(1 - 0.2 * 0.5, abs=0.01)
    assert rest.distance[0] > 0.1
    assert (rest.distance[30:] < rest.distance[20:-10]).all()


@pytest.mark.slow
def test_the_exact_march_of_linear_networks_agrees() -> None:
    """`dmft solve` on the same numbers, whose particles are another route."""
    experiment = Experiment.from_dict(
        {
            "network": {"depth": 2, "gamma0": 1.5},
            "training": {"learning_rate": 0.2, "steps": 59, "loss": "sum", "weight_decay": 0.5},
        },
        kernel=K[:2, :2],
        targets=OPPOSITE[:2],
        test_kernel=K[2:],
    )
    rest = at_rest(experiment, samples=64, replicas=2)
    solution = solve(experiment)
    seen, unseen = OPPOSITE[:2] - np.asarray(solution["error"])[-1], np.asarray(solution["test_f"])[-1]
    f = np.concatenate([seen, unseen])
    np.testing.assert_allclose(rest.outputs, f, atol=1e-8)
    np.testing.assert_allclose(rest.predicted, f, atol=1e-8)


# -- other rules ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "ridge"),
    [
        ({"loss": "mean", "decay": 0.25}, 2 * 2 * 0.25),
        pytest.param(
            {"momentum": Rational(1, 2), "rate": 0.1, "steps": 120}, 2 * 0.5 / 2, marks=pytest.mark.slow
        ),
        pytest.param(
            {"relative_widths": [Rational(1, 2), 1], "depth": 2, "activation": "linear", "samples": 64},
            3 * 0.5,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["mean loss", "momentum", "unequal widths"],
)
def test_other_rules_and_widths(options: dict[str, Any], ridge: float) -> None:
    depth, activation = options.get("depth", 1), options.get("activation", "relu")
    others = {k: v for k, v in options.items() if k not in ("depth", "activation")}
    rest = run(depth, activation, ALIKE, **{"samples": 64} | others)
    assert rest.ridge == pytest.approx(ridge)
    assert rest.converged
    assert np.abs(rest.difference).max() < 2 * rest.remaining < 2e-3
    assert np.abs(rest.outputs).min() > 0.2


@pytest.mark.slow
def test_channels() -> None:
    targets = np.array([[1.2, 0.4], [0.9, 0.3]])
    rest = at_rest(
        mlp(1, "relu", outputs=2, weight_decay=lam),
        steps=60,
        values={eta: 0.2, gamma0: 1.5, P: 2, lam: 0.5},
        data={"K_x": K[:2, :2], "y": targets},
        samples=64,
        replicas=2,
    )
    assert rest.outputs.shape == (2, 2)
    assert rest.converged
    assert np.abs(rest.difference).max() < 2 * rest.remaining < 2e-3


# -- powers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "kappa", "rate"),
    [("quadratic", 3, 0.1), pytest.param("cubic", 4, 0.05, marks=pytest.mark.slow)],
    ids=["h^2", "h^3"],
)
def test_powers(activation: str, kappa: int, rate: float) -> None:
    """The kernel at rest grows with the number of paths (next test); the theorem holds for each."""
    rest = at_rest(
        mlp(1, activation, weight_decay=lam, sample_weights=True),
        steps=round(8 / rate),
        values={eta: rate, gamma0: 0.5, P: 2, lam: 0.5},
        data={"K_x": K[:2, :2], "y": ALIKE[:2], "rho": [1.0, 0.0]},
        samples=32,
        replicas=4,
    )
    assert rest.kappa == kappa
    assert rest.outputs[0] > 0.5
    assert np.abs(rest.difference).max() < 2e-3
    bare = compare(rest.solved, 1.0, 0.5, ALIKE[:2], np.array([1.0, 0.0]))
    assert np.abs(bare.difference).max() > 0.05


@pytest.mark.slow
def test_powers_of_few_units_win() -> None:
    """A square's unit shrinks below some size and grows beyond it: of more units fewer, larger ones are left.

    There is no rest point in the limit of many; the kernel, fixed for rectifiers, grows without bound.
    """
    grown = {}
    for activation, samples in (("quadratic", 64), ("quadratic", 512), ("relu", 64), ("relu", 512)):
        rest = at_rest(
            mlp(1, activation, weight_decay=lam),
            steps=50,
            values={eta: 0.05, gamma0: 0.7, P: 1, lam: 0.4},
            data={"K_x": [[1.0]], "y": [1.2]},
            samples=samples,
            replicas=2,
        )
        grown[activation, samples] = rest.solved.value("K")[0, 0, -1, -1]
    assert grown["quadratic", 512] > 1.4 * grown["quadratic", 64]
    assert grown["relu", 512] == pytest.approx(grown["relu", 64], rel=0.02)


# -- networks without the theorem ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", pytest.param("erf", marks=pytest.mark.slow)])
def test_without_homogeneity_it_fails(activation: str) -> None:
    """Refused; and with the kappa of a rectifier the deviation is far beyond all errors."""
    with pytest.raises(NotHomogeneous, match="not homogeneous"):
        run(1, activation)
    program = mlp(1, activation, weight_decay=lam, sample_weights=True)
    values, data = {eta: 0.2, gamma0: 1.5, P: 3, lam: 0.6}, {"K_x": K, "y": ALIKE, "rho": RHO}
    solved = solve_particles(mean_field(program), steps=70, values=values, data=data, samples=64, replicas=4)
    rest = compare(solved, 2.0, 1.2, ALIKE, RHO)
    assert rest.converged
    assert np.abs(rest.limit).max() > 0.05
    assert np.abs(rest.limit / rest.limit_stderr).max() > 20


def test_units_held_on_kinks_need_gradients_averaged_in_time() -> None:
    """Targets of opposite sign push some rectifiers from both sides onto h = 0, where steps jump to and fro.

    The kernel of one moment, or its mean, then misses the outputs; that of mean gradients does not, up to the
    length of a step.
    """
    rest = run(1, "relu", OPPOSITE, steps=100, decay=0.3)
    assert not rest.converged
    assert "not less and less" in rest.status
    assert np.isnan(rest.limit).all()
    assert np.abs(rest.averaged[:2]).max() < 3e-3
    assert rest.moves[-10:].max() > 1e-3
    steps = np.arange(75, 100)
    means = []
    for f, k in zip(rest.solved.runs["f", ()], rest.solved.runs["K", ()], strict=True):
        kernel = k[..., steps, steps].mean(axis=-1)
        means.append(f[steps].mean(axis=0) - regression(kernel, OPPOSITE, RHO, rest.ridge))
    assert np.abs(np.mean(means, axis=0)[:2]).max() > 4 * np.abs(rest.averaged[:2]).max()


def test_strong_decay_ends_at_zero() -> None:
    """Check the theorem for lambda > gamma0 y sqrt(K), with a kernel that is zero."""
    rest = run(1, "linear", np.array([1.0, 0.0, 0.0]), decay=3.0)
    assert np.abs(rest.outputs).max() < 1e-6
    assert np.abs(rest.solved.value("K")[..., -1, -1]).max() < 1e-6


def test_what_has_not_come_to_rest_is_said() -> None:
    rest = run(1, "relu", steps=10, decay=0.1)
    assert not rest.converged
    assert rest.status.startswith("not at rest")
    assert np.abs(rest.difference).max() > 1e-3


def test_refusals() -> None:
    with pytest.raises(ValueError, match="steps = 3"):
        run(1, "relu", steps=3)
    with pytest.raises(ValueError, match="for a program, give steps, values and data"):
        at_rest(mlp(1, "relu", weight_decay=lam))
    flow = {"rule": "flow", "time": 5.0, "points": 20, "weight_decay": 0.1}
    tables = {"network": {"depth": 1}, "training": flow}
    experiment = Experiment.from_dict(tables, kernel=np.eye(1), targets=np.ones(1))
    with pytest.raises(SpecError, match=r"training\.rule"):
        at_rest(experiment)
    few = {"training.rule": "gd", "training.steps": 3, "solver.method": "rest"}
    unused = {f"training.{x}": None for x in ("time", "points")}
    with pytest.raises(SpecError, match=r"cannot be told from 4 times, .*at least 8 times"):
        solve(experiment.replace({**few, **unused, "training.learning_rate": 0.1}))


# -- finite networks -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "depth"), [("linear", 2), ("relu", 1), ("relu", 2)])
def test_networks_at_rest(activation: str, depth: int) -> None:
    """Compare outputs at infinite width with the theory, and with ridge regression.

    The ridge regression of each network has its own kernel.
    """
    targets, decay, steps = ALIKE, 0.6, 60
    rest = run(depth, activation, targets, decay=decay, steps=steps, samples=1024, replicas=8)
    program = mlp(depth, activation, weight_decay=lam, sample_weights=True)
    given: dict[str, Any] = {
        "steps": steps - 1,
        "values": {eta: 0.2, gamma0: 1.5, P: 3, lam: decay},
        "data": {"K_x": K, "y": targets, "rho": RHO},
    }
    ends, gaps = {}, []
    for width, networks in ((60, 80), (120, 60)):
        found = []
        for seed in range(networks):
            one = simulate_program(program, width=width, seeds=1, seed=1000 * width + seed, **given)
            found.append(one["f"].mean[-1])
            if width == 120 and seed < 5:
                kernel = network_kernel(one, depth, activation)
                gaps.append(found[-1] - regression(kernel, targets, RHO, rest.ridge))
        x = np.array(found)
        ends[width] = x.mean(axis=0), x.std(axis=0, ddof=1) / np.sqrt(networks)
    limit = 2 * ends[120][0] - ends[60][0]
    error = np.hypot(np.hypot(2 * ends[120][1], ends[60][1]), rest.outputs_stderr)
    assert excess((limit - rest.outputs) / error, 59) < 1
    assert error.max() < 0.05
    assert np.abs(gaps).max() < 2e-3


def network_kernel(one: Any, depth: int, activation: str) -> Array:
    """Return a network's tangent kernel after the last step: sum over layers of <g g> <phi phi>."""
    name = "H" if activation == "linear" else "Phi"
    below = [K, *(one[name][n].mean[-1, -1] for n in range(1, depth + 1))]
    above = [*(one["G"][n].mean[-1, -1] for n in range(1, depth + 1)), np.ones((3, 3))]
    return np.asarray(sum(g * k for g, k in zip(above, below, strict=True)))


@pytest.mark.slow
def test_networks_on_kinks() -> None:
    """Networks of finite width are stationary on average only, with the time-averaged kernel of gradients."""
    program, steps = mlp(1, "relu", weight_decay=lam, sample_weights=True), 120
    values: dict[Any, Any] = {eta: 0.2, gamma0: 1.5, P: 3, lam: 0.25}
    data, late = {"K_x": K, "y": OPPOSITE, "rho": RHO}, slice(steps - 30, steps)
    of_gradients, of_kernels = [], []
    for seed in range(4):
        one = simulate_program(
            program, width=400, steps=steps - 1, seeds=1, seed=seed, values=values, data=data
        )
        pairs = one["G"][1].mean[late, late] * K + one["Phi"][1].mean[late, late]
        outputs = one["f"].mean[late].mean(axis=0)
        means = pairs.mean(axis=(0, 1)), np.einsum("ttab->ab", pairs) / 30
        for found, kernel in zip((of_gradients, of_kernels), means, strict=True):
            found.append(outputs - regression(kernel, OPPOSITE, RHO, 0.5))
    assert np.abs(np.mean(of_gradients, axis=0)[:2]).max() < 1.5e-3
    assert np.abs(np.mean(of_kernels, axis=0)[:2]).max() > 0.015
