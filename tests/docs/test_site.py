"""Correctness of the site and the README: examples run, cells execute, imported names exist."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest

from numerics.experiment import Experiment
from numerics.experiment.schema import parse
from numerics.solver import solve
from numerics.solver.registry import METHODS
from numerics.verification.smaller_problems import in_fixed_steps

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCED_ANY = re.compile(r"^```[^\n]+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = sorted(
    path for path in DOCS.rglob("*.md") if "_build" not in path.parts and CELL.search(path.read_text())
)
EXAMPLES = sorted((DOCS / "examples").glob("*.toml"))
QUICK = {"averages.md", "tensor-programs.md"}
"""Pages that take less than a second; the others are slow tests."""
SLOW = {"adam.toml", "digits_test.toml", "power_law.toml", "residual.toml", "tanh.toml"}
SOLVED = {"digits.toml", "digits_flow.toml", "digits_test.toml", "isotropic.toml", "online.toml"}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def quiet_figures() -> Iterator[None]:
    from matplotlib import pyplot

    before = matplotlib.get_backend()
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")
    pyplot.switch_backend(before)


def test_there_is_something_to_test():
    assert {path.name for path in EXAMPLES} >= SOLVED
    assert {"index.md", "quickstart.md", "linear.md", "program.md", "ten-tasks.md"} <= {
        path.name for path in PAGES
    }


@pytest.mark.parametrize(
    "path",
    [pytest.param(x, marks=pytest.mark.slow if x.name in SLOW else ()) for x in EXAMPLES],
    ids=named,
)
def test_an_example_loads_and_learns_or_says_why_not(path: Path):
    experiment = Experiment.load(path)
    if experiment.spec.kind != "fixed":
        result = solve(experiment, kernels="none")
    elif experiment.training.rule == "gd":
        result = solve(experiment.replace({"training.steps": 8}), kernels="none")
    else:
        result = solve(in_fixed_steps(experiment), kernels="none")
    loss = result.train_loss.to_numpy()
    assert np.isfinite(loss).all()
    assert loss[-1] < 0.2 * loss[0]


@pytest.mark.usefixtures("quiet_figures")
@pytest.mark.parametrize(
    "path", [pytest.param(x, marks=() if x.name in QUICK else pytest.mark.slow) for x in PAGES], ids=named
)
def test_the_cells_of_a_page_execute(path: Path, monkeypatch: pytest.MonkeyPatch):
    text = path.read_text()
    cells = CELL.findall(text)
    if "IPython" in text:
        pytest.importorskip("IPython")
    monkeypatch.chdir(path.parent)  # as the site runs them
    run(cells, path.name)


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_figures")
def test_the_code_of_the_readme(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    blocks = FENCED.findall((ROOT / "README.md").read_text())
    run([code for language, code in blocks if language == "python"], "README.md")
    for language, code in blocks:
        if language == "toml":
            parse(tomllib.loads(code))
    shell = "\n".join(code for language, code in blocks if language == "bash")
    for name in re.findall(r"docs/examples/\S+\.toml", shell):
        assert (ROOT / name).exists(), name


PYTHON = re.compile(r"^```(?:python|\{code-cell\})[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def simulations(text: str) -> Iterator[ast.Call]:
    """Yield the calls of ``simulate`` in the Python blocks of a page."""
    for block in PYTHON.findall(text):
        lines = [line for line in block.splitlines() if not line.startswith((":", "%"))]
        for node in ast.walk(ast.parse("\n".join(lines))) if "simulate(" in block else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "simulate":
                yield node


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=named)
def test_networks_of_a_page_have_a_seed(path: Path):
    """The numbers of the page on optimisers changed with every build."""
    for call in simulations(path.read_text()):
        assert "rng" in {keyword.arg for keyword in call.keywords}, ast.unparse(call)


def test_conditions_of_learning_rates_are_printed_once(capsys: pytest.CaptureFixture[str]):
    """Conditions of the rich and of the lazy rate that are the same were printed twice."""
    (printed,) = re.findall(
        r"^print\(.*conditions\(\).*$", (DOCS / "examples/learning_rates.md").read_text(), re.MULTILINE
    )
    results = [SimpleNamespace(conditions=lambda: ("linear layers", "no noise"))] * 2
    exec(printed, dict(zip(("rich", "lazy"), results, strict=True)))
    assert capsys.readouterr().out.splitlines() == ["linear layers", "no noise"]


def run(cells: list[str], name: str) -> None:
    """Execute all cells in one namespace, as in a notebook, without options and magics of cells."""
    space: dict[str, Any] = {"__name__": "__main__"}
    for index, code in enumerate(cells):
        lines = [line for line in code.splitlines() if not line.startswith((":", "%"))]
        exec(compile("\n".join(lines), f"{name}, cell {index + 1}", "exec"), space)


@pytest.fixture(scope="module")
def names() -> ModuleType:
    """Return the module that reads names of modules for the site's reference without importing them."""
    path = DOCS / "_ext" / "public_names.py"
    spec = importlib.util.spec_from_file_location("public_names", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its data classes look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def known(names: ModuleType) -> dict[str, Any]:
    """Return every module of the packages by its name, parsed."""
    found = names.modules(ROOT)
    assert all(x.tree for x in found.values())
    return found


def test_what_the_pages_import_exists(names: ModuleType, known: dict[str, Any]):
    def exists(module: str, name: str) -> bool:
        path = ROOT / module.replace(".", "/")
        if name == "*" or (path / f"{name}.py").exists() or (path / name).is_dir():
            return True
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        read = known.get(module) or names.Module.read(ROOT, file)
        return name in read.defined or name in read.imported

    missing = []
    for page in PAGES:
        code = "\n".join(re.sub(r"(?m)^[:%].*$", "", x) for x in CELL.findall(page.read_text()))
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and re.match("derive|numerics|tests", str(node.module)):
                lacking = [x.name for x in node.names if not exists(str(node.module), x.name)]
                missing += [f"{page.name}: from {node.module} import {x}" for x in lacking]
    assert not missing


def test_what_packages_and_rooms_export_has_a_home(names: ModuleType, known: dict[str, Any]):
    pages = names.pages(known, DOCS)
    assert {*names.PACKAGES, "index"} <= {x.split(".")[0] for x in pages}
    for module in known.values():
        for name in module.exported:
            where, there = names.home(known, module.name, name)
            room = ".".join(where.split(".")[:2])
            assert f".. automodule:: {where}\n" in pages[room], (module.name, name)
            assert not there or re.search(rf"\b{there}\b", pages[room]), (module.name, name)


def test_ten_tasks_take_ten_lines_each():
    text = (DOCS / "how-to" / "ten-tasks.md").read_text()
    shown = re.sub(r"(?ms)^```\{try-it\}.*?^```$", "", text)  # a link to the page that derives this program
    tasks = re.split(r"(?m)^## ", shown)[1:]
    assert len(tasks) == 10
    for task in tasks:
        lines = [line for block in FENCED_ANY.findall(task) for line in block.strip().splitlines()]
        assert 0 < len([x for x in lines if x.strip()]) <= 10, task


def test_every_method_has_its_row():
    rows = re.findall(r"(?m)^\| `(\w+)` \|", (DOCS / "how-to" / "choose-a-method.md").read_text())
    assert rows == [method.name for method in METHODS]
