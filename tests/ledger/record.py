"""Runs the evidence behind every statement that is contradicted or qualified and records what it finds.

    python -m tests.ledger.record [--new]

Writes `numbers.json` of derive/ledger. It takes minutes on one core; with --new only those run that are not
there yet. A piece that fails is named, and nothing is written. `dmft ledger PAPER NUMBER --check` runs
what stands behind one entry.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import derive.ledger
from derive.ledger import FINDINGS, entries
from numerics.results import replacing
from tests.ledger.evidence import check

NUMBERS = Path(derive.ledger.__file__).with_name("numbers.json")


CONTRADICTED = (*FINDINGS, "conditional", "improved", "illegible")
"""The verdicts whose numbers are recorded."""


def main(new_only: bool) -> int:
    chosen = [e for e in entries() if e.verdict in CONTRADICTED]
    wanted = {name for e in chosen for name in e.evidence}
    rows = {x["evidence"]: x for x in json.loads(NUMBERS.read_text())["evidence"]} if new_only else {}
    rows = {name: x for name, x in rows.items() if name in wanted}
    todo = [
        replace(e, evidence=tuple(x for x in e.evidence if x not in rows))
        for e in chosen
        if not set(e.evidence) <= set(rows)
    ]
    results = check(todo, progress=lambda done, total: print(f"{done}/{total}", file=sys.stderr))
    if failed := [str(x) for x in results if not x.passed]:
        print(*failed, sep="\n", file=sys.stderr)
        return 1
    rows |= {
        x.evidence: {"evidence": x.evidence, "summary": x.summary, "numbers": x.numbers} for x in results
    }
    found = {"version": version("dmft-derive"), "evidence": [rows[name] for name in sorted(rows)]}
    with replacing(NUMBERS) as path:
        path.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main("--new" in sys.argv[1:]))
