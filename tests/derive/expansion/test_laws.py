"""Tests of laws for each order by lower orders, and of messages beyond the last words."""

from __future__ import annotations

import pytest
from sympy import Add, Expr, Indexed, Mul, expand
from sympy.functions.elementary.complexes import transpose

import derive.expansion.operator_words
from derive.calculus.symbols import eta, gamma0
from derive.errors import NotApplicable
from derive.expansion import LinearExpansion, Memory
from derive.expansion import expand as expand_in
from derive.expansion.operator_words import Transposes, letters, terms
from derive.expansion.order_recursions import Orders
from tests.derive.once import expand_linear, mean_field, mlp


def in_words(e: Expr, series: LinearExpansion) -> Expr:
    """Return a sum of products of lower orders, with the words of each inserted."""
    flipped = Transposes(x.rhs for x in series.closure.base if x.rhs != 0)

    def of(x: Expr) -> Expr:
        if isinstance(x, transpose):
            return Add(*[c * Mul(*flipped.word(tuple(letters(w)))) for c, w in terms(of(x.args[0]))])
        if isinstance(x, Memory):
            return Add(*[c * Memory(x.kernel, x.order, w) for c, w in terms(of(x.body))])
        assert isinstance(x, Indexed)
        name = str(x.args[0])
        return series.coefficient(name[0], int(name[1:]), x.args[1])

    return expand(Add(*[c * Mul(*map(of, letters(w))) for c, w in terms(e)]))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("order", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_words_obey_the_laws_of_their_orders(order: int, tied: bool) -> None:
    """The words are summed over layers; the laws relate neighbouring ones."""
    series = expand_linear(mean_field(mlp(rule="flow", tied=tied)), order)
    for name in series.names:
        law = Orders(series.closure, order).coefficient(name, order)
        assert expand(in_words(law, series) - series.coefficient(name, order)) == 0


def test_orders_that_vanish_are_found() -> None:
    found = Orders(expand_linear(mean_field(mlp()), 0).closure, 5)
    assert found.errors == {0, 2, 4}
    assert {n for _, n in found.nonzero} == {0, 2, 4}
    assert found.coefficient("H", 3) == 0


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> LinearExpansion:
    """Return an expansion to order 4 whose words end at order 2."""
    monkeypatch.setattr(derive.expansion.operator_words, "WORDS", 2)
    return expand_linear.__wrapped__(mean_field(mlp()), 4)


def test_beyond_the_words_coefficients_are_given_by_lower_orders(long: LinearExpansion) -> None:
    assert str(long.coefficient("A", 4, 2)) == (
        "C0[2]*D0[2]*A2[2] + C0[2]*D2[2]*A0[2] + C2[2]*D0[2]*A0[2] + C4[2]"
    )
    assert long.coefficient("H", 2).atoms(Memory)
    for refused in (lambda: long.entry("H", 4), lambda: long.matrix("H", 4), lambda: long.error_equation(4)):
        with pytest.raises(NotApplicable, match="not given in operator words, which end at order 2"):
            refused()
    with pytest.raises(ValueError, match="coefficients are known to order 2"):
        long.in_time()


def test_beyond_the_words_the_recursion_is_printed(
    long: LinearExpansion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derive.expansion.printing, "SHOWN", 0)
    found = [" ".join(x.split()) for x in long.render().splitlines()]
    for line in (
        "H^ℓ = 3 words at order 2",
        "Hₙ^ℓ = Hₙ^{ℓ-1}",
        "+ Σ_{i+j+k=n-2} Cᵢ^ℓ Gⱼ^{ℓ+1} Cₖ^ℓᵀ",
        "-Σ_{i+j+k+l+m=n-4} Cᵢ^ℓ Dⱼ^ℓ Hₖ^ℓ Dₗ^ℓᵀ Cₘ^ℓᵀ",
        "+ Σ_{i+j=n} Cᵢ[Hⱼ^{ℓ-1}]",
        "fₙ^L = Σ_{i+j=n} Cᵢ^L Gⱼ^{L+1}",
        "+ Σ_{ℓ=1..L-1} Σ_{i+j=n} Gᵢ^{ℓ+1} ∘ Hⱼ^ℓ",
        "H^0 = Kˣ",
        "Δ_μ(t) = y_μ - f_μ(t)",
    ):
        assert line in found, line
    assert r"{\boldsymbol{C}_{k}^{\ell}}^{\top}" in long.render("latex")


def test_options_of_other_expansions_are_refused() -> None:
    theory = mean_field(mlp())
    for options in ({"foo": 3}, {"layer": 3}, {"together": {}}):
        for small in (gamma0, eta):
            with pytest.raises(TypeError, match=f"no option '{next(iter(options))}'"):
                expand_in(theory, small, 1, **options)
    for small in ("gamma0", None, 0):
        with pytest.raises(ValueError, match=r"small = .*: must be"):
            expand_in(theory, small, 1)  # type: ignore[arg-type]
