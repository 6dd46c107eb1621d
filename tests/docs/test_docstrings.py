"""Tests of the check of docstrings of exported names; they need the packages of `.[dev]`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytestmark = pytest.mark.slow

EXT = Path(__file__).parents[2] / "docs" / "_ext"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    sys.path.insert(0, str(EXT))
    try:
        spec = importlib.util.spec_from_file_location("validated", EXT / "validated_docstrings.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXT))
    return module


def scaled(kernel: np.ndarray, factor: float) -> np.ndarray:
    """Return a kernel times a number.

    Parameters
    ----------
    kernel : array
        Kernel of the samples.

    Returns
    -------
    array
        The scaled kernel.
    """
    return kernel * factor


def test_a_missing_parameter_and_a_missing_shape_are_seen(check: ModuleType):
    said = " ".join(check.findings(f"{__name__}.scaled"))
    assert "{'factor'} not documented" in said
    assert '"kernel" is an array without a shape' in said


def test_every_package_that_exports_names_is_read(check: ModuleType):
    packages = {name.split(".")[1] for name in check.exported(EXT.parents[1])}
    assert packages >= {"theory", "program", "scale", "solver", "simulation"}
