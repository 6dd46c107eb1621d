"""Powers of the depth in rates, epsilon and decay of optimisers, against formulas worked out by hand."""

from functools import lru_cache

import pytest
from sympy import S, Symbol

from derive.depth.balance import alpha, gamma
from derive.errors import NotApplicable
from derive.program import Entrywise, depth_program, eta, sign_descent
from derive.program.entrywise import A
from derive.scale.depth import DepthParametrization, update_power
from derive.scale.optimizer_depth import (
    CONSTANT_DECAY,
    CONSTANT_EPSILON,
    CONSTANT_RATE,
    depth_faults,
    depth_powers,
)
from derive.scale.optimizer_powers import OPTIMIZERS
from tests.derive.once import mean_field

DEGREE = {"sgd": 1, "momentum": 1, "sign": 0, "adam": 0, "adamw": 0, "rmsprop": 0, "lion": 0}


@lru_cache
def network():
    return DepthParametrization(mean_field(depth_program(alpha=alpha, gamma=gamma)))


def test_entrywise_rules_enter_as_the_rules_of_the_paper():
    """Gradients keep the factor of their branch, and signs do not."""
    program = network().theory.program
    assert update_power(program, Entrywise(eta, A)) == update_power(program, "sgd")
    assert update_power(program, sign_descent(eta)) == update_power(program, "sign")
    assert update_power(program, OPTIMIZERS["adam"]) == update_power(program, "sign")


@pytest.mark.slow
def test_rates_of_the_table_of_the_paper():
    """depth2023 Table 1, Depth-muP: a rate of order one for SGD, and ``L^-1/2`` for Adam."""
    rates = {name: depth_powers(network(), OPTIMIZERS[name]).at(S.Half).rate for name in ("sgd", "adam")}
    assert rates == {"sgd": 0, "adam": -S.Half}


@pytest.mark.slow
def test_completep_is_the_table_but_for_the_decay_at_a_half():
    """Powers of m_L in arXiv:2505.01618, Table 1 and its code: rates ``alpha - 1``, epsilon ``-alpha``.

    The printed weight decay has no power of the depth.
    """
    found = depth_powers(network(), OPTIMIZERS["adamw"])
    assert (found.rate, found.epsilon) == (alpha - 1, -alpha)
    assert found.at(1).decay == 0
    assert found.at(S.Half).decay == S.Half


@pytest.mark.slow
@pytest.mark.parametrize("name", DEGREE)
def test_rates_follow_from_the_degree(name):
    """Updates of L branches add up: ``L L^-alpha L^(rate - k alpha) = 1``."""
    found, degree = depth_powers(network(), OPTIMIZERS[name]), DEGREE[name]
    assert (found.rate - ((1 + degree) * alpha - 1)).expand() == 0
    assert found.gradient == -alpha
    assert found.epsilon in ({None} if OPTIMIZERS[name].parameters.isdisjoint({epsilon}) else {-alpha})
    assert found.decay is None or (found.decay + found.rate).expand() == 0
    assert (found.inside - (alpha - 1)).expand() == 0
    assert (found.start - (S.Half - alpha)).expand() == 0


epsilon = Symbol("epsilon", positive=True)


@pytest.mark.slow
def test_wrong_scalings_of_deep_networks():
    root, one = (depth_faults(network(), OPTIMIZERS["adamw"], value) for value in (S.Half, S.One))
    assert root == {
        CONSTANT_EPSILON: "branches freeze: outputs move by L^(-1/2)",
        CONSTANT_RATE: "outputs blow up: they move by L^(1/2)",
        CONSTANT_DECAY: "decay vanishes: it removes the fraction L^(-1/2) of a weight in a step",
    }
    assert one[CONSTANT_EPSILON] == "branches freeze: outputs move by L^(-1)"
    assert one[CONSTANT_RATE].startswith("as before")
    assert one[CONSTANT_DECAY].startswith("as before")
    descent = depth_faults(network(), OPTIMIZERS["sgd"], S.One)
    assert descent[CONSTANT_RATE] == "branches freeze: outputs move by L^(-1)"
    assert descent[CONSTANT_DECAY] == "weights blow up: decay subtracts L^(1) times the weight in a step"


@pytest.mark.slow
def test_branches_that_let_the_stream_grow_are_refused():
    with pytest.raises(NotApplicable, match="alpha = 1/4: must be at least 1/2"):
        depth_powers(network(), OPTIMIZERS["adam"]).at(S.Half / 2)
