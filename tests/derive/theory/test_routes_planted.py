"""Errors planted in what the two routes once shared are seen by their comparison alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sympy import Symbol, tanh

import derive.theory.applications as applications
import derive.theory.conditioning as conditioning
from derive.program.networks.residual import Updates, block_program
from derive.program.training import LinearSystem
from derive.theory.routes import RoutesDisagree, check_routes
from tests.derive.once import isotropic, mlp

lam, T = (Symbol(n, positive=True) for n in ("lambda", "T"))
Plant = Callable[[pytest.MonkeyPatch], None]


def memory_doubled(patch: pytest.MonkeyPatch) -> None:
    honest = conditioning.overlap

    def doubled(*args: Any) -> Any:
        value, *rest = honest(*args)
        return 2 * value, *rest

    patch.setattr(conditioning, "overlap", doubled)


def vector_memory_doubled(patch: pytest.MonkeyPatch) -> None:
    honest = applications.Parameter.update

    def doubled(self: Any, *times: Any) -> Any:
        over, coefficient, moved = honest(self, *times)
        return over, 2 * coefficient, moved

    patch.setattr(applications.Parameter, "update", doubled)


def no_response_at_equal_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(applications, "equal_time_pairs", lambda *_: set())


def one_factor_of_decay_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(applications, "entry_covariance", lambda rule, time, past: rule.memory(time, past)[0])


def decay_one_step_too_long(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        LinearSystem, "steps", lambda self, time, past: (self.A**time, self.A ** (time - past) * self.b)
    )


def noise_halved(patch: pytest.MonkeyPatch) -> None:
    honest = LinearSystem.flow_noise
    patch.setattr(LinearSystem, "flow_noise", lambda self, *times: honest(self, *times) / 2)


def updates_counted_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Updates, "memory", lambda self, time, past: (0, 2))


@pytest.mark.parametrize(
    ("plant", "program"),
    [
        (memory_doubled, lambda: mlp(2, tanh)),
        (vector_memory_doubled, lambda: mlp(1, tanh)),
        (no_response_at_equal_time, lambda: isotropic(1)),
        (one_factor_of_decay_lost, lambda: mlp(1, weight_decay=lam)),
        (decay_one_step_too_long, lambda: mlp(1, weight_decay=lam)),
        (noise_halved, lambda: mlp(1, rule="flow", weight_decay=lam, temperature=T)),
        (updates_counted_twice, lambda: block_program(3, linearised=True)),
    ],
)
def test_seen_by_the_two_routes(
    plant: Plant, program: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_routes(program()) == []
    plant(monkeypatch)
    with pytest.raises(RoutesDisagree):
        check_routes(program())
