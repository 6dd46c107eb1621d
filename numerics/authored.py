"""Variables of results of programs without a single output, under the names of their author.

Where a program has one output with one error, results call them by role
(:mod:`numerics.experiment.naming`).  Where it has several, a result holds the numbers of the program, and the
correlations of its theory, under their own names.  Solutions and finite networks take names and dimensions
from here, so that they can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.symbols import IndexRange, ell, mu, primed, s, t
from derive.program import Program
from numerics.experiment.problem import Problem
from numerics.results import COUNTED, STDERR, SYSTEMATIC, TWO_TIMES, VARIABLES

RESERVED = {"layer", "order", *COUNTED, *TWO_TIMES}
"""Names of dimensions that mean something else in results."""


@dataclass(frozen=True)
class AuthoredVariable:
    """One variable of a result: a number of the program, or a correlation of its theory.

    Attributes:
    - ``name``: the author's name, or the theory's of a correlation.
    - ``dims``: its dimensions; times come first, after the layer.
    - ``shape``: their lengths, without times.
    - ``long_name``: what it is, in symbols.
    - ``pair``: the two vectors of a correlation, the first at the time t, the second at s.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    long_name: str
    pair: tuple[Expr, Expr] | None = None

    @property
    def layered(self) -> bool:
        """Whether the first axis is that of layers."""
        return self.dims[0] not in TWO_TIMES


def authored_variables(problem: Problem) -> dict[str, AuthoredVariable]:
    """Return the variables of a problem without roles, by their names in results; none of another problem."""
    if problem.has_roles:
        return {}
    sizes: dict[str, int] = {}
    found: dict[str, AuthoredVariable] = {}
    for variable in (*_scalars(problem, sizes), *_correlations(problem, sizes)):
        label, taken = variable.name, RESERVED | {*sizes} | {*found}
        taken |= {*VARIABLES} if variable.pair is None else set()
        while label in taken or label.endswith((STDERR, SYSTEMATIC)):
            label += "_own"
        found[label] = variable
    return found


def sample_index(program: Program) -> Symbol | None:
    """Return the sample index of the given vectors, or mu; None if it is not unique."""
    given = {x.name for x in program.given}
    read = (a for d in program.definitions for a in sympify(d.rhs).atoms(AppliedUndef))
    indices = {x for a in read if str(a.func) in given for x in a.args if x.is_Symbol and x != t}
    if mu in indices or not indices:
        carried = {x for d in program.definitions if d.name in program.scalars for x in d.lhs.args}
        return mu if mu in indices | carried else None
    return next(iter(indices)) if len(indices) == 1 else None


def _scalars(problem: Problem, sizes: dict[str, int]) -> Iterator[AuthoredVariable]:
    """The numbers of a program that are written for all of their indices at once."""
    program, sample = problem.program, sample_index(problem.program)
    for name in program.scalars:
        lines = [d for d in program.definitions if d.name == name]
        indices = [x for x in lines[0].lhs.args if x != t] if len(lines) == 1 else [sympify(1)]
        if not all(x.is_Symbol for x in indices):
            continue
        lengths = _lengths(problem, indices, lines[0].ranges)
        dims = tuple(_dimension(x, n, name, sample, sizes) for x, n in zip(indices, lengths, strict=True))
        yield AuthoredVariable(name, ("time", *dims), lengths, str(lines[0].lhs))


def _correlations(problem: Problem, sizes: dict[str, int]) -> Iterator[AuthoredVariable]:
    """Averages of a vector at the time t times one at the time s."""
    sample = sample_index(problem.program)
    for q in problem.theory.order_parameters:
        number, average = sympify(q.definition).as_independent(Average, as_Add=False)
        args = [x for x in q.symbol.args if x not in (t, s)]
        if q.kind != "correlation" or not isinstance(average, Average) or average.body.has(Sum):
            continue
        early, late = average.body.as_independent(t, as_Add=False)
        if not number.is_number or not early.has(s) or early.has(t) or late.has(s):
            continue
        if not all(x.is_Symbol for x in args) or ell in args[1:] or q.symbol.args[-2:] != (t, s):
            continue
        layers, indices = args[: args[:1] == [ell]], args[args[:1] == [ell] :]
        lengths = _lengths(problem, [*layers, *indices], q.ranges)
        lead = tuple(_dimension(x, n, q.name, None, sizes) for x, n in zip(layers, lengths, strict=False))
        own = zip(indices, lengths[len(layers) :], strict=True)
        dims = (*lead, *TWO_TIMES, *(_dimension(x, n, q.name, sample, sizes) for x, n in own))
        yield AuthoredVariable(q.name, dims, lengths, f"{q.symbol} = {q.definition}", (number * late, early))


def _lengths(problem: Problem, indices: Iterable[Expr], ranges: Iterable[IndexRange]) -> tuple[int, ...]:
    """How many values each index has."""
    values: Mapping[Any, float] = problem.values
    ends = {r.index: (sympify(r.lower).subs(values), sympify(r.upper).subs(values)) for r in ranges}
    return tuple(int(ends[x][1]) - int(ends[x][0]) + 1 for x in indices)


def _dimension(index: Symbol, length: int, name: str, sample: Symbol | None, sizes: dict[str, int]) -> str:
    """The name of an axis: that of its index, with the variable's where another length has that name."""
    known = {ell: "layer"} if sample is None else {sample: "sample", primed(sample): "sample_"}
    dim = str(known.get(index, index.name))
    if dim in RESERVED and index not in known:
        dim = f"{dim}_index"
    if sizes.setdefault(dim, length) != length:
        dim = f"{dim}_of_{name}"
        sizes[dim] = length
    return dim


def described(problem: Problem) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return dimensions and long names as :meth:`numerics.results.Result.of` takes them."""
    return {label: (x.dims, x.long_name) for label, x in authored_variables(problem).items()}
