"""Command that runs the evidence: ``python -m tests.ledger.evidence [PAPER [NUMBER]] [--json]``.

The exit status is 1 if a piece of evidence does not hold, 2 without such a paper or number. For a single
entry every measured number is printed, else only the failures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from derive.ledger import entries, find
from tests.ledger.evidence import Checked, check


def main(words: Sequence[str]) -> int:
    """Run the evidence that the arguments choose, print it, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.ledger.evidence")
    parser.add_argument("paper", nargs="?")
    parser.add_argument("number", nargs="?")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    try:
        rows = [find(asked.paper, asked.number)] if asked.number else list(entries(asked.paper))
    except LookupError as error:
        parser.error(str(error.args[0]))
    results = check(rows)
    if asked.json:
        print(json.dumps([dataclasses.asdict(x) for x in results], allow_nan=False))
    else:
        for x in results:
            report(x, in_full=asked.number is not None)
        print(f"{sum(x.passed for x in results)} of {len(results)} pieces of evidence hold")
    return 0 if all(x.passed for x in results) else 1


def report(x: Checked, in_full: bool) -> None:
    """Print the findings of one piece of evidence, or its failure only."""
    if not in_full:
        if not x.passed:
            print(f"FAILED {x}")
        return
    print(f"{'holds' if x.passed else 'FAILED'}: {x.evidence}: {x.summary}")
    for label, value, scale in x.numbers:
        print(f"    {label}: {_number(value)} (tolerance or standard error {_number(scale)})")


def _number(x: float | None) -> str:
    return "not finite" if x is None else f"{x:.4g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
