"""Backward error analysis: against exact logarithms, the generic formula, and iterates of the map."""

from __future__ import annotations

import pytest
from mpmath import mp, mpf, odefun
from sympy import (
    Expr,
    Function,
    Integer,
    Matrix,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    expand,
    lambdify,
    log,
    series,
    simplify,
    symbols,
)
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import t
from derive.errors import NotApplicable
from derive.expansion.orders import ModifiedEquation, modified_equation
from derive.linear.lazy import lazy
from derive.program import L, P, eta, gamma0
from derive.reduce.whitened import whitened_steps
from tests.derive.once import mean_field, mlp, moment_steps, two_layer, whitened

x, y = symbols("x y")


def test_generic_first_orders() -> None:
    """f_1 = -f'f/2 and f_2 = f'f'f/3 + f''(f, f)/12 (Hairer, Lubich, Wanner, eq. IX.(1.4) and (1.5))."""
    f = Function("f")(x)
    found = modified_equation({x: x + eta * f}, 2)
    assert found.coefficient("x", 1) == -f * f.diff(x) / 2
    assert expand(found.coefficient("x", 2) - f * f.diff(x) ** 2 / 3 - f**2 * f.diff(x, 2) / 12) == 0


def test_two_unknowns_keep_the_order_of_derivatives() -> None:
    """-f'f/2 with the Jacobian to the left of the field."""
    f = Matrix([x**2 * y, x - y**3])
    found = modified_equation({x: x + eta * f[0], y: y + eta * f[1]}, 1)
    expected = -f.jacobian([x, y]) * f / 2
    assert [expand(found.coefficient(str(z), 1)) for z in (x, y)] == [expand(e) for e in expected]


@pytest.mark.parametrize("order", [0, 1, 5])
def test_linear_maps_are_logarithms(order: int) -> None:
    """Check that x -> (1 - eta k) x is the flow of log(1 - eta k)/eta."""
    k = Symbol("k", positive=True)
    found = modified_equation({x: x - eta * k * x}, order)
    expected = series(log(1 - eta * k) / eta, eta, 0, order + 1).removeO()
    assert expand(found.rates[x].expr - expected * x) == 0


def test_a_map_that_is_a_flow_already_has_no_corrections() -> None:
    """The time-eta map of dx/dt = x, to the orders that are written down."""
    step = x * series(exp(eta), eta, 0, 6).removeO()
    assert modified_equation({x: step}, 4).rates[x].coefficients == (x, 0, 0, 0, 0)


def iterates_missed(found: ModifiedEquation, start: dict[Expr, float], rate: float, steps: int) -> float:
    """Return the distance of the truncated equation from the iterates after some steps."""
    names = list(found.map)
    step = lambdify([names, eta], [found.map[z] for z in names], "mpmath")
    field = lambdify([names, eta], [found.rates[z].expr for z in names], "mpmath")
    point = [mpf(start[z]) for z in names]
    flow = odefun(lambda _, z: field(z, mpf(rate)), 0, point, tol=mpf(10) ** -16)
    for _ in range(steps):
        point = step(point, mpf(rate))
    return float(max(abs(a - b) for a, b in zip(point, flow(mpf(rate) * steps), strict=True)))


@pytest.mark.parametrize("order", [*(pytest.param(n, marks=pytest.mark.slow) for n in (0, 2)), 1])
def test_truncated_equations_miss_iterates_by_the_next_order(order: int) -> None:
    """Two-layer network on whitened data, moments at time 0.4: exponents 1, 2, 3 within 0.15."""
    numbers = {gamma0: Rational(3, 2), Symbol("y", positive=True): 1}
    steps = whitened_steps(moment_steps(mean_field(mlp(1, loss="sum"))))
    plain = {k: Symbol(str(k.func)) for k in steps.step}
    step = {plain[k]: e.xreplace(plain).subs(numbers) for k, e in steps.step.items()}
    start = {plain[k]: float(e.subs(numbers)) for k, e in steps.initial.items()}
    found = modified_equation(step, order)
    with mp.workdps(25):
        missed = [iterates_missed(found, start, 0.4 / n, n) for n in (16, 32)]
    assert log(missed[0] / missed[1], 2).evalf() == pytest.approx(order + 1, abs=0.15)


def test_bad_maps_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must not move x when eta = 0; it moves x by 1"):
        modified_equation({x: x + 1 + eta}, 1)
    with pytest.raises(ValueError, match="not a polynomial in the step"):
        modified_equation({x: x + x * eta / (1 + eta)}, 1)
    with pytest.raises(ValueError, match="order = -1"):
        modified_equation({x: x + eta}, -1)
    with pytest.raises(ValueError, match="format = 'json'"):
        modified_equation({x: x + eta}, 1).render("json")


def test_render() -> None:
    found = modified_equation({x: x - eta * x}, 1)
    assert str(found) == "dx/dt = -x - eta*x/2 + O(eta**2)"
    assert r"\frac{d}{dt} x &= " in found.render("latex")


# -- networks ------------------------------------------------------------------------------------------


def test_descent_is_a_flow_on_another_loss() -> None:
    """-grad(loss + eta/4 |grad loss|^2) to first order (Barrett, Dherin 2021), for any loss."""
    loss = Function("E")(x, y)
    slope = {z: loss.diff(z) for z in (x, y)}
    found = modified_equation({z: z - eta * slope[z] for z in (x, y)}, 1)
    other = loss + eta / 4 * sum(s**2 for s in slope.values())
    assert all(expand(found.rates[z].expr + other.diff(z)) == 0 for z in (x, y))


def test_lazy_descent_is_a_flow_on_that_loss_in_function_space() -> None:
    """Check the flow -K dE/d(d) of E = |d|^2/2 + (eta/4) d K d for errors d under the kernel K.

    The square of the gradient of the weights is that with the kernel; K is (L + 1) times the input kernel
    (derived).
    """
    step = lazy(mean_field(mlp(loss="sum"))).error
    (total,) = step.rhs.atoms(Sum)  # of the input kernel with the errors
    assert {str(a.func) for a in total.function.atoms(AppliedUndef)} == {"K_x", "Delta"}
    K = Matrix([[2, Rational(1, 3)], [Rational(1, 3), 1]]) * simplify(-step.rhs / total / eta)
    assert K.has(L)
    d = Matrix([x, y])
    move = K * d
    found = modified_equation({z: z - eta * move[i] for i, z in enumerate((x, y))}, 1)
    energy = ((d.T * d)[0] / 2 + eta / 4 * (d.T * K * d)[0]).expand()
    expected = -K * Matrix([energy.diff(x), energy.diff(y)])
    assert [expand(found.rates[z].expr - expected[i]) for i, z in enumerate((x, y))] == [0, 0]


def test_order_zero_is_the_flow_of_the_two_layer_network() -> None:
    """The map of the moments, derived from exact steps, against the differential equations of the flow."""
    flow = whitened(two_layer(mean_field(mlp(1, rule="flow", loss="sum"))))
    steps = whitened_steps(moment_steps(mean_field(mlp(1, loss="sum"))))
    found = {x: r.coefficient(0) for x, r in modified_equation(steps.step, 0).rates.items()}
    assert {e.lhs.args[0]: expand(e.rhs) for e in flow.scalar} == {k: expand(v) for k, v in found.items()}


def test_conserved_quantities_of_the_flow_shrink_by_exact_factors() -> None:
    """Check the factors of H_y - G and of the determinant G H_y - (gamma0 f)^2.

    They keep their signs: 1 - z and (1 - z)^2 a step with z = (eta gamma0 Delta)^2, hence the rates -eta
    gamma0^2 Delta^2 and twice that in the modified equation.
    """
    flow = whitened(two_layer(mean_field(mlp(1, rule="flow", loss="sum"))))
    steps = whitened_steps(moment_steps(mean_field(mlp(1, loss="sum"))))
    found = modified_equation(steps.step, 1)
    delta, target = Function("Delta")(t), Symbol("y", positive=True)
    z = (eta * gamma0 * delta) ** 2
    difference, other = flow.invariants
    determinant = other - gamma0**2 * target**2
    for quantity, power in ((difference, 1), (determinant, 2)):
        after = quantity.subs(steps.step, simultaneous=True)
        assert expand(after - quantity * (1 - z) ** power) == 0
        rate = found.drift(quantity)
        assert rate.coefficient(0) == 0
        assert expand(rate.coefficient(1) + power * gamma0**2 * delta**2 * quantity) == 0


def test_moment_steps_of_any_data_are_those_of_a_network_of_vectors() -> None:
    """Two samples, numbers: the map against fields with the same Gram matrix, moved by hand."""
    steps = moment_steps(mean_field(mlp(1, loss="sum")))
    h = [Matrix([1, 2, 0, 1]), Matrix([0, 1, 3, -1])]
    g = Matrix([2, -1, 1, 1])
    kernel, rate, rich = Matrix([[2, 1], [1, 3]]), Rational(1, 7), Rational(3, 2)
    targets = [Rational(1, 2), Rational(-2)]
    error = [targets[i] - (g.T * h[i])[0] / rich for i in range(2)]
    later = [h[i] + rate * rich * sum(error[j] * kernel[i, j] for j in range(2)) * g for i in range(2)]
    readout = g + rate * rich * (error[0] * h[0] + error[1] * h[1])

    def number(e: Expr, **at: Expr) -> Expr:
        e = e.subs({P: 2, eta: rate, gamma0: rich}).doit()
        e = e.xreplace({s: i for s in e.free_symbols for n, i in at.items() if s.name == n})
        tables = {
            "H": lambda a, b, _: (h[int(a) - 1].T * h[int(b) - 1])[0],
            "G": lambda _: (g.T * g)[0],
            "Delta": lambda a, _: error[int(a) - 1],
            "y": lambda a: targets[int(a) - 1],
            "K_x": lambda a, b: kernel[int(a) - 1, int(b) - 1],
        }
        return e.replace(lambda a: str(a.func) in tables, lambda a: tables[str(a.func)](*a.args))

    found = {str(k.func): v for k, v in steps.step.items()}
    one, two = S.One, Integer(2)
    assert simplify(number(found["H"], mu=one, alpha=two) - (later[0].T * later[1])[0]) == 0
    assert simplify(number(found["G"]) - (readout.T * readout)[0]) == 0
    assert simplify(number(found["Delta"], mu=two) - (targets[1] - (readout.T * later[1])[0] / rich)) == 0


def test_moments_of_other_theories_are_refused() -> None:
    with pytest.raises(NotApplicable, match="the theory is a flow"):
        moment_steps(mean_field(mlp(1, rule="flow")))
    with pytest.raises(NotApplicable):
        moment_steps(mean_field(mlp(2)))
