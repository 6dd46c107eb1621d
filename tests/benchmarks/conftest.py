"""Tables of measured numbers, printed when benchmarks are enabled and written to a page on request.

python -m pytest tests/benchmarks --benchmark-enable
python -m pytest tests/benchmarks --benchmark-enable --page=docs/benchmarks.md --before=FOLDER

The folder is a checkout of an earlier version, whose benchmarks run first, by its own tests. Its times are
listed beside those of this version: `git worktree add FOLDER df5dac88` is a commit of version 0.2.
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

This page is for readers who want to know how long a solution takes and how its time grows with the size of
the problem. It lists recorded times. Symbols are in [Conventions](reference/conventions.md) and terms in
the [glossary](reference/glossary.md).

`python -m pytest tests/benchmarks --benchmark-enable --page=FILE --before=FOLDER` measures these tables and
writes them to FILE. FOLDER is a checkout of an earlier version. Without `--benchmark-enable` no table is
printed or written.

P is the number of samples, T the number of times (steps + 1), L the number of hidden layers, and S the
number of sampled paths of a replica. Columns `before` are those of the earlier version. They were measured
by its own tests in the same session, before the others; only commands were run by both versions in turn.
`times_faster` is the time before over the new time. It can be too small, because a virtual machine that
runs for longer may have to wait for memory. Times are wall-clock times, except those of commands and
derivations, which are processor times.

Gflop counts the operations of the matrix products of a march that finds the rows of all samples. For many
samples and layers their number grows as L P T^3. Products with responses, which are triangular, count half.
Rows of kernels that are the same number at all times count nothing, because they are found by running sums.
`of_the_matrix_product_rate` is the number of counted operations over the seconds of the march, divided by
the number of operations that one large matrix product does in a second.
On fixed data the march needs fewer operations than are counted. Outputs are read in
the first layer (`derive.linear.overlap`), and then no equation needs the rows of samples in other layers.
The march takes some L T^3 + P T^2 + P^2 T operations, so that `of_the_matrix_product_rate` can exceed 1.
Small problems spend their time in the Python interpreter.

On random data every field is single: it has no index of samples. A row is then a matrix-vector product.
Reading the matrix limits its speed, so that it is some ten times slower than a matrix product. From 240
times on the march therefore folds the distant past into few coordinates (`numerics.solver.linear.folded`),
on random data and on fixed data. The part of a row that folding neglects is measured for some rows of each
block, and is at most 2e-13 of the size of its array there.
In the tables of random data `over_matrix_products` is the time of the march over the time that
the counted operations take at the rate of one large matrix product, measured in the same run with the same
threads. Folding takes fewer operations than are counted, so that this number falls with T. If several
threads are allowed, they fold the arrays in parallel; the steps of a block run one after the other. The
tables over T and L list the best of several runs, after one that uses the memory for the first time; the
residual network ran once.

Algorithm 1 of {cite:t}`selfconsistent2023` is implemented in `tests/reference/alternating.py`. The row "as
printed" solves for the Jacobians of each path by LU in batched LAPACK. The second row uses that they are
triangular in time, which is not in the paper. Rows named "particles" are [sampled
paths](reference/glossary.md) of this package. Two replicas of them are one solution with standard errors,
from twice the paths of one iteration of algorithm 1. Errors are root mean squares over all entries and over
six seeds of the difference from a solution with many paths, whose own standard error is the last row. The
table "Stein's lemma against derivatives along the paths" has the errors of one replica, over eight replicas.
On nonlinear problems Gflop counts products with the paths, some S (P T)^2 each, and triangular solves and
factors, some (P T)^3.
In the tables of one replica `seconds` is a quarter of the time of four replicas, and `over_matrix_products`
is this quarter over the time of the counted operations at the rate of one large matrix product.
Small problems spend their time in the interpreter, so that seconds grow more slowly than the counted
operations. In the column `responses`, `stein` means that responses are found by Stein's lemma, which fits P
T numbers from S paths; the table of its bias lists the bias over S / (P T). `jacobian` means that they are
derivatives along the paths.

Solutions of programs are compared with finite networks that reach the same error. Networks have the widths
128 and 256; if the program has modes or other attributes, the smaller width is the next multiple of their
number, and the larger one is twice the smaller. 16 networks of each width are measured. Their mean is
extrapolated to infinite width, linearly in 1/N. `networks_s` is the processor time of so many networks that
the standard error of the extrapolated mean is the error that the solution reports, or the requested
accuracy if the solution is exact. Terms of order 1/N^2, which the extrapolation leaves, are not counted as
an error. Networks and the solutions of `losses_s` compute losses and errors, without kernels;
`all_kernels_s` is the time of a solution as `numerics.solve` gives it by default, with the kernels of all
pairs. Both are processor times that include the derivation of the theory, but not imports. `times_less` is
`networks_s` over `losses_s`. It mostly grows with the accuracy: the error of networks falls as the root of
their number, and that of paths can fall faster.

Exponents are slopes of the logarithm of seconds, bytes or counted operations over that of T, P, L or S:
over all rows, or over the two or three largest sizes.

The section "Against the published fixed-point scheme" compares the march with the scheme that
{cite:t}`selfconsistent2023` prints for linear networks, on the same problem. `ratio` is its time over that
of the march, `ratio_solve` over that of `solve` without kernels, and `ratio_full` over that of `solve` with
all kernels. The scheme predicts outputs by Euler steps of a flow, so that $\\Delta$ differs from that of
the march at first order in the step.
In the tables with `by_hand_s` or `written_out_s`, the time of the same computation written by hand, `ratio`
is the time of the package over that time.

Sampled paths can also run on a graphics card (`solver.device`): [its
times](how-to/solver.md#on-a-graphics-card).

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
