"""Writing files so that none is ever half there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yields a name beside `path` to write to; moves it onto `path` at the end, or removes it on any failure.

    An interrupt is a failure too, and a file that stood at `path` before stays as it was until the move.
    The name keeps the suffix, by which some writers choose the format.
    """
    path = Path(path)
    beside = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
