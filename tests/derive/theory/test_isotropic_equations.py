"""The derived equations of linear2025 against hand derivations, for one hidden layer and symbolic depth.

Hand derivation for one hidden layer, full batch, in the sizes of the paper. Within a step the order is g, v,
Delta, h0, h. X is used forwards on v, backwards on Delta: Delta(t) = u_Delta + (1/alpha) sum_{s<t} R_vu
Delta(s), because v(t) responds to u0(s) only later; h0(t) = u0 + sum_{s<=t} R_Delta v(s), because Delta(t)
contains u_Delta(t). W0 is used forwards on h0, backwards on g: h(t) = u + (1/(nu gamma0)) sum_{s<=t} R_hr0
g(s), because h0(t) contains r0(t); v(t) = w_star - r0 - (1/gamma0) sum_{s<t} R_gu h0(s). The update of W0
adds eta gamma0 sum_{s<t} C_h0 g(s) to h and (1/(nu gamma0)) eta gamma0 nu = eta times C_g h0(s) to the terms
that v subtracts.
"""

from __future__ import annotations

from typing import Any

import pytest
from sympy import Add, Expr, Function, KroneckerDelta, Sum, Symbol

from derive.linear.propagators import transfer
from derive.program import L, ell, eta, gamma0, s, t
from derive.program.networks.random_data import B, N, alpha, alpha_B, k, nu, sigma
from derive.reduce.data import absorb_factors, instant_responses, mode_sums
from derive.theory import Theory
from derive.theory.routes import check_routes
from tests.derive.once import depth_program, isotropic, mean_field, structured

beta = Symbol("beta", positive=True)
K = Symbol("K", integer=True, positive=True)
v, h0, h, g, Delta, xi, u, r, u0, r0, u_Delta, w, eps, lamda = (  # noqa: N816 (symbol of the paper)
    Function(n)
    for n in ("v", "h0", "h", "g", "Delta", "xi", "u", "r", "u0", "r0", "u_Delta", "w_star", "eps", "lamda")
)
C_v, C_h0, C_h, C_g, C_Delta = (Function(f"C_{n}") for n in ("v", "h0", "h", "g", "Delta"))
R_vu, R_Delta, R_hr0, R_hr, R_gu = (Function(n) for n in ("R_vu", "R_Delta", "R_h0r0", "R_hr", "R_gu"))


def past(e: Expr) -> Expr:
    return Sum(e, (s, 0, t - 1))


def upto(e: Expr) -> Expr:
    return Sum(e, (s, 0, t))


def paper(**options: Any) -> Theory:
    """Return a theory with the paper's scaling of r0 and u0."""
    theory = instant_responses(mean_field(isotropic(**options)))
    return absorb_factors(theory, "r0", *([] if options.get("data") == "population" else ["u0"]))


def matches(theory: Theory, expected: dict[Expr, Expr]) -> None:
    """Require that every named equation is the expected one, and that none is missing."""
    found = {e.lhs: e.rhs for e in theory.equations}
    assert set(found) == set(expected)
    for lhs, rhs in expected.items():
        assert sums(found[lhs]) == sums(rhs), (lhs, found[lhs])


def sums(e: Expr) -> set[Expr]:
    """Return addends, with factors inside sums and sums taken apart."""
    out: set[Expr] = set()
    for x in Add.make_args(e.expand()):
        factor, rest = x.as_independent(Sum, as_Add=False)
        if not isinstance(rest, Sum):
            out.add(x)
            continue
        out |= {Sum(y, *rest.limits) for y in Add.make_args((factor * rest.function).expand())}
    return out


def covariances(theory: Theory) -> dict[str, Expr]:
    return {str(a.symbol): a.covariance for a in theory.sources}


LEARNT = past(-(R_gu(1, t, s) / gamma0 + eta * C_g(1, t, s)) * h0(s))
HIDDEN = {
    h(ell + 1, t): u(ell + 1, t)
    + upto(R_hr(ell, t, s) * g(ell + 1, s))
    + past(eta * gamma0 * C_h(ell, t, s) * g(ell + 1, s)),
    g(ell, t): r(ell, t) + past((R_gu(ell + 1, t, s) + eta * gamma0 * C_g(ell + 1, t, s)) * h(ell, s)),
}
ENDS = {
    h(1, t): u(1, t)
    + upto(R_hr0(t, s) * g(1, s) / (nu * gamma0))
    + past(eta * gamma0 * C_h0(t, s) * g(1, s)),
    g(L, t): r(L, t) + past(eta * gamma0 * h(L, s)),
}


def test_full_batch_with_noise_is_eq_65_with_its_times_and_eta_corrected() -> None:
    theory = paper(noise=True)
    matches(
        theory,
        HIDDEN
        | ENDS
        | {
            v(t): w(t) - r0(t) + LEARNT,
            Delta(t): u_Delta(t) + sigma * eps(t) + past(R_vu(t, s) * Delta(s) / alpha),
            h0(t): u0(t) + upto(R_Delta(t, s) * v(s)),
        },
    )
    assert covariances(theory) == {
        "w_star(t)": 1,
        "eps(t)": 1,
        "r(L, t)": 1,
        "r0(t)": C_g(1, t, s) / (nu * gamma0**2),
        "u_Delta(t)": C_v(t, s),
        "u0(t)": C_Delta(t, s) / alpha,
        "u(1, t)": C_h0(t, s),
        "u(ell + 1, t)": C_h(ell, t, s),
        "r(ell, t)": C_g(ell + 1, t, s),
    }


def test_one_hidden_layer_by_hand() -> None:
    theory = paper(depth=1)
    matches(
        theory,
        {
            v(t): w(t) - r0(t) + LEARNT,
            Delta(t): u_Delta(t) + past(R_vu(t, s) * Delta(s) / alpha),
            h0(t): u0(t) + upto(R_Delta(t, s) * v(s)),
            h(1, t): ENDS[h(1, t)],
            g(1, t): r(1, t) + past(eta * gamma0 * h(1, s)),
        },
    )
    causal = {q.name: q.causal for q in theory.responses()}
    assert causal == {"R_gu": "strict", "R_vu": "strict", "R_Delta": "past", "R_h0r0": "past"}


def test_order_parameters_are_those_of_eq_66_and_67() -> None:
    theory = paper()
    correlations = {q.name for q in theory.correlations()}
    assert correlations == {"C_v", "C_Delta", "C_h0", "C_h", "C_g"}
    assert {q.name: q.causal for q in theory.responses()} == {
        "R_vu": "strict",
        "R_Delta": "past",
        "R_h0r0": "past",
        "R_hr": "past",
        "R_gu": "strict",
    }


def test_online_is_eq_100_with_the_same_corrections() -> None:
    theory = paper(data="online", noise=True)
    matches(
        theory,
        HIDDEN
        | ENDS
        | {v(t): w(t) - r0(t) + LEARNT, Delta(t): u_Delta(t) + sigma * eps(t), h0(t): u0(t) + v(t)},
    )
    assert covariances(theory)["u0(t)"] == C_Delta(t, s) * KroneckerDelta(t, s) / alpha_B
    assert covariances(theory)["eps(t)"] == KroneckerDelta(t, s)


def test_centred_is_eq_69_with_its_sign_corrected() -> None:
    theory = paper(center=True)
    equations = {e.lhs: e.rhs for e in theory.equations}
    assert sums(equations[xi(t)]) == sums(r0(t) - LEARNT.func(LEARNT.function, *LEARNT.limits))
    assert equations[v(t)] == w(t) - xi(t) + xi(0)


def test_residual_population_is_eq_74_with_equal_times() -> None:
    theory = paper(data="population", branch=beta)
    body = {
        h(ell + 1, t): h(ell, t)
        + beta * u(ell + 1, t)
        + upto(beta * R_hr(ell, t, s) * g(ell + 1, s))
        + past(eta * gamma0 * beta**2 * C_h(ell, t, s) * g(ell + 1, s)),
        g(ell, t): g(ell + 1, t)
        + beta * r(ell, t)
        + past(beta * (R_gu(ell + 1, t, s) + eta * gamma0 * beta * C_g(ell + 1, t, s)) * h(ell, s)),
    }
    matches(theory, body | ENDS | {v(t): w(t) - r0(t) + LEARNT, h0(t): v(t)})


def test_channels_are_eq_123_to_125() -> None:
    """Every past sum runs over the other channel; the readout of a channel hears its own only."""
    theory = paper(outputs=K)
    c, c_ = (Symbol(n, integer=True, positive=True) for n in ("c", "c_"))
    equations = {e.lhs: e.rhs for e in theory.equations}

    def both(e: Expr, last: Expr) -> Expr:
        return Sum(e, (c_, 1, K), (s, 0, last))

    assert equations[g(L, c, t)] == r(L, c, t) + past(eta * gamma0 * h(L, c, s))
    kernel = R_gu(ell + 1, c, c_, t, s) + eta * gamma0 * C_g(ell + 1, c, c_, t, s)
    assert sums(equations[g(ell, c, t)]) == sums(r(ell, c, t) + both(kernel * h(ell, c_, s), t - 1))
    assert sums(equations[h0(c, t)]) == sums(u0(c, t) + both(R_Delta(c, c_, t, s) * v(c_, s), t))
    assert sums(equations[h(ell + 1, c, t)]) == sums(
        u(ell + 1, c, t)
        + both(R_hr(ell, c, c_, t, s) * g(ell + 1, c_, s), t)
        + both(eta * gamma0 * C_h(ell, c, c_, t, s) * g(ell + 1, c_, s), t - 1)
    )
    assert covariances(theory)["w_star(c, t)"] == KroneckerDelta(c, c_)


def test_unequal_widths_by_hand() -> None:
    """W^l has variance 1/nu_l and nu_{l+1} rows: the backward product has the factor nu_{l+1}/nu_l."""
    n = Function("nu", positive=True)
    theory = paper(widths=n)
    equations = {e.lhs: e.rhs for e in theory.equations}
    share = n(ell + 1) / n(ell)
    kernel = share * (R_gu(ell + 1, t, s) + eta * gamma0 * C_g(ell + 1, t, s))
    assert sums(equations[g(ell, t)]) == sums(r(ell, t) + past(kernel * h(ell, s)))
    assert sums(equations[h(ell + 1, t)]) == sums(HIDDEN[h(ell + 1, t)])
    first = n(1) / n(L) * (R_gu(1, t, s) / gamma0 + eta * C_g(1, t, s))
    assert sums(equations[v(t)]) == sums(w(t) - r0(t) - past(first * h0(s)))
    assert covariances(theory)["r0(t)"] == C_g(1, t, s) * n(1) / (n(L) * gamma0) ** 2
    assert covariances(theory)["r(ell, t)"] == share * C_g(ell + 1, t, s)


def test_structured_is_eq_107_to_109() -> None:
    theory = mode_sums(absorb_factors(instant_responses(mean_field(structured(noise=True))), "r0", "u0"))
    equations = {e.lhs: e.rhs for e in theory.equations}
    kernel = R_gu(1, t, s) / gamma0 + eta * C_g(1, t, s)
    assert sums(equations[xi(k, t)]) == sums(r0(k, t) + past(kernel * h0(k, s)))
    assert equations[v(k, t)] == w(k) - xi(k, t) + xi(k, 0)
    assert equations[h0(k, t)] == u0(k, t) + lamda(k) * v(k, t)
    assert sums(equations[h(1, t)]) == sums(
        u(1, t) + upto(R_hr0(t, s) * g(1, s) / (N * gamma0)) + past(eta * gamma0 * C_h0(t, s) * g(1, s))
    )
    found = covariances(theory)
    assert found["r0(k, t)"] == C_g(1, t, s) / (N * gamma0**2)
    assert found["u0(k, t)"] == lamda(k) * C_Delta(t, s) * KroneckerDelta(t, s) / B
    assert found["u(1, t)"] == C_h0(t, s)


def test_structured_names_the_weighted_error_and_nothing_else_C_v() -> None:  # noqa: N802 (C_v)
    """Eq. 108: C_v = sum_k lamda_k <v_k v_k>, and it is the covariance of the batch's errors."""
    theory = mode_sums(mean_field(structured()))
    assert covariances(theory)["u_Delta(t)"] == C_v(t, s) * KroneckerDelta(t, s)
    assert len([q for q in theory.correlations() if q.definition.has(v(k, t))]) == 1


def test_transfer_function_is_eq_81_with_its_sign_corrected_and_eq_111() -> None:
    H = Function("H_v_v")
    s_1 = Symbol("s_1", nonnegative=True)
    kernel = R_gu(1, t, s_1) / gamma0 + eta * C_g(1, t, s_1)
    for theory in (paper(data="population"), paper(data="online")):
        (only,) = transfer(theory, "v").reduced
        expected = KroneckerDelta(t, s) - Sum(kernel * H(s_1, s), (s_1, 0, t - 1))
        assert sums(only.rhs) == sums(expected)
    modes = mode_sums(absorb_factors(instant_responses(mean_field(structured())), "r0", "u0"))
    (only,) = transfer(modes, "v").reduced
    expected = KroneckerDelta(t, s) - Sum(lamda(k) * kernel * H(k, s_1, s), (s_1, 0, t - 1))
    assert sums(only.rhs.expand()) == sums(expected)


def test_response_of_the_errors_is_eq_15() -> None:
    """R_Delta = delta + (1/alpha) sum R_vu R_Delta: u_Delta is a push of the errors' equation."""
    H = Function("H_Delta_Delta")
    s_1 = Symbol("s_1", nonnegative=True)
    (only,) = transfer(paper(), "Delta").equations
    memory = Sum(R_vu(t, s_1) * H(s_1, s) / alpha, (s_1, 0, t - 1))
    assert sums(only.rhs) == sums(KroneckerDelta(t, s) + memory)


PROGRAMS = {
    "full batch": isotropic,
    "noise": lambda: isotropic(noise=True),
    "one layer": lambda: isotropic(1),
    "online": lambda: isotropic(data="online", noise=True),
    "population": lambda: isotropic(data="population"),
    "flow": lambda: isotropic(rule="flow"),
    "centred": lambda: isotropic(center=True),
    "residual": lambda: isotropic(branch=beta),
    "unequal widths": lambda: isotropic(widths=Function("nu", positive=True)),
    "channels": lambda: isotropic(outputs=K),
    "NTK": lambda: isotropic(parametrization="ntk"),
    "flow, noise, NTK, unequal widths": lambda: isotropic(
        rule="flow", noise=True, parametrization="ntk", widths=Function("nu", positive=True)
    ),
    "residual, online, centred, channels": lambda: isotropic(
        branch=beta, data="online", center=True, outputs=K, noise=True
    ),
    "structured": lambda: structured(noise=True),
    "infinite depth": depth_program,
}


LONG = ("full batch", "online", "centred", "residual", "channels", "residual, online, centred, channels")
"""What ``program/test_builders_compositions.py`` compares in one network."""
LONG += ("noise", "flow", "unequal widths", "NTK")
"""Compared here in one network."""


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in LONG else x for x in PROGRAMS]
)
def test_both_routes_agree(name: str) -> None:
    assert check_routes(PROGRAMS[name]()) == []
