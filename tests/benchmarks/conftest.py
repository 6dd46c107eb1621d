"""Rows of measured numbers: printed as a table when benchmarks are enabled, and written to a page on request.

python -m pytest tests/benchmarks --benchmark-enable
python -m pytest tests/benchmarks --benchmark-enable --page docs/benchmarks.md
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np
import pytest
import scipy

ROWS = pytest.StashKey[dict]()

HEAD = """---
orphan: true
---

# Benchmarks

Written by `python -m pytest tests/benchmarks --benchmark-enable --page docs/benchmarks.md`; ordinary test
runs time nothing.  P samples, T times (steps + 1), L hidden layers.

Gflop counts the matrix products of the march's plan: their number grows as L P T^3.  Products with responses,
which are triangular, count half; rows of kernels that are the same number at all times count nothing, because
running sums do for them.  On fixed data seconds grow a little more slowly, because larger blocks run at a
larger share of the rate of one big matrix product, and small problems spend their time in the interpreter.

On random data every field is single: a row is a matrix-vector product, which is bound by the reading of the
matrix, some ten times slower than a matrix product.  The march folds the distant past into few coordinates
instead (`numerics.solver.folded`), and keeps what it neglects below 2e-13.  `over_matrix_products` is its
time over that which the counted operations take at the rate of one large matrix product, measured in the
same run on the same threads.  Folding takes fewer operations than are counted, so that the number falls
with T. Threads fold the arrays between them; the steps of a block follow each other on one.  A time is the
best of several runs, after one that uses the memory for the first time.

Algorithm 1 of selfconsistent2023 is implemented in `tests/reference/alternating.py`. As printed it solves
for the Jacobians of each path, by LU in batched LAPACK; the second row uses that they are triangular in
time, which is not in the paper. Particles with two replicas are one solution with standard errors from
twice the paths of one iteration; errors are root mean squares over all entries, over several seeds, from
the solution of many paths whose own error is the last row. On nonlinear problems Gflop counts products with
the paths, S (P T)^2 each, and triangular solves, (P T)^3; small problems spend their time in the
interpreter, so that seconds grow more slowly than what is counted. Stein's lemma fits P T numbers from S
paths: see the table of its bias over S / (P T).

"""


def pytest_addoption(parser):
    parser.addoption("--page", metavar="FILE", help="write the measured tables to FILE, as Markdown")


def pytest_configure(config):
    config.stash[ROWS] = {}


@pytest.fixture
def timed(request) -> bool:
    """Are benchmarks enabled?  If not, each runs once on a small problem, so that it cannot rot."""
    return bool(request.config.option.benchmark_enable)


@pytest.fixture
def note(request):
    """``note(title, **columns)`` adds a row to the table ``title``."""

    def add(title: str, **columns: object) -> None:
        request.config.stash[ROWS].setdefault(title, []).append(columns)

    return add


def machine() -> str:
    threads = os.environ.get("OMP_NUM_THREADS", "as many threads as BLAS likes")
    cores = len(os.sched_getaffinity(0))
    return (
        f"Measured on {cores} cores ({platform.machine()}, shared with other work), {platform.system()}, "
        f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, "
        f"OMP_NUM_THREADS = {threads}."
    )


def markdown(tables: dict[str, list[dict]]) -> str:
    lines = []
    for title, rows in tables.items():
        names = list(rows[0])
        lines += [f"## {title}", "", "| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
        lines += ["| " + " | ".join(_cell(row.get(n, "")) for n in names) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def pytest_terminal_summary(terminalreporter, config):
    tables = config.stash[ROWS]
    if not tables or not config.option.benchmark_enable:
        return
    text = f"{machine()}\n\n{markdown(tables)}"
    terminalreporter.write_sep("=", "measured")
    terminalreporter.write_line(text)
    if config.getoption("--page"):
        Path(config.getoption("--page")).write_text(HEAD + text, encoding="utf-8")
