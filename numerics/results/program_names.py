"""Variables of results that have no role, under the names that the author of a program uses.

If a program has one output with one error, results name these and the kernels of layers by role
(:mod:`numerics.experiment.naming`); the other numbers of the program are variables of this module.  If it has
several outputs, a result holds all numbers of the program, and correlations of its theory, under their own
names.  Solutions and finite networks take names and dimensions from here, so that they can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Mul, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.symbols import IndexRange, ell, mu, primed, s, t
from derive.program import Definition, Program
from numerics.errors import SpecError
from numerics.experiment.naming import CHANNEL
from numerics.experiment.problem import Problem
from numerics.names import ERROR, OUTPUT, MemberKey
from numerics.results import COUNTED, SHIFT, STDERR, SYSTEMATIC, TWO_TIMES, VARIABLES, VARIANCE

Array = NDArray[np.float64]
AxisValues = tuple[int, ...]
"""Values of an index, in increasing order."""

RESERVED = {"layer", "order", *COUNTED, *TWO_TIMES}
"""Names of dimensions that results use, so that indices of programs cannot have them."""


@dataclass(frozen=True)
class AuthoredVariable:
    """One variable of a result: a number of the program, or a correlation of its theory.

    Attributes
    ----------
    name : str
        Name in the problem's program, or of a correlation in its theory.
    dims : tuple of str
        Dimensions; times come first, or after the layer.
    values : tuple of tuple of int
        Values of the index along each dimension except times.
    long_name : str
        Definition of a correlation in symbols; for a number the left sides of its definitions.
    pair : tuple of two Expr, optional
        The two vectors of a correlation, the first at time t, with any constant factor, the second at time s.
        None for a number.
    """

    name: str
    dims: tuple[str, ...]
    values: tuple[AxisValues, ...]
    long_name: str
    pair: tuple[Expr, Expr] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of all axes of the variable except those of times."""
        return tuple(map(len, self.values))

    @property
    def layered(self) -> bool:
        """Whether the first axis of the variable counts layers."""
        return self.dims[0] not in TWO_TIMES


@lru_cache(maxsize=4)
def authored_variables(problem: Problem) -> dict[str, AuthoredVariable]:
    """Return the variables of a problem that have no role, by their names in results.

    A number that is defined at integers, such as ``m(2, t)``, is one variable with an axis for that index.
    If its definitions do not fill an array, each is a variable with the integers in its name, ``m_2``.
    Correlations are included only if the problem has no roles. ``_own`` is appended to a name that is taken,
    or that ends like a standard error, a bound on the bias, a variance or a shift.
    """
    sizes = _axes_of_roles(problem)
    variables: dict[str, AuthoredVariable] = {}
    by_role = numbers_by_role(problem)
    numbers = [
        x for name in problem.program.scalars if name not in by_role for x in _number(problem, name, sizes)
    ]
    correlations = () if problem.has_roles else _correlations(problem, sizes)
    named = [*numbers, *((x.name, x) for x in correlations)]
    roles = {*VARIABLES} if by_role else {*VARIABLES} - {OUTPUT}
    for name, variable in named:
        label, taken = name, RESERVED | {*sizes} | {*variables}
        taken |= roles if variable.pair is None else set()
        while label in taken or label.endswith((STDERR, SYSTEMATIC, VARIANCE, SHIFT)):
            label += "_own"
        variables[label] = variable
    return variables


def _axes_of_roles(problem: Problem) -> dict[str, AxisValues]:
    """Return the values along the axes of layers and samples that variables with a role have.

    A number on other layers or samples, such as ``m(ell, mu, t)`` on all layers but the last, then gets an
    axis of its own. The result is empty if no variable has a role.
    """
    if not problem.has_roles:
        return {}
    counts = {"layer": problem.depth or 0, "sample": problem.sample_count}
    return {dim: tuple(range(1, n + 1)) for dim, n in counts.items() if n}


def self_correlations(problem: Problem) -> list[str]:
    """Return the names of variables without a role that are correlations of a vector with itself."""
    labels = []
    for label, variable in authored_variables(problem).items():
        if variable.pair is not None:
            late, early = variable.pair
            partners = {primed(x): x for x in late.free_symbols if isinstance(x, Symbol)}
            if early.xreplace({s: t, **partners}) == late:
                labels.append(label)
    return labels


def require_variables(problem: Problem) -> None:
    """Raise SpecError for a program without standard roles whose result would be empty.

    Such a program has neither numbers nor correlations that finite networks can measure.
    """
    if not authored_variables(problem):
        raise SpecError(
            "program",
            problem.program.name,
            "has no numbers and no correlations, so that a result would be empty",
            "a number among the definitions, such as a Mean over units",
        )


def numbers_by_role(problem: Problem) -> frozenset[str]:
    """Return the names of the output and the error signal if results hold them under these standard names.

    Results do so if the program has roles, and its output and error have no other indices than those of
    samples and channels. Otherwise the set is empty, and results hold both under the author's names.
    """
    both = [d for d in problem.program.definitions if d.name in (OUTPUT, ERROR)]
    indices = {str(x) for d in both for x in d.lhs.args}
    known = problem.has_roles and indices <= {mu.name, CHANNEL.name, t.name}
    return frozenset(d.name for d in both) if known else frozenset()


def names_in_words(problem: Problem) -> str | None:
    """Return "name in results: author's name" pairs as text, separated by commas; None if none differ.

    Numbers without a role are left out, because results hold them under the author's names.
    """
    unnamed = {OUTPUT, ERROR, *problem.program.scalars} - numbers_by_role(problem)
    pairs = [
        f"{name}: {name_of_author}" for name, name_of_author in problem.author.items() if name not in unnamed
    ]
    return ", ".join(pairs) or None


def numbers_of_author(
    problem: Problem, found: Mapping[MemberKey, Array], leading: int = 0
) -> dict[str, Array]:
    """Return the numbers of a program that have no standard name, by the author's names.

    ``found`` holds computed numbers; a key is the name with the integers among the indices. The axes of its
    arrays are ``leading`` axes such as replicas, the time, and the indices that are not integers. A number is
    left out if ``found`` lacks its value at some of its indices.
    """
    values: dict[str, Array] = {}
    for label, variable in authored_variables(problem).items():
        if variable.pair is not None:
            continue
        whole: Array | None = None
        for e in problem.theory.scalars:
            args = [x for x in e.lhs.args if x != t]
            place = (str(e.lhs.func), tuple(int(x) for x in args if x.is_Integer))
            if place[0] != variable.name or place not in found:
                continue
            spans = _spans(problem, args, e.ranges)
            if not all(
                {*span} <= {*axis_values} for span, axis_values in zip(spans, variable.values, strict=False)
            ):
                continue
            x = found[place]
            lead = x.shape[: leading + 1]
            if prod(x.shape[leading + 1 :]) != prod(map(len, spans)):
                continue
            if whole is None:
                whole = np.full((*lead, *variable.shape), np.nan)
            at: tuple[Any, ...] = np.ix_(
                *(
                    [axis_values.index(k) for k in span]
                    for span, axis_values in zip(spans, variable.values, strict=True)
                )
            )
            whole[(..., *at)] = x.reshape(*lead, *map(len, spans))
        if whole is not None and not np.isnan(whole).any():
            values[label] = whole
    return values


def sample_index(program: Program) -> Symbol | None:
    """Return the index that counts samples in a program: that of the given input vectors, or mu.

    It is mu if the given vectors have it, or if they have no index (or are missing) and a number has mu. None
    if the given vectors have several indices without mu, or if no quantity depends on samples.
    """
    given = {x.name for x in program.given}
    read = (a for d in program.definitions for a in sympify(d.rhs).atoms(AppliedUndef))
    indices = {x for a in read if str(a.func) in given for x in a.args if x.is_Symbol and x != t}
    if mu in indices or not indices:
        carried = {x for d in program.definitions if d.name in program.scalars for x in d.lhs.args}
        return mu if mu in indices | carried else None
    return next(iter(indices)) if len(indices) == 1 else None


def _number(
    problem: Problem, name: str, sizes: dict[str, AxisValues]
) -> Iterator[tuple[str, AuthoredVariable]]:
    """Yield the name in results and the variable for a number of a program called ``name``.

    If its definitions at single integers do not fill an array, each of them gives a variable of its own.
    ``sizes`` collects the values along each dimension.
    """
    (label,) = problem.author_names([name])
    lines = [d for d in problem.program.definitions if d.name == name]
    spans_of_lines = [_spans(problem, [x for x in d.lhs.args if x != t], d.ranges) for d in lines]
    values = tuple(
        tuple(sorted({v for span in spans for v in span})) for spans in zip(*spans_of_lines, strict=True)
    )
    if len({spot for spans in spans_of_lines for spot in product(*spans)}) == prod(map(len, values)):
        yield label, _scalar(problem, lines, values, sizes)
        return
    for d, spans in zip(lines, spans_of_lines, strict=True):
        literals = [str(x) for x in d.lhs.args if x.is_Integer]
        yield "_".join([label, *literals]), _scalar(problem, [d], tuple(map(tuple, spans)), sizes)


def _scalar(
    problem: Problem,
    lines: Sequence[Definition],
    values: tuple[AxisValues, ...],
    sizes: dict[str, AxisValues],
) -> AuthoredVariable:
    """Return the variable for a number of a program, whose definitions are ``lines``.

    Its dimensions are time and its indices, which take the ``values``; these are recorded in ``sizes`` by the
    name of the dimension.
    """
    name, sample = lines[0].name, sample_index(problem.program)
    dims = []
    for k, index_values in enumerate(values):
        args = [[x for x in d.lhs.args if x != t][k] for d in lines]
        symbols = {x for a in args for x in a.free_symbols & {r.index for d in lines for r in d.ranges}}
        index = next(iter(symbols)) if len(symbols) == 1 else None
        if index is None:
            index = Symbol("index" if len(values) == 1 else f"index{k + 1}")
        dims.append(_dimension(problem, index, index_values, name, sample, sizes))
    return AuthoredVariable(name, ("time", *dims), values, ", ".join(str(d.lhs) for d in lines))


def _correlations(problem: Problem, sizes: dict[str, AxisValues]) -> Iterator[AuthoredVariable]:
    """Yield the variable of each correlation: an average of a vector at t times one at s.

    Correlations that finite networks cannot measure (:func:`_sides`), or with integers or sums in them, are
    left out. ``sizes`` collects the values along each dimension.
    """
    sample = sample_index(problem.program)
    for q in problem.theory.order_parameters:
        number, average = sympify(q.definition).as_independent(Average, as_Add=False)
        args = [x for x in q.symbol.args if x not in (t, s)]
        if q.kind != "correlation" or not isinstance(average, Average) or average.body.has(Sum):
            continue
        sides = _sides(average.body, {*args})
        if sides is None or not number.is_number:
            continue
        late, early = sides
        if not all(x.is_Symbol for x in args) or ell in args[1:] or q.symbol.args[-2:] != (t, s):
            continue
        layers, indices = args[: args[:1] == [ell]], args[args[:1] == [ell] :]
        values = _spans(problem, [*layers, *indices], q.ranges)
        lead = [_dimension(problem, x, n, q.name, None, sizes) for x, n in zip(layers, values, strict=False)]
        index_values = zip(indices, values[len(layers) :], strict=True)
        dims = (
            *lead,
            *TWO_TIMES,
            *(_dimension(problem, x, n, q.name, sample, sizes) for x, n in index_values),
        )
        yield AuthoredVariable(q.name, dims, values, f"{q.symbol} = {q.definition}", (number * late, early))


def _sides(body: Expr, indices: set[Expr]) -> tuple[Expr, Expr] | None:
    """Split the product ``x(t) y(s)`` in a correlation into its factors (x, y); None if it has another form.

    ``indices`` are the indices of the correlation. A factor without time, such as ``c(p)``, is part of x if x
    has the same index p, or else of y if y has it. The result is None if neither has it, as for
    ``c(p)*h(mu, t)*h(alpha, s)``, because finite networks cannot measure such a correlation.
    """
    factors = Mul.make_args(body)
    late, early = ([x for x in factors if x.has(a) and not x.has(b)] for a, b in ((t, s), (s, t)))
    letters = [{y for x in side for y in x.free_symbols} for side in (late, early)]
    if not early or not late:
        return None
    for x in factors:
        if x in late or x in early:
            continue
        fits = [
            side
            for side, symbols in zip((late, early), letters, strict=True)
            if x.free_symbols & indices <= symbols
        ]
        if x.has(t, s) or not fits:
            return None
        fits[0].append(x)
    return Mul(*late), Mul(*early)


def _spans(problem: Problem, args: Iterable[Expr], ranges: Iterable[IndexRange]) -> tuple[AxisValues, ...]:
    """Return, for each argument of a quantity, the integers that it takes.

    An argument is an integer, an index or a shifted index such as ``p + 1``; ``ranges`` are the ranges of
    indices.
    """
    numbers: Mapping[Any, float] = problem.values
    ends = {r.index: [int(sympify(x).subs(numbers)) for x in (r.lower, r.upper)] for r in ranges}
    spans: list[AxisValues] = []
    for x in map(sympify, args):
        index = next((i for i in ends if x.has(i)), None)
        if index is None:
            spans.append((int(x.subs(numbers)),))
        else:
            low, high = ends[index]
            spans.append(tuple(int(x.subs(index, k)) for k in range(low, high + 1)))
    return tuple(spans)


def _dimension(
    problem: Problem,
    index: Symbol,
    values: AxisValues,
    name: str,
    sample: Symbol | None,
    sizes: dict[str, AxisValues],
) -> str:
    """Return the name of the dimension of a result for an index of the program, and record its values.

    It is "sample" for the index ``sample``, ``"sample_"`` for the second index of samples in a correlation,
    and "layer" for the index of layers. For other indices it is the author's name, with ``_index`` appended
    if results use that name for another dimension. ``sizes`` maps names of dimensions to values of the index.
    ``_of_`` and the variable's ``name`` are appended if an earlier dimension of this name has other values,
    or if the values of an index of samples or layers do not count from one.
    """
    known = {ell: "layer"} if sample is None else {sample: "sample", primed(sample): "sample_", ell: "layer"}
    dim = str(known.get(index, problem.author_names([index.name])[0]))
    if dim in RESERVED and index not in known:
        dim = f"{dim}_index"
    # The standard dimensions, such as "sample" and "layer", count from one. An index of samples or layers
    # with other values therefore gets a dimension of its own, whose name also contains that of the variable.
    if index in known and values != tuple(range(1, len(values) + 1)):
        dim = f"{dim}_of_{name}"
    if sizes.setdefault(dim, values) != values:
        dim = f"{dim}_of_{name}"
        sizes[dim] = values
    return dim


def described(problem: Problem) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return dimensions and long name of each variable without a role, by its name in results."""
    return {label: (x.dims, x.long_name) for label, x in authored_variables(problem).items()}


def coordinates(problem: Problem) -> dict[str, AxisValues]:
    """Return the index values along each dimension of a result that the author of the program named."""
    axes: dict[str, AxisValues] = {}
    for x in authored_variables(problem).values():
        dims = [d for d in x.dims if d not in TWO_TIMES]
        axes |= {d: v for d, v in zip(dims, x.values, strict=True) if d not in RESERVED}
    return axes
