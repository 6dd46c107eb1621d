"""Tables of `dmft limits parametrization --optimizer`: powers of width and depth that an optimiser needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from numerics.errors import SpecError

if TYPE_CHECKING:
    from derive.scale.optimizer_powers import OptimizerPowers

COLUMNS = ("variance", "gradient", "rate", "epsilon", "decay")
MULTIPLIERS = {"input": 0, "hidden": 0, "readout": 1, "bias": 0, "gain": 0}
"""Powers a of common codes with muP: the only multiplier is 1/N in front of the outputs."""
ALPHAS = ("1/2", "1")
PowerTable = dict[str, dict[str, str | None]]


def optimizer_tables(name: str, alpha: str | None = None) -> dict[str, Any]:
    """Return the tables of powers of width N and depth L that an optimiser needs, by the names of ``--json``.

    They are powers of N by kind of weight, powers of L, and effects of wrong powers. ``alpha`` is the power
    of the depth in residual branches; None stands for 1/2 and 1. Raises :class:`SpecError` for an unknown
    optimiser, and for an alpha that is not a number of at least 1/2.
    """
    from derive.program.networks.gains import mlp_with_gains
    from derive.scale.optimizer_powers import (
        CORNERS,
        HIDDEN,
        OPTIMIZERS,
        SPECTRAL,
        kinds_of,
        optimizer_powers,
    )
    from derive.scale.rule_degrees import rule_degrees

    if name not in OPTIMIZERS:
        raise SpecError("--optimizer", name, "is not a known optimiser", ", ".join(OPTIMIZERS))
    rule = OPTIMIZERS[name]
    program = mlp_with_gains(rule=rule)
    spectral = [w for w, kind in kinds_of(program).items() if kind == HIDDEN] if name in SPECTRAL else []
    corners = {x: optimizer_powers(program, x, spectral=spectral) for x in CORNERS}
    learning = corners[CORNERS[0]]
    depth, basis = _depth(rule, ALPHAS if alpha is None else (alpha,))
    return {
        "optimizer": name,
        "degree": str(rule_degrees(rule).degree),
        "units": {str(x): str(p) for x, p in rule_degrees(rule).parameters.items()},
        "width": {corner: _rows(powers) for corner, powers in corners.items()},
        "normalised": _rows(optimizer_powers(mlp_with_gains(rule=rule, normalised=True), spectral=spectral)),
        "multipliers": MULTIPLIERS,
        "at the multipliers": _rows(learning, MULTIPLIERS),
        "wrong": _wrong(learning),
        "depth": depth,
        "conditions": list(dict.fromkeys((*learning.conditions(), *basis))),
    }


def _rows(powers: OptimizerPowers, scales: Mapping[str, Any] | None = None) -> PowerTable:
    """Return powers of the width N as text, by kind of weight and then by setting, such as the learning rate.

    A power is None for a setting that the optimiser does not have. ``scales`` gives for each kind the power a
    of the factor N^-a in front of the weights; without it powers are in symbols.
    """
    rows = [powers.row(kind) for kind in dict.fromkeys(row.kind for row in powers.rows)]
    if scales is not None:
        rows = [row.at(scales[row.kind]) for row in rows]
    return {
        row.kind: {
            column: None if exponent is None else str(exponent) for column, exponent in row.powers.items()
        }
        for row in rows
    }


def _wrong(powers: OptimizerPowers) -> dict[str, dict[str, str]]:
    """Return the effects of wrong powers of the width, in words.

    The outer key names the wrong setting, the inner key the kind of weight. Factors in front of weights are
    those of muP.
    """
    from derive.scale.optimizer_powers import scaling_faults

    table: dict[str, dict[str, str]] = {}
    for fault in scaling_faults(powers, MULTIPLIERS):
        table.setdefault(fault.change, {}).setdefault(fault.kind, fault.words)
    return table


def _depth(rule: Any, alphas: Iterable[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the table of powers of the depth L that a training rule needs, and its conditions.

    The row "alpha" is in terms of the symbol alpha, the power of the depth in branches L^-alpha; the other
    rows are at the numbers ``alphas``, with effects of wrong powers. Raises SpecError for an alpha that is
    not a number of at least 1/2.
    """
    from derive.calculus.symbols import exact
    from derive.depth import balance
    from derive.errors import NotApplicable
    from derive.program import depth_program
    from derive.scale.depth import DepthParametrization
    from derive.scale.optimizer_depth import depth_faults, depth_powers
    from derive.theory import mean_field

    network = DepthParametrization(mean_field(depth_program(alpha=balance.alpha, gamma=balance.gamma)))
    depth_table = depth_powers(network, rule)

    def texts(powers: Mapping[str, Any]) -> dict[str, str | None]:
        return {n: None if e is None else str(e) for n, e in powers.items()}

    table: dict[str, Any] = {"alpha": texts(depth_table.powers)}
    for alpha in alphas:
        try:
            value = exact("alpha", alpha)
            table[alpha] = texts(depth_table.at(value).powers) | {"wrong": depth_faults(network, rule, value)}
        except (ValueError, NotApplicable) as error:
            problem = str(error).partition(": ")[2]
            raise SpecError("--alpha", alpha, problem, "a number, at least 1/2") from error
    return table, depth_table.conditions()


def print_tables(tables: Mapping[str, Any]) -> None:
    """Print the tables that :func:`optimizer_tables` returns."""
    units = "".join(f"; {text} has degree {degree}" for text, degree in tables["units"].items())
    typer.echo(f"{tables['optimizer']}: a step has degree {tables['degree']} in the gradient{units}")
    typer.echo(
        "weights N^-a W; a readout's a includes the division of the outputs; decay is that over the rate"
    )
    for corner, rows in tables["width"].items():
        typer.echo(f"\npowers of N, {corner}:")
        _table(rows, "kind")
    same = tables["normalised"] == next(iter(tables["width"].values()))
    typer.echo("\nlayers divided by their root mean square, feature learning:" + " the same powers" * same)
    if not same:
        _table(tables["normalised"], "kind")
    scales = ", ".join(f"{kind} {a}" for kind, a in tables["multipliers"].items())
    typer.echo(f"\npowers of N, feature learning, a: {scales}")
    _table(tables["at the multipliers"], "kind")
    _faults(tables["wrong"])
    typer.echo("\npowers of L in residual branches times L^-alpha, on top of those of N:")
    rows = {k: {n: text for n, text in v.items() if n != "wrong"} for k, v in tables["depth"].items()}
    _table(rows, "alpha")
    for alpha, row in tables["depth"].items():
        for change, words in row.get("wrong", {}).items():
            typer.echo(f"  alpha = {alpha}, {change}: {words}")


def _faults(wrong: Mapping[str, Mapping[str, str]]) -> None:
    """Print the effects of wrong powers; kinds of weights with the same effect share a line.

    The outer key of ``wrong`` names the wrong setting, the inner key the kind of weight.
    """
    for change, fates in wrong.items():
        typer.echo(f"  {change}:")
        for words in dict.fromkeys(fates.values()):
            kinds = ", ".join(kind for kind, x in fates.items() if x == words)
            typer.echo(f"    {kinds}: {words}")


def _table(rows: Mapping[str, Mapping[str, str | None]], first: str) -> None:
    """Print a table of texts; each row is a dictionary from the heading of a column to the cell.

    All rows have the same headings. None is printed as a dash, and a column of None alone is left out.
    ``first`` is the heading of the column with the names of rows.
    """
    columns = [n for n in next(iter(rows.values())) if any(row[n] is not None for row in rows.values())]
    wide = {n: max(13, *(2 + len(row[n] or "-") for row in rows.values())) for n in columns}
    typer.echo(f"  {first:9}" + "".join(f"{n:>{wide[n]}}" for n in columns))
    for name, row in rows.items():
        typer.echo(f"  {name:9}" + "".join(f"{row[n] or '-':>{wide[n]}}" for n in columns))
