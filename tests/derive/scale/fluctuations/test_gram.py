"""The recursion of Gram matrices against gradient descent of networks, and exact moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Symbol

from derive.calculus.symbols import eta, gamma0
from derive.program import Program
from derive.program.centring import centred
from derive.program.networks.random_data import N
from derive.scale.fluctuations import one_sample, wishart_recursion
from numerics.fluctuations.gram import GramNetworks
from tests.chance import excess
from tests.derive.once import kept, mlp
from tests.numerics.fluctuations.one_layer import OneLayer, exact_moments, recursion

gram = kept(wishart_recursion)
RATE, RICHNESS, DECAY = 0.07, 0.8, 0.3
VALUES = {eta: RATE, gamma0: RICHNESS, Symbol("lam", positive=True): DECAY}
SAMPLES, OUTPUTS = 3, 2


def data(rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    """Return inputs (P, D), and kernels and targets."""
    x = rng.standard_normal((SAMPLES, 4))
    return x, {"K_x": x @ x.T / 4, "y": rng.standard_normal(SAMPLES)}


def descent(
    x: Any, y: Any, width: int, steps: int, decay: float, rng: np.random.Generator
) -> tuple[Any, Any]:
    """Return outputs of one network under gradient descent, and its initial Gram matrix."""
    W, w = rng.standard_normal((width, x.shape[1])), rng.standard_normal((width, y.shape[1]))
    x = x / x.shape[1] ** 0.5
    V = np.concatenate([x @ W.T, w.T])
    series = []
    for _ in range(steps + 1):
        h = W @ x.T
        f = h.T @ w / (RICHNESS * width)
        error = y - f
        series.append(f)
        W, w = (
            (1 - RATE * decay) * W + RATE * RICHNESS * w @ error.T @ x,
            (1 - RATE * decay) * w + RATE * RICHNESS * h @ error,
        )
    return np.array(series), V @ V.T / width


@pytest.mark.parametrize(
    ("program", "decay", "outputs"),
    [
        (mlp(1), 0.0, 1),
        (mlp(1, weight_decay=Symbol("lam", positive=True)), DECAY, 1),
        (mlp(1, outputs=OUTPUTS), 0.0, OUTPUTS),
    ],
    ids=["plain", "decaying", "two outputs"],
)
def test_gram_matrices_move_as_networks_do(program: Program, decay: float, outputs: int) -> None:
    """At a width of two, below the number of fields."""
    rng = np.random.default_rng(1)
    x, arrays = data(rng)
    if outputs > 1:
        arrays["y"] = rng.standard_normal((SAMPLES, outputs))
    networks = GramNetworks(gram(program), SAMPLES, arrays, VALUES)
    f, M = descent(x, arrays["y"].reshape(SAMPLES, outputs), 2, 6, decay, rng)
    found = networks.train(M[None], 6)["f"][0]
    np.testing.assert_allclose(found, f.reshape(found.shape), rtol=1e-12, atol=1e-13)  # rounding


def test_many_networks_at_once_have_the_law_of_the_reference() -> None:
    """The same matrices at the start; and drawn ones have the moments of a Wishart matrix."""
    rng = np.random.default_rng(2)
    _, arrays = data(rng)
    networks = GramNetworks(gram(centred(mlp(1))), SAMPLES, arrays, VALUES)
    M = networks.draw(20, 4000, rng)
    order = [SAMPLES, *range(SAMPLES)]  # the reference has the readout first
    reference = recursion(
        OneLayer(arrays["K_x"], arrays["y"], RATE, 4, RICHNESS, centred=True), M[:5][:, order][:, :, order]
    )
    found = networks.train(M[:5], 4)
    np.testing.assert_allclose(
        arrays["y"] - found["error"], reference["f"], rtol=1e-12, atol=1e-14
    )  # rounding
    kernels = found["tangent_kernel"].reshape(reference["tangent_kernel"].shape)
    np.testing.assert_allclose(kernels, reference["tangent_kernel"], rtol=1e-12)
    gap = (M - networks.start).reshape(len(M), -1)
    S = networks.start
    variance = (S**2 + np.outer(np.diag(S), np.diag(S))).ravel() / 20
    z = gap.mean(axis=0) / (variance / len(M)) ** 0.5
    assert excess(z) < 1
    # 4000 values: the error of a variance is the root of two over their number, twice that for squares
    assert excess((gap.var(axis=0) / variance - 1) / (8 / len(M)) ** 0.5) < 1


@pytest.mark.parametrize("option", [False, True], ids=["plain", "centred"])
def test_moments_are_exact_at_every_width(option: bool) -> None:
    """Mean and variance after one step at N = 3 against Gauss and Laguerre's quadrature."""
    modes = one_sample(gram(centred(mlp(1)) if option else mlp(1)))
    network = OneLayer(np.array([[1.3]]), np.array([0.9]), RATE, 1, RICHNESS, option)
    reference = exact_moments(network, 3)
    f, K = modes.after(1)
    if option:
        f = f - modes.after(0)[0]
    put = {Symbol("K_x", positive=True): 1.3, Symbol("y", real=True): 0.9, eta: RATE, gamma0: RICHNESS, N: 3}
    for e, name in ((f, "f"), (K, "tangent_kernel")):
        e = e.subs({x: v for x, v in put.items() if x != N})
        mean, square = (float(modes.mean(x).subs(N, 3)) for x in (e, (e**2).expand()))
        assert mean == pytest.approx(reference[name].mean[1], rel=1e-11)  # rounding of the quadrature
        assert square - mean**2 == pytest.approx(reference[name].variance[1], rel=1e-11)


def test_the_mean_after_one_step_is_a_short_formula() -> None:
    modes = one_sample(gram(mlp(1)))
    f = modes.after(1)[0].subs(Symbol("K_x", positive=True), 1)
    assert str(modes.mean(f).factor()) == "2*eta*y*(N - eta)/N"
