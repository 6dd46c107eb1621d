"""Programs: one training step of a network with the memory of its weights, checked when constructed.

A Program contains the definitions of all vectors of a step (:class:`Definition`), the Gaussian matrices at
initialisation, and the updates of weights. The constructor checks that definitions are consistent and that
one step can compute its fields in some order: within a family of layers a definition may use the neighbouring
layer at the same time, if all such chains run one way. :mod:`derive.theory` takes the mean-field limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from sympy import Dummy, Eq, Expr, Mul, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import strongly_connected_components

from derive.calculus.symbols import IndexRange, L, alpha, ell, expression, mu, s, spelled, t
from derive.errors import NotApplicable, ProgramError
from derive.program.averages import with_numbers
from derive.program.cases import without_cases_of_fields
from derive.program.language import (
    Field,
    GaussianMatrix,
    GaussianVector,
    Mean,
    Population,
    Product,
    layer_count,
    terms,
)
from derive.program.layer_index import with_layer_index
from derive.program.naming import (
    bare_matrices,
    calls_in,
    inconsistent_uses,
    indices_of_layers,
    name_conflicts,
    same_names,
    wrong_heads,
)
from derive.program.nonlinear import NonlinearRule, require_linear_rules
from derive.program.parts import (
    Definition,
    Named,
    Parts,
    gaussian,
    nested_products,
    parameter,
    ranges_of_family,
)
from derive.program.roles import Roles, roles_of
from derive.program.rules import TrainingRule, fixed_symbols, function_names, parameters_with
from derive.program.training import TrainedMatrix, TrainedVector
from derive.show.latex import aligned_latex


@dataclass(frozen=True)
class Program(Parts):
    """Training step of a network.

    Raises :class:`ProgramError` if its parts are not consistent: for example if a definition uses an
    undefined quantity, a matrix is applied to a vector of another population, a field depends on itself
    within a step, or the rule of a weight has no methods ``memory`` and ``noise``.

    Parameters
    ----------
    name : str
        The name.
    rule : TrainingRule
        The training rule of the program. The theory uses the rule of each weight; this one gives the kind of
        time (steps or flow).
    fields : tuple of Field
        The vectors of a step.
    definitions : tuple of Definition
        The definitions of fields and scalars, in any order.
    matrices : tuple of GaussianMatrix or TrainedMatrix
        The weight matrices; a GaussianMatrix is not trained.
    vectors : tuple of GaussianVector or TrainedVector
        The weight vectors; a GaussianVector is not trained.
    given : tuple of GivenVector
        Fixed vectors of the data.
    attributes : tuple of Attribute
        Constants of each unit (eigenvalues of modes).
    scalars : tuple of str
        Names of deterministic numbers that are recomputed at each step (outputs, errors).
    constants : tuple of str
        Names of functions that are known beforehand (targets, weights of samples). Kernels of the vectors in
        ``given`` are not listed.
    notation : mapping of Expr to str
        Names of correlation functions. A key is a vector with its indices, as ``phi(h(ell, mu, t))``,
        and its value the name of the correlation of this vector; names that are not given are ``C_<vector>``.
    scale : Expr
        A factor of response functions that is written in front of them (the papers use gamma0); 1 by default.
    depth : Expr
        The number of hidden layers; the symbol ``L`` by default.
    loss : Expr, optional
        The loss, as :meth:`.Network.train` takes it: an expression of outputs (or fields) and targets at the
        time ``t``, summed over its free indices.
    descent : Parametrization, optional
        The scale and the rates with which every update is minus the gradient of ``loss``; None if updates are
        not that gradient (fixed feedback, a program written line by line). Set it to None in a variant whose
        backward pass or updates are changed on purpose.

    Examples
    --------
    >>> from derive.program import mlp
    >>> [d.name for d in mlp(3).causal_order()]
    ['h', 'h', 'g', 'g', 'f', 'Delta']
    """

    def __post_init__(self) -> None:
        """Rewrite the program in standard form; raise ProgramError for its first inconsistency.

        The index of layers becomes ``ell``, cases of fields become Max, Min and Heaviside, and averages in
        updates and in terms with random weights become scalars.
        """
        object.__setattr__(self, "notation", Named(self.notation))
        if not expression(self.depth, "depth").free_symbols:
            layer_count(self.depth)
        self._rewrite(with_layer_index)
        self._read_cases()
        for message in _problems(self):
            raise ProgramError(message)
        causal_order(self)
        self._rewrite(with_numbers)

    def __repr__(self) -> str:
        """Return lines with name and training rule, each definition, the names of weights, and the loss."""
        weights = [getattr(w, "initial", w).name for w in (*self.matrices, *self.vectors)]
        width = max(len(str(d.lhs)) + 6 * d.evolves for d in self.definitions)
        lines = [f"Program {self.name!r}, {self.rule}"]
        for d in self.definitions:
            left = f"d/dt {d.lhs}" if d.evolves else str(d.lhs)
            ranges = "".join(f", {r.index} = {r.lower}..{r.upper}" for r in d.ranges)
            lines.append(f"  {left:{width}} = {d.rhs}{ranges}")
        lines.append(f"  weights: {', '.join(weights)}")
        return "\n".join([*lines, *([f"  loss: {self.loss}"] if self.loss is not None else [])])

    def _repr_latex_(self) -> str:
        """Return the definitions of fields and scalars in LaTeX, in the order in which they were given."""
        return aligned_latex(Eq(d.lhs, d.rhs, evaluate=False) for d in self.definitions)

    def _rewrite(self, change: Callable[[Parts], Parts]) -> None:
        """Replace the parts of the program by the result of ``change``, a function of them, in place."""
        given = Parts(**{x.name: getattr(self, x.name) for x in fields(self)})
        written = change(given)
        if written is not given:
            for x in fields(written):
                object.__setattr__(self, x.name, getattr(written, x.name))
            object.__setattr__(self, "notation", Named(self.notation))

    def _read_cases(self) -> None:
        """Write cases (``Piecewise``) of fields in definitions and loss by Max, Min, Heaviside, in place."""
        symbols = {parameter(v).symbol for v in self.vectors}
        read = [without_cases_of_fields(d.rhs, spelled(d.lhs), symbols) for d in self.definitions]
        if any(x != d.rhs for x, d in zip(read, self.definitions, strict=True)):
            definitions = tuple(replace(d, rhs=x) for x, d in zip(read, self.definitions, strict=True))
            object.__setattr__(self, "definitions", definitions)
        for loss in stated_loss(self):
            object.__setattr__(self, "loss", without_cases_of_fields(loss, "the loss", symbols))

    @property
    def roles(self) -> Roles:
        """The output, error, target, features, gradients and indices, read from the definitions."""
        return roles_of(self)

    def causal_order(self) -> tuple[Definition, ...]:
        """Return the definitions in an order in which one step can compute them.

        Returns
        -------
        tuple of Definition
            The sorted definitions.
        """
        return causal_order(self)

    def at_depth(self, depth: int) -> Program:
        """Return the program with ``L`` replaced by an integer number of hidden layers.

        Parameters
        ----------
        depth : int
            The number of hidden layers.

        Returns
        -------
        Program
            The program at this depth.

        Raises
        ------
        ProgramError
            If ``depth`` is neither an integer of at least 1 nor an integer expression such as ``L - 1``, or
            if the program has fields with layers and another depth without ``L`` in it.
        """
        layers = chosen_depth(self, depth)

        def fixed(rule: TrainingRule) -> TrainingRule:
            """Return a training rule with the new depth for ``L`` in parameters such as ``eta/L``."""
            stated = {key: x.subs(L, layers) for key, x in parameters_with(rule, [L.name]).items()}
            return replace(rule, **stated) if stated else rule  # type: ignore[type-var]

        return self.map(lambda e: e.subs(L, layers)).with_rules(fixed)

    def with_layers_counted(self) -> Program:
        """Return the program with the number of its layers as depth, if the depth is an unused symbol.

        The number of layers is the largest integer layer of the fields that are defined, at least 1. The
        program is returned unchanged if its depth is not a symbol, or if a part of it other than the depth
        and the training rules contains this symbol.

        Returns
        -------
        Program
            The program with an integer depth, or the same object.

        Examples
        --------
        >>> from derive.program import mlp, perceptron
        >>> perceptron().with_layers_counted().depth, mlp().with_layers_counted().depth
        (1, L)
        """
        inside = replace(self, depth=S.One)
        if not self.depth.is_Symbol or inside.map(lambda e: e.subs(self.depth, S(2))) != inside:
            return self
        layered = {x.name for x in self.fields if x.layered}
        layers = (d.lhs.args[0] for d in self.definitions if d.name in layered)
        return replace(inside, depth=max([S.One, *(x for x in layers if x.is_Integer)]))

    def with_rule(self, rule: TrainingRule) -> Program:
        """Return the program with another training rule for all weights.

        Parameters
        ----------
        rule : TrainingRule
            The new rule, also for weights that had a rule of their own. Its noise is in units of the initial
            variance of each weight; :meth:`.Network.train` converts noise to these units, and this method
            does not.

        Returns
        -------
        Program
            The changed program.
        """
        return self.with_rules(lambda _: rule)

    def with_rules(self, change: Callable[[TrainingRule], TrainingRule]) -> Program:
        """Return the program with its rule, and that of each weight, changed by a function.

        Parameters
        ----------
        change : callable
            A function from a training rule to the new rule.

        Returns
        -------
        Program
            The changed program.
        """
        rules = {rule: change(rule) for rule in dict.fromkeys([self.rule, *(w.rule for w in self.trained())])}

        def changed(w: Any) -> Any:
            """Return a weight with its new rule."""
            return replace(w, rule=rules[w.rule]) if isinstance(w, TrainedMatrix | TrainedVector) else w

        return replace(
            self,
            rule=rules[self.rule],
            matrices=tuple(map(changed, self.matrices)),
            vectors=tuple(map(changed, self.vectors)),
        )


# -- checks of a program ----


def _problems(program: Parts) -> Iterator[str]:
    """Yield a message for each inconsistency of a program, such as a quantity without a definition."""
    known = {x.name for x in program.fields} | {x.name for x in program.given}
    known |= {*program.scalars, *program.constants} | {x.name for x in program.attributes}
    matrices = [gaussian(m) for m in program.matrices]
    usable = (
        known
        | {x.kernel for x in program.given}
        | {m.name for m in matrices}
        | {parameter(v).name for v in program.vectors}
    )
    yield from _problems_of_rules(program)
    yield from _problems_of_names(program)
    yield from _problems_of_undefined(program)
    for d in program.definitions:
        yield from _problems_of_functions(d, known, usable)
        yield from nested_products(d)
        for product in d.products():
            yield from _problems_of_product(program, d, product)
        yield from _problems_of_terms(program, d)
        yield from _problems_of_places(program, d)
        yield from _problems_of_reach(program, str(d.lhs), d.rhs)
    for loss in stated_loss(program):
        yield from _problems_of_reach(program, "the loss", loss)
    yield from _problems_of_loss(program, known)
    for w in program.trained():
        yield from _problems_of_update(program, w)
    for d in program.definitions:
        if d.evolves and program.rule.discrete:
            yield f"{d.lhs} evolves in continuous time, but the program's rule has discrete steps"
    yield from _problems_of_matrices(matrices)


def _problems_of_undefined(program: Parts) -> Iterator[str]:
    """Yield messages for fields and scalars without a definition, and for fields on units of given data."""
    defined = {d.name for d in program.definitions}
    for x in program.fields:
        if x.name not in defined:
            yield f"the field {x.name} has no definition"
        if x.population.given:
            yield (
                f"field {x.name} is a vector of the population {x.population.name}, which is given and has "
                "given vectors only"
            )
    yield from (f"the scalar {name} has no definition" for name in program.scalars if name not in defined)


def _problems_of_functions(d: Definition, known: set[str], usable: set[str]) -> Iterator[str]:
    """Yield messages for names in a definition that the program does not declare.

    ``known`` are the names of fields, scalars, data and constants; ``usable`` also those of weights and
    kernels. A function of a known quantity, such as ``phi`` in ``phi(h(mu, t))``, need not be declared.
    """
    if d.name not in known:
        yield f"{d.lhs} is defined but {d.name} is not among the program's fields or scalars"
    for atom in calls_in(d.rhs):
        name, inside = str(atom.func), (a for x in atom.args for a in x.atoms(AppliedUndef))
        if name not in usable and not any(str(a.func) in known for a in inside):
            yield (f"{d.lhs} uses {atom}, but {name} is not among the program's fields, scalars or constants")


def _problems_of_matrices(matrices: Iterable[GaussianMatrix]) -> Iterator[str]:
    """Yield messages for matrices that are declared inconsistently.

    These are families over layers whose populations have no layers, and rectangular matrices with a
    correlation of ``M_ij`` and ``M_ji``.
    """
    for m in matrices:
        for side, p in (("rows", m.rows), ("columns", m.cols)):
            if m.index is not None and p.site is None and not p.given:
                yield (
                    f"{m.name} is a family of matrices over {m.index.index}, but its {side} have no layer: "
                    f"write {p.name}.at({m.index.index})"
                )
        if m.symmetry != 0 and m.rows != m.cols:
            yield (
                f"symmetry = {m.symmetry} of {m.name}, which maps {_place(m.cols)} to {_place(m.rows)}: must "
                "be 0, because M_ij and M_ji are both entries of a square matrix only"
            )


def member(matrix: GaussianMatrix, product: Product) -> Expr:
    """Return the layer at which a product uses a family of matrices, ``ell`` in ``W(ell) @ v``.

    The result is 0 for a matrix without an index of layers. Raises ProgramError if the product
    writes the matrix with another number of indices than its declaration.
    """
    if len(product.matrix.args) != len(matrix.symbol.args):
        kind = "family of matrices" if matrix.symbol.args else "single matrix"
        raise ProgramError(f"{matrix.name} is a {kind}: write {matrix.symbol}, not {product.matrix}")
    return product.matrix.args[0] if matrix.index is not None else S.Zero


def _elsewhere(expected: Population, actual: Population) -> bool:
    """Return whether two populations have different names, or are layers of one name at different places.

    Layers are not compared if one of the populations has no layer, or if ``actual`` is shared by all layers.
    """
    layers_differ = not actual.shared and None not in (expected.site, actual.site)
    return actual.name != expected.name or (layers_differ and (expression(expected.site) - actual.site) != 0)


def _problems_of_product(program: Parts, d: Definition, product: Product) -> Iterator[str]:
    """Yield messages if a product is applied to, or gives, a vector that does not fit its matrix."""
    matrix = gaussian(program.matrix_of(product))
    i = member(matrix, product)
    ends = [matrix.rows, matrix.cols] if product.transposed else [matrix.cols, matrix.rows]
    if matrix.index:
        shift = {matrix.index.index: i}
        ends = [replace(p, site=p.site.subs(shift)) if p.site is not None else p for p in ends]
    for expected, vector, does in zip(ends, (product.vector, d.lhs), ("is applied to", "gives"), strict=True):
        units, top = program.site_of(vector), ".T" if product.transposed else ""
        if _elsewhere(expected, units):
            yield (
                f"{product.matrix}{top} {does} {vector}, a vector of {_place(units)}; it must be a vector of "
                f"{_place(expected)}"
            )


def _problems_of_loss(program: Parts, known: set[str]) -> Iterator[str]:
    """Yield messages for undeclared names in the loss, and for vectors of the data outside of means.

    A ``descent`` (the rates with which weights descend the loss) without a loss gives a message too.
    ``known`` are the declared names.
    """
    if program.loss is None:
        if program.descent is not None:
            yield "descent is given, but not the loss whose gradient the weights descend: give the loss too"
        return
    outside = program.loss.replace(lambda e: isinstance(e, Mean), lambda e: Dummy())
    for atom in sorted(outside.atoms(AppliedUndef), key=spelled):
        if program.given_of(str(atom.func)) is not None:
            yield f"the loss uses {atom}, a vector of the data: give its target a name of its own"
    for atom in sorted(program.loss.atoms(AppliedUndef), key=spelled):
        inside = (a for x in atom.args for a in x.atoms(AppliedUndef))
        if str(atom.func) not in known and not any(str(a.func) in known for a in inside):
            yield (
                f"the loss {program.loss} uses {atom}, but {atom.func} is not among the program's fields, "
                "scalars or constants"
            )


def _problems_of_update(program: Parts, w: TrainedMatrix | TrainedVector) -> Iterator[str]:
    """Yield messages for an update whose vectors are not on the units of the weight."""
    if isinstance(w, TrainedVector):
        pairs = [(w.update.vector, replace(w.initial.population, site=None), "along")]
    else:
        pairs = [(u.left, w.initial.rows, "left") for u in w.update.terms]
        pairs += [(u.right, w.initial.cols, "right") for u in w.update.terms]
    for body, expected, side in pairs:
        if not body.has(AppliedUndef) and not any(parameter(v).uses(body) for v in program.vectors):
            yield (
                f"{w.name} is updated with {body} ({side}), which is not a vector of {_place(expected)}: "
                f"define a field with this value; or, if an average contains {w.name} without a field as its "
                f"factor, as in Mean({w.name}), define a field b(t) = {w.name} and take Mean(b(t))"
            )
        elif _elsewhere(expected, units := program.site_of(body)):
            yield (
                f"{w.name} is updated with {body} ({side}), a vector of {_place(units)}; it must be a vector "
                f"of {_place(expected)}"
            )


def _problems_of_terms(program: Parts, d: Definition) -> Iterator[str]:
    """Yield messages for terms of a definition that are not linear in the weights.

    Each term may contain one matrix product or one vector of weights, times entrywise factors. A sum over an
    index may contain a product, but not a vector of weights. The messages of :func:`_problems_of_members`
    follow.
    """
    parameters = [parameter(v) for v in program.vectors]
    for whole in terms(d.rhs):
        term = whole.function if isinstance(whole, Sum) else whole
        weights = {*term.atoms(Product), *(x for v in parameters for x in v.uses(term))}
        if len(weights) > 1 or not weights <= set(Mul.make_args(term)):
            inner = [x for x in weights if not any(x != y and x.has(y) for y in weights)]
            factors = [x for x in Mul.make_args(term) if x in weights and isinstance(x, Symbol)]
            named = "".join(f"; if {x} is meant as a number, give it another name" for x in factors)
            yield (
                f"{d.lhs} contains {term}: a matrix product or a vector of weights must be a term of its "
                f"own, times entrywise factors; define a field for {min(inner, key=str)}{named}"
            )
        elif isinstance(whole, Sum) and (inside := weights - term.atoms(Product)):
            yield (
                f"{d.lhs} contains {whole}: a vector of weights must not stand in a sum over an index; "
                f"define a field for {min(inside, key=str)}, and sum this field"
            )
    yield from _problems_of_members(program, d)


def _problems_of_members(program: Parts, d: Definition) -> Iterator[str]:
    """Yield a message for each product that does not use all members of a family of matrices, such as heads.

    The members are those of the indices ``others`` of the family; layers may be used one by one.
    """
    for product in d.products():
        try:
            d.members(product, gaussian(program.matrix_of(product)))
        except ProgramError as reason:
            yield str(reason)


def _problems_of_names(program: Parts) -> Iterator[str]:
    """Yield messages for names that are invalid, used twice, or used with different numbers of indices."""
    indices = {r.index for d in program.definitions for r in d.ranges}
    evolving = {d.name for d in program.definitions if d.evolves}
    yield from wrong_heads([d.lhs for d in program.definitions], indices, evolving)
    declared: list[tuple[str, str]] = [("field", x.name) for x in program.fields]
    declared += [("number", x) for x in program.scalars]
    declared += [("constant", x) for x in program.constants]
    declared += [("given vector", x.name) for x in program.given]
    declared += [("kernel", x) for x in dict.fromkeys(x.kernel for x in program.given)]
    declared += [("attribute", x.name) for x in program.attributes]
    declared += [("matrix", gaussian(m).name) for m in program.matrices]
    declared += [("vector", parameter(v).name) for v in program.vectors]
    declared += [("correlation", x) for x in program.notation.values()]
    declared += [("response", x) for m in program.matrices for x in gaussian(m).responses or ()]
    families = (w.initial for w in program.trained())
    ranges = [r for d in program.definitions for r in d.ranges]
    ranges += [r for w in families for r in ranges_of_family(w)]
    layer_indices = layers_of(program)
    expressions = [d.rhs for d in program.definitions]
    yield from name_conflicts(declared, ranges, [*expressions, *stated_loss(program)], layer_indices)
    weights = {w.name: len(w.symbol.args) for w in _weights(program)}
    attributes = {x.name for x in program.attributes}
    yield from inconsistent_uses([d.lhs for d in program.definitions], weights, expressions, attributes)
    yield from bare_matrices({gaussian(m).name for m in program.matrices}, expressions)
    ends = [expression(x) for r in ranges for x in (r.lower, r.upper)]
    coefficients = [expression(u.coefficient) for w in program.trained() for u in w.update.terms]
    stated = [x for w in program.trained() if hasattr(w.rule, "memory") for x in w.rule.memory(t, s)]
    yield from same_names(
        [*expressions, *ends, *coefficients, *stated, *(x for _, x in _fixed_numbers(program))]
    )
    outside = {"constant", "matrix", "vector", "given vector"}
    rules = [w.rule for w in program.trained() if hasattr(w.rule, "memory")]
    tables = frozenset[str]().union(*map(function_names, rules), *map(_tables_of_entries, program.trained()))
    tables &= {name for kind, name in declared if kind not in outside}
    yield from (f"{x} is the name of a table of a rule and of something else: rename one" for x in tables)
    sizes: dict[str, Population] = {}
    for p in _populations(program):
        known = sizes.setdefault(p.name, p)
        if not p.name.isidentifier():
            yield f"{p.name!r} is not a valid name of a population: use letters, digits and underscores"
        formulas = [expression(x.ratio if x.formula is None else x.formula) for x in (known, p)]
        if (known.given, known.shared) != (p.given, p.shared) or formulas[0] != formulas[1]:
            yield f"{p.name} is the name of two different populations: give one of them another name"


def _problems_of_rules(program: Parts) -> Iterator[str]:
    """Yield a message for each weight whose training rule is invalid or does not fit the program.

    A rule must have the methods ``memory`` and ``noise`` and the same kind of time (steps or flow) as the
    program, and its memory may contain no other time or index (:func:`_problems_of_parameters`). Weights that
    are drawn anew at every step need a rule of discrete steps and cannot be trained.
    """
    for w in program.trained():
        if not (hasattr(w.rule, "memory") and hasattr(w.rule, "noise")):
            yield (
                f"{w.name} is trained by {w.rule!r}, which has no methods memory and noise (the "
                "factors of W(0) and of an update at s in W(t)): use descent, flow, momentum or LinearRule, "
                "or Entrywise for a rule that is not linear in the updates, such as Adam"
            )
        if w.rule.discrete != program.rule.discrete:
            yield f"the rules of {w.name} and of the program must both have discrete steps, or both be flows"
        if w.initial.fresh:
            yield f"{w.name} is drawn anew at every step, so that it cannot be trained"
    yield from _problems_of_parameters(program)
    drawn = [m.name for m in map(gaussian, program.matrices) if m.fresh]
    drawn += [v.name for v in map(parameter, program.vectors) if v.fresh]
    if drawn and not program.rule.discrete:
        yield f"{drawn[0]} is drawn anew at every step, but the rule is a flow: use a rule of discrete steps"


def _symbols_of(rule: TrainingRule | NonlinearRule) -> frozenset[Symbol]:
    """Return the symbols in a rule that are not its times, gradient or states, such as ``eta``.

    They have one value for the whole of training.
    """
    return rule.parameters if isinstance(rule, NonlinearRule) else fixed_symbols(rule)


def _tables_of_entries(w: TrainedMatrix | TrainedVector) -> frozenset[str]:
    """Return the names of schedules and of tables in a nonlinear rule of a weight; none for a linear rule."""
    return w.rule.tables if isinstance(w.rule, NonlinearRule) else frozenset()


def _problems_of_parameters(program: Parts) -> Iterator[str]:
    """Yield messages for rules whose memory contains an index or a time other than its two times.

    Coefficients of a rule may depend on the time of the step, as ``eta(t)``, and those of a weight's own rule
    on the indices of its family. Sizes of populations and the distributions of initial weights are fixed
    before training, so that they do not depend on time. Rules that cannot be hashed give a message too.
    """
    indices = {ell.name, mu.name, alpha.name}
    indices |= {r.index.name for d in program.definitions for r in d.ranges}
    rules = [("the program", program.rule, set[str]())] if hasattr(program.rule, "noise") else []
    for w in program.trained():
        family = {r.index.name for r in ranges_of_family(w.initial)}
        rules.append((w.name, w.rule, family))
        indices |= family | {r.index.name for u in w.update.terms for r in u.over}
    for owner, rule, family in rules:
        if getattr(type(rule), "__hash__", None) is None:
            yield (
                f"{owner} is trained by {rule!r}, which cannot be hashed: write @dataclass(frozen=True) "
                "above its class"
            )
            continue
        names = {x.name for x in _symbols_of(rule)}
        partners = {f"{name}_" for name in indices} & indices
        for name in sorted(names & partners - {x.name for x in _symbols_of(rule) if x.is_integer}):
            yield (
                f"the symbol {name} has the name of a second value of the index {name[:-1]} in correlations: "
                "give it another name"
            )
        if times := names & _TIMES:
            yield _message_on_rule(rule, times, "at the time at which the weight is used", _OWN_MEMORY)
        if times := (names & indices) - family:
            yield _message_on_rule(rule, times, "at each place where the weight is used", _OWN_RATES)
    for what, value in _fixed_numbers(program):
        if {x.name for x in value.free_symbols} & _TIMES:
            yield (
                f"{what} = {value} depends on the time, but it is fixed before training: write a number "
                f"without {t}"
            )


_TIMES = {t.name, s.name}
"""Names of the times of a theory."""

_OWN_MEMORY = (
    "write the coefficients of a step from t to t + 1 as expressions in derive.program.t alone, as in "
    "GradientDescent(eta/(1 + t)); a memory of your own takes the two times that it is given"
)
_OWN_RATES = (
    "give each weight a rule of its own, rules={weight: ...}, which may contain the indices of its family, "
    "or a factor of its rate, Parametrization(rates={weight: ...}), and for samples multiply the loss by a "
    "factor, as in rho(mu)*(y(mu) - f(mu, t))**2/2"
)


def _message_on_rule(rule: TrainingRule, names: Collection[str], where: str, remedy: str) -> str:
    """Return the message that the memory of a rule depends on symbols with these ``names``.

    ``where`` says at which time or index their value would be taken, ``remedy`` what to write instead.
    """
    kind, left = type(rule).__name__, ", ".join(sorted(names))
    stated = ", ".join(f"{key} = {value}" for key, value in parameters_with(rule, names).items())
    if not stated:
        return f"the memory of {kind} depends on {left}, whose value would be taken {where}: {remedy}"
    return f"{kind} has {stated}, which depends on {left}, whose value would be taken {where}: {remedy}"


def _weights(program: Parts) -> Iterator[GaussianMatrix | GaussianVector]:
    """Yield every weight at initialisation."""
    yield from map(gaussian, program.matrices)
    yield from map(parameter, program.vectors)


def _populations(program: Parts) -> Iterator[Population]:
    """Yield the populations of all fields, data and weights."""
    yield from (x.population for x in program.fields)
    yield from (x.population for x in program.given)
    yield from (x.population for x in program.attributes)
    for w in _weights(program):
        yield from (w.rows, w.cols) if isinstance(w, GaussianMatrix) else (w.population,)


def _fixed_numbers(program: Parts) -> Iterator[tuple[str, Expr]]:
    """Yield pairs (description, expression) of the numbers that are fixed before training.

    They are the variances and symmetries of weights, the ratios of populations, the scale and the depth.
    """
    for w in _weights(program):
        yield f"variance of {w.name}", expression(w.variance)
        if isinstance(w, GaussianMatrix):
            yield f"symmetry of {w.name}", expression(w.symmetry)
    for p in dict.fromkeys(_populations(program)):
        yield f"ratio of {p.name}", expression(p.ratio)
    yield "scale", expression(program.scale)
    yield "depth", expression(program.depth)


def _problems_of_places(program: Parts, d: Definition) -> Iterator[str]:
    """Yield messages for entrywise operations on vectors of different populations, and vectors in scalars.

    A scalar may contain a vector only inside of a mean.
    """
    home = None if program.field_of(d.name) is None else program.site_of(d.lhs)
    outside = d.rhs.replace(lambda e: isinstance(e, Product | Mean), lambda _: Dummy())
    for atom in sorted(outside.atoms(AppliedUndef), key=spelled):
        if program.field_of(str(atom.func)) is None and program.attribute_of(str(atom.func)) is None:
            continue
        if home is None:
            yield f"{d.lhs} is a scalar but uses the vector {atom}: take its Mean"
        elif (other := program.site_of(atom).name) != home.name:
            yield f"{d.lhs} is a vector of {_place(home)} but uses {atom}, a vector of {other}"
    for v in map(parameter, program.vectors):
        if home is not None and v.uses(outside) and v.population.name != home.name:
            yield (
                f"{d.lhs} is a vector of {_place(home)} but uses {v.name}, a vector of {_place(v.population)}"
            )


def layers_of(program: Parts) -> set[Symbol]:
    """Return the index symbols that count layers in the definitions of a program.

    They are ``ell``, symbols in the first argument of fields with layers, and those of ordered fields, which
    are computed for one value of their first index after another.
    """
    families = {x.name for x in program.fields if x.layered or x.ordered}
    return indices_of_layers([d.lhs for d in program.definitions], families)


def stated_loss(program: Parts) -> tuple[Expr, ...]:
    """Return the loss of a program in a tuple of length one; an empty tuple without a loss."""
    return () if program.loss is None else (expression(program.loss),)


def _problems_of_reach(program: Parts, where: str, e: Expr) -> Iterator[str]:
    """Yield a message for each function in a sum that is not defined at all values of the sum's index.

    ``e`` is the expression that contains the sums, and ``where`` its name in the messages. Only the functions
    in ``_families`` are checked.
    """
    families = _families(program)
    for total in sorted(e.atoms(Sum), key=spelled):
        spans = {x: (expression(ends[0]), expression(ends[1])) for x, *ends in total.limits if len(ends) == 2}
        for atom in sorted(total.function.atoms(AppliedUndef), key=spelled):
            for place, x in enumerate(atom.args):
                r = families.get((str(atom.func), place))
                if r is None or x not in spans:
                    continue
                lower, upper = spans[x]
                if (upper - r.upper).is_positive or (r.lower - lower).is_positive:
                    yield (
                        f"{where}: the sum over {x} = {lower}..{upper} uses {atom}, but {atom.func} is "
                        f"defined for {r.lower}..{r.upper} only"
                    )


def _families(program: Parts) -> dict[tuple[str, int], IndexRange]:
    """Return the ranges of the indices of fields, scalars and weights.

    Keys are pairs (name, position of the index among the arguments). Fields and scalars with layers, ordered
    fields and quantities with several definitions are left out, because the first and the last layer may have
    definitions of their own. Indices of layers of weights are left out too.
    """
    ranges_by_place: dict[tuple[str, int], IndexRange] = {}
    counts = Counter(d.name for d in program.definitions)
    for d in program.definitions:
        if counts[d.name] == 1 and not _layered(program, d):
            ranges_of_line = {r.index: r for r in d.ranges}
            ranges_by_place |= {
                (d.name, k): ranges_of_line[x] for k, x in enumerate(d.lhs.args) if x in ranges_of_line
            }
    for v in map(parameter, program.vectors):
        ranges_by_place |= {(v.name, k): r for k, r in enumerate(v.indices) if r.index != ell}
    for m in map(gaussian, program.matrices):
        ranges_by_place |= {(m.name, k + (m.index is not None)): r for k, r in enumerate(m.others)}
    return ranges_by_place


def _place(p: Population) -> str:
    """Return the name of a population with its layer, such as ``layer(ell)``, for messages."""
    return p.name if p.site is None else f"{p.name}({p.site})"


def causal_order(program: Parts) -> tuple[Definition, ...]:
    """Return the definitions sorted such that each follows those that it uses at the same time.

    Definitions that need each other in cycles may do so at different layers, if all cycles among them ascend
    the layers, or all descend. Raises :class:`ProgramError` for other cycles.
    """
    definitions = program.definitions
    uses = _uses(program)
    order: list[int] = []
    edges = [(i, j) for i, needs in enumerate(uses) for j in sorted(needs)]
    for component in map(sorted, strongly_connected_components((range(len(uses)), edges))):
        if len(component) > 1 or component[0] in uses[component[0]]:
            _chains_run_one_way(component, uses, definitions, program.fields)
        order += _within(component, uses, definitions)
    return tuple(definitions[i] for i in order)


def _uses(program: Parts) -> list[dict[int, set[Expr]]]:
    """Return, for each definition of a program, the definitions that it needs at the same time, t or 0.

    Each entry maps numbers of needed definitions, their positions in the program, to sets of shifts: the
    layer at which a quantity is needed minus the layer that is defined (0 for quantities without layers). A
    differential equation needs no other definition. The keys are sorted, because the order of sets of atoms
    differs between processes.
    """
    table: list[dict[int, set[Expr]]] = []
    for d in program.definitions:
        needs: dict[int, set[Expr]] = {}
        for a in () if d.evolves else d.rhs.atoms(AppliedUndef):
            # A use within one step is at time t, or at time 0, which is the present time of the first step.
            if not a.args or a.args[-1] not in (t, S.Zero):
                continue
            for j, e in enumerate(program.definitions):
                if e.name == str(a.func) and (shift := _shift(program, d, e, a)) is not None:
                    needs.setdefault(j, set()).add(shift)
        table.append(dict(sorted(needs.items())))
    return table


def _shift(program: Parts, d: Definition, e: Definition, atom: AppliedUndef) -> Expr | None:
    """Return the layer of ``atom``, a field that the definition ``d`` uses, minus the layer that d defines.

    The shift is zero for quantities without layers. It is also zero if the difference is not an integer and
    ``d`` or ``e`` defines a single layer. The result is None if ``e``, a definition of the field of ``atom``,
    does not give the layers of atom that d uses.
    """
    if not (_layered(program, d) and _layered(program, e)):
        return S.Zero
    (low, high), (first, last) = _places(atom, d), _places(e.lhs, e)
    if (low - last).is_positive or (first - high).is_positive:
        return None  # e defines other layers than d uses
    shift = expression(atom.args[0] - d.lhs.args[0])
    if not shift.is_Integer and (_is_end(e) or _is_end(d)):
        return S.Zero  # such a shift depends on the depth or on the index of the layer, and is counted as 0
    return shift


def _layered(program: Parts, d: Definition) -> bool:
    """Return whether a definition is that of a quantity whose first index is a layer, or an ordered index."""
    x = program.field_of(d.name)
    if x is not None:
        return x.layered or x.ordered
    return any(e.lhs.args and e.lhs.args[0].has(ell) for e in program.definitions if e.name == d.name)


def _places(atom: AppliedUndef, d: Definition) -> tuple[Expr, Expr]:
    """Return the first and the last layer (first argument) of ``atom`` over the ranges of a definition."""
    low, high = ({r.index: getattr(r, end) for r in d.ranges} for end in ("lower", "upper"))
    return atom.args[0].xreplace(low), atom.args[0].xreplace(high)


def _chains_run_one_way(
    component: list[int],
    uses: list[dict[int, set[Expr]]],
    definitions: tuple[Definition, ...],
    fields: tuple[Field, ...],
) -> None:
    """Raise ProgramError unless all cycles of uses within a step ascend the layers, or all descend.

    ``component`` are the numbers of definitions that need each other, and ``uses`` their needs with the
    shifts of the layer. With n above their number, all cycles have a positive sum of shifts if the edge
    weights ``n shift - 1`` have no negative cycle, which the algorithm of Bellman and Ford decides.
    Shifts that are not integers are refused.
    """
    n = len(component) + 1
    edges = [(v, w, x) for v in component for w, xs in uses[v].items() if w in component for x in xs]
    if all(x.is_Integer for *_, x in edges):
        for sign in (1, -1):
            distance = dict.fromkeys(component, 0)
            for _ in range(n):
                moved = False
                for v, w, x in edges:
                    if (best := distance[v] + sign * n * int(x) - 1) < distance[w]:
                        distance[w], moved = best, True
                if not moved:
                    return
    places = {f.name for f in fields if f.ordered}
    if places & {definitions[i].name for i in component}:
        numbers = [definitions[i] for i in component if definitions[i].name not in {f.name for f in fields}]
        if numbers:
            raise ProgramError(
                f"within a step, the scalar {numbers[0].lhs} and an ordered field (ordered=True) depend on "
                "each other, which is not supported: in place of the ordered field, write a field of its "
                "own for each value of the first index"
            )
    names = " -> ".join(str(definitions[i].lhs) for i in (*component, component[0]))
    raise ProgramError(f"a field or scalar depends on itself within a step: {names}")


def _within(
    component: list[int], uses: list[dict[int, set[Expr]]], definitions: tuple[Definition, ...]
) -> list[int]:
    """Return definitions that need each other across layers, in the order in which one layer computes them.

    ``component`` are their numbers (a strongly connected component of the graph of uses), and ``uses`` maps
    the needs of each definition to shifts of the layer. Each follows those that it needs in the same layer;
    apart from this, definitions of a single layer come before those of families.
    """
    order: list[int] = []

    def visit(v: int) -> None:
        """Append the definition number ``v`` to the order, after those that it needs in the same layer."""
        if v in order:
            return
        for w, shifts in uses[v].items():
            if w in component and w != v and S.Zero in shifts:
                visit(w)
        order.append(v)

    for v in sorted(component, key=lambda i: (not _is_end(definitions[i]), i)):
        visit(v)
    return order


def _is_end(d: Definition) -> bool:
    """Return whether a definition is that of a single layer, such as ``h(1, mu, t)``, not of a range."""
    site = d.lhs.args[0] if d.lhs.args else S.Zero
    return not any(site.has(r.index) for r in d.ranges)


def used_once(program: Program, what: str) -> None:
    """Raise :class:`NotApplicable` if the update of a trained matrix has several terms.

    A matrix in several products of a forward pass has one term for each. A product at all values of an index,
    as ``W @ phi(h(k, mu, t))`` for each k, counts once. ``what`` is the name of the calling method, for the
    message.

    >>> from derive.program import mlp
    >>> used_once(mlp(2), "counting")
    """
    shared = [w.name for w in program.trained() if isinstance(w, TrainedMatrix) and w.update.more]
    if shared:
        raise NotApplicable(
            f"{what}: the matrix {shared[0]} is used in several places, so that its update is a sum of "
            "several outer products, and only one outer product is supported; use a matrix of its own in "
            "each place"
        )


def chosen_depth(program: Program, depth: Any) -> Expr:
    """Return ``depth`` as an expression, if the program may be given this number of layers.

    Raises :class:`ProgramError` if it is not a number of layers, or if the program has fields with layers and
    another depth that does not contain ``L``.

    >>> from derive.program import mlp
    >>> chosen_depth(mlp(), 3), chosen_depth(mlp(2), 2)
    (3, 2)
    """
    layers = layer_count(depth)
    if any(x.layered for x in program.fields) and not program.depth.has(L) and layers != program.depth:
        raise ProgramError(
            f"depth = {depth}: {program.name} has the depth {program.depth}, which cannot be changed; give "
            f"depth = {program.depth}, or build the program with the symbolic depth L"
        )
    return layers


def plain_steps(program: Program) -> None:
    """Raise :class:`NotApplicable` unless all weights follow one rule ``W(t + 1) = W(t) + rate U(t)``.

    The rate is constant; there is no decay, momentum or noise. A program without trained weights is refused,
    and so is a rule that is not linear in the updates, such as Adam.

    >>> from derive.program import mlp
    >>> plain_steps(mlp(2))
    """
    require_linear_rules(program, "a theory in plain steps")
    rules = dict.fromkeys(w.rule for w in program.trained())
    if not rules:
        raise NotApplicable(f"{program.name} has no trained weights, and so no training steps")
    first, *others = rules
    start, weight = map(sympify, first.memory(t, s))
    alike = start == 1 and not weight.has(t, s) and first.noise(t, s) == 0
    if others or not (first.discrete and alike):
        raise NotApplicable(
            "all weights must move by the same plain steps, without decay, memory or noise, as those of "
            "gradient descent with a constant learning rate"
        )
