"""One front end for every theory: which method fits, at what cost and how exactly; and the solution by it.

solve("digits.toml")                     # the best method that fits
print(explain("digits.toml"))            # what each method says; nothing is run
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from derive.program import Program
from derive.theory import Theory
from numerics.arrays import CPU, DEVICE, device_named
from numerics.averages.existence import singularities
from numerics.errors import (
    Diverged,
    NotConverged,
    SpecError,
    Unserved,
    require_choice,
    require_time,
    value_to_toml,
)
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import beta
from numerics.experiment.vanishing import require_gradients
from numerics.progress import Progress
from numerics.results import BY_SAMPLE, Result, named
from numerics.results.advice import explained, input_scale
from numerics.results.authored import (
    authored_variables,
    coordinates,
    described,
    names_in_words,
    numbers_by_role,
    require_variables,
)
from numerics.results.losses import loss_in_words
from numerics.results.prefix import DIVERGED, before_divergence
from numerics.solver.depth.method import InfiniteDepthMethod
from numerics.solver.direct.method import ReferenceMethod
from numerics.solver.lazy.method import LazyMethod
from numerics.solver.linear.method import MarchMethod
from numerics.solver.method import QUICK, Array, KeptKernels, Method, No, Yes, answer
from numerics.solver.nodes.method import QuadratureMethod
from numerics.solver.paths.method import PathsMethod
from numerics.solver.rest.method import RestMethod
from numerics.solver.transform.method import TransformMethod
from numerics.threads import one_thread

if TYPE_CHECKING:
    import xarray as xr

METHODS: tuple[Method, ...] = (
    TransformMethod(),
    MarchMethod(),
    InfiniteDepthMethod(),
    QuadratureMethod(),
    LazyMethod(),
    PathsMethod(),
    RestMethod(),
    ReferenceMethod(),
)
"""Every method, the most special ones first among equals."""

LONG = 10.0
"""Seconds from which a run says beforehand how long it takes."""

ENOUGH = 5e-3
"""The error of a method that is good enough where the file does not say an accuracy: that of paths."""

SLACK = 3.0
"""Times the time of the cheapest method that a more exact one may take."""

REFERENCE = "direct"
"""The method that ``auto`` takes where no other serves a theory: right, and slow."""

BY_NAME = ("rest", REFERENCE)
"""Methods that are taken only where ``solver.method`` asks for them, or where no other serves a theory.

``rest`` is the march of ``paths`` with the ridge regression of its last kernel beside it: the theorem gives
the outputs once that kernel is known, and only the march finds it, so there is nothing that ``auto`` would
save by it.  ``direct`` judges the others, and serves what they refuse.
"""


ON_DEVICES = ("paths",)
"""Methods that run where ``solver.device`` says; the others run on the CPU."""


@dataclass(frozen=True)
class Choice:
    """What every method said, and which one runs (None if none does)."""

    answers: tuple[tuple[Method, Yes | No], ...]
    method: Method | None
    accuracy: float | None
    rtol: float

    @property
    def asked(self) -> tuple[float, str]:
        """The accuracy that is asked of the method that runs, and the key that says it."""
        if self.accuracy is not None:
            return self.accuracy, "solver.accuracy"
        own = next((x.asked for m, x in self.answers if m is self.method and isinstance(x, Yes)), None)
        return (self.rtol, "solver.rtol") if own is None else (own, "the default of solver.accuracy")

    def __str__(self) -> str:
        rows = []
        for method, said in self.answers:
            if isinstance(said, Yes):
                size = f"{said.cost:.2g} s, {said.memory / 2**20:.3g} MiB, error {said.error:.1g}"
                only = " (by name only)" if method.name in BY_NAME and method is not self.method else ""
                rows.append(f"{method.name:10}{size}{only}{'; ' + said.note if said.note else ''}")
            else:
                rows.append(f"{method.name:10}no: {_told(said)}")
        if self.method is None:
            return "\n".join([*rows, "runs: none"])
        asked, key = self.asked
        return "\n".join([*rows, f"runs: {self.method.name}; accuracy asked for: {asked:.1g} ({key})"])


def choose(
    problem: Problem, keep: KeptKernels = "auto", *, every: bool = True, without: Collection[str] = ()
) -> Choice:
    """The best method that fits.

    A method whose error is at most ``solver.rtol`` comes first, the cheapest of these.  Else it is the
    cheapest whose error meets ``solver.accuracy``.  Where the file does not say an accuracy, it is the most
    exact of those that reach ENOUGH within QUICK seconds, or within SLACK times the time of the cheapest.  If
    none meets the accuracy, it is the most exact of all.  ``solver.method = "name"`` asks for one by name.
    Where no other method serves the theory, ``auto`` takes the reference solver.  A result without responses
    is given only where none with them reaches ``solver.rtol``, and not if all kernels are asked for by
    ``keep = "full"``.  Without ``every`` only those are asked that may run: the one that is named, else all
    but those by name only, sampled paths where nothing is exact, and those that give no responses where the
    others do not suffice.
    Methods ``without`` which it must be have been tried before and failed.
    """
    require_choice("kernels", keep, get_args(KeptKernels))
    _require_averages(problem)
    device, alone = device_named(problem.solver.device), No(DEVICE, problem.solver.device, "runs on the CPU")
    by_name = problem.solver.method
    named = {by_name} if by_name != "auto" else {m.name for m in METHODS} - {*BY_NAME, *without}
    accuracy, rtol = problem.solver.accuracy, problem.solver.rtol
    found: dict[str, Yes | No] = {}

    def exact(said: Yes | No) -> bool:
        return isinstance(said, Yes) and said.error <= problem.solver.rtol

    def able(responses: bool) -> list[tuple[Method, Yes]]:
        """Asks the methods that give responses, or the others; those that fit and may run."""
        mine = [m for m in METHODS if m.responses == responses and (every or m.name in named)]
        for m in mine:
            if every or not isinstance(m, PathsMethod) or not any(map(exact, found.values())):
                found[m.name] = answer(m, problem, keep) if m.name in ON_DEVICES or device is CPU else alone
        mine = [m for m in mine if m.name in found]
        return [(m, x) for m in mine if m.name in named and isinstance(x := found[m.name], Yes)]

    fit = able(True)
    if not fit or (keep != "full" and min(x.error for _, x in fit) > problem.solver.rtol):
        fit += able(False)
    elif every:
        able(False)
    if not fit and by_name == "auto" and not without:
        reference = next(m for m in METHODS if m.name == REFERENCE)
        if reference.name not in found:
            found[reference.name] = answer(reference, problem, keep) if device is CPU else alone
        fit = [(reference, x)] if isinstance(x := found[reference.name], Yes) else []
    answers = tuple((m, found[m.name]) for m in METHODS if m.name in found)
    fit.sort(key=lambda pair: METHODS.index(pair[0]))
    return Choice(answers, _best(fit, accuracy, rtol), accuracy, rtol)


def _require_averages(problem: Problem) -> None:
    """Raise SpecError for a theory with an average that does not exist."""
    for x in singularities(problem.theory):
        if not x.has_mean:
            reason = f"{x}, an average that does not exist: every number of paths gives another value"
            accepted = "a function whose slope is finite, or grows more slowly than |h|^-0.5 where it is not"
            raise SpecError(*problem.said("network.activation"), reason, accepted)


def _best(fit: list[tuple[Method, Yes]], accuracy: float | None, rtol: float) -> Method | None:
    """The method that :func:`choose` takes of those that fit, None if there are none."""
    if not fit:
        return None
    exact = [pair for pair in fit if pair[1].error <= rtol]
    if exact:
        return min(exact, key=lambda pair: pair[1].cost)[0]
    good = [pair for pair in fit if pair[1].error <= (accuracy or ENOUGH)]
    if good and accuracy is not None:
        return min(good, key=lambda pair: pair[1].cost)[0]
    longest = max(QUICK, SLACK * min((x.cost for _, x in good), default=np.inf))
    return min((pair for pair in good or fit if pair[1].cost <= longest), key=lambda pair: pair[1].error)[0]


def explain(
    source: Problem | Experiment | Program | Theory | str | Path,
    *,
    kernels: KeptKernels = "auto",
    **given: Any,
) -> Choice:
    """Return the answer of every method to a problem, and which would run, without running any.

    Parameters
    ----------
    source : Problem, Experiment, Program, Theory, str or Path
        What :func:`solve` takes.
    kernels : {"auto", "full", "trace", "none"}
        Two-time kernels that the result would hold.
    **given
        ``numbers``, ``arrays``, ``times`` and ``solver`` of a program, as :func:`solve` takes them.

    Returns
    -------
    Choice
        Cost, memory and error of each method, or the reason why it does not fit.  Printed, it is a table.

    Raises
    ------
    SpecError
        For a number, an array or a time that is missing or does not belong to the program.

    Examples
    --------
    >>> e = Experiment.from_dict({"network": {"depth": 1, "activation": "tanh"},
    ...     "training": {"learning_rate": 0.1, "steps": 10}}, kernel=[[1.0]], targets=[1.0])
    >>> explain(e).method.name
    'nodes'
    >>> from derive.program import mlp
    >>> numbers, arrays = {"eta": 0.1, "gamma0": 1.0}, {"K_x": [[1.0]], "y": [1.0]}
    >>> explain(mlp(2, "tanh"), numbers=numbers, arrays=arrays, times=range(4)).method.name
    'paths'
    """
    return choose(Problem.of(source, **given), kernels)


def solve(
    source: Problem | Experiment | Program | Theory | str | Path,
    *,
    kernels: KeptKernels = "auto",
    progress: Progress | None = None,
    say: Callable[[str], object] | None = None,
    throw: bool = True,
    **given: Any,
) -> xr.Dataset:
    """The nonperturbative mean-field solution of an experiment, its file, any problem, or a program (or its
    theory) with ``numbers``, ``arrays``, ``times`` and ``solver`` as :meth:`.Problem.of` takes them.

    The method is the best that fits (:func:`choose`), or ``solver.method``; the attribute ``method`` says
    which it was; one that does not converge gives way to the next that may meet ``solver.accuracy``, if the
    file says it, and ``not_converged`` says why.  On another ``solver.device`` than the CPU only sampled
    paths run.  Steps of linear networks are exact; a flow takes ever shorter steps until it has settled to
    ``solver.rtol``; what is sampled has its standard error beside it (``*_stderr``) and meets
    ``solver.accuracy``.  ``kernels``, of fixed samples:
    ``full`` keeps Phi, G, A, B and the tangent kernel for all pairs of samples, ``trace`` the sample traces,
    ``none`` neither; ``auto`` is the most of these that is small, and the attribute ``kernels`` says which.
    ``say`` is told before a run that takes longer than LONG seconds how long it takes.
    Without ``throw`` dynamics that diverge give the output times before the divergence, with the status
    "diverged" and the reason in the attribute ``diverged``.

    Raises :class:`~numerics.errors.SpecError` where no method fits, with the reason of the most general one,
    :class:`~numerics.errors.Diverged` with the step (without ``throw`` where no output time is left), and
    :class:`~numerics.errors.NotConverged`.
    """
    problem = Problem.of(source, **given)
    try:
        return solved(problem, kernels, progress, say).dataset()
    except Diverged as reason:
        if throw:
            raise
        found = before_divergence(problem, lambda shorter: solved(shorter, kernels, progress, say), reason)
        return found.dataset().assign_attrs(status=DIVERGED, diverged=str(reason))


@one_thread
def solved(
    source: Problem | Experiment,
    kernels: KeptKernels = "auto",
    progress: Progress | None = None,
    say: Callable[[str], object] | None = None,
) -> Result:
    """What :func:`solve` gives, before xarray makes a dataset of it."""
    problem = Problem.of(source)
    if problem.experiment is not None:
        require_gradients(problem.experiment)
    try:
        return _solved(problem, kernels, progress, say)
    except Diverged as error:
        raise explained(problem, error, _errors_of) from error
    except NotConverged as error:
        if not (scale := input_scale(problem)):
            raise
        raise type(error)(f"{error}; {scale}") from error


def _errors_of(problem: Problem) -> dict[str, Array]:
    """Return the variables of a solution without kernels by their names."""
    return {name: x.values for name, x in _solved(problem, "none", None, None).data_vars.items()}


def _solved(
    problem: Problem,
    kernels: KeptKernels,
    progress: Progress | None,
    say: Callable[[str], object] | None,
) -> Result:
    """Return the solution by the best method that converges."""
    started = clock.perf_counter()
    if not problem.has_roles:
        require_variables(problem)
    failed: dict[str, NotConverged | SpecError] = {}
    while True:
        method = _announced(problem, kernels, say, failed)
        try:
            found = method.run(problem, kernels, progress)
            break
        except Unserved as reason:  # of an average that only a run meets
            failed[method.name] = SpecError("solver.method", method.name, str(reason), "another method")
        except NotConverged as reason:
            failed[method.name] = reason
    names = names_in_words(problem)
    notes = {"method": method.name, "seed": problem.solver.seed, "names": names, **found.notes}
    if scale := input_scale(problem):
        notes["note"] = scale
    if failed:
        notes["not_converged"] = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    own = authored_variables(problem)
    unplaced = set() if numbers_by_role(problem) else BY_SAMPLE - {*own}  # they stand under their own names
    result = Result.of(
        {name: x for name, x in found.values.items() if named(name) not in unplaced},
        times=problem.times,
        spec=problem.text,
        data_sha256=problem.data_sha256,
        nonlinear=problem.by_sample,
        positions=problem.positions,
        held=problem.held,
        time_name=problem.time_name,
        loss=loss_in_words(problem, found.values),
        authored=described(problem),
        coordinates=coordinates(problem),
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )
    pairs = [name for name, x in result.data_vars.items() if "time_" in x.dims or name.endswith("_trace")]
    if notes.get("kernels") and not pairs:  # layers at positions whose averages have no role
        return replace(result, notes={**result.notes, "kernels": "none"})
    return result


def _announced(
    problem: Problem,
    kernels: KeptKernels,
    say: Callable[[str], object] | None,
    failed: Mapping[str, NotConverged | SpecError],
) -> Method:
    """The best method but those that ``failed``; ``say`` is told what it costs, if that is much."""
    tried = next(iter(failed.values()), None)
    if tried is not None and problem.solver.method != "auto":
        raise tried
    choice = choose(problem, kernels, every=False, without=failed)
    if choice.method is None:
        raise tried or _refused(problem, choose(problem, kernels))
    expected = next(x for m, x in choice.answers if m is choice.method)
    assert isinstance(expected, Yes)
    if tried is not None and expected.error > (problem.solver.accuracy or 1.0):
        raise tried
    less = "fewer steps, times or samples"
    require_time(expected.cost, problem.solver.hours, f"the method {choice.method.name}", less)
    if say is not None and (failed or expected.cost > LONG):
        size = f"{expected.memory / 2**30:.2g} GiB"
        instead = "".join(f"{name} did not converge; " for name in failed)
        more = "(dmft solve --explain says more)"
        say(f"{instead}{choice.method.name}: about {expected.cost:.2g} s and {size} {more}")
    return choice.method


def _refused(problem: Problem, choice: Choice) -> SpecError | Diverged:
    """Return the refusal of the method that was asked for, or of the method that takes most such problems.

    The reasons of the other methods are printed by :func:`explain`.
    """
    noes = {m.name: x for m, x in choice.answers if isinstance(x, No)}
    asked = problem.solver.method
    if asked in noes:
        said = noes[asked]
        if said.diverged is not None:
            return said.diverged
        about = "" if said.key in ("program", "solver.method") else f", with {_named(said)}"
        accepted = ", or ".join(filter(None, (said.accepted, '"auto"')))
        return SpecError("solver.method", asked, f"{said.reason}{about}", accepted)
    general = "paths" if problem.seen or not problem.has_roles else "march"
    if problem.depth is None and beta in problem.numbers:
        general = "layers"
    general = "lazy" if problem.features_rest else general
    said = next(x for x in (noes.get(general), *noes.values()) if x is not None)
    accepted = said.accepted or "another value"
    return SpecError(said.key, said.value, said.reason, f"{accepted}; {EXPLAINS}")


EXPLAINS = "`dmft solve --explain` prints the reason of every method"
"""Where the reasons stand that a refusal does not repeat."""


def _named(said: No) -> str:
    """Return the key, and its value if there is one."""
    return said.key if said.value is None else f"{said.key} = {value_to_toml(said.value)}"


def _told(said: No) -> str:
    """Return the reason of one method, on one line."""
    accepted = f" (accepted: {said.accepted})" if said.accepted else ""
    return f"{_named(said)}: {said.reason}{accepted}"
