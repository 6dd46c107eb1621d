"""linear2025: the network, averages over its matrices and their responses as printed, against the engine's.

Entries of the engine's matrices have variance ``variance/D``: printed ones are these over its root.
"""

import pytest
import sympy
from sympy import Add, Expr, Function, I, Mul, S, Sum, sqrt, sympify
from sympy.core.function import AppliedUndef

from derive.program import ell, s, t
from derive.program.networks.random_data import alpha, nu
from derive.program.parts import gaussian
from derive.program.training import TrainedVector
from derive.reduce.data import absorb_factors
from derive.theory import Average
from derive.theory.path_integral.action import Inner
from derive.theory.path_integral.action import N as size
from tests.derive.once import isotropic, mean_field
from tests.ledger.claims import claimed
from tests.ledger.claims.linear2025.notation import D, N, P
from tests.ledger.isotropic_route import route, units

SIZES = {alpha: P / D, nu: N / D}
dot, average = Function("dot"), Function("average")


def claim(number: str) -> dict[str, Expr]:
    return {k: sympify(x) for k, x in claimed("linear2025", number).items()}


def factors(outputs: int | None = None) -> dict[str, Expr]:
    """In front of products with matrices of standard normal entries, and of their updates."""
    program = isotropic(noise=True, outputs=outputs)
    found: dict[str, Expr] = {}
    for d in program.definitions:
        for product in d.products():
            first = d.name == "h" and d.lhs.args[0] == 1
            root = sqrt(gaussian(program.matrix_of(product)).variance / D)
            found["h1" if first else d.name] = d.rhs.coeff(product) * root
    for x in program.trained():
        rate = x.rule.rate * x.update.coefficient
        if isinstance(x, TrainedVector):
            found[x.initial.name] = rate
        else:
            found[x.initial.name] = rate / D / sqrt(x.initial.variance / D)
    return {k: sympify(x).subs(SIZES) for k, x in found.items()}


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

Term = tuple[tuple[str, ...], ...]
"""Two overlaps, each by the names of its vectors."""


def terms(e: Expr) -> dict[Term, Expr]:
    """Coefficients of products of two overlaps; a term and the one with t and t' exchanged are the same."""
    found: dict[Term, Expr] = {}
    for x in Add.make_args(_summands(sympify(e)).expand()):
        overlaps = [a for a in x.atoms(AppliedUndef) if a.func == dot]
        overlaps = [a for a in overlaps for _ in range(int(sympy.degree(x, a)))]
        key = min(_key(overlaps, False), _key(overlaps, True))
        found[key] = found.get(key, S.Zero) + x / Mul(*overlaps)
    return found


def _summands(e: Expr) -> Expr:
    return e.replace(lambda x: isinstance(x, Sum), lambda x: x.function)


def _key(overlaps: list[Expr], exchanged: bool) -> Term:
    name = {t: "s", s: "t"} if exchanged else {t: "t", s: "s"}

    def vector(v: Expr) -> str:
        return f"{v.func}{v.args[:-1]}{name[v.args[-1]]}"

    return tuple(sorted(tuple(sorted(vector(v) for v in x.args)) for x in overlaps))


def of_matrix(*names: str) -> Expr:
    """The engine's products of two overlaps in which one of the fields occurs, in the paper's units."""
    total = S.Zero
    for term in Add.make_args(route().average_exponent):
        overlaps = term.function.atoms(Inner)
        if len(overlaps) == 2 and {str(v.func) for x in overlaps for v in x.vectors} & set(names):
            total += _in_units(term.function)
    return total.subs(size, D).subs(SIZES)


def _in_units(e: Expr) -> Expr:
    def one(x: Inner) -> Expr:
        scaled = [units().get(str(v.func), (S.One, str(v.func))) for v in x.vectors]
        vectors = [Function(name)(*v.args) for v, (_, name) in zip(x.vectors, scaled, strict=True)]
        return Mul(*[f for f, _ in scaled]) * dot(*vectors)

    return e.replace(lambda x: isinstance(x, Inner), one)


def same(a: Expr, b: Expr) -> bool:
    one, two = terms(a), terms(b)
    return one.keys() == two.keys() and all(sympy.simplify(one[k] - two[k]) == 0 for k in one)


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


def test_the_average_over_an_inner_matrix_is_47() -> None:
    assert same(of_matrix("xihat", "h"), claim("47")["exponent"])


# -- responses and sources -----------------------------------------------------------------------------------


def responses() -> dict[str, Expr]:
    """The engine's saddle point, in the paper's units, as ``factor * average(a, b)``."""
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


def test_60_is_the_engines() -> None:
    zero = {str(e.lhs.func): e.rhs for e in route().conjugates}
    assert all(zero[name] == printed for name, printed in claim("60").items())


def test_61_has_the_covariances_of_the_sources_but_for_two() -> None:
    printed = claim("61")
    right = {k: covariance(k.removeprefix("cov_")) for k in printed if k != "left"}
    slips = {k for k, x in right.items() if sympy.simplify(x - printed[k]) != 0}
    assert slips == {"cov_r0", "cov_r"}
    assert sympy.simplify(right["cov_r0"] - printed["left"]) != 0
    assert right["cov_r0"].subs(nu, 1) == printed["left"].subs(nu, 1)


def covariance(name: str) -> Expr:
    """Of a source of the theory; in a family, of its member ell."""
    found = absorb_factors(mean_field(isotropic(noise=True)), "r0", "u0")
    for u in found.sources:
        site = u.symbol.args[0]
        if str(u.symbol.func) == name and (len(u.symbol.args) == 1 or site.has(ell)):
            return u.covariance.subs(ell, 2 * ell - site) if site.has(ell) else u.covariance
    raise AssertionError(name)
