"""Width parametrisations: the paper's family, Yang and Hu's theorem, changed programs, exact symmetries."""

import random
from dataclasses import replace
from functools import partial

import pytest
from sympy import Eq, Expr, Function, Integer, Max, Mul, Rational, Symbol, latex, powsimp, sqrt, tanh

from derive.errors import NotApplicable
from derive.program import (
    Along,
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Outer,
    P,
    Population,
    Product,
    Program,
    TrainedMatrix,
    TrainedVector,
    alpha,
    eta,
    gamma0,
    mu,
    t,
)
from derive.program.network import Network
from derive.program.parts import gaussian
from derive.program.training import Parametrization
from derive.scale.optimizer_powers import OPTIMIZERS
from derive.scale.power_counting import N
from derive.scale.width import (
    FEATURES,
    FIELDS,
    FREE,
    OUTPUTS,
    RAW_RATE,
    as_written,
    named,
    parametrized,
    solve_linear,
    symmetries,
    width_class,
    with_exponents,
)
from tests.derive.once import (
    convolution,
    feedback_alignment,
    isotropic,
    mean_field,
    mlp,
    recurrent,
    width_constraints,
)

a, HALF = FREE, Rational(1, 2)
PAPER = {"a_W0": a - HALF, "b_W0": 1 - 2 * a, "a_W": a, "b_W": 1 - 2 * a, "a_w": a, "b_w": 1 - 2 * a}
PAPER |= {"c": 1 - 2 * a, "d": HALF}
"""selfconsistent2023 N.4."""
MUP = {"a_W0": -HALF, "b_W0": 1, "a_W": 0, "b_W": 1, "a_w": 0, "b_w": 1, "c": 1, "d": HALF}
"""selfconsistent2023 N.5."""


def by_name(table):
    return {str(x).split("(")[0]: v for x, v in table.items()}


@pytest.mark.parametrize(
    ("depth", "activation"),
    [
        (1, "relu"),
        (2, "linear"),
        (3, Function("phi")),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in ((2, "relu"), (4, Function("phi")), (5, "linear"))
        ),
    ],
)
def test_the_family_of_the_paper(depth, activation):
    found = width_constraints(mlp(depth, activation))
    said = PAPER if depth > 1 else without_interior(PAPER)
    assert by_name(found.family()) == said
    assert by_name(found.maximal_update()) == {k: v.subs(a, 0) for k, v in said.items()}
    assert {k: MUP[k] for k in said} == {k: v.subs(a, 0) for k, v in said.items()}


def test_conditions_are_plain_equations():
    found = width_constraints(mlp(2, "tanh"))
    assert all(isinstance(e, Eq) for e in found.equations)
    assert all(isinstance(x.power, Expr) for x in found.powers)
    assert "a_{W}" in latex(found.equations[1])
    assert found.solution(FIELDS)[found.unknowns[1]] == -2 * found.unknowns[0]
    (rate,) = found.of(RAW_RATE)
    assert rate.power == 2 * found.unknowns[-1] - found.unknowns[-2]
    with pytest.raises(KeyError, match="must be one of"):
        found.of("speed")


def bare(program, name):
    """Return the program with one matrix without its 1/sqrt(N), forwards, backwards and in its gradient."""

    def changed(e):
        used = [x for x in e.atoms(Product) if gaussian(program.matrix_of(x)).name == name]
        return e.xreplace({x: sqrt(N) * x for x in used})

    matrices = tuple(
        replace(m, update=replace(m.update, coefficient=sqrt(N) * m.update.coefficient))
        if m.name == name
        else m
        for m in program.matrices
    )
    definitions = tuple(replace(d, rhs=changed(d.rhs)) for d in program.definitions)
    return replace(program, definitions=definitions, matrices=matrices)


def test_a_layer_without_its_root_has_other_constraints():
    """2 a + b = 2 and 2 a + c = 2 for it: its own a is larger by a half, whatever the others are."""
    found = width_constraints(bare(mlp(2, "tanh"), "W"))
    assert found.equations != width_constraints(mlp(2, "tanh")).equations
    own = by_name(found.family())
    assert own == {k: v.subs(a, a - HALF) if k != "a_W" else a for k, v in PAPER.items()}
    assert by_name(found.maximal_update()) == {**MUP, "a_W": HALF}


def test_an_update_that_is_forgotten_changes_the_constraints():
    """Planted error: the factor is in the definitions and not in the gradient."""
    program = bare(mlp(2, "tanh"), "W")
    slip = replace(program, matrices=mlp(2, "tanh").matrices)
    weights = {x.weight: x.power for x in width_constraints(slip).of(OUTPUTS)}
    right = {x.weight: x.power for x in width_constraints(program).of(OUTPUTS)}
    assert weights["W(1)"] - right["W(1)"] == -HALF


def test_biases_go_with_the_first_layer():
    found = by_name(width_constraints(mlp(2, "tanh", bias=True)).family())
    assert found == {**PAPER, "a_b": a - HALF, "b_b": 1 - 2 * a}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(partial(mlp, 2, "tanh", branch=Symbol("beta")), marks=pytest.mark.slow),
        pytest.param(partial(mlp, 2, "tanh", outputs=3), marks=pytest.mark.slow),
        partial(mlp, 2, "relu", "flow"),
        partial(mlp, 2, "tanh", momentum=HALF, weight_decay=Symbol("lam")),
        pytest.param(partial(recurrent, 3, "tanh"), marks=pytest.mark.slow),
        partial(convolution, 2, "tanh", positions=3, receptive=1),
    ],
    ids=["residual", "outputs", "flow", "momentum and decay", "recurrent", "convolution"],
)
def test_variants_share_the_family(program):
    found = width_constraints(program())
    assert by_name(found.family()) == PAPER
    assert len(found.symmetries) == 2 + 2 * (program().definitions[1].rhs.has(Max))


def test_feedback_matrices_are_free_but_for_their_size():
    """Fixed feedback has one condition, on its product of scale and standard deviation."""
    found = width_constraints(feedback_alignment(2, "tanh"))
    family = {str(x): v for x, v in found.family().items()}
    V = next(x for x in found.unknowns if str(x) == "a_V(1)")
    assert family["b_V(1)"] == 1 - 2 * V
    assert family["a_W(1)"] == a
    assert {x.weight for x in found.of(OUTPUTS)} == {"w"}
    assert {x.weight for x in found.of(FEATURES)} == {"W0", "W(1)", "w"}


def without_interior(family):
    return {k: v for k, v in family.items() if k not in ("a_W", "b_W")}


def gated():
    """Return a program that no builder offers, whose top layer gates itself through a frozen matrix V."""
    pixels, layer = Population("input", given=True), Population("layer")
    x = GivenVector("x", pixels, "K_x")
    h, q, top, g, g_q, g_a = (Field(n, layer) for n in ("h", "q", "top", "g", "g_q", "g_a"))
    f, Delta, y = Function("f"), Function("Delta"), Function("y")
    W0 = GaussianMatrix("W0", layer, pixels)
    V = GaussianMatrix("V", layer, layer, sources=("v", "rho"))
    w = GaussianVector("w", layer, source="omega")
    samples, past = IndexRange(mu, 1, P), IndexRange(alpha, 1, P)
    gate, rule, error = 1 + tanh(q(mu, t)), GradientDescent(eta), gamma0 * Delta(alpha, t)
    slope = (1 - tanh(q(mu, t)) ** 2) * h(mu, t) * g_a(t)
    return Program(
        "a network that gates itself",
        rule,
        fields=(h, q, top, g, g_q, g_a),
        definitions=(
            Definition(h(mu, t), W0 @ x(mu), (samples,)),
            Definition(q(mu, t), V @ h(mu, t), (samples,)),
            Definition(top(mu, t), gate * h(mu, t), (samples,)),
            Definition(f(mu, t), Mean(g_a(t) * top(mu, t)) / gamma0, (samples,)),
            Definition(Delta(mu, t), y(mu) - f(mu, t), (samples,)),
            Definition(g_a(t), w.symbol),
            Definition(g_q(mu, t), slope, (samples,)),
            Definition(g(mu, t), gate * g_a(t) + V.T @ g_q(mu, t), (samples,)),
        ),
        matrices=(TrainedMatrix(W0, Outer(error, g(alpha, t), x(alpha), (past,)), rule), V),
        vectors=(TrainedVector(w, Along(error, top(alpha, t), (past,)), rule),),
        given=(x,),
        scalars=("f", "Delta"),
        constants=("y",),
        scale=gamma0,
        depth=Integer(1),
    )


def test_a_program_of_ones_own():
    """The frozen matrix of its gate has a condition on its size; the rest is the paper's family."""
    found = width_constraints(gated())
    V = next(x for x in found.unknowns if str(x) == "a_V")
    family = {str(k): v for k, v in found.family().items()}
    assert family == {**without_interior(PAPER), "a_V": V, "b_V": 1 - 2 * V}
    ntk = named(gated())["NTK"]
    assert width_class(gated(), ntk).regime == "lazy"
    assert width_class(gated(), {**ntk, "d": HALF}).regime == "feature learning"
    assert "q" in " ".join(width_class(gated(), {**ntk, "b_V": -1}).broken)


# -- classification -----------------------------------------------------------------------------------------


def yang_hu(depth, a, b, c):
    """Return the classes by theorems 3.3, 3.4 and definition 3.2 of Yang and Hu (arXiv:2011.14522).

    The paper is Tensor Programs IV. Scales n^-a, standard deviations n^-b, rate n^-c; layers 1..L hidden, L +
    1 the readout.
    """
    last = depth + 1
    least = min(2 * a[k] + (k == 1) for k in range(1, last))
    r = min(a[last] + b[last], 2 * a[last] + c) + c - 1 + least
    stable = a[1] + b[1] == 0 and all(a[k] + b[k] == HALF for k in range(2, last))
    stable = stable and a[last] + b[last] >= HALF and r >= 0
    stable = stable and 2 * a[last] + c >= 1 and a[last] + b[last] + r >= 1
    moves = stable and (a[last] + b[last] + r == 1 or 2 * a[last] + c == 1)
    return bool(stable), bool(moves), r, bool(stable and r == 0)


def drawn(rng, depth):
    def half(low, high):
        return Rational(rng.randint(2 * low, 2 * high), 2)

    last = depth + 1
    if rng.random() < 0.4:  # near a parametrisation that learns
        shift = half(-1, 1)
        a = {k: shift for k in range(1, last + 1)} | {1: shift - HALF, last: shift + HALF}
        a[rng.randint(1, last)] += half(0, 1)
        b = {k: HALF - a[k] for k in a} | {1: -a[1], last: -shift + half(0, 1)}
        return a, b, -2 * shift + half(-1, 1), half(0, 1)
    a = {k: half(-1, 1) for k in range(1, last + 1)}
    b = {k: HALF - a[k] for k in a} | {1: -a[1]}
    b[last] += half(0, 1)
    if rng.random() < 0.1:
        b[rng.randint(1, depth)] += HALF
    return a, b, half(-1, 3), half(0, 1)


def against_yang_hu(depth, activation, count, seed):
    """Compare ``count`` random parametrisations, two thirds of them stable.  How many learn features."""
    rng, program, learn, seen = random.Random(seed), mlp(depth, activation), 0, 0
    while seen < count:
        a, b, c, d = drawn(rng, depth)
        stable, moves, r, learns = yang_hu(depth, a, b, c)
        if not stable and seen % 3:
            continue
        seen += 1
        e = {"a_W0": a[1], "b_W0": 2 * b[1], "a_w": a[depth + 1] - d, "b_w": 2 * b[depth + 1]}
        for k in range(2, depth + 1):
            e |= {f"a_W({k - 1})": a[k], f"b_W({k - 1})": 2 * b[k]}
        found = width_class(program, {**e, "c": c + 2 * d, "d": d})
        keeps_size = all(found.start[x] == 0 for x in found.hidden)
        assert (found.stable and keeps_size) == stable, (e, c, d)
        if stable:
            power = max(x for n in found.hidden if (x := found.changes[n]) is not None)
            mine = (found.nontrivial, -power, found.feature_learning)
            assert mine == (moves, r, learns), (e, c, d)
        learn += learns
    return learn


def test_yang_and_hu():
    assert against_yang_hu(1, "tanh", 12, seed=5) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "activation"), [(1, "tanh"), (2, "tanh"), (2, "relu"), (3, "tanh")])
def test_yang_and_hu_at_length(depth, activation):
    assert against_yang_hu(depth, activation, 150, seed=depth) > 3


def test_mu_p_is_theirs():
    """Table 1 of Yang and Hu: a = (-1/2, 0, 1/2), b = 1/2, c = 0; the readout carries N^-d too."""
    own = {k: Rational(v) for k, v in named(mlp(2, "tanh"))["muP"].items()}
    assert (own["a_W0"], own["a_W"], own["a_w"] + own["d"]) == (-HALF, 0, HALF)
    assert {own[k] / 2 for k in ("b_W0", "b_W", "b_w")} == {HALF}
    assert own["c"] - 2 * own["d"] == 0


@pytest.mark.parametrize(
    ("name", "regime", "rates"),
    [
        ("NTK", "lazy", {"h": -HALF, "f": 0}),
        pytest.param("mean-field", "feature learning", {"h": 0, "f": 0}, marks=pytest.mark.slow),
        ("standard", "unstable", {"h": HALF, "f": 1}),
        pytest.param("standard, rate 1/N", "lazy", {"h": -HALF, "f": 0}, marks=pytest.mark.slow),
        ("muP", "feature learning", {"h": 0, "f": 0}),
    ],
)
def test_common_points(name, regime, rates):
    program = mlp(2, "tanh")
    found = width_class(program, named(program)[name])
    assert found.regime == regime
    assert {"h": found.rates["h", 2], "f": found.rates["f", None]} == rates


@pytest.mark.parametrize(
    ("change", "counted"), [({}, 2), ({"c": -1}, 1), ({"a_W0": -1}, 0)], ids=["stable", "update", "start"]
)
def test_updates_are_counted_until_a_quantity_diverges(change, counted):
    """With the standard exponents and a rate of order N the first update diverges."""
    exponents = {"a_W0": 0, "a_w": HALF, "b_W0": 0, "b_w": 0, "c": 0, "d": HALF}
    found = width_class(mlp(1, "tanh"), {**exponents, **change}, steps=2)
    assert found.steps == counted
    said = any("powers of N do not change after update 2" in x for x in found.conditions())
    assert said == found.stable == (not change)


@pytest.mark.slow
def test_forbidden_choices_say_what_breaks():
    program = mlp(2, "relu")
    good = named(program)["mean-field"]
    broken = {
        "h(2) is of order N^(1/2) at the start": {"b_W": -1},
        "h(2) vanishes as N^(-1/2) at the start": {"b_W": 1},
        "features move only as N^(-1/2)": {"d": 0},
        "outputs move only as N^(-1/2)": {"c": HALF},
        "f grows as N^(1/2) with update 1": {"a_w": HALF / 2, "b_w": HALF},
    }
    for words, change in broken.items():
        assert words in width_class(program, {**good, **change}).broken, words


def test_exponents_are_read_strictly():
    program = mlp(1, "tanh")
    good = named(program)["NTK"]
    with pytest.raises(NotApplicable, match="a_V unknown"):
        width_class(program, {**good, "a_V": 0})
    with pytest.raises(NotApplicable, match="d missing"):
        width_class(program, {k: v for k, v in good.items() if k != "d"})
    with pytest.raises(NotApplicable, match="c = x: must be a real number"):
        width_class(program, {**good, "c": Symbol("x")})
    with pytest.raises(NotApplicable, match="no exponents fulfil"):
        solve_linear([a, a - 1], (a,))


# -- one network, many exponents ----------------------------------------------------------------------------


def test_the_canonical_member_is_the_program_itself():
    program = mlp(2, "tanh")
    own = as_written(program)
    same = parametrized(program, own)
    assert [d.rhs for d in same.definitions] == [d.rhs for d in program.definitions]
    assert same.matrices == program.matrices


def by_forward_pass(exponent, c=0, d=HALF):
    """Return two layers with weights ``N^-a W`` before any differentiation."""
    pixels, layer = Population("input", given=True), Population("layer")
    x, h, k = GivenVector("x", pixels, "K_x"), Field("h", layer), Field("k", layer)
    y, f = Function("y"), Function("f")
    W0 = GaussianMatrix("W0", layer, pixels, variance=N ** -exponent["b_W0"])
    W = GaussianMatrix("W", layer, layer, variance=N ** -exponent["b_W"])
    w = GaussianVector("w", layer, variance=N ** -exponent["b_w"])
    scale = gamma0 * N ** (d - HALF)
    forward = {
        h(mu, t): N ** -exponent["a_W0"] * (W0 @ x(mu)),
        k(mu, t): N ** (HALF - exponent["a_W"]) * (W @ tanh(h(mu, t))),
        f(mu, t): N ** (HALF - exponent["a_w"]) * Mean(w.symbol * tanh(k(mu, t))) / scale,
    }
    net = Network("two layers", (h, k), forward, weights=(W0, W, w), given=(x,), depth=Integer(1))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta), Parametrization(scale, N**-c))


def moves(program):
    """Return forward pass, initial weights and updates, without names of the backward pass."""
    on_the_way = ("omega", "z", "g_k", "g")
    known = {x.lhs: x.rhs for x in program.definitions if x.name in on_the_way}
    known |= {a.subs(mu, alpha): e.subs(mu, alpha) for a, e in known.items()}

    def plain(e):
        for _ in on_the_way:
            e = e.xreplace(known)
        e = e.replace(lambda x: isinstance(x, Mean), outside)
        return powsimp(e.expand(), force=True)

    def outside(mean):
        factors = Mul.make_args(mean.args[0])
        return Mul(*[x for x in factors if x.has(N)]) * Mean(Mul(*[x for x in factors if not x.has(N)]))

    found = [plain(x.rhs) for x in program.definitions if x.lhs not in known]
    for m in program.matrices:
        found += [m.initial.variance, plain(m.update.coefficient * m.update.left), m.update.right]
    w = program.vectors[0]
    return [*found, w.initial.variance, plain(w.update.coefficient * w.update.vector)]


def test_a_parametrisation_is_that_of_the_forward_pass():
    """Moved on what was derived, or written into the forward pass and then differentiated: one program."""
    names = {f"{kind}_{w}": Symbol(f"{kind}_{w}", real=True) for kind in "ab" for w in ("W0", "W", "w")}
    c, d = (Symbol(x, real=True) for x in "cd")
    written = dict.fromkeys(names, Integer(0)) | {"a_W": HALF, "a_w": HALF}
    assert moves(parametrized(by_forward_pass(written))) == moves(by_forward_pass(names, c, d))


def test_members_of_the_family_are_one_program():
    """Scales absorbed into the weights leave a program without N, whatever ``a`` is."""
    program = mlp(2, "tanh")
    found = width_constraints(program)
    members = with_exponents(parametrized(program), by_name(found.family()))
    for name, w in {m.name: m for m in members.matrices}.items():
        scale = {"W0": -a + HALF, "W": HALF - a}[name]
        written = next(m for m in program.matrices if m.name == name)
        assert powsimp(w.initial.variance * N ** (2 * scale).expand()) == written.initial.variance
        assert powsimp(w.update.coefficient * N**scale / written.update.coefficient) == 1


def test_symmetries():
    c, d = (Symbol(x, real=True) for x in "cd")
    found = symmetries(mlp(3, "tanh"))
    assert len(found) == 2
    convention, shift = found
    assert {str(k): v for k, v in convention.items()} == {"a_w": -1, "c": 2, "d": 1}
    assert shift[c] == -2
    assert d not in shift
    assert {v for k, v in shift.items() if str(k).startswith("a_")} == {1}
    assert {v for k, v in shift.items() if str(k).startswith("b_")} == {-2}
    # homogeneous layers can hand scales on to each other
    assert len(symmetries(mlp(3, "relu"))) == len(symmetries(mlp(3))) == 5


def test_entrywise_rules_have_symmetries_of_each_layer():
    """Every weight has a rate of its own, so that the free exponents of the family are directions."""
    found = width_constraints(mlp(1, "tanh", rule=OPTIMIZERS["sign"]))
    family, shifts = found.family(), [{str(k): v for k, v in x.items()} for x in found.symmetries]
    free = {x for v in family.values() for x in v.free_symbols}
    assert len(free) == 2
    for x in free:
        assert {str(k): v.diff(x) for k, v in family.items() if v.diff(x) != 0} in shifts
    assert len(shifts) == 3  # and d against the exponents of the readout


def test_epsilon_and_decay_move_with_the_gradient():
    """Shifts of sign descent are those of Adam with decay, whose epsilon moves against the multiplier."""
    sign, adam = (
        [{str(k): v for k, v in x.items()} for x in symmetries(mlp(1, "tanh", rule=OPTIMIZERS[r]))]
        for r in ("sign", "adamw")
    )
    assert sign == [{k: v for k, v in x.items() if not k.startswith("e_")} for x in adam]
    assert [{k: v for k, v in x.items() if k.startswith("e_")} for x in adam] == [
        {"e_w": 1}, {"e_W0": 1}, {"e_w": 1},
    ]  # fmt: skip


def test_the_family_moves_along_a_symmetry():
    found = width_constraints(mlp(3, "tanh"))
    direction = {x: v.diff(a) for x, v in found.family().items() if v.diff(a) != 0}
    assert direction in found.symmetries


def test_the_theory_of_a_parametrised_program_is_derived_as_any_other():
    """Its powers of N occur in the derived equations, and cancel at the canonical point."""
    program = mlp(1, "tanh")
    theory = mean_field(with_exponents(parametrized(program), named(program)["muP"]))
    assert any(term.expr.has(N) for e in theory.equations for term in e.terms)
    plain = mean_field(with_exponents(parametrized(program), named(program)["mean-field"]))
    assert not any(term.expr.has(N) for e in plain.equations for term in e.terms)


def test_programs_without_a_scale_or_with_noise_are_refused():
    with pytest.raises(NotApplicable, match="have the scale 1, which must be a symbol"):
        width_constraints(isotropic(2))
    with pytest.raises(NotApplicable, match="noise"):
        width_constraints(mlp(1, temperature=1))
    with pytest.raises(
        NotApplicable, match=r"the factor \(N \+ 1\).* must be proportional to a single power of the width"
    ):
        width_constraints(mlp(2, "tanh", init_variance=1 + N))
    rule = GradientDescent(eta)
    assert width_constraints(mlp(1, "tanh").with_rule(rule)).family()
