"""Parameters of rules are fixed throughout training; numbers of a family stand at the member used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
from sympy import Expr, Function, S, Symbol

from derive.errors import ProgramError
from derive.program import (
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    Gradient,
    GradientDescent,
    GradientFlow,
    IndexRange,
    L,
    Mean,
    Momentum,
    Multistep,
    Network,
    Parametrization,
    Population,
    Program,
    TrainingRule,
    alpha,
    ell,
    eta,
    gamma0,
    isotropic,
    mlp,
    mu,
    perceptron,
    s,
    t,
    training_rule,
)
from derive.program.rules import LinearRule, LinearSystem, LinearSystemRule, anchored_descent
from derive.theory import mean_field
from derive.theory.routes import RoutesDisagree, check_routes

beta = Symbol("beta", positive=True)
d = Function("d")

TIMED: dict[str, tuple[str, TrainingRule]] = {
    "rate at s": ("GradientDescent has rate = d(s)", GradientDescent(d(s))),
    "another t": ("GradientDescent has rate = t", GradientDescent(Symbol("t"))),
    "decay at s": ("Momentum has decay = d(s)", Momentum(eta, beta, decay=d(s))),
    "multistep": ("Multistep has rate = 1/(t + 1)", Multistep(rate=1 / (1 + t))),
    "multistep heat": ("Multistep has diffusion = d(t)", Multistep(heat="n", diffusion=d(t))),
}
INDEXED: dict[str, tuple[str, TrainingRule]] = {
    "layer": ("GradientDescent has rate = d(ell)", GradientDescent(d(ell))),
    "sample": ("GradientDescent has decay = d(mu)", GradientDescent(eta, decay=d(mu))),
    "momentum": ("Momentum has momentum = d(ell)", Momentum(eta, d(ell))),
}


PAIR = (Population("units"), Population("pixels", given=True))


def own(rule: TrainingRule, frozen: str = "", **options: Any) -> Program:
    """Return a program of a user, with that rule; the weights in ``frozen`` are not trained."""
    units, pixels = PAIR
    x, h = GivenVector("x", pixels, "K_x"), Field("h", units)
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units)
    f, y = Function("f"), Function("y")
    trained = tuple(z for z in (W, w) if z.name not in frozen)
    others = tuple(z for z in (W, w) if z.name in frozen)
    forward = {h(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * h(mu, t)) / gamma0}
    net = Network("own", (h,), forward, trained, others, given=(x,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, rule, **options)


@pytest.mark.parametrize("key", ["rates", "fan_in"])
@pytest.mark.parametrize("form", [dict, tuple, list])
def test_factors_of_single_weights_are_a_mapping_or_pairs(key: str, form: Any) -> None:
    pairs = (("W", heat),)
    given = Parametrization(**{key: form(pairs)})
    assert given == Parametrization(**{key: pairs})
    assert own(GradientDescent(eta), parametrization=given) != own(GradientDescent(eta))


OPTIONS: dict[str, tuple[str, Callable[[], Any]]] = {
    "a pair": ("rates = ('W', 2): must be a mapping such as", lambda: Parametrization(rates=("W", 2))),
    "text": ("fan_in['W'] = '2': must be a number", lambda: Parametrization(fan_in={"W": "2"})),
    "another weight": (
        "rates of the parametrization: 'V' is not a weight of the network (there are W, w)",
        lambda: own(GradientDescent(eta), parametrization=Parametrization(rates={"V": 2})),
    ),
    "no parametrization": (
        "parametrization = {'W': 2}",
        lambda: own(GradientDescent(eta), parametrization={"W": 2}),
    ),
    "another field": (
        "gradients: 'k' is not a field or number of the network (there are f, h)",
        lambda: own(GradientDescent(eta), gradients={"k": Gradient("g")}),
    ),
    "feedback of another kind": (
        "feedback['W'] = 2: must be",
        lambda: own(GradientDescent(eta), feedback={"W": 2}),
    ),
    "feedback of a frozen vector": (
        "feedback: 'w' is not a trained weight of the network (there are W)",
        lambda: own(
            GradientDescent(eta), frozen="w", feedback={"w": GaussianVector("v", Population("units"))}
        ),
    ),
    "feedback of a frozen matrix": (
        "feedback: 'W' is not a trained weight of the network (there are w)",
        lambda: own(GradientDescent(eta), frozen="W", feedback={"W": GaussianMatrix("V", *PAIR)}),
    ),
    "a class of rules": (
        "the training rule GradientDescent is a class",
        lambda: own(GradientDescent),  # type: ignore[arg-type]
    ),
    "a class of rules for a weight": (
        "the training rule GradientDescent is a class",
        lambda: own(GradientDescent(eta), rules={"W": GradientDescent}),
    ),
    "no notation": (
        "notation = {'h': 'H'}: must map",
        lambda: own(GradientDescent(eta), notation={"h": "H"}),
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_of_training_say_the_form_that_they_take(case: str) -> None:
    told, make = OPTIONS[case]
    with pytest.raises(ProgramError) as refusal:
        make()
    assert str(refusal.value).startswith(told)


def test_schedules_of_single_weights_keep_their_names() -> None:
    """The name of a schedule in ``rules`` was given to the gradient of a field."""
    rate = GradientDescent(Function("g")(t))
    of_all, of_one = own(rate), own(GradientDescent(eta), rules={"W": rate})
    assert [x.name for x in of_all.fields] == [x.name for x in of_one.fields]


FACTORS: dict[str, tuple[str, dict[str, Any]]] = {
    "rate of a weight": ("rates['W'] = d(mu) depends on mu", {"rates": {"W": d(mu)}}),
    "rate of a vector": ("rates['w'] = mu depends on mu", {"rates": {"w": mu}}),
    "rate of a layer": ("rates['W'] = d(ell) depends on ell", {"rates": {"W": d(ell)}}),
    "rate at another time": ("rates['W'] = d(s) depends on s", {"rates": {"W": d(s)}}),
    "rate of all": ("rate of the parametrization = d(alpha)", {"rate": d(alpha)}),
    "scale": ("scale of the parametrization = d(mu)", {"scale": d(mu)}),
    "scale in time": ("scale of the parametrization = d(t) depends on the time", {"scale": d(t)}),
    "fan-in": ("fan_in['W'] = mu depends on mu", {"fan_in": {"W": mu}}),
    "fan-in in time": ("fan_in['W'] = t + 1 depends on the time", {"fan_in": {"W": 1 + t}}),
    "fan-in of a vector": ("fan_in['w'] = 4: w is a vector", {"fan_in": {"w": 4}}),
}


@pytest.mark.parametrize("case", FACTORS)
def test_factors_depend_on_indices_of_their_weight_alone(case: str) -> None:
    """A weight is one number for all samples; a rate for each sample would be another one for each reader."""
    told, factors = FACTORS[case]
    with pytest.raises(ProgramError) as refusal:
        own(GradientDescent(eta), parametrization=Parametrization(**factors))
    assert str(refusal.value).startswith(told)


def test_initial_weights_depend_on_indices_of_their_family_alone() -> None:
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, f, y = GivenVector("x", pixels, "K_x"), Field("h", units), Function("f"), Function("y")
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units, variance=d(mu))
    forward = {h(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * h(mu, t)) / gamma0}
    with pytest.raises(ProgramError, match=r"variance of w = d\(mu\) depends on mu"):
        Network("own", (h,), forward, (W, w), given=(x,)).train(
            (y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta)
        )


WAYS: dict[str, Callable[[TrainingRule], Program]] = {
    "network": own,
    "builder": lambda rule: mlp(2, "tanh", rule),
    "with_rule": lambda rule: mlp(1, rule="gd" if rule.discrete else "flow").with_rule(rule),
    "replace": lambda rule: replace(mlp(1, rule="gd" if rule.discrete else "flow"), rule=rule),
    "weight": lambda rule: replace(
        base := mlp(1, rule="gd" if rule.discrete else "flow"),
        vectors=tuple(replace(x, rule=rule) for x in base.vectors),
    ),
}


def crossed(rules: Iterable[str]) -> list[Any]:
    """Return each rule in one way and one rule in each way; other pairs are slow tests."""
    pairs = list(product(rules, WAYS))
    first = pairs[0]
    return [
        pytest.param(*x, marks=[] if x[0] == first[0] or x[1] == first[1] else [pytest.mark.slow])
        for x in pairs
    ]


@pytest.mark.parametrize(("name", "way"), crossed(TIMED))
def test_a_parameter_at_another_time_than_that_of_the_step_is_refused(name: str, way: str) -> None:
    told, rule = TIMED[name]
    with pytest.raises(ProgramError) as refusal:
        WAYS[way](rule)
    said = str(refusal.value)
    assert said.startswith(told)
    assert "derive.program.t" in said
    assert "\n" not in said


@pytest.mark.parametrize(("name", "way"), crossed(INDEXED))
def test_a_rule_with_a_parameter_in_an_index_is_refused(name: str, way: str) -> None:
    told, rule = INDEXED[name]
    with pytest.raises(ProgramError) as refusal:
        WAYS[way](rule)
    assert str(refusal.value).startswith(told)
    assert "Parametrization(rates=" in str(refusal.value)


@pytest.mark.parametrize("key", ["weight_decay", "momentum", "temperature"])
@pytest.mark.parametrize("build", [mlp, isotropic])
def test_options_of_builders_may_depend_on_the_time(build: Any, key: str) -> None:
    given = {"rule": training_rule("gd", **{key: d(t)})} if build is isotropic else {key: d(t)}
    assert "d" in build(1, **given).tables


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: mlp(1, relative_widths=d(t)), "d(t) depends on the time"),
        (lambda: mlp(1, init_variance=d(t)), "variance of W0 = d(t) depends on the time"),
        (lambda: own_sized(d(t)), "ratio of units = d(t) depends on the time"),
        (lambda: mlp(1).map(lambda e: e.xreplace({gamma0: d(t)})), "scale = d(t) depends on the time"),
        (lambda: perceptron(rule=GradientDescent(d(s))), "GradientDescent has rate = d(s)"),
    ],
)
def test_sizes_and_initial_variances_that_depend_on_the_time_are_refused(
    build: Callable[[], Program], told: str
) -> None:
    with pytest.raises(ProgramError) as refusal:
        build()
    assert told in str(refusal.value)


def own_sized(ratio: Expr) -> Program:
    """Return a program with that number of units, over N."""
    field = Field("more", Population("units", ratio=ratio))
    line = Definition(field(t), field(t) / 2, evolves=True)
    return Program("sized", GradientFlow(), fields=(field,), definitions=(line,))


# -- rules that state no recursion ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Stated:
    """Rule with an arbitrary memory."""

    kept: Expr | int
    discrete: bool = True

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr | int]:
        return S.One, self.kept.subs({Symbol("now"): time, Symbol("then"): past}) if isinstance(
            self.kept, Expr
        ) else self.kept

    def noise(self, time: Expr, past: Expr) -> Expr:
        return S.Zero


def test_an_own_memory_takes_its_numbers_at_the_times_that_it_is_asked_for() -> None:
    then = Symbol("then")
    theory = mean_field(mlp(1, rule=Stated(d(then))))
    assert any(x.kernel.has(d(s)) for e in theory.equations for x in e.terms)
    with pytest.raises(ProgramError, match=r"kept = d\(t\), which depends on t"):
        mlp(1, rule=Stated(d(t)))


def test_an_own_memory_that_is_no_expression_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"states k\(t, s\), .*, as 1, which is not a SymPy expression"):
        mlp(1, rule=Stated(1))


def test_a_rule_that_cannot_be_hashed_is_refused() -> None:
    @dataclass
    class Loose:
        discrete: bool = True

        def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
            return S.One, eta

        def noise(self, time: Expr, past: Expr) -> Expr:
            return S.Zero

    with pytest.raises(ProgramError, match="cannot be hashed"):
        own(Loose())  # type: ignore[arg-type]


@dataclass(frozen=True)
class Broken(LinearSystemRule):
    """A rule whose memory is not the solution of its equation."""

    discrete: bool = True

    @property
    def system(self) -> LinearSystem:
        return LinearSystem(1 - beta, eta)

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        return (1 - beta) ** time, eta * (1 - beta) ** (time - past)


def test_routes_disagree_on_a_memory_that_its_own_equation_does_not_have() -> None:
    with pytest.raises(RoutesDisagree, match="equation h"):
        check_routes(mlp(1, rule=Broken()))


# -- numbers of a family -------------------------------------------------------------------------------------


def chain(shift: int, heat: Expr) -> Program:
    """Return a deep linear network whose hidden matrices are counted from ``1 - shift``."""
    layer, pixels = Population("layer"), Population("input", given=True)
    x, h = GivenVector("x", pixels, "K_x"), Field("h", layer, layered=True)
    sigma = Function("sigma")
    U, w = GaussianMatrix("U", layer.at(1), pixels), GaussianVector("w", layer.at(L))
    W = GaussianMatrix(
        "W",
        layer.at(ell + 1 + shift),
        layer.at(ell + shift),
        variance=sigma(ell + shift),
        index=IndexRange(ell, S(1 - shift), L - 1 - shift),
    )
    b = GaussianVector("b", layer.at(ell + 1), variance=sigma(ell), indices=(IndexRange(ell, S.One, L - 1),))
    f, y = Function("f"), Function("y")
    forward = {
        h(1, mu, t): U @ x(mu),
        h(ell, mu, t): W(ell - 1 - shift) @ h(ell - 1, mu, t) + b(ell - 1),
        f(mu, t): Mean(w.symbol * h(L, mu, t)) / gamma0,
    }
    net = Network("chain", (h,), forward, (U, W, b, w), given=(x,), ranges=(IndexRange(ell, S(2), L),))
    rates = (("W", sigma(ell + shift)), ("b", sigma(ell)))
    rule = GradientDescent(eta, decay=eta / 5, diffusion=heat)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, rule, Parametrization(rates=rates))


heat = Symbol("T", positive=True)


def test_variance_noise_and_rate_of_a_family_are_those_of_the_member_that_is_used() -> None:
    from numerics.solver.direct import evaluate

    values = {"eta": 0.2, "gamma0": 1, "P": 1, "T": 0.3}
    data = {"K_x": [[1.0]], "y": [1.0], "sigma": {1: 0.5, 2: 2.0, 3: 5.0}}
    theories = (mean_field(chain(shift, heat)).at_depth(2) for shift in (0, 1))
    known, other = (evaluate(x, steps=3, values=values, data=data).value("f") for x in theories)
    assert other == pytest.approx(known, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 1, -1])
@pytest.mark.parametrize("noise", [S.Zero, heat])
def test_both_routes_take_the_member_that_is_used(shift: int, noise: Expr) -> None:
    assert check_routes(chain(shift, noise)) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (lambda: isotropic(1, data="population", branch=Symbol("b", zero=True)), "branch = b: .* than 0"),
        (lambda: GradientDescent(Symbol("b", imaginary=True)), "rate of GradientDescent = b: must"),
        (lambda: GradientDescent(eta, decay=Symbol("b", imaginary=True)), "decay of .* = b: must"),
    ],
)
def test_symbols_that_are_known_to_be_outside_an_interval_are_refused(
    line: Callable[[], Any], reason: str
) -> None:
    with pytest.raises(ProgramError, match=reason):
        line()


@pytest.mark.parametrize("since", [-3, 2.5])
def test_the_anchor_is_a_step(since: float) -> None:
    with pytest.raises(ProgramError, match="must be a step, an integer >= 0"):
        anchored_descent(eta, beta, since)  # type: ignore[arg-type]


@pytest.mark.parametrize("since", [t, t + 1])
def test_steps_and_starts_do_not_change_in_time(since: Expr) -> None:
    """An anchor at the present step pulled towards the weights themselves."""
    with pytest.raises(ProgramError, match=r"since of anchored_descent = t.*does not change in time"):
        anchored_descent(eta, beta, since)
    with pytest.raises(ProgramError, match=r"start of LinearRule = t.*must not depend on the time"):
        LinearRule(S.One, eta, start=since)


@pytest.mark.parametrize(
    ("noise", "reason"),
    [([[0, 5], [5, 0]], "negative eigenvalue"), ([[1, 1], [0, 1]], "not symmetric")],
    ids=["indefinite", "asymmetric"],
)
def test_noise_of_a_linear_rule_has_a_covariance(noise: Any, reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        LinearRule([[1, 0], [0, 1]], [1, 1], noise)  # type: ignore[arg-type]


@pytest.mark.parametrize("A", [[[1, 2], [3]], [1, [3]], [[[1]]], [], [[]]], ids=str)
def test_matrices_of_a_linear_rule_have_rows_of_equal_length(A: Any) -> None:
    with pytest.raises(ProgramError, match=r"A of a linear rule = .* nonempty rows of equal length"):
        LinearRule(A, [1, 2])  # type: ignore[arg-type]
