"""Theories of entrywise rules against networks that are written out, one to three layers, in 30 settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Abs, Expr, Function, Max, Min, S, Sum, Symbol, cos, exp, log, pi, sign, sqrt, tanh

from derive.program import (
    Entrywise,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    IndexRange,
    Mean,
    Network,
    Population,
    Program,
    TrainingRule,
    adam,
    adamw,
    ell,
    eta,
    gamma0,
    lion,
    mlp,
    mu,
    muon,
    rmsprop,
    sign_descent,
    t,
)
from derive.program.entrywise import A
from derive.reduce.responses import without_responses
from derive.theory import Theory, mean_field
from numerics.experiment.memory import tables_of_program
from numerics.experiment.theory import integrated
from numerics.paths import Paths
from numerics.solver.named_values import Evaluated
from numerics.solver.paths import entries
from numerics.solver.paths.solve import Solved, solve_particles
from tests.chance import excess, in_errors
from tests.numerics.solver.entrywise_networks import (
    CLASSES,
    KEPT,
    MEAN,
    SMALL,
    SQUARE,
    Networks,
    Setting,
    X,
    Y,
    extrapolated,
)

Array = NDArray[np.float64]

STEPS, WARMUP, PERIOD, GAMMA = 10, 3, 20, 2.0

RATE, PEAK, WITHOUT_CORRECTION, BEFORE_JUMP = 0.05, 0.0675, 0.02, 0.035
"""Rates that are constant, the peak of those that are not, and smaller ones.

The first steps of RMSprop are larger because its mean square starts at zero.  Under signs relu gives the
entries of units that are active on one sample the sign of its error, a number, which jumps where the error
vanishes; networks of finite width cross it some steps earlier or later, so that training ends before.  So do
sums of errors in one layer, whose units share their inputs: they vanish after steps of a total length of 0.4.
"""

NETWORKS = {1: ((128, 256), 960), 2: ((64, 128), 480), 3: ((64, 128), 240)}
"""Widths of networks and the number of each, by depth."""

SAMPLES, REPLICAS = (256, 512), 24
LAZY = 1e-3
"""The scale gamma0 of features that do not move."""

DECAY = Symbol("lambda", positive=True)

FEATURES = ("normalised", "biases", "normalised classes", "plain", "schedule", "classes")
"""The order is such that signs and relu never meet normalised layers.

There the gradient at a unit that is active on no sample is the gradient by the mean square, times h.  At the
start this number is zero at infinite width, and of order N^(-1/2) in a network, whose sign decides steps of
order one.
"""

RULES: dict[str, Callable[[Expr, Expr], Entrywise]] = {
    "sign": lambda rate, decay: sign_descent(rate),
    "adam": lambda rate, decay: adam(rate, MEAN, SQUARE, SMALL),
    "adamw": lambda rate, decay: adamw(rate, rate * decay, MEAN, SQUARE, SMALL),
    "rmsprop": lambda rate, decay: rmsprop(rate, KEPT, SMALL),
    "lion": lambda rate, decay: lion(rate, MEAN, KEPT),
    "muon": lambda rate, decay: adam(rate, MEAN, SQUARE, SMALL),
}
"""Under Muon hidden matrices have a rule of their own, and the other weights that of Adam."""


def rate_of(setting: Setting) -> float:
    """Return the value of the symbol eta of a setting."""
    return max(setting.rates) if setting.rates[0] == setting.rates[-1] else PEAK


def schedule_at(time: int) -> float:
    """Return the rate of a step with warm-up and cosine."""
    return PEAK * min(1.0, (time + 1) / WARMUP) * (1 + math.cos(math.pi * time / PERIOD)) / 2


def setting_of(rule: str, depth: int, activation: str, feature: str) -> Setting:
    """Return the setting of a network and its training."""
    jumps = rule in ("sign", "lion") and activation == "relu" and "classes" not in feature
    rate = BEFORE_JUMP if jumps else WITHOUT_CORRECTION if rule == "rmsprop" else RATE
    rates = (rate,) * STEPS
    if feature == "schedule":
        rates = tuple(schedule_at(time) for time in range(STEPS))
    return Setting(
        rule,
        depth,
        activation,
        rates,
        gamma0=GAMMA,
        decay=0.4 if rule == "adamw" else 0.0,
        bias=feature == "biases",
        normalised="normalised" in feature,
        classes="classes" in feature,
    )


def cases() -> dict[str, Setting]:
    """Return each rule at every depth with either activation, and with every feature once.

    Muon, which moves hidden matrices alone, has each feature at least once at two depths.
    """
    found = {}
    orthogonal = [*product((2, 3), ("tanh", "relu"), FEATURES)]
    for depth, activation, feature in orthogonal[::3] + orthogonal[1::4] + orthogonal[2::8]:
        name = f"muon, {depth} layers, {activation}, {feature}"
        found[name] = setting_of("muon", depth, activation, feature)
    for k, rule in enumerate(x for x in RULES if x != "muon"):
        for i, (depth, activation) in enumerate(product((1, 2, 3), ("tanh", "relu"))):
            feature = FEATURES[(i + k) % len(FEATURES)]
            found[f"{rule}, {depth} layers, {activation}, {feature}"] = setting_of(
                rule, depth, activation, feature
            )
    return found


CASES = cases()


def program_of(setting: Setting, rule: Entrywise | None = None, **options: Any) -> Program:
    """Return the program of a setting, or with another rule or more options of :func:`mlp`."""
    schedule = setting.rates[0] != setting.rates[-1]
    rate = eta * Min(1, (t + 1) / S(WARMUP)) * (1 + cos(pi * t / PERIOD)) / 2 if schedule else eta
    rule = RULES[setting.rule](rate, DECAY) if rule is None else rule
    rules = {"W": muon(rate)} if setting.rule == "muon" else {}
    if setting.normalised:
        return normalised(setting, rule, rules)
    options |= {"rules": rules}
    if setting.classes:
        options |= {"outputs": 3, "objective": "cross-entropy"}
    return mlp(setting.depth, setting.activation, rule=rule, bias=setting.bias, **options)


def normalised(setting: Setting, rule: Entrywise, rules: Mapping[str, TrainingRule]) -> Program:
    """Return layers divided by the root mean square of their preactivations, as a user writes them."""
    layer, pixels, depth = Population("layer"), Population("input", given=True), setting.depth
    x, h = GivenVector("x", pixels, "K_x"), Field("h", layer, layered=True)
    classes = IndexRange(Symbol("c", integer=True), S.One, S(3))
    c, channels = classes.index, (classes,) if setting.classes else ()
    first = GaussianMatrix("W0", layer.at(1), pixels)
    last = GaussianVector("w", layer.at(depth), indices=channels)
    inner = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, S(depth - 1)))
    m, f, y = (Function(name) for name in ("m", "f", "y"))

    def phi(k: Any) -> Expr:
        n = h(k, mu, t) / sqrt(m(k, mu, t))
        return tanh(n) if setting.activation == "tanh" else Max(n, 0)

    forward = {h(1, mu, t): first @ x(mu), m(ell, mu, t): Mean(h(ell, mu, t) ** 2)}
    if depth > 1:
        forward[h(ell + 1, mu, t)] = inner(ell) @ phi(ell)
    if setting.classes:
        forward[f(mu, c, t)] = Mean(last(c) * phi(depth)) / gamma0
        out, label = f(mu, c, t), y(mu, c)
        loss = log(Sum(exp(out), classes.limits)) - Sum(label * out, classes.limits)
    else:
        forward[f(mu, t)] = Mean(last.symbol * phi(depth)) / gamma0
        loss = (y(mu) - f(mu, t)) ** 2 / 2
    weights = (first, inner, last) if depth > 1 else (first, last)
    ranges = (IndexRange(ell, S.One, S(depth)), *channels)
    net = Network("normalised layers", (h,), forward, weights, given=(x,), ranges=ranges, depth=S(depth))
    return net.train(loss, rule, rules=rules)


def solved(
    setting: Setting, theory: Theory, samples: int, replicas: int = REPLICAS, **options: Any
) -> Solved:
    """Return the solution of a theory for a setting.

    ``options`` are arrays, or those of the solver.
    """
    times = np.arange(len(setting.rates) + 1.0)
    values = {"eta": rate_of(setting), "gamma0": setting.gamma0, "P": len(X), "lambda": setting.decay}
    data = {"K_x": X @ X.T / X.shape[1], "x": X, "y": CLASSES if setting.classes else Y}
    data |= options.pop("arrays", {})
    for _, tables in tables_of_program(program_of(setting)):  # decay that follows the schedule
        data |= tables.values({eta: values["eta"], DECAY: values["lambda"]}, times)
    told: dict[str, Any] = {"steps": len(times), "values": values, "data": data}
    return solve_particles(theory, samples=samples, replicas=replicas, **told, **options)


def of_replicas(setting: Setting, solution: Evaluated) -> dict[str, Array]:
    """Return losses and outputs at all times and kernels at the last one, of each replica."""
    count, f = len(solution.runs["f", ()]), solution.runs["f", ()]
    f = f if setting.classes else f[..., None]
    found = {"f": f, "loss": setting.loss(f)}
    for (name, layers), runs in solution.runs.items():
        if name in ("H", "Phi", "G"):
            kernel = runs[..., -1, -1]
            size = round((kernel.size / count) ** 0.5)
            found[f"{name}{layers[0]}"] = kernel.reshape(count, size, size)
    return found


Values = Mapping[str, tuple[Array, Array]]
"""Means and their standard errors by names."""


def theory_values(
    setting: Setting, theory: Theory, samples: tuple[int, int] = SAMPLES, replicas: int = REPLICAS
) -> Values:
    """Return a theory at infinitely many paths: linear in 1/S from S and 2 S."""
    few, many = (of_replicas(setting, solved(setting, theory, n, replicas)) for n in samples)
    found = {}
    for name in many:
        means, errors = zip(*(_mean(x[name]) for x in (few, many)), strict=True)
        found[name] = (2 * means[1] - means[0], np.hypot(errors[0], 2 * errors[1]))
    return found


def _mean(values: Array) -> tuple[Array, Array]:
    """Return the mean over the first axis and its standard error."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def distances(one: Values, other: Values) -> Array:
    """Return all differences after the first step, in joint standard errors."""
    found = []
    for name, (value, error) in one.items():
        other_value, more = other[name]
        gap, both = value - other_value, np.hypot(error, more)
        moved = slice(1, None) if name in ("f", "loss") else slice(None)
        found.append(in_errors(gap[moved], both[moved]))
    return np.concatenate(found)


@cache
def networks_of(name: str) -> Values:
    """Return the values of networks of a setting at infinite width."""
    setting = CASES[name]
    return extrapolated(setting, *NETWORKS[setting.depth])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_theories_follow_networks_where_features_move(name: str) -> None:
    """Losses, outputs and kernels; the same with features that do not move is off by ten standard errors."""
    setting = CASES[name]
    theory = mean_field(integrated(program_of(setting)))
    z = distances(theory_values(setting, theory), networks_of(name))
    assert excess(z, REPLICAS - 1) < 1, np.abs(z).max()
    still = replace(setting, gamma0=LAZY)
    lazy = {n: _mean(x) for n, x in of_replicas(still, solved(still, theory, SAMPLES[0], 8)).items()}
    assert np.abs(distances(lazy, networks_of(name))).max() > 10


def test_theory_follows_networks_quickly() -> None:
    """Sign descent in two layers at widths 32 and 64."""
    setting = replace(setting_of("sign", 2, "tanh", "plain"), rates=(RATE,) * 4)
    theory = mean_field(program_of(setting))
    z = distances(theory_values(setting, theory, (64, 128), 12), extrapolated(setting, (32, 64), 120))
    assert excess(z, 11) < 1, np.abs(z).max()


@pytest.mark.parametrize(
    ("rule", "feature"),
    [
        ("sign", "schedule"),
        ("adam", "biases"),
        ("adamw", "schedule"),
        ("rmsprop", "classes"),
        ("lion", "biases"),
    ],
)
def test_without_initial_weights_between_layers_paths_are_a_network(rule: str, feature: str) -> None:
    """The array over pairs of S paths is then the matrix of a network of S units: equal to rounding."""
    setting, units, runs = setting_of(rule, 2, "tanh", feature), 8, 2
    setting = replace(setting, rates=setting.rates[:5])
    theory = mean_field(integrated(program_of(setting, init_variance="sigma")))
    arrays, kept = {"sigma": np.array([1.0, 0.0, 1.0])}, Paths(("h", "z"), times=(0,))
    solution = solved(setting, theory, units, runs, arrays=arrays, paths=kept)
    assert solution.paths is not None
    h, z = (solution.paths[name].isel(time=0) for name in "hz")
    network = Networks(setting, units, range(runs))
    network.W[0][...] = h.sel(layer=1).transpose("run", "unit", "sample").values @ np.linalg.inv(X.T)
    network.W[1][...] = 0.0
    readout = z.sel(layer=2, sample=0).values
    network.w[...] = readout.reshape(network.w.shape)
    if setting.bias:  # that of the first layer is within its weights, as both move apart from their start
        network.b[0][...] = 0.0
        network.b[1][...] = h.sel(layer=2, sample=0).transpose("run", "unit").values
    gap = of_replicas(setting, solution)["f"] - network.train()["f"]
    assert np.abs(gap).max() < 1e-12


def test_blocks_of_rows_have_states_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = replace(setting_of("lion", 2, "tanh", "plain"), rates=(RATE,) * 3)
    theory = mean_field(program_of(setting))
    whole = solved(setting, theory, 16, 2).value("f")
    monkeypatch.setattr(entries, "BLOCK", 40)
    assert np.abs(solved(setting, theory, 16, 2).value("f") - whole).max() < 1e-12


WITH_RESPONSES = [
    "sign, 3 layers, tanh, schedule",
    "adam, 2 layers, tanh, plain",
    "adamw, 2 layers, tanh, schedule",
    "rmsprop, 3 layers, tanh, biases",
    "lion, 2 layers, tanh, normalised",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_RESPONSES)
def test_without_responses_theories_are_off(name: str) -> None:
    setting = CASES[name]
    theory = without_responses(mean_field(integrated(program_of(setting))))
    z = distances(theory_values(setting, theory), networks_of(name))
    assert np.abs(z).max() > 10


FORGETFUL = A / (Abs(A) + SMALL)
"""The step of Adam and RMSprop whose means keep nothing."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "Q"),
    [
        ("adam, 2 layers, tanh, plain", FORGETFUL),
        ("adamw, 3 layers, tanh, normalised", FORGETFUL),
        ("rmsprop, 2 layers, tanh, classes", FORGETFUL),
        ("lion, 3 layers, tanh, normalised classes", sign(A)),
    ],
)
def test_without_the_memory_of_the_rule_theories_are_off(name: str, Q: Expr) -> None:
    setting = CASES[name]
    rule = Entrywise(eta, Q, decay=eta * setting.decay)
    z = distances(theory_values(setting, mean_field(program_of(setting, rule))), networks_of(name))
    assert np.abs(z).max() > 10
