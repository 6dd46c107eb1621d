"""Every method that takes a program of one's own gives the numbers of sampled paths, at small gamma0.

There ``auto`` chooses among most methods, and the limit of small gamma0 is one of them. The programs have
what makes a weight or an output differ from those of the builders: rules and rates of single weights, offsets
and factors of the output, frozen weights, other losses, variances and schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, Max, Rational, cosh, log, tanh

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    GradientFlow,
    Mean,
    Momentum,
    Network,
    Parametrization,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.errors import NotConverged, SpecError
from numerics.experiment.schema import Solver

GIVEN: dict[str, Any] = {
    "numbers": {"eta": 0.1, "gamma0": 0.02},
    "arrays": {"gram": [[1.0, 0.3], [0.3, 0.8]], "y": [1.0, -0.5]},
}
units, pixels = Population("units"), Population("pixels", given=True)
out, y = Function("out"), Function("y")
steps = GradientDescent(eta)
quarter, half = Rational(1, 4), Rational(1, 2)
decaying = GradientDescent(eta, Rational(1, 10))
slowing = GradientDescent(eta / (1 + t))


def network(
    output: Callable[[Expr], Expr] = lambda m: m,
    activation: Callable[[Expr], Expr] = tanh,
    *,
    loss: Callable[[Expr], Expr] = lambda e: e**2 / 2,
    rule: Any = steps,
    variances: tuple[int, int] = (1, 1),
    frozen: str = "",
    **options: Any,
) -> Program:
    """Return a network of one layer whose parts have names of their own."""
    x, pre = GivenVector("x", pixels, "gram"), Field("pre", units)
    first = GaussianMatrix("A", units, pixels, variance=variances[0])
    last = GaussianVector("b", units, variance=variances[1])
    lines = {
        pre(mu, t): first @ x(mu),
        out(mu, t): output(Mean(last.symbol * activation(pre(mu, t))) / gamma0),
    }
    trained = tuple(v for v in (first, last) if v.name != frozen)
    kept = tuple(v for v in (first, last) if v.name == frozen)
    own = Network("own", (pre,), lines, weights=trained, frozen=kept, given=(x,))
    return own.train(loss(y(mu) - out(mu, t)), rule, **options)


CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rule of the readout": {"rules": {"b": GradientDescent(2 * eta)}},
    "rule of the first weights": {"rules": {"A": GradientDescent(3 * eta)}},
    "momentum of the readout": {"rules": {"b": Momentum(eta, half)}},
    "decay of the readout": {"rules": {"b": decaying}},
    "schedule of the readout": {"rules": {"b": slowing}},
    "rates": {"parametrization": Parametrization(rates={"b": 3})},
    "offset": {"output": lambda m: m + quarter},
    "factor": {"output": lambda m: 2 * m},
    "function of the output": {"output": tanh},
    "frozen first weights": {"frozen": "A"},
    "frozen readout": {"frozen": "b"},
    "loss times three": {"loss": lambda e: 3 * e**2 / 2},
    "another loss": {"loss": lambda e: log(cosh(e))},
    "momentum": {"rule": Momentum(eta, half)},
    "schedule": {"rule": slowing},
    "variances": {"variances": (2, 3)},
    "flow with rates": {
        "rule": GradientFlow(eta),
        "parametrization": Parametrization(rates={"b": 3}),
    },
    "flow with an offset": {"rule": GradientFlow(eta), "output": lambda m: m + quarter},
}
ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {
    "tanh": tanh,
    "linear": lambda z: z,
    "relu": lambda z: Max(z, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("change", CHANGES)
def test_methods_that_take_a_program_agree(change: str, activation: str) -> None:
    program = network(activation=ACTIVATIONS[activation], **CHANGES[change])
    times = range(4) if program.rule.discrete else np.array([0.0, 0.5, 1.0, 2.0])

    def solved(method: str, **options: Any) -> Any:
        return numerics.solve(program, times=times, solver=Solver(method=method, **options), **GIVEN)

    paths = solved("paths", samples=4096)
    error, size = paths["f_stderr"].to_numpy(), np.abs(paths["f"]).max().item()
    taken = 0
    for method in ("lazy", "nodes", "linear"):
        try:
            other = solved(method)
        except (SpecError, NotConverged):
            continue
        taken += 1
        # The limit of small gamma0, and averages on nodes, state the size of what they leave out.
        allowed = 6 * error + size * (2 * other.attrs.get("error_estimate", 0.0) + 1e-3)
        assert np.all(np.abs(other["f"] - paths["f"]).to_numpy() <= allowed), method
    assert taken > 0 or change in ("function of the output", "decay of the readout")
