"""What the large-size limit makes of a program."""

from derive.meanfield.averages import Average, Response
from derive.meanfield.conditioning import mean_field
from derive.meanfield.theory import Equation, OrderParameter, Source, Term, Theory

__all__ = ["Average", "Equation", "OrderParameter", "Response", "Source", "Term", "Theory", "mean_field"]
