"""Any derived theory, evaluated at a few steps, samples and layers straight from its expressions.

It is slow, one path for all theories, and shares nothing with the marches, so that it judges them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import lcm
from typing import Any, Literal

import numpy as np
from sympy import Symbol

from derive.errors import NotDerived
from derive.program.nonlinear import require_linear_rules
from derive.theory import Equation, OrderParameter, Theory
from numerics.errors import Unserved, diverged_at
from numerics.experiment.checks import finite_number
from numerics.lowering.indices import TIMES, RealNumber
from numerics.names import MemberKey
from numerics.solver.direct.algebras import Linear, Particles
from numerics.solver.direct.interpret import Interpreter, NonlinearTheory, RandomVariables
from numerics.solver.direct.layout import Constants, Datum, Family, Layout, Member
from numerics.solver.evaluated import Evaluated, averaged, stacked

EvaluationMethod = Literal["auto", "linear", "particles"]
EntriesByIndex = dict[tuple[int, ...], Any]


def evaluate(
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
    """The order parameters and scalars of ``theory`` at times ``0..steps-1``, straight from its expressions.

    The theory must be in discrete time and at integer depth.  ``values`` gives symbols numbers (``{eta: 0.1,
    P: 3}``); ``data`` gives what no equation determines: targets, kernels of the data, attributes (one number
    for each unit), memory weights, as arrays, mappings or functions of the indices
    (:class:`~numerics.solver.direct.layout.Constants`).

    ``linear`` is exact and takes theories whose equations are linear in the fields, and whose averages are of
    two of them; ``particles`` takes any, with ``samples`` paths in each of ``replicas`` independent
    solutions, whose spread gives the standard errors; their common bias is of order 1/samples.  ``auto`` is
    linear where it can be.

    Raises :class:`~numerics.errors.Unserved` for a flow, and for an activation that is not
    given;
    :class:`~numerics.errors.Diverged` with the step;
    :class:`~numerics.solver.direct.interpret.CyclicDemand` for a theory in which an entry is needed to
    compute itself; ValueError for missing values and data, for a covariance that is not positive and for a
    response that is not causal where the theory says that it is.

    >>> from derive.theory import mean_field
    >>> from derive.program import P, eta, gamma0, mlp
    >>> solved = evaluate(mean_field(mlp(2)), steps=2, values={eta: 0.5, gamma0: 1, P: 1},
    ...                   data={"K_x": [[1.0]], "y": [1.0]})
    >>> solved.method, solved.value("Delta").tolist(), solved.value("H", 2)[0, 0].tolist()
    ('linear', [[1.0], [-0.5]], [[1.0, 1.0], [1.0, 2.25]])
    """
    if steps < 1 or samples < 2 or replicas < 2:
        raise ValueError(f"steps = {steps}, samples = {samples}, replicas = {replicas}: at least 1, 2 and 2")
    for name, value in (values or {}).items():
        finite_number(f"values.{name}", value)
    layout = Layout(theory, {str(k): v for k, v in (values or {}).items()})
    constants = Constants(layout, data or {})
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
        rounded = -(-samples // units) * units  # every unit is met equally often
        replica = partial(Particles, samples=rounded, dimensions=capacity)
        runs = [
            tables(entries(layout, constants, steps, partial(replica, seed=own))[0], float)
            for own in np.random.SeedSequence(seed).spawn(replicas)
        ]
    every = stacked(runs)
    return Evaluated("particles", *averaged(every), runs=every)


def entries(
    layout: Layout, constants: Constants, steps: int, algebra: Callable[[Interpreter], RandomVariables]
) -> tuple[dict[MemberKey, EntriesByIndex], Interpreter]:
    """Every scalar, order parameter and observable, and the interpreter that knows the fields; time goes
    forward, so that demands stay shallow.
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
    found: dict[MemberKey, EntriesByIndex] = {}
    with _deep_recursion():
        for now, (kind, name, family) in product(range(steps), families):
            for key, member in family.members.items():
                literal, axes = _axes(key, member)
                own = found.setdefault((name, literal), {})
                for times in _times(len(family.places), now):
                    filled = list(key)
                    for place, x in zip(family.places, times, strict=True):
                        filled[place] = x
                    try:
                        value = interpreter.demand(kind, name, tuple(filled))  # type: ignore[arg-type]
                    except np.linalg.LinAlgError:  # responses to sources that are not finite
                        raise diverged_at(now, name) from None
                    # a series is no number; zeros times what is not finite would ask for what is to come
                    if isinstance(value, float) and not np.isfinite(value):
                        raise diverged_at(now, name, value)
                    _check_causal(member.item, times, value)
                    if (name, tuple(filled)) in interpreter.open:
                        value = np.nan
                    own[(*times, *axes) if kind == "scalars" else (*axes, *times)] = value
    return found, interpreter


def _check_causal(item: Any, times: tuple[int, ...], value: Any) -> None:
    """A response that the theory's sums over the past leave out must indeed be zero."""
    if isinstance(item, OrderParameter) and item.kind == "response" and len(times) == 2 and value != 0:
        late = times[1] >= times[0] if item.causal == "strict" else times[1] > times[0]
        if late:
            raise ValueError(
                f"{item.symbol} is {value:.3g} at t = {times[0]}, s = {times[1]}; the theory takes it to be "
                "zero there"
            )


def _times(count: int, now: int) -> Iterator[tuple[int, ...]]:
    """The times at which an entry is first complete at step ``now``: the later of two is ``now``."""
    if count < 2:
        yield (now,) * count
        return
    for past in range(now):
        yield now, past
        yield past, now
    yield now, now


def _axes(key: tuple[int | None, ...], member: Member) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The arguments that are fixed in the theory (the layer), and those that run."""
    item: Any = member.item
    symbol: Any = item.lhs if isinstance(item, Equation) else item.symbol
    pairs = [(x, a) for x, a in zip(key, symbol.args, strict=True) if x is not None and a not in TIMES]
    return tuple(x for x, a in pairs if a.is_Integer), tuple(x for x, a in pairs if not a.is_Integer)


def tables(found: Mapping[MemberKey, EntriesByIndex], kind: type) -> dict[MemberKey, Any]:
    """Entries by index as arrays, whose axes run through the integers that there are; absent ones are NaN."""
    arrays: dict[MemberKey, Any] = {}
    for place, own in found.items():
        axes = [sorted(set(x)) for x in zip(*own, strict=True)]
        arrays[place] = np.full([len(axis) for axis in axes], np.nan, dtype=kind)
        for index, value in own.items():
            arrays[place][tuple(axis.index(x) for axis, x in zip(axes, index, strict=True))] = value
    return arrays


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Demands within a step go through all layers, one Python call inside another."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 20_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


__all__ = ["Evaluated", "evaluate"]
