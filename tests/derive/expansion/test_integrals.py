"""Time integrals against operator words, exactly: errors that are polynomials in time, two samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import Expr, Function, Integer, Poly, Rational, S, Sum, Symbol, exp, expand, integrate, lambdify
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose

from derive.errors import NotApplicable
from derive.expansion import LinearExpansion, Memory, iterated_integral, time_integrals
from derive.expansion.integrals import shuffled
from derive.expansion.operator_words import letters, terms
from derive.linear.operators import J
from derive.program import GradientFlow, L, MomentumFlow, P, alpha, ell, eta, gamma0, mu, s, t
from tests.derive.once import expand_linear, mean_field, mlp
from tests.ledger.claims import claimed

K = ((Integer(2), Rational(1, 2)), (Rational(1, 2), Integer(1)))
x_ = Symbol("x", nonnegative=True)
ERRORS = {
    0: (1 - 2 * t + t**2, -1 + t),
    2: (3 * t, t - t**2),
    4: (t**2, 1 + S.Zero * t),
}
RATE = Rational(1, 3)
Entry = Callable[[int, int], Expr]
"""Samples of row and column (0 where there is none) to a function of t and s."""


@lru_cache(maxsize=8)
def series(order: int, rule: str = "flow", loss: str = "sum", tied: bool = True) -> LinearExpansion:
    return expand_linear(mean_field(mlp(rule=rule, loss=loss, tied=tied)), order)


# -- words, by integrating between their letters -----------------------------------------------------------


class Flow:
    """Operators as entries: for causal ones those at t > s."""

    def integral(self, e: Expr, v: Symbol, a: Expr, b: Expr) -> Expr:
        whole = Poly(e, v).integrate(v)
        return whole.eval(b) - whole.eval(a)

    def error(self, n: int, sample: int, time: Expr) -> Expr:
        return ERRORS[n][sample].subs(t, time)

    def letter(self, x: Memory) -> Entry:
        body = self.word(x.body)
        if x.kernel == "C":
            return lambda i, j: expand(sum(self.error(x.order, a, s) * body(i, a) for a in (0, 1)))
        return lambda i, j: expand(self.error(x.order, j, s) * body(0, 0))

    def word(self, w: Expr) -> Entry:
        ls = letters(w)
        at = next((k for k, x in enumerate(ls) if not isinstance(x, Memory | transpose)), None)
        if at is None:
            return self.causal(ls)
        left = self.chain(ls[:at])
        right = self.chain([x.args[0] for x in reversed(ls[at + 1 :])])

        def entry(i: int, j: int) -> Expr:
            middle = K if ls[at] != J else ((S.One, S.One), (S.One, S.One))
            total = S.Zero
            for p, f in left(i).items():
                for q, g in right(j).items():
                    total += f * middle[p][q] * g.subs(t, s)
            return expand(total)

        return entry

    def chain(self, ls: list[Expr]) -> Callable[[int], dict[int, Expr]]:
        """Return the operators applied to a constant.

        For each row the result has the coefficient of each sample of the constant, in t.
        """
        if not ls:
            return lambda i: {i: S.One}
        rest = self.chain(ls[1:])
        x = ls[0]
        kernel = self.letter(x)

        def apply(i: int) -> dict[int, Expr]:
            found: dict[int, Expr] = {}
            for a in (0,) if x.kernel == "C" else (0, 1):
                for q, f in rest(a).items():
                    body = expand(kernel(i, a) * f.subs(t, s))
                    found[q] = found.get(q, S.Zero) + self.integral(body, s, S.Zero, t)
            return found

        return apply

    def causal(self, ls: list[Expr]) -> Entry:
        first = self.letter(ls[0])
        if len(ls) == 1:
            return first
        rest = self.causal(ls[1:])

        def entry(i: int, j: int) -> Expr:
            total = S.Zero
            for a in (0,) if ls[0].kernel == "C" else (0, 1):
                total += self.integral(expand(first(i, a).subs(s, x_) * rest(a, j).subs(t, x_)), x_, s, t)
            return expand(total)

        return entry


def evaluated(e: LinearExpansion, value: Expr, samples: dict[Symbol, int]) -> Expr:
    """Return an entry with the integrals carried out."""
    opened = value.subs({P: 2, **{k: v + 1 for k, v in samples.items()}}).doit()

    def known(a: AppliedUndef) -> Expr:
        name = str(a.func)
        if name == "K_x":
            return K[int(a.args[0]) - 1][int(a.args[1]) - 1]
        if name.startswith("Delta"):
            return ERRORS[int(name[5:])][int(a.args[0]) - 1].subs(t, a.args[1])
        count = sum(isinstance(i, Integer) for i in a.args)
        names = [Symbol(f"i{k}", integer=True, positive=True) for k in range(count)]
        general = iterated_integral(e, a.func(*names, *a.args[count:]))
        return known_in(general.subs(dict(zip(names, a.args, strict=False))))

    def known_in(body: Expr) -> Expr:
        return body.replace(lambda x: isinstance(x, AppliedUndef), known).doit()

    return expand(known_in(opened))


SIDES = {"H": (mu, alpha), "G": (None, None), "A": (mu, None), "B": (None, alpha), "C": (mu, None)}


def check(e: LinearExpansion, name: str, w: Expr) -> None:
    """Compare entries between two samples, which are not symmetric."""
    row, col = SIDES[name]
    value = time_integrals(e, w, row, col)
    i, j = int(row is None), int(col is not None)
    here = {k: v for k, v in ((row, i), (col, j)) if k is not None}
    assert expand(evaluated(e, value, here) - Flow().word(w)(i, j)) == 0, w


@pytest.mark.parametrize("name", list(SIDES))
@pytest.mark.parametrize("n", [0, 2])
def test_integrals_are_the_words(name: str, n: int) -> None:
    e = series(2)
    for _, w in terms(e.coefficient(name, n)):
        check(e, name, w)


@pytest.mark.parametrize(
    ("name", "every"),
    [
        *(pytest.param(*x, marks=pytest.mark.slow) for x in (("A", 22), ("A", 500), ("H", 18))),
        ("H", 36),
        ("G", 18),
    ],
)
def test_fourth_order_shuffles_and_splits(name: str, every: int) -> None:
    e = series(4)
    for _, w in terms(e.coefficient(name, 4))[1::every]:
        check(e, name, w)


@pytest.mark.parametrize("name", ["H", "G", "B", *(pytest.param(x, marks=pytest.mark.slow) for x in "AC")])
def test_entries_add_up_their_words(name: str) -> None:
    e, (row, col) = series(2), SIDES[name]
    words = sum((k * time_integrals(e, w, row, col) for k, w in terms(e.coefficient(name, 2))), S.Zero)
    samples = {k: 1 for k in (row, col) if k is not None}
    assert expand(evaluated(e, e.entry(name, 2) - words, samples)) == 0


def test_the_tangent_kernel_is_the_sum_over_layers() -> None:
    e = series(2)
    samples = {mu: 0, alpha: 1}
    total = evaluated(e, e.entry("K", 2), samples)
    for depth in (1, 3):
        direct = S.Zero
        for layer in range(depth + 1):
            for m in (0, 2):
                parts = [(e.entry("G", m), layer + 1), (e.entry("H", 2 - m), layer)]
                g, h = (evaluated(e, x.subs({ell: k, L: depth}), samples) for x, k in parts)
                direct += g * h
        assert expand(total.subs(L, depth) - direct) == 0


def test_the_output_moves_by_the_tangent_kernel() -> None:
    """df/dt = sum K Delta, order by order: a check of f and K that uses neither's derivation."""
    e = series(2)
    for n in (0, 2):
        f = evaluated(e, e.entry("f", n), {mu: 0}).diff(t)
        rate = S.Zero
        for m in range(0, n + 1, 2):
            for a in (0, 1):
                K_now = evaluated(e, e.entry("K", m, t, t), {mu: 0, alpha: a})
                rate += K_now * ERRORS[n - m][a]
        assert expand(f - rate) == 0


# -- discrete steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [pytest.param("sum", marks=pytest.mark.slow), "mean"])
def test_sums_over_steps_are_the_words(loss: str) -> None:  # noqa: C901 (one evaluator of words for all kinds of letters)
    import numpy as np

    e = series(2, "gd", loss)
    rng = np.random.default_rng(0)
    T, n, rate = 4, 2, 0.3
    k = np.array([[2.0, 0.5], [0.5, 1.0]])
    errors = {m: rng.standard_normal((T, n)) for m in (0, 2)}
    weight = rate / (n if loss == "mean" else 1)
    past = weight * np.tril(np.ones((T, T)), -1)
    flat = {"K_x": np.einsum("ts,ab->tasb", np.ones((T, T)), k), "J": np.ones((T, 1, T, 1))}

    def matrix(w: Expr) -> np.ndarray:
        value: np.ndarray | None = None
        for x in letters(w):
            flip = isinstance(x, transpose)
            y = x.args[0] if flip else x
            if isinstance(y, Memory):
                body = matrix(y.body)
                if y.kernel == "C":
                    m = np.einsum("sb,tasb,ts->tas", errors[y.order], body, past)[..., None]
                else:
                    m = np.einsum("sb,ts,ts->tsb", errors[y.order], body[:, 0, :, 0], past)[:, None]
            else:
                m = flat[str(y)]
            m = m.transpose(2, 3, 0, 1) if flip else m
            value = m if value is None else np.einsum("taub,ubsc->tasc", value, m)
        assert value is not None
        return value

    def number(value: Expr, samples: dict[Symbol, int], now: int, before: int) -> float:
        opened = value.subs({P: 2, eta: rate, t: now, s: before, **{a: b + 1 for a, b in samples.items()}})

        def known(a: AppliedUndef) -> Expr:
            name = str(a.func)
            if name == "K_x":
                return k[int(a.args[0]) - 1, int(a.args[1]) - 1]
            if name.startswith("Delta"):
                return errors[int(name[5:])][int(a.args[1]), int(a.args[0]) - 1]
            orders = [int(i) for i in name.split("_")[1:]]
            return nested([int(i) for i in a.args], orders)

        def nested(args: list[int], orders: list[int]) -> float:
            count = args.index(-7)  # marks where the times begin
            samples_, (time, *start) = args[:count], args[count + 1 :]
            if not samples_:
                return 1.0
            first = start[0] + 1 if start else 0
            rest = samples_[1:]
            return sum(
                weight
                * errors[orders[0] if orders else 0][u, samples_[0] - 1]
                * nested([*rest, -7, u, *start], orders[1:])
                for u in range(first, time)
            )

        return float(opened.doit().replace(lambda x: isinstance(x, AppliedUndef), known))

    for name, (row, col) in SIDES.items():
        for _, w in terms(e.coefficient(name, 2)):
            value = time_integrals(e, w, row, col)
            value = value.replace(
                lambda x: isinstance(x, AppliedUndef) and str(x.func).startswith("v"),
                lambda x: x.func(
                    *[i for i in x.args if i.is_integer],
                    Integer(-7),
                    *[i for i in x.args if not i.is_integer],
                ),
            )
            block = matrix(w)
            for now, before in ((3, 1), (2, 0)):
                for i in range(block.shape[1]):
                    for j in range(block.shape[3]):
                        here = {a: b for a, b in ((row, i), (col, j)) if a is not None}
                        found = number(value, here, now, before)
                        assert found == pytest.approx(block[now, i, before, j], abs=1e-12), (name, w)


def test_products_of_sums_are_not_rewritten() -> None:
    e = series(4, "gd")
    with pytest.raises(NotApplicable, match="sums over steps"):
        e.entry("A", 4)


def test_products_of_integrals_with_momentum_are_not_rewritten() -> None:
    """The weight ``1 - exp(s - t)`` changes with t, so that interleavings do not add up to a product.

    For x = y = t and Delta = 1, the square of ``v = t - 1 + exp(-t)`` is not twice the iterated integral.
    """
    weight = 1 - exp(s - t)
    v = integrate(weight, (s, 0, t))
    nested = integrate(weight * v.subs(t, s), (s, 0, t))
    assert not (v**2 - 2 * nested).subs(t, 2).equals(0)
    with_momentum = expand_linear(mean_field(mlp(rule=MomentumFlow(1))), 4)
    for name in ("H", "G"):
        with pytest.raises(NotApplicable, match=r"weight of past updates, .*, changes with the time t"):
            with_momentum.entry(name, 4)
    faster = GradientFlow(rate=1 / (1 + t))  # the weight 1/(1 + s) does not depend on t
    assert expand_linear(mean_field(mlp(rule=faster)), 4).entry("G", 4) == series(4).entry("G", 4)


# -- printed forms -----------------------------------------------------------------------------------------


def opened(value: Expr) -> Expr:
    """Return sums over two samples written out, with a symmetric kernel."""
    at = value.subs(P, 2).doit()
    at = at.replace(
        lambda x: isinstance(x, AppliedUndef) and str(x.func) in ("K_x", "Kx"),
        lambda x: Function("K_x")(*sorted(x.args, key=str)),
    )
    return expand(at.replace(Function("vv"), Function("v")))


@pytest.mark.parametrize("name", ["H", "G"])
def test_the_printed_integrals_hold_for_one_layer_and_without_tied_weights(name: str) -> None:
    """(P.4)."""
    from tests.ledger.claims.selfconsistent2023.notation import mu as first
    from tests.ledger.claims.selfconsistent2023.notation import nu as second

    printed = claimed("selfconsistent2023", "P.4")[name].expand().coeff(gamma0, 2)
    printed = opened(printed.subs({first: 1, second: 2}))
    here = {mu: 1, alpha: 2}
    assert expand(opened(series(2, tied=False).entry(name, 2).subs(here)) - printed) == 0
    gap = expand(opened(series(2).entry(name, 2).subs(here)) - printed)
    assert gap.subs({L: 1, ell: 1}) == 0
    assert all(gap.subs({L: n, ell: k}) != 0 for n in (2, 3) for k in range(1, n + 1))


def test_the_printed_tangent_kernel_holds_for_one_layer_and_without_tied_weights() -> None:
    """(16)."""
    from tests.ledger.claims.selfconsistent2023.notation import mu as first
    from tests.ledger.claims.selfconsistent2023.notation import nu as second

    printed = claimed("selfconsistent2023", "16")["K"].expand().coeff(gamma0, 2)
    printed = opened(printed.subs({first: 1, second: 2}))
    here = {mu: 1, alpha: 2}
    free = series(2, tied=False)  # whose updates are not a gradient: the sum over layers is what is printed
    for depth in (1, 2):
        layers = [
            free.entry("G", 2).subs(ell, k + 1) * Function("K_x")(mu, alpha) + free.entry("H", 2).subs(ell, k)
            for k in range(depth + 1)
        ]
        total = sum((opened(x.subs({L: depth, **here})) for x in layers), S.Zero)
        assert expand(total - printed.subs(L, depth)) == 0
    gap = expand(opened(series(2).entry("K", 2).subs(here)) - printed)
    assert gap.subs(L, 1) == 0
    assert gap.subs(L, 2) != 0


# -- the exact two-layer solution --------------------------------------------------------------------------


@pytest.mark.parametrize("order", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_one_sample_against_the_exact_solution(order: int) -> None:
    """Delta^(2) and Delta^(4) at L = 1, K_x = 1, P = 1 from the series; Taylor coefficients of (F.12)."""
    from derive.reduce.whitened import norm
    from tests.derive.once import two_layer, whitened

    e = series(order)
    solution = whitened(two_layer(mean_field(mlp(1, rule="flow")))).solution.rhs
    now = Rational(7, 10)
    with mpmath.workdps(60):
        exact = lambdify(gamma0, solution.subs({norm: 1, t: now}), "mpmath")
        # even in gamma0, and 0/0 at gamma0 = 0: a polynomial through small points
        points = [mpmath.mpf(k) / 10**4 for k in range(1, 7)]
        matrix = mpmath.matrix([[g ** (2 * k) for k in range(6)] for g in points])
        coefficients = mpmath.lu_solve(matrix, mpmath.matrix([exact(g) for g in points]))

    def one(*_: Expr) -> Expr:
        return S.One

    errors = {0: exp(-2 * t)}
    for n in range(2, order + 1, 2):
        at = e.error_equation(n).rhs.subs({L: 1, P: 1, mu: 1})
        equation = at.doit().replace(Function("K_x"), one)

        def known(a: AppliedUndef) -> Expr:
            name, time = str(a.func), a.args[-1]
            orders = [int(i) for i in name.split("_")[1:]] or [0] * (len(a.args) - 1)
            value: Expr = S.One
            for k in reversed(orders):
                value = integrate(expand(errors[k] * value), (t, 0, x_)).subs(x_, t)
            return value.subs(t, time)

        own = Function(f"v_{n}")(1, t)
        assert expand(equation.coeff(own)) == -2
        source = (equation + 2 * own).expand()
        source = expand(source.replace(lambda a: isinstance(a, AppliedUndef), known))
        grown = integrate(expand(exp(2 * t) * source.diff(t)), (t, 0, x_)).subs(x_, t)
        errors[n] = expand(exp(-2 * t) * grown)
    for n, found in errors.items():
        with mpmath.workdps(30):
            value = mpmath.mpf(str(found.subs(t, now).evalf(30)))
            assert abs(coefficients[n // 2] - value) < 1e-15


# -- shuffles ----------------------------------------------------------------------------------------------

nested = st.lists(st.tuples(st.integers(0, 2), st.just(0)), max_size=4).map(tuple)


@given(nested, nested)
def test_shuffles_count_and_commute(a: tuple[tuple[int, int], ...], b: tuple[tuple[int, int], ...]) -> None:
    from math import comb

    assert len(shuffled(a, b)) == comb(len(a) + len(b), len(a))
    assert sorted(shuffled(a, b)) == sorted(shuffled(b, a))


def test_names_do_not_meet() -> None:
    """Summed samples are beta, beta', ...: never mu or alpha."""
    found = series(2).entry("A", 2)
    names = {str(i) for i in found.atoms(Symbol)} - {"L", "ell", "P", "t", "s", "mu"}
    assert names == {"beta", "beta_", "beta__"}


def test_what_lies_between_two_steps_is_neither() -> None:
    steps = expand_linear(mean_field(mlp(rule="gd")), 0)
    v, inner = Function("v")(mu, t, s), Symbol("t_", nonnegative=True)
    expected = Sum(eta * Function("Delta0")(mu, inner), (inner, s + 1, t - 1))
    assert iterated_integral(steps, v) == expected
