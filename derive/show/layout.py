"""How a theorist writes a sum: constants, sums, kernels, fields, in this order, and common factors taken out.

Both printers read this structure; neither works out its own.  ``gamma0 sum_s A g + gamma0 eta sum_s
sum_alpha Delta H g`` becomes one piece ``gamma0 sum_s [A + eta sum_alpha Delta H] g``: terms under the
same sums and the same past field join.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from sympy import Expr, I, Integral, Mul, Number, Pow, S, Sum, Symbol, oo, sympify
from sympy.core.function import AppliedUndef

from derive.program.words import L, ell, mu, s, t
from derive.show.notation import Notation


@dataclass(frozen=True)
class Loop:
    """One sum or integral: ``index`` from ``lower`` to ``upper``."""

    index: Symbol
    lower: Expr
    upper: Expr
    integral: bool = False


@dataclass(frozen=True)
class Piece:
    """``front loops [inside] tail``: a constant, sums from the outermost in, a bracket, other factors."""

    front: Expr
    loops: tuple[Loop, ...] = ()
    inside: tuple[Piece, ...] = ()
    tail: tuple[Expr, ...] = ()

    @property
    def negative(self) -> bool:
        """Is the constant's number negative?"""
        return bool(self.front.as_coeff_Mul()[0].is_negative)


def piece(e: Expr, notation: Notation) -> Piece:
    """One term, without any bracket."""
    loops: list[Loop] = []
    outer = S.One
    body = sympify(e)
    while True:
        factors = Mul.make_args(body)
        nested = [x for x in factors if isinstance(x, Sum | Integral)]
        rest = [x for x in factors if not isinstance(x, Sum | Integral)]
        if len(nested) != 1 or not all(_constant(x, loops) for x in rest):
            break
        outer *= Mul(*rest)
        for limits in reversed(nested[0].limits):
            if len(limits) != 3:
                return Piece(outer, tuple(loops), (), (nested[0],))
            loops.append(Loop(limits[0], limits[1], limits[2], isinstance(nested[0], Integral)))
        body = nested[0].function
    loops = _unbounded(loops)
    constants = [x for x in Mul.make_args(body) if _constant(x, loops)]
    factors = [x for x in Mul.make_args(body) if not _constant(x, loops)]
    return Piece(
        outer * Mul(*constants), tuple(loops), (), tuple(sorted(factors, key=lambda x: _place(x, notation)))
    )


def _unbounded(loops: list[Loop]) -> list[Loop]:
    """Independent sums with all times among them (an action) in the papers' order: layers, samples, times."""
    indices = {x.index for x in loops}
    if all(x.upper != oo for x in loops) or any(x.upper.has(*indices) for x in loops):
        return loops

    def rank(x: Loop) -> tuple[bool, bool, str]:
        return x.index.is_integer is not True, x.index != ell, {mu: "0", t: "0"}.get(x.index, x.index.name)

    return sorted(loops, key=rank)


def join(terms: list[Expr], notation: Notation) -> list[Piece]:
    """The terms of a sum, those with the same sums and the same past field put in one bracket."""
    pieces = [piece(x, notation) for x in terms]
    groups: dict[object, list[Piece]] = {}
    for i, p in enumerate(pieces):
        fields = tuple(x for x in p.tail if notation.is_random(x))
        outer = _loops_of(fields, p)
        key: object = (outer, fields) if outer and fields and not p.inside else i
        groups.setdefault(key, []).append(p)
    return [_joined(g, notation) if len(g) > 1 else g[0] for g in groups.values()]


def _loops_of(fields: tuple[Expr, ...], p: Piece) -> tuple[Loop, ...]:
    return tuple(x for x in p.loops if any(y.has(x.index) for y in fields))


def _joined(group: list[Piece], notation: Notation) -> Piece:
    shared = Counter(Mul.make_args(group[0].front))
    for p in group[1:]:
        shared &= Counter(Mul.make_args(p.front))
    front = Mul(*shared.elements())
    fields = tuple(x for x in group[0].tail if notation.is_random(x))
    outer = _loops_of(fields, group[0])
    inside = tuple(
        replace(
            p,
            front=p.front / front,
            loops=tuple(x for x in p.loops if x not in outer),
            tail=tuple(x for x in p.tail if x not in fields),
        )
        for p in group
    )
    return Piece(front, outer, inside, fields)


def ordered(terms: list[Expr]) -> list[Expr]:
    """A sum that starts with a positive term, if it has one (``y - f``)."""
    negative = [x for x in terms if x.as_coeff_Mul()[0].is_negative]
    return [x for x in terms if x not in negative] + negative


def fraction(front: Expr) -> tuple[list[Expr], list[Expr]]:
    """Numerator and denominator factors of a constant, its sign left out."""
    above: list[Expr] = []
    below: list[Expr] = []
    number, symbols = front.as_coeff_Mul()
    number = abs(number)
    if number.is_Rational:
        above += [] if number.p == 1 else [sympify(number.p)]
        below += [] if number.q == 1 else [sympify(number.q)]
    elif number != 1:
        above.append(number)
    for x in sorted(Mul.make_args(symbols), key=_rank):
        if x == 1:
            continue
        if isinstance(x, Pow) and x.exp.as_coeff_Mul()[0].is_negative:
            below.append(1 / x)
        else:
            above.append(x)
    return above, below


def _rank(x: Expr) -> tuple[bool, bool, bool, str]:
    """Where a constant stands: the imaginary unit, symbols, powers of sums; the present, the past."""
    base = x.base if isinstance(x, Pow) else x
    return x != I, base.is_Add, x.has(s), str(x)


def _constant(x: Expr, loops: list[Loop]) -> bool:
    """Free of functions of indices and of the loops' indices."""
    if isinstance(x, Number):
        return True
    base = x.base if isinstance(x, Pow) else x
    plain = x.is_Symbol or (isinstance(x, Pow) and not x.atoms(AppliedUndef)) or not x.args
    return (plain or of_a_layer(base)) and not any(x.has(y.index) for y in loops)


def of_a_layer(x: Expr) -> bool:
    """A number that each layer has, such as its relative width ``a(ell)``."""
    if not isinstance(x, AppliedUndef) or len(x.args) != 1:
        return False
    return bool(x.args[0].is_Integer or x.args[0].has(ell, L)) and not x.args[0].has(t, s)


def _place(x: Expr, notation: Notation) -> tuple[int, int, int, str]:
    """Where a factor stands: scalars, kernels, nested sums, averages, fields; then the present, the past."""
    names = {str(a.func) for a in x.atoms(AppliedUndef)}
    inner = isinstance(x, Sum | Integral)
    averaged = type(x).__name__ in ("Average", "Response")
    random = notation.is_random(x) and not averaged
    kind = 4 if random else 3 if averaged else 2 if inner else 0 if names & notation.scalars else 1
    return kind, int(x.has(s)), 0 if x.is_Add or x.is_Derivative else 1, str(x)
