"""What the commands share: their options, checks on output paths before anything runs, progress, printing."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from numerics.errors import Diverged, NumericsError, SpecError
from numerics.experiment import Experiment
from numerics.served import require_numbers, require_served

if TYPE_CHECKING:
    import xarray as xr

Progress = Callable[[int, int], None]

SpecFile = Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file (TOML).")]
NetcdfOut = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="OUT.nc", help="Write the result as NetCDF.")
]
PlotOut = Annotated[Path | None, typer.Option("--plot", metavar="OUT.png", help="Draw the result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def load_numeric(path: Path, command: str) -> Experiment:
    """The experiment, refused if ``command`` does not serve it yet or a number that it needs is left out."""
    experiment = load_served(path, command)
    require_numbers(experiment, command)
    return experiment


def load_served(path: Path, command: str) -> Experiment:
    """The experiment, refused if ``command`` (such as "dmft solve") does not serve it yet."""
    experiment = Experiment.load(path)
    require_served(experiment, command)
    return experiment


def check_netcdf(path: Path | None) -> None:
    """Refuses an output path that could not be written, before the work that it is for."""
    if path is not None:
        _check_output("--output", path)


def check_plot(path: Path | None) -> None:
    """The same for a figure, whose suffix must be a format that Matplotlib writes."""
    if path is not None:
        from matplotlib.backend_bases import FigureCanvasBase

        suffixes = sorted(FigureCanvasBase.get_supported_filetypes())
        if path.suffix.removeprefix(".").lower() not in suffixes:
            accepted = "a file name that ends in ." + ", .".join(suffixes)
            raise SpecError("--plot", str(path), "has a suffix that is no picture format", accepted)
        _check_output("--plot", path)


def check_folder(path: Path | None) -> None:
    """Refuses an output folder that is a file, or whose parent is not there."""
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise SpecError("--output", str(path), "is a file", "a folder, new or old")
    _check_parent("--output", path)


def _check_output(key: str, path: Path) -> None:
    if path.is_dir():
        raise SpecError(key, str(path), "is a folder", "a file name")
    _check_parent(key, path)


def _check_parent(key: str, path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        raise SpecError(key, str(path), f"there is no folder {parent}", "a path in a folder that exists")
    if not os.access(parent, os.W_OK):
        raise SpecError(key, str(path), f"may not write in {parent}", "a path in a folder you may write in")


@contextmanager
def naming_the_key(experiment: Experiment) -> Iterator[None]:
    """Adds to a failed computation the key that would mend it, and its value."""
    try:
        yield
    except NumericsError as error:
        key, value = "solver.rtol", experiment.solver.rtol
        if isinstance(error, Diverged):
            flow = experiment.training.rule == "flow"
            key = "training.time" if flow else "training.learning_rate"
            value = (experiment.training.time if flow else experiment.training.learning_rate) or 0.0
        if re.search(r"\b(solver|training)\.\w+ = ", str(error)):
            raise
        raise type(error)(f"{key} = {value}: {error}") from error


@contextmanager
def progress(label: str) -> Iterator[Progress | None]:
    """A meter on stderr, as a function of (step, total); None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc=label, file=sys.stderr, leave=False) as bar:

        def show(step: int, total: int) -> None:
            bar.total = total
            bar.update(step - bar.n)

        yield show


def print_json(value: Any) -> None:
    """One JSON object on stdout; NaN is not JSON and has become null before."""
    typer.echo(json.dumps(value, allow_nan=False))


def report(
    result: xr.Dataset, output: Path | None, as_json: bool, extra: Mapping[str, object] | None = None
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


def summary(result: xr.Dataset, rows: int = 9) -> str:
    """The status and the losses at a few times, evenly chosen, ends included."""
    loss = result.train_loss
    if "order" in loss.dims:
        columns = {}
        for k, n in enumerate(loss.order.values):
            columns[f"order {int(n)}"] = loss.sel(order=n).values
            if "train_loss_stderr" in result:
                columns["stderr" + " " * k] = result.train_loss_stderr.sel(order=n).values
    else:
        columns = {"train_loss": loss.values}
    if "train_loss_resummed" in result:
        columns["at gamma0"] = result.train_loss_resummed.values
        columns["truncation"] = result.train_loss_truncation.values
    if "train_loss_stderr" in result and "order" not in loss.dims:
        columns["stderr"] = result.train_loss_stderr.values
    if "test_loss" in result:
        columns["test_loss"] = result.test_loss.values
    if "test_loss_stderr" in result:
        columns["stderr "] = result.test_loss_stderr.values
    count = result.sizes["time"]
    chosen = sorted({round(i * (count - 1) / max(rows - 1, 1)) for i in range(rows)})
    lines = ["".join(f"{name:>16}" for name in ["time", *columns])]
    for i in chosen:
        cells = [
            f"{float(result.time[i]):16.6g}",
            *(f"{float(column[i]):16.8g}" for column in columns.values()),
        ]
        lines.append("".join(cells))
    if "resummation" in result.attrs:
        said = {k: result.attrs.get(k, "") for k in ("gamma0", "resummation", "resummation_status")}
        lines.append(f"at gamma0 = {said['gamma0']:g} by {said['resummation']}: {said['resummation_status']}")
        if "resummation_failed" in result.attrs:
            lines.append(f"no value for {result.attrs['resummation_failed']}")
    status = [f"status: {result.attrs.get('status', 'unknown')}"]
    if "powers_of" in result.attrs:
        orders = {str(k): v.attrs["known_to_order"] for k, v in result.data_vars.items()}
        known = ", ".join(f"{name} {n}" for name, n in orders.items() if not name.endswith("_stderr"))
        status.append(f"powers of {result.attrs['powers_of']}; known to order: {known}; nan: not known")
    return "\n".join([*status, *lines])
