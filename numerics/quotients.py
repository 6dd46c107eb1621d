"""Quotients of exponentials, such as the weights of a softmax, in a form that does not overflow.

``exp(a)/(exp(a) + exp(b))`` is infinity over infinity for large ``a``; ``1/(1 + exp(b - a))`` is one.
Theories and programs are rewritten so before their expressions are evaluated on arrays or as numbers.
"""

from __future__ import annotations

from sympy import Add, Dummy, Expr, Mul, Pow, S, Sum, Symbol, exp
from sympy.core.function import AppliedUndef


def without_overflow(e: Expr) -> Expr:
    """Return an expression with exponentials divided out of the sums of exponentials that they stand over.

    ``exp(a)/D**n`` becomes ``D'**-n``, in which every term of ``D`` is divided by ``exp(a/n)``.  Where
    several sums stand in the denominator, each takes the part of ``a`` that holds its functions; if a part
    belongs to several of them, the quotient stays as it is.

    >>> from sympy.abc import a, b
    >>> without_overflow(exp(a)/(exp(a) + exp(b)))
    1/(exp(-a + b) + 1)
    """
    if not isinstance(e, Expr) or not e.has(exp):
        return e
    e = e.replace(lambda x: isinstance(x, Mul) and any(map(_is_power_of_sum, x.args)), _distributed)
    return e.replace(lambda x: isinstance(x, Mul) and _is_quotient(x), _divided)


def _distributed(x: Mul) -> Expr:
    """The product with a denominator moved into each sum of exponentials above it."""
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
    return any(isinstance(a, exp) for a in x.args) and any(map(_is_power_of_sum, x.args))


def _is_power_of_sum(x: Expr) -> bool:
    """Is it a negative power of a sum that has exponentials among its terms?"""
    return isinstance(x, Pow) and x.exp.is_number and bool(x.exp.is_negative) and _has_exponentials(x.base)


def _has_exponentials(total: Expr) -> bool:
    """Is it a sum with exponentials among the factors of its terms?"""
    terms = total.args if isinstance(total, Add) else [total.function] if isinstance(total, Sum) else []
    return any(isinstance(a, exp) for term in terms for a in Mul.make_args(term))


def _divided(x: Mul) -> Expr:
    """The quotient with its exponential in the denominators."""
    above = [a for a in x.args if isinstance(a, exp)]
    below = [a for a in x.args if _is_power_of_sum(a)]
    shares = _shares(Add(*[a.exp for a in above]), below)
    if shares is None:
        return x
    rest = [a for a in x.args if a not in above and a not in below]
    return Mul(
        *rest, *[Pow(_over(a.base, share / a.exp), a.exp) for a, share in zip(below, shares, strict=True)]
    )


def _shares(exponent: Expr, below: list[Pow]) -> list[Expr] | None:
    """The parts of an exponent that belong to each denominator; None if they cannot be told."""
    if len(below) == 1:
        return [exponent]
    shares = [S.Zero] * len(below)
    names = [_names(Add(*[a.exp for a in x.base.atoms(exp)])) for x in below]
    for part in Add.make_args(exponent):
        owners = [k for k, own in enumerate(names) if _names(part) and _names(part) <= own]
        if len(owners) != 1:
            return None
        shares[owners[0]] += part
    return shares


def _names(e: Expr) -> set[str]:
    """The functions in an exponent, or its symbols if there are none."""
    return {str(a.func) for a in e.atoms(AppliedUndef)} or {str(a) for a in e.atoms(Symbol)}


def _over(total: Expr, exponent: Expr) -> Expr:
    """A sum whose terms are multiplied by ``exp(exponent)``."""
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
    """A term times ``exp(exponent)``, with one exponential."""
    factors = Mul.make_args(term)
    own = [a for a in factors if isinstance(a, exp)]
    return Mul(*[a for a in factors if a not in own], exp(Add(*[a.exp for a in own], exponent)))
