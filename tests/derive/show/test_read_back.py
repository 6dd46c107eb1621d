"""Printed text is read back as the expression, if a factor behind a quotient counts to its denominator."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Add, Derivative, Expr, Function, Mul, Pow, Rational, Symbol, sqrt, sympify

from derive.calculus.averages import Response
from derive.program import gamma0, t
from derive.program.networks import normalised
from derive.show import text
from tests.derive.once import mean_field, mlp

TOKEN = re.compile(r"\s*(\d+|[a-zγ]₀?(?:\(t\))?|\^\{[^{}]*\}|[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+|[()+√/-])")
DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
a, b = (Symbol(x, positive=True) for x in "ab")
x, y = (Function(n, positive=True)(t) for n in "xy")
NAMES = {"a": a, "b": b, "γ₀": gamma0, "x(t)": x, "y(t)": y}


class Reader:
    """Parser of printed text: neighbours are factors, which bind more strongly than a division sign."""

    def __init__(self, printed: str) -> None:
        self.tokens = TOKEN.findall(printed)
        assert "".join(self.tokens) == printed.replace(" ", "")

    def take(self, *wanted: str) -> str:
        """Return the next token and remove it if it is one of ``wanted``, otherwise the empty text."""
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in wanted else ""

    def sum(self) -> Expr:
        terms = (
            [self.quotient() * (-1 if self.take("-") else 1)] if not self.take("-") else [-self.quotient()]
        )
        while sign := self.take("+", "-"):
            terms.append(self.quotient() * (1 if sign == "+" else -1))
        return Add(*terms)

    def quotient(self) -> Expr:
        value = self.product()
        while self.take("/"):
            value /= self.product()
        return value

    def product(self) -> Expr:
        factors = [self.power()]
        while self.tokens and self.tokens[0] not in "+-/)":
            factors.append(self.power())
        return Mul(*factors)

    def power(self) -> Expr:
        is_root, token = self.take("√"), self.tokens.pop(0)
        if token == "(":
            base = self.sum()
            assert self.take(")")
        else:
            base = NAMES[token] if token in NAMES else sympify(token)
        mark = self.tokens[0] if self.tokens else ""
        exponent = Rational(1, 2) if is_root else Rational(1)
        if mark.startswith("^") or mark.strip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹") == "" != mark:
            exponent *= Rational(self.tokens.pop(0).strip("^{}").translate(DIGITS))
        return base**exponent


powers = st.builds(
    Pow,
    st.sampled_from([a, b, gamma0, x, y, x + a, x * y + 1]),
    st.sampled_from(
        [Rational(n) for n in ("-2", "-3/2", "-1", "-1/2", "-1/3", "1/3", "1/2", "1", "3/2", "2")]
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(powers, min_size=1, max_size=4), st.sampled_from([1, -1, 3, Rational(2, 3), Rational(1, 2)]))
def test_products_of_powers_are_read_back(factors: list[Expr], number: Expr) -> None:
    """The product of 1/sqrt(x) and y was printed as 1/√x y, which is also 1/(√x y)."""
    expr = number * Mul(*factors)
    reader = Reader(text(expr))
    assert (reader.sum() / expr).equals(1)
    assert not reader.tokens


def test_an_inverse_root_without_other_factors_has_no_brackets() -> None:
    assert text(a - 1 / sqrt(x)) == "a - 1/√x(t)"
    assert text(a - y / sqrt(x)) == "a - (1/√x(t)) y(t)"


def test_a_factor_behind_a_derivative_is_not_in_it() -> None:
    f, g, h, r = (Function(n)(1, t) for n in "fghr")
    assert text(Derivative(f, t) * g) == "(d/dt f^1(t)) g^1(t)"
    assert text(Response(h, r) * g, mean_field(mlp(1))) == "(δh^1(t)/δr^1(t)) g^1(t)"


def test_a_normalised_field_is_a_quotient_times_a_field() -> None:
    line = mean_field(normalised(1)).equation("n").rhs
    assert "(1/√size" in text(line, mean_field(normalised(1)))
