"""Order of the uses of matrices within one step, and the responses that exist at equal times.

A product of mixed inner products ``(hat . b)(a . hat')`` gives two responses, of ``b`` to the first use of
the matrix and of ``a`` to the second one, which are conjugate to each other. One of them is causal: the
response of the vector that is used later to the result of the earlier use. At equal times the order of the
computation within a step decides this, even if the response vanishes on average, as the response of the
backward pass of a linear network to its forward pass does.
"""

from __future__ import annotations

from collections.abc import Mapping

from sympy.core.function import AppliedUndef

from derive.calculus.symbols import t
from derive.errors import NotApplicable
from derive.theory.applications import Application, Reading, reaches
from derive.theory.path_integral.action import Action


def position_in_step(reading: Reading, use: Application) -> tuple[int, int]:
    """Return the position of a product within a step, for comparison: earlier products have smaller ones.

    The first number counts the definitions in causal order, the second one the products in a definition.
    Raises KeyError if no definition contains the product.
    """
    for number, d in enumerate(reading.definitions):
        for place, a in enumerate(reading.products[d]):
            if a.same_use(use):
                return number, place
    raise KeyError(f"no definition of the program contains the product {use.product}")


def same_step_inputs(reading: Reading) -> dict[str, set[str]]:
    """Return for each field and scalar the names from which its definition computes it in the same step.

    Only names in the definition itself at time t count, also those inside of averages. Definitions of a rate
    of change contribute no names.
    """
    inputs: dict[str, set[str]] = {}
    for d in reading.definitions:
        names = inputs.setdefault(d.name, set())
        if not d.evolves:
            names |= {str(a.func) for a in d.rhs.atoms(AppliedUndef) if a.args and a.args[-1] == t}
    return inputs


def depend_on_each_other(needed: Mapping[str, set[str]], a: Application, b: Application) -> bool:
    """Return whether the fields that two products enter depend on each other within a step.

    Each field must depend on the other one, which is possible at different values of an index. ``needed`` is
    the result of :func:`same_step_inputs`.
    """
    return all(
        any(reaches(needed, x, other.gives_field) for x in needed[product.gives_field])
        for product, other in ((a, b), (b, a))
    )


def responses_at_equal_times(action: Action) -> frozenset[str]:
    """Return the names of the responses of a product to another one that comes earlier in the same step.

    A response is that of the vector of the product to the Gaussian source of the other one, with one matrix
    in both. It is listed even if its average vanishes. Products in definitions of a rate of change are left
    out.

    Raises
    ------
    NotApplicable
        If a matrix is correlated with its transpose, or if the order of two products with one matrix depends
        on the value of an index.

    Examples
    --------
    >>> from derive.program import mlp
    >>> from derive.theory.path_integral import path_integral
    >>> sorted(responses_at_equal_times(path_integral(mlp(2))._action))
    ['B']
    """
    names = set()
    needed = same_step_inputs(action.reading)
    for name, q in ((str(q.symbol.func), q) for q in action.responses.values()):
        matrix = q.leg.use.matrix
        if matrix.symmetry != 0:
            raise NotApplicable(
                f"fluctuations of programs with a matrix that is correlated with its transpose, as "
                f"{matrix.name} is, are not derived: its products in both orientations are correlated"
            )
        if not (q.leg.use.at_once and q.other.use.at_once):
            continue
        if depend_on_each_other(needed, q.leg.use, q.other.use):
            raise NotApplicable(
                f"fluctuations are not derived where the order of two products with {matrix.name} within "
                f"a step depends on an index, as that of {q.leg.use.product} and {q.other.use.product}"
            )
        position, other_position = (position_in_step(action.reading, x.use) for x in (q.leg, q.other))
        if other_position < position:
            names.add(name)
    return frozenset(names)
