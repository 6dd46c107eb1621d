"""(F.5)-(F.14): each printed equation follows from the one before, checked with SymPy alone."""

import mpmath
import sympy
from sympy import Derivative, Function, Rational, Symbol, diff, limit, oo, simplify, sqrt

from derive.program import alpha, gamma0, mu, s, t
from tests.ledger.claims import claimed
from tests.ledger.claims.selfconsistent2023.two_layer import G_t, H_y, error, f, y

P = Symbol("P", integer=True, positive=True)
Kx, Delta, gh, h, g, H, G = (Function(name) for name in ("Kx", "Delta", "gh", "h", "g", "H", "G"))
target = Function("y")


def printed(number: str) -> dict[str, sympy.Basic]:
    return claimed("selfconsistent2023", number)


def two_samples(expression: sympy.Basic, row: int = 1, column: int = 2) -> sympy.Expr:
    explicit = expression.subs({P: 2, mu: row, alpha: column}).doit().subs(Kx(2, 1), Kx(1, 2))
    return sympy.expand(explicit)


def test_f6_is_the_average_of_the_product_rule_on_f5() -> None:
    fields = printed("F.5")
    first, second = two_samples(fields["dh"], row=1), two_samples(fields["dh"], row=2)
    average = {g(t) * h(k, t): gh(k, t) for k in (1, 2)}
    product = sympy.expand(first * h(2, t) + h(1, t) * second).subs(average)
    assert sympy.expand(product - two_samples(printed("F.6")["dH"])) == 0
    square = sympy.expand(2 * g(t) * two_samples(fields["dg"])).subs(average)
    assert sympy.expand(square - two_samples(printed("F.6")["dG"])) == 0


def test_f7_is_f6_with_the_average_replaced_by_the_output() -> None:
    output = {gh(k, t): gamma0 * (target(k) - Delta(k, t)) for k in (1, 2)}
    for name in ("dH", "dG"):
        closed = two_samples(printed("F.6")[name]).subs(output)
        assert sympy.expand(closed - two_samples(printed("F.7")[name])) == 0
    fields = printed("F.5")
    change = sympy.expand(g(t) * two_samples(fields["dh"], row=1) + h(1, t) * two_samples(fields["dg"]))
    kernels = {g(t) ** 2: G(t), h(1, t) ** 2: H(1, 1, t), h(1, t) * h(2, t): H(1, 2, t)}
    change = sympy.expand(change / gamma0).subs(kernels)
    assert sympy.expand(change + two_samples(printed("F.7")["dDelta"], row=1)) == 0


def test_initial_kernel_of_the_text_is_a_kernel_of_whitened_data_only() -> None:
    start = printed("F.7 text")["H"]
    assert [start.subs({mu: 1, alpha: k}) for k in (1, 2)] == [1, 0]
    assert start.subs({mu: 1, alpha: 2}) != Kx(1, 2)


def test_f8_is_f7_for_one_unit_sample() -> None:
    one = {P: 1, mu: 1, alpha: 1}
    names = {Kx(1, 1): 1, Delta(1, t): error, target(1): y, H(1, 1, t): H_y}
    whitened = printed("F.8")
    for name, mine in (("dH", "dH_y"), ("dG", "dG"), ("dDelta", "dDelta")):
        reduced = printed("F.7")[name].subs(one).doit().subs(names)
        assert sympy.expand(reduced - whitened[mine]) == 0


def test_f9_is_f8_balanced() -> None:
    eight, nine = printed("F.8"), printed("F.9")
    assert eight["dH_y"] == eight["dG"] == nine["dH_y"]
    assert sympy.expand(eight["dDelta"].subs(G_t, H_y) - nine["dDelta"]) == 0


def on_f9(expression: sympy.Expr) -> sympy.Expr:
    nine = printed("F.9")
    rates = {Derivative(H_y, t): nine["dH_y"], Derivative(error, t): nine["dDelta"]}
    return simplify(diff(expression, t).subs(rates))


def test_f10_is_conserved_and_gives_the_final_kernel() -> None:
    ten = printed("F.10")
    assert ten["half_derivative"] == 0
    assert on_f9(ten["conserved"]) == 0
    assert ten["conserved"].subs(H_y, 1).subs(error, y) == 1
    assert simplify(ten["conserved"].subs(error, 0).subs(H_y, ten["H_y_final"])) == 1


def test_f10_does_not_conserve_a_tampered_quantity() -> None:
    assert on_f9(H_y**2 - 2 * gamma0**2 * (y - error) ** 2) != 0


def test_f11_is_f9_on_the_hyperbola() -> None:
    hyperbola = sqrt(1 + gamma0**2 * (y - error) ** 2)
    assert simplify(printed("F.9")["dDelta"].subs(H_y, hyperbola) - printed("F.11")["dDelta"]) == 0
    assert simplify(printed("F.11")["dDelta"].subs(error, y - f) + printed("F.11")["df"]) == 0


def test_f12_has_the_integrand_as_derivative_and_starts_at_zero() -> None:
    closed, integral = printed("F.12")["closed"], printed("F.12")["integral"]
    integrand = integral.function.subs(s, f)
    assert simplify(closed.subs(f, 0)) == 0
    assert simplify(integrand * printed("F.11")["df"]) == 2
    # The derivative is a ratio of roots that SymPy does not merge by itself: square the ratio.
    ratio = simplify(diff(closed, f) / integrand)
    assert simplify(ratio**2) == 1
    assert ratio.subs({gamma0: 2, y: 3, f: 1}) > 0
    point = {gamma0: Rational(3, 2), y: 2, f: Rational(7, 5)}
    value = mpmath.quad(sympy.lambdify(s, integral.function.subs(point), "mpmath"), [0, 1.4])
    assert abs(value - closed.subs(point).evalf(20)) < 1e-12


def test_f12_text_the_series_converges_up_to_one_over_f() -> None:
    """Ratios of coefficients in gamma0^2 tend to -f^2 for f < y: the printed radius 1/y is safe."""
    level, goal = mpmath.mpf("0.5"), mpmath.mpf(2)

    def coefficient(n: int) -> mpmath.mpf:
        moment = mpmath.quad(lambda x: x ** (2 * n) / (goal - x), mpmath.linspace(0, level, 9))
        return mpmath.binomial(mpmath.mpf(-1) / 2, n) * moment

    radius = 1 / mpmath.sqrt(abs(coefficient(201) / coefficient(200)))
    assert abs(radius * level - 1) < 0.02
    assert radius > float(printed("F.12 text")["radius"].subs(y, 2))


def test_f13_is_the_lazy_limit() -> None:
    thirteen = printed("F.13")
    assert limit(printed("F.11")["df"], gamma0, 0, "+") == 2 * (y - f)
    assert thirteen["dDelta"] == printed("F.11")["dDelta"].subs(gamma0, 0)
    assert simplify(diff(thirteen["Delta"], t) + 2 * thirteen["Delta"]) == 0


def test_f14_is_the_rich_limit_at_fixed_output() -> None:
    rate = printed("F.14")["dDelta"].subs(error, y - f)
    assert sympy.expand(limit(-printed("F.11")["df"] / gamma0, gamma0, oo) - rate / gamma0) == 0


def test_f14_text_the_time_to_learn_has_a_logarithm() -> None:
    """gamma0 t(f = y/2) grows by log(gamma0 ratio)/(2 y); the printed scaling makes it constant."""
    closed = printed("F.12")["closed"]
    strengths = (10**4, 10**6)
    times = [x * closed.subs({gamma0: x, y: 2, f: 1}).evalf(60) / 2 for x in strengths]
    slope = (times[1] - times[0]) / sympy.log(100)
    assert abs(slope - Rational(1, 4)) < 1e-5
    claim = printed("F.14 text")["time"]
    assert simplify(gamma0 * claim) == 1
    asymptote = (sympy.log(2 * gamma0 * f) + sympy.log(y / (y - f))) / (2 * y)
    assert abs(times[1] - asymptote.subs({gamma0: 10**6, y: 2, f: 1}).evalf(30)) < 1e-6
