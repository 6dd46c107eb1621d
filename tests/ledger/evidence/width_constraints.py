"""The printed exponents of appendix N against those counted on programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from sympy import Expr, Function, Integer, Rational, Symbol, prime, sqrt, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, ell
from derive.program import Product, Program, TrainedMatrix
from derive.program.parts import gaussian
from derive.scale.power_counting import N
from derive.scale.width import (
    FEATURES,
    FIELDS,
    FREE,
    OUTPUTS,
    Constraints,
    width_class,
    width_constraints,
)
from tests.derive.once import mlp
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts

DEPTH = 3


@lru_cache
def counted(depth: int = DEPTH) -> Constraints:
    """Return the constraints of a perceptron with any activation."""
    return width_constraints(mlp(depth, Function("phi")))


def of_paper(e: Any, layer: int, depth: int = DEPTH) -> Expr:
    """Return a printed exponent at a layer, in the names of the program."""
    names = ["W0", *[f"W({k})" for k in range(1, depth)], "w"]
    e = sympify(e).subs({ell: layer, L: Integer(depth)})
    found = {
        x: _symbol(f"{x.func}_{names[int(x.args[0])]}") for x in e.atoms(AppliedUndef) if str(x.func) in "ab"
    }
    found |= {Symbol(k): Symbol(k, real=True) for k in "cd"}
    return e.xreplace(found)


def _symbol(name: str) -> Expr:
    head, _, member = name.partition("(")
    if not member:
        return Symbol(head, real=True)
    return Function(head, real=True)(Integer(member.rstrip(")")))


def _size(e: Expr) -> float:
    """Return zero exactly if the expression is zero."""
    plain = sympify(e).expand()
    if plain == 0:
        return 0.0
    names = sorted(plain.atoms(Symbol, AppliedUndef), key=str)
    return float(plain.xreplace({x: Integer(prime(i + 1)) for i, x in enumerate(names)}))


def conditions() -> Evidence:
    """Check (N.3), (N.4), (N.6), (N.8), (N.9), N.8 text: printed exponents against the program's."""
    table = {(x.requirement, x.what, x.weight): x.power for x in counted().powers}
    built = {k: claimed("selfconsistent2023", k) for k in ("N.3", "N.4", "N.6", "N.8", "N.8 text", "N.9")}
    scales = built["N.8 text"]
    findings = [_same("N.3", table[FIELDS, "h(1)", None] * 2, built["N.3"]["h1_h1"], 0)]
    for k in range(1, DEPTH):
        last = f"W({k})"
        findings += [
            _same(f"N.4, layer {k}", 2 * table[FIELDS, f"h({k + 1})", None], built["N.4"]["h_h"], k),
            _same(f"N.6, layer {k}", 2 * table[FIELDS, f"z({k})", None], built["N.6"]["z_z"], k),
            _same(f"N.8, layer {k}", -table[OUTPUTS, "f", last], built["N.8"]["inner"], k),
            _same(f"N.9, layer {k}", table[FEATURES, f"h({k + 1})", last], built["N.9"]["h"], k),
            _same(f"N.9 of z, layer {k}", table[FEATURES, f"z({k})", last], built["N.9"]["h"], k),
        ]
    findings += [
        _same("N.8, readout", -table[OUTPUTS, "f", "w"], built["N.8"]["inner"], DEPTH),
        _same("N.8, first layer", -table[OUTPUTS, "f", "W0"], built["N.8"]["first"], 0),
        _same("N.9, first layer", table[FEATURES, "h(1)", "W0"] + 1, built["N.9"]["h"], 0),
        contradicts(
            "N.8, N.8 text: first layer with the scale of the others",
            _size(table[OUTPUTS, "f", "W0"].subs(_symbol("a_W0"), of_paper(scales["a"], 0))),
            0.05,
        ),
        _solves("N.8 text, first layer", table[OUTPUTS, "f", "W0"], "a_W0", scales["a0"]),
        _solves("N.8 text, inner layer", table[OUTPUTS, "f", "W(1)"], "a_W(1)", scales["a"]),
        _solves("N.8 text, readout", table[OUTPUTS, "f", "w"], "a_w", scales["a"]),
    ]
    return conclude(
        "width_constraints:conditions",
        "Exponents counted on the program are the printed ones, of every layer and weight; for the first "
        "layer (N.9) holds with -1/2 in place of +1/2.",
        *findings,
    )


def _same(label: str, ours: Expr, printed: Any, layer: int) -> Finding:
    return agrees(f"{label}: counted minus printed", _size(ours - of_paper(printed, layer)), 0.0)


def _solves(label: str, condition: Expr, scale: str, printed: Any) -> Finding:
    """Return the finding that a counted condition holds for the printed scale."""
    left = condition.subs(_symbol(scale), of_paper(printed, 0))
    return agrees(f"{label}: counted condition at the printed scale", _size(left), 0.0)


def family() -> Evidence:
    """Check (N.9) text: the solutions at several depths, and that a changed program has others."""
    printed = claimed("selfconsistent2023", "N.9 text")
    findings, member = [], sympify(printed["rate_of_order_one"])
    for depth in (1, 2, 4):
        found = counted(depth)
        findings += _member(f"L = {depth}", found.family(), printed)
        findings += _member(f"L = {depth}, muP", found.maximal_update(), printed, member)
    bare = width_constraints(without_root(mlp(2, "tanh"), "W")).family()
    gaps = _member("W without 1/sqrt(N)", bare, printed)
    findings.append(contradicts("W without 1/sqrt(N): largest difference", max(x.value for x in gaps), 0.05))
    return conclude(
        "width_constraints:family",
        "The solutions of the counted conditions are the printed family, muP its member with a rate of order "
        "one, at every depth tried. A layer without its 1/sqrt(N) has another one.",
        *findings,
    )


def _member(
    label: str, ours: Mapping[Expr, Expr], printed: Mapping[str, Any], at: Expr = FREE
) -> list[Finding]:
    """Return findings on one exponent after the other, at this value of the printed parameter ``a``."""
    findings = []
    for x, v in ours.items():
        head = str(x).split("(")[0]
        key = {"a_W0": "a0", "b_W0": "b0"}.get(head, head.split("_")[0])
        said = sympify(printed[key]).subs(Symbol("a"), at)
        findings.append(agrees(f"{label}: {x} minus printed", abs(_size(v - said)), 0.0))
    return findings


def only_half() -> Evidence:
    """Check N.2 text: d = 1/2 is the only value on a grid of all other exponents.

    There 2 a + b = 1 holds for the readout too. One hidden layer; c = 0 without loss, by the symmetry that
    shifts it.
    """
    program, half = mlp(1, "tanh"), float(claimed("selfconsistent2023", "N.2 text")["d"])
    quiet: list[tuple[Rational, ...]] = []
    loud: list[tuple[Rational, ...]] = []
    quarters = [Rational(k, 4) for k in range(5)]
    grid = list(product(quarters[:3], quarters[1:4], quarters))
    for a0, a1, d in grid:
        powers = {"a_W0": a0, "b_W0": -2 * a0, "a_w": a1, "b_w": 1 - 2 * a1, "c": Rational(0), "d": d}
        found = width_class(program, powers)
        if found.nontrivial and found.feature_learning:
            z = found.changes["z", Integer(1)]
            (quiet if z is None or z <= 0 else loud).append((a0, a1, d))
    return conclude(
        "width_constraints:only_half",
        f"Of {len(grid)} parametrisations these are stable, move outputs and learn features, (a_0, a_1, d) = "
        f"{', '.join(map(str, quiet))}; all have d = 1/2. If z may grow, which outputs do not see, so do "
        f"{', '.join(map(str, loud))}.",
        agrees("largest |d - 1/2| where z stays", max(abs(float(x[2]) - half) for x in quiet), 0.0),
        contradicts("smallest |d - 1/2| where z grows", min(abs(float(x[2]) - half) for x in loud), 0.01),
        contradicts("how many do not learn", len(grid) - len(quiet) - len(loud), 1.0),
    )


def without_root(program: Program, name: str) -> Program:
    """Return the program with one matrix without 1/sqrt(N): every product with it times sqrt(N)."""

    def bare(e: Expr) -> Expr:
        used = [x for x in e.atoms(Product) if gaussian(program.matrix_of(x)).name == name]
        return e.xreplace({x: sqrt(N) * x for x in used})

    def faster(m: Any) -> Any:
        if not isinstance(m, TrainedMatrix) or m.name != name:
            return m
        return replace(m, update=replace(m.update, coefficient=sqrt(N) * m.update.coefficient))

    definitions = tuple(replace(d, rhs=bare(d.rhs)) for d in program.definitions)
    return replace(program, definitions=definitions, matrices=tuple(faster(m) for m in program.matrices))
