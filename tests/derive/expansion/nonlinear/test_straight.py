"""Tests of the bulk of networks with kinks and of couplings between layers, beside smooth laws."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from sympy import Abs, Function, Rational, S, Symbol

from derive.calculus.symbols import alpha, mu, s, t
from derive.expansion.nonlinear import expand_nonlinear
from derive.expansion.nonlinear.kinks import expand_kinks, kappa, r, straight, turned, xi
from derive.expansion.nonlinear.single_site import read
from derive.expansion.nonlinear.trees import Terms
from derive.program import L, ell
from tests.derive.once import mean_field, mlp


@lru_cache(maxsize=4)
def series(activation: Any = "relu") -> Any:
    return expand_kinks(mean_field(mlp(L, activation)))


def kernels(terms: Terms) -> list[tuple[tuple[str, int], ...]]:
    return sorted(tuple((x.tensor.name, x.tensor.order) for x in p.statics) for p in terms)


def test_no_derivative_of_a_slope_but_by_a_moving_source_or_a_push() -> None:
    """Terms of Taylor's series for smooth functions correspond to units at the kink."""
    laws = straight(read(mean_field(mlp(L, "relu"))))
    for (name, n), terms in laws.items():
        for p in terms:
            if any(max(orders) > 1 for _, orders in p.averages):
                assert (name, n) in (("Phi", 2), ("B", 0))
                assert {x.tensor.name for x in p.statics} <= {"Phi", "D"}


def test_beside_a_smooth_function() -> None:
    """The smooth law of Phi at order two has these terms, and those of the second derivative besides."""
    smooth = expand_nonlinear(mean_field(mlp(L, Function("phi"))), 2)
    bare = straight(smooth.site)["Phi", 2]
    taylor = [p for law in smooth.laws.values() if law.tensor[:2] == ("Phi", 2) for p in law.terms]
    curved = [p for p in taylor if any(2 in orders for _, orders in p.averages)]
    flat = [p for p in taylor if p not in curved]
    pairs = {tuple(sorted(x.tensor.name for x in p.statics)) for p in flat}
    assert {tuple(sorted(x.tensor.name for x in p.statics)) for p in bare} == pairs | {("Phi",)}
    assert {("C", "C", "G"), ("C", "D")} <= pairs
    assert any(tuple(x.tensor.name for x in p.statics) == ("C", "C", "G") for p in curved)


def test_what_the_layers_hand_on() -> None:
    laws = series().laws
    assert kernels(laws["G", 1]) == [(("C", 0), ("D", -1), ("G", 0))] * 2 + [(("G", 1),)]
    assert kernels(laws["A", 1]) == [(("C", 0), ("C", 0), ("D", -1)), (("C", 1),)]
    assert kernels(laws["B", -1]) == [(("D", -1),)]
    assert kernels(laws["f", 1]) == [(("C", 1), ("G", 0))]
    assert all(c == 1 or c == Rational(1, 2) for terms in laws.values() for c in terms.values())


def test_one_hidden_layer_has_none_of_it() -> None:
    found = expand_kinks(mean_field(mlp(1, "relu")))
    assert set(found.laws) == {("Phi", 2), ("G", 1)}
    assert found.laws["G", 1] == {}
    assert found.drift == 0
    assert found.response("A", 1) == 0
    assert "A" not in found.jumps


def test_sources_that_move() -> None:
    found = series()
    Phi2 = Function("Phi2")
    assert found.equations[0].rhs.coeff(xi(t)) == 1
    assert found.drift.coeff(Phi2(ell - 1, kappa, kappa, t, s)) == 1
    assert found.drift.subs(s, 0) == 0
    # between the kink of the start and that of a source which moved by xi slopes differ: a triangle
    x = Symbol("x", real=True)
    for phi, jump in (("relu", 1), (Abs(x), 2)):
        after = series(phi).jumps["Phi"].after
        assert after[True, False] == -S(jump) / 2 * xi(t) ** 2 * Function("phi")(Function("u")(alpha))
        assert (False, False) not in after


def test_responses() -> None:
    found = series()
    assert found.turning.cases[True, True] == turned(kappa, t, s) * r(kappa)
    assert [found.jumps[name].order for name in ("A", "B")] == [1, 0]
    assert (False, True) not in found.jumps["B"].cases
    for name, n in (("A", 1), ("B", -1), ("B", 0)):
        assert found.response(name, n) != 0
    with pytest.raises(KeyError, match="no response 'A' at order 0"):
        found.response("A", 0)
    assert found.coefficient("f", 1).has(
        Function("A1")(
            L - 1, mu, Symbol("beta", integer=True, positive=True), t, Symbol("t_", nonnegative=True)
        )
    )


@pytest.mark.slow
def test_rendering() -> None:
    shown = series().render()
    assert "X(t) = x + ξ(t)" in shown
    assert "[B^{ℓ-1}_μα(t,s)]_-1 = D^(-1)^ℓ_μα(t,s)" in shown
    assert "⟨ξ(t) ξ(s)⟩ =" in shown
    assert r"\xi(t)" in series().render("latex")
