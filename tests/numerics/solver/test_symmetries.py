"""Tests of properties of every network: causality, positivity, the lazy limit, symmetries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from numerics.solver import solve
from tests.numerics.solver.helpers import flow, gd, marched
from tests.reference.adams_weights import adams_weights

VARIABLES = ("error", "train_loss", "Phi", "G", "A", "B", "tangent_kernel")

depths = st.integers(1, 3)
seeds = st.integers(0, 10**6)


def problem(seed, samples):
    """Return a kernel with largest eigenvalue 1.5 and targets of order one."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, samples + 1))
    k = x @ x.T
    return 1.5 * k / np.linalg.eigvalsh(k)[-1], rng.uniform(-1.0, 1.0, samples)


def descent(depth, k, y, **changes):
    changes = {"rate": 0.15, "steps": 5, "gamma0": 1.1} | changes
    return solve(gd(depth, len(y), kernel=0.5 * (k + k.T), targets=y, **changes))


def differences(left, right):
    return {n: np.abs(left[n].values - right[n].values).max() for n in VARIABLES}


@given(depths, seeds, st.integers(1, 4))
@settings(max_examples=3)
def test_later_steps_change_nothing_earlier(depth, seed, samples):
    k, y = problem(seed, samples)
    short, long = descent(depth, k, y, steps=4), descent(depth, k, y, steps=7)
    for n in VARIABLES:
        cut = long[n].isel({d: slice(5) for d in ("time", "time_") if d in long[n].dims})
        assert np.array_equal(cut, short[n]), n


@given(depths, seeds, st.integers(1, 6))
@settings(max_examples=3)
def test_an_update_that_enters_at_a_step_moves_that_step_and_later_ones_only(depth, seed, step):
    """Change the weights with which past updates enter at ``step``: causality, and that the past matters."""
    k, y = problem(seed, 2)
    e = flow(depth, 2, kernel=k, targets=y, loss="sum")
    weights = adams_weights(np.arange(8) * 0.1, 2)
    changed = weights.copy()
    changed[step, :step] *= 1.5
    before, after = marched(e, weights), marched(e, changed)
    moved = np.abs(after.scalars["Delta"] - before.scalars["Delta"]).max(axis=1)
    assert (moved[:step] == 0.0).all()
    assert moved[step] > 0.0
    for pair, c in before.correlations.items():
        n, m = (before.sizes[i] for i in pair)
        assert np.array_equal(c[: step * n, : step * m], after.correlations[pair][: step * n, : step * m])
    for (i, k_), r in before.responses.items():
        n = before.sizes[i]
        assert np.array_equal(r[: step * n], after.responses[i, k_][: step * n])


@given(depths, seeds, st.integers(1, 3), st.floats(0.1, 2.0))
@settings(max_examples=3)
def test_kernels_are_symmetric_and_positive(depth, seed, samples, gamma0):
    k, y = problem(seed, samples)
    r = descent(depth, k, y, gamma0=gamma0)
    size = r.sizes["time"] * samples
    for H, G in zip(r.Phi.values, r.G.values, strict=True):
        H = H.transpose(0, 2, 1, 3).reshape(size, size)
        for c in (H, G):
            assert c == pytest.approx(c.T, abs=1e-13 * np.abs(c).max())
            assert np.linalg.eigvalsh(0.5 * (c + c.T))[0] > -1e-12 * np.abs(c).max()
    strictly_causal = np.triu(np.ones(r.G.shape[1:]))[None, :, :, None]
    for n in ("A", "B"):
        assert (r[n].values * strictly_causal == 0.0).all()


@pytest.mark.parametrize("rule", ["gd", pytest.param("flow", marks=pytest.mark.slow)])
@given(depths, seeds, st.integers(1, 3))
@settings(max_examples=2)
def test_small_gamma0_is_lazy(rule, depth, seed, samples):
    """H = K, G = 1, and the error follows the frozen tangent kernel (L + 1) K, step by step or exactly."""
    k, y = problem(seed, samples)
    values, vectors = np.linalg.eigh((depth + 1) * k)
    if rule == "gd":
        r = descent(depth, k, y, gamma0=1e-4)
        decay = (1 - 0.15 * values) ** r.time.values[:, None]
    else:
        e = flow(depth, samples, kernel=k, targets=y, gamma0=1e-4, loss="sum", points=3, rtol=1e-5)
        r = solve(e)
        decay = np.exp(-values * r.time.values[:, None])
    assert r.error.values == pytest.approx((decay * (vectors.T @ y)) @ vectors.T, abs=1e-5)
    assert np.abs(r.Phi.values - k).max() < 1e-6
    assert np.abs(r.G.values - 1.0).max() < 1e-6
    assert np.abs(r.tangent_kernel.values - (depth + 1) * k).max() < 1e-5


@given(depths, seeds)
@settings(max_examples=3)
def test_permuting_the_samples_permutes_the_results(depth, seed):
    k, y = problem(seed, 4)
    p = np.random.default_rng(seed).permutation(4)
    one, two = descent(depth, k, y), descent(depth, k[np.ix_(p, p)], y[p])
    assert max(differences(one.isel(sample=p, sample_=p), two).values()) < 1e-10


@given(depths, seeds)
@settings(max_examples=3)
def test_rotating_the_samples_rotates_the_results(depth, seed):
    """(K, y) -> (O K O^T, O y): a linear network has no preferred basis of samples."""
    k, y = problem(seed, 3)
    o = ortho_group.rvs(3, random_state=seed)
    one, two = descent(depth, k, y), descent(depth, o @ k @ o.T, o @ y)
    for n in ("Phi", "tangent_kernel"):
        assert np.abs(o @ one[n].values @ o.T - two[n].values).max() < 1e-10
    for n in ("error", "A", "B"):
        assert np.abs(one[n].values @ o.T - two[n].values).max() < 1e-10
    assert np.abs(one.G.values - two.G.values).max() < 1e-10
    assert np.abs(one.train_loss.values - two.train_loss.values).max() < 1e-10


@given(depths, seeds, st.floats(0.3, 3.0), st.floats(0.3, 3.0))
@settings(max_examples=3)
def test_joint_rescaling_of_kernel_targets_gamma0_and_rate(depth, seed, c, k0):
    """K -> c K, gamma0 -> k gamma0, y -> y sqrt(c)/k, eta -> eta/c.

    Inputs sqrt(c) times larger make every h so much larger and leave g alone; f = <g h>/gamma0 and Delta
    get the factor sqrt(c)/k; an update eta gamma0 Delta g h keeps its size when eta falls by c.
    """
    k, y = problem(seed, 3)
    one = descent(depth, k, y)
    a = np.sqrt(c) / k0
    two = descent(depth, c * k, a * y, gamma0=1.1 * k0, rate=0.15 / c)
    factors = {"error": a, "train_loss": a**2, "Phi": c, "G": 1.0, "A": a, "B": 1 / (np.sqrt(c) * k0)}
    for n, factor in (factors | {"tangent_kernel": c}).items():
        scale = max(1.0, factor)
        assert np.abs(factor * one[n].values - two[n].values).max() < 1e-10 * scale, n


@given(depths, seeds, st.integers(2, 3))
@settings(max_examples=2)
def test_repeating_every_sample_changes_nothing_in_the_mean_loss(depth, seed, times):
    k, y = problem(seed, 2)
    ones = np.ones((times, times))
    one = descent(depth, k, y, loss="mean")
    two = descent(depth, np.kron(ones, k), np.tile(y, times), loss="mean")
    two["B"] = times * two["B"]  # the response to one sample's source: each copy has its share
    assert max(differences(one, two.isel(sample=slice(2), sample_=slice(2))).values()) < 1e-10
    # and the summed loss takes the repetition as a larger rate
    three = descent(depth, np.kron(ones, k), np.tile(y, times), rate=0.15 / times)
    three["B"] = times * three["B"]
    one = descent(depth, k, y)
    assert max(differences(one, three.isel(sample=slice(2), sample_=slice(2))).values()) < 1e-10


def test_a_network_of_one_sample_learns_it():
    r = solve(gd(3, 1, kernel=np.eye(1), targets=np.ones(1), rate=0.1, steps=40))
    assert abs(float(r.error[-1, 0])) < 1e-6
    assert float(r.Phi[-1, -1, -1, 0, 0]) > 1.2  # features have grown


def test_no_targets_no_change():
    r = solve(gd(2, 2, targets=np.zeros(2)))
    assert float(np.abs(r.error).max()) == 0.0
    assert np.abs(r.Phi.values - r.Phi.values[:, :1, :1]).max() < 1e-14
