"""One thread for linear algebra, unless the user asks for more.

A step of a march, or of a small network, is many matrix products that take microseconds each; a pool of
threads costs more time than it saves there (a factor of ten was measured on two shared cores). If one of the
usual environment variables is set, nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that set the number of threads."""

Arguments = ParamSpec("Arguments")
ReturnValue = TypeVar("ReturnValue")


def one_thread(function: Callable[Arguments, ReturnValue]) -> Callable[Arguments, ReturnValue]:
    """Return ``function`` run with one BLAS thread, unless one of VARIABLES is set when it is called.

    >>> one_thread(max)(1, 2)
    2
    """

    @wraps(function)
    def limited(*args: Arguments.args, **kwargs: Arguments.kwargs) -> ReturnValue:
        if any(os.environ.get(name) for name in VARIABLES):
            return function(*args, **kwargs)
        with threadpool_limits(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
