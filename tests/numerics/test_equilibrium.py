"""Tests of `dmft limits equilibrium`: equations at the fixed point, their solution, refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
from sympy import Float, Symbol

from derive.reduce.equilibrium import equilibrium
from numerics.analysis.equilibrium import RestPoint, rest_point
from numerics.cli import run
from numerics.errors import SpecError
from numerics.experiment import Experiment
from tests.derive.once import mean_field, mlp
from tests.ledger.evidence import equilibrium as posterior

LAMBDA, HEAT = Symbol("lambda", positive=True), Symbol("T", positive=True)


def tables(depth: object = 1, decay: float = 0.8, heat: float = 0.6, **network: object) -> dict[str, object]:
    training = {"rule": "flow", "time": 1.0, "loss": "sum", "weight_decay": decay, "temperature": heat}
    return {"network": {"depth": depth, **network}, "training": training}


def at_rest(target: float = 1.5, kernel: float = 0.7, **options: object) -> RestPoint:
    return rest_point(Experiment.from_dict(tables(**options), kernel=[[kernel]], targets=[target]))


@pytest.mark.parametrize("depth", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_solution_obeys_the_derived_equations(depth: int) -> None:
    """Every closed equation of the saddle point, with the numbers that are printed."""
    found = at_rest(depth=depth, gamma0=2.0)
    network = mlp(depth, "linear", "flow", weight_decay=LAMBDA, temperature=HEAT)
    numbers = {"lambda": 0.8, "T": 0.6, "gamma0": 2.0, "K": 0.7, "y": 1.5, **found.values}
    assert found.others == ()
    for e in equilibrium(mean_field(network)).linear_saddle():
        gap = (e.lhs - e.rhs).subs({x: Float(numbers[x.name]) for x in (e.lhs - e.rhs).free_symbols})
        assert abs(float(gap)) < 1e-12


@pytest.mark.parametrize("depth", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_solution_is_the_posterior_of_wide_networks(depth: int) -> None:
    """Against exact posterior means by quadrature at widths 400 to 3200, extrapolated."""
    mean, error = posterior.limit_mean(depth)
    decay, heat = posterior.LAMBDA / posterior.BETA, 1 / posterior.BETA
    found = at_rest(
        posterior.TARGET, posterior.KERNEL, depth=depth, decay=decay, heat=heat, gamma0=posterior.GAMMA
    )
    assert abs(found.values["f"] - mean) < posterior.TOLERANCE
    assert error < posterior.TOLERANCE


def test_without_noise_one_layer_comes_to_rest_below_its_target_or_at_zero() -> None:
    """Balanced weights, by hand: f = y - lambda/(sqrt(K) gamma0), or no output at all."""
    decay, kernel = 0.3, 0.7
    for target in (1.5, -1.5):
        found = at_rest(target, kernel, decay=decay, heat=0.0, gamma0=2.0)
        by_hand = target - np.sign(target) * decay / (np.sqrt(kernel) * 2.0)
        assert found.kind == "ridge"
        assert found.values["f"] == pytest.approx(by_hand, rel=1e-12)
        assert found.others == (0.0,)
    assert at_rest(0.1, kernel, decay=decay, heat=0.0, gamma0=1.0).values == {"f": 0.0}


@pytest.mark.parametrize("depth", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_target_of_zero_is_the_limit_of_small_ones(depth: int) -> None:
    """Kernels at the output zero are 0/0 in the formula by which they follow from the output."""
    zero, small = at_rest(0.0, depth=depth), at_rest(1e-9, depth=depth)
    assert zero.values.keys() == small.values.keys()
    assert zero.values == pytest.approx(small.values, abs=1e-8)
    assert zero.values["f"] == 0.0
    assert zero.values["Phi1"] > 0.1


@pytest.mark.parametrize("heat", [0.0, 0.6])
def test_a_sample_of_zeros_is_refused(heat: float) -> None:
    with pytest.raises(SpecError, match=r"data.kernel: .* its output is zero for all weights"):
        at_rest(kernel=0.0, heat=heat)


def written(folder: Path, text: str) -> str:
    path = folder / "e.toml"
    path.write_text(text)
    np.save(folder / "k.npy", np.eye(1))
    np.save(folder / "y.npy", np.ones(1))
    return str(path)


FILE = """
[network]
depth = 1
[data]
kind = "fixed"
kernel = "k.npy"
targets = "y.npy"
[training]
rule = "flow"
time = 1.0
loss = "sum"
weight_decay = 0.5
temperature = 0.5
"""


def test_the_command_prints_equations_solution_and_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, FILE)
    assert run(["limits", "equilibrium", file]) == 0
    printed = capsys.readouterr().out
    assert run(["limits", "equilibrium", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "equilibrium"
    assert all(line in printed for line in (*found["equations"], *found["conditions"]))
    assert f"f = {found['values']['f']:.10g}" in printed


def test_equations_that_do_not_close_are_printed_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, FILE)
    assert run(["limits", "equilibrium", file, "--format", "latex", "--set", "network.activation=tanh"]) == 0
    printed = capsys.readouterr().out
    assert r"\hat{\Phi}^{\ell}_{\mu\alpha}" in printed
    assert "\nf = " not in printed  # the averages of tanh do not close


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("training.weight_decay=0.0", ("training.weight_decay", "a positive number")),
        ("network.bias=true", ("network.bias = true", "accepted: false")),
        ("network.init_variance=2.0", ("network.init_variance = 2.0", "accepted: 1.0")),
    ],
)
def test_files_without_a_rest_point_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, names: tuple[str, ...]
) -> None:
    assert run(["limits", "equilibrium", written(tmp_path, FILE), "--set", setting]) == 2
    said = capsys.readouterr().err
    assert all(x in said for x in names)
    assert said.count("\n") == 1
