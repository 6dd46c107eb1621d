"""The steps of the path integral against appendix D of selfconsistent2023, in the engine's symbols."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from sympy import (
    Add,
    Eq,
    Expr,
    Function,
    I,
    Matrix,
    Piecewise,
    S,
    Sum,
    Symbol,
    cancel,
    latex,
    log,
    oo,
    srepr,
    symbols,
    sympify,
)

import derive.theory.path_integral as package
from derive.calculus.sums import normal_form
from derive.program import L, P, alpha, ell, gamma0, mu, s, t
from derive.theory import Average
from derive.theory.path_integral import PathIntegral, hatted_correlator, path_integral
from derive.theory.path_integral.action import Inner, N, Partition, hatted
from tests.derive.once import mlp
from tests.derive.programs import g, phi, recurrent, rho_a, tau, there_and_back

h, gf, x, A, B, K = (Function(n) for n in ("h", "g", "x", "A", "B", "K_x"))
chi, xi, chihat, xihat = (Function(n) for n in ("chi", "xi", "chihat", "xihat"))
Phi, G, Phihat, Ghat = (Function(n) for n in ("Phi", "G", "Phihat", "Ghat"))
pair = ((mu, 1, P), (alpha, 1, P), (t, 0, oo), (s, 0, oo))
one = ((mu, 1, P), (t, 0, oo))
inner = (ell, 1, L - 1)


@pytest.fixture(scope="module")
def route() -> PathIntegral:
    return path_integral(mlp(L, phi))


def dot(a: Expr, b: Expr) -> Expr:
    return Inner("layer", a, b)


def test_it_does_not_look_at_the_other_route() -> None:
    for file in Path(package.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        froms = {str(x.module) for x in ast.walk(tree) if isinstance(x, ast.ImportFrom)}
        assert not any("conditioning" in x for x in froms)
        assert "derive.theory" not in froms  # whose __init__ would hand it on


def test_disorder_average_is_d26_corrected(route: PathIntegral) -> None:
    """With chihat_alpha(s) in the first line of the third average, where the paper repeats mu, t."""
    f, g1 = phi(h(ell, mu, t)), gf(ell + 1, mu, t)
    f_, g1_ = phi(h(ell, alpha, s)), gf(ell + 1, alpha, s)
    c, c_ = chihat(ell + 1, mu, t), chihat(ell + 1, alpha, s)
    e, e_ = xihat(ell, mu, t), xihat(ell, alpha, s)
    expected = (
        Sum(
            -Inner("layer", chihat(1, mu, t), chihat(1, alpha, s))
            * Inner("input", x(mu), x(alpha))
            / (2 * N),
            *pair,
        )
        + Sum(-dot(xihat(L, mu, t), xihat(L, alpha, s)) / 2, *pair)
        + Sum(-dot(c, c_) * dot(f, f_) / (2 * N), inner, *pair)
        + Sum(-dot(e, e_) * dot(g1, g1_) / (2 * N), inner, *pair)
        + Sum(-dot(c, g1_) * dot(f, e_) / N, inner, *pair)
    )
    assert normal_form(route.average_exponent - expected) == 0


def test_action_is_d31(route: PathIntegral) -> None:
    every = (ell, 1, L)
    algebra = (
        Sum(Phi(ell, mu, alpha, t, s) * Phihat(ell, mu, alpha, t, s), every, *pair)
        + Sum(G(ell, mu, alpha, t, s) * Ghat(ell, mu, alpha, t, s), every, *pair)
        - Sum(gamma0**2 * A(ell, mu, alpha, t, s) * B(ell, alpha, mu, s, t), inner, *pair)
    )
    (site,) = route.single_site.values()
    assert normal_form(route.action - log(Partition("layer", site)) - algebra) == 0


def test_single_site_weight_is_d32(route: PathIntegral) -> None:
    """With A and B up to L - 1 (the paper sums to L), B transposed as below D.40, and in units of gamma0."""
    every = (ell, 1, L)
    f, f_ = phi(h(ell, mu, t)), phi(h(ell, alpha, s))
    c, c_ = chihat(ell + 1, mu, t), chihat(ell + 1, alpha, s)
    expected = (
        Sum(I * chihat(1, mu, t) * chi(1, mu, t), *one)
        + Sum(I * c * chi(ell + 1, mu, t), inner, *one)
        + Sum(I * xihat(ell, mu, t) * xi(ell, mu, t), inner, *one)
        + Sum(I * xihat(L, mu, t) * xi(L, mu, t), *one)
        - Sum(chihat(1, mu, t) * chihat(1, alpha, s) * K(mu, alpha) / 2, *pair)
        - Sum(xihat(L, mu, t) * xihat(L, alpha, s) / 2, *pair)
        - Sum(c * c_ * Phi(ell, mu, alpha, t, s) / 2, inner, *pair)
        - Sum(xihat(ell, mu, t) * xihat(ell, alpha, s) * G(ell + 1, mu, alpha, t, s) / 2, inner, *pair)
        - Sum(f * f_ * Phihat(ell, mu, alpha, t, s), every, *pair)
        - Sum(gf(ell, mu, t) * gf(ell, alpha, s) * Ghat(ell, mu, alpha, t, s), every, *pair)
        - I * gamma0 * Sum(f * xihat(ell, alpha, s) * B(ell, alpha, mu, s, t), inner, *pair)
        - I * gamma0 * Sum(c * gf(ell + 1, alpha, s) * A(ell, mu, alpha, t, s), inner, *pair)
    )
    assert normal_form(route.single_site["layer"] - expected) == 0


def test_saddle_point_is_d33_corrected(route: PathIntegral) -> None:
    """The fourth line averages xihat of the layer below; there is no field g_hat."""
    found = {str(e.lhs.func): e.rhs for e in route.saddle_point}
    assert found["Phi"] == Average(phi(h(ell, mu, t)) * phi(h(ell, alpha, s)))
    assert found["G"] == Average(gf(ell, mu, t) * gf(ell, alpha, s))
    two = Average(chihat(ell + 1, mu, t) * chihat(ell + 1, alpha, s)) / 2
    assert found["Phihat"] == Piecewise((two, L - ell >= 1), (S.Zero, True))
    two = Average(xihat(ell - 1, mu, t) * xihat(ell - 1, alpha, s)) / 2
    assert found["Ghat"] == Piecewise((two, ell >= 2), (S.Zero, True))
    assert found["A"] == -I * Average(phi(h(ell, mu, t)) * xihat(ell, alpha, s)) / gamma0
    assert found["B"] == -I * Average(gf(ell + 1, mu, t) * chihat(ell + 1, alpha, s)) / gamma0


def test_conjugates_vanish(route: PathIntegral) -> None:
    assert {str(e.lhs.func): e.rhs for e in route.conjugates} == {"Phihat": 0, "Ghat": 0}
    assert hatted_correlator()[1].is_zero or hatted_correlator()[1].is_ZeroMatrix


def test_correlator_of_hatted_fields_by_differentiation() -> None:
    """D.35 for two variables, written out: minus the second derivative in the shift, then <u u> = C."""
    a, b, c, j1, j2, u1, u2 = symbols("a b c j1 j2 u1 u2")
    C, j, u = Matrix([[a, b], [b, c]]), Matrix([j1, j2]), Matrix([u1, u2])
    exponent = (-(u + j).T * C.inv() * (u + j) / 2)[0]
    formula = hatted_correlator()[0]
    for p in range(2):
        for q in range(2):
            second = exponent.diff(j[p], j[q]) + exponent.diff(j[p]) * exponent.diff(j[q])
            flat = sympify(-second.subs({j1: 0, j2: 0})).expand()
            moments = {u1**2: Symbol("M11"), u2**2: Symbol("M22"), u1 * u2: Symbol("M12")}
            average = flat.subs(moments)
            M = Matrix([[Symbol("M11"), Symbol("M12")], [Symbol("M12"), Symbol("M22")]])
            assert cancel(average - (C.inv() - C.inv() * M * C.inv())[p, q]) == 0
            assert cancel(average.subs({"M11": a, "M12": b, "M22": c})) == 0
    assert {x.name for x in formula.free_symbols if hasattr(x, "shape")} == {"C", "M"}


def test_sources_and_processes_are_d39_and_d40_relabelled(route: PathIntegral) -> None:
    covariances = {(u.symbol, u.partner): u.covariance for u in route.sources}
    u, r = Function("u"), Function("r")
    assert covariances == {
        (u(1, mu, t), u(1, alpha, s)): K(mu, alpha),
        (u(ell + 1, mu, t), u(ell + 1, alpha, s)): Phi(ell, mu, alpha, t, s),
        (r(ell, mu, t), r(ell, alpha, s)): G(ell + 1, mu, alpha, t, s),
        (r(L, mu, t), r(L, alpha, s)): 1,
    }
    past = ((alpha, 1, P), (s, 0, oo))
    assert {e.lhs: e.rhs for e in route.processes} == {
        chi(1, mu, t): u(1, mu, t),
        chi(ell + 1, mu, t): u(ell + 1, mu, t)
        + Sum(gamma0 * A(ell, mu, alpha, t, s) * gf(ell + 1, alpha, s), *past),
        xi(ell, mu, t): r(ell, mu, t) + Sum(gamma0 * B(ell, mu, alpha, t, s) * phi(h(ell, alpha, s)), *past),
        xi(L, mu, t): r(L, mu, t),
    }


def test_symmetric_matrix_shares_a_term_with_itself() -> None:
    """The cross term tau X_rc X_cr: half a square in the action, a full term in the process."""
    route = path_integral(recurrent(tau))
    R = Function("R_phieta")
    response = [x for x in route.action.args if x.has(R) and not x.has(log)]
    assert [x.function for x in response] == [-(g**2) * tau * R(t, s) * R(s, t) / 2]
    (process,) = route.processes
    assert process.rhs.has(g**2 * tau * R(t, s) * phi(Function("x")(s)))


def test_sizes_weigh_action_and_exponents() -> None:
    route = path_integral(there_and_back())
    logs = {
        str(x.args[0]): c for e in route.action.args for c, x in [e.as_independent(log)] if isinstance(x, log)
    }
    assert logs == {"Z_a": rho_a, "Z_b": Symbol("rho_b", positive=True)}


def test_everything_is_plain_sympy(route: PathIntegral) -> None:
    for e in (
        route.average_exponent,
        route.action,
        *route.single_site.values(),
        *route.saddle_point,
        *route.processes,
    ):
        assert latex(e)
        assert srepr(e.subs(gamma0, 2))
    assert all(isinstance(e, Eq) for e in route.saddle_point)
    assert r"\hat{\chi}" in latex(route.average_exponent)
    assert r"\hat{\Phi}" in latex(route.action)
    assert [hatted(x) for x in ("Phi", "C_phi")] == ["Phihat", "Chat_phi"]


def test_layers_of_unequal_width_count_their_own_units():
    a = Function("a")
    action = path_integral(mlp(2, relative_widths="a")).action
    parts = [x for x in Add.make_args(action) if x.has(Partition)]
    (total,) = parts
    assert isinstance(total, Sum)
    assert total.limits == ((ell, 1, 2),)
    assert total.function.as_independent(log)[0] == a(ell)
    assert [str(x) for x in total.atoms(Partition)] == ["Z^ell_layer"]
    assert latex(next(iter(total.atoms(Partition)))) == r"\mathcal{Z}^{\ell}_{\mathrm{layer}}"
