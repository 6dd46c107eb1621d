"""Tests that a comparison detects a wrong theory with one changed coefficient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from derive.theory import Theory
from numerics.experiment.problem import Problem
from numerics.solver import solve
from tests.derive.once import mean_field, mlp, scaled
from tests.numerics.solver.helpers import TARGETS, flow, kernel
from tests.reference.adams_weights import step_sum_weights
from tests.reference.dense_causal import dense_causal

Mutation = Callable[[Theory], Theory]


def in_terms(field: str, kind: str, factor: int) -> Mutation:
    """Return a mutation: terms of one kind in the equations of one field times ``factor``.

    A factor of 0 leaves them out.
    """
    return partial(scaled, kind=kind, factor=factor, fields=field)


def in_sources(name: str):
    def mutate(theory: Theory) -> Theory:
        sources = tuple(
            replace(u, covariance=2 * u.covariance) if str(u.symbol.func) == name else u
            for u in theory.sources
        )
        return replace(theory, sources=sources)

    return mutate


def in_output(theory: Theory) -> Theory:
    scalars = tuple(
        replace(e, terms=tuple(x.times(2) for x in e.terms)) if e.name == "f" else e for e in theory.scalars
    )
    return replace(theory, scalars=scalars)


def in_tangent_kernel(theory: Theory) -> Theory:
    (k,) = theory.observables
    return replace(theory, observables=(replace(k, terms=(*k.terms, k.terms[0])),))


MUTATIONS = {
    "no response in h": in_terms("h", "response", 0),
    "no response in g": in_terms("g", "response", 0),
    "twice the response in h": in_terms("h", "response", 2),
    "minus the response in g": in_terms("g", "response", -1),
    "no memory in h": in_terms("h", "memory", 0),
    "twice the memory in h": in_terms("h", "memory", 2),
    "twice the memory in g": in_terms("g", "memory", 2),
    "twice the covariance of u": in_sources("u"),
    "twice the covariance of r": in_sources("r"),
    "twice the output": in_output,
    "a term of the tangent kernel twice": in_tangent_kernel,
}


def worst(mutate: Mutation, names: tuple[str, ...]) -> float:
    """Return the largest difference of a changed theory from the forward recursion.

    Names other than error and G need all kernels.
    """
    given = {"numbers": {"eta": 0.08, "gamma0": 1.2}, "arrays": {"K_x": kernel(2), "y": TARGETS[:2]}}
    theory = mutate(mean_field(mlp(3, "linear", "gd", "sum")))
    kernels = "none" if set(names) <= {"error", "G"} else "full"
    result = solve(theory, **given, times=range(7), kernels=kernels)
    expected = dense_causal(kernel(2), TARGETS[:2], step_sum_weights(6, 0.08), depth=3, gamma0=1.2)
    return max(float(np.abs(result[n].values - getattr(expected, n)).max()) for n in names)


def test_the_unchanged_theory_passes():
    assert worst(lambda theory: theory, ("error", "Phi", "G", "A", "B", "tangent_kernel")) < 1e-12


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_changed_coefficient_is_seen(name):
    assert worst(MUTATIONS[name], ("tangent_kernel",) if "tangent" in name else ("error", "G")) > 1e-3


@pytest.mark.slow
def test_a_flow_with_no_responses_is_another_curve():
    """A flow is solved on its own grids, so that the mutation is one of the reductions of its theory."""
    right = Problem.of(flow(3, 2, rtol=1e-4))
    wrong = replace(right, reductions=(*right.reductions, MUTATIONS["no response in h"]))
    one, other = (solve(x, kernels="none").error.values for x in (right, wrong))
    assert np.abs(one - other).max() > 100 * 1e-4
