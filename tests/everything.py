"""Run all tests, or parts of them, and write how the last run of each part ended into `docs/last_run.md`.

    python -m tests.everything [PART ..] [--jobs N]

The parts are those of `PARTS`; without a name all run, which takes an hour or two. The exit status is 1
if a part fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.ledger.record import commit

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "last_run.md"
PARTS = {
    "default tests": "pytest",
    "doctests": "pytest --doctest-modules derive numerics",
    "slow tests of derive": "pytest -m slow tests/derive tests/reference",
    "slow tests of numerics": "pytest -m slow tests/numerics",
    "slow tests of the ledger": "pytest -m slow tests/ledger",
    "slow tests of the pages": "pytest -m slow tests/docs tests/test_project.py",
    "benchmarks": "pytest tests/benchmarks",
    "evidence": "tests.ledger.record",
}
ROW = re.compile(r"^\| ([^|]*?) \| (.*) \|$", re.MULTILINE)


def main(words: Sequence[str]) -> int:
    """Run the parts named by the words of the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.everything")
    parser.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--jobs", default="logical", help="processes of pytest; 0 for none of its own")
    asked = parser.parse_args(words)
    if unknown := sorted(set(asked.part) - set(PARTS)):
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    failed = False
    for part in asked.part or PARTS:
        on, before = commit(), _spent()
        module, *rest = PARTS[part].split()
        jobs = ["--numprocesses", asked.jobs] if module == "pytest" and part != "benchmarks" else []
        status, last = _run([sys.executable, "-m", module, *rest, *jobs])
        failed |= status != 0
        said = re.sub(r" in [\d.]+s.*", "", last.strip("= "))  # of pytest, without the time
        minutes = (_spent() - before) / 60
        outcome = said if status == 0 else f"**failed**: {said}"
        _write(part, f"{outcome} | {minutes:.0f} | {datetime.now(UTC):%d %B %Y} | {on}")
    return 1 if failed else 0


def _spent() -> float:
    """Return the processor time in seconds of processes that have ended."""
    t = os.times()
    return t.children_user + t.children_system


def _run(command: Sequence[str]) -> tuple[int, str]:
    """Run a command, print its lines as they come, and return its exit status and last line."""
    last = ""
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return process.returncode, last


def _write(part: str, row: str) -> None:
    """Write the row of one part; rows of other parts stay."""
    text = PAGE.read_text(encoding="utf-8")
    rows = {name: rest for name, rest in ROW.findall(text) if name in PARTS} | {part: row}
    head = text[: text.index("| part |")]
    table = [
        "| part | outcome | minutes of processor time | date | commit |",
        "| --- | --- | --- | --- | --- |",
    ]
    table += [f"| {name} | {rows[name]} |" for name in PARTS if name in rows]
    PAGE.write_text(head + "\n".join(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
