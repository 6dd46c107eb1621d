"""Completeness of the gallery: each figure is redone or has a reason; scripts agree with their records."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from derive.ledger import find

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "gallery"
SCRIPTS = sorted(FOLDER.glob("*/figure_*.py"))
CAPTIONS = json.loads((ROOT / "tests/ledger/numbered.json").read_text(encoding="utf-8"))
LAST = 21
"""The last figure that the text of depth2023 names; our copy of it has no captions."""


def named(path: Path) -> str:
    return f"{path.parent.name}-{path.stem.removeprefix('figure_')}"


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    import gallery

    return gallery


@pytest.fixture(scope="module")
def page(gallery: ModuleType) -> ModuleType:
    import page

    return page


def figures(paper: str) -> set[str]:
    """Return the figures that a paper numbers, from the captions of its copy."""
    found = {x.removeprefix("Figure ") for x in CAPTIONS[paper]["captions"] if x.startswith("Figure ")}
    return found or {str(n) for n in range(1, LAST + 1)}


@pytest.mark.parametrize("paper", CAPTIONS)
def test_every_figure_is_redone_or_left_out_for_a_reason(paper: str, page: ModuleType) -> None:
    redone = {named(x).split("-")[1] for x in SCRIPTS if x.parent.name == paper}
    left_out = page.left_out().get(paper, {})
    assert redone | set(left_out) == figures(paper)
    assert not redone & set(left_out)
    assert all(len(why) > 20 for why in left_out.values())


def test_what_a_script_takes_from_others_is_there() -> None:
    for path in SCRIPTS:
        for taken in ast.parse(path.read_text()).body:
            if not isinstance(taken, ast.ImportFrom) or taken.module is None:
                continue
            other = (
                FOLDER / "gallery.py" if taken.module == "gallery" else path.with_name(f"{taken.module}.py")
            )
            if other.exists():
                body = ast.parse(other.read_text()).body
                own = {x.name for x in body if isinstance(x, ast.FunctionDef | ast.ClassDef)}
                own |= {
                    n.id
                    for x in body
                    if isinstance(x, ast.Assign)
                    for n in x.targets
                    if isinstance(n, ast.Name)
                }
                assert {x.name for x in taken.names} <= own, path.name


def test_at_least_25_are_redone() -> None:
    assert len(SCRIPTS) >= 25


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_a_script_says_what_it_shows_and_its_record_holds(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    words = " ".join((ast.get_docstring(tree) or "").split())
    assert len(words) > 40
    call = tree.body[-1].body[-1].value
    for number in ast.literal_eval(call.args[1]) if len(call.args) > 1 else ():
        find(path.parent.name, number)
    record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert f"{record['paper']}-{record['figure']}" == named(path)
    assert record["words"] == words
    assert not record["full"]
    assert record["numbers"]
    assert all(x["holds"] and np.isfinite(x["value"]) and x["error"] > 0 for x in record["numbers"])
    for entry in record["ledger"]:
        assert entry["verdict"] == find(path.parent.name, entry["number"]).verdict
    assert 0 < path.with_suffix(".png").stat().st_size < 60_000


def test_the_page_is_that_of_the_records(page: ModuleType) -> None:
    assert (FOLDER / "index.md").read_text(encoding="utf-8") == page.index()


def test_a_number_is_judged_by_its_error(gallery: ModuleType, tmp_path: Path) -> None:
    run = gallery.Run(tmp_path / "paper2020" / "figure_1.py", tmp_path)
    assert run.number("near", [1.0, 2.0], 0.1, [1.1, 2.0]).holds
    assert not run.number("far", [1.0, 2.0], 0.1, [1.1, 3.0]).holds
    assert run.number("rejected", 1.0, 0.1, 2.0, rejects=True).holds
    assert not run.number("not rejected", 1.0, 0.1, 1.4, rejects=True).holds


def test_a_number_agrees_only_if_it_can_be_told_from_an_alternative(
    gallery: ModuleType, tmp_path: Path
) -> None:
    run = gallery.Run(tmp_path / "paper2020" / "figure_1.py", tmp_path)
    assert run.number("a loss", 1.0, 0.1, 1.1).verdict == "agrees"
    assert run.number("nearly zero", 0.001, 0.003, 0.005).verdict == "not distinguished from 0"
    assert run.number("a power", 0.01, 0.02, 0.0, alternative=0.5).verdict == "agrees"
    assert run.number("a power", 0.01, 0.2, 0.0, alternative=0.5).verdict == "not distinguished from 0.5"
    with pytest.raises(ValueError, match="give a value to distinguish it from"):
        run.number("a power", 0.01, 0.02, 0.0)


def test_records_state_another_alternative_than_what_is_expected(page: ModuleType) -> None:
    for path in SCRIPTS:
        for x in json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["numbers"]:
            assert x["rejects"] or x["alternative"] != x["expected"], (path.name, x["label"])
    assert "not distinguished from 0" in page.index()


def test_a_result_is_kept_by_what_determines_it(
    gallery: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "OUT", tmp_path)
    run = gallery.Run(tmp_path / "figure_1.py", tmp_path)
    assert run.kept(np.linspace, 0, 1, 3).tolist() == run.kept(np.linspace, 0, 1, 3).tolist()
    assert len(list((tmp_path / "kept").iterdir())) == 1
    run.kept(np.linspace, 0, 1, num=4)
    run.kept(np.sum, np.arange(3.0))
    run.kept(np.sum, np.arange(1.0, 4.0))
    assert len(list((tmp_path / "kept").iterdir())) == 4


def test_texts_that_overlap_are_refused(gallery: ModuleType, tmp_path: Path) -> None:
    run = gallery.Run(tmp_path / "figure_1.py", tmp_path)
    with gallery.mpl.rc_context(gallery.STYLE):
        _, panel = run.panels(size=(3.0, 2.0))
        panel.plot([0, 1], [0, 1], label="one")
        panel.plot([0, 1], [0, 1], label="the same")
        assert run.save("png").stat().st_size < 60_000
        _, panel = run.panels(size=(3.0, 2.0))
        for words in ("here", "there"):
            panel.text(0.4, 0.5, words)
        with pytest.raises(RuntimeError, match="overlap"):
            run.save("png")


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_a_script_in_short_form(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path), "-o", str(tmp_path), "--fresh"],
        check=False,
        cwd=ROOT,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    record = json.loads((tmp_path / f"{path.stem}.json").read_text(encoding="utf-8"))
    kept = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert [x["label"] for x in record["numbers"]] == [x["label"] for x in kept["numbers"]]
