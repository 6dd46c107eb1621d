"""Sampled paths against linear theories, which are exact, and against finite networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Function, S, Sum, Symbol

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    Population,
    Program,
    eta,
    gamma0,
    mlp,
    mu,
    t,
)
from derive.theory.fluctuations import fluctuations
from numerics.errors import Diverged, NotConverged, SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.fluctuations import finite_width
from numerics.fluctuations.dense import DenseFluctuations
from numerics.fluctuations.expanded_problem import lowered, size_growth
from numerics.fluctuations.lowered import LoweredFluctuations, TheorySizes
from numerics.fluctuations.methods import SampledMethod
from numerics.fluctuations.sampled import (
    SampledFluctuations,
    SampledMoments,
    extrapolated,
    sample_fluctuations,
)
from numerics.lowering.expressions import KnownArrays
from tests.chance import excess
from tests.numerics.fluctuations.estimates import expansion_in_width
from tests.numerics.fluctuations.networks import Training, train
from tests.numerics.fluctuations.reference import load
from tests.numerics.zoo import CASES, normalised

SEEDS = 5


def arrays(depth: int, steps: int, eta: float, kernel: Any, targets: Any, phi: str) -> LoweredFluctuations:
    """Return the fluctuations of a perceptron as arrays."""
    values = {"eta": eta, "gamma0": 1.0, "P": len(targets), "L": depth}
    known = KnownArrays(values, {"K_x": np.array(kernel), "y": np.array(targets)})
    program = mlp(depth) if phi == "linear" else mlp(depth, phi)
    return LoweredFluctuations(fluctuations(program), TheorySizes(values, steps + 1), known)


def number(lowered: LoweredFluctuations, name: str, *arguments: int) -> int:
    """Return the index of an order parameter."""
    (key,) = (k for k in lowered.names if k[0] == name)
    return int(lowered.parameters.find(key, [np.array([x]) for x in arguments])[0])


def distances(samples: list[Any], expected: Any, error: Any = 0.0) -> Any:
    """Return the distances of means over samples from expected values, in standard errors."""
    found = np.array(samples)
    mean, scatter = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(len(found))
    return (mean - expected) / np.maximum(np.hypot(scatter, error), 1e-9)


@pytest.fixture(scope="module")
def linear() -> tuple[LoweredFluctuations, list[SampledMoments]]:
    lowered = arrays(2, 2, 0.3, [[1.0]], [1.0], "linear")
    return lowered, [sample_fluctuations(lowered, 512, seed) for seed in range(SEEDS)]


@pytest.mark.parametrize("name", ["f", "A", "B", "G", "H"])
def test_a_linear_theory_on_paths(
    linear: tuple[LoweredFluctuations, list[SampledMoments]], name: str
) -> None:
    """Variances and shifts agree with Wick's theorem, those of responses too."""
    lowered, samples = linear
    exact = DenseFluctuations(lowered)
    arguments = {"f": (1, 2), "A": (1, 1, 2, 0), "B": (1, 1, 2, 2), "G": (1, 2, 2), "H": (2, 1, 1, 2, 2)}
    k = number(lowered, name, *arguments[name])
    moments = [(x.covariance[k, k], x.shift[k]) for x in samples if x.shift is not None]
    assert excess(distances(moments, [exact.covariance[k, k], exact.shift[k]]), SEEDS - 1) < 1


def test_fields_that_follow_from_others() -> None:
    """Fields of the second layer scatter as those of the first one do: ``d H^2 / d H^1 = 1``, entry by entry.

    Two samples of a linear network: fields after a step are sums of those at the start, with coefficients
    that differ between networks, so that their singular covariance moves where it is zero.
    """
    theory = arrays(2, 1, 0.2, [[1.0, 0.3], [0.3, 0.8]], [1.0, -0.5], "linear")
    samples = [SampledFluctuations(theory, 512, seed, shifts=False) for seed in range(SEEDS)]
    assert any(len(basis.weak) for _, basis, _ in samples[0]._sources)
    entries = [(m, n, t, s) for m in (1, 2) for n in (1, 2) for t in (0, 1) for s in (0, 1)]
    found = []
    for x in samples:
        vectors, inverse = x.directions
        D = vectors @ x.D @ inverse
        alike = [
            {number(theory, "H", 1, m, n, t, s), number(theory, "H", 1, n, m, s, t)} for m, n, t, s in entries
        ]
        found.append(
            [D[number(theory, "H", 2, *e), list(a)].sum() for e, a in zip(entries, alike, strict=True)]
        )
    assert excess(distances(found, 1.0, 1e-6), SEEDS - 1) < 1
    np.testing.assert_allclose(np.mean(found, axis=0), 1.0, rtol=0, atol=0.2)


def pooled() -> Program:
    """Return a program with a field that is the mean of another one over two positions."""
    units, inputs = Population("units"), Population("input", given=True)
    p = Symbol("p", integer=True, positive=True)
    f, y = Function("f"), Function("y")
    x, a, b = GivenVector("x", inputs, "K_x"), Field("a", units), Field("b", units)
    U, w = GaussianMatrix("U", units, inputs), GaussianVector("w", units)
    forward = {
        a(p, mu, t): U @ x(p, mu),
        b(mu, t): Sum(a(p, mu, t), (p, 1, 2)) / 2,
        f(mu, t): Mean(w.symbol * b(mu, t)) / gamma0,
    }
    ranges = (IndexRange(p, S.One, S(2)),)
    net = Network("mean over positions", (a, b), forward, weights=(U, w), given=(x,), ranges=ranges)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def pooled_problem() -> Problem:
    """Return the problem with two samples of two positions."""
    x = np.array([[[1.0, 0.3], [0.5, -0.2]], [[0.2, 0.8], [0.3, 0.4]]])
    arrays = {"K_x": np.einsum("pmi,qni->pmqn", x, x), "y": np.array([1.0, -0.6])}
    return Problem.of(pooled(), numbers={"eta": 0.2, "gamma0": 1.0}, arrays=arrays, times=range(3))


def noisy_problem() -> Problem:
    """Return the problem of weights with noise and decay, whose sources have sums as covariances."""
    training = {"learning_rate": 0.1, "steps": 2, "temperature": 0.3, "weight_decay": 0.2}
    tables = {"network": {"depth": 1}, "training": training}
    return Problem.of(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]))


@pytest.mark.parametrize("make", [pooled_problem, noisy_problem])
def test_linear_programs_on_paths(make: Any) -> None:
    """Variances and shifts of outputs and correlations agree with Wick's theorem at all times."""
    theory = lowered(make())
    exact = DenseFluctuations(theory)
    samples = [sample_fluctuations(theory, 512, seed) for seed in range(SEEDS)]
    for found, expected in (
        ([x.values for x in samples], exact.values),
        ([np.diag(x.covariance) for x in samples], np.diag(exact.covariance)),
        ([x.shift for x in samples], exact.shift),
    ):
        assert excess(distances(found, expected), SEEDS - 1) < 1


@pytest.mark.slow
def test_one_matrix_in_sequence() -> None:
    """Vectors that one matrix acts on in turn have one covariance."""
    c = CASES["linear in sequence"]
    theory = lowered(Problem.of(c.make(), numbers=c.numbers, arrays=c.arrays, times=range(2)))
    exact = DenseFluctuations(theory)
    samples = [sample_fluctuations(theory, 1024, seed) for seed in range(SEEDS)]
    at = [number(theory, "f", sample, 1) for sample in (1, 2)]
    moments = [(np.diag(x.covariance)[at], x.shift[at]) for x in samples if x.shift is not None]
    expected = [np.diag(exact.covariance)[at], exact.shift[at]]
    assert excess(distances(moments, expected), SEEDS - 1) < 1


@pytest.mark.slow
def test_many_steps_of_two_layers() -> None:
    """Twelve steps, whose fields nearly follow from those of the first; networks of three widths."""
    training, widths = Training(2, np.eye(1), np.ones(1), 0.1, 12, "tanh"), (16, 32, 64)
    theory = arrays(2, 12, 0.1, training.kernel, training.targets, "tanh")
    at = [number(theory, "f", 1, time) for time in range(1, 13)]
    samples = [sample_fluctuations(theory, 1024, seed, shifts=False) for seed in range(SEEDS)]
    networks = [train(training, width, 8000, width) for width in widths]
    fit = expansion_in_width(widths, [x.scaled_variance("f") for x in networks])
    variances = [np.diag(x.covariance)[at] for x in samples]
    assert excess(distances(variances, fit.value[0, 1:, 0], fit.error[0, 1:, 0]), SEEDS - 1) < 1


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_one_layer_against_networks(activation: str) -> None:
    """Variance and shift of the output of networks with one hidden layer, two samples."""
    table = load(f"{activation}-1-2")
    training = table.experiment.training
    times = table.experiment.times[:3]
    lowered = arrays(1, times[-1], training.eta, training.kernel, training.targets, activation)
    samples = [sample_fluctuations(lowered, 2048, seed) for seed in range(3)]
    at = [[number(lowered, "f", sample, time) for sample in (1, 2)] for time in times[1:]]
    variance, shift = table.scaled_variance("f"), table.scaled_shift("f")
    found = [[np.diag(x.covariance)[at], x.shift[at]] for x in samples if x.shift is not None]
    expected = [variance.value[1:3], shift.value[1:3]]
    assert excess(distances(found, expected, [variance.error[1:3], shift.error[1:3]])) < 1


def test_a_nonlinear_problem_has_corrections_with_errors() -> None:
    """Variances and shifts by name, with their errors; the mean of the initial output is exact."""
    given: dict[str, Any] = {"numbers": {"eta": 0.2, "gamma0": 1.0}, "times": range(3)}
    found = finite_width(mlp(1, "tanh"), arrays={"K_x": [[1.0]], "y": [1.0]}, **given)
    table = load("tanh-1-1")
    variance = table.scaled_variance("f")
    gaps = found.f_variance.values - variance.value[:3]
    error = np.hypot(found.f_variance_stderr.values, variance.error[:3])
    assert excess(gaps / np.maximum(error, 1e-3), 3) < 1
    assert abs(found.f_shift.values[0, 0]) < 1e-6
    assert {"tangent_kernel_variance", "Phi_shift", "train_loss_shift_stderr"} <= set(found)


def test_kinks_of_two_layers_at_the_start() -> None:
    """Variances of a rectifier's kernels are moments of normal numbers; their shifts vanish by symmetry.

    Standard errors alone do not hold the error of rounded kinks in the shift of Phi of the second layer.
    """
    given: dict[str, Any] = {"numbers": {"eta": 0.2, "gamma0": 1.0}, "times": range(1)}
    given |= {"arrays": {"K_x": [[1.0]], "y": [1.0]}, "solver": Solver(samples=256)}
    found = finite_width(mlp(2, "relu"), **given)
    exact = {"f_variance": 0.25, "Phi_variance": [1.25, 0.625], "G_variance": [0.625, 1.25]}
    exact |= {"f_shift": 0.0, "Phi_shift": [0.0, 0.0], "G_shift": [0.0, 0.0], "tangent_kernel_shift": 0.0}
    gaps = {name: np.abs(found[name].values.ravel() - value) for name, value in exact.items()}
    errors = {name: np.maximum(found[f"{name}_stderr"].values.ravel(), 1e-9) for name in exact}
    left = {x: np.maximum(gaps[x] - found[f"{x}_systematic"].values.ravel(), 0.0) / errors[x] for x in exact}
    assert excess(np.concatenate([*left.values()]), 3) < 1
    assert excess(left["Phi_shift"], 3) < 1
    assert excess(gaps["Phi_shift"] / errors["Phi_shift"], 3) > 1


def test_rounding_is_extrapolated_order_by_order() -> None:
    """Polynomials in the width of as many coefficients as widths have no error."""
    widths = 0.3, 0.15, 0.075
    moments = [SampledMoments(np.array([1 + w, 2 - w + 5 * w**2]), np.eye(2) * w**2, None) for w in widths]
    found, lower = extrapolated(widths, moments), extrapolated(widths[1:], moments[1:])
    np.testing.assert_allclose(found.values, [1.0, 2.0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.covariance, 0.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(lower.values, [1.0, 2 - 5 * widths[1] * widths[2]], rtol=0, atol=1e-12)
    assert found.shift is None


def test_a_number_in_the_definition_of_a_field() -> None:
    """A layer divided by its root mean square: its output scatters like that of one of unit variance."""
    numbers = {"eta": 0.2, "gamma0": 1.0}
    problem = Problem.of(normalised(), numbers=numbers, times=range(1), arrays={"K_x": [[0.7]], "y": [1.0]})
    theory = lowered(problem)
    k = number(theory, "f", 1, 0)
    found = [sample_fluctuations(theory, 1024, seed, shifts=False).covariance[k, k] for seed in range(4)]
    assert excess(distances(found, load("tanh-1-1").scaled_variance("f").value[0, 0]), 3) < 1


def test_too_many_order_parameters_of_a_nonlinear_network_are_refused() -> None:
    given: dict[str, Any] = {"numbers": {"eta": 0.2, "gamma0": 1.0}, "times": range(30)}
    with pytest.raises(SpecError, match="order parameters of a nonlinear network"):
        finite_width(mlp(2, "tanh"), arrays={"K_x": [[1.0]], "y": [1.0]}, **given)


def test_outputs_at_several_positions() -> None:
    """Outputs at each position have variances; the kernel of their pairs is not a variable of results."""
    units, inputs = Population("units"), Population("input", given=True)
    p = Symbol("p", integer=True, positive=True)
    f, y = Function("f"), Function("y")
    x, h = GivenVector("x", inputs, "K_x"), Field("h", units)
    U, w = GaussianMatrix("U", units, inputs), GaussianVector("w", units)
    forward = {h(mu, p, t): U @ x(mu, p), f(mu, p, t): Mean(w.symbol * h(mu, p, t)) / gamma0}
    ranges = (IndexRange(p, S.One, S(2)),)
    net = Network("outputs at positions", (h,), forward, weights=(U, w), given=(x,), ranges=ranges)
    program = net.train((y(mu, p) - f(mu, p, t)) ** 2 / 2, GradientDescent(eta))
    arrays = {"K_x": np.eye(4).reshape(2, 2, 2, 2), "y": np.array([[1.0, 0.5], [-0.6, 0.2]])}
    found = finite_width(program, numbers={"eta": 0.2, "gamma0": 1.0}, arrays=arrays, times=range(2))
    np.testing.assert_allclose(found.f_variance.values[0], 1.0, rtol=1e-12)
    assert "tangent_kernel_variance" not in found


def test_cost_grows_with_the_number_of_paths() -> None:
    """Time and memory; sizes are those of the arrays, but for moves, which are at most so many."""
    given: dict[str, Any] = {"numbers": {"eta": 0.2, "gamma0": 1.0}, "times": range(5)}
    given |= {"arrays": {"K_x": [[1.0, 0.3], [0.3, 0.8]], "y": [1.0, -0.5]}}
    problem = Problem.of(mlp(2, "tanh"), **given)
    sizes, method = size_growth(problem).at(5), SampledMethod()
    few, many = Solver(samples=2**19), Solver(samples=2**20)
    assert method.seconds(sizes, 1, many) == pytest.approx(2 * method.seconds(sizes, 1, few), rel=0.02)
    assert method.memory(sizes, 9, many) == pytest.approx(2 * method.memory(sizes, 9, few), rel=0.02)
    found, paths = SampledFluctuations(lowered(problem), 8, 0), sizes.paths
    assert paths is not None
    np.testing.assert_array_equal(paths.fields, [len(x.site.nodes) for x in found.paths])
    np.testing.assert_array_equal(paths.hats, [len(x.site.hats) for x in found.paths])
    np.testing.assert_array_equal(paths.responses, [x.responses for x in found.units])
    np.testing.assert_array_equal(paths.products + paths.responses, [len(x.first) for x in found.units])
    assert all(
        len(x) <= moves <= 2 * len(x) for x, moves in zip(found.site_directions, paths.moves, strict=True)
    )
    with pytest.raises(SpecError, match="hours"):
        finite_width(mlp(2, "tanh"), solver=Solver(samples=2**16, hours=0.01), **given)


@pytest.mark.parametrize("depth", [1, 2])
def test_divergence_is_reported(depth: int) -> None:
    """Numbers that are not finite end a step in a sentence, and not in a search without end."""
    theory = arrays(depth, 4, 1e120, [[1.0]], [1.0], "relu")
    with pytest.raises(Diverged, match="diverged at step"):
        sample_fluctuations(theory, 64, 0)


def test_a_singular_matrix_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr(np.linalg, "inv", fail)
    with pytest.raises(NotConverged, match="64 sampled paths failed: Singular matrix; "):
        sample_fluctuations(arrays(2, 1, 0.2, [[1.0]], [1.0], "tanh"), 64, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tanh-1-2", "relu-1-1", "tanh-2-1", "relu-2-1"])
def test_output_and_kernels_against_networks(name: str) -> None:
    """Variances and shifts of output and kernels of nonlinear networks, all times of the table."""
    table = load(name)
    training, times = table.experiment.training, table.experiment.times
    depth, count = training.depth, len(training.targets)
    lowered = arrays(depth, times[-1], training.eta, training.kernel, training.targets, training.activation)
    samples = [sample_fluctuations(lowered, 2**15 if depth == 1 else 2**13, seed) for seed in range(6)]
    far = []
    for key, kernel in (("f", ()), ("Phi", (depth,)), ("G", (1,))):
        places = [
            [
                number(lowered, key, *kernel, *([k] if key == "f" else [k, k, t]), t)
                for k in range(1, count + 1)
            ]
            for t in times
        ]
        variance, shift = table.scaled_variance(key), table.scaled_shift(key)
        diagonal = np.arange(count)
        at = (slice(None), diagonal) if key == "f" else (slice(None), kernel[0] - 1, diagonal, diagonal)
        found = [[np.diag(x.covariance)[places], x.shift[places]] for x in samples if x.shift is not None]
        error = np.maximum([variance.error[at], shift.error[at]], 2e-3)  # fourth digits are not compared
        far.append(distances(found, [variance.value[at], shift.value[at]], error))
    assert excess(np.concatenate([np.ravel(x) for x in far]), SEEDS) < 1
