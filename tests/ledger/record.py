"""Command that runs the evidence behind the ledger and records its results.

    python -m tests.ledger.record [--new] [NAME ..]

It writes `numbers.json` of derive/ledger after each piece: its sentence, its numbers, the processor time,
and the commit of the run. All pieces take a quarter of an hour on one idle core, the short ones first; names
choose some of them, --new those without a record. A piece that fails is named and loses its record, and the
exit status is 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import derive.ledger
from derive.ledger import entries, recorded
from numerics.results import replacing
from numerics.threads import one_thread
from tests.ledger.evidence import run

NUMBERS = Path(derive.ledger.__file__).with_name("numbers.json")
ROOT = Path(__file__).parents[2]
NAMES = sorted({name for e in entries() for name in e.evidence})
"""Every piece that an entry rests on."""


@one_thread
def main(words: Sequence[str]) -> int:
    """Run the chosen evidence, record it after each piece, and return the exit status."""
    rows = {x["evidence"]: x for x in json.loads(NUMBERS.read_text())["evidence"] if x["evidence"] in NAMES}
    known = {name: x.seconds for name, x in recorded().items()}
    chosen = [x for x in words if x != "--new"] or NAMES
    todo = [name for name in chosen if not ("--new" in words and name in rows)]
    on, failed = commit(), []
    for done, name in enumerate(sorted(todo, key=lambda x: known.get(x, 0.0)), start=1):
        before = time.process_time()
        found = run(name)
        spent = round(time.process_time() - before, 1)
        print(f"{done}/{len(todo)} {name}: {spent} s", file=sys.stderr)
        rows.pop(name, None)
        if found.passed:
            rows[name] = {
                "evidence": name,
                "commit": on,
                "seconds": spent,
                "summary": found.summary,
                "numbers": found.numbers,
            }
        else:
            failed.append(f"{name}: {found.summary}")
        _write([rows[x] for x in sorted(rows)])
    print(*failed, f"{len(todo) - len(failed)} of {len(todo)} pieces hold", sep="\n", file=sys.stderr)
    return 1 if failed else 0


def commit() -> str:
    """Return the commit of the checkout, with a plus sign if files of the evidence differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, text=True, capture_output=True, check=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "derive/**.py", "numerics/**.py", "tests/ledger/**.py")
    return git("rev-parse", "--short=7", "HEAD") + ("+" if changed else "")


def _write(rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows, one line a piece, so that versions can be compared."""
    head = {"version": version("dmft-derive"), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
    with replacing(NUMBERS) as path:
        path.write_text(f'{json.dumps(head)[:-1]}, "evidence": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
