"""``python -m tests.numerics.theories``: all programs, and all solved experiments, against networks.

Two tables in Markdown.  With the argument ``nonlinear`` a third one: nonlinear networks of several depths and
strengths, with responses and distributions.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.numerics.theories.cases import CASES, Case
from tests.numerics.theories.experiments import EXPERIMENTS, compare_experiment
from tests.numerics.theories.nonlinear import CASES as NETWORKS
from tests.numerics.theories.programs import Row


def main(arguments: Sequence[str] = ()) -> int:
    """Print the tables; 1 if a theory and its networks disagree, 2 for an argument that is not known."""
    if list(arguments) == ["nonlinear"]:
        return nonlinear()
    if arguments:
        print(f"{' '.join(arguments)}: give nothing, or nonlinear", file=sys.stderr)
        return 2
    print("| program | from | solved by | numbers | worst | bound | |")
    print("| --- | --- | --- | ---: | ---: | ---: | --- |")
    failed = False
    for case in CASES:
        found = case.run()
        failed |= not found.agrees
        print(line(case, found), flush=True)
    print("\n| experiment | from | numbers | worst | bound | |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    for name in EXPERIMENTS:
        solved = compare_experiment(name)
        failed |= not solved.agrees
        print(network_line(f"{name} | {EXPERIMENTS[name][0]}", solved), flush=True)
    return int(failed)


def nonlinear() -> int:
    """Print the third table."""
    print("| network | numbers | worst | bound | |")
    print("| --- | ---: | ---: | ---: | --- |")
    failed = False
    for case in NETWORKS:
        found = case.compare()
        failed |= not found.agrees
        print(network_line(case.name, found), flush=True)
    return int(failed)


def network_line(name: str, found: Row) -> str:
    """Return a row of a table whose first columns are ``name``."""
    verdict = "agree" if found.agrees else "**disagree**"
    return f"| {name} | {found.entries} | {found.worst:.1f} ({found.place}) | {found.bound:.1f} | {verdict} |"


def line(case: Case, found: Row) -> str:
    """Return a row of the first table."""
    return network_line(f"{case.name} | {case.source} | {found.method}", found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
