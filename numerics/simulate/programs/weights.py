"""Weights of one network: how they are drawn, and how their rule moves them in one step.

The recursion of each rule is carried out as it is written; nothing is taken from its memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derive.program import (
    GaussianVector,
    GradientDescent,
    GradientFlow,
    Momentum,
    MomentumFlow,
    TrainedMatrix,
    TrainedVector,
)
from derive.program.program import gaussian, parameter

from .formulas import Binder, indices, members
from .leaves import Applied, Bound, Key, State

Array = NDArray[np.float64]

RULES = (GradientDescent, GradientFlow, Momentum, MomentumFlow)


@dataclass(frozen=True)
class Law:
    """One member of a family of Gaussian weights: entries of standard deviation ``deviation``, M_ij correlated
    with M_ji by ``symmetry``.
    """

    key: Key
    shape: tuple[int, ...]
    deviation: float
    symmetry: float = 0.0
    fresh: bool = False

    def draw(self, rng: np.random.Generator) -> Array:
        """One sample."""
        x = rng.standard_normal(self.shape)
        if self.symmetry != 0:
            even, odd = np.sqrt((1 + self.symmetry) / 2), np.sqrt((1 - self.symmetry) / 2)
            diagonal = x.diagonal().copy()
            x = (even * (x + x.T) + odd * (x - x.T)) / np.sqrt(2)
            np.fill_diagonal(x, diagonal)
        return np.asarray(self.deviation * x)


@dataclass(frozen=True)
class Piece:
    """One term of an update: ``coefficient * left right^T``, or ``coefficient * left`` for a vector."""

    coefficient: Bound
    left: Bound
    right: Bound | None


@dataclass(frozen=True)
class Training:
    """How one weight moves: its rule's numbers, its update divided by ``scale``, its noise."""

    law: Law
    rule: Any
    numbers: Mapping[str, Bound]
    pieces: Sequence[Piece]
    scale: float

    def update(self, state: State) -> Array:
        """U at this step."""
        shape = self.law.shape
        coefficients = np.array([_scalar(p.coefficient, state) for p in self.pieces])
        if not self.pieces:
            return np.zeros(shape)
        left = np.stack([np.broadcast_to(p.left.value(state), shape[:1]) for p in self.pieces], axis=1)
        if len(shape) == 1:
            return np.asarray(left @ coefficients)
        right = np.stack([np.broadcast_to(p.right.value(state), shape[1:]) for p in self.pieces if p.right])
        return np.asarray((left * (coefficients / self.scale)) @ right)

    def move(self, state: State, dt: float, rng: np.random.Generator) -> None:
        """One step of the rule, of length ``dt`` where time flows (Euler, all of the right side before it)."""
        key, rule = self.law.key, self.rule
        w, u = state.weights[key], self.update(state)
        n = {name: _scalar(x, state) for name, x in self.numbers.items()}
        if isinstance(rule, GradientDescent):
            new = (1 - n["decay"]) * w + n["rate"] * u + self.noise(n["diffusion"], rng)
        elif isinstance(rule, GradientFlow):
            new = w + dt * (n["rate"] * u - n["decay"] * w) + self.noise(n["diffusion"] * dt, rng)
        elif isinstance(rule, Momentum):
            q = n["momentum"] * state.velocities.get(key, np.zeros_like(w)) + u
            state.velocities[key] = q
            new = (1 - n["decay"]) * w + n["rate"] * q
        else:
            assert isinstance(rule, MomentumFlow)
            q = state.velocities.get(key, np.zeros_like(w))
            state.velocities[key] = q + dt * (n["rate"] * u - q) / n["momentum"]
            new = w + dt * q
        state.weights[key] = new

    def noise(self, variance: float, rng: np.random.Generator) -> Array | float:
        """Noise with the law of the weight at initialisation, its variance multiplied by ``variance``."""
        return float(np.sqrt(variance)) * self.law.draw(rng) if variance != 0 else 0.0


def laws(binder: Binder) -> list[Law]:
    """Every weight of the program, in its order: matrices, then vectors; members in the order of indices."""
    found = []
    for m in map(gaussian, binder.program.matrices):
        for env in members(m, binder.values):
            shape = (binder.sizes.size(m.rows, env), binder.sizes.size(m.cols, env))
            deviation = np.sqrt(binder.number(m.variance, env) / binder.sizes.scale(m, env))
            tau = binder.number(m.symmetry, env)
            if not -1 <= tau <= 1:
                raise ValueError(f"matrix {m.name} has symmetry {tau:g}: a correlation lies in -1..1")
            found.append(Law((m.name, tuple(env.values())), shape, float(deviation), tau, m.fresh))
    for v in map(parameter, binder.program.vectors):
        for env in members(v, binder.values):
            deviation = np.sqrt(binder.number(v.variance, env))
            size = (binder.sizes.size(v.population, env),)
            found.append(Law((v.name, tuple(env.values())), size, float(deviation), fresh=v.fresh))
    return found


def trainings(binder: Binder, every: Sequence[Law]) -> list[Training]:
    """How each trained weight moves.  ``ValueError`` for a rule whose recursion is not known here."""
    by_key = {x.key: x for x in every}
    found = []
    for w in binder.program.trained():
        if type(w.rule) not in RULES:
            names = ", ".join(r.__name__ for r in RULES)
            raise ValueError(f"{w.name} is trained by {w.rule!r}: only {names} can be simulated")
        names = [x for x in ("rate", "decay", "diffusion", "momentum") if hasattr(w.rule, x)]
        for env in members(w.initial, binder.values):
            law = by_key[w.name, tuple(env.values())]
            numbers = {x: binder.bind(getattr(w.rule, x), env) for x in names}
            pieces = [_piece(binder, w, inner) for inner in binder.values.members(w.update.over, env)]
            scale = 1.0 if isinstance(w, TrainedVector) else binder.sizes.scale(w.initial, env)
            found.append(Training(law, w.rule, numbers, pieces, scale))
    return found


def start(every: Sequence[Law], rng: np.random.Generator, initial: Mapping[Key, Array]) -> dict[Key, Array]:
    """The weights at the start: those of ``initial`` as given, the others drawn (fresh ones come later)."""
    return {
        x.key: np.array(initial[x.key], dtype=float) if x.key in initial else x.draw(rng)
        for x in every
        if not x.fresh
    }


def refresh(
    every: Sequence[Law], state: State, rng: np.random.Generator, initial: Mapping[Key, Array]
) -> None:
    """Draw the fresh weights of this step."""
    for x in every:
        if x.fresh:
            state.weights[x.key] = initial[x.key][state.step] if x.key in initial else x.draw(rng)


def chosen(every: Sequence[Law], given: Mapping[str, Any], steps: int) -> dict[Key, Array]:
    """Weights chosen by the user, by key: an array for a single weight, a mapping from members for a family.

    Fresh weights have the step as first axis.  Raises ``ValueError`` for names and shapes that do not fit.
    """
    found: dict[Key, Array] = {}
    known = {x.key: x for x in every}
    for name, value in given.items():
        items = value.items() if isinstance(value, Mapping) else [((), value)]
        for member, array in items:
            key = (name, member if isinstance(member, tuple) else (member,))
            if key not in known:
                raise ValueError(f"initial[{name!r}]: the program has no weight {name}{key[1] or ''}")
            shape = ((steps + 1,) if known[key].fresh else ()) + known[key].shape
            if np.shape(array) != shape:
                raise ValueError(f"initial[{name!r}] has shape {np.shape(array)}: must be {shape}")
            found[key] = np.asarray(array, dtype=float)
    return found


def _piece(binder: Binder, w: TrainedMatrix | TrainedVector, env: Any) -> Piece:
    u = w.update
    left, right = (u.left, u.right) if isinstance(w, TrainedMatrix) else (u.vector, None)  # type: ignore[union-attr]
    bounds = [binder.bind(e, env) for e in (u.coefficient, left, *(() if right is None else (right,)))]
    for b in bounds:
        if any(isinstance(x, Applied) for x in b.all_leaves()):
            raise ValueError(f"the update of {w.name} contains {b.text}: define a field for the product")
    if bounds[0].place() is not None:
        raise ValueError(f"the coefficient {bounds[0].text} in the update of {w.name} must be a number")
    ends = (w.initial.population,) if isinstance(w, TrainedVector) else (w.initial.rows, w.initial.cols)
    for b, p in zip(bounds[1:], ends, strict=True):
        here, there = b.place(), binder.sizes.place(p, env)
        if here is not None and (here[0] != there[0] or (None not in (here[1], there[1]) and here != there)):
            raise ValueError(f"the update of {w.name} uses {b.text} on {here}: it must live on {there}")
    return Piece(bounds[0], bounds[1], bounds[2] if right is not None else None)


def _scalar(b: Bound, state: State) -> float:
    return float(np.asarray(b.value(state)))


__all__ = ["RULES", "GaussianVector", "Law", "Piece", "Training", "chosen", "indices", "laws", "refresh", "start"]
