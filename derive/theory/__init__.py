"""What the large-size limit makes of a program."""

from derive.calculus.averages import Average, Response
from derive.theory.conditioning import mean_field
from derive.theory.data import Equation, OrderParameter, Source, Term
from derive.theory.theory import Theory
from derive.theory.unfold import gaussian, stein

__all__ = [
    "Average",
    "Equation",
    "OrderParameter",
    "Response",
    "Source",
    "Term",
    "Theory",
    "gaussian",
    "mean_field",
    "stein",
]
