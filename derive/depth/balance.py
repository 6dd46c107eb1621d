"""Powers of the depth in closed equations, by dominant balance.

Every function of the layers has a size ``L^e``. A term of a recursion over layers is added L times, a sum
over the layers of a source has L terms, a jump at one layer is added once. An exponent is the largest of
those of its terms,

    e[X] = max over terms of X of (power of L in front + sum of e[Y] over the functions Y in it);

with symbols ``alpha`` and ``gamma`` it is the maximum of linear forms in them, without those that another one
exceeds or equals everywhere in a :class:`Domain`. A function with positive feedback on itself within a step,
of gain ``L^p``, grows like ``exp(L^p)`` if p > 0, by a factor of order one if p = 0, and the feedback
vanishes if p < 0.

Sizes found in this way are upper bounds (triangle inequality). They are attained unless leading terms cancel;
closed forms of the first step and solved theories show no such cancellation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from sympy import Add, Dummy, Expr, Integral, KroneckerDelta, Max, Mul, Pow, Rational, S, Sum, Symbol
from sympy.core.exprtools import factor_terms
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, ell
from derive.errors import NotApplicable
from derive.linear.propagators import k

alpha = Symbol("alpha", real=True)
"""Branches are multiplied by ``L^-alpha``."""
gamma = Symbol("gamma", real=True)
"""Updates of a matrix are ``L^-gamma`` large."""
over_layers = Symbol("over_layers", positive=True)
"""Factor of a term that stands for its sum over the layers k of a source; a term has at most one."""

LinearExponent = tuple[Fraction, Fraction, Fraction]
"""``c + a alpha + b gamma`` as (c, a, b)."""
ExponentMaximum = frozenset[LinearExponent]
"""The maximum of linear forms; an empty set is minus infinity, the exponent of zero."""
NOTHING: ExponentMaximum = frozenset()
ORDER_ONE: LinearExponent = (Fraction(0), Fraction(0), Fraction(0))
ONE: ExponentMaximum = frozenset({ORDER_ONE})


@dataclass(frozen=True)
class Domain:
    """Set of points (alpha, gamma): ``corner`` plus sums of ``rays`` with coefficients >= 0.

    Without rays it is the single point ``corner``. Exponents of L are linear forms ``c + a alpha + b gamma``,
    written as tuples (c, a, b), and are compared in the whole set.
    """

    corner: tuple[Fraction, Fraction]
    rays: tuple[tuple[int, int], ...] = ()

    def below(self, p: LinearExponent, q: LinearExponent) -> bool:
        """Return whether the linear form p is at most the linear form q at every point of the domain."""
        c, a, b = (y - x for x, y in zip(p, q, strict=True))
        here = c + a * self.corner[0] + b * self.corner[1]
        return here >= 0 and all(a * u + b * v >= 0 for u, v in self.rays)

    def largest(self, forms: Iterable[LinearExponent]) -> ExponentMaximum:
        """Return a part of the given linear forms that has the same maximum at every point.

        Forms that another one exceeds or equals everywhere in the domain are left out.
        """
        kept = list(dict.fromkeys(forms))
        for p in tuple(kept):
            if any(q != p and self.below(p, q) for q in kept):
                kept.remove(p)
        return frozenset(kept)

    def bounded(self, forms: ExponentMaximum) -> bool:
        """Return whether the maximum of the linear forms is at most 0 at every point of the domain."""
        return all(self.below(p, ORDER_ONE) for p in forms)


_half, _zero = Fraction(1, 2), Fraction(0)
ANYWHERE = Domain((_zero, _zero), ((1, 0), (-1, 0), (0, 1), (0, -1)))
"""Any alpha and gamma: two exponents are comparable only if they differ by a number."""
STEADY = Domain((_half, _zero), ((1, 0), (0, 1), (0, -1)))
"""``alpha >= 1/2``, any gamma."""
STABLE = Domain((_half, _half), ((0, 1), (1, -1)))
"""``alpha >= 1/2`` and ``alpha + gamma >= 1``."""


def form_of(exponent: Expr) -> LinearExponent:
    """Return an exponent ``c + a alpha + b gamma`` as the tuple (c, a, b) of rational numbers.

    Raises :class:`NotApplicable` for any other expression.

    >>> form_of(1 - 2 * alpha)
    (Fraction(1, 1), Fraction(-2, 1), Fraction(0, 1))
    """
    e = exponent.expand()
    slopes = e.coeff(alpha), e.coeff(gamma)
    constant = (e - slopes[0] * alpha - slopes[1] * gamma).expand()
    if not (constant.is_Rational and all(x.is_Rational for x in slopes)):
        raise NotApplicable(
            f"the exponent of L**({exponent}) is not linear in alpha and gamma, the symbols of "
            "derive.depth.balance, with rational coefficients"
        )
    return Fraction(str(constant)), Fraction(str(slopes[0])), Fraction(str(slopes[1]))


def only(exponent: Expr) -> ExponentMaximum:
    """Convert an exponent of L that is linear in alpha and gamma to a set of one linear form (c, a, b).

    Such a set stands for the maximum of its forms.
    """
    return frozenset({form_of(exponent)})


def together(*parts: ExponentMaximum) -> ExponentMaximum:
    """Return the exponent of L of a product of factors from the exponent of each factor.

    Each exponent is a maximum of linear forms (c, a, b) in alpha and gamma, given as a set. Their sum is the
    maximum over all sums of one form of each.
    """
    total = ONE
    for part in parts:
        total = frozenset((p[0] + q[0], p[1] + q[1], p[2] + q[2]) for p in total for q in part)
    return total


def as_expression(forms: ExponentMaximum) -> Expr:
    """Return an exponent of L as ``Max(c + a alpha + b gamma, ...)``, from a set of linear forms (c, a, b).

    The empty set gives minus infinity, the exponent of a function that is zero.
    """
    return Max(*[Rational(c) + Rational(a) * alpha + Rational(b) * gamma for c, a, b in forms])


# -- terms -----------------------------------------------------------------------------------------------


def power(e: Expr) -> tuple[Expr, Expr]:
    """Return (p, rest): the power of L in ``e``, and ``e`` without its factors of L.

    A sum over the layers k adds one to p, and so does a factor ``over_layers``, which stands for such a sum.

    >>> from sympy.abc import x
    >>> power(Sum(x / L, (k, 1, L)))
    (0, Sum(x, (k, 1, L)))
    >>> power(1 / (L * x - 2 * L))
    (-1, 1/(x - 2))
    """
    if isinstance(e, Sum | Integral):
        order, inner = power(e.function)
        return order + sum(1 for x in e.limits if x[0] == k), e.func(inner, *e.limits)
    if isinstance(e, Pow) and e.base in (L, over_layers):
        return e.exp, S.One
    if e in (L, over_layers):
        return S.One, S.One
    if isinstance(e, Mul):
        parts = [power(x) for x in e.args]
        return Add(*[x for x, _ in parts]), Mul(*[x for _, x in parts])
    # SymPy may have multiplied L into a sum that is raised to a power. A factor L of all terms is taken out
    # again: 1/(L*x - 2*L) is 1/L times 1/(x - 2).
    if isinstance(e, Pow) and isinstance(e.base, Add) and e.has(L):
        order, inner = power(factor_terms(e.base))
        return order * e.exp, inner**e.exp
    return S.Zero, e


def delta(e: Expr) -> tuple[Expr, int] | None:
    """Return ``(c, d)`` of a term ``c * delta(k, ell + d)``, with the Kronecker delta of two layers.

    Returns None if the term contains no delta of the layer k of the source and the layer ell of the field.
    """
    deltas = [x for x in e.atoms(KroneckerDelta) if x.has(ell) and x.has(k)]
    if not deltas:
        return None
    (x,) = deltas
    other = x.args[0] if x.args[1] == k else x.args[1]
    mark = Dummy()
    return e.xreplace({x: mark}).coeff(mark), int(other - ell)


@dataclass(frozen=True)
class CountedTerm:
    """A term of an equation, reduced to what a balance of powers of L needs.

    ``power`` is the exponent of L in front of the term; it includes one power for each sum over layers, and
    one if a recursion over layers adds the term in every layer. ``functions`` are the names of the unknown
    functions in the term, a name n times for a function to the power n.
    """

    power: LinearExponent
    functions: tuple[str, ...]


def counted(term: Expr, recursion: bool = False) -> CountedTerm:
    """Return the power of L in front of a term, and the unknown functions in the term.

    With ``recursion`` the term belongs to a recursion over layers, which adds it L times; a term with a
    Kronecker delta of the layers is added only once. A factor ``over_layers`` counts as L. Raises
    :class:`NotApplicable` for a power of L that is not linear in alpha and gamma, for a factor ``a + b``, or
    a power of one, that contains L, and for a power of a function that is not a positive integer.

    >>> from sympy import Function
    >>> counted(Function("R")(ell) ** 2 * over_layers / L**alpha)
    CountedTerm(power=(Fraction(1, 1), Fraction(-1, 1), Fraction(0, 1)), functions=('R', 'R'))
    """
    order, product = power(term)
    once = delta(term) is not None
    return CountedTerm(form_of(order + (1 if recursion and not once else 0)), tuple(_functions(product)))


def _functions(e: Expr) -> Iterator[str]:
    """Yield the names of the unknown functions in a product, a name n times for a function to the power n.

    A function whose argument contains another function, such as ``phi(f(t))``, is not yielded: it is of order
    one in L. So are all other factors, for example ``1 + x``. Functions under the sign of a sum or integral
    are yielded. Raises :class:`NotApplicable` for a factor ``a + b``, or a power of one, that contains L, and
    for a power of a function that is not a positive integer.
    """
    if isinstance(e, Sum | Integral):
        yield from _functions(e.function)
    elif isinstance(e, Mul):
        for x in e.args:
            yield from _functions(x)
    elif isinstance(e, Pow) and isinstance(e.base, AppliedUndef):
        if not (e.exp.is_Integer and e.exp.is_positive):
            raise NotApplicable(
                f"{e} is not a positive integer power of a function, so that its size in powers of L is not "
                "counted"
            )
        yield from [str(e.base.func)] * int(e.exp)
    elif isinstance(e, AppliedUndef) and not any(isinstance(y, AppliedUndef) for y in e.args):
        yield str(e.func)
    elif isinstance(e, Add | Pow) and e.has(L):
        raise NotApplicable(
            f"the size of the factor {e} is not counted, because it contains L and is no power of L: write a "
            "power such as 1/L"
        )


# -- the balance -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Powers of L of all functions, and of the gains of their feedback on themselves.

    ``exponents`` maps the name of a function to the power of L of its size, as a maximum of linear forms in
    alpha and gamma, which is empty for a function that is zero. ``gains`` maps the name of a function whose
    equation contains the function itself, directly or through one other, to the power of L of that feedback.
    ``domain`` is the set of values of alpha and gamma for which the maxima hold.
    """

    exponents: Mapping[str, ExponentMaximum]
    gains: Mapping[str, ExponentMaximum]
    domain: Domain

    def exponent(self, name: str) -> Expr:
        """Return the power of L of the function of this name, minus infinity if the function is zero.

        Raises KeyError if the name is not a function of the balanced equations.

        >>> Sizes({"f_1": only(1 - alpha - gamma)}, {}, STEADY).exponent("f_1")
        -alpha - gamma + 1
        """
        return as_expression(self.exponents[name])

    def size(self, term: Expr, recursion: bool = False) -> ExponentMaximum:
        """Return the exponent of L of a term in an equation, as a set of linear forms whose maximum it is.

        Functions without a known exponent are of order one. With ``recursion`` the term is added in every
        layer, which gives one more power of L, unless the term has a Kronecker delta of the two layers.
        """
        return self.counted(counted(term, recursion))

    def counted(self, x: CountedTerm, without: int | None = None) -> ExponentMaximum:
        """Return the exponent of L of a term: the power in front of it plus the exponents of its functions.

        With ``without`` the function at this position in ``x.functions`` is left out, so that the result
        belongs to the factor of this function. The result is a set of linear forms in alpha and gamma whose
        maximum it is.
        """
        parts = [self.exponents.get(n, ONE) for i, n in enumerate(x.functions) if i != without]
        return together(frozenset({x.power}), *parts)


def balance(
    terms: Mapping[str, Iterable[CountedTerm]], domain: Domain = ANYWHERE, of: Iterable[str] = ()
) -> Sizes:
    """Return the power of L of every function, as the largest power among the terms of its equation.

    ``terms`` maps the name of each function to the terms of its equation. By default the powers hold for any
    alpha and gamma. With names in ``of`` only these functions and those on which they depend are balanced; by
    default all are. Functions without an equation (the derivative of the loss, averages of an activation) are
    of order one. The exponents are iterated from minus infinity. Raises :class:`NotApplicable` if a function
    other than zero has feedback on itself, directly or through one other, whose power of L is positive
    somewhere in ``domain``, or if the iteration does not end.

    >>> balance({"x": [counted(S.One), counted(L * Symbol("y"))]}).exponent("x")
    1
    >>> balance({"x": [counted(L**-alpha), counted(1 / L)]}).exponent("x")
    Max(-1, -alpha)
    """
    rows = {n: tuple(dict.fromkeys(x)) for n, x in terms.items()}
    if todo := list(of):
        rows = {n: rows[n] for n in _needed(rows, todo)}
    exponents = dict.fromkeys(rows, NOTHING)
    sizes = Sizes(exponents, {}, domain)
    # The exponents of L of the functions in `rows` are iterated from minus infinity, up to a largest number
    # of times, until they no longer change. The exponent of a function is the largest of those of its terms,
    # which `sizes` computes from the newest values in `exponents`.
    for _ in range(2 * len(rows) + 2):
        before = dict(exponents)
        for name, counted_terms in rows.items():
            exponents[name] = domain.largest(p for x in counted_terms for p in sizes.counted(x))
        loops = dict(_loops(sizes, rows))
        if exponents == before:
            return Sizes(exponents, loops, domain)
        for name, gain in loops.items():
            if not domain.bounded(gain):
                exponent = as_expression(gain)
                symbols = ", ".join(sorted(map(str, exponent.free_symbols)))
                where = f" for some values of {symbols}" if symbols else ""
                raise NotApplicable(
                    f"the function {name} enters its own equation, directly or through one other function, "
                    f"with the factor L**({exponent}), which grows with L{where}, so that sizes grow "
                    "without end"
                )
    changing = sorted(n for n in exponents if exponents[n] != before[n])
    raise NotApplicable(
        f"the sizes of the functions {', '.join(changing)} in powers of L are not found: these functions "
        "drive each other, and their powers of L grow without end when the equations are iterated"
    )


def _loops(
    found: Sizes, terms: Mapping[str, tuple[CountedTerm, ...]]
) -> Iterator[tuple[str, ExponentMaximum]]:
    """Yield (name, gain) for every function that enters its own equation, directly or through one other.

    ``terms`` maps each function to the terms of its equation, and ``found`` holds the exponent of L of each
    function. The gain is the exponent of L of the factor with which the function enters.
    """
    edges = {
        name: [
            (n, gain)
            for x in counted_terms
            for i, n in enumerate(x.functions)
            if n in terms and (gain := found.counted(x, i))
        ]
        for name, counted_terms in terms.items()
    }
    for name, counted_terms in edges.items():
        gains = [g for n, g in counted_terms if n == name]
        gains += [together(g, h) for n, g in counted_terms if n != name for m, h in edges[n] if m == name]
        if total := frozenset[LinearExponent]().union(*gains):
            yield name, found.domain.largest(total)


def _needed(terms: Mapping[str, tuple[CountedTerm, ...]], todo: list[str]) -> list[str]:
    """Return the names in ``todo`` and those of all functions on which they depend, directly or indirectly.

    Functions without an equation are left out. ``terms`` maps each function to the terms of its equation.
    ``todo`` is emptied.
    """
    names: dict[str, None] = {}
    while todo:
        name = todo.pop()
        if name in terms and name not in names:
            names[name] = None
            todo += [n for x in terms[name] for n in x.functions]
    return list(names)
