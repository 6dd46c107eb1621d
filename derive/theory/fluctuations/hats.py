"""Hatted fields: the conjugates that enforce equations, and their averages as responses.

In the action each product of a matrix and a vector, ``chi = M a``, is enforced by a conjugate field.  Written
with a factor -i it is called ``Hatted(chi)`` here.  In the average over one unit it is a derivative: the
equation of ``chi`` is pushed, and everything else in the average responds.  An average of hats alone is zero.
"""

from __future__ import annotations

from typing import Any, cast

from sympy import Add, Expr, Mul, Pow, S, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response


class Hatted(Expr):
    """The conjugate of a field, which under an average is the derivative by what pushes the field.

    >>> from sympy import Function
    >>> from sympy.abc import t
    >>> Hatted(Function("chi")(t))
    hat(chi(t))
    """

    is_commutative = True

    def __new__(cls, field: Any) -> Hatted:
        node: Hatted = Expr.__new__(cls, S(field))
        return node

    @property
    def field(self) -> AppliedUndef:
        """The field whose equation it enforces."""
        return cast(AppliedUndef, self.args[0])

    def _latex(self, printer: Any, *_: Any) -> str:
        head, *rest = str(printer._print(self.field)).split("^", 1)
        first, *below = head.split("_", 1)
        tail = "".join(["_" + x for x in below] + ["^" + x for x in rest])
        return rf"\hat{{{first}}}{tail}"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"hat({printer._print(self.field)})"


def averaged(body: Expr) -> Expr:
    """Return the average of a product with hats, each of which differentiates everything else.

    >>> from sympy import Function
    >>> from sympy.abc import s, t
    >>> h, g, chi = (Function(x) for x in ("h", "g", "chi"))
    >>> averaged(h(t) * g(s) * Hatted(chi(s)))
    <d g(s)*h(t) / d chi(s)>
    >>> averaged(Hatted(chi(s)) * Hatted(chi(t)))
    0
    """
    found = []
    for term in Add.make_args(body.expand()):
        if isinstance(term, Sum):
            found.append(term.func(averaged(term.function), *term.limits))
            continue
        numbers, parts, hats = S.One, S.One, []
        for x in Mul.make_args(term):
            base, power = (x.base, x.exp) if isinstance(x, Pow) and isinstance(x.base, Hatted) else (x, S.One)
            if isinstance(base, Hatted):
                hats += [base] * int(power)
            elif x.has(AppliedUndef):
                parts *= x
            else:
                numbers *= x
        if hats and parts == 1:
            continue
        for hat in hats:
            parts = Response(parts, hat.field)
        found.append(numbers * Average(parts) if parts != 1 else numbers)
    return Add(*found)
