"""The commands `dmft derive`, `solve`, `simulate`, `expand`, `verify`, `sweep` and `ledger`.

Each command but `sweep` and `ledger` takes an experiment file or a program; `sweep` takes an experiment file,
and `ledger` the name of a paper.  The commands print or write the results of functions in `numerics` and
`derive`.  `dmft limits` stands in :mod:`numerics.cli.limits`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from numerics.cli.common import (
    LONG,
    Accuracy,
    AsJson,
    DataIn,
    KeptKernels,
    NetcdfOut,
    PlotOut,
    Settings,
    SpecFile,
    check_folder,
    check_outputs,
    check_plot,
    load,
    load_problem,
    load_program,
    naming_the_key,
    print_json,
    progress,
    refuse_arrays,
    refuse_unused,
    report,
    say,
    settings_with,
)
from numerics.cli.files import draw, examples, new, show
from numerics.cli.limits import limits
from numerics.errors import Interrupted, NotConverged, NumericsError, SpecError

if TYPE_CHECKING:
    from derive.ledger import Entry
    from derive.program import Program
    from numerics.experiment.schema import Solver


DerivedPart = Literal[
    "single-site", "order-parameters", "responses", "action", "saddle-point", "fluctuations", "all"
]
"""Parts of a theory that `dmft derive` prints, and the fluctuations of networks of finite width around it."""

SeriesFormat = Literal["text", "latex"]
"""Formats in which a series is printed."""

ResummationName = Literal["sum", "pade", "self-consistent"]
"""Methods that evaluate a series at gamma0; those of :mod:`numerics.expansion.resummation`."""


def derive(
    file: SpecFile,
    show: Annotated[DerivedPart, typer.Option(help="The part of the theory to print.")] = "all",
    form: Annotated[
        Literal["text", "latex", "srepr", "json"], typer.Option("--format", help="The form to print it in.")
    ] = "text",
) -> None:
    """Print the derived mean-field equations of an experiment file or a program; network.depth may be "L".

    Arrays, learning rates and times may be missing: the equations contain symbols, such as eta and gamma0, in
    place of most numbers of the file. The depth and the numbers in an activation keep their values. After a
    limit (wide layers) or a rewriting (sums over modes), "all" leaves out the action; --show action prints
    it.
    "fluctuations" are the leading corrections for networks of N units: the exponent of the path integral of
    one unit, and its derivatives.
    """
    program = load_program(file)
    if show == "fluctuations":
        typer.echo(_fluctuations(file, program, form))
        return
    if program is not None:
        from derive.theory import mean_field

        typer.echo(mean_field(program).render(show, form))
        return
    experiment = load(file, arrays=False)
    from numerics.experiment.numbers import legend
    from numerics.experiment.theory import path_integral_of, theory_of

    exact = show in ("action", "saddle-point")
    theory = (path_integral_of if exact else theory_of)(experiment)
    typer.echo(theory.render(show, form))
    if form == "text" and show == "all":
        typer.echo("\n" + legend(experiment.spec, theory))


def _fluctuations(file: str, program: Program | None, form: str) -> str:
    """Return the text of `dmft derive --show fluctuations` for a program, or for an experiment file.

    ``program`` is None for an experiment file, whose program is then derived from ``file``. Raises SpecError
    for the format srepr, and if fluctuations of the program are not derived.
    """
    from derive.errors import NotApplicable
    from derive.theory.fluctuations import fluctuations
    from numerics.experiment.theory import centred, program_of

    if form == "srepr":
        problem = (
            "is not available for fluctuations; the format json contains their expressions as srepr text"
        )
        raise SpecError("--format", form, problem, '"json"')
    if program is None:
        experiment = load(file, arrays=False)
        program = program_of(experiment)
        spec = experiment.spec
        program = centred(program) if spec.kind == "fixed" and spec.centered else program
    try:
        return fluctuations(program).render(format=form)
    except NotApplicable as reason:
        raise SpecError("--show", "fluctuations", f"are not derived: {reason}", "another part") from None


# -- dmft solve -------------------------------------------------------------------------------------------


def solve(  # noqa: PLR0913 - the arguments are the options of the command
    file: SpecFile,
    output: NetcdfOut = None,
    plot: PlotOut = None,
    as_json: AsJson = False,
    data: DataIn = None,
    settings: Settings = None,
    accuracy: Accuracy = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which method would run, its cost and error; run nothing.")
    ] = False,
    kernels: Annotated[
        KeptKernels,
        typer.Option(
            help="Two-time kernels to keep: of all sample pairs, their trace, none, or what fits in a file."
        ),
    ] = "auto",
    width: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Add variances and shifts of networks of N neurons a layer."),
    ] = None,
) -> None:
    """Solve the mean-field theory by the best method for it (or by solver.method).

    With --width the result holds N times the variance over networks (X_variance) and N times the difference
    between the mean over networks and the limit (X_shift) of losses, outputs, errors and kernels at equal
    times, to leading order in 1/N; N counts the neurons of the widest hidden layer, or is the N of a program.
    The figure then shows the mean at N and a band of one standard deviation. The exit status is 3 if the
    result did not converge.
    """
    if explain:
        outputs = {"-o": output, "--plot": plot, "--width": width, "--json": as_json or None}
        refuse_unused(outputs, "is not used with --explain, which runs nothing", "--explain without it")
    problem = load_problem(file, data, settings_with(accuracy, settings), depth=False)
    check_plot(plot)
    check_outputs(file, data, problem, {"--output": output, "--plot": plot})
    unused = kernels == "auto" and output is None and plot is None  # without a file nothing shows kernels
    kept: KeptKernels = "none" if unused else kernels
    if explain:
        from numerics.solver import registry

        typer.echo(str(registry.explain(problem, kernels=kept)))
        return
    from numerics.solution import solved

    with naming_the_key(problem), progress("solve") as meter:
        result = solved(problem, width=width, kernels=kept, progress=meter, say=say)
    if plot is not None:
        draw(result.dataset(), plot)
    report(result, output, as_json)
    if plot is not None and not as_json:
        typer.echo(f"wrote {plot}")
    if result.notes["status"] != "ok":  # the result is printed; the error makes the exit status nonzero
        raise NotConverged(
            f"the status is {result.notes['status']!r}: for sampled paths, use more solver.samples, or "
            "solver.accuracy in place of solver.samples; for other methods, use another solver.method"
        )


# -- dmft simulate ----------------------------------------------------------------------------------------


def simulate(
    file: SpecFile,
    width: Annotated[int, typer.Option(min=1, metavar="N", help="Neurons in the widest hidden layer.")],
    seeds: Annotated[int, typer.Option(min=2, metavar="K", help="Networks to train and average over.")],
    output: NetcdfOut = None,
    as_json: AsJson = False,
    data: DataIn = None,
    settings: Settings = None,
) -> None:
    """Train finite networks and average over them; solver.seed determines their random numbers.

    After Ctrl-C the means over the networks trained so far, if two or more, are printed, and written if -o is
    given, with status "partial".
    """
    problem = load_problem(file, data, settings)
    check_outputs(file, data, problem, {"--output": output})
    from numerics.simulation import simulate

    try:
        with naming_the_key(problem), progress("simulate", whole=True) as meter:
            result = simulate(problem, width=width, seeds=seeds, rng=problem.solver.seed, progress=meter)
    except Interrupted as stop:
        report(stop.result, output, as_json)
        raise
    report(result, output, as_json)


# -- dmft expand ------------------------------------------------------------------------------------------


def expand(  # noqa: PLR0913 - the arguments are the options of the command
    file: SpecFile,
    order: Annotated[int, typer.Option(min=0, metavar="n", help="The highest power of gamma0.")],
    show: Annotated[SeriesFormat | None, typer.Option(help="Print the series itself, in this form.")] = None,
    output: NetcdfOut = None,
    resum: Annotated[
        ResummationName | None,
        typer.Option(help="How the series is evaluated at network.gamma0.", show_default="pade"),
    ] = None,
    as_json: AsJson = False,
    data: DataIn = None,
    settings: Settings = None,
) -> None:
    """Expand in gamma0. With --show, print the series, and compute numbers only if -o is given.

    To print the series, network.depth may be "L". For linear networks beyond order 8, the operator words
    (products of kernels) are too many to print: the coefficient of each order is then given by those of lower
    orders. Loss and error at network.gamma0 come with an estimate of the truncation error, by partial sums,
    Padé approximants, or operator words with the self-consistent error.
    """
    check_outputs(file, data, None, {"--output": output})
    if show is not None and output is None:
        refuse_unused(
            {"--resum": resum}, "is not used for a printed series, which has no numbers", "-o OUT.nc"
        )
        refuse_arrays(data)
        text = _series(file, order, show, settings)
        if as_json:
            print_json({"series": text})
        else:
            typer.echo(text)
        return
    problem = load_problem(file, data, settings)
    check_outputs(file, data, problem, {"--output": output})
    extra = {}
    if show is not None:
        from numerics.cli.arguments import is_program

        hours = [f"solver.hours={problem.solver.hours}"]
        extra = {"series": _series(file, order, show, hours if is_program(file) else settings)}
        if not as_json:
            typer.echo(extra["series"])
    from numerics.expansion import evaluated_at, forecast

    announce_time(forecast(problem, order), problem.solver.hours)
    with naming_the_key(problem), progress("expand", whole=True) as meter:
        result = evaluated_at(problem, order, resum, progress=meter)
    report(result, output, as_json, extra)


def announce_time(seconds: float, hours: float) -> None:
    """Print the estimated ``seconds`` on stderr if they exceed LONG (half a minute) but not ``hours``.

    Computations that take longer than ``hours`` are refused elsewhere.
    """
    if LONG < seconds <= 3600 * hours:
        say(f"this takes about {seconds:.0f} s on one core")


def _series(file: str, order: int, show: SeriesFormat, settings: list[str] | None) -> str:
    """Return the text of `dmft expand --show` for an experiment file or a program.

    The series of a program has no numbers. Of ``settings`` it uses only ``solver.hours``, and SpecError is
    raised for others.
    """
    program = load_program(file)
    if program is None:
        from numerics.expansion import forecast, series

        experiment = load(file, None, settings, arrays=False)
        announce_time(forecast(experiment, order, symbols=True), experiment.solver.hours)
        return series(experiment, order).render(show)
    solver = _solver_hours(settings)
    from derive.errors import NotApplicable
    from derive.expansion import expand
    from numerics.expansion import require_order

    require_order(program, order, solver)
    from derive.program import gamma0
    from derive.theory import mean_field

    try:
        return expand(mean_field(program), gamma0, order).render(show)
    except NotApplicable as reason:
        raise SpecError("file", file, f"has no series in gamma0: {reason}", "another program") from reason


def _solver_hours(settings: list[str] | None) -> Solver:
    """Return the solver's settings of ``--set``; raise SpecError for keys other than ``solver.hours``."""
    from numerics.cli.arguments import pairs, value_of
    from numerics.experiment.schema import Solver, parse

    given = pairs("--set", settings or ())
    for key, text in given.items():
        if key != "solver.hours":
            problem = "is not used in the series of a program, which has no numbers"
            raise SpecError(
                "--set", f"{key}={text}", problem, "solver.hours, -o OUT.nc, or an experiment file"
            )
    if not given:
        return Solver()
    return parse({"network": {"depth": 1}, "solver": {"hours": value_of(given["solver.hours"])}}).solver


# -- dmft verify ------------------------------------------------------------------------------------------


def verify(
    file: SpecFile,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write results and figure here.")
    ] = None,
    data: DataIn = None,
    settings: Settings = None,
    accuracy: Accuracy = None,
) -> None:
    """Print the equations and a table of checks with error bars; exit 1 if a check fails."""
    problem = load_problem(file, data, settings_with(accuracy, settings))
    check_folder(output)
    from numerics.expansion import has_words
    from numerics.verification import equations
    from numerics.verification import verify as verified

    for render in equations(problem, powers=has_words(problem)):
        typer.echo(render("text"))
    with naming_the_key(problem), progress("verify", whole=True) as meter:
        report = verified(
            problem, out_dir=output, progress=meter, before=lambda result: typer.echo(result.table())
        )
    if report.folder is not None:
        typer.echo(f"{report.verdict}: {report.folder / 'report.html'}")
    if not report.passed:
        raise typer.Exit(1)


# -- dmft sweep -------------------------------------------------------------------------------------------

MOST = 100_000
"""Largest number of points of a sweep; more are refused as a typing error."""

SHOWN = 10
"""Largest number of printed points that failed or did not converge."""


def values_of(key: str, text: str) -> list[Any]:
    """Return the values of a key: ``V1,V2,...`` as in TOML or as words; ``A..B`` are integers from A to B.

    Raises SpecError for a text without a value, for ``A..B`` with A > B, and for more than MOST integers.

    >>> values_of("network.gamma0", "0.1,0.5,1"), values_of("network.depth", "1..3")
    ([0.1, 0.5, 1], [1, 2, 3])
    >>> values_of("network.activation", "tanh,relu"), values_of("network.widths", "[1,2],[2,4]")
    (['tanh', 'relu'], [[1, 2], [2, 4]])
    """
    from numerics.cli.arguments import value_of

    ends = re.fullmatch(r"\s*(-?\d{1,18})\.\.(-?\d{1,18})\s*", text)
    if ends is not None:
        first, last = map(int, ends.groups())
        if not first <= last < first + MOST:
            raise SpecError(
                key, text, f"are {max(0, last - first + 1)} values", f"A..B with A <= B < A + {MOST}"
            )
        return [*range(first, last + 1)]
    try:
        values = tomllib.loads(f"x = [{text}]")["x"]
    except (ValueError, RecursionError):
        values = [value_of(part.strip()) for part in text.split(",")]
    if not values:
        raise SpecError(key, text, "has no value", "KEY=V1,V2,...")
    return list(values)


def sweep(  # noqa: PLR0913 - the arguments are the options of the command
    file: SpecFile,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="KEY=V1,V2,...",
            help="A key of the file and its values, or integers KEY=A..B; one value is a setting.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="The folder of the results, new or old.")
    ],
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Points at a time.")] = 1,
    cluster: Annotated[
        Literal["submitit"] | None, typer.Option(help="Send the points to a cluster, as one array of jobs.")
    ] = None,
    gather: Annotated[
        bool, typer.Option("--gather", help="Combine the results in DIR/sweep.nc, a dimension for each key.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False,
    kernels: Annotated[KeptKernels, typer.Option(help="Two-time kernels to keep, as in solve.")] = "none",
    as_json: AsJson = False,
    data: DataIn = None,
) -> None:
    """Solve an experiment at all combinations of values of its keys; write one NetCDF file a point in DIR.

    Points that DIR already holds are skipped, so that the same command continues a sweep that was stopped. A
    point that fails is kept with its reason, and the other points still run. The exit status is 4 if a point
    failed by a defect in dmft, and otherwise 3 if no point has a result.
    """
    over, fixed = _swept_keys(settings)
    experiment = load(file, data, fixed)
    check_folder(output)
    gathered = output / "sweep.nc"
    if gather and output.exists():
        check_outputs(file, data, experiment, {"--gather": gathered})
    from numerics.analysis import sweep as sweeps
    from numerics.results import save

    grid = sweeps.Grid.of(experiment, over, output, kernels)
    executor = None
    if cluster is not None:
        executor = sweeps.cluster(output, hours=experiment.solver.hours, jobs=jobs)
    try:
        with progress("sweep", whole=True) as meter:
            outcomes = grid.run(jobs=jobs, retry=retry, executor=executor, progress=meter, results=gather)
    except Interrupted:
        say(f"finished points are kept in {output}: the same command continues from there")
        raise
    if gather:
        save(grid.gathered(outcomes), gathered)
    rows: list[dict[str, Any]] = [
        {**dict(point.at), "status": x.status, "file": str(point.file if point.done else point.failed)}
        for point, x in zip(grid.points, outcomes, strict=True)
    ]
    failed = [row for point, row in zip(grid.points, rows, strict=True) if not point.done]
    if as_json:
        written = {"gathered": str(gathered)} if gather else {}
        print_json({"points": rows, "failed": len(failed), **written})
    else:
        typer.echo(
            f"{len(rows)} points in {output}: {len(rows) - len(failed)} with a result, {len(failed)} without"
        )
        _print_statuses(rows, list(over))
        if gather:
            typer.echo(f"wrote {gathered}")
    if any(row["status"].startswith(sweeps.DEFECT) for row in failed):
        raise typer.Exit(4)
    if len(failed) == len(rows):
        raise NumericsError(
            f"no point of the sweep has a result; the first has the status: {failed[0]['status']}"
        )


def _swept_keys(settings: list[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the keys with several values, which a sweep varies, and the settings with one value.

    The second result holds texts ``KEY=VALUE``, as ``settings`` does. Raises SpecError if no key has several
    values, or if there are more than MOST combinations.
    """
    from numerics.cli.arguments import pairs

    texts = pairs("--set", settings)
    values = {key: values_of(key, text) for key, text in texts.items()}
    over = {key: several for key, several in values.items() if len(several) > 1}
    if not over:
        raise SpecError("--set", settings, "names no key with several values", "KEY=V1,V2,... or KEY=A..B")
    if (count := prod(map(len, over.values()))) > MOST:
        raise SpecError("--set", settings, f"are {count} points", f"at most {MOST}")
    return over, [f"{key}={text}" for key, text in texts.items() if key not in over]


def _print_statuses(rows: list[dict[str, Any]], keys: list[str]) -> None:
    """Print the points of a sweep whose status is not "ok", at most SHOWN of them.

    ``rows`` has a dictionary for each point, with its values of the ``keys`` and its "status". Each point is
    one line: its values and its status. If there are more, a last line states how many are not printed.
    """
    not_ok = [row for row in rows if row["status"] != "ok"]
    for row in not_ok[:SHOWN]:
        typer.echo("  " + ", ".join(f"{key} = {row[key]}" for key in keys) + f": {row['status']}")
    if len(not_ok) > SHOWN:
        typer.echo(f"  and {len(not_ok) - SHOWN} more; each has its status in DIR")


# -- dmft ledger ------------------------------------------------------------------------------------------

EVIDENCE = "tests/ledger/evidence"
"""Folder of the evidence in a checkout."""


def ledger(
    source: Annotated[str | None, typer.Argument(help="Of one paper only, such as linear2025.")] = None,
    number: Annotated[
        str | None, typer.Argument(help="Of one equation only, such as 104 or '105 text'.")
    ] = None,
    verdict: Annotated[str | None, typer.Option(help="Of one verdict only, such as wrong.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run the evidence again; exit 1 if any fails.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the ledger of equations; with --check, in a checkout, run the evidence behind the verdicts."""
    from derive.ledger import render

    rows = _chosen(source, number)
    if verdict is not None:
        from derive.ledger import VERDICTS

        if verdict not in VERDICTS:
            raise SpecError("--verdict", verdict, "is not a verdict", ", ".join(VERDICTS))
        if check:
            raise SpecError(
                "--verdict", verdict, "cannot be combined with --check", "a paper and a number with --check"
            )
        rows = [x for x in rows if x.verdict == verdict]
    root = _checkout() if check else None
    words = [x for x in (source, number) if x is not None]
    if as_json:
        tables = {"entries": json.loads(render(rows, "json"))}
        status = 0
        if root is not None:
            status, output = _run_evidence(root, [*words, "--json"], capture=True)
            tables["checks"] = json.loads(output)
        print_json(tables)
    else:
        typer.echo(render(rows, "text", full=number is not None))
        counts = Counter(row.verdict for row in rows)
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        typer.echo(f"{len(rows)} entries: {verdicts}")
        status = 0 if root is None else _run_evidence(root, words)[0]
    if status:
        raise typer.Exit(status)


def _checkout() -> Path:
    """Return the folder of the checkout that this package runs from.

    Raises SpecError if it does not hold the evidence.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / EVIDENCE).is_dir():
        raise SpecError(
            "--check",
            None,
            f"the installed package does not hold the evidence; it stands in {EVIDENCE} of the source",
            "the command in a checkout: git clone, pip install -e '.[test]'",
        )
    return root


def _run_evidence(root: Path, words: list[str], capture: bool = False) -> tuple[int, str]:
    """Run ``python -m tests.ledger.evidence`` in its own process; return its exit status and its output.

    ``root`` is the folder of the checkout and ``words`` are the arguments of the command. Without ``capture``
    the output goes to stdout, and the returned output is empty.
    """
    sys.stdout.flush()
    done = subprocess.run(
        [sys.executable, "-m", EVIDENCE.replace("/", "."), *words],
        cwd=root,
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout or ""


def _chosen(source: str | None, number: str | None) -> list[Entry]:
    """Return the ledger's entries of a paper ``source`` and equation ``number``; None stands for all.

    Without a source the number is ignored. Raises ``typer.BadParameter`` for an unknown paper or equation.
    """
    from derive.ledger import entries

    try:
        rows = list(entries(source))
    except LookupError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="SOURCE") from error
    if source is None or number is None:
        return rows
    from derive.ledger import find

    try:
        return [find(source, number)]
    except LookupError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="NUMBER") from error


app = typer.Typer(
    name="dmft",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (derive, solve, simulate, expand, verify, sweep, ledger, new, show, examples):
    app.command()(command)
app.add_typer(limits, name="limits")


def _say_version(asked: bool) -> None:
    """Print the version and exit, if the option --version is given."""
    if asked:
        from numerics.results import provenance

        typer.echo(f"dmft {provenance()['version']}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Derive, expand, solve and verify the mean-field theory of a neural network's training."""
