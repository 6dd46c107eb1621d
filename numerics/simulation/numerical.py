"""Gradients found numerically: each weight is moved a little, and forward pass and loss are done again.

A check of the updates that a program derives.  The forward pass is all of the program that the loss needs;
nothing is taken from its backward fields, errors and updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sympy import Expr, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.program import IndexRange, Parametrization, Program
from derive.program.program import gaussian, parameter

from .formulas import Binder
from .leaves import Bound, Entry, Key
from .network import Network, Task
from .rows import Array, Reader, State
from .weights import Factors, Law, Training

STEP = 1e-4
"""How far a weight is moved, over the root of its variance at the start."""

AT_ONCE = 2**18
"""Entries of weights that are moved in one evaluation."""


@dataclass(frozen=True)
class Numerical:
    """The update ``U = -scale^2 N/n dloss/dM`` of raw weights ``theta = sqrt(n) M``, by central differences.

    ``n`` is the number of units that the matrix M is applied to (for a vector, 1): what
    :class:`~derive.program.Parametrization` says of raw weights that go down the gradient.
    """

    training: Training
    tasks: tuple[Task, ...]
    loss: Reader
    factor: float

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight."""
        return self.training.law.shape

    def factors(self, state: State) -> Factors:
        """The update, as the product of itself and one."""
        key = self.training.law.key
        networks = [self._of_one(state, k) for k in range(len(state.weights[key]))]
        update = np.stack(networks)
        if len(self.shape) == 1:
            return Factors(update[:, :, None], np.ones((1, 1, 1)))
        return Factors(update, np.eye(self.shape[1])[None])

    def _of_one(self, state: State, network: int) -> Array:
        law = self.training.law
        own = {k: x[min(network, len(x) - 1)][None] for k, x in state.weights.items()}
        fields = {b: x[network][None] for b, x in state.fields.items()}
        count, size = int(np.prod(law.shape)), max(1, AT_ONCE // int(np.prod(law.shape)))
        step, slope = STEP * (law.deviation or 1.0), np.empty(count)
        for first in range(0, count, size):
            entries = np.arange(first, min(first + size, count))
            sides = []
            for sign in (1.0, -1.0):
                moved = np.repeat(own[law.key], len(entries), axis=0).reshape(len(entries), -1)
                moved[np.arange(len(entries)), entries] += sign * step
                trial = replace(
                    state, weights={**own, law.key: moved.reshape(-1, *law.shape)}, start=state.start
                )
                trial.fields = {b: np.repeat(x, len(entries), axis=0) for b, x in fields.items()}
                trial.start = {b: x[network][None] for b, x in state.start.items()}
                for task in self.tasks:
                    trial.fields[task.block][:, task.rows] = task.value(trial)
                sides.append(np.broadcast_to(self.loss(trial)[:, 0, 0], len(entries)))
            slope[entries] = (sides[0] - sides[1]) / (2 * step)
        return -self.factor * slope.reshape(law.shape)


def numerical(
    binder: Binder,
    network: Network,
    moving: Sequence[Training],
    loss: Expr,
    parametrization: Parametrization,
) -> list[Training]:
    """The same weights, moved by what goes down ``loss``: an expression of the numbers of the program, summed
    over its indices, as :meth:`derive.program.Network.train` takes it.

    Raises ``ValueError`` for a loss of which no number of the program is part.
    """
    program = binder.program
    if not {a.func.__name__ for a in loss.atoms(AppliedUndef)} & set(program.scalars):
        raise ValueError(f"the loss {loss} contains no number of the program")
    bound = binder.bind(_summed(program, loss), {})
    value, needed = network.reading.read([bound]), _needed(network, bound)
    tasks = tuple(x for x in network.later if any(n.key in needed for n in x.nodes))
    scale = binder.number(parametrization.scale, {})
    found = []
    for x in moving:
        factor = scale**2 * binder.sizes.width * binder.number(parametrization.rate_of(x.law.key[0]), {})
        update = Numerical(x, tasks, value, factor / _units(binder, x.law, parametrization))
        found.append(replace(x, update=update))
    return found


def _units(binder: Binder, law: Law, parametrization: Parametrization) -> float:
    """How many units a matrix is applied to; one for a vector."""
    name, indices = law.key
    for m in map(gaussian, binder.program.matrices):
        if m.name == name:
            env = binder.member(m, indices)
            if m.cols.given:
                return float(binder.sizes.size(m.cols, env))
            return binder.sizes.width * binder.number(parametrization.fan_in_of(m), env)
    assert any(parameter(v).name == name for v in binder.program.vectors)
    return 1.0


def _summed(program: Program, loss: Expr) -> Expr:
    """The loss summed over the indices of the numbers in it."""
    ranges: dict[Symbol, IndexRange] = {}
    for a in loss.atoms(AppliedUndef):
        for d in program.definitions:
            if d.name == a.func.__name__:
                ranges |= {r.index: r for r in d.ranges if r.index in loss.free_symbols}
    return Sum(loss, *[r.limits for r in ranges.values()]) if ranges else loss


def _needed(network: Network, loss: Bound) -> set[Key]:
    """Every entry that a formula is computed from within a step."""
    nodes: Mapping[Key, Any] = {n.key: n for x in network.later for n in x.nodes}
    todo, seen = [x.key for x in loss.all_leaves() if isinstance(x, Entry) and not x.first], set()
    while todo:
        key = todo.pop()
        if key not in seen and key in nodes:
            seen.add(key)
            todo += [x.key for x in nodes[key].rhs.all_leaves() if isinstance(x, Entry) and not x.first]
    return seen
