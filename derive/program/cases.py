"""Functions with cases: `Piecewise` expressions of fields, rewritten by Max, Min and Heaviside.

SymPy differentiates a `Piecewise` case by case and leaves out the point mass of a jump, so that theories
would miss terms. :func:`without_cases_of_fields` writes each function with cases of a field as a sum of
functions of ``Max``, ``Min`` and ``Heaviside``, whose derivatives contain the point masses. Networks and
programs apply it to their definitions and losses, before any gradient is taken. A `Piecewise` whose
conditions contain indices and parameters only is not changed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sympy import (
    Abs,
    Add,
    Dummy,
    Eq,
    Expr,
    Float,
    Function,
    Heaviside,
    Integral,
    Max,
    Min,
    Mul,
    Ne,
    Piecewise,
    Poly,
    Pow,
    Rational,
    S,
    SingularityFunction,
    Sum,
    Symbol,
    acot,
    acoth,
    arg,
    atan2,
    nan,
    oo,
    sign,
    simplify,
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
    `Piecewise` stays if its conditions contain no field, scalar, average, matrix product or weight vector;
    those in its values are rewritten. Raises ProgramError for a `Piecewise` that cannot be written in this
    way, such as one with conditions on two independent fields. Raises ProgramError also for a function that
    jumps and whose derivative in SymPy lacks the point mass, such as ``acot(h)`` or ``tanh(1/h)``.

    >>> from sympy import Function, exp
    >>> h = Function("h")(Symbol("t"))
    >>> without_cases_of_fields(Piecewise((h, h > 0), (h / 5, True)), "f")
    h(t)/5 + 4*Max(0, h(t))/5
    >>> without_cases_of_fields(Piecewise((h, h > 0), (exp(h) - 1, True)), "f")
    exp(Min(0, h(t))) + Max(0, h(t)) - 1
    >>> without_cases_of_fields(Piecewise((1, h >= 2), (0, True)), "f")
    Heaviside(h(t) - 2, 1)
    """
    if not e.has(Piecewise, SingularityFunction, Abs, Pow, *JUMPS):
        return e
    poles = any(p.exp.is_negative for p in e.atoms(Pow))
    kinds = (*JUMPS, Function, Pow) if poles else JUMPS
    for jump in sorted(e.atoms(*kinds) - e.atoms(AppliedUndef), key=spelled):
        if _jumps(jump, vectors):
            raise ProgramError(
                f"{where}: {spelled(jump)} jumps, and its derivative leaves the jump out: write a function "
                "without a jump, such as atan, or the jump as a Heaviside function"
            )
    e = e.replace(lambda x: isinstance(x, SingularityFunction), lambda x: x.rewrite(Piecewise))
    e = _with_signs(e, vectors)

    def read(x: Piecewise) -> Expr:
        """Return a `Piecewise` of fields by Max, Min and Heaviside; raise ProgramError if this fails."""
        try:
            return _by_maxima(x, vectors)
        except _Unread as reason:
            raise ProgramError(
                f"{where}: {spelled(x)} cannot be read, because {reason}: write cases of one quantity "
                "between numbers, such as Piecewise((h, h > 0), (h/5, True)), or Max, Min, Abs and Heaviside"
            ) from None

    def written(x: Piecewise) -> Expr:
        """Return ``x`` without cases of fields; cases of indices and parameters stay, with new values."""
        if any(_quantities(c, vectors) for _, c in x.args):
            return read(x)
        if not any(value.has(Piecewise) for value, _ in x.args):
            return x
        return Piecewise(*[(inside(value), c) for value, c in x.args])

    def inside(value: Expr) -> Expr:
        """Return an expression without cases of fields."""
        return value.xreplace({x: written(x) for x in _outermost(value)})

    return inside(e)


def _outermost(e: Any) -> list[Piecewise]:
    """Return the functions with cases in ``e`` that are not part of another one."""
    if isinstance(e, Piecewise):
        return [e]
    return [x for arg in e.args for x in _outermost(arg)] if e.has(Piecewise) else []


JUMPS = (acot, acoth, atan2, arg)
"""Functions that jump, and whose derivatives in SymPy have no point mass."""


def _jumps(f: Expr, vectors: Collection[Symbol]) -> bool:
    """Return whether ``f`` is a function that jumps and whose derivative in SymPy has no point mass.

    True for the functions in ``JUMPS`` of a field or another quantity (except ``atan2`` whose second argument
    is known to be positive), and for a function of one quantity with a jump at a pole of its argument, such
    as ``tanh(1/h)``. A jump at a pole is found from values of the function on both sides of the pole.
    """
    if isinstance(f, JUMPS):
        positive = isinstance(f, atan2) and f.args[1].is_positive
        return bool(_quantities(f, vectors)) and not positive
    quantities = _quantities(f, vectors)
    if len(quantities) != 1 or f.has(Sum, Integral):
        return False
    z = Dummy("z", real=True)
    masked = f.xreplace({quantities[0]: z})
    numbers = {x: Rational(7 + k, 11) for k, x in enumerate(sorted(masked.free_symbols - {z}, key=spelled))}
    masked = masked.xreplace(numbers)
    for pole in masked.atoms(Pow):
        if pole.exp.is_negative and pole.base.is_polynomial(z) and Poly(pole.base, z).degree() == 1:
            place = -pole.base.coeff(z, 0) / pole.base.coeff(z)
            below, near_below, near_above, above = (
                masked.xreplace({z: place + x}).evalf() for x in (-NEAR, -NEAR / 1000, NEAR / 1000, NEAR)
            )
            gaps = (below - near_below, above - near_above, near_above - near_below)
            if all(x.is_finite and x.is_real for x in gaps) and max(map(abs, gaps[:2])) < abs(gaps[2]) / 100:
                return True
    return False


NEAR = Rational(1, 10**6)
"""Distance from a pole at which values on both sides are compared, to see a jump."""


def _with_signs(e: Expr, vectors: Collection[Symbol]) -> Expr:
    """Return ``e`` with ``x/Abs(x)`` and ``x/sqrt(x**2)`` written as ``sign(x)``, which has a point mass.

    Other powers, such as ``Abs(x)/x`` or ``x**3/Abs(x)**3``, are not changed.
    """
    if not any(p.base.has(Abs, Pow) and p.exp.is_negative for p in e.atoms(Pow)):
        return e
    real = {q: Dummy(real=True) for q in {*e.atoms(AppliedUndef), *vectors}}

    def ratio(x: Mul) -> Expr:
        """Return a product with a factor z and a factor 1/Abs(z) written with sign(z)."""
        powers = x.as_powers_dict()
        for base in sorted((b for b in powers if isinstance(b, Abs)), key=spelled):
            z = base.args[0]
            if powers[base] == -1 and powers.get(z, S.Zero) == 1:
                return x * base / z * sign(z)
        return x

    masked = e.xreplace(real)
    signed = masked.replace(lambda x: isinstance(x, Mul) and x.has(Abs), ratio)
    return e if signed == masked else signed.xreplace({x: q for q, x in real.items()})


def _quantities(e: Any, vectors: Collection[Symbol]) -> list[Expr]:
    """Return the outermost fields, scalars, averages, products and weight vectors in ``e``, sorted."""
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

    It is a single quantity, or a polynomial of first degree in each of several, such as ``f - y`` or ``f*y``.
    Relations may contain it with different factors, and with different terms that contain no quantity.
    """
    quantities = sorted({q for r in relations for q in _quantities(r, vectors)}, key=spelled)
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
    """Return a function with cases of one quantity v by Max, Min and Heaviside; raise _Unread if it cannot.

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
            raise _Unread(f"the condition {spelled(r)} is not an inequality of a quantity")
    # averages and products of matrices are other quantities, also if they contain this one
    others = {q: Dummy() for q in _quantities(e, vectors) if not line.form.has(q) and q.has(Mean, Product)}
    cases = e.xreplace(others).xreplace(at)
    cuts = _ordered({c for r in relations for c in _roots(r.xreplace(at), line)})
    if not cuts:
        raise _Unread("its conditions have no threshold")
    points = [cuts[0] - 1, *((a + b) / 2 for a, b in pairwise(cuts)), cuts[-1] + 1]
    forms = [_case_at(cases, line, x) for x in points]
    steps, kept = S.Zero, [(-oo, forms[0])]
    for c, (left, right) in zip(cuts, pairwise(forms), strict=True):
        steps += _step(left, right, _case_at(cases, line, c), c, line)
        if right != left:
            kept.append((c, right))
    back = {v: line.form, **{x: q for q, x in others.items()}}
    return (_continuous(kept, line) + steps).xreplace(back)


def _step(left: Expr, right: Expr, there: Expr, cut: Expr, line: _Line) -> Expr:
    """Return the jump at a threshold ``cut`` as a multiple of a step function, zero without a jump.

    ``left`` and ``right`` are the forms on its two sides, and ``there`` is the form at the threshold. Raises
    _Unread if the value at the threshold is not that of the left plus a fixed fraction of the jump.
    """
    before, after, at_cut = (_value(x, cut, line) for x in (left, right, there))
    jump, part = _gap(after, before), _gap(at_cut, before)
    value = S.One if part == jump else simplify(part / jump) if jump != 0 else S.Zero
    if (jump == 0 and part != 0) or not value.is_number:
        raise _Unread(f"it has a value of its own at {spelled(line.form)} = {spelled(cut)}")
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
        raise _Unread("one of its cases jumps itself")
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
            raise _Unread(f"{line.text(r)} has no threshold that is a number")
        p = Poly(gap, line.v)
        if p.degree() == 1:
            a, b = p.all_coeffs()
            found.append(-b / a)
        elif p.degree() == 2 and not gap.free_symbols - {line.v}:
            found += [x for x in p.as_expr().as_poly(line.v).all_roots() if x.is_real]
        elif p.degree() > 0:
            raise _Unread(f"{line.text(r)} has no threshold that is a number")
    return found


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
                raise _Unread(f"the condition {line.text(r)} is not decided at {spelled(value)}")
        if condition.xreplace(truths) == S.true:
            inner = {x: _case_at(x, line, value) for x in _outermost(form)}
            found = form.xreplace(inner)
            found = found.expand() if found.has(line.v) else found
            if line.solved != line.v and _divided(found, line):
                raise _Unread(f"{line.text(found)} is not a function of {spelled(line.form)}")
            return found
    raise _Unread(f"it has no value at {spelled(line.form)} = {spelled(value)}")


def _divided(e: Expr, line: _Line) -> bool:
    """Return whether a denominator in ``e`` contains a field or scalar of the combination ``line.form``."""
    return any(p.exp.is_negative and p.base.has(*line.form.atoms(AppliedUndef)) for p in e.atoms(Pow))


def _value(form: Expr, cut: Expr, line: _Line) -> Expr:
    """Return the value of a form at a threshold; raise _Unread if it is not finite."""
    value = form.xreplace({line.v: cut})
    if value.has(nan, zoo, oo, -oo):
        raise _Unread(f"{line.text(form)} has no value at {spelled(line.form)} = {spelled(cut)}")
    return value


def _gap(left: Expr, right: Expr) -> Expr:
    """Return ``left - right`` in a short form, and zero if it is a rounding error of floats."""
    gap = (left - right).expand()
    if gap != 0 and not gap.has(AppliedUndef):
        gap = simplify(gap)
    if gap.has(Float) and gap.is_number and abs(gap) < LEAST_JUMP * Add(1, abs(left), abs(right)):
        return S.Zero
    return gap
