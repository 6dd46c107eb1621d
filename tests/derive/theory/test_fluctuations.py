"""Fluctuations of finite networks as expressions: the exponent of one unit, its saddle, its derivatives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from sympy import (
    Add,
    Dummy,
    Expr,
    Function,
    Integer,
    KroneckerDelta,
    Piecewise,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    symbols,
    tanh,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import match, substitute
from derive.errors import NotApplicable, ProgramError
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Network,
    P,
    Population,
    Program,
    adam,
    alpha,
    anchored_descent,
    convolution,
    depth_program,
    ell,
    eta,
    feedback_alignment,
    gamma0,
    isotropic,
    mlp,
    mu,
    muon,
    perceptron,
    recurrent,
    s,
    structured,
    t,
)
from derive.show import PaperLatex, PaperText, notation
from derive.theory.fluctuations import FluctuatingParameter, Fluctuations, Hatted, fluctuations
from derive.theory.fluctuations.coefficients import Propagator, ScaledCovariance
from derive.theory.fluctuations.document import TITLES, FluctuationView, namespace
from derive.theory.fluctuations.exponent import AuxiliaryField
from derive.theory.fluctuations.hats import averaged
from derive.theory.fluctuations.mean_theory import saddle_differences
from derive.theory.fluctuations.one_unit import indices_and_times, with_other_indices, with_renamed_indices
from derive.theory.routes import check_routes
from tests.derive import programs
from tests.derive.once import mean_field
from tests.derive.theory.unit_process import UnitProcess, WrittenOut, fraction
from tests.numerics.random_programs.checks import Case
from tests.numerics.random_programs.language import draw
from tests.numerics.zoo import CASES

h, g, chi, xi = (Function(x) for x in ("h", "g", "chi", "xi"))
NUMBERS = {eta: Rational(1, 3), gamma0: Rational(3, 2), P: Integer(1)}
f, y = Function("f"), Function("y")


def names_of(found: Fluctuations) -> list[FluctuatingParameter]:
    """Return the order parameters that influence each other."""
    return [q for q in found.parameters if q.kind != "observable"]


# -- hats ----------------------------------------------------------------------------------------------------


def test_averages_of_hats_alone_vanish() -> None:
    product = Hatted(chi(t)) * Hatted(xi(s)) ** 2
    assert averaged(product) == 0
    assert averaged(y(t) * product, ["h"]) == 0
    assert averaged(product * h(t), ["h"]) != 0


def test_a_hat_is_a_derivative_of_all_else() -> None:
    """The same hat twice differentiates twice; numbers are in front, sums and cases outside."""
    n = Symbol("n", integer=True)
    body = y(s) * h(t) * Hatted(chi(s)) ** 2
    assert averaged(body, ["h"]) == y(s) * Average(Response(Response(h(t), chi(s)), chi(s)))
    summed = averaged(h(t) * Sum(y(n) * g(n) * Hatted(chi(n)), (n, 1, 3)), ["h", "g"])
    assert summed == Sum(y(n) * Average(Response(g(n) * h(t), chi(n))), (n, 1, 3))
    cases = averaged(h(t) * Piecewise((Hatted(chi(s)), s < t), (S.Zero, True)))
    assert cases == Piecewise((Average(Response(h(t), chi(s))), s < t), (S.Zero, True))


def test_a_letter_that_a_sum_binds_is_no_letter_of_a_factor() -> None:
    n = Symbol("n", integer=True)
    found = averaged(h(n) * Sum(g(n) * Hatted(chi(n)), (n, 1, 3)))
    assert found.free_symbols == {n}


@pytest.mark.parametrize(
    "program", [mlp(), convolution(2, positions=4, receptive=1), isotropic(2, outputs=3)]
)
def test_letters_of_two_order_parameters_differ(program: Program) -> None:
    for q in fluctuations(program).parameters:
        for p in fluctuations(program).parameters:
            moved = with_other_indices(p, indices_and_times(q))
            new = {r.index for r in moved.every}
            assert len(new) == len(indices_and_times(p))
            assert not new & {*indices_and_times(q)}
            assert not new & {*indices_and_times(p)}


# -- the saddle ----------------------------------------------------------------------------------------------

lam, beta, T, branch = symbols("lam beta T branch", positive=True)


def gated() -> Program:
    """Return one layer whose units are multiplied by gates of the same inputs."""
    units, pixels = Population("units"), Population("pixels", given=True)
    a, b, x = Field("a", units), Field("b", units), GivenVector("x", pixels, "K_x")
    U, V, w = (
        GaussianMatrix("U", units, pixels),
        GaussianMatrix("V", units, units),
        GaussianVector("w", units),
    )
    forward = {
        a(mu, t): U @ x(mu),
        b(mu, t): V @ tanh(a(mu, t)),
        f(mu, t): Mean(w.symbol * b(mu, t) / (1 + exp(-a(mu, t)))) / gamma0,
    }
    return Network("gated", (a, b), forward, (U, V, w), given=(x,)).train(
        (y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta)
    )


def attention() -> Program:
    """Return attention: queries and keys give numbers whose normalised exponentials weigh values."""
    p, q = symbols("p q", integer=True, positive=True)
    units, pixels = Population("units"), Population("pixels", given=True)
    a, b, c, v, o = (Field(n, units) for n in "abcvo")
    x = GivenVector("x", pixels, "K_x")
    score = Function("score")
    U, w = GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    Q, K, V = (GaussianMatrix(n, units, units) for n in ("Q", "K", "V"))
    weight = exp(score(mu, p, q, t)) / Sum(exp(score(mu, p, q, t)), (q, 1, 3))
    forward = {
        a(mu, p, t): U @ x(mu, p),
        b(mu, p, t): Q @ a(mu, p, t),
        c(mu, p, t): K @ a(mu, p, t),
        v(mu, p, t): V @ a(mu, p, t),
        score(mu, p, q, t): Mean(b(mu, p, t) * c(mu, q, t)),
        o(mu, p, t): Sum(weight * v(mu, q, t), (q, 1, 3)),
        f(mu, t): Mean(w.symbol * Sum(tanh(o(mu, p, t)), (p, 1, 3))) / gamma0,
    }
    ranges = (IndexRange(p, S.One, S(3)), IndexRange(q, S.One, S(3)))
    network = Network("attention", (a, b, c, v, o), forward, (U, Q, K, V, w), given=(x,), ranges=ranges)
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def normalised() -> Program:
    """Return layers that are divided by the root of their mean square."""
    layer, pixels = Population("layer"), Population("pixels", given=True)
    every = IndexRange(ell, S.One, L - 1)
    a, x, m = Field("a", layer, layered=True), GivenVector("x", pixels, "K_x"), Function("m")
    U = GaussianMatrix("U", layer.at(1), pixels)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=every)
    w = GaussianVector("w", layer.at(L))
    forward = {
        a(1, mu, t): U @ x(mu),
        m(ell, mu, t): Mean(a(ell, mu, t) ** 2),
        a(ell + 1, mu, t): W(ell) @ (tanh(a(ell, mu, t)) / m(ell, mu, t) ** Rational(1, 2)),
        f(mu, t): Mean(w.symbol * a(L, mu, t)) / gamma0,
    }
    network = Network("normalised", (a,), forward, (U, W, w), given=(x,), ranges=(every,))
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


BUILT: dict[str, Callable[[], Program]] = {
    "linear": mlp,
    "tanh": lambda: mlp(L, "tanh"),
    "kink": lambda: mlp(L, "relu", tied=False),
    "residual": lambda: mlp(L, "tanh", branch=branch),
    "biases": lambda: mlp(L, "tanh", bias=True),
    "outputs": lambda: mlp(L, outputs=3),
    "widths": lambda: mlp(L, "tanh", relative_widths="a", init_variance="sigma"),
    "momentum": lambda: mlp(L, momentum=beta),
    "decay": lambda: mlp(L, weight_decay=lam),
    "noise of a flow": lambda: mlp(1, rule="flow", weight_decay=lam, temperature=T),
    "flow": lambda: mlp(L, "tanh", rule="flow"),
    "anchored": lambda: mlp(2, rule=anchored_descent(eta, lam, 3)),
    "schedule": lambda: mlp(2, rule=GradientDescent(Function("rate")(t))),
    "cross-entropy": lambda: mlp(1, "tanh", objective="cross-entropy", outputs=3),
    "convolution": lambda: convolution(2, positions=4, receptive=1),
    "feedback alignment": lambda: feedback_alignment(L, "tanh"),
    "full batch": isotropic,
    "online": lambda: isotropic(2, data="online", noise=True),
    "centred": lambda: isotropic(1, center=True),
    "teacher": perceptron,
    "shared weights": recurrent,
    "depth": depth_program,
    "gated": gated,
    "normalised": normalised,
    "two populations": programs.excitatory_inhibitory,
    "there and back": programs.there_and_back,
    "trained in time": programs.trained_between_sizes,
    "attention": attention,
}
SLOW = ("attention", "outputs", "convolution", "noise of a flow", "normalised", "cross-entropy")
"""Those that take more than a second."""


def cases(names: Iterator[str]) -> list[object]:
    """Return each name as a case of a test, with slow ones marked."""
    return [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in names]


@pytest.mark.parametrize("name", cases(iter(BUILT)))
def test_the_saddle_is_the_mean_field_theory(name: str) -> None:
    program = BUILT[name]()
    assert saddle_differences(fluctuations(program), mean_field(program)) == []


@pytest.mark.parametrize("name", ["cubic", "normalised", "several outputs", "stream", "weighted in time"])
def test_the_saddle_of_programs_that_users_write(name: str) -> None:
    program = CASES[name].make()
    assert saddle_differences(fluctuations(program), mean_field(program)) == []


@pytest.mark.parametrize("seed", [8, *(pytest.param(k, marks=pytest.mark.slow) for k in range(20, 50))])
def test_the_saddle_of_random_programs(seed: int) -> None:
    try:
        program = Case(draw(seed)).written
        found = fluctuations(program)
    except NotApplicable:
        return
    except ProgramError as refused:
        if "shift only one of the two" not in str(refused):  # some draws shift an array and a field together
            raise
        return
    assert saddle_differences(found, mean_field(program)) == []


def terms(found: Fluctuations, change: Callable[[int, Expr], Expr], kind: str) -> Fluctuations:
    """Return the exponent with the summands of its terms of a kind changed."""
    changed = [
        replace(x, addend=replace(x.addend, expr=change(k, x.addend.expr))) if x.kind == kind else x
        for k, x in enumerate(found.terms)
    ]
    return replace(found, terms=tuple(changed))


@pytest.mark.parametrize("kind", ["response", "memory", "covariance", "definition"])
def test_an_error_in_any_kind_of_term_is_seen(kind: str) -> None:
    program = CASES["normalised"].make() if kind == "definition" else mlp(2)
    found = fluctuations(program)
    assert any(x.kind == kind for x in found.terms)
    wrong = terms(found, lambda _, e: 2 * e, kind)
    parts = {x.part for x in saddle_differences(wrong, mean_field(program))}
    assert parts == {"exponent of one unit, " + ("source" if kind == "covariance" else "equation")}


def test_errors_in_order_parameters_are_seen() -> None:
    """Planted: a factor in an average, units of another layer, both responses of a pair at equal times."""
    program = mlp(2)
    found, theory = fluctuations(program), mean_field(mlp(2))

    def changed(name: str, **parts: object) -> set[str]:
        new = tuple(replace(q, **parts) if q.name == name else q for q in found.parameters)  # type: ignore[arg-type]
        return {x.part for x in saddle_differences(replace(found, parameters=new), theory)}

    assert changed("A", unit=2 * found.parameter("A").unit) == {"exponent of one unit, response"}
    assert changed("f", unit=2 * found.parameter("f").unit) == {"exponent of one unit, scalar"}
    assert changed("B", home=found.parameter("A").home) == {"units"}
    assert "pair" in changed("A", causal="past")
    assert "pair" in changed("B", causal="strict")
    assert changed("G", unit=S.Zero) >= {"exponent of one unit, correlation"}


def test_the_routes_are_checked_with_the_saddle() -> None:
    assert check_routes(mlp(2)).fluctuations == "compared"
    assert "attributes" in check_routes(structured(1)).fluctuations


# -- refusals ------------------------------------------------------------------------------------------------


def turns() -> Program:
    """Return a matrix and its transpose, one after the other, for several places within a step."""
    n = Symbol("n", integer=True, positive=True)
    units, pixels = Population("units"), Population("pixels", given=True)
    a, b = Field("a", units, ordered=True), Field("b", units, ordered=True)
    x = GivenVector("x", pixels, "K_x")
    U, W, w = (
        GaussianMatrix("U", units, pixels),
        GaussianMatrix("W", units, units),
        GaussianVector("w", units),
    )
    forward = {
        a(1, mu, t): U @ x(mu),
        b(n, mu, t): W @ tanh(a(n, mu, t)),
        a(n + 1, mu, t): W.T @ tanh(b(n, mu, t)),
        f(mu, t): Mean(w.symbol * a(3, mu, t)) / gamma0,
    }
    ranges = (IndexRange(n, S.One, S(2)),)
    network = Network("turns", (a, b), forward, (U, W, w), given=(x,), ranges=ranges)
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: structured(1), "attributes"),
        (lambda: programs.linear_recurrent(programs.tau), "correlated with its transpose"),
        (lambda: mlp(1, "tanh", rule=adam(eta)), "pairs of units"),
        (lambda: mlp(1, "tanh", rules={"w": adam(eta)}), "whole history of its gradient"),
        (lambda: mlp(2, "tanh", rules={"W": muon(eta)}), "singular values"),
        (lambda: mlp(1, rules={"W0": muon(eta)}), "singular values"),
        (turns, "depends on an index"),
    ],
)
def test_refusals_say_why(make: Callable[[], Program], told: str) -> None:
    with pytest.raises(NotApplicable, match=told) as refusal:
        fluctuations(make())
    assert "\n" not in str(refusal.value)


# -- derivatives of the exponent -----------------------------------------------------------------------------

AT = {mu: Integer(1), alpha: Integer(1), ell: Integer(1), t: Integer(1), s: Integer(0)}
"""Indices and times at which order parameters are compared."""


def place(name: str) -> dict[Symbol, Expr]:
    """Return a layer and times at which an order parameter of two layers occurs in the exponent."""
    return {**AT, ell: Integer(2 if name == "G" else 1), t: Integer(0 if name == "Delta" else 1)}


@pytest.mark.parametrize("name", ["H", "G", "A", "B", "Delta"])
def test_influence_is_the_difference_quotient_of_the_exponent(name: str) -> None:
    """The exponent has at most second powers of an order parameter, so that central differences are exact."""
    found = fluctuations(mlp(2))
    q = found.parameter(name)
    at = place(name)
    written_out = WrittenOut(3, NUMBERS)
    whole = written_out(Add(*found.exponents.values()))
    entry = q.symbol.xreplace(at)
    step = Symbol("step")
    moved = [whole.xreplace({entry: entry + x}) for x in (step, -step)]
    quotient = ((moved[0] - moved[1]) / (2 * step)).expand()
    expected = written_out(substitute(Add(*found.influence(name).values()), at))
    assert quotient != 0
    assert (quotient - expected).expand() == 0


def placed(q: FluctuatingParameter, near: FluctuatingParameter, at: dict[Symbol, Expr]) -> dict[Symbol, Expr]:
    """Return the values of an order parameter's letters, for its letters beside another one."""
    there = with_other_indices(q, indices_and_times(near))
    back = dict(zip(with_renamed_indices(q, {}).every, there.every, strict=True))
    return {y.index: at[x.index] for x, y in back.items()}


@pytest.mark.parametrize("name", ["H", "G", "A", "B", "Delta"])
def test_feedback_is_the_derivative_of_an_average(name: str) -> None:
    """For all values of the order parameters, with averages taken of a process that is written out."""
    found = fluctuations(mlp(2))
    b = found.parameter(name)
    late = place(name)
    entry, x = b.symbol.xreplace({**NUMBERS, **late}), Dummy("x")
    moved, fixed = UnitProcess(found, 2, NUMBERS, {entry: x}), UnitProcess(found, 2, NUMBERS)
    some = 0
    for a in (a for a in names_of(found) if a.unit != 0):
        for layer in (1, 2) if a.layers and a.kind == "correlation" else (1,):
            at = {**AT, ell: Integer(layer), s: Integer(1 if a.kind == "correlation" else 0)}
            expected = (
                moved(substitute(averaged(a.unit, found.random), at)).diff(x).xreplace({x: fraction(entry)})
            )
            value = fixed(substitute(substitute(found.feedback(a, b), at), placed(b, a, late)))
            assert (expected - value).expand() == 0, (a.symbol, layer)
            some += expected != 0
    assert some > 0


@pytest.mark.parametrize("first", ["H", "B", "f"])
def test_noise_is_symmetric(first: str) -> None:
    found = fluctuations(mlp(2))
    process = UnitProcess(found, 2, NUMBERS)
    a = found.parameter(first)
    for b in names_of(found):
        at, there = (
            {**AT, s: Integer(first != "B")},
            {**AT, ell: Integer(2 if b.kind == "correlation" else 1)},
        )
        values = [
            process(substitute(substitute(found.noise(p, q), x), placed(q, p, z)))
            for p, x, q, z in ((a, at, b, there), (b, there, a, at))
        ]
        assert (values[0] - values[1]).expand() == 0, b.symbol


def test_functions_of_numbers_are_fields_at_all_layers() -> None:
    """The range of a field grows with the places at which it is averaged; places that overlap are refused."""
    one, last, every = (IndexRange(ell, S(a), S(b)) for a, b in ((1, 1), (L, L), (1, L)))
    field = AuxiliaryField(h(ell, t), [])
    for r in (last, one, last):
        field.add((r,))
    assert field.domains == [(last,), (one,)]
    field.add((every,))
    assert field.domains == [(every,)]
    with pytest.raises(NotApplicable, match="overlap in part"):
        AuxiliaryField(h(ell, t), [(IndexRange(ell, S(1), S(3)),)]).add((IndexRange(ell, S(2), S(4)),))


def test_units_of_a_population_count_by_its_size() -> None:
    """Two thirds of the noise for three halves of the units, none between populations or layers."""
    found = fluctuations(programs.there_and_back())
    k = found.parameter("C_phi_k")
    assert found.noise("C_phi_k", "C_phi_h") == 0
    assert k.home is not None
    assert (found.noise(k, k) * programs.rho_b).expand().has(programs.rho_b) is False
    (delta,) = fluctuations(mlp()).noise("f", "B").atoms(KroneckerDelta)
    assert L - 1 in delta.args


def test_layers_of_a_residual_stream_are_the_same_units() -> None:
    found = fluctuations(mlp(2, branch=branch))
    noise = found.noise("G", "H")
    assert not noise.has(KroneckerDelta)
    assert {a.args[0] for a in noise.atoms(AppliedUndef)} == {ell, Symbol("ell_", integer=True)}


def described(found: Fluctuations, names: dict[str, str]) -> dict[str, object]:
    """Return kinds, causality, influences and noise of order parameters, without letters of indices."""
    told: dict[str, object] = {}
    for q in found.parameters:
        acts = sum(len(Add.make_args(e)) for e in found.influence(q).values())
        scatters = {names[p.name]: len(Add.make_args(found.noise(q, p))) for p in found.parameters}
        told[names[q.name]] = (q.kind, q.causal, acts, scatters)
    return told


def test_fluctuations_do_not_depend_on_names() -> None:
    plain, renamed = fluctuations(mlp(2)), fluctuations(CASES["renamed linear"].make())
    own = ("C_a", "C_g_a", "R_ar", "R_g_a_u", "out", "miss", "K")
    names = dict(zip(("H", "G", "A", "B", "f", "Delta", "K"), own, strict=True))
    assert described(plain, names) == described(renamed, {x: x for x in own})


# -- shown ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_of_it_is_printed_in_the_notation_of_the_papers() -> None:
    found = fluctuations(mlp(1, "tanh"))
    told = found.render()
    for title in TITLES.values():
        assert (title in told) == (title != TITLES["shift"])
    for raw in ("Function(", "Piecewise(", "hat(", "Hatted", "Sum(", "<", "ell"):
        assert raw not in told.replace("s<t", "")
    assert "E[Δ_μ(t)]" in told
    assert "χ̂^1_μ(t)" in told
    assert "δ²" in found.render("feedback") or "δ[" in found.render("feedback")
    assert TITLES["shift"] in found.render("shift")


def test_a_hat_stands_over_the_name_of_a_field() -> None:
    found = fluctuations(isotropic(2))
    names = notation(FluctuationView(found).declared)
    hat = Hatted(found.products[2].symbol)
    assert PaperText(names).doprint(hat) == "χ̂_{u_Δ}(t)"
    assert PaperLatex(names).doprint(hat) == r"\hat{\chi}_{u_{\Delta}}(t)"
    twice = averaged(Function("v")(t) * hat * Hatted(found.products[3].symbol))
    assert PaperText(names).doprint(twice) == "⟨δ²v(t)/δξ_u₀(t)δχ_{u_Δ}(t)⟩"
    assert PaperLatex(names).doprint(twice).count(r"\delta^{2}") == 1


def test_json_holds_each_equation() -> None:
    found = fluctuations(mlp(1))
    told = json.loads(found.render(format="json"))
    assert [x["lhs"]["text"] for x in told["influences"]] == ["E[Δ_μ(t)]"]
    value = eval(told["influences"][0]["rhs"]["srepr"], namespace())
    assert value == found.influence("Delta")["layer"]
    assert json.loads(found.render("noise", "json")).keys() == {"program", "depth", "show", "noise"}


def test_unknown_parts_and_formats_are_refused() -> None:
    found = fluctuations(mlp(1))
    with pytest.raises(ValueError, match="must be one of process, order-parameters"):
        found.render("everything")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be one of text, latex, json"):
        found.render(format="html")


def test_a_bare_result_is_a_summary() -> None:
    told = repr(fluctuations(isotropic(2, data="online")))
    assert "R_Delta(t, s) at s = t" in told
    assert max(map(len, told.splitlines())) <= 100
    assert fluctuations(mlp(1))._repr_latex_().startswith(r"\begin{align*}")


def test_the_origin_of_each_term_is_told() -> None:
    found = fluctuations(mlp())
    told = found.explain("B")
    assert "a step computes W(ell).T @ g(ell + 1, t) after W(ell) @ h(ell, mu, t)" in told
    assert "its mean vanishes at s = t, its fluctuations do not" in told
    assert "its conjugate B" in found.explain("A")
    assert "from the updates of W0" in found.explain("Delta")
    assert "covariance of the Gaussian parts" in found.explain("H")
    assert "drawn anew at every step" in fluctuations(isotropic(2, data="online")).explain("R_Delta")
    assert "equal times have no weight" in fluctuations(mlp(2, rule="flow")).explain("A")
    assert fluctuations(isotropic(2)).explain("R_gu").count("response, the average") == 2
    with pytest.raises(KeyError, match="no order parameter Psi; there are H, G, A, B"):
        found.explain("Psi")


# -- the source of the shift ---------------------------------------------------------------------------------


def entries(found: Fluctuations, q: FluctuatingParameter, times: int) -> list[AppliedUndef]:
    """Return the members of an order parameter of one sample and two layers at the first times."""
    placed = with_renamed_indices(q, {})
    at: list[dict[Symbol, Expr]] = [{}]
    for r in reversed(placed.limits):
        low = [S(r.lower).xreplace({**NUMBERS, **x}) for x in at]
        ends = [S(r.upper).replace(lambda e: e is S.Infinity, lambda _: Integer(times - 1)) for _ in at]
        last = [x.xreplace({**NUMBERS, **y}) for x, y in zip(ends, at, strict=True)]
        at = [
            {**x, r.index: Integer(k)}
            for x, a, b in zip(at, low, last, strict=True)
            for k in range(int(a), int(b) + 1)
        ]
    return [q.symbol.xreplace({**NUMBERS, **x}) for x in at]


def numbered(found: Fluctuations, times: int) -> dict[Expr, Dummy]:
    """Return a variable for each member of each order parameter."""
    every = [e for q in names_of(found) for e in entries(found, q, times)]
    return {e: Dummy(f"x{k}") for k, e in enumerate(every)}


@pytest.mark.parametrize(("depth", "chosen"), [(1, "G Delta f"), (2, "f Delta H")])
def test_curvature_is_half_the_second_derivative_of_an_average(depth: int, chosen: str) -> None:
    """The first of the order parameters, by those that are chosen, contracted with a covariance."""
    whole = fluctuations(mlp(depth))
    found = replace(whole, parameters=tuple(whole.parameter(x) for x in chosen.split()))
    values = numbered(found, 2)
    q, at = found.parameters[0], {**AT, s: Integer(1)}
    average = UnitProcess(whole, 2, NUMBERS, values)(substitute(averaged(q.unit, whole.random), at))
    fixed = UnitProcess(whole, 2, NUMBERS)
    slopes = {a: average.diff(x) for a, x in values.items()}
    second = [
        fixed(ScaledCovariance(a, b)) * slopes[a].diff(x) / 2 for a in values for b, x in values.items()
    ]
    expected = Add(*second).xreplace({x: fraction(e) for e, x in values.items()})
    assert expected != 0
    assert (expected - fixed(substitute(found.shift_source(q, True).curvature, at))).expand() == 0


@pytest.mark.parametrize(("depth", "name"), [(1, "G"), pytest.param(2, "f", marks=pytest.mark.slow)])
def test_a_unit_acts_on_itself_by_the_derivative_of_the_noise(depth: int, name: str) -> None:
    found = fluctuations(mlp(depth))
    values = numbered(found, 2)
    fixed, moved = UnitProcess(found, 2, NUMBERS), UnitProcess(found, 2, NUMBERS, values)
    q, at = found.parameter(name), {**AT, s: Integer(1)}
    expected = S.Zero
    for p in (p for p in names_of(found) if p.unit != 0):
        for e in entries(found, p, 2):
            there = match(p.symbol, e, with_renamed_indices(p, {}).every) or {}
            noise = moved(substitute(substitute(found.noise(q, p), at), placed(p, q, there)))
            expected += Add(*[fixed(Propagator(c, e)) * noise.diff(x) for c, x in values.items()])
    expected = expected.xreplace({x: fraction(e) for e, x in values.items()})
    assert expected != 0
    assert (expected - fixed(substitute(found.shift_source(q, True).self_action, at))).expand() == 0


def test_numbers_have_second_derivatives_of_their_own() -> None:
    """The tangent kernel is a sum of products of two kernels."""
    found = fluctuations(mlp())
    source = found.shift_source("K")
    assert source.curvature == source.self_action == 0
    pairs = {tuple(x.func for x in c.args) for c in source.functions.atoms(ScaledCovariance)}
    assert pairs == {(Function("H"), Function("G"))}


def test_numbers_are_functions_of_averages() -> None:
    found = fluctuations(mlp(1, "tanh", objective="logistic"))
    error = found.deterministic("Delta")
    assert error.has(f(mu, t))
    assert {q.kind for q in found.parameters if error.has(q.symbol.func)} == {"mean"}
    with pytest.raises(ValueError, match="an average over units"):
        found.deterministic("f")
