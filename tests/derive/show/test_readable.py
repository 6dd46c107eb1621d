"""Tests of readable output: all symbols defined, names as in the papers, brackets against misreading."""

import json
import re
from dataclasses import replace
from functools import cache

import pytest
from sympy import Eq, Function, Heaviside, Max, Rational, Sum, Symbol, erf, pi, sqrt, srepr, tanh

from derive.calculus.averages import Average, Response
from derive.errors import NotApplicable
from derive.program import L, adam, ell, eta, mu, s, t
from derive.program.networks.options import c, c_
from derive.show import latex, text
from derive.show.latex import aligned_latex
from derive.show.notation import notation
from derive.show.text import width, wrap
from derive.theory.document import namespace, render
from derive.theory.path_integral import path_integral
from derive.theory.path_integral.action import Entries
from tests.derive.once import convolution, isotropic, mean_field, mlp, perceptron, recurrent

decay = Symbol("lambda", positive=True)
MAKERS = {
    "decay": lambda: mlp(L, tanh, weight_decay=decay),
    "channels": lambda: mlp(L, outputs=Symbol("C", integer=True, positive=True)),
    "isotropic": lambda: isotropic(L, noise=True),
    "perceptron": perceptron,
    "convolution": lambda: convolution(2, positions=8, receptive=1),
    "recurrent": recurrent,
    "two layers": lambda: mlp(2),
}


@cache
def theory(name):
    return mean_field(MAKERS[name]())


@cache
def shown(name, show="all", form="text"):
    return render(theory(name), show, form)


# -- folded parts of the action ------------------------------------------------------------------------


@pytest.mark.parametrize("show", ["action", "saddle-point", "all"])
def test_the_covariance_of_weights_is_named_and_defined(show):
    page = shown("decay", show)
    assert "Entries" not in page
    assert "c_W(t,s)" in page.split("Covariance of weights")[0]
    assert page.endswith("  c_W(t,s) = c_W₀(t,s) = (1 - η λ)^t (1 - η λ)^s")
    page = shown("decay", show, "latex")
    power = r"\left(1 - \eta \lambda\right)"
    assert rf"  c_{{W}}(t,s) = c_{{W_0}}(t,s) &= {power}^{{t}} {power}^{{s}}" in page


def test_what_is_not_used_is_not_defined():
    assert "Covariance of weights" not in shown("two layers")
    assert "Covariance of weights" not in shown("decay", "order-parameters")


def test_the_definition_is_that_of_the_folded_function():
    built = eval(shown("decay", "action", "srepr"), namespace())
    rate = (1 - eta * decay) ** t * (1 - eta * decay) ** s
    assert built["weights"] == [(Entries("W", t, s), rate), (Entries("W0", t, s), rate)]
    assert any(rhs.has(Entries) for _, rhs in built["action"])
    written = json.loads(shown("decay", "action", "json"))["weights"]
    assert [x["lhs"]["text"] for x in written] == ["c_W(t,s)", "c_W₀(t,s)"]


# -- names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_no_word_has_an_underscore(name):
    page = shown(name, form="latex")
    words = re.findall(r"\\mathrm\{([^{}]*)\}", page)
    assert words
    assert not [x for x in words if "_" in x]
    assert not re.search(r"_\{[^{}]*\}_|_[a-z0-9]_", page)  # TeX refuses two marks on one letter


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow) for x in MAKERS],  # of other theories in test_render.py
)
def test_latex_is_read_by_mathtext(name):
    parser = pytest.importorskip("matplotlib.mathtext").MathTextParser("path")
    for row in shown(name, form="latex").splitlines():
        line = row.strip().removesuffix(r" \\")
        if r"\begin" not in line and r"\end" not in line and line.count(r"\left") == line.count(r"\right"):
            line = line.replace("&", "").replace(r"\le ", r"\leq ")
            parser.parse(f"${line}$")


def test_marks_of_integration_variables():
    page = shown("isotropic", "action", "latex")
    for sign in (r"\xi_{w_{\star}}(t)", r"\hat{\xi}_{w_{\star}}(s)", r"\hat{\chi}_{u_{\Delta}}(t)"):
        assert sign in page
    assert r"\hat{\xi}_{\epsilon}(t)" in page
    page = shown("isotropic", "action")
    for sign in ("ξ_{w_⋆}(t)", "ξ\u0302_{w_⋆}(s)", "χ\u0302_{u_Δ}(t)", "ξ\u0302_ε(t)"):
        assert sign in page
    assert not re.search("star|Delta|eps", page)


def test_hatted_fields_stand_behind_order_parameters():
    """Whatever mark their name has."""
    page = shown("isotropic", "action")
    assert "- (1/2) Σ_{t,s=0..∞} C_v(t,s) χ\u0302_{u_Δ}(t) χ\u0302_{u_Δ}(s)" in page
    assert "Σ_{t,s=0..∞} C_v(t,s) C\u0302_v(t,s)" in page


def test_marks_made_of_several_names():
    names = notation(theory("perceptron"))
    assert names.name("R_Delta_u_Z_v_star").lower == r"\Delta u_{Z v_{\star}}"
    assert names.name("C_vv_star").lower == r"v v_{\star}"
    page = shown("perceptron")
    assert "R_{Δ u_{Z v_⋆}}(t,s)" in page
    assert "C_{v v_⋆}(t,s)" in page
    assert "R_vr(t,s)" in page  # letters stand side by side
    assert latex(Function("C_used")(t, s)) == r"C_{\mathrm{used}}(t,s)"
    assert latex(Function("chi_u_Delta")(t)) == r"\chi_{u \Delta}(t)"  # without a theory: word by word


def test_functions_have_their_usual_signs():
    h = Function("h")(ell, mu, t)
    assert text(2 / sqrt(pi) * h) == "(2/√π) h^ℓ_μ(t)"
    assert text(Max(0, h)) == "max(0, h^ℓ_μ(t))"
    assert text(Heaviside(h) * h) == "Θ(h^ℓ_μ(t)) h^ℓ_μ(t)"
    assert text(Heaviside(h).diff(h)) == "δ(h^ℓ_μ(t))"
    assert latex(Heaviside(h)) == r"\Theta\left(h^{\ell}_{\mu}(t)\right)"
    assert latex(Heaviside(h) ** 2) == r"\Theta\left(h^{\ell}_{\mu}(t)\right)^{2}"
    assert text(Function("eps")(t)) == "ε(t)"


# -- brackets ------------------------------------------------------------------------------------------


def test_a_derivative_of_a_product_has_brackets():
    h, r = Function("h")(t), Function("r")(s)
    gelu = h * (1 + erf(h)) / 2
    assert text(Response(gelu, r)) == "δ[(1/2) (erf(h(t)) + 1) h(t)]/δr(s)"
    assert latex(Response(gelu, r)).startswith(r"\frac{\delta \left[\frac{1}{2} ")
    assert text(Response(h + 1, r)) == "δ[h(t) + 1]/δr(s)"
    assert text(Response(h**2, r)) == "δ[h(t)²]/δr(s)"
    assert text(Response(tanh(h), r)) == "δtanh(h(t))/δr(s)"
    assert latex(Average(Response(h, r))) == (r"\left\langle \frac{\delta h(t)}{\delta r(s)} \right\rangle")


def test_a_covariance_that_is_a_sum_has_none():
    noisy = mean_field(mlp(1, rule="flow", weight_decay=decay, temperature=Symbol("T", positive=True)))
    row = next(x for x in render(noisy, "single-site").splitlines() if "{r^1}" in x)
    assert row == "  {r^1} ~ GP(0, (T/λ) (e^{2 λ min(s,t)} - 1) e^{-λ (s+t)} + e^{-λ t} e^{-λ s})"


# -- lines ---------------------------------------------------------------------------------------------


def test_lines_break_outside_brackets():
    """At a sign outside brackets; else between factors, not inside round brackets; a new term, a new line."""
    body = "x = " + "a " * 5 + "log(b + 1) log(c + 1) - d"
    assert wrap(body, 32, 4) == "x = a a a a a log(b + 1)\n      log(c + 1)\n    - d"
    assert wrap("x = a b [(1 - c) d + (1 - c) e] f", 25, 4) == ("x = a b [(1 - c) d\n      + (1 - c) e] f")
    assert wrap("x = {a b if (k ≥ 2) & (l ≥ 2); 0 otherwise}", 36, 4) == (
        "x = {a b if (k ≥ 2) & (l ≥ 2);\n      0 otherwise}"
    )
    assert wrap("x = y + f(a, b)", 13, 4) == "x = y\n    + f(a, b)"


@pytest.mark.parametrize("name", MAKERS)
def test_no_line_ends_inside_round_brackets_or_an_average(name):
    for line in shown(name).splitlines():
        assert width(line) <= 100
        assert line.count("(") == line.count(")")
        assert line.count("⟨") == line.count("⟩")


def test_ranges_stand_together():
    head = shown("convolution").split("\n\n")[0]
    assert not re.search(r", *\n", head.split(";")[-1])
    assert "p, p' = 1..8" in head


# -- sums and conditions -------------------------------------------------------------------------------


def test_an_index_with_two_ranges_shows_its_bounds():
    """Check that k runs to L in order parameters and to L - 1 in sums."""
    page = shown("recurrent")
    assert "Σ_{k'=1..L-1} Σ_α Δ_α(s)" in page
    assert "Σ_{k,k'=1..L} Σ_{t,s=0..∞}" in page
    assert "k, k' =" not in page.split("\n\n")[0]


def test_a_sum_over_one_layer_is_that_layer():
    assert "1..1" not in shown("two layers")
    assert "A^1_μ(t,s) χ\u0302^2_μ(t) g^2(s)" in shown("two layers", "action")


def test_a_sum_says_whether_it_holds_the_present():
    f = Function("f")
    assert text(Sum(f(s), (s, 0, t))) == "Σ_{s≤t} f(s)"
    assert text(Sum(f(s), (s, 0, t - 1))) == "Σ_{s<t} f(s)"
    assert latex(Sum(f(s), (s, 0, t))) == r"\sum_{s\le t} f(s)"


def test_gaussian_weights_fall_off_in_what_is_printed():
    page = shown("isotropic", "action", "latex")
    assert r"&\quad - \frac{1}{2} \sum_{t,s=0}^{\infty} \hat{\xi}^{L}(t) \hat{\xi}^{L}(s)" in page


def test_conditions_are_bounds():
    assert "if ℓ ≤ L-1; 0 otherwise}" in shown("channels", "saddle-point")
    assert r"\ell \leq L - 1" in shown("channels", "saddle-point", "latex")
    page = shown("convolution", "saddle-point")
    assert "p ≤ k+8" in page
    assert "⟨0⟩" not in page
    assert "⟨-" not in page


def test_the_saddle_point_is_still_that_of_the_path_integral():
    """Numbers drawn out of averages change nothing."""
    built = eval(shown("channels", "saddle-point", "srepr"), namespace())["saddle_point"]
    found = path_integral(theory("channels").program).saddle_point
    assert [(e.lhs, e.rhs) for e in found] == built


# -- srepr ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["channels", "convolution"])
def test_srepr_writes_symbols_as_they_are_made(name):
    page = shown(name, form="srepr")
    assert "commutative" not in page
    assert "extended" not in page
    built = eval(page, namespace())
    assert built["equations"] == [(e.lhs, e.rhs) for e in theory(name).equations]
    assert len(built["action"]) > 1
    assert "commutative" not in shown(name, form="json")


def test_partners_of_indices_are_the_same_symbols():
    page = shown("channels", form="srepr")
    assert "Symbol('c_', integer=True, positive=True)" in page
    assert {str(x) for x in re.findall(r"Symbol\('c_'[^)]*\)", page)} == {
        "Symbol('c_', integer=True, positive=True)"
    }
    found = {x for e in theory("channels").order_parameters for x in e.symbol.free_symbols}
    assert c_ in found
    assert c in found
    odd = Symbol("x", prime=True)
    assert eval(render_srepr(odd), namespace()) == odd


def render_srepr(symbol):
    from derive.theory.document import _srepr

    assert srepr(symbol) == _srepr(symbol)
    assert _srepr(Rational(1, 2) * symbol).count("prime=True") == 1
    return _srepr(symbol)


# -- input that cannot be printed ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: text("x"), "text does not evaluate text such as 'x': give a SymPy expression"),
        (lambda: latex((eta, "x")), "latex does not evaluate text such as 'x'"),
        (lambda: text(None), "text takes an expression, not NoneType"),
        (lambda: aligned_latex([Eq(eta, eta)]), "takes equations with two sides, not True"),
        (lambda: latex(eta, names={"eta": 3}), "names = {'eta': 3}: a name and its LaTeX must be text"),
        (lambda: latex(eta, names=3), "names = 3: must be one of papers, plain or a mapping"),
    ],
)
def test_input_that_cannot_be_printed_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize("form", ["text", "latex", "json", "srepr"])
@pytest.mark.parametrize("show", ["action", "saddle-point"])
def test_a_reduced_theory_has_no_action(show, form):
    """Once the action of the program was printed under the reduction, without a word."""
    reduced = replace(theory("isotropic"), reduction="wide layers")
    with pytest.raises(NotApplicable, match="has the reduction 'wide layers': print those of mean_field"):
        reduced.render(show, form)
    assert "saddle-point" not in repr(reduced)
    assert "action" not in reduced._repr_latex_()


def test_the_steps_of_an_empty_family_are_not_listed():
    assert "Q_W(" not in mean_field(mlp(1, rule=adam(eta))).render("single-site")
    assert "Q_W(" in mean_field(mlp(2, rule=adam(eta))).render("single-site")
