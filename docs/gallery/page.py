"""Page of the gallery, made from the records of its figures.

python docs/gallery/page.py                           draws every figure in short form, then writes the page
python docs/gallery/page.py linear2025/figure_2       draws one of them
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from gallery import HERE, Number, said_of

HEAD = """# Gallery

{redone} figures of the three papers, redone: the derived theory as lines, trained networks as points with
bars of one standard error. Each has a script that runs from the project's root,

    python docs/gallery/linear2025/figure_2.py [--full] [-o DIR] [--format svg]

draws the picture and prints its numbers: each with its error bar, the expected value, and their distance in
errors; then the verdicts of the [ledger](../ledger/index.md) on the entries about the figure. Without
`--full` sizes are small and a script takes seconds; with it they are nearer to the papers'. Results are
kept in `out/gallery/kept` and not computed twice. Numbers and pictures below are those of the short form.

A number *agrees* if a correct theory would deviate by as much once in a hundred times (Sidak's bound over
all compared values) and if it is at least five errors away from an alternative: from zero, or, where zero is
expected, from half a power or from the target. Otherwise it is *not distinguished* from the alternative: the
worst of the compared values is shown, often a late one that is nearly zero. A form is *rejected* at five
errors or more.

`python docs/gallery/page.py` makes this page.
"""

TABLE = "| figure | its first number | ledger | seconds |\n| --- | --- | --- | --- |"


def scripts() -> list[Path]:
    """Return the scripts of all figures, in the order of papers and figures."""
    return sorted(HERE.glob("*/figure_*.py"), key=lambda x: (x.parent.name, place(said_of(x)[1])))


def place(name: str) -> tuple[str, int]:
    """Return the sort key of a figure: figures of an appendix come last, and 10 comes after 9.

    >>> sorted(["A1", "10", "9"], key=place)
    ['9', '10', 'A1']
    """
    letters = name.rstrip("0123456789")
    return letters, int(name.removeprefix(letters))


def left_out() -> dict[str, dict[str, str]]:
    """Return the figures of each paper that are not redone, with the reasons."""
    return tomllib.loads((HERE / "left_out.toml").read_text(encoding="utf-8"))


def index() -> str:
    """Return the page: for each paper a table of its figures, then pictures with their numbers."""
    records = [json.loads(x.with_suffix(".json").read_text(encoding="utf-8")) for x in scripts()]
    lines = [HEAD.format(redone=len(records))]
    for paper in ("linear2025", "selfconsistent2023", "depth2023"):
        own = {r["figure"]: r for r in records if r["paper"] == paper}
        rows = {x: f"| {x} | not redone: {why} | | |" for x, why in left_out().get(paper, {}).items()}
        rows |= {x: row(r) for x, r in own.items()}
        lines += [f"## {{cite:t}}`{paper}`", "", TABLE, *(rows[x] for x in sorted(rows, key=place)), ""]
        for name, r in own.items():
            path = f"{paper}/figure_{name}"
            picture = f"![Figure {name} of {paper}]({path}.png)"
            lines += [f"### Figure {name} of {paper}", "", r["words"], "", picture, ""]
            lines += [*(f"- {told(x)}" for x in r["numbers"]), "", f"`python docs/gallery/{path}.py`", ""]
    return "\n".join(lines).rstrip() + "\n"


def row(record: dict[str, Any]) -> str:
    """Return the line of a figure in the table of its paper."""
    name, verdicts = record["figure"], [f"{x['number']}: {x['verdict']}" for x in record["ledger"]]
    link = f"[{name}](#figure-{name.lower()}-of-{record['paper']})"
    return f"| {link} | {told(record['numbers'][0])} | {'; '.join(verdicts)} | {record['seconds']:.0f} |"


def told(number: dict[str, Any]) -> str:
    """Return a number of a record as text, as the script prints it."""
    return str(Number(**{k: v for k, v in number.items() if k != "holds"}))


if __name__ == "__main__":
    for script in scripts():
        if len(sys.argv) == 1 or script.relative_to(HERE).with_suffix("").as_posix() in sys.argv[1:]:
            subprocess.run([sys.executable, str(script), "-o", str(script.parent)], check=True)
    (HERE / "index.md").write_text(index(), encoding="utf-8")
