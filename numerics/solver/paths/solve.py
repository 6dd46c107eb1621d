"""Solution of nonlinear theories by sampled paths: independent replicas, their mean and standard error.

The input are a theory, numbers and data; the output are order parameters and scalars, and sampled paths on
request. The theory is compiled for the given sizes and marched, with several replicas side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import ell, s, t
from derive.theory import Theory
from numerics.arrays import CPU, Device
from numerics.averages.existence import singularities
from numerics.errors import SpecError, Unserved, require_choice, require_whole
from numerics.experiment.checks import by_name, given_arrays
from numerics.experiment.given_data import require_shapes
from numerics.experiment.parameter_domains import require_in_domains_at_steps
from numerics.lowering.entries import EntryArray
from numerics.lowering.expressions import CompiledFunction, KnownArrays, UnseenJump, observable
from numerics.lowering.indices import RealNumber, indices_of, node_of, sizes_of
from numerics.lowering.plain_indices import stacked_members
from numerics.lowering.quantities import PathCorrelation, PathEntry, PathResponse, read_quantities
from numerics.lowering.sizes import SizedTheory
from numerics.names import MemberKey
from numerics.paths import Block, Paths, dimension, gathered
from numerics.solver.named_values import Evaluated, averaged, stacked
from numerics.solver.paths.accuracy import reach
from numerics.solver.paths.causal_order import Model, derivative_paths, group_of, moves, size_of, sources_now
from numerics.solver.paths.collocation import Stepping
from numerics.solver.paths.exchange import Asymmetry, exchangeable_values
from numerics.solver.paths.gaussian import Room
from numerics.solver.paths.march import PathMarch, units_of, written
from numerics.solver.paths.signs import require_errors_of_one_sign
from numerics.threads import one_thread

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

LEAST = 8
"""Smallest number of paths of a replica; the number must be even."""


@dataclass(frozen=True)
class Solved(Evaluated):
    """Solution of :func:`solve_particles`: means over independent replicas, with standard errors.

    Attributes
    ----------
    method : str
        ``"particles"``.
    values : dict
        Means over replicas by name and layer; axes as in :class:`~numerics.solver.named_values.Evaluated`.
    errors : dict
        Standard errors, with the same shapes.
    runs : dict
        Values of each replica by name and layer, with the replicas along the first axis.
    samples : int
        Number of paths of each replica.
    replicas : int
        Number of replicas.
    responses : dict
        Way in which the values of each response were computed: ``"jacobian"``, ``"stein"`` or ``"left out"``.
        Keys are texts such as ``"A(1)"`` for layer 1.
    paths : xarray.Dataset or None
        Sampled paths, if they were requested.
    accuracy : float or None
        Largest relative standard error of scalars, from :func:`solve_to_accuracy`; None otherwise.
    bias : float or None
        Bound of the relative bias of scalars, from :func:`solve_to_accuracy`; None otherwise.
    """

    samples: int
    replicas: int
    responses: Mapping[str, str]
    paths: xr.Dataset | None = None
    accuracy: float | None = None
    bias: float | None = None


@one_thread
def solve_particles(  # noqa: PLR0913 - public signature
    theory: Theory,
    *,
    steps: int,
    values: Mapping[Symbol | str, RealNumber] | None = None,
    data: Mapping[str, Any] | None = None,
    samples: int = 512,
    replicas: int = 8,
    seed: int = 0,
    responses: Responses = "auto",
    matched: bool | None = None,
    ridge: float | None = None,
    paths: Paths | None = None,
    device: Device = CPU,
) -> Solved:
    """Compute order parameters and scalars at times ``0..steps-1`` from sampled paths.

    All populations are marched together in one sweep: sources are drawn conditional on their past, and
    correlations and scalars are averages over ``samples`` paths. Each replica has its own paths and its own
    kernels.

    Parameters
    ----------
    theory : Theory
        In discrete steps and at integer depth, linear or not.
    steps : int
        Number of times.
    values : dict, optional
        Numbers for symbols, as for :func:`numerics.solver.direct.evaluate`.
    data : dict, optional
        Arrays of data by name, as for :func:`numerics.solver.direct.evaluate`.
    samples : int
        Number of paths of each replica, an even number of at least 8.
    replicas : int
        Number of independent solutions, at least 2, from whose scatter standard errors follow. Their common
        bias is of order 1/samples.
    seed : int
        Seed of the paths.
    responses : {"auto", "jacobian", "stein"}
        Way to compute responses in the steps: ``"jacobian"`` takes derivatives along the paths, ``"stein"``
        takes Stein's lemma; see Notes.
    matched : bool, optional
        Whether random numbers are drawn such that their second moments over the paths are exact. By default
        it is true if the training has no noise. Noise adds independent numbers at each step, and exact
        moments of so many numbers would bias the result.
    ridge : float, optional
        Share of each variance that is added to the covariance in Stein's lemma; by default 10 times the
        number of entries of the source (at most that of paths) over the square of the number of paths. 0
        solves in the numerical range of the covariance.
    paths : Paths, optional
        Which paths of each replica to return; None for no paths.
    device : Device
        Device on which paths are computed.

    Returns
    -------
    Solved
        Values and standard errors, with the axes of :class:`~numerics.solver.direct.Evaluated`.

    Raises
    ------
    Unserved
        For forms of a theory that sampled paths refuse, such as flows.
    ValueError
        For missing values and data, for a kernel of the data that is not symmetric positive semidefinite, for
        numbers of steps, paths or replicas that are too small, for an odd number of paths, for a negative
        ``ridge``, for other ``responses``, for ``"jacobian"`` if a function jumps, and for a parameter of a
        training rule that leaves its interval at a step.
    Diverged
        If an average is not finite.
    NotConverged
        If the error of one sample crosses zero and its sign enters a training step, or if a covariance of
        sources is not positive semidefinite.

    Notes
    -----
    Stein's lemma needs no derivative and serves functions that jump. It divides by the covariance of a source
    plus a ridge: single entries of responses are then smoothed, and their effect on the fields changes by
    less than the noise. It fits as many numbers as a source has entries (samples of the data times steps), so
    that there should not be many times fewer paths.

    ``"auto"`` takes derivatives if no function between source and response jumps, and if the whole theory is
    linear or the source has no more than 24 entries. So few entries need little time, and single entries of
    responses are not smoothed. With more entries ``"auto"`` takes the lemma: the same time, spent on more
    paths and the lemma, gives a smaller error of fields and correlations. If ``"auto"`` takes the lemma in
    some steps, the responses in the result are computed a second time: from derivatives along some of the
    paths, or from the lemma without a ridge if a function jumps or if derivatives take too long. A response
    computed again is left out, at all layers, if its root mean square standard error is more than half of the
    root mean square of its values. This may happen by the lemma for sources that are nearly equal at
    neighbouring times.

    Examples
    --------
    >>> from derive.theory import mean_field
    >>> from derive.program import P, eta, gamma0, mlp
    >>> theory = mean_field(mlp(2, "tanh"))
    >>> data = {"K_x": [[1.0]], "y": [1.0]}
    >>> solved = solve_particles(theory, steps=3, values={eta: 0.5, gamma0: 1, P: 1}, data=data, samples=64)
    >>> solved.value("Delta").shape, solved.value("Phi", 2).shape
    ((3, 1), (1, 1, 3, 3))
    """
    require_whole("steps", steps, 1, "must be at least 1")
    samples = _require_paths("samples", samples, LEAST)
    require_whole(
        "replicas", replicas, 2, "gives no standard error, which is the scatter of several solutions"
    )
    require_whole("seed", seed, 0, "must not be negative")
    if ridge is not None and not 0 <= ridge < np.inf:
        raise SpecError("ridge", ridge, "is not a share of the variance", "a number >= 0")
    require_in_domains_at_steps(theory.program, values, data, steps)
    prepared = Prepared(theory, steps=steps, values=values, data=data, responses=responses, device=device)
    times = [] if paths is None else paths.steps(theory.program, steps - 1)
    walked: list[dict[str, Block]] = []
    batches = list(
        prepared.batches(
            [samples] * replicas,
            np.random.SeedSequence(seed).spawn(replicas),
            matched=matched,
            ridge=ridge,
            whole=paths is not None,
            finished=None if paths is None else lambda march, i: walked.append(kept(march, paths, times, i)),
        )
    )
    every = {n: np.concatenate([x[n] for x in batches]) if batches[1:] else x for n, x in batches[0].items()}
    every |= {n: np.moveaxis(every[n], -1, 1) for n in prepared.numbers}
    solved = _solved(prepared, every, samples)
    return replace(solved, paths=gathered(walked, times, kind="theory")) if walked else solved


@one_thread
def solve_to_accuracy(  # noqa: PLR0913 - public signature
    theory: Theory,
    *,
    steps: int,
    accuracy: float,
    values: Mapping[Symbol | str, RealNumber] | None = None,
    data: Mapping[str, Any] | None = None,
    seed: int = 0,
    responses: Responses = "auto",
    first: int | None = None,
) -> Solved:
    """Solve by sampled paths, with as many samples and replicas as an accuracy needs.

    Samples are doubled until the standard error and the bias of every scalar of the theory, relative to its
    largest value, are below ``accuracy``; see :mod:`~numerics.solver.paths.accuracy`.

    Parameters
    ----------
    theory : Theory
        In discrete steps and at integer depth.
    steps : int
        Number of times.
    accuracy : float
        Required accuracy, between 0 and 1.
    values : dict, optional
        Numbers for symbols.
    data : dict, optional
        Arrays of data by name.
    seed : int
        Seed of the paths.
    responses : {"auto", "jacobian", "stein"}
        As for :func:`solve_particles`.
    first : int, optional
        First number of samples, even and at least 4; :attr:`Prepared.enough` by default.

    Returns
    -------
    Solved
        Values, standard errors, and the accuracy that was reached.

    Raises
    ------
    ValueError
        For an accuracy that is not between 0 and 1, for ``first`` that is odd or below 4, and as
        :func:`solve_particles`.
    Unserved, Diverged
        As :func:`solve_particles`.
    NotConverged
        For an accuracy that is out of reach, and as :func:`solve_particles`.
    """
    if not 0 < accuracy < 1:
        raise ValueError(f"accuracy = {accuracy}: must be a number between 0 and 1")
    require_whole("steps", steps, 1, "must be at least 1")
    if first is not None:
        first = _require_paths("first", first, 4)
    require_in_domains_at_steps(theory.program, values, data, steps)
    prepared = Prepared(theory, steps=steps, values=values, data=data, responses=responses)
    names = prepared.numbers

    def attempt(samples: int, numbers: Iterable[int], into: _ReplicaArrays) -> Iterator[dict[str, Array]]:
        seeds = [np.random.SeedSequence(seed, spawn_key=(n,)) for n in numbers]
        for solution in prepared.runs(samples, seeds):
            into.append(solution)
            yield {name_of(n): solution[n] for n in names}

    reached = reach(attempt, list, accuracy, first or prepared.enough)
    solved = _solved(prepared, stacked(reached.solutions), reached.samples)
    return replace(solved, accuracy=reached.error, bias=reached.bias_bound)


def _require_paths(name: str, paths: int, least: int) -> int:
    """Return a number of paths; raise SpecError if it is odd, less than ``least``, or not an integer."""
    paths = require_whole(name, paths, least, "is too few paths")
    if paths % 2:
        raise SpecError(name, paths, "is odd, and paths are drawn in pairs", f"an even number >= {least}")
    return paths


_ReplicaArrays = list[dict[MemberKey, Array]]


def _solved(prepared: Prepared, runs: dict[MemberKey, Array], samples: int) -> Solved:
    """Return means and standard errors over replicas, without responses whose errors are too large.

    ``runs`` holds for each key (name, integer indices) the values of all replicas, along the first axis. Only
    responses that were computed a second time for the result are tested. If the errors of a response are too
    large at one layer, it is left out at all layers.
    """
    count = len(next(iter(runs.values())))
    single = {prepared.whole.get(n, n) for n in prepared.single}
    responses = {n: runs[n] for n in single}
    names = {n[0] for n, x in responses.items() if unclear(x.mean(axis=0), x.std(axis=0, ddof=1), count)}
    # a response is left out at all layers, because one missing layer could be mistaken for a zero response
    gone = {n for n in single if n[0] in names}
    methods = prepared.methods(samples) | {name_of(n): "left out" for n in gone}
    runs = {n: x for n, x in runs.items() if n not in gone}
    return Solved("particles", *averaged(runs), samples, count, methods, runs=runs)


Responses = Literal["auto", "stein", "jacobian"]

FEWEST = 256
"""First number of samples of a search, unless sources with many entries need more."""

PLENTY, CALLS = 1024, 3.0
"""Largest first number of samples, and largest time of a replica of more than FEWEST samples.

The latter is in units of the overhead of the calls of NumPy: a march of few samples takes two or three times
as long as these calls (measured, 8 replicas of eight programs).
"""

SPEED, CALL, DERIVATIVE = 1.5e10, 2e-5, 8e-9
"""Measured on one core: operations a second of large products; seconds of an operation of a step, for
replicas marched together; seconds of a derivative along a path.
"""

ENTRY = 4e-9
"""Measured seconds, on one core, for one step of one entry of a weight with an entrywise rule.

The number of states of the rule plus two multiplies this time (sign 8 ns, Adam 16 ns an entry).
"""

WORKING = 2**28
"""Bytes that replicas marched side by side may take in memory of the CPU, unless one takes more.

Marches of a search reuse this memory. The first write to more of it costs up to as much as the march itself
(measured on virtual machines), and more replicas side by side save nothing once calls of NumPy are short.
"""

VALUE, NORMAL = 1e-8, 1.2e-7
"""Measured seconds, on one core, of a value of a field on a path, and of a normal number used in sources."""

FEW = 24
"""Largest number of entries of a source for which derivatives are as efficient as Stein's lemma."""

CARRIERS = 32
"""Smallest number of paths of a replica that carry derivatives for the responses of a result."""

PATIENCE = 4.0, 1.0
"""Largest time of derivatives for a result: this multiple of the time of the march, plus these seconds a
replica."""

LITTLE = 0.025
"""Seconds that derivatives for a result may take in each replica whatever the march takes: 0.2 s for all
replicas."""

UNCLEAR = 0.5
"""Largest ratio of the root mean square standard error of a response to the root mean square of its values.

A response with a larger ratio is left out of the result."""


class Prepared:
    """Theory compiled for given sizes, with its numbers and data, of which replicas are marched.

    The compiled tables depend on the sizes of indices only, so that points of a sweep and grids of a flow
    share them.

    ``stepping`` holds the time steps of a flow by collocation, in which the weights of the updates are
    computed step by step; the theory must then have separate weights for each sample. ``single`` asks for
    responses without smoothing by the ridge of Stein's lemma. If ``responses`` is ``"auto"`` and some
    responses come from the lemma, ``single`` computes all responses a second time for the result: those in
    ``beside`` from derivatives along some paths if these are cheap enough (:meth:`carriers`), the others,
    such as those where a function jumps, from the lemma without a ridge. ``chosen`` states by key how each
    response in the steps is computed, and :meth:`methods` how each response of a result is. Without
    ``kernels``, correlations and observables that no step reads are not computed.
    """

    def __init__(  # noqa: PLR0913 - options of solve_particles
        self,
        theory: Theory,
        *,
        steps: int,
        values: Mapping[Symbol | str, RealNumber] | None = None,
        data: Mapping[str, Any] | None = None,
        responses: Responses = "auto",
        stepping: Stepping | None = None,
        device: Device = CPU,
        single: bool = True,
        kernels: bool = True,
    ) -> None:
        require_choice("responses", responses, get_args(Responses))
        self.kernels = kernels
        self.steps, self.stepping, self.device = steps, stepping, device
        arrays = {name: x for name, x in (data or {}).items() if not callable(x)}
        arrays = given_arrays(theory.program, arrays)
        self.data = {**(data or {}), **arrays}
        self.values = by_name("values", values or {})
        require_shapes(theory.program, arrays, self.values, steps)
        self.model = _read(theory, frozenset(sizes_of(theory, self.values).items()))
        self.tables = self.model.tables
        for weight in self.tables.weights:
            if weight.given and np.ndim(self.data.get(weight.given, 0.0)) < 2:
                raise ValueError(
                    f"data must hold {weight.given}, the entries of the inputs (samples, coordinates): "
                    f"{weight.weight} moves by {weight.rule.name}, and the kernel of the inputs does not "
                    "determine its steps"
                )
        self.whole = {n: x.node for x in self.tables.written_out for n in x.members}
        nodes = (*self.tables.sources, *self.tables.quantities)
        self.units = {n: units_of(self.tables, n, self.data) for n in nodes}
        self.chosen = _responses(self.model, responses, steps)
        again = single and responses == "auto" and "stein" in self.chosen.values()
        self.single = frozenset(self.chosen if again else ())
        self.beside = frozenset(n for n in self.single if not self._jumps(n))
        self.noisy = theory.program.noisy

    @property
    def numbers(self) -> list[MemberKey]:
        """Keys of the scalars of the theory, such as outputs, in solutions: (name, integer indices)."""
        return list(dict.fromkeys(self.whole.get(n, n) for n in self.tables.scalars))

    @property
    def exchangeable(self) -> str | None:
        """Exchangeable values of indices, as text such as ``k = 1, 2; c = 3, 4``; None if there are none.

        Values are exchangeable if the theory and its data stay the same when they are permuted. A march
        takes averages over these permutations.
        """
        index_blocks = exchangeable_values(
            self.tables, self.data, (*self.tables.entries, *self.tables.scalars)
        )
        said = [
            f"{x} = {', '.join(map(str, block))}" for x, blocks in index_blocks.items() for block in blocks
        ]
        return "; ".join(said) or None

    def _jumps(self, n: MemberKey) -> bool:
        """Return whether a function between source and quantity of the response with key ``n`` jumps."""
        averages = self.tables.entries[n].averages.values()
        return any(isinstance(c, PathResponse) and self.model.kinds[c] == "jumps" for c in averages)

    @property
    def entries(self) -> int:
        """Largest size of a covariance matrix in Stein's lemma: number of steps times sources at one step.

        A matrix is that of a group of correlated sources, for the responses that are computed by the lemma.
        Zero if there are none.
        """
        model = self.model
        asked = {
            group_of(model, c.source)
            for n, how in self.chosen.items()
            if how == "stein"
            for c in self.tables.entries[n].averages.values()
            if isinstance(c, PathResponse)
        }
        sizes = [sum(prod(self.tables.sources[n][1]) for n in model.groups[i]) for i in asked]
        return self.steps * max(sizes, default=0)

    @property
    def most(self) -> int:
        """Largest number of entries (steps times indices) of any group of correlated sources."""
        return self.steps * max((size_of(self.model, i) for i in range(len(self.model.groups))), default=0)

    @property
    def least(self) -> int:
        """Smallest number of paths of a replica, which grows with the entries of sources in Stein's lemma.

        It is even and at least 2 LEAST. The lemma needs one path for four entries (steps times indices) of
        a source if all functions have continuous derivatives. The error of the lemma is then a fraction of
        the scatter of replicas (docs/benchmarks.md), and is measured. If a function has a kink it needs one
        for each entry, because jumps of derivatives are noisier: covariances that are not positive
        occurred.
        """
        return max(2 * LEAST, 2 * int(np.ceil(self.entries / (8 if self.smooth else 2))))

    @property
    def enough(self) -> int:
        """Number of paths of a replica with which a search for an accuracy begins; later ones are doubled.

        It is a power of two, at least FEWEST and at least the number that Stein's lemma needs.
        """
        return int(max(FEWEST, 2 ** np.ceil(np.log2(self.least))))

    @property
    def cheap(self) -> int:
        """Largest number of paths of a replica at which calls of array functions take much of the time.

        The estimated time of the replica is at most CALLS times the overhead of these calls. The number is
        FEWEST times a power of two, at most PLENTY; it is FEWEST if twice as many paths take longer.
        """
        samples = FEWEST
        while 2 * samples <= PLENTY and self.seconds(2 * samples) <= CALLS * self._march_work[2] * CALL:
            samples *= 2
        return samples

    @property
    def smooth(self) -> bool:
        """Whether every function of fields in the theory has a continuous derivative."""
        for q in self.tables.quantities.values():
            for i, x in enumerate(q.function.leaves):
                moving = isinstance(x, AppliedUndef) and self.tables.is_random(x)
                if x in q.memories or (moving and node_of(x) not in self.tables.attributes):
                    try:
                        q.function.derivative(i)
                    except UnseenJump:
                        return False
        return True

    def _found(self) -> list[PathEntry]:
        """Return the definitions of the order parameters that a march computes.

        These are all order parameters of the theory, without ``kernels`` except for two-time correlations
        that no step reads.
        """
        left_out = frozenset() if self.kernels else self.model.afterwards
        return [e for n, e in self.tables.entries.items() if n not in left_out]

    @cached_property
    def _needed(self) -> list[MemberKey]:
        """The keys of quantities that a march computes, in the order of the tables."""
        needed = self.model.needed(self._found())
        return [n for n in self.tables.quantities if n in needed]

    def _moving(self) -> list[int]:
        """Return the sizes of groups of correlated sources: number of steps times sources at one step.

        Groups whose sources are constant in time are left out. Each source counts once for each value of its
        indices.
        """
        model = self.model
        return [self.steps * size_of(model, i) for i, g in enumerate(model.groups) if moves(model, g)]

    def bytes(self, samples: int) -> int:
        """Return the estimated memory in bytes of one replica of ``samples`` paths, without derivatives.

        The memory of derivatives by sources is that of :meth:`derivatives`.
        """
        paths, tables = self._numbers
        return 8 * (samples * paths + tables + self._weights(samples))

    def _weights(self, samples: int) -> int:
        """Return how many numbers a replica of ``samples`` paths stores for weights with entrywise rules.

        The states of these rules, such as the moments of Adam, are counted too.
        """
        return sum(self._entries(x, samples) * (1 + len(x.rule.states)) for x in self.tables.weights)

    def _entries(self, x: EntryArray, samples: int) -> int:
        """Return the number of entries of a weight with an entrywise rule, in a replica of ``samples`` paths.

        A matrix has an entry for each pair of paths, or for each path and coordinate of the inputs if these
        are given; a vector has one entry for each path. All of them are counted for each value of the indices
        of the weight, and for each unit with attributes.
        """
        row_units, column_units = (max((self.units.get(n, 1) for n in nodes), default=1) for nodes in x.nodes)
        partners = 1 if x.single else np.shape(self.data[x.given])[-1] if x.given else column_units * samples
        return int(prod(self.tables.size(x.indices)) * row_units * samples * partners)

    @cached_property
    def _numbers(self) -> tuple[int, int]:
        """Return two counts of floating-point numbers, from which the memory of a replica is estimated.

        The first is the number stored for each path. The second is the number in arrays that do not depend on
        the number of paths: Cholesky factors of covariances of sources, order parameters, and the weights of
        the updates of a flow by collocation.
        """
        model = self.model
        past = model.read_later(self._found())
        values = {n: prod(self.tables.quantities[n].sizes) * self.units[n] for n in self._needed}
        counts = [size for n, size in values.items() if n in past]
        moving = [g for g in model.groups if moves(model, g)]
        counts += [prod(self.tables.sources[n][1]) * self.units[n] for g in moving for n in g]
        tables = [
            prod(self.steps if x in (t, s) else self.tables.sizes[x] for x in e.args) for e in self._found()
        ]
        # A flow that is solved by collocation also stores, for each error signal, weights of the updates at
        # all pairs of times. These weights are counted for every scalar, as an upper bound.
        if self.stepping is not None:
            tables += [
                self.steps**2 * prod(self.tables.size(e.indices)) for e in self.tables.scalars.values()
            ]
        one_step = sum(size for n, size in values.items() if n not in past)
        return self.steps * sum(counts) + one_step, sum(n**2 for n in self._moving()) + sum(tables)

    def seconds(self, samples: int) -> float:
        """Return the estimated seconds of a replica of ``samples`` paths, with derivatives by sources.

        These are the derivatives that time steps read. If there are none, they are those for the responses
        of the result only.
        """
        count = self._carried(samples) or self.carriers(samples)
        values = self.steps * sum(prod(self.tables.quantities[n].sizes) for n in self._needed)
        numbers = samples * (values * VALUE + sum(self._moving()) * NORMAL)
        pairs = sum(self._entries(x, samples) * (2 + len(x.rule.states)) for x in self.tables.weights)
        steps = self.steps * pairs * ENTRY
        return self._march_seconds(samples) + numbers + steps + self._derivative_seconds(count)

    def _derivative_seconds(self, paths: int) -> float:
        """Return the estimated seconds to compute derivatives by sources along ``paths`` paths."""
        return self._derivatives(paths) / 8 * (DERIVATIVE + self.most / SPEED)

    def _march_seconds(self, samples: int) -> float:
        """Return the estimated seconds of matrix products and calls in a replica of ``samples`` paths."""
        paths, factors, calls = self._march_work
        return (samples * paths + factors) / SPEED + calls * CALL

    @cached_property
    def _march_work(self) -> tuple[float, float, int]:
        """Three counts from which the time of a march is estimated, for one replica.

        The first is the number of floating-point operations for each path, the second that for Cholesky
        factors of covariances of sources, and the third the number of calls of array functions in all steps.
        """
        sizes, T = self.tables.sizes, self.steps
        past = 0.0
        for q in self.tables.quantities.values():
            for ms in q.memories.values():
                read = {
                    m.quantity: prod(self.tables.size(m.symbols)) * (T if m.reach == "now" else T**2 / 2)
                    for m in ms
                    if t in m.kernel.free_symbols
                }
                past += self.units[q.node] * prod(q.sizes) * sum(read.values())
        pairs = [
            self._units_of(e) * prod(sizes[x] for x in e.args if x in sizes) * T**2 / 2
            for e in self._found()
            if not e.is_response
        ]
        entries = self._moving()
        calls = T * (len(self._needed) + len(self.tables.entries) + len(entries))
        return 2 * (past + sum(pairs) + sum(n**2 / 4 for n in entries)), sum(n**3 for n in entries), calls

    def _units_of(self, e: PathEntry) -> int:
        """Return the largest number of units over which an average in ``e`` is taken; 1 without attributes.

        ``e`` is an order parameter or scalar. Attributes are given constants of each unit, such as
        eigenvalues.
        """
        firsts = [c.first for c in e.averages.values() if isinstance(c, PathCorrelation)]
        return max((self.units.get(n, 1) for n in firsts), default=1)

    def derivatives(self, samples: int) -> int:
        """Return the estimated bytes of derivatives by sources in a replica of ``samples`` paths.

        These are the derivatives that time steps read, and those for the responses of the result only.
        """
        return self._derivatives(self._carried(samples)) + self._derivatives(self.carriers(samples))

    def _carried(self, samples: int) -> int:
        """Return the number of paths along which derivatives are computed for the time steps.

        A replica has ``samples`` paths; all of them carry derivatives, or two if the responses are those of
        linear functions. The number is 0 if all responses in the steps come from Stein's lemma.
        """
        wanted = [n for n, how in self.chosen.items() if how == "jacobian"]
        return derivative_paths(self.model, wanted, samples) if wanted else 0

    def _derivatives(self, paths: int) -> int:
        """Return the estimated memory in bytes of derivatives by sources along ``paths`` paths."""
        counts = [prod(q.sizes) * self.units[n] for n, q in self.tables.quantities.items()]
        size = max((size_of(self.model, i) for i in range(len(self.model.groups))), default=0)
        return 8 * paths * self.steps**2 * sum(counts) * size

    def carriers(self, samples: int) -> int:
        """Return along how many paths derivatives are computed for the responses of the result only.

        The number is chosen so that these derivatives take about the time of a march. It is 0 if there are no
        such responses, or if derivatives along the smallest useful number of paths take too much time or
        memory.
        """
        if not self.beside:
            return 0
        least, march = min(CARRIERS, samples), self._march_seconds(samples)
        longest = PATIENCE[0] * march + PATIENCE[1]
        if self._derivative_seconds(least) > longest or self._derivatives(least) > self.device.memory // 2:
            return 0
        even = 2 * int(max(march, LITTLE) / self._derivative_seconds(2))
        return min(max(even, least), samples, 2 * int(self.device.memory // (4 * self._derivatives(1))))

    def methods(self, samples: int) -> dict[str, str]:
        """Return how each response in a result of ``samples`` paths is computed: "jacobian" or "stein".

        The keys are names with layers, such as ``A(1)``.
        """
        along = self.beside if self.carriers(samples) else frozenset[MemberKey]()
        shown = {n: "jacobian" if n in along else "stein" for n in self.single}
        return {name_of(n): x for n, x in (self.chosen | shown).items()}

    def together(self, samples: int) -> int:
        """Return how many replicas of ``samples`` paths are marched side by side, at least one.

        If there are several, they fit into the memory of a graphics card, or into ``WORKING`` bytes.
        """
        memory = min(self.device.memory, WORKING) if self.device.is_numpy else self.device.memory
        return max(1, memory // (self.bytes(samples) + self.derivatives(samples)))

    def runs(
        self, samples: int, seeds: Sequence[np.random.SeedSequence], **given: Any
    ) -> Iterator[dict[MemberKey, Array]]:
        """Yield one solution for each seed: arrays by key (name, integer indices).

        Scalars have their time axis first, order parameters their axes as written. ``given`` are the options
        of :meth:`batches`.
        """
        for batch in self.batches([samples] * len(seeds), seeds, **given):
            for i in range(len(next(iter(batch.values())))):
                solution = {n: x[i] for n, x in batch.items()}
                yield {n: np.moveaxis(x, -1, 0) if n in self.numbers else x for n, x in solution.items()}

    def batches(  # noqa: PLR0913 - independent options
        self,
        samples: Sequence[int],
        seeds: Sequence[np.random.SeedSequence],
        *,
        matched: bool | None = None,
        ridge: float | None = None,
        progress: Callable[[int], None] | None = None,
        finished: Callable[[PathMarch, int], None] | None = None,
        whole: bool = False,
        asymmetry: Asymmetry | None = None,
        room: Room | None = None,
    ) -> Iterator[dict[MemberKey, Array]]:
        """Yield solutions for these seeds, replicas along the first axis, by key (name, integer indices).

        The axis of time of scalars comes last. Each yield holds the replicas that were marched side by side,
        as many as memory allows; the solutions do not depend on their number. ``samples`` holds the number of
        paths of each seed, which must divide the largest of these numbers. ``matched`` and ``ridge`` are
        those of :func:`solve_particles`. ``progress`` is called with the number of completed steps, summed
        over replicas, ``finished`` with the march of each replica and the number of the replica in it; with
        ``whole`` the march keeps all paths. ``asymmetry`` is the perturbation that breaks a symmetry: a first
        march records it, a second applies it. The paths are in the memory of ``room``, if it is given, and
        replace those of an earlier march; with ``whole`` each march has memory of its own.
        """
        if room is None:
            room = Room(self.device)
        jacobian = frozenset(n for n, how in self.chosen.items() if how == "jacobian")
        carriers = self.carriers(max(samples))
        together = self.together(max(samples))
        for start in range(0, len(seeds), together):
            known = KnownArrays(self.values, self.data)
            if whole:
                room = Room(self.device)
            room.clear()
            march = PathMarch(
                self.model,
                known,
                self.steps,
                samples[start : start + together],
                seeds[start : start + together],
                matched=not self.noisy if matched is None else matched,
                ridge=ridge,
                jacobian=jacobian,
                whole=whole,
                room=room,
                watched=frozenset() if self.stepping is None else self.stepping.reads(self.model),
                again=self.beside if carriers else frozenset(),
                carriers=carriers,
                undamped=self.single - self.beside if carriers else self.single,
                kernels=self.kernels,
                asymmetry=asymmetry,
            )
            room.release()
            count = march.replicas
            after: list[Callable[[int], None]] = []
            if self.stepping is not None:
                after.append(self.stepping.start(march).advance)
            if progress is not None:
                after.append(_counted(progress, start * self.steps, count))
            with np.errstate(over="ignore", invalid="ignore"):
                march.run(*after)
            if finished is not None:
                for i in range(count):
                    finished(march, i)
            require_errors_of_one_sign(self.tables, known)
            single = self._written(march)
            del march  # frees the memory of the paths of these replicas
            side = dict(known.found)
            for e in self.tables.observables if self.kernels else ():
                given = known.found, known.values, known.data, None, self.tables.extents.first, known.literals
                side[node_of(e.lhs)] = observable(e, *given, self.tables.sizes)
            side |= single
            solutions = {n: np.moveaxis(x, -1, 0) for n, x in side.items()}
            yield stacked_members(solutions, self.tables.written_out)

    def _written(self, march: PathMarch) -> dict[MemberKey, Array]:
        """Return by key the responses that a march computed a second time, for the result only.

        The axes are in the order of the arguments in the theory, with replicas last.
        """
        entries, averaged = self.tables.entries, march.averaged
        return {n: written(entries[n], averaged[n].axes, x) for n, x in march.single.items()}


def unclear(value: Array, spread: Array, replicas: int) -> bool:
    """Return whether a response must be left out of a result, because its standard error is large or unknown.

    ``value`` holds means over replicas, ``spread`` standard deviations over them, in the same shape. The
    root mean square standard error may be at most UNCLEAR times the root mean square of ``value``.

    >>> one = np.ones(3)
    >>> unclear(one, 0.1 * one, 8), unclear(one, 2 * one, 8), unclear(one * np.nan, one, 8)
    (False, True, True)
    """
    error = np.sqrt(np.mean(spread**2) / replicas)
    return not error <= UNCLEAR * np.sqrt(np.mean(value**2))


@lru_cache(maxsize=8)
def _read(theory: Theory, own: frozenset[tuple[str, RealNumber]]) -> Model:
    """Return the theory in the form in which paths are marched, for given sizes of its indices.

    ``own`` are pairs (name of a size such as P, its number). The operations of a step are sorted in causal
    order. Raises Unserved if the mean of a singular function does not exist.
    """
    for x in singularities(theory):
        if not x.has_mean:
            raise Unserved(f"{x}: the mean of this singular function does not exist")
    return Model(read_quantities(SizedTheory.of(theory, dict(own))))


def _counted(progress: Callable[[int], None], before: int, count: int) -> Callable[[int], None]:
    """Return a function that is called with the step of a march and reports completed steps to ``progress``.

    A march has ``count`` replicas; ``before`` steps were completed by earlier marches.
    """
    return lambda step: progress(before + count * step)


def name_of(n: MemberKey) -> str:
    """Return a key (name, integer indices) as text: ``X(2)`` for ("X", (2,))."""
    return f"{n[0]}{''.join(f'({k})' for k in n[1])}"


def _responses(model: Model, asked: Responses, steps: int) -> dict[MemberKey, str]:
    """Return for each response, by key, whether it is computed by "jacobian" or by "stein".

    ``asked`` is the choice of the caller. "auto" takes "jacobian" for linear theories, and for sources of at
    most FEW entries in all steps if no function between source and response jumps. It also takes "jacobian"
    for responses whose value at equal times was taken out of the theory (`_ends_before_present`). Raises
    ValueError for "jacobian" if a function jumps, and for responses without that value if ``asked`` is
    "stein" or a function jumps.
    """
    chosen: dict[MemberKey, str] = {}
    responding = {
        n: [c for c in e.averages.values() if isinstance(c, PathResponse)]
        for n, e in model.tables.entries.items()
    }
    linear = {model.kinds[c] for ways in responding.values() for c in ways} == {"linear"}
    for n, ways in responding.items():
        if not ways:
            continue
        kinds = {model.kinds[c] for c in ways}
        if asked == "jacobian" and "jumps" in kinds:
            raise ValueError(
                f"responses = 'jacobian' cannot give {name_of(n)}, because a function between the source "
                "and the field jumps; use responses = 'stein' or 'auto'. If the theory has been edited to "
                "leave out responses at equal times, no choice of responses gives this one"
            )
        ended = any(_ends_before_present(model, n, c) for c in ways)
        if ended and (asked == "stein" or "jumps" in kinds):
            raise ValueError(
                f"{name_of(n)} has no value at equal times in this theory, although its field depends on "
                "the source at the same time: Stein's lemma cannot tell neighbouring times apart, and "
                "responses = 'jacobian' needs functions that do not jump"
            )
        groups = [model.groups[group_of(model, c.source)] for c in ways]
        entries = steps * max(sum(prod(model.tables.sources[x][1]) for x in g) for g in groups)
        along = linear or ended or ("jumps" not in kinds and entries <= FEW)
        chosen[n] = "jacobian" if asked == "jacobian" or (asked == "auto" and along) else "stein"
    return chosen


def _ends_before_present(model: Model, n: MemberKey, c: PathResponse) -> bool:
    """Return whether a response ``n`` is used for s < t only, although it does not vanish at s = t.

    ``c`` is the response as an average over paths. Such a response occurs in theories that were edited, for
    example by `derive.reduce.responses.without_equal_times`. If sources at neighbouring times are nearly
    equal, Stein's lemma determines only the sum of the responses to them. It is then not accurate for a
    response that leaves out one of these times.
    """
    if c.source not in sources_now(model, c.quantity, group_of(model, c.source)):
        return False
    sums = (x for q in model.tables.quantities.values() for y in q.memories.values() for x in y)
    uses = [x for x in sums if n in {node_of(a) for a in x.kernel.atoms(AppliedUndef)}]
    return model.tables.entries[n].causal == "strict" or (uses != [] and not any(x.through for x in uses))


def kept(march: PathMarch, paths: Paths, times: Sequence[int], replica: int) -> dict[str, Block]:
    """Return the paths of one replica of a completed march that are requested by ``paths``, by name.

    ``times`` are the steps to return. Raises ValueError for an expression without a field of the theory.
    """
    program = march.tables.sized.theory.program
    expressions = paths.expressions(program)
    return {name: _block(march, name, e, paths, times, replica) for name, e in expressions.items()}


def _block(march: PathMarch, name: str, e: Expr, paths: Paths, times: Sequence[int], replica: int) -> Block:
    """Return the values on the paths of an expression ``e`` of fields, at the steps ``times``.

    Layers and samples are those chosen by ``paths``. Raises ValueError if ``e`` has no field of the theory,
    or if no layer has all of its fields.
    """
    fields = {x for x in e.atoms(AppliedUndef) if march.tables.is_random(x)}
    layers = sorted({n[1][0] for n in march.random if n[1]}) if ell in e.free_symbols else []
    layers = [k for k in layers if all(node_of(x.subs(ell, k)) in march.random for x in fields)]
    if not fields or (ell in e.free_symbols and not layers):
        raise ValueError(
            f"paths: {name} = {e} has no units: it must contain a field of the theory, and only fields at "
            "layers that the theory has"
        )
    chosen = tuple(paths.chosen("layers", layers)) if layers else ()
    field_indices = tuple(
        dict.fromkeys(i for x in sorted(fields, key=str) for i in indices_of(x) if i != ell)
    )
    sizes, picked = [], []
    for i in field_indices:
        size = march.tables.sizes[i]
        here = paths.chosen("samples", range(size)) if dimension(i) == "sample" else list(range(size))
        sizes.append(size)
        picked.append(here)
    layer_values = []
    for layer in chosen or (None,):
        f = CompiledFunction(e if layer is None else e.subs(ell, layer))
        values = []
        for x in f.leaves:
            if not (isinstance(x, AppliedUndef) and march.tables.is_random(x)):
                # The leaf x has the same value on all paths of a replica: one number for all replicas, or one
                # number for each replica.
                known = np.ravel(march.known(x, {}))
                values.append(known[replica % len(known)])
                continue
            path = march.device.take(march.random[node_of(x)][replica, list(times)]).swapaxes(0, 1)
            values.append(march.spread(path[None], indices_of(x), field_indices)[0])
        whole = np.broadcast_to(f(*values), (*sizes, len(times), march.samples))
        for axis, here in enumerate(picked):
            whole = whole.take(here, axis=axis)
        layer_values.append(np.moveaxis(whole, -2, 0))
    indices = tuple(
        (dimension(i), tuple(k + (dimension(i) != "sample") for k in here))
        for i, here in zip(field_indices, picked, strict=True)
    )
    return Block(np.stack(layer_values) if chosen else layer_values[0].copy(), chosen, indices)
