"""Tests of activations from text: the parsed function, and no execution of the text."""

from __future__ import annotations

import builtins
import math
import os
import subprocess
import time
from pathlib import Path

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sympy import Expr, Function, Rational, Symbol, erf, exp, log, pi, simplify, sqrt, tanh
from sympy import Max as SymPyMax

from derive.program import ell, mu, t
from derive.program.networks.options import NAMED
from numerics.errors import SpecError
from numerics.experiment.activation import GRID, READER, h, is_linear, parse_activation
from numerics.experiment.formulas import SYMBOLIC
from tests.derive.once import mlp

MEANT = {
    "tanh(0.8*h)/0.8": 5 * tanh(4 * h / 5) / 4,
    "h*(1 + erf(h/sqrt(2)))/2": h * (1 + erf(h / sqrt(2))) / 2,
    "relu(h) - 0.5*h": SymPyMax(0, h) - h / 2,
    "max(0.1*h, h)": SymPyMax(h / 10, h),
    "-h**2 + 3e-1*pi*h": -(h**2) + 3 * pi * h / 10,
    "softplus(20*h)/20": log(1 + exp(20 * h)) / 20,
    "abs(h)**1.5": abs(h) ** Rational(3, 2),
    "1/(1 + exp(-h))": 1 / (1 + exp(-h)),
    "(1 + h**2)**-(1/2)": 1 / sqrt(1 + h**2),
    "h/(0.01 + (h - 0.1)**2)": h / (Rational(1, 100) + (h - Rational(1, 10)) ** 2),
    "h/(1+exp(-1.702*h))": h / (1 + exp(-1702 * h / 1000)),
    "(2*h)": 2 * h,
}


@pytest.mark.parametrize("text", MEANT)
def test_an_expression_means_what_it_says(text: str) -> None:
    found = parse_activation(text)
    assert found.free_symbols == {h}
    assert simplify(found - MEANT[text]) == 0
    for x in (-1.3, 0.0, 0.7):
        ours = complex(mpmath.mpmathify(found.subs(h, x).evalf(30)))
        assert ours == pytest.approx(complex(MEANT[text].subs(h, x).evalf(30)), rel=1e-12)


@pytest.mark.parametrize("name", NAMED)
def test_a_name_is_that_of_the_builders(name: str) -> None:
    assert parse_activation(name) == NAMED[name](h)


@pytest.mark.parametrize(
    "name",
    [
        x if x in ("linear", "tanh", "relu", "hermite3") else pytest.param(x, marks=pytest.mark.slow)
        for x in NAMED
    ],
)
def test_a_name_gives_the_program_of_the_builders(name: str) -> None:
    assert mlp(1, parse_activation(name)).definitions == mlp(1, name).definitions


def test_the_builders_take_what_comes_out() -> None:
    program = mlp(2, parse_activation("tanh(0.8*h)/0.8"))
    field = Function("h")(ell, mu, t)
    assert 5 * tanh(4 * field / 5) / 4 in program.notation


def test_the_identity_is_seen_however_it_is_written() -> None:
    assert all(map(is_linear, ("linear", "h", " h ", "3*h - 2*h", "(h)")))
    assert not any(map(is_linear, ("2*h", "relu", "h**2", "tanh(h)")))


REFUSED = {
    "": "cannot be read",
    "   ": "cannot be read",
    "sigmoid": "not the name of an activation",
    "ReLU": 'perhaps "relu" was meant',
    "Tanh": 'perhaps "tanh" was meant',
    "x": "not the name",
    "3": "does not depend on h",
    "h - h": "does not depend on h",
    "x*h": "the name x",
    "foo(h)": "the function foo",
    "h.real": "an attribute (.real)",
    "().__class__.__bases__": "an attribute (.__bases__)",
    "__import__('os').system('true')": 'the character "\'"',
    "__import__(h)": "the function __import__",
    "eval(h)": "the function eval",
    "lambda: h": "the character ':'",
    "[h for h in h]": "the character '['",
    "h if h else 1": "IfExp",
    "h and 1": "BoolOp",
    "h == 1": "the character '='",
    "h//2": "FloorDiv",
    "h % 2": "the character '%'",
    "not h": "Not",
    "h\nh": r"the character '\n'",
    "h\x00": r"the character '\x00'",
    "ｈ": "the character",
    "tanh(h, h)": "gives tanh 2 arguments",
    "max(h)": "gives max 1 arguments",
    "tanh(*h)": "Starred",
    "tanh(h)(h)": "Call",
    "True*h": "the value True",
    "1j*h": "the value 1j",
    "tanh(0.8)*h": "tanh of a number",
    "h**h": "h in an exponent",
    "2**h": "h in an exponent",
    "9**9**9**9": "an exponent that contains a power",
    "h**1000": "too large",
    "h**(1/0)": "divides by zero",
    "h**0.123456": "not a simple fraction",
    "((h**9)**9)**9": "powers of powers",
    "1e400*h": "too large or too small",
    "h*1e-60": "too large or too small",
    "h" + "+h" * 90: "too long an expression",
    "h" + "+h" * 10_000: "characters",
    "-" * 60 + "h": "nested too deeply",
    "exp(-1e30*log(2*cosh(h)))": "exp of an expression with a logarithm",
    "exp(-1e29*softplus(h-h))": "exp of an expression with a logarithm",
    "1/h": "finite real number at h = 0",
    "log(h)": "finite real number",
    "sqrt(h)": "finite real number",
    "h**0.5": "finite real number",
    "exp(h**2)": "finite real number",
    "1/(h - 0.1)": "changes its sign",
    "(h - 0.1)**-1": "changes its sign",
    "1/(h - 0.1)**2": "vanishes at h = 0.1",
    "h/(cos(h) + 1)": "vanishes at h = ",
    "abs(h - 0.3)**-0.5": "vanishes at h = 0.3",
    "1/(1 + h**2)/sqrt(abs(h - 0.1))": "vanishes at h = 0.1",
    "1/(0.5 + sin(8*pi*h))": "vanishes at h = ",
    "((h - 0.1)*(h - 0.2))**1.5": "real number at h = 0.15, because (h - 0.1) * (h - 0.2) is -0.0025",
    "log((h - 0.1)*(h - 0.2) + 0.002)": "at h = 0.15, because (h - 0.1) * (h - 0.2) + 0.002 is -0.0005",
    "sqrt(0.5 + sin(8*pi*h))": "not a finite real number at h = ",
}


@pytest.mark.parametrize(
    "text", ["sqrt((h - 0.1)**2)", "sqrt(1 - tanh(h)**2)", "1/sqrt(0.001 + abs(h - 0.1))"]
)
def test_roots_that_are_real_are_taken(text: str) -> None:
    assert parse_activation(text).has(READER.variable)


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_supported_is_named(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_activation(text)
    assert caught.value.key == "network.activation"
    assert caught.value.value == text
    assert REFUSED[text] in caught.value.problem
    assert caught.value.accepted
    assert len(str(caught.value)) < 500


HOSTILE = [
    "__import__('os').system('touch {file}')",
    "open('{file}','w')",
    "exec(\"open('{file}','w')\")",
    "h.__class__.__mro__[-1].__subclasses__()",
    "getattr(h,'func')",
    "(lambda:open('{file}','w'))()",
    "Symbol('h')",
    "Function('open')(h)",
    "h;import os",
    "breakpoint()",
    "exit()",
    "f'{{h}}'",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_leaves_no_trace(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sprung = tmp_path / "sprung"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError):
        parse_activation(text.format(file=sprung))
    assert list(tmp_path.iterdir()) == []


words = st.sampled_from(
    [
        *SYMBOLIC,
        "h",
        "h",
        "h",
        "x",
        "pi",
        "eval",
        "open",
        "__import__",
        "Symbol",
        "os",
        "0.8",
        "2",
        "1e3",
        "-1",
    ]
)
signs = st.sampled_from([*"+-*/(),.[]{}'\"=:; ", "**", "**2", "**-1", "(h)", "lambda ", " if ", ".__class__"])
texts = st.one_of(
    st.text(max_size=40),
    st.lists(words | signs, max_size=25).map("".join),
    st.text(alphabet="h0123456789.+-*/() ", max_size=60),
)


def functions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return a strategy for well-formed expressions, many of which are accepted."""
    return st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda x: f"({x[0]}{x[1]}{x[2]})"),
        st.tuples(st.sampled_from(sorted(set(SYMBOLIC) - {"max", "min"})), inner).map(
            lambda x: f"{x[0]}({x[1]})"
        ),
        st.tuples(inner, st.sampled_from(["2", "3", "16", "-1", "-16", "0.5", "(1/3)"])).map("**".join),
        st.tuples(inner, inner).map(lambda x: f"max({x[0]},{x[1]})"),
        inner.map(lambda x: f"(-{x})"),
    )


numbers = st.floats(1e-3, 1e3).map(lambda x: f"{x:.4g}") | st.sampled_from(["1e30", "1e-30", "pi"])
expressions = st.recursive(st.just("h") | numbers, functions, max_leaves=12)


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(texts)
@example("__import__('os').system('true')")
@example("h.__class__")
@example("(" * 100 + "h")
def test_any_text_is_refused_or_a_function_of_h_and_calls_nothing(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((builtins, "eval"), (builtins, "exec"), (os, "system"), (subprocess, "Popen")):
            patch.setattr(place, name, lambda *_, name=name: pytest.fail(f"{name} was called"))
        accepted_or_refused(text)


@settings(max_examples=15, deadline=None)
@given(expressions)
@example("exp((-1e30*softplus((h-h))))")
@example("(sqrt(((1e30*pi)+(h*h)))**16)")
@example("abs(((((h+1)**16)*sin(h))+cos(h)))")
def test_any_expression_is_refused_or_finite_and_soon(text: str) -> None:
    started = time.perf_counter()
    accepted_or_refused(text)
    assert time.perf_counter() - started < 20


def outcome(text: str) -> Expr | SpecError:
    try:
        return parse_activation(text)
    except SpecError as error:
        return error


def accepted_or_refused(text: str) -> None:
    found = outcome(text)
    if isinstance(found, SpecError):
        assert (found.key, found.value) == ("network.activation", text)
        assert found.accepted
        return
    (slot,) = found.free_symbols
    assert isinstance(slot, Symbol)
    assert slot.is_real
    assert not any(str(a.func) in ("eval", "open") for a in found.atoms(Function))
    value = found.subs(slot, GRID[100]).evalf()
    assert value.is_number
    assert value.is_extended_real is not False
    assert math.isfinite(float(value))
