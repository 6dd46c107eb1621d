"""The march against the forward recursion with every field written out, and against the published scheme."""

from __future__ import annotations

import numpy as np
import pytest

from numerics.solver import solve
from numerics.solver.grid import ORDER
from numerics.solver.refine import shrinking_grids
from tests.numerics.solver.helpers import TARGETS, distances, flow, gd, marched, unprojected
from tests.reference.adams_weights import adams_weights, step_sum_weights
from tests.reference.dense_causal import dense_causal
from tests.reference.fixed_point import fixed_point


def reference(experiment, weights=None, scheme=dense_causal, **options):
    e = experiment
    if weights is None:
        weights = step_sum_weights(e.training.steps, 1.0)
    rate = e.effective_rate  # eta, or eta/P; 1 or 1/P for the flow
    return scheme(e.kernel, e.targets, rate * weights, depth=e.depth, gamma0=e.network.gamma0, **options)


@pytest.mark.parametrize(
    ("depth", "samples", "loss"), [(1, 1, "sum"), (1, 4, "mean"), (2, 3, "sum"), (4, 3, "mean")]
)
def test_solve_is_the_forward_recursion(depth, samples, loss):
    e = gd(depth, samples, loss=loss, rate=0.11 * (samples if loss == "mean" else 1))
    expected = reference(e)
    assert max(distances(solve(e), expected).values()) < 1e-12
    assert expected.train_loss[-1] < 0.7 * expected.train_loss[0]  # something was learned
    assert np.abs(expected.Phi[0, -1, -1] - e.kernel).max() > 0.02  # and features moved


@pytest.mark.parametrize(("depth", "samples", "loss"), [(1, 3, "sum"), (2, 1, "mean"), (3, 3, "mean")])
def test_the_projected_theory_is_the_plain_one(depth, samples, loss):
    """The fast path: the error projection is a derived reduction, and changes nothing."""
    e = gd(depth, samples, loss=loss)
    plain = unprojected(e)
    assert max(distances(solve(e), plain).values()) < 1e-12
    assert plain.distance(reference(e)) < 1e-12


@pytest.mark.parametrize("depth", [1, 3])
def test_the_same_for_any_memory_weights(depth):
    """A flow's weights of any order on any grid, so that w(t,s) depends on both times."""
    e = flow(depth, 3, loss="sum")
    times = np.cumsum(np.random.default_rng(depth).uniform(0.02, 0.2 / depth, 9))
    weights = adams_weights(times, 3)
    expected = reference(e, weights)
    assert unprojected(e, weights).distance(expected) < 1e-12
    fast = marched(e, weights)
    assert np.abs(fast.scalars["Delta"] - expected.error).max() < 1e-12
    for k in range(1, depth + 1):
        assert np.abs(fast.correlation(("g", k), ("g", k))[:, 0, :, 0] - expected.G[k - 1]).max() < 1e-12


def test_descent_is_the_published_scheme_converged():
    e = gd(2, 3, steps=14)
    expected = reference(e, scheme=fixed_point, low_rank=True, window=5)
    assert expected.residuals[-1] <= 1e-13
    assert max(distances(solve(e), expected).values()) < 1e-10


@pytest.mark.parametrize(("depth", "loss"), [(1, "mean"), (2, "sum")])
def test_flow_is_the_published_scheme_converged_on_the_same_grid(depth, loss):
    e = flow(depth, 2, loss=loss, points=4, time=0.6 if loss == "sum" else 1.2, rtol=3e-3)
    result = solve(e)
    nodes = result.attrs["time_nodes"]
    grids = shrinking_grids(e.times, ORDER)
    grid = next(g for g in grids if len(g.nodes) == nodes)
    exact = adams_weights(grid.nodes, grid.order)  # in fractions, by the reference
    expected = reference(e, exact, scheme=fixed_point, low_rank=True, window=8)
    at, all_of = grid.outputs, slice(None)
    assert np.abs(result.error - expected.error[at]).max() < 1e-10
    assert np.abs(result.G - expected.G[np.ix_(range(depth), at, at)]).max() < 1e-10
    for name in ("Phi", "tangent_kernel"):
        found = getattr(expected, name)[..., at, :, all_of, all_of][..., at, :, :]
        assert np.abs(result[name] - found).max() < 1e-10
    plain = unprojected(e, grid.weights)
    assert plain.distance(expected) < 1e-10  # the discrete responses A and B too
    assert expected.train_loss[-1] < 0.8 * expected.train_loss[0]


@pytest.mark.slow
def test_longer_runs_and_stronger_features():
    e = gd(3, 5, rate=0.02, steps=30, gamma0=2.5)
    expected = reference(e, scheme=fixed_point, low_rank=True, window=6, tolerance=1e-13)
    assert max(distances(solve(e), expected).values()) < 1e-10
    assert np.abs(expected.Phi[-1, -1, -1] - e.kernel).max() > 0.3


def test_progress_counts_the_steps():
    seen = []
    solve(gd(1, 2, steps=4), progress=lambda step, total: seen.append((step, total)))
    assert seen == [(k, 5) for k in range(1, 6)]


def test_a_symbol_without_a_number_is_named():
    from derive.program import P
    from numerics.lowering import lower
    from numerics.solver.linear.march import march
    from tests.numerics.solver.helpers import solvable

    data = {"K_x": np.eye(2), "y": TARGETS[:2]}
    with pytest.raises(ValueError, match="gamma0"):
        march(lower(solvable(2, "gd", "sum")), steps=2, constants={P: 2}, data=data)
