"""The commands `dmft new`, which writes an experiment file, `show`, which prints a result, and `examples`.

`dmft show` also draws a result; `dmft examples` lists or copies the experiments of the package.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from numerics.cli.common import AsJson, PlotOut, check_folder, check_outputs, check_plot, print_json, summary
from numerics.errors import SpecError, value_to_toml

if TYPE_CHECKING:
    import xarray as xr

DataKind = Literal["fixed", "isotropic", "power-law"]
"""The kinds of data of an experiment."""

CHOSEN: dict[str, dict[str, dict[str, Any]]] = {
    "isotropic": {"data": {"kind": "isotropic", "sample_ratio": 2.0, "noise": 0.2}},
    "power-law": {
        "network": {"width": 256},
        "data": {"kind": "power-law", "capacity": 1.5, "source": 1.0, "modes": 200},
    },
    "fixed": {"data": {"kind": "fixed", "inputs": "x.npy", "targets": "y.npy"}},
}
"""Keys that a new experiment sets, by kind of data, beside those of ALWAYS."""
ALWAYS: dict[str, dict[str, Any]] = {
    "network": {"depth": 2, "gamma0": 1.0},
    "training": {"rule": "gd", "learning_rate": 0.05, "steps": 60},
    "solver": {"seed": 0},
}


TemplateRule = Literal["gd", "sign", "adam", "adamw", "rmsprop", "lion"]
"""Training rules of new experiments."""

WARM_UP_AND_COSINE = "0.05*min(1, (t + 1)/10)*(1 + cos(pi*t/60))/2"
"""Learning rate of new experiments with an entrywise rule: warm-up in ten steps, cosine decay over sixty."""

SHOWN: dict[tuple[str, str], tuple[tuple[Any, str], ...]] = {
    ("training", "learning_rate"): (
        ("0.05*min(1, (t + 1)/10)", "warm-up in ten steps"),
        ("0.05*(1 + cos(pi*t/60))/2", "cosine decay over sixty"),
    ),
}
"""Further values that a template shows for a key, with their meaning."""


def template(kind: str, rule: str = "gd") -> str:
    """Return the text of an experiment file for a kind of data, with a line for each key of this kind.

    ``kind`` is "fixed", "isotropic" or "power-law". ``rule`` is "gd" or an entrywise rule, such as "adam",
    for which the learning rate has warm-up and cosine decay, and the keys of kernels are left out; any other
    rule gives the text of "gd". Optional keys are comments.

    >>> print(template("isotropic")[:107])
    # An experiment of dmft. Keys that are left out, here behind a #, have the value that is shown.
    <BLANKLINE>
    [network]
    """
    from numerics.experiment.schema import CONSTANTS, DATA_KEYS, NETWORK_KINDS, SECTIONS, rules_with

    lines = [
        "# An experiment of dmft. Keys that are left out, here behind a #, have the value that is shown."
    ]
    for name, model in SECTIONS.items():
        lines += ["", f"[{name}]"]
        chosen = ALWAYS.get(name, {}) | CHOSEN[kind].get(name, {})
        if name == "training" and rule in CONSTANTS:
            chosen |= {"rule": rule, "learning_rate": WARM_UP_AND_COSINE, **CONSTANTS[rule]}
        for key, field in model.model_fields.items():
            if rule in CONSTANTS and key in BY_KERNEL:
                continue
            if name == "data" and key not in ("kind", *DATA_KEYS[kind]):
                continue
            if kind not in NETWORK_KINDS.get(key, (kind,)):
                continue
            rules = rules_with(key) if name == "training" else ""
            comment = f"rule = {rules}: {field.description}" if rules else f"{field.description}"
            lines += [f"# {line}" for line in textwrap.wrap(comment, 100, break_on_hyphens=False)]
            lines += [f"# {words}: {value_to_toml(x)}" for x, words in SHOWN.get((name, key), ())]
            if key in chosen:
                lines.append(f"{key} = {value_to_toml(chosen[key])}")
            else:
                lines.append(
                    f"#{key} = {'' if field.default is None else value_to_toml(field.default)}".rstrip()
                )
    return "\n".join(lines) + "\n"


BY_KERNEL = ("kernel", "test_kernel")
"""Keys of [data] that do not go with entrywise rules, whose steps depend on the entries of inputs."""


def new(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to write; it must be new.")],
    kind: Annotated[
        DataKind | None,
        typer.Option(help="Random data of these statistics, or arrays.", show_default="isotropic"),
    ] = None,
    rule: Annotated[
        TemplateRule, typer.Option(help="The training rule; all but gd have warm-up and cosine decay.")
    ] = "gd",
) -> None:
    """Write an experiment file with a comment on every key, ready to be solved or to be given arrays.

    Rules other than gd need arrays, because their steps depend on the entries of inputs.
    """
    kind = kind or ("isotropic" if rule == "gd" else "fixed")
    if rule != "gd" and kind != "fixed":
        raise SpecError(
            "--kind",
            kind,
            f"gives no entries of inputs, and steps of --rule {rule} depend on them",
            "fixed, or --rule gd",
        )
    if file.exists():
        raise SpecError("FILE", str(file), "exists already", "the name of a new file")
    check_outputs("", None, None, {"FILE": file})
    from numerics.results import replacing

    with replacing(file) as beside:
        beside.write_text(template(kind, rule), encoding="utf-8")
    typer.echo(f"wrote {file}")


def show(
    file: Annotated[Path, typer.Argument(metavar="RESULT.nc", help="A result of dmft.")],
    plot: PlotOut = None,
    as_json: AsJson = False,
) -> None:
    """Print a result file: the experiment, the attributes, the names of its variables, and the losses.

    Attributes are, for example, the version and the status. For a sweep, the status of each point is printed
    in place of the losses. With --json the attributes, the times and the variables that depend on time and
    order alone are printed as JSON; --plot also draws a solution.
    """
    result = load_result(file)
    check_plot(plot)
    check_outputs(str(file), None, None, {"--plot": plot})
    swept = [str(x) for x in result.get("status", result.time).dims] if "status" in result else []
    if plot is not None:
        if swept or "train_loss" not in result or "order" in result.dims:
            reason = f"{file} does not hold the training loss of one solution"
            raise SpecError("--plot", str(plot), reason, "a result of dmft solve with a training loss")
        draw(result, plot)
    if as_json:
        from numerics.results import to_json

        print_json(to_json(result))
        return
    typer.echo(str(result.attrs.get("spec", "")).strip())
    for key, value in result.attrs.items():
        if key != "spec":
            typer.echo(f"{key}: {value}")
    held = ", ".join(f"{name}({', '.join(map(str, x.dims))})" for name, x in result.data_vars.items())
    typer.echo(f"holds: {held}\n")
    if swept:
        table = result.status.to_dataframe()
        typer.echo(table["status"].to_string())
    elif "train_loss" in result:
        typer.echo(summary(result))
    if plot is not None:
        typer.echo(f"wrote {plot}")


def load_result(file: Path) -> xr.Dataset:
    """Return the result in a file; raise SpecError if the file is missing, unreadable or not a result.

    A result has the attribute ``spec`` and the coordinate ``time``.
    """
    from numerics.experiment.experiment import require_file
    from numerics.results import load

    accepted = "a NetCDF file that dmft wrote"
    require_file("RESULT.nc", str(file), file, accepted)
    try:
        result = load(file)
    except Exception as error:  # HDF5 raises exceptions of many types for files of other programs
        raise SpecError(
            "RESULT.nc", str(file), f"cannot be read: {' '.join(str(error).split())[:200]}", accepted
        ) from None
    if "spec" not in result.attrs or "time" not in result.coords:
        raise SpecError("RESULT.nc", str(file), "is not a result", accepted)
    return result


def draw(result: xr.Dataset, path: Path) -> None:
    """Draw the losses of a solution over time and its kernels, or its outputs without kernels, to a file."""
    from numerics.plots import plot_result, save_figure

    save_figure(plot_result(result), path)


EXAMPLES = Path(__file__).parents[1] / "examples"
"""Folder of the experiments of the package."""


def examples(
    copy: Annotated[
        Path | None, typer.Option("--copy", metavar="DIR", help="Copy them, with their arrays, to DIR.")
    ] = None,
) -> None:
    """List the experiments of the package, or copy them with their arrays."""
    check_folder(copy)
    experiments = sorted(EXAMPLES.glob("*.toml"))
    if copy is None:
        for path in experiments:
            first = path.read_text(encoding="utf-8").splitlines()[0]
            typer.echo(f"{path.name:18} {first.removeprefix('# ')}")
        return
    from numerics.results import replacing_folder

    files = [*experiments, *sorted(x for kind in ("*.csv", "*.npy") for x in EXAMPLES.glob(kind))]
    present = [x.name for x in files if (copy / x.name).exists()]
    if present:
        raise SpecError("--copy", str(copy), f"holds {', '.join(present)} already", "a folder without them")
    with replacing_folder(copy) as beside:
        for path in files:
            (beside / path.name).write_bytes(path.read_bytes())
    typer.echo(f"wrote {len(files)} files to {copy}; try: dmft verify {copy / 'digits.toml'}")
