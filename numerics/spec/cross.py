"""What the keys of an experiment file ask of each other.

Each check reads one aspect of a validated spec and raises `SpecError` at the first key that does not go with
another, naming the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numerics.errors import SpecError
from numerics.spec.sections import Section, Spec
from numerics.toml import value_to_toml

DATA_KEYS = {
    "fixed": ("inputs", "kernel", "targets", "test_inputs", "test_kernel", "test_targets"),
    "isotropic": ("sample_ratio", "batch_ratio", "noise"),
    "power-law": ("capacity", "source", "modes", "batch", "noise"),
}
"""The keys of [data] that each kind has."""

NETWORK_KINDS = {
    "bias": ("fixed",),
    "outputs": ("fixed", "isotropic"),
    "branch": ("fixed", "isotropic"),
    "init_variance": ("fixed",),
    "width_ratio": ("isotropic",),
    "relative_widths": ("fixed",),
    "width": ("power-law",),
}
"""The kinds of data that go with a key of [network] that is not at its default."""

STEPPED = ("learning_rate", "steps")
RULE_KEYS = {"gd": STEPPED, "sgd": STEPPED, "flow": ("time", "points", "grid")}
"""The keys of [training] that each rule has for itself."""


def check_together(spec: Spec) -> None:
    """All checks of keys against each other; raises SpecError."""
    _check_data(spec)
    _check_network(spec)
    _check_lists(spec)
    _check_residual(spec)
    _check_activation(spec)
    _check_parametrization(spec)
    _check_rule(spec)
    _check_batches(spec)
    _check_dynamics(spec)


def is_given(section: Section, key: str) -> bool:
    """Is the key there, with a value other than its default?"""
    return bool(getattr(section, key) != type(section).model_fields[key].default)


def _said(section: Section) -> Iterable[tuple[str, Any]]:
    """The keys that were written, with their values."""
    for key in type(section).model_fields:
        value = getattr(section, key)
        if key in section.model_fields_set and value is not None:
            yield key, value


def _kinds(kinds: Iterable[str]) -> str:
    return " or ".join(f'data.kind = "{kind}"' for kind in kinds)


def _check_data(spec: Spec) -> None:
    if spec.data is None:
        return
    for key, value in _said(spec.data):
        kinds = [kind for kind, keys in DATA_KEYS.items() if key in keys]
        if key != "kind" and spec.kind not in kinds:
            problem = f'belongs to {_kinds(kinds)}, but data.kind = "{spec.kind}"'
            own = ", ".join(DATA_KEYS[spec.kind])
            raise SpecError(f"data.{key}", value, problem, f"leaving it out; this kind has {own}")
    if spec.data.sample_ratio is not None and spec.data.batch_ratio is not None:
        raise SpecError(
            "data.batch_ratio",
            spec.data.batch_ratio,
            f"excludes data.sample_ratio = {spec.data.sample_ratio}",
            "sample_ratio (the same samples in each step), batch_ratio (new ones in each), or neither",
        )


def _check_network(spec: Spec) -> None:
    for key, kinds in NETWORK_KINDS.items():
        if is_given(spec.network, key) and spec.kind not in kinds:
            value = getattr(spec.network, key)
            default = type(spec.network).model_fields[key].default
            instead = "leaving it out" if default is None else value_to_toml(default)
            problem = f'belongs to {_kinds(kinds)}, but data.kind = "{spec.kind}"'
            raise SpecError(f"network.{key}", value, problem, f"{instead}, or {_kinds(kinds)}")


def _check_lists(spec: Spec) -> None:
    """Lists have one entry for each layer (init_variance: for each of L + 1 weights)."""
    depth = spec.network.depth
    for key, extra in (("init_variance", 1), ("width_ratio", 0), ("relative_widths", 0)):
        value = getattr(spec.network, key)
        if not isinstance(value, list):
            continue
        if isinstance(depth, str):
            problem = f'is a list, but network.depth = "{depth}"'
            instead = "leaving it out" if key == "relative_widths" else "one number"
            raise SpecError(f"network.{key}", value, problem, f"{instead}, or an integer network.depth")
        if len(value) != depth + extra:
            each = f"each of the {depth} hidden layers"
            each = f"each of W^0 ... W^{depth - 1} and the readout" if extra else each
            problem = f"has {len(value)} entries, but network.depth = {depth}"
            raise SpecError(f"network.{key}", value, problem, f"a list of {depth + extra}: one for {each}")


def _check_residual(spec: Spec) -> None:
    network = spec.network
    if network.branch is None:
        return
    for key in ("relative_widths", "width_ratio"):
        value = getattr(network, key)
        if isinstance(value, list):
            problem = (
                f"with network.branch = {network.branch}: the layers of a residual network are equally wide"
            )
            instead = "leaving it out" if key == "relative_widths" else "one number"
            raise SpecError(f"network.{key}", value, problem, f"{instead}, or no network.branch")


def _check_activation(spec: Spec) -> None:
    text = spec.network.activation
    if text == "linear":
        return
    from numerics.activation import is_linear

    if not is_linear(text) and spec.kind != "fixed":
        problem = f'with data.kind = "{spec.kind}": the theory of random data is that of linear networks'
        raise SpecError("network.activation", text, problem, '"linear", or data.kind = "fixed"')


def _check_parametrization(spec: Spec) -> None:
    network = spec.network
    size = network.width if spec.kind == "power-law" else network.width_ratio
    if network.parametrization == "mean-field" or (spec.kind == "power-law" and spec.training.rule == "sgd"):
        return
    if size is None:
        problem = "is lazy here: gamma0/sqrt(width) goes to zero, as the layers are infinitely wide"
        finite = '"mean-field" with a small network.gamma0; random data with network.width_ratio or width'
        raise SpecError("network.parametrization", network.parametrization, problem, finite)


def _check_rule(spec: Spec) -> None:
    """Refuses the keys of another rule."""
    training = spec.training
    for key, value in _said(training):
        rules = [rule for rule, keys in RULE_KEYS.items() if key in keys]
        if rules and training.rule not in rules:
            problem = f'belongs to rule "{rules[0]}", but training.rule = "{training.rule}"'
            own = ", ".join(RULE_KEYS[training.rule])
            raise SpecError(f"training.{key}", value, problem, f"leaving it out; use {own}")


def _check_batches(spec: Spec) -> None:
    """Rule "sgd" is a fresh batch at each step, and nothing else is."""
    rule, data = spec.training.rule, spec.data
    fresh = data is not None and (data.batch_ratio is not None or data.batch is not None)
    if rule == "sgd" and not fresh and spec.kind != "power-law":
        problem = "takes new samples at each step, but [data] has no batches"
        instead = (
            '"gd" or "flow"; or data.kind = "isotropic" with data.batch_ratio, or data.kind = "power-law"'
        )
        raise SpecError("training.rule", rule, problem, instead)
    if rule != "sgd" and fresh:
        why = "data.batch" if spec.kind == "power-law" else "data.batch_ratio"
        raise SpecError("training.rule", rule, f"with {why}, which takes new samples at each step", '"sgd"')
    if spec.training.loss == "sum" and spec.kind != "fixed":
        problem = f'with data.kind = "{spec.kind}", whose loss is the mean'
        raise SpecError("training.loss", "sum", problem, '"mean"')


def _check_dynamics(spec: Spec) -> None:
    """Decay, momentum and temperature, as far as they go together."""
    training = spec.training
    kept = training.momentum
    if kept == 0:
        return
    if training.rule != "flow" and kept >= 1:
        raise SpecError("training.momentum", kept, "must be less than 1", "a number >= 0 and < 1")
    if training.temperature > 0:
        problem = (
            f"with training.temperature = {training.temperature}: noise through a velocity is not derived"
        )
        raise SpecError("training.momentum", kept, problem, "0.0, or training.temperature = 0.0")
    if training.rule == "flow" and training.weight_decay > 0:
        problem = f"with training.weight_decay = {training.weight_decay} in a flow is not derived"
        raise SpecError("training.momentum", kept, problem, '0.0, or training.rule = "gd"')
