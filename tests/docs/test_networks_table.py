"""Agreement of the tables of theories against finite networks in the documentation with the cases."""

from __future__ import annotations

import re
from pathlib import Path

from tests.numerics.theories.cases import CASES
from tests.numerics.theories.experiments import EXPERIMENTS
from tests.numerics.theories.nonlinear import CASES as NETWORKS

PAGE = Path(__file__).parents[2] / "docs" / "theory" / "networks.md"

EXACT = {
    **dict.fromkeys(["linear", *(c.name for c in CASES if c.name.startswith("isotropic"))], "march"),
    **dict.fromkeys(["linear residual, one sample a step", "perceptron"], "direct"),
}
"""How the theories that are linear in the fields are solved; all others are sampled."""


def rows(table: int) -> list[list[str]]:
    """Return the cells of one of the page's tables, without its head."""
    blocks = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE)
    lines = blocks[table].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def agrees(worst: str, bound: str) -> str:
    return "agree" if float(worst.split()[0]) <= float(bound) else "**disagree**"


def test_every_case_has_its_row_in_order():
    assert [tuple(row[:2]) for row in rows(0)] == [(case.name, case.source) for case in CASES]
    assert [row[0] for row in rows(2)] == [case.name for case in NETWORKS]
    experiments = [(name, source) for name, (source, _) in EXPERIMENTS.items()]
    assert [tuple(row[:2]) for row in rows(1)] == experiments


def test_every_row_says_what_its_numbers_say():
    for name, _, method, entries, worst, bound, verdict in rows(0):
        assert method == EXACT.get(name, "particles"), name
        assert int(entries) > 0, name
        assert verdict == agrees(worst, bound), name
    for name, entries, worst, bound, verdict in rows(2):
        assert int(entries) > 0, name
        assert verdict == agrees(worst, bound) == "agree", name
    for name, _, entries, worst, bound, verdict in rows(1):
        assert int(entries) > 0, name
        assert verdict == agrees(worst, bound), name
