"""The table of reference numbers: against exact theories of one layer, limits and networks trained again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chance import excess
from tests.numerics.fluctuations import reference
from tests.numerics.fluctuations.estimates import Estimate, expansion_in_width
from tests.numerics.fluctuations.isotropic import Isotropic
from tests.numerics.fluctuations.limits import linear_limit, one_layer_limit
from tests.numerics.fluctuations.one_layer import OneLayer, leading_order
from tests.numerics.fluctuations.reference import EXPERIMENTS, load
from tests.reference.isotropic_dense import isotropic_dense

EXACT = ("linear-1-1", "linear-1-2", "linear-1-4", "flow-1-2")
SOLVED = [
    name
    for name, x in EXPERIMENTS.items()
    if isinstance(x.training, Isotropic)
    or (x.training.depth == 1 and x.training.activation == "tanh")
    or not (
        x.training.bias or x.training.momentum or x.training.weight_decay or x.training.activation != "linear"
    )
]


def limit_of(training: Any) -> dict[str, Any]:
    """Return observables at infinite width, from references that are independent of the packages."""
    if not isinstance(training, Isotropic):
        return linear_limit(training) if training.is_linear else one_layer_limit(training)
    options = {"nu": training.ratio, "alpha_B": training.batch_ratio, "center": training.centred}
    options |= {x: getattr(training, x) for x in ("depth", "eta", "gamma0", "noise")}
    solution = isotropic_dense(training.steps + 1, **options)
    names = ("C_v", "C_Delta", "C_h0", "C_h", "C_g")
    return {x: np.diagonal(getattr(solution, x), axis1=-2, axis2=-1).T for x in names}


def in_digits(found: Estimate) -> Estimate:
    """Add the rounding of the table, seven digits, to the errors."""
    return Estimate(found.value, np.hypot(found.error, 5e-7 * np.abs(found.value)) + 1e-12)


def far(found: Estimate, expected: Any) -> float:
    """Return the largest distance over its bound."""
    return excess(in_digits(found).distance(expected))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_networks_trained_again_have_the_numbers_of_the_table(name: str) -> None:
    table, experiment = load(name), EXPERIMENTS[name]
    width, times = table.widths[0], list(experiment.times)
    assert min(experiment.counts.values()) >= 20_000
    samples, distances = experiment.samples(width, 1, 1500), []
    for key in table.means:
        for old, new in (
            (table.means[key][0], samples.mean(key)),
            (table.variances[key][0], samples.scaled_variance(key)),
        ):
            found = Estimate(new.value[times], np.hypot(new.error[times], old.error))
            distances.append(in_digits(found).distance(old.value).ravel())
    assert excess(np.concatenate(distances)) <= 1


@pytest.mark.parametrize("name", SOLVED)
def test_means_approach_the_limit_of_infinite_width(name: str) -> None:
    table, times = load(name), list(EXPERIMENTS[name].times)
    limit = limit_of(EXPERIMENTS[name].training)
    for key, means in table.means.items():
        fit = expansion_in_width(table.widths, means)
        assert far(Estimate(fit.value[0], fit.error[0]), limit[key][times]) <= 1, key


@pytest.mark.parametrize("name", EXACT)
def test_one_linear_layer_has_its_exact_leading_order(name: str) -> None:
    table, training, times = load(name), EXPERIMENTS[name].training, list(EXPERIMENTS[name].times)
    flow = training.substeps > 0
    network = OneLayer(training.kernel, training.targets, training.eta, training.steps, flow=flow)
    order, limit = leading_order(network), linear_limit(training)
    for key in table.means:
        variance, shift = table.scaled_variance(key), table.scaled_shift(key, limit[key][times])
        shape = variance.value.shape
        assert far(variance, order.scaled_variance(key)[times].reshape(shape)) <= 1, key
        assert far(shift, order.scaled_shift(key)[times].reshape(shape)) <= 1, key


def test_two_layers_have_the_numbers_of_the_theory_of_finite_width() -> None:
    """At eta = 0.08, t = 5, as found by another program before."""
    table, limit = load("linear-2-1"), linear_limit(EXPERIMENTS["linear-2-1"].training)
    numbers = {"f": (0.4056, -1.0560), "tangent_kernel": (29.65, None), "loss": (None, 0.4056)}
    for key, (variance, shift) in numbers.items():
        shifts = table.scaled_shift(key, limit[key][list(table.experiment.times)])
        for found, expected in ((table.scaled_variance(key), variance), (shifts, shift)):
            if expected is not None:
                assert excess(found.distance(expected)[3]) <= 1, key


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_initial_tangent_kernel_has_the_closed_variance(depth: int) -> None:
    """``N Var K(0) = (2/3) L (L + 1) (2 L + 1)``."""
    found = load(f"linear-{depth}-1").scaled_variance("tangent_kernel")
    first = Estimate(found.value[:1], found.error[:1])
    assert far(first, 2 / 3 * depth * (depth + 1) * (2 * depth + 1)) <= 1


def test_a_table_of_another_training_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.toml"
    path.write_text(reference.TABLE.read_text().replace("eta = 0.08, steps = 8", "eta = 0.09, steps = 8"))
    load("linear-1-1", path)
    with pytest.raises(ValueError, match="another training"):
        load("linear-2-1", path)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Replaced entries leave the others alone."""
    path = tmp_path / "table.toml"
    path.write_text(reference.TABLE.read_text())
    name = "tanh-1-2"
    small = reference.Experiment(EXPERIMENTS[name].training, EXPERIMENTS[name].times, {8: 40, 16: 40})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXPERIMENTS, name, small)
        reference.write([name], path)
        found = load(name, path)
        samples = small.samples(8, 1000 * (1 + list(EXPERIMENTS).index(name)) + 8)
    assert found.widths == (8, 16)
    times = list(small.times)
    for key in found.means:
        mean = samples.mean(key).value[times]
        np.testing.assert_allclose(found.means[key][0].value, mean, rtol=1e-6, atol=1e-12)
        variance = samples.scaled_variance(key).value[times]
        np.testing.assert_allclose(found.variances[key][0].value, variance, rtol=1e-6, atol=1e-9)
    old, new = (reference._entries(x) for x in (reference.TABLE, path))
    assert list(old) == list(new)
    assert {x for x in old if old[x] != new[x]} == {name}
