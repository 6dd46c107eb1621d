"""linear2025: the network, averages over its matrices and their responses as printed, against the engine's.

Entries of the engine's matrices have variance ``variance/D``: printed ones are these over its root.
"""

import pytest
import sympy
from sympy import Expr, Function, I, Mul, S, sqrt, sympify

from derive.program import ell, s, t
from derive.program.networks.random_data import alpha, nu
from derive.reduce.data import absorb_factors
from derive.theory import Average
from tests.derive.once import isotropic, mean_field
from tests.ledger.claims import claimed
from tests.ledger.claims.linear2025.notation import D, N, P
from tests.ledger.evidence.identities_isotropic import factors, of_matrix
from tests.ledger.evidence.identities_isotropic import same_terms as same
from tests.ledger.isotropic_route import route, units

SIZES = {alpha: P / D, nu: N / D}
dot, average = Function("dot"), Function("average")


def claim(number: str) -> dict[str, Expr]:
    return {k: sympify(x) for k, x in claimed("linear2025", number).items()}


@pytest.mark.parametrize(
    ("number", "slips"),
    [
        ("4", {"W0": sqrt(N / D)}),
        ("5", {"h1": sqrt(N / D)}),
        ("25", {}),
        ("26", {"h1": sqrt(N / D)}),
        ("28", {}),
        ("120", {"v": sqrt(D)}),
        ("122", {"h1": sqrt(N / D)}),
    ],
)
def test_factors_of_the_network_are_the_programs_but_for_the_slips(
    number: str, slips: dict[str, Expr]
) -> None:
    engine = factors(outputs=2 if number in ("120", "122") else None)
    for name, printed in claim(number).items():
        ratio = sympy.simplify(engine[name] / printed)
        assert sympy.simplify(ratio - slips.get(name, S.One)) == 0, name


# -- averages ----------------------------------------------------------------------------------------------


def test_the_average_over_the_data_is_34_and_35_with_other_times() -> None:
    squares, cross = claim("34")["exponent"], claim("35")["exponent"]
    engine = of_matrix("chihat_u_Delta", "xihat_u0")
    assert not same(engine, squares + cross)
    Dhat, Delta = Function("Dhat"), Function("Delta")
    right = cross.replace(lambda x: x == dot(Dhat(t), Delta(t)), lambda x: dot(Dhat(t), Delta(s)))
    assert same(engine, squares + right)


def test_the_average_over_the_first_matrix_is_42_and_43() -> None:
    assert same(of_matrix("xihat_r0", "h0"), claim("42")["exponent"] + claim("43")["exponent"])
    overlap = Function("C_g")(1, t, s)
    assert covariance("r0").has(overlap)
    assert claim("42")["bracket"] != overlap


# -- responses and sources -----------------------------------------------------------------------------------


def responses() -> dict[str, Expr]:
    """Return the engine's saddle point, in the paper's units, as ``factor * average(a, b)``."""
    found: dict[str, Expr] = {}
    for e in route().saddle_point:
        name = str(e.lhs.func)
        if name.startswith("R_"):
            factor, _ = units().get(name, (S.One, name))
            first = name == "R_gu" and e.lhs.args[0] == 1
            found[name + "1" * first] = e.rhs.replace(lambda x: isinstance(x, Average), _averaged) / factor
    return found


def _averaged(x: Average) -> Expr:
    scaled = [(*units().get(str(v.func), (S.One, str(v.func))), v.args) for v in x.body.args]
    fields = [Function(name)(*args) for _, name, args in scaled]
    return Mul(*[f for f, *_ in scaled]) * average(*sorted(fields, key=lambda v: v.args[-1] != t))


def test_responses_are_36_and_48_and_45_lacks_a_factor() -> None:
    engine = responses()
    for number in ("36", "48"):
        for name, printed in claim(number).items():
            assert sympy.simplify(engine[name] - printed) == 0, name
    for name, printed in claim("45").items():
        assert sympy.simplify(engine[name] + I * printed) == 0, name


def test_61_has_the_covariances_of_the_sources_but_for_two() -> None:
    printed = claim("61")
    right = {k: covariance(k.removeprefix("cov_")) for k in printed if k != "left"}
    slips = {k for k, x in right.items() if sympy.simplify(x - printed[k]) != 0}
    assert slips == {"cov_r0", "cov_r"}
    assert sympy.simplify(right["cov_r0"] - printed["left"]) != 0
    assert right["cov_r0"].subs(nu, 1) == printed["left"].subs(nu, 1)


def covariance(name: str) -> Expr:
    """Return the covariance of a source of the theory, of member ell in a family."""
    found = absorb_factors(mean_field(isotropic(noise=True)), "r0", "u0")
    for u in found.sources:
        site = u.symbol.args[0]
        if str(u.symbol.func) == name and (len(u.symbol.args) == 1 or site.has(ell)):
            return u.covariance.subs(ell, 2 * ell - site) if site.has(ell) else u.covariance
    raise AssertionError(name)
