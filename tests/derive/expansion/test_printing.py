"""The series in text and LaTeX."""

from __future__ import annotations

from functools import lru_cache

import pytest
from sympy import Function, Rational, S, Symbol
from sympy.core.function import AppliedUndef

from derive.expansion import LinearExpansion
from derive.expansion.printing import LATEX, TEXT, Words
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    MomentumFlow,
    Network,
    P,
    Population,
    Program,
    ell,
    eta,
    gamma0,
    t,
)
from tests.derive.once import expand_linear, mean_field, mlp


@lru_cache(maxsize=8)
def series(order: int = 2, rule: str = "flow", loss: str = "sum") -> LinearExpansion:
    return expand_linear(mean_field(mlp(rule=rule, loss=loss)), order)


def lines(shown: str) -> list[str]:
    return [" ".join(x.split()) for x in shown.splitlines()]


def test_operator_words_in_text() -> None:
    found = lines(series().render())
    for line in (
        "H^ℓ = Kˣ",
        "+ γ₀² [ℓ(ℓ+1)(3L+2-2ℓ)/6 {c d Kˣ}_sym + ℓ(ℓ+1)(2ℓ+1)/6 c 11ᵀ cᵀ]",
        "A^ℓ = ℓ c",
        "B^ℓ = (L-ℓ) d",
        "K = (L+1) 11ᵀ ∘ Kˣ",
        "+ γ₀² [L(L+1)²(L+2)/12 [[{d c 11ᵀ}_sym + d Kˣ dᵀ] ∘ Kˣ + 11ᵀ ∘ [{c d Kˣ}_sym + c 11ᵀ cᵀ]]]",
    ):
        assert line in found


def test_time_integrals_in_text() -> None:
    found = lines(series().render())
    for line in (
        "H^ℓ_μα(t,s) = K^x_μα",
        "+ γ₀² [ℓ(ℓ+1)(3L+2-2ℓ)/6 Σ_ββ' K^x_μβ K^x_αβ' [v_ββ'(t) + v_β'β(s)]",
        "+ ℓ(ℓ+1)(2ℓ+1)/6 Σ_ββ' K^x_μβ K^x_αβ' v_β(t) v_β'(s)]",
        "Δ^(0)_μ(t) = y_μ - (L+1) Σ_β K^x_μβ v_β(t)",
        "v_ββ'(t) = ∫_0^t dt' Δ^(0)_β(t') ∫_0^{t'} dt'' Δ^(0)_β'(t'')",
        "v_ββ'(t,s) = ∫_s^t dt' Δ^(0)_β(t') ∫_s^{t'} dt'' Δ^(0)_β'(t'')",
    ):
        assert line in found


def test_no_raw_symbols_are_left() -> None:
    for order, rule in ((2, "flow"), (2, "gd")):
        shown = series(order, rule).render()
        assert not any(word in shown for word in ("ell", "beta", "K_x", "Sum(", "Delta", "**", "gamma", "_("))


def test_steps_are_sums() -> None:
    found = lines(series(2, "gd", "mean").render())
    assert "v_β(t) = (η/P) Σ_{t'<t} Δ^(0)_β(t')" in found
    assert "A^ℓ_μ(t,s) = ℓ (η/P) Σ_β K^x_μβ Δ^(0)_β(s)" in found


def test_a_weight_of_past_updates_that_is_a_sum_has_brackets() -> None:
    """It was written as ``l 1 - e^{s-t}``, which reads as another response."""
    with_momentum = expand_linear(mean_field(mlp(rule=MomentumFlow(1))), 1)
    assert "A^ℓ_μ(t,s) = ℓ [1 - e^{s-t}] Σ_β K^x_μβ Δ^(0)_β(s)" in lines(with_momentum.render())
    assert r"&= \ell\,\left[1 - e^{s - t}\right] \sum_{\beta}" in with_momentum.render("latex")


def test_equations_in_latex() -> None:
    shown = series()._repr_latex_()
    assert shown.startswith("\\begin{align*}")
    assert shown.endswith("\\end{align*}")
    for piece in (
        r"(\ell+1)(3 L+2-2 \ell)}{6}\,\left\{\boldsymbol{c}\boldsymbol{d}\boldsymbol{K}^{x}\right\}_",
        r"\Delta^{(0)}_{\mu}(t) &= y_{\mu} - (L+1)\,\sum_{\beta} K^x_{\mu\beta} v_{\beta}(t)",
        r"\sum_{\beta\beta'} K^x_{\mu\beta} K^x_{\alpha\beta'} \left[v_{\beta\beta'}(t) + v_{\beta'\beta}(s)",
        r"v_{\beta\beta'}(t) &= \int_0^t dt'\, \Delta^{(0)}_{\beta}(t')",
        r"\boldsymbol{K}^{\mathrm{NTK}} &= (L+1)\,",
    ):
        assert piece in shown
    assert "L + 1\\," not in shown


@pytest.mark.parametrize(
    ("order", "rule"),
    [(0, "gd"), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((2, "flow"), (2, "gd"), (4, "flow")))],
)
def test_latex_is_well_formed(order: int, rule: str) -> None:
    from matplotlib.mathtext import MathTextParser

    parser = MathTextParser("path")
    shown = series(order, rule).render("latex")
    rows = shown.removeprefix("\\begin{align*}").removesuffix("\\end{align*}").split("\\\\\n")
    for row in rows:
        assert row.count("&") == 1
        plain = row.strip().replace("&", "").replace(r"\,", " ")
        parser.parse(f"${plain}$")


def test_coefficients() -> None:
    assert [Words(TEXT).coefficient(c) for c in (L + 1, ell, L**2 / 2 + L / 2, Rational(3, 2) * ell**2)] == [
        "(L+1)",
        "ℓ",
        "L(L+1)/2",
        "3ℓ²/2",
    ]
    assert Words(LATEX).coefficient(L * ell + ell) == r"\ell(L+1)"
    assert Words(LATEX).coefficient(ell * L / 2) == r"\frac{L\ell}{2}"
    assert Words(LATEX).coefficient(2 * ell**2 * L) == r"2L\ell^{2}"
    assert Words(TEXT).signed_sum([(-L, "x"), (L, "y"), (-L / 3, "z")]) == "-L x + L y - L/3 z"


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(ValueError, match="format = 'html'"):
        series().render("html")


def in_other_words() -> Program:
    """Return two linear layers; samples and fields have names of a user."""
    units, pixels = Population("neurons"), Population("pixels", given=True)
    i, M = Symbol("i", integer=True, positive=True), Symbol("M", integer=True, positive=True)
    image, a = GivenVector("image", pixels, "overlap"), Field("a", units, layered=True)
    f, y = Function("f"), Function("label")
    first = GaussianMatrix("J", units.at(1), pixels)
    hidden = GaussianMatrix("V", units.at(ell + 1), units.at(ell), index=IndexRange(ell, S.One, L - 1))
    read = GaussianVector("v", units.at(L))
    forward = {
        a(1, i, t): first @ image(i),
        a(ell + 1, i, t): hidden(ell) @ a(ell, i, t),
        f(i, t): Mean(read.symbol * a(L, i, t)) / gamma0,
    }
    ranges = (IndexRange(i, S.One, M),)
    net = Network("renamed", (a,), forward, (first, hidden, read), given=(image,), ranges=ranges)
    return net.train((y(i) - f(i, t)) ** 2 / 2, GradientDescent(eta)).at_depth(2)


def test_kernels_of_samples_with_other_names_are_the_same() -> None:
    """The tangent kernel's entries, of which one factor has samples, and the pages that print them."""
    found, builder = (expand_linear(mean_field(p), 2) for p in (in_other_words(), mlp(2)))
    names = {"overlap": "K_x"}
    for n in (0, 2):
        own = found.entry("K", n)
        own = own.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in names,
            lambda x: Function(names[str(x.func)])(*x.args),
        )
        own = own.replace(lambda x: x.is_Symbol and x.name == "M", lambda _: P)
        assert str(own) == str(builder.entry("K", n))
    assert "Δ^(0)_μ(t) = label_μ - 3" in found.render()
    assert found.render("latex")
