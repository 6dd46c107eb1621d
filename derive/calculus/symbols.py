"""The symbols that every theory is written in, and the ranges of its indices.

They carry assumptions, so a symbol that only has the same name is another one: substitute these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sympy import Expr, Symbol, Tuple, sympify

t = Symbol("t", nonnegative=True)
"""The present time: steps of a discrete rule, training time of a flow."""
s = Symbol("s", nonnegative=True)
"""An earlier time."""
ell = Symbol("ell", integer=True)
"""A layer."""
L = Symbol("L", integer=True, positive=True)
"""The number of hidden layers."""
P = Symbol("P", integer=True, positive=True)
"""The number of training samples."""
mu = Symbol("mu", integer=True, positive=True)
"""A sample."""
alpha = Symbol("alpha", integer=True, positive=True)
"""Another sample."""
gamma0 = Symbol("gamma0", positive=True)
"""The richness: how far features move."""
eta = Symbol("eta", positive=True)
"""The learning rate."""


@dataclass(frozen=True)
class IndexRange:
    """``index`` runs over the integers ``lower..upper``, both included; both may be symbolic."""

    index: Symbol
    lower: Expr
    upper: Expr

    def subs(self, *args: Any, **kwargs: Any) -> IndexRange:
        """The same range with its bounds substituted."""
        return IndexRange(
            self.index, sympify(self.lower).subs(*args, **kwargs), sympify(self.upper).subs(*args, **kwargs)
        )

    def renamed(self, index: Any) -> IndexRange:
        """The same range run over by another index."""
        return IndexRange(index, self.lower, self.upper)

    @property
    def limits(self) -> Tuple:
        """As SymPy's ``Sum`` takes it."""
        return Tuple(self.index, self.lower, self.upper)


__all__ = ["IndexRange", "L", "P", "alpha", "ell", "eta", "gamma0", "mu", "s", "t"]
