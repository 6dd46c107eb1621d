"""Texts on the order parameters of finite networks: where they come from, and which terms contain them.

The explanation of an order parameter states its average and, for each term of the exponent of the path
integral that contains it, how it acts on a unit, the weights, and the step of the derivation. Two products
that share weights give two responses, one in each direction. Only the response of the later product to the
earlier one is an order parameter; its explanation states the times at which it exists. `Fluctuations.explain`
returns the text.
"""

from __future__ import annotations

from collections.abc import Iterator

from sympy.core.function import AppliedUndef

from derive.theory.fluctuations.data import ExponentTerm, FluctuatingParameter, FluctuationData
from derive.theory.fluctuations.hats import Hatted
from derive.theory.fluctuations.one_unit import derivative_by, with_renamed_indices
from derive.theory.path_integral import path_integral
from derive.theory.path_integral.saddle import instant_responses

INDENT = "    "


def explain(fluctuations: FluctuationData, name: str) -> str:
    """Return text on all order parameters called ``name``: their origin, and the terms that contain them.

    Raises KeyError if there is no order parameter of this name.
    """
    return "\n".join(_explained(fluctuations, q) for q in fluctuations.named(name))


def _explained(fluctuations: FluctuationData, q: FluctuatingParameter) -> str:
    """Return the text on one order parameter."""
    lines = [_definition(q), *_pair_of_responses(fluctuations, q)]
    uses = list(_terms(fluctuations, q))
    functions = [p for p in fluctuations.parameters if any(x.expr.has(q.symbol.func) for x in p.rest)]
    uses += [f"stands in the {p.kind} {p.symbol} = {p.function}" for p in functions]
    return f"\n{INDENT}".join([*lines, *(uses or ["no equation contains it"])])


def _definition(q: FluctuatingParameter) -> str:
    """Return the sentence that defines an order parameter."""
    if q.home is None:
        return f"{q.symbol}: {q.kind}, {q.function}"
    layer = "" if q.home.site is None else f" at layer {q.home.site}"
    return f"{q.symbol}: {q.kind}, the average of {q.unit} over units of {q.home.name}{layer}"


def _pair_of_responses(fluctuations: FluctuationData, q: FluctuatingParameter) -> Iterator[str]:
    """Yield sentences on a response: the times at which it exists, and the response that is conjugate to it.

    Two products that share weights, with a matrix and its transpose, give a pair of conjugate responses, one
    in each direction. Only the response of the later product to the earlier one is an order parameter.
    Nothing is yielded if ``q`` is not a response.
    """
    if q.kind != "response":
        return
    action = path_integral(fluctuations.program)._action
    hat = next(iter(q.unit.atoms(Hatted))).field.func
    named = (x for x in action.responses.values() if str(x.symbol.func).removesuffix("_used") == q.name)
    response = next(x for x in named if x.other.primal.func == hat)
    vector, source = response.leg.use.product, response.other.use.product
    conjugate = str(response.conjugate.func).removesuffix("_used")
    yield (
        f"{vector} and {source} share weights, whose average gives products of {q.name} with its conjugate "
        f"{conjugate}: of the two, the response of the later use to the earlier one is an order parameter"
    )
    if not action.discrete:
        yield "0 unless s < t: in continuous time equal times have no weight"
    elif q.causal == "strict":
        yield f"0 unless s < t: a step computes {vector} before {source}, so that {conjugate} exists at s = t"
    else:
        when = "0 unless s = t: the weights are drawn anew at every step, and" if q.causal == "now" else ""
        when = when or "0 unless s <= t:"
        yield f"{when} a step computes {vector} after {source}"
        if str(response.symbol.func) not in instant_responses(action):
            yield "its mean vanishes at s = t, its fluctuations do not"


def _terms(fluctuations: FluctuationData, q: FluctuatingParameter) -> Iterator[str]:
    """Yield a text for each term of the exponent of one unit that contains the order parameter ``q``.

    The text states the derivative of the term with respect to ``q``, which is how q acts on a unit, and the
    origin of the term.
    """
    placed = with_renamed_indices(q, {})
    for x in fluctuations.terms:
        if any(a.func == q.symbol.func for a in x.addend.expr.atoms(AppliedUndef)):
            slope = derivative_by(x.whole, placed, (*q.ranges, *fluctuations.depths))
            if slope != 0:
                yield f"acts on units of {x.home.name} by {slope}\n{2 * INDENT}{_origin(x)}"


def _origin(x: ExponentTerm) -> str:
    """Return the origin of a term in the exponent of one unit in words: its kind, weights and rule."""
    hats = " and ".join(str(hat.field) for hat in dict.fromkeys(x.hats))
    origins = {
        "covariance": f"covariance of the Gaussian parts of {hats}, from the random part of {x.matrix}",
        "response": f"response in the equation of {hats}, from the random part of {x.matrix}",
        "memory": f"memory in the equation of {hats}, from the updates of {x.matrix}",
        "definition": f"definition of {hats}",
    }
    return f"{origins[x.kind]} ({x.rule})"
