"""A vector of weights in its own update, or in that of another weight, is its value at the update's time."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Expr, Function, tanh

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from derive.theory import mean_field
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate

cells, letters = Population("cells"), Population("letters", given=True)
x, h = GivenVector("x", letters, "K_x"), Field("h", cells)
A = GaussianMatrix("A", cells, letters)
v, w = GaussianVector("v", cells), GaussianVector("w", cells)
f, y = Function("f"), Function("y")

FORWARD = {
    "square": w.symbol**2 * h(mu, t),
    "tanh": tanh(w.symbol) * h(mu, t),
    "gate": tanh(h(mu, t) * w.symbol),
    "two vectors": w.symbol * v.symbol * h(mu, t),
}


def program(entry: Expr, *, frozen: bool = False) -> Program:
    vectors = tuple(z for z in (v, w) if entry.has(z.symbol))
    trained = (A, *(vectors[1:] if frozen else vectors))
    forward = {h(mu, t): A @ x(mu), f(mu, t): Mean(entry) / gamma0}
    net = Network("vectors", (h,), forward, trained, vectors[:1] if frozen else (), given=(x,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


@pytest.mark.parametrize(("name", "frozen"), [*((name, False) for name in FORWARD), ("two vectors", True)])
def test_no_symbol_of_a_weight_is_left_in_a_theory(name: str, frozen: bool) -> None:
    theory = mean_field(program(FORWARD[name], frozen=frozen))
    bodies = [e.rhs for e in (*theory.equations, *theory.scalars, *theory.observables)]
    bodies += [q.definition for q in theory.order_parameters]
    assert not any(e.free_symbols & {v.symbol, w.symbol} for e in bodies)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORWARD)
def test_networks_follow_the_theory(name: str) -> None:
    trained = program(FORWARD[name])
    values, data = {"eta": 0.3, "gamma0": 1.0, "P": 1}, {"K_x": [[1.0]], "y": [1.0]}
    theory = evaluate(mean_field(trained), steps=4, values=values, data=data, samples=2**14, replicas=4)
    runs = [
        simulate_program(trained, width=n, steps=3, seeds=k, values=values, data=data, seed=n)["f"]
        for n, k in ((200, 400), (400, 200))
    ]
    mean = 2 * runs[1].mean - runs[0].mean  # extrapolated linearly in 1/N
    error = np.sqrt(4 * runs[1].stderr ** 2 + runs[0].stderr ** 2 + theory.stderr("f") ** 2)
    assert (np.abs(mean - theory.value("f"))[1:] < 4 * error[1:]).all()
