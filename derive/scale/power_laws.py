"""Exponents of the loss on power-law data, by regime: with constants, with when each holds and where it ends.

Eigenvalues are ``k^-capacity``, targets ``w_star(k)^2 lamda(k) = k^(-capacity source - 1)``; the depth, the
source and the capacity may be numbers or symbols.  Each law is read from what was derived of a theory:
:func:`~derive.scale.modes.lazy_modes`, :func:`~derive.scale.modes.leading_order`,
:func:`~derive.scale.rich.rank_one`, :func:`~derive.scale.bottlenecks.batch_noise`,
:func:`~derive.scale.bottlenecks.width_noise`, :func:`~derive.scale.bottlenecks.fixed_data`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sympy import Expr, Symbol, false, nan, simplify, zoo

from derive.calculus.symbols import L, gamma0
from derive.errors import NotApplicable
from derive.program.networks.random_data import N, P
from derive.scale.bottlenecks import BatchNoise, FixedData, WidthNoise, width_order
from derive.scale.mellin import Power, Powers
from derive.scale.modes import (
    EASY,
    HARD,
    LazyModes,
    LeadingOrder,
    beta,
    given,
    kind_of,
    numbers,
    task_of,
    time,
)
from derive.scale.modes import capacity as capacity_
from derive.scale.rich import RankOne, rich_scaling
from derive.show.latex import latex

_MORE = Symbol("p", positive=True)


@dataclass(frozen=True)
class PowerLaw:
    """``loss ~ constant t^-exponent`` at late times.

    At leading order in gamma0 it is the term ``gamma0^2 c t^-exponent`` that is meant, and ``constant`` has
    its sign.  On finite data it is the loss in the end, ``constant P^-exponent``.  ``formula`` is the loss
    with all terms that are known, ``conditions`` say when it holds and what was assumed, and ``crossover``
    where it meets another regime, by what that is.  ``series`` is what the exponent was read from, if it is a
    sum of powers.
    """

    regime: str
    formula: Expr
    exponent: Expr
    constant: Expr
    conditions: tuple[str, ...]
    crossover: Mapping[str, Expr] = field(default_factory=dict)
    series: Powers | None = None

    def _repr_latex_(self) -> str:
        return f"${latex(self.formula)}$"


def lazy_law(
    modes: LazyModes,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    order: LeadingOrder | None = None,
) -> PowerLaw:
    """The regime in which features stand still: ``loss ~ t^-beta`` at any depth, in flow or in steps.

    With the ``order`` gamma0^2 it is said when a flow leaves the regime.
    Raises ValueError for numbers that are not possible.

    >>> from derive.program.networks import structured
    >>> from derive.scale.modes import lazy_modes
    >>> from derive.theory import mean_field
    >>> law = lazy_law(lazy_modes(mean_field(structured(data="population", rule="flow"))))
    >>> print(law.exponent, law.formula, *law.crossover)
    beta gamma(beta)/(a*t**beta*(2*L + 2)**beta) last mode
    """
    values = numbers(depth, source, capacity)
    series = modes.loss().subs(values)
    crossover = {"last mode": modes.cutoff().subs(values)}
    conditions = [
        "gamma0 -> 0, or gamma0 > 0 and t below the crossover to feature learning",
        f"1 << t << {crossover['last mode']}, M the number of modes",
    ]
    if series.conditions == false:
        raise ValueError("the first mode diverges")
    if modes.theory.program.rule.discrete:
        conditions.append(f"{modes.kernel.subs(values)} < 2: the first mode does not diverge")
    elif order is not None and task_of(values[beta]) == HARD:
        crossover["features"] = order.crossover().subs(values)
    if order is not None and task_of(values[beta]) == EASY:
        share = order.relative(EASY).coefficient.subs(values)
        conditions.append(f"features change the constant by the share gamma0**2*({share}), not the power")
    return _law("lazy", series.expr, series.terms[0], conditions, crossover, series)


def leading_law(
    order: LeadingOrder,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    task: str | None = None,
) -> PowerLaw:
    """Order gamma0^2: what the first movement of the features adds to the lazy loss.

    ``task`` (``hard``: source below 1, or ``easy``) is needed where the source is a symbol, and is ``hard``
    if left out.  Raises ValueError for numbers that are not possible, and :class:`NotApplicable` for a source
    of 1, where there is a logarithm.
    """
    values = numbers(depth, source, capacity)
    kind = kind_of(values[beta], task, "the order gamma0^2", order.correction.turns(beta))
    series = order.correction.sorted(given(kind)).subs(values)
    top = series.terms[0]
    conditions = [
        "source < 1" if kind == HARD else "source > 1",
        "gamma0**2 times the term is small beside the lazy loss; the next order is gamma0**4",
        f"corrections are smaller by t**({simplify(series.terms[1].power - top.power)})",
        f"1 << t << {order.modes.cutoff().subs(values)}, M the number of modes",
    ]
    crossover = {"features": order.crossover().subs(values)} if kind == HARD else {}
    formula = order.lazy.subs(values).expr + gamma0**2 * series.expr
    return _law("leading", formula, top, conditions, crossover, series)


def rich_law(
    reduced: RankOne,
    modes: LazyModes,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    task: str | None = None,
) -> PowerLaw:
    """The regime in which features have outgrown their start: see :mod:`derive.scale.rich`.

    On hard tasks the power depends on depth.  ``crossover`` says when the regime begins: where its loss meets
    the lazy one of ``modes``.  Raises as :func:`leading_law` does, and NotApplicable where the constant has
    no closed form.
    """
    values = numbers(depth, source, capacity)
    found = rich_scaling(reduced, values[L], values[beta], values[capacity_], task=task)
    if found.constant.has(nan, zoo):
        raise NotApplicable(f"source = {values[beta]}: the closed form of the constant is 0/0 there")
    before = modes.loss().subs(values).expr
    crossover = {"lazy": found.crossover(before)} if found.task == HARD else {}
    return PowerLaw("rich", found.loss, found.exponent, found.constant, found.conditions, crossover)


def batch_law(noise: BatchNoise, depth: Any = L, source: Any = beta, capacity: Any = capacity_) -> PowerLaw:
    """Descent on fresh batches, lazy and infinitely wide, without label noise: ``t`` counts steps.

    Where targets are learnt faster than ``t^-(2 - 1/capacity)``, that is the power of the loss: each batch
    stirs modes that had been learnt, and these forget it no faster.  Raises NotApplicable where symbols
    leave open which of the two it is, ValueError for a capacity of 1 or less.

    >>> from derive.program.networks import structured
    >>> from derive.scale.bottlenecks import batch_noise
    >>> from derive.theory import mean_field
    >>> noise = batch_noise(mean_field(structured(noise=True)))
    >>> print(batch_law(noise, 1, "1/2", 2).exponent, batch_law(noise, 1, 2, "3/2").exponent)
    1/2 4/3
    """
    values = numbers(depth, source, capacity, summed=True)
    tails = noise.decay()
    try:
        top = tails.subs(values).sorted().terms[0]
    except NotApplicable:
        where = tails.turns(beta).expand().subs(values)
        raise NotApplicable(f"source = {values[beta]}: must be below or above {where}") from None
    conditions = [
        f"gamma0 -> 0, N -> oo, no label noise; with it the loss ends at {_floor(noise)}",
        f"q = {noise.amplification.subs(values)} < 1",
        "kernels that fall as a power: the renewal theorem is used, not derived",
    ]
    return _law("batch", top.at(time), top, conditions)


def _floor(noise: BatchNoise) -> Expr:
    return noise.floor().xreplace({noise.amplification: Symbol("q")})


def width_law(
    noise: WidthNoise,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    task: str | None = None,
) -> PowerLaw:
    """Order 1/N of the lazy loss: the variance of what N units learn, ``c t^-exponent/N``.

    On easy tasks it falls slower than the loss of infinite width and takes over long before ``N^capacity``.
    Raises as :func:`leading_law` does, and ValueError for a capacity of 1 or less.
    """
    values = numbers(depth, source, capacity, summed=True)
    kind = kind_of(values[beta], task, "the variance at order 1/N", noise.variance.turns(beta))
    top = noise.variance.sorted(width_order(kind)).terms[0].subs(values)
    conditions = [
        "source < 1" if kind == HARD else "source > 1",
        f"1 << t << N**({values[capacity_]}): beyond, order 1/N is not enough",
        "the mean error has an order 1/N too: "
        + ("of the same power, so that the constant is not all" if kind == HARD else "a smaller power"),
    ]
    formula = noise.lazy.subs(values).expr + top.at(time) / N
    return _law("width", formula, top, conditions, {"width": noise.crossover(kind).subs(values)})


def data_law(
    data: FixedData,
    modes: LazyModes,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    steep: bool | None = None,
) -> PowerLaw:
    """The same P samples at every step, lazy and infinitely wide: the test loss ends at ``c P^-exponent``.

    With a source below 2 the exponent is ``capacity source``, and the loss is that of the population until
    it meets this floor at ``t ~ P^capacity``.  ``steep`` tasks, of a source above 2, have the floor of a
    source of 2, and a power of their own before it, ``t^-(2 - 1/capacity)/P``.  ``steep`` is needed where
    the source is a symbol; it is False if left out.  Raises NotApplicable for a source of 2, where there is
    a logarithm, ValueError for a capacity of 1 or less.

    >>> from derive.program.networks import structured
    >>> from derive.scale.bottlenecks import fixed_data
    >>> from derive.scale.modes import lazy_modes
    >>> from derive.theory import mean_field
    >>> modes = lazy_modes(mean_field(structured(data="population", rule="flow")))
    >>> data = fixed_data(mean_field(structured(data="full-batch", noise=True, rule="flow")))
    >>> found = data_law(data, modes)
    >>> when = found.crossover["lazy"]
    >>> print(found.exponent, simplify(P * when.diff(P) / when))
    a*beta a
    >>> found = data_law(data, modes, 1, 3, 2)
    >>> print(found.exponent, *[simplify(P * x.diff(P) / x) for x in found.crossover.values()])
    4 2/3 2
    """
    values = numbers(depth, source, capacity, summed=True)
    b, turn = values[beta], data.floor.turns(beta)
    if b == turn:
        raise NotApplicable(f"source = {b}: two powers of P meet, and there is a logarithm")
    if b.is_number:
        if steep is not None and steep != bool(b > turn):
            raise ValueError(f"steep = {steep}: a source of {b} makes it {bool(b > turn)}")
        steep = bool(b > turn)
    found = data.floor.sorted({beta: turn + _MORE} if steep else {beta: turn / (1 + _MORE)}).subs(values)
    top, end, before = found.terms[0], found.terms[0].at(P), modes.loss().terms[0]
    if steep:
        middle = Power(data.stirred.coefficient / P, data.stirred.power)
        crossover = {"lazy": middle.meets(before).subs(values)}
        crossover["end"] = ((end / middle.coefficient) ** (1 / middle.power)).subs(values)
        earlier = f"{middle.at(time).subs(values)} between the two crossovers"
    else:
        crossover = {"lazy": ((end / before.coefficient) ** (1 / before.power)).subs(values)}
        earlier = f"{before.at(time).subs(values)} before it"
    conditions = [
        f"source > {turn}" if steep else f"source < {turn}",
        "gamma0 -> 0, N -> oo, 1 << P << M, M the number of modes",
        f"t beyond the last crossover; the loss is {earlier}",
        f"no label noise; with it {data.label_floor.subs(values)} is added at the end, and "
        f"{(data.label_fit.at(time) / P).subs(values)} before",
        "the final value theorem is used: the limit of late times is taken to exist",
    ]
    return _law("data", end, top, conditions, crossover, found)


def _law(
    regime: str,
    formula: Expr,
    top: Power,
    conditions: list[str],
    crossover: Mapping[str, Expr] | None = None,
    series: Powers | None = None,
) -> PowerLaw:
    ansatz = "the eigenvalues and targets are powers of k, and modes are many enough for sums without an end"
    said = (*conditions, ansatz)
    return PowerLaw(regime, formula, -top.power, top.coefficient, said, crossover or {}, series)


__all__ = ["PowerLaw", "batch_law", "data_law", "lazy_law", "leading_law", "rich_law", "width_law"]
