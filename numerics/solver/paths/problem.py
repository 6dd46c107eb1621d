"""Solution of problems on given samples by sampled paths: number of paths, averages, and variables.

The theory is that of the program, in exact steps or, for a flow, on a time grid. All values of a result are
averages over paths, with standard errors from independent replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import sympify
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from numerics.arrays import device_named
from numerics.averages.existence import singularities
from numerics.errors import NotConverged, SpecError, require_memory
from numerics.experiment.problem import Problem
from numerics.lowering.indices import node_of
from numerics.names import (
    ERROR,
    FEATURE_KERNEL,
    GRADIENT_KERNEL,
    OUTPUT,
    RESPONSES,
    MemberKey,
)
from numerics.progress import Progress
from numerics.results import STDERR, SYSTEMATIC, has_run_away
from numerics.results.program_names import authored_variables, numbers_of_author
from numerics.results.without_roles import averaged_by_author
from numerics.solver.by_role import KERNEL_LABELS, Replicas, reduced, scalar_variables
from numerics.solver.grid import Age, TimeGrid, is_noisy, system_of, tables_of
from numerics.solver.method import ACCURACY, BRIEF, POOR, SLACK, SMALL, WATCHED
from numerics.solver.paths.accuracy import (
    MOST_REPLICAS,
    MOST_SAMPLES,
    POWER,
    POWERS,
    REPLICAS,
    ROUGH,
    SMOOTH,
    Budget,
    Integrator,
    Level,
    Reached,
    Settled,
    grids,
    reach,
    scale_of,
    settle_paths,
)
from numerics.solver.paths.collocation import Stepping, by_sample
from numerics.solver.paths.gaussian import NotPositive, Room
from numerics.solver.paths.march import PathMarch
from numerics.solver.paths.solve import LEAST, Prepared, name_of, unclear

Array = NDArray[np.float64]
ArraysByMember = dict[MemberKey, Array]

PATHS = 2.0**32
"""Largest number of bytes of a replica for which samples are doubled."""


SPREAD = 4.0
"""Measured relative standard error of losses and errors, times the samples (tanh, L = 2 and 3)."""

GRIDS = 4.5
"""Measured time of refining the grid of a flow, in units of the time of a solution on the coarsest grid."""

TOLD_APART = 16
"""Measured number of paths for each entry of a source from which on standard errors bound the errors of
kernels (docs/theory/nonlinear.md)."""

LOST = (
    "rounding errors have made a covariance of the sampled paths inaccurate ({}); use smaller steps, or "
    "more solver.samples"
)

FEW = 64
"""Number of paths from which the first learning rates of outputs are estimated."""

NOISE = (
    "standard errors are more than half of the values. Single entries come from derivatives along paths or, "
    "if a function jumps or if derivatives take too long, from Stein's lemma, which cannot resolve responses "
    "to sources that are nearly equal; more solver.samples would do, or fewer steps"
)
"""Reason for which a response is left out of a result."""


def solve_paths(
    problem: Problem, kernels: str = "full", progress: Progress | None = None
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the variables of a result with standard errors, and notes.

    ``kernels`` is ``full``, ``trace`` or ``none``. ``solver.samples`` fixes the number of paths; without it,
    samples and replicas are chosen for ``solver.accuracy``, or for ACCURACY if the file states none. If a
    covariance of the sampled paths is not positive, the solution is repeated with two and then four times the
    paths, unless ``solver.samples`` is given.

    The status is not ok if the standard error or the bias beyond noise is larger than ``solver.accuracy``, or
    than POOR if the file states none. ``unknown_errors`` gives the reason if replicas do not bound the errors
    of kernels (:func:`unknown`) or of the grid.

    Raises :class:`~numerics.errors.SpecError` for a ``solver.samples`` that is odd or too small and for
    insufficient memory, :class:`~numerics.errors.Diverged` with the step, and
    :class:`~numerics.errors.NotConverged` if an accuracy is out of reach.
    """
    for more in (1, 2, 4):
        try:
            return _solved(problem, kernels, progress, more)
        except NotPositive:
            # A covariance was not positive, which depends on the random numbers and is rarer with more
            # samples: try again with twice and then with four times as many, unless their number is given.
            if problem.solver.samples is not None or more == 4:
                raise
    raise AssertionError("the last trial neither returned a solution nor raised NotPositive")


def _solved(  # noqa: PLR0915 - the notes of a result need all of its parts
    problem: Problem, kernels: str, progress: Progress | None, more: int
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Solve a problem by sampled paths, and return the variables of the result and the notes.

    The first number of paths of a replica is ``more`` times that with which :func:`solve_paths` begins.
    """
    solver = problem.solver
    notes: dict[str, Any] = {}
    grid: TimeGrid | None = None
    settled: Settled[Any] | None = None
    begun: Level[Any] | None = None
    collect: Any = Replicas if problem.has_roles else AuthoredReplicas
    first = 0
    if problem.flow:
        first = more * _first(problem, prepared_for(problem))
        settled = _settled(problem, first, kernels, progress)
        grid, begun, notes = settled.grid, settled.begun, dict(settled.notes)
    complete = prepared_for(problem, grid, kernels)
    if grid is None or solver.samples is None:
        first = more * _first(problem, complete)
        begun = begun if begun and begun.samples == first else None
    deferred = complete.carriers(first) > 0
    prepared = prepared_for(problem, grid, kernels, responses=False) if deferred else complete
    _refuse_too_large(problem, prepared, first)
    given = solver.samples is not None
    halves = REPLICAS // 2 if given and solver.accuracy is None else REPLICAS
    beside = (first, REPLICAS) if begun is None and halves + REPLICAS <= prepared.together(first) else (0, 0)
    accuracy = solver.accuracy or (None if given else ACCURACY)
    derivatives = _Derivatives(complete, accuracy, first) if deferred else None
    room = Room(prepared.device)
    attempt = _Attempt(problem, prepared, room, kernels, grid, progress, beside, derivatives)
    search = _search(problem, prepared, first)
    budget = Budget(search.affordable, prepared.seconds)
    reached = reach(attempt, collect, accuracy, first, search.most, begun, budget)
    attempt.add_responses(reached)
    values = reached.solutions.averaged(problem)
    responses = [name for name in RESPONSES if name in values and problem.has_roles]
    left_out = [name for name in responses if _unclear(values, name, reached.replicas)]
    values = {name: x for name, x in values.items() if name.removesuffix(STDERR) not in left_out}
    computed = complete.methods(reached.samples)
    methods = sorted({x for n, x in computed.items() if n.partition("(")[0] not in left_out})
    cut = max(attempt.cut, default=0.0)
    if accuracy is not None and cut > accuracy:
        raise NotConverged(
            f"solver.accuracy = {accuracy:.1e}: "
            + LOST.format(f"a conditional variance is -{cut:.1e} of the variance")
        )
    # `seen` contains the part of the error of the time grid that exceeds its noise; `bias` also contains the
    # part that noise may explain.
    seen = reached.bias + cut + (settled.seen if settled else 0.0)
    bias = reached.bias + cut + float(notes.get("grid_error", 0.0))
    for name in [x for x in reached.missed if x in values]:
        missed = reached.missed[name] + cut * scale_of(values[name])
        missed = missed + (settled.missed[name] if settled else 0.0)
        value = values[name]
        values[name + SYSTEMATIC] = np.broadcast_to(missed.reshape(-1, *(1,) * (value.ndim - 1)), value.shape)
    # Systematic errors are measured for the variable "error", but not for the outputs. The systematic error
    # of the outputs is taken to be that of "error", times the ratio of the largest standard error of the
    # outputs to that of "error".
    if {OUTPUT, "error"} <= {*values}:
        ratio = values[OUTPUT + STDERR].max() / (values["error" + STDERR].max() or 1.0)
        values[OUTPUT + SYSTEMATIC] = ratio * values["error" + SYSTEMATIC]
    if "test_error" in values:
        values["test_error" + SYSTEMATIC] = values["test_f" + SYSTEMATIC]
    asked = solver.accuracy or POOR
    wild = [
        x
        for x in singularities(problem.theory)
        if not x.has_variance and {x.name, KERNEL_LABELS.get(x.name)} & {*values}
    ]
    reasons = [unknown(values, complete.most, reached.samples) if problem.has_roles else None]
    reasons += [f"{x}, whose variance is infinite" for x in wild]
    if bias > asked >= seen:
        reasons.append(
            f"the time grid: {REPLICAS} replicas show its error only to {bias:.1e}, and more solver.samples "
            "would do"
        )
    return values, notes | {
        "status": "ok" if max(reached.error, seen) <= asked else "not converged",
        "unknown_errors": "; ".join(x for x in reasons if x) or None,
        "samples": reached.samples,
        "replicas": reached.replicas,
        "responses": " and ".join(methods) if methods else "none needed" if not left_out else "left out",
        "left_out": f"{', '.join(left_out)}: {NOISE}" if left_out else None,
        "accuracy": reached.error,
        "bias": bias,
        "bias_estimate": reached.bias_bound,
        "error_power": reached.power,
        "exchangeable": prepared.exchangeable,
    }


def _unclear(values: Mapping[str, Array], name: str, replicas: int) -> bool:
    """Return whether the standard error of the response ``name`` is too large at some layer to show it.

    ``values`` holds the mean of the response and its standard error over ``replicas`` replicas, with layers
    first. The last layer is left out, because A is not computed there, and B is zero.
    """
    pairs = zip(values[name][:-1], values[name + STDERR][:-1], strict=True)
    return any(unclear(value, error * np.sqrt(replicas), replicas) for value, error in pairs)


def unknown(values: Mapping[str, Array], entries: int, samples: int) -> str | None:
    """Return the reason why standard errors of kernels do not bound their errors; None if they do.

    ``values`` are the variables of the result, ``entries`` the number of entries of a source over steps and
    indices, ``samples`` the number of paths. Two reasons exist. Few paths for each entry leave a bias that
    half as many paths do not show, because they have the same bias. And if kernels are hardly larger than
    their noise, the distribution over replicas is so skew that their scatter says little: this is so if
    ``max_t (<e^2> / <k^2>)^(1/2) > POOR`` at equal times, over the samples of a layer, with the kernel k and
    its standard error e.

    >>> k = np.ones((1, 2, 2, 1, 1))
    >>> unknown({"G": k, "G_stderr": 0.01 * k}, 4, 64), unknown({"G": k, "G_stderr": 0.2 * k}, 4, 64)
    (None, 'G: a standard error of 0.2 of the kernel')
    """
    names = [
        x for x in values if x.removesuffix("_trace") in (FEATURE_KERNEL, GRADIENT_KERNEL, "tangent_kernel")
    ]
    if names and samples < TOLD_APART * entries:
        return (
            f"kernels: {samples} paths for the {entries} entries of a source, {TOLD_APART} for each would do"
        )
    for name in names:
        lead = not name.startswith("tangent_kernel")
        value, error = (
            np.einsum("ltt...->lt..." if lead else "tt...->t...", values[name + x]) for x in ("", STDERR)
        )
        axes = tuple(range(1 + lead, value.ndim))
        size, spread = ((x**2).mean(axis=axes) for x in (value, error))
        share = float(np.sqrt(np.max(spread / np.where(size > 0, size, np.inf))))
        if share > POOR:
            return f"{name}: a standard error of {share:.2g} of the kernel"
    return None


# -- the theory with its numbers ----------------------------------------------------------------------------


def prepared_for(
    problem: Problem, grid: TimeGrid | None = None, kernels: str = "none", *, responses: bool = True
) -> Prepared:
    """Return the theory of a problem ready to be marched, in steps or, for a flow, on a time grid.

    The default grid of a flow is the coarsest. ``kernels`` is "full", "trace" or "none". Correlations that no
    step reads are computed unless ``kernels`` is "none"; they are always computed for a theory without
    scalars, because the search for an accuracy then watches them. If ``responses`` is true, the rule is in
    steps and ``kernels`` is "full", the responses A and B for the result are computed without the ridge of
    Stein's lemma, which mixes their entries.

    Raises :class:`~numerics.errors.Unserved` for forms of a theory that sampled paths refuse.
    """
    data: dict[str, Any] = dict(problem.arrays)
    given: dict[str, Any] = {"values": problem.values, "device": device_named(problem.solver.device)}
    given["kernels"] = kernels != "none" or not problem.discrete.scalars
    given["responses"] = problem.response_method
    if not problem.flow:
        data = dict(problem.data)
        single = responses and kernels == "full" and problem.has_roles and _shows_responses(problem)
        return Prepared(problem.discrete, steps=len(problem.times), data=data, single=single, **given)
    given["single"] = False
    grid = grid or next(grids(problem.times, 2))
    rule: Any = problem.program.rule
    numbers, steps = problem.numbers, len(grid.nodes)
    if grid.age is None:
        data |= tables_of(problem.program, numbers, grid.nodes, grid.weights)
        return Prepared(problem.discrete, steps=steps, data=data, **given)
    data |= tables_of(problem.program, numbers, grid.nodes, np.zeros((steps, steps)))
    rate = float(sympify(getattr(rule, "rate", 1)).subs(dict(numbers)))
    A, b = system_of(rule, numbers)
    stepping = Stepping(grid.nodes, grid.order, rate, A, b, bool(A[0, 0]) or is_noisy(rule))
    theory = by_sample(problem.discrete)
    return Prepared(theory, steps=steps, data=data, stepping=stepping, **given)


def _shows_responses(problem: Problem) -> bool:
    """Return whether the theory of a problem contains a response that is a variable of its result."""
    named = (str(q.symbol.func) for q in problem.discrete.order_parameters if q.kind == "response")
    return any(name in RESPONSES for name in named)


def forecast(problem: Problem, kernels: str = "full") -> tuple[float, float, float]:
    """Estimate seconds, bytes and relative error of sampled paths for a problem, from its sizes.

    The first solution has ``solver.samples`` paths, or the smallest number with which a search begins. The
    number that a required accuracy needs is estimated by doubling, as if the error were SPREAD/samples.
    """
    complete = prepared_for(problem, kernels=kernels)
    samples = problem.solver.samples
    first = samples or complete.enough
    prepared = (
        prepared_for(problem, kernels=kernels, responses=False) if complete.carriers(first) else complete
    )
    search = _search(problem, prepared, first)
    accuracy = problem.solver.accuracy or ACCURACY
    error = accuracy if samples is None else max(SPREAD / samples, 1e-5)
    seconds = search.seconds * (GRIDS if problem.flow else 1.0)
    # `prepared` is without the responses that are derivatives along the paths. They are assumed to be
    # computed only with the last number of samples, and the time for this is added.
    if complete is not prepared:
        seconds += REPLICAS * (complete.seconds(search.last) - prepared.seconds(search.last))
    return seconds, max(search.bytes, _held(complete, search.last)), error


@dataclass(frozen=True)
class _AccuracySearch:
    """Estimated cost of a search for an accuracy, and the bounds that follow from it.

    The search begins with ``first`` paths of a replica, after a solution with half as many, and is estimated
    to end with ``last`` paths, in ``seconds`` and ``bytes``. If ``doubled`` is false the number of paths is
    fixed.
    """

    prepared: Prepared
    first: int
    last: int
    seconds: float
    bytes: float
    doubled: bool

    @property
    def most(self) -> int:
        """Largest number of paths of a replica that the search tries, within time and memory."""
        most = self.first
        while self.doubled and 2 * most <= MOST_SAMPLES and self._may(2 * most):
            most *= 2
        return most

    def affordable(self, samples: int) -> int:
        """Return the largest number of replicas, each of ``samples`` paths, for which the search has time.

        It is at least REPLICAS and at most MOST_REPLICAS.
        """
        left = max(SLACK * self.seconds, BRIEF) - _spent(self.prepared, self.first, samples)
        more = int(max(left, 0.0) / self.prepared.seconds(samples))
        return min(REPLICAS + more, MOST_REPLICAS)

    def _may(self, samples: int) -> bool:
        """Return whether time and memory allow a search up to ``samples`` paths of a replica."""
        return (
            self.prepared.bytes(samples) <= PATHS
            and _held(self.prepared, samples) <= max(SLACK * self.bytes, SMALL)
            and _spent(self.prepared, self.first, samples) <= max(SLACK * self.seconds, BRIEF)
        )


def _spent(prepared: Prepared, first: int, last: int) -> float:
    """Return the estimated seconds of a search from ``first``/2 to ``last`` paths of a replica, by doubling.

    Each number of paths is solved with REPLICAS replicas.
    """
    sizes = [first // 2]
    while sizes[-1] < last:
        sizes.append(2 * sizes[-1])
    return REPLICAS * sum(prepared.seconds(n) for n in sizes)


def _held(prepared: Prepared, samples: int) -> float:
    """Return the estimated memory in bytes of replicas of ``samples`` paths that are marched together."""
    each = prepared.bytes(samples) + prepared.derivatives(samples)
    return float(each * min(REPLICAS, prepared.together(samples)))


def _search(problem: Problem, prepared: Prepared, first: int) -> _AccuracySearch:
    """Return the estimated cost of a search for an accuracy that begins with ``first`` paths of a replica.

    The relative error is taken to be SPREAD over the number of paths, and to fall with the root of the number
    of replicas.
    """
    given, accuracy = problem.solver.samples, problem.solver.accuracy or ACCURACY
    if given is not None:
        extra = 0.0
        if problem.solver.accuracy is not None:
            needed = REPLICAS * (SPREAD / given / accuracy) ** 2
            extra = min(max(needed, REPLICAS), MOST_REPLICAS) - REPLICAS
        seconds = (1.5 * REPLICAS + extra) * prepared.seconds(given)
        return _AccuracySearch(prepared, given, given, seconds, _held(prepared, given), doubled=False)
    samples = first
    while (
        samples < SPREAD / accuracy and 2 * samples <= MOST_SAMPLES and prepared.bytes(2 * samples) <= PATHS
    ):
        samples *= 2
    seconds = _spent(prepared, first, samples)
    return _AccuracySearch(prepared, first, samples, seconds, _held(prepared, samples), doubled=True)


def _first(problem: Problem, prepared: Prepared) -> int:
    """Return the number of paths of a replica with which a search begins.

    It is ``solver.samples``, or else a number chosen from the required accuracy. Raises SpecError if
    ``solver.samples`` is odd, or less than Stein's lemma or standard errors need.
    """
    given, least = problem.solver.samples, prepared.least
    if given is None:
        likely = SPREAD / (problem.solver.accuracy or ACCURACY)
        return max(prepared.enough, min(prepared.cheap, 1 << int(np.log2(likely))))
    if given < least:
        share, more = ("a quarter of the", 8) if prepared.smooth else ("the", 2)
        reason = (
            f"is fewer than {share} {prepared.entries} entries of a source (samples of the data, outputs, "
            "times), which Stein's lemma has to tell apart"
        )
        reason = reason if least > 2 * LEAST else "is too few paths for a standard error"
        raise SpecError(
            "solver.samples",
            given,
            reason,
            f"{least} or more, better {more * least}",
        )
    if given % 2:
        raise SpecError("solver.samples", given, "is odd, but paths come in mirrored pairs", "an even number")
    return given


def _refuse_too_large(problem: Problem, prepared: Prepared, samples: int) -> None:
    """Raise SpecError before a run if the arrays of a replica of ``samples`` paths exceed the memory."""
    said = problem.key_and_value("training.points" if problem.flow else "training.steps")
    require_memory(prepared.bytes(samples), said, f"with {samples} paths", "fewer times, or fewer samples")


LIKELY = 1.4
"""A search is likely to end if the error of the first replicas is below this multiple of the accuracy."""


# -- replicas side by side ----------------------------------------------------------------------------------


@dataclass
class _Derivatives:
    """Decision which replicas carry derivatives along their paths, for the responses in a result.

    No step reads these responses, and derivatives take longer than the paths. So a search for an ``accuracy``
    runs without them until it is likely to end: when the error, falling with the power POWER of the number of
    paths, is expected below LIKELY times the accuracy. Without an accuracy it ends with the ``first`` number
    of paths. Only the first REPLICAS of a number of paths carry derivatives: more replicas are added for the
    accuracy of errors and outputs, and responses have their own standard errors. ``done`` are the numbers of
    paths for which replicas have carried them, ``errors`` the standard errors by number of paths.
    """

    prepared: Prepared
    accuracy: float | None
    first: int
    done: set[int] = field(default_factory=set)
    errors: dict[int, float] = field(default_factory=dict)

    def due(self, samples: int) -> bool:
        """Return whether the first replicas of ``samples`` paths each carry derivatives along their paths.

        This is so if the search is likely to end with this number of paths, which is then recorded in
        ``done``.
        """
        if self._is_last(samples):
            self.done.add(samples)
        return samples in self.done

    def _is_last(self, samples: int) -> bool:
        """Return whether the search for an accuracy is likely to end with replicas of ``samples`` paths."""
        if self.accuracy is None:
            return samples == self.first
        likely = self.accuracy * LIKELY
        return any(e * (n / samples) ** POWER <= likely for n, e in self.errors.items() if n < samples)

    def note(self, samples: int, watched: list[dict[str, Array]]) -> None:
        """Store the standard error of the watched values of replicas with ``samples`` paths each."""
        self.errors[samples] = Level(samples, None, list(watched)).error


@dataclass
class AuthoredReplicas:
    """Order parameters and scalars of replicas of a program without a recognised output and error.

    ``runs`` holds for each key (name, integer indices) a list with one array for each batch of replicas that
    was added; the first axis of an array is that of the replicas of the batch.
    """

    runs: dict[MemberKey, list[Array]] = field(default_factory=dict)

    def add(self, found: ArraysByMember) -> None:
        """Add the values of a batch of replicas: arrays by key, with the replicas along the first axis."""
        for n, x in found.items():
            self.runs.setdefault(n, []).append(x)

    def averaged(self, problem: Problem) -> dict[str, Array]:
        """Return means over replicas and their standard errors as variables of a result, by name.

        The names are those of the order parameters and scalars in the program. The training loss is added if
        it is an expression of such scalars.
        """
        return averaged_by_author(problem, {n: np.concatenate(x) for n, x in self.runs.items()})


@dataclass(frozen=True)
class _Attempt:
    """Solver of replicas: collects the variables of each solution, and yields its losses and errors.

    ``beside`` is a pair (number of paths, number of replicas) of further replicas that are marched together
    with the first ones of half as many paths; their solutions stay in ``waiting`` until they are asked for.
    With ``derivatives``, single entries of responses come only from replicas that carry derivatives, and
    ``prepared`` computes none. All marches have their paths in the memory of ``room``.
    """

    problem: Problem
    prepared: Prepared
    room: Room
    kernels: str
    grid: TimeGrid | None
    progress: Progress | None
    beside: tuple[int, int] = (0, 0)
    derivatives: _Derivatives | None = None
    # For each march, the largest negative variance that was set to zero, relative to the variance of its
    # source.
    cut: list[float] = field(default_factory=list)
    waiting: dict[tuple[int, int], list[tuple[ArraysByMember, float]]] = field(default_factory=dict)

    def __call__(
        self, samples: int, numbers: Iterable[int], into: Replicas | AuthoredReplicas
    ) -> Iterator[dict[str, Array]]:
        """Solve replicas, add their variables to ``into``, and yield the watched values of each.

        ``samples`` is the number of paths, ``numbers`` are the numbers of the replicas, which determine their
        seeds. The watched values of a replica are its losses and errors by name, or those of
        :meth:`by_author`; a search computes standard error and bias from them.
        """
        numbers, watched = list(numbers), []
        # If the replicas have half as many paths as those of `beside`, both are solved in one march
        # (`joined`). Replicas with half as many paths only show the bias of watched values. If the program
        # has a recognised output, their kernels are therefore not computed; otherwise `by_author` keeps their
        # correlations.
        joined = 2 * samples == self.beside[0]
        later = self.waiting.pop((samples, len(numbers)), None)
        prepared, bare = self.prepared, self.derivatives is not None
        first = 0 in numbers
        if self.derivatives and first and not later and not joined and self.derivatives.due(samples):
            prepared, bare = self.derivatives.prepared, False
        together = self.beside if joined else (0, 0)
        for solutions, rounding in later or self.marched(prepared, samples, numbers, *together):
            if isinstance(into, AuthoredReplicas):
                yield from self.by_author(solutions, rounding, into)
                continue
            shown = {n: x for n, x in solutions.items() if not (bare and n[0] in RESPONSES)}
            kernels = {} if joined else reduced(self.problem, shown, self.kernels, self.grid, leading=1)
            into.kernels.add_all(kernels)
            into.numbers.add_all(self.numbers(solutions))
            for error, output in zip(solutions[ERROR, ()], solutions[OUTPUT, ()], strict=True):
                both = (np.moveaxis(x, -1, 0) for x in (error, output))
                scalars = np.stack([x if self.grid is None else self.grid.once(x) for x in both])
                into.scalars.append(scalars)
                values = scalar_variables(self.problem, scalars)
                # If the loss has diverged, no large rounding error is raised, because the divergence of the
                # loss says more.
                if "train_loss" in values and not has_run_away(values["train_loss"]).any():
                    self.refuse_rounding(rounding / scale_of(values["error"]))
                watched.append({name: values[name] for name in WATCHED if name in values})
                yield watched[-1]
        if self.derivatives and first:
            self.derivatives.note(samples, watched)

    def add_responses(self, reached: Reached[Replicas]) -> None:
        """Add responses to the solutions of a search if none of its replicas has carried derivatives."""
        if self.derivatives is None or reached.samples in self.derivatives.done:
            return
        numbers = list(range(REPLICAS))
        for solutions, _ in self.marched(self.derivatives.prepared, reached.samples, numbers, 0, 0):
            responses = {n: x for n, x in solutions.items() if n[0] in RESPONSES}
            kernels = reduced(self.problem, responses, self.kernels, self.grid, leading=1)
            reached.solutions.kernels.add_all(kernels)

    def numbers(self, found: ArraysByMember) -> dict[str, Array]:
        """Return the variables of a result that are scalars of the program, neither output nor error.

        ``found`` holds solutions by key (name, integer indices). Arrays in it, and in the result, have
        replicas on the first axis.
        """
        return numbers_of_author(self.problem, self.early(found), 1)

    def early(self, found: ArraysByMember) -> ArraysByMember:
        """Return the scalars in the solutions ``found``, by key, with axes (replicas, times, indices).

        The times of a rule in steps are all steps. The times of a flow are the output times of its grid; the
        scalars are read there from their values at the nodes.
        """
        numbers = {n: np.moveaxis(found[n], -1, 1) for n in self.prepared.numbers}
        if self.grid is None:
            return numbers
        return {n: np.stack([self.grid.once(one) for one in x]) for n, x in numbers.items()}

    def by_author(
        self, found: ArraysByMember, left: float, into: AuthoredReplicas
    ) -> Iterator[dict[str, Array]]:
        """Collect replicas of a program without a recognised output, and yield their watched values.

        ``found`` holds the solutions by key, ``left`` is their rounding error. The watched values are the
        scalars in the loss; all scalars if the loss has none or is not given; or correlations at equal times
        if there are no scalars.
        """
        scalars, numbers = self.early(found), self.numbers(found)
        pairs = {
            (q.name, node_of(q.symbol)[1])
            for q in self.problem.discrete.order_parameters
            if q.kind == "correlation"
        }
        both = {n: x if self.grid is None else self.grid.twice(x) for n, x in found.items() if n in pairs}
        into.add(scalars | (both if self.kernels == "full" else {}))
        if numbers:
            self.refuse_rounded_numbers(left, numbers)
        else:
            equal = {n: np.diagonal(x, axis1=-2, axis2=-1) for n, x in both.items()}
            numbers = {f"{name_of(n)} at equal times": np.moveaxis(x, -1, 1) for n, x in equal.items()}
        outputs = self.in_loss()
        watched = {name: x for name, x in numbers.items() if name in outputs} or numbers
        for replica in range(len(next(iter(watched.values())))):
            yield {name: x[replica] for name, x in watched.items()}

    def in_loss(self) -> set[str]:
        """Return the names of scalars in the loss, as in a result; empty for a program without a loss."""
        loss = self.problem.program.loss
        read = set() if loss is None else {str(x.func) for x in loss.atoms(AppliedUndef)}
        return {label for label, x in authored_variables(self.problem).items() if x.name in read}

    def refuse_rounded_numbers(self, left: float, numbers: Mapping[str, Array]) -> None:
        """Raise NotConverged if the rounding error is too large relative to the scalars of a solution.

        ``left`` is the absolute rounding error, ``numbers`` are the scalars by name. Nothing is
        refused here if one of them has diverged, because the message of divergence is more helpful.
        """
        sizes = [np.abs(x).reshape(*x.shape[:2], -1).max(axis=2) for x in numbers.values()]
        if not any(has_run_away(x).any() for size in sizes for x in size):
            self.refuse_rounding(left / max(map(scale_of, sizes)))

    def marched(
        self, prepared: Prepared, samples: int, numbers: list[int], more: int, count: int
    ) -> Iterator[tuple[ArraysByMember, float]]:
        """Yield the solutions of replicas, by batches, with the absolute rounding error of each batch.

        ``numbers`` are the numbers of the replicas, ``samples`` is the number of paths of each. Replicas
        0..count - 1 of ``more`` paths are marched together with them, and stored in ``waiting``.
        """
        first, every = len(numbers), [*numbers, *range(count)]
        seeds = [np.random.SeedSequence(self.problem.solver.seed, spawn_key=(n,)) for n in every]
        progress, total, roundings = self.progress, len(every) * prepared.steps, [0.0]
        counted = None if progress is None else lambda step: progress(step, total)

        def finished(march: PathMarch, replica: int) -> None:
            if not replica:
                roundings.append(march.rounding())
                self.cut.append(march.cut)

        each = [samples] * first + [more] * count
        batches = prepared.batches(each, seeds, progress=counted, finished=finished, room=self.room)
        for solutions in _sound(batches):
            if count:
                self.waiting[more, count] = [({n: x[first:] for n, x in solutions.items()}, roundings[-1])]
            yield {n: x[:first] for n, x in solutions.items()} if count else solutions, roundings[-1]

    def refuse_rounding(self, share: float) -> None:
        """Raise NotConverged if rounding errors exceed the required accuracy.

        The accuracy is ACCURACY if the file states none. ``share`` is the absolute rounding error divided by
        the size of the errors of outputs, or of the scalars of a program without outputs. An infinite share
        is not refused.
        """
        if (self.problem.solver.accuracy or ACCURACY) < share < np.inf:
            key, value = self.problem.key_and_value("network.gamma0")
            if share > 1:
                raise NotConverged(
                    f"{key} = {value}: rounding errors of averages over paths are {share:.1e} times the "
                    "error of the network, because paths are large, or because gamma0 is small and outputs "
                    "contain 1/gamma0; use a smaller learning rate, a larger gamma0, or functions that "
                    "grow more slowly"
                )
            raise NotConverged(
                f"{key} = {value}: rounding errors of averages over paths are {share:.1e} of the error of "
                "the network, because outputs contain the factor 1/gamma0, or because paths have become "
                'large; use a larger gamma0, a lower temperature, or solver.method = "lazy"'
            )


def _sound(batches: Iterator[ArraysByMember]) -> Iterator[ArraysByMember]:
    """Yield the same batches of solutions; raise failures of linear algebra as NotConverged with a remedy."""
    try:
        yield from batches
    except NotPositive as reason:
        raise NotPositive(LOST.format(reason)) from reason
    except np.linalg.LinAlgError as reason:
        raise NotConverged(LOST.format(reason)) from reason


# -- the flow -----------------------------------------------------------------------------------------------


def _settled(problem: Problem, samples: int, kernels: str, progress: Progress | None) -> Settled[Any]:
    """Return the time grid on which a flow has converged, with its solution (see ``settle_paths``).

    Grids are refined until their error is small relative to the standard error of the paths and the accuracy,
    or below ``solver.rtol``. The accuracy is ``solver.accuracy``, or ACCURACY if neither it nor
    ``solver.samples`` is given.
    """
    solver, room = problem.solver, Room(device_named(problem.solver.device))

    def attempt(grid: TimeGrid) -> _Attempt:
        prepared = prepared_for(problem, grid, kernels)
        _refuse_too_large(problem, prepared, samples)
        return _Attempt(problem, prepared, room, kernels, grid, progress)

    accuracy = None if solver.samples is not None and solver.accuracy is None else solver.accuracy or ACCURACY
    return settle_paths(
        problem.times,
        attempt,
        Replicas if problem.has_roles else AuthoredReplicas,
        samples,
        rtol=solver.rtol,
        accuracy=accuracy,
        integrator=integrator_for(problem),
    )


GRADIENTS = 3
"""Largest number of time nodes through which gradients are interpolated: four are worse on coarse grids
(measured).

The change of outputs by weight decay is known only from the last step, to second order, so that such rules
use fewer nodes."""

EARLY = 0.25
"""Time scale of the first steps of a grid, divided by the shortest learning time at the start.

It is below one because kernels that grow shorten the learning time."""


def integrator_for(problem: Problem) -> Integrator:
    """Return collocation of the outputs if the theory allows it, and an explicit rule otherwise.

    The explicit rule is used if coefficients of the training rule depend on time, if the error is a
    discontinuous function of the output, if updates are not sums over errors times gradients, or if no
    tangent kernel is known. Its order is SMOOTH, or ROUGH with noise or functions that are not smooth. The
    order of collocation is the same, but at most GRADIENTS, or ROUGH with weight decay.
    """
    rule: Any = problem.program.rule
    noisy = is_noisy(rule)
    order = SMOOTH if prepared_for(problem).smooth and not noisy else ROUGH
    explicit = Integrator("Adams-Bashforth", order, 1.0 if noisy else POWERS[order])
    if not rule.system.steady:
        return explicit
    try:
        by_sample(problem.discrete)
    except NotApplicable:
        return explicit
    A, _ = system_of(rule, problem.numbers)
    decay = -A[0, 0]
    # The fastest rate is zero if nothing is learnt at time zero, for example because all inputs are zero. The
    # inverse of the last time is used then.
    fastest = _fastest(problem) or 1 / float(problem.times[-1])
    age = Age(EARLY / fastest, 1 / decay if decay else np.inf)
    order = min(order, ROUGH if decay else GRADIENTS)
    return replace(explicit, name="collocation of the outputs", order=order, age=age)


def _fastest(problem: Problem) -> float:
    """Return the largest rate (1/time) at which outputs are learnt at time zero, from a few paths."""
    start = np.zeros(1)
    prepared = prepared_for(problem, TimeGrid(start, np.zeros((0, 1)), np.arange(0), 1, Age(1.0)))
    rates: list[float] = []
    seeds = [np.random.SeedSequence(problem.solver.seed)]

    def finished(march: PathMarch, _: int) -> None:
        assert prepared.stepping is not None
        rates.append(prepared.stepping.start(march).fastest())

    list(prepared.runs(max(FEW, prepared.least), seeds, finished=finished))
    return rates[0]
