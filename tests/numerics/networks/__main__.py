"""Table of the commands that serve the networks that people train: docs/networks/commands.md.

    python -m tests.numerics.networks

Every cell is run, on the case of the network cut to :data:`STEPS` steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numerics
from derive.errors import NotApplicable, ProgramError
from derive.theory import mean_field
from derive.theory.routes import check_routes
from numerics.errors import SpecError
from numerics.experiment.schema import Solver
from numerics.verification.smaller_problems import Effort
from tests.numerics.networks.case import Case
from tests.numerics.networks.cases import CASES

PAGE = Path(__file__).parents[3] / "docs" / "networks" / "commands.md"

STEPS = 3
"""Steps of each case in a cell of the table."""

EFFORT = Effort(work=2e9, paths=256, replicas=8)
"""What `verify` may spend on a cell."""


def _derive(case: Case) -> None:
    mean_field(case.program).render("single-site", "latex")


def _routes(case: Case) -> None:
    check_routes(case.program)


def _solve(case: Case) -> None:
    numerics.solve(case.program, solver=Solver(samples=256), **case.given)


def _simulate(case: Case) -> None:
    numerics.simulate(case.program, width=case.width(16), seeds=4, rng=0, **case.given)


def _expand(case: Case) -> None:
    numerics.expand(case.program, 2, **case.given)


def _verify(case: Case) -> None:
    report = numerics.verify(case.program, effort=EFFORT, **case.given)
    if not report.passed:
        raise AssertionError(report.table())


COMMANDS: dict[str, Callable[[Case], None]] = {
    "derive": _derive,
    "routes": _routes,
    "solve": _solve,
    "simulate": _simulate,
    "expand": _expand,
    "verify": _verify,
}


def cell(command: str, case: Case) -> str:
    """Return "yes", or the reason for which the command refuses; anything else is raised."""
    try:
        COMMANDS[command](replace(case, steps=min(case.steps, STEPS)))
    except (ProgramError, NotApplicable, SpecError) as refusal:
        return str(refusal)
    return "yes"


def page() -> str:
    """Return the page as Markdown."""
    notes: list[str] = []
    rows = []
    for name, make in CASES.items():
        said = []
        for command in COMMANDS:
            answer = cell(command, make())
            if answer != "yes":
                if answer not in notes:
                    notes.append(answer)
                answer = f"[{notes.index(answer) + 1}]"
            said.append(answer)
        rows.append(f"| {name} | " + " | ".join(said) + " |")
    return "\n".join(
        [
            "# Which command serves these networks",
            "",
            "This page shows which commands accept the [networks that people train](index.md). Each row is a",
            "network of those pages. Each column is a command, or the function `check_routes` (`routes`):",
            "`derive` derives the theory, `routes` derives it in two ways and compares the updates with",
            "gradients of the loss, `solve` solves it, `simulate` trains networks, `expand` expands the",
            "theory to second order in $\\gamma_0$, and `verify` compares derivations, solution and",
            'networks. "yes": the command has run on the network. A number in brackets: the command',
            "refuses the network, with the message of this number below the table. The theory of random",
            "features does not contain $\\gamma_0$, so that its expansion has the order 0 only.",
            "`python -m tests.numerics.networks` writes this page and runs each cell on at most "
            f"{STEPS} steps.",
            "",
            "| network | " + " | ".join(f"`{c}`" for c in COMMANDS) + " |",
            "| --- " * (len(COMMANDS) + 1) + "|",
            *rows,
            "",
            *(f"{i}. `{x}`" for i, x in enumerate(notes, 1)),
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
