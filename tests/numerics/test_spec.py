"""Tests of the whole contract of an experiment file: accepted keys, and contradictions between keys."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.numbers import require_numbers
from numerics.experiment.schema import SECTIONS, Solver, Spec, parse
from numerics.experiment.theory import program_of

Tables = dict[str, dict[str, Any]]

STEPS = {"learning_rate": 0.1, "steps": 5}
FIXED: Tables = {"network": {"depth": 3}, "data": {"kind": "fixed"}, "training": {"rule": "gd", **STEPS}}
FLOW: Tables = {"network": {"depth": 3}, "data": {}, "training": {"rule": "flow", "time": 2.0, "points": 5}}
FULL: Tables = {
    "network": {"depth": 2, "width_ratio": 1.0},
    "data": {"kind": "isotropic", "sample_ratio": 2.0, "noise": 0.1},
    "training": {"rule": "gd", **STEPS},
}
POPULATION: Tables = {**FULL, "data": {"kind": "isotropic"}}
ONLINE: Tables = {
    "network": {"depth": 2, "width_ratio": 1.0},
    "data": {"kind": "isotropic", "batch_ratio": 2.0},
    "training": {"rule": "sgd", **STEPS},
}
POWER: Tables = {
    "network": {"depth": 2, "width": 256},
    "data": {"kind": "power-law", "capacity": 1.5, "source": 1.0, "modes": 100, "batch": 8, "noise": 0.1},
    "training": {"rule": "sgd", **STEPS},
}
WIDE_POWER: Tables = {
    "network": {"depth": 2},
    "data": {"kind": "power-law", "capacity": 1.5, "source": 1.0, "modes": 100},
    "training": {"rule": "flow", "time": 10.0},
}
BASES = {
    "fixed": FIXED,
    "flow": FLOW,
    "full": FULL,
    "population": POPULATION,
    "online": ONLINE,
    "power": POWER,
    "wide power": WIDE_POWER,
}


def changed(base: str, changes: dict[str, Any]) -> Tables:
    """Return the tables of this base with dotted keys set; None drops a key."""
    tables = copy.deepcopy(BASES[base])
    for path, value in changes.items():
        section, _, key = path.partition(".")
        if value is None:
            tables[section].pop(key)
        else:
            tables.setdefault(section, {})[key] = value
    return tables


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    *((base, {}) for base in BASES),
    *((base, {"network.depth": "L"}) for base in BASES),
    *(("fixed", {"network.activation": name}) for name in ("relu", "gelu", "tanh(0.8*h)/0.8")),
    ("fixed", {"network.bias": True, "network.branch": 0.6, "network.init_variance": 2.0}),
    ("fixed", {"network.outputs": 10}),
    ("fixed", {"network.init_variance": [1.0, 2, 0.5, 1.0], "network.relative_widths": [1.0, 2.0, 0.5]}),
    ("fixed", {"training.weight_decay": 0.1, "training.momentum": 0.9, "training.loss": "sum"}),
    ("fixed", {"training.weight_decay": 0.1, "training.temperature": 0.1}),
    ("fixed", {"training.center": True}),
    ("fixed", {"training.rule": "flow", "training.learning_rate": None, "training.steps": None}),
    ("flow", {"training.momentum": 2.5}),
    ("flow", {"training.weight_decay": 1.0, "training.temperature": 1.0}),
    ("full", {"network.branch": 0.5, "network.outputs": 2, "training.center": True}),
    ("full", {"network.width_ratio": [1.0, 2.0], "network.parametrization": "ntk"}),
    ("full", {"network.width_ratio": None, "training.momentum": 0.5}),
    ("full", {"network.activation": "h"}),
    ("population", {"data.noise": 0.3}),
    ("power", {"network.parametrization": "ntk", "training.center": False, "training.temperature": 0.1}),
    ("power", {"data.capacity": None, "data.source": None, "network.width": None}),
]


@pytest.mark.parametrize(("base", "changes"), ACCEPTED)
def test_what_the_contract_has_is_accepted(base: str, changes: dict[str, Any]) -> None:
    experiment = Experiment.from_dict(changed(base, changes))
    assert experiment.samples is None
    assert Experiment.from_dict(experiment.spec.model_dump(exclude_unset=True)).spec == experiment.spec


NOT_TOGETHER: list[tuple[str, dict[str, Any], str, str]] = [
    ("fixed", {"data.sample_ratio": 2.0}, "data.sample_ratio", "inputs, kernel, targets"),
    ("fixed", {"data.noise": 0.1}, "data.noise", "inputs, kernel, targets"),
    ("fixed", {"data.modes": 5}, "data.modes", "inputs, kernel, targets"),
    ("full", {"data.inputs": "x.npy"}, "data.inputs", "sample_ratio, batch_ratio, noise"),
    ("full", {"data.capacity": 1.5}, "data.capacity", "sample_ratio"),
    ("power", {"data.batch_ratio": 1.5}, "data.batch_ratio", "capacity, source, modes, batch"),
    ("power", {"data.targets": "y.npy"}, "data.targets", "capacity, source, modes, batch"),
    ("full", {"data.batch_ratio": 1.0}, "data.batch_ratio", "sample_ratio"),
    ("full", {"network.activation": "tanh"}, "network.activation", '"linear"'),
    ("power", {"network.activation": "h**2"}, "network.activation", '"linear"'),
    ("full", {"network.bias": True}, "network.bias", "false"),
    ("power", {"network.outputs": 2}, "network.outputs", "1"),
    ("power", {"network.branch": 0.5}, "network.branch", "leaving it out"),
    ("full", {"network.init_variance": 2.0}, "network.init_variance", "1.0"),
    ("full", {"network.relative_widths": [1.0, 1.0]}, "network.relative_widths", 'data.kind = "fixed"'),
    ("fixed", {"network.width_ratio": 1.0}, "network.width_ratio", 'data.kind = "isotropic"'),
    ("power", {"network.width_ratio": 1.0}, "network.width_ratio", 'data.kind = "isotropic"'),
    ("fixed", {"network.width": 100}, "network.width", 'data.kind = "power-law"'),
    ("full", {"network.width": 100}, "network.width", 'data.kind = "power-law"'),
    (
        "full",
        {"network.parametrization": "ntk", "network.width_ratio": None},
        "network.parametrization",
        "width_",
    ),
    ("fixed", {"network.init_variance": [1.0, 1.0, 1.0]}, "network.init_variance", "list of 4"),
    ("fixed", {"network.init_variance": [], "network.depth": 1}, "network.init_variance", "positive"),
    ("fixed", {"network.init_variance": [1.0, -1.0, 1.0, 1.0]}, "network.init_variance", "positive"),
    ("fixed", {"network.relative_widths": [1.0]}, "network.relative_widths", "list of 3"),
    ("fixed", {"network.relative_widths": 1.0}, "network.relative_widths", "list of positive"),
    ("full", {"network.width_ratio": [1.0, 1.0, 1.0]}, "network.width_ratio", "list of 2"),
    ("full", {"network.width_ratio": [1.0, 1.0], "network.depth": "L"}, "network.width_ratio", "one number"),
    ("fixed", {"network.init_variance": [1.0], "network.depth": "L"}, "network.init_variance", "one number"),
    ("fixed", {"network.relative_widths": [1.0], "network.depth": "L"}, "network.relative_widths", "leaving"),
    ("full", {"network.width_ratio": [1.0, 2.0], "network.branch": 1.0}, "network.width_ratio", "one number"),
    (
        "fixed",
        {"network.relative_widths": [1.0, 2.0, 1.0], "network.branch": 1.0},
        "network.relative_widths",
        "network.branch",
    ),
    ("fixed", {"training.rule": "sgd"}, "training.rule", "batch_ratio"),
    ("full", {"training.rule": "sgd"}, "training.rule", "batch_ratio"),
    ("population", {"training.rule": "sgd"}, "training.rule", "batch_ratio"),
    ("online", {"training.rule": "gd"}, "training.rule", '"sgd"'),
    ("power", {"training.rule": "gd"}, "training.rule", '"sgd"'),
    ("wide power", {"network.parametrization": "ntk"}, "network.parametrization", "network.width"),
    (
        "online",
        {"training.rule": "flow", "training.learning_rate": None, "training.steps": None},
        "training.rule",
        '"sgd"',
    ),
    ("online", {"training.time": 1.0}, "training.time", "learning_rate, steps"),
    ("full", {"training.loss": "sum"}, "training.loss", '"mean"'),
    ("power", {"training.loss": "sum"}, "training.loss", '"mean"'),
    ("fixed", {"training.momentum": 1.0}, "training.momentum", "< 1"),
    ("fixed", {"training.momentum": -0.1}, "training.momentum", ">= 0"),
    ("flow", {"training.momentum": -0.1}, "training.momentum", ">= 0"),
    ("fixed", {"training.momentum": 0.5, "training.temperature": 0.1}, "training.momentum", "temperature"),
    ("flow", {"training.momentum": 0.5, "training.weight_decay": 0.1}, "training.momentum", '"gd"'),
    ("fixed", {"training.temperature": -1.0}, "training.temperature", ">= 0"),
    ("fixed", {"training.weight_decay": -1.0}, "training.weight_decay", ">= 0"),
    ("fixed", {"network.branch": 0.0}, "network.branch", "positive"),
    ("fixed", {"network.outputs": 0}, "network.outputs", ">= 1"),
    ("fixed", {"network.bias": 1}, "network.bias", "true or false"),
    ("power", {"network.width": 0}, "network.width", ">= 1"),
    ("power", {"network.width": 10.5}, "network.width", ">= 1"),
    ("power", {"data.batch": 0}, "data.batch", ">= 1"),
    ("power", {"data.capacity": 0.0}, "data.capacity", "positive"),
    ("power", {"data.noise": -0.1}, "data.noise", ">= 0"),
    ("full", {"data.sample_ratio": 0.0}, "data.sample_ratio", "positive"),
    ("full", {"network.width_ratio": 0.0}, "network.width_ratio", "positive"),
]


@pytest.mark.parametrize(("base", "changes", "key", "accepted"), NOT_TOGETHER)
def test_keys_that_do_not_go_together_are_named_with_what_would_do(
    base: str, changes: dict[str, Any], key: str, accepted: str
) -> None:
    tables = changed(base, changes)
    with pytest.raises(SpecError) as caught:
        parse(tables)
    section, _, name = key.partition(".")
    assert caught.value.key == key
    assert caught.value.value == tables[section].get(name)
    assert accepted in caught.value.accepted
    assert str(caught.value).startswith(f"{key} = ")


def test_what_is_spelt_out_at_its_default_is_the_same_program() -> None:
    plain = {
        "network.activation": "h",
        "network.bias": False,
        "network.outputs": 1,
        "network.init_variance": 1,
        "network.parametrization": "mean-field",
        "training.center": False,
        "training.momentum": 0.0,
    }
    for base in ("fixed", "flow"):
        bare, spelt = (Experiment.from_dict(changed(base, x)) for x in ({}, plain))
        assert program_of(spelt) == program_of(bare)


@pytest.mark.parametrize(
    ("base", "dropped", "key"),
    [
        ("fixed", "training.steps", "training.steps"),
        ("flow", "training.time", "training.time"),
        ("online", "training.learning_rate", "training.learning_rate"),
        *(("power", f"data.{key}", f"data.{key}") for key in ("capacity", "source", "modes", "batch")),
        ("power", "network.width", "network.width"),
    ],
)
def test_numbers_that_only_computing_needs(base: str, dropped: str, key: str) -> None:
    with pytest.raises(SpecError) as caught:
        require_numbers(Experiment.from_dict(changed(base, {dropped: None})))
    assert caught.value.key == key
    assert caught.value.accepted
    if base in ("online", "power"):
        require_numbers(Experiment.from_dict(BASES[base]))


def test_targets_have_a_column_for_each_output() -> None:
    tables = {"network": {"depth": 1, "outputs": 3}}
    experiment = Experiment.from_dict(tables, kernel=np.eye(2), targets=np.ones((2, 3)))
    assert experiment.targets.shape == (2, 3)
    for targets, outputs in (
        (np.ones((2, 2)), 3),
        (np.ones(2), 3),
        (np.ones((2, 3)), 1),
        (np.ones((2, 3, 1)), 3),
    ):
        with pytest.raises(SpecError) as caught:
            Experiment.from_dict(
                {"network": {"depth": 1, "outputs": outputs}}, kernel=np.eye(2), targets=targets
            )
        assert caught.value.key == "data.targets"
        assert "shape (2" in caught.value.problem
    with pytest.raises(SpecError, match=r"network\.outputs = 1"):
        experiment.replace({"network.outputs": None})


def test_arrays_do_not_go_with_random_data() -> None:
    for base in ("full", "power"):
        with pytest.raises(SpecError) as caught:
            Experiment.from_dict(BASES[base], kernel=np.eye(2), targets=np.ones(2))
        assert caught.value.key == "data.kind"
        for read in ("kernel", "targets", "inputs", "effective_rate"):
            with pytest.raises(SpecError, match=r"data\.kind"):
                getattr(Experiment.from_dict(BASES[base]), read)


def test_centring_is_the_default_of_power_law_data_only() -> None:
    for base in BASES:
        assert parse(BASES[base]).centered is base.endswith("power")
        assert parse(changed(base, {"training.center": True})).centered
        assert not parse(changed(base, {"training.center": False})).centered


KEYS = [f"{name}.{key}" for name, model in SECTIONS.items() for key in model.model_fields]
values = st.one_of(
    st.sampled_from(
        ["L", "isotropic", "power-law", "fixed", "sgd", "flow", "gd", "ntk", "tanh", "h**2", "sum"]
    ),
    st.booleans(),
    st.integers(-2, 4),
    st.floats(-1, 4),
    st.floats(),
    st.integers(),
    st.text(max_size=5),
    st.lists(st.integers(0, 3) | st.floats(0, 3), max_size=5),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(BASES)), st.dictionaries(st.sampled_from(KEYS), values, max_size=4))
def test_any_file_parses_or_is_refused_by_a_key_that_it_has(base: str, changes: dict[str, Any]) -> None:
    tables = changed(base, changes)
    found = outcome(tables)
    if isinstance(found, SpecError):
        assert found.accepted
        section, _, key = found.key.partition(".")
        assert not key or key in tables[section]
        assert found.value is not None
    else:
        assert parse(found.model_dump(exclude_unset=True)) == found


def outcome(tables: Tables) -> Spec | SpecError:
    try:
        return parse(tables)
    except SpecError as error:
        return error


@pytest.mark.parametrize(
    "keys", [{"method": "march!"}, {"sample": 3}, {"samples": 2.5}, {"accuracy": 2}, {"device": 0}], ids=str
)
def test_python_and_files_refuse_keys_of_the_solver_in_the_same_words(keys: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as in_file:
        parse({"network": {"depth": 1}, "solver": keys})
    with pytest.raises(SpecError) as in_python:
        Solver(**keys)
    assert str(in_python.value) == str(in_file.value)
    assert str(in_python.value).startswith(f"solver.{next(iter(keys))} = ")


def test_integers_of_numpy_are_integers() -> None:
    """They were refused as "must be a valid integer"."""
    network = {"depth": np.int64(2), "relative_widths": list(np.ones(2))}
    tables = {"network": network, "solver": {"seed": np.int64(3)}}
    spec = parse(tables)
    assert (spec.network.depth, spec.solver.seed, Solver(samples=np.int32(64)).samples) == (2, 3, 64)
