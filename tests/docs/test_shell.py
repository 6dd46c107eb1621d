"""Shell commands on the pages: options exist, and the blocks of the how-to pages run in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from numerics.cli.commands import app
from tests.docs.test_site import CELL, DOCS, ROOT

BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = sorted(
    path
    for path in (ROOT / "README.md", *DOCS.rglob("*.md"))
    if "_build" not in path.parts
    and "ledger" not in path.parts
    and re.search(r"(?m)^dmft ", path.read_text())
)
RUN = ("ten-tasks.md", "own-network.md")
"""Pages whose blocks run as they stand, after one another."""


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command `dmft` on a line of its own."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("dmft "):
            words = shlex.split(line, comments=True)
            yield words[1 : words.index(">")] if ">" in words else words[1:]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_options_on_a_page_exist(path: Path) -> None:
    """Neither an option that no command has nor an ellipsis in place of options stands on a page."""
    found = list(commands(path.read_text()))
    assert found
    for words in found:
        assert not [x for x in words if "…" in x or "..." in x.split("=")[0]], words
        command = get_command(app)
        given = [x for x in words if not x.startswith("${")]
        needed = ["--set", "training.steps=1"] if len(given) < len(words) else []
        while given and given[0] in (known := getattr(command, "commands", {})):
            command, given = known[given[0]], given[1:]
        command.make_context("dmft", [*given, *needed])


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_the_blocks_of_a_page_run_in_an_empty_folder(name: str, tmp_path: Path) -> None:
    """Blocks run as for a reader, without `pip install`; a cluster is replaced by this machine."""
    text = (DOCS / "how-to" / name).read_text()
    where, shims = tmp_path / "empty", tmp_path / "bin"
    where.mkdir()
    shims.mkdir()
    for program, words in (("dmft", "-m numerics.cli"), ("python", "")):
        (shims / program).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (shims / program).chmod(stat.S_IRWXU)
    if "net.py" in text:
        (where / "net.py").write_text(CELL.findall(text)[0])
    blocks = "".join(BLOCK.findall(text)).replace("--cluster submitit", "")
    script = "\n".join(line for line in blocks.splitlines() if not line.startswith("pip "))
    environment = {**os.environ, "PATH": f"{shims}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=where, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
