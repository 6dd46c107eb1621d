"""Nonlinear networks: (12)-(14), (D.21), (D.24) text, (D.44)-(D.55), (E.1), (N.10) against the engine."""

from dataclasses import replace

import pytest
from sympy import Expr, Function, S, Sum, Symbol, simplify, sqrt

from derive.calculus.averages import Average, Response
from derive.calculus.sums import normal_form
from derive.ledger import find
from derive.program import L, P, Product, alpha, ell, gamma0, mu, s, t
from derive.theory import Theory
from derive.theory.tensor_programs import Dot, Expectation, Hat, Z, tensor_program
from derive.theory.unfold import unfold
from tests.derive.once import mean_field, mlp
from tests.derive.show.test_tensor_programs import NAMES, dh, dx, equation, one_pass, x
from tests.ledger.claims.selfconsistent2023.nonlinear import response
from tests.ledger.printed_forms import at, canonical, covariance, numbered, phi, printed, same

NEXT = {"h": ell + 1, "z": ell}
ENDS = {"h": S.One, "z": L}


@pytest.fixture(scope="module")
def deep() -> Theory:
    return mean_field(mlp(L, phi, "flow"))


@pytest.fixture(scope="module")
def wide() -> Theory:
    """Unequal widths and variances, in the units of (D.53): r has variance sigma^2 G, responses no 1/gamma0.

    The engine's r is c = sqrt(a(l+1)/a(l)) times that r, so its A is A/(c gamma0), its B is B/gamma0.
    """
    theory = mean_field(mlp(L, phi, "flow", relative_widths="a", init_variance="sigma"))
    a, r, A, B = (Function(n) for n in ("a", "r", "A", "B"))

    def ratio(k: Expr) -> Expr:
        return S.One if k == L else sqrt(a(k + 1)) / sqrt(a(k))

    def units(e: Expr) -> Expr:
        e = e.replace(r, lambda k, *i: ratio(k) * r(k, *i)).replace(B, lambda *i: B(*i) / gamma0)
        return e.replace(A, lambda k, *i: A(k, *i) / (ratio(k) * gamma0))

    equations = tuple(replace(e, terms=tuple(q.rewrite(units) for q in e.terms)) for e in theory.equations)
    return replace(theory, equations=equations)


@pytest.mark.parametrize("number", ["13", "D.44"])
@pytest.mark.parametrize("name", ["h", "z"])
def test_fields_of_a_deep_network(deep: Theory, number: str, name: str) -> None:
    claim = printed(number)[name]
    assert same(at(claim, NEXT[name]), deep.equation(name, NEXT[name]).rhs)
    assert same(at(claim, ENDS[name]), deep.equation(name, ENDS[name]).rhs)
    assert not same(
        at(claim, NEXT[name]).replace(Function("Delta"), lambda *_: S.One),
        deep.equation(name, NEXT[name]).rhs,
    )


@pytest.mark.parametrize(("name", "driven"), [("h", "chi"), ("z", "xi")])
def test_fields_given_the_products_of_a_deep_network(deep: Theory, name: str, driven: str) -> None:
    """(D.44), first and third line: chi and xi hold source and response, what is left is the memory."""
    memory = [q.expr for q in deep.equation(name, NEXT[name]).terms if q.kind == "memory"]
    claim = at(printed("D.44")[f"{name}_{driven}"], NEXT[name])
    assert same(claim - Function(driven)(NEXT[name], mu, t), memory[0])


@pytest.mark.parametrize("number", ["13", "D.44"])
def test_covariances_of_a_deep_network(deep: Theory, number: str) -> None:
    claim = printed(number)
    assert covariance(deep, "u", ell + 1) == at(claim["cov_u"], ell + 1)
    assert covariance(deep, "u", S.One) == at(claim["cov_u"], S.One)
    assert covariance(deep, "r", ell) == at(claim["cov_r"], ell)
    assert covariance(deep, "r", L) == at(claim["cov_r"], L)


@pytest.mark.parametrize(
    ("number", "names"), [("12", ("Phi", "G")), ("14", ("A", "B")), ("D.44", ("Phi", "G", "A", "B"))]
)
def test_order_parameters_of_a_deep_network(deep: Theory, number: str, names: tuple[str, ...]) -> None:
    for name in names:
        q = deep.order_parameter(name)
        assert same(printed(number)[name], q.definition)


def test_the_backward_response_has_an_equal_time_part_and_the_text_denies_it() -> None:
    """g(t) responds to u(t) through phi'(h(t)), which phi'' = 0 of linear networks only prevents."""
    theory = mean_field(mlp(L, phi, "gd"))
    assert (theory.order_parameter("A").causal, theory.order_parameter("B").causal) == ("strict", "past")
    g, u, h = (Function(n) for n in "guh")
    now = unfold(theory, Response(g(ell + 1, mu, t), u(ell + 1, mu, t)), 2)
    assert now.has(phi(h(ell + 1, mu, t)).diff(h(ell + 1, mu, t), 2))
    limits = {q.kind: q.expr.limits for q in theory.equation("z", ell).terms if q.kind != "source"}
    assert (s, 0, t) in map(tuple, limits["response"])
    assert (s, 0, t - 1) in map(tuple, limits["memory"])
    assert mean_field(mlp(L, "linear", "gd")).order_parameter("B").causal == "strict"
    assert printed("D.24 text")["B_equal_time"] == 0


def test_two_layers() -> None:
    theory = mean_field(mlp(1, phi, "flow"))
    claim = printed("D.21")
    for name in ("h", "z"):
        assert same(claim[name], theory.equation(name, 1).rhs)
    assert covariance(theory, "u", S.One) == claim["cov_u"]
    assert covariance(theory, "r", S.One) == claim["cov_r"]
    for name in ("Phi", "G"):
        assert same(claim[name], theory.order_parameter(name).definition.subs(ell, 1))
    assert same(claim["df"], _velocity(theory))


def _velocity(theory: Theory) -> Expr:
    kernel = theory.observables[0]
    return Sum(kernel.rhs.subs(s, t) * Function("Delta")(alpha, t), (alpha, 1, P))


def test_two_layers_as_differential_equations() -> None:
    """(E.1) is the time derivative of the derived fields, whose sources do not move."""
    theory, claim = mean_field(mlp(1, phi, "flow")), printed("E.1")
    for name, source in (("h", "u"), ("z", "r")):
        memory = theory.equation(name, 1).rhs - Function(source)(1, mu, t)
        assert same(memory.diff(t), claim[f"d{name}"])
        assert not covariance(theory, source, S.One).has(t, s)
    assert covariance(theory, "u", S.One) == claim["cov_h"]
    assert covariance(theory, "r", S.One) == claim["cov_z"]
    for name in ("Phi", "G"):
        one_number = claim[name].replace(
            Function("z"), lambda k, _, time: Function("z")(k, Symbol("any"), time)
        )
        derived = canonical(theory.order_parameter(name).definition.subs({ell: 1, s: t}))
        derived = derived.replace(Function("z"), lambda k, _, time: Function("z")(k, Symbol("any"), time))
        assert canonical(one_number) == derived
    assert same(-claim["dDelta"], _velocity(theory))


# -- widths and variances ------------------------------------------------------------------------------------


def with_error(e: Expr) -> Expr:
    for name in ("Phi", "G"):
        f = Function(name)
        e = e.replace(f, lambda *i, f=f: f(*i) * Function("Delta")(i[2], i[4]))
    return e


def equal_at(printed_side: Expr, derived: Expr) -> bool:
    return canonical(numbered(printed_side, "a")) == canonical(numbered(derived, "a"))


def unscaled(e: Expr) -> Expr:
    """(D.55) with A and B put back for their rescaled forms."""
    for name, definition in printed("D.54 text").items():
        f = Function(name[-1])

        def back(k: Expr, *i: Expr, definition: Expr = definition, f: Function = f) -> Expr:
            return definition.subs(ell, k).replace(f, lambda *_: f(k, *i))

        e = e.replace(Function(name), back)
    return e


@pytest.mark.parametrize("name", ["h", "z"])
def test_fields_with_unequal_widths_need_the_error(wide: Theory, name: str) -> None:
    derived = wide.equation(name, NEXT[name]).rhs
    for claim in (printed("D.54")[name], unscaled(printed("D.55")[name])):
        assert equal_at(at(with_error(claim), NEXT[name]), derived)
        assert not equal_at(at(claim, NEXT[name]), derived)


@pytest.mark.parametrize("name", ["h", "z"])
def test_memory_with_unequal_widths(wide: Theory, name: str) -> None:
    """(D.48): source and responses together are chi and xi; what is left is the printed memory."""
    memory = [q.expr for q in wide.equation(name, NEXT[name]).terms if q.kind == "memory"]
    claim = at(printed("D.48")[name], NEXT[name])
    chi = {"h": Function("chi"), "z": Function("xi")}[name](NEXT[name], mu, t)
    assert equal_at(claim - chi, memory[0])


def test_covariances_responses_and_tangent_kernel_with_unequal_widths(wide: Theory) -> None:
    claim = printed("D.53")
    assert covariance(wide, "u", ell + 1) == at(claim["cov_u"], ell + 1)
    ratio = Function("a")(ell + 1) / Function("a")(ell)
    assert simplify(covariance(wide, "r", ell) / ratio - at(claim["cov_r"], ell)) == 0
    assert same(claim["A"], gamma0 * wide.order_parameter("A").definition)
    assert same(response(*_pushed(wide)), gamma0 * wide.order_parameter("B").definition)
    assert claim["B"].has(response(*_pushed(wide)))
    end = {Function("a")(L): S.One}
    kernel = wide.observables[0].rhs.subs(end)
    assert canonical(numbered(kernel, "a")) == canonical(numbered(printed("D.49")["K"], "a"))


def _pushed(theory: Theory) -> tuple[Expr, Expr]:
    average = theory.order_parameter("B").definition * gamma0
    assert isinstance(average, Average)
    body = average.body
    assert isinstance(body, Response)
    return body.body, body.source


def test_action_counts_units() -> None:
    """(D.51) varied in A^l, with (D.52): a_l B^l = a_{l+1} sigma_l^2 sqrt(a_l/a_{l+1}) <dg/du>."""
    a, sigma = (Function(n) for n in ("a", "sigma"))
    body = printed("D.51")["S"].function.expand()
    assert body.coeff(Function("lnZ")(ell)) == a(ell)
    assert body.coeff(Function("Tr")(Function("A")(ell), Function("B")(ell))) == -a(ell)
    cross = sigma(ell) ** 2 * sqrt(a(ell) / a(ell + 1))
    B = printed("D.53")["B"]
    (average,) = (q for q in B.atoms(Function) if str(q.func) == "response")
    found = numbered(a(ell + 1) * cross / a(ell) - B / average, "a")
    assert simplify(found) == 0


# -- Tensor Programs -----------------------------------------------------------------------------------------


def in_tensor_programs(e: Expr) -> Expr:
    """Claim (N.10) in the nodes of the printer, at layer ell."""
    W, marks = Function("W"), {"x": (x, 0), "dh": (dh, 1), "dx": (dx, 0)}
    for name, (vector, shift) in marks.items():
        e = e.replace(Function(name), lambda time, vector=vector, shift=shift: vector(ell + shift, time))
    e = e.replace(W, lambda v: Product(W(ell), False, v)).replace(
        Function("W_top"), lambda v: Product(W(ell), True, v)
    )
    for name, node in (("hat", Hat), ("dot", Dot), ("Z", Z), ("E", Expectation)):
        e = e.replace(Function(name), node)
    return e


def test_tensor_program_equations_are_the_printed_ones() -> None:
    tp, claim = tensor_program(mean_field(one_pass()), NAMES), printed("N.10")
    for name, lhs in (("h", Function("h")(ell + 1, t)), ("dx", dx(ell, t))):
        assert normal_form(equation(tp, Z(lhs))) == normal_form(in_tensor_programs(claim[name]))
    covariances = dict(e.args for e in tp.covariances)
    hats = {"cov_hat_W": Hat(Product(Function("W")(ell), False, x(ell, t)))}
    hats["cov_hat_W_top"] = Hat(Product(Function("W")(ell), True, dh(ell + 1, t)))
    for name, hat in hats.items():
        assert covariances[Expectation(hat * hat.xreplace({t: s}))] == in_tensor_programs(claim[name])


def test_the_table_calls_g_by_the_name_of_z() -> None:
    """In the printer's names z is dx and g is dh; the table says dx for g and dh in its own G."""
    claim = printed("Table N1")
    assert claim["g"] == printed("N.10")["dx_is"].replace(
        Function("dx"), lambda v: Function("Z")(Function("dx")(v))
    )
    assert claim["G"].has(Function("dh"))
    assert not claim["g"].has(Function("dh"))
    assert NAMES[Function("g")(ell, t)] == dh(ell, t)


def test_the_dotted_part_has_a_field_and_no_error() -> None:
    tp = tensor_program(mean_field(one_pass()), NAMES)
    dots = {e.lhs: e.rhs for e in tp.dots}
    mine = dots[Dot(Product(Function("W")(ell), False, x(ell, t)))]
    assert mine.has(Z(dh(ell + 1, s)))
    assert not mine.has(Function("chi"))
    said = printed("N.10 text")["dot"]
    assert said.has(Function("Delta"))
    assert not said.has(Function("Z"))


# -- independent backward matrices ---------------------------------------------------------------------------


def test_without_responses_the_fields_are_those_of_independent_matrices() -> None:
    tied, untied = mean_field(mlp(L, phi, "flow")), mean_field(mlp(L, phi, "flow", tied=False))
    claim = printed("O.1 text")

    def silent(e: Expr) -> Expr:
        return e.replace(Function("A"), lambda *_: claim["A"]).replace(Function("B"), lambda *_: claim["B"])

    for name in ("h", "z"):
        for site in (NEXT[name], ENDS[name]):
            assert same(silent(tied.equation(name, site).rhs), untied.equation(name, site).rhs)
    assert tied.equation("f").rhs == untied.equation("f").rhs
    assert {str(q.func) for q in (p.symbol for p in untied.order_parameters)} == {"Phi", "G"}
    assert not untied.observables
    assert same(claim["df"], _velocity(tied))


@pytest.mark.parametrize("number", ["12", "13", "14", "D.21", "D.44", "D.46", "D.53", "E.1", "N.10"])
def test_verdicts(number: str) -> None:
    assert find("selfconsistent2023", number).verdict == "agrees"
