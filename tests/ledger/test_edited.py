"""Printed equations put into a derived theory, networks against it: agreement and disagreement are seen."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from sympy import Function, Integer, S, Sum, tanh

from derive.program import alpha, ell, eta, mu, s, t
from tests.derive.once import mlp
from tests.ledger.claims import claimed
from tests.ledger.claims.selfconsistent2023.nonlinear import average, response, slope
from tests.ledger.evidence.edited import Experiment, edited, kernel_of, off, placed, right, worst

B, Delta, G, g, h, u = (Function(n) for n in ("B", "Delta", "G", "g", "h", "u"))
SMALL = Experiment(
    mlp(1, "tanh"),
    {"eta": 0.5, "gamma0": 2.0, "P": 2},
    {"x": np.array([[1.2, -0.4, 1.3], [0.2, 0.9, -0.8]]), "y": np.array([1.0, -0.6])},
    width=150,
    networks=100,
    steps=2,
)


@cache
def measured():
    return SMALL.measured()


def fields(number="D.21"):
    return {k: e for k, e in claimed("selfconsistent2023", number).items() if k in ("h", "z")}


def test_networks_agree_with_what_is_right_and_not_with_what_is_wrong():
    theory = SMALL.theory()
    assert right("derived", SMALL, measured()).holds
    assert not off("printed", SMALL, measured(), edited(theory, fields(), 1)).holds
    without = {k: e.replace(Delta, lambda *_: S.One) for k, e in fields().items()}
    assert off("printed without the error", SMALL, measured(), edited(theory, without, 1)).holds


def test_a_number_without_errors_on_both_sides_must_be_met():
    """Linear theories are exact."""
    run = replace(SMALL, program=mlp(1, "linear")).solved()
    exact, none = run.value("f"), run.stderr("f")
    assert not none.any()
    assert worst({"f": (exact, none)}, run) == 0
    assert worst({"f": (exact + 1e-3, none)}, run) == np.inf


def test_parts_without_a_place_are_refused():
    with pytest.raises(KeyError, match="nonsense"):
        edited(SMALL.theory(), {"nonsense": S.One}, 1)


def test_a_flow_is_read_as_steps():
    """In z^1 of two layers the kernel has the error, the rate and s < t, the response has s <= t."""
    sums = [x for x in placed(fields("13")["z"], 1, 2).atoms(Sum) if any(v == s for v, *_ in x.limits)]
    read = {x.has(B): (x.has(eta), x.has(Delta), tuple(x.limits[-1])) for x in sums}
    assert read == {True: (False, False, (s, 0, t)), False: (True, True, (s, 0, t - 1))}


def test_a_claim_is_read_at_a_layer_with_the_ends_of_the_chain():
    assert not placed(fields("13")["z"], 2, 2).has(B, G)
    assert placed(G(ell, mu, alpha, t, s), Integer(4), 3) == 1
    read = placed(average(g(ell, mu, t) * slope(h(ell, alpha, s))), 2, 3)
    assert (read.body / g(2, mu, t) - 1 + tanh(h(2, alpha, s)) ** 2).expand() == 0
    assert placed(response(g(ell + 1, mu, t), u(ell + 1, alpha, s)), 1, 3).body.source == u(2, alpha, s)


def test_kernels_of_images_join_positions():
    images = np.arange(12.0).reshape(2, 2, 3)
    kernel = kernel_of(images)
    assert kernel.shape == (2, 2, 2, 2)
    assert kernel[1, 0, 0, 1] == pytest.approx(images[1, 0] @ images[0, 1] / 3)
