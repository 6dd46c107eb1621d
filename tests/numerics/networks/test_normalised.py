"""Normalisation: the builder against a network in NumPy, both routes, and solutions against networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import numerics
from derive.errors import ProgramError
from derive.program import L
from derive.program.networks import normalised
from derive.theory.routes import check_routes
from numerics.experiment.schema import Solver
from numerics.simulation import simulate_program
from tests.chance import excess, in_errors
from tests.numerics.networks.case import Case, movement
from tests.numerics.networks.normalised import ARRAYS, INPUTS, NUMBERS, layer_after, rms_before
from tests.numerics.networks.plain import Weights, descended, layer_norm, rms

N, RATES, TARGETS = 4, {"eta": 0.05, "gamma0": 1.3}, np.array([1.0, -0.6])


def before(w: Weights) -> Any:
    """Return outputs of two branches that read the stream over its root mean square."""
    h = INPUTS[:2] @ w["W0"].T / np.sqrt(3)
    for W in w["W"]:
        h = h + np.tanh(rms(h)) @ W.T / np.sqrt(N)
    return rms(h) @ w["w"] / (RATES["gamma0"] * N)


def after(w: Weights) -> Any:
    """Return outputs of two branches with biases; the stream is normalised after each."""
    h = INPUTS[:2] @ w["W0"].T / np.sqrt(3)
    for W, b in zip(w["W"], w["b"], strict=True):
        h = layer_norm(h + np.tanh(h) @ W.T / np.sqrt(N) + b)
    return h @ w["w"] / (RATES["gamma0"] * N)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("outputs", [before, after])
def test_the_builder_is_the_network_that_is_written_in_numpy(outputs: Any, named: bool) -> None:
    shapes: dict[str, tuple[int, ...]] = {"W0": (N, 3), "W": (2, N, N), "w": (N,)}
    options: dict[str, Any] = {}
    if outputs is after:
        shapes["b"], options = (2, N), {"place": "after", "normalisation": "layer", "bias": True}
    rng = np.random.default_rng(1)
    weights = {k: rng.standard_normal(shape) for k, shape in shapes.items()}
    found = simulate_program(
        normalised(2, named=named, **options),
        width=N,
        steps=2,
        seeds=1,
        values={**RATES, "P": 2},
        data={"x": INPUTS[:2], "y": TARGETS},
        initial={k: x / {"W0": np.sqrt(3), "W": 2.0}.get(k, 1.0) for k, x in weights.items()},
        wanted={},
    )
    expected = descended(outputs, weights, TARGETS, RATES, steps=2)
    assert np.abs(expected[2] - expected[0]).max() > 0.02
    assert np.abs(found["f"].mean - expected).max() < 1e-10


def test_options_are_named() -> None:
    with pytest.raises(ProgramError, match="place"):
        normalised(1, place="within")  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="normalisation"):
        normalised(1, normalisation="batch")  # type: ignore[typeddict-item]
    with pytest.raises(ProgramError, match="offsets = True: the network has no option"):
        normalised(1, offsets=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"named": False}, {"place": "after", "normalisation": "layer", "bias": True, "outputs": 2}],
)
def test_routes_agree_at_any_depth(options: dict[str, Any]) -> None:
    for depth in (L, 1):
        found = check_routes(normalised(depth, **options))
        assert found == []
        assert found.gradients == "compared"


@pytest.mark.slow
def test_inline_averages_and_named_numbers_are_one_theory() -> None:
    given: dict[str, Any] = {"numbers": NUMBERS, "arrays": ARRAYS, "times": range(11)}
    named, inline = (
        numerics.solve(normalised(2, named=x), solver=Solver(samples=2**8, seed=seed), **given)
        for x, seed in ((True, 0), (False, 1))
    )
    error = np.hypot(named.f_stderr, inline.f_stderr)
    assert excess(in_errors(named.f - inline.f, error), named.attrs["replicas"] - 1) < 1


@pytest.mark.slow
@pytest.mark.parametrize("make", [rms_before, layer_after])
def test_theory_and_networks(make: Callable[[], Case]) -> None:
    case = make()
    theory, networks = case.theory(), case.networks()
    report = numerics.verification.compare(theory, networks)
    assert report.passed, str(report)
    assert max(movement(theory, name) for name in ("Phi_trace", "G_trace")) > 0.1


@pytest.mark.slow
def test_networks_that_are_normalised_elsewhere_are_others() -> None:
    case = replace(rms_before(), seeds=(60, 30))
    assert not case.compared(normalised(3, branch=0.5, place="after")).passed


def test_networks_have_kernels_of_the_layers_that_solutions_have() -> None:
    """A stream with an embedding below its layers ended in "conflicting sizes for dimension 'layer'"."""
    given: dict[str, Any] = {"numbers": NUMBERS, "arrays": ARRAYS, "times": range(3)}
    found = numerics.simulate(normalised(2), width=8, seeds=2, rng=1, kernels="full", **given)
    assert found.Phi.sizes["layer"] == found["size"].sizes["layer"] == 2
