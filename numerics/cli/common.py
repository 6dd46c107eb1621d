"""Options, checks of output paths, progress bars and printing that the commands share."""

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
"""Two-time kernels in a result: all sample pairs (full), their trace, none, or as a file can hold (auto)."""
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


LONG = 30.0
"""Estimated seconds above which the estimate is printed before anything runs."""


def load(
    file: str, data: list[str] | None = None, settings: list[str] | None = None, *, arrays: bool = True
) -> Experiment:
    """Return the experiment of a file, with arrays and keys replaced by those of the command line.

    ``data`` and ``settings`` are the texts of the options -D (arrays) and --set (keys); None stands for none.
    ``arrays=False`` reads no array: the experiment can be derived but not solved.  Raises SpecError if the
    argument names a program.
    """
    from numerics.cli.arguments import experiment_in, is_program, pairs

    if is_program(file):
        raise SpecError(
            "file", file, "is a program, but this command needs the keys of an experiment", "a TOML file"
        )
    return experiment_in(file, pairs("-D", data or ()), pairs("--set", settings or ()), read=arrays)


def settings_with(accuracy: float | None, settings: list[str] | None) -> list[str] | None:
    """Return the texts KEY=VALUE of ``--set``, with the value of ``--accuracy`` added as ``solver.accuracy``.

    They are unchanged if ``accuracy`` is None.
    """
    return settings if accuracy is None else [*(settings or ()), f"solver.accuracy={accuracy}"]


def numbers_in(settings: list[str] | None) -> dict[str, float]:
    """Return numbers by symbol from the texts KEY=NUMBER of ``--set``, for commands that take a program.

    A key is the name of a symbol, or a key of the experiment file for which a program has a symbol: then the
    number is returned by this symbol, such as L for ``network.depth``. Raises SpecError for a value that is
    not a finite number, and for a second number for one symbol.
    """
    from numerics.cli.arguments import number_of, pairs, value_of

    numbers: dict[str, float] = {}
    for key, text in pairs("--set", settings or ()).items():
        numbers |= number_of(key, value_of(text), numbers)
    return numbers


def refuse_unused(options: Mapping[str, Any], problem: str, accepted: str) -> None:
    """Raise SpecError for the first of the ``options`` that is given.

    ``options`` maps each option to its value, which is None if the option is not given. ``problem`` is the
    reason why the command does not use these options; ``accepted`` says what to give instead.
    """
    for option, value in options.items():
        if value is not None:
            shown = str(value) if isinstance(value, Path) else value
            raise SpecError(option, None if value is True else shown, problem, accepted)


def refuse_arrays(data: list[str] | None) -> None:
    """Raise SpecError if arrays are given to a command that prints formulas without arrays.

    ``data`` holds the texts of the option -D, None if it is not given.
    """
    refuse_unused({"-D": data[0] if data else None}, "is not read: the formulas have no arrays", "no -D")


def refuse_settings(settings: list[str] | None) -> None:
    """Raise SpecError if --set is given to a command that prints a program's formulas without numbers.

    ``settings`` holds the texts of the option --set, None if it is not given.
    """
    problem, accepted = "is not used in the formulas of a program", "no --set, or an experiment file"
    refuse_unused({"--set": settings[0] if settings else None}, problem, accepted)


def load_layers(file: str, settings: list[str] | None, data: list[str] | None = None) -> Experiment:
    """Return the experiment of a file for a command that derives equations for each layer.

    ``settings`` and ``data`` are the texts of the options --set and -D, None if not given. Raises SpecError
    if there are too many layers to derive their equations within solver.hours.
    """
    from numerics.experiment.problem import require_derivation

    experiment = load(file, data, settings)
    depth = experiment.network.depth
    require_derivation(("network.depth", depth), depth, experiment.solver.hours)
    return experiment


def load_problem(
    file: str, data: list[str] | None, settings: list[str] | None, *, depth: bool = True
) -> Experiment | Problem:
    """Return the experiment of a file, or the problem of a program, with all numbers that a solver needs.

    ``data`` and ``settings`` are the texts of the options -D and --set, None if not given. ``depth=False``
    lets the number of layers of a residual network be a symbol.
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
    """Return the program that the argument names, after its file is run; None for an experiment file."""
    from numerics.cli.arguments import is_program, program_in

    return program_in(file) if is_program(file) else None


def check_outputs(
    file: str,
    data: list[str] | None,
    problem: Experiment | Problem | None,
    outputs: Mapping[str, Path | None],
) -> None:
    """Raise SpecError for output paths that cannot be written, or that the command also reads or writes.

    ``outputs`` maps options to paths, or to None where there is no output. ``file`` and ``data`` are read by
    the command; so are the arrays of an experiment if ``problem`` is one. Paths are compared after links are
    followed.
    """
    from numerics.cli.arguments import pairs
    from numerics.experiment.experiment import TESTING, TRAINING, Experiment

    inputs = [Path(file.partition(".py:")[0] + ".py") if ".py:" in file else Path(file)]
    inputs += [Path(name) for name in pairs("-D", data or ()).values()]
    if isinstance(problem, Experiment) and problem.data is not None:
        names = (getattr(problem.data, key) for key in (*TRAINING, *TESTING))
        inputs += [Path(file).parent / name for name in names if name is not None]
    taken = {_file_of_array(path).resolve() for path in inputs}
    for key, path in outputs.items():
        if path is None:
            continue
        if path.is_dir():
            raise SpecError(key, str(path), "is a folder", "a file name")
        if path.exists() and not path.is_file():
            raise SpecError(key, str(path), "is not a regular file", "a file name, new or old")
        if path.resolve() in taken:
            raise SpecError(key, str(path), "is read or written by this command too", "another file name")
        taken.add(path.resolve())
        _check_parent(key, path.resolve())


def _file_of_array(path: Path) -> Path:
    """Return the path of the file that holds an array; ``file.npz:name`` names an array in ``file.npz``."""
    file, separator, _ = str(path).partition(".npz:")
    return Path(file + ".npz") if separator else path


def check_plot(path: Path | None) -> None:
    """Raise SpecError if Matplotlib cannot write a figure with the suffix of ``path``.

    The suffix pgf is refused too, because it needs LaTeX. None stands for no figure, which raises nothing.
    """
    if path is None:
        return
    from matplotlib.backend_bases import FigureCanvasBase

    suffixes = sorted({*FigureCanvasBase.get_supported_filetypes()} - {"pgf"})  # pgf needs LaTeX
    if path.suffix.removeprefix(".").lower() not in suffixes:
        accepted = "a file name that ends in ." + ", .".join(suffixes)
        raise SpecError("--plot", str(path), "has a suffix that is not a picture format", accepted)


def check_folder(path: Path | None) -> None:
    """Raise SpecError if an output folder is a file, cannot be written in, or has no parent folder.

    None stands for no output, which raises nothing.
    """
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise SpecError("--output", str(path), "is a file", "a folder, new or old")
    _check_parent("--output", path.resolve())
    if path.exists():
        _check_parent("--output", path.resolve() / "table.txt")


def _check_parent(key: str, path: Path) -> None:
    """Raise SpecError if a file cannot be made beside ``path``; this makes one and removes it."""
    if not path.parent.is_dir():
        raise SpecError(key, str(path), f"there is no folder {path.parent}", "a path in a folder that exists")
    try:
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise SpecError(
            key, str(path), f"cannot write in {path.parent}: {error.strerror}", "another path"
        ) from None


@contextmanager
def naming_the_key(source: Experiment | Problem) -> Iterator[None]:
    """Add the key to change, and its value, to the message of an error raised in the ``with`` block.

    For an experiment, the key is the learning rate (of a flow: the time) if the solution diverged. Otherwise
    the key is the training rule if the solution did not converge and the rule is entrywise, and else the
    tolerance ``solver.rtol``. Messages that contain a key already, those of a divergence at the start, and
    those for a :class:`Problem` are unchanged.
    """
    try:
        yield
    except NumericsError as error:
        from numerics.experiment import Experiment

        names_a_key = re.search(r"\b(network|solver|training)\.\w+ = ", str(error))
        at_start = isinstance(error, Diverged) and error.start
        if not isinstance(source, Experiment) or names_a_key or at_start:
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
    """Yield a progress bar on stderr as a function of (step, total), or None if stderr is not a terminal.

    ``whole`` states that total counts all steps of the work, not those of one pass; then the remaining time
    is shown.
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
    """Progress of a computation of an unknown number of passes: each pass takes half of the remaining bar.

    ``show`` is called with the share of the bar, from 0 to 1.

    >>> seen = []
    >>> meter = Meter(seen.append)
    >>> for step, total in [(1, 2), (2, 2), (1, 4), (4, 4)]: meter(step, total)
    >>> seen
    [0.25, 0.5, 0.5625, 0.75]
    """

    def __init__(self, show: Callable[[float], object]) -> None:
        self.show, self.passes, self.last = show, 0, 0.0

    def __call__(self, step: int, total: int) -> None:
        """Show the progress after ``step`` of ``total`` steps of the current pass.

        If the finished fraction is less than that of the last call, a new pass has begun.
        """
        share = step / max(total, 1)
        if share < self.last:
            self.passes += 1
        self.last = share
        self.show(1 - 2.0**-self.passes * (1 - share / 2))


def say(text: str) -> None:
    """Print a sentence for the user on stderr, because stdout holds results only."""
    typer.echo(text, err=True)


def print_json(value: Any) -> None:
    """Print one JSON object on stdout; raise ValueError if it contains NaN or infinity.

    Callers must replace such numbers by None (null in JSON) before.
    """
    typer.echo(json.dumps(value, allow_nan=False))


def report(
    result: xr.Dataset | Result, output: Path | None, as_json: bool, extra: Mapping[str, object] | None = None
) -> None:
    """Save a result if ``output`` is given, and print it.

    It is printed as JSON with the keys of ``extra`` if ``as_json`` is true, otherwise as a short table.
    """
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
"""Heading of the column of :func:`numerics.results.interval`."""


def _attributes(result: xr.Dataset | Result) -> Mapping[str, Any]:
    """Return the attributes of a dataset, or the notes of a result."""
    from numerics.results import Result

    return result.notes if isinstance(result, Result) else result.attrs


def _at_width(result: xr.Dataset | Result) -> dict[str, NDArray[np.float64]]:
    """Return columns of the printed table for networks of finite width N, arrays over time by heading.

    They are the mean over networks of each loss, and the standard deviation of one network. A loss without a
    variance in the result has neither, and one without a shift has no mean.
    """
    from numerics.results import LOSSES, SHIFT, VARIANCE

    columns: dict[str, NDArray[np.float64]] = {}
    for end, name in zip(("", " "), LOSSES, strict=True):  # the space makes the second headings unique
        if name not in result or name + VARIANCE not in result:
            continue
        width = int(_attributes(result)["width"])
        if name + SHIFT in result:
            columns[f"mean at N{end}"] = result[name].values + result[name + SHIFT].values / width
        columns[f"deviation{end}"] = (result[name + VARIANCE].values / width) ** 0.5
    return columns


def _width_heads(attributes: Mapping[str, Any]) -> list[str]:
    """Return the lines about corrections of finite width above the table: method, width and errors."""
    lines = [
        f"N = {attributes['width']}: mean over networks, and standard deviation of one network, to leading "
        f"order in 1/N, by {attributes['width_method']}"
    ]
    errors = {key: attributes[key] for key in ("variance_error", "shift_error") if key in attributes}
    if errors:
        text = ", ".join(f"{key.replace('_', ' ')} {error:.1e}" for key, error in errors.items())
        lines.append(f"of the corrections of the flow: {text} of the largest value")
    if "no_shift" in attributes:
        lines.append(str(attributes["no_shift"]))
    return lines


def _series_columns(result: xr.Dataset | Result) -> dict[str, NDArray[np.float64]]:
    """Return columns of the printed table of a series in gamma0, arrays over time by heading.

    There is one for each power of gamma0, with the coefficient of the training loss, and one with its
    standard error if the result has it. Without a training loss there are no columns.
    """
    columns: dict[str, NDArray[np.float64]] = {}
    if "train_loss" in result:
        for k, n in enumerate(result["order"].values):
            columns[f"order {int(n)}"] = result["train_loss"].values[k]
            if "train_loss_stderr" in result:
                columns["stderr" + " " * k] = result["train_loss_stderr"].values[k]
    return columns


def _loss_columns(result: xr.Dataset | Result) -> dict[str, NDArray[np.float64]]:
    """Return columns of the table by heading: losses, half-widths of their 95 % intervals, and finite width.

    A program whose loss has no formula has a column of its largest error instead. The columns of finite width
    are those of :func:`_at_width`.
    """
    from numerics.results import STDERR, interval

    columns: dict[str, NDArray[np.float64]] = {}
    for name, heading in (("train_loss", INTERVAL), ("test_loss", INTERVAL + " ")):
        if name in result:
            columns[name] = result[name].values
            if name + STDERR in result:
                columns[heading] = interval(result, name)
    columns |= _at_width(result)
    if "train_loss" not in result and "error" in result:  # without a formula of the loss, errors are shown
        errors = abs(result["error"].values)
        columns["largest error"] = errors.reshape(len(errors), -1).max(axis=1)
    return columns


def _heads(result: xr.Dataset | Result) -> list[str]:
    """Return the lines that are printed above the table of a result.

    They state the status, errors, notes, and variables that are left out.
    """
    attributes = _attributes(result)
    heads = [f"status: {attributes.get('status', 'unknown')}"]
    if "bias_estimate" in attributes:
        bias = f"bias {attributes['bias']:.1e} (at most {attributes['bias_estimate']:.1e})"
        paths = f"{attributes['replicas']} replicas of {attributes['samples']} paths"
        heads.append(f"standard error {attributes['accuracy']:.1e}, {bias} of the largest value; {paths}")
    if "width_method" in attributes:
        heads += _width_heads(attributes)
    if "note" in attributes:
        heads.append(f"note: {attributes['note']}")
    if "unknown_errors" in attributes:
        heads.append(f"errors that are not known: {attributes['unknown_errors']}")
    if "left_out" in attributes:
        heads.append(f"left out: {attributes['left_out']}")
    if "powers_of" in attributes:
        orders = {str(k): v.attrs["known_to_order"] for k, v in result.data_vars.items()}
        known = ", ".join(f"{name} {n}" for name, n in orders.items() if not name.endswith("_stderr"))
        heads.append(f"powers of {attributes['powers_of']}; known to order: {known}; nan: not known")
    return heads


def summary(result: xr.Dataset | Result, rows: int = 9) -> str:
    """Return the status and a table of the losses at ``rows`` output times, or at all if there are fewer.

    The times are evenly chosen, both ends included. For a series in gamma0 the columns are the coefficients
    of the training loss and, if the result has them, its value at one gamma0 and the truncation error.
    """
    series = "order" in result.coords
    columns = _series_columns(result) if series else {}
    for name, heading in (("train_loss_resummed", "at gamma0"), ("train_loss_truncation", "truncation")):
        if name in result:
            columns[heading] = result[name].values
    columns |= _at_width(result) if series else _loss_columns(result)
    time = result["time"].values
    count = len(time)
    chosen = sorted({round(i * (count - 1) / max(rows - 1, 1)) for i in range(rows)})
    lines = ["".join(f"{name:>16}" for name in ["time", *columns])]
    for i in chosen:
        cells = [f"{float(time[i]):16.6g}", *(f"{float(column[i]):16.8g}" for column in columns.values())]
        lines.append("".join(cells))
    attributes = _attributes(result)
    if "resummation" in attributes:
        method, status = attributes["resummation"], attributes.get("resummation_status", "")
        lines.append(f"at gamma0 = {attributes['gamma0']:g} by {method}: {status}")
        if "resummation_failed" in attributes:
            lines.append(f"no value for {attributes['resummation_failed']}")
    return "\n".join([*_heads(result), *lines])
