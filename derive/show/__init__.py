"""LaTeX and text in the papers' notation."""

from derive.show.data import namespace
from derive.show.latex import PaperLatex, latex
from derive.show.notation import NOTATIONS, PAPERS, Notation, notation
from derive.show.render import render
from derive.show.tensor_programs import TensorProgram, tensor_program
from derive.show.text import PaperText, text

__all__ = [
    "NOTATIONS",
    "PAPERS",
    "Notation",
    "PaperLatex",
    "PaperText",
    "TensorProgram",
    "latex",
    "namespace",
    "notation",
    "render",
    "tensor_program",
    "text",
]
