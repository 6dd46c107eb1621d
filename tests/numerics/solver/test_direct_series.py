"""Tests of exact power series in gamma0: hand derivations, other solvers, refusals."""

from fractions import Fraction

import numpy as np
import pytest
from sympy import symbols, tanh

from derive.program import P, eta, gamma0
from numerics.errors import Unserved
from numerics.solver.direct import evaluate
from numerics.solver.quadrature.solve import solve_two_layer
from tests.derive.once import mean_field, mlp
from tests.reference.exact_series import Power, evaluate_series

x = symbols("x")
HALF = Fraction(1, 2)
KERNEL = [[Fraction(1), Fraction(1, 4)], [Fraction(1, 4), HALF]]
TARGETS = [Fraction(1), -HALF]


def test_one_unit_by_hand() -> None:
    """L = 1, P = 1, phi = x + x^2/2: after a step h = u + a phi' r, z = r + a phi with a = eta gamma0."""
    solved = evaluate_series(
        mean_field(mlp(1, x + x**2 / 2)),
        steps=2,
        order=3,
        values={eta: HALF, P: 1},
        data={"K_x": [[1]], "y": [1]},
    )
    # <phi'^4> = 10, <phi phi'' phi'^2> = 4, <phi^2 phi'^2> = 29/2, <phi''^2 phi'^2> = 2
    a = HALF**2
    assert solved.coefficient("Phi", 2, 1)[0, 0, 1, 1] == a * 14
    assert solved.coefficient("G", 2, 1)[0, 0, 1, 1] == a * (Fraction(29, 2) + 4 * 4 + 3 * 2)
    for n in (1, 3):
        assert not solved.coefficient("Phi", n, 1).any()
        assert not solved.coefficient("G", n, 1).any()


def test_linear_networks_as_solved_at_a_given_strength() -> None:
    theory, strength = mean_field(mlp(2)), 0.02
    given = {"steps": 3, "data": {"K_x": KERNEL, "y": TARGETS}}
    series = evaluate_series(theory, order=4, values={eta: HALF, P: 2}, **given)
    floats = {"K_x": np.array(KERNEL, dtype=float), "y": np.array(TARGETS, dtype=float)}
    whole = evaluate(theory, steps=3, values={eta: 0.5, gamma0: strength, P: 2}, data=floats)
    for name in ("H", "G"):
        for layer in (1, 2):
            summed = sum(
                float(strength**n) * series.coefficient(name, n, layer).astype(float) for n in range(5)
            )
            np.testing.assert_allclose(summed, whole.value(name, layer), atol=1e-8, rtol=0)


def test_nonlinear_networks_as_solved_by_quadrature() -> None:
    """The remainder after orders 0 and 2 is of order gamma0^4."""
    theory = mean_field(mlp(1, x - x**3 / 6))
    given = {"K_x": [[HALF]], "y": [1]}
    series = evaluate_series(theory, steps=3, order=3, values={eta: HALF, P: 1}, data=given)
    data = {k: np.array(v, dtype=float) for k, v in given.items()}
    left = []
    for strength in (0.05, 0.1):
        solved = solve_two_layer(theory, steps=3, values={eta: 0.5, gamma0: strength, P: 1}, data=data)
        gaps = []
        for name in ("Phi", "G"):
            cut = sum(strength**n * series.coefficient(name, n, 1).astype(float) for n in (0, 2))
            gaps.append(np.abs(cut - solved.value(name, 1)).max())
        left.append(max(gaps))
    assert left[0] < 2e-3
    assert np.log2(left[1] / left[0]) == pytest.approx(4.0, abs=0.3)


def test_products_are_cut_off_and_only_powers_divide() -> None:
    small = Power({1: {0: 2}}, 2)
    assert (small * small).orders == {2: {0: 4}}
    assert (small * small * small) == 0
    assert (small**-1).orders == {-1: {0: HALF}}
    with pytest.raises(Unserved, match="divided"):
        Power({0: {1: 1}}, 2) ** -1
    with pytest.raises(Unserved, match="averages are numbers"):
        Power({0: {1: 1}}, 2).number(0)


def test_what_is_refused() -> None:
    given = {"steps": 2, "order": 2, "values": {eta: HALF, P: 1}}
    with pytest.raises(Unserved, match="not a polynomial"):
        evaluate_series(mean_field(mlp(1, tanh)), data={"K_x": [[1]], "y": [1]}, **given)
    with pytest.raises(ValueError, match="K_x"):
        evaluate_series(mean_field(mlp(1, x**2)), data={"y": [1]}, **given)
