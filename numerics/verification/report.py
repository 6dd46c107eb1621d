"""Results of a verification: checks with observed, expected and allowed values, as text and as HTML.

The HTML page needs no other file. It contains checks, figure, equations, settings, the command that repeats
the verification, and citations.  Formulas are MathML, which browsers show without a script.
"""

from __future__ import annotations

import io
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from derive.ledger import citation
from derive.linear.form import LinearForm
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPS = float(np.finfo(np.float64).eps)

LEVEL = 1e-3
"""Probability that a correct theory fails one of the comparisons with standard errors."""


@dataclass(frozen=True)
class Check:
    """A test of one number: it passes if `observed` is within `allowed` of `expected`.

    Attributes
    ----------
    group : str
        Kind of the check, for example ``"solution"`` or ``"networks"``.
    name : str
        The number that is tested.
    observed : float
        Its observed value.
    expected : float
        Its expected value, in the same units.
    allowed : float
        Largest allowed deviation, in the same units.
    basis : str
        A few words on the origin of `allowed` (or of `error`).
    error : float or None
        Standard error of a Monte Carlo estimate, None for other numbers.
    upper : bool
        Whether the observed value must only not exceed `expected` + `allowed`, so that lower values pass.

    Examples
    --------
    >>> Check("identities", "H is symmetric", 1e-16, 0.0, 1e-13, "rounding").passed
    True
    >>> Check("expansion", "exponent", float("nan"), 4.0, 0.2, "fit").passed
    False
    """

    group: str
    name: str
    observed: float
    expected: float
    allowed: float
    basis: str
    error: float | None = None
    upper: bool = False

    @property
    def passed(self) -> bool:
        """Whether the observed value is within the allowed deviation; a NaN is not."""
        difference = self.observed - self.expected
        return bool((difference if self.upper else abs(difference)) <= self.allowed)

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Texts of the table's columns: ok or FAIL, name, observed (with its error), expected and allowed.

        With ``upper`` the expected text is "<" and the largest value that passes, and the allowed text is
        empty.
        """
        expected, allowed = _number(self.expected), f"{self.allowed:.2g}"
        if self.upper:
            expected, allowed = f"< {self.expected + self.allowed:.3g}", ""
        observed = _number(self.observed)
        if self.error is not None:
            observed += f" +- {self.error:.1e}" if self.error < 1e-4 else f" +- {self.error:.2g}"
        return "ok" if self.passed else "FAIL", self.name, observed, expected, allowed

    def as_dict(self) -> dict[str, Any]:
        """Return the check as a dictionary for JSON.

        Returns
        -------
        dict
            The attributes and ``passed``; NaN and infinite numbers, which JSON does not have, are None.
        """
        fields = {**asdict(self), "passed": self.passed}
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in fields.items()
        }


WIDTH = 110
"""Number of columns at which the notes of a table of checks are wrapped."""


@dataclass(frozen=True)
class Report:
    """All checks of one experiment.

    Attributes
    ----------
    title : str
        The network, its data and its training.
    checks : tuple of Check
        The checks, in the order of their groups.
    notes : tuple of str
        Explanations of the bounds, and of checks that were left out.
    equations : str
        The equations of the theory as text.
    folder : pathlib.Path or None
        The folder that was written, if any.
    wall_time_s : float
        Duration of the verification in seconds.
    """

    title: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    equations: str = ""
    folder: Path | None = None
    wall_time_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether there are checks, and all of them passed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    def table(self) -> str:
        """Return the checks as an aligned table.

        Returns
        -------
        str
            The title, the verdict, a row for each check, which ends with the basis of the allowed deviation,
            and the notes, whose lines are wrapped at 110 columns.
        """
        lines = [self.title, self.verdict, ""]
        head = f"{'':<4} {'':<38} {'observed':>19} {'expected':>11} {'allowed':>8}"
        for group in dict.fromkeys(check.group for check in self.checks):
            rows = [check for check in self.checks if check.group == group]
            lines += [group + head[len(group) :], *(_row(check) for check in rows), ""]
        notes = [fill(x, WIDTH) if len(x) > WIDTH else x for note in self.notes for x in note.split("\n")]
        return "\n".join([*lines, *notes]).rstrip()

    __str__ = table

    def _repr_html_(self) -> str:
        """Return title, verdict and table as HTML for a notebook."""
        return fragment(self)

    @property
    def verdict(self) -> str:
        """One sentence: how many checks passed, or which failed."""
        if not self.checks:
            return "FAILED: nothing was checked"
        count, time = len(self.checks), f" in {self.wall_time_s:.0f} s" if self.wall_time_s else ""
        if self.passed:
            return f"all {count} checks passed{time}"
        names = [check.name for check in self.failed]
        names[3:] = [f"and {len(names) - 3} more"] if len(names) > 3 else []
        return f"FAILED: {len(self.failed)} of {count} checks{time}: {'; '.join(names)}"


def _row(check: Check) -> str:
    """Return the row of a check in the text table."""
    verdict, name, observed, expected, allowed = check.cells
    return f"{verdict:<4} {name:<38} {observed:>19} {expected:>11} {allowed:>8}  {check.basis}".rstrip()


def _number(value: float) -> str:
    """Return a number as text with at most five digits; integers below a million keep all digits."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or (value == round(value) and abs(value) < 1e6):
        return f"{value:.0f}"
    if abs(value) < 1e-4:
        return f"{value:.2e}" if abs(value) > 1e-6 else f"{value:.0e}"
    return f"{value:.5g}" if abs(value) < 1e6 else f"{value:.4g}"


# -- title -------------------------------------------------------------------------------------------------


def title(source: Problem | Experiment) -> str:
    """Return network, data and training of a problem in words, with their numbers.

    Constants of entrywise rules, such as beta1, and numbers of the solver are left out. The title of a
    program has its name and its numbers.

    >>> from numerics.experiment import Experiment
    >>> data = {"kind": "isotropic", "sample_ratio": 2.0, "noise": 0.1}
    >>> training = {"learning_rate": 0.1, "steps": 5}
    >>> print(title(Experiment.from_dict({"network": {"depth": 2}, "data": data, "training": training})))
    deep linear network: L = 2 hidden layers, gamma0 = 1, infinitely wide
    isotropic data: P/D = 2, noise 0.1; 5 steps of gradient descent at rate 0.1
    """
    problem = Problem.of(source)
    experiment = problem.experiment
    if experiment is None:
        names = problem.author_names(k.name for k in problem.numbers)
        numbers = ", ".join(f"{k} = {v:g}" for k, v in zip(names, problem.numbers.values(), strict=True))
        unit = "time" if problem.flow else "step"
        return f"{problem.program.name}: {numbers}\nup to {unit} {problem.times[-1]:g}"
    apart = "\n" if experiment.spec.kind == "power-law" else "; "
    data = apart.join([_data(experiment), _training(experiment)])
    kind = "deep linear" if isinstance(problem.linear, LinearForm) else experiment.network.activation
    return f"{kind} network: {', '.join(_network(experiment))}\n{data}"


def _network(experiment: Experiment) -> list[str]:
    """Return phrases for the title of a report that describe the network.

    They hold depth, gamma0, other keys that differ from their default values, and on random data the width.
    """
    network = experiment.network
    words = [f"L = {experiment.depth} hidden layers", f"gamma0 = {network.gamma0:g}"]
    words += ["biases"] if network.bias else []
    words += [f"{network.outputs} outputs"] if network.outputs > 1 else []
    words += [] if network.branch is None else [f"branches {network.branch:g}"]
    words += [] if network.init_variance == 1.0 else [f"variances {_list(network.init_variance)}"]
    words += [] if network.relative_widths is None else [f"widths N times {_list(network.relative_widths)}"]
    if experiment.spec.kind == "isotropic":
        wide = network.width_ratio is None
        words += ["infinitely wide"] if wide else [f"N/D = {_list(network.width_ratio)}"]
    if experiment.spec.kind == "power-law":
        words += ["infinitely wide"] if network.width is None else [f"N = {network.width}"]
    return words + (["NTK scaling"] if network.parametrization == "ntk" else [])


def _data(experiment: Experiment) -> str:
    """Return a phrase that describes the data: numbers of samples, or the statistics of random data."""
    data = experiment.data
    if experiment.spec.kind == "fixed" or data is None:
        held = experiment.held_out
        words = "" if held is None else f" and {len(held)} test points"
        return f"P = {len(experiment.targets)} samples{words}"
    noise = f", noise {data.noise:g}" if data.noise else ""
    if experiment.spec.kind == "power-law":
        size = "the population" if data.batch is None else f"batches of {data.batch}"
        law = f"{data.modes} modes, capacity {data.capacity:g}, source {data.source:g}"
        return f"power-law data: {law}; {size}{noise}"
    size = "the population"
    if data.sample_ratio is not None:
        size = f"P/D = {data.sample_ratio:g}"
    if data.batch_ratio is not None:
        size = f"new batches, B/D = {data.batch_ratio:g}"
    return f"isotropic data: {size}{noise}"


RULES = {
    **dict.fromkeys(("gd", "sgd", "flow"), "gradient descent"),
    "sign": "sign descent",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "lion": "Lion",
}
"""Training rules in words."""


def _text(value: float | str) -> str:
    """Return a number as text; a schedule, an expression in t, is text already."""
    return value if isinstance(value, str) else f"{value:g}"


def _training(experiment: Experiment) -> str:
    """Return a phrase that describes the training: rule, rate, and decay, momentum and noise if given."""
    training = experiment.training
    words = [f"{training.steps} steps of {RULES[training.rule]} at rate {_text(training.learning_rate or 0)}"]
    if training.rule == "flow":
        words = [f"gradient flow up to time {training.time:g}"]
    words += [f"decay {_text(training.weight_decay)}"] if training.weight_decay else []
    words += [f"momentum {_text(training.momentum)}"] if training.momentum else []
    words += [f"temperature {_text(training.temperature)}"] if training.temperature else []
    return ", ".join(words + (["centred"] if experiment.spec.centered else []))


def _list(value: object) -> str:
    """Return a number, or the numbers of a list, as text."""
    return ", ".join(f"{x:g}" for x in value) if isinstance(value, list) else f"{value:g}"


# -- HTML page ----------------------------------------------------------------------------------------------

DISPLAY = re.compile(r"(\\begin\{(align\*?|gather\*?|equation\*?)\}.*?\\end\{\2\})", re.DOTALL)
COMMENT = re.compile(r"(?<!\\)%[^\n]*")
NAMED = re.compile(r"\\begin\{[a-z*]+\} *% *(.*)\n")

PROVENANCE = ("version", "libraries", "data_sha256")
"""Attributes of results with the versions of the programs and the hash of the data."""

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
    r"""Return LaTeX displays as MathML; a comment after ``\begin{...}`` becomes the heading of its display.

    Text outside of displays is left out. A display that cannot be converted is shown as LaTeX.

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
        except Exception:  # the converter may refuse names of a program; the page is written nevertheless
            formula = f"<pre>{escape(plain)}</pre>"
        lines.append(f'<div class="wide">{formula}</div>')
    return "\n".join(lines)


def checks_table(report: Report) -> str:
    """Return the checks as an HTML table, in the order of their groups; rows of failed checks are marked.

    >>> print(checks_table(Report("a network", (Check("solution", "loss", 1.0, 1.0, 1e-15, "rounding"),))))
    <div class="wide"><table>
    <tr><th></th><th>solution</th><th>observed</th><th>expected</th><th>allowed</th><th></th></tr>
    <tr class="ok"><td>ok</td><td>loss</td><td>1</td><td>1</td><td>1e-15</td><td>rounding</td></tr>
    </table></div>
    """
    rows, group = [], ""
    for check in report.checks:
        if check.group != group:
            group = check.group
            rows.append(_cells("th", "", group, "observed", "expected", "allowed", ""))
        rows.append(_cells("td", *check.cells, check.basis, mark="ok" if check.passed else "failed"))
    return '<div class="wide"><table>\n' + "\n".join(rows) + "\n</table></div>"


def fragment(report: Report) -> str:
    """Return title, verdict and checks as HTML without a document around them."""
    head, *more = report.title.splitlines()
    lines = [f"<h1>{escape(head)}</h1>", *(f"<p>{escape(x)}</p>" for x in more)]
    lines.append(f'<p class="{"passed" if report.passed else "failed"}">{escape(report.verdict)}</p>')
    return "\n".join([*lines, checks_table(report)])


def _cells(cell: str, *texts: str, mark: str = "") -> str:
    """Return a row of an HTML table with one cell for each text.

    ``cell`` is the tag of the cells, "th" or "td", and ``mark`` the class of the row.
    """
    cells = "".join(f"<{cell}>{escape(x)}</{cell}>" for x in texts)
    return f'<tr class="{mark}">{cells}</tr>' if mark else f"<tr>{cells}</tr>"


def page(
    report: Report,
    latex: str,
    theory: xr.Dataset,
    networks: xr.Dataset | None = None,
    figure: Figure | None = None,
    papers: tuple[str, ...] = (),
) -> str:
    """Return the complete HTML page of a report.

    ``latex`` holds the equations as LaTeX displays (:func:`mathml`). Settings and versions are read from
    the attributes of ``theory`` and ``networks``.  ``papers`` are the keys of the papers to cite.
    """
    parts = [
        fragment(report),
        f"<pre>{escape(chr(10).join(x for x in report.notes if x))}</pre>",
        *([] if figure is None else ["<h2>Figure</h2>", _svg(figure)]),
        "<h2>Equations</h2>",
        mathml(latex),
        "<h2>Settings</h2>",
        _repeat_command(theory.attrs),
        _defined(_settings(theory, networks)),
        "<h2>To cite</h2>",
        "<p>The papers whose theory was used, and dmft-derive (CITATION.cff):</p>",
        "<ul>" + "".join(f"<li>{escape(citation(x))}</li>" for x in papers) + "</ul>",
    ]
    return HTML.format(escape(report.title.splitlines()[0]), STYLE, "\n".join(parts))


def _svg(figure: Figure) -> str:
    """Return a figure as an SVG element, without date and program; ids in its text are random."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _repeat_command(attrs: Mapping[str, Any]) -> str:
    """Return as HTML the command that repeats the verification; ``attrs`` are attributes of the solution."""
    if not attrs.get("spec"):
        return "<p>The problem was given as a program, with the numbers in the title.</p>"
    spec = escape(str(attrs["spec"]))
    given = tomllib.loads(str(attrs["spec"]))
    if "program" in given:
        options = [f"-D {name}={file}" for name, file in given["data"].items()]
        options += [f"--set {key}={value}" for key, value in given["settings"].items()]
        command = " ".join(["dmft verify", str(given["program"]), *options, "-o DIR"])
        return f"<p>In the folder of the program: <code>{escape(command)}</code>.</p>"
    words = "Save this as experiment.toml beside its arrays, then"
    return f"<p>{words} <code>dmft verify experiment.toml -o DIR</code>.</p>\n<pre>{spec}</pre>"


def _settings(theory: xr.Dataset, networks: xr.Dataset | None) -> dict[str, str]:
    """Return rows for the table of settings of the HTML page, texts by label.

    They are versions, the hash of the input arrays, and for theory and networks the method with its numbers
    of samples, widths and seeds.
    """
    words = {key: str(theory.attrs[key]) for key in PROVENANCE if key in theory.attrs}
    for name, result in (("theory", theory), ("networks", networks)):
        attributes = {} if result is None else result.attrs
        settings = [
            f"{key} {_joined(attributes[key])}"
            for key in ("widths", "seeds", "samples", "seed")
            if key in attributes
        ]
        if "method" in attributes:
            words[name] = ", ".join([str(attributes["method"]), *settings])
    return words


def _joined(value: Any) -> str:
    """Return a value, or the values of a sequence, as text."""
    return " ".join(map(str, value)) if hasattr(value, "__len__") else str(value)


def _defined(words: Mapping[str, str]) -> str:
    """Return texts by label as an HTML definition list."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in words.items()) + "</dl>"
