"""Tests of the refusals of a program, with their reasons, and of the properties that it derives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from sympy import Function, Integer, Symbol, tanh

from derive.errors import NotApplicable
from derive.program import (
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    GradientFlow,
    IndexRange,
    L,
    Mean,
    Multistep,
    Network,
    P,
    Population,
    Product,
    Program,
    ProgramError,
    alpha,
    convolution,
    ell,
    eta,
    feedback_alignment,
    gamma0,
    isotropic,
    mu,
    perceptron,
    s,
    t,
    training_rule,
)
from derive.program.language import terms
from derive.program.networks.options import entrywise_rule
from derive.program.parts import gaussian, parameter
from derive.program.program import _uses, plain_steps
from derive.reduce.independence import independent_backward
from tests.derive.once import mean_field, mlp

units, others = Population("units"), Population("others", Symbol("rho"))
x, y, z = Field("x", units), Field("y", units), Field("z", others)
J = GaussianMatrix("J", units, units)
M = GaussianMatrix("M", others, units)
phi = Function("phi")


def program(*definitions: Definition, fields: tuple[Field, ...] = (x, y), **more: object) -> Program:
    matrices = more.pop("matrices", (J, M))
    rule = more.pop("rule", GradientDescent(eta))
    return Program("test", rule, fields, definitions, matrices, **more)  # type: ignore[arg-type]


def family(*definitions: Definition) -> Program:
    layer = Population("layer")
    h = Field("h", layer, layered=True)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, Integer(1), L - 1))
    return Program("layers", GradientDescent(eta), (h,), definitions, (W,))


h, W = Function("h"), Function("W")
b = GaussianVector("b", units)
interior = (IndexRange(ell, Integer(1), L - 1),)

REFUSED: dict[str, tuple[Callable[[], Program], str]] = {
    "self-dependence": (
        lambda: program(Definition(x(t), J @ x(t)), fields=(x,)),
        r"depends on itself within a step: x\(t\) -> x\(t\)",
    ),
    "circular dependence": (
        lambda: program(Definition(x(t), J @ y(t)), Definition(y(t), J.T @ phi(x(t)))),
        r"depends on itself within a step: x\(t\) -> y\(t\) -> x\(t\)",
    ),
    "layers both ways": (
        lambda: family(
            Definition(h(1, t), 1 + 0 * t, ()),
            Definition(h(ell + 1, t), Product(W(ell), False, h(ell, t)) + h(ell + 2, t), interior),
        ),
        r"depends on itself within a step",
    ),
    "undefined field": (
        lambda: program(Definition(x(t), Integer(1))),
        r"field y has no definition",
    ),
    "undefined number": (
        lambda: program(Definition(x(t), Integer(1)), fields=(x,), scalars=("f",)),
        r"scalar f has no definition",
    ),
    "unknown name": (
        lambda: program(Definition(x(t), Function("q")(t)), fields=(x,)),
        r"x\(t\) uses q\(t\), but q is not among",
    ),
    "definition of nothing": (
        lambda: program(Definition(x(t), Integer(1)), Definition(Function("q")(t), x(t)), fields=(x,)),
        r"q\(t\) is defined but q is not among",
    ),
    "unknown matrix": (
        lambda: program(Definition(x(t), Product(Symbol("Q"), False, y(t))), Definition(y(t), Integer(1))),
        r"matrix Q is applied to a vector, but the program has no matrix of this name",
    ),
    "wrong columns": (
        lambda: program(Definition(x(t), M.T @ y(t)), Definition(y(t), Integer(1))),
        r"M.T is applied to y\(t\), a vector of units; it must be a vector of others",
    ),
    "wrong rows": (
        lambda: program(Definition(x(t), M @ y(t)), Definition(y(t), Integer(1))),
        r"M gives x\(t\), a vector of units; it must be a vector of others",
    ),
    "wrong layer": (
        lambda: family(
            Definition(h(1, t), Integer(1)),
            Definition(h(ell + 1, t), Product(W(ell), False, h(ell - 1, t)), interior),
        ),
        r"W\(ell\) is applied to h\(ell - 1, t\), a vector of layer\(ell - 1\); it must be a vector of layer",
    ),
    "member not named": (
        lambda: family(
            Definition(h(1, t), Integer(1)),
            Definition(h(ell + 1, t), Product(Symbol("W"), False, h(ell, t)), interior),
        ),
        r"W is a family of matrices: write W\(ell\), not W",
    ),
    "vector across populations": (
        lambda: program(
            Definition(x(t), J @ (y(t) * z(t))),
            Definition(y(t), Integer(1)),
            Definition(z(t), Integer(1)),
            fields=(x, y, z),
        ),
        r"a vector of one population, but its fields, weights, data and attributes belong to: others, units",
    ),
    "entries across populations": (
        lambda: program(Definition(x(t), 1 + z(t)), Definition(z(t), Integer(1)), fields=(x, z)),
        r"x\(t\) is a vector of units but uses z\(t\), a vector of others",
    ),
    "factor across populations": (
        lambda: program(
            Definition(x(t), z(t) * (J @ y(t))),
            Definition(y(t), Integer(1)),
            Definition(z(t), Integer(1)),
            fields=(x, y, z),
        ),
        r"x\(t\) is a vector of units but uses z\(t\)",
    ),
    "parameter elsewhere": (
        lambda: program(Definition(z(t), b.symbol), fields=(z,), vectors=(b,)),
        r"z\(t\) is a vector of others but uses b, a vector of units",
    ),
    "product inside a function": (
        lambda: program(Definition(x(t), tanh(J @ y(t))), Definition(y(t), Integer(1))),
        r"must be a term of its own.*define a field for J @ y\(t\)",
    ),
    "product of products": (
        lambda: program(Definition(x(t), (J @ y(t)) * (J.T @ y(t))), Definition(y(t), Integer(1))),
        r"must be a term of its own",
    ),
    "square of a product": (
        lambda: program(Definition(x(t), (J @ y(t)) ** 2), Definition(y(t), Integer(1))),
        r"must be a term of its own",
    ),
    "nested products": (
        lambda: program(Definition(x(t), J @ phi(J @ y(t))), Definition(y(t), Integer(1))),
        r"applies J to phi\(J @ y\(t\)\), .* define a field that is J @ y\(t\)",
    ),
    "parameter inside a mean": (
        lambda: program(
            Definition(x(t), Integer(1)),
            Definition(Function("f")(t), Mean(b.symbol * x(t))),
            fields=(x,),
            vectors=(b,),
            scalars=("f",),
        ),
        r"define a field for b",
    ),
    "number made of entries": (
        lambda: program(
            Definition(x(t), Integer(1)), Definition(Function("f")(t), x(t)), fields=(x,), scalars=("f",)
        ),
        r"f\(t\) is a scalar but uses the vector x\(t\): take its Mean",
    ),
    "field on a given population": (
        lambda: program(
            Definition(Function("q")(t), Integer(1)), fields=(Field("q", Population("input", given=True)),)
        ),
        r"field q is a vector of the population input, which is given",
    ),
    "symmetry of an oblong matrix": (
        lambda: program(
            Definition(x(t), Integer(1)), fields=(x,), matrices=(replace(M, symmetry=Symbol("tau")),)
        ),
        r"symmetry = tau of M, which maps units to others: must be 0",
    ),
    "flow within steps": (
        lambda: program(Definition(x(t), -x(t), evolves=True), fields=(x,)),
        r"x\(t\) evolves in continuous time, but the program's rule has discrete steps",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_ill_posed_program_is_refused_with_the_reason(what: str) -> None:
    make, reason = REFUSED[what]
    with pytest.raises(ProgramError, match=reason):
        make()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: mlp(0), "depth = 0"),
        (lambda: mlp(2, "swish"), "activation = 'swish': must be one of linear, .* SymPy function"),
        (lambda: mlp(2, rule="adamax"), "rule = 'adamax': must be 'gd', 'flow', .* adam"),
        (lambda: mlp(2, rule="adagrad"), "rule = 'adagrad': .*Entrywise makes a rule"),
        (lambda: mlp(2, rule="adam", weight_decay=1), "weight_decay = 1 with rule = 'adam': .* 'adamw'"),
        (lambda: mlp(2, rule="lion", momentum=0.5), "momentum = .* with rule = 'lion'"),
        (lambda: entrywise_rule("sign", beta1=0.5), "beta1 with rule = 'sign'"),
        (lambda: mlp(2, loss="max"), "loss = 'max'"),
        (lambda: mlp().at_depth(0), "depth = 0"),
        (lambda: mlp(2).at_depth(5), "depth = 5: .* has the depth 2, which cannot be changed"),
        (lambda: mean_field(mlp(2)).at_depth(5), "depth = 5: .* has the depth 2, which cannot be changed"),
    ],
)
def test_the_builder_names_what_it_does_not_know(call: Callable[[], Program], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        call()


# -- indices that nothing carries in -------------------------------------------------------------------------


def arguments(p: Program) -> dict[str, set[int]]:
    return {d.name: {len(e.lhs.args) for e in p.definitions if e.name == d.name} for d in p.definitions}


def test_backward_fields_of_a_linear_network_lose_the_sample_index() -> None:
    assert arguments(mlp()) == {"h": {3}, "f": {2}, "Delta": {2}, "g": {2}}
    assert arguments(mlp(L, phi)) == {"h": {3}, "f": {2}, "Delta": {2}, "g": {3}, "z": {3}}


def test_an_index_stays_if_data_carry_it_in_anywhere_upstream() -> None:
    samples = (IndexRange(mu, Integer(1), P),)
    data = Population("input", given=True)
    W0 = GaussianMatrix("W0", units, data)
    vector = GivenVector("v", data, "K_v")

    def make(carried: bool) -> Program:
        first = W0 @ vector(mu) if carried else W0 @ vector(1)
        a, c = Function("x"), Function("y")
        return Program(
            "chain",
            GradientDescent(eta),
            (x, y),
            (Definition(a(mu, t), first, samples), Definition(c(mu, t), J @ a(mu, t), samples)),
            (W0, J),
            given=(vector,),
        ).drop_idle_indices()

    assert arguments(make(True)) == {"x": {2}, "y": {2}}
    assert arguments(make(False)) == {"x": {1}, "y": {1}}
    assert all(d.ranges == () for d in make(False).definitions)


def test_dropping_idle_indices_twice_changes_nothing() -> None:
    for p in (mlp(), mlp(3, phi), mlp(L, tied=False)):
        assert p.drop_idle_indices() == p


def test_times_and_layers_are_never_dropped() -> None:
    p = mlp()
    assert all(d.lhs.args[-1] == t for d in p.definitions)
    assert {d.lhs.args[0] for d in p.definitions if d.name == "g"} == {L, ell}


# -- the rest ------------------------------------------------------------------------------------------------


def test_what_a_definition_needs_comes_in_the_order_of_the_program() -> None:
    for needs in _uses(mlp(L, phi, bias=True)):
        assert list(needs) == sorted(needs)


@pytest.mark.slow
def test_causal_order_is_the_same_in_each_process() -> None:
    code = "from derive.program.networks import attention as a; print([d.lhs for d in a(1).causal_order()])"
    found = set()
    for seed in "01":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        found.add(subprocess.check_output([sys.executable, "-c", code], env=environment, text=True))
    assert len(found) == 1


def test_causal_order_puts_everything_after_what_it_uses() -> None:
    names = [d.name for d in mlp(L, phi).causal_order()]
    assert names.index("h") < names.index("z") < names.index("f") < names.index("Delta")
    assert sorted(names) == sorted(d.name for d in mlp(L, phi).definitions)


def test_depth_is_substitution() -> None:
    for activation in ("linear", phi):
        assert mlp(L, activation).at_depth(3) == mlp(3, activation)


def test_terms_are_expanded_outside_products_only() -> None:
    e = (x(t) + 1) * (J @ (y(t) * (y(t) + 1)))
    assert set(terms(e)) == {x(t) * (J @ (y(t) * (y(t) + 1))), J @ (y(t) * (y(t) + 1))}
    p = program(Definition(x(t), (1 + y(t)) * (J @ (y(t) * (y(t) + 1)))), Definition(y(t), Integer(1)))
    assert [z.kind for z in mean_field(p).equation("x").terms] == ["source", "source"]


def test_rules() -> None:
    assert training_rule("gd", "mean").rate == eta / P
    assert training_rule("flow").memory(t, s) == (1, 1)
    assert training_rule("multistep", "mean").memory(t, s) == (1, Function("w")(t, s) / P)
    p = mlp(2).with_rule(Multistep())
    assert {w.rule for w in p.trained()} == {Multistep()}
    assert p.with_rule(GradientFlow()).rule == GradientFlow()


def test_looking_things_up() -> None:
    p = mlp(L, phi)
    assert p.field_of("h") is not None
    assert p.field_of("q") is None
    assert p.given_of("x") is not None
    assert [w.name for w in p.trained()] == ["W0", "W", "w"]
    assert str(p.site_of(phi(Function("h")(ell + 1, alpha, t))).site) == "ell + 1"


def test_a_trained_network_carries_its_loss() -> None:
    f, y, n = Function("f"), Function("y"), Symbol("n", positive=True)
    square = (y(mu) - f(mu, t)) ** 2 / 2
    plain = mlp(L, "tanh", loss="mean")
    assert plain.loss == square  # that of one sample: the mean over samples is in the rate
    assert plain.descent is not None
    assert plain.descent.scale == gamma0
    for same in (
        plain.at_depth(3),
        plain.with_rule(GradientFlow()),
        plain.drop_idle_indices(),
        replace(plain, notation={}),
    ):
        assert (same.loss, same.descent) == (plain.loss, plain.descent)
    moved = plain.map(lambda e: e.xreplace({gamma0: n}).replace(y, lambda i: 2 * y(i)))
    assert moved.loss == (2 * y(mu) - f(mu, t)) ** 2 / 2
    assert moved.descent is not None
    assert moved.descent.scale == n


def test_a_program_that_goes_down_no_gradient_says_so() -> None:
    trained = mlp(2, "tanh")
    for edited in (mlp(2, "tanh", tied=False), feedback_alignment(2, "tanh"), independent_backward(trained)):
        assert edited.loss == trained.loss
        assert edited.descent is None
    lines = program(Definition(x(t), b.symbol), Definition(y(t), J @ x(t)), matrices=(J,), vectors=(b,))
    assert lines.loss is None
    assert lines.descent is None


def test_a_loss_of_what_the_program_does_not_compute_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"the loss k\(t\)\*\*2 uses k\(t\), but k is not among"):
        replace(mlp(2, "tanh"), loss=Function("k")(t) ** 2)
    with pytest.raises(ProgramError, match="give the loss too"):
        replace(mlp(2, "tanh"), loss=None)


def test_roles_are_read_off_a_program_whatever_its_names() -> None:
    """Names, indices and their order are free; the roles name what a stranger called them."""
    n, c, size = Symbol("n", integer=True), Symbol("kind", integer=True), Symbol("batch", positive=True)
    score, label, importance = Function("score"), Function("label"), Function("importance")
    layer, pixels = Population("cells"), Population("pixels", given=True)
    x, a = GivenVector("image", pixels, "overlap"), Field("a", layer.at(ell), layered=True)
    U = GaussianMatrix("U", layer.at(1), pixels)
    V = GaussianMatrix("V", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, Integer(1), L - 1))
    w = GaussianVector("w", layer.at(L), indices=(IndexRange(c, Integer(1), Integer(3)),))
    slope = importance(n) * (label(n, c) - score(n, c, t)) ** 2 / 2
    program = Network(
        "stranger's",
        (a,),
        {
            a(1, n, t): U @ x(n),
            a(ell + 1, n, t): V(ell) @ tanh(a(ell, n, t)),
            score(n, c, t): Mean(w(c) * tanh(a(L, n, t))) / gamma0,
        },
        weights=(U, V, w),
        given=(x,),
        ranges=(IndexRange(n, Integer(1), size), IndexRange(c, Integer(1), Integer(3))),
    ).train(slope, GradientDescent(eta))
    roles = program.roles
    assert (roles.output, roles.sample, roles.samples) == (score(n, c, t), n, size)
    assert (roles.channel, roles.channels, roles.position) == (c, 3, None)
    assert (roles.target, roles.weight, roles.kernel) == ("label", "importance", "overlap")
    assert (roles.field, roles.feature) == ("a", tanh(a(ell, n, t)))
    gradients = [d for d in program.definitions if d.name == roles.gradient]
    assert [d.rhs.has(Function(roles.backpropagated)) for d in gradients if d.lhs.has(ell)] == [True]
    (error,) = (d for d in program.definitions if d.lhs == roles.error)
    assert error.rhs == importance(n) * (label(n, c) - score(n, c, t))


def test_roles_that_nothing_plays_are_none() -> None:
    assert {*vars(perceptron().roles).values()} == {None}
    roles = isotropic(2).roles
    assert (roles.output, roles.sample, roles.learnt, roles.residual) == (None, None, "v", "Delta")
    assert str(convolution(2, positions=3, receptive=1).roles.position) == "p"


def test_a_program_without_trained_weights_has_no_plain_steps() -> None:
    program = mlp(2)
    matrices, vectors = tuple(map(gaussian, program.matrices)), tuple(map(parameter, program.vectors))
    frozen = replace(program, matrices=matrices, vectors=vectors, descent=None)
    with pytest.raises(NotApplicable, match="has no trained weights"):
        plain_steps(frozen)


def test_a_program_shows_its_equations_and_not_the_fields_of_its_class() -> None:
    program = mlp(2, "tanh")
    text, tex = repr(program), program._repr_latex_()
    assert "  f(mu, t)          = Mean(z(2, mu, t)*tanh(h(2, mu, t)))/gamma0, mu = 1..P\n" in text
    assert "  weights: W0, W, w\n" in text
    assert "Definition(" not in text
    assert r"h^{1}_{\mu}(t) &= W_0 x_{\mu}" in tex
