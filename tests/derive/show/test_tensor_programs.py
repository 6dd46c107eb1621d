"""The dictionary of table N1: our theories in the notation of Tensor Programs."""

import pytest
from sympy import Function, S, Sum, Symbol, preorder_traversal, sin, tanh

from derive import latex, text
from derive.errors import NotApplicable
from derive.linear.projection import error_projected
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
    Outer,
    Population,
    Product,
    Program,
    TrainedMatrix,
    TrainedVector,
    convolution,
    ell,
    eta,
    muon,
    s,
    t,
)
from derive.theory.tensor_programs import Dot, Expectation, Hat, Partial, Z, tensor_program
from tests.derive.once import mean_field, mlp

phi, x, dh, dx, chi = (Function(n) for n in ("phi", "x", "dh", "dx", "chi"))
slot = Symbol("slot")


def dphi(v):
    return phi(slot).diff(slot).subs(slot, v)


def one_pass(gamma0=S.One, eta=S.One) -> Program:
    """Return a deep network with one new input vector xi(t) at every step."""
    rule = GradientDescent(eta)
    layer, inputs = Population("layer"), Population("input", given=True)
    h, z, g = (Field(n, layer, layered=True) for n in "hzg")
    xi = GivenVector("xi", inputs, "K_x")
    f, y = Function("f"), Function("y")
    inner, hidden = IndexRange(ell, S.One, L - 1), IndexRange(ell, S.One, L)
    W0 = GaussianMatrix("U", layer.at(1), inputs)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=inner, responses=("A", "B"))
    w = GaussianVector("w", layer.at(L))

    def step(left, right):
        return Outer(-gamma0 * chi(t), left, right)

    return Program(
        name="one pass",
        rule=rule,
        fields=(h, z, g),
        definitions=(
            Definition(h(1, t), W0 @ xi(t)),
            Definition(h(ell + 1, t), W(ell) @ phi(h(ell, t)), (inner,)),
            Definition(f(t), Mean(z(L, t) * phi(h(L, t))) / gamma0),
            Definition(chi(t), f(t) - y(t)),
            Definition(z(L, t), w.symbol),
            Definition(z(ell, t), W(ell).T @ g(ell + 1, t), (inner,)),
            Definition(g(ell, t), dphi(h(ell, t)) * z(ell, t), (hidden,)),
        ),
        matrices=(
            TrainedMatrix(W0, step(g(1, t), xi(t)), rule),
            TrainedMatrix(W, step(g(ell + 1, t), phi(h(ell, t))), rule),
        ),
        vectors=(TrainedVector(w, Along(-gamma0 * chi(t), phi(h(L, t))), rule),),
        given=(xi,),
        scalars=("f", "chi"),
        constants=("y",),
        scale=gamma0,
    )


NAMES = {
    phi(Function("h")(ell, t)): x(ell, t),
    Function("g")(ell, t): dh(ell, t),
    Function("z")(ell, t): dx(ell, t),
}


def equation(tp, lhs):
    return next(e.rhs for e in tp.equations if e.lhs == lhs)


def test_at_unit_richness_the_equations_are_those_of_tensor_programs():
    """(N.10) at gamma0 = eta = 1: Z^h = hat + dot - sum chi_s Z^dh_s E[Z^x_s Z^x_t], and backwards."""
    tp = tensor_program(mean_field(one_pass()), NAMES)
    W, h = Function("W"), Function("h")
    forward, backward = Product(W(ell), False, x(ell, t)), Product(W(ell), True, dh(ell + 1, t))
    assert equation(tp, Z(h(ell + 1, t))) == (
        Hat(forward)
        + Dot(forward)
        + Sum(-chi(s) * Z(dh(ell + 1, s)) * Expectation(Z(x(ell, s)) * Z(x(ell, t))), (s, 0, t - 1))
    )
    assert equation(tp, Z(dx(ell, t))) == (
        Hat(backward)
        + Dot(backward)
        + Sum(-chi(s) * Z(x(ell, s)) * Expectation(Z(dh(ell + 1, s)) * Z(dh(ell + 1, t))), (s, 0, t - 1))
    )


def test_dots_are_sums_of_expected_derivatives():
    """(N1): theta_ts = E[d Z^x_t / d hat Z^{W^T dh_s}], before t forwards and up to t backwards."""
    tp = tensor_program(mean_field(one_pass()), NAMES)
    W = Function("W")
    forward, backward = Product(W(ell), False, x(ell, t)), Product(W(ell), True, dh(ell + 1, t))
    dots = {e.lhs: e.rhs for e in tp.dots}
    earlier = Hat(backward.xreplace({t: s}))
    assert dots[Dot(forward)] == Sum(
        Z(dh(ell + 1, s)) * Expectation(Partial(Z(x(ell, t)), earlier)), (s, 0, t - 1)
    )
    earlier = Hat(forward.xreplace({t: s}))
    assert dots[Dot(backward)] == Sum(
        Z(x(ell, s)) * Expectation(Partial(Z(dh(ell + 1, t)), earlier)), (s, 0, t)
    )


def test_hats_have_the_covariances_of_what_the_matrix_meets():
    tp = tensor_program(mean_field(one_pass()), NAMES)
    W = Function("W")
    hat = Hat(Product(W(ell), False, x(ell, t)))
    wanted = Expectation(Z(x(ell, t)) * Z(x(ell, s)))
    assert dict(e.args for e in tp.covariances)[Expectation(hat * hat.xreplace({t: s}))] == wanted


@pytest.mark.parametrize("style", ["Z", "ket"])
@pytest.mark.parametrize("format", ["text", "latex"])
def test_everything_prints(format, style):
    text = tensor_program(mean_field(one_pass()), NAMES).render(format, style)
    assert ("Z" in text) == (style == "Z")
    assert ("langle" in text or "⟩" in text) == (style == "ket")
    assert "Product" not in text
    assert "^{\\ell}^" not in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("program", [mlp(1), mlp(), mlp(3), mlp(tied=False)], ids=str)
def test_a_theory_without_responses_has_no_dots_and_none_is_lost(program):
    theory = mean_field(program)
    tp = tensor_program(theory)
    responses = [x for e in theory.equations for x in e.terms if x.kind == "response"]
    assert len(tp.dots) == len(responses)
    named = {q.name for q in theory.order_parameters}
    for e in (*tp.equations, *tp.dots, *tp.covariances):
        assert not named & {str(a.func) for a in preorder_traversal(e) if hasattr(a, "func")}


@pytest.mark.parametrize("wrong", [{"format": "html"}, {"style": "bra"}])
def test_what_cannot_be_printed_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        tensor_program(mean_field(mlp(1))).render(**wrong)


def test_no_exponent_stands_on_an_exponent():
    """TeX refuses ``Z^{w}^{2}``, and SymPy takes a class called Dot for a scalar product to be bracketed."""
    text = tensor_program(mean_field(one_pass()), NAMES).render("latex")
    assert r"\left(Z^{w}\right)^{2}" in text
    assert r"\left(\dot" not in text


def test_a_slope_is_not_that_of_the_renamed_vector():
    assert r"\dot{\phi}(h^{\ell}(t))" in tensor_program(mean_field(one_pass()), NAMES).render("latex")


def test_fields_that_evolve_are_refused() -> None:
    """Once a bare StopIteration."""
    units = Population("units")
    a, J = Field("a", units), GaussianMatrix("J", units, units)
    line = Definition(a(t), -a(t) + J @ tanh(a(t)), evolves=True)
    program = Program("rate network", GradientFlow(), (a,), (line,), matrices=(J,), notation={a(t): "C"})
    with pytest.raises(NotApplicable, match=r"a\(t\) is defined by its rate of change"):
        tensor_program(mean_field(program))
    with pytest.raises(NotApplicable, match="the theory has no equation of the field h"):
        tensor_program(mean_field(mlp(2)).at_depth(2))
    with pytest.raises(NotApplicable, match=r"u_p\(ell \+ 1, s\) does not .* a reduction \(error projection"):
        tensor_program(error_projected(mean_field(mlp(2))))  # a bare IndexError


def test_spectral_rules() -> None:
    """Gram matrices of the gradient are scalars of the theory, and were looked for among the fields."""
    rules = {"W": muon(eta)}
    tp = tensor_program(mean_field(mlp(2, "tanh", rule=GradientDescent(eta), rules=rules)))
    fields = [str(e.lhs.args[0].func) for e in tp.equations]
    assert fields == ["h", "h", "z", "z", "g"]
    overlap = next(e for e in tp.scalars if str(e.lhs.func) == "Overlap_W")
    _, first, second, _ = overlap.lhs.args
    h = Function("h")
    assert overlap.rhs == Expectation(Z(tanh(h(ell, first, t))) * Z(tanh(h(ell, second, t))))


def two_uses(line) -> Program:
    """Return a program whose field z is defined by ``line`` of a matrix and a field h, with a way back."""
    units, inputs = Population("units"), Population("input", given=True)
    h, z, xi = Field("h", units), Field("z", units), GivenVector("xi", inputs, "K_x")
    U, W = GaussianMatrix("U", units, inputs), GaussianMatrix("W", units, units)
    lines = (
        Definition(h(t), U @ xi(t) + W.T @ tanh(z(t - 1))),
        Definition(z(t), line(W, h(t))),
    )
    return Program("two uses", GradientFlow(), (h, z), lines, matrices=(U, W), given=(xi,))


def test_each_product_with_one_matrix_has_its_dot() -> None:
    """The responses of both products stood under the first dot, and the second one was missing."""
    W, h, b = Symbol("W"), Function("h"), Symbol("b")
    program = two_uses(lambda W, h: W @ tanh(h) + b * (W @ sin(h)))
    tp = tensor_program(mean_field(program))
    one, other = (Product(W, False, f(h(t))) for f in (tanh, sin))
    assert equation(tp, Z(Function("z")(t))) == (Hat(one) + Dot(one) + b * Hat(other) + b * Dot(other))
    dots = {e.lhs: e.rhs for e in tp.dots}
    for product in (one, other):
        (partial,) = dots[Dot(product)].atoms(Partial)
        assert partial.args[0] == Z(product.vector)


def test_a_product_with_two_factors_has_one_dot() -> None:
    """The dot was divided by the first factor alone."""
    W, h, a, b = Symbol("W"), Function("h"), Symbol("a"), Symbol("b")
    tp = tensor_program(mean_field(two_uses(lambda W, h: (a + b) * (W @ tanh(h)))))
    product = Product(W, False, tanh(h(t)))
    parts = Hat(product) + Dot(product)
    assert equation(tp, Z(Function("z")(t))) == (a * parts + b * parts).expand()
    (dot,) = (e.rhs for e in tp.dots if e.lhs == Dot(product))
    assert not dot.has(a, b)


def test_the_products_of_a_convolution_stand_in_one_sum() -> None:
    """The sum over offsets was lost, so that one offset remained as a free index."""
    tp = tensor_program(mean_field(convolution(2, positions=3, receptive=1)))
    offset = next(x for e in tp.dots for x in e.lhs.atoms(Sum)).limits[0][0]
    for e in (*tp.equations, *tp.dots, *tp.covariances):
        assert offset not in e.free_symbols
    hats = [e.lhs for e in tp.covariances if e.lhs.has(Hat)]
    assert hats
    assert all(x.args[0].has(Sum) for e in hats for x in e.atoms(Hat))


def test_each_of_several_matrices_has_its_dot_in_their_sum() -> None:
    e, a = Symbol("e", integer=True), Function("a")
    three = IndexRange(e, S.One, S(3))
    units, inputs = Population("units"), Population("input", given=True)
    h, z, xi = Field("h", units), Field("z", units), GivenVector("xi", inputs, "K_x")
    U, W = GaussianMatrix("U", units, inputs), GaussianMatrix("W", units, units, others=(three,))
    lines = (
        Definition(h(t), U @ xi(t) + Sum(W(e).T @ tanh(z(t - 1)), (e, 1, 3))),
        Definition(z(t), Sum(a(e) * (W(e) @ tanh(h(t))), (e, 1, 3))),
    )
    program = Program(
        "members", GradientFlow(), (h, z), lines, matrices=(U, W), given=(xi,), constants=("a",)
    )
    tp = tensor_program(mean_field(program))
    dot = Dot(Product(Function("W")(e), False, tanh(Function("h")(t))))
    assert equation(tp, Z(Function("z")(t))).has(Sum(a(e) * dot, (e, 1, 3)))
    assert not next(x.rhs for x in tp.dots if x.lhs == dot).has(a)


def test_a_matrix_and_its_vector_are_printed_without_a_second_reading() -> None:
    W, k = Function("W"), Symbol("k", integer=True)
    h, z = Function("h")(t), Function("z")(t)
    product = Product(W(ell, k), True, h + z)
    assert str(z * product) == "z(t)*(W(ell, k).T @ (h(t) + z(t)))"
    assert latex(product) == r"{W^{\ell}_{k}}^{\top} \left(h(t) + z(t)\right)"
    assert "@ (h(t) + z(t))" in text(product)
