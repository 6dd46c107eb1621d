"""Planted errors: wrong signs and factors put into the code one at a time, to see which tests fail.

``python tests/planted.py`` copies the checkout to a temporary folder. For each error of
``planted.toml`` it replaces the old text by the new one, runs the unmarked tests up to the first
failure, and prints which test saw the error after how many seconds of processor time, or that no test
did. The test that saw the error last time (``seen``) runs first, then tests that import the file or are
named like it, then those of its package, then all others::

    python tests/planted.py                              # all errors, some ten minutes on one core
    python tests/planted.py --room derive/theory         # errors in one package
    python tests/planted.py --only "transposed kernel"   # errors whose name contains this
    python tests/planted.py --own                        # without the tests of other packages
    python tests/planted.py --record                     # write into the list which test saw each error
    python tests/planted.py --unseen                     # errors for which the list names no test

Each run of tests is a fork of this process, which has imported the libraries and nothing of the
project. The cost of tests is not limited here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")
OF_THE_LIST = "tests/test_project.py::test_planted_errors_stand_once_in_their_files"
"""The test that holds the list against the files, which an error that is planted fails."""
LIBRARIES = (
    "hypothesis",
    "matplotlib.pyplot",
    "pytest",
    "scipy.integrate",
    "scipy.optimize",
    "sympy",
    "xarray",
)
"""What nearly all tests import: once, before any of them runs."""

MOMENT = count(1)
"""When a file was written, as whole seconds that differ: compiled modules are known by them."""


@dataclass(frozen=True)
class Planted:
    """Planted error: in ``file`` the text ``old``, which occurs once, is replaced by ``new``.

    ``breaks`` names the resulting error; ``seen`` is the test that detected it in the last run.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    seen: str = ""

    @property
    def room(self) -> str:
        """Package of the file, such as ``derive/theory``; the top package for files outside of packages."""
        parts = Path(self.file).parts
        return "/".join(parts[: min(2, len(parts) - 1)])

    def put(self, root: Path) -> str:
        """Return the text of the file with the error; raise ValueError unless the old text occurs once."""
        text = (root / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its old text stands {count} times in {self.file}, not once")
        return text.replace(self.old, self.new)


@cache
def planted() -> tuple[Planted, ...]:
    """Return the errors of ``planted.toml``."""
    return tuple(Planted(**x) for x in tomllib.loads(LIST.read_text(encoding="utf-8"))["error"])


def copied(folder: Path) -> None:
    """Copy the checkout to a folder, without files that git ignores."""
    said = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, said.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def stages(error: Planted) -> list[list[str]]:
    """Return the tests of each run, in the order in which they are tried.

    The test that saw the error last time; test files that import its module or are named like it; those of
    its package; all others, first those of the same top package.
    """
    every = sorted(str(x.relative_to(ROOT)) for x in (ROOT / "tests").rglob("test_*.py"))
    every = [x for x in every if not x.startswith("tests/benchmarks/")]
    folder = ROOT / "tests" / error.room
    own = [x for x in every if x.startswith(f"tests/{error.room}/")]
    if "/" not in error.room or not folder.is_dir():
        own = [x for x in every if re.fullmatch(r"tests/numerics/test_\w+\.py", x)]
    words = [x.rstrip("s") for x in Path(error.file).stem.split("_") if len(x) > 3]
    named = [x for x in own if any(word in Path(x).stem for word in words)]
    module = re.compile(rf"^(from|import) {re.escape(module_of(error.file))}\b", flags=re.M)
    named += [x for x in every if x not in named and module.search((ROOT / x).read_text(encoding="utf-8"))]
    package = f"tests/{error.file.split('/')[0]}/"
    others = sorted((x for x in every if x not in own), key=lambda x: not x.startswith(package))
    return [
        [error.seen] if error.seen else [],
        named,
        [x for x in own if x not in named],
        [x for x in others if x not in named],
    ]


def module_of(file: str) -> str:
    """Return the name under which a file is imported."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class FirstFailure:
    """Plugin of pytest that keeps the name of the first test, fixture or module that fails."""

    name: str | None = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record the first failure of a test or fixture."""
        if report.failed and self.name is None:
            self.name = report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def run(tests: list[str], seconds: float) -> tuple[str | None, float]:
    """Run ``tests`` in a fork up to the first failure; return its name or None, and the processor time."""
    end, start = os.pipe()
    if (process := os.fork()) == 0:
        os.close(end)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        first = FirstFailure()
        options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--untimed", f"--deselect={OF_THE_LIST}"]
        importlib.import_module("pytest").main([*options, *tests], plugins=[first])
        os.write(start, json.dumps(first.name).encode())
        os._exit(0)
    os.close(start)
    with open(end, encoding="utf-8") as pipe:
        said = pipe.read()
    _, _, used = os.wait4(process, 0)
    name = json.loads(said) if said else f"no end within {seconds:g} s of processor time"
    return name, used.ru_utime + used.ru_stime


def written(where: Path, text: str) -> None:
    """Write a module so that no compiled file of another text is used for it."""
    where.write_text(text, encoding="utf-8")
    moment = next(MOMENT)
    os.utime(where, (moment, moment))


def judged(error: Planted, own: bool, seconds: float) -> tuple[str | None, float]:
    """Return the test that sees ``error`` in the working folder, or None, and the processor time."""
    where = Path(error.file)
    honest = where.read_text(encoding="utf-8")
    written(where, error.put(Path()))
    try:
        total = 0.0
        for tests in filter(None, stages(error)[: 3 if own else 4]):
            seen, spent = run(tests, seconds)
            total += spent
            if seen is not None:
                return seen, total
        return None, total
    finally:
        written(where, honest)


def recorded(error: Planted, seen: str) -> None:
    """Write into the list that ``seen`` saw the error."""
    first, *entries = LIST.read_text(encoding="utf-8").split("[[error]]\n")
    for k, entry in enumerate(entries):
        if entry.startswith(f"name = {json.dumps(error.name)}\n"):
            bare = re.sub(r"^seen = .*\n", "", entry, flags=re.M)
            before, breaks, rest = re.split(r"^(breaks = .*\n)", bare, flags=re.M)
            entries[k] = f"{before}{breaks}seen = {json.dumps(seen)}\n{rest}"
    LIST.write_text("[[error]]\n".join([first, *entries]), encoding="utf-8")


def table(found: list[tuple[Planted, bool]]) -> Iterator[str]:
    """Yield the rows of a table: number of errors planted and seen, by package."""
    planted, seen = Counter(x.room for x, _ in found), Counter(x.room for x, y in found if y)
    yield from (f"{room:28}{seen[room]:4} of {planted[room]}" for room in sorted(planted))
    yield f"{'in all':28}{seen.total():4} of {planted.total()}"


def main() -> int:
    """Plant the requested errors; return exit status 1 if one of them is not seen."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--only", default="", metavar="TEXT", help="errors whose name contains this")
    options.add_argument(
        "--room", default="", metavar="ROOM", help="errors in one room, such as derive/theory"
    )
    options.add_argument("--own", action="store_true", help="leave out the tests of other rooms")
    options.add_argument("--unseen", action="store_true", help="errors of which no test is known to see them")
    options.add_argument("--record", action="store_true", help="write into the list which test saw each")
    options.add_argument("--seconds", type=float, default=1500, help="processor time for each run of tests")
    asked = options.parse_args()
    chosen = [x for x in planted() if asked.only in x.name and x.file.startswith(asked.room)]
    chosen = [x for x in chosen if not (asked.unseen and x.seen)]
    found: list[tuple[Planted, bool]] = []
    with tempfile.TemporaryDirectory() as folder:
        copied(Path(folder))
        os.chdir(folder)
        sys.path[0] = folder
        os.environ.update(PYTHONPATH=folder, OMP_NUM_THREADS="1", MPLBACKEND="agg")
        for name in LIBRARIES:
            importlib.import_module(name)
        for x in chosen:
            seen, spent = judged(x, asked.own, asked.seconds)
            found.append((x, seen is not None))
            print(f"{'caught' if seen else 'SURVIVED'} {spent:6.1f} s  {x.room}: {x.name}", flush=True)
            if seen is not None:
                print(f"                   by {seen}", flush=True)
                if asked.record and not seen.startswith("no end"):
                    recorded(x, seen)
    print("", *table(found), sep="\n")
    return int(not all(seen for _, seen in found))


if __name__ == "__main__":
    sys.exit(main())
