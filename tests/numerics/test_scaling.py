"""Power laws of solved theories beside the derived ones; `dmft limits scaling`."""

import json
from functools import lru_cache

import numpy as np
import pytest
from sympy import Float, Rational, Symbol, lambdify

from derive.calculus.symbols import L, eta, gamma0
from derive.program.networks.random_data import N as N_
from derive.scale.modes import beta, capacity
from derive.scale.power_laws import lazy_law, leading_law, width_law
from numerics.analysis.exponents import local_slopes
from numerics.cli import run
from numerics.experiment import Experiment
from numerics.solver import solve
from tests.derive.scale.derived import batches, modes, order, width

T = Symbol("t", positive=True)
ALL = [(depth, source) for source in ("3/10", "1/2", "7/10", "3/2") for depth in (1, 2, 3, 4)]


def lazy(*at, rule="flow", **options):
    return lazy_law(modes(rule), *at, order=order(), **options)


def leading(*at, **options):
    return leading_law(order(), *at, **options)


@lru_cache(maxsize=4)
def flow(depth, source, gamma, time, rtol=1e-5, points=None, **more):
    points = points or 6 * round(np.log10(time)) + 1
    tables = {
        "network": {"depth": depth, "gamma0": gamma} | more,
        "data": {"kind": "power-law", "capacity": 2.0, "source": float(Rational(source)), "modes": 10**18},
        "training": {"rule": "flow", "time": time, "points": points, "grid": "log"},
        "solver": {"rtol": rtol},
    }
    found = solve(Experiment.from_dict(tables))
    return found.time.values[1:], found.test_loss.values[1:]


def numbers(e):
    return np.vectorize(lambdify(T, e, "mpmath"), otypes=[float])


def small(depth, source, time, share):
    """Return gamma0 at which order gamma0^2 is this share of the loss in the end."""
    order, base = leading(depth, source, 2).series.expr, lazy(depth, source, 2).formula
    return float(share / abs((order / base).subs(T, Float(time)).n(10))) ** 0.5


def lazy_and_leading(depth, source, time, rtol, share=3e-3):
    """Return times, the lazy loss and the order gamma0^2 of the loss, from two flows."""
    gamma = small(depth, source, time, share)
    t, base = flow(depth, source, 1e-9, time, rtol)
    _, moved = flow(depth, source, gamma, time, rtol)
    return t, base, (base - moved) / gamma**2


def check_slopes(depth, source, time, start, rtol=1e-6):
    """Check the slopes of order gamma0^2, which is a share 3e-3 of the loss in the end.

    It is far less before, so that errors must be smaller than it.
    """
    t, base, order = lazy_and_leading(depth, source, time, rtol)
    expected = leading(depth, source, 2)
    late = slice(np.searchsorted(t, start), None)
    first = local_slopes(t[late], base[late])
    assert np.all(abs(first.exponent - float(Rational(source))) < 1e-3)
    second = local_slopes(t[late], order[late])
    assert np.all(abs(second.exponent - float(expected.exponent)) < 0.02)
    derived = numbers(expected.series.local_slope())(second.time)
    # the next order in gamma0 is a share 3e-3, the next power of time t^-1 of the second
    assert np.all(abs(second.slope - derived) < 0.008)
    assert np.allclose(-order[late], numbers(expected.series.expr)(t[late]), rtol=0.02)
    assert np.allclose(base[late], numbers(lazy(depth, source, 2).formula)(t[late]), rtol=1e-5)


@pytest.mark.slow
def test_slopes_of_one_hidden_layer():
    check_slopes(1, "1/2", 1e4, 3e2, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "source"), ALL)
def test_slopes_over_four_decades(depth, source):
    """On tasks that are nearly easy the second power fades as t^-0.3: a decade later it is gone."""
    start = 1e4 if source == "7/10" else 1e3
    check_slopes(depth, source, 1e4 * start, start)


def leaves_lazy(depth, source, gamma, share, time):
    """Return the time at which the loss is a share below the lazy one."""
    t, loss = flow(depth, source, gamma, time, 1e-4)
    gone = 1 - loss / numbers(lazy(depth, source, 2).formula)(t)
    assert gone[-1] > share
    late = t > 10
    return float(np.exp(np.interp(np.log(share), np.log(gone[late]), np.log(t[late]))))


def check_crossover(depth, source, last):
    """Check that the loss is 1 per cent below the lazy one when order gamma0^2 is, at two gamma0.

    The next order is about 0.04 of this one there. The time scales with gamma0 as the crossover.
    """
    when = leading(depth, source, 2).crossover["features"]
    power = float((gamma0 * when.diff(gamma0) / when).subs(gamma0, 1))
    times, share = np.array([last / 10, last]), 0.01
    strengths = np.array([small(depth, source, x, share) for x in times])
    found = np.array([leaves_lazy(depth, source, g, share, 10 * last) for g in strengths])
    slack = 0.05 * abs(power) / 2
    assert np.all(abs(np.log(found / times)) < slack)
    measured = np.diff(np.log(found)) / np.diff(np.log(strengths))
    assert measured == pytest.approx(power, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "source"), [(d, s) for d, s in ALL if s in ("3/10", "1/2")])
def test_crossovers(depth, source):
    check_crossover(depth, source, 1e5)


@pytest.mark.slow
def test_batches_obey_the_renewal_equation():
    """Lazy online descent, solved: the loss is the signal plus the gain times earlier losses."""
    modes, steps, B, rate, noise = 40, 12, 4, 0.2, 0.5
    tables = {
        "network": {"depth": 2, "gamma0": 1e-6, "width": 10**12},
        "data": {
            "kind": "power-law",
            "capacity": 2.0,
            "source": 0.5,
            "modes": modes,
            "batch": B,
            "noise": noise,
        },
        "training": {"rule": "sgd", "learning_rate": rate, "steps": steps},
    }
    found = solve(Experiment.from_dict(tables))
    k = np.arange(1.0, modes + 1)
    step = float(batches().kernel.subs({L: 2, eta: rate})) * k**-2.0
    signal = [np.sum(k**-2.0 * (1 - step) ** (2 * n)) for n in range(steps + 1)]
    gain = [np.sum(step**2 * (1 - step) ** (2 * n)) / B for n in range(steps)]
    loss = []
    for n in range(steps + 1):
        loss.append(signal[n] + sum(gain[n - 1 - m] * (loss[m] + noise**2) for m in range(n)))
    assert np.allclose(found.test_loss.values - noise**2, loss, rtol=1e-6)
    summand = batches().gain.terms[0].coefficient
    assert summand.subs({L: 2, capacity: 2}).has(Symbol("B", positive=True))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_the_variance_of_finite_width(depth):
    """Easy task: order 1/N of the solved theory has the derived power, and its constant within 2 per cent."""
    time, N = 100.0, 1000
    t, base = flow_of(depth, time)
    _, finite = flow_of(depth, time, width=N)
    at = {L: depth, capacity: 2, beta: Rational(3, 2)}
    leading_term = numbers(width().variance.subs(at).terms[-1].at(T))(t)
    ratio = (finite - base) * N / leading_term
    # a share t^(1/2)/N of it is of the next order, and t^-1/2 is the mean's
    assert ratio[-1] == pytest.approx(1, abs=0.02)
    assert width_law(width(), depth, "3/2", 2).exponent == Rational(1, 2)
    late = t > 4
    slopes = local_slopes(t[late], (finite - base)[late])
    assert slopes.slope[-1] == pytest.approx(-0.5, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_order_one_over_n_of_a_hard_task(depth):
    """Variance and mean: the constant of the solved theory, which the variance alone misses by a third.

    Order 1/N**2 is a share (t/end)**(1/2) of order 1/N, and goes with 1/N: two widths take it off.
    """
    time, widths = 100.0, (1000, 4000)
    t, base = flow_of(depth, time, source=0.5, gamma=1e-4)
    at = {L: depth, capacity: 2, beta: Rational(1, 2)}
    ratios = {}
    for N in widths:
        _, finite = flow_of(depth, time, source=0.5, gamma=1e-4, width=N)
        ratios[N] = (finite - base) * N / numbers(width().total.subs(at).expr)(t)
    first, second = (ratios[N][-1] for N in widths)
    assert abs(1 - first) < 1.5 * (time / float(width().end().subs(at | {N_: widths[0]}))) ** 0.5
    assert (4 * second - first) / 3 == pytest.approx(1, abs=2e-3)
    alone = numbers(width().variance.subs(at).expr)(t) / numbers(width().total.subs(at).expr)(t)
    assert alone[-1] < 0.7
    assert width_law(width(), depth, "1/2", 2).exponent == 0


def flow_of(depth, time, source=1.5, gamma=1e-3, **more):
    tables = {
        "network": {"depth": depth, "gamma0": gamma} | more,
        "data": {"kind": "power-law", "capacity": 2.0, "source": source, "modes": 10**4},
        "training": {"rule": "flow", "time": time, "points": 25, "grid": "log"},
        "solver": {"rtol": 1e-3},
    }
    found = solve(Experiment.from_dict(tables))
    return found.time.values[1:], found.test_loss.values[1:]


@pytest.mark.parametrize(
    ("options", "exponent"),
    [
        (["--depth", "3", "--source", "0.7", "--regime", "lazy", "--capacity", "2"], 0.7),
        pytest.param(
            ["--depth", "3", "--source", "0.7", "--regime", "rich", "--capacity", "2"],
            2.8 / 3.1,
            marks=pytest.mark.slow,
        ),
        *(
            pytest.param(
                ["--source", source, "--regime", regime, "--capacity", capacity, "--depth", depth],
                x,
                marks=pytest.mark.slow,
            )
            for source, regime, capacity, depth, x in (
                ("0.7", "leading", "2", "3", 0.4),
                ("3/2", "width", "2", "1", 0.5),
                ("1/2", "data", "3", "1", 1.5),
                ("2", "batch", "3/2", "1", 4 / 3),
            )
        ),
    ],
)
def test_the_command(options, exponent, capsys):
    assert run(["limits", "scaling", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exponent"] == pytest.approx(exponent)
    assert {"formula", "regime", "conditions", "crossover"} <= set(found)


@pytest.mark.parametrize(
    "regime",
    [
        "lazy",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("leading", "rich", "batch", "width", "data")),
    ],
)
def test_the_command_prints_every_condition(regime, capsys):
    options = ["limits", "scaling", "--depth", "3", "--source", "0.7", "--capacity", "2", "--regime", regime]
    assert run([*options, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["conditions"]
    assert run(options) == 0
    lines = [x.strip() for x in capsys.readouterr().out.split("conditions")[1].splitlines()]
    assert len(said) > 2
    assert set(said) <= set(lines)


@pytest.mark.slow
def test_the_constant_of_batches_is_a_number(capsys):
    options = ["--depth", "1", "--source", "1/2", "--capacity", "3/2", "--regime", "batch"]
    more = ["--learning-rate", "0.2", "--batch", "4"]
    assert run(["limits", "scaling", *options, *more]) == 0
    printed = capsys.readouterr().out
    assert "q = 0.1452561894" in printed
    assert "Sum(" not in printed
    assert run(["limits", "scaling", *options]) == 0
    printed = capsys.readouterr().out
    assert "Sum(" not in printed
    assert "zeta(3/2)" in printed


@pytest.mark.slow
def test_the_rich_command_prints_what_is_assumed(capsys):
    assert (
        run(["limits", "scaling", "--depth", "2", "--source", "1/2", "--regime", "rich", "--capacity", "2"])
        == 0
    )
    printed = capsys.readouterr().out
    assert "ansatz: kernels are of rank one in time, C_h(ell, t, s) = c_h(ell, s)*c_h(ell, t)" in printed
    assert "ansatz: c_g(1, t) = B*X**q" in printed


@pytest.mark.slow
def test_a_crossover_time_is_a_number(capsys):
    options = ["--depth", "2", "--source", "1/2", "--capacity", "2", "--gamma0", "0.01", "--json"]
    assert run(["limits", "scaling", *options]) == 0
    assert json.loads(capsys.readouterr().out)["crossover"]["features"] == pytest.approx(7.939e8, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--depth", "0", "--source", "1"], '--depth = "0"'),
        (["--depth", "1", "--source", "two"], '--source = "two"'),
        (["--depth", "1", "--source", "1", "--regime", "quick"], "--regime"),
        *(
            pytest.param(["--depth", "1", "--source", "2", "--regime", *more], says, marks=pytest.mark.slow)
            for more, says in ((["width"], "--capacity"), (["data", "--capacity", "2"], "--source"))
        ),
        (["--depth", "1", "--source", "2", "--gamma0", "-1"], "--gamma0"),
        (["--depth", "1", "--source", "2", "--learning-rate", "1/5"], "--learning-rate"),
        pytest.param(
            ["--depth", "1", "--source", "2", "--capacity", "3/2", "--regime", "batch", "--batch", "-3"],
            "--batch",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_refusals(options, says, capsys):
    assert run(["limits", "scaling", *options]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("regime", "said"),
    [
        ("leading", "order gamma0^2 of the loss ~ a constant, which does not depend on t"),
        ("width", "order 1/N of the loss ~ t^(1/6) = t^0.166667"),
        ("lazy", "loss ~ t^-(1/2) = t^-0.5"),
    ],
)
def test_a_constant_and_a_growing_power_are_printed_as_such(regime, said, capsys):
    arguments = ["--depth", "1", "--source", "1/2", "--capacity", "3/2", "--regime", regime]
    assert run(["limits", "scaling", *arguments]) == 0
    assert capsys.readouterr().out.splitlines()[0] == said


@pytest.mark.slow
def test_the_command_prints_the_laws_of_random_features(capsys):
    options = ["--source", "3/2", "--capacity", "2", "--regime", "features"]
    assert run(["limits", "scaling", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exponent"] == 1.5
    assert found["compute_optimal"] == {"loss": "-3/4", "features": "1/2", "time": "1/2"}
    assert [x["name"] for x in found["bottlenecks"]] == ["features", "samples", "noise"]
    assert run(["limits", "scaling", *options]) == 0
    printed = capsys.readouterr().out
    assert "at a compute C = N t: loss ~ C^(-3/4), at N ~ C^(1/2) and t ~ C^(1/2)" in printed
    assert "N features" in printed


def test_depth_belongs_to_networks_with_layers(capsys):
    assert run(["limits", "scaling", "--source", "1/2"]) == 2
    assert "--depth: is missing" in capsys.readouterr().err
    assert run(["limits", "scaling", "--source", "1/2", "--depth", "2", "--regime", "features"]) == 2
    assert "not used for random features" in capsys.readouterr().err
