"""The first step in closed form: every depth at once against each depth, and against the solved theory."""

import random
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial

import mpmath
import pytest
from sympy import Expr, Function, Rational, Symbol, lambdify, simplify

from derive.errors import NotApplicable
from derive.program import L, Program, ell, eta, gamma0
from derive.program.networks.random_data import alpha_B, nu, sigma
from derive.scale import FirstStep, smallest_rate
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of
from numerics.solver import solve
from tests.derive.once import first_step, isotropic, mean_field, mlp, structured

CASES = {
    "online": ({"data": "online", "noise": True}, {"batch_ratio": 0.7, "noise": 0.4}),
    "online, centred": (
        {"data": "online", "noise": True, "center": True},
        {"batch_ratio": 0.7, "noise": 0.4},
    ),
    "full batch, ntk": ({"data": "full-batch", "parametrization": "ntk"}, {"sample_ratio": 1.3}),
    "population, centred": ({"data": "population", "center": True}, {}),
}


@lru_cache
def every_depth(name: str) -> FirstStep:
    return first_step(mean_field(isotropic(**CASES[name][0])))


def numerically(e: Expr, numbers: Mapping[Symbol, float]) -> float:
    """Return the value at 40 digits, because parts cancel where q is complex."""
    used = [x for x in numbers if e.has(x)]
    with mpmath.workdps(40):
        value = mpmath.mpc(lambdify(used, e, "mpmath")(*[mpmath.mpf(numbers[x]) for x in used]))
        assert abs(value.imag) <= 1e-30 * (1 + abs(value.real))
        return float(value.real)


@pytest.mark.parametrize(
    ("name", "depths"),
    [
        ("online, centred", (1, 2)),
        ("population, centred", (1, 2, 3)),
        *(pytest.param(x, range(1, 7), marks=pytest.mark.slow) for x in CASES),
    ],
)
def test_the_closed_form_is_the_march_to_rounding(name: str, depths: Iterable[int]) -> None:
    program, data = CASES[name]
    drawn = random.Random(name)
    step = every_depth(name)
    growth = step.explicit(step.growth_factor)
    for depth in depths:
        network = {"depth": depth, "gamma0": drawn.uniform(0.3, 2), "width_ratio": drawn.uniform(0.3, 3)}
        network["parametrization"] = program.get("parametrization", "mean-field")
        training = {"learning_rate": drawn.uniform(0.05, 0.5), "steps": 1, "center": "center" in program}
        training["rule"] = "sgd" if "batch_ratio" in data else "gd"
        e = Experiment.from_dict(
            {"network": network, "data": {"kind": "isotropic", **data}, "training": training}
        )
        solved = solve(e)
        value = numerically(growth, {L: depth, **numbers_of(e)})
        assert value == pytest.approx(float(solved.C_v[1, 1] / solved.C_v[0, 0]), rel=1e-13)


@pytest.mark.parametrize(
    ("name", "depth"), [("online, centred", 2), pytest.param("online", 4, marks=pytest.mark.slow)]
)
def test_order_parameters_are_those_of_the_march(name: str, depth: int) -> None:
    step = every_depth(name)
    e = Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": 0.8, "width_ratio": 0.6},
            "data": {"kind": "isotropic", "batch_ratio": 0.7, "noise": 0.4},
            "training": {
                "rule": "sgd",
                "learning_rate": 0.3,
                "steps": 1,
                "center": "centred" in name,
            },
        }
    )
    solved, checked = solve(e), 0
    for key, x in step.values.items():
        name, times = str(key.func), [int(k) for k in key.args[-2:]]
        if name not in solved:
            continue
        layers = range(1, depth + 1) if ell in key.args else [0]
        for layer in layers:
            value = numerically(step.explicit(x), {L: depth, ell: layer, **numbers_of(e)})
            stored = solved[name].values
            stored = stored[layer - 1] if stored.ndim == 3 else stored
            assert value == pytest.approx(float(stored[tuple(times)]), rel=1e-12, abs=1e-14)
            checked += 1
    assert checked > 10


@pytest.mark.parametrize(
    "options",
    [
        {"data": "online", "noise": True, "center": True},
        pytest.param({"data": "population"}, marks=pytest.mark.slow),
    ],
)
def test_every_depth_at_once_is_each_depth(options: dict[str, object]) -> None:
    theory = mean_field(isotropic(**options))
    both = first_step(theory)
    numbers = {nu: 0.43, eta: 0.22, gamma0: 1.7, alpha_B: 0.8, sigma: 0.3}
    for depth in (1, 3):
        single = first_step(both.theory.at_depth(depth))
        one = single.growth_factor
        assert single.values[Function("C_v")(0, 0)] == single.before
        every = numerically(both.explicit(both.growth_factor), {L: depth, **numbers})
        assert every == pytest.approx(numerically(one, numbers), rel=1e-15)


def test_unequal_widths_at_a_given_depth() -> None:
    theory = mean_field(isotropic(2, data="population", center=True, widths=Function("nu")))
    found = first_step(theory).growth_factor
    same = first_step(mean_field(isotropic(2, data="population", center=True))).growth_factor
    assert simplify(found.subs({Function("nu")(1): nu, Function("nu")(2): nu}) - same) == 0
    assert found.has(Function("nu")(1)) or found.has(Function("nu")(2))
    e = Experiment.from_dict(
        {
            "network": {"depth": 2, "width_ratio": [0.7, 2.0]},
            "data": {"kind": "isotropic"},
            "training": {"learning_rate": 0.3, "steps": 1, "center": True},
        }
    )
    here = found.subs({Function("nu")(1): 0.7, Function("nu")(2): 2.0, eta: 0.3})
    assert float(here) == pytest.approx(float(solve(e).C_v[1, 1]), rel=1e-13)


def test_the_critical_rate_leaves_the_loss_where_it_is() -> None:
    step = every_depth("online, centred")
    assert simplify(step.growth_factor.subs(eta, step.critical_learning_rate) - 1) == 0
    numbers = {L: 3, nu: Rational(1, 2), alpha_B: Rational(3, 4), sigma: 0}
    critical = step.critical_learning_rate.subs(numbers)
    assert smallest_rate(step.growth_factor.subs(numbers), eta) == pytest.approx(float(critical))
    assert smallest_rate(1 + eta, eta) is None
    assert smallest_rate(1 + eta * (eta - Rational(10, 3)) ** 3 * (eta - 4), eta) == pytest.approx(10 / 3)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (partial(isotropic, data="population", rule="flow"), "a training rule in steps"),
        (partial(isotropic, data="population", branch=0.5), "residual"),
        (partial(isotropic, data="population", outputs=2), "one output"),
        (partial(structured), "equivalent units"),
        (partial(isotropic, data="population", center=False, widths=Function("nu")), "depend on the layer"),
    ],
)
def test_what_has_no_closed_form_is_refused(program: Callable[[], Program], reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        first_step(mean_field(program()))


def test_a_theory_without_the_function_is_refused() -> None:
    with pytest.raises(NotApplicable, match="name = 'C_v': the theory has no correlation function"):
        first_step(mean_field(mlp(2)))
