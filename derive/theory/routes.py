"""Two routes, one answer: the conditioning rule and the path integral must give the same theory.

They share the reading of a program (which vector meets which matrix), the names of order parameters, and the
tangent kernel, an observable that no equation uses.  Memory, causality, the covariance of entries in time and
the updates are found twice; what a rule states of its memory is held against its own equation of motion.
"""

from __future__ import annotations

from derive.program.program import Program
from derive.theory.compare import Difference, compare
from derive.theory.conditioning import mean_field
from derive.theory.path_integral import path_integral
from derive.theory.path_integral.weights import broken_promises


class RoutesDisagree(AssertionError):
    """The two routes to a mean-field theory gave different equations; the message names them."""


def check_routes(program: Program) -> list[Difference]:
    """Derive ``program``'s theory by the conditioning rule and by the path integral, and compare.

    Returns an empty list.  Raises :class:`RoutesDisagree`, listing the differences, if the two do not agree.

    >>> from derive.program import mlp
    >>> check_routes(mlp(2))
    []
    """
    differences = compare(mean_field(program), path_integral(program).theory())
    for rule in dict.fromkeys([program.rule, *(w.rule for w in program.trained())]):
        # the memory that it states, against the equation of motion that it states, followed in time
        for what, stated, followed in broken_promises(rule):
            differences.append(Difference("memory", f"of {type(rule).__name__}: {what}", stated, followed))
    if differences:
        raise RoutesDisagree(f"{program.name}:\n" + "\n".join(f"  {x}" for x in differences))
    return differences
