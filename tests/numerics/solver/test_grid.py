"""Time grids and Adams-Bashforth weights, and the quadrature of the response densities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics.solver.grid import adams_weights, flow_grid, integral_weights
from numerics.solver.linear.output_correlations import interval_weights
from tests.reference.adams_weights import adams_weights as exact_weights

gaps = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 6])
def test_weights_are_the_exact_ones(order):
    rng = np.random.default_rng(order)
    for nodes in (np.arange(12) * 0.3, np.cumsum(rng.uniform(0.1, 1.0, 12)), 2.0 ** np.arange(-6, 6)):
        exact = exact_weights(nodes, order)
        assert adams_weights(nodes, order) == pytest.approx(exact, abs=1e-12 * np.abs(exact).max())


def test_weights_of_a_real_grid_are_the_exact_ones():
    for order in (4, 6):
        g = flow_grid([0.0, 1.0, 2.0], step=0.2, order=order)  # nodes crowd at the start
        exact = exact_weights(g.nodes, order)
        assert g.weights == pytest.approx(exact, abs=1e-13 * np.abs(exact).max())


@pytest.mark.parametrize(
    "times", [[], [0.0], [0.5, 1.0], [0.0, 0.0], [0.0, np.nan], [0.0, np.inf], [[0.0, 1.0]]]
)
def test_times_of_a_grid_increase_from_zero(times):
    with pytest.raises(ValueError, match=r"must be two or more finite increasing numbers, the first 0$"):
        flow_grid(times, step=0.2)


@pytest.mark.parametrize("step", [0.0, -1.0, np.nan, [0.1, 0.1]])
def test_steps_of_a_grid_are_positive(step):
    with pytest.raises(
        ValueError, match="must be a positive number, or one positive number for each interval"
    ):
        flow_grid([0.0, 1.0], step=step)


@given(gaps, st.floats(0.02, 1.5), st.sampled_from([2, 4, 6]))
@settings(max_examples=40)
def test_a_grid_contains_the_output_times_and_obeys_the_step(gaps, step, order):
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    g = flow_grid(times, step=step, order=order)
    assert (g.nodes[g.outputs] == times).all()
    steps = np.diff(g.nodes)
    assert (steps > 0).all()
    assert steps.max() <= step * (1 + 1e-9)
    assert g.nodes[0] == 0.0
    assert g.nodes[-1] == times[-1]
    assert g.weights.shape == (len(g.nodes),) * 2
    assert (np.triu(g.weights) == 0.0).all()  # strictly causal
    assert g.weights.sum(axis=1) == pytest.approx(g.nodes)  # a constant is integrated exactly


@given(gaps, st.floats(0.1, 1.0), st.sampled_from([2, 3, 4, 6]))
@settings(max_examples=30)
def test_rows_integrate_polynomials_up_to_the_order(gaps, step, order):
    """Away from the start, where the order is still being raised."""
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    g = flow_grid(times, step=step, order=order)
    start = order - 1
    moved = g.weights[start:] - g.weights[start]
    for power in range(order):
        expected = (g.nodes[start:] ** (power + 1) - g.nodes[start] ** (power + 1)) / (power + 1)
        assert moved @ g.nodes**power == pytest.approx(expected, abs=1e-8 * (1 + g.nodes[-1] ** (power + 1)))


def test_the_start_does_not_show():
    """From 0 on a smooth function is integrated to the order, although the first step is Euler's."""
    errors = []
    for count in (8, 16, 32, 64):
        g = flow_grid(np.linspace(0.0, 1.0, 5), step=1.0 / count)
        errors.append(abs(g.weights[-1] @ np.exp(-3 * g.nodes) - (1 - np.exp(-3.0)) / 3))
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert (orders > 3.5).all()


@given(gaps.filter(lambda g: len(g) >= 3))
@settings(max_examples=30)
def test_intervals_integrate_cubics_between_any_two_nodes(gaps):
    nodes = np.concatenate([[0.0], np.cumsum(gaps)])
    for n, w in enumerate(interval_weights(nodes)):
        assert w.shape == (n + 1, n + 1)
        assert (np.tril(w, -1) == 0.0).all()  # nothing before the lower end
        for m in range(n):
            for power in range(min(4, n - m + 1)):
                exact = (nodes[n] ** (power + 1) - nodes[m] ** (power + 1)) / (power + 1)
                total = w[m] @ nodes[: n + 1] ** power
                assert total == pytest.approx(exact, abs=1e-6 * (1 + nodes[-1] ** (power + 1)))


def test_integral_weights_are_simpsons():
    assert integral_weights(np.array([1.0, 2.0, 3.0]), 1.0, 3.0) == pytest.approx([1 / 3, 4 / 3, 1 / 3])
