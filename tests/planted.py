"""Errors of the kind a theorist fears, planted one at a time: does the default suite see them?

``python tests/planted.py`` copies the checkout to a temporary folder.  For each error of ``planted.toml`` it
puts the new text where the old one stands, runs the unmarked tests, those that import or are named like the
file first, then those of its room and all others, and says which of them saw it after how many seconds of
processor time, or that none did::

    python tests/planted.py                              # all of them, about an hour on one core
    python tests/planted.py --room derive/theory         # those planted in one room
    python tests/planted.py --only "transposed kernel"   # those whose name contains this
    python tests/planted.py --own                        # without the third of these

What fails for its time alone is not seen: in the copy no test has a limit of time.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")
OF_THE_LIST = "tests/test_project.py::test_planted_errors_stand_once_in_their_files"
"""The test that holds the list against the files, which an error that is planted fails."""


@dataclass(frozen=True)
class Planted:
    """In ``file`` the text ``old``, which stands there once, becomes ``new``; what that ``breaks``."""

    name: str
    file: str
    old: str
    new: str
    breaks: str

    @property
    def room(self) -> str:
        """The package that the file is in, such as ``derive/theory``; the top package for its own files."""
        parts = Path(self.file).parts
        return "/".join(parts[: min(2, len(parts) - 1)])

    def put(self, root: Path) -> str:
        """The file's text with the error in it; ValueError if the old text is not there exactly once."""
        text = (root / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its old text stands {count} times in {self.file}, not once")
        return text.replace(self.old, self.new)


def planted() -> tuple[Planted, ...]:
    """The list of errors in ``planted.toml``."""
    return tuple(Planted(**x) for x in tomllib.loads(LIST.read_text(encoding="utf-8"))["error"])


def copied(folder: Path) -> Path:
    """A copy of the checkout, without what git ignores, whose tests have no limit of time."""
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
    conftest = folder / "tests/conftest.py"
    text = conftest.read_text(encoding="utf-8")
    conftest.write_text(re.sub(r"^LIMIT, SHARED = .*$", "LIMIT = SHARED = 1e9", text, flags=re.M), "utf-8")
    return folder


def stages(error: Planted) -> tuple[list[str], list[str], list[str]]:
    """All files of tests: those that import the error's module or are named like it, its room's, all others.

    Of the others those of the same package come first.
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
    return named, [x for x in own if x not in named], [x for x in others if x not in named]


def module_of(file: str) -> str:
    """The name by which a file is imported."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def run(folder: Path, tests: list[str], seconds: float) -> tuple[str | None, float]:
    """Runs ``tests`` up to the first failure: which it is, None if there is none, and the time spent."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--deselect={OF_THE_LIST}", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5)),
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode in (0, 5):  # 5: there is no test
        return None, spent
    failed = re.search(r"^(FAILED|ERROR) (.*)$", done.stdout, flags=re.M)
    if failed is None:
        return f"no end within {seconds:g} s of processor time", spent
    return failed[2] if failed[1] == "FAILED" else f"at collection or in a fixture: {failed[2]}", spent


def judged(error: Planted, folder: Path, own: bool, seconds: float) -> tuple[str | None, float]:
    """The test that sees ``error``, None if none does, and the processor time that it took."""
    where = folder / error.file
    honest = where.read_text(encoding="utf-8")
    where.write_text(error.put(folder), encoding="utf-8")
    try:
        total = 0.0
        for tests in filter(None, stages(error)[: 2 if own else 3]):
            seen, spent = run(folder, tests, seconds)
            total += spent
            if seen is not None:
                return seen, total
        return None, total
    finally:
        where.write_text(honest, encoding="utf-8")


def table(found: list[tuple[Planted, bool]]) -> Iterator[str]:
    """How many errors were planted and seen, by room."""
    planted, seen = Counter(x.room for x, _ in found), Counter(x.room for x, y in found if y)
    yield from (f"{room:28}{seen[room]:4} of {planted[room]}" for room in sorted(planted))
    yield f"{'in all':28}{seen.total():4} of {planted.total()}"


def main() -> int:
    """Plants the errors that are asked for; the exit code is 1 if one of them is not seen."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--only", default="", metavar="TEXT", help="errors whose name contains this")
    options.add_argument(
        "--room", default="", metavar="ROOM", help="errors in one room, such as derive/theory"
    )
    options.add_argument("--own", action="store_true", help="leave out the tests of other rooms")
    options.add_argument(
        "--seconds", type=float, default=1500, help="processor time for each of the two runs"
    )
    asked = options.parse_args()
    chosen = [x for x in planted() if asked.only in x.name and x.file.startswith(asked.room)]
    found: list[tuple[Planted, bool]] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for x in chosen:
            seen, spent = judged(x, copy, asked.own, asked.seconds)
            found.append((x, seen is not None))
            print(
                f"{'SURVIVED' if seen is None else 'caught'} {spent:6.1f} s  {x.room}: {x.name}", flush=True
            )
            if seen is not None:
                print(f"                   by {seen}", flush=True)
    print("", *table(found), sep="\n")
    return int(not all(seen for _, seen in found))


if __name__ == "__main__":
    sys.exit(main())
