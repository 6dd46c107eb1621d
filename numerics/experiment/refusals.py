"""Refusals of reductions in the words of a file: the reason is the theory's, the key is the file's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from derive.errors import NotApplicable
from numerics.errors import SpecError, value_to_toml
from numerics.experiment.experiment import Experiment

T = TypeVar("T")


def served(
    experiment: Experiment, derive: Callable[[Experiment], T], what: str, wants: Mapping[str, object]
) -> T:
    """What ``derive`` gives; where a reduction does not apply, a refusal with its reason.

    ``what`` says in words what was asked for.  The key that the refusal names is the first of ``wants`` whose
    value in the file is another one than it says there, or than all that it says in a tuple.

    >>> def plain(e):
    ...     if e.network.bias: raise NotApplicable("biases add to every layer")
    >>> e = Experiment.without_arrays({"network": {"depth": 1, "bias": True}})
    >>> served(e, plain, "the example", {"network.bias": False})
    Traceback (most recent call last):
    numerics.errors.SpecError: network.bias = true: the example: biases add to every layer (accepted: false)
    """
    try:
        return derive(experiment)
    except NotApplicable as reason:
        for key, wanted in wants.items():
            value, good = _value(experiment, key), wanted if isinstance(wanted, tuple) else (wanted,)
            if value not in good and not (value is None and good[0] in (False, 0.0)):
                accepted = " or ".join("leaving it out" if x is None else value_to_toml(x) for x in good)
                raise SpecError(key, value, f"{what}: {reason}", accepted) from None
        depth, instead = experiment.network.depth, "a number" if experiment.symbolic else "another network"
        raise SpecError("network.depth", depth, f"{what}: {reason}", instead) from None


def _value(experiment: Experiment, path: str) -> object:
    section, _, key = path.partition(".")
    if path == "data.kind":
        return experiment.spec.kind
    return getattr(getattr(experiment.spec, section), key, None)


__all__ = ["served"]
