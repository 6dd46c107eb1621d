r"""Answers of the page *Try it*: the theory of a program text, as JSON for the browser.

A question names a program text and a part: the single-site process, another part of the theory, the
check of both routes, or the expansion in gamma0. An answer holds LaTeX with titles, the terms of every
equation with their origin in words, or the sentence of a refusal with the line of the text that caused it.
The page runs this module in Pyodide, and tests run it in Python; it computes nothing by itself.
"""

from __future__ import annotations

import ast
import io
import json
import re
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from sympy import Expr

import derive
from derive.program import Program
from derive.show.arranged import with_distinct_variables
from derive.show.latex import PaperLatex
from derive.show.notation import Notation, notation
from derive.show.text import PaperText
from derive.theory import Theory, mean_field
from derive.theory.data import Equation, OrderParameter, Source
from derive.theory.document import headline
from derive.theory.tensor_programs import tensor_program

FILE = "<program>"
"""Name of the program text in tracebacks."""

NAME = "program"
"""Name that the text must give to its program."""

ORDER = 2
"""Highest power of gamma0 that the page expands to."""

PRINTED = 20_000
"""Characters of printed output that an answer keeps."""

DOCUMENT_PARTS = ("single-site", "order-parameters", "responses", "action")
"""Parts that :meth:`derive.theory.theory.Theory.render` knows."""

ENVIRONMENT = re.compile(
    r"\\begin\{align\*\} *(?:% *(?P<title>[^\n]*))?\n(?P<rows>.*?)\n\\end\{align\*\}", re.DOTALL
)
"""A display of several equations, with its title in a comment."""

Answer = dict[str, Any]


class _NoProgram(ValueError):
    """Error of a text that runs but does not give a program."""


@dataclass
class Derivation:
    """A program text with the program and the theory that it gives."""

    text: str
    program: Program
    theory: Theory
    printed: str = ""
    _notation: Notation = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._notation = notation(self.theory)

    @classmethod
    def of(cls, text: str) -> Derivation:
        """Run the text and derive the theory of its program."""
        printed = io.StringIO()
        names: dict[str, Any] = {"__name__": FILE}
        with redirect_stdout(printed):
            exec(compile(text, FILE, "exec"), names)
        program = _program_in(names)
        return cls(text, program, mean_field(program), printed.getvalue()[:PRINTED])

    def single_site(self) -> Answer:
        """Return the single-site process, with a description of the theory and the origin of every term."""
        return {
            "headline": headline(self.theory, PaperText(self._notation)),
            "symbols": list(self.theory.symbols),
            "version": version("dmft-derive"),
            "printed": self.printed,
            "explained": self.explained(),
            **self.document("single-site"),
        }

    def document(self, part: str) -> Answer:
        """Return a part of the theory as LaTeX and as titled displays."""
        if part == "tensor-program":
            return displays(tensor_program(self.theory).render("latex"), "Tensor program")
        return displays(self.theory.render(part, "latex"))  # type: ignore[arg-type]

    def check(self) -> Answer:
        """Derive the theory by both routes and return what was compared, in sentences."""
        found = derive.check_routes(self.program)
        sentences = ["The conditioning rule and the path integral give the same theory."]
        if found.gradients == "compared":
            sentences.append("Every update is the derivative of the loss in a network of two units.")
        else:
            sentences.append(f"Updates were not compared with derivatives of the loss: {found.gradients}.")
        if found.fluctuations == "compared":
            sentences.append("The exponent of one unit at finite width has the same theory as its saddle.")
        else:
            sentences.append(
                f"The exponent of one unit at finite width was not compared: {found.fluctuations}."
            )
        return {"sentences": sentences}

    def expansion(self) -> Answer:
        """Return the series in gamma0 up to the order of the page, with its conditions."""
        series = derive.expand(self.theory, derive.gamma0, ORDER)
        return {"conditions": list(series.conditions()), **displays(series.render("latex"), "Series in γ₀")}

    def explained(self) -> list[Answer]:
        """Return every equation with its terms, and every source and order parameter, with their origins."""
        theory = self.theory
        rows = [self._equation(e) for e in (*theory.equations, *theory.scalars, *theory.observables)]
        rows += [self._whole(u, "Gaussian source") for u in theory.sources]
        return rows + [self._whole(q, f"{q.kind} function") for q in theory.order_parameters]

    def _equation(self, e: Equation) -> Answer:
        written = with_distinct_variables([e.lhs, *(x.expr for x in e.terms)])
        terms = [
            {**self._written(y), "kind": x.kind, "explanation": self.theory.explain_term(x)}
            for x, y in zip(e.terms, written[1:], strict=True)
        ]
        return {"lhs": self._latex(written[0]), "relation": "=", "terms": terms}

    def _whole(self, item: Source | OrderParameter, kind: str) -> Answer:
        """Return a source or an order parameter as an equation of one term."""
        if isinstance(item, Source):
            lhs, value = (
                rf"\langle {self._latex(item.symbol)} {self._latex(item.partner)} \rangle",
                item.covariance,
            )
        else:
            lhs, value = self._latex(item.symbol), item.definition
        origin = self.theory.explain(item.name)
        return {
            "lhs": lhs,
            "relation": "=",
            "terms": [{**self._written(value), "kind": kind, "explanation": origin}],
        }

    def _written(self, e: Expr) -> dict[str, str]:
        return {"latex": self._latex(e), "text": str(PaperText(self._notation).doprint(e))}

    def _latex(self, e: Expr) -> str:
        return str(PaperLatex(self._notation).doprint(e))


def _program_in(names: dict[str, Any]) -> Program:
    """Return the program that a text has made, or raise with what it should have done."""
    if NAME not in names:
        there = [k for k, x in names.items() if isinstance(x, Program)]
        said = f"; it gives one the name {there[-1]}" if there else ""
        raise _NoProgram(
            f"the text gives no program the name `{NAME}`{said}; write {NAME} = network.train(loss, rule)"
        )
    found = names[NAME]
    if not isinstance(found, Program):
        kind = type(found).__name__
        raise _NoProgram(
            f"`{NAME}` is an object of type {kind}, not a program; Network.train(loss, rule) returns one"
        )
    return found


def displays(latex: str, title: str = "") -> Answer:
    r"""Return LaTeX as a whole and as a list of displays with titles.

    >>> found = displays("\\begin{align*} % Outputs\n  f &= 1\n\\end{align*}")
    >>> found["sections"]
    [{'title': 'Outputs', 'latex': '\\begin{align*}\n  f &= 1\n\\end{align*}'}]
    """
    sections = [
        {"title": x["title"] or title, "latex": f"\\begin{{align*}}\n{x['rows']}\n\\end{{align*}}"}
        for x in ENVIRONMENT.finditer(latex)
    ]
    return {"latex": latex, "sections": sections}


@lru_cache(maxsize=1)
def derivation_of(text: str) -> Derivation:
    """Return the derivation of a text; that of the last text is kept."""
    return Derivation.of(text)


def asked(text: str, part: str) -> Answer:
    r"""Return the answer to a question, or the refusal of the toolkit with its line.

    Parameters
    ----------
    text
        Python code that gives the name ``program`` to a program.
    part
        ``single-site``, ``order-parameters``, ``responses``, ``action``, ``tensor-program``, ``check`` or
        ``expansion``.

    Returns
    -------
    dict
        ``refusal`` with ``sentence``, ``kind`` and ``line`` (from 1; 0 without one), or what the part holds.

    Examples
    --------
    >>> asked("from derive.program import mlp\nprogram = mlp(-1)", "single-site")["refusal"]["line"]
    2
    """
    made = False
    try:
        found = derivation_of(text)
        made = True
        return _part(found, part)
    except Exception as refusal:
        return {"refusal": _refusal(refusal, text, of_text=not made)}


def _part(found: Derivation, part: str) -> Answer:
    special: dict[str, Callable[[], Answer]] = {
        "single-site": found.single_site,
        "check": found.check,
        "expansion": found.expansion,
    }
    return special[part]() if part in special else found.document(part)


def _refusal(error: Exception, text: str, *, of_text: bool) -> Answer:
    """Return the sentence of an error and the line of the text from which it comes."""
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return {"sentence": f"{kind}: {error.msg}", "kind": kind, "line": error.lineno or 0}
    sentence = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if not isinstance(error, _NoProgram) and not type(error).__module__.startswith("derive"):
        sentence = f"{kind}: {sentence}"
    lines = [x.lineno for x in traceback.extract_tb(error.__traceback__) if x.filename == FILE]
    line = (lines[-1] or 0) if lines else 0
    return {"sentence": sentence, "kind": kind, "line": line or (_line_of_program(text) if of_text else 0)}


def _line_of_program(text: str) -> int:
    """Return the line that gives a program its name, or the last line."""
    bound = [
        x.lineno
        for x in ast.walk(ast.parse(text))
        if isinstance(x, ast.Name) and x.id == NAME and isinstance(x.ctx, ast.Store)
    ]
    return bound[-1] if bound else max(1, len(text.rstrip().splitlines()))


def answer(question: str) -> str:
    """Return the answer to a question in JSON, ``{"text": ..., "part": ...}``, as JSON."""
    given = json.loads(question)
    return json.dumps(asked(given["text"], given["part"]))
