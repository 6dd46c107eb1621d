"""Appendices E.2, J, L and the ledger of J to M: printed equations against the engine, term by term."""

import pytest
from sympy import (
    Add,
    Derivative,
    Expr,
    Function,
    Identity,
    Integral,
    Lambda,
    Max,
    S,
    Sum,
    Symbol,
    powsimp,
    simplify,
    symbols,
)

from derive.linear.operators import SymbolicIdentity
from derive.program import L, MomentumFlow, P, alpha, ell, gamma0, s, t
from derive.reduce.homogeneous import network_degree
from derive.reduce.ridge import representer, rest_points
from derive.reduce.single_site import single_site
from derive.reduce.stationary import two_sources
from derive.theory import Theory
from tests.derive.once import mean_field, mlp
from tests.ledger.claims.selfconsistent2023.drift import with_samples
from tests.ledger.jklm import (
    ENDS,
    ENTRIES,
    NEXT,
    Delta,
    lam,
    printed,
    tau,
    with_start,
)
from tests.ledger.printed_forms import at, covariance, phi, same

# -- E.2 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 2])
def test_drift_equation_lacks_gamma0_and_counts_z_for_each_sample(samples: int) -> None:
    site = single_site(mean_field(mlp(1, phi, "flow")))
    claim, derived = with_samples(printed("E.2")["dp"], samples), site.drift_pde(samples).rhs
    stretched = claim.coeff(gamma0, 0)
    assert stretched != 0
    risen = [x for x in Add.make_args(claim) if x.has(Derivative) and _moves_z(x)]
    repaired = claim + (gamma0 - 1) * stretched + (S.One / samples - 1) * Add(*risen)
    assert (claim - derived).expand() != 0
    assert (repaired - derived).expand() == 0


def _moves_z(x: Expr) -> bool:
    return any(d.variables == (Symbol("z", real=True),) for d in x.atoms(Derivative))


def test_the_rest_of_e2_is_e1() -> None:
    claim = printed("E.2")
    assert set(claim) == {"dp", "dDelta", "Phi", "G"}
    theory = mean_field(mlp(1, phi, "flow"))
    at_once = {t: t, s: t}
    for name in ("Phi", "G"):
        definition = theory.order_parameter(name).definition.subs(ell, 1)
        assert same(claim[name], definition.xreplace(at_once))
    (kernel,) = theory.observables
    now = kernel.rhs.doit().xreplace(at_once)
    assert same(claim["dDelta"], -Sum(now * Delta(alpha, t), (alpha, 1, P)))


# -- J -------------------------------------------------------------------------------------------------------


def test_output_with_decay() -> None:
    claim, kappa = printed("J.1"), Symbol("kappa", positive=True)
    derived = representer(mean_field(mlp(activation="relu", rule="flow", weight_decay=lam)))
    rectifiers = claim["degree_of_rectifiers"]
    assert simplify(claim["df"].subs(kappa, rectifiers) - derived.rate.rhs) == 0
    said = (
        claim["f"].subs(kappa, rectifiers).replace(Identity, SymbolicIdentity)
    )  # the identity that lambdify knows
    assert said == derived.anywhere


def test_degrees() -> None:
    claim, q = printed("J.1"), Symbol("q", positive=True)
    x = Symbol("x", real=True)
    assert network_degree(mlp(activation="relu")).kappa == claim["degree_of_rectifiers"]
    powers = network_degree(mlp(activation=Lambda(x, Max(0, x) ** q))).kappa
    assert simplify(powers - claim["degree_of_powers"]) == 0


def test_some_rest_points_are_trivial() -> None:
    """The statement fails for lambda > gamma0 y sqrt(K): the only output between 0 and y is 0."""
    assert printed("J.1 text")["rest"].func.__name__ == "Unequality"
    K, y = symbols("K y", positive=True)
    found = {x[2] for x in rest_points(mean_field(mlp(1, "linear", "flow", weight_decay=lam)))}
    strong = {lam: 3, gamma0: 2, K: 1, y: 1}
    assert [x for x in (f.subs(strong) for f in found) if 0 <= x <= 1] == [0]
    weak = {**strong, lam: 1}
    assert len([x for x in (f.subs(weak) for f in found) if 0 <= x <= 1]) == 2


@pytest.fixture(scope="module")
def decaying() -> Theory:
    return two_sources(mean_field(mlp(L, phi, "flow", weight_decay=lam))).theory


@pytest.mark.parametrize("name", ["h", "z"])
def test_fields_with_decay(decaying: Theory, name: str) -> None:
    for site in (NEXT[name], ENDS[name]):
        claim = at(with_start(printed("J.2")[name], name), site)
        assert same(claim, decaying.equation(name, site).rhs)
    for site, kernel in ((ell + 1, "Phi"), (ell, "G")):
        source = "u" if kernel == "Phi" else "r"
        assert covariance(decaying, source, site).func == Function(kernel)


# -- L -------------------------------------------------------------------------------------------------------


def test_weight_of_an_update_with_momentum() -> None:
    claim, memory = printed("L.2"), MomentumFlow(tau).memory(t, s)[1]
    assert simplify(claim["memory"].doit() - memory) == 0
    x = Symbol("x", real=True)
    assert simplify(memory.diff(t) - claim["kernel"].subs(x, t)) == 0


@pytest.mark.parametrize("name", ["h", "z"])
def test_fields_with_momentum(name: str) -> None:
    theory, plain = (mean_field(mlp(L, phi, "flow", **k)) for k in ({"momentum": tau}, {}))
    claim = with_start(printed("L.3")[name], name)
    site = NEXT[name]
    assert same(_inner_first(claim), theory.equation(name, site).rhs)
    kinds = ("source", "response")
    for kind in kinds:
        mine, others = (
            [x.expr for x in th.equation(name, site).terms if x.kind == kind] for th in (theory, plain)
        )
        assert mine == others


def _inner_first(e: Expr) -> Expr:
    """Apply int_0^t dx int_0^x ds k(x - s) F(s) = int_0^t ds (int_s^t dx k(x - s)) F(s)."""
    x = Symbol("x", real=True)

    def turned(a: Integral) -> Expr:
        limits = {v: (low, up) for v, low, up in a.limits}
        if set(limits) != {x, s}:
            return a
        assert limits[s] == (0, x)
        assert limits[x] == (0, t)
        kernel, rest_ = a.function.as_independent(Sum)
        inner = Integral(powsimp(kernel), (x, s, t)).doit()
        return Integral(inner * rest_, (s, 0, t))

    return e.replace(lambda a: isinstance(a, Integral), turned)


# -- the ledger ----------------------------------------------------------------------------------------------


def test_every_equation_is_there_once() -> None:
    numbers = list(ENTRIES)
    assert len(numbers) == len(set(numbers))
    plain = [n for n in numbers if not n.endswith("text")]
    expected = ["E.2", "J.1", "J.2", *(f"K.{k}" for k in range(1, 24)), *(f"L.{k}" for k in range(1, 4))]
    assert plain == [*expected, *(f"M.{k}" for k in range(1, 9))]


def test_verdicts_are_judged() -> None:
    for number, entry in ENTRIES.items():
        judged = entry.verdict not in ("definition", "convention")
        assert bool(entry.derived) == judged, number
        assert entry.evidence or not judged, number


VERDICTS = {
    "wrong": ["K.19", "K.22", "K.23", "K.3"],
    "misprint": ["E.2", "K.13", "K.14", "K.20 text", "K.4", "K.5", "K.9", "M.7", "M.8"],
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_verdicts(verdict: str) -> None:
    assert sorted(n for n, e in ENTRIES.items() if e.verdict == verdict) == VERDICTS[verdict]
