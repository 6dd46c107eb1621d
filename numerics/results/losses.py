"""The loss that a program states, evaluated at each time: the values of ``train_loss`` and ``test_loss``.

A loss is an expression of one output, or of several numbers of a program, and of arrays, as
:meth:`derive.program.Network.train` takes it.  Its value is the mean over samples, summed over its other
indices.  The square loss ``(y - f)^2/2`` of one output is an exception: results hold the mean of ``(y -
f)^2``, twice the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Dummy, Expr, Function, Integer, S, Sum, Symbol, simplify, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import mu, t
from derive.program import Mean, Program
from derive.program.networks.options import SAMPLE_WEIGHT
from numerics.arrays import CPU
from numerics.experiment.integer_indices import Literals
from numerics.experiment.problem import Problem
from numerics.names import ERROR, OUTPUT
from numerics.quotients import logarithms_without_overflow
from numerics.results.program_names import authored_variables, sample_index

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SampleLoss:
    """Loss of one sample.

    Attributes
    ----------
    expression : Expr
        The loss as results hold it, of the output ``f`` and of arrays, at the indices of ``output``; for the
        square loss, twice the loss.
    output : AppliedUndef
        The output in it, such as ``f(mu, t)``, ``f(mu, c, t)``, or ``f(t)`` of a stream.
    difference : Expr, optional
        Target minus output, ``y(mu) - f(mu, t)``, if the error signal is proportional to it; else None.
    is_square : bool
        Whether the program's loss is half the square of the difference, times a weight of the sample if there
        is one.
    """

    expression: Expr
    output: AppliedUndef
    difference: Expr | None = None
    is_square: bool = False

    def mean(self, problem: Problem, outputs: Array, samples: slice) -> Array:
        """Return the mean loss of ``samples`` at each time, shape (T,).

        ``samples`` is a range of all samples of the problem, and ``outputs`` (time, sample[, channel]) are
        the outputs on them. Samples that are not trained on have the weight one.
        """
        return _mean(self.expression, self.output, problem, outputs, samples)

    @property
    def of_each_sample(self) -> bool:
        """Whether the loss of a sample depends on the output for this sample only, not for others."""
        outputs = [x for x in self.expression.atoms(AppliedUndef) if x.func == self.output.func]
        return all(x.args[k] == a for x in outputs for k, a in enumerate(self.output.args) if a == mu)

    def mean_square(self, problem: Problem, outputs: Array, samples: slice) -> Array | None:
        """Return the mean square of target minus output over ``samples``, at each time, shape (T,).

        ``outputs`` are those of these samples (time, sample[, channel]). Squares are summed over channels and
        have no weights. None if the error signal is not proportional to target minus output.
        """
        if self.difference is None:
            return None
        return _mean(self.difference**2, self.output, problem, outputs, samples)


@lru_cache(maxsize=256)
def loss_of(program: Program) -> SampleLoss | None:
    """Return the loss of one sample that a program states, as results hold it.

    A program that states no loss has the square loss if its error signal is target minus output, possibly
    times a weight of the sample.  None if results cannot hold the loss: it depends on several outputs or on
    fields, or it is unknown.

    >>> from derive.program import mlp
    >>> print(loss_of(mlp(2)).expression, "and", loss_of(mlp(2, objective="logistic")).expression)
    (-f(mu, t) + y(mu))**2 and log(1 + exp(-f(mu, t)*y(mu)))
    """
    output = next((d.lhs for d in program.definitions if d.name == OUTPUT), None)
    if output is None:
        return None
    stated = program.loss
    if stated is None:  # the error is minus the derivative of the loss by the output: integrate it
        error = next((d.rhs for d in program.definitions if d.name == ERROR), S.Zero)
        difference = _difference(error, output)
        if difference is None:
            return None
        stated = simplify(error / difference) * difference**2 / 2
    loss = _of_each_channel(stated, program)
    if not _readable(loss, output, program):
        return None
    difference = None if loss.has(Sum) else _difference(_error(loss, output), output)
    if difference is not None:
        weight = simplify(_error(loss, output) / difference)
        weighs = isinstance(weight, AppliedUndef) and str(weight.func) in program.constants
        # The weight of a square may be 1 or a given function of a symbol, such as rho(mu) of the sample mu,
        # but not rho(2), which is the same number for all samples.
        counts = weight == 1 or (weighs and weight.free_symbols)
        if counts and simplify(2 * loss - weight * difference**2) == 0:
            return SampleLoss(weight * difference**2, output, difference, is_square=True)
    return None if program.loss is None else SampleLoss(loss, output, difference)


def loss_in_words(problem: Problem, variables: Container[str]) -> str:
    """Return the formula of the loss whose mean is ``train_loss``, as text with the author's names.

    The text also names the indices over which the loss is summed. ``variables`` are the names that a result
    holds; without ``train_loss`` the text is the reason why it is missing. On random data the text is
    ``"Delta(t)^2"``.

    >>> from derive.program import mlp
    >>> given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}
    >>> problem = Problem.of(mlp(1, outputs=1), times=range(2), **given)
    >>> loss_in_words(problem, {"train_loss"})
    '(-f(mu, t) + y(mu))**2'
    """
    if "train_loss" not in variables:
        return _why_not_held(problem)
    if not problem.has_roles:
        loss, sample = _loss_of_numbers(problem.program) or S.Zero, sample_index(problem.program)
        ranges = {r.index for d in problem.program.definitions for r in d.ranges} & loss.free_symbols
        summed = [str(_as_written(x, problem)) for x in sorted(ranges - {sample, t}, key=str)]
        words = str(_as_written(loss, problem))
        return f"{words}, summed over {', '.join(summed)}" if summed else words
    sample_loss = loss_of(problem.program)
    if not problem.seen or sample_loss is None:
        return "Delta(t)^2"
    free = [
        x for x in sample_loss.output.args if x not in (mu, t) and x in sample_loss.expression.free_symbols
    ]
    sizes = {x: v for x, v in problem.values.items() if isinstance(x, Symbol) and x.is_integer}
    words = str(_as_written(sample_loss.expression.subs(sizes), problem))
    over = ", ".join(str(_as_written(x, problem)) for x in free)
    return f"{words}, summed over {over}" if free else words


def _why_not_held(problem: Problem) -> str:
    """Return the reason why a result holds no ``train_loss``."""
    loss = problem.program.loss
    if loss is None:
        return "train_loss is not held, because the program states no loss"
    kind = "is an average over units" if loss.has(Mean) else "is not evaluated here"
    return (
        f"train_loss is not held, because the loss {_as_written(loss, problem)} {kind}: results evaluate "
        "losses of outputs, numbers and arrays"
    )


def _as_written(e: Expr, problem: Problem) -> Expr:
    """Return an expression in the names that the author of the program uses."""
    names = problem.author
    written: Expr = e.replace(
        lambda x: isinstance(x, AppliedUndef) and str(x.func) in names,
        lambda x: Function(names[str(x.func)])(*x.args),
    )
    return written.xreplace(
        {x: Symbol(names[x.name], **x.assumptions0) for x in e.atoms(Symbol) if x.name in names}
    )


def _loss_of_numbers(program: Program) -> Expr | None:
    """Return the loss of a program if it depends on numbers and arrays only, not on units; else None."""
    loss, known = program.loss, {*program.scalars, *program.constants}
    if loss is None or loss.has(Mean) or not {str(x.func) for x in loss.atoms(AppliedUndef)} <= known:
        return None
    return loss


def loss_of_scalars(problem: Problem, scalars: Mapping[str, Array]) -> Array | None:
    """Return the loss of a program of several outputs at each time, averaged over samples, shape (T,).

    ``scalars`` are numbers of the program by their names in results, with axes time and then their indices
    (:func:`numerics.results.program_names.numbers_of_author`).  Indices other than that of samples are summed
    over. None if no loss is stated, if ``scalars`` is empty, or if the loss depends on more than these
    numbers, arrays and indices.
    """
    loss = _loss_of_numbers(problem.program)
    if loss is None or not scalars:
        return None
    numbers = {x: v for x, v in problem.values.items() if isinstance(x, Symbol)}
    function, leaves = _compiled(loss, tuple(numbers.items()))
    sample, sizes = sample_index(problem.program), {t: len(problem.times)}
    spans: dict[Any, Sequence[int]] = _index_values(problem)
    read: dict[Expr, tuple[Array, tuple[Expr, ...], list[int]]] = {}
    known = problem.arrays
    for leaf in sorted(leaves, key=lambda x: 2 if isinstance(x, Symbol) else str(x.func) in known):
        number = _read_number(leaf, problem, scalars, spans)
        if number is None:
            return None
        read[leaf] = number
        array, indices, _ = number
        sizes |= {x: n for x, n in zip(indices, array.shape, strict=True) if x.is_Symbol}
    axes = (t, *[x for x in sizes if x != t])
    with np.errstate(over="ignore"):
        value = np.asarray(function(*[_placed(*read[x][:2], axes, read[x][2]) for x in leaves]), dtype=float)
    whole = np.broadcast_to(value, [sizes[x] for x in axes])
    count = sizes.get(sample, 1) if sample is not None else 1
    total: Array = whole.reshape(len(whole), -1).sum(axis=1) / count
    return total


def _read_number(
    leaf: Expr,
    problem: Problem,
    scalars: Mapping[str, Array],
    spans: dict[Any, Sequence[int]],
) -> tuple[Array, tuple[Expr, ...], list[int]] | None:
    """Return the values of one leaf of a loss: a number or array of the program, the time, or an index.

    The result is the array, its indices, one for each axis, and, for each index that is an integer, the
    position along its axis at which the array is to be read. ``scalars`` holds numbers of the program by
    name, ``spans`` the values of each index, to which those of the leaf's indices are added. None if the leaf
    cannot be read, for example because one of its indices takes other values than in another leaf.
    """
    if isinstance(leaf, Symbol):
        if leaf == t:
            return problem.times, (t,), []
        return (np.array(spans[leaf], dtype=float), (leaf,), []) if leaf in spans else None
    name, indices = str(leaf.func), leaf.args
    variables = {x.name: (label, x) for label, x in authored_variables(problem).items() if x.pair is None}
    if name in variables:
        label, variable = variables[name]
        others = [x for x in indices[:-1] if x != t]
        if indices[-1] not in (t, 0) or label not in scalars or len(others) != len(variable.values):
            return None
        whole = scalars[label] if indices[-1] == t else np.repeat(scalars[label][:1], len(problem.times), 0)
        taken = {x: tuple(v) for x, v in zip(others, variable.values, strict=True) if x.is_Symbol}
        if any(tuple(spans.get(x, values)) != values for x, values in taken.items()):
            return None
        spans |= taken
        array, indices = _unshifted(whole, (t, *others), spans, [0, *(span[0] for span in variable.values)])
        places = zip(others, variable.values, strict=True)
        positions = [span.index(int(x)) for x, span in places if x.is_Integer]
    elif name in problem.arrays:
        array, indices = _unshifted(problem.arrays[name], indices, spans, _firsts(leaf, problem))
        positions = [problem.position(leaf, k) for k, x in enumerate(indices) if x.is_Integer]
    else:
        return None
    symbols = [x for x in indices if x.is_Symbol]
    readable = len(symbols) + len(positions) == len(indices) == array.ndim and len({*symbols}) == len(symbols)
    return (array, indices, positions) if readable else None


def _of_each_channel(loss: Expr, program: Program) -> Expr:
    """Return the loss of one channel if the loss is a sum over all channels of the output; else the loss."""
    ranges = [r.limits for d in program.definitions if d.name == OUTPUT for r in d.ranges]
    factor, total = loss.as_independent(Sum, as_Add=False)
    if isinstance(total, Sum) and all(tuple(limits) in map(tuple, ranges) for limits in total.limits):
        return factor * total.function
    return loss


@lru_cache(maxsize=256)
def _error(loss: Expr, output: AppliedUndef) -> Expr:
    """Return the error signal of a loss: minus its derivative with respect to the output."""
    x = Dummy("x", real=True)
    slope: Expr = -loss.xreplace({output: x}).diff(x).xreplace({x: output})
    return slope


def _difference(error: Expr, output: AppliedUndef) -> Expr | None:
    """Return target minus output for an error that is affine in the output; None for other errors.

    It is also None for an error that does not depend on ``output``, or depends on other entries of it.
    The target is the value of the output at which the error is zero.
    """
    x = Dummy("x", real=True)
    body = error.xreplace({output: x})
    slope = body.diff(x)
    if slope == 0 or slope.has(x) or body.has(Function(OUTPUT)):
        return None
    difference: Expr = simplify(body.xreplace({x: S.Zero}) / -slope) - output
    return difference


def _readable(loss: Expr, output: AppliedUndef, program: Program) -> bool:
    """Return whether a loss can be evaluated from the output and the given arrays of a program.

    The loss must contain the output. Every function in it must be the output or a given array, at integers or
    at indices of samples, channels, time or sums, which may be shifted but must not be repeated.
    """
    indices = {mu, t, *output.args, *(limit[0] for total in loss.atoms(Sum) for limit in total.limits)}
    for x in loss.atoms(AppliedUndef):
        known = str(x.func) in program.constants or str(x.func) == OUTPUT
        symbols = [y for a in x.args for y in a.free_symbols]
        whole = all(a in indices or isinstance(a, Integer) or _is_shifted(a) for a in x.args)
        if not known or not whole or not indices.issuperset(symbols) or len({*symbols}) < len(symbols):
            return False
    return bool(loss.has(output.func))


def _is_shifted(a: Expr) -> bool:
    """Return whether an index argument is shifted or scaled, such as ``p + 1`` or ``2*p`` for the index p."""
    return not a.is_Symbol and len(a.free_symbols) == 1 and not a.has(t, AppliedUndef)


def _mean(e: Expr, output: AppliedUndef, problem: Problem, outputs: Array, samples: slice) -> Array:
    """Return the mean over samples of an expression, summed over its other indices, shape (T,).

    Each leaf of the expression (output, array or index) becomes an array whose axes are time, sample and
    channels, of length one where the leaf does not depend on the axis.
    """
    channels = [x for x in output.args if x not in (mu, t)]
    numbers = {x: v for x, v in problem.values.items() if isinstance(x, Symbol)}
    function, leaves = _compiled(e, tuple(numbers.items()))
    axes = (t, mu, *channels)
    times = len(outputs)
    ends = {x: int(low) for x, low in _lowest_of_output(problem).items()}
    first = first_sample(problem, samples)
    spans = {x: range(ends.get(x, 1), ends.get(x, 1) + outputs.shape[axes.index(x)]) for x in channels}
    spans[mu] = range(first, first + outputs.shape[1])
    read = []
    for leaf in leaves:
        if isinstance(leaf, Symbol):  # an index that is a number in the loss, such as t in exp(-t)
            at = problem.times[:times] if leaf == t else np.array(spans[leaf], dtype=float)
            read.append(_placed(at, (leaf,), axes))
        elif str(leaf.func) == OUTPUT:
            places = dict(zip(output.args, leaf.args, strict=True))
            indices = (t, *(places.get(x, x) for x in axes[1:]))
            firsts = [0, *(spans[x][0] for x in axes[1:])]
            at_zero = places.get(t) == 0
            array, indices = _unshifted(outputs[:1] if at_zero else outputs, indices, spans, firsts)
            literal = [k for k, x in enumerate(indices) if x.is_Integer]
            read.append(_placed(array, indices, axes, [int(indices[k]) - firsts[k] for k in literal]))
        else:
            x = np.ones_like(problem.arrays[str(leaf.func)]) if _weighs(leaf, samples, problem) else None
            whole = problem.arrays[str(leaf.func)] if x is None else x
            array, indices = _unshifted(whole, leaf.args, spans, _firsts(leaf, problem))
            array = array[tuple(slice(times) if x == t else slice(None) for x in indices)]
            positions = [problem.position(leaf, k) for k, a in enumerate(leaf.args) if a.is_Integer]
            read.append(_placed(array, indices, axes, positions))
    with np.errstate(over="ignore"):
        value = np.asarray(function(*read), dtype=float)
    free = e.free_symbols
    lengths = zip(channels, outputs.shape[2:], strict=True)
    shape = (times, outputs.shape[1], *[n if c in free else 1 for c, n in lengths])
    mean: Array = np.broadcast_to(value, shape).reshape(*shape[:2], -1).sum(axis=2).mean(axis=1)
    return mean


def _weighs(leaf: AppliedUndef, samples: slice, problem: Problem) -> bool:
    """Return whether the array ``leaf`` is the weight of samples, and ``samples`` are held out of training.

    Held-out samples have the weight one.
    """
    return str(leaf.func) == SAMPLE_WEIGHT and (samples.start or 0) >= problem.seen


@lru_cache(maxsize=64)
def _compiled(
    e: Expr, numbers: tuple[tuple[Symbol, float], ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the expression as a compiled function of arrays, and the leaves that are its arguments.

    Leaves are applied functions such as ``y(mu)``, and indices that stand alone. ``numbers`` are inserted,
    and sums are written out.
    """
    whole = e.subs(dict(numbers)).doit()
    leaves = sorted({*whole.atoms(AppliedUndef), *_bare(whole)}, key=str)
    slots = tuple(Dummy(f"x{k}", real=True) for k in range(len(leaves)))
    body = logarithms_without_overflow(whole.xreplace(dict(zip(leaves, slots, strict=True))))
    return CPU.function(slots, body), tuple(leaves)


def _bare(e: Expr) -> set[Any]:
    """Return the indices that an expression contains as numbers, not only as arguments of functions.

    In ``p*y(mu)`` this is p.
    """
    slots = {x: Dummy() for x in e.atoms(AppliedUndef)}
    return {*e.xreplace(slots).free_symbols} - {*slots.values()}


def _firsts(leaf: AppliedUndef, problem: Problem) -> list[int]:
    """Return, for each axis of the array ``leaf``, the index value to which its first entry belongs."""
    return [problem.literals.get((str(leaf.func), k), Literals()).first for k in range(len(leaf.args))]


def _index_values(problem: Problem) -> dict[Any, Sequence[int]]:
    """Return the values of the indices whose range is the same in all definitions that have the index."""
    values: dict[Any, set[tuple[Expr, Expr]]] = {}
    for r in (r for d in problem.program.definitions for r in d.ranges):
        low, high = (sympify(x).subs(problem.values) for x in (r.lower, r.upper))
        values.setdefault(r.index, set()).add((low, high))
    same = {index: next(iter(ends)) for index, ends in values.items() if len(ends) == 1}
    return {x: range(int(low), int(high) + 1) for x, (low, high) in same.items() if (high - low).is_number}


def first_sample(problem: Problem, samples: slice) -> int:
    """Return the value of the index of samples at the first of ``samples``, a slice of positions from 0."""
    return int(_lowest_of_output(problem).get(mu, S.One)) + (samples.start or 0)


def _lowest_of_output(problem: Problem) -> dict[Symbol, Expr]:
    """Return the smallest value of each index of the output, as a number by index."""
    ranges = [r for d in problem.program.definitions if d.name == OUTPUT for r in d.ranges]
    return {r.index: sympify(r.lower).subs(problem.values) for r in ranges}


def _unshifted(
    array: Array, indices: tuple[Expr, ...], spans: Mapping[Any, Sequence[int]], firsts: Sequence[int]
) -> tuple[Array, tuple[Expr, ...]]:
    """Return an array whose axes belong to plain indices, from one with shifted indices such as ``p + 1``.

    An axis with the index ``p + 1`` is read at the shifted values of p, and has the index p then; the new
    indices are returned, too. ``spans`` maps an index to its values, at which an axis of a plain index is
    read as well; an axis whose index is not in it stays whole. ``firsts`` holds for each axis the index value
    of its first entry. Shifted indices of outputs are periodic; arrays are long enough
    (:func:`numerics.experiment.given_data.checked_arrays`).
    """
    plain = list(indices)
    for k, a in enumerate(indices):
        (x,) = a.free_symbols or (None,)
        if x not in spans or a.is_Integer:
            continue
        values = [int(a.subs(x, n)) - firsts[k] for n in spans[x]]
        array, plain[k] = np.take(array, values, axis=k, mode="wrap"), x
    return array, tuple(plain)


def _placed(
    array: Array, indices: tuple[Expr, ...], axes: tuple[Expr, ...], positions: Sequence[int] = ()
) -> Array:
    """Return an array with its axes in the order of ``axes``, so that arrays can be multiplied.

    ``indices`` are the indices of its axes. An axis that the array lacks has length one. An axis whose index
    is an integer is removed: the array is read there at one position, the next one of ``positions``.
    """
    literal = [k for k, x in enumerate(indices) if isinstance(x, Integer)]
    for k, position in reversed(list(zip(literal, positions, strict=True))):
        array = np.take(array, position, axis=k)
    present = [x for x in indices if not isinstance(x, Integer)]
    array = array.transpose([present.index(x) for x in axes if x in present])
    return array.reshape(
        [array.shape[[y for y in axes if y in present].index(x)] if x in present else 1 for x in axes]
    )
