"""Golden lines in the papers' notation (selfconsistent2023 eq. 13, 14, D.44, F.1), and the four formats."""

import json
from functools import cache

import pytest
import sympy
from sympy import Function, Symbol, tanh

from derive.calculus.averages import Average
from derive.program import L, alpha, ell, eta, gamma0, mu, s, t
from derive.show import latex, text
from derive.show.notation import notation
from derive.show.text import width
from derive.theory import Theory
from derive.theory.document import namespace, render
from tests.derive.once import error_projected, mean_field, mlp
from tests.derive.programs import recurrent, tau

THEORIES = {
    "linear": lambda: mean_field(mlp()),
    "flow": lambda: mean_field(mlp(rule="flow")),
    "mean loss": lambda: mean_field(mlp(loss="mean")),
    "phi": lambda: mean_field(mlp(L, Function("phi"))),
    "phi flow": lambda: mean_field(mlp(L, Function("phi"), "flow")),
    "tanh": lambda: mean_field(mlp(2, tanh)),
    "untied": lambda: mean_field(mlp(3, tied=False)),
    "unrolled": lambda: mean_field(mlp(3)).at_depth(3),
    "multistep": lambda: mean_field(mlp(rule="multistep")),
    "projected": lambda: error_projected(mean_field(mlp())),
    "recurrent": lambda: mean_field(recurrent()),
    "correlated": lambda: mean_field(recurrent(tau)),
}


@cache
def derived(name: str) -> Theory:
    return THEORIES[name]()


@cache
def shown(name, form="text"):
    return render(derived(name), format=form)


def lines(name, show="all", **options):
    every = show == "all" and not options
    page = shown(name, "latex") if every else render(derived(name), show, "latex", **options)
    return [x.strip().removesuffix(r" \\") for x in page.split("\n")]


def test_linear_fields():
    """F.1 in its discrete form, D.44's base cases."""
    shown = lines("linear")
    layers = r" && \ell = 1,\dots,L"
    assert (
        r"h^{\ell}_{\mu}(t) &= u^{\ell}_{\mu}(t) + \gamma_0 \sum_{s<t} \left[A^{\ell-1}_{\mu}(t,s) + \eta "
        r"\sum_{\alpha=1}^{P} \Delta_{\alpha}(s) H^{\ell-1}_{\mu\alpha}(t,s)\right] g^{\ell}(s)" + layers
    ) in shown
    assert (
        r"g^{\ell}(t) &= r^{\ell}(t) + \gamma_0 \sum_{s<t} \sum_{\alpha=1}^{P} \left[B^{\ell}_{\alpha}(t,s) "
        r"+ \eta \Delta_{\alpha}(s) G^{\ell+1}(t,s)\right] h^{\ell}_{\alpha}(s)" + layers
    ) in shown
    assert r"\{u^{\ell}\} &\sim \mathcal{GP}(0, H^{\ell-1}_{\mu\alpha}(t,s))" + layers in shown
    assert r"f_{\mu}(t) &= \gamma_0^{-1} \left\langle g^{L}(t) h^{L}_{\mu}(t) \right\rangle" in shown
    assert r"\Delta_{\mu}(t) &= y_{\mu} - f_{\mu}(t)" in shown
    assert r"H^{0}_{\mu\alpha}(t,s) &= K^{x}_{\mu\alpha}" in shown
    assert r"G^{L+1}(t,s) &= 1" in shown
    assert r"A^{0} = B^{L} &= 0" in shown


def test_nonlinear_flow_fields_and_responses():
    """Eq. 13 (with g for z phi'(h)), eq. 14."""
    shown = lines("phi flow")
    assert any(
        x.startswith(
            r"h^{\ell}_{\mu}(t) &= u^{\ell}_{\mu}(t) + \gamma_0 \int_0^t ds\, \sum_{\alpha=1}^{P} "
            r"\left[A^{\ell-1}_{\mu\alpha}(t,s) + \Delta_{\alpha}(s) \Phi^{\ell-1}_{\mu\alpha}(t,s)\right] "
            r"g^{\ell}_{\alpha}(s)"
        )
        for x in shown
    )
    assert any(
        x.startswith(
            r"z^{\ell}_{\mu}(t) &= r^{\ell}_{\mu}(t) + \gamma_0 \int_0^t ds\, \sum_{\alpha=1}^{P} "
            r"\left[B^{\ell}_{\mu\alpha}(t,s) + \Delta_{\alpha}(s) G^{\ell+1}_{\mu\alpha}(t,s)\right] "
            r"\phi(h^{\ell}_{\alpha}(s))"
        )
        for x in shown
    )
    assert any(
        x.startswith(r"g^{\ell}_{\mu}(t) &= \dot{\phi}(h^{\ell}_{\mu}(t)) z^{\ell}_{\mu}(t)") for x in shown
    )
    assert any(
        x.startswith(
            r"\Phi^{\ell}_{\mu\alpha}(t,s) &= \left\langle "
            r"\phi(h^{\ell}_{\mu}(t)) \phi(h^{\ell}_{\alpha}(s)) "
            r"\right\rangle"
        )
        for x in shown
    )
    assert any(
        x.startswith(
            r"A^{\ell}_{\mu\alpha}(t,s) &= \gamma_0^{-1} \left\langle \frac{\delta \phi(h^{\ell}_{\mu}(t))}"
            r"{\delta r^{\ell}_{\alpha}(s)} \right\rangle"
        )
        for x in shown
    )


def test_equal_time_response_is_shown():
    shown = "\n".join(lines("phi"))
    assert (
        r"\gamma_0 \sum_{s\le t} \sum_{\alpha=1}^{P} B^{\ell}_{\mu\alpha}(t,s) \phi(h^{\ell}_{\alpha}(s))"
        in shown
    )
    assert r"\ell = 1,\dots,L-1;\ s \le t" in shown


def test_tangent_kernel():
    expected = (
        r"K^{\mathrm{NTK}}_{\mu\alpha}(t,s) &= \sum_{\ell=0}^{L} G^{\ell+1}(t,s) H^{\ell}_{\mu\alpha}(t,s)"
    )
    assert expected in lines("linear")


def test_recurrent_net_has_neither_layers_nor_samples():
    page = lines("correlated")
    rate = r"\frac{d}{dt} x(t) &= -x(t) + \eta(t) + g^{2} \tau \int_0^t ds\, R_{\phi \eta}(t,s) \phi(x(s))"
    assert rate in page
    assert r"\{\eta\} &\sim \mathcal{GP}(0, g^{2} C_{\phi}(t,s))" in page
    assert "d/dt x(t) = -x(t) + η(t)\n" in shown("recurrent")


def test_text():
    shown = render(derived("linear"), "single-site")
    assert (
        "  h^ℓ_μ(t) = u^ℓ_μ(t) + γ₀ Σ_{s<t} [A^{ℓ-1}_μ(t,s) + η Σ_α Δ_α(s) H^{ℓ-1}_μα(t,s)] g^ℓ(s)\n"
        "  g^ℓ(t)   = r^ℓ(t) + γ₀ Σ_{s<t} Σ_α [B^ℓ_α(t,s) + η Δ_α(s) G^{ℓ+1}(t,s)] h^ℓ_α(s)\n"
    ) in shown
    assert "  {r^ℓ} ~ GP(0, G^{ℓ+1}(t,s))\n" in shown
    assert "  A^0 = B^L    = 0" in shown
    assert "h^ℓ_μ(t) = u^ℓ_μ(t) + (η γ₀/P)" not in shown


def test_mean_loss_keeps_its_fraction():
    shown = render(derived("mean loss"), "single-site")
    assert "[A^{ℓ-1}_μ(t,s) + (η/P) Σ_α Δ_α(s) H^{ℓ-1}_μα(t,s)] g^ℓ(s)" in shown
    assert r"\frac{\eta}{P} \sum_{\alpha=1}^{P}" in "\n".join(lines("mean loss"))


PAGES = ("linear", "flow", "phi", "phi flow", "tanh", "untied", "multistep", "projected", "correlated")


@pytest.mark.parametrize("name", PAGES)
def test_text_fits_a_terminal(name):
    assert max(map(width, shown(name).split("\n"))) <= 100


@pytest.mark.parametrize("name", PAGES)
def test_latex_is_balanced(name):
    page = shown(name, "latex")
    assert page.count("{") == page.count("}")
    assert page.count(r"\left") == page.count(r"\right")
    assert page.count(r"\begin{align*}") == page.count(r"\end{align*}")


@cache
def read(line):
    """Parse a line of LaTeX; a line that several theories share is parsed once."""
    mathtext = pytest.importorskip("matplotlib.mathtext")
    line = line.replace("&", "").replace(r"\le ", r"\leq ")  # which mathtext lacks
    mathtext.MathTextParser("path").parse(f"${line}$")


@pytest.mark.parametrize(
    "name",
    [x if x == "correlated" else pytest.param(x, marks=pytest.mark.slow) for x in THEORIES],
)
def test_latex_is_read_by_mathtext(name):
    for line in lines(name):
        if r"\begin" not in line and r"\end" not in line:
            read(line)


REBUILT = ("phi flow", "unrolled", "projected", "correlated")


@pytest.mark.parametrize("name", REBUILT)
def test_srepr_rebuilds_the_equations(name):
    theory = derived(name)
    built = eval(shown(name, "srepr"), namespace())
    assert built["equations"] == [(e.lhs, e.rhs) for e in theory.equations]
    assert built["responses"] == [(q.symbol, q.definition) for q in theory.responses()]
    assert built["sources"] == [(Average(u.symbol * u.partner), u.covariance) for u in theory.sources]


@pytest.mark.parametrize("name", REBUILT)
def test_json_holds_every_equation(name):
    theory = derived(name)
    data = json.loads(render(theory, format="json"))
    assert data["program"] == theory.program.name
    assert len(data["equations"]) == len(theory.equations)
    for e, shown in zip(theory.equations, data["equations"], strict=True):
        assert eval(shown["rhs"]["srepr"], namespace()) == e.rhs
        assert [(x["kind"], x["matrix"], x["rule"]) for x in shown["terms"]] == [
            (x.kind, x.matrix, x.rule) for x in e.terms
        ]
        assert {"text", "latex", "srepr"} == set(shown["lhs"])
    assert {x["symbol"]["text"] for x in data["responses"]} == {
        text(q.symbol, theory) for q in theory.responses()
    }


def test_action_and_saddle_point():
    """Eq. 9, and D.33 before the hatted fields are integrated out."""
    page = "\n".join(lines("linear", "action"))
    assert r"\sum_{\ell=1}^{L} \sum_{t,s=0}^{\infty} G^{\ell}(t,s) \hat{G}^{\ell}(t,s)" in page
    assert (
        r"- \gamma_0^{2} \sum_{\ell=1}^{L-1} \sum_{\mu=1}^{P} \sum_{t,s=0}^{\infty} A^{\ell}_{\mu}(t,s)"
        in page
    )
    assert r"-\mathcal{H}_{\mathrm{layer}} &= i \sum_{t=0}^{\infty} \xi^{L}(t) \hat{\xi}^{L}(t)" in page
    assert r"\int_0^{\infty} dt\, \int_0^{\infty} ds\, " in "\n".join(lines("flow", "action"))
    page = render(derived("linear"), "saddle-point")
    assert "  A^ℓ_μ(t,s)  = -(i/γ₀) ⟨h^ℓ_μ(t) ξ\u0302^ℓ(s)⟩" in page
    assert "Action" in shown("linear")
    assert "Action" not in shown("projected")  # the path integral is not reduced


def test_notations_can_be_overridden():
    shown = "\n".join(lines("linear", names={"H": "K", "gamma0": r"\gamma"}))
    assert r"K^{\ell-1}_{\mu\alpha}(t,s)" in shown
    assert r"\gamma \sum_{s<t}" in shown
    assert "K^{ℓ-1}_μα(t,s)" in render(derived("linear"), names={"H": "K"})
    assert r"K_{\mu\alpha}(t,s) &= \sum" in "\n".join(lines("linear", names="plain"))


def test_a_name_with_a_mark_is_wrapped():
    assert latex(Function("H")(ell, mu, alpha, t, s), names={"H": "K^h"}) == r"{K^h}^{\ell}_{\mu\alpha}(t,s)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: render(derived("linear"), "everything"), "show = 'everything': must be one of single-site"),
        (lambda: render(derived("linear"), format="html"), "format = 'html': must be one of text"),
        (lambda: notation(names="book"), "names = 'book': must be one of papers"),
    ],
)
def test_nonsense_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_single_expressions():
    u_p, K_x, phi, h, C = (Function(x) for x in ("u_p", "K_x", "phi", "h", "C_phi"))
    theory = derived("projected")
    assert latex(u_p(ell, t), theory) == r"u^{\ell}_{p}(t)"
    assert latex(K_x(mu, alpha), theory) == r"K^{x}_{\mu\alpha}"
    assert latex(C(t, s), derived("recurrent")) == r"C_{\phi}(t,s)"
    assert latex(C(0, s), derived("recurrent")) == r"C_{\phi}(0,s)"
    assert latex(phi(h(ell, mu, t)).diff(h(ell, mu, t), 2)) == r"\ddot{\phi}(h^{\ell}_{\mu}(t))"
    slope = sympy.Subs(phi(Symbol("x")).diff(Symbol("x")), Symbol("x"), h(ell, mu, t))
    assert text(slope) == "φ\u0307(h^ℓ_μ(t))"
    assert text(eta / gamma0 * h(1, mu, t)) == "(η/γ₀) h^1_μ(t)"
    assert text(1 - 2 * gamma0**2) == "1 - 2 γ₀²"
    assert latex(-h(2, mu, 0) / 2) == r"-\frac{1}{2} h^{2}_{\mu}(0)"
    assert latex((1 + eta) * h(2, mu, t)) == r"\left(\eta + 1\right) h^{2}_{\mu}(t)"
