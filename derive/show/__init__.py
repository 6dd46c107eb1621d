"""LaTeX and plain text of equations in the papers' notation, and the sections of a printed document.

:func:`latex` and :func:`text` print single expressions. Theories and their fluctuations
(:mod:`derive.theory`) print themselves as lists of :class:`Section`.
"""

from derive.show.document import DisplayedEquation, Section
from derive.show.latex import PaperLatex, aligned_latex, latex
from derive.show.notation import NOTATIONS, PAPERS, Notation, notation
from derive.show.text import PaperText, text

__all__ = [
    "NOTATIONS",
    "PAPERS",
    "DisplayedEquation",
    "Notation",
    "PaperLatex",
    "PaperText",
    "Section",
    "aligned_latex",
    "latex",
    "notation",
    "text",
]
