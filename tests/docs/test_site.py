"""What the site and the README show is true: examples run, cells of code execute, the site builds."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from numerics.experiment import Experiment
from numerics.experiment.schema import parse
from numerics.solver import solve
from numerics.verification.openings import comparable

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = sorted(
    path for path in DOCS.rglob("*.md") if "_build" not in path.parts and CELL.search(path.read_text())
)
EXAMPLES = sorted((DOCS / "examples").glob("*.toml"))
LONG = {
    "convolution.md",
    "digits.md",
    "isotropic.md",
    "linear.md",
    "networks.md",
    "nonlinear.md",
    "parametrizations.md",
    "program.md",
    "reductions.md",
    "residual-depth.md",
    "solver.md",
    "structured.md",
    "sweep.md",
    "tied-and-feedback.md",
    "widths-bias-channels.md",
    "approximations.md",
    "decay-noise-momentum.md",
    "depth-parametrizations.md",
    "expansion.md",
    "decay_and_noise.md",
    "early_time.md",
    "gradient_independence.md",
    "infinite-depth.md",
    "infinite_depth.md",
    "isotropic_data.md",
    "learning_rates.md",
    "linear_networks.md",
    "nonlinear-expansion.md",
    "nonlinear_networks.md",
    "own-network.md",
    "other-expansions.md",
    "perturbation.md",
    "power-laws.md",
    "power_law.md",
    "relu_networks.md",
    "residual_depth.md",
    "scaling_laws.md",
    "test_points.md",
    "two_layer.md",
}
"""Pages that take more than a second; the site's build runs them too."""
SLOW = {"digits_test.toml", "power_law.toml", "residual.toml", "tanh.toml"}
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
    assert {"quickstart.md", "linear.md", "program.md"} <= {path.name for path in PAGES}


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
        result = solve(comparable(experiment), kernels="none")
    loss = result.train_loss.to_numpy()
    assert np.isfinite(loss).all()
    assert loss[-1] < 0.2 * loss[0]


@pytest.mark.usefixtures("quiet_figures")
@pytest.mark.parametrize(
    "path", [pytest.param(x, marks=pytest.mark.slow if x.name in LONG else ()) for x in PAGES], ids=named
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


def run(cells: list[str], name: str) -> None:
    """One namespace for all cells, as in a notebook; options and magics of a cell are left out."""
    space: dict[str, Any] = {"__name__": "__main__"}
    for index, code in enumerate(cells):
        lines = [line for line in code.splitlines() if not line.startswith((":", "%"))]
        exec(compile("\n".join(lines), f"{name}, cell {index + 1}", "exec"), space)


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path):
    for module in ("sphinx", "myst_nb", "sphinxcontrib.bibtex"):
        pytest.importorskip(module)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(tmp_path / "doctrees")]
    built = subprocess.run([*command, str(DOCS), str(tmp_path / "site")], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]
    assert (tmp_path / "site" / "index.html").exists()
