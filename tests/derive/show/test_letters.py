"""Tests of letters: different symbols of a theory are printed differently, and brackets limit sums."""

import json
import re
from functools import cache

import pytest
from sympy import Add, Eq, Function, Product, S, Sum, Symbol, cos, exp, tanh
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    P,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from derive.show import aligned_latex, latex, text
from derive.theory.document import namespace, render
from tests.derive.once import convolution, isotropic, mean_field, mlp, perceptron, recurrent, structured

a, b, h = map(Function, "abh")
e, k, n = (Symbol(x, integer=True) for x in "ekn")
units, pixels = Population("units"), Population("pixels", given=True)
x, w = GivenVector("x", pixels, "gram"), GaussianVector("w", units)
f, y = Function("f"), Function("y")


def graph(i: str = "i", j: str = "j", rate=S.One) -> Program:
    """Return features of the nodes of a graph, summed over neighbours."""
    i, j = Symbol(i, integer=True), Symbol(j, integer=True)
    first, second, adjacent = Field("h0", units), Field("h1", units), Function("adj")
    F, W = GaussianMatrix("F", units, pixels), GaussianMatrix("W", units, units)
    forward = {
        first(mu, i, t): F @ x(mu, i),
        second(mu, i, t): Sum(adjacent(mu, i, j) * (W @ tanh(first(mu, j, t))), (j, 1, 3)),
        f(mu, t): Sum(Mean(w.symbol * tanh(second(mu, i, t))), (i, 1, 3)) / gamma0,
    }
    ranges = tuple(IndexRange(r, S.One, S(3)) for r in (i, j))
    net = Network("graph", (first, second), forward, weights=(F, W, w), given=(x,), ranges=ranges)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(rate))


def gated() -> Program:
    """Return experts mixed by the softmax of a gate."""
    experts = IndexRange(e, S.One, S(3))
    field, V = Field("q", units), GaussianMatrix("V", units, pixels)
    r, g = (GaussianVector(name, units, indices=(experts,)) for name in "rg")
    logit, opinion = Function("logit"), Function("opinion")
    forward = {
        field(mu, t): V @ x(mu),
        logit(mu, e, t): Mean(g(e) * tanh(field(mu, t))) / gamma0,
        opinion(mu, e, t): Mean(r(e) * tanh(field(mu, t))) / gamma0,
        f(mu, t): Sum(exp(logit(mu, e, t)) * opinion(mu, e, t), (e, 1, 3))
        / Sum(exp(logit(mu, e, t)), (e, 1, 3)),
    }
    net = Network("gated", (field,), forward, weights=(V, r, g), given=(x,), ranges=(experts,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(S.One))


alike = Symbol("i1") * Symbol("lamda") + Symbol("i_1") * Symbol("lambda") + Symbol("i_1_") + Symbol("pi")
MAKERS = {
    "mlp": mlp,
    "nonlinear": lambda: mlp(2, tanh),
    "convolution": lambda: convolution(2, positions=8, receptive=1),
    "recurrent": recurrent,
    "isotropic": isotropic,
    "structured": structured,
    "graph": graph,
    "words": lambda: graph("node", "e"),
    "alike": lambda: graph("p", "q", alike),
    "gated": gated,
}


@cache
def theory(name):
    return mean_field(MAKERS[name]())


PARTS = ("single-site", "order-parameters", "responses")


@cache
def written(name):
    """Return the equations of a theory: both sides, each as text, LaTeX and the expression."""
    pairs = []
    for part in (*PARTS, *(("action", "saddle-point") if name == "graph" else ())):
        for items in json.loads(render(theory(name), part, "json")).values():
            for item in items if isinstance(items, list) else ():  # the right-hand side comes last
                sides = [x for x in item.values() if isinstance(x, dict)]
                pairs.append([x | {"sympy": eval(x["srepr"], namespace())} for x in sides])
    return pairs


@cache
def letters(name, form, names=None):
    """Return the printed form of each index and number of a theory, without grouping characters."""
    write = latex if form == "latex" else text
    symbols = {y for sides in written(name) for side in sides for y in side["sympy"].atoms(Symbol)}
    return {y: re.sub(r"[{} ]", "", write(y, theory(name), names)) for y in symbols}


ALIKE = ("mlp", "structured")
"""Theories whose symbols those of the nonlinear and the isotropic one have too."""
NAMES = [pytest.param(x, marks=pytest.mark.slow) if x in ALIKE else x for x in MAKERS]


@pytest.mark.parametrize("names", ["papers", "plain"])
@pytest.mark.parametrize("form", ["text", "latex"])
@pytest.mark.parametrize("name", NAMES)
def test_each_symbol_has_a_letter_of_its_own(name, form, names):
    printed = letters(name, form, names)
    assert printed
    assert len({y.name for y in printed}) == len(set(printed.values()))


BOUND = {
    "text": r"[ΣΠ]_(\{[^{}]*\}|\S+)|∫\S+ d(\S+)",
    "latex": r"\\(?:sum|prod)(?:\\limits)?_\{((?:[^{}=<]|\{[^{}]*\})*)|\\int\S+ d(\S+?)\\,",
}


@pytest.mark.parametrize("form", ["text", "latex"])
@pytest.mark.parametrize("name", NAMES)
def test_no_bound_letter_is_free_in_its_equation(name, form):
    printed = letters(name, form)
    letter = "|".join(map(re.escape, sorted({x.rstrip("'") for x in printed.values()}, key=len)[::-1]))
    found = set()
    for sides in written(name):
        free = {printed[y] for side in sides for y in side["sympy"].free_symbols}
        for signs in re.findall(BOUND[form], sides[-1][form]):
            indices = re.split(r"[=<≤]|\\le", re.sub("[{} ]", "", "".join(signs)))[0]
            bound = set(re.findall(f"(?:{letter})'*", indices))
            assert bound
            assert not bound & free, sides[-1][form]
            found |= bound
    assert found


@pytest.mark.parametrize("form", ["text", "latex"])
def test_partners_of_an_index_have_one_prime_more(form):
    write = latex if form == "latex" else text
    assert [write(Symbol("i" + "_" * m)) for m in range(4)] == ["i", "i'", "i''", "i'''"]
    assert write(Symbol("i1__")) == ("i_1''" if form == "latex" else "i₁''")
    page = render(theory("graph"), "single-site", form)
    assert page.count("i''") > 3
    back = next(line for line in page.replace("\n   ", "").splitlines() if "z_" in line)
    assert "i''" in back


def test_an_index_is_not_taken_for_a_number():
    page = render(theory("graph"), "saddle-point")
    assert "-(√(-1)/γ₀)" in page
    assert "(i/γ₀)" not in page
    assert r"-\frac{\sqrt{-1}}{\gamma_0}" in render(theory("graph"), "saddle-point", "latex")
    assert "e^" not in render(theory("gated"), "order-parameters")
    assert "e^{" not in render(theory("gated"), "order-parameters", "latex")


def test_a_bound_letter_gets_a_prime_where_it_is_free():
    share = exp(a(e)) / Sum(exp(a(e)), (e, 1, n))
    assert text(share) == "(Σ_{e'=1..n} e^{a_e'})⁻¹ e^{a_e}"
    assert text(Sum(a(e) * Sum(b(e), (e, 1, n)) ** 2, (e, 1, n))) == "Σ_{e=1..n} (Σ_{e'=1..n} b_e')² a_e"
    assert aligned_latex([Eq(a(e), Sum(b(e), (e, 1, n)), evaluate=False)]) == (
        r"$$\begin{aligned}a_{e} &= \sum_{e'=1}^{n} b_{e'}\end{aligned}$$"
    )
    assert text(Sum(Sum(a(e, k), (k, 1, e)), (e, 1, k))) == "Σ_{e=1..k} Σ_{k'=1..e} a_ek'"


def test_a_sum_below_a_power_has_brackets():
    total = Sum(a(e), (e, 1, n))
    assert text(1 / total) == "(Σ_{e=1..n} a_e)⁻¹"
    assert text(total**2 * b(k)) == "(Σ_{e=1..n} a_e)² b_k"
    assert text(Sum(b(e), (e, 1, n)) / total) == "(Σ_{e=1..n} a_e)⁻¹ Σ_{e=1..n} b_e"
    assert text(total**k) == "(Σ_{e=1..n} a_e)^k"
    assert text(total**S.Half) == "√(Σ_{e=1..n} a_e)"
    assert text(Product(a(e), (e, 1, n)) ** 2) == "(Π_{e=1..n} a_e)²"
    assert text(h(t).diff(t) ** 2) == "(d/dt h(t))²"
    assert text(total * Sum(b(e), (e, 1, n))) == "(Σ_{e=1..n} a_e) Σ_{e=1..n} b_e"
    assert latex(total * Sum(b(e), (e, 1, n))) == (r"\left(\sum_{e=1}^{n} a_{e}\right) \sum_{e=1}^{n} b_{e}")
    assert "(Σ_e exp(logit_μe(t)))⁻¹ Σ_e exp(logit_μe(t)) opinion_μe(t)" in render(theory("gated"))


def test_factors_behind_a_product_are_not_in_it():
    weights = Product(1 - a(k), (k, 0, n))
    assert text(weights) == "Π_{k=0..n} (1 - a_k)"
    assert text(weights * h(t)) == "(Π_{k=0..n} (1 - a_k)) h(t)"
    assert latex(weights * h(t)).startswith(r"\left(\prod_{k=0}^{n} ")


def test_indices_that_are_words_stand_apart():
    assert text(a(Symbol("node", integer=True), e)) == "a_{node,e}"
    assert text(cos(a(e, k))) == "cos(a_ek)"
    atoms = {x for eq in theory("words").equations for x in eq.rhs.atoms(AppliedUndef)}
    assert all("noden" not in text(x, theory("words")) for x in atoms)


def test_order_parameters_have_the_letters_of_the_program():
    """A sample's letter does not denote a head; conjugate fields have these letters as indices too."""
    heads, positions = (IndexRange(Symbol(r, integer=True), S.One, S(3)) for r in "ck")
    c, p = heads.index, positions.index
    first, second = Field("a", units), Field("b", units)
    V, B = GaussianMatrix("V", units, pixels, others=(heads,)), GaussianMatrix("B", units, units)
    forward = {
        first(c, mu, p, t): V(c) @ x(mu, p),
        second(c, mu, p, t): B @ tanh(first(c, mu, p, t)),
        f(mu, t): Sum(Mean(w.symbol * tanh(second(c, mu, p, t))), (c, 1, 3), (p, 1, 3)) / gamma0,
    }
    net = Network("heads", (first, second), forward, weights=(V, B, w), given=(x,), ranges=(heads, positions))
    found = mean_field(net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(S.One)))
    page = render(found, "order-parameters")
    assert "C_tanh a,cμkc'αk'(t,s) = ⟨tanh(a_cμk(t)) tanh(a_c'αk'(s))⟩" in page
    page = render(found, "saddle-point")
    assert "Ĉ_tanh a,cμkc'αk'(t,s)".replace("Ĉ", "C\u0302") in page.replace("Ĉ", "C\u0302")
    assert "i₁" not in page
    for q in found.correlations():
        bounds = {r.index: r.upper for r in q.ranges}
        assert (bounds[mu], bounds[c], bounds[p]) == (P, 3, 3)


def test_a_sum_over_another_range_than_the_stated_one_shows_it() -> None:
    """An index runs over two positions in an equation, and over three in a sum."""
    k, v = Symbol("k", integer=True), Symbol("v", integer=True)
    units, vocab = Population("units"), Population("vocab", given=True)
    tok, emb = GivenVector("tok", vocab, "K_tok"), Field("emb", units, ordered=True)
    E, o = (
        GaussianMatrix("E", units, vocab),
        GaussianVector("o", units, indices=(IndexRange(v, S.One, S(3)),)),
    )
    f, y = Function("f"), Function("y")
    forward = {
        emb(1, mu, t): E @ tok(mu, 1),
        emb(k + 1, mu, t): E @ tok(mu, k + 1),
        f(mu, v, t): Mean(o(v) * emb(1, mu, t) * emb(2, mu, t) * emb(3, mu, t)) / gamma0,
    }
    ranges = (IndexRange(k, S.One, S(2)), IndexRange(v, S.One, S(3)))
    network = Network("words", (emb,), forward, (E, o), given=(tok,), ranges=ranges)
    program = network.train((y(mu, v) - f(mu, v, t)) ** 2 / 2, GradientDescent(eta))
    printed = mean_field(program).render("single-site")
    assert "k' = 1..2" in printed
    assert {*re.findall(r"Σ_(\{?k[^ ]*)", printed)} == {"{k,v'=1..3}", "{k',v'=1..3}"}


def test_a_kernel_of_the_data_called_K_is_not_printed_as_the_tangent_kernel() -> None:  # noqa: N802 (the letter K)
    inputs, hidden = Population("inputs", given=True), Population("hidden")
    a, z = Field("a", hidden), GivenVector("z", inputs, "K")
    A, v = GaussianMatrix("A", hidden, inputs), GaussianVector("v", hidden)
    o = Function("o")(mu, t)
    forward = {a(mu, t): A @ z(mu), o: Mean(v.symbol * tanh(a(mu, t))) / gamma0}
    network = Network("own kernel", (a,), forward, (A, v), given=(z,))
    printed = mean_field(network.train((Function("y")(mu) - o) ** 2 / 2, GradientDescent(eta))).render()
    assert "{u} ~ GP(0, K_μα)" in printed
    assert "K^NTK_μα(t,s) = K_μα " in printed


def test_names_with_digits_and_marks_have_one_subscript() -> None:
    """Two subscripts of one letter, as in ``a_1_{2}``, are no LaTeX."""
    assert latex(Symbol("eps1_2")) == r"{\epsilon_1}_{2}"
    phi, h = Function("phi_1"), Function("h")(t)
    assert latex(phi(h)) == r"\phi_{1}(h(t))"
    assert latex(phi(h).diff(h)) == r"\dot{\phi}_{1}(h(t))"
    assert latex(phi(h).diff(h, 3)) == r"\phi^{(3)}_{1}(h(t))"
    names = ("eps1", "epsilon1", "eps_1", "epsilon_1", "eps1_2", "epsilon1_2", "a1_b_c", "a_1_b_c")
    program = perceptron(loss=lambda z, y: Add(*[Symbol(x, real=True) for x in names]) * (z - y) ** 2)
    found = {x: latex(Symbol(x, real=True), mean_field(program)) for x in names}
    assert found["epsilon1"] == r"\mathrm{epsilon1}"
    assert len({re.sub(r"[{} ]", "", x) for x in found.values()}) == len(names)
    for x in found.values():
        flat = re.sub(r"_\{[^{}]*\}", "_", re.sub(r"^\{([^{}]*)\}", "X", x).replace(r"\_", ""))
        assert flat.count("_") <= 1, x
