"""The linear series as functions of time: exact solutions, exact steps, identities."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from sympy import (
    QQ,
    Expr,
    Function,
    I,
    Matrix,
    Rational,
    S,
    Symbol,
    cancel,
    diag,
    exp,
    eye,
    lambdify,
    ring,
    sqrt,
    symbols,
)

from derive.calculus.series import PowerSeries
from derive.errors import NotApplicable
from derive.expansion import LinearExpansion
from derive.expansion.in_time import InTime, modes_of
from derive.expansion.in_time.operators import ModeVector
from derive.program import L, P, ell, eta, gamma0, s, t
from tests.derive.expansion.in_time import exact
from tests.derive.once import expand_linear, mean_field, mlp
from tests.reference.adams_weights import step_sum_weights
from tests.reference.power_series import gamma_expansion, loss_expansion

R = Rational
y = Symbol("y", positive=True)
a, b = symbols("a b", positive=True)


@lru_cache(maxsize=8)
def words(order: int, rule: str = "flow", loss: str = "sum") -> LinearExpansion:
    return expand_linear(mean_field(mlp(rule=rule, loss=loss)), order)


@lru_cache(maxsize=4)
def whitened(depth: int, order: int) -> InTime:
    return words(0).in_time(depth=depth, order=order)


# -- the exact solution of two layers on whitened data ----------------------------------------------------


def test_two_layers_obey_the_exact_equation_to_order_4() -> None:
    """(F.11), whose solution (F.12) is: each order vanishes as a polynomial in t and exp(-2 t)."""
    order, f = 4, exact.output
    assert exact.reduced().output.rhs == (y - f) * sqrt(1 + gamma0**2 * f**2) * 2
    found = whitened(1, order)
    x, time, E, norm = ring("t,E,y", QQ)

    def element(e: Expr) -> Any:
        plain = e.replace(lambda z: isinstance(z, exp), lambda z: Symbol("E") ** int(-z.args[0] / (2 * t)))
        return x.from_expr(plain.subs({y: Symbol("y"), t: Symbol("t")}))

    def product(a: list[Any], b: list[Any], n: int) -> Any:
        return sum((a[k] * b[n - k] for k in range(n + 1)), x.zero)

    error = [element(found.Delta(n)) for n in range(order + 1)]
    output = [norm - error[0], *(-e for e in error[1:])]
    root = [x.one]  # of 1 + gamma0^2 f^2
    for n in range(1, order + 1):
        square = product(output, output, n - 2) if n > 1 else x.zero
        root.append((square - sum((root[k] * root[n - k] for k in range(1, n)), x.zero)) / 2)
    for n in range(order + 1):
        slope = error[n].diff(time) - 2 * E * error[n].diff(E)
        assert slope == -2 * product(root, error, n)
        assert error[n].subs([(time, 0), (E, 1)]) == (norm if n == 0 else 0)
    assert all(e == 0 for e in error[1::2])
    assert error[order] != 0


@pytest.mark.parametrize("time", ["0.3", pytest.param("1.7", marks=pytest.mark.slow)])
def test_two_layers_against_the_closed_form(time: str) -> None:
    with mp.workdps(50):
        solution = lambdify((gamma0, t), exact.error().subs(y, 1), "mpmath")
        # the Taylor coefficients by the trapezoidal rule on a circle inside the radius of convergence
        points = [mp.mpf("0.1") * mp.expjpi(mp.mpf(2 * k) / 32) for k in range(32)]
        values = [solution(z, mp.mpf(time)) for z in points]
        for n in range(0, 9, 2):
            taylor = sum(v / z**n for v, z in zip(values, points, strict=True)) / 32
            mine = whitened(1, 8).Delta(n).subs({t: R(time), y: 1}).evalf(50)
            assert abs(taylor - mp.mpf(mine)) < mp.mpf(10) ** -25


def nearest_pair(c: list[Any]) -> Any:
    """Return the distance of a pair of conjugate poles, from determinants of four coefficients."""

    def minor(k: int) -> Any:
        return c[k + 1] * c[k - 1] - c[k] ** 2

    return mp.sqrt(abs(minor(len(c) - 3) / minor(len(c) - 2)))


@pytest.mark.slow
@pytest.mark.parametrize(("time", "within"), [(R(1, 4), 0.001), (1, 0.003)])
def test_the_estimated_radius_is_that_of_the_exact_solution(time: Any, within: float) -> None:
    series = whitened(1, 12).series("Delta", now=time)
    c = [mp.mpf(series.coefficient(n).subs(y, 1).evalf(40)) for n in range(0, 13, 2)]
    assert abs(nearest_pair(c) / abs(exact.singularity(float(time))) - 1) < within


def test_the_radius_shrinks_to_one_over_y_as_training_goes_on() -> None:
    """Below (F.13): the disk |gamma0| < 1/y.  At finite times the series reaches further."""
    nearest = [exact.singularity(time, tries=4) for time in (1, 8)]
    sizes = [mp.sqrt(abs(z)) for z in nearest]
    assert sizes[0] > 2.6
    assert sizes[0] > sizes[1] > 1
    assert abs(nearest[1] + 1) < 0.15


# -- exact steps ------------------------------------------------------------------------------------------


def rational(P_: int) -> tuple[list[Rational], list[Rational], Matrix]:
    """Return eigenvalues, targets in the eigenbasis, and a rational basis."""
    v = Matrix([1] * P_)
    basis = eye(P_) - 2 * v * v.T / P_ if P_ > 1 else eye(1)
    return [R(7, 5), R(3, 5), R(1, 3)][:P_], [R(1), R(-1, 2), R(3, 4)][:P_], basis


def number(e: Expr) -> Fraction:
    value = R(e)
    return Fraction(int(value.p), int(value.q))


def value(e: Expr, times: dict[Expr, int]) -> Fraction:
    """Return the exact value of an expression in rational numbers and steps."""
    if e.is_Rational:
        return number(e)
    if e in times:
        return Fraction(times[e])
    parts = [value(x, times) for x in e.args]
    if e.is_Add:
        return sum(parts, Fraction(0))
    if e.is_Pow:
        assert parts[1].denominator == 1
        return parts[0] ** int(parts[1])
    assert e.is_Mul
    return prod(parts, start=Fraction(1))


def table(e: Expr, steps: int, two: bool = False) -> Any:
    """Return values at all steps, or pairs of steps."""
    times = range(steps + 1)
    return np.array([[value(e, {t: i, s: j}) for j in (times if two else [0])] for i in times], dtype=object)


@pytest.mark.parametrize(
    ("samples", "depth", "order", "loss", "symbolic"),
    [
        (1, 1, 4, "sum", False),
        (2, 2, 2, "mean", False),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in (
                (3, 1, 2, "sum", False),
                (1, 2, 2, "mean", True),
                (2, 2, 4, "mean", False),
                (2, 3, 2, "sum", True),
                (3, 4, 2, "mean", False),
            )
        ),
        pytest.param(2, 3, 4, "mean", False, marks=pytest.mark.slow),
        pytest.param(3, 2, 4, "sum", False, marks=pytest.mark.slow),
        pytest.param(1, 4, 4, "sum", True, marks=pytest.mark.slow),
        pytest.param(2, 2, 4, "sum", True, marks=pytest.mark.slow),
    ],
)
def test_steps_are_exact(samples: int, depth: int, order: int, loss: str, symbolic: bool) -> None:
    """Rational numbers equal to those of the recursion run on truncated power series, entry by entry.

    Of two samples at symbolic depth errors, losses and H alone are compared at order 4: other kernels take a
    minute.
    """
    large = symbolic and (samples, order) == (2, 4)
    values, targets, basis = rational(samples)
    rate, steps = R(1, 5), 3
    weight = rate / samples if loss == "mean" else rate
    kernel, aim = basis * diag(*values) * basis.T, basis * Matrix(targets)
    expected = gamma_expansion(
        np.array([[number(x) for x in row] for row in kernel.tolist()], dtype=object),
        np.array([number(x) for x in aim], dtype=object),
        step_sum_weights(steps, 1).astype(int) * number(weight),
        depth=depth,
        order=order // 2,
    )
    x = words(order if symbolic else 0, "gd", loss)
    if symbolic:
        found = x.in_time(values, targets, constants={eta: rate})
    else:
        found = x.in_time(values, targets, depth=depth, order=order, constants={eta: rate})
    rotation = np.array([[number(q) for q in row] for row in basis.tolist()], dtype=object)
    losses = loss_expansion(expected)

    def entries(name: str, n: int, layer: int = 1) -> Any:
        rows = 1 if name in ("G", "B") else samples
        cols = 1 if name in ("G", "A") else samples
        out = np.zeros((steps + 1, steps + 1, rows, cols), dtype=object)
        for i in range(rows):
            for j in range(cols):
                modes = {"G": (), "A": (i,), "B": (j,)}.get(name, (i, j))
                e = found.coefficient(name, n, *modes, layer=layer).subs(L, depth)
                out[:, :, i, j] = np.tril(table(e, steps, True), -1 if name in "AB" else steps)
        if rows > 1:
            out = np.einsum("mi,tsij->tsmj", rotation, out)
        return np.einsum("tsij,nj->tsin", out, rotation) if cols > 1 else out

    for k, one in enumerate(expected):
        n = 2 * k
        error = np.hstack([table(found.Delta(n, j).subs(L, depth), steps) for j in range(samples)])
        assert (error @ rotation.T == one.error).all()
        assert (table(found.loss(n).subs(L, depth), steps)[:, 0] == losses[k]).all()
        for layer in range(1, depth + 1):
            assert (entries("H", n, layer) == one.Phi[layer - 1]).all()
        if large and n == order:
            continue
        assert (entries("K", n) == one.tangent_kernel).all()
        for layer in range(1, depth + 1):
            assert (entries("G", n, layer)[..., 0, 0] == one.G[layer - 1]).all()
            assert (entries("A", n, layer)[..., 0] == one.A[layer - 1]).all()
            assert (entries("B", n, layer)[..., 0, :] == one.B[layer - 1]).all()
        assert all(found.Delta(m) == 0 for m in range(1, order, 2))


def test_a_small_step_is_the_flow() -> None:
    """Geometric sums become exponentials, linearly in the step."""
    flow, steps = words(2).in_time([2, 1]), words(2, "gd").in_time([2, 1])

    def gap(rate: Rational) -> Expr:
        numbers = {L: 2, Symbol("y1"): 1, Symbol("y2"): -1}
        one = steps.Delta(2, 1).subs({t: 1 / (2 * rate), eta: rate}).subs(numbers)
        return (one - flow.Delta(2, 1).subs(t, R(1, 2)).subs(numbers)).evalf(30)

    assert abs(gap(R(1, 2000)) / gap(R(1, 4000)) - 2) < 0.01


# -- identities of the flow -------------------------------------------------------------------------------


def residual(found: InTime, n: int, mode: int) -> Expr:
    """Return the residual of ``dDelta/dt = -K Delta`` at order n.

    K comes from the tangent kernel, not from the output.
    """
    total = found.Delta(n, mode).diff(t)
    for k in range(n + 1):
        for other in range(len(found.modes)):
            kernel = found.coefficient("K", k, mode, other, now=t, past=t)
            total += kernel * found.Delta(n - k, other)
    return total


@pytest.mark.parametrize(
    ("depth", "order"),
    [
        pytest.param(1, 4, marks=pytest.mark.slow),
        (2, 2),
        pytest.param(4, 2, marks=pytest.mark.slow),
        (None, 2),
    ],
)
def test_the_error_moves_with_the_tangent_kernel(depth: int | None, order: int) -> None:
    x = words(order) if depth is None else words(0)
    values, targets, _ = rational(2)
    found = x.in_time(values, targets, depth=depth, order=order)
    for n in range(0, order + 1, 2):
        for mode in (0, 1):
            left = residual(found, n, mode).subs(L, 3)
            assert abs(left.subs(t, R(7, 4)).evalf(40)) < 1e-33


def test_a_planted_error_leaves_a_residual() -> None:
    found = words(0).in_time([R(7, 5)], [1], depth=2, order=2)
    errors = found.values.algebra.errors
    good = errors[2]
    assert abs(residual(found, 2, 0).subs(t, 1).evalf(40)) < 1e-33
    f = found.values.algebra.functions
    errors[2] = ModeVector({0: good.entries[0] + f.ring.gens[0] / 10**9}, good.unit, good.damping)
    assert abs(residual(found, 2, 0).subs(t, 1).evalf(40)) > 1e-10
    with pytest.raises(NotApplicable, match="at order 2 in gamma0: the linear equations of the error"):
        found.values.check([f.one], 2)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ([1], "flow"),
        pytest.param([a], "gd", marks=pytest.mark.slow),
        *(pytest.param([a, b], x, marks=pytest.mark.slow) for x in ("flow", "gd")),
    ],
)
def test_symbolic_depth_and_layer_against_integer_ones(values: list[Any], rule: str) -> None:
    order, depth = (2, 3) if (values, rule) == ([1], "flow") else (2, 2)
    general = words(order, rule, "mean").in_time(values)
    where = {a: R(3, 2), b: R(2, 5), y: R(4, 3), eta: R(1, 7), P: 3, Symbol("y1"): 1, Symbol("y2"): R(-2, 3)}
    special = words(0, rule, "mean").in_time(values, depth=depth, order=order)
    assert general.modes == special.modes
    for name in ("Delta", "loss", "H", "A") if depth == 3 else ("Delta", "H", "G", "A", "B", "C", "D", "K"):
        one = general.coefficient(name, order).subs({L: depth, ell: depth - 1})
        two = special.coefficient(name, order, layer=depth - 1)
        difference = (one - two).subs(where).subs({t: 3, s: 2})
        assert two != 0, name
        assert abs(difference.evalf(40)) < 1e-30, name


# -- modes ------------------------------------------------------------------------------------------------


def test_rates_that_resonate() -> None:
    """lambda_1 = 2 lambda_2: a power of t appears, and the formula is the limit of those beside it."""
    resonant = words(0).in_time([2, 1], depth=2, order=2)
    beside = words(0).in_time([2 + R(1, 10**10), 1], depth=2, order=2)
    symbolic = words(0).in_time([2 * a, a], depth=2, order=2)
    generic = words(0).in_time([b, a], depth=2, order=2)
    at_one = {t: R(2, 3), Symbol("y1"): 1, Symbol("y2"): R(1, 2)}
    for mode in (0, 1):
        value = resonant.Delta(2, mode).subs(at_one).evalf(40)
        assert abs(value - beside.Delta(2, mode).subs(at_one).evalf(40)) < 1e-9
        assert abs(value - symbolic.Delta(2, mode).subs(a, 1).subs(at_one).evalf(40)) < 1e-35
        near = generic.Delta(2, mode).subs({a: 1, b: 2 + R(1, 10**10)}).subs(at_one).evalf(40)
        assert abs(value - near) < 1e-9
    # the square of the slow exponential drives the fast mode at its own rate
    moved, alone = (x.Delta(2).coeff(t).subs({t: 0, Symbol("y1"): 1}) for x in (resonant, beside))
    assert abs((moved - alone).coeff(Symbol("y2"), 2)) > 0.1
    assert generic.Delta(2).subs(b, 2 * a).has(S.ComplexInfinity, S.NaN)


def test_equal_eigenvalues_move_only_along_the_targets() -> None:
    found = words(0).in_time([2, 1, 2], [3, 1, 4], depth=2, order=2)
    modes = [(m.eigenvalue, m.target, m.multiplicity) for m in found.modes]
    assert modes == [(2, 5, 1), (1, 1, 1), (2, 0, 1)]
    assert found.Delta(2, 2) == 0
    assert found.coefficient("H", 0, 2, 2, layer=1) == 2
    assert found.coefficient("H", 2, 2, 2, layer=1) == 0
    assert found.coefficient("K", 2, 2, 2) != 0  # the gradients of the other directions grow too
    # the same theory in a basis that is turned within the eigenspace
    turned = words(0).in_time([2, 1, 2], [5, 1, 0], depth=2, order=2)
    assert turned.Delta(2) == found.Delta(2)
    assert turned.loss(2) == found.loss(2)


def test_whitened_data_of_any_number_of_samples() -> None:
    mean, total = words(2, loss="mean").in_time(), words(2).in_time()
    assert mean.samples == P
    assert (mean.Delta(2) - total.Delta(2).subs(t, t / P)).expand() == 0
    assert mean.loss(0) == y**2 * exp(-2 * t * (L + 1) / P) / P
    one = words(2, loss="mean").in_time([1], [y], [1])
    assert (one.Delta(2) - total.Delta(2)).expand() == 0


def test_a_direction_that_is_not_learned() -> None:
    found = words(0).in_time([1, 0], [1, 2], depth=2, order=2)
    assert found.Delta(0, 1) == 2
    assert found.Delta(2, 1) == 0
    assert found.loss(0).subs(t, 0) == R(5, 2)


def test_eigenvalues_that_are_irrational() -> None:
    found = words(0).in_time([sqrt(2), 1], [1, 1], depth=1, order=2)
    near = words(0).in_time([R(2**0.5).limit_denominator(10**7), 1], [1, 1], depth=1, order=2)
    assert abs((found.Delta(2) - near.Delta(2)).subs(t, 1).evalf(30)) < 1e-12


# -- second order in words --------------------------------------------------------------------------------


def test_second_order_of_whitened_data_by_hand() -> None:
    """In time (L + 1) t = x the error is y exp(-x), and its correction the same curve for every depth."""
    found = words(2).in_time()
    x = (L + 1) * t
    curve = -(4 * exp(-x) + 2 * x - exp(-2 * x) - 3) * exp(-x) / 6
    expected = L * (L + 2) / (L + 1) * y**3 * curve
    where = {L: 3, y: 2, t: R(1, 3)}
    assert abs((found.Delta(2) - expected).subs(where).evalf(30)) < 1e-28
    assert (found.Delta(2) - expected).subs({L: 1}).expand() == 0


# -- objects ----------------------------------------------------------------------------------------------


def test_series_objects() -> None:
    found = words(2).in_time()
    series = found.series("loss")
    assert isinstance(series, PowerSeries)
    assert series.coefficient(2) == found.loss(2)
    assert found.truncate(0).order == 0
    assert found.coefficient("f", 0) == y - found.Delta(0)
    assert found.coefficient("Delta", 2, now=s) == found.Delta(2).subs(t, s)
    assert found.coefficient("loss", 2) == found.loss(2)
    twice = 2 * found.Delta(0) * found.Delta(2) / P
    assert abs((found.loss(2) - twice).subs({L: 2, y: 1, P: 2, t: R(1, 3)}).evalf(30)) < 1e-28
    assert found.coefficient("H", 2, layer=0) == 0
    assert found.Delta(2).free_symbols == {L, t, y}
    assert found.Delta(2).atoms(Function) <= {exp(-k * t * (L + 1)) for k in (1, 2, 3)}


def test_rendering() -> None:
    found = words(2, loss="mean").in_time()
    shown = found.render()
    assert "τ = (t/P) (L + 1)" in shown
    assert "(4 e + 2 τ - e² - 3)" in shown
    assert shown.count("γ₀²") == 2
    tex = found.render("latex")
    assert tex == found._repr_latex_()
    assert tex.count("{") == tex.count("}")
    assert tex.count(r"\left") == tex.count(r"\right")
    steps = words(0, "gd").in_time([a, b]).render()
    assert "e_1 = a_1^t" in steps
    with pytest.raises(ValueError, match="must be 'text' or 'latex'"):
        found.render("html")


def test_what_is_refused() -> None:
    x, steps = words(2), words(0, "gd")
    with pytest.raises(ValueError, match=r"eigenvalues: 0\.3 contains a decimal number.*Rational\('0.3'\)"):
        x.in_time([0.3])
    with pytest.raises(ValueError, match=r"targets: 0\.5 contains a decimal number"):
        x.in_time([1], [0.5])
    with pytest.raises(ValueError, match="-1 is negative"):
        x.in_time([-1])
    with pytest.raises(ValueError, match="2 eigenvalues, 1 targets"):
        x.in_time([1, 2], [1])
    with pytest.raises(ValueError, match="multiplicities: 0 must be a positive integer"):
        modes_of([1], [1], [0])
    with pytest.raises(ValueError, match="eigenvalues: I is not a real number"):
        x.in_time([I])
    with pytest.raises(
        ValueError, match="order = 4: at symbolic depth the coefficients are known to order 2; expand"
    ):
        x.in_time(order=4)
    with pytest.raises(ValueError, match="order = -1"):
        x.in_time(depth=1, order=-1)
    with pytest.raises(ValueError, match="depth = 0"):
        x.in_time(depth=0)
    with pytest.raises(NotApplicable, match="vanishes after one step"):
        steps.in_time([1], [1], depth=1, constants={eta: R(1, 2)})
    with pytest.raises(NotApplicable, match=r"irrational number sqrt\(2\), and the rates"):
        steps.in_time([sqrt(2)], [1], depth=1)
    with pytest.raises(NotApplicable, match=r"weight .* of past updates depends on time"):
        words(0, "multistep").in_time()
    for loss in ({"objective": "logistic"}, {"sample_weights": True}):
        other = expand_linear(mean_field(mlp(rule="flow", loss="sum", **loss)), 0)
        with pytest.raises(NotApplicable, match="is not the target minus the output"):
            other.in_time()
    found = x.in_time()
    with pytest.raises(KeyError, match="no series 'Phi'"):
        found.coefficient("Phi", 0)
    for bad in (-1, 3):
        with pytest.raises(IndexError, match="known for orders 0 to 2"):
            found.Delta(bad)
    with pytest.raises(IndexError, match="there are modes 0 to 1"):
        found.coefficient("H", 0, 2)
    with pytest.raises(IndexError, match="G has 0 mode indices"):
        found.coefficient("G", 0, 0)
    with pytest.raises(ValueError, match="layer = ell: must be an integer from 0 to 2 for H"):
        x.in_time(depth=2).coefficient("H", 0, layer=ell)


DANGER = "__import__('os').system('false')"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("eigenvalues", ([DANGER], [1])),
        ("targets", ([1], [DANGER])),
        ("multiplicities", ([1], [1], [DANGER])),
    ],
)
def test_text_is_refused_and_never_evaluated(name: str, given: tuple[list[Any], ...]) -> None:
    with pytest.raises(ValueError, match=f"{name}: .* is text"):
        modes_of(*given)


def test_a_series_evaluates_no_text() -> None:
    with pytest.raises(ValueError, match="__import__"):
        PowerSeries((1, DANGER))  # type: ignore[arg-type]


def test_steps_that_reverse_the_error_have_the_series_of_rates_beside_them() -> None:
    """At eta = 1 a step multiplies the lazy error by -1, whose square is 1."""
    general, special = (
        words(0, "gd").in_time([1], [y], depth=1, order=2, constants=c) for c in ({}, {eta: 1})
    )
    for time in range(4):
        near = cancel(general.Delta(2, now=S(time))).subs(eta, 1)
        assert near == special.Delta(2, now=S(time))
    assert special.conditions() == ()
    assert "eta is generic: no product of the fractions that a step leaves" in general.conditions()[0]


def test_values_of_other_symbols_are_refused() -> None:
    for key in ("eta", Symbol("q"), L):
        with pytest.raises(ValueError, match=r"constants: .* is not one of the symbols of .*given .eta"):
            words(0, "gd").in_time([1], [y], depth=1, constants={key: 1})


def test_targets_that_vanish_give_a_loss_of_zero() -> None:
    still = words(2).in_time(targets=[0])
    assert "loss(t) = 0" in still.render().replace("⟨Δ²⟩", "loss")
    assert "&= 0" in still.render("latex")
