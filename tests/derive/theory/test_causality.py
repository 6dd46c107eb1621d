"""Tests of the responses at equal time, which are derived from the program."""

from __future__ import annotations

from dataclasses import replace

from sympy import Expr, Function, Integral, Sum, Symbol, tanh

from derive.calculus.averages import Average
from derive.program import (
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    L,
    Mean,
    Network,
    Population,
    Program,
    alpha,
    ell,
    eta,
    gamma0,
    mu,
    s,
    t,
)
from derive.theory import Theory
from derive.theory.applications import read
from derive.theory.path_integral import path_integral
from derive.theory.routes import check_routes
from tests.derive.once import mean_field, mlp
from tests.derive.programs import phi, recurrent, tau, there_and_back


def causal(theory: Theory) -> dict[str, str]:
    return {q.name: q.causal for q in theory.responses()}


def upper(theory: Theory, field: str, site: Expr) -> Expr:
    """Return the upper bound of the sum over the past in the response term of a field's equation."""
    (term,) = [x for x in theory.equation(field, site).terms if x.kind == "response"]
    assert isinstance(term.expr, Sum | Integral)
    return dict((lim[0], lim[2]) for lim in term.expr.limits)[s]


def test_linear_responses_are_strictly_causal() -> None:
    for theory in (mean_field(mlp()), path_integral(mlp()).theory()):
        assert causal(theory) == {"A": "strict", "B": "strict"}
        assert upper(theory, "h", ell + 1) == upper(theory, "g", ell) == t - 1


def test_a_nonlinear_gradient_feels_its_own_preactivation_at_once() -> None:
    """Check that g = phi'(h) z depends on u within the step.

    phi(h) does not depend on r.
    """
    for activation in (phi, tanh):
        for theory in (mean_field(mlp(L, activation)), path_integral(mlp(L, activation)).theory()):
            assert causal(theory) == {"A": "strict", "B": "past"}
            assert (upper(theory, "h", ell + 1), upper(theory, "z", ell)) == (t - 1, t)


def without_pregradient(program: Program) -> Program:
    """Return g = phi'(h) * (W^T g) in one line, without z.

    The top layer is linear, so that nothing else relates g to h.
    """
    h, _, g = program.fields
    W, w = program.matrices[1].initial, program.vectors[0].initial
    samples = program.definitions[0].ranges[0]
    interior = next(r for r in program.definitions[1].ranges if r.index == ell)
    slot = Symbol("x")

    def slope(v: Expr) -> Expr:
        return phi(slot).diff(slot).subs(slot, v)

    kept = [d for d in program.definitions if d.name in ("h", "Delta")]
    output = next(d.lhs for d in program.definitions if d.name == "f")
    new = [
        Definition(output, Mean(g(L, mu, t) * h(L, mu, t)) / gamma0, (samples,)),
        Definition(g(L, mu, t), w.symbol, (samples,)),
        Definition(g(ell, mu, t), slope(h(ell, mu, t)) * (W(ell).T @ g(ell + 1, mu, t)), (samples, interior)),
    ]
    return replace(program, fields=(h, g), definitions=tuple(kept + new), descent=None)


def test_a_factor_beside_a_product_counts() -> None:
    """Equal-time dependence must be kept when a product is multiplied rather than named."""
    program = without_pregradient(mlp(L, phi))
    assert causal(mean_field(program)) == {"A": "strict", "B": "past"}
    assert check_routes(program) == []


def test_each_pair_of_uses_is_decided_on_its_own() -> None:
    """Check k = M h, q = M^T k, l = M q.

    h does not depend on M^T k, though q, in the other forward use, does.
    """
    theory = mean_field(there_and_back(lambda v: v))
    assert causal(theory) == {
        "R_hr": "strict",
        "R_k_u_M_h": "past",
        "R_k_u_M_q": "strict",
        "R_qr": "past",
    }


def test_a_mean_over_units_does_not_respond_to_one_unit() -> None:
    """The gradient by q contains q in a mean only, so that it does not respond to its own source at once."""
    units, pixels = Population("units"), Population("pixels", given=True)
    h, q, z = (Field(name, units) for name in "hqz")
    x, U, R = (
        GivenVector("x", pixels, "K_x"),
        GaussianMatrix("U", units, pixels),
        GaussianMatrix("R", units, units),
    )
    w, out, target = GaussianVector("w", units), Function("out"), Function("target")
    forward = {
        h(mu, t): U @ x(mu),
        q(mu, t): R @ tanh(h(mu, t)),
        z(mu, t): Mean(h(mu, t) * q(mu, t)) * q(mu, t),
        out(mu, t): Mean(w.symbol * z(mu, t)) / gamma0,
    }
    network = Network("mean times field", (h, q, z), forward, (U, R, w), given=(x,))
    program = network.train((target(mu) - out(mu, t)) ** 2 / 2, GradientDescent(eta))
    for theory in (mean_field(program), path_integral(program).theory()):
        assert set(causal(theory).values()) == {"strict"}


def test_a_rate_of_change_moves_its_field_later() -> None:
    assert causal(mean_field(recurrent(tau))) == {"R_phieta": "strict"}


def test_reading_lists_every_use_with_its_source() -> None:
    reading = read(mlp(2, phi))
    assert [str(a.source()) for a in reading.uses] == ["u(1, mu, t)", "u(ell + 1, mu, t)", "r(ell, mu, t)"]
    assert [str(p.source()) for p in reading.entries] == ["r(2, mu, t)"]
    assert [a.past((mu, alpha)).vector.indices[0].name for a in reading.uses] == ["alpha_"] * 3


def test_averages_commute_with_numbers() -> None:
    x = Symbol("x")
    assert Average(x) * Symbol("c") * Average(x) == Symbol("c") * Average(x) ** 2
