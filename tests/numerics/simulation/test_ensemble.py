"""Means, standard errors, seeds and storage options of `simulate`."""

from __future__ import annotations

import re

import numpy as np
import pytest
import xarray as xr
from sympy import Expr, Function, S, tanh

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Network,
    P,
    Parametrization,
    Population,
    Program,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.errors import Diverged, SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.simulation import simulate, simulate_program
from numerics.simulation.experiment import centred
from numerics.solver import solve
from tests.chance import excess
from tests.derive.once import mlp

from .helpers import INPUTS, TARGETS, flow, gd


def test_variables_axes_and_attributes():
    data = simulate(gd(), width=16, seeds=3, rng=1)
    assert data["Phi"].dims == ("layer", "time", "time_", "sample", "sample_")
    assert data["Phi"].shape == (2, 7, 7, 3, 3)
    assert data["G"].dims == ("layer", "time", "time_")
    assert data["tangent_kernel"].dims == ("time", "time_", "sample", "sample_")
    assert list(data["layer"]) == [1, 2]
    for name in ("train_loss", "error", "Phi", "G", "tangent_kernel", "Phi_trace", "tangent_kernel_trace"):
        assert data[f"{name}_stderr"].dims == data[name].dims
    assert data.attrs["seed"] == 1
    assert data.attrs["width"] == 16
    assert data.attrs["status"] == "ok"
    assert "gamma0" in data.attrs["spec"]


def test_result_survives_a_file(tmp_path):
    data = simulate(gd(), width=8, seeds=2, rng=0)
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    xr.testing.assert_equal(xr.load_dataset(tmp_path / "a.nc", engine="h5netcdf"), data)


def test_same_seed_same_numbers_and_other_seed_other_numbers():
    one, two = (simulate(gd(), width=8, seeds=3, rng=7) for _ in range(2))
    xr.testing.assert_equal(one, two)
    assert not np.allclose(one["train_loss"], simulate(gd(), width=8, seeds=3, rng=8)["train_loss"])


def test_a_generator_and_no_rng_leave_a_seed_that_reproduces_the_run():
    for rng in (np.random.default_rng(3), None):
        data = simulate(gd(), width=8, seeds=2, rng=rng)
        again = simulate(gd(), width=8, seeds=2, rng=int(data.attrs["seed"]))
        xr.testing.assert_equal(data, again)


def test_standard_error_falls_as_the_root_of_the_number_of_networks():
    few = simulate(gd(steps=3), width=24, seeds=50, rng=0, kernels="none")
    many = simulate(gd(steps=3), width=24, seeds=800, rng=1, kernels="none")
    ratio = few["train_loss_stderr"] / many["train_loss_stderr"]
    scatter = np.sqrt(0.5 / 49 + 0.5 / 799)  # of the logarithm of a standard deviation that is estimated
    assert excess(np.log(ratio / 4) / scatter) < 1
    # and it is the error: two independent means differ by about as much as they claim
    z = (few["error"] - many["error"]) / np.hypot(few["error_stderr"], many["error_stderr"])
    assert excess(z, 49) < 1


def test_traced_kernels_are_the_traces():
    full, trace = (simulate(gd(), width=8, seeds=2, rng=0, kernels=k) for k in ("full", "trace"))
    samples = np.arange(3)
    for name, traced in (("Phi", "Phi_trace"), ("tangent_kernel", "tangent_kernel_trace")):
        expected = full[name].to_numpy()[..., samples, samples].sum(axis=-1)
        assert trace[traced].to_numpy() == pytest.approx(expected)
        assert full[traced].to_numpy() == pytest.approx(expected)
    assert "Phi" not in trace
    assert set(simulate(gd(), width=8, seeds=2, rng=0, kernels="none").data_vars) == {
        "train_loss", "train_loss_stderr", "error", "error_stderr", "f", "f_stderr", "G", "G_stderr",
    }  # fmt: skip


@pytest.mark.parametrize(
    "network",
    [
        pytest.param({"outputs": 2}, marks=pytest.mark.slow),
        {"outputs": 2, "activation": "tanh"},
        {"bias": True},
        pytest.param({"branch": 0.5}, marks=pytest.mark.slow),
    ],
)
def test_traces_of_other_networks(network):
    """With channels and samples that gradients depend on; test points are in no trace."""
    shape = (3, 2) if "outputs" in network else (3,)
    e = Experiment.from_dict(
        {"network": {"depth": 2, **network}, "training": {"learning_rate": 0.1, "steps": 2}},
        inputs=INPUTS,
        targets=np.linspace(-1, 1, int(np.prod(shape))).reshape(shape),
        test_inputs=INPUTS[:2] * 0.5,
    )
    full, trace = (simulate(e, width=8, seeds=2, rng=0, kernels=k) for k in ("full", "trace"))
    for name in (x for x in trace.data_vars if str(x).endswith("_trace")):
        np.testing.assert_allclose(trace[name], full[name], rtol=1e-12, err_msg=name)
    assert {"Phi_trace", "tangent_kernel_trace"} <= set(trace.data_vars)
    np.testing.assert_allclose(trace.test_f, full.test_f, rtol=1e-12)


def test_networks_do_not_depend_on_how_many_are_trained_together():
    given = {"width": 8, "steps": 6, "values": {"eta": 0.12, "gamma0": 1.3, "P": 3}, "seed": 3, "each": True}
    data = {"x": INPUTS, "y": TARGETS}
    many, few, alone = (simulate_program(mlp(2), seeds=n, data=data, **given).each for n in (5, 2, 1))
    for name in ("f", "H", "G"):
        np.testing.assert_allclose(many[name][:2], few[name], rtol=1e-10, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(many[name][:1], alone[name], rtol=1e-10, atol=1e-12, err_msg=name)
    assert np.abs(many["f"][0] - many["f"][1]).max() > 0.1


def test_flow_and_a_kernel_without_inputs():
    data = simulate(flow(), width=16, seeds=2, rng=0)
    assert list(data["time"]) == pytest.approx(np.linspace(0, 1, 6))
    assert 0 < data.attrs["integration_error"] <= 1e-6
    experiment = type(flow()).from_dict(
        {"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 2}},
        kernel=INPUTS @ INPUTS.T / 5,
        targets=TARGETS,
    )
    assert simulate(experiment, width=8, seeds=2, rng=0)["Phi"].shape == (1, 3, 3, 3, 3)


def test_mean_loss_divides_the_rate_by_the_number_of_samples():
    mean = gd(rate=0.36).replace({"training.loss": "mean"})
    a, b = simulate(mean, width=8, seeds=2, rng=0), simulate(gd(rate=0.12), width=8, seeds=2, rng=0)
    assert a["error"].to_numpy() == pytest.approx(b["error"].to_numpy())


def test_progress_is_called():
    seen = []
    simulate(gd(), width=4, seeds=3, rng=0, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": 1}, "seeds = 1"),
        ({"width": 0}, "width"),
        ({"kernels": "half"}, "kernels"),
        ({"rng": -1}, "rng"),
    ],
)
def test_bad_options_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        simulate(gd(), **({"width": 4, "seeds": 2, "rng": 0} | change))


def test_divergence_reaches_the_caller():
    with pytest.raises(Diverged):
        simulate(gd(rate=30.0, steps=100), width=8, seeds=2, rng=0)


@pytest.mark.parametrize("network", [{}, {"branch": 0.6}], ids=str)
def test_centred_networks_say_what_the_centred_theory_says(network) -> None:
    """Check f - f(0): at first the error is the target in every network.

    The theory has this error at any rate.
    """
    e = gd(steps=2, **network)
    shifted = e.replace({"training.center": True})
    theory, plain, found = solve(shifted), *(simulate(x, width=24, seeds=4, rng=2) for x in (e, shifted))
    np.testing.assert_array_equal(theory.error, solve(e).error)
    np.testing.assert_array_equal(found.error[0], theory.error[0])
    assert not found.error_stderr[0].any()
    assert plain.error_stderr[0].all()
    assert (found.train_loss_stderr[1:] > 0).all()


def test_a_gamma0_at_which_rounding_hides_what_is_learnt_is_refused() -> None:
    """Outputs less those of the start lose eps/gamma0: no more than the tolerance, or there is no result."""

    def found(gamma0: float) -> xr.Dataset:
        e = gd(steps=3, gamma0=gamma0).replace({"training.center": True})
        return simulate(e, width=12, seeds=2, rng=0)

    np.testing.assert_allclose(found(3e-10).error, found(1e-7).error, rtol=1e-6, atol=1e-6)
    with pytest.raises(SpecError, match=r"network\.gamma0 = 1e-14: .*a share of 0\.022 "):
        found(1e-14)


def test_a_centred_network_is_one_whose_targets_have_its_first_outputs_on_top() -> None:
    """Its errors y - (f - f(0)) are those of the same network with targets y + f(0)."""
    problem = Problem.of(gd(activation="tanh", steps=5))
    given = {"values": problem.values, "width": 12, "steps": 5, "seeds": 1, "seed": 3}
    data = dict(problem.arrays)
    start = simulate_program(problem.program, data=data, **given)["f"].mean[0]
    moved = simulate_program(problem.program, data=data | {"y": data["y"] + start}, **given)
    found = simulate_program(centred(problem.program), data=data, **given)
    np.testing.assert_allclose(found["Delta"].mean, moved["Delta"].mean, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found["f"].mean, moved["f"].mean - start, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found["Phi"].mean, moved["Phi"].mean, rtol=1e-12)


def test_a_centred_flow_and_test_points_are_centred() -> None:
    held = Experiment.from_dict(
        {
            "network": {"depth": 1, "activation": "tanh"},
            "training": {"rule": "flow", "time": 0.5, "points": 3, "center": True},
        },
        inputs=INPUTS,
        targets=TARGETS,
        test_inputs=INPUTS[:1] + 0.5,
        test_targets=[0.3],
    )
    found = simulate(held, width=16, seeds=2, rng=0)
    np.testing.assert_array_equal(found.error[0], TARGETS)
    np.testing.assert_array_equal(found.test_f[0], [0.0])


def test_a_program_with_its_numbers_is_the_experiment_that_it_came_from() -> None:
    e = gd(activation="tanh")
    problem = Problem.of(e)
    given = {"numbers": {"eta": 0.12, "gamma0": 1.3}, "arrays": {"K_x": e.kernel, "y": e.targets}}
    one, *others = (
        simulate(x, width=8, seeds=2, rng=4, **more)
        for x, more in (
            (e, {}),
            (problem, {}),
            (problem.program, {**given, "times": e.times}),
            (problem.theory, {**given, "times": e.times}),
        )
    )
    for other in others:
        xr.testing.assert_equal(one, other)
    with pytest.raises(SpecError, match=r"numbers: is given in addition to an experiment"):
        simulate(e, width=8, seeds=2, numbers={"eta": 0.1})


def test_random_outputs_at_the_start_are_noted():
    """<f(0)^2> = Phi/(N gamma0^2) = 1/4 of N = 4, gamma0 = 1, which the theory of infinite width lacks."""
    tables = {"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 1, "center": False}}
    e = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
    found = simulate(e, width=4, seeds=400, rng=0)
    said = float(re.findall(r"standard deviation of (\S+) over", found.attrs["note"])[0])
    scatter = (3.5 / 400) ** 0.5  # of a variance, with the excess kurtosis 6/N of a mean of products
    assert abs(said**2 / 0.25 - 1) < 5 * scatter + 0.02  # two digits are printed
    for changes in ({"network.gamma0": 10.0}, {"training.center": True}):
        assert "note" not in simulate(e.replace(changes), width=4, seeds=40, rng=0).attrs


@pytest.mark.slow
def test_a_tangent_kernel_holds_a_rate_in_time_at_the_time_of_the_update() -> None:
    layer, pixels = Population("layer"), Population("pixels", given=True)
    h, x = Field("h", layer, layered=True), GivenVector("x", pixels, "K_x")
    U, w = GaussianMatrix("U", layer.at(1), pixels), GaussianVector("w", layer.at(L))
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, L - 1))
    f, y = Function("f"), Function("y")
    forward = {
        h(1, mu, t): U @ x(mu),
        h(ell + 1, mu, t): W(ell) @ tanh(h(ell, mu, t)),
        f(mu, t): Mean(w.symbol * tanh(h(L, mu, t))) / gamma0,
    }
    ranges = (IndexRange(mu, S.One, P),)
    net = Network("layers", (h,), forward, (U, W, w), given=(x,), ranges=ranges)

    def trained(rate: Expr) -> Program:
        loss = (y(mu) - f(mu, t)) ** 2 / 2
        return net.train(loss, GradientDescent(eta), Parametrization(rate=rate)).at_depth(2)

    given = {"numbers": {"eta": 1e-14, "gamma0": 1.0}, "arrays": {"K_x": np.eye(2), "y": [1.0, -0.5]}}
    still, falling = (
        simulate(trained(rate), width=10, seeds=2, rng=0, times=range(3), **given).tangent_kernel.to_numpy()
        for rate in (S.One, 1 / (1 + t))
    )
    assert falling == pytest.approx(still / np.array([1, 2, 3])[:, None, None], rel=1e-9)
