"""Vectorised samples and times: kernels as operators, single-site equations as equations between them.

A field is a vector over (sample, time) or over time, written ``h[ell]``; a kernel is an operator between
such spaces, written ``C[ell]``.  Both are noncommutative SymPy symbols (``IndexedBase`` over a
noncommutative label), so products keep their order, ``sympy.transpose`` reverses them and ``srepr``
round-trips.  The number 1 is the identity; the kernel that is 1 at all pairs of times is the operator
``J``, the paper's ``1 1^T``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Add, Expr, IndexedBase, Integral, Max, Min, Mul, Pow, S, Sum, Symbol, sympify, transpose
from sympy.core.function import AppliedUndef
from sympy.printing.latex import LatexPrinter

from derive.calculus.symbols import IndexRange, s, t
from derive.errors import NotApplicable

J = Symbol("J", commutative=False)


def operator(name: str, layer: Expr | int | None = None) -> Expr:
    """The operator (or vectorised field) called ``name``, of a family over layers if ``layer`` is given.

    >>> from sympy import sympify, srepr
    >>> from derive.calculus.symbols import ell
    >>> word = operator("C", ell) * operator("D", ell)
    >>> word == operator("D", ell) * operator("C", ell), sympify(srepr(word)) == word
    (False, True)
    """
    label = Symbol(name, commutative=False)
    return label if layer is None else IndexedBase(label)[sympify(layer)]


@dataclass(frozen=True)
class Kernel:
    """An operator by its entries: ``entry(.., rows, cols, t, s) = definition``.

    ``rows`` and ``cols`` are the sample-like ranges on either side of it.  ``causal`` is ``"strict"`` when
    the entry is zero unless ``s < t``, ``"past"`` unless ``s <= t``, and empty for a kernel that is not
    causal.
    """

    operator: Expr
    entry: AppliedUndef
    definition: Expr
    rows: tuple[IndexRange, ...] = ()
    cols: tuple[IndexRange, ...] = ()
    causal: str = ""

    @property
    def name(self) -> str:
        """The name of the function that gives the entries."""
        return str(self.entry.func)

    @property
    def site(self) -> tuple[Expr, ...]:
        """The layer, if the operator has one."""
        return tuple(self.operator.args[1:])

    def at(self, rows: tuple[Expr, ...], cols: tuple[Expr, ...], time: Expr, past: Expr) -> Expr:
        """The definition at other indices and times."""
        names = {r.index: x for r, x in zip((*self.rows, *self.cols), (*rows, *cols), strict=True)}
        swap = names | {t: time, s: past}
        summed = {lim[0] for x in self.definition.atoms(Sum, Integral) for lim in x.limits}
        inner = {
            x: Symbol(f"{x.name}_", **x.assumptions0) for x in summed
        }  # a summed index must not meet a given one
        place = {k: Symbol(f"_{k}", **k.assumptions0) for k in swap}
        moved = self.definition.xreplace(inner).xreplace(place)
        return moved.xreplace({place[k]: v for k, v in swap.items()})


# -- linear equations between operators ------------------------------------------------


def coefficient(e: Expr, vector: Expr) -> Expr:
    """The operator in front of ``vector`` in an expression linear in vectors (which stand rightmost).

    >>> u, C = operator("u"), operator("C")
    >>> coefficient(2 * C * (u + C * u), u)
    2*C + 2*C**2
    """
    found = S.Zero
    for part in Add.make_args(e.expand()):
        numbers, word = part.args_cnc()
        if word and word[-1] == vector:
            found += Mul(*numbers) * Mul(*word[:-1])
    return found


def solve_for(equations: Mapping[Expr, Expr], target: Expr) -> Expr:
    """Solve ``vector = right-hand side`` for ``target``, eliminating the other vectors; operators do not
    commute.

    A vector that depends on itself through ``M`` gives the resolvent ``(1 - M)^-1``, which exists for
    causal M.

    >>> h, g, u, r, C, D = (operator(x) for x in "hgurCD")
    >>> solve_for({h: u + C * g, g: r + D * h}, h)
    (1 - C*D)**(-1)*(C*r + u)
    """
    todo = dict(equations)
    for other in [x for x in equations if x != target]:
        value = _resolved(other, todo.pop(other))
        todo = {x: _substituted(e, other, value) for x, e in todo.items()}
    return _resolved(target, todo[target])


def _resolved(vector: Expr, e: Expr) -> Expr:
    loop = coefficient(e, vector)
    return e if loop == 0 else Pow(1 - loop, -1) * _without(e, vector)


def _without(e: Expr, vector: Expr) -> Expr:
    return Add(*[x for x in Add.make_args(e.expand()) if x.args_cnc()[1][-1:] != [vector]])


def _substituted(e: Expr, vector: Expr, value: Expr) -> Expr:
    return _without(e, vector) + (coefficient(e, vector) * value).expand()


def resolvents(e: Expr) -> set[Pow]:
    """The inverses ``(1 - M)^-1`` that occur in ``e``."""
    return {x for x in e.atoms(Pow) if x.exp == -1 and not x.is_commutative}


# -- entries ------------------------------------------------


def entry(
    e: Expr, kernels: Mapping[Expr, Kernel], rows: tuple[Expr, ...], cols: tuple[Expr, ...], discrete: bool
) -> Expr:
    """The entry of a polynomial in operators at ``(rows, t), (cols, s)``, as sums over samples and past
    times.

    ``kernels`` gives every operator in it.  Causality bounds each time that is summed over.
    Raises :class:`NotApplicable` for a time that nothing bounds.
    """
    total = S.Zero
    for part in Add.make_args(e.expand()):
        numbers, word = part.args_cnc()
        total += Mul(*numbers) * _word_entry(word, kernels, rows, cols, discrete)
    return total


@dataclass(frozen=True)
class _Factor:
    kernel: Kernel
    flipped: bool

    @property
    def cols(self) -> tuple[IndexRange, ...]:
        return self.kernel.rows if self.flipped else self.kernel.cols

    def value(self, a: tuple[Expr, ...], b: tuple[Expr, ...], time: Expr, past: Expr) -> Expr:
        return self.kernel.at(b, a, past, time) if self.flipped else self.kernel.at(a, b, time, past)


def _word_entry(
    word: list[Expr],
    kernels: Mapping[Expr, Kernel],
    rows: tuple[Expr, ...],
    cols: tuple[Expr, ...],
    discrete: bool,
) -> Expr:
    factors = [
        _Factor(kernels[transpose(x)], True) if x.func == transpose else _Factor(kernels[x], False)
        for x in word
    ]
    places: list[tuple[tuple[Expr, ...], Expr]] = [(rows, t)]
    sums: list[Any] = []
    for k, x in enumerate(factors[:-1], 1):
        names = [Symbol(f"{r.index.name}_{k}", **r.index.assumptions0) for r in x.cols]
        sums += [(n, r.lower, r.upper) for n, r in zip(names, x.cols, strict=True)]
        places.append((tuple(names), Symbol(f"s_{k}", **s.assumptions0)))
    places.append((cols, s))
    value = Mul(
        *[x.value(a, b, p, q) for x, (a, p), (b, q) in zip(factors, places, places[1:], strict=False)]
    )
    if sums:
        value = Sum(value, *sums)
    for k in range(len(factors) - 1, 0, -1):
        time = places[k][1]
        lower, upper = _bounds(factors[k - 1], factors[k], places[k - 1][1], places[k + 1][1], discrete)
        value = (Sum if discrete else Integral)(value, (time, lower, upper))
    return value


def _bounds(left: _Factor, right: _Factor, before: Expr, after: Expr, discrete: bool) -> tuple[Expr, Expr]:
    """Where the time between two kernels may lie."""
    uppers: list[Expr] = []
    lowers: list[Expr] = [S.Zero]
    for x, other, past in ((left, before, not left.flipped), (right, after, right.flipped)):
        if x.kernel.causal:
            gap = 1 if discrete and x.kernel.causal == "strict" else 0
            (uppers if past else lowers).append(other - gap if past else other + gap)
    if not uppers:
        raise NotApplicable(
            f"nothing bounds the time between {left.kernel.operator} and {right.kernel.operator}"
        )
    return Max(*lowers), Min(*uppers)


# -- printing ------------------------------------------------


class OperatorLatex(LatexPrinter):  # type: ignore[misc, unused-ignore]
    """Bold operators with the layer as superscript, transposes as in print."""

    def _print_Indexed(self, e: Expr) -> str:
        return rf"{self._bold(e.args[0].args[0])}^{{{self._print(e.args[1])}}}"

    def _print_Symbol(self, e: Expr, style: str = "plain") -> str:
        return str(super()._print_Symbol(e)) if e.is_commutative else self._bold(e)

    def _print_transpose(self, e: Expr, exp: Any = None) -> str:
        return rf"{{{self._print(e.args[0])}}}^{{\top}}"

    def _bold(self, label: Expr) -> str:
        if label == J:
            return r"\boldsymbol{1}\boldsymbol{1}^{\top}"
        return rf"\boldsymbol{{{super()._print_Symbol(label)}}}"


def operator_latex(e: Any) -> str:
    """LaTeX of an expression (or equation) between operators."""
    return str(OperatorLatex({"order": "old"}).doprint(e))
