"""What the commands share: their options, checks on output paths before anything runs, progress, printing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from numerics.errors import Diverged, NotConverged, NumericsError, SpecError, value_to_toml
from numerics.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr
    from numpy.typing import NDArray

    from derive.program import Program
    from numerics.experiment import Experiment
    from numerics.experiment.problem import Problem
    from numerics.results import Result


SpecFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="The experiment file (TOML), or FILE.py:NAME, a program of one's own: naming a Python file "
        "runs it.",
    ),
]
DataIn = Annotated[
    list[str] | None,
    typer.Option("-D", "--data", metavar="NAME=FILE", help="An array, such as kernel=k.npy."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A key of the file, such as training.steps=50."),
]
Accuracy = Annotated[
    float | None,
    typer.Option(
        "--accuracy",
        metavar="SHARE",
        help="Standard error of what is sampled, as a share of the largest value (solver.accuracy).",
    ),
]
NetcdfOut = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="OUT.nc", help="Write the result as NetCDF.")
]
PlotOut = Annotated[Path | None, typer.Option("--plot", metavar="OUT.png", help="Draw the result.")]
KeptKernels = Literal["auto", "full", "trace", "none"]
"""How much of the two-time kernels a result holds."""
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


LONG = 30.0
"""Seconds from which an estimate is said before anything runs."""


def load(
    file: str, data: list[str] | None = None, settings: list[str] | None = None, *, arrays: bool = True
) -> Experiment:
    """The experiment of a file, with other arrays and keys where the command line names them.

    Without ``arrays`` it is enough to derive, and the files of arrays need not be there.

    Raises SpecError for a program where an experiment file is asked for.
    """
    from numerics.cli.arguments import experiment_in, is_program, pairs

    if is_program(file):
        raise SpecError("file", file, "is a program, but this needs the keys of an experiment", "a TOML file")
    return experiment_in(file, pairs("-D", data or ()), pairs("--set", settings or ()), read=arrays)


def settings_with(accuracy: float | None, settings: list[str] | None) -> list[str] | None:
    """``--set`` with ``--accuracy``, which is a word for one of its keys."""
    return settings if accuracy is None else [*(settings or ()), f"solver.accuracy={accuracy}"]


def numbers_in(settings: list[str] | None) -> dict[str, float]:
    """The numbers for symbols of a program that ``--set`` gives, by symbol or by key of a file."""
    from numerics.cli.arguments import SYMBOLS, pairs, value_of
    from numerics.experiment.checks import finite_number

    given = {key: value_of(text) for key, text in pairs("--set", settings or ()).items()}
    return {SYMBOLS.get(key, key): finite_number(key, value) for key, value in given.items()}


def refuse_arrays(data: list[str] | None) -> None:
    """Raise SpecError for arrays where formulas have none."""
    if data:
        raise SpecError("-D", data[0], "is not read: the formulas have no arrays", "no -D")


def load_layers(file: str, settings: list[str] | None, data: list[str] | None = None) -> Experiment:
    """The experiment of a file whose equations are derived at its depth; raises SpecError for too many."""
    from numerics.experiment.problem import require_derivation

    experiment = load(file, data, settings)
    depth = experiment.network.depth
    require_derivation(("network.depth", depth), depth, experiment.solver.hours)
    return experiment


def load_problem(
    file: str, data: list[str] | None, settings: list[str] | None, *, depth: bool = True
) -> Experiment | Problem:
    """What is computed: an experiment that lacks no number, or the problem of a program.

    Without ``depth`` the number of layers of a residual network may be a symbol.
    """
    from numerics.cli.arguments import is_program, pairs, problem_in
    from numerics.experiment.problem import derivation

    if is_program(file):
        return problem_in(file, pairs("-D", data or ()), pairs("--set", settings or ()))
    experiment = load(file, data, settings)
    from numerics.experiment.numbers import require_numbers

    require_numbers(experiment, depth=depth or experiment.network.branch is None)
    seconds = derivation(experiment.network.depth)
    if LONG < seconds <= 3600 * experiment.solver.hours:
        say(f"deriving the equations of {experiment.network.depth} layers takes about {seconds:.0f} s")
    return experiment


def load_program(file: str) -> Program | None:
    """The program that the argument names, if it names one; this runs its file."""
    from numerics.cli.arguments import is_program, program_in

    return program_in(file) if is_program(file) else None


def check_outputs(
    file: str,
    data: list[str] | None,
    problem: Experiment | Problem | None,
    outputs: Mapping[str, Path | None],
) -> None:
    """Refuses, before the work that they are for, output paths that could not be written, and those of the
    spec, of its arrays or of each other; a link is what it points to.
    """
    from numerics.cli.arguments import pairs
    from numerics.experiment.experiment import TESTING, TRAINING, Experiment

    names = [Path(file.partition(".py:")[0] + ".py") if ".py:" in file else Path(file)]
    names += [Path(x) for x in pairs("-D", data or ()).values()]
    if isinstance(problem, Experiment) and problem.data is not None:
        said = (getattr(problem.data, key) for key in (*TRAINING, *TESTING))
        names += [Path(file).parent / x for x in said if x is not None]
    taken = {Path(str(x).partition(".npz:")[0] + ".npz" if ".npz:" in str(x) else x).resolve() for x in names}
    for key, path in outputs.items():
        if path is None:
            continue
        if path.is_dir():
            raise SpecError(key, str(path), "is a folder", "a file name")
        if path.exists() and not path.is_file():
            raise SpecError(key, str(path), "is no regular file", "a file name, new or old")
        if path.resolve() in taken:
            raise SpecError(key, str(path), "is read or written by this command too", "another file name")
        taken.add(path.resolve())
        _check_parent(key, path.resolve())


def check_plot(path: Path | None) -> None:
    """Refuses a figure whose suffix is no format that Matplotlib writes here."""
    if path is None:
        return
    from matplotlib.backend_bases import FigureCanvasBase

    suffixes = sorted({*FigureCanvasBase.get_supported_filetypes()} - {"pgf"})  # that one needs LaTeX
    if path.suffix.removeprefix(".").lower() not in suffixes:
        accepted = "a file name that ends in ." + ", .".join(suffixes)
        raise SpecError("--plot", str(path), "has a suffix that is no picture format", accepted)


def check_folder(path: Path | None) -> None:
    """Refuses an output folder that is a file or may not be written in, or whose parent is not there."""
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise SpecError("--output", str(path), "is a file", "a folder, new or old")
    _check_parent("--output", path.resolve())
    if path.exists():
        _check_parent("--output", path.resolve() / "table.txt")


def _check_parent(key: str, path: Path) -> None:
    """Tries whether a file can be made beside ``path``: permissions do not say all."""
    if not path.parent.is_dir():
        reason, accepted = f"there is no folder {path.parent}", "a path in a folder that exists"
        raise SpecError(key, str(path), reason, accepted)
    try:
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        reason, accepted = f"cannot write in {path.parent}: {error.strerror}", "another path"
        raise SpecError(key, str(path), reason, accepted) from None


@contextmanager
def naming_the_key(source: Experiment | Problem) -> Iterator[None]:
    """Adds to a failed computation the key that would mend it, and its value."""
    try:
        yield
    except NumericsError as error:
        from numerics.experiment import Experiment

        named = re.search(r"\b(network|solver|training)\.\w+ = ", str(error))
        if not isinstance(source, Experiment) or named or (isinstance(error, Diverged) and error.start):
            raise
        key, value = "solver.rtol", source.solver.rtol
        if isinstance(error, NotConverged) and source.training.entrywise:
            key = "training.rule"
            value = source.value(key)
        if isinstance(error, Diverged):
            key = "training.time" if source.training.rule == "flow" else "training.learning_rate"
            value = source.value(key)
        raise type(error)(f"{key} = {value_to_toml(value)}: {error}") from error


@contextmanager
def progress(label: str, *, whole: bool = False) -> Iterator[Progress | None]:
    """A meter on stderr, as a function of (step, total), that goes once from 0 to its end; None where stderr
    is no terminal.  ``whole``: the total is that of all there is to do, not of one pass, and the time that
    is left is shown.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    form = BAR + "<{remaining}" if whole else BAR
    with tqdm(desc=label, file=sys.stderr, leave=False, total=1.0, bar_format=form) as bar:

        def show(share: float) -> None:
            bar.update(share - bar.n)

        yield (lambda step, total: show(step / total)) if whole else Meter(show)
        show(1.0)


BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"


class Meter:
    """The share that is done, of passes of which nobody knows how many follow: each takes half of the rest.

    >>> seen = []
    >>> meter = Meter(seen.append)
    >>> for step, total in [(1, 2), (2, 2), (1, 4), (4, 4)]: meter(step, total)
    >>> seen
    [0.25, 0.5, 0.5625, 0.75]
    """

    def __init__(self, show: Callable[[float], object]) -> None:
        self.show, self.passes, self.last = show, 0, 0.0

    def __call__(self, step: int, total: int) -> None:
        share = step / max(total, 1)
        if share < self.last:
            self.passes += 1
        self.last = share
        self.show(1 - 2.0**-self.passes * (1 - share / 2))


def say(text: str) -> None:
    """A line on stderr."""
    typer.echo(text, err=True)


def print_json(value: Any) -> None:
    """One JSON object on stdout; NaN is not JSON and has become null before."""
    typer.echo(json.dumps(value, allow_nan=False))


def report(
    result: xr.Dataset | Result, output: Path | None, as_json: bool, extra: Mapping[str, object] | None = None
) -> None:
    """Saves the result if asked to, and prints it as JSON (with `extra` keys) or as a short table."""
    from numerics.results import save, to_json

    if output is not None:
        save(result, output)
    if as_json:
        print_json({**to_json(result), **(extra or {})})
        return
    typer.echo(summary(result))
    if output is not None:
        typer.echo(f"wrote {output}")


INTERVAL = "+- (95 %)"
"""The column of :func:`numerics.results.interval`."""


def _at_width(result: xr.Dataset | Result) -> dict[str, NDArray[np.float64]]:
    """The mean of each loss over networks of some width, and the standard deviation of one network."""
    from numerics.results import LOSSES, SHIFT, VARIANCE, Result

    said = result.notes if isinstance(result, Result) else result.attrs
    columns: dict[str, NDArray[np.float64]] = {}
    for end, name in zip(("", " "), LOSSES, strict=True):  # each column has a name of its own
        if name not in result or name + VARIANCE not in result:
            continue
        width = int(said["width"])
        if name + SHIFT in result:
            columns[f"mean at N{end}"] = result[name].values + result[name + SHIFT].values / width
        columns[f"deviation{end}"] = (result[name + VARIANCE].values / width) ** 0.5
    return columns


def _width_heads(said: Mapping[str, Any]) -> list[str]:
    """What the corrections of finite width are, and how well they are known."""
    lines = [
        f"N = {said['width']}: mean over networks, and standard deviation of one network, to leading order "
        f"in 1/N, by {said['width_method']}"
    ]
    errors = {key: said[key] for key in ("variance_error", "shift_error") if key in said}
    if errors:
        told = ", ".join(f"{key.replace('_', ' ')} {x:.1e}" for key, x in errors.items())
        lines.append(f"of the corrections of the flow: {told} of the largest value")
    if "no_shift" in said:
        lines.append(str(said["no_shift"]))
    return lines


def summary(result: xr.Dataset | Result, rows: int = 9) -> str:
    """The status and the losses at a few times, evenly chosen, ends included."""
    from numerics.results import STDERR, Result, interval

    columns: dict[str, NDArray[np.float64]] = {}
    series = "order" in result.coords
    if series and "train_loss" in result:  # powers come first
        for k, n in enumerate(result["order"].values):
            columns[f"order {int(n)}"] = result["train_loss"].values[k]
            if "train_loss_stderr" in result:
                columns["stderr" + " " * k] = result["train_loss_stderr"].values[k]
    for name, called in (("train_loss_resummed", "at gamma0"), ("train_loss_truncation", "truncation")):
        if name in result:
            columns[called] = result[name].values
    for name, called in (("train_loss", INTERVAL), ("test_loss", INTERVAL + " ")):
        if name in result and not series:
            columns[name] = result[name].values
            if name + STDERR in result:
                columns[called] = interval(result, name)
    columns |= _at_width(result)
    if "train_loss" not in result and "error" in result and not series:  # no loss is known
        errors = abs(result["error"].values)
        columns["largest error"] = errors.reshape(len(errors), -1).max(axis=1)
    time = result["time"].values
    count = len(time)
    chosen = sorted({round(i * (count - 1) / max(rows - 1, 1)) for i in range(rows)})
    lines = ["".join(f"{name:>16}" for name in ["time", *columns])]
    for i in chosen:
        cells = [f"{float(time[i]):16.6g}", *(f"{float(column[i]):16.8g}" for column in columns.values())]
        lines.append("".join(cells))
    said = result.notes if isinstance(result, Result) else result.attrs
    if "resummation" in said:
        by, status = said["resummation"], said.get("resummation_status", "")
        lines.append(f"at gamma0 = {said['gamma0']:g} by {by}: {status}")
        if "resummation_failed" in said:
            lines.append(f"no value for {said['resummation_failed']}")
    heads = [f"status: {said.get('status', 'unknown')}"]
    if "bias_estimate" in said:
        bias = f"bias {said['bias']:.1e} (at most {said['bias_estimate']:.1e})"
        paths = f"{said['replicas']} replicas of {said['samples']} paths"
        heads.append(f"standard error {said['accuracy']:.1e}, {bias} of the largest value; {paths}")
    if "width_method" in said:
        heads += _width_heads(said)
    if "note" in said:
        heads.append(f"note: {said['note']}")
    if "unknown_errors" in said:
        heads.append(f"errors that are not known: {said['unknown_errors']}")
    if "left_out" in said:
        heads.append(f"left out: {said['left_out']}")
    if "powers_of" in said:
        orders = {str(k): v.attrs["known_to_order"] for k, v in result.data_vars.items()}
        known = ", ".join(f"{name} {n}" for name, n in orders.items() if not name.endswith("_stderr"))
        heads.append(f"powers of {said['powers_of']}; known to order: {known}; nan: not known")
    return "\n".join([*heads, *lines])
