"""Samples from arrays: which matrices are kernels, and which targets fit them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerics.errors import SpecError
from numerics.experiment import Experiment


def with_kernel(kernel: object, targets: object = (1.0, -1.0)) -> Experiment:
    tables = {"network": {"depth": 3}, "training": {"rule": "gd", "learning_rate": 0.1, "steps": 5}}
    return Experiment.from_dict(tables, kernel=np.asarray(kernel), targets=np.asarray(targets))


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ([[1.0, 0.2], [0.1, 1.0]], "not symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "most negative eigenvalue is -1"),
        ([[-1.0, 0.0], [0.0, -2.0]], "most negative eigenvalue is -2"),
        ([[1.0, np.nan], [np.nan, 1.0]], "is nan at index (0, 1)"),
        ([[1.0, 0.0], [0.0, np.inf]], "is inf at index (1, 1)"),
        ([[1.0, 0.0]], "shape (1, 2)"),
        ([1.0, 1.0], "shape (2,)"),
        (np.zeros((0, 0)), "shape (0, 0)"),
        ([[1j, 0], [0, 1]], "complex"),
        ([["a", "b"], ["c", "d"]], "<U1"),
        ([[True, False], [False, True]], "bool"),
    ],
)
def test_a_matrix_that_is_no_kernel_is_refused(kernel: object, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        with_kernel(kernel)
    assert caught.value.key == "data.kernel"
    assert words in str(caught.value)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_every_gram_matrix_is_a_kernel_in_either_precision(p: int, d: int, seed: int, scale: float) -> None:
    x = scale * np.random.default_rng(seed).standard_normal((p, d))
    kernel = x @ x.T / d
    for given_kernel in (kernel, kernel.astype(np.float32)):
        accepted = with_kernel(given_kernel, np.ones(p)).kernel
        np.testing.assert_allclose(accepted, kernel, atol=1e-6 * np.abs(kernel).max())
        assert np.array_equal(accepted, accepted.T)


@given(st.integers(2, 12), st.integers(0, 2**32 - 1), st.floats(1e-6, 10.0))
def test_a_negative_eigenvalue_beyond_rounding_is_seen_and_reported(p: int, seed: int, depth: float) -> None:
    q = np.linalg.qr(np.random.default_rng(seed).standard_normal((p, p)))[0]
    eigenvalues = np.linspace(1.0, 2.0, p)
    eigenvalues[0] = -depth
    with pytest.raises(SpecError, match="semidefinite") as caught:
        with_kernel((q * eigenvalues) @ q.T, np.ones(p))
    reported = float(caught.value.problem.split("eigenvalue is ")[1].split(" ")[0])
    assert reported == pytest.approx(-depth, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("targets", [np.ones(3), np.ones((2, 2)), np.ones(0), np.array(1.0), [1.0, np.nan]])
def test_targets_must_fit_the_samples(targets: object) -> None:
    with pytest.raises(SpecError) as caught:
        with_kernel(np.eye(2), targets)
    assert caught.value.key == "data.targets"


def test_the_callers_arrays_stay_their_own() -> None:
    kernel, targets = np.eye(2), np.ones(2)
    experiment = with_kernel(kernel, targets)
    kernel[0, 0] = targets[0] = 5.0
    assert experiment.kernel[0, 0] == experiment.targets[0] == 1.0


def test_integers_single_precision_and_a_column_of_targets_are_accepted() -> None:
    experiment = with_kernel(np.eye(2, dtype=np.int64), np.ones((2, 1), dtype=np.float32))
    assert experiment.kernel.dtype == experiment.targets.dtype == np.float64
    assert experiment.targets.shape == (2,)
