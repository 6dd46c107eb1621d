"""The complete verification of one problem: derive, solve, expand, simulate, compare, and write the files.

:func:`verify` is the function behind ``dmft verify``.  Its checks come from the other modules of this
package, and its result is a :class:`.Report`.
"""

from __future__ import annotations

import json
import time as clock
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from derive.errors import NotApplicable
from derive.expansion import Expansion
from derive.expansion import expand as expand_in
from derive.expansion.theory_orders import expand_strength
from derive.linear.form import LinearForm
from derive.program import L, Program, gamma0
from derive.theory import Theory, mean_field
from numerics.errors import SpecError
from numerics.expansion import expand, series
from numerics.expansion.orders import partial_sum
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import program_of, theory_of
from numerics.names import FEATURE_KERNEL
from numerics.plots import save_figure
from numerics.progress import Progress
from numerics.results import at_times, replacing_folder, save
from numerics.results.program_names import self_correlations
from numerics.solver import solve
from numerics.solver.direct.method import ReferenceMethod
from numerics.solver.linear.method import MarchMethod
from numerics.solver.method import MethodEstimate, Refusal, estimate_or_refusal
from numerics.solver.paths.method import PathsMethod
from numerics.solver.refine import AdamsBashforth
from numerics.solver.registry import REFERENCE
from numerics.stats import extrapolate
from numerics.threads import one_thread
from numerics.verification import corrections, identities, networks, sampled
from numerics.verification.corrections import DerivedCorrections
from numerics.verification.figure import SERIES, draw, draw_numbers, has_kernels
from numerics.verification.plan import NetworkPlan, wider_plan
from numerics.verification.report import EPS, PROVENANCE, Check, Report, page, title
from numerics.verification.series import ORDER, expansion
from numerics.verification.smaller_problems import FULL, Effort, with_solver
from numerics.verification.stability import edge_of_stability

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PICTURE = 3e-3
"""Relative accuracy of the curves of the expansion of a flow."""

WIDE = (
    "networks: none were trained. Layers without network.width_ratio are infinitely wide and cannot be "
    "simulated;\nset a large network.width_ratio to compare with finite networks."
)
MANY = "networks: none were trained. They would need all {} modes, and at most {} are supported."

DOCUMENT = r"""\documentclass{article}
\usepackage[a4paper,landscape,margin=15mm]{geometry}
\usepackage{amsmath,amssymb}
\allowdisplaybreaks
\begin{document}
%s
\end{document}
"""


@one_thread
def verify(
    source: Problem | Experiment | Program | Theory | str | Path,
    out_dir: str | Path | None = None,
    progress: Progress | None = None,
    effort: Effort = FULL,
    before: Callable[[Report], object] | None = None,
    **given: Any,
) -> Report:
    """Run all checks of an experiment, a problem or a program, and write their files.

    A nonlinear theory is solved by sampled paths even if another method could solve it, because the checks
    are about paths; so is a linear theory that the march refuses.  For a theory that only the reference
    solver can solve, and in NTK scaling on fixed samples, only the derivation, causality and correlations are
    checked, and the solution is compared with networks.

    Parameters
    ----------
    source : Problem, Experiment, Program, Theory, str or pathlib.Path
        The problem; text or a path is an experiment file.
    out_dir : str, pathlib.Path or None
        Folder for the files behind the checks; None writes no files.  All are written, each of them complete,
        or none if a computation fails: equations.txt, equations.tex, table.txt, checks.json, theory.nc,
        networks.nc (along `width`, whose last value is infinite), figure.png, and report.html, which has all
        but the two files of numbers. networks.nc is missing if no networks can be simulated, for example of
        infinitely wide layers on random data.
    progress : callable or None
        Called as ``progress(done, total)`` with numbers of trained networks.
    effort : Effort
        Numbers of networks and paths.
    before : callable or None
        Called with the report before files are written, and also if none are written.
    **given
        ``numbers``, ``arrays``, ``times`` and ``solver`` of a program, as in :meth:`.Problem.of`.

    Returns
    -------
    Report
        All checks.  A failed check does not raise; see :attr:`Report.passed`.

    Raises
    ------
    SpecError
        If the depth of an experiment is a symbol, if the start is the only time, or if :meth:`.Problem.of` or
        :func:`numerics.solve` refuse the problem.
    Diverged, NotConverged
        As from :func:`numerics.solve` and :func:`numerics.simulate`.
    """
    began = clock.perf_counter()
    asked = Problem.of(source, **given)
    problem = asked.at_all_times()  # checks need all times, also those that result files leave out
    if problem.depth is None and problem.experiment is not None:
        raise problem.open_depth()
    if len(problem.times) < 2:
        reason = "has no time after the start, at which theory and networks are compared"
        raise SpecError("times", problem.times.tolist(), reason, "at least two times")
    resting = problem.features_rest
    alone = resting or _only_by_reference(problem)
    if alone:
        problem = problem if resting else with_solver(problem, REFERENCE)
    elif not isinstance(problem.linear, LinearForm) or _not_marched(problem):
        problem = with_solver(problem, "paths")
    solution = solve(problem, kernels="full" if _kernel_bytes(problem) <= effort.kernel else "trace")
    powers: list[Check] = []
    if alone:
        checks = _checks_by_reference(problem, solution, _symbolic(problem, source))
        note = RESTING if resting else ALONE
    else:
        checks = checks_of(problem, solution, _symbolic(problem, source), effort)
        powers, note = expansion(problem, effort)
    trained, compared, words = _networks(problem, solution, progress, effort)
    shown = equations(problem, bool(powers))
    report = Report(
        title(problem),
        (*checks, *powers, *compared),
        (note, words),
        "\n\n".join(render("text") for render in shown),
        None if out_dir is None else Path(out_dir),
        clock.perf_counter() - began,
    )
    if before is not None:
        before(report)
    if out_dir is None:
        return report
    if alone or not problem.has_roles or not has_kernels(solution):
        figure = draw_numbers(problem, solution, trained)
    else:
        figure = draw(problem, solution, trained, sums_of(problem, effort) if powers else {})
    limit = at_times(by_width(trained), asked.held) if trained else None
    solution = at_times(solution, asked.held)
    tex = "\n\n".join(render("latex") for render in shown)
    write(Path(out_dir), report, tex, solution, limit, figure, papers_of(problem))
    return report


def _not_marched(problem: Problem) -> bool:
    """Return whether a problem has an integer depth and the method "march" refuses it.

    The method refuses nonlinear theories, and some linear ones. The result is False for a symbolic depth.
    """
    return problem.depth is not None and isinstance(
        estimate_or_refusal(MarchMethod(), problem, "none"), Refusal
    )


RESTING = "solution: features do not move (NTK scaling), so that no other method and no expansion checks it."
ALONE = "solution: by the reference solver only, so that no other method and no expansion checks it."


def _only_by_reference(problem: Problem) -> bool:
    """Return whether only the reference solver, which evaluates expressions as they stand, accepts a problem.

    The march and sampled paths must both refuse it. False for a symbolic depth, and if ``solver.method``
    names another method.
    """
    if problem.solver.method not in ("auto", REFERENCE) or problem.depth is None:
        return False
    others = (
        estimate_or_refusal(MarchMethod(), problem, "none"),
        estimate_or_refusal(PathsMethod(), problem, "none"),
    )
    return all(isinstance(x, Refusal) for x in others) and isinstance(
        estimate_or_refusal(ReferenceMethod(), problem, "none"), MethodEstimate
    )


def _checks_by_reference(problem: Problem, solution: xr.Dataset, symbolic: Program | None) -> list[Check]:
    """Return the checks of a solution that no second method can check.

    This is so if only the reference solver can compute it, and in NTK scaling on fixed samples. The checks
    are those of the derivation and, if the outputs and kernels of the program have standard roles, of
    causality and correlations. ``symbolic`` is the same program with a symbolic number of layers, or None.
    """
    checks = identities.derivation(problem, symbolic)
    if problem.has_roles:
        checks += identities.causality(problem, solution)
        checks += identities.correlations(solution, correlation_error(problem, solution), identities.LETTERS)
    return checks


def checks_of(
    problem: Problem, solution: xr.Dataset, symbolic: Program | None, effort: Effort
) -> list[Check]:
    """Return all checks of the theory and its solution that apply to a problem, except series and networks.

    ``symbolic`` is the same program with a symbolic number of layers, or None.  Identities of a product of
    matrices are checked for experiment files only, because a program may be another network.
    """
    linear, experiment, flow = _exact(problem), problem.experiment, problem.flow
    checks = identities.derivation(problem, symbolic) + identities.gradient_step(problem)
    if linear:  # linear theories have exact solutions, without sampling
        checks += identities.direct_evaluation(problem)
        if experiment is not None and problem.seen and _steepest(experiment):
            checks += identities.unreduced_theory(problem) + identities.output_changes(problem)
        if experiment is not None and not experiment.network.bias:
            checks += identities.inner_products(problem)
    if experiment is not None:
        checks += identities.start(problem, solution)
    checks += identities.causality(problem, solution)
    letters = {**identities.LETTERS, **({} if linear else {FEATURE_KERNEL: "Phi^l"})}
    authored = self_correlations(problem)
    checks += identities.correlations(solution, correlation_error(problem, solution), letters, authored)
    # If the theory is not linear or is solved by paths, averages over sampled paths are checked: by the
    # direct evaluation, by Stein's lemma for responses, and for rules in steps by the lazy limit if the
    # problem has a gamma0.
    if not linear:
        checks += sampled.direct_evaluation(problem, effort) + sampled.responses(problem, effort)
        if not flow and gamma0 in problem.numbers:
            checks += sampled.lazy(problem, effort)
    if flow:
        checks += identities.discretisation_error(problem, solution) if linear else []
        checks += identities.small_steps(problem, solution)
    return checks


def _exact(problem: Problem) -> bool:
    """Return whether the theory is linear in its fields and solved exactly, not by averages over paths."""
    return isinstance(problem.linear, LinearForm) and problem.solver.method != "paths"


def correlation_error(problem: Problem, solution: xr.Dataset) -> float:
    """Return the allowed relative error of correlations in a solution, beside that of rounding in steps.

    It is 0 for training in steps and for sampled solutions. For flows on data of modes it is
    ``solver.rtol``, because correlations are interpolated between modes. For other flows it is the rounding
    error of sums over time nodes and samples in each layer, times the largest ``sum_s |w(t, s)| / t``. The
    integration weights w(t, s) have both signs, and are large where steps double.
    """
    if not (problem.flow and _exact(problem)):
        return 0.0
    if problem.spectrum is not None:
        return problem.solver.rtol
    _, grid = next(AdamsBashforth(problem.times, problem.solver.rtol).grids())
    large = float(np.max(np.abs(grid.weights[1:]).sum(axis=1) / grid.nodes[1:]))
    terms = float(solution.attrs["time_nodes"]) * max(1, problem.sample_count)
    return EPS * large * terms * (problem.depth or 1)


def _steepest(experiment: Experiment) -> bool:
    """Return whether the training is without weight decay, momentum, noise and centring."""
    given = experiment.training
    return not (given.weight_decay or given.momentum or given.temperature or given.center)


def papers_of(problem: Problem) -> tuple[str, ...]:
    """Return the keys of the papers whose theory is used, such as ``"linear2025"``, for citations."""
    linear, experiment = _exact(problem), problem.experiment
    deep = experiment is not None and bool(experiment.network.branch)
    return ("selfconsistent2023", *["linear2025"] * linear, *["depth2023"] * deep)


def _symbolic(problem: Problem, source: object) -> Program | None:
    """Return the program of a problem with the number of layers as a symbol.

    ``source`` is the argument of :func:`verify`. None if the number of layers is fixed in a program or
    theory, and for a :class:`.Problem` of a program.
    """
    if problem.experiment is not None:
        return program_of(problem.experiment, L)
    program = source.program if isinstance(source, Theory) else source
    is_open = isinstance(program, Program) and program.with_layers_counted().depth.is_Symbol
    return program if isinstance(program, Program) and is_open else None


def equations(source: Problem | Experiment, powers: bool) -> list[Callable[[str], str]]:
    """Return functions that write the theory and, on request, its series in gamma0.

    Parameters
    ----------
    source : Problem or Experiment
        The problem.
    powers : bool
        Whether to include the series, if there is one.

    Returns
    -------
    list of callable
        Each takes the form, ``"text"`` or ``"latex"``, and returns the equations as text.
    """
    problem = Problem.of(source)
    if problem.experiment is not None:
        theory: Any = theory_of(problem.experiment)
    else:
        theory = problem.theory if problem.reductions else mean_field(problem.written or problem.program)
    by_role = theory if problem.written is None else mean_field(problem.program)
    expanded = None
    if powers:
        with suppress(SpecError, NotApplicable):
            experiment = problem.experiment
            expanded = _series(by_role) if experiment is None else series(experiment, ORDER)
    return [partial(theory.render, "all"), *([] if expanded is None else [expanded.render])]


def _series(theory: Theory) -> Expansion:
    """Return the series of a theory in gamma0: in closed form, or order by order if it has no such form."""
    try:
        return expand_in(theory, gamma0, ORDER)
    except NotApplicable:
        return expand_strength(theory, ORDER)


def _networks(
    problem: Problem, solution: xr.Dataset, progress: Progress | None, effort: Effort
) -> tuple[list[xr.Dataset], list[Check], str]:
    """Train the finite networks of a verification and compare them with the solution.

    Return the results (one dataset for each width), their checks, and the notes on them. If a check fails,
    networks of twice the widths are trained in place of the first ones, unless the theory has a finite width
    of its own. If networks cannot be trained there are no results and no checks, and the note gives the
    reason.
    """
    experiment = problem.experiment
    if experiment is not None:
        modes = (experiment.data and experiment.data.modes) or 0
        if modes > networks.MODES:
            return [], [], MANY.format(modes, networks.MODES)
        if experiment.spec.kind == "isotropic" and experiment.network.width_ratio is None:
            return [], [], WIDE
    used = corrections.prepare(problem, solution, effort)
    plan, derived = used.networks, used.found
    trained, rows = _trained(problem, solution, plan, progress, effort, derived)
    wider = wider_plan(plan, problem)
    if wider is None or all(x.passed for x in rows):
        before = ""
    else:
        names = "; ".join(x.name for x in rows if not x.passed)
        before = "\n" + fill(BEFORE.format(plan, names), 105)
        plan = wider
        trained, rows = _trained(problem, solution, plan, progress, effort, derived, repeat=1)
    words = networks.describe(problem, plan, rows, solution, trained, effort) + before
    words += "\n" + corrections.describe(used, plan, rows)
    if "note" in trained[0].attrs:
        words += f"\nwidth {trained[0].attrs['width']}: {trained[0].attrs['note']}"
    return trained, rows, words


BEFORE = (
    "first run: {} failed in the rows {}. The rows above are of independent networks of twice the width; the "
    "theory is wrong if they fail too."
)


def _trained(
    problem: Problem,
    solution: xr.Dataset,
    plan: NetworkPlan,
    progress: Progress | None,
    effort: Effort,
    derived: DerivedCorrections,
    repeat: int = 0,
) -> tuple[list[xr.Dataset], list[Check]]:
    """Train the networks of a plan; return a dataset for each width, and checks against the solution.

    ``derived`` are derived corrections of order 1/N for the checks. ``repeat`` numbers repeated trainings,
    each of which has its own random numbers.
    """
    trained = networks.train(problem, plan, progress, effort, solution, repeat, derived.variances)
    trained = networks.less_their_theory(problem, solution, trained)
    theory, parting = networks.traced(solution), networks.parting_of(problem, trained)
    compared = networks.quantities(theory, trained, parting, edge_of_stability(problem, solution))
    return trained, networks.against_networks(theory, trained, compared, derived.amended)


def sums_of(problem: Problem, effort: Effort) -> dict[int, xr.Dataset]:
    """Return the partial sums of the series in gamma0 at the problem's gamma0, by order, for the figure.

    Empty if the theory is not linear, or if its kernels need more memory than ``effort`` allows.
    """
    if not isinstance(problem.linear, LinearForm) or _kernel_bytes(problem) > effort.kernel:
        return {}
    rough = with_solver(problem, problem.solver.method, rtol=max(problem.solver.rtol, PICTURE))
    expanded, strength = expand(rough, ORDER), float(problem.numbers[gamma0])
    return {n: partial_sum(expanded, strength, n) for n, *_ in SERIES}


def by_width(trained: Sequence[xr.Dataset]) -> xr.Dataset:
    """Return results of networks joined along the dimension ``width``, with means and standard errors.

    The last width is infinite: its entries are the extrapolation to 1/N = 0.
    """
    limit = extrapolate(trained)
    names = [name for name in trained[0].data_vars if name in limit]
    joined = xr.concat([d[names] for d in (*trained, limit)], dim="width", combine_attrs="drop")
    joined = joined.assign_coords(width=[*(float(d.attrs["width"]) for d in trained), np.inf])
    joined.attrs = {**limit.attrs, "seeds": [*limit.attrs["seeds"]]}
    return joined


def write(
    folder: Path,
    report: Report,
    tex: str,
    theory: xr.Dataset,
    networks: xr.Dataset | None,
    figure: Figure,
    papers: tuple[str, ...] = (),
) -> None:
    """Write all files into `folder`, which is created if it does not exist; its parent must exist.

    The files are written into a folder beside it and then moved together.  Without networks there is no
    networks.nc, and one of an earlier run is removed.
    """
    checks = [check.as_dict() for check in report.checks]
    summary = {"title": report.title, "passed": report.passed, "notes": report.notes, "checks": checks}
    summary |= {key: theory.attrs[key] for key in ("spec", *PROVENANCE) if key in theory.attrs}
    with replacing_folder(folder) as beside:
        save_figure(figure, beside / "figure.png")
        figure.set_layout_engine("none")  # the page draws the figure again, whose layout is computed already
        texts = {
            "equations.txt": report.equations,
            "equations.tex": DOCUMENT % tex,
            "table.txt": report.table(),
            "checks.json": json.dumps(summary, indent=2, allow_nan=False),
            "report.html": page(report, tex, theory, networks, figure, papers),
        }
        for name, text in texts.items():
            (beside / name).write_text(text.rstrip() + "\n", encoding="utf-8")
        save(theory, beside / "theory.nc")
        if networks is not None:
            save(networks, beside / "networks.nc")
    if networks is None:
        (folder / "networks.nc").unlink(missing_ok=True)


def _kernel_bytes(problem: Problem) -> float:
    """Return the size in bytes of a kernel at all layers, pairs of times, and pairs of samples."""
    return 8.0 * (problem.depth or 1) * (len(problem.times) * problem.sample_count) ** 2
