"""linear2025, main text and appendices A, B, D, E, G: printed equations equal derived ones.

Derived theories are brought to the paper's units (r0 and u0 enter with factor one) and compared at three
hidden layers, at a time at which all sums have terms, every sum written out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from sympy import Add, Expr, Function, Integral, Mul, S, Sum, Symbol, simplify, sqrt, sympify
from sympy.core.function import AppliedUndef

from derive.linear.propagators import transfer
from derive.program import GradientDescent, L, ell, s, t
from derive.program.networks.random_data import alpha, nu, sigma
from derive.program.parts import gaussian
from derive.program.training import TrainedVector
from derive.reduce.data import absorb_factors, instant_responses, mode_sums
from derive.theory import Average, OrderParameter, Response, Theory
from derive.theory.path_integral.action import Inner
from derive.theory.path_integral.action import N as SIZE
from tests.derive.once import isotropic, mean_field, structured
from tests.ledger.claims.linear2025.notation import D, N, P
from tests.ledger.evidence.base import Evidence
from tests.ledger.evidence.identity import Pair, compared, difference, sides
from tests.ledger.isotropic_route import CONJUGATES, route, units

SOURCE = "linear2025"
DEPTH, NOW = 3, 3
SIZES = {alpha: P / D, nu: N / D}
N_c = Symbol("N_c", integer=True, positive=True)
dot, average, response = Function("dot"), Function("average"), Function("response")
Delta = Function("Delta")


def exactly(one: Expr, other: Expr) -> bool:
    """Return whether two expressions are identical."""
    return bool(sympify(one) == other)


def _ratio(one: Expr, other: Expr) -> bool:
    """Return whether two coefficients with roots of sizes are equal."""
    return bool(simplify(one - other) == 0)


@lru_cache(maxsize=8)
def theory(data: str = "full-batch", center: bool = False, outputs: int | None = None) -> Theory:
    """Return the theory on isotropic data in the paper's units."""
    program = isotropic(noise=True, data=data, center=center, outputs=outputs)
    return absorb_factors(mean_field(program), "r0", "u0")


@lru_cache(maxsize=2)
def modes(data: str = "online") -> Theory:
    """Return the theory on structured data in the paper's units."""
    return mode_sums(absorb_factors(mean_field(structured(noise=True, data=data)), "r0", "u0"))


def written_out(e: Expr, layer: int | None = None) -> Expr:
    """Return the expression at the time NOW (and layer), with sums as their terms."""
    at = {t: NOW} if layer is None else {t: NOW, ell: layer}
    return terms_of_sums(sympify(e).subs(L, DEPTH).subs(at)).expand()


def terms_of_sums(e: Expr) -> Expr:
    """Return ``e`` with its sums over numbers as their terms."""
    if isinstance(e, Sum):
        (index, first, last), *others = reversed(e.limits)
        inner = Sum(e.function, *reversed(others)) if others else e.function
        return Add(*[terms_of_sums(inner.subs(index, n)) for n in range(int(first), int(last) + 1)])
    return e.func(*[terms_of_sums(x) for x in e.args]) if e.has(Sum) else e


def equation(found: Theory, name: str, layer: int | None = None) -> Expr:
    """Return the right-hand side of a field (of one layer), written out."""
    for e in found.at_depth(DEPTH).equations:
        args = e.lhs.args
        for at in members(e, layer if layer is not None and len(args) > 1 else None):
            lhs = e.lhs.subs(at)
            if e.name == name and (layer is None or lhs.args[0] == layer):
                return written_out(e.rhs.subs(at))
    raise AssertionError(f"no equation of {name} at {layer}")


def members(e: object, layer: int | None) -> list[dict[Symbol, int]]:
    """Return the layers of a family of equations or sources, as substitutions."""
    ranges = [r for r in e.ranges if r.index == ell]  # type: ignore[attr-defined]
    if not ranges or layer is None:
        return [{}]
    return [{ell: n} for n in range(int(ranges[0].lower), int(ranges[0].upper) + 1)]


def covariance(found: Theory, name: str, layer: int | None = None) -> Expr:
    """Return the covariance of a source (of one layer)."""
    for u in found.at_depth(DEPTH).sources:
        for at in members(u, layer):
            symbol = u.symbol.subs(at)
            if str(symbol.func) == name and (layer is None or symbol.args[0] == layer):
                return sympify(u.covariance.subs(at)).expand()
    raise AssertionError(f"no source {name} at {layer}")


def memory(found: Theory, name: str, layer: int | None) -> Expr:
    """Return the memory terms of a field, written out."""
    for e in found.at_depth(DEPTH).equations:
        for at in members(e, layer):
            if e.name == name and (layer is None or e.lhs.subs(at).args[0] == layer):
                return written_out(Add(*[x.expr.subs(at) for x in e.terms if x.kind == "memory"]))
    raise AssertionError(name)


def factors(outputs: int | None = None) -> dict[str, Expr]:
    """Return factors in front of products with standard normal matrices, and of their updates.

    Entries of the engine's matrices have variance ``variance/D``, so that printed ones are these over its
    root.
    """
    program = isotropic(noise=True, outputs=outputs)
    found: dict[str, Expr] = {}
    for d in program.definitions:
        for product in d.products():
            first = d.name == "h" and d.lhs.args[0] == 1
            root = sqrt(gaussian(program.matrix_of(product)).variance / D)
            found["h1" if first else d.name] = d.rhs.coeff(product) * root
    for x in program.trained():
        assert isinstance(x.rule, GradientDescent)
        rate = x.rule.rate * x.update.coefficient
        if isinstance(x, TrainedVector):
            found[x.initial.name] = rate
        else:
            found[x.initial.name] = rate / D / sqrt(x.initial.variance / D)
    return {k: sympify(x).subs(SIZES) for k, x in found.items()}


# -- full batch ----------------------------------------------------------------------------------------------


def _defined(found: Theory) -> dict[str, OrderParameter]:
    return {q.symbol.func.__name__: q for q in found.order_parameters}


def _responses(number: str) -> Iterator[Pair]:
    """Yield the pairs of vector and source of each response; R_vu of (101) occurs in no equation."""
    own = _defined(theory("online" if number == "101" else "full-batch"))
    known = {**_defined(theory()), **own}
    for name, e in sides(SOURCE, number).items():
        layer = known[name].symbol.args[0]
        member = {ell: layer} if len(known[name].symbol.args) == 3 else {}
        said = e.replace(response, lambda a, b: Average(Response(a, b))).subs(member)
        yield Pair(number, name, said, known[name].definition, exactly)


def _correlations(number: str) -> Iterator[Pair]:
    found = theory("online" if number == "102" else "full-batch")
    for name, e in sides(SOURCE, number).items():
        said = e.replace(average, lambda a, b: Average(a * b))
        yield Pair(number, name, said, found.order_parameter(name).definition, exactly)


def _losses(number: str) -> Iterator[Pair]:
    """Yield the pairs of losses: second moments of the errors on training and on fresh samples."""
    claim, fresh = sides(SOURCE, number), theory("online")
    error = fresh.equation("Delta").rhs
    noise = error.coeff(Function("eps")(t)) ** 2 * covariance(fresh, "eps")
    assert error.has(sigma)
    yield Pair(number, "test", claim["test"], (covariance(fresh, "u_Delta") + noise).subs(s, t), difference)
    squared = next(
        q.symbol for q in theory().order_parameters if q.definition == Average(Delta(t) * Delta(s))
    )
    yield Pair(number, "train", claim["train"], squared.subs(s, t), difference)


def _response_of_the_errors() -> Iterator[Pair]:
    derived = transfer(theory(), "Delta").equation("Delta").rhs
    derived = derived.replace(Function("H_Delta_Delta"), Function("R_Delta"))
    printed = sides(SOURCE, "15")["R_Delta"]
    for past in range(NOW + 1):
        at = {s: past}
        yield Pair(
            "15", f"s = {past}", written_out(printed.subs(at)), written_out(derived.subs(at)), difference
        )


def _memories() -> Iterator[Pair]:
    """Yield the pairs of (26) text: fields without their products with the initial matrices."""
    printed = sides(SOURCE, "26 text")
    start = {"h": Function("chi"), "g": Function("xi")}
    for name, layer in (("h", 1), ("h", 2), ("g", 2)):
        said = written_out(printed[name], layer - 1 if name == "h" else layer)
        derived = start[name](layer, NOW) + memory(theory(), name, layer)
        yield Pair(
            "26 text", f"{name}^{layer}", said.replace(Function("C_h"), first_kernel), derived, difference
        )
    kept = Function("w_star")(NOW) - Function("xi0")(NOW)
    yield Pair("26 text", "v", written_out(printed["v"]), kept + memory(theory(), "v", None), difference)


def first_kernel(layer: Expr, *times: Expr) -> Expr:
    """Return the kernel of a layer; the engine has a separate name for the paper's C_h^0."""
    return Function("C_h0")(*times) if layer == 0 else Function("C_h")(layer, *times)


def full_batch_pairs() -> Iterator[Pair]:
    """Yield the pairs of (10), (12), (15), (25), (26) text, (64), (66)-(68)."""
    for number in ("12", "64", "66"):
        yield from _responses(number)
    yield from _correlations("67")
    for number in ("10", "68"):
        yield from _losses(number)
    yield from _response_of_the_errors()
    engine = factors()
    for name, e in sides(SOURCE, "25").items():
        yield Pair("25", name, e, engine[name], _ratio)
    yield from _memories()


def full_batch() -> Evidence:
    """Check (10), (12), (15), (25), (26) text, (64), (66)-(68): full-batch equations are the derived ones."""
    return compared(
        "identities_isotropic:full_batch",
        "Losses, responses, correlations, factors of the updates and memory terms are the derived ones.",
        full_batch_pairs(),
    )


# -- averages over data and matrices -------------------------------------------------------------------------

Term = tuple[tuple[str, ...], ...]
"""Two overlaps, each by the names of its vectors."""


def terms(e: Expr) -> dict[Term, Expr]:
    """Return coefficients of products of two overlaps.

    A term and the one with t and t' exchanged are the same.
    """
    found: dict[Term, Expr] = {}
    for x in Add.make_args(summands(sympify(e)).expand()):
        overlaps = [a for a in x.atoms(AppliedUndef) if a.func == dot]
        overlaps = [a for a in overlaps for _ in range(_power(x, a))]
        key = min(_key(overlaps, False), _key(overlaps, True))
        found[key] = found.get(key, S.Zero) + x / Mul(*overlaps)
    return found


def _power(x: Expr, factor: Expr) -> int:
    return int(x.as_powers_dict()[factor])


def summands(e: Expr) -> Expr:
    """Return ``e`` with the terms of its sums in place of the sums."""
    return e.replace(lambda x: isinstance(x, Sum), lambda x: x.function)


def _key(overlaps: list[Expr], exchanged: bool) -> Term:
    name = {t: "s", s: "t"} if exchanged else {t: "t", s: "s"}

    def vector(x: Expr) -> str:
        return f"{x.func}{x.args[:-1]}{name.get(x.args[-1], x.args[-1])}"

    return tuple(sorted(tuple(sorted(vector(x) for x in a.args)) for a in overlaps))


def of_matrix(*names: str) -> Expr:
    """Return the engine's products of two overlaps that contain one of the fields, in the paper's units."""
    total = S.Zero
    for term in Add.make_args(route().average_exponent):
        overlaps = term.function.atoms(Inner)
        if len(overlaps) == 2 and {str(x.func) for a in overlaps for x in a.vectors} & set(names):
            total += _in_units(term.function)
    return total.subs(SIZE, D).subs(SIZES)


def _in_units(e: Expr) -> Expr:
    def one(x: Inner) -> Expr:
        scaled = [units().get(str(a.func), (S.One, str(a.func))) for a in x.vectors]
        vectors = [Function(name)(*a.args) for a, (_, name) in zip(x.vectors, scaled, strict=True)]
        return Mul(*[f for f, _ in scaled]) * dot(*vectors)

    return e.replace(lambda x: isinstance(x, Inner), one)


def same_terms(a: Expr, b: Expr) -> bool:
    """Return whether both have the same products of two overlaps with the same coefficients."""
    one, two = terms(a), terms(b)
    return one.keys() == two.keys() and all(simplify(one[k] - two[k]) == 0 for k in one)


def _crossing(e: Expr, cross: bool) -> Expr:
    """Return the squares of the average over one matrix, or its cross term.

    The cross term has overlaps of two different fields.
    """

    def is_cross(x: Expr) -> bool:
        return any(len({a.func for a in o.args}) == 2 for o in x.atoms(AppliedUndef) if o.func == dot)

    return Add(*[x for x in Add.make_args(e.expand()) if is_cross(x) == cross])


def average_pairs() -> Iterator[Pair]:
    """Yield the pairs of (34), (43), (47), (60)."""
    for number, cross, names in (
        ("34", False, ("chihat_u_Delta", "xihat_u0")),
        ("43", True, ("xihat_r0", "h0")),
        ("47", None, ("xihat", "h")),
    ):
        engine = of_matrix(*names)
        derived = engine if cross is None else _crossing(engine, cross)
        yield Pair(number, "exponent", sides(SOURCE, number)["exponent"], derived, same_terms)
    zero = {str(e.lhs.func): e.rhs for e in route().conjugates}
    assert set(zero) == CONJUGATES
    for name, e in sides(SOURCE, "60").items():
        yield Pair("60", name, e, zero[name], difference)


def averages() -> Evidence:
    """Check (34), (43), (47), (60): averages over data and matrices, and conjugates at the saddle point."""
    return compared(
        "identities_isotropic:averages",
        "The averages over the data and over the matrices are those of the derived path integral, whose "
        "conjugates vanish.",
        average_pairs(),
    )


# -- online, structured, several outputs ---------------------------------------------------------------------


def online_pairs() -> Iterator[Pair]:
    """Yield the pairs of (97), (98) text, (101), (102)."""
    found, printed = theory("online"), sides(SOURCE, "97")
    instant = {Function("R_Delta")(NOW, NOW): 1}
    derived = equation(found, "h0").subs(instant)
    yield Pair("97", "h0", written_out(printed["h0"]), derived, difference)
    yield Pair("97", "cov_u0", printed["cov_u0"], covariance(found, "u0"), difference)
    # <h0 h0> of independent u0 and v
    moment = covariance(found, "u0").subs(s, t) + Function("C_v")(t, t)
    yield Pair("98 text", "C_h0", sides(SOURCE, "98 text")["C_h0"], moment, difference)
    yield from _responses("101")
    yield from _correlations("102")


def mode_pairs() -> Iterator[Pair]:
    """Yield the pairs of (108), (109), (111), (112)."""
    found = modes()
    batch = next(u for u in found.sources if str(u.symbol.func) == "u_Delta").covariance
    name = next(a for a in batch.atoms(AppliedUndef))
    defined = {"C_v": found.order_parameter(str(name.func)), "C_h0": found.order_parameter("C_h0")}
    for key, e in sides(SOURCE, "108").items():
        yield Pair("108", key, e, plain(defined[key].definition), exactly)
    claim = sides(SOURCE, "109")
    for key, kind in (("R_h0r0", "online"), ("R_vu", "full-batch")):  # no equation online needs R_vu
        defined_response = modes(kind).order_parameter(key).definition
        yield Pair("109", key, claim[key], plain(defined_response), exactly)
    answers = transfer(instant_responses(found), "v")
    H = Function("H")
    last = next(e for e in answers.reduced if e.lhs.func == answers.answer("v").func)
    derived, printed = last.rhs.replace(answers.answer("v").func, H), sides(SOURCE, "111")["H"]
    yield from _kernel_of_a_mode()
    for past in range(NOW):
        at = {s: past}
        yield Pair(
            "111", f"s = {past}", written_out(printed.subs(at)), written_out(derived.subs(at)), difference
        )


def _kernel_of_a_mode() -> Iterator[Pair]:
    """Yield the pair of (112): rate of the error in gradient flow, with h0 at time t in its memory."""
    flow, claim = mean_field(structured(data="population", rule="flow")), sides(SOURCE, "112")
    integrals = flow.equation("xi").rhs.atoms(Integral)
    kernel = Add(*[(x.function / Function("h0")(s)).subs(s, t) for x in integrals])
    yield Pair("112", "K", claim["K"], kernel, difference)
    k = next(x for x in claim["dv"].free_symbols if x.name == "k")
    fed = flow.equation("h0").rhs.replace(Function("v"), lambda time: Function("v")(k, time))
    yield Pair("112", "dv", claim["dv"], -Function("K")(t) * fed, difference)


def plain(e: Expr) -> Expr:
    """Return averages and responses as functions of two arguments, with deterministic factors outside."""

    def one(x: Average) -> Expr:
        parts = Mul.make_args(x.body)
        known = [a for a in parts if str(getattr(a, "func", "")) == "lamda"]
        (*fields,) = (a for a in parts if a not in known)
        if isinstance(fields[0], Response):
            return Mul(*known) * response(*fields[0].args)
        return Mul(*known) * average(*sorted(fields, key=lambda a: a.args[-1] != t))

    return e.replace(lambda x: isinstance(x, Average), one)


def channel_pairs() -> Iterator[Pair]:
    """Yield the pairs of (123), (125)."""
    found, printed = theory(outputs=2), sides(SOURCE, "123")
    c = next(x for x in printed["h"].free_symbols if x.name == "c")
    start = {"h": Function("chi"), "g": Function("xi")}
    for name in ("h", "g"):
        said = written_out(printed[name].subs(N_c, 2), 2)
        derived = start[name](2, c, NOW) + memory(found, name, 2)
        yield Pair("123", name, said, derived, difference)
    known = {(q.symbol.func.__name__, len(q.symbol.args)): q for q in found.order_parameters}
    for name, e in sides(SOURCE, "125").items():
        q = next(q for (n, _), q in known.items() if n == name)
        member = {ell: q.symbol.args[0]} if e.has(ell) else {}
        said = e.replace(response, lambda a, b: Average(Response(a, b))).subs(member)
        yield Pair("125", name, said, q.definition, exactly)


def online() -> Evidence:
    """Check (97), (98) text, (101), (102): equations with fresh batches are the derived ones."""
    return compared(
        "identities_isotropic:online",
        "Averaged inputs, responses and correlations with fresh batches are the derived ones; R_vu of (101), "
        "which no equation needs, is defined as with a full batch.",
        online_pairs(),
    )


def other_data() -> Evidence:
    """Check (108), (109), (111), (112), (123), (125): modes and several outputs."""
    return compared(
        "identities_isotropic:other_data",
        "Correlations, responses and the transfer function of modes, and fields and responses of several "
        "outputs are the derived ones.",
        [*mode_pairs(), *channel_pairs()],
    )
