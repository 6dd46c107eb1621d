"""Tests of experiment files: accepted ones, and refusals with the key, the value and a remedy."""

from __future__ import annotations

import copy
import pickle
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.numbers import require_numbers
from numerics.experiment.problem import Problem
from numerics.experiment.schema import SECTIONS

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

GD: dict[str, dict[str, Any]] = {
    "network": {"depth": 3},
    "data": {"inputs": "x.npy", "targets": "y.npy"},
    "training": {"rule": "gd", "learning_rate": 0.1, "steps": 5},
}
FLOW: dict[str, dict[str, Any]] = {**GD, "training": {"rule": "flow", "time": 2.0, "points": 5}}
DROP = object()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.standard_normal((4, 6)))
    np.save(tmp_path / "y.npy", np.array([1.0, -1.0, 1.0, -1.0]))
    return tmp_path


def changed(tables: dict[str, dict[str, Any]], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the tables with dotted keys set, or dropped."""
    tables = copy.deepcopy(tables)
    for path, value in changes.items():
        section, _, key = path.partition(".")
        if not key and value is DROP:
            del tables[section]
        elif not key:
            tables[section] = value
        elif value is DROP:
            del tables[section][key]
        else:
            tables.setdefault(section, {})[key] = value
    return tables


def refusal(tables: dict[str, Any], folder: Path) -> SpecError:
    with pytest.raises(SpecError) as caught:
        Experiment.from_dict(tables, folder=folder)
    return caught.value


BAD_VALUES = [
    ("network.depth", 0, ">= 1"),
    ("network.depth", -2, ">= 1"),
    ("network.depth", 2.0, "integer"),
    ("network.depth", True, "integer"),
    ("network.depth", "3", "integer"),
    ("network.depth", "M", '"L"'),
    ("network.activation", 3, '"linear"'),
    ("network.gamma0", 0.0, "positive"),
    ("network.gamma0", -1.0, "positive"),
    ("network.gamma0", "1.0", "positive"),
    ("network.gamma0", True, "positive"),
    ("network.gamma0", float("nan"), "positive"),
    ("network.gamma0", float("inf"), "positive"),
    ("network.bias", 0, "false"),
    ("network.outputs", 0, "1"),
    ("network.init_variance", [1.0, 2.0], "list of 4"),
    ("network.width_ratio", 1.0, "leaving it out"),
    ("network.relative_widths", [1.0, 0.5], "list of 3"),
    ("network.width", 256, "leaving it out"),
    ("network.parametrization", "standard", '"mean-field"'),
    ("data.kind", "other", '"fixed"'),
    ("data.sample_ratio", 2.0, "leaving it out"),
    ("data.capacity", 1.5, "leaving it out"),
    ("data.noise", 0.1, "leaving it out"),
    ("data.inputs", 3, ".npy"),
    ("training.rule", "sgd", '"flow"'),
    ("training.rule", 1, '"flow"'),
    ("training.learning_rate", -0.1, "positive"),
    ("training.learning_rate", 0, "positive"),
    ("training.learning_rate", "0.1", "positive"),
    ("training.learning_rate", float("nan"), "positive"),
    ("training.learning_rate", float("inf"), "positive"),
    ("training.steps", 0, ">= 1"),
    ("training.steps", -1, ">= 1"),
    ("training.steps", 10.0, ">= 1"),
    ("training.steps", True, ">= 1"),
    ("training.loss", "median", '"sum"'),
    ("training.time", 5.0, "learning_rate"),
    ("training.points", 50, "steps"),
    ("training.grid", "log", "steps"),
    ("solver.samples", 14, "even integer >= 16"),
    ("solver.seed", -1, ">= 0"),
    ("solver.seed", 0.5, ">= 0"),
    ("solver.rtol", 0.0, "between"),
    ("solver.rtol", 1.0, "between"),
    ("network", 3, "table"),
    ("training", [1], "table"),
]


@pytest.mark.parametrize(("key", "value", "accepted"), BAD_VALUES)
def test_a_bad_value_is_named_with_its_key_and_what_would_do(
    folder: Path, key: str, value: object, accepted: str
) -> None:
    error = refusal(changed(GD, {key: value}), folder)
    assert error.key == key
    assert error.value == value or value != value
    assert accepted in error.accepted
    assert str(error).startswith(f"{key} = ")
    assert str(error).endswith(f"(accepted: {error.accepted})")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.time", 0.0),
        ("training.time", -1.0),
        ("training.time", float("inf")),
        ("training.points", 1),
        ("training.grid", "cubic"),
        ("training.learning_rate", 0.1),
        ("training.steps", 3),
    ],
)
def test_bad_values_of_a_flow(folder: Path, key: str, value: object) -> None:
    error = refusal(changed(FLOW, {key: value}), folder)
    assert (error.key, error.value) == (key, value)


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        (changed(GD, {"network": DROP}), "network"),
        (changed(GD, {"network.depth": DROP}), "network.depth"),
        (changed(GD, {"data.targets": DROP}), "data.targets"),
        (changed(GD, {"data.inputs": DROP}), "data.inputs"),
    ],
)
def test_what_is_missing_is_named(folder: Path, tables: dict[str, Any], key: str) -> None:
    error = refusal(tables, folder)
    assert error.key == key
    assert error.accepted


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        (changed(GD, {"data": DROP}), "data"),
        (changed(GD, {"data": {}}), "data.inputs"),
        (changed(GD, {"training": DROP}), "training.learning_rate"),
        (changed(GD, {"training.steps": DROP}), "training.steps"),
        (changed(FLOW, {"training.time": DROP}), "training.time"),
        (changed(GD, {"network.depth": "L"}), "network.depth"),
    ],
)
def test_what_only_computing_needs_may_be_left_out_and_is_named_when_computing(
    folder: Path, tables: dict[str, Any], key: str
) -> None:
    experiment = Experiment.from_dict(tables, folder=folder)
    with pytest.raises(SpecError) as caught:
        require_numbers(experiment)
    assert caught.value.key == key
    assert caught.value.accepted


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("network.dept", "network.depth"),
        ("network.gamma", "network.gamma0"),
        ("training.learning-rate", "training.learning_rate"),
        ("network.learning_rate", "training.learning_rate"),
        ("solver.sed", "solver.seed"),
        ("trainning", "training"),
        ("depth", "network.depth"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(folder: Path, key: str, meant: str) -> None:
    error = refusal(changed(GD, {key: 1}), folder)
    assert error.key == key
    assert f"perhaps {meant} was meant" in str(error)


def test_a_key_like_no_other_is_refused_with_the_known_ones(folder: Path) -> None:
    error = refusal(changed(GD, {"solver.zzz": 1}), folder)
    assert error.problem == "unknown key"
    assert error.accepted == "samples, accuracy, seed, rtol, hours, device, method"


def test_a_misspelt_key_is_named_before_the_key_that_it_leaves_missing(folder: Path) -> None:
    error = refusal(changed(GD, {"network.depth": DROP, "network.deph": 3}), folder)
    assert error.key == "network.deph"


def test_inputs_and_kernel_exclude_each_other(folder: Path) -> None:
    error = refusal(changed(GD, {"data.kernel": "x.npy"}), folder)
    assert error.key == "data.inputs"
    assert "data.kernel" in str(error)


def test_inputs_whose_kernel_overflows_are_refused(folder: Path) -> None:
    np.save(folder / "x.npy", np.full((4, 2), 1e200))
    assert "overflows" in refusal(GD, folder).problem


@pytest.mark.parametrize("name", ["inputs", "targets"])
def test_a_missing_array_file_is_named_with_its_place(folder: Path, name: str) -> None:
    error = refusal(changed(GD, {f"data.{name}": "nowhere.npy"}), folder)
    assert (error.key, error.value) == (f"data.{name}", "nowhere.npy")
    assert str(folder / "nowhere.npy") in str(error)


@pytest.mark.parametrize("content", [b"", b"1,2,3\n", b"\x93NUMPY\x01\x00", pickle.dumps([1.0])])
def test_a_file_that_is_no_npy_is_refused(folder: Path, content: bytes) -> None:
    (folder / "x.npy").write_bytes(content)
    assert refusal(GD, folder).key == "data.inputs"


def test_a_folder_in_place_of_an_array_is_refused(folder: Path) -> None:
    (folder / "dir.npy").mkdir()
    assert refusal(changed(GD, {"data.inputs": "dir.npy"}), folder).key == "data.inputs"


class Trap:
    """Object whose unpickling would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickled_objects_are_never_loaded(folder: Path) -> None:
    sprung = folder / "sprung"
    np.save(folder / "x.npy", np.array([Trap(sprung)], dtype=object), allow_pickle=True)
    assert "allow_pickle" in refusal(GD, folder).problem
    assert not sprung.exists()


def test_a_npz_is_refused(folder: Path) -> None:
    np.savez(folder / "x.npz", x=np.eye(4))
    assert refusal(changed(GD, {"data.inputs": "x.npz"}), folder).key == "data.inputs"


def test_load_reads_paths_relative_to_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "spec.toml").write_text(tomli_w.dumps(GD))
    monkeypatch.chdir("/")
    experiment = Experiment.load(folder / "spec.toml")
    x = np.load(folder / "x.npy")
    np.testing.assert_allclose(experiment.kernel, x @ x.T / 6)
    assert experiment.inputs is not None
    assert np.array_equal(experiment.inputs, x)
    assert experiment.path == folder / "spec.toml"
    assert tomllib.loads(experiment.text) == GD


@pytest.mark.parametrize(
    "content",
    [
        b"[network\n",
        b"[network]\ndepth = 1\ndepth = 2\n",
        b"\xff\xfe",
        b"a = [1,",
        b"a = " + b"[" * 3000 + b"]" * 3000,
        b"a = 1" + b"0" * 5000,
    ],
    ids=["open", "twice", "no text", "cut", "nested", "digits"],
)
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spec.toml").write_bytes(content)
    with pytest.raises(SpecError) as caught:
        Experiment.load(tmp_path / "spec.toml")
    assert (caught.value.key, caught.value.value) == ("file", str(tmp_path / "spec.toml"))


def test_a_comment_may_have_many_dots(tmp_path: Path) -> None:
    """A line of dots was called a name with too many parts."""
    example = Path(__file__).parents[2] / "docs" / "examples" / "isotropic.toml"
    (tmp_path / "spec.toml").write_text("# " + "." * 300 + "\n" + example.read_text())
    Experiment.load(tmp_path / "spec.toml")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(SpecError, match=r"no such file|cannot be read"):
            Experiment.load(path)


def test_a_symbolic_depth_needs_nothing_else_and_gives_no_numbers() -> None:
    experiment = Experiment.from_dict({"network": {"depth": "L"}})
    assert experiment.symbolic
    for read in ("depth", "kernel", "targets", "inputs", "times", "effective_rate"):
        with pytest.raises(SpecError):
            getattr(experiment, read)
    with pytest.raises(SpecError, match=r'network.depth = "L"'):
        _ = experiment.depth


def test_a_symbolic_depth_may_come_with_data(folder: Path) -> None:
    experiment = Experiment.from_dict(changed(GD, {"network.depth": "L"}), folder=folder)
    assert experiment.symbolic
    assert experiment.kernel.shape == (4, 4)


def test_arrays_are_read_only_and_models_frozen(folder: Path) -> None:
    experiment = Experiment.from_dict(GD, folder=folder)
    assert experiment.inputs is not None
    for array in (experiment.kernel, experiment.targets, experiment.inputs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0
    with pytest.raises(ValueError, match="frozen"):
        experiment.network.gamma0 = 2.0


def test_times_and_rate_of_exact_steps(folder: Path) -> None:
    experiment = Experiment.from_dict(GD, folder=folder)
    assert np.array_equal(experiment.times, np.arange(6.0))
    assert experiment.effective_rate == pytest.approx(0.1 / 4)
    summed = Experiment.from_dict(changed(GD, {"training.loss": "sum"}), folder=folder)
    assert summed.effective_rate == 0.1


def test_times_and_rate_of_a_flow(folder: Path) -> None:
    experiment = Experiment.from_dict(FLOW, folder=folder)
    assert np.allclose(experiment.times, [0.0, 0.5, 1.0, 1.5, 2.0])
    assert experiment.effective_rate == pytest.approx(1 / 4)


@given(st.floats(1e-3, 1e6), st.integers(2, 300), st.sampled_from(["uniform", "log"]))
def test_output_times_increase_from_zero_to_the_end(time: float, points: int, grid: str) -> None:
    training = {"rule": "flow", "time": time, "points": points, "grid": grid}
    times = Experiment.from_dict({"network": {"depth": "L"}, "training": training}).times
    assert len(times) == points
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(time, rel=1e-12)
    assert np.all(np.diff(times) > 0)


def test_replace_changes_keys_checks_again_and_keeps_the_samples(folder: Path) -> None:
    experiment = Experiment.from_dict(GD, folder=folder)
    flow = {
        "training.rule": "flow",
        "training.learning_rate": None,
        "training.steps": None,
        "training.time": 3.0,
    }
    other = experiment.replace({"network.gamma0": 0.1, **flow})
    assert (other.network.gamma0, other.training.rule, experiment.network.gamma0) == (0.1, "flow", 1.0)
    assert other.samples is experiment.samples
    assert tomllib.loads(other.text)["network"]["gamma0"] == 0.1
    for changes in ({"network.gamma0": -1.0}, {"data.inputs": "z.npy"}, {"network.gama0": 1.0}, {"zzz.a": 1}):
        with pytest.raises(SpecError):
            experiment.replace(changes)


@given(
    st.dictionaries(
        st.sampled_from([f"{s}.{k}" for s, m in SECTIONS.items() for k in m.model_fields]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.lists(st.integers()),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_is_written_it_is_accepted_or_refused_by_name(changes: dict[str, Any]) -> None:
    tables = {key: GD[key] for key in ("network", "training")}
    try:
        experiment = Experiment.from_dict(changed(tables, changes), kernel=np.eye(2), targets=np.ones(2))
    except SpecError as error:
        refused: SpecError | None = error
    else:
        refused = None
        assert experiment.network.gamma0 > 0
        try:
            require_numbers(experiment)
        except SpecError as error:
            refused = error
        else:
            assert len(experiment.times) >= 2
    if refused is not None:
        assert refused.key.partition(".")[0] in SECTIONS
        assert refused.accepted


NET: dict[str, Any] = {"network": {"depth": 1}}
SAMPLE: dict[str, Any] = {"kernel": [[1.0]], "targets": [1.0]}


@pytest.mark.parametrize(
    ("tables", "names"),
    [
        (NET | {"data": "x"}, 'data = "x": must be a table'),
        ("e.toml", 'tables = "e.toml": is str, not a mapping .*Experiment.load'),
        (None, "tables: is NoneType"),
    ],
)
@pytest.mark.parametrize("arrays", [{}, SAMPLE])
def test_tables_of_a_wrong_type_are_named(tables: Any, names: str, arrays: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=names):
        Experiment.from_dict(tables, **arrays)


def test_a_table_may_be_left_out_as_none() -> None:
    assert Experiment.from_dict(NET | {"data": None}, **SAMPLE).targets == 1.0
    random = Experiment.from_dict(NET | {"data": None}).replace({"data.kind": "isotropic"})
    assert random.spec.kind == "isotropic"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"network": {"depth": 2}}, r"network = \{depth = 2\}: is not a key of the file"),
        ({"network": None}, "network: is not a key of the file"),
        ({"network.": 1}, "network. = 1: is not a key of the file"),
        ({"net.depth": 1}, "net.depth = 1: is not a key of the file .*network, data, training, solver"),
        ({1: 1}, "1 = 1: is not a key of the file"),
        ("network.depth", 'changes = "network.depth": is str, not a mapping'),
    ],
)
def test_replace_names_what_is_no_key(changes: Any, names: str) -> None:
    with pytest.raises(SpecError, match=names):
        Experiment.from_dict(NET).replace(changes)


def test_numbers_of_numpy_are_numbers() -> None:
    found = Experiment.from_dict(NET).replace(
        {"network.depth": np.int64(3), "training.steps": np.arange(5)[-1], "training.times": np.arange(2.0)}
    )
    assert (found.depth, found.training.steps, found.training.times) == (3, 4, [0.0, 1.0])


def test_tables_are_no_experiment() -> None:
    with pytest.raises(SpecError, match=r"dict is not an experiment .*from_dict"):
        Experiment.of(NET)


def test_times_without_end_are_refused() -> None:
    for change in ({"training.steps": 10**10}, {"training.rule": "flow", "training.points": 10**10}):
        with pytest.raises(SpecError, match=r"million"):
            Experiment.from_dict(
                changed({k: GD[k] for k in ("network", "training")}, change), kernel=[[1.0]], targets=[1.0]
            )


def test_a_refusal_survives_pickling() -> None:
    error = SpecError("network.depth", 0, "is wrong", "1")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("name", ["digits.toml", "digits_flow.toml"])
def test_the_shipped_examples_load(name: str) -> None:
    experiment = Experiment.load(EXAMPLES / name)
    assert experiment.kernel.shape == (20, 20)
    assert np.trace(experiment.kernel) / 20 == pytest.approx(1.0)
    assert sorted(experiment.targets) == [-1.0] * 10 + [1.0] * 10
    assert len(experiment.times) >= 31


def test_text_belongs_to_a_program() -> None:
    tables = NET | {"training": {"learning_rate": 0.1, "steps": 1}}
    with pytest.raises(SpecError, match="text: is given in addition to an experiment"):
        Problem.of(Experiment.from_dict(tables, **SAMPLE), text="a note")
