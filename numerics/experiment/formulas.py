"""Functions of one variable as text of a file, such as ``tanh(0.8*h)/0.8`` or ``0.1*min(1, (t + 1)/10)``.

The text is never evaluated as Python. Its syntax tree is walked, and a node of a kind that is not supported
raises SpecError. The same walk gives the SymPy expression and its value at a number; values are computed
first, which excludes functions that are not real and finite or too large. :mod:`.activation` and
:mod:`.schedule` define the variable and the numbers at which a text is evaluated.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
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
    floor,
    log,
    pi,
    sin,
    sinh,
    sqrt,
    tanh,
)

from derive.program.networks.options import NAMED
from numerics.errors import SpecError

LENGTH, NODES, DEPTH = 200, 100, 40
"""Largest number of characters, of nodes of the syntax tree, and of nested levels of a text."""
EXPONENT, DENOMINATOR = 16, 100
"""Largest exponent, also of nested powers, and largest denominator of an exponent."""
LARGEST, DIGITS = 1e30, 1000
"""Largest number (and inverse of the smallest), and largest number of digits of a computed fraction."""

TINY = 1e-9
"""A denominator below this share of its value at the neighbouring point counts as zero."""

GOLDEN = 0.3819660112501051
"""Place of a point between two points of the grid, as a share of their distance."""


@dataclass(frozen=True)
class Vocabulary:
    """Values of the parts of a formula, for an evaluation of its syntax tree.

    The values are SymPy expressions in one evaluation and numbers in another.

    Attributes
    ----------
    names
        Values of the names that a formula may contain, such as h and pi.
    number
        Conversion of a number in the text.
    functions
        Functions by name.
    power
        Power with a constant exponent.
    exponential
        Power with a constant base and an exponent that varies.
    """

    names: Mapping[str, Any]
    number: Callable[[Any], Any]
    functions: Mapping[str, Callable[..., Any]]
    power: Callable[[Any, Fraction], Any]
    exponential: Callable[[Any, Any], Any]


class _Unsupported(Exception):
    """Raised for an argument that a function does not take, and for a power inside of an exponent.

    The methods of :class:`Reader` turn it into a SpecError, which names the text.
    """


def _exponential(x: Expr) -> Expr:
    """Return exp(x) for a formula; raise _Unsupported if x contains a logarithm.

    SymPy would turn exp(c*log(x)) into the power x**c without the limit that formulas have for exponents c.
    """
    if x.has(log):
        raise _Unsupported("takes exp of an expression with a logarithm")
    return exp(x)


SYMBOLIC: Mapping[str, Callable[..., Any]] = {
    **{f.__name__.lower(): f for f in (tanh, sinh, cosh, sin, cos, atan, erf, log, sqrt, Abs)},
    **{name: NAMED[name] for name in ("relu", "softplus", "gelu")},
    **{"exp": _exponential, "max": Max, "min": Min},
}
"""Functions that activations may use, in SymPy."""

STEPWISE: Mapping[str, Callable[..., Any]] = {"floor": floor}
"""Further functions for text in a number of steps."""


def _or_infinite(function: Callable[[float], float]) -> Callable[[float], float]:
    """Return the function with infinity as its value where it overflows."""

    def value(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf

    return value


def _odd_or_infinite(function: Callable[[float], float]) -> Callable[[float], float]:
    """Return an odd function with infinity, of the sign of its argument, where it overflows."""
    return lambda x: math.copysign(_or_infinite(function)(abs(x)), x)


NUMERIC: Mapping[str, Callable[..., float]] = {
    **{name: getattr(math, name) for name in ("tanh", "sin", "cos", "atan", "erf", "log", "sqrt", "floor")},
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


@dataclass(frozen=True)
class Reader:
    """Rules for reading the text of one key of a file.

    Parameters
    ----------
    key
        The key, which error messages name.
    variable
        The variable of the function.
    grid
        Ascending numbers. The function must be real and finite at each of them and at one number between each
        two. Between all of them no denominator may vanish, and no argument of a root or logarithm may be
        negative.
    accepted
        Accepted text, for error messages.
    finite
        Accepted text, for messages about functions that are not finite.
    functions
        Functions that the text may use, by name: those of SYMBOLIC by default.
    words
        Names of functions that the caller accepts as a whole text. If there are any, a text of one other word
        than the variable raises SpecError, which suggests a similar name if there is one; :meth:`read` does
        not accept the names themselves.
    powers_of_numbers
        Whether a positive number may have a power that varies, as in ``0.9**t``.
    """

    key: str
    variable: Symbol
    grid: Sequence[float]
    accepted: str
    finite: str
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: SYMBOLIC)
    words: Sequence[str] = ()
    powers_of_numbers: bool = False

    def read(self, text: str) -> Expr:
        """Return the expression in :attr:`variable` that a text stands for.

        Numbers are exact: 0.8 is 4/5.

        Raises
        ------
        SpecError
            For unsupported text: anything but the variable, pi, numbers, ``+ - * / **`` and the functions of
            the reader; text that is too long or has too large numbers or exponents; text without the
            variable; and functions that are not real and finite on the range of the grid.
        """
        tree = self._tree(text)
        self._check_shape(text, tree)
        for x in self._points:
            self._check_value(text, tree, x)
        self._check_radicands(text, tree)
        self._check_poles(text, tree)
        names = {self.variable.name: self.variable, "pi": pi}
        try:
            expression = self._walk(
                text, tree, Vocabulary(names, _exact, self.functions, _power, _power_of_number)
            )
        except _Unsupported as error:
            raise self._refuse(text, str(error), "a power written as **") from None
        self._check_expression(text, expression)
        return expression

    def _refuse(self, text: str, problem: str, accepted: str | None = None) -> SpecError:
        """Return the SpecError that ``text`` is not accepted because of ``problem``.

        ``accepted`` says in words what is accepted; None stands for the accepted text of this reader.
        """
        return SpecError(self.key, text, problem, accepted or self.accepted)

    # -- reading -------------------------------------------------------------------------------------------

    def _tree(self, text: str) -> ast.expr:
        """Return the syntax tree of ``text``.

        Raise SpecError if it is too long, contains a character that no formula has, is not an expression, or,
        for a reader with ``words``, is a single word other than the variable.
        """
        if len(text) > LENGTH:
            raise self._refuse(text, f"has {len(text)} characters", f"at most {LENGTH} characters")
        strange = re.search(r"[^A-Za-z0-9_.+\-*/(), ]", text)
        if strange is not None:
            raise self._refuse(text, f"contains the character {strange[0]!r}, which is not supported")
        if self.words and re.fullmatch(r" *[A-Za-z_]\w* *", text) and text.strip() != self.variable.name:
            near = difflib.get_close_matches(text.strip().lower(), self.words, n=1)
            hint = f', perhaps "{near[0]}" was meant' if near else ""
            raise self._refuse(text, f"is not the name of an activation{hint}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python would warn the user of spellings such as 1if
                return ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
            raise self._refuse(text, "cannot be read as an expression") from None

    def _check_shape(self, text: str, tree: ast.expr) -> None:
        """Raise SpecError for text that is too long or too deep, before it is used.

        The same holds for numbers that are too large or too small, and for powers that are not allowed.
        """
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
        if len(nodes) > NODES:
            raise self._refuse(
                text, "is too long an expression", f"at most {NODES} numbers, names and operators"
            )
        if _depth(tree) > DEPTH:
            raise self._refuse(
                text, "is nested too deeply", f"at most {DEPTH} levels of brackets and operators"
            )
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
                size = abs(node.value)
                if size != 0 and not 1 / LARGEST <= size <= LARGEST:
                    accepted = f"numbers between {1 / LARGEST:g} and {LARGEST:g}"
                    raise self._refuse(text, "contains a number that is too large or too small", accepted)
        if self._degree(text, tree) > EXPONENT:
            raise self._refuse(
                text, "has powers of powers that are too large", f"powers up to {EXPONENT} in all"
            )

    def _degree(self, text: str, node: ast.AST) -> Fraction:
        """Return the largest product of nested constant exponents in a formula, such as 6 for ``(h**2)**3``.

        Exponents count by their absolute value, and those below 1 as 1. ``node`` is the syntax tree of the
        formula or of a part of it, and ``text`` the whole formula.
        """
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not self._is_exponential(node):
            return max(abs(self._exponent(text, node.right)), Fraction(1)) * self._degree(text, node.left)
        return max((self._degree(text, child) for child in ast.iter_child_nodes(node)), default=Fraction(1))

    def _varies(self, node: ast.AST) -> bool:
        """Return whether a part of a formula, a node of its syntax tree, contains the variable."""
        return any(isinstance(x, ast.Name) and x.id == self.variable.name for x in ast.walk(node))

    def _is_exponential(self, node: ast.BinOp) -> bool:
        """Return whether a power in a formula has a constant base and an exponent that contains the variable.

        False if the text may not contain such powers.
        """
        return self.powers_of_numbers and self._varies(node.right) and not self._varies(node.left)

    def _walk(self, text: str, node: ast.expr, algebra: Vocabulary) -> Any:  # noqa: PLR0911 - one a kind of node
        """Return the value of a node of the syntax tree, as ``algebra`` defines it; see :class:`Vocabulary`.

        Raises SpecError for a node that is not supported; ``text`` is the whole text, for the message.
        """

        def read(child: ast.expr) -> Any:
            return self._walk(text, child, algebra)

        match node:
            case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
                return algebra.number(node.value)
            case ast.Name(id=name) if name in algebra.names:
                return algebra.names[name]
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -read(inner)
            case ast.UnaryOp(op=ast.UAdd(), operand=inner):
                return read(inner)
            case ast.BinOp(left=base, op=ast.Pow(), right=power) if self._is_exponential(node):
                return algebra.exponential(read(base), read(power))
            case ast.BinOp(left=base, op=ast.Pow(), right=power):
                return algebra.power(read(base), self._exponent(text, power))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)][1](read(left), read(right))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in algebra.functions:
                wanted = ARGUMENTS.get(name, 1)
                if len(args) != wanted:
                    raise self._refuse(text, f"gives {name} {len(args)} arguments", f"{wanted} for {name}")
                if name != "sqrt" and not any(map(self._varies, args)):
                    raise self._refuse(text, f"contains {name} of a number", "its value, written as a number")
                return algebra.functions[name](*map(read, args))
        raise self._refuse(text, f"contains {_called(node)}, which is not supported", self._supported(node))

    def _exponent(self, text: str, node: ast.expr) -> Fraction:
        """Return the constant exponent ``node`` of a power in a formula, as a fraction.

        Raise SpecError for an exponent that contains the variable, a name, a function or a power, is too
        large, or is not a simple fraction.
        """
        accepted = f"a number between -{EXPONENT} and {EXPONENT}, such as 2 or 0.5"
        if self._varies(node):
            raise self._refuse(text, f"has {self.variable} in an exponent", f"{accepted}; or exp(...)")
        try:
            power = self._walk(
                text, node, Vocabulary({}, lambda x: Fraction(repr(x)), {}, _no_power, _no_power)
            )
        except (ZeroDivisionError, _Unsupported):
            raise self._refuse(
                text, "has an exponent that contains a power or divides by zero", accepted
            ) from None
        if abs(power) > EXPONENT or power.denominator > DENOMINATOR:
            raise self._refuse(
                text, "has an exponent that is too large or is not a simple fraction", accepted
            )
        return Fraction(power)

    def _supported(self, node: ast.expr) -> str:
        """Return the words after "accepted:" in the error for an unsupported node."""
        if isinstance(node, ast.Call):
            return f"one of {', '.join(self.functions)}"
        if isinstance(node, ast.Name):
            return f"{self.variable}, pi, numbers and " + ", ".join(self.functions)
        return self.accepted

    # -- value of the function at a number -----------------------------------------------------------------

    def _check_value(self, text: str, tree: ast.expr, x: float) -> None:
        """Raise SpecError if the function is not real and finite at x."""
        if not self._is_finite(text, tree, x):
            raise self._refuse(text, self.not_finite(text, x), self.finite)

    def not_finite(self, text: str, x: float) -> str:
        """Return the message that a function is not finite at x, with the part of the text that causes it."""
        message = f"is not a finite real number at {self.variable} = {x:g}"
        whole = self._tree(text)
        part = self._wrong_part(text, whole, x)
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div):
            below = ast.unparse(part.right)
            return f"{message}, because it divides by {below}" + (
                "" if below == "0" else ", which is 0 there"
            )
        return message if part is whole else f"{message}, because {ast.unparse(part)} is not"

    def _wrong_part(self, text: str, node: ast.expr, x: float) -> ast.expr:
        """Return the innermost part of a formula that is not finite at x, as a node of the syntax tree."""
        parts = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
        wrong = (y for y in parts if isinstance(y, ast.expr) and not self._is_finite(text, y, x))
        first = next(wrong, None)
        return node if first is None else self._wrong_part(text, first, x)

    def _is_finite(self, text: str, tree: ast.expr, x: float) -> bool:
        """Return whether a function is real and finite at x."""
        try:
            return math.isfinite(self._value(text, tree, x))
        except SpecError:
            raise
        except (ValueError, ZeroDivisionError, OverflowError):
            return False

    @property
    def _points(self) -> tuple[float, ...]:
        """Numbers of the grid, ascending, with one more between each two, by the golden ratio.

        The additional numbers are for periodic functions with the same phase at all points of the grid.
        """
        between = (low + GOLDEN * (high - low) for low, high in pairwise(self.grid))
        return tuple(sorted((*self.grid, *between)))

    def _check_poles(self, text: str, tree: ast.expr) -> None:
        """Raise SpecError if a denominator in a formula changes sign or vanishes on the range of the grid.

        Its factors are checked without their roots, powers and absolute values. A factor that falls below
        TINY times its value at a nearby point counts as zero. A factor that falls to zero as a root or more
        slowly, such as ``sqrt(abs(h - 0.1)) + (h - 0.1)**2``, may be missed.
        """
        for below in self._denominators(text, tree):
            if len({self._value(text, below, x) > 0 for x in self.grid}) > 1:
                raise self._refuse(text, "divides by an expression that changes its sign", self.finite)
            for part in self._factors(below):
                for at, size, nearby in self._minima(text, part, abs):
                    if size <= TINY * nearby:
                        message = f"divides by an expression that vanishes at {self.variable} = {at:g}"
                        raise self._refuse(text, message, self.finite)

    def _check_radicands(self, text: str, tree: ast.expr) -> None:
        """Raise SpecError if a root or logarithm in a formula has a negative argument.

        Arguments are checked on the whole range of the grid. For a logarithm zero is refused too.
        """
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id="sqrt" | "log"), args=[inside]):
                    of_log = node.func.id == "log"  # type: ignore[attr-defined]
                case ast.BinOp(left=inside, op=ast.Pow(), right=power) if not self._is_exponential(node):
                    of_log = False
                    if self._exponent(text, power).denominator == 1:
                        continue
                case _:
                    continue
            for at, value, nearby in self._minima(text, inside, float) if self._varies(inside) else ():
                if value < -TINY * abs(nearby) or (of_log and value <= TINY**2 * abs(nearby)):
                    message = f"is not a finite real number at {self.variable} = {at:g}, because"
                    reason = f"{message} {ast.unparse(inside)} is {value:.3g} there"
                    raise self._refuse(text, reason, self.finite)

    def _denominators(self, text: str, tree: ast.expr) -> Iterator[ast.expr]:
        """Yield the parts of a formula that it divides by, if they contain the variable."""
        for node in ast.walk(tree):
            match node:
                case ast.BinOp(op=ast.Div(), right=below):
                    pass
                case ast.BinOp(left=below, op=ast.Pow(), right=power) if not self._is_exponential(node):
                    if self._exponent(text, power) >= 0:
                        continue
                case _:
                    continue
            if self._varies(below):
                yield below

    def _factors(self, node: ast.expr) -> Iterator[ast.expr]:
        """Yield the factors of a formula that contain the variable.

        The formula is zero where one of them is zero. Signs, roots, powers, absolute values and
        denominators are removed. ``node`` is the syntax tree of the formula.
        """
        match node:
            case ast.UnaryOp(operand=inner) | ast.Call(func=ast.Name(id="sqrt" | "abs"), args=[inner]):
                yield from self._factors(inner)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                yield from self._factors(left)
                yield from self._factors(right)
            case ast.BinOp(left=inner, op=ast.Div()):
                yield from self._factors(inner)
            case ast.BinOp(left=inner, op=ast.Pow()) if not self._is_exponential(node):
                yield from self._factors(inner)
            case _ if self._varies(node):
                yield node

    def _minima(
        self, text: str, tree: ast.expr, measure: Callable[[float], float]
    ) -> Iterator[tuple[float, float, float]]:
        """Yield the local minima of a part of a formula between the ends of the grid.

        ``measure`` is applied to values: ``abs`` or ``float``. The items are the position of a minimum, the
        value there, and the value at the point before.
        """
        values = [measure(self._value(text, tree, x)) for x in self._points]
        for k in range(1, len(values) - 1):
            if values[k - 1] > values[k] <= values[k + 1]:
                at, least = self._least(text, tree, measure, self._points[k - 1 : k + 2])
                yield at, least, values[k - 1]

    def _least(
        self, text: str, tree: ast.expr, measure: Callable[[float], float], around: Sequence[float]
    ) -> tuple[float, float]:
        """Return (position, least value) of ``measure`` of a part of a formula.

        ``around`` are three numbers, ascending, and the value at the middle one is not above the values at
        both ends. The minimum between them is found by ternary search. The error of its position is at most
        1e-12, or 1e-12 times the absolute value of the middle number if that is larger than one.
        """
        low, near, high = around

        def size(x: float) -> float:
            return measure(self._value(text, tree, x))

        while high - low > 1e-12 * max(1.0, abs(near)):
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, right) if size(left) <= size(right) else (left, high)
        return low, size(low)

    def _value(self, text: str, tree: ast.expr, x: float) -> float:
        """Return the value of a part of a formula as a float, with the value x for the variable.

        Raises ValueError, ZeroDivisionError or OverflowError if there is no such value.
        """
        functions = {name: NUMERIC[name] for name in self.functions}
        names = {self.variable.name: x, "pi": math.pi}
        return float(
            self._walk(text, tree, Vocabulary(names, float, functions, _real_power, _real_exponential))
        )

    # -- the expression ------------------------------------------------------------------------------------

    def _check_expression(self, text: str, expression: Expr) -> None:
        """Raise SpecError if a formula is constant or contains too large powers or numbers."""
        if not expression.has(self.variable):
            raise self._refuse(text, f"does not depend on {self.variable}")
        for x in expression.atoms(Rational):
            if max(abs(x.p), x.q) >= 10**DIGITS:
                raise self._refuse(text, "contains a number with too many digits", f"at most {DIGITS} digits")
        for x in expression.atoms(Pow):
            if x.exp.is_Rational and abs(x.exp) > EXPONENT:
                raise self._refuse(text, f"contains a power {x.exp}", f"powers up to {EXPONENT}")


def _depth(node: ast.AST) -> int:
    """Return the depth of a syntax tree, the largest number of nested nodes."""
    return 1 + max((_depth(child) for child in ast.iter_child_nodes(node)), default=0)


def _no_power(*_: object) -> Fraction:
    """Raise _Unsupported; it takes the place of the power function inside of exponents.

    Powers are not allowed there. Arguments are ignored.
    """
    raise _Unsupported("has a power in an exponent")


def _called(node: ast.expr) -> str:
    """Return a description of a node of the syntax tree for an error message, such as "the name x"."""
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


def _real_power(base: float, exponent: Fraction) -> float:
    """Return a power of a number; raise ValueError if it is complex."""
    result = base ** float(exponent)
    if not isinstance(result, float):
        raise ValueError("a negative number has no real power with a fractional exponent")
    return result


def _real_exponential(base: float, exponent: float) -> float:
    """Return a power of a positive number with a real exponent; raise ValueError for other bases."""
    if base <= 0:
        raise ValueError(f"the base {base:g} of a power with the variable in its exponent is not positive")
    return float(base**exponent)


def _exact(number: float) -> Expr:
    """Return a number as the fraction that its decimal digits state: 0.8 is 4/5."""
    return Rational(repr(number))


def _power(base: Expr, exponent: Fraction) -> Expr:
    """Return a power of an expression with a rational exponent."""
    return base ** Rational(exponent.numerator, exponent.denominator)


def _power_of_number(base: Expr, exponent: Expr) -> Expr:
    """Return a power of a number with a symbolic exponent."""
    return base**exponent
