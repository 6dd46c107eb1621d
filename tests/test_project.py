"""The files around the packages agree with each other."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.planted import planted

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = (ROOT / ".ci" / "constraints.txt").read_text()


def name_of(requirement: str) -> str:
    return re.split(r"[<>=!~\[; ]", requirement)[0].lower().replace("_", "-")


def test_every_dependency_is_pinned_and_nothing_else_pins() -> None:
    pins = [line for line in PINS.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!-]+", line) for line in pins)
    pinned = {name_of(line) for line in pins}
    extras = PROJECT["optional-dependencies"].values()
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]
    assert {name_of(each) for each in wanted} <= pinned
    assert not any("==" in each for each in wanted)


def test_one_version_everywhere() -> None:
    number = PROJECT["version"]
    assert version("dmft-derive") == number
    assert f"\nversion: {number}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{number}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("kind", ["run", "test"])
def test_the_readme_holds_the_newcomers_commands(kind: str) -> None:
    after = (ROOT / "README.md").read_text().split(f"\n<!-- newcomer:{kind} -->\n")
    assert len(after) == 2
    fence, *lines = after[1].splitlines()
    assert fence == "```bash"
    block = "\n".join(lines[: lines.index("```")])
    assert "-c .ci/constraints.txt" in block
    subprocess.run(["bash", "-n", "-c", block], check=True)
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)


def test_planted_errors_stand_once_in_their_files() -> None:
    errors = planted()
    assert len(errors) >= 64
    assert len({x.name for x in errors}) == len(errors)
    rooms = {str(x.relative_to(ROOT)) for top in ("derive", "numerics") for x in (ROOT / top).iterdir()}
    rooms = {x for x in rooms if (ROOT / x / "__init__.py").is_file()} - {"derive/ledger"}
    assert {x.room for x in errors} >= rooms
    for x in errors:
        compile(x.put(ROOT), x.file, "exec")
