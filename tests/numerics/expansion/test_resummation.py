"""Partial sums and Padé approximants of arrays: exact where they must be, honest where they are not."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics.errors import NotConverged, SpecError
from numerics.expansion.resummation import approximants, pade, partial_sums, resum, resummed

RNG = np.random.default_rng(0)


def taylor(poles: np.ndarray, residues: np.ndarray, order: int) -> np.ndarray:
    """Return coefficients of ``sum_i residues[i] / (1 - z / poles[i])``; residues (poles, ...)."""
    k = np.arange(order + 1)
    return np.real(np.tensordot((1 / poles)[None] ** k[:, None], residues, 1))


PAIR = np.array([-1 + 1.5j, -1 - 1.5j])


def test_quotients_are_found_exactly() -> None:
    residues = RNG.standard_normal((3, 4)) + 0j
    residues = np.stack([residues, residues.conj()])
    c = taylor(PAIR, residues, 5)
    for z in (0.1, 1.0, 10.0):
        exact = sum(np.real(residues[i] / (1 - z / PAIR[i])) for i in range(2))
        for shared in (0, 1, 2):
            found = pade(c, 1, 2, z, shared)
            assert not found.failed.any()
            np.testing.assert_allclose(found.value, exact, rtol=1e-9)


def test_shared_denominators_use_all_entries() -> None:
    """[1/2] from three coefficients: too few for one entry, enough for four with the same poles."""
    residues = RNG.standard_normal(4) + 1j * RNG.standard_normal(4)
    residues = np.stack([residues, residues.conj()])
    c = taylor(PAIR, residues, 3)
    noisy = c.copy()
    noisy[1:, 2] = [1e-9, -2e-9, 1e-9]  # an entry that happens to vanish has no separate approximant
    assert np.all(np.isfinite(pade(noisy, 1, 2, 1.0, 1).value))


def test_poles_on_the_way_are_refused() -> None:
    """1 / (1 - z) at z = 2: the approximant has a value there, which means nothing."""
    assert pade([1.0, 1.0, 1.0], 1, 1, 0.5).value == pytest.approx(2.0)
    assert pade([1.0, 1.0, 1.0], 1, 1, 2.0).failed
    assert pade([1.0, 1.0, 1.0], 1, 1, 1.0).failed


def test_doublets_are_refused() -> None:
    """A tiny disturbance makes [2/2] a pole next to a zero; on the way to the point it is left out."""
    c = np.array([1.0, -1.0, 1.0, -1.0, 1.0 + 1e-7])
    for z in np.linspace(0.2, 3.0, 29):
        found = resum(c, z)
        assert not found.failed
        assert abs(found.value - 1 / (1 + z)) <= found.error + 1e-9
        assert abs(found.value - 1 / (1 + z)) < 1e-3, z


def test_degenerate_equations_are_refused() -> None:
    assert pade([1.0, 0.5, 0.25, 0.125, 0.0625], 2, 2, 0.5).failed
    assert pade([0.0, 0.0, 0.0], 1, 1, 0.5).failed


def test_too_few_coefficients() -> None:
    with pytest.raises(ValueError, match=r"\[2/2\]: needs 5 coefficients of the series; there are 3"):
        pade([1.0, 1.0, 1.0], 2, 2, 0.5)


@pytest.mark.parametrize("order", range(2, 9))
def test_degrees(order: int) -> None:
    found = approximants(order)
    assert found[0] in {(order // 2, order - order // 2), (order - order // 2, order // 2)}
    assert all(m + n in (order, order - 1) and n >= 1 and m >= 0 for m, n in found)
    assert approximants(1) == []


@given(st.floats(0.0, 0.9), st.floats(-1, 1), st.integers(2, 8))
@settings(max_examples=40, deadline=None)
def test_partial_sums_of_a_geometric_series(z: float, sign: float, order: int) -> None:
    ratio = 1.0 if sign >= 0 else -1.0
    found = partial_sums(ratio ** np.arange(order + 1), z)
    missed = abs(1 / (1 - ratio * z) - found.value)
    assert missed <= found.error * (1 + 1e-6) + 1e-15


def test_partial_sums_fail_where_they_do_not_converge() -> None:
    found = partial_sums([[1.0, 1.0], [1.0, 0.1], [1.0, 0.01], [1.0, 0.001]], 1.5)
    assert found.failed.tolist() == [True, False]
    assert np.isnan(found.value).tolist() == [True, False]


FUNCTIONS = {
    "pole": lambda z: 1 / (1 + z),
    "branch": lambda z: 1 / np.sqrt(1 + z),
    "entire": lambda z: np.exp(-z),
    "logarithm": lambda z: np.log1p(z) / z,
    "pair": lambda z: (1 - z) / (1 + z / 2 + z**2),
    "branch points": lambda z: np.sqrt(1 + z + z**2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_estimated(name: str) -> None:
    """Up to twice the radius of convergence: the estimate is no less than a third of the error."""
    f = FUNCTIONS[name]
    ring = 0.5 * np.exp(2j * np.pi * (np.arange(64) + 0.5) / 64)
    c = np.array([np.mean(f(ring) / ring**k).real for k in range(5)])
    for z in (0.2, 0.5, 1.0, 2.0):
        found = resum(c, z)
        assert not found.failed
        assert abs(found.value - f(z)) <= 3 * found.error + 1e-12, (z, found)
        assert abs(found.value - f(z)) <= 0.1 * abs(f(z)) + 0.03, (z, found)


# -- datasets ----------------------------------------------------------------------------------------------


def dataset(values: list[list[float]], orders: list[int], **attributes: object) -> xr.Dataset:
    return xr.Dataset(
        {"train_loss": (("order", "time"), np.array(values))},
        {"order": orders, "time": np.arange(len(values[0]), dtype=float)},
        attributes,
    )


def test_a_result_at_one_strength() -> None:
    series = dataset([[1.0, 1.0], [0.0, -4.0], [0.0, 16.0], [0.0, -64.0], [0.0, 256.0]], [0, 2, 4, 6, 8])
    at = resummed(series, 0.5)
    np.testing.assert_allclose(at.train_loss, [1.0, 0.5], rtol=1e-12)
    assert at.train_loss_truncation.dims == ("time",)
    assert at.attrs["status"] == "ok"
    assert at.attrs["gamma0"] == 0.5
    plain = resummed(series, 0.25, "sum")
    assert plain.train_loss.values[1] == pytest.approx(1 - 0.25 + 0.25**2 - 0.25**3 + 0.25**4)
    assert abs(plain.train_loss.values[1] - 0.8) <= plain.train_loss_truncation.values[1] * 1.3


def test_orders_that_vanish_count() -> None:
    """1 + 0 z + z^2: the missing order is a zero, and so is one beyond the last."""
    gap = resummed(dataset([[1.0], [1.0]], [0, 4], truncation_order=4), 0.5, "sum")
    assert gap.train_loss.values[0] == 1 + 0.5**4
    with_end = resummed(dataset([[1.0], [1.0]], [0, 2], truncation_order=8), 1.0, "sum")
    assert with_end.train_loss.values[0] == 2.0


@given(st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4), st.floats(0.1, 2.0))
def test_rounding_errors_are_no_coefficients(noise: list[float], z: float) -> None:
    """After one step a loss does not depend on gamma0; rounding at higher orders must be ignored."""
    series = [0.7, *(1e-17 * x for x in noise)]
    for found in (resum(series, z), partial_sums(series, z)):
        assert not found.failed
        assert abs(found.value - 0.7) <= 1e-15
        assert found.error <= 1e-14


def test_entries_that_fail_are_reported() -> None:
    series = dataset([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], [0, 2, 4, 6])
    at = resummed(series, 2.0, "sum")
    assert at.attrs["status"] == "partial"
    assert at.attrs["failed"] == "train_loss: 1 of 2"
    assert np.isnan(at.train_loss.values).tolist() == [False, True]
    with pytest.raises(NotConverged, match="does not converge at gamma0 = 2"):
        resummed(series.isel(time=[1]), 2.0, "sum")


def test_bad_input() -> None:
    series = dataset([[1.0], [1.0]], [0, 2])
    with pytest.raises(ValueError, match="must be 'pade' or 'sum'"):
        resummed(series, 1.0, "borel")
    with pytest.raises(ValueError, match="gamma0 = -1"):
        resummed(series, -1.0)


@pytest.mark.parametrize("method", ["sum", "pade"])
def test_standard_errors_are_no_series(method: str) -> None:
    """Of 1/(1 + 4 z): each coefficient changes the value by its own standard error times its power."""
    values = np.array([[1.0, 1.0], [0.0, -4.0], [0.0, 16.0], [0.0, -64.0], [0.0, 256.0]])
    series = dataset(values.tolist(), [0, 2, 4, 6, 8])
    errors = np.array([[0.0, 0.0], [0.0, 1e-5], [0.0, 2e-5], [0.0, 1e-4], [0.0, 1e-4]])
    series["train_loss_stderr"] = (("order", "time"), errors)
    at = resummed(series, 0.25, method)
    assert at.attrs["status"] == "ok"
    assert set(at.data_vars) == {"train_loss", "train_loss_truncation", "train_loss_stderr"}
    moves = [
        resummed(
            dataset((values + errors * (np.arange(5) == n)[:, None]).tolist(), [0, 2, 4, 6, 8]), 0.25, method
        )
        for n in range(5)
    ]
    bound = sum(abs(float(x.train_loss[1]) - float(at.train_loss[1])) for x in moves)
    np.testing.assert_allclose(at.train_loss_stderr, [0.0, bound], rtol=1e-9, atol=1e-15)
    if method == "sum":
        assert bound == pytest.approx(float(np.sum(errors[:, 1] * 0.0625 ** np.arange(5))))


def test_orders_that_are_not_known_are_refused() -> None:
    series = dataset([[1.0, 1.0], [0.0, -0.5], [np.nan, np.nan]], [0, 1, 2])
    with pytest.raises(SpecError, match="has no known coefficients of order 2"):
        resummed(series, 0.1)


@pytest.mark.parametrize("order", [0, 1])
def test_one_coefficient_needs_a_higher_order(order: int) -> None:
    """An even series to order 1 has one coefficient; its truncation error was zero."""
    series = dataset([[1.0]], [0], truncation_order=order)
    with pytest.raises(NotConverged, match=r"that of order 0,.* at gamma0 = 0\.1: a higher order would"):
        resummed(series, 0.1)
