"""Numbers of users, also of NumPy, as exact expressions; what is not a number is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Matrix, Rational

from derive import ProgramError
from derive.calculus.intervals import POSITIVE, REAL
from derive.calculus.symbols import exact, expression
from derive.program.rules import GradientDescent


@pytest.mark.parametrize("kind", [float, np.float16, np.float32, np.float64, Rational])
def test_decimal_numbers_are_the_fractions_that_they_show(kind: Any) -> None:
    value = kind("0.1")
    assert exact("a_W", value) == expression(value) == Rational(1, 10)
    assert exact("a_W", np.int64(3)) == expression(np.int64(3)) == 3


@pytest.mark.parametrize("value", [True, False, np.True_, (1, 2), Matrix([1])])
def test_truth_values_and_tuples_are_not_numbers(value: Any) -> None:
    for interval in (REAL, POSITIVE):
        with pytest.raises(ProgramError, match=r"^rate = .*: must be a"):
            interval.require(value, "rate")
    with pytest.raises(ProgramError, match="rate of GradientDescent"):
        GradientDescent(value)
