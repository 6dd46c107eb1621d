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

HEAD = r"""# Gallery

For readers who want to compare figures of three papers with the derived theories. The papers are
{{cite:t}}`linear2025`, {{cite:t}}`selfconsistent2023` and {{cite:t}}`depth2023`. {redone} of their figures
are computed again here. In most panels lines are the derived theory, and points are trained networks with
bars of one [standard error](../reference/glossary.md). Each figure has a script that runs from the
project's root:

    python docs/gallery/linear2025/figure_2.py [--full] [-o DIR] [--format svg]

The script draws the picture and prints its numbers: each with its error bar, the expected value, and the
distance of the two in error bars ("errors apart"). Then it prints the verdicts of the
[ledger](../ledger/index.md) on its entries about the figure. Without `--full` sizes are small, and a script
takes seconds. With `--full` sizes are nearer to those of the papers. Results are kept in
`out/gallery/kept`. They are not computed again while the sources and the settings are the same, unless
`--fresh` is given. Numbers and pictures below are those of the short form.

Symbols are those of [Conventions](../reference/conventions.md). Text writes `gamma0` for $\gamma_0$ and
`nu` for $\nu$. `beta` is the factor of the branch in residual networks (`beta0` is this factor times
$\sqrt L$), and on power-law data it is the exponent $b$ of the target.

An error bar is a standard error over networks or sampled paths, or an estimate of another error, or both
together. Other errors are those of a grid of rates, of an extrapolation, of the solution of the theory, and
of terms of order $1/N$. Each number has an allowed distance. Usually a correct theory exceeds the allowed
distance in at most one of a hundred repetitions (Sidak's bound for all compared values together). Some
numbers have a fixed allowed distance of three or five error bars. Of several compared values the page shows
the worst one, often a late one that is nearly zero.

- *agrees*: the number is within the allowed distance, and it is at least five error bars away from an
  alternative. The alternative is zero. Where zero is expected, the alternative is 1/2 for a power, and 1
  for an output.
- *not distinguished*: the number is within the allowed distance, and less than five error bars away from
  the alternative.
- *rejected*: the number is compared with a form that should be wrong, and is more than five error bars away
  from it (three in figure 7 of linear2025).

The tables name the entries of the ledger, each with its verdict: `10` is equation (10) of the paper, and
`14 text` is a statement in the text at equation (14). The last column is the processor time of the short
form.

`python docs/gallery/page.py` makes this page.
"""

TABLE = "| figure | first number of its list below | ledger | seconds |\n| --- | --- | --- | --- |"


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
