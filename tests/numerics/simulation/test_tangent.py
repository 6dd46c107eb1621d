"""The tangent kernel of finite networks is made of the gradients of their outputs by every weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Function, Integer, Symbol, tanh

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    Parametrization,
    Population,
    Program,
    eta,
    feedback_alignment,
    gamma0,
    mu,
    t,
)
from derive.theory import mean_field
from numerics.experiment.schema import Solver
from numerics.simulation import simulate_program
from numerics.stats import extrapolate
from tests.chance import excess, in_errors
from tests.derive.once import mlp
from tests.numerics.test_served_programs import CASES, marked

Array = NDArray[np.float64]
Weights = Mapping[tuple[str, tuple[int, ...]], Array]

STEP = 1e-4
"""How far a weight is moved: central differences miss STEP^2, and rounding leaves eps/STEP of them."""

EPS = np.finfo(float).eps
RNG = np.random.default_rng(2)
INPUTS, PLACES, Y = RNG.standard_normal((2, 2)), RNG.standard_normal((2, 3, 2)), np.array([1.0, -0.6])
NUMBERS = {"eta": 0.4, "gamma0": 1.3, "P": 2, "M": 2, "D": 2}
DATA = {"K_x": INPUTS @ INPUTS.T / 2, "y": Y}


def tied(rate_of_readout: int = 1) -> Program:
    """Return three layers of one matrix, under the name ``h`` of layers with separate matrices."""
    units, inputs, k = Population("units"), Population("inputs", given=True), Symbol("k", integer=True)
    h, x, f = Field("h", units, ordered=True), GivenVector("x", inputs, "K_x"), Function("f")
    U, R, w = (
        GaussianMatrix("U", units, inputs),
        GaussianMatrix("R", units, units),
        GaussianVector("w", units),
    )
    forward = {
        h(1, mu, t): U @ x(mu),
        h(k + 1, mu, t): R @ tanh(h(k, mu, t)),
        f(mu, t): Mean(w.symbol * tanh(h(3, mu, t))) / gamma0,
    }
    ranges = (IndexRange(k, Integer(1), Integer(2)),)
    network = Network("tied", (h,), forward, weights=(U, R, w), given=(x,), ranges=ranges)
    rates = Parametrization(rates={"w": Integer(rate_of_readout)})
    return network.train((Function("y")(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta), rates)


@dataclass(frozen=True)
class Small:
    """Networks of width two whose weights are chosen: their outputs, and gradients by central differences."""

    program: Program
    data: Mapping[str, Any]
    output: str = "f"
    rates: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def start(self) -> Weights:
        """Weights at random; inputs have two entries."""
        rng, found = np.random.default_rng(1), {}
        for w in (x.initial for x in self.program.trained()):
            vector = isinstance(w, GaussianVector)
            ranges = w.indices if vector else (*([w.index] if w.index else ()), *w.others)
            for member in product(*(range(int(r.lower), _upper(r) + 1) for r in ranges)):
                found[w.name, member] = rng.standard_normal((2,) if vector else (2, 2))
        return found

    def run(self, weights: Weights, steps: int = 0, **options: Any) -> Any:
        """Return one network with these initial weights."""
        initial: dict[str, Any] = {}
        for (name, member), x in weights.items():
            initial[name] = {**initial.get(name, {}), member: x} if member else x
        given = {"values": NUMBERS, "data": self.data, "wanted": {}, "initial": initial}
        return simulate_program(self.program, width=2, steps=steps, seeds=1, **given, **options)

    def gradients(self, weights: Weights) -> Weights:
        """Return derivatives of all outputs, along the first axis, by the entries of each weight."""
        found = {}
        for key, x in weights.items():
            columns = []
            for entry in np.eye(x.size):
                moved = STEP * entry.reshape(x.shape)
                up, down = (self.run({**weights, key: x + s * moved})[self.output].mean for s in (1, -1))
                columns.append(np.ravel(up - down) / (2 * STEP))
            found[key] = np.stack(columns, axis=1)
        return found

    def factor(self, key: tuple[str, tuple[int, ...]]) -> float:
        """Return the rate times ``gamma0^2 N/n``.

        A weight ``theta/sqrt(n)`` follows ``gamma0^2 N`` gradients.
        """
        units = 2 if self.start[key].ndim == 2 else 1
        return float(self.rates.get(key[0], 1) * NUMBERS["gamma0"] ** 2 * 2 / units)

    def kernel(self, late: Weights, early: Weights) -> Array:
        """Return inner products of gradients and updates."""
        return np.sum([self.factor(key) * late[key] @ early[key].T for key in late], axis=0)


def _upper(r: IndexRange) -> int:
    """Return the last value of an index; outputs are two."""
    return int(r.upper) if r.upper.is_Integer else 2


NETWORKS: dict[str, Callable[[], Small]] = {
    "layers": lambda: Small(mlp(2, "tanh", bias=True), DATA),
    "tied layers": lambda: Small(tied(), DATA),
    "rates": lambda: Small(tied(rate_of_readout=2), DATA, rates={"w": 2}),
    "filters": lambda: Small(CASES["filters"].make(), {"z": PLACES, "label": Y}, "out"),
    "several outputs": lambda: Small(CASES["readouts"].make(), {"z": INPUTS, "label": INPUTS}, "out"),
    "two experts": lambda: Small(CASES["mixture"].make(), {"z": INPUTS, "label": Y, "share": Y}, "out"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.slow) if x in ("several outputs", "two experts") else x
        for x in NETWORKS
    ],
)
def test_the_kernel_is_made_of_gradients_by_weights(name: str) -> None:
    network = NETWORKS[name]()
    measured = network.run(network.start, tangent_kernel=True)["tangent_kernel"]
    gradients = network.gradients(network.start)
    expected = network.kernel(gradients, gradients)
    np.testing.assert_allclose(measured.mean.reshape(expected.shape), expected, **close(expected))


def test_at_two_times_gradients_meet_updates() -> None:
    """Gradients are those at the first time, updates those at the second."""
    network = Small(tied(), DATA)
    measured = network.run(network.start, 1, tangent_kernel=True)
    early = network.gradients(network.start)
    errors = NUMBERS["eta"] * (Y - measured["f"].mean[0])
    moves = {
        key: network.factor(key) * (errors @ x).reshape(network.start[key].shape) for key, x in early.items()
    }
    late = network.gradients({key: x + moves[key] for key, x in network.start.items()})
    expected = np.array([[network.kernel(a, b) for b in (early, late)] for a in (early, late)])
    np.testing.assert_allclose(measured["tangent_kernel"].mean, expected, **close(expected))


def close(expected: Array) -> dict[str, float]:
    """Return tolerances of central differences: STEP^2 and rounding over STEP, with a factor for both."""
    return {"rtol": 0, "atol": 100 * (STEP**2 + EPS / STEP) * float(np.abs(expected).max())}


@pytest.mark.parametrize("name", marked(x for x in CASES if not x.startswith("modes")))
def test_networks_have_the_kernel_that_the_theory_has(name: str) -> None:
    """One output, whose updates are its gradients."""
    case = CASES[name]
    found = numerics.simulate(case.make(), width=6, seeds=2, rng=0, **case.given)
    told = mean_field(case.make()).observables
    assert ("tangent_kernel" in found) == (bool(told) and "f" in found)


def test_feedback_that_is_no_transpose_gives_no_kernel() -> None:
    given = {"numbers": {"eta": 0.4, "gamma0": 1.3}, "arrays": DATA, "times": range(2)}
    assert "tangent_kernel" not in numerics.simulate(feedback_alignment(2), width=4, seeds=2, **given)
    with pytest.raises(ValueError, match="not found to be gradients of one output"):
        Small(feedback_alignment(2), DATA).run({}, tangent_kernel=True)


def test_traces_are_sums_over_samples() -> None:
    given = {"numbers": {"eta": 0.4, "gamma0": 1.3}, "arrays": DATA, "times": range(3)}
    whole, traces = (
        numerics.simulate(tied(), width=5, seeds=2, rng=1, kernels=x, **given) for x in ("full", "trace")
    )
    expected = np.einsum("tsmm->ts", whole.tangent_kernel.values)
    np.testing.assert_allclose(traces.tangent_kernel_trace, expected, rtol=1e-12)


@pytest.mark.slow
def test_networks_of_tied_layers_approach_the_theory() -> None:
    """Kernels of their layers are correlated, and products of mean kernels are not the mean."""
    given = {"numbers": {"eta": 0.4, "gamma0": 1.3}, "arrays": DATA, "times": range(3)}
    theory = numerics.solve(tied(), solver=Solver(method="paths", samples=2048), **given)
    networks = extrapolate([numerics.simulate(tied(), width=n, seeds=120, rng=n, **given) for n in (40, 80)])
    error = np.hypot(networks.tangent_kernel_stderr, theory.tangent_kernel_stderr)
    gap = networks.tangent_kernel - theory.tangent_kernel
    assert excess(in_errors(gap, error), 119) <= 1
