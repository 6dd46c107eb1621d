"""`dmft ledger`: every numbered equation of the papers, with verdict and evidence."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Annotated, Any

import typer

from numerics.commands.common import AsJson, print_json


def ledger(
    source: Annotated[str | None, typer.Argument(help="Of one paper only, such as linear2025.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run the evidence again; exit 1 if any fails.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the ledger of equations."""
    from derive.ledger import entries, render

    try:
        rows = list(entries(source))
    except LookupError as e:
        raise typer.BadParameter(str(e.args[0]), param_hint="SOURCE") from e
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
            _print_evidence(results)
    if not all(result.passed for result in results):
        raise typer.Exit(1)


def _print_evidence(results: list[Any]) -> None:
    for result in results:
        if not result.passed:
            typer.echo(f"FAILED {result}")
    good = sum(bool(result.passed) for result in results)
    typer.echo(f"{good} of {len(results)} pieces of evidence hold")
