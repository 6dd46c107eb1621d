"""`dmft ledger`: every numbered equation of the papers, with verdict and evidence."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from numerics.commands.common import AsJson, print_json

if TYPE_CHECKING:
    from derive.ledger import Entry


def ledger(
    source: Annotated[str | None, typer.Argument(help="Of one paper only, such as linear2025.")] = None,
    number: Annotated[
        str | None, typer.Argument(help="Of one equation only, such as 104 or '105 text'.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run the evidence again; exit 1 if any fails.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the ledger of equations; with --check and a NUMBER, also the numbers behind the verdict."""
    from derive.ledger import render

    rows = _chosen(source, number)
    results: list[Any] = []
    if check:
        import numerics.verify.evidence

        results = list(numerics.verify.evidence.check(rows))
    if as_json:
        listed = {"entries": json.loads(render(rows, "json"))}
        checked = {"checks": [dataclasses.asdict(result) for result in results]} if check else {}
        print_json({**listed, **checked})
    else:
        typer.echo(render(rows, "text"))
        counts = Counter(row.verdict for row in rows)
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        typer.echo(f"{len(rows)} entries: {verdicts}")
        if check:
            _print_evidence(results, in_full=number is not None)
    if not all(result.passed for result in results):
        raise typer.Exit(1)


def _chosen(source: str | None, number: str | None) -> list[Entry]:
    from derive.ledger import entries

    try:
        rows = list(entries(source))
    except LookupError as e:
        raise typer.BadParameter(str(e.args[0]), param_hint="SOURCE") from e
    if source is None or number is None:
        return rows
    from derive.ledger import find

    try:
        return [find(source, number)]
    except LookupError as e:
        raise typer.BadParameter(str(e.args[0]), param_hint="NUMBER") from e


def _print_evidence(results: list[Any], in_full: bool) -> None:
    for result in results:
        if in_full:
            typer.echo(f"{'holds' if result.passed else 'FAILED'}: {result.evidence}: {result.summary}")
            for label, value, scale in result.numbers:
                typer.echo(f"    {label}: {_number(value)} (tolerance or standard error {_number(scale)})")
        elif not result.passed:
            typer.echo(f"FAILED {result}")
    good = sum(bool(result.passed) for result in results)
    typer.echo(f"{good} of {len(results)} pieces of evidence hold")


def _number(x: float | None) -> str:
    return "not finite" if x is None else f"{x:.4g}"
