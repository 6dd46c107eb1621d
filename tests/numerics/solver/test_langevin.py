"""Langevin dynamics long after its start: the recursion at gamma0 -> 0, and networks at any gamma0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Symbol

from derive.errors import NotApplicable
from derive.program import P, Program, eta, gamma0
from derive.theory import Theory
from numerics.simulation import simulate_program
from numerics.solver.long_times.solve import stationary_kernels
from numerics.solver.paths import Solved, solve_particles
from tests.chance import excess
from tests.derive.once import mean_field, mlp

Array = NDArray[np.float64]

lam, T = Symbol("lam", positive=True), Symbol("T", positive=True)
K, Y = np.array([[1.0, 0.3], [0.3, 0.8]]), np.array([1.2, -0.9])
VALUES: dict[Any, float] = {eta: 0.2, P: 2, lam: 1.5, T: 0.6}
LAGS = (0, 2)


def network(depth: int, activation: Any) -> Program:
    return mlp(depth, activation, weight_decay=lam, temperature=T)


def particles(theory: Theory, gamma: float, steps: int, **options: Any) -> Solved:
    """Return sampled paths without matched moments, which bias smooth functions of long noisy paths."""
    given: dict[str, Any] = {"samples": 1024, "replicas": 12, "matched": False} | options
    return solve_particles(
        theory, steps=steps, values=VALUES | {gamma0: gamma}, data={"K_x": K, "y": Y}, **given
    )


def late(runs: Array, lag: int, burn: int) -> Array:
    """Return the mean of each run over pairs of times ``lag`` apart, after ``burn`` steps.

    Times are the last axes.
    """
    steps = runs.shape[-1]
    return np.asarray(np.stack([runs[..., n + lag, n] for n in range(burn, steps - lag)], -1).mean(axis=-1))


# -- the recursion -------------------------------------------------------------------------------------------


def entry(lag: int) -> float:
    """Return the covariance of ``a <- (1 - x) a + sqrt(2 eta T) xi`` at a lag.

    The variance is 2 eta T/(1 - (1-x)^2), with a factor 1 - x for each step of the lag.
    """
    kept = 1 - VALUES[eta] * VALUES[lam]
    return float(2 * VALUES[eta] * VALUES[T] / (1 - kept**2) * kept**lag)


def test_linear_kernels_by_hand() -> None:
    found = stationary_kernels(mean_field(network(3, "linear")), values=VALUES, data={"K_x": K}, lags=LAGS)
    for i, lag in enumerate(LAGS):
        for layer in (1, 2, 3):
            np.testing.assert_allclose(found["H", layer][..., i], entry(lag) ** layer * K, rtol=1e-12)
            assert found["G", layer][i] == pytest.approx(entry(lag) ** (4 - layer), rel=1e-12)


def relu_moments(a: float, c: float, b: float) -> tuple[float, float]:
    """Return <relu relu> and <step step> (Cho and Saul 2009)."""
    angle = np.arccos(np.clip(c / np.sqrt(a * b), -1, 1))
    return (
        float(np.sqrt(a * b) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)),
        float((np.pi - angle) / (2 * np.pi)),
    )


def erf_moments(a: float, c: float, b: float) -> tuple[float, float]:
    """Return <erf erf> and <erf' erf'> (Williams 1997)."""
    norm = (1 + 2 * a) * (1 + 2 * b)
    return float(2 / np.pi * np.arcsin(2 * c / np.sqrt(norm))), float(4 / np.pi / np.sqrt(norm - 4 * c**2))


@pytest.mark.parametrize(
    ("activation", "moments"),
    [pytest.param("relu", relu_moments, marks=pytest.mark.slow), ("erf", erf_moments)],
)
def test_closed_forms(activation: str, moments: Any) -> None:
    """Two layers up and down again, by printed kernels of networks with weights of variance ``entry``."""
    found = stationary_kernels(mean_field(network(2, activation)), values=VALUES, data={"K_x": K}, lags=LAGS)
    below, slopes = {lag: K for lag in LAGS}, []
    for layer in (1, 2):
        h = {lag: entry(lag) * below[lag] for lag in LAGS}
        size = np.diag(h[0])
        pairs = {
            lag: np.array([[moments(size[i], h[lag][i, j], size[j]) for j in (0, 1)] for i in (0, 1)])
            for lag in LAGS
        }
        below, slopes = (
            {k: v[..., 0] for k, v in pairs.items()},
            [*slopes, {k: v[..., 1] for k, v in pairs.items()}],
        )
        for i, lag in enumerate(LAGS):
            np.testing.assert_allclose(found["Phi", layer][..., i], below[lag], rtol=1e-9)
    for i, lag in enumerate(LAGS):
        last = entry(lag) * slopes[1][lag]
        np.testing.assert_allclose(found["G", 2][..., i], last, rtol=1e-9)
        np.testing.assert_allclose(found["G", 1][..., i], entry(lag) * last * slopes[0][lag], rtol=1e-9)


def test_biases_have_no_recursion_yet() -> None:
    with pytest.raises(NotApplicable, match="a bias"):
        stationary_kernels(
            mean_field(mlp(1, "erf", bias=True, weight_decay=lam, temperature=T)),
            values=VALUES,
            data={"K_x": K},
        )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"lags": (0, -1)}, r"lags = -1\.0: is not a lag"),
        ({"lags": (0.5,)}, r"lags = 0\.5: is not a lag"),
        ({"data": {"K_x": [[1.0, 3.0], [0.0, 1.0]]}}, r"data\.K_x: is not symmetric"),
    ],
)
def test_lags_and_kernels_are_checked(given: dict[str, Any], reason: str) -> None:
    """Negative lags and kernels that no inputs have gave numbers."""
    with pytest.raises(ValueError, match=reason):
        stationary_kernels(
            mean_field(network(1, "linear")), **({"values": VALUES, "data": {"K_x": K}} | given)
        )


# -- gamma0 -> 0 ---------------------------------------------------------------------------------------------


QUICK = [("tanh", 1)]
LONG = [("linear", 1), ("erf", 1), ("relu", 1), *[(x, 2) for x in ("linear", "tanh", "erf", "relu")]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "depth"), [*QUICK, *[pytest.param(*x, marks=pytest.mark.slow) for x in LONG]]
)
def test_long_times_at_weak_feature_learning(activation: str, depth: int) -> None:
    """Kernels at equal times and two steps apart; the initial weights contribute 0.7^32, 1e-5."""
    gamma, steps, burn = 1e-2, 26, 16
    theory = mean_field(network(depth, activation))
    exact = stationary_kernels(theory, values=VALUES, data={"K_x": K}, lags=LAGS)
    ours = particles(theory, gamma, steps, replicas=20, seed=1)
    z, relative = [], []
    for (name, layer), value in exact.items():
        if (name, (layer,)) not in ours.runs:  # covariances of fields, no order parameters
            continue
        for i, lag in enumerate(LAGS):
            x = late(ours.runs[name, (layer,)], lag, burn)
            error = x.std(axis=0, ddof=1) / np.sqrt(len(x))
            z.append(np.ravel((x.mean(axis=0) - value[..., i]) / error))
            if lag == 0:
                relative.append(np.max(error / np.max(value[..., i])))
    found = np.concatenate(z)
    assert np.max(relative) < 0.02
    assert excess(found, 19) < 1


@pytest.mark.slow
def test_from_the_start_it_is_another_kernel() -> None:
    """The comparison distinguishes the stationary kernels from the initial ones."""
    theory = mean_field(network(1, "tanh"))
    exact = stationary_kernels(theory, values=VALUES, data={"K_x": K})["Phi", 1][..., 0]
    ours = particles(theory, 1e-2, 4)
    x = ours.runs["Phi", (1,)][..., 0, 0]
    assert np.abs((x.mean(axis=0) - exact) / (x.std(axis=0, ddof=1) / np.sqrt(len(x)))).max() > 10


# -- any gamma0 ----------------------------------------------------------------------------------------------


def against_networks(depth: int, activation: str, steps: int, burn: int, size: Any, **options: Any) -> Array:
    """Return distances of late-time means of kernels, outputs and loss, in joint standard errors.

    Networks come in independent batches, whose scatter gives the error; widths N and 2N give the limit.
    """
    program, gamma = network(depth, activation), 1.0
    kernels = ("H" if activation == "linear" else "Phi", "G")
    width, batches, each = size
    ends: dict[int, list[Array]] = {}
    for n in (width, 2 * width):
        for batch in range(batches):
            run = simulate_program(
                program,
                width=n,
                steps=steps - 1,
                seeds=each,
                values=VALUES | {gamma0: gamma},
                data={"K_x": K, "y": Y},
                seed=1000 * n + batch,
            )
            f = run["f"].mean[burn:]
            parts = [f.mean(axis=0)]
            for name in kernels:
                for layer in range(1, depth + 1):
                    kernel = np.moveaxis(run[name][layer].mean, (0, 1), (-2, -1))
                    parts += [late(kernel, lag, burn).ravel() for lag in LAGS]
            ends.setdefault(n, []).append(np.concatenate(parts))
    narrow, wide = (np.array(ends[n]) for n in (width, 2 * width))
    limit = 2 * wide.mean(axis=0) - narrow.mean(axis=0)
    spread = np.hypot(2 * wide.std(axis=0, ddof=1), narrow.std(axis=0, ddof=1)) / np.sqrt(batches)
    ours = particles(mean_field(program), gamma, steps, **options)
    own = [ours.runs["f", ()][:, burn:].mean(axis=1)]
    for name in kernels:
        for layer in range(1, depth + 1):
            own += [late(ours.runs[name, (layer,)], lag, burn).reshape(ours.replicas, -1) for lag in LAGS]
    x = np.concatenate(own, axis=1)
    error = np.hypot(spread, x.std(axis=0, ddof=1) / np.sqrt(len(x)))
    assert (error < 0.08 * np.abs(limit).max()).all()
    return np.asarray((x.mean(axis=0) - limit) / error)


@pytest.mark.slow
def test_networks() -> None:
    z = against_networks(1, "tanh", 24, 10, (40, 8, 8), samples=512)
    assert excess(z, 7) < 1
    assert np.sqrt((z**2).mean()) < 1.8


def raw_network(rng: np.random.Generator, n: int, x: Array, steps: int, gamma: float) -> tuple[Array, float]:
    """Return outputs and <phi phi> of the first sample after ``steps`` of the raw update.

    ``theta <- theta - eta (gamma0^2 N grad(sum Delta^2)/2 + lambda theta) + sqrt(2 eta T) xi``.
    """
    rate = VALUES[eta]
    first, read = rng.standard_normal((n, x.shape[1])), rng.standard_normal(n)
    for step in range(steps):
        features = np.tanh(x @ first.T / np.sqrt(x.shape[1]))
        f = features @ read / (gamma * n)
        if step == steps - 1:
            break
        slope_read = -(Y - f) @ features / (gamma * n)
        back = (Y - f)[:, None] * (1 - features**2) * read / (gamma * n)
        slope_first = -back.T @ x / np.sqrt(x.shape[1])
        for weight, slope in ((first, slope_first), (read, slope_read)):
            noise = np.sqrt(2 * rate * VALUES[T]) * rng.standard_normal(weight.shape)
            weight += -rate * (gamma**2 * n * slope + VALUES[lam] * weight) + noise
    return f, float(features[0] @ features[0] / n)


def test_noise_is_that_of_the_raw_update() -> None:
    """Networks written out here, with the same noise on all weights, which start as N(0, 1)."""
    steps, gamma, n, networks = 12, 1.3, 200, 60
    x = np.linalg.cholesky(K) * np.sqrt(2)
    rng = np.random.default_rng(8)
    runs = [raw_network(rng, n, x, steps, gamma) for _ in range(networks)]
    ours = particles(mean_field(network(1, "tanh")), gamma, steps)
    cold = VALUES[T] * 0.8
    values = VALUES | {gamma0: gamma, T: cold}
    other = solve_particles(
        mean_field(network(1, "tanh")),
        steps=steps,
        values=values,
        data={"K_x": K, "y": Y},
        samples=512,
        replicas=4,
    )
    for theirs, mine, colder in (
        (np.array([f for f, _ in runs]), ours.runs["f", ()][:, -1], None),
        (np.array([[k] for _, k in runs]), ours.runs["Phi", (1,)][:, 0, 0, -1, -1][:, None], other),
    ):
        error = np.hypot(theirs.std(axis=0) / np.sqrt(len(theirs)), mine.std(axis=0) / np.sqrt(len(mine)))
        assert np.abs((theirs.mean(axis=0) - mine.mean(axis=0)) / error).max() < 4
        if colder is not None:  # a fifth less noise is seen
            assert abs(theirs.mean() - colder.value("Phi", 1)[0, 0, -1, -1]) > 8 * error[0]


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "depth"), [("linear", 1), ("tanh", 2), ("erf", 2), ("relu", 2)])
def test_long_runs_of_networks(activation: str, depth: int) -> None:
    z = against_networks(depth, activation, 60, 20, (100, 16, 12), replicas=16, samples=2048)
    assert excess(z, 7) < 1
    assert np.sqrt((z**2).mean()) < 1.8
