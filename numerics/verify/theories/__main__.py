"""``python -m numerics.verify.theories``: the table of all programs, theory against networks, in Markdown."""

from __future__ import annotations

import sys

from numerics.verify.theories.cases import CASES, Case
from numerics.verify.theories.compare import Comparison


def main() -> int:
    """Print the table; 1 if a theory and its networks disagree."""
    print("| program | from | solved by | numbers | worst | bound | |")
    print("| --- | --- | --- | ---: | ---: | ---: | --- |")
    failed = False
    for case in CASES:
        found = case.run()
        failed |= not found.agrees
        print(line(case, found), flush=True)
    return int(failed)


def line(case: Case, found: Comparison) -> str:
    """One row of the table: the worst distance in joint standard errors, and what chance allows."""
    worst = found.worst
    place = worst.name if worst.layer is None else f"{worst.name} at layer {worst.layer}"
    verdict = "agree" if found.agrees else "**disagree**"
    return (
        f"| {case.name} | {case.source} | {found.method} | {found.entries} | {worst.worst:.1f} ({place}) "
        f"| {found.bound:.1f} | {verdict} |"
    )


if __name__ == "__main__":
    sys.exit(main())
