"""Tests of powers of the width counted on programs: single rules and whole networks."""

from dataclasses import replace

import pytest
from sympy import Abs, Function, Integer, Max, Rational, Symbol, tanh

from derive.errors import NotApplicable
from derive.program import (
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GradientDescent,
    L,
    Mean,
    Population,
    Program,
    eta,
    t,
)
from derive.scale.power_counting import (
    EntrySize,
    Grows,
    N,
    applied,
    combined,
    count_powers,
    powers,
    product,
    shape_of,
    top,
)
from tests.derive.once import mlp

HALF = Rational(1, 2)
U, R = ("W", Integer(1), False), ("W", Integer(1), True)


def odd(*sources, power=0):
    return EntrySize(Integer(power), frozenset(sources))


def test_means_vanish_where_a_source_is_odd():
    assert (odd(U) * odd(R)).mean(Integer(1)).power == -HALF
    assert (odd(U) * odd(U)).mean(Integer(1)).power == 0
    assert (odd(U) * odd(U)).mean(Integer(2)).power == 0
    assert odd(U, power=3).mean(Integer(2)).power == 2


def test_sums_keep_the_largest_power_of_a_kind():
    assert combined([odd(U), odd(U, power=1), odd(R)]) == (odd(U, power=1), odd(R))
    a = Symbol("a", real=True)
    kept = combined([EntrySize(a), EntrySize(a + 1), EntrySize(2 * a)])
    assert {p.power for p in kept} == {a + 1, 2 * a}
    assert top(kept) == Max(a + 1, 2 * a)
    assert product((odd(U), odd(R)), (odd(U),)) == (EntrySize(Integer(0)), odd(U, R))


def test_powers_of_a_number():
    x, e = Symbol("x", positive=True), Symbol("e", real=True)
    assert powers(x * N**e / N) == (e - 1,)
    assert powers((x * N) ** HALF) == (HALF,)
    with pytest.raises(NotApplicable, match="powers of the width N may be"):
        powers(Function("q")(N))
    with pytest.raises(NotApplicable, match="powers of the width N may be"):
        powers(1 / (1 + N))


def test_shapes_of_functions():
    h = Function("h")(t)
    both = frozenset({0})
    assert shape_of(tanh(h), [h]).parity(both) == -1
    assert shape_of(Abs(h), [h]).parity(both) == 1
    assert [shape_of(f, [h]).degree for f in (Max(0, h), Abs(h), tanh(h))] == [1, 1, None]
    unknown = shape_of(Function("phi")(h), [h])
    assert (unknown.parity(both), unknown.lowest) == (0, 0)
    small = applied(shape_of(tanh(h), [h]), ((odd(U, power=-1),),))
    assert small == (odd(U, power=-1),)
    with pytest.raises(Grows):
        applied(shape_of(tanh(h), [h]), ((odd(U, power=1),),))
    assert top(applied(shape_of(Max(0, h), [h]), ((odd(U, power=1),),))) == 1


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_perceptron_as_it_is_written(depth):
    found = count_powers(mlp(depth, "tanh"), 2)
    for k in range(1, depth + 1):
        assert [found.power("h", k, s) for s in (0, 1, 2)] == [0, 0, 0]
        assert [found.change("h", k, s) for s in (0, 1, 2)] == [None, 0, 0]
    assert [found.power("f", None, s) for s in (0, 1, 2)] == [-HALF, 0, 0]


def test_first_order_says_whose_update_it_is():
    found = count_powers(mlp(3, "tanh"), 1, first=True)
    assert set(found.change_by_weight("h", 2)) == {"W0", "W(1)"}
    assert set(found.change_by_weight("f")) == {"W0", "W(1)", "W(2)", "w"}


def chain(size=1):
    """Return ``y = W^T tanh(W x)`` on N^size units.

    The mean of ``x y`` distinguishes its aligned part from noise.
    """
    units = Population("units", ratio=N ** (size - 1))
    x, a, y = (Field(n, units) for n in ("x", "a", "y"))
    W = GaussianMatrix("W", units, units, variance=N ** (1 - size))
    w = GaussianVector("w", units)
    q = Function("q")
    back = W.T @ tanh(a(t))
    definitions = (Definition(x(t), w.symbol), Definition(a(t), W @ x(t)), Definition(y(t), back))
    return Program(
        "there and back",
        GradientDescent(eta),
        fields=(x, a, y),
        definitions=(*definitions, Definition(q(t), Mean(x(t) * y(t)))),
        matrices=(W,),
        vectors=(w,),
        scalars=("q",),
        depth=Integer(1),
    )


def test_a_response_is_aligned_though_its_matrix_is_random():
    """``x . W^T tanh(W x)/n`` does not vanish; with another matrix on the way back it does."""
    program = chain()
    assert count_powers(program, 0).power("q") == 0
    V = replace(program.matrices[0], name="V")
    y = program.definitions[2]
    other = replace(
        program,
        matrices=(program.matrices[0], V),
        definitions=(
            *program.definitions[:2],
            replace(y, rhs=V.T @ tanh(program.fields[1](t))),
            program.definitions[3],
        ),
    )
    assert count_powers(other, 0).power("q") == -HALF


def test_sizes_of_populations_count():
    """On N^(1/2) units means fluctuate by N^(-1/4)."""
    wide = chain(HALF)
    assert count_powers(wide, 0).power("a") == 0
    V = replace(wide.matrices[0], name="V")
    back = replace(wide.definitions[2], rhs=V.T @ tanh(wide.fields[1](t)))
    definitions = (*wide.definitions[:2], back, wide.definitions[3])
    two = replace(wide, matrices=(*wide.matrices, V), definitions=definitions)
    assert count_powers(two, 0).power("q") == -Rational(1, 4)


def test_what_is_refused():
    with pytest.raises(NotApplicable, match="depth = L"):
        count_powers(mlp(L, "tanh"))
    with pytest.raises(NotApplicable, match="noise"):
        count_powers(mlp(1, temperature=1))


def test_growth_ends_a_count():
    program = mlp(1, "tanh")
    first = program.definitions[0]
    definitions = (replace(first, rhs=N * first.rhs), *program.definitions[1:])
    faster = replace(program, definitions=definitions)
    found = count_powers(faster, 1)
    assert found.stopped is not None
    assert "tanh" in found.stopped
    assert found.power("h", 1) == 1
    assert found.power("f") is None


def test_matrices_that_start_at_zero_have_no_size():
    """Their variance, zero, was counted as N^0."""
    program = mlp(2, "tanh")
    zero = [replace(m, initial=replace(m.initial, variance=Integer(0))) for m in program.matrices]
    counted = count_powers(replace(program, matrices=tuple(zero)), 1)
    assert counted.power("h", 1, step=0) is None
    assert counted.power("h", 2, step=0) is None
    assert counted.power("z", 2, step=0) == 0
