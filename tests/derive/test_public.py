"""Tests of the names of `import derive`, and of the cost of the import."""

from __future__ import annotations

import subprocess
import sys

import derive


def test_few_names_that_all_load() -> None:
    assert len(derive.__all__) <= 31
    assert all(getattr(derive, name) is not None for name in derive.__all__)
    assert dir(derive) == sorted(derive.__all__)


def test_the_import_loads_no_symbols() -> None:
    code = "import sys, derive; sys.exit(any(m in sys.modules for m in ('sympy', 'mpmath', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=".", check=False).returncode == 0
