"""Ensembles and widths of validity against networks with one hidden layer, exactly and in samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Rational, S, Symbol, simplify

from derive.calculus.symbols import eta, gamma0, t
from derive.errors import NotApplicable
from derive.program.centring import centred
from derive.program.networks.random_data import N
from derive.scale.fluctuations import (
    best_ensemble,
    ensemble_law,
    lazy_fluctuations,
    width_validity,
    wishart_recursion,
)
from derive.scale.fluctuations.ensembles import E, bias, cost, shift, spread, variance
from numerics.fluctuations.gram import GramNetworks
from tests.chance import excess
from tests.derive.once import mlp
from tests.numerics.fluctuations.one_layer import OneLayer, exact_moments, leading_order

DATA = {"K_x": np.array([[1.2, 0.4], [0.4, 0.7]]), "y": np.array([1.1, -0.8])}


def without_linear(error: Any, control: Any, parts: int) -> Any:
    """Return mean losses of parts of the networks, with controls of mean zero regressed out."""
    losses = ((error**2).sum(axis=1) / 2).reshape(parts, -1)
    controls = control.reshape(parts, -1, control.shape[1])
    columns = [np.column_stack([np.ones(len(x)), x]) for x in controls]
    return np.array([np.linalg.lstsq(x, y, rcond=None)[0][0] for x, y in zip(columns, losses, strict=True)])


def test_the_loss_of_several_networks() -> None:
    """N (mean loss - loss) at three widths, for one and for four networks, against the law."""
    steps, rate, richness, count = 4, 0.15, 0.8, 32_000
    reference = leading_order(OneLayer(DATA["K_x"], DATA["y"], rate, steps, richness))
    law, f, y = ensemble_law(mlp(1)), Symbol("f", real=True), Symbol("y", real=True)
    expected = np.zeros(2)
    loss = 0.0
    for k in range(2):
        put = {
            f: reference.limit("f")[steps, k],
            y: DATA["y"][k],
            shift: reference.scaled_shift("f")[steps, k],
            variance: reference.scaled_variance("f")[steps, k],
        }
        added = ((law.expected() - law.loss) * N).subs(put).expand()
        expected += [float(added.subs(E, members)) for members in (1, 4)]
        loss += float(law.loss.subs(put))
    networks = GramNetworks(wishart_recursion(mlp(1)), 2, DATA, {eta: rate, gamma0: richness})
    rng, widths, parts = np.random.default_rng(3), (16, 32, 64), 40
    scaled = []
    for width in widths:
        M = networks.draw(width, count, rng)
        gap = (M - networks.start)[:, *np.triu_indices(3)]
        error = networks.train(M, steps)["error"][:, -1]
        groups = [x.reshape(-1, 4, x.shape[1]).mean(axis=1) for x in (error, gap)]
        scaled.append([width * (without_linear(*x, parts) - loss) for x in ((error, gap), groups)])
    weights = np.linalg.solve(np.vander([1 / n for n in widths], 3, increasing=True).T, [1, 0, 0])
    limit = np.einsum("w,wep->pe", weights, scaled)
    error = limit.std(axis=0, ddof=1) / parts**0.5
    assert excess((limit.mean(axis=0) - expected) / error, parts - 1) < 1
    assert (5 * error < np.abs(expected[0] - expected[1])).all()  # both are distinguished


def test_the_best_number_of_networks() -> None:
    """The minimum over widths at a fixed cost, by hand for p = 2, and by numbers."""
    best = best_ensemble(2)
    assert str(best.members) == "b/a"
    assert str(best.beats()) == "b/a > 1"
    assert best_ensemble(1).members == 0
    for power, order in ((2, 1), (2, 2), (3, 1), (Rational(3, 2), 2)):
        found = best_ensemble(power, order)
        put = {bias: 0.7, spread: 2.1, cost: 5000.0}
        width, members = (float(x.subs(put)) for x in (found.width, found.members))
        assert members * width ** float(power) == pytest.approx(5000.0)
        grid = width * np.array([0.9, 1.0, 1.1])
        losses = 0.7 / grid**order + 2.1 / grid * grid ** float(power) / 5000.0
        assert losses.argmin() == 1
    with pytest.raises(NotApplicable, match="of at least 1"):
        best_ensemble(Rational(1, 2))
    flat = ensemble_law(mlp(1)).best()
    assert flat.order == 1
    assert "a > 0" in flat.conditions()[1]


def test_lazy_networks_with_centred_outputs_lose_nothing_by_being_wide() -> None:
    """Bias and variance add the same to the loss in flow: one network is as good as any at the cost E N^2."""
    program = centred(mlp(2, "tanh", rule="flow"))
    law = ensemble_law(program).of_lazy(lazy_fluctuations(program))
    assert simplify(law.bias - law.spread) == 0
    steps = centred(mlp(1))
    law = ensemble_law(steps).of_lazy(lazy_fluctuations(steps))
    assert simplify(law.spread / law.bias - t / (t - 1)) == 0
    with pytest.raises(NotApplicable, match="centred outputs"):
        ensemble_law(mlp(1)).of_lazy(lazy_fluctuations(mlp(1)))


def test_the_width_below_which_the_leading_order_fails() -> None:
    """Two orders in 1/N of the exact loss of lazy networks at late times; their ratio is t^2 N Var K."""
    assert str(width_validity(mlp()).late) == "V_K*eta**2*t**2/(eta*lamda_k - 1)**2"
    found = width_validity(centred(mlp(rule="flow")))
    assert (str(found.late), found.output_width) == ("V_K*t**2", 0)
    ratios = []
    for time in (2.0, 4.0):
        network = OneLayer(np.ones((1, 1)), np.ones(1), time, 1, 0.01, centred=True, flow=True)
        widths = np.array([1.0, 2.0, 4.0]) * 100 * (1 + 4 * time**2)
        moments = [exact_moments(network, int(n))["loss"] for n in widths]
        scaled = [n * (x.mean[1] / x.limit[1] - 1) for n, x in zip(widths, moments, strict=True)]
        first, second, _ = np.linalg.solve(np.vander(1 / widths, 3, increasing=True), scaled)
        ratios.append(second / first / float(found.at(S(4), S.Zero).kernel_width.subs(t, time)))
    # the skewness of K adds a share of 1/time
    assert 2 * ratios[1] - ratios[0] == pytest.approx(1, abs=1e-3)  # gamma0^2 is 1e-4


def test_the_width_at_which_outputs_are_as_large_as_targets() -> None:
    found = width_validity(mlp(1, rule="flow")).of_one_sample()
    assert str(found.output_width) == "K_x(mu, mu)/(gamma0**2*y**2)"
    assert str(found.late) == "4*t**2*K_x(mu, mu)**2"
    assert len(found.statements()) == 2
