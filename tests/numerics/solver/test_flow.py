"""The flow in its step: order of convergence, honest error estimates, response densities, the limit of gd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from derive.program import eta
from numerics.errors import NotConverged
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of
from numerics.solver import solve
from numerics.solver.grid import flow_grid
from numerics.solver.linear.output_correlations import densities
from tests.numerics.solver.helpers import flow, gd, marched, unprojected

Array = NDArray[np.float64]


def on_grid(experiment, pieces, order=4):
    """Return every variable at the output times.

    The longest output interval is cut into ``pieces`` steps.
    """
    e = experiment
    grid = flow_grid(e.times, step=float(np.max(np.diff(e.times))) / pieces, order=order)
    plain = unprojected(e, grid.weights)
    fast = marched(e, grid.weights)
    data = {"K_x": e.kernel, "y": e.targets, "w": np.ones_like(grid.weights)}
    smooth = densities(fast, grid.nodes, data)
    at = grid.outputs
    pick = np.ix_(at, at)
    layers = range(1, e.depth + 1)
    return {
        "loss": plain.train_loss[at],
        "H": np.stack([plain.Phi[k - 1][pick] for k in layers]),
        "G": np.stack([plain.G[k - 1][pick] for k in layers]),
        "A": np.stack([smooth[("h", k), ("r", k)][..., 0].transpose(0, 2, 1)[pick] for k in layers]),
        "b": np.stack([smooth[("g", k), ("u_p", k)][:, 0, :, 0][pick] for k in layers]),
    }


@pytest.mark.parametrize(
    ("depth", "grid"),
    [
        (1, "uniform"),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in ((1, "log"), (2, "uniform"), (2, "log"), (3, "uniform"))
        ),
    ],
)
def test_fourth_order_in_the_step(depth, grid):
    """Loss, kernels and the densities of the responses, those at s = 0 and s = t included."""
    e = flow(depth, min(depth, 2), points=4, grid=grid, time=0.8)
    counts = (16, 32, 64) if grid == "log" else (4, 8, 16)
    *coarse, fine = (on_grid(e, n) for n in counts)
    exact = on_grid(e, 3 * counts[-1])
    for name, expected in exact.items():
        errors = [np.abs(x[name] - expected).max() for x in (*coarse, fine)]
        orders = np.log2(np.array(errors[:-1]) / errors[1:])
        assert (orders > 3.0).all(), (name, errors)
    kernels = np.abs(coarse[0]["H"] - exact["H"]).max()
    assert np.abs(coarse[0]["A"] - exact["A"]).max() < 3 * kernels


def test_a_density_times_the_weight_is_the_discrete_response_where_steps_are_even():
    e = flow(2, 2, points=3, time=1.0)
    grid = flow_grid(e.times, step=0.02)
    m = marched(e, grid.weights)
    data = {"K_x": e.kernel, "y": e.targets, "w": np.ones_like(grid.weights)}
    smooth = densities(m, grid.nodes, data)
    n, past = len(grid.nodes) - 1, slice(-30, -10)
    for pair in ((("h", 2), ("r", 2)), (("g", 1), ("u_p", 1))):
        discrete = m.response(*pair)[n, 0, past, 0] / grid.weights[n, past]
        assert smooth[pair][n, 0, past, 0] == pytest.approx(discrete, rel=1e-4)


@pytest.mark.slow
def test_the_first_density_has_its_closed_form():
    """Before features move, A^L(t,s) is sum_alpha K_mu,alpha Delta_alpha(s), and A^l adds up over layers."""
    e = flow(2, 3, gamma0=1e-4, points=5, rtol=1e-8)
    result = solve(e)
    first = np.einsum("ma,sa->sm", e.kernel, result.error.values) / 3
    causal = np.tri(5)[:, :, None]
    assert result.A[0].values == pytest.approx(causal * first[None], abs=1e-7)
    assert result.A[1].values == pytest.approx(2 * causal * first[None], abs=1e-7)
    assert result.B[0].values == pytest.approx(causal * result.error.values[None] / 3, abs=1e-7)


@pytest.mark.parametrize(
    ("depth", "changes"),
    [
        (1, {"time": 1.0, "points": 4}),
        pytest.param(2, {"loss": "sum", "points": 3, "time": 0.5}, marks=pytest.mark.slow),
        pytest.param(2, {"time": 1.0, "points": 4, "grid": "log", "gamma0": 1.0}, marks=pytest.mark.slow),
        pytest.param(1, {"time": 10.0, "points": 3, "gamma0": 0.1}, marks=pytest.mark.slow),
        pytest.param(3, {"time": 1.5, "points": 7, "gamma0": 0.7}, marks=pytest.mark.slow),
        pytest.param(4, {"time": 1.0, "points": 5, "gamma0": 1.0}, marks=pytest.mark.slow),
    ],
)
def test_the_error_estimate_is_honest(depth, changes):
    fine = solve(flow(depth, depth, **changes, rtol=1e-7), kernels="none").error
    for rtol in (1e-2, 1e-5):
        result = solve(flow(depth, depth, **changes, rtol=rtol), kernels="none")
        true = float(np.abs(result.error - fine).max() / np.abs(fine).max())
        assert true <= result.attrs["error_estimate"] <= rtol


def test_kernels_settle_where_errors_are_gone_at_the_output_times():
    """At the only output time the error is zero, so that it does not show the accuracy of earlier steps.

    One layer on one sample of norm one has h = u cosh(x) + r sinh(x) and g with u and r exchanged, so that
    <g h> = sinh(2x) = gamma0 y at the end, and both kernels are cosh(2x).
    """
    training = {"rule": "flow", "time": 10.0, "points": 2}
    spec = {"network": {"depth": 1}, "training": training, "solver": {"rtol": 1e-4}}
    found = solve(Experiment.from_dict(spec, kernel=[[1.0]], targets=[1.0]), kernels="full")
    assert found.attrs["kernel_error"] == 1e-4
    for kernel in (found.G, found.Phi[..., 0, 0]):
        assert float(kernel[0, -1, -1]) == pytest.approx(np.sqrt(2), rel=1e-4)


def test_high_accuracy_takes_the_higher_order():
    loose, tight = (solve(flow(1, 2, points=5, rtol=r), kernels="none") for r in (1e-6, 1e-9))
    assert loose.attrs["integrator"].endswith("order 4")
    assert tight.attrs["integrator"].endswith("order 6")
    assert float(np.abs(loose.error - tight.error).max()) < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["sum", pytest.param("mean", marks=pytest.mark.slow)])
def test_small_steps_of_descent_are_the_flow_at_first_order(loss):
    """Every variable of gd at step t/eta approaches the flow at t; its responses are eta times densities."""
    time = 0.8
    limit = solve(flow(2, 2, time=time, points=3, loss=loss, rtol=1e-6))
    gaps = []
    for steps in (16, 32):
        e = gd(2, 2, rate=time / steps, steps=steps, loss=loss)
        found = solve(e).isel(time=slice(None, None, steps // 2), time_=slice(None, None, steps // 2))
        below = np.tri(3, k=-1)[None, :, :, None]
        gap = {n: np.abs(found[n].values - limit[n].values).max() for n in ("train_loss", "Phi", "G")}
        for n in ("A", "B"):
            gap[n] = np.abs(found[n].values / float(numbers_of(e)[eta]) - below * limit[n].values).max()
        gaps.append(list(gap.values()))
    assert np.log2(np.array(gaps[:-1]) / gaps[1:]) == pytest.approx(1.0, abs=0.2)


@pytest.mark.slow
def test_too_many_nodes_is_not_converged():
    with pytest.raises(NotConverged, match=r"diverges on every time grid of up to \d+ nodes"):
        solve(flow(1, 1, time=1e12, rtol=1e-12).replace({"solver.method": "march"}), kernels="none")


def test_a_grid_on_which_responses_do_not_settle_is_refused():
    e = flow(1, 2)
    grid = flow_grid(np.array([0.0, 0.1, 0.2]), step=0.1)
    m = marched(e, grid.weights)
    data = {"K_x": e.kernel, "y": e.targets, "w": np.ones_like(grid.weights)}
    with pytest.raises(NotConverged, match="did not converge"), np.errstate(all="ignore"):
        densities(m, 1e3 * grid.nodes, data)  # as if each step were a thousand times longer


# -- every output interval -----------------------------------------------------------------------------------

INPUTS, ASKED = np.array([[1.0, 0.5, -0.3], [-0.2, 0.9, 0.8]]), np.array([1.0, -0.7])


def by_moments(decay: Callable[[float], float], times: Array) -> Array:
    """Return the mean square error of a linear network with one hidden layer, from its moments.

    ``A = <W W^T>``, ``b = <w W>``, ``c = <w^2>`` over the units; ``dW = w v - lambda W``, ``dw = W v - lambda
    w`` with ``v`` the error on the inputs.
    """

    def motion(now: float, z: Array) -> Array:
        A, b, c = z[:9].reshape(3, 3), z[9:12], z[12]
        v = INPUTS.T @ (ASKED - INPUTS @ b / np.sqrt(3)) / np.sqrt(3) / 2
        rate = decay(now)
        dA = np.outer(b, v) + np.outer(v, b) - 2 * rate * A
        return np.concatenate([dA.ravel(), A @ v + c * v - 2 * rate * b, [2 * b @ v - 2 * rate * c]])

    start = np.concatenate([np.eye(3).ravel(), np.zeros(3), [1.0]])
    found = solve_ivp(motion, (0, times[-1]), start, "LSODA", times, rtol=1e-11, atol=1e-13)
    return np.array([np.mean((ASKED - INPUTS @ b / np.sqrt(3)) ** 2) for b in found.y[9:12].T])


@pytest.mark.parametrize("rtol", [pytest.param(1e-4, marks=pytest.mark.slow), 1e-6])
@pytest.mark.parametrize(
    "points",
    [
        {"points": 3},
        {"points": 12, "grid": "log"},
        {"times": [0.0, 0.1, 1.0, 2.0]},
        pytest.param({"points": 21}, marks=pytest.mark.slow),
        pytest.param({"points": 50, "grid": "log"}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("text", "decay"),
    [
        (2.7, lambda t: 2.7),
        ("3*t", lambda t: 3 * t),
        pytest.param("1/(0.1 + t)", lambda t: 1 / (0.1 + t), marks=pytest.mark.slow),
        pytest.param("exp(t)", np.exp, marks=pytest.mark.slow),
    ],
)
def test_every_output_time_is_as_accurate_as_is_said(
    text: object, decay: Callable[[float], float], points: dict[str, Any], rtol: float
) -> None:
    """Few output times, of a loss that falls fast: an interval that no grid refined was taken as it was."""
    training = {"rule": "flow", "time": 2.0, "weight_decay": text, **points}
    tables = {"network": {"depth": 1}, "training": training, "solver": {"rtol": rtol}}
    found = solve(Experiment.from_dict(tables, inputs=INPUTS, targets=ASKED), kernels="none")
    expected = by_moments(decay, found.time.values)
    assert np.abs(found.train_loss.values - expected).max() <= 2 * rtol * expected.max()


@pytest.mark.slow
def test_sampled_paths_are_as_accurate_at_every_output_time() -> None:
    training = {"rule": "flow", "time": 2.0, "points": 3, "weight_decay": "3*t"}
    tables = {"network": {"depth": 1}, "training": training, "solver": {"method": "paths", "samples": 256}}
    found = solve(Experiment.from_dict(tables, inputs=INPUTS, targets=ASKED), kernels="none")
    expected = by_moments(lambda t: 3 * t, found.time.values)
    far = np.abs(found.train_loss.values - expected)
    stated = found.train_loss_stderr.values + found.train_loss_systematic.values
    assert (far <= 6 * stated + 1e-9).all()
