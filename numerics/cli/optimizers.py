"""Tables of `dmft limits parametrization --optimizer`: powers of width and depth that an optimiser needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from numerics.errors import SpecError

if TYPE_CHECKING:
    from derive.scale.optimizer_powers import OptimizerPowers

NAMES = ("sgd", "momentum", "sign", "adam", "adamw", "rmsprop", "lion", "muon")
"""The optimisers of :data:`derive.scale.optimizer_powers.OPTIMIZERS`."""
COLUMNS = ("variance", "gradient", "rate", "epsilon", "decay")
MULTIPLIERS = {"input": 0, "hidden": 0, "readout": 1, "bias": 0, "gain": 0}
"""The powers a of codes with muP: no multipliers but 1/N in front of the outputs."""
ALPHAS = ("1/2", "1")
PowerTable = dict[str, dict[str, str | None]]


def optimizer_tables(name: str, alpha: str | None = None) -> dict[str, Any]:
    """Return what `--optimizer` prints: powers of N by kind of weight and corner, powers of L, what breaks.

    Raises :class:`SpecError` for an unknown optimiser and for an alpha below 1/2.
    """
    if name not in NAMES:
        raise SpecError("--optimizer", name, "is not known", ", ".join(NAMES))
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
        "width": {x: _rows(found) for x, found in corners.items()},
        "normalised": _rows(optimizer_powers(mlp_with_gains(rule=rule, normalised=True), spectral=spectral)),
        "multipliers": MULTIPLIERS,
        "at the multipliers": _rows(learning, MULTIPLIERS),
        "wrong": _wrong(learning),
        "depth": depth,
        "conditions": list(dict.fromkeys((*learning.conditions(), *basis))),
    }


def _rows(found: OptimizerPowers, scales: Mapping[str, Any] | None = None) -> PowerTable:
    """Powers of N by kind of weight, at numbers for a if these are given."""
    rows = [found.row(kind) for kind in dict.fromkeys(x.kind for x in found.rows)]
    if scales is not None:
        rows = [x.at(scales[x.kind]) for x in rows]
    return {x.kind: {n: None if e is None else str(e) for n, e in x.powers.items()} for x in rows}


def _wrong(found: OptimizerPowers) -> dict[str, dict[str, str]]:
    """What becomes of each kind of weight at the multipliers, by the wrong scaling."""
    from derive.scale.optimizer_powers import scaling_faults

    table: dict[str, dict[str, str]] = {}
    for x in scaling_faults(found, MULTIPLIERS):
        table.setdefault(x.change, {}).setdefault(x.kind, x.words)
    return table


def _depth(rule: Any, alphas: Iterable[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Powers of L in terms of alpha and at numbers, what breaks, and what they rest on."""
    from derive.calculus.symbols import exact
    from derive.depth import balance
    from derive.errors import NotApplicable
    from derive.program import depth_program
    from derive.scale.depth import DepthParametrization
    from derive.scale.optimizer_depth import depth_faults, depth_powers
    from derive.theory import mean_field

    network = DepthParametrization(mean_field(depth_program(alpha=balance.alpha, gamma=balance.gamma)))
    found = depth_powers(network, rule)

    def texts(powers: Mapping[str, Any]) -> dict[str, str | None]:
        return {n: None if e is None else str(e) for n, e in powers.items()}

    table: dict[str, Any] = {"alpha": texts(found.powers)}
    for alpha in alphas:
        try:
            value = exact("alpha", alpha)
            table[alpha] = texts(found.at(value).powers) | {"wrong": depth_faults(network, rule, value)}
        except (ValueError, NotApplicable) as error:
            problem = str(error).partition(": ")[2]
            raise SpecError("--alpha", alpha, problem, "a number, at least 1/2") from error
    return table, found.conditions()


def print_tables(found: Mapping[str, Any]) -> None:
    """Print what :func:`optimizer_tables` returned."""
    units = "".join(f"; {x} has degree {p}" for x, p in found["units"].items())
    typer.echo(f"{found['optimizer']}: a step has degree {found['degree']} in the gradient{units}")
    typer.echo(
        "weights N^-a W; a readout's a includes the division of the outputs; decay is that over the rate"
    )
    for corner, rows in found["width"].items():
        typer.echo(f"\npowers of N, {corner}:")
        _table(rows, "kind")
    same = found["normalised"] == next(iter(found["width"].values()))
    typer.echo("\nlayers divided by their root mean square, feature learning:" + " the same powers" * same)
    if not same:
        _table(found["normalised"], "kind")
    scales = ", ".join(f"{kind} {a}" for kind, a in found["multipliers"].items())
    typer.echo(f"\npowers of N, feature learning, a: {scales}")
    _table(found["at the multipliers"], "kind")
    _faults(found["wrong"])
    typer.echo("\npowers of L in residual branches times L^-alpha, on top of those of N:")
    rows = {k: {n: x for n, x in v.items() if n != "wrong"} for k, v in found["depth"].items()}
    _table(rows, "alpha")
    for alpha, row in found["depth"].items():
        for change, words in row.get("wrong", {}).items():
            typer.echo(f"  alpha = {alpha}, {change}: {words}")


def _faults(wrong: Mapping[str, Mapping[str, str]]) -> None:
    """Print what breaks, kinds of weights with the same fate in one line."""
    for change, fates in wrong.items():
        typer.echo(f"  {change}:")
        for words in dict.fromkeys(fates.values()):
            kinds = ", ".join(kind for kind, x in fates.items() if x == words)
            typer.echo(f"    {kinds}: {words}")


def _table(rows: Mapping[str, Mapping[str, str | None]], first: str) -> None:
    """Print rows with the columns that any of them has."""
    columns = [n for n in next(iter(rows.values())) if any(row[n] is not None for row in rows.values())]
    wide = {n: max(13, *(2 + len(row[n] or "-") for row in rows.values())) for n in columns}
    typer.echo(f"  {first:9}" + "".join(f"{n:>{wide[n]}}" for n in columns))
    for name, row in rows.items():
        typer.echo(f"  {name:9}" + "".join(f"{row[n] or '-':>{wide[n]}}" for n in columns))
