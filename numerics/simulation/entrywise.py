"""Training of finite weights by entrywise rules, such as Adam, with a history for each entry.

The gradient of a matrix is a product of few vectors, but the step that such a rule makes from it is not.
Steps are arrays of the shape of the weight, computed in blocks of columns that fit the cache of the
processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Dummy, Expr, Symbol, lambdify
from sympy.core.function import AppliedUndef

from derive.program import Entrywise
from derive.program.entrywise import A

from .formulas import Binder
from .rows import FormulaReaders, NetworkReader, NetworkState

Array = NDArray[np.float64]

BLOCK = 2**15
"""Number of entries of a weight that are updated together."""


@dataclass(frozen=True, eq=False)
class EntryLaw:
    """Training step of the entries of a weight by a rule that is nonlinear in each entry of the gradient.

    The gradient is the update of the program times ``units`` divided by ``outside``, the factor between
    gradient and update. ``function`` takes the gradient, the hidden states of the rule (such as moments of
    Adam; ``states`` is their number) and the values of ``numbers``; it returns the next states and the step
    Q. In each step the weight is multiplied by ``1 - decay``, and ``rate * outside / units`` times Q is
    added.
    """

    function: Callable[..., tuple[Any, ...]]
    numbers: tuple[NetworkReader, ...]
    states: int
    rate: NetworkReader
    decay: NetworkReader
    outside: NetworkReader
    units: float

    @classmethod
    def of(
        cls,
        rule: Entrywise,
        outside: Expr,
        units: float,
        binder: Binder,
        reading: FormulaReaders,
        env: Mapping[Any, int],
    ) -> EntryLaw:
        """Return the training step of an entrywise rule for one weight.

        ``outside`` is the factor between gradient and update, ``units`` the number by which the update is
        divided (N for a matrix, 1 for a vector), and ``env`` holds the indices of the weight. Parameters of
        the rule may depend on the time.
        """

        def reader(e: Expr) -> NetworkReader:
            """Return the function that evaluates the expression ``e`` on the state of the networks."""
            return reading.read([binder.bind(e, env)])

        rule_symbols = [A, *(x for x, _ in rule.states)]
        after = {x: e for x, e in rule.states}
        step = rule.Q if rule.before else rule.Q.xreplace(after)
        bodies = [*after.values(), step]
        read = sorted({x for e in bodies for x in leaves(e)} - {*rule_symbols}, key=str)
        slots = {x: Dummy(f"x{k}", real=True) for k, x in enumerate((*rule_symbols, *read))}
        function = lambdify([*slots.values()], [e.xreplace(slots) for e in bodies], "numpy")
        numbers = tuple(map(reader, read))
        rates = reader(rule.rate), reader(rule.decay)
        return cls(function, numbers, len(rule.states), *rates, reader(outside), units)

    def move(self, w: Array, states: list[Array], left: Array, right: Array, state: NetworkState) -> None:
        """Move the weights ``w`` (networks, rows[, columns]) by one step in place, and their hidden states.

        The update is ``left @ right``. ``state`` is that of the networks, which gives the values of
        parameters.
        """
        for k in range(len(w)):
            values = [of_network(x, state, k) for x in self.numbers]
            rate, decay, outside = (of_network(x, state, k) for x in (self.rate, self.decay, self.outside))
            one, other = left[min(k, len(left) - 1)], right[min(k, len(right) - 1)]
            for columns in _blocks(w[k].reshape(len(w[k]), -1).shape):
                part = _columns(w[k], columns)
                gradient = (one @ other[:, columns]) * (self.units / outside)
                old = [_columns(x[k], columns) for x in states]
                *new, step = self.function(gradient, *old, *values)
                for x, value in zip(old, new, strict=True):
                    x[...] = value
                if decay:
                    part *= 1 - decay
                part += (rate * outside / self.units) * step


def leaves(e: Expr) -> set[Expr]:
    """Return the symbols and applied functions in an expression.

    Those inside of the arguments of other applied functions are left out.
    """
    if isinstance(e, AppliedUndef | Symbol):
        return {e}
    return {x for arg in e.args for x in leaves(arg)}


def of_network(read: NetworkReader, state: NetworkState, k: int) -> float:
    """Return the number that ``read`` gives for the network at position ``k`` of the state.

    If it gives one number only, all networks share it.
    """
    values = read(state)[:, 0, 0]
    return float(values[min(k, len(values) - 1)])


def _columns(w: Array, columns: slice) -> Array:
    """Return a slice of the columns of a matrix as a view; a vector is returned as one column."""
    return w[:, None] if w.ndim == 1 else w[:, columns]


def _blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield slices that divide the columns of a matrix of this shape into blocks of about BLOCK entries."""
    size = max(1, BLOCK // shape[0])
    for first in range(0, shape[1], size):
        yield slice(first, min(first + size, shape[1]))
