"""Comparison of two theories term by term, up to names of summation indices and order.

Every equation, source and order parameter is brought to a normal form and compared by its parts. Terms
without a counterpart are evaluated at random numbers, because the memory of a training rule can be written in
several ways. `check_routes` and `renaming` use the module.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from sympy import (
    Add,
    Dummy,
    Expr,
    Float,
    Function,
    Integral,
    KroneckerDelta,
    Mul,
    Piecewise,
    Pow,
    Product,
    Rational,
    S,
    Sum,
    Symbol,
    Tuple,
    factor_terms,
    factorrat,
)
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.functions.elementary.piecewise import ExprCondPair

from derive.calculus.averages import Average, Response
from derive.calculus.sums import normal_form
from derive.calculus.symbols import IndexRange, L, ell, s, t
from derive.theory.data import STATED, Equation, OrderParameter, Source, TheoryData
from derive.theory.names import Order, symmetric


@dataclass(frozen=True)
class Difference:
    """Difference between two theories in one equation, source or order parameter, or in one of its terms.

    ``part`` is the kind, such as ``equation``, ``source`` or ``response``, and ``name`` the left-hand side as
    text. ``left`` and ``right`` are the expressions in the first and second theory, None where the expression
    is missing.
    """

    part: str
    name: str
    left: Expr | None
    right: Expr | None

    def __str__(self) -> str:
        left, right = ("nothing" if x is None else x for x in (self.left, self.right))
        return f"{self.part} {self.name}: {left} in the first, {right} in the second"


def compare(left: TheoryData, right: TheoryData) -> list[Difference]:
    """Return all differences between two theories; empty if they are equal.

    Sources, equations (term by term), scalars, order parameters with definitions and causality, and
    observables are compared. Names of fields and order parameters must agree
    (:func:`derive.theory.renaming.renaming` compares up to names). Terms of different form count as equal if
    their sums contain a power and agree at random numbers. A source with the covariance zero counts as
    missing.

    >>> from derive import mean_field, mlp
    >>> program = mlp(2)
    >>> print(*compare(mean_field(program), mean_field(program.with_rule(program.rule))))
    <BLANKLINE>
    >>> print(compare(mean_field(program), mean_field(mlp(2, loss="mean")))[0])
    equation h(1, mu, t): Sum(eta*... in the first, Sum(eta*... in the second
    """
    stated_in_both = Counter(_stated(left)) & Counter(_stated(right))
    one, two = (_listed(x, Counter(stated_in_both)) for x in (left, right))
    differences: list[Difference] = []
    for key in dict.fromkeys([*one, *two]):
        a, b = one.get(key), two.get(key)
        item = a or b
        assert item is not None
        parts = _unequal(a.parts if a else [], b.parts if b else [])
        if a and b and _same_numbers(parts):
            continue
        for x, y in parts:
            differences.append(Difference(item.label, item.name, _back(x, item.names), _back(y, item.names)))
    return differences


# -- statements in normal form -------------------------------------------------------------------------------

NamedExpressions = list[tuple[str, Expr]]


@dataclass(frozen=True)
class _Item:
    """Equation, source or order parameter in normal form, for comparison with that of another theory.

    ``label`` is its kind and ``name`` its left-hand side as text. ``parts`` are its terms or other parts as
    (label, expression). Items of two theories with equal ``key`` are compared with each other. ``names`` maps
    the indices to those of the normal form.
    """

    label: str
    name: str
    key: str
    parts: NamedExpressions
    names: dict[Symbol, Symbol]


def _stated(theory: TheoryData) -> list[tuple[str, Any]]:
    """Return the equations, sources and order parameters of a theory, each with a label of its kind.

    Labels are ``equation``, ``scalar``, ``observable``, ``source`` and ``parameter``.
    """
    labels = ("equation", "scalar", "observable", "source", "parameter")
    return [(label, x) for label, part in zip(labels, STATED, strict=True) for x in getattr(theory, part)]


def _listed(theory: TheoryData, stated_in_both: Counter[Any]) -> dict[str, _Item]:
    """Return the equations, sources and order parameters of a theory in normal form, each by a text key.

    Those of two theories with equal keys are compared. ``stated_in_both`` counts those that both theories
    contain in the same form; these are left out, and the counts are reduced. Sources with the covariance zero
    are left out too.
    """
    rules = {w.rule for w in theory.program.trained()}
    # Noise covariances that are given as tables are functions of the two times t and s. They are symmetric in
    # these, so that `order` exchanges their arguments as it does for symmetric order parameters.
    noise_tables = {a for x in rules for a in x.noise(t, s).atoms(AppliedUndef) if len(a.args) == 2}
    order = symmetric(theory.order_parameters, theory.program.given, {str(x.func) for x in noise_tables})
    sure = frozenset({*theory.program.constants, *theory.program.scalars})
    items: dict[str, _Item] = {}
    for label, stated in _stated(theory):
        if isinstance(stated, Source) and stated.covariance == 0:
            continue  # a source that vanishes may be missing in the other theory
        if stated_in_both[label, stated] > 0:
            stated_in_both[label, stated] -= 1
            continue
        item = _item(label, stated, order, sure)
        key = item.key
        while key in items:
            key += " again"
        items[key] = item
    return items


def _item(label: str, stated: Any, order: Order, sure: frozenset[str]) -> _Item:
    """Return an equation, source or order parameter in normal form, for comparison of two theories.

    ``stated`` is the equation, source or order parameter as derived, and ``label`` its kind. ``order`` writes
    symmetric functions in one way (`derive.theory.names.symmetric`), and ``sure`` are the names of functions
    that are the same for all units.
    """
    if isinstance(stated, Source):
        return _source(stated, order)
    if isinstance(stated, OrderParameter):
        return _order_parameter(stated, sure)
    return _equation(label, stated, order)


def _equation(label: str, e: Equation, order: Order) -> _Item:
    """Return an equation in normal form: its terms with standard names of indices, equal terms added up.

    ``label`` is its kind, and ``order`` writes symmetric functions in one way. Each term is labelled by its
    kind and the name of its matrix.
    """
    names = _slots(e.lhs)
    terms: NamedExpressions = []
    for x in e.terms:
        form = order(_form(_at_first_layer(x.expr, e.ranges).xreplace(names)))
        terms += [(f"{x.kind} {x.matrix}", part) for part in Add.make_args(form)]
    return _Item(label, str(e.lhs), _key(label, e, names, e.lhs), _collected(terms), names)


def _source(u: Source, order: Order) -> _Item:
    """Return a Gaussian source in normal form: its covariance, and the name of its matrix.

    ``order`` writes symmetric functions in one way (`derive.theory.names.symmetric`).
    """
    # A covariance does not depend on the order of its two fields. They are sorted by name, so that both
    # orders compare as equal.
    pair = sorted((u.symbol, u.partner), key=lambda x: str(x.func))
    names = _slots(*pair)
    covariance = order(_form(_at_first_layer(u.covariance, u.ranges).xreplace(names)))
    parts = [("covariance", covariance), ("matrix", Symbol(f"of {u.matrix}"))]
    return _Item("source", f"<{u.symbol} {u.partner}>", _key("source", u, names, *pair), parts, names)


def _order_parameter(q: OrderParameter, sure: frozenset[str]) -> _Item:
    """Return an order parameter in normal form: its definition, and its causality.

    ``sure`` are the names of functions that are the same for all units; they stand in front of averages.
    """
    names = _slots(q.symbol)
    definition = _form(_term_by_term(_at_first_layer(q.definition, q.ranges).xreplace(names), sure))
    parts = [("", definition), ("causal", Symbol(q.causal or "always"))]
    return _Item(q.kind, str(q.symbol), _key("parameter", q, names, q.symbol), parts, names)


def _form(e: Expr) -> Expr:
    """Return the normal form of ``e``, in which powers of numbers are powers of primes.

    So ``90**t/10**t`` and ``9**t`` have the same form.
    """

    def by_primes(x: Pow) -> Expr:
        number, rest = x.exp.as_coeff_Add()
        number, rest = (number, rest) if number.is_Integer else (S.Zero, x.exp)
        return x.base**number * Mul(*[PRIME(p) ** (k * rest) for p, k in factorrat(x.base).items()])

    def moves(x: Expr) -> bool:
        return bool(isinstance(x, Pow) and x.base.is_Rational and x.base > 0 and x.exp.free_symbols)

    form = normal_form(_inner_letters(e.replace(moves, by_primes)))
    evaluated = form.replace(lambda x: isinstance(x, Mul) and x.has(KroneckerDelta), _at_deltas)
    return form if evaluated == form else normal_form(evaluated)


def _at_deltas(x: Mul) -> Expr:
    """Return a product with its other factors at the indices that its Kronecker deltas make equal.

    For example, ``k * KroneckerDelta(j, k)`` becomes ``j * KroneckerDelta(j, k)``. Of two indices the later
    one in the alphabet is replaced; the delta itself is kept.
    """
    factors = list(x.args)
    for i in range(len(factors)):
        if not isinstance(factors[i], KroneckerDelta):
            continue
        one, other = sorted(factors[i].args, key=lambda a: (isinstance(a, Symbol), str(a)))
        if isinstance(other, Symbol) and not one.has(other):
            factors = [y if j == i else y.xreplace({other: one}) for j, y in enumerate(factors)]
    return Mul(*factors)


def _inner_letters(e: Any, level: int = 0) -> Any:
    """Return ``e`` with the sums and integrals inside of functions, averages and powers in normal form.

    Such sums are not addends of ``e``, whose normal form therefore leaves them as they are. ``level`` is the
    number of functions, averages and powers around ``e``. It is part of the names of variables, so that they
    differ from those of the sums around them.
    """
    if not e.has(Sum, Integral):
        return e
    is_flat = isinstance(e, Add | Mul | Sum | Integral) or (
        isinstance(e, Pow) and e.exp.is_Integer and e.exp.is_positive
    )
    args = [_inner_letters(x, level) if is_flat else _normal_argument(x, level + 1) for x in e.args]
    return e if list(e.args) == args else e.func(*args)


def _normal_argument(x: Any, level: int) -> Any:
    """Return an argument of a function, an average or a power with its sums in normal form.

    ``level`` is the number of functions, averages and powers around it, see `_inner_letters`.
    """
    if isinstance(x, ExprCondPair | Tuple):
        return x.func(*[_normal_argument(y, level) for y in x.args])
    if not isinstance(x, Expr) or not x.has(Sum, Integral):
        return x
    return normal_form(_inner_letters(x, level), f"_inner{level}_")


PRIME = Function("prime", positive=True)
"""Function of a prime number that stands for it as the base of a power, so that powers are not combined."""


def _key(label: str, x: Any, names: dict[Symbol, Symbol], *heads: Expr) -> str:
    """Return the text by which an equation, source or order parameter is matched with another theory.

    It contains the kind ``label``, the left-hand sides ``heads`` with standard indices, the number of layers,
    and the ranges of all other indices of ``x``. ``names`` maps indices to the standard ones.
    """
    range_texts = {f"{r.upper - r.lower + 1} layers" for r in x.ranges if r.index == ell}
    range_texts |= {
        f"{names.get(r.index, r.index)} in {r.lower}..{r.upper}" for r in x.ranges if r.index != ell
    }
    written = [_at_first_layer(y, x.ranges).xreplace(names) for y in heads]
    return f"{label} {written} {', '.join(sorted(range_texts))}"


def _term_by_term(e: Expr, sure: frozenset[str]) -> Expr:
    """Return ``e`` with each average or response of a sum written as a sum of averages or responses.

    Factors that are the same for all units stand in front, and the average of 1 is 1. These are numbers,
    symbols such as times, and functions whose names are in ``sure``.
    """

    def split_up(x: Average | Response) -> Expr:
        body = map(_denominators_factored, Add.make_args(x.body.expand()))
        split = (z.as_independent(*_random_in(z, sure), as_Add=False) for z in body)
        return Add(*[n * x.func(y, *x.args[1:]) for n, y in split]).xreplace({Average(S.One): S.One})

    e = e.replace(lambda x: isinstance(x, Average) and x.body.has(Sum), lambda x: x.linear())
    return e.replace(lambda x: isinstance(x, Average | Response), split_up)


def _denominators_factored(e: Expr) -> Expr:
    """Return ``e`` with common factors taken out of sums in denominators.

    For example, ``1/(2*a*x + 2*a)`` becomes ``1/(2*a)*1/(x + 1)``.
    """
    sums = {x: x.base for x in e.atoms(Pow) if x.base.is_Add and x.exp.is_negative}
    return e.xreplace(
        {x: Mul(*[y**x.exp for y in Mul.make_args(factor_terms(total))]) for x, total in sums.items()}
    )


def _random_in(e: Expr, sure: frozenset[str]) -> list[Expr]:
    """Return the functions in ``e`` that are not known to be the same for all units.

    ``sure`` are the names of functions that are the same for all units; all others are returned.
    """
    return [a for a in e.atoms(AppliedUndef) if str(a.func) not in sure]


def _at_first_layer(e: Expr, ranges: tuple[IndexRange, ...]) -> Expr:
    """Return ``e``, which holds for all layers of a range, with layers counted from the first one as 0.

    For example, ``h(ell)`` for the layers 2..L becomes ``h(ell + 2)``. ``ranges`` may contain the range
    of ``ell``. If it does not, ``e`` is returned unchanged.
    """
    r = next((r for r in ranges if r.index == ell), None)
    return e if r is None else e.xreplace({ell: ell + r.lower})


def _slots(*atoms: Expr) -> dict[Symbol, Symbol]:
    """Return new names ``slot0``, ``slot1``, ... for the indices of functions, in order of occurrence.

    ``atoms`` are expressions, and their indices are the symbols that stand as arguments of functions. The
    layer index and the depth keep their names.
    """
    applied = [f for a in atoms for f in sorted(a.atoms(AppliedUndef), key=str)]
    free = dict.fromkeys(x for f in applied for x in f.args if isinstance(x, Symbol) and x not in (ell, L))
    return {x: Symbol(f"slot{i}", **x.assumptions0) for i, x in enumerate(free)}


def _back(e: Expr | None, names: dict[Symbol, Symbol]) -> Expr | None:
    """Return ``e`` with its original indices; ``names`` maps those to the standard ones. None stays None."""
    if e is None:
        return None
    return e.xreplace({v: k for k, v in names.items()}).replace(PRIME, lambda p: p)


def _unequal(left: NamedExpressions, right: NamedExpressions) -> list[tuple[Expr | None, Expr | None]]:
    """Return the expressions that only one list contains, as pairs (left, right) with equal labels.

    Where the other list has no unmatched expression of the same label, its place in the pair is None.
    """
    a, b = Counter(left), Counter(right)
    only, other = list((a - b).elements()), list((b - a).elements())
    pairs: list[tuple[Expr | None, Expr | None]] = []
    for label, x in only:
        match = next((i for i, (n, _) in enumerate(other) if n == label), None)
        pairs.append((x, None if match is None else other.pop(match)[1]))
    return pairs + [(None, y) for _, y in other]


def _same_numbers(parts: list[tuple[Expr | None, Expr | None]]) -> bool:
    """Return whether the left and right expressions of ``parts`` have equal sums, by random evaluation.

    The memory of a rule can be written in several ways, such as ``eta/(eta*lam)`` and ``1/lam``. Both sums
    are evaluated at t >= s, at random rational values of their symbols and of the sums, integrals, averages
    and functions in them. ``parts`` are terms without an equal term in the other theory; None counts as
    zero, and the result is True without parts. Sums that contain no power or no symbol, or contain cases, are
    not evaluated: the result is then False.
    """
    if not parts:
        return True
    difference = Add(*[S.Zero if x is None else x for x, _ in parts]) - Add(
        *[S.Zero if y is None else y for _, y in parts]
    )
    if not difference.free_symbols or not difference.has(Pow) or difference.has(Piecewise, Relational):
        return False
    difference = difference.replace(lambda x: isinstance(x, Sum | Integral), _constants_outside)
    opaque = {x: Dummy() for x in _opaque(difference)}
    bare = difference.xreplace(opaque)
    symbols = sorted(bare.free_symbols, key=str)
    draw = Random(1)
    for _ in range(TRIALS):
        values = {x: Rational(draw.randint(2, 99), 101) for x in symbols}
        later = draw.randint(2, 6)
        values |= {t: S(later + draw.randint(0, 3)), s: S(later)}
        number = bare.subs(values).evalf(DIGITS)
        scale = sum((abs(y.subs(values).evalf(DIGITS)) for y in Add.make_args(bare)), S.One)
        if not number.is_number or not abs(number) < scale * Float(10) ** (-DIGITS // 2):
            return False
    return True


def _constants_outside(x: Expr) -> Expr:
    """Return a sum or integral with the factors that do not depend on its variables in front."""
    outside, inside = x.function.as_independent(*x.variables, as_Add=False)
    return outside * x.func(inside, *x.limits)


TRIALS, DIGITS = 3, 40
"""Number of random points at which two expressions are compared, and of decimal digits of their values."""


def _opaque(e: Expr) -> set[Expr]:
    """Return the largest parts of ``e`` that are not elementary functions of symbols, such as averages."""
    if isinstance(e, Sum | Integral | Product | Average | Response | AppliedUndef | KroneckerDelta):
        return {e}
    return set[Expr]().union(*map(_opaque, e.args)) if e.args else set()


def _collected(found: NamedExpressions) -> NamedExpressions:
    """Return the (label, expression) pairs with the coefficients of equal expressions of one label added.

    Pairs whose coefficients add up to zero are left out.
    """
    total: dict[tuple[str, Expr], Expr] = {}
    for label, x in found:
        number, rest = x.as_coeff_Mul()
        total[label, rest] = total.get((label, rest), S.Zero) + number
    return [(label, n * rest) for (label, rest), n in total.items() if n != 0]
