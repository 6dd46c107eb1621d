"""Networks that people train, by the names that tables and benchmarks call them."""

from __future__ import annotations

from collections.abc import Callable

from tests.numerics.networks.case import Case

CASES: dict[str, Callable[[], Case]] = {}
"""Makers of the cases; each stands beside the tests of its network."""
