"""Weights of one network: how they are drawn, and how their rule moves them in one step.

The recursion of each rule is carried out as it is written; nothing is taken from its memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import sympify

from derive.program import (
    Along,
    GradientDescent,
    GradientFlow,
    Momentum,
    MomentumFlow,
    Outer,
    TrainedMatrix,
    TrainedVector,
)
from derive.program.program import gaussian, parameter

from .formulas import Binder, members
from .leaves import Applied, Bound, Key, State, common_place

Array = NDArray[np.float64]

RULES = (GradientDescent, GradientFlow, Momentum, MomentumFlow)


@dataclass(frozen=True)
class Law:
    """One member of a family of Gaussian weights.

    Its entries have the standard deviation ``deviation``; M_ij and M_ji are correlated by ``symmetry``.
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

    def moved(self, state: State, dt: float, rng: np.random.Generator) -> tuple[Array, Array | None]:
        """The weight, and the velocity if it has one, after one step of the rule.

        Where time flows the step is Euler's, of length ``dt``: the right-hand side is that before the step.
        """
        key, rule = self.law.key, self.rule
        w, u = state.weights[key], self.update(state)
        q = state.velocities.get(key, np.zeros(1))
        n = {name: _scalar(x, state) for name, x in self.numbers.items()}
        if isinstance(rule, GradientDescent):
            return (1 - n["decay"]) * w + n["rate"] * u + self.noise(n["diffusion"], rng), None
        if isinstance(rule, Momentum):
            q = n["momentum"] * q + u
            return (1 - n["decay"]) * w + n["rate"] * q, q
        dw, dq = self.slope(state)
        noise = self.noise(n["diffusion"] * dt, rng) if "diffusion" in n else 0.0
        return w + dt * dw + noise, None if dq is None else q + dt * dq

    def slope(self, state: State, *, decay: bool = True) -> tuple[Array, Array | None]:
        """Where time flows: how fast the weight moves, and its velocity if it has one; without noise."""
        key, u = self.law.key, self.update(state)
        n = {name: _scalar(x, state) for name, x in self.numbers.items()}
        if isinstance(self.rule, GradientFlow):
            return n["rate"] * u - (n["decay"] * state.weights[key] if decay else 0.0), None
        assert isinstance(self.rule, MomentumFlow)
        q = state.velocities.get(key, np.zeros(self.law.shape))
        return q, (n["rate"] * u - q) / n["momentum"]

    def noisy(self, state: State) -> bool:
        """Does noise enter the weight?"""
        return "diffusion" in self.numbers and _scalar(self.numbers["diffusion"], state) != 0

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
        numbers_of = [x for x in ("rate", "decay", "diffusion", "momentum") if hasattr(w.rule, x)]
        for env in members(w.initial, binder.values):
            law = by_key[w.name, tuple(env.values())]
            numbers = {x: binder.bind(sympify(getattr(w.rule, x)), env) for x in numbers_of}
            updates = w.update.terms if isinstance(w.update, Outer) else (w.update,)
            pieces = [
                _piece(binder, w, u, inner) for u in updates for inner in binder.values.members(u.over, env)
            ]
            scale = 1.0 if isinstance(w, TrainedVector) else binder.sizes.scale(w.initial, env)
            found.append(Training(law, w.rule, numbers, pieces, scale))
    return found


def move(every: Sequence[Training], state: State, dt: float, rng: np.random.Generator) -> None:
    """All weights one step on, at once."""
    after = {x.law.key: x.moved(state, dt, rng) for x in every}
    state.weights.update({k: w for k, (w, _) in after.items()})
    state.velocities.update({k: q for k, (_, q) in after.items() if q is not None})


def relax(every: Sequence[Training], state: State, time: float, rng: np.random.Generator) -> None:
    """Decay and noise alone for some time, exactly: ``dW = -decay W dt + sqrt(diffusion) dB``."""
    for x in every:
        n = {name: _scalar(x.numbers[name], state) for name in ("decay", "diffusion")}
        left = np.exp(-n["decay"] * time)
        spread = time if n["decay"] == 0 else -np.expm1(-2 * n["decay"] * time) / (2 * n["decay"])
        key = x.law.key
        state.weights[key] = left * state.weights[key] + x.noise(n["diffusion"] * spread, rng)


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


def _piece(binder: Binder, w: TrainedMatrix | TrainedVector, u: Outer | Along, env: Any) -> Piece:
    ends = (w.initial.population,) if isinstance(w, TrainedVector) else (w.initial.rows, w.initial.cols)
    vectors = (u.left, u.right) if isinstance(u, Outer) else (u.vector,)
    bounds = [binder.bind(sympify(e), env) for e in (u.coefficient, *vectors)]
    for b in bounds:
        if any(isinstance(x, Applied) for x in b.all_leaves()):
            raise ValueError(f"the update of {w.name} contains {b.text}: define a field for the product")
    if bounds[0].place() is not None:
        raise ValueError(f"the coefficient {bounds[0].text} in the update of {w.name} must be a number")
    for b, p in zip(bounds[1:], ends, strict=True):
        common_place([b.place(), binder.sizes.place(p, env)], f"the update of {w.name} with {b.text}")
    return Piece(bounds[0], bounds[1], bounds[2] if len(bounds) > 2 else None)


def _scalar(b: Bound, state: State) -> float:
    return float(np.asarray(b.value(state)))
