"""The derived theories of linear2025 against finite networks, trained by matrix products and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sympy import Function, Sum, Symbol

from derive.program import GradientDescent, eta, gamma0, s, t
from derive.program.networks.random_data import alpha, alpha_B, nu, sigma
from derive.theory import Term, Theory
from tests.chance import excess
from tests.derive.once import isotropic, mean_field
from tests.derive.theory.isotropic_march import March

Array = np.ndarray[Any, np.dtype[np.float64]]
beta, lam = Symbol("beta", positive=True), Symbol("lam", positive=True)
STEPS, RATE, RICH, WIDE, SAMPLES, NOISE, BRANCH, DECAY = 4, 0.15, 0.8, 0.8, 1.5, 0.3, 0.6, 0.1


@dataclass(frozen=True)
class Network:
    """A finite network in the paper's own normalisation (eq. 1-5), with all its options."""

    depth: int
    features: int
    widths: tuple[float, ...]
    data: str = "full-batch"
    noise: float = 0.0
    center: bool = False
    branch: float | None = None
    outputs: int = 1
    gamma: float = RICH
    decay: float = 0.0

    def start(self, rng: np.random.Generator) -> tuple[list[Array], Array]:
        sizes = [self.features, *(round(n * self.features) for n in self.widths)]
        weights = [rng.normal(size=(b, a)) for a, b in pairwise(sizes)]
        return weights, rng.normal(size=(sizes[-1], self.outputs))

    def through(self, W: Array, x: Array, layer: int, up: bool) -> Array:
        """Return one layer applied forwards or backwards."""
        y = (W if up else W.T) @ x / np.sqrt(W.shape[1])
        return y if layer == 0 or self.branch is None else x + self.branch * y

    def function(self, weights: list[Array], w: Array) -> tuple[list[Array], Array]:
        """Return the backward fields and the coefficients ``xi`` of the function f(x) = xi.x/sqrt(D)."""
        g = [w]
        for layer in range(self.depth - 1, 0, -1):
            g.insert(0, self.through(weights[layer], g[0], layer, up=False))
        xi = np.sqrt(self.features) / (len(w) * self.gamma) * weights[0].T @ g[0]
        return g, xi

    def run(self, seed: int) -> Array:
        """Return C_v, C_Delta, C_h of the last and C_g of the first layer at each step."""
        rng = np.random.default_rng(seed)
        weights, w = self.start(rng)
        D, P, C = self.features, round(SAMPLES * self.features), self.outputs
        target, X, eps = rng.normal(size=(D, C)), rng.normal(size=(P, D)), rng.normal(size=(P, C))
        found, first = [], self.function(weights, w)[1] * self.center
        for _ in range(STEPS):
            g, xi = self.function(weights, w)
            v = target - xi + first
            if self.data == "online":
                X, eps = rng.normal(size=(P, D)), rng.normal(size=(P, C))
            Delta = X @ v / np.sqrt(D) + self.noise * eps
            h = [v if self.data == "population" else np.sqrt(D) / P * X.T @ Delta]
            for layer, W in enumerate(weights):
                h.append(self.through(W, h[-1], layer, up=True))
            found.append([float(np.mean(x[:, 0] ** 2)) for x in (v, Delta, h[-1], g[0])])
            weights, w = self.step(weights, w, h, g)
        return np.array(found)

    def step(
        self, weights: list[Array], w: Array, h: list[Array], g: list[Array]
    ) -> tuple[list[Array], Array]:
        """Apply Eq. 4, with the factor of the branch if the network has one."""
        new = []
        for layer, W in enumerate(weights):
            branch = 1.0 if layer == 0 or self.branch is None else self.branch
            new.append(
                (1 - self.decay) * W
                + RATE * self.gamma * branch / np.sqrt(W.shape[1]) * g[layer] @ h[layer].T
            )
        return new, (1 - self.decay) * w + RATE * self.gamma * h[-1]


VALUES = {
    nu: WIDE,
    alpha: SAMPLES,
    alpha_B: SAMPLES,
    sigma: NOISE,
    beta: BRANCH,
    eta: RATE,
    gamma0: RICH,
    lam: DECAY,
}
UNEVEN = (0.7, 1.3, 0.9)
CASES: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "full batch, noise": (2, {"noise": NOISE}, {"noise": True}),
    "one hidden layer": (1, {}, {}),
    "online, noise": (2, {"data": "online", "noise": NOISE}, {"data": "online", "noise": True}),
    "population": (3, {"data": "population"}, {"data": "population"}),
    "centred": (2, {"center": True}, {"center": True}),
    "residual, population": (
        3,
        {"data": "population", "branch": BRANCH},
        {"data": "population", "branch": beta},
    ),
    "residual, full batch": (3, {"branch": BRANCH}, {"branch": beta}),
    "unequal widths": (3, {"widths": UNEVEN}, {"widths": Function("nu", positive=True)}),
    "two outputs": (2, {"outputs": 2}, {"outputs": 2}),
    "weight decay": (2, {"decay": DECAY}, {"rule": GradientDescent(eta, decay=lam)}),
    "NTK": (2, {"gamma": RICH / np.sqrt(WIDE)}, {"parametrization": "ntk"}),
    "residual, online, centred, two outputs, noise": (
        2,
        {"branch": BRANCH, "data": "online", "center": True, "outputs": 2, "noise": NOISE},
        {"branch": beta, "data": "online", "center": True, "outputs": 2, "noise": True},
    ),
}


def simulated(
    depth: int, options: dict[str, Any], seeds: int = 24, features: int = 300
) -> tuple[Array, Array]:
    """Return means and their standard errors."""
    network = Network(depth, features, **{"widths": (WIDE,) * depth, **options})
    found = np.array([network.run(seed) for seed in range(seeds)])
    return found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(seeds)


def predicted(theory: Theory, depth: int, outputs: int | None = None, gamma: float = RICH) -> Array:
    """Return the same from the theory."""
    march = March(theory, {**VALUES, gamma0: gamma}, functions={"nu": lambda layer: UNEVEN[layer - 1]})
    c = () if outputs is None else (1, 1)
    names: list[tuple[Any, ...]] = [("C_v",), ("C_Delta",), ("C_h", depth), ("C_g", 1)]
    has = {q.name for q in theory.order_parameters}
    return np.array(
        [[march(n, *i, *c, k, k) if n in has else np.nan for n, *i in names] for k in range(STEPS)]
    )


LONG = (
    "residual, online, centred, two outputs, noise",
    "one hidden layer",
    "centred",
    "residual, full batch",
    "two outputs",
    "NTK",
    "population",
    "online, noise",
    "residual, population",  # residual beside batches stays
    "unequal widths",  # numerics/simulation/test_steps.py has them in the default suite
)
"""Each option also stands in another case, or only moves gamma0."""


@pytest.mark.parametrize("case", [pytest.param(x, marks=pytest.mark.slow) if x in LONG else x for x in CASES])
def test_theory_agrees_with_finite_networks(case: str) -> None:
    """Losses and kernels at four steps, each within what chance allows."""
    depth, network, program = CASES[case]
    mean, error = simulated(depth, network)
    theory = predicted(mean_field(isotropic(**program)).at_depth(depth), depth, program.get("outputs"))
    z = (mean - theory) / error
    assert excess(z[~np.isnan(z)]) < 1, np.round(z, 1)


@pytest.mark.parametrize(("data", "branch"), [("full-batch", None), ("full-batch", BRANCH)])
def test_the_networks_step_is_the_gradient(data: str, branch: float | None) -> None:
    """Against differences of the loss: theta -= eta gamma0^2 N d/dtheta of half the mean squared error."""
    net = Network(2, 6, (1.0, 1.0), branch=branch, outputs=2)
    rng = np.random.default_rng(0)
    weights, w = net.start(rng)
    X, y = rng.normal(size=(9, 6)), rng.normal(size=(9, 2))

    def loss(weights: list[Array], w: Array) -> float:
        return float(np.sum((y - X @ net.function(weights, w)[1] / np.sqrt(6)) ** 2)) / 18

    g, xi = net.function(weights, w)
    h = [np.sqrt(6) / 9 * X.T @ (y - X @ xi / np.sqrt(6))]
    for layer, W in enumerate(weights):
        h.append(net.through(W, h[-1], layer, up=True))
    new, new_w = net.step(weights, w, h, g)
    for k, old in enumerate([*weights, w]):
        for i, j in ((0, 0), (3, 1)):
            shift = [np.zeros_like(x) for x in (*weights, w)]
            shift[k][i, j] = 1e-5
            up, down = ([x + sign * d for x, d in zip((*weights, w), shift, strict=True)] for sign in (1, -1))
            slope = (loss(up[:-1], up[-1]) - loss(down[:-1], down[-1])) / 2e-5
            moved = ([*new, new_w][k] - old)[i, j]
            assert moved == pytest.approx(-RATE * RICH**2 * 6 * slope, rel=1e-6)


# -- printed alternatives ------------------------------------------------------------------------------------


def changed(theory: Theory, name: str, fun: Any) -> Theory:
    """Return a theory with the terms of one field's equations changed."""

    def term(x: Term) -> Term:
        return x.with_expression(fun(x))

    return replace(
        theory,
        equations=tuple(
            replace(e, terms=tuple(map(term, e.terms))) if e.name == name else e for e in theory.equations
        ),
    )


def strict(x: Term) -> Any:
    """Return responses of earlier times only, as printed in eq. 11, 14, 65, 74, 100."""
    if isinstance(x.expr, Sum) and x.kind == "response":
        return Sum(
            x.expr.function, *[(lim[0], lim[1], t - 1) if lim[0] == s else lim for lim in x.expr.limits]
        )
    return x.expr


def rich(x: Term) -> Any:
    """Return the memory of the error with eta gamma0 instead of eta, as printed in eq. 65 and 100."""
    return gamma0 * x.expr if x.kind == "memory" else x.expr


@pytest.mark.parametrize(
    ("field", "fun", "gamma"), [("h", strict, RICH), ("h0", strict, RICH), ("v", rich, 2.0)]
)
def test_what_is_printed_differs_from_finite_networks(field: str, fun: Any, gamma: float) -> None:
    """Each of three printed forms is excluded at more than eight standard errors, where the theory is not."""
    mean, error = simulated(2, {"gamma": gamma})
    theory = mean_field(isotropic())
    derived, printed = (
        (mean - predicted(x.at_depth(2), 2, gamma=gamma)) / error
        for x in (theory, changed(theory, field, fun))
    )
    assert excess(derived[~np.isnan(derived)]) < 1, np.round(derived, 1)
    assert np.nanmax(abs(printed)) > 8, np.round(printed, 1)
