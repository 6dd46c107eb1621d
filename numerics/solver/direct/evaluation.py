"""Direct evaluation of theories in steps, with linear training rules, at few steps, samples and layers.

It is slow, uses one code path for all theories, and serves as the reference of the marches. With them it
shares compiled functions of expressions (:mod:`numerics.lowering.expressions`), but no code that solves
equations. The input are a theory, numbers and data; the output are order parameters and scalars at all times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import lcm
from operator import index
from typing import Any, Literal, get_args

import numpy as np
from sympy import Symbol

from derive.errors import NotDerived
from derive.program.nonlinear import require_linear_rules
from derive.theory import Equation, OrderParameter, Theory
from numerics.errors import Unserved, diverged_at, require_choice, require_whole
from numerics.experiment.checks import by_name, finite_number
from numerics.experiment.given_data import require_shapes
from numerics.experiment.parameter_domains import require_in_domains_at_steps
from numerics.lowering.indices import TIMES, RealNumber
from numerics.names import MemberKey
from numerics.solver.direct.algebras import Linear, Particles
from numerics.solver.direct.interpret import Interpreter, NonlinearTheory, RandomVariables
from numerics.solver.direct.layout import Constants, Datum, Family, Layout, Member
from numerics.solver.named_values import Evaluated, averaged, stacked

EvaluationMethod = Literal["auto", "linear", "particles"]
EntriesByIndex = dict[tuple[int, ...], Any]


def evaluate(  # noqa: PLR0913 - public signature
    theory: Theory,
    *,
    steps: int,
    values: Mapping[Symbol | str, RealNumber] | None = None,
    data: Mapping[str, Datum] | None = None,
    method: EvaluationMethod = "auto",
    samples: int = 2**14,
    replicas: int = 8,
    seed: int = 0,
) -> Evaluated:
    """Evaluate the order parameters and scalars of a theory at times ``0..steps-1``.

    Parameters
    ----------
    theory : Theory
        Theory in discrete time; a symbolic depth needs an integer in ``values``.
    steps : int
        Number of times.
    values : dict, optional
        Numbers for symbols, such as ``{eta: 0.1, P: 3}``.
    data : dict, optional
        Functions that no equation determines (targets, kernels of the data, attributes with one number for
        each unit, memory weights), by name, as arrays, mappings or functions of the indices
        (:class:`~numerics.solver.direct.layout.Constants`).
    method : {"auto", "linear", "particles"}
        ``"linear"`` is exact, for theories whose equations are linear in the fields and whose averages are of
        two fields. ``"particles"`` samples paths, also for other theories. ``"auto"`` takes ``"linear"`` if
        possible.
    samples : int
        Number of paths of each replica, rounded up to a common multiple of the numbers of units with
        attributes. Like ``replicas`` and ``seed``, it has no effect on an exact solution.
    replicas : int
        Number of independent solutions by sampled paths, from which standard errors follow; their common bias
        is of order 1/samples.
    seed : int
        Seed of the paths.

    Returns
    -------
    Evaluated
        Values and standard errors by name and layer.

    Raises
    ------
    Unserved
        For a flow, for an activation without an expression, for a training rule that is not linear in the
        updates, and with ``"linear"`` for a theory that is not linear.
    Diverged
        If the solution diverges; the message states the step.
    CyclicDemand
        If a quantity depends on itself at the same indices and times.
    ValueError
        For missing values or data, for a covariance that is not positive semidefinite, for a response that
        is not causal although the theory states that it is, for ``steps`` below 1, for ``samples`` or
        ``replicas`` below 2, for a negative ``seed``, for an unknown ``method``, and for a parameter of a
        training rule that depends on the time and leaves its interval at a step.

    Examples
    --------
    >>> from derive.theory import mean_field
    >>> from derive.program import P, eta, gamma0, mlp
    >>> solved = evaluate(mean_field(mlp(2)), steps=2, values={eta: 0.5, gamma0: 1, P: 1},
    ...                   data={"K_x": [[1.0]], "y": [1.0]})
    >>> solved.method, solved.value("Delta").tolist(), solved.value("H", 2)[0, 0].tolist()
    ('linear', [[1.0], [-0.5]], [[1.0, 1.0], [1.0, 2.25]])
    """
    for name, count, least in (("steps", steps, 1), ("samples", samples, 2), ("replicas", replicas, 2)):
        require_whole(name, count, least, f"must be at least {least}")
    require_whole("seed", seed, 0, "must not be negative")
    require_choice("method", method, get_args(EvaluationMethod))
    named = by_name("values", values or {})
    layout = Layout(theory, {name: _number(f"values.{name}", value) for name, value in named.items()})
    constants = Constants(layout, data or {})
    require_shapes(theory.program, constants.arrays, layout.values, steps)
    require_in_domains_at_steps(theory.program, values, data, steps)
    capacity = steps * sum(len(f.members) for f in layout.sources.values())
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if method != "particles":
            try:
                exact, _ = entries(layout, constants, steps, partial(Linear, capacity=capacity))
                return Evaluated("linear", *averaged(stacked([tables(exact, float)])))
            except NonlinearTheory:
                if method == "linear":
                    raise
        units = lcm(*[len(constants.attribute(a)) for a in layout.attributes], 1)
        # Round up to a common multiple of the numbers of units that have given attributes, so that all units
        # of a population occur equally often.
        rounded = -(-samples // units) * units
        replica = partial(Particles, samples=rounded, dimensions=capacity)
        runs = [
            tables(entries(layout, constants, steps, partial(replica, seed=child))[0], float)
            for child in np.random.SeedSequence(seed).spawn(replicas)
        ]
    all_runs = stacked(runs)
    return Evaluated("particles", *averaged(all_runs), runs=all_runs)


def entries(
    layout: Layout, constants: Constants, steps: int, algebra: Callable[[Interpreter], RandomVariables]
) -> tuple[dict[MemberKey, EntriesByIndex], Interpreter]:
    """Return all scalars, order parameters and observables of a theory, and the interpreter.

    The first result maps keys (name, integers that the theory fixes, such as the layer) to values by indices
    and times; a scalar has its time first, other quantities have their times last. A response that is
    undetermined, because sources determine each other, is NaN. ``algebra`` chooses the representation of
    random values. Times are evaluated in increasing order, so that the recursion stays shallow. Raises
    Diverged with the step if a value is not finite, and Unserved for a training rule that is not linear in
    the updates.
    """
    try:
        require_linear_rules(layout.theory.program, "the reference solver")
    except NotDerived as reason:
        raise Unserved(str(reason)) from None
    interpreter = Interpreter(layout, constants)
    interpreter.algebra = algebra(interpreter)
    families: list[tuple[str, str, Family]] = [
        (kind, *x) for kind in ("scalars", "order", "observables") for x in getattr(layout, kind).items()
    ]
    results: dict[MemberKey, EntriesByIndex] = {}
    with _deep_recursion():
        for now, (kind, name, family) in product(range(steps), families):
            for key, member in family.members.items():
                literal, axes = _axes(key, member)
                by_index = results.setdefault((name, literal), {})
                for times in _times(len(family.places), now):
                    filled = list(key)
                    for place, x in zip(family.places, times, strict=True):
                        filled[place] = x
                    try:
                        value = interpreter.demand(kind, name, tuple(filled))  # type: ignore[arg-type]
                    except np.linalg.LinAlgError:  # from Stein's lemma, for covariances that are not finite
                        raise diverged_at(now, name) from None
                    # Values may be series, so that only floats are tested. A float that is infinite or NaN
                    # ends the whole solution here. Its product with zero would be NaN. In a product,
                    # the factors after NaN are evaluated, such as entries at later times. The factors after
                    # zero are not evaluated.
                    if isinstance(value, float) and not np.isfinite(value):
                        raise diverged_at(now, name, value)
                    _check_causal(member.item, times, value)
                    if (name, tuple(filled)) in interpreter.undetermined:
                        value = np.nan
                    by_index[(*times, *axes) if kind == "scalars" else (*axes, *times)] = value
    return results, interpreter


def _check_causal(item: Any, times: tuple[int, ...], value: Any) -> None:
    """Raise ValueError if a response is nonzero at times at which the theory takes it to be zero.

    These are s > t, and also s = t for a strictly causal response. ``item`` is the equation or order
    parameter of the theory that defines the quantity, ``times`` its times (t, s), and ``value`` its value.
    Quantities other than responses are not checked.
    """
    if isinstance(item, OrderParameter) and item.kind == "response" and len(times) == 2 and value != 0:
        late = times[1] >= times[0] if item.causal == "strict" else times[1] > times[0]
        if late:
            raise ValueError(
                f"the response {item.symbol} is {value:.3g} at t = {times[0]}, s = {times[1]}, where the "
                "theory assumes that it is zero"
            )


def _times(count: int, now: int) -> Iterator[tuple[int, ...]]:
    """Yield the times of all values of a quantity that can be computed first at step ``now``.

    ``count`` is the number of time arguments of the quantity: without times the empty tuple, with one time
    ``(now,)``, with two times all pairs (t, s) whose later time is ``now``.
    """
    if count < 2:
        yield (now,) * count
        return
    for past in range(now):
        yield now, past
        yield past, now
    yield now, now


def _axes(key: tuple[int | None, ...], member: Member) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split the integer arguments of a quantity, without its times, into two tuples.

    The first are integers that stand in the symbol of the theory itself, such as the layer 2 in
    ``Phi(2, mu, alpha)``; the second are the values of its other indices, such as samples. ``key`` holds all
    arguments, with None for times, and ``member`` is the quantity.
    """
    item: Any = member.item
    symbol: Any = item.lhs if isinstance(item, Equation) else item.symbol
    pairs = [(x, a) for x, a in zip(key, symbol.args, strict=True) if x is not None and a not in TIMES]
    return tuple(x for x, a in pairs if a.is_Integer), tuple(x for x, a in pairs if not a.is_Integer)


def _number(key: str, given: object) -> RealNumber:
    """Return a number of a user as an int if it is an integer of Python, NumPy or SymPy, else as a float.

    Raises SpecError if it is not a finite real number; the error names it by ``key``.
    """
    value = finite_number(key, given)
    try:
        return index(given)  # type: ignore[arg-type]
    except TypeError:
        return value


def tables(values_by_key: Mapping[MemberKey, EntriesByIndex], kind: type) -> dict[MemberKey, Any]:
    """Return values by index as arrays; missing entries are NaN.

    Values of an index that occur are numbered in increasing order. ``values_by_key`` maps each key (name,
    fixed integers) to values by indices and times; ``kind`` is the type of the array elements.
    """
    arrays: dict[MemberKey, Any] = {}
    for place, by_index in values_by_key.items():
        axes = [sorted(set(x)) for x in zip(*by_index, strict=True)]
        arrays[place] = np.full([len(axis) for axis in axes], np.nan, dtype=kind)
        for indices, value in by_index.items():
            arrays[place][tuple(axis.index(x) for axis, x in zip(axes, indices, strict=True))] = value
    return arrays


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Context manager: raise the recursion limit of Python while the context lasts.

    The evaluation of a step recurses through all layers.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 20_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


__all__ = ["Evaluated", "evaluate"]
