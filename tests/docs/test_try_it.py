"""Answers of the page *Try it*, in Python: theories, origins of terms, refusals with their line, links.

`test_try_it_browser.py` asks the same questions in Chromium.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from base64 import urlsafe_b64decode
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import derive
from derive.theory import mean_field
from derive.theory.tensor_programs import tensor_program

ROOT = Path(__file__).parents[2]
TRY_IT = ROOT / "docs" / "try_it"
PROGRAMS = {x.stem: x.read_text() for x in sorted((TRY_IT / "programs").glob("*.py"))}
HEAVY = {"attention"}
"""Programs whose answers take more than a second."""
LINKED = sorted([*(ROOT / "docs" / "theory").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")])
WITHOUT_PROGRAM = {"index.md", "networks.md", "error-bars.md", "sweep.md"}
"""Pages that pose no program: tables, lists of pages, and experiments of TOML files."""
PARTS = ("single-site", "order-parameters", "responses", "action")


@lru_cache
def module(path: Path) -> ModuleType:
    """Return the module of a file that is in no package."""
    spec = importlib.util.spec_from_file_location(f"_try_it_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look their module up
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Return the module that answers the page."""
    return module(TRY_IT / "derivation.py")


@pytest.fixture(scope="module")
def links() -> ModuleType:
    """Return the extension of Sphinx that links to the page."""
    pytest.importorskip("sphinx")
    return module(ROOT / "docs" / "_ext" / "try_it.py")


def programs() -> list[Any]:
    """Return the programs of the menu as parameters of a test."""
    return [pytest.param(x, marks=pytest.mark.slow if x in HEAVY else ()) for x in PROGRAMS]


def made(text: str) -> Any:
    """Return the program that a text makes, without the page."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names["program"]


def test_the_menu_has_ten_programs_with_titles():
    menu = module(TRY_IT / "build.py").programs()
    assert {x["name"] for x in menu} == set(PROGRAMS)
    assert len({x["title"] for x in menu}) == len(menu) == 10
    assert menu[0]["name"] == "mlp"


@pytest.mark.parametrize("name", programs())
def test_a_program_of_the_menu_derives_to_the_latex_of_the_toolkit(page: ModuleType, name: str):
    theory = mean_field(made(PROGRAMS[name]))
    answer = page.asked(PROGRAMS[name], "single-site")
    assert answer["latex"] == theory.render("single-site", "latex")
    titles = {x["title"] for x in answer["sections"]}
    assert {"Gaussian sources", "Single-site process"} <= titles
    first = theory.render("single-site").split("\n\n")[0]
    assert answer["headline"] == " ".join(first.split())


@pytest.mark.parametrize("part", [*PARTS, "tensor-program"])
def test_every_part_is_that_of_the_toolkit(page: ModuleType, part: str):
    theory = mean_field(made(PROGRAMS["linear"]))
    answer = page.asked(PROGRAMS["linear"], part)
    same = (
        tensor_program(theory).render("latex") if part == "tensor-program" else theory.render(part, "latex")
    )
    assert answer["latex"] == same
    rows = "\n".join(x["latex"] for x in answer["sections"])
    assert rows.count(r"\begin{align*}") == same.count(r"\begin{align*}") > 0


def test_every_term_says_from_which_matrix_it_comes_and_by_which_rule(page: ModuleType):
    theory = mean_field(made(PROGRAMS["mlp"]))
    rows = page.asked(PROGRAMS["mlp"], "single-site")["explained"]
    equations = (*theory.equations, *theory.scalars, *theory.observables)
    assert [len(x["terms"]) for x in rows[: len(equations)]] == [len(e.terms) for e in equations]
    assert len(rows) == len(equations) + len(theory.sources) + len(theory.order_parameters)
    for e, row in zip(equations, rows, strict=False):
        for x, term in zip(e.terms, row["terms"], strict=True):
            assert term["explanation"] == theory.explain_term(x)
            assert term["kind"] == x.kind
    memory = next(x for row in rows for x in row["terms"] if x["kind"] == "memory")
    assert "by GradientDescent before t" in memory["explanation"]


def test_both_routes_are_checked_and_said(page: ModuleType):
    sentences = page.asked(PROGRAMS["linear"], "check")["sentences"]
    assert len(sentences) == 3
    assert sentences[0].startswith("The conditioning rule and the path integral")
    fixed = "from derive.program import feedback_alignment\nprogram = feedback_alignment(1)"
    reason = derive.check_routes(made(fixed)).gradients
    assert reason in page.asked(fixed, "check")["sentences"][1]


def test_routes_that_disagree_are_refused(page: ModuleType):
    wrong = """
from dataclasses import replace
from derive.program import mlp
program = mlp(1)
matrix = program.matrices[0]
update = replace(matrix.update, coefficient=2 * matrix.update.coefficient)
program = replace(program, matrices=(replace(matrix, update=update), *program.matrices[1:]))
"""
    refusal = page.asked(wrong, "check")["refusal"]
    assert refusal["kind"] == "RoutesDisagree"
    assert "gradient" in refusal["sentence"]
    assert refusal["line"] == 0


def test_the_expansion_has_order_two_and_its_conditions(page: ModuleType):
    answer = page.asked(PROGRAMS["linear"], "expansion")
    series = derive.expand(mean_field(made(PROGRAMS["linear"])), derive.gamma0, 2)
    assert answer["latex"] == series.render("latex")
    assert answer["conditions"] == list(series.conditions())


def test_an_expansion_that_does_not_exist_is_refused_without_a_line(page: ModuleType):
    refusal = page.asked(PROGRAMS["perceptron"], "expansion")["refusal"]
    with pytest.raises(derive.NotApplicable) as caught:
        derive.expand(mean_field(made(PROGRAMS["perceptron"])), derive.gamma0, 2)
    assert refusal == {"sentence": str(caught.value), "kind": "NotApplicable", "line": 0}


@pytest.mark.parametrize(
    ("text", "line", "part_of_sentence"),
    [
        ("from derive import mlp\n\nprogram = mlp(-1)\n", 3, "depth = -1"),
        ("from derive import mlp\nprogram = mlp(2, 'foo')\n", 2, "activation = 'foo'"),
        ("x = 1\nprogram = x +\n", 2, "SyntaxError"),
        ("x = 1\ny = z\n", 2, "NameError: name 'z'"),
        ("from derive import mlp\nnet = mlp(2)\n", 2, "it gives one the name net"),
        ("program = 3\n", 1, "object of type int"),
        ("", 1, "no program"),
        ("def f():\n    raise KeyError('no such thing')\nf()\n", 2, "KeyError: no such thing"),
    ],
)
def test_a_refusal_has_its_sentence_and_its_line(
    page: ModuleType, text: str, line: int, part_of_sentence: str
):
    refusal = page.asked(text, "single-site")["refusal"]
    assert refusal["line"] == line
    assert part_of_sentence in refusal["sentence"]


def test_a_refusal_of_the_network_stands_at_the_line_that_trains_it(page: ModuleType):
    text = PROGRAMS["mlp"].replace("W0 @ x(mu)", "W @ x(mu)")
    refusal = page.asked(text, "single-site")["refusal"]
    assert text.splitlines()[refusal["line"] - 1].strip().startswith(("h(1", "network", "program"))


def test_what_a_program_prints_comes_with_the_answer(page: ModuleType):
    text = PROGRAMS["linear"] + "print(program.name)\n"
    assert page.asked(text, "single-site")["printed"] == "deep linear network\n"


def test_questions_and_answers_are_json(page: ModuleType):
    question = json.dumps({"text": PROGRAMS["linear"], "part": "responses"})
    assert json.loads(page.answer(question)) == page.asked(PROGRAMS["linear"], "responses")


@pytest.mark.parametrize("path", [x for x in LINKED if x.name not in WITHOUT_PROGRAM], ids=lambda x: x.name)
def test_a_page_with_a_program_links_to_it_and_it_derives(page: ModuleType, links: ModuleType, path: Path):
    found = links.linked_programs(path.read_text())
    assert found, f"{path.name} has no link to the page Try it"
    for text in found:
        assert "refusal" not in page.asked(text, "order-parameters")


def test_a_program_in_a_link_is_read_back(links: ModuleType):
    text = "program = 'γ₀ ~ ÿ?'\n"
    code = links.fragment(text).removeprefix("program=")
    assert not set(code) & set("+/=")
    assert urlsafe_b64decode(code + "=" * (-len(code) % 4)).decode() == text


def test_python_packages_are_pinned_by_version_and_hash():
    lines = module(TRY_IT / "build.py").pins().splitlines()
    assert [x.split("==")[0] for x in lines] == ["mpmath", "sympy"]
    assert all("--hash=sha256:" in x for x in lines)
    locked = json.loads((TRY_IT / "package-lock.json").read_text())["packages"]
    assert all("integrity" in x for name, x in locked.items() if name)


def test_home_page_and_readme_lead_to_the_page():
    assert "](try_it/index.md)" in (ROOT / "docs" / "index.md").read_text()
    assert "docs/try_it/index.md" in (ROOT / "README.md").read_text()
