"""Finite networks of nonlinear experiments: what their results hold, and flows across kinks."""

import numpy as np
import pytest
from typer.testing import CliRunner

from numerics.cli.commands import app
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, numbers_of
from numerics.experiment.theory import program_of
from numerics.simulation import Trainer, simulate, simulate_program
from numerics.simulation.experiment import converged_steps

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 6))
Y = np.array([1.0, -0.8, 0.5])
PAIRS = np.stack([Y, -Y[::-1]], axis=1)
FLOW = {"rule": "flow", "time": 2.0, "points": 3}


def experiment(network=None, training=None, targets=Y):
    steps = {} if training and "rule" in training else {"learning_rate": 0.3, "steps": 3}
    tables = {
        "network": {"depth": 2, "activation": "tanh", **(network or {})},
        "training": {**steps, **(training or {})},
    }
    return Experiment.from_dict(tables, inputs=X, targets=targets)


@pytest.mark.parametrize(
    ("network", "targets", "own"),
    [({}, Y, ["sample"]), ({"outputs": 2, "bias": True}, PAIRS, ["sample", "channel"])],
)
def test_kernels_carry_samples(network, targets, own):
    result = simulate(experiment(network, targets=targets), width=16, seeds=2, rng=0)
    pairs = (*own, *(f"{x}_" for x in own))
    assert result.Phi.dims == ("layer", "time", "time_", "sample", "sample_")
    assert result.G.dims == ("layer", "time", "time_", *pairs)
    assert result.tangent_kernel.dims == ("time", "time_", *pairs)
    assert set(result.data_vars) == {
        f"{name}{end}"
        for name in (
            *("train_loss", "error", "f", "Phi", "Phi_trace", "G", "G_trace"),
            *("tangent_kernel", "tangent_kernel_trace"),
        )
        for end in ("", "_stderr")
    }
    diagonal = result.G.transpose(..., *pairs).to_numpy()[:, 1, 2]
    n = int(np.prod(diagonal.shape[1 : 1 + len(own)]))
    traces = np.trace(diagonal.reshape(2, n, n), axis1=1, axis2=2)
    assert np.allclose(traces, result.G_trace[:, 1, 2], rtol=1e-12)


def test_test_points_are_apart_from_training_samples():
    held = Experiment.from_dict(
        {
            "network": {"depth": 2, "activation": "tanh"},
            "training": {"learning_rate": 0.3, "steps": 3},
        },
        inputs=X[:2],
        targets=Y[:2],
        test_inputs=X[2:],
        test_targets=Y[2:],
    )
    result = simulate(held, width=16, seeds=2, rng=0)
    assert result.G.shape == result.Phi.shape == (2, 4, 4, 2, 2)
    assert result.tangent_kernel.shape == (4, 4, 2, 2)
    assert result.test_error.shape == (4, 1)


def test_large_kernels_can_be_left_out():
    result = simulate(experiment(), width=16, seeds=2, rng=0, kernels="none")
    assert {x for x in result.data_vars if not x.endswith("_stderr")} == {"train_loss", "error", "f"}


@pytest.mark.parametrize(
    ("network", "targets"),
    [
        ({"activation": "softplus", "bias": True, "outputs": 2}, PAIRS),
        ({"activation": "linear", "bias": True, "outputs": 2}, PAIRS),
        ({"branch": 0.7, "depth": 3}, Y),
        ({"relative_widths": [1.0, 0.5], "init_variance": [1.0, 2.0, 0.5]}, Y),
    ],
)
def test_the_tangent_kernel_is_what_moves_the_outputs(network, targets):
    """One network and one tiny step: f moves by the rate times the kernel times the errors."""
    e = experiment(network, {"learning_rate": 1e-6, "steps": 1}, targets)
    values = {str(k): v for k, v in numbers_of(e).items()}
    if "relative_widths" in network:
        from numerics.experiment.numbers import layered_numbers
        from numerics.simulation.experiment import _by_layer

        values |= {k: _by_layer(x) for k, x in layered_numbers(e.spec).items()}
    given = {"values": values, "data": arrays_of(e), "seed": 1}
    run = simulate_program(program_of(e), width=24, steps=1, seeds=1, tangent_kernel=True, **given)
    K = run["tangent_kernel"].mean[0, 0]
    error = run["Delta"].mean[0]
    moved = (run["f"].mean[1] - run["f"].mean[0]) / e.effective_rate
    n = error.size
    expected = (K.reshape(n, n) @ error.reshape(n)).reshape(error.shape)
    assert np.abs(moved - expected).max() < 1e-4 * np.abs(expected).max()


def changes(activation, kinked):
    """Return the change of smooth quantities by halved steps, and the message about it."""
    e = experiment({"activation": activation}, FLOW)
    networks = Trainer.of(
        program_of(e),
        width=60,
        steps=2,
        values={str(k): v for k, v in numbers_of(e).items()},
        data=arrays_of(e),
        times=e.times,
        dt=1.0,
    )
    seed = np.random.SeedSequence(2)
    chosen, estimate = converged_steps(networks, seed, 2e-3, False, ("f", "Phi") if kinked else ())
    fine = chosen
    for _ in range(6):
        fine = fine.halved()
    one, two = chosen.train(seed), fine.train(seed)
    done = max(np.abs(one[x] - two[x]).max() / np.abs(two[x]).max() for x in ("f", "Phi"))
    return chosen.counts, estimate, float(done)


@pytest.mark.parametrize(
    ("activation", "kinked"), [pytest.param("relu", True, marks=pytest.mark.slow), ("tanh", False)]
)
def test_steps_miss_what_is_said(activation, kinked):
    """The error of steps is of first order across kinks, of fourth order elsewhere."""
    counts, estimate, done = changes(activation, kinked)
    assert max(counts) > 1
    assert 0 < estimate <= 2e-3
    assert estimate / 20 < done <= 2 * estimate


@pytest.mark.slow
def test_a_flow_across_kinks_settles():
    e = experiment({"activation": "relu"}, FLOW)
    result = simulate(e, width=30, seeds=2, rng=0, kernels="none")
    assert 0 < result.attrs["integration_error"] <= 1e-3


def test_the_command_serves_an_activation(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    file = tmp_path / "e.toml"
    file.write_text(
        '[network]\ndepth = 1\nactivation = "tanh(0.8*h)/0.8"\n[data]\ninputs = "x.npy"\ntargets = "y.npy"\n'
        "[training]\nlearning_rate = 0.2\nsteps = 2\n"
    )
    run = CliRunner().invoke(app, ["simulate", str(file), "--width", "20", "--seeds", "2"])
    assert run.exit_code == 0, run.output
    assert "train_loss" in run.output
