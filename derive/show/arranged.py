"""Order of factors and terms in LaTeX and text: constants, sums, kernels, averages, then fields.

A term becomes an :class:`ArrangedTerm`. The LaTeX printer and the text printer write its parts in the same
order, each with its own characters and brackets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from sympy import (
    Add,
    Basic,
    Derivative,
    Expr,
    I,
    Integral,
    Mul,
    Number,
    Pow,
    Product,
    S,
    Subs,
    Sum,
    Symbol,
    oo,
    sympify,
)
from sympy.concrete.expr_with_limits import ExprWithLimits
from sympy.core.function import AppliedUndef
from sympy.printing.precedence import PRECEDENCE, precedence

from derive.calculus.symbols import L, ell, mu, primed, s, spelled, t
from derive.show.notation import LAYER, SAMPLE, TIME, Name, Notation


class Arranged:
    """Mixin for SymPy's printers that arranges indices, products and sums.

    A printer supplies methods for the characters of its language: a sum without bounds (``unlimited``), a
    derivative of an activation (``dotted``), a derivative by a variable (``rate``), a fraction (``over``),
    the sign of sums with equal bounds (``loop``), and a name with marks (``marked``).
    """

    names: Notation
    left, right = "[", "]"
    open_average, close_average = "<", ">"

    _print: Callable[..., str]
    parenthesize: Callable[..., str]
    unlimited: Callable[[Expr], str]
    dotted: Callable[[AppliedUndef, int], str]
    rate: Callable[[str, str, bool], str]
    over: Callable[[ArrangedTerm, str, str, int], str]
    loop: Callable[[list[Loop]], str]
    marked: Callable[[Name, Sequence[str], Sequence[str]], str]

    # -- equations and terms ---------------------------------------------------------------------------

    def equation(self, terms: Sequence[Expr]) -> str:
        """Return a printed right-hand side: terms in the given order, with common factors taken out.

        If the only term is a sum, its terms are printed, positive ones first.
        """
        if len(terms) == 1 and isinstance(terms[0], Add):
            terms = self.addends(terms[0])
        return self.added(join(list(terms), self.names))

    def added(self, pieces: Sequence[ArrangedTerm]) -> str:
        """Return printed terms of a sum, joined by plus and minus signs; ``0`` if there are none."""
        text = ""
        for i, p in enumerate(pieces):
            text += ("-" if i == 0 else " - ") if p.negative else ("" if i == 0 else " + ")
            text += self.unsigned(p)
        return text or "0"

    def addends(self, e: Add, order: Any = None) -> list[Expr]:
        """Return the terms of a sum in printed order, of which positive ones are first.

        ``order`` is SymPy's name of an order of terms, such as "lex"; None is the order of the printer.
        """
        return ordered(list(self._as_ordered_terms(e, order=order)))  # type: ignore[attr-defined]

    def unsigned(self, p: ArrangedTerm) -> str:
        """Return the printed form of a term without its sign.

        It consists of the constant in front, the signs of sums, terms in brackets, and the other factors.
        """
        parts = [self.front(p), *(self.loop(list(x)) for _, x in groupby(p.loops, key=_bounds))]
        if p.inside:
            parts.append(f"{self.left}{self.added(p.inside)}{self.right}")
        for i, x in enumerate(p.tail):
            factor, behind = self.factor(x), p.tail[i + 1 :]
            bracketed = _reaches_over(x, behind) or self.runs_on(x, any(parts), bool(behind))
            parts.append(self.bracketed(factor) if bracketed else factor)
        return " ".join(filter(None, parts)) or "1"

    def front(self, p: ArrangedTerm) -> str:
        """Return the printed constant in front of a term, without its sign.

        A constant without a denominator is printed as a product of its factors, and 1 as the empty text. A
        constant with a denominator is printed as a fraction, or as an inverse power such as ``x^-1`` if the
        numerator is one and the denominator a symbol.
        """
        above, below = fraction(p.front)
        top = " ".join(map(self.factor, above))
        if not below:
            return top
        if not above and len(below) == 1 and below[0].is_Symbol:
            return self._print(1 / below[0])
        return self.over(p, top or "1", " ".join(map(self.factor, below)), len(below))

    def factor(self, x: Expr) -> str:
        """Return a printed factor of a product, in brackets if it is an addition of terms.

        A sum over an index and an integral have no brackets.
        """
        if isinstance(x, Sum | Integral):
            if any(len(limits) != 3 for limits in x.limits):
                return self.unlimited(x)
            return self.unsigned(arranged_term(x, self.names))
        slope = isinstance(x, Derivative | Subs) and self.activation_slope(x) is not None
        if slope or isinstance(x, Product):
            return self._print(x)
        return str(self.parenthesize(x, PRECEDENCE["Mul"]))

    def runs_on(self, x: Expr, is_preceded: bool, is_followed: bool) -> bool:
        """Return whether the printed factor ``x`` is misread beside other factors, so that it needs brackets.

        ``is_preceded`` and ``is_followed`` say whether other parts of its term stand before and behind it.
        The result is always False here, as LaTeX needs it: a printed fraction has a visible end. The printer
        of plain text has a method of its own.
        """
        return False

    def bracketed(self, text: str) -> str:
        """Return ``text`` in round brackets."""
        return f"({text})"

    def doprint(self, expr: Any) -> str:
        """Return a printed expression, with bound variables renamed if they are also free in it."""
        readable = with_distinct_variables([expr])[0] if isinstance(expr, Basic) else expr
        return str(super().doprint(readable))  # type: ignore[misc]

    def _print_Mul(self, expr: Expr) -> str:
        return self.added([arranged_term(expr, self.names)])

    _print_Sum = _print_Mul
    _print_Integral = _print_Mul

    def _print_Add(self, expr: Add, order: Any = None) -> str:
        return self.added([arranged_term(x, self.names) for x in self.addends(expr, order)])

    # -- derivatives and averages ----------------------------------------------------------------------

    def activation_slope(self, e: Expr) -> tuple[AppliedUndef, int] | None:
        """Return ``(phi(x), n)`` if ``e`` is the n-th derivative of an activation phi at x, else None."""
        if isinstance(e, Subs) and len(e.variables) == 1:
            inner = e.expr
            if isinstance(inner, Derivative) and inner.expr.args == tuple(e.variables) == inner.variables[:1]:
                return inner.expr.func(e.point[0]), len(inner.variables)
        if isinstance(e, Derivative) and isinstance(e.expr, AppliedUndef) and len(e.expr.args) == 1:
            is_slope = set(e.variables) == set(e.expr.args) and self.names.is_activation(e.expr)
            return (e.expr, len(e.variables)) if is_slope else None
        return None

    def _print_Derivative(self, expr: Derivative) -> str:
        if (slope := self.activation_slope(expr)) is not None:
            return self.dotted(*slope)
        several = isinstance(expr.expr, AppliedUndef) and len(expr.expr.args) > 1
        several = several and self.names.is_activation(expr.expr)
        if len(expr.variables) == 1 and (several or isinstance(expr.variables[0], Symbol)):
            body = self.parenthesize(expr.expr, PRECEDENCE["Mul"], strict=True)
            return self.rate(self._print(expr.variables[0]), body, several)
        return str(super()._print_Derivative(expr))  # type: ignore[misc]

    def _print_Subs(self, expr: Subs) -> str:
        if (slope := self.activation_slope(expr)) is not None:
            return self.dotted(*slope)
        return str(super()._print_Subs(expr))  # type: ignore[misc]

    def _print_Average(self, expr: Any) -> str:
        return self.open_average + self._print(expr.args[0]) + self.close_average

    def varied(self, body: Expr) -> str:
        """Return the printed body of a functional derivative, in brackets where they are needed.

        Products, powers, sums and integrals have brackets; symbols, functions and averages have none.
        """
        text = self._print(body)
        whole = precedence(body) >= PRECEDENCE["Func"] and not isinstance(body, Sum | Integral)
        return text if whole else f"{self.left}{text}{self.right}"

    # -- indices ---------------------------------------------------------------------------------------

    def indexed(self, atom: AppliedUndef, *, bare: bool = False, hat: bool = False) -> str:
        """Return a printed field or order parameter: layer as superscript, samples as subscripts, then times.

        With ``bare`` only the layer is kept. With ``hat`` the name has a hat, which marks a conjugate field.
        """
        places: dict[str, list[str]] = {LAYER: [], SAMPLE: [], TIME: []}
        for role, x in zip(self.names.roles_of(atom), atom.args, strict=True):
            places[role].append(without_spaces(self._print(x)))
        name = self.names.name(str(atom.func))
        if hat:
            name = replace(name, base=rf"\hat{{{name.base}}}")
        if bare:
            return self.marked(name, places[LAYER], [])
        times = f"({','.join(places[TIME])})" if places[TIME] else ""
        return self.marked(name, places[LAYER], places[SAMPLE]) + times


def nested_sources(response: Any) -> tuple[Expr, list[Expr]]:
    """Return the innermost body of nested responses, and the list of all sources that are perturbed.

    The source of the outermost response is first.
    """
    body, sources = response, []
    while type(body) is type(response):
        sources.append(body.args[1])
        body = body.args[0]
    return body, sources


def with_distinct_variables(expressions: Sequence[Expr]) -> list[Expr]:
    """Return the expressions of one equation with bound variables that differ from all free symbols.

    The index of a sum, integral or product is renamed if it is also free in one of the expressions, or is the
    index of a sum around it.

    >>> from sympy import Function
    >>> from sympy.abc import e, k
    >>> a = Function("a")
    >>> with_distinct_variables([a(e), a(e) / Sum(a(e), (e, 1, 3)) + Sum(a(k), (k, 1, 3))])
    [a(e), a(e)/Sum(a(e_), (e_, 1, 3)) + Sum(a(k), (k, 1, 3))]
    """
    free = {x for e in expressions for x in e.free_symbols}
    return [_with_unused_variables(e, free) for e in expressions]


def _with_unused_variables(e: Any, taken: set[Any]) -> Any:
    """Return an expression whose summation variables are renamed if they are among ``taken``."""
    if not e.has(ExprWithLimits):
        return e
    if not isinstance(e, ExprWithLimits):
        args = [_with_unused_variables(x, taken) for x in e.args]
        return e if all(x is y for x, y in zip(args, e.args, strict=True)) else e.func(*args)
    variables = {limits[0] for limits in e.limits}
    body = _with_unused_variables(e.function, taken | variables)
    used = taken | variables | body.atoms(Symbol) | e.atoms(Symbol)
    names: dict[Any, Any] = {}
    limits: list[Any] = []
    # SymPy lists the outermost sum last. The loop begins with the outermost sum, because bounds may contain
    # indices of outer sums.
    for x, *bounds in reversed(e.limits):
        bounds = [_with_unused_variables(y, taken | variables).xreplace(names) for y in bounds]
        if x in taken:
            names[x] = primed(x)
            while names[x] in used:
                names[x] = Symbol(f"{names[x].name}_", **x.assumptions0)
            used.add(names[x])
        limits.insert(0, (names.get(x, x), *bounds))
    return e.func(body.xreplace(names), *limits) if body is not e.function or names else e


def _reaches_over(x: Expr, behind: Sequence[Expr]) -> bool:
    """Return whether the factors ``behind`` x, printed after it, could be read as inside its sum or product.

    This is so for every factor behind a product over an index, and for one that contains the index of a sum.
    """
    if isinstance(x, Product):
        return bool(behind)
    return isinstance(x, Sum | Integral) and any(y.atoms(Symbol) & set(x.variables) for y in behind)


def _bounds(x: Loop) -> tuple[Any, ...]:
    """Return a key of a sum by which neighbouring sums are grouped for printing.

    It is equal for sums that share one printed sign, because their lower and upper bounds are equal. An
    integral and a sum over past times have signs of their own.
    """
    is_alone = x.integral or past_time(x) != ""
    return (x,) if is_alone else (x.lower, x.upper)


def shifted(samples: Sequence[str]) -> bool:
    """Return whether one of the printed indices is a sum or difference.

    Written together, ``p+k`` and ``q`` would read ``p+kq``.
    """
    return any(c in x for x in samples for c in "+-")


def without_spaces(text: str) -> str:
    """Return printed text, such as an index ``ell - 1``, without spaces around plus and minus signs."""
    return text.replace(" + ", "+").replace(" - ", "-")


def past_time(x: Loop) -> str:
    """Return the sign between the index and the end time of a sum over past times, else the empty text.

    The sum begins at time 0. The sign is ``<`` if the sum ends one step before the end time, such as t, and
    ``<=`` if it includes the end time.
    """
    if x.integral or x.lower != 0 or x.index.is_integer:
        return ""
    return "<" if (x.upper + 1).is_Symbol and x.upper.is_Add else "<=" if x.upper.is_Symbol else ""


def present_first(times: Sequence[Expr]) -> list[Expr]:
    """Return two times in the order t, s, for a function that is symmetric in them."""
    return sorted(times, key=lambda x: (x.has(s), not x.has(t)))


def as_bound(relation: Any) -> Any:
    """Return an inequality for an index in the form of a bound: ``L - ell >= 1`` as ``ell <= L - 1``.

    It is returned as is unless exactly one term of its left side is minus a symbol, the index.
    """
    negated = [x for x in Add.make_args(relation.lhs) if (-x).is_Symbol]
    if len(negated) != 1:
        return relation
    bound = relation.lhs - negated[0] - relation.rhs
    return type(relation.reversed)(-negated[0], bound, evaluate=False)


# -- terms -----


@dataclass(frozen=True)
class Loop:
    """Sum over ``index`` from ``lower`` to ``upper`` in a printed term, or an integral if ``integral``."""

    index: Symbol
    lower: Expr
    upper: Expr
    integral: bool = False


@dataclass(frozen=True)
class ArrangedTerm:
    """Term of a printed equation, with its parts in the order in which they are printed.

    ``front`` is the constant, ``loops`` are the sums from the outermost to the innermost, ``inside`` are
    terms of a sum in one bracket (empty without a bracket), and ``tail`` are the other factors.
    """

    front: Expr
    loops: tuple[Loop, ...] = ()
    inside: tuple[ArrangedTerm, ...] = ()
    tail: tuple[Expr, ...] = ()

    @property
    def negative(self) -> bool:
        """Whether the term is printed with a minus sign, because the number in ``front`` is negative."""
        return bool(self.front.as_coeff_Mul()[0].is_negative)


def arranged_term(e: Expr, notation: Notation) -> ArrangedTerm:
    """Return an expression that is one term, with its parts in the order in which they are printed."""
    loops: list[Loop] = []
    outer = S.One
    body = sympify(e)
    while True:
        factors = Mul.make_args(body)
        nested = [x for x in factors if isinstance(x, Sum | Integral)]
        others = [x for x in factors if not isinstance(x, Sum | Integral)]
        if len(nested) != 1 or not all(_constant(x, loops) for x in others):
            break
        outer *= Mul(*others)
        for limits in reversed(nested[0].limits):
            if len(limits) != 3:
                return ArrangedTerm(outer, tuple(loops), (), (nested[0],))
            loops.append(Loop(limits[0], limits[1], limits[2], isinstance(nested[0], Integral)))
        body = nested[0].function
    loops = _unbounded(loops)
    constants = [x for x in Mul.make_args(body) if _constant(x, loops)]
    factors = [x for x in Mul.make_args(body) if not _constant(x, loops)]
    return ArrangedTerm(
        outer * Mul(*constants), tuple(loops), (), tuple(sorted(factors, key=lambda x: _place(x, notation)))
    )


def _unbounded(loops: list[Loop]) -> list[Loop]:
    """Return the sums of a term in the order of the papers: over layers, samples, then times.

    They keep their order if all upper bounds are finite, or if one contains the index of another sum.
    """
    indices = {x.index for x in loops}
    if all(x.upper != oo for x in loops) or any(x.upper.has(*indices) for x in loops):
        return loops

    def rank(x: Loop) -> tuple[bool, bool, str]:
        """Return the key by which sums are sorted for printing: layers first, then samples, then times."""
        return x.index.is_integer is not True, x.index != ell, {mu: "0", t: "0"}.get(x.index, x.index.name)

    return sorted(loops, key=rank)


def join(terms: list[Expr], notation: Notation) -> list[ArrangedTerm]:
    """Return the terms of a sum as they are printed; terms with the same sums and fields are joined.

    Joined terms share one bracket in front of the fields.
    """
    pieces = [arranged_term(x, notation) for x in terms]
    groups: dict[object, list[ArrangedTerm]] = {}
    for i, p in enumerate(pieces):
        fields = tuple(x for x in p.tail if notation.is_random(x))
        outer = _loops_of(fields, p)
        key: object = (outer, fields) if outer and fields and not p.inside else i
        groups.setdefault(key, []).append(p)
    return [_joined(g, notation) if len(g) > 1 else g[0] for g in groups.values()]


def _loops_of(fields: tuple[Expr, ...], p: ArrangedTerm) -> tuple[Loop, ...]:
    """Return those sums of the term ``p`` whose index occurs in one of the given fields."""
    return tuple(x for x in p.loops if any(y.has(x.index) for y in fields))


def _joined(group: list[ArrangedTerm], notation: Notation) -> ArrangedTerm:
    """Return terms with the same sums and fields as one term.

    Their common factors are in front of a bracket with the other factors; the fields follow the bracket.
    """
    shared = Counter(Mul.make_args(group[0].front))
    for p in group[1:]:
        shared &= Counter(Mul.make_args(p.front))
    front = Mul(*shared.elements())
    fields = tuple(x for x in group[0].tail if notation.is_random(x))
    outer = _loops_of(fields, group[0])
    inside = tuple(
        replace(
            p,
            front=p.front / front,
            loops=tuple(x for x in p.loops if x not in outer),
            tail=tuple(x for x in p.tail if x not in fields),
        )
        for p in group
    )
    return ArrangedTerm(front, outer, inside, fields)


def ordered(terms: list[Expr]) -> list[Expr]:
    """Return the terms of a sum, positive ones first (``y - f``)."""
    negative = [x for x in terms if x.as_coeff_Mul()[0].is_negative]
    return [x for x in terms if x not in negative] + negative


def fraction(front: Expr) -> tuple[list[Expr], list[Expr]]:
    """Return the factors of numerator and denominator of ``front``, a constant in front of a term.

    The sign is left out; both results are empty for 1 and -1.
    """
    above: list[Expr] = []
    below: list[Expr] = []
    number, symbols = front.as_coeff_Mul()
    number = abs(number)
    if number.is_Rational:
        above += [] if number.p == 1 else [sympify(number.p)]
        below += [] if number.q == 1 else [sympify(number.q)]
    elif number != 1:
        above.append(number)
    for x in sorted(Mul.make_args(symbols), key=_rank):
        if x == 1:
            continue
        if isinstance(x, Pow) and x.exp.as_coeff_Mul()[0].is_negative:
            below.append(1 / x)
        else:
            above.append(x)
    return above, below


def _rank(x: Expr) -> tuple[bool, bool, bool, str]:
    """Return the key by which factors of a constant in front of a term are sorted for printing.

    The imaginary unit is first, then symbols, then powers of sums; factors at t precede those at s.
    """
    base = x.base if isinstance(x, Pow) else x
    return x != I, base.is_Add, x.has(s), str(x)


def _constant(x: Expr, loops: list[Loop]) -> bool:
    """Return whether ``x``, a factor of a term, is printed in front of the sums ``loops`` as a constant.

    It must contain no summation index, and no function except constants of a layer, such as a width.
    """
    if isinstance(x, Number):
        return True
    base = x.base if isinstance(x, Pow) else x
    plain = x.is_Symbol or (isinstance(x, Pow) and not x.atoms(AppliedUndef)) or not x.args
    return (plain or of_a_layer(base)) and not any(x.has(y.index) for y in loops)


def of_a_layer(x: Expr) -> bool:
    """Return whether an expression is a function of a layer alone, such as the relative width ``a(ell)``.

    Its only argument is an integer, or contains ell or L but no time.
    """
    if not isinstance(x, AppliedUndef) or len(x.args) != 1:
        return False
    return bool(x.args[0].is_Integer or x.args[0].has(ell, L)) and not x.args[0].has(t, s)


def _place(x: Expr, notation: Notation) -> tuple[int, int, int, str]:
    """Return the key by which the factors of a term are sorted for printing.

    Scalars are first, then kernels, sums, averages and fields; factors at time t precede those at s.
    """
    names = {str(a.func) for a in x.atoms(AppliedUndef)}
    inner = isinstance(x, Sum | Integral)
    averaged = type(x).__name__ in ("Average", "Response")
    random = notation.is_random(x) and not averaged
    kind = 4 if random else 3 if averaged else 2 if inner else 0 if names & notation.scalars else 1
    return kind, int(x.has(s)), 0 if x.is_Add or x.is_Derivative else 1, spelled(x)
