"""`dmft ledger`: every numbered equation of the papers, with verdict and evidence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from numerics.cli.common import AsJson, print_json
from numerics.errors import SpecError

if TYPE_CHECKING:
    from derive.ledger import Entry

EVIDENCE = "tests/ledger/evidence"
"""Where the evidence stands in a checkout."""


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
    """List the ledger of equations; with --check, in a checkout, run the evidence behind the verdicts."""
    from derive.ledger import render

    rows = _chosen(source, number)
    place = _checkout() if check else None
    words = [x for x in (source, number) if x is not None]
    if as_json:
        found = {"entries": json.loads(render(rows, "json"))}
        status = 0
        if place is not None:
            status, out = _run_evidence(place, [*words, "--json"], capture=True)
            found["checks"] = json.loads(out)
        print_json(found)
    else:
        typer.echo(render(rows, "text", full=number is not None))
        counts = Counter(row.verdict for row in rows)
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        typer.echo(f"{len(rows)} entries: {verdicts}")
        status = 0 if place is None else _run_evidence(place, words)[0]
    if status:
        raise typer.Exit(status)


def _checkout() -> Path:
    """The checkout that this package runs from, in which the evidence stands; exit 2 if there is none."""
    root = Path(__file__).resolve().parents[2]
    if not (root / EVIDENCE).is_dir():
        raise SpecError(
            "--check",
            None,
            f"the evidence is no part of the installed package; it stands in {EVIDENCE} of the source",
            "the command in a checkout: git clone, pip install -e '.[test]'",
        )
    return root


def _run_evidence(root: Path, words: list[str], capture: bool = False) -> tuple[int, str]:
    """Exit status and output of ``python -m tests.ledger.evidence`` in a process of its own."""
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
