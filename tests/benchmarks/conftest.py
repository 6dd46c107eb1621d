"""Tables of measured numbers, printed when benchmarks are enabled and written to a page on request.

python -m pytest tests/benchmarks --benchmark-enable
python -m pytest tests/benchmarks --benchmark-enable --page=docs/benchmarks.md --before=FOLDER

The folder is a checkout of an earlier version, whose benchmarks run first, by its own tests. Its times are
listed beside those of this version: `git worktree add FOLDER df5dac88` is version 0.2.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import scipy

ROWS, BEFORE = pytest.StashKey[dict](), pytest.StashKey[dict]()

HEAD = """---
orphan: true
---

# Benchmarks

Written by `python -m pytest tests/benchmarks --benchmark-enable --page=docs/benchmarks.md --before=FOLDER`;
ordinary test runs time nothing.  P samples, T times (steps + 1), L hidden layers.  Columns `before` are times
of version 0.2 (commit df5dac88), measured by its own tests in the same session, before those of this version,
and `times_faster` is their ratio: what runs second may wait for memory that the machine lent elsewhere.
Commands are run in turn.

Gflop counts the matrix products of a march that finds the rows of all samples: their number grows as L P T^3.
Products with responses, which are triangular, count half; rows of kernels that are the same number at all
times count nothing, because running sums do for them.  On fixed data nothing needs the rows of samples once
outputs are read in the first layer (`derive.linear.overlap`): the march takes L T^3 + P T^2 + P^2 T
operations, so that its share of the rate of one big matrix product has no bound, and small problems spend
their time in the interpreter.

On random data every field is single: a row is a matrix-vector product, which is bound by the reading of the
matrix, some ten times slower than a matrix product.  The march folds the distant past into few coordinates
instead (`numerics.solver.linear.folded`), and keeps what it neglects below 2e-13.
`over_matrix_products` is its time over that which the counted operations take at the rate of one large
matrix product, measured in the same run on the same threads.  Folding takes fewer operations than are
counted, so that the number falls with T. Threads fold the arrays between them; the steps of a block follow
each other on one.  A time is the best of several runs, after one that uses the memory for the first time.

Algorithm 1 of selfconsistent2023 is implemented in `tests/reference/alternating.py`. As printed it solves
for the Jacobians of each path, by LU in batched LAPACK; the second row uses that they are triangular in
time, which is not in the paper. Particles with two replicas are one solution with standard errors from
twice the paths of one iteration; errors are root mean squares over all entries, over several seeds, from
the solution of many paths whose own error is the last row. On nonlinear problems Gflop counts products with
the paths, S (P T)^2 each, and triangular solves, (P T)^3; small problems spend their time in the
interpreter, so that seconds grow more slowly than what is counted. Stein's lemma fits P T numbers from S
paths: see the table of its bias over S / (P T).

Whole solutions of twelve programs stand beside networks of widths 128 and 256 (of random features the next
multiples of the number of modes) whose mean, extrapolated in 1/N, has as standard error the error that the
solution reports (of an exact one, the accuracy that is asked): 16 networks of each width are measured, and
their processor time is scaled by the square of the error. What extrapolation leaves of 1/N^2 is not counted.
Networks measure losses and errors alone, and so does `losses_s`; `all_kernels_s` is the time of a solution
as `numerics.solve` gives it by default, with the kernels of all pairs. Both are processor times with the
derivation of the theory, without imports. The ratio grows as the accuracy rises, because the error of
networks falls like the root of their number and that of paths faster.

Sampled paths run on a graphics card, too (`solver.device`): [its times](how-to/solver.md#on-a-graphics-card).

"""


def pytest_addoption(parser):
    """Add the options that write a page and that name a checkout to compare with."""
    parser.addoption("--page", metavar="FILE", help="write the measured tables to FILE, as Markdown")
    parser.addoption("--before", metavar="FOLDER", help="a checkout whose times stand beside")


def pytest_configure(config):
    """Prepare the table of rows, and measure the earlier checkout if one is named."""
    config.stash[ROWS] = {}
    folder = config.getoption("--before")
    config.stash[BEFORE] = measured_in(Path(folder)) if folder else {}


@pytest.fixture
def timed(request) -> bool:
    """Return whether benchmarks are enabled; otherwise each runs once on a small problem, as a test."""
    return bool(request.config.option.benchmark_enable)


@pytest.fixture
def note(request):
    """Return the function ``note(title, **columns)``, which adds a row to the table ``title``."""

    def add(title: str, **columns: object) -> None:
        request.config.stash[ROWS].setdefault(title, []).append(columns)

    return add


def machine() -> str:
    """Return a sentence about the machine and the versions of libraries."""
    threads = os.environ.get("OMP_NUM_THREADS", "as many threads as BLAS likes")
    cores = len(os.sched_getaffinity(0))
    return (
        f"Measured on {cores} cores ({platform.machine()}, shared with other work), {platform.system()}, "
        f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, "
        f"OMP_NUM_THREADS = {threads}."
    )


def markdown(tables: dict[str, list[dict]]) -> str:
    """Return the tables as Markdown, each under its title."""
    lines = []
    for title, rows in tables.items():
        names = list(rows[0])
        lines += [f"## {title}", "", "| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
        lines += ["| " + " | ".join(_cell(row.get(n, "")) for n in names) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def measured_in(folder: Path) -> dict[str, list[dict]]:
    """Return the tables that the benchmarks of another checkout write, with cells as text."""
    with TemporaryDirectory() as place:
        page = Path(place, "page.md")
        words = ["-m", "pytest", "tests/benchmarks", "--benchmark-enable", "-q", "--page", str(page)]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=False)
        found: dict[str, list[dict]] = {}
        for part in page.read_text().split("\n## ")[1:]:
            title, *lines = part.splitlines()
            names, _, *rows = [
                [x.strip() for x in line.strip("|").split("|")] for line in lines if "|" in line
            ]
            found[title] = [dict(zip(names, row, strict=True)) for row in rows]
    return found


def _is_time(name: str) -> bool:
    return name.endswith("_s") or name in ("seconds", "milliseconds")


def beside(rows: list[dict], before: list[dict]) -> list[dict]:
    """Return the rows with the earlier times of rows of the same sizes, and the ratio of times."""
    out = []
    for row in rows:
        size = {k: _cell(v) for k, v in row.items() if not isinstance(v, float)}
        same = [x for x in before if all(x.get(k, v) == v for k, v in size.items())]
        full: dict[str, object] = {}
        for name, value in row.items():
            full[name] = value
            if isinstance(value, float) and _is_time(name):
                known = float(same[0][name]) if len(same) == 1 and same[0].get(name) else None
                full |= {
                    f"{name} before": known or "",
                    f"{name} times_faster": known / value if known else "",
                }
        out.append(full)
    return out


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def pytest_terminal_summary(terminalreporter, config):
    """Print the measured tables at the end of the run, and write the page if one is named."""
    if not config.stash[ROWS] or not config.option.benchmark_enable:
        return
    before = config.stash[BEFORE]
    tables = {k: beside(v, before[k]) if k in before else v for k, v in config.stash[ROWS].items()}
    text = f"{machine()}\n\n{markdown(tables)}"
    terminalreporter.write_sep("=", "measured")
    terminalreporter.write_line(text)
    if config.getoption("--page"):
        Path(config.getoption("--page")).write_text(HEAD + text, encoding="utf-8")
