"""Both routes give the same theory, and the comparison sees it when they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import (
    Expr,
    Function,
    Integer,
    Integral,
    KroneckerDelta,
    Lambda,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    latex,
    srepr,
    symbols,
    tanh,
)
from sympy.core.function import AppliedUndef

from derive.calculus.sums import without_empty
from derive.program import (
    Along,
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
    Network,
    Outer,
    P,
    Population,
    Program,
    ProgramError,
    TrainedMatrix,
    TrainedVector,
    alpha,
    ell,
    eta,
    gamma0,
    mu,
    s,
    t,
)
from derive.program.gradient_check import check_gradients
from derive.theory import Term, Theory
from derive.theory.compare import compare
from derive.theory.names import symmetric
from derive.theory.path_integral import path_integral
from derive.theory.routes import RoutesDisagree, check_routes
from tests.derive.once import mean_field, mlp
from tests.derive.programs import (
    excitatory_inhibitory,
    phi,
    rho_a,
    rho_b,
    there_and_back,
    trained_between_sizes,
)


@pytest.mark.parametrize(
    ("depth", "activation", "tied"),
    [
        (L, "linear", True),
        (L, phi, False),
        (1, phi, True),
        (2, phi, True),
        pytest.param(2, "linear", False, marks=pytest.mark.slow),
    ],
)
def test_both_routes_agree_on_perceptrons(depth: int, activation: object, tied: bool) -> None:
    assert check_routes(mlp(depth, activation, tied=tied)) == []


def test_responses_to_a_sum_meet_noise_of_the_past_alone() -> None:
    """The covariance of a noisy matrix at s < t, in every addend: one route left min(s, t) in some."""
    lam, D = symbols("lam D", positive=True)
    network = mlp(2, lambda z: z + tanh(z) / 2)
    assert check_routes(network.with_rule(GradientDescent(eta, decay=lam, diffusion=D))) == []


def test_numbers_in_denominators_are_those_in_front() -> None:
    """Noise in units of the initial variance: ``6 T/(3 x - 6)`` in the one, ``2 T/(x - 2)`` in the other."""
    lam, T = symbols("lam T", positive=True)
    noisy = {"weight_decay": lam, "temperature": T, "init_variance": Rational(3, 10), "outputs": 3}
    assert check_routes(mlp(1, tied=False, **noisy)) == []


def test_numbers_inside_an_average_and_in_front_of_it_are_the_same() -> None:
    h = Symbol("h")
    assert check_routes(mlp(3, Lambda(h, 5 * tanh(4 * h / 5) / 4), bias=True)) == []


def test_numbers_that_are_added_to_an_activation_are_their_own_averages() -> None:
    h = Symbol("h")
    assert check_routes(mlp(2, Lambda(h, tanh(h) + Rational(1, 2)))) == []


@pytest.mark.parametrize("depth", [pytest.param(2, marks=pytest.mark.slow), L])
def test_the_response_of_a_sum_is_the_sum_of_responses(depth: int) -> None:
    h = Symbol("h")
    assert check_routes(mlp(depth, Lambda(h, h + tanh(h) / 2))) == []


@pytest.mark.parametrize(("rule", "loss"), [("gd", "mean"), ("flow", "sum"), ("multistep", "mean")])
def test_both_routes_agree_for_every_rule_and_loss(rule: str, loss: str) -> None:
    assert check_routes(mlp(L, phi, rule, loss)) == []


@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize("size", [1, 2])
def test_a_matrix_of_variance_zero_acts_through_its_updates_alone(is_trained: bool, size: int) -> None:
    """Nothing is random in it: it has no source, and no response to divide by its variance."""
    units, inputs = Population("units"), Population("inputs", given=True)
    wide = Population("wide", Integer(size)) if size > 1 else units
    h, k, x = Field("h", units), Field("k", wide), GivenVector("x", inputs, "K_x")
    J = GaussianMatrix(
        "J", wide, units, variance=S.Zero, symmetry=S.Zero if is_trained or size > 1 else S.Half
    )
    U, w, f, y = GaussianMatrix("U", units, inputs), GaussianVector("w", wide), Function("f"), Function("y")
    forward = {
        h(mu, t): U @ x(mu),
        k(mu, t): J @ tanh(h(mu, t)),
        f(mu, t): Mean(w.symbol * tanh(k(mu, t))) / gamma0,
    }
    weights, frozen = ((U, J, w), ()) if is_trained else ((U, w), (J,))
    program = Network("zero", (h, k), forward, weights=weights, frozen=frozen, given=(x,)).train(
        (y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta)
    )
    assert check_routes(program) == []
    theory = mean_field(program)
    assert "J" not in {u.matrix for u in theory.sources}
    assert {e.kind for e in theory.equation("k").terms} == ({"memory"} if is_trained else set())


def test_an_untied_backward_pass_has_no_response() -> None:
    assert mean_field(mlp(L, tied=False)).responses() == ()
    assert mean_field(mlp(L, phi, tied=False)).responses() == ()
    assert {q.name for q in mean_field(mlp(L)).responses()} == {"A", "B"}


UNUSUAL = [excitatory_inhibitory(), there_and_back(), trained_between_sizes()]


@pytest.mark.parametrize("program", UNUSUAL, ids=lambda p: p.name)
def test_both_routes_agree_on_unusual_networks(program: Program) -> None:
    assert check_routes(program) == []


def test_an_update_meets_a_vector_in_units_of_n() -> None:
    """U = eta x y^T / N acts on v as eta x (|C|/N) <phi(y) v>, and transposed as eta phi(y) (|R|/N) <x v>."""
    theory = mean_field(trained_between_sizes())
    x, y, C, C_x = (Function(n) for n in ("x", "y", "C_phiy", "C_x"))
    memory = {
        e.name: [z.expr for z in e.terms if z.kind == "memory" and z.matrix == "M"] for e in theory.equations
    }
    assert memory["x"] == [Integral(eta * rho_b * C(s, t) * x(s), (s, 0, t))]
    assert memory["y"] == [Integral(eta * rho_a * C_x(t, s) * phi(y(s)), (s, 0, t))]


def test_populations_with_equal_activations_keep_their_correlations_apart() -> None:
    theory = mean_field(excitatory_inhibitory())
    assert {q.name for q in theory.correlations()} == {"C_phi_x", "C_phi_y"}
    assert len({u.symbol for u in theory.sources}) == 4
    x = theory.equation("x")
    assert {y.matrix for y in x.terms} == {"", "J_EE", "J_EI"}


def test_sources_of_one_matrix_on_two_vectors_are_correlated() -> None:
    theory = mean_field(there_and_back())
    cross = [u for u in theory.sources if u.symbol.func != u.partner.func]
    assert [str(u.covariance) for u in cross] == ["g*rho_a*C_phi_hphi_q(t, s)"]


# -- independence of the form of a program -------------------------------------------------------------------


def renamed(p: Program, names: dict[Symbol, Symbol]) -> Program:
    """Return the program with other sample indices, in definitions and in updates."""

    def over(rs: tuple[IndexRange, ...]) -> tuple[IndexRange, ...]:
        return tuple(IndexRange(names.get(r.index, r.index), r.lower, r.upper) for r in rs)

    q = p.map(lambda e: e.xreplace(names) if isinstance(e, Expr) else e)
    return replace(
        q,
        definitions=tuple(replace(d, ranges=over(d.ranges)) for d in q.definitions),
        matrices=tuple(
            replace(w, update=replace(w.update, over=over(w.update.over)))
            if isinstance(w, TrainedMatrix)
            else w
            for w in q.matrices
        ),
        vectors=tuple(
            replace(w, update=replace(w.update, over=over(w.update.over)))
            if isinstance(w, TrainedVector)
            else w
            for w in q.vectors
        ),
    )


NU = Symbol("nu", integer=True, positive=True)


@pytest.mark.parametrize(
    "names",
    [{mu: alpha, alpha: mu}, {mu: alpha}, pytest.param({alpha: NU}, marks=pytest.mark.slow)],
    ids=["exchanged", "alpha for both", "nu in updates"],
)
def test_names_of_sample_indices_do_not_matter(names: dict[Symbol, Symbol]) -> None:
    program = renamed(mlp(L, phi), names)
    assert compare(mean_field(program), mean_field(mlp(L, phi))) == []
    assert check_routes(program) == []


def test_counting_layers_from_the_other_end_does_not_matter() -> None:
    """W(ell - 1) h(ell - 1) for ell = 2..L is W(ell) h(ell) for ell = 1..L-1."""
    program = mlp()
    shifted = []
    for d in program.definitions:
        r = next((r for r in d.ranges if r.index == ell), None)
        if r is not None:
            ranges = tuple(IndexRange(ell, x.lower + 1, x.upper + 1) if x is r else x for x in d.ranges)
            d = Definition(d.lhs.xreplace({ell: ell - 1}), d.rhs.xreplace({ell: ell - 1}), ranges)
        shifted.append(d)
    other = replace(program, definitions=tuple(shifted))
    assert compare(mean_field(other), mean_field(program)) == []
    assert check_routes(other) == []


def test_a_product_in_two_definitions_is_one_source_and_answers_once() -> None:
    units = Population("units")
    x, y = Field("x", units), Field("y", units)
    J = GaussianMatrix("J", units, units)
    definitions = (
        Definition(x(t), -x(t) + J @ phi(y(t)), (), True),
        Definition(y(t), -y(t) + 2 * (J @ phi(y(t))) + J.T @ x(t), (), True),
    )
    program = Program("shared", GradientFlow(), (x, y), definitions, (J,))
    theory = mean_field(program)
    assert [str(u.symbol) for u in theory.sources] == ["u(t)", "r(t)"]
    assert [z.kind for z in theory.equation("y").terms].count("response") == 2
    assert check_routes(program) == []


# -- random programs -----------------------------------------------------------------------------------------


@st.composite
def networks(draw: st.DrawFn) -> Program:
    """Return rate networks on one to three populations of any size.

    Matrices are used at random in both directions.
    """
    count = draw(st.integers(1, 3))
    ratios, variances, taus = (symbols(f"{n}1:5", positive=True) for n in ("rho", "v", "tau"))
    populations = [Population(f"p{i}", ratios[i]) for i in range(count)]
    fields = [Field(f"x{i}", p) for i, p in enumerate(populations)]
    vectors = [[x(t), phi(x(t)), Function("psi")(x(t))] for x in fields]
    ends = draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), min_size=1, max_size=3)
    )
    matrices, force = [], [-x(t) for x in fields]
    for k, (rows, cols) in enumerate(ends):
        symmetry = taus[k] if rows == cols and draw(st.booleans()) else Integer(0)
        M = GaussianMatrix(f"M{k}", populations[rows], populations[cols], variances[k], symmetry=symmetry)
        matrices.append(M)
        for backward in (False, True):
            for which in draw(st.lists(st.integers(0, 2), max_size=2, unique=True)):
                to, source = (cols, rows) if backward else (rows, cols)
                force[to] += (M.T if backward else M) @ vectors[source][which]
    definitions = tuple(Definition(x(t), f, (), evolves=True) for x, f in zip(fields, force, strict=True))
    return Program("random", GradientFlow(), tuple(fields), definitions, tuple(matrices))


@settings(max_examples=3, deadline=None)
@given(networks())
def test_both_routes_agree_on_random_networks(program: Program) -> None:
    assert check_routes(program) == []


# -- the comparison ------------------------------------------------------------------------------------------


def changed(theory: Theory, part: str, fun: Callable[[Expr], Expr]) -> list[Theory]:
    """Return copies of a theory, each with one expression of one part changed."""
    copies = []
    items = getattr(theory, part)
    for i, item in enumerate(items):
        if part == "sources":
            variants = [replace(item, covariance=fun(item.covariance))]
        elif part == "order_parameters":
            variants = [replace(item, definition=fun(item.definition))]
        else:
            variants = [
                replace(item, terms=(*item.terms[:j], x.rewrite(fun), *item.terms[j + 1 :]))
                for j, x in enumerate(item.terms)
            ]
        copies += [replace(theory, **{part: (*items[:i], new, *items[i + 1 :])}) for new in variants]
    return copies


MUTATIONS: dict[str, Callable[[Expr], Expr]] = {
    "wrong sign": lambda e: -e,
    "lost factor": lambda e: 2 * e,
    "wrong layer": lambda e: e.subs({ell: ell + 1, L: L + 1}) if e.has(ell, L) else e + 1,
    "wrong time": lambda e: e.xreplace({t: Symbol("t2", nonnegative=True)}) if e.has(t) else e + 1,
    "left out": lambda e: e * 0,
}


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("part", ["equations", "scalars", "sources", "order_parameters", "observables"])
def test_every_planted_error_is_found(part: str, mutation: str) -> None:
    theory = mean_field(mlp(L, phi))
    for copy in changed(theory, part, MUTATIONS[mutation]):
        assert compare(theory, copy), f"{mutation} in {part} went unseen"


def test_what_is_missing_or_acausal_is_found() -> None:
    theory = mean_field(mlp(L, phi))
    for part in ("equations", "scalars", "sources", "order_parameters", "observables"):
        items = getattr(theory, part)
        for i in range(len(items)):
            assert compare(theory, replace(theory, **{part: (*items[:i], *items[i + 1 :])}))
    b = theory.order_parameter("B")
    strict = tuple(replace(q, causal="strict") if q is b else q for q in theory.order_parameters)
    (found,) = compare(theory, replace(theory, order_parameters=strict))
    assert "B(ell, mu, alpha, t, s)" in str(found)
    assert "past" in str(found)


def test_a_difference_names_field_term_and_both_expressions() -> None:
    theory = mean_field(mlp(2))
    wrong = theory.map(lambda e: e.subs(Symbol("eta", positive=True), 3) if e.has(Function("K_x")) else e)
    (found,) = [x for x in compare(theory, wrong) if x.part == "equation"]
    assert found.name == "h(1, mu, t)"
    assert "eta*gamma0" in str(found.left)
    assert "3*" in str(found.right)


def test_disagreement_is_raised_with_the_differences() -> None:
    class Twice(GradientDescent):
        """Rule whose memory counts every update twice, although its equation of motion does not."""

        def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
            kept, weight = super().memory(time, past)
            return kept, 2 * weight

    with pytest.raises(RoutesDisagree, match=r"equation h"):
        check_routes(mlp(2).with_rule(Twice(Symbol("eta"))))


def test_order_of_terms_and_names_of_dummies_do_not_count() -> None:
    theory = mean_field(mlp(L, phi))
    turned = replace(
        theory,
        equations=tuple(
            replace(
                e, terms=tuple(x.with_expression(x.expr.xreplace({alpha: NU})) for x in reversed(e.terms))
            )
            for e in reversed(theory.equations)
        ),
        sources=tuple(reversed(theory.sources)),
    )
    assert compare(theory, turned) == []


def test_differences_print_and_theories_survive_a_round_trip() -> None:
    theory = mean_field(mlp(3))
    assert compare(theory.at_depth(3), mean_field(mlp(L)).at_depth(3)) == []
    assert all(latex(e.eq) and srepr(e.rhs) for e in theory.equations)
    assert str(P) in str(theory.sources[0].ranges[0])


def test_only_the_correlation_of_a_vector_with_itself_is_symmetric() -> None:
    order = symmetric(mean_field(there_and_back()).order_parameters)
    own, cross = Function("C_phi_h"), Function("C_phi_hphi_q")
    assert (order(own(s, t)), order(own(t, s))) == (own(t, s), own(t, s))
    assert (order(cross(s, t)), order(cross(t, s))) == (cross(s, t), cross(t, s))


def test_correlations_that_only_the_tangent_kernel_needs_are_order_parameters() -> None:
    """Two layers, the second matrix frozen: C_g1 and C_k2 enter no equation, yet both routes list them."""
    first, second, inputs = Population("a"), Population("b"), Population("input", given=True)
    k1, g1, k2, g2 = Field("k1", first), Field("g1", first), Field("k2", second), Field("g2", second)
    x = GivenVector("x", inputs, "K_x")
    f, Delta, y = (Function(n) for n in ("f", "Delta", "y"))
    samples, past = IndexRange(mu, Integer(1), P), IndexRange(alpha, Integer(1), P)
    rule = GradientDescent(eta)
    W0, W1 = GaussianMatrix("W0", first, inputs), GaussianMatrix("W1", second, first)
    w = GaussianVector("w", second)
    program = Program(
        name="frozen second matrix",
        rule=rule,
        fields=(k1, g1, k2, g2),
        definitions=(
            Definition(k1(mu, t), W0 @ x(mu), (samples,)),
            Definition(k2(mu, t), W1 @ k1(mu, t), (samples,)),
            Definition(f(mu, t), Mean(g2(t) * k2(mu, t)) / gamma0, (samples,)),
            Definition(Delta(mu, t), y(mu) - f(mu, t), (samples,)),
            Definition(g2(t), w.symbol),
            Definition(g1(t), W1.T @ g2(t)),
        ),
        matrices=(TrainedMatrix(W0, Outer(gamma0 * Delta(alpha, t), g1(t), x(alpha), (past,)), rule), W1),
        vectors=(TrainedVector(w, Along(gamma0 * Delta(alpha, t), k2(alpha, t), (past,)), rule),),
        given=(x,),
        scalars=("f", "Delta"),
        constants=("y",),
        scale=gamma0,
    )
    assert {"C_g1", "C_k2"} <= {q.name for q in mean_field(program).order_parameters}
    assert check_routes(program) == []


def test_numbers_in_denominators_of_responses_are_no_difference() -> None:
    units, pixels = Population("units"), Population("pixels", given=True)
    a, b, x = Field("a", units), Field("b", units), GivenVector("x", pixels, "K_x")
    U, w = GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    W = GaussianMatrix("W", units, units, variance=S.Half)
    f, y = Function("f"), Function("y")
    forward = {
        a(mu, t): U @ x(mu),
        b(mu, t): W @ (a(mu, t) / (1 + exp(-a(mu, t)))),
        f(mu, t): Mean(w.symbol * b(mu, t)),
    }
    ranges = (IndexRange(mu, S.One, P),)
    gated = Network("gated", (a, b), forward, (U, W, w), given=(x,), ranges=ranges)
    assert check_routes(gated.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))) == []


@pytest.mark.parametrize("activation", [pytest.param(tanh, marks=pytest.mark.slow), lambda a: a])
def test_a_convolution_of_ones_own(activation: Callable[[Expr], Expr]) -> None:
    """The gradient of a linear one has no position: one response multiplies a vector at shifted positions."""
    p, m = symbols("p m", integer=True)
    units, pixels, shifts = Population("units"), Population("pixels", given=True), IndexRange(m, -1, 1)
    a, b, x = Field("a", units), Field("b", units), GivenVector("x", pixels, "K_x")
    U, w = GaussianMatrix("U", units, pixels, others=(shifts,)), GaussianVector("w", units)
    W = GaussianMatrix("W", units, units, others=(shifts,))
    f, y = Function("f"), Function("y")
    forward = {
        a(mu, p, t): Sum(U(m) @ x(mu, p + m), (m, -1, 1)),
        b(mu, p, t): Sum(W(m) @ activation(a(mu, p + m, t)), (m, -1, 1)),
        f(mu, t): Sum(Mean(w.symbol * activation(b(mu, p, t))), (p, 1, 3)) / gamma0,
    }
    ranges = (IndexRange(p, Integer(1), Integer(3)),)
    network = Network("convolution", (a, b), forward, (U, W, w), given=(x,), ranges=ranges)
    program = network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    assert "R_g_b_u_W" in {q.name for q in mean_field(program).order_parameters}
    assert check_routes(program) == []


def members(line: Callable[[GaussianMatrix, Field, Symbol], Expr]) -> Program:
    """Return a network whose second layer is a sum over three matrices."""
    e = Symbol("e", integer=True)
    units, pixels, three = Population("units"), Population("pixels", given=True), IndexRange(e, S.One, S(3))
    a, b, x = Field("a", units), Field("b", units), GivenVector("x", pixels, "K_x")
    U, w = GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    V, f, y = GaussianMatrix("V", units, units, others=(three,)), Function("f"), Function("y")
    forward = {
        a(mu, t): U @ x(mu),
        b(mu, t): Sum(line(V, a, e), (e, 1, 3)),
        f(mu, t): Mean(w.symbol * b(mu, t)) / gamma0,
    }
    network = Network("members", (a, b), forward, (U, V, w), given=(x,), ranges=(three,))
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def test_each_of_several_matrices_meets_one_vector() -> None:
    """Only the sum over members of a response was fixed."""
    assert check_routes(members(lambda V, a, e: V(e) @ tanh(a(mu, t)))) == []


@pytest.mark.parametrize(
    "line",
    [
        lambda V, a, e: V(e) @ (Function("prior")(e) * tanh(a(mu, t))),
        pytest.param(lambda V, a, e: Function("prior")(e) * (V(e) @ tanh(a(mu, t))), marks=pytest.mark.slow),
        pytest.param(lambda V, a, e: V(e) @ (tanh(a(mu, t)) / e), marks=pytest.mark.slow),
        lambda V, a, e: tanh(a(mu, t)) / (e + 1) * (V(e) @ tanh(a(mu, t))),
    ],
)
def test_members_with_factors_of_their_own(line: Callable[[GaussianMatrix, Field, Symbol], Expr]) -> None:
    """Their theory had a factor without its sum; each member now has a separate source."""
    program = members(line)
    assert check_routes(program) == []
    independent = {x.covariance.has(KroneckerDelta) for x in mean_field(program).sources if x.matrix == "V"}
    assert independent == {True}


def mixture(gate: Callable[[Symbol], Expr]) -> Program:
    """Return experts that share an input, each with a factor."""
    e = Symbol("e", integer=True)
    units, pixels, three = Population("units"), Population("pixels", given=True), IndexRange(e, S.One, S(3))
    a, b, c, x = Field("a", units), Field("b", units), Field("c", units), GivenVector("x", pixels, "K_x")
    U, w = GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    V, f, y = GaussianMatrix("V", units, units, others=(three,)), Function("f"), Function("y")
    forward = {
        a(mu, t): U @ x(mu),
        b(mu, e, t): V(e) @ tanh(a(mu, t)),
        c(mu, t): Sum(gate(e) * tanh(b(mu, e, t)), (e, 1, 3)),
        f(mu, t): Mean(w.symbol * c(mu, t)) / gamma0,
    }
    network = Network("mixture", (a, b, c), forward, (U, V, w), given=(x,), ranges=(three,))
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def test_a_mixture_of_experts() -> None:
    """Each expert has its gradient, and what goes back to the layer below is summed over experts."""
    program = mixture(Function("gate"))
    theory = mean_field(program)
    assert check_routes(program) == []
    back = theory.equation("z_a").terms
    assert next((x.kind, *[str(r.index) for r in x.over]) for x in back) == ("source", "e")
    (own,) = [q for q in theory.order_parameters if q.kind == "response" and q.name.startswith("R_g_b")]
    assert len(own.symbol.args) == 6  # samples, experts and times of both


@pytest.mark.parametrize(
    "line",
    [
        lambda V, c, a: V @ (c * tanh(a(mu, t))),
        pytest.param(lambda V, c, a: V @ (c * a(mu, t)), marks=pytest.mark.slow),
        lambda V, c, a: c * (V @ tanh(a(mu, t))),
    ],
)
def test_a_factor_whose_index_the_field_lacks(line: Callable[[GaussianMatrix, Expr, Field], Expr]) -> None:
    """The gradient held the index, and a sum of products of one matrix lost its sum in the theory."""
    e = Symbol("e", integer=True, positive=True)
    units, pixels, three = Population("units"), Population("pixels", given=True), IndexRange(e, S.One, S(3))
    a, b, x = Field("a", units), Field("b", units), GivenVector("x", pixels, "K_x")
    U, V, w = (
        GaussianMatrix("U", units, pixels),
        GaussianMatrix("V", units, units),
        GaussianVector("w", units),
    )
    f, y = Function("f"), Function("y")
    forward = {
        a(mu, t): U @ x(mu),
        b(mu, e, t): line(V, Function("c")(e), a),
        f(mu, t): Sum(Mean(w.symbol * tanh(b(mu, e, t))), (e, 1, 3)) / gamma0,
    }
    network = Network("weighted", (a, b), forward, (U, V, w), given=(x,), ranges=(three,))
    program = network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    assert check_routes(program) == []
    equations = mean_field(program).equations
    assert [q.lhs for q in equations if e in q.rhs.free_symbols - q.lhs.free_symbols] == []
    forward[b(mu, e, t)] = V @ tanh(Function("c")(e) * a(mu, t))
    inside = replace(network, forward=forward)
    with pytest.raises(
        ProgramError, match="no field in this expression has all indices of the expression, each index in"
    ):
        inside.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


@pytest.mark.parametrize("ordered", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_readout_of_a_sum_over_positions(ordered: bool) -> None:
    """An average of two sums is a sum of averages; a place of an ordered family is no limit and no power."""
    p, n = Symbol("p", integer=True, positive=True), Symbol("n", integer=True)
    units, pixels = Population("units"), Population("pixels", given=True)
    a, b, x = Field("a", units, ordered=ordered), Field("b", units), GivenVector("x", pixels, "K_x")
    U, V, w = (
        GaussianMatrix("U", units, pixels),
        GaussianMatrix("V", units, units),
        GaussianVector("w", units),
    )
    f, y = Function("f"), Function("y")
    if ordered:
        forward = {a(1, mu, p, t): U @ x(mu, p), a(n + 1, mu, p, t): V @ tanh(a(n, mu, p, t))}
        top = a(2, mu, p, t)
    else:
        forward = {a(mu, p, t): U @ x(mu, p), b(mu, p, t): V @ tanh(a(mu, p, t))}
        top = b(mu, p, t)
    forward[f(mu, t)] = Mean(w.symbol * Sum(tanh(top) ** 2, (p, 1, 2))) / gamma0
    fields = (a,) if ordered else (a, b)
    ranges = (IndexRange(p, S.One, S(2)), *((IndexRange(n, S.One, S.One),) if ordered else ()))
    network = Network("pooled", fields, forward, (U, V, w), given=(x,), ranges=ranges)
    program = network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    assert check_routes(program) == []
    pooled = [q for q in mean_field(program).order_parameters if q.definition.has(Sum)]
    assert pooled
    for q in pooled:
        sums = q.definition.atoms(Sum)
        assert {limit[1:] for x in sums for limit in x.limits} == {(1, 2)}
        assert all(x.function == tanh(y) ** 2 for x in sums for y in x.function.atoms(AppliedUndef))


def test_a_vector_of_weights_in_a_sum_is_refused() -> None:
    """Its theory was divided by the vector; both routes read it alike."""
    e = Symbol("e", integer=True, positive=True)
    units, pixels, three = Population("units"), Population("pixels", given=True), IndexRange(e, S.One, S(3))
    a, x = Field("a", units), GivenVector("x", pixels, "K_x")
    U, w = GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    B, f, y = GaussianVector("B", units, indices=(three,)), Function("f"), Function("y")
    forward = {
        a(mu, t): U @ x(mu) + Sum(Function("c")(e) * B(e), (e, 1, 3)),
        f(mu, t): Mean(w.symbol * tanh(a(mu, t))) / gamma0,
    }
    network = Network("biases", (a,), forward, (U, w, B), given=(x,), ranges=(three,))
    with pytest.raises(ProgramError, match=r"define a field for B\(e\), and sum this field"):
        network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def test_members_are_used_all_or_not_at_all() -> None:
    """A single member of a family is a matrix of another kind than the sum over all of them."""
    with pytest.raises(
        ProgramError, match=r"uses V\(1\): a definition must use all members of V, over \(e, 1, 3\)"
    ):
        members(lambda V, a, e: V(1) @ tanh(a(mu, t)))


@lru_cache(maxsize=1)
def members_in_different_places() -> Program:
    """Return a network in which the transpose of W(2) is applied, and that of W(1) is not."""
    layer, pixels = Population("layer"), Population("input", given=True)
    x, w = GivenVector("x", pixels, "K_x"), GaussianVector("w", layer.at(2))
    h, q, p = (Field(name, layer, layered=True) for name in "hqp")
    W0 = GaussianMatrix("W0", layer.at(1), pixels)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, S(2)))
    f, y = Function("f"), Function("y")
    forward = {
        h(1, mu, t): W0 @ x(mu),
        h(2, mu, t): W(1) @ h(1, mu, t),
        q(3, mu, t): W(2) @ h(2, mu, t),
        p(2, mu, t): W(2).T @ q(3, mu, t),
        f(mu, t): Mean(w.symbol * p(2, mu, t)) / gamma0,
    }
    net = Network("there and back", (h, q, p), forward, (W,), (W0, w), given=(x,), depth=S(3))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def test_members_of_a_family_of_matrices_in_different_places() -> None:
    """Updates of other members were terms 0 of the equations, with correlations of no layer."""
    theory = mean_field(members_in_different_places())
    assert all(without_empty(x.expr) != 0 for e in theory.equations for x in e.terms)
    ranges = [r for x in theory.order_parameters for r in x.ranges]
    assert not any((r.upper - r.lower).is_negative for r in ranges)


def test_both_routes_agree_on_members_in_different_places() -> None:
    """The correlations of no layer ended the second derivation in a traceback."""
    program = members_in_different_places()
    assert compare(mean_field(program), path_integral(program).theory()) == []


def test_gradients_of_members_in_different_places() -> None:
    """An update of other members, at layers that a vector does not have, made the gradient unknown."""
    assert check_gradients(members_in_different_places()) == []


def test_sums_in_functions_are_compared_with_all_of_their_indices() -> None:
    """The indices of two nested sums in a function were called the same, so that A(i, j) was as A(j, i)."""
    theory = mean_field(mlp(1))
    i, j, k = symbols("i j k", integer=True)
    c, A = Function("c"), Function("A")

    def of(e: Expr) -> Theory:
        """Return the theory with the equation ``f = e`` of its output."""
        output, *others = theory.scalars
        return replace(theory, scalars=(replace(output, terms=(Term.local(e),)), *others))

    def nested(e: Expr, x: Symbol, y: Symbol) -> Theory:
        return of(tanh(Sum(c(x) * Sum(e, (y, 1, 3)), (x, 1, 3))))

    assert compare(nested(A(i, j), j, i), nested(A(j, i), j, i))
    assert not compare(nested(A(i, j), j, i), nested(A(k, i), i, k))
    twice = [tanh(Sum(tanh(Sum(e, (i, 1, 3))), (j, 1, 3))) for e in (A(i, j), A(j, i))]
    assert compare(of(twice[0]), of(twice[1]))
    flat = tanh(Sum(A(i, j) * c(i), (i, 1, 3), (j, 1, 3)))
    assert not compare(of(flat), nested(A(j, i), j, i))
    assert compare(of(flat), of(tanh(Sum(A(i, j) * c(j), (i, 1, 3), (j, 1, 3)))))
