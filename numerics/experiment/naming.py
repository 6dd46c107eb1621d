"""The roles of the names in a program, and the same program in the names that solvers and results use.

A program's author may call its output, error, fields, data and indices anything.  Which scalar is the output
is read off the program: updates are multiplied by an error, and an error is a function of one output.
:func:`named_by_role` renames a program, one name to one name, so that its output is ``f`` and its error
``Delta``; a :class:`~numerics.experiment.problem.Problem` of a program holds what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from sympy import Dummy, Expr, Function, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, P, alpha, ell, expression, gamma0, mu, primed, t
from derive.program import Definition, Mean, Population, Product, Program, TrainedMatrix
from derive.program.program import gaussian, parameter

CHANNEL = Symbol("c", integer=True)
"""The index of outputs in programs of the builders."""

CONSTANTS = {"target": "y", "weight": "rho", "kernel": "K_x"}
"""What results and files call the constants of these roles."""


@dataclass(frozen=True)
class Roles:
    """The output and its error, the indices that they carry, and the data; None where there is no such name.

    ``weight`` is a constant of the sample alone that multiplies the error.
    """

    output: AppliedUndef
    error: AppliedUndef
    sample: Symbol | None = None
    channel: Symbol | None = None
    count: Expr | None = None
    kernel: str | None = None
    target: str | None = None
    weight: str | None = None


def roles_of(program: Program) -> Roles | None:
    """Return the roles of a program's scalars and data; None unless it has one output with one error.

    >>> from derive.program import isotropic, mlp
    >>> roles = roles_of(mlp(2, outputs=3))
    >>> roles.output, roles.error, roles.sample, roles.channel, roles.target
    (f(mu, c, t), Delta(mu, c, t), mu, c, 'y')
    >>> roles_of(isotropic(2)) is None
    True
    """
    pair = _output_and_error(program)
    if pair is None:
        return None
    output, error = pair
    indices = [x for x in output.lhs.args if x.is_Symbol and x != t]
    names = {x.name for x in program.given}
    inputs = _applied((d.rhs for d in program.definitions), names)
    carried = {x for a in inputs for x in a.args}
    samples = [x for x in indices if x in carried] or [x for x in indices if x == mu]
    sample = samples[0] if samples else None
    others = [x for x in indices if x != sample and x not in samples]
    counts = {r.index: r.upper for r in output.ranges}
    given = {str(a.func) for a in inputs if sample is None or sample in a.args}
    kernels = {x.kernel for x in program.given if x.name in given}
    constants = _applied([error.rhs], {*program.constants})
    factors = [a for a in constants if _is_factor(a, error.rhs)]
    targets = {str(a.func) for a in constants if a not in factors}
    return Roles(
        output.lhs,
        error.lhs,
        sample,
        others[0] if len(others) == 1 else None,
        counts.get(sample),
        _one(kernels),
        "y" if "y" in targets else _one(targets),
        _one({str(a.func) for a in factors if a.args == (sample,)}),
    )


def _is_factor(a: AppliedUndef, e: Expr) -> bool:
    """Is an expression proportional to this factor?"""
    x = Dummy()
    e = e.xreplace({a: x})
    return bool(e.xreplace({x: S.Zero}) == 0 and e.diff(x, 2) == 0)


def _output_and_error(program: Program) -> tuple[Definition, Definition] | None:
    """The scalar that is learnt, and the function of it that updates are multiplied by."""
    defined: dict[str, list[Definition]] = {}
    for d in program.definitions:
        if d.name in program.scalars:
            defined.setdefault(d.name, []).append(d)
    single = {name: found[0] for name, found in defined.items() if len(found) == 1}
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
        if error.name in coefficients | in_fields:
            pairs.append((output, error))
    constants = {*program.constants}
    preferred = (
        [pair for pair in pairs if pair[1].name in coefficients],
        [pair for pair in pairs if _applied([pair[1].rhs], constants)],
        [pair for pair in pairs if [d.name for d in pair] == ["f", "Delta"]],
    )
    for better in preferred:
        both = [pair for pair in pairs if pair in better]
        pairs = both or pairs
        if len(pairs) == 1:
            return pairs[0]
    return None


def _applied(expressions: Iterable[Expr], names: set[str]) -> list[AppliedUndef]:
    """The functions of these names in expressions, in a fixed order."""
    found = {a for e in expressions for a in expression(e).atoms(AppliedUndef) if str(a.func) in names}
    return sorted(found, key=str)


def _one(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None


def named_by_role(program: Program) -> tuple[Program, dict[str, str], dict[str, float]]:
    """Return the program with the names that results use, the author's names by those, and sizes.

    Sizes are the number of samples, if the program has a number for it.

    A name that is in the way of another is set aside.  A program whose names have their roles already, or
    that has no single output, stays the same object.

    >>> from derive.program import mlp
    >>> program = mlp(2)
    >>> named_by_role(program)[0] is program
    True
    """
    roles = roles_of(program)
    if roles is None:
        return program, {}, {}
    wanted = {str(roles.output.func): "f", str(roles.error.func): "Delta"}
    for role, name in CONSTANTS.items():
        if (own := getattr(roles, role)) is not None:
            wanted[own] = name
    layers = _layers_of(program)
    wanted |= layers
    taken = _names_of(program)
    names = _one_to_one(wanted, taken, [x for x in (CONSTANTS["target"], CONSTANTS["weight"]) if x in taken])
    symbols: dict[Symbol, Symbol] = {}
    if roles.sample is not None:
        symbols |= {roles.sample: mu, primed(roles.sample): alpha}
    if roles.channel is not None and roles.channel.name != CHANNEL.name:
        other = Symbol(CHANNEL.name, **roles.channel.assumptions0)
        symbols |= {roles.channel: other, primed(roles.channel): primed(other)}
    if isinstance(roles.count, Symbol):
        symbols[roles.count] = P
    if isinstance(program.scale, Symbol):
        symbols[program.scale] = gamma0
    sizes = {P.name: float(roles.count)} if roles.count is not None and roles.count.is_Integer else {}
    symbols = _apart(symbols, _symbols_of(program), [P] if sizes else [])
    back = {v: k for k, v in names.items() if k != v}
    back |= {v.name: k.name for k, v in symbols.items() if k != v}
    if not back and not sizes:
        return program, {}, {}
    new = _renamed(program, names, symbols)
    if sizes:
        new = _counted(new, {mu, alpha}, P)
    if layers and not new.notation:
        new = _chain(new)
    return new, back, sizes


def _layers_of(program: Program) -> dict[str, str]:
    """``h``, ``z`` and ``g`` by the names of the fields of a chain of layers, one family of matrices.

    The update of a family has the gradient at the layer above on its left, and what the layer hands on on its
    right.
    """
    families = [w for w in program.trained() if isinstance(w, TrainedMatrix) and w.initial.index is not None]
    if len(families) != 1 or len(families[0].update.terms) != 1:
        return {}
    update, layered = families[0].update, {x.name for x in program.fields if x.layered}
    below = {str(a.func) for a in update.right.atoms(AppliedUndef)} & layered
    above = {str(a.func) for a in update.left.atoms(AppliedUndef)} & layered
    if len(below) != 1 or len(above) != 1 or below == above:
        return {}
    h, g = *below, *above
    found = {h: "h", g: "g"}
    lines = [d for d in program.definitions if d.name == g and ell in d.lhs.args]
    inner = {str(a.func) for d in lines for a in d.rhs.atoms(AppliedUndef)} & layered - {h, g}
    z = _one({n for n in inner if any(d.name == n and d.rhs.has(Product) for d in program.definitions)})
    return found if z is None else found | {z: "z"}


def _chain(program: Program) -> Program:
    """The program with the names of builders for the kernels and responses of a chain of layers."""
    family = next(
        w for w in program.trained() if isinstance(w, TrainedMatrix) and w.initial.index is not None
    )
    back = {primed(r.index): r.index for d in program.definitions for r in d.ranges}
    right, left = family.update.right.xreplace(back), family.update.left.xreplace({ell + 1: ell, **back})
    notation = {right: "H" if isinstance(right, AppliedUndef) else "Phi", left: "G"}
    initial = family.initial
    if initial.responses is None and not {"A", "B"} & _names_of(program):
        initial = replace(initial, responses=("A", "B"))
    matrices = tuple(replace(w, initial=initial) if w is family else w for w in program.matrices)
    return replace(program, notation=notation, matrices=matrices)


def _names_of(program: Program) -> set[str]:
    """Every name in a program."""
    matrices = [gaussian(m) for m in program.matrices]
    vectors = [parameter(v) for v in program.vectors]
    found = {x.name for x in program.fields} | {x.name for x in program.given}
    found |= {x.name for x in program.attributes}
    found |= {x.name for x in matrices} | {x.name for x in vectors} | {x.source for x in vectors}
    found |= {*program.scalars, *program.constants, *(x.kernel for x in program.given)}
    for w in matrices:
        found |= {*w.sources, *(w.responses or ())}
    for d in program.definitions:
        found |= {str(a.func) for a in d.rhs.atoms(AppliedUndef)}
    return found


def _symbols_of(program: Program) -> set[Symbol]:
    """Every symbol in a program, indices among them."""
    found: set[Symbol] = set()

    def seen(e: Any) -> Any:
        found.update(expression(e).atoms(Symbol))
        return e

    program.map(seen)
    for d in program.definitions:
        found |= {r.index for r in d.ranges}
    return found


def _one_to_one(wanted: Mapping[str, str], taken: set[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """The renaming, with names set aside that are in the way or ``reserved`` for another role."""
    names, every = dict(wanted), {*taken, *wanted.values()}
    for name in dict.fromkeys((*wanted.values(), *reserved)):
        if name in taken and name not in wanted:
            aside = f"{name}_own"
            while aside in every:
                aside += "_"
            names[name] = aside
            every.add(aside)
    return names


def _apart(
    wanted: Mapping[Symbol, Symbol], taken: set[Symbol], reserved: Iterable[Symbol] = ()
) -> dict[Symbol, Symbol]:
    """The same of symbols."""
    symbols = dict(wanted)
    for x in (*wanted.values(), *reserved):
        for own in [y for y in taken if y.name == x.name and y not in wanted]:
            symbols[own] = Symbol(f"{own.name}_own", **own.assumptions0)
    return symbols


def _counted(program: Program, indices: set[Symbol], count: Symbol) -> Program:
    """The program with a symbol for how far indices run, where it has a number."""

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
    """What a part of a program holds, rewritten."""
    if isinstance(x, tuple):
        return tuple(map(rewritten, x))
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: rewritten(getattr(x, f.name)) for f in fields(x) if f.init})
    return x


def _everywhere(program: Program, rewritten: Callable[[Any], Any]) -> Program:
    """The program with every part rewritten but its name, and names of correlations."""
    parts = {f.name: rewritten(getattr(program, f.name)) for f in fields(program) if f.name not in KEPT}
    notation = {rewritten(k): v for k, v in program.notation.items()}
    return Program(name=program.name, notation=notation, **parts)


KEPT = ("name", "notation")
"""The fields of a program whose text is no name of a quantity."""


def _renamed(program: Program, names: Mapping[str, str], symbols: Mapping[Symbol, Symbol]) -> Program:
    """The program with other names and symbols everywhere but in its notation."""
    weights = {gaussian(m).name for m in program.matrices} | {parameter(v).name for v in program.vectors}
    table: dict[Expr, Expr] = {**symbols, **{Symbol(n): Symbol(names[n]) for n in weights & {*names}}}

    def expressed(e: Expr) -> Expr:
        return e.xreplace(table).replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in names,
            lambda x: Function(names[str(x.func)])(*x.args),
        )

    def renamed(x: Any) -> Any:
        if isinstance(x, str):
            return names.get(x, x)
        if isinstance(x, Expr):
            return expressed(x)
        if isinstance(x, Population):
            return x.map(lambda e: expressed(expression(e)))
        return _inside(x, renamed)

    return _everywhere(program, renamed)
