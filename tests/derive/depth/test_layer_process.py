"""The process in layer time of deep nonlinear residual networks: its equations, its scheme, what has none."""

from __future__ import annotations

import pytest
from sympy import Expr, Function, Integer, Rational, Symbol, expand, simplify, sqrt, tanh
from sympy.core.function import AppliedUndef

from derive.depth import Scaling, layer_process
from derive.depth.layers import tau
from derive.depth.process import LayerProcess
from derive.errors import NotApplicable
from derive.program import L, adam, ell, eta, mu, t
from tests.derive.once import mean_field, mlp

beta, beta0 = Symbol("beta", positive=True), Symbol("beta0", positive=True)
ROOT = Scaling({beta: beta0 / sqrt(L)})


def process(**options: object) -> LayerProcess:
    return layer_process(mean_field(mlp(activation="tanh", branch=beta, **options)), ROOT)


def at_layers(e: Expr, layers: dict[str, Expr]) -> Expr:
    """Return functions of layer time as those of a layer.

    White noise becomes sources, responses are divided by their units.
    """

    def put(x: AppliedUndef) -> Expr:
        name = str(x.func)
        size = sqrt(L) if name in ("u", "r", "A", "B") else Integer(1)
        return size * x.func(layers[name], *x.args[1:])

    return e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in layers, put)


def test_noise_and_drift_of_the_stream() -> None:
    """By hand: ``dh = beta0 dU + dtau (...)``, backwards ``-dg = phi'(h) (beta0 dR + dtau (...))``."""
    found = process()
    u, r, h = (Function(n)(tau, mu, t) for n in "urh")
    white = {name: found.field(name).rhs.expand() for name in "hg"}
    assert white["h"].coeff(u) == beta0
    assert (white["g"].coeff(r) + beta0 * (1 - tanh(h) ** 2)).expand() == 0
    assert found.dropped == ()
    assert found.units == {"A": 1 / sqrt(L), "B": 1 / sqrt(L)}


@pytest.mark.slow
def test_the_scheme_of_the_process_is_the_theory_of_layers() -> None:
    """The increment of a layer is the rate over L, at the layers at which the theory reads each function."""
    theory, found = mean_field(mlp(activation="tanh", branch=beta)), process()
    up = {"u": ell + 1, "g": ell + 1, "A": ell, "Phi": ell, "h": ell}
    down = {"r": ell, "h": ell, "B": ell, "G": ell + 1, "g": ell + 1}
    z = theory.equation("z", ell).rhs
    for name, layers, sign in (("h", up, 1), ("g", down, -1)):
        e = theory.equation(name, ell + 1 if name == "h" else ell)
        stream = Function(name)(ell if name == "h" else ell + 1, mu, t)
        added = (e.rhs - stream).xreplace({Function("z")(ell, mu, t): z}).subs(beta, beta0 / sqrt(L))
        rate = sign * at_layers(found.field(name).rhs, layers)
        gap = expand((added - rate / L).doit())
        assert simplify(gap) == 0


def test_the_tangent_kernel_is_an_integral_over_layer_time() -> None:
    kernel = next(e for e in process().numbers if str(e.lhs.func) == "K")
    assert "Integral(beta0**2*G(tau" in str(kernel.rhs)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bias": True}, r"h\(ell \+ 1, mu, t\) has no limit of infinite depth: .* grows like L\*\*\(1\)"),
        ({"rule": adam(eta)}, r"grows like L\*\*\(1/2\)"),
    ],
)
def test_what_grows_with_the_depth_has_no_limit(options: dict[str, object], reason: str) -> None:
    """Updates of all biases add up, and steps that do not shrink with the gradient."""
    with pytest.raises(NotApplicable, match=reason):
        process(**options)


def test_another_power_of_the_depth() -> None:
    theory = mean_field(mlp(activation="tanh", branch=beta))
    with pytest.raises(NotApplicable, match="grows like"):
        layer_process(theory, Scaling({beta: beta0 / L ** Rational(1, 4)}))
    still = layer_process(theory, Scaling({beta: beta0 / L}))
    assert still.field("h").rhs == 0
    assert still.dropped
    assert "apart from vanishing terms" in still.conditions()[-2]
    with pytest.raises(NotApplicable, match="no residual stream"):
        layer_process(mean_field(mlp(activation="tanh")), ROOT)
    with pytest.raises(KeyError):
        process().field("z")
