"""LaTeX and text in the papers' notation."""

from derive.printing.data import namespace
from derive.printing.latex import PaperLatex, latex
from derive.printing.notation import NOTATIONS, PAPERS, Notation, notation
from derive.printing.render import render
from derive.printing.tensor_programs import TensorProgram, tensor_program
from derive.printing.text import PaperText, text

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
