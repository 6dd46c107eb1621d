"""Operator words: noncommutative products of kernels, the alphabet of the expansion in gamma0.

The one operation beyond products and transposes is the *memory* of an operator: what the definition of a
causal kernel does to a correlation function, ``C_mu(t,s) = ... + sum_alpha Delta_alpha(s) H_mu,alpha(t,s)``.
It is linear in the operator and in the error Delta, so at each order of the error it is a letter of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sympy import Add, Expr, Indexed, Integer, Mul, Pow, Symbol, sympify, transpose
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.linear.operators import J


class Memory(Expr):
    """``Memory(C, n, X)``: the part of kernel C that remembers X, with the error's coefficient of order n.

    Linear in the correlation X; a noncommutative letter when X is a single word.

    >>> from derive.linear.operators import operator
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

    >>> from derive.linear.operators import operator
    >>> C, D = operator("C"), operator("D")
    >>> terms(2 * C * D + 3)
    [(3, 1), (2, C*D)]
    """
    found: dict[tuple[Expr, ...], list[Expr]] = {}
    todo = list(Add.make_args(sympify(e)))
    while todo:
        part = todo.pop()
        numbers, word = part.args_cnc()
        if not all(map(_is_letter, word)):
            todo += Add.make_args(part.expand())
            continue
        found.setdefault(tuple(word), []).append(Mul(*numbers))
    parts = [(c, w) for w, cs in found.items() if (c := cs[0] if len(cs) == 1 else Add(*cs).expand()) != 0]
    parts.sort(key=lambda x: (len(x[1]), tuple(map(_name, x[1]))))
    return [(c, Mul(*w)) for c, w in parts]


def _is_letter(x: Expr) -> bool:
    base = x.base if isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0 else x
    return isinstance(base, Memory | Transpose) or base.is_Symbol or isinstance(base, Indexed)


@lru_cache(maxsize=100_000)
def _name(x: Expr) -> str:
    return str(x)


def letters(word: Expr) -> list[Expr]:
    """The letters of a word, left to right; powers written out."""
    found: list[Expr] = []
    for x in Mul.make_args(word):
        if isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0:
            found += [x.base] * int(x.exp)
        elif x != 1:
            found.append(x)
    return found


def transposed(e: Expr, symmetric: set[Expr]) -> Expr:
    """The transpose of a sum of words, letter by letter."""

    def flip(x: Expr) -> Expr:
        if isinstance(x, Transpose):
            return x.args[0]
        return x if x in symmetric or x == J else transpose(x)

    return sympify(Add(*[c * Mul(*map(flip, reversed(letters(w)))) for c, w in terms(e)]))
