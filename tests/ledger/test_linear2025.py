"""Tests of linear2025: entries that agree equal the derived equations, other entries differ from them.

Derived theories are brought to the paper's units (r0 and u0 enter with factor one) and compared at three
hidden layers, at a time at which all sums have terms, every sum written out.
"""

from collections.abc import Mapping

import pytest
import sympy
from sympy import Add, Expr, Function, KroneckerDelta, Sum, Symbol, sympify

from derive.ledger import entries, find
from derive.program import ell, eta, gamma0, s, t
from derive.program.networks.random_data import c, nu
from derive.program.training import TrainedMatrix, TrainedVector
from derive.reduce.data import loss_decomposition
from derive.theory import Average, Response
from tests.derive.once import isotropic, mean_field
from tests.ledger.claims import claimed
from tests.ledger.claims.linear2025 import full_batch
from tests.ledger.evidence.identities_isotropic import (
    DEPTH,
    NOW,
    covariance,
    equation,
    modes,
    terms_of_sums,
    theory,
    written_out,
)

SOURCE = "linear2025"
MINE = [e for e in entries(SOURCE) if e.number not in ("Table 1", "Figure 9")]
h, g, v, h0, Delta = (Function(x) for x in ("h", "g", "v", "h0", "Delta"))


def claim(number: str) -> dict[str, Expr]:
    return {k: sympify(x) for k, x in claimed(SOURCE, number).items()}


# -- all there ---------------------------------------------------------------------------------------------


def test_the_verdicts_on_what_has_no_number() -> None:
    assert find(SOURCE, "Table 1").verdict == "improved"
    assert find(SOURCE, "Figure 9").verdict == "agrees"


def test_entries_stand_in_the_papers_order() -> None:
    order = [int(e.number.removesuffix(" text")) for e in MINE]
    assert order == sorted(order)


def test_why_is_short_prose_and_derived_is_filled_where_there_is_something_to_derive() -> None:
    for entry in entries(SOURCE):
        assert len(entry.why) <= 700, entry.number
        assert entry.why.endswith((".", ")")), entry.number
        assert entry.derived or entry.verdict in ("definition", "convention"), entry.number


# -- full batch --------------------------------------------------------------------------------------------


def test_each_line_of_65_agrees_or_differs_as_its_entry_says() -> None:
    printed, found = claim("65"), theory()
    right = {
        "Delta": (equation(found, "Delta"), None),
        "g": (equation(found, "g", 2), 2),
        "v": (equation(found, "v"), None),
        "h0": (equation(found, "h0"), None),
        "h1": (equation(found, "h", 1), None),
        "h": (equation(found, "h", 2), 2),
    }
    gaps = {k: (e - written_out(printed[k], layer)).expand() for k, (e, layer) in right.items()}
    assert {k for k, gap in gaps.items() if gap != 0} == {"v", "h0", "h1", "h"}
    R_Delta, R_h0r0, R_hr = (Function(x) for x in ("R_Delta", "R_h0r0", "R_hr"))
    assert gaps["h0"] == R_Delta(NOW, NOW) * v(NOW)
    assert gaps["h1"] == R_h0r0(NOW, NOW) * g(1, NOW) / (nu * gamma0)
    assert gaps["h"] == R_hr(1, NOW, NOW) * g(2, NOW)
    rates = gaps["v"].as_coefficients_dict()
    C_g = Function("C_g")
    assert sympy.expand(gaps["v"] - (gamma0 - 1) * eta * sum(C_g(1, NOW, k) * h0(k) for k in range(NOW))) == 0
    assert rates


def test_the_last_layers_weights_move_with_h() -> None:
    grown = equation(theory(), "g", DEPTH) - Function("r")(DEPTH, NOW)
    assert sympy.expand(grown - eta * gamma0 * sum(h(DEPTH, k) for k in range(NOW))) == 0


@pytest.mark.parametrize(
    ("number", "data"), [("11", "full-batch"), ("65", "full-batch"), ("97", "online"), ("100", "online")]
)
def test_covariances_agree(number: str, data: str) -> None:
    places = {"cov_u": ("u", 2), "cov_u1": ("u", 1), "cov_r": ("r", 2)}
    for key, printed in claim(number).items():
        if not key.startswith("cov_") or key == "cov_u_Delta":
            continue
        name, layer = places.get(key, (key.removeprefix("cov_"), None))
        assert covariance(theory(data), name, layer) == printed.subs(ell, 2).expand(), key


def test_errors_of_one_batch_have_covariance_c_v_and_of_fresh_ones_a_delta_more() -> None:
    C_v = Function("C_v")(t, s)
    assert claim("65")["cov_u_Delta"] == covariance(theory(), "u_Delta") == C_v
    assert claim("98")["cov_u_Delta"] == claim("100")["cov_u_Delta"] == C_v
    assert covariance(theory("online"), "u_Delta") == C_v * KroneckerDelta(s, t)


def test_14_and_11_are_lines_of_65_and_62_lacks_a_factor() -> None:
    assert claim("14")["h1"] == claim("65")["h1"]
    assert {k: claim("65")[k] for k in claim("11")} == claim("11")
    gap = written_out(claim("62")["Delta"]) - equation(theory(), "Delta")
    assert gap.coeff(Function("eps")(NOW)) != 0
    assert gap.has(Function("R_vu"))
    assert written_out(claim("65")["Delta"]) == equation(theory(), "Delta")


def test_13_has_the_derived_parts_but_for_its_limits() -> None:
    parts = loss_decomposition(theory())
    printed = claim("13")
    back = Function("R_vr"), Function("H_v_v")

    def complete(e: Expr) -> Expr:
        e = e.replace(
            lambda x: isinstance(x, Sum), lambda x: Sum(x.function, *[(i, a, t) for i, a, _ in x.limits])
        )
        return e.replace(*[f for f in back])

    for label in ("bias", "limited width"):
        derived = parts.part(label).subs(s, t)
        assert sympy.expand(written_out(derived) - written_out(complete(printed[label]))) == 0
        assert sympy.expand(written_out(derived) - written_out(printed[label].replace(*back))) != 0
    data = parts.part("limited data").subs(s, t), parts.part("label noise").subs(s, t)
    assert all(x.has(Function("H_v_h0")) for x in data)


def test_responses_of_the_first_kind_have_an_equal_time_part() -> None:
    causal = {q.symbol.func.__name__: q.causal for q in theory().responses()}
    assert {k for k, x in causal.items() if x == "past"} == {"R_Delta", "R_h0r0", "R_hr"}
    assert {k for k, x in causal.items() if x == "strict"} == {"R_vu", "R_gu"}


def test_centring_has_a_minus_sign() -> None:
    found = theory(center=True)
    xi = found.equation("xi")
    start = written_out(xi.rhs.subs(t, 0))
    derived = (equation(found, "v")).subs(
        {Function("xi")(NOW): written_out(xi.rhs), Function("xi")(0): start}
    )
    assert sympy.expand(derived - written_out(claim("69 text")["v"])) == 0
    printed = written_out(claim("69")["v"])
    product = Add(*[x.expr for x in xi.terms if x.kind != "memory"])
    xi0 = {Function("xi0")(NOW): written_out(product), Function("xi0")(0): start}
    gap = sympy.expand(printed.subs(xi0) - derived)
    assert gap == sympy.expand(2 * sum(eta * Function("C_g")(1, NOW, k) * h0(k) for k in range(NOW)))


# -- online and structured ---------------------------------------------------------------------------------


def test_online_equations() -> None:
    found, printed = theory("online"), claim("100")
    instant = {Function("R_Delta")(NOW, NOW): 1}
    assert equation(found, "Delta") == written_out(printed["Delta"]) == written_out(claim("98")["Delta"])
    assert equation(found, "h0").subs(instant) == written_out(printed["h0"]) == written_out(claim("97")["h0"])
    assert found.order_parameter("R_Delta").definition == Average(Response(Delta(t), Function("u_Delta")(s)))
    assert equation(found, "g", 2) == written_out(printed["g"], 2)
    for name, key, layer in (("v", "v", None), ("h", "h1", 1), ("h", "h", 2)):
        assert sympy.expand(equation(found, name, layer) - written_out(printed[key], layer)) != 0


def test_modes_follow_107_and_the_layers_do_not_follow_the_display_after_111() -> None:
    found, printed = modes(), claim("107")
    k = Symbol("k", integer=True, positive=True)
    xi = written_out(found.equation("xi").rhs)
    start = written_out(found.equation("xi").rhs.subs(t, 0))
    names = {Function("xi")(k, NOW): xi, Function("xi")(k, 0): start}
    assert sympy.expand(written_out(found.equation("v").rhs).subs(names) - written_out(printed["v"])) == 0
    instant = {Function("R_Delta")(NOW, NOW): 1}
    assert written_out(found.equation("h0").rhs).subs(instant) == written_out(printed["h0"])
    assert covariance(found, "u0") == printed["cov_u0"].expand()
    assert covariance(found, "r0") == printed["cov_r0"].expand()
    assert covariance(found, "u_Delta").has(KroneckerDelta)
    assert not printed["cov_u_Delta"].has(KroneckerDelta)
    layers = claim("111 text")
    assert equation(found, "g", 2) == written_out(layers["g"], 2)
    assert equation(found, "g", DEPTH) == written_out(layers["gL"], DEPTH)
    assert sympy.expand(equation(found, "h", 1) - written_out(layers["h1"])).has(Function("R_h0r0")(NOW, NOW))
    assert sympy.expand(equation(found, "h", 2) - written_out(layers["h"], 2)) != 0
    assert equation(found, "h", 2).has(Function("R_hr")(1, NOW, NOW))


def test_19_and_110_are_empty_at_the_start() -> None:
    for number in ("19", "110"):
        assert terms_of_sums(claim(number)["v"].subs(t, 0)) == 0


# -- widths and channels -----------------------------------------------------------------------------------


def test_121_has_the_sign_of_the_gradient_but_for_its_second_line() -> None:
    program = isotropic(outputs=2)
    trained = [m for m in program.matrices if isinstance(m, TrainedMatrix)]
    signs = {m.initial.name: m.update.coefficient for m in trained}
    printed = claim("121")
    assert printed["W0"] == eta * signs["W0"]
    assert sympy.simplify(printed["W"] / (eta * signs["W"])) == -nu
    (readout,) = [v for v in program.vectors if isinstance(v, TrainedVector)]
    assert c in readout.update.vector.free_symbols


def test_every_verdict_that_needs_showing_has_evidence() -> None:
    unproven = [e.number for e in entries(SOURCE) if e.verdict != "definition" and not e.evidence]
    assert unproven == []


def test_ntk_is_gamma0_over_the_root_of_nu() -> None:
    plain, ntk = mean_field(isotropic(noise=True)), mean_field(isotropic(noise=True, parametrization="ntk"))
    scaled = {gamma0: gamma0 / sympy.sqrt(nu)}
    for name, layer in (("v", None), ("Delta", None), ("h0", None), ("h", 1), ("h", 2), ("g", 2), ("g", 3)):
        assert sympy.expand(equation(plain, name, layer).subs(scaled) - equation(ntk, name, layer)) == 0
    for one, two in zip(plain.sources, ntk.sources, strict=True):
        assert sympy.expand(one.covariance.subs(scaled) - two.covariance) == 0
    printed, past = claim("14 text"), Function("C_h0")(NOW, 0)
    for found, key in ((plain, "mean field"), (ntk, "ntk")):
        assert equation(found, "h", 1).coeff(past) == printed[key] * g(1, 0)


def test_unequal_widths_derive() -> None:
    width = Function("nu")
    found = mean_field(isotropic(widths=lambda layer: width(layer)))
    assert equation(found, "g", 2).has(width(3) / width(2))


def test_corrected_claims_would_not_differ() -> None:
    """Claims of entries with the verdict wrong are replaced, and exactly these change."""
    repaired: Mapping[str, Expr] = {
        "h": full_batch.f11()["h"].replace(  # type: ignore[attr-defined]
            lambda x: isinstance(x, Sum), lambda x: _split(x)
        )
    }
    assert sympy.expand(equation(theory(), "h", 2) - written_out(repaired["h"], 2)) == 0


def _split(x: Sum) -> Expr:
    """Return the response's part of a sum over s < t with t' = t added."""
    response = Function("R_hr")(ell - 1, t, s) * g(ell, s)
    return x + response.subs(s, t)
