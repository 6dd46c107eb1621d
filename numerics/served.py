"""What the numeric commands compute so far.  `dmft derive` serves every experiment file; these do not yet.

Solving, simulating and verifying serve every network on fixed data and every linear one on random data.  What
else the commands do is there for plain networks: linear, fixed data, one output, no biases, no branch, unit
variance, equal widths, neither decay, momentum, temperature nor centring, and no test points.
"""

from __future__ import annotations

from collections.abc import Iterator

from numerics.errors import SpecError, value_to_toml
from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear
from numerics.experiment.schema import SECTIONS, Spec

PLAIN: dict[str, tuple[object, ...]] = {
    "data.kind": ("fixed",),
    "data.test_inputs": (None,),
    "data.test_kernel": (None,),
    "network.bias": (False,),
    "network.outputs": (1,),
    "network.branch": (None,),
    "network.init_variance": (1.0,),
    "network.width_ratio": (None,),
    "network.relative_widths": (None,),
    "network.width": (None,),
    "network.parametrization": ("mean-field",),
    "training.rule": ("gd", "flow"),
    "training.center": (False, None),
    "training.weight_decay": (0.0,),
    "training.momentum": (0.0,),
    "training.temperature": (0.0,),
}
"""The values of a plain network, for each key that has others."""

FIRST_STEP: dict[str, tuple[object, ...]] = {
    "data.kind": ("isotropic",),
    "network.outputs": (1,),
    "training.rule": ("gd", "sgd"),
}
"""The values of which the first step has a closed form."""

RESIDUAL: dict[str, tuple[object, ...]] = {
    "data.kind": ("fixed", "isotropic"),
    "network.bias": (False,),
    "training.rule": ("gd", "sgd"),
}
"""The values of which the limit of infinite depth is derived; the command itself asks for a branch."""

POPULATION: dict[str, tuple[object, ...]] = {
    "data.kind": ("isotropic",),
    "data.sample_ratio": (None,),
    "data.batch_ratio": (None,),
    "data.noise": (None, 0.0),
    "network.outputs": (1,),
    "network.branch": (None,),
    "training.rule": ("gd",),
    "training.center": (True,),
    "training.weight_decay": (0.0,),
    "training.momentum": (0.0,),
    "training.temperature": (0.0,),
}
"""The values of which the largest learning rate has a closed form."""

SERVED: dict[str, dict[str, tuple[object, ...]]] = {
    "dmft limits early-time": FIRST_STEP,
    "dmft limits depth": RESIDUAL,
    "dmft limits largest-rate": POPULATION,
    "dmft solve": {},
    "dmft simulate": {},
    "dmft verify": {},
    "dmft expand": {},
}
"""The values of keys that a command serves, where these are not all; other commands serve plain networks."""

NONLINEAR = ("dmft solve", "dmft simulate", "dmft verify", "dmft expand")
"""The commands that take any activation; others serve linear networks."""

NEEDED = {
    "gd": ("learning_rate", "steps"),
    "sgd": ("learning_rate", "steps"),
    "flow": ("time",),
    "power-law": ("capacity", "source", "modes"),
}
"""The numbers without which a rule or a kind of data cannot be computed."""


def require_served(experiment: Experiment, command: str) -> None:
    """Raises SpecError naming the first key whose value ``command`` (such as "dmft solve") does not serve.

    >>> from numerics.experiment import Experiment
    >>> require_served(Experiment.from_dict({"network": {"depth": 2, "bias": True}}), "dmft expand")
    Traceback (most recent call last):
    numerics.errors.SpecError: network.bias = true: is not served by `dmft expand` yet (accepted: false; ...)
    """
    for key, value, accepted in _unserved(experiment.spec, SERVED.get(command, PLAIN), command):
        raise SpecError(
            key, value, f"is not served by `{command}` yet", f"{accepted}; `dmft derive` derives it as it is"
        )


def require_numbers(experiment: Experiment, command: str = "") -> None:
    """Raises SpecError naming the first number or array that computing needs and deriving does not.

    ``dmft solve`` takes a residual network of symbolic depth, which it solves in the limit of infinite depth.

    >>> from numerics.experiment import Experiment
    >>> require_numbers(Experiment.from_dict({"network": {"depth": 2}}))
    Traceback (most recent call last):
    numerics.errors.SpecError: training.learning_rate: is missing; rule "gd" needs it (accepted: ...
    """
    spec = experiment.spec
    if command != "dmft solve" or spec.network.branch is None:
        _ = experiment.depth
    for key in NEEDED[spec.training.rule]:
        _require(spec, f"training.{key}", f'rule "{spec.training.rule}"')
    if spec.kind == "fixed":
        _ = experiment.kernel
    if spec.kind == "power-law":
        for key in NEEDED["power-law"]:
            _require(spec, f"data.{key}", 'data.kind = "power-law"')
        if spec.training.rule == "sgd":
            _require(spec, "data.batch", 'rule "sgd"')
            _require(spec, "network.width", 'rule "sgd"')


def is_plain(spec: Spec) -> bool:
    """Is it a linear network on fixed data without anything added?

    >>> from numerics.experiment import Experiment
    >>> is_plain(Experiment.from_dict({"network": {"depth": 2, "outputs": 3}}).spec)
    False
    """
    return next(_unserved(spec, PLAIN), None) is None


def is_plain_network(spec: Spec) -> bool:
    """Is it one, whether or not there are test points?"""
    return all(key.startswith("data.test_") for key, *_ in _unserved(spec, PLAIN))


def _unserved(
    spec: Spec, served: dict[str, tuple[object, ...]], command: str = ""
) -> Iterator[tuple[str, object, str]]:
    """Key, value and what would do, of everything that is not served."""
    for key, values in served.items():
        value = _value(spec, key)
        if value not in values:
            yield key, value, " or ".join(_words(x) for x in values if x is not None or len(values) == 1)
    if command not in NONLINEAR and not is_linear(spec.network.activation):
        yield "network.activation", spec.network.activation, '"linear"'


def _value(spec: Spec, path: str) -> object:
    section, _, key = path.partition(".")
    if path == "data.kind":
        return spec.kind
    if section == "data" and spec.data is None:
        return None
    return getattr(getattr(spec, section), key)


def _words(value: object) -> str:
    return "leaving it out" if value is None else value_to_toml(value)


def _require(spec: Spec, path: str, what: str) -> None:
    if _value(spec, path) is None:
        section, _, key = path.partition(".")
        accepted = SECTIONS[section].model_fields[key].description or ""
        raise SpecError(path, None, f"is missing; {what} needs it", accepted)
