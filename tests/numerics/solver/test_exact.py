"""The march of any linear theory: equal to another reading of the same theory, and to the projected march."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Symbol

from derive.program import P, Program, eta, gamma0
from derive.program.networks.random_data import alpha, alpha_B, nu, sigma
from numerics.errors import Diverged, SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import program_of, reductions_of
from numerics.lowering import lower
from numerics.solver import solve
from numerics.solver.direct import evaluate
from numerics.solver.linear.march import march
from numerics.solver.linear.solve import solved
from tests.derive.once import isotropic, mean_field, mlp
from tests.numerics.solver.helpers import flow, gd

C = Symbol("C", integer=True, positive=True)
lam, m, beta, T = (Symbol(n, positive=True) for n in ("lam", "m", "beta", "T"))
NUMBERS: Mapping[Symbol, float] = {
    **{gamma0: 0.7, eta: 0.05, P: 3, C: 2, lam: 0.2, m: 0.4, beta: 0.6, T: 0.1},
    **{nu: 1.5, alpha: 2.0, alpha_B: 2.5, sigma: 0.3},
}
KERNEL = np.array([[1.0, 0.3, -0.2], [0.3, 1.2, 0.1], [-0.2, 0.1, 0.8]])
TARGETS = np.array([1.0, -0.5, 0.3])
TWO = np.stack([TARGETS, -0.7 * TARGETS[::-1]], axis=1)
STEPS, DEPTH = 4, 2


def widths(layer: Expr) -> Expr:
    return 1 + layer / 3


THEORIES: dict[str, Callable[[], Program]] = {
    "full-batch": partial(isotropic, 2, noise=True),
    "population, centred": partial(isotropic, 2, data="population", center=True),
    "online, three layers": lambda: isotropic(3, data="online", noise=True),
    "unequal widths, ntk": lambda: isotropic(2, data="online", widths=widths, parametrization="ntk"),
    "branches, isotropic": lambda: isotropic(3, branch=beta, noise=True, center=True),
    "two outputs, isotropic": lambda: isotropic(2, outputs=C, noise=True),
    "fixed samples": lambda: mlp(2),
    "momentum": lambda: mlp(2, momentum=m),
    "noise": lambda: mlp(2, weight_decay=lam, temperature=T),
    "everything": lambda: mlp(2, branch=beta, bias=True, outputs=C, weight_decay=lam, init_variance=2),
}
ALIKE = ("population, centred", "unequal widths, ntk", "two outputs, isotropic", "fixed samples", "noise")
"""Theories whose terms are those of others."""


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in ALIKE else x for x in THEORIES]
)
def test_the_march_reads_the_theory_as_it_is_written(name: str) -> None:
    """Every order parameter of the theory, against its direct evaluation: two programs, one theory.

    Both add up at most a few hundred products of numbers of order one, so rounding stays below 1e-13.
    """
    program = THEORIES[name]()
    theory = mean_field(program)
    depth = 3 if "three" in name or name == "branches, isotropic" else DEPTH
    theory = theory.at_depth(depth)
    y = TWO if name == "everything" else TARGETS
    data = {"K_x": KERNEL, "y": y} if program.given else {}
    table = lower(theory)
    found = march(table, steps=STEPS, constants=NUMBERS, data=data, wanted=tuple(table.tensors))
    values: dict[str, Any] = {str(k): v for k, v in NUMBERS.items()}
    expected = evaluate(theory, steps=STEPS, values=values, data=data)
    for q in theory.order_parameters:
        layer = next((int(x) for x in q.symbol.args[:1] if x.is_Integer), None)
        one = found.tensor((q.name, layer))
        two = expected.value(q.name) if layer is None else expected.value(q.name, layer)
        assert np.abs(one - on_march_axes(two, one.shape, q.symbol.args)).max() < 1e-13, q.symbol
    for e in theory.scalars:
        assert np.abs(found.scalars[e.name] - expected.value(e.name)).max() < 1e-13, e.name


def on_march_axes(value: Any, shape: tuple[int, ...], args: tuple[Expr, ...]) -> Any:
    """Return a direct value (indices, t, s) with the axes of the march, (T, n, T, m).

    The indices of each side are in one axis.
    """
    a = np.asarray(value)
    a = np.moveaxis(a, (-2, -1), (0, 1))
    indices = a.shape[2:]
    for split in range(len(indices) + 1):
        n, k = int(np.prod(indices[:split])), int(np.prod(indices[split:]))
        if (n, k) == (shape[1], shape[3]):
            return a.reshape(a.shape[0], a.shape[1], n, k).transpose(0, 2, 1, 3)
    raise AssertionError((args, indices, shape))


def unreduced(experiment: Experiment) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the solution of the theory as it is derived."""
    return solved(Problem.of(experiment), "full", reductions=())


@pytest.mark.parametrize("depth", [1, 3])
def test_a_plain_network_is_solved_as_by_the_projected_march(depth: int) -> None:
    experiment = gd(depth, 3)
    (general, _), projected = unreduced(experiment), solve(experiment, kernels="full")
    assert set(general) == set(projected.data_vars)
    for name, value in general.items():
        assert np.abs(value - projected[name].values).max() < 1e-13, name


SPEC: dict[str, dict[str, Any]] = {
    "network": {"depth": 2, "gamma0": 0.8, "width_ratio": 1.5},
    "data": {"kind": "isotropic", "sample_ratio": 2.0, "noise": 0.2},
    "training": {"learning_rate": 0.1, "steps": 12},
}


def changed(**tables: Mapping[str, Any]) -> Experiment:
    return Experiment.from_dict({k: {**SPEC[k], **tables.get(k, {})} for k in SPEC})


def test_a_result_on_isotropic_data() -> None:
    r = solve(changed())
    assert r.sizes == {"time": 13, "time_": 13, "layer": 2}
    assert np.allclose(r.test_loss, np.diagonal(r.C_v) + 0.04, rtol=1e-14)
    assert np.allclose(r.train_loss, np.diagonal(r.C_Delta), rtol=1e-14)
    assert float(r.train_loss[-1]) < float(r.test_loss[-1])  # the same samples at every step
    assert (r.R_hr.values[:, *np.triu_indices(13, 1)] == 0).all()
    assert "kernels" not in r.attrs


def test_fresh_batches_have_no_training_set() -> None:
    r = solve(changed(data={"sample_ratio": None, "batch_ratio": 2.0}, training={"rule": "sgd"}))
    assert np.allclose(r.train_loss, r.test_loss, rtol=1e-14)


@pytest.mark.slow
def test_several_outputs_are_summed_in_the_loss() -> None:
    two = solve(changed(network={"outputs": 2}))
    assert two.C_v.dims == ("time", "time_", "channel", "channel_")
    assert np.allclose(two.test_loss, np.einsum("ttcc->t", two.C_v.values) + 2 * 0.04, rtol=1e-14)


def test_fixed_samples_with_outputs_biases_and_decay() -> None:
    tables = {
        "network": {"depth": 2, "outputs": 2, "bias": True, "relative_widths": [1.0, 2.0]},
        "training": {"learning_rate": 0.1, "steps": 2, "weight_decay": 0.1, "center": True},
    }
    e = Experiment.from_dict(tables, kernel=KERNEL, targets=TWO)
    r = solve(e, kernels="full")
    assert r.error.dims == ("time", "sample", "channel")
    assert np.allclose(r.error[0], TWO)
    assert np.allclose(r.train_loss, (r.error**2).sum("channel").mean("sample"), rtol=1e-14)
    swapped = solve(Experiment.from_dict(tables, kernel=KERNEL, targets=TWO[:, ::-1]), kernels="full")
    assert np.allclose(swapped.error, r.error[..., ::-1], rtol=1e-12, atol=1e-14)
    kept = solve(e, kernels="trace")
    assert np.allclose(kept.Phi_trace, np.einsum("ltsmm->lts", r.Phi.values), rtol=1e-14)
    assert "Phi" not in solve(e, kernels="none")


def test_numbers_that_are_symbols_do_not_change_what_is_derived() -> None:
    e = changed()
    others = {
        "network.gamma0": 3.0,
        "network.width_ratio": 9.0,
        "data.noise": 1.0,
        "training.learning_rate": 0.3,
    }

    def key_of(x: Experiment) -> tuple[Any, ...]:
        return program_of(x), reductions_of(x.spec)

    assert key_of(e.replace(others)) == key_of(e)
    for key, value in (("data.noise", 0.0), ("network.width_ratio", None), ("training.weight_decay", 0.1)):
        assert key_of(e.replace({key: value})) != key_of(e)


def test_divergence_on_isotropic_data_names_the_step() -> None:
    with pytest.raises(Diverged, match=r"C_v diverged at step \d+"):
        solve(changed(training={"learning_rate": 3.0, "steps": 200}))


def test_what_is_not_served_is_refused_by_its_key() -> None:
    with pytest.raises(SpecError, match=r"network\.activation"):
        solve(changed(network={"activation": "tanh"}))


# -- flows ---------------------------------------------------------------------------------------------


def flowing(network: dict[str, Any] | None = None, rtol: float = 1e-4, **training: Any) -> Experiment:
    tables = {
        "network": {**SPEC["network"], **(network or {})},
        "data": SPEC["data"],
        "training": {"rule": "flow", **training},
        "solver": {"rtol": rtol},
    }
    return Experiment.from_dict(tables)


def test_the_flow_of_a_plain_network_is_that_of_the_projected_march() -> None:
    experiment = flow(2, 2, points=3, rtol=1e-3)
    (general, notes), projected = unreduced(experiment), solve(experiment, kernels="full")
    assert set(general) == set(projected.data_vars)
    assert notes["time_nodes"] == projected.attrs["time_nodes"]
    for name, value in general.items():
        assert np.abs(value - projected[name].values).max() < 1e-13, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    [
        pytest.param({"branch": 0.6}, marks=pytest.mark.slow),
        {},
        pytest.param({"outputs": 2}, marks=pytest.mark.slow),
    ],
)
def test_small_steps_on_isotropic_data_are_the_flow_at_first_order(network: dict[str, Any]) -> None:
    """Check that the difference of descent at rate 1/n from the flow halves as n doubles.

    The exponent is 1, and the next order changes it by a multiple of 1/n.
    """
    limit = solve(flowing(network, rtol=1e-4, time=1.0, points=3)).test_loss.values[-1]
    counts = np.array([16, 32, 64])
    steps = [
        solve(changed(network=network, training={"learning_rate": 1 / n, "steps": int(n)})) for n in counts
    ]
    differences = np.array([float(r.test_loss[-1]) - limit for r in steps])
    exponents = np.log2(differences[:-1] / differences[1:])
    assert np.abs(exponents - 1).max() < 4 / counts[0]


@pytest.mark.slow
def test_the_error_estimate_of_a_flow_on_isotropic_data_is_honest() -> None:
    fine = solve(flowing(rtol=1e-4, time=1.0, points=5))
    for rtol in (1e-2, 1e-3):
        coarse = solve(flowing(rtol=rtol, time=1.0, points=5))
        error = np.abs(coarse.test_loss - fine.test_loss).max() / (fine.test_loss.max() - 0.04)
        assert float(error) <= coarse.attrs["error_estimate"] <= rtol
    assert not any(str(name).startswith("R_") for name in coarse.data_vars)
    assert coarse.C_h.shape == (2, 5, 5)


def test_a_flow_with_outputs_and_biases() -> None:
    tables = {
        "network": {"depth": 2, "outputs": 2, "bias": True},
        "training": {"rule": "flow", "time": 0.5, "points": 3},
        "solver": {"rtol": 1e-3},
    }
    r = solve(Experiment.from_dict(tables, kernel=KERNEL, targets=TWO), kernels="full")
    assert r.error.dims == ("time", "sample", "channel")
    few = {**tables, "training": {"learning_rate": 0.0125, "steps": 40}}
    near = solve(Experiment.from_dict(few, kernel=KERNEL, targets=TWO), kernels="none")
    far = {**tables, "training": {"learning_rate": 0.025, "steps": 20}}
    wide = solve(Experiment.from_dict(far, kernel=KERNEL, targets=TWO), kernels="none")
    first = np.abs(near.error[-1] - r.error[-1]).max()
    assert 0.45 < float(first / np.abs(wide.error[-1] - r.error[-1]).max()) < 0.55  # first order in the step
