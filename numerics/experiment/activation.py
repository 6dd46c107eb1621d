"""Activations as a user writes them: a name, or an expression in h such as ``tanh(0.8*h)/0.8``.

User text is never evaluated as Python.  Its syntax tree is walked, and a node that is not on the lists
below is refused by name.  The same walk gives the SymPy expression and its value at a number: the text is
tried at numbers first, which refuses what is not real and finite, and what would be too large to hold.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from sympy import (
    Abs,
    Expr,
    Max,
    Min,
    Pow,
    Rational,
    Symbol,
    atan,
    cos,
    cosh,
    erf,
    exp,
    log,
    pi,
    sin,
    sinh,
    sqrt,
    tanh,
)

from derive.program.networks.options import NAMED
from numerics.errors import SpecError

h = Symbol("h", real=True)
"""The field, as the text calls it."""

KEY = "network.activation"
LENGTH, NODES, DEPTH = 200, 100, 40
EXPONENT, DENOMINATOR = 16, 100
"""The largest power, also of a power; and the largest denominator of an exponent."""
LARGEST, DIGITS = 1e30, 1000
"""The largest number (and the inverse of the smallest), and the most digits that arithmetic may give one."""

STEP = 1 / 4
GRID = tuple(STEP * x for x in range(-160, 161))
"""Where the text must be finite: what overflows at 40 grows faster than Gaussian averages allow."""
TINY = 1e-9
"""A denominator that falls to this share of its value a step away has a zero there."""


@dataclass(frozen=True)
class Algebra:
    """What names, numbers, functions and powers mean in one of the two readings of a text."""

    names: Mapping[str, Any]
    number: Callable[[Any], Any]
    functions: Mapping[str, Callable[..., Any]]
    power: Callable[[Any, Fraction], Any]


class _Unsupported(Exception):
    """What a function of an algebra cannot take; the text is added on the way out."""


def _named(name: str) -> Callable[[Expr], Expr]:
    body = NAMED[name]
    (slot,) = body.free_symbols
    return lambda x: body.subs(slot, x)


def _exponential(x: Expr) -> Expr:
    if x.has(log):  # exp(c*log(x)) becomes x**c, whatever c is
        raise _Unsupported("takes exp of a logarithm")
    return exp(x)


SYMBOLIC: Mapping[str, Callable[..., Any]] = {
    **{f.__name__.lower(): f for f in (tanh, sinh, cosh, sin, cos, atan, erf, log, sqrt, Abs)},
    **{name: _named(name) for name in ("relu", "softplus", "gelu")},
    **{"exp": _exponential, "max": Max, "min": Min},
}


def _or_infinite(function: Callable[[float], float]) -> Callable[[float], float]:
    def value(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf

    return value


def _odd_or_infinite(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: math.copysign(_or_infinite(function)(abs(x)), x)


NUMERIC: Mapping[str, Callable[..., float]] = {
    **{name: getattr(math, name) for name in ("tanh", "sin", "cos", "atan", "erf", "log", "sqrt")},
    **{"exp": _or_infinite(math.exp), "cosh": _or_infinite(math.cosh), "sinh": _odd_or_infinite(math.sinh)},
    **{"abs": abs, "max": max, "min": min, "relu": lambda x: max(x, 0.0)},
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
}
ARGUMENTS = {"max": 2, "min": 2}
OPERATORS: Mapping[type[ast.AST], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
}

NAMES = ", ".join(f'"{name}"' for name in NAMED)
FINITE = "a function of all real h, growing slower than a Gaussian falls; for log(1 + exp(x)), softplus(x)"
ACCEPTED = f'{NAMES}, or an expression in h such as "tanh(0.8*h)/0.8"'


@lru_cache(maxsize=256)
def parse_activation(text: str) -> Expr:
    """The expression in one real symbol that ``text`` stands for; ``mlp(activation=...)`` takes it.

    Numbers are exact: 0.8 is 4/5.  Raises SpecError naming what is not supported: anything but h, pi,
    numbers, ``+ - * / **`` with a number as exponent, and the functions listed in ``SYMBOLIC``; text without
    h; and what is not real and finite for -40 <= h <= 40.

    >>> parse_activation("tanh(0.8*h)/0.8"), parse_activation("relu")
    (5*tanh(4*h/5)/4, Max(0, x))
    >>> parse_activation("h.real")
    Traceback (most recent call last):
    numerics.errors.SpecError: network.activation = "h.real": contains an attribute (.real), which is not ...
    """
    if text in NAMED:
        return NAMED[text]
    tree = _tree(text)
    _check_shape(text, tree)
    for x in GRID:
        _check_value(text, tree, x)
    _check_poles(text, tree)
    try:
        expression = _walk(text, tree, Algebra({"h": h, "pi": pi}, _exact, SYMBOLIC, _power))
    except _Unsupported as error:
        raise _refuse(text, str(error), "a power written as **") from None
    _check_expression(text, expression)
    return expression


@lru_cache(maxsize=256)
def is_linear(text: str) -> bool:
    """Is this activation the identity?

    >>> is_linear("linear"), is_linear("h*2/2"), is_linear("2*h")
    (True, True, False)
    """
    return text == "linear" or isinstance(parse_activation(text), Symbol)


@lru_cache(maxsize=256)
def _refuse(text: str, problem: str, accepted: str = ACCEPTED) -> SpecError:
    return SpecError(KEY, text, problem, accepted)


# -- reading -------------------------------------------------------------------------------------------------


def _tree(text: str) -> ast.expr:
    """The syntax tree, of text that is short and has no characters but those of arithmetic."""
    if len(text) > LENGTH:
        raise _refuse(text, f"has {len(text)} characters", f"at most {LENGTH} characters")
    strange = re.search(r"[^A-Za-z0-9_.+\-*/(), ]", text)
    if strange is not None:
        raise _refuse(text, f"contains the character {strange[0]!r}, which is not supported")
    if re.fullmatch(r" *[A-Za-z_]\w* *", text) and text.strip() != "h":
        near = difflib.get_close_matches(text.strip().lower(), NAMED, n=1)
        hint = f', perhaps "{near[0]}" was meant' if near else ""
        raise _refuse(text, f"is not the name of an activation{hint}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about doubtful spellings of numbers
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        raise _refuse(text, "cannot be read as an expression") from None


def _check_shape(text: str, tree: ast.expr) -> None:
    """Refuses what is too long, too deep or too large, before anything is made of it."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
    if len(nodes) > NODES:
        raise _refuse(text, "is too long an expression", f"at most {NODES} numbers, names and operators")
    if _depth(tree) > DEPTH:
        raise _refuse(text, "is nested too deeply", f"at most {DEPTH} levels of brackets and operators")
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            size = abs(node.value)
            if size != 0 and not 1 / LARGEST <= size <= LARGEST:
                accepted = f"numbers between {1 / LARGEST:g} and {LARGEST:g}"
                raise _refuse(text, "contains a number that is too large or too small", accepted)
    if _degree(text, tree) > EXPONENT:
        raise _refuse(text, "has powers of powers that are too large", f"powers up to {EXPONENT} in all")


def _depth(node: ast.AST) -> int:
    return 1 + max((_depth(child) for child in ast.iter_child_nodes(node)), default=0)


def _degree(text: str, node: ast.AST) -> Fraction:
    """The largest product of exponents that stand around one another."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return max(abs(_exponent(text, node.right)), Fraction(1)) * _degree(text, node.left)
    return max((_degree(text, child) for child in ast.iter_child_nodes(node)), default=Fraction(1))


def _varies(node: ast.AST) -> bool:
    return any(isinstance(x, ast.Name) and x.id == "h" for x in ast.walk(node))


def _walk(text: str, node: ast.expr, algebra: Algebra) -> Any:
    """The meaning of a node in one algebra; refuses what is on no list."""

    def read(child: ast.expr) -> Any:
        return _walk(text, child, algebra)

    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return algebra.number(node.value)
        case ast.Name(id=name) if name in algebra.names:
            return algebra.names[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -read(inner)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return read(inner)
        case ast.BinOp(left=base, op=ast.Pow(), right=power):
            return algebra.power(read(base), _exponent(text, power))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)][1](read(left), read(right))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in algebra.functions:
            wanted = ARGUMENTS.get(name, 1)
            if len(args) != wanted:
                raise _refuse(text, f"gives {name} {len(args)} arguments", f"{wanted} for {name}")
            if name != "sqrt" and not any(map(_varies, args)):
                raise _refuse(text, f"contains {name} of a number", "its value, written as a number")
            return algebra.functions[name](*map(read, args))
    raise _refuse(text, f"contains {_called(node)}, which is not supported", _supported(node))


def _exponent(text: str, node: ast.expr) -> Fraction:
    """A number, as a fraction; refuses anything else, and powers too large to be worked with."""
    accepted = f"a number between -{EXPONENT} and {EXPONENT}, such as 2 or 0.5"
    if _varies(node):
        raise _refuse(text, "has h in an exponent", f"{accepted}; or exp(...)")
    try:
        power = _walk(text, node, Algebra({}, lambda x: Fraction(repr(x)), {}, _no_power))
    except (ZeroDivisionError, _Unsupported):
        raise _refuse(text, "has an exponent that is no number", accepted) from None
    if abs(power) > EXPONENT or power.denominator > DENOMINATOR:
        raise _refuse(text, "has an exponent that is too large or is no simple fraction", accepted)
    return Fraction(power)


def _no_power(*_: object) -> Fraction:
    raise _Unsupported("a power in an exponent")


def _called(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return f"the name {name}"
        case ast.Attribute(attr=name):
            return f"an attribute (.{name})"
        case ast.Call(func=ast.Name(id=name)):
            return f"the function {name}"
        case ast.Constant(value=value):
            return f"the value {value!r}"
        case ast.BinOp(op=op) | ast.UnaryOp(op=op):
            return f"the operator {type(op).__name__}"
    return f"a {type(node).__name__}"


def _supported(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return f"one of {', '.join(SYMBOLIC)}"
    if isinstance(node, ast.Name):
        return "h, pi, numbers and " + ", ".join(SYMBOLIC)
    return ACCEPTED


# -- its value at a number -----------------------------------------------------------------------------------


def _check_value(text: str, tree: ast.expr, x: float) -> None:
    """Refuses what is not real and finite at h = x."""
    try:
        value = _value(text, tree, x)
    except SpecError:
        raise
    except (ValueError, ZeroDivisionError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise _refuse(text, f"is not a finite real number at h = {x:g}", FINITE)


def _check_poles(text: str, tree: ast.expr) -> None:
    """Refuses what divides by something that vanishes, also where that is between the points of the grid."""
    for node in ast.walk(tree):
        below = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            below = node.right
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and _exponent(text, node.right) < 0:
            below = node.left
        if below is None or not _varies(below):
            continue
        values = [_value(text, below, x) for x in GRID]
        if len({value > 0 for value in values}) > 1:
            raise _refuse(text, "divides by something that changes its sign", FINITE)
        for x, before, here, after in zip(GRID[1:], values, values[1:], values[2:], strict=False):
            if abs(before) > abs(here) <= abs(after):
                least, size = _least(text, below, x)
                if size <= TINY * abs(before):
                    raise _refuse(text, f"divides by something that vanishes at h = {least:g}", FINITE)


def _least(text: str, tree: ast.expr, near: float) -> tuple[float, float]:
    """Where the text's size has its minimum between the neighbours of a grid point, and that minimum."""

    def size(x: float) -> float:
        return abs(_value(text, tree, x))

    low, high = near - STEP, near + STEP
    while high - low > 1e-12 * max(1.0, abs(near)):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if size(left) <= size(right) else (left, high)
    return low, size(low)


def _value(text: str, tree: ast.expr, x: float) -> float:
    return float(_walk(text, tree, Algebra({"h": x, "pi": math.pi}, float, NUMERIC, _real_power)))


def _real_power(base: float, exponent: Fraction) -> float:
    result = base ** float(exponent)
    if not isinstance(result, float):
        raise ValueError("the root of a negative number")
    return result


# -- the expression ------------------------------------------------------------------------------------------


def _exact(number: float) -> Expr:
    return Rational(repr(number))


def _power(base: Expr, exponent: Fraction) -> Expr:
    return base ** Rational(exponent.numerator, exponent.denominator)


def _check_expression(text: str, expression: Expr) -> None:
    """Refuses what became a constant, and powers or numbers that would be slow to work with."""
    if not expression.has(h):
        raise _refuse(text, "does not depend on h")
    for x in expression.atoms(Rational):
        if max(abs(x.p), x.q) >= 10**DIGITS:
            raise _refuse(text, "contains a number with too many digits", f"at most {DIGITS} digits")
    for x in expression.atoms(Pow):
        if x.exp.is_Rational and abs(x.exp) > EXPONENT:
            raise _refuse(text, f"contains a power {x.exp}", f"powers up to {EXPONENT}")
