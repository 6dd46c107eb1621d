"""Functions of fields when powers of N are counted: parities, growth, and what training adds to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any

from sympy import Abs, Derivative, Dummy, Expr, Heaviside, Integer, Max, Rational, S, Symbol, expand, sign
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.scale.power_counting_values import Grows, Part, Parts, combined, top


@dataclass(frozen=True)
class Shape:
    """What is known of a function of fields: parities, growth, value at zero.

    ``even(i)`` and ``odd(i)`` say what a change of sign of its arguments ``i`` does; ``degree`` is that of a
    homogeneous function (relu 1, Heaviside 0); ``lowest`` the power with which it starts at zero.
    """

    even: Callable[[frozenset[int]], bool]
    odd: Callable[[frozenset[int]], bool]
    degree: Expr | None
    lowest: int
    name: str


def applied(shape: Shape, arguments: tuple[Parts, ...], first: bool = False) -> Parts:
    """A function of fields: its value without training, and what it owes to updates, to second order.

    With ``first`` updates are infinitesimal.  Raises :class:`Grows` where a field grows and the function is
    not homogeneous.
    """
    start = [tuple(p for p in parts if p.order == 0) for parts in arguments]
    base = top(p for parts in start for p in parts)
    size = base if first else top(p for parts in arguments for p in parts)
    grows = size is not None and size.is_positive
    if grows and shape.degree is None:
        raise Grows(f"{shape.name} of a field that grows as N^({size}) is no power of N")
    found = [_signature(shape, start, 0).at(_size_of(shape, base))]
    moved = [(i, p) for i, parts in enumerate(arguments) for p in parts if p.order]
    if grows and not first:  # what training adds may outgrow what was there: no expansion, no parity
        large = [Part(shape.degree * p.power, owed=p.owed, order=p.order, unknown=True) for _, p in moved]
        return combined([*found, *large])
    slope = _signature(shape, start, 1).at(_size_of(shape, base, 1))
    bend = _signature(shape, start, 2).at(_size_of(shape, base, 2))
    found += [slope * p for _, p in moved]
    found += [bend * p * q for (_, p), (_, q) in combinations_with_replacement(moved, 2)]
    return combined(found)


def _size_of(shape: Shape, base: Expr | None, derivative: int = 0) -> Expr:
    """The power of the function, or of its derivative, at a field of order ``N^base``."""
    if base is None or base == 0 or base.free_symbols:
        return S.Zero
    if shape.degree is not None:
        return (shape.degree - derivative) * base if shape.degree != 0 or derivative == 0 else S.Zero
    return max(shape.lowest - derivative, 0) * base


def _signature(shape: Shape, start: list[Parts], derivative: int) -> Part:
    """Even, odd or neither under each source that the arguments contain.

    A derivative is known of a function of one argument alone, where it changes the parity.
    """
    sources = {g for parts in start for p in parts for g in p.odd | p.mixed}
    odd, mixed = set(), set()
    for g in sources:
        flipped = frozenset(i for i, parts in enumerate(start) if parts and all(g in p.odd for p in parts))
        touched = {i for i, parts in enumerate(start) if any(g in p.odd | p.mixed for p in parts)}
        known = touched == flipped and (derivative == 0 or len(start) == 1)
        if known and (shape.even, shape.odd)[derivative % 2](flipped):
            continue
        if known and (shape.odd, shape.even)[derivative % 2](flipped):
            odd.add(g)
        else:
            mixed.add(g)
    return Part(odd=frozenset(odd), mixed=frozenset(mixed))


def shape_of(e: Expr, atoms: list[Any]) -> Shape:
    """Parities, homogeneity and the start at zero of a function of fields.

    Of an undefined function nothing is known: no parity, and a value at zero.

    >>> from sympy import Function, tanh
    >>> h = Function("h")(Symbol("t"))
    >>> tanh_, relu = shape_of(tanh(h), [h]), shape_of(Max(0, h), [h])
    >>> tanh_.odd(frozenset({0})), tanh_.degree, relu.degree, relu.odd(frozenset({0}))
    (True, None, 1, False)
    """
    if len(atoms) > len(_SLOTS):
        raise NotApplicable(f"{e}: a function of more than {len(_SLOTS)} fields")
    table = dict(zip(atoms, _SLOTS, strict=False))
    plain = None if isinstance(e, Derivative) else e.xreplace(table)
    if plain is None or plain.atoms(AppliedUndef) or plain.has(Derivative):
        return Shape(lambda _: False, lambda _: False, None, 0, str(e.func))
    return _shape(plain, len(atoms))


_SLOTS = tuple(Dummy(f"x{i}", real=True) for i in range(4))


@lru_cache(maxsize=256)
def _shape(plain: Expr, count: int) -> Shape:
    @lru_cache(maxsize=64)
    def flipped(which: frozenset[int], factor: int) -> bool:
        other = plain.xreplace({_SLOTS[i]: -_SLOTS[i] for i in which})
        return bool(expand(other - factor * plain) == 0)

    degree, lowest = None, 0
    if count == 1:
        x, kinks = _SLOTS[0], plain.has(Max, Abs, Heaviside, sign)
        degree = next((Integer(k) for k in range(4) if _homogeneous(plain, x, k)), None)
        lowest = 0 if kinks or degree is not None else _start(plain, x)
    return Shape(lambda w: flipped(w, 1), lambda w: flipped(w, -1), degree, lowest, str(plain.func))


def _homogeneous(e: Expr, x: Symbol, k: int) -> bool:
    """Is ``e(c x) = c^k e(x)`` on both sides of zero?  Tried at three places of either side, exactly."""
    for side in (1, -1):
        one = e.subs(x, side)
        if any((e.subs(x, side * c) - c**k * one).expand() != 0 for c in (2, 7, Rational(1, 3))):
            return False
    return True


def _start(e: Expr, x: Symbol) -> int:
    """The lowest power in the Taylor series at zero."""
    return next((k for k in range(4) if e.diff(x, k).subs(x, 0) != 0), 0)
