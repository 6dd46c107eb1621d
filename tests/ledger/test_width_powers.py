"""Measured powers of the width: the networks are right, and the comparison sees wrong exponents."""

import numpy as np
import pytest
from sympy import Rational

from derive.scale.power_counting import count_powers
from derive.scale.width import named, parametrized, with_exponents
from numerics.simulation import simulate_program
from tests.chance import excess
from tests.derive.once import feedback_alignment, mlp
from tests.ledger.evidence import width_constraints, width_powers
from tests.ledger.evidence.width_powers import ETA, GAMMA0, INPUTS, Networks, cases, measured, slope_of


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_push_is_the_gradient(activation):
    n, rng = 5, np.random.default_rng(0)
    powers = {k: float(v) for k, v in width_powers.SKEW.items()}
    run = Networks(n, powers, activation, seeds=1)
    weights = run.start()
    raw = ETA * run.gamma**2 * n ** -powers["c"]

    def loss(moved):
        return float(np.sum((run.targets - run.fields(moved)[2]) ** 2) / 2)

    for k, push in enumerate(run.push(weights, ETA)):
        way = rng.standard_normal(weights[k].shape)
        ends = [loss([w + s * 1e-6 * way if i == k else w for i, w in enumerate(weights)]) for s in (1, -1)]
        slope = (ends[0] - ends[1]) / 2e-6
        assert -raw * slope == pytest.approx(float(np.sum(push * way)), rel=1e-6)


def test_the_parametrised_program_is_this_network():
    """The printed network and the program with explicit powers of N, from the same weights, step by step."""
    n, name = 8, "any numbers"
    exact = cases()[name]
    powers = {k: float(v) for k, v in exact.items()}
    run = Networks(n, powers, "linear", seeds=1, seed=4)
    w0, w, out = (x[0] for x in run.start())
    program = with_exponents(parametrized(mlp(2)), exact)
    found = simulate_program(
        program,
        width=n,
        steps=2,
        seeds=1,
        values={"N": n, "eta": ETA, "gamma0": GAMMA0, "P": 3},
        data={"x": INPUTS, "y": Networks.targets},
        initial={"W0": w0 / np.sqrt(INPUTS.shape[1]), "W": {1: w / np.sqrt(n)}, "w": out[0]},
    )
    ours = np.array([x[2][0, 0] for x in run.trained(2)])
    assert np.abs(found["f"].mean - ours).max() < 1e-12 * np.abs(ours).max()


def test_measured_powers_reject_wrong_ones():
    chosen = {k: cases()[k] for k in ("muP", "standard")}
    widths = (32, 64, 128, 256)
    found = measured(widths, 300, chosen, 0)
    slopes = {k: slope_of(widths, x) for k, x in found.items()}
    said = {("muP", "rate", "h2"): 0.0, ("standard", "rate", "h2"): 0.5, ("standard", "rate", "f"): 1.0}
    for key, right in said.items():
        value, error = slopes[key]
        assert excess((value - right) / error) < 1 < excess((value - right - 0.5) / error)


def test_a_planted_error_in_the_networks_is_seen(monkeypatch):
    """The readout's update with the wrong scale: the symmetry is broken."""
    right = Networks.push

    def wrong(self, weights, rate):
        moved = right(self, weights, rate)
        return [*moved[:2], moved[2] * self.n ** self.powers["a_w"]]

    assert width_powers.symmetry().passed
    monkeypatch.setattr(Networks, "push", wrong)
    assert not width_powers.symmetry().passed


def test_a_planted_error_in_the_count_is_seen(monkeypatch):
    """One matrix without its root: the printed exponents are no longer those that are counted."""
    right = width_constraints.counted

    def wrong(depth=width_constraints.DEPTH):
        found = right(depth)
        program = width_constraints.without_root(found.program, "W")
        return width_constraints.width_constraints(program)

    monkeypatch.setattr(width_constraints, "counted", wrong)
    assert not width_constraints.conditions().passed


def test_slopes_come_with_their_errors():
    rng, widths = np.random.default_rng(1), (32, 64, 128, 256)
    logs = [2 * -0.5 * np.log(n) + 0.3 * rng.standard_normal(400) for n in widths]
    value, error = slope_of(widths, logs)
    assert excess((value + 0.5) / error) < 1
    assert error < 0.05
    bent = [x + 2 * np.log(1 + 3 * n**-0.5) for n, x in zip(widths, logs, strict=True)]
    assert excess((slope_of(widths, bent)[0] + 0.5) / error) > 1
    curved, wider = slope_of(widths, bent, curved=True)
    assert excess((curved + 0.5) / wider) < 1


PROGRAMS = {
    "biases": lambda: mlp(2, bias=True),
    "feedback": lambda: feedback_alignment(2),
    "without root": lambda: width_constraints.without_root(mlp(2), "W"),
}


@pytest.mark.slow
@pytest.mark.parametrize("d", [Rational(0), Rational(1, 2)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_other_programs_move_as_counted(name, d):
    """Any program, simulated literally: counted powers are multiples of 1/2, and the nearest to the slope."""
    program, widths = PROGRAMS[name](), (64, 128, 256, 512)
    whole = with_exponents(parametrized(program), {**named(program)["NTK"], "d": d})
    values, data = {"eta": 1e-4, "gamma0": 1.0, "P": 2}, {"x": INPUTS[:2], "y": np.array([1.0, -0.7])}
    logs = []
    for n in widths:
        found = simulate_program(whole, width=n, steps=1, seeds=60, values={**values, "N": n}, data=data)
        H = found["H"][2].mean
        logs.append(np.log(sum(H[1, 1, i, i] - 2 * H[1, 0, i, i] + H[0, 0, i, i] for i in range(2))) / 2)
    slope = np.polyfit(np.log(widths), logs, 1)[0]
    assert round(2 * slope) == 2 * count_powers(whole, 1, first=True).change("h", 2)
