"""Theories with response terms removed: those at equal times, or all of them.

Such an edited theory is an approximation of the equations, not of the network. It is solved like a derived
theory and compared with finite networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from derive.errors import NotApplicable
from derive.theory import Equation, OrderParameter, Term, Theory

RESPONSE = "response"


def without_equal_times(theory: Theory) -> Theory:
    """Return the theory without response terms at equal times.

    Terms that sum a response up to the present sum it up to the previous step, and responses vanish at equal
    times. Compared with a network, ``z(t)`` then lacks ``gamma0 B(t, t) phi(h(t))``.

    Parameters
    ----------
    theory : Theory
        A theory in discrete steps.

    Returns
    -------
    Theory
        The edited theory; an equal theory if no response reaches the present.

    Raises
    ------
    NotApplicable
        If the theory is a flow, in which a single time has no weight in an integral.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> theory = mean_field(mlp(2, "erf"))
    >>> edited = without_equal_times(theory)
    >>> [{q.name: q.causal for q in x.responses()} for x in (theory, edited)]
    [{'A': 'strict', 'B': 'past'}, {'A': 'strict', 'B': 'strict'}]
    """
    if not theory.program.rule.discrete:
        raise NotApplicable(
            "in a flow, terms at equal times are not separate: use a training rule in steps, such as "
            "GradientDescent"
        )

    def earlier(x: Term) -> Term:
        return replace(x, reach="strict") if x.kind == RESPONSE and x.reach == "past" else x

    def edited(x: Any) -> Iterator[Any]:
        if isinstance(x, Equation):
            remaining = (y for y in x.terms if not (y.kind == RESPONSE and not y.reach))
            yield replace(x, terms=tuple(map(earlier, remaining)))
        elif isinstance(x, OrderParameter) and x.kind == RESPONSE:
            yield replace(x, causal="strict")
        else:
            yield x

    return theory.each(edited)


def without_responses(theory: Theory) -> Theory:
    """Return the theory without response terms and response functions, ``A = B = 0``.

    Outputs and kernels, also the tangent kernel, keep their definitions. For the program with independent
    backward matrices see :func:`derive.reduce.independence.independent_backward`.

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
