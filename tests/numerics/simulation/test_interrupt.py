"""An interrupt keeps the networks that are trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from numerics.cli import run
from numerics.errors import Interrupted
from numerics.results import load
from numerics.simulation import simulate

from .helpers import gd


def stop_after(count: int):
    """Return a progress function that raises KeyboardInterrupt after some networks."""

    def progress(done: int, total: int) -> None:
        if done == count:
            raise KeyboardInterrupt

    return progress


def test_what_is_kept_is_what_fewer_networks_give():
    with pytest.raises(Interrupted) as stopped:
        simulate(gd(steps=2), width=8, seeds=50, rng=1, progress=stop_after(3))
    kept = stopped.value.result
    assert (kept.attrs["status"], kept.attrs["seeds"]) == ("partial", 3)
    whole = simulate(gd(steps=2), width=8, seeds=3, rng=1)
    for name in whole.data_vars:
        np.testing.assert_allclose(kept[name], whole[name], rtol=1e-12, atol=1e-15)


def test_one_network_alone_has_no_error_and_is_not_kept():
    with pytest.raises(KeyboardInterrupt) as stopped:
        simulate(gd(steps=2), width=8, seeds=50, rng=1, progress=stop_after(1))
    assert not isinstance(stopped.value, Interrupted)


def test_the_command_writes_what_is_kept_and_ends_with_130(monkeypatch, tmp_path: Path, capsys):
    np.save(tmp_path / "k.npy", np.eye(2))
    np.save(tmp_path / "y.npy", np.ones(2))
    (tmp_path / "e.toml").write_text(
        '[network]\ndepth = 1\n[data]\nkernel = "k.npy"\ntargets = "y.npy"\n'
        "[training]\nlearning_rate = 0.1\nsteps = 2\n"
    )

    def stopped(*given: object, **options: object) -> xr.Dataset:
        return simulate(*given, **{**options, "progress": stop_after(2)})

    monkeypatch.setattr("numerics.simulation.simulate", stopped)
    words = ["simulate", str(tmp_path / "e.toml"), "--width", "8", "--seeds", "9"]
    assert run([*words, "-o", str(tmp_path / "out.nc")]) == 130
    assert load(tmp_path / "out.nc").attrs["status"] == "partial"
    assert "status: partial" in capsys.readouterr().out
