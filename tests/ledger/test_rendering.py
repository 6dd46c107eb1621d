"""The ledger as text, LaTeX and JSON."""

import json

import pytest

from derive.ledger import entries, find, render


def test_text_shows_number_verdict_reason_and_evidence() -> None:
    text = render([find("selfconsistent2023", "16")])
    assert "16" in text
    assert "wrong" in text
    assert "L(L+1)^2(L+2)/12" in text
    assert "shown by expansion:tangent_kernel_depth_coefficient" in text
    assert max(map(len, text.splitlines())) <= 110


def test_full_text_shows_the_four_of_a_finding_and_why() -> None:
    lines = render([find("linear2025", "105 text")], full=True).splitlines()
    words = [line.split(":")[0].strip() for line in lines if line.startswith("    ") and ":" in line]
    assert [x for x in words if x in ("printed", "true", "apart", "again", "why")] == [
        "printed",
        "true",
        "apart",
        "again",
        "why",
    ]
    assert any("dmft ledger linear2025 '105 text' --check" in line for line in lines)


def test_latex_wraps_displays_of_several_lines_and_escapes_prose() -> None:
    latex = render([find("selfconsistent2023", n) for n in ("F.2", "F.13", "Table 1")], "latex")
    assert latex.count(r"\begin{gathered}") == 1
    assert latex.count(r"\begin{array}") == 1
    assert latex.startswith(r"\begin{longtable}")
    assert r"A\_mu" in latex


def test_json_carries_every_field() -> None:
    rows = json.loads(render(entries(), "json"))
    assert len(rows) == len(entries())
    assert set(rows[0]) == {
        "source",
        "number",
        "title",
        "printed",
        "correct",
        "claim",
        "copy",
        "derived",
        "verdict",
        "why",
        "evidence",
    }


def test_nothing_renders_as_an_empty_table_and_an_unknown_format_is_refused() -> None:
    assert render([]) == ""
    assert json.loads(render([], "json")) == []
    with pytest.raises(ValueError, match="html"):
        render([], "html")
