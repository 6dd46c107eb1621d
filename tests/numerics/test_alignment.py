"""Alignment of kernels and fitted powers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.program import P, eta, gamma0
from numerics.analysis.ensembles import alignment, change, cosine, each
from numerics.analysis.exponents import fitted_power
from numerics.simulation import simulate_program
from numerics.solver.paths import solve_particles
from numerics.stats import bound
from tests.chance import excess
from tests.derive.once import mean_field, mlp
from tests.numerics.solver.helpers import TARGETS, kernel


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.01, 100))
def test_a_cosine(seed: int, size: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, 3, size, size))
    found = cosine(a, b)
    assert found.shape == (3,)
    assert (np.abs(found) <= 1 + 1e-12).all()
    np.testing.assert_allclose(found, cosine(scale * b, a), atol=1e-12)
    np.testing.assert_allclose(cosine(a, scale * a), 1.0)
    q = np.linalg.qr(rng.standard_normal((size, size)))[0]
    np.testing.assert_allclose(found, cosine(q @ a @ q.T, q @ b @ q.T), atol=1e-10)
    assert cosine(a, b, axes=3) == pytest.approx(float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())))


def test_a_kernel_of_zeros_has_no_direction() -> None:
    assert np.isnan(cosine(np.zeros((2, 2)), np.eye(2)))


def kernels(runs: int, noise: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.diag([1.0, 2.0, 0.5]) + noise * rng.standard_normal((runs, 3, 3))


def test_errors_are_those_of_the_scatter_and_the_bias_goes() -> None:
    """300 pairs of scattering kernels with the same mean direction except for one entry."""
    tilt = np.zeros((3, 3))
    tilt[0, 1] = 1.0
    exact = float(cosine(kernels(1, 0.0, 0)[0], kernels(1, 0.0, 0)[0] + tilt))
    found = [alignment(kernels(8, 0.6, 2 * k), kernels(12, 0.6, 2 * k + 1) + tilt) for k in range(300)]
    values = np.array([x.value for x in found])
    raw = [
        cosine(kernels(8, 0.6, 2 * k).mean(0), (kernels(12, 0.6, 2 * k + 1) + tilt).mean(0))
        for k in range(300)
    ]
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert excess((values.mean() - exact) / error) < 1
    assert excess((np.mean(raw) - exact) / error) > 1.5  # without the correction there is a bias
    mean_error = np.sqrt(np.mean([x.stderr**2 for x in found]))
    assert 0.85 < values.std() / mean_error < 1.15


def test_each_network_with_the_theory() -> None:
    """A kernel that scatters is aligned by 1 - (variance across its direction)/2, whatever theory's error."""
    exact = kernels(1, 0.0, 0)
    one = each(exact, kernels(4000, 0.02, 1))
    expected = 1 - 0.02**2 * 8 / (2 * (exact**2).sum())
    assert excess((one.value - expected) / one.stderr) < 1
    assert one.stderr == pytest.approx(one.spread / np.sqrt(4000))
    noisy = [each(kernels(8, 0.1, 10 + k), kernels(50, 0.02, 500 + k)) for k in range(200)]
    values = np.array([x.value for x in noisy])
    assert excess((values.mean() - expected) / values.std(ddof=1) * np.sqrt(len(values))) < 1
    assert abs(float(each(exact, exact).value) - 1) < 1e-12


def test_a_change_is_of_the_same_runs() -> None:
    first = kernels(20, 0.3, 3)
    same = change(first, 2 * first)
    np.testing.assert_allclose([same.value, same.stderr], [1, 0], atol=1e-12)
    assert change(first, first @ np.diag([1, 1, 5.0])).stderr > 0


def test_a_power_and_its_error() -> None:
    x = np.array([1.0, 2, 4, 8, 16])
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        y = 3 * x**-1.5
        found.append(fitted_power(x, y * (1 + 0.05 * rng.standard_normal(5)), 0.05 * y))
    z = np.array([(p.exponent + 1.5) / p.stderr for p in found])
    assert excess(z.mean() * np.sqrt(200)) < 1
    held = np.mean(np.abs(z) < bound(1, 0.05))
    assert excess((held - 0.95) / np.sqrt(0.05 * 0.95 / 200)) < 1
    misfit = np.array([p.misfit for p in found])
    assert excess((misfit.mean() - 1) / misfit.std(ddof=1) * np.sqrt(200)) < 1
    exact = fitted_power(x, 3 * x**-1.5, 0.01 * x**-1.5)
    assert (exact.exponent, exact.factor) == (pytest.approx(-1.5), pytest.approx(3))
    bent = fitted_power(x, 3 * x**-1.5 + 0.1, 0.05 * x**-1.5)
    assert bent.misfit > 10


def test_networks_align_with_the_theory_as_one_over_their_width() -> None:
    """Kernels of a network scatter by 1/sqrt(N), and a cosine is quadratic in the orthogonal part."""
    program, data = mlp(2, "tanh"), {"K_x": kernel(3), "y": TARGETS[:3]}
    values = {eta: 0.2, gamma0: 1.5, P: 3}
    ours = solve_particles(mean_field(program), steps=4, values=values, data=data, samples=512, replicas=12)
    widths = (40, 80, 160)
    runs = [
        simulate_program(
            program, width=n, steps=3, seeds=60, values=values, data=data, seed=n, each=True
        ).each
        for n in widths
    ]
    for name in ("Phi", "G"):
        for layer in (1, 2):
            own = ours.runs[name, (layer,)].transpose(0, 3, 4, 1, 2)
            found = [each(own, run[name][:, layer - 1], axes=4) for run in runs if run is not None]
            missing = [1 - float(a.value) for a in found]
            power = fitted_power(widths, missing, [float(a.stderr) for a in found])
            assert excess((power.exponent + 1) / power.stderr) < 1, (name, layer)
            assert power.stderr < 0.2


def test_refusals() -> None:
    with pytest.raises(ValueError, match="three points"):
        fitted_power([1, 2], [1, 2], [0.1, 0.1])
    with pytest.raises(ValueError, match="three points"):
        fitted_power([1, 2, 3], [1, 2, 0.1], [0.1, 0.1, 0.2])
    for x, y, stderr in (
        ([2, 2, 2], [3, 4, 5], 0.1),
        ([1, 2, np.inf], [3, 4, 5], 0.1),
        ([1, 2, 3], [3, 4, np.inf], 0.1),
        ([1, 2, 3], [3, 4], 0.1),
    ):
        with pytest.raises(ValueError, match=r"different x|all finite|lists of equal length"):
            fitted_power(x, y, stderr)


def test_a_power_of_x_that_differ_little_keeps_its_digits() -> None:
    x = 1e6 * np.array([1, 1 + 1e-9, 1 + 2e-9])
    found = fitted_power(x, x**2 / 1e12, 1e-3)
    assert found.exponent == pytest.approx(2, abs=1e-5)
    assert found.stderr == pytest.approx(1e-3 / 1e-9 / np.sqrt(2), rel=1e-5)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda a: alignment(a, a[:, :2]), "the last 2 axes must have equal sizes"),
        (lambda a: alignment(a[:0], a), r"shape \(0, 3, 3\): give one run or more"),
        (lambda a: change(a, a[:2]), "kernels of the same runs must have one shape"),
        (lambda a: each(a, a, axes=0), "axes = 0: must be positive"),
        (lambda a: cosine(a, a, axes=4), "last 4 axes"),
    ],
)
def test_kernels_that_do_not_fit_are_named(call: Callable[[np.ndarray], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call(np.ones((4, 3, 3)))
