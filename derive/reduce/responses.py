"""Theories with response terms left out: at equal times, or altogether.

An approximation that is made in the equations, and not in the network, is such an edited theory.  It is
solved like a derived one, beside networks that decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from derive.errors import NotApplicable
from derive.theory import Equation, OrderParameter, Term, Theory

RESPONSE = "response"


def without_equal_times(theory: Theory) -> Theory:
    """Return the theory in which no field answers a source of its own step.

    Terms that sum a response up to the present sum it up to the step before, and responses vanish at equal
    times.  In a network ``z(t)`` then misses ``gamma0 B(t, t) phi(h(t))``.

    Parameters
    ----------
    theory : Theory
        A theory in discrete steps.

    Returns
    -------
    Theory
        The edited theory; the same one where no response reaches the present.

    Raises
    ------
    NotApplicable
        For a flow, whose terms do not separate the present from the past.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> theory = mean_field(mlp(2, "erf"))
    >>> edited = without_equal_times(theory)
    >>> [{q.name: q.causal for q in x.responses()} for x in (theory, edited)]
    [{'A': 'strict', 'B': 'past'}, {'A': 'strict', 'B': 'strict'}]
    """
    if not theory.program.rule.discrete:
        raise NotApplicable("a flow has no term of equal times alone: derive the theory in steps")

    def earlier(x: Term) -> Term:
        return replace(x, reach="strict") if x.kind == RESPONSE and x.reach == "past" else x

    def edited(x: Any) -> Iterator[Any]:
        if isinstance(x, Equation):
            here = (y for y in x.terms if not (y.kind == RESPONSE and not y.reach))
            yield replace(x, terms=tuple(map(earlier, here)))
        elif isinstance(x, OrderParameter) and x.kind == RESPONSE:
            yield replace(x, causal="strict")
        else:
            yield x

    return theory.each(edited)


def without_responses(theory: Theory) -> Theory:
    """Return the theory whose fields are sources and memory alone, ``A = B = 0``.

    Outputs and kernels keep their definitions, so that the tangent kernel is that of the network.  No program
    has this theory; that of independent backward matrices is
    :func:`derive.reduce.independence.independent_backward`.

    Parameters
    ----------
    theory : Theory
        Any theory, in steps or a flow.

    Returns
    -------
    Theory
        The edited theory, without response functions.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> edited = without_responses(mean_field(mlp()))
    >>> sorted({x.kind for e in edited.equations for x in e.terms}), edited.responses()
    (['memory', 'source'], ())
    """

    def edited(x: Any) -> Iterator[Any]:
        if isinstance(x, Equation):
            yield replace(x, terms=tuple(y for y in x.terms if y.kind != RESPONSE))
        elif not (isinstance(x, OrderParameter) and x.kind == RESPONSE):
            yield x

    return theory.each(edited)
