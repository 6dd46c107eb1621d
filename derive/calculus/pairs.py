"""Averages over an independent unit, for weights that are trained entry by entry (as by Adam).

An entry of a matrix belongs to a pair of units. The step of such a rule is a function of the gradient of the
entry, hence of both units, and enters the equations of one unit averaged over the other:
``E~[Q(sum_alpha Delta g copy(phi)) copy(phi)]``. Here Q is the step as a function of the normalised negative
gradient, Delta the error of sample alpha, g the backward field of the one unit, ``copy(phi)`` the feature of
the other, and E~ the average over the other unit. :mod:`derive.theory` makes these expressions, and solvers
evaluate them.
"""

from __future__ import annotations

from typing import Any

from sympy import Expr, S
from sympy.core.symbol import Str


class Copy(Expr):
    """The value of ``x`` at an independent unit of the same population, or at a coordinate of the inputs.

    An average over the unit in whose equation the copy stands treats the copy as a constant;
    :class:`PairMean` averages over it.

    >>> from sympy import Function, tanh
    >>> from sympy.abc import t
    >>> Copy(tanh(Function("h")(t)))
    copy(tanh(h(t)))
    """

    is_commutative = True
    is_averaged = True

    def __new__(cls, body: Any) -> Copy:
        """Return the unevaluated copy of an expression, its value at an independent unit."""
        node: Copy = Expr.__new__(cls, S(body))
        return node

    @property
    def body(self) -> Expr:
        """The field or expression whose value at an independent unit is taken."""
        return self.args[0]

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\widetilde{{{printer._print(self.body)}}}"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"copy({printer._print(self.body)})"


class PairMean(Expr):
    """The average over all copies (:class:`Copy`) in ``body``, with the fields of the unit itself fixed.

    All copies inside one average belong to the same independent unit.

    >>> from sympy import Function
    >>> from sympy.abc import t
    >>> g, h = Function("g"), Function("h")
    >>> PairMean(g(t) * Copy(h(t)))
    E~[g(t)*copy(h(t))]
    """

    is_commutative = True

    def __new__(cls, body: Any) -> PairMean:
        """Return the unevaluated average of an expression over its copies."""
        node: PairMean = Expr.__new__(cls, S(body))
        return node

    @property
    def body(self) -> Expr:
        """The averaged expression: a function of the fields of the unit and of its independent copy."""
        return self.args[0]

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\widetilde{{\mathbb{{E}}}}\left[{printer._print(self.body)}\right]"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"E~[{printer._print(self.body)}]"


class EntryStep(Expr):
    """The step ``Q_weight(gradient; time)`` of an entrywise rule, given the gradients of an entry up to now.

    ``gradient`` is the normalised negative gradient of one entry (``A`` of :mod:`derive.program.entrywise`).
    The step is a functional of ``gradient`` at all times up to ``time``; the rule of the weight in the
    program (:class:`~derive.program.entrywise.Entrywise`) defines it.

    >>> from sympy import Function
    >>> from sympy.abc import s
    >>> EntryStep("W", Function("g")(s), s)
    Q_W(g(s); s)
    """

    is_commutative = True

    def __new__(cls, weight: Any, gradient: Any, time: Any) -> EntryStep:
        """Return the unevaluated step of an entrywise rule for one entry, at ``time``.

        ``weight`` is the name of the weight matrix, and ``gradient`` the normalised negative gradient of one
        entry as a function of ``time``.
        """
        name = weight if isinstance(weight, Str) else Str(str(weight))
        node: EntryStep = Expr.__new__(cls, name, S(gradient), S(time))
        return node

    @property
    def weight(self) -> str:
        """The name of the weight matrix whose entries are trained."""
        return str(self.args[0])

    @property
    def gradient(self) -> Expr:
        """The normalised negative gradient of one entry of the weight matrix as a function of time."""
        return self.args[1]

    @property
    def time(self) -> Expr:
        """The time at which the step is taken."""
        return self.args[2]

    def _latex(self, printer: Any, *_: Any) -> str:
        weight, gradient, time = (printer._print(x) for x in self.args)
        return rf"Q^{{{weight}}}_{{{time}}}\left({gradient}\right)"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        gradient, time = (printer._print(x) for x in self.args[1:])
        return f"Q_{self.weight}({gradient}; {time})"


def copied(e: Expr) -> tuple[Expr, Expr]:
    """Split a product into (factors without copies, other factors with each :class:`Copy` as its body).

    >>> from sympy import Function
    >>> from sympy.abc import t
    >>> g, h = Function("g"), Function("h")
    >>> copied(2 * g(t) * Copy(h(t)))
    (2*g(t), h(t))
    """
    unit_factors, other = e.as_independent(Copy, as_Add=False)
    return unit_factors, other.replace(lambda x: isinstance(x, Copy), lambda x: x.body)


def has_pairs(e: Expr) -> bool:
    """Return whether an expression contains the step of an entrywise rule (:class:`EntryStep`)."""
    return bool(e.has(EntryStep))
