"""Quotients and logarithms of exponentials, as in a softmax and its loss, in forms that do not overflow.

``exp(a)/(exp(a) + exp(b))`` is infinity over infinity for large ``a``; ``1/(1 + exp(b - a))`` is one.
``log(1 + exp(a))`` is infinite; ``a + log(1 + exp(-a))`` is not.  Theories, programs and losses are rewritten
so before their expressions are evaluated on arrays or as numbers.
"""

from __future__ import annotations

from sympy import Abs, Add, Dummy, Expr, Max, Mul, Pow, S, Sum, Symbol, cosh, exp, log
from sympy.core.function import AppliedUndef


def without_overflow(e: Expr) -> Expr:
    """Return an expression with exponentials divided out of the sums of exponentials that they stand over.

    ``exp(a)/D**n`` becomes ``D'**-n``, in which every term of ``D`` is divided by ``exp(a/n)``.  If several
    sums stand in the denominator, each term of ``a`` is assigned to the sum whose exponents contain its
    functions (or its symbols, if it has no functions).  If a term fits several sums or none, the quotient
    stays as it is.

    >>> from sympy.abc import a, b
    >>> without_overflow(exp(a)/(exp(a) + exp(b)))
    1/(exp(-a + b) + 1)
    """
    if not isinstance(e, Expr) or not e.has(exp):
        return e
    e = e.replace(lambda x: isinstance(x, Mul) and any(map(_is_power_of_sum, x.args)), _distributed)
    return e.replace(lambda x: isinstance(x, Mul) and _is_quotient(x), _divided)


def logarithms_without_overflow(e: Expr) -> Expr:
    """Return an expression with the largest exponent taken out of logarithms of sums of exponentials.

    ``log(exp(a) + exp(b))`` becomes ``m + log(exp(a - m) + exp(b - m))``, where ``m`` is the larger of both,
    and ``log(cosh(a))`` is the logarithm of such a sum.  Terms must be exponentials, or numbers, with
    positive coefficients; other logarithms are unchanged.  Exponents must be real.

    >>> a = Symbol("a", real=True)
    >>> float(logarithms_without_overflow(log(1 + exp(a))).subs(a, 1000.0))
    1000.0
    >>> round(float(logarithms_without_overflow(log(cosh(a))).subs(a, -1000.0)), 3)
    999.307
    """

    def scaled(x: Expr) -> Expr:
        terms = [_number_and_exponent(term) for term in Add.make_args(x.args[0])]
        known = [pair for pair in terms if pair is not None]
        if len(known) < len(terms):
            return x
        largest = Max(*[exponent for _, exponent in known])
        return largest + log(Add(*[number * exp(exponent - largest) for number, exponent in known]))

    def of_cosh(x: Expr) -> Expr:
        size = Abs(x.args[0].args[0])
        return size + log(1 + exp(-2 * size)) - log(2)

    e = e.replace(lambda x: isinstance(x, log) and isinstance(x.args[0], cosh), of_cosh)
    return e.replace(lambda x: isinstance(x, log) and isinstance(x.args[0], Add) and x.has(exp), scaled)


def _number_and_exponent(term: Expr) -> tuple[Expr, Expr] | None:
    """Split a term ``number * exp(exponent)`` into (number, exponent).

    None if the factor of the exponential is not a positive number.
    """
    factors = Mul.make_args(term)
    number = Mul(*[x for x in factors if not isinstance(x, exp)])
    exponent = Add(*[x.args[0] for x in factors if isinstance(x, exp)])
    return (number, exponent) if number.is_number and number.is_positive else None


def _distributed(x: Mul) -> Expr:
    """Return a product in which each term of a sum in the numerator is divided by a denominator.

    Then each term is a quotient that can be rewritten alone. Denominators are negative powers of a sum of
    exponentials; the sum in the numerator has exponentials, too.
    """
    args = list(x.args)
    for k, total in enumerate(x.args):
        at = next((i for i, a in enumerate(args) if _is_power_of_sum(a) and a.exp <= -1), None)
        if at is None or not _has_exponentials(total):
            continue
        below = args[at]
        if isinstance(total, Sum) and below.free_symbols & {*total.bound_symbols}:
            continue
        args[at] = Pow(below.base, below.exp + 1)
        if isinstance(total, Add):
            args[k] = Add(*[a / below.base for a in total.args])
        else:
            args[k] = total.func(total.function / below.base, *total.limits)
    return Mul(*args)


def _is_quotient(x: Mul) -> bool:
    """Return whether a product is an exponential divided by a sum of exponentials, times other factors."""
    return any(isinstance(a, exp) for a in x.args) and any(map(_is_power_of_sum, x.args))


def _is_power_of_sum(x: Expr) -> bool:
    """Return whether an expression is a negative power of a sum of exponentials."""
    return isinstance(x, Pow) and x.exp.is_number and bool(x.exp.is_negative) and _has_exponentials(x.base)


def _has_exponentials(total: Expr) -> bool:
    """Return whether an expression is a sum in which a term has an exponential as a factor."""
    terms = total.args if isinstance(total, Add) else [total.function] if isinstance(total, Sum) else []
    return any(isinstance(a, exp) for term in terms for a in Mul.make_args(term))


def _divided(x: Mul) -> Expr:
    """Return a product without exponentials in its numerator, from a quotient by sums of exponentials.

    The terms of the sums are divided by these exponentials instead. If it is ambiguous which sum is divided
    by which exponential, the product is unchanged.
    """
    above = [a for a in x.args if isinstance(a, exp)]
    below = [a for a in x.args if _is_power_of_sum(a)]
    shares = _shares(Add(*[a.exp for a in above]), below)
    if shares is None:
        return x
    others = [a for a in x.args if a not in above and a not in below]
    divided = [Pow(_over(a.base, share / a.exp), a.exp) for a, share in zip(below, shares, strict=True)]
    return Mul(*others, *divided)


def _shares(exponent: Expr, below: list[Pow]) -> list[Expr] | None:
    """Split the exponent in a numerator into one summand for each denominator, the sums in ``below``.

    A single denominator gets the whole exponent. Of several, a term of the exponent belongs to the
    denominator in whose exponents its functions occur. None if a term then fits several denominators or none.
    """
    if len(below) == 1:
        return [exponent]
    shares = [S.Zero] * len(below)
    names = [_names(Add(*[a.exp for a in x.base.atoms(exp)])) for x in below]
    for part in Add.make_args(exponent):
        owners = [k for k, names_below in enumerate(names) if _names(part) and _names(part) <= names_below]
        if len(owners) != 1:
            return None
        shares[owners[0]] += part
    return shares


def _names(e: Expr) -> set[str]:
    """Return the names of the functions in an exponent, or of its symbols if it has no functions."""
    return {str(a.func) for a in e.atoms(AppliedUndef)} or {str(a) for a in e.atoms(Symbol)}


def _over(total: Expr, exponent: Expr) -> Expr:
    """Return the sum ``total`` with each term multiplied by ``exp(exponent)``."""
    if isinstance(total, Add):
        return Add(*[_times(a, exponent) for a in total.args])
    assert isinstance(total, Sum)
    limits: list[tuple[Expr, ...]] = []
    body = total.function
    for index, *ends in total.limits:
        new = Symbol(f"{index.name}_{Dummy().dummy_index}", **index.assumptions0)
        new = new if index in exponent.free_symbols else index
        body, limits = body.xreplace({index: new}), [*limits, (new, *ends)]
    return Sum(_times(body, exponent), *limits)


def _times(term: Expr, exponent: Expr) -> Expr:
    """Return ``term * exp(exponent)``, with all exponentials joined into one."""
    factors = Mul.make_args(term)
    exponentials = [a for a in factors if isinstance(a, exp)]
    joined = exp(Add(*[a.exp for a in exponentials], exponent))
    return Mul(*[a for a in factors if a not in exponentials], joined)
