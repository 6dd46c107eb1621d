"""The table of theories against finite networks in the documentation is that of the cases there are."""

from __future__ import annotations

from pathlib import Path

from numerics.verify.theories import CASES

PAGE = Path(__file__).parents[2] / "docs" / "theory" / "networks.md"

EXACT = {
    **dict.fromkeys(["linear", *(c.name for c in CASES if c.name.startswith("isotropic"))], "march"),
    **dict.fromkeys(["linear residual, one sample a step", "perceptron"], "direct"),
}
"""How the theories that are linear in the fields are solved; all others are sampled."""


def rows() -> list[list[str]]:
    """The cells of the page's one table, without its head."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_case_has_its_row_in_order():
    assert [tuple(row[:2]) for row in rows()] == [(case.name, case.source) for case in CASES]


def test_every_row_says_what_its_numbers_say():
    for name, _, method, entries, worst, bound, verdict in rows():
        assert method == EXACT.get(name, "particles"), name
        assert int(entries) > 0, name
        assert verdict == ("agree" if float(worst.split()[0]) <= float(bound) else "**disagree**"), name
