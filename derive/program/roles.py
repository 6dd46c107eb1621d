"""Roles of the quantities of a program: output, error, features, gradients, indices and data.

The names in a program are free; the roles are read from its structure: updates contain an error as a factor,
an error is a function of one output, a family of matrices is updated by the gradients above and the features
below it. Results, plots and expansions find quantities by their roles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from sympy import Dummy, Expr, Pow, S, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import ell, expression, mu, t
from derive.program.language import Mean, Product
from derive.program.parts import Definition, Parts
from derive.program.training import TrainedMatrix, TrainedVector


@dataclass(frozen=True)
class Roles:
    """Roles of the quantities of a program; None for a role without a unique quantity.

    Parameters
    ----------
    output, error : AppliedUndef
        The scalar that is trained and its error, with their indices, such as ``f(mu, t)`` and
        ``Delta(mu, t)``.
    sample, channel, position : Symbol
        The index of samples, the index of several outputs, and the only further index of the fields besides
        the layer. The last is the index of positions within a layer, such as pixels of an image; in other
        networks it may count steps or experts.
    samples, channels : Expr
        The numbers of samples and of outputs.
    target, weight, kernel : str
        Names of the targets, of the factor of each sample in the loss, and of the kernel of the inputs.
    feature : Expr
        The vector that each layer passes to the next, such as ``tanh(h(ell, mu, t))``.
    field, gradient, backpropagated : str
        Names of the field of which the feature is a function, of the gradient with respect to this field, and
        of the transposed matrix times the gradient of the layer above, from which ``gradient`` follows by a
        derivative.
    learnt, residual : str
        Names of vectors of a program on random data: the error of the learnt function, and that of the
        outputs on samples.
    """

    output: AppliedUndef | None = None
    error: AppliedUndef | None = None
    sample: Symbol | None = None
    channel: Symbol | None = None
    position: Symbol | None = None
    samples: Expr | None = None
    channels: Expr | None = None
    target: str | None = None
    weight: str | None = None
    kernel: str | None = None
    feature: Expr | None = None
    field: str | None = None
    gradient: str | None = None
    backpropagated: str | None = None
    learnt: str | None = None
    residual: str | None = None


@lru_cache(maxsize=64)
def roles_of(program: Parts) -> Roles:
    """Return the roles of the quantities of a program, such as output, error, features and samples.

    >>> from derive.program import isotropic, mlp
    >>> roles = roles_of(mlp(2, "tanh", outputs=3))
    >>> roles.output, roles.error, roles.sample, roles.channel, roles.target
    (f(mu, c, t), Delta(mu, c, t), mu, c, 'y')
    >>> roles.field, roles.feature, roles.gradient
    ('h', tanh(h(ell, mu, t)), 'g')
    >>> roles_of(isotropic(2)).output is None, roles_of(isotropic(2)).learnt
    (True, 'v')
    """
    of_layers = _roles_of_layers(program) or _roles_of_one_layer(program)
    pair = _output_and_error(program)
    if pair is None:
        return Roles(**of_layers, **_roles_of_random_data(program))
    output, error = pair
    indices = [x for x in output.lhs.args if x.is_Symbol and x != t]
    names = {x.name for x in program.given}
    inputs = _applied((d.rhs for d in program.definitions), names)
    carried = {x for a in inputs for x in a.args}
    samples = [x for x in indices if x in carried] or [x for x in indices if x == mu]
    sample = samples[0] if samples else None
    others = [x for x in indices if x != sample and x not in samples]
    channel = others[0] if len(others) == 1 else None
    counts = {r.index: expression(r.upper - r.lower + 1) for r in output.ranges}
    input_names = {str(a.func) for a in inputs if sample is None or sample in a.args}
    kernels = {x.kernel for x in program.given if x.name in input_names}
    constants = _applied([error.rhs], {*program.constants})
    factors = [a for a in constants if _is_factor(a, error.rhs)]
    targets = [a for a in constants if a not in factors]
    if len(targets) > 1:  # of these constants, the target is subtracted from the output
        x, y = Dummy(), Dummy()
        slopes = [error.rhs.xreplace({a: x, output.lhs: y}) for a in targets]
        targets = [a for a, e in zip(targets, slopes, strict=True) if (e.diff(x) + e.diff(y)).equals(0)]
    position = _position(program, {*indices, *samples}, of_layers.get("field"))
    if _indices_of_field(program, of_layers.get("field")) - {ell, t, sample, position}:
        # The fields of the layers have other indices than the layer, the time, the sample and the position.
        # The kernels of layers in results do not have other indices, so that these fields get no role.
        of_layers = {}
    return Roles(
        **of_layers,
        output=output.lhs,
        error=error.lhs,
        sample=sample,
        channel=channel,
        position=position,
        samples=counts.get(sample),
        channels=None if channel is None else counts.get(channel),
        target=_one({str(a.func) for a in targets}),
        weight=_one({str(a.func) for a in factors if a.args == (sample,)}),
        kernel=_one(kernels),
    )


def _position(program: Parts, indices: set[Symbol], field: Expr | str | None) -> Symbol | None:
    """Return the further index of the fields, such as positions; None if there is not exactly one.

    It is the only index of the fields that is neither a layer nor among ``indices``, those of outputs and
    samples. Mostly it numbers positions within a layer, such as pixels. If ``field`` is given, only this
    field is searched.
    """
    lines = [d for d in program.definitions if d.name not in program.scalars and field in (None, d.name)]
    candidates = {r.index for d in lines for r in d.ranges if r.index in d.lhs.args} - {ell, *indices}
    return next(iter(candidates)) if len(candidates) == 1 else None


def _indices_of_field(program: Parts, field: Expr | str | None) -> set[Symbol]:
    """Return the symbols in the arguments of ``field``, a name, on the left of its definitions."""
    lines = [d.lhs for d in program.definitions if d.name == field]
    return {x for lhs in lines for a in lhs.args for x in a.free_symbols}


def _is_factor(a: AppliedUndef, e: Expr) -> bool:
    """Return whether the expression ``e`` is proportional to the function ``a``."""
    x = Dummy()
    e = e.xreplace({a: x})
    return bool(e.xreplace({x: S.Zero}) == 0 and e.diff(x, 2) == 0)


def _output_and_error(program: Parts) -> tuple[Definition, Definition] | None:
    """Return the definitions of the output and of its error; None if there is not exactly one such pair.

    An error is a scalar without averages that depends on one output only, has the same indices, and is used
    in updates or fields. If the program has a loss, the output is the only scalar in the loss. Of several
    pairs, those with the error in an update are preferred, then those whose error contains a constant of the
    program (the targets).
    """
    defined: dict[str, list[Definition]] = {}
    for d in program.definitions:
        if d.name in program.scalars:
            defined.setdefault(d.name, []).append(d)
    single = {name: definitions[0] for name, definitions in defined.items() if len(definitions) == 1}
    coefficients: set[str] = set()
    for w in program.trained():
        coefficients |= {
            str(a.func) for u in w.update.terms for a in expression(u.coefficient).atoms(AppliedUndef)
        }
    in_fields = {
        str(a.func) for d in program.definitions if d.name not in defined for a in d.rhs.atoms(AppliedUndef)
    }
    learnt = {*defined}
    if program.loss is not None:
        learnt &= {str(a.func) for a in program.loss.atoms(AppliedUndef)}
        if len(learnt) != 1:
            return None
    pairs = []
    for error in single.values():
        read = {str(a.func) for a in error.rhs.atoms(AppliedUndef)} & {*defined} - {error.name}
        if error.rhs.has(Mean) or len(read) != 1 or not read <= learnt & {*single}:
            continue
        output = single[next(iter(read))]
        # The output and the error need the same indices, because results subtract them entry by entry.
        same = {*output.lhs.args} == {*error.lhs.args}
        if same and error.name in coefficients | in_fields:
            pairs.append((output, error))
    constants = {*program.constants}
    preferred = (
        [pair for pair in pairs if pair[1].name in coefficients],
        [pair for pair in pairs if _applied([pair[1].rhs], constants)],
    )
    for better in preferred:
        both = [pair for pair in pairs if pair in better]
        pairs = both or pairs
        if len(pairs) == 1:
            return pairs[0]
    return None


def _roles_of_random_data(program: Parts) -> dict[str, str]:
    """Return the names of the error vectors of a program on random data, by role; empty for another program.

    The means in the loss must contain the square of one vector, and the program no given vectors. If the
    definition of this vector has one product of a matrix with a field, the vector has the role ``residual``
    (errors of the outputs on samples) and the field the role ``learnt`` (error of the learnt function, one
    entry for each feature). Otherwise the vector has the role ``learnt``.
    """
    loss = expression(0 if program.loss is None else program.loss)
    squares = [
        a for m in loss.atoms(Mean) for a in m.atoms(Pow) if a.exp == 2 and isinstance(a.base, AppliedUndef)
    ]
    if len(squares) != 1 or program.given:
        return {}
    name = str(squares[0].base.func)
    lines = [d for d in program.definitions if d.name == name]
    inner = [q.vector for d in lines for q in d.products() if not q.transposed]
    learnt = _applied(inner, {x.name for x in program.fields})
    if len(inner) == 1 and len(learnt) == 1:
        return {"residual": name, "learnt": str(learnt[0].func)}
    return {"learnt": name}


def _roles_of_layers(program: Parts) -> dict[str, Expr | str | None]:
    """Return the roles of feature, gradient and fields of a chain of layers with one family of matrices.

    The update of a family has the gradient of the layer above on its left, and the feature on its right. The
    result is empty for a program of another form.
    """
    families = [w for w in program.trained() if isinstance(w, TrainedMatrix) and w.initial.index is not None]
    moves = {(w.update.left, w.update.right) for w in families if len(w.update.terms) == 1}
    if len(moves) != 1 or any(len(w.update.terms) != 1 for w in families):
        return {}
    update, layered = families[0].update, {x.name for x in program.fields if x.layered}
    members = {r.index for r in families[0].initial.others}
    if any(members & {*a.args} for x in (update.left, update.right) for a in x.atoms(AppliedUndef)):
        return {}  # each member of the family, such as a head, has vectors of its own
    below = {str(a.func) for a in update.right.atoms(AppliedUndef)} & layered
    above = {str(a.func) for a in update.left.atoms(AppliedUndef)} & layered
    if len(below) != 1 or len(above) != 1 or below == above:
        return {}
    h, g = *below, *above
    lines = [d for d in program.definitions if d.name == g and ell in d.lhs.args]
    inner = {str(a.func) for d in lines for a in d.rhs.atoms(AppliedUndef)} & layered - {h, g}
    z = _one({n for n in inner if any(d.name == n and d.rhs.has(Product) for d in program.definitions)})
    (lhs, *_) = (d.lhs for d in program.definitions if d.name == h)
    return {"feature": _at_layer(update.right, lhs), "field": h, "gradient": g, "backpropagated": z}


def _roles_of_one_layer(program: Parts) -> dict[str, Expr | str | None]:
    """Return the roles of feature, gradient and field of a program with one layer; empty for other programs.

    The feature is in the updates of readouts, and the gradient on the left of those of matrices.
    """
    layered, trained = {x.name for x in program.fields if x.layered}, [*program.trained()]
    matrices = [w for w in trained if isinstance(w, TrainedMatrix)]
    if any(w.initial.index is not None or len(w.update.terms) > 1 for w in matrices):
        return {}
    left = {str(a.func) for w in matrices for a in w.update.left.atoms(AppliedUndef)} & layered
    vectors = {w.update.vector for w in trained if isinstance(w, TrainedVector)}
    read = {x: {str(a.func) for a in x.atoms(AppliedUndef)} & layered for x in vectors}
    features = [x for x, names in read.items() if names and not names & left]
    below = {name for x in features for name in read[x]}
    if len(left) != 1 or len(below) != 1 or len(features) != 1:
        return {}
    h, g = *below, *left
    lines = {name: [d.lhs for d in program.definitions if d.name == name] for name in layered}
    if any(x.args[0] != 1 for left_sides in lines.values() for x in left_sides) or len(lines[h]) != 1:
        return {}
    return {"feature": _at_layer(features[0], lines[h][0]), "field": h, "gradient": g}


def _at_layer(vector: Expr, field: Expr) -> Expr:
    """Return the feature, a function of a field, written for the layer ``ell``.

    ``vector`` is the feature as an update contains it, and ``field`` the left-hand side of the field's
    definition, which gives the names of the other indices.
    """
    at, name = field.func(ell, *field.args[1:]), str(field.func)
    (read, *_) = _applied([vector], {name})
    names = zip(read.args[1:], field.args[1:], strict=True)
    renamed = vector.xreplace({x: index for x, index in names if isinstance(x, Symbol)})
    return renamed.replace(lambda a: isinstance(a, AppliedUndef) and str(a.func) == name, lambda _: at)


def _applied(expressions: Iterable[Expr], names: set[str]) -> list[AppliedUndef]:
    """Return the functions with these ``names`` in expressions, with their arguments, sorted as text."""
    functions = {a for e in expressions for a in expression(e).atoms(AppliedUndef) if str(a.func) in names}
    return sorted(functions, key=str)


def _one(names: set[str]) -> str | None:
    """Return the only name of a set; None if there are several or none."""
    return next(iter(names)) if len(names) == 1 else None
