"""Laws of modes are refused for theories of another kind of data or training than they describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sympy import Symbol, exp

from derive.errors import NotApplicable
from derive.scale.mellin import mode_sum
from derive.scale.modes import lazy_modes
from derive.scale.power_laws import fixed_data
from derive.scale.rich import rank_one
from tests.derive.once import mean_field, structured

y, x = Symbol("y", positive=True), Symbol("x", positive=True)


@pytest.mark.parametrize("law", [lazy_modes, rank_one])
@pytest.mark.parametrize(("data", "rule"), [("full-batch", "flow"), ("online", "gd")])
def test_laws_of_the_population_loss_refuse_samples(law: Callable[..., Any], data: str, rule: str) -> None:
    """The error of a mode is that without the noise of samples."""
    with pytest.raises(NotApplicable, match="trained on samples: derive it with data='population'"):
        law(mean_field(structured(data=data, rule=rule)))


def test_fixed_samples_need_a_flow() -> None:
    with pytest.raises(NotApplicable, match="that of a flow"):
        fixed_data(mean_field(structured(data="full-batch", noise=True)))


def test_a_term_with_an_exponential_and_a_pole_is_refused() -> None:
    """It has no Mellin transform of the two forms; at x = 50 the sum was 0.052 in place of 0.012."""
    for term in (exp(-y) / (1 + y), 1 / (1 + y) * exp(-2 * y)):
        with pytest.raises(NotApplicable, match="is not a sum of terms"):
            mode_sum(term, y, 2, 1, x)
