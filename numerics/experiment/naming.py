"""Renaming of a program by the roles of its names, so that its output is ``f`` and its error ``Delta``.

The author of a program may use any names.  The output is found from the program: updates are multiplied by an
error, and an error is a function of one output.  :func:`named_by_role` renames the program, one name to one
name; a :class:`~numerics.experiment.problem.Problem` of a program holds the renamed program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from sympy import Expr, Function, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, P, alpha, ell, expression, gamma0, mu, primed
from derive.program import Population, Program, Roles, TrainedMatrix
from derive.program.networks.options import SAMPLE_WEIGHT
from derive.program.networks.random_data import sigma
from derive.program.parts import gaussian, parameter
from numerics.names import (
    BACKPROPAGATED,
    BACKWARD_SOURCE,
    C_FIELD,
    C_GRADIENT,
    C_LEARNT,
    ERROR,
    FEATURE_KERNEL,
    FIELD,
    FORWARD_SOURCE,
    GRADIENT,
    GRADIENT_KERNEL,
    INPUT_KERNEL,
    LEARNT,
    LINEAR_KERNEL,
    OUTPUT,
    RESPONSES,
    TARGETS,
)

CHANNEL = Symbol("c", integer=True)
"""Index of outputs in programs of the builders."""

POSITION, CHANNELS = "p", Symbol("C", integer=True, positive=True)
"""Index of positions of units, and number of outputs."""

ASIDE = "_own"
"""Suffix of a name that conflicts with another."""

CONSTANTS = {"target": TARGETS, "weight": SAMPLE_WEIGHT, "kernel": INPUT_KERNEL}
"""Names of constants in results and files, by role."""

CORRELATIONS = (FEATURE_KERNEL, LINEAR_KERNEL, GRADIENT_KERNEL)
"""Correlations of a chain of layers: of activations, of fields of a linear chain, of gradients."""

SOURCES = FORWARD_SOURCE, BACKWARD_SOURCE
"""Sources of a chain of layers, forwards and backwards."""

FIELDS = frozenset({FIELD, GRADIENT, BACKPROPAGATED})
"""Fields of a chain of layers."""

LABELS_OF_RANDOM_DATA = frozenset({LEARNT, C_LEARNT, "h0"})
"""Names of vectors and correlations in results of random data."""

KERNELS = (
    FEATURE_KERNEL,
    GRADIENT_KERNEL,
    *RESPONSES,
    "tangent_kernel",
    "C_Delta",
    C_FIELD,
    C_GRADIENT,
    "error",
    "train_loss",
    "test_loss",
)
"""Correlations, responses and losses that results hold."""

ENGINE = frozenset(
    {
        OUTPUT,
        ERROR,
        *CONSTANTS.values(),
        *FIELDS,
        *KERNELS,
        LINEAR_KERNEL,
        *SOURCES,
        "K",
        "w",
        "m",
        "n",
        "p",
        "q",
        "u_p",
    }
) - {*LABELS_OF_RANDOM_DATA}
"""Names that solvers and results use for data, fields, kernels, sources and tables of an integrator."""


def named_by_role(program: Program) -> tuple[Program, dict[str, str], dict[str, float]]:
    """Return the program with the names that results use, the author's names, and sizes.

    The author's names are given by the new names, for renamed quantities only and without names of sources.
    Sizes are numbers by name: the number of samples, if it is a number in the program. A name that conflicts
    with one of the names of results gets the suffix ASIDE. A program whose names have their roles already
    keeps them; correlations of a chain of layers that the author did not name get the names of ``mlp``,
    unless another order parameter has a name. Without a single output, only fields of a chain of layers,
    error and learnt function of random data, gamma0, and conflicting names are renamed.

    >>> from derive.program import mlp
    >>> program = mlp(2)
    >>> named_by_role(program)[0] is program
    True
    """
    roles = program.roles
    layers = {author_name: name for author_name, name in _fields_of(roles).items() if author_name is not None}
    symbols: dict[Symbol, Symbol] = {}
    sizes: dict[str, float] = {}
    if roles.output is None or roles.error is None:
        data = {roles.residual: ERROR, roles.learnt: LEARNT}
        wanted = {author_name: name for author_name, name in data.items() if author_name is not None} | layers
        # The program has no recognised pair of output and error. In results, sigma is the label noise of
        # programs with a `residual`. If this program has no `residual`, but quantities that results name by
        # role (`wanted`), its sigma is another quantity and is renamed.
        if wanted and roles.residual is None:
            symbols |= {
                x: Symbol(f"{x.name}{ASIDE}", **x.assumptions0) for x in symbols_of(program) & {sigma}
            }
    else:
        wanted = {str(roles.output.func): OUTPUT, str(roles.error.func): ERROR} | layers
        constants = {role: getattr(roles, role) for role in CONSTANTS}
        wanted |= {constant: CONSTANTS[role] for role, constant in constants.items() if constant is not None}
        wanted |= _sources_of(program) if layers else {}
        symbols = _symbols_of_roles(roles)
        if roles.samples is not None and roles.samples.is_Integer:
            sizes = {P.name: float(roles.samples)}
    if isinstance(program.scale, Symbol):
        symbols[program.scale] = gamma0
    chain = bool(layers) and _is_named_as_usual(program)
    reserved = [*([P.name] if sizes else []), *((*RESPONSES, *CORRELATIONS) if chain else ())]
    names, symbols = _without_conflicts(program, wanted, symbols, reserved)
    hidden = {v for v in names.values() if v in SOURCES}  # names of sources, which are not among the results
    author_names = {v: k for k, v in names.items() if k != v and v not in hidden}
    partners = {primed(x) for x in symbols}  # primed indices, to which authors give no names
    author_names |= {v.name: k.name for k, v in symbols.items() if k != v and k not in partners}
    if not sizes and all(k == v for k, v in (*names.items(), *symbols.items())):
        written = _with_chain_names(program) if chain else program
        return program if written == program else written, {}, {}
    new = _renamed(program, names, symbols)
    if sizes:
        new = _with_symbolic_count(new, {mu, alpha}, P)
    if chain:
        new = _with_chain_names(new)
    return new, author_names, sizes


def _fields_of(roles: Roles) -> dict[str | None, str]:
    """Return the names that results use for the fields of a chain of layers, by their names in the program.

    ``roles`` says which names are the fields h, g and z; the key is None for a field that does not exist.
    """
    return {roles.field: FIELD, roles.gradient: GRADIENT, roles.backpropagated: BACKPROPAGATED}


def _symbols_of_roles(roles: Roles) -> dict[Symbol, Symbol]:
    """Return the indices and sizes that results use, by the symbols of the program with the same role.

    Symbols of roles that the program does not have, and sizes that are not symbols, are left out.
    """
    symbols: dict[Symbol, Symbol] = {}
    if roles.sample is not None:
        symbols |= {roles.sample: mu, primed(roles.sample): alpha}
    for index, name in ((roles.channel, CHANNEL.name), (roles.position, POSITION)):
        if index is not None and index.name != name:
            other = Symbol(name, **index.assumptions0)
            symbols |= {index: other, primed(index): primed(other)}
        elif index is not None:
            symbols |= {index: index, primed(index): primed(index)}
    for count, size in ((roles.samples, P), (roles.channels, CHANNELS)):
        if isinstance(count, Symbol):  # an expression such as 2*P, the number of pairs, cannot be renamed
            symbols.setdefault(count, size)
    return symbols


def _sources_of(program: Program) -> dict[str, str]:
    """Return the names ``u`` and ``r`` for the Gaussian sources of a chain of layers.

    The program must have such a chain. Keys are the names of the forward and backward sources in the program.
    They belong to the matrices that lead into the population of the chain, and to its readouts. The result is
    empty if a name is forward in one place and backward in another.
    """
    units = next(x.population.name for x in program.fields if x.name == program.roles.field)
    pairs: list[tuple[str, str]] = []
    for w in map(gaussian, program.matrices):
        if w.rows.name == units:
            pairs += zip(w.sources, SOURCES, strict=True)
    pairs += [(v.source, SOURCES[1]) for v in map(parameter, program.vectors) if v.population.name == units]
    names: dict[str, str] = {}
    if any(names.setdefault(source, new) != new for source, new in pairs):
        return {}
    return names


def _kernels_of(program: Program) -> dict[Expr, str]:
    """Return the names that ``mlp`` uses for the correlations of a chain of layers, such as Phi and G.

    Keys are the vectors that are correlated. The result is empty for a program without a chain of layers.
    """
    roles = program.roles
    if roles.feature is None or roles.gradient is None:
        return {}
    features, linear, gradients = CORRELATIONS
    gradient = next(d.lhs for d in program.definitions if d.name == roles.gradient)
    vectors = {roles.feature: linear if isinstance(roles.feature, AppliedUndef) else features}
    return {**vectors, gradient.func(ell, *gradient.args[1:]): gradients}


def _is_named_as_usual(program: Program) -> bool:
    """Return whether the author named only correlations of a chain of layers, and these as ``mlp`` does.

    False for a program without a chain of layers, and if another order parameter has a name. True for a
    program with such a chain whose author gave no names.
    """
    kernels, roles = _kernels_of(program), program.roles
    fields = {e for e in program.notation if isinstance(e, AppliedUndef) and str(e.func) == roles.field}
    usual = {*kernels.items(), *((e, LINEAR_KERNEL) for e in fields)}
    return bool(kernels) and {*program.notation.items()} <= usual


def _with_chain_names(program: Program) -> Program:
    """Return the program with the names of ``mlp`` for the correlations of a chain of layers.

    The responses of its first trained family of matrices get the names of ``mlp`` too, if they have no names.
    """
    families = [w for w in program.trained() if isinstance(w, TrainedMatrix) and w.initial.index is not None][
        :1
    ]
    matrices = [
        replace(w, initial=replace(w.initial, responses=w.initial.responses or RESPONSES))
        if w in families and isinstance(w, TrainedMatrix)
        else w
        for w in program.matrices
    ]
    return replace(program, notation=_kernels_of(program), matrices=tuple(matrices))


def _names_of(program: Program) -> set[str]:
    """Return the names of all fields, data, weights, sources, kernels and functions in a program."""
    matrices = [gaussian(m) for m in program.matrices]
    vectors = [parameter(v) for v in program.vectors]
    names = {x.name for x in program.fields} | {x.name for x in program.given}
    names |= {x.name for x in program.attributes}
    names |= {x.name for x in matrices} | {x.name for x in vectors} | {x.source for x in vectors}
    names |= {*program.scalars, *program.constants, *program.tables, *(x.kernel for x in program.given)}
    for w in matrices:
        names |= {*w.sources, *(w.responses or ())}
    for d in program.definitions:
        names |= {str(a.func) for a in d.rhs.atoms(AppliedUndef)}
    return names


def symbols_of(program: Program) -> set[Symbol]:
    """Return every symbol in a program, indices included."""
    symbols: set[Symbol] = set()

    def seen(e: Any) -> Any:
        """Record the symbols of an expression, and return the expression unchanged."""
        symbols.update(expression(e).atoms(Symbol))
        return e

    program.map(seen)
    for w in program.trained():
        for e in w.rule.system.coefficients if hasattr(w.rule, "system") else ():
            symbols |= e.atoms(Symbol)
    for d in program.definitions:
        symbols |= {r.index for r in d.ranges}
    return symbols


def _without_conflicts(
    program: Program, names: Mapping[str, str], symbols: Mapping[Symbol, Symbol], reserved: Iterable[str]
) -> tuple[dict[str, str], dict[Symbol, Symbol]]:
    """Return both renamings, extended by new names for all names of the program that are already in use.

    In use are the new names of both renamings, names that solvers and results use (ENGINE), and ``reserved``.
    ``names`` and ``symbols`` map names and symbols of the program to new ones. Names of weights may be
    equal to names of the solver, which does not read them. Fields without layers may have the names of
    fields of a chain of layers (FIELDS).
    """
    names, symbols = dict(names), dict(symbols)
    every, known = _names_of(program), symbols_of(program)
    given = {x for w in map(gaussian, program.matrices) for x in w.responses or ()}
    new = {*names.values(), *(x.name for x in symbols.values()), *reserved}
    used = new | every | {x.name for x in known}

    def unused(name: str) -> str:
        """Return ``name`` with the suffix ASIDE, and with underscores after it until it is not in use.

        The result counts as in use afterwards.
        """
        candidate = f"{name}{ASIDE}"
        while candidate in used:
            candidate += "_"
        used.add(candidate)
        return candidate

    layered = {x.name for x in program.fields if x.layered}
    plain = {x.name for x in program.fields} - layered
    read = {
        *program.scalars,
        *program.constants,
        *program.tables,
        *(x.kernel for x in program.given),
        *layered,
        *plain,
    }
    engine = ENGINE if program.scalars or names else ENGINE | LABELS_OF_RANDOM_DATA
    for name in sorted(every - {*names} - (given & {*reserved})):
        if name in new or (name in engine and name in read and not (name in FIELDS and name in plain)):
            names[name] = unused(name)
    for x in sorted(known - {*symbols}, key=str):
        if x.name in new:
            symbols[x] = Symbol(unused(x.name), **x.assumptions0)
    return names, symbols


def _with_symbolic_count(program: Program, indices: set[Symbol], count: Symbol) -> Program:
    """Return the program with the symbol ``count`` as the upper end of ``indices``, in place of a number."""

    def counted(x: Any) -> Any:
        if isinstance(x, IndexRange):
            return IndexRange(x.index, x.lower, count) if x.index in indices else x
        if isinstance(x, Expr):
            return x.replace(
                lambda e: isinstance(e, Sum) and any(i in indices for i, *_ in e.limits),
                lambda e: e.func(
                    e.function, *[(i, low, count if i in indices else high) for i, low, high in e.limits]
                ),
            )
        return _inside(x, counted)

    return _everywhere(program, counted)


def _inside(x: Any, rewritten: Callable[[Any], Any]) -> Any:
    """Return a tuple or dataclass with ``rewritten`` applied to each member; other values are unchanged."""
    if isinstance(x, tuple):
        return tuple(map(rewritten, x))
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: rewritten(getattr(x, f.name)) for f in fields(x) if f.init})
    return x


def _everywhere(program: Program, rewritten: Callable[[Any], Any]) -> Program:
    """Return the program with the function ``rewritten`` applied to each of its parts.

    The name of the program and the names that its author gave to order parameters stay as they are.
    """
    parts = {f.name: rewritten(getattr(program, f.name)) for f in fields(program) if f.name not in KEPT}
    notation = {rewritten(k): v for k, v in program.notation.items()}
    return Program(name=program.name, notation=notation, **parts)


KEPT = ("name", "notation")
"""Fields of a program whose texts stay as they are: its name, and the names of its order parameters."""


def _renamed(program: Program, names: Mapping[str, str], symbols: Mapping[Symbol, Symbol]) -> Program:
    """Return the program with names and symbols replaced according to ``names`` and ``symbols``.

    The names that its author gave to order parameters stay as they are.
    """
    weights = {gaussian(m).name for m in program.matrices} | {parameter(v).name for v in program.vectors}
    table: dict[Expr, Expr] = {**symbols, **{Symbol(n): Symbol(names[n]) for n in weights & {*names}}}

    sources = {x for w in map(gaussian, program.matrices) for x in w.sources}
    sources |= {x.source for x in map(parameter, program.vectors)}
    outside = {k: v for k, v in names.items() if k not in sources & program.tables}
    """Names outside of rules: a source with the same name as a table of a rule keeps its name."""

    def expressed(e: Expr, known: Mapping[str, str] = outside) -> Expr:
        return e.xreplace(table).replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in known,
            lambda x: Function(known[str(x.func)])(*x.args),
        )

    def in_rule(x: Any) -> Any:
        if isinstance(x, str):
            return names.get(x, x)
        return expressed(x, names) if isinstance(x, Expr) else x

    def renamed(x: Any) -> Any:
        if isinstance(x, str):
            return outside.get(x, x)
        if isinstance(x, Expr):
            return expressed(x)
        if hasattr(x, "memory"):
            return _inside(x, in_rule)
        if isinstance(x, Population):
            return x.map(lambda e: expressed(expression(e)))
        return _inside(x, renamed)

    return _everywhere(program, renamed)
