"""Settings of all tests: no deadline in Hypothesis, one BLAS thread, a limit on the cost of unmarked tests.

An unmarked test may take `LIMIT` seconds of processor time with its child processes, each fixture of
its own as much again, and a fixture that a module shares `SHARED`. The limits hold on a machine that
does `computation` in `REFERENCE` seconds and are longer on a slower one. Tests that run side by side
(``--numprocesses``) share caches and memory, so that a call may take `BESIDE` times as long as alone. A
test that took longer is called again up to twice, and the last call counts, because theories that it
shares with others (`tests/derive/once.py`) are derived then; the first call may have taken `SHARED`
seconds. Repeated calls differ by a tenth, which must not decide.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import scipy.linalg  # noqa: F401  (loads its own BLAS, which the limit below must find)
from hypothesis import settings
from threadpoolctl import threadpool_limits

import tests.sympy_settings  # noqa: F401  (before SymPy itself)

LIMIT, SHARED = 1.0, 4.0
REFERENCE, BESIDE = 0.011, 2.0
FREE = ("slow", "evidence", "benchmark")
"""Marks of tests that may take as long as they need."""

SLOW_CASES = frozenset(Path(__file__).with_name("slow_cases.txt").read_text().splitlines())
"""Cases of parametrized tests that are marked slow; quicker cases of the same tests are not."""

START = time.monotonic()

settings.register_profile("project", deadline=None)
settings.load_profile("project")

threadpool_limits(limits=1, user_api="blas")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--seconds``."""
    words = "skip what has not begun N seconds after the start"
    parser.addoption("--seconds", type=float, metavar="N", help=words)
    parser.addoption("--untimed", action="store_true", help="tests may take as long as they need")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow cases; leave evidence out unless ``-m evidence``, ``-k`` or the id of a test asks for it."""
    for item in items:
        if item.nodeid in SLOW_CASES:
            item.add_marker("slow")
    if config.option.keyword or "evidence" in config.option.markexpr or any("::" in x for x in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("evidence")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("evidence")]


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(500_000)


def pytest_sessionfinish() -> None:
    """Skip the last garbage collection, which takes seconds."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that would begin after the time of ``--seconds``."""
    if too_late(item):
        pytest.skip(f"not begun within {item.config.getoption('--seconds'):g} s")


def too_late(item: pytest.Item) -> bool:
    """Return whether the seconds within which tests may begin have passed."""
    most = item.config.getoption("--seconds")
    return most is not None and time.monotonic() - START > most


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Collect garbage after slow tests, which leave gigabytes of arrays in few objects.

    Tests that were skipped are left out: a collection takes a tenth of a second.
    """
    if any(item.get_closest_marker(mark) for mark in FREE) and not too_late(item):
        gc.collect()


# -- cost of a test -------------------------------------------------------------------------------------


def spent() -> float:
    """Return the processor time in seconds of this process and of its children that have ended."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def computation() -> int:
    """Sort and sum numbers in tuples: a computation that uses memory and arithmetic as the tests do."""
    table = {(k % 97, k): str(k * k) for k in range(20_000)}
    return sum(len(table[key]) * key[0] for key in sorted(table))


def slowness() -> float:
    """Return how many times longer than `REFERENCE` the computation takes now: mean of three, at least 1."""
    before = time.process_time()
    for _ in range(3):
        computation()
    return max(1.0, (time.process_time() - before) / 3 / REFERENCE)


def judge(
    item: pytest.Item, seconds: float, most: float, what: str, again: Callable[[], object] | None = None
) -> None:
    """Fail if ``what`` took longer than ``most`` seconds, and took longer again in up to two more calls."""
    free = any(item.get_closest_marker(mark) for mark in FREE) or item.config.getoption("--untimed")
    free = free or sys.gettrace() is not None or getattr(item.config.option, "benchmark_enable", False)
    beside = BESIDE if "PYTEST_XDIST_WORKER" in os.environ else 1.0
    if free or seconds <= most * beside:
        return
    slow = slowness() * beside
    for _ in range(2):
        if again is not None and most * slow < seconds <= SHARED * slow:
            before = spent()
            again()
            seconds = spent() - before
    if seconds > most * slow:
        pytest.fail(
            f"{what} took {seconds:.2f} s of processor time, allowed are {most:g} s (and this machine is "
            f"{slow:.1f} times slower, or shared): make it smaller, or mark it slow and leave a smaller one",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True, trylast=True)  # within what captures the output, which a second call needs
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Measure the processor time of a test, and fail if it is above the limit."""
    before = spent()
    result = yield
    judge(item, spent() - before, LIMIT, "the test", item.runtest)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
    """Measure the processor time of a fixture, and fail if it is above the limit."""
    before = spent()
    result = yield
    most = LIMIT if fixturedef.scope == "function" else SHARED
    judge(request._pyfuncitem, spent() - before, most, f"the fixture {fixturedef.argname}")
    return result
