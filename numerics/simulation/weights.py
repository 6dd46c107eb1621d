"""Weights of finite networks: their initial distribution, and their training step.

Rules with a linear equation of motion are carried out as this equation is written (:mod:`.motion`), and not
by their derived memory. Rules that are defined by their memory are carried out by :mod:`.memory_weights`,
rules that are nonlinear in the gradient by :mod:`.entrywise` and :mod:`.spectral`. Updates are those that the
program derives or, as a check of these, numerical gradients: each weight is perturbed, and forward pass and
loss are computed again. The forward pass is all of the program that the loss needs, without its backward
fields, errors and updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dgemm, dger
from sympy import Expr, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.program import (
    Along,
    Entrywise,
    Outer,
    Parametrization,
    Program,
    Spectral,
    TrainedMatrix,
    TrainedVector,
)
from derive.program.parts import gaussian, parameter, ranges_of_loss
from numerics.names import MemberKey

from .entrywise import EntryLaw
from .formulas import Binder, members
from .memory_weights import Past, RuleMemory
from .motion import WeightMotion, relaxed, root
from .network import StepOrder, Task
from .rows import (
    Applied,
    Array,
    Bound,
    FieldOrNumber,
    FormulaReaders,
    NetworkReader,
    NetworkState,
    broadcast_along,
    common_place,
)
from .spectral import SpectralLaw

SMALL, TINY = 4096, 256
"""Number of entries of a matrix below which networks are updated together, not one by one; the second number
is for updates that are one outer product."""

BAND = 8
"""Number of rows of a matrix that are copied to storage by column at once."""

ONE = np.ones((1, 1, 1))


@dataclass(frozen=True)
class GaussianLaw:
    """Distribution of the initial entries of one Gaussian matrix or vector of weights.

    Attributes
    ----------
    key
        Name and index values of the weight.
    shape
        Its shape.
    deviation
        Standard deviation of its entries.
    symmetry
        Correlation of the entries M_ij and M_ji of a square matrix.
    fresh
        Whether it is drawn anew at each step.
    """

    key: MemberKey
    shape: tuple[int, ...]
    deviation: float
    symmetry: float = 0.0
    fresh: bool = False

    def draw(self, rng: np.random.Generator) -> Array:
        """Return one sample of the weight, an array of shape ``shape``."""
        x = rng.standard_normal(self.shape)
        if self.symmetry != 0:
            even, odd = np.sqrt((1 + self.symmetry) / 2), np.sqrt((1 - self.symmetry) / 2)
            diagonal = x.diagonal().copy()
            x = (even * (x + x.T) + odd * (x - x.T)) / np.sqrt(2)
            np.fill_diagonal(x, diagonal)
        x *= self.deviation
        return x


@dataclass(frozen=True, eq=False)
class Factors:
    """Update of a weight as a product, ``U = left right``, for each network.

    The shapes are (networks, rows, terms) and (networks, terms, columns). The first axis has length one if
    the factor is equal in all networks.

    For a vector, ``left`` is the update itself, as one column, and ``right`` is the number 1 with three axes.
    """

    left: Array
    right: Array


@dataclass(frozen=True, eq=False)
class Update:
    """Update of a weight, ``sum_p c_p l_p r_p^T / scale``, computed from the state of the networks.

    Many terms p may share one vector l_p or r_p.

    With the coefficients C(l, r) of the pairs that occur it is ``L C R^T``, and C multiplies the side with
    more vectors: in a linear network, whose backward fields are common to all samples, the update is a single
    outer product.

    Attributes
    ----------
    coefficients, left, right
        Functions that read c, l and r from the state; ``right`` is None for the update of a vector.
    pairs
        For each p the positions of l_p and r_p.
    scale
        Number that the update is divided by; it is not read for a vector, whose number is 1.
    shape
        Shape of the weight.
    """

    coefficients: NetworkReader
    left: NetworkReader
    right: NetworkReader | None
    pairs: tuple[NDArray[np.intp], NDArray[np.intp]]
    scale: float
    shape: tuple[int, ...]

    @cached_property
    def vectors(self) -> tuple[int, int]:
        """Numbers of different left vectors and of different right vectors in the update.

        For the update of a vector, which has no right vectors, both are the number of left vectors.
        """
        return int(self.pairs[0].max()) + 1, int(self.pairs[1].max()) + 1

    @cached_property
    def once(self) -> bool:
        """Whether each pair of a left and a right vector occurs in one term of the update only."""
        return len(set(zip(*map(tuple, self.pairs), strict=True))) == len(self.pairs[0])

    def factors(self, state: NetworkState) -> Factors:
        """Return the update at the time of the state as a product of two factors, ``left right``."""
        i, j = self.pairs
        c = broadcast_along(self.coefficients(state)[..., 0], 1, len(i))
        left = broadcast_along(self.left(state), 2, self.shape[0])
        rows = left.shape[1]
        if self.right is None:
            total, at = np.zeros((len(c), rows)), (slice(None), i % rows)
            np.add.at(total, cast(Any, at), c)
            return Factors(left.swapaxes(1, 2) @ total[..., None], ONE)
        right = broadcast_along(self.right(state), 2, self.shape[1])
        between = np.zeros((len(c), rows, right.shape[1]))
        if self.once and (rows, right.shape[1]) == self.vectors:
            between[:, i, j] = c / self.scale
        else:
            np.add.at(between, cast(Any, (slice(None), i % rows, j % right.shape[1])), c / self.scale)
        if rows <= right.shape[1]:
            return Factors(left.swapaxes(1, 2), between @ right)
        return Factors(left.swapaxes(1, 2) @ between, right)


@dataclass(frozen=True, eq=False)
class WeightTraining:
    """Training of one weight by a rule that has a linear equation of motion.

    ``law`` is the distribution of the initial weight, ``update`` computes its update, and ``motion`` holds
    the coefficients of the equation.
    """

    law: GaussianLaw
    update: Update | Numerical
    motion: WeightMotion

    @property
    def noisy(self) -> bool:
        """Whether the training rule adds noise to the weight."""
        return bool(self.motion.noise)

    def components(self, state: NetworkState) -> list[Array]:
        """Return the weight and the hidden states of its rule, such as a velocity.

        Each is an array (networks, rows[, columns]). Hidden states start at zero.
        """
        w = state.weights[self.law.key]
        if self.law.key not in state.hidden:
            state.hidden[self.law.key] = [np.zeros_like(w) for _ in range(self.motion.states - 1)]
        return [w, *state.hidden[self.law.key]]

    def disturb(self, state: NetworkState, covariance: Array, rngs: Sequence[np.random.Generator]) -> None:
        """Add Gaussian noise to the weight and its hidden states, in place.

        The noise of each array is drawn like the initial weight. ``covariance`` (n, n, networks or 1) is the
        covariance between the noises of the n arrays, relative to the variance of the initial weight;
        ``rngs`` has one generator for each network.
        """
        if not np.any(covariance):
            return
        z, factor = self.components(state), root(covariance)
        for j in np.flatnonzero(np.any(factor, axis=(0, 2))):
            for k, rng in enumerate(rngs):
                drawn = self.law.draw(rng)
                for i, x in enumerate(z):
                    share = factor[i, j, min(k, factor.shape[-1] - 1)]
                    if share:
                        x[k] += share * drawn

    def begin(self, state: NetworkState) -> None:
        """Multiply the initial weight, in place in the state, by the factor that the rule gives it."""
        if self.motion.start != 1:
            state.weights[self.law.key] *= self.motion.start

    def step(self, state: NetworkState, u: Factors, rngs: Sequence[np.random.Generator]) -> None:
        """Move the weight and its hidden states by one training step with the update ``u``, in place.

        ``rngs`` are the generators of the noise, one for each network.
        """
        A, b, z = self.motion.rates(state), self.motion.inputs(state), self.components(state)
        old = z if self.motion.in_place else [x.copy() for x in z]
        for i, x in enumerate(z):
            if i in self.motion.b:
                accumulate(x, A[i, i], b[i], u)
            elif np.any(A[i, i] != 1):
                x *= by_network(A[i, i], x)
            for j in range(len(z)):
                if i != j and (i, j) in self.motion.A:
                    x += by_network(A[i, j], x) * old[j]
        self.disturb(state, self.motion.disturbance(state), rngs)


@dataclass(frozen=True, eq=False)
class MemoryTraining:
    """Training of one weight by a rule that is defined by its memory of all earlier updates.

    The weight is ``W(t) = m(t) W(0) + sum_s k(t, s) U(s) + noise``. ``law`` is the distribution of the
    initial weight, ``update`` computes its update U, and ``memory`` holds m, k and the covariance of the
    noise.
    """

    law: GaussianLaw
    update: Update | Numerical
    memory: RuleMemory

    @property
    def noisy(self) -> bool:
        """Whether the training rule adds noise to the weight."""
        return self.memory.noisy

    def begin(self, state: NetworkState) -> None:
        """Set the weight to ``m(0) W(0)``, with the factor m(0) of the rule's memory, in place in the state.

        A copy of the initial weight is kept for later steps, unless m and k do not depend on t and there is
        no noise: each step then only adds its own update.
        """
        w = state.weights[self.law.key]
        if not self.memory.adds_up:
            state.past[self.law.key] = Past(w.copy(order="K"))
        left = self.memory.left(0, [0])[0]
        if left != 1:
            w *= left

    def step(self, state: NetworkState, u: Factors, rngs: Sequence[np.random.Generator]) -> None:
        """Compute the weight at the next step from its initial value and all updates, and set it in place.

        ``u`` is the update of this step, and ``rngs`` are the generators of the noise, one for each network.
        If m and k do not depend on t and there is no noise, only the term of ``u`` is added to the weight.
        """
        w, now = state.weights[self.law.key], state.step + 1
        if self.memory.adds_up:
            accumulate(w, 1.0, float(self.memory.kept(now, [state.step])[0]), u)
            return
        past = state.past[self.law.key]
        past.updates.append(u)
        w[...] = self.memory.left(now, [0])[0] * past.start
        for share, update in zip(self.memory.kept(now, range(now)), past.updates, strict=True):
            if share:
                accumulate(w, 1.0, float(share), update)
        if self.memory.noisy:
            row = past.factor(self.memory.noise, now)
            fresh = np.stack([self.law.draw(rng) for rng in rngs]) if row[now] else np.zeros(())
            past.noises.append(fresh)
            for share, noise in zip(row[1:], past.noises, strict=True):
                if share:
                    w += share * noise


@dataclass(frozen=True, eq=False)
class EntrywiseTraining:
    """Training of one weight by a rule that is nonlinear in the gradient of each entry, such as Adam.

    ``law`` is the distribution of the initial weight, ``update`` computes the gradient up to a factor, and
    ``motion`` carries out a step.
    """

    law: GaussianLaw
    update: Update | Numerical
    motion: EntryLaw

    @property
    def noisy(self) -> bool:
        """False, because entrywise rules add no noise to the weight."""
        return False

    def begin(self, state: NetworkState) -> None:
        """Set the hidden states of the rule, such as the moments of Adam, to zero in the state."""
        w = state.weights[self.law.key]
        state.hidden[self.law.key] = [np.zeros_like(w) for _ in range(self.motion.states)]

    def step(self, state: NetworkState, u: Factors, rngs: Sequence[np.random.Generator]) -> None:
        """Move the weight and its hidden states by one training step with the update ``u``, in place.

        ``rngs`` is not used, because the rule has no noise.
        """
        key = self.law.key
        self.motion.move(state.weights[key], state.hidden[key], u.left, u.right, state)


@dataclass(frozen=True, eq=False)
class SpectralTraining:
    """Training of one matrix by a rule that acts on the singular values of its gradient, such as Muon.

    ``law`` is the distribution of the initial weight, ``update`` computes the gradient up to a factor, and
    ``motion`` carries out a step.
    """

    law: GaussianLaw
    update: Update | Numerical
    motion: SpectralLaw

    @property
    def noisy(self) -> bool:
        """False, because spectral rules add no noise to the weight."""
        return False

    def begin(self, state: NetworkState) -> None:
        """Do nothing: the rule has no hidden states, and leaves the initial weight as it is."""

    def step(self, state: NetworkState, u: Factors, rngs: Sequence[np.random.Generator]) -> None:
        """Move the weight by one training step with the update ``u``, in place.

        ``rngs`` is not used, because the rule has no noise.
        """
        self.motion.move(state.weights[self.law.key], u.left, u.right, state)


def accumulate(w: Array, beta: Array | float, alpha: Array | float, u: Factors) -> None:
    """Compute ``w <- beta w + alpha left right`` in place for each network, with the update ``u``.

    ``w`` is (networks, rows[, columns]), with matrices stored by column; ``beta`` and ``alpha`` are numbers,
    or one for each network.
    """
    n = len(w)
    beta, alpha = np.zeros(n) + beta, np.zeros(n) + alpha
    if w.ndim == 2 or w[0].size < (SMALL if u.right.shape[1] > 1 else TINY):
        change = u.right.swapaxes(1, 2) @ (alpha[:, None, None] * u.left).swapaxes(1, 2)
        if np.any(beta != 1):
            w *= by_network(beta, w)
        w += change[:, 0] if w.ndim == 2 else change.swapaxes(1, 2)
        return
    left, right = broadcast_along(u.left, 0, n), broadcast_along(u.right, 0, n)
    for k in range(n):
        if right.shape[1] == 1 and beta[k] == 1:
            dger(alpha[k], left[k, :, 0], right[k, 0], a=w[k], overwrite_a=1)
        else:
            dgemm(alpha[k], left[k], right[k].T, beta=beta[k], c=w[k], trans_b=1, overwrite_c=1)


Training: TypeAlias = WeightTraining | MemoryTraining | EntrywiseTraining | SpectralTraining
"""The training of one weight, by any kind of rule."""


def laws(binder: Binder) -> list[GaussianLaw]:
    """Return the distributions of all initial weights of a program: matrices first, then vectors.

    Weights of one family, such as those of the layers, follow each other in the order of their indices.
    Weights that are drawn anew at each step are included. Raises ``ValueError`` for a symmetry outside of
    [-1, 1].
    """
    distributions = []
    for m in map(gaussian, binder.program.matrices):
        for env in members(m, binder.values):
            shape = (binder.sizes.size(m.rows, env), binder.sizes.size(m.cols, env))
            deviation = np.sqrt(binder.number(m.variance, env) / binder.sizes.scale(m, env))
            tau = binder.number(m.symmetry, env)
            if not -1 <= tau <= 1:
                raise ValueError(
                    f"the symmetry of the matrix {m.name} is {tau:g}: it must lie between -1 and 1"
                )
            distributions.append(
                GaussianLaw((m.name, tuple(env.values())), shape, float(deviation), tau, m.fresh)
            )
    for v in map(parameter, binder.program.vectors):
        for env in members(v, binder.values):
            deviation = np.sqrt(binder.number(v.variance, env))
            size = (binder.sizes.size(v.population, env),)
            distributions.append(
                GaussianLaw((v.name, tuple(env.values())), size, float(deviation), fresh=v.fresh)
            )
    return distributions


def trainings(
    binder: Binder, reading: FormulaReaders, distributions: Sequence[GaussianLaw]
) -> list[Training]:
    """Return the objects that carry out the training steps, one for each trained weight of each family.

    ``distributions`` are those of the initial weights.

    Raise ``ValueError`` for a flow without an equation of motion, and for an update that is not a number
    times vectors over the units of the weight (:func:`_piece`).
    """
    by_key = {x.key: x for x in distributions}
    weight_trainings: list[Training] = []
    for w in binder.program.trained():
        if not w.rule.discrete and not hasattr(w.rule, "system"):
            flow = f"{w.name} is trained by the flow {w.rule!r}, which has no equation of motion to integrate"
            raise ValueError(f"{flow}: use GradientFlow, MomentumFlow or LinearRule, or a rule in steps")
        for env in members(w.initial, binder.values):
            law = by_key[w.name, tuple(env.values())]
            updates = w.update.terms if isinstance(w.update, Outer) else (w.update,)
            pieces = [
                _piece(binder, w, u, inner) for u in updates for inner in binder.values.members(u.over, env)
            ]
            scale = 1.0 if isinstance(w, TrainedVector) else binder.sizes.scale(w.initial, env)
            update = _update(reading, pieces, scale, law.shape)
            if isinstance(w.rule, Entrywise):
                law_of_entry = EntryLaw.of(w.rule, w.update.outside, scale, binder, reading, env)
                weight_trainings.append(EntrywiseTraining(law, update, law_of_entry))
                continue
            if isinstance(w.rule, Spectral):
                spectral = SpectralLaw.of(w.rule, w.update.outside, scale, binder, reading, env)
                weight_trainings.append(SpectralTraining(law, update, spectral))
                continue
            motion = WeightMotion.of(w.rule, binder, reading, env)
            if motion is None:
                weight_trainings.append(MemoryTraining(law, update, RuleMemory.of(w.rule, binder, env)))
            else:
                weight_trainings.append(WeightTraining(law, update, motion))
    return weight_trainings


def _update(
    reading: FormulaReaders, pieces: Sequence[tuple[Bound, ...]], scale: float, shape: tuple[int, ...]
) -> Update:
    """Return the update of a weight as a sum of terms, read from the state of the networks.

    ``pieces`` holds for each term the formulas of a coefficient and of one or two vectors; without terms the
    update is zero. The sum is divided by ``scale``, and ``shape`` is that of the weight. Vectors that occur
    in several terms are read once.
    """
    sides = [list(dict.fromkeys(x)) for x in list(zip(*pieces, strict=True))[1:]] or [[], []]
    at = [{x: i for i, x in enumerate(side)} for side in sides]
    places = [np.array([positions[p[k]] for p in pieces], dtype=int) for k, positions in enumerate(at, 1)]
    if not pieces:
        zero = np.zeros((1, 1, 1))
        none: NetworkReader = lambda state: zero  # noqa: E731
        places = [np.zeros(1, dtype=int)] * 2
        return Update(none, none, none if len(shape) == 2 else None, (places[0], places[1]), scale, shape)
    readers = [reading.read(side) for side in sides]
    coefficients = reading.read([p[0] for p in pieces])
    right = readers[1] if len(readers) > 1 else None
    return Update(coefficients, readers[0], right, (places[0], places[-1]), scale, shape)


def move(moving: Sequence[Training], state: NetworkState, rngs: Sequence[np.random.Generator]) -> None:
    """Move all weights by one training step, in place in the state.

    All updates are computed before any weight moves. ``rngs`` are the generators of the noise, one for each
    network.
    """
    plan = [(x, x.update.factors(state)) for x in moving]
    plan = [(x, Factors(u.left.copy(), u.right.copy())) for x, u in plan]
    for x, u in plan:
        x.step(state, u, rngs)


def relax(
    moving: Sequence[WeightTraining], state: NetworkState, time: float, rngs: Sequence[np.random.Generator]
) -> None:
    """Advance weights for an interval ``time`` by decay and noise alone: ``dz = A z dt + noise``.

    z are a weight and its hidden states, and A is the matrix of the equation of motion. Updates are left out,
    and the equation is solved exactly, with A and the noise of the present state. The state is changed in
    place; ``rngs`` are the generators of the noise, one for each network.
    """
    for x in moving:
        moved, covariance = relaxed(x.motion.rates(state), x.motion.disturbance(state), time)
        z = x.components(state)
        old = [y.copy() for y in z] if len(z) > 1 else z
        for i, y in enumerate(z):
            y *= by_network(moved[i, i], y)
            for j in range(len(z)):
                if i != j and moved[i, j].any():
                    y += by_network(moved[i, j], y) * old[j]
        x.disturb(state, covariance, rngs)


def by_network(x: Array, w: Array) -> Array:
    """Return numbers ``x`` with additional axes, so that they multiply the weights ``w``.

    ``x`` has one number for each network, or one for all: shape (networks,) or (1,).
    """
    return x.reshape(-1, *[1] * (w.ndim - 1))


def start(
    distributions: Sequence[GaussianLaw],
    rngs: Sequence[np.random.Generator],
    initial: Mapping[MemberKey, Array],
) -> dict[MemberKey, Array]:
    """Return the initial weights of several networks, by key: those in ``initial``, the others drawn.

    A weight in ``initial`` is one array without an axis of networks, and all networks start from it. ``rngs``
    has one generator for each network. Weights that are drawn anew at each step are left out.
    """
    initial_weights = {x.key: empty_weights(x.shape, len(rngs)) for x in distributions if not x.fresh}
    for k, rng in enumerate(rngs):
        for x in distributions:
            if not x.fresh:
                copy_by_rows(initial_weights[x.key][k], initial[x.key] if x.key in initial else x.draw(rng))
    return initial_weights


def empty_weights(shape: tuple[int, ...], networks: int) -> Array:
    """Return an uninitialized array for one weight of several networks; matrices are stored by column.

    Products with the rows of fields, ``x W^T``, and rank-one updates are then fastest.
    """
    return np.empty((networks, *shape[::-1])).transpose(0, *range(len(shape), 0, -1))


def copy_by_rows(target: Array, x: Array) -> None:
    """Copy the weight ``x`` to ``target``, BAND rows at a time, so that columns fit the cache."""
    for i in range(0, len(x), BAND):
        target[i : i + BAND] = x[i : i + BAND]


def refresh(
    distributions: Sequence[GaussianLaw],
    state: NetworkState,
    rngs: Sequence[np.random.Generator],
    initial: Mapping[MemberKey, Array],
) -> None:
    """Set those weights in the state that are drawn anew at each step.

    The weights in ``initial``, which the user gave with the step as first axis, are read at the step of the
    state and are equal in all networks. Others are drawn from ``distributions``, with one generator in
    ``rngs`` for each network.
    """
    for x in distributions:
        if x.fresh and x.key in initial:
            state.weights[x.key] = initial[x.key][state.step][None]
        elif x.fresh:
            state.weights[x.key] = empty_weights(x.shape, len(rngs))
            for k, rng in enumerate(rngs):
                copy_by_rows(state.weights[x.key][k], x.draw(rng))


def chosen(
    distributions: Sequence[GaussianLaw], given_weights: Mapping[str, Any], steps: int
) -> dict[MemberKey, Array]:
    """Return the weights that the user chose, by key; check their names and shapes.

    ``given_weights`` has by name an array for a single weight, and for a family a mapping from index values
    to arrays, which may leave members out, or one array whose first axes count the members. The array of a
    weight that is drawn anew at each step begins with an axis of ``steps + 1`` entries, where ``steps`` is
    the number of training steps. Raises ``ValueError`` for names and shapes that do not fit.
    """
    arrays: dict[MemberKey, Array] = {}
    names = sorted({x.key[0] for x in distributions})
    for name, value in given_weights.items():
        shapes = {
            x.key[1]: ((steps + 1,) if x.fresh else ()) + x.shape for x in distributions if x.key[0] == name
        }
        if not shapes:
            raise ValueError(
                f"initial[{name!r}]: the program has no weight {name}; it has {', '.join(names)}"
            )
        for member, array in _of_members(name, value, shapes).items():
            if member not in shapes:
                raise ValueError(
                    f"initial[{name!r}] has the member {_member_key(member)}: must be one of "
                    f"{', '.join(map(_member_key, shapes))}"
                )
            if np.shape(array) != shapes[member]:
                place = f" for the member {_member_key(member)}" if member else ""
                raise ValueError(
                    f"initial[{name!r}] has an array of shape {np.shape(array)}{place}: must be "
                    f"{shapes[member]}"
                )
            arrays[name, member] = np.asarray(array, dtype=float)
    return arrays


def _member_key(member: tuple[object, ...]) -> str:
    """Return the index values of a weight as text: ``1`` for one index, ``(1, 2)`` for two.

    A key that is text keeps its quotes, as in ``'1'``.
    """
    return repr(member[0] if len(member) == 1 else member)


def _of_members(
    name: str, value: Any, shapes: Mapping[tuple[int, ...], tuple[int, ...]]
) -> Mapping[tuple[int, ...], Any]:
    """Return the arrays that a user gave for a weight or a family of weights, by index values.

    ``value`` is a mapping from index values, an integer or a tuple of integers, or one array with members
    along its first axes. ``shapes`` are the shapes of the members; for a single weight it has the key ``()``
    alone, and ``value`` is its array. Raises ``ValueError`` for one array that does not fit a family, and for
    a mapping for a single weight.
    """
    if isinstance(value, Mapping):
        if () in shapes:
            raise ValueError(
                f"initial[{name!r}] is a mapping: must be an array of shape {shapes[()]}, because {name} is "
                "one weight"
            )
        return {key if isinstance(key, tuple) else (key,): array for key, array in value.items()}
    if () in shapes:
        return {(): value}
    first, one = min(shapes), next(iter(shapes.values()))
    sizes = tuple(len({member[k] for member in shapes}) for k in range(len(first)))
    if np.shape(value) != (*sizes, *one) or prod(sizes) != len(shapes):
        raise ValueError(
            f"initial[{name!r}] has shape {np.shape(value)}: must be a mapping from members of the family "
            f"to arrays, such as {{{_member_key(first)}: array of shape {one}}}, or, if every combination "
            f"of the indices is a member of this shape, one array of shape {(*sizes, *one)}"
        )
    whole = np.asarray(value, dtype=float)
    return {member: whole[tuple(x - low for x, low in zip(member, first, strict=True))] for member in shapes}


def _piece(binder: Binder, w: TrainedMatrix | TrainedVector, u: Outer | Along, env: Any) -> tuple[Bound, ...]:
    """Return the formulas of one term of the update of the weight ``w``: coefficient, then vectors.

    ``u`` is the term, and ``env`` are the values of its indices. Raise ValueError if the coefficient is not a
    number, if a formula contains a product of a matrix and a field, or if a vector is not over the units of
    w.
    """
    ends = (w.initial.population,) if isinstance(w, TrainedVector) else (w.initial.rows, w.initial.cols)
    vectors = (u.left, u.right) if isinstance(u, Outer) else (u.vector,)
    bounds = tuple(binder.bind(sympify(e), env) for e in (u.coefficient, *vectors))
    for b in bounds:
        if any(isinstance(x, Applied) for x in b.all_leaves()):
            raise ValueError(
                f"the update of {w.name} contains a product of a matrix and a field, in {b.expr}: define a "
                "field for this product"
            )
    if bounds[0].place() is not None:
        raise ValueError(f"the coefficient {bounds[0].expr} in the update of {w.name} must be a number")
    for b, p in zip(bounds[1:], ends, strict=True):
        common_place([b.place(), binder.sizes.place(p, env)], "the update of", w.name, "with", b.expr)
    return bounds


STEP = 1e-4
"""Perturbation of a weight in numerical gradients, relative to its initial standard deviation."""

AT_ONCE = 2**18
"""Largest number of entries of perturbed weights in one evaluation."""


@dataclass(frozen=True)
class Numerical:
    """Update of a weight from the numerical gradient of the loss, by central differences.

    The update of a weight M is ``U = -scale^2 (N/n) rate dloss/dM``, with the factors ``scale`` and ``rate``
    of its :class:`~derive.program.Parametrization`. ``n`` is the number of units that the matrix M is applied
    to (for a vector, 1): raw weights ``theta = sqrt(n) M`` follow the gradient.

    Attributes
    ----------
    training
        Training of the weight, with the program's own update.
    tasks
        Computations of the forward pass.
    loss
        Function that evaluates the loss on the state of the networks.
    factor
        The factor ``scale^2 (N/n) rate``.
    """

    training: Training
    tasks: tuple[Task, ...]
    loss: NetworkReader
    factor: float

    def factors(self, state: NetworkState) -> Factors:
        """Return the update at the time of the state as a product of factors.

        The left factor is the update itself; the right one is the identity, or the number 1 for a vector.
        """
        count = len(state.weights[self.training.law.key])
        update = np.stack([self._of_one(state, k) for k in range(count)])
        if update.ndim == 2:
            return Factors(update[:, :, None], ONE)
        return Factors(update, np.eye(update.shape[2])[None])

    def _of_one(self, state: NetworkState, network: int) -> Array:
        """Return the update of one network from the numerical gradient of its loss.

        ``network`` is its position in the state. The result has the shape of the weight.
        """
        law = self.training.law
        weights = {k: x[min(network, len(x) - 1)][None] for k, x in state.weights.items()}
        fields = {b: x[network][None] for b, x in state.fields.items()}
        count, size = int(np.prod(law.shape)), max(1, AT_ONCE // int(np.prod(law.shape)))
        step, slope = STEP * (law.deviation or 1.0), np.empty(count)
        for first in range(0, count, size):
            entries = np.arange(first, min(first + size, count))
            sides = []
            for sign in (1.0, -1.0):
                moved = np.repeat(weights[law.key], len(entries), axis=0).reshape(len(entries), -1)
                moved[np.arange(len(entries)), entries] += sign * step
                trial = replace(
                    state,
                    weights={**weights, law.key: moved.reshape(-1, *law.shape)},
                    start=state.start,
                    started=True,
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
    network: StepOrder,
    moving: Sequence[Training],
    loss: Expr,
    parametrization: Parametrization,
) -> list[Training]:
    """Return the training of each weight with the numerical gradient of ``loss`` in place of its update.

    ``moving`` holds the training of each weight with the update of the program, ``network`` the computations
    of a step. The loss is an expression of numbers of the program and means of its fields, summed over its
    indices, as :meth:`derive.program.Network.train` takes it. Raises ``ValueError`` for a loss that contains
    no number and no field of the program.
    """
    program = binder.program
    computed = {*program.scalars, *(x.name for x in program.fields)}
    if not {a.func.__name__ for a in loss.atoms(AppliedUndef)} & computed:
        raise ValueError(f"the loss {loss} contains no number or field of the program")
    bound = binder.bind(_summed(program, loss), {})
    value, needed = network.reading.read([bound]), entries_behind(network, _entries(bound))
    tasks = tuple(x for x in network.later if any(n.key in needed for n in x.nodes))
    scale = binder.number(parametrization.scale, {})
    weight_trainings = []
    for x in moving:
        factor = scale**2 * binder.sizes.width * binder.number(parametrization.rate_of(x.law.key[0]), {})
        update = Numerical(x, tasks, value, factor / _units(binder, x.law, parametrization))
        weight_trainings.append(replace(x, update=update))
    return weight_trainings


def _units(binder: Binder, law: GaussianLaw, parametrization: Parametrization) -> float:
    """Return the number of units to which the matrix with the distribution ``law`` is applied.

    For a matrix on a given population it is the size of this population, for others the width times the
    fan-in of ``parametrization``, and for a vector of weights one.
    """
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
    """Return a loss, written for one value of its indices, as a sum over these indices.

    The indices are those of samples, outputs and other numbers in ``loss``; without indices it is returned as
    it is.
    """
    ranges = ranges_of_loss(program.definitions, loss)
    return Sum(loss, *[r.limits for r in ranges]) if ranges else loss


def entries_behind(network: StepOrder, keys: Iterable[MemberKey]) -> set[MemberKey]:
    """Return the fields and numbers ``keys`` and all those from which they are computed within a step.

    A key is a name and index values. A key that no step after the first computes is left out, as are values
    that are read at step 0, with their inputs.
    """
    nodes: Mapping[MemberKey, Any] = {n.key: n for x in network.later for n in x.nodes}
    todo, seen = [*keys], set[MemberKey]()
    while todo:
        key = todo.pop()
        if key not in seen and key in nodes:
            seen.add(key)
            todo += _entries(nodes[key].rhs)
    return seen


def _entries(e: Bound) -> list[MemberKey]:
    """Return the names and index values of the fields and numbers that a formula reads at the same step."""
    return [x.key for x in e.all_leaves() if isinstance(x, FieldOrNumber) and not x.first]
