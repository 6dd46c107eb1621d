"""Hatted fields: the conjugates that enforce equations, and their averages as responses.

In the action each product of a matrix and a vector, ``chi = M a``, is enforced by a conjugate field, and
``Hatted(chi)`` is -i times this field. In the average over one unit it is a derivative of all other factors
by a perturbation of the equation of ``chi``. An average of hats alone is zero.
"""

from __future__ import annotations

from typing import Any, cast

from sympy import Add, Expr, Integral, Mul, Piecewise, S, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Names, Response, is_random
from derive.calculus.sums import bound, factors, rename_bound
from derive.calculus.symbols import spelled


class Hatted(Expr):
    """Conjugate of a field, times -i.

    In an average it is the derivative of all other factors by a perturbation of the equation of the field.

    Parameters
    ----------
    field : AppliedUndef
        Field whose equation the conjugate enforces.

    Examples
    --------
    >>> from sympy import Function
    >>> from sympy.abc import t
    >>> Hatted(Function("chi")(t))
    hat(chi(t))
    """

    is_commutative = True

    def __new__(cls, field: Any) -> Hatted:
        """Return the conjugate of a field."""
        node: Hatted = Expr.__new__(cls, S(field))
        return node

    @property
    def field(self) -> AppliedUndef:
        """Field whose equation the conjugate enforces."""
        return cast(AppliedUndef, self.args[0])

    def _latex(self, printer: Any, *_: Any) -> str:
        head, *rest = str(printer._print(self.field)).split("^", 1)
        first, *below = head.split("_", 1)
        tail = "".join(["_" + x for x in below] + ["^" + x for x in rest])
        return rf"\hat{{{first}}}{tail}"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"hat({printer._print(self.field)})"


def averaged(body: Expr, random: Names = None) -> Expr:
    """Return the average of an expression in which hats are derivatives.

    Each hat differentiates all other factors. Sums and cases stand outside of the averages.

    Parameters
    ----------
    body : Expr
        Sum of products of hats and functions of fields.
    random : Names, optional
        Names of fields. All other functions are numbers and stand in front of averages. By default all
        functions are fields.

    Returns
    -------
    Expr
        The average.

    Examples
    --------
    >>> from sympy import Function
    >>> from sympy.abc import s, t
    >>> h, g, chi = (Function(x) for x in ("h", "g", "chi"))
    >>> averaged(h(t) * g(s) * Hatted(chi(s)))
    <d g(s)*h(t) / d chi(s)>
    >>> averaged(g(s) * h(t) * Hatted(chi(s)), ["h", "chi"])
    g(s)*<d h(t) / d chi(s)>
    >>> averaged(Hatted(chi(s)) * Hatted(chi(t)))
    0
    """
    names = None if random is None else frozenset(random)
    return Add(*[_averaged_term(x, names) for x in Add.make_args(body.expand())])


def _averaged_term(term: Expr, random: frozenset[str] | None) -> Expr:
    """Return the average over one unit of a product; its hats become derivatives of the factors with fields.

    ``random`` are the names of fields; None means all functions. Factors without fields stand in front of the
    average.
    """
    fixed, moving, hats = list[Expr](), list[Expr](), list[Hatted]()
    for x in factors(term):
        if isinstance(x, Hatted):
            hats.append(x)
        else:
            (moving if x.has(Hatted) or is_random(x, random) else fixed).append(x)
    compound = next((x for x in moving if isinstance(x, Sum | Integral | Piecewise)), None)
    if compound is not None:
        moving.remove(compound)
        return _inside(compound, Mul(*fixed, *moving, *hats), random)
    if not moving:
        return S.Zero if hats else Mul(*fixed)
    parts = Mul(*moving)
    for hat in sorted(hats, key=spelled):
        parts = Response(parts, hat.field)
    return Mul(*fixed) * Average(parts)


def _inside(e: Expr, rest: Expr, random: frozenset[str] | None) -> Expr:
    """Return the average over one unit of ``rest * e``, where ``e`` is a sum, an integral or cases.

    The average is taken of each summand or case. ``random`` are the names of fields; None means all
    functions.
    """
    if isinstance(e, Piecewise):
        return Piecewise(*[(averaged(rest * x, random), condition) for x, condition in e.args])
    renamed = rename_bound(e, rest.free_symbols | bound(rest))
    inner = averaged(rest * renamed.function, random)
    return S.Zero if inner == 0 else renamed.func(inner, *renamed.limits)
