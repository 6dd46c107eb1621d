"""Tests of recurrent networks on tasks: tied weights, outputs at the end or at each step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sympy import Function, S, Symbol, log

import numerics
from derive.errors import ProgramError
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    Population,
    Product,
    eta,
    gamma0,
    mu,
    t,
)
from derive.program.networks import recurrent, recurrent_task
from derive.theory.routes import check_routes
from numerics.experiment.schema import Solver
from tests.numerics.networks import task
from tests.numerics.networks.case import Case
from tests.numerics.networks.cases import CASES

TASKS = [name for name in CASES if name.startswith("recurrent")]


@pytest.mark.parametrize(
    "options",
    [
        {"read": "all", "leak": 0.5},
        pytest.param({"read": "last", "weight_decay": 0.1, "bias": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_both_routes_and_the_gradient_agree(options: dict[str, object]) -> None:
    assert check_routes(recurrent_task(3, **options)).gradients == "compared"


@pytest.mark.parametrize("read", ["last", "all"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_network_is_solved_exactly(read: str, bias: bool) -> None:
    """The bias of a later step had no covariance with that of the first: outputs were 30 % too small."""
    signs = task.sequences(2, 2)
    arrays = {"K_x": task.kernel_of(signs), "y": signs if read == "all" else signs[:, 0]}
    given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": arrays, "times": range(3)}
    program = recurrent_task(2, "linear", read=read, bias=bias)
    by_paths, by_reference = (
        numerics.solve(program, solver=Solver(method=method, samples=1024), kernels="none", **given)
        for method in ("paths", "direct")
    )
    np.testing.assert_allclose(by_paths.f, by_reference.f, atol=1e-10)


def test_a_recurrent_network_with_a_bias_is_solved_exactly() -> None:
    """The same of inputs that enter at the first step alone."""
    arrays = {"K_x": [[1.0, 0.3], [0.3, 0.8]], "y": [1.0, -1.0]}
    given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": arrays, "times": range(3)}
    by_paths, by_reference = (
        numerics.solve(
            recurrent(3, "linear", bias=True),
            solver=Solver(method=method, samples=1024),
            kernels="none",
            **given,
        )
        for method in ("paths", "direct")
    )
    np.testing.assert_allclose(by_paths.f, by_reference.f, atol=1e-10)


@pytest.mark.parametrize("cut", [2, 3])
def test_steps_of_several_definitions_share_a_bias(cut: int) -> None:
    """Steps up to the cut apply one matrix and later ones another; all of them have one bias."""
    units, pixels = Population("units"), Population("pixels", given=True)
    early, late = (Symbol(name, integer=True, positive=True) for name in ("early", "late"))
    a, x = Field("a", units, ordered=True), GivenVector("x", pixels, "K_x")
    U, V = GaussianMatrix("U", units, pixels), GaussianMatrix("V", units, units)
    W, w, b = GaussianMatrix("W", units, units), GaussianVector("w", units), GaussianVector("b", units)
    out, target = Function("out"), Function("target")
    later = {a(late + 1, mu, t): W @ a(late, mu, t) + b.symbol}
    sooner = {a(early + 1, mu, t): V @ a(early, mu, t) + b.symbol}
    net = Network(
        "two matrices",
        (a,),
        {
            a(1, mu, t): U @ x(mu) + b.symbol,
            **sooner,
            **later,
            out(mu, t): Mean(w.symbol * (a(2, mu, t) + a(4, mu, t))) / gamma0,
        },
        (U, V, W, w),
        frozen=(b,),
        given=(x,),
        ranges=(IndexRange(early, S.One, S(cut - 1)), IndexRange(late, S(cut), S(3))),
    )
    program = net.train((target(mu) - out(mu, t)) ** 2 / 2, GradientDescent(eta), together=True)
    arrays = {"K_x": [[1.0, 0.3], [0.3, 0.8]], "target": [1.0, -1.0]}
    given = {"numbers": {"eta": 0.02, "gamma0": 1.0}, "arrays": arrays, "times": range(3)}
    by_paths, by_reference = (
        numerics.solve(program, solver=Solver(method=method, samples=1024), kernels="none", **given)
        for method in ("paths", "direct")
    )
    np.testing.assert_allclose(by_paths.f, by_reference.f, atol=1e-9)


@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow) for x in TASKS])
def test_theory_and_networks_agree(name: str) -> None:
    case = replace(CASES[name](), solver=Solver(samples=2**12))
    theory = case.theory()
    assert float(theory.train_loss[-1]) < 0.2 * float(theory.train_loss[0])
    report = case.compared()
    assert report.passed, report


@pytest.mark.slow
def test_networks_with_another_leak_are_seen() -> None:
    case = CASES["recurrent, answers at each step"]()
    assert not case.compared(task.running_sum(leak=0.6).program).passed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"read": "first"}, "read = 'first': must be 'last' or 'all'"),
        ({"leak": 0}, "leak"),
        ({"gain": -1}, "gain"),
        ({"steps": 0}, "steps"),
        ({"objective": "sqare"}, "objective"),
    ],
)
def test_refuses(options: dict[str, object], said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        recurrent_task(**options)


@pytest.mark.parametrize("options", [{"read": "last"}, {"read": "all", "leak": 0.5, "bias": True}], ids=str)
def test_a_network_at_rest_sends_phi_of_zero(options: dict[str, object]) -> None:
    """The first step left out W phi(0), which is not zero for softplus."""
    program = recurrent_task(2, "softplus", **options)
    first = next(d for d in program.definitions if str(d.lhs) == "h(1, mu, t)")
    assert next(d.rhs for d in program.definitions if d.name == "rest") == log(2)
    assert any(str(a.args[0]) == "W" for a in first.rhs.atoms(Product))
    assert not any(d.name == "rest" for d in recurrent_task(2, "tanh", **options).definitions)


@pytest.mark.slow
def test_the_first_step_from_rest_is_solved_exactly() -> None:
    """Outputs of units ``h + 1`` are those of the reference interpreter and not those without W phi(0)."""
    signs = task.sequences(2, 2)
    arrays = {"K_x": task.kernel_of(signs), "y": signs[:, 0]}
    given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": arrays, "times": range(3)}
    program = recurrent_task(2, lambda z: z + 1)
    by_paths, by_reference = (
        numerics.solve(program, solver=Solver(method=method, samples=1024), kernels="none", **given)
        for method in ("paths", "direct")
    )
    np.testing.assert_allclose(by_paths.f, by_reference.f, atol=1e-10)


@pytest.mark.slow
def test_networks_that_start_at_rest_agree_with_the_theory() -> None:
    case = Case(
        recurrent_task(2, "softplus"),
        {"eta": 0.1, "gamma0": 1.0},
        {"K_x": task.kernel_of(task.sequences(2, 2)), "y": task.sequences(2, 2)[:, 0]},
        4,
        seeds=(200, 100),
    )
    report = replace(case, solver=Solver(samples=2**12)).compared()
    assert report.passed, report
