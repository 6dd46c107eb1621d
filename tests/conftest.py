"""What all tests share: no deadline in Hypothesis, one BLAS thread, evidence only when it is asked for."""

from __future__ import annotations

import time

import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

START = time.monotonic()

settings.register_profile("project", deadline=None)
settings.load_profile("project")

threadpool_limits(limits=1, user_api="blas")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seconds",
        type=float,
        metavar="N",
        help="skip the tests that have not begun N seconds after the start",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Evidence runs when it is asked for: by ``-m evidence``, by ``-k``, or by the id of a test."""
    if config.option.keyword or "evidence" in config.option.markexpr or any("::" in x for x in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("evidence")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("evidence")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    most = item.config.getoption("--seconds")
    if most is not None and time.monotonic() - START > most:
        pytest.skip(f"not begun within {most:g} s")
