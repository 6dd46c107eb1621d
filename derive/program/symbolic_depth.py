"""Conversion of a program with an integer number of layers to one with symbolic depth ``L``.

Layers are counted from both ends: a field, population or matrix at the last layer is moved to ``L``, and a
range of layers that ends ``k`` before the last one ends at ``L - k``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from sympy import Expr, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, L, ell, expression
from derive.errors import NotApplicable
from derive.program.language import Population
from derive.program.parts import gaussian, parameter
from derive.program.program import Program


def at_symbolic_depth(program: Program) -> Program:
    """Return the program of symbolic depth ``L`` that becomes the given one if ``L`` is its number of layers.

    Parameters
    ----------
    program : Program
        A program with at least two hidden layers, some of them a family.

    Returns
    -------
    Program
        The program at symbolic depth; the given one if its depth is not an integer.

    Raises
    ------
    NotApplicable
        If the depth is less than two, or if the layers between the first and the last are not one family.

    Examples
    --------
    >>> from derive.program import mlp
    >>> at_symbolic_depth(mlp(3, "tanh", bias=True)) == mlp(L, "tanh", bias=True)
    True
    """
    if not program.depth.is_Integer:
        return program
    last = int(program.depth)
    layered = {x.name for x in program.fields if x.layered}
    families = [m for m in map(gaussian, program.matrices) if m.index is not None and m.index.index == ell]
    layered |= {m.name for m in families}
    layered |= {v.name for v in map(parameter, program.vectors) if any(r.index == ell for r in v.indices)}
    layered |= {
        str(a.func)
        for name in program.constants
        for a in _atoms(program)
        if str(a.func) == name and a.args and a.args[0].has(ell)
    }
    if last < 2 or not families:
        raise NotApplicable(
            f"the depth {last} cannot be replaced by a symbol: the program needs at least two layers, and a "
            f"family of matrices with the index {ell}"
        )

    def end(layer: Expr) -> Expr:
        """Return ``L`` if a layer is the last one, otherwise the layer."""
        return L if layer == last else layer

    def upper(layer: Expr) -> Expr:
        """Return an integer upper end of a range as ``L`` minus its distance from the last layer.

        Any other end is returned unchanged.
        """
        return layer - last + L if layer.is_Integer else layer

    def written(e: Expr) -> Expr:
        """Return an expression with ``L`` for the number of layers, at the last layer and in ranges."""
        e = e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in layered and x.args[0].is_Integer,
            lambda x: x.func(end(x.args[0]), *x.args[1:]),
        )
        return e.replace(
            lambda x: isinstance(x, Sum) and any(i == ell for i, *_ in x.limits),
            lambda x: x.func(
                x.function, *[(i, low, upper(high) if i == ell else high) for i, low, high in x.limits]
            ),
        )

    rewritten = _rewritten(program, written, end, upper)
    lifted: Program = replace(rewritten, depth=L)
    if lifted.at_depth(last) != program:
        raise NotApplicable(
            f"the depth {last} cannot be replaced by the symbol {L}: with {L} = {last} the resulting program "
            "differs from the given one; all layers between the first and the last must be one family"
        )
    return lifted


def _atoms(program: Program) -> set[AppliedUndef]:
    """Return the applied undefined functions in the expressions of a program, except its training rules."""
    functions: set[AppliedUndef] = set()

    def seen(e: Any) -> Any:
        functions.update(expression(e).atoms(AppliedUndef))
        return e

    program.map(seen)
    return functions


def _rewritten(  # noqa: PLR0911 (one for each type of part)
    x: Any, written: Callable[[Expr], Expr], end: Callable[[Expr], Expr], upper: Callable[[Expr], Expr]
) -> Any:
    """Return a part of a program with its number of layers replaced by the symbol ``L``.

    ``written`` rewrites expressions, ``end`` single layers, and ``upper`` the upper ends of ranges of layers.
    """
    if isinstance(x, Expr):
        return written(x)
    if isinstance(x, IndexRange):
        return IndexRange(x.index, x.lower, upper(x.upper)) if x.index == ell else x
    if isinstance(x, Population):
        site = x.site
        return x.map(written) if site is None else replace(x.map(written), site=end(expression(site)))
    if isinstance(x, tuple):
        return tuple(_rewritten(y, written, end, upper) for y in x)
    if isinstance(x, Program):
        new = {f.name: _rewritten(getattr(x, f.name), written, end, upper) for f in fields(x)}
        new["notation"] = {written(k): v for k, v in x.notation.items()}
        return Program(**{**new, "depth": L})
    if is_dataclass(x) and not isinstance(x, type):
        new = {f.name: _rewritten(getattr(x, f.name), written, end, upper) for f in fields(x) if f.init}
        return replace(x, **new)
    return x
