"""Mean-field theories of programs: equations of single units in the limit of infinite width.

`mean_field` derives them, and `Theory` holds, prints and compares them.
"""

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
