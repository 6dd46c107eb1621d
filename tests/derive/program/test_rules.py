"""Memory and noise of linear rules: followed step by step, found by both routes, wrong ones seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from sympy import Expr, Function, Matrix, Min, Rational, S, exp, eye, simplify, symbols, zeros

from derive.errors import ProgramError
from derive.program import (
    GradientDescent,
    GradientFlow,
    LinearRule,
    Momentum,
    MomentumFlow,
    TrainingRule,
    eta,
    mlp,
    s,
    t,
)
from derive.program.rules import LinearSystem, LinearSystemRule
from derive.theory import mean_field
from derive.theory.compare import compare
from derive.theory.document import summary
from derive.theory.routes import RoutesDisagree, check_routes

a, b, c, D = symbols("a b c D", positive=True)
r, m, d, q = (Function(x) for x in "rmdq")

STEPS: dict[str, TrainingRule] = {
    "descent": GradientDescent(a, decay=b, diffusion=D),
    "rate": GradientDescent(r(t)),
    "rate and decay": GradientDescent(a / (1 + t), decay=b / (2 + t), diffusion=D * (1 + t)),
    "decay alone": GradientDescent(a, decay=d(t)),
    "noise alone": GradientDescent(a, decay=b, diffusion=q(t)),
    "momentum": Momentum(a, b, decay=c),
    "rate outside": Momentum(r(t), b, decay=c),
    "rate inside": Momentum(r(t), b, decay=c, rate_inside=True),
    "everything": Momentum(r(t), m(t), decay=d(t)),
    "Nesterov": LinearRule(Matrix([[1, r(t) * b**2], [0, b]]), Matrix([r(t) * (1 + b), 1])),
    "coupled decay": LinearRule(
        Matrix([[1 - a / 3, a / 2], [-Rational(1, 3), Rational(1, 2)]]), Matrix([a, 1])
    ),
    "underdamped": LinearRule(Matrix([[1, a], [0, b]]), Matrix([a, 1]), diffusion=Matrix([[0, 0], [0, D]])),
    "two hidden states": LinearRule(
        Matrix([[1, r(t), 0], [0, b, d(t)], [0, 0, c]]), Matrix([0, 1, 1]), diffusion=D
    ),
    "a sum": LinearRule(1, 1, start=0),
    "decay of a tenth": GradientDescent(a, decay=Rational(1, 10), diffusion=D),
    "nothing kept": GradientDescent(a, decay=1, diffusion=D),
    "turned round": GradientDescent(a, decay=2, diffusion=D),
}
FLOWS: dict[str, TrainingRule] = {
    "flow": GradientFlow(a, decay=b, diffusion=D),
    "rate": GradientFlow(a / (1 + t)),
    "decay": GradientFlow(a, decay=2 / (1 + t), diffusion=D),
    "momentum": MomentumFlow(b, a),
    "momentum and rate": MomentumFlow(b, a * exp(-t)),
    "underdamped": LinearRule(
        Matrix([[0, 1], [0, -b]]), Matrix([0, 1]), diffusion=Matrix([[0, 0], [0, D]]), discrete=False
    ),
}
COUNT = 4
TABLES = {x: [Rational(1, 3 + k) + Rational(k, 7 + i) for k in range(COUNT)] for i, x in enumerate("rmdq")}
POINT = {a: Rational(1, 5), b: Rational(2, 7), c: Rational(1, 3), D: Rational(3, 4)}


def exact(e: Any, now: int = 0) -> Expr:
    """Return a coefficient at a step, or a memory at numbers as times, at rational values."""
    e = S(e).xreplace({t: S(now)}).doit()
    for name, values in TABLES.items():
        e = e.replace(Function(name), lambda k, values=values: values[int(k)])
    return e.doit().subs(POINT).doit()


def equal(one: Expr, other: Expr) -> bool:
    """Compare two numbers, to thirty digits where they have roots."""
    gap = one - other
    return gap == 0 or abs(gap.evalf(30)) < 1e-25


@pytest.mark.parametrize("name", STEPS)
def test_memory_and_noise_are_those_of_the_equation_followed_step_by_step(name: str) -> None:
    rule = STEPS[name]
    system: LinearSystem = rule.system  # type: ignore[attr-defined]
    n = system.states
    A = [system.matrix.applyfunc(lambda x, k=k: exact(x, k)) for k in range(COUNT)]
    noise = [system.noise_matrix.applyfunc(lambda x, k=k: exact(x, k)) for k in range(COUNT)]
    start = Matrix([exact(system.start)] + [S.Zero] * (n - 1))
    spread = zeros(n, n)
    for later in range(COUNT):
        assert equal(exact(rule.memory(S(later), S.Zero)[0]), start[0])
        for past in range(later):
            fed = Matrix([exact(x, past) for x in system.input])
            for k in range(past + 1, later):
                fed = A[k] * fed
            assert equal(exact(rule.memory(S(later), S(past))[1]), fed[0])
        carried = spread
        for k in range(later, COUNT):
            assert equal(exact(rule.noise(S(k), S(later))), carried[0, 0])
            assert equal(exact(rule.noise(S(later), S(k))), carried[0, 0])
            carried = A[k] * carried
        start, spread = A[later] * start, A[later] * spread * A[later].T + noise[later]


@pytest.mark.parametrize("name", FLOWS)
def test_memory_of_a_flow_obeys_its_equation_of_motion(name: str) -> None:
    """Its derivatives at the end and its value at the start, of a weight alone or with a velocity."""
    rule = FLOWS[name]
    system: LinearSystem = rule.system  # type: ignore[attr-defined]
    left, kept = rule.memory(t, s)
    assert simplify(left.subs(t, 0) - system.start) == 0
    assert simplify(kept.subs(s, t) - system.input[0]) == 0
    if system.states == 1:
        rate = system.matrix[0, 0]
        assert simplify(left.diff(t) - rate * left) == 0
        assert simplify(kept.diff(t) - rate * kept) == 0
        later = rule.noise(t, s).xreplace({Min(s, t): s})
        equal = later.xreplace({t: s})
        motion = (2 * rate * equal.subs(s, t) + S(system.noise_matrix[0, 0])).subs(t, s)
        for rest in (later.diff(t) - rate * later, equal.diff(s) - motion):
            assert simplify(rest.subs({**POINT, t: S(2), s: Rational(4, 3)}).doit()) == 0
        return
    # W'' = A01 Q', and Q' = A11 Q + b1 U: the response to an impulse at s has the slope A01 b1 and decays
    slope = kept.diff(t)
    expected = system.matrix[0, 1] * system.input[1].subs(t, s)
    assert simplify(slope.subs(t, s).doit() - expected) == 0
    assert simplify(slope.diff(t) - system.matrix[1, 1] * slope) == 0


ALIKE = ("coupled decay", "decay of a tenth", "rate of a flow", "rate", "decay alone", "momentum")
ALIKE += ("rate outside", "flow of a flow", "momentum of a flow")
"""Rules of which another one of the same kind is compared in the default suite."""


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, id=name, marks=[pytest.mark.slow] if name in ALIKE else [])
        for name, rule in (STEPS | {f"{x} of a flow": rule for x, rule in FLOWS.items()}).items()
    ],
)
def test_both_routes_find_the_same_memory(rule: TrainingRule) -> None:
    assert check_routes(mlp(1, rule=rule)) == []


def test_the_memory_of_a_rule_is_integrated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is cached, because each check of a program needs it."""
    asked: list[tuple[Expr, Expr]] = []
    flow = LinearSystem.flow

    def counted(system: LinearSystem, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        asked.append((time, past))
        return flow(system, time, past)

    monkeypatch.setattr(LinearSystem, "flow", counted)
    program = mlp(1, rule=GradientFlow(a / (1 + 7 * t), decay=1 / (3 + t)))
    program.with_rule(program.rule)
    assert (t, s) in asked
    assert len(asked) == len(set(asked))


def test_powers_of_numbers_are_no_difference() -> None:
    """``9^k/10^k`` equals ``(9/10)^k`` in sums over the memory of a decay that is a number."""
    theory = mean_field(mlp(1, rule=GradientDescent(a, decay=Rational(1, 10))))

    def parted(e: Any) -> Any:
        return e.replace(lambda x: x.is_Pow and x.base == Rational(9, 10), lambda x: 9**x.exp / 10**x.exp)

    lines = tuple(replace(e, terms=tuple(x.map(parted) for x in e.terms)) for e in theory.equations)
    assert lines != theory.equations
    assert compare(theory, replace(theory, equations=lines)) == []


@pytest.mark.slow
def test_both_routes_find_noise_with_a_decay_that_is_a_number() -> None:
    rule = GradientDescent(a, decay=Rational(1, 10), diffusion=Rational(1, 20))
    assert check_routes(mlp(2, rule=rule)) == []


@pytest.mark.slow
def test_both_routes_agree_on_decay_and_temperature_of_a_rate() -> None:
    """The noise has the rate above and below a fraction, which one route cancels, inside of sums."""
    rule = GradientDescent(eta, decay=eta * b, diffusion=2 * D * eta)
    assert check_routes(mlp(2, "tanh", rule=rule)) == []


# -- planted errors ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted(LinearSystemRule):
    """Rule whose memory or noise differs from that of its equation."""

    right: Any
    left_by: Expr = S.One
    kept_by: Expr = S.One
    noise_by: Expr = S.One
    shift: int = 0
    swapped: bool = False

    @property
    def discrete(self) -> bool:  # type: ignore[override]
        return bool(self.right.discrete)

    @property
    def system(self) -> LinearSystem:
        return self.right.system  # type: ignore[no-any-return]

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        left, kept = self.right.memory(time + self.shift, past)
        if self.swapped:  # the rate at the time of reading, not of the update
            kept = kept.replace(r, lambda x: r(time) if x == past else r(x))
        return self.left_by * left, self.kept_by * kept

    def noise(self, time: Expr, past: Expr) -> Expr:
        return self.noise_by * self.right.noise(time, past)


NOISY = GradientDescent(a, decay=b, diffusion=D)
TIMED = GradientDescent(r(t), decay=d(t), diffusion=q(t))


ERRORS: list[dict[str, Any]] = [
    {"left_by": S(2)},
    {"kept_by": S.Half},
    {"noise_by": S(2)},
    {"kept_by": -S.One},
    {"shift": 1},
]


@pytest.mark.parametrize(
    ("right", "error"),
    [
        # each error in a constant rule, and one or two of them in flows and in rules that depend on the time
        *((NOISY, error) for error in ERRORS),
        *((FLOWS["flow"], ERRORS[k]) for k in (2, 4)),
        *((TIMED, error) for error in ERRORS[::4]),
        (FLOWS["decay"], ERRORS[1]),
        *(pytest.param(FLOWS["flow"], ERRORS[k], marks=pytest.mark.slow) for k in (0, 1, 3)),
        *(pytest.param(TIMED, error, marks=pytest.mark.slow) for error in ERRORS[1:4]),
        *(pytest.param(FLOWS["decay"], ERRORS[k], marks=pytest.mark.slow) for k in (0, 2, 3, 4)),
    ],
    ids=str,
)
def test_a_wrong_memory_or_noise_is_seen_by_the_routes_alone(right: Any, error: dict[str, Any]) -> None:
    with pytest.raises(RoutesDisagree):
        check_routes(mlp(1, rule=Planted(right, **error)))


@pytest.mark.parametrize(
    "right",
    [
        STEPS["rate"],
        STEPS["everything"],
        *(pytest.param(STEPS[x], marks=pytest.mark.slow) for x in ("rate outside", "Nesterov")),
    ],
    ids=repr,
)
@pytest.mark.parametrize("error", [{"kept_by": S(2)}, {"swapped": True}], ids=str)
def test_a_wrong_rate_in_time_is_seen_by_the_routes_alone(right: Any, error: dict[str, Any]) -> None:
    with pytest.raises(RoutesDisagree):
        check_routes(mlp(1, rule=Planted(right, **error)))


# -- input and output of a user ------------------------------------------------------------------------------


def test_rates_inside_and_outside_of_the_velocity_differ_if_the_rate_moves() -> None:
    fixed = [Momentum(a, b, rate_inside=x).memory(t, s)[1] for x in (False, True)]
    moving = [Momentum(r(t), b, rate_inside=x).memory(S(2), S.Zero)[1].doit() for x in (False, True)]
    assert simplify(fixed[0] - fixed[1]) == 0
    assert simplify(moving[0] - r(0) - b * r(1)) == 0
    assert simplify(moving[1] - (1 + b) * r(0)) == 0


def test_states_that_drive_each_other_in_time_have_a_table_for_a_memory() -> None:
    rule = LinearRule(Matrix([[1 - r(t) * c, r(t) * b], [-c, b]]), Matrix([r(t), 1]))
    assert [str(x) for x in rule.memory(t, s)] == ["m(t)", "k(t, s)"]
    assert check_routes(mlp(1, rule=rule)) == []


def test_a_rule_of_ones_own_is_shown_with_its_name() -> None:
    rule = LinearRule(Matrix([[1, a], [0, b]]), Matrix([a, 1]), name="my velocity")
    assert "my velocity" in summary(mean_field(mlp(1, rule=rule)))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            (Matrix([[1, a], [0, b]]), a),
            "b of LinearRule is a number: must have the shape (2, 1)",
        ),
        (
            (Matrix([[1, a]]), Matrix([a])),
            "A of LinearRule has the shape (1, 2): must have the shape (1, 1)",
        ),
        (("1", a), "A = '1': must be a number or a SymPy expression"),
    ],
    ids=["b", "A", "text"],
)
def test_a_rule_that_is_no_system_is_refused(given: Any, told: str) -> None:
    with pytest.raises(ProgramError) as refusal:
        LinearRule(*given)
    assert told in str(refusal.value)


def test_a_number_stands_for_a_system_of_one_state() -> None:
    one = LinearRule(Matrix([[1 - b]]), Matrix([a]), diffusion=D)
    assert one.memory(t, s) == NOISY.memory(t, s)
    assert one.system.matrix == (1 - b) * eye(1)
    assert GradientDescent(eta).system.steady
    assert not STEPS["rate"].system.steady  # type: ignore[attr-defined]
