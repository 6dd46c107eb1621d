"""Front end of all solvers: choice of a method by cost and error, and solution by it.

    solve("digits.toml")  # the best method that fits
    print(explain("digits.toml"))  # a table of all methods, without solving the problem

The input is an experiment or a program; the output is a dataset.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
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
from numerics.experiment.vanishing_gradients import require_gradients
from numerics.progress import Progress
from numerics.results import BY_SAMPLE, Result, base_name
from numerics.results.advice import explained, input_scale
from numerics.results.before_divergence import DIVERGED, before_divergence
from numerics.results.losses import loss_in_words
from numerics.results.program_names import (
    authored_variables,
    coordinates,
    described,
    names_in_words,
    numbers_by_role,
    require_variables,
)
from numerics.solver.depth.method import InfiniteDepthMethod
from numerics.solver.direct.method import ReferenceMethod
from numerics.solver.lazy.method import LazyMethod
from numerics.solver.linear.method import MarchMethod
from numerics.solver.long_times.method import RestMethod
from numerics.solver.method import (
    OPTIONS,
    QUICK,
    Array,
    KeptKernels,
    Method,
    MethodEstimate,
    MethodResult,
    Refusal,
    estimate_or_refusal,
)
from numerics.solver.paths.method import PathsMethod
from numerics.solver.quadrature.method import QuadratureMethod
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
"""All methods; of equally good ones the first is chosen, which is the most specialised."""

LONG = 10.0
"""Estimated seconds above which a run announces its cost."""

ENOUGH = 5e-3
"""Error that suffices if the file does not state an accuracy; sampled paths reach it by default."""

SLACK = 3.0
"""Largest ratio of the time of a more exact method to that of the cheapest one."""

REFERENCE = "direct"
"""Method that ``auto`` takes if all others refuse; it is correct and slow."""

BY_NAME = ("rest", REFERENCE)
"""Methods that run only if ``solver.method`` names them; ``direct`` runs too if all others refuse.

``rest`` is the march of ``paths`` together with the ridge regression of its last kernel. The theorem gives
the outputs once that kernel is known, and only the march computes it, so that ``auto`` would save nothing.
``direct`` is the reference for the others, and serves theories that they refuse.
"""


ON_DEVICES = ("paths",)
"""Methods that run on ``solver.device``. The others run on the CPU only, and refuse another device."""


@dataclass(frozen=True)
class Choice:
    """Estimates and refusals of the methods that were asked, and the method that runs.

    ``method`` is None if all methods that may run refuse. ``accuracy`` (None if not stated) and ``rtol`` are
    those of the file.
    """

    answers: tuple[tuple[Method, MethodEstimate | Refusal], ...]
    method: Method | None
    accuracy: float | None
    rtol: float

    @property
    def asked(self) -> tuple[float, str]:
        """Accuracy at which the chosen method aims, and the name of the setting from which it comes.

        It is ``solver.accuracy``. If the file does not state it, it is the default accuracy of the chosen
        method, or ``solver.rtol`` if the method has no such default. The default is used in the run, not in
        the choice of the method.
        """
        if self.accuracy is not None:
            return self.accuracy, "solver.accuracy"
        default = next(
            (x.asked for m, x in self.answers if m is self.method and isinstance(x, MethodEstimate)), None
        )
        if default is None or self.method is None:
            return self.rtol, "solver.rtol"
        return default, f"the default of {self.method.name} for solver.accuracy"

    def __str__(self) -> str:
        rows = ["method    estimated time, memory and error, or the reason of a refusal"]
        for method, reply in self.answers:
            if isinstance(reply, MethodEstimate):
                size = f"{reply.cost:.2g} s, {reply.memory / 2**20:.3g} MiB, error {reply.error:.1g}"
                only = " (by name only)" if method.name in BY_NAME and method is not self.method else ""
                rows.append(f"{method.name:10}{size}{only}{'; ' + reply.note if reply.note else ''}")
            else:
                rows.append(f"{method.name:10}no: {_in_one_line(reply)}")
        if self.method is None:
            return "\n".join([*rows, "runs: none"])
        asked, key = self.asked
        return "\n".join([*rows, f"runs: {self.method.name}; target accuracy: {asked:.1g} ({key})"])


def choose(
    problem: Problem, keep: KeptKernels = "auto", *, every: bool = True, without: Collection[str] = ()
) -> Choice:
    """Return the best method that fits a problem.

    Parameters
    ----------
    problem : Problem
        Theory and numbers.
    keep : {"auto", "full", "trace", "none"}
        Two-time kernels that the result must contain.
    every : bool
        Whether to ask every method for its estimate. If False, only methods that may run are asked: the one
        named by ``solver.method``; otherwise all but those in BY_NAME, sampled paths only if no method asked
        before reaches ``solver.rtol``, and methods without responses only if the others do not suffice.
    without : collection of str
        Names of methods to exclude because they failed before. It has no effect if ``solver.method`` names a
        method.

    Returns
    -------
    Choice
        Estimates, refusals and the chosen method.

    Raises
    ------
    SpecError
        For an unknown value of ``keep``, a device that is not available, or a theory with an average that a
        singularity of its integrand makes infinite.

    Notes
    -----
    Errors and times are the estimates of the methods. Among methods whose error is at most ``solver.rtol``
    the cheapest one is chosen. If there are none, it is the cheapest method whose error meets
    ``solver.accuracy``. If the file does not state an accuracy, it is the most exact method among those that
    reach an error of ENOUGH within QUICK seconds, or within SLACK times the time of the cheapest one that
    reaches it. If no method meets the accuracy, it is the most exact one. The reference solver is chosen if
    ``solver.method`` is ``"auto"``, nothing is excluded and all methods outside of BY_NAME refuse.

    A method without responses is considered if all methods with responses refuse. It is also considered if
    none of these reaches ``solver.rtol`` and ``keep`` is not ``"full"``.
    """
    require_choice("keep", keep, get_args(KeptKernels))
    _require_averages(problem)
    by_name, rtol = problem.solver.method, problem.solver.rtol
    named = {by_name} if by_name != "auto" else {m.name for m in METHODS} - {*BY_NAME, *without}
    survey = _Survey(problem, keep, every, frozenset(named), device_named(problem.solver.device) is CPU)
    fit = survey.fitting(responses=True)
    if not fit or (keep != "full" and min(x.error for _, x in fit) > rtol):
        fit += survey.fitting(responses=False)
    elif every:
        survey.fitting(responses=False)
    if not fit and by_name == "auto" and not without:
        reference = next(m for m in METHODS if m.name == REFERENCE)
        estimate = survey.ask(reference)
        fit = [(reference, estimate)] if isinstance(estimate, MethodEstimate) else []
    answers = tuple((m, survey.answers[m.name]) for m in METHODS if m.name in survey.answers)
    fit.sort(key=lambda pair: METHODS.index(pair[0]))
    return Choice(answers, _best(fit, problem.solver.accuracy, rtol), problem.solver.accuracy, rtol)


@dataclass
class _Survey:
    """Estimates and refusals of the methods for one problem; each method is asked once.

    ``named`` are the names of the methods that may run; only these are asked, or all methods if ``every`` is
    true. ``on_cpu`` states whether the problem runs on the CPU, which most methods need. ``answers`` holds
    the estimates and refusals by name of the method.
    """

    problem: Problem
    keep: KeptKernels
    every: bool
    named: frozenset[str]
    on_cpu: bool
    answers: dict[str, MethodEstimate | Refusal] = field(default_factory=dict)

    def ask(self, method: Method) -> MethodEstimate | Refusal:
        """Return the estimate of a method, or its refusal.

        Methods that run on the CPU only are refused without being asked if the problem runs on another
        device.
        """
        if method.name not in self.answers:
            if method.name in ON_DEVICES or self.on_cpu:
                self.answers[method.name] = estimate_or_refusal(method, self.problem, self.keep)
            else:
                self.answers[method.name] = Refusal(
                    DEVICE, self.problem.solver.device, "runs on the CPU only"
                )
        return self.answers[method.name]

    def fitting(self, *, responses: bool) -> list[tuple[Method, MethodEstimate]]:
        """Return the methods that do not refuse and may run, with their estimates.

        Only methods whose attribute ``responses`` has the value of ``responses`` are asked. Unless ``every``
        is true, sampled paths are not asked if a method asked before reaches ``solver.rtol``.
        """
        asked = [m for m in METHODS if m.responses == responses and (self.every or m.name in self.named)]
        estimates: list[tuple[Method, MethodEstimate]] = []
        for method in asked:
            if not self.every and isinstance(method, PathsMethod) and self._has_exact():
                continue
            reply = self.ask(method)
            if method.name in self.named and isinstance(reply, MethodEstimate):
                estimates.append((method, reply))
        return estimates

    def _has_exact(self) -> bool:
        """Return whether the estimated error of a method asked so far is at most ``solver.rtol``."""
        rtol = self.problem.solver.rtol
        return any(isinstance(x, MethodEstimate) and x.error <= rtol for x in self.answers.values())


def _require_averages(problem: Problem) -> None:
    """Raise SpecError if a singularity of its integrand, such as ``|h|^-1``, makes an average infinite.

    Averages with responses are not tested, nor averages that are infinite because the integrand grows with h.
    """
    for x in singularities(problem.theory):
        if not x.has_mean:
            reason = f"{x}, an average that does not exist: every number of paths gives another value"
            accepted = "a function with a finite slope, or one that diverges more slowly than |h|^-0.5"
            raise SpecError(*problem.key_and_value("network.activation"), reason, accepted)


def _best(fit: list[tuple[Method, MethodEstimate]], accuracy: float | None, rtol: float) -> Method | None:
    """Return the method that :func:`choose` selects among those that do not refuse; None if ``fit`` is empty.

    ``fit`` are pairs of a method and its estimate; ``accuracy`` (None if not stated) and ``rtol`` are those
    of the file.
    """
    if not fit:
        return None
    exact = [pair for pair in fit if pair[1].error <= rtol]
    if exact:
        return min(exact, key=lambda pair: pair[1].cost)[0]
    accurate = [pair for pair in fit if pair[1].error <= (accuracy or ENOUGH)]
    if accurate and accuracy is not None:
        return min(accurate, key=lambda pair: pair[1].cost)[0]
    longest = max(QUICK, SLACK * min((x.cost for _, x in accurate), default=np.inf))
    affordable = (pair for pair in accurate or fit if pair[1].cost <= longest)
    return min(affordable, key=lambda pair: pair[1].error)[0]


def explain(
    source: Problem | Experiment | Program | Theory | str | Path,
    *,
    kernels: KeptKernels = "auto",
    **given: Any,
) -> Choice:
    """Return the estimate or refusal of every method, without solving the problem.

    Some methods take their estimate from short trial runs.

    Parameters
    ----------
    source : Problem, Experiment, Program, Theory, str or Path
        The problem, as :func:`solve` takes it.
    kernels : {"auto", "full", "trace", "none"}
        Two-time kernels that the result would contain.
    **given
        ``numbers``, ``arrays``, ``times`` and ``solver`` of a program, as :func:`solve` takes them.

    Returns
    -------
    Choice
        Cost, memory and error of each method, or the reason why it does not fit.  Printed, it is a table.

    Raises
    ------
    SpecError
        For a number, an array or a time that is missing or does not belong to the program, an unknown value
        of ``kernels``, a device that is not available, or a theory with an average that a singularity of its
        integrand makes infinite.

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
    require_choice("kernels", kernels, get_args(KeptKernels))
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
    """Solve the mean-field theory of an experiment or a program.

    Parameters
    ----------
    source : Problem, Experiment, Program, Theory, str or Path
        Experiment, path of its file, problem, or a program or its theory.
    kernels : {"auto", "full", "trace", "none"}
        Two-time kernels of fixed samples in the result: of all pairs of samples, their traces over samples,
        or none; ``"auto"`` takes the first of these that is small. The attribute ``kernels`` of the result
        states which.
    progress : Progress, optional
        Callback that reports progress.
    say : callable, optional
        Function that is called with a message before a run that is estimated to take longer than 10
        seconds, and before each further run after a method that failed.
    throw : bool
        Whether to raise Diverged. If False, a run that diverges returns the output times before the
        divergence, with the status "diverged" and the reason in the attribute ``diverged``.
    **given
        ``numbers``, ``arrays``, ``times`` and ``solver`` of a program, as :meth:`.Problem.of` takes them.

    Returns
    -------
    xarray.Dataset
        Losses, errors, outputs and kernels, with standard errors ``*_stderr`` if they are sampled.

    Raises
    ------
    SpecError
        If no method fits, with the refusal of the requested method or of the most general one; if the
        estimated time is longer than ``solver.hours``; if the gradients of all samples cancel at the start
        under an entrywise rule; and as :func:`explain`.
    Diverged
        If the solution diverges; if ``throw`` is False only if no output time is left before that.
    NotConverged
        If no method converges.

    Notes
    -----
    The method is ``solver.method``, or with ``"auto"`` the best one that fits (:func:`choose`), and stands in
    the attribute ``method``. If ``"auto"`` was given and the method does not converge, the next method runs
    that may meet ``solver.accuracy``; the attribute ``not_converged`` gives the reason. The same applies to a
    method that finds an unsupported average in its run; the attribute is then ``refused``. Steps of linear
    networks are exact. A flow is refined until it converges to ``solver.rtol``. Without ``solver.samples``,
    paths are added until errors of sampled quantities meet ``solver.accuracy``. Only sampled paths run on
    another ``solver.device`` than the CPU.
    """
    problem = Problem.of(source, **given)
    try:
        return solved(problem, kernels, progress, say).dataset()
    except Diverged as reason:
        if throw:
            raise
        shortened = before_divergence(problem, lambda short: solved(short, kernels, progress, say), reason)
        return shortened.dataset().assign_attrs(status=DIVERGED, diverged=str(reason))


@one_thread
def solved(
    source: Problem | Experiment,
    kernels: KeptKernels = "auto",
    progress: Progress | None = None,
    say: Callable[[str], object] | None = None,
) -> Result:
    """Return the result of :func:`solve` before it becomes an xarray dataset.

    Always raises Diverged if the solution diverges.
    """
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
    """Solve a problem, and return the variables of the result as arrays by name.

    Two-time kernels are not computed.
    """
    return {name: x.values for name, x in _solved(problem, "none", None, None).data_vars.items()}


def _solved(
    problem: Problem,
    kernels: KeptKernels,
    progress: Progress | None,
    say: Callable[[str], object] | None,
) -> Result:
    """Solve a problem by the best method that converges, and return the result.

    ``say`` is called with a message before a long run. If ``solver.method`` names a method, no other is
    tried.
    """
    require_choice("kernels", kernels, get_args(KeptKernels))
    started = clock.perf_counter()
    if not problem.has_roles:
        require_variables(problem)
    failed: dict[str, NotConverged | SpecError] = {}
    while True:
        method = _announced(problem, kernels, say, failed)
        try:
            solution = method.run(problem, kernels, progress)
            break
        except Unserved as reason:
            # The method found only in the run that it cannot solve the problem, for example because of an
            # average in the problem.
            failed[method.name] = SpecError("solver.method", method.name, str(reason), "another method")
        except NotConverged as reason:
            failed[method.name] = reason
    names = names_in_words(problem)
    notes = {"method": method.name, "seed": problem.solver.seed, "names": names, **solution.notes}
    notes |= _notes_on_options(problem, method, solution)
    if scale := input_scale(problem):
        notes["note"] = scale
    notes |= _notes_on_failures(failed)
    shown = _at_nodes(problem, notes.get("layers_at"))
    authored = authored_variables(shown)
    # `numbers_by_role` is empty if results do not hold output and error under their standard names. Values
    # with the standard names of outputs, errors and tangent kernels are then left out, unless the program
    # itself uses these names.
    unplaced = set() if numbers_by_role(problem) else BY_SAMPLE - {*authored}
    result = Result.of(
        {name: x for name, x in solution.values.items() if base_name(name) not in unplaced},
        times=problem.times,
        spec=problem.text,
        data_sha256=problem.data_sha256,
        nonlinear=problem.by_sample,
        positions=problem.positions,
        held=problem.held,
        time_name=problem.time_name,
        loss=loss_in_words(problem, solution.values),
        authored=described(shown),
        coordinates=coordinates(shown),
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )
    pairs = [name for name, x in result.data_vars.items() if "time_" in x.dims or name.endswith("_trace")]
    # The note `kernels`, which names the kernels that are stored, is "none" if the result has no kernel, for
    # example because no order parameter of the program has a standard name.
    if notes.get("kernels") and not pairs:
        return replace(result, notes={**result.notes, "kernels": "none"})
    return result


def _notes_on_failures(failed: Mapping[str, NotConverged | SpecError]) -> dict[str, str]:
    """Return notes on the methods that failed, with their exceptions by name, before another one solved.

    ``not_converged`` holds those that did not converge, ``refused`` those that found an unsupported average.
    """
    reasons = {
        "not_converged": {name: str(x) for name, x in failed.items() if isinstance(x, NotConverged)},
        "refused": {name: x.problem for name, x in failed.items() if isinstance(x, SpecError)},
    }
    return {
        note: "; ".join(f"{name}: {reason}" for name, reason in x.items()) for note, x in reasons.items() if x
    }


def _notes_on_options(problem: Problem, method: Method, solution: MethodResult) -> dict[str, Any]:
    """Return notes on options of the solver that a solution does not read, or does not meet.

    ``unused_options`` names options that are set and have no effect. The tolerance ``rtol`` is that of a
    flow; with the method ``"auto"`` it also takes part in the choice of the method, so that it is not named.
    The status is "not converged" if the estimated error exceeds ``solver.accuracy``.
    """
    solver, notes = problem.solver, dict[str, Any]()
    reads = solution.reads if problem.flow else solution.reads - {"rtol"}
    reads |= {"rtol"} if solver.method == "auto" else set()
    defaults = {name: type(solver).model_fields[name].default for name in OPTIONS}
    given = {name: getattr(solver, name) for name in OPTIONS if name not in reads}
    unused = [f"solver.{name} = {x}" for name, x in given.items() if x != defaults[name]]
    if unused:
        notes["unused_options"] = f"{', '.join(unused)}: not used by the method {method.name}"
    error = solution.notes.get("error_estimate")
    if solver.accuracy is not None and error is not None and error > solver.accuracy:
        notes["status"] = "not converged"
    return notes


def _at_nodes(problem: Problem, layers_at: Array | None) -> Problem:
    """Return a problem with one layer for each layer time of a result at infinite depth, to label the result.

    ``layers_at`` are the layer times of the result, the positions of layers at infinite depth. A problem from
    a file, a problem of integer depth, and any problem without ``layers_at`` are returned as they are.
    """
    if problem.experiment is not None or problem.depth is not None or layers_at is None:
        return problem
    return replace(problem, program=problem.program.at_depth(len(layers_at)))


def _announced(
    problem: Problem,
    kernels: KeptKernels,
    say: Callable[[str], object] | None,
    failed: Mapping[str, NotConverged | SpecError],
) -> Method:
    """Return the best method except those that ``failed`` before, and announce a long run by calling ``say``.

    ``failed`` holds their exceptions by name. The first of these is raised if the file names a method, if no
    method remains, or if the next one is not accurate enough. If none failed and all methods refuse, raises
    the exception of :func:`_refused`. Raises SpecError if the run is too long for ``solver.hours``.
    """
    tried = next(iter(failed.values()), None)
    if tried is not None and problem.solver.method != "auto":
        raise tried
    choice = choose(problem, kernels, every=False, without=failed)
    if choice.method is None:
        raise tried or _refused(problem, choose(problem, kernels))
    expected = next(x for m, x in choice.answers if m is choice.method)
    assert isinstance(expected, MethodEstimate)
    if tried is not None and expected.error > (problem.solver.accuracy or 1.0):
        raise tried
    less = "fewer steps, times or samples"
    require_time(expected.cost, problem.solver.hours, f"the method {choice.method.name}", less)
    if say is not None and (failed or expected.cost > LONG):
        size = f"{expected.memory / 2**30:.2g} GiB"
        instead = "".join(
            f"{name} did not converge; " if isinstance(x, NotConverged) else f"{name} does not apply; "
            for name, x in failed.items()
        )
        more = "(dmft solve --explain says more)"
        say(f"{instead}{choice.method.name}: about {expected.cost:.2g} s and {size} {more}")
    return choice.method


def _refused(problem: Problem, choice: Choice) -> SpecError | Diverged:
    """Return the exception for a problem that all methods refuse.

    It is the refusal of the requested method, or of the method that is most general for such problems. It is
    Diverged if the requested method refuses because its trial run diverged. :func:`explain` prints the
    reasons of the other methods.
    """
    refusals = {m.name: x for m, x in choice.answers if isinstance(x, Refusal)}
    asked = problem.solver.method
    if asked in refusals:
        refusal = refusals[asked]
        if refusal.diverged is not None:
            return refusal.diverged
        about = "" if refusal.key in ("program", "solver.method") else f", with {_key_text(refusal)}"
        accepted = ", or ".join(filter(None, (refusal.accepted, '"auto"')))
        return SpecError("solver.method", asked, f"{refusal.reason}{about}", accepted)
    general = "paths" if problem.seen or not problem.has_roles else "march"
    if problem.depth is None and beta in problem.numbers:
        general = "layers"
    general = "lazy" if problem.features_rest else general
    refusal = next(x for x in (refusals.get(general), *refusals.values()) if x is not None)
    accepted = refusal.accepted or "another value"
    return SpecError(refusal.key, refusal.value, refusal.reason, f"{accepted}; {EXPLAINS}")


EXPLAINS = "`dmft solve --explain` prints the reason of every method"
"""Hint of a refusal to the reasons of the other methods."""


def _key_text(refusal: Refusal) -> str:
    """Return the key of a refusal as in the file, with its value if there is one: ``training.steps = 9``."""
    return refusal.key if refusal.value is None else f"{refusal.key} = {value_to_toml(refusal.value)}"


def _in_one_line(refusal: Refusal) -> str:
    """Return a refusal as one line of text: key, value, reason and accepted values."""
    accepted = f" (accepted: {refusal.accepted})" if refusal.accepted else ""
    return f"{_key_text(refusal)}: {refusal.reason}{accepted}"
