"""A verification as one page of HTML that needs nothing else: verdict, figure, checks, equations, settings,
how to make it again and what to cite.  Formulas are set as MathML, which browsers show without a script.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import xarray as xr

from derive.ledger import citation
from numerics.verification.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISPLAY = re.compile(r"(\\begin\{(align\*?|gather\*?|equation\*?)\}.*?\\end\{\2\})", re.DOTALL)
COMMENT = re.compile(r"(?<!\\)%[^\n]*")
NAMED = re.compile(r"\\begin\{[a-z*]+\} *% *(.*)\n")

PROVENANCE = ("version", "libraries", "data_sha256")
"""Attributes of results that say what computed them, and from what."""

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; color: #222; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2rem; }
h3 { font-size: 1rem; }
.passed { color: #00694a; } .failed { color: #a83200; font-weight: bold; }
.wide { overflow: auto hidden; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 0.15rem 0.7rem 0.15rem 0; text-align: right; white-space: nowrap; }
td:nth-child(-n + 2), th:nth-child(-n + 2), td:last-child, th:last-child { text-align: left; }
tr.failed td { background: #fbe9e2; }
math { font-size: 1.05em; }
mtd { text-align: left; padding-block: 0.25em; } mtd:first-child { text-align: right; }
[mathvariant^="bold"] { font-weight: bold; }
pre { background: #f4f4f4; padding: 0.7rem; overflow-x: auto; } svg { max-width: 100%; height: auto; }
dt { font-weight: bold; } dd { margin-left: 1rem; overflow-wrap: anywhere; }
"""


HTML = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{}</title><style>{}</style></head>
<body>
{}
</body></html>
"""


def mathml(latex: str) -> str:
    r"""Displays of LaTeX as MathML, each under the name that a comment after its ``\begin`` gives it.

    >>> print(mathml(r"\begin{align*} % Outputs" "\n" r"f &= 1 \end{align*}")[:62])
    <h3>Outputs</h3>
    <div class="wide"><math xmlns="http://www.w3.
    """
    from latex2mathml.converter import convert

    lines = []
    for display, _ in DISPLAY.findall(latex):
        if name := NAMED.match(display):
            lines.append(f"<h3>{escape(name[1].strip())}</h3>")
        plain = COMMENT.sub("", display)
        try:
            formula = convert(plain, display="block")
        except Exception:  # names of one's own may be more than it reads, and the page must come all the same
            formula = f"<pre>{escape(plain)}</pre>"
        lines.append(f'<div class="wide">{formula}</div>')
    return "\n".join(lines)


def table(report: Report) -> str:
    """The checks, in the order of their groups; those that failed are marked.

    >>> from numerics.verification.report import Check
    >>> print(table(Report("a network", (Check("solution", "loss", 1.0, 1.0, 1e-15, "rounding"),))))
    <div class="wide"><table>
    <tr><th></th><th>solution</th><th>observed</th><th>expected</th><th>allowed</th><th></th></tr>
    <tr class="ok"><td>ok</td><td>loss</td><td>1</td><td>1</td><td>1e-15</td><td>rounding</td></tr>
    </table></div>
    """
    rows, group = [], ""
    for check in report.checks:
        if check.group != group:
            group = check.group
            rows.append(_row("th", "", group, "observed", "expected", "allowed", ""))
        rows.append(_row("td", *check.cells, check.basis, mark="ok" if check.passed else "failed"))
    return '<div class="wide"><table>\n' + "\n".join(rows) + "\n</table></div>"


def fragment(report: Report) -> str:
    """What was verified, the verdict and the checks."""
    head, *more = report.title.splitlines()
    lines = [f"<h1>{escape(head)}</h1>", *(f"<p>{escape(x)}</p>" for x in more)]
    lines.append(f'<p class="{"passed" if report.passed else "failed"}">{escape(report.verdict)}</p>')
    return "\n".join([*lines, table(report)])


def _row(cell: str, *texts: str, mark: str = "") -> str:
    said = "".join(f"<{cell}>{escape(x)}</{cell}>" for x in texts)
    return f'<tr class="{mark}">{said}</tr>' if mark else f"<tr>{said}</tr>"


def page(
    report: Report,
    latex: str,
    theory: xr.Dataset,
    networks: xr.Dataset | None = None,
    figure: Figure | None = None,
    papers: tuple[str, ...] = (),
) -> str:
    """The whole page; ``theory`` and ``networks`` are asked for the settings and versions behind them alone.

    ``papers`` are those of the ledger whose theory it is.
    """
    parts = [
        fragment(report),
        f"<pre>{escape(chr(10).join(x for x in report.notes if x))}</pre>",
        *([] if figure is None else ["<h2>Figure</h2>", _svg(figure)]),
        "<h2>Equations</h2>",
        mathml(latex),
        "<h2>Settings</h2>",
        _again(theory.attrs),
        _listed(_settings(theory, networks)),
        "<h2>To cite</h2>",
        "<p>The papers whose theory was used, and dmft-derive (CITATION.cff):</p>",
        "<ul>" + "".join(f"<li>{escape(citation(x))}</li>" for x in papers) + "</ul>",
    ]
    return HTML.format(escape(report.title.splitlines()[0]), STYLE, "\n".join(parts))


def _svg(figure: Figure) -> str:
    """The figure as an element of the page, without date and program: equal figures, equal text."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _again(attrs: Mapping[str, Any]) -> str:
    if not attrs.get("spec"):
        return "<p>The problem was given as a program, with the numbers in the title.</p>"
    said = "Save this as experiment.toml beside its arrays, then"
    spec = escape(str(attrs["spec"]))
    return f"<p>{said} <code>dmft verify experiment.toml -o DIR</code>.</p>\n<pre>{spec}</pre>"


def _settings(theory: xr.Dataset, networks: xr.Dataset | None) -> dict[str, str]:
    """Versions, the hash of the arrays, and the method and seeds of the theory and of its networks."""
    words = {key: str(theory.attrs[key]) for key in PROVENANCE if key in theory.attrs}
    for name, result in (("theory", theory), ("networks", networks)):
        of = {} if result is None else result.attrs
        own = [f"{key} {_number(of[key])}" for key in ("widths", "seeds", "samples", "seed") if key in of]
        if "method" in of:
            words[name] = ", ".join([str(of["method"]), *own])
    return words


def _number(value: Any) -> str:
    return " ".join(map(str, value)) if hasattr(value, "__len__") else str(value)


def _listed(words: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in words.items()) + "</dl>"
