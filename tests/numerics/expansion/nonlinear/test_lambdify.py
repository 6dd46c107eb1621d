"""Tests of coefficients by plain lambdify, with arrays for their functions, against the evaluation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from sympy import DiracDelta, Function, lambdify, tanh

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.symbols import L, P, alpha, ell, eta, gamma0, mu, s, t
from derive.expansion.nonlinear import expand_kinks, expand_nonlinear
from derive.expansion.nonlinear.trees import ForestCoefficient
from numerics.expansion import series
from numerics.expansion import trees as evaluation
from numerics.expansion.coefficients import Setting
from numerics.expansion.statics import Statics
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from tests.derive.once import mean_field, mlp

KERNEL, TARGETS, STEPS, DEPTH, RATE = np.array([[1.0, 0.3], [0.3, 0.8]]) / 4, np.array([1.0, -0.6]), 3, 2, 0.3
TIMES = np.arange(STEPS + 1)
SYMBOLS = (ell, mu, alpha, t, s, L, P, eta)


class Numbers:
    """Network of two layers: its evaluated coefficients, and the functions that occur in them."""

    def __init__(self, activation: str, order: int) -> None:
        tables = {
            "network": {"depth": DEPTH, "activation": activation},
            "training": {"learning_rate": RATE, "steps": STEPS, "loss": "sum"},
        }
        run = Experiment.from_dict(tables, kernel=KERNEL.tolist(), targets=TARGETS.tolist())
        self.series = series(run, order)
        statics = Statics(self.series, DEPTH, KERNEL, 1e-12, frozenset())
        self.found = evaluation.Evaluation(Setting(Problem.of(run)), statics)
        self.kernel = cache(lambda name, n, layer: self.found.kernel(name, n, layer, TIMES))
        self.functions = dict(self._functions())

    def v(self, *at: int, start: int = 0) -> float:
        """Return iterated sums of the error at order 0, for samples and then the time."""
        if len(at) == 1:
            return 1.0
        first, *rest, now = at
        before = self.found.weight[now] * self.found.errors[0][:, first - 1]
        return float(sum(before[i] * self.v(*rest, i, start=start) for i in range(start, now)))

    def _functions(self) -> Any:
        yield "v", self.v
        yield "v_since", lambda *at: self.v(*at[:-1], start=at[-1] + 1)
        yield "K_x", lambda a, b: KERNEL[a - 1, b - 1]
        yield "y", lambda a: TARGETS[a - 1]
        for n in self.series.errors:
            yield f"Delta{n}", lambda a, now, n=n: self.found.errors[n][now, a - 1]
            for x in ("Phi", "G", "A", "B") if n else ():
                yield (
                    f"{x}{n}",
                    lambda at, a, b, i, j, x=x, n=n: self.kernel(x, n, at)[i, a - 1, j, b - 1],
                )
            for x in ("C", "D") if n else ():
                yield f"{x}{n}", lambda *place, x=x, n=n: self.value(x, n, *place)
        for name in ("Phi", "G", "A", "C", "D"):
            for shape in self.series.forests(name, 0):
                mark = "_now" if shape[0].marked else ""
                yield f"{name}0{mark}", partial(self.tensor, ForestCoefficient(name, 0, shape))

    def tensor(self, x: ForestCoefficient, layer: int, *samples: int) -> float:
        """Return a static coefficient."""
        return float(self.found.statics.value(x, layer)[tuple(i - 1 for i in samples)])

    @cache  # noqa: B019
    def compiled(self, name: str, n: int) -> Callable[..., float]:
        """Return a coefficient as a compiled function of a symbolic layer."""
        return lambdify(SYMBOLS, self.series.coefficient(name, n), modules=[self.functions, "numpy"])

    def value(self, name: str, n: int, *place: int) -> float:
        """Return the coefficient at (layer, mu, alpha, t, s)."""
        return float(self.compiled(name, n)(*place, DEPTH, len(TARGETS), RATE))


@cache
def numbers() -> Numbers:
    return Numbers("h + h**2/4", 2)


PLACES = [(1, 1, 1, 2, 1), (1, 2, 1, 3, 1), (1, 1, 1, 2, 2), (1, 2, 1, 1, 2), (2, 2, 1, 1, 2)]
"""Layer, samples, times: the earlier one second, equal, the other way round."""


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("K", 2),
        pytest.param("Phi", 0, marks=pytest.mark.slow),
        *(pytest.param(x, 2, marks=pytest.mark.slow) for x in ("Phi", "G", "A", "B")),
    ],
)
def test_kernels(name: str, n: int) -> None:
    """A polynomial phi, whose averages have closed forms: every layer, up to rounding."""
    ours = numbers()
    for layer, a, b, now, past in PLACES[::2] if name == "K" else PLACES[: 4 if name in "AB" else 5]:
        whole = ours.found.tangent(n, TIMES) if name == "K" else ours.kernel(name, n, layer)
        expected = whole[now, a - 1, past, b - 1]
        assert ours.value(name, n, layer, a, b, now, past) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("n", [0, 2])
def test_error_and_loss(n: int) -> None:
    """The error solves its own equation, in which it stands at both sides."""
    ours, errors = numbers(), numbers().found.errors
    loss = np.mean(sum(errors[k] * errors[n - k] for k in range(0, n + 1, 2)), axis=1)
    for _, a, b, now, past in PLACES[::2]:
        assert ours.value("Delta", n, 0, a, b, now, past) == pytest.approx(errors[n][now, a - 1], rel=1e-9)
        assert ours.value("loss", n, 0, a, b, now, past) == pytest.approx(loss[now], rel=1e-9)


@pytest.mark.parametrize(
    ("modules", "variables"),
    [("scipy", 1), ("mpmath", 1), pytest.param("scipy", 2, marks=pytest.mark.slow)],
)
def test_averages_without_a_closed_form(modules: str, variables: int) -> None:
    """They become integrals over standard normal numbers."""
    lazy = expand_nonlinear(mean_field(mlp(1, tanh)), 0)
    K = np.array([[1.0, 0.3], [0.3, 0.8]])
    e = lazy.coefficient("Phi", 0)
    e = e.subs(alpha, mu) if variables == 1 else e
    f = lambdify((mu, alpha), e, [{"K_x": lambda a, b: K[a - 1, b - 1]}, modules])
    z = np.linspace(-8, 8, 161)
    w = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    u = np.linalg.cholesky(K) @ np.stack(np.meshgrid(z, z, indexing="ij")).reshape(2, -1)
    expected = np.tanh(u[0]) * np.tanh(u[variables - 1]) @ np.outer(w, w).ravel()
    assert float(f(1, variables)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_the_whole_series() -> None:
    """The sum of the known orders, as the expansion's own lambdify has it."""
    ours = numbers()
    f = ours.series.lambdify("Phi", *SYMBOLS, modules=[ours.functions, "numpy"])
    place = PLACES[1]
    expected = ours.value("Phi", 0, *place) + 0.04 * ours.value("Phi", 2, *place)
    assert f(0.2, *place, DEPTH, len(TARGETS), RATE) == pytest.approx(expected)
    with pytest.raises(ValueError, match="has no definition"):
        ours.series.lambdify("Phi", *SYMBOLS)


def test_the_error_estimate_knows_the_small_parameter() -> None:
    assert numbers().series.error_estimate("Phi").has(gamma0)


def test_what_is_no_number_is_refused() -> None:
    """Averages over units at a kink, and densities in time, are evaluated by numerics only."""
    kinks = expand_kinks(mean_field(mlp(1, "relu")))
    with pytest.raises((NotImplementedError, ValueError, NameError, TypeError)):
        lambdify(SYMBOLS, kinks.coefficient("G", 1), [numbers().functions, "numpy"])(*PLACES[0], 1, 2, RATE)
    f = lambdify(mu, GaussianAverage(Function("phi")(mu), {(mu, mu): 1}), "scipy")
    with pytest.raises(NameError):
        f(1.0)
    assert expand_nonlinear(mean_field(mlp(L, tanh, "flow")), 0).coefficient("B", 0).has(DiracDelta)
