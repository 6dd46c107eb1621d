"""Text that reaches a builder is refused with its key, and never evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from derive.calculus.symbols import s, t
from derive.errors import ProgramError
from derive.program import GradientDescent
from tests.derive.once import convolution, depth_program, isotropic, mlp, recurrent, structured

BUILDERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "mlp": (
        lambda **o: mlp(2, **o),
        (
            *("outputs", "bias", "branch", "relative_widths", "init_variance"),
            *("weight_decay", "momentum", "temperature", "loss", "rule", "activation"),
        ),
    ),
    "convolution": (
        lambda **o: convolution(2, **({"positions": 3, "receptive": 1} | o)),
        ("positions", "receptive"),
    ),
    "isotropic": (
        lambda **o: isotropic(2, **o),
        ("noise", "branch", "widths", "outputs", "data", "parametrization", "rule"),
    ),
    "structured": (lambda **o: structured(2, **o), ("noise", "data", "rule")),
    "depth": (lambda **o: depth_program(3, **o), ("alpha", "gamma")),
    "recurrent": (lambda **o: recurrent(3, **o), ("init_variance", "bias", "branch")),
    "descent": (lambda **o: GradientDescent(**({"rate": 1} | o)).memory(t, s), ("rate", "decay")),
    "layers": (lambda depth: mlp(depth), ("depth",)),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_no_word_of_a_builder_is_evaluated(name: str, tmp_path: Path) -> None:
    build, keys = BUILDERS[name]
    for key in keys:
        with pytest.raises(ProgramError, match=key):
            build(**{key: f"__import__('pathlib').Path({str(tmp_path / key)!r}).touch()"})
        assert not (tmp_path / key).exists()
