"""The table of commands on the pages of networks that people train."""

from __future__ import annotations

import pytest

from tests.numerics.networks.__main__ import COMMANDS, PAGE, cell
from tests.numerics.networks.cases import CASES


def test_every_network_stands_in_the_table() -> None:
    rows = [
        x.split("|")[1].strip() for x in PAGE.read_text(encoding="utf-8").splitlines() if x.startswith("| ")
    ]
    assert set(rows) - {"network", "---"} == set(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_cells_are_as_the_page_says(name: str) -> None:
    line = next(x for x in PAGE.read_text(encoding="utf-8").splitlines() if x.startswith(f"| {name} |"))
    shown = [x.strip() == "yes" for x in line.split("|")[2:-1]]
    assert [cell(command, CASES[name]()) == "yes" for command in COMMANDS] == shown
