"""selfconsistent2023, (12)-(14) and appendices D, E, G, H, I, N.10: printed equations equal derived ones.

Right-hand sides are compared as expressions, for any depth, activation and number of samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from sympy import Expr, Function, S, Sum, Symbol, simplify, sqrt

from derive.calculus.averages import Average, Response
from derive.calculus.sums import normal_form
from derive.program import GradientFlow, L, P, Product, Program, TrainedMatrix, alpha, ell, gamma0, mu, s, t
from derive.program.parts import gaussian
from derive.theory import Theory
from derive.theory.tensor_programs import Dot, Expectation, Hat, Z, tensor_program
from tests.derive.once import convolution, mean_field, mlp
from tests.derive.show.test_tensor_programs import NAMES, dh, dx, one_pass, x
from tests.ledger.claims.selfconsistent2023.convolution import S as REACH
from tests.ledger.claims.selfconsistent2023.convolution import X
from tests.ledger.claims.selfconsistent2023.widths import N
from tests.ledger.evidence.base import Evidence
from tests.ledger.evidence.identity import Pair, compared, sides
from tests.ledger.printed_forms import at, canonical, covariance, numbered, phi, printed

NEXT = {"h": ell + 1, "z": ell}
ENDS = {"h": S.One, "z": L}
SOURCE = "selfconsistent2023"
SITES = {"u": (ell + 1, S.One), "r": (ell, L)}
"""The layers at which the covariances of the sources are compared."""


def exactly(one: Expr, other: Expr) -> bool:
    """Return whether two expressions are identical."""
    return bool(one == other)


@lru_cache(maxsize=1)
def deep() -> Theory:
    """Return the theory of the deep network in gradient flow."""
    return mean_field(mlp(L, phi, "flow"))


@lru_cache(maxsize=1)
def wide() -> Theory:
    """Return the theory for unequal widths and variances, in the units of (D.53).

    There r has variance sigma^2 G and responses lack the factor 1/gamma0. The engine's r is c =
    sqrt(a(l+1)/a(l)) times that r, so that its A is A/(c gamma0), and its B is B/gamma0.
    """
    theory = mean_field(mlp(L, phi, "flow", relative_widths="a", init_variance="sigma"))
    a, r, A, B = (Function(n) for n in ("a", "r", "A", "B"))

    def ratio(k: Expr) -> Expr:
        return S.One if k == L else sqrt(a(k + 1)) / sqrt(a(k))

    def units(e: Expr) -> Expr:
        e = e.replace(r, lambda k, *i: ratio(k) * r(k, *i)).replace(B, lambda *i: B(*i) / gamma0)
        return e.replace(A, lambda k, *i: A(k, *i) / (ratio(k) * gamma0))

    equations = tuple(replace(e, terms=tuple(q.rewrite(units) for q in e.terms)) for e in theory.equations)
    return replace(theory, equations=equations)


def velocity(theory: Theory) -> Expr:
    """Return the velocity of an output from the derived tangent kernel."""
    return Sum(theory.observables[0].rhs.subs(s, t) * Function("Delta")(alpha, t), (alpha, 1, P))


def memory(theory: Theory, name: str, site: Expr) -> Expr:
    """Return the memory term of a field."""
    (term,) = [q.expr for q in theory.equation(name, site).terms if q.kind == "memory"]
    return term


def given_products(theory: Theory, name: str) -> Expr:
    """Return a field as its product with the initial weights, chi or xi, plus its memory."""
    start = Function({"h": "chi", "z": "xi"}[name])
    return start(NEXT[name], mu, t) + memory(theory, name, NEXT[name])


# -- one hidden layer or many --------------------------------------------------------------------------------


def _fields(number: str, theory: Theory) -> Iterator[Pair]:
    claim = sides(SOURCE, number)
    for name in ("h", "z"):
        for site in (NEXT[name], ENDS[name]):
            yield Pair(number, name, at(claim[name], site), theory.equation(name, site).rhs)


def _covariances(number: str, theory: Theory) -> Iterator[Pair]:
    claim = sides(SOURCE, number)
    for source, sites in SITES.items():
        for site in sites:
            name = f"cov_{source}"
            yield Pair(number, name, at(claim[name], site), covariance(theory, source, site), exactly)


def _definitions(number: str, theory: Theory, *names: str) -> Iterator[Pair]:
    claim = sides(SOURCE, number)
    for name in names:
        yield Pair(number, name, claim[name], theory.order_parameter(name).definition)


def deep_pairs() -> Iterator[Pair]:
    """Yield the pairs of (12)-(14), (D.44)."""
    theory, claim = deep(), sides(SOURCE, "D.44")
    for number in ("13", "D.44"):
        yield from _fields(number, theory)
        yield from _covariances(number, theory)
    yield from _definitions("12", theory, "Phi", "G")
    yield from _definitions("14", theory, "A", "B")
    yield from _definitions("D.44", theory, "Phi", "G", "A", "B")
    for name, driven in (("h", "chi"), ("z", "xi")):
        key = f"{name}_{driven}"
        yield Pair("D.44", key, at(claim[key], NEXT[name]), given_products(theory, name))


def two_layer_pairs() -> Iterator[Pair]:
    """Yield the pairs of (D.21), (E.1)."""
    theory, claim = mean_field(mlp(1, phi, "flow")), sides(SOURCE, "D.21")
    for name in ("h", "z"):
        yield Pair("D.21", name, claim[name], theory.equation(name, 1).rhs)
    for source in ("u", "r"):
        yield Pair("D.21", f"cov_{source}", claim[f"cov_{source}"], covariance(theory, source, S.One))
    for name in ("Phi", "G"):
        yield Pair("D.21", name, claim[name], theory.order_parameter(name).definition.subs(ell, 1))
    yield Pair("D.21", "df", claim["df"], velocity(theory))
    claim = sides(SOURCE, "E.1")
    for name, source in (("h", "u"), ("z", "r")):
        change = (theory.equation(name, 1).rhs - Function(source)(1, mu, t)).diff(t)
        yield Pair("E.1", f"d{name}", claim[f"d{name}"], change)
        yield Pair("E.1", f"cov_{name}", claim[f"cov_{name}"], covariance(theory, source, S.One), exactly)
    for name in ("Phi", "G"):
        derived = theory.order_parameter(name).definition.subs({ell: 1, s: t})
        yield Pair("E.1", name, claim[name], derived, _with_one_number_z)
    yield Pair("E.1", "dDelta", claim["dDelta"], -velocity(theory))


def _with_one_number_z(one: Expr, other: Expr) -> bool:
    """Return whether both are equal for z without a sample, as printed in (E.1), and its source."""
    z, g = Function("z"), Function("g")

    def flat(e: Expr) -> Expr:
        opened = canonical(e.replace(g, lambda *i: z(*i) * phi(h(*i)).diff(h(*i))))
        return opened.replace(z, lambda k, _, time: z(k, Symbol("any"), time))

    h = Function("h")
    return bool(flat(one) == flat(other))


def deep_networks() -> Evidence:
    """Check (12)-(14), (D.44): deep networks with any activation."""
    return compared(
        "identities_nonlinear:deep_networks",
        "Fields, covariances, kernels and responses of a deep network are the derived ones, in the body and "
        "at both ends.",
        deep_pairs(),
    )


def two_layers() -> Evidence:
    """Check (D.21), (E.1): one hidden layer, as integral and as differential equations."""
    return compared(
        "identities_nonlinear:two_layers",
        "The equations of one hidden layer are the derived ones; (E.1) is the derivative of the derived "
        "fields in time.",
        two_layer_pairs(),
    )


# -- widths and variances ------------------------------------------------------------------------------------


def _squares_of_roots(one: Expr, other: Expr) -> bool:
    """Return whether both are equal for positive widths."""
    return bool(canonical(numbered(one, "a")) == canonical(numbered(other, "a")))


def _simplified(one: Expr, other: Expr) -> bool:
    return bool(simplify(numbered(one, "a") - numbered(other, "a")) == 0)


def with_error(e: Expr) -> Expr:
    """Return (D.54), (D.55) with the error that both leave out."""
    for name in ("Phi", "G"):
        f = Function(name)
        e = e.replace(f, lambda *i, f=f: f(*i) * Function("Delta")(i[2], i[4]))
    return e


def unscaled(e: Expr) -> Expr:
    """Return (D.55) with A and B in place of their rescaled forms, by the text of (D.54)."""
    for name, definition in printed("D.54 text").items():

        def back(k: Expr, *i: Expr, definition: Expr = definition) -> Expr:
            places = dict(zip((ell, mu, alpha, t, s), (k, *i), strict=True))
            return definition.subs(places, simultaneous=True)

        e = e.replace(Function(name), back)
    return e


def _pushed(theory: Theory) -> tuple[Expr, Expr]:
    average = theory.order_parameter("B").definition * gamma0
    assert isinstance(average, Average)
    body = average.body
    assert isinstance(body, Response)
    return body.body, body.source


def inner_weight(program: Program) -> TrainedMatrix:
    """Return the weights of the inner layers."""
    (found,) = [w for w in program.trained() if w.name == "W"]
    assert isinstance(found, TrainedMatrix)
    return found


def root_of_variance(program: Program, own: Expr) -> Expr:
    """Return a weight of the engine in units of a weight with variance ``own``."""
    found = inner_weight(program)
    return sqrt(gaussian(found).variance / own / N)


def _widths_of_a_network(number: str) -> Iterator[Pair]:
    """Yield the pairs of (D.46), (D.47).

    The program's matrices have entries of variance sigma^2/(a N), printed ones sigma^2.
    """
    program = wide().program
    root = root_of_variance(program, Function("sigma")(ell) ** 2)
    W_top, g = Function("W_top"), Function("g")
    if number == "D.46":
        definition = next(d for d in program.definitions if d.name == "z" and d.lhs.args[0] == ell)
        (product,) = definition.products()
        derived = definition.rhs.subs(product, root * Function("product")(W_top(ell), product.vector))
        yield Pair(number, "z", sides(SOURCE, number)["z"], derived, _simplified)
        assert product.vector.func == g
    else:
        yield Pair(number, "dW", sides(SOURCE, number)["dW"], _update(program, root), _simplified)


def _update(program: Program, root: Expr) -> Expr:
    """Return the velocity of an inner weight in units of ``root``; products of vectors carry 1/N."""
    w = inner_weight(program)
    update, rule = w.update, w.rule
    assert isinstance(rule, GradientFlow)
    moved = update.coefficient * Function("outer")(update.left, update.right)
    own = {r.index: r for r in update.over}
    sums = [(mu, own[alpha].lower, own[alpha].upper)]
    return rule.rate / N / root * Sum(moved.subs(alpha, mu), *sums)


def width_pairs() -> Iterator[Pair]:
    """Yield the pairs of (D.46)-(D.49), (D.51), (D.53), (D.54) text."""
    theory = wide()
    yield from _widths_of_a_network("D.46")
    yield from _widths_of_a_network("D.47")
    claim = sides(SOURCE, "D.48")
    for name in ("h", "z"):
        said = at(claim[name], NEXT[name])
        yield Pair("D.48", name, said, given_products(theory, name), _squares_of_roots)
    kernel = theory.observables[0].rhs.subs(Function("a")(L), 1)
    yield Pair("D.49", "K", sides(SOURCE, "D.49")["K"], kernel, _squares_of_roots)
    claim, ratio = sides(SOURCE, "D.53"), Function("a")(ell + 1) / Function("a")(ell)
    u, r = (at(claim[f"cov_{x}"], SITES[x][0]) for x in "ur")
    yield Pair("D.53", "cov_u", u, covariance(theory, "u", ell + 1), exactly)
    yield Pair("D.53", "cov_r", r, covariance(theory, "r", ell) / ratio, _simplified)
    yield from _definitions("D.53", theory, "Phi", "G")
    yield Pair("D.53", "A", claim["A"], gamma0 * theory.order_parameter("A").definition)
    sigma, a = Function("sigma"), Function("a")
    response = Function("response")(*_pushed(theory))
    cross = sigma(ell) ** 2 * sqrt(a(ell) / a(ell + 1))  # factor of A^l g in (D.52)
    yield Pair("D.53", "B", claim["B"], a(ell + 1) / a(ell) * cross * response, _simplified)
    for name in ("h", "z"):
        said = at(with_error(unscaled(sides(SOURCE, "D.55")[name])), NEXT[name])
        derived = theory.equation(name, NEXT[name]).rhs
        yield Pair("D.54 text", f"rescaled response in {name}", said, derived, _squares_of_roots)
    yield from _action_of_widths()


def _action_of_widths() -> Iterator[Pair]:
    """Yield the pairs of (D.51): terms of the action by the number of units of their layer.

    The program gives the number of units of a layer; each product with a conjugate, and ln Z, has that
    factor.
    """
    count = gaussian(inner_weight(wide().program)).cols.ratio
    Tr, lnZ = Function("Tr"), Function("lnZ")
    hat = {x: Function(f"hat_{x}") for x in ("Phi", "G")}
    Phi, G, A, B = (Function(x) for x in ("Phi", "G", "A", "B"))
    parts = Tr(hat["Phi"](ell), Phi(ell)) + Tr(G(ell), hat["G"](ell)) - Tr(A(ell), B(ell)) + lnZ(ell)
    claim = sides(SOURCE, "D.51")["S"]
    yield Pair("D.51", "S", claim, Sum(count * parts, (ell, 1, L)), _same_sum)


def _same_sum(one: Expr, other: Expr) -> bool:
    """Return whether sums over layers are equal, by their terms for two layers."""

    def opened(e: Expr) -> Expr:
        return e.replace(lambda a: isinstance(a, Sum), lambda a: a.subs(L, 2).doit())

    return bool((opened(one) - opened(other)).expand() == 0)


def unequal_widths() -> Evidence:
    """Check (D.46)-(D.49), (D.51), (D.53), (D.54) text: layers of unequal widths and variances."""
    return compared(
        "identities_nonlinear:unequal_widths",
        "Backward fields, updates, memory, kernels, responses and covariances for unequal widths are the "
        "derived ones, printed weights having variance sigma^2.",
        width_pairs(),
    )


# -- convolutions, biases, several outputs, Tensor Programs --------------------------------------------------


@lru_cache(maxsize=1)
def ring() -> Theory:
    """Return the theory of a convolution on a ring."""
    return mean_field(convolution(L, phi, "flow", positions=X, receptive=REACH))


@lru_cache(maxsize=1)
def several() -> Theory:
    """Return the theory of several outputs."""
    return mean_field(mlp(L, phi, "flow", outputs=Symbol("C", integer=True, positive=True)))


def other_network_pairs() -> Iterator[Pair]:
    """Yield the pairs of (G.3), (H.3), (I.1), (I.2), (N.10)."""
    yield from _filters()
    yield from _biases()
    claim = sides(SOURCE, "I.2")["g"]
    product = Function("product")(Function("W_top")(ell), Function("g")(ell + 1, mu, Symbol("c"), t))
    field = several().equation("g", ell).rhs
    C = next(x for x in field.free_symbols if x.name == "c")
    product = product.subs(Symbol("c"), C)
    yield Pair("I.2", "g", claim, field.replace(Function("z"), lambda *_: product), _g_kept)
    yield from _outputs()
    yield from tensor_program_pairs()


def _g_kept(one: Expr, other: Expr) -> bool:
    """Return whether both are equal without opening g of the layer above."""
    return bool((one - other).expand() == 0)


def _filters() -> Iterator[Pair]:
    """Yield the pairs of (G.3): the engine's weights have variance 1/N, and printed ones variance one."""
    program = ring().program
    w = inner_weight(program)
    update, root = w.update, sqrt(gaussian(w).variance / N)
    moved = update.coefficient * Function("outer")(update.left, update.right)
    p, p_ = (Symbol(n, integer=True, positive=True) for n in ("p", "p_"))
    sums = [(r.index, r.lower, r.upper) for r in update.over]
    names = {alpha: mu, p_: p}
    derived = Sum(moved.subs(names), *[(names.get(i, i), a, b) for i, a, b in sums]) / N / root
    size = next(x for x in sides(SOURCE, "G.3")["dW"].free_symbols if x.name == "N")
    yield Pair("G.3", "dW", sides(SOURCE, "G.3")["dW"], derived.subs(N, size), _expanded_sum)


def _expanded_sum(one: Expr, other: Expr) -> bool:
    return bool((normal_form(one) - normal_form(other)).expand() == 0)


def _biases() -> Iterator[Pair]:
    """Yield the pairs of (H.3): u of the paper is u + b of the engine."""
    theory, claim = mean_field(mlp(L, phi, "flow", bias=True)), sides(SOURCE, "H.3")
    b, u = Function("b"), Function("u")
    for name in ("h", "z"):
        for site in (NEXT[name], ENDS[name]):
            said = at(claim[name], site).replace(u, lambda *i: u(*i) + b(*i))
            yield Pair("H.3", name, said, theory.equation(name, site).rhs)
    for site in SITES["u"]:
        both = covariance(theory, "u", site) + covariance(theory, "b", site)
        yield Pair("H.3", "cov_u", at(claim["cov_u"], site), both, exactly)
    for site in SITES["r"]:
        yield Pair("H.3", "cov_r", at(claim["cov_r"], site), covariance(theory, "r", site), exactly)


def _outputs() -> Iterator[Pair]:
    """Yield the pairs of (I.1): the derived tangent kernel times the errors in the program's updates."""
    kernel = several().observables[0]
    claim = sides(SOURCE, "I.1")["df"]
    w = inner_weight(several().program)
    error = w.update.coefficient / gamma0
    over = [(r.index, r.lower, r.upper) for r in reversed(w.update.over)]
    left = kernel.lhs.subs(s, t)
    derived = Sum(Function("K")(*left.args) * error, *over)
    yield Pair("I.1", "df", claim, derived, _expanded_sum)


def in_tensor_programs(e: Expr) -> Expr:
    """Return claim (N.10) in the nodes of the printer, at layer ell."""
    W, marks = Function("W"), {"x": (x, 0), "dh": (dh, 1), "dx": (dx, 0)}
    for name, (vector, shift) in marks.items():
        e = e.replace(Function(name), lambda time, vector=vector, shift=shift: vector(ell + shift, time))
    e = e.replace(W, lambda v: Product(W(ell), False, v)).replace(
        Function("W_top"), lambda v: Product(W(ell), True, v)
    )
    for name, node in (("hat", Hat), ("dot", Dot), ("Z", Z), ("E", Expectation)):
        e = e.replace(Function(name), node)
    return e


def tensor_program_pairs() -> Iterator[Pair]:
    """Yield the pairs of (N.10)."""
    tp, claim = tensor_program(mean_field(one_pass()), NAMES), sides(SOURCE, "N.10")
    for name, lhs in (("h", Function("h")(ell + 1, t)), ("dx", dx(ell, t))):
        derived = next(e.rhs for e in tp.equations if e.lhs == Z(lhs))
        yield Pair("N.10", name, in_tensor_programs(claim[name]), derived, _normal)
    field = NAMES[Function("z")(ell, t)]
    yield Pair("N.10", "dx_is", in_tensor_programs(claim["dx_is"]), field, exactly)
    covariances = dict(e.args for e in tp.covariances)
    hats = {"cov_hat_W": Hat(Product(Function("W")(ell), False, x(ell, t)))}
    hats["cov_hat_W_top"] = Hat(Product(Function("W")(ell), True, dh(ell + 1, t)))
    for name, hat in hats.items():
        derived = covariances[Expectation(hat * hat.xreplace({t: s}))]
        yield Pair("N.10", name, in_tensor_programs(claim[name]), derived, exactly)


def _normal(one: Expr, other: Expr) -> bool:
    return bool(normal_form(one) == normal_form(other))


def other_networks() -> Evidence:
    """Check (G.3), (H.3), (I.1), (I.2), (N.10): filters, biases, several outputs, Tensor Programs."""
    return compared(
        "identities_nonlinear:other_networks",
        "Updates of filters, fields with biases, outputs and backward fields with several outputs, and the "
        "equations in Tensor Programs are the derived ones.",
        other_network_pairs(),
    )
