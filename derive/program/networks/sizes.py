"""Numbers that differ from layer to layer (widths, variances), as expressions in the layer index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from sympy import Expr, Function, Integer, S, sympify

from derive.errors import ProgramError
from derive.program.words import ell

PerLayer: TypeAlias = Expr | float | int | str | Sequence[Expr | float | int] | None


class Listed(Function):
    """``Listed(i, first, x, y, ...)``: the entry at ``i`` of a list that starts at ``first``.

    It is the entry once ``i`` is a number, and nothing known about its entries is used before.

    >>> from sympy.abc import i
    >>> Listed(i, 1, 5, 7).subs(i, 2)
    7
    """

    @classmethod
    def eval(cls, index: Expr, first: Expr, *entries: Expr) -> Expr | None:
        """The entry, if ``index`` is a number within the list."""
        place = index - first
        return entries[int(place)] if place.is_Integer and 0 <= place < len(entries) else None

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"[{', '.join(map(printer._print, self.args[2:]))}]({printer._print(self.args[0])})"

    def _latex(self, printer: Any, *_: Any) -> str:
        entries = ", ".join(map(printer._print, self.args[2:]))
        return rf"\left({entries}\right)_{{{printer._print(self.args[0])}}}"


def per_layer(key: str, value: PerLayer, first: int, last: Expr) -> Expr:
    """``value`` as an expression in ``ell`` for the layers ``first..last``; 1 if there is none.

    A name stands for a function of the layer, a sequence lists the values of all layers (the depth must then
    be an integer), anything else is itself, for every layer.  Raises :class:`ProgramError` naming ``key``.

    >>> from sympy import Integer
    >>> per_layer("relative_widths", "a", 1, Integer(2)), per_layer("relative_widths", [2, 1], 1, Integer(2))
    (a(ell), [2, 1](ell))
    """
    if value is None:
        return S.One
    if isinstance(value, str):
        return Function(value)(ell)
    if not isinstance(value, Sequence):
        return _positive(key, sympify(value))
    if not isinstance(last, Integer):
        raise ProgramError(f"{key} = {list(value)}: a list needs a depth that is a number, not {last}")
    wanted = int(last) - first + 1
    if len(value) != wanted:
        raise ProgramError(
            f"{key} has {len(value)} entries: must have {wanted}, for layers {first} to {last}"
        )
    entries = [_positive(key, sympify(x)) for x in value]
    if len(set(entries)) == 1:
        return entries[0]
    return Listed(ell, first, *entries)


def _positive(key: str, value: Expr) -> Expr:
    if not isinstance(value, Expr) or value.is_nonpositive:
        raise ProgramError(f"{key} = {value}: must be positive")
    return value
