"""The order of the uses of matrices within one step, and which response of a pair exists at equal times.

A product of mixed inner products ``(hat . b)(a . hat')`` brings two responses, of ``b`` to the first use of
the matrix and of ``a`` to the second one, each the conjugate of the other.  One of them is causal: the
response of the vector that is used later to what the earlier use has given.  At equal times this is decided
by the order in which a step computes, also where the response vanishes on average, as that of the backward
pass of a linear network to its forward pass does.
"""

from __future__ import annotations

from derive.errors import NotApplicable
from derive.theory.applications import Application, Reading
from derive.theory.path_integral.action import Action


def place_in_step(reading: Reading, use: Application) -> int:
    """Return the number of the definition, in causal order, in which a use of a matrix comes first."""
    for number, d in enumerate(reading.definitions):
        if any(a.same_use(use) for a in reading.products[d]):
            return number
    raise KeyError(str(use.product))


def responses_at_equal_times(action: Action) -> frozenset[str]:
    """Return the names of the responses to a use of a matrix that comes earlier in the same step.

    Raises
    ------
    NotApplicable
        If a matrix is correlated with its transpose, or if one definition holds both uses of a pair.

    Examples
    --------
    >>> from derive.program import mlp
    >>> from derive.theory.path_integral import path_integral
    >>> sorted(responses_at_equal_times(path_integral(mlp(2))._action))
    ['B']
    """
    found = set()
    for name, q in ((str(q.symbol.func), q) for q in action.responses.values()):
        matrix = q.leg.use.matrix
        if matrix.symmetry != 0:
            raise NotApplicable(
                f"fluctuations of programs with a matrix that is correlated with its transpose, as "
                f"{matrix.name} is, are not derived: its two products with one vector move together"
            )
        if not (q.leg.use.at_once and q.other.use.at_once):
            continue
        own, other = (place_in_step(action.reading, x.use) for x in (q.leg, q.other))
        if own == other:
            raise NotApplicable(
                f"{matrix.name} and its transpose are applied in one definition, so that neither comes "
                "first; give each product a field of its own"
            )
        if other < own:
            found.add(name)
    return frozenset(found)
