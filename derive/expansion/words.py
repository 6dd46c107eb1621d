"""Operator words: noncommutative products of kernels, the alphabet of the expansion in gamma0.

The one operation beyond products and transposes is the *memory* of an operator: what the definition of a causal kernel
does to a correlation function, ``C_mu(t,s) = ... + sum_alpha Delta_alpha(s) H_mu,alpha(t,s)``.  It is linear in the
operator and in the error Delta, so at each order of the error it is a letter of its own.
"""

from __future__ import annotations

from typing import Any

from sympy import Add, Expr, Integer, Mul, Pow, Symbol, sympify, transpose
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.meanfield.reductions.operators import J


class Memory(Expr):
    """``Memory(C, n, X)``: the part of kernel C that remembers the correlation X, with the error's order-n coefficient.

    Linear in X; a noncommutative letter when X is a single word.

    >>> from derive.meanfield.reductions.operators import operator
    >>> Memory("C", 0, operator("K_x"))
    C0[K_x]
    """

    is_commutative = False

    def __new__(cls, kernel: Any, order: Any, body: Any) -> Memory:
        name = Symbol(str(kernel))
        return Expr.__new__(cls, name, Integer(order), sympify(body))  # type: ignore[no-any-return]

    @property
    def kernel(self) -> str:
        """The name of the kernel whose definition is meant."""
        return str(self.args[0])

    @property
    def order(self) -> int:
        """The order of the error."""
        return int(self.args[1])

    @property
    def body(self) -> Expr:
        """The word that is remembered."""
        return self.args[2]

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"{self.kernel}{self.order}[{printer._print(self.body)}]"

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\mathcal{{{self.kernel}}}_{{{self.order}}}\!\left[{printer._print(self.body)}\right]"


def terms(e: Expr) -> list[tuple[Expr, Expr]]:
    """``e`` as a list of (number, word); the word of a pure number is 1.

    >>> from derive.meanfield.reductions.operators import operator
    >>> C, D = operator("C"), operator("D")
    >>> terms(2 * C * D + 3)
    [(3, 1), (2, C*D)]
    """
    found: dict[Expr, Expr] = {}
    for part in Add.make_args(sympify(e).expand()):
        numbers, word = part.args_cnc()
        key = Mul(*word)
        found[key] = found.get(key, Integer(0)) + Mul(*numbers)
    return [(c, w) for w, c in sorted(found.items(), key=lambda x: (len(Mul.make_args(x[0])), str(x[0]))) if c != 0]


def letters(word: Expr) -> list[Expr]:
    """The letters of a word, left to right; powers written out."""
    found: list[Expr] = []
    for x in Mul.make_args(word):
        if isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0:
            found += [x.base] * int(x.exp)
        elif x != 1:
            found.append(x)
    return found


def remembered(kernel: str, order: int, e: Expr) -> Expr:
    """The memory of a sum of words, by linearity."""
    return Add(*[c * Memory(kernel, order, w) for c, w in terms(e)])


def tidy(e: Expr, symmetric: set[Expr]) -> Expr:
    """Expand, and drop the transposes of operators that are symmetric."""
    e = sympify(e).expand()
    return e.xreplace({transpose(x): x for x in {J, *symmetric}}).expand()


def transposed(e: Expr, symmetric: set[Expr]) -> Expr:
    """The transpose of a sum of words, letter by letter."""
    total = Integer(0)
    for c, w in terms(e):
        flipped = [x.args[0] if isinstance(x, Transpose) else (x if x in symmetric or x == J else transpose(x)) for x in reversed(letters(w))]
        total += c * Mul(*flipped)
    return total
