"""linear2025 appendix C and depth2023: recursions from layer to layer and their limit equal derived ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from sympy import (
    Add,
    Expr,
    Function,
    Integral,
    KroneckerDelta,
    Mul,
    Rational,
    Sum,
    Symbol,
    expand,
    oo,
    powsimp,
    simplify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import ell, s, t
from derive.depth import CrossLayer, LayerTime, cross_layer, gamma_c_recursion, layer_time
from derive.depth.layers import tau, tau_
from derive.theory import Average
from tests.derive.once import depth_program, mean_field
from tests.ledger.evidence.base import Evidence
from tests.ledger.evidence.identity import Pair, compared, difference, sides
from tests.ledger.evidence.residual import flat, theory
from tests.ledger.evidence.residual_limit import limit

_s = Symbol("s_", nonnegative=True)


def strip(e: Expr) -> Expr:
    """Return sums over time at full extent; responses vanish outside of the printed bounds."""
    return e.replace(
        lambda x: isinstance(x, Sum),
        lambda x: Sum(x.function, *[(i, a, b + 1 if b in (t - 1, s - 1) else b) for i, a, b in x.limits]),
    )


def everywhere(e: Expr) -> Expr:
    """Return sums over sources taken apart, over all times; responses vanish where they are not causal."""
    total = Rational(0)
    for part in Add.make_args(expand(e)):
        (whole,) = [x for x in Mul.make_args(part) if isinstance(x, Sum)]
        times = [i for i, _, _ in whole.limits if i in (s, _s)]
        layers = [x for x in whole.limits if x[0] not in times]
        for term in Add.make_args(expand(part / whole * whole.function)):
            total += Sum(term.subs(dict.fromkeys(times, _s)), *layers, (_s, 0, oo))
    return total


def _flat_equal(one: Expr, other: Expr) -> bool:
    found: dict[Expr, Expr] = {}
    for term in Add.make_args(expand(_terms(flat(other) - flat(one)))):
        power, rest = term.as_independent(AppliedUndef, Sum, as_Add=False)
        found[rest] = found.get(rest, Rational(0)) + power
    return all(simplify(powsimp(x)) == 0 for x in found.values())


def _terms(e: Expr) -> Expr:
    """Return the expression with constant factors of sums in front of them."""

    def out(x: Sum) -> Expr:
        power, rest = x.function.as_independent(AppliedUndef, KroneckerDelta, as_Add=False)
        return power * Sum(rest, *x.limits)

    return e.replace(lambda x: isinstance(x, Sum), out)


def _inside_equal(one: Expr, other: Expr) -> bool:
    def inside(e: Expr) -> Expr:
        return e.replace(lambda x: isinstance(x, Integral), lambda x: Integral(flat(x.function), *x.limits))

    return bool(inside(one) == inside(other))


def _stripped_equal(one: Expr, other: Expr) -> bool:
    return bool(strip(one) == strip(other))


def _everywhere_equal(one: Expr, other: Expr) -> bool:
    return bool(everywhere(one) == everywhere(other))


# -- linear2025 ----------------------------------------------------------------------------------------------


def residual_pairs() -> Iterator[Pair]:
    """Yield the pairs of (76), (77), (82), (90)."""
    cross, h0, v = cross_layer(theory()), Function("h0"), Function("v")
    for number, name in (("76", "h"), ("77", "g")):
        said = sides("linear2025", number)[name]
        yield Pair(number, name, said, cross.field(name).rhs, _everywhere_equal)
    assert theory().equation("h0").rhs == v(t)
    (error,) = [q.definition for q in theory().order_parameters if q.name == "C_h0"]
    assert error == Average(h0(t) * h0(s))
    kernel = next(q.symbol for q in theory().order_parameters if q.name == "C_h0")
    yield Pair("82", "loss", sides("linear2025", "82")["loss"], kernel.subs(s, t), difference)
    noise = {e.lhs: e.rhs for e in limit().noise}
    for name in "ur":
        source = Function(name)
        derived = noise[Average(source(tau, t) * source(tau_, s))]
        yield Pair(
            "90", f"<{name} {name}>", sides("linear2025", "90")[f"<{name} {name}>"], derived, difference
        )


def residual() -> Evidence:
    """Check (76), (77), (82), (90): fields, loss and noises in layer time are the derived ones."""
    return compared(
        "identities_depth:residual",
        "Fields as sums over sources, the loss and the noises in layer time are the derived ones.",
        residual_pairs(),
    )


# -- depth2023 -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def gammas(any_scaling: bool) -> CrossLayer:
    """Return the recursions of the residual network, for alpha = gamma = 1/2 or for arbitrary powers."""
    half = (Rational(1, 2),) * 2
    powers = tuple(Symbol(n, real=True) for n in ("alpha", "gamma")) if any_scaling else half
    return gamma_c_recursion(mean_field(depth_program(alpha=powers[0], gamma=powers[1])))


@lru_cache(maxsize=1)
def in_layer_time() -> LayerTime:
    """Return the limit of infinite depth of the recursions."""
    return layer_time(gammas(False))


def recursion_pairs(number: str) -> Iterator[Pair]:
    """Yield the pairs of Lemma 4.3, Lemma C.1 or D.3."""
    found, printed = gammas(number == "D.3"), sides("depth2023", number)
    for i in (0, 1):
        for j in (0, 1):
            name = f"Gamma_{i}{j}"
            yield Pair(number, name, printed[name], found.response(name, ell - i).rhs, _flat_equal)
        if number != "D.3":
            yield Pair(number, f"C_{i}", printed[f"C_{i}"], found.correlation(f"C_{i}").rhs, _stripped_equal)


def limit_pairs(number: str) -> Iterator[Pair]:
    """Yield the pairs of Prop. 4.4 or C.2."""
    found, printed = in_layer_time(), sides("depth2023", number)
    for i in (0, 1):
        for j in (0, 1):
            name = f"Gamma_{i}{j}"
            yield Pair(number, name, printed[name], found.integral(name).rhs, _inside_equal)
        yield Pair(number, f"C_{i}", printed[f"C_{i}"], found.correlation(f"C_{i}").rhs, _stripped_equal)


def recursions() -> Evidence:
    """Check Lemma 4.3, Lemma C.1, D.3: the recursions of Gamma and C are the derived ones."""
    return compared(
        "identities_depth:recursions",
        "The recursions of Gamma and C are the derived ones, for alpha = gamma = 1/2 and for any of both.",
        [p for n in ("Lemma 4.3", "Lemma C.1", "D.3") for p in recursion_pairs(n)],
    )


def infinite_depth() -> Evidence:
    """Check Prop. 4.4, Prop. C.2: the integral equations at infinite depth are the derived ones."""
    return compared(
        "identities_depth:infinite_depth",
        "The integral equations of Gamma and C at infinite depth are the derived ones.",
        [p for n in ("Prop. 4.4", "Prop. C.2") for p in limit_pairs(n)],
    )
