"""Tests of weights of samples in the loss: changed and unchanged parts of a program and its theory."""

from __future__ import annotations

from typing import Any

import pytest
from sympy import Derivative, Eq, Function, MatrixSymbol, Rational, Symbol, diag, simplify

from derive.errors import NotApplicable
from derive.linear.lazy import lazy
from derive.program import L, P, P_train, Program, alpha, eta, gamma0, mu, s, t
from derive.reduce import equilibrium, ridge
from derive.theory.routes import check_routes
from tests.derive.once import error_projected, mean_field, mlp, two_layer

C = Symbol("C", integer=True, positive=True)
lam, T, beta = (Symbol(n, positive=True) for n in ("lambda", "T", "beta"))
rho, y, f, Delta, H, G, K_x = (Function(n) for n in ("rho", "y", "f", "Delta", "H", "G", "K_x"))

NETWORKS: dict[str, dict[str, Any]] = {
    "linear": {},
    "tanh": {"activation": "tanh"},
    "bias, outputs": {"activation": "tanh", "bias": True, "outputs": C},
    "residual": {"activation": "relu", "branch": beta},
    "decay": {"activation": "tanh", "weight_decay": lam},
    "temperature": {"weight_decay": lam, "temperature": T, "rule": "flow"},
    "momentum": {"momentum": beta},
    "integrator": {"activation": "tanh", "rule": "multistep", "weight_decay": lam},
    "widths": {"activation": "tanh", "relative_widths": "a", "init_variance": "sigma"},
    "backward": {"activation": "tanh", "tied": False},
}

QUICK = {"bias, outputs"}


def weighted(**options: Any) -> Program:
    return mlp(options.pop("depth", L), loss="mean", sample_weights=True, **options)


@pytest.mark.parametrize(
    "name", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in NETWORKS]
)
def test_both_routes_derive_one_theory(name: str) -> None:
    assert check_routes(weighted(**NETWORKS[name])) == []


@pytest.mark.parametrize(
    "name",
    [
        x if x in ("bias, outputs", "temperature", "momentum") else pytest.param(x, marks=pytest.mark.slow)
        for x in NETWORKS
    ],
)
def test_only_the_error_and_the_mean_change(name: str) -> None:
    """With weights one it is the program without them."""
    found, plain = weighted(**NETWORKS[name]), mlp(loss="mean", **NETWORKS[name])
    alike = found.map(lambda e: e.replace(rho, lambda _: 1))
    assert [(d.lhs, d.rhs) for d in alike.definitions] == [(d.lhs, d.rhs) for d in plain.definitions]
    assert [w.update for w in found.trained()] == [w.update for w in plain.trained()]
    assert found.rule.memory(t, s)[1].subs(P_train, P) == plain.rule.memory(t, s)[1]
    assert found.constants == (plain.constants[0], "rho", *plain.constants[1:])


def test_the_error_is_minus_the_slope_of_the_weighted_loss() -> None:
    out = Symbol("f")
    (error,) = (d.rhs for d in weighted().definitions if d.name == "Delta")
    loss = rho(mu) * (y(mu) - out) ** 2 * Rational(1, 2)
    assert (error.subs(f(mu, t), out) + loss.diff(out)).expand() == 0


def test_the_mean_divides_by_the_sum_of_weights() -> None:
    assert weighted().rule.rate == eta / P_train
    assert mlp(loss="mean").rule.rate == eta / P
    assert mlp(loss="sum", sample_weights=True).rule.rate == eta


def test_the_tangent_kernel_does_not_know_weights() -> None:
    options = NETWORKS["bias, outputs"]
    found, plain = (mean_field(p).observables for p in (weighted(**options), mlp(loss="mean", **options)))
    assert len(found) == 1
    assert found[0].rhs == plain[0].rhs


def test_the_lazy_limit_drives_by_the_samples_that_count() -> None:
    """K Delta moves every output; the error of a sample follows by its weight."""
    found = lazy(mean_field(mlp(rule="flow", sample_weights=True)))
    plain = lazy(mean_field(mlp(rule="flow")))
    assert found.output == plain.output
    assert found.error == Eq(Derivative(Delta(mu, t), t), rho(mu) * plain.error.rhs, evaluate=False)


def test_the_error_projection_is_as_without() -> None:
    found, plain = (error_projected(mean_field(mlp(sample_weights=x))) for x in (True, False))
    assert found.equations == plain.equations
    assert found.order_parameters == plain.order_parameters


def test_two_layers_close_on_outputs_and_divide_by_no_weight() -> None:
    found = two_layer(mean_field(mlp(1, rule="flow", sample_weights=True)))
    assert len(found.closed) == 4
    moved = found.rate("f")
    assert found.rate("Delta").expand() == (-rho(mu) * moved).expand()
    assert not any(e.rhs.has(1 / rho(mu), 1 / rho(alpha)) for e in found.closed)
    plain = two_layer(mean_field(mlp(1, rule="flow")))
    back = {f(i, t): y(i) - Delta(i, t) for i in (mu, alpha)}
    for name in ("H", "G", "Delta"):
        same = found.rate(name).xreplace(back).replace(rho, lambda _: 1)
        assert (same - plain.rate(name)).subs(P, 2).doit().expand() == 0


def test_reductions_that_know_no_weights_refuse_them() -> None:
    noisy = weighted(depth=2, activation="relu", rule="flow", weight_decay=lam, temperature=T)
    with pytest.raises(NotApplicable, match="sample_weights"):
        equilibrium.equilibrium(mean_field(noisy))


def test_the_representer_theorem_with_weights() -> None:
    """Two samples, the second a test point: its output is that of another input."""
    quiet = weighted(depth=2, activation="relu", rule="flow", weight_decay=lam)
    counts = {MatrixSymbol("rho", 2, 2): diag(1, 0), P_train: 1}
    outputs = ridge.representer(mean_field(quiet)).trained.subs(P, 2).doit()
    plain = ridge.representer(mean_field(mlp(2, "relu", "flow", weight_decay=lam)))
    single, elsewhere = (x.subs(P, 1).doit().as_explicit() for x in (plain.trained, plain.anywhere))
    first, second = outputs.subs(counts).as_explicit()
    K, k, y = (MatrixSymbol(n, m, c) for n, m, c in (("K", 2, 2), ("k", 1, 1), ("y", 2, 1)))
    one = {MatrixSymbol("K", 1, 1)[0, 0]: K[0, 0], k[0, 0]: K[1, 0], MatrixSymbol("y", 1, 1)[0, 0]: y[0, 0]}
    assert simplify(first - single[0].subs(one)) == 0
    assert simplify(second - elsewhere[0].subs(one)) == 0


def test_gamma0_is_no_part_of_the_weight() -> None:
    updates = [w.update.coefficient for w in weighted().trained()]
    assert all(u == gamma0 * Delta(alpha, t) for u in updates)
