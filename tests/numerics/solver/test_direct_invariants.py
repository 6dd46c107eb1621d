"""Tests of invariants of all networks on fixed data: causality, positivity, rescaling, the lazy limit.

The networks are drawn at random from the options of the builder; linear ones are evaluated exactly.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sympy import Symbol

from numerics.solver.direct import evaluate
from tests.derive.once import mean_field, mlp

STEPS, SAMPLES = 3, 2
BETA, DECAY, MOMENTUM, HEAT = (Symbol(n, positive=True) for n in ("beta", "lam", "m", "T"))

OPTIONS = st.fixed_dictionaries(
    {
        "bias": st.booleans(),
        "outputs": st.sampled_from([1, 2]),
        "branch": st.sampled_from([None, BETA]),
        "rule": st.sampled_from(["plain", "decay", "momentum", "heat"]),
        "depth": st.sampled_from([1, 2]),
    }
)
NUMBERS = {"beta": 0.7, "lam": 0.3, "m": 0.5, "T": 0.2, "eta": 0.25, "P": SAMPLES}
SLOW = settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def theory(bias, outputs, branch, rule, depth):
    more = {
        "plain": {},
        "decay": {"weight_decay": DECAY},
        "momentum": {"momentum": MOMENTUM},
        "heat": {"weight_decay": DECAY, "temperature": HEAT},
    }[rule]
    program = mlp(depth, bias=bias, outputs=outputs, branch=branch, **more)
    return mean_field(program.at_depth(depth)).at_depth(depth)


def solved(options, gamma0=1.1, scale=1.0, order=(0, 1)):
    kernel = np.array([[1.0, 0.4], [0.4, 0.9]])[np.ix_(order, order)]
    y = scale * np.array([[1.0, 0.3], [-0.5, 0.8]])[list(order)]
    data = {"K_x": kernel, "y": y if options["outputs"] == 2 else y[:, 0]}
    return evaluate(theory(**options), steps=STEPS, values={**NUMBERS, "gamma0": gamma0}, data=data)


def kernels(found):
    return {place: value for place, value in found.values.items() if place[0] in ("H", "G")}


@SLOW
@given(OPTIONS)
def test_covariances_are_positive_and_symmetric(options):
    found = solved(options)
    for (name, layer), value in kernels(found).items():
        half = (value.ndim - 2) // 2
        axes = (*range(half), value.ndim - 2, *range(half, 2 * half), value.ndim - 1)
        whole = value.transpose(axes)
        square = whole.reshape(int(np.sqrt(whole.size)), -1)
        assert np.allclose(square, square.T, atol=1e-12), (name, layer)
        eigenvalues = np.linalg.eigvalsh(square)
        assert eigenvalues[0] > -1e-10 * eigenvalues[-1], (name, layer)


@SLOW
@given(OPTIONS.filter(lambda x: x["depth"] == 2))
def test_nothing_responds_to_its_future(options):
    """Two layers that respond to each other."""
    found = solved(options)
    flags = {q.name: q.causal for q in theory(**options).responses()}
    seen = 0
    for (name, _), value in found.values.items():
        if name in flags:
            seen += 1
            reach = 0 if flags[name] == "strict" else 1  # the first s that must vanish is t, or t + 1
            for t in range(STEPS):
                assert not value[..., t, t + reach :].any(), name
    assert seen == len(theory(**options).responses()) > 0


@SLOW
@given(OPTIONS, st.floats(0.3, 3.0))
def test_larger_targets_are_a_richer_network(options, scale):
    """gamma0 f depends on gamma0 y only: targets c y at gamma0/c give the same features and outputs c f."""
    one, two = solved(options), solved(options, gamma0=1.1 / scale, scale=scale)
    for place, value in kernels(one).items():
        assert np.allclose(value, two.values[place], rtol=1e-9, atol=1e-10), place
    assert np.allclose(scale * one.value("f"), two.value("f"), rtol=1e-9, atol=1e-10)


@SLOW
@given(OPTIONS)
def test_samples_have_no_order(options):
    one, two = solved(options), solved(options, order=(1, 0))
    assert np.allclose(one.value("f"), two.value("f")[:, ::-1], rtol=1e-9, atol=1e-11)


@SLOW
@given(OPTIONS.filter(lambda x: x["rule"] in ("plain", "momentum")))
def test_a_lazy_network_keeps_its_kernels(options):
    """At small gamma0 features move by gamma0^2, so a hundredth of it moves them ten thousand times less."""
    moved = []
    for gamma0 in (0.1, 0.001):
        found = kernels(solved(options, gamma0=gamma0))
        moved.append(max(np.abs(v - v[..., :1, :1]).max() for v in found.values()))
    assert moved[0] > 0
    assert moved[1] == pytest.approx(moved[0] * 1e-4, rel=0.1)
