"""The files around the packages agree with each other."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

from numerics import names
from tests.planted import planted

ROOT = Path(__file__).parents[1]
SLOW_CASES = set((ROOT / "tests" / "slow_cases.txt").read_text().splitlines())
TABLES = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, BUILD = TABLES["project"], TABLES["build-system"]
PINS = (ROOT / ".ci" / "constraints.txt").read_text()


def name_of(requirement: str) -> str:
    return re.split(r"[<>=!~\[; ]", requirement)[0].lower().replace("_", "-")


def test_every_dependency_is_pinned_and_nothing_else_pins() -> None:
    pins = [line for line in PINS.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!-]+ #( sha256:[0-9a-f]{64})+", line) for line in pins)
    pinned = {name_of(line) for line in pins}
    extras = PROJECT["optional-dependencies"].values()
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in extra), *BUILD["requires"]]
    assert {name_of(each) for each in wanted} <= pinned
    assert not any("==" in each for each in wanted)


@pytest.mark.slow
def test_an_older_build_leaves_nothing_in_a_new_one(tmp_path: Path) -> None:
    """A module that is no more, in the build/ of an earlier install, is in no wheel; all others are."""
    packages = [x for x in ("derive", "numerics") for x in (ROOT / x).rglob("*.*") if x.suffix != ".pyc"]
    for x in (*packages, *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))):
        place = tmp_path / "source" / x.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(x.read_bytes())
    stale = tmp_path / "source" / "build" / "lib" / "derive" / "removed.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    words = ["wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(tmp_path / "source")]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = {x for x in ZipFile(wheel).namelist() if ".dist-info/" not in x and not x.endswith("/")}
    assert inside == {str(x.relative_to(ROOT)) for x in packages}


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


def test_every_package_has_planted_errors() -> None:
    errors = planted()
    assert len(errors) >= 64
    assert len({x.name for x in errors}) == len(errors)
    rooms = {str(x.relative_to(ROOT)) for top in ("derive", "numerics") for x in (ROOT / top).iterdir()}
    rooms = {x for x in rooms if (ROOT / x / "__init__.py").is_file()} - {"derive/ledger"}
    assert {x.room for x in errors} >= rooms


def test_planted_errors_stand_once_in_their_files() -> None:
    texts = {file: (ROOT / file).read_text() for file in {x.file for x in planted()}}
    assert [x.name for x in planted() if texts[x.file].count(x.old) != 1] == []


@pytest.mark.parametrize("room", sorted({x.room for x in planted()}))
def test_planted_errors_are_python(room: str) -> None:
    for x in planted():
        if x.room == room:
            ast.parse(x.put(ROOT), x.file)


@pytest.mark.parametrize("room", sorted({x.room for x in planted()}))
def test_planted_errors_are_seen_by_tests_of_the_default_suite(room: str) -> None:
    """The test that saw an error is still there, and is not left to the slow tests."""
    seen = [x.seen.partition("::") for x in planted() if x.room == room]
    marks: dict[tuple[str, str], set[str]] = {}
    for file in {file for file, _, name in seen if name}:
        for e in ast.parse((ROOT / file).read_text()).body:
            if isinstance(e, ast.FunctionDef):
                marks[file, e.name] = {ast.unparse(x) for x in e.decorator_list}
    names = {(file, name.split("[")[0]) for file, _, name in seen if name}
    assert not SLOW_CASES & {x.seen for x in planted()}
    assert names <= marks.keys()
    assert not [x for x in names if {"pytest.mark.slow", "pytest.mark.evidence"} & marks[x]]


def test_numerics_spells_the_names_of_roles_in_one_module() -> None:
    """Solvers call fields and kernels by the constants of ``numerics.names``; examples may spell them."""
    roles = {names.FIELD, names.GRADIENT, names.OUTPUT, names.ERROR, names.INPUT_KERNEL, *names.RESPONSES}
    roles |= {names.FEATURE_KERNEL, names.GRADIENT_KERNEL, names.C_LEARNT, names.C_FIELD, names.C_GRADIENT}
    found = set()
    quoted = re.compile("|".join(f'"{name}"' for name in sorted(roles)))
    for path in sorted((ROOT / "numerics").rglob("*.py")):
        text = path.read_text()
        if not any(
            quoted.search(line) and not re.match(r"\s*(>>>|\.\.\.) ", line) for line in text.splitlines()
        ):
            continue
        tree = ast.parse(text)
        formats = {id(x) for e in ast.walk(tree) if isinstance(e, ast.JoinedStr) for x in ast.walk(e)}
        for e in ast.walk(tree):
            if isinstance(e, ast.Constant) and id(e) not in formats and e.value in roles:
                found.add((str(path.relative_to(ROOT)), e.value))
    spelled = {(file, name) for file, name in found if file != "numerics/names.py"}
    assert spelled == {
        ("numerics/experiment/activation.py", "h"),  # what files call the argument of an activation
        ("numerics/experiment/checks.py", "f"),  # the kind of floating-point numbers
    }


def _types(path: Path) -> Iterator[tuple[str, str]]:
    """Return names of classes, type variables and type aliases of a module, with their definitions."""
    file, text = str(path.relative_to(ROOT)), path.read_text()
    for name in re.findall(r"^class (\w+)", text, re.M):
        yield name, f"class of {file}"
    assigned = r"^(_*[A-Z]\w*)(?:: [\w.]+)? = (.*(?:\n[ )\]}].*)*)"  # with the lines that go on
    for name, value in re.findall(assigned, text, re.M):
        if re.match(r"(TypeVar|ParamSpec)\(", value):
            yield name, f"type variable of {file}"
        elif re.fullmatch(r"_*[A-Z]\w*[a-z]\w*", name):
            e = ast.parse(value.strip(), mode="eval").body
            if not isinstance(e, ast.Call):
                yield name, ast.unparse(e)


def test_no_name_of_a_type_means_two_things() -> None:
    """An alias is defined in one module; only commands repeat choices, because they load no solver."""
    found: dict[str, list[str]] = {}
    for package in ("derive", "numerics"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for name, meaning in _types(path):
                found.setdefault(name, []).append(meaning)
    assert {name: meanings for name, meanings in found.items() if len(set(meanings)) > 1} == {}
    assert {name for name, meanings in found.items() if len(meanings) > 1} == {
        "Array",
        "DataKind",
        "KeptKernels",
    }
