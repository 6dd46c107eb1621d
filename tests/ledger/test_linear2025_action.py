"""(50)-(60) of linear2025 against the engine's path integral: exponents, action, saddle point.

Two times, three hidden layers, everything written out, in the paper's units.
"""

import pytest
import sympy
from sympy import Add, Expr, Function, S, Symbol, oo, sympify
from sympy.core.function import AppliedUndef

from derive.program import L, ell
from derive.program.networks.random_data import alpha, sigma
from tests.ledger.claims import claimed
from tests.ledger.claims.linear2025 import action
from tests.ledger.isotropic_route import CONJUGATES, in_units_of_the_paper, route

DEPTH, TIMES = 3, 2


def written_out(e: Expr) -> Expr:
    fixed = sympify(e).subs({oo: TIMES - 1, action.T: TIMES, L: DEPTH})
    return fixed.doit().expand()


def of(e: Expr, *names: str) -> Expr:
    """Return the terms of ``e`` that contain one of the names."""
    kept = [x for x in Add.make_args(e) if {str(a.func) for a in x.atoms(AppliedUndef)} & set(names)]
    return Add(*kept)


def without(e: Expr, *names: str) -> Expr:
    return sympy.expand(e - of(e, *names))


def test_50_and_51_lack_one_over_alpha_and_the_noise_and_nothing_else() -> None:
    engine = in_units_of_the_paper(written_out(route().single_site["samples"]))
    engine = without(engine, "xi_eps", "xihat_eps")
    noise = {Function("chi_u_Delta")(k): Function("Delta")(k) for k in range(TIMES)}
    printed = written_out(action.site_samples()["exponent"])
    gap = sympy.expand(engine.subs(noise) - printed)
    responses = of(printed, "R_vu")
    assert sympy.expand(gap - (1 / alpha - 1) * responses) == 0
    assert responses != 0
    definition = next(d for d in route().program.definitions if d.name == "Delta")
    assert definition.rhs.has(sigma)
    assert not printed.has(sigma)


def test_52_lacks_the_conjugates_and_nothing_else() -> None:
    engine = in_units_of_the_paper(written_out(route().single_site["features"]))
    engine = without(engine, "xi_w_star", "xihat_w_star")
    gap = sympy.expand(engine - written_out(action.site_features()["exponent"]))
    assert gap == of(engine, "Chat_v", "Chat_h0") != 0


@pytest.mark.slow
def test_53_to_55_lack_the_conjugates_and_nothing_else() -> None:
    engine = in_units_of_the_paper(written_out(route().single_site["layer"]))
    at_last = {Function(n)(DEPTH, k): 0 for n in ("xi", "xihat") for k in range(TIMES)}
    sites = (
        action.site_first()["exponent"],
        sympify(action.site_inner()["exponent"]).subs(ell, 2),
        action.site_last()["exponent"],
    )
    gap = sympy.expand(engine.subs(at_last) - Add(*[written_out(x) for x in sites]))
    assert gap == of(engine, "Chat_h", "Chat_g") != 0


def test_57_has_all_terms_but_that_of_the_inputs() -> None:
    engine = in_units_of_the_paper(written_out(_no_logarithms(route().action)))
    logs = {action.lnZ_Delta: 0, action.Z_0: 0}
    printed = sympify(claimed("linear2025", "57")["S"])
    explicit = written_out(printed.subs(logs).replace(action.lnZ, lambda *_: S.Zero))
    gap = sympy.expand(engine + explicit)
    assert gap == of(engine, "Chat_h0") != 0


def test_57_has_every_logarithm_but_one() -> None:
    printed = sympify(claimed("linear2025", "57")["S"]).doit()
    assert printed.coeff(action.lnZ_Delta) == -alpha
    assert printed.coeff(action.Z_0) == -1


def _no_logarithms(e: Expr) -> Expr:
    return Add(*[x for x in Add.make_args(e) if not x.has(sympy.log)])


def test_60_conjugates_vanish() -> None:
    assert {str(e.lhs.func) for e in route().conjugates} == CONJUGATES
    assert all(e.rhs == 0 for e in route().conjugates)


@pytest.mark.parametrize(
    ("name", "line", "hat"),
    [
        ("R_gu", "R_hr", "chihat"),
        ("R_hr", "R_gu", "xihat"),
        ("R_h0r0", "R_gu1", "xihat_r0"),
    ],
)
def test_59_has_the_other_hat_where_the_engine_has_this_one(name: str, line: str, hat: str) -> None:
    found = next(e for e in route().saddle_point if str(e.lhs.func) == name and not e.lhs.has(Symbol("L")))
    assert hat in {str(a.func) for a in found.rhs.atoms(AppliedUndef)}
    printed = sympify(claimed("linear2025", "59")[line])
    assert hat.removesuffix("_r0") not in {str(a.func) for a in printed.atoms(AppliedUndef)}
