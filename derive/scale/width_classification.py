"""What a width parametrisation does: is it stable, does it move, does it learn features, what breaks.

Powers of N are counted over several updates, with numbers for all exponents.  Powers that N leaves at zero
for all steps are those of the limit of infinite width; a power above zero is a blow-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr, S, Symbol, nsimplify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import exact
from derive.errors import NotApplicable
from derive.program.program import Program
from derive.scale.parametrization import Exponents, as_written, parametrized, symbols_of
from derive.scale.power_counting import count_powers
from derive.scale.power_counting_result import Counted
from derive.scale.width_parametrization import features, outputs, put_in, unknowns, width_constraints

Node = tuple[str, Expr | None]
Powers = Mapping[Node, Expr | None]


@dataclass(frozen=True)
class Classification:
    """Powers of N of everything, and what they mean; None stands for what does not change at all.

    - ``start``: of fields and outputs before training;
    - ``rates``: of their first change, to first order in the update;
    - ``changes``: of their change after ``steps`` updates, if nothing blew up before;
    - ``broken``: what blows up or vanishes, in words.
    """

    exponents: Mapping[str, Expr]
    start: Powers
    rates: Powers
    changes: Powers
    hidden: tuple[Node, ...]
    read: tuple[Node, ...]
    stable_at_start: bool
    stable: bool
    broken: tuple[str, ...]

    @property
    def nontrivial(self) -> bool:
        """Do outputs move by order one?"""
        return self.stable and any(self.changes[x] == 0 for x in self.read)

    @property
    def feature_learning(self) -> bool:
        """Do fields that the outputs are computed from move by order one?"""
        return self.stable and any(self.changes[x] == 0 for x in self.hidden)

    @property
    def lazy(self) -> bool:
        """Do outputs move while features stay: a fixed kernel."""
        return self.nontrivial and not self.feature_learning

    @property
    def feature_power(self) -> Expr | None:
        """The largest power of N with which a feature moves (-r in Tensor Programs); None if none does."""
        found = [x for n in self.hidden if (x := self.changes[n]) is not None]
        return max(found) if found else None

    @property
    def regime(self) -> str:
        """One word for it."""
        if not self.stable_at_start:
            return "unstable at the start"
        if not self.stable:
            return "unstable"
        return "feature learning" if self.feature_learning else "lazy" if self.lazy else "trivial"


def classify(program: Program, exponents: Mapping[Any, Any], steps: int = 3) -> Classification:
    """Classify a program whose exponents have these values.

    Keys are ``a_<weight>``, ``b_<weight>``, ``c`` and ``d`` (as names or symbols); ``a_W`` gives a family one
    value, ``a_W(1)`` one member its own.  Three updates are enough for powers to settle: after the first
    every weight has moved, and after the second every backward field.

    Raises :class:`NotApplicable` for exponents that are missing, unknown or no numbers.

    >>> from derive.program import mlp
    >>> ntk = {"a_W0": 0, "a_W": "1/2", "a_w": "1/2", "b_W0": 0, "b_W": 0, "b_w": 0, "c": 0, "d": 0}
    >>> found = classify(mlp(2, "tanh"), ntk)
    >>> found.regime, found.changes["h", 2], found.broken
    ('lazy', -1/2, ('features move only as N^(-1/2)',))
    """
    own, values = read_exponents(program, exponents)
    whole = put_in(parametrized(program, own), values)
    linear = count_powers(whole, 1, first=True)
    hidden = tuple(features(program, linear))
    read: tuple[Node, ...] = tuple(outputs(program))
    nodes = (*linear.names(),)
    start = {x: linear.power(*x) for x in nodes}
    rates = {x: linear.change(*x) for x in nodes}
    watched = (*hidden, *read)
    grows = [x for x in watched if _above(start[x])]
    stopped = linear.stopped is not None and not any(k == 1 for *_, k in linear.found)
    stable_at_start = not grows and not stopped
    broken = [f"{_called(x)} is of order N^({start[x]}) at the start" for x in grows]
    changes: dict[Node, Expr | None] = dict(rates)
    stable = stable_at_start
    if stable_at_start:
        counted = count_powers(whole, steps, until=watched)
        blown = [x for x in watched if _above(counted.power(*x, step=counted.steps))]
        stable = counted.stopped is None and not blown
        if not stable:
            broken += _blown(counted, watched)
        changes = {x: counted.change(*x, step=counted.steps) for x in nodes}
    small = [x for x in hidden if stable_at_start and start[x] != 0]
    broken += [f"{_called(x)} vanishes as N^({start[x]}) at the start" for x in small]
    result = Classification(
        dict(values), start, rates, changes, hidden, read, stable_at_start, stable, tuple(broken)
    )
    if not stable:
        return result
    for group, what in ((read, "outputs"), (hidden, "features")):
        best = [x for n in group if (x := changes[n]) is not None]
        if not best or max(best) < 0:
            broken.append(f"{what} move only as N^({max(best)})" if best else f"{what} do not move")
    return Classification(
        dict(values), start, rates, changes, hidden, read, stable_at_start, stable, tuple(broken)
    )


def _above(power: Expr | None) -> bool:
    return power is not None and bool(power > 0)


def _blown(counted: Counted, watched: tuple[Node, ...]) -> list[str]:
    when = f"update {counted.steps}"
    sizes = {x: counted.power(*x, step=counted.steps) for x in watched}
    found = [f"{_called(x)} grows as N^({p}) with {when}" for x, p in sizes.items() if _above(p)]
    return found or [f"counting ends with {when}: {counted.stopped}"]


def read_exponents(program: Program, exponents: Mapping[Any, Any]) -> tuple[Exponents, dict[str, Expr]]:
    """The exponents by name, and those that the program is to be written with."""
    own = symbols_of(program)
    given = {str(k): _number(str(k), v) for k, v in exponents.items()}
    wanted = {str(x).split("(")[0] for x in unknowns(program)}
    known = {f"{kind}_{name}" for name in own.a for kind in "ab"} | {"c", "d"}
    heads = {k.split("(")[0] for k in given}
    if heads - known:
        strange, needed = (", ".join(sorted(x)) for x in (heads - known, wanted))
        raise NotApplicable(f"exponents: {strange} unknown; the program has {needed}")
    if wanted - heads:
        raise NotApplicable(f"exponents: {', '.join(sorted(wanted - heads))} missing")
    return own, given


def _number(key: str, value: Any) -> Expr:
    try:
        found = nsimplify(exact(key, value), rational=True)
    except (ValueError, TypeError):
        raise NotApplicable(f"{key} = {value!r}: must be a number, such as 1/2") from None
    if not (found.is_number and found.is_real):
        raise NotApplicable(f"{key} = {value}: must be a number")
    return found


def named(program: Program) -> dict[str, dict[str, Expr]]:
    """Common parametrisations of a program, by the number of terms in the sum that a weight enters.

    - ``NTK``: the scale is the root of the number of terms, ``N^-1/2``; entries and outputs are of order one;
    - ``mean-field``: the same with outputs divided by ``N^1/2``, as programs here are written;
    - ``standard``: no scales; the variance is one over the number of terms; the raw rate is fixed;
    - ``standard, rate 1/N``: the same with a raw rate of order 1/N;
    - ``muP``: the solution of all four requirements of :func:`.width_constraints`; what they leave free is as
      in ``NTK``.

    >>> from derive.program import mlp
    >>> {k: v["b_W"] for k, v in named(mlp(2, "tanh")).items()}
    {'NTK': 0, 'mean-field': 0, 'standard': 1, 'standard, rate 1/N': 1, 'muP': 1}
    """
    own = as_written(program)
    ntk = {f"a_{k}": x for k, x in own.a.items()} | {f"b_{k}": S.Zero for k in own.a}
    plain = {f"a_{k}": S.Zero for k in own.a} | {f"b_{k}": 2 * x for k, x in own.a.items()}
    found = {
        "NTK": ntk | {"c": S.Zero, "d": S.Zero},
        "mean-field": ntk | {"c": own.c, "d": own.d},
        "standard": plain | {"c": S.Zero, "d": S.Zero},
        "standard, rate 1/N": plain | {"c": S.One, "d": S.Zero},
    }
    maximal = width_constraints(program).maximal_update()
    free = {x: ntk[str(x).split("(")[0]] for v in maximal.values() for x in v.atoms(AppliedUndef, Symbol)}
    maximal = {x: v.xreplace(free) for x, v in maximal.items()}
    found["muP"] = {str(k).split("(")[0]: v for k, v in maximal.items()}
    return found


def _called(node: Node) -> str:
    name, site = node
    return name if site is None else f"{name}({site})"


__all__ = ["Classification", "classify", "named"]
