"""Exchangeable indices: found from the equations of a theory, whatever the names are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sympy import Expr, KroneckerDelta, S, Sum, Symbol, erf

from derive.calculus.symbols import IndexRange, eta, t
from derive.program import Field, GaussianMatrix, GaussianVector, GradientDescent, Mean, Network, Population
from derive.program.networks import committee
from derive.program.program import Program
from derive.theory import mean_field
from derive.theory.exchange import IndexClass, exchangeable
from derive.theory.routes import check_routes

i, j = (Symbol(name, integer=True, positive=True) for name in "ij")
ALIKE: Callable[[Expr], Expr] = lambda x: S.One  # noqa: E731


def parliament(
    taught: Callable[[Expr], Expr] = ALIKE, variance: Callable[[Expr], Expr] = ALIKE, members: int = 3
) -> Program:
    """Return a committee machine under a user's names, with one letter for both sums."""
    people, laws = Population("people"), Population("laws")
    seats, sages = IndexRange(i, S.One, S(members)), IndexRange(j, S.One, S(2))
    A = GaussianMatrix("A", laws, people)
    a = GaussianVector("a", people, variance(i), indices=(seats,))
    b = GaussianVector("b", people, indices=(sages,))
    x, z, p, q, gap = (
        Field(name, room) for name, room in zip("xzpqe", (people, people, laws, laws, laws), strict=True)
    )
    forward = {
        x(i, t): a(i),
        z(j, t): b(j),
        p(i, t): A @ x(i, t),
        q(j, t): A @ z(j, t),
        gap(t): Sum(taught(i) * erf(q(i, t)), (i, 1, 2)) - Sum(erf(p(i, t)), (i, 1, members)),
    }
    net = Network("parliament", (x, z, p, q, gap), forward, (a,), (A, b), ranges=(seats, sages))
    return net.train(Mean(gap(t) ** 2) / 2, GradientDescent(eta))


def classes(program: Program) -> dict[str, IndexClass]:
    """Return the exchangeable indices by their upper ends."""
    return {str(x.upper): x for x in exchangeable(mean_field(program))}


def free(found: IndexClass) -> set[str]:
    """Return the names with the index whose equations are symmetric in its values."""
    return {name for name, _ in found.places} - found.fixed


def test_names_and_letters_do_not_matter() -> None:
    ours, theirs = classes(committee(3, 2, ratio=1)), classes(parliament())
    assert ours.keys() == theirs.keys() == {"2", "3"}
    for key, one in theirs.items():
        assert not one.fixed
        assert not one.arrays
        assert len(one.axes("C_x")) == (2 if key == "3" else 0)
        assert len(one.axes("C_z")) == (2 if key == "2" else 0)
    assert check_routes(parliament()).gradients == "compared"


def test_a_teacher_whose_units_count_differently_breaks_its_symmetry_and_not_that_of_the_student() -> None:
    found = classes(parliament(taught=lambda x: x))
    assert not found["3"].fixed
    assert "C_xz" in found["2"].fixed
    assert "C_z" in found["2"].fixed  # the covariance of a source that is correlated with others


@pytest.mark.parametrize("variance", [lambda x: 1 + x, lambda x: 1 + KroneckerDelta(x, 1)])
def test_initial_weights_that_differ_break_the_symmetry(variance: Callable[[Expr], Expr]) -> None:
    found = classes(parliament(variance=variance))
    assert "C_x" in found["3"].fixed
    assert not {"C_x", "C_xz", "C_p"} & free(found["3"])


def test_batches_in_turn_are_told_apart_by_the_time() -> None:
    found = exchangeable(mean_field(committee(3, 4, batches=2)))
    (turns,) = (x for x in found if x.upper == 2)
    assert turns.axes("h")
    assert "h" in turns.fixed
    assert all(not x.fixed for x in found if x.upper != 2)


def test_given_arrays_are_named() -> None:
    from derive.program import mlp

    (samples,) = exchangeable(mean_field(mlp(2, "tanh")))
    assert samples.arrays["Delta"] == {"K_x", "y"}
    assert samples.axes("K_x") == (0, 1)
