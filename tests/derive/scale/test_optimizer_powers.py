"""Rates, epsilon and decay of optimisers as powers of the width, against formulas derived by hand."""

from dataclasses import replace
from functools import lru_cache, partial

import pytest
from sympy import Expr, Function, Rational, S, Symbol

from derive.errors import NotApplicable
from derive.program import Entrywise, GradientDescent, eta, sign_descent
from derive.program.entrywise import A
from derive.program.networks.gains import mlp_with_gains
from derive.scale.optimizer_powers import (
    CHANGES,
    CONSTANT_DECAY,
    CONSTANT_EPSILON,
    CONSTANT_RATE,
    CORNERS,
    LEARNING,
    OPTIMIZERS,
    SMALL_EPSILON,
    SPECTRAL,
    TANGENT,
    kinds_of,
    optimizer_powers,
    scaling_faults,
)
from derive.scale.power_counting import count_powers
from derive.scale.width import FREE, parametrized, width_class
from tests.derive.once import convolution, mlp, recurrent, width_constraints

a, HALF = FREE, Rational(1, 2)
KINDS = ("input", "hidden", "readout", "bias", "gain")
COHERENT = {
    LEARNING: {"input": 0, "hidden": 1, "readout": 1, "bias": 0, "gain": 0},
    TANGENT: {"input": HALF, "hidden": 3 * HALF, "readout": 1, "bias": HALF, "gain": HALF},
}
"""Steps of the weight as applied must be ``N^-p``, because sums over units add up."""
DIVISION = {LEARNING: 1, TANGENT: HALF}
"""Gradients with respect to the weight as applied are ``N^-q``, and of order one for the readout."""
DEGREE = {"sgd": 1, "momentum": 1, "sign": 0, "adam": 0, "adamw": 0, "rmsprop": 0, "lion": 0}


def by_hand(kind: str, degree: int, corner: str) -> dict[str, Expr]:
    """Return ``c = p - a - k (a + q)`` for a step ``N^-c Q`` of the raw weight."""
    q = 0 if kind == "readout" else DIVISION[corner]
    rate = -COHERENT[corner][kind] + a + degree * (a + q)
    return {"gradient": -a - q, "rate": rate, "epsilon": -a - q, "decay": -rate}


@lru_cache
def table(name: str, corner: str = LEARNING, normalised: bool = False):
    program = mlp_with_gains(rule=OPTIMIZERS[name], normalised=normalised)
    spectral = [w for w, kind in kinds_of(program).items() if kind == "hidden"] if name in SPECTRAL else ()
    return optimizer_powers(program, corner, spectral=spectral)


def agree(found, degree: int, corner: str) -> None:
    for row in found.rows:
        said = by_hand(row.kind, degree, corner)
        for key, value in row.powers.items():
            if key != "variance" and value is not None:
                assert (value - said[key]).expand() == 0, (row.weight, key)


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("name", ["sgd", "sign"])
def test_perceptrons(name: str, corner: str) -> None:
    rule = {"sgd": Entrywise(eta, A), "sign": sign_descent(eta)}[name]
    found = optimizer_powers(mlp(2, Function("phi"), rule=rule), corner)
    assert [x.kind for x in found.rows] == ["input", "hidden", "readout"]
    agree(found, DEGREE[name], corner)
    assert found.output == (HALF if corner == LEARNING else 0)


@pytest.mark.slow
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("name", DEGREE)
def test_every_optimiser_and_kind_of_weight(name: str, corner: str) -> None:
    found = table(name, corner)
    assert {x.kind for x in found.rows} == {*KINDS}
    assert {x.degree for x in found.degrees.values()} == {DEGREE[name]}
    agree(found, DEGREE[name], corner)
    assert (found.row("hidden").epsilon is not None) == (name in ("adam", "adamw", "rmsprop"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_normalised_layers_have_the_same_table(name: str) -> None:
    assert [x.powers for x in table(name, normalised=True).rows] == [x.powers for x in table(name).rows]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize(
    "program",
    [
        partial(mlp, 2, "tanh", outputs=3),
        partial(mlp, 2, "tanh", branch=Symbol("beta")),
        partial(mlp, 3, "relu", relative_widths=[2, 1, 1]),
        partial(convolution, 2, "tanh", positions=3, receptive=1),
        partial(recurrent, 3, "tanh"),
    ],
    ids=["outputs", "residual", "relu", "convolution", "recurrent"],
)
def test_other_networks_have_the_same_table(program, name: str) -> None:
    """Sums over steps, positions and channels stand inside Q, and change no power."""
    agree(optimizer_powers(program(rule=OPTIMIZERS[name])), DEGREE[name], LEARNING)


@pytest.mark.slow
def test_muon_has_a_rate_of_order_one_between_layers() -> None:
    """Steps of spectral norm one move fields by order one; other weights go by signs."""
    found = table("muon")
    assert found.row("hidden").rate == a
    assert found.row("readout").rate == by_hand("readout", 0, LEARNING)["rate"]
    assert any("singular values" in x for x in found.conditions())


MUP = {
    "sgd": {"input": 1, "hidden": 0, "readout": -1, "bias": 1},
    "adam": {"input": 0, "hidden": -1, "readout": -1, "bias": 0},
}
"""Powers of the width in learning rates, arXiv:2203.03466 Table 3, weights without multipliers."""
COMPLETEP = {
    "input": {"rate": 0, "epsilon": -1, "decay": 0},
    "hidden": {"rate": -1, "epsilon": -1, "decay": 1},
    "readout": {"rate": 0, "epsilon": -1, "decay": 0},
    "bias": {"rate": 0, "epsilon": -1},
    "gain": {"rate": 0, "epsilon": -1},
}
"""Powers of m_N for AdamW, arXiv:2505.01618 Table 1 and its code; the outputs have the multiplier 1/N."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MUP)
def test_the_table_of_mup(name: str) -> None:
    found = {kind: table(name).row(kind).at(0) for kind in MUP[name]}
    assert {kind: x.rate for kind, x in found.items()} == MUP[name]
    assert [found[kind].variance for kind in ("input", "hidden", "readout")] == [0, -1, -2]


@pytest.mark.slow
def test_the_table_of_completep() -> None:
    for kind, said in COMPLETEP.items():
        found = table("adamw").row(kind).at(1 if kind == "readout" else 0).powers
        assert {key: found[key] for key in said} == said


@pytest.mark.slow
def test_gradient_descent_as_an_entrywise_rule_has_the_old_family() -> None:
    """The scale of each weight is that of the raw rate ``eta gamma^2 N^-c`` of all weights."""
    family = {str(x): v for x, v in width_constraints(mlp(2, "tanh", bias=True)).family().items()}
    found = optimizer_powers(mlp(2, "tanh", rule=Entrywise(eta, A), bias=True))
    raw = 2 * family["d"] - family["c"]
    for row in found.rows:
        scale = family[f"a_{row.weight}"] + (family["d"] if row.kind == "readout" else 0)
        assert (row.at(scale).rate - raw).expand() == 0
        assert (row.at(scale).variance + family[f"b_{row.weight}"]).expand() == 0


@pytest.mark.slow
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("scale", [0, HALF, 1])
def test_all_weights_learn_over_three_steps(scale: Rational, corner: str) -> None:
    """With numerical exponents no size diverges, and fields move as the corner requires."""
    found = optimizer_powers(mlp(2, "tanh", rule=OPTIMIZERS["adam"]), corner)
    exponents = found.exponents({"input": scale, "hidden": scale, "readout": scale + HALF})
    whole = width_class(found.program, exponents)
    assert whole.regime == {LEARNING: "feature learning", TANGENT: "lazy"}[corner]
    assert whole.changes["h", 2] == {LEARNING: 0, TANGENT: -HALF}[corner]


SCALES = {"input": 0, "hidden": 0, "readout": 0}


@lru_cache
def faults():
    found = optimizer_powers(mlp(2, "tanh", rule=OPTIMIZERS["adamw"]))
    return {(x.change, x.kind): x for x in scaling_faults(found, SCALES)}


@pytest.mark.slow
def test_a_constant_epsilon_freezes_layers_below_the_readout() -> None:
    for kind in ("input", "hidden"):
        found = faults()[CONSTANT_EPSILON, kind]
        assert (found.power, found.degree) == (-1, 1)
        assert found.words.startswith("freezes: it moves h")
        small = faults()[SMALL_EPSILON, kind]
        assert (small.power, small.degree) == (0, 0)
    assert faults()[CONSTANT_EPSILON, "readout"].power == 0


@pytest.mark.slow
def test_constant_rates_blow_up_and_constant_decay_vanishes() -> None:
    assert {k: faults()[CONSTANT_RATE, k].power for k in SCALES} == {"input": 0, "hidden": 1, "readout": 1}
    assert {k: faults()[CONSTANT_DECAY, k].power for k in SCALES} == {"input": 0, "hidden": -1, "readout": -1}
    assert "blows up: it moves h(2) by N^(1)" in faults()[CONSTANT_RATE, "hidden"].words
    assert "decay vanishes" in faults()[CONSTANT_DECAY, "hidden"].words
    assert {x for x, _ in faults()} == {*CHANGES}


@pytest.mark.slow
def test_epsilon_moves_the_exponents_of_wrong_programs_alone() -> None:
    """A rate that makes up for a constant epsilon is that of gradient descent."""
    found = optimizer_powers(mlp(2, "tanh", rule=OPTIMIZERS["adam"]))
    wrong = found.exponents(SCALES) | {"e_W(1)": S.Zero, "e_W0": S.Zero, "c_W(1)": S.Zero, "c_W0": S(-1)}
    counted = count_powers(parametrized(found.program, wrong), 1, first=True)
    assert counted.change_by_weight("h", 2) == {"W0": (0,), "W(1)": (0,)}
    descent = optimizer_powers(mlp(2, "tanh", rule=Entrywise(eta, A))).exponents(SCALES)
    assert {k: descent[k] for k in ("c_W(1)", "c_W0")} == {k: wrong[k] for k in ("c_W(1)", "c_W0")}


def test_weights_of_linear_rules_are_refused() -> None:
    with pytest.raises(
        NotApplicable, match=r"training rule of W0 must be entrywise: write .* Entrywise\(rate, A\)"
    ):
        optimizer_powers(mlp(2, "tanh", rule=GradientDescent(eta)))
    with pytest.raises(NotApplicable, match="corner = 'rich': must be one of"):
        optimizer_powers(mlp(2, "tanh", rule=sign_descent(eta)), "rich")


@pytest.mark.slow
def test_weights_may_follow_different_rules() -> None:
    """Matrices by signs and the readout by the gradient itself."""
    program = mlp(2, "tanh", rule=sign_descent(eta))
    (w,) = program.vectors
    found = optimizer_powers(replace(program, vectors=(replace(w, rule=Entrywise(eta, A)),)))
    assert {x.kind: x.rate for x in found.rows} == {
        "input": by_hand("input", 0, LEARNING)["rate"],
        "hidden": by_hand("hidden", 0, LEARNING)["rate"],
        "readout": by_hand("readout", 1, LEARNING)["rate"],
    }


def test_kinds_of_weights() -> None:
    for normalised in (False, True):
        program = mlp_with_gains(normalised=normalised)
        kinds = {"W0": "input", "W1": "hidden", "w": "readout"}
        kinds |= {f"{x}{i}": kind for i in (1, 2) for x, kind in (("b", "bias"), ("q", "gain"))}
        assert kinds_of(program) == kinds
    assert kinds_of(mlp(2, "tanh", branch=Symbol("beta")))["W"] == "hidden"
