"""Samples that count by weights: test points are samples that count nothing."""

from __future__ import annotations

from sympy import Expr, Function

from derive.program.program import Program
from derive.program.words import mu

SAMPLE_WEIGHT = "rho"
"""How much the loss of a sample counts, a function of the sample; zero for a test point."""


def weight_of_sample() -> Expr:
    """``rho(mu)``."""
    return Function(SAMPLE_WEIGHT)(mu)


def has_sample_weights(program: Program) -> bool:
    """Do the samples of the program count by weights?

    >>> from derive.program import mlp
    >>> has_sample_weights(mlp(2)), has_sample_weights(mlp(2, sample_weights=True))
    (False, True)
    """
    return SAMPLE_WEIGHT in program.constants
