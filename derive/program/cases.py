"""Functions with cases: `Piecewise` expressions of fields, rewritten by Max, Min and Heaviside.

SymPy differentiates a `Piecewise` case by case and leaves out the point mass of a jump, so that theories
would miss terms. :func:`without_cases_of_fields` writes each function with cases of a field as a sum of
functions of ``Max``, ``Min`` and ``Heaviside``, whose derivatives contain the point masses. Networks and
programs apply it to their definitions and losses, before any gradient is taken. A `Piecewise` whose
conditions contain indices and parameters only keeps its cases; the expressions in the cases are rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from typing import Any, TypeAlias

import mpmath
from sympy import (
    Abs,
    Add,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Float,
    Function,
    Heaviside,
    Integral,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Piecewise,
    Poly,
    Pow,
    Rational,
    S,
    SingularityFunction,
    Subs,
    Sum,
    Symbol,
    acot,
    acoth,
    arg,
    asinh,
    atan,
    atan2,
    ceiling,
    conjugate,
    cos,
    cosh,
    erf,
    erfc,
    exp,
    floor,
    frac,
    im,
    lambdify,
    log,
    nan,
    oo,
    preorder_traversal,
    re,
    sign,
    simplify,
    sin,
    sinh,
    tanh,
    zoo,
)
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from derive.calculus.symbols import spelled
from derive.errors import ProgramError
from derive.program.language import Mean, Product

LEAST_JUMP = 1e-12
"""A jump of floating-point numbers below this size is a rounding error."""


class _Unread(ValueError):
    """Error: a function with cases cannot be written by Max, Min and Heaviside; the text gives the reason."""


def without_cases_of_fields(e: Expr, where: str, vectors: Collection[Symbol] = ()) -> Expr:
    """Return ``e`` with each `Piecewise` of fields written by Max, Min and Heaviside.

    ``where`` names the definition for error messages, and ``vectors`` are the symbols of weight vectors. A
    `Piecewise` stays if its conditions contain indices and parameters only, and no function of indices such
    as a field or an array of constants; functions inside of its cases are rewritten. Raises ProgramError for
    a `Piecewise` that cannot be written in this way, such as one with conditions on two independent fields.
    Raises ProgramError also for a function in ``JUMPS`` of such a quantity, such as ``acot(h)``, if it jumps,
    and if a numerical search finds another jump or kink that the derivatives in SymPy leave out, as in
    ``tanh(1/h)``.

    >>> from sympy import Function, exp
    >>> h = Function("h")(Symbol("t"))
    >>> without_cases_of_fields(Piecewise((h, h > 0), (h / 5, True)), "f")
    h(t)/5 + 4*Max(0, h(t))/5
    >>> without_cases_of_fields(Piecewise((h, h > 0), (exp(h) - 1, True)), "f")
    exp(Min(0, h(t))) + Max(0, h(t)) - 1
    >>> without_cases_of_fields(Piecewise((1, h >= 2), (0, True)), "f")
    Heaviside(h(t) - 2, 1)
    """
    if not e.has(Piecewise, Function, Pow):
        return e
    for jump in sorted(e.atoms(*JUMPS), key=spelled):
        if _jumps(jump, vectors):
            raise _jumping(where, jump)
    if e.has(SingularityFunction):
        e = e.replace(lambda x: isinstance(x, SingularityFunction), lambda x: x.rewrite(Piecewise))
    e = _with_signs(e, vectors)

    def read(x: Piecewise) -> Expr:
        """Return a `Piecewise` of fields by Max, Min and Heaviside; raise ProgramError if this fails."""
        try:
            return _by_maxima(x, vectors)
        except _Unread as reason:
            raise ProgramError(
                f"{where}: {spelled(x)} cannot be read, because {reason}. Write conditions that compare "
                "one quantity with numbers, as in Piecewise((h, h > 0), (h/5, True)), or use Max, Min, "
                "Abs and Heaviside"
            ) from None

    def written(x: Piecewise) -> Expr:
        """Return ``x`` by Max, Min and Heaviside if its conditions contain fields or other quantities.

        If they contain indices and parameters only, ``x`` stays, and its values are rewritten.
        """
        if any(_quantities(c, vectors) for _, c in x.args):
            return read(x)
        if not any(value.has(Piecewise) for value, _ in x.args):
            return x
        return Piecewise(*[(inside(value), c) for value, c in x.args])

    def inside(value: Expr) -> Expr:
        """Return an expression in which `written` has rewritten each outermost `Piecewise`."""
        return value.xreplace({x: written(x) for x in _outermost(value)})

    e = _with_signs(inside(e), vectors)
    if (jump := _hidden_jump(e, frozenset(vectors))) is not None:
        raise _jumping(where, *jump)
    return e


def _jumping(where: str, function: Expr, kind: str = "jumps") -> ProgramError:
    """Return the error for a function whose jump or kink the derivatives of SymPy leave out.

    ``kind`` is "jumps" or "kink", and ``where`` names the definition that contains the function.
    """
    if kind == "kink":
        return ProgramError(
            f"{where}: {spelled(function)} has a kink, and its second derivative leaves the kink out: write "
            "a smooth function, or the kink by Abs, Max or Min"
        )
    return ProgramError(
        f"{where}: {spelled(function)} jumps, and its derivative leaves the jump out: write a function "
        "without a jump, such as atan, or the jump as a Heaviside function"
    )


def _outermost(e: Any) -> list[Piecewise]:
    """Return the functions with cases in ``e`` that are not part of another one."""
    if isinstance(e, Piecewise):
        return [e]
    return [x for arg in e.args for x in _outermost(arg)] if e.has(Piecewise) else []


JUMPS = (acot, acoth, atan2, arg, ceiling, floor, frac, Mod)
"""Functions that jump, and whose derivatives in SymPy have no point mass."""


def _jumps(f: Expr, vectors: Collection[Symbol]) -> bool:
    """Return whether ``f``, a function of a class in ``JUMPS``, depends on a field or another quantity.

    Symbols in ``vectors`` are weight vectors and count as quantities. The result is False for an ``atan2``
    whose second argument is positive, because it does not jump.
    """
    positive = isinstance(f, atan2) and f.args[1].is_positive
    return bool(_quantities(f, vectors)) and not positive


CONTINUOUS = (Abs, Max, Min, asinh, atan, cos, cosh, erf, erfc, exp, log, sin, sinh, tanh)
"""Functions that are continuous where they are defined, and whose derivatives have all point masses."""

STEPS = (Heaviside, sign)
"""Step functions: functions that jump, and whose derivatives in SymPy have the point mass of the jump."""


@lru_cache(maxsize=512)
def _hidden_jump(e: Expr, vectors: frozenset[Symbol]) -> tuple[Expr, str] | None:
    """Return a part of ``e`` that jumps or has a kink, and whose derivatives lack the point mass; else None.

    The part comes with the word "jumps" or "kink". The parts are ``e`` and the expressions inside of its
    averages, matrix products and sums. With its step functions held fixed, the part must be continuous in
    each of its quantities, and so must its derivative. Both are evaluated on a grid of values, unless the
    form of the part shows it.
    """
    for part in _parts(e, vectors):
        slots = {q: Dummy("z", real=True) for q in _opaque(part, vectors)}
        masked = part.xreplace(slots)
        masked = masked.replace(lambda x: isinstance(x, STEPS), lambda _: FIXED)
        if not _may_jump(masked, set(slots.values())):
            continue
        numbers = [*slots.values(), *sorted(masked.free_symbols - {*slots.values()}, key=spelled)]
        values = {x: Rational(7 + k, 11) for k, x in enumerate(numbers)}
        for z in slots.values():
            if _is_smooth(masked, z):
                continue
            function = masked.xreplace({x: value for x, value in values.items() if x != z})
            if not _may_jump(function, {z}):
                continue
            if _has_jump(function, z):
                return part, "jumps"
            if _has_jump(_slope(function, z), z):
                return part, "kink"
    return None


FIXED = Rational(3, 7)
"""Number in place of a step function, in a search for jumps of the other functions."""


def _slope(function: Expr, z: Symbol) -> Expr:
    """Return the derivative of a function of z, with the number FIXED in place of step functions."""
    return function.diff(z).replace(lambda x: isinstance(x, STEPS), lambda _: FIXED)


def _parts(e: Expr, vectors: Collection[Symbol]) -> list[Expr]:
    """Return ``e`` and the expressions inside of its averages, matrix products and sums."""
    inside = [y for x in _opaque(e, vectors) if isinstance(x, OPAQUE) for y in x.args if isinstance(y, Expr)]
    return [e, *(z for y in inside for z in _parts(y, vectors))]


OPAQUE = (Mean, Product, Sum, Integral)
"""Nodes whose values are examined as quantities, apart from the expressions inside of them."""


def _opaque(e: Any, vectors: Collection[Symbol]) -> list[Expr]:
    """Return the parts of ``e`` that are treated as unknown quantities, sorted.

    They are the outermost fields, scalars, averages, products, weight vectors, sums, integrals and
    derivatives.
    """
    if isinstance(e, (AppliedUndef, *OPAQUE, Derivative, Subs)) or e in vectors:
        return [e]
    return sorted({q for x in e.args for q in _opaque(x, vectors)}, key=spelled)


def _may_jump(e: Expr, quantities: set[Any]) -> bool:
    """Return whether ``e`` contains a function of quantities that is not known to be continuous.

    These are powers of quantities whose exponent is not known to be an integer of at least 0, and functions
    of quantities that are not in ``CONTINUOUS``.
    """
    for x in preorder_traversal(e):
        if isinstance(x, Pow):
            if not (x.exp.is_integer and x.exp.is_nonnegative) and x.base.free_symbols & quantities:
                return True
        elif isinstance(x, Function) and not isinstance(x, CONTINUOUS) and x.free_symbols & quantities:
            return True
    return False


ANALYTIC = (asinh, atan, cos, cosh, erf, erfc, exp, sin, sinh, tanh)
"""Functions that are analytic on the whole real axis."""


def _is_smooth(e: Expr, z: Symbol) -> bool:
    """Return whether the form of ``e`` shows that it is analytic in z, apart from poles, where it is real.

    It then has no jump and no kink. True for quotients of analytic functions, such as a softmax. If ``e``
    contains noninteger powers of one quantity ``u = a z + b``, it is real for u > 0 only, and must be an
    analytic function of positive u. The result is False if such powers have two different bases, or a base
    that is not of first degree in z. Bases that are always positive are no restriction.
    """
    roots = {x.base for x in e.atoms(Pow) if z in x.base.free_symbols and not x.exp.is_integer}
    if not (rooted := [b for b in roots if not b.is_positive]):
        return _is_quotient(e, z)
    base = rooted[0]
    slope = base.diff(z)
    if len(rooted) > 1 or z in slope.free_symbols:
        return False
    u = Dummy("u", positive=True)
    return _is_quotient(e.xreplace({base: u}).xreplace({z: (u - base + slope * z) / slope}), u)


def _is_quotient(e: Expr, z: Symbol) -> bool:
    """Return whether the form of ``e`` shows that it is a quotient of analytic functions of real z."""
    if isinstance(e, Add | Mul):
        return all(_is_quotient(x, z) for x in e.args)
    if isinstance(e, Pow) and e.exp.is_integer:
        return _is_quotient(e.base, z)
    return _is_analytic(e, z)


def _is_analytic(e: Expr, z: Symbol) -> bool:
    """Return whether the form of ``e`` shows that it is an analytic function on the whole axis of real z."""
    if z not in e.free_symbols or e == z:
        return True
    powers = isinstance(e, Pow) and (e.base.is_positive or (e.exp.is_integer and e.exp.is_nonnegative))
    logarithm = isinstance(e, log) and e.args[0].is_positive
    if powers or logarithm or isinstance(e, (Add, Mul, *ANALYTIC)):
        return all(_is_analytic(x, z) for x in e.args)
    return False


def _has_jump(function: Expr, z: Symbol) -> bool:
    """Search a function of z for a jump at a value of z between -10^6 and 10^6; return whether it finds one.

    Each interval of a grid is halved again and again, and the half with the larger change is kept. If the
    change of the function does not shrink, its place is computed with more digits. At a jump the function is
    flat on both sides in comparison with the jump; at a pole it is not.
    """
    try:
        precise = _evaluation(function, z)
        quick = _evaluation(function, z, precise)
    except (TypeError, ValueError, NameError, SyntaxError, NotImplementedError):
        return False
    for low, high in pairwise([(x, quick(x)) for x in GRID]):
        ends = _halved(_halved((low, high), quick, 6), quick, 6)
        if ends is None:
            continue
        with mpmath.workdps(DIGITS):
            place: _Ends | None = tuple((x, precise(x)) for x in [mpmath.mpf(end) + SHIFT for end, _ in ends])
            for _ in range(6):
                place = _halved(place, precise, 10)
            if place is not None and _is_jump((place[0][0] + place[1][0]) / 2, precise):
                return True
    return False


def _evaluation(
    function: Expr, z: Symbol, precise: Callable[[Any], Any] | None = None
) -> Callable[[Any], Any]:
    """Return an expression in z as a Python function of a number.

    The value of the function is None where no finite real number is computed. Without ``precise`` the
    function computes with the digits of mpmath, otherwise with floating-point numbers. In the second case
    ``precise``, the function with more digits, is called where floating-point arithmetic overflows or divides
    by zero, but not for ``|x|`` above ``LARGE``, where it takes long.
    """
    compiled = lambdify(z, function, modules=["mpmath"] if precise is None else ["math", "mpmath"])
    number = mpmath.mpf if precise is None else float

    def value(x: Any) -> Any:
        """Return the value of the expression at ``z = x``; None if no finite real number is computed."""
        try:
            y = number(compiled(x))
            return y if isfinite(y) else None
        except ArithmeticError:
            y = None if precise is None or abs(x) > LARGE else precise(x)
            return None if y is None else number(y)
        except (TypeError, ValueError, NameError, AttributeError, MemoryError):
            return None

    return value


def _halved(ends: _Ends | None, value: Callable[[Any], Any], times: int) -> _Ends | None:
    """Return the part of an interval in which a function changes most, after some halvings.

    ``ends`` are the ends of the interval and the values there. The half with the larger change is kept,
    ``times`` times. The result is None if ``ends`` is None or if a value is not defined. It is None also if
    the last change is at most LEAST_CHANGE, or at most a quarter of the change between the given ends, as it
    is for smooth functions.
    """
    if ends is None:
        return None
    (low, below), (high, above) = ends
    if below is None or above is None:
        return None
    least = max(abs(above - below) / 4, LEAST_CHANGE)
    for _ in range(times):
        middle = (low + high) / 2
        there = value(middle)
        if there is None:
            return None
        if abs(there - below) > abs(above - there):
            high, above = middle, there
        else:
            low, below = middle, there
    return ((low, below), (high, above)) if abs(above - below) > least else None


def _is_jump(place: Any, value: Callable[[Any], Any]) -> bool:
    """Return whether a function jumps at a place: its change there exceeds the changes on both sides.

    The change must be larger than LEAST_CHANGE, and more than 100 times those between distances of NEAR/1000
    and NEAR from the place. ``value`` returns the function at a number.
    """
    near = [value(place + x) for x in (-NEAR, -NEAR / 1000, NEAR / 1000, NEAR)]
    if None in near:
        return False
    below, near_below, near_above, above = near
    change = abs(near_above - near_below)
    flat = max(abs(below - near_below), abs(above - near_above)) < change / 100
    return bool(flat and change > LEAST_CHANGE)


_Ends: TypeAlias = tuple[tuple[Any, Any], ...]
"""The two ends of an interval, each with the value of a function there."""

FAR = [8.382 * 2 ** (k / 2) for k in range(35)]
"""Points beyond 8, up to 10^6, at which a function is evaluated to find its jumps."""

LARGE = 10
"""Largest size of x at which a function that overflows is evaluated with more digits."""

GRID = (*(-x for x in reversed(FAR)), *((k + 0.382) / 4 for k in range(-32, 32)), *FAR)
"""Points at which a function is evaluated to find its jumps."""

DIGITS = 100
"""Decimal digits of the arithmetic that decides whether a function jumps."""

SHIFT = mpmath.mpf(10) ** -25
"""Shift of the ends of an interval, so that halving does not end exactly at a simple number such as 1/2."""

NEAR = mpmath.mpf(10) ** -9
"""Distance from a jump at which values on both sides are compared, above the error of its place."""

LEAST_CHANGE = 1e-6
"""Smallest size of a jump that the search reports."""


def _with_signs(e: Expr, vectors: Collection[Symbol]) -> Expr:
    """Return ``e`` with roots of squares written by ``Abs``, and functions that jump by step functions.

    ``x/Abs(x)`` and its odd powers become ``sign(x)``, and ``sqrt(x**2)`` becomes ``Abs(x)``, with real
    quantities x. A function of a step function, such as ``tanh(sign(x))``, is written as a constant plus a
    multiple of a Heaviside function (:func:`_linear_in_steps`), because its derivative would contain the
    product of a step and a point mass, which has no value.
    """
    # Roots of squares, absolute values, functions of step functions, and parts and conjugates of complex
    # numbers are rewritten. SymPy may also simplify other parts of such an expression, because its quantities
    # are real. An expression in which all exponents are integers, and which has none of the functions named
    # here, is returned unchanged.
    if not (e.has(*STEPS, Abs, re, im, conjugate) or any(not x.exp.is_Integer for x in e.atoms(Pow))):
        return e
    real = {q: Dummy(real=True) for q in _opaque(e, vectors)}
    masked = e.xreplace(real)
    plain = masked.replace(lambda x: isinstance(x, Pow | Mul) and x.has(Abs), _ratio)
    plain = _linear_in_steps(plain)
    back = {x: q.func(*[_signs_inside(y, vectors) for y in q.args]) for q, x in real.items() if q.args}
    back |= {x: q for q, x in real.items() if not q.args}
    return plain.xreplace(back)


def _signs_inside(e: Any, vectors: Collection[Symbol]) -> Any:
    """Return an argument of an average, sum or product with its functions written as in `_with_signs`."""
    return _with_signs(e, vectors) if isinstance(e, Expr) else e


def _ratio(x: Expr) -> Expr:
    """Return a power or product in which ``z/Abs(z)``, its inverse and odd powers are written as sign(z).

    Factors that are sums with absolute values are multiplied out if this gives such terms.
    """
    x = _ratio_of_factors(x)
    if isinstance(x, Mul) and any(isinstance(y, Add) and y.has(Abs) for y in x.args):
        terms = [_ratio_of_factors(y) for y in Add.make_args(x.expand())]
        if any(y.has(sign) for y in terms) and not x.has(sign):
            return Add(*terms)
    return x


def _ratio_of_factors(x: Expr) -> Expr:
    """Return a product in which ``z**n Abs(z)**-n``, for an odd integer n, is written as sign(z)."""
    powers = x.as_powers_dict()
    for base in sorted((b for b in powers if isinstance(b, Abs)), key=spelled):
        z, n = base.args[0], powers[base]
        if not n.is_Integer or n % 2 == 0:
            continue
        for other, m in sorted(powers.items(), key=spelled):
            factor = (z / other).cancel() if other != base and m == -n else None
            if factor is not None and factor.is_number and factor.is_real:
                return x * base**-n * other**n * (Abs(factor) ** n) * sign(other)
    return x


def _linear_in_steps(e: Expr) -> Expr:
    """Return ``e`` with each function of a step function written as a linear function of a step function.

    A function ``E(H)`` of ``H = Heaviside(u)``, such as ``exp(H)``, becomes ``E(0) + (E(1) - E(0)) H``, and
    ``E(sign(u))`` becomes ``E(-1) + (E(1) - E(-1)) H``. A product of different step functions is unchanged,
    and so is a function that differs at the jump only, such as ``cos(sign(x))``.
    """
    if not e.has(*STEPS) or not e.args or isinstance(e, OPAQUE):
        return e
    e = e.func(*[_linear_in_steps(x) for x in e.args])
    if (
        not isinstance(e, Pow | Function)
        or isinstance(e, Piecewise)
        or not any(x.has(*STEPS) for x in e.args)
    ):
        return e
    for u in sorted({s.args[0] for x in e.args for s in x.atoms(*STEPS)}, key=spelled):
        low, high = (_at_step(e, u, value) for value in (0, 1))
        jump = _gap(high, low)
        there = _gap(_at_step(e, u, None), low)
        if jump == 0 and there != 0:
            continue
        e = low + jump * Heaviside(u, _part_at_zero(there, jump, u))
    return e


def _part_at_zero(part: Expr, jump: Expr, u: Expr) -> Expr:
    """Return the value that a step function of u has at u = 0: ``part/jump``, or 1/2 if this is no number.

    ``jump`` is the value of the function above u = 0 minus that below, and ``part`` its value at u = 0 minus
    that below.
    """
    if jump == 0:
        return S.Half
    for z in sorted(u.free_symbols, key=spelled):
        if u.is_polynomial(z) and Poly(u, z).degree() == 1:
            zero = -u.coeff(z, 0) / u.coeff(z)
            part, jump = part.xreplace({z: zero}), jump.xreplace({z: zero})
            break
    value = part / jump if jump != 0 else S.Half
    return value if value.is_number and value.is_finite else S.Half


def _at_step(e: Expr, u: Expr, value: int | None) -> Expr:
    """Return ``e`` with the values of its step functions of u below, above or at their jump.

    ``value`` is 0 for the values at u < 0, 1 for those at u > 0, and None for those at u = 0.
    """

    def step(x: Expr) -> Expr:
        """Return the value of the step function ``x``, a Heaviside or sign of u.

        It is that at u < 0, u > 0 or u = 0, as ``value`` of the enclosing function says (0, 1 or None).
        """
        if value is None:
            return x.func(S.Zero, *x.args[1:])
        return S(value) if isinstance(x, Heaviside) else S(2 * value - 1)

    return e.replace(lambda x: isinstance(x, STEPS) and x.args[0] == u, step)


def _quantities(e: Any, vectors: Collection[Symbol]) -> list[Expr]:
    """Return the outermost functions of indices, averages, products and weight vectors in ``e``, sorted.

    Functions of indices are fields, scalars, given vectors and arrays of constants, such as ``c(p)``.
    """
    if isinstance(e, AppliedUndef | Mean | Product) or e in vectors:
        return [e]
    return sorted({q for x in e.args for q in _quantities(x, vectors)}, key=spelled)


@dataclass(frozen=True)
class _Line:
    """Quantity, or combination of quantities, on which all conditions of a function with cases depend.

    ``form`` is this combination, such as ``f - y``, and ``v`` a symbol for its value. In the function with
    cases, ``quantity``, one of the quantities in ``form``, is replaced by ``solved``, which expresses it by
    ``v`` and the others.
    """

    v: Symbol
    form: Expr
    quantity: Expr
    solved: Expr

    def text(self, e: Any) -> str:
        """Return an expression as text, with ``form`` in place of the symbol ``v``."""
        return str(spelled(e.xreplace({self.v: self.form})))


def _line(relations: list[Relational], vectors: Collection[Symbol]) -> _Line:
    """Return the combination of quantities that is the same in all relations; raise _Unread if they differ.

    This combination is a single quantity, or a polynomial of first degree in each of several quantities, such
    as ``f - y`` or ``f*y``. Relations may contain it with different factors, and with different terms that
    contain no quantity.
    """
    quantities = sorted({q for r in relations for q in _quantities(r, vectors)}, key=spelled)
    if not quantities:
        raise _Unread("its conditions contain no inequality of a quantity that the program computes")
    v = Dummy("v", real=True)
    if len(quantities) == 1:
        return _Line(v, quantities[0], quantities[0], v)
    several = _Unread(f"its conditions are on several quantities, {_listed(quantities)}")
    slots = {q: Dummy() for q in quantities}
    first, forms = slots[quantities[0]], set()
    for r in relations:
        gap = r.lhs - r.rhs
        for x in [a.args[0] for a in gap.atoms(Abs)] or [gap]:
            moving = x.xreplace(slots).expand().as_independent(*slots.values(), as_Add=True)[1]
            if not moving.has(first) or not moving.is_polynomial(*slots.values()):
                raise several
            p = Poly(moving, *slots.values())
            if any(p.degree(y) > 1 for y in slots.values()):
                raise several
            forms.add((moving / p.LC()).expand())
    if len(forms) != 1:
        raise several
    form = forms.pop()
    back = {x: q for q, x in slots.items()}
    factor, rest = form.coeff(first), form.coeff(first, 0)
    return _Line(v, form.xreplace(back), quantities[0], ((v - rest) / factor).xreplace(back))


def _listed(quantities: list[Expr]) -> str:
    """Return the names of several quantities as text: "a, b and c"."""
    *early, last = map(spelled, quantities)
    return f"{', '.join(early)} and {last}"


def _by_maxima(e: Piecewise, vectors: Collection[Symbol]) -> Expr:
    """Return a function with cases of one quantity v by Max, Min and Heaviside; raise _Unread if this fails.

    Let f_i be its form between the thresholds c_i and c_(i+1). If all f_i are of first degree in v, the
    continuous part is ``f_0(v) + sum_i [D_i(Max(v, c_i)) - D_i(c_i)]`` with ``D_i = f_i - f_(i-1)``.
    Otherwise it is ``f_0(Min(v, c_1)) + sum_i [f_i(Max(c_i, Min(v, c_(i+1)))) - f_i(c_i)]``, in which every
    form is evaluated only where it is used. A jump adds ``D_i(c_i) * Heaviside(v - c_i)``. The value of this
    step function at ``v = c_i`` is chosen so that the result equals the case that holds at the threshold.
    """
    relations = sorted(
        {r for x in e.atoms(Piecewise) for _, c in x.args for r in c.atoms(Relational)}, key=spelled
    )
    line = _line(relations, vectors)
    v, at = line.v, {line.quantity: line.solved}
    for r in relations:
        if isinstance(r, Eq | Ne) or not r.has(line.quantity):
            raise _Unread(
                f"the condition {spelled(r)} does not compare {spelled(line.form)} by <, <=, > or >="
            )
    # An average, or a product with a matrix, that the conditions do not contain may contain `line.quantity`,
    # the quantity of the conditions. It is not changed: symbols stand for these averages and products while
    # `line.quantity` is replaced.
    others = {q: Dummy() for q in _quantities(e, vectors) if not line.form.has(q) and q.has(Mean, Product)}
    cases = e.xreplace(others).xreplace(at)
    back = {v: line.form, **{x: q for q, x in others.items()}}
    if not isinstance(cases, Piecewise):  # the conditions hold at all real values of v, or at none
        return cases.xreplace(back)
    moving = [r for r in (r.xreplace(at) for r in relations) if isinstance(r, Relational)]
    cuts = _ordered({c for r in moving for c in _roots(r, line)})
    if not cuts:
        raise _Unread(f"there is no value of {spelled(line.form)} at which the conditions change")
    points = [cuts[0] - 1, *((a + b) / 2 for a, b in pairwise(cuts)), cuts[-1] + 1]
    forms = [_case_at(cases, line, x) for x in points]
    steps, kept = S.Zero, [(-oo, forms[0])]
    for c, (left, right) in zip(cuts, pairwise(forms), strict=True):
        steps += _step(left, right, _case_at(cases, line, c), c, line)
        if right != left:
            kept.append((c, right))
    return (_continuous(kept, line) + steps).xreplace(back)


def _step(left: Expr, right: Expr, there: Expr, cut: Expr, line: _Line) -> Expr:
    """Return the jump at a threshold ``cut`` as a multiple of a step function, zero without a jump.

    ``left`` and ``right`` are the forms on its two sides, and ``there`` is the form at the threshold. Raises
    _Unread if the value at the threshold is not that of the left plus a fixed fraction of the jump, and for
    a value that is not finite.
    """
    before, after, at_cut = (_value(x, cut, line) for x in (left, right, there))
    jump, part = _gap(after, before), _gap(at_cut, before)
    value = S.One if part == jump else simplify(part / jump) if jump != 0 else S.Zero
    if (jump == 0 and part != 0) or not value.is_number:
        raise _Unread(
            f"the value of the function at {spelled(line.form)} = {spelled(cut)} is not a combination of "
            "the limits from both sides with fixed numbers as weights"
        )
    return jump * Heaviside(line.v - cut, value)


def _continuous(kept: list[tuple[Expr, Expr]], line: _Line) -> Expr:
    """Return the continuous part of a function with cases: the function minus its jumps.

    ``kept`` are pairs of a threshold and of the form from there to the next threshold, in ascending order;
    the first threshold is minus infinity. Raises _Unread if a form contains a step function itself, unless
    all forms are of first degree.
    """
    v = line.v
    total = S.Zero
    if all(f.is_polynomial(v) and Poly(f, v).degree() <= 1 for _, f in kept):
        total = kept[0][1]
        for (_, left), (c, right) in pairwise(kept):
            change = (right - left).expand()
            total += change.xreplace({v: Max(v, c)}) - change.xreplace({v: c})
        return total
    if any(x.has(v) for _, f in kept for x in f.atoms(Heaviside, sign)):
        raise _Unread("one of the cases contains a jump of its own, by Heaviside or sign")
    for i, (c, form) in enumerate(kept):
        inside = v if i + 1 == len(kept) else Min(v, kept[i + 1][0])
        if i:
            inside = Max(c, inside)
            total -= _value(form, c, line)
        total += form.xreplace({v: inside})
    return total


def _roots(r: Relational, line: _Line) -> list[Expr]:
    """Return the values of ``line.v`` at which a relation may change; raise _Unread if they are not known.

    They are the values at which both sides are equal, for either sign of each absolute value. They are known
    if the sides are polynomials of first degree, or of second degree without other symbols.
    """
    gaps = [r.lhs - r.rhs]
    while any(g.has(Abs) for g in gaps):
        sizes = {g: next(iter(sorted(g.atoms(Abs), key=spelled)), None) for g in gaps}
        gaps = [g.xreplace({a: s * a.args[0]}) if a else g for g, a in sizes.items() for s in (1, -1)]
    found: list[Expr] = []
    for gap in map(Expr.expand, gaps):
        if not gap.is_polynomial(line.v):
            raise _Unread(_without_threshold(r, line))
        p = Poly(gap, line.v)
        if p.degree() == 1:
            a, b = p.all_coeffs()
            found.append(-b / a)
        elif p.degree() == 2 and not gap.free_symbols - {line.v}:
            found += [x for x in p.as_expr().as_poly(line.v).all_roots() if x.is_real]
        elif p.degree() > 0:
            raise _Unread(_without_threshold(r, line))
    return found


def _without_threshold(r: Relational, line: _Line) -> str:
    """Return the reason for which the thresholds of a relation are not found."""
    return (
        f"the thresholds of {line.text(r)} are not known: they are found if its sides are polynomials of "
        "first degree, or of second degree without other symbols"
    )


def _ordered(cuts: set[Expr]) -> list[Expr]:
    """Return different thresholds in increasing order; raise _Unread if their order is not known."""
    ordered: list[Expr] = []
    for c in sorted(cuts, key=spelled):
        place = 0
        for other in ordered:
            gap = _real(c - other)
            if gap.is_positive:
                place += 1
            elif gap == 0:
                break
            elif not gap.is_negative:
                raise _Unread(f"it is not known whether {spelled(c)} or {spelled(other)} is greater")
        else:
            ordered.insert(place, c)
    return ordered


def _real(e: Expr) -> Expr:
    """Return ``e`` expanded; symbols without an assumption on being real are replaced by real dummies."""
    names = {x: Dummy(x.name, real=True) for x in e.free_symbols if x.is_real is None}
    return e.xreplace(names).expand()


def _case_at(cases: Piecewise, line: _Line, value: Expr) -> Expr:
    """Return the form that a function with cases has where ``line.v`` equals ``value``.

    Functions with cases inside of the form are replaced by their forms at this value as well. Raises _Unread
    if a condition is not decided at this value, if no case holds, or if ``line`` is a combination of several
    quantities and the form divides by one of them.
    """
    for form, condition in cases.args:
        truths = {}
        for r in condition.atoms(Relational):
            truths[r] = r.func(_real((r.lhs - r.rhs).xreplace({line.v: value}).expand()), 0)
            if truths[r] not in (S.true, S.false):
                raise _Unread(
                    f"it is not known whether the condition {line.text(r)} holds at {spelled(line.form)} = "
                    f"{spelled(value)}"
                )
        if condition.xreplace(truths) == S.true:
            inner = {x: _case_at(x, line, value) for x in _outermost(form)}
            found = form.xreplace(inner)
            found = found.expand() if found.has(line.v) else found
            if line.solved != line.v and _divided(found, line):
                raise _Unread(
                    f"{line.text(found)} divides by a quantity, so that it is not a function of "
                    f"{spelled(line.form)} alone"
                )
            return found
    raise _Unread(
        f"none of the cases holds at {spelled(line.form)} = {spelled(value)} (add a last case with the "
        "condition True)"
    )


def _divided(e: Expr, line: _Line) -> bool:
    """Return whether a denominator in ``e`` contains a field or scalar of the combination ``line.form``."""
    return any(p.exp.is_negative and p.base.has(*line.form.atoms(AppliedUndef)) for p in e.atoms(Pow))


def _value(form: Expr, cut: Expr, line: _Line) -> Expr:
    """Return ``form``, an expression in ``line.v``, at ``line.v = cut``; raise _Unread if not finite."""
    value = form.xreplace({line.v: cut})
    if value.has(nan, zoo, oo, -oo):
        raise _Unread(f"{line.text(form)} has no finite value at {spelled(line.form)} = {spelled(cut)}")
    return value


def _gap(left: Expr, right: Expr) -> Expr:
    """Return ``left - right`` in a short form, and zero if it is a rounding error of floats."""
    gap = (left - right).expand()
    if gap != 0 and not gap.has(AppliedUndef):
        gap = simplify(gap)
    if gap.has(Float) and gap.is_number and abs(gap) < LEAST_JUMP * Add(1, abs(left), abs(right)):
        return S.Zero
    return gap
