"""LaTeX and text in the papers' notation, and the model of a document that is written in them."""

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
