"""Origin of the parts of a theory in words: the matrix, its use and the rule that gave a term.

`explain` takes the name of a quantity and `explain_term` a term; both return text. `Theory.explain` and
`Theory.explain_term` use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from sympy import Add, Derivative, Expr, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Response
from derive.calculus.pairs import EntryStep
from derive.calculus.sums import normal_form
from derive.calculus.symbols import converted, ell, spelled
from derive.program.language import GaussianMatrix
from derive.program.nonlinear import NonlinearRule
from derive.program.parts import Definition, gaussian, parameter
from derive.program.program import Program
from derive.program.training import TrainedMatrix, TrainedVector
from derive.theory.applications import Application, Reading, read
from derive.theory.data import Equation, OrderParameter, Source, Term, TheoryData, at_layer

INDENT = "    "


def explain(theory: TheoryData, name: str) -> str:
    """Return the origin of the quantity ``name`` in words; see `Theory.explain`.

    Raises KeyError if the theory has no quantity of this name.
    """
    equations = (*theory.equations, *theory.scalars, *theory.observables)
    blocks = [_equation(theory, e) for e in equations if e.name == name]
    blocks += [_source(theory, u) for u in theory.sources if name in (u.name, _name(u.partner))]
    blocks += [_order_parameter(theory, q) for q in theory.order_parameters if q.name == name]
    if not blocks:
        known = [e.name for e in equations] + [u.name for u in theory.sources]
        known += [q.name for q in theory.order_parameters]
        raise KeyError(f"no quantity {name}; the theory has {', '.join(dict.fromkeys(known))}")
    return "\n\n".join(blocks)


def explain_term(theory: TheoryData, what: Any) -> str:
    """Return the origin of a term in words; see `Theory.explain_term`.

    ``what`` is a `Term`, its expression, or a part of one. For a part, all terms that contain it are
    explained. If no equation contains it, covariances and definitions are searched, then the same at the
    layers that occur in ``what``. Raises KeyError if ``what`` occurs in none of these.
    """
    expr = what.expr if isinstance(what, Term) else converted(what)
    places = [(e, x) for e in (*theory.equations, *theory.scalars, *theory.observables) for x in e.terms]
    standard = normal_form(expr)
    terms_found = [(e, x) for e, x in places if x == what or x.expr == expr]
    terms_found = terms_found or [
        (e, x) for e, x in places if standard in (normal_form(y) for y in Add.make_args(x.expr))
    ]
    terms_found = terms_found or [(e, x) for e, x in places if x.expr.has(expr)]
    blocks = [
        f"{x.expr}\n{INDENT}in the equation of {_as_written(theory, e)}\n"
        + (_term_origin(theory, e, x) or f"{INDENT}{x.matrix}: {x.rule}")
        for e, x in terms_found
    ]
    if not blocks:
        blocks = [_source(theory, u) for u in theory.sources if sympify(u.covariance).has(expr)]
        blocks += [_order_parameter(theory, q) for q in theory.order_parameters if q.definition.has(expr)]
    if not blocks:
        members = theory.each(lambda x: _at_layers_of(x, expr))
        if members != theory:
            return explain_term(members, what)
        raise KeyError(f"{expr} does not occur in any equation, covariance or definition of this theory")
    return "\n\n".join(blocks)


def _at_layers_of(stated: Any, expr: Expr) -> Iterator[Any]:
    """Yield an equation, source or order parameter of many layers at the layers that occur in ``expr``.

    A layer occurs in ``expr`` if ``expr`` contains a function that ``stated`` contains at this layer. A
    statement for a single layer is yielded unchanged.
    """
    family = stated.layers
    if family is None:
        yield stated
        return
    layers = {
        a.args[0] - x.args[0] + family.index
        for a in expr.atoms(AppliedUndef)
        for x in _functions(stated)
        if x.func == a.func and x.args[0].has(family.index)
    }
    for layer in sorted(layers - {family.index}, key=spelled):
        if not ((layer - family.upper).is_positive or (family.lower - layer).is_positive):
            yield at_layer(stated, family, layer)


def _functions(stated: Any) -> set[AppliedUndef]:
    """Return the functions in an equation, source or order parameter, with their arguments."""
    if isinstance(stated, Equation):
        expressions = [stated.lhs, stated.rhs]
    elif isinstance(stated, Source):
        expressions = [stated.symbol, stated.partner, stated.covariance]
    else:
        expressions = [stated.symbol, stated.definition]
    return set[AppliedUndef]().union(*(sympify(e).atoms(AppliedUndef) for e in expressions))


# -- one item ------------------------------------------------------------------------------------------------


def _equation(theory: TheoryData, e: Equation) -> str:
    """Return the text on an equation: its definition in the program, then each term with its origin."""
    lines = [f"{e.lhs} =   [the program: {_as_written(theory, e)}]"]
    for x in e.terms:
        lines += [f"{INDENT}{x}", _term_origin(theory, e, x, 2 * INDENT)]
    return "\n".join(filter(None, lines))


def _source(theory: TheoryData, u: Source) -> str:
    """Return the text on a Gaussian source: its covariance, and the matrix or vector that gives it."""
    value = f"<{u.symbol} {u.partner}> = {u.covariance}"
    matrix = _matrix(theory, u.matrix)
    if matrix is None:
        return f"{u.name}: {value}\n{INDENT}the entries of {u.matrix} at initialisation"
    if u.symbol.func == u.partner.func:
        why = f"{u.matrix} applied to a vector is Gaussian, with the inner product of the vector with itself"
    else:
        why = f"both come from {u.matrix}: correlated by the inner product of the vectors it is applied to"
    return f"{u.name}: {value}\n{INDENT}{why}\n{INDENT}({_distribution(matrix)})"


def _order_parameter(theory: TheoryData, q: OrderParameter) -> str:
    """Return the text on an order parameter: definition, causality, and the equations that contain it."""
    lines = [f"{q.symbol}: {q.kind} function, {q.definition}"]
    if q.causal == "strict":
        lines.append("0 unless s < t: the vector moves only in steps after the source is perturbed")
    elif q.causal == "past":
        lines.append("0 unless s <= t: the vector is computed from the source within the step")
    uses = []
    for e in (*theory.equations, *theory.scalars, *theory.observables):
        for x in (x for x in e.terms if _contains(x.expr, q.name)):
            origins = {"response": f", by the use of {x.matrix}", "memory": f", by the updates of {x.matrix}"}
            uses.append(f"stands in the equation of {e.symbol}{origins.get(x.kind, '')}")
    for u in theory.sources:
        if _contains(sympify(u.covariance), q.name):
            uses.append(f"is the covariance of {u.name}, from {u.matrix}")
    lines += list(dict.fromkeys(uses)) or ["no equation contains it; the program's notation names it"]
    return f"\n{INDENT}".join(lines)


# -- one term ------------------------------------------------------------------------------------------------


def _term_origin(theory: TheoryData, e: Equation, x: Term, indent: str = INDENT) -> str:
    """Return a sentence on the origin of the term ``x`` of equation ``e``, which begins with ``indent``.

    The sentence names the matrix or vector of weights that gave the term, or states that no weight gave it.
    For a term of the kind ``definition`` with a weight, such as a term of the tangent kernel, the result is
    an empty text.
    """
    if x.kind == "definition":
        return "" if x.matrix else f"{indent}written in the program as it stands; no matrix is involved"
    matrix = _matrix(theory, x.matrix)
    if matrix is None:
        return indent + _vector(theory, x)
    product = _product(theory, e, x)
    use = str(product.whole) if product is not None else f"the product with {matrix.name}"
    sentences: dict[str, Callable[[], str]] = {
        "source": lambda: _gaussian_part(theory, x, matrix, use),
        "response": lambda: _response_origin(theory, x, matrix, product, use),
        "pair": lambda: _steps(theory, x, use),
        "memory": lambda: _updates(theory, x, use),
    }
    return indent + (sentences[x.kind]() if x.kind in sentences else f"{x.matrix}: {x.rule}")


def _gaussian_part(theory: TheoryData, x: Term, matrix: GaussianMatrix, use: str) -> str:
    """Return the sentence on a term ``x`` that is the Gaussian source of a product with ``matrix``.

    ``use`` is the product as text, such as ``W @ h``.
    """
    of_itself = (u for u in theory.sources if x.expr.has(u.symbol) and u.symbol.func == u.partner.func)
    value = next((str(u.covariance) for u in of_itself), "the inner product of the vector with itself")
    return f"the Gaussian part of {use}; its covariance is {value} ({_distribution(matrix)})"


def _updates(theory: TheoryData, x: Term, use: str) -> str:
    """Return the sentence on a memory term ``x``: updates of a matrix times the vector of a product.

    ``use`` is the product of the matrix with the vector as text, such as ``W @ h``.
    """
    weights = (w for w in theory.program.trained() if isinstance(w, TrainedMatrix))
    w = next(w for w in weights if w.name == x.matrix)
    each = (f"{u.coefficient} times the outer product of {u.left} and {u.right}" for u in w.update.terms)
    return f"updates of {w.name} by {_rule_name(w.rule)} before t, {' and '.join(each)}, applied in {use}"


def _rule_name(rule: Any) -> str:
    """Return the ``name`` of a training rule that is nonlinear in the gradient, else its class name."""
    return rule.name if isinstance(rule, NonlinearRule) else type(rule).__name__


def _steps(theory: TheoryData, x: Term, use: str) -> str:
    """Return the sentence on a memory term ``x`` of a matrix whose training rule acts on each entry.

    Such a term is an average over an independent unit. ``use`` is the product of the matrix with a vector as
    text.
    """
    w = next(w for w in theory.program.trained() if w.name == x.matrix)
    (step,) = x.field.atoms(EntryStep)
    return (
        f"updates of {w.name} by {_rule_name(w.rule)} before t, applied in {use}: the step Q_{w.name} of an "
        f"entry with the gradient {step.gradient}, averaged over an independent unit, the copy"
    )


def _vector(theory: TheoryData, x: Term) -> str:
    """Return the sentence on a term that a vector of weights gives: initial value or updates."""
    v = next((v for v in theory.program.vectors if parameter(v).name == x.matrix), None)
    if v is None:
        return f"{x.matrix}: {x.rule}"
    if x.kind == "memory" and isinstance(v, TrainedVector):
        u = v.update
        return f"updates of {x.matrix} by {_rule_name(v.rule)} before t, {u.coefficient} times {u.vector}"
    grows = "; its updates are another term" if isinstance(v, TrainedVector) else ""
    return f"{x.matrix} at initialisation, N(0, {parameter(v).variance}) in every unit{grows}"


def _distribution(m: GaussianMatrix) -> str:
    """Return the distribution of the entries of a matrix in words.

    The variance is divided by the width N, or by the number D of units of a given population of inputs.
    """
    given = next((x for x in (m.cols, m.rows) if x.given), None)
    variance = sympify(m.variance) / Symbol("N" if given is None else "D")
    units = "" if given is None else f" for the D units of {given.name}"
    return f"{m.name} has entries N(0, {variance}){units}" + (", drawn anew at every step" if m.fresh else "")


def _response_origin(
    theory: TheoryData, x: Term, m: GaussianMatrix, product: Application | None, use: str
) -> str:
    """Return the sentence on a response term ``x``, which exists because two products share the matrix ``m``.

    ``use`` is the product in whose equation the term stands, as text, and ``product`` the same product, or
    None if it is not found in the program.
    """
    q = next((q for q in theory.responses() if _contains(x.expr, q.name)), None)
    response = next(iter(q.definition.atoms(Response)), None) if q is not None else None
    if response is None:
        return f"{m.name}: {x.rule}"
    partner = _use_with(theory, m, response.source)
    other = f"another use of {m.name}" if partner is None else str(partner.whole)
    if m.symmetry != 0 and partner and product and partner.transposed == product.transposed:
        met = f"{use} at different times" if partner.whole == product.whole else f"{use} and {other}"
        shared = (
            f"entries of {m.name} across its diagonal have the correlation {m.symmetry} and occur in {met}"
        )
    else:
        shared = f"{use} and {other} share the entries of {m.name}"
    back = f"; the response multiplies {partner.product.vector}" if partner is not None else ""
    when = ", already within the step" if "equal time" in x.rule else ""
    responds = f"{response.body} responds to {response.source}"
    return f"{shared}: {responds}, the Gaussian part of the latter{when}{back}"


def _use_with(theory: TheoryData, m: GaussianMatrix, source: Expr) -> Application | None:
    """Return the product with the matrix ``m`` whose Gaussian part is the field ``source``, or None."""
    uses = [a for a in _reading(theory.program).uses if a.matrix.name == m.name]
    return next((a for a in uses if a.source_name == _name(source)), None)


def _matrix(theory: TheoryData, name: str) -> GaussianMatrix | None:
    """Return the Gaussian matrix called ``name``, or None if the program has none, as for vectors."""
    return next((gaussian(m) for m in theory.program.matrices if gaussian(m).name == name), None)


def _product(theory: TheoryData, e: Equation, x: Term) -> Application | None:
    """Return the product that gave the term ``x`` of the equation ``e``, or None if it is not known."""
    reading = _reading(theory.program)
    d = _definition(reading.definitions, e)
    return None if d is None else reading.product_of(d, x)


@lru_cache(maxsize=16)
def _reading(program: Program) -> Reading:
    """Return the products with matrices in a program, which are kept for the next term."""
    return read(program)


def _definition(definitions: Iterable[Definition], e: Equation) -> Definition | None:
    """Return the one of the definitions of a program from which an equation was derived, or None."""
    named = [d for d in definitions if d.name == e.name]
    exact = [d for d in named if d.lhs == e.symbol]
    # An equation of one layer that no definition states separately comes from the definition for all layers,
    # whose left side contains the index ell.
    families = [d for d in named if d.lhs.has(ell)]
    return next(iter(exact or families or named), None)


def _as_written(theory: TheoryData, e: Equation) -> str:
    """Return the definition from which an equation was derived as text; without one, the left side."""
    d = _definition(theory.program.definitions, e)
    if d is None:
        return str(e.lhs)
    return f"{Derivative(d.lhs, d.lhs.args[-1]) if d.evolves else d.lhs} = {d.rhs}"


def _contains(e: Expr, name: str) -> bool:
    """Return whether a function of this name occurs in ``e``."""
    return any(_name(a) == name for a in e.atoms(AppliedUndef))


def _name(a: Any) -> str:
    """Return the name of an applied function."""
    return str(a.func)
